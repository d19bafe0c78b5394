/* How an exact job is cut into tasks, and what becomes of their totals. */
#ifndef BNORM_EXACT_PLAN_H
#define BNORM_EXACT_PLAN_H

#include "tasks.h"

enum {
    BN_SHORT = 16,          /* from so many values on a run may be worth a look of its own, */
    BN_LONG = 256,          /* and from so many on it always is */
    BN_FEW_ROWS = 512,      /* with more, rows are read in their order */
    BN_MOST_WIDEN = 16,
    BN_PIECE_ROWS = 1024,   /* that are worth the first and the last steps of every column */
    BN_SEGMENT = 1 << 16    /* values of a run that is cut */
};

BN_INLINE ptrdiff_t bn_parts(ptrdiff_t whole, ptrdiff_t part) { return whole > part ? (whole + part - 1) / part : 1; }

BN_INLINE ptrdiff_t bn_between(ptrdiff_t least, ptrdiff_t n, ptrdiff_t most)
{
    return n > most ? most : n < least ? least : n;     /* most, if that is below least */
}

/* How many outer positions make a row, so that few of the lanes of its strips are left over, or columns of integers. */
static inline ptrdiff_t bn_widening(ptrdiff_t each, int real)
{
    ptrdiff_t widen = 1;
    if (!real) {
        const ptrdiff_t span = each > 0 && BN_STRIP % each ? BN_SPAN : BN_STRIP;
        return bn_between(1, span / bn_between(1, each, BN_SPAN), BN_SPAN);
    }
    while (widen < BN_MOST_WIDEN) {
        const ptrdiff_t width = widen * each, lanes = (width + BN_LANES - 1) / BN_LANES * BN_LANES;
        if ((lanes - width) * 16 <= width)
            break;
        widen++;
    }
    return widen;
}

/* Cut a job with a view, a kind and a mask into about so many tasks, or more. */
static inline void bn_exact_plan(bn_exact_job *job, ptrdiff_t tasks)
{
    const int real = job->kind <= BN_BFLOAT || job->kind == BN_FLOAT32 || job->kind == BN_FLOAT64;
    const ptrdiff_t C = job->channels, inner = job->inner;
    job->runs = inner >= BN_LONG || (inner >= BN_SHORT && job->outer < BN_FEW_ROWS);
    job->segments = job->widen = 1;
    job->segment = inner;
    job->width = C * inner;
    if (job->runs) {
        job->groups = bn_between(1, tasks, C);
        if (job->groups < tasks) {
            job->segments = bn_between(1, inner / BN_SEGMENT, tasks);
            job->segment = (bn_parts(inner, job->segments) + 63) / 64 * 64;
            job->segments = bn_parts(inner, job->segment);
        }
        job->group = bn_parts(C, job->groups);
        job->groups = bn_parts(C, job->group);
        job->pieces = bn_between(1, tasks / job->groups, job->outer * job->segments);
        job->piece = bn_parts(job->outer * job->segments, job->pieces);
        job->pieces = bn_parts(job->outer * job->segments, job->piece);
        return;
    }
    job->widen = bn_widening(job->width, real);
    job->width *= job->widen;
    const ptrdiff_t rows = job->outer / job->widen;
    job->pieces = bn_between(1, rows / BN_PIECE_ROWS, tasks);
    job->groups = bn_between(bn_parts(job->width, BN_SPAN), tasks / job->pieces, bn_parts(job->width, 4 * BN_LANES));
    if (job->groups < bn_parts(job->width, BN_SPAN))
        job->groups = bn_parts(job->width, BN_SPAN);
    job->group = (bn_parts(job->width, job->groups) + BN_LANES - 1) / BN_LANES * BN_LANES;
    job->groups = bn_parts(job->width, job->group);
    job->pieces = bn_between(1, tasks / job->groups, job->pieces);
    job->piece = bn_parts(rows, job->pieces);
    job->pieces = bn_parts(rows, job->piece);
}

/* Bring limbs below 2^32, the last excepted, which has the sign. */
static inline void bn_carry(int64_t *limbs, ptrdiff_t n, ptrdiff_t channels)
{
    for (ptrdiff_t i = 0; i + 1 < n; i++) {
        int64_t *a = limbs + i * channels, *b = a + channels;
        for (ptrdiff_t c = 0; c < channels; c++) {
            b[c] += a[c] >> 32;
            a[c] &= 0xFFFFFFFF;
        }
    }
}

/* Of carried limbs, which are needed: *first is the first that is not 0 in all channels; the last has a sign, and 32
 * bits with it. Returns their number; the limb below a last one that is not needed gets the sign. */
static inline ptrdiff_t bn_trim(int64_t *limbs, ptrdiff_t n, ptrdiff_t channels, ptrdiff_t *first)
{
    ptrdiff_t begin = 0;
    for (int needed = 0; n > 1 && !needed;) {
        int64_t *last = limbs + (n - 1) * channels, *below = last - channels;
        for (ptrdiff_t c = 0; c < channels; c++)
            needed |= last[c] != -(below[c] >> 31);
        for (ptrdiff_t c = 0; !needed && c < channels; c++)
            below[c] += last[c] * ((int64_t)1 << 32);
        n -= !needed;
    }
    for (int needed = 0; begin < n && !needed;) {
        for (ptrdiff_t c = 0; c < channels; c++)
            needed |= limbs[begin * channels + c] != 0;
        begin += !needed;
    }
    *first = begin;
    return n - begin;
}

/* The limbs of one of the two sums that any task has used: *first and the number of them. */
static inline ptrdiff_t bn_used(const bn_exact_job *job, int which, ptrdiff_t *first)
{
    const bn_total *t = job->totals;
    const ptrdiff_t tasks = job->pieces * job->groups, from = which ? t->size[0] : 0;
    ptrdiff_t begin = t->size[which], end = 0;
    for (ptrdiff_t k = 0; k < tasks; k++)
        for (ptrdiff_t i = 0; i < t->size[which]; i++)
            if (t[k].used[from + i]) {
                begin = i < begin ? i : begin;
                end = i + 1 > end ? i + 1 : end;
            }
    *first = begin < end ? begin : 0;
    return begin < end ? end - begin : 0;
}

/* Add the limbs of all tasks, `n` from `first` on, to zeros. */
static inline void bn_gather(const bn_exact_job *job, int which, ptrdiff_t first, ptrdiff_t n, int64_t *to)
{
    const ptrdiff_t tasks = job->pieces * job->groups, C = job->channels;
    for (ptrdiff_t k = 0; k < tasks; k++) {
        const bn_total *t = job->totals + k;
        const ptrdiff_t from = (which ? t->size[0] : 0) + first;
        for (ptrdiff_t i = 0; i < n; i++)
            for (ptrdiff_t c = 0; t->used[from + i] && c < C; c++)
                to[i * C + c] += t->limbs[(from + i) * C + c];
    }
}

#endif
