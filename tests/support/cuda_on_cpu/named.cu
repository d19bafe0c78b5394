// A kernel whose teams of two warps meet at barriers of their own: right for BUG = NONE, wrong in one way for each of
// the others. It follows the text of the rows, whose words it uses.

enum Bug {
  NONE,
  NO_MEETING,   // sums are read that may not be there
  ONE_HALF,     // and are written again while the others read
  OF_ANOTHER,   // a team reads what another one wrote
  ONE_NAME,     // all teams meet at one barrier
  TWO_NAMES,    // the warps of a team do not meet
  TOO_MANY,     // a barrier waits for a warp that does not come
  EARLY_RETURN  // a thread leaves before it
};

constexpr int TEAM = 64;

template <int BUG>
BN_DEV void meet_with(int first) {
  if (BUG == NO_MEETING) return;
#ifdef BN_ON_CPU
  if (BUG == ONE_NAME) return __named_barrier(1, TEAM);
  if (BUG == TWO_NAMES) return __named_barrier(1 + threadIdx.x / 32, TEAM);
  if (BUG == TOO_MANY) return __named_barrier(1 + first / 2, TEAM + 32);
#endif
  meet<ROW_THREADS>(first, TEAM);
}

// out[team] = the sum of x, (4, turns, 64), over the turns of a team, of which the later ones have fewer.
template <int BUG>
__global__ void __launch_bounds__(256) teams(const double* x, double* out, int turns) {
  BN_SHARED(double, memory, 2 * 8);
  const int warp = threadIdx.x / 32, first = warp & -2, team = warp / 2;
  double sum = 0.0;
  for (int turn = 0; turn < turns - team; ++turn) {
    double own = x[(team * turns + turn) * TEAM + threadIdx.x % TEAM];
    for (int d = 16; d > 0; d /= 2) own += __shfl_xor_sync(~0u, own, d);
    double* to = memory + (BUG == ONE_HALF ? 0 : turn % 2 * 8);
    if (threadIdx.x % 32 == 0) to[warp] = own;
    if (BUG == EARLY_RETURN && threadIdx.x == 77) return;
    meet_with<BUG>(first);
    const int from = BUG == OF_ANOTHER && turn == 0 ? 6 - first : first;
    sum += to[from] + to[from + 1];
  }
  if (threadIdx.x % TEAM == 0) out[team] = sum;
}
