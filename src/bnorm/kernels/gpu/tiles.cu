// From the sums of the threads of a block to the finished channels of its tile of columns.

// Wait until all of so many blocks, which run at the same time, have come here. Then each sees what the others have
// written. One of them leads. Each meeting flips the highest bit of the ticket: after two it is 0 again. After a single
// one each block must `leave`, which does not wait: the bit flips back when all have left, and so have seen it.
constexpr unsigned MET = 1u << 31;
BN_DEV unsigned come(unsigned* ticket, unsigned blocks, bool leads) {
  return atomicAdd(ticket, leads ? MET - (blocks - 1u) : 1u);
}
BN_DEV void meet(unsigned* ticket, unsigned blocks, bool leads) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const unsigned before = come(ticket, blocks, leads);
#pragma unroll 1
    while (!((seen(ticket) ^ before) & MET)) pause();
    __threadfence();
  }
  __syncthreads();
}
BN_DEV void leave(unsigned* ticket, unsigned blocks, bool leads) {
  if (threadIdx.x == 0) come(ticket, blocks, leads);
}

// Like join_last, but by all of the blocks at once; after it all of them can read the results. Each block has a share
// of the channels, and each of its warps joins one channel at a time.
template <int THREADS, class Use>
BN_DEV void join_meeting(
    const Items& items, i64 own, i64 blocks, unsigned* ticket, i64 first, i64 last, const Use& use) {
  const i64 many = last - first, begin = first + quotient(many * own, blocks);
  const i64 end = first + quotient(many * (own + 1), blocks);
  const int lane = threadIdx.x % 32, count = items.count();
  meet(ticket, (unsigned)blocks, own == 0);
#pragma unroll 1
  for (i64 c = begin + threadIdx.x / 32; c < end; c += THREADS / 32) {
    double total = 0.0, dot = 0.0;
#pragma unroll 4
    for (int item = lane; item < count; item += 32) {
      const double* of = items.partial + items.at<2>(c, item);
      total += __ldcg(of);
      dot += __ldcg(of + items.columns);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      total += __shfl_xor_sync(~0u, total, d);
      dot += __shfl_xor_sync(~0u, dot, d);
    }
    if (lane == 0) use(c, Sums{total, dot});
  }
  meet(ticket, (unsigned)blocks, own == 0);
}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Moments& sum);  // each family of kernels has its own
template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Sums& sum);

// The memory in which a kernel joins the sums of its tile, whichever of the following ways it takes.
template <class Tile>
BN_DEV double* tile_memory() {
  BN_SHARED(double, memory, Tile::SIZE);
  return memory;
}

// If a tile has whole channels, each in one column, its blocks meet only once, and then each of them adds up what all
// of them have written: the sums of the columns, in the first threads.
BN_DEV bool has_channels(const Job& job) { return job.copies * job.inner == 1; }
template <int K, int BX, int BY>
BN_DEV Sums join_columns(const Job& job, double* partial, Sums (&mine)[K]) {
  typedef Tile<K, BX, BY> tile;
  constexpr int WIDTH = tile::WIDTH, THREADS = tile::THREADS;
  double* memory = tile_memory<tile>();
  const int tid = threadIdx.x, chunks = gridDim.y;
  const i64 column = (i64)blockIdx.x * WIDTH + tid % WIDTH;
  const bool inside = column < job.columns;
  const Sums own = join_block<K, BX, BY>(mine, memory);
  if (tid < WIDTH && inside) write_partial(partial, job.columns, blockIdx.y, column, own);
  meet(job.tickets + blockIdx.x, chunks, blockIdx.y == 0);
  Sums sum = {0.0, 0.0};
#pragma unroll 8
  for (int g = inside ? tid / WIDTH : chunks; g < chunks; g += THREADS / WIDTH) {
    const double* of = partial + (i64)g * 2 * job.columns + column;
    sum.total += __ldcg(of);
    sum.dot += __ldcg(of + job.columns);
  }
  memory[tid] = sum.total;
  memory[THREADS + tid] = sum.dot;
  __syncthreads();
  sum = {0.0, 0.0};
#pragma unroll
  for (int on = 0; tid < WIDTH && on < THREADS; on += WIDTH) {
    sum.total += memory[tid + on];
    sum.dot += memory[THREADS + tid + on];
  }
  return sum;
}

