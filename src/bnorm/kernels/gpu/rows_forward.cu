// The forward of rows: y, and mean and 1/std of each.

template <class T, int V, int STEPS, int WIDE, bool WHOLE, int KIND>
BN_DEV void forward_rows(
    const RowJob& job, const typename Compute<T>::type* affine, Vector<T, V>* kept, double* memory) {
  typedef typename Compute<T>::type A;
  constexpr int THREADS = THREADS_OF<WIDE>;
  RowSums<WIDE> sums = {memory, (int)job.lanes, 0};
  const bn_activation act = activation_of<KIND>(job.slope);
  const i64 apart = rows_apart(job);
  typedef Row<V, STEPS, WIDE, SURE_STEPS<T, V, STEPS, WIDE, WHOLE>> Of;
  const Of start(job, first_row(job, 1));
  const ChannelWalk<typename Of::Int> channels(job, start);  // for rows that are not held
  // three values of a row, for its center; if rows are not held, they are read one row ahead
  const auto read_near = [&](const T* x) {
    const bool about_zero = job.rule == BN_MEAN_SQUARE || job.size == 0;
    return about_zero ? Near<T>{} : Near<T>{x[0], x[job.size / 2], x[job.size - 1]};
  };
  Near<T> near = {};
  if (STEPS == 0 && start.inside) near = read_near(static_cast<const T*>(job.x) + start.start);
  if constexpr (STEPS == 0 && WHOLE) {
    const bool several = is_early(job) && job.late >= 3 * apart;  // turns; with rows in registers it gains nothing
    if (several) wait_for_turn(blockIdx.x * job.size * (i64)sizeof(T));
    const T* x = static_cast<const T*>(job.x) + start.start;
    for (int j = 0, steps = start.steps(); j < steps; ++j) {
      fetch<T, V>(kept + j * THREADS, x + start.at(j));
      if (Groups<BATCH>::ends(j, steps)) end_group();
    }
  }
#pragma unroll 1
  for (i64 first = first_row(job, 1); first < rows_end(job); first += apart) {
    Of row(job, first);
    if constexpr (STEPS > 0 && sizeof(T) == 2) row.stride = anew(row.stride);  // only halves lack registers
    const T* x = static_cast<const T*>(job.x) + row.start;
    T* y = static_cast<T*>(job.y) + row.start;
    Vector<T, V> held[STEPS > 0 ? STEPS : BATCH];
    RowStats stats;
    if constexpr (STEPS > 0) {
      for_vectors(row, [&](int j, auto i, int) {
        held[j] = load<T, V>(x + i);
        pack(held[j]);
      });
      stats = stats_of<T>(job, row, x, held, read_near(x).center(), sums);
    } else {
      stats = stats_of<T>(job, row, x, kept, near.center(), sums);
    }
    if (job.size == 0) stats = {0.0, 0.0};
    const double mean = stats.mean, rstd = bn_rstd(mean, stats.var, job.eps, (double)job.size);
    if (row.leads) {
      job.mean[row.index] = mean;
      job.rstd[row.index] = rstd;
    }
    const double gain = within<A>(rstd);
    const A h = as_it_is((A)mean), r = as_it_is((A)gain), low = as_it_is((A)bn_fold((double)h, mean, gain, 0.0));
    const auto write = [&](int own, auto i, const Affine<A, V>& of) {
      pack(held[own]);
      Vector<T, V> t;
#pragma unroll
      for (int v = 0; v < V; ++v)
        narrow(bn_act(act, fused(fused(value(held[own], v) - h, r, low), of.gamma[v], of.beta[v])), t.v[v]);
      if (row.inside) put<T, V>(y + i, t, job.streams);
    };
    if constexpr (STEPS == 0) {
      typedef typename Of::Int Int;
      const Int steps = row.steps();
      const i64 ahead = first + apart < rows_end(job) ? apart * job.size : 0;
      if (ahead) near = read_near(x + ahead);
      const auto map = [&](auto runs) {
        constexpr bool RUNS = decltype(runs)::value != 0;
        constexpr int MANY = ROLLED<KIND> ? 1 : RUNS ? BATCH : PAIRS;
        ChannelWalk<Int> channel = channels;
#pragma unroll 1
        for (Int step = 0; step < steps; step += MANY) {
          Affine<A, V> of[MANY];
          for_some<MANY>(step, steps, [&](int own, Int j) {
            held[own] = WHOLE ? kept[j * THREADS] : load<T, V>(x + row.at(j));
            if (!RUNS) return;
            if (affine) of[own].pick(affine, job.groups * job.channels, row.channel + channel.at, true);
            else of[own].set(job, row.channel + channel.at, true);
            channel.next();
          });
          for_some<MANY>(step, steps, [&](int own, Int j) {
            if (RUNS) of[own].spread();
            else of[own].template get<ANYWHERE, AS_GIVEN>(job, affine, row.channel, row.at(j));
            write(own, row.at(j), of[own]);
          });
          if (!WHOLE || !ahead) continue;
          for_some<MANY>(step, steps, [&](int, Int j) { fetch<T, V>(kept + j * THREADS, x + ahead + row.at(j)); });
          if (Groups<BATCH>::ends(least(step + MANY, steps) - 1, steps)) end_group();
        }
      };
      if (job.inner == 1) map(Number<false>());
      else map(Number<true>());
    } else {
      const auto map = [&](int own, auto i, int, auto from) {
        Affine<A, V> of;
        of.template get<decltype(from)::value, AS_GIVEN>(job, affine, row.channel, i);
        write(own, i, of);
      };
      for_affine<ROLLED<KIND>>(row, affine, map, [&] { turned(held); });
    }
  }
}

