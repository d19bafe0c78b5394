// What code compiled with -fsanitize=undefined calls when it meets what the language leaves undefined. In place of the
// library of the compiler, so that the error is one of the launch and not the end of the process.
#include "runtime.h"

namespace {

struct Location {  // laid out by the compiler
  const char* file;
  uint32_t line, column;
};
struct TypeMismatch {
  Location at;
  const void* type;
  uint8_t log_alignment, kind;
};

[[noreturn]] void found(const Location& at, const char* what) { emu::fail({at.file, (int)at.line}, "%s", what); }

}  // namespace

extern "C" {

[[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(const TypeMismatch* data, uintptr_t pointer) {
  const emu::Site site = {data->at.file, (int)data->at.line};
  const auto alignment = (uintptr_t)1 << data->log_alignment;
  if (!pointer) emu::fail(site, "a null pointer is used");
  if (pointer % alignment) emu::fail(site, "misaligned: %zu bytes are wanted", (size_t)alignment);
  emu::fail(site, "an object is used that is larger than its memory");
}

// All others: the data starts with the place, and what follows is not looked at.
#define BN_HANDLER(name, what) \
  [[noreturn]] void __ubsan_handle_##name(const Location* at) { found(*at, what); }
BN_HANDLER(out_of_bounds_abort, "an index out of bounds")
BN_HANDLER(add_overflow_abort, "a signed sum overflows")
BN_HANDLER(sub_overflow_abort, "a signed difference overflows")
BN_HANDLER(mul_overflow_abort, "a signed product overflows")
BN_HANDLER(negate_overflow_abort, "a negation overflows")
BN_HANDLER(divrem_overflow_abort, "a division by zero, or one that overflows")
BN_HANDLER(shift_out_of_bounds_abort, "a shift by too many bits, or of a negative number")
BN_HANDLER(pointer_overflow_abort, "pointer arithmetic overflows, or starts at null")
BN_HANDLER(load_invalid_value_abort, "a bool or an enum with a value that it cannot have")
BN_HANDLER(vla_bound_not_positive_abort, "an array without elements")
BN_HANDLER(float_cast_overflow_abort, "a floating-point number that its integer cannot hold")
BN_HANDLER(nonnull_arg_abort, "a null pointer for an argument that must not be null")
BN_HANDLER(invalid_builtin_abort, "zero, whose leading or trailing zeros have no number")
BN_HANDLER(builtin_unreachable, "a place that cannot be reached")
BN_HANDLER(missing_return, "the end of a function that returns a value")
#undef BN_HANDLER
}
