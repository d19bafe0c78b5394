/* Conversion between a table in memory and rows of doubles, a block at a time. Four columns at a time are transposed to
 * rows in registers. */
#ifndef BNORM_GROUPED_TURNS_H
#define BNORM_GROUPED_TURNS_H

#include "grouped_tiles.h"

enum { BN_STAGE = 64 };     /* numbers of a column that are transposed at a time */

/* The columns of all channels from some position on, up to the end of their contiguous memory. */
typedef struct {
    const char *x;                  /* the first channel's column; the others follow `apart` bytes from one another */
    const void *const *columns;     /* or: column c continues at columns[c] + offset bytes */
    ptrdiff_t apart, offset, left;  /* left: positions until the end */
} bn_stretch;

BN_INLINE bn_stretch bn_stretch_at(const bn_positions *t, ptrdiff_t begin)
{
    const ptrdiff_t size = bn_size_of(t->kind);
    bn_stretch s = {NULL, NULL, t->inner * size, 0, 0};
    if (t->columns) {
        ptrdiff_t first = 0, last = t->stretches - 1;
        while (first < last) {
            const ptrdiff_t middle = first + (last - first) / 2;
            if (t->ends[middle] <= begin)
                first = middle + 1;
            else
                last = middle;
        }
        s.columns = t->columns + first * t->channels;
        s.offset = (begin - (first ? t->ends[first - 1] : 0)) * size;
        s.left = t->ends[first] - begin;
    } else {
        const ptrdiff_t o = begin / t->inner, i = begin % t->inner;
        s.x = (const char *)t->x + (o * t->channels * t->inner + i) * size;
        s.left = t->inner - i;
    }
    return s;
}

BN_INLINE const char *bn_column(const bn_stretch *s, ptrdiff_t c)
{
    return s->columns ? (const char *)s->columns[c] + s->offset : s->x + c * s->apart;
}

/* Transpose four times four numbers: to[j][onto + i] = from[i][at + j]. */
BN_INLINE void bn_turn(const double *const *from, ptrdiff_t at, double *const *to, ptrdiff_t onto)
{
#if defined(__GNUC__) || defined(__clang__)
    bn_lanes_4 a, b, c, d;
    memcpy(&a, from[0] + at, sizeof a);
    memcpy(&b, from[1] + at, sizeof b);
    memcpy(&c, from[2] + at, sizeof c);
    memcpy(&d, from[3] + at, sizeof d);
    const bn_lanes_4 ab = BN_CHOSEN(a, b, 0, 4, 2, 6), ba = BN_CHOSEN(a, b, 1, 5, 3, 7);
    const bn_lanes_4 cd = BN_CHOSEN(c, d, 0, 4, 2, 6), dc = BN_CHOSEN(c, d, 1, 5, 3, 7);
    a = BN_CHOSEN(ab, cd, 0, 1, 4, 5);
    b = BN_CHOSEN(ba, dc, 0, 1, 4, 5);
    c = BN_CHOSEN(ab, cd, 2, 3, 6, 7);
    d = BN_CHOSEN(ba, dc, 2, 3, 6, 7);
    memcpy(to[0] + onto, &a, sizeof a);
    memcpy(to[1] + onto, &b, sizeof b);
    memcpy(to[2] + onto, &c, sizeof c);
    memcpy(to[3] + onto, &d, sizeof d);
#else
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++)
            to[j][onto + i] = from[i][at + j];
#endif
}

/* Write four columns of n numbers as rows that are `step` doubles apart. */
BN_INLINE void bn_rows_of(const double *const *columns, ptrdiff_t n, double *rows, ptrdiff_t step)
{
    ptrdiff_t i = 0;
    for (; i + 4 <= n; i += 4) {
        double *const to[4] = {rows, rows + step, rows + 2 * step, rows + 3 * step};
        bn_turn(columns, i, to, 0);
        rows += 4 * step;
    }
    for (; i < n; i++, rows += step)
        for (int c = 0; c < 4; c++)
            rows[c] = columns[c][i];
}

/* Do the reverse; the columns are n doubles apart. */
BN_INLINE void bn_columns_of(const double *rows, ptrdiff_t step, ptrdiff_t n, double *columns)
{
    double *const to[4] = {columns, columns + n, columns + 2 * n, columns + 3 * n};
    ptrdiff_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const double *const from[4] = {rows, rows + step, rows + 2 * step, rows + 3 * step};
        bn_turn(from, 0, to, i);
        rows += 4 * step;
    }
    for (; i < n; i++, rows += step)
        for (int c = 0; c < 4; c++)
            to[c][i] = rows[c];
}

