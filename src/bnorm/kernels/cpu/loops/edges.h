/* Rows that are sent past the caches as they are computed, each line straight from the registers; for each line sent,
 * one of the input is fetched. That is faster than to gather lines first: when these are sent one after the other,
 * stores wait for memory and nothing else is done. */
#ifndef BNORM_EDGES_H
#define BNORM_EDGES_H

#include "streams.h"

/* The values at the end of a row that do not fill a vector wait here for the beginning of the next row. The first
 * `skip` bytes of that vector are not part of the output. */
typedef struct {
    char *to;                   /* where the vector goes, or NULL */
    size_t filled, skip;
    bn_ahead *ahead;            /* the walk that fetches what is read */
    char space[4 * BN_LINE];    /* the vector, with space before and behind it */
} bn_edge;

BN_INLINE char *bn_edge_line(bn_edge *edge)
{
    return edge->space + BN_LINE + (-(uintptr_t)edge->space & (BN_LINE - 1));
}

static inline void bn_open_edge(bn_edge *edge, bn_ahead *ahead)
{
    edge->to = NULL;
    edge->filled = edge->skip = 0;
    edge->ahead = ahead;
}

static inline void bn_close_edge(bn_edge *edge)
{
    if (edge->filled > edge->skip)
        memcpy(edge->to + edge->skip, bn_edge_line(edge) + edge->skip, edge->filled - edge->skip);
    edge->filled = edge->skip = 0;
}

/* Advance the walk by `bytes`, which were read. Most of them were fetched while lines were sent; the last line is
 * fetched here. */
static inline void bn_walk_on(bn_ahead *ahead, size_t bytes)
{
    if (ahead->at) {
        bn_fetch_line(ahead->at + bytes - 1);
        bn_advance(ahead, bytes);
    }
}

/* values[j] = VALUE(i + j, p + j) for all elements of the array `values`. */
#define BN_VALUES(values, i, p, VALUE)                                                                                \
    BN_ROLLED                                                                                                         \
    for (int j_ = 0; j_ < (int)(sizeof(values) / sizeof(values)[0]); j_++)                                            \
        (values)[j_] = VALUE((i) + j_, (p) + j_);

#if defined(BN_HAS_STREAM)
/* Returns the offset of `to` in its vector. What waits at the edge is written first if `to` does not continue it. */
static inline size_t bn_row_edge(bn_edge *edge, char *to)
{
    const size_t offset = (uintptr_t)to & (BN_UNIT - 1);
    if (edge->to + edge->filled != to) {
        bn_close_edge(edge);
        edge->to = to - offset;
        edge->filled = edge->skip = offset;
    }
    return offset;
}

/* Computes and sends contiguous rows of n values each, n being at least a line. Value i of all rows is VALUE(i, p),
 * where p is its place in its row. NUMBERS(DO) is DO(h) DO(r) and so on, for the numbers of a row; number h of row k
 * is h[k], and own_h in VALUE. Each computed vector is rotated to its offset in the output and joined with the rest of
 * the vector before it, in registers: if they were joined in memory, the load would wait for everything sent before
 * it. brisk: rows that are aligned are not rotated. */
