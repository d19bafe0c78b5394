// How a batch moves running statistics, a channel at a time: formulas.h, on the arrays of a device.

struct Running {  // of a bnorm.running.Statistics, (C,); null where absent
  void* mean;
  void* var;
  double* low;
  double* seen;
  double* weight;
  double* pairs;
  double* last;
  int* counted;  // see count_left
  i64 channels, wide, replaces, nonfinite;
  int mode;
  bn_rule rule;      // its mode is BN_POOL if they are replaced
  double uncounted;  // batches that `seen` lacks
};

BN_DEV double stored(const Running& to, const void* values, i64 c) {
  return to.wide ? static_cast<const double*>(values)[c] : exact(static_cast<const float*>(values)[c]);
}
BN_DEV void set(const Running& to, void* values, i64 c, double v) {
  if (to.wide) {
    static_cast<double*>(values)[c] = v;
  } else {
    static_cast<float*>(values)[c] = rounded(v);
  }
}
BN_DEV bool held(const Running& to, double v) { return bn_finite(to.wide ? v : (double)(float)v); }

// Whether values are counted in `seen`. They are not in the average of a layer, which is settled.
BN_DEV bool counts(const Running& to) { return to.mode != BN_AVERAGE || to.weight; }

BN_DEV bn_statistics before(const Running& to, i64 c, double seen, const bn_batch& batch) {
  if (to.replaces) return {stored(to, to.mean, c), 0.0, stored(to, to.var, c), 0.0, 0.0, 0.0, batch.last};
  const double low = to.low ? to.low[c] : 0.0;
  bn_statistics s = {stored(to, to.mean, c), low, stored(to, to.var, c), seen, 0.0, 0.0, 0.0};
  s.weight = to.weight ? to.weight[c] : to.mode == BN_POOL ? seen : 1.0 / 0.0;
  s.pairs = to.pairs ? to.pairs[c] : 0.0;
  s.last = to.last ? to.last[c] : 0.0;
  return s;
}

// Move a channel, or with TEST change nothing. Return whether its new statistics are not finite; with SKIP such a
// channel is left alone. typical: how many values an uncounted batch had.
BN_DEV bool moved(const Running& to, i64 c, bn_batch batch, double typical) {
  const bool test = to.nonfinite == TEST;
  const double seen = to.seen[c] + to.uncounted * typical;
  if (!(batch.count > 0.0)) {
    if (test) return false;
    to.seen[c] = seen;
    if (to.mode == BN_AVERAGE && to.weight && !to.replaces) to.weight[c] = bn_weight_later(to.weight[c], to.rule);
    return false;
  }
  if (!counts(to) && !to.replaces) batch.seen = 0.0;
  bn_statistics s = bn_move(before(to, c, seen, batch), batch, to.rule);
  if (to.replaces && to.mode == BN_AVERAGE) s.weight = 1.0 / 0.0;
  const bool finite = held(to, s.mean) && held(to, s.var);
  if (test) return !finite;
  if (!finite && to.nonfinite == SKIP) {
    to.seen[c] = seen;
    return true;
  }
  set(to, to.mean, c, s.mean);
  set(to, to.var, c, s.var);
  to.seen[c] = s.seen;
  if (to.low) to.low[c] = s.low;
  if (to.weight) to.weight[c] = s.weight;
  if (to.pairs) to.pairs[c] = s.pairs;
  if (to.last) to.last[c] = s.last;
  return !finite;
}

// `counted` holds: how many batches some channel skipped; the number of the last of these batches; for each channel,
// whether it ever skipped one; and for each channel, the number of the batch it is at. When a launch begins or ends,
// this number is the same for all channels. So the first channel to skip a batch, whichever it is, finds an older
// number at LAST and counts the batch: no block has to wait for another.
enum { BATCHES, LAST, CHANNELS };

BN_DEV void count_left(const Running& to, i64 c, bool left) {
  if (!to.counted) return;
  int* of_channel = to.counted + CHANNELS + c;
  const int number = (int)((unsigned)of_channel[to.channels] + 1u);
  of_channel[to.channels] = number;
  if (!left) return;
  *of_channel = 1;
  if (atomicExch(to.counted + LAST, number) != number) atomicAdd(to.counted + BATCHES, 1);
}
