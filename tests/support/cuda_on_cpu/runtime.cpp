// The scheduler behind shim.h: runs the blocks of a launch, and in each the threads, in the order that it was told.
//
// A thread runs until it waits for others. Whoever it waits for must arrive: the same barrier, the same warp operation
// with the same mask. What a device leaves undefined (a thread that has left, two different barriers) is an error that
// says which threads wait on which line. Shared memory starts as 0xFF, which is NaN, between red zones.
#define EMU_RUNTIME
#include "runtime.h"

#include <stdarg.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <memory>

namespace emu {

Thread* self = nullptr;
uint3 block_index;
dim3 block_size, grid_size;
Launch launch;
Block* block = nullptr;
std::string error;

namespace {

constexpr size_t STATIC_SHARED = 48 * 1024, ALL_SHARED = 227 * 1024, ZONE = 64;
constexpr int MAX_ARRAYS = 64;
constexpr int MAX_ATOMICS = 64;            // in a row: then a thread is thought to spin, and others get their turn
constexpr long MAX_IDLE = 2000;            // rounds in which every thread spins
constexpr long MAX_SWITCHES = 50'000'000;  // without a block that ends or passes a barrier

enum class Step { MOVED, SPINS, ENDED };

std::vector<Kernel>& kernels() {  // filled while the library is loaded, whichever file of it comes first
  static std::vector<Kernel> all;
  return all;
}
Stacks stacks;
Context scheduler;

unsigned draw(size_t below) {  // xorshift
  launch.random ^= launch.random << 13, launch.random ^= launch.random >> 7, launch.random ^= launch.random << 17;
  return (unsigned)((launch.random >> 11) % below);
}
bool shuffled() { return launch.order >= 2; }

// Switches -----------------------------------------------------------------------------------------------------------

void leave(State state) {
  Fiber& f = current();
  f.state = state, f.atomics = 0;
  switch_context(f.context, scheduler, state == State::DONE);
}

void body() {
  arrived(scheduler);
  launch.call(launch.arguments);
  if (!current().copies.empty()) stop("a thread ends, and has not waited for its copies");
  leave(State::DONE);
  abort();
}

void wait(State state, const char* what, unsigned mask, Site site) {
  Fiber& f = current();
  f.what = what, f.site = site, f.mask = mask;
  leave(state);
}

void resume(Block& b, Fiber& f) {
  self = &f, block = &b, block_index = b.index;
  ++launch.switches;
  switch_context(scheduler, f.context);
  self = nullptr;
  if (!Stacks::whole(f.stack) && error.empty())
    error = text("the stack of thread %d overflows", (int)(&f - b.fibers.data()));
}

// Shared memory ------------------------------------------------------------------------------------------------------

// Memory for one array between red zones, aligned as asked for and no better: a load of a whole vector that counts on
// luck shall fail.
char* carve(Block& b, const void* key, const char* name, size_t bytes, size_t alignment) {
  char* const from = b.memory + b.used;
  b.used = (b.used + ZONE + 63) / 64 * 64 + std::min<size_t>(alignment, 16);
  char* const start = b.memory + b.used;
  b.used += bytes + ZONE;
  allow(from, (size_t)(b.memory + b.used - from));
  memset(from, POISON, (size_t)(b.memory + b.used - from));
  forbid(from, (size_t)(start - from));
  forbid(start + bytes, ZONE);
  b.arrays.push_back({key, name, start, bytes, alignment});
  return start;
}

void look_at_zones(const Block& b) {
  const auto written = [](const char* from, const char* to) {
    return std::any_of(from, to, [](char c) { return (unsigned char)c != POISON; });
  };
  const char* end = b.memory;
  for (size_t i = 0; i < b.arrays.size() && error.empty(); ++i) {
    const Array& a = b.arrays[i];
    if (written(end, a.start))
      error = text("something was written before shared array %s (%zu bytes)", a.name, a.bytes);
    end = a.start + a.bytes + ZONE;
    if (written(a.start + a.bytes, end))
      error = text("something was written behind shared array %s (%zu bytes)", a.name, a.bytes);
  }
}

// Subnormal numbers ---------------------------------------------------------------------------------------------------

// While there is one, the processor takes numbers too small for all their digits for 0, and makes 0 of such results.
class Flushing {
#if defined(__SSE2__)
 public:
  explicit Flushing(bool wanted) : before_(_mm_getcsr()) {
    if (wanted) _mm_setcsr(before_ | RESULTS | OPERANDS);
  }
  ~Flushing() { _mm_setcsr(before_); }
  Flushing(const Flushing&) = delete;
  static constexpr bool POSSIBLE = true;

