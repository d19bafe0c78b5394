/* Partial sums side by side. Such a loop must not be unrolled before it is vectorized, which a Cython loop cannot say. */
#ifndef BNORM_LANES_H
#define BNORM_LANES_H

#if defined(__GNUC__) && !defined(__clang__)
#define BN_ROLLED _Pragma("GCC unroll 1")
#else
#define BN_ROLLED
#endif

/* 32 partial sums to 8. */
static inline void bn_narrow(const double *wide, double *eight)
{
    BN_ROLLED
    for (int j = 0; j < 8; j++)
        eight[j] = (wide[j] + wide[8 + j]) + (wide[16 + j] + wide[24 + j]);
}

/* 8 partial sums to one. */
static inline double bn_whole(const double *eight)
{
    return ((eight[0] + eight[1]) + (eight[2] + eight[3])) + ((eight[4] + eight[5]) + (eight[6] + eight[7]));
}

#endif
