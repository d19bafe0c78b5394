/* Loops over channels and partial sums of which the compiler has to know more than a Cython loop can say: that arrays do
 * not overlap, or that a loop must not be unrolled before it is vectorized. */
#ifndef BNORM_LANES_H
#define BNORM_LANES_H

#include <stddef.h>

#include "formulas.h"

#if defined(__GNUC__) && !defined(__clang__)
#define BN_ROLLED _Pragma("GCC unroll 1")
#else
#define BN_ROLLED
#endif

#if defined(__GNUC__) || defined(__clang__)
#define BN_INLINE static inline __attribute__((always_inline))
#else
#define BN_INLINE static inline
#endif

#if defined(_MSC_VER)
#define BN_RESTRICT __restrict
#else
#define BN_RESTRICT restrict
#endif

/* bn_add_block for every channel. */
static inline void bn_add_blocks(ptrdiff_t channels, double count, const double *BN_RESTRICT center,
                                 const double *BN_RESTRICT s, const double *BN_RESTRICT q, double *BN_RESTRICT n,
                                 double *BN_RESTRICT mean, double *BN_RESTRICT low, double *BN_RESTRICT m2)
{
    const double inverse = 1.0 / count;
    for (ptrdiff_t c = 0; c < channels; c++)
        bn_add_block(&n[c], &mean[c], &low[c], &m2[c], count, inverse, center[c], s[c], q[c]);
}

/* 32 partial sums to 8. */
BN_INLINE void bn_narrow(const double *wide, double *eight)
{
    BN_ROLLED
    for (int j = 0; j < 8; j++)
        eight[j] = (wide[j] + wide[8 + j]) + (wide[16 + j] + wide[24 + j]);
}

/* 8 partial sums to one. */
BN_INLINE double bn_whole(const double *eight)
{
    return ((eight[0] + eight[1]) + (eight[2] + eight[3])) + ((eight[4] + eight[5]) + (eight[6] + eight[7]));
}

#endif
