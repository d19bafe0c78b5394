// A kernel that fetches numbers into shared memory while it works on others: right for BUG = NONE, wrong in one way for
// each of the others. It follows the text of a family of kernels, whose words it uses.

enum Bug {
  NONE,
  NO_WAIT,       // numbers are read that may not be there
  LATE_GROUP,    // as many groups are waited for as are full: the last one is not
  NO_GROUP,      // a copy belongs to no group when its thread waits
  TOO_EARLY,     // a place is fetched into before what was there is read
  OF_ANOTHER,    // what another thread has fetched is read without a barrier
  NO_ROOM,       // one number too many is fetched
  SHIFTED,       // from where no whole vector begins
  TO_ITSELF,     // into memory that is not shared
  NOT_AWAITED,   // a thread ends first
  HINT,          // what is read too early does no harm where it is no number
  HINT_OF_OTHER, // the same, of what another thread fetches: there is a barrier, and it waits behind the next one
  TWICE,         // two copies to one place are under way
  CHANGED        // what a copy reads is changed, and changed back, before the copy was waited for
};

constexpr int COUNT = 3;  // vectors of a thread and turn

// out[t] = the sum of what thread t has in all turns of x, (turns, COUNT, 64, 4).
template <int BUG>
__global__ void __launch_bounds__(64) fetched(const float* x, float* out, int turns) {
  typedef Vector<float, 4> Four;
  BN_SHARED(Four, kept, COUNT * 64);
  const int t = threadIdx.x;
  const auto from = [&](int turn, int j) { return x + ((turn * COUNT + j) * 64 + t) * 4; };
  for (int j = 0; j < COUNT; ++j) {
    if (BUG == TO_ITSELF && j == 1) {
      Four own;
      fetch<float, 4>(&own, from(0, j));
    }
    fetch<float, 4>(kept + j * 64 + t + (BUG == NO_ROOM && j == 2), from(0, j) + (BUG == SHIFTED));
    if (BUG != NO_GROUP || j < 2) end_group();
  }
  float about = 0;
  if (BUG == HINT_OF_OTHER) __syncthreads();
  if (BUG == HINT || BUG == HINT_OF_OTHER) {
    if (BUG == HINT) await(COUNT);
    const float hint = kept[BUG == HINT ? t : 63 - t].v[0];
    if (hint - hint == 0) about = hint;
  }
  if (BUG == HINT_OF_OTHER) __syncthreads();
  if (BUG == TWICE) fetch<float, 4>(kept + t, from(0, 0));
  if (BUG == CHANGED) {
    volatile float* const at = const_cast<float*>(from(0, 1));
    const float was = *at;
    *at = 0;
    *at = was;
  }
  float sum = 0;
  for (int turn = 0; turn < turns; ++turn) {
    for (int j = 0; j < COUNT; ++j) {
      if (BUG == LATE_GROUP) await(COUNT - j);
      else if (BUG != NO_WAIT) await(COUNT - 1);
      const int mine = j * 64 + (BUG == OF_ANOTHER ? 63 - t : t);
      if (BUG == TOO_EARLY && turn + 1 < turns) fetch<float, 4>(kept + mine, from(turn + 1, j));
      const Four four = kept[mine];
      for (int v = 0; v < 4; ++v) sum += four.v[v] - about;
      const bool more = turn + 1 < turns;
      if (BUG != TOO_EARLY && (more || BUG == NOT_AWAITED))
        fetch<float, 4>(kept + j * 64 + t, from(turn, j) + (more ? COUNT * 256 : 0));
      if (BUG != NO_GROUP || j < 2) end_group();
    }
  }
  out[t] = sum + 4 * COUNT * turns * about;
}
