// Finds races: two threads at the same byte, at least one of them writing, and nothing that orders them.
//
// Kernels compiled with -fsanitize=thread call __tsan_* at every load and store. Those functions are here, for the
// library of the compiler knows nothing of blocks and warps. What orders two accesses:
//
//   - of one block: a barrier of the block between them (epochs), a warp operation of both (a vector clock per
//   warp), or a barrier with a name; of one cluster: a barrier of the cluster, unless it was arrived at relaxed; and in
//   shared memory alone, a store into another block (messages.cpp) and a wait for it;
//   - of two blocks: the first is behind a __threadfence and then an atomic, the second behind an atomic at the same
//     address and then a __threadfence, each by this thread or, over barriers, by another one of the block.
//
// So a missing fence is seen too, which no run on a CPU would show. Accesses before a launch are no concern of it.
//
// A copy into shared memory is under way until its thread has waited for it. Until then nobody, that thread and those
// behind a barrier included, may use what it writes to, or write to what it reads.
#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>

#include "runtime.h"

extern "C" const char __ehdr_start __attribute__((visibility("hidden")));  // where the library is in memory

namespace emu::races {
namespace {

using Clock = std::array<unsigned, 32>;  // for each lane of a warp, the last tick of it that is known

// What is known of other blocks: their barriers, and the clocks of their warps.
struct Knowledge {
  std::unordered_map<unsigned, unsigned> epochs;
  std::unordered_map<uint64_t, Clock> clocks;

