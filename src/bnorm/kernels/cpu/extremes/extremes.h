/* The least and the greatest value of each channel in a piece of the positions of an array (outer, channels, inner).
 *
 * Values are compared in their own type, a row of at most BN_ROW columns at a time; half precision is converted to
 * float first. Floats are first compared as if there were no NaN, and their bits tell whether there was one. If there
 * was, they are compared again, with comparisons that are false for NaN, so that a NaN never becomes an extreme. No
 * value is rounded before it is compared, and no result depends on the order. */
#ifndef BNORM_EXTREMES_H
#define BNORM_EXTREMES_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fetch.h"
#include "job.h"
#include "narrow.h"

#if defined(_MSC_VER) && !defined(__clang__)
#define BN_EACH __forceinline
#define BN_ALONE __restrict
#else
#define BN_EACH inline __attribute__((always_inline))
#define BN_ALONE __restrict__
#endif

/* If the compiler may assume that no value is NaN and that the sign of 0 does not matter, it takes the minimum of two
 * vectors in one instruction. Otherwise it compares and selects. */
#if defined(__GNUC__) && !defined(__clang__)
#define BN_NUMBERS __attribute__((optimize("finite-math-only", "no-signed-zeros")))
#else
#define BN_NUMBERS
#endif
#define BN_ANY

/* The most columns of a row; the columns of a short run of one channel; a run that is never columns of rows. */
enum { BN_ROW = 256, BN_LANES = 64, BN_LONG = 512 };
/* Bytes between a fetch and the reading, and bytes of a cache line. */
enum { BN_AHEAD = 8192, BN_LINE = 64 };
enum { BN_ROOM = 1 << 15 };     /* bytes of values that are copied before they are compared */

/* Fetch four rows of n bytes. */
static BN_EACH void bn_fetch_rows(const void *rows, ptrdiff_t stride, ptrdiff_t n)
{
    const char *x = (const char *)rows;
    for (int r = 0; r < 4; r++, x += stride)
        for (ptrdiff_t i = 0; i < n; i += BN_LINE)
            bn_fetch_line(x + i);
}

/* The extremes so far of each of up to BN_ROW columns. odd: negative if there was a NaN. */
#define BN_COLUMNS_OF(type, name, flag)                                                                             \
    typedef struct {                                                                                                \
        type least[BN_ROW], greatest[BN_ROW];                                                                       \
        flag odd[BN_ROW];                                                                                           \
    } bn_columns_##name;

#define BN_DOWN_OF(type, name, how, flag, odd_of)                                                                   \
    how static BN_EACH void bn_row_##name(const type *BN_ALONE x, ptrdiff_t n, type *BN_ALONE least,                \
                                          type *BN_ALONE greatest, flag *BN_ALONE odd)                              \
    {                                                                                                               \
        for (ptrdiff_t j = 0; j < n; j++) {                                                                         \
            const type v = x[j];                                                                                    \
            least[j] = v < least[j] ? v : least[j];                                                                 \
            greatest[j] = v > greatest[j] ? v : greatest[j];                                                        \
            odd[j] |= odd_of(v);                                                                                    \
        }                                                                                                           \
    }                                                                                                               \
    how static BN_EACH void bn_rows_##name(const type *BN_ALONE x, ptrdiff_t stride, ptrdiff_t n,                   \
                                           type *BN_ALONE least, type *BN_ALONE greatest, flag *BN_ALONE odd)       \
    {                                                                                                               \
        const type *BN_ALONE y = x + stride, *BN_ALONE z = y + stride, *BN_ALONE w = z + stride;                    \
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
    how static void bn_down_##name(const void *values, ptrdiff_t at, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, \
                                   int far, type *least, type *greatest, flag *odd)                                 \
    {                                                                                                               \
        const type *x = (const type *)values + at;                                                                  \
        const ptrdiff_t bytes = n * (ptrdiff_t)sizeof(type), ahead = (BN_AHEAD / bytes + 4) / 4 * 4;                \
        const ptrdiff_t near = far ? rows - ahead - 3 : 0;   /* from this row on none are left to be fetched */     \
        ptrdiff_t r = 0;                                                                                            \
        for (; n == BN_ROW && r + 4 <= rows; r += 4) {                                                              \
            if (r < near)                                                                                           \
                bn_fetch_rows(x + (r + ahead) * stride, stride * (ptrdiff_t)sizeof(type), bytes);                   \
            bn_rows_##name(x + r * stride, stride, BN_ROW, least, greatest, odd);                                   \
        }                                                                                                           \
        for (; n == BN_LANES && r + 4 <= rows; r += 4) {                                                            \
            if (r < near)                                                                                           \
                bn_fetch_rows(x + (r + ahead) * stride, stride * (ptrdiff_t)sizeof(type), bytes);                   \
            bn_rows_##name(x + r * stride, stride, BN_LANES, least, greatest, odd);                                 \
        }                                                                                                           \
        for (; r + 4 <= rows; r += 4) {                                                                             \
            if (r < near)                                                                                           \
                bn_fetch_rows(x + (r + ahead) * stride, stride * (ptrdiff_t)sizeof(type), bytes);                   \
            bn_rows_##name(x + r * stride, stride, n, least, greatest, odd);                                        \
        }                                                                                                           \
        for (; r < rows; r++)                                                                                       \
            bn_row_##name(x + r * stride, n, least, greatest, odd);                                                 \
    }

