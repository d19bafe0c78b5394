/* Sums of integers and of their squares, in 64-bit integers, up to so many columns at a time. */
#ifndef BNORM_EXACT_INTEGERS_H
#define BNORM_EXACT_INTEGERS_H

#include "limbs.h"
#include "narrow.h"

/* The types of narrow.h, and these. */
enum { BN_FLOAT32 = 16, BN_FLOAT64, BN_INT32, BN_UINT32, BN_INT64, BN_UINT64 };

enum {
    BN_SPAN_I = 256,         /* columns */
    BN_BLOCK_I = 1 << 14,   /* rows of a block, at most */
    BN_SUMS_I = 8,
    BN_TIMES_I = 1 << 10    /* blocks before the sums are put into limbs, so that those of all columns may be added */
};

typedef int64_t bn_sums[BN_SUMS_I][BN_SPAN_I];   /* their high halves may be unsigned: none of them overflows */

/* x = h 2^32 + l in magnitude; the sums are those of x (its high and low half, signed), and of both halves of l l, h l
 * and h h. Of 32 bits h is 0. */
#define BN_LONG_SUMS(type, name, negative, WIDE)                                                                 \
    BN_APART void bn_long_sums_##name(const type *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t width,          \
                                      int64_t (*BN_RESTRICT s)[BN_SPAN_I])                                        \
    {                                                                                                            \
        for (ptrdiff_t r = 0; r < rows; r++, x += stride)                                                        \
            for (ptrdiff_t j = 0; j < width; j++) {                                                              \
                const uint64_t given = (uint64_t)x[j], sign = 0 - (uint64_t)(negative);                          \
                const uint64_t a = (given ^ sign) - sign, l = a & 0xFFFFFFFFu, ll = l * l;                       \
                s[0][j] += (int64_t)((l ^ sign) - sign);                                                         \
                s[1][j] += (int64_t)(ll & 0xFFFFFFFFu);                                                          \
                s[2][j] += (int64_t)(ll >> 32);                                                                  \
                if (WIDE) {                                                                                      \
                    const uint64_t h = a >> 32, hl = h * l, hh = h * h;                                          \
                    s[3][j] += (int64_t)((h ^ sign) - sign);                                                     \
                    s[4][j] += (int64_t)(hl & 0xFFFFFFFFu);                                                      \
                    s[5][j] += (int64_t)(hl >> 32);                                                              \
                    s[6][j] += (int64_t)(hh & 0xFFFFFFFFu);                                                      \
                    s[7][j] += (int64_t)(hh >> 32);                                                              \
                }                                                                                                \
            }                                                                                                    \
    }

BN_LONG_SUMS(int32_t, int32, x[j] < 0, 0)
BN_LONG_SUMS(uint32_t, uint32, 0, 0)
BN_LONG_SUMS(int64_t, int64, x[j] < 0, 1)
BN_LONG_SUMS(uint64_t, uint64, 0, 1)

/* Add rows of at most BN_SPAN_I columns to their sums. */
static inline void bn_add_integers(int kind, const void *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t width, bn_sums s)
{
    switch (kind) {
    case BN_INT32: bn_long_sums_int32((const int32_t *)x, rows, stride, width, s); break;
    case BN_UINT32: bn_long_sums_uint32((const uint32_t *)x, rows, stride, width, s); break;
    case BN_INT64: bn_long_sums_int64((const int64_t *)x, rows, stride, width, s); break;
    case BN_UINT64: bn_long_sums_uint64((const uint64_t *)x, rows, stride, width, s); break;
    default: bn_integer_sums(kind, x, 0, rows, stride, width, s[0], s[1]);
    }
}

/* Put the sums of a column, of so many rows, into the limbs of its channel, and set them to 0. */
static inline void bn_flush_integers(int kind, bn_sums s, ptrdiff_t j, int64_t rows, bn_total *t, ptrdiff_t channel)
{
    /* To which sum, and times which power of 2; h l is there twice. */
    static const int class[8] = {0, 1, 1, 0, 1, 1, 1, 1}, power[8] = {0, 0, 32, 32, 33, 65, 64, 96};
    if (kind == BN_UINT16) {    /* summed about 32768 */
        bn_put_integer(t, 1, channel, s[0][j], 16);
        bn_put_integer(t, 1, channel, rows, 30);
        bn_put_integer(t, 0, channel, rows, 15);
    }
    for (int k = 0; k < BN_SUMS_I; k++) {
        bn_put_integer(t, class[k], channel, s[k][j], power[k]);
        s[k][j] = 0;
    }
}

/* The same of all columns; those of one channel are added first. */
static inline void bn_flush_columns(int kind, bn_sums s, int64_t rows, ptrdiff_t width, const bn_home *home)
{
    for (int k = 0; home->alone && k < BN_SUMS_I; k++)
        for (ptrdiff_t j = 1; j < width; j++) {
            s[k][0] += s[k][j];
            s[k][j] = 0;
        }
    for (ptrdiff_t j = 0; j < (home->alone ? 1 : width); j++)
        if (home->channel[j] >= 0)
            bn_flush_integers(kind, s, j, home->alone ? rows * width : rows, home->total, home->channel[j]);
}

#endif
