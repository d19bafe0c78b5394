/* What Cython has no words for: bits of numbers, flags between threads, functions not inlined, processor features. */
#ifndef BNORM_MEMORY_H
#define BNORM_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef _MSC_VER
#include <intrin.h>
#endif
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
#include <cpuid.h>
#endif

/* A function that is not inlined: if it were, the compiler would forget that its arrays do not overlap, and would not
 * vectorize it. */
#if defined(__GNUC__) || defined(__clang__)
#define BN_APART static __attribute__((noinline, unused))
#elif defined(_MSC_VER)
#define BN_APART static __declspec(noinline)
#else
#define BN_APART static
#endif

/* Goes before a loop of few, constantly many steps, which compilers would otherwise unroll before they could vectorize
 * it. Most loops need it in Clang. */
#if defined(__clang__)
#define BN_ROLLED _Pragma("clang loop unroll(disable)")
#elif defined(__GNUC__)
#define BN_ROLLED _Pragma("GCC unroll 1")
#else
#define BN_ROLLED
#endif

/* A variable of which each thread has its own. */
#ifdef _MSC_VER
#define BN_OF_THREAD __declspec(thread)
#else
#define BN_OF_THREAD __thread
#endif

/* Whether x is an infinity (NaN is not). The result is as wide as x, so that loops vectorize. */
static inline int32_t bn_infinite_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits << 1 == 0xFF000000u;
}

static inline int64_t bn_infinite_double(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits << 1 == 0xFFE0000000000000u;
}

/* Set a flag that other threads may be setting too. */
static inline void bn_set(int *flag)
{
#if defined(__GNUC__) || defined(__clang__)
    __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
#else
    *(volatile int *)flag = 1;
#endif
}

/* A number that threads store for each other; all store the same. */
static inline double bn_shared(const double *number)
{
#if defined(__GNUC__) || defined(__clang__)
    double found;
    __atomic_load(number, &found, __ATOMIC_RELAXED);
    return found;
#else
    return *(const volatile double *)number;
#endif
}

static inline void bn_share_number(double *number, double found)
{
#if defined(__GNUC__) || defined(__clang__)
    __atomic_store(number, &found, __ATOMIC_RELAXED);
#else
    *(volatile double *)number = found;
#endif
}

/* Returns a number that another core has written, and overwrites it. If it were only read, the other core would be slow
 * to write this line again: 10 to 40 ns on Zen 4. */
static inline double bn_take_over(double *number)
{
    const double found = *number;
    *number = 0.0;
    return found;
}

/* Whether the processor is AMD's. */
static inline int bn_is_amd(void)
{
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") != 0;
#else
    return 0;
#endif
}

/* Whether the processor is AMD's Zen 5 (family 26) or later. These read memory as fast between stores past the caches
 * as between the loads of sums, and they read vectors that are full cache lines faster than other vectors. */
static inline int bn_is_zen_5(void)
{
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
    unsigned a, b, c, d;
    return bn_is_amd() && __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) >= 26;
#else
    return 0;
#endif
}

/* Whether the third-level cache is hardly faster than memory. That holds for Intel's servers with AVX-512, whose
 * third-level cache is spread over all cores. */
static inline int bn_far_third_level(void)
{
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f");
#else
    return 0;
#endif
}

/* The widest build of the kernels that this processor and its operating system can run: 0 baseline, 1 AVX2,
 * 2 AVX-512; levels 1 and 2 need FMA and F16C. */
static inline int bn_processor_level(void)
{
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
    __builtin_cpu_init();
    unsigned a, b, leaf1, d;    /* not every compiler knows "f16c" */
    if (!__get_cpuid(1, &a, &b, &leaf1, &d) || (leaf1 & (1u << 29)) == 0)
        return 0;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
           && __builtin_cpu_supports("avx512vl") ? 2 : 1;
#elif defined(_MSC_VER) && defined(_M_X64)
    int leaf[4];
    __cpuid(leaf, 1);
    if ((leaf[2] & (1 << 27)) == 0 || (leaf[2] & (1 << 29)) == 0 || (_xgetbv(0) & 0x6) != 0x6) return 0;
    __cpuidex(leaf, 7, 0);
    const int avx2 = (leaf[1] >> 5) & 1, wide = (leaf[1] & 0xC0030000) == (int)0xC0030000;
    return wide && (_xgetbv(0) & 0xE0) == 0xE0 ? 2 : avx2;
#else
    return 0;
#endif
}

#endif
