/* Weights of positions, which all channels share. They are read as they are, float64 or the bytes of a mask, and
 * copied to columns in registers. */
#ifndef BNORM_WEIGHTS_H
#define BNORM_WEIGHTS_H

#include "lanes.h"
#include "narrow.h"
#include "streams.h"

/* Which of eight weights (four with AVX2) each column gets if each weight is repeated `channels` times: as many
 * permutations of a vector as there are channels. */
static inline void bn_spread_order(ptrdiff_t channels, int64_t *order)
{
    const int64_t lanes = BN_PERMUTES;
    for (int64_t j = 0; j < lanes * channels; j++) {
        const uint64_t from = (uint64_t)(j / channels);
        order[j] = (int64_t)(BN_PERMUTES == 8 ? from : 2 * from | (2 * from + 1) << 32);    /* or halves, with AVX2 */
    }
}

/* SPREAD(size) for 2 to 15 values, rounded up to whole vectors: the surplus is overwritten by what comes next. */
#define BN_BY_VECTORS(size, SPREAD)                                                                                   \
    switch (((size) + 3) / 4) {                                                                                       \
    case 1: SPREAD(4) break;                                                                                          \
    case 2: SPREAD(8) break;                                                                                          \
    case 3: SPREAD(12) break;                                                                                         \
    default: SPREAD(16)                                                                                               \
    }
#define BN_SPREAD_ONE(size)                                                                                           \
    for (; n > 0; n--, w++, columns += channels) {                                                                    \
        const double one = *w;                                                                                        \
        for (int k = 0; k < (size); k++)                                                                              \
            columns[k] = one;                                                                                         \
    }
#define BN_SPREAD_RUN(size)                                                                                           \
    for (; n > 0; n--, w += run)                                                                                      \
        for (ptrdiff_t c = 0; c < channels; c++, columns += run)                                                      \
            memcpy(columns, w, (size) * sizeof *w);

/* Copies n weights to columns, each `channels` times. */
static inline void bn_spread(const double *w, ptrdiff_t n, ptrdiff_t channels, double *columns)
{
    BN_BY_VECTORS(channels, BN_SPREAD_ONE)
}

/* The same for n runs of weights, each `channels` times. Up to 3 weights after the last are read. */
static inline void bn_spread_runs(const double *w, ptrdiff_t n, ptrdiff_t channels, ptrdiff_t run, double *columns)
{
    BN_BY_VECTORS(run, BN_SPREAD_RUN)
}

/* The sum of n bytes of a mask, whose kind is one of narrow.h. */
static inline int64_t bn_sum_bytes(int kind, const void *mask, ptrdiff_t n)
{
    const uint8_t *w = (const uint8_t *)mask;
    int64_t sum = 0;
    while (n > 0) {     /* as many as 32 bits can sum */
        const int32_t some = (int32_t)(n < 1 << 16 ? n : 1 << 16);
        uint32_t part = 0;
        if (kind == BN_BOOL)
            for (int32_t i = 0; i < some; i++)
                part += w[i] != 0;
        else
            for (int32_t i = 0; i < some; i++)
                part += w[i];
        sum += part;
        w += some;
        n -= some;
    }
    return sum;
}

/* The same as bn_spread_order for bn_spread_bytes, in which a vector has sixteen bytes. */
static inline void bn_spread_byte_order(ptrdiff_t channels, uint8_t *order)
{
    for (ptrdiff_t i = 0; i < 16; i++)
        for (ptrdiff_t k = 0; k < channels; k++)
            *order++ = (uint8_t)i;
}

/* Copies n bytes of a mask to columns, each `channels` times, which is 2 to 15. */
static inline void bn_spread_bytes(const uint8_t *w, ptrdiff_t n, ptrdiff_t channels, const uint8_t *order,
                                   uint8_t *columns)
{
#if BN_PERMUTES > 1
    for (; n >= 16; n -= 16, w += 16) {
        const __m128i v = _mm_loadu_si128((const __m128i *)w);
        for (ptrdiff_t k = 0; k < 16 * channels; k += 16, columns += 16)
            _mm_storeu_si128((__m128i *)columns, _mm_shuffle_epi8(v, _mm_loadu_si128((const __m128i *)(order + k))));
    }
#endif
    (void)order;
    for (; n > 0; n--, w++, columns += channels)
        memset(columns, *w, channels);
}

