/* The maps of a line: y = act((x - h) scale + shift) and dx = a (g - w (b (x - h) + c)), where g is dy before the
 * activation (lanes.h). h is the mean rounded to the type of x, so x - h is exact near the mean; the rest of the mean
 * is folded into shift and c. As a is outside the parentheses, b is about 1 / std, which float32 can hold if it can
 * hold x. If a weight is 0, x does not enter dx, even if it is NaN. Without b (constant statistics) dx = a g. b and c
 * have the opposite sign of those in formulas.h, and are subtracted; bn_one_nan says why.
 *
 * In functions whose names end in _by, the kind of `act` is a constant to the compiler. */
#ifndef BNORM_LINES_H
#define BNORM_LINES_H

#include "formulas.h"
#include "memory.h"
#include "rows.h"

#define BN_COLUMN_V(i, p) ((x[i] - h[p]) * scale[p] + shift[p])
#define BN_COLUMN(i, p) OF(bn_act)(act, BN_COLUMN_V(i, p))
#define BN_CHECKED(i, p) (any |= OF(bn_infinite)(x[i]), BN_COLUMN(i, p))
#define BN_COLUMN_TILT(i, p) (b[p] * (x[i] - h[p]) + c[p])
#define BN_COLUMN_GRADIENT(i, p)                                                                                      \
    (a[p] * (OF(bn_act_pull)(act, BN_COLUMN_V(i, p), dy[i]) - BN_COLUMN_TILT(i, p)))
#define BN_FROZEN_COLUMN(i, p) OF(bn_act_pull)(act, BN_COLUMN_V(i, p), a[p] * dy[i])
#define BN_WEIGHTED_COLUMN(i, p)                                                                                      \
    (a[p] * (OF(bn_act_pull)(act, BN_COLUMN_V(i, p), dy[i]) - (w[p] == 0 ? 0 : w[p] * BN_COLUMN_TILT(i, p))))

/* y[i] = VALUE(i, p) for `lines` lines of n values, each `step` values behind the one before; p is the place in its
 * line. y may be x or dy. In BN_PAIRS_OF two lines at a time share the numbers of their columns. */
#define BN_LINES_OF(y, VALUE)                                                                                         \
    for (ptrdiff_t at_ = 0; lines > 0; lines--, at_ += step) {                                                        \
        BN_INDEPENDENT                                                                                                \
        for (ptrdiff_t j = 0; j < n; j++)                                                                             \
            (y)[at_ + j] = VALUE(at_ + j, j);                                                                         \
    }
#define BN_PAIRS_OF(y, VALUE)                                                                                         \
    for (; lines > 1; lines -= 2, x += 2 * step, dy += 2 * step, (y) += 2 * step) {                                   \
        BN_INDEPENDENT                                                                                                \
        for (ptrdiff_t j = 0; j < n; j++) {                                                                           \
            (y)[j] = VALUE(j, j);                                                                                     \
            (y)[step + j] = VALUE(step + j, j);                                                                       \
        }                                                                                                             \
    }

#define bn_map_columns(act, lines, step, x, ...) BN_OF(bn_map_columns, x)(act, lines, step, x, __VA_ARGS__)
#define bn_gradient_columns(act, lines, step, dy, ...)                                                                \
    BN_OF(bn_gradient_columns, dy)(act, lines, step, dy, __VA_ARGS__)
#define bn_weighted_run(act, dy, ...) BN_OF(bn_weighted_run, dy)(act, dy, __VA_ARGS__)
#define bn_any_infinite(x, n) BN_OF(bn_any_infinite, x)(x, n)
#define BN_TEMPLATE "lines.h"
#include "both.h"
#elif defined(real)

/* Whether one of n values is infinite. The last values, if they do not fill a vector, are checked as part of the last
 * whole vector, which is faster than one by one. */
BN_APART int OF(bn_any_infinite)(const real *x, ptrdiff_t n)
{
    enum { VECTOR = 16 };
    const ptrdiff_t odd = n % VECTOR, last = n < VECTOR ? 0 : n - VECTOR;
    integer found = 0;
    for (ptrdiff_t j = 0; j < n - odd; j++)
        found |= OF(bn_infinite)(x[j]);
    for (ptrdiff_t j = last; odd && j < n; j++)
        found |= OF(bn_infinite)(x[j]);
    return found != 0;
}

/* Computes lines of y, each of n values from column `from` on and `step` values behind the one before. If there is an
 * `edge`, they are contiguous and sent. infinite: NULL, or set if a value of x is infinite. That is checked in the loop
 * that reads x anyway; of a line that is sent afterwards, when it is in the first-level cache, unless y overwrites x. */
