// Batch normalization of channel runs that are kept in shared memory from the sums to the map. A channel is kept by one
// block or, in clusters.cu, by several. These blocks go on from channel to channel: while one is mapped, the next is
// fetched into its place.
//
// The class Blocks tells which of them this block is (rank), and their first channel, if any is left (first); asks for
// the next channel while this one is summed (ask); joins the sums of the first threads of the blocks, for these threads
// (join); and tells, after another barrier of the block, which channel is next (next).

struct OneBlock {
  i64 following;
  BN_MEMBER int rank() const { return 0; }
  BN_MEMBER i64 first(const Job&) const { return blockIdx.x; }
  BN_MEMBER void ask(const Job&, i64 c) { following = c + gridDim.x; }
  template <class S>
  BN_MEMBER S join(const S& own) const { return own; }
  BN_MEMBER i64 next() const { return following; }
};

// Like join_block, for a block of one column: its first warp gets the sums, after a single barrier. `memory` is free
// after the next one.
template <int BY>
struct RunMemory {
  static constexpr int WARPS = BY / 32, SIZE = 2 * WARPS;
};

template <int BY>
BN_DEV Sums join_run(const Sums& mine, double* memory) {
  constexpr int WARPS = RunMemory<BY>::WARPS;
  double v[2] = {mine.total, mine.dot};
#pragma unroll
  for (int d = 16; d > 0; d /= 2)
#pragma unroll
    for (int p = 0; p < 2; ++p) v[p] += __shfl_down_sync(~0u, v[p], d);
#pragma unroll
  for (int p = 0; p < 2; ++p)
    if (threadIdx.x % 32 == 0) memory[p * WARPS + threadIdx.x / 32] = v[p];
  __syncthreads();
  if (threadIdx.x >= 32) return {0.0, 0.0};
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    v[p] = 0.0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) v[p] += memory[p * WARPS + w];
  }
  return {v[0], v[1]};
}

// What has been found of two successive channels. A channel is finished while the next one is joined, by a thread for
// which no other thread waits then.
template <class T, class S>
struct Found {
  S* memory;  // two, in turn
  i64 before;
  int turn;

  BN_MEMBER void finish(const Job& job, int rank) const {
    if (threadIdx.x == 32 && rank == 0 && before >= 0) finish_channel<T>(job, before, memory[1 - turn]);
  }
  BN_MEMBER S& next() { return memory[turn]; }
  BN_MEMBER void end(i64 c) {
    before = c;
    turn = 1 - turn;
  }
};

template <class T, int V, int BY, int KIND, class Blocks>
BN_DEV void forward_runs(const Job& job, Blocks& blocks) {
  typedef typename Compute<T>::type A;
  BN_SHARED(double, memory, RunMemory<BY>::SIZE);
  BN_SHARED(Moments, both, 2);
  BN_SHARED(A, coefficients, 3);
  BN_SHARED(int, far, 1);
  Vector<T, V>* kept = reinterpret_cast<Vector<T, V>*>(dynamic_memory(true)) + threadIdx.x;
  const Walk<false, int> walk(0, BY * V);
  const bool leads = threadIdx.x == 0;
  Found<T, Moments> found = {both, -1, 0};
  i64 c = blocks.first(job);
  Near<T> near = read_near<T>(job, c);
  fetch_steps<T, V, BATCH>(job, Place<1, 1, BY>(job, c, blocks.rank()), kept);
#pragma unroll 1
  while (c < job.columns) {
    blocks.ask(job, c);
    const i64 gamma = leads ? gamma_of(job, c) : 0, beta = leads ? beta_of(job, c) : 0;
    const i64 steps = Place<1, 1, BY>(job, c, blocks.rank()).steps;
    const A center = near.center();
    // for the first thread: the moments from sums about a center, and whether this is far from the mean
    const auto find = [&](auto about, bool& away) {
      const decltype(about) only[1] = {about};
      Sums sum[1] = {{0.0, 0.0}};
      add_about<T, V, 1>(reinterpret_cast<const T*>(kept), walk, steps, only, sum, Groups<BATCH>());
      return moments_about((double)(job.steps * V), exact(about), blocks.join(join_run<BY>(sum[0], memory)), away);
    };
    const auto use = [&](const Moments& all) {
      found.next() = all;
      keep_normal<1>(coefficients, normal_of(job, gamma, beta, all));
    };
    bool away;
    const Moments first = find(center, away);
    found.finish(job, blocks.rank());
    if (leads) {
      use(first);
      far[0] = away;
    }
    __syncthreads();
    if (rarely(far[0])) {
      const Moments second = find(found.next().center + found.next().away, away);
      if (leads) use(second);
      __syncthreads();
    }
    const i64 next = blocks.next(), ahead = as_it_is(next < job.columns ? (next - c) * job.base : 0);
    near = read_near<T>(job, next);
    map_forward<T, V, 1, 1, BY, KIND, false, true>(job, c, blocks.rank(), kept, coefficients, ahead);
    found.end(c);
    c = next;
  }
  found.finish(job, blocks.rank());
}

