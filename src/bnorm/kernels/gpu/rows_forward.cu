// The forward of rows: y, and mean and 1/std of each.

template <class T, int V, int STEPS, int WIDE, int KIND>
__global__ void __launch_bounds__(ROW_THREADS, STEPS == 4 ? 3 : 2) rows_forward(RowJob job) {
  typedef typename Compute<T>::type A;
  constexpr int HELD = STEPS > 0 ? STEPS : 1;
  BN_SHARED(double, memory, 4 * ROW_WARPS);
  const A* affine = keep_affine<A>(job, dynamic_memory(job.affine));
  RowSums<WIDE != 0> sums = {memory, WIDE ? 32 : (int)job.lanes, 0};
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  const bn_activation act = activation_of<KIND>(job.slope);
#pragma unroll 1
  for (i64 first = blockIdx.x * job.side; first < job.rows; first += gridDim.x * job.side) {
    const Row<V, STEPS, WIDE != 0> row(job, first);
    Vector<T, V> t[HELD];
    RowStats stats;
    if constexpr (STEPS > 0) {
      for_vectors(row, [&](int j, auto i) { t[j] = load<T, V>(x + row.start + i); });
      stats = stats_of<T, V, STEPS, WIDE != 0>(job, row, t, sums);
    } else {
      stats = stats_of<T, V>(job, row, sums);
    }
    if (job.size == 0) stats = {0.0, 0.0};
    const double mean = stats.mean, rstd = bn_rstd(mean, stats.var, job.eps, (double)job.size);
    if (row.leads) {
      job.mean[row.index] = mean;
      job.rstd[row.index] = rstd;
    }
    const A h = (A)mean, r = (A)rstd, low = (A)bn_fold((double)h, mean, rstd, 0.0);
    for_vectors(row, [&](int j, auto i) {
      Affine<A, V> of;
      of.get(job, affine, row.channel, i, true);
      if (STEPS == 0) t[j] = load<T, V>(x + row.start + i);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A result = fused(fused(widen(t[j].v[v]) - h, r, low), of.gamma[v], of.beta[v]);
        narrow(bn_act(act, result), t[j].v[v]);
      }
      put<T, V>(y + row.start + i, t[j], job.streams);
    });
  }
}
