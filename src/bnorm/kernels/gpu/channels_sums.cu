// The reductions per channel: moments of x, and sum dy, sum dy (x - mean).

// Values with weights, or with NaN to leave out: one at a time, in float64. V and K are 1.
template <class T, bool RUNS>
BN_DEV void add_weighted(
    const Job& job, const T* x, Walk<RUNS> walk, i64 column, i64 r, i64 stride, i64 steps, Moments& sum) {
  const i64 plane = job.channels * job.inner, copy = quotient(column, plane), in_channel = column - copy * plane;
  const i64 offset = copy * job.inner + in_channel % job.inner;
  for (; steps > 0; --steps, r += stride, walk.next()) {
    const double w = job.weight ? job.weight[r * job.weight_step + offset] : 1.0;
    const double v = exact(widen(x[walk.at]));
    if (w == 0.0 || (job.skipna && v != v)) continue;
    if (sum.n == 0.0) {
      sum = {w, v, 0.0, 0.0};  // set, not added: that makes NaN of infinities
    } else {
      bn_merge(&sum.n, &sum.center, &sum.m2, &sum.away, w, v, 0.0, 0.0);
    }
  }
}

BN_DEV void add_one(Moments& sum, double v) {
  if (sum.n == 0.0) {
    sum = {1.0, v, 0.0, 0.0};
  } else {
    bn_add(&sum.n, &sum.center, &sum.m2, &sum.away, 1.0, v, 0.0, 0.0);
  }
}

// Fetch all steps of a thread into shared memory: of x, and if STEPS is PAIRS also of dy, behind it.
template <class T, int V, int STEPS, int K, int BX, int BY>
BN_DEV void fetch_steps(const Job& job, const Place<K, BX, BY>& place, Vector<T, V>* kept) {
  constexpr int THREADS = BX * BY;
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  Vector<T, V>* kept_dy = kept + job.keep * THREADS;
  typename Pick<BX == 1, KeptWalk, Walk<false>>::type walk(job, place.column, place.first, BY);
#pragma unroll 1
  for (i64 i = 0; i < place.steps; ++i, walk.next(), kept += THREADS, kept_dy += THREADS) {
    fetch<T, V>(kept, x + walk.at);
    if (STEPS == PAIRS) fetch<T, V>(kept_dy, dy + walk.at);
    if (Groups<STEPS>::ends(i, place.steps)) end_group();
  }
}

// The moments of each thread. They include the last, incomplete row only if MODE is CAREFUL.
template <class T, int V, int K, int BX, int BY, int MODE>
BN_DEV void sum_moments(const Job& job, i64 tile, i64 g, Vector<T, V>* kept, Moments (&sum)[K]) {
  typedef typename Compute<T>::type A;
  const Place<K, BX, BY> place(job, tile, g);
  const T* x = static_cast<const T*>(job.x);
  const Walk<BX == 1> walk(job, place.column, place.first, BY);
  if (MODE == CAREFUL) {
    sum[0] = {0.0, 0.0, 0.0, 0.0};
    add_weighted<T>(job, x, walk, place.column, place.first, BY, place.steps, sum[0]);
    place.in_last_row(job, g, [&](int) {
      Walk<BX == 1> last = walk;
      last.at = job.steps * job.columns + place.column;
      add_weighted<T>(job, x, last, place.column, job.steps, 0, 1, sum[0]);
    });
  } else {
    typedef typename Pick<MODE == EXACT, double, A>::type B;
    add_steps<T, V, K, BX * BY, MODE == WITH_MAP, B>(x, walk, place.steps, sum, kept);
  }
}

// The three values for the center of a channel of runs. They are read before they are needed.
template <class T>
BN_DEV Near<T> read_near(const Job& job, i64 c) {
  const i64 outer = quotient(job.steps, job.run);
  if (c >= job.channels || !outer) return {};
  const T* x = static_cast<const T*>(job.x) + c * job.base;
  return {x[0], x[outer / 2 * job.jump + job.run / 2 * job.unit], x[(outer - 1) * job.jump + job.run * job.unit - 1]};
}

