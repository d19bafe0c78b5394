// The running sums of a thread over values of x.
//
// A thread adds up a block of a few values in the type of computation, relative to a center near their mean, so that
// x - center is exact where it matters. Blocks are merged in float64, by differences of means. If squares leave the
// range in which float is exact to its last digit, the block is added up again in float64, from the cache.

constexpr int BATCH = 4;  // loads in flight per thread
constexpr int PAIRS = 2;  // the same if two arrays are read

// Steps per block of a thread. K == 1: all V values of a step belong to one channel.
template <class T, int V, int K>
struct Block {
  static constexpr int STEPS = K > 1 ? (sizeof(T) == 2 ? 32 : 16) : (V >= 4 ? 4 : 16 / V);
  static constexpr int PER_STEP = K > 1 ? 1 : V;  // values of a channel
};

constexpr double FAR = 8;  // the squares about the center may be this many times the squares about the mean

// The median of three values: it is near the mean even if one of them is far away.
template <class A>
BN_DEV A middle(A a, A b, A c) {
  const A low = b < a ? b : a, high = b < a ? a : b;
  return c < low ? low : high < c ? high : c;
}

template <class T, int V, int THREADS>
struct Reader {  // loads the steps of a thread, and stores them in shared memory if asked to
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

// 1 / (i + 1), rounded as the processor does; a division takes longer than a look-up.
constexpr int SHARES = 32;
__constant__ const double block_shares[SHARES] = {
    1.0 / 1,  1.0 / 2,  1.0 / 3,  1.0 / 4,  1.0 / 5,  1.0 / 6,  1.0 / 7,  1.0 / 8,  1.0 / 9,  1.0 / 10, 1.0 / 11,
    1.0 / 12, 1.0 / 13, 1.0 / 14, 1.0 / 15, 1.0 / 16, 1.0 / 17, 1.0 / 18, 1.0 / 19, 1.0 / 20, 1.0 / 21, 1.0 / 22,
    1.0 / 23, 1.0 / 24, 1.0 / 25, 1.0 / 26, 1.0 / 27, 1.0 / 28, 1.0 / 29, 1.0 / 30, 1.0 / 31, 1.0 / 32};

// The running sums of a thread. The mean of channel k is high + low, both in the type of computation: high is the
// center of the next block, and low the rest of the mean.
template <class A, int K>
struct State {
  double n, m2[K];
  int blocks;
  A high[K], low[K];

  // Add blocks of VALUES values with s = sum (x - high), q = sum (x - high)^2, by differences of means. All blocks but
  // the last have VALUES values, a power of two: so a share is the same number, whether it is looked up or divided.
  template <int VALUES>
  BN_MEMBER void add(const double (&s)[K], const double (&q)[K]) {
    static_assert((VALUES & (VALUES - 1)) == 0, "no power of two");
    constexpr double inverse = 1.0 / VALUES;
    const double total = n + VALUES, w = blocks < SHARES ? block_shares[blocks] : VALUES / total, share = n * w;
    ++blocks;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const Moments sum = with(k, total, inverse, w, share, s[k], q[k]);
      const A next = as<A>(sum.center + sum.away);
      m2[k] = sum.m2;
      low[k] = as<A>(sum.away - (exact(next) - sum.center));
      high[k] = next;
    }
    n = total;
  }
  // The moments of all blocks and of a last one, which is empty only if the thread has no values.
  BN_MEMBER void end(double values, const double (&s)[K], const double (&q)[K], Moments (&sum)[K]) const {
    const double inverse = values == 0.0 ? 0.0 : 1.0 / values, total = n + values;
    if (n == 0.0) {  // the last block is also the first
#pragma unroll
      for (int k = 0; k < K; ++k) sum[k] = alone(k, values, inverse, s[k], q[k]);
      return;
    }
    const double w = values / total, share = n * w;
#pragma unroll
    for (int k = 0; k < K; ++k) sum[k] = with(k, total, inverse, w, share, s[k], q[k]);
  }
  BN_MEMBER Moments alone(int k, double values, double inverse, double s, double q) const {
    const double mean = s * inverse, inside = q - s * mean;
    return {values, exact(high[k]), inside < 0.0 ? 0.0 : inside, mean};
  }
  BN_MEMBER Moments with(int k, double total, double inverse, double w, double share, double s, double q) const {
    const Moments block = alone(k, total, inverse, s, q);
    const double away = exact(low[k]), gap = block.away - away;
    return {total, block.center, m2[k] + (block.m2 + gap * share * gap), away + gap * w};
  }
  BN_MEMBER State() : n(0.0), blocks(0) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      high[k] = low[k] = 0;
      m2[k] = 0.0;
    }
  }
};

