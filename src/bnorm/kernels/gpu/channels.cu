// Batch normalization: the kernels.
//
//     moments            sums of x, finished to parts, or to the statistics of a forward. EXACT: in float64
//     finish_stats       parts -> stats, if a caller does something in between
//     normalize          y = (x - mean) scale + shift, and the activation
//     sums               sums of dy and dy (x - mean), finished to sums, or to the coefficients of a backward
//     finish_gradients   sums -> coefficients, if a caller does something in between
//     gradient           dx = a (dy + w (b (x - mean) + c))
//
// <T, V, K, BX, BY, ...>: elements of type T are read V at a time; a thread has K channels, V side by side or one; a
// block is BX threads wide and BY high. KIND is the activation. With MODE WITH_MAP the same launch also does the map.
// So it does with MEETING: all blocks run at the same time, each keeps what it reads, and before the map they join
// their sums.

template <class T, int V, int K, int BX, int BY, int MODE, int KIND>
__global__ void __launch_bounds__(BX* BY, (Resident<BX * BY, K, MODE>::blocks)) moments(Job job) {
  if constexpr (BX == 1 && MODE == WITH_MAP) {
    OneBlock alone;
    if (BY > 256 || job.keep) return forward_runs<T, V, BY, KIND>(job, alone);
  }
  Vector<T, V>* kept = kept_memory<T, V, MODE>(job);
  if constexpr (MODE == MEETING) {
    meet_forward<T, V, K, BX, BY, KIND>(job, kept);
  } else {
    Moments sum[K];
    sum_moments<T, V, K, BX, BY, MODE>(job, blockIdx.x, blockIdx.y, kept, sum);
    const auto rest = [&](i64 column, Moments& sum) {
      if (MODE != CAREFUL) add_one(sum, exact(widen(static_cast<const T*>(job.x)[job.steps * job.columns + column])));
    };
    finish_tile<T, Moments, K, BX, BY, MODE>(job, blockIdx.x, blockIdx.y, sum, rest);
    if (MODE == WITH_MAP) map_forward<T, V, K, BX, BY, KIND, false>(job, blockIdx.x, blockIdx.y, kept);
  }
}

__global__ void __launch_bounds__(256) finish_stats(Job job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x;
  if (c >= job.channels) return;
  const double n = job.parts[c], m2 = job.parts[2 * job.channels + c];
  const double mean = job.parts[job.channels + c] + job.parts[3 * job.channels + c];
  write_stats(job, c, normal_of(job, c, mean, m2 / (n > 0.0 ? n : 1.0), n));
}

template <class T, int V, int K, int BX, int BY, int KIND, int FINITE>
__global__ void __launch_bounds__(BX* BY, (Resident<BX * BY, K, SUMS_ONLY>::blocks)) normalize(Job job) {
  map_forward<T, V, K, BX, BY, KIND, FINITE>(job, blockIdx.x, part_of_map(job), nullptr);
}

template <class T, int V, int K, int BX, int BY, int MODE, int KIND>
__global__ void __launch_bounds__(BX* BY, (Resident<BX * BY, K, MODE>::blocks)) sums(Job job) {
  if constexpr (BX == 1 && MODE == WITH_MAP) {
    OneBlock alone;
    if (BY > 256 || job.keep) return backward_runs<T, V, BY, KIND>(job, alone);
  }
  Vector<T, V>* kept = kept_memory<T, V, MODE>(job);
  if constexpr (MODE == MEETING) {
    meet_backward<T, V, K, BX, BY, KIND>(job, kept);
  } else {
    Sums sum[K];
    sum_products<T, V, K, BX, BY, MODE, KIND>(job, blockIdx.x, blockIdx.y, kept, sum);
    finish_tile<T, Sums, K, BX, BY, MODE>(job, blockIdx.x, blockIdx.y, sum);
    if (MODE == WITH_MAP) map_backward<T, V, K, BX, BY, SUMS_ONLY, KIND>(job, blockIdx.x, blockIdx.y, kept);
  }
}

__global__ void __launch_bounds__(256) finish_gradients(Job job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x;
  if (c >= job.channels) return;
  write_coefficients(job, c, coefficients_of(job, c, {job.sums[c], job.sums[job.channels + c]}, count_of(job, c)));
}

template <class T, int V, int K, int BX, int BY, int MODE, int KIND>
__global__ void __launch_bounds__(BX* BY, (MapResident<T, BX * BY, MODE>::blocks)) gradient(Job job) {
  map_backward<T, V, K, BX, BY, MODE, KIND>(job, blockIdx.x, part_of_map(job), nullptr);
}
