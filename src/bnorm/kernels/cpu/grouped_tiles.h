/* Tables as the loops over groups see them: rows of doubles, a block at a time, whatever they are in memory. */
#ifndef BNORM_GROUPED_TILES_H
#define BNORM_GROUPED_TILES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formulas.h"
#include "loops/lanes.h"
#include "loops/narrow.h"
#include "loops/streams.h"

/* The loops are compiled for the wider registers too, where compiler and system can choose among several: with the same
 * results, as each value has its own sum. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define BN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BN_CLONES
#endif

/* Numbers side by side, and what is done to each: BN_LANES(4, AT(a) = AT(b) + c). */
#if defined(__GNUC__) || defined(__clang__)
typedef double bn_lanes_8 __attribute__((vector_size(64)));
typedef double bn_lanes_4 __attribute__((vector_size(32)));
typedef double bn_lanes_2 __attribute__((vector_size(16)));
typedef double bn_lanes_1;
#define BN_LANES(n, what) what;
#define AT(a) a
#else
typedef double bn_lanes_8[8];
typedef double bn_lanes_4[4];
typedef double bn_lanes_2[2];
typedef double bn_lanes_1[1];
#define BN_LANES(n, what)                   \
    for (int c_ = 0; c_ < (n); c_++)        \
        what;
#define AT(a) a[c_]
#endif

enum {
    BN_CODES = 1024,        /* positions of a block, at most: their codes are looked at before their rows */
    BN_LEAST_ROWS = 16,     /* and at least */
    BN_TILE = 2048          /* doubles of a block, which stay in the first-level cache */
};

enum { BN_SINGLE = BN_INT16 + 1 };                  /* float32, beside the kinds of narrow.h; BN_REAL is float64 */
enum { BN_OUTSIDE = 1, BN_INFINITE = 2 };           /* what was found: a code that is no group's; infinity */

/* A table of some kind of numbers, (outer, channels, inner). */
typedef struct {
    const void *x;
    int kind;
    ptrdiff_t channels, inner;
} bn_positions;

BN_INLINE int64_t bn_code(const void *codes, int wide, ptrdiff_t i)
{
    return wide ? ((const int64_t *)codes)[i] : ((const int32_t *)codes)[i];
}

BN_INLINE ptrdiff_t bn_tile_rows(ptrdiff_t width)
{
    const ptrdiff_t rows = BN_TILE / (width ? width : 1);
    return rows > BN_CODES ? BN_CODES : rows < BN_LEAST_ROWS ? BN_LEAST_ROWS : rows;
}

/* n numbers from number `at` on, as doubles `step` apart; and back. */
#define BN_READ_NUMBERS(type, value)                                               \
    {                                                                       \
        const type *v = (const type *)x + at;                               \
        for (ptrdiff_t i = 0; i < n; i++)                                   \
            to[i * step] = (double)(value);                                 \
        break;                                                              \
    }
BN_INLINE void bn_read_numbers(int kind, const void *x, ptrdiff_t at, ptrdiff_t n, double *to, ptrdiff_t step)
{
    switch (kind) {
    case BN_HALF: BN_READ_NUMBERS(uint16_t, bn_half_to_float(v[i]))
    case BN_BFLOAT: BN_READ_NUMBERS(uint16_t, bn_bfloat_to_float(v[i]))
    case BN_BOOL: BN_READ_NUMBERS(uint8_t, v[i] != 0)
    case BN_UINT8: BN_READ_NUMBERS(uint8_t, v[i])
    case BN_INT8: BN_READ_NUMBERS(int8_t, v[i])
    case BN_UINT16: BN_READ_NUMBERS(uint16_t, v[i])
    case BN_INT16: BN_READ_NUMBERS(int16_t, v[i])
    case BN_SINGLE: BN_READ_NUMBERS(float, v[i])
    default: BN_READ_NUMBERS(double, v[i])
    }
}
#undef BN_READ_NUMBERS

#define BN_WRITTEN(type, value)                                                 \
    {                                                                       \
        type *y_ = (type *)y + at;                                          \
        for (ptrdiff_t i = 0; i < n; i++) {                                 \
            const double v = from[i * step];                                \
            y_[i] = (value);                                                \
        }                                                                   \
        break;                                                              \
    }
BN_INLINE void bn_write_numbers(int kind, void *y, ptrdiff_t at, ptrdiff_t n, const double *from, ptrdiff_t step)
{
    switch (kind) {
    case BN_HALF: BN_WRITTEN(uint16_t, bn_float_to_half((float)v))
    case BN_BFLOAT: BN_WRITTEN(uint16_t, bn_float_to_bfloat((float)v))
    case BN_SINGLE: BN_WRITTEN(float, (float)v)
    default: BN_WRITTEN(double, v)
    }
}
#undef BN_WRITTEN

/* The n positions from `begin` on as rows of doubles: those of the table itself, or copied into the room. */
BN_CLONES static const double *bn_take_tile(const bn_positions *t, ptrdiff_t begin, ptrdiff_t n, double *room)
{
    const ptrdiff_t channels = t->channels, inner = t->inner;
    if (inner == 1 || channels == 1) {
        if (t->kind == BN_REAL)
            return (const double *)t->x + begin * channels;
        bn_read_numbers(t->kind, t->x, begin * channels, n * channels, room, 1);
        return room;
    }
    for (double *to = room; n > 0;) {
        const ptrdiff_t o = begin / inner, i = begin % inner, some = inner - i < n ? inner - i : n;
        for (ptrdiff_t c = 0; c < channels; c++)
            bn_read_numbers(t->kind, t->x, (o * channels + c) * inner + i, some, to + c, channels);
        to += some * channels;
        begin += some;
        n -= some;
    }
    return room;
}

/* Bytes past the caches, if there are stores for it. */
static inline void bn_send_bytes(void *to, const void *from, ptrdiff_t bytes)
{
#if defined(BN_HAS_STREAM)
    if (((uintptr_t)to | (uintptr_t)from | (uintptr_t)bytes) % 16 == 0) {
        for (ptrdiff_t i = 0; i < bytes; i += 16)
            _mm_stream_si128((__m128i *)((char *)to + i), _mm_load_si128((const __m128i *)((const char *)from + i)));
        return;
    }
#endif
    memcpy(to, from, (size_t)bytes);
}

/* The reverse: rows of doubles into a table of the result's kind; sent: past the caches, if they are as they will lie. */
BN_CLONES static void bn_put_tile(int kind, const bn_positions *t, void *y, ptrdiff_t begin, ptrdiff_t n, const double *from,
                                  int sent)
{
    const ptrdiff_t channels = t->channels, inner = t->inner;
    if (inner == 1 || channels == 1) {
        if (kind == BN_REAL && sent)
            bn_send_bytes((double *)y + begin * channels, from, n * channels * (ptrdiff_t)sizeof *from);
        else
            bn_write_numbers(kind, y, begin * channels, n * channels, from, 1);
        return;
    }
    while (n > 0) {
        const ptrdiff_t o = begin / inner, i = begin % inner, some = inner - i < n ? inner - i : n;
        for (ptrdiff_t c = 0; c < channels; c++)
            bn_write_numbers(kind, y, (o * channels + c) * inner + i, some, from + c, channels);
        from += some * channels;
        begin += some;
        n -= some;
    }
}

/* Fetch n numbers that are going to be needed. */
BN_INLINE void bn_fetch_numbers(const double *at, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += BN_LINE / (ptrdiff_t)sizeof *at)
        bn_fetch_line((const char *)(at + i));
    bn_fetch_line((const char *)(at + n - 1));
}

#endif
