/* Sums of a block of rows of a strip. Its sums are exact, and are used, only if all values fit the window (windows.h),
 * which is known at the end of the block. If a few values do not fit, they are added one by one. If many do not, the
 * block is peeled: values that fit a window below the largest value are summed and removed, and so on until none is
 * left. */
#ifndef BNORM_EXACT_BLOCKS_H
#define BNORM_EXACT_BLOCKS_H

#include "windows.h"

/* Write the largest magnitude of each lane, or if `alone` that of all lanes to each. Return whether all are finite. */
static inline int bn_largest(double *x, ptrdiff_t rows, int alone, double *largest)
{
    bn_lanes most = {0}, odd = {0};
    for (ptrdiff_t i = 0; i < rows; i++)
        for (int k = 0; k < BN_LANES; k++) {
            const double a = fabs(x[i * BN_LANES + k]);
            most[k] = a > most[k] ? a : most[k];
            odd[k] += a <= DBL_MAX ? 0 : 1;
        }
    int finite = 1;
    for (int k = 0; k < BN_LANES; k++)
        finite &= odd[k] == 0;
    if (alone)
        for (int k = 1; k < BN_LANES; k++)
            most[0] = most[k] > most[0] ? most[k] : most[0];
    for (int k = 0; k < BN_LANES; k++)
        largest[k] = most[alone ? 0 : k];
    return finite;
}

/* Count the values that are not finite, and set them to 0. */
static inline void bn_set_apart(double *x, ptrdiff_t rows, const bn_home *home)
{
    for (ptrdiff_t i = 0; i < rows * BN_LANES; i++)
        if (!(fabs(x[i]) <= DBL_MAX)) {
            if (home->channel[i % BN_LANES] >= 0)
                bn_put_odd(home->total, home->channel[i % BN_LANES], x[i]);
            x[i] = 0;
        }
}

/* Move the values that are at least 2^(e - bits) in magnitude, where the largest of their lane is below 2^e, from x to
 * `keep`, times 2^-e, so that they are below 1. The power is applied in two steps, as it may be out of a double's
 * range. */
static inline void bn_peel(double *x, double *keep, ptrdiff_t rows, const int *e, int bits)
{
    bn_lanes least, first, second;
    for (int k = 0; k < BN_LANES; k++) {
        least[k] = bn_power(e[k] - bits > -1074 ? e[k] - bits : -1074);
        first[k] = bn_power(-e[k] / 2);
        second[k] = bn_power(-e[k] - -e[k] / 2);
    }
    for (ptrdiff_t i = 0; i < rows; i++)
        for (int k = 0; k < BN_LANES; k++) {
            const double a = x[i * BN_LANES + k];
            const int large = fabs(a) >= least[k];
            keep[i * BN_LANES + k] = (large ? a : 0) * first[k] * second[k];
            x[i * BN_LANES + k] = large ? 0 : a;
        }
}

/* Add a block of any values. x is overwritten. The window of each lane becomes the one that would have suited the
 * block; without `lower` only if that is higher than the present one. */
