// Layer, group, instance and RMS normalization: a row of K * L contiguous values has a statistic of its own, and gamma
// and beta belong to the channel of a value, g K + i / L for value i of a row of group g.
//
//     rows_forward    y, and mean and 1/std per row
//     rows_backward   dx, by two sums per row
//     rows_params     dgamma and dbeta: sums over all rows, in the way of the channels
//
// TX threads work on a row, 256 / TX rows side by side in a block, and blocks go on from row to row. What a thread has
// read it keeps in shared memory where the row fits; gamma and beta are kept too, where all rows have the same ones.
//
// In the job of the first two: steps rows of run values, inner = L, group = G; copies says that gamma and beta are
// kept. In all: mean and scale are the vectors mean and rstd of the rows, and weighted means RMS.

enum { ROW_THREADS = 256 };

template <class T>
BN_DEV void finish_channel(const Job&, i64, const Moments&) {}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Sums& sum) {
  job.dbeta[c] = sum.v[0];
  job.dgamma[c] = sum.v[1];
}

// The sum over the TX threads of a row, in all of them.
template <class S, int TX>
BN_DEV S join_row(S sum) {
  const int tid = threadIdx.x;
#pragma unroll 1
  for (int d = 16; d > 0; d >>= 1) {
    S other;
#pragma unroll
    for (int i = 0; i < S::PARTS; ++i) other.v[i] = __shfl_down_sync(~0u, sum.v[i], d);
    sum.join(other);
  }
  if (TX == 32) {
#pragma unroll
    for (int i = 0; i < S::PARTS; ++i) sum.v[i] = __shfl_sync(~0u, sum.v[i], 0);
    return sum;
  }
  BN_SHARED(double, memory, S::PARTS * (ROW_THREADS / 32));
  __syncthreads();  // the row before has read it
  if (tid % 32 == 0) {
#pragma unroll
    for (int i = 0; i < S::PARTS; ++i) memory[tid / 32 * S::PARTS + i] = sum.v[i];
  }
  __syncthreads();
  S total = nothing<S>();
#pragma unroll 1
  for (int w = 0; w < TX / 32; ++w) {
    S other;
#pragma unroll
    for (int i = 0; i < S::PARTS; ++i) other.v[i] = memory[(tid / TX * (TX / 32) + w) * S::PARTS + i];
    total.join(other);
  }
  return total;
}

// Gamma and beta of the values of a row, in the type of computation.
template <class A>
struct Affine {
  const Job* job;
  const A* kept;  // gamma, then beta; or null
  i64 first;      // channel of the row

  BN_MEMBER i64 channel(i64 i) const { return first + (job->inner == 1 ? i : quotient(i, job->inner)); }
  BN_MEMBER A gamma(i64 i) const { return kept ? kept[i] : job->gamma ? (A)job->gamma[channel(i)] : (A)1; }
  BN_MEMBER A beta(i64 i) const { return kept ? kept[job->run + i] : job->beta ? (A)job->beta[channel(i)] : (A)0; }
};

template <class A>
BN_DEV const A* keep_affine(const Job& job, unsigned char* memory) {
  if (!job.copies) return nullptr;
  A* kept = reinterpret_cast<A*>(memory);
  for (i64 i = threadIdx.x; i < job.run; i += ROW_THREADS) {
    kept[i] = job.gamma ? (A)job.gamma[i] : (A)1;
    kept[job.run + i] = job.beta ? (A)job.beta[i] : (A)0;
  }
  __syncthreads();
  return kept;
}

// What a thread works on: steps vectors of a row, TX of them apart.
template <class T, int V, int TX>
struct Row {
  typedef typename Compute<T>::type A;
  i64 index, at, steps, offset;  // offset: of the thread's first value in the row
  bool inside;

  BN_MEMBER Row(const Job& job, i64 first) {
    const int tx = threadIdx.x % TX;
    index = first + threadIdx.x / TX;
    inside = index < job.steps;
    offset = (i64)tx * V;
    at = (inside ? index : 0) * job.run + offset;
    const i64 vectors = job.run / V;
    steps = inside && tx < vectors ? (vectors - tx + TX - 1) / TX : 0;
  }
  BN_MEMBER i64 channel(const Job& job) const { return index % job.group * quotient(job.run, job.inner); }
};

