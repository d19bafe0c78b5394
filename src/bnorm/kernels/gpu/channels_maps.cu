// Batch normalization: what is done with the sums of a channel, and the maps.

// Between reduction and map ------------------------------------------------------------------------------------------

// What the map of a channel needs, forward and backward.
struct Normal {
  double mean, var, rstd, scale, shift;
};
struct Coefficients {
  double a, b, c;
};

// Number c of gamma, beta, or a given mean or variance, which is float64, or float32 if its bit of job.single is set: as
// it is in memory, to be converted later, as a conversion waits for the number.
enum { SINGLE_GAMMA = 1, SINGLE_BETA = 2, SINGLE_MEAN = 4, SINGLE_VAR = 8 };
BN_DEV i64 raw(const double* from, i64 c, i64 single) {
  return single ? (i64)reinterpret_cast<const unsigned*>(from)[c] : reinterpret_cast<const i64*>(from)[c];
}
BN_DEV double of_raw(i64 bits, i64 single) {
  return single ? exact(__uint_as_float((unsigned)bits)) : __longlong_as_double(bits);
}

BN_DEV i64 gamma_of(const Job& job, i64 c) {
  return job.gamma ? raw(job.gamma, c, job.single & SINGLE_GAMMA) : __double_as_longlong(1.0);
}
BN_DEV i64 beta_of(const Job& job, i64 c) { return job.beta ? raw(job.beta, c, job.single & SINGLE_BETA) : 0; }
BN_DEV Normal normal_of(const Job& job, i64 gamma, i64 beta, double mean, double var, double count) {
  const double rstd = bn_rstd(mean, var, job.eps, count), scale = of_raw(gamma, job.single & SINGLE_GAMMA);
  return {mean, var, rstd, scale * rstd, of_raw(beta, job.single & SINGLE_BETA)};
}
BN_DEV Normal normal_of(const Job& job, i64 gamma, i64 beta, const Moments& sum) {
  return normal_of(job, gamma, beta, sum.center + sum.away, sum.m2 / (sum.n > 0.0 ? sum.n : 1.0), sum.n);
}
BN_DEV Normal normal_of(const Job& job, i64 c, double mean, double var, double count) {
  return normal_of(job, gamma_of(job, c), beta_of(job, c), mean, var, count);
}
BN_DEV Normal normal_of(const Job& job, i64 c, const Moments& sum) {
  return normal_of(job, gamma_of(job, c), beta_of(job, c), sum);
}
BN_DEV Normal given_normal(const Job& job, i64 c) {
  const i64 mean = raw(job.mean, c, job.single & SINGLE_MEAN), var = raw(job.var, c, job.single & SINGLE_VAR);
  const i64 gamma = gamma_of(job, c), beta = beta_of(job, c);
  const double variance = of_raw(var, job.single & SINGLE_VAR);
  return normal_of(job, gamma, beta, of_raw(mean, job.single & SINGLE_MEAN), variance, 1.0);
}
// Store what the map reads of a channel, in the type of computation: in a forward, and in a backward.
template <int WIDTH, class A>
BN_DEV void keep_normal(A* to, const Normal& of) {
  const A high = (A)of.mean;
  const double scale = within<A>(of.scale);
  to[0] = high;
  to[WIDTH] = (A)scale;
  to[2 * WIDTH] = (A)bn_fold((double)high, of.mean, scale, of.shift);
}
template <int WIDTH, class A, class B>
BN_DEV void keep_coefficients(B* to, double mean, const Coefficients& of) {
  const double b = within<B>(of.b);
  to[0] = (B)within<B>(of.a);
  to[WIDTH] = (B)b;
  to[2 * WIDTH] = (B)bn_fold((double)(A)mean, mean, b, of.c);
}
BN_DEV Normal read_normal(const Job& job, i64 c) {
  return {row_of(job.stats, job, MEAN)[c], 0.0, 0.0, row_of(job.stats, job, SCALE)[c],
          row_of(job.stats, job, SHIFT)[c]};
}
BN_DEV Coefficients read_coefficients(const Job& job, i64 c) {
  return {row_of(job.coefficients, job, A_OF_DX)[c], row_of(job.coefficients, job, B_OF_DX)[c],
          row_of(job.coefficients, job, C_OF_DX)[c]};
}