static inline void bn_sum_any(bn_strip *s, const bn_home *home, double *x, ptrdiff_t rows, int r, int wide, int lower)
{
    double keep[BN_BLOCK_F * BN_LANES];
    bn_lanes sum[BN_PIECES], largest, least;
    bn_strip w;
    const bn_next none = {(const char *)keep, 0, 0};
    int e[BN_LANES], log_rows = 0, first = 1;
    while (1 << log_rows < rows)
        log_rows++;
    if (!bn_largest(x, rows, home->alone, largest)) {
        bn_set_apart(x, rows, home);
        bn_largest(x, rows, home->alone, largest);
    }
    bn_start_strip(&w, log_rows + 1, log_rows, 1);
    for (;; first = 0) {
        int any = 0;
        for (int i = 0; i < BN_LANES; i++) {
            e[i] = largest[i] > 0 ? bn_above(largest[i]) : 0;
            any |= largest[i] > 0;
        }
        if (!any)
            return;
        bn_peel(x, keep, rows, e, 26 - log_rows);
        bn_sum_doubles(keep, rows, BN_LANES, &w, sum, least, &none);
        if (home->alone) {
            bn_close_block(&w, sum, BN_PIECES);
            bn_flush_scaled(&w, home, e[0], 1);
            for (int i = 1; i < BN_LANES; i++)
                sum[0][0] += sum[0][i];     /* this sum is rounded: it is only for the windows */
        }
        for (int k = 0; !home->alone && k < BN_PIECES; k++)
            for (int i = 0; i < BN_LANES; i++)
                if (home->channel[i] >= 0)
                    bn_put_double(home->total, bn_class_d[k], home->channel[i], sum[k][i], e[i] * (1 + bn_class_d[k]));
        for (int i = 0; first && i < BN_LANES; i++) {
            const double squares = sum[0][home->alone ? 0 : i] / (home->alone ? BN_LANES : 1) / (double)rows;
            if (squares > 0) {
                const int B = bn_above(squares) + 2 + r + 2 * e[i];    /* other blocks may have larger values */
                if ((lower ? B != s->at[i] : B > s->at[i]) || s->least[i] == INFINITY) {
                    if (s->blocks)
                        bn_flush_lane(s, home, i, 0, wide);
                    bn_window(s, i, B, r, wide);
                    s->open = 1;
                }
            }
        }
        bn_largest(x, rows, home->alone, largest);
    }
}

/* Add a block in the usual way if all values fit the window. Return whether they do. */
BN_INLINE int bn_sum_usual(bn_strip *s, const void *x, ptrdiff_t rows, ptrdiff_t stride, const bn_next *next,
                           int wide)
{
    bn_lanes sum[BN_PIECES], least;
    int held = 0;
    if (wide)
        bn_sum_doubles((const double *)x, rows, stride, s, sum, least, next);
    else
        bn_sum_floats((const float *)x, rows, stride, s, sum, least, next);
    for (int i = 0; i < BN_LANES; i++)
        held += (sum[wide ? 0 : 1][i] < s->most[i]) & (least[i] >= s->least[i]);
    if (held == BN_LANES)
        bn_close_block(s, sum, wide ? 6 : 3);
    return held == BN_LANES;
}

/* Copy rows, with 0 for each value that does not fit the window of its lane. Return how many do not fit: for a lane
 * that has values but no window, a number that is too large. */
#define BN_SIFT(type, largest)                                                                                   \
    static inline ptrdiff_t bn_sift_##type(const type *x, ptrdiff_t rows, ptrdiff_t stride, const double *least, \
                                           type *to)                                                             \
    {                                                                                                            \
        type low[BN_LANES], odd[BN_LANES] = {0};                                                                 \
        ptrdiff_t all = 0;                                                                                       \
        for (int k = 0; k < BN_LANES; k++)                                                                       \
            low[k] = (type)least[k];                                                                             \
        for (ptrdiff_t i = 0; i < rows; i++)                                                                     \
            for (int k = 0; k < BN_LANES; k++) {                                                                 \
                const type v = x[i * stride + k], a = v < 0 ? -v : v;                                            \
                const int fits = ((a >= low[k]) | (a == 0)) & (a <= largest);                                    \
                to[i * BN_LANES + k] = fits ? v : 0;                                                             \
                odd[k] += fits ? (type)0 : (type)1;                                                              \
            }                                                                                                    \
        for (int k = 0; k < BN_LANES; k++)                                                                       \
            all += odd[k] != 0 && least[k] == INFINITY ? rows * BN_LANES : (ptrdiff_t)odd[k];                    \
        return all;                                                                                              \
    }
BN_SIFT(float, FLT_MAX)
BN_SIFT(double, DBL_MAX)

/* Add a single value to the limbs. */
static inline void bn_put_value(const bn_home *home, int lane, double v)
{
    const ptrdiff_t channel = home->channel[lane];
    if (channel < 0)
        return;
    if (fabs(v) <= DBL_MAX) {
        bn_put_double(home->total, 0, channel, v, 0);
        bn_put_square(home->total, channel, v);
    } else
        bn_put_odd(home->total, channel, v);
}

