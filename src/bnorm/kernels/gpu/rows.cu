// Layer, group, instance and RMS normalization: a row of contiguous values has a statistic of its own, and gamma and
// beta belong to the channel of a value. What their kernels share:
//
//     rows_forward            y, and mean and 1/std per row
//     rows_backward           dx, by two sums per row; PARAMS: whether partial sums of dgamma and dbeta are made too,
//                             and how
//     rows_params             joins these partial sums
//     rows_weighted_forward   the same for rows whose positions have weights
//     rows_weighted_backward
//
// <T, V, STEPS, WIDE, KIND, ...>: elements of type T are read V at a time. A row belongs to job.lanes threads side by
// side, a power of two; if it is WIDE, to several warps. Blocks go on from row to row. A thread holds its STEPS vectors
// in registers, so that memory is read once. With STEPS 0, for rows too long for that, it keeps its vectors in shared
// memory, and while a row is mapped the block's next row is fetched into its place; or it reads its vectors again.

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

// Copy gamma and beta for a backward, as they may have changed by then. Each block copies a part.
BN_DEV void keep_params(const RowJob& job) {
  for (i64 c = (i64)blockIdx.x * blockDim.x + threadIdx.x; c < job.groups * job.channels;
       c += (i64)gridDim.x * blockDim.x) {
    if (job.gamma_kept) job.gamma_kept[c] = job.gamma[c];
    if (job.beta_kept) job.beta_kept[c] = job.beta[c];
  }
}

// Which rows a block works on: those of its group, or all if `groups` is 1. Late blocks, at least as many as early
// ones, share the last rows. They begin where early blocks have ended, so that slower processors get less to do. All of
// this is computed where it is used, as there are few registers.
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

// Gamma and beta of V values side by side, in the type of computation. If all rows have the same ones, a block keeps in
// shared memory what its kernel reads: gamma, or both. If channels have several values each, a vector is of one
// channel.
enum { KEPT, OF_GROUP, NOT_KEPT, ANYWHERE };
enum { AS_GIVEN = -1 };   // for kernels that read both: the job says whether there is a beta
constexpr int ZEROS = 8;  // kept in place of beta if there is only gamma: as many as a vector has at most

// Whether a block keeps a beta: known to the compiler where it can be, as the choice costs registers.
template <int READ>
BN_DEV bool has_beta(const RowJob& job) { return (READ == AS_GIVEN ? job.affine : READ) == GAMMA_AND_BETA; }

template <class A, int V>
struct Affine {
  static constexpr int WIDE = V * sizeof(A) > 16 ? 16 / sizeof(A) : V, PLANES = V / WIDE;
  A gamma[V], beta[V];