// What a backward needs of the statistics of a channel. All threads read it, before they need it.
struct Read {
  double mean, scale, shift;
};
template <int KIND>
BN_DEV Read read_stats(const Job& job, i64 c) {
  if (c >= job.columns) return {0.0, 0.0, 0.0};
  return {row_of(job.stats, job, MEAN)[c], row_of(job.stats, job, SCALE)[c],
          KIND == BN_IDENTITY ? 0.0 : row_of(job.stats, job, SHIFT)[c]};
}

template <class T, int V, int BY, int KIND, class Blocks>
BN_DEV void backward_runs(const Job& job, Blocks& blocks) {
  typedef typename Compute<T>::type A;
  BN_SHARED(double, memory, RunMemory<BY>::SIZE);
  BN_SHARED(Sums, both, 2);
  BN_SHARED(A, coefficients, 3);
  Vector<T, V>* kept = reinterpret_cast<Vector<T, V>*>(dynamic_memory(true)) + threadIdx.x;
  const Walk<false, int> walk(0, BY * V);
  const Reader<T, V, BY> none = {nullptr};
  const bool leads = threadIdx.x == 0;
  Found<T, Sums> found = {both, -1, 0};
  i64 c = blocks.first(job);
  Read read = read_stats<KIND>(job, c);
  fetch_steps<T, V, PAIRS>(job, Place<1, 1, BY>(job, c, blocks.rank()), kept);
#pragma unroll 1
  while (c < job.columns) {
    blocks.ask(job, c);
    const A high = as_it_is((A)read.mean);
    Forward<A, 1, 1> forward = {{high}, {(A)0}, {(A)0}};
    if (KIND != BN_IDENTITY) {
      const double scale = within<A>(read.scale);
      forward.scale[0] = (A)scale;
      forward.shift[0] = (A)bn_fold((double)high, read.mean, scale, read.shift);
    }
    const double rstd = leads ? row_of(job.stats, job, RSTD)[c] : 0.0, count = leads ? count_of(job, c) : 0.0;
    const i64 steps = Place<1, 1, BY>(job, c, blocks.rank()).steps;
    const T* x = reinterpret_cast<const T*>(kept);
    const T* dy = reinterpret_cast<const T*>(kept + job.keep * BY);
    Sums sum[1] = {{0.0, 0.0}};
    add_products<T, V, KIND, false, false>(job.slope, x, dy, forward, walk, steps, none, none, sum, Groups<PAIRS>());
    const Sums all = blocks.join(join_run<BY>(sum[0], memory));
    found.finish(job, blocks.rank());
    if (leads) {
      found.next() = all;
      const Sums of = about_mean<A>(read.mean, all);
      keep_coefficients<1, A>(coefficients, read.mean, coefficients_of(read.scale, rstd, of, count));
    }
    __syncthreads();
    const i64 next = blocks.next(), ahead = as_it_is(next < job.columns ? (next - c) * job.base : 0);
    read = read_stats<KIND>(job, next);
    map_backward<T, V, 1, 1, BY, SUMS_ONLY, KIND, true>(job, c, blocks.rank(), kept, coefficients, ahead, &forward);
    found.end(c);
    c = next;
  }
  found.finish(job, blocks.rank());
}
