/* The maps of channel_lines.pxi, sent as they are computed (BN_SEND_VALUES): lines of columns that have a number each. The
 * kind of `act` is a constant to the compiler. */
#ifndef BNORM_LINES_H
#define BNORM_LINES_H

#include "formulas.h"
#include "memory.h"
#include "edges.h"

#define BN_SENT_LINES(real, name, integer)                                                                            \
    BN_INLINE void bn_send_columns_##name(bn_activation act, const real *x, real *y, ptrdiff_t n, const real *h,      \
                                          const real *scale, const real *shift, bn_edge *edge)                        \
    {                                                                                                                 \
        BN_SEND_VALUES(real, n, y, edge, BN_COLUMN_##name);                                                           \
    }                                                                                                                 \
    /* Whether an infinity was among x; of each line the flags stay apart, as values do. */                           \
    BN_INLINE int bn_send_checked_##name(bn_activation act, const real *x, real *y, ptrdiff_t n, const real *h,       \
                                         const real *scale, const real *shift, bn_edge *edge)                         \
    {                                                                                                                 \
        integer found[BN_LINE / sizeof(real)] = {0}, any = 0;                                                         \
        BN_SEND_VALUES(real, n, y, edge, BN_CHECKED_##name);                                                          \
        for (int j = 0; j < (int)(BN_LINE / sizeof(real)); j++)                                                       \
            any |= found[j];                                                                                          \
        return any != 0;                                                                                              \
    }                                                                                                                 \
    BN_INLINE void bn_send_gradients_##name(bn_activation act, const real *dy, const real *x, real *dx,               \
                                            ptrdiff_t n, const real *h, const real *scale, const real *shift,         \
                                            const real *a, const real *b, const real *c, bn_edge *edge)               \
    {                                                                                                                 \
        BN_SEND_VALUES(real, n, dx, edge, BN_COLUMN_GRADIENT_##name);                                                 \
    }

#define BN_COLUMN(name, j) bn_act_##name(act, (x[j] - h[j]) * scale[j] + shift[j])
#define BN_CHECK(name, j) (found[j_] |= bn_infinite_##name(x[j]), BN_COLUMN(name, j))
#define BN_COLUMN_PULL(name, j) bn_act_pull_##name(act, (x[j] - h[j]) * scale[j] + shift[j], dy[j])
#define BN_COLUMN_GRADIENT(name, j) (a[j] * (BN_COLUMN_PULL(name, j) - (b[j] * (x[j] - h[j]) + c[j])))

#define BN_COLUMN_float(j, p) BN_COLUMN(float, j)
#define BN_COLUMN_double(j, p) BN_COLUMN(double, j)
#define BN_CHECKED_float(j, p) BN_CHECK(float, j)
#define BN_CHECKED_double(j, p) BN_CHECK(double, j)
#define BN_COLUMN_GRADIENT_float(j, p) BN_COLUMN_GRADIENT(float, j)
#define BN_COLUMN_GRADIENT_double(j, p) BN_COLUMN_GRADIENT(double, j)

BN_SENT_LINES(float, float, int32_t)
BN_SENT_LINES(double, double, int64_t)

#endif
