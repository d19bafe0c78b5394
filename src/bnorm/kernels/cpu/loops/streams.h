/* How large arrays pass through the caches: input is fetched into them (prefetched) before it is read; output is sent
 * past them, straight to memory. Both change only the time, no result. */
#ifndef BNORM_STREAMS_H
#define BNORM_STREAMS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fetch.h"
#include "lanes.h"

/* Whether the processor has stores past the caches. If not, all results go through the caches. */
#if defined(__SSE2__) || defined(_M_X64)
#include <immintrin.h>
#define BN_HAS_STREAM 1
enum { BN_STREAMS = 1 };
#else
enum { BN_STREAMS = 0 };
#endif

enum {
    BN_LINE = 64,           /* bytes of a cache line */
    /* Bytes to fetch ahead of reads: the latency of memory times its bandwidth, and more. No multiple of a page, since
     * results mostly lie at the same place in a page as their input. The processor compares the last 12 bits of
     * addresses, and a fetch would wait for a store to that place. */
    BN_AHEAD = 10240,
    BN_FLUSH = 1024,        /* gathered bytes from which they are sent: the fewer at once, the more even the flow */
    BN_ROOM = 8192          /* most bytes of output that are asked for at once */
};

/* A walk: the place up to which input is fetched, ahead of the reader, and how that place moves on. It goes over rows
 * of `span` bytes with `gap` bytes between them. A second array, which lies `apart` bytes from the first (0: none), is
 * fetched with it, and so is a third, or an output that goes through the caches, `third` bytes from the first (0:
 * none, or the first array itself). A walk may run past the end of an array, since a prefetch never fails. Only a few
 * lines should be fetched at a time, between other work: the queue to memory is short, and a thread that waits for a
 * place in it does nothing else. */
typedef struct {
    const char *at;
    ptrdiff_t apart, third, gap;
    size_t span, left;
    size_t early;           /* bytes that were fetched early, so that bn_send need not fetch them */
    ptrdiff_t reach;        /* not 0: instead of a walk, fetch what is this many bytes beyond what is read; if `at` is
                             * set too, that goes for x, and the walk is over dy */
    size_t rows, height;    /* rows left of a tile, and all rows of a tile; 0: there are no tiles */
    size_t tile, beside;    /* bytes of a row in a tile, and from this tile to the last */
} bn_ahead;

/* Move from the end of a row to the next row; at the end of a tile, to the tile beside it or, after the last, to the
 * rows below. */
BN_APART void bn_next_row(bn_ahead *ahead)
{
    ahead->at += (ptrdiff_t)ahead->left + ahead->gap;
    if (ahead->height && --ahead->rows == 0) {
        const size_t step = ahead->span + (size_t)ahead->gap;
        ahead->rows = ahead->height;
        ahead->beside -= ahead->span;
        ahead->at += ahead->span;
        if (ahead->beside) {
            ahead->at -= ahead->height * step;
        } else {
            ahead->at -= step;
            ahead->beside = step;
        }
        ahead->span = ahead->tile < ahead->beside ? ahead->tile : ahead->beside;
        ahead->gap = (ptrdiff_t)(step - ahead->span);
    }
    ahead->left = ahead->span;
}

static inline void bn_advance(bn_ahead *ahead, size_t bytes)
{
    while (bytes >= ahead->left) {
        bytes -= ahead->left;
        bn_next_row(ahead);
    }
    ahead->at += bytes;
    ahead->left -= bytes;
}

/* Fetch one line of each array. */
BN_INLINE void bn_fetch_lines(const char *at, ptrdiff_t apart, ptrdiff_t third)
{
    bn_fetch_line(at);
    if (apart)
        bn_fetch_line(at + apart);
    if (third)
        bn_fetch_line(at + third);
}

/* Fetch the next `bytes` of the walk, as many as the caller is about to read. */
BN_APART void bn_fetch(bn_ahead *ahead, size_t bytes)
{
    while (bytes > 0) {
        const size_t n = bytes < ahead->left ? bytes : ahead->left;
        for (size_t i = 0; i < n; i += BN_LINE)
            bn_fetch_line(ahead->at + i);
        if (ahead->apart)
            for (size_t i = 0; i < n; i += BN_LINE)
                bn_fetch_line(ahead->at + ahead->apart + i);
        if (ahead->third)
            for (size_t i = 0; i < n; i += BN_LINE)
                bn_fetch_line(ahead->at + ahead->third + i);
        bn_advance(ahead, n);
        bytes -= n;
    }
}

/* Fetch what is `reach` bytes beyond these bytes of x, and of dy unless a walk goes over it. Fetched line by line
 * between the loads of sums, this neither misleads the processor's own prefetching nor waits. */
