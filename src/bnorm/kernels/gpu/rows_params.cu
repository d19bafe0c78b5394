// The sums over rows for dbeta and dgamma, of dy and dy (x - mean) rstd, made in the pass that writes dx.

// Sums of columns, if all rows have the same ones. Every thread has its own sums in shared memory, of all columns that
// it works on. From time to time they are added to those of the block, which are float64 and lie in job.partial.
template <class A, int V, int STEPS, int THREADS>
struct ColumnSums {
  static constexpr int WIDE = Affine<A, V>::WIDE, PLANES = V / WIDE;
  static constexpr int BYTES = 2 * STEPS * V * THREADS * (int)sizeof(A);
  static constexpr int FLUSH = 32;  // rows of a thread: float sums of so many are exact enough
  Vector<A, WIDE>* memory;          // (2, STEPS, PLANES, THREADS): those of threads side by side lie side by side

  BN_MEMBER Vector<A, WIDE>& at(int sum, int j, int plane, int tid) const {
    return memory[((sum * STEPS + j) * PLANES + plane) * THREADS + tid];
  }
  BN_MEMBER void clear() const {
#pragma unroll
    for (int i = 0; i < 2 * STEPS * PLANES; ++i)
#pragma unroll
      for (int v = 0; v < WIDE; ++v) memory[i * THREADS + threadIdx.x].v[v] = 0;
  }
  BN_MEMBER void add(int sum, int j, const A (&values)[V]) const {
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) {
      Vector<A, WIDE> total = at(sum, j, plane, threadIdx.x);
#pragma unroll
      for (int v = 0; v < WIDE; ++v) total.v[v] += values[plane * WIDE + v];
      at(sum, j, plane, threadIdx.x) = total;
    }
  }
  // One thread adds up each column, over the rows side by side, in their order.
  BN_MEMBER void flush(const RowJob& job, int lanes, bool first) const {
    __syncthreads();
#pragma unroll 1
    for (i64 i = threadIdx.x; i < 2 * job.size; i += THREADS) {
      const int sum = i >= job.size;
      const i64 column = sum ? i - job.size : i, vector = quotient(column, V);
      const int j = (int)quotient(vector, lanes), lane = (int)vector - j * lanes, v = (int)(column - vector * V);
      double total = 0.0;
#pragma unroll 4
      for (int tid = lane; tid < THREADS; tid += lanes) total += at(sum, j, v / WIDE, tid).v[v % WIDE];
      double* to = job.partial + ((i64)blockIdx.x * 2 + sum) * job.size + column;
      *to = first ? total : *to + total;
    }
    __syncthreads();
    clear();
  }
};

// Sums of channels, if values side by side have a channel in common, so that a vector is of one channel. A block works
// on one group of channels. If rows are held, the sums of all vectors of a block, TILE of each thread, lie in shared
// memory, and are added to those of their channels: by `share` threads for each channel, a power of two, always in the
// same order. Of longer rows (TILE 0), each warp adds up what it has of a channel (RunSums), and has its own place for
// the sum.
template <class A, int V, int TILE, int THREADS>
struct ChannelSums {
  static constexpr int SIZE = TILE * THREADS;  // vectors of a tile
  // sums of vectors, (2, TILE, THREADS); double sums of channels, (channels, pieces, 2); gamma and beta
  unsigned char* memory;

  static BN_MEMBER int team_of(const RowJob& job) { return (int)least(job.share, 32); }  // threads in a warp
  static BN_MEMBER int pieces_of(const RowJob& job) { return (int)job.share / team_of(job); }
  BN_MEMBER A* vectors() const { return reinterpret_cast<A*>(memory); }
  BN_MEMBER double* totals() const { return reinterpret_cast<double*>(memory + 2 * SIZE * sizeof(A)); }

