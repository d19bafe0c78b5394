/* The gradient sums of a stripe of short rows that share gamma and beta: both sums of each row, and those of the columns,
 * which are made a few vectors at a time and stay in registers down the rows. */
#ifndef BNORM_STRIPES_H
#define BNORM_STRIPES_H

#include "lanes.h"

enum {
    BN_STRIPE = 8,                      /* rows at most */
    BN_SHORT = BN_CHAIN * BN_WIDTH      /* values of a row at most */
};

/* Some columns of some rows of n values: `width` of them, of which the first `keep` are there. g = dy before the
 * activation; across = sum g and along = sum g ((x - h) r + b) down the rows, s = sum g gamma and d = sum g gamma (x - h)
 * along each. The flags, the width and `kind` are constants to the compiler. */
#define BN_STRIPES(real, name)                                                                                        \
    BN_INLINE void bn_stripe_columns_##name(                                                                          \
        int begin, int width, int whole, int32_t keep, int kind, real slope, ptrdiff_t rows, ptrdiff_t n,             \
        const real *dy, const real *x, const real *h, const real *r, const real *b, const real *gamma,                \
        const real *beta, real *BN_RESTRICT along, real *BN_RESTRICT across, real *BN_RESTRICT s, real *BN_RESTRICT d) \
    {                                                                                                                 \
        for (ptrdiff_t k = 0; k < rows; k++, x += n, dy += n, s += width, d += width) {                               \
            const real hk = h[k], rk = r[k], bk = b[k];                                                               \
            BN_ROLLED                                                                                                 \
            for (int32_t j = 0; j < width; j++) {                                                                     \
                const int kept = whole || j < keep;                                                                   \
                const real t = x[j] - hk, v = t * rk + bk;                                                            \
                const real g = bn_act_pull_##name(kind, slope, v * gamma[j] + beta[j], dy[j]), p = g * gamma[j];      \
                across[j] += bn_kept_##name(g, kept);                                                                 \
                along[j] += bn_kept_##name(g * v, kept);                                                              \
                s[j] = bn_kept_##name(p, kept) + (begin ? 0 : s[j]);                                                  \
                d[j] = bn_kept_##name(p * t, kept) + (begin ? 0 : d[j]);                                              \
            }                                                                                                         \
        }                                                                                                             \
    }                                                                                                                 \
    BN_INLINE void bn_stripe_part_##name(                                                                             \
        int begin, int width, int kind, real slope, ptrdiff_t rows, ptrdiff_t n, ptrdiff_t i, ptrdiff_t left,         \
        const real *dy, const real *x, const real *h, const real *r, const real *b, const real *gamma,                \
        const real *beta, double *dgamma, double *dbeta, real *s, real *d)                                            \
    {                                                                                                                 \
        const int32_t keep = (int32_t)(n - i < width ? n - i : width);                                                \
        real along[BN_WIDTH], across[BN_WIDTH];                                                                       \
        for (int32_t j = 0; j < width; j++)                                                                           \
            along[j] = across[j] = 0;                                                                                 \
        if (keep == width)                                                                                            \
            bn_stripe_columns_##name(begin, width, 1, keep, kind, slope, rows, n, dy + i, x + i, h, r, b, gamma + i,  \
                                     beta + i, along, across, s, d);                                                  \
        else {                                                                                                        \
            ptrdiff_t all = rows; /* behind the last of these rows there may be nothing to read */                    \
            while (all > 0 && (all - 1) * n + i + width > left)                                                       \
                all--;                                                                                                \
            bn_stripe_columns_##name(begin, width, 0, keep, kind, slope, all, n, dy + i, x + i, h, r, b, gamma + i,   \
                                     beta + i, along, across, s, d);                                                  \
            for (ptrdiff_t k = all; k < rows; k++) {                                                                  \
                real x1[BN_WIDTH] = {0}, dy1[BN_WIDTH] = {0};                                                         \
                memcpy(x1, x + k * n + i, keep * sizeof(real));                                                       \
                memcpy(dy1, dy + k * n + i, keep * sizeof(real));                                                     \
                bn_stripe_columns_##name(begin, width, 0, keep, kind, slope, 1, n, dy1, x1, h + k, r + k, b + k,      \
                                         gamma + i, beta + i, along, across, s + k * width, d + k * width);           \
            }                                                                                                         \
        }                                                                                                             \
        for (int32_t j = 0; j < keep; j++)                                                                            \
            dgamma[i + j] += (double)along[j];                                                                        \
        for (int32_t j = 0; j < keep; j++)                                                                            \
            dbeta[i + j] += (double)across[j];                                                                        \
    }                                                                                                                 \
    /* `rows` rows of n values, BN_STRIPE and BN_SHORT at most, from x and dy on, of which `left` may be read: 8 parts  \
     * of both sums of each, and what they add to the sums of the columns. Behind gamma and beta there are zeros. */  \
    BN_INLINE void bn_stripe_sums_##name(int kind, real slope, ptrdiff_t rows, ptrdiff_t n, ptrdiff_t left,           \
                                         const real *dy, const real *x, const real *h, const real *r, const real *b,  \
                                         const real *gamma, const real *beta, double *dgamma, double *dbeta,          \
                                         double *sum, double *dot)                                                    \
    {                                                                                                                 \
        real s[BN_STRIPE * BN_WIDTH], d[BN_STRIPE * BN_WIDTH];                                                        \
        if (n == 8) {                                                                                                 \
            bn_stripe_part_##name(1, 8, kind, slope, rows, n, 0, left, dy, x, h, r, b, gamma, beta, dgamma, dbeta, s, \
                                  d);                                                                                 \
            for (ptrdiff_t j = 0; j < 8 * rows; j++) {                                                                \
                sum[j] = (double)s[j];                                                                                \
                dot[j] = (double)d[j];                                                                                \
            }                                                                                                         \
            return;                                                                                                   \
        }                                                                                                             \
        if (n <= BN_TINY) {                                                                                           \
            bn_stripe_part_##name(1, BN_TINY, kind, slope, rows, n, 0, left, dy, x, h, r, b, gamma, beta, dgamma,     \
                                  dbeta, s, d);                                                                       \
            for (ptrdiff_t k = 0; k < rows; k++)                                                                      \
                for (int j = 0; j < 8; j++) {                                                                         \
                    sum[8 * k + j] = (double)(s[BN_TINY * k + j] + s[BN_TINY * k + 8 + j]);                           \
                    dot[8 * k + j] = (double)(d[BN_TINY * k + j] + d[BN_TINY * k + 8 + j]);                           \
                }                                                                                                     \
            return;                                                                                                   \
        }                                                                                                             \
        bn_stripe_part_##name(1, BN_WIDTH, kind, slope, rows, n, 0, left, dy, x, h, r, b, gamma, beta, dgamma, dbeta, \
                              s, d);                                                                                  \
        for (ptrdiff_t i = BN_WIDTH; i < n; i += BN_WIDTH)                                                            \
            bn_stripe_part_##name(0, BN_WIDTH, kind, slope, rows, n, i, left, dy, x, h, r, b, gamma, beta, dgamma,    \
                                  dbeta, s, d);                                                                       \
        for (ptrdiff_t k = 0; k < rows; k++) {                                                                        \
            bn_begin_##name(s + k * BN_WIDTH, sum + 8 * k);                                                           \
            bn_begin_##name(d + k * BN_WIDTH, dot + 8 * k);                                                           \
        }                                                                                                             \
    }

BN_STRIPES(float, float)
BN_STRIPES(double, double)

#endif
