/* The gradient sums of a stripe of rows that share gamma and beta: two sums along each row, and two down each column.
 * The sums of a few vectors of columns stay in registers down the rows. If there are too few registers, and for long
 * rows on processors that gain from it, two rows are summed at a time instead (pairs.h). */
#ifndef BNORM_STRIPES_H
#define BNORM_STRIPES_H

#include "pairs.h"

enum {
    BN_STRIPE = 16,                     /* rows whose columns are added up in the type of x */
#if defined(__AVX512F__)
    BN_BROAD = 2 * BN_WIDTH,            /* columns whose sums all stay in registers */
    BN_NARROW = 3 * BN_BROAD            /* most values of a float32 row that is always cut into parts of BN_BROAD */
#elif defined(__AVX2__)
    BN_BROAD = BN_WIDTH,
    BN_NARROW = BN_BROAD
#else
    BN_BROAD = BN_WIDTH,
    BN_NARROW = 2 * BN_BROAD
#endif
};

#define BN_STRIPE_PART(first, last, width, i)                                                                         \
    OF(bn_stripe_part)(first, last, add, width, act, rows, n, pitch, near, i, left, dy, x, of, k, from, dgamma,       \
                       dbeta, s, d, sum, dot)

#define bn_stripe_sums(act, rows, n, pitch, left, add, dy, ...)                                                       \
    BN_OF(bn_stripe_sums, dy)(act, rows, n, pitch, left, add, dy, __VA_ARGS__)
#define BN_TEMPLATE "stripes.h"
#include "both.h"
#elif defined(real)

/* Sums of `width` columns of some rows, of which the first `keep` exist, or all (`whole`). With v = (x - h) scale +
 * shift and g = dy before the activation, the sums down the rows are across = sum g and along = sum g v, those along
 * each row s = sum g gamma and d = sum g gamma (x - h). The `first` columns begin s and d; the `last` ones fold them
 * to 8 parts in `sum` and `dot`, which are stored or added (`add`). The flags, `width` and the kind of `act` are
 * constants to the compiler. */
BN_INLINE void OF(bn_stripe_columns)(
 int first, int last, int add, int width, int whole, int32_t keep, bn_activation act, ptrdiff_t rows,
 ptrdiff_t pitch, const bn_ahead *near, const real *dy, const real *x, const bn_numbers *of, ptrdiff_t row,
 ptrdiff_t column, real *BN_RESTRICT along, real *BN_RESTRICT across, real *BN_RESTRICT s, real *BN_RESTRICT d,
 double *BN_RESTRICT sum, double *BN_RESTRICT dot)
{
    const real *gamma = (const real *)of->gamma + column, *beta = (const real *)of->beta + column;
    for (ptrdiff_t k = row; k < row + rows;
         k++, x += pitch, dy += pitch, s += BN_WIDTH, d += BN_WIDTH, sum += 8, dot += 8) {
        BN_MAP_NUMBERS(BN_NUMBER_IS)
        real s1[BN_WIDTH], d1[BN_WIDTH];
        if (near)
            bn_fetch_with(near, x, dy, width * sizeof(real));
        BN_ROLLED
        for (int32_t j = 0; j < (width < BN_WIDTH ? width : BN_WIDTH); j++) {
            BN_ROW_VALUE(j, whole || j < keep)
            s1[j] = first ? p_ : p_ + s[j];
            d1[j] = first ? q_ : q_ + d[j];
        }
        if (width > BN_WIDTH) {
            BN_ROLLED
            for (int32_t j = BN_WIDTH; j < width; j++) {
                BN_ROW_VALUE(j, whole || j < keep)
                s1[j - BN_WIDTH] += p_;
                d1[j - BN_WIDTH] += q_;
            }
        }
        if (last) {
            OF(bn_fold)(width < BN_WIDTH ? width : BN_WIDTH, !add, s1, sum);
            OF(bn_fold)(width < BN_WIDTH ? width : BN_WIDTH, !add, d1, dot);
        } else {
            memcpy(s, s1, sizeof s1);
            memcpy(d, d1, sizeof d1);
        }
    }
}

/* bn_stripe_columns from column i on: copies rows of which a whole vector may not be read, and adds the sums down the
 * columns to dgamma and dbeta. */
BN_INLINE void OF(bn_stripe_part)(
 int first, int last, int add, int width, bn_activation act, ptrdiff_t rows, ptrdiff_t n, ptrdiff_t pitch,
 const bn_ahead *near, ptrdiff_t i, ptrdiff_t left, const real *dy, const real *x, const bn_numbers *of, ptrdiff_t row,
 ptrdiff_t from, double *dgamma, double *dbeta, real *s, real *d, double *sum, double *dot)
{
    const int32_t keep = (int32_t)(n - i < width ? n - i : width);
    real along[BN_BROAD], across[BN_BROAD];
    for (int32_t j = 0; j < width; j++)
        along[j] = across[j] = 0;
    if (!last || width == 8 || keep == width) /* the compiler knows the first two */
        OF(bn_stripe_columns)(first, last, add, width, 1, keep, act, rows, pitch, near, dy + i, x + i, of, row,
                              from + i, along, across, s, d, sum, dot);
    else {
        ptrdiff_t all = rows; /* the rows that may be read in whole vectors; the others are copied */
        while (all > 0 && (all - 1) * pitch + i + width > left)
            all--;
        for (ptrdiff_t k = 0, some; k < rows; k += some) {
            const real *of_x = x + k * pitch + i, *of_dy = dy + k * pitch + i;
            real x1[BN_BROAD], dy1[BN_BROAD];
            some = k < all ? all : 1;
            if (k >= all) {
                for (int32_t j = 0; j < width; j++)
                    x1[j] = dy1[j] = 0;
                of_x = (const real *)memcpy(x1, of_x, keep * sizeof(real));
                of_dy = (const real *)memcpy(dy1, of_dy, keep * sizeof(real));
            }
            OF(bn_stripe_columns)(first, last, add, width, 0, keep, act, some, pitch, near, of_dy, of_x, of, row + k,
                                  from + i, along, across, s + k * BN_WIDTH, d + k * BN_WIDTH, sum + 8 * k,
                                  dot + 8 * k);
        }
    }
    for (int32_t j = 0; j < keep; j++)
        dgamma[from + i + j] += (double)along[j];
    for (int32_t j = 0; j < keep; j++)
        dbeta[from + i + j] += (double)across[j];
}

