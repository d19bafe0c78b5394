/* The tasks of the exact sums: pieces of rows times groups of columns, or pieces of runs times groups of channels.
 * Tasks are independent, and their integers are added afterwards, so how the work is cut changes no bit. */
#ifndef BNORM_EXACT_TASKS_H
#define BNORM_EXACT_TASKS_H

#include <stdlib.h>

#include "blocks.h"
#include "integers.h"

enum {
    BN_FIRST = 32,          /* rows of the first block, which gives the first windows */
    BN_DIRECT = 512,        /* a run of this many values is read in place, not copied */
    BN_ROOM = 1 << 17,      /* the most bytes of a block of rows, so that it stays in a near cache */
    BN_SPAN = 256           /* the most columns of a group */
};

typedef struct {
    const void *x;          /* [outer][channels][inner], of a type of kinds.h */
    const unsigned char *mask;  /* [outer][inner] or NULL: which values count */
    int kind;
    int runs;               /* sum runs of one channel; otherwise rows of `widen` outer positions, `width` columns */
    ptrdiff_t outer, channels, inner;
    ptrdiff_t widen, width;
    ptrdiff_t segment, segments;            /* a run is cut into `segments` of `segment` values */
    ptrdiff_t piece, pieces, group, groups; /* a piece: rows or segments; a group: columns or channels */
    bn_total *totals;       /* one for each task */
    int failed;             /* there was no memory */
} bn_exact_job;

/* What a task works with. */
typedef struct {
    const bn_exact_job *job;    /* the task's job, or one for positions that do not fill a row */
    bn_total *total;
    size_t size;            /* bytes of a value as it is summed */
    int wide, real;         /* wide: summed as doubles; real: as doubles or floats, else as integers */
    int r;                  /* blocks have at most 2^r rows */
    ptrdiff_t lanes;        /* the lanes of a strip */
    bn_strip *strips;       /* sums of floats or doubles, */
    bn_sums *sums;          /* or of integers */
    ptrdiff_t *channel;     /* [strips][lanes], counted from total->begin */
    int64_t rows, blocks;   /* rows and blocks in the sums of integers */
    char *room;             /* memory for values that are converted, masked or collected */
    ptrdiff_t *place;       /* [columns]: the index of a column in the mask */
} bn_work;

static inline void bn_add_strip(bn_work *w, ptrdiff_t k, const void *x, ptrdiff_t rows, ptrdiff_t stride,
                                ptrdiff_t width, int alone, const bn_next *next)
{
    if (w->real) {
        const bn_home home = {w->total, w->channel + k * w->lanes, alone};
        bn_add_rows(w->strips + k, &home, x, rows, stride, w->r, w->wide, next);
    } else
        bn_add_integers(w->job->kind, x, rows, stride, width, w->sums[k]);
}

/* Put the sums of all strips into the limbs. */
static inline void bn_finish_strips(bn_work *w, ptrdiff_t strips, int alone)
{
    for (ptrdiff_t k = 0; k < strips; k++) {
        const bn_home home = {w->total, w->channel + k * w->lanes, alone};
        if (w->real)
            bn_flush(w->strips + k, &home, w->wide);
        else
            bn_flush_integers(w->job->kind, w->sums[k], w->rows, w->lanes, w->job->channels * w->job->inner, &home);
    }
    w->rows = w->blocks = 0;
}

/* Copy n values from position `at` on, converted to float if they are half precision. */
static inline void bn_take(const bn_work *w, ptrdiff_t at, ptrdiff_t n, char *to)
{
    const int kind = w->job->kind;
    if (kind == BN_HALF || kind == BN_BFLOAT)
        bn_read_float(kind, w->job->x, at, n, (float *)to);
    else
        memcpy(to, (const char *)w->job->x + (size_t)at * w->size, (size_t)n * w->size);
}

/* Set values to 0 where the mask is 0. place: the index of each value in the mask, or NULL if the order is the same. */
static inline void bn_mask(char *x, ptrdiff_t n, size_t size, const unsigned char *mask, const ptrdiff_t *place)
{
#define BN_MASK_AS(type)                                     \
    for (ptrdiff_t i = 0; i < n; i++)                        \
        ((type *)x)[i] = mask[place ? place[i] : i] ? ((type *)x)[i] : 0;
    switch (size) {
    case 1: BN_MASK_AS(uint8_t) break;
    case 2: BN_MASK_AS(uint16_t) break;
    case 4: BN_MASK_AS(uint32_t) break;
    default: BN_MASK_AS(uint64_t)
    }
#undef BN_MASK_AS
}

static inline void bn_finish_block(bn_work *w, ptrdiff_t strips, ptrdiff_t rows, int alone)
{
    w->rows += rows;
    if (!w->real && ++w->blocks == BN_TIMES_I)
        bn_finish_strips(w, strips, alone);
}

BN_INLINE int bn_is_taken(const bn_exact_job *job)
{
    return job->mask || job->kind == BN_HALF || job->kind == BN_BFLOAT;
}