  static uint64_t warp(unsigned block, unsigned thread) { return (uint64_t)block << 32 | thread / 32; }
  void learn(unsigned block, unsigned epoch) {
    unsigned& known = epochs[block];
    known = std::max(known, epoch);
  }
  void learn(uint64_t warp, const Clock& clock) {
    Clock& known = clocks[warp];
    for (int i = 0; i < 32; ++i) known[i] = std::max(known[i], clock[i]);
  }
  bool empty() const { return epochs.empty() && clocks.empty(); }
  void learn(const Knowledge& other) {
    for (const auto& [block, epoch] : other.epochs) learn(block, epoch);
    for (const auto& [warp, clock] : other.clocks) learn(warp, clock);
  }
};

struct ThreadState {
  Clock clock{}, fenced_clock{};
  unsigned fenced_epoch = 0;
  bool dirty = false;         // has written what others can see since its last fence
  Knowledge known, unfenced;  // what it knows, and will know behind its next fence
  Knowledge told;             // of shared memory alone
  std::shared_ptr<const Knowledge> met;  // of its block, by barriers with a name
};

struct BlockState {
  unsigned epoch = 1;        // barriers passed, and one
  unsigned clean_epoch = 1;  // what was written before this epoch is behind fences
  std::vector<ThreadState> threads;
  Knowledge known, unfenced, told;
};

struct Access {
  unsigned block = 0;  // none
  unsigned epoch = 0, tick = 0;
  unsigned short thread = 0;
  bool atomic = false;
  unsigned place = 0;  // in the library
};

// Of the reads since the last write: the last one, and the last of another thread of its warp and of another warp.
struct Cell {
  Access write, reads[3];
  bool arrives = false;     // a copy under way writes to it, and that was the last write
  unsigned short read = 0;  // so many copies under way read it
};

constexpr size_t PAGE = 1024, MANY_PAGES = 2000;
struct Page {
  unsigned launch = 0;
  std::array<Cell, PAGE> cells;
};

std::unordered_map<const Block*, BlockState> blocks;
std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
std::unordered_map<uintptr_t, Knowledge> published;  // by the address of an atomic
unsigned pages_launch = 0, published_launch = 0;     // what launches they are of

BlockState& mine() { return blocks.find(block)->second; }
unsigned thread_number() { return (unsigned)(&current() - block->fibers.data()); }
bool inside(const void* p, const char* start, size_t bytes) { return p >= start && p < start + bytes; }
bool in_shared(const void* p) {
  for (const Block* b : block->cluster->blocks)
    if (inside(p, b->memory, b->capacity)) return true;
  return false;
}
bool in_cluster(unsigned serial, unsigned other) {  // whose blocks are started together
  return (serial - 1) / launch.cluster == (other - 1) / launch.cluster;
}

Cell& cell(uintptr_t at) {
  if (pages_launch != launch.number && pages.size() > MANY_PAGES) pages.clear();
  pages_launch = launch.number;
  std::unique_ptr<Page>& page = pages[at / PAGE];
  if (!page) page = std::make_unique<Page>();
  if (page->launch != launch.number) *page = Page{launch.number, {}};
  return page->cells[at % PAGE];
}

bool knows(const Knowledge& known, const Access& a) {
  const auto epoch = known.epochs.find(a.block);
  if (epoch != known.epochs.end() && a.epoch < epoch->second) return true;
  const auto clock = known.clocks.find(Knowledge::warp(a.block, a.thread));
  return clock != known.clocks.end() && a.tick <= clock->second[a.thread % 32];
}

bool ordered(const Access& a, const Access& now, const BlockState& b, bool shared) {
  const ThreadState& t = b.threads[now.thread];
  if (shared && (knows(t.told, a) || knows(b.told, a))) return true;
  if (a.block != now.block) return knows(t.known, a) || knows(b.known, a);
  if (a.thread == now.thread || a.epoch < b.epoch) return true;
  if (a.thread / 32 == now.thread / 32 && a.tick <= t.clock[a.thread % 32]) return true;
  return t.met && knows(*t.met, a);
}

void compare(const Access& a, const char* did, const Access& now, const char* does, bool shared) {
  if (!a.block || (a.atomic && now.atomic) || (shared && !in_cluster(a.block, now.block))) return;
  if (ordered(a, now, mine(), shared)) return;
  const std::string who = text("thread %u%s", a.thread, a.block == now.block ? "" : " of another block");
  stop(text("a race in %s memory: @0x%x %s what %s %s at @0x%x, and nothing orders them", shared ? "shared" : "device",
            now.place, does, who.c_str(), did, a.place));
}

void remember_read(Cell& c, const Access& now) {
  const Access last = c.reads[0];
  if (last.block && last.thread / 32 == now.thread / 32 && last.block == now.block) {
    if (last.thread != now.thread) c.reads[1] = last;
  } else {
    c.reads[2] = last;
  }
  c.reads[0] = now;
}

void access(const volatile void* p, size_t bytes, bool writes, bool atomic, const void* pc) {
  if (!self || inside((const void*)p, current().stack, Stacks::BYTES)) return;
  if (current().arrival == Arrival::ORDERS)
    stop("memory is used between the two parts of a cluster's barrier, of which the first orders what comes before it");
  BlockState& b = mine();
  const unsigned thread = thread_number();
  ThreadState& t = b.threads[thread];
  const bool shared = in_shared((const void*)p);
  const auto place = (unsigned)(static_cast<const char*>(pc) - &__ehdr_start - 1);
  const Access now{block->serial, b.epoch, t.clock[thread % 32], (unsigned short)thread, atomic, place};
  for (size_t i = 0; i < bytes; ++i) {
    Cell& c = cell((uintptr_t)p + i);
    const char* const does = writes ? "writes" : "reads";
    compare(c.write, "wrote", now, does, shared);
    if (c.arrives)
      stop(text("@0x%x %s what thread %u fetches at @0x%x, and has not waited for", place, does, c.write.thread,
                c.write.place));
    if (writes && c.read) stop(text("@0x%x writes to what is being fetched, and has not been waited for", place));
    if (writes) {
      for (const Access& read : c.reads) compare(read, "read", now, does, shared);
      c.write = now;
      for (Access& read : c.reads) read = {};
    } else {
      remember_read(c, now);
    }
  }
  t.dirty |= writes && !atomic && !shared;
}

// Behind its fence, a thread tells what it did until now, and knows what the atomics before have told.
void fence_of(BlockState& b, ThreadState& t, unsigned lane) {
  t.fenced_clock = t.clock, t.fenced_epoch = b.epoch, t.dirty = false;
  ++t.clock[lane];
  t.known.learn(t.unfenced), t.known.learn(b.unfenced);
  t.unfenced = {};
}

// An atomic tells, to the next ones at its address, what is behind a fence; and hears what those before it told.
void synchronize(const volatile void* at, bool acquires, bool releases) {
  if (published_launch != launch.number) published.clear(), published_launch = launch.number;
  BlockState& b = mine();
  const unsigned thread = thread_number();
  ThreadState& t = b.threads[thread];
  if (releases) fence_of(b, t, thread % 32);
  Knowledge& there = published[(uintptr_t)at];
  (acquires ? t.known : t.unfenced).learn(there);
  there.learn(t.known), there.learn(b.known);
  there.learn(block->serial, std::max(t.fenced_epoch, b.clean_epoch));
  there.learn(Knowledge::warp(block->serial, thread), t.fenced_clock);
}

}  // namespace

void start_block(Block& b) {
  BlockState& state = blocks[&b] = BlockState{};
  state.threads.resize(b.fibers.size());
  for (size_t i = 0; i < b.fibers.size(); ++i) state.threads[i].clock[i % 32] = 1;
}

void pass_barrier(Block& b) {
  BlockState& state = blocks[&b];
  bool dirty = false, fenced = state.clean_epoch == state.epoch;
  for (ThreadState& t : state.threads) {
    dirty |= t.dirty, fenced |= t.fenced_epoch == state.epoch;
    t.dirty = false;
    t.met.reset();
    if (!t.known.empty()) state.known.learn(t.known), t.known = {};
    if (!t.told.empty()) state.told.learn(t.told), t.told = {};
    if (!t.unfenced.empty()) state.unfenced.learn(t.unfenced), t.unfenced = {};
  }
  ++state.epoch;
  if (!dirty && fenced) state.clean_epoch = state.epoch;
}

// What a thread has done before it, or knows of by such barriers, all of them know. Fences are asked for as if it were
// none.
void pass_named(Block& b, unsigned name) {
  BlockState& state = blocks[&b];
  const auto all = std::make_shared<Knowledge>();
  std::vector<std::shared_ptr<const Knowledge>> before;
  const auto for_all = [&](const auto& use) {
    for (size_t i = 0; i < b.fibers.size(); ++i)
      if (b.fibers[i].state == State::AT_NAMED && b.fibers[i].mask == name) use(i, state.threads[i]);
  };
  for_all([&](size_t i, const ThreadState& t) {
    all->learn(Knowledge::warp(b.serial, (unsigned)i), t.clock);
    if (t.met && std::find(before.begin(), before.end(), t.met) == before.end()) before.push_back(t.met);
  });
  for (const auto& other : before) all->learn(*other);
  for_all([&](size_t i, ThreadState& t) {
    t.met = all;
    ++t.clock[i % 32];
  });
}

// It orders all that the threads of a cluster did before and after it.
void pass_cluster(const Cluster& cluster) {
  Knowledge all, told;
  for (Block* b : cluster.blocks) {
    pass_barrier(*b);
    const BlockState& state = blocks[b];
    all.learn(state.known), told.learn(state.told);
    all.learn(b->serial, state.epoch);
  }
  for (Block* b : cluster.blocks) blocks[b].known.learn(all), blocks[b].told.learn(told);
}

void pass_warp(Block& b, int warp, unsigned mask) {
  ThreadState* lanes = blocks[&b].threads.data() + 32 * warp;
  Clock clock{};
  Knowledge known, unfenced, told;
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    for (int j = 0; j < 32; ++j) clock[j] = std::max(clock[j], lanes[i].clock[j]);
    known.learn(lanes[i].known), unfenced.learn(lanes[i].unfenced), told.learn(lanes[i].told);
  }
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    lanes[i].clock = clock, ++lanes[i].clock[i];
    if (!known.empty()) lanes[i].known = known;
    if (!unfenced.empty()) lanes[i].unfenced = unfenced;
    if (!told.empty()) lanes[i].told = told;
  }
}