template <class T, int V, int TX>
__global__ void __launch_bounds__(ROW_THREADS, 2) rows_forward(Job job) {
  typedef typename Compute<T>::type A;
  unsigned char* memory = dynamic_memory(job.copies || job.keep);
  const A* affine = keep_affine<A>(job, memory);
  const i64 kept_bytes = job.copies ? (2 * job.run * (i64)sizeof(A) + 15) / 16 * 16 : 0;
  Vector<T, V>* kept = job.keep ? reinterpret_cast<Vector<T, V>*>(memory + kept_bytes) + threadIdx.x : nullptr;
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  const i64 side = ROW_THREADS / TX;
#pragma unroll 1
  for (i64 first = blockIdx.x * side; first < job.steps; first += gridDim.x * side) {
    const Row<T, V, TX> row(job, first);
    State<A, 1> state;
    state.n = state.m2[0] = 0.0;
    state.high[0] = state.low[0] = 0;
    add_steps<T, V, 1, ROW_THREADS, true>(x, Walk(row.at, TX * V), row.steps, state, kept);
    const Moments sum = join_row<Moments, TX>(state.get(0));
    const double n = sum.v[0], average = sum.v[1] + sum.v[2], m2 = sum.v[3];
    const double var = n > 0.0 ? m2 / n + (job.weighted ? average * average : 0.0) : 0.0;
    const double mean = job.weighted ? 0.0 : average, rstd = bn_rstd(var, job.eps, n);
    if (row.inside && row.offset == 0) {
      const_cast<double*>(job.mean)[row.index] = mean;
      const_cast<double*>(job.scale)[row.index] = rstd;
    }
    const A h = (A)mean, r = (A)rstd, low = (A)bn_fold((double)h, mean, rstd, 0.0);
    const Affine<A> of = {&job, affine, row.channel(job)};
    const Vector<T, V>* next = kept;
    i64 at = row.at, i = row.offset;
#pragma unroll 2
    for (i64 step = 0; step < row.steps; ++step, at += TX * V, i += TX * V) {
      Vector<T, V> t;
      if (kept) {
        t = *next;
        next += ROW_THREADS;
      } else {
        t = load<T, V>(x + at);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A result = fused(fused(widen(t.v[v]) - h, r, low), of.gamma(i + v), of.beta(i + v));
        narrow(job.relu && result <= 0 ? (A)0 : result, t.v[v]);
      }
      store<T, V>(y + at, t);
    }
  }
}

// dy gamma, or 0 where the ReLU of the forward was.
template <class A>
BN_DEV A pulled(const Job& job, const Affine<A>& of, i64 i, A dy, A normalized) {
  const A gamma = of.gamma(i);
  return job.relu && fused(normalized, gamma, of.beta(i)) <= 0 ? (A)0 : dy * gamma;
}

template <class T, int V, int TX>
__global__ void __launch_bounds__(ROW_THREADS, 2) rows_backward(Job job) {
  typedef typename Compute<T>::type A;
  unsigned char* memory = dynamic_memory(job.copies || job.keep);
  const A* affine = keep_affine<A>(job, memory);
  const i64 kept_bytes = job.copies ? (2 * job.run * (i64)sizeof(A) + 15) / 16 * 16 : 0;
  Vector<T, V>* kept = job.keep ? reinterpret_cast<Vector<T, V>*>(memory + kept_bytes) + threadIdx.x : nullptr;
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  T* dx = static_cast<T*>(job.y);
  const i64 side = ROW_THREADS / TX;
#pragma unroll 1
  for (i64 first = blockIdx.x * side; first < job.steps; first += gridDim.x * side) {
    const Row<T, V, TX> row(job, first);
    const double mean = row.inside ? job.mean[row.index] : 0.0, rstd = row.inside ? job.scale[row.index] : 0.0;
    const A h = (A)mean, r = (A)rstd, low = (A)bn_fold((double)h, mean, rstd, 0.0);
    const Affine<A> of = {&job, affine, row.channel(job)};
    Sums sum = nothing<Sums>();
    Vector<T, V>* next = kept;
    i64 at = row.at, i = row.offset;
#pragma unroll 2
    for (i64 step = 0; step < row.steps; ++step, at += TX * V, i += TX * V) {
      const Vector<T, V> t = load<T, V>(x + at), e = load<T, V>(dy + at);
      if (kept) {
        next[0] = t;
        next[job.keep * ROW_THREADS] = e;
        next += ROW_THREADS;
      }
      A s = 0, d = 0;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A away = widen(t.v[v]) - h, g = pulled(job, of, i + v, (A)widen(e.v[v]), fused(away, r, low));
        s += g;
        d = fused(g, away, d);
      }
      double s_ = s, d_ = d;
      const A small = (A)(1e-30 * V);
      if (!Compute<T>::in_range && (!(d - d == 0) || (size_of(d) < small && s != 0))) {  // once more, in float64
        d_ = 0.0;
#pragma unroll 1
        for (int v = 0; v < V; ++v) {
          const A value = widen(x[at + v]), gradient = widen(dy[at + v]);
          d_ += exact(pulled(job, of, i + v, gradient, fused(value - h, r, low))) * (exact(value) - exact(h));
        }
      }
      sum.v[0] += s_;
      sum.v[1] += d_;
    }
    sum = join_row<Sums, TX>(sum);
    const double size = (double)job.run, gap = mean - (double)h, dot = sum.v[1] - gap * sum.v[0];
    const double slope = bn_grad_b(rstd, dot, size), rest = job.weighted ? 0.0 : bn_grad_c(sum.v[0], size);
    const A b = (A)slope, c = (A)(rest - slope * gap);
    next = kept;
    at = row.at;
    i = row.offset;
#pragma unroll 2
    for (i64 step = 0; step < row.steps; ++step, at += TX * V, i += TX * V) {
      Vector<T, V> t, e;
      if (kept) {
        t = next[0];
        e = next[job.keep * ROW_THREADS];
        next += ROW_THREADS;
      } else {
        t = load<T, V>(x + at);
        e = load<T, V>(dy + at);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A away = widen(t.v[v]) - h, g = pulled(job, of, i + v, (A)widen(e.v[v]), fused(away, r, low));
        narrow(r * (g + fused(away, b, c)), t.v[v]);
      }
      store<T, V>(dx + at, t);
    }
  }
}

