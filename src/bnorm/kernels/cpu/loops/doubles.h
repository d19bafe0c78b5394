/* Vectors of doubles, to which floats are widened, and sums of columns of float32 in float64. */
#ifndef BNORM_DOUBLES_H
#define BNORM_DOUBLES_H

#include "lanes.h"

/* Doubles of a vector; or 1 if this compiler has no vector types. */
#if defined(__GNUC__) || defined(__clang__)
#define BN_SIDE (BN_PERMUTES > 1 ? BN_PERMUTES : 2)
typedef double bn_doubles __attribute__((vector_size(8 * BN_SIDE)));
typedef int64_t bn_longs __attribute__((vector_size(8 * BN_SIDE)));
#if defined(__clang__)
#define BN_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define BN_UNROLLED _Pragma("GCC unroll 4")
#endif

BN_INLINE bn_doubles bn_take_double(const double *from)
{
    bn_doubles v;
    memcpy(&v, from, sizeof v);
    return v;
}

BN_INLINE bn_doubles bn_take_float(const float *from)
{
#if BN_PERMUTES == 8    /* GCC converts a whole vector by halves, with five instructions instead of one */
    return (bn_doubles)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif BN_PERMUTES == 4
    return (bn_doubles)_mm256_cvtps_pd(_mm_loadu_ps(from));
#else
    const bn_doubles v = {from[0], from[1]};
    return v;
#endif
}

BN_INLINE void bn_put(double *to, bn_doubles v)
{
    memcpy(to, &v, sizeof v);
}

/* x - m, as bn_less computes it. */
BN_INLINE bn_doubles bn_less_doubles(bn_doubles x, bn_doubles m, double minus)
{
#if BN_PERMUTES == 8
    return (bn_doubles)_mm512_fmadd_pd((__m512d)m, _mm512_set1_pd(minus), (__m512d)x);
#elif BN_PERMUTES == 4
    return (bn_doubles)_mm256_fmadd_pd((__m256d)m, _mm256_set1_pd(minus), (__m256d)x);
#else
    (void)minus;
    return x - m;
#endif
}
#else
#define BN_SIDE 1
#endif

#if BN_PERMUTES > 1 && BN_SIDE > 1
/* Sums of x - m and of its square down 4 * fours rows, for those of n columns that fill whole vectors: four rows at a
 * time, in this order of additions. They are added to of_s and of_q, or stored there (`first`); or with these added to
 * s and q (`last`). `fours` and the flags are constants to the compiler. Returns how many columns were summed. */
BN_INLINE ptrdiff_t bn_widened_sums(int fours, int first, int last, const float *x, ptrdiff_t stride, ptrdiff_t n,
                                    const double *BN_RESTRICT m, double *BN_RESTRICT of_s, double *BN_RESTRICT of_q,
                                    double *BN_RESTRICT s, double *BN_RESTRICT q)
{
    const double minus = bn_minus_one_double();
    ptrdiff_t j = 0;
    for (; j + BN_SIDE <= n; j += BN_SIDE) {
        const bn_doubles center = bn_take_double(m + j), zero = {0};
        bn_doubles sum = first ? zero : bn_take_double(of_s + j), square = first ? zero : bn_take_double(of_q + j);
        BN_UNROLLED
        for (int i = 0; i < fours; i++) {
            const float *row = x + 4 * i * stride + j;
            const bn_doubles d0 = bn_less_doubles(bn_take_float(row), center, minus);
            const bn_doubles d1 = bn_less_doubles(bn_take_float(row + stride), center, minus);
            const bn_doubles d2 = bn_less_doubles(bn_take_float(row + 2 * stride), center, minus);
            const bn_doubles d3 = bn_less_doubles(bn_take_float(row + 3 * stride), center, minus);
            const bn_doubles of_d = (d0 + d1) + (d2 + d3), of_squares = (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
            sum = first && i == 0 ? of_d : sum + of_d;
            square = first && i == 0 ? of_squares : square + of_squares;
        }
        bn_put(last ? s + j : of_s + j, last ? bn_take_double(s + j) + sum : sum);
        bn_put(last ? q + j : of_q + j, last ? bn_take_double(q + j) + square : square);
    }
    return j;
}

/* The same for 16 rows, or for four of them, the i-th of four. */
BN_APART ptrdiff_t bn_widened_columns(const float *x, ptrdiff_t stride, ptrdiff_t n, const double *m, double *s,
                                      double *q)
{
    return bn_widened_sums(4, 1, 1, x, stride, n, m, NULL, NULL, s, q);
}

BN_APART ptrdiff_t bn_widened_four(int i, const float *x, ptrdiff_t stride, ptrdiff_t n, const double *m, double *of_s,
                                   double *of_q, double *s, double *q)
{
    return i == 0  ? bn_widened_sums(1, 1, 0, x, stride, n, m, of_s, of_q, s, q)
           : i < 3 ? bn_widened_sums(1, 0, 0, x, stride, n, m, of_s, of_q, s, q)
                   : bn_widened_sums(1, 0, 1, x, stride, n, m, of_s, of_q, s, q);
}

/* s += sum w (x - m), q += sum w (x - m)^2 of four rows of x with one weight each, or these sums alone (`begins`), for
 * those of n columns that fill whole vectors. row: which rows. Returns how many columns were summed. */
BN_APART ptrdiff_t bn_weighted_four(const float *x, ptrdiff_t stride, const ptrdiff_t *row, const double *w,
                                    ptrdiff_t n, const double *BN_RESTRICT m, int begins, double *BN_RESTRICT s,
                                    double *BN_RESTRICT q)
{
    const float *x0 = x + row[0] * stride, *x1 = x + row[1] * stride, *x2 = x + row[2] * stride;
    const float *x3 = x + row[3] * stride;
    const double minus = bn_minus_one_double(), w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    ptrdiff_t j = 0;
    for (; j + BN_SIDE <= n; j += BN_SIDE) {
        const bn_doubles center = bn_take_double(m + j);
        const bn_doubles d0 = bn_less_doubles(bn_take_float(x0 + j), center, minus), p0 = w0 * d0;
        const bn_doubles d1 = bn_less_doubles(bn_take_float(x1 + j), center, minus), p1 = w1 * d1;
        const bn_doubles d2 = bn_less_doubles(bn_take_float(x2 + j), center, minus), p2 = w2 * d2;
        const bn_doubles d3 = bn_less_doubles(bn_take_float(x3 + j), center, minus), p3 = w3 * d3;
        const bn_doubles sum = (p0 + p1) + (p2 + p3), square = (p0 * d0 + p1 * d1) + (p2 * d2 + p3 * d3);
        bn_put(s + j, begins ? sum : bn_take_double(s + j) + sum);
        bn_put(q + j, begins ? square : bn_take_double(q + j) + square);
    }
    return j;
}
#else
#define bn_widened_columns(...) 0   /* sums no column: all are left to the caller */
#define bn_widened_four(...) 0
#define bn_weighted_four(...) 0
#endif

#endif
