/* Weights of positions, which all channels share. They are read as they are, float64, float32 or the bytes of a mask,
 * and copied to columns in registers. */
#ifndef BNORM_WEIGHTS_H
#define BNORM_WEIGHTS_H

#include "doubles.h"
#include "narrow.h"
#include "lanes.h"
#include "streams.h"

/* Which weight each of n columns gets if each weight is repeated `channels` times. Of eight weights (four with AVX2)
 * this is as many permutations of a vector as there are channels, and they serve for all columns. */
static inline void bn_spread_order(ptrdiff_t channels, ptrdiff_t n, int64_t *order)
{
    const int64_t weights = BN_PERMUTES > 1 ? BN_PERMUTES : n / channels;
    for (int64_t i = 0; i < weights; i++)
        for (ptrdiff_t k = 0; k < channels; k++)
            *order++ = BN_PERMUTES == 4 ? 2 * i | (2 * i + 1) << 32 : i;    /* halves, with AVX2 */
}

/* SPREAD(size), for up to 16 values rounded up to whole vectors: the surplus is overwritten by what comes next. */
#define BN_BY_VECTORS(size, SPREAD)                                                                                   \
    switch (((size) + 3) / 4) {                                                                                       \
    case 1: SPREAD(4) break;                                                                                          \
    case 2: SPREAD(8) break;                                                                                          \
    case 3: SPREAD(12) break;                                                                                         \
    case 4: SPREAD(16) break;                                                                                         \
    default: SPREAD(size)                                                                                             \
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

/* Copies n bytes of a mask to columns, each `channels` times. */
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

/* How the weights of a row of columns are stored: one for each column, or one for each `channels` columns (BN_SHARED).
 * The bytes of BN_BOOLS only say whether the column counts. */
enum { BN_ALONG, BN_BOOLS, BN_SHARED, BN_SHARED_FLOATS, BN_SHARED_BYTES };

#if BN_SIDE > 1
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
    const bn_longs kept = {-(int64_t)(mask[0] != 0), -(int64_t)(mask[1] != 0)};
    return (bn_doubles)((bn_longs)v & kept);
#endif
}

/* The first `left` of the values that fill a vector, and zeros behind them. */
#if BN_PERMUTES == 8
#define BN_FIRST(left) ((__mmask8)((left) < 8 ? (1 << (left)) - 1 : 255))
BN_INLINE bn_doubles bn_take_some_double(const double *from, ptrdiff_t left)
{
    return (bn_doubles)_mm512_maskz_loadu_pd(BN_FIRST(left), from);
}

BN_INLINE bn_doubles bn_take_some_float(const float *from, ptrdiff_t left)
{
    return (bn_doubles)_mm512_cvtps_pd(_mm256_maskz_loadu_ps(BN_FIRST(left), from));
}
#else
#define BN_TAKE_SOME(type)                                                                                            \
    bn_doubles v = {0};                                                                                               \
    if (left >= BN_SIDE)                                                                                              \
        return bn_take_##type(from);                                                                                  \
    for (int j = 0; j < BN_SIDE - 1; j++)                                                                             \
        if (j < left)                                                                                                 \
            v[j] = (double)from[j];                                                                                   \
    return v;
BN_INLINE bn_doubles bn_take_some_double(const double *from, ptrdiff_t left) { BN_TAKE_SOME(double) }
BN_INLINE bn_doubles bn_take_some_float(const float *from, ptrdiff_t left) { BN_TAKE_SOME(float) }
#endif

/* v where w is not 0, and 0 elsewhere, even if v is NaN there. */
BN_INLINE bn_doubles bn_unless_zero(bn_doubles v, bn_doubles w)
{
    const bn_doubles zero = {0};
    return (bn_doubles)((bn_longs)v & (bn_longs)(w != zero));
}

#if BN_PERMUTES > 1
/* The vector of weights v in the given order. */
BN_INLINE bn_doubles bn_ordered(bn_doubles v, const int64_t *order)
{
#if BN_PERMUTES == 8
    return (bn_doubles)_mm512_permutexvar_pd(_mm512_loadu_si512(order), (__m512d)v);
#else
    return (bn_doubles)_mm256_castps_pd(
        _mm256_permutevar8x32_ps(_mm256_castpd_ps((__m256d)v), _mm256_loadu_si256((const __m256i *)order)));
#endif
}
#else
/* Two of the weights, in the given order. */
BN_INLINE bn_doubles bn_pick(const double *w, const int64_t *order)
{
    const bn_doubles v = {w[order[0]], w[order[1]]};
    return v;
}
#endif
#endif

