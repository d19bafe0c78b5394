// Batch normalization of channel runs that are kept in shared memory from the sums to the map: of each channel by one block
// or, in clusters.cu, by several, BLOCKS. They go on from channel to channel. What is mapped leaves its place to the next
// channel, which is fetched meanwhile.
//
// BLOCKS knows which one this is of them (rank) and which channel is their first, if any is left (first), asks for the next
// one while this one is summed (ask), joins what the first threads of blocks have found (join), and says behind that which
// channel is next.

struct OneBlock {
  i64 next;
  BN_MEMBER int rank() const { return 0; }
  BN_MEMBER i64 first(const Job&) const { return blockIdx.x; }
  BN_MEMBER void ask(const Job&, i64 c) { next = c + gridDim.x; }
  template <class S>
  BN_MEMBER S join(const S& own) const { return own; }
};

// All that a thread keeps of a channel.
template <class T, int V, int BY, int STEPS>
BN_DEV void fetch_steps(const Job& job, i64 c, int rank, Vector<T, V>* kept) {
  const Place<1, 1, BY> place(job, c, rank);
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  Vector<T, V>* kept_dy = kept + job.keep * BY;
  Walk<true> walk(job, place.column, place.first, BY);
#pragma unroll 1
  for (i64 i = 0; i < place.steps; ++i, walk.next(), kept += BY, kept_dy += BY) {
    fetch<T, V>(kept, x + walk.at);
    if (STEPS == PAIRS) fetch<T, V>(kept_dy, dy + walk.at);
    if (Groups<STEPS>::ends(i, place.steps)) end_group();
  }
}

template <class T, int V, int BY, int KIND, class Blocks>
BN_DEV void forward_runs(const Job& job, Blocks& blocks) {
  typedef typename Compute<T>::type A;
  BN_SHARED(double, memory, (Tile<1, 1, BY>::SIZE));
  BN_SHARED(Moments, found, 1);
  Vector<T, V>* kept = reinterpret_cast<Vector<T, V>*>(dynamic_memory(true)) + threadIdx.x;
  const Walk<false, int> walk(0, BY * V);
  const bool leads = threadIdx.x == 0;
  i64 c = blocks.first(job);
  fetch_steps<T, V, BY, BATCH>(job, c, blocks.rank(), kept);
#pragma unroll 1
  for (; c < job.columns; c = blocks.next) {
    blocks.ask(job, c);
    Moments sum[1];
    const i64 steps = Place<1, 1, BY>(job, c, blocks.rank()).steps;
    add_steps<T, V, 1, BY, false, A>(
        reinterpret_cast<const T*>(kept), walk, steps, sum, (Vector<T, V>*)nullptr, Groups<BATCH>());
    const Moments all = blocks.join(join_block<1, 1, BY>(sum, memory));
    Normal own;
    if (leads) {
      own = normal_of(job, c, all);
      found[0] = all;
    }
    const i64 ahead = blocks.next < job.columns ? (blocks.next - c) * job.base : 0;
    map_forward<T, V, 1, 1, BY, KIND, false, true>(job, c, blocks.rank(), kept, &own, ahead);
    if (leads && blocks.rank() == 0) finish_channel<T>(job, c, found[0]);  // for which y does not wait
  }
}

template <class T, int V, int BY, int KIND, class Blocks>
BN_DEV void backward_runs(const Job& job, Blocks& blocks) {
  typedef typename Compute<T>::type A;
  typedef Forward<A, 1, 1> Of;
  BN_SHARED(double, memory, (Tile<1, 1, BY>::SIZE));
  BN_SHARED(Sums, found, 1);
  BN_SHARED(Of, shared, 1);
  Vector<T, V>* kept = reinterpret_cast<Vector<T, V>*>(dynamic_memory(true)) + threadIdx.x;
  const Walk<false, int> walk(0, BY * V);
  const Reader<T, V, BY> none = {nullptr};
  const bool leads = threadIdx.x == 0;
  i64 c = blocks.first(job);
  fetch_steps<T, V, BY, PAIRS>(job, c, blocks.rank(), kept);
#pragma unroll 1
  for (; c < job.columns; c = blocks.next) {
    blocks.ask(job, c);
    fill_forward<T, KIND>(job, c, shared[0]);
    __syncthreads();
    const i64 steps = Place<1, 1, BY>(job, c, blocks.rank()).steps;
    const T* x = reinterpret_cast<const T*>(kept);
    const T* dy = reinterpret_cast<const T*>(kept + job.keep * BY);
    Sums sum[1] = {{0.0, 0.0}};
    add_products<T, V, KIND, false, false>(job.slope, x, dy, shared[0], walk, steps, none, none, sum, Groups<PAIRS>());
    const Sums all = blocks.join(join_block<1, 1, BY>(sum, memory));
    Coefficients own;
    if (leads) {
      own = coefficients_of(job, c, about_mean<T>(job, c, all), count_of(job, c));
      found[0] = all;
    }
    const i64 ahead = blocks.next < job.columns ? (blocks.next - c) * job.base : 0;
    map_backward<T, V, 1, 1, BY, SUMS_ONLY, KIND, true>(job, c, blocks.rank(), kept, &own, ahead);
    if (leads && blocks.rank() == 0) finish_channel<T>(job, c, found[0]);  // for which dx does not wait
  }
}