/* Merge all n columns into the first; n is a power of two. */
#define BN_FOLD_OF(type, name, how)                                                                                 \
    how static void bn_fold_##name(ptrdiff_t n, type *least, type *greatest)                                        \
    {                                                                                                               \
        while (n /= 2)                                                                                              \
            for (ptrdiff_t j = 0; j < n; j++) {                                                                     \
                least[j] = least[j + n] < least[j] ? least[j + n] : least[j];                                       \
                greatest[j] = greatest[j + n] > greatest[j] ? greatest[j + n] : greatest[j];                        \
            }                                                                                                       \
    }

BN_NUMBERS static BN_EACH int32_t bn_odd_float(float v)
{
    int32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return 0x7f800000 - (bits & 0x7fffffff);
}

BN_NUMBERS static BN_EACH int64_t bn_odd_double(double v)
{
    int64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return 0x7ff0000000000000 - (bits & 0x7fffffffffffffff);
}

#define BN_IS_NAN(v) -((v) != (v))
#define BN_NEVER(v) 0
BN_COLUMNS_OF(float, float, int32_t)
BN_COLUMNS_OF(double, double, int64_t)
BN_COLUMNS_OF(uint8_t, uint8, int8_t)
BN_COLUMNS_OF(int8_t, int8, int8_t)
BN_COLUMNS_OF(uint16_t, uint16, int16_t)
BN_COLUMNS_OF(int16_t, int16, int16_t)
BN_COLUMNS_OF(int32_t, int32, int32_t)
BN_COLUMNS_OF(uint32_t, uint32, int32_t)
BN_COLUMNS_OF(int64_t, int64, int64_t)
BN_COLUMNS_OF(uint64_t, uint64, int64_t)
BN_DOWN_OF(float, float, BN_NUMBERS, int32_t, bn_odd_float)
BN_DOWN_OF(double, double, BN_NUMBERS, int64_t, bn_odd_double)
BN_DOWN_OF(float, careful_float, BN_ANY, int32_t, BN_IS_NAN)
BN_DOWN_OF(double, careful_double, BN_ANY, int64_t, BN_IS_NAN)
BN_DOWN_OF(uint8_t, uint8, BN_ANY, int8_t, BN_NEVER)
BN_DOWN_OF(int8_t, int8, BN_ANY, int8_t, BN_NEVER)
BN_DOWN_OF(uint16_t, uint16, BN_ANY, int16_t, BN_NEVER)
BN_DOWN_OF(int16_t, int16, BN_ANY, int16_t, BN_NEVER)
BN_DOWN_OF(int32_t, int32, BN_ANY, int32_t, BN_NEVER)
BN_DOWN_OF(uint32_t, uint32, BN_ANY, int32_t, BN_NEVER)
BN_DOWN_OF(int64_t, int64, BN_ANY, int64_t, BN_NEVER)
BN_DOWN_OF(uint64_t, uint64, BN_ANY, int64_t, BN_NEVER)
BN_FOLD_OF(float, float, BN_NUMBERS)
BN_FOLD_OF(double, double, BN_NUMBERS)
BN_FOLD_OF(uint8_t, uint8, BN_ANY)
BN_FOLD_OF(int8_t, int8, BN_ANY)
BN_FOLD_OF(uint16_t, uint16, BN_ANY)
BN_FOLD_OF(int16_t, int16, BN_ANY)
BN_FOLD_OF(int32_t, int32, BN_ANY)
BN_FOLD_OF(uint32_t, uint32, BN_ANY)
BN_FOLD_OF(int64_t, int64, BN_ANY)
BN_FOLD_OF(uint64_t, uint64, BN_ANY)

typedef union {
    bn_columns_float f;
    bn_columns_double d;
    bn_columns_uint8 u8;
    bn_columns_int8 i8;
    bn_columns_uint16 u16;
    bn_columns_int16 i16;
    bn_columns_int32 i32;
    bn_columns_uint32 u32;
    bn_columns_int64 i64;
    bn_columns_uint64 u64;
} bn_columns;