/* Return the column at which strip k begins. The last strip ends with the last column; columns that it shares with the
 * strip before it count only there. */
BN_INLINE ptrdiff_t bn_strip_at(const bn_work *w, ptrdiff_t k, ptrdiff_t width)
{
    const ptrdiff_t last = width > w->lanes ? width - w->lanes : 0;
    return k * w->lanes < last ? k * w->lanes : last;
}

/* Sum the columns [begin, end) of rows [from, to), in place or copied to w->room. */
static inline void bn_rows(bn_work *w, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t from, ptrdiff_t to)
{
    const bn_exact_job *job = w->job;
    const ptrdiff_t own = end - begin, width = w->real && own < w->lanes ? w->lanes : own;
    const ptrdiff_t strips = (width + w->lanes - 1) / w->lanes, size = (ptrdiff_t)w->size;
    const int taken = bn_is_taken(job) || width > own;
    ptrdiff_t n = 0;
    for (ptrdiff_t i = from; i < to; i += n) {
        n = w->real && i == from ? BN_FIRST : (ptrdiff_t)1 << w->r;
        n = n < to - i ? n : to - i;
        const char *x = taken ? w->room : (const char *)job->x + (i * job->width + begin) * size;
        const ptrdiff_t stride = taken ? width : job->width, row = stride * size;
        for (ptrdiff_t k = 0; taken && k < n; k++) {
            char *line = w->room + k * row;
            bn_take(w, (i + k) * job->width + begin, own, line);
            memset(line + own * size, 0, (size_t)((width - own) * size));
            if (job->mask)
                bn_mask(line, own, w->size, job->mask + (i + k) * job->widen * job->inner, w->place);
        }
        for (ptrdiff_t k = 0; k < strips; k++) {
            const ptrdiff_t at = bn_strip_at(w, k, width) * size, lines = w->wide ? 2 : 1;
            const bn_next dense = {x + n * row + k * lines * n * 64, 64, n * 64}, sparse = {x + n * row + at, row, 64};
            const bn_next none = {x, 0, 0};
            bn_add_strip(w, k, x + at, n, stride, width < w->lanes ? width : w->lanes, 0,
                         taken ? &none : width == stride ? &dense : &sparse);
        }
        bn_finish_block(w, strips, n, 0);
    }
    bn_finish_strips(w, strips, 0);
}

static inline void bn_columns(bn_work *w, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t from, ptrdiff_t to)
{
    const bn_exact_job *job = w->job;
    const ptrdiff_t each = job->channels * job->inner, width = end - begin;
    const ptrdiff_t strips = (width + w->lanes - 1) / w->lanes;
    for (ptrdiff_t k = 0; k < strips; k++)
        for (ptrdiff_t j = 0; j < w->lanes; j++) {
            const ptrdiff_t at = bn_strip_at(w, k, width) + j;
            const int own = at >= k * w->lanes && at < width;
            w->channel[k * w->lanes + j] = own ? (begin + at) / job->inner % job->channels - w->total->begin : -1;
        }
    for (ptrdiff_t j = 0; job->mask && j < width; j++)
        w->place[j] = (begin + j) / each * job->inner + (begin + j) % job->inner;
    bn_rows(w, begin, end, from, to);
}

static inline void bn_columns_task(bn_work *w, ptrdiff_t piece, ptrdiff_t group)
{
    const bn_exact_job *job = w->job;
    const ptrdiff_t each = job->channels * job->inner, rows = job->outer / job->widen;
    const ptrdiff_t begin = group * job->group, from = piece * job->piece;
    bn_columns(w, begin, begin + job->group < job->width ? begin + job->group : job->width, from,
               from + job->piece < rows ? from + job->piece : rows);
    const ptrdiff_t left = job->outer % job->widen;
    if (left == 0 || piece + 1 < job->pieces || group > 0)
        return;
    bn_exact_job last = *job;   /* a shorter row: the outer positions that do not fill a row */
    last.width = left * each;
    last.x = (const char *)job->x + (size_t)((job->outer - left) * each) * bn_size_of(job->kind);
    last.mask = job->mask ? job->mask + (job->outer - left) * job->inner : NULL;
    w->job = &last;
    for (ptrdiff_t at = 0; at < last.width; at += BN_SPAN)
        bn_columns(w, at, at + BN_SPAN < last.width ? at + BN_SPAN : last.width, 0, 1);
    w->job = job;
}

/* Sum rows of one channel, in blocks. Until there is a window, blocks are short. */
static inline void bn_run_rows(bn_work *w, const char *x, ptrdiff_t rows, int ahead)
{
    const ptrdiff_t row = w->lanes * (ptrdiff_t)w->size;
    for (ptrdiff_t i = 0, n = 0; i < rows; i += n, x += n * row) {
        n = w->real && w->strips[0].least[0] == INFINITY ? BN_FIRST : (ptrdiff_t)1 << w->r;
        n = n < rows - i ? n : rows - i;
        const bn_next next = {ahead ? x + n * row : x, ahead ? 64 : 0, ahead ? n * 64 : 0};
        bn_add_strip(w, 0, x, n, w->lanes, w->lanes, 1, &next);
        bn_finish_block(w, 1, n, 1);
    }
}

