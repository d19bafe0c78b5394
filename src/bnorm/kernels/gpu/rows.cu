// Layer, group, instance and RMS normalization: a row of contiguous values has a statistic of its own, and gamma and
// beta belong to the channel of a value. What their kernels share:
//
//     rows_forward            y, and mean and 1/std per row
//     rows_backward           dx, by two sums per row; PARAMS: whether partial sums of dgamma and dbeta are made too,
//                             and how
//     rows_params             joins those
//     rows_weighted_forward   the same of rows whose positions have weights
//     rows_weighted_backward
//
// <T, V, STEPS, WIDE, KIND, ...>: elements of type T are read V at a time. A row belongs to job.lanes lanes of a warp,
// or where it is WIDE to all threads of a block; blocks go on from row to row. A thread holds its STEPS vectors in
// registers, so that memory is read once. With STEPS 0, of rows that are too long for that, it reads them again.

enum { ROW_THREADS = 256, ROW_WARPS = 8 };

struct RowJob {
  const void* x;
  const void* dy;
  void* y;  // or dx
  const double* gamma;  // of the channels; null where absent
  const double* beta;
  double* mean;  // of the rows
  double* rstd;
  double* dgamma;
  double* dbeta;
  double* partial;  // (sets, 2, columns): sums of dy and dy (x - mean) rstd
  const double* weight;  // (N, L), for rows_weighted.cu
  // options
  i64 rule;  // BN_VARIANCE or BN_MEAN_SQUARE
  double slope, eps;
  // geometry: row_plans.py says what it means
  i64 rows, size, inner, groups, lanes, side, affine, streams, sets, columns, channels, share;
};

// Sums over the threads of a row, in all of them.
template <bool WIDE>
struct RowSums {
  double* memory;  // where WIDE, of 2 * 2 * ROW_WARPS numbers: half of it may still be read while the other is written
  int lanes, half;

  template <int P>
  BN_MEMBER void add(double (&v)[P]) {
    static_assert(P <= 2, "more sums than memory has room for");
#pragma unroll 1
    for (int d = lanes / 2; d > 0; d /= 2)
#pragma unroll
      for (int p = 0; p < P; ++p) v[p] += __shfl_xor_sync(~0u, v[p], d);
    if (!WIDE) return;
    double* to = memory + half * (2 * ROW_WARPS);
    half = 1 - half;
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (threadIdx.x % 32 == 0) to[p * ROW_WARPS + threadIdx.x / 32] = v[p];
    __syncthreads();
#pragma unroll
    for (int p = 0; p < P; ++p) {
      v[p] = 0.0;
#pragma unroll
      for (int i = 0; i < ROW_WARPS; ++i) v[p] += to[p * ROW_WARPS + i];
    }
  }
  BN_MEMBER double add(double v) {
    double only[1] = {v};
    add(only);
    return only[0];
  }
  // Whether it is so in any row that this warp takes part in: the warp then acts as one.
  BN_MEMBER bool any(bool so) const { return WIDE ? so : __any_sync(~0u, so); }
};

// Gamma and beta of V values side by side, in the type of computation. Where all rows have the same ones a block keeps
// them in shared memory.
template <class A, int V>
struct Affine {
  static constexpr int WIDE = V * sizeof(A) > 16 ? 16 / sizeof(A) : V;
  A gamma[V], beta[V];

  BN_MEMBER void get(const RowJob& job, const A* kept, i64 first, i64 i, bool both) {
    if (kept) {
      read(kept + i, gamma);
      if (both) read(kept + beta_at(job) + i, beta);
    } else if (job.inner == 1) {
#pragma unroll
      for (int v = 0; v < V; ++v) set(job, first + i + v, v, both);
    } else {
      set(job, first + (job.inner == job.size ? 0 : quotient(i, job.inner)), 0, both);
#pragma unroll
      for (int v = 1; v < V; ++v) {
        gamma[v] = gamma[0];
        beta[v] = beta[0];
      }
    }
  }
  static BN_MEMBER i64 beta_at(const RowJob& job) { return (job.size + 3) / 4 * 4; }
  static BN_MEMBER void read(const A* from, A (&to)[V]) {
#pragma unroll
    for (int w = 0; w < V; w += WIDE) {
      const Vector<A, WIDE> some = load<A, WIDE>(from + w);
#pragma unroll
      for (int v = 0; v < WIDE; ++v) to[w + v] = some.v[v];
    }
  }
  BN_MEMBER void set(const RowJob& job, i64 c, int v, bool both) {
    gamma[v] = job.gamma ? (A)job.gamma[c] : (A)1;
    if (both) beta[v] = job.beta ? (A)job.beta[c] : (A)0;
  }
};

template <class A>
BN_DEV const A* keep_affine(const RowJob& job, unsigned char* memory) {
  if (!job.affine) return nullptr;
  A* kept = reinterpret_cast<A*>(memory);
  const i64 beta = Affine<A, 1>::beta_at(job);
  for (i64 i = threadIdx.x; i < job.size; i += ROW_THREADS) {
    kept[i] = job.gamma ? (A)job.gamma[i] : (A)1;
    kept[beta + i] = job.beta ? (A)job.beta[i] : (A)0;
  }
  __syncthreads();
  return kept;
}

// What a thread works on: of the row `index`, from `offset` on, steps vectors that are `stride` values apart. Rows that
// are held in registers are short.
template <int V, int STEPS, bool WIDE>
struct Row {
  typedef typename Pick<(STEPS > 0), int, i64>::type Int;
  i64 index, start, channel;
  Int offset, stride, steps;
  bool inside, leads;

