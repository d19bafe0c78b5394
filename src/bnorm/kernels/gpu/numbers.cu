// Numbers: the types of the elements and of the arithmetic, and vectors of them.
//
// No file is included, neither CUDA's nor ours: launching.py joins powers.h, formulas.h and the files of a family of
// kernels, and gives the text to NVRTC. The tests give the same text to g++ (BN_ON_CPU). So two macros declare shared
// memory, and every thread of a block stays to its end, so that the tests can check barriers.

#ifndef BN_ON_CPU
#define BN_SHARED(T, name, count) __shared__ T name[count]
#define BN_DYN_SHARED(T, name)                                     \
  extern __shared__ __align__(16) unsigned char bn_dynamic[];      \
  T* name = reinterpret_cast<T*>(bn_dynamic)
#endif
#define BN_DEV static __device__ __forceinline__
#define BN_MEMBER __device__ __forceinline__

typedef long long i64;

// Half precision is stored as bits, and computed in float. CUDA's headers can do this too, but they would have to be
// found wherever they are installed.

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};

template <class T>
struct Compute {  // the type that a T is computed in, and whether sums of the squares of 32 Ts never leave its range
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

// CuPy's -ftz=true turns subnormal floats into 0 in all arithmetic, comparisons and conversions, except in `exact`,
// `rounded` and `same`. Values that are only copied keep their bits.
BN_DEV double exact(double v) { return v; }
BN_DEV double exact(float v) {
#ifdef BN_ON_CPU
  const unsigned u = __float_as_uint(v), size = u & 0x7fffffffu;
  if (size < 0x800000u) return (u >> 31 ? -1.4012984643248171e-45 : 1.4012984643248171e-45) * (double)size;  // 2^-149
  return v;
#else
  double wide;
  asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(v));
  return wide;
#endif
}

BN_DEV float rounded(double v) {
#ifdef BN_ON_CPU
  if (!(fabs(v) < 1.1754943508222875e-38)) return (float)v;
  const unsigned sign = (unsigned)__double2hiint(v) & 0x80000000u;
  return __uint_as_float(sign | (unsigned)rint(fabs(v) * 7.1362384635297994e44));  // 2^149
#else
  float narrow;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(narrow) : "d"(v));
  return narrow;
#endif
}

// Store number c of a parameter's gradient: as float64, or added to a layer's gradient. `to`: null if nobody wants it.
BN_DEV void give(void* to, i64 how, i64 c, double v) {
  if (!to) return;
  if (how == TO_FLOAT32) {
    float& sum = static_cast<float*>(to)[c];
    sum = rounded(exact(sum) + v);
  } else {
    double& sum = static_cast<double*>(to)[c];
    sum = how == TO_FLOAT64 ? sum + v : v;
  }
}

// v in type A.
template <class A>
BN_DEV A as(float v) {
  if constexpr (sizeof(A) == 8) return exact(v);
  else return v;
}
template <class A>
BN_DEV A as(double v) {
  if constexpr (sizeof(A) == 8) return v;
  else return rounded(v);
}

