/* Sums of runs whose positions have weights, which all runs of an outer position share. They are float64, in lanes of
 * a fixed number. */
#ifndef BNORM_WEIGHTED_H
#define BNORM_WEIGHTED_H

#include "lanes.h"

/* A power of two that brings the largest of some weights near 1, and leaves a mask as it is. */
static inline double bn_near_one(double largest)
{
    int exponent;
    frexp(largest, &exponent);
    return largest > 0.0 ? ldexp(1.0, exponent < -1022 ? 1023 : 1 - exponent) : 1.0;
}

/* sum w (x - h), sum w (x - h)^2; what weighs nothing is not read as a number. */
#define BN_WEIGHTED_SQUARE(i, j, kept)                                                                                \
    const real w_ = w[i], d_ = OF(bn_kept)(x[i] - h, w_ != 0 && (kept)), p_ = w_ * d_;                                \
    s[j] += p_;                                                                                                       \
    t[j] += p_ * d_;
/* sum g, sum g (x - h); nor is the x of a g that is 0. */
#define BN_WEIGHTED_PRODUCT(i, j, kept)                                                                               \
    const real d_ = x[i] - own_h;                                                                                     \
    const real g_ = OF(bn_kept)(OF(bn_act_pull)(act, d_ * own_scale + own_shift, dy[i]), (kept));                     \
    s[j] += g_;                                                                                                       \
    t[j] += g_ * OF(bn_kept)(d_, g_ != 0);

#define bn_weighted_squares(runs, n, pitch, x, ...) BN_OF(bn_weighted_squares, x)(runs, n, pitch, x, __VA_ARGS__)
#define bn_weighted_products(act, n, dy, ...) BN_OF(bn_weighted_products, dy)(act, n, dy, __VA_ARGS__)
#define BN_TEMPLATE "weighted.h"
#include "both.h"
#elif defined(real)

/* Of `runs` runs of n values each, `pitch` values apart, with the same weights, behind which a vector of zeros lies. */
BN_APART void OF(bn_weighted_squares)(ptrdiff_t runs, ptrdiff_t n, ptrdiff_t pitch, const real *x, ptrdiff_t left,
                                      const real *w, real h, double *sum, double *square)
{
    double first[8] = {0}, second[8] = {0};
    for (ptrdiff_t k = 0; k < runs; k++, x += pitch, left -= pitch)
        BN_RUN_IN_LANES(n, left, first, second, BN_WEIGHTED_SQUARE)
    *sum = bn_whole(first);
    *square = bn_whole(second);
}

BN_INLINE void OF(bn_weighted_products)(bn_activation act, ptrdiff_t n, const real *dy, const real *x, ptrdiff_t left,
                                        const bn_numbers *of, double *sum, double *dot)
{
    const ptrdiff_t k = 0;
    double first[8] = {0}, second[8] = {0};
    BN_MAP_NUMBERS(BN_NUMBER_IS)
    BN_RUN_IN_LANES(n, left, first, second, BN_WEIGHTED_PRODUCT)
    *sum = bn_whole(first);
    *dot = bn_whole(second);
}
#endif
