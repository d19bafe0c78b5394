// How running statistics move by a batch, a channel at a time: what formulas.h says, on the arrays of a device.

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
  bn_rule rule;      // its mode is another where they are replaced
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

// An average of a layer is settled, and does not count what it has seen.
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

// Move a channel, or with TEST only look; whether it is left alone. typical: how many values an uncounted batch had.
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

// Of `counted`: how many batches some channel skipped; which was the last of them; the channels that ever did; and
// which batch each channel is at. That is the same number for all of them when a launch begins, and when it ends, so
// that the first channel that a batch leaves alone is known, whichever it is: nothing has to wait for the other blocks.
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
