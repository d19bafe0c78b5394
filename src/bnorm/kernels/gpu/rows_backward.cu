// The backward of rows: dx by two sums per row, and sums over the rows for dgamma and dbeta.

constexpr int LONG_TILE = 8;  // vectors of a thread, of a row that is not held, whose sums are kept at a time

// Blocks that a processor shall hold at least. row_plans.py knows which are alone.
template <class A, int V, int STEPS, int KIND, int PARAMS>
struct RowResident {
  static constexpr bool alone =
      STEPS == 8 && (V == 8 || sizeof(A) == 8 || PARAMS == PER_CHANNEL || (V == 4 && PARAMS == NO_PARAMS));
  static constexpr int blocks = alone ? 1 : STEPS == 4 && V < 8 && KIND == BN_IDENTITY && !PARAMS ? 3 : 2;
};

template <class T, int V, int STEPS, int WIDE, int KIND, int PARAMS>
__global__ void __launch_bounds__(ROW_THREADS, (RowResident<typename Compute<T>::type, V, STEPS, KIND, PARAMS>::blocks))
rows_backward(RowJob job) {
  typedef typename Compute<T>::type A;
  constexpr int HELD = STEPS > 0 ? STEPS : 1;
  BN_SHARED(double, memory, 4 * ROW_WARPS);
  unsigned char* dynamic = dynamic_memory(job.affine || PARAMS);
  const A* affine = keep_affine<A>(job, dynamic);
  const i64 affine_bytes = job.affine ? 2 * Affine<A, V>::beta_at(job) * (i64)sizeof(A) : 0;
  typedef ColumnSums<A, V, HELD> Over;
  const Over of_columns = {reinterpret_cast<Vector<A, Over::WIDE>*>(dynamic + (PARAMS ? affine_bytes : 0))};
  if (PARAMS == PER_COLUMN) of_columns.clear();
  typedef ChannelSums<A, V, (STEPS > 0 ? STEPS : LONG_TILE)> Each;
  const Each of_channels = {dynamic};
  if (PARAMS == PER_CHANNEL) of_channels.clear(job);
  int until_flush = Over::FLUSH;
  bool first_flush = true;
  RowSums<WIDE != 0> sums = {memory, WIDE ? 32 : (int)job.lanes, 0};
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  T* dx = static_cast<T*>(job.y);
  const bn_activation act = activation_of<KIND>(job.slope);
  // where channels have blocks of their own, a block stays with the rows of a group
  const i64 apart = PARAMS == PER_CHANNEL ? job.groups : 1;
  const auto set = [&]() { return quotient(blockIdx.x, apart); };
  const auto group = [&]() { return blockIdx.x - set() * apart; };
#pragma unroll 1
  for (i64 first = set() * job.side * apart + group(); first < job.rows; first += gridDim.x * job.side) {
    const Row<V, STEPS, WIDE != 0> row(job, first, apart);
    Vector<T, V> t[HELD], e[HELD];
    const auto read = [&](int j, auto i) {
      t[j] = load<T, V>(x + row.start + i);
      e[j] = load<T, V>(dy + row.start + i);
    };
    if (STEPS > 0) for_vectors(row, read);
    const double mean = row.inside ? job.mean[row.index] : 0.0, rstd = row.inside ? job.rstd[row.index] : 0.0;
    const A h = (A)mean, r = (A)rstd, low = (A)bn_fold((double)h, mean, rstd, 0.0);
    // dy behind the activation
    const auto behind = [&](T gradient, A normalized, A gamma, A beta) {
      return KIND == BN_IDENTITY ? (A)widen(gradient)
                          : bn_act_pull(act, fused(normalized, gamma, beta), (A)widen(gradient));
    };
    // Products that left the range of float: once more, in float64.
    const auto exact_dot = [&](i64 start, i64 channel, i64 i) {
      double sum = 0.0;
#pragma unroll 1
      for (i64 k = i; k < i + V; ++k) {
        const i64 c = channel + (job.inner == 1 ? k : quotient(k, job.inner));
        const A value = widen(x[start + k]), gamma = job.gamma ? (A)job.gamma[c] : (A)1;
        const A beta = KIND != BN_IDENTITY && job.beta ? (A)job.beta[c] : (A)0;
        const A g = behind(dy[start + k], fused(value - h, r, low), gamma, beta) * gamma;
        sum += exact(g) * (exact(value) - exact(h));
      }
      return sum;
    };
    double both[2] = {0.0, 0.0};  // sum of dy gamma, and of dy gamma (x - h)
    const auto add_vector = [&](int j, auto i, int place) {
      Affine<A, V> of;
      of.get(job, affine, row.channel, i, KIND != BN_IDENTITY);
      if (STEPS == 0) read(j, i);
      A s = 0, d = 0, to_beta[V], to_gamma[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A away = widen(t[j].v[v]) - h, normalized = fused(away, r, low);
        const A gradient = behind(e[j].v[v], normalized, of.gamma[v], of.beta[v]), g = gradient * of.gamma[v];
        s += g;
        d = fused(g, away, d);
        to_beta[v] = gradient;
        to_gamma[v] = gradient * normalized;
      }
      if (PARAMS == PER_COLUMN) {
        of_columns.add(0, j, to_beta);
        of_columns.add(1, j, to_gamma);
      }
      if (PARAMS == PER_CHANNEL) {
#pragma unroll
        for (int v = 1; v < V; ++v) {
          to_beta[0] += to_beta[v];
          to_gamma[0] += to_gamma[v];
        }
        of_channels.keep(place, to_beta[0], to_gamma[0]);
      }
      double d_ = d;
      if (!Compute<T>::in_range && rarely(!(d - d == 0) || (size_of(d) < (A)(1e-30 * V) && s != 0))) {
        bool off = false;  // else it is exactly 0
#pragma unroll
        for (int v = 0; v < V; ++v) off |= !same((A)widen(t[j].v[v]), h);
        if (off) d_ = exact_dot(row.start, row.channel, i);
      }
      both[0] += s;
      both[1] += d_;
    };
    const i64 vectors = PARAMS == PER_CHANNEL ? quotient(job.size, V) : 0;
    if (PARAMS == PER_CHANNEL && STEPS == 0) {
#pragma unroll 1
      for (i64 begin = 0, step = 0; begin < vectors; begin += Each::SIZE) {
#pragma unroll 2
        for (int j = 0; j < LONG_TILE; ++j, ++step)
          if (step < row.steps) add_vector(0, row.offset + step * row.stride, j);
        of_channels.add(job, 1, begin, least(begin + Each::SIZE, vectors));
      }
    } else {
      for_vectors(row, [&](int j, auto i) { add_vector(j, i, j); });
      if (PARAMS == PER_CHANNEL) of_channels.add(job, (int)least(job.side, quotient(job.rows - first + apart - 1, apart)), 0, vectors);
    }
    sums.add(both);
    const double size = (double)job.size, gap = mean - (double)h, total = both[0], dot = both[1] - gap * total;
    const double of_x = bn_grad_b(rstd, dot, size), rest = job.rule == BN_MEAN_SQUARE ? 0.0 : bn_grad_c(total, size);
    const A b = (A)of_x, c = (A)(rest - of_x * gap);
    for_vectors(row, [&](int j, auto i) {
      Affine<A, V> of;
      of.get(job, affine, row.channel, i, KIND != BN_IDENTITY);
      if (STEPS == 0) read(j, i);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A away = widen(t[j].v[v]) - h;
        const A g = behind(e[j].v[v], fused(away, r, low), of.gamma[v], of.beta[v]) * of.gamma[v];
        narrow(r * (g + fused(away, b, c)), t[j].v[v]);
      }
      put<T, V>(dx + row.start + i, t[j], job.streams);
    });
    if (PARAMS == PER_COLUMN && --until_flush == 0) {
      of_columns.flush(job, WIDE ? ROW_THREADS : (int)job.lanes, first_flush);
      until_flush = Over::FLUSH;
      first_flush = false;
    }
  }
  if (PARAMS == PER_COLUMN) of_columns.flush(job, WIDE ? ROW_THREADS : (int)job.lanes, first_flush);
  if (PARAMS == PER_CHANNEL) of_channels.write(job, set(), group());
}
