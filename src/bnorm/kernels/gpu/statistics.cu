// Statistics that move over time, sets of values that become one, and gradients that are added up: a thread per channel,
// by the rules of formulas.h.

struct StatisticsJob {
  // of a bnorm.running.Statistics, (C,); null where absent
  void* mean;
  void* var;
  double* low;
  double* seen;
  double* weight;
  double* pairs;
  double* last;
  // the batch
  const double* parts;       // (4, C): count, mean, m2, low
  const double* batch_seen;  // (C,); null: the count
  const double* batch_pairs;
  const double* batch_last;
  const double* typical_at;  // one number, in place of `typical` where the device alone knows it
  int* left;                 // (C,): 1 where a channel is left alone; or null
  int* counted;              // of all batches: see count_left; or null
  // sets to merge
  double* sets;    // (items, 4, C); is written to
  double* merged;  // (4, C)
  // gradients: what is added to, and what is added
  void* total;
  const double* part;
  void* other;
  const double* other_part;
  // options
  i64 mode, wide, whole, replaces, nonfinite, items;
  double momentum, halflife, ddof;
  double uncounted, typical;  // batches that `seen` lacks, and how many values each had
  // geometry
  i64 channels;
};

BN_DEV double stored(const StatisticsJob& job, const void* values, i64 c) {
  return job.wide ? static_cast<const double*>(values)[c] : exact(static_cast<const float*>(values)[c]);
}
BN_DEV void set(const StatisticsJob& job, void* values, i64 c, double v) {
  if (job.wide) {
    static_cast<double*>(values)[c] = v;
  } else {
    static_cast<float*>(values)[c] = rounded(v);
  }
}
BN_DEV bool held(const StatisticsJob& job, double v) { return bn_finite(job.wide ? v : (double)(float)v); }

// An average of a layer is settled, and does not count what it has seen.
BN_DEV bool counts(const StatisticsJob& job) { return job.mode != BN_AVERAGE || job.weight; }

BN_DEV bn_statistics before(const StatisticsJob& job, i64 c, double seen, const bn_batch& batch) {
  if (job.replaces) return {stored(job, job.mean, c), 0.0, stored(job, job.var, c), 0.0, 0.0, 0.0, batch.last};
  const double low = job.low ? job.low[c] : 0.0;
  bn_statistics s = {stored(job, job.mean, c), low, stored(job, job.var, c), seen, 0.0, 0.0, 0.0};
  s.weight = job.weight ? job.weight[c] : job.mode == BN_POOL ? seen : 1.0 / 0.0;
  s.pairs = job.pairs ? job.pairs[c] : 0.0;
  s.last = job.last ? job.last[c] : 0.0;
  return s;
}

BN_DEV bn_rule rule_of(const StatisticsJob& job) {
  const int mode = job.replaces ? (int)BN_POOL : (int)job.mode;
  return {mode, job.momentum, job.halflife, job.ddof, (int)job.whole};
}

// Move a channel; whether it is left alone.
BN_DEV bool moved(const StatisticsJob& job, i64 c) {
  const i64 channels = job.channels;
  const double* parts = job.parts + c;
  bn_batch batch = {parts[0], parts[channels], parts[2 * channels], parts[3 * channels], parts[0], 0.0, 0.0};
  const bool test = job.nonfinite == TEST;
  const double typical = job.typical_at ? *job.typical_at : job.typical;
  const double seen = job.seen[c] + job.uncounted * typical;
  if (!(batch.count > 0.0)) {
    if (test) return false;
    job.seen[c] = seen;
    if (job.mode == BN_AVERAGE && job.weight && !job.replaces) job.weight[c] = bn_weight_later(job.weight[c], rule_of(job));
    return false;
  }
  if (job.batch_seen) batch.seen = job.batch_seen[c];
  if (!counts(job) && !job.replaces) batch.seen = 0.0;
  if (job.batch_pairs) batch.pairs = job.batch_pairs[c];
  if (job.batch_last) batch.last = job.batch_last[c];
  bn_statistics s = bn_move(before(job, c, seen, batch), batch, rule_of(job));
  if (job.replaces && job.mode == BN_AVERAGE) s.weight = 1.0 / 0.0;
  const bool finite = held(job, s.mean) && held(job, s.var);
  if (test) return !finite;
  if (!finite && job.nonfinite == SKIP) {
    job.seen[c] = seen;
    return true;
  }
  set(job, job.mean, c, s.mean);
  set(job, job.var, c, s.var);
  job.seen[c] = s.seen;
  if (job.low) job.low[c] = s.low;
  if (job.weight) job.weight[c] = s.weight;
  if (job.pairs) job.pairs[c] = s.pairs;
  if (job.last) job.last[c] = s.last;
  return !finite;
}

// Of `counted`: how many batches some channel skipped; whether this is one; a ticket; then the channels that ever did.
enum { BATCHES, THIS, TICKET, CHANNELS };

// A batch counts once, whichever blocks its channels are in: the last of them counts it. Between launches the two in the
// middle are 0.
BN_DEV void count_left(int* counted, i64 c, bool left) {
  if (left) counted[CHANNELS + c] = 1;
  const bool any = __syncthreads_or(left) != 0;
  if (threadIdx.x != 0) return;
  if (any) atomicOr(counted + THIS, 1);
  __threadfence();
  if (atomicInc(reinterpret_cast<unsigned*>(counted + TICKET), gridDim.x - 1) == gridDim.x - 1)
    counted[BATCHES] += atomicExch(counted + THIS, 0);
}

__global__ void __launch_bounds__(256) move_statistics(StatisticsJob job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x;
  const bool inside = c < job.channels, left = inside && moved(job, c);
  if (inside && job.left) job.left[c] = left;
  if (job.counted) count_left(job.counted, c, left);
}

// Neighbours in pairs, then pairs of pairs: rounding grows with the logarithm of their number only.
__global__ void __launch_bounds__(256) merge_sets(StatisticsJob job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x, channels = job.channels;
  if (c >= channels) return;
#pragma unroll 1
  for (i64 step = 1; step < job.items; step *= 2)
#pragma unroll 1
    for (i64 i = 0; i + step < job.items; i += 2 * step) {
      double* a = job.sets + 4 * i * channels + c;
      const double* b = job.sets + 4 * (i + step) * channels + c;
      if (b[0] == 0.0) continue;
      double n = a[0], mean = 0.0, m2 = 0.0, low = 0.0;
      if (n != 0.0) {
        mean = a[channels];
        m2 = a[2 * channels];
        low = a[3 * channels];
      }
      bn_merge(&n, &mean, &m2, &low, b[0], b[channels], b[2 * channels], b[3 * channels]);
      const double high = bn_finite(low) ? mean + low : mean;
      a[0] = n;
      a[channels] = high;
      a[2 * channels] = m2;
      a[3 * channels] = bn_finite(low) ? (mean - high) + low : 0.0;
    }
  const double* all = job.sets + c;
  double* merged = job.merged + c;
  const bool empty = all[0] == 0.0;
  merged[0] = all[0];
  merged[channels] = empty ? BN_NAN : all[channels];
  merged[2 * channels] = empty ? 0.0 : all[2 * channels];
  merged[3 * channels] = empty ? 0.0 : all[3 * channels];
}

// total += part, and another such pair, of gradients of parameters.
__global__ void __launch_bounds__(256) add_gradients(StatisticsJob job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x;
  if (c >= job.channels) return;
  const i64 how = job.wide ? TO_FLOAT64 : TO_FLOAT32;
  if (job.total) give(job.total, how, c, job.part[c]);
  if (job.other) give(job.other, how, c, job.other_part[c]);
}
