// What all kernels share: number types, the job, the walk of a thread, and how the threads of a grid join their sums.
//
// No file is included, neither of CUDA nor of ours: gpu.py puts formulas.h and this text in front of a family of
// kernels and hands the whole to NVRTC, and the tests hand the same text to g++ (BN_ON_CPU). Shared memory is therefore
// declared by two macros, and every thread of a block stays to its end, so that barriers can be checked.

#ifndef BN_ON_CPU
#define BN_SHARED(T, name, count) __shared__ T name[count]
#define BN_DYN_SHARED(T, name)                                     \
  extern __shared__ __align__(16) unsigned char bn_dynamic[];      \
  T* name = reinterpret_cast<T*>(bn_dynamic)
#endif
#define BN_DEV static __device__ __forceinline__
#define BN_MEMBER __device__ __forceinline__

typedef long long i64;

// Numbers ------------------------------------------------------------------------------------------------------------
// Half precision is stored as bits, computed in float. The headers of CUDA would do it too, at the price of depending
// on where they are installed.

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};

template <class T>
struct Compute {  // the type that a T is computed in; whether sums of squares of 32 of them always stay in its range
  typedef float type;
  static constexpr bool in_range = false;
};
template <>
struct Compute<double> {
  typedef double type;
  static constexpr bool in_range = true;
};
template <>
struct Compute<f16> {
  typedef float type;
  static constexpr bool in_range = true;
};

BN_DEV float widen(float v) { return v; }
BN_DEV double widen(double v) { return v; }
BN_DEV float widen(bf16 v) { return __uint_as_float((unsigned)v.bits << 16); }
BN_DEV float widen(f16 v) {
#ifdef BN_ON_CPU
  const unsigned sign = (v.bits & 0x8000u) << 16, exponent = (v.bits >> 10) & 31u, fraction = v.bits & 1023u;
  if (exponent == 31u) return __uint_as_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0u) return (sign ? -1.0f : 1.0f) * ((float)fraction * 5.9604644775390625e-8f);  // 2^-24
  return __uint_as_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
#else
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v.bits));
  return wide;
#endif
}

// To double without the flush of subnormals that CuPy's -ftz=true brings to every other conversion.
BN_DEV double exact(double v) { return v; }
BN_DEV double exact(float v) {
#ifdef BN_ON_CPU
  return v;
#else
  double wide;
  asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(v));
  return wide;
#endif
}

BN_DEV void narrow(float v, float& to) { to = v; }
BN_DEV void narrow(double v, double& to) { to = v; }
BN_DEV void narrow(float v, bf16& to) {
#if !defined(BN_ON_CPU) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(v));
#else
  const unsigned u = __float_as_uint(v), rounded = u + 0x7fffu + ((u >> 16) & 1u);  // to nearest, ties to even
  to.bits = (u & 0x7fffffffu) > 0x7f800000u ? (unsigned short)0x7fff : (unsigned short)(rounded >> 16);
#endif
}
BN_DEV void narrow(float v, f16& to) {
#ifdef BN_ON_CPU
  const unsigned u = __float_as_uint(v), sign = (u >> 16) & 0x8000u, size = u & 0x7fffffffu;
  if (size > 0x7f800000u) {
    to.bits = 0x7fff;
  } else if (size >= 0x477ff000u) {  // 65520 and above round to infinity
    to.bits = (unsigned short)(sign | 0x7c00u);
  } else if (size < 0x38800000u) {  // a subnormal: a whole number of 2^-24
    const float scaled = __uint_as_float(size) * 16777216.0f;
    unsigned whole = (unsigned)scaled;
    const float rest = scaled - (float)whole;
    whole += rest > 0.5f || (rest == 0.5f && (whole & 1u));
    to.bits = (unsigned short)(sign | whole);
  } else {
    to.bits = (unsigned short)(sign | ((size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13));
  }
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(v));
#endif
}

BN_DEV float fused(float a, float b, float c) { return fmaf(a, b, c); }
BN_DEV double fused(double a, double b, double c) { return fma(a, b, c); }
BN_DEV float size_of(float v) { return fabsf(v); }
BN_DEV double size_of(double v) { return fabs(v); }
BN_DEV i64 least(i64 a, i64 b) { return a < b ? a : b; }
BN_DEV bool infinite(float v) { return v == v && !(v - v == 0.0f); }
BN_DEV bool infinite(double v) { return v == v && !(v - v == 0.0); }
BN_DEV i64 quotient(i64 a, i64 b) {  // most sizes fit 32 bits, whose division is several times as fast
  return ((a | b) >> 32) ? a / b : (i64)((unsigned)a / (unsigned)b);
}

