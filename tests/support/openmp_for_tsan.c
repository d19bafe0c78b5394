/* Tells ThreadSanitizer what GNU's OpenMP runtime orders, which is compiled without it: what the caller did before a
 * parallel region, what all threads did before a barrier, and what they did before the region ended. It is preloaded
 * between both libraries, takes the runtime's two functions that wait, and passes each call on. */
#define _GNU_SOURCE
#include <dlfcn.h>

void __tsan_acquire(void *);
void __tsan_release(void *);

typedef struct Team {
    void (*part)(void *);
    void *data;
    char begun, barrier, ended;
} Team;
static __thread Team *of_thread;

static void part(void *data)
{
    Team *team = data, *outer = of_thread;
    __tsan_acquire(&team->begun);
    of_thread = team;
    team->part(team->data);
    of_thread = outer;
    __tsan_release(&team->ended);
}

void GOMP_parallel(void (*f)(void *), void *data, unsigned threads, unsigned flags)
{
    void (*next)(void (*)(void *), void *, unsigned, unsigned) = dlsym(RTLD_NEXT, "GOMP_parallel");
    Team team = {f, data};
    __tsan_release(&team.begun);
    next(part, &team, threads, flags);
    __tsan_acquire(&team.ended);
}

void GOMP_barrier(void)
{
    void (*next)(void) = dlsym(RTLD_NEXT, "GOMP_barrier");
    if (of_thread)
        __tsan_release(&of_thread->barrier);
    next();
    if (of_thread)
        __tsan_acquire(&of_thread->barrier);
}
