/* Sums and maps of runs whose positions have weights, which all runs of an outer position share. Sums are float64, in lanes
 * of a fixed number. */
#ifndef BNORM_WEIGHTED_H
#define BNORM_WEIGHTED_H

#include "rows.h"

enum {
    BN_ABREAST = 32,  /* lanes: each is added to again when its last addition is done, even by way of memory */
    BN_REST = 8     /* of what is left at the end of a run */
};

/* STEP(i, j) for value i of n, in lane j. */
#define BN_IN_LANES(n, STEP)                                                                                          \
    do {                                                                                                              \
        ptrdiff_t i_ = 0;                                                                                             \
        for (; i_ + BN_ABREAST <= (n); i_ += BN_ABREAST) {                                                                \
            BN_ROLLED                                                                                                 \
            for (int j_ = 0; j_ < BN_ABREAST; j_++) {                                                                   \
                STEP(i_ + j_, j_)                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
        for (; i_ + BN_REST <= (n); i_ += BN_REST) {                                                                  \
            BN_ROLLED                                                                                                 \
            for (int j_ = 0; j_ < BN_REST; j_++) {                                                                    \
                STEP(i_ + j_, j_)                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
        for (int j_ = 0; i_ < (n); i_++, j_++) {                                                                      \
            STEP(i_, j_)                                                                                              \
        }                                                                                                             \
    } while (0)

/* A power of two that brings the largest of some weights near 1, and leaves a mask as it is. */
static inline double bn_near_one(double largest)
{
    int exponent;
    frexp(largest, &exponent);
    return largest > 0.0 ? ldexp(1.0, exponent < -1022 ? 1023 : 1 - exponent) : 1.0;
}

BN_INLINE double bn_lane_sum(double *lanes)
{
    for (int half = BN_ABREAST / 2; half >= 8; half /= 2)
        for (int j = 0; j < half; j++)
            lanes[j] += lanes[half + j];
    return bn_whole(lanes);
}

/* sum w (x - h), sum w (x - h)^2; what weighs nothing is not read as a number. */
#define BN_WEIGHTED_SQUARE(i, j)                                                                                      \
    const double u_ = w[i], d_ = (u_ != 0.0 ? (double)v[i] : h) - h, p_ = u_ * d_;                                    \
    s[j] += p_;                                                                                                       \
    q[j] += p_ * d_;
/* sum g, sum g (x - h); nor is the x of a g that is 0. */
#define BN_WEIGHTED_PRODUCT(i, j)                                                                                     \
    const double g_ = OF(bn_act_pull)(act, (x[i] - h) * scale + shift, dy[i]);                                        \
    s[j] += g_;                                                                                                       \
    d[j] += g_ * ((g_ != 0.0 ? (double)x[i] : (double)h) - (double)h);

/* dx = r (gain g - w (tilt (x - h) + rest)). */
#define BN_WEIGHTED_NUMBERS(DO) DO(h) DO(r) DO(gain) DO(scale) DO(shift) DO(tilt) DO(rest)
#define BN_WEIGHTED_G(i) OF(bn_act_pull)(act, (x[i] - own_h) * own_scale + own_shift, dy[i])
#define BN_WEIGHTED_GRADIENT(i, p)                                                                                    \
    (own_r * (own_gain * BN_WEIGHTED_G(i) - (w[p] != 0 ? w[p] * (own_tilt * (x[i] - own_h) + own_rest) : 0)))

#define bn_weighted_squares(runs, n, pitch, x, ...) BN_OF(bn_weighted_squares, x)(runs, n, pitch, x, __VA_ARGS__)
#define bn_weighted_products(act, n, dy, ...) BN_OF(bn_weighted_products, dy)(act, n, dy, __VA_ARGS__)
#define bn_weighted_gradients(act, runs, n, dy, ...) BN_OF(bn_weighted_gradients, dy)(act, runs, n, dy, __VA_ARGS__)
#define BN_TEMPLATE "weighted.h"
#include "both.h"
#elif defined(real)

/* Of `runs` runs of n values each, `pitch` values apart, with the same weights. */
BN_APART void OF(bn_weighted_squares)(ptrdiff_t runs, ptrdiff_t n, ptrdiff_t pitch, const real *x, const double *w, double h,
                                      double *sum, double *square)
{
    double s[BN_ABREAST] = {0}, q[BN_ABREAST] = {0};
    for (ptrdiff_t k = 0; k < runs; k++) {
        const real *const v = x + k * pitch;
        BN_IN_LANES(n, BN_WEIGHTED_SQUARE);
    }
    *sum = bn_lane_sum(s);
    *square = bn_lane_sum(q);
}

BN_INLINE void OF(bn_weighted_products_of)(bn_activation act, ptrdiff_t n, const real *dy, const real *x, real h, real scale,
                                           real shift, double *sum, double *dot)
{
    double s[BN_ABREAST] = {0}, d[BN_ABREAST] = {0};
    BN_IN_LANES(n, BN_WEIGHTED_PRODUCT);
    *sum = bn_lane_sum(s);
    *dot = bn_lane_sum(d);
}

BN_APART void OF(bn_weighted_products)(bn_activation act, ptrdiff_t n, const real *dy, const real *x, real h, real scale,
                                       real shift, double *sum, double *dot)
{
    BN_BY_KIND(OF(bn_weighted_products_of), act, n, dy, x, h, scale, shift, sum, dot)
}

BN_INLINE void OF(bn_weighted_gradients_of)(bn_activation act, ptrdiff_t runs, ptrdiff_t n, const real *dy, const real *x,
                                            real *dx, const real *w, const real *h, const real *r, const real *gain,
                                            const real *scale, const real *shift, const real *tilt, const real *rest,
                                            bn_edge *edge)
{
    BN_MAP_ROWS(runs, n, dx, edge, BN_WEIGHTED_NUMBERS, BN_WEIGHTED_GRADIENT)
}

/* Of runs that lie one after the other; sent if there is an `edge`. */
BN_APART void OF(bn_weighted_gradients)(bn_activation act, ptrdiff_t runs, ptrdiff_t n, const real *dy, const real *x,
                                        real *dx, const real *w, const real *h, const real *r, const real *gain,
                                        const real *scale, const real *shift, const real *tilt, const real *rest,
                                        bn_edge *edge)
{
    BN_BY_KIND(OF(bn_weighted_gradients_of), act, runs, n, dy, x, dx, w, h, r, gain, scale, shift, tilt, rest, edge)
}
#endif
