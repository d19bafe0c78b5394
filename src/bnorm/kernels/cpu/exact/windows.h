/* Sums of x and of x^2 without rounding: some rows of sixteen lanes, float or double.
 *
 * Every sum is kept in a few doubles, each of which stays a multiple of its unit u and below 2^53 u: then no addition
 * rounds, in any order. A window guarantees this: bounds B and e per lane such that
 *
 *     sum x^2 < 0.75 2^B      and      |x| >= 2^e for all x that are not 0,
 *
 * over a block of at most 2^r rows. A sum P of squares starts at 2^B, and stays below 2^(B + 1); so t = P + x^2 rounds
 * to a multiple of 2^(B - 52), h = t - P is what was really added, and the rest l = x^2 - h, at most 2^(B - 53) in
 * magnitude, goes to a sum of its own. A float has 24 binary digits, so l is a multiple of (2^(e - 23))^2, and Cauchy's
 * inequality bounds the sum of |x| by the root of 2^r 2^B; the sums of x and of l are exact if
 *
 *     float     e >= (B + r) / 2 - 30.
 *
 * The square of a double is the sum of two doubles q + s with |s| < 2^-53 q. In the same way, s is added to a sum that
 * starts at 1.5 2^(B - 52), and x to a sum that starts at 1.5 2^K, K = (r + B) / 2 + 1. That requires
 *
 *     double    e >= (B + r) / 2 - 27.
 *
 * B and e come from earlier blocks; blocks.h checks whether a block satisfies them. */
#ifndef BNORM_EXACT_WINDOWS_H
#define BNORM_EXACT_WINDOWS_H

#include <float.h>
#include <stddef.h>

#include "limbs.h"
#include "vectors.h"

enum {
    BN_LANES = 16,
    BN_STARTS = 3,          /* sums that do not start at 0 */
    BN_PIECES = 6,          /* sums of a block of doubles; a block of floats has three */
    BN_BLOCK_F = 256,       /* rows of a block of floats, and of doubles: few, so that the window is wide */
    BN_BLOCK_D = 128,
    BN_SELDOM = 64,         /* one of this many values may fall outside the window of its block */
    BN_MANY = 1 << 24       /* blocks after which their sums are put into limbs */
};

typedef double bn_lanes[BN_LANES];

/* Sixteen lanes: their windows, and the sums of their blocks, each in two parts. A float's three sums are those of x, h
 * and l above; a double's six are h and l of q, then of s, then of x. */
typedef struct {
    bn_lanes start[BN_STARTS], least, most;
    bn_lanes split[BN_PIECES], sum[BN_PIECES][2];
    int at[BN_LANES];       /* B */
    int blocks;             /* the number of blocks in the sums */
    int open;               /* whether any lane has ever had a window */
} bn_strip;

/* What to fetch while a strip is summed: cache lines, one for each row of floats and two for each row of doubles. */
typedef struct {
    const char *from;
    ptrdiff_t row, line;    /* bytes between the first lines of two rows, and between the two lines of a row */
} bn_next;

static const int bn_class_f[3] = {0, 1, 1}, bn_class_d[6] = {1, 1, 1, 1, 0, 0};

