// The moments of channels whose blocks meet. All know a center, so that a channel's sums are added up as they are:
// those of x - center and of its square. It is a value near the mean, by three that the channel has. Where it is so far
// away that digits are lost, blocks add up what they keep once more, about the mean that they have found, in float64.

// The same about what is kept in memory for each column of the tile, in float64. Rare: arrays may lie in local memory.
template <class T, int V, int K, int BX, class Walk>
BN_DEV void add_exactly(const T* x, Walk walk, i64 steps, const double* centers, Sums (&sum)[K]) {
  const double* own = centers + threadIdx.x % BX * K;
  double s[K], q[K];
#pragma unroll
  for (int k = 0; k < K; ++k) s[k] = q[k] = 0.0;
#pragma unroll 1
  for (; steps > 0; --steps, walk.next())
#pragma unroll 1
    for (int v = 0; v < V; ++v) {
      const double d = exact(widen(x[walk.at + v])) - own[v];
      s[v] += d;
      q[v] = fma(d, d, q[v]);
    }
#pragma unroll
  for (int k = 0; k < K; ++k) sum[k] = {s[k], q[k]};
}

template <class T, int V, int K, int BX, int BY>
BN_DEV void met_moments(const Job& job, Vector<T, V>* kept) {
  typedef typename Compute<T>::type A;
  constexpr int WIDTH = BX * K;
  const Place<K, BX, BY> place(job, blockIdx.x, blockIdx.y);
  const int tid = threadIdx.x, tx = tid % BX;
  const i64 begin = (i64)blockIdx.x * WIDTH, groups = quotient(gridDim.x + job.group - 1, job.group);
  const bool has = tid < WIDTH && begin + tid < job.columns;
  const i64 own = has ? channel_of(job, begin + tid) : 0;
  double *found = row_of(job.stats, job, MEAN), *var = row_of(job.stats, job, VAR);  // below 0 of a channel that is far
  unsigned* far = job.tickets + groups + quotient(blockIdx.x, job.group);
  const T* x = static_cast<const T*>(job.x);
  const T* held = reinterpret_cast<const T*>(kept);
  const double n = (double)quotient(job.copies > 1 ? job.total : job.steps * job.columns, job.channels);
  BN_SHARED(double, centers, WIDTH);
  fetch_steps<T, V, BATCH>(job, place, kept);
  if (has) {
    const i64 plane = job.channels * job.inner, rows = job.steps * job.copies;
    centers[tid] = exact(center_of<T>(x + own * job.inner, rows / 2 * plane, (rows - 1) * plane));
    if (blockIdx.y == 0 && begin + tid == own * job.inner) found[own] = centers[tid];
  }
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    Sums sum[K];
    A center[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sum[k] = {0.0, 0.0};
      center[k] = place.inside ? as<A>(centers[tx * K + k]) : (A)0;
    }
    const Walk<false, int> walk(0, BX * BY * V);
    if (round == 0) add_about<T, V, K>(held, walk, place.steps, center, sum, Groups<BATCH>());
    else add_exactly<T, V, K, BX>(held, walk, place.steps, centers, sum);
    const auto rest = [&](i64 column, Sums& of) {
      const double d = exact(widen(x[job.steps * job.columns + column])) - centers[column - begin];
      of.total += d;
      of.dot = fma(d, d, of.dot);
    };
    join_tile<Sums, K, BX, BY, MEETING>(job, blockIdx.x, blockIdx.y, sum, rest, [&](i64 c, const Sums& all) {
      const double middle = __ldcg(found + c), away = all.total / n, m2 = all.dot - all.total * away;
      if (round == 0 && all.dot > FAR * m2) {
        found[c] = middle + away;
        var[c] = -1.0;
        atomicOr(far, 1u);
      } else if (round == 0 || var[c] < 0.0) {
        finish_channel<T>(job, c, Moments{n, middle, m2 < 0.0 ? 0.0 : m2, away});
      }
      if (round == 1) atomicExch(far, 0u);
    });
    if (round == 1 || !seen(far)) break;
    if (has) centers[tid] = __ldcg(found + own);
    __syncthreads();
  }
}
