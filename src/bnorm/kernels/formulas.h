/* The arithmetic of one channel, as functions of scalars.
 *
 * The Cython kernels and the CUDA kernels both compile this text, so the two backends cannot disagree. Nothing here
 * knows of arrays, axes or data types: everything per channel is float64. Contraction to fused multiply-add must be off
 * where the same bits are promised (-ffp-contract=off, -fmad=false).
 *
 * A set of values is described by four parts, in this order everywhere: n, the sum of its weights; mean; m2, the sum of
 * w (x - mean)^2; and low, the rest of the mean, which is the unevaluated sum mean + low. */
#ifndef BNORM_FORMULAS_H
#define BNORM_FORMULAS_H

#ifndef BNORM_POWERS_H   /* CUDA includes no file: launching.py joins the texts */
#include "powers.h"
#endif

/* The activation, which follows the normalization. slope: of a ReLU, below 0; 1 for GELU and 0 for SiLU. */
enum { BN_IDENTITY, BN_RELU, BN_LEAKY, BN_SILU, BN_GELU };

typedef struct {
    int kind;
    double slope;
} bn_activation;

BN_INLINE bn_activation bn_identity(void) { const bn_activation act = {BN_IDENTITY, 1.0}; return act; }
BN_INLINE bn_activation bn_of_kind(int kind, bn_activation act) { act.kind = kind; return act; }

/* Call function(act, ...), inlined once for each kind, with the kind as a constant, so that its loops do not test it.
 * The smooth kinds, from BN_SILU on, share the copy of GELU, as they differ only in numbers (bn_gate). In BN_BY_EACH
 * SiLU has its own, which takes a sixth less time; BN_BY_STRAIGHT has no copy for smooth kinds. */
#define BN_BY_KIND(function, act, ...)                                                                                \
    if ((act).kind >= BN_SILU) {                                                                                      \
        function(bn_of_kind(BN_GELU, act), __VA_ARGS__);                                                              \
    } else {                                                                                                          \
        BN_BY_STRAIGHT(function, act, __VA_ARGS__)                                                                    \
    }
#define BN_BY_EACH(function, act, ...)                                                                                \
    if ((act).kind == BN_SILU) {                                                                                      \
        function(bn_of_kind(BN_SILU, act), __VA_ARGS__);                                                              \
    } else {                                                                                                          \
        BN_BY_KIND(function, act, __VA_ARGS__)                                                                        \
    }
#define BN_BY_STRAIGHT(function, act, ...)                                                                            \
    switch ((act).kind) {                                                                                             \
    case BN_IDENTITY: function(bn_of_kind(BN_IDENTITY, act), __VA_ARGS__); break;                                     \
    case BN_RELU: function(bn_of_kind(BN_RELU, act), __VA_ARGS__); break;                                             \
    default: function(bn_of_kind(BN_LEAKY, act), __VA_ARGS__);                                                        \
    }

/* bn_act is the activation of v; bn_act_pull is its derivative at v times g, the gradient of its result; bn_act_bend is
 * its second derivative. In gradients, NaN counts as above 0.
 *
 * ReLU selects its slope, which is 0, and never multiplies, so that an infinity becomes 0, not NaN. (A constant 0 would
 * do, but compilers make a branch of it, which random data take at random.)
 *
 * The smooth ones are v s(u) with the logistic function s, u = v for SiLU and 2 sqrt(2 / pi) (v + 0.044715 v^3) for
 * GELU in its tanh form, as (1 + tanh(u / 2)) / 2 is s(u). With size = |v|, q = s(-|u|) and p = s(|u|), v s(u) is
 * max(v, 0) - size q, which keeps its digits however large v is. Minus infinity becomes NaN, as its product with q is
 * computed, which is 0. Elsewhere size is at most 1024, as q is 0 from there on. */
