// Batch normalization of small planes, such as 7 x 7: a block has G channels, whose values of one outer position lie
// side by side and are whole vectors together, even where those of a channel are not. The block reads them once, in
// vectors, and keeps them in shared memory, or where the device has too little of it reads them again.
//
//     planes_moments    moments of x; WITH_MAP a forward in training
//     planes_sums       sums of dy and dy (x - mean); WITH_MAP a backward
//
// <T, V, K, G, BY, MODE, KIND> as elsewhere, of channel runs one value at a time: V and K are 1, and BY threads add up
// the values of a channel. Memory is read and written by other threads, which have one vector of each outer position
// that they come by.

template <class T, int G>
struct Slab {
  static constexpr int THREADS = 256, V = 16 / sizeof(T);
  int span, across, down, first;  // vectors of an outer position; which one is this thread's, and the positions
  i64 outer, start, jump;

  BN_MEMBER explicit Slab(const Job& job) {
    span = G / V * (int)job.run;
    down = THREADS / span;
    across = threadIdx.x % span;
    first = threadIdx.x / span;
    outer = first < down ? quotient(job.steps, job.run) : 0;
    start = blockIdx.x * G * job.run + across * V;
    jump = job.jump;
  }
  BN_MEMBER i64 at(int n) const { return start + n * jump; }
  BN_MEMBER int place(int n) const { return n * span + across; }
  BN_MEMBER int channel(const Job& job, int v) const { return (across * V + v) / (int)job.run; }

  // use(outer position), of as many as MANY side by side.
  template <int MANY, class Some, class One>
  BN_MEMBER void each(const Some& some, const One& one) const {
    int n = first;
#pragma unroll 1
    for (; n + (MANY - 1) * down < outer; n += MANY * down) some(n);
#pragma unroll 1
    for (; n < outer; n += down) one(n);
  }
  BN_MEMBER void keep(const T* x, Vector<T, V>* kept) const {
    constexpr int MANY = 4;
    each<MANY>(
        [&](int n) {
          Vector<T, V> t[MANY];
#pragma unroll
          for (int u = 0; u < MANY; ++u) t[u] = load<T, V>(x + at(n + u * down));
#pragma unroll
          for (int u = 0; u < MANY; ++u) kept[place(n + u * down)] = t[u];
        },
        [&](int n) { kept[place(n)] = load<T, V>(x + at(n)); });
  }
};

// Where a thread finds the values of its channel: in memory, or where they are kept.
template <class T, int G, int BY, class Use>
BN_DEV void for_own(const Job& job, bool kept, const Use& use) {
  const Place<1, G, BY> place(job, blockIdx.x, 0);
  if (kept) {
    const int run = (int)job.run, stride = BY;
    use(Walk<true, int>(threadIdx.x % G * run, (int)place.first, stride, run, 1, G * run), place.steps);
  } else {
    use(Walk<true>(job, place.column, place.first, BY), place.steps);
  }
}

template <class T, int V, int K, int G, int BY, int MODE, int KIND>
__global__ void __launch_bounds__(256, KIND >= BN_SILU || sizeof(T) == 8 ? 3 : 4) planes_moments(Job job) {
  typedef typename Compute<T>::type A;
  typedef Slab<T, G> Of;
  constexpr int WIDE = Of::V;
  BN_SHARED(double, memory, (Tile<1, G, BY>::SIZE));
  BN_SHARED(A, coefficients, 3 * G);
  BN_SHARED(Moments, found, G);
  const Of of(job);
  const int tid = threadIdx.x;
  const T* x = static_cast<const T*>(job.x);
  Vector<T, WIDE>* kept = job.keep ? reinterpret_cast<Vector<T, WIDE>*>(dynamic_memory(true)) : nullptr;
  if (kept) of.keep(x, kept);
  __syncthreads();
  typedef typename Pick<MODE == EXACT, double, A>::type B;
  Moments own[1];
  const auto add = [&](auto walk, i64 steps) {
    const T* from = sizeof(walk.at) == 4 ? reinterpret_cast<const T*>(kept) : x;
    add_steps<T, 1, 1, 256, false, B>(from, walk, steps, own, (Vector<T, 1>*)nullptr);
  };
  for_own<T, G, BY>(job, kept, add);
  const Moments sum = join_block<1, G, BY>(own, memory);
  if (tid < G) {
    const i64 c = blockIdx.x * G + tid;
    found[tid] = sum;
    if (MODE == WITH_MAP) {
      const Normal normal = normal_of(job, c, sum);
      const A high = (A)normal.mean;
      coefficients[tid] = high;
      coefficients[G + tid] = (A)normal.scale;
      coefficients[2 * G + tid] = (A)bn_fold((double)high, normal.mean, normal.scale, normal.shift);
    }
  }
  // at the end, when the thread holds nothing else and y does not wait for it
  const auto finish = [&] {
    if (tid < G) finish_channel<T>(job, blockIdx.x * G + tid, found[tid]);
  };
  if (MODE != WITH_MAP) return finish();
  __syncthreads();
  A h[WIDE], scale[WIDE], shift[WIDE];
#pragma unroll
  for (int v = 0; v < WIDE; ++v) {
    const int c = of.channel(job, v);
    h[v] = coefficients[c];
    scale[v] = coefficients[G + c];
    shift[v] = coefficients[2 * G + c];
  }
  const bn_activation act = activation_of<KIND>(job.slope);
  T* y = static_cast<T*>(job.y);
  const auto map = [&](int n) {
    Vector<T, WIDE> t = kept ? kept[of.place(n)] : load<T, WIDE>(x + of.at(n));
#pragma unroll
    for (int v = 0; v < WIDE; ++v) narrow(bn_act(act, fused(value(t, v) - h[v], scale[v], shift[v])), t.v[v]);
    put<T, WIDE>(y + of.at(n), t, job.streams);
  };
  of.template each<2>(
      [&](int n) {
        map(n);
        map(n + of.down);
      },
      map);
  finish();
}

