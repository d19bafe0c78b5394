/* How an exact job is cut into tasks, and how the totals of the tasks are put together. */
#ifndef BNORM_EXACT_PLAN_H
#define BNORM_EXACT_PLAN_H

#include "tasks.h"

enum {
    BN_SHORT = 16,          /* a run of this many values is read by itself if there are few rows, */
    BN_LONG = 256,          /* and a run of this many values always is */
    BN_FEW_ROWS = 512,      /* fewer rows than this are few */
    BN_MOST_WIDEN = 16,
    BN_CLOSING = 200,       /* rows that take as long as to put the sums of their strip into limbs */
    BN_PIECE_ROWS = 1024,   /* a piece has at least this many rows, as every column has first and last steps */
    BN_SEGMENT = 1 << 16    /* a run is cut into segments of about this many values */
};

BN_INLINE ptrdiff_t bn_parts(ptrdiff_t whole, ptrdiff_t part) { return whole > part ? (whole + part - 1) / part : 1; }

BN_INLINE ptrdiff_t bn_between(ptrdiff_t least, ptrdiff_t n, ptrdiff_t most)
{
    return n > most ? most : n < least ? least : n;     /* this is `most` if most < least and n > most */
}

/* Return how many outer positions make a row, so that few lanes of its strips, or columns of integers, stay empty. A
 * strip of floats takes two units of time a row, and as long as BN_CLOSING rows to put its sums into limbs. A row that
 * is converted, masked or narrower than a strip is copied first, and the values that do not fill vectors one by one. */
static inline ptrdiff_t bn_widening(const bn_exact_job *job, int real)
{
    const ptrdiff_t each = job->width;
    ptrdiff_t widen = 1, least = PTRDIFF_MAX;
    if (!real) {
        const ptrdiff_t span = each > 0 && BN_STRIP % each ? BN_SPAN : BN_STRIP;
        return bn_between(1, span / bn_between(1, each, BN_SPAN), BN_SPAN);
    }
    for (ptrdiff_t w = 1; w <= BN_MOST_WIDEN && each < BN_SPAN; w++) {
        const ptrdiff_t rows = bn_parts(job->outer, w), width = w * each, strips = bn_parts(width, BN_LANES);
        const ptrdiff_t copying = bn_is_taken(job) || width < BN_LANES ? 3 + width % 8 : 0;
        const ptrdiff_t cost = strips * 2 * (rows + BN_CLOSING) + rows * copying;
        if (cost < least) {
            least = cost;
            widen = w;
        }
    }
    return widen;
}

/* Cut a job, whose view, kind and mask are set, into about `tasks` tasks, or more. */
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
    job->widen = bn_widening(job, real);
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

/* The most channels that a task has. A task of rows wider than the array has all. */
static inline ptrdiff_t bn_most_channels(const bn_exact_job *job)
{
    const ptrdiff_t own = job->runs ? job->group : job->widen > 1 ? job->channels : (job->group - 1) / job->inner + 2;
    return own < job->channels ? own : job->channels;
}

/* Set which channels task t has. If every task had space for all, the space would grow with their square. */
static inline void bn_set_channels(bn_exact_job *job, ptrdiff_t t)
{
    const ptrdiff_t at = t % job->groups * job->group, most = bn_most_channels(job);
    bn_total *total = job->totals + t;
    total->begin = job->runs ? at : job->widen > 1 ? 0 : at / job->inner;
    total->channels = most < job->channels - total->begin ? most : job->channels - total->begin;
}

/* Bring all limbs below 2^32 except the last, which has the sign. */
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

/* Find which of carried limbs are needed. *first becomes the first limb that is not 0 in all channels. The last limb is
 * not needed if the limb below it, which then gets the sign, stays within 32 bits with it. Return the number needed. */
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

/* Find the limbs of one of the two sums that any task has used: set *first, and return their number. */
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

/* Add the limbs of all tasks, `n` of them from `first` on, to `to`, which holds zeros. */
static inline void bn_gather(const bn_exact_job *job, int which, ptrdiff_t first, ptrdiff_t n, int64_t *to)
{
    const ptrdiff_t tasks = job->pieces * job->groups, C = job->channels;
    for (ptrdiff_t k = 0; k < tasks; k++) {
        const bn_total *t = job->totals + k;
        const ptrdiff_t from = (which ? t->size[0] : 0) + first;
        for (ptrdiff_t i = 0; i < n; i++)
            for (ptrdiff_t c = 0; t->used[from + i] && c < t->channels; c++)
                to[i * C + t->begin + c] += t->limbs[(from + i) * t->channels + c];
    }
}

#endif