#define BN_ACTIVATION(real)                                                                                           \
    BN_INLINE real BN_TYPED(bn_size, real)(real v)                                                                    \
    {                                                                                                                 \
        const real size = BN_TYPED(bn_abs, real)(v);                                                                  \
        return size < 1024 ? size : 1024;                                                                             \
    }                                                                                                                 \
    /* |u|, or its first or second derivative by size. */                                                             \
    BN_INLINE real BN_TYPED(bn_gate, real)(bn_activation act, int derivative, real size)                              \
    {                                                                                                                 \
        const real a = (real)(1 + act.slope * 0.5957691216057308), b = (real)(act.slope * 0.07135481627260025);       \
        const real bs = b * size;                                                                                     \
        if (act.kind == BN_SILU)    /* not compared in loops whose speed matters: a choice for every value */         \
            return derivative == 0 ? size : derivative == 1;                                                          \
        return derivative == 0 ? size * (a + bs * size) : derivative == 1 ? a + 3 * bs * size : 6 * bs;               \
    }                                                                                                                 \
    BN_INLINE real BN_TYPED(bn_act, real)(bn_activation act, real v)                                                  \
    {                                                                                                                 \
        const real slope = (real)act.slope;                                                                           \
        if (act.kind >= BN_SILU) {                                                                                    \
            const real size = BN_TYPED(bn_size, real)(v);                                                             \
            const real e = BN_TYPED(bn_decay, real)(-BN_TYPED(bn_gate, real)(act, 0, size));                          \
            const real most = v < 0 ? (real)-0.0 : v;                                                                 \
            return most + (v < 0 ? v : -size) * (e / (1 + e));                                                        \
        }                                                                                                             \
        return act.kind != BN_IDENTITY && v <= 0 ? (act.kind == BN_RELU ? slope : slope * v) : v;                     \
    }                                                                                                                 \
    BN_INLINE real BN_TYPED(bn_act_pull, real)(bn_activation act, real v, real g)                                     \
    {                                                                                                                 \
        const real slope = (real)act.slope;                                                                           \
        if (act.kind >= BN_SILU) {                                                                                    \
            const real size = BN_TYPED(bn_size, real)(v), du = BN_TYPED(bn_gate, real)(act, 1, size);                 \
            const real e = BN_TYPED(bn_decay, real)(-BN_TYPED(bn_gate, real)(act, 0, size));                          \
            const real p = 1 / (1 + e), below = e * p * (1 - size * (p * du));                                        \
            return g * (v < 0 ? below : 1 - below);                                                                   \
        }                                                                                                             \
        return act.kind != BN_IDENTITY && v <= 0 ? (act.kind == BN_RELU ? slope : slope * g) : g;                     \
    }                                                                                                                 \
    BN_INLINE real BN_TYPED(bn_act_bend, real)(bn_activation act, real v)                                             \
    {                                                                                                                 \
        const real size = BN_TYPED(bn_size, real)(v);                                                                 \
        const real u = BN_TYPED(bn_gate, real)(act, 0, size), du = BN_TYPED(bn_gate, real)(act, 1, size);             \
        const real e = BN_TYPED(bn_decay, real)(-u), p = 1 / (1 + e), q = e * p;                                      \
        const real bend = p * q * (2 * du + size * (BN_TYPED(bn_gate, real)(act, 2, size) + du * du * (q - p)));      \
        return act.kind >= BN_SILU ? bend : 0;                                                                        \
    }
BN_ACTIVATION(float)
BN_ACTIVATION(double)

/* A row is divided by the square root of its variance, or of its mean square about 0 (RMS norm). */
enum { BN_VARIANCE, BN_MEAN_SQUARE };

/* Add the set (n1, mean1, m21, low1), whose share is w = n1 / (n0 + n1), to (n0, mean, m2, low) by the difference of
 * the means (Chan, Golub, LeVeque 1983). Sums of values are never formed, so large means neither overflow nor cancel.
 * The rounding errors of the two additions to the mean are kept in low (two-sums of Dekker and Knuth), so ten thousand
 * merges lose no digit. There are no branches, so that loops over channels vectorize. */
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

/* Return the share of n1 in n0 + n1; 0 if both are 0. */
BN_FN double bn_share(double n0, double n1)
{
    const double total = n0 + n1;
    return n1 / (total == 0.0 ? 1.0 : total);
}

/* Add the set (n1, mean1, m21, low1) to (n, mean, m2, low). Adding an empty set, which is all zero, changes nothing;
 * adding to one copies exactly. */
BN_FN void bn_add(double *n, double *mean, double *m2, double *low, double n1, double mean1, double m21, double low1)
{
    const double n0 = *n;
    bn_join(mean, m2, low, n0, bn_share(n0, n1), mean1, m21, low1);
    *n = n0 + n1;
}

