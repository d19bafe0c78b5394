/* The gradient sums of a stripe of rows that share gamma and beta, two rows at a time: the sums down the columns,
 * which are in the first-level cache, are read and written once for both rows. */
#ifndef BNORM_PAIRS_H
#define BNORM_PAIRS_H

#include "lanes.h"
#include "streams.h"

enum { BN_SHORT = BN_CHAIN * BN_WIDTH };    /* most values of a row; longer rows are cut into parts of this length */

/* bn_vector reads whole cache lines, also around the values. That is no error, but sanitizers report it as one. */
#if defined(__AVX512DQ__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BN_LINED 1

/* A row whose vectors may lie across two cache lines, as those of NumPy's large arrays do. Both lines are loaded and
 * permuted into the vector: a load across two lines takes longer, and misleads the processor's own prefetching. */
typedef struct {
    const float *values, *line;
    ptrdiff_t next;     /* values from a line to the next, or 0 if a vector is one line */
    __m512i order;
} bn_lined;

BN_INLINE bn_lined bn_line_up(const float *values)
{
    const int offset = (int)((uintptr_t)values % BN_LINE / sizeof(float));
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i order = _mm512_add_epi32(places, _mm512_set1_epi32(offset));
    const bn_lined row = {values, values - offset, offset ? 16 : 0, order};
    return row;
}

/* 16 values from place i on; unless all are asked for (`whole`), 0 in place of those that are not kept. */
BN_INLINE __m512 bn_vector(const bn_lined *row, ptrdiff_t i, int whole, __mmask16 keep)
{
    const float *line = row->line + i;
    return whole ? _mm512_permutex2var_ps(_mm512_load_ps(line), row->order, _mm512_load_ps(line + row->next))
                 : _mm512_maskz_loadu_ps(keep, row->values + i);
}

/* A row of a pair: its arrays, its numbers, and both sums along it. */
typedef struct {
    bn_lined x, dy;
    __m512 h, scale, shift, s[2], d[2];
} bn_pair_row;

/* BN_PAIR_STEP for 16 columns, which are half j of the lanes of both sums along the row. */
BN_INLINE void bn_pair_step(bn_activation act, bn_pair_row *row, ptrdiff_t i, int j, int whole, __mmask16 keep,
                            __m512 gamma, __m512 beta, __m512 *along, __m512 *across)
{
    const __m512 off = _mm512_sub_ps(bn_vector(&row->x, i, whole, keep), row->h);
    const __m512 v = _mm512_add_ps(_mm512_mul_ps(off, row->scale), row->shift);
    __m512 g = bn_vector(&row->dy, i, whole, keep);
    if (act.kind != BN_IDENTITY) {
        const __m512 slope = _mm512_set1_ps((float)act.slope), u = _mm512_add_ps(_mm512_mul_ps(v, gamma), beta);
        g = _mm512_mask_mov_ps(g, _mm512_cmp_ps_mask(u, _mm512_setzero_ps(), _CMP_LE_OQ),
                               act.kind == BN_RELU ? slope : _mm512_mul_ps(slope, g));
    }
    const __m512 p = _mm512_mul_ps(g, gamma);
    row->s[j] = _mm512_mask_add_ps(row->s[j], keep, row->s[j], p);
    row->d[j] = _mm512_mask_add_ps(row->d[j], keep, row->d[j], _mm512_mul_ps(p, off));
    *across = _mm512_add_ps(*across, g);
    *along = _mm512_mask_add_ps(*along, keep, *along, _mm512_mul_ps(g, v));
}

BN_INLINE void bn_pair_columns(int two, bn_activation act, bn_pair_row *rows, ptrdiff_t i, int j, int whole,
                               __mmask16 keep, const float *gamma, const float *beta, float *along, float *across)
{
    const __m512 scale = _mm512_loadu_ps(gamma + i), shift = _mm512_loadu_ps(beta + i);
    __m512 a = _mm512_loadu_ps(along + i), c = _mm512_loadu_ps(across + i);
    bn_pair_step(act, &rows[0], i, j, whole, keep, scale, shift, &a, &c);
    if (two)
        bn_pair_step(act, &rows[1], i, j, whole, keep, scale, shift, &a, &c);
    _mm512_storeu_ps(along + i, a);
    _mm512_storeu_ps(across + i, c);
}