/* Write n positions of a stretch as rows, and fetch as many that come next. */
BN_INLINE void bn_take_stretch(const bn_positions *t, const bn_stretch *s, ptrdiff_t n, double *rows)
{
    const ptrdiff_t channels = t->channels, size = bn_size_of(t->kind);
    double stage[4][BN_STAGE];
    ptrdiff_t c = 0;
    for (; c + 4 <= channels; c += 4) {
        for (ptrdiff_t i = 0; i < n; i += BN_STAGE) {
            const ptrdiff_t some = n - i < BN_STAGE ? n - i : BN_STAGE;
            const double *columns[4];
            for (int k = 0; k < 4; k++) {
                const char *column = bn_column(s, c + k) + i * size;
                for (ptrdiff_t b = 0; b < some * size; b += BN_LINE)
                    bn_fetch_line(column + n * size + b);
                columns[k] = (const double *)column;
                if (t->kind != BN_FLOAT64) {
                    bn_read_numbers(t->kind, column, some, stage[k], 1);
                    columns[k] = stage[k];
                }
            }
            bn_rows_of(columns, some, rows + i * channels + c, channels);
        }
    }
    for (; c < channels; c++)
        bn_read_numbers(t->kind, bn_column(s, c), n, rows + c, channels);
}

/* Return the n positions from `begin` on as rows of doubles: the memory of the table itself, or `room` with copies. */
BN_CLONES static const double *bn_take_tile(const bn_positions *t, ptrdiff_t begin, ptrdiff_t n, double *room)
{
    const ptrdiff_t channels = t->channels;
    if (!t->columns && (t->inner == 1 || channels == 1)) {
        const char *x = (const char *)t->x + begin * channels * bn_size_of(t->kind);
        if (t->kind == BN_FLOAT64)
            return (const double *)x;
        bn_read_numbers(t->kind, x, n * channels, room, 1);
        return room;
    }
    for (double *to = room; n > 0;) {
        const bn_stretch s = bn_stretch_at(t, begin);
        const ptrdiff_t some = s.left < n ? s.left : n;
        bn_take_stretch(t, &s, some, to);
        to += some * channels;
        begin += some;
        n -= some;
    }
    return room;
}

/* Copy bytes past the caches, except at the ends, where they do not fill cache lines. */
static inline void bn_send_bytes(char *to, const char *from, ptrdiff_t bytes)
{
    const ptrdiff_t before = (ptrdiff_t)(-(uintptr_t)to & (BN_LINE - 1));
    if (before < bytes) {
        memcpy(to, from, (size_t)before);
        to += before, from += before, bytes -= before;
        for (; bytes >= BN_LINE; to += BN_LINE, from += BN_LINE, bytes -= BN_LINE)
            bn_send_line(to, from);
    }
    memcpy(to, from, (size_t)bytes);
}

/* Write n doubles as numbers of some kind; sent: past the caches. */
BN_INLINE void bn_put_numbers(int kind, char *y, ptrdiff_t n, const double *from, int sent)
{
    const ptrdiff_t size = bn_size_of(kind);
    double stage[4 * BN_STAGE];
    if (!sent) {
        bn_write_numbers(kind, y, n, from);
    } else if (kind == BN_FLOAT64) {
        bn_send_bytes(y, (const char *)from, n * size);
    } else {
        for (ptrdiff_t i = 0; i < n; i += 4 * BN_STAGE) {
            const ptrdiff_t some = n - i < 4 * BN_STAGE ? n - i : 4 * BN_STAGE;
            bn_write_numbers(kind, stage, some, from + i);
            bn_send_bytes(y + i * size, (const char *)stage, some * size);
        }
    }
}

/* Do the reverse of bn_take_tile. room: memory of the size of the rows. */
BN_CLONES static void bn_put_tile(const bn_positions *t, ptrdiff_t begin, ptrdiff_t n, const double *from, int sent,
                                  double *room)
{
    const ptrdiff_t channels = t->channels, size = bn_size_of(t->kind);
    if (t->inner == 1 || channels == 1) {
        bn_put_numbers(t->kind, (char *)t->x + begin * channels * size, n * channels, from, sent);
        return;
    }
    while (n > 0) {
        const bn_stretch s = bn_stretch_at(t, begin);
        const ptrdiff_t some = s.left < n ? s.left : n;
        ptrdiff_t c = 0;
        for (; c + 4 <= channels; c += 4)
            bn_columns_of(from + c, channels, some, room + c * some);
        for (; c < channels; c++)
            for (ptrdiff_t i = 0; i < some; i++)
                room[c * some + i] = from[i * channels + c];
        for (c = 0; c < channels; c++)
            bn_put_numbers(t->kind, (char *)bn_column(&s, c), some, room + c * some, sent);
        from += some * channels;
        begin += some;
        n -= some;
    }
}

#endif