/* Sums of n values, no more than pairs.h takes, of each of `all` rows, which begin with x and dy and are `pitch`
 * values apart; `left` values may be read. The two sums along each row are stored as 8 parts, or added to them
 * (`add`); the sums down the columns are added to dgamma and dbeta. gamma and beta are followed by zeros. ahead: NULL,
 * or what is fetched meanwhile, as in bn_fetch_on. */
BN_INLINE void OF(bn_stripe_sums)(bn_activation act, ptrdiff_t all, ptrdiff_t n, ptrdiff_t pitch,
                                  ptrdiff_t left, int add, const real *dy, const real *x, const bn_numbers *of,
                                  ptrdiff_t k, ptrdiff_t from, double *dgamma, double *dbeta, double *sum, double *dot,
                                  bn_ahead *ahead, int sent)
{
    real s[BN_STRIPE * BN_WIDTH], d[BN_STRIPE * BN_WIDTH];
    const bn_ahead *near = ahead && ahead->reach ? ahead : NULL;
    const ptrdiff_t most = !BN_IS_FLOAT ? 2 * BN_WIDTH : BN_LINED ? n : BN_NARROW;
    for (ptrdiff_t rows; all > 0; all -= rows) {
        rows = all < BN_STRIPE ? all : BN_STRIPE;
        if (ahead && !near)
            bn_fetch_on(ahead, x, dy, (size_t)(rows * n) * sizeof(real), sent);
        if (n == 8)
            BN_STRIPE_PART(1, 1, 8, 0);
        else if (n <= BN_TINY)
            BN_STRIPE_PART(1, 1, BN_TINY, 0);
        else if (n <= BN_WIDTH)
            BN_STRIPE_PART(1, 1, BN_WIDTH, 0);
        else if (n <= BN_BROAD)
            BN_STRIPE_PART(1, 1, BN_BROAD, 0);
        else if (n <= most) {
            ptrdiff_t i = BN_BROAD;
            BN_STRIPE_PART(1, 0, BN_BROAD, 0);
            for (; i + BN_BROAD < n; i += BN_BROAD)
                BN_STRIPE_PART(0, 0, BN_BROAD, i);
            if ((int)BN_BROAD > (int)BN_WIDTH && n - i > BN_WIDTH)
                BN_STRIPE_PART(0, 1, BN_BROAD, i);
            else
                BN_STRIPE_PART(0, 1, BN_WIDTH, i);
        } else
            OF(bn_paired_sums)(act, rows, n, pitch, left, add, near, x, dy, of, k, from, dgamma, dbeta, sum, dot);
        dy += rows * pitch, x += rows * pitch, left -= rows * pitch;
        k += rows, sum += 8 * rows, dot += 8 * rows;
    }
}

#if BN_IS_FLOAT && BN_LINED
/* The same for more than BN_NARROW values of float32, two rows at a time. It is a separate function, since the
 * compiler would make different loops of those above if both were in one. */
BN_INLINE void bn_stripe_pairs(bn_activation act, ptrdiff_t all, ptrdiff_t n, ptrdiff_t pitch, ptrdiff_t left, int add,
                               const float *dy, const float *x, const bn_numbers *of, ptrdiff_t k, ptrdiff_t from,
                               double *dgamma, double *dbeta, double *sum, double *dot, bn_ahead *ahead, int sent)
{
    const bn_ahead *near = ahead && ahead->reach ? ahead : NULL;
    for (ptrdiff_t rows; all > 0; all -= rows) {
        rows = all < BN_STRIPE ? all : BN_STRIPE;
        if (ahead && !near)
            bn_fetch_on(ahead, x, dy, (size_t)(rows * n) * sizeof(float), sent);
        bn_paired_sums_float(act, rows, n, pitch, left, add, near, x, dy, of, k, from, dgamma, dbeta, sum, dot);
        dy += rows * pitch, x += rows * pitch, left -= rows * pitch;
        k += rows, sum += 8 * rows, dot += 8 * rows;
    }
}

BN_APART void bn_long_sums(bn_activation act, ptrdiff_t all, ptrdiff_t n, ptrdiff_t pitch, ptrdiff_t left, int add,
                           const float *dy, const float *x, const bn_numbers *of, ptrdiff_t k, ptrdiff_t from,
                           double *dgamma, double *dbeta, double *sum, double *dot, bn_ahead *ahead, int sent)
{
    BN_BY_STRAIGHT(bn_stripe_pairs, act, all, n, pitch, left, add, dy, x, of, k, from, dgamma, dbeta, sum, dot, ahead,
                   sent);
}
#elif BN_IS_FLOAT
#define bn_long_sums(...)
#endif
#endif