// The first center: the mean of the first values, relative to the very first, so that it is exact if all are equal.
template <class T, int V, int K, class Walk, class A>
BN_DEV void first_mean(const T* x, Walk walk, i64 steps, A (&center)[K]) {
  const Vector<T, V> first = load<T, V>(x + walk.at);
  const int many = (int)least(BATCH, steps);
  A s[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    center[k] = as<A>(widen(first.v[k]));
    s[k] = 0;
  }
  for (int i = 0; i < many; ++i, walk.next()) {
    const Vector<T, V> t = load<T, V>(x + walk.at);
#pragma unroll
    for (int v = 0; v < V; ++v) s[K > 1 ? v : 0] += as<A>(widen(t.v[v])) - center[K > 1 ? v : 0];
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const A shifted = center[k] + s[k] / (A)(many * Block<T, V, K>::PER_STEP);
    // Differences may overflow even if values do not. If all are equal, and maybe subnormal, the first is the center.
    if (s[k] != 0 && shifted - shifted == 0) center[k] = shifted;
  }
}

// One bit for each channel: whether it has a value other than its center in these steps. If not, its sums are exactly
// 0: constant channels are frequent, and need not be added up again because their sums are small.
template <class T, int V, int K, class Walk, class A>
BN_DEV unsigned off_center(const T* x, Walk walk, int steps, const A (&center)[K]) {
  unsigned off = 0;
#pragma unroll 1
  for (int i = 0; i < steps; ++i, walk.next()) {
    const Vector<T, V> t = load<T, V>(x + walk.at);
#pragma unroll
    for (int v = 0; v < V; ++v) off |= (unsigned)!same(as<A>(widen(t.v[v])), center[K > 1 ? v : 0]) << (K > 1 ? v : 0);
  }
  return off;
}

// s and q again, in float64. It is rare, so the arrays that are indexed here may lie in local memory.
template <class T, int V, int K, class Walk, class A>
BN_DEV void exact_block(const T* x, Walk walk, int steps, const A (&center)[K], double (&s)[K], double (&q)[K]) {
  double about[K], sum[K], square[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    about[k] = exact(center[k]);
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
    const A d = as<A>(value(t, v)) - center[k];
    s[k] += d;
    q[k] = fused(d, d, q[k]);
  }
}

// Call add(get(place)) for the next `many` steps, which are read LOADS at a time.
template <int LOADS, class Walk, class Get, class Add>
BN_DEV void for_loads(Walk& walk, int many, const Get& get, const Add& add) {
  int i = 0;
#pragma unroll 1
  for (; i + LOADS <= many; i += LOADS) {
    decltype(get(walk.at)) t[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; ++u, walk.next()) t[u] = get(walk.at);
#pragma unroll
    for (int u = 0; u < LOADS; ++u) add(t[u]);
  }
#pragma unroll 1
  for (; i < many; ++i, walk.next()) add(get(walk.at));
}

