/* Sums of integers and of their squares, in 64-bit integers, for up to BN_SPAN_I columns at a time. */
#ifndef BNORM_EXACT_INTEGERS_H
#define BNORM_EXACT_INTEGERS_H

#include "limbs.h"
#include "narrow.h"

enum {
    BN_SPAN_I = 256,         /* columns */
    BN_BLOCK_I = 1 << 14,   /* the most rows of a block */
    BN_SUMS_I = 8,
    BN_TIMES_I = 1 << 8     /* blocks before sums are put into limbs: few enough to add the sums of all columns first */
};

typedef int64_t bn_sums[BN_SUMS_I][BN_SPAN_I];   /* their high halves may be unsigned: none of them overflows */

/* |x| = h 2^32 + l. The sums are those of l and h with the sign of x, and of both halves of l l, h l and h h. A value
 * of 32 bits has h = 0. */
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
static inline void bn_add_integers(int kind, const void *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t width,
                                   bn_sums s)
{
    switch (kind) {
    case BN_INT32: bn_long_sums_int32((const int32_t *)x, rows, stride, width, s); break;
    case BN_UINT32: bn_long_sums_uint32((const uint32_t *)x, rows, stride, width, s); break;
    case BN_INT64: bn_long_sums_int64((const int64_t *)x, rows, stride, width, s); break;
    case BN_UINT64: bn_long_sums_uint64((const uint64_t *)x, rows, stride, width, s); break;
    default: bn_integer_sums(kind, x, 0, rows, stride, width, s[0], s[1]);
    }
}

/* Put the sums of columns, of `rows` rows, into the limbs of their channels, and set the sums to 0. Columns of the same
 * channel, which are adjacent or `each` apart, are added to each other first. */
static inline void bn_flush_integers(int kind, bn_sums s, int64_t rows, ptrdiff_t width, ptrdiff_t each,
                                     const bn_home *home)
{
    /* For each sum: 0 for x, 1 for x^2, and the power of 2 that it counts; the square has h l twice. */
    static const int class[8] = {0, 1, 1, 0, 1, 1, 1, 1}, power[8] = {0, 0, 32, 32, 33, 65, 64, 96};
    const ptrdiff_t *channel = home->channel, apart = home->alone ? 1 : each;
    const int sums = kind < BN_FLOAT32 ? 2 : BN_SUMS_I;
    for (ptrdiff_t j = 0; kind == BN_UINT16 && j < width; j++)
        if (channel[j] >= 0) {  /* x - 32768 was summed */
            s[1][j] += 65536 * s[0][j] + ((int64_t)1 << 30) * rows;
            s[0][j] += 32768 * rows;
        }
    for (int k = 0; k < sums; k++)
        for (ptrdiff_t j = width - 1; j >= 0; j--) {
            if (j >= apart && channel[j - apart] == channel[j])
                s[k][j - apart] += s[k][j];
            else if (channel[j] >= 0)
                bn_put_integer(home->total, class[k], channel[j], s[k][j], power[k]);
            s[k][j] = 0;
        }
}

#endif