/* OF(bn_pair_sums) for BN_LONG values of float32 at most. */
BN_INLINE void bn_lined_pair_sums(int two, bn_activation act, ptrdiff_t n, ptrdiff_t pitch, int add,
                                  const bn_ahead *near, const float *x, const float *dy, const bn_numbers *of,
                                  ptrdiff_t k, ptrdiff_t from, float *BN_RESTRICT along, float *BN_RESTRICT across,
                                  double *sum, double *dot)
{
    const float *gamma = (const float *)of->gamma + from, *beta = (const float *)of->beta + from;
    bn_pair_row rows[2];
    ptrdiff_t i = 0;
    for (int r = 0; r <= two; r++) {
        bn_pair_row *row = &rows[r];
        row->x = bn_line_up(x + r * pitch);
        row->dy = bn_line_up(dy + r * pitch);
        row->h = _mm512_set1_ps(((const float *)of->h)[k + r]);
        row->scale = _mm512_set1_ps(((const float *)of->scale)[k + r]);
        row->shift = _mm512_set1_ps(((const float *)of->shift)[k + r]);
    }
    while (i < n) {
        const ptrdiff_t end = n - i < BN_SHORT ? n : i + BN_SHORT;
        for (int r = 0; r <= two; r++)
            rows[r].s[0] = rows[r].s[1] = rows[r].d[0] = rows[r].d[1] = _mm512_setzero_ps();
        for (; i + 32 <= end; i += 32) {
            if (near) {
                bn_fetch_with(near, x + i, dy + i, 2 * BN_LINE);
                if (two)
                    bn_fetch_with(near, x + pitch + i, dy + pitch + i, 2 * BN_LINE);
            }
            bn_pair_columns(two, act, rows, i, 0, 1, 0xFFFF, gamma, beta, along, across);
            bn_pair_columns(two, act, rows, i + 16, 1, 1, 0xFFFF, gamma, beta, along, across);
        }
        if (i < end) {
            const uint32_t keep = ~(~(uint32_t)0 << (end - i));
            bn_pair_columns(two, act, rows, i, 0, 0, (__mmask16)keep, gamma, beta, along, across);
            bn_pair_columns(two, act, rows, i + 16, 1, 0, (__mmask16)(keep >> 16), gamma, beta, along, across);
            i = end;
        }
        for (int r = 0; r <= two; r++) {
            bn_keep_eight(bn_halved(_mm512_add_ps(rows[r].s[0], rows[r].s[1])), !add, sum + 8 * r);
            bn_keep_eight(bn_halved(_mm512_add_ps(rows[r].d[0], rows[r].d[1])), !add, dot + 8 * r);
        }
        add = 1;
    }
}
#else
#define BN_LINED 0
#endif

enum { BN_LONG = (BN_LINED ? 4 : 1) * BN_SHORT };  /* the same for float32 */

/* Adds value i of row r of a pair, read from x[at] and dy[at], to lane j of both sums along the row and to both sums
 * of its column, if it is kept. */
#define BN_PAIR_STEP(r, x, dy, at, i, j, keep)                                                                        \
    {                                                                                                                 \
        const real d_ = (x)[at] - h##r, v_ = d_ * scale##r + shift##r;                                                \
        const real g_ = OF(bn_act_pull)(act, v_ * gamma[i] + beta[i], (dy)[at]), p_ = g_ * gamma[i];                  \
        s##r[j] += OF(bn_kept)(p_, keep);                                                                             \
        d##r[j] += OF(bn_kept)(p_ * d_, keep);                                                                        \
        across[i] += OF(bn_kept)(g_, keep);                                                                           \
        along[i] += OF(bn_kept)(g_ * v_, keep);                                                                       \
    }

#define BN_TEMPLATE "pairs.h"
#include "both.h"
#elif defined(real)

#if BN_IS_FLOAT && BN_LINED
#define bn_pair_sums_float(two, act, n, pitch, left, ...) bn_lined_pair_sums(two, act, n, pitch, __VA_ARGS__)
#else
/* Sums of n values, BN_SHORT at most, of one row, or of two (`two`) that are `pitch` values apart; the first begins
 * with x and dy, and `left` values may be read. The two sums along each row are stored as 8 parts, or added to them
 * (`add`); those down the columns are added to along and across. `two` and the kind of `act` are constants to the
 * compiler. */
