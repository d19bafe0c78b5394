/* Loops over channels and partial sums of which the compiler has to know more than a Cython loop can say: that arrays
 * do not overlap, or that a loop must not be unrolled before it is vectorized. */
#ifndef BNORM_LANES_H
#define BNORM_LANES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formulas.h"
#include "memory.h"

/* How many doubles one instruction puts into any order. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define BN_PERMUTES 8
#elif defined(__AVX2__)
#include <immintrin.h>
#define BN_PERMUTES 4
#else
#define BN_PERMUTES 1
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define BN_ROLLED _Pragma("GCC unroll 1")
#else
#define BN_ROLLED
#endif

#if defined(_MSC_VER)
#define BN_RESTRICT __restrict
#else
#define BN_RESTRICT restrict
#endif

/* Before a loop whose result lies where an argument does or apart from all of them: nothing is left to be checked, and
 * a check takes as long as a short row. */
#if defined(__clang__)
#define BN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define BN_INDEPENDENT _Pragma("GCC ivdep")
#elif defined(_MSC_VER)
#define BN_INDEPENDENT __pragma(loop(ivdep))
#else
#define BN_INDEPENDENT
#endif

/* The function of that name for what p points to: both.h makes one for float and one for double. */
#define BN_OF(name, p) _Generic(*(p), float: name##_float, double: name##_double)

/* bn_add_block for every channel. Where all have as many values, as they do without weights and NaN, one division is
 * enough. */
static inline void bn_add_blocks(ptrdiff_t channels, double count, const double *BN_RESTRICT center,
                                 const double *BN_RESTRICT s, const double *BN_RESTRICT q, double *BN_RESTRICT n,
                                 double *BN_RESTRICT mean, double *BN_RESTRICT m2, double *BN_RESTRICT low)
{
    const double inverse = 1.0 / count, n0 = n[0], w = bn_share(n0, count);
    int differ = 0;
    for (ptrdiff_t c = 0; c < channels; c++)
        differ |= n[c] != n0;
    if (differ) {
        for (ptrdiff_t c = 0; c < channels; c++)
            bn_add_block(&n[c], &mean[c], &m2[c], &low[c], count, inverse, center[c], s[c], q[c]);
        return;
    }
    for (ptrdiff_t c = 0; c < channels; c++) {
        bn_join(&mean[c], &m2[c], &low[c], n0, w, center[c], bn_block_m2(s[c], q[c], inverse), s[c] * inverse);
        n[c] = n0 + count;
    }
}

