// The reductions per channel: moments of x, and sum dy, sum dy (x - mean).
//
// A thread adds up blocks of a few values in the type of computation, relative to a center near their mean, so that x -
// center is exact where it matters; a block goes into float64 by differences of means. Squares and products that leave
// the range in which float is exact to its last digit are added once more in float64, from the cache.

constexpr int BATCH = 4;  // loads in flight per thread
constexpr int PAIRS = 2;  // the same where two arrays are read

// Steps per block of a thread. K == 1: all V values of a step belong to one channel.
template <class T, int V, int K>
struct Block {
  static constexpr int STEPS = K > 1 ? (sizeof(T) == 2 ? 32 : 16) : (V >= 4 ? 4 : 16 / V);
  static constexpr int PER_STEP = K > 1 ? 1 : V;  // values of a channel
};

template <class T, int V, int THREADS>
struct Reader {  // loads the steps of a thread, and keeps them in shared memory where asked to
  Vector<T, V>* kept;
  template <bool KEEP>
  BN_MEMBER Vector<T, V> get(const T* x, i64 at) {
    const Vector<T, V> v = load<T, V>(x + at);
    if (KEEP && kept) {
      *kept = v;
      kept += THREADS;
    }
    return v;
  }
};

// The running sums of a thread. The mean of channel k is high + low, both in the type of computation: high is the
// center of the next block, and low what is missing from it.
template <class A, int K>
struct State {
  double n, m2[K];
  A high[K], low[K];

  // Add blocks of so many values with s = sum (x - high), q = sum (x - high)^2, by differences of means.
  BN_MEMBER void add(double values, const double (&s)[K], const double (&q)[K]) {
    const double inverse = 1.0 / values, total = n + values, w = values / total, share = n * w;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const double mean = s[k] * inverse, inside = q[k] - s[k] * mean, gap = mean - (double)low[k];
      const double step = (double)low[k] + gap * w;  // the new mean, relative to high
      const A next = (A)((double)high[k] + step);
      m2[k] += (inside < 0.0 ? 0.0 : inside) + gap * share * gap;
      low[k] = (A)(step - ((double)next - (double)high[k]));
      high[k] = next;
    }
    n = total;
  }
  BN_MEMBER Moments get(int k) const {
    const double mean = (double)high[k] + (double)low[k];
    return {{n, mean, ((double)high[k] - mean) + (double)low[k], m2[k]}};
  }
};

// The first center: the mean of the first values, relative to the very first, so that it is exact where all are equal.
template <class T, int V, int K, class A>
BN_DEV void first_center(const T* x, Walk walk, i64 steps, A (&center)[K]) {
  const Vector<T, V> first = load<T, V>(x + walk.at);
  const int many = (int)least(BATCH, steps);
  A s[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    center[k] = widen(first.v[k]);
    s[k] = 0;
  }
  for (int i = 0; i < many; ++i, walk.next()) {
    const Vector<T, V> t = load<T, V>(x + walk.at);
#pragma unroll
    for (int v = 0; v < V; ++v) s[K > 1 ? v : 0] += widen(t.v[v]) - center[K > 1 ? v : 0];
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const A shifted = center[k] + s[k] / (A)(many * Block<T, V, K>::PER_STEP);
    if (shifted - shifted == 0) center[k] = shifted;  // differences may overflow where values do not
  }
}

// s and q once more, in float64. Rare: the arrays that are indexed here may lie in local memory.
template <class T, int V, int K, class A>
BN_DEV void exact_block(const T* x, Walk walk, int steps, const A (&center)[K], double (&s)[K], double (&q)[K]) {
  double about[K], sum[K], square[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    about[k] = center[k];
    sum[k] = square[k] = 0.0;
  }
#pragma unroll 1
  for (int i = 0; i < steps; ++i, walk.next())
#pragma unroll 1
    for (int v = 0; v < V; ++v) {
      const int k = K > 1 ? v : 0;
      const double d = exact(widen(x[walk.at + v])) - about[k];
      sum[k] += d;
      square[k] = fma(d, d, square[k]);
    }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    s[k] = sum[k];
    q[k] = square[k];
  }
}

template <class T, int V, int K, class A>
BN_DEV void add_values(const Vector<T, V>& t, const A (&center)[K], A (&s)[K], A (&q)[K]) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int k = K > 1 ? v : 0;
    const A d = widen(t.v[v]) - center[k];
    s[k] += d;
    q[k] = fused(d, d, q[k]);
  }
}

