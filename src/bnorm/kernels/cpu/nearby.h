/* Whether large arrays are in the caches: a call loads a few of their lines, and sees how long that takes.
 *
 * From some size on, inputs are fetched ahead and results are written past the caches. Where inputs are in the caches
 * and results would stay there until they are read, both cost time. No table knows where that is so: third-level caches
 * are shared with other processes, and whether an array stays depends on what a program does between two calls. So a
 * thread writes results through the caches now and then, and goes on with that as long as its arrays are found there.
 * Otherwise it goes back, and waits twice as long before it tries again. Inputs of images are fetched ahead unless a
 * look finds them in the caches. No bit of a result depends on it. */
#ifndef BNORM_NEARBY_H
#define BNORM_NEARBY_H

#include <stddef.h>
#include <stdint.h>

#include "memory.h"

enum {
    BN_PAST,            /* results go past the caches */
    BN_THROUGH,         /* results go through the caches */
    BN_FOUND,           /* the same, and the arrays of this call are in the caches: nothing need be fetched ahead */
    BN_PROBES = 8,      /* lines of an array that a look loads */
    BN_RELEARN = 1024,  /* looks after which the time of a line from memory is measured again */
    BN_STRAY = 1,       /* so many lines from memory may be by chance */
    BN_MANY = 4,        /* so many lines from memory are not by chance; more count as so many */
    BN_SPARED = 2,      /* as how many lines a call counts that spares the caches, as y alone is in memory */
    BN_TRIED = 8,       /* calls of a try before one looks: first each array of a loop must get into the caches */
    BN_LINES = 5, BN_ALLOWED = 3,   /* 3/5 of a line in each look may come from memory */
    BN_ENOUGH = 220,    /* fifths of a line beyond what is allowed that end a try: 13 calls with all arrays in memory */
    BN_STAYED = 256,    /* calls after which a try has proved right */
    BN_LEAST_WAIT = 16, BN_MOST_WAIT = 512      /* calls between two tries */
};

typedef struct {
    int through;        /* whether results go through the caches */
    int calls;          /* of this try so far, or before the next one */
    int excess;         /* fifths of lines from memory, beyond what is allowed */
    int wait;           /* calls between this try and the next */
    int most;           /* bytes: larger outputs always go past the caches */
    int pretended;      /* for tests: how many lines of x a look finds in memory; -1: as many as there are */
    int near;           /* what bn_are_near has last returned */
} bn_habit;

static BN_OF_THREAD bn_habit bn_habits = {0, BN_LEAST_WAIT / 2, 0, BN_LEAST_WAIT, 20 << 20, -1, 0};

#if (defined(__GNUC__) && defined(__x86_64__)) || defined(_M_X64)
#ifdef _MSC_VER
#include <intrin.h>
#else
#include <x86intrin.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#define BN_PAGE ((size_t)4096)

static BN_OF_THREAD unsigned bn_look = 0;       /* counts the looks, so that each loads other lines */
static BN_OF_THREAD uint64_t bn_slow = 0;       /* ticks of the clock that only a load from memory takes */

/* Return the ticks of the clock in which a byte is loaded. */
static inline uint64_t bn_ticks(const volatile char *at)
{
    uint64_t begun;
    _mm_lfence();
    begun = __rdtsc();
    _mm_lfence();
    (void)*at;
    _mm_lfence();
    return __rdtsc() - begun;
}

/* Return the i-th line to look at, in the second half of a page. Each is in another eighth of the array. */
static inline const volatile char *bn_line_at(const void *a, size_t size, unsigned i)
{
    const size_t part = (size / BN_PAGE - 1) / BN_PROBES;
    const size_t page = part * i + (bn_look * 2654435761u >> 8) % part;
    const char *first = (const char *)a + (-(uintptr_t)a & (BN_PAGE - 1));
    return first + page * BN_PAGE + BN_PAGE / 2 + (bn_look + i) % 32 * 64;
}

/* Return how many of some lines of an array come from memory. flush: remove them from the caches first, and note how
 * long that takes. Loads from the first half of the pages keep the time to find a page out of the time of a line. */
