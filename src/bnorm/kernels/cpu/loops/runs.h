/* The gradient sums of short runs of one channel. */
#ifndef BNORM_RUNS_H
#define BNORM_RUNS_H

#include "lanes.h"

/* sum dy and sum dy (x - h) of a run: 8 parts of each in float64, begun here. `left` values may be read, as in
 * bn_short_sums. The width is a constant to the compiler. */
#define BN_RUN_SUMS(real, name)                                                                                       \
    BN_INLINE void bn_run_vector_##name(int32_t width, const real *dy, const real *x, int32_t n, real h, double *sum, \
                                        double *dot)                                                                  \
    {                                                                                                                 \
        real s[BN_WIDTH], d[BN_WIDTH];                                                                                \
        BN_ROLLED                                                                                                     \
        for (int32_t j = 0; j < width; j++) { /* from 0 on, as bn_short_sums: -0 alone becomes 0 */                   \
            s[j] = 0 + bn_kept_##name(dy[j], j < n);                                                                  \
            d[j] = 0 + bn_kept_##name(dy[j] * (x[j] - h), j < n);                                                     \
        }                                                                                                             \
        bn_fold_##name(width, 1, s, sum);                                                                             \
        bn_fold_##name(width, 1, d, dot);                                                                             \
    }                                                                                                                 \
    BN_INLINE void bn_run_sums_##name(const real *dy, const real *x, ptrdiff_t n, ptrdiff_t left, real h,             \
                                      double *sum, double *dot)                                                       \
    {                                                                                                                 \
        if (n <= BN_TINY && left >= BN_TINY) {                                                                        \
            bn_run_vector_##name(BN_TINY, dy, x, (int32_t)n, h, sum, dot);                                            \
            return;                                                                                                   \
        }                                                                                                             \
        if (n <= BN_WIDTH && left >= BN_WIDTH) {                                                                      \
            bn_run_vector_##name(BN_WIDTH, dy, x, (int32_t)n, h, sum, dot);                                           \
            return;                                                                                                   \
        }                                                                                                             \
        for (int j = 0; j < 8; j++)                                                                                   \
            sum[j] = dot[j] = 0.0;                                                                                    \
        bn_short_sums_##name(BN_PAIRS, BN_IDENTITY, 1, dy, x, n, left, h, 0, 0, dy, dy, sum, dot);                    \
    }

BN_RUN_SUMS(float, float)
BN_RUN_SUMS(double, double)

#endif