// dgamma = sum dy (x - mean) rstd and dbeta = sum dy over all rows. The geometry is that of a reduction per channel,
// with split = K, the channels of a group; the V columns of a step are of one row, and there is no rest.
template <class T, int V, int K, int BX, int BY>
__global__ void __launch_bounds__(BX* BY, 2) rows_params(Job job) {
  typedef typename Compute<T>::type A;
  const int tx = threadIdx.x % BX, ty = threadIdx.x / BX;
  const i64 g = blockIdx.y, column = ((i64)blockIdx.x * BX + tx) * K;
  const i64 first = g * job.chunk + ty, end = least((g + 1) * job.chunk, job.steps);
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  const bool inside = column < job.columns;
  i64 steps = inside && first < end ? (end - first + BY - 1) / BY : 0;
  const i64 plane = job.channels * job.inner, copy = quotient(column, plane);
  const i64 channel = inside ? channel_of(job, column) : 0;
  const i64 groups = quotient(job.channels, job.split), group = quotient(channel, job.split);
  Sums sum[K];
#pragma unroll
  for (int k = 0; k < K; ++k) sum[k] = nothing<Sums>();
  Walk walk(job, column, first, BY);
#pragma unroll 1
  while (steps > 0) {
    const int many = (int)least(BATCH, steps);
    A s[K], d[K];
#pragma unroll
    for (int k = 0; k < K; ++k) s[k] = d[k] = 0;
#pragma unroll
    for (int u = 0; u < BATCH; ++u)
      if (u < many) {
        const i64 row = (walk.row * job.copies + copy) * groups + group;
        const double mean = job.mean[row], rstd = job.scale[row];
        const A h = (A)mean, r = (A)rstd, low = (A)bn_fold((double)h, mean, rstd, 0.0);
        const Vector<T, V> t = load<T, V>(x + walk.at), e = load<T, V>(dy + walk.at);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const int k = K > 1 ? v : 0;
          const A normalized = fused(widen(t.v[v]) - h, r, low);
          A gradient = widen(e.v[v]);
          if (job.relu) {
            const i64 c = K > 1 ? channel_of(job, column + v) : channel;
            const A gamma = job.gamma ? (A)job.gamma[c] : (A)1, beta = job.beta ? (A)job.beta[c] : (A)0;
            if (fused(normalized, gamma, beta) <= 0) gradient = 0;
          }
          s[k] += gradient;
          d[k] = fused(gradient, normalized, d[k]);
        }
        walk.next();
      }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sum[k].v[0] += s[k];
      sum[k].v[1] += d[k];
    }
    steps -= many;
  }
  finish<T, Sums, K, BX, BY>(job, blockIdx.x, g, sum);
}
