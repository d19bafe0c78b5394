/* Vectors of doubles for the exact sums: as wide as those of the processor, or a single double where no vector
 * instructions are known. */
#ifndef BNORM_EXACT_VECTORS_H
#define BNORM_EXACT_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#endif

#include "fetch.h"
#include "lanes.h"

/* bn_least_*: the smallest magnitudes so far that were not 0, or infinity; NaN is ignored. */
#if defined(__AVX512F__)
#define BN_WIDE 8
#define BN_FUSED 1
typedef __m512d bn_doubles;
typedef __m512i bn_least_f, bn_least_d;
#define bn_set(x) _mm512_set1_pd(x)
#define bn_load(p) _mm512_loadu_pd(p)
#define bn_widen(p) _mm512_cvtps_pd(_mm256_loadu_ps(p))
#define bn_store(p, a) _mm512_storeu_pd(p, a)
#define bn_plus(a, b) _mm512_add_pd(a, b)
#define bn_minus(a, b) _mm512_sub_pd(a, b)
#define bn_times(a, b) _mm512_mul_pd(a, b)
#define bn_fma(a, b, c) _mm512_fmadd_pd(a, b, c)
#define bn_fms(a, b, c) _mm512_fmsub_pd(a, b, c)

/* Magnitudes minus 1 as unsigned integers, so that 0 becomes the largest. */
BN_INLINE bn_least_f bn_none_f(void) { return _mm512_set1_epi32(-1); }
BN_INLINE bn_least_d bn_none_d(void) { return _mm512_set1_epi64(-1); }

BN_INLINE bn_least_f bn_less_f(bn_least_f least, const float *x)
{
    const __m512i b = _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
    return _mm512_min_epu32(least, _mm512_add_epi32(b, _mm512_set1_epi32(-1)));
}

BN_INLINE bn_least_d bn_less_d(bn_least_d least, bn_doubles x)
{
    const __m512i b = _mm512_and_si512(_mm512_castpd_si512(x), _mm512_set1_epi64(INT64_MAX));
    return _mm512_min_epu64(least, _mm512_add_epi64(b, _mm512_set1_epi64(-1)));
}