/* Sum values of one channel. Short runs, and values that do not fill a row, are collected in w->room; *held: how many.
 * */
static inline void bn_run(bn_work *w, ptrdiff_t *held, ptrdiff_t at, ptrdiff_t n, const unsigned char *mask)
{
    const ptrdiff_t size = (ptrdiff_t)w->size, most = w->lanes << w->r;
    if (!bn_is_taken(w->job) && n >= BN_DIRECT) {
        bn_run_rows(w, (const char *)w->job->x + at * size, n / w->lanes, 1);
        at += n / w->lanes * w->lanes;
        n %= w->lanes;
    }
    while (n > 0) {
        const ptrdiff_t some = n < most - *held ? n : most - *held;
        bn_take(w, at, some, w->room + *held * size);
        if (mask) {
            bn_mask(w->room + *held * size, some, w->size, mask, NULL);
            mask += some;
        }
        at += some;
        n -= some;
        *held += some;
        if (*held == most) {
            bn_run_rows(w, w->room, most / w->lanes, 0);
            *held = 0;
        }
    }
}

static inline void bn_runs_task(bn_work *w, ptrdiff_t piece, ptrdiff_t group)
{
    const bn_exact_job *job = w->job;
    const ptrdiff_t from = piece * job->piece, all = job->outer * job->segments, begin = group * job->group;
    const ptrdiff_t to = from + job->piece < all ? from + job->piece : all;
    const ptrdiff_t end = begin + job->group < job->channels ? begin + job->group : job->channels;
    for (ptrdiff_t c = begin; c < end; c++) {
        ptrdiff_t held = 0;
        for (ptrdiff_t j = 0; j < w->lanes; j++)
            w->channel[j] = c - w->total->begin;
        for (ptrdiff_t i = from; i < to; i++) {
            const ptrdiff_t o = i / job->segments, at = i % job->segments * job->segment;
            const ptrdiff_t n = job->inner - at < job->segment ? job->inner - at : job->segment;
            bn_run(w, &held, (o * job->channels + c) * job->inner + at, n,
                   job->mask ? job->mask + o * job->inner + at : NULL);
        }
        const ptrdiff_t rows = (held + w->lanes - 1) / w->lanes;
        memset(w->room + held * (ptrdiff_t)w->size, 0, (size_t)(rows * w->lanes - held) * w->size);
        bn_run_rows(w, w->room, rows, 0);
        bn_finish_strips(w, 1, 1);
    }
}

/* Run task t: its sums go to its own total. */
static inline void bn_exact_task(bn_exact_job *job, ptrdiff_t t)
{
    const int half = job->kind == BN_HALF || job->kind == BN_BFLOAT, wide = job->kind == BN_FLOAT64;
    const int real = half || wide || job->kind == BN_FLOAT32;
    bn_work w = {job, job->totals + t, half ? 4 : bn_size_of(job->kind), wide, real, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const ptrdiff_t width = job->runs ? 0 : job->group < BN_SPAN ? BN_SPAN : job->group;
    w.lanes = real ? BN_LANES : job->runs ? 64 : BN_SPAN_I;
    const ptrdiff_t strips = job->runs ? 1 : (width + w.lanes - 1) / w.lanes;
    const ptrdiff_t row = job->runs ? w.lanes : job->group;
    w.r = real ? (w.wide ? 7 : 8) : bn_is_taken(job) || job->runs ? 8 : 14;
    while (w.r > 5 && real && row * (ptrdiff_t)w.size << w.r > BN_ROOM)
        w.r--;
    const int copied = real || job->runs || bn_is_taken(job);   /* columns of integers are read in place */
    const size_t room = copied ? (size_t)(row < w.lanes ? w.lanes : row) * w.size << w.r : 0;
    const size_t state = (size_t)strips * (real ? sizeof(bn_strip) : sizeof(bn_sums));
    const size_t channels = (size_t)(strips * w.lanes) * sizeof(ptrdiff_t);
    char *memory = (char *)malloc(state + 2 * channels + room + 64);
    if (!memory) {
        job->failed = 1;
        return;
    }
    w.strips = (bn_strip *)(memory + (-(uintptr_t)memory & 63));
    w.sums = (bn_sums *)w.strips;
    w.channel = (ptrdiff_t *)((char *)w.strips + state);
    w.place = (ptrdiff_t *)((char *)w.channel + channels);
    w.room = (char *)w.place + channels;
    for (ptrdiff_t k = 0; real && k < strips; k++)
        bn_start_closed(w.strips + k, w.wide);
    if (!real)
        memset(w.sums, 0, state);
    const unsigned before = bn_standard_arithmetic();
    (job->runs ? bn_runs_task : bn_columns_task)(&w, t / job->groups, t % job->groups);
    bn_arithmetic_as_before(before);
    free(memory);
}

#endif
