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
// <T, V, STEPS, WIDE, KIND, ...>: elements of type T are read V at a time. A row belongs to job.lanes threads side by
// side, a power of two: those of several warps where it is WIDE. Blocks go on from row to row. A thread holds its STEPS
// vectors in registers, so that memory is read once. With STEPS 0, of rows that are too long for that, it keeps them in
// shared memory, where what is mapped leaves its place to the block's next row, which is fetched meanwhile; or it reads
// them again.

struct RowJob {
  const void* x;
  const void* dy;
  void* y;  // or dx
  const double* gamma;  // of the channels; null where absent
  const double* beta;
  double* mean;  // of the rows
  double* rstd;
  void* dgamma;  // see `give`
  void* dbeta;
  double* partial;  // (sets, 2, columns): sums of dy and dy (x - mean) rstd
  const double* weight;  // (N, L), for rows_weighted.cu
  double* gamma_kept;  // copies of gamma and beta; null where absent
  double* beta_kept;
  unsigned* tickets;  // of join_last; all zero between launches
  // options
  i64 rule;  // BN_VARIANCE or BN_MEAN_SQUARE
  i64 gives;
  double slope, eps, inverse;  // 1 / size
  // geometry: row_plans.py says what it means
  i64 rows, size, inner, groups, lanes, side, affine, streams, sets, columns, channels, share, whole, keep;
  i64 bunch, joined, late, halvings;
};

// What a backward will need of gamma and beta, which may have changed by then: a part by each block.
BN_DEV void keep_params(const RowJob& job) {
  for (i64 c = (i64)blockIdx.x * blockDim.x + threadIdx.x; c < job.groups * job.channels;
       c += (i64)gridDim.x * blockDim.x) {
    if (job.gamma_kept) job.gamma_kept[c] = job.gamma[c];
    if (job.beta_kept) job.beta_kept[c] = job.beta[c];
  }
}

// Which rows a block works on: of its group, or with `groups` 1 of all. Late blocks, as many as early ones or more,
// share the last rows. They begin where early blocks have ended, so that slower processors get less to do. All of this
// is computed where it is used, as there are few registers.
BN_DEV unsigned early_blocks(const RowJob& job) { return gridDim.x >> job.halvings; }
BN_DEV bool is_early(const RowJob& job) { return blockIdx.x < early_blocks(job); }
BN_DEV i64 first_row(const RowJob& job, i64 groups) {
  const unsigned block = is_early(job) ? blockIdx.x : blockIdx.x - early_blocks(job);
  const i64 set = quotient(block, groups);
  return (is_early(job) ? 0 : job.late) + set * job.side * groups + (block - set * groups);
}
BN_DEV i64 rows_end(const RowJob& job) { return is_early(job) ? job.late : job.rows; }
BN_DEV i64 rows_apart(const RowJob& job) {  // from one turn to the next
  return (is_early(job) ? early_blocks(job) : gridDim.x - early_blocks(job)) * job.side;
}

// Gamma and beta of V values side by side, in the type of computation. Where all rows have the same ones a block keeps
// in shared memory those of them that its kernel reads: gamma, or both. Where channels have several values each, a
// vector is of one of them.
enum { KEPT, OF_GROUP, NOT_KEPT, ANYWHERE };
enum { AS_GIVEN = -1 };   // a kernel that reads both, of which the job says which there are
constexpr int ZEROS = 8;  // kept in place of beta where there is only gamma: as many as a vector has at most

// What a block keeps: known to the compiler where it can be, as the choice costs registers.
template <int READ>
BN_DEV int affine_of(const RowJob& job) { return READ == AS_GIVEN ? job.affine : READ; }

template <class A, int V>
struct Affine {
  static constexpr int WIDE = V * sizeof(A) > 16 ? 16 / sizeof(A) : V;
  A gamma[V], beta[V];

