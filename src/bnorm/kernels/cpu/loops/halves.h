/* float16 and bfloat16, as float32. They are converted to float32, which is exact, and back, rounded to nearest, ties to
 * even: there is only one right result, and instructions and plain code both give it. A NaN keeps its sign and leading
 * digits, and becomes quiet. */
#ifndef BNORM_HALVES_H
#define BNORM_HALVES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formulas.h"
#include "kinds.h"

#if defined(__F16C__) || (defined(_MSC_VER) && defined(__AVX2__))
#include <immintrin.h>
#define BN_HAS_HALF 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static inline float bn_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bn_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* There is no branch, so that loops vectorize, and no subnormal float32, as a processor may be set to make it 0. */
static inline float bn_half_to_float(uint16_t half)
{
    const uint32_t magnitude = half & 0x7FFFu, sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t small = bn_bits_of((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits = (magnitude << 13) + (112u << 23);
    bits += magnitude >= 0x7C00u ? 112u << 23 : 0;
    bits |= magnitude > 0x7C00u ? 1u << 22 : 0;
    return bn_of_bits(sign | (magnitude < 0x0400u ? small : bits));
}

static inline uint16_t bn_float_to_half(float x)
{
    const uint32_t bits = bn_bits_of(x), magnitude = bits & 0x7FFFFFFFu;
    /* Below 2^-14 the unit of a float16 is 2^-24, which is that of a float32 between 0.5 and 1. */
    const uint32_t small = bn_bits_of(bn_of_bits(magnitude < 0x38800000u ? magnitude : 0) + 0.5f) - 0x3F000000u;
    const uint32_t even = (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    const uint32_t large = magnitude > 0x7F800000u ? 0x7E00u | (magnitude >> 13 & 0x3FFu)
                                                   : magnitude >= 0x477FF000u ? 0x7C00u : even;
    return (uint16_t)((bits >> 16 & 0x8000u) | (magnitude < 0x38800000u ? small : large));
}

static inline float bn_bfloat_to_float(uint16_t value)
{
    const uint32_t bits = (uint32_t)value << 16;
    return bn_of_bits(bits | ((bits & 0x7FFFFFFFu) > 0x7F800000u ? 1u << 22 : 0));
}

static inline uint16_t bn_float_to_bfloat(float x)
{
    const uint32_t bits = bn_bits_of(x), even = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? bits >> 16 | 0x40u : even);
}

/* Vectors of float32, read from 16-bit numbers, or two of them written to 16-bit numbers. bn_take_bfloats leaves it to
 * the arithmetic that follows to make NaN quiet. */
#if defined(__AVX512BW__)
#define BN_HAS_VECTORS 1
typedef __m512 bn_floats;
BN_INLINE bn_floats bn_take_floats(const float *from) { return _mm512_loadu_ps(from); }
BN_INLINE void bn_give_floats(float *to, bn_floats v) { _mm512_storeu_ps(to, v); }
BN_INLINE bn_floats bn_take_halves(const uint16_t *from)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
BN_INLINE void bn_give_halves(uint16_t *to, bn_floats v)
{
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
BN_INLINE bn_floats bn_take_bfloats(const uint16_t *from)
{
    const __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}
BN_INLINE int bn_any_nan(bn_floats v, bn_floats w) { return _mm512_cmp_ps_mask(v, w, _CMP_UNORD_Q) != 0; }
BN_INLINE __m512i bn_rounded(bn_floats v)   /* the upper half of each number is the bfloat16 */
{
    const __m512i bits = _mm512_castps_si512(v);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(1 << 16));
    return _mm512_add_epi32(bits, _mm512_mask_blend_epi32(odd, _mm512_set1_epi32(0x7FFF), _mm512_set1_epi32(0x8000)));
}
BN_INLINE void bn_give_bfloats(uint16_t *to, bn_floats v, bn_floats w)
{
    static const uint16_t high[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(bn_rounded(v), _mm512_loadu_si512(high), bn_rounded(w)));
}
#elif defined(__AVX2__) && defined(BN_HAS_HALF)
#define BN_HAS_VECTORS 1
typedef __m256 bn_floats;
BN_INLINE bn_floats bn_take_floats(const float *from) { return _mm256_loadu_ps(from); }
BN_INLINE void bn_give_floats(float *to, bn_floats v) { _mm256_storeu_ps(to, v); }
BN_INLINE bn_floats bn_take_halves(const uint16_t *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
BN_INLINE void bn_give_halves(uint16_t *to, bn_floats v)
{
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
BN_INLINE bn_floats bn_take_bfloats(const uint16_t *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16));
}
BN_INLINE int bn_any_nan(bn_floats v, bn_floats w) { return _mm256_movemask_ps(_mm256_cmp_ps(v, w, _CMP_UNORD_Q)); }
BN_INLINE __m256i bn_rounded(bn_floats v)
{
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
}
BN_INLINE void bn_give_bfloats(uint16_t *to, bn_floats v, bn_floats w)
{
    const __m256i first = _mm256_srli_epi32(bn_rounded(v), 16), last = _mm256_srli_epi32(bn_rounded(w), 16);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(_mm256_packus_epi32(first, last), 0xD8));
}
#endif

#if defined(BN_HAS_VECTORS)
enum { BN_FLOATS = sizeof(bn_floats) / sizeof(float), BN_TWO = 2 * BN_FLOATS };

/* A vector of 16-bit numbers, as float32. */
BN_INLINE bn_floats bn_take_narrow(int kind, const uint16_t *from)
{
    return kind == BN_HALF ? bn_take_halves(from) : bn_take_bfloats(from);
}

/* Two vectors, as 16-bit numbers. NaN are rare. */
BN_INLINE void bn_give_narrow(int kind, uint16_t *to, bn_floats v, bn_floats w)
{
    if (kind == BN_HALF) {
        bn_give_halves(to, v);
        bn_give_halves(to + BN_FLOATS, w);
    } else if (!bn_any_nan(v, w)) {
        bn_give_bfloats(to, v, w);
    } else {
        float values[BN_TWO];
        bn_give_floats(values, v);
        bn_give_floats(values + BN_FLOATS, w);
        for (int i = 0; i < BN_TWO; i++)
            to[i] = bn_float_to_bfloat(values[i]);
    }
}
#endif

static inline void bn_read_halves(const uint16_t *from, ptrdiff_t n, float *to)
{
    ptrdiff_t i = 0;
#if defined(BN_HAS_VECTORS)
    for (; i + BN_FLOATS <= n; i += BN_FLOATS)
        bn_give_floats(to + i, bn_take_halves(from + i));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
#endif
    for (; i < n; i++)
        to[i] = bn_half_to_float(from[i]);
}

static inline void bn_write_halves(const float *from, ptrdiff_t n, uint16_t *to)
{
    ptrdiff_t i = 0;
#if defined(BN_HAS_VECTORS)
    for (; i + BN_FLOATS <= n; i += BN_FLOATS)
        bn_give_halves(to + i, bn_take_floats(from + i));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
#endif
    for (; i < n; i++)
        to[i] = bn_float_to_half(from[i]);
}

/* Convert n numbers, from number `at` on, to the type that the loops compute in. */
static inline void bn_read_float(int kind, const void *from, ptrdiff_t at, ptrdiff_t n, float *to)
{
    const uint16_t *values = (const uint16_t *)from + at;
    ptrdiff_t i = 0;
    if (kind == BN_HALF) {
        bn_read_halves(values, n, to);
        return;
    }
#if defined(BN_HAS_VECTORS)
    for (; i + BN_TWO <= n; i += BN_TWO) {
        const bn_floats v = bn_take_bfloats(values + i), w = bn_take_bfloats(values + i + BN_FLOATS);
        if (bn_any_nan(v, w))
            break;
        bn_give_floats(to + i, v);
        bn_give_floats(to + i + BN_FLOATS, w);
    }
#endif
    for (; i < n; i++)
        to[i] = bn_bfloat_to_float(values[i]);
}

static inline void bn_write_float(int kind, const float *from, ptrdiff_t n, void *to)
{
    uint16_t *values = (uint16_t *)to;
    ptrdiff_t i = 0;
    if (kind == BN_HALF) {
        bn_write_halves(from, n, values);
        return;
    }
#if defined(BN_HAS_VECTORS)
    for (; i + BN_TWO <= n; i += BN_TWO)
        bn_give_narrow(BN_BFLOAT, values + i, bn_take_floats(from + i), bn_take_floats(from + i + BN_FLOATS));
#endif
    for (; i < n; i++)
        values[i] = bn_float_to_bfloat(from[i]);
}

#endif