/* How the weights of a row of columns are stored: a number for each column; a number, or a byte, for each `channels`
 * columns; or a byte for each column, which is a number or says whether the column counts. */
enum { BN_ALONG, BN_SHARED, BN_SHARED_BYTES, BN_BYTES, BN_BOOLS };

/* Doubles of a vector; or 1 if this compiler has no vector types. */
#if defined(__GNUC__) || defined(__clang__)
#define BN_SIDE (BN_PERMUTES > 1 ? BN_PERMUTES : 2)
typedef double bn_doubles __attribute__((vector_size(8 * BN_SIDE)));

BN_INLINE bn_doubles bn_take_double(const double *from)
{
    bn_doubles v;
    memcpy(&v, from, sizeof v);
    return v;
}

BN_INLINE bn_doubles bn_take_float(const float *from)
{
#if BN_PERMUTES == 8    /* GCC converts a whole vector by halves, with five instructions instead of one */
    return (bn_doubles)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif BN_PERMUTES == 4
    return (bn_doubles)_mm256_cvtps_pd(_mm_loadu_ps(from));
#else
    const bn_doubles v = {from[0], from[1]};
    return v;
#endif
}

BN_INLINE void bn_put(double *to, bn_doubles v)
{
    memcpy(to, &v, sizeof v);
}

/* Bytes, converted to doubles. */
BN_INLINE bn_doubles bn_take_bytes(const uint8_t *from)
{
#if BN_PERMUTES == 8
    return (bn_doubles)_mm512_cvtepi32_pd(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#elif BN_PERMUTES == 4
    int32_t four;
    memcpy(&four, from, sizeof four);
    return (bn_doubles)_mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)));
#else
    const bn_doubles v = {from[0], from[1]};
    return v;
#endif
}

/* v where the bytes of the mask are not 0, and 0 elsewhere, even if v is NaN there. */
BN_INLINE bn_doubles bn_counted(bn_doubles v, const uint8_t *mask)
{
#if BN_PERMUTES == 8
    const __m128i eight = _mm_loadl_epi64((const __m128i *)mask);
    return (bn_doubles)_mm512_maskz_mov_pd((__mmask8)_mm_test_epi8_mask(eight, eight), (__m512d)v);
#elif BN_PERMUTES == 4
    int32_t four;
    memcpy(&four, mask, sizeof four);
    const __m256i none = _mm256_cmpeq_epi64(_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four)), _mm256_setzero_si256());
    return (bn_doubles)_mm256_andnot_pd(_mm256_castsi256_pd(none), (__m256d)v);
#else
    const bn_doubles kept = {mask[0] ? v[0] : 0.0, mask[1] ? v[1] : 0.0};
    return kept;
#endif
}

/* The vector of weights v in the given order. */
BN_INLINE bn_doubles bn_ordered(bn_doubles v, const int64_t *order)
{
#if BN_PERMUTES == 8
    return (bn_doubles)_mm512_permutexvar_pd(_mm512_loadu_si512(order), (__m512d)v);
#elif BN_PERMUTES == 4
    return (bn_doubles)_mm256_castps_pd(
        _mm256_permutevar8x32_ps(_mm256_castpd_ps((__m256d)v), _mm256_loadu_si256((const __m256i *)order)));
#else
    (void)order;
    return v;
#endif
}
#else
#define BN_SIDE 1
#endif

#if BN_SIDE > 1
#define bn_weighted_columns(fours, x, ...) BN_OF(bn_weighted_columns, x)(fours, x, __VA_ARGS__)
#else
#define bn_weighted_columns(...) 0  /* sums no column: all are left to the caller */
#endif
#define BN_TEMPLATE "weights.h"
#include "both.h"
#elif defined(real)

#if BN_SIDE > 1
/* Adds s += sum w (x - m), q += sum w (x - m)^2 for a vector of columns, four rows at a time. P(d, i) is w d in row i,
 * and Q(p, d) is w d^2; both are 0 where a mask leaves a value out, even if d is NaN. */
