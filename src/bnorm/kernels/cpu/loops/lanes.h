/* Loops over channels and partial sums that must tell the compiler what a Cython loop cannot: that arrays do not
 * overlap, or that a loop must not be unrolled before it is vectorized. */
#ifndef BNORM_LANES_H
#define BNORM_LANES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formulas.h"
#include "memory.h"

/* How many doubles one instruction can permute. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define BN_PERMUTES 8
#elif defined(__AVX2__)
#include <immintrin.h>
#define BN_PERMUTES 4
#else
#define BN_PERMUTES 1
#endif

#if defined(_MSC_VER)
#define BN_RESTRICT __restrict
#else
#define BN_RESTRICT restrict
#endif

/* Goes before a loop whose result either lies exactly where an argument lies or overlaps none of them. The compiler
 * then leaves out its checks for overlap, which take as long as a short row. */
#if defined(__clang__)
#define BN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define BN_INDEPENDENT _Pragma("GCC ivdep")
#elif defined(_MSC_VER)
#define BN_INDEPENDENT __pragma(loop(ivdep))
#else
#define BN_INDEPENDENT
#endif

/* name_float or name_double (both.h), chosen by the type that p points to. */
#define BN_OF(name, p) _Generic(*(p), float: name##_float, double: name##_double)

/* x - h, in sums of differences and of their squares. Additions limit these, while the units for products are idle, so
 * the latter compute -h + x as a fused product and sum, which has the same bits. `minus` is -1, from bn_minus_one(a
 * pointer to its type); if the compiler knew it, it would subtract. */
#if defined(__FMA__) && (defined(__GNUC__) || defined(__clang__))
#define bn_less(x, h, minus) _Generic((minus), float: __builtin_fmaf, double: __builtin_fma)(h, minus, x)
#define BN_HIDE(v) __asm__("" : "+x"(v))
#else
#define bn_less(x, h, minus) ((void)(minus), (x) - (h))
#define BN_HIDE(v) (void)0
#endif
#define bn_minus_one(p) BN_OF(bn_minus_one, p)()

/* bn_add_block for every channel. If all channels have the same number of values, as they do without weights and NaN,
 * and the block does not outweigh them, one division is enough for all. */
static inline void bn_add_blocks(ptrdiff_t channels, double count, const double *BN_RESTRICT center,
                                 const double *BN_RESTRICT s, const double *BN_RESTRICT q, double *BN_RESTRICT n,
                                 double *BN_RESTRICT mean, double *BN_RESTRICT m2, double *BN_RESTRICT low)
{
    const double inverse = 1.0 / count, n0 = n[0], w = bn_share(n0, count);
    int differ = bn_outweighs(count, n0);
    for (ptrdiff_t c = 0; c < channels; c++)
        differ |= n[c] != n0;
    if (differ) {
        for (ptrdiff_t c = 0; c < channels; c++)
            bn_add_block(&n[c], &mean[c], &m2[c], &low[c], count, inverse, center[c], s[c], q[c]);
        return;
    }
    for (ptrdiff_t c = 0; c < channels; c++) {
        bn_join(&mean[c], &m2[c], &low[c], n0, w, center[c], bn_block_m2(s[c], q[c], inverse), s[c] * inverse);
        n[c] = n0 + count;
    }
}

#if defined(__AVX512DQ__)
/* bn_halved adds the two halves of a vector. bn_keep_eight stores 8 sums as float64 (`begin`), or adds them to
 * `eight`. */
