// How the threads of a grid join their sums: plain additions in a fixed order, over the rows of a tile, and then over
// the partial sums of the blocks, by the block that comes last.
//
// Moments are joined about a center that all of them share: first the counts and the distances of the means from it,
// which give the mean of all, then m2 with the distances from that. One division per channel, no chain of merges.

// Threads of a block are BX columns (of K channels) wide and BY high.
template <int K, int BX, int BY>
struct Tile {
  static constexpr int THREADS = BX * BY, WIDTH = BX * K;
  static constexpr int ROWS = BX >= 32 ? 1 : 32 / BX;  // that share a warp
  static constexpr int WARPS = BY / ROWS;
  static constexpr int SIZE = 2 * (WARPS * WIDTH > THREADS ? WARPS * WIDTH : THREADS);  // doubles for what follows
};

struct Moments {  // of the values of one channel; the mean is center + away
  double n, center, m2, away;
};
struct Sums {
  double total, dot;
};

// The center of the first of these threads that has any value: of tid % stride, and on in steps of stride.
template <int THREADS>
BN_DEV double first_center(double n, double center, int stride, double* memory) {
  memory[threadIdx.x] = n;
  memory[THREADS + threadIdx.x] = center;
  __syncthreads();
  int at = threadIdx.x % stride;
  while (memory[at] == 0.0 && at + stride < THREADS) at += stride;
  const double found = memory[THREADS + at];
  __syncthreads();
  return found;
}

// Add up P numbers per column of the tile: thread k has those of column k in `total`, the others nothing. `memory` is
// free behind the next barrier.
template <int P, int K, int BX, int BY>
BN_DEV void add_rows(double (&mine)[K][P], double* memory, double (&total)[P]) {
  typedef Tile<K, BX, BY> tile;
  const int tid = threadIdx.x, tx = tid % BX, ty = tid / BX;
#pragma unroll
  for (int k = 0; k < K; ++k)
#pragma unroll
    for (int p = 0; p < P; ++p) {
      double sum = mine[k][p];
#pragma unroll
      for (int d = 16; d >= BX; d >>= 1) sum += __shfl_down_sync(~0u, sum, d);
      if (ty % tile::ROWS == 0) memory[(p * tile::WARPS + ty / tile::ROWS) * tile::WIDTH + tx * K + k] = sum;
    }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < P; ++p) total[p] = 0.0;
  if (tid < tile::WIDTH) {
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll 8
      for (int w = 0; w < tile::WARPS; ++w) total[p] += memory[(p * tile::WARPS + w) * tile::WIDTH + tid];
  }
}

template <int K, int BX, int BY>
BN_DEV Sums join_block(Sums (&mine)[K], double* memory) {
  double parts[K][2], total[2];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    parts[k][0] = mine[k].total;
    parts[k][1] = mine[k].dot;
  }
  add_rows<2, K, BX, BY>(parts, memory, total);
  return {total[0], total[1]};
}

template <int K, int BX, int BY>
BN_DEV Moments join_block(Moments (&mine)[K], double* memory) {
  typedef Tile<K, BX, BY> tile;
  const int tid = threadIdx.x, tx = tid % BX;
  BN_SHARED(double, shared, 2 * tile::WIDTH);  // of a column: the center that all share, and how far its mean is away
  double parts[K][2], rest[K][1], total[2], m2[1];
  if (K == 1) {  // some may have no values: weights of 0, NaN left out
    const double center = first_center<tile::THREADS>(mine[0].n, mine[0].center, BX, memory);
    if (tid < BX) shared[tid] = center;
  } else if (tid < BX) {
#pragma unroll
    for (int k = 0; k < K; ++k) shared[tx * K + k] = mine[k].center;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    mine[k].away += mine[k].center - shared[tx * K + k];
    parts[k][0] = mine[k].n;
    parts[k][1] = mine[k].n == 0.0 ? 0.0 : mine[k].n * mine[k].away;
  }
  add_rows<2, K, BX, BY>(parts, memory, total);
  const double away = total[0] == 0.0 ? 0.0 : total[1] / total[0];
  if (tid < tile::WIDTH) shared[tile::WIDTH + tid] = away;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const double gap = mine[k].away - shared[tile::WIDTH + tx * K + k];
    rest[k][0] = mine[k].n == 0.0 ? 0.0 : mine[k].m2 + gap * mine[k].n * gap;
  }
  add_rows<1, K, BX, BY>(rest, memory, m2);
  return {total[0], tid < tile::WIDTH ? shared[tid] : 0.0, m2[0], away};
}

