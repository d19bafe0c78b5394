// The backward of rows: dx by two sums per row, and sums over the rows for dgamma and dbeta.

// What a thread holds of a row from the sums to dx: x as it was loaded, and dy gamma in the type of computation
// (`once`). If this takes too many registers it holds dy as it was loaded. Without sums for gamma and beta, three
// blocks share a processor (`light`) if halves are not held as floats. With an activation they are, so that it is not
// computed twice; with five vectors they never are.
template <class T, int V, int STEPS, int WIDE, int KIND, int PARAMS>
struct HeldPairs {
  static constexpr bool half = sizeof(T) == 2 && V == 8;
  static constexpr bool light =
      (STEPS == 3 || STEPS == 4) && PARAMS == NO_PARAMS && sizeof(T) < 8 && !(half && (WIDE || KIND != BN_IDENTITY));
  static constexpr bool once = STEPS > 0 && !(half && (light || STEPS == 5));
  static constexpr bool rolled = ROLLED<KIND>;
  // for kernels with sums, row_plans.py counts on these numbers
  static constexpr int blocks = WIDE == BROAD ? 1 : light ? 3 : 2;
  static constexpr int of_x = STEPS > 0 ? STEPS : ROLLED<KIND> ? 1 : PAIRS;
  static constexpr int of_dy = once ? 1 : of_x, of_g = once ? STEPS : 1;
  static constexpr int affine = KIND == BN_IDENTITY ? GAMMA_ALONE : GAMMA_AND_BETA;  // what is read of the two
  typedef ColumnSums<typename Compute<T>::type, V, of_x, THREADS_OF<WIDE>> Over;
  static constexpr int bytes_of_columns = PARAMS == PER_COLUMN ? Over::BYTES : 0;
};

