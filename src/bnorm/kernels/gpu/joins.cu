// How the threads of a grid join their sums: by plain additions in a fixed order, over the rows of a tile, and then, in
// the block that comes last, over the partial sums of all blocks.
//
// Moments are joined about a common center: first the counts and the distances of the means from it, which give the
// mean of all; then m2, with the distances from this mean. It takes one division per channel, and no chain of merges.

struct Moments {  // of the values of one channel; the mean is center + away
  double n, center, m2, away;
};
struct Sums {
  double total, dot;
};

// The center of the first thread that has any value, of the threads tid % stride, tid % stride + stride, ...
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

// Add up P numbers per column of the tile: thread k gets those of column k in `total`; threads without a column get 0.
// `memory` is free after the next barrier. Lanes with the same columns keep half of these at every step, which takes
// half the shuffles; in the end each lane has OWN columns, in the order of the lanes.
template <int P, int K, int BX, int BY>
BN_DEV void add_rows(double (&mine)[K][P], double* memory, double (&total)[P]) {
  typedef Tile<K, BX, BY> tile;
  const int tid = threadIdx.x, tx = tid % BX, row = tid / BX % tile::ROWS, warp = tid / BX / tile::ROWS;
#pragma unroll
  for (int d = 16, many = K / 2; d >= BX; d >>= 1, many /= 2)
#pragma unroll
    for (int k = 0; k < (tile::SHARES ? many : K); ++k)
#pragma unroll
      for (int p = 0; p < P; ++p) {
        if constexpr (tile::SHARES) {
          const double low = mine[k][p], high = mine[k + many][p];
          const bool upper = tid & d;
          mine[k][p] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, d);
        } else {
          mine[k][p] += __shfl_down_sync(~0u, mine[k][p], d);
        }
      }
  const int first = tile::SHARES ? row * tile::OWN : 0;
#pragma unroll
  for (int k = 0; k < tile::OWN; ++k)
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (tile::SHARES || row == 0)
        memory[(p * tile::WARPS + warp) * tile::WIDTH + tile::at(tx, first + k)] = mine[k][p];
  __syncthreads();
#pragma unroll
  for (int p = 0; p < P; ++p) total[p] = 0.0;
  if (tid < tile::WIDTH) {
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll 8
      for (int w = 0; w < tile::WARPS; ++w) total[p] += memory[(p * tile::WARPS + w) * tile::WIDTH + tile::at(tid)];
  }
}

// If a tile has several columns of each channel, which are `same` apart, add up P numbers over them; all columns of the
// channel get the sums. Nothing happens if `same` is 0. `memory` is free after the next barrier.
template <int P, int K, int BX, int BY>
BN_DEV void add_same(double (&total)[P], int same, double* memory) {
  constexpr int WIDTH = Tile<K, BX, BY>::WIDTH;
  const int tid = threadIdx.x;
  if (K == 1 || same == 0) return;
  __syncthreads();
  if (tid < WIDTH) {
#pragma unroll
    for (int p = 0; p < P; ++p) memory[p * WIDTH + tid] = total[p];
  }
  __syncthreads();
  if (tid >= WIDTH) return;
#pragma unroll
  for (int p = 0; p < P; ++p) total[p] = 0.0;
#pragma unroll 4
  for (int column = tid % same; column < WIDTH; column += same)
#pragma unroll
    for (int p = 0; p < P; ++p) total[p] += memory[p * WIDTH + column];
}

template <int K, int BX, int BY>
BN_DEV Sums join_block(Sums (&mine)[K], double* memory, int same = 0) {
  double parts[K][2], total[2];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    parts[k][0] = mine[k].total;
    parts[k][1] = mine[k].dot;
  }
  add_rows<2, K, BX, BY>(parts, memory, total);
  add_same<2, K, BX, BY>(total, same, memory);
  return {total[0], total[1]};
}

template <int K, int BX, int BY>
BN_DEV Moments join_block(Moments (&mine)[K], double* memory, int same = 0) {
  typedef Tile<K, BX, BY> tile;
  const int tid = threadIdx.x, tx = tid % BX;
  BN_SHARED(double, shared, 2 * tile::WIDTH);  // per column: the common center, and the distance of the mean from it
  double parts[K][2], rest[K][1], total[2], m2[1];
  if (K == 1) {  // some threads may have no values: weights are 0, or NaN is left out
    const double center = first_center<tile::THREADS>(mine[0].n, mine[0].center, BX, memory);
    if (tid < BX) shared[tid] = center;
  } else if (tid < BX) {
#pragma unroll
    for (int k = 0; k < K; ++k) shared[tile::at(tx, k)] = mine[k].center;
  }
  __syncthreads();
  if (K > 1 && same) {  // all columns of a channel get the center of its first one
    if (tid >= same && tid < tile::WIDTH) shared[tile::at(tid)] = shared[tile::at(tid % same)];
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    mine[k].away += mine[k].center - shared[tile::at(tx, k)];
    parts[k][0] = mine[k].n;
    parts[k][1] = mine[k].n == 0.0 ? 0.0 : mine[k].n * mine[k].away;
  }
  add_rows<2, K, BX, BY>(parts, memory, total);
  add_same<2, K, BX, BY>(total, same, memory);
  const double away = total[0] == 0.0 ? 0.0 : total[1] / total[0];
  if (tid < tile::WIDTH) shared[tile::WIDTH + tile::at(tid)] = away;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const double gap = mine[k].away - shared[tile::WIDTH + tile::at(tx, k)];
    rest[k][0] = mine[k].n == 0.0 ? 0.0 : mine[k].m2 + gap * mine[k].n * gap;
  }
  add_rows<1, K, BX, BY>(rest, memory, m2);
  add_same<1, K, BX, BY>(m2, same, memory);
  return {total[0], tid < tile::WIDTH ? shared[tile::at(tid)] : 0.0, m2[0], away};
}

