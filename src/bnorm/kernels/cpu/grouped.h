/* Sums by groups: each position of a table has a code, the number of its group, or -1 for none.
 *
 * The sums of a group are taken about its first value, so that a constant group is exact. Rows are added in the order
 * of the positions; after every BN_FLUSH_ROWS rows of a group its sums are added to longer sums. If the first value
 * turns out to be so far from the mean that squares have lost digits, the group is summed once more, about its mean.
 * That mean has lost digits too, so if the first value was an outlier of next to no weight this is repeated.
 * How positions are cut into blocks depends on the shape alone, and the sums of a group do not depend on which other
 * groups its task has. So no bit depends on threads.
 *
 * The codes of a block are read before its rows, so that the sums which the rows need can be fetched ahead. */
#ifndef BNORM_GROUPED_H
#define BNORM_GROUPED_H

#include "grouped_codes.h"
#include "grouped_turns.h"

enum {
    BN_LONG_RUN = 16,       /* values of a single channel that are summed side by side */
    BN_FLUSH_ROWS = 256,    /* rows of a group after which its sums are added to longer sums */
    BN_FAR_SQUARES = 64,    /* squares about the center may be this many times the squares about the mean */
    BN_MOST_CENTERS = 48,   /* of a group: each is 15 digits nearer to the mean, and float64 spans 632 of them */
    BN_GROUPS_OF_RANGE = 64,/* adjacent groups that one task sums, so that no two tasks write to one cache line */
    BN_ROWS_AHEAD = 8,      /* rows between the fetch of a group's sums and their use */
    BN_NEAR_BYTES = 1 << 18 /* sums that need no fetching, as they stay in a near cache */
};

enum { BN_HOLES = 1, BN_CENTERED = 2, BN_FLUSHED = 4, BN_AGAIN = 8 };   /* flags of a group */

typedef struct {
    double n;               /* the weight of its rows since the last flush */
    uint32_t rows, flags;
} bn_group;

/* A table whose rows have `width` numbers, and the sums of the groups of a piece. */
typedef struct {
    bn_positions x;
    const void *codes;
    int wide;               /* codes have 64 bits, else 32 */
    const double *weight;   /* of each position, or NULL */
    ptrdiff_t width, least, groups;     /* least: the first group of the piece */
    int skipna;
    int range, ranges;      /* this task's share of the groups, and the number of shares, a power of two */
    bn_group *group;
    double *sums;           /* [groups][3][width]: center, sum (x - center), sum (x - center)^2 */
    double *rest;           /* [groups][1 + 3 width]: weight; weight of values that are not NaN; both longer sums */
} bn_grouped;

/* Of the n <= BN_CODES positions from `begin` on, write those that this task sums to `row`, and their groups, counted
 * from t->least, to `code`. Return their number. again: only groups that are summed once more. */
BN_INLINE ptrdiff_t bn_select(const bn_grouped *t, ptrdiff_t begin, ptrdiff_t n, int again, int32_t *row, int32_t *code)
{
    ptrdiff_t m = 0;
    int32_t outside = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        row[i] = (int32_t)i;
    if (t->wide) {
        const int64_t *codes = (const int64_t *)t->codes + begin;
        for (ptrdiff_t i = 0; i < n; i++)
            outside |= code[i] = (int32_t)(codes[i] - t->least);
    } else {
        const int32_t *codes = (const int32_t *)t->codes + begin, least = (int32_t)t->least;
        for (ptrdiff_t i = 0; i < n; i++)
            outside |= code[i] = codes[i] - least;
    }
    if (outside >= 0 && t->ranges == 1 && !t->weight && !again)
        return n;
    for (ptrdiff_t i = 0; i < n; i++) {
        const int32_t g = code[i];
        int mine = (g >= 0) & ((g / BN_GROUPS_OF_RANGE & (t->ranges - 1)) == t->range);
        if (t->weight)
            mine &= t->weight[begin + i] != 0;
        if (again && mine)
            mine = (t->group[g].flags & BN_AGAIN) != 0;
        row[m] = (int32_t)i;
        code[m] = g;
        m += mine;
    }
    return m;
}

/* Add the sums of a group to its longer sums, after BN_FLUSH_ROWS rows. */
static void bn_flush_group(bn_group *group, double *sums, double *rest, ptrdiff_t width)
{
    rest[0] += group->n;
    group->n = 0;
    group->flags |= BN_FLUSHED;
    for (ptrdiff_t c = 0; c < 2 * width; c++) {
        rest[1 + width + c] += sums[width + c];
        sums[width + c] = 0;
    }
}

BN_INLINE double bn_group_weight(const bn_group *group, const double *rest)
{
    return group->flags & BN_FLUSHED ? rest[0] + group->n : group->n;
}

