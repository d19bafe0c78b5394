/* The maps of rows and runs, and the numbers that they need, for a batch of rows at a time. */
#ifndef BNORM_ROWS_H
#define BNORM_ROWS_H

#include "lanes.h"
#include "edges.h"

#if defined(__AVX512F__)
/* bn_pairs: the sums of neighboring values of two vectors, interleaved. bn_halves: the sums of neighboring quarters. */
BN_INLINE __m512d bn_pairs(const double *v)
{
    const __m512d a = _mm512_loadu_pd(v), b = _mm512_loadu_pd(v + 8);
    return _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
}

BN_INLINE __m512d bn_halves(__m512d a, __m512d b)
{
    return _mm512_add_pd(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
}
#endif

/* The sum of the 8 parts of each row: neighbors first, so that a vector holds parts of several rows. */
BN_APART void bn_wholes(ptrdiff_t rows, const double *BN_RESTRICT parts, double *BN_RESTRICT whole)
{
    double four[4 * BN_BATCH], two[2 * BN_BATCH];
#if defined(__AVX512F__)
    for (; rows >= 8; rows -= 8, parts += 64, whole += 8)
        _mm512_storeu_pd(whole, bn_halves(bn_halves(bn_pairs(parts), bn_pairs(parts + 16)),
                                          bn_halves(bn_pairs(parts + 32), bn_pairs(parts + 48))));
#endif
    for (ptrdiff_t i = 0; i < 4 * rows; i++)
        four[i] = parts[2 * i] + parts[2 * i + 1];
    for (ptrdiff_t i = 0; i < 2 * rows; i++)
        two[i] = four[2 * i] + four[2 * i + 1];
    for (ptrdiff_t i = 0; i < rows; i++)
        whole[i] = two[2 * i] + two[2 * i + 1];
}

/* Most values of a row that is sent as fast as it is computed. In longer rows, stores would follow each other so
 * closely that they wait for memory, which takes longer than to rotate every vector as if the row were not aligned. */
enum { BN_BRISK = 512 };

/* BN_MAP_ROW maps one row, BN_MAP_ROWS contiguous rows, which are sent if there is an `edge`. If the last values of a
 * row do not fill a vector, the last vector of the row is computed first and written last, because the row may
 * overwrite what it is computed from. */
#define BN_MAP_ROW(n, out, VALUE)                                                                                     \
    if ((n) >= BN_TINY) {                                                                                             \
        real last_[BN_TINY];                                                                                          \
        const ptrdiff_t odd_ = (n) % BN_TINY, even_ = (n) - odd_, tiny_ = (n) - BN_TINY;                              \
        if (odd_) {                                                                                                   \
            BN_VALUES(last_, begin_ + tiny_, tiny_, VALUE)                                                            \
        }                                                                                                             \
        for (ptrdiff_t i_ = 0; i_ < even_; i_ += BN_TINY) {                                                           \
            BN_INDEPENDENT                                                                                            \
            BN_ROLLED                                                                                                 \
            for (int32_t j = 0; j < BN_TINY; j++)                                                                     \
                (out)[begin_ + i_ + j] = VALUE(begin_ + i_ + j, i_ + j);                                              \
        }                                                                                                             \
        if (odd_)                                                                                                     \
            memcpy((out) + begin_ + tiny_, last_, sizeof last_);                                                      \
    } else if ((n) == 8) {                                                                                            \
        BN_INDEPENDENT                                                                                                \
        BN_ROLLED                                                                                                     \
        for (int32_t j = 0; j < 8; j++)                                                                               \
            (out)[begin_ + j] = VALUE(begin_ + j, j);                                                                 \
    } else if ((n) > 8) {   /* two vectors, as above */                                                               \
        real last_[8];                                                                                                \
        BN_VALUES(last_, begin_ + (n) - 8, (n) - 8, VALUE)                                                            \
        BN_INDEPENDENT                                                                                                \
        BN_ROLLED                                                                                                     \
        for (int32_t j = 0; j < 8; j++)                                                                               \
            (out)[begin_ + j] = VALUE(begin_ + j, j);                                                                 \
        memcpy((out) + begin_ + (n) - 8, last_, sizeof last_);                                                        \
    } else {                                                                                                          \
        BN_INDEPENDENT                                                                                                \
        for (ptrdiff_t j = 0; j < (n); j++)                                                                           \
            (out)[begin_ + j] = VALUE(begin_ + j, j);                                                                 \
    }
#define BN_MAP_ROWS(rows, n, out, edge, NUMBERS, VALUE)                                                               \
    if (edge) {                                                                                                       \
        BN_SEND_ROWS((n) <= BN_BRISK, rows, n, out, edge, NUMBERS, VALUE);                                            \
    } else {                                                                                                          \
        for (ptrdiff_t k_ = 0; k_ < (rows); k_++) {                                                                   \
            const ptrdiff_t begin_ = k_ * (n);                                                                        \
            NUMBERS(BN_OWN_IS)                                                                                        \
            BN_MAP_ROW(n, out, VALUE)                                                                                 \
        }                                                                                                             \
    }

/* The same for maps whose smooth activations are not sent (`sends` in row_tasks.pxi), which leaves out the code. */
#define BN_MAP_ROWS_BY(rows, n, out, edge, NUMBERS, VALUE)                                                            \
    BN_MAP_ROWS(rows, n, out, (act.kind < BN_SILU ? edge : NULL), NUMBERS, VALUE)

#define BN_FROZEN_NUMBERS(DO) BN_MAP_NUMBERS(DO) DO(a)
#define BN_GRADIENT_NUMBERS(DO) BN_FROZEN_NUMBERS(DO) DO(b) DO(c)
#define BN_GAINED_NUMBERS(DO) BN_GRADIENT_NUMBERS(DO) DO(gain)
#define BN_V(i) ((x[i] - own_h) * own_scale + own_shift)
#define BN_U(i, p) (BN_V(i) * gamma[p] + beta[p])
#define BN_RUN(i, p) OF(bn_act)(act, BN_V(i))
#define BN_AFFINE(i, p) OF(bn_act)(act, BN_U(i, p))
#define BN_TILTED(i) (own_b * (x[i] - own_h) + own_c)
#define BN_RUN_PULL(i) OF(bn_act_pull)(act, BN_V(i), dy[i])
#define BN_FROZEN_GRADIENT(i, p) OF(bn_act_pull)(act, BN_V(i), own_a * dy[i])
#define BN_RUN_GRADIENT(i, p) (own_a * (BN_RUN_PULL(i) - BN_TILTED(i)))
#define BN_GAINED_GRADIENT(i, p) (own_a * (own_gain * BN_RUN_PULL(i) - BN_TILTED(i)))
#define BN_WEIGHTED_GRADIENT(i, p) (own_a * (own_gain * BN_RUN_PULL(i) - (w[p] != 0 ? w[p] * BN_TILTED(i) : 0)))
#define BN_GRADIENT(i, p) (own_a * (OF(bn_act_pull)(act, BN_U(i, p), dy[i]) * gamma[p] - BN_TILTED(i)))
#define BN_ADDED_GRADIENT(i, p) (BN_GRADIENT(i, p) + dh[i])

/* mean and rstd of rows of n values, from the sums of x - center and (x - center)^2 of each row. */
BN_APART void bn_row_statistics(ptrdiff_t rows, double n, double eps, int centered, const double *BN_RESTRICT center,
                                 const double *BN_RESTRICT sum, const double *BN_RESTRICT square,
                                 double *BN_RESTRICT mean, double *BN_RESTRICT rstd)
{
    for (ptrdiff_t k = 0; k < rows; k++) {
        const double low = centered ? sum[k] / n : 0.0, m = center[k] + low;
        const double m2 = centered ? square[k] - low * sum[k] : square[k]; /* 0 times an infinite sum is no 0 */
        const double r = bn_rstd(m, (m2 < 0.0 ? 0.0 : m2) / n, eps, n);
        mean[k] = bn_plain(m);
        rstd[k] = bn_plain(r);
    }
}

/* A value of h = x + r. */
#define BN_SUM(i, p) (h[i] = x[i] + r[i])

#define bn_sums(n, x, ...) BN_OF(bn_sums, x)(n, x, __VA_ARGS__)
#define bn_one_nan(h, ...) BN_OF(bn_one_nan, h)(h, __VA_ARGS__)
#define bn_map_rows(act, rows, n, x, ...) BN_OF(bn_map_rows, x)(act, rows, n, x, __VA_ARGS__)
#define bn_gradient_rows(act, rows, n, dy, ...) BN_OF(bn_gradient_rows, dy)(act, rows, n, dy, __VA_ARGS__)
#define bn_row_numbers(rows, mean, rstd, h, ...) BN_OF(bn_row_numbers, h)(rows, mean, rstd, h, __VA_ARGS__)
#define bn_row_slopes(rows, size, centered, mean, rstd, sum, dot, h, ...)                                             \
    BN_OF(bn_row_slopes, h)(rows, size, centered, mean, rstd, sum, dot, h, __VA_ARGS__)
#define BN_TEMPLATE "rows.h"
#include "both.h"
#elif defined(real)

/* y = act(u) of contiguous rows or runs, where u is v = (x - h) scale + shift, or v gamma + beta if each value has its
 * own gamma and beta. y is sent if there is an `edge`. */
BN_INLINE void OF(bn_map_rows_by)(bn_activation act, ptrdiff_t rows, ptrdiff_t n, const real *x, real *y,
                                  const bn_numbers *of, bn_edge *edge)
{
    BN_MAP_NUMBERS(BN_ARRAY_IS) BN_ARRAY_IS(gamma) BN_ARRAY_IS(beta)
    if (gamma) {
        BN_MAP_ROWS_BY(rows, n, y, edge, BN_MAP_NUMBERS, BN_AFFINE)
    } else {
        BN_MAP_ROWS(rows, n, y, edge, BN_MAP_NUMBERS, BN_RUN)
    }
}

BN_APART void OF(bn_map_rows)(bn_activation act, ptrdiff_t rows, ptrdiff_t n, const real *x, real *y,
                              const bn_numbers *of, bn_edge *edge)
{
    BN_BY_EACH(OF(bn_map_rows_by), act, rows, n, x, y, of, edge)
}

/* dx of contiguous rows or runs, where g is dy before the activation of u, times gamma if each value has its own; then
 * dx = a (g - (b (x - h) + c)), plus dh if there is one. Without b (constant statistics) dx = a g. Else
 * dx = a (gain g - w (b (x - h) + c)), where gain and w may be left out; all runs have the same weights w. */
BN_INLINE void OF(bn_gradient_rows_by)(bn_activation act, ptrdiff_t rows, ptrdiff_t n, const real *dy, const real *x,
                                       real *dx, const bn_numbers *of, bn_edge *edge)
{
    BN_GAINED_NUMBERS(BN_ARRAY_IS) BN_ARRAY_IS(gamma) BN_ARRAY_IS(beta) BN_ARRAY_IS(dh) BN_ARRAY_IS(w)
    if (gamma && dh) {
        BN_MAP_ROWS_BY(rows, n, dx, edge, BN_GRADIENT_NUMBERS, BN_ADDED_GRADIENT)
    } else if (gamma) {
        BN_MAP_ROWS_BY(rows, n, dx, edge, BN_GRADIENT_NUMBERS, BN_GRADIENT)
    } else if (w) {
        BN_MAP_ROWS(rows, n, dx, edge, BN_GAINED_NUMBERS, BN_WEIGHTED_GRADIENT)
    } else if (gain) {
        BN_MAP_ROWS_BY(rows, n, dx, edge, BN_GAINED_NUMBERS, BN_GAINED_GRADIENT)
    } else {
        BN_MAP_ROWS(rows, n, dx, edge, BN_GRADIENT_NUMBERS, BN_RUN_GRADIENT)
    }
}

/* The same without b. */
BN_INLINE void OF(bn_frozen_rows_by)(bn_activation act, ptrdiff_t rows, ptrdiff_t n, const real *dy, const real *x,
                                     real *dx, const bn_numbers *of, bn_edge *edge)
{
    BN_FROZEN_NUMBERS(BN_ARRAY_IS)
    BN_MAP_ROWS_BY(rows, n, dx, edge, BN_FROZEN_NUMBERS, BN_FROZEN_GRADIENT)
}

BN_APART void OF(bn_gradient_rows)(bn_activation act, ptrdiff_t rows, ptrdiff_t n, const real *dy, const real *x,
                                   real *dx, const bn_numbers *of, bn_edge *edge)
{
    if (!of->b) {
        BN_BY_EACH(OF(bn_frozen_rows_by), act, rows, n, dy, x, dx, of, edge)
    } else {
        BN_BY_KIND(OF(bn_gradient_rows_by), act, rows, n, dy, x, dx, of, edge)
    }
}

/* h = x + r of n values, at least a line of them, which are sent to `out` and kept in h for what comes next. */
BN_APART void OF(bn_sums)(ptrdiff_t n, const real *x, const real *r, real *BN_RESTRICT h, real *out, bn_edge *edge)
{
    BN_SEND_VALUES(0, n, out, edge, BN_SUM);
}

/* If one of the numbers of a channel or row is NaN, let only h be NaN. The compiler decides which of two NaN an
 * operation returns, except for a subtraction, which returns the first. So the maps subtract what may be NaN: h from x
 * and, in the gradient, the term with b and c, whose sign is changed for this. Then results have the same bits in every
 * build. There is no branch, so that loops vectorize. */
BN_INLINE void OF(bn_one_nan)(real *h, real *scale, real *shift)
{
    const int found = (*h != *h) | (*scale != *scale) | (*shift != *shift);
    *h = found ? (real)BN_NAN : *h;
    *scale = found ? 1 : *scale;
    *shift = found ? 0 : *shift;
}

/* v, within the range of the type of a row. */
BN_INLINE double OF(bn_within)(double v)
{
    return BN_IS_FLOAT ? bn_bounded(v) : v;
}

/* The numbers that the maps of rows need. bn_row_numbers computes h, r and b of y = (x - h) r + b from the mean and
 * rstd of each row. bn_row_slopes computes tilt and rest of dx = r (g - (tilt (x - h) + rest)) from the sums of g and,
 * as `dot`, of g (x - h). tilt is -bn_grad_b, without its branch for rows of no values, which would not vectorize. */
BN_APART void OF(bn_row_numbers)(ptrdiff_t rows, const double *BN_RESTRICT mean,
                                  const double *BN_RESTRICT rstd, real *BN_RESTRICT h, real *BN_RESTRICT r,
                                  real *BN_RESTRICT b)
{
    for (ptrdiff_t k = 0; k < rows; k++) {
        const double h0 = (double)(real)mean[k], r0 = OF(bn_within)(rstd[k]);
        const double b0 = bn_fold(h0, mean[k], r0, 0.0);
        h[k] = (real)h0;
        r[k] = (real)r0;
        b[k] = (real)b0;
        OF(bn_one_nan)(&h[k], &r[k], &b[k]);
    }
}

BN_APART void OF(bn_row_slopes)(ptrdiff_t rows, double size, int centered, const double *BN_RESTRICT mean,
                                 const double *BN_RESTRICT rstd, const double *BN_RESTRICT sum,
                                 const double *BN_RESTRICT dot, real *BN_RESTRICT h, real *BN_RESTRICT tilt,
                                 real *BN_RESTRICT rest)
{
    for (ptrdiff_t k = 0; k < rows; k++) {
        const double h0 = (double)h[k], off = mean[k] - h0;
        const double t0 = OF(bn_within)((dot[k] - off * sum[k]) * rstd[k] / size * rstd[k]);
        const double c0 = (centered ? sum[k] / size : 0.0) - t0 * off;
        tilt[k] = (real)t0;
        rest[k] = (real)c0;
        OF(bn_one_nan)(&h[k], &tilt[k], &rest[k]);
    }
}
#endif
