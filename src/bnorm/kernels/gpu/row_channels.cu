// dgamma and dbeta of rows in a pass of their own: the sums of dy and dy (x - mean) rstd per channel. The geometry is
// that of a reduction per channel, with row_channels channels to a row; the V columns of a step are of one row, and
// there is no rest.

constexpr int AT_A_TIME = 4;  // steps whose sums are added in the type of computation

template <class T>
BN_DEV void finish_channel(const Job&, i64, const Moments&) {}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Sums& sum) {
  give(job.dbeta, job.gives, c, sum.total);
  give(job.dgamma, job.gives, c, sum.dot);
}

template <class T, int V, int K, int BX, int BY, int KIND>
__global__ void __launch_bounds__(BX* BY, 2) row_channels(Job job) {
  typedef typename Compute<T>::type A;
  const Place<K, BX, BY> place(job, blockIdx.x, blockIdx.y);
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  const i64 plane = job.channels * job.inner, copy = quotient(place.column, plane);
  const i64 groups = quotient(job.channels, job.row_channels);
  const i64 channel = place.inside ? channel_of(job, place.column) : 0, group = quotient(channel, job.row_channels);
  const bn_activation act = activation_of<KIND>(job.slope);
  A gamma[K], beta[K];
  Sums sum[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const i64 c = KIND != BN_IDENTITY && place.inside ? channel_of(job, place.column + k) : 0;
    gamma[k] = KIND != BN_IDENTITY && job.gamma ? (A)job.gamma[c] : (A)1;
    beta[k] = KIND != BN_IDENTITY && job.beta ? (A)job.beta[c] : (A)0;
    sum[k] = {0.0, 0.0};
  }
  Walk<BX == 1> walk(job, place.column, place.first, BY);
#pragma unroll 1
  for (i64 steps = place.steps; steps > 0; steps -= AT_A_TIME) {
    A s[K], d[K];
#pragma unroll
    for (int k = 0; k < K; ++k) s[k] = d[k] = 0;
#pragma unroll
    for (int u = 0; u < AT_A_TIME; ++u)
      if (u < steps) {
        const i64 row = (walk.row * job.copies + copy) * groups + group;
        const double mean = job.row_mean[row], gain = within<A>(job.row_rstd[row]);
        const A h = (A)mean, r = (A)gain, low = (A)bn_fold((double)h, mean, gain, 0.0);
        const Vector<T, V> t = load<T, V>(x + walk.at), e = load<T, V>(dy + walk.at);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const int k = K > 1 ? v : 0;
          const A normalized = fused(widen(t.v[v]) - h, r, low);
          A gradient = widen(e.v[v]);
          if (KIND != BN_IDENTITY) gradient = bn_act_pull(act, fused(normalized, gamma[k], beta[k]), gradient);
          s[k] += gradient;
          // if positions have weights, x may be NaN where dy is 0
          d[k] = fused(gradient, job.weight && gradient == 0 ? (A)0 : normalized, d[k]);
        }
        walk.next();
      }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sum[k].total += s[k];
      sum[k].dot += d[k];
    }
  }
  finish_tile<T, Sums, K, BX, BY>(job, blockIdx.x, blockIdx.y, sum);
}
