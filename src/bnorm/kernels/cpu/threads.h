/* How a call uses threads: OpenMP's functions (serial ones without OpenMP), and what to do when threads come late. */
#ifndef BNORM_THREADS_H
#define BNORM_THREADS_H
#include <stddef.h>
#include <time.h>

#include "memory.h"

#ifdef _OPENMP
#include <omp.h>
#define BN_OPENMP _OPENMP
#else
#define BN_OPENMP 0
static inline int omp_get_max_threads(void) { return 1; }
static inline void omp_set_num_threads(int n) { (void)n; }
static inline double omp_get_wtime(void) { return 0.0; }
#endif

/* On a busy machine the system gives a thread's core to other processes for milliseconds: the rest of the team waits
 * for that thread, and while they spin they keep it from getting a core. So each call on all threads is judged: the
 * caller alone would have needed the processor time of its own part, times the number of threads. What calls gain by
 * their threads is added up, to a limit, and what late calls lose is taken off. When nothing is left, the caller works
 * alone for a while: for a multiple of the time that the late call took, longer each time until threads have proved
 * useful again. Processes that need the cores now and then thus cost only the calls that they delay, and those that
 * always need them end the team. Afterwards the other threads sleep, and their cores may be taken, so the next late
 * call does not count. Results do not depend on it. To read the processor time takes most of a microsecond, so it is read
 * only after something took long; until then the wall clock replaces it.
 *
 * A team can be slow although nothing takes its cores. Where a program reads a result and the caller's cache keeps some
 * of its lines, the other threads need 10 to 40 ns to write such a line again, on Zen 4. If calls of a team that has been
 * awake for some time take much longer than alone, the caller works alone on calls of that size and smaller ones, for a
 * multiple of the time that was lost.
 *
 * A team can come late on an idle machine too, after it has slept together with its caller: some systems wake the other
 * threads on the core of the caller, and move them to another core only milliseconds later. Where that has happened,
 * the caller handles small calls alone for these milliseconds, the next times that it has slept; more times each time
 * it happens again. If the threads still share a core after that, a call or two on all threads part them: the caller
 * does not work alone after these. The caller sees that it slept by its processor time, which it reads seldom. */
#define BN_SLACK 1e-4   /* seconds: to wake a team that sleeps */
#define BN_SLOW 1.5     /* a call is slow if it takes this many times as long as the caller alone */
#define BN_LONG 5e-4    /* seconds: no system interrupts a thread for less */
#define BN_WATCHED 16   /* how often processor time is read after something took long */
#define BN_REST 16.0    /* the caller works alone 16 times as long as the late call took: late calls cost a sixteenth */
#define BN_LONGEST 2.0  /* the longest time alone, in seconds */
#define BN_LOOK 5e-3    /* seconds between two readings: as long as the other threads spin before they sleep */
#define BN_MOST_GAINED 3e-2 /* seconds: some turns of another process, 3 to 4 ms each; the most that is lost, too */
#define BN_NAP 1e-2     /* seconds of sleep after which the system may wake all threads on one core */
#define BN_AWAKE 8e-3   /* seconds after which they may be on cores of their own: two ticks of the system's clock */
#define BN_PARTED 3.2e-2 /* seconds after which they certainly are: a thread that is late then has another reason */
#define BN_EVER 1e300   /* seconds: never */
#define BN_PUSHES 2     /* late calls after a sleep that part the threads, so that the caller goes on with the team */
#define BN_NAPS 16      /* the caller works alone after its next 16 sleeps; doubled each time threads are late again, */
#define BN_MOST_NAPS 256    /* up to this */
#define BN_MUCH 8388608 /* values that take the caller alone as long as it would wait: a small call has fewer */

typedef void (*bn_part)(void *job, ptrdiff_t i);

static BN_OF_THREAD double bn_alone_until = 0.0, bn_rest = BN_REST;
static BN_OF_THREAD double bn_looked_at = 0.0, bn_used_then = 0.0, bn_woke_at = 0.0;
static BN_OF_THREAD double bn_gained = 0.0, bn_excused_until = 0.0;
static BN_OF_THREAD double bn_started_at = 0.0, bn_ended_at = 0.0;  /* since and until when the team was awake */
static BN_OF_THREAD double bn_lost = 0.0;   /* in slow calls, less what other calls gained; not less than 0 */
static BN_OF_THREAD double bn_small_until = 0.0;    /* till then the caller is alone on up to bn_small values */
static BN_OF_THREAD ptrdiff_t bn_small = 0, bn_asked = 0;   /* bn_asked: the values of this call */
static BN_OF_THREAD int bn_excused = 0;     /* late calls that will not count, if they come in time */
static BN_OF_THREAD int bn_naps = BN_NAPS, bn_naps_left = 0;
static BN_OF_THREAD int bn_watched = BN_WATCHED;

