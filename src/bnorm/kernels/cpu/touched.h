/* Whether a program touches x between the calls that read it: then the caller works alone.
 *
 * A net in NumPy computes x on the thread that calls, and the threads of a team read it. NumPy is then slow to write it
 * again, as a core needs 10 to 40 ns to write a line that another core has read. No call sees this time. If x fits the
 * second-level cache, it is up to three times what the team has gained. So a few lines of an x, among those that the
 * caller's core does not read, are removed from all caches before a team reads it. If they are found in the caches of
 * the caller's core when the same x comes again, the program has touched x, and the caller handles some calls alone.
 * Then a team tries again; each time after twice as many calls. No bit of a result depends on it. */
#ifndef BNORM_TOUCHED_H
#define BNORM_TOUCHED_H

#include "nearby.h"

enum {
    BN_SIGNS = 2,           /* lines of x that are removed and looked for */
    BN_AGAIN = 4,           /* times that they are loaded again, of which the shortest counts */
    BN_READABLE = 500,      /* ticks of the clock: most in which they are loaded again, about 70 on Zen 4 */
    BN_LOOKS = 4,           /* calls in turn that look for them: of a fit and a transform, only one finds them */
    BN_UNTOUCHED = 64,      /* calls on an x that is not touched in which there are so many looks */
    BN_OTHERS = 64,         /* calls on other arrays after which an x is not expected again */
    BN_LEAST_ALONE = 32, BN_MOST_ALONE = 512    /* calls that the caller handles alone */
};

typedef struct {
    uintptr_t watched;  /* address of the x whose lines were removed; 0: none */
    int calls;          /* on it, of this round */
    int others;         /* calls on other arrays since it last came */
    int alone;          /* calls that the caller still handles alone */
    int next;           /* calls that it handles alone when the program is next found to touch an x */
    int pretended;      /* for tests: whether a look finds the lines; -1: look */
} bn_watch;

static BN_OF_THREAD bn_watch bn_watches = {0, 0, 0, 0, BN_LEAST_ALONE, -1};

#ifdef BN_PAGE  /* nearby.h can look */
/* Return a line near the end of x, which the last thread reads. The two are so far apart, and so far from the end, that
 * the processor does not fetch one because of the other, or because of what lies behind x. */
static inline const volatile char *bn_sign(const void *x, size_t size, int i)
{
    return (const char *)x + size - (i == 0 ? 1152 : 1472);
}

static inline void bn_remove_signs(const void *x, size_t size)
{
    for (int i = 0; i < BN_SIGNS; i++)
        _mm_clflush((const void *)bn_sign(x, size, i));
}

/* Return the ticks of the clock in which the lines are loaded, one after the other. */
static inline uint64_t bn_ticks_of_signs(const void *x, size_t size)
{
    uint64_t begun;
    _mm_lfence();
    begun = __rdtsc();
    for (int i = 0; i < BN_SIGNS; i++) {
        _mm_lfence();
        (void)*bn_sign(x, size, i);
    }
    _mm_lfence();
    return __rdtsc() - begun;
}

/* Whether the core loads the lines in less than twice the time in which it loads them again. From the third level it
 * needs 2.5 times as long, and from the cache of another core 3 times. A clock that is slow to read shows nothing. */
static inline int bn_has_signs(const void *x, size_t size)
{
    const uint64_t found = bn_ticks_of_signs(x, size);
    uint64_t again = BN_READABLE;
    for (int i = 0; i < BN_AGAIN; i++) {
        const uint64_t ticks = bn_ticks_of_signs(x, size);
        again = ticks < again ? ticks : again;
    }
    return again < BN_READABLE && found < 2 * again;
}
#else
static inline void bn_remove_signs(const void *x, size_t size) { (void)x; (void)size; }
static inline int bn_has_signs(const void *x, size_t size) { (void)x; (void)size; return 0; }
#endif

/* Whether the caller handles a call on x alone that may have several threads. x: of `size` bytes, at least 2048. */
static inline int bn_is_touched(const void *x, size_t size, int threads)
{
    bn_watch *watch = &bn_watches;
    const int known = (uintptr_t)x == watch->watched;
    int calls;
    if (threads == 1) {
        if (known)      /* the caller reads all of x, so its core will have these lines */
            watch->watched = 0;
        return 0;
    }
    if (watch->alone > 0) {
        watch->alone--;
        return 1;
    }
    if (!known && watch->watched != 0 && ++watch->others < BN_OTHERS)
        return 0;
    calls = known ? watch->calls : 0;
    watch->watched = (uintptr_t)x;
    watch->calls = calls % BN_UNTOUCHED + 1;
    watch->others = 0;
    if (calls > BN_LOOKS) {
        watch->next = BN_LEAST_ALONE;
        return 0;
    }
    if (calls > 0 && (watch->pretended < 0 ? bn_has_signs(x, size) : watch->pretended)) {
        watch->watched = 0;
        watch->alone = watch->next - 1;
        watch->next = 2 * watch->next < BN_MOST_ALONE ? 2 * watch->next : BN_MOST_ALONE;
        return 1;
    }
    bn_remove_signs(x, size);
    return 0;
}

#endif
