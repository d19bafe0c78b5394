/* The sums of runs: values that lie together, of one channel. */
#ifndef BNORM_RUNS_H
#define BNORM_RUNS_H

#include "lanes.h"
#include "streams.h"

/* Both sums of a run of n values, 32 at least, 8 parts of each in float64, begun here or added. SET(i, k, kept) lets s[j]
 * and t[j] begin with value i, and with k if that is kept; ADD(i) adds one. What does not fill a vector is read as the last
 * vector of the run, together with the first. Constants to the compiler: `begin`, and `brief` if n is less than 64. */
#define BN_RUN_SUMS(real, name, begin, brief, n, first, second, SET, ADD)                                             \
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
        bn_fold_##name(BN_WIDTH, begin, s, first);                                                                    \
        bn_fold_##name(BN_WIDTH, begin, t, second);                                                                   \
        while (!(brief) && i_ < even_) {                                                                              \
            real s[BN_WIDTH], t[BN_WIDTH];                                                                            \
            end_ = even_ - i_ < BN_CHAIN * BN_WIDTH ? even_ : i_ + BN_CHAIN * BN_WIDTH;                               \
            for (int32_t j = 0; j < BN_WIDTH; j++)                                                                    \
                s[j] = t[j] = 0;                                                                                      \
            for (; i_ < end_; i_ += BN_WIDTH)                                                                         \
                for (int32_t j = 0; j < BN_WIDTH; j++) {                                                              \
                    ADD(i_ + j)                                                                                       \
                }                                                                                                     \
            bn_fold_##name(BN_WIDTH, 0, s, first);                                                                    \
            bn_fold_##name(BN_WIDTH, 0, t, second);                                                                   \
        }                                                                                                             \
    }
