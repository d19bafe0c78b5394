/* Rows that are sent past the caches as they are computed, each line from the registers it was computed in, while as many
 * are fetched. That is faster than to gather them first: sent one after the other they wait for memory, and nothing else is
 * done. */
#ifndef BNORM_EDGES_H
#define BNORM_EDGES_H

#include "streams.h"

/* What does not fill a line at the end of some rows waits here for the beginning of the next; of its line the first `skip`
 * bytes are not ours. */
typedef struct {
    char *to;                   /* where the line goes, or NULL */
    size_t filled, skip;
    bn_ahead *ahead;            /* the walk over what is read */
    char space[4 * BN_LINE];    /* the line, and as much before and behind it */
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

/* Where the row that goes to `to` begins within its line; a line that it does not continue is closed. */
static inline size_t bn_row_edge(bn_edge *edge, char *to)
{
    const size_t offset = (uintptr_t)to & (BN_LINE - 1);
    if (edge->to + edge->filled != to) {
        bn_close_edge(edge);
        edge->to = to - offset;
        edge->filled = edge->skip = offset;
    }
    return offset;
}

/* Send the line that a row has filled. */
static inline void bn_send_edge(bn_edge *edge)
{
    edge->filled = BN_LINE;
    if (edge->skip)
        bn_close_edge(edge);
    else
        bn_send_line(edge->to, bn_edge_line(edge));
}

/* n values of `out`, a line at least. FIRST and LAST are value j_ of the first and of the last LINE_ of them: what lies
 * before a line begins, and behind the end_ of the last. LINES(...) sends what is between. The last values are computed
 * first, as what is read may lie there too. */
#define BN_SEND(real, n, out, edge, FIRST, LAST, LINES, ...)                                                          \
    do {                                                                                                              \
        enum { LINE_ = BN_LINE / sizeof(real) };                                                                      \
        const size_t offset_ = bn_row_edge((edge), (char *)(out));                                                    \
        const ptrdiff_t head_ = offset_ ? (ptrdiff_t)((BN_LINE - offset_) / sizeof(real)) : 0;                        \
        const ptrdiff_t end_ = (n) - ((n) - head_) % LINE_;                                                           \
        const char *const at_ = (edge)->ahead->at;                                                                    \
        const ptrdiff_t apart_ = (edge)->ahead->apart;                                                                \
        char *const edge_ = bn_edge_line(edge);                                                                       \
        real first_[LINE_], last_[LINE_];                                                                             \
        if (end_ < (n)) {                                                                                             \
            BN_ROLLED                                                                                                 \
            for (int j_ = 0; j_ < LINE_; j_++)                                                                        \
                last_[j_] = LAST;                                                                                     \
        }                                                                                                             \
        if (head_) {                                                                                                  \
            BN_ROLLED                                                                                                 \
            for (int j_ = 0; j_ < LINE_; j_++)                                                                        \
                first_[j_] = FIRST;                                                                                   \
            memcpy(edge_ + offset_, first_, BN_LINE);                                                                 \
            bn_send_edge(edge);                                                                                       \
        }                                                                                                             \
        BN_EXPAND(LINES(__VA_ARGS__));                                                                                \
        if (end_ < (n))                                                                                               \
            memcpy(edge_ + ((n) - end_) * sizeof(real) - BN_LINE, last_, BN_LINE);                                    \
        (edge)->to = (char *)((out) + end_);                                                                          \
        (edge)->filled = ((n) - end_) * sizeof(real);                                                                 \
        (edge)->skip = 0;                                                                                             \
        if (at_) {                                                                                                    \
            bn_fetch_line(at_ + (n) * sizeof(real) - 1);                                                              \
            bn_advance((edge)->ahead, (n) * sizeof(real));                                                            \
        }                                                                                                             \
    } while (0)

#define BN_EXPAND(code) code    /* Microsoft's compiler takes __VA_ARGS__ for one argument otherwise */

/* The line that begins with value i of `out`. */
#define BN_SEND_LINE(real, i, out, VALUE)                                                                             \
    do {                                                                                                              \
        real line_[LINE_];                                                                                            \
        BN_ROLLED                                                                                                     \
        for (int j_ = 0; j_ < LINE_; j_++)                                                                            \
            line_[j_] = VALUE;                                                                                        \
        if (at_)                                                                                                      \
            bn_fetch_line(at_ + (i) * sizeof(real));                                                                  \
        if (apart_)                                                                                                   \
            bn_fetch_line(at_ + apart_ + (i) * sizeof(real));                                                         \
        bn_send_line((out) + (i), line_);                                                                             \
    } while (0)

/* out[i] = VALUE(i) of n values. */
#define BN_SEND_VALUES(real, n, out, edge, VALUE)                                                                     \
    BN_SEND(real, n, out, edge, VALUE(j_), VALUE((n) - LINE_ + j_), BN_LINES_OF_VALUES, real, out, VALUE)
#define BN_LINES_OF_VALUES(real, out, VALUE)                                                                          \
    BN_INDEPENDENT                                                                                                    \
    for (ptrdiff_t i_ = head_; i_ < end_; i_ += LINE_)                                                                \
    BN_SEND_LINE(real, i_, out, VALUE(i_ + j_))

/* Rows of n values each that lie one after the other, n being a line at least. Value i of them all is VALUE(i, p, OF, AT),
 * where p is its place in a row, OF(h) a number of the row, and AT(gamma)[p] one that rows share. NUMBERS(DO) is DO(h)
 * DO(r) and so on, for every such number; that of row k is h[k]. In a line with the end of one row and the beginning of
 * the next each value takes its own, and gamma_two has the end of gamma and again its beginning: put together in memory,
 * such a line would wait for all that was sent before it. */
#define BN_SEND_ROWS(real, rows, n, out, edge, NUMBERS, VALUE)                                                        \
    do {                                                                                                              \
        typedef real real_;                                                                                           \
        const ptrdiff_t last_row_ = (rows) - 1;                                                                       \
        BN_SEND(real, (rows) * (n), out, edge, VALUE(j_, j_, BN_OF_FIRST, BN_SHARED),                                 \
                VALUE((rows) * (n) - LINE_ + j_, (n) - LINE_ + j_, BN_OF_LAST, BN_SHARED), BN_LINES_OF_ROWS, real,    \
                rows, n, out, NUMBERS, VALUE);                                                                        \
    } while (0)
#define BN_LINES_OF_ROWS(real, rows, n, out, NUMBERS, VALUE)                                                          \
    ptrdiff_t i_ = head_, stop_ = 0;                                                                                  \
    for (ptrdiff_t k_ = 0; k_ < (rows); k_++) {                                                                       \
        const ptrdiff_t begin_ = stop_;                                                                               \
        NUMBERS(BN_OWN_IS)                                                                                            \
        stop_ += (n);                                                                                                 \
        BN_INDEPENDENT                                                                                                \
        for (; i_ + LINE_ <= stop_; i_ += LINE_)                                                                      \
            BN_SEND_LINE(real, i_, out, VALUE(i_ + j_, i_ + j_ - begin_, BN_OF_OWN, BN_SHARED));                      \
        if (i_ < stop_ && i_ < end_) {                                                                                \
            const int left_ = (int)(stop_ - i_);                                                                      \
            NUMBERS(BN_NEXT_IS)                                                                                       \
            BN_SEND_LINE(real, i_, out, VALUE(i_ + j_, LINE_ - left_ + j_, BN_OF_EITHER, BN_SHARED_TWICE));           \
            i_ += LINE_;                                                                                              \
        }                                                                                                             \
    }
#define BN_OWN_IS(h) const real_ own_##h = h[k_];
#define BN_NEXT_IS(h) const real_ next_##h = h[k_ + 1];
#define BN_OF_FIRST(h) h[0]
#define BN_OF_LAST(h) h[last_row_]
#define BN_OF_OWN(h) own_##h
#define BN_OF_EITHER(h) (j_ < left_ ? own_##h : next_##h)
#define BN_SHARED(gamma) gamma
#define BN_SHARED_TWICE(gamma) gamma##_two

/* gamma_two: the last line of n values, and the first. */
#define BN_TWICE(real, n, gamma)                                                                                      \
    real gamma##_two[2 * BN_LINE / sizeof(real)];                                                                     \
    if (edge) {                                                                                                       \
        memcpy(gamma##_two, gamma + (n) - BN_LINE / sizeof(real), BN_LINE);                                           \
        memcpy(gamma##_two + BN_LINE / sizeof(real), gamma, BN_LINE);                                                 \
    }

#endif