BN_INLINE __m256 bn_halved(__m512 v)
{
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

BN_INLINE void bn_keep_eight(__m256 sums, int begin, double *eight)
{
    const __m512d c = _mm512_cvtps_pd(sums);
    _mm512_storeu_pd(eight, begin ? c : _mm512_add_pd(_mm512_loadu_pd(eight), c));
}
#endif

/* The sum of 8 partial sums. */
BN_INLINE double bn_whole(const double *eight)
{
    const double a = eight[0] + eight[4], b = eight[1] + eight[5], c = eight[2] + eight[6], d = eight[3] + eight[7];
    return (a + c) + (b + d);
}

/* What the loops need of each channel, column, row or run: one array per number, in the type of x; NULL if not used. */
typedef struct {
    const void *h, *scale, *shift;  /* high part of the mean; then the forward: v = (x - h) scale + shift */
    const void *gamma, *beta;       /* for each value of a row: v gamma + beta */
    const void *a, *b, *c;          /* of the gradient: a (g - (b (x - h) + c)) */
    const void *gain;               /* a factor of g alone */
    const void *w;                  /* weights, for each value */
    const void *dh;                 /* added to the gradient, for each value */
} bn_numbers;

static inline bn_numbers bn_no_numbers(void) { const bn_numbers none = {0}; return none; }

/* What is summed: g and g t, where t = x - h. In all these files, "dy before the activation of v" means the gradient of
 * v, where dy is the gradient of the activation of v.
 *
 * BN_SQUARES: g = t. BN_PAIRS: g = dy before the activation of v = (x - h) scale + shift. BN_SCALED: g = gamma times dy
 * before the activation of v gamma + beta. BN_WEIGHED_SQUARES: g = w t, where t is 0 if w is. BN_WEIGHED_PAIRS: as
 * BN_PAIRS, but t is 0 if g is. */
enum { BN_SQUARES, BN_PAIRS, BN_SCALED, BN_WEIGHED_SQUARES, BN_WEIGHED_PAIRS };

#define BN_ARRAY_IS(h) const real *const h = (const real *)of->h;
#define BN_NUMBER_IS(h) const real own_##h = ((const real *)of->h)[k];
#define BN_MAP_NUMBERS(DO) DO(h) DO(scale) DO(shift)

/* If a sum of float32 squares or products is smaller than this times the number of values, subnormal numbers may have
 * cost it digits, and it is computed again in float64. Products have both signs, so large ones may leave a small sum:
 * their limit is higher. */
#define BN_LEAST_SQUARE 1e-36
#define BN_LEAST_PRODUCT 1e-30

enum {
    BN_WIDTH = 32,  /* partial sums along a row; a loop of 16 would be unrolled before it could be vectorized */
    BN_TINY = 16,   /* most values of a row that one vector holds */
    BN_BATCH = 64,  /* most rows of a batch */
    BN_CHAIN = 8,   /* values added to each of them before it is added to a float64 sum */
    BN_BEYOND = BN_WIDTH * sizeof(double)   /* bytes of zeros behind gamma and beta */
};

/* Adds both sums of n values of a run to the 8 float64 parts in `first` and `second`. They are summed in BN_WIDTH
 * lanes in the type of x, BN_CHAIN values per lane at most: STEP(i, j, kept) adds value i to lane j, if it is kept.
 * The last values, which do not fill a vector, are read together with what is behind them, if `left`, the number of
 * values that may be read, is large enough. */
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

/* Both sums of a run of n >= 32 values, as 8 parts of each in float64, which are stored (`begin`) or added. SET(i, k,
 * kept) lets s[j] and t[j] begin with value i, plus value k if that is kept; ADD(i) adds value i. The last vector is
 * read together with the first, and only its last `rest_` values are kept: those behind the whole vectors between them.
 * `begin` and `brief`, whether n is at most 64, are constants to the compiler. Loops that run at least once let it keep
 * s and t in registers until they are folded. */
#define BN_RUN_SUMS(begin, brief, n, first, second, SET, ADD)                                                         \
    {                                                                                                                 \
        const int32_t rest_ = (int32_t)((brief) ? (n) - BN_WIDTH : ((n) - 1) % BN_WIDTH + 1);                         \
        const ptrdiff_t even_ = (n) - rest_;                                                                          \
        const real minus_ = OF(bn_minus_one)();                                                                       \
        ptrdiff_t i_ = BN_WIDTH, end_ = even_ < BN_CHAIN * BN_WIDTH ? even_ : BN_CHAIN * BN_WIDTH;                    \
        real s[BN_WIDTH], t[BN_WIDTH];                                                                                \
        for (int32_t j = 0; j < BN_WIDTH; j++) {                                                                      \
            SET(j, (n) - BN_WIDTH + j, j >= BN_WIDTH - rest_)                                                         \
        }                                                                                                             \
        if (!(brief))                                                                                                 \
            do {                                                                                                      \
                for (int32_t j = 0; j < BN_WIDTH; j++) {                                                              \
                    ADD(i_ + j)                                                                                       \
                }                                                                                                     \
                i_ += BN_WIDTH;                                                                                       \
            } while (i_ < end_);                                                                                      \
        OF(bn_fold)(BN_WIDTH, begin, s, first);                                                                       \
        if (second)                                                                                                   \
            OF(bn_fold)(BN_WIDTH, begin, t, second);                                                                  \
        while (!(brief) && i_ < even_) {                                                                              \
            real s[BN_WIDTH], t[BN_WIDTH];                                                                            \
            end_ = even_ - i_ < BN_CHAIN * BN_WIDTH ? even_ : i_ + BN_CHAIN * BN_WIDTH;                               \
            for (int32_t j = 0; j < BN_WIDTH; j++)                                                                    \
                s[j] = t[j] = 0;                                                                                      \
            do {                                                                                                      \
                for (int32_t j = 0; j < BN_WIDTH; j++) {                                                              \
                    ADD(i_ + j)                                                                                       \
                }                                                                                                     \
                i_ += BN_WIDTH;                                                                                       \
            } while (i_ < end_);                                                                                      \
            OF(bn_fold)(BN_WIDTH, 0, s, first);                                                                       \
            if (second)                                                                                               \
                OF(bn_fold)(BN_WIDTH, 0, t, second);                                                                  \
        }                                                                                                             \
    }

/* Value i of a row with a gamma for each value: adds to both sums of its column, `across` and `along`; p_ and q_ are
 * what it adds to both sums along the row. */
#define BN_ROW_VALUE(i, keep)                                                                                         \
    const int kept_ = keep;                                                                                           \
    const real d_ = x[i] - own_h, v_ = d_ * own_scale + own_shift;                                                    \
    const real g_ = OF(bn_act_pull)(act, v_ * gamma[i] + beta[i], dy[i]), scaled_ = g_ * gamma[i];                    \
    const real p_ = OF(bn_kept)(scaled_, kept_), q_ = OF(bn_kept)(scaled_ * d_, kept_);                               \
    across[i] += OF(bn_kept)(g_, kept_);                                                                              \
    along[i] += OF(bn_kept)(g_ * v_, kept_);
#define BN_ROW_STEP(i, j, kept)                                                                                       \
    BN_ROW_VALUE(i, kept)                                                                                             \
    s[j] += p_;                                                                                                       \
    t[j] += q_;
#define BN_SHORT_STEP(i, j, kept)                                                                                     \
    const real d_ = x[i] - own_h, v_ = d_ * scale + shift;                                                            \
    const real g_ = what == BN_PAIRS ? OF(bn_act_pull)(act, v_, dy[i])                                                \
                                     : OF(bn_act_pull)(act, v_ * gamma[i] + beta[i], dy[i]) * gamma[i];               \
    s[j] += OF(bn_kept)(g_, kept);                                                                                    \
    t[j] += OF(bn_kept)(g_ * d_, kept);
#define BN_TWO_POWERS(i, k, kept)                                                                                     \
    s[j] = OF(bn_power)(square, bn_less(x[i], h, minus_))                                                             \
           + OF(bn_power)(square, OF(bn_kept)(bn_less(x[k], h, minus_), kept));
#define BN_POWER(i) s[j] += OF(bn_power)(square, bn_less(x[i], h, minus_));

#define bn_careful_sums(act, what, dy, ...) BN_OF(bn_careful_sums, dy)(act, what, dy, __VA_ARGS__)
#define bn_short_sums(act, what, dy, ...) BN_OF(bn_short_sums, dy)(act, what, dy, __VA_ARGS__)
#define bn_row_sum(square, x, ...) BN_OF(bn_row_sum, x)(square, x, __VA_ARGS__)
#define bn_row_sums(act, dy, ...) BN_OF(bn_row_sums, dy)(act, dy, __VA_ARGS__)
#define BN_TEMPLATE "lanes.h"
#include "both.h"
#elif defined(real)

BN_INLINE real OF(bn_minus_one)(void)
{
    real minus = -1;
    BN_HIDE(minus);
    return minus;
}

/* Folds 32, 16 or 8 partial sums to 8 in float64, which are stored (`begin`) or added: adds both halves of the vector,
 * then both halves of the result. */
BN_INLINE void OF(bn_fold)(int width, int begin, const real *wide, double *eight)
{
#if BN_IS_FLOAT && defined(__AVX512DQ__) /* without a detour through memory */
    __m256 a = _mm256_loadu_ps(wide);
    if (width > 8) {
        __m512 b = _mm512_loadu_ps(wide);
        if (width == 32)
            b = _mm512_add_ps(b, _mm512_loadu_ps(wide + 16));
        a = bn_halved(b);
    }
    bn_keep_eight(a, begin, eight);
#else
    BN_ROLLED
    for (int j = 0; j < 8; j++) {
        const real a = width == 32 ? wide[j] + wide[16 + j] : wide[j];
        const real b = width == 32 ? wide[8 + j] + wide[24 + j] : width == 16 ? wide[8 + j] : 0;
        const double c = (double)(width == 8 ? a : a + b);
        eight[j] = begin ? c : eight[j] + c;
    }
#endif
}

/* The last `rest` values of a row as the beginning of a whole vector: they are copied to `room`, with zeros behind
 * them, if fewer values (`left`) than a vector may be read. */
BN_INLINE const real *OF(bn_rest)(const real *values, int32_t rest, ptrdiff_t left, real *room)
{
    if (left >= BN_WIDTH)
        return values;
    memset(room, 0, BN_WIDTH * sizeof(real));
    memcpy(room, values, rest * sizeof(real));
    return room;
}

/* v, or 0 if it is not kept: by a mask, which the compiler cannot turn into a branch. */
BN_INLINE real OF(bn_kept)(real v, int keep)
{
    integer bits;
    memcpy(&bits, &v, sizeof bits);
    bits &= -(integer)keep;
    memcpy(&v, &bits, sizeof bits);
    return v;
}

/* Adds both sums of n values of row k to 8 parts of each in float64. BN_BEYOND bytes of zeros follow gamma and beta,
 * and may be read. `what` and the kind of `act` are constants to the compiler, so no branch is left in the loops. */
BN_INLINE void OF(bn_short_sums)(bn_activation act, int what, const real *dy, const real *x, ptrdiff_t n,
                                 ptrdiff_t left, const bn_numbers *of, ptrdiff_t k, double *sum, double *dot)
{
    BN_NUMBER_IS(h) BN_ARRAY_IS(gamma) BN_ARRAY_IS(beta)
    const int forward = what == BN_SCALED || act.kind != BN_IDENTITY;
    const real scale = forward ? ((const real *)of->scale)[k] : 0, shift = forward ? ((const real *)of->shift)[k] : 0;
    BN_RUN_IN_LANES(n, left, sum, dot, BN_SHORT_STEP)
}

/* Adds the same sums to *sum and *dot, all in float64: for rows in which a product left the range of float32. */
BN_APART void OF(bn_careful_sums)(bn_activation act, int what, const real *dy, const real *x, ptrdiff_t n,
                                  const bn_numbers *of, ptrdiff_t k, double *sum, double *dot)
{
    BN_NUMBER_IS(h) BN_ARRAY_IS(gamma) BN_ARRAY_IS(beta) BN_ARRAY_IS(w)
    const int forward = what == BN_SCALED || act.kind != BN_IDENTITY;
    const real scale = forward ? ((const real *)of->scale)[k] : 0, shift = forward ? ((const real *)of->shift)[k] : 0;
    double s = *sum, d = *dot;
    for (ptrdiff_t i = 0; i < n; i++) {
        const real v = (x[i] - own_h) * scale + shift;
        double t = (double)x[i] - (double)own_h, g = t;
        if (what == BN_WEIGHED_SQUARES) {
            t = w[i] != 0 ? t : 0.0;
            g = w[i] * t;
        } else if (what == BN_SCALED) {
            g = OF(bn_act_pull)(act, v * gamma[i] + beta[i], dy[i]) * gamma[i];
        } else if (what != BN_SQUARES) {
            g = OF(bn_act_pull)(act, v, dy[i]);
        }
        if (what == BN_WEIGHED_PAIRS)
            t = g != 0.0 ? t : 0.0;
        s += g;
        d += g * t;
    }
    *sum = s;
    *dot = d;
}

BN_INLINE real OF(bn_power)(int square, real t)
{
    return square ? t * t : t;
}

/* The sum of x - h over a row of 32 values or more, or of its square, as 8 parts in float64. */
BN_INLINE void OF(bn_long_sum)(int square, int brief, const real *x, ptrdiff_t n, real h, double *eight)
{
    BN_RUN_SUMS(1, brief, n, eight, (double *)NULL, BN_TWO_POWERS, BN_POWER)
}

/* The same for a row of at most `width` values, 8 or 16, a constant to the compiler; that many may be read. */
BN_INLINE void OF(bn_tiny_sum)(int width, int square, const real *x, ptrdiff_t n, real h, double *eight)
{
    real s[BN_TINY];
    BN_ROLLED
    for (int32_t j = 0; j < width; j++) {
        const real v = OF(bn_power)(square, OF(bn_kept)(x[j] - h, j < (int32_t)n));
        s[j] = width == 8 ? 0 + v : v;  /* -0 becomes 0, as where halves are added */
    }
    OF(bn_fold)(width, 1, s, eight);
}

/* The same for a row of any length; `left` values may be read. */
BN_INLINE void OF(bn_row_sum)(int square, const real *x, ptrdiff_t n, ptrdiff_t left, real h, double *eight)
{
    if (n <= 8 && left >= 8) {
        OF(bn_tiny_sum)(8, square, x, n, h, eight);
    } else if (n <= BN_TINY && left >= BN_TINY) {
        OF(bn_tiny_sum)(BN_TINY, square, x, n, h, eight);
    } else if (n < BN_WIDTH) {
        real s[BN_WIDTH], x1[BN_WIDTH];
        const real *xr = OF(bn_rest)(x, (int32_t)n, left, x1);
        for (int32_t j = 0; j < BN_WIDTH; j++)
            s[j] = OF(bn_power)(square, OF(bn_kept)(xr[j] - h, j < (int32_t)n));
        OF(bn_fold)(BN_WIDTH, 1, s, eight);
    } else if (n <= 2 * BN_WIDTH) {
        OF(bn_long_sum)(square, 1, x, n, h, eight);
    } else {
        OF(bn_long_sum)(square, 0, x, n, h, eight);
    }
}

/* Both sums along a row that has a gamma for each value, as in bn_short_sums with BN_SCALED. It also adds to the sums
 * down its columns, made of a few rows in the type of x: across += g and along += g v, where v = (x - h) scale + shift
 * and g is dy before the activation. */
BN_INLINE void OF(bn_row_sums)(bn_activation act, const real *dy, const real *x, ptrdiff_t n, ptrdiff_t left,
                               const bn_numbers *of, ptrdiff_t k, real *BN_RESTRICT along, real *BN_RESTRICT across,
                               double *sum, double *dot)
{
    BN_MAP_NUMBERS(BN_NUMBER_IS) BN_ARRAY_IS(gamma) BN_ARRAY_IS(beta)
    if (n <= BN_TINY && left >= BN_TINY) {
        real s[BN_TINY], t[BN_TINY];
        BN_ROLLED
        for (int32_t j = 0; j < BN_TINY; j++) {
            s[j] = t[j] = 0;
            BN_ROW_STEP(j, j, j < (int32_t)n)
        }
        OF(bn_fold)(BN_TINY, 0, s, sum);
        OF(bn_fold)(BN_TINY, 0, t, dot);
        return;
    }
    BN_RUN_IN_LANES(n, left, sum, dot, BN_ROW_STEP)
}
#endif
