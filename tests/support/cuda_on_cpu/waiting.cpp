// Who waits for whom, who may go on, and what is said of those who wait in vain.
#include <stdarg.h>

#include <algorithm>

#include "runtime.h"

namespace emu {

std::string text(const char* format, ...) {
  char buffer[512];
  va_list list;
  va_start(list, format);
  vsnprintf(buffer, sizeof buffer, format, list);
  va_end(list);
  return buffer;
}

namespace {

// The compiler keeps most strings that are equal once.
bool same_text(const char* a, const char* b) { return a == b || !strcmp(a, b); }

// Whether two threads wait at the same place of the text for the same thing.
bool together(const Fiber& f, const Fiber& g) {
  return f.state == g.state && f.mask == g.mask && f.site.line == g.site.line && same_text(f.what, g.what) &&
         same_text(f.site.file, g.site.file);
}

}  // namespace

std::string where(const Block& b, const std::string& why) {
  std::string message = why + text(" in block (%u, %u, %u)", b.index.x, b.index.y, b.index.z);
  std::vector<const Fiber*> first;
  const auto same = [](const Fiber& f, const Fiber& g) {
    return together(f, g) || (f.state == State::DONE && g.state == State::DONE);
  };
  for (const Fiber& f : b.fibers)
    if (std::none_of(first.begin(), first.end(), [&](const Fiber* g) { return same(f, *g); })) first.push_back(&f);
  for (const Fiber* f : first) {
    const long n = std::count_if(b.fibers.begin(), b.fibers.end(), [&](const Fiber& g) { return same(*f, g); });
    message += text("; %ld thread%s from %d on ", n, n == 1 ? "" : "s", (int)(f - b.fibers.data()));
    if (f->state == State::DONE)
      message += "ended";
    else
      message += text("at %s, %s:%d", f->what, f->site.file, f->site.line);
    if (f->state == State::AT_WARP) message += text(", mask %08x", f->mask);
    if (f->state == State::AT_NAMED) message += text(", name %u of %d threads", f->mask, f->source);
  }
  return message;
}

namespace {

// All lanes of the mask have come: give each what it asks for, and let it go on.
void exchange(Fiber* lanes, int lane_count, unsigned mask) {
  const auto in = [&](int lane) { return lane >= 0 && lane < lane_count && (mask >> lane & 1); };
  unsigned ballot = 0;
  for (int i = 0; i < lane_count; ++i) ballot |= unsigned(in(i) && lanes[i].value) << i;
  for (int i = 0; i < lane_count; ++i) {
    if (!in(i)) continue;
    const int source = lanes[i].source;
    // The value of a lane that is not there is undefined: poison, which does no harm if it is not used.
    lanes[i].result = source == BALLOT ? ballot : in(source) ? lanes[source].value : ~0ull;
    lanes[i].state = State::RUNS;
  }
}

}  // namespace

bool release_warp(Block& b, Fiber* lanes, int lane_count) {
  bool moved = false;
  for (int i = 0; i < lane_count; ++i) {
    const Fiber& f = lanes[i];
    if (f.state != State::AT_WARP) continue;
    if (lane_count < 32 && f.mask >> lane_count) {
      error = where(b, text("a mask names lanes beyond the %d of its warp", lane_count));
      return false;
    }
    bool all = true;
    for (int j = 0; j < lane_count; ++j) {
      if (!(f.mask >> j & 1)) continue;
      const Fiber& g = lanes[j];
      if (g.state == State::DONE) {
        error = where(b, "a warp operation names a lane that has ended");
        return false;
      }
      all &= together(f, g);
    }
    if (!all) continue;
    races::pass_warp(b, (int)(lanes - b.fibers.data()) / 32, f.mask);
    exchange(lanes, lane_count, f.mask);
    moved = true;
  }
  return moved;
}

bool release_block(Block& b) {
  const Fiber* first = nullptr;
  int waiting = 0, ended = 0;
  bool apart = false;
  for (const Fiber& f : b.fibers) {
    ended += f.state == State::DONE;
    if (f.state != State::AT_BARRIER) continue;
    ++waiting;
    if (!first) first = &f;
    apart |= !together(f, *first);
  }
  if (!waiting || waiting + ended != count(b)) return false;
  if (ended) error = where(b, "threads wait at a barrier that others will never reach");
  if (apart) error = where(b, "threads meet at different barriers");
  if (ended || apart) return false;
  b.last_votes = b.votes, b.votes = 0;
  races::pass_barrier(b);
  for (Fiber& f : b.fibers) f.state = State::RUNS;
  return true;
}

// One barrier at a time, so that threads that others need not wait for get far ahead of these.
bool release_named(Block& b, unsigned which) {
  std::vector<unsigned> complete;
  for (unsigned name = 1; name < 16; ++name) {
    const Fiber* first = nullptr;
    int waiting = 0;
    bool apart = false;
    for (const Fiber& f : b.fibers) {
      if (f.state != State::AT_NAMED || f.mask != name) continue;
      ++waiting;
      if (!first) first = &f;
      apart |= !together(f, *first) || f.source != first->source;
    }
    if (!waiting) continue;
    if (apart) error = where(b, "threads meet at different barriers");
    else if (waiting > first->source) error = where(b, "more threads meet at a barrier than it is of");
    else if (waiting == first->source) complete.push_back(name);
    if (!error.empty()) return false;
  }
  if (complete.empty()) return false;
  const unsigned name = complete[which % complete.size()];
  races::pass_named(b, name);
  for (Fiber& f : b.fibers)
    if (f.state == State::AT_NAMED && f.mask == name) f.state = State::RUNS;
  return true;
}

// The barrier of a cluster: all threads of all of its blocks have arrived.
bool release_cluster(Block& b) {
  bool all = true, ended = false, orders = true;
  for (const Block* other : b.cluster->blocks)
    for (const Fiber& f : other->fibers) {
      ended |= f.state == State::DONE;
      all &= f.arrival == Arrival::RELAXED || f.arrival == Arrival::ORDERS;
      orders &= f.arrival == Arrival::ORDERS;
    }
  const auto waits = [](const Fiber& f) { return f.state == State::AT_CLUSTER; };
  if (ended && std::any_of(b.fibers.begin(), b.fibers.end(), waits))
    error = where(b, "threads wait at a cluster's barrier that others will never reach");
  if (!all || ended) return false;
  b.cluster->met = true;
  for (Block* other : b.cluster->blocks) counters_are_known(*other);
  if (orders) races::pass_cluster(*b.cluster);
  for (Block* other : b.cluster->blocks)
    for (Fiber& f : other->fibers) {
      if (waits(f)) f.state = State::RUNS;
      f.arrival = Arrival::PASSED;
    }
  return true;
}

}  // namespace emu