/* Return 2^e, for an e within the range of doubles. */
BN_INLINE double bn_power(int e)
{
    uint64_t bits = e >= -1022 ? (uint64_t)(e + 1023) << 52 : (uint64_t)1 << (e + 1074);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

BN_INLINE int bn_half_up(int n) { return n >= 0 ? (n + 1) / 2 : -(-n / 2); }

/* Return the least e with |x| < 2^e, for x that is not 0. */
BN_INLINE int bn_above(double x)
{
    int e;
    frexp(x, &e);
    return e;
}

/* Set the window of a lane; r: the rows of a block are at most 2^r. An impossible window admits only zeros. */
static inline void bn_window(bn_strip *s, int lane, int B, int r, int wide)
{
    const int e = bn_half_up(B + r) - (wide ? 27 : 30), K = bn_half_up(B + r) + 1;
    const int f[3] = {e - 23, B - 52, 2 * (e - 23)};
    const int d[6] = {B - 52, 2 * e - 52, B - 104, 2 * e - 104, K - 52, e - 52};
    const int *units = wide ? d : f, possible = !wide || (B > -700 && B < 900);
    s->at[lane] = B;
    if (!possible)
        B = 0;
    s->least[lane] = !possible ? INFINITY : !wide && e <= -126 ? 0 : bn_power(e);
    s->most[lane] = 0.75 * bn_power(B);
    s->start[0][lane] = bn_power(B);
    s->start[1][lane] = 1.5 * bn_power(B - 52);
    s->start[2][lane] = 1.5 * bn_power(possible ? K : 0);
    for (int k = 0; k < (wide ? 6 : 3); k++)
        s->split[k][lane] = 1.5 * bn_power((possible ? units[k] : 0) + 78);
}

/* Set the sums to 0 and all lanes to the same window. */
static inline void bn_start_strip(bn_strip *s, int B, int r, int wide)
{
    memset(s, 0, sizeof *s);
    bn_window(s, 0, B, r, wide);
    for (double *row = s->start[0]; row < s->sum[0][0]; row += BN_LANES)
        for (int i = 1; i < BN_LANES; i++)
            row[i] = row[0];
    for (int i = 1; i < BN_LANES; i++)
        s->at[i] = B;
}

/* Set the sums to 0 and all lanes to a window that admits only zeros. */
static inline void bn_start_closed(bn_strip *s, int wide)
{
    bn_start_strip(s, 0, 0, wide);
    for (int i = 0; i < BN_LANES; i++)
        s->least[i] = INFINITY;
}

/* Sum a block, and write to `least` the smallest magnitude of each lane that is not 0. The sums are exact if they and
 * `least` satisfy the bounds of the window. */
BN_INLINE void bn_sum_floats(const float *x, ptrdiff_t rows, ptrdiff_t stride, const bn_strip *w, bn_lanes *sum,
                             double *least, const bn_next *next)
{
    for (int at = 0; at < BN_LANES; at += 2 * BN_WIDE) {
        const float *from = x + at;
        const bn_doubles p0 = bn_load(w->start[0] + at), q0 = bn_load(w->start[0] + at + BN_WIDE);
        bn_doubles a = bn_set(0), b = a, p = p0, q = q0, l = a, m = a;
        bn_least_f few = bn_none_f();
        for (ptrdiff_t i = 0; i < rows; i++, from += stride) {
            const bn_doubles v = bn_widen(from), u = bn_widen(from + BN_WIDE);
            if (at == 0)
                bn_fetch_line(next->from + i * next->row);
            few = bn_less_f(few, from);
            a = bn_also(v, a);
            b = bn_also(u, b);
#ifdef BN_FUSED
            const bn_doubles t = bn_fma(v, v, p), s = bn_fma(u, u, q);
            l = bn_plus(l, bn_fms(v, v, bn_minus(t, p)));
            m = bn_plus(m, bn_fms(u, u, bn_minus(s, q)));
#else
            const bn_doubles vv = bn_times(v, v), uu = bn_times(u, u), t = bn_plus(vv, p), s = bn_plus(uu, q);
            l = bn_plus(l, bn_minus(vv, bn_minus(t, p)));
            m = bn_plus(m, bn_minus(uu, bn_minus(s, q)));
#endif
            p = t;
            q = s;
        }
        bn_store(sum[0] + at, a);
        bn_store(sum[0] + at + BN_WIDE, b);
        bn_store(sum[1] + at, bn_minus(p, p0));
        bn_store(sum[1] + at + BN_WIDE, bn_minus(q, q0));
        bn_store(sum[2] + at, l);
        bn_store(sum[2] + at + BN_WIDE, m);
        bn_keep_f(least + at, few);
    }
}

/* high += x, and low += the rounding error of that, for |high| > |x|. */
#define BN_ADD_SPLIT(high, low, x)                               \
    {                                                            \
        const bn_doubles t = bn_also(x, high);                   \
        low = bn_also(bn_minus(x, bn_minus(t, high)), low);      \
        high = t;                                                \
    }

/* The six sums of a vector of lanes: high and low sums of squares, of their rounding errors, and of values. */
typedef struct { bn_doubles p, l, v, k, a, b; } bn_six;

BN_INLINE void bn_add_six(bn_six *s, bn_doubles c)
{
    const bn_doubles q = bn_times(c, c), rest = bn_square_rest(c, q);
    BN_ADD_SPLIT(s->p, s->l, q)
    BN_ADD_SPLIT(s->v, s->k, rest)
    BN_ADD_SPLIT(s->a, s->b, c)
}

BN_INLINE bn_six bn_start_six(const bn_strip *w, int at)
{
    const bn_doubles none = bn_set(0);
    const bn_doubles a = bn_load(w->start[0] + at), b = bn_load(w->start[1] + at), c = bn_load(w->start[2] + at);
    const bn_six s = {a, none, b, none, c, none};
    return s;
}

BN_INLINE void bn_keep_six(const bn_six *s, const bn_strip *w, int at, bn_lanes *sum)
{
    bn_store(sum[0] + at, bn_minus(s->p, bn_load(w->start[0] + at)));
    bn_store(sum[1] + at, s->l);
    bn_store(sum[2] + at, bn_minus(s->v, bn_load(w->start[1] + at)));
    bn_store(sum[3] + at, s->k);
    bn_store(sum[4] + at, bn_minus(s->a, bn_load(w->start[2] + at)));
    bn_store(sum[5] + at, s->b);
}

/* Vectors of a row that are summed at a time: two if there are enough registers. */
enum { BN_PAIR = BN_WIDE == 8 ? 2 : 1 };

BN_INLINE void bn_sum_doubles(const double *x, ptrdiff_t rows, ptrdiff_t stride, const bn_strip *w, bn_lanes *sum,
                              double *least, const bn_next *next)
{
    for (int at = 0; at < BN_LANES; at += BN_PAIR * BN_WIDE) {
        const double *from = x + at;
        const int other = at + (BN_PAIR - 1) * BN_WIDE;
        bn_six one = bn_start_six(w, at), two = bn_start_six(w, other);
        bn_least_d few = bn_none_d(), few_two = few;
        for (ptrdiff_t i = 0; i < rows; i++, from += stride) {
            const bn_doubles c = bn_load(from);
            if (at % 8 == 0)
                bn_fetch_line(next->from + i * next->row + at / 8 * next->line);
            few = bn_less_d(few, c);
            bn_add_six(&one, c);
            if (BN_PAIR == 2) {
                const bn_doubles d = bn_load(from + BN_WIDE);
                bn_fetch_line(next->from + i * next->row + next->line);
                few_two = bn_less_d(few_two, d);
                bn_add_six(&two, d);
            }
        }
        bn_keep_six(&one, w, at, sum);
        bn_keep_d(least + at, few);
        if (BN_PAIR == 2) {
            bn_keep_six(&two, w, other, sum);
            bn_keep_d(least + other, few_two);
        }
    }
}

/* Add the sums of a block to those of the strip, in two parts, which stay exact for BN_MANY blocks. */
BN_INLINE void bn_close_block(bn_strip *s, bn_lanes *sum, int pieces)
{
    for (int k = 0; k < pieces; k++)
        for (int i = 0; i < BN_LANES; i++) {
            const double high = (sum[k][i] + s->split[k][i]) - s->split[k][i];
            s->sum[k][0][i] += high;
            s->sum[k][1][i] += sum[k][i] - high;
        }
    s->blocks++;
}

/* Put the sums of a lane into the limbs of its channel, those of x times 2^scale and those of x^2 times 2^(2 scale); both
 * parts of a sum as one number if that is exact, as it is for a few blocks. */
static inline void bn_flush_lane(bn_strip *s, const bn_home *home, int lane, int scale, int wide)
{
    const int *class = wide ? bn_class_d : bn_class_f;
    const ptrdiff_t channel = home->channel[lane];
    for (int k = 0; k < (wide ? 6 : 3); k++) {
        double high = s->sum[k][0][lane], low = s->sum[k][1][lane];
        const double both = high + low, rest = both - high;
        s->sum[k][0][lane] = s->sum[k][1][lane] = 0;
        if (channel < 0)
            continue;
        if (rest == low && both - rest == high)
            high = both, low = 0;
        bn_put_double(home->total, class[k], channel, high, scale * (1 + class[k]));
        bn_put_double(home->total, class[k], channel, low, scale * (1 + class[k]));
    }
}

/* Do that for all lanes. If all lanes are of one channel and window they are added first; sixteen sums stay exact. */
static inline void bn_flush_scaled(bn_strip *s, const bn_home *home, int scale, int wide)
{
    if (s->blocks == 0)
        return;
    s->blocks = 0;
    for (int i = 1; home->alone && i < BN_LANES; i++)
        for (int k = 0; k < (wide ? 6 : 3); k++)
            for (int part = 0; part < 2; part++) {
                s->sum[k][part][0] += s->sum[k][part][i];
                s->sum[k][part][i] = 0;
            }
    for (int i = 0; i < (home->alone ? 1 : BN_LANES); i++)
        bn_flush_lane(s, home, i, scale, wide);
}

static inline void bn_flush(bn_strip *s, const bn_home *home, int wide) { bn_flush_scaled(s, home, 0, wide); }

#endif
