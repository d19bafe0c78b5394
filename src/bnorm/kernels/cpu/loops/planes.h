/* Planes: the values of one channel at one outer position, which lie together, as those of an image do. Planes of several
 * channels lie one after the other; those of the next outer position are `stride` values away. */
#ifndef BNORM_PLANES_H
#define BNORM_PLANES_H

#include "rows.h"
#include "runs.h"

/* Planes of some channels at some outer positions: what one gives is added to the sums of its channel. */
#define BN_EVERY_PLANE(real, SUMS)                                                                                    \
    if (n < 2 * BN_WIDTH)                                                                                             \
        BN_EVERY(real, 1, SUMS)                                                                                       \
    else                                                                                                              \
        BN_EVERY(real, 0, SUMS)
#define BN_EVERY(real, less, SUMS)                                                                                    \
    for (ptrdiff_t r_ = 0; r_ < rows; r_++)                                                                           \
        for (ptrdiff_t c = 0; c < planes; c++) {                                                                      \
            enum { brief = less };                                                                                    \
            const ptrdiff_t at = r_ * stride + c * n;                                                                 \
            if (ahead)                                                                                                \
                bn_fetch(ahead, (size_t)n * sizeof(real));                                                            \
            SUMS;                                                                                                     \
        }

/* y = act((x - h) scale + shift) and dx = a (g - (b (x - h) + c)), g being dy before the activation, of planes that lie one
 * after the other; sent if there is an `edge`. */
#define BN_PLANES(real, name)                                                                                         \
    BN_APART void bn_plane_squares_##name(ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t planes, ptrdiff_t n,            \
                                          const real *x, const real *h, bn_ahead *ahead, double *BN_RESTRICT sum,     \
                                          double *BN_RESTRICT square)                                                 \
    {                                                                                                                 \
        BN_EVERY_PLANE(real, bn_squares_##name(brief, x + at, n, h[c], sum + 8 * c, square + 8 * c))                  \
    }                                                                                                                 \
    BN_INLINE void bn_plane_products_of_##name(bn_activation act, ptrdiff_t rows, ptrdiff_t stride,                   \
                                               ptrdiff_t planes, ptrdiff_t n, const real *dy, const real *x,          \
                                               const real *h, const real *scale, const real *shift, bn_ahead *ahead,  \
                                               double *BN_RESTRICT sum, double *BN_RESTRICT dot)                      \
    {                                                                                                                 \
        BN_EVERY_PLANE(real, bn_products_##name(0, brief, act, dy + at, x + at, n, h[c], scale[c], shift[c],          \
                                                sum + 8 * c, dot + 8 * c))                                            \
    }                                                                                                                 \
    BN_APART void bn_plane_products_##name(bn_activation act, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t planes,     \
                                           ptrdiff_t n, const real *dy, const real *x, const real *h,                 \
                                           const real *scale, const real *shift, bn_ahead *ahead,                     \
                                           double *BN_RESTRICT sum, double *BN_RESTRICT dot)                          \
    {                                                                                                                 \
        BN_BY_KIND(bn_plane_products_of_##name, act, rows, stride, planes, n, dy, x, h, scale, shift, ahead, sum, dot)\
    }                                                                                                                 \
    BN_INLINE void bn_plane_maps_of_##name(bn_activation act, ptrdiff_t planes, ptrdiff_t n, const real *x,           \
                                           real *y, const real *h, const real *scale, const real *shift,              \
                                           bn_edge *edge)                                                             \
    {                                                                                                                 \
        BN_MAP_ROWS(real, planes, n, y, edge, BN_PLANE_NUMBERS, BN_PLANE_##name)                                      \
    }                                                                                                                 \
    BN_APART void bn_plane_maps_##name(bn_activation act, ptrdiff_t planes, ptrdiff_t n, const real *x, real *y,      \
                                       const real *h, const real *scale, const real *shift, bn_edge *edge)            \
    {                                                                                                                 \
        BN_BY_KIND(bn_plane_maps_of_##name, act, planes, n, x, y, h, scale, shift, edge)                              \
    }                                                                                                                 \
    BN_INLINE void bn_plane_gradients_of_##name(bn_activation act, ptrdiff_t planes, ptrdiff_t n, const real *dy,     \
                                                const real *x, real *dx, const real *h, const real *scale,            \
                                                const real *shift, const real *a, const real *b, const real *c,       \
                                                bn_edge *edge)                                                        \
    {                                                                                                                 \
        BN_MAP_ROWS(real, planes, n, dx, edge, BN_PLANE_COEFFICIENTS, BN_PLANE_GRADIENT_##name)                       \
    }                                                                                                                 \
    BN_APART void bn_plane_gradients_##name(bn_activation act, ptrdiff_t planes, ptrdiff_t n, const real *dy,         \
                                            const real *x, real *dx, const real *h, const real *scale,                \
                                            const real *shift, const real *a, const real *b, const real *c,           \
                                            bn_edge *edge)                                                            \
    {                                                                                                                 \
        BN_BY_KIND(bn_plane_gradients_of_##name, act, planes, n, dy, x, dx, h, scale, shift, a, b, c, edge)           \
    }
#define BN_PLANE_NUMBERS(DO) DO(h) DO(scale) DO(shift)
#define BN_PLANE_COEFFICIENTS(DO) BN_PLANE_NUMBERS(DO) DO(a) DO(b) DO(c)
#define BN_PLANE_V(i) ((x[i] - own_h) * own_scale + own_shift)
#define BN_PLANE_GRADIENT(name, i)                                                                                    \
    (own_a * (bn_act_pull_##name(act, BN_PLANE_V(i), dy[i]) - (own_b * (x[i] - own_h) + own_c)))
#define BN_PLANE_float(i, p) bn_act_float(act, BN_PLANE_V(i))
#define BN_PLANE_double(i, p) bn_act_double(act, BN_PLANE_V(i))
#define BN_PLANE_GRADIENT_float(i, p) BN_PLANE_GRADIENT(float, i)
#define BN_PLANE_GRADIENT_double(i, p) BN_PLANE_GRADIENT(double, i)

BN_PLANES(float, float)
BN_PLANES(double, double)

#endif
