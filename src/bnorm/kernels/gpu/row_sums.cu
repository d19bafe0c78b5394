// The threads of blocks that work on rows, and their sums over the threads of a row.

enum { ROW_THREADS = 256 };

// WIDE of a kernel: whether a row belongs to threads of a warp, or to several warps. BROAD blocks have twice as many
// threads, BROADER ones three times as many, for one long row, or for more rows side by side that share what the block
// keeps.
enum { OF_A_WARP, OF_WARPS, BROAD, BROADER };
template <int WIDE>
constexpr int THREADS_OF = WIDE < BROAD ? ROW_THREADS : WIDE * ROW_THREADS;

// Wait for all threads of a row that belongs to several warps; the other rows of the block go on. `first` is the first
// warp of the row. Barrier 0 is that of the block.
template <int THREADS>
BN_DEV void meet(int first, int lanes) {
#ifdef BN_ON_CPU
  __named_barrier(1 + first / 2, lanes);
#else  // a barrier whose number is in a register makes a block reserve all of a processor's: only if it is alone there
  if (THREADS > ROW_THREADS) asm volatile("bar.sync %0, %1;" ::"r"(1 + first / 2), "r"(lanes) : "memory");
  else if (first == 0) asm volatile("bar.sync 1, %0;" ::"r"(lanes) : "memory");
  else if (first == 2) asm volatile("bar.sync 2, %0;" ::"r"(lanes) : "memory");
  else if (first == 4) asm volatile("bar.sync 3, %0;" ::"r"(lanes) : "memory");
  else asm volatile("bar.sync 4, %0;" ::"r"(lanes) : "memory");
#endif
}

// Sums over the threads of a row, for all of them.
template <int WIDE>
struct RowSums {
  static constexpr int WARPS = THREADS_OF<WIDE> / 32, SIZE = 2 * 2 * WARPS;
  double* memory;  // if WIDE: SIZE numbers, of which one half may still be read while the other is written
  int lanes, half;

  template <int P>
  BN_MEMBER void add(double (&v)[P]) {
    static_assert(P <= 2, "more sums than memory has room for");
    const unsigned far = (WIDE ? 32u : (unsigned)lanes) / 2;
    if (!WIDE && far == 0) return;
    const bool upper = P == 2 && threadIdx.x & far;  // of two sums, this half of the lanes adds up the second
    double own = upper ? v[P - 1] : v[0];
    if (P == 2) own += __shfl_xor_sync(~0u, upper ? v[0] : v[P - 1], far);
    if (WIDE) {
#pragma unroll
      for (int d = P == 2 ? 8 : 16; d > 0; d /= 2) own += __shfl_xor_sync(~0u, own, d);
    } else {
#pragma unroll 1
      for (unsigned d = P == 2 ? far / 2 : far; d > 0; d /= 2) own += __shfl_xor_sync(~0u, own, d);
      const double other = P == 2 ? __shfl_xor_sync(~0u, own, far) : 0.0;
      v[0] = upper ? other : own;
      if (P == 2) v[P - 1] = upper ? own : other;
      return;
    }
    double* to = memory + half * (2 * WARPS);
    half = 1 - half;
    const int warp = threadIdx.x / 32, warps = lanes / 32, first = warp & -warps;
    if (threadIdx.x % (32 / P) == 0) to[(upper ? WARPS : 0) + warp] = own;
    meet<THREADS_OF<WIDE>>(first, lanes);
#pragma unroll
    for (int p = 0; p < P; ++p) v[p] = to[p * WARPS + first];
#pragma unroll 1
    for (int i = 1; i < warps; ++i)
#pragma unroll
      for (int p = 0; p < P; ++p) v[p] += to[p * WARPS + first + i];
  }
  BN_MEMBER double add(double v) {
    double only[1] = {v};
    add(only);
    return only[0];
  }
  // Whether `so` is true for any row of this warp, so that the warp acts as one. All threads of a row give the same.
  BN_MEMBER bool any(bool so) const { return WIDE ? so : __any_sync(~0u, so); }
};
