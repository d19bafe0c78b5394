// The job of a kernel on channels, and the walk of a thread: how it goes from each of its elements to the next.
//
// Kernels take one struct by value. Every field has eight bytes, and the same meaning in all kernels. jobs.py has the
// same list; a test compares the two. Fields that a kernel does not need are 0. C is the number of channels.

struct Job {
  // the array, and what is made of it
  const void* x;
  const void* dy;
  void* y;  // or dx
  const double* weight;  // (outer, inner)
  // (C,); null where absent; see `raw`
  const double* gamma;
  const double* beta;
  const double* mean;  // given in inference
  const double* var;
  // between reduction and map
  double* stats;         // (5, C): mean, var, rstd, scale, shift
  double* parts;         // (4, C): count, mean, m2, low
  double* sums;          // (2, C): sum dy, sum dy (x - mean)
  double* coefficients;  // (3, C): a, b, c of dx = a (dy + w (b (x - mean) + c))
  void* dgamma;  // see `give`
  void* dbeta;
  double* counts;  // the count, if only the device knows it: one number, or with count_step 1 one per channel
  // workspace
  double* partial;    // (chunks, parts, columns)
  unsigned* tickets;  // of join_last, for each group of tiles; all zero between launches
  int* infinite;  // set to 1 if x holds an infinity
  // of the rows that x was normalized by
  const double* row_mean;
  const double* row_rstd;
  // running statistics of a layer, which the forward moves (see moving.cu); null if it moves none
  void* running_mean;
  void* running_var;
  double* seen;
  int* counted;
  // options
  i64 skipna, count_step, gives, mode, wide, nonfinite, single;
  double slope, eps, count, momentum, ddof, uncounted;
  // geometry: shapes.py says what it means
  i64 channels, inner, columns, copies, steps, total;
  i64 run, jump, unit, base;
  i64 chunk, chunks, group, bunch, split, weight_step, keep, streams, row_channels;
};

BN_DEV i64 channel_of(const Job& job, i64 column) {
  const i64 c = job.inner == 1 ? column : quotient(column, job.inner);
  return job.copies == 1 ? c : c % job.channels;
}

// Rows of stats and coefficients.
BN_DEV double* row_of(double* table, const Job& job, int row) { return table + row * job.channels; }
enum { MEAN, VAR, RSTD, SCALE, SHIFT };
enum { A_OF_DX, B_OF_DX, C_OF_DX };

BN_DEV double count_of(const Job& job, i64 c) { return job.counts ? job.counts[job.count_step * c] : job.count; }

// The walk of a thread over its elements: its steps are `stride` positions apart. Position r of a column is r / run
// jumps and r % run units after the first element. Divisions are done once. If channels lie in rows, without RUNS, run
// is 1.

template <bool RUNS, class Int = i64>
struct Walk {
  Int at;   // element
  Int row;  // jumps so far
  Int rows, far;
  Int within, near, wrap, run;  // of the runs

  BN_MEMBER Walk(Int first, Int r, Int stride, Int of_run, Int unit, Int jump)
      : at(first), row(r), rows(stride), far(stride * jump), within(0), near(0), wrap(0), run(1) {
    if (RUNS) {
      run = of_run;
      row = quotient_of(r, run);
      within = r - row * run;
      at += within * unit;
      rows = quotient_of(stride, run);
      near = stride - rows * run;
      far = rows * jump + near * unit;
      wrap = jump - run * unit;
    }
    at += row * jump;
  }
  BN_MEMBER Walk(const Job& job, i64 column, i64 r, i64 stride)
      : Walk(column * job.base, r, stride, job.run, job.unit, job.jump) {}
  BN_MEMBER Walk(Int first, Int stride)
      : at(first), row(0), rows(0), far(stride), within(0), near(0), wrap(0), run(1) {}
  BN_MEMBER void next() {
    at += far;
    row += rows;
    if (!RUNS) return;
    within += near;
    if (within >= run) {
      within -= run;
      at += wrap;
      ++row;
    }
  }
};

// The same for a channel that is kept in shared memory: 32 bits suffice for what lies within it.
struct KeptWalk {
  i64 at, far, wrap;
  int within, near, run;

  BN_MEMBER KeptWalk(const Job& job, i64 column, i64 r, i64 stride) {
    const Walk<true> walk(job, column, r, stride);
    at = walk.at;
    far = walk.far;
    wrap = walk.wrap;
    within = (int)walk.within;
    near = (int)walk.near;
    run = (int)walk.run;
  }
  BN_MEMBER void next() {
    at += far;
    within += near;
    if (within >= run) {
      within -= run;
      at += wrap;
    }
  }
};

// The steps of a thread in chunk g, the first of them, and its column.
template <int K, int BX, int BY>
struct Place {
  i64 column, first, steps;
  bool inside;

  BN_MEMBER Place(const Job& job, i64 tile, i64 g) {
    const int tx = threadIdx.x % BX, ty = threadIdx.x / BX;
    const i64 end = least((g + 1) * job.chunk, job.steps);
    column = (tile * BX + tx) * K;
    first = g * job.chunk + ty;
    inside = column < job.columns;
    steps = inside && first < end ? (end - first + BY - 1) / BY : 0;
  }
  // use(k) for each column of this thread that has a value in the last, incomplete row of widened columns: seldom any.
  template <class Use>
  BN_MEMBER void in_last_row(const Job& job, i64 g, const Use& use) const {
    const i64 left = job.total - job.steps * job.columns;
    if (column >= left || threadIdx.x >= BX || g != job.chunks - 1) return;
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (column + k < left) use(k);
  }
};

// A block is BX threads wide, with K columns each, and BY threads high.
template <int K, int BX, int BY>
struct Tile {
  static constexpr int THREADS = BX * BY, WIDTH = BX * K;
  static constexpr int ROWS = BX >= 32 ? 1 : 32 / BX;  // of threads, in a warp
  static constexpr int WARPS = BY / ROWS;
  static constexpr int SIZE = 2 * (WARPS * WIDTH > THREADS ? WARPS * WIDTH : THREADS);  // doubles for the joins
  static constexpr bool SHARES = ROWS > 1 && K % ROWS == 0;  // lanes with the same K columns divide these among them
  static constexpr int OWN = SHARES ? K / ROWS : K;

  // The place of column `tx * K + k` in shared memory: threads side by side have places side by side.
  static BN_MEMBER int at(int tx, int k) { return k * BX + tx; }
  static BN_MEMBER int at(int column) { return at(column / K, column % K); }
};