 private:
  static constexpr unsigned RESULTS = 0x8000, OPERANDS = 0x0040;  // bits of MXCSR
  const unsigned before_;
#else
 public:
  explicit Flushing(bool) {}
  static constexpr bool POSSIBLE = false;
#endif
};

// Blocks -------------------------------------------------------------------------------------------------------------

void start_block(Block& b, uint3 index) {
  const unsigned threads = block_size.x * block_size.y * block_size.z;
  b.index = index, b.serial = ++launch.started, b.ended = false, b.votes = 0, b.used = 0, b.static_bytes = 0;
  b.arrays.clear(), b.counters.clear();
  const size_t capacity = STATIC_SHARED + launch.dynamic_bytes + (MAX_ARRAYS + 1) * 3 * ZONE;
  if (b.capacity < capacity) {
    allow(b.memory, b.capacity);
    free(b.memory);
    b.capacity = (capacity + 63) / 64 * 64;
    b.memory = static_cast<char*>(aligned_alloc(64, b.capacity));
  }
  forbid(b.memory, b.capacity);
  carve(b, nullptr, "(dynamic)", launch.dynamic_bytes, 16);
  b.fibers.clear();
  b.fibers.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& f = b.fibers[i];
    f.index = {i % block_size.x, i / block_size.x % block_size.y, i / (block_size.x * block_size.y)};
    f.lane = (int)(i % 32);
    f.stack = stacks.take();
    f.context.prepare(f.stack, body);
  }
  races::start_block(b);
}

void end_block(Block& b) {
  for (Fiber& f : b.fibers) stacks.give(f.stack);
  b.fibers.clear();
  allow(b.memory, b.capacity);
  look_at_zones(b);
}

// Run the threads of a warp that can run, once each; false if there are none.
bool run_warp(Block& b, Fiber* lanes, int lane_count) {
  int order[32];
  for (int i = 0; i < lane_count; ++i) order[i] = launch.order == 1 ? lane_count - 1 - i : i;
  if (shuffled())
    for (int i = lane_count; i > 1; --i) std::swap(order[i - 1], order[draw((size_t)i)]);
  bool any = false;
  for (int i = 0; i < lane_count && error.empty(); ++i) {
    Fiber& f = lanes[order[i]];
    if (f.state != State::RUNS) continue;
    any = true;
    resume(b, f);
  }
  return any && error.empty();
}

// Put another one last, which is the next to run: now and then, so that one can get far ahead of the others.
template <class T>
void now_and_then_another(std::vector<T>& last_runs) {
  if (shuffled() && draw(8) == 0) std::swap(last_runs.back(), last_runs[draw(last_runs.size())]);
}

template <class T>
void shuffle(std::vector<T>& all) {
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[draw(i)]);
}

// Run a block until all of its threads wait: each warp as far as it can go before the next, or, shuffled, nearly so.
Step step(Block& b) {
  const int warps = (count(b) + 31) / 32;
  std::vector<int> live(warps);  // the last one runs
  for (int i = 0; i < warps; ++i) live[i] = launch.order == 1 ? i : warps - 1 - i;
  if (shuffled()) shuffle(live);
  while (!live.empty()) {
    now_and_then_another(live);
    Fiber* lanes = b.fibers.data() + 32 * live.back();
    const int lane_count = std::min(32, count(b) - 32 * live.back());
    const bool moved = run_warp(b, lanes, lane_count) || (error.empty() && release_warp(b, lanes, lane_count));
    if (!moved) live.pop_back();
    if (launch.switches > MAX_SWITCHES && error.empty()) error = where(b, "threads go on and on");
    if (!error.empty()) return Step::ENDED;
  }
  if (release_named(b, shuffled() ? draw(16) : 0) || (error.empty() && (release_block(b) || release_cluster(b)))) {
    launch.switches = 0;
    return Step::MOVED;
  }
  if (!error.empty()) return Step::ENDED;
  bool spins = false, done = true;  // it spins, too, where it waits for other blocks of its cluster
  for (Fiber& f : b.fibers) {
    spins |= f.state == State::YIELDS || f.state == State::AT_CLUSTER, done &= f.state == State::DONE;
    if (f.state == State::YIELDS) f.state = State::RUNS;
  }
  b.ended = done;
  if (done && waits_for_messages(b))
    error = where(b, "a block ends, and has not waited for what others store into it,");
  if (!spins && !done) error = where(b, "threads wait for each other forever");
  if (done) launch.switches = 0;
  return spins ? Step::SPINS : Step::ENDED;
}

