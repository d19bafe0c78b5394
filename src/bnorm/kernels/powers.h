/* exp and powers of two that have the same bits everywhere. Those of C libraries and of NumPy, which has vectors of its
 * own for some processors, differ in their last bits. What all other texts of both backends need comes first. */
#ifndef BNORM_POWERS_H
#define BNORM_POWERS_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BN_FN static __device__ __forceinline__
#define BN_INLINE BN_FN
#define BN_NAN (0.0 / 0.0)
#define BN_INFINITY (1.0 / 0.0)
#else
#include <math.h>
#include <string.h>
#define BN_NAN NAN      /* some compilers reject a division by 0 */
#define BN_INFINITY INFINITY
#define BN_FN static inline
#if defined(__GNUC__) || defined(__clang__)
#define BN_ALWAYS inline __attribute__((always_inline))
#elif defined(_MSC_VER)
#define BN_ALWAYS __forceinline
#else
#define BN_ALWAYS inline
#endif
#define BN_INLINE static BN_ALWAYS  /* a loop is vectorized only if all that it calls for each value is inlined */
#endif

/* In C, which has no overloading, the names of the following functions end in the type. */
#ifdef __cplusplus
#define BN_TYPED(name, real) name
#else
#define BN_TYPED(name, real) name##_##real
#endif

BN_INLINE float BN_TYPED(bn_abs, float)(float v) { return fabsf(v); }
BN_INLINE double BN_TYPED(bn_abs, double)(double v) { return fabs(v); }

/* exp(z) for z <= 0; 0 below `last` and for NaN. It has the same bits everywhere, and no branch, so loops vectorize.
 * z = n log 2 + r; adding `magic` rounds to the integer n. A polynomial in r is multiplied by 2^(n + 64), made from its
 * bits, and then by 2^-64, as 2^n might be subnormal. The error is below 1.1 units in the last place. */
#define BN_DECAY(real, whole, last, magic, high, low, bits, bias, POLYNOMIAL)                                         \
    BN_INLINE real BN_TYPED(bn_decay, real)(real z)                                                                   \
    {                                                                                                                 \
        const real from = z > (real)(last) ? z : (real)(last);                                                        \
        const real shifted = from * (real)1.4426950408889634 + (real)(magic), n = shifted - (real)(magic);            \
        const real r = (from - n * (real)(high)) - n * (real)(low), p = POLYNOMIAL;                                   \
        whole power;                                                                                                  \
        real scale;                                                                                                   \
        memcpy(&power, &shifted, sizeof power);                                                                       \
        power = (power << (bits)) + ((whole)((bias) + 64) << (bits));                                                 \
        memcpy(&scale, &power, sizeof scale);                                                                         \
        return p * scale * (real)5.421010862427522e-20;                                                               \
    }
BN_DECAY(float, unsigned, -104, 12582912, 0.693359375, -0.00021219444, 23, 127,
         (((((0.0013926184f * r + 0.008363179f) * r + 0.041666556f) * r + 0.16666576f) * r + 0.5f) * r + 1.0f) * r
         + 1.0f)
/* The terms of exp(r) from r^2 on, divided by r^2, for |r| up to log 2 / 2. */
#define BN_TAIL(r)                                                                                                    \
    (((((((((2.510038549551032e-08 * (r) + 2.7620088445409746e-07) * (r) + 2.7557268459997064e-06) * (r)             \
    + 2.4801521295954376e-05) * (r) + 0.00019841269863053618) * (r) + 0.0013888888917213717) * (r)                    \
    + 0.008333333333330062) * (r) + 0.04166666666662413) * (r) + 0.16666666666666669) * (r) + 0.5)
BN_DECAY(double, unsigned long long, -746, 6755399441055744.0, 0.6931471803691238, 1.9082149292705877e-10, 52, 1023,
         (BN_TAIL(r) * r + 1.0) * r + 1.0)

/* 2^x for x <= 0, and for larger x 1; 0 below -1080 and for NaN. Exact for integers. x is split into an integer n and
 * the rest, whose product with log 2 is small, so that its rounding error is. The error is below 2 units in the last
 * place. */
BN_INLINE double bn_exp2(double x)
{
    const double some = x > -1080.0 ? x : -1080.0, from = some < 0.0 ? some : 0.0;
    const double shifted = from + 6755399441055744.0, n = shifted - 6755399441055744.0;
    const double r = (from - n) * 0.6931471805599453, p = (BN_TAIL(r) * r + 1.0) * r + 1.0;
    unsigned long long power;
    double scale;
    memcpy(&power, &shifted, sizeof power);
    power = (power << 52) + ((unsigned long long)(1023 + 64) << 52);
    memcpy(&scale, &power, sizeof scale);
    return p * scale * 5.421010862427522e-20;
}

/* exp(z) - 1 for z <= 0. */
BN_FN double bn_decay_by(double z)
{
    return z > -0.34 ? BN_TAIL(z) * z * z + z : BN_TYPED(bn_decay, double)(z) - 1.0;
}

/* The mean weight of rows, to the power k, of which each weighs half as much as the one that comes `halflife` rows
 * later, beside the last. */
BN_FN double bn_mean_weight(double halflife, double rows, int k)
{
    const double step = -k * (0.6931471805599453 / halflife);
    return bn_decay_by(step * rows) / bn_decay_by(step) / rows;
}

#endif
