/* The maps of float16 and bfloat16: values are converted in registers, so that a line is read and written once. The
 * bits are those of float32 that is converted before and after. These maps have no weights and no smooth activation. */
#ifndef BNORM_NARROW_MAPS_H
#define BNORM_NARROW_MAPS_H

#include "lines.h"
#include "narrow.h"
#include "rows.h"

#if defined(BN_HAS_VECTORS)
enum { BN_FUSES = 1 };

/* found = VALUE(j, p + j) for a vector of values of x, and of dy if there is one, from value i on. */
#define BN_VECTOR_OF(found, i, p, VALUE)                                                                              \
    {                                                                                                                 \
        float x[BN_FLOATS], dy[BN_FLOATS], y_[BN_FLOATS];                                                             \
        bn_give_floats(x, bn_take_narrow(kind, from_x + (i)));                                                        \
        if (from_dy)                                                                                                  \
            bn_give_floats(dy, bn_take_narrow(kind, from_dy + (i)));                                                  \
        BN_ROLLED                                                                                                     \
        for (int32_t j = 0; j < BN_FLOATS; j++)                                                                       \
            y_[j] = VALUE(j, (p) + j);                                                                                \
        found = bn_take_floats(y_);                                                                                   \
    }
#define BN_PAIR_OF(to, i, p, VALUE)                                                                                   \
    {                                                                                                                 \
        bn_floats v_, w_;                                                                                             \
        BN_VECTOR_OF(v_, i, p, VALUE)                                                                                 \
        BN_VECTOR_OF(w_, (i) + BN_FLOATS, (p) + BN_FLOATS, VALUE)                                                     \
        bn_give_narrow(kind, to, v_, w_);                                                                             \
    }

/* VALUE for n values, at least a pair of vectors. If the last do not fill a pair, the last pair is computed first and
 * written last, because y may overwrite what it is computed from. sent: y is a buffer that is sent later, line by line;
 * so no pair behind the first one lies in two lines, or the load of a line would wait for two stores. */
#define BN_NARROW_VALUES(sent, begin, n, VALUE)                                                                       \
    {                                                                                                                 \
        const ptrdiff_t begin_ = begin, lead_ = sent ? (-(uintptr_t)(y + begin_) & (2 * BN_TWO - 1)) / 2 : 0;         \
        const ptrdiff_t odd_ = ((n) - lead_) % BN_TWO, last_ = (n) - BN_TWO;                                          \
        uint16_t rest_[BN_TWO];                                                                                       \
        if (odd_)                                                                                                     \
            BN_PAIR_OF(rest_, begin_ + last_, last_, VALUE)                                                           \
        if (lead_)                                                                                                    \
            BN_PAIR_OF(y + begin_, begin_, 0, VALUE)                                                                  \
        for (ptrdiff_t i_ = lead_; i_ < (n) - odd_; i_ += BN_TWO)                                                     \
            BN_PAIR_OF(y + begin_ + i_, begin_ + i_, i_, VALUE)                                                       \
        if (odd_)                                                                                                     \
            memcpy(y + begin_ + last_, rest_, sizeof rest_);                                                          \
    }
#define BN_NARROW_RUNS(NUMBERS, VALUE)                                                                                \
    for (ptrdiff_t k_ = 0; k_ < runs; k_++) {                                                                         \
        NUMBERS(BN_OWN_IS)                                                                                            \
        BN_NARROW_VALUES(sent, k_ * n, n, VALUE)                                                                      \
    }
#define BN_NARROW_LINES(VALUE)                                                                                        \
    for (ptrdiff_t k_ = 0; k_ < lines; k_++)                                                                          \
        BN_NARROW_VALUES(0, k_ * n, n, VALUE)

#define real float
#define OF(name) name##_float

/* Computes y, or dx if there is a dy, of contiguous runs of n values each, at least a pair of vectors, with the numbers
 * of each run. */
BN_INLINE void bn_narrow_runs_by(bn_activation act, int kind, int sent, ptrdiff_t runs, ptrdiff_t n,
                                 const uint16_t *from_dy, const uint16_t *from_x, uint16_t *y, const bn_numbers *of)
{
    BN_GRADIENT_NUMBERS(BN_ARRAY_IS)
    if (!from_dy)
        BN_NARROW_RUNS(BN_MAP_NUMBERS, BN_RUN)
    else if (!b)
        BN_NARROW_RUNS(BN_FROZEN_NUMBERS, BN_FROZEN_GRADIENT)
    else
        BN_NARROW_RUNS(BN_GRADIENT_NUMBERS, BN_RUN_GRADIENT)
}

/* The same for contiguous lines of n values each: each value of a line has its own numbers, from number `first` on. */
BN_INLINE void bn_narrow_lines_by(bn_activation act, int kind, ptrdiff_t lines, ptrdiff_t n, const uint16_t *from_dy,
                                  const uint16_t *from_x, uint16_t *y, const bn_numbers *of, ptrdiff_t first)
{
    const float *h = (const float *)of->h + first, *scale = (const float *)of->scale + first;
    const float *shift = (const float *)of->shift + first, *a = from_dy ? (const float *)of->a + first : NULL;
    const float *b = of->b ? (const float *)of->b + first : NULL, *c = of->b ? (const float *)of->c + first : NULL;
    if (!from_dy)
        BN_NARROW_LINES(BN_COLUMN)
    else if (!b)
        BN_NARROW_LINES(BN_FROZEN_COLUMN)
    else
        BN_NARROW_LINES(BN_COLUMN_GRADIENT)
}
#undef real
#undef OF

BN_APART void bn_narrow_runs(bn_activation act, int kind, int sent, ptrdiff_t runs, ptrdiff_t n, const void *dy,
                             const void *x, void *y, const bn_numbers *of)
{
    if (kind == BN_HALF) {
        BN_BY_STRAIGHT(bn_narrow_runs_by, act, BN_HALF, sent, runs, n, dy, x, y, of)
    } else {
        BN_BY_STRAIGHT(bn_narrow_runs_by, act, BN_BFLOAT, sent, runs, n, dy, x, y, of)
    }
}

BN_APART void bn_narrow_lines(bn_activation act, int kind, ptrdiff_t lines, ptrdiff_t n, const void *dy, const void *x,
                              void *y, const bn_numbers *of, ptrdiff_t first)
{
    if (kind == BN_HALF) {
        BN_BY_STRAIGHT(bn_narrow_lines_by, act, BN_HALF, lines, n, dy, x, y, of, first)
    } else {
        BN_BY_STRAIGHT(bn_narrow_lines_by, act, BN_BFLOAT, lines, n, dy, x, y, of, first)
    }
}
#else
enum { BN_FUSES = 0, BN_TWO = 1 };

static inline void bn_narrow_runs(bn_activation act, int kind, int sent, ptrdiff_t runs, ptrdiff_t n, const void *dy,
                                  const void *x, void *y, const bn_numbers *of)
{
    (void)act, (void)kind, (void)sent, (void)runs, (void)n, (void)dy, (void)x, (void)y, (void)of;
}

static inline void bn_narrow_lines(bn_activation act, int kind, ptrdiff_t lines, ptrdiff_t n, const void *dy,
                                   const void *x, void *y, const bn_numbers *of, ptrdiff_t first)
{
    (void)act, (void)kind, (void)lines, (void)n, (void)dy, (void)x, (void)y, (void)of, (void)first;
}
#endif
#endif