  template <int FROM, int READ, class Int>
  BN_MEMBER void get(const RowJob& job, const A* kept, i64 first, Int i) {
    constexpr bool both = READ != GAMMA_ALONE;
    if (FROM == KEPT || (FROM == ANYWHERE && kept)) {
      const bool there = has_beta<READ>(job);
      read(kept + i / PLANES, (int)job.size / PLANES, gamma);
      if (both) read(kept + beta_at(job) + (there ? i / PLANES : 0), there ? (int)job.size / PLANES : WIDE, beta);
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
  // The place of number i of a row. Numbers are kept in planes, each of which has as many numbers of a vector as one
  // load takes, so that the loads of threads side by side use all banks.
  static BN_MEMBER int place(int size, int i) {
    return PLANES == 1 ? i : i % V / WIDE * (size / PLANES) + i / V * WIDE + i % WIDE;
  }
  static BN_MEMBER void read(const A* from, int plane, A (&to)[V]) {
#pragma unroll
    for (int p = 0; p < PLANES; ++p) {
      const Vector<A, WIDE> some = load<A, WIDE>(from + p * plane);
#pragma unroll
      for (int v = 0; v < WIDE; ++v) to[p * WIDE + v] = some.v[v];
    }
  }
  static BN_MEMBER void fetch(const double* from, A (&to)[V], A otherwise) {
#pragma unroll
    for (int v = 0; v < V; ++v) to[v] = otherwise;
    constexpr int MANY = V < 4 ? V : 4;  // not all at once, as each takes two registers
#pragma unroll 1
    for (int some = 0; from && some < V; some += MANY) {
#pragma unroll
      for (int v = 0; v < V - MANY; ++v) to[v] = to[v + MANY];
#pragma unroll
      for (int v = 0; v < MANY; ++v) to[V - MANY + v] = (A)from[some + v];
    }
  }
  // Those of channel c. `from` has the gammas of all channels side by side, and behind them the betas.
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
  const i64 gamma = Affine<A, 1>::beta_at(job), beta = has_beta<READ>(job) ? gamma : ZEROS;
  return job.affine == NO_AFFINE ? 0 : (gamma + beta) * (i64)sizeof(A);
}

// The same for all channels of all groups, if channels have several values each.
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

// All blocks read gamma and beta when they begin, most of them at the same time. Each starts at another place; else
// parts of the second-level cache would serve all blocks one after the other.
template <class A, int V, int READ>
BN_DEV const A* keep_affine(const RowJob& job, unsigned char* memory) {
  if (job.affine == NO_AFFINE) return nullptr;
  typedef Affine<A, V> Of;
  A* kept = reinterpret_cast<A*>(memory);
  A* beta = kept + Of::beta_at(job);
  const int size = (int)job.size, threads = blockDim.x, turns = quotient_of(size + threads - 1, threads);
  const int begin = (int)(blockIdx.x % (unsigned)turns);
#pragma unroll 8
  for (int turn = 0; turn < turns; ++turn) {
    const int own = begin + turn, i = (own < turns ? own : own - turns) * threads + (int)threadIdx.x;
    if (i >= size) continue;
    const int at = Of::place(size, i);
    kept[at] = job.gamma ? (A)job.gamma[i] : (A)1;
    if (READ != GAMMA_ALONE && has_beta<READ>(job)) beta[at] = job.beta ? (A)job.beta[i] : (A)0;
  }
  if (READ != GAMMA_ALONE && !has_beta<READ>(job) && threadIdx.x < ZEROS) beta[threadIdx.x] = 0;
  __syncthreads();
  return kept;
}

// How many of its STEPS vectors a thread has for sure: all of a WHOLE row, and most of another, as a row belongs to as
// few lanes as can hold it (row_plans.py). To check each vector would take a fifth of a backward. A row that is read by
// single values may have only one, or none. For a long row, 1 means that it is kept.
template <class T, int V, int STEPS, int WIDE, bool WHOLE>
constexpr int SURE_STEPS = STEPS == 0 || WHOLE  ? (STEPS > 0 ? STEPS : WHOLE)
                           : V == 1 && !WIDE    ? 0
                           : V * sizeof(T) < 16 ? STEPS / 2
                                                : STEPS - (STEPS == 8 ? 2 : 1);

// What a thread works on: the vectors of row `index` from `offset` on, `stride` values apart.
template <int V, int STEPS, int WIDE, int SURE = 0>
struct Row {
  typedef typename Pick<(STEPS > 0 || SURE > 0), int, i64>::type Int;
  i64 index, start, channel;
  Int offset, stride, size;  // size: 0 if there is no such row
  bool inside, leads;

  // `first` is the first row of the block, whose rows are `apart` from each other.
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
  // Take only the part of this warp: vectors side by side, so that it has few channels.
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

// The channel, within its row, of each vector of a thread in turn.
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

// Call use(where the thread holds it, its first value in the row, which one it is) for each vector of a thread. ROLLED:
// all vectors share one copy of the code, which always finds its vector in place 0, as turn() rotates what is held.
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

// The same if use needs gamma and beta: use(..., a Number that tells where these are). They are nearly always kept.
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

// Call use(which of these, which step) for MANY steps from `step` on, of a row that is not held. If one call loads all
// of them and the next uses them, the loads overlap.
template <int MANY, class Int, class Use>
BN_DEV void for_some(Int step, Int steps, const Use& use) {
#pragma unroll
  for (int u = 0; u < MANY; ++u)
    if (step + u < steps) use(u, step + u);
}

// Rotate what a thread holds by one place.
template <class H, int STEPS>
BN_DEV void turned(H (&held)[STEPS]) {
  const H first = held[0];
#pragma unroll
  for (int j = 1; j < STEPS; ++j) held[j - 1] = held[j];
  held[STEPS - 1] = first;
}

// Smooth activations take a hundred instructions a value: unrolled for a row, these would not fit into the instruction
// cache, nor what they compute into registers.
template <int KIND>
constexpr bool ROLLED = KIND >= BN_SILU;