BN_DEV bool same(double a, double b) { return a == b; }
BN_DEV bool same(float a, float b) {
  const unsigned u = __float_as_uint(a), v = __float_as_uint(b);
  return u == v || (u | v) << 1 == 0u;  // 0 and -0
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
BN_DEV bool rarely(bool so) { return so; }  // marks rare branches, which the tests of machine code do not count
// v, within the range of type A, as bn_within of rows.h: so 0 times a scale that float cannot hold is 0.
template <class A>
BN_DEV double within(double v) { return sizeof(A) < 8 && rarely(infinite((A)v)) ? bn_bounded(v) : v; }
BN_DEV i64 quotient(i64 a, i64 b) {  // most sizes fit 32 bits, whose division is several times as fast
  return ((a | b) >> 32) ? a / b : (i64)((unsigned)a / (unsigned)b);
}
BN_DEV int quotient_of(int a, int b) { return (int)((unsigned)a / (unsigned)b); }  // a is not negative
BN_DEV i64 quotient_of(i64 a, i64 b) { return quotient(a, b); }

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
// Value v of a vector.
template <class T, int V>
BN_DEV typename Compute<T>::type value(const Vector<T, V>& t, int v) { return widen(t.v[v]); }
template <int V>
BN_DEV float value(const Vector<bf16, V>& t, int v) {
#ifndef BN_ON_CPU
  if constexpr (V > 1) {  // the upper half of a pair needs no shift
    const unsigned pair = reinterpret_cast<const unsigned*>(t.v)[v / 2];
    return __uint_as_float(v % 2 ? pair & 0xffff0000u : pair << 16);
  }
#endif
  return widen(t.v[v]);
}
// Store v. `streams`: the array is larger than the caches, so what is written should be the first to leave them.
template <class T, int V>
BN_DEV void put(T* p, const Vector<T, V>& v, bool streams) {
#ifndef BN_ON_CPU
  if (sizeof(v) == 16) {  // written out, as the compiler would split the vector
    const unsigned* w = reinterpret_cast<const unsigned*>(v.v);
    if (streams) {
      asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                   ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
    } else {
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                   ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
    }
    return;
  }
#endif
  store<T, V>(p, v);
}

// Keep a loaded vector as it is, two halves to a register, and convert it again where its values are needed again.
// Otherwise the compiler would keep the converted values, in twice as many registers.
template <class T, int V>
BN_DEV void pack(Vector<T, V>& t) {
#ifndef BN_ON_CPU
  if constexpr (sizeof(T) == 2 && V > 1) {
    unsigned* w = reinterpret_cast<unsigned*>(t.v);
#pragma unroll
    for (int i = 0; i < V / 2; ++i) asm("" : "+r"(w[i]));
  }
#endif
}

// v, but the compiler forgets how it was computed, and so does not compute it again where it is used.
BN_DEV i64 as_it_is(i64 v) {
#ifndef BN_ON_CPU
  asm("" : "+l"(v));
#endif
  return v;
}
BN_DEV float as_it_is(float v) {
#ifndef BN_ON_CPU
  asm("" : "+f"(v));
#endif
  return v;
}
BN_DEV double as_it_is(double v) {
#ifndef BN_ON_CPU
  asm("" : "+d"(v));
#endif
  return v;
}

// seen: the present value of a number that other blocks change by atomics. pause: let some time pass before the next
// look.
BN_DEV unsigned seen(unsigned* number) {
#ifdef BN_ON_CPU
  return atomicAdd(number, 0u);
#else
  return *static_cast<volatile unsigned*>(number);
#endif
}
BN_DEV void pause() {
#if defined(BN_ON_CPU) || __CUDA_ARCH__ >= 700
  __nanosleep(20);
#endif
}

// v, but the compiler forgets, at each call, that it is the same as before. In a loop, what depends on v is then
// computed inside the loop, and takes no registers outside.
BN_DEV int anew(int v) {
#ifndef BN_ON_CPU
  asm volatile("" : "+r"(v));
#endif
  return v;
}

// The dynamic shared memory of a launch; null if it has none.
BN_DEV unsigned char* dynamic_memory(bool any) {
  if (!any) return nullptr;
  BN_DYN_SHARED(unsigned char, memory);
  return memory;
}

// An activation, all of which the compiler knows, except the slope of a leaky one.
template <int KIND>
BN_DEV bn_activation activation_of(double slope) {
  return {KIND, KIND == BN_LEAKY ? slope : KIND == BN_GELU ? 1.0 : 0.0};
}

template <int N>
struct Number {  // a number as a type
  static constexpr int value = N;
};

template <bool FIRST, class A, class B>
struct Pick {
  typedef A type;
};
template <class A, class B>
struct Pick<false, A, B> {
  typedef B type;
};
