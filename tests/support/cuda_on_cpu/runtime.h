// What the parts of the emulator share: threads, blocks, and the launch that runs.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "fibers.h"
#include "shim.h"

// Words of CUDA that the headers of C++ use for something else, and those that are names here.
#undef __noinline__
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace emu {

constexpr unsigned char POISON = 0xFF;  // of memory that nobody has written: NaN in every format

enum class State : uint8_t { RUNS, AT_BARRIER, AT_NAMED, AT_CLUSTER, AT_WARP, YIELDS, DONE };
// At the barrier of a cluster, which has two parts: whether a thread has been at the first, and all others too.
enum class Arrival : uint8_t { NONE, RELAXED, ORDERS, PASSED };

struct Copy {  // into shared memory, under way
  void* to;
  const void* from;
  size_t bytes;
  int group;
  const void* caller;
};

struct Message {  // on its way into the shared memory of another block; told: what its receiver learns (races.cpp)
  void* to;
  uint64_t value;
  std::shared_ptr<const void> told;
};

struct Counter {  // a barrier in shared memory that counts arrivals and bytes
  const void* at;
  unsigned count, pending;
  const Thread* maker;
  long bytes = 0;  // that are expected; less than none where they come sooner
  unsigned parity = 0;
  bool fenced = false, known = false;  // to others of the cluster
  std::vector<Message> messages;
  std::vector<std::shared_ptr<const void>> told, complete;  // of the phase that runs, and of the last one
};

struct Fiber : Thread {
  State state = State::RUNS;
  Arrival arrival = Arrival::NONE;
  const char* what = "";  // what it waits at
  Site site = {"", 0};
  unsigned mask = 0;  // of lanes; or the name of a barrier
  int source = -1;  // the lane that it asks for a value, or the threads of a barrier
  int atomics = 0;  // since it last waited
  uint64_t value = 0, result = 0;
  std::vector<Copy> copies;
  int groups = 0;  // of copies, ended so far
  char* stack = nullptr;
  Context context;
};

struct Array {
  const void* key;
  const char* name;
  char* start;
  size_t bytes, alignment;
};

struct Block;
struct Cluster {  // blocks that run together
  std::vector<Block*> blocks;  // by rank
  size_t ended = 0;
  bool met = false;  // at a barrier of all: so they have started
};

struct Block {
  uint3 index;
  std::shared_ptr<Cluster> cluster;
  unsigned serial = 0;  // among the blocks of its launch, from 1
  std::vector<Fiber> fibers;
  std::vector<Counter> counters;
  std::vector<Array> arrays;  // shared ones: the first is the dynamic one
  char* memory = nullptr;
  size_t used = 0, capacity = 0, static_bytes = 0;
  int votes = 0, last_votes = 0;
  bool ended = false;
};

struct Launch {
  void (*call)(void**) = nullptr;
  void** arguments = nullptr;
  size_t dynamic_bytes = 0, cluster = 1;  // cluster: its blocks
  uint64_t order = 0, random = 0;  // the state of the generator that shuffles
  long switches = 0;
  unsigned started = 0, number = 0;
};

extern Launch launch;
extern Block* block;  // whose thread runs
extern std::string error;

inline Fiber& current() { return *static_cast<Fiber*>(self); }
inline int count(const Block& b) { return (int)b.fibers.size(); }

// waiting.cpp: let those go on who need wait no longer; false if there are none, or if `error` says that there is one.
bool release_warp(Block& b, Fiber* lanes, int lane_count);
bool release_block(Block& b);
bool release_named(Block& b, unsigned which);  // those of one barrier with a name, out of all that are complete
bool release_cluster(Block& b);
std::string where(const Block& b, const std::string& why);  // `why`, and what each thread of the block waits at
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

// What a thread asks of its warp beside the value of another lane.
constexpr int NOTHING = -1, BALLOT = -2;

bool by_chance(size_t of);  // one of so many times, where orders are shuffled

// messages.cpp
void counters_are_known(Block& b);
bool waits_for_messages(const Block& b);

[[noreturn]] void stop(const std::string& why);  // the launch, in the thread that runs

// races.cpp is told of these, where the kernels were compiled to tell it of loads and stores.
namespace races {
#if EMU_RACES
void start_block(Block& b);
void pass_barrier(Block& b);
void pass_named(Block& b, unsigned name);
void pass_cluster(const Cluster& c);
void pass_warp(Block& b, int warp, unsigned mask);
void fence();
void atomic(const volatile void* at, size_t bytes, const void* pc);
void copies(const volatile void* at, size_t bytes, bool writes, const void* pc);
void begin_copy(const Copy& c);
void end_copy(const Copy& c);
std::shared_ptr<const void> tell();  // what a message tells of shared memory: what its sender did and knows
void hear(const std::shared_ptr<const void>& told);
#else
inline void start_block(Block&) {}
inline void pass_barrier(Block&) {}
inline void pass_named(Block&, unsigned) {}
inline void pass_cluster(const Cluster&) {}
inline void pass_warp(Block&, int, unsigned) {}
inline void fence() {}
inline void atomic(const volatile void*, size_t, const void*) {}
inline void copies(const volatile void*, size_t, bool, const void*) {}
inline void begin_copy(const Copy&) {}
inline void end_copy(const Copy&) {}
inline std::shared_ptr<const void> tell() { return nullptr; }
inline void hear(const std::shared_ptr<const void>&) {}
#endif
}  // namespace races

}  // namespace emu
