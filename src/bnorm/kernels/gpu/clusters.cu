// Batch normalization of channels whose values fit into the shared memory of a cluster of blocks: they are read once,
// and kept there from the sums to the map (runs.cu).
//
//     cluster_moments    a forward in training
//     cluster_sums       its backward
//
// <T, V, K, BX, BY, KIND> as elsewhere, of channel runs: a block has one column at a time, and K and BX are 1. The
// blocks of a channel are the y of the grid. Clusters are known to devices of compute capability 9.0 and newer.

constexpr int CLUSTER = 8;  // blocks: no device with clusters has fewer

// What the blocks of a cluster tell each other, at every second channel in the same place: nobody writes to what is
// still read, as a block goes on only with what all the others have told it. Each stores into the memory of all, and a
// barrier there counts the bytes. So nobody waits until what a block has written to its array is in memory, as behind a
// fence.

struct Told {
  double* memory;                // 2 * SIZE
  unsigned long long* barriers;  // 2
  int channels;                  // so far
  static constexpr int NEXT = 2 * CLUSTER, SIZE = NEXT + 1;  // two numbers of each block; the next channel

  BN_MEMBER double* place(int channel) const { return memory + channel % 2 * SIZE; }
};

// By all threads, before anything else. The cluster's barrier that each of them arrives at is to be waited at before
// the first store.
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

// How many bytes all others and this block itself store, by one thread.
BN_DEV void expect_bytes(unsigned long long* barrier, unsigned bytes) {
#ifdef BN_ON_CPU
  __mbarrier_expect(barrier, bytes);
#elif __CUDA_ARCH__ >= 900
  const unsigned at = (unsigned)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
}

// Store v in block `rank`, where `at` is in this one, and count it there.
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

// Wait until all is there that is expected; parity: 0 at first, and 1 and 0 in turn.
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

// P numbers of each block, given by its first thread: to lane r of the first warp of all blocks those of block r, and 0
// beyond. `next` of the first block is then in the place of the channel.
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

// The sum over the lanes of a cluster, in all lanes: added as join_items adds so many items.
BN_DEV double add_lanes(double v) {
#pragma unroll
  for (int d = CLUSTER / 2; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
  return __shfl_sync(~0u, v, 0);
}

// The sums of a channel out of those of its blocks, by the first warp of all of them.
BN_DEV Sums join_cluster(const Sums& own, double next, const Told& told) {
  double v[2] = {own.total, own.dot};
  tell_all(v, next, told);
  const double total = add_lanes(v[0]);
  return {total, add_lanes(v[1])};
}

// The clusters that surely run from the start, and have their first channels without asking. There may be no room for
// the last ones before others end: where processors come in less than eights, 15 of 16 run at a time.
BN_DEV unsigned sure_clusters() { return gridDim.x - gridDim.x / 8u; }

// Which channel a cluster has next, in its first thread, which asks while the others sum: those who are quick get more.
// A channel is a ticket. Who gets none ends, and the last one of these makes it 0 again.
BN_DEV double next_channel(const Job& job) {
  if (threadIdx.x != 0 || blockIdx.y != 0) return 0.0;
  const unsigned sure = sure_clusters(), asked = (unsigned)job.columns + gridDim.x - sure;
  return (double)sure + atomicInc(job.tickets, asked - 1u);
}

// Clusters begin one after the other. The last ones wait for a ticket instead.
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