template <class T, int V>
struct alignas(sizeof(T) * V) Vector {
  T v[V];
};
template <class T, int V>
BN_DEV Vector<T, V> load(const T* p) {
  return *reinterpret_cast<const Vector<T, V>*>(p);
}
template <class T, int V>
BN_DEV void store(T* p, const Vector<T, V>& v) {
  *reinterpret_cast<Vector<T, V>*>(p) = v;
}

// The job ------------------------------------------------------------------------------------------------------------
// One struct by value. Every field has eight bytes; plans.py has the same list, and a test compares the two.

struct Job {
  // the array, and what is made of it
  const void* x;
  const void* dy;
  void* y;  // or dx
  const double* weight;  // (outer, inner)
  // float64 vectors of the channels; null where absent
  const double* gamma;
  const double* beta;
  const double* mean;
  const double* var;    // given: inference
  const double* scale;  // with relu in a backward: of its forward
  const double* shift;
  const double* a;  // dx = a (dy + w (b (x - mean) + c))
  double* b;
  double* c;
  double* stats;    // (5, C): mean, var, rstd, scale, shift
  double* moments;  // (4, C): count, mean, m2, low
  double* sums;     // (2, C): sum dy, sum dy (x - mean)
  double* dgamma;
  double* dbeta;
  double* count_at;  // where the count is a sum of weights: the number itself, written and read on the device
  // workspace
  double* partial;    // (chunks, parts, columns)
  unsigned* tickets;  // one per group of tiles, all zero between launches
  // running statistics
  void* running_mean;
  void* running_var;
  double* seen;
  int* left;      // (C,): 1 where a channel was left alone
  int* infinite;  // set to 1 where x holds an infinity
  // geometry: plans.py says what it means
  i64 channels, inner, columns, copies, steps, total;
  i64 run, jump, unit, base;
  i64 chunk, chunks, group, split, weight_step, keep;
  // switches
  i64 relu, skipna, weighted, frozen, wide_running, nonfinite;
  double eps, count, momentum, ddof;
};

enum { SKIP, PROPAGATE, TEST };  // job.nonfinite; TEST only looks

BN_DEV i64 channel_of(const Job& job, i64 column) {
  const i64 c = job.inner == 1 ? column : quotient(column, job.inner);
  return job.copies == 1 ? c : c % job.channels;
}

// The dynamic shared memory of a launch that has any.
BN_DEV unsigned char* dynamic_memory(bool any) {
  if (!any) return nullptr;
  BN_DYN_SHARED(unsigned char, memory);
  return memory;
}

// The walk of a thread: its steps are `stride` apart. Position r of a column is r / run jumps and r % run units away
// from the column's first element; run is 1 where channels lie in rows. Divisions are done once.

struct Walk {
  i64 at;      // element
  i64 within;  // the run
  i64 row;     // jumps so far
  i64 rows, far, near, wrap, run;

  BN_MEMBER Walk(const Job& job, i64 column, i64 r, i64 stride) {
    const i64 whole = quotient(r, job.run);
    run = job.run;
    row = whole;
    within = r - whole * run;
    at = column * job.base + whole * job.jump + within * job.unit;
    rows = quotient(stride, run);
    near = stride - rows * run;
    far = rows * job.jump + near * job.unit;
    wrap = job.jump - run * job.unit;
  }
  BN_MEMBER Walk(i64 first, i64 stride)
      : at(first), within(0), row(0), rows(0), far(stride), near(0), wrap(0), run(1) {}
  BN_MEMBER void next() {
    at += far;
    row += rows;
    within += near;
    if (within >= run) {
      within -= run;
      at += wrap;
      ++row;
    }
  }
};

// Joining ------------------------------------------------------------------------------------------------------------

struct Moments {  // a set of values, as formulas.h describes it
  static constexpr int PARTS = 4;
  double v[4];
  BN_MEMBER void join(const Moments& o) { bn_merge(&v[0], &v[1], &v[3], &v[2], o.v[0], o.v[1], o.v[3], o.v[2]); }
};

struct Sums {
  static constexpr int PARTS = 2;
  double v[2];
  BN_MEMBER void join(const Sums& o) {
    v[0] += o.v[0];
    v[1] += o.v[1];
  }
};

template <class S>
BN_DEV S nothing() {
  S s;
#pragma unroll
  for (int i = 0; i < S::PARTS; ++i) s.v[i] = 0.0;
  return s;
}

// Threads of a block are BX columns (of K channels) wide and BY high. Join the rows of every column, in a fixed order,
// and leave column k of the tile with thread k; the others have nothing. `memory` holds SIZE doubles, and is free
// behind the next barrier.
template <class S, int K, int BX, int BY>
struct Tile {
  static constexpr int THREADS = BX * BY, WIDTH = BX * K;
  static constexpr int ROWS = BX >= 32 ? 1 : 32 / BX;  // that share a warp
  static constexpr int WARPS = BY / ROWS;
  static constexpr int SIZE = S::PARTS * (WARPS * WIDTH > THREADS ? WARPS * WIDTH : THREADS);
};