// The blocks of a launch, some of them at a time: more when all that are there wait for others. They come by clusters,
// whose blocks are together in `blocks`.
class Grid {
 public:
  Grid(std::vector<uint64_t> blocks, size_t most) : blocks_(std::move(blocks)), most_(most) {
    for (size_t i = 0; i < blocks_.size(); i += launch.cluster) waiting_.push_back(i);
    if (launch.order == 1) std::reverse(waiting_.begin(), waiting_.end());
    if (shuffled()) shuffle(waiting_);
    room_ = std::min(std::max<size_t>(shuffled() ? 6 : 1, launch.cluster), most_);
    if (room_ < launch.cluster) error = text("a cluster of %zu blocks, and room for %zu", launch.cluster, room_);
  }
  ~Grid() {
    for (auto& b : there_) retire(std::move(b));
    for (auto& b : ended_) retire(std::move(b));
    for (auto& b : idle_) free(b->memory);
  }
  void run() {
    long idle = 0;
    while (error.empty()) {
      while (there_.size() + launch.cluster <= room_ && next_ < waiting_.size()) admit();
      if (there_.empty()) return;
      if (round()) {
        idle = 0;
        continue;
      }
      if (next_ < waiting_.size() && there_.size() + launch.cluster <= most_)
        room_ = there_.size() + launch.cluster;
      else if (++idle > MAX_IDLE)
        error = where(*there_.front(), "every thread that is left spins, and nothing changes");
    }
  }

 private:
  // As many steps as there are blocks: one of each in turn or, shuffled, many of one before another. True if one moved.
  bool round() {
    bool moved = false;
    for (size_t steps = there_.size(); steps > 0 && !there_.empty(); --steps) {
      if (!shuffled()) std::rotate(there_.begin(), there_.begin() + 1, there_.end());
      now_and_then_another(there_);
      const Step done = step(*there_.back());
      if (!error.empty()) return false;
      moved |= done != Step::SPINS;
      if (there_.back()->ended) {
        ended_.push_back(std::move(there_.back()));
        there_.pop_back();
        if (++ended_.back()->cluster->ended == launch.cluster) retire_cluster(ended_.back()->cluster.get());
      } else if (done == Step::SPINS && shuffled()) {
        std::swap(there_.back(), there_[draw(there_.size())]);
      }
    }
    return moved;
  }
  void admit() {
    const auto cluster = std::make_shared<Cluster>();
    const uint64_t plane = (uint64_t)grid_size.x * grid_size.y, first = waiting_[next_++];
    for (uint64_t rank = 0; rank < launch.cluster; ++rank) {
      if (idle_.empty()) idle_.push_back(std::make_unique<Block>());
      there_.push_back(std::move(idle_.back()));
      idle_.pop_back();
      Block& b = *there_.back();
      b.cluster = cluster;
      cluster->blocks.push_back(&b);
      const uint64_t i = blocks_[first + rank];
      start_block(b, {(unsigned)(i % grid_size.x), (unsigned)(i / grid_size.x % grid_size.y), (unsigned)(i / plane)});
    }
  }
  void retire_cluster(const Cluster* cluster) {  // its memory could be written to until now
    const auto of_others = [&](const std::unique_ptr<Block>& b) { return b->cluster.get() != cluster; };
    const auto from = std::stable_partition(ended_.begin(), ended_.end(), of_others);
    for (auto b = from; b != ended_.end(); ++b) retire(std::move(*b));
    ended_.erase(from, ended_.end());
  }
  void retire(std::unique_ptr<Block> b) {
    end_block(*b);
    b->cluster.reset();
    idle_.push_back(std::move(b));
  }

