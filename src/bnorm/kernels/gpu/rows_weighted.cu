// Rows whose positions have weights, which all rows of an outer position share. Each row has a block, which reads it
// again in every pass. All sums are float64.

// The values of a row that a thread has, each with its position in a run and its channel.
struct WeightedWalk {
  i64 i, place, channel, over, channels;

  BN_MEMBER WeightedWalk(const RowJob& job, i64 first) : i(threadIdx.x) {
    channels = quotient(ROW_THREADS, job.inner);
    over = ROW_THREADS - channels * job.inner;
    const i64 c = quotient(i, job.inner);
    place = i - c * job.inner;
    channel = first + c;
  }
  BN_MEMBER void next(const RowJob& job) {
    i += ROW_THREADS;
    place += over;
    channel += channels;
    if (place >= job.inner) {
      place -= job.inner;
      channel += 1;
    }
  }
};

// Call use(place in memory, weight, channel) for each value of a row that this thread has.
template <class Use>
BN_DEV void for_weighted(const RowJob& job, i64 row, const Use& use) {
  const i64 n = quotient(row, job.groups);
  const double* weight = job.weight + n * job.inner;
  for (WeightedWalk at(job, (row - n * job.groups) * job.channels); at.i < job.size; at.next(job))
    use(row * job.size + at.i, weight[at.place], at.channel);
}

template <class T, int KIND>
__global__ void __launch_bounds__(ROW_THREADS) rows_weighted_forward(RowJob job) {
  typedef typename Compute<T>::type A;
  BN_SHARED(double, memory, RowSums<OF_WARPS>::SIZE);
  RowSums<OF_WARPS> sums = {memory, ROW_THREADS, 0};
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  const bn_activation act = activation_of<KIND>(job.slope);
  keep_params(job);
#pragma unroll 1
  for (i64 row = blockIdx.x; row < job.rows; row += gridDim.x) {
    double first[2] = {0.0, 0.0}, both[2] = {0.0, 0.0};  // sums of w, w x; of w (x - center), w (x - center)^2
    for_weighted(job, row, [&](i64 i, double w, i64) {
      if (w == 0.0) return;
      first[0] += w;
      first[1] += w * exact(widen(x[i]));
    });
    sums.add(first);
    const bool some = 1.0 / first[0] < BN_INFINITY;  // else the row weighs nothing, or too little to divide by
    const double count = some ? first[0] : 0.0, by = some ? first[0] : 1.0;
    const double center = some && job.rule != BN_MEAN_SQUARE ? first[1] / by : 0.0;
    for_weighted(job, row, [&](i64 i, double w, i64) {
      if (w == 0.0 || !some) return;
      const double away = exact(widen(x[i])) - center;
      both[0] += w * away;
      both[1] += w * away * away;
    });
    sums.add(both);
    const double low = job.rule == BN_MEAN_SQUARE ? 0.0 : both[0] / by, m2 = both[1] - both[0] * low;
    const double mean = center + low, rstd = bn_rstd(mean, (m2 < 0.0 ? 0.0 : m2) / by, job.eps, count);
    if (threadIdx.x == 0) {
      job.mean[row] = mean;
      job.rstd[row] = rstd;
    }
    const double gain = within<A>(rstd);
    const A h = (A)mean, r = (A)gain, rest = (A)bn_fold((double)h, mean, gain, 0.0);
    for_weighted(job, row, [&](i64 i, double, i64 c) {
      const A gamma = job.gamma ? (A)job.gamma[c] : (A)1, beta = job.beta ? (A)job.beta[c] : (A)0;
      narrow(bn_act(act, fused(fused(widen(x[i]) - h, r, rest), gamma, beta)), y[i]);
    });
  }
}

// dx; row_channels.cu has the sums for gamma and beta. Asked for the four blocks that fit anyway, the compiler spills no
// registers in float64 with an activation; 0 leaves the other kinds to it, of some of which it fits five.
template <class T, int KIND>
__global__ void __launch_bounds__(ROW_THREADS, sizeof(T) == 8 && KIND != BN_IDENTITY ? 4 : 0)
    rows_weighted_backward(RowJob job) {
  typedef typename Compute<T>::type A;
  BN_SHARED(double, memory, RowSums<OF_WARPS>::SIZE);
  RowSums<OF_WARPS> sums = {memory, ROW_THREADS, 0};
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  T* dx = static_cast<T*>(job.y);
  const bn_activation act = activation_of<KIND>(job.slope);
#pragma unroll 1
  for (i64 row = blockIdx.x; row < job.rows; row += gridDim.x) {
    const double mean = job.mean[row], rstd = job.rstd[row];
    const double gain = within<A>(rstd);
    const A h = (A)mean, r = (A)gain, rest = (A)bn_fold((double)h, mean, gain, 0.0);
    // dy gamma, where dy is first multiplied by the derivative of the activation
    const auto behind = [&](i64 i, i64 c) {
      const A gamma = job.gamma ? (A)job.gamma[c] : (A)1, gradient = (A)widen(dy[i]);
      if (KIND == BN_IDENTITY) return gradient * gamma;
      const A beta = job.beta ? (A)job.beta[c] : (A)0;
      return bn_act_pull(act, fused(fused(widen(x[i]) - h, r, rest), gamma, beta), gradient) * gamma;
    };
    // sums of the weights; of g, and of g (x - mean), to which a g of 0 adds nothing
    double own = 0.0, both[2] = {0.0, 0.0};
    for_weighted(job, row, [&](i64 i, double w, i64 c) {
      own += w;
      const A g = behind(i, c);
      if (g == 0) return;
      both[0] += exact(g);
      both[1] += exact(g) * (exact(widen(x[i])) - mean);
    });
    const double count = sums.add(own);
    sums.add(both);
    const double b = bn_grad_b(rstd, both[1], count);
    const double c = job.rule == BN_MEAN_SQUARE ? 0.0 : bn_grad_c(both[0], count);
    for_weighted(job, row, [&](i64 i, double w, i64 channel) {
      const A through = w == 0.0 ? (A)0 : (A)(w * (b * (exact(widen(x[i])) - mean) + c));
      narrow(r * (behind(i, channel) + through), dx[i]);
    });
  }
}