BN_INLINE void OF(bn_map_columns_by)(bn_activation act, ptrdiff_t lines, ptrdiff_t step, const real *x, real *y,
                                     ptrdiff_t n, const bn_numbers *of, ptrdiff_t from, int *infinite, bn_edge *edge)
{
    const real *h = (const real *)of->h + from, *scale = (const real *)of->scale + from;
    const real *shift = (const real *)of->shift + from;
    integer any = 0;
    if (edge) {
        if (infinite && x == y)
            any = OF(bn_any_infinite)(x, lines * n);
        BN_SEND_ROWS(1, lines, n, y, edge, BN_NO_NUMBERS, BN_COLUMN);
        if (infinite && x != y)
            any = OF(bn_any_infinite)(x, lines * n);
    } else if (!infinite)
        BN_LINES_OF(y, BN_COLUMN)
    else
        BN_LINES_OF(y, BN_CHECKED)
    if (any)
        bn_set(infinite);
}

BN_APART void OF(bn_map_columns)(bn_activation act, ptrdiff_t lines, ptrdiff_t step, const real *x, real *y,
                                 ptrdiff_t n, const bn_numbers *of, ptrdiff_t from, int *infinite, bn_edge *edge)
{
    BN_BY_EACH(OF(bn_map_columns_by), act, lines, step, x, y, n, of, from, infinite, edge)
}

/* Computes lines of dx in the same way; one line is sent if there is an `edge`, and then b is not NULL. of->w begins
 * with the weights of this line, not with those of column 0; then there is one line. */
BN_INLINE void OF(bn_gradient_columns_by)(bn_activation act, ptrdiff_t lines, ptrdiff_t step, const real *dy,
                                          const real *x, real *dx, ptrdiff_t n, const bn_numbers *of, ptrdiff_t from,
                                          bn_edge *edge)
{
    const real *h = (const real *)of->h + from, *scale = (const real *)of->scale + from;
    const real *shift = (const real *)of->shift + from;
    const real *a = (const real *)of->a + from, *b = (const real *)of->b + from, *c = (const real *)of->c + from;
    const real *w = (const real *)of->w;
    if (edge && w)
        BN_SEND_VALUES(0, n, dx, edge, BN_WEIGHTED_COLUMN);
    else if (edge)
        BN_SEND_VALUES(0, n, dx, edge, BN_COLUMN_GRADIENT);
    else if (w)
        BN_LINES_OF(dx, BN_WEIGHTED_COLUMN)
    else {
        if (act.kind == BN_IDENTITY)
            BN_PAIRS_OF(dx, BN_COLUMN_GRADIENT)
        BN_LINES_OF(dx, BN_COLUMN_GRADIENT)
    }
}

/* The same without b, for constant statistics. */
BN_INLINE void OF(bn_frozen_columns_by)(bn_activation act, ptrdiff_t lines, ptrdiff_t step, const real *dy,
                                        const real *x, real *dx, ptrdiff_t n, const bn_numbers *of, ptrdiff_t from)
{
    const real *h = (const real *)of->h + from, *scale = (const real *)of->scale + from;
    const real *shift = (const real *)of->shift + from, *a = (const real *)of->a + from;
    BN_LINES_OF(dx, BN_FROZEN_COLUMN)
}

BN_APART void OF(bn_gradient_columns)(bn_activation act, ptrdiff_t lines, ptrdiff_t step, const real *dy,
                                      const real *x, real *dx, ptrdiff_t n, const bn_numbers *of, ptrdiff_t from,
                                      bn_edge *edge)
{
    if (!of->b) {
        BN_BY_EACH(OF(bn_frozen_columns_by), act, lines, step, dy, x, dx, n, of, from)
    } else {
        BN_BY_KIND(OF(bn_gradient_columns_by), act, lines, step, dy, x, dx, n, of, from, edge)
    }
}

/* The same for a run, with the numbers of its channel; the weights are divided by `unit`. */
BN_INLINE void OF(bn_weighted_run)(bn_activation act, const real *dy, const real *x, real *dx, ptrdiff_t n,
                                      const bn_numbers *of, const double *w, double unit)
{
    const ptrdiff_t k_ = 0;
    const double inverse = 1.0 / unit;
    BN_GRADIENT_NUMBERS(BN_ARRAY_IS) BN_GRADIENT_NUMBERS(BN_OWN_IS)
    BN_INDEPENDENT
    for (ptrdiff_t j = 0; j < n; j++)
        dx[j] = own_a * (BN_RUN_PULL(j) - (w[j] == 0 ? 0 : (real)(w[j] * inverse) * BN_TILTED(j)));
}
#endif