#define BN_FOURS(P, Q)                                                                                                \
    bn_doubles s_ = bn_take_double(s + j), q_ = bn_take_double(q + j);                                                \
    const bn_doubles m_ = bn_take_double(m + j);                                                                      \
    for (ptrdiff_t i_ = 0; i_ < 4 * fours; i_ += 4) {                                                                 \
        const real *x_ = x + i_ * stride + j;                                                                         \
        const bn_doubles d0 = OF(bn_take)(x_) - m_, p0 = P(d0, i_);                                                   \
        const bn_doubles d1 = OF(bn_take)(x_ + stride) - m_, p1 = P(d1, i_ + 1);                                      \
        const bn_doubles d2 = OF(bn_take)(x_ + 2 * stride) - m_, p2 = P(d2, i_ + 2);                                  \
        const bn_doubles d3 = OF(bn_take)(x_ + 3 * stride) - m_, p3 = P(d3, i_ + 3);                                  \
        s_ += (p0 + p1) + (p2 + p3);                                                                                  \
        q_ += (Q(p0, d0) + Q(p1, d1)) + (Q(p2, d2) + Q(p3, d3));                                                      \
    }                                                                                                                 \
    bn_put(s + j, s_);                                                                                                \
    bn_put(q + j, q_);
#define BN_EACH_VECTOR(SUMS)                                                                                          \
    for (; j < n; j += BN_SIDE) {                                                                                     \
        if (ahead)                                                                                                    \
            bn_fetch(ahead, 4 * fours * BN_SIDE * sizeof(real));                                                      \
        SUMS                                                                                                          \
    }
#define BN_P_ALONG(d, i) bn_take_double((const double *)w + (i) * step + j) * d
#define BN_P_BYTES(d, i) bn_take_bytes((const uint8_t *)w + (i) * step + j) * d
#define BN_P_BOOLS(d, i) bn_counted(d, (const uint8_t *)w + (i) * step + j)
#define BN_P_SHARED(d, i) bn_ordered(near_[i], order + v_ * BN_SIDE) * d
#define BN_Q_WEIGHTS(p, d) p * d
#define BN_Q_BOOLS(p, d) p * p

/* The same for those of n columns that fill whole vectors, down 4 * fours rows, whose weights are `step` apart. If
 * weights are shared, n is a multiple of the length of `order`. Returns how many columns were summed. */
BN_APART ptrdiff_t OF(bn_weighted_columns)(ptrdiff_t fours, const real *BN_RESTRICT x, ptrdiff_t stride, ptrdiff_t n,
                                           int how, const void *BN_RESTRICT w, ptrdiff_t step, ptrdiff_t channels,
                                           const int64_t *BN_RESTRICT order,
                                           const double *BN_RESTRICT m, bn_ahead *ahead, double *BN_RESTRICT s,
                                           double *BN_RESTRICT q)
{
    ptrdiff_t j = 0, at_ = 0, v_ = 0;
    n -= n % BN_SIDE;
    if (how == BN_ALONG) {
        BN_EACH_VECTOR(BN_FOURS(BN_P_ALONG, BN_Q_WEIGHTS))
    } else if (how == BN_BOOLS) {
        BN_EACH_VECTOR(BN_FOURS(BN_P_BOOLS, BN_Q_BOOLS))
    } else if (how == BN_BYTES) {
        BN_EACH_VECTOR(BN_FOURS(BN_P_BYTES, BN_Q_WEIGHTS))
    } else {
        /* Copied, as each weight is read for every channel, and would cross cache lines. Those of the third block of
         * rows after this one are fetched. */
        bn_doubles near_[16];
        BN_EACH_VECTOR({
            for (ptrdiff_t i_ = 0; v_ == 0 && i_ < 4 * fours; i_++) {
                const ptrdiff_t from_ = i_ * step + at_;
                near_[i_] = how == BN_SHARED ? bn_take_double((const double *)w + from_)
                                             : bn_take_bytes((const uint8_t *)w + from_);
                if (how == BN_SHARED)
                    bn_fetch_line((const char *)((const double *)w + from_ + 3 * 4 * fours * step));
            }
            BN_FOURS(BN_P_SHARED, BN_Q_WEIGHTS)
            if (++v_ == channels) {
                v_ = 0;
                at_ += BN_SIDE;
            }
        })
    }
    return n;
}
#endif
#endif
