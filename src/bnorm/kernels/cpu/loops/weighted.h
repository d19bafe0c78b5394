/* Sums of runs whose positions have weights, the same for all runs of an outer position. They are made in a fixed
 * number of lanes, a few values in the type of x and then in float64. */
#ifndef BNORM_WEIGHTED_H
#define BNORM_WEIGHTED_H

#include "lanes.h"

/* A power of two: times it, the largest of some weights is near 1. It is 1 for a mask, which stays as it is. */
static inline double bn_near_one(double largest)
{
    int exponent;
    frexp(largest, &exponent);
    return largest > 0.0 ? ldexp(1.0, exponent < -1022 ? 1023 : 1 - exponent) : 1.0;
}

/* sum w (x - h) and sum w (x - h)^2. If w is 0, x does not enter, even if it is NaN. */
#define BN_WEIGHTED_SQUARE(i, j, kept)                                                                                \
    const real w_ = w[i], d_ = OF(bn_kept)(x[i] - h, w_ != 0 && (kept)), p_ = w_ * d_;                                \
    s[j] += p_;                                                                                                       \
    t[j] += p_ * d_;
/* sum g and sum g (x - h). If g is 0, x does not enter. */
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

/* Sums of `runs` runs of n values, `pitch` values apart, with the same weights, which a vector of zeros follows. */
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