/* Whether a set of weight n1 is the one to which that of weight n0 is added, as it weighs far more. Otherwise the mean
 * would be rounded by a part of the difference g of the means, and values that have faded may be far away. The standard
 * deviation is at least g sqrt(n0 / (n0 + n1)), so with this factor g is at most 2^5 times that: 5 bits are lost. */
BN_FN int bn_outweighs(double n1, double n0)
{
    return (n1 > 1024.0 * n0) & (n0 > 0.0);
}

/* bn_add, in the order in which the mean keeps its digits. */
BN_FN void bn_merge(double *n, double *mean, double *m2, double *low,
                    double n1, double mean1, double m21, double low1)
{
    const double n0 = *n, mean0 = *mean, m20 = *m2, low0 = *low;
    const int first = bn_outweighs(n1, n0);
    *n = first ? n1 : n0;
    *mean = first ? mean1 : mean0;
    *m2 = first ? m21 : m20;
    *low = first ? low1 : low0;
    bn_add(n, mean, m2, low, first ? n0 : n1, first ? mean0 : mean1, first ? m20 : m21, first ? low0 : low1);
}

/* Return m2 of a block of n1 > 0 values from s = sum (x - center), q = sum (x - center)^2 and inverse = 1 / n1. */
BN_FN double bn_block_m2(double s, double q, double inverse)
{
    const double m2 = q - s * (s * inverse);
    return m2 < 0.0 ? 0.0 : m2;
}

/* Add such a block, whose mean is center + s / n1, to (n, mean, m2, low). If others are added to it, this sum is made
 * the mean and its rounding error. */
BN_FN void bn_add_block(double *n, double *mean, double *m2, double *low,
                        double n1, double inverse, double center, double s, double q)
{
    const int first = bn_outweighs(n1, *n);
    const double step = s * inverse, sum = center + step, back = sum - center;
    const double rest = (center - (sum - back)) + (step - back);
    bn_merge(n, mean, m2, low, n1, first ? sum : center, bn_block_m2(s, q, inverse), first ? rest : step);
}

/* Whether a channel is constant: its standard deviation is at most four units of the last place of its mean, 4 x 2^-52
 * |mean|. Sums are taken about one of the values, so that equal values have variance 0 exactly, however many there are,
 * whatever they weigh and however often they are merged: the rule needs no factor of the count. It must recognize
 * values that were equal until they were rounded. After k roundings each they lie within k 2^-52 |mean| of each other,
 * and their deviation is at most half of that: k is 8 here. An infinite variance is never that of a constant. */
BN_FN int bn_constant(double mean, double var)
{
    const double last_places = 8.881784197001252e-16 * mean, largest = 1.7976931348623157e308;
    return (var <= last_places * last_places) & (var <= largest);
}

/* Return 1 / sqrt(var + eps) of n values; 0 if n is 0; 1 for a constant with eps = 0. No branch, so loops vectorize. */
BN_FN double bn_rstd(double mean, double var, double eps, double n)
{
    const int constant = (eps == 0.0) & bn_constant(mean, var);
    return 1.0 / sqrt(n == 0.0 ? BN_INFINITY : constant ? 1.0 : var + eps);
}

BN_FN int bn_finite(double v)
{
    return v - v == 0.0;
}

/* The running statistics of one channel, and a batch that they move by.
 *
 * There are three ways to weigh a batch against earlier ones:
 *   BN_AVERAGE  an exponential moving average of the means and variances of batches. weight is the sum of the weights
 *               of the batches so far: 1 for the newest, (1 - momentum)^k for the one k batches before. So the first
 *               batch counts fully. If weight is infinite the average is settled: the next batch weighs momentum
 *   BN_POOL     every value weighs the same: weight equals seen
 *   BN_FADE     a value weighs half as much as one that is halflife rows younger. weight is the sum for all values,
 *               relative to row `last`, so it never underflows, however long a channel goes without values
 * With BN_POOL and BN_FADE, the spread between batches counts. */
enum { BN_AVERAGE, BN_POOL, BN_FADE };

typedef struct {
    int mode;
    double momentum, halflife, ddof;
    int whole;      /* if ddof leaves nothing to divide by: 1 to divide by the weight, 0 to have no variance */
} bn_rule;

