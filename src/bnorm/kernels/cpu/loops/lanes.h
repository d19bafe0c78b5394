/* Loops over channels and partial sums of which the compiler has to know more than a Cython loop can say: that arrays do
 * not overlap, or that a loop must not be unrolled before it is vectorized. */
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

/* What short_sums sums: g and g (x - h), where g is dy, or dy gamma, dy being brought before the activation of
 * ((x - h) r + b) gamma + beta; careful_short_sums knows g = x - h too. */
enum { BN_SQUARES, BN_PAIRS, BN_SCALED };

/* A sum of float32 squares or products that is smaller, for each value, has lost digits to subnormal numbers, and is made
 * again in float64. Products have both signs: what is left of large ones may be small, so they are suspected earlier. */
#define BN_LEAST_SQUARE 1e-36
#define BN_LEAST_PRODUCT 1e-30

enum {
    BN_WIDTH = 32,  /* partial sums; a loop of 16 would be unrolled before it could be vectorized */
    BN_TINY = 16,   /* values of a row that a single vector holds */
    BN_BATCH = 64,  /* most rows of a batch */
    BN_CHAIN = 8,   /* values that are added to one of them before it is added in float64 */
    BN_BEYOND = BN_WIDTH * sizeof(double)   /* bytes of zeros behind gamma and beta */
};

#define bn_short_sums(what, act, dy, ...) BN_OF(bn_short_sums, dy)(what, act, dy, __VA_ARGS__)
#define bn_row_sum(square, x, ...) BN_OF(bn_row_sum, x)(square, x, __VA_ARGS__)
#define bn_row_sums(act, dy, ...) BN_OF(bn_row_sums, dy)(act, dy, __VA_ARGS__)
#define BN_TEMPLATE "lanes.h"
#include "both.h"
#elif defined(real)

