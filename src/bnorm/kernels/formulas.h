/* The arithmetic of one channel, as functions of scalars.
 *
 * The Cython kernels and the CUDA kernels both compile this text, so the two backends cannot disagree. Nothing here
 * knows of arrays, axes or data types: everything per channel is float64. Contraction to fused multiply-add must be off
 * where the same bits are promised (-ffp-contract=off, -fmad=false).
 *
 * A set of values is described by (n, mean, low, m2): the sum of its weights, its mean as the unevaluated sum
 * mean + low (low is what the nearest double leaves over), and m2 = sum w (x - mean)^2.
 */
#ifndef BNORM_FORMULAS_H
#define BNORM_FORMULAS_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BN_FN static __device__ __forceinline__
#else
#include <math.h>
#define BN_FN static inline
#endif
#define BN_NAN (0.0 / 0.0)

/* Add the set (n1, mean1, low1, m21) to (n0, mean, low, m2) by the difference of the means (Chan, Golub, LeVeque 1983),
 * w = n1 / (n0 + n1) being its share. Sums of values are never formed, so large means neither overflow nor cancel. What
 * the two additions of the mean round off is kept in low (two-sums of Dekker and Knuth): ten thousand merges cost no
 * digit. No branches, so that loops over channels vectorize. */
BN_FN void bn_join(double *mean, double *low, double *m2, double n0, double w, double mean1, double low1, double m21)
{
    const double mean0 = *mean, low0 = *low;
    const double gap = mean1 - mean0, gap_low = low1 - low0;
    const double d = gap + gap_low;
    const double step = d * w;
    const double sum = mean0 + step;
    const double back = sum - mean0;
    const double rest = (mean0 - (sum - back)) + (step - back);
    *mean = sum;
    *low = low0 + (rest + ((gap - d) + gap_low) * w);
    *m2 = *m2 + (m21 + d * (n0 * w) * d);
}

/* The share of n1 in n0 + n1; 0 of nothing. */
BN_FN double bn_share(double n0, double n1)
{
    const double total = n0 + n1;
    return n1 / (total == 0.0 ? 1.0 : total);
}

/* Add the set (n1, mean1, low1, m21) to (n, mean, low, m2). An empty set, which is all zero, changes nothing and is
 * replaced exactly. */
BN_FN void bn_merge(double *n, double *mean, double *low, double *m2,
                    double n1, double mean1, double low1, double m21)
{
    const double n0 = *n;
    bn_join(mean, low, m2, n0, bn_share(n0, n1), mean1, low1, m21);
    *n = n0 + n1;
}

/* m2 of a block of n1 > 0 values known by its sums about a center: s = sum (x - center), q = sum (x - center)^2. */
BN_FN double bn_block_m2(double s, double q, double inverse)
{
    const double m2 = q - s * (s * inverse);
    return m2 < 0.0 ? 0.0 : m2;
}

/* Add such a block; its mean is the center and s / n1. */
BN_FN void bn_add_block(double *n, double *mean, double *low, double *m2,
                        double n1, double inverse, double center, double s, double q)
{
    bn_merge(n, mean, low, m2, n1, center, s * inverse, bn_block_m2(s, q, inverse));
}

/* 1 / sqrt(var + eps). A constant channel with eps = 0 has scale 1; a channel without any value has scale 0. */
BN_FN double bn_rstd(double var, double eps, double count)
{
    const double v = var + eps, rstd = 1.0 / sqrt(v == 0.0 ? 1.0 : v);
    return count == 0.0 ? 0.0 : rstd;
}

/* The variance that enters the running statistics; NaN where count - ddof leaves nothing to divide by. */
BN_FN double bn_variance(double m2, double count, double ddof)
{
    const double n = count - ddof;
    return n > 0.0 ? m2 / n : BN_NAN;
}

BN_FN int bn_finite(double v)
{
    return v - v == 0.0;
}

/* Exponential moving average: momentum is the weight of the new value. */
BN_FN double bn_ema(double running, double batch, double momentum)
{
    return running + momentum * (batch - running);
}

/* Pool a batch into running statistics that stand for `seen` values: exact by count, between-batch spread included.
 * The first batch replaces whatever stood there. A variance that has nothing to be divided by stays as it is. */
BN_FN void bn_pool(double *mean, double *var, double *seen, double count, double batch_mean, double batch_m2, double ddof)
{
    double n = *seen, high = n == 0.0 ? 0.0 : *mean, low = 0.0, m2 = n > ddof ? *var * (n - ddof) : 0.0;
    bn_merge(&n, &high, &low, &m2, count, batch_mean, 0.0, batch_m2);
    *mean = high + low;
    *var = n > ddof ? m2 / (n - ddof) : *var;
    *seen = n;
}

/* The map y = (x - mean) scale + shift in a type whose numbers are coarser than double: subtract the high part of the
 * mean, which is exact near the mean, and carry the low part in the shift. */
BN_FN double bn_fold(double high, double mean, double scale, double shift)
{
    return shift + (high - mean) * scale;
}

/* The coefficients of dx = a (dy + w (b (x - mean) + c)) for batch statistics; a is the forward's scale.
 * sum = sum dy, dot = sum dy (x - mean). A channel without any value has b = c = 0. */
BN_FN double bn_grad_b(double rstd, double dot, double count)
{
    return count == 0.0 ? 0.0 : -(dot * rstd / count * rstd);
}

BN_FN double bn_grad_c(double sum, double count)
{
    return count == 0.0 ? 0.0 : -(sum / count);
}

#endif
