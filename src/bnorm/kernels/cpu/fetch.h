/* Fetch memory into a cache before it is read. */
#ifndef BNORM_FETCH_H
#define BNORM_FETCH_H

#if !defined(__GNUC__) && !defined(__clang__) && defined(_M_X64)
#include <xmmintrin.h>
#endif

/* Fetch a cache line into the second-level cache. Such a fetch occupies none of the few buffers in which loads wait for
 * memory, which limit plain loads to two thirds of the bandwidth. */
static inline void bn_fetch_line(const char *line)
{
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(line, 0, 2);
#elif defined(_M_X64)
    _mm_prefetch(line, _MM_HINT_T1);
#else
    (void)line;
#endif
}

#endif
