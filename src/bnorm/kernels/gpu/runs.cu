// Batch normalization of channel runs that are kept in shared memory from the sums to the map: of each channel by one
// block or, in clusters.cu, by several, BLOCKS. They go on from channel to channel. What is mapped leaves its place to
// the next channel, which is fetched meanwhile.
//
// BLOCKS knows which one this is of them (rank) and which channel is their first, if any is left (first), asks for the
// next one while this one is summed (ask), joins what the first threads of blocks have found, in these (join), and says
// behind another barrier of the block which channel is next.

struct OneBlock {
  i64 following;
  BN_MEMBER int rank() const { return 0; }
  BN_MEMBER i64 first(const Job&) const { return blockIdx.x; }
  BN_MEMBER void ask(const Job&, i64 c) { following = c + gridDim.x; }
  template <class S>
  BN_MEMBER S join(const S& own) const { return own; }
  BN_MEMBER i64 next() const { return following; }
};

// What join_block finds of a block that has one column, in its first warp, and in the same bits. There are fewer
// barriers, as all threads add up what warps have found. `memory` is free behind the next barrier but one.
template <int BY>
struct RunMemory {
  static constexpr int WARPS = BY / 32, SIZE = 5 * WARPS;
};

template <int P>
BN_DEV void add_lanes_of(double (&v)[P]) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2)
#pragma unroll
    for (int p = 0; p < P; ++p) v[p] += __shfl_down_sync(~0u, v[p], d);
}

// Sums over the warps of what their first lanes have: of the block in all threads or, without ALL, in its first warp.
template <int BY, int P, bool ALL>
BN_DEV void add_warps(double (&v)[P], double* memory) {
  constexpr int WARPS = RunMemory<BY>::WARPS;
  add_lanes_of<P>(v);
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (threadIdx.x % 32 == 0) memory[p * WARPS + threadIdx.x / 32] = v[p];
  __syncthreads();
  if (!ALL && threadIdx.x >= 32) return;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    v[p] = 0.0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) v[p] += memory[p * WARPS + w];
  }
}

template <int BY>
BN_DEV Sums join_run(const Sums& mine, double* memory) {
  double v[2] = {mine.total, mine.dot};
  add_warps<BY, 2, false>(v, memory);
  return {v[0], v[1]};
}

template <int BY>
BN_DEV Moments join_run(const Moments& mine, double* memory) {
  constexpr int WARPS = RunMemory<BY>::WARPS;
  const int warp = threadIdx.x / 32;
  const unsigned some = __ballot_sync(~0u, mine.n != 0.0);
  const double of_warp = __shfl_sync(~0u, mine.center, some ? __ffs(some) - 1 : 31);
  if (threadIdx.x % 32 == 0) {
    memory[warp] = some ? 1.0 : 0.0;
    memory[WARPS + warp] = of_warp;
  }
  __syncthreads();
  int at = 0;
  while (memory[at] == 0.0 && at + 1 < WARPS) ++at;
  const double center = memory[WARPS + at], off = mine.away + (mine.center - center);
  double v[2] = {mine.n, mine.n == 0.0 ? 0.0 : mine.n * off};
  add_warps<BY, 2, true>(v, memory + 2 * WARPS);
  const double away = v[0] == 0.0 ? 0.0 : v[1] / v[0], gap = off - away;
  double m2[1] = {mine.n == 0.0 ? 0.0 : mine.m2 + gap * mine.n * gap};
  add_warps<BY, 1, false>(m2, memory + 4 * WARPS);
  return {v[0], center, m2[0], away};
}

// Of two channels one after the other, what has been found. That of a channel is finished while the next one is joined,
// by a thread for which nobody waits then.
template <class T, class S>
struct Found {
  S* memory;  // 2
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
  Vector<T, V>* kept = reinterpret_cast<Vector<T, V>*>(dynamic_memory(true)) + threadIdx.x;
  const Walk<false, int> walk(0, BY * V);
  const bool leads = threadIdx.x == 0;
  Found<T, Moments> found = {both, -1, 0};
  i64 c = blocks.first(job);
  fetch_steps<T, V, BATCH>(job, Place<1, 1, BY>(job, c, blocks.rank()), kept);
#pragma unroll 1
  while (c < job.columns) {
    blocks.ask(job, c);
    const double gamma = leads ? gamma_of(job, c) : 1.0, beta = leads ? beta_of(job, c) : 0.0;
    Moments sum[1];
    const i64 steps = Place<1, 1, BY>(job, c, blocks.rank()).steps;
    add_steps<T, V, 1, BY, false, A>(
        reinterpret_cast<const T*>(kept), walk, steps, sum, (Vector<T, V>*)nullptr, Groups<BATCH>());
    const Moments all = blocks.join(join_run<BY>(sum[0], memory));
    found.finish(job, blocks.rank());
    if (leads) {
      const Normal of = normal_of(job, gamma, beta, all);
      const A high = (A)of.mean;
      found.next() = all;
      coefficients[0] = high;
      coefficients[1] = (A)of.scale;
      coefficients[2] = (A)bn_fold((double)high, of.mean, of.scale, of.shift);
    }
    __syncthreads();
    const i64 next = blocks.next(), ahead = as_it_is(next < job.columns ? (next - c) * job.base : 0);
    map_forward<T, V, 1, 1, BY, KIND, false, true>(job, c, blocks.rank(), kept, coefficients, ahead);
    found.end(c);
    c = next;
  }
  found.finish(job, blocks.rank());
}

// What a backward needs of the statistics of a channel: all of its threads read them, ahead of where they use them.
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
    const double away = read.mean - (double)high;
    Forward<A, 1, 1> forward = {{high}, {(A)0}, {(A)0}};
    if (KIND != BN_IDENTITY) {
      forward.scale[0] = (A)read.scale;
      forward.shift[0] = (A)bn_fold((double)high, read.mean, read.scale, read.shift);
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
      const double b = bn_grad_b(rstd, all.dot - away * all.total, count);
      found.next() = all;
      coefficients[0] = (A)read.scale;
      coefficients[1] = (A)b;
      coefficients[2] = (A)bn_fold((double)high, read.mean, b, bn_grad_c(all.total, count));
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
