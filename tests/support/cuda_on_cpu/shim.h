// The part of CUDA C++ that header-free kernels use, for g++: included before their text, with BN_ON_CPU defined.
//
// A thread of a block is a fiber (fibers.h), and runtime.cpp decides which one runs. Barriers, warp operations and
// atomics call the runtime, which checks them; everything else is ordinary C++. What needs PTX has a twin under
// `#ifdef BN_ON_CPU`. A loop that waits for another block reads by an atomic, and calls __nanosleep to let it run.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define BN_ON_CPU 1

#define __global__
#define __device__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)  // emulator.py reads it in the text
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ \
  _Pragma("GCC error \"shared memory is declared by BN_SHARED(T, name, count) or BN_DYN_SHARED(T, name)\"")

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) float4 {
  float x, y, z, w;
};

// What runtime.cpp does ----------------------------------------------------------------------------------------------

namespace emu {

// A place in the source. Given as a default argument, it is the place of the call.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

struct Thread {
  uint3 index;
  int lane;
};

extern Thread* self;  // the thread that runs
extern uint3 block_index;
extern dim3 block_size, grid_size;

int block_barrier(const char* what, int predicate, Site site);  // how many threads of the block said yes
void named_barrier(int name, int threads, Site site);
void warp_barrier(const char* what, unsigned mask, Site site);
uint64_t warp_exchange(const char* what, unsigned mask, uint64_t value, int source, Site site);
unsigned warp_ballot(const char* what, unsigned mask, int predicate, Site site);
void yield(const char* what, Site site);  // let the others run
void pause(const char* what, Site site);  // the same, perhaps
void fence(Site site);
void atomic(const char* what, const volatile void* at, size_t bytes, Site site, const void* caller);
void* shared(const void* key, size_t bytes, size_t alignment, const char* name, Site site);
void* dynamic_shared(Site site);
void copy(void* to, const void* from, size_t bytes, Site site, const void* caller);
void copies_end_group();
void copies_wait(int groups, Site site);
void cluster_arrive(bool orders, Site site);
void cluster_wait(Site site);
void* cluster_map(const void* at, unsigned rank, Site site);
[[noreturn]] void fail(Site site, const char* format, ...) __attribute__((format(printf, 2, 3)));

template <class T>
struct Given {
  using type = T;
};
template <class T>
using given = typename Given<T>::type;  // a parameter that has no say in what T is

}  // namespace emu

#define threadIdx (::emu::self->index)
#define blockIdx (::emu::block_index)
#define blockDim (::emu::block_size)
#define gridDim (::emu::grid_size)

namespace emu {

// A reference to an array, so that sizeof and the bounds checks of the compiler know its length.
template <class T, size_t count>
T (&shared_array(const void* key, const char* name, Site site))
[count] { return *static_cast<T(*)[count]>(shared(key, sizeof(T) * count, alignof(T), name, site)); }

}  // namespace emu

#define BN_SHARED(T, name, count) \
  static char name##_key;         \
  auto& name = ::emu::shared_array<T, count>(&name##_key, #name, ::emu::Site::here())
#define BN_DYN_SHARED(T, name) T* name = static_cast<T*>(::emu::dynamic_shared(::emu::Site::here()))

// Barriers, votes, shuffles ------------------------------------------------------------------------------------------

using emu_site = emu::Site;
#define BN_HERE emu_site site = emu_site::here(__builtin_FILE(), __builtin_LINE())

inline void __syncthreads(BN_HERE) { emu::block_barrier("__syncthreads", 0, site); }
inline int __syncthreads_count(int yes, BN_HERE) { return emu::block_barrier("__syncthreads_count", yes, site); }
inline int __syncthreads_or(int yes, BN_HERE) { return emu::block_barrier("__syncthreads_or", yes, site) > 0; }
inline int __syncthreads_and(int yes, BN_HERE) { return emu::block_barrier("__syncthreads_and", !yes, site) == 0; }
// bar.sync with a name, from 1 on, and a number of threads, which is of whole warps. The word is ours: CUDA has none.
inline void __named_barrier(int name, int threads, BN_HERE) { emu::named_barrier(name, threads, site); }
inline void __syncwarp(unsigned mask = ~0u, BN_HERE) { emu::warp_barrier("__syncwarp", mask, site); }
inline unsigned __ballot_sync(unsigned mask, int yes, BN_HERE) {
  return emu::warp_ballot("__ballot_sync", mask, yes, site);
}
inline int __any_sync(unsigned mask, int yes, BN_HERE) { return emu::warp_ballot("__any_sync", mask, yes, site) != 0; }
inline int __all_sync(unsigned mask, int yes, BN_HERE) { return emu::warp_ballot("__all_sync", mask, !yes, site) == 0; }

namespace emu {

template <class T>
T shuffle(const char* what, unsigned mask, T value, int source, int width, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "a shuffle moves at most eight bytes");
  if (width < 1 || width > 32 || (width & (width - 1)))
    fail(site, "%s: width %d is no power of two to 32", what, width);
  uint64_t raw = 0;
  memcpy(&raw, &value, sizeof(T));
  raw = warp_exchange(what, mask, raw, source, site);
  memcpy(&value, &raw, sizeof(T));
  return value;
}

}  // namespace emu

