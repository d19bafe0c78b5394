// Batch normalization of channels whose values fit into the shared memory of a cluster of blocks: they are read once, and
// kept there from the sums to the map (runs.cu).
//
//     cluster_moments    a forward in training
//     cluster_sums       its backward
//
// <T, V, K, BX, BY, KIND> as elsewhere, of channel runs: a block has one column at a time, and K and BX are 1. The blocks
// of a channel are the y of the grid. Clusters are known to devices of compute capability 9.0 and newer.

constexpr int CLUSTER = 8;  // blocks: no device with clusters has fewer

// What the blocks of a cluster tell each other, at every second channel in the same place: nobody writes to what is still
// read.
struct Told {
  double* memory;  // 2 * SIZE
  int channels;    // so far
  static constexpr int MOST = 5, SIZE = MOST * CLUSTER;

  BN_MEMBER double* place() const { return memory + channels % 2 * SIZE; }
};

// P numbers of each block, given by its first thread: to lane r of the first warp of all blocks those of block r, and 0
// beyond; and `more` of the first block, to all threads. At first the caller has arrived at a barrier, behind which all
// blocks are known to be there.
template <int P>
BN_DEV void tell_all(double (&v)[P], double& more, Told& told) {
  static_assert(P < Told::MOST, "more numbers than there is room for");
  double* own = told.place();
  const int tid = threadIdx.x;
  if (told.channels == 0) __cluster_barrier_wait();
  if (tid < 32) {
#pragma unroll
    for (int p = 0; p < P; ++p) v[p] = __shfl_sync(~0u, v[p], 0);
    more = __shfl_sync(~0u, more, 0);
    if (tid < CLUSTER) {
      double* there = static_cast<double*>(__cluster_map_shared_rank(own, tid));
#pragma unroll
      for (int p = 0; p < P; ++p) there[p * CLUSTER + blockIdx.y] = v[p];
      if (blockIdx.y == 0) there[P * CLUSTER] = more;
    }
  }
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#pragma unroll
  for (int p = 0; p < P; ++p) v[p] = tid < CLUSTER ? own[p * CLUSTER + tid] : 0.0;
  more = own[P * CLUSTER];
  ++told.channels;
}

// The sum over the lanes of a cluster, in all lanes: added as join_items adds so many items.
BN_DEV double add_lanes(double v) {
#pragma unroll
  for (int d = CLUSTER / 2; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
  return __shfl_sync(~0u, v, 0);
}

// The sums of a channel out of those of its blocks, in the first warp of all of them.
BN_DEV Sums join_cluster(const Sums& own, double& more, Told& told) {
  double v[2] = {own.total, own.dot};
  tell_all(v, more, told);
  if (threadIdx.x >= 32) return {0.0, 0.0};
  const double total = add_lanes(v[0]);
  return {total, add_lanes(v[1])};
}

BN_DEV Moments join_cluster(const Moments& own, double& more, Told& told) {
  double v[4] = {own.n, own.center, own.m2, own.away};
  tell_all(v, more, told);
  if (threadIdx.x >= 32) return {0.0, 0.0, 0.0, 0.0};
  const unsigned some = __ballot_sync(~0u, v[0] != 0.0);
  const double center = __shfl_sync(~0u, v[1], some ? __ffs(some) - 1 : CLUSTER - 1);
  const double off = (v[1] - center) + v[3], n = add_lanes(v[0]);
  const double total = add_lanes(v[0] == 0.0 ? 0.0 : v[0] * off);
  const double away = n == 0.0 ? 0.0 : total / n, gap = off - away;
  return {n, center, add_lanes(v[0] == 0.0 ? 0.0 : v[2] + gap * v[0] * gap), away};
}

// The clusters that surely run from the start, and have their first channels without asking. There may be no room for the
// last ones before others end: where processors come in less than eights, 15 of 16 run at a time.
BN_DEV unsigned sure_clusters() { return gridDim.x - gridDim.x / 8u; }

// Which channel a cluster has next, in its first thread, which asks while the others sum: those who are quick get more. A
// channel is a ticket. Who gets none ends, and the last one of these makes it 0 again.
BN_DEV double next_channel(const Job& job) {
  if (threadIdx.x != 0 || blockIdx.y != 0) return 0.0;
  const unsigned sure = sure_clusters(), asked = (unsigned)job.columns + gridDim.x - sure;
  return (double)sure + atomicInc(job.tickets, asked - 1u);
}

struct ClusterBlocks {
  Told told;
  double more;

  BN_MEMBER int rank() const { return blockIdx.y; }
  BN_MEMBER i64 first(const Job& job) {
    if (blockIdx.x < sure_clusters()) return blockIdx.x;
    double none[1] = {0.0};
    more = next_channel(job);
    tell_all(none, more, told);
    return (i64)more;
  }
  BN_MEMBER void ask(const Job& job, i64) { more = next_channel(job); }
  template <class S>
  BN_MEMBER S join(const S& own) {
    return join_cluster(own, more, told);
  }
  BN_MEMBER i64 next() const { return (i64)more; }
};

template <class T, int V, int K, int BX, int BY, int KIND>
__global__ void __cluster_dims__(1, 8, 1) __launch_bounds__(BX* BY, (Resident<BX * BY, K, WITH_MAP>::blocks))
cluster_moments(Job job) {
  BN_SHARED(double, told, 2 * Told::SIZE);
  __cluster_barrier_arrive_relaxed();
  ClusterBlocks blocks = {{told, 0}, 0.0};
  forward_runs<T, V, BY, KIND>(job, blocks);
}

template <class T, int V, int K, int BX, int BY, int KIND>
__global__ void __cluster_dims__(1, 8, 1) __launch_bounds__(BX* BY, (Resident<BX * BY, K, WITH_MAP>::blocks))
cluster_sums(Job job) {
  BN_SHARED(double, told, 2 * Told::SIZE);
  __cluster_barrier_arrive_relaxed();
  ClusterBlocks blocks = {{told, 0}, 0.0};
  backward_runs<T, V, BY, KIND>(job, blocks);
}
