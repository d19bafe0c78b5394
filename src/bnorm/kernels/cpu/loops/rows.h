/* The numbers of short rows, for a batch of rows at a time, and their maps. */
#ifndef BNORM_ROWS_H
#define BNORM_ROWS_H

#include "lanes.h"
#include "streams.h"

/* For each of some rows, the sum of its 8 parts: neighbours first, so that a vector has those of several rows. */
BN_APART void bn_wholes(ptrdiff_t rows, const double *BN_RESTRICT parts, double *BN_RESTRICT whole)
{
    double four[4 * BN_BATCH], two[2 * BN_BATCH];
    for (ptrdiff_t i = 0; i < 4 * rows; i++)
        four[i] = parts[2 * i] + parts[2 * i + 1];
    for (ptrdiff_t i = 0; i < 2 * rows; i++)
        two[i] = four[2 * i] + four[2 * i + 1];
    for (ptrdiff_t i = 0; i < rows; i++)
        whole[i] = two[2 * i] + two[2 * i + 1];
}

/* The maps of a row with a gamma and a beta for each value: y = ((x - h) r + b) gamma + beta, and the input gradient
 * dx = r (dy gamma - (tilt (x - h) + rest)). Rows are sent if there is an `edge`. Else what does not fill a vector
 * is made first, as the last vector of the row, and written last: y may be x. */
#define BN_MAP_ROW(real, n, out, edge, VALUE)                                                                         \
    if (edge) {                                                                                                       \
        BN_SEND_ROW(real, n, out, edge, VALUE);                                                                       \
    } else if ((n) >= BN_TINY) {                                                                                      \
        real last_[BN_TINY];                                                                                          \
        const ptrdiff_t odd_ = (n) % BN_TINY;                                                                         \
        if (odd_) {                                                                                                   \
            BN_ROLLED                                                                                                 \
            for (int32_t j = 0; j < BN_TINY; j++)                                                                     \
                last_[j] = VALUE((n) - BN_TINY + j);                                                                  \
        }                                                                                                             \
        BN_INDEPENDENT                                                                                                \
        for (ptrdiff_t j = 0; j < (n) - odd_; j++)                                                                    \
            (out)[j] = VALUE(j);                                                                                      \
        if (odd_) {                                                                                                   \
            BN_ROLLED                                                                                                 \
            for (int32_t j = 0; j < BN_TINY; j++)                                                                     \
                (out)[(n) - BN_TINY + j] = last_[j];                                                                  \
        }                                                                                                             \
    } else if ((n) == 8) {                                                                                            \
        real last_[8];                                                                                                \
        BN_ROLLED                                                                                                     \
        for (int32_t j = 0; j < 8; j++)                                                                               \
            last_[j] = VALUE(j);                                                                                      \
        BN_ROLLED                                                                                                     \
        for (int32_t j = 0; j < 8; j++)                                                                               \
            (out)[j] = last_[j];                                                                                      \
    } else {                                                                                                          \
        BN_INDEPENDENT                                                                                                \
        for (ptrdiff_t j = 0; j < (n); j++)                                                                           \
            (out)[j] = VALUE(j);                                                                                      \
    }
#define BN_ROW_MAPS(real, name)                                                                                       \
    BN_INLINE void bn_affine_##name(const real *x, real *y, ptrdiff_t n, real h, real r, real b, const real *gamma,   \
                                    const real *beta, bn_edge *edge)                                                  \
    {                                                                                                                 \
        BN_MAP_ROW(real, n, y, edge, BN_AFFINE)                                                                       \
    }                                                                                                                 \
    BN_INLINE void bn_row_gradient_##name(const real *dy, const real *x, real *dx, ptrdiff_t n, real h, real r,       \
                                          real tilt, real rest, const real *gamma, bn_edge *edge)                     \
    {                                                                                                                 \
        BN_MAP_ROW(real, n, dx, edge, BN_GRADIENT)                                                                    \
    }
/* dx of rows that share gamma: bn_row_gradient of each. */
#define BN_GRADIENTS(real, name)                                                                                      \
    BN_APART void bn_row_gradients_##name(ptrdiff_t rows, ptrdiff_t n, const real *dy, const real *x, real *dx,       \
                                          const real *h, const real *r, const real *tilt, const real *rest,           \
                                          const real *gamma, bn_edge *edge)                                           \
    {                                                                                                                 \
        for (ptrdiff_t k = 0; k < rows; k++, dy += n, x += n, dx += n)                                                \
            bn_row_gradient_##name(dy, x, dx, n, h[k], r[k], tilt[k], rest[k], gamma, edge);                          \
    }
/* mean and rstd of some rows of n values, known by their sums about a center of each: those of x - center, and of their
 * squares. */
