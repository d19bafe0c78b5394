// A kernel whose clusters join their sums in shared memory: right for BUG = NONE, wrong in one way for each of the
// others.
#ifndef BN_ON_CPU
#define BN_SHARED(T, name, count) __shared__ T name[count]
#endif

enum Bug {
  NONE,
  NOT_STARTED,    // a block is written to that may not be there yet
  NO_BARRIER,     // sums are read before the others wrote theirs
  RELAXED,        // at a barrier that does not order
  BETWEEN_PARTS,  // they are written between the two parts of the barrier
  ARRIVE_TWICE,
  NOT_ARRIVED,
  LEAVES,      // a thread ends before the barrier
  NINTH,       // a block that the cluster does not have
  SAME_PLACE,  // two blocks write the same sum
  PAST,        // one sum too many is written
  TOO_LATE     // the memory of a block that may have ended is read
};

constexpr int BLOCKS = 4;

// out[block] = the sum over a cluster of the sums of its blocks, in their order.
template <int BUG>
__global__ void __cluster_dims__(1, 4, 1) __launch_bounds__(64) clustered(const float* x, float* out) {
  BN_SHARED(float, sums, BLOCKS);
  const int t = threadIdx.x, rank = blockIdx.y;
  if (BUG != NOT_STARTED) __cluster_barrier_arrive_relaxed();
  if (BUG == ARRIVE_TWICE) __cluster_barrier_arrive_relaxed();
  float s = x[(blockIdx.x * BLOCKS + rank) * 64 + t];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  if (BUG == LEAVES && t == 50 && rank == 2) return;
  if (BUG != NOT_STARTED) __cluster_barrier_wait();
  if (BUG == BETWEEN_PARTS) __cluster_barrier_arrive();
  if (t < BLOCKS) {
    const int slot = BUG == SAME_PLACE ? rank / 2 : rank + (BUG == PAST && rank == 3);
    float* there = static_cast<float*>(__cluster_map_shared_rank(sums, BUG == NINTH ? t + 1 : t));
    there[slot] = s;
  }
  if (BUG == RELAXED) {
    __cluster_barrier_arrive_relaxed();
  } else if (BUG != NO_BARRIER && BUG != BETWEEN_PARTS && BUG != NOT_ARRIVED) {
    __cluster_barrier_arrive();
  }
  if (BUG != NO_BARRIER) __cluster_barrier_wait();
  if (t == 0) {
    float all = 0;
    for (int r = 0; r < BLOCKS; ++r)
      all += BUG == TOO_LATE ? *static_cast<float*>(__cluster_map_shared_rank(sums + r, 3 - rank)) : sums[r];
    out[blockIdx.x * BLOCKS + rank] = all;
  }
}
