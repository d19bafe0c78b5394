// Memory that is asked for before it is needed.

// Prefetch into the second-level cache.
BN_DEV void soon(const void* at) {
#ifndef BN_ON_CPU
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

// A thread fetches vectors into shared memory while it goes on. No other thread reads these vectors. They come in
// groups, and the thread must have used what was in their place before.

template <class T, int V>
BN_DEV void fetch(Vector<T, V>* to, const T* from) {
  constexpr int BYTES = sizeof(Vector<T, V>);
#ifdef BN_ON_CPU
  if constexpr (BYTES >= 4) return __copy_async(to, from, BYTES);
#elif __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    return;
  } else if constexpr (BYTES >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES) : "memory");
    return;
  }
#endif
  *to = load<T, V>(from);
}

BN_DEV void end_group() {
#ifdef BN_ON_CPU
  __copy_end_group();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait for all groups but the last `later` ones, and perhaps for some of these too.
template <int LATER>
BN_DEV void await_all_but() {
#ifdef BN_ON_CPU
  __copy_wait(LATER);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
#endif
}
BN_DEV void await(i64 later) {
  if (later >= 3) return await_all_but<3>();
  if (later == 2) return await_all_but<2>();
  if (later == 1) return await_all_but<1>();
  await_all_but<0>();
}

// The groups in which a thread fetches its steps: STEPS steps to a group.
template <int STEPS>
struct Groups {
  static BN_MEMBER bool ends(i64 step, i64 steps) { return step % STEPS == STEPS - 1 || step == steps - 1; }
  // Wait for all steps but the last `left`.
  BN_MEMBER void operator()(i64 left) const { await((left + STEPS - 1) / STEPS); }
};

struct AllThere {  // for what is not fetched: no wait
  BN_MEMBER void operator()(i64) const {}
};

// Blocks that go on from one piece of work to the next begin one after the other: each waits for as long as the memory
// takes to read `bytes`, the first pieces of the blocks before it. Otherwise all blocks would read, sum and map in
// step, as each gets an equal share of the memory's bandwidth, and memory would idle while they sum.
constexpr int PACE = 1600;  // bytes in a cycle: 3 TB/s at 1.9 GHz

BN_DEV void wait_for_turn(i64 bytes) {
#ifndef BN_ON_CPU
  const i64 start = clock64();
  while (clock64() - start < bytes / PACE) __nanosleep(100);
#endif
}
