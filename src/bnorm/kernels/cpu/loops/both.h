/* Includes BN_TEMPLATE twice: first `real` is float, then double. In the template, OF(name) is name_float or
 * name_double, and `integer` is the integer type as wide as a real. */
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
