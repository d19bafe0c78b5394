/* Numbers that the loops do not compute in. The loops know only float32 and float64; others are converted a piece at a
 * time, on their way between memory and the first or second-level cache. Integers and bools are converted to float64,
 * rounded to nearest beyond 2^53; halves.h has float16 and bfloat16. */
#ifndef BNORM_NARROW_H
#define BNORM_NARROW_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fetch.h"
#include "formulas.h"
#include "halves.h"
#include "kinds.h"
#include "memory.h"

/* The size of a number in bytes; not of BN_REAL. */
static inline size_t bn_size_of(int kind)
{
    switch (kind) {
    case BN_BOOL: case BN_UINT8: case BN_INT8: return 1;
    case BN_FLOAT32: case BN_INT32: case BN_UINT32: return 4;
    case BN_FLOAT64: case BN_INT64: case BN_UINT64: return 8;
    default: return 2;
    }
}

/* READ(type, number i of v) for the type of bools and integers. Small ones become an int first, from which a vector is
 * converted by one instruction. That of a bool, 1 if it is not 0, is made of bits: compilers do not vectorize the end of
 * a loop that compares. */
#define BN_READ_INTEGERS(READ)               \
    case BN_BOOL: READ(uint8_t, (uint8_t)(v[i] | -v[i]) >> 7) \
    case BN_UINT8: READ(uint8_t, +v[i])      \
    case BN_INT8: READ(int8_t, +v[i])        \
    case BN_UINT16: READ(uint16_t, +v[i])    \
    case BN_INT16: READ(int16_t, +v[i])      \
    case BN_INT32: READ(int32_t, v[i])       \
    case BN_UINT32: READ(uint32_t, v[i])     \
    case BN_INT64: READ(int64_t, v[i])       \
    case BN_UINT64: READ(uint64_t, v[i])

/* Not inlined, or much of the code would be copies of it. bn_read_float is: its runs may be so short that a call would
 * cost time. */
BN_APART void bn_read_double(int kind, const void *from, ptrdiff_t at, ptrdiff_t n, double *to)
{
#define BN_READ_AS(type, value)                  \
    {                                            \
        const type *v = (const type *)from + at; \
        for (ptrdiff_t i = 0; i < n; i++)        \
            to[i] = (double)(value);             \
        break;                                   \
    }
    switch (kind) {
    BN_READ_INTEGERS(BN_READ_AS)
    }
#undef BN_READ_AS
}

/* Add s += sum v and q += sum v^2 down `rows` rows of columns, without any rounding. v is x, or x - 32768 for uint16,
 * two of whose squares would not fit 32 bits. Strips of columns, whose sums stay in registers, go down blocks of rows
 * that stay in the cache. A last strip of few columns takes long with wide vectors: there it is as wide or half as wide
 * as the others, a constant for the compiler, and begins with `again` columns of the strip before it, whose sums are not
 * added again. If rows are far apart, the next block is fetched meanwhile. */
#if defined(__AVX512BW__)
enum { BN_WIDE_STRIPS = 1 };
#else
enum { BN_WIDE_STRIPS = 0 };
#endif
enum {
    BN_STRIP = 64,
    BN_NEAR = 2 * BN_STRIP, /* columns: in rows this close the processor fetches the next by itself */
    BN_BLOCK = 1 << 16,     /* bytes of a block */
    BN_LEAST = 32,          /* fewest rows of a block */
    BN_MOST = 16384         /* most rows, so that the sums of squares of 8-bit numbers fit 32 bits */
};

#define BN_SUMS_OF(type, wide, name, value)                                                                         \
    BN_INLINE void bn_strip_of_##name(const type *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t width,             \
                                      ptrdiff_t again, ptrdiff_t ahead, int64_t *s, int64_t *q)                     \
    {                                                                                                               \
        int32_t sum[BN_STRIP] = {0};                                                                                \
        wide square[BN_STRIP] = {0};                                                                                \
        ptrdiff_t r = 0;                                                                                            \
        for (; r + 2 <= rows; r += 2) {                                                                             \
            const type *a = x + r * stride, *b = a + stride;                                                        \
            for (ptrdiff_t i = 0; ahead && i < BN_STRIP; i += 64 / (ptrdiff_t)sizeof *a) {                          \
                bn_fetch_line((const char *)(a + ahead + i));                                                       \
                bn_fetch_line((const char *)(b + ahead + i));                                                       \
            }                                                                                                       \
            for (ptrdiff_t j = 0; j < width; j++) {                                                                 \
                const int32_t v = value(a[j]), w = value(b[j]);                                                     \
                sum[j] += v + w;                                                                                    \
                square[j] += (wide)((uint32_t)(v * v) + (uint32_t)(w * w));                                         \
            }                                                                                                       \
        }                                                                                                           \
        for (; r < rows; r++)                                                                                       \
            for (ptrdiff_t j = 0; j < width; j++) {                                                                 \
                const int32_t v = value(x[r * stride + j]);                                                         \
                sum[j] += v;                                                                                        \
                square[j] += (wide)(uint32_t)(v * v);                                                               \
            }                                                                                                       \
        for (ptrdiff_t j = again; j < width; j++) {                                                                 \
            s[j] += sum[j];                                                                                         \
            q[j] += (int64_t)square[j];                                                                             \
        }                                                                                                           \
    }                                                                                                               \
    static inline void bn_sums_of_##name(const type *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t width,          \
                                         int64_t *s, int64_t *q)                                                    \
    {                                                                                                               \
        const ptrdiff_t fit = BN_BLOCK / (ptrdiff_t)sizeof *x / (width > 0 ? width : 1);                            \
        const ptrdiff_t most = fit < BN_LEAST ? BN_LEAST : fit > BN_MOST ? BN_MOST : fit;                           \
        const ptrdiff_t ahead = stride > BN_NEAR ? most * stride : 0;                                               \
        for (ptrdiff_t r = 0, n; r < rows; r += n, x += n * stride) {                                               \
            ptrdiff_t j = 0;                                                                                        \
            n = rows - r < most ? rows - r : most;                                                                  \
            for (; j + BN_STRIP <= width; j += BN_STRIP)                                                            \
                bn_strip_of_##name(x + j, n, stride, BN_STRIP, 0, ahead, s + j, q + j);                             \
            if (j < width && (!BN_WIDE_STRIPS || width < BN_STRIP))                                                 \
                bn_strip_of_##name(x + j, n, stride, width - j, 0, ahead, s + j, q + j);                            \
            else if (j + BN_STRIP / 2 < width)                                                                      \
                BN_LAST_STRIP(name, BN_STRIP)                                                                       \
            else if (j < width)                                                                                     \
                BN_LAST_STRIP(name, BN_STRIP / 2)                                                                   \
        }                                                                                                           \
    }