void fence() {
  BlockState& b = mine();
  const unsigned thread = thread_number();
  fence_of(b, b.threads[thread], thread % 32);
}

void atomic(const volatile void* at, size_t bytes, const void* pc) {
  access(at, bytes, true, true, pc);
  synchronize(at, false, false);
}

void copies(const volatile void* at, size_t bytes, bool writes, const void* pc) {
  access(at, bytes, writes, false, pc);
}
void begin_copy(const Copy& c) {
  access(c.to, c.bytes, true, false, c.caller);
  for (size_t i = 0; i < c.bytes; ++i) {
    cell((uintptr_t)c.to + i).arrives = true;
    ++cell((uintptr_t)c.from + i).read;
  }
}
void end_copy(const Copy& c) {
  for (size_t i = 0; i < c.bytes; ++i) {
    cell((uintptr_t)c.to + i).arrives = false;
    --cell((uintptr_t)c.from + i).read;
  }
  access(c.from, c.bytes, false, false, c.caller);
  access(c.to, c.bytes, true, false, c.caller);
}

std::shared_ptr<const void> tell() {
  BlockState& b = mine();
  const unsigned thread = thread_number();
  ThreadState& t = b.threads[thread];
  const auto told = std::make_shared<Knowledge>(t.told);
  told->learn(b.told), told->learn(t.known), told->learn(b.known);
  told->learn(block->serial, b.epoch);
  told->learn(Knowledge::warp(block->serial, thread), t.clock);
  ++t.clock[thread % 32];
  return told;
}
void hear(const std::shared_ptr<const void>& told) {
  if (told) mine().threads[thread_number()].told.learn(*static_cast<const Knowledge*>(told.get()));
}

}  // namespace emu::races

