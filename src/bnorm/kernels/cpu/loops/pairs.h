/* The gradient sums of a stripe of rows that share gamma and beta, two rows at a time: what these add to the sums of the
 * columns, which lie in the first-level cache, is read and written once for both. */
#ifndef BNORM_PAIRS_H
#define BNORM_PAIRS_H

#include "lanes.h"
#include "streams.h"

enum { BN_SHORT = BN_CHAIN * BN_WIDTH };    /* values of a row at most; of longer ones as many at a time */

/* Value i of row r of a pair, which lies at x[at] and dy[at], in lane j of both sums along the row and in those of its
 * column, if it is kept. */
#define BN_PAIR_STEP(r, x, dy, at, i, j, keep)                                                                        \
    {                                                                                                                 \
        const real d_ = (x)[at] - h##r, v_ = d_ * scale##r + shift##r;                                                \
        const real g_ = OF(bn_act_pull)(act, v_ * gamma[i] + beta[i], (dy)[at]), p_ = g_ * gamma[i];                  \
        s##r[j] += OF(bn_kept)(p_, keep);                                                                             \
        d##r[j] += OF(bn_kept)(p_ * d_, keep);                                                                        \
        across[i] += OF(bn_kept)(g_, keep);                                                                           \
        along[i] += OF(bn_kept)(g_ * v_, keep);                                                                       \
    }

#define BN_TEMPLATE "pairs.h"
#include "both.h"
#elif defined(real)

/* n values, BN_SHORT at most, of a row, or of two that lie `pitch` values apart from x and dy on, of which `left` may be
 * read: 8 parts of both sums of each, begun here or added; and what they add to the sums of the columns. `two` and the kind
 * of `act` are constants to the compiler. */
BN_INLINE void OF(bn_pair_sums)(int two, bn_activation act, ptrdiff_t n, ptrdiff_t pitch, ptrdiff_t left, int add,
                                const bn_ahead *near, const real *x, const real *dy, const bn_numbers *of, ptrdiff_t k,
                                ptrdiff_t from, real *BN_RESTRICT along, real *BN_RESTRICT across, double *sum,
                                double *dot)
{
    const real *gamma = (const real *)of->gamma + from, *beta = (const real *)of->beta + from;
    const real *h = (const real *)of->h + k, *scale = (const real *)of->scale + k;
    const real *shift = (const real *)of->shift + k, *next_x = x + two * pitch, *next_dy = dy + two * pitch;
    const real h1 = h[0], scale1 = scale[0], shift1 = shift[0], h2 = h[two], scale2 = scale[two], shift2 = shift[two];
    real s1[BN_WIDTH], d1[BN_WIDTH], s2[BN_WIDTH], d2[BN_WIDTH];
    ptrdiff_t i = 0;
    for (int32_t j = 0; j < BN_WIDTH; j++)
        s1[j] = d1[j] = s2[j] = d2[j] = 0;
    for (; i + BN_WIDTH <= n; i += BN_WIDTH) {
        if (near) {
            bn_fetch_with(near, x + i, dy + i, BN_WIDTH * sizeof(real));
            if (two)
                bn_fetch_with(near, next_x + i, next_dy + i, BN_WIDTH * sizeof(real));
        }
        for (int32_t j = 0; j < BN_WIDTH; j++) {
            BN_PAIR_STEP(1, x, dy, i + j, i + j, j, 1)
            if (two)
                BN_PAIR_STEP(2, next_x, next_dy, i + j, i + j, j, 1)
        }
    }
    if (i < n) {
        const int32_t rest = (int32_t)(n - i);
        real room[4][BN_WIDTH];
        const real *x1 = OF(bn_rest)(x + i, rest, left - i, room[0]);
        const real *dy1 = OF(bn_rest)(dy + i, rest, left - i, room[1]);
        const real *x2 = OF(bn_rest)(next_x + i, rest, left - two * pitch - i, room[2]);
        const real *dy2 = OF(bn_rest)(next_dy + i, rest, left - two * pitch - i, room[3]);
        for (int32_t j = 0; j < BN_WIDTH; j++) {
            BN_PAIR_STEP(1, x1, dy1, j, i + j, j, j < rest)
            if (two)
                BN_PAIR_STEP(2, x2, dy2, j, i + j, j, j < rest)
        }
    }
    OF(bn_fold)(BN_WIDTH, !add, s1, sum);
    OF(bn_fold)(BN_WIDTH, !add, d1, dot);
    if (two) {
        OF(bn_fold)(BN_WIDTH, !add, s2, sum + 8);
        OF(bn_fold)(BN_WIDTH, !add, d2, dot + 8);
    }
}

/* The same of a stripe of rows. */
BN_INLINE void OF(bn_paired_sums)(bn_activation act, ptrdiff_t rows, ptrdiff_t n, ptrdiff_t pitch, ptrdiff_t left,
                                  int add, const bn_ahead *near, const real *x, const real *dy, const bn_numbers *of,
                                  ptrdiff_t k, ptrdiff_t from, double *dgamma, double *dbeta, double *sum, double *dot)
{
    real along[BN_SHORT], across[BN_SHORT];
    memset(along, 0, n * sizeof(real));
    memset(across, 0, n * sizeof(real));
    for (; rows > 1; rows -= 2) {
        OF(bn_pair_sums)(1, act, n, pitch, left, add, near, x, dy, of, k, from, along, across, sum, dot);
        x += 2 * pitch, dy += 2 * pitch, left -= 2 * pitch;
        k += 2, sum += 16, dot += 16;
    }
    if (rows)
        OF(bn_pair_sums)(0, act, n, pitch, left, add, near, x, dy, of, k, from, along, across, sum, dot);
    for (ptrdiff_t j = 0; j < n; j++)
        dgamma[from + j] += (double)along[j];
    for (ptrdiff_t j = 0; j < n; j++)
        dbeta[from + j] += (double)across[j];
}
#endif
