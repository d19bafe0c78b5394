/* Moves running statistics by a batch, in loops over channels that vectorize. The rules are those of formulas.h. */
#ifndef BNORM_MOVING_H
#define BNORM_MOVING_H

#include <stddef.h>
#include <stdint.h>

#include "formulas.h"

enum { BN_MOVED = 64, BN_BY = 8 };  /* channels that are moved together, and their unit: a full vector of float64 */

/* The arrays and the rule of a `bnorm.running.Statistics`. */
typedef struct {
    void *mean, *var;
    double *low;        /* NULL if the rounding error of the mean is not kept */
    double *seen;
    double *weight;     /* NULL if the average is settled, or if `seen` is the weight */
    double *pairs;      /* NULL unless values fade */
    double *last;
    int64_t *counters;  /* batches, batches that some channel skipped, rows, and batches that `seen` lacks */
    double uncounted;   /* the values that `seen` lacks, in each channel */
    int single;         /* mean and var are float32 */
    bn_rule rule;
    int raises, propagates, replaces;
} bn_target;

/* Numbers of BN_MOVED channels: statistics, and a batch. moved: -1 in each channel that was moved, 0 elsewhere. */
typedef struct {
    double mean[BN_MOVED], low[BN_MOVED], var[BN_MOVED];
    double seen[BN_MOVED], weight[BN_MOVED], pairs[BN_MOVED], last[BN_MOVED];
} bn_states;

typedef struct {
    double count[BN_MOVED], mean[BN_MOVED], m2[BN_MOVED], low[BN_MOVED];
    double seen[BN_MOVED], pairs[BN_MOVED], last[BN_MOVED];
    int64_t moved[BN_MOVED];
} bn_batches;

BN_INLINE void bn_fill(double v, ptrdiff_t n, double *to)
{
    for (ptrdiff_t c = 0; c < n; c++)
        to[c] = v;
}

/* Read n numbers from `at` on of float64, or if `single` of float32; zeros if there are none. */
BN_INLINE void bn_read_numbers(int single, const void *from, ptrdiff_t at, ptrdiff_t n, double *to)
{
    if (from == NULL)
        bn_fill(0.0, n, to);
    else if (!single)
        memcpy(to, (const double *)from + at, (size_t)n * sizeof *to);
    else
        for (ptrdiff_t c = 0; c < n; c++)
            to[c] = ((const float *)from)[at + c];
}

/* Write those of channels that were moved, if there is memory for them. */
BN_INLINE void bn_write_moved(int single, const double *from, const int64_t *moved, ptrdiff_t n, void *to,
                              ptrdiff_t at)
{
    double *wide = (double *)to;
    float *narrow = (float *)to;
    if (to != NULL && !single)
        for (ptrdiff_t c = 0; c < n; c++)
            wide[at + c] = moved[c] ? from[c] : wide[at + c];
    else if (to != NULL)
        for (ptrdiff_t c = 0; c < n; c++)
            narrow[at + c] = moved[c] ? (float)from[c] : narrow[at + c];
}

BN_INLINE bn_rule bn_of_mode(int mode, bn_rule r) { r.mode = mode; return r; }
BN_INLINE bn_rule bn_whole_counts(bn_rule r) { r.ddof = 0.0; return r; }

/* Write what n channels are after a batch, and into `moved` whether these numbers are sound. GCC vectorizes two loops,
 * but not one. */
BN_INLINE void bn_move_states(bn_rule r, const bn_states *s, bn_batches *b, ptrdiff_t n, bn_states *to)
{
    for (ptrdiff_t c = 0; c < n; c++) {
        const bn_statistics old = {s->mean[c], s->low[c], s->var[c], s->seen[c], s->weight[c], s->pairs[c], s->last[c]};
        const bn_batch by = {b->count[c], b->mean[c], b->m2[c], b->low[c], b->seen[c], b->pairs[c], b->last[c]};
        const bn_statistics after = bn_move(old, by, r);
        to->mean[c] = after.mean;
        to->low[c] = after.low;
        to->var[c] = after.var;
        to->seen[c] = after.seen;
        to->weight[c] = after.weight;
        to->pairs[c] = after.pairs;
        to->last[c] = after.last;
    }
    for (ptrdiff_t c = 0; c < n; c++) {
        const bn_statistics after = {to->mean[c], to->low[c], to->var[c], to->seen[c], to->weight[c], to->pairs[c],
                                     to->last[c]};
        b->moved[c] = -(int64_t)bn_sound(after, r);
    }
}