BN_INLINE void bn_keep_f(double *to, bn_least_f least)
{
    const __m512i b = _mm512_min_epu32(least, _mm512_set1_epi32(0x7F7FFFFF));   /* plus 1 is infinity */
    const __m512 x = _mm512_castsi512_ps(_mm512_add_epi32(b, _mm512_set1_epi32(1)));
    _mm512_storeu_pd(to, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    _mm512_storeu_pd(to + 8, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}

BN_INLINE void bn_keep_d(double *to, bn_least_d least)
{
    const __m512i b = _mm512_min_epu64(least, _mm512_set1_epi64(0x7FEFFFFFFFFFFFFF));
    _mm512_storeu_si512(to, _mm512_add_epi64(b, _mm512_set1_epi64(1)));
}
#else
#if defined(__AVX2__)
#define BN_WIDE 4
#define BN_FUSED 1
typedef __m256d bn_doubles;
typedef __m256 bn_least_f;
#define BN_EACH(name) _mm256_##name
#define bn_widen(p) _mm256_cvtps_pd(_mm_loadu_ps(p))
#define bn_fma(a, b, c) _mm256_fmadd_pd(a, b, c)
#define bn_fms(a, b, c) _mm256_fmsub_pd(a, b, c)
#define bn_is_0_f(x) _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_OQ)
#define bn_is_0_d(x) _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_EQ_OQ)
#elif defined(__SSE2__) || defined(_M_X64)
#define BN_WIDE 2
typedef __m128d bn_doubles;
typedef __m128 bn_least_f;
#define BN_EACH(name) _mm_##name
#define bn_widen(p) _mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(p))))
#define bn_is_0_f(x) _mm_cmpeq_ps(x, _mm_setzero_ps())
#define bn_is_0_d(x) _mm_cmpeq_pd(x, _mm_setzero_pd())
#endif
#ifdef BN_EACH
typedef bn_doubles bn_least_d;
#define bn_set(x) BN_EACH(set1_pd)(x)
#define bn_load(p) BN_EACH(loadu_pd)(p)
#define bn_store(p, a) BN_EACH(storeu_pd)(p, a)
#define bn_plus(a, b) BN_EACH(add_pd)(a, b)
#define bn_minus(a, b) BN_EACH(sub_pd)(a, b)
#define bn_times(a, b) BN_EACH(mul_pd)(a, b)

BN_INLINE bn_least_f bn_none_f(void) { return BN_EACH(set1_ps)(INFINITY); }
BN_INLINE bn_least_d bn_none_d(void) { return BN_EACH(set1_pd)(INFINITY); }

/* These instructions return the second operand if one is NaN. */
BN_INLINE bn_least_f bn_less_f(bn_least_f least, const float *x)
{
    const bn_least_f a = BN_EACH(loadu_ps)(x), infinite = BN_EACH(set1_ps)(INFINITY);
    const bn_least_f size = BN_EACH(andnot_ps)(BN_EACH(set1_ps)(-0.0f), a);
    return BN_EACH(min_ps)(BN_EACH(or_ps)(size, BN_EACH(and_ps)(bn_is_0_f(a), infinite)), least);
}

BN_INLINE bn_least_d bn_less_d(bn_least_d least, bn_doubles a)
{
    const bn_doubles infinite = BN_EACH(set1_pd)(INFINITY), size = BN_EACH(andnot_pd)(BN_EACH(set1_pd)(-0.0), a);
    return BN_EACH(min_pd)(BN_EACH(or_pd)(size, BN_EACH(and_pd)(bn_is_0_d(a), infinite)), least);
}

BN_INLINE void bn_keep_f(double *to, bn_least_f least)
{
    float values[2 * BN_WIDE];
    BN_EACH(storeu_ps)(values, least);
    for (int i = 0; i < 2 * BN_WIDE; i++)
        to[i] = values[i];
}

BN_INLINE void bn_keep_d(double *to, bn_least_d least) { bn_store(to, least); }
#else
#define BN_WIDE 1
typedef double bn_doubles, bn_least_d;
typedef struct { double a, b; } bn_least_f;
#define bn_set(x) (x)
#define bn_load(p) (*(p))
#define bn_widen(p) ((double)*(p))
#define bn_store(p, a) (*(p) = (a))
#define bn_plus(a, b) ((a) + (b))
#define bn_minus(a, b) ((a) - (b))
#define bn_times(a, b) ((a) * (b))
#if defined(FP_FAST_FMA)
#define BN_FUSED 1
#define bn_fma(a, b, c) fma(a, b, c)
#define bn_fms(a, b, c) fma(a, b, -(c))
#endif

BN_INLINE bn_least_d bn_none_d(void) { return INFINITY; }
BN_INLINE bn_least_d bn_less_d(bn_least_d least, double x)
{
    const double a = fabs(x);
    return a < least && a != 0 ? a : least;
}
BN_INLINE void bn_keep_d(double *to, bn_least_d least) { *to = least; }
BN_INLINE bn_least_f bn_none_f(void) { return (bn_least_f){INFINITY, INFINITY}; }
BN_INLINE bn_least_f bn_less_f(bn_least_f least, const float *x)
{
    return (bn_least_f){bn_less_d(least.a, x[0]), bn_less_d(least.b, x[1])};
}
BN_INLINE void bn_keep_f(double *to, bn_least_f least)
{
    to[0] = least.a;
    to[1] = least.b;
}
#endif
#endif

/* x + y by a fused multiply-add, which rounds once as an addition does. Some processors have separate units for
 * additions and multiplications: half of the sums use the units that multiply. */
#ifdef BN_FUSED
#define bn_also(x, y) bn_fma(x, bn_set(1.0), y)
#else
#define bn_also(x, y) bn_plus(x, y)
#endif

/* Return x^2 - q, exactly if nothing underflows and x is below 2^900; q is x * x, rounded. */
BN_INLINE bn_doubles bn_square_rest(bn_doubles x, bn_doubles q)
{
#ifdef BN_FUSED
    return bn_fms(x, x, q);
#else
    const bn_doubles c = bn_times(x, bn_set(134217729.0)), h = bn_minus(c, bn_minus(c, x)), l = bn_minus(x, h);
    const bn_doubles twice = bn_times(bn_plus(h, h), l);
    return bn_plus(bn_plus(bn_minus(bn_times(h, h), q), twice), bn_times(l, l));
#endif
}

/* Do not flush subnormals to 0, and round to nearest, whatever another library has set for this thread. Return the
 * settings before. */
BN_INLINE unsigned bn_standard_arithmetic(void)
{
#if defined(__SSE2__) || defined(_M_X64)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1F80);
    return before;
#else
    return 0;
#endif
}

BN_INLINE void bn_arithmetic_as_before(unsigned before)
{
#if defined(__SSE2__) || defined(_M_X64)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

#endif
