/* Mean and variance of exact sums: quotients of integers of any size, each rounded once.
 *
 * A natural number is an array of digits of 32 bits, the lowest digit first, without zeros at its end. A quotient is
 * computed to 63 bits or more, with a flag that tells whether there is a remainder. That is enough to round correctly.
 */
#ifndef BNORM_EXACT_ROUNDING_H
#define BNORM_EXACT_ROUNDING_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ptrdiff_t n;    /* the number of digits, 0 for the number 0 */
    uint32_t *d;
} bn_natural;

/* The sums of all channels, and the numbers of the channel that bn_channel has loaded. The sum of its values is s 2^at,
 * or minus that; num 2^unit is finite sum x^2 - (sum x)^2, which is finite^2 times the variance. */
typedef struct {
    ptrdiff_t channels, size[2], first[2];  /* limbs of each sum, and the exponent of the first one, in limbs */
    const int64_t *counts, *limbs[2];       /* (4, C); (size, C) */
    int64_t values, finite;                 /* the number of all values, and of the finite ones */
    int negative, possible;
    ptrdiff_t at, unit;
    bn_natural s, q, num, den, a, b, c;     /* a, b and c are scratch; q is the sum of squares, and then scratch */
    uint32_t *memory;
} bn_rounding;

static void bn_without_zeros(bn_natural *a)
{
    while (a->n && a->d[a->n - 1] == 0)
        a->n--;
}

static ptrdiff_t bn_bits(const bn_natural *a)
{
    int e = 0;
    if (a->n == 0)
        return 0;
    frexp((double)a->d[a->n - 1], &e);
    return 32 * (a->n - 1) + e;
}

static void bn_natural_of(uint64_t v, bn_natural *to)
{
    to->d[0] = (uint32_t)v;
    to->d[1] = (uint32_t)(v >> 32);
    to->n = 2;
    bn_without_zeros(to);
}