// Prefetch a block's first row before gamma and beta are read, if so many blocks follow others that this gains time.
template <class T, int V, int STEPS, int WIDE>
BN_DEV void ask_for_first(const RowJob& job) {
  if (!job.halvings) return;
  const Row<V, STEPS, WIDE> row(job, first_row(job, 1));
#pragma unroll
  for (int j = 0; j < STEPS; ++j)
    if (row.has(j)) soon(static_cast<const T*>(job.x) + row.start + row.at(j));
}

// How many blocks share a processor. With four, rows of several warps would have too few registers; with three, such
// rows of five vectors to a thread would, too.
template <class T, int STEPS, int WIDE>
constexpr int FORWARDS = WIDE >= BROAD                                     ? 1
                         : STEPS == 0 || STEPS > 5 || (STEPS == 5 && WIDE) ? 2
                         : sizeof(T) == 8 || WIDE || STEPS == 5            ? 3
                                                                           : 4;

template <class T, int V, int STEPS, int WIDE, int KIND>
__global__ void __launch_bounds__(THREADS_OF<WIDE>, (FORWARDS<T, STEPS, WIDE>)) rows_forward(RowJob job) {
  typedef typename Compute<T>::type A;
  BN_SHARED(double, memory, RowSums<WIDE>::SIZE);
  if constexpr (STEPS > 0) ask_for_first<T, V, STEPS, WIDE>(job);
  const bool of_channels = STEPS == 0 && job.share;  // whether their gamma and beta are kept
  unsigned char* dynamic = dynamic_memory(job.affine || job.keep || of_channels);
  const A* affine = of_channels ? keep_channels<A>(job, dynamic) : keep_affine<A, V, AS_GIVEN>(job, dynamic);
  const i64 before = of_channels ? channels_bytes<A>(job) : affine_bytes<A, AS_GIVEN>(job);
  keep_params(job);
  Vector<T, V>* kept = nullptr;
  if (STEPS == 0) kept = reinterpret_cast<Vector<T, V>*>(dynamic + before) + threadIdx.x;
  if (STEPS > 0 ? job.whole : job.keep) {
    forward_rows<T, V, STEPS, WIDE, true, KIND>(job, affine, kept, memory);
  } else {
    forward_rows<T, V, STEPS, WIDE, false, KIND>(job, affine, kept, memory);
  }
}