  static BN_MEMBER i64 sums_bytes(const RowJob& job) {
    return 2 * SIZE * (i64)sizeof(A) + 2 * job.channels * pieces_of(job) * (i64)sizeof(double);
  }
  static BN_MEMBER i64 bytes(const RowJob& job) {
    return sums_bytes(job) + (2 * job.channels * (i64)sizeof(A) + 15) / 16 * 16;
  }
  // Gamma of the group's channels, and behind it beta: all rows of the group need the same.
  BN_MEMBER A* affine(const RowJob& job) const { return reinterpret_cast<A*>(memory + sums_bytes(job)); }
  BN_MEMBER void begin(const RowJob& job, i64 group) const {
    for (int i = threadIdx.x; i < 2 * job.channels * pieces_of(job); i += THREADS) totals()[i] = 0.0;
    const i64 first = group * job.channels;
    for (int i = threadIdx.x; i < job.channels; i += THREADS) {
      affine(job)[i] = job.gamma ? (A)job.gamma[first + i] : (A)1;
      affine(job)[job.channels + i] = job.beta ? (A)job.beta[first + i] : (A)0;
    }
    __syncthreads();
  }
  BN_MEMBER void keep(int j, A to_beta, A to_gamma) const {
    vectors()[j * THREADS + threadIdx.x] = to_beta;
    vectors()[SIZE + j * THREADS + threadIdx.x] = to_gamma;
  }
  // Add the vectors of so many rows side by side.
  BN_MEMBER void add(const RowJob& job, int rows) const {
    const int length = (int)(job.inner / V);  // vectors of a channel in a row
    const int team = team_of(job), pieces = pieces_of(job), lane = threadIdx.x % team;
    const int lanes = (int)job.lanes, shift = __ffs(lanes) - 1, units = (int)job.channels * pieces;
    __syncthreads();
#pragma unroll 1
    for (int start = 0; start < units; start += THREADS / team) {
      const int unit = start + threadIdx.x / team, channel = unit / pieces, piece = unit % pieces;
      double v[2] = {0.0, 0.0};
      if (unit < units) {
        const int from = channel * length, part = (rows * length + pieces - 1) / pieces;
        const int stop = (int)least((piece + 1) * part, rows * length);
        int i = piece * part + lane, row = i / length, q = i - row * length;
        const int rows_on = team / length, on = team - rows_on * length;
#pragma unroll 2
        for (; i < stop; i += team) {
          const int vector = from + q, slot = (vector >> shift) * THREADS + row * lanes + (vector & (lanes - 1));
          v[0] += vectors()[slot];
          v[1] += vectors()[SIZE + slot];
          q += on;
          row += rows_on;
          if (q >= length) {
            q -= length;
            ++row;
          }
        }
      }
#pragma unroll 1
      for (int d = team / 2; d > 0; d /= 2)
#pragma unroll
        for (int p = 0; p < 2; ++p) v[p] += __shfl_xor_sync(~0u, v[p], d);
      if (unit < units && lane == 0) {
#pragma unroll
        for (int p = 0; p < 2; ++p) totals()[2 * (channel * pieces + piece) + p] += v[p];
      }
    }
    __syncthreads();
  }
  // Write the sums of the group's channels, as those of set `set`.
  BN_MEMBER void write(const RowJob& job, i64 set, i64 group) const {
    const int pieces = pieces_of(job);
    for (int i = threadIdx.x; i < 2 * job.channels; i += THREADS) {
      double total = 0.0;
      for (int piece = 0; piece < pieces; ++piece) total += totals()[2 * (i / 2 * pieces + piece) + i % 2];
      job.partial[(set * 2 + i % 2) * job.columns + group * job.channels + i / 2] = total;
    }
  }
};

// The sums of a warp for one channel after the other, of a row that is not held. They are added up in the type of
// computation until the next channel begins.
template <class A>
struct RunSums {
  static constexpr int FLUSH = 32;  // vectors of a thread: sums of so many are exact enough
  double* totals;  // (channels, pieces, 2); no other warp adds to this warp's piece
  int pieces, piece, channel, vectors;  // channel: below 0 before the first vector, when no place is this warp's
  A of_beta, of_gamma;

  BN_MEMBER RunSums(double* to, int many)
      : totals(to), pieces(many), piece(threadIdx.x / 32 & (many - 1)), channel(-1), vectors(0), of_beta(0),
        of_gamma(0) {}

  // Called by all lanes of a warp: add the sums of a vector of channel `at`, if this lane has one.
  BN_MEMBER void add(bool has, int at, A to_beta, A to_gamma) {
    if (++vectors == FLUSH) flush();
    while (true) {
      if (has && at == channel) {
        of_beta += to_beta;
        of_gamma += to_gamma;
        has = false;
      }
      const unsigned others = __ballot_sync(~0u, has);
      if (!others) return;
      flush();
      channel = __shfl_sync(~0u, at, __ffs(others) - 1);
    }
  }
  BN_MEMBER void flush() {
    const bool upper = threadIdx.x & 16;  // this half of the lanes adds up the second sum
    A own = (upper ? of_gamma : of_beta) + __shfl_xor_sync(~0u, upper ? of_beta : of_gamma, 16);
#pragma unroll
    for (int d = 8; d > 0; d /= 2) own += __shfl_xor_sync(~0u, own, d);
    if (channel >= 0 && threadIdx.x % 16 == 0) totals[2 * (channel * pieces + piece) + upper] += own;
    of_beta = of_gamma = 0;
    vectors = 0;
  }
};

// dbeta and dgamma from the partial sums: by the last blocks of the backward, or, if there are many columns, in another
// launch, by a block for each job.joined of them.
BN_DEV Items items_of(const RowJob& job) { return {job.partial, job.columns, job.columns, 1, 1, (int)job.sets}; }
BN_DEV void give_params(const RowJob& job, i64 column, const Sums& sum) {
  give(job.dbeta, job.gives, column, sum.total);
  give(job.dgamma, job.gives, column, sum.dot);
}

__global__ void __launch_bounds__(ROW_THREADS) rows_params(RowJob job) {
  BN_SHARED(double, memory, 2 * ROW_THREADS);
  const i64 first = blockIdx.x * job.joined;
  join_partials<Sums, ROW_THREADS>(
      items_of(job), first, least(first + job.joined, job.columns), memory,
      [&](i64 column, const Sums& sum) { give_params(job, column, sum); });
}
