// Behind the text of clusters.cu: a kernel whose blocks tell each other numbers, round by round. It is right for BUG =
// ALL_RIGHT, and wrong in one way for each of the others.

enum Bug {
  ALL_RIGHT,
  NOT_WAITED,     // for what the others tell
  OTHER_PHASE,    // for the phase before
  TOO_FEW_BYTES,  // are expected
  TOO_MANY_BYTES,
  EXPECTED_TWICE,
  NOT_MADE,      // no barrier to count at
  NOT_MET,       // nobody has waited until all blocks are there
  ONE_PLACE,     // for all rounds: what is still read is written to
  WARP_APART,    // the same, as some lanes go on
  OF_MEMORY,     // what is told orders no device memory
  ENDS_EARLY     // without the last round
};

constexpr int ROUNDS = 5;

// out[block] = the sum of what its cluster has told it in all rounds.
template <int BUG>
__global__ void __cluster_dims__(1, 8, 1) __launch_bounds__(64) telling(const double* x, double* out, double* free) {
  BN_SHARED(double, memory, 2 * CLUSTER);
  BN_SHARED(unsigned long long, barriers, 2);
  const int t = threadIdx.x, rank = blockIdx.y;
  if (BUG == NOT_MADE) {
    __cluster_barrier_arrive_relaxed();
  } else {
    start_told({memory, barriers, 0});
  }
  if (BUG != NOT_MET) __cluster_barrier_wait();
  double sum = 0;
  for (int round = 0; round < ROUNDS && t < 32; ++round) {
    double* own = memory + (BUG == ONE_PLACE ? 0 : round % 2 * CLUSTER);
    unsigned long long* barrier = barriers + round % 2;
    const double v = x[(blockIdx.x * CLUSTER + rank) * ROUNDS + round];
    const int others = BUG == TOO_FEW_BYTES ? CLUSTER - 1 : BUG == TOO_MANY_BYTES ? CLUSTER + 1 : CLUSTER;
    if (t == 0) expect_bytes(barrier, others * sizeof(double));
    if (BUG == EXPECTED_TWICE && t == 0) expect_bytes(barrier, 0);
    if (BUG == OF_MEMORY && t == 0) free[blockIdx.x * CLUSTER + rank] = v;
    if (t < CLUSTER) tell(own + rank, v, barrier, t);
    if (BUG == ENDS_EARLY && round == ROUNDS - 1 && rank == 3) break;
    if (BUG != NOT_WAITED) await_bytes(barrier, (round / 2 + (BUG == OTHER_PHASE)) % 2);
    if (t == 0)
      for (int r = 0; r < CLUSTER; ++r) sum += own[r];
    if (BUG == OF_MEMORY && t == 0) sum += 0 * free[blockIdx.x * CLUSTER + (rank + 1) % CLUSTER];
    if (BUG != WARP_APART) __syncwarp();
  }
  if (BUG == NOT_MET) __cluster_barrier_wait();
  if (t == 0) out[blockIdx.x * CLUSTER + rank] = sum;
  if (BUG == ENDS_EARLY) return;
  __cluster_barrier_arrive_relaxed();
  __cluster_barrier_wait();
}
