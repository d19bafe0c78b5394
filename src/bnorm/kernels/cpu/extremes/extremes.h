/* The least and the greatest value of each channel in a piece of the positions of an array (outer, channels, inner).
 *
 * Values are compared in their own type, a row of at most BN_ROW columns at a time; half precision is converted to
 * float first. A comparison with NaN is false, so NaN never enters; that there was one is remembered. No value is
 * rounded, and no result depends on the order. */
#ifndef BNORM_EXTREMES_H
#define BNORM_EXTREMES_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "narrow.h"

#if defined(_MSC_VER) && !defined(__clang__)
#define BN_EACH __forceinline
#define BN_APART __restrict
#else
#define BN_EACH inline __attribute__((always_inline))
#define BN_APART __restrict__
#endif

enum { BN_FLOAT32 = BN_INT16 + 1, BN_FLOAT64 };
enum { BN_ROW = 256, BN_LANES = 64 };   /* columns of rows, and of a run, unless it is shorter than these */

typedef struct {
    const void *x;
    const double *weight;   /* [outer][inner] or NULL: where it is 0 a value does not count */
    int kind;               /* of narrow.h, or one of the above */
    int skipna;             /* else a channel with NaN has the extremes NaN */
    ptrdiff_t outer, channels, inner;
    ptrdiff_t piece, pieces;        /* outer positions of a task; if there is one channel, values */
    double *least, *greatest;       /* [pieces][channels]: infinities where nothing counts */
} bn_extremes_job;

/* Rows of n <= BN_ROW columns, of which each has its own extremes so far. */
#define BN_EXTREMES_OF(type, name, flag, odd_of)                                                                    \
    typedef struct {                                                                                                \
        type least[BN_ROW], greatest[BN_ROW];                                                                       \
        flag odd[BN_ROW];                                                                                           \
    } bn_columns_##name;                                                                                            \
    static BN_EACH void bn_row_##name(const type *BN_APART x, ptrdiff_t n, type *BN_APART least,                    \
                                      type *BN_APART greatest, flag *BN_APART odd)                                  \
    {                                                                                                               \
        for (ptrdiff_t j = 0; j < n; j++) {                                                                         \
            const type v = x[j];                                                                                    \
            least[j] = v < least[j] ? v : least[j];                                                                 \
            greatest[j] = v > greatest[j] ? v : greatest[j];                                                        \
            odd[j] |= odd_of(v);                                                                                    \
        }                                                                                                           \
    }                                                                                                               \
    static BN_EACH void bn_rows_##name(const type *BN_APART x, ptrdiff_t stride, ptrdiff_t n, type *BN_APART least, \
                                       type *BN_APART greatest, flag *BN_APART odd)                                 \
    {                                                                                                               \
        const type *BN_APART y = x + stride, *BN_APART z = y + stride, *BN_APART w = z + stride;                    \
        for (ptrdiff_t j = 0; j < n; j++) {                                                                         \
            const type a = x[j], b = y[j], c = z[j], d = w[j];                                                      \
            type low = least[j], high = greatest[j];                                                                \
            low = a < low ? a : low;                                                                                \
            high = a > high ? a : high;                                                                             \
            low = b < low ? b : low;                                                                                \
            high = b > high ? b : high;                                                                             \
            low = c < low ? c : low;                                                                                \
            high = c > high ? c : high;                                                                             \
            low = d < low ? d : low;                                                                                \
            high = d > high ? d : high;                                                                             \
            least[j] = low;                                                                                         \
            greatest[j] = high;                                                                                     \
            odd[j] |= odd_of(a) | odd_of(b) | odd_of(c) | odd_of(d);                                                \
        }                                                                                                           \
    }                                                                                                               \
    static void bn_down_##name(const type *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, bn_columns_##name *c)  \
    {                                                                                                               \
        ptrdiff_t r = 0;                                                                                            \
        for (; n == BN_ROW && r + 4 <= rows; r += 4)                                                                \
            bn_rows_##name(x + r * stride, stride, BN_ROW, c->least, c->greatest, c->odd);                          \
        for (; n == BN_LANES && r + 4 <= rows; r += 4)                                                              \
            bn_rows_##name(x + r * stride, stride, BN_LANES, c->least, c->greatest, c->odd);                        \
        for (; r + 4 <= rows; r += 4)                                                                               \
            bn_rows_##name(x + r * stride, stride, n, c->least, c->greatest, c->odd);                               \
        for (; r < rows; r++)                                                                                       \
            bn_row_##name(x + r * stride, n, c->least, c->greatest, c->odd);                                        \
    }

