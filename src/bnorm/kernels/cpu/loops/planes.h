/* Sums of planes. A plane is the values of one channel at one outer position, side by side, as those of an image are.
 * Planes of several channels follow each other; those of the next outer position are `stride` values away. */
#ifndef BNORM_PLANES_H
#define BNORM_PLANES_H

#include "runs.h"

/* Applies SUMS to every plane of channels c and outer positions r_; `at` is where the plane begins. */
#define BN_EVERY_PLANE(SUMS)                                                                                          \
    if (n <= 2 * BN_WIDTH)                                                                                            \
        BN_EVERY(1, SUMS)                                                                                             \
    else                                                                                                              \
        BN_EVERY(0, SUMS)
#define BN_EVERY(less, SUMS)                                                                                          \
    for (ptrdiff_t r_ = 0; r_ < rows; r_++)                                                                           \
        for (ptrdiff_t c = 0; c < planes; c++) {                                                                      \
            enum { brief = less };                                                                                    \
            const ptrdiff_t at = r_ * stride + c * n;                                                                 \
            if (ahead)                                                                                                \
                bn_fetch(ahead, (size_t)n * sizeof(real));                                                            \
            SUMS;                                                                                                     \
        }

#define bn_plane_sums(act, weighed, rows, stride, planes, n, dy, ...)                                                 \
    BN_OF(bn_plane_sums, dy)(act, weighed, rows, stride, planes, n, dy, __VA_ARGS__)
#define BN_TEMPLATE "planes.h"
#include "both.h"
#elif defined(real)

BN_INLINE void OF(bn_plane_products_of)(bn_activation act, int weighed, ptrdiff_t rows, ptrdiff_t stride,
                                        ptrdiff_t planes, ptrdiff_t n, const real *dy, const real *x, const bn_numbers *of,
                                        bn_ahead *ahead, double *BN_RESTRICT sum, double *BN_RESTRICT dot)
{
    BN_MAP_NUMBERS(BN_ARRAY_IS)
    BN_EVERY_PLANE(OF(bn_products)(0, brief, weighed, act, dy + at, x + at, n, h[c], scale[c], shift[c], sum + 8 * c,
                                   dot + 8 * c))
}

/* Adds sum g and sum g (x - h) of all planes to the two sums of their channel, 8 parts of each. g is dy before the
 * activation, or x - h if there is no dy. weighed: x does not enter where g is 0. */
BN_APART void OF(bn_plane_sums)(bn_activation act, int weighed, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t planes,
                                ptrdiff_t n, const real *dy, const real *x, const bn_numbers *of, bn_ahead *ahead,
                                double *BN_RESTRICT sum, double *BN_RESTRICT dot)
{
    BN_ARRAY_IS(h)
    if (dy && weighed) {
        BN_BY_KIND(OF(bn_plane_products_of), act, 1, rows, stride, planes, n, dy, x, of, ahead, sum, dot)
    } else if (dy) {
        BN_BY_KIND(OF(bn_plane_products_of), act, 0, rows, stride, planes, n, dy, x, of, ahead, sum, dot)
    } else {
        BN_EVERY_PLANE(OF(bn_squares)(0, brief, x + at, n, h[c], sum + 8 * c, dot + 8 * c))
    }
}
#endif
