/* Between trace.c, which makes events, and tracewrite.c, which takes them away. */
#ifndef GOFER_TRACEBUF_H
#define GOFER_TRACEBUF_H

#include "trace.h"

#ifdef GOFER_TINY /* buffers fill up all the time */
enum { TRACE_BUF = 512, TRACE_PENDING = 4096 };
#else
enum { TRACE_BUF = 64 << 10, TRACE_PENDING = 256 };
#endif
enum { TRACE_WAKE = TRACE_PENDING / 32 }; /* as many wait for the writer: do not let it sleep */
enum { PERIODS = 8, PERIODS_KEPT = 4 };   /* how many of the recorder's fit into what it keeps */
enum { EVENT_MAX = 96, TEXT_MAX = TRACE_BUF / 4, STACK_MAX = 48, CACHE_SIZE = 256 };

/* One thread writes into it and stores `used` with release after each event, so anybody may read the bytes
 * before that at any time. Nobody takes a buffer away from its thread: that hands it over when it is full. */
typedef struct TraceBuf {
    struct TraceBuf *next;
    uint32_t epoch, thread;
    uint64_t base; /* ticks; the first event counts from here */
    uint64_t last; /* ticks of the last event, once it is full */
    _Atomic uint32_t used;
    uint8_t data[TRACE_BUF];
} TraceBuf;

/* Of each thread that has had something to say, as long as it lives. Its own, but for `buf` and the links. */
typedef struct TraceThread {
    uint32_t epoch, period; /* of the event that is being written */
    uint32_t told;          /* the period in which it last said who it is */
    uint32_t index;
    uint32_t stack; /* where `stack_of` is about to suspend */
    const G *stack_of;
    uint8_t *at, *end;
    uint64_t last;
    _Atomic uint64_t lost; /* events since the buffer was full and no other was to be had */
    uint64_t lost_told;
    TraceBuf *buf;                   /* tracer.lock to change */
    struct TraceThread *prev, *next; /* tracer.lock */
    struct {
        uint64_t hash;
        uint32_t id;
    } stacks[CACHE_SIZE];
    struct { /* goroutines whose own function, not one that it awaits, suspended here */
        uint64_t g;
        const void *frame; /* lives as long as the goroutine */
        uintptr_t where;
        uint32_t stack;
    } roots[CACHE_SIZE];
    struct {
        PyObject *str; /* one that the table of strings holds, so it is no other by now */
        uint32_t id;
    } strings[CACHE_SIZE];
} TraceThread;

typedef struct {
    uint8_t *data;
    size_t len, cap;
} Bytes;

/* From a 64-bit hash to an id: two things of one hash do not happen. */
typedef struct {
    uint64_t *hashes;
    uint32_t *ids;
    uint32_t size, n;
} Table;

typedef struct {
    Lock lock; /* all below. Nothing else is locked, and nobody is called, with it held */
    _Atomic uint32_t epoch; /* the first period of this trace: what is older is nobody's */
    bool collecting;
    struct
    { /* in each all say anew who they are, so that the recorder can forget when they last did */
        uint64_t starts[PERIODS]; /* ticks; a ring. Not after anything that is said in the period */
        uint32_t n;
        size_t bytes, max_bytes; /* handed over since the last began; 0: there is no recorder */
        int64_t begun_ns;
    } periods;
    TraceThread *threads;
    uint32_t nthreads;
    TraceBuf *full, **full_tail, *free;
    uint32_t nfree;
    _Atomic uint32_t npending; /* full, and not written yet */
    uint64_t lost;             /* by threads that have ended */
    Table strings, stacks;
    Bytes string_defs, stack_defs, thread_defs;
    PyObject **held; /* owned: what the tables know by address */
    size_t nheld, held_cap;
    Note note; /* the writer sleeps on it */
} Tracer;
extern Tracer tracer;

uint64_t trace_ticks(void);
bool trace_tsc(void); /* ticks are the processor's, not nanoseconds */
bool bytes_add(Bytes *b, const void *data, size_t n);
bool bytes_varint(Bytes *b, uint64_t v);
void trace_tables_clear(void);     /* attached; no lock */
uint64_t trace_next_period(void);  /* tracer.lock */
void trace_thread_leave(void);     /* this thread has nothing more to say */
void trace_status_of_silent(void); /* attached: goroutines that no event has named so far */
void trace_sample(void);

static inline uint8_t *put_varint(uint8_t *p, uint64_t v)
{
    if (likely(v < 1 << 7)) {
        *p = (uint8_t)v;
        return p + 1;
    }
    if (likely(v < 1 << 14)) {
        p[0] = (uint8_t)(v | 0x80);
        p[1] = (uint8_t)(v >> 7);
        return p + 2;
    }
    while (v >= 0x80) {
        *p++ = (uint8_t)(v | 0x80);
        v >>= 7;
    }
    *p++ = (uint8_t)v;
    return p;
}

#endif
