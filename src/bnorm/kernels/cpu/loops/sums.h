/* Sums of two arrays that are sent past the caches as they are made, and kept in them for what comes next. */
#ifndef BNORM_SUMS_H
#define BNORM_SUMS_H

#include "edges.h"

#define BN_SUM(i, p) (h[i] = x[i] + r[i])

#define bn_sums(n, x, ...) BN_OF(bn_sums, x)(n, x, __VA_ARGS__)
#define BN_TEMPLATE "sums.h"
#include "both.h"
#elif defined(real)

/* h = x + r of n values, a line at least, which go to `out` too. */
BN_APART void OF(bn_sums)(ptrdiff_t n, const real *x, const real *r, real *BN_RESTRICT h, real *out, bn_edge *edge)
{
    BN_SEND_VALUES(n, out, edge, BN_SUM);
}
#endif
