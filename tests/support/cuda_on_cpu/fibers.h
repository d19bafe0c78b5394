// Fibers: functions with a stack of their own that give control back and take it up again, all on one thread of the
// system. Assembly on x86-64, ucontext elsewhere (or with EMU_UCONTEXT); AddressSanitizer is told of every switch.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#if !defined(EMU_ASAN)
#define EMU_ASAN 0
#endif
#if EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT 1
#endif
#if defined(EMU_UCONTEXT)
#include <ucontext.h>
#endif

namespace emu {

inline void allow(const void* p, size_t bytes) {
#if EMU_ASAN
  __asan_unpoison_memory_region(p, bytes);
#endif
  (void)p, (void)bytes;
}
inline void forbid(const void* p, size_t bytes) {
#if EMU_ASAN
  __asan_poison_memory_region(p, bytes);
#endif
  (void)p, (void)bytes;
}

// Stacks are cut from large slabs and used again. Guard pages would be a mapping each, of which a system has few; the
// last words of a stack are watched instead.
class Stacks {
 public:
  // No power of two, or else the tops of all stacks would want the same few lines of the cache.
  static constexpr size_t BYTES = (EMU_ASAN ? 256 : 64) * 1024 + 5 * 64;
  static constexpr uint64_t MARK = 0x5ca1ab1e0ddba11ull;

  char* take() {
    if (free_.empty()) grow();
    char* stack = free_.back();
    free_.pop_back();
    memcpy(stack, &MARK, sizeof MARK);
    return stack;
  }
  void give(char* stack) {
    allow(stack, BYTES);
    free_.push_back(stack);
  }
  static bool whole(const char* stack) {  // asked at every switch: one load, where memcmp may be a call
    uint64_t mark;
    memcpy(&mark, stack, sizeof mark);
    return mark == MARK;
  }

 private:
  void grow() {
    constexpr size_t COUNT = 256, SLACK = BYTES;  // below them all: an overflow is to be seen, not to crash
    constexpr int PROTECTION = PROT_READ | PROT_WRITE, FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* slab = mmap(nullptr, SLACK + COUNT * BYTES, PROTECTION, FLAGS, -1, 0);
    if (slab == MAP_FAILED) {
      perror("no memory for the stacks of fibers");
      abort();
    }
    for (size_t i = COUNT; i-- > 0;) free_.push_back(static_cast<char*>(slab) + SLACK + i * BYTES);
  }
  std::vector<char*> free_;
};

#if !defined(EMU_UCONTEXT)
extern "C" void emu_switch(void** from, void* to);
#if defined(EMU_RUNTIME)
// Saves what a call must keep (System V ABI, floating-point control aside: kernels leave it alone).
__asm__(
    ".text\n.p2align 4\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\n"
    "emu_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp,(%rdi)\n  movq %rsi,%rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size emu_switch,.-emu_switch\n");
#endif
#endif

// One side of a switch: the scheduler has one, and each fiber.
struct Context {
#if defined(EMU_UCONTEXT)
  ucontext_t registers;
#else
  void* top = nullptr;
#endif
  const void* bottom = nullptr;  // of its stack, for AddressSanitizer
  size_t bytes = 0;
  void* shadow = nullptr;

  // Start `body` at the next switch to this context.
  void prepare(char* stack, void (*body)()) {
    bottom = stack, bytes = Stacks::BYTES, shadow = nullptr;
#if defined(EMU_UCONTEXT)
    getcontext(&registers);
    registers.uc_stack.ss_sp = stack;
    registers.uc_stack.ss_size = Stacks::BYTES;
    registers.uc_link = nullptr;
    makecontext(&registers, body, 0);
#else
    void** p = reinterpret_cast<void**>(stack + Stacks::BYTES);
    *--p = nullptr;  // where a return address would be: `body` never returns, and finds its stack aligned
    *--p = reinterpret_cast<void*>(body);
    for (int i = 0; i < 6; ++i) *--p = nullptr;
    top = p;
#endif
  }
};

// Leave `from`, for good if `last`, and go on with `to`; returns when somebody switches to `from`.
inline void switch_context(Context& from, Context& to, bool last = false) {
#if EMU_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &from.shadow, to.bottom, to.bytes);
#endif
  (void)last;
#if defined(EMU_UCONTEXT)
  swapcontext(&from.registers, &to.registers);
#else
  emu_switch(&from.top, to.top);
#endif
#if EMU_ASAN
  __sanitizer_finish_switch_fiber(from.shadow, nullptr, nullptr);
#endif
}

// The first thing that a fiber does: learns which stack it came from.
inline void arrived(Context& from) {
#if EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.bytes);
#endif
  (void)from;
}

}  // namespace emu