#define BN_LAST_STRIP(name, size)                                                                                   \
    bn_strip_of_##name(x + width - (size), n, stride, size, j + (size) - width, ahead, s + width - (size),          \
                       q + width - (size));
#define BN_ITSELF(x) ((int32_t)(x))
#define BN_TRUTH(x) ((int32_t)((x) != 0))
#define BN_SHIFTED(x) ((int32_t)(x) - 32768)

BN_SUMS_OF(uint8_t, uint32_t, bool, BN_TRUTH)
BN_SUMS_OF(uint8_t, uint32_t, uint8, BN_ITSELF)
BN_SUMS_OF(int8_t, uint32_t, int8, BN_ITSELF)
BN_SUMS_OF(uint16_t, uint64_t, uint16, BN_SHIFTED)
BN_SUMS_OF(int16_t, uint64_t, int16, BN_ITSELF)

static inline void bn_integer_sums(int kind, const void *x, ptrdiff_t at, ptrdiff_t rows, ptrdiff_t stride,
                                   ptrdiff_t width, int64_t *s, int64_t *q)
{
    switch (kind) {
    case BN_BOOL: bn_sums_of_bool((const uint8_t *)x + at, rows, stride, width, s, q); break;
    case BN_UINT8: bn_sums_of_uint8((const uint8_t *)x + at, rows, stride, width, s, q); break;
    case BN_INT8: bn_sums_of_int8((const int8_t *)x + at, rows, stride, width, s, q); break;
    case BN_UINT16: bn_sums_of_uint16((const uint16_t *)x + at, rows, stride, width, s, q); break;
    default: bn_sums_of_int16((const int16_t *)x + at, rows, stride, width, s, q);
    }
}

/* Moments of integers are taken about the integer nearest to their mean, still without rounding. About it the sum S
 * and the sum of squares Q satisfy |S| <= n/2 and |S| <= Q, so S^2/n is at most half of Q, and little cancels in m2.
 * Every sum fits if a channel has fewer than 2^32 values in each piece of rows: all pieces are half a terabyte then. */
static inline int64_t bn_center(int64_t n, int64_t s)
{
    return n ? (s >= 0 ? s + n / 2 : s - n / 2) / n : 0;
}

/* A sum of squares, high 2^32 + low: two parts, so that it fits however many pieces there are. */
typedef struct { int64_t high, low; } bn_square_sum;

/* Add sum (v - center)^2 of n values v, which is q - 2 c s + n c^2. */
static inline void bn_add_squares(bn_square_sum *to, int64_t n, int64_t s, int64_t q, int64_t center)
{
    const uint64_t c = (uint64_t)center, squares = (uint64_t)q - c * (2 * (uint64_t)s - c * (uint64_t)n);
    to->high += (int64_t)(squares >> 32);
    to->low += (int64_t)(squares & 0xFFFFFFFFu);
}

/* Store count, mean, m2 and low, `step` apart. The mean is rounded once if a double can hold the sum, as it can that
 * of 2^37 values; else it is the center plus a rounded rest. */
static inline void bn_integer_moments(int kind, int64_t n, int64_t s, const bn_square_sum *q, int64_t center,
                                      double *to, ptrdiff_t step)
{
    const int64_t shift = n && kind == BN_UINT16 ? 32768 : 0, sum = s + shift * n, most = (int64_t)1 << 53;
    const double about = (double)(s - n * center), count = (double)n, rest = n ? about / count : 0.0;
    double mean = (double)(center + shift), low = rest;
    if (n && -most <= sum && sum <= most) {
        mean = (double)sum / count;
        low = fma(-mean, count, (double)sum) / count;
    } else {
        low -= (mean + rest) - mean;
        mean += rest;
    }
    to[0] = count;
    to[step] = mean;
    to[2 * step] = ((double)q->high * 0x1p32 + (double)q->low) - about * rest;
    to[3 * step] = low;
}

#endif
