/* The maps of channel_lines.pxi, sent as they are computed (BN_SEND_VALUES): lines of columns that have a number each. The
 * kind of `act` is a constant to the compiler. */
#ifndef BNORM_LINES_H
#define BNORM_LINES_H

#include "formulas.h"
#include "memory.h"
#include "edges.h"

#define BN_COLUMN_V(i) ((x[i] - h[i]) * scale[i] + shift[i])
#define BN_COLUMN(i, p) OF(bn_act)(act, BN_COLUMN_V(i))
#define BN_CHECKED(i, p) (found[j_] |= OF(bn_infinite)(x[i]), BN_COLUMN(i, p))
#define BN_COLUMN_GRADIENT(i, p) (a[i] * (OF(bn_act_pull)(act, BN_COLUMN_V(i), dy[i]) - (b[i] * (x[i] - h[i]) + c[i])))

#define bn_send_columns(act, x, ...) BN_OF(bn_send_columns, x)(act, x, __VA_ARGS__)
#define bn_send_checked(act, x, ...) BN_OF(bn_send_checked, x)(act, x, __VA_ARGS__)
#define bn_send_gradients(act, dy, ...) BN_OF(bn_send_gradients, dy)(act, dy, __VA_ARGS__)
#define BN_TEMPLATE "lines.h"
#include "both.h"
#elif defined(real)

BN_INLINE void OF(bn_send_columns)(bn_activation act, const real *x, real *y, ptrdiff_t n, const real *h,
                                   const real *scale, const real *shift, bn_edge *edge)
{
    BN_SEND_VALUES(n, y, edge, BN_COLUMN);
}

/* Whether an infinity was among x; of each line the flags stay apart, as values do. */
BN_INLINE int OF(bn_send_checked)(bn_activation act, const real *x, real *y, ptrdiff_t n, const real *h,
                                  const real *scale, const real *shift, bn_edge *edge)
{
    integer found[BN_LINE / sizeof(real)] = {0}, any = 0;
    BN_SEND_VALUES(n, y, edge, BN_CHECKED);
    for (int j = 0; j < (int)(BN_LINE / sizeof(real)); j++)
        any |= found[j];
    return any != 0;
}

BN_INLINE void OF(bn_send_gradients)(bn_activation act, const real *dy, const real *x, real *dx,
                                     ptrdiff_t n, const real *h, const real *scale, const real *shift,
                                     const real *a, const real *b, const real *c, bn_edge *edge)
{
    BN_SEND_VALUES(n, dx, edge, BN_COLUMN_GRADIENT);
}
#endif
