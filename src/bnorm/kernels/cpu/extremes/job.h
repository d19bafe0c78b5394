/* The job that the entry of the extremes gives to its loops. */
#ifndef BNORM_EXTREMES_JOB_H
#define BNORM_EXTREMES_JOB_H

#include <stddef.h>

/* An array of this many bytes is hardly in a cache, so it is fetched ahead. For an array in a cache that would cost up
 * to a third of the speed; from memory it doubled the speed. */
enum { BN_FAR = 16 << 20 };

typedef struct {
    const void *x;
    const double *weight;   /* [outer][inner] or NULL: a value of weight 0 does not count */
    int kind;               /* of kinds.h */
    int skipna;             /* ignore NaN; otherwise a channel with NaN has NaN extremes */
    int far;                /* x has BN_FAR bytes or more */
    ptrdiff_t outer, channels, inner;
    ptrdiff_t piece, pieces;        /* outer positions of a task; with one channel and no weights, its values */
    int threads;
    double *least, *greatest;       /* [pieces][channels]: infinities where nothing counts */
} bn_extremes_job;

#endif
