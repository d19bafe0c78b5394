// Barriers in shared memory that count arrivals and bytes, mbarrier on a device, and stores into another block of the
// cluster that are counted there, st.async. They order what is stored, and tell nothing of device memory. The words are
// ours. A barrier is known to others behind __mbarrier_init_fence and then a barrier of the cluster, of either kind.
#pragma once

namespace emu {

void counter_init(uint64_t* at, unsigned count, Site site, const void* caller);
void counters_fence();
void counter_expect(uint64_t* at, unsigned bytes, Site site, const void* caller);
void counter_wait(uint64_t* at, unsigned parity, Site site, const void* caller);
void send(void* at, uint64_t value, uint64_t* counter, unsigned rank, Site site, const void* caller);

}  // namespace emu

#define BN_CALLED __attribute__((noinline)) inline void
BN_CALLED __mbarrier_init(unsigned long long* at, unsigned count, BN_HERE) {
  emu::counter_init((uint64_t*)at, count, site, __builtin_return_address(0));
}
inline void __mbarrier_init_fence() { emu::counters_fence(); }
BN_CALLED __mbarrier_expect(unsigned long long* at, unsigned bytes, BN_HERE) {  // and arrive
  emu::counter_expect((uint64_t*)at, bytes, site, __builtin_return_address(0));
}
BN_CALLED __mbarrier_wait(unsigned long long* at, unsigned parity, BN_HERE) {  // for the end of a phase, from 0 on
  emu::counter_wait((uint64_t*)at, parity, site, __builtin_return_address(0));
}
// To where `at` is in this block, and the barrier.
BN_CALLED __store_async(double* at, double v, unsigned long long* barrier, unsigned rank, BN_HERE) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  emu::send(at, bits, (uint64_t*)barrier, rank, site, __builtin_return_address(0));
}
#undef BN_CALLED