#define BN_SUMS_OF_RUNS(real, name)                                                                                   \
    BN_INLINE void bn_squares_##name(int brief, const real *x, ptrdiff_t n, real h, double *sum, double *square)      \
    {                                                                                                                 \
        BN_RUN_SUMS(real, name, 0, brief, n, sum, square, BN_TWO_SQUARES_##name, BN_SQUARE_##name)                    \
    }                                                                                                                 \
    BN_INLINE void bn_products_##name(int begin, int brief, bn_activation act, const real *dy, const real *x,         \
                                      ptrdiff_t n, real h, real scale, real shift, double *sum, double *dot)          \
    {                                                                                                                 \
        BN_RUN_SUMS(real, name, begin, brief, n, sum, dot, BN_TWO_PRODUCTS_##name, BN_PRODUCT_##name)                 \
    }
#define BN_TWO_SQUARES(real, name, i, k, kept)                                                                        \
    const real u_ = x[i] - h, v_ = bn_kept_##name(x[k] - h, kept);                                                    \
    s[j] = u_ + v_;                                                                                                   \
    t[j] = u_ * u_ + v_ * v_;
#define BN_SQUARE(real, name, i)                                                                                      \
    const real v_ = x[i] - h;                                                                                         \
    s[j] += v_;                                                                                                       \
    t[j] += v_ * v_;
#define BN_PULL(name, i, v) bn_act_pull_##name(act, (v) * scale + shift, dy[i])
#define BN_TWO_PRODUCTS(real, name, i, k, kept)                                                                       \
    const real u_ = x[i] - h, v_ = x[k] - h, g_ = BN_PULL(name, i, u_), f_ = BN_PULL(name, k, v_);                    \
    s[j] = g_ + bn_kept_##name(f_, kept);                                                                             \
    t[j] = g_ * u_ + bn_kept_##name(f_ * v_, kept);
#define BN_PRODUCT(real, name, i)                                                                                     \
    const real v_ = x[i] - h, g_ = BN_PULL(name, i, v_);                                                              \
    s[j] += g_;                                                                                                       \
    t[j] += g_ * v_;
#define BN_TWO_SQUARES_float(i, k, kept) BN_TWO_SQUARES(float, float, i, k, kept)
#define BN_TWO_SQUARES_double(i, k, kept) BN_TWO_SQUARES(double, double, i, k, kept)
#define BN_SQUARE_float(i) BN_SQUARE(float, float, i)
#define BN_SQUARE_double(i) BN_SQUARE(double, double, i)
#define BN_TWO_PRODUCTS_float(i, k, kept) BN_TWO_PRODUCTS(float, float, i, k, kept)
#define BN_TWO_PRODUCTS_double(i, k, kept) BN_TWO_PRODUCTS(double, double, i, k, kept)
#define BN_PRODUCT_float(i) BN_PRODUCT(float, float, i)
#define BN_PRODUCT_double(i) BN_PRODUCT(double, double, i)
BN_SUMS_OF_RUNS(float, float)
BN_SUMS_OF_RUNS(double, double)

/* sum dy and sum dy (x - h) of runs that lie one after the other: 8 parts of each in float64, begun here. `left` values may
 * be read, as in bn_short_sums. The width is a constant to the compiler. */
#define BN_SHORT_RUNS(real, name)                                                                                     \
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
    BN_APART void bn_run_sums_##name(ptrdiff_t runs, ptrdiff_t n, const real *dy, const real *x, ptrdiff_t left,      \
                                     const real *BN_RESTRICT h, bn_ahead *ahead, int sent, double *BN_RESTRICT sum,   \
                                     double *BN_RESTRICT dot)                                                         \
    {                                                                                                                 \
        ptrdiff_t k = 0;                                                                                              \
        if (n <= BN_TINY)                                                                                             \
            BN_EACH_RUN(BN_TINY, bn_run_vector_##name(BN_TINY, dy, x, (int32_t)n, h[k], sum, dot))                    \
        else if (n <= BN_WIDTH)                                                                                       \
            BN_EACH_RUN(BN_WIDTH, bn_run_vector_##name(BN_WIDTH, dy, x, (int32_t)n, h[k], sum, dot))                  \
        else if (n < 2 * BN_WIDTH)                                                                                    \
            BN_EACH_RUN(n, bn_products_##name(1, 1, bn_identity(), dy, x, n, h[k], 0, 0, sum, dot))                   \
        else                                                                                                          \
            BN_EACH_RUN(n, bn_products_##name(1, 0, bn_identity(), dy, x, n, h[k], 0, 0, sum, dot))                   \
        BN_EACH_RUN(n, {                                                                                              \
            for (int j = 0; j < 8; j++)                                                                               \
                sum[j] = dot[j] = 0.0;                                                                                \
            bn_short_sums_##name(BN_PAIRS, bn_identity(), dy, x, n, left, h[k], 0, 0, dy, dy, sum, dot);              \
        })                                                                                                            \
    }                                                                                                                 \
    /* From the two sums of some runs, one of each channel: what they add to the gradients of gamma and beta, unless  \
     * these are NULL, and gamma times both, which are parts of the sums of a row. off: its mean less h. */           \
    BN_APART void bn_run_totals_##name(ptrdiff_t runs, const double *BN_RESTRICT gamma,                               \
                                       const double *BN_RESTRICT rstd, const double *BN_RESTRICT off,                 \
                                       double *BN_RESTRICT sum, double *BN_RESTRICT dot, real *BN_RESTRICT gain,      \
                                       double *BN_RESTRICT dgamma, double *BN_RESTRICT dbeta)                         \
    {                                                                                                                 \
        if (dgamma) {                                                                                                 \
            for (ptrdiff_t i = 0; i < runs; i++)                                                                      \
                dgamma[i] += rstd[i] * (dot[i] - off[i] * sum[i]);                                                    \
            for (ptrdiff_t i = 0; i < runs; i++)                                                                      \
                dbeta[i] += sum[i];                                                                                   \
        }                                                                                                             \
        for (ptrdiff_t i = 0; i < runs; i++) {                                                                        \
            const double scale = gamma ? gamma[i] : 1.0;                                                              \
            gain[i] = (real)scale;                                                                                    \
            sum[i] *= scale;                                                                                          \
            dot[i] *= scale;                                                                                          \
        }                                                                                                             \
    }

/* The next runs, as long as `least` values may be read. */
#define BN_EACH_RUN(least, SUMS)                                                                                      \
    for (; k < runs && left >= (least); k++, dy += n, x += n, left -= n, sum += 8, dot += 8) {                        \
        if (ahead)                                                                                                    \
            bn_fetch_on(ahead, (size_t)n * sizeof *x, sent);                                                          \
        SUMS;                                                                                                         \
    }

BN_SHORT_RUNS(float, float)
BN_SHORT_RUNS(double, double)

/* LOOP, with the number of channels of a row known to the compiler where they are few. */
#define BN_FEW(LOOP)                                                                                                  \
    switch (channels) {                                                                                               \
    case 2: LOOP(2) break;                                                                                            \
    case 3: LOOP(3) break;                                                                                            \
    case 4: LOOP(4) break;                                                                                            \
    default: LOOP(channels)                                                                                           \
    }

/* The numbers of some rows as those of their runs, one of each channel. */
#define BN_EACH(real, name)                                                                                           \
    BN_APART void bn_each_##name(ptrdiff_t rows, ptrdiff_t channels, const real *BN_RESTRICT of_rows,                 \
                                 real *BN_RESTRICT of_runs)                                                           \
    {                                                                                                                 \
        BN_FEW(BN_REPEAT)                                                                                             \
    }
#define BN_REPEAT(channels)                                                                                           \
    for (ptrdiff_t k = 0; k < rows; k++)                                                                              \
        for (ptrdiff_t c = 0; c < (channels); c++)                                                                    \
            of_runs[k * (channels) + c] = of_rows[k];
BN_EACH(float, float)
BN_EACH(double, double)

/* And the sums of some rows from those of their runs. */
#define BN_ADD_RUNS(channels)                                                                                         \
    for (ptrdiff_t k = 0; k < rows; k++) {                                                                            \
        double sum = of_runs[k * (channels)];                                                                         \
        for (ptrdiff_t c = 1; c < (channels); c++)                                                                    \
            sum += of_runs[k * (channels) + c];                                                                       \
        of_rows[k] = sum;                                                                                             \
    }
BN_APART void bn_gather_runs(ptrdiff_t rows, ptrdiff_t channels, const double *BN_RESTRICT of_runs,
                             double *BN_RESTRICT of_rows)
{
    BN_FEW(BN_ADD_RUNS)
}

#endif
