// Batch normalization of channels whose values fit into the shared memory of a cluster of blocks: they are read once, and
// kept there from the sums to the map.
//
//     cluster_moments    a forward in training
//     cluster_sums       its backward
//
// <T, V, K, BX, BY, KIND> as elsewhere, of channel runs: a block has one column. The blocks of a channel are the y of the
// grid. Clusters are known to devices of compute capability 9.0 and newer.

constexpr int CLUSTER = 8;  // blocks: no device with clusters has fewer

// P numbers of each block, given by its first thread: to lane r of the first warp of all blocks those of block r, and 0
// beyond. The caller has arrived at the first barrier, behind which all blocks are known to be there.
template <int P>
BN_DEV void tell_all(double (&v)[P]) {
  BN_SHARED(double, told, P * CLUSTER);
  const int tid = threadIdx.x;
  __cluster_barrier_wait();
  if (tid < 32) {
#pragma unroll
    for (int p = 0; p < P; ++p) v[p] = __shfl_sync(~0u, v[p], 0);
    if (tid < CLUSTER) {
      double* there = static_cast<double*>(__cluster_map_shared_rank(told, tid));
#pragma unroll
      for (int p = 0; p < P; ++p) there[p * CLUSTER + blockIdx.y] = v[p];
    }
  }
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#pragma unroll
  for (int p = 0; p < P; ++p) v[p] = tid < CLUSTER ? told[p * CLUSTER + tid] : 0.0;
}

// The sum over the lanes of a cluster, in all lanes: added as join_items adds so many items.
BN_DEV double add_lanes(double v) {
#pragma unroll
  for (int d = CLUSTER / 2; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
  return __shfl_sync(~0u, v, 0);
}

// The sums of a channel out of those of its blocks, in the first warp of all of them.
BN_DEV Sums join_cluster(const Sums& own) {
  double v[2] = {own.total, own.dot};
  tell_all(v);
  if (threadIdx.x >= 32) return {0.0, 0.0};
  const double total = add_lanes(v[0]);
  return {total, add_lanes(v[1])};
}

BN_DEV Moments join_cluster(const Moments& own) {
  double v[4] = {own.n, own.center, own.m2, own.away};
  tell_all(v);
  if (threadIdx.x >= 32) return {0.0, 0.0, 0.0, 0.0};
  const unsigned some = __ballot_sync(~0u, v[0] != 0.0);
  const double center = __shfl_sync(~0u, v[1], some ? __ffs(some) - 1 : CLUSTER - 1);
  const double off = (v[1] - center) + v[3], n = add_lanes(v[0]);
  const double total = add_lanes(v[0] == 0.0 ? 0.0 : v[0] * off);
  const double away = n == 0.0 ? 0.0 : total / n, gap = off - away;
  return {n, center, add_lanes(v[0] == 0.0 ? 0.0 : v[2] + gap * v[0] * gap), away};
}

template <class T, int V, int K, int BX, int BY, int KIND>
__global__ void __cluster_dims__(1, 8, 1) __launch_bounds__(BX* BY, (Resident<BX * BY, K, WITH_MAP>::blocks))
cluster_moments(Job job) {
  BN_SHARED(double, memory, (Tile<K, BX, BY>::SIZE));
  __cluster_barrier_arrive_relaxed();
  Vector<T, V>* kept = kept_memory<T, V, WITH_MAP>(job);
  Moments sum[K];
  sum_moments<T, V, K, BX, BY, WITH_MAP>(job, blockIdx.x, blockIdx.y, kept, sum);
  const Moments all = join_cluster(join_block<K, BX, BY>(sum, memory));
  Normal own;
  if (threadIdx.x == 0) {
    own = normal_of(job, blockIdx.x, all);
    if (blockIdx.y == 0) finish_channel<T>(job, blockIdx.x, all);
  }
  map_forward<T, V, K, BX, BY, KIND, false>(job, blockIdx.x, blockIdx.y, kept, &own);
}

template <class T, int V, int K, int BX, int BY, int KIND>
__global__ void __cluster_dims__(1, 8, 1) __launch_bounds__(BX* BY, (Resident<BX * BY, K, WITH_MAP>::blocks))
cluster_sums(Job job) {
  BN_SHARED(double, memory, (Tile<K, BX, BY>::SIZE));
  __cluster_barrier_arrive_relaxed();
  Vector<T, V>* kept = kept_memory<T, V, WITH_MAP>(job);
  Sums sum[K];
  sum_products<T, V, K, BX, BY, WITH_MAP, KIND>(job, blockIdx.x, blockIdx.y, kept, sum);
  const Sums all = join_cluster(join_block<K, BX, BY>(sum, memory));
  Coefficients own;
  if (threadIdx.x == 0) {
    own = coefficients_of(job, blockIdx.x, about_mean<T>(job, blockIdx.x, all), count_of(job, blockIdx.x));
    if (blockIdx.y == 0) finish_channel<T>(job, blockIdx.x, all);
  }
  map_backward<T, V, K, BX, BY, SUMS_ONLY, KIND>(job, blockIdx.x, blockIdx.y, kept, &own);
}
