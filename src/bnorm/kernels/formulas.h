/* The arithmetic of one channel, as functions of scalars.
 *
 * The Cython kernels and the CUDA kernels both compile this text, so the two backends cannot disagree. Nothing here
 * knows of arrays, axes or data types: everything per channel is float64. Contraction to fused multiply-add must be off
 * where the same bits are promised (-ffp-contract=off, -fmad=false).
 *
 * A set of values is described by four parts, in this order everywhere: n, the sum of its weights; mean; m2, the sum of
 * w (x - mean)^2; and low, what the double nearest to the mean leaves over. The mean is mean + low, unevaluated.
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

/* What comes after normalizing, told by its slope below 0: 1 nothing, 0 ReLU, between them leaky ReLU. Loops ask for the
 * kind once and for the slope only where it is leaky. */
enum { BN_IDENTITY, BN_RELU, BN_LEAKY };

BN_FN int bn_act_kind(double slope)
{
    return slope == 1.0 ? BN_IDENTITY : slope == 0.0 ? BN_RELU : BN_LEAKY;
}

/* bn_act is the activation of v. bn_act_pull is its gradient: g, the gradient behind it, brought before it. NaN counts as
 * above 0. ReLU selects and never multiplies: of an infinity it makes 0, not NaN. In C the names end in the type. */
#ifdef __cplusplus
#define BN_TYPED(name, real) name
#else
#define BN_TYPED(name, real) name##_##real
#endif
#define BN_ACTIVATION(real)                                                                                           \
    BN_FN real BN_TYPED(bn_act, real)(int kind, real slope, real v)                                                   \
    {                                                                                                                 \
        return kind != BN_IDENTITY && v <= 0 ? (kind == BN_RELU ? (real)0 : slope * v) : v;                           \
    }                                                                                                                 \
    BN_FN real BN_TYPED(bn_act_pull, real)(int kind, real slope, real v, real g)                                      \
    {                                                                                                                 \
        return kind != BN_IDENTITY && v <= 0 ? (kind == BN_RELU ? (real)0 : slope * g) : g;                           \
    }
BN_ACTIVATION(float)
BN_ACTIVATION(double)

/* What a row is divided by: the root of its variance, or of its mean square, about 0 (RMS norm). */
enum { BN_VARIANCE, BN_MEAN_SQUARE };

/* Add the set (n1, mean1, m21, low1) to (n0, mean, m2, low) by the difference of the means (Chan, Golub, LeVeque 1983),
 * w = n1 / (n0 + n1) being its share. Sums of values are never formed, so large means neither overflow nor cancel. What
 * the two additions of the mean round off is kept in low (two-sums of Dekker and Knuth): ten thousand merges cost no
 * digit. No branches, so that loops over channels vectorize. */
BN_FN void bn_join(double *mean, double *m2, double *low, double n0, double w, double mean1, double m21, double low1)
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

/* Add the set (n1, mean1, m21, low1) to (n, mean, m2, low). An empty set, which is all zero, changes nothing and is
 * replaced exactly. */
BN_FN void bn_merge(double *n, double *mean, double *m2, double *low,
                    double n1, double mean1, double m21, double low1)
{
    const double n0 = *n;
    bn_join(mean, m2, low, n0, bn_share(n0, n1), mean1, m21, low1);
    *n = n0 + n1;
}

/* m2 of a block of n1 > 0 values known by its sums about a center: s = sum (x - center), q = sum (x - center)^2. */
BN_FN double bn_block_m2(double s, double q, double inverse)
{
    const double m2 = q - s * (s * inverse);
    return m2 < 0.0 ? 0.0 : m2;
}

/* Add such a block; its mean is the center and s / n1. */
BN_FN void bn_add_block(double *n, double *mean, double *m2, double *low,
                        double n1, double inverse, double center, double s, double q)
{
    bn_merge(n, mean, m2, low, n1, center, bn_block_m2(s, q, inverse), s * inverse);
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
    bn_merge(&n, &high, &m2, &low, count, batch_mean, batch_m2, 0.0);
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