// Partial sums ------------------------------------------------------------------------------------------------------
// Those of chunk g and column j lie at partial[(g * PARTS + part) * columns + j]. The items of a channel are its
// columns in all chunks. Other blocks wrote them, so __ldcg must read them: the first-level cache may be stale.

struct Items {
  double* partial;
  i64 columns, channels;
  int inner, copies, chunks;

  BN_MEMBER int count() const { return chunks * copies * inner; }
  template <int PARTS>
  BN_MEMBER i64 at(i64 c, int item) const {  // where the first part of an item lies
    const int per_chunk = copies * inner;
    if (per_chunk == 1) return (i64)item * PARTS * columns + c;
    const int g = quotient_of(item, per_chunk), rest = item - g * per_chunk, copy = quotient_of(rest, inner);
    return (i64)g * PARTS * columns + (copy * channels + c) * inner + (rest - copy * inner);
  }
};

template <int PARTS>
constexpr int AHEAD = 16 / PARTS;  // items that a thread loads before it uses the first

// AHEAD items of a channel, which are `apart` from each other. `held` is the index of the first. Items beyond the last
// one are 0.
template <int PARTS>
struct Window {
  double v[AHEAD<PARTS>][PARTS];
  int held = -1;

  BN_MEMBER void get(const Items& items, i64 c, int first, int apart) {
    if (first == held) return;
    held = first;
    const int count = items.count();
#pragma unroll
    for (int i = 0; i < AHEAD<PARTS>; ++i) {
      const double* item = items.partial + items.at<PARTS>(c, first + i * apart);
#pragma unroll
      for (int p = 0; p < PARTS; ++p) v[i][p] = first + i * apart < count ? __ldcg(item + p * items.columns) : 0.0;
    }
  }
};

// Add up v over the slices of a channel: all of its threads get the sum. Slice s of channel i is thread s * width + i.
template <int P, int THREADS>
BN_DEV void add_slices(double (&v)[P], int slices, int width, double* memory) {
  const int tid = threadIdx.x, slice = tid / width;
  if (slices == 1) return;
#pragma unroll
  for (int p = 0; p < P; ++p) memory[p * THREADS + tid] = v[p];
  __syncthreads();
#pragma unroll 1
  for (int half = slices / 2; half > 0; half /= 2) {
    if (slice < half) {
#pragma unroll
      for (int p = 0; p < P; ++p) memory[p * THREADS + tid] = v[p] += memory[p * THREADS + tid + half * width];
    }
    __syncthreads();
  }
#pragma unroll
  for (int p = 0; p < P; ++p) v[p] = memory[p * THREADS + tid % width];
  __syncthreads();
}

struct Slices {  // how many threads share a channel, and how many channels are joined at a time
  int slices, width;

  BN_MEMBER Slices(int items, i64 channels, int threads) {
    slices = 1;
    while (2 * slices <= threads && 2 * slices * channels <= threads && slices < items) slices *= 2;
    width = threads / slices;
  }
};

template <int THREADS>
BN_DEV Sums join_items(const Items& items, i64 c, int count, const Slices& of, double* memory, Sums*) {
  double sum[2] = {0.0, 0.0};
  Window<2> window;
#pragma unroll 1
  for (int first = threadIdx.x / of.width; first < count; first += AHEAD<2> * of.slices) {
    window.get(items, c, first, of.slices);
#pragma unroll
    for (int i = 0; i < AHEAD<2>; ++i)
#pragma unroll
      for (int p = 0; p < 2; ++p) sum[p] += window.v[i][p];
  }
  add_slices<2, THREADS>(sum, of.slices, of.width, memory);
  return {sum[0], sum[1]};
}

