/* Extremes of the values whose weight is not 0, and the task of the extremes.
 *
 * Values that count are copied to a small buffer, which is compared as if there were no weights. There a value that
 * does not count gives place to one of its channel that does, or its whole row is left out. */
#ifndef BNORM_EXTREMES_COUNTED_H
#define BNORM_EXTREMES_COUNTED_H

#include "extremes.h"

enum { BN_SPAN = BN_LONG };  /* the most columns that are copied together: more than a run of columns of rows has */

/* Copy n values; value `first` takes the place of those of weight 0. */
#define BN_TAKE_OF(type)                                                                                            \
    static void bn_take_##type(const void *values, const double *BN_ALONE weight, ptrdiff_t n, ptrdiff_t first,     \
                               void *to)                                                                            \
    {                                                                                                               \
        const type *BN_ALONE x = (const type *)values;                                                              \
        type *BN_ALONE y = (type *)to;                                                                              \
        const type other = x[first];                                                                                \
        for (ptrdiff_t i = 0; i < n; i++) {                                                                         \
            const type v = x[i];                                                                                    \
            y[i] = weight[i] != 0.0 ? v : other;                                                                    \
        }                                                                                                           \
    }

BN_TAKE_OF(uint8_t)
BN_TAKE_OF(uint16_t)
BN_TAKE_OF(uint32_t)
BN_TAKE_OF(uint64_t)

static void bn_take(ptrdiff_t bytes, const void *x, const double *weight, ptrdiff_t n, ptrdiff_t first, void *to)
{
    switch (bytes) {
    case 1: bn_take_uint8_t(x, weight, n, first, to); return;
    case 2: bn_take_uint16_t(x, weight, n, first, to); return;
    case 4: bn_take_uint32_t(x, weight, n, first, to); return;
    default: bn_take_uint64_t(x, weight, n, first, to); return;
    }
}

/* Whether all of n values count. *first: the first that does, or n. */
static int bn_count(const double *weight, ptrdiff_t n, ptrdiff_t *first)
{
    ptrdiff_t counted = 0, i = 0;
    while (i < n && weight[i] == 0.0)
        i++;
    *first = i;
    for (; i < n; i++)
        counted += weight[i] != 0.0;
    return counted == n;
}

/* Compare runs of n values, one of each channel, with the same weights. at: the first value; stride: between runs. */
static void bn_weighted_runs(bn_extremes_work *w, const double *weight, ptrdiff_t at, ptrdiff_t n, ptrdiff_t stride)
{
    const ptrdiff_t bytes = (ptrdiff_t)bn_size_of(w->job->kind), most = BN_ROOM / bytes;
    const char *x = (const char *)w->job->x;
    for (ptrdiff_t i = 0, k, first; i < n; i += k) {
        k = n - i < most ? n - i : most;
        const int all = bn_count(weight + i, k, &first);
        for (ptrdiff_t c = 0; c < w->job->channels && first < k; c++) {
            const ptrdiff_t begin = at + c * stride + i;
            if (!all)
                bn_take(bytes, x + begin * bytes, weight + i, k, first, w->room);
            w->x = all ? w->job->x : w->room;
            bn_run(w, all ? begin : 0, k, c);
        }
    }
}

/* Copy the columns of a position that begin with channel c, n in all; return how many rows that makes, 1 or 0. */
static int bn_take_columns(const bn_extremes_job *job, ptrdiff_t o, ptrdiff_t c, ptrdiff_t n, ptrdiff_t bytes, char *to)
{
    const ptrdiff_t inner = job->inner;
    const double *weight = job->weight + o * inner;
    const char *x = (const char *)job->x + (o * job->channels + c) * inner * bytes;
    ptrdiff_t first;
    if (inner == 1) {       /* no branch: a processor cannot foresee which rows count */
        memcpy(to, x, (size_t)(n * bytes));
        return *weight != 0.0;
    }
    if (bn_count(weight, inner, &first))
        memcpy(to, x, (size_t)(n * bytes));
    else if (first < inner)
        for (ptrdiff_t j = 0; j < n; j += inner)
            bn_take(bytes, x + j * bytes, weight, inner, first, to + j * bytes);
    return first < inner;
}

/* Compare positions as rows of columns. */
static void bn_weighted_rows(bn_extremes_work *w, ptrdiff_t begin, ptrdiff_t end)
{
    const ptrdiff_t C = w->job->channels, inner = w->job->inner, bytes = (ptrdiff_t)bn_size_of(w->job->kind);
    const ptrdiff_t together = BN_SPAN / inner < C ? BN_SPAN / inner : C;       /* channels */
    w->x = w->room;
    for (ptrdiff_t c = 0; c < C; c += together) {
        const ptrdiff_t n = (C - c < together ? C - c : together) * inner, most = BN_ROOM / (n * bytes);
        for (ptrdiff_t o = begin, rows = 0; o < end; o++) {
            rows += bn_take_columns(w->job, o, c, n, bytes, (char *)w->room + rows * n * bytes);
            if (rows < most && o + 1 < end)
                continue;
            if (together == C)
                bn_positions(w, 0, rows);
            else
                for (ptrdiff_t j = 0; j < n; j += BN_ROW)
                    bn_compare(w, (bn_rows){j, rows, n, n - j < BN_ROW ? n - j : BN_ROW, c * inner + j, inner, 0});
            rows = 0;
        }
    }
}

static void bn_weighted(bn_extremes_work *w, ptrdiff_t begin, ptrdiff_t end)
{
    const bn_extremes_job *job = w->job;
    const ptrdiff_t C = job->channels, inner = job->inner;
    const double *weight = job->weight + begin * inner;
    ptrdiff_t first;
    if (C == 1) {
        bn_weighted_runs(w, weight, begin * inner, (end - begin) * inner, 0);
    } else if (!bn_in_columns(inner, end - begin)) {
        for (ptrdiff_t o = begin; o < end; o++)
            bn_weighted_runs(w, job->weight + o * inner, o * C * inner, inner, inner);
    } else if (bn_count(weight, (end - begin) * inner, &first)) {
        bn_positions(w, begin * C * inner, end - begin);
    } else if (first < (end - begin) * inner) {
        bn_weighted_rows(w, begin, end);
    }
}

static inline void bn_extremes_task(bn_extremes_job *job, ptrdiff_t t)
{
    bn_extremes_work work;
    bn_extremes_work *w = &work;
    const ptrdiff_t C = job->channels;
    const ptrdiff_t all = C == 1 && !job->weight ? job->outer * job->inner : job->outer;
    const ptrdiff_t begin = t * job->piece < all ? t * job->piece : all;
    const ptrdiff_t end = begin + job->piece < all ? begin + job->piece : all;
    w->job = job;
    w->x = job->x;
    w->least = job->least + t * C;
    w->greatest = job->greatest + t * C;
    for (ptrdiff_t c = 0; c < C; c++) {
        w->least[c] = INFINITY;
        w->greatest[c] = -INFINITY;
    }
    if (C == 0 || job->inner == 0 || begin == end)
        return;
    if (job->weight)
        bn_weighted(w, begin, end);
    else if (C == 1)
        bn_run(w, begin, end - begin, 0);
    else
        bn_positions(w, begin * C * job->inner, end - begin);
}

#endif