/* Add a block of which a few values do not fit the window: these one by one, the others in the usual way. Return 1 if
 * it was such a block, 0 if the window is too low, -1 if too many values do not fit. */
static inline int bn_sum_sifted(bn_strip *s, const bn_home *home, const void *x, ptrdiff_t rows, ptrdiff_t stride,
                                int wide)
{
    union {
        float f[BN_BLOCK_F * BN_LANES];
        double d[BN_BLOCK_D * BN_LANES];
    } kept;
    const bn_next none = {(const char *)&kept, 0, 0};
    const double *xd = (const double *)x;
    const float *xf = (const float *)x;
    const ptrdiff_t odd = wide ? bn_sift_double(xd, rows, stride, s->least, kept.d)
                               : bn_sift_float(xf, rows, stride, s->least, kept.f);
    if (odd * BN_SELDOM > rows * BN_LANES)
        return -1;
    if (!(wide ? bn_sum_usual(s, kept.d, rows, BN_LANES, &none, 1) : bn_sum_usual(s, kept.f, rows, BN_LANES, &none, 0)))
        return 0;
    for (ptrdiff_t i = 0; odd && i < rows; i++) {
        const void *row = wide ? (const void *)(xd + i * stride) : xf + i * stride;
        const void *own = wide ? (const void *)(kept.d + i * BN_LANES) : kept.f + i * BN_LANES;
        if (memcmp(row, own, wide ? sizeof kept.d[0] * BN_LANES : sizeof kept.f[0] * BN_LANES) == 0)
            continue;
        for (int k = 0; k < BN_LANES; k++)
            if (wide && kept.d[i * BN_LANES + k] == 0)
                bn_put_value(home, k, xd[i * stride + k]);
            else if (!wide && kept.f[i * BN_LANES + k] == 0)
                bn_put_value(home, k, xf[i * stride + k]);
    }
    return 1;
}

/* Set first windows of all lanes by the rounded mean squares of some rows. Return whether that was possible. */
static inline int bn_first_windows(bn_strip *s, int alone, const void *x, ptrdiff_t rows, ptrdiff_t stride, int r,
                                   int wide)
{
    bn_lanes square = {0};
    for (ptrdiff_t i = 0; i < rows; i++)
        for (int k = 0; k < BN_LANES; k++) {
            const double a = wide ? ((const double *)x)[i * stride + k] : ((const float *)x)[i * stride + k];
            square[k] += a * a;
        }
    for (int k = 1; alone && k < BN_LANES; k++)
        square[0] += square[k];
    for (int k = 0; k < BN_LANES; k++) {
        square[k] = square[alone ? 0 : k] / (double)(alone ? rows * BN_LANES : rows);
        if (square[k] != 0 && !(square[k] > 0x1p-600 && square[k] < 0x1p600))
            return 0;
    }
    for (int k = 0; k < BN_LANES; k++)
        if (square[k] != 0)
            bn_window(s, k, bn_above(square[k]) + 2 + r, r, wide);
    return s->open = 1;
}

/* Add a block of at most 2^r rows of a strip. next: what to fetch meanwhile. */
BN_APART void bn_add_rows(bn_strip *s, const bn_home *home, const void *x, ptrdiff_t rows, ptrdiff_t stride, int r,
                          int wide, const bn_next *next)
{
    if (s->blocks >= BN_MANY)
        bn_flush(s, home, wide);
    int sifted = -1;
    if (s->open || bn_first_windows(s, home->alone, x, rows, stride, r, wide)) {
        if (wide ? bn_sum_usual(s, x, rows, stride, next, 1) : bn_sum_usual(s, x, rows, stride, next, 0))
            return;
        sifted = bn_sum_sifted(s, home, x, rows, stride, wide);
        if (sifted > 0)
            return;
    }
    double values[BN_BLOCK_F * BN_LANES];
    for (ptrdiff_t i = 0; i < rows; i++)
        for (int k = 0; k < BN_LANES; k++)
            values[i * BN_LANES + k] = wide ? ((const double *)x)[i * stride + k] : ((const float *)x)[i * stride + k];
    bn_sum_any(s, home, values, rows, r, wide, sifted < 0);
}

#endif