// A source outside of the segment is the lane itself, as on a device.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, BN_HERE) {
  const int lane = emu::self->lane;
  return emu::shuffle("__shfl_sync", mask, value, (lane & -width) | (source & (width - 1)), width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, BN_HERE) {
  const int lane = emu::self->lane, source = lane ^ bits;
  return emu::shuffle("__shfl_xor_sync", mask, value, source > (lane | (width - 1)) ? lane : source, width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, BN_HERE) {
  const int lane = emu::self->lane, source = lane + (int)delta;
  return emu::shuffle("__shfl_down_sync", mask, value, source > (lane | (width - 1)) ? lane : source, width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, BN_HERE) {
  const int lane = emu::self->lane, source = lane - (int)delta;
  return emu::shuffle("__shfl_up_sync", mask, value, source < (lane & -width) ? lane : source, width, site);
}

// Clusters: blocks that run together, and see each other's shared memory. The first of their barriers says that all
// have started, which is to be known before one of them is written to.

inline void __cluster_barrier_arrive(BN_HERE) { emu::cluster_arrive(true, site); }
inline void __cluster_barrier_arrive_relaxed(BN_HERE) { emu::cluster_arrive(false, site); }
inline void __cluster_barrier_wait(BN_HERE) { emu::cluster_wait(site); }
inline void* __cluster_map_shared_rank(const void* at, unsigned rank, BN_HERE) {
  return emu::cluster_map(at, rank, site);
}

#include "messages.h"

// Copies of memory into shared memory, cp.async on a device, while the thread goes on. The words are ours, as CUDA has
// them in a header only. What is there meanwhile is poison; the copy comes at the last moment, when a thread waits for
// all but so many of its last groups.

__attribute__((noinline)) inline void __copy_async(void* to, const void* from, size_t bytes, BN_HERE) {
  emu::copy(to, from, bytes, site, __builtin_return_address(0));
}
inline void __copy_end_group() { emu::copies_end_group(); }
inline void __copy_wait(int groups, BN_HERE) { emu::copies_wait(groups, site); }

// Memory between blocks ----------------------------------------------------------------------------------------------

inline void __threadfence(BN_HERE) { emu::fence(site); }
inline void __nanosleep(unsigned, BN_HERE) { emu::yield("__nanosleep", site); }

// One fiber runs at a time, so that plain arithmetic is atomic; races.cpp shall not take it for ordinary loads and
// stores. Sums of floating-point numbers are left out on purpose: in an order that luck decides, two runs give
// different bits.
#define BN_ATOMIC(name, expression)                                                         \
  template <class T>                                                                        \
  __attribute__((noinline, no_sanitize("thread"))) T name(T* p, emu::given<T> v, BN_HERE) { \
    static_assert(std::is_integral_v<T>, #name " of integers only: others depend on luck"); \
    emu::atomic(#name, p, sizeof(T), site, __builtin_return_address(0));                    \
    const T old = *p;                                                                       \
    *p = (expression);                                                                      \
    emu::pause(#name, site);                                                                \
    return old;                                                                             \
  }
BN_ATOMIC(atomicAdd, (T)((unsigned long long)old + (unsigned long long)v))
BN_ATOMIC(atomicMax, v > old ? v : old)
BN_ATOMIC(atomicOr, old | v)
BN_ATOMIC(atomicExch, v)
BN_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
#undef BN_ATOMIC

// Loads with hints about caches.
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}

// Arithmetic ---------------------------------------------------------------------------------------------------------

namespace emu {

template <class To, class From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace emu

inline unsigned __float_as_uint(float x) { return emu::bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits<float>(x); }
inline long long __double_as_longlong(double x) { return emu::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emu::bits<double>(x); }
inline int __double2hiint(double x) { return (int)(emu::bits<uint64_t>(x) >> 32); }

inline int __ffs(int x) { return __builtin_ffs(x); }

inline void __trap(BN_HERE) { emu::fail(site, "__trap"); }

// Calls by arrays of pointers to the arguments, as cuLaunchKernel makes them ------------------------------------------

namespace emu {

// What a parameter is: i, u, f (arithmetic), p (pointer), s (struct); and, of a pointer, what it points to.
struct Parameter {
  char kind, target;
  int bytes, target_bytes;
};

template <class T>
constexpr char kind_of() {
  if (std::is_pointer_v<T>) return 'p';
  if (std::is_floating_point_v<T>) return 'f';
  if (std::is_integral_v<T>) return std::is_signed_v<T> ? 'i' : 'u';
  return 's';
}
template <class T>
constexpr Parameter parameter() {
  static_assert(std::is_trivially_copyable_v<T>, "a parameter of a kernel is copied byte by byte");
  using Target = std::remove_cv_t<std::remove_pointer_t<T>>;
  if constexpr (std::is_pointer_v<T> && !std::is_void_v<Target>)
    return {'p', kind_of<Target>(), sizeof(T), sizeof(Target)};
  else
    return {kind_of<T>(), 0, sizeof(T), 0};
}

struct Kernel {
  const char* name;
  void (*call)(void** arguments);
  const Parameter* parameters;
  int count;
};
void add_kernel(int index, const Kernel& kernel);

template <auto kernel, class F>
struct Entry;
template <auto kernel, class... P>
struct Entry<kernel, void (*)(P...)> {
  template <size_t... I>
  static void unpack(void** arguments, std::index_sequence<I...>) {
    (void)arguments;
    kernel(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
  }
  static void call(void** arguments) { unpack(arguments, std::index_sequence_for<P...>{}); }
  Entry(int index, const char* name) {
    static constexpr Parameter parameters[sizeof...(P) + 1] = {parameter<std::remove_cv_t<P>>()..., Parameter{}};
    add_kernel(index, {name, call, parameters, (int)sizeof...(P)});
  }
};

}  // namespace emu
#define BN_ENTRY(index, ...) \
  static const ::emu::Entry<&__VA_ARGS__, decltype(&__VA_ARGS__)> entry_##index(index, #__VA_ARGS__);