// What the compiler calls --------------------------------------------------------------------------------------------

#define BN_PC __builtin_return_address(0)
using emu::races::access;
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* p, size_t bytes) { access(p, bytes, false, false, BN_PC); }
void __tsan_write_range(void* p, size_t bytes) { access(p, bytes, true, false, BN_PC); }

#define BN_ACCESS(bytes)                                                                \
  void __tsan_read##bytes(void* p) { access(p, bytes, false, false, BN_PC); }           \
  void __tsan_write##bytes(void* p) { access(p, bytes, true, false, BN_PC); }           \
  void __tsan_unaligned_read##bytes(void* p) { access(p, bytes, false, false, BN_PC); } \
  void __tsan_unaligned_write##bytes(void* p) { access(p, bytes, true, false, BN_PC); }
BN_ACCESS(1)
BN_ACCESS(2)
BN_ACCESS(4)
BN_ACCESS(8)
BN_ACCESS(16)

// Atomics of the language, in which a spin loop reads: __atomic_load_n(p, __ATOMIC_ACQUIRE) needs no fence.
#define BN_ATOMIC(bits, T)                                                                                           \
  T __tsan_atomic##bits##_load(const volatile T* p, int order) {                                                     \
    access(p, sizeof(T), false, true, BN_PC);                                                                        \
    if (emu::self) emu::races::synchronize(p, order >= __ATOMIC_CONSUME, false);                                     \
    return *p;                                                                                                       \
  }                                                                                                                  \
  void __tsan_atomic##bits##_store(volatile T* p, T value, int order) {                                              \
    access(p, sizeof(T), true, true, BN_PC);                                                                         \
    if (emu::self) emu::races::synchronize(p, false, order >= __ATOMIC_RELEASE);                                     \
    *p = value;                                                                                                      \
  }                                                                                                                  \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T value, int order) {                                             \
    access(p, sizeof(T), true, true, BN_PC);                                                                         \
    if (emu::self)                                                                                                   \
      emu::races::synchronize(p, order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE, order >= __ATOMIC_RELEASE); \
    const T old = *p;                                                                                                \
    *p = (T)(old + value);                                                                                           \
    return old;                                                                                                      \
  }
BN_ATOMIC(32, unsigned)
BN_ATOMIC(64, unsigned long long)
}
