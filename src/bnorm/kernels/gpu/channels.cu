// Batch normalization: what is done with the sums of a channel, the maps, and the kernels.
//
//     moments     sums of x; their end is the moments themselves, or the statistics of a forward
//     normalize   y = (x - mean) scale + shift
//     sums        sums of dy and dy (x - mean); their end is the coefficients of a backward
//     gradient    dx = a (dy + w (b (x - mean) + c))
//     move        running statistics by statistics that are known
//
// <T, V, K, BX, BY, mode>: elements of type T are read V at a time; a thread has K channels, V side by side or one; a
// block is BX of these wide and BY high. mode 1 of the sums does the map too, in the same launch.

enum { SUMS_ONLY, WITH_MAP, CAREFUL };

// Between reduction and map ------------------------------------------------------------------------------------------

BN_DEV double running_at(const Job& job, const void* values, i64 c) {
  return job.wide_running ? static_cast<const double*>(values)[c] : (double)static_cast<const float*>(values)[c];
}
BN_DEV bool holds(const Job& job, double v) { return bn_finite(job.wide_running ? v : (double)(float)v); }
BN_DEV void set_running(const Job& job, void* values, i64 c, double v) {
  if (job.wide_running) {
    static_cast<double*>(values)[c] = v;
  } else {
    static_cast<float*>(values)[c] = (float)v;
  }
}

// Move the running statistics of channel c by a batch, as job.nonfinite says; job.left tells what was left alone.
BN_DEV void move_channel(const Job& job, i64 c, double count, double batch_mean, double m2) {
  const double seen = job.seen ? job.seen[c] : 0.0;
  const double mean = running_at(job, job.running_mean, c), var = running_at(job, job.running_var, c);
  const bn_rule rule = {job.seen ? BN_POOL : BN_AVERAGE, job.momentum, 1.0, job.ddof, 0};
  const bn_batch batch = {count, batch_mean, m2, 0.0, count, 0.0, 0.0};
  bn_statistics s = {mean, 0.0, var, seen, job.seen ? seen : 1.0 / 0.0, 0.0, 0.0};
  s = bn_move(s, batch, rule);
  const bool finite = count == 0.0 || (holds(job, s.mean) && holds(job, s.var));
  if (job.left) job.left[c] = !finite;
  if (count == 0.0 || job.nonfinite == TEST || (!finite && job.nonfinite == SKIP)) return;
  set_running(job, job.running_mean, c, s.mean);
  set_running(job, job.running_var, c, s.var);
  if (job.seen) job.seen[c] = s.seen;
}

BN_DEV void write_stats(const Job& job, i64 c, double mean, double var, double count) {
  const double rstd = bn_channel_rstd(mean, var, job.eps, count);
  job.stats[c] = mean;
  job.stats[job.channels + c] = var;
  job.stats[2 * job.channels + c] = rstd;
  job.stats[3 * job.channels + c] = job.gamma ? job.gamma[c] * rstd : rstd;
  job.stats[4 * job.channels + c] = job.beta ? job.beta[c] : 0.0;
}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Moments& sum) {
  const double n = sum.v[0], m2 = sum.v[3], mean = sum.v[1] + sum.v[2], low = (sum.v[1] - mean) + sum.v[2];
  if (job.moments) {
    job.moments[c] = n;
    job.moments[job.channels + c] = mean;
    job.moments[2 * job.channels + c] = m2;
    job.moments[3 * job.channels + c] = low;
  }
  if (job.stats) write_stats(job, c, mean, m2 / (n > 0.0 ? n : 1.0), n);
  if (job.running_mean) move_channel(job, c, n, mean, m2);
  if (job.count_at && c == 0) *job.count_at = n;
}

template <class T>
BN_DEV void finish_channel(const Job& job, i64 c, const Sums& sum) {
  typedef typename Compute<T>::type A;
  const double mean = job.mean[c], total = sum.v[0];
  const double dot = sum.v[1] - (mean - (double)(A)mean) * total;
  if (job.sums) {
    job.sums[c] = total;
    job.sums[job.channels + c] = dot;
  }
  if (!job.stats) return;
  const double rstd = job.stats[2 * job.channels + c], count = job.count_at ? *job.count_at : job.count;
  if (job.b) {
    job.b[c] = bn_grad_b(rstd, dot, count);
    job.c[c] = bn_grad_c(total, count);
  }
  if (job.dgamma) {
    job.dgamma[c] = rstd * dot;
    job.dbeta[c] = total;
  }
}

// The maps -----------------------------------------------------------------------------------------------------------
// The chunks of the reduction are cut into `split` parts, and all last parts come first: what the blocks of the
// reduction read last may still be in the second-level cache.

BN_DEV i64 part_of_map(const Job& job) {
  const i64 chunks = job.chunks / job.split;
  return (blockIdx.y % chunks) * job.split + (job.split - 1 - blockIdx.y / chunks);
}

