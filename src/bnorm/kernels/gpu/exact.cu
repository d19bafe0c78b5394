// The exact sums of channels, as integers. They equal those of kernels/cpu/exact, as neither loses a bit.
//
// A value is m 2^(e - 150) with m below 2^24 and an exponent e of at least 1. A thread adds m 2^(e - base) in 64 bits,
// and the squares of these in 128, for all e in a window from base to base + REACH. A larger value moves the window up.
// A smaller one is added to the limbs by itself, and from time to time the sums are, too. Limbs are those of
// kernels/cpu/exact/limbs.h: a 64-bit number for every 32 bits. Integers give the same sum in any order of additions.

typedef unsigned long long u64;

enum {
  REACH = 27,      // m 2^REACH has 51 bits
  BELOW = 14,      // a window begins so far below the value that it is made for
  MANY = 1 << 12,  // values between two flushes: then a sum has 63 bits, and one of squares 114
  NO_WINDOW = -1000
};

// Rows of the result: limbs of the sum, from 2^-160 on, and of the sum of squares, from 2^-320 on; and how many values
// are NaN, infinite, minus infinite.
enum { SUMS_AT = 0, SQUARES_AT = 12, ODD_AT = 33, ROWS = 36 };

// Add m 2^place to limbs that are `width` apart; if `negative`, subtract it.
BN_DEV void add_limbs(u64* limbs, int width, u64 m, int place, bool negative) {
  const u64 mask = 0xFFFFFFFFu;
  const int shift = place & 31;
  const u64 low = (m & mask) << shift, high = (m >> 32) << shift;
  const u64 parts[3] = {low & mask, (low >> 32) + (high & mask), high >> 32};
#pragma unroll
  for (int i = 0; i < 3; ++i)
    if (parts[i]) atomicAdd(limbs + ((place >> 5) + i) * width, negative ? 0 - parts[i] : parts[i]);
}

// One channel of a thread: its window and its sums, that of the squares in two parts.
struct Held {
  int base;
  u64 sum, low, high;

  BN_MEMBER void flush(u64* limbs, int width) {
    const bool negative = sum >> 63;
    add_limbs(limbs + SUMS_AT * width, width, negative ? 0 - sum : sum, base + 10, negative);
    add_limbs(limbs + SQUARES_AT * width, width, low, 2 * base + 20, false);
    add_limbs(limbs + SQUARES_AT * width, width, high, 2 * base + 84, false);
    sum = low = high = 0;
  }
  BN_MEMBER void add(unsigned bits, u64* limbs, int width) {
    const unsigned size = bits & 0x7FFFFFFFu, exponent = size >> 23;
    const bool negative = bits >> 31;
    const int e = exponent ? (int)exponent : 1;
    const unsigned m = (size & 0x7FFFFFu) | (exponent ? 0x800000u : 0u);
    const u64 square = (u64)m * m;
    if (rarely((unsigned)(e - base) > REACH || exponent == 255u)) {
      if (exponent == 255u) {
        atomicAdd(limbs + (ODD_AT + (size > 0x7F800000u ? 0 : negative ? 2 : 1)) * width, (u64)1);
        return;
      }
      if (e < base || m == 0) {
        add_limbs(limbs + SUMS_AT * width, width, m, e + 10, negative);
        add_limbs(limbs + SQUARES_AT * width, width, square, 2 * e + 20, false);
        return;
      }
      if (base != NO_WINDOW) flush(limbs, width);
      base = e > BELOW ? e - BELOW : 1;
    }
    const int shift = e - base;
    const u64 v = (u64)m << shift, part = square << (2 * shift);
    sum += negative ? 0 - v : v;
    low += part;
    high += (shift ? square >> (64 - 2 * shift) : 0) + (low < part);
  }
};

// Whether a value counts. The mask consists of bytes, and is passed in place of the weights of other kernels.
template <bool MASKED>
BN_DEV bool taken(const Job& job, i64 column, i64 r) {
  if (!MASKED) return true;
  const i64 plane = job.channels * job.inner, copy = quotient(column, plane), in_channel = column - copy * plane;
  const unsigned char* mask = reinterpret_cast<const unsigned char*>(job.weight);
  return mask[r * job.weight_step + copy * job.inner + in_channel % job.inner];
}

// <T, V, K, BX, BY>: as in channels.cu; with MASKED, V and K are 1.
template <class T, int V, int K, int BX, int BY, int MASKED>
__global__ void __launch_bounds__(BX* BY, 2) exact_sums(Job job) {
  constexpr int WIDTH = BX * K, PER_STEP = K > 1 ? 1 : V;
  BN_SHARED(u64, limbs, ROWS * WIDTH);
  for (int i = threadIdx.x; i < ROWS * WIDTH; i += BX * BY) limbs[i] = 0;
  __syncthreads();
  const Place<K, BX, BY> place(job, blockIdx.x, blockIdx.y);
  const T* x = static_cast<const T*>(job.x);
  Walk<BX == 1> walk(job, place.column, place.first, BY);
  u64* own = limbs + threadIdx.x % BX * K;
  Held held[K];
#pragma unroll
  for (int k = 0; k < K; ++k) held[k] = {NO_WINDOW, 0, 0, 0};
  i64 r = place.first;
#pragma unroll 1
  for (i64 steps = place.steps; steps > 0; steps -= MANY / PER_STEP) {
    const int many = (int)least(MANY / PER_STEP, steps);
#pragma unroll 1
    for (int i = 0; i < many; ++i, r += BY, walk.next()) {
      if (!taken<MASKED>(job, place.column, r)) continue;
      const Vector<T, V> t = load<T, V>(x + walk.at);
#pragma unroll
      for (int v = 0; v < V; ++v) held[K > 1 ? v : 0].add(__float_as_uint(widen(t.v[v])), own + (K > 1 ? v : 0), WIDTH);
    }
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (held[k].base != NO_WINDOW) held[k].flush(own + k, WIDTH);
  }
  place.in_last_row(job, blockIdx.y, [&](int k) {
    if (!taken<MASKED>(job, place.column, job.steps)) return;
    held[k].add(__float_as_uint(widen(x[job.steps * job.columns + place.column + k])), own + k, WIDTH);
    if (held[k].base != NO_WINDOW) held[k].flush(own + k, WIDTH);
  });
  __syncthreads();
  u64* totals = reinterpret_cast<u64*>(job.sums);
  for (int i = threadIdx.x; i < ROWS * WIDTH; i += BX * BY) {
    const i64 column = (i64)blockIdx.x * WIDTH + i % WIDTH;
    if (limbs[i]) atomicAdd(totals + i / WIDTH * job.channels + channel_of(job, column), limbs[i]);
  }
}