/* Read the statistics of n channels from `at` on. To replace them is to pool the batch with nothing. */
BN_INLINE void bn_read_states(const bn_target *t, ptrdiff_t at, ptrdiff_t n, const bn_batches *b, bn_states *s)
{
    bn_read_numbers(t->single, t->mean, at, n, s->mean);
    bn_read_numbers(t->single, t->var, at, n, s->var);
    bn_read_numbers(0, t->low, at, n, s->low);
    if (t->replaces) {
        bn_fill(0.0, n, s->seen);
        bn_fill(0.0, n, s->weight);
        bn_fill(0.0, n, s->pairs);
        memcpy(s->last, b->last, (size_t)n * sizeof(double));
        return;
    }
    bn_read_numbers(0, t->seen, at, n, s->seen);
    for (ptrdiff_t c = 0; c < n; c++)
        s->seen[c] += t->uncounted;
    if (t->weight != NULL)
        bn_read_numbers(0, t->weight, at, n, s->weight);
    else if (t->rule.mode == BN_POOL)
        memcpy(s->weight, s->seen, (size_t)n * sizeof(double));
    else
        bn_fill(BN_INFINITY, n, s->weight);
    bn_read_numbers(0, t->pairs, at, n, s->pairs);
    bn_read_numbers(0, t->last, at, n, s->last);
}

/* Write them. A channel whose count is 0 has missed a batch: from now on its average weighs less. With a count of NaN
 * it stays as it is. */
BN_INLINE void bn_write_states(const bn_target *t, ptrdiff_t at, ptrdiff_t n, const bn_batches *b, bn_states *s)
{
    const int averages = t->rule.mode == BN_AVERAGE;
    if (t->uncounted != 0.0)
        for (ptrdiff_t c = 0; c < n; c++)
            t->seen[at + c] += t->uncounted;
    if (averages && t->replaces)
        bn_fill(BN_INFINITY, n, s->weight);
    else if (averages && t->weight != NULL)
        for (ptrdiff_t c = 0; c < n; c++)
            if (b->count[c] == 0.0)
                t->weight[at + c] = bn_weight_later(t->weight[at + c], t->rule);
    bn_write_moved(t->single, s->mean, b->moved, n, t->mean, at);
    bn_write_moved(t->single, s->var, b->moved, n, t->var, at);
    bn_write_moved(0, s->low, b->moved, n, t->low, at);
    bn_write_moved(0, s->seen, b->moved, n, t->seen, at);
    bn_write_moved(0, s->weight, b->moved, n, t->weight, at);
    bn_write_moved(0, s->pairs, b->moved, n, t->pairs, at);
    bn_write_moved(0, s->last, b->moved, n, t->last, at);
}

/* Move n <= BN_MOVED channels from `at` on by a batch, or with `test` only try. Return how many cannot be moved: a
 * result that is not finite is kept only if the rule propagates it; in a transformer only an infinite variance is. */
BN_FN ptrdiff_t bn_move_channels(const bn_target *t, ptrdiff_t at, ptrdiff_t n, bn_batches *b, int test)
{
    const ptrdiff_t full = (n + BN_BY - 1) / BN_BY * BN_BY;
    const int64_t any = -(int64_t)t->propagates, either = -(int64_t)!t->rule.whole;
    bn_states s, to;
    bn_rule r = t->rule;
    int64_t odd = 0;
    r.mode = t->replaces ? BN_POOL : r.mode;
    for (ptrdiff_t c = n; c < full; c++) {      /* as of channels without values */
        b->count[c] = b->mean[c] = b->m2[c] = b->low[c] = b->seen[c] = b->pairs[c] = b->last[c] = 0.0;
        s.mean[c] = s.low[c] = s.var[c] = s.seen[c] = s.weight[c] = s.pairs[c] = s.last[c] = 0.0;
    }
    if (r.mode == BN_AVERAGE && t->weight == NULL && !t->replaces)
        bn_fill(0.0, n, b->seen);   /* the average of a layer does not need them */
    bn_read_states(t, at, n, b, &s);
    if (r.mode == BN_POOL)      /* copies of the loops for each mode, as a constant */
        bn_move_states(bn_of_mode(BN_POOL, r), &s, b, full, &to);
    else if (r.mode == BN_AVERAGE)
        bn_move_states(bn_of_mode(BN_AVERAGE, r), &s, b, full, &to);
    else if (r.ddof == 0.0)     /* this vectorizes, the last does not */
        bn_move_states(bn_whole_counts(bn_of_mode(BN_FADE, r)), &s, b, full, &to);
    else
        bn_move_states(bn_of_mode(BN_FADE, r), &s, b, full, &to);
    for (ptrdiff_t c = 0; c < full; c++) {
        const double mean = t->single ? (double)(float)to.mean[c] : to.mean[c];     /* it may overflow float32 */
        const double var = t->single ? (double)(float)to.var[c] : to.var[c];
        const int64_t there = -(int64_t)(b->count[c] > 0.0), finite = -(int64_t)(bn_finite(mean) & bn_finite(var));
        b->moved[c] = there & (finite | any) & (b->moved[c] | either);
        odd -= there & ~b->moved[c];
    }
    if (!test)
        bn_write_states(t, at, n, b, &to);
    return (ptrdiff_t)odd;
}

#endif
