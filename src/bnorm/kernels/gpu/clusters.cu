// Batch normalization of channels whose values fit into the shared memory of a cluster of blocks: they are read once,
// and kept there from the sums to the map (runs.cu).
//
//     cluster_moments    a forward in training
//     cluster_sums       its backward
//
// <T, V, K, BX, BY, KIND>: as in channels.cu, for channel runs: a block has one column at a time, and K and BX are 1.
// The grid has a y for each block of a channel. Devices of compute capability 9.0 and newer have clusters.

constexpr int CLUSTER = 8;  // blocks: all devices with clusters allow as many

// What the blocks of a cluster tell each other. Each stores its numbers into the shared memory of all, where a barrier
// counts the bytes. So no block waits until the results that a block has written are in memory, as it would at a fence.
// Channels use two places in turn. No place is overwritten while it is still read, as a block goes on only when all the
// others have told it their numbers.

struct Told {
  double* memory;                // 2 * SIZE
  unsigned long long* barriers;  // 2
  int channels;                  // so far
  static constexpr int NEXT = 2 * CLUSTER, SIZE = NEXT + 1;  // two numbers of each block; the next channel

  BN_MEMBER double* place(int channel) const { return memory + channel % 2 * SIZE; }
};

// Called by all threads, before anything else. Each arrives at the cluster's barrier; they must wait there before the
// first store.
BN_DEV void start_told(const Told& told) {
#ifdef BN_ON_CPU
  if (threadIdx.x == 0) {
    __mbarrier_init(told.barriers, 1);
    __mbarrier_init(told.barriers + 1, 1);
    __mbarrier_init_fence();
  }
#elif __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(told.barriers);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at + 8) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
#endif
  __syncwarp();
  __cluster_barrier_arrive_relaxed();
}

// Tell a barrier how many bytes all blocks together, this one included, will store here. Called by one thread.
BN_DEV void expect_bytes(unsigned long long* barrier, unsigned bytes) {
#ifdef BN_ON_CPU
  __mbarrier_expect(barrier, bytes);
#elif __CUDA_ARCH__ >= 900
  const unsigned at = (unsigned)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
}

// Store v in block `rank`, at the place that `at` has in this block, and count its bytes there.
BN_DEV void tell(double* at, double v, unsigned long long* barrier, unsigned rank) {
#ifdef BN_ON_CPU
  __store_async(at, v, barrier, rank);
#elif __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there, counts;\n"
      "mapa.shared::cluster.u32 there, %0, %3;\n"
      "mapa.shared::cluster.u32 counts, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [there], %1, [counts];\n"
      "}" ::"r"((unsigned)__cvta_generic_to_shared(at)),
      "l"(__double_as_longlong(v)), "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(rank)
      : "memory");
#endif
}

// Wait until all expected bytes have arrived. parity: 0 at first, then 1 and 0 in turn.
BN_DEV void await_bytes(unsigned long long* barrier, unsigned parity) {
#ifdef BN_ON_CPU
  __mbarrier_wait(barrier, parity);
#elif __CUDA_ARCH__ >= 900
  const unsigned at = (unsigned)__cvta_generic_to_shared(barrier);
  unsigned there = 0;
  while (!there) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 there, [%1], %2;\n"
        "selp.u32 %0, 1, 0, there;\n"
        "}" : "=r"(there) : "r"(at), "r"(parity) : "memory");
  }
#endif
}

// Exchange P numbers of each block, which its first thread gives: in every block, lane r of the first warp gets those
// of block r, and lanes without a block get 0. The place of the channel gets `next` of the first block.
template <int P>
BN_DEV void tell_all(double (&v)[P], double next, const Told& told) {
  const int tid = threadIdx.x, turn = told.channels % 2;
  double* own = told.place(turn);
  unsigned long long* barrier = told.barriers + turn;
  if (tid == 0) expect_bytes(barrier, (P * CLUSTER + 1) * sizeof(double));
#pragma unroll
  for (int p = 0; p < P; ++p) v[p] = __shfl_sync(~0u, v[p], 0);
  next = __shfl_sync(~0u, next, 0);
  if (tid < CLUSTER) {
#pragma unroll
    for (int p = 0; p < P; ++p) tell(own + p * CLUSTER + blockIdx.y, v[p], barrier, tid);
    if (blockIdx.y == 0) tell(own + Told::NEXT, next, barrier, tid);
  }
  await_bytes(barrier, told.channels / 2 % 2);
#pragma unroll
  for (int p = 0; p < P; ++p) v[p] = tid < CLUSTER ? own[p * CLUSTER + tid] : 0.0;
}