BN_INLINE void bn_fetch_with(const bn_ahead *ahead, const void *x, const void *dy, size_t bytes)
{
    const char *at = (const char *)x + ahead->reach;
    const ptrdiff_t apart = dy && !ahead->at ? (const char *)dy - (const char *)x : 0, third = ahead->third;
    for (size_t i = 0; i < bytes; i += BN_LINE)
        bn_fetch_line(at + i);
    if (apart)
        for (size_t i = 0; i < bytes; i += BN_LINE)
            bn_fetch_line(at + apart + i);
    if (third)
        for (size_t i = 0; i < bytes; i += BN_LINE)
            bn_fetch_line(at + third + i);
}

/* Fetch as much as is read of x and dy here, further ahead: while sums are computed, memory has nothing else to do. If
 * the output will be gathered and sent, half of it is left to bn_send. */
static inline void bn_fetch_on(bn_ahead *ahead, const void *x, const void *dy, size_t bytes, int sent)
{
    if (ahead->reach) {
        bn_fetch_with(ahead, x, dy, bytes);
        return;
    }
    if (sent) {
        bytes /= 2;
        ahead->early += bytes;
    }
    bn_fetch(ahead, bytes);
}

static inline void bn_stand(bn_ahead *ahead)
/* Fetch nothing: the walk stands still. */
{
    ahead->at = NULL;
    ahead->apart = ahead->third = ahead->reach = 0;
    ahead->early = 0;
}

/* Fetch what is `bytes` beyond what is read, in place of a walk; only_x: only for x, while the walk goes on over dy. */
static inline void bn_reach(bn_ahead *ahead, ptrdiff_t bytes, int only_x)
{
    ahead->at = only_x ? ahead->at + ahead->apart : NULL;
    ahead->apart = 0;
    ahead->reach = bytes;
}

/* Begin a walk over rows of `span` bytes, `step` bytes apart, of x and, unless it is NULL, of dy. */
static inline void bn_walk(bn_ahead *ahead, const void *x, const void *dy, size_t span, size_t step)
{
    ahead->at = (const char *)x;
    ahead->apart = dy ? (const char *)dy - (const char *)x : 0;
    ahead->third = 0;
    ahead->span = ahead->left = span;
    ahead->gap = (ptrdiff_t)(step - span);
    ahead->early = 0;
    ahead->reach = 0;
    ahead->height = 0;
}

/* Let the walk go tile by tile: over `rows` rows of its span, then over the same rows of the tile to the right, until
 * the tiles cover `beside` bytes of each row, then over the rows below. */
static inline void bn_tiles(bn_ahead *ahead, size_t rows, size_t beside)
{
    ahead->rows = ahead->height = rows;
    ahead->tile = ahead->span;
    ahead->beside = beside;
}

/* Output that is gathered in the first-level cache and sent to memory in whole lines, so that their old contents need
 * not be read first. The buffer holds what goes to memory from `to` on, which begins a line; the first `skip` bytes of
 * that line are not part of the output. */
typedef struct {
    char *to, *buffer;
    size_t filled, skip;
    char space[BN_ROOM + 3 * BN_LINE];
} bn_output;

static inline void bn_open(bn_output *out)
{
    out->to = NULL;
    out->filled = out->skip = 0;
    out->buffer = out->space + (-(uintptr_t)out->space & (BN_LINE - 1));
}

/* bn_send_unit sends a vector past the caches. bn_turned rotates its bytes, by an order that bn_order makes. bn_joined
 * takes the first bytes, as many as bn_first got for `part`, from `in`, and the others from `out`. */
#if defined(__AVX512F__)
typedef __m512i bn_unit;
typedef __mmask16 bn_part;
BN_INLINE void bn_send_unit(void *to, bn_unit unit) { _mm512_stream_si512((__m512i *)to, unit); }
BN_INLINE bn_unit bn_turned(bn_unit unit, bn_unit order) { return _mm512_permutexvar_epi32(order, unit); }
BN_INLINE bn_part bn_first(size_t bytes) { return (bn_part)((1u << bytes / 4) - 1); }
BN_INLINE bn_unit bn_joined(bn_part part, bn_unit in, bn_unit out) { return _mm512_mask_blend_epi32(part, out, in); }
#elif defined(__AVX2__)
typedef __m256i bn_unit, bn_part;
BN_INLINE void bn_send_unit(void *to, bn_unit unit) { _mm256_stream_si256((__m256i *)to, unit); }
BN_INLINE bn_unit bn_turned(bn_unit unit, bn_unit order) { return _mm256_permutevar8x32_epi32(unit, order); }
BN_INLINE bn_part bn_first(size_t bytes)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)bytes / 4), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
BN_INLINE bn_unit bn_joined(bn_part part, bn_unit in, bn_unit out) { return _mm256_blendv_epi8(out, in, part); }
#elif defined(BN_HAS_STREAM)
typedef __m128i bn_unit, bn_part;
BN_INLINE void bn_send_unit(void *to, bn_unit unit) { _mm_stream_si128((__m128i *)to, unit); }
BN_INLINE bn_part bn_first(size_t bytes)
{
    return _mm_cmpgt_epi32(_mm_set1_epi32((int)bytes / 4), _mm_setr_epi32(0, 1, 2, 3));
}
BN_INLINE bn_unit bn_joined(bn_part part, bn_unit in, bn_unit out)
{
    return _mm_or_si128(_mm_and_si128(part, in), _mm_andnot_si128(part, out));
}
/* Rotates by one place and by two places, as the two lowest bits of the order say. */
BN_INLINE bn_unit bn_turned(bn_unit unit, bn_unit order)
{
    const __m128i by = _mm_shuffle_epi32(order, 0), one = _mm_set1_epi32(1), two = _mm_set1_epi32(2);
    unit = bn_joined(_mm_cmpeq_epi32(_mm_and_si128(by, one), one), _mm_shuffle_epi32(unit, 0x39), unit);
    return bn_joined(_mm_cmpeq_epi32(_mm_and_si128(by, two), two), _mm_shuffle_epi32(unit, 0x4E), unit);
}
#endif