// sum dy and sum dy (x - h), h being the high part of the mean -------------------------------------------------------

// The coefficients of the forward, in the type of computation: a backward decides on the activation by the same
// operations on the same numbers. They lie in shared memory, channel k of thread column tx at [k * BX + tx].
template <class A, int K, int BX>
struct Forward {
  A high[K * BX], scale[K * BX], shift[K * BX];
};

template <class T, int KIND, int K, int BX, class A>
BN_DEV void fill_forward(const Job& job, i64 tile, Forward<A, K, BX>& forward) {
  const int tid = threadIdx.x;
  const i64 column = tile * BX * K + tid;
  if (tid < BX * K && column < job.columns) {
    const int at = tid % K * BX + tid / K;
    const i64 c = channel_of(job, column);
    const double mean = row_of(job.stats, job, MEAN)[c];
    const A high = (A)mean;
    forward.high[at] = high;
    if (KIND != BN_IDENTITY) {
      const double scale = within<A>(row_of(job.stats, job, SCALE)[c]), shift = row_of(job.stats, job, SHIFT)[c];
      forward.scale[at] = (A)scale;
      forward.shift[at] = (A)bn_fold((double)high, mean, scale, shift);
    }
  }
}

// dy times the derivative of the activation; t = x - high.
template <int KIND, class A, int K, int BX>
BN_DEV A through(A dy, A t, const Forward<A, K, BX>& forward, int at, bn_activation act) {
  return KIND == BN_IDENTITY ? dy : bn_act_pull(act, fused(t, forward.scale[at], forward.shift[at]), dy);
}

// The sums of some steps again, in float64. With weights a dy of 0 adds nothing, as padding may hold anything.
template <class T, int V, int KIND, bool WEIGHTED, int K, int BX, class Walk, class A>
BN_DEV void exact_products(
    double slope, const T* x, const T* dy, const Forward<A, K, BX>& forward, Walk walk, int steps, double (&s)[K],
    double (&d)[K]) {
  const bn_activation act = activation_of<KIND>(slope);
  double sum[K], dot[K];
#pragma unroll
  for (int k = 0; k < K; ++k) sum[k] = dot[k] = 0.0;
#pragma unroll 1
  for (int i = 0; i < steps; ++i, walk.next())
#pragma unroll 1
    for (int v = 0; v < V; ++v) {
      const int k = K > 1 ? v : 0, at = k * BX + threadIdx.x % BX;
      const A value = widen(x[walk.at + v]), gradient = widen(dy[walk.at + v]);
      const double g = exact(through<KIND>(gradient, value - forward.high[at], forward, at, act));
      sum[k] += g;
      if (!WEIGHTED || g != 0.0) dot[k] = fma(g, exact(value) - exact(forward.high[at]), dot[k]);
    }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    s[k] = sum[k];
    d[k] = dot[k];
  }
}

// Add the sums of all steps of a thread to `sum`; `arrived`: as for add_steps.
template <
    class T, int V, int KIND, bool KEEP, bool WEIGHTED, int THREADS, int K, int BX, class Walk, class A,
    class Arrived = AllThere>
