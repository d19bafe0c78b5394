/* Sums of runs. A run is the values of one channel that lie side by side. */
#ifndef BNORM_RUNS_H
#define BNORM_RUNS_H

#include "lanes.h"
#include "streams.h"

#define BN_TWO_SQUARES(i, k, kept)                                                                                    \
    const real u_ = bn_less(x[i], h, minus_), v_ = OF(bn_kept)(bn_less(x[k], h, minus_), kept);                       \
    s[j] = u_ + v_;                                                                                                   \
    t[j] = u_ * u_ + v_ * v_;
#define BN_SQUARE(i)                                                                                                  \
    const real v_ = bn_less(x[i], h, minus_);                                                                         \
    s[j] += v_;                                                                                                       \
    t[j] += v_ * v_;
/* g is dy before the activation. With weights (`weighed`, a constant to the compiler) x does not enter if g is 0. */
#define BN_PULL(i, v) OF(bn_act_pull)(act, (v) * scale + shift, dy[i])
#define BN_TIMES(g, v) (g) * (weighed ? OF(bn_kept)(v, (g) != 0) : (v))
#define BN_TWO_PRODUCTS(i, k, kept)                                                                                   \
    const real u_ = bn_less(x[i], h, minus_), v_ = bn_less(x[k], h, minus_);                                          \
    const real g_ = BN_PULL(i, u_), f_ = BN_PULL(k, v_);                                                              \
    s[j] = g_ + OF(bn_kept)(f_, kept);                                                                                \
    t[j] = BN_TIMES(g_, u_) + OF(bn_kept)(BN_TIMES(f_, v_), kept);
#define BN_PRODUCT(i)                                                                                                 \
    const real v_ = bn_less(x[i], h, minus_), g_ = BN_PULL(i, v_);                                                    \
    s[j] += g_;                                                                                                       \
    t[j] += BN_TIMES(g_, v_);

/* SUMS of run after run, as long as at least `least` values may still be read. */
#define BN_EACH_RUN(least, SUMS)                                                                                      \
    for (; k < runs && left >= (least); k++, dy += n, x += n, left -= n, sum += 8, dot += 8) {                        \
        if (ahead)                                                                                                    \
            bn_fetch_on(ahead, x, dy, (size_t)n * sizeof *x, sent);                                                   \
        SUMS;                                                                                                         \
    }

/* LOOP(channels), where the number of channels of a row is a constant to the compiler if it is small. */
#define BN_FEW(LOOP)                                                                                                  \
    switch (channels) {                                                                                               \
    case 2: LOOP(2) break;                                                                                            \
    case 3: LOOP(3) break;                                                                                            \
    case 4: LOOP(4) break;                                                                                            \
    default: LOOP(channels)                                                                                           \
    }
#define BN_REPEAT(channels)                                                                                           \
    for (ptrdiff_t k = 0; k < rows; k++)                                                                              \
        for (ptrdiff_t c = 0; c < (channels); c++)                                                                    \
            of_runs[k * (channels) + c] = of_rows[k];

/* Adds up the sums of the runs of each row. */
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

#define bn_near_mean(x, n) BN_OF(bn_near_mean, x)(x, n)
#define bn_row_squares(x, ...) BN_OF(bn_row_squares, x)(x, __VA_ARGS__)
#define bn_run_sums(runs, n, dy, ...) BN_OF(bn_run_sums, dy)(runs, n, dy, __VA_ARGS__)
#define bn_run_totals(runs, gamma, rstd, off, sum, dot, gain, ...)                                                    \
    BN_OF(bn_run_totals, gain)(runs, gamma, rstd, off, sum, dot, gain, __VA_ARGS__)
#define bn_each(rows, channels, of_rows, ...) BN_OF(bn_each, of_rows)(rows, channels, of_rows, __VA_ARGS__)
#define BN_TEMPLATE "runs.h"
#include "both.h"
#elif defined(real)

BN_INLINE void OF(bn_squares)(int begin, int brief, const real *x, ptrdiff_t n, real h, double *sum, double *square)
{
    BN_RUN_SUMS(begin, brief, n, sum, square, BN_TWO_SQUARES, BN_SQUARE)
}

/* The mean of 64 values of a row of n >= 64 values, from four places, as parts of a row may differ. */
BN_INLINE real OF(bn_near_mean)(const real *x, ptrdiff_t n)
{
    const ptrdiff_t i = n / 3, k = n - i - BN_TINY, last = n - BN_TINY;
    const real h = x[0];
    real s[BN_TINY];
    double eight[8];
    BN_ROLLED
    for (int32_t j = 0; j < BN_TINY; j++)
        s[j] = ((x[j] - h) + (x[i + j] - h)) + ((x[k + j] - h) + (x[last + j] - h));
    OF(bn_fold)(BN_TINY, 1, s, eight);
    return (real)((double)h + bn_whole(eight) / (4 * BN_TINY));
}