#if defined(BN_HAS_STREAM)
enum { BN_UNIT = sizeof(bn_unit) };

BN_INLINE bn_unit bn_take(const void *from)
{
    bn_unit unit;
    memcpy(&unit, from, sizeof unit);
    return unit;
}

/* The order that rotates a vector so that its byte `from` comes first. */
BN_INLINE bn_unit bn_order(size_t from)
{
    static const int32_t places[32] = {0, 1, 2,  3,  4,  5,  6,  7, 8, 9, 10, 11, 12, 13, 14, 15,
                                       0, 1, 2,  3,  4,  5,  6,  7, 8, 9, 10, 11, 12, 13, 14, 15};
    return bn_take(places + from % BN_UNIT / 4);
}
#endif

/* Send a line past the caches. */
BN_INLINE void bn_send_line(void *to, const void *from)
{
#if defined(BN_HAS_STREAM)
    for (int i = 0; i < BN_LINE; i += BN_UNIT)
        bn_send_unit((char *)to + i, bn_take((const char *)from + i));
#else
    memcpy(to, from, BN_LINE);
#endif
}

/* Send the whole lines in the buffer and, unless the walk stands still, fetch as many. */
static inline void bn_send(bn_output *out, bn_ahead *ahead)
{
    const size_t lines = out->filled / BN_LINE;
    char *to = out->to;
    const char *from = out->buffer, *end = from + lines * BN_LINE, *at = ahead->at;
    const ptrdiff_t apart = at ? ahead->apart : 0, third = at ? ahead->third : 0;
    size_t fetched = lines, turn = 0;
    if (at) {
        const size_t early = ahead->early / BN_LINE;
        fetched -= early < lines ? early : lines;
        ahead->early -= (lines - fetched) * BN_LINE;
        bn_advance(ahead, fetched * BN_LINE);
    }
    if (lines && out->skip) {
        memcpy(to + out->skip, from + out->skip, BN_LINE - out->skip);
        to += BN_LINE, from += BN_LINE;
        out->skip = 0;
    }
    for (; from < end; to += BN_LINE, from += BN_LINE) {
        turn += fetched;
        if (at && turn >= lines) {  /* nothing but fetches between the stores, or they slow down by a third */
            turn -= lines;
            bn_fetch_lines(at, apart, third);
            at += BN_LINE;
        }
        bn_send_line(to, from);
    }
    memmove(out->buffer, end, BN_LINE);     /* the rest, which does not fill a line */
    out->to = to;
    out->filled -= lines * BN_LINE;
}

/* Send everything, including the rest that does not fill a line. */
static inline void bn_close(bn_output *out, bn_ahead *ahead)
{
    bn_send(out, ahead);
    if (out->filled > out->skip)
        memcpy(out->to + out->skip, out->buffer + out->skip, out->filled - out->skip);
    out->filled = out->skip = 0;
}

/* Returns where to write the next `bytes` of y, BN_ROOM at most: a place in the buffer. */
static inline void *bn_room(bn_output *out, void *y, size_t bytes, bn_ahead *ahead)
{
    if (out->to + out->filled != (char *)y) {
        bn_close(out, ahead);
        out->skip = out->filled = (uintptr_t)y & (BN_LINE - 1);
        out->to = (char *)y - out->skip;
    } else if (out->filled >= BN_FLUSH || out->filled + bytes > BN_ROOM + BN_LINE) {
        bn_send(out, ahead);
    }
    out->filled += bytes;
    return out->buffer + out->filled - bytes;
}

/* Make what was sent visible before another thread reads it. */
static inline void bn_fence(void)
{
#ifdef BN_HAS_STREAM
    _mm_sfence();
#endif
}

#endif