BN_DEV void add_products(
    double slope, const T* x, const T* dy, const Forward<A, K, BX>& forward, Walk walk, i64 steps,
    Reader<T, V, THREADS> of_x, Reader<T, V, THREADS> of_dy, Sums (&sum)[K], const Arrived& arrived = Arrived()) {
  typedef Block<T, V, K> block;
  const int tx = threadIdx.x % BX;
  const bn_activation act = activation_of<KIND>(slope);
  A h[K];
#pragma unroll
  for (int k = 0; k < K; ++k) h[k] = steps > 0 ? forward.high[k * BX + tx] : (A)0;
  struct Pair {
    Vector<T, V> x, dy;
  };
#pragma unroll 1
  for (; steps > 0; steps -= block::STEPS) {
    const int many = (int)least(block::STEPS, steps);
    const Walk start = walk;
    arrived(steps - many);
    A s[K], d[K], size[K];  // of the gradients: their sum may be 0 where they are not
#pragma unroll
    for (int k = 0; k < K; ++k) s[k] = d[k] = size[k] = 0;
    for_loads<PAIRS>(
        walk, many, [&](i64 at) { return Pair{of_x.template get<KEEP>(x, at), of_dy.template get<KEEP>(dy, at)}; },
        [&](const Pair& t) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const int k = K > 1 ? v : 0;
            const A away = value(t.x, v) - h[k];
            const A gradient = through<KIND>((A)value(t.dy, v), away, forward, k * BX + tx, act);
            s[k] += gradient;
            size[k] += size_of(gradient);
            if (!WEIGHTED || gradient != 0) d[k] = fused(gradient, away, d[k]);
          }
        });
    const A small = (A)1e-30 * (A)(many * block::PER_STEP);
    double s_[K], d_[K];
    unsigned again = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      s_[k] = s[k];
      d_[k] = d[k];
      again |= (unsigned)(!(d[k] - d[k] == 0) || (size_of(d[k]) < small && size[k] != 0)) << k;
    }
    if (!Compute<T>::in_range && rarely(again) && (again & off_center<T, V, K>(x, start, many, h)))
      exact_products<T, V, KIND, WEIGHTED>(slope, x, dy, forward, start, many, s_, d_);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sum[k].total += s_[k];
      sum[k].dot += d_[k];
    }
  }
}

template <class T, int V, int K, int BX, int BY, int MODE, int KIND>
BN_DEV const Forward<typename Compute<T>::type, K, BX>& sum_products(
    const Job& job, i64 tile, i64 g, Vector<T, V>* kept, Sums (&sum)[K]) {
  typedef typename Compute<T>::type A;
  constexpr bool WEIGHTED = MODE == CAREFUL;
  const Place<K, BX, BY> place(job, tile, g);
  const int tx = threadIdx.x % BX;
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  typedef Forward<A, K, BX> Of;
  BN_SHARED(Of, shared, 1);
  const Of& forward = shared[0];
  fill_forward<T, KIND>(job, tile, shared[0]);
  if constexpr (MODE == MEETING) fetch_steps<T, V, PAIRS>(job, place, kept);  // after fill_forward's loads
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) sum[k] = {0.0, 0.0};
  Vector<T, V>* kept_dy = kept ? kept + job.keep * (BX * BY) : kept;
  if constexpr (MODE == MEETING) {
    const Walk<false, int> there(0, BX * BY * V);
    const Reader<T, V, BX * BY> none = {nullptr};
    const T *held = reinterpret_cast<const T*>(kept), *held_dy = reinterpret_cast<const T*>(kept_dy);
    add_products<T, V, KIND, false, false>(
        job.slope, held, held_dy, forward, there, place.steps, none, none, sum, Groups<PAIRS>());
  } else {
    const Walk<BX == 1> walk(job, place.column, place.first, BY);
    const Reader<T, V, BX * BY> of_x = {kept}, of_dy = {kept_dy};
    add_products<T, V, KIND, MODE == WITH_MAP, WEIGHTED>(
        job.slope, x, dy, forward, walk, place.steps, of_x, of_dy, sum);
  }
  const bn_activation act = activation_of<KIND>(job.slope);
  place.in_last_row(job, g, [&](int k) {
    const i64 at = job.steps * job.columns + place.column + k;
    const A h = forward.high[k * BX + tx], value = widen(x[at]);
    const double gradient = exact(through<KIND>((A)widen(dy[at]), value - h, forward, k * BX + tx, act));
    sum[k].total += gradient;
    if (!WEIGHTED || gradient != 0.0) sum[k].dot += gradient * (exact(value) - exact(h));
  });
  return forward;
}