typedef struct { double n, center, sum, square; } bn_group_sums;

/* Return the total sums of channel c of a group. */
BN_INLINE bn_group_sums bn_sums_of(const bn_grouped *t, ptrdiff_t g, ptrdiff_t c)
{
    const ptrdiff_t width = t->width;
    const bn_group *group = t->group + g;
    const double *sums = t->sums + g * 3 * width, *rest = t->rest + g * (3 * width + 1);
    bn_group_sums all = {0, sums[c], sums[width + c], sums[2 * width + c]};
    all.n = group->flags & BN_HOLES ? rest[1 + c] : bn_group_weight(group, rest);
    if (group->flags & BN_FLUSHED) {
        all.sum += rest[1 + width + c];
        all.square += rest[1 + 2 * width + c];
    }
    return all;
}

BN_INLINE double bn_group_m2(bn_group_sums s)
{
    const double m2 = s.square - s.sum * (s.sum / s.n);
    return m2 < 0.0 ? 0.0 : m2;
}

/* Give groups of this task whose center is far from the mean a better center, and reset their sums. Return whether
 * there are any. A group of fewer than BN_FAR_SQUARES rows that weigh the same is not one, whatever its values are,
 * unless its squares have overflowed: it is only looked at if some have. */
static int bn_recenter_groups(bn_grouped *t, int overflowed)
{
    const ptrdiff_t width = t->width;
    int some = 0;
    for (ptrdiff_t g = 0; g < t->groups; g++) {
        bn_group *group = t->group + g;
        double *sums = t->sums + g * 3 * width, *rest = t->rest + g * (3 * width + 1);
        int far = 0;
        if ((g / BN_GROUPS_OF_RANGE & (t->ranges - 1)) != t->range || !(group->flags & BN_CENTERED))
            continue;
        group->flags &= ~(uint32_t)BN_AGAIN;
        if (group->rows < BN_FAR_SQUARES && !t->weight && !overflowed)
            continue;
        for (ptrdiff_t c = 0; c < width; c++) {
            const bn_group_sums s = bn_sums_of(t, g, c);
            const double center = s.center + s.sum / s.n;
            if (s.n > 0 && !(s.square <= BN_FAR_SQUARES * bn_group_m2(s)) && bn_finite(center) && center != s.center) {
                sums[c] = center;
                far = 1;
            }
        }
        if (far) {
            memset(sums + width, 0, 2 * (size_t)width * sizeof *sums);
            memset(rest, 0, (3 * (size_t)width + 1) * sizeof *rest);
            group->n = 0;
            group->rows = 0;
            group->flags = BN_CENTERED | BN_AGAIN | (group->flags & BN_HOLES);
            some = 1;
        }
    }
    return some;
}

/* Merge the sums of channel c of a group into those of earlier pieces: four numbers of `parts`, `apart` numbers apart.
 * */
static void bn_merge_group(const bn_grouped *t, ptrdiff_t g, ptrdiff_t c, double *parts, ptrdiff_t apart)
{
    const bn_group_sums s = bn_sums_of(t, g, c);
    double n = parts[0], mean = parts[apart], m2 = parts[2 * apart], low = parts[3 * apart];
    if (s.n == 0)
        return;
    const double step = s.sum / s.n, high = s.center + step, rest = (s.center - high) + step;
    if (n == 0) {
        n = s.n;
        mean = high;
        m2 = bn_group_m2(s);
        low = rest;
    } else {
        bn_merge(&n, &mean, &m2, &low, s.n, high, bn_group_m2(s), rest);
    }
    parts[0] = n;
    parts[apart] = mean;
    parts[2 * apart] = m2;
    parts[3 * apart] = low;
}

/* Merge the groups from begin to end that a piece has into `parts`, [4][groups][width]. */
static void bn_merge_piece(const bn_grouped *t, ptrdiff_t begin, ptrdiff_t end, double *parts, ptrdiff_t groups)
{
    const ptrdiff_t last = t->least + t->groups, width = t->width;
    for (ptrdiff_t g = begin > t->least ? begin : t->least; g < end && g < last; g++)
        for (ptrdiff_t c = 0; c < width && t->group[g - t->least].flags & BN_CENTERED; c++)
            bn_merge_group(t, g - t->least, c, parts + g * width + c, groups * width);
}

/* Let the numbers of these groups, after all pieces, be those that `moments` finds if some are not finite. Return
 * whether squares have overflowed. */
static int bn_finish_groups(ptrdiff_t begin, ptrdiff_t end, double *parts, ptrdiff_t apart)
{
    int overflowed = 0;
    for (ptrdiff_t i = begin; i < end; i++) {
        const double mean = parts[apart + i] + parts[3 * apart + i];
        if (bn_finite(parts[2 * apart + i]) && bn_finite(mean))
            continue;
        parts[apart + i] = bn_plain(mean);
        parts[2 * apart + i] = bn_plain(bn_squares(mean, parts[2 * apart + i]));
        parts[3 * apart + i] = bn_plain(parts[3 * apart + i]);
        overflowed |= parts[2 * apart + i] == BN_INFINITY;
    }
    return overflowed;
}