static int bn_order(const bn_natural *a, const bn_natural *b)
{
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    for (ptrdiff_t i = a->n - 1; i >= 0; i--)
        if (a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    return 0;
}

/* to = the integer part of a 2^bits. Return whether a fraction was lost. */
static int bn_shifted(const bn_natural *a, ptrdiff_t bits, bn_natural *to)
{
    const ptrdiff_t whole = bits >= 0 ? bits / 32 : -((31 - bits) / 32);    /* rounded down */
    const int rest = (int)(bits - 32 * whole);
    int lost = 0;
    uint32_t below = 0;     /* the previous digit of a */
    for (ptrdiff_t i = 0; i < whole; i++)
        to->d[i] = 0;
    for (ptrdiff_t i = 0; i <= a->n; i++) {
        const uint32_t digit = i < a->n ? a->d[i] : 0;
        const uint32_t moved = (uint32_t)(((uint64_t)digit << 32 | below) << rest >> 32);
        if (i + whole >= 0)
            to->d[i + whole] = moved;
        else
            lost |= moved != 0;
        below = digit;
    }
    to->n = a->n + whole + 1 > 0 ? a->n + whole + 1 : 0;
    bn_without_zeros(to);
    return lost;
}

static void bn_product(const bn_natural *a, const bn_natural *b, bn_natural *to)
{
    memset(to->d, 0, (size_t)(a->n + b->n) * sizeof *to->d);
    for (ptrdiff_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (ptrdiff_t j = 0; j < b->n; j++) {
            carry += (uint64_t)a->d[i] * b->d[j] + to->d[i + j];
            to->d[i + j] = (uint32_t)carry;
            carry >>= 32;
        }
        to->d[i + b->n] = (uint32_t)carry;
    }
    to->n = a->n + b->n;
    bn_without_zeros(to);
}

/* a = |a - b|. Return whether b was larger. */
static int bn_distance(bn_natural *a, const bn_natural *b)
{
    const int less = bn_order(a, b) < 0;
    const bn_natural big = less ? *b : *a, small = less ? *a : *b;
    int64_t carry = 0;
    for (ptrdiff_t i = 0; i < big.n; i++) {
        carry += (int64_t)big.d[i] - (i < small.n ? small.d[i] : 0);
        a->d[i] = (uint32_t)carry;
        carry = carry < 0 ? -1 : 0;
    }
    a->n = big.n;
    bn_without_zeros(a);
    return less;
}

static void bn_sum(bn_natural *a, const bn_natural *b)
{
    uint64_t carry = 0;
    const ptrdiff_t n = a->n > b->n ? a->n : b->n;
    for (ptrdiff_t i = 0; i < n; i++) {
        carry += (uint64_t)(i < a->n ? a->d[i] : 0) + (i < b->n ? b->d[i] : 0);
        a->d[i] = (uint32_t)carry;
        carry >>= 32;
    }
    a->d[n] = (uint32_t)carry;
    a->n = n + 1;
    bn_without_zeros(a);
}

/* Return the integer part of u / v, which has 63 or 64 bits; u becomes the remainder. The highest bit of the highest
 * digit of v must be set, and u be 63 bits longer than v. This is long division by digits of 32 bits, Knuth's
 * algorithm D. */
static uint64_t bn_divide(bn_natural *u, const bn_natural *v)
{
    const ptrdiff_t n = v->n;
    uint64_t quotient = 0;
    for (ptrdiff_t j = 1; j >= 0; j--) {
        const uint64_t top = (uint64_t)u->d[j + n] << 32 | u->d[j + n - 1];
        uint64_t digit = top / v->d[n - 1], rest = top % v->d[n - 1], carry = 0;
        int64_t borrow = 0;
        while (digit >> 32 || (n > 1 && digit * v->d[n - 2] > (rest << 32 | u->d[j + n - 2]))) {
            digit--;
            rest += v->d[n - 1];
            if (rest >> 32)
                break;
        }
        for (ptrdiff_t i = 0; i < n; i++) {
            carry += digit * v->d[i];
            borrow += (int64_t)u->d[i + j] - (int64_t)(uint32_t)carry;
            u->d[i + j] = (uint32_t)borrow;
            borrow = borrow < 0 ? -1 : 0;
            carry >>= 32;
        }
        borrow += (int64_t)u->d[j + n] - (int64_t)carry;
        u->d[j + n] = (uint32_t)borrow;
        if (borrow < 0) {   /* the digit was one too large */
            digit--;
            carry = 0;
            for (ptrdiff_t i = 0; i < n; i++) {
                carry += (uint64_t)u->d[i + j] + v->d[i];
                u->d[i + j] = (uint32_t)carry;
                carry >>= 32;
            }
            u->d[j + n] += (uint32_t)carry;
        }
        quotient = quotient << 32 | digit;
    }
    bn_without_zeros(u);
    return quotient;
}

/* num / den = q 2^e plus a remainder, with a q of 63 or 64 bits. Return whether there is a remainder. */
static int bn_ratio(bn_rounding *r, const bn_natural *num, const bn_natural *den, uint64_t *q, ptrdiff_t *e)
{
    const ptrdiff_t up = -bn_bits(den) & 31, longer = bn_bits(den) + up + 63 - bn_bits(num);
    bn_shifted(den, up, &r->b);
    const int lost = bn_shifted(num, longer, &r->a);
    for (ptrdiff_t i = r->a.n; i < r->b.n + 2; i++)
        r->a.d[i] = 0;
    r->a.n = r->b.n + 2;
    *q = bn_divide(&r->a, &r->b);
    *e = up - longer;
    return lost || r->a.n;
}

/* Return q 2^e, or a little more if `left`, rounded to the nearest double: in the middle to the even one, above the
 * largest to infinity. q has 63 or 64 bits. The bits of the double are made by integer operations, because another
 * library may have set this thread to treat subnormal doubles as 0. */
static double bn_double(uint64_t q, int left, ptrdiff_t e)
{
    const int bits = q >> 63 ? 64 : 63;
    const ptrdiff_t room = e + bits + 1074;     /* bits from 2^-1074 on */
    const int dropped = bits - (room < 53 ? (int)room : 53);
    double v = room < 0 ? 0.0 : INFINITY;
    if (room < 0 || room > 1024 + 1074)
        return v;
    uint64_t kept = dropped < 64 ? q >> dropped : 0;
    const uint64_t half = (uint64_t)1 << (dropped - 1), rest = q - (dropped < 64 ? kept << dropped : 0);
    kept += rest > half || (rest == half && (left || (kept & 1)));
    kept += room > 53 ? (uint64_t)(room - 53) << 52 : 0;    /* the exponent, to which the highest bit of kept adds 1 */
    memcpy(&v, &kept, sizeof v);
    return v;
}

/* |v| = m 2^e. Return m. */
static uint64_t bn_split(double v, ptrdiff_t *e)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    const int exponent = (int)(bits >> 52 & 0x7FF);
    *e = (exponent ? exponent : 1) - 1075;
    return (bits & 0xFFFFFFFFFFFFFu) | (uint64_t)(exponent != 0) << 52;
}