typedef struct {
    double mean, low, var;      /* mean + low is the mean */
    double seen;                /* values so far, or the sum of their weights */
    double weight, pairs, last; /* pairs: weight^2 less the squared weights of all values, for ddof 1: bn_divisor */
} bn_statistics;

typedef struct {
    double count, mean, m2, low;
    double seen, pairs, last;   /* count is faded, relative to row `last`; seen is not */
} bn_batch;

/* Return the divisor of m2; 0 if nothing is left to divide by. If all values weigh 1, pairs = weight (weight - 1).
 * pairs / weight is the weight less at most 1. Beyond 2^54, where pairs may overflow, the weight takes its place. */
BN_INLINE double bn_divisor(bn_rule r, double weight, double pairs)
{
    const int whole = r.ddof == 0.0 || weight > 18014398509481984.0;
    const double left = r.mode != BN_FADE ? weight - r.ddof : whole ? weight : pairs / weight;
    return left > 0.0 ? left : r.whole ? weight : 0.0;
}

/* Return the weight of an average after a batch without any value, which is a step in time like any other. A settled
 * average has missed no batch so far: its weight is 1 + (1 - momentum) + (1 - momentum)^2 ... = 1 / momentum. */
BN_INLINE double bn_weight_later(double weight, bn_rule r)
{
    return (bn_finite(weight) ? weight : 1.0 / r.momentum) * (1.0 - r.momentum);
}

/* Return v, or the largest double if v has overflowed: the divisor does not depend on pairs of this size. */
BN_INLINE double bn_most(double v)
{
    return v == BN_INFINITY ? 1.7976931348623157e308 : v;
}

/* Return a moved by a share of the way to b, even if b - a overflows, or a or b is infinite. All of the way is b itself:
 * a + (b - a) would have no digits of a b that is much smaller than a. */
BN_INLINE double bn_toward(double a, double b, double share)
{
    const double v = a + share * (b - a);
    return share == 1.0 ? b : bn_finite(v) ? v : (1.0 - share) * a + share * b;
}

BN_INLINE bn_statistics bn_average(bn_statistics s, bn_batch b, bn_rule r)
{
    const double divisor = bn_divisor(r, b.count, 0.0), var = divisor > 0.0 ? b.m2 / divisor : BN_NAN;
    const int settled = s.weight - s.weight != 0.0;
    const double faded = settled ? 0.0 : s.weight * (1.0 - r.momentum);
    const double share = settled ? r.momentum : 1.0 / (faded + 1.0);
    if (!settled && faded == 0.0) {
        s.mean = b.mean;
        s.low = b.low;
        s.var = var;
    } else {
        s.mean = bn_toward(s.mean, b.mean, share);
        s.low = 0.0;
        s.var = bn_toward(s.var, var, share);
    }
    s.weight = settled ? s.weight : faded + 1.0;
    return s;
}

/* The variance does not change if there is nothing to divide it by. The first batch replaces all initial values. */
BN_INLINE bn_statistics bn_pool(bn_statistics s, bn_batch b, bn_rule r)
{
    double n = s.weight, mean = n == 0.0 ? 0.0 : s.mean, low = n == 0.0 ? 0.0 : s.low;
    double m2 = n == 0.0 ? 0.0 : s.var * bn_divisor(r, n, s.pairs), divisor;
    s.pairs = bn_most(s.pairs + (b.pairs + 2.0 * n * b.count));
    bn_merge(&n, &mean, &m2, &low, b.count, b.mean, b.m2, b.low);
    divisor = bn_divisor(r, n, s.pairs);
    s.mean = mean + low;
    s.low = (mean - s.mean) + low;
    s.var = divisor > 0.0 ? m2 / divisor : s.var;
    s.weight = n;
    return s;
}

/* The older of the two fades until the row of the younger one. The result is the same in either order.
 *
 * A single value has no variance of its own. With ddof 1, the variance of this value and of others that have faded is a
 * quotient of two numbers that are as small as the others are faint. So it is computed from both before they faded, and
 * holds however faint the others are. pairs is then at least 2^-400 weight^2: no later result differs by that. */
#define BN_FAINT 3.872591914849318e-121