// The sum over the lanes that tell_all gave numbers to, for all lanes. It is added as join_items adds so many items.
BN_DEV double add_lanes(double v) {
#pragma unroll
  for (int d = CLUSTER / 2; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
  return __shfl_sync(~0u, v, 0);
}

// The sums of a channel from those of its blocks. Called by the first warp of each of them.
BN_DEV Sums join_cluster(const Sums& own, double next, const Told& told) {
  double v[2] = {own.total, own.dot};
  tell_all(v, next, told);
  const double total = add_lanes(v[0]);
  return {total, add_lanes(v[1])};
}

// How many clusters surely run from the start: they need no ticket for their first channel. The last clusters may have
// to wait until others end: processors come in groups, and if some have fewer than sixteen, 15 of 16 clusters may fit.
BN_DEV unsigned sure_clusters() { return gridDim.x - gridDim.x / 8u; }

// The next channel of a cluster, for its first thread, which asks for it while the others sum. So faster clusters get
// more channels. The ticket counts the channels that are taken. A cluster that gets none ends, and the last cluster to
// get none sets the ticket to 0 again.
BN_DEV double next_channel(const Job& job) {
  if (threadIdx.x != 0 || blockIdx.y != 0) return 0.0;
  const unsigned sure = sure_clusters(), asked = (unsigned)job.columns + gridDim.x - sure;
  return (double)sure + atomicInc(job.tickets, asked - 1u);
}

// Clusters begin one after the other. The last ones begin with a ticket instead.
template <class T, int V, int ARRAYS>
BN_DEV void begin_in_turn(const Job& job) {
  const bool turns = job.columns >= 3 * (i64)gridDim.x && blockIdx.x < sure_clusters();
  if (turns) wait_for_turn(blockIdx.x * (job.steps * (i64)sizeof(Vector<T, V>) * ARRAYS));
}

struct ClusterBlocks {
  Told told;
  double asked;

  BN_MEMBER int rank() const { return blockIdx.y; }
  BN_MEMBER i64 first(const Job& job) {
    if (blockIdx.x < sure_clusters()) return blockIdx.x;
    __cluster_barrier_wait();
    double none[1] = {0.0};
    if (threadIdx.x < 32) tell_all(none, next_channel(job), told);
    __syncthreads();
    ++told.channels;
    return next();
  }
  BN_MEMBER void ask(const Job& job, i64) { asked = next_channel(job); }
  template <class S>
  BN_MEMBER S join(const S& own) {
    if (told.channels == 0) __cluster_barrier_wait();
    S all = own;
    if (threadIdx.x < 32) all = join_cluster(own, asked, told);
    ++told.channels;
    return all;
  }
  BN_MEMBER i64 next() const { return (i64)told.place(told.channels - 1)[Told::NEXT]; }
  // No block ends before the others, which may still store into its memory.
  BN_MEMBER void end() const {
    __cluster_barrier_arrive_relaxed();
    __cluster_barrier_wait();
  }
};

template <class T, int V, int K, int BX, int BY, int KIND>
__global__ void __cluster_dims__(1, 8, 1) __launch_bounds__(BX* BY, (Resident<BX * BY, K, WITH_MAP>::blocks))
cluster_moments(Job job) {
  BN_SHARED(double, told, 2 * Told::SIZE);
  BN_SHARED(unsigned long long, barriers, 2);
  ClusterBlocks blocks = {{told, barriers, 0}, 0.0};
  start_told(blocks.told);
  begin_in_turn<T, V, 1>(job);
  forward_runs<T, V, BY, KIND>(job, blocks);
  blocks.end();
}

template <class T, int V, int K, int BX, int BY, int KIND>
__global__ void __cluster_dims__(1, 8, 1) __launch_bounds__(BX* BY, (Resident<BX * BY, K, WITH_MAP>::blocks))
cluster_sums(Job job) {
  BN_SHARED(double, told, 2 * Told::SIZE);
  BN_SHARED(unsigned long long, barriers, 2);
  ClusterBlocks blocks = {{told, barriers, 0}, 0.0};
  start_told(blocks.told);
  begin_in_turn<T, V, 2>(job);
  backward_runs<T, V, BY, KIND>(job, blocks);
  blocks.end();
}
