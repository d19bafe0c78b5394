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

/* Give the worker threads of this thread back before a fork. GNU's runtime hangs in a child that inherits the record of
 * workers it does not have. Returns 0 where the runtime cannot do it; the child then stays serial. */
static inline int bn_release_workers(void)
{
#if defined(_OPENMP) && defined(BNORM_OMP_PAUSE)
    return omp_pause_resource_all(omp_pause_soft) == 0;
#else
    return 0;
#endif
}

#endif