/* Add `rows` rows of n channels to their sums, in registers. Return 0, with nothing changed, if there is a NaN to skip.
 * */
#define BN_SUM_ROWS(n)                                                                                                \
    BN_INLINE int bn_sum_rows_##n(const double *x, ptrdiff_t width, ptrdiff_t rows, const double *weight,             \
                                  double *sums, int skipna)                                                           \
    {                                                                                                                 \
        bn_lanes_##n center, sum, square, v;                                                                          \
        double out[n];                                                                                                \
        int missing = 0;                                                                                              \
        memcpy(&center, sums, sizeof center);                                                                         \
        memcpy(&sum, sums + width, sizeof sum);                                                                       \
        memcpy(&square, sums + 2 * width, sizeof square);                                                             \
        for (ptrdiff_t j = 0; j < rows; j++) {                                                                        \
            memcpy(&v, x + j * width, sizeof v);                                                                      \
            BN_LANES(n, AT(v) = AT(v) - AT(center))                                                                   \
            if (weight) {                                                                                             \
                const double w = weight[j];                                                                           \
                BN_LANES(n, AT(sum) = AT(sum) + w * AT(v))                                                            \
                BN_LANES(n, AT(square) = AT(square) + w * AT(v) * AT(v))                                              \
            } else {                                                                                                  \
                BN_LANES(n, AT(sum) = AT(sum) + AT(v))                                                                \
                BN_LANES(n, AT(square) = AT(square) + AT(v) * AT(v))                                                  \
            }                                                                                                         \
        }                                                                                                             \
        if (skipna) {                                                                                                 \
            memcpy(out, &sum, sizeof out);                                                                            \
            for (int c = 0; c < (n); c++)                                                                             \
                missing |= out[c] != out[c];                                                                          \
            if (missing)                                                                                              \
                return 0;                                                                                             \
        }                                                                                                             \
        memcpy(sums + width, &sum, sizeof sum);                                                                       \
        memcpy(sums + 2 * width, &square, sizeof square);                                                             \
        return 1;                                                                                                     \
    }
BN_SUM_ROWS(8)
BN_SUM_ROWS(4)
BN_SUM_ROWS(2)
BN_SUM_ROWS(1)

/* Do the same for n adjacent values of a single channel, as eight partial sums. */
BN_INLINE int bn_sum_run(const double *x, ptrdiff_t n, const double *weight, double *sums, int skipna)
{
    const double middle = sums[0];
    bn_lanes_8 sum, square, v, w;
    double s[8] = {0}, q[8] = {0};
    memcpy(&sum, s, sizeof sum);
    memcpy(&square, s, sizeof square);
    for (; n >= 8; n -= 8, x += 8) {
        memcpy(&v, x, sizeof v);
        BN_LANES(8, AT(v) = AT(v) - middle)
        if (weight) {
            memcpy(&w, weight, sizeof w);
            weight += 8;
            BN_LANES(8, AT(w) = AT(w) * AT(v))
            BN_LANES(8, AT(sum) = AT(sum) + AT(w))
            BN_LANES(8, AT(square) = AT(square) + AT(w) * AT(v))
        } else {
            BN_LANES(8, AT(sum) = AT(sum) + AT(v))
            BN_LANES(8, AT(square) = AT(square) + AT(v) * AT(v))
        }
    }
    memcpy(s, &sum, sizeof s);
    memcpy(q, &square, sizeof q);
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = x[i] - middle, wd = weight ? weight[i] * d : d;
        s[i] += wd;
        q[i] += wd * d;
    }
    const double total = bn_whole(s);
    if (skipna && total != total)
        return 0;
    sums[1] += total;
    sums[2] += bn_whole(q);
    return 1;
}

/* Add rows with NaN value by value. count: the weight of the values of each channel that are not NaN. */
static void bn_sum_some(const double *x, ptrdiff_t width, ptrdiff_t rows, const double *weight, double *sums,
                        double *count, ptrdiff_t channels, int again)
{
    for (ptrdiff_t j = 0; j < rows; j++) {
        const double w = weight ? weight[j] : 1.0;
        for (ptrdiff_t c = 0; c < channels; c++) {
            const double v = x[j * width + c];
            if (v != v)
                continue;
            if (count[c] == 0 && !again)
                sums[c] = v;
            const double d = v - sums[c], wd = w * d;
            count[c] += w;
            sums[width + c] += wd;
            sums[2 * width + c] += wd * d;
        }
    }
}

