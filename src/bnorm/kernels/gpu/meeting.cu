// Batch normalization in one launch, by blocks that all run at the same time: each keeps what it reads, and they meet
// between sums and map. If a tile has whole channels, each of its blocks then adds up what all of them have written;
// else each block of the group joins some channels, and all meet once more.
//
// All blocks know the center of a channel, so that their sums of x - center and of its square can simply be added. The
// center is the median of three values of the channel. If it is so far from the mean that digits are lost, the blocks
// add up what they keep again, in float64, about the mean that they have found.

// Float64 sums of what a thread keeps, about a center for each column. They are rare: arrays may lie in local memory.
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

template <class T, int V, int K, int BX, int BY, int KIND>
BN_DEV void meet_forward(const Job& job, Vector<T, V>* kept) {
  typedef typename Compute<T>::type A;
  constexpr int WIDTH = BX * K;
  const Place<K, BX, BY> place(job, blockIdx.x, blockIdx.y);
  const int tid = threadIdx.x, tx = tid % BX;
  const i64 begin = (i64)blockIdx.x * WIDTH, groups = quotient(gridDim.x + job.group - 1, job.group);
  const bool has = tid < WIDTH && begin + tid < job.columns, whole = has_channels(job), leads = blockIdx.y == 0;
  const i64 own = has ? channel_of(job, begin + tid) : 0;
  double *found = row_of(job.stats, job, MEAN), *var = row_of(job.stats, job, VAR);  // below 0: the center is far
  unsigned* far = job.tickets + groups + quotient(blockIdx.x, job.group);
  const T* x = static_cast<const T*>(job.x);
  const T* held = reinterpret_cast<const T*>(kept);
  const double n = (double)quotient(job.copies > 1 ? job.total : job.steps * job.columns, job.channels);
  BN_SHARED(double, centers, WIDTH);
  BN_SHARED(A, ready, 3 * WIDTH);
  i64 gamma = 0, beta = 0;
  if (has) {  // before the fetches, behind which these loads would wait
    const i64 plane = job.channels * job.inner, rows = job.steps * job.copies;
    const T* near = x + own * job.inner;
    centers[tid] = exact(Near<T>{near[0], near[rows / 2 * plane], near[(rows - 1) * plane]}.center());
    if (whole) gamma = gamma_of(job, own), beta = beta_of(job, own);
    else if (leads && begin + tid == own * job.inner) found[own] = centers[tid];
  }
  fetch_steps<T, V, BATCH>(job, place, kept);
  __syncthreads();
  Moments of_own = {n, 0.0, 0.0, 0.0};
  bool open = has;  // whether the channel is still to be summed
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
    if (whole) {  // the second round uses other memory, as some blocks may still read the first
      const Sums all = join_columns<K, BX, BY>(job, job.partial + round * 2 * gridDim.y * job.columns, sum);
      if (open) of_own = moments_about(n, centers[tid], all, open);
      if (open) centers[tid] += of_own.away;
      if (round == 0 && __syncthreads_or(open)) continue;
      if (round == 0) leave(job.tickets + blockIdx.x, gridDim.y, leads);
      break;
    }
    const auto rest = [&](i64 column, Sums& of) {
      const double d = exact(widen(x[job.steps * job.columns + column])) - centers[column - begin];
      of.total += d;
      of.dot = fma(d, d, of.dot);
    };
    join_tile<Sums, K, BX, BY, MEETING>(job, blockIdx.x, blockIdx.y, sum, rest, [&](i64 c, const Sums& all) {
      bool away;
      const Moments of = moments_about(n, __ldcg(found + c), all, away);
      if (round == 0 && away) {
        found[c] = of.center + of.away;
        var[c] = -1.0;
        atomicOr(far, 1u);
      } else if (round == 0 || var[c] < 0.0) {
        finish_channel<T>(job, c, of);
      }
      if (round == 1) atomicExch(far, 0u);
    });
    if (round == 1 || !seen(far)) break;
    if (has) centers[tid] = __ldcg(found + own);
    __syncthreads();
  }
  if (has) keep_normal<WIDTH>(ready + tid, whole ? normal_of(job, gamma, beta, of_own) : read_normal(job, own));
  __syncthreads();
  map_forward<T, V, K, BX, BY, KIND, false, false, true>(job, blockIdx.x, blockIdx.y, kept, ready);
  if (whole && has && tid % gridDim.y == blockIdx.y) finish_channel<T>(job, own, of_own);  // the map does not wait
}

template <class T, int V, int K, int BX, int BY, int KIND>
BN_DEV void meet_backward(const Job& job, Vector<T, V>* kept) {
  typedef typename Compute<T>::type A;
  constexpr int WIDTH = BX * K;
  const int tid = threadIdx.x;
  const i64 column = (i64)blockIdx.x * WIDTH + tid;
  const bool has = tid < WIDTH && column < job.columns, whole = has_channels(job);
  const i64 own = has ? channel_of(job, column) : 0;
  BN_SHARED(A, ready, 3 * WIDTH);
  double mean = 0.0, rstd = 0.0, scale = 0.0, count = 0.0;
  if (has) {
    mean = row_of(job.stats, job, MEAN)[own];
    rstd = row_of(job.stats, job, RSTD)[own];
    scale = row_of(job.stats, job, SCALE)[own];
    count = count_of(job, own);
  }
  Sums sum[K], all = {0.0, 0.0};
  const auto& forward = sum_products<T, V, K, BX, BY, MEETING, KIND>(job, blockIdx.x, blockIdx.y, kept, sum);
  if (whole) {
    all = join_columns<K, BX, BY>(job, job.partial, sum);
    leave(job.tickets + blockIdx.x, gridDim.y, blockIdx.y == 0);
  } else {
    finish_tile<T, Sums, K, BX, BY, MEETING>(job, blockIdx.x, blockIdx.y, sum);
  }
  if (has) {
    const Coefficients of = whole ? coefficients_of(scale, rstd, about_mean<A>(mean, all), count)
                                  : read_coefficients(job, own);
    keep_coefficients<WIDTH, A>(ready + tid, mean, of);
  }
  __syncthreads();
  map_backward<T, V, K, BX, BY, SUMS_ONLY, KIND, false, true>(
      job, blockIdx.x, blockIdx.y, kept, ready, 0, &forward);
  if (whole && has && tid % gridDim.y == blockIdx.y) finish_channel<T>(job, own, all);
}