BN_DEV void write_stats(const Job& job, i64 c, const Normal& of) {
  row_of(job.stats, job, MEAN)[c] = of.mean;
  row_of(job.stats, job, VAR)[c] = of.var;
  row_of(job.stats, job, RSTD)[c] = of.rstd;
  row_of(job.stats, job, SCALE)[c] = of.scale;
  row_of(job.stats, job, SHIFT)[c] = of.shift;
}

BN_DEV Coefficients coefficients_of(double scale, double rstd, const Sums& sum, double count) {
  return {scale, bn_grad_b(rstd, sum.dot, count), bn_grad_c(sum.total, count)};
}
BN_DEV Coefficients coefficients_of(const Job& job, i64 c, const Sums& sum, double count) {
  return coefficients_of(row_of(job.stats, job, SCALE)[c], row_of(job.stats, job, RSTD)[c], sum, count);
}
BN_DEV void write_coefficients(const Job& job, i64 c, const Coefficients& of) {
  row_of(job.coefficients, job, A_OF_DX)[c] = of.a;
  row_of(job.coefficients, job, B_OF_DX)[c] = of.b;
  row_of(job.coefficients, job, C_OF_DX)[c] = of.c;
}

// The sums about the mean, from those about its high part.
template <class A>
BN_DEV Sums about_mean(double mean, const Sums& sum) {
  return {sum.total, sum.dot - (mean - (double)(A)mean) * sum.total};
}

BN_DEV Running running_of(const Job& job) {
  const int mode = job.mode == BN_POOL ? BN_POOL : BN_AVERAGE;  // layers have no other
  return {job.running_mean, job.running_var, nullptr, job.seen, nullptr, nullptr, nullptr, job.counted, job.channels,
          job.wide, 0, job.nonfinite, mode, {mode, job.momentum, 1.0, job.ddof, 0}, job.uncounted};
}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Moments& sum) {
  const double mean = sum.center + sum.away, back = mean - sum.center;
  const double low = (sum.center - (mean - back)) + (sum.away - back);
  if (job.parts) {
    job.parts[c] = sum.n;
    job.parts[job.channels + c] = mean;
    job.parts[2 * job.channels + c] = sum.m2;
    job.parts[3 * job.channels + c] = low;
  }
  if (job.stats) write_stats(job, c, normal_of(job, c, sum));
  if (job.counts && c == 0) *job.counts = sum.n;
  if (job.running_mean) {
    const Running to = running_of(job);
    count_left(to, c, moved(to, c, {sum.n, mean, sum.m2, low, sum.n, 0.0, 0.0}, sum.n));
  }
}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Sums& sum) {
  const Sums of = about_mean<typename Compute<T>::type>(row_of(job.stats, job, MEAN)[c], sum);
  if (job.sums) {
    job.sums[c] = of.total;
    job.sums[job.channels + c] = of.dot;
  }
  if (job.coefficients) write_coefficients(job, c, coefficients_of(job, c, of, count_of(job, c)));
  if (job.dgamma) give(job.dgamma, job.gives, c, row_of(job.stats, job, RSTD)[c] * of.dot);
  give(job.dbeta, job.gives, c, of.total);
}

// The maps -----------------------------------------------------------------------------------------------------------
// The chunks of the reduction are cut into `split` parts, and the last part of each chunk is mapped first: the
// reduction read it last, so it may still be in the second-level cache. `kept` is what a block has kept of what it
// read. If READY, the coefficients of the block's tile are in shared memory, at `ready`. If it also FETCHES, it has one
// channel, and what lies `ahead` elements further on is fetched into the place of what has been mapped, in groups of
// BATCH or PAIRS steps; nothing is fetched if `ahead` is 0.