  template <int FROM, int READ, class Int>
  BN_MEMBER void get(const RowJob& job, const A* kept, i64 first, Int i) {
    constexpr bool both = READ != GAMMA_ALONE;
    if (FROM == KEPT || (FROM == ANYWHERE && kept)) {
      read(kept + i, gamma);
      if (both) read(kept + beta_at(job) + (affine_of<READ>(job) == GAMMA_AND_BETA ? i : 0), beta);
    } else if (FROM == OF_GROUP) {
      pick(kept, job.channels, job.inner == job.size ? (Int)0 : quotient_of(i, (Int)job.inner), both);
      spread();
    } else if (job.inner == 1) {
      fetch(job.gamma ? job.gamma + first + i : nullptr, gamma, 1);
      if (both) fetch(job.beta ? job.beta + first + i : nullptr, beta, 0);
    } else {
      set(job, first + (job.inner == job.size ? 0 : quotient_of(i, (Int)job.inner)), both);
      spread();
    }
  }
  BN_MEMBER void spread() {
#pragma unroll
    for (int v = 1; v < V; ++v) {
      gamma[v] = gamma[0];
      beta[v] = beta[0];
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
  static BN_MEMBER void fetch(const double* from, A (&to)[V], A otherwise) {
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = otherwise;
    constexpr int MANY = V < 4 ? V : 4;  // not all at once: each takes two registers
#pragma unroll 1
    for (int some = 0; from && some < V; some += MANY) {
#pragma unroll
      for (int v = 0; v < V - MANY; ++v) to[v] = to[v + MANY];
#pragma unroll
      for (int v = 0; v < MANY; ++v) to[V - MANY + v] = (A)from[some + v];
    }
  }
  // Of one of so many channels, whose gamma lies side by side, and behind it beta.
  BN_MEMBER void pick(const A* from, i64 channels, i64 c, bool both) {
    gamma[0] = from[c];
    if (both) beta[0] = from[channels + c];
  }
  BN_MEMBER void set(const RowJob& job, i64 c, bool both) {
    gamma[0] = job.gamma ? (A)job.gamma[c] : (A)1;
    if (both) beta[0] = job.beta ? (A)job.beta[c] : (A)0;
  }
};

template <class A, int READ>
BN_DEV i64 affine_bytes(const RowJob& job) {
  const i64 gamma = Affine<A, 1>::beta_at(job), beta = affine_of<READ>(job) == GAMMA_AND_BETA ? gamma : ZEROS;
  return job.affine == NO_AFFINE ? 0 : (gamma + beta) * (i64)sizeof(A);
}

// The same of all channels of all groups, which have several values each.
template <class A>
BN_DEV i64 channels_bytes(const RowJob& job) { return (2 * job.groups * job.channels * (i64)sizeof(A) + 15) / 16 * 16; }

template <class A>
BN_DEV const A* keep_channels(const RowJob& job, unsigned char* memory) {
  const i64 channels = job.groups * job.channels;
  A* kept = reinterpret_cast<A*>(memory);
  for (i64 c = threadIdx.x; c < channels; c += blockDim.x) {
    kept[c] = job.gamma ? (A)job.gamma[c] : (A)1;
    kept[channels + c] = job.beta ? (A)job.beta[c] : (A)0;
  }
  __syncthreads();
  return kept;
}

template <class A, int READ>
BN_DEV const A* keep_affine(const RowJob& job, unsigned char* memory) {
  if (job.affine == NO_AFFINE) return nullptr;
  A* kept = reinterpret_cast<A*>(memory);
  const i64 beta = Affine<A, 1>::beta_at(job), betas = affine_of<READ>(job) == GAMMA_AND_BETA ? job.size : ZEROS;
#pragma unroll 8
  for (i64 i = threadIdx.x; i < job.size; i += blockDim.x) {
    kept[i] = job.gamma ? (A)job.gamma[i] : (A)1;
    if (READ != GAMMA_ALONE && i < betas) kept[beta + i] = job.beta ? (A)job.beta[i] : (A)0;
  }
  __syncthreads();
  return kept;
}

// How many of its STEPS vectors every thread has: of a WHOLE row all, and of others most, as a row belongs to as few
// lanes as have room for it (row_plans.py). Asking for each would take a fifth of a backward. A row that is read by
// single values may have only one, or none. 1 of a long row: it is kept.
template <class T, int V, int STEPS, int WIDE, bool WHOLE>
constexpr int SURE_STEPS = STEPS == 0 || WHOLE  ? (STEPS > 0 ? STEPS : WHOLE)
                           : V == 1 && !WIDE    ? 0
                           : V * sizeof(T) < 16 ? STEPS / 2
                                                : STEPS - (STEPS == 8 ? 2 : 1);

// What a thread works on: of the row `index`, vectors that are `stride` values apart, from `offset` on.
template <int V, int STEPS, int WIDE, int SURE = 0>
struct Row {
  typedef typename Pick<(STEPS > 0 || SURE > 0), int, i64>::type Int;
  i64 index, start, channel;
  Int offset, stride, size;  // size: 0 where there is no such row
  bool inside, leads;

  // `first` is that of the block, whose rows are so far apart.
  BN_MEMBER Row(const RowJob& job, i64 first, i64 apart = 1) {
    const int lanes = (int)job.lanes, tx = threadIdx.x & (lanes - 1), slot = threadIdx.x / lanes;
    index = first + slot * apart;
    inside = slot < job.side && index < job.rows;
    leads = inside && tx == 0;
    start = (inside ? index : 0) * job.size;
    offset = (Int)tx * V;
    stride = (Int)(lanes * V);
    size = inside ? (Int)job.size : (Int)0;
    channel = job.groups == 1 ? 0 : (index - quotient(index, job.groups) * job.groups) * job.channels;
  }
  // Only the part of this warp, whose vectors lie side by side, so that it has few channels.
  template <int WARPS>
  BN_MEMBER void part_of_warp() {
    const Int part = (size / V + 8 * WARPS - 1) / (8 * WARPS) * (8 * V), warp = (Int)(threadIdx.x / 32);
    offset = warp * part + (Int)(threadIdx.x % 32) * V;
    stride = (Int)(32 * V);
    if ((warp + 1) * part < size) size = (warp + 1) * part;
  }
  BN_MEMBER bool has(Int j) const { return j < SURE || at(j) < size; }
  BN_MEMBER Int steps() const { return offset < size ? quotient_of(size - offset + stride - 1, stride) : (Int)0; }
  BN_MEMBER Int at(Int j) const { return offset + j * stride; }
};

// The channel in its row of one vector of a thread after the other.
template <class Int>
struct ChannelWalk {
  Int at, within, rows, near, inner;

  template <class R>
  BN_MEMBER ChannelWalk(const RowJob& job, const R& row) : inner((Int)job.inner) {
    at = quotient_of(row.offset, inner);
    within = row.offset - at * inner;
    rows = quotient_of(row.stride, inner);
    near = row.stride - rows * inner;
  }
  BN_MEMBER void next() {
    at += rows;
    within += near;
    if (within >= inner) {
      within -= inner;
      ++at;
    }
  }
};

// Statistics ---------------------------------------------------------------------------------------------------------

struct RowStats {
  double mean, var;
};

// From sums about a center: s = sum (x - center), q = sum (x - center)^2. Of a mean square center is 0.
BN_DEV RowStats row_stats(bool squares, double inverse, double center, double s, double q) {
  const double away = s * inverse, m2 = q - s * away;
  if (squares) return {0.0, q * inverse};
  return {center + away, (m2 < 0.0 ? 0.0 : m2) * inverse};
}

// use(value) of those that a thread holds.
template <class T, int V, int STEPS, int WIDE, int SURE, class Use>
BN_DEV void for_values(const Row<V, STEPS, WIDE, SURE>& row, const Vector<T, V> (&held)[STEPS], const Use& use) {
#pragma unroll
  for (int j = 0; j < STEPS; ++j)
    if (row.has(j)) {
#pragma unroll
      for (int v = 0; v < V; ++v) use(value(held[j], v));
    }
}

// The same once more in float64, for rows whose squares left the range of float, or lost digits as the center is far
// from the mean: in two passes over memory. As it is rare, it is no part of the code around it, which would have too
// few registers.
template <class T, int V, int WIDE>
static __device__ __noinline__ RowStats exact_stats(
    const T* x, int offset, int stride, int size, double center, double inverse, bool squares, double* memory,
    int lanes, int half) {
  RowSums<WIDE> sums = {memory, lanes, half};  // used twice, so that the half of the caller is the same again
  double s = 0.0, both[2] = {0.0, 0.0};
  const auto for_all = [&](const auto& use) {
#pragma unroll 1
    for (int i = offset; i < size; i += stride) {
#pragma unroll 1
      for (int v = 0; v < V; ++v) use(exact(widen(x[i + v])));
    }
  };
  for_all([&](double value) { s += value - center; });
  s = sums.add(s) * inverse;
  if (!squares) center += s;
  for_all([&](double value) {
    const double d = value - center;
    both[0] += d;
    both[1] = fma(d, d, both[1]);
  });
  sums.add(both);
  return row_stats(squares, inverse, center, both[0], both[1]);
}

template <class T, int V, int STEPS, int WIDE, int SURE, class A>
BN_DEV RowStats stats_of(
    const RowJob& job, const Row<V, STEPS, WIDE, SURE>& row, const T* x, const Vector<T, V> (&held)[STEPS], A center,
    RowSums<WIDE>& sums) {
  A s = 0, q = 0;
  for_values(row, held, [&](A value) {
    const A d = value - center;
    s += d;
    q = fused(d, d, q);
  });
  double both[2] = {s, q};
  sums.add(both);
  const bool squares = job.rule == BN_MEAN_SQUARE;
  RowStats found = row_stats(squares, job.inverse, exact(center), both[0], both[1]);
  const double square = both[1] * job.inverse;
  const bool far = square > FAR * found.var, small = !Compute<T>::in_range && !(square >= 1e-30 && square <= 1e300);
  const bool bad = row.inside && (far || small);
  if (rarely(sums.any(bad))) {  // small squares are 0 of float; so are those of a constant row, which is exact as it is
    double off = 0.0;
    for_values(row, held, [&](A value) { off += !same(value, center); });
    const bool again = sums.add(off) != 0.0 && bad;
    if (sums.any(again)) {
      const RowStats better = exact_stats<T, V, WIDE>(
          x, row.offset, row.stride, row.size, exact(center), job.inverse, squares, sums.memory, sums.lanes,
          sums.half);
      if (again) found = better;
    }
  }
  return found;
}

// Of a long row, which a block has to itself, from where it is KEPT, or else from memory. The second time in float64.
template <class T, int V, int WIDE, int KEPT, class A>
BN_DEV RowStats stats_of(
    const RowJob& job, const Row<V, 0, WIDE, KEPT>& row, const T* x, const Vector<T, V>* kept, A center,
    RowSums<WIDE>& sums) {
  bool far = false;
  const auto find = [&](auto about) {
    const decltype(about) only[1] = {about};
    Sums sum[1] = {{0.0, 0.0}};
    if constexpr (KEPT) {
      const Walk<false, int> walk(0, THREADS_OF<WIDE> * V);
      add_about<T, V, 1>(reinterpret_cast<const T*>(kept), walk, row.steps(), only, sum, Groups<BATCH>());
    } else {
      const Walk<false> walk(row.offset, row.stride);
      add_about<T, V, 1>(x, walk, row.steps(), only, sum, AllThere());
    }
    double both[2] = {sum[0].total, sum[0].dot};
    sums.add(both);
    const RowStats found = row_stats(job.rule == BN_MEAN_SQUARE, job.inverse, exact(about), both[0], both[1]);
    far = both[1] * job.inverse > FAR * found.var;
    return found;
  };
  const RowStats first = find(center);
  return rarely(far) ? find(first.mean) : first;
}

// The vectors of a row, one after the other: use(where the thread holds it, its first value in the row, which one it
// is). ROLLED: there is one text for all of them, which always finds its vector in place 0, as `turn` moves what is
// held on.
template <bool ROLLED, int V, int STEPS, int WIDE, int SURE, class Use, class Turn>
BN_DEV void for_vectors(const Row<V, STEPS, WIDE, SURE>& row, const Use& use, const Turn& turn) {
  if constexpr (ROLLED) {
#pragma unroll 1
    for (int j = 0; j < STEPS; ++j) {
      if (row.has(j)) use(0, row.at(j), j);
      turn();
    }
  } else {
#pragma unroll
    for (int j = 0; j < STEPS; ++j)
      if (row.has(j)) use(j, row.at(j), j);
  }
}
template <int V, int STEPS, int WIDE, int SURE, class Use>
BN_DEV void for_vectors(const Row<V, STEPS, WIDE, SURE>& row, const Use& use) {
  for_vectors<false>(row, use, [] {});
}

// The same of what needs gamma and beta: use(..., a number whose type says where these are). Seldom are they not kept.
template <bool ROLLED, int V, int STEPS, int WIDE, int SURE, class A, class Use, class Turn>
BN_DEV void for_affine(const Row<V, STEPS, WIDE, SURE>& row, const A* kept, const Use& use, const Turn& turn) {
  if constexpr (ROLLED) {
    for_vectors<true>(row, [&](int own, auto i, int j) { use(own, i, j, Number<ANYWHERE>()); }, turn);
  } else if (kept) {
    for_vectors<false>(row, [&](int own, auto i, int j) { use(own, i, j, Number<KEPT>()); }, turn);
  } else {
    for_vectors<true>(row, [&](int own, auto i, int j) { use(own, i, j, Number<NOT_KEPT>()); }, turn);
  }
}

// MANY steps of a row that is not held, from `step` on: use(which of these, which step). Loads of all of them are under
// way at a time where they are taken before the first is used.
template <int MANY, class Int, class Use>
BN_DEV void for_some(Int step, Int steps, const Use& use) {
#pragma unroll
  for (int u = 0; u < MANY; ++u)
    if (step + u < steps) use(u, step + u);
}

template <class H, int STEPS>
BN_DEV void turned(H (&held)[STEPS]) {
  const H first = held[0];
#pragma unroll
  for (int j = 1; j < STEPS; ++j) held[j - 1] = held[j];
  held[STEPS - 1] = first;
}

// Smooth activations take a hundred instructions a value: unrolled, those of a row would not fit into the cache of
// instructions, nor what they compute into registers.
template <int KIND>
constexpr bool ROLLED = KIND >= BN_SILU;