static inline double bn_processor_time(void)
{
#ifdef CLOCK_THREAD_CPUTIME_ID
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
    return omp_get_wtime();
#endif
}

/* Whether the caller has slept since it last read its processor time. */
static inline int bn_slept(double now)
{
    double used, slept;
    if (bn_looked_at == 0.0 || now - bn_looked_at < BN_NAP)
        return 0;
    used = bn_processor_time();
    slept = (now - bn_looked_at) - (used - bn_used_then);
    bn_looked_at = now;
    bn_used_then = used;
    return slept >= BN_NAP;
}

/* Whether the caller should handle a call on this many values alone. */
static inline int bn_alone(ptrdiff_t values)
{
    const double now = omp_get_wtime();
    bn_asked = values;
    if (bn_slept(now)) {
        bn_woke_at = now;
        bn_excused = BN_PUSHES;
        bn_excused_until = now + BN_PARTED;
        if (bn_naps_left > 0 && values < BN_MUCH) {
            bn_naps_left--;
            bn_alone_until = bn_alone_until < now + BN_AWAKE ? now + BN_AWAKE : bn_alone_until;
        }
    }
    return now < bn_alone_until || (values <= bn_small && now < bn_small_until);
}

/* Forget that threads ever came late. */
static inline void bn_trust(void)
{
    bn_alone_until = bn_looked_at = bn_woke_at = 0.0;
    bn_rest = BN_REST;
    bn_naps = BN_NAPS;
    bn_naps_left = bn_excused = 0;
    bn_gained = bn_excused_until = 0.0;
    bn_ended_at = bn_lost = bn_small_until = 0.0;
}

/* Count a call of a team that nothing has held up. In the first BN_PARTED seconds threads may share a core. */
static inline void bn_weigh(double begun, double took, double alone)
{
    const double lost = took - BN_SLOW * alone;
    if (begun < bn_small_until || (lost < 0.0 && bn_asked > bn_small))
        return;
    if (bn_lost == 0.0)
        bn_small = 2 * bn_asked;
    bn_lost += lost;
    if (bn_lost < 0.0)
        bn_lost = 0.0;
    if (bn_lost > BN_MOST_GAINED)
        bn_lost = BN_MOST_GAINED;
    if (bn_lost > BN_LONG && begun > bn_started_at + BN_PARTED) {
        bn_small_until = begun + took + BN_REST * bn_lost;
        bn_lost = 0.0;
    }
}

/* Judge a call on all threads that took `took` seconds, where the caller alone would have needed `alone`: does the
 * caller work alone from now on, and how long? certain: whether `alone` can be trusted. */
static inline void bn_judge(double begun, double took, double alone, int certain)
{
    const int woke = begun < bn_woke_at + BN_AWAKE;
    const double gain = alone - took, now = begun + took;
    double rest;
    if (begun > bn_ended_at + BN_LOOK)
        bn_started_at = begun;
    bn_ended_at = now;
    if (gain >= -BN_SLACK) {
        bn_naps = woke ? BN_NAPS : bn_naps;
        if (gain > 0.0 && certain)
            bn_gained += gain;
        if (bn_gained >= BN_MOST_GAINED) {
            bn_gained = BN_MOST_GAINED;
            bn_rest = BN_REST;
        }
        bn_weigh(begun, took, alone);
        return;
    }
    if (woke) {
        bn_naps_left = bn_naps;
        bn_naps = bn_naps < BN_MOST_NAPS ? 2 * bn_naps : bn_naps;
    }
    if (begun < bn_excused_until && bn_excused-- > 0)
        return;
    bn_gained += gain;
    if (bn_gained >= 0.0)
        return;
    rest = bn_rest * took < BN_LONGEST ? bn_rest * took : BN_LONGEST;
    bn_gained = 0.0;
    bn_alone_until = now + rest;
    bn_excused = 1;
    bn_excused_until = BN_EVER;
    bn_rest = bn_rest < 16.0 * BN_REST ? 2.0 * bn_rest : bn_rest;
}

/* Run part(job, i) for every i below `threads`, each on its own thread; the caller runs part(job, 0). */
static inline void bn_share(bn_part part, void *job, int threads)
{
    const int watched = bn_watched;
    const double begun = omp_get_wtime(), used = watched ? bn_processor_time() : begun;
    double own = 0.0, took;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
    for (int i = 0; i < threads; i++) {
        part(job, i);
        if (i == 0)
            own = (watched ? bn_processor_time() : omp_get_wtime()) - used;
    }
    took = omp_get_wtime() - begun;
    bn_watched = took > BN_LONG ? BN_WATCHED : watched - (watched > 0);
    if (begun + took - bn_looked_at > BN_LOOK) {
        bn_looked_at = begun + took;
        bn_used_then = bn_processor_time();
    }
    bn_judge(begun, took, threads * own, watched || took <= BN_LONG);
}

