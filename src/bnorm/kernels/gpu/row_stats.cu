// The statistics of a row, for all of its threads.

struct RowStats {
  double mean, var;
};

// From sums about a center: s = sum (x - center), q = sum (x - center)^2. For a mean square, center is 0.
BN_DEV RowStats row_stats(bool squares, double inverse, double center, double s, double q) {
  const double away = s * inverse, m2 = q - s * away;
  if (squares) return {0.0, q * inverse};
  return {center + away, (m2 < 0.0 ? 0.0 : m2) * inverse};
}

// Call use(value) for each value that a thread holds.
template <class T, int V, int STEPS, int WIDE, int SURE, class Use>
BN_DEV void for_values(const Row<V, STEPS, WIDE, SURE>& row, const Vector<T, V> (&held)[STEPS], const Use& use) {
#pragma unroll
  for (int j = 0; j < STEPS; ++j)
    if (row.has(j)) {
#pragma unroll
      for (int v = 0; v < V; ++v) use(value(held[j], v));
    }
}

// The statistics again, in float64 and two passes over memory, for rows whose squares left the range of float, or lost
// digits as the center is far from the mean. It is rare, and not inlined, as the code around it would have too few
// registers.
template <class T, int V, int WIDE>
static __device__ __noinline__ RowStats exact_stats(
    const T* x, int offset, int stride, int size, double center, double inverse, bool squares, double* memory,
    int lanes, int half) {
  RowSums<WIDE> sums = {memory, lanes, half};  // used twice, after which the caller's half is the right one again
  double s = 0.0, both[2] = {0.0, 0.0};
  const auto for_all = [&](const auto& use) {
#pragma unroll 1
    for (int i = offset; i < size; i += stride) {
#pragma unroll 1
      for (int v = 0; v < V; ++v) use(exact(widen(x[i + v])));
    }
  };
  for_all([&](double value) { s += value - center; });
  s = sums.add(s) * inverse;
  if (!squares) center += s;
  for_all([&](double value) {
    const double d = value - center;
    both[0] += d;
    both[1] = fma(d, d, both[1]);
  });
  sums.add(both);
  return row_stats(squares, inverse, center, both[0], both[1]);
}

template <class T, int V, int STEPS, int WIDE, int SURE, class A>
BN_DEV RowStats stats_of(
    const RowJob& job, const Row<V, STEPS, WIDE, SURE>& row, const T* x, const Vector<T, V> (&held)[STEPS], A center,
    RowSums<WIDE>& sums) {
  A s = 0, q = 0;
  for_values(row, held, [&](A value) {
    const A d = value - center;
    s += d;
    q = fused(d, d, q);
  });
  double both[2] = {s, q};
  sums.add(both);
  const bool squares = job.rule == BN_MEAN_SQUARE;
  RowStats found = row_stats(squares, job.inverse, exact(center), both[0], both[1]);
  const double square = both[1] * job.inverse;
  const bool far = square > FAR * found.var, small = !Compute<T>::in_range && !(square >= 1e-30 && square <= 1e300);
  const bool bad = row.inside && (far || small);
  if (rarely(sums.any(bad))) {  // small squares are 0 in float; so are those of a constant row, which are exact
    double off = 0.0;
    for_values(row, held, [&](A value) { off += !same(value, center); });
    const bool again = sums.add(off) != 0.0 && bad;
    if (sums.any(again)) {
      const RowStats better = exact_stats<T, V, WIDE>(
          x, row.offset, row.stride, row.size, exact(center), job.inverse, squares, sums.memory, sums.lanes,
          sums.half);
      if (again) found = better;
    }
  }
  return found;
}

// Of a long row, which has a block to itself: from where it is KEPT, or else from memory. A second pass is in float64.
template <class T, int V, int WIDE, int KEPT, class A>
BN_DEV RowStats stats_of(
    const RowJob& job, const Row<V, 0, WIDE, KEPT>& row, const T* x, const Vector<T, V>* kept, A center,
    RowSums<WIDE>& sums) {
  bool far = false;
  const auto find = [&](auto about) {
    const decltype(about) only[1] = {about};
    Sums sum[1] = {{0.0, 0.0}};
    if constexpr (KEPT) {
      const Walk<false, int> walk(0, THREADS_OF<WIDE> * V);
      add_about<T, V, 1>(reinterpret_cast<const T*>(kept), walk, row.steps(), only, sum, Groups<BATCH>());
    } else {
      const Walk<false> walk(row.offset, row.stride);
      add_about<T, V, 1>(x, walk, row.steps(), only, sum, AllThere());
    }
    double both[2] = {sum[0].total, sum[0].dot};
    sums.add(both);
    const RowStats found = row_stats(job.rule == BN_MEAN_SQUARE, job.inverse, exact(about), both[0], both[1]);
    far = both[1] * job.inverse > FAR * found.var;
    return found;
  };
  const RowStats first = find(center);
  return rarely(far) ? find(first.mean) : first;
}
