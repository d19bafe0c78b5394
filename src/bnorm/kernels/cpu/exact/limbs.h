/* The sums of one task: an integer for the sum of the values of each channel, and one for the sum of their squares.
 *
 * An integer is a sequence of 64-bit numbers, its limbs: limb g counts multiples of 2^(32 g). Limbs are brought below
 * 2^32 only at the end, so an addition needs no carry; 2^31 additions fit. Few of the limbs are ever used, so each is
 * set to 0, for all channels, when it is first needed. */
#ifndef BNORM_EXACT_LIMBS_H
#define BNORM_EXACT_LIMBS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lanes.h"

enum { BN_LIMBS = 208 };    /* the most limbs that both sums have together, for any type */

typedef struct {
    int64_t *limbs;         /* [limbs of the sum, then of the squares][channels] */
    int64_t *odd;           /* [3][channels]: how many are NaN, infinity, minus infinity; set to 0 if any_odd */
    ptrdiff_t begin, channels;  /* the first channel of the task, and how many it has */
    int any_odd;
    int low[2], size[2];    /* of each sum: the g of its first limb; the number of its limbs */
    unsigned char used[BN_LIMBS];
} bn_total;

/* The channels that the lanes of a strip, or columns, belong to. */
typedef struct {
    bn_total *total;
    const ptrdiff_t *channel;   /* of each lane, counted from total->begin, or -1 for none */
    int alone;                  /* all lanes belong to one channel, and share one window */
} bn_home;

BN_INLINE int64_t *bn_limb(bn_total *t, int which, int at)
{
    const int row = which ? t->size[0] + at : at;
    int64_t *limb = t->limbs + row * t->channels;
    if (!t->used[row]) {
        memset(limb, 0, (size_t)t->channels * sizeof *limb);
        t->used[row] = 1;
    }
    return limb;
}

/* Add m 2^place to a sum, or subtract it if `negative`. Bits of m below the first limb must be 0. */
BN_INLINE void bn_put(bn_total *t, int which, ptrdiff_t channel, int negative, uint64_t m, int place)
{
    const uint64_t mask = 0xFFFFFFFFu;
    place -= 32 * t->low[which];
    if (place < 0) {
        m >>= -place;
        place = 0;
    }
    const int shift = place & 31;
    const uint64_t low = (m & mask) << shift, high = (m >> 32) << shift;
    const uint64_t parts[3] = {low & mask, (low >> 32) + (high & mask), high >> 32};
    for (int i = 0; i < 3; i++)
        if (parts[i]) {
            int64_t *limb = bn_limb(t, which, (place >> 5) + i) + channel;
            *limb += negative ? -(int64_t)parts[i] : (int64_t)parts[i];
        }
}

/* Add v 2^place, which must have no bits below the first limb. */
BN_INLINE void bn_put_double(bn_total *t, int which, ptrdiff_t channel, double v, int place)
{
    uint64_t bits;
    if (v == 0)
        return;
    memcpy(&bits, &v, sizeof bits);
    const int e = (int)(bits >> 52 & 0x7FF);
    const uint64_t fraction = (bits & 0xFFFFFFFFFFFFFu) | (e ? 0x10000000000000u : 0);
    bn_put(t, which, channel, (int)(bits >> 63), fraction, place + (e ? e : 1) - 1075);
}

/* Add v^2; v must be finite. */
static inline void bn_put_square(bn_total *t, ptrdiff_t channel, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    const int e = (int)(bits >> 52 & 0x7FF), place = 2 * ((e ? e : 1) - 1075);
    const uint64_t m = (bits & 0xFFFFFFFFFFFFFu) | (e ? 0x10000000000000u : 0), h = m >> 27, l = m & 0x7FFFFFFu;
    if (m == 0)
        return;
    bn_put(t, 1, channel, 0, h * h, place + 54);
    bn_put(t, 1, channel, 0, h * l, place + 28);
    bn_put(t, 1, channel, 0, l * l, place);
}

BN_INLINE void bn_put_integer(bn_total *t, int which, ptrdiff_t channel, int64_t v, int place)
{
    if (v)
        bn_put(t, which, channel, v < 0, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, place);
}

static inline void bn_put_odd(bn_total *t, ptrdiff_t channel, double v)
{
    if (!t->any_odd)
        memset(t->odd, 0, 3 * (size_t)t->channels * sizeof *t->odd);
    t->any_odd = 1;
    t->odd[(v != v ? 0 : v > 0 ? 1 : 2) * t->channels + channel]++;
}

#endif