BN_APART void bn_row_statistics(ptrdiff_t rows, double n, double eps, int centered, const double *BN_RESTRICT center,
                                 const double *BN_RESTRICT sum, const double *BN_RESTRICT square,
                                 double *BN_RESTRICT mean, double *BN_RESTRICT rstd)
{
    for (ptrdiff_t k = 0; k < rows; k++) {
        const double low = centered ? sum[k] / n : 0.0, m2 = square[k] - low * sum[k], m = center[k] + low;
        const double r = bn_rstd((m2 < 0.0 ? 0.0 : m2) / n, eps, n);
        mean[k] = bn_plain(m);
        rstd[k] = bn_plain(r);
    }
}

/* What the type of a row has room for. */
#define BN_WITHIN_float(v) bn_bounded(v)
#define BN_WITHIN_double(v) (v)

/* The numbers of the maps of some rows. Of (x - h) r + b: h, r and b, from the mean and rstd of each; and of
 * r (g - (tilt (x - h) + rest)), dot being sum g (x - h). Where one of them is NaN, let h be it, and no other, as
 * one_nan of channel_columns.pxi does. tilt is bn_grad_b, whose choice for no values would keep it from vectorizing. */
#define BN_ROW_NUMBERS(real, name)                                                                                    \
    BN_APART void bn_row_numbers_##name(ptrdiff_t rows, const double *BN_RESTRICT mean,                               \
                                         const double *BN_RESTRICT rstd, real *BN_RESTRICT h, real *BN_RESTRICT r,    \
                                         real *BN_RESTRICT b)                                                         \
    {                                                                                                                 \
        for (ptrdiff_t k = 0; k < rows; k++) {                                                                        \
            const double h0 = (double)(real)mean[k], r0 = BN_WITHIN_##name(rstd[k]);                                  \
            const double b0 = bn_fold(h0, mean[k], r0, 0.0);                                                          \
            const int found = (h0 != h0) | (r0 != r0) | (b0 != b0);                                                   \
            h[k] = (real)(found ? BN_NAN : h0);                                                                       \
            r[k] = (real)(found ? 1.0 : r0);                                                                          \
            b[k] = (real)(found ? 0.0 : b0);                                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    BN_APART void bn_row_slopes_##name(ptrdiff_t rows, double size, int centered, const double *BN_RESTRICT mean,     \
                                        const double *BN_RESTRICT rstd, const double *BN_RESTRICT sum,                \
                                        const double *BN_RESTRICT dot, real *BN_RESTRICT h, real *BN_RESTRICT tilt,   \
                                        real *BN_RESTRICT rest)                                                       \
    {                                                                                                                 \
        for (ptrdiff_t k = 0; k < rows; k++) {                                                                        \
            const double h0 = (double)h[k], off = mean[k] - h0;                                                       \
            const double t0 = BN_WITHIN_##name((dot[k] - off * sum[k]) * rstd[k] / size * rstd[k]);                   \
            const double c0 = (centered ? sum[k] / size : 0.0) - t0 * off;                                            \
            const int found = (h0 != h0) | (t0 != t0) | (c0 != c0);                                                   \
            h[k] = (real)(found ? BN_NAN : h0);                                                                       \
            tilt[k] = (real)(found ? 1.0 : t0);                                                                       \
            rest[k] = (real)(found ? 0.0 : c0);                                                                       \
        }                                                                                                             \
    }
BN_ROW_NUMBERS(float, float)
BN_ROW_NUMBERS(double, double)

/* The same of rows that are a run of one channel, whose gamma is in r and b of the forward, and apart in the gradient. */
#define BN_RUN_MAPS(real, name)                                                                                       \
    BN_INLINE void bn_run_map_##name(const real *x, real *y, ptrdiff_t n, real h, real r, real b, bn_edge *edge)      \
    {                                                                                                                 \
        BN_MAP_ROW(real, n, y, edge, BN_PLAIN)                                                                        \
    }                                                                                                                 \
    BN_INLINE void bn_run_gradient_##name(const real *dy, const real *x, real *dx, ptrdiff_t n, real h, real r,       \
                                          real tilt, real rest, real gain, bn_edge *edge)                             \
    {                                                                                                                 \
        BN_MAP_ROW(real, n, dx, edge, BN_PLAIN_GRADIENT)                                                              \
    }
#define BN_PLAIN(j) ((x[j] - h) * r + b)
#define BN_PLAIN_GRADIENT(j) (r * (gain * dy[j] - (tilt * (x[j] - h) + rest)))

BN_RUN_MAPS(float, float)
BN_RUN_MAPS(double, double)

#define BN_AFFINE(j) (((x[j] - h) * r + b) * gamma[j] + beta[j])
#define BN_GRADIENT(j) (r * (dy[j] * gamma[j] - (tilt * (x[j] - h) + rest)))

BN_ROW_MAPS(float, float)
BN_ROW_MAPS(double, double)
BN_GRADIENTS(float, float)
BN_GRADIENTS(double, double)

#endif