BN_INLINE bn_statistics bn_fade(bn_statistics s, bn_batch b, bn_rule r)
{
    const double age = (b.last - s.last) / r.halflife;
    const double f = s.weight == 0.0 || age >= 0.0 ? 1.0 : bn_exp2(age);
    const double g = s.weight == 0.0 ? 0.0 : age > 0.0 ? bn_exp2(-age) : 1.0;
    const double old_m2 = s.weight == 0.0 ? 0.0 : s.var * bn_divisor(r, s.weight, s.pairs);
    const double d = (b.mean - s.mean) + (b.low - s.low);
    const int joined = r.ddof != 0.0 && s.weight != 0.0;
    const int late = joined && age >= 0.0 && b.pairs == 0.0 && b.m2 == 0.0;
    const int early = joined && age < 0.0 && s.pairs == 0.0 && old_m2 == 0.0;
    const double n = early ? b.count : s.weight, k = early ? s.weight : b.count;
    const double m2 = early ? b.m2 : old_m2, pairs = early ? b.pairs : s.pairs, h = early ? f : g;
    const double left = pairs * h + 2.0 * n * k, var = (m2 * (n * h + k) + d * d * n * k) / left;
    s.weight = s.weight * g;
    s.pairs = s.pairs * g * g;
    s.last = f == 1.0 ? b.last : s.last;
    b.count = b.count * f;
    b.m2 = b.m2 * f;
    b.pairs = b.pairs * f * f;
    s = bn_pool(s, b, r);
    s.var = (late || early) && left > 0.0 ? var : s.var;
    if (joined && s.pairs >= 0.0 && s.pairs < BN_FAINT * s.weight * s.weight)
        s.pairs = bn_most(BN_FAINT * s.weight * s.weight);
    return s;
}

/* Move the statistics of a channel by a batch that has values of it. */
BN_INLINE bn_statistics bn_move(bn_statistics s, bn_batch b, bn_rule r)
{
    s = r.mode == BN_AVERAGE ? bn_average(s, b, r) : r.mode == BN_POOL ? bn_pool(s, b, r) : bn_fade(s, b, r);
    s.seen = s.seen + b.seen;
    return s;
}

/* Whether a channel that has values is in a state that a transformer may have and save: all its numbers are finite, but
 * the variance may be infinite, as that of finite values may overflow, and so may the weight of a settled average. */
BN_INLINE int bn_sound(bn_statistics s, bn_rule r)
{
    const int paired = r.ddof == 0.0 || bn_finite(s.pairs);
    const int aged = r.mode != BN_FADE || (bn_finite(s.weight) & bn_finite(s.last) & paired);
    return bn_finite(s.mean) & bn_finite(s.low) & (s.var >= 0.0) & bn_finite(s.seen) & (s.weight >= 0.0) & aged;
}

/* Return m2, but infinity for NaN beside a finite mean: squares of finite values overflowed, in whichever order. */
BN_FN double bn_squares(double mean, double m2)
{
    return m2 != m2 && bn_finite(mean) ? BN_INFINITY : m2;
}

/* Return v, and the same NaN for every NaN: it is up to the compiler which bits of a NaN survive arithmetic. */
BN_FN double bn_plain(double v)
{
    return v == v ? v : BN_NAN;
}

/* Return v for float32: a finite v beyond its range becomes its largest number, so that 0 times it is 0. */
BN_FN double bn_bounded(double v)
{
    const double most = 3.4028234663852886e38;
    return bn_finite(v) && fabs(v) > most ? copysign(most, v) : v;    /* a single choice, so that loops vectorize */
}

/* Return the shift for y = (x - high) scale + shift in a type coarser than double, where high is the mean in this type:
 * x - high is exact near the mean, and the rest of the mean goes into the shift. */
BN_FN double bn_fold(double high, double mean, double scale, double shift)
{
    return shift + (high - mean) * scale;
}

/* Turn the center, scale and shift of y = (x - center) scale + shift into those of its inverse. scale 0 stays 0: what is
 * lost becomes the mean. In float32 (`single`) the mean is added as float32, and its rest is subtracted from y. */
BN_FN void bn_invert(double *center, double *scale, double *shift, int single)
{
    const double high = single ? (double)(float)*center : *center, low = (*center - high) * *scale;
    *center = single && bn_finite(low) ? *shift - low : *shift;
    *shift = high;
    *scale = *scale == 0.0 ? 0.0 : 1.0 / *scale;
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
