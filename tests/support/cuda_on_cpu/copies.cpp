// Copies of memory into shared memory, under way until their thread waits for them: until then poison is there.
// In some orders it is NaN, and in the others a number: where NaN is left out, what is read too early would not show.
#include <algorithm>

#include "runtime.h"

namespace emu {
namespace {
constexpr unsigned char NUMBER = 0x3F;  // in every byte: of ordinary size in all formats
}  // namespace

void copy(void* to, const void* from, size_t bytes, Site site, const void* caller) {
  const auto is_at = [&](const void* p) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  if (bytes != 4 && bytes != 8 && bytes != 16) fail(site, "a copy of %zu bytes", bytes);
  if (!is_at(to) || !is_at(from)) fail(site, "a copy from %p to %p, which %zu does not divide", from, to, bytes);
  char* const start = static_cast<char*>(to);
  const auto holds = [&](const Array& a) { return start >= a.start && start + bytes <= a.start + a.bytes; };
  if (std::none_of(block->arrays.begin(), block->arrays.end(), holds))
    fail(site, "a copy to %p, which is in no shared array of this block", to);
  current().copies.push_back({to, from, bytes, current().groups, caller});
  races::begin_copy(current().copies.back());
  memset(to, launch.order % 2 ? NUMBER : POISON, bytes);
}
void copies_end_group() { ++current().groups; }
void copies_wait(int groups, Site site) {
  if (groups < 0) fail(site, "a wait for all but %d groups of copies", groups);
  std::vector<Copy>& all = current().copies;
  const int end = current().groups - groups;
  const auto last = std::find_if(all.begin(), all.end(), [&](const Copy& c) { return c.group >= end; });
  for (auto c = all.begin(); c != last; ++c) {
    races::end_copy(*c);
    memcpy(c->to, c->from, c->bytes);
  }
  all.erase(all.begin(), last);
}

}  // namespace emu