/* Return num 2^e / den, rounded to the nearest double. */
static double bn_quotient(bn_rounding *r, const bn_natural *num, const bn_natural *den, ptrdiff_t e)
{
    uint64_t q;
    ptrdiff_t more;
    if (num->n == 0)
        return 0.0;
    const int left = bn_ratio(r, num, den, &q, &more);
    return bn_double(q, left, e + more);
}

/* Return sqrt(num 2^e / den): a step of Newton's method makes some 60 bits of it right before it is rounded. */
static double bn_root(bn_rounding *r, const bn_natural *num, const bn_natural *den, ptrdiff_t e)
{
    uint64_t q;
    ptrdiff_t more, place;
    if (num->n == 0)
        return 0.0;
    bn_ratio(r, num, den, &q, &more);
    e += more;
    const int odd = (int)(e & 1);
    const double high = (double)(q >> 11) * (2048 << odd), low = (double)((q & 0x7FF) << odd), near = sqrt(high);
    q = bn_split(near + (fma(-near, near, high) + low) / (2 * near), &place);
    return bn_double(q << 11, 0, (e - odd) / 2 + place - 11);
}

/* Load the magnitude of a sum of channel c. Return whether the sum is negative. */
static int bn_take_sum(const bn_rounding *r, int which, ptrdiff_t c, bn_natural *to)
{
    const int64_t *limb = r->limbs[which] + c;
    const ptrdiff_t n = r->size[which], C = r->channels;
    const int negative = n > 0 && limb[(n - 1) * C] < 0;
    uint64_t carry = (uint64_t)negative;
    for (ptrdiff_t i = 0; i < n; i++) {
        carry += negative ? (uint32_t)~(uint32_t)limb[i * C] : (uint32_t)limb[i * C];
        to->d[i] = (uint32_t)carry;
        carry >>= 32;
    }
    to->n = n;
    bn_without_zeros(to);
    return negative;
}

/* Load channel c: its counts, its sums, and num. */
static void bn_channel(bn_rounding *r, ptrdiff_t c)
{
    const ptrdiff_t C = r->channels;
    const int64_t *counts = r->counts + c;
    int impossible;
    r->values = r->finite = counts[0];
    r->negative = bn_take_sum(r, 0, c, &r->s);
    impossible = bn_take_sum(r, 1, c, &r->q);
    for (int i = 1; i < 4; i++) {
        impossible |= counts[i * C] < 0 || counts[i * C] > r->finite;
        r->finite = impossible ? 0 : r->finite - counts[i * C];
    }
    r->at = 32 * r->first[0];
    r->unit = 32 * (2 * r->first[0] < r->first[1] ? 2 * r->first[0] : r->first[1]);
    r->num.n = 0;
    r->possible = 0;
    if (impossible || (r->q.n && r->finite == 0))
        return;
    bn_product(&r->s, &r->s, &r->b);
    bn_shifted(&r->b, 2 * r->at - r->unit, &r->a);
    bn_natural_of((uint64_t)r->finite, &r->den);
    bn_product(&r->q, &r->den, &r->b);
    bn_shifted(&r->b, 32 * r->first[1] - r->unit, &r->num);
    r->possible = !bn_distance(&r->num, &r->a);
}

