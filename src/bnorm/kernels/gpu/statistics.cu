// Kernels that move running statistics, merge sets of values, add up gradients, and convert parameters: a thread per
// channel, by the rules of formulas.h.

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
  const double* typical_at;  // one number, in place of `typical`, if only the device knows it
  int* left;                 // (C,): 1 if the channel is left alone; or null
  int* counted;              // of all batches: see count_left; or null
  // sets to merge
  double* sets;    // (items, 4, C), overwritten
  double* merged;  // (4, C)
  // gradients: part is added to total, and other_part to other; or they are copied there, see copy_params
  void* total;
  const double* part;
  void* other;
  const double* other_part;
  // options
  i64 mode, wide, whole, replaces, nonfinite, items, single;
  double momentum, halflife, ddof;
  double uncounted, typical;  // batches that `seen` lacks, and how many values each had
  // geometry
  i64 channels;
};

BN_DEV Running running_of(const StatisticsJob& job) {
  const int mode = (int)job.mode;
  const bn_rule rule = {job.replaces ? (int)BN_POOL : mode, job.momentum, job.halflife, job.ddof, (int)job.whole};
  return {job.mean,     job.var,  job.low,      job.seen,      job.weight, job.pairs, job.last,     job.counted,
          job.channels, job.wide, job.replaces, job.nonfinite, mode,       rule,      job.uncounted};
}

__global__ void __launch_bounds__(256) move_statistics(StatisticsJob job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x, channels = job.channels;
  if (c >= channels) return;
  const double* parts = job.parts + c;
  bn_batch batch = {parts[0], parts[channels], parts[2 * channels], parts[3 * channels], parts[0], 0.0, 0.0};
  if (job.batch_seen) batch.seen = job.batch_seen[c];
  if (job.batch_pairs) batch.pairs = job.batch_pairs[c];
  if (job.batch_last) batch.last = job.batch_last[c];
  const Running to = running_of(job);
  const bool left = moved(to, c, batch, job.typical_at ? *job.typical_at : job.typical);
  if (job.left) job.left[c] = left;
  count_left(to, c, left);
}

// Merge neighbors in pairs, then pairs of pairs: rounding errors grow only with the logarithm of the number of sets.
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

// Add part to total, and other_part to other: gradients of parameters.
__global__ void __launch_bounds__(256) add_gradients(StatisticsJob job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x;
  if (c >= job.channels) return;
  const i64 how = job.wide ? TO_FLOAT64 : TO_FLOAT32;
  if (job.total) give(job.total, how, c, job.part[c]);
  if (job.other) give(job.other, how, c, job.other_part[c]);
}

// Copy part to total, and other_part to other, as float64. They are float32 if bit 0 or bit 1 of `single` is set.
__global__ void __launch_bounds__(256) copy_params(StatisticsJob job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x;
  if (c >= job.channels) return;
  const auto copy = [&](void* to, const double* from, i64 single) {
    if (to) static_cast<double*>(to)[c] = single ? exact(reinterpret_cast<const float*>(from)[c]) : from[c];
  };
  copy(job.total, job.part, job.single & 1);
  copy(job.other, job.other_part, job.single & 2);
}
