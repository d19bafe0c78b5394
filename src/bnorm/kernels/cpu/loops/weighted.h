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

/* Both sums of n values of a run, in lanes, a few vectors at a time in the type of x: STEP(i, j, kept) adds value i in lane
 * j, if it is kept. What does not fill a vector is read together with what lies behind it, as far as `left` values may be
 * read. */
#define BN_RUN_IN_LANES(n, left, first, second, STEP)                                                                 \
    for (ptrdiff_t i_ = 0; i_ < (n);) {                                                                               \
        const ptrdiff_t end_ = (n) - i_ < BN_CHAIN * BN_WIDTH ? (n) : i_ + BN_CHAIN * BN_WIDTH;                       \
        real s[BN_WIDTH], t[BN_WIDTH];                                                                                \
        for (int32_t j_ = 0; j_ < BN_WIDTH; j_++)                                                                     \
            s[j_] = t[j_] = 0;                                                                                        \
        for (; i_ + BN_WIDTH <= end_; i_ += BN_WIDTH)                                                                 \
            for (int32_t j_ = 0; j_ < BN_WIDTH; j_++) {                                                               \
                STEP(i_ + j_, j_, 1)                                                                                  \
            }                                                                                                         \
        if (i_ < end_ && (left) - i_ >= BN_WIDTH) {                                                                   \
            const int32_t rest_ = (int32_t)(end_ - i_);                                                               \
            for (int32_t j_ = 0; j_ < BN_WIDTH; j_++) {                                                               \
                STEP(i_ + j_, j_, j_ < rest_)                                                                         \
            }                                                                                                         \
        } else {                                                                                                      \
            for (int32_t j_ = 0; i_ + j_ < end_; j_++) {                                                              \
                STEP(i_ + j_, j_, 1)                                                                                  \
            }                                                                                                         \
        }                                                                                                             \
        i_ = end_;                                                                                                    \
        OF(bn_fold)(BN_WIDTH, 0, s, first);                                                                           \
        OF(bn_fold)(BN_WIDTH, 0, t, second);                                                                          \
    }

/* sum w (x - h), sum w (x - h)^2; what weighs nothing is not read as a number. */
#define BN_WEIGHTED_SQUARE(i, j, kept)                                                                                \
    const real w_ = w[i], d_ = OF(bn_kept)(x[i] - h, w_ != 0 && (kept)), p_ = w_ * d_;                                \
    s[j] += p_;                                                                                                       \
    t[j] += p_ * d_;
/* sum g, sum g (x - h); nor is the x of a g that is 0. */
#define BN_WEIGHTED_PRODUCT(i, j, kept)                                                                               \
    const real d_ = x[i] - h;                                                                                         \
    const real g_ = OF(bn_kept)(OF(bn_act_pull)(act, d_ * scale + shift, dy[i]), (kept));                             \
    s[j] += g_;                                                                                                       \
    t[j] += g_ * OF(bn_kept)(d_, g_ != 0);

#define bn_weighted_squares(runs, n, pitch, x, ...) BN_OF(bn_weighted_squares, x)(runs, n, pitch, x, __VA_ARGS__)
#define bn_careful_squares(runs, n, pitch, x, ...) BN_OF(bn_careful_squares, x)(runs, n, pitch, x, __VA_ARGS__)
#define bn_weighted_products(act, n, dy, ...) BN_OF(bn_weighted_products, dy)(act, n, dy, __VA_ARGS__)
#define bn_careful_products(act, n, dy, ...) BN_OF(bn_careful_products, dy)(act, n, dy, __VA_ARGS__)
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

/* The same in float64, where a square left the range of float32. */
BN_APART void OF(bn_careful_squares)(ptrdiff_t runs, ptrdiff_t n, ptrdiff_t pitch, const real *x, const real *w, real h,
                                     double *sum, double *square)
{
    double s = 0, q = 0;
    for (ptrdiff_t k = 0; k < runs; k++, x += pitch)
        for (ptrdiff_t i = 0; i < n; i++) {
            const double d = w[i] != 0 ? (double)x[i] - (double)h : 0.0, p = w[i] * d;
            s += p;
            q += p * d;
        }
    *sum = s;
    *square = q;
}

BN_INLINE void OF(bn_weighted_products_of)(bn_activation act, ptrdiff_t n, const real *dy, const real *x, ptrdiff_t left,
                                           real h, real scale, real shift, double *sum, double *dot)
{
    double first[8] = {0}, second[8] = {0};
    BN_RUN_IN_LANES(n, left, first, second, BN_WEIGHTED_PRODUCT)
    *sum = bn_whole(first);
    *dot = bn_whole(second);
}

BN_APART void OF(bn_weighted_products)(bn_activation act, ptrdiff_t n, const real *dy, const real *x, ptrdiff_t left,
                                       real h, real scale, real shift, double *sum, double *dot)
{
    BN_BY_KIND(OF(bn_weighted_products_of), act, n, dy, x, left, h, scale, shift, sum, dot)
}

BN_APART void OF(bn_careful_products)(bn_activation act, ptrdiff_t n, const real *dy, const real *x, real h, real scale,
                                      real shift, double *sum, double *dot)
{
    double s = 0, d = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double g = OF(bn_act_pull)(act, (x[i] - h) * scale + shift, dy[i]);
        s += g;
        d += g * (g != 0.0 ? (double)x[i] - (double)h : 0.0);
    }
    *sum = s;
    *dot = d;
}
#endif