template <class S, int K, int BX, int BY>
BN_DEV S join_block(S (&mine)[K], double* memory) {
  typedef Tile<S, K, BX, BY> tile;
  const int tid = threadIdx.x, tx = tid % BX, ty = tid / BX;
#pragma unroll 1
  for (int k = 0; k < K; ++k) {  // `mine` moves up instead of k moving on: one copy of the code, and all in registers
    S sum = mine[0];
#pragma unroll 1
    for (int d = 16; d >= BX; d >>= 1) {
      S other;
#pragma unroll
      for (int i = 0; i < S::PARTS; ++i) other.v[i] = __shfl_down_sync(~0u, sum.v[i], d);
      sum.join(other);
    }
    if (ty % tile::ROWS == 0) {
#pragma unroll
      for (int i = 0; i < S::PARTS; ++i)
        memory[(i * tile::WARPS + ty / tile::ROWS) * tile::WIDTH + tx * K + k] = sum.v[i];
    }
#pragma unroll
    for (int i = 0; i + 1 < K; ++i) mine[i] = mine[i + 1];
  }
  __syncthreads();
  S sum = nothing<S>();
  if (tid < tile::WIDTH) {
#pragma unroll 1
    for (int w = 0; w < tile::WARPS; ++w) {
      S other;
#pragma unroll
      for (int i = 0; i < S::PARTS; ++i) other.v[i] = memory[(i * tile::WARPS + w) * tile::WIDTH + tid];
      sum.join(other);
    }
  }
  return sum;
}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Moments& sum);  // of the family of kernels
template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Sums& sum);

// Join the partial sums of a channel, or of several, with all threads of the block; finish_channel gets each total.
// The order is fixed by the sizes: thread `slice` of a channel takes every width-th item, and a tree joins the slices.
template <class T, class S, int THREADS>
BN_DEV void join_partials(const Job& job, i64 first, i64 last, double* memory) {
  const int tid = threadIdx.x;
  const i64 items = job.chunks * job.copies * job.inner, per_chunk = job.copies * job.inner;
  int slices = 1;
  while (2 * slices <= THREADS && 2 * slices * (last - first) <= THREADS && slices < items) slices *= 2;
  const int width = THREADS / slices, slice = tid / width;
  // Written by other blocks: not to be read from a stale first-level cache.
  const volatile double* partial = job.partial;
  for (i64 begin = first; begin < last; begin += width) {
    const i64 c = begin + tid % width;
    S sum = nothing<S>();
    if (c < last) {
#pragma unroll 1
      for (i64 item = slice; item < items; item += slices) {
        const i64 g = quotient(item, per_chunk), rest = item - g * per_chunk, copy = quotient(rest, job.inner);
        const i64 column = copy * job.channels * job.inner + c * job.inner + (rest - copy * job.inner);
        S other;
#pragma unroll
        for (int i = 0; i < S::PARTS; ++i) other.v[i] = partial[(g * S::PARTS + i) * job.columns + column];
        sum.join(other);
      }
    }
#pragma unroll 1
    for (int half = slices / 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < S::PARTS; ++i) memory[i * THREADS + tid] = sum.v[i];
      __syncthreads();
      if (slice < half) {
        S other;
#pragma unroll
        for (int i = 0; i < S::PARTS; ++i) other.v[i] = memory[i * THREADS + tid + half * width];
        sum.join(other);
      }
      __syncthreads();
    }
    if (slice == 0 && c < last) finish_channel<T>(job, c, sum);
  }
}

// From the sums of the threads to finished channels: the block writes its partial sums, and the last one of its group
// of tiles joins them all. The ticket only says which block is last, never in which order sums are joined.
template <class T, class S, int K, int BX, int BY>
BN_DEV void finish(const Job& job, i64 tile_index, i64 g, S (&mine)[K]) {
  typedef Tile<S, K, BX, BY> tile;
  BN_SHARED(double, memory, tile::SIZE);
  BN_SHARED(int, is_last, 1);
  const S sum = join_block<S, K, BX, BY>(mine, memory);
  const int tid = threadIdx.x;
  const i64 column = tile_index * tile::WIDTH + tid;
  if (tid < tile::WIDTH && column < job.columns) {
#pragma unroll
    for (int i = 0; i < S::PARTS; ++i) job.partial[(g * S::PARTS + i) * job.columns + column] = sum.v[i];
  }
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
