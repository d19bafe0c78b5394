/* OpenMP's names where there is OpenMP, their serial meaning where there is not. */
#ifndef BNORM_THREADS_H
#define BNORM_THREADS_H

#ifdef _OPENMP
#include <omp.h>
#define BN_OPENMP _OPENMP
#else
#define BN_OPENMP 0
static inline int omp_get_max_threads(void) { return 1; }
static inline void omp_set_num_threads(int n) { (void)n; }
#endif

/* How many of n threads a parallel region may have: all, or as many as this thread's last one had. OpenMP runtimes end the
 * process where the system refuses them a thread, so as many are started here first, all at once, and ended again: with
 * stacks of the size that the runtime will ask for, and some room for its own records. A runtime keeps its workers, of each thread that calls it as many as the last region had; only more of them are tried. */
#if defined(_OPENMP) && (defined(__unix__) || defined(__APPLE__))
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define BN_RECORDS ((size_t)1 << 20)

static __thread int bn_team = 1;
static pthread_attr_t bn_worker;    /* attributes of a worker thread */

/* Read a stack size as GNU's runtime does: a number of KiB, or with a unit. Returns 0 if it is absent or wrong. */
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

/* Once, when the module is imported: the runtime has read the environment before. A size that the system does not take
 * leaves its default, as it does there. */
static inline void bn_read_environment(void)
{
    size_t size;
    pthread_attr_init(&bn_worker);
    if (bn_stack_size("OMP_STACKSIZE", &size) || bn_stack_size("GOMP_STACKSIZE", &size))
        pthread_attr_setstacksize(&bn_worker, size);
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
static inline void bn_read_environment(void) {}
static inline int bn_startable(int n) { return n; }
static inline void bn_forget_team(void) {}
#endif

/* Give the worker threads of this thread back before a fork. GNU's runtime hangs in a child that inherits the record of
 * workers it does not have. Returns 0 where the runtime cannot do it; the child then stays serial. */
static inline int bn_release_workers(void)
{
    bn_forget_team();
#if defined(_OPENMP) && defined(BNORM_OMP_PAUSE)
    return omp_pause_resource_all(omp_pause_soft) == 0;
#else
    return 0;
#endif
}

#endif
