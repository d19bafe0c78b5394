// Batch normalization of small planes, such as 7 x 7. A block has G channels, whose values at one outer position lie
// side by side and together are whole vectors, even if those of a channel are not. The block reads them once, in
// vectors, and keeps them in shared memory; if the device has too little of it, the block reads them twice.
//
//     planes_moments    moments of x; WITH_MAP a forward in training
//     planes_sums       sums of dy and dy (x - mean); WITH_MAP a backward
//
// <T, V, K, G, BY, MODE, KIND>: as in channels.cu, for channel runs of single values: V and K are 1, and BY threads
// join the sums of a channel. Memory is read and written in vectors, of which a thread has one at each of its outer
// positions. What is kept, the slab, is added up by columns: a thread has the same columns at each of its positions,
// four bytes (or one double), so that its channels stay the same and their addresses are equally far apart.

template <class T, int G>
struct Slab {
  static constexpr int THREADS = 256, V = G * sizeof(T) < 16 ? G : 16 / sizeof(T);
  // vectors of an outer position; which one is this thread's; its positions: how far apart, the first, their end
  int span, across, down, first, outer;
  i64 start, jump;

  BN_MEMBER Slab(const Job& job, int tid) {
    span = G / V * (int)job.run;
    down = quotient_of(THREADS, span);
    first = quotient_of(tid, span);
    across = tid - first * span;
    outer = first < down ? (int)quotient(job.steps, job.run) : 0;
    start = blockIdx.x * G * job.run + across * V;
    jump = job.jump;
  }
  BN_MEMBER i64 at(int n) const { return start + n * jump; }
  BN_MEMBER int place(int n) const { return n * span + across; }
  BN_MEMBER int channel(const Job& job, int v) const { return (across * V + v) / (int)job.run; }

  // Call use(outer position) for all positions of this thread, MANY of them at a time.
  template <int MANY, class Use>
  BN_MEMBER void each(const Use& use) const {
    int n = first;
#pragma unroll 1
    for (; n + (MANY - 1) * down < outer; n += MANY * down) {
#pragma unroll
      for (int u = 0; u < MANY; ++u) use(n + u * down);
    }
#pragma unroll 1
    for (; n < outer; n += down) use(n);
  }
  // Fetch the vectors of all positions. They are there after a wait and a barrier.
  BN_MEMBER void keep(const T* x, Vector<T, V>* kept) const {
    each<4>([&](int n) { fetch<T, V>(kept + place(n), x + at(n)); });
  }
};

// K columns of a thread, side by side, at the outer positions first, first + apart, ...
template <class T, int G>
struct Columns {
  static constexpr int K = sizeof(T) == 2 ? 2 : 1, THREADS = 256, SIZE = 2 * THREADS;
  int column, first, apart, run;
  i64 steps;

  BN_MEMBER int channel(int k) const { return (column + k) / run; }
  // Call use(a Number that tells whether the columns are kept, a walk over them).
  template <class Use>
  BN_MEMBER void walk(const Job& job, bool kept, const Use& use) const {
    const int row = G * run;
    if (kept) use(Number<true>(), Walk<false, int>(column + first * row, apart * row));
    else use(Number<false>(), Walk<false>((i64)blockIdx.x * row + column + first * job.jump, apart * job.jump));
  }
};

// The sums of channels, for the first G threads. Each thread that has columns calls add(columns, their sums). `memory`
// has Columns::SIZE numbers, and is free after the next barrier.
template <class T, int G, int BY, class Add>
BN_DEV Sums sum_columns(const Job& job, double* memory, const Add& add) {
  typedef Columns<T, G> Own;
  constexpr int K = Own::K, THREADS = Own::THREADS;
  static_assert(Own::SIZE >= Tile<1, G, BY>::SIZE, "too little memory for a join");
  const int tid = threadIdx.x, run = (int)job.run, all = G * run, outer = (int)quotient(job.steps, job.run);
  Sums own[1] = {{0.0, 0.0}};
#pragma unroll 1
  for (int begin = 0; begin < all; begin += K * THREADS) {
    const int many = (int)least(all - begin, K * THREADS) / K, apart = THREADS / many, first = tid / many;
    const int steps = first < apart ? (outer - first + apart - 1) / apart : 0;
    Sums sum[K];
#pragma unroll
    for (int k = 0; k < K; ++k) sum[k] = {0.0, 0.0};
    if (steps > 0) add(Own{begin + (tid - first * many) * K, first, apart, run, steps}, sum);
    const int low = tid % G * run - begin, high = low + run;  // the channel's columns
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (begin || k) __syncthreads();
      memory[tid] = sum[k].total;
      memory[THREADS + tid] = sum[k].dot;
      __syncthreads();
      const int from = low > k ? (low - k + K - 1) / K : 0, those = (int)least((high - k + K - 1) / K, many) - from;
#pragma unroll 1
      for (int i = tid / G; i < those * apart; i += BY) {
        const int turn = i / those, at = turn * many + from + i - turn * those;
        own[0].total += memory[at];
        own[0].dot += memory[THREADS + at];
      }
    }
  }
  __syncthreads();
  return join_block<1, G, BY>(own, memory);
}