/* Write count, mean, m2, and the rounding error of the mean of the loaded channel. This overwrites its s and q. */
static void bn_rounded_parts(bn_rounding *r, double *parts)
{
    const ptrdiff_t C = r->channels;
    double mean, m2, low = 0.0;
    ptrdiff_t place;
    parts[0] = (double)r->values;
    if (r->values != r->finite || r->values == 0) {
        parts[C] = NAN;
        parts[2 * C] = r->values ? NAN : 0.0;
        parts[3 * C] = r->values ? NAN : 0.0;
        return;
    }
    bn_natural_of((uint64_t)r->values, &r->den);
    mean = bn_quotient(r, &r->s, &r->den, r->at);
    m2 = bn_quotient(r, &r->num, &r->den, r->unit);
    const uint64_t digits = bn_split(mean, &place);     /* mean = digits 2^place */
    if (digits == 0)            /* low is 0 too. Any other mean is about s 2^at / n: few bits are between at and place */
        low = r->negative ? -0.0 : 0.0;
    else if (mean < INFINITY) { /* low = (s 2^at - n mean) / n */
        bn_natural_of(digits, &r->c);
        const ptrdiff_t unit = place < r->at ? place : r->at;
        bn_product(&r->den, &r->c, &r->b);
        bn_shifted(&r->b, place - unit, &r->c);
        bn_shifted(&r->s, r->at - unit, &r->q);
        const int less = bn_distance(&r->q, &r->c);
        low = bn_quotient(r, &r->q, &r->den, unit);
        low = r->q.n && less != r->negative ? -low : low;
    }
    parts[C] = r->negative ? -mean : mean;
    parts[2 * C] = m2;
    parts[3 * C] = low;
}

/* Return the variance of the loaded channel, num 2^unit / (values (values - ddof)), or its root. NaN if values - ddof
 * is not above 0. */
static double bn_rounded_variance(bn_rounding *r, double ddof, int root)
{
    ptrdiff_t e;
    uint64_t m = bn_split(ddof, &e);
    if (r->values != r->finite || r->values <= 0)
        return NAN;
    for (e = m ? e : 0; m && !(m & 1) && e < 0; e++)
        m >>= 1;
    bn_natural_of(m, &r->b);
    const ptrdiff_t place = e < 0 ? -e : 0;     /* ddof is an integer in units of 2^-place */
    bn_shifted(&r->b, e + place, &r->c);
    bn_natural_of((uint64_t)r->values, &r->b);
    bn_shifted(&r->b, place, &r->q);
    if (ddof < 0)
        bn_sum(&r->q, &r->c);
    else if (bn_distance(&r->q, &r->c) || r->q.n == 0)
        return NAN;
    bn_product(&r->q, &r->b, &r->den);
    return (root ? bn_root : bn_quotient)(r, &r->num, &r->den, r->unit + place);
}

/* Allocate memory for the numbers of a channel. Return whether there is enough. */
static int bn_begin_rounding(bn_rounding *r)
{
    const ptrdiff_t apart = 2 * r->first[0] - r->first[1];
    const ptrdiff_t longest = (r->size[0] > r->size[1] ? 2 * r->size[0] : 2 * r->size[1]) + (apart < 0 ? -apart : apart)
        + 80;   /* digits: more than any ddof, in units of 2^-1074, and two counts need */
    bn_natural *all[] = {&r->s, &r->q, &r->num, &r->den, &r->a, &r->b, &r->c};
    r->memory = (uint32_t *)malloc(7 * (size_t)longest * sizeof *r->memory);
    for (int i = 0; i < 7 && r->memory; i++) {
        all[i]->n = 0;
        all[i]->d = r->memory + i * longest;
    }
    return r->memory != NULL;
}
#endif