/* Converts n weights that are not float64, from weight `at` on. */
BN_APART void bn_read_weights(int kind, const void *from, ptrdiff_t at, ptrdiff_t n, double *to)
{
    const float *singles = (const float *)from + at;
    const uint8_t *bytes = (const uint8_t *)from + at;
    ptrdiff_t i = 0;
    if (kind != BN_FLOAT32 && BN_SIDE < 8) {    /* a few bytes at a time would be slower than the compiler's loop */
        bn_read_double(kind, from, at, n, to);
        return;
    }
#if BN_SIDE > 1
    const bn_doubles zero = {0};
    for (; i + BN_SIDE <= n; i += BN_SIDE)
        bn_put(to + i, kind == BN_FLOAT32 ? bn_take_float(singles + i)
                       : kind == BN_BOOL  ? bn_counted(zero + 1.0, bytes + i) : bn_take_bytes(bytes + i));
#endif
    for (; i < n; i++)
        to[i] = kind == BN_FLOAT32 ? (double)singles[i] : kind == BN_BOOL ? (double)(bytes[i] != 0) : (double)bytes[i];
}

#if BN_SIDE > 1
#define bn_weighted_columns(fours, x, ...) BN_OF(bn_weighted_columns, x)(fours, x, __VA_ARGS__)
#else
#define bn_weighted_columns(...) 0  /* sums no column: all are left to the caller */
#endif
#define bn_weighted_planes(planes, n, x, ...) BN_OF(bn_weighted_planes, x)(planes, n, x, __VA_ARGS__)
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
        const bn_doubles d0 = bn_less_doubles(OF(bn_take)(x_), m_, minus_), p0 = P(d0, i_);                           \
        const bn_doubles d1 = bn_less_doubles(OF(bn_take)(x_ + stride), m_, minus_), p1 = P(d1, i_ + 1);              \
        const bn_doubles d2 = bn_less_doubles(OF(bn_take)(x_ + 2 * stride), m_, minus_), p2 = P(d2, i_ + 2);          \
        const bn_doubles d3 = bn_less_doubles(OF(bn_take)(x_ + 3 * stride), m_, minus_), p3 = P(d3, i_ + 3);          \
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
#define BN_P_BOOLS(d, i) bn_counted(d, (const uint8_t *)w + (i) * step + j)
#define BN_P_SHARED(d, i) bn_ordered(near_[i], order + v_ * BN_SIDE) * d
#define BN_P_PICKED(d, i) bn_pick((const double *)w + (i) * step, order + j) * d
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
    const double minus_ = bn_minus_one_double();
    ptrdiff_t j = 0;
    n -= n % BN_SIDE;
    if (how == BN_ALONG) {
        BN_EACH_VECTOR(BN_FOURS(BN_P_ALONG, BN_Q_WEIGHTS))
    } else if (how == BN_BOOLS) {
        BN_EACH_VECTOR(BN_FOURS(BN_P_BOOLS, BN_Q_BOOLS))
    } else {
#if BN_PERMUTES > 1
        /* Copied, as each weight is read for every channel, and would cross cache lines. Those of the third block of
         * rows after this one are fetched. */
        const ptrdiff_t size_ = how == BN_SHARED ? sizeof(double) : how == BN_SHARED_FLOATS ? sizeof(float) : 1;
        ptrdiff_t at_ = 0, v_ = 0;
        bn_doubles near_[16];
        BN_EACH_VECTOR({
            for (ptrdiff_t i_ = 0; v_ == 0 && i_ < 4 * fours; i_++) {
                const char *from_ = (const char *)w + (i_ * step + at_) * size_;
                near_[i_] = how == BN_SHARED ? bn_take_double((const double *)from_)
                            : how == BN_SHARED_FLOATS ? bn_take_float((const float *)from_)
                                                      : bn_take_bytes((const uint8_t *)from_);
                if (how != BN_SHARED_BYTES)
                    bn_fetch_line(from_ + 3 * 4 * fours * step * size_);
            }
            BN_FOURS(BN_P_SHARED, BN_Q_WEIGHTS)
            if (++v_ == channels) {
                v_ = 0;
                at_ += BN_SIDE;
            }
        })
#else
        BN_EACH_VECTOR(BN_FOURS(BN_P_PICKED, BN_Q_WEIGHTS))
#endif
    }
    return n;
}
#endif