BN_INLINE void OF(bn_pair_sums)(int two, bn_activation act, ptrdiff_t n, ptrdiff_t pitch, ptrdiff_t left, int add,
                                const bn_ahead *near, const real *x, const real *dy, const bn_numbers *of, ptrdiff_t k,
                                ptrdiff_t from, real *BN_RESTRICT along, real *BN_RESTRICT across, double *sum,
                                double *dot)
{
    const real *gamma = (const real *)of->gamma + from, *beta = (const real *)of->beta + from;
    const real *h = (const real *)of->h + k, *scale = (const real *)of->scale + k;
    const real *shift = (const real *)of->shift + k, *next_x = x + two * pitch, *next_dy = dy + two * pitch;
    const real h1 = h[0], scale1 = scale[0], shift1 = shift[0], h2 = h[two], scale2 = scale[two], shift2 = shift[two];
    real s1[BN_WIDTH], d1[BN_WIDTH], s2[BN_WIDTH], d2[BN_WIDTH];
    ptrdiff_t i = 0;
    for (int32_t j = 0; j < BN_WIDTH; j++)
        s1[j] = d1[j] = s2[j] = d2[j] = 0;
    for (; i + BN_WIDTH <= n; i += BN_WIDTH) {
        if (near) {
            bn_fetch_with(near, x + i, dy + i, BN_WIDTH * sizeof(real));
            if (two)
                bn_fetch_with(near, next_x + i, next_dy + i, BN_WIDTH * sizeof(real));
        }
        for (int32_t j = 0; j < BN_WIDTH; j++) {
            BN_PAIR_STEP(1, x, dy, i + j, i + j, j, 1)
            if (two)
                BN_PAIR_STEP(2, next_x, next_dy, i + j, i + j, j, 1)
        }
    }
    if (i < n) {
        const int32_t rest = (int32_t)(n - i);
        real room[4][BN_WIDTH];
        const real *x1 = OF(bn_rest)(x + i, rest, left - i, room[0]);
        const real *dy1 = OF(bn_rest)(dy + i, rest, left - i, room[1]);
        const real *x2 = OF(bn_rest)(next_x + i, rest, left - two * pitch - i, room[2]);
        const real *dy2 = OF(bn_rest)(next_dy + i, rest, left - two * pitch - i, room[3]);
        for (int32_t j = 0; j < BN_WIDTH; j++) {
            BN_PAIR_STEP(1, x1, dy1, j, i + j, j, j < rest)
            if (two)
                BN_PAIR_STEP(2, x2, dy2, j, i + j, j, j < rest)
        }
    }
    OF(bn_fold)(BN_WIDTH, !add, s1, sum);
    OF(bn_fold)(BN_WIDTH, !add, d1, dot);
    if (two) {
        OF(bn_fold)(BN_WIDTH, !add, s2, sum + 8);
        OF(bn_fold)(BN_WIDTH, !add, d2, dot + 8);
    }
}

#endif

/* The same for a stripe of rows; the sums down the columns are added to dgamma and dbeta. */
BN_INLINE void OF(bn_paired_sums)(bn_activation act, ptrdiff_t rows, ptrdiff_t n, ptrdiff_t pitch, ptrdiff_t left,
                                  int add, const bn_ahead *near, const real *x, const real *dy, const bn_numbers *of,
                                  ptrdiff_t k, ptrdiff_t from, double *dgamma, double *dbeta, double *sum, double *dot)
{
    real along[BN_LONG], across[BN_LONG];
    memset(along, 0, n * sizeof(real));
    memset(across, 0, n * sizeof(real));
    for (; rows > 1; rows -= 2) {
        OF(bn_pair_sums)(1, act, n, pitch, left, add, near, x, dy, of, k, from, along, across, sum, dot);
        x += 2 * pitch, dy += 2 * pitch, left -= 2 * pitch;
        k += 2, sum += 16, dot += 16;
    }
    if (rows)
        OF(bn_pair_sums)(0, act, n, pitch, left, add, near, x, dy, of, k, from, along, across, sum, dot);
    for (ptrdiff_t j = 0; j < n; j++)
        dgamma[from + j] += (double)along[j];
    for (ptrdiff_t j = 0; j < n; j++)
        dbeta[from + j] += (double)across[j];
}
#endif