// s and q of the next `many` steps, at most those of a block.
template <int LOADS, bool KEEP, class T, int V, int K, int THREADS, class A, class Walk>
BN_DEV void add_block(
    const T* x, Walk& walk, int many, const A (&center)[K], Reader<T, V, THREADS>& reader, double (&s_)[K],
    double (&q_)[K]) {
  const Walk start = walk;
  A s[K], q[K];
#pragma unroll
  for (int k = 0; k < K; ++k) s[k] = q[k] = 0;
  for_loads<LOADS>(
      walk, many, [&](i64 at) { return reader.template get<KEEP>(x, at); },
      [&](const Vector<T, V>& t) { add_values<T, V, K>(t, center, s, q); });
  const A least_square = (A)1e-36 * (A)(many * Block<T, V, K>::PER_STEP);
  unsigned again = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    s_[k] = s[k];
    q_[k] = q[k];
    again |= (unsigned)!(q[k] >= least_square && q[k] - q[k] == 0) << k;
  }
  if (!Compute<T>::in_range && sizeof(A) < 8 && rarely(again) && (again & off_center<T, V, K>(x, start, many, center)))
    exact_block<T, V, K>(x, start, many, center, s_, q_);
}

// The moments of all steps of a thread, computed in A. If steps are fetched, arrived(left) waits for all of them but
// the last `left`.
template <class T, int V, int K, int THREADS, bool KEEP, class A, class Walk, class Arrived = AllThere>
BN_DEV void add_steps(
    const T* x, Walk walk, i64 steps, Moments (&sum)[K], Vector<T, V>* kept, const Arrived& arrived = Arrived()) {
  typedef Block<T, V, K> block;
  constexpr int LOADS = K == 8 ? 2 * BATCH : BATCH;
  Reader<T, V, THREADS> reader = {kept};
  State<A, K> state;
  double values = 0.0, s_[K] = {}, q_[K] = {};  // of the last block
  if (steps > 0) {
    arrived(steps - least(BATCH, steps));
    first_mean<T, V, K>(x, walk, steps, state.high);
  }
#pragma unroll 1
  while (steps > 0) {
    const int many = (int)least(block::STEPS, steps);
    arrived(steps - many);
    add_block<LOADS, KEEP>(x, walk, many, state.high, reader, s_, q_);
    values = (double)(many * block::PER_STEP);
    steps -= many;
    if (steps <= 0) break;
    state.template add<block::STEPS * block::PER_STEP>(s_, q_);
  }
  state.end(values, s_, q_, sum);
}

// If all threads know the center, their sums of x - center and of its square can simply be added.

// Three values, whose median is a center near the mean; the center is 0 if the median is not finite.
template <class T>
struct Near {
  T first, second, last;

  BN_MEMBER typename Compute<T>::type center() const {
    typedef typename Compute<T>::type A;
    const A found = middle<A>(widen(first), widen(second), widen(last));
    return found - found == 0 ? found : (A)0;
  }
};

// Add s and q of all steps of a thread to `sum`. They are computed in the type of `center`.
template <class T, int V, int K, class A, class Walk, class Arrived>
BN_DEV void add_about(
    const T* x, Walk walk, i64 steps, const A (&center)[K], Sums (&sum)[K], const Arrived& arrived) {
  Reader<T, V, 1> reader = {nullptr};
#pragma unroll 1
  for (; steps > 0; steps -= Block<T, V, K>::STEPS) {
    const int many = (int)least(Block<T, V, K>::STEPS, steps);
    double s[K], q[K];
    arrived(steps - many);
    add_block<BATCH, false>(x, walk, many, center, reader, s, q);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sum[k].total += s[k];
      sum[k].dot += q[k];
    }
  }
}

// Moments from such sums of n values. `far`: whether the center is so far from the mean that digits are lost. Then sums
// about the mean that has been found, in float64, lose none.
// An infinite value makes the mean NaN, as the differences of means do elsewhere.
BN_DEV Moments moments_about(double n, double center, const Sums& sum, bool& far) {
  const double away = n == 0.0 ? 0.0 : bn_finite(sum.total) ? sum.total / n : BN_NAN;
  const double m2 = sum.dot - sum.total * away;
  far = sum.dot > FAR * m2;
  return {n, center, m2 < 0.0 ? 0.0 : m2, away};
}