  std::vector<uint64_t> blocks_, waiting_;  // waiting: where clusters begin
  size_t most_, room_ = 1, next_ = 0;
  std::vector<std::unique_ptr<Block>> there_, ended_, idle_;
};

}  // namespace

// What shim.h calls --------------------------------------------------------------------------------------------------

void add_kernel(int index, const Kernel& kernel) {
  if ((int)kernels().size() <= index) kernels().resize(index + 1);
  kernels()[index] = kernel;
}

void stop(const std::string& why) {
  const uint3 t = self->index, b = block_index;
  error = why + text(", thread (%u, %u, %u) of block (%u, %u, %u)", t.x, t.y, t.z, b.x, b.y, b.z);
  leave(State::DONE);
  abort();
}

void fail(Site site, const char* format, ...) {
  char buffer[512];
  va_list list;
  va_start(list, format);
  vsnprintf(buffer, sizeof buffer, format, list);
  va_end(list);
  stop(text("%s:%d: %s", site.file, site.line, buffer));
}

int block_barrier(const char* what, int predicate, Site site) {
  block->votes += predicate != 0;
  wait(State::AT_BARRIER, what, 0, site);
  return block->last_votes;
}

void named_barrier(int name, int threads, Site site) {
  if (name < 1 || name > 15) fail(site, "barrier %d", name);
  if (threads < 32 || threads % 32 || threads > count(*block)) fail(site, "a barrier of %d threads", threads);
  current().source = threads;
  wait(State::AT_NAMED, "__named_barrier", (unsigned)name, site);
}

uint64_t warp_exchange(const char* what, unsigned mask, uint64_t value, int source, Site site) {
  Fiber& f = current();
  if (!(mask >> f.lane & 1)) fail(site, "%s: lane %d calls, and its mask %08x does not name it", what, f.lane, mask);
  f.value = value, f.source = source;
  wait(State::AT_WARP, what, mask, site);
  return f.result;
}
void warp_barrier(const char* what, unsigned mask, Site site) { warp_exchange(what, mask, 0, NOTHING, site); }
unsigned warp_ballot(const char* what, unsigned mask, int predicate, Site site) {
  return (unsigned)warp_exchange(what, mask, predicate != 0, BALLOT, site);
}

bool by_chance(size_t of) { return shuffled() && draw(of) == 0; }
void yield(const char* what, Site site) { wait(State::YIELDS, what, 0, site); }

// Where one block can overtake another, shuffled orders let it.
void pause(const char* what, Site site) {
  if (shuffled() && draw(2)) yield(what, site);
}
void fence(Site site) {
  races::fence();
  pause("__threadfence", site);
}
void atomic(const char* what, const volatile void* at, size_t bytes, Site site, const void* caller) {
  if (reinterpret_cast<uintptr_t>(at) % bytes) fail(site, "%s at %p, which %zu does not divide", what, at, bytes);
  if (++current().atomics > MAX_ATOMICS) yield(what, site);
  pause(what, site);
  races::atomic(at, bytes, caller);
}

namespace {
char* shared_of(Block& b, const void* key, size_t bytes, size_t alignment, const char* name, Site site) {
  for (const Array& a : b.arrays)
    if (a.key == key) return a.start;
  b.static_bytes += bytes;
  if (b.static_bytes > STATIC_SHARED) fail(site, "%s: more than 48 KB of static shared memory", name);
  if (b.static_bytes + launch.dynamic_bytes > ALL_SHARED) fail(site, "%s: more than 227 KB of shared memory", name);
  if ((int)b.arrays.size() > MAX_ARRAYS) fail(site, "%s: more than %d shared arrays", name, MAX_ARRAYS);
  return carve(b, key, name, bytes, alignment);
}
}  // namespace

void* shared(const void* key, size_t bytes, size_t alignment, const char* name, Site site) {
  return shared_of(*block, key, bytes, alignment, name, site);
}

void* dynamic_shared(Site site) {
  if (!launch.dynamic_bytes) fail(site, "dynamic shared memory, and the launch gives none");
  return block->arrays.front().start;
}

