/* The types of arrays. narrow.h converts bools and integers, halves.h half precision. */
#ifndef BNORM_KINDS_H
#define BNORM_KINDS_H

enum {
    BN_REAL,    /* float32 or float64, which the loops compute in: nothing is converted */
    BN_HALF, BN_BFLOAT, BN_BOOL, BN_UINT8, BN_INT8, BN_UINT16, BN_INT16,
    BN_FLOAT32, BN_FLOAT64,     /* where a number has to tell them apart */
    BN_INT32, BN_UINT32, BN_INT64, BN_UINT64
};

#endif