BN_DEV i64 part_of_map(const Job& job) {
  const i64 chunks = job.chunks / job.split;
  return (blockIdx.y % chunks) * job.split + (job.split - 1 - blockIdx.y / chunks);
}

// Call use(place) for the steps that a thread reads first, while the statistics of its channels are being loaded.
template <int K, int BX, int BY, class Use>
BN_DEV void for_first(const Job& job, const Place<K, BX, BY>& place, const Use& use) {
  Walk<BX == 1> walk(job, place.column, place.first, BY);
#pragma unroll 1
  for (int i = 0; i < 2 * BATCH && i < place.steps; ++i, walk.next()) use(walk.at);
}

template <class T, int V, int K, int BX, int BY, int KIND, bool FINITE, bool FETCHES = false, bool READY = FETCHES>
BN_DEV void map_forward(
    const Job& job, i64 tile, i64 g, Vector<T, V>* kept, const typename Compute<T>::type* ready = nullptr,
    i64 ahead = 0) {
  typedef typename Compute<T>::type A;
  constexpr int WIDTH = BX * K;
  const Place<K, BX, BY> place(job, tile, g);
  const int tid = threadIdx.x, tx = tid % BX;
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  if (!READY && job.var) for_first(job, place, [&](i64 at) { soon(x + at); });
  BN_SHARED(A, shared, 3 * WIDTH);
  const A* coefficients = READY ? ready : shared;
  if (!READY) __syncthreads();  // the statistics may have been written by other threads of this block
  if (!READY && tid < WIDTH && tile * WIDTH + tid < job.columns) {
    const i64 column = tile * WIDTH + tid, c = channel_of(job, column);
    // in inference, one block of a channel writes its statistics
    const Normal of = job.var ? given_normal(job, c) : read_normal(job, c);
    if (job.var && g == 0 && column == c * job.inner) write_stats(job, c, of);
    keep_normal<WIDTH>(shared + tid, of);
  }
  if (!READY) __syncthreads();
  if (!place.inside) return;
  A h[K], scale[K], shift[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    h[k] = coefficients[tx * K + k];
    scale[k] = coefficients[WIDTH + tx * K + k];
    shift[k] = coefficients[2 * WIDTH + tx * K + k];
  }
  const bn_activation act = activation_of<KIND>(job.slope);
  const bool here = FETCHES || kept;
  bool found = false;
  const auto map = [&](A v, T& to, int k) {
    if (FINITE) found |= infinite(v);
    narrow(bn_act(act, fused(v - h[k], scale[k], shift[k])), to);
  };
  typename Pick<FETCHES, KeptWalk, Walk<BX == 1>>::type walk(job, place.column, place.first, BY);
  i64 steps = place.steps;
#pragma unroll 1
  for (; steps >= BATCH; steps -= BATCH) {
    Vector<T, V> t[BATCH];
    i64 at[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; ++u, walk.next()) {
      at[u] = walk.at;
      t[u] = here ? kept[u * BX * BY] : load<T, V>(x + walk.at);
    }
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      Vector<T, V> to;
#pragma unroll
      for (int v = 0; v < V; ++v) map(value(t[u], v), to.v[v], K > 1 ? v : 0);
      put<T, V>(y + at[u], to, job.streams);
    }
    if (FETCHES && ahead) {
#pragma unroll
      for (int u = 0; u < BATCH; ++u) fetch<T, V>(kept + u * BX * BY, x + ahead + at[u]);
      end_group();
    }
    if (here) kept += BATCH * BX * BY;
  }
#pragma unroll 1
  for (; steps > 0; --steps, walk.next()) {
    const Vector<T, V> t = here ? *kept : load<T, V>(x + walk.at);
    Vector<T, V> to;
#pragma unroll
    for (int v = 0; v < V; ++v) map(value(t, v), to.v[v], K > 1 ? v : 0);
    put<T, V>(y + walk.at, to, job.streams);
    if (FETCHES && ahead) fetch<T, V>(kept, x + ahead + walk.at);
    if (here) kept += BX * BY;
  }
  if (FETCHES && ahead && place.steps % BATCH) end_group();
  place.in_last_row(job, g, [&](int k) {
    const i64 at = job.steps * job.columns + place.column + k;
    map(widen(x[at]), y[at], k);
  });
  if (FINITE && found) atomicOr(job.infinite, 1);
}

