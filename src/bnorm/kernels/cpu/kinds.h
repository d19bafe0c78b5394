/* The types of arrays, for loops that take more types than those of narrow.h. */
#ifndef BNORM_KINDS_H
#define BNORM_KINDS_H

#include "narrow.h"

enum { BN_FLOAT32 = BN_INT16 + 1, BN_FLOAT64, BN_INT32, BN_UINT32, BN_INT64, BN_UINT64 };

#endif