template <class T, int V, int K, int BX, int BY>
BN_DEV void map_forward(const Job& job, i64 tile, i64 g, const Vector<T, V>* kept) {
  typedef typename Compute<T>::type A;
  const int tid = threadIdx.x, tx = tid % BX, ty = tid / BX;
  const i64 column = (tile * BX + tx) * K, first = g * job.chunk + ty, end = least((g + 1) * job.chunk, job.steps);
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  BN_SHARED(A, coefficients, 3 * BX * K);
  __syncthreads();  // the statistics may have been written by other threads of this block
  if (tid < BX * K && tile * BX * K + tid < job.columns) {
    const i64 col = tile * BX * K + tid, c = channel_of(job, col);
    const double mean = job.mean[c];
    double scale, shift;
    if (job.var) {  // inference: one block of a channel keeps its statistics
      const double seen = job.seen && job.seen[c] > 0.0 ? job.seen[c] : 1.0;
      const double rstd = bn_channel_rstd(mean, job.var[c], job.eps, seen);
      scale = job.gamma ? job.gamma[c] * rstd : rstd;
      shift = job.beta ? job.beta[c] : 0.0;
      if (g == 0 && col == c * job.inner) write_stats(job, c, mean, job.var[c], seen);
    } else {
      scale = job.scale[c];
      shift = job.shift[c];
    }
    const A high = (A)mean;
    coefficients[tid] = high;
    coefficients[BX * K + tid] = (A)scale;
    coefficients[2 * BX * K + tid] = (A)bn_fold((double)high, mean, scale, shift);
  }
  __syncthreads();
  if (column >= job.columns) return;
  A h[K], scale[K], shift[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    h[k] = coefficients[tx * K + k];
    scale[k] = coefficients[(BX + tx) * K + k];
    shift[k] = coefficients[(2 * BX + tx) * K + k];
  }
  const bool relu = job.relu;
  bool found = false;
  i64 steps = first < end ? (end - first + BY - 1) / BY : 0;
  Walk walk(job, column, first, BY);
  while (steps > 0) {
    Vector<T, V> t[BATCH];
    i64 at[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; ++u) {
      at[u] = walk.at;
      if (u < steps) {
        if (kept) {
          t[u] = *kept;
          kept += BX * BY;
        } else {
          t[u] = load<T, V>(x + walk.at);
        }
        walk.next();
      }
    }
#pragma unroll
    for (int u = 0; u < BATCH; ++u)
      if (u < steps) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const int k = K > 1 ? v : 0;
          const A value = widen(t[u].v[v]);
          const A result = fused(value - h[k], scale[k], shift[k]);
          if (job.infinite) found |= infinite(value);
          narrow(relu && result <= 0 ? (A)0 : result, t[u].v[v]);
        }
        store<T, V>(y + at[u], t[u]);
      }
    steps -= BATCH;
  }
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (in_last_row<T>(job, g, ty, column + k)) {
      const i64 at = job.steps * job.columns + column + k;
      const A value = widen(x[at]), result = fused(value - h[k], scale[k], shift[k]);
      if (job.infinite) found |= infinite(value);
      narrow(relu && result <= 0 ? (A)0 : result, y[at]);
    }
  if (found) atomicOr(job.infinite, 1);
}

// B is the type of a, b and c: with weights, which may be of any size, double.
template <class T, class B, int V, int K, int BX, int BY>
BN_DEV void map_backward(const Job& job, i64 tile, i64 g, const Vector<T, V>* kept) {
  typedef typename Compute<T>::type A;
  const int tid = threadIdx.x, tx = tid % BX, ty = tid / BX;
  const i64 column = (tile * BX + tx) * K, first = g * job.chunk + ty, end = least((g + 1) * job.chunk, job.steps);
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.dy);
  T* dx = static_cast<T*>(job.y);
  const bool reads_x = job.relu || !job.frozen;  // else dx is a map of dy alone, whatever x holds
  typedef Masks<A, K, BX> Mask;
  BN_SHARED(Mask, shared, 1);
  BN_SHARED(B, slopes, 3 * BX * K);
  const Mask& masks = shared[0];
  __syncthreads();  // the coefficients may have been written by other threads of this block
  fill_masks<T>(job, tile, shared[0]);
  if (tid < BX * K && tile * BX * K + tid < job.columns) {
    const i64 channel = channel_of(job, tile * BX * K + tid);
    const double mean = job.mean[channel], high = (double)(A)mean;
    slopes[tid] = (B)job.a[channel];
    slopes[BX * K + tid] = job.frozen ? (B)0 : (B)job.b[channel];
    slopes[2 * BX * K + tid] = job.frozen ? (B)0 : (B)bn_fold(high, mean, job.b[channel], job.c[channel]);
  }
  __syncthreads();
  if (column >= job.columns) return;
  A h[K];
  B a[K], b[K], c[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    h[k] = masks.high[k * BX + tx];
    a[k] = slopes[tx * K + k];
    b[k] = slopes[(BX + tx) * K + k];
    c[k] = slopes[(2 * BX + tx) * K + k];
  }
  const i64 plane = job.channels * job.inner, copy = quotient(column, plane);
  // of the weights; V is 1 where there are any
  const i64 offset = copy * job.inner + (column - copy * plane) % job.inner;
  const auto apply = [&](A gradient, A value, double weight, int k) {
    const A t = value - h[k], through = through_relu(job, gradient, t, masks, k * BX + tx);
    if (job.frozen) return (A)(a[k] * (B)through);
    B statistics = fused((B)t, b[k], c[k]);
    if (job.weighted) statistics = weight == 0.0 ? (B)0 : (B)weight * statistics;
    return (A)(a[k] * ((B)through + statistics));
  };
  i64 steps = first < end ? (end - first + BY - 1) / BY : 0, r = first;
  Walk walk(job, column, first, BY);
  const Vector<T, V>* kept_dy = kept ? kept + job.keep * (BX * BY) : kept;
