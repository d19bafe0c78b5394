/* Codes of rows: codes for numbers, the range of codes in a piece, and how old each row is in its group. */
#ifndef BNORM_GROUPED_CODES_H
#define BNORM_GROUPED_CODES_H

#include "grouped_tiles.h"

/* Write to `age` how many rows of its group come after each row. later: memory for a number per group, zeros. */
static int bn_rows_later(const void *codes, int wide, ptrdiff_t n, ptrdiff_t groups, int64_t *later, double *age)
{
    for (ptrdiff_t i = n - 1; i >= 0; i--) {
        const int64_t g = bn_code(codes, wide, i);
        if ((uint64_t)g < (uint64_t)groups)
            age[i] = (double)later[g]++;
        else if (g != -1)
            return BN_OUTSIDE;
        else
            age[i] = 0;
    }
    return 0;
}

/* Lower *least and raise *most so that they include the values from begin to end. */
BN_CLONES static void bn_find_ends(const int64_t *values, ptrdiff_t begin, ptrdiff_t end, int64_t *least, int64_t *most)
{
    int64_t low = *least, high = *most;
    for (ptrdiff_t i = begin; i < end; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    *least = low;
    *most = high;
}

/* Write the codes of numbers, in the order of their first appearance. Return how many different numbers there are.
 * table: 2^bits entries, each -1 or the index of a number in `distinct`; they must be -1 at first. spread: the numbers
 * are too spread out for one entry per possible number, value - least, so a hash finds their entries. */
static ptrdiff_t bn_codes_of(const int64_t *values, ptrdiff_t n, int64_t least, int spread, int bits, int32_t *table,
                             int64_t *distinct, int32_t *codes)
{
    const uint64_t mask = ((uint64_t)1 << bits) - 1;
    ptrdiff_t found = 0;
    for (ptrdiff_t i = 0; i < n && !spread; i++) {
        const uint64_t at = (uint64_t)values[i] - (uint64_t)least;
        int32_t code = table[at];
        if (code < 0) {
            code = table[at] = (int32_t)found;
            distinct[found++] = values[i];
        }
        codes[i] = code;
    }
    for (ptrdiff_t i = 0; i < n && spread; i++) {
        const int64_t v = values[i];
        uint64_t at = (((uint64_t)v - (uint64_t)least) * 0x9E3779B97F4A7C15u) >> (64 - bits);
        while (table[at] >= 0 && distinct[table[at]] != v)
            at = (at + 1) & mask;
        if (table[at] < 0) {
            table[at] = (int32_t)found;
            distinct[found++] = v;
        }
        codes[i] = table[at];
    }
    return found;
}

/* The range of the groups that occur in a piece of the positions; some in the range may not occur. Their sums come
 * after those of the `at` groups of earlier pieces. */
typedef struct {
    ptrdiff_t least, groups, at;
} bn_piece;

/* The range of codes as unsigned numbers. `most` is one more than the greatest, so that -1 (no group) gives 0. */
#define BN_CODE_RANGE(type)                                     \
    {                                                           \
        type low = (type)-1, high = 0;                          \
        for (ptrdiff_t i = begin; i < end; i++) {               \
            const type code = ((const type *)codes)[i];         \
            low = code < low ? code : low;                      \
            high = (type)(code + 1) > high ? code + 1 : high;   \
        }                                                       \
        least = low;                                            \
        most = high;                                            \
    }

/* Find which groups occur in a piece. Return BN_OUTSIDE if a code is neither a group's nor -1. */
BN_CLONES static int bn_find_range(const void *codes, int wide, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t groups,
                                   bn_piece *piece)
{
    uint64_t least, most;
    if (wide)
        BN_CODE_RANGE(uint64_t)
    else
        BN_CODE_RANGE(uint32_t)
    piece->least = most ? (ptrdiff_t)least : 0;
    piece->groups = (ptrdiff_t)most - piece->least;
    return most > (uint64_t)groups ? BN_OUTSIDE : 0;
}

/* Join every two pieces to one; `pieces` is their number afterwards. */
BN_INLINE void bn_join_pieces(bn_piece *piece, ptrdiff_t pieces)
{
    for (ptrdiff_t p = 0; p < pieces; p++) {
        const bn_piece a = piece[2 * p], b = piece[2 * p + 1];
        const ptrdiff_t least = !b.groups || (a.groups && a.least < b.least) ? a.least : b.least;
        const ptrdiff_t ends = a.least + a.groups, others = b.least + b.groups;
        const ptrdiff_t end = a.groups && ends > others ? ends : others;
        piece[p].least = least;
        piece[p].groups = end - least;
    }
}

#endif