// Partial sums ------------------------------------------------------------------------------------------------------
// Those of chunk g and column j lie at partial[(g * PARTS + part) * columns + j]. The items of a channel are its
// columns in all chunks. Other blocks wrote them: they are not to be read from a stale first-level cache.

template <int PARTS>
constexpr int AHEAD = 16 / PARTS;  // items that a thread loads before it uses the first

// Where the first part of an item lies.
template <int PARTS>
BN_DEV i64 item_at(const Job& job, i64 c, i64 item) {
  const i64 per_chunk = job.copies * job.inner;
  if (per_chunk == 1) return item * PARTS * job.columns + c;
  const i64 g = quotient(item, per_chunk), rest = item - g * per_chunk, copy = quotient(rest, job.inner);
  return g * PARTS * job.columns + (copy * job.channels + c) * job.inner + (rest - copy * job.inner);
}

// The items of a channel that thread `slice` of `slices` takes, AHEAD at a time, in their order.
template <int PARTS, class Use>
BN_DEV void for_items(const Job& job, i64 c, i64 items, int slice, int slices, const Use& use) {
#pragma unroll 1
  for (i64 begin = slice; begin < items; begin += AHEAD<PARTS> * slices) {
    double v[AHEAD<PARTS>][PARTS];
#pragma unroll
    for (int i = 0; i < AHEAD<PARTS>; ++i)
      if (begin + i * slices < items) {
        const double* item = job.partial + item_at<PARTS>(job, c, begin + i * slices);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) v[i][p] = __ldcg(item + p * job.columns);
      }
#pragma unroll
    for (int i = 0; i < AHEAD<PARTS>; ++i)
      if (begin + i * slices < items) use(v[i]);
  }
}

// The sum over the slices of a channel, in all of their threads: slice s of channel i is thread s * width + i.
template <int P, int THREADS>
BN_DEV void add_slices(double (&v)[P], int slices, int width, double* memory) {
  const int tid = threadIdx.x, slice = tid / width;
#pragma unroll 1
  for (int half = slices / 2; half > 0; half /= 2) {
#pragma unroll
    for (int p = 0; p < P; ++p) memory[p * THREADS + tid] = v[p];
    __syncthreads();
    if (slice < half) {
#pragma unroll
      for (int p = 0; p < P; ++p) v[p] += memory[p * THREADS + tid + half * width];
    }
    __syncthreads();
  }
  if (slice == 0) {
#pragma unroll
    for (int p = 0; p < P; ++p) memory[p * THREADS + tid] = v[p];
  }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < P; ++p) v[p] = memory[p * THREADS + tid % width];
  __syncthreads();
}

struct Slices {  // how many threads share a channel
  int slices, width;
  i64 items;

  BN_MEMBER Slices(const Job& job, i64 channels, int threads) {
    items = job.chunks * job.copies * job.inner;
    slices = 1;
    while (2 * slices <= threads && 2 * slices * channels <= threads && slices < items) slices *= 2;
    width = threads / slices;
  }
};

template <int THREADS>
BN_DEV Sums join_items(const Job& job, i64 c, bool inside, const Slices& of, double* memory, Sums*) {
  double v[2] = {0.0, 0.0};
  if (inside)
    for_items<2>(job, c, of.items, threadIdx.x / of.width, of.slices, [&](const double (&item)[2]) {
      v[0] += item[0];
      v[1] += item[1];
    });
  add_slices<2, THREADS>(v, of.slices, of.width, memory);
  return {v[0], v[1]};
}

