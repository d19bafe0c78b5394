/* What the entry of the extremes tells its loops. */
#ifndef BNORM_EXTREMES_JOB_H
#define BNORM_EXTREMES_JOB_H

#include <stddef.h>

/* Bytes of an array that hardly lies in a cache, so that it is fetched ahead: in a cache, that costs up to a third of
 * the speed; from memory it doubled it. */
enum { BN_FAR = 16 << 20 };

typedef struct {
    const void *x;
    const double *weight;   /* [outer][inner] or NULL: where it is 0 a value does not count */
    int kind;               /* of kinds.h, BN_FLOAT64 at most */
    int skipna;             /* else a channel with NaN has the extremes NaN */
    int far;                /* x is BN_FAR or more */
    ptrdiff_t outer, channels, inner;
    ptrdiff_t piece, pieces;        /* outer positions of a task; if there is one channel, values */
    int threads;
    double *least, *greatest;       /* [pieces][channels]: infinities where nothing counts */
} bn_extremes_job;

#endif