/* At the first NaN of a group, give each channel a count of its own. done: channels that already have these rows. */
static void bn_count_apart(bn_group *group, double before, ptrdiff_t rows, const double *weight, double *rest,
                           ptrdiff_t width, ptrdiff_t done)
{
    const double so_far = group->flags & BN_FLUSHED ? rest[0] + before : before;
    for (ptrdiff_t c = 0; c < width; c++) {
        rest[1 + c] = so_far;
        for (ptrdiff_t j = 0; j < rows && c < done; j++)
            rest[1 + c] += weight ? weight[j] : 1.0;
    }
    group->flags |= BN_HOLES;
}

/* Add rows of one group, at most as many as are left until its next flush. */
BN_INLINE void bn_add_rows(const bn_grouped *t, const double *x, ptrdiff_t rows, const double *weight, bn_group *group,
                           double *sums, double *rest)
{
    const ptrdiff_t width = t->width;
    const double before = group->n;
    ptrdiff_t c = 0;
    if (weight)
        for (ptrdiff_t j = 0; j < rows; j++)
            group->n += weight[j];
    else
        group->n += (double)rows;
    while (c < width) {
        const ptrdiff_t left = width - c, n = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        int done = 0;
        if (!(group->flags & BN_HOLES)) {
            if (n == 8)
                done = bn_sum_rows_8(x + c, width, rows, weight, sums + c, t->skipna);
            else if (n == 4)
                done = bn_sum_rows_4(x + c, width, rows, weight, sums + c, t->skipna);
            else if (n == 2)
                done = bn_sum_rows_2(x + c, width, rows, weight, sums + c, t->skipna);
            else if (width == 1 && rows >= BN_LONG_RUN)
                done = bn_sum_run(x, rows, weight, sums, t->skipna);
            else
                done = bn_sum_rows_1(x + c, width, rows, weight, sums + c, t->skipna);
        }
        if (!done) {
            if (!(group->flags & BN_HOLES))
                bn_count_apart(group, before, rows, weight, rest, width, c);
            bn_sum_some(x + c, width, rows, weight, sums + c, rest + 1 + c, n, group->flags & BN_AGAIN);
        }
        c += n;
    }
    group->rows += (uint32_t)rows;
    if (group->rows % BN_FLUSH_ROWS == 0)
        bn_flush_group(group, sums, rest, width);
}

/* Add the positions from begin to end to the sums of this task's groups; with `again`, only to groups with a new
 * center. room: memory for a block, max(BN_TILE, BN_LEAST_ROWS * width) doubles. */
BN_CLONES static void bn_sum_groups(const bn_grouped *t, ptrdiff_t begin, ptrdiff_t end, int again, double *room)
{
    const ptrdiff_t width = t->width, most = 3 * width, block = bn_tile_rows(width);
    const int far = t->groups * most * (ptrdiff_t)sizeof(double) > BN_NEAR_BYTES;
    int32_t row[BN_CODES], code[BN_CODES + 1];
    for (; begin < end; begin += block) {
        const ptrdiff_t size = end - begin < block ? end - begin : block;
        const ptrdiff_t m = bn_select(t, begin, size, again, row, code);
        const double *weight = t->weight ? t->weight + begin : NULL;
        if (m == 0)
            continue;
        const double *x = bn_take_tile(&t->x, begin, size, room);
        code[m] = code[m - 1];      /* a group to fetch after the last */
        for (ptrdiff_t k = 0; k < m;) {
            const ptrdiff_t g = code[k];
            bn_group *group = t->group + g;
            double *sums = t->sums + g * most, *rest = t->rest + g * (most + 1);
            ptrdiff_t rows = 1;
            while (k + rows < m && code[k + rows] == g && row[k + rows] == row[k] + rows)
                rows++;
            if (far) {
                const ptrdiff_t next = code[k + BN_ROWS_AHEAD < m ? k + BN_ROWS_AHEAD : m];
                bn_fetch_line((const char *)(t->group + next));
                bn_fetch_numbers(t->sums + next * most, most);
            }
            if (!(group->flags & BN_CENTERED)) {
                memcpy(sums, x + row[k] * width, (size_t)width * sizeof *sums);
                memset(sums + width, 0, 2 * (size_t)width * sizeof *sums);
                group->flags |= BN_CENTERED;
            }
            while (rows) {
                const ptrdiff_t left = BN_FLUSH_ROWS - (ptrdiff_t)(group->rows % BN_FLUSH_ROWS);
                const ptrdiff_t some = rows < left ? rows : left;
                bn_add_rows(t, x + row[k] * width, some, weight ? weight + row[k] : NULL, group, sums, rest);
                k += some;
                rows -= some;
            }
        }
    }
}

#endif