// An item of moments is n, center, m2, away.
template <int THREADS>
BN_DEV Moments join_items(const Job& job, i64 c, bool inside, const Slices& of, double* memory, Moments*) {
  const int slice = threadIdx.x / of.width;
  double v[2] = {0.0, 0.0}, m2[1] = {0.0}, some = 0.0, center = 0.0;
#pragma unroll 1
  for (i64 item = slice; inside && some == 0.0 && item < of.items; item += of.slices) {
    const double* first = job.partial + item_at<4>(job, c, item);
    some = __ldcg(first);
    center = __ldcg(first + job.columns);
  }
  center = first_center<THREADS>(some, center, of.width, memory);
  if (inside) {
    for_items<4>(job, c, of.items, slice, of.slices, [&](const double (&item)[4]) {
      v[0] += item[0];
      v[1] += item[0] == 0.0 ? 0.0 : item[0] * ((item[1] - center) + item[3]);
    });
  }
  add_slices<2, THREADS>(v, of.slices, of.width, memory);
  const double away = v[0] == 0.0 ? 0.0 : v[1] / v[0];
  if (inside)
    for_items<4>(job, c, of.items, slice, of.slices, [&](const double (&item)[4]) {
      const double gap = ((item[1] - center) + item[3]) - away;
      m2[0] += item[0] == 0.0 ? 0.0 : item[2] + gap * item[0] * gap;
    });
  add_slices<1, THREADS>(m2, of.slices, of.width, memory);
  return {v[0], center, m2[0], away};
}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Moments& sum);  // of the family of kernels
template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Sums& sum);

template <class T, class S, int THREADS>
BN_DEV void join_partials(const Job& job, i64 first, i64 last, double* memory) {
  const Slices of(job, last - first, THREADS);
#pragma unroll 1
  for (i64 begin = first; begin < last; begin += of.width) {
    const i64 c = begin + threadIdx.x % of.width;
    const S sum = join_items<THREADS>(job, c, c < last, of, memory, (S*)nullptr);
    if (threadIdx.x < of.width && c < last) finish_channel<T>(job, c, sum);
  }
}

BN_DEV void write_partial(const Job& job, i64 g, i64 column, const Sums& sum) {
  job.partial[(g * 2 + 0) * job.columns + column] = sum.total;
  job.partial[(g * 2 + 1) * job.columns + column] = sum.dot;
}
BN_DEV void write_partial(const Job& job, i64 g, i64 column, const Moments& sum) {
  job.partial[(g * 4 + 0) * job.columns + column] = sum.n;
  job.partial[(g * 4 + 1) * job.columns + column] = sum.center;
  job.partial[(g * 4 + 2) * job.columns + column] = sum.m2;
  job.partial[(g * 4 + 3) * job.columns + column] = sum.away;
}

// From the sums of the threads to finished channels: the block writes its partial sums, and the last one of its group
// of tiles joins them all. The ticket only says which block is last, never in which order sums are joined.
template <class T, class S, int K, int BX, int BY>
BN_DEV void finish_tile(const Job& job, i64 tile_index, i64 g, S (&mine)[K]) {
  typedef Tile<K, BX, BY> tile;
  BN_SHARED(double, memory, tile::SIZE);
  BN_SHARED(int, is_last, 1);
  const S sum = join_block<K, BX, BY>(mine, memory);
  const int tid = threadIdx.x;
  const i64 column = tile_index * tile::WIDTH + tid;
  if (job.chunks * job.copies * job.inner == 1) {  // the block has whole channels, each of one column
    if (tid < tile::WIDTH && column < job.columns) finish_channel<T>(job, column, sum);
    return;
  }
  if (tid < tile::WIDTH && column < job.columns) write_partial(job, g, column, sum);
  const i64 group = quotient(tile_index, job.group);
  const i64 begin = group * job.group * tile::WIDTH, end = least(begin + job.group * tile::WIDTH, job.columns);
  const i64 tiles = quotient(end - begin + tile::WIDTH - 1, tile::WIDTH);
  __threadfence();
  __syncthreads();
  if (tid == 0) {
    const unsigned blocks = (unsigned)(tiles * job.chunks);
    is_last[0] = blocks == 1u || atomicInc(&job.tickets[group], blocks - 1u) == blocks - 1u;
  }
  __syncthreads();
  if (!is_last[0]) return;  // all threads of the block
  __threadfence();
  const bool all = job.copies > 1;
  join_partials<T, S, tile::THREADS>(
      job, all ? 0 : quotient(begin, job.inner), all ? job.channels : quotient(end, job.inner), memory);
}
