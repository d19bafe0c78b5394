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
 * process where the system refuses them a thread, so as many are started here first, all at once, and ended again. A
 * runtime keeps its workers, of each thread that calls it as many as the last region had; only more of them are tried. */
#if defined(_OPENMP) && (defined(__unix__) || defined(__APPLE__))
#include <pthread.h>
#include <stdlib.h>

static __thread int bn_team = 1;

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
        pthread_t *threads = (pthread_t *)malloc((size_t)wanted * sizeof *threads);
        pthread_mutex_lock(&gate);
        while (threads && made < wanted && pthread_create(&threads[made], NULL, bn_wait, &gate) == 0)
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