#define BN_NAN(v) ((v) != (v))
#define BN_NEVER(v) 0
BN_EXTREMES_OF(float, float, int32_t, BN_NAN)
BN_EXTREMES_OF(double, double, int64_t, BN_NAN)
BN_EXTREMES_OF(uint8_t, uint8, uint8_t, BN_NEVER)
BN_EXTREMES_OF(int8_t, int8, int8_t, BN_NEVER)
BN_EXTREMES_OF(uint16_t, uint16, uint16_t, BN_NEVER)
BN_EXTREMES_OF(int16_t, int16, int16_t, BN_NEVER)

typedef union {
    bn_columns_float f;
    bn_columns_double d;
    bn_columns_uint8 u8;
    bn_columns_int8 i8;
    bn_columns_uint16 u16;
    bn_columns_int16 i16;
} bn_columns;

/* What a task knows of its channels so far. */
typedef struct {
    const bn_extremes_job *job;
    double *least, *greatest;
    bn_columns columns;
} bn_extremes_work;

static inline void bn_put(bn_extremes_work *w, ptrdiff_t channel, double least, double greatest, int odd)
{
    /* A NaN that counts makes both NaN, and nothing changes NaN again. */
    if (odd && !w->job->skipna)
        w->least[channel] = w->greatest[channel] = NAN;
    w->least[channel] = least < w->least[channel] ? least : w->least[channel];
    w->greatest[channel] = greatest > w->greatest[channel] ? greatest : w->greatest[channel];
}

/* The channel of one column after the other. */
typedef struct {
    ptrdiff_t channel, passed, run, channels;
} bn_place;

static inline ptrdiff_t bn_channel(bn_place *p)
{
    const ptrdiff_t channel = p->channel;
    if (++p->passed == p->run) {
        p->passed = 0;
        p->channel = channel + 1 == p->channels ? 0 : channel + 1;
    }
    return channel;
}

/* `rows` rows of n columns from value `at` on; column j belongs to channel (first + j) / run. Without a value that
 * counts, the least is above the greatest. */
static void bn_compare(bn_extremes_work *w, ptrdiff_t at, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n,
                       ptrdiff_t first, ptrdiff_t run, ptrdiff_t channels)
{
#define BN_COMPARE_AS(type, name, field, low, high)                                                                 \
    {                                                                                                               \
        bn_columns_##name *c = &w->columns.field;                                                                   \
        for (ptrdiff_t j = 0; j < n; j++) {                                                                         \
            c->least[j] = high;                                                                                     \
            c->greatest[j] = low;                                                                                   \
            c->odd[j] = 0;                                                                                          \
        }                                                                                                           \
        bn_down_##name((const type *)w->job->x + at, rows, stride, n, c);                                           \
        for (ptrdiff_t j = 0; j < n; j++)                                                                           \
            bn_put(w, bn_channel(&at_channel), (double)c->least[j], (double)c->greatest[j], c->odd[j] != 0);        \
        return;                                                                                                     \
    }
    bn_place at_channel = {first / run % channels, first % run, run, channels};
    const int kind = w->job->kind;
    switch (kind) {
    case BN_FLOAT32: BN_COMPARE_AS(float, float, f, -INFINITY, INFINITY)
    case BN_FLOAT64: BN_COMPARE_AS(double, double, d, -INFINITY, INFINITY)
    case BN_BOOL:
    case BN_UINT8: BN_COMPARE_AS(uint8_t, uint8, u8, 0, UINT8_MAX)
    case BN_INT8: BN_COMPARE_AS(int8_t, int8, i8, INT8_MIN, INT8_MAX)
    case BN_UINT16: BN_COMPARE_AS(uint16_t, uint16, u16, 0, UINT16_MAX)
    case BN_INT16: BN_COMPARE_AS(int16_t, int16, i16, INT16_MIN, INT16_MAX)
    default: break;
    }
    float taken[BN_ROW];
    bn_columns_float *c = &w->columns.f;
    for (ptrdiff_t j = 0; j < n; j++) {
        c->least[j] = INFINITY;
        c->greatest[j] = -INFINITY;
        c->odd[j] = 0;
    }
    for (ptrdiff_t r = 0; r < rows; r++) {
        bn_read_float(kind, w->job->x, at + r * stride, n, taken);
        bn_row_float(taken, n, c->least, c->greatest, c->odd);
    }
    for (ptrdiff_t j = 0; j < n; j++)
        bn_put(w, bn_channel(&at_channel), c->least[j], c->greatest[j], c->odd[j] != 0);
#undef BN_COMPARE_AS
}