template <class T, int V, int K, int G, int BY, int MODE, int KIND>
__global__ void __launch_bounds__(256, 2) planes_sums(Job job) {
  typedef typename Compute<T>::type A;
  typedef Slab<T, G> Of;
  typedef Forward<A, 1, G> Shared;
  constexpr int WIDE = Of::V;
  BN_SHARED(double, memory, (Tile<1, G, BY>::SIZE));
  BN_SHARED(A, coefficients, 3 * G);
  BN_SHARED(Shared, shared, 1);
  const Shared& forward = shared[0];
  const Of of(job);
  const int tid = threadIdx.x;
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  fill_forward<T, KIND>(job, blockIdx.x, shared[0]);
  Vector<T, WIDE>* kept = job.keep ? reinterpret_cast<Vector<T, WIDE>*>(dynamic_memory(true)) : nullptr;
  Vector<T, WIDE>* kept_dy = kept ? kept + job.keep * (256 / WIDE) : nullptr;
  if (kept) {
    of.keep(x, kept);
    of.keep(dy, kept_dy);
  }
  __syncthreads();
  Sums own[1] = {{0.0, 0.0}};
  const auto add = [&](auto walk, i64 steps) {
    const bool here = sizeof(walk.at) == 4;
    const T* from = here ? reinterpret_cast<const T*>(kept) : x;
    const T* from_dy = here ? reinterpret_cast<const T*>(kept_dy) : dy;
    const Reader<T, 1, 256> none = {nullptr};
    add_products<T, 1, KIND, false, false>(job.slope, from, from_dy, forward, walk, steps, none, none, own);
  };
  for_own<T, G, BY>(job, kept, add);
  const Sums sum = join_block<1, G, BY>(own, memory);
  if (tid < G) {
    const i64 c = blockIdx.x * G + tid;
    finish_channel<T>(job, c, sum);
    if (MODE == WITH_MAP) {
      const double mean = row_of(job.stats, job, MEAN)[c], high = (double)(A)mean;
      const Coefficients found = coefficients_of(job, c, about_mean<T>(job, c, sum), count_of(job, c));
      coefficients[tid] = (A)found.a;
      coefficients[G + tid] = (A)found.b;
      coefficients[2 * G + tid] = (A)bn_fold(high, mean, found.b, found.c);
    }
  }
  if (MODE != WITH_MAP) return;
  __syncthreads();
  A h[WIDE], a[WIDE], b[WIDE], c[WIDE];
  int channel[WIDE];
#pragma unroll
  for (int v = 0; v < WIDE; ++v) {
    channel[v] = of.channel(job, v);
    h[v] = forward.high[channel[v]];
    a[v] = coefficients[channel[v]];
    b[v] = coefficients[G + channel[v]];
    c[v] = coefficients[2 * G + channel[v]];
  }
  const bn_activation act = activation_of<KIND>(job.slope);
  T* dx = static_cast<T*>(job.y);
  const auto map = [&](int n) {
    Vector<T, WIDE> t = kept ? kept[of.place(n)] : load<T, WIDE>(x + of.at(n));
    const Vector<T, WIDE> e = kept ? kept_dy[of.place(n)] : load<T, WIDE>(dy + of.at(n));
#pragma unroll
    for (int v = 0; v < WIDE; ++v) {
      const A away = value(t, v) - h[v], behind = through<KIND>(value(e, v), away, forward, channel[v], act);
      narrow(a[v] * (behind + fused(away, b[v], c[v])), t.v[v]);
    }
    put<T, WIDE>(dx + of.at(n), t, job.streams);
  };
  of.template each<1>(map, map);
}