#if BN_SIDE > 1
/* Adds a vector of a plane, from value i on, of which the first `left` values exist. */
BN_INLINE void OF(bn_plane_vector)(const real *x, int kind, const void *w, ptrdiff_t i, ptrdiff_t left, bn_doubles m,
                                   bn_doubles *s, bn_doubles *q)
{
    bn_doubles d, p;
    if (kind == BN_BOOL || kind == BN_UINT8) {
        const uint8_t *bytes = (const uint8_t *)w + i;
        uint8_t some[BN_SIDE] = {0};
        if (left < BN_SIDE)
            bytes = (const uint8_t *)memcpy(some, bytes, (size_t)left);
        d = bn_counted(OF(bn_take_some)(x + i, left) - m, bytes);
        p = kind == BN_BOOL ? d : bn_take_bytes(bytes) * d;
    } else {
        bn_doubles weight = kind == BN_FLOAT32 ? bn_take_some_float((const float *)w + i, left)
                                               : bn_take_some_double((const double *)w + i, left);
        BN_HIDE(weight);    /* or the compiler loads it twice */
        d = bn_unless_zero(OF(bn_take_some)(x + i, left) - m, weight);
        p = weight * d;
    }
    *s += p;
    *q += p * d;
}
#endif

/* Adds sum w (x - m) and sum w (x - m)^2 of a plane of n values to 8 parts of each. A value of weight 0 does not enter,
 * even if it is NaN. Weights are of any kind, a constant to the compiler. There are 16 running sums of each, as terms
 * that are all equal would be rounded the same way in each addition. */
BN_INLINE void OF(bn_weighted_plane)(const real *x, ptrdiff_t n, int kind, const void *w, double m, double *sum,
                                     double *square)
{
    enum { RUNNING = 16 };
    ptrdiff_t i = 0;
#if BN_SIDE > 1
    bn_doubles s[RUNNING / BN_SIDE] = {{0}}, q[RUNNING / BN_SIDE] = {{0}}, center;
    for (int j = 0; j < BN_SIDE; j++)
        center[j] = m;
    for (; i + RUNNING <= n; i += RUNNING)
        BN_UNROLLED
        for (int v = 0; v < RUNNING / BN_SIDE; v++)
            OF(bn_plane_vector)(x, kind, w, i + v * BN_SIDE, BN_SIDE, center, &s[v], &q[v]);
    BN_UNROLLED
    for (int v = 0; v < RUNNING / BN_SIDE; v++, i += BN_SIDE)
        if (i < n)
            OF(bn_plane_vector)(x, kind, w, i, n - i, center, &s[v], &q[v]);
    BN_UNROLLED
    for (int v = 0; v < 8 / BN_SIDE; v++) {
        bn_put(sum + v * BN_SIDE, bn_take_double(sum + v * BN_SIDE) + (s[v] + s[v + 8 / BN_SIDE]));
        bn_put(square + v * BN_SIDE, bn_take_double(square + v * BN_SIDE) + (q[v] + q[v + 8 / BN_SIDE]));
    }
#else
    double s[RUNNING] = {0}, q[RUNNING] = {0};
    for (; i < n; i++) {
        const double weight = kind == BN_UINT8     ? (double)((const uint8_t *)w)[i]
                              : kind == BN_BOOL    ? (double)(((const uint8_t *)w)[i] != 0)
                              : kind == BN_FLOAT32 ? (double)((const float *)w)[i] : ((const double *)w)[i];
        const double d = weight != 0.0 ? (double)x[i] - m : 0.0, p = weight * d;
        s[i % RUNNING] += p;
        q[i % RUNNING] += p * d;
    }
    for (int j = 0; j < 8; j++) {
        sum[j] += s[j] + s[j + 8];
        square[j] += q[j] + q[j + 8];
    }
#endif
}

/* The same for planes that follow each other, and have the same weights. */
BN_INLINE void OF(bn_planes_of_kind)(ptrdiff_t planes, ptrdiff_t n, const real *x, int kind, const void *w,
                                     const double *m, bn_ahead *ahead, double *sum, double *square)
{
    for (; planes > 0; planes--, x += n, m++, sum += 8, square += 8) {
        if (ahead)
            bn_fetch(ahead, n * sizeof(real));
        OF(bn_weighted_plane)(x, n, kind, w, *m, sum, square);
    }
}

BN_APART void OF(bn_weighted_planes)(ptrdiff_t planes, ptrdiff_t n, const real *x, int kind, const void *w,
                                     const double *m, bn_ahead *ahead, double *sum, double *square)
{
    switch (kind) {
    case BN_FLOAT32: OF(bn_planes_of_kind)(planes, n, x, BN_FLOAT32, w, m, ahead, sum, square); break;
    case BN_BOOL: OF(bn_planes_of_kind)(planes, n, x, BN_BOOL, w, m, ahead, sum, square); break;
    case BN_UINT8: OF(bn_planes_of_kind)(planes, n, x, BN_UINT8, w, m, ahead, sum, square); break;
    default: OF(bn_planes_of_kind)(planes, n, x, BN_REAL, w, m, ahead, sum, square);
    }
}
#endif