// From the sums of the threads to finished channels: each block writes its partial sums, and the last ones of a group
// of tiles join them. If channels are `few`, and a tile has several columns of each, a block adds up these columns
// first. WITH_MAP a block has whole channels; MEETING, all blocks join at once. rest(column, sum) adds to the sum of a
// column its value in the last, incomplete row of widened columns.
struct NoRest {
  template <class S>
  BN_MEMBER void operator()(i64, S&) const {}
};

// use(channel, its sum) is called by one thread.
template <class S, int K, int BX, int BY, int MODE, class Rest, class Use>
BN_DEV void join_tile(const Job& job, i64 tile_index, i64 g, S (&mine)[K], const Rest& rest, const Use& use) {
  typedef Tile<K, BX, BY> tile;
  double* memory = tile_memory<tile>();
  const bool few = K > 1 && MODE != WITH_MAP && job.chunks * gridDim.x > 1 && job.copies > 1 && job.inner == 1 &&
                   2 * job.channels <= tile::WIDTH;
  S sum = join_block<K, BX, BY>(mine, memory, few ? (int)job.channels : 0);
  const int tid = threadIdx.x, apart = few ? (int)job.channels : tile::WIDTH;  // sum: of columns tid, tid + apart, ...
  const i64 column = tile_index * tile::WIDTH + tid, left = job.total - job.steps * job.columns;
  if (g == job.chunks - 1)
#pragma unroll 1
    for (int on = 0; tid + on < tile::WIDTH && column + on < left; on += apart) rest(column + on, sum);
  if (job.chunks * job.copies * job.inner == 1) {  // the block has whole channels, each of one column
    if (tid < tile::WIDTH && column < job.columns) use(column, sum);
    return;
  }
  if (few) {
    if (tid < job.channels)
      write_partial(job.partial, job.channels, g * gridDim.x + tile_index, column % job.channels, sum);
  } else if (tid < tile::WIDTH && column < job.columns) {
    write_partial(job.partial, job.columns, g, column, sum);
  }
  const i64 group = quotient(tile_index, job.group);
  const i64 begin = group * job.group * tile::WIDTH, end = least(begin + job.group * tile::WIDTH, job.columns);
  i64 tiles = quotient(end - begin + tile::WIDTH - 1, tile::WIDTH), own = g;
  const bool all = job.copies > 1;
  Items items = {job.partial, job.columns, job.channels, (int)job.inner, (int)job.copies, (int)job.chunks};
  if (few) {
    own = g * tiles + tile_index;
    items = {job.partial, job.channels, job.channels, 1, 1, (int)(job.chunks * tiles)};
    tiles = 1;
  }
  const i64 first = all ? 0 : quotient(begin, job.inner), last = all ? job.channels : quotient(end, job.inner);
  if constexpr (MODE == MEETING) {
    if (!few) own = g * tiles + tile_index - group * job.group;
    join_meeting<tile::THREADS>(items, own, items.chunks * tiles, job.tickets + group, first, last, use);
  } else {
    unsigned* tickets = job.tickets + group * tickets_of(items.chunks, job.bunch);
    join_last<S, tile::THREADS>(items, (int)job.bunch, (int)own, (int)tiles, tickets, first, last, memory, use);
  }
}

template <class T, class S, int K, int BX, int BY, int MODE = SUMS_ONLY, class Rest = NoRest>
BN_DEV void finish_tile(const Job& job, i64 tile_index, i64 g, S (&mine)[K], const Rest& rest = Rest()) {
  join_tile<S, K, BX, BY, MODE>(
      job, tile_index, g, mine, rest, [&](i64 c, const S& sum) { finish_channel<T>(job, c, sum); });
}