// All steps of a thread.
template <class T, int V, int K, int THREADS, bool KEEP, class A>
BN_DEV void add_steps(const T* x, Walk walk, i64 steps, State<A, K>& state, Vector<T, V>* kept) {
  typedef Block<T, V, K> block;
  Reader<T, V, THREADS> reader = {kept};
  if (steps > 0) first_center<T, V, K>(x, walk, steps, state.high);
#pragma unroll 1
  while (steps > 0) {
    const int many = (int)least(block::STEPS, steps);
    const Walk start = walk;
    A s[K], q[K];
#pragma unroll
    for (int k = 0; k < K; ++k) s[k] = q[k] = 0;
    int i = 0;
#pragma unroll 1
    for (; i + BATCH <= many; i += BATCH) {
      Vector<T, V> t[BATCH];
#pragma unroll
      for (int u = 0; u < BATCH; ++u, walk.next()) t[u] = reader.template get<KEEP>(x, walk.at);
#pragma unroll
      for (int u = 0; u < BATCH; ++u) add_values<T, V, K>(t[u], state.high, s, q);
    }
#pragma unroll 1
    for (; i < many; ++i, walk.next()) add_values<T, V, K>(reader.template get<KEEP>(x, walk.at), state.high, s, q);
    const A values = (A)(many * block::PER_STEP);
    double s_[K], q_[K];
    bool again = false;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      s_[k] = s[k];
      q_[k] = q[k];
      again |= !(q[k] >= (A)1e-36 * values && q[k] - q[k] == 0);
    }
    if (!Compute<T>::in_range && again) exact_block<T, V, K>(x, start, many, state.high, s_, q_);
    state.add((double)values, s_, q_);
    steps -= many;
  }
}

// The same with weights, or with NaN to leave out: one value at a time, in float64. V and K are 1.
template <class T>
BN_DEV void add_weighted(
    const Job& job, const T* x, Walk walk, i64 column, i64 r, i64 stride, i64 steps, Moments& sum) {
  const i64 plane = job.channels * job.inner, copy = quotient(column, plane), in_channel = column - copy * plane;
  const i64 offset = copy * job.inner + in_channel % job.inner;
  for (; steps > 0; --steps, r += stride, walk.next()) {
    const double w = job.weight ? job.weight[r * job.weight_step + offset] : 1.0;
    const double v = exact(widen(x[walk.at]));
    if (w == 0.0 || (job.skipna && v != v)) continue;
    const Moments one = {{w, v, 0.0, 0.0}};
    if (sum.v[0] == 0.0) {
      sum = one;  // exactly: 0 + (v - 0) would do too, but not for infinities
    } else {
      sum.join(one);
    }
  }
}

// A value of the last, incomplete row of widened columns.
template <class T>
BN_DEV bool in_last_row(const Job& job, i64 g, int ty, i64 column) {
  return ty == 0 && g == job.chunks - 1 && job.steps * job.columns + column < job.total;
}

template <class T, int V, int K, int BX, int BY, bool KEEP, bool CAREFUL>
BN_DEV void reduce_moments(const Job& job, i64 tile, i64 g, Vector<T, V>* kept) {
  const int tx = threadIdx.x % BX, ty = threadIdx.x / BX;
  const i64 column = (tile * BX + tx) * K, first = g * job.chunk + ty, end = least((g + 1) * job.chunk, job.steps);
  const T* x = static_cast<const T*>(job.x);
  const bool inside = column < job.columns;
  const i64 steps = inside && first < end ? (end - first + BY - 1) / BY : 0;
  const Walk walk(job, column, first, BY);
  Moments sum[K];
  if (CAREFUL) {
    sum[0] = nothing<Moments>();
    add_weighted<T>(job, x, walk, column, first, BY, steps, sum[0]);
    if (inside && in_last_row<T>(job, g, ty, column)) {
      Walk last = walk;
      last.at = job.steps * job.columns + column;
      add_weighted<T>(job, x, last, column, job.steps, 0, 1, sum[0]);
    }
  } else {
    typedef typename Compute<T>::type A;
    State<A, K> state;
    state.n = 0.0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      state.high[k] = state.low[k] = 0;
      state.m2[k] = 0.0;
    }
    add_steps<T, V, K, BX * BY, KEEP>(x, walk, steps, state, kept);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sum[k] = state.get(k);
      if (inside && in_last_row<T>(job, g, ty, column + k)) {
        const Moments one = {{1.0, exact(widen(x[job.steps * job.columns + column + k])), 0.0, 0.0}};
        if (sum[k].v[0] == 0.0) {
          sum[k] = one;
        } else {
          sum[k].join(one);
        }
      }
    }
  }
  finish<T, Moments, K, BX, BY>(job, tile, g, sum);
}

// sum dy and sum dy (x - h), h being the high part of the mean -------------------------------------------------------

// The coefficients of the forward, in the type of computation: the ReLU of a backward is decided by the same operations
// on the same numbers. They lie in shared memory, channel k of thread column tx at [k * BX + tx].
template <class A, int K, int BX>
struct Masks {
  A high[K * BX], scale[K * BX], shift[K * BX];
};

template <class T, int K, int BX, class A>
BN_DEV void fill_masks(const Job& job, i64 tile, Masks<A, K, BX>& masks) {
  const int tid = threadIdx.x;
  const i64 column = tile * BX * K + tid;
  if (tid < BX * K && column < job.columns) {
    const int at = tid % K * BX + tid / K;
    const i64 c = channel_of(job, column);
    const double mean = job.mean[c];
    const A high = (A)mean;
    masks.high[at] = high;
    masks.scale[at] = job.relu ? (A)job.scale[c] : (A)0;
    masks.shift[at] = job.relu ? (A)bn_fold((double)high, mean, job.scale[c], job.shift[c]) : (A)0;
  }
}

