/* How large arrays go through: what is going to be read is fetched ahead, what is finished goes to memory past the
 * caches. Both change only the time it takes. */
#ifndef BNORM_STREAMS_H
#define BNORM_STREAMS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "fetch.h"
#include "lanes.h"

/* Whether there are stores past the caches. Without them all results go through the caches. */
#if defined(__SSE2__) || defined(_M_X64)
#include <immintrin.h>
#define BN_HAS_STREAM 1
enum { BN_STREAMS = 1 };
#else
enum { BN_STREAMS = 0 };
#endif

enum {
    BN_LINE = 64,           /* bytes of a cache line */
    BN_AHEAD = 8192,        /* bytes fetched before they are read: the latency of memory times its bandwidth, and some */
    BN_FLUSH = 1024,        /* finished bytes from which they go to memory: the less of them, the smoother it flows */
    BN_ROOM = 8192          /* bytes that may be finished at once */
};

/* A walk ahead of the reader over rows of `span` bytes with `gap` bytes between them, of one array, or of a second
 * too that lies `apart` bytes from the first (0: none), and of a third, or of an output through the caches, that lies
 * `third` bytes from it (0: none, or the array itself). It may run past the end: fetching is not reading. Few lines at a
 * time, between other work: the queue to memory is short, and a thread that waits for a place in it does nothing else. */
typedef struct {
    const char *at;
    ptrdiff_t apart, third, gap;
    size_t span, left;
    size_t early;           /* bytes that were fetched before as many others were sent */
    ptrdiff_t reach;        /* instead of a walk: how many bytes behind what is read the next is fetched (0: a walk); or
                             * of x, while the walk is one over dy */
    size_t rows, height;    /* how many rows are left of a tile, and how many it has; 0: whole rows are walked over */
    size_t tile, beside;    /* bytes of a row in a tile, and from this tile on */
} bn_ahead;

/* From the end of a row to the next; from the last row of a tile to the first of the tile beside it, or to those below. */
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

/* Fetch a line of each array, at the same place of all. */
BN_INLINE void bn_fetch_lines(const char *at, ptrdiff_t apart, ptrdiff_t third)
{
    bn_fetch_line(at);
    if (apart)
        bn_fetch_line(at + apart);
    if (third)
        bn_fetch_line(at + third);
}

/* Fetch as many bytes as are going to be read now. */
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

/* Fetch what lies `reach` bytes behind these of x, and of dy unless a walk goes over it. Line by line, between the loads of
 * sums: then the processor's own fetching is not misled, and nothing waits. */
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

/* Fetch what comes as far behind these bytes of x and dy: while sums are made memory has nothing else to do. Where the
 * output of a walk is gathered and sent, half of it is left for when that is done. */
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
{
    ahead->at = NULL;
    ahead->apart = ahead->third = ahead->reach = 0;
    ahead->early = 0;
}

/* Let what is read be fetched so many bytes ahead, in place of a walk; or x alone, and let the walk go on over dy. */
static inline void bn_reach(bn_ahead *ahead, ptrdiff_t bytes, int only_x)
{
    ahead->at = only_x ? ahead->at + ahead->apart : NULL;
    ahead->apart = 0;
    ahead->reach = bytes;
}

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

/* Let the walk go over so many rows of its span, then of the `beside` bytes of a row that begin with it, tile by tile,
 * and then to the rows below. */
static inline void bn_tiles(bn_ahead *ahead, size_t rows, size_t beside)
{
    ahead->rows = ahead->height = rows;
    ahead->tile = ahead->span;
    ahead->beside = beside;
}

/* Output that is gathered in the first-level cache and sent to memory by whole lines, whose old contents then need not
 * be read first. The buffer mirrors memory from the line on that `to` points to; of that line the first `skip` bytes
 * are not ours. */
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

/* A vector that is sent past the caches; its bytes turned, so that those from some place on come first; the first bytes of
 * one, and the rest of another. */
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
/* By one place, and by two: the first two bits of the order. */
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

/* The order that turns a vector so that byte `from` comes first. */
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

/* Send whole lines, and fetch as many if the walk ahead does not stand. */
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
    memmove(out->buffer, end, BN_LINE);     /* what does not fill a line */
    out->to = to;
    out->filled -= lines * BN_LINE;
}

/* Send everything, what does not fill a line too. */
static inline void bn_close(bn_output *out, bn_ahead *ahead)
{
    bn_send(out, ahead);
    if (out->filled > out->skip)
        memcpy(out->to + out->skip, out->buffer + out->skip, out->filled - out->skip);
    out->filled = out->skip = 0;
}

/* Where to write the next bytes of y, at most BN_ROOM of them. */
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