#define BN_SEND_ROWS(brisk, rows, n, out, edge, NUMBERS, VALUE)                                                       \
    do {                                                                                                              \
        enum { WIDTH_ = BN_UNIT / sizeof(real) };                                                                     \
        const ptrdiff_t odd_ = (n) % WIDTH_, even_ = (n) - odd_;                                                      \
        const size_t rest_ = odd_ * sizeof(real);                                                                     \
        size_t filled_ = bn_row_edge((edge), (char *)(out)), skip_ = (edge)->skip;                                    \
        char *to_ = (edge)->to;                                                                                       \
        const char *ahead_ = (edge)->ahead->at;                                                                       \
        const ptrdiff_t apart_ = (edge)->ahead->apart, third_ = (edge)->ahead->third;                                 \
        bn_unit line_ = bn_take(bn_edge_line(edge)), order_ = bn_order(BN_UNIT - filled_);                            \
        bn_part part_ = bn_first(filled_);                                                                            \
        for (ptrdiff_t k_ = 0; k_ < (rows); k_++) {                                                                   \
            const ptrdiff_t begin_ = k_ * (n);                                                                        \
            real values_[WIDTH_];                                                                                     \
            bn_unit last_ = line_;                                                                                    \
            ptrdiff_t i_ = 0;                                                                                         \
            NUMBERS(BN_OWN_IS)                                                                                        \
            if (odd_) {         /* before anything is sent, which may overwrite what is read */                       \
                BN_VALUES(values_, begin_ + (n) - WIDTH_, (n) - WIDTH_, VALUE)                                        \
                last_ = bn_turned(bn_take(values_), bn_order(2 * BN_UNIT - rest_ - filled_));                         \
            }                                                                                                         \
            if (skip_) {                                                                                              \
                BN_VALUES(values_, begin_, 0, VALUE)                                                                  \
                memcpy(to_ + skip_, values_, BN_UNIT - skip_);                                                        \
                line_ = bn_turned(bn_take(values_), order_);                                                          \
                to_ += BN_UNIT;                                                                                       \
                i_ = WIDTH_;                                                                                          \
                skip_ = 0;                                                                                            \
            }                                                                                                         \
            for (; filled_ == 0 && (brisk) && i_ < even_; i_ += WIDTH_) {       /* aligned: no rotation */            \
                real unit_[WIDTH_];                                                                                   \
                BN_VALUES(unit_, begin_ + i_, i_, VALUE)                                                              \
                BN_SEND_UNIT(bn_take(unit_))                                                                          \
            }                                                                                                         \
            for (; i_ < even_; i_ += WIDTH_) {                                                                        \
                BN_VALUES(values_, begin_ + i_, i_, VALUE)                                                            \
                const bn_unit next_ = bn_turned(bn_take(values_), order_);                                            \
                BN_SEND_UNIT(bn_joined(part_, line_, next_))                                                          \
                line_ = next_;                                                                                        \
            }                                                                                                         \
            if (odd_) {                                                                                               \
                const bn_unit joined_ = bn_joined(part_, line_, last_);                                               \
                filled_ += rest_;                                                                                     \
                line_ = joined_;                                                                                      \
                if (filled_ >= BN_UNIT) {                                                                             \
                    BN_SEND_UNIT(joined_)                                                                             \
                    line_ = last_;                                                                                    \
                    filled_ -= BN_UNIT;                                                                               \
                }                                                                                                     \
                order_ = bn_order(BN_UNIT - filled_);                                                                 \
                part_ = bn_first(filled_);                                                                            \
            }                                                                                                         \
        }                                                                                                             \
        if (filled_)                                                                                                  \
            memcpy(bn_edge_line(edge), &line_, BN_UNIT);                                                              \
        (edge)->to = to_;                                                                                             \
        (edge)->filled = filled_;                                                                                     \
        (edge)->skip = 0;                                                                                             \
        bn_walk_on((edge)->ahead, (rows) * (n) * sizeof(real));                                                       \
    } while (0)
#define BN_SEND_UNIT(unit)                                                                                            \
    if (ahead_ && ((uintptr_t)to_ & (BN_LINE - BN_UNIT)) == 0) {                                                      \
        bn_fetch_lines(ahead_, apart_, third_);                                                                       \
        ahead_ += BN_LINE;                                                                                            \
    }                                                                                                                 \
    bn_send_unit(to_, unit);                                                                                          \
    to_ += BN_UNIT;
#else
#define BN_SEND_ROWS(brisk, rows, n, out, edge, NUMBERS, VALUE) (void)0
#endif
#define BN_OWN_IS(h) const real own_##h = h[k_];
#define BN_NO_NUMBERS(DO)

/* Computes and sends out[i] = VALUE(i, i) for n values, at least a line of them. */
#define BN_SEND_VALUES(brisk, n, out, edge, VALUE) BN_SEND_ROWS(brisk, 1, n, out, edge, BN_NO_NUMBERS, VALUE)

#endif
