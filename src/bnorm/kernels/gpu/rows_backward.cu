// The backward of rows: dx by two sums per row, and sums over the rows for dgamma and dbeta.

// Sums over rows, of dy and dy (x - mean) rstd: every thread has its own in shared memory, of all columns it works on,
// and from time to time they are added to those of the block, in float64, which lie in job.partial.
template <class A, int V, int STEPS>
struct Params {
  static constexpr int WIDE = Affine<A, V>::WIDE, PLANES = V / WIDE;
  static constexpr int FLUSH = 32;  // rows of a thread, whose sums in float are exact enough
  Vector<A, WIDE>* memory;          // (2, STEPS, PLANES, ROW_THREADS): neighbours lie side by side

  BN_MEMBER Vector<A, WIDE>& at(int sum, int j, int plane, int tid) const {
    return memory[((sum * STEPS + j) * PLANES + plane) * ROW_THREADS + tid];
  }
  BN_MEMBER void clear() const {
#pragma unroll
    for (int i = 0; i < 2 * STEPS * PLANES; ++i)
#pragma unroll
      for (int v = 0; v < WIDE; ++v) memory[i * ROW_THREADS + threadIdx.x].v[v] = 0;
  }
  BN_MEMBER void add(int sum, int j, const A (&values)[V]) const {
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) {
      Vector<A, WIDE> total = at(sum, j, plane, threadIdx.x);
#pragma unroll
      for (int v = 0; v < WIDE; ++v) total.v[v] += values[plane * WIDE + v];
      at(sum, j, plane, threadIdx.x) = total;
    }
  }
  // Every column by one thread, over the rows side by side in their order.
  BN_MEMBER void flush(const RowJob& job, int lanes, bool first) const {
    __syncthreads();
#pragma unroll 1
    for (i64 i = threadIdx.x; i < 2 * job.size; i += ROW_THREADS) {
      const int sum = i >= job.size;
      const i64 column = sum ? i - job.size : i, vector = quotient(column, V);
      const int j = (int)quotient(vector, lanes), lane = (int)vector - j * lanes, v = (int)(column - vector * V);
      double total = 0.0;
#pragma unroll 4
      for (int tid = lane; tid < ROW_THREADS; tid += lanes) total += at(sum, j, v / WIDE, tid).v[v % WIDE];
      double* to = job.partial + ((i64)blockIdx.x * 2 + sum) * job.size + column;
      *to = first ? total : *to + total;
    }
    __syncthreads();
    clear();
  }
};

// Blocks that a processor shall hold at least. row_plans.py knows which are alone.
template <class A, int V, int STEPS, int KIND, int PARAMS>
struct RowResident {
  static constexpr bool alone = STEPS == 8 && (V == 8 || sizeof(A) == 8);
  static constexpr int blocks = alone ? 1 : STEPS == 4 && KIND == BN_IDENTITY && !PARAMS ? 3 : 2;
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
  typedef Params<A, V, HELD> Over;
  const Over params = {reinterpret_cast<Vector<A, Over::WIDE>*>(dynamic + (PARAMS ? affine_bytes : 0))};
  if (PARAMS) params.clear();
  int until_flush = Over::FLUSH;
  bool first_flush = true;
  RowSums<WIDE != 0> sums = {memory, WIDE ? 32 : (int)job.lanes, 0};
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  T* dx = static_cast<T*>(job.y);
  const A slope = slope_of<KIND, A>(job.slope);
#pragma unroll 1
  for (i64 first = blockIdx.x * job.side; first < job.rows; first += gridDim.x * job.side) {
    const Row<V, STEPS, WIDE != 0> row(job, first);
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
                          : bn_act_pull(KIND, slope, fused(normalized, gamma, beta), (A)widen(gradient));
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
    for_vectors(row, [&](int j, auto i) {
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
      if (PARAMS) {
        params.add(0, j, to_beta);
        params.add(1, j, to_gamma);
      }
      double d_ = d;
      if (!Compute<T>::in_range && rarely(!(d - d == 0) || (size_of(d) < (A)(1e-30 * V) && s != 0))) {
        bool off = false;  // else it is exactly 0
#pragma unroll
        for (int v = 0; v < V; ++v) off |= !(widen(t[j].v[v]) == h);
        if (off) d_ = exact_dot(row.start, row.channel, i);
      }
      both[0] += s;
      both[1] += d_;
    });
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
    if (PARAMS && --until_flush == 0) {
      params.flush(job, WIDE ? ROW_THREADS : (int)job.lanes, first_flush);
      until_flush = Over::FLUSH;
      first_flush = false;
    }
  }
  if (PARAMS) params.flush(job, WIDE ? ROW_THREADS : (int)job.lanes, first_flush);
}

// dbeta and dgamma out of the partial sums of the blocks: 32 columns, and 8 threads for each.
__global__ void __launch_bounds__(ROW_THREADS) rows_params(RowJob job) {
  BN_SHARED(double, memory, ROW_THREADS);
  const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
  const i64 column = (i64)blockIdx.x * 32 + tx;
#pragma unroll
  for (int sum = 0; sum < 2; ++sum) {
    double total = 0.0;
    if (column < job.size)
#pragma unroll 8
      for (i64 block = ty; block < job.blocks; block += 8) total += job.partial[(block * 2 + sum) * job.size + column];
    memory[threadIdx.x] = total;
    __syncthreads();
    if (ty == 0 && column < job.size) {
#pragma unroll
      for (int i = 1; i < 8; ++i) total += memory[i * 32 + tx];
      (sum ? job.dgamma : job.dbeta)[column] = total;
    }
    __syncthreads();
  }
}