  // `first` is that of the block, whose rows are so far apart.
  BN_MEMBER Row(const RowJob& job, i64 first, i64 apart = 1) {
    const int tx = WIDE ? threadIdx.x : threadIdx.x & (int)(job.lanes - 1);
    const int slot = WIDE ? 0 : threadIdx.x / (int)job.lanes;
    index = first + slot * apart;
    inside = slot < job.side && index < job.rows;
    leads = inside && tx == 0;
    start = (inside ? index : 0) * job.size;
    offset = (Int)tx * V;
    stride = (Int)(WIDE ? ROW_THREADS : job.lanes) * V;
    steps = inside && offset < job.size ? (Int)quotient(job.size - offset + stride - 1, stride) : 0;
    channel = job.groups == 1 ? 0 : index % job.groups * quotient(job.size, job.inner);
  }
};

// Statistics ---------------------------------------------------------------------------------------------------------

struct RowStats {
  double mean, var;
};

// From sums about a center: s = sum (x - center), q = sum (x - center)^2.
BN_DEV RowStats row_stats(const RowJob& job, double center, double s, double q) {
  const double n = (double)job.size, m2 = q - s * (s / n);
  if (job.rule == BN_MEAN_SQUARE) return {0.0, q / n};  // center is 0
  return {center + s / n, (m2 < 0.0 ? 0.0 : m2) / n};
}

// The same once more in float64, for the rows whose squares left the range of float: all in two passes over registers.
template <class T, int V, int STEPS, bool WIDE>
BN_DEV RowStats exact_stats(
    const RowJob& job, const Row<V, STEPS, WIDE>& row, const Vector<T, V> (&t)[STEPS], double center,
    RowSums<WIDE>& sums) {
  double s = 0.0, both[2] = {0.0, 0.0};
  const auto each = [&](const auto& use) {
#pragma unroll
    for (int j = 0; j < STEPS; ++j)
      if (j < row.steps) {
#pragma unroll
        for (int v = 0; v < V; ++v) use(exact(widen(t[j].v[v])));
      }
  };
  if (job.rule != BN_MEAN_SQUARE) {
    each([&](double value) { s += value - center; });
    center += sums.add(s) / (double)job.size;
  }
  each([&](double value) {
    both[0] += value - center;
    both[1] = fma(value - center, value - center, both[1]);
  });
  sums.add(both);
  return row_stats(job, center, both[0], both[1]);
}

template <class T, int V, int STEPS, bool WIDE>
BN_DEV RowStats stats_of(
    const RowJob& job, const Row<V, STEPS, WIDE>& row, const Vector<T, V> (&t)[STEPS], RowSums<WIDE>& sums) {
  typedef typename Compute<T>::type A;
  const bool about_zero = job.rule == BN_MEAN_SQUARE || job.size == 0;
  const A first = about_zero ? (A)0 : (A)widen(static_cast<const T*>(job.x)[row.start]);
  A center = first;
  const auto each = [&](const auto& use) {
#pragma unroll
    for (int j = 0; j < STEPS; ++j)
      if (j < row.steps) {
#pragma unroll
        for (int v = 0; v < V; ++v) use(widen(t[j].v[v]));
      }
  };
  if (job.rule != BN_MEAN_SQUARE) {
    A s = 0;
    each([&](A value) { s += value - first; });
    const A step = (A)(sums.add(s) / (double)job.size);
    if (step != 0) center += step;  // of equal values, which may be subnormal, the first one stays
  }
  A s = 0, q = 0;
  each([&](A value) {
    const A d = value - center;
    s += d;
    q = fused(d, d, q);
  });
  double both[2] = {s, q};
  sums.add(both);
  RowStats found = row_stats(job, exact(center), both[0], both[1]);
  if (Compute<T>::in_range) return found;
  const bool bad = row.inside && !(both[1] >= 1e-30 * (double)job.size && bn_finite(both[1]));
  if (rarely(sums.any(bad))) {  // small squares are 0 of float; so are those of a constant row, which is exact as it is
    double off = 0.0;
    each([&](A value) { off += !same(value, center); });
    const bool again = sums.add(off) != 0.0 && bad;
    if (sums.any(again)) {
      const RowStats better = exact_stats<T, V, STEPS, WIDE>(job, row, t, exact(first), sums);
      if (again) found = better;
    }
  }
  return found;
}

// Of a long row, from memory.
template <class T, int V>
BN_DEV RowStats stats_of(const RowJob& job, const Row<V, 0, true>& row, RowSums<true>& sums) {
  typedef typename Compute<T>::type A;
  State<A, 1> state;
  const T* x = static_cast<const T*>(job.x) + row.start;
  const Walk<false> walk(row.offset, row.stride);
  add_steps<T, V, 1, ROW_THREADS, false>(x, walk, row.steps, state, (Vector<T, V>*)nullptr);
  const Moments own = state.get(0);
  const double center = exact(widen(x[0])), n = (double)job.size;
  const double own_away = own.center - center + own.away, away = sums.add(own.n == 0.0 ? 0.0 : own.n * own_away) / n;
  const double gap = own_away - away, mean = center + away;
  const double var = sums.add(own.n == 0.0 ? 0.0 : own.m2 + gap * own.n * gap) / n;
  if (job.rule == BN_MEAN_SQUARE) return {0.0, var + mean * mean};
  return {mean, var};
}

// The vectors of a row, one after the other: use(vector j of this thread, its first value in the row).
template <int V, int STEPS, bool WIDE, class Use>
BN_DEV void for_vectors(const Row<V, STEPS, WIDE>& row, const Use& use) {
  if (STEPS > 0) {
#pragma unroll
    for (int j = 0; j < STEPS; ++j)
      if (j < row.steps) use(j, row.offset + j * row.stride);
  } else {
#pragma unroll 2
    for (i64 j = 0; j < row.steps; ++j) use(0, row.offset + j * row.stride);
  }
}