/* 32, 16 or 8 partial sums as 8 in float64, begun here or added: the two halves of a vector, then those of the result. */
BN_INLINE void OF(bn_fold)(int width, int begin, const real *wide, double *eight)
{
#if BN_IS_FLOAT && defined(__AVX512DQ__) /* without a detour through memory */
    __m256 a = _mm256_loadu_ps(wide);
    if (width > 8) {
        __m512 b = _mm512_loadu_ps(wide);
        if (width == 32)
            b = _mm512_add_ps(b, _mm512_loadu_ps(wide + 16));
        a = _mm256_add_ps(_mm512_castps512_ps256(b), _mm512_extractf32x8_ps(b, 1));
    }
    const __m512d c = _mm512_cvtps_pd(a);
    _mm512_storeu_pd(eight, begin ? c : _mm512_add_pd(_mm512_loadu_pd(eight), c));
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

/* The last values of a row, a whole vector to read of which `rest` count. What may be read ends `left` values from here. */
BN_INLINE const real *OF(bn_rest)(const real *values, int32_t rest, ptrdiff_t left, real *room)
{
    if (left >= BN_WIDTH)
        return values;
    memset(room, 0, BN_WIDTH * sizeof(real));
    memcpy(room, values, rest * sizeof(real));
    return room;
}

/* Both sums of n values, added to 8 parts of each in float64. `left` values may be read, n or more: what does not fill a
 * vector is read together with what lies behind it, and counts as nothing. Behind gamma and beta there are BN_BEYOND bytes of
 * zeros to read.
 * `what` and the kind of `act` are constants to the compiler, and no choice is left in the loops. */
BN_INLINE real OF(bn_factor)(int what, bn_activation act, real dy, real t, real r, real b,
                             const real *gamma, const real *beta)
{
    if (what == BN_PAIRS)
        return dy;
    return act.kind == BN_IDENTITY ? dy * *gamma
                               : OF(bn_act_pull)(act, (t * r + b) * *gamma + *beta, dy * *gamma);
}

BN_INLINE void OF(bn_short_sums)(int what, bn_activation act, const real *dy, const real *x, ptrdiff_t n,
                                 ptrdiff_t left, real h, real r, real b, const real *gamma, const real *beta,
                                 double *sum, double *dot)
{
    const int32_t rest = (int32_t)(n % BN_WIDTH); /* as wide as a float32, for the masks */
    ptrdiff_t i = 0;
    while (i < n) {
        const ptrdiff_t end = i + BN_CHAIN * BN_WIDTH < n ? i + BN_CHAIN * BN_WIDTH : n;
        real s[BN_WIDTH], d[BN_WIDTH];
        for (int32_t j = 0; j < BN_WIDTH; j++)
            s[j] = d[j] = 0;
        for (; i + BN_WIDTH <= end; i += BN_WIDTH)
            for (int32_t j = 0; j < BN_WIDTH; j++) {
                const real t = x[i + j] - h;
                const real g = OF(bn_factor)(what, act, dy[i + j], t, r, b, gamma + i + j,
                                             beta + i + j);
                s[j] += g;
                d[j] += g * t;
            }
        if (i < end) {
            real x1[BN_WIDTH], dy1[BN_WIDTH];
            const real *xr = OF(bn_rest)(x + i, rest, left - i, x1);
            const real *dyr = OF(bn_rest)(dy + i, rest, left - i, dy1);
            for (int32_t j = 0; j < BN_WIDTH; j++) {
                const real t = xr[j] - h;
                const real g = OF(bn_factor)(what, act, dyr[j], t, r, b, gamma + i + j, beta + i + j);
                s[j] += j < rest ? g : 0;
                d[j] += (j < rest ? g : 0) * (j < rest ? t : 0);
            }
        }
        i = end;
        OF(bn_fold)(BN_WIDTH, 0, s, sum);
        OF(bn_fold)(BN_WIDTH, 0, d, dot);
    }
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

/* The sum of x - h over a row, or of its square, as 8 parts in float64; `left` as above. */
BN_INLINE real OF(bn_power)(int square, real t)
{
    return square ? t * t : t;
}

/* Of 32 values or more, of which those that do not fill a vector are read as the last one, together with the first. */
BN_INLINE void OF(bn_long_sum)(int square, int brief, const real *x, ptrdiff_t n, real h, double *eight)
{
    const int32_t rest = (int32_t)(n % BN_WIDTH);
    const ptrdiff_t even = n - rest;
    ptrdiff_t i = BN_WIDTH, end = even < BN_CHAIN * BN_WIDTH ? even : BN_CHAIN * BN_WIDTH;
    real s[BN_WIDTH];
    for (int32_t j = 0; j < BN_WIDTH; j++)
        s[j] = OF(bn_power)(square, x[j] - h)
               + OF(bn_power)(square, OF(bn_kept)(x[n - BN_WIDTH + j] - h, j >= BN_WIDTH - rest));
    if (!brief)
        for (; i < end; i += BN_WIDTH)
            for (int32_t j = 0; j < BN_WIDTH; j++)
                s[j] += OF(bn_power)(square, x[i + j] - h);
    OF(bn_fold)(BN_WIDTH, 1, s, eight);
    while (!brief && i < even) {
        real s[BN_WIDTH];
        end = even - i < BN_CHAIN * BN_WIDTH ? even : i + BN_CHAIN * BN_WIDTH;
        for (int32_t j = 0; j < BN_WIDTH; j++)
            s[j] = 0;
        for (; i < end; i += BN_WIDTH)
            for (int32_t j = 0; j < BN_WIDTH; j++)
                s[j] += OF(bn_power)(square, x[i + j] - h);
        OF(bn_fold)(BN_WIDTH, 0, s, eight);
    }
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

/* Both sums of a row that has a gamma for each value, as above: g = dy gamma. And what it adds to the sums of its columns,
 * down a few rows in the type of x: across += dy, along += dy ((x - h) r + b), dy being brought before the activation. */
BN_INLINE void OF(bn_row_value)(int keep, bn_activation act, real dy, real x, real h, real r, real b,
                                real gamma, real beta, real *along, real *across, real *s, real *d)
{
    const real t = x - h, v = t * r + b;
    const real g = OF(bn_act_pull)(act, v * gamma + beta, dy), p = g * gamma;
    *s += OF(bn_kept)(p, keep);
    *d += OF(bn_kept)(p * t, keep);
    *across += OF(bn_kept)(g, keep);
    *along += OF(bn_kept)(g * v, keep);
}

BN_INLINE void OF(bn_tiny_row_sums)(bn_activation act, const real *dy, const real *x, int32_t n, real h,
                                    real r, real b, const real *gamma, const real *beta,
                                    real *BN_RESTRICT along, real *BN_RESTRICT across, double *sum,
                                    double *dot)
{
    real s[BN_TINY], d[BN_TINY];
    BN_ROLLED
    for (int32_t j = 0; j < BN_TINY; j++) {
        s[j] = d[j] = 0;
        OF(bn_row_value)(j < n, act, dy[j], x[j], h, r, b, gamma[j], beta[j], &along[j], &across[j],
                         &s[j], &d[j]);
    }
    OF(bn_fold)(BN_TINY, 0, s, sum);
    OF(bn_fold)(BN_TINY, 0, d, dot);
}

BN_INLINE void OF(bn_row_sums)(bn_activation act, const real *dy, const real *x, ptrdiff_t n,
                               ptrdiff_t left, real h, real r, real b, const real *gamma, const real *beta,
                               real *BN_RESTRICT along, real *BN_RESTRICT across, double *sum, double *dot)
{
    const int32_t rest = (int32_t)(n % BN_WIDTH);
    ptrdiff_t i = 0;
    if (n <= BN_TINY && left >= BN_TINY) {
        OF(bn_tiny_row_sums)(act, dy, x, (int32_t)n, h, r, b, gamma, beta, along, across, sum, dot);
        return;
    }
    while (i < n) {
        const ptrdiff_t end = i + BN_CHAIN * BN_WIDTH < n ? i + BN_CHAIN * BN_WIDTH : n;
        real s[BN_WIDTH], d[BN_WIDTH];
        for (int32_t j = 0; j < BN_WIDTH; j++)
            s[j] = d[j] = 0;
        for (; i + BN_WIDTH <= end; i += BN_WIDTH)
            for (int32_t j = 0; j < BN_WIDTH; j++)
                OF(bn_row_value)(1, act, dy[i + j], x[i + j], h, r, b, gamma[i + j], beta[i + j],
                                 &along[i + j], &across[i + j], &s[j], &d[j]);
        if (i < end && i + BN_WIDTH <= left)
            for (int32_t j = 0; j < BN_WIDTH; j++)
                OF(bn_row_value)(j < rest, act, dy[i + j], x[i + j], h, r, b, gamma[i + j],
                                 beta[i + j], &along[i + j], &across[i + j], &s[j], &d[j]);
        else if (i < end)
            for (int32_t j = 0; j < rest; j++)
                OF(bn_row_value)(1, act, dy[i + j], x[i + j], h, r, b, gamma[i + j], beta[i + j],
                                 &along[i + j], &across[i + j], &s[j], &d[j]);
        i = end;
        OF(bn_fold)(BN_WIDTH, 0, s, sum);
        OF(bn_fold)(BN_WIDTH, 0, d, dot);
    }
}
#endif