static inline double bn_value(int kind, const void *x, ptrdiff_t at)
{
    double v;
    float f;
    if (kind == BN_FLOAT64)
        return ((const double *)x)[at];
    if (kind == BN_FLOAT32)
        return ((const float *)x)[at];
    if (kind == BN_HALF || kind == BN_BFLOAT) {
        bn_read_float(kind, x, at, 1, &f);
        return f;
    }
    bn_read_double(kind, x, at, 1, &v);
    return v;
}

/* One by one, those of weight 0 left out. */
static void bn_weighted_extremes(bn_extremes_work *w, ptrdiff_t begin, ptrdiff_t end)
{
    const bn_extremes_job *job = w->job;
    for (ptrdiff_t o = begin; o < end; o++)
        for (ptrdiff_t c = 0; c < job->channels; c++)
            for (ptrdiff_t i = 0; i < job->inner; i++) {
                if (job->weight[o * job->inner + i] == 0.0)
                    continue;
                const double v = bn_value(job->kind, job->x, (o * job->channels + c) * job->inner + i);
                bn_put(w, c, v, v, v != v);
            }
}

/* n values of one channel. */
static void bn_run(bn_extremes_work *w, ptrdiff_t at, ptrdiff_t n, ptrdiff_t channel)
{
    const ptrdiff_t columns = n < 16 * BN_ROW ? BN_LANES : BN_ROW, rows = n / columns, rest = n % columns;
    if (rows)
        bn_compare(w, at, rows, columns, columns, channel * BN_ROW, BN_ROW, w->job->channels);
    if (rest)
        bn_compare(w, at + rows * columns, 1, columns, rest, channel * BN_ROW, BN_ROW, w->job->channels);
}

static inline void bn_extremes_task(bn_extremes_job *job, ptrdiff_t t)
{
    bn_extremes_work work;
    bn_extremes_work *w = &work;
    const ptrdiff_t C = job->channels, width = C * job->inner;
    const ptrdiff_t all = C == 1 && !job->weight ? job->outer * job->inner : job->outer;
    const ptrdiff_t begin = t * job->piece < all ? t * job->piece : all;
    const ptrdiff_t end = begin + job->piece < all ? begin + job->piece : all;
    w->job = job;
    w->least = job->least + t * C;
    w->greatest = job->greatest + t * C;
    for (ptrdiff_t c = 0; c < C; c++) {
        w->least[c] = INFINITY;
        w->greatest[c] = -INFINITY;
    }
    if (!width || begin == end)
        return;
    if (job->weight)
        bn_weighted_extremes(w, begin, end);
    else if (C == 1)
        bn_run(w, begin, end - begin, 0);
    else if (job->inner >= BN_LANES) {
        for (ptrdiff_t o = begin; o < end; o++)
            for (ptrdiff_t c = 0; c < C; c++)
                bn_run(w, (o * C + c) * job->inner, job->inner, c);
    } else if (width >= BN_ROW / 2) {
        for (ptrdiff_t j = 0; j < width; j += BN_ROW)
            bn_compare(w, begin * width + j, end - begin, width, width - j < BN_ROW ? width - j : BN_ROW, j, job->inner,
                       C);
    } else {        /* several rows are one of more columns */
        const ptrdiff_t k = BN_ROW / width, rows = (end - begin) / k;
        if (rows)
            bn_compare(w, begin * width, rows, k * width, k * width, 0, job->inner, C);
        if (end > begin + rows * k)
            bn_compare(w, (begin + rows * k) * width, 1, 1, (end - begin - rows * k) * width, 0, job->inner, C);
    }
}

#endif
