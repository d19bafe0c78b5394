/* Tables as the loops over groups see them: blocks of rows of doubles, whatever the table's type and layout. */
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

/* The loops are also compiled for wider registers if compiler and system support a choice at run time. The results are
 * the same, as each column has its own sum. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) \
    && !defined(__SANITIZE_ADDRESS__)
#define BN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BN_CLONES
#endif

/* Vectors of doubles, and an operation on each element: BN_LANES(4, AT(a) = AT(b) + c). BN_CHOSEN takes four of the
 * eight elements of two vectors, by their indices. */
#if defined(__GNUC__) || defined(__clang__)
typedef double bn_lanes_8 __attribute__((vector_size(64)));
typedef double bn_lanes_4 __attribute__((vector_size(32)));
typedef double bn_lanes_2 __attribute__((vector_size(16)));
typedef double bn_lanes_1;
#define BN_LANES(n, what) what;
#if defined(__clang__)
#define BN_CHOSEN(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int64_t bn_places_4 __attribute__((vector_size(32)));
#define BN_CHOSEN(a, b, i, j, k, l) __builtin_shuffle(a, b, (bn_places_4){i, j, k, l})
#endif
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
    BN_CODES = 1024,        /* the most positions of a block; their codes are read before their rows */
    BN_LEAST_ROWS = 16,     /* the fewest */
    BN_TILE = 2048          /* doubles of a block: it stays in the first-level cache */
};

enum { BN_OUTSIDE = 1, BN_INFINITE = 2 };           /* found: a code that is not a group's or -1; an infinity */

/* A table: an array (outer, channels, inner), or stretches of positions, each with an array of its own per column. */
typedef struct {
    const void *x;
    const void *const *columns;     /* NULL, or [stretches][channels]: the beginning of each column of a stretch */
    const ptrdiff_t *ends;          /* [stretches]: the position at which each stretch ends */
    int kind;
    ptrdiff_t channels, inner, stretches, positions;
} bn_positions;

BN_INLINE int64_t bn_code(const void *codes, int wide, ptrdiff_t i)
{
    return wide ? ((const int64_t *)codes)[i] : ((const int32_t *)codes)[i];
}

/* Return the rows of a block: a multiple of 8, so that columns of a result get full cache lines except at the ends. */
BN_INLINE ptrdiff_t bn_tile_rows(ptrdiff_t width)
{
    const ptrdiff_t rows = BN_TILE / (width ? width : 1) / 8 * 8;
    return rows > BN_CODES ? BN_CODES : rows < BN_LEAST_ROWS ? BN_LEAST_ROWS : rows;
}

/* bn_read_numbers: n adjacent numbers as doubles that are `step` apart. bn_write_numbers: n adjacent doubles as
 * numbers. */
#define BN_READ_NUMBERS(type, value)                                        \
    {                                                                       \
        const type *v = (const type *)x;                                    \
        for (ptrdiff_t i = 0; i < n; i++)                                   \
            to[i * step] = (double)(value);                                 \
        break;                                                              \
    }
BN_INLINE void bn_read_numbers(int kind, const void *x, ptrdiff_t n, double *to, ptrdiff_t step)
{
    switch (kind) {
    case BN_HALF: BN_READ_NUMBERS(uint16_t, bn_half_to_float(v[i]))
    case BN_BFLOAT: BN_READ_NUMBERS(uint16_t, bn_bfloat_to_float(v[i]))
    BN_READ_INTEGERS(BN_READ_NUMBERS)
    case BN_FLOAT32: BN_READ_NUMBERS(float, v[i])
    default: BN_READ_NUMBERS(double, v[i])
    }
}
#undef BN_READ_NUMBERS

#define BN_WRITTEN(type, value)                                             \
    {                                                                       \
        type *y_ = (type *)y;                                               \
        for (ptrdiff_t i = 0; i < n; i++)                                   \
            y_[i] = (value);                                                \
        break;                                                              \
    }
BN_INLINE void bn_write_numbers(int kind, void *y, ptrdiff_t n, const double *from)
{
    switch (kind) {
    case BN_HALF: BN_WRITTEN(uint16_t, bn_float_to_half((float)from[i]))
    case BN_BFLOAT: BN_WRITTEN(uint16_t, bn_float_to_bfloat((float)from[i]))
    case BN_FLOAT32: BN_WRITTEN(float, (float)from[i])
    default: BN_WRITTEN(double, from[i])
    }
}
#undef BN_WRITTEN

/* Fetch n numbers ahead of their use. */
BN_INLINE void bn_fetch_numbers(const double *at, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i += BN_LINE / (ptrdiff_t)sizeof *at)
        bn_fetch_line((const char *)(at + i));
    bn_fetch_line((const char *)(at + n - 1));
}

#endif