/* bn_startable: how many of n threads a parallel region may have, either all or as many as this thread's last region
 * had. OpenMP runtimes end the process if the system refuses them a thread. So the additional threads are started here
 * first, all at once, with stacks of the size that the runtime will ask for and some memory for its own records, and
 * ended again. For each calling thread a runtime keeps as many workers as its last region had, so only more than these
 * are tried. */
#if defined(_OPENMP) && (defined(__unix__) || defined(__APPLE__))
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BN_RECORDS ((size_t)1 << 20)
#define BN_STACK ((size_t)1 << 19)  /* bytes: twice what sums of converted columns with weights need */

static BN_OF_THREAD int bn_team = 1;
static pthread_attr_t bn_worker;    /* attributes of a worker thread */
#ifdef __clang__
static int bn_begins_anew = 0;      /* whether the runtime does so in a forked child */
#endif

/* Read a stack size from the environment as GNU's runtime does: a number of KiB, or of a given unit. Return 0 if it is
 * absent or wrong. */
static inline int bn_stack_size(const char *name, size_t *size)
{
    const char *text = getenv(name);
    char *end;
    int shift = 10;
    unsigned long value;
    if (text == NULL)
        return 0;
    errno = 0;
    value = strtoul(text, &end, 10);
    if (errno || end == text)
        return 0;
    while (isspace((unsigned char)*end))
        end++;
    if (*end != '\0') {
        switch (tolower((unsigned char)*end)) {
        case 'b': shift = 0; break;
        case 'k': shift = 10; break;
        case 'm': shift = 20; break;
        case 'g': shift = 30; break;
        default: return 0;
        }
        end++;
        while (isspace((unsigned char)*end))
            end++;
    }
    if (*end != '\0' || ((value << shift) >> shift) != value)
        return 0;
    *size = value << shift;
    return 1;
}

/* Called once, when the module is imported; GNU's runtime has read the environment before that, and LLVM's, which Clang
 * uses, reads it here. If the system refuses a size, the default remains, as in the runtime. Return whether the stacks
 * of workers hold what the kernels put there; the default of musl does not. */
static inline int bn_read_environment(void)
{
    size_t found = 0;
    pthread_attr_init(&bn_worker);
#ifdef __clang__
    const char *fork = getenv("KMP_INIT_AT_FORK");
    bn_begins_anew = fork == NULL || strchr("1tTyY", fork[0]) != NULL;
    pthread_attr_setstacksize(&bn_worker, kmp_get_stacksize_s());
#else
    size_t size;
    if (bn_stack_size("OMP_STACKSIZE", &size) || bn_stack_size("GOMP_STACKSIZE", &size))
        pthread_attr_setstacksize(&bn_worker, size);
#endif
    return pthread_attr_getstacksize(&bn_worker, &found) != 0 || found >= BN_STACK;
}

static void *bn_wait(void *gate)
{
    pthread_mutex_lock((pthread_mutex_t *)gate);
    pthread_mutex_unlock((pthread_mutex_t *)gate);
    return NULL;
}

static inline int bn_startable(int n)
{
    const int wanted = n - bn_team;
    int made = 0;
    if (wanted > 0) {
        pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
        pthread_t *threads = (pthread_t *)malloc((size_t)wanted * sizeof *threads + BN_RECORDS);
        pthread_mutex_lock(&gate);
        while (threads && made < wanted && pthread_create(&threads[made], &bn_worker, bn_wait, &gate) == 0)
            made++;
        pthread_mutex_unlock(&gate);
        for (int i = 0; i < made; i++)
            pthread_join(threads[i], NULL);
        free(threads);
        if (made < wanted)
            return bn_team;
    }
    bn_team = n;
    return n;
}

static inline void bn_forget_team(void) { bn_team = 1; }
#else
static inline int bn_read_environment(void) { return 1; }
static inline int bn_startable(int n) { return n; }
static inline void bn_forget_team(void) {}
#endif

/* End the worker threads of this thread before a fork. GNU's runtime hangs in a child that inherits a record of workers
 * but not the workers. LLVM's begins anew in a child by itself, unless it is told not to, as scikit-learn does. Return 0
 * if the child has to stay serial. */
static inline int bn_release_workers(void)
{
    bn_forget_team();
#if defined(_OPENMP) && defined(__clang__) && !defined(_WIN32)
    return bn_begins_anew;
#elif defined(_OPENMP) && defined(BNORM_OMP_PAUSE)
    return omp_pause_resource_all(omp_pause_soft) == 0;
#else
    return 0;
#endif
}

#endif