template <class T, int V, int K, int G, int BY, int MODE, int KIND>
__global__ void __launch_bounds__(256, KIND >= BN_SILU || sizeof(T) == 8 ? 3 : 4) planes_moments(Job job) {
  typedef typename Compute<T>::type A;
  typedef Slab<T, G> Of;
  typedef Columns<T, G> Own;
  constexpr int WIDE = Of::V, MANY = Own::K;
  BN_SHARED(double, memory, Own::SIZE);
  BN_SHARED(double, centers, G);
  BN_SHARED(A, coefficients, 3 * G);
  BN_SHARED(Moments, found, G);
  BN_SHARED(unsigned, far, 1);
  const int tid = threadIdx.x;
  const i64 c = (i64)blockIdx.x * G + tid;
  const T* x = static_cast<const T*>(job.x);
  Vector<T, WIDE>* kept = job.keep ? reinterpret_cast<Vector<T, WIDE>*>(dynamic_memory(true)) : nullptr;
  if (kept) Of(job, tid).keep(x, kept);
  end_group();
  // meanwhile, read all else that is needed from memory
  const bool maps = MODE == WITH_MAP && tid < G;
  const i64 gamma = maps ? gamma_of(job, c) : 0, beta = maps ? beta_of(job, c) : 0;
  if (tid < G) centers[tid] = exact(read_near<T>(job, c).center());
  if (tid == 0) far[0] = 0u;
  await_all_but<0>();
  __syncthreads();
  const auto sum = [&](auto zero) {
    return sum_columns<T, G, BY>(job, memory, [&](const Own& own, Sums (&sums)[MANY]) {
      decltype(zero) center[MANY];
#pragma unroll
      for (int k = 0; k < MANY; ++k) center[k] = as<decltype(zero)>(centers[own.channel(k)]);
      own.walk(job, kept, [&](auto here, auto walk) {
        const T* from = decltype(here)::value ? reinterpret_cast<const T*>(kept) : x;
        add_about<T, MANY, MANY>(from, walk, own.steps, center, sums, AllThere());
      });
    });
  };
  // use(sums about `centers`, whether again): find the moments, or first a better center if the mean is far from it
  constexpr double OPEN = -1.0;
  const auto use = [&](const Sums& all, bool again) {
    if (tid < G && (!again || found[tid].n == OPEN)) {
      bool away;
      found[tid] = moments_about((double)job.steps, centers[tid], all, away);
      if (!again && away) {
        found[tid].n = OPEN;
        centers[tid] += found[tid].away;
        atomicOr(far, 1u);
      } else if (MODE == WITH_MAP) {
        keep_normal<G>(coefficients + tid, normal_of(job, gamma, beta, found[tid]));
      }
    }
    __syncthreads();
  };
  typedef typename Pick<MODE == EXACT, double, A>::type B;
  use(sum((B)0), false);
  if (rarely(far[0])) use(sum(0.0), true);
  // last, when the thread holds nothing else, and y need not wait for it
  const auto finish = [&] {
    if (tid < G) finish_channel<T>(job, c, found[tid]);
  };
  if (MODE != WITH_MAP) return finish();
  const Of of(job, anew(tid));  // computed again, as the sums need the registers
  A h[WIDE], scale[WIDE], shift[WIDE];
#pragma unroll
  for (int v = 0; v < WIDE; ++v) {
    const int channel = of.channel(job, v);
    h[v] = coefficients[channel];
    scale[v] = coefficients[G + channel];
    shift[v] = coefficients[2 * G + channel];
  }
  const bn_activation act = activation_of<KIND>(job.slope);
  T* y = static_cast<T*>(job.y);
  of.template each<2>([&](int n) {
    Vector<T, WIDE> t = kept ? kept[of.place(n)] : load<T, WIDE>(x + of.at(n));
#pragma unroll
    for (int v = 0; v < WIDE; ++v) narrow(bn_act(act, fused(value(t, v) - h[v], scale[v], shift[v])), t.v[v]);
    put<T, WIDE>(y + of.at(n), t, job.streams);
  });
  finish();
}

