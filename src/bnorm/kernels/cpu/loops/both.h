/* Includes BN_TEMPLATE twice: with `real` for float and for double. There OF(name) is what a name is in one of the two,
 * name_float or name_double, and `integer` is as wide as a real. */
#define real float
#define integer int32_t
#define OF(name) name##_float
#define BN_IS_FLOAT 1
#include BN_TEMPLATE
#undef real
#undef integer
#undef OF
#undef BN_IS_FLOAT

#define real double
#define integer int64_t
#define OF(name) name##_double
#define BN_IS_FLOAT 0
#include BN_TEMPLATE
#undef real
#undef integer
#undef OF
#undef BN_IS_FLOAT

#undef BN_TEMPLATE