static inline int bn_far_lines(const void *a, size_t size, int flush)
{
    uint64_t sorted[BN_PROBES];
    int far = 0;
    bn_look++;
    for (unsigned i = 0; i < BN_PROBES; i++) {
        const volatile char *line = bn_line_at(a, size, i);
        if (flush)
            _mm_clflush((const void *)line);
        (void)*(line - BN_PAGE / 2);
    }
    _mm_mfence();
    for (unsigned i = 0; i < BN_PROBES; i++) {
        const uint64_t ticks = bn_ticks(bn_line_at(a, size, i));
        unsigned j = i;
        for (; j > 0 && sorted[j - 1] > ticks; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = ticks;
        far += ticks > bn_slow;
    }
    if (flush)
        bn_slow = sorted[BN_PROBES / 2] * 4 / 5;
    return far;
}

/* The same for x and dy, of the same size; dy may be NULL. */
static inline int bn_far_inputs(const void *x, const void *dy, size_t size)
{
    const int far = bn_far_lines(x, size, 0);
    return dy == NULL ? far : far + bn_far_lines(dy, size, 0);
}

/* Whether an output has memory of its own. To read a new page before it is written would do harm: the system would
 * first map a page of zeros there, and replace it later, in smaller pieces. */
static inline int bn_has_memory(const void *y, size_t size)
{
#ifdef __linux__
    unsigned char there = 0;
    const uintptr_t middle = ((uintptr_t)y + size / 2) & ~(uintptr_t)(BN_PAGE - 1);
    return mincore((void *)middle, 1, &there) == 0 && (there & 1);
#else
    (void)y;
    (void)size;
    return 0;
#endif
}

/* Return how a call treats the caches that reads x and dy (of the same size, or NULL) and writes y: all of them at
 * least 64 KB large. */
static inline int bn_caches(const void *x, const void *dy, size_t x_size, const void *y, size_t y_size)
{
    bn_habit *habit = &bn_habits;
    int far = habit->pretended, far_y = 0, spares, lines;
    if (!habit->through) {
        if (--habit->calls <= 0) {
            habit->through = 1;
            bn_far_lines(x, x_size, 1);
        }
        return BN_PAST;
    }
    if (habit->calls < BN_TRIED) {
        habit->calls++;
        return BN_THROUGH;
    }
    if (far < 0) {
        far = bn_far_inputs(x, dy, x_size);
        if (bn_has_memory(y, y_size))
            far_y = bn_far_lines(y, y_size, 0);
    }
    spares = far < BN_MANY && far_y >= BN_MANY;     /* a store through the caches would first read the line of such a y */
    lines = spares ? BN_SPARED : far + far_y < BN_MANY ? far + far_y : BN_MANY;
    habit->excess += BN_LINES * lines - BN_ALLOWED;
    if (habit->excess < 0)
        habit->excess = 0;
    if (habit->calls < BN_STAYED && ++habit->calls == BN_STAYED)
        habit->wait = BN_LEAST_WAIT;
    if (habit->excess > BN_ENOUGH) {
        habit->through = habit->excess = 0;
        habit->calls = habit->wait;
        habit->wait = 2 * habit->wait < BN_MOST_WAIT ? 2 * habit->wait : BN_MOST_WAIT;
    }
    return spares ? BN_PAST : lines == 0 ? BN_FOUND : BN_THROUGH;
}

/* Whether x and dy (of the same size, at least 64 KB, or NULL) are in the caches, so that to fetch them ahead only costs
 * time. */
static inline int bn_are_near(const void *x, const void *dy, size_t size)
{
    bn_habit *habit = &bn_habits;
    int far = habit->pretended;
    if (far < 0) {
        if (bn_slow == 0 || bn_look % BN_RELEARN < 2)
            bn_far_lines(x, size, 1);
        far = bn_far_inputs(x, dy, size);
    }
    habit->near = far <= BN_STRAY;
    return habit->near;
}
#else
static inline int bn_caches(const void *x, const void *dy, size_t x_size, const void *y, size_t y_size)
{
    (void)x, (void)dy, (void)x_size, (void)y, (void)y_size;
    return BN_PAST;
}

static inline int bn_are_near(const void *x, const void *dy, size_t size)
{
    (void)x, (void)dy, (void)size;
    return 0;
}
#endif

#endif
