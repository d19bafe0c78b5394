// Two small kernels that are right for BUG = NONE and wrong in one way for each of the others: what the emulator has to
// see. `total` sums in one launch, whose last block adds the parts up; `shares` meets at a barrier of the whole grid.
#ifndef BN_ON_CPU
#define BN_SHARED(T, name, count) __shared__ T name[count]
#define BN_DYN_SHARED(T, name)                                \
  extern __shared__ __align__(16) unsigned char bn_dynamic[]; \
  T* name = reinterpret_cast<T*>(bn_dynamic)
#endif

enum Bug {
  NONE,
  NO_BARRIER,         // shared memory is read before it is written
  NO_SECOND_BARRIER,  // and written again before it was read
  EARLY_RETURN,       // a thread leaves before a barrier
  OTHER_BARRIER,      // two halves of a block meet at two barriers
  HALF_WARP,          // half of a warp in a shuffle of the whole
  STRANGER,           // a lane shuffles under a mask that does not name it
  WRONG_WIDTH,        // a shuffle of half warps where whole ones are summed
  READ_PAST,          // one element too many is read
  WRITE_PAST,         // one part too many is written
  SHARED_PAST,        // a static shared array is one too short
  DYNAMIC_PAST,       // and so is the dynamic one
  SAME_PART,          // two blocks write one part
  NO_FENCE,           // the last block cannot know that it sees the parts of the others
  TICKET_FIRST,       // a block is counted before its part is written
  WRONG_COUNT,        // the barrier of the grid waits for a block that does not exist
  OVERFLOW            // an index of 32 bits is too short
};

struct Sizes {
  long long n;
  int parts;
};

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

template <class T, int BUG>
static __device__ __forceinline__ T warp_sum(T s) {
  constexpr int width = BUG == WRONG_WIDTH ? 16 : 32;
  if (BUG == HALF_WARP && threadIdx.x % 32 >= 16) return s;
  const unsigned mask = BUG == STRANGER && threadIdx.x == 40 ? 0xffu : ~0u;
#pragma unroll
  for (int d = width / 2; d; d /= 2) s += __shfl_down_sync(mask, s, d, width);
  return s;
}

// out[0] = the sum of x, out[1] = that of the values that thread 255 - t of each block has for thread t: the same
// again.
template <class T, int BUG>
__global__ void __launch_bounds__(256) total(const T* __restrict__ x, T* parts, T* out, unsigned* ticket, Sizes sizes) {
  BN_DYN_SHARED(T, tile);
  BN_SHARED(T, warps, 8 - (BUG == SHARED_PAST));
  BN_SHARED(int, last, 1);
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const long long n = sizes.n + (BUG == READ_PAST), step = (long long)gridDim.x * 256 * 4;
  T s = 0;
  long long i = ((long long)blockIdx.x * 256 + t) * 4;
  for (; i + 4 <= n; i += step) {
    const Four<T> four = *reinterpret_cast<const Four<T>*>(x + i);
    s += (four.v[0] + four.v[1]) + (four.v[2] + four.v[3]);
  }
  for (; i < n; ++i) s += __ldg(x + i);
  if (BUG == OVERFLOW) s += (T)((int)n * 1048577);
  tile[t + (BUG == DYNAMIC_PAST)] = s;
  if (BUG == EARLY_RETURN && t == 77) return;
  if (BUG == OTHER_BARRIER && warp >= 4)
    __syncthreads();
  else if (BUG != NO_BARRIER)
    __syncthreads();
  const T mirrored = tile[255 - t];

  s = warp_sum<T, BUG>(s);
  if (lane == 0) warps[warp] = s;
  __syncthreads();
  T first = 0;
  for (int w = 0; w < 8 - (BUG == SHARED_PAST); ++w) first += warps[w];
  if (BUG != NO_SECOND_BARRIER) __syncthreads();
  s = warp_sum<T, NONE>(mirrored);
  if (lane == 0) warps[warp] = s;
  __syncthreads();
  if (t == 0) {
    const unsigned all = gridDim.x - 1;
    if (BUG == TICKET_FIRST) last[0] = atomicInc(ticket, all) == all;
    T second = 0;
    for (int w = 0; w < 8 - (BUG == SHARED_PAST); ++w) second += warps[w];
    const int part = BUG == SAME_PART ? blockIdx.x / 2 : blockIdx.x + (BUG == WRITE_PAST);
    parts[part] = first;
    parts[sizes.parts + part] = second;
    if (BUG != NO_FENCE) __threadfence();
    if (BUG != TICKET_FIRST) last[0] = atomicInc(ticket, all) == all;
  }
  __syncthreads();
  if (last[0] && t < 2) {
    __threadfence();
    T sum = 0;
    for (int g = 0; g < (int)gridDim.x; ++g) sum += parts[t * sizes.parts + g];
    out[t] = sum;
  }
}

static __device__ __forceinline__ void grid_barrier(unsigned* arrived, unsigned blocks, unsigned expected) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const unsigned goal = atomicAdd(arrived, 1u) / blocks * blocks + expected;
    while ((int)(atomicAdd(arrived, 0u) - goal) < 0) __nanosleep(20);
    __threadfence();
  }
  __syncthreads();
}

// y[g] = 256 times the share of block g, which is the sum of g, g + 1, ... g + 31: every block needs those of all.
template <class T, int BUG>
__global__ void __launch_bounds__(32) shares(T* parts, T* y, unsigned* arrived) {
  const T s = warp_sum<T, NONE>((T)(blockIdx.x + threadIdx.x));
  if (threadIdx.x == 0) parts[blockIdx.x] = s;
  grid_barrier(arrived, gridDim.x, gridDim.x + (BUG == WRONG_COUNT));
  T all = 0;
  for (int g = 0; g < (int)gridDim.x; ++g) all += parts[g];
  if (threadIdx.x == 0) y[blockIdx.x] = 256 * parts[blockIdx.x] / all;
}