// dy, or 0 where the ReLU was; t = x - high.
template <class A, int K, int BX>
BN_DEV A through_relu(const Job& job, A dy, A t, const Masks<A, K, BX>& masks, int at) {
  return job.relu && fused(t, masks.scale[at], masks.shift[at]) <= 0 ? (A)0 : dy;
}

// The sums of some steps once more, in float64.
template <class T, int V, int K, int BX, class A>
BN_DEV void exact_products(
    const Job& job, const Masks<A, K, BX>& masks, Walk walk, int steps, double (&s)[K], double (&d)[K]) {
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  double sum[K], dot[K];
#pragma unroll
  for (int k = 0; k < K; ++k) sum[k] = dot[k] = 0.0;
#pragma unroll 1
  for (int i = 0; i < steps; ++i, walk.next())
#pragma unroll 1
    for (int v = 0; v < V; ++v) {
      const int k = K > 1 ? v : 0, at = k * BX + threadIdx.x % BX;
      const A value = widen(x[walk.at + v]), gradient = widen(dy[walk.at + v]);
      const double g = exact(through_relu(job, gradient, value - masks.high[at], masks, at));
      sum[k] += g;
      if (g != 0.0 || !job.weighted) dot[k] = fma(g, exact(value) - exact(masks.high[at]), dot[k]);
    }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    s[k] = sum[k];
    d[k] = dot[k];
  }
}

template <class T, int V, int K, int BX, int BY, bool KEEP>
BN_DEV void reduce_sums(const Job& job, i64 tile, i64 g, Vector<T, V>* kept) {
  typedef typename Compute<T>::type A;
  typedef Block<T, V, K> block;
  const int tx = threadIdx.x % BX, ty = threadIdx.x / BX;
  const i64 column = (tile * BX + tx) * K, first = g * job.chunk + ty, end = least((g + 1) * job.chunk, job.steps);
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  const bool inside = column < job.columns;
  i64 steps = inside && first < end ? (end - first + BY - 1) / BY : 0;
  typedef Masks<A, K, BX> Mask;
  BN_SHARED(Mask, shared, 1);
  const Mask& masks = shared[0];
  fill_masks<T>(job, tile, shared[0]);
  __syncthreads();
  Walk walk(job, column, first, BY);
  Reader<T, V, BX * BY> of_x = {kept}, of_dy = {kept ? kept + job.keep * (BX * BY) : kept};
  A h[K];
  Sums sum[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    h[k] = inside ? masks.high[k * BX + tx] : (A)0;
    sum[k] = nothing<Sums>();
  }
#pragma unroll 1
  while (steps > 0) {
    const int many = (int)least(block::STEPS, steps);
    const Walk start = walk;
    A s[K], d[K];
#pragma unroll
    for (int k = 0; k < K; ++k) s[k] = d[k] = 0;
#pragma unroll 1
    for (int i = 0; i < many; i += PAIRS) {
      Vector<T, V> t[PAIRS], e[PAIRS];
#pragma unroll
      for (int u = 0; u < PAIRS; ++u)
        if (i + u < many) {
          t[u] = of_x.template get<KEEP>(x, walk.at);
          e[u] = of_dy.template get<KEEP>(dy, walk.at);
          walk.next();
        }
#pragma unroll
      for (int u = 0; u < PAIRS; ++u)
        if (i + u < many) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const int k = K > 1 ? v : 0;
            const A away = widen(t[u].v[v]) - h[k];
            const A gradient = through_relu(job, (A)widen(e[u].v[v]), away, masks, k * BX + tx);
            s[k] += gradient;
            if (!job.weighted || gradient != 0) d[k] = fused(gradient, away, d[k]);
          }
        }
    }
    const A small = (A)1e-30 * (A)(many * block::PER_STEP);
    double s_[K], d_[K];
    bool again = false;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      s_[k] = s[k];
      d_[k] = d[k];
      again |= !(d[k] - d[k] == 0) || (size_of(d[k]) < small && s[k] != 0);
    }
    if (!Compute<T>::in_range && again) exact_products<T, V, K>(job, masks, start, many, s_, d_);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sum[k].v[0] += s_[k];
      sum[k].v[1] += d_[k];
    }
    steps -= many;
  }
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (inside && in_last_row<T>(job, g, ty, column + k)) {
      const i64 at = job.steps * job.columns + column + k;
      const A away = widen(x[at]) - h[k];
      const double gradient = through_relu(job, (A)widen(dy[at]), away, masks, k * BX + tx);
      sum[k].v[0] += gradient;
      if (!job.weighted || gradient != 0.0) sum[k].v[1] += gradient * (double)away;
    }
  finish<T, Sums, K, BX, BY>(job, tile, g, sum);
}