/* The sums of x - h and (x - h)^2 over a row of n >= 64 values, as 8 parts of each in float64. */
BN_INLINE void OF(bn_row_squares)(const real *x, ptrdiff_t n, real h, double *sum, double *square)
{
    OF(bn_squares)(1, 0, x, n, h, sum, square);
}

BN_INLINE void OF(bn_products)(int begin, int brief, int weighed, bn_activation act, const real *dy, const real *x,
                               ptrdiff_t n, real h, real scale, real shift, double *sum, double *dot)
{
    BN_RUN_SUMS(begin, brief, n, sum, dot, BN_TWO_PRODUCTS, BN_PRODUCT)
}

/* Sums of a run of up to `width` values, which is a constant to the compiler; that many values may be read. */
BN_INLINE void OF(bn_run_vector)(int32_t width, const real *dy, const real *x, int32_t n, real h, double *sum,
                                 double *dot)
{
    real s[BN_WIDTH], d[BN_WIDTH];
    BN_ROLLED
    for (int32_t j = 0; j < width; j++) { /* from 0 on, as bn_short_sums: -0 alone becomes 0 */
        s[j] = 0 + OF(bn_kept)(dy[j], j < n);
        d[j] = 0 + OF(bn_kept)(dy[j] * (x[j] - h), j < n);
    }
    OF(bn_fold)(width, 1, s, sum);
    OF(bn_fold)(width, 1, d, dot);
}

/* sum dy and sum dy (x - h) of contiguous runs, as 8 parts of each in float64; `left` values may be read. */
BN_APART void OF(bn_run_sums)(ptrdiff_t runs, ptrdiff_t n, const real *dy, const real *x, ptrdiff_t left,
                              const bn_numbers *of, bn_ahead *ahead, int sent, double *BN_RESTRICT sum,
                              double *BN_RESTRICT dot)
{
    BN_ARRAY_IS(h)
    ptrdiff_t k = 0;
    if (n <= 8)
        BN_EACH_RUN(8, OF(bn_run_vector)(8, dy, x, (int32_t)n, h[k], sum, dot))
    else if (n <= BN_TINY)
        BN_EACH_RUN(BN_TINY, OF(bn_run_vector)(BN_TINY, dy, x, (int32_t)n, h[k], sum, dot))
    else if (n <= BN_WIDTH)
        BN_EACH_RUN(BN_WIDTH, OF(bn_run_vector)(BN_WIDTH, dy, x, (int32_t)n, h[k], sum, dot))
    else if (n <= 2 * BN_WIDTH)
        BN_EACH_RUN(n, OF(bn_products)(1, 1, 0, bn_identity(), dy, x, n, h[k], 0, 0, sum, dot))
    else
        BN_EACH_RUN(n, OF(bn_products)(1, 0, 0, bn_identity(), dy, x, n, h[k], 0, 0, sum, dot))
    BN_EACH_RUN(n, {
        for (int j = 0; j < 8; j++)
            sum[j] = dot[j] = 0.0;
        OF(bn_short_sums)(bn_identity(), BN_PAIRS, dy, x, n, left, of, k, sum, dot);
    })
}

/* For runs, one of each channel: adds what they give to dgamma and dbeta, unless dgamma is NULL, and multiplies their
 * two sums by gamma, which makes them parts of the sums of the row. gain becomes gamma; off is the mean minus h. */
BN_APART void OF(bn_run_totals)(ptrdiff_t runs, const double *BN_RESTRICT gamma,
                                const double *BN_RESTRICT rstd, const double *BN_RESTRICT off,
                                double *BN_RESTRICT sum, double *BN_RESTRICT dot, real *BN_RESTRICT gain,
                                double *BN_RESTRICT dgamma, double *BN_RESTRICT dbeta)
{
    if (dgamma) {
        for (ptrdiff_t i = 0; i < runs; i++)
            dgamma[i] += rstd[i] * (dot[i] - off[i] * sum[i]);
        for (ptrdiff_t i = 0; i < runs; i++)
            dbeta[i] += sum[i];
    }
    for (ptrdiff_t i = 0; i < runs; i++) {
        const double scale = gamma ? gamma[i] : 1.0;
        gain[i] = (real)scale;
        sum[i] *= scale;
        dot[i] *= scale;
    }
}

/* Copies the number of each row to all its runs, one for each channel. */
BN_APART void OF(bn_each)(ptrdiff_t rows, ptrdiff_t channels, const real *BN_RESTRICT of_rows,
                         real *BN_RESTRICT of_runs)
{
    BN_FEW(BN_REPEAT)
}
#endif