template <class T, int V, int STEPS, int WIDE, bool WHOLE, int KIND, int PARAMS>
BN_DEV void backward_rows(
    const RowJob& job, const typename Compute<T>::type* affine, unsigned char* dynamic, double* memory) {
  typedef typename Compute<T>::type A;
  constexpr int THREADS = THREADS_OF<WIDE>;
  typedef HeldPairs<T, V, STEPS, WIDE, KIND, PARAMS> Held;
  typedef typename Held::Over Over;
  typedef ChannelSums<A, V, STEPS, THREADS> Each;
  const Over of_columns = {reinterpret_cast<Vector<A, Over::WIDE>*>(dynamic)};
  const Each of_channels = {dynamic};
  if (PARAMS == PER_COLUMN) of_columns.clear();
  Vector<T, V>* kept = nullptr;  // of x, and behind them of dy
  if (STEPS == 0 && WHOLE) {
    const i64 before = PARAMS == PER_CHANNEL ? of_channels.bytes(job) : affine_bytes<A, Held::affine>(job);
    kept = reinterpret_cast<Vector<T, V>*>(dynamic + before) + threadIdx.x;
  }
  const int kept_dy = (int)job.keep * THREADS;
  int until_flush = Over::FLUSH;
  bool first_flush = true;
  RowSums<WIDE> sums = {memory, (int)job.lanes, 0};
  const bn_activation act = activation_of<KIND>(job.slope);
  // if channels have blocks of their own, a block stays with the rows of a group
  const i64 apart = PARAMS == PER_CHANNEL ? job.groups : 1;
  const auto set = [&]() { return quotient(blockIdx.x, apart); };
  const auto group = [&]() { return blockIdx.x - set() * apart; };
  const auto rows_from = [&](i64 first) {  // how many rows the block has side by side
    int rows = (int)job.side;
    while (first + (rows - 1) * apart >= job.rows) --rows;
    return rows;
  };
  const i64 begin_at = first_row(job, apart), on = rows_apart(job);
  if (PARAMS == PER_CHANNEL) of_channels.begin(job, group());
  const A* of_group = PARAMS == PER_CHANNEL ? of_channels.affine(job) : nullptr;
  const A* near = PARAMS == PER_CHANNEL ? of_group : affine;
  typedef Row<V, STEPS, WIDE, SURE_STEPS<T, V, STEPS, WIDE, WHOLE>> Of;
  typedef typename Of::Int Int;
  Of start(job, begin_at, apart);
  if constexpr (STEPS == 0) start.template part_of_warp<THREADS / 32>();
  const ChannelWalk<Int> channels(job, start);  // for rows that are not held
  if constexpr (STEPS == 0 && WHOLE) {
    const T* x = static_cast<const T*>(job.x) + start.start;
    const T* dy = static_cast<const T*>(job.dy) + start.start;
    for (int j = 0, steps = start.steps(); j < steps; ++j) {
      fetch<T, V>(kept + j * THREADS, x + start.at(j));
      fetch<T, V>(kept + kept_dy + j * THREADS, dy + start.at(j));
      if (Groups<PAIRS>::ends(j, steps)) end_group();
    }
  }
  RunSums<A> runs(of_channels.totals(), PARAMS == PER_CHANNEL ? Each::pieces_of(job) : 1);
  double next_mean = 0.0, next_rstd = 0.0;
  const auto stats = [&](bool inside, i64 row) {
    next_mean = inside ? job.mean[row] : 0.0;
    next_rstd = inside ? job.rstd[row] : 0.0;
  };
  if (STEPS == 0) stats(start.inside, start.index);
  const auto fixed = [](A v) { return STEPS == 0 ? as_it_is(v) : v; };
#pragma unroll 1
  for (i64 first = begin_at; first < rows_end(job); first += on) {
    Of row(job, first, apart);
    if constexpr (STEPS == 0) row.template part_of_warp<THREADS / 32>();
    const T* x = static_cast<const T*>(job.x) + row.start;
    const T* dy = static_cast<const T*>(job.dy) + row.start;
    T* dx = static_cast<T*>(job.y) + row.start;
    Vector<T, V> t[Held::of_x], e[Held::of_dy];
    Vector<A, V> held[Held::of_g];
    if (STEPS > 0)
      for_vectors(row, [&](int j, auto i, int) {
        t[j] = load<T, V>(x + i);
        pack(t[j]);
        Vector<T, V> loaded = load<T, V>(dy + i);
        pack(loaded);
        if (!Held::once) e[j] = loaded;
#pragma unroll
        for (int v = 0; Held::once && v < V; ++v) held[j].v[v] = value(loaded, v);
      });
    if (STEPS > 0) stats(row.inside, row.index);
    const double mean = next_mean, rstd = next_rstd;
    if (STEPS == 0) stats(row.index + on < rows_end(job), row.index + on);  // one row ahead
    const double gain = within<A>(rstd);
    const A h = fixed((A)mean), r = fixed((A)gain), low = fixed((A)bn_fold((double)h, mean, gain, 0.0));
    // dy times the derivative of the activation
    const auto behind = [&](A gradient, A normalized, A gamma, A beta) {
      return KIND == BN_IDENTITY ? gradient : bn_act_pull(act, fused(normalized, gamma, beta), gradient);
    };
    const auto turn = [&] {
      turned(t);
      turned(e);
      turned(held);
    };
    const auto for_pairs = [&](const auto& use, auto rolled) {
      if constexpr (PARAMS == PER_CHANNEL) {
        const auto of_channel = [&](int own, auto i, int j) { use(own, i, j, Number<OF_GROUP>()); };
        for_vectors<decltype(rolled)::value != 0>(row, of_channel, turn);
      } else {
        for_affine<decltype(rolled)::value != 0>(row, affine, use, turn);
      }
    };
    constexpr int MANY = ROLLED<KIND> ? 1 : PAIRS;
    double both[2] = {0.0, 0.0};  // sum of dy gamma, and of dy gamma (x - h)
    bool bad = false;  // products left the range of float
    A to_beta_of[MANY], to_gamma_of[MANY];  // sums of vectors of a row that is not held
    const auto add_vector = [&](int own, int j, const Affine<A, V>& of) {
      A s = 0, d = 0, size = 0, to_beta[V], to_gamma[V];  // s may be 0 where not all g are
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const A away = value(t[own], v) - h, normalized = fused(away, r, low);
        to_beta[v] = behind(Held::once ? held[own].v[v] : value(e[own], v), normalized, of.gamma[v], of.beta[v]);
        const A g = to_beta[v] * of.gamma[v];
        s += g;
        size += size_of(g);
        d = fused(g, away, d);
        to_gamma[v] = to_beta[v] * normalized;
        if (Held::once) held[own].v[v] = g;
      }
      if (PARAMS == PER_COLUMN && row.inside) {
        of_columns.add(0, j, to_beta);
        of_columns.add(1, j, to_gamma);
      }
      if (PARAMS == PER_CHANNEL) {
#pragma unroll
        for (int v = 1; v < V; ++v) {
          to_beta[0] += to_beta[v];
          to_gamma[0] += to_gamma[v];
        }
        if constexpr (STEPS > 0) of_channels.keep(j, to_beta[0], to_gamma[0]);
        else to_beta_of[own] = to_beta[0], to_gamma_of[own] = to_gamma[0];
      }
      bad |= !(d - d == 0) || (size_of(d) < (A)(1e-30 * V) && size != 0);
      both[0] += s;
      both[1] += d;
    };
    // some steps of a row that is not held
    const Int steps = STEPS == 0 ? row.steps() : (Int)0;
    constexpr bool RUNS = PARAMS == PER_CHANNEL;
    ChannelWalk<Int> channel = channels;
    int at[MANY];  // the channels of these steps
    const auto for_steps = [&](Int step, const auto& use) {
      Affine<A, V> of[MANY];
      for_some<MANY>(step, steps, [&](int own, Int j) {
        t[own] = WHOLE ? kept[j * THREADS] : load<T, V>(x + row.at(j));
        e[own] = WHOLE ? kept[kept_dy + j * THREADS] : load<T, V>(dy + row.at(j));
        if (!RUNS && job.inner == 1) return;
        if (RUNS) of[own].pick(of_group, job.channels, at[own] = (int)channel.at, Held::affine != GAMMA_ALONE);
        else of[own].set(job, row.channel + channel.at, Held::affine != GAMMA_ALONE);
        channel.next();
      });
      for_some<MANY>(step, steps, [&](int own, Int j) {
        if (!RUNS && job.inner == 1) of[own].template get<ANYWHERE, Held::affine>(job, affine, row.channel, row.at(j));
        else of[own].spread();
        use(own, j, of[own]);
      });
    };
    const auto add_steps = [&](Int step) {
      if (WHOLE && step % PAIRS == 0) Groups<PAIRS>()(step + PAIRS < steps ? steps - step - PAIRS : 0);
      for_steps(step, [&](int own, Int, const Affine<A, V>& of) { add_vector(own, 0, of); });
    };
    if constexpr (STEPS > 0) {
      const auto add = [&](int own, auto i, int j, auto from) {
        Affine<A, V> of;
        of.template get<decltype(from)::value, Held::affine>(job, near, row.channel, i);
        add_vector(own, j, of);
      };
      for_pairs(add, Number<Held::rolled>());
      if (PARAMS == PER_CHANNEL)
        of_channels.add(job, rows_from(first));
    } else if constexpr (RUNS) {
      const Int most = __shfl_sync(~0u, steps, 0);  // no lane has more than lane 0
#pragma unroll 1
      for (Int step = 0; step < most; step += MANY) {
        add_steps(step);
#pragma unroll
        for (int u = 0; u < MANY; ++u) runs.add(step + u < steps, at[u], to_beta_of[u], to_gamma_of[u]);
      }
    } else {
#pragma unroll 1
      for (Int step = 0; step < steps; step += MANY) add_steps(step);
    }
    if (!Compute<T>::in_range && rarely(bad)) {  // again, in float64; if all x are h the sum is exactly 0
      bool off = false;
      double dot = 0.0;
#pragma unroll 1
      for (i64 j = row.offset; j < row.size; j += row.stride)
#pragma unroll 1
        for (i64 i = j; i < j + V; ++i) {
          const i64 channel = row.channel + (job.inner == 1 ? i : quotient(i, job.inner));
          const A value = widen(x[i]), gamma = job.gamma ? (A)job.gamma[channel] : (A)1;
          const A beta = KIND != BN_IDENTITY && job.beta ? (A)job.beta[channel] : (A)0;
          const A g = behind(widen(dy[i]), fused(value - h, r, low), gamma, beta) * gamma;
          dot += exact(g) * (exact(value) - exact(h));
          off |= !same(value, h);
        }
      if (off) both[1] = dot;
    }
    sums.add(both);
    const double gap = mean - (double)h, total = both[0] * job.inverse, dot = both[1] * job.inverse - gap * total;
    const double of_x = within<A>(bn_grad_b(rstd, dot, 1.0));
    const double rest = job.rule == BN_MEAN_SQUARE ? 0.0 : bn_grad_c(total, 1.0);
    const A b = fixed((A)of_x), c = fixed((A)(rest - of_x * gap));
    const auto write = [&](int own, auto i, const Affine<A, V>& of) {
      Vector<T, V> result;
      pack(t[own]);
      if (Held::once) {
#pragma unroll
        for (int v = 0; v < V; ++v) narrow(r * (held[own].v[v] + fused(value(t[own], v) - h, b, c)), result.v[v]);
      } else {
        pack(e[own]);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const A away = value(t[own], v) - h;
          const A g = behind(value(e[own], v), fused(away, r, low), of.gamma[v], of.beta[v]) * of.gamma[v];
          narrow(r * (g + fused(away, b, c)), result.v[v]);
        }
      }
      if (row.inside) put<T, V>(dx + i, result, job.streams);
    };
    if constexpr (STEPS == 0) {
      const i64 ahead = first + on < rows_end(job) ? on * job.size : 0;
      channel = channels;
#pragma unroll 1
      for (Int step = 0; step < steps; step += MANY) {
        for_steps(step, [&](int own, Int j, const Affine<A, V>& of) { write(own, row.at(j), of); });
        if (!WHOLE || !ahead) continue;
        for_some<MANY>(step, steps, [&](int, Int j) {
          fetch<T, V>(kept + j * THREADS, x + ahead + row.at(j));
          fetch<T, V>(kept + kept_dy + j * THREADS, dy + ahead + row.at(j));
        });
        if (Groups<PAIRS>::ends(least(step + MANY, steps) - 1, steps)) end_group();
      }
    } else if constexpr (Held::once) {
      for_vectors(row, [&](int own, auto i, int) { write(own, i, Affine<A, V>()); });
    } else {
      const auto map = [&](int own, auto i, int, auto from) {
        Affine<A, V> of;
        of.template get<decltype(from)::value, Held::affine>(job, near, row.channel, i);
        write(own, i, of);
      };
      for_pairs(map, Number<Held::rolled>());
    }
    if (PARAMS == PER_COLUMN && --until_flush == 0) {
      of_columns.flush(job, (int)job.lanes, first_flush);
      until_flush = Over::FLUSH;
      first_flush = false;
    }
  }
  if (PARAMS == PER_COLUMN) of_columns.flush(job, (int)job.lanes, first_flush);
  if (PARAMS == PER_CHANNEL) {
    if (STEPS == 0) {
      runs.flush();
      __syncthreads();
    }
    of_channels.write(job, set(), group());
  }
  if (PARAMS != NO_PARAMS && job.bunch) {  // else rows_params joins them
    __syncthreads();                       // `dynamic` is free now
    const i64 first = group() * job.channels, columns = PARAMS == PER_CHANNEL ? job.channels : job.columns;
    join_last<Sums, THREADS>(
        items_of(job), (int)job.bunch, (int)set(), 1, job.tickets + group() * tickets_of(job.sets, job.bunch), first,
        first + columns, reinterpret_cast<double*>(dynamic), [&](i64 c, const Sums& sum) { give_params(job, c, sum); });
  }
}

template <class T, int V, int STEPS, int WIDE, int KIND, int PARAMS>
__global__ void __launch_bounds__(THREADS_OF<WIDE>, (HeldPairs<T, V, STEPS, WIDE, KIND, PARAMS>::blocks))
rows_backward(RowJob job) {
  typedef typename Compute<T>::type A;
  BN_SHARED(double, memory, RowSums<WIDE>::SIZE);
  unsigned char* dynamic = dynamic_memory(job.affine || PARAMS || job.keep);
  typedef HeldPairs<T, V, STEPS, WIDE, KIND, PARAMS> Held;
  // behind the sums, whose size is a constant here, so that neither address takes a register
  const A* affine = keep_affine<A, V, Held::affine>(job, dynamic + Held::bytes_of_columns);
  if (STEPS > 0 ? job.whole : job.keep) {
    backward_rows<T, V, STEPS, WIDE, true, KIND, PARAMS>(job, affine, dynamic, memory);
  } else {
    backward_rows<T, V, STEPS, WIDE, false, KIND, PARAMS>(job, affine, dynamic, memory);
  }
}