void cluster_arrive(bool orders, Site site) {
  Fiber& f = current();
  if (f.arrival != Arrival::NONE) fail(site, "arrives at a cluster's barrier once more, and has not waited");
  f.arrival = orders ? Arrival::ORDERS : Arrival::RELAXED;
  pause("__cluster_barrier_arrive", site);
}
void cluster_wait(Site site) {
  Fiber& f = current();
  if (f.arrival == Arrival::NONE) fail(site, "waits at a cluster's barrier, and has not arrived");
  if (f.arrival != Arrival::PASSED) wait(State::AT_CLUSTER, "__cluster_barrier_wait", 0, site);
  f.arrival = Arrival::NONE;
}

// The place in the shared memory of another block that `at` is in this one's.
void* cluster_map(const void* at, unsigned rank, Site site) {
  const Cluster& cluster = *block->cluster;
  if (rank >= cluster.blocks.size()) fail(site, "block %u of a cluster of %zu", rank, cluster.blocks.size());
  if (!cluster.met) fail(site, "block %u of the cluster may not have started", rank);
  Block& other = *cluster.blocks[rank];
  if (other.ended) fail(site, "block %u of the cluster has ended", rank);
  for (const Array& a : block->arrays)
    if (at >= a.start && at < a.start + a.bytes) {
      const ptrdiff_t offset = static_cast<const char*>(at) - a.start;
      return (a.key ? shared_of(other, a.key, a.bytes, a.alignment, a.name, site) : other.arrays[0].start) + offset;
    }
  fail(site, "%p is in no shared array of this block", at);
}

}  // namespace emu

// What Python calls --------------------------------------------------------------------------------------------------

extern "C" {
__attribute__((visibility("default"))) const char* emu_error() { return emu::error.c_str(); }

__attribute__((visibility("default"))) int emu_parameters(int kernel, emu::Parameter* out) {
  const emu::Kernel& k = emu::kernels()[(size_t)kernel];
  if (out) std::copy(k.parameters, k.parameters + k.count, out);
  return k.count;
}

// Grid, block and cluster were checked. `only` names the blocks that run, by their linear index; none means all.
__attribute__((visibility("default"))) int emu_launch(int kernel, const unsigned* grid, const unsigned* block,
                                                      const unsigned* cluster, uint64_t dynamic_bytes, void** arguments,
                                                      uint64_t order, uint64_t resident, const uint64_t* only,
                                                      uint64_t only_count, int flush) {
  using namespace emu;
  error.clear();
  grid_size = dim3(grid[0], grid[1], grid[2]), block_size = dim3(block[0], block[1], block[2]);
  const uint64_t seed = order * 0x9e3779b97f4a7c15u | 1;
  const auto call = kernels()[(size_t)kernel].call;
  const size_t together = (size_t)cluster[0] * cluster[1] * cluster[2];
  launch = Launch{call, arguments, (size_t)dynamic_bytes, together, order, seed, 0, 0, launch.number + 1};
  std::vector<uint64_t> blocks(only, only + only_count);
  if (!only) {
    blocks.resize((uint64_t)grid[0] * grid[1] * grid[2]);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  }
  if (together > 1) {  // by clusters, and in each by rank
    const auto number = [&](uint64_t i) {
      const uint64_t x = i % grid[0], y = i / grid[0] % grid[1], z = i / grid[0] / grid[1];
      return (z / cluster[2] * (grid[1] / cluster[1]) + y / cluster[1]) * (grid[0] / cluster[0]) + x / cluster[0];
    };
    std::stable_sort(blocks.begin(), blocks.end(), [&](uint64_t a, uint64_t b) { return number(a) < number(b); });
    for (size_t i = 0; i < blocks.size(); ++i)
      if (blocks.size() % together || number(blocks[i]) != number(blocks[i / together * together]))
        return error = "only a part of a cluster is launched", 1;
  }
  if (flush && !Flushing::POSSIBLE) return error = "only x86-64 can flush subnormal numbers to 0", 1;
  const Flushing flushing(flush);
  Grid(std::move(blocks), resident ? resident : SIZE_MAX).run();
  return !error.empty();
}
}