/* The state of a task: the values that it compares, the extremes of its channels so far, and memory for columns and for
 * values that have been copied. */
typedef struct {
    const bn_extremes_job *job;
    const void *x;
    double *least, *greatest;
    bn_columns columns;
    double room[BN_ROOM / sizeof(double)];
} bn_extremes_work;

static inline void bn_put(bn_extremes_work *w, ptrdiff_t channel, double least, double greatest, int odd)
{
    /* A NaN that counts makes both NaN; the comparisons below never replace NaN. */
    if (odd && !w->job->skipna)
        w->least[channel] = w->greatest[channel] = NAN;
    w->least[channel] = least < w->least[channel] ? least : w->least[channel];
    w->greatest[channel] = greatest > w->greatest[channel] ? greatest : w->greatest[channel];
}

/* An iterator over columns, for bn_channel, which returns the channel of the next column. */
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

/* Rows in memory; column j belongs to channel (first + j) / run. alone: `run` is a power of two, and all columns belong
 * to one channel. */
typedef struct {
    ptrdiff_t at, rows, stride, n;
    ptrdiff_t first, run, alone;
} bn_rows;

#define BN_COMPARE_OF(type, name, careful, flag, low, high)                                                         \
    static void bn_put_columns_##name(bn_extremes_work *w, const bn_columns_##name *c, const bn_rows *rows)         \
    {                                                                                                               \
        const ptrdiff_t channels = w->job->channels;                                                                \
        bn_place place = {rows->first / rows->run % channels, rows->first % rows->run, rows->run, channels};        \
        for (ptrdiff_t j = 0; j < rows->n; j++)                                                                     \
            bn_put(w, bn_channel(&place), (double)c->least[j], (double)c->greatest[j], c->odd[j] < 0);              \
    }                                                                                                               \
    /* Each column is of the channel after that of the column before. */                                            \
    static void bn_put_channels_##name(bn_extremes_work *w, const bn_columns_##name *c, const bn_rows *rows)        \
    {                                                                                                               \
        const ptrdiff_t channels = w->job->channels;                                                                \
        ptrdiff_t channel = rows->first % channels;                                                                 \
        for (ptrdiff_t j = 0, k; j < rows->n; j += k, channel = 0) {                                                \
            double *BN_ALONE l = w->least + channel, *BN_ALONE g = w->greatest + channel;                           \
            k = rows->n - j < channels - channel ? rows->n - j : channels - channel;                                \
            for (ptrdiff_t i = 0; i < k; i++) {                                                                     \
                const double least = (double)c->least[j + i], greatest = (double)c->greatest[j + i];                \
                l[i] = least < l[i] ? least : l[i];                                                                 \
                g[i] = greatest > g[i] ? greatest : g[i];                                                           \
            }                                                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    static void bn_compare_##name(bn_extremes_work *w, bn_columns_##name *c, const bn_rows *rows)                   \
    {                                                                                                               \
        const void *x = w->x;                                                                                       \
        const ptrdiff_t n = rows->alone ? rows->run : rows->n;                                                      \
        flag odd = 0;                                                                                               \
        for (int again = 0; again < 2; again++) {                                                                   \
            for (ptrdiff_t j = 0; j < n; j++) {                                                                     \
                c->least[j] = high;                                                                                 \
                c->greatest[j] = low;                                                                               \
                c->odd[j] = 0;                                                                                      \
            }                                                                                                       \
            (again ? bn_down_##careful : bn_down_##name)(x, rows->at, rows->rows, rows->stride, rows->n, w->job->far,\
                                                         c->least, c->greatest, c->odd);                            \
            odd = 0;                                                                                                \
            for (ptrdiff_t j = 0; j < n; j++)                                                                       \
                odd |= c->odd[j];                                                                                   \
            if (odd >= 0)                                                                                           \
                break;                                                                                              \
        }                                                                                                           \
        if (rows->alone) {                                                                                          \
            bn_fold_##name(n, c->least, c->greatest);                                                               \
            bn_put(w, rows->first / rows->run, (double)c->least[0], (double)c->greatest[0], odd < 0);               \
        } else if (rows->run == 1 && odd >= 0) {                                                                    \
            bn_put_channels_##name(w, c, rows);                                                                     \
        } else {                                                                                                    \
            bn_put_columns_##name(w, c, rows);                                                                      \
        }                                                                                                           \
    }

BN_COMPARE_OF(float, float, careful_float, int32_t, -INFINITY, INFINITY)
BN_COMPARE_OF(double, double, careful_double, int64_t, -INFINITY, INFINITY)
BN_COMPARE_OF(uint8_t, uint8, uint8, int8_t, 0, UINT8_MAX)
BN_COMPARE_OF(int8_t, int8, int8, int8_t, INT8_MIN, INT8_MAX)
BN_COMPARE_OF(uint16_t, uint16, uint16, int16_t, 0, UINT16_MAX)
BN_COMPARE_OF(int16_t, int16, int16, int16_t, INT16_MIN, INT16_MAX)
BN_COMPARE_OF(int32_t, int32, int32, int32_t, INT32_MIN, INT32_MAX)
BN_COMPARE_OF(uint32_t, uint32, uint32, int32_t, 0, UINT32_MAX)
BN_COMPARE_OF(int64_t, int64, int64, int64_t, INT64_MIN, INT64_MAX)
BN_COMPARE_OF(uint64_t, uint64, uint64, int64_t, 0, UINT64_MAX)

/* Update the extremes by some rows. If no value counts, the least stays above the greatest. */
static void bn_compare(bn_extremes_work *w, bn_rows rows)
{
    switch (w->job->kind) {
    case BN_FLOAT32: bn_compare_float(w, &w->columns.f, &rows); return;
    case BN_FLOAT64: bn_compare_double(w, &w->columns.d, &rows); return;
    case BN_BOOL:
    case BN_UINT8: bn_compare_uint8(w, &w->columns.u8, &rows); return;
    case BN_INT8: bn_compare_int8(w, &w->columns.i8, &rows); return;
    case BN_UINT16: bn_compare_uint16(w, &w->columns.u16, &rows); return;
    case BN_INT16: bn_compare_int16(w, &w->columns.i16, &rows); return;
    case BN_INT32: bn_compare_int32(w, &w->columns.i32, &rows); return;
    case BN_UINT32: bn_compare_uint32(w, &w->columns.u32, &rows); return;
    case BN_INT64: bn_compare_int64(w, &w->columns.i64, &rows); return;
    case BN_UINT64: bn_compare_uint64(w, &w->columns.u64, &rows); return;
    default: break;
    }
    float taken[BN_ROW];
    bn_columns_float *c = &w->columns.f;
    for (ptrdiff_t j = 0; j < rows.n; j++) {
        c->least[j] = INFINITY;
        c->greatest[j] = -INFINITY;
        c->odd[j] = 0;
    }
    for (ptrdiff_t r = 0; r < rows.rows; r++) {
        bn_read_float(w->job->kind, w->x, rows.at + r * rows.stride, rows.n, taken);
        bn_row_careful_float(taken, rows.n, c->least, c->greatest, c->odd);
    }
    bn_put_columns_float(w, c, &rows);
}

/* Compare n adjacent values of one channel. */
static void bn_run(bn_extremes_work *w, ptrdiff_t at, ptrdiff_t n, ptrdiff_t channel)
{
    const ptrdiff_t columns = n < 16 * BN_ROW ? BN_LANES : BN_ROW, rows = n / columns, rest = n % columns;
    if (rows)
        bn_compare(w, (bn_rows){at, rows, columns, columns, channel * columns, columns, 1});
    if (rest)
        bn_compare(w, (bn_rows){at + rows * columns, 1, columns, rest, channel * columns, columns, 1});
}

/* Whether runs are compared as columns of rows. Otherwise each run is folded, which takes as long as 500 values. */
static inline int bn_in_columns(ptrdiff_t inner, ptrdiff_t rows)
{
    return inner < BN_LANES || (inner < BN_LONG && inner < BN_LANES * rows);
}

/* Compare the values of some positions along the outer axis. at: the first value in w->x. */
static void bn_positions(bn_extremes_work *w, ptrdiff_t at, ptrdiff_t positions)
{
    const ptrdiff_t C = w->job->channels, inner = w->job->inner, width = C * inner;
    if (!bn_in_columns(inner, positions)) {
        for (ptrdiff_t o = 0; o < positions; o++)
            for (ptrdiff_t c = 0; c < C; c++)
                bn_run(w, at + (o * C + c) * inner, inner, c);
    } else if (width >= BN_ROW / 2) {
        for (ptrdiff_t j = 0; j < width; j += BN_ROW) {
            const ptrdiff_t n = width - j < BN_ROW ? width - j : BN_ROW;
            bn_compare(w, (bn_rows){at + j, positions, width, n, j, inner, 0});
        }
    } else {        /* take k rows as one row of more columns */
        const ptrdiff_t k = BN_ROW / width, rows = positions / k, done = rows * k;
        if (rows)
            bn_compare(w, (bn_rows){at, rows, k * width, k * width, 0, inner, 0});
        if (positions > done)
            bn_compare(w, (bn_rows){at + done * width, 1, 1, (positions - done) * width, 0, inner, 0});
    }
}

#endif