// With weights, which may be of any size, a, b and c are double. With FROZEN statistics dx is a map of dy, and x is
// read for the activation alone. If READY, `given` is what fill_forward finds.
template <class T, int V, int K, int BX, int BY, int MODE, int KIND, bool FETCHES = false, bool READY = FETCHES>
BN_DEV void map_backward(
    const Job& job, i64 tile, i64 g, Vector<T, V>* kept, const typename Compute<T>::type* ready = nullptr,
    i64 ahead = 0, const Forward<typename Compute<T>::type, K, BX>* given = nullptr) {
  typedef typename Compute<T>::type A;
  typedef typename Pick<MODE == CAREFUL, double, A>::type B;
  constexpr int WIDTH = BX * K;
  constexpr bool READS_X = KIND != BN_IDENTITY || MODE != FROZEN;
  const Place<K, BX, BY> place(job, tile, g);
  const int tid = threadIdx.x, tx = tid % BX;
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  T* dx = static_cast<T*>(job.y);
  if (MODE == FROZEN) for_first(job, place, [&](i64 at) {
    soon(dy + at);
    if (READS_X) soon(x + at);
  });
  typedef Forward<A, K, BX> Of;
  BN_SHARED(Of, shared, 1);
  BN_SHARED(B, found, 3 * WIDTH);
  const B* coefficients = found;
  if constexpr (READY) coefficients = ready;
  const Of& forward = READY ? *given : shared[0];
  if (!READY) {
    __syncthreads();  // the coefficients may have been written by other threads of this block
    fill_forward<T, KIND>(job, tile, shared[0]);
  }
  if (!READY && tid < WIDTH && tile * WIDTH + tid < job.columns) {
    const i64 channel = channel_of(job, tile * WIDTH + tid);
    const double mean = row_of(job.stats, job, MEAN)[channel];
    if (MODE == FROZEN) found[tid] = (B)within<B>(row_of(job.stats, job, SCALE)[channel]);
    else keep_coefficients<WIDTH, A>(found + tid, mean, read_coefficients(job, channel));
  }
  if (!READY) __syncthreads();
  if (!place.inside) return;
  // With an activation, the numbers of several channels take too many registers for four blocks: each use reads them.
  constexpr bool MANY = K > 1 && KIND != BN_IDENTITY;
  A high[K];
  B held[3][K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    high[k] = forward.high[k * BX + tx];
#pragma unroll
    for (int i = 0; i < (MODE == FROZEN ? 1 : 3); ++i) held[i][k] = coefficients[i * WIDTH + tx * K + k];
  }
  const auto of = [&](int i, int k) { return MANY ? coefficients[i * WIDTH + tx * K + k] : held[i][k]; };  // a, b or c
  const bn_activation act = activation_of<KIND>(job.slope);
  const auto map = [&](A gradient, A of_x, T& to, double weight, int k) {
    const A away = READS_X ? of_x - (MANY ? forward.high[k * BX + tx] : high[k]) : (A)0;
    const B behind = (B)through<KIND>(gradient, away, forward, k * BX + tx, act);
    if (MODE == FROZEN) return narrow((A)(of(0, k) * behind), to);
    B statistics = fused((B)away, of(1, k), of(2, k));
    if (MODE == CAREFUL) statistics = weight == 0.0 ? (B)0 : (B)weight * statistics;
    narrow((A)(of(0, k) * (behind + statistics)), to);
  };
  const i64 plane = job.channels * job.inner, copy = quotient(place.column, plane);
  const i64 offset = copy * job.inner + (place.column - copy * plane) % job.inner;  // in the weights; V is 1 then
  i64 steps = place.steps, r = place.first;
  const auto weight_at = [&](i64 step) { return MODE == CAREFUL ? job.weight[step * job.weight_step + offset] : 1.0; };
  typename Pick<FETCHES, KeptWalk, Walk<BX == 1>>::type walk(job, place.column, place.first, BY);
  const bool here = FETCHES || kept;
  Vector<T, V>* kept_dy = here ? kept + job.keep * (BX * BY) : kept;
#pragma unroll 1
  for (; steps >= PAIRS; steps -= PAIRS, r += PAIRS * BY) {
    Vector<T, V> t[PAIRS], e[PAIRS];
    i64 at[PAIRS];
#pragma unroll
    for (int u = 0; u < PAIRS; ++u, walk.next()) {
      at[u] = MANY ? as_it_is(walk.at) : walk.at;  // else a pointer is kept for each array and place
      e[u] = here ? kept_dy[u * BX * BY] : load<T, V>(dy + at[u]);
      t[u] = !READS_X ? e[u] : here ? kept[u * BX * BY] : load<T, V>(x + at[u]);
    }
#pragma unroll
    for (int u = 0; u < PAIRS; ++u) {
      const double w = weight_at(r + u * BY);
      Vector<T, V> to;
#pragma unroll
      for (int v = 0; v < V; ++v) map(value(e[u], v), value(t[u], v), to.v[v], w, K > 1 ? v : 0);
      put<T, V>(dx + at[u], to, job.streams);
    }
    if (FETCHES && ahead) {
#pragma unroll
      for (int u = 0; u < PAIRS; ++u) {
        fetch<T, V>(kept + u * BX * BY, x + ahead + at[u]);
        fetch<T, V>(kept_dy + u * BX * BY, dy + ahead + at[u]);
      }
      end_group();
    }
    if (here) {
      kept += PAIRS * BX * BY;
      kept_dy += PAIRS * BX * BY;
    }
  }
  if (steps > 0) {
    const Vector<T, V> e = here ? *kept_dy : load<T, V>(dy + walk.at);
    const Vector<T, V> t = !READS_X ? e : here ? *kept : load<T, V>(x + walk.at);
    Vector<T, V> to;
    const double w = weight_at(r);
#pragma unroll
    for (int v = 0; v < V; ++v) map(value(e, v), value(t, v), to.v[v], w, K > 1 ? v : 0);
    put<T, V>(dx + walk.at, to, job.streams);
    if (FETCHES && ahead) {
      fetch<T, V>(kept, x + ahead + walk.at);
      fetch<T, V>(kept_dy, dy + ahead + walk.at);
      end_group();
    }
  }
  place.in_last_row(job, g, [&](int k) {
    const i64 at = job.steps * job.columns + place.column + k;
    const A gradient = widen(dy[at]);
    map(gradient, READS_X ? (A)widen(x[at]) : gradient, dx[at], weight_at(job.steps), k);
  });
}