#if defined(__AVX512DQ__)
/* The two halves of a vector, added up; and 8 sums in float64, begun here or added. */
BN_INLINE __m256 bn_halved(__m512 v)
{
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

BN_INLINE void bn_keep_eight(__m256 sums, int begin, double *eight)
{
    const __m512d c = _mm512_cvtps_pd(sums);
    _mm512_storeu_pd(eight, begin ? c : _mm512_add_pd(_mm512_loadu_pd(eight), c));
}
#endif

/* 8 partial sums to one. */
BN_INLINE double bn_whole(const double *eight)
{
    const double a = eight[0] + eight[4], b = eight[1] + eight[5], c = eight[2] + eight[6], d = eight[3] + eight[7];
    return (a + c) + (b + d);
}

/* The numbers of channels, columns, rows or runs, one array of each, in the type of x; NULL where they are not used. */
typedef struct {
    const void *h, *scale, *shift;  /* high part of the mean, and the forward */
    const void *gamma, *beta;       /* of each value of a row, after that */
    const void *a, *b, *c;          /* of the gradient */
    const void *gain;               /* a factor of dy alone */
    const void *w;                  /* weights, of each value */
    const void *dh;                 /* what is added to the gradient, of each value */
} bn_numbers;

static inline bn_numbers bn_no_numbers(void) { const bn_numbers none = {0}; return none; }

/* What is summed: g and g t, t being x - h. g is t; or dy, brought before the activation of v = (x - h) scale + shift;
 * or dy gamma, dy being brought before that of v gamma + beta; or w t, t being 0 where w is; or as the second, t being
 * 0 where g is. */
enum { BN_SQUARES, BN_PAIRS, BN_SCALED, BN_WEIGHED_SQUARES, BN_WEIGHED_PAIRS };

#define BN_ARRAY_IS(h) const real *const h = (const real *)of->h;
#define BN_NUMBER_IS(h) const real own_##h = ((const real *)of->h)[k];
#define BN_MAP_NUMBERS(DO) DO(h) DO(scale) DO(shift)

/* A sum of float32 squares or products that is smaller, for each value, has lost digits to subnormal numbers, and is
 * made again in float64. Products have both signs: what is left of large ones may be small, so they are suspected
 * earlier. */
#define BN_LEAST_SQUARE 1e-36
#define BN_LEAST_PRODUCT 1e-30

enum {
    BN_WIDTH = 32,  /* partial sums; a loop of 16 would be unrolled before it could be vectorized */
    BN_TINY = 16,   /* values of a row that a single vector holds */
    BN_BATCH = 64,  /* most rows of a batch */
    BN_CHAIN = 8,   /* values that are added to one of them before it is added in float64 */
    BN_BEYOND = BN_WIDTH * sizeof(double)   /* bytes of zeros behind gamma and beta */
};

/* Both sums of n values of a run, in lanes, a few vectors at a time in the type of x: STEP(i, j, kept) adds value i in
 * lane j, if it is kept. What does not fill a vector is read together with what lies behind it, as far as `left` values
 * may be read. */
#define BN_RUN_IN_LANES(n, left, first, second, STEP)                                                                 \
    for (ptrdiff_t i_ = 0; i_ < (n);) {                                                                               \
        const ptrdiff_t end_ = (n) - i_ < BN_CHAIN * BN_WIDTH ? (n) : i_ + BN_CHAIN * BN_WIDTH;                       \
        real s[BN_WIDTH], t[BN_WIDTH];                                                                                \
        for (int32_t j_ = 0; j_ < BN_WIDTH; j_++)                                                                     \
            s[j_] = t[j_] = 0;                                                                                        \
        for (; i_ + BN_WIDTH <= end_; i_ += BN_WIDTH)                                                                 \
            for (int32_t j_ = 0; j_ < BN_WIDTH; j_++) {                                                               \
                STEP(i_ + j_, j_, 1)                                                                                  \
            }                                                                                                         \
        if (i_ < end_ && (left) - i_ >= BN_WIDTH) {                                                                   \
            const int32_t rest_ = (int32_t)(end_ - i_);                                                               \
            for (int32_t j_ = 0; j_ < BN_WIDTH; j_++) {                                                               \
                STEP(i_ + j_, j_, j_ < rest_)                                                                         \
            }                                                                                                         \
        } else {                                                                                                      \
            for (int32_t j_ = 0; i_ + j_ < end_; j_++) {                                                              \
                STEP(i_ + j_, j_, 1)                                                                                  \
            }                                                                                                         \
        }                                                                                                             \
        i_ = end_;                                                                                                    \
        OF(bn_fold)(BN_WIDTH, 0, s, first);                                                                           \
        OF(bn_fold)(BN_WIDTH, 0, t, second);                                                                          \
    }

/* Both sums of a run of n values, 32 at least, 8 parts of each in float64, begun here or added. SET(i, k, kept) lets
 * s[j] and t[j] begin with value i, and with k if that is kept; ADD(i) adds one. What does not fill a vector is read as
 * the last vector of the run, together with the first. Constants to the compiler: `begin`, and `brief` if n is less
 * than 64. */
#define BN_RUN_SUMS(begin, brief, n, first, second, SET, ADD)                                                         \
    {                                                                                                                 \
        const int32_t rest_ = (int32_t)((n) % BN_WIDTH);                                                              \
        const ptrdiff_t even_ = (n) - rest_;                                                                          \
        ptrdiff_t i_ = BN_WIDTH, end_ = even_ < BN_CHAIN * BN_WIDTH ? even_ : BN_CHAIN * BN_WIDTH;                    \
        real s[BN_WIDTH], t[BN_WIDTH];                                                                                \
        for (int32_t j = 0; j < BN_WIDTH; j++) {                                                                      \
            SET(j, (n) - BN_WIDTH + j, j >= BN_WIDTH - rest_)                                                         \
        }                                                                                                             \
        if (!(brief))                                                                                                 \
            for (; i_ < end_; i_ += BN_WIDTH)                                                                         \
                for (int32_t j = 0; j < BN_WIDTH; j++) {                                                              \
                    ADD(i_ + j)                                                                                       \
                }                                                                                                     \
        OF(bn_fold)(BN_WIDTH, begin, s, first);                                                                       \
        OF(bn_fold)(BN_WIDTH, begin, t, second);                                                                      \
        while (!(brief) && i_ < even_) {                                                                              \
            real s[BN_WIDTH], t[BN_WIDTH];                                                                            \
            end_ = even_ - i_ < BN_CHAIN * BN_WIDTH ? even_ : i_ + BN_CHAIN * BN_WIDTH;                               \
            for (int32_t j = 0; j < BN_WIDTH; j++)                                                                    \
                s[j] = t[j] = 0;                                                                                      \
            for (; i_ < end_; i_ += BN_WIDTH)                                                                         \
                for (int32_t j = 0; j < BN_WIDTH; j++) {                                                              \
                    ADD(i_ + j)                                                                                       \
                }                                                                                                     \
            OF(bn_fold)(BN_WIDTH, 0, s, first);                                                                       \
            OF(bn_fold)(BN_WIDTH, 0, t, second);                                                                      \
        }                                                                                                             \
    }

/* A value of a row with a gamma for each, as p_ and q_, of both sums along it; and what it adds to those of columns. */
#define BN_ROW_VALUE(i, keep)                                                                                         \
    const int kept_ = keep;                                                                                           \
    const real d_ = x[i] - own_h, v_ = d_ * own_scale + own_shift;                                                    \
    const real g_ = OF(bn_act_pull)(act, v_ * gamma[i] + beta[i], dy[i]), scaled_ = g_ * gamma[i];                    \
    const real p_ = OF(bn_kept)(scaled_, kept_), q_ = OF(bn_kept)(scaled_ * d_, kept_);                               \
    across[i] += OF(bn_kept)(g_, kept_);                                                                              \
    along[i] += OF(bn_kept)(g_ * v_, kept_);
#define BN_ROW_STEP(i, j, kept)                                                                                       \
    BN_ROW_VALUE(i, kept)                                                                                             \
    s[j] += p_;                                                                                                       \
    t[j] += q_;
#define BN_SHORT_STEP(i, j, kept)                                                                                     \
    const real d_ = x[i] - own_h, v_ = d_ * scale + shift;                                                            \
    const real g_ = what == BN_PAIRS ? OF(bn_act_pull)(act, v_, dy[i])                                                \
                                     : OF(bn_act_pull)(act, v_ * gamma[i] + beta[i], dy[i] * gamma[i]);               \
    s[j] += OF(bn_kept)(g_, kept);                                                                                    \
    t[j] += OF(bn_kept)(g_ * d_, kept);
#define BN_TWO_POWERS(i, k, kept)                                                                                     \
    s[j] = OF(bn_power)(square, x[i] - h) + OF(bn_power)(square, OF(bn_kept)(x[k] - h, kept));                        \
    t[j] = 0;
#define BN_POWER(i) s[j] += OF(bn_power)(square, x[i] - h);

#define bn_careful_sums(act, what, dy, ...) BN_OF(bn_careful_sums, dy)(act, what, dy, __VA_ARGS__)
#define bn_short_sums(act, what, dy, ...) BN_OF(bn_short_sums, dy)(act, what, dy, __VA_ARGS__)
#define bn_row_sum(square, x, ...) BN_OF(bn_row_sum, x)(square, x, __VA_ARGS__)
#define bn_row_sums(act, dy, ...) BN_OF(bn_row_sums, dy)(act, dy, __VA_ARGS__)
#define BN_TEMPLATE "lanes.h"
#include "both.h"
#elif defined(real)

/* 32, 16 or 8 partial sums as 8 in float64, begun here or added: both halves of a vector, then those of the result. */
BN_INLINE void OF(bn_fold)(int width, int begin, const real *wide, double *eight)
{
#if BN_IS_FLOAT && defined(__AVX512DQ__) /* without a detour through memory */
    __m256 a = _mm256_loadu_ps(wide);
    if (width > 8) {
        __m512 b = _mm512_loadu_ps(wide);
        if (width == 32)
            b = _mm512_add_ps(b, _mm512_loadu_ps(wide + 16));
        a = bn_halved(b);
    }
    bn_keep_eight(a, begin, eight);
#else
    BN_ROLLED
    for (int j = 0; j < 8; j++) {
        const real a = width == 32 ? wide[j] + wide[16 + j] : wide[j];
        const real b = width == 32 ? wide[8 + j] + wide[24 + j] : width == 16 ? wide[8 + j] : 0;
        const double c = (double)(width == 8 ? a : a + b);
        eight[j] = begin ? c : eight[j] + c;
    }
#endif
}

/* The last values of a row, a whole vector to read of which `rest` count. What may be read ends after `left` values. */
BN_INLINE const real *OF(bn_rest)(const real *values, int32_t rest, ptrdiff_t left, real *room)
{
    if (left >= BN_WIDTH)
        return values;
    memset(room, 0, BN_WIDTH * sizeof(real));
    memcpy(room, values, rest * sizeof(real));
    return room;
}

/* v, or 0 where it is not to be kept: no choice of which a compiler could make a branch. */
BN_INLINE real OF(bn_kept)(real v, int keep)
{
    integer bits;
    memcpy(&bits, &v, sizeof bits);
    bits &= -(integer)keep;
    memcpy(&v, &bits, sizeof bits);
    return v;
}

/* Both sums of n values of row k, added to 8 parts of each in float64. Behind gamma and beta there are BN_BEYOND bytes
 * of zeros to read. `what` and the kind of `act` are constants to the compiler, and no choice is left in the loops. */
BN_INLINE void OF(bn_short_sums)(bn_activation act, int what, const real *dy, const real *x, ptrdiff_t n,
                                 ptrdiff_t left, const bn_numbers *of, ptrdiff_t k, double *sum, double *dot)
{
    BN_NUMBER_IS(h) BN_ARRAY_IS(gamma) BN_ARRAY_IS(beta)
    const int forward = what == BN_SCALED || act.kind != BN_IDENTITY;
    const real scale = forward ? ((const real *)of->scale)[k] : 0, shift = forward ? ((const real *)of->shift)[k] : 0;
    BN_RUN_IN_LANES(n, left, sum, dot, BN_SHORT_STEP)
}

/* The same all in float64, where a product left the range of float32. */
BN_APART void OF(bn_careful_sums)(bn_activation act, int what, const real *dy, const real *x, ptrdiff_t n,
                                  const bn_numbers *of, ptrdiff_t k, double *sum, double *dot)
{
    BN_NUMBER_IS(h) BN_ARRAY_IS(gamma) BN_ARRAY_IS(beta) BN_ARRAY_IS(w)
    const int forward = what == BN_SCALED || act.kind != BN_IDENTITY;
    const real scale = forward ? ((const real *)of->scale)[k] : 0, shift = forward ? ((const real *)of->shift)[k] : 0;
    double s = *sum, d = *dot;
    for (ptrdiff_t i = 0; i < n; i++) {
        const real v = (x[i] - own_h) * scale + shift;
        double t = (double)x[i] - (double)own_h, g = t;
        if (what == BN_WEIGHED_SQUARES) {
            t = w[i] != 0 ? t : 0.0;
            g = w[i] * t;
        } else if (what == BN_SCALED) {
            g = OF(bn_act_pull)(act, v * gamma[i] + beta[i], dy[i] * gamma[i]);
        } else if (what != BN_SQUARES) {
            g = OF(bn_act_pull)(act, v, dy[i]);
        }
        if (what == BN_WEIGHED_PAIRS)
            t = g != 0.0 ? t : 0.0;
        s += g;
        d += g * t;
    }
    *sum = s;
    *dot = d;
}

/* The sum of x - h over a row, or of its square, as 8 parts in float64; `left` as above. */
BN_INLINE real OF(bn_power)(int square, real t)
{
    return square ? t * t : t;
}

/* Of 32 values or more. */
BN_INLINE void OF(bn_long_sum)(int square, int brief, const real *x, ptrdiff_t n, real h, double *eight)
{
    double none[8];
    BN_RUN_SUMS(1, brief, n, eight, none, BN_TWO_POWERS, BN_POWER)
}

BN_INLINE void OF(bn_row_sum)(int square, const real *x, ptrdiff_t n, ptrdiff_t left, real h, double *eight)
{
    if (n <= BN_TINY && left >= BN_TINY) {
        real s[BN_TINY];
        BN_ROLLED
        for (int32_t j = 0; j < BN_TINY; j++)
            s[j] = OF(bn_power)(square, OF(bn_kept)(x[j] - h, j < (int32_t)n));
        OF(bn_fold)(BN_TINY, 1, s, eight);
    } else if (n < BN_WIDTH) {
        real s[BN_WIDTH], x1[BN_WIDTH];
        const real *xr = OF(bn_rest)(x, (int32_t)n, left, x1);
        for (int32_t j = 0; j < BN_WIDTH; j++)
            s[j] = OF(bn_power)(square, OF(bn_kept)(xr[j] - h, j < (int32_t)n));
        OF(bn_fold)(BN_WIDTH, 1, s, eight);
    } else if (n < 2 * BN_WIDTH) {
        OF(bn_long_sum)(square, 1, x, n, h, eight);
    } else {
        OF(bn_long_sum)(square, 0, x, n, h, eight);
    }
}

/* Both sums of a row that has a gamma for each value, as above: g = dy gamma. And what it adds to the sums of its
 * columns, down a few rows in the type of x: across += dy, along += dy ((x - h) scale + shift), dy being that before
 * the activation. */
BN_INLINE void OF(bn_row_sums)(bn_activation act, const real *dy, const real *x, ptrdiff_t n, ptrdiff_t left,
                               const bn_numbers *of, ptrdiff_t k, real *BN_RESTRICT along, real *BN_RESTRICT across,
                               double *sum, double *dot)
{
    BN_MAP_NUMBERS(BN_NUMBER_IS) BN_ARRAY_IS(gamma) BN_ARRAY_IS(beta)
    if (n <= BN_TINY && left >= BN_TINY) {
        real s[BN_TINY], t[BN_TINY];
        BN_ROLLED
        for (int32_t j = 0; j < BN_TINY; j++) {
            s[j] = t[j] = 0;
            BN_ROW_STEP(j, j, j < (int32_t)n)
        }
        OF(bn_fold)(BN_TINY, 0, s, sum);
        OF(bn_fold)(BN_TINY, 0, t, dot);
        return;
    }
    BN_RUN_IN_LANES(n, left, sum, dot, BN_ROW_STEP)
}
#endif
