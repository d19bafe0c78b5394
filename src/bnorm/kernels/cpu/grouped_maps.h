/* The map by groups: y = (x - mean) scale + shift with the numbers of each position's group, in double precision. A
 * position without a group gets NaN. */
#ifndef BNORM_GROUPED_MAPS_H
#define BNORM_GROUPED_MAPS_H

#include "grouped.h"

typedef struct {
    bn_positions x, y;
    int sent;               /* whether the result is stored past the caches */
    const void *codes;
    int wide;
    ptrdiff_t groups;
    const double *numbers;  /* [groups][3][channels]: mean, scale and shift */
} bn_group_map;

/* odd_n sums v - v, which stays 0 unless a value is infinite or NaN. */
#define BN_MAP_ROW(n)                                                                   \
    for (; c + (n) <= width; c += (n)) {                                                \
        bn_lanes_##n v, a, b;                                                           \
        memcpy(&v, from + c, sizeof v);                                                 \
        memcpy(&a, mean + c, sizeof a);                                                 \
        BN_LANES(n, AT(odd_##n) = AT(odd_##n) + (AT(v) - AT(v)))                        \
        BN_LANES(n, AT(v) = AT(v) - AT(a))                                              \
        memcpy(&a, scale + c, sizeof a);                                                \
        memcpy(&b, shift + c, sizeof b);                                                \
        BN_LANES(n, AT(v) = AT(v) * AT(a) + AT(b))                                      \
        memcpy(to + c, &v, sizeof v);                                                   \
    }

/* Whether n numbers are all 0. */
BN_INLINE int bn_nothing(const void *numbers, int n)
{
    double v[8], sum = 0;
    memcpy(v, numbers, (size_t)n * sizeof *v);
    for (int i = 0; i < n; i++)
        sum += v[i];
    return sum == 0;
}

/* Map the positions from begin to end. Return BN_OUTSIDE, BN_INFINITE or 0. room: memory for two blocks. */
BN_CLONES static int bn_map_groups(const bn_group_map *m, ptrdiff_t begin, ptrdiff_t end, double *room)
{
    const ptrdiff_t width = m->x.channels, most = 3 * width, block = bn_tile_rows(width);
    const int far = m->groups * most * (ptrdiff_t)sizeof(double) > BN_NEAR_BYTES;
    double *y = room + block * width;
    int found = 0;
    for (ptrdiff_t n; begin < end; begin += n) {
        n = end - begin < block ? end - begin : block;
        const double *x = bn_take_tile(&m->x, begin, n, room);
        bn_lanes_8 odd_8;
        bn_lanes_4 odd_4;
        bn_lanes_1 odd_1;
        memset(&odd_8, 0, sizeof odd_8);
        memset(&odd_4, 0, sizeof odd_4);
        memset(&odd_1, 0, sizeof odd_1);
        int alone = 0;      /* whether there are rows without a group, whose values odd_n does not see */
        for (ptrdiff_t j = 0; j < n; j++) {
            const int64_t g = bn_code(m->codes, m->wide, begin + j);
            const double *from = x + j * width;
            double *to = y + j * width;
            if (far && j + BN_ROWS_AHEAD < n) {
                const int64_t next = bn_code(m->codes, m->wide, begin + j + BN_ROWS_AHEAD);
                if ((uint64_t)next < (uint64_t)m->groups)
                    bn_fetch_numbers(m->numbers + next * most, most);
            }
            if ((uint64_t)g < (uint64_t)m->groups) {
                const double *mean = m->numbers + g * most, *scale = mean + width, *shift = scale + width;
                ptrdiff_t c = 0;
                BN_MAP_ROW(8)
                BN_MAP_ROW(4)
                BN_MAP_ROW(1)
            } else {
                for (ptrdiff_t c = 0; c < width; c++)
                    to[c] = BN_NAN;
                alone = 1;
                if (g != -1)
                    return BN_OUTSIDE;
            }
        }
        if (alone || !bn_nothing(&odd_8, 8) || !bn_nothing(&odd_4, 4) || !bn_nothing(&odd_1, 1))
            for (ptrdiff_t i = 0; i < n * width; i++)
                found |= fabs(x[i]) == BN_INFINITY ? BN_INFINITE : 0;
        bn_put_tile(&m->y, begin, n, y, m->sent, room);
    }
#if defined(BN_HAS_STREAM)
    if (m->sent)
        _mm_sfence();
#endif
    return found;
}

#endif