// Launch bounds and memory of kernels ---------------------------------------------------------------------------------

// At least so many blocks must fit on a processor, which bounds the registers of a thread. For two blocks, a thread
// with eight channels has too many numbers if the map is in the same launch, or if all of it is in float64.
template <int THREADS, int K, int MODE>
struct Resident {
  static constexpr bool many = K == 8 && (MODE == WITH_MAP || MODE == EXACT);
  static constexpr int blocks = THREADS > 256 || MODE == MEETING || many ? 1 : 2;
};

// The map of a backward in float has so few numbers that more blocks fit.
template <class T, int THREADS, int MODE>
struct MapResident {
  static constexpr int blocks = THREADS > 256 ? 1 : sizeof(T) == 4 && MODE != CAREFUL ? 4 : 2;
};

// Whether the map follows in the same launch.
template <int MODE>
constexpr bool MAPS = MODE == WITH_MAP || MODE == MEETING;

// Where a thread keeps what it has read until the map of the same launch; null if the map reads it again.
template <class T, int V, int MODE>
BN_DEV Vector<T, V>* kept_memory(const Job& job) {
  if (!MAPS<MODE> || !job.keep) return nullptr;
  return reinterpret_cast<Vector<T, V>*>(dynamic_memory(true)) + threadIdx.x;
}
