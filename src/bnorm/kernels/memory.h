/* What a Cython loop cannot say: how memory is read and written, and what this processor can do. */
#ifndef BNORM_MEMORY_H
#define BNORM_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) || defined(_M_X64)
#include <immintrin.h>
#ifdef _MSC_VER
#include <intrin.h>
#endif
#define BN_HAS_STREAM 1
#endif

/* Copy a finished tile from the first-level cache to memory without reading the destination's lines first. */
static inline void bn_stream(void *target, const void *source, size_t bytes)
{
#ifdef BN_HAS_STREAM
    char *to = (char *)target;
    const char *from = (const char *)source;
    const size_t skew = (size_t)(-(uintptr_t)to & 63);
    const size_t head = skew < bytes ? skew : bytes;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512((__m512i *)to, _mm512_loadu_si512((const void *)from));
#elif defined(__AVX__)
        _mm256_stream_si256((__m256i *)to, _mm256_loadu_si256((const __m256i *)from));
        _mm256_stream_si256((__m256i *)(to + 32), _mm256_loadu_si256((const __m256i *)(from + 32)));
#else
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
#endif
    }
    memcpy(to, from, bytes);
#else
    memcpy(target, source, bytes);
#endif
}

#if defined(__GNUC__) || defined(__clang__)
#define BN_OUTSIDE __attribute__((noinline, unused))
#else
#define BN_OUTSIDE
#endif

/* Read memory once from end to end, just before a loop reads it as several rows side by side. The processor fetches
 * ahead of one plain walk, but not of interleaved ones; walking over a few kilobytes first more than doubles the
 * bandwidth from memory. The walk must be whole: loads of one byte per line overtake each other and gain nothing. */
static BN_OUTSIDE void bn_touch(const void *memory, size_t bytes)
{
    const unsigned char *byte = (const unsigned char *)memory;
    unsigned char all = 0;
    for (size_t i = 0; i < bytes; i++)
        all |= byte[i];
    volatile unsigned char sink = all;
    (void)sink;
}

/* Whether x is an infinity, and no NaN; int, as wide as float, for loops that vectorize. */
static inline int32_t bn_infinite_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits << 1 == 0xFF000000u;
}

static inline int64_t bn_infinite_double(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits << 1 == 0xFFE0000000000000u;
}

/* Set a flag that other threads may be setting too. */
static inline void bn_set(int *flag)
{
#if defined(__GNUC__) || defined(__clang__)
    __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
#else
    *(volatile int *)flag = 1;
#endif
}

/* Make streamed stores visible before another thread reads them. */
static inline void bn_stream_end(void)
{
#ifdef BN_HAS_STREAM
    _mm_sfence();
#endif
}

/* 0 baseline, 1 AVX2, 2 AVX-512: the widest build of the kernels that this processor and its system can run. */
static inline int bn_processor_level(void)
{
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2"))
        return 2;
    return __builtin_cpu_supports("avx2") ? 1 : 0;
#elif defined(_MSC_VER) && defined(_M_X64)
    int leaf[4];
    __cpuid(leaf, 1);
    if ((leaf[2] & (1 << 27)) == 0 || (_xgetbv(0) & 0x6) != 0x6) return 0;
    __cpuidex(leaf, 7, 0);
    const int avx2 = (leaf[1] >> 5) & 1, wide = (leaf[1] & 0xC0030000) == (int)0xC0030000;
    return wide && (_xgetbv(0) & 0xE0) == 0xE0 ? 2 : avx2;
#else
    return 0;
#endif
}

#endif