template <class T, int V, int K, int G, int BY, int MODE, int KIND>
__global__ void __launch_bounds__(256, 2) planes_sums(Job job) {
  typedef typename Compute<T>::type A;
  typedef Slab<T, G> Of;
  typedef Columns<T, G> Own;
  typedef Forward<A, 1, G> Shared;
  constexpr int WIDE = Of::V, MANY = Own::K;
  BN_SHARED(double, memory, Own::SIZE);
  BN_SHARED(A, coefficients, 3 * G);
  BN_SHARED(Shared, shared, 1);
  BN_SHARED(Sums, found, G);
  const Shared& forward = shared[0];
  const int tid = threadIdx.x;
  const i64 c = (i64)blockIdx.x * G + tid;
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  Vector<T, WIDE>* kept = job.keep ? reinterpret_cast<Vector<T, WIDE>*>(dynamic_memory(true)) : nullptr;
  Vector<T, WIDE>* kept_dy = kept ? kept + job.keep * (256 / WIDE) : nullptr;
  if (kept) {
    const Of of(job, tid);
    of.keep(x, kept);
    of.keep(dy, kept_dy);
  }
  end_group();
  // meanwhile, read all else that is needed from memory
  fill_forward<T, KIND>(job, blockIdx.x, shared[0]);
  const bool maps = MODE == WITH_MAP && tid < G;
  const double mean = maps ? row_of(job.stats, job, MEAN)[c] : 0.0, rstd = maps ? row_of(job.stats, job, RSTD)[c] : 0.0;
  const double scale = maps ? row_of(job.stats, job, SCALE)[c] : 0.0, count = maps ? count_of(job, c) : 0.0;
  await_all_but<0>();
  __syncthreads();
  const Sums sum = sum_columns<T, G, BY>(job, memory, [&](const Own& own, Sums (&sums)[MANY]) {
    Forward<A, MANY, 1> of_own;
#pragma unroll
    for (int k = 0; k < MANY; ++k) {
      const int channel = own.channel(k);
      of_own.high[k] = forward.high[channel];
      of_own.scale[k] = KIND == BN_IDENTITY ? (A)0 : forward.scale[channel];
      of_own.shift[k] = KIND == BN_IDENTITY ? (A)0 : forward.shift[channel];
    }
    own.walk(job, kept, [&](auto here, auto walk) {
      const T* from = decltype(here)::value ? reinterpret_cast<const T*>(kept) : x;
      const T* from_dy = decltype(here)::value ? reinterpret_cast<const T*>(kept_dy) : dy;
      const Reader<T, MANY, 256> none = {nullptr};
      add_products<T, MANY, KIND, false, false>(job.slope, from, from_dy, of_own, walk, own.steps, none, none, sums);
    });
  });
  const auto finish = [&](const Sums& of_channel) {
    if (tid < G) finish_channel<T>(job, c, of_channel);
  };
  if (MODE != WITH_MAP) return finish(sum);
  if (tid < G) {
    found[tid] = sum;
    keep_coefficients<G, A>(coefficients + tid, mean, coefficients_of(scale, rstd, about_mean<A>(mean, sum), count));
  }
  __syncthreads();
  const Of of(job, anew(tid));
  A h[WIDE], a[WIDE], b[WIDE], c_[WIDE];
  int channel[WIDE];
#pragma unroll
  for (int v = 0; v < WIDE; ++v) {
    channel[v] = of.channel(job, v);
    h[v] = forward.high[channel[v]];
    a[v] = coefficients[channel[v]];
    b[v] = coefficients[G + channel[v]];
    c_[v] = coefficients[2 * G + channel[v]];
  }
  const bn_activation act = activation_of<KIND>(job.slope);
  T* dx = static_cast<T*>(job.y);
  of.template each<1>([&](int n) {
    Vector<T, WIDE> t = kept ? kept[of.place(n)] : load<T, WIDE>(x + of.at(n));
    const Vector<T, WIDE> e = kept ? kept_dy[of.place(n)] : load<T, WIDE>(dy + of.at(n));
#pragma unroll
    for (int v = 0; v < WIDE; ++v) {
      const A away = value(t, v) - h[v], behind = through<KIND>(value(e, v), away, forward, channel[v], act);
      narrow(a[v] * (behind + fused(away, b[v], c_[v])), t.v[v]);
    }
    put<T, WIDE>(dx + of.at(n), t, job.streams);
  });
  finish(found[tid % G]);
}