// An item of moments is n, center, m2, away; if n is 0 it adds nothing, whatever the others are. There are three
// passes: for the center, the mean, and m2. If all items fit into the window, they are loaded once.
template <int THREADS>
BN_DEV Moments join_items(const Items& items, i64 c, int count, const Slices& of, double* memory, Moments*) {
  double sum[2] = {0.0, 0.0}, m2[1] = {0.0}, some = 0.0, center = 0.0, away = 0.0;
  Window<4> window;
  enum { CENTER, AWAY, SQUARES };
#pragma unroll 1
  for (int pass = CENTER; pass <= SQUARES; ++pass) {
#pragma unroll 1
    for (int first = threadIdx.x / of.width; first < count; first += AHEAD<4> * of.slices) {
      window.get(items, c, first, of.slices);
#pragma unroll
      for (int i = 0; i < AHEAD<4>; ++i) {
        const double(&item)[4] = window.v[i];
        const double off = (item[1] - center) + item[3], gap = off - away;
        if (item[0] == 0.0) continue;
        if (pass == CENTER) {
          if (some == 0.0) center = item[1];
          some = item[0];
        } else if (pass == AWAY) {
          sum[0] += item[0];
          sum[1] += item[0] * off;
        } else {
          m2[0] += item[2] + gap * item[0] * gap;
        }
      }
      if (pass == CENTER && some != 0.0) break;
    }
    if (pass == CENTER) {
      center = first_center<THREADS>(some, center, of.width, memory);
    } else if (pass == AWAY) {
      add_slices<2, THREADS>(sum, of.slices, of.width, memory);
      away = sum[0] == 0.0 ? 0.0 : sum[1] / sum[0];
    } else {
      add_slices<1, THREADS>(m2, of.slices, of.width, memory);
    }
  }
  return {sum[0], center, m2[0], away};
}

// Join the channels from `first` to `last`: one thread of the block calls use(channel, its sum).
template <class S, int THREADS, class Use>
BN_DEV void join_partials(const Items& items, i64 first, i64 last, double* memory, const Use& use) {
  const int count = items.count();
  const Slices of(count, last - first, THREADS);
#pragma unroll 1
  for (i64 begin = first; begin < last; begin += of.width) {
    const i64 c = begin + threadIdx.x % of.width;
    const S sum = join_items<THREADS>(items, c, c < last ? count : 0, of, memory, (S*)nullptr);
    if (threadIdx.x < of.width && c < last) use(c, sum);
  }
}

BN_DEV void write_partial(double* partial, i64 columns, i64 g, i64 column, const Sums& sum) {
  partial[(g * 2 + 0) * columns + column] = sum.total;
  partial[(g * 2 + 1) * columns + column] = sum.dot;
}
BN_DEV void write_partial(double* partial, i64 columns, i64 g, i64 column, const Moments& sum) {
  partial[(g * 4 + 0) * columns + column] = sum.n;
  partial[(g * 4 + 1) * columns + column] = sum.center;
  partial[(g * 4 + 2) * columns + column] = sum.m2;
  partial[(g * 4 + 3) * columns + column] = sum.away;
}

template <class S>
constexpr int PARTS_OF = sizeof(S) / sizeof(double);

// Whether this block is the last of so many to increment a ticket; it then sees what the others have written. The
// ticket only tells which block is last, never in which order sums are joined.
BN_DEV bool comes_last(unsigned* ticket, unsigned blocks) {
  BN_SHARED(int, is_last, 1);
  __syncthreads();
  // with the barriers, one thread's fences order what all threads of the block write before and read after them
  if (threadIdx.x == 0) {
    __threadfence();
    is_last[0] = blocks == 1u || atomicInc(ticket, blocks - 1u) == blocks - 1u;
    __threadfence();
  }
  __syncthreads();
  return is_last[0];
}

// Join the partial sums of the channels from `first` to `last`, which `blocks` blocks of each chunk have written: one
// thread calls use(channel, its sum). If there are several bunches of chunks, the last block of each bunch joins it, at
// the same time as others do, and the last of these joins the sums of bunches, which lie behind those of the chunks.
template <class S, int THREADS, class Use>
BN_DEV void join_last(
    const Items& all, int bunch, int g, int blocks, unsigned* tickets, i64 first, i64 last, double* memory,
    const Use& use) {
  const int bunches = quotient_of(all.chunks + bunch - 1, bunch), mine = quotient_of(g, bunch), begin = mine * bunch;
  double* behind = all.partial + (i64)all.chunks * PARTS_OF<S> * all.columns;
  Items items = all;
  items.partial += (i64)begin * PARTS_OF<S> * all.columns;
  items.chunks = (int)least(bunch, all.chunks - begin);
  unsigned* ticket = tickets + mine;
  blocks *= items.chunks;
  bool whole = bunches == 1;
#pragma unroll 1
  while (comes_last(ticket, (unsigned)blocks)) {  // all threads of the block
    join_partials<S, THREADS>(items, first, last, memory, [&](i64 c, const S& sum) {
      if (whole) use(c, sum);
      else write_partial(behind, all.channels, mine, c, sum);
    });
    if (whole) return;
    whole = true;
    items = {behind, all.channels, all.channels, 1, 1, bunches};
    ticket = tickets + bunches;
    blocks = bunches;
  }
}

// How many tickets there are for channels that are joined together.
BN_DEV int tickets_of(i64 chunks, i64 bunch) {
  const int bunches = quotient_of((int)(chunks + bunch - 1), (int)bunch);
  return bunches == 1 ? 1 : bunches + 1;
}
