// Barriers in shared memory that count bytes, and what is stored into other blocks of a cluster and counted there. It
// is under way until someone waits for it, or comes sooner: poison is there meanwhile.
#include <algorithm>

#include "runtime.h"

namespace emu {
namespace {

Counter& counter_of(Block& b, const void* at, Site site) {
  for (Counter& c : b.counters)
    if (c.at == at) return c;
  fail(site, "a counting barrier at %p, which nobody has made", at);
}

void look_at(Counter& c) {
  if (c.pending || c.bytes) return;
  c.pending = c.count, c.parity ^= 1;
  c.complete = std::move(c.told);
  c.told.clear();
}

void arrive(Counter& c, size_t message) {
  const Message m = c.messages[message];
  c.messages.erase(c.messages.begin() + (ptrdiff_t)message);
  memcpy(m.to, &m.value, sizeof m.value);
  c.bytes -= (long)sizeof m.value;
  c.told.push_back(m.told);
  look_at(c);
}

}  // namespace

void counter_init(uint64_t* at, unsigned count, Site site, const void* caller) {
  const auto holds = [&](const Array& a) { return (char*)at >= a.start && (char*)(at + 1) <= a.start + a.bytes; };
  if (std::none_of(block->arrays.begin(), block->arrays.end(), holds))
    fail(site, "a counting barrier at %p, which is in no shared array of this block", (void*)at);
  races::copies(at, sizeof *at, true, caller);
  block->counters.push_back({at, count, count, self});
}
void counters_fence() {
  for (Counter& c : block->counters) c.fenced |= c.maker == self;
}
void counter_expect(uint64_t* at, unsigned bytes, Site site, const void* caller) {
  races::copies(at, sizeof *at, false, caller);
  Counter& c = counter_of(*block, at, site);
  if (c.pending == 0) fail(site, "arrives at a counting barrier of %u once more", c.count);
  c.bytes += bytes, --c.pending;
  look_at(c);
}
void send(void* at, uint64_t value, uint64_t* counter, unsigned rank, Site site, const void* caller) {
  void* const to = cluster_map(at, rank, site);
  const void* const there = cluster_map(counter, rank, site);
  if (reinterpret_cast<uintptr_t>(to) % sizeof value) fail(site, "a store to %p, which 8 does not divide", to);
  Counter& c = counter_of(*block->cluster->blocks[rank], there, site);
  if (!c.known) fail(site, "block %u of the cluster may not have made its counting barrier", rank);
  races::copies(to, sizeof value, true, caller);
  memset(to, POISON, sizeof value);
  c.messages.push_back({to, value, races::tell()});
  if (by_chance(4)) arrive(c, c.messages.size() - 1);
}
void counter_wait(uint64_t* at, unsigned parity, Site site, const void* caller) {
  races::copies(at, sizeof *at, false, caller);
  while (counter_of(*block, at, site).parity == parity) {
    Counter& c = counter_of(*block, at, site);
    if (c.messages.empty())
      yield("__mbarrier_wait", site);
    else
      arrive(c, by_chance(2) ? c.messages.size() - 1 : 0);
    if (by_chance(2)) yield("__mbarrier_wait", site);
  }
  for (const auto& told : counter_of(*block, at, site).complete) races::hear(told);
}

// Behind a barrier of the cluster, the others know what was made before it.
void counters_are_known(Block& b) {
  for (Counter& c : b.counters) c.known |= c.fenced;
}
bool waits_for_messages(const Block& b) {
  return std::any_of(b.counters.begin(), b.counters.end(), [](const Counter& c) { return !c.messages.empty(); });
}

}  // namespace emu