#pragma unroll 1
  while (steps > 0) {
    Vector<T, V> t[PAIRS], e[PAIRS];
    i64 at[PAIRS];
#pragma unroll
    for (int u = 0; u < PAIRS; ++u) {
      at[u] = walk.at;
      if (u < steps) {
        if (kept) {
          t[u] = *kept;
          e[u] = *kept_dy;
          kept += BX * BY;
          kept_dy += BX * BY;
        } else {
          e[u] = load<T, V>(dy + walk.at);
          t[u] = reads_x ? load<T, V>(x + walk.at) : e[u];
        }
        walk.next();
      }
    }
#pragma unroll
    for (int u = 0; u < PAIRS; ++u)
      if (u < steps) {
        const double w = job.weighted ? job.weight[(r + u * BY) * job.weight_step + offset] : 1.0;
#pragma unroll
        for (int v = 0; v < V; ++v)
          narrow(apply(widen(e[u].v[v]), widen(t[u].v[v]), w, K > 1 ? v : 0), t[u].v[v]);
        store<T, V>(dx + at[u], t[u]);
      }
    steps -= PAIRS;
    r += PAIRS * BY;
  }
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (in_last_row<T>(job, g, ty, column + k)) {
      const i64 at = job.steps * job.columns + column + k;
      const double w = job.weighted ? job.weight[job.steps * job.weight_step + offset] : 1.0;
      const A gradient = widen(dy[at]);
      narrow(apply(gradient, reads_x ? (A)widen(x[at]) : gradient, w, k), dx[at]);
    }
}

// Kernels ------------------------------------------------------------------------------------------------------------

// Blocks that a processor shall hold at least, which bounds the registers of a thread. With eight channels to a thread
// and the map in the same launch there are too many numbers for two.
template <int THREADS, int K, int MODE>
struct Resident {
  static constexpr int blocks = THREADS > 256 || (K == 8 && MODE == WITH_MAP) ? 1 : 2;
};

// Where a thread keeps what it has read until the map of the same launch; null where it reads again.
template <class T, int V, int MODE>
BN_DEV Vector<T, V>* kept_memory(const Job& job) {
  if (MODE != WITH_MAP || !job.keep) return nullptr;
  return reinterpret_cast<Vector<T, V>*>(dynamic_memory(true)) + threadIdx.x;
}

template <class T, int V, int K, int BX, int BY, int MODE>
__global__ void __launch_bounds__(BX* BY, (Resident<BX * BY, K, MODE>::blocks)) moments(Job job) {
  Vector<T, V>* kept = kept_memory<T, V, MODE>(job);
  reduce_moments<T, V, K, BX, BY, MODE == WITH_MAP, MODE == CAREFUL>(job, blockIdx.x, blockIdx.y, kept);
  if (MODE == WITH_MAP) map_forward<T, V, K, BX, BY>(job, blockIdx.x, 0, kept);
}

template <class T, int V, int K, int BX, int BY>
__global__ void __launch_bounds__(BX* BY, (Resident<BX * BY, K, SUMS_ONLY>::blocks)) normalize(Job job) {
  map_forward<T, V, K, BX, BY>(job, blockIdx.x, part_of_map(job), nullptr);
}

template <class T, int V, int K, int BX, int BY, int MODE>
__global__ void __launch_bounds__(BX* BY, (Resident<BX * BY, K, MODE>::blocks)) sums(Job job) {
  Vector<T, V>* kept = kept_memory<T, V, MODE>(job);
  reduce_sums<T, V, K, BX, BY, MODE == WITH_MAP>(job, blockIdx.x, blockIdx.y, kept);
  if (MODE == WITH_MAP) map_backward<T, typename Compute<T>::type, V, K, BX, BY>(job, blockIdx.x, 0, kept);
}

template <class T, int V, int K, int BX, int BY, int MODE>
__global__ void __launch_bounds__(BX* BY, (Resident<BX * BY, K, MODE>::blocks)) gradient(Job job) {
  const i64 tile = blockIdx.x, g = part_of_map(job);
  if (MODE == CAREFUL) {
    map_backward<T, double, V, K, BX, BY>(job, tile, g, nullptr);
  } else {
    map_backward<T, typename Compute<T>::type, V, K, BX, BY>(job, tile, g, nullptr);
  }
}

__global__ void __launch_bounds__(256) move(Job job) {
  const i64 c = (i64)blockIdx.x * 256 + threadIdx.x;
  if (c >= job.channels) return;
  const double count = job.moments[c];
  move_channel(job, c, count, job.mean[c], job.var[c] * count);
}
