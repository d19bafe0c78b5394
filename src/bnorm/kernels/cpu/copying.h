/* Copies from one memory order into another.
 *
 * If values that lie side by side in one array lie far apart in the other, a copy in the order of one of them touches
 * another line of the cache for each value. So squares of 16 x 16 values are copied at a time: they fill whole lines of
 * both arrays. */
#ifndef BNORM_COPYING_H
#define BNORM_COPYING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { BN_MOST_AXES = 64, BN_SQUARE = 16, BN_PANEL = 64 };

typedef struct {
    ptrdiff_t n, x, y;      /* the length, and the strides in bytes */
} bn_axis;

typedef struct {
    const char *x;
    char *y;
    ptrdiff_t itemsize, units;      /* a unit, which one thread copies, is a row, or, if turned, a panel */
    int axes, turned;               /* turned: the last axis is the fastest one of y, and the one before it that of x */
    bn_axis axis[BN_MOST_AXES];
} bn_copy;

static ptrdiff_t bn_step(ptrdiff_t stride) { return stride < 0 ? -stride : stride; }

/* Add an axis of more than one value, in the memory order of y. */
static void bn_add_axis(bn_copy *c, bn_axis a)
{
    int i = c->axes++;
    for (; i > 0 && bn_step(c->axis[i - 1].y) < bn_step(a.y); i--)
        c->axis[i] = c->axis[i - 1];
    c->axis[i] = a;
}

/* Join neighboring axes where both arrays allow it, and put the fastest axis of x beside that of y. */
static void bn_plan_copy(bn_copy *c)
{
    int last = 0, fast;
    if (c->axes == 0)
        c->axis[c->axes++] = (bn_axis){1, c->itemsize, c->itemsize};
    for (int i = 1; i < c->axes; i++) {
        bn_axis *a = &c->axis[last], b = c->axis[i];
        if (a->x == b.x * b.n && a->y == b.y * b.n)
            *a = (bn_axis){a->n * b.n, b.x, b.y};
        else
            c->axis[++last] = b;
    }
    c->axes = last + 1;
    fast = last;
    for (int i = last; i >= 0; i--)
        if (bn_step(c->axis[i].x) < bn_step(c->axis[fast].x))
            fast = i;
    c->turned = fast != last;
    for (; c->turned && fast < last - 1; fast++) {
        const bn_axis a = c->axis[fast];
        c->axis[fast] = c->axis[fast + 1];
        c->axis[fast + 1] = a;
    }
    c->units = c->turned ? (c->axis[last - 1].n + BN_PANEL - 1) / BN_PANEL : 1;
    for (int i = 0; i < last - c->turned; i++)
        c->units *= c->axis[i].n;
}

#define BN_COPIES(type)                                                                                               \
    static void bn_copy_tile_##type(const char *x, char *y, bn_axis f, bn_axis l)                                     \
    {                                                                                                                 \
        ptrdiff_t j = 0;                                                                                              \
        if (f.x == sizeof(type) && l.y == sizeof(type) && l.n == BN_SQUARE)                                           \
            for (; j + BN_SQUARE <= f.n; j += BN_SQUARE) {                                                            \
                type square[BN_SQUARE][BN_SQUARE], row[BN_SQUARE];                                                    \
                for (int i = 0; i < BN_SQUARE; i++)                                                                   \
                    memcpy(square[i], x + i * l.x + j * f.x, sizeof row);                                             \
                for (int k = 0; k < BN_SQUARE; k++) {                                                                 \
                    for (int i = 0; i < BN_SQUARE; i++)                                                               \
                        row[i] = square[i][k];                                                                        \
                    memcpy(y + (j + k) * f.y, row, sizeof row);                                                       \
                }                                                                                                     \
            }                                                                                                         \
        for (; j < f.n; j++)                                                                                          \
            for (ptrdiff_t i = 0; i < l.n; i++)                                                                       \
                memcpy(y + j * f.y + i * l.y, x + j * f.x + i * l.x, sizeof(type));                                   \
    }
BN_COPIES(uint8_t)
BN_COPIES(uint16_t)
BN_COPIES(uint32_t)
BN_COPIES(uint64_t)

static void bn_copy_tile(ptrdiff_t itemsize, const char *x, char *y, bn_axis f, bn_axis l)
{
    switch (itemsize) {
    case 1: bn_copy_tile_uint8_t(x, y, f, l); break;
    case 2: bn_copy_tile_uint16_t(x, y, f, l); break;
    case 4: bn_copy_tile_uint32_t(x, y, f, l); break;
    case 8: bn_copy_tile_uint64_t(x, y, f, l); break;
    }
}

/* Copy a unit: panel b of the two axes that begin here, or the row. */
static void bn_copy_unit(const bn_copy *c, const char *x, char *y, ptrdiff_t b)
{
    const bn_axis one = {1, 0, 0};
    bn_axis l = c->axis[c->axes - 1], f = c->turned ? c->axis[c->axes - 2] : one;
    if (!c->turned && l.x == c->itemsize && l.y == c->itemsize) {
        memcpy(y, x, (size_t)(l.n * c->itemsize));
        return;
    }
    x += b * BN_PANEL * f.x;
    y += b * BN_PANEL * f.y;
    f.n = f.n - b * BN_PANEL < BN_PANEL ? f.n - b * BN_PANEL : BN_PANEL;
    const ptrdiff_t n = l.n;
    for (ptrdiff_t i = 0; i < n; i += BN_SQUARE) {
        l.n = n - i < BN_SQUARE ? n - i : BN_SQUARE;
        bn_copy_tile(c->itemsize, x + i * l.x, y + i * l.y, f, l);
    }
}

/* Copy units begin to end. */
static void bn_copy_units(const bn_copy *c, ptrdiff_t begin, ptrdiff_t end)
{
    const int outer = c->axes - 1 - c->turned;
    const ptrdiff_t panels = c->turned ? (c->axis[outer].n + BN_PANEL - 1) / BN_PANEL : 1;
    ptrdiff_t at[BN_MOST_AXES], b = begin % panels, rest = begin / panels;
    const char *x = c->x;
    char *y = c->y;
    for (int i = outer - 1; i >= 0; i--) {
        at[i] = rest % c->axis[i].n;
        rest /= c->axis[i].n;
        x += at[i] * c->axis[i].x;
        y += at[i] * c->axis[i].y;
    }
    for (; begin < end; begin++) {
        bn_copy_unit(c, x, y, b);
        if (++b < panels)
            continue;
        b = 0;
        for (int i = outer - 1; i >= 0; i--) {
            x += c->axis[i].x;
            y += c->axis[i].y;
            if (++at[i] < c->axis[i].n)
                break;
            at[i] = 0;
            x -= c->axis[i].n * c->axis[i].x;
            y -= c->axis[i].n * c->axis[i].y;
        }
    }
}
#endif
