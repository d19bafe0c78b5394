/* What no library can go without: it reads what has to be read, writes what has to be written, and does one addition or
 * one multiplication and addition for every value. There are no channels, no numbers to look up, no odd ends. Where x
 * is read again, that begins with what was read last, and so is still in a cache. */
#include <stddef.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LINE = 64, CHUNK = 2048 }; /* bytes of a line; values that rows work on together */
enum { FORWARD, INFERENCE, BACKWARD, ROWS_FORWARD, ROWS_BACKWARD, READING };

#define KEEP(to, v) (*(vector_ *)(to) = (v))
#if defined(__AVX512F__)
#define SEND(to, v) _mm512_stream_si512((void *)(to), (__m512i)(v))
#elif defined(__AVX2__)
typedef union { __m256i half[2]; char whole __attribute__((vector_size(LINE))); } halves;
#define SEND(to, v)                                                                                                   \
    do {                                                                                                              \
        const halves v_ = {.whole = (char __attribute__((vector_size(LINE))))(v)};                                    \
        _mm256_stream_si256((__m256i *)(to), v_.half[0]);                                                             \
        _mm256_stream_si256((__m256i *)(to) + 1, v_.half[1]);                                                         \
    } while (0)
#else
#define SEND KEEP
#endif

/* Eight lines at a time: as many sums stay in registers. */
#define TRAFFIC(real)                                                                                                 \
    typedef real vector_##real __attribute__((vector_size(LINE), aligned(sizeof(real))));                             \
    static real whole_##real(const vector_##real *s)                                                                  \
    {                                                                                                                 \
        real sum = 0;                                                                                                 \
        for (int k = 0; k < 8; k++)                                                                                   \
            for (size_t j = 0; j < LINE / sizeof(real); j++)                                                          \
                sum += s[k][j];                                                                                       \
        return sum;                                                                                                   \
    }                                                                                                                 \
    static real sum_##real(const real *x, ptrdiff_t n)                                                                \
    {                                                                                                                 \
        const vector_##real *v = (const vector_##real *)x;                                                            \
        vector_##real s[8] = {0};                                                                                     \
        for (ptrdiff_t i = 0; i < n * (ptrdiff_t)sizeof(real) / LINE; i += 8)                                         \
            for (int k = 0; k < 8; k++)                                                                               \
                s[k] += v[i + k];                                                                                     \
        return whole_##real(s);                                                                                       \
    }                                                                                                                 \
    static real product_##real(const real *x, const real *dy, ptrdiff_t n)                                            \
    {                                                                                                                 \
        const vector_##real *v = (const vector_##real *)x, *w = (const vector_##real *)dy;                            \
        vector_##real s[8] = {0};                                                                                     \
        for (ptrdiff_t i = 0; i < n * (ptrdiff_t)sizeof(real) / LINE; i += 4)                                         \
            for (int k = 0; k < 4; k++) {                                                                             \
                s[k] += w[i + k];                                                                                     \
                s[4 + k] += w[i + k] * v[i + k];                                                                      \
            }                                                                                                         \
        return whole_##real(s);                                                                                       \
    }                                                                                                                 \
    MAP(real, kept, KEEP)                                                                                             \
    MAP(real, sent, SEND)                                                                                             \
    static void map_##real(int sent, int back, const real *x, const real *dy, real *y, ptrdiff_t n, real a)           \
    {                                                                                                                 \
        if (sent)                                                                                                     \
            map_sent_##real(back, x, dy, y, n, a);                                                                    \
        else                                                                                                          \
            map_kept_##real(back, x, dy, y, n, a);                                                                    \
    }                                                                                                                 \
    /* n values, a multiple of CHUNK; sent: past the caches. */                                                       \
    void traffic_##real(int what, int sent, int threads, const real *x, const real *dy, real *y, ptrdiff_t n)         \
    {                                                                                                                 \
        _Pragma("omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)")                         \
        for (int t = 0; t < threads; t++) {                                                                           \
            const ptrdiff_t begin = n / CHUNK * t / threads * CHUNK, end = n / CHUNK * (t + 1) / threads * CHUNK;     \
            const int two = what == BACKWARD || what == ROWS_BACKWARD;                                                \
            const ptrdiff_t step = what == ROWS_FORWARD || what == ROWS_BACKWARD ? CHUNK : end - begin;               \
            for (ptrdiff_t i = begin; i < end; i += step) {                                                           \
                real a = 1;                                                                                           \
                if (two)                                                                                              \
                    a = product_##real(x + i, dy + i, step);                                                          \
                else if (what != INFERENCE)                                                                           \
                    a = sum_##real(x + i, step);                                                                      \
                if (what == READING)                                                                                  \
                    y[i] = a;                                                                                         \
                else                                                                                                  \
                    map_##real(sent, what != INFERENCE, x + i, two ? dy + i : NULL, y + i, step, a);                  \
            }                                                                                                         \
            FENCE;                                                                                                    \
        }                                                                                                             \
    }
#define MAP(real, name, PUT)                                                                                          \
    static void map_##name##_##real(int back, const real *x, const real *dy, real *y, ptrdiff_t n, real a)            \
    {                                                                                                                 \
        typedef vector_##real vector_;                                                                                \
        const ptrdiff_t lines = n * (ptrdiff_t)sizeof(real) / LINE, wide = LINE / sizeof(real);                       \
        for (ptrdiff_t i = 0; i < lines; i += 4)                                                                      \
            for (int k = 0; k < 4; k++) {                                                                             \
                const ptrdiff_t j = ((back ? lines - 4 - i : i) + k) * wide;                                          \
                const vector_ v = *(const vector_ *)(x + j) * a + a;                                                  \
                PUT(y + j, dy ? *(const vector_ *)(dy + j) * a + v : v);                                              \
            }                                                                                                         \
    }
#if defined(__x86_64__)
#define FENCE _mm_sfence()
#else
#define FENCE (void)0
#endif

TRAFFIC(float)
TRAFFIC(double)
