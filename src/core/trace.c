/* Trace points: what they write, and where.
 *
 * Each thread writes into a buffer of its own, without a lock. When it is full it goes onto a list, from which
 * the writer (tracewrite.c) takes it. If the writer cannot keep up, events are dropped and counted: no goroutine
 * ever waits for a trace.
 *
 * ORDER. Nothing numbers the events: the reader sorts them by time. Of two events of which one made the other
 * possible (a wake-up and the start that follows it) the first is stamped before the second could begin,
 * because a trace point stands before the store that lets others go on, and one that says what others did
 * stands after the load that saw it, with a clock that is not read early (ticks_after).
 *
 * A CONSISTENT CUT. Switching tracing off stores one word. Whoever acts on something that was done after
 * that, sees the word too. So if an event is in the trace, then so is all that led to it, and nobody has to
 * stop the world. The same holds for the beginning, where the first event of each goroutine and thread says who
 * they are; what state they were in follows from the event.
 *
 * NAMES and stacks are written once, when first met, and referred to by number. Each thread remembers
 * the numbers it used lately; the tables behind that are under tracer.lock. */
#include "tracebuf.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

Tracer tracer = {.full_tail = &tracer.full};
static _Thread_local TraceThread *tls_trace __attribute__((tls_model("initial-exec")));
static pthread_key_t thread_end;
static bool use_tsc;

/* ---- time ---- */

#if defined(__x86_64__)
/* The processor's counter costs a third of the system's clock. It must tick evenly and alike on all cores; the
 * kernel knows, and uses it for its own clock only then. */
static bool tsc_is_good(void)
{
    unsigned a, b, c, d;
    char name[32] = "";
    FILE *f = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (f != NULL) {
        if (fgets(name, sizeof name, f) == NULL) {
            name[0] = 0;
        }
        fclose(f);
    }
    return strncmp(name, "tsc", 3) == 0 && __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1 << 8);
}

static inline uint64_t ticks(void)
{
    return likely(use_tsc) ? __rdtsc() : (uint64_t)nanotime();
}

/* Not before what this thread has seen so far. (With the GIL, what one thread does for another comes a lock and
 * a switch earlier.) */
static inline uint64_t ticks_after(void)
{
    if (!HAVE_GIL) {
        _mm_lfence();
    }
    return ticks();
}
#elif defined(__aarch64__)
static bool tsc_is_good(void)
{
    return true; /* the architecture's promise */
}

static inline uint64_t ticks(void)
{
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
}

static inline uint64_t ticks_after(void)
{
    __asm__ volatile("isb" ::: "memory");
    return ticks();
}
#endif

uint64_t trace_ticks(void)
{
    return ticks_after();
}

bool trace_tsc(void)
{
    return use_tsc;
}

/* ---- memory: the C library's, since CPython's may want to be attached (tracemalloc) ---- */

bool bytes_add(Bytes *b, const void *data, size_t n)
{
    if (b->len + n > b->cap) {
        size_t cap = b->cap * 2 > b->len + n ? b->cap * 2 : b->len + n + 4096;
        uint8_t *more = realloc(b->data, cap);
        if (more == NULL) {
            return false;
        }
        b->data = more;
        b->cap = cap;
    }
    memcpy(b->data + b->len, data, n);
    b->len += n;
    return true;
}

bool bytes_varint(Bytes *b, uint64_t v)
{
    uint8_t small[10];
    return bytes_add(b, small, (size_t)(put_varint(small, v) - small));
}

static uint32_t table_find(const Table *t, uint64_t hash)
{
    for (uint32_t i = (uint32_t)hash; t->size > 0; i++) {
        uint32_t id = t->ids[i & (t->size - 1)];
        if (id == 0 || t->hashes[i & (t->size - 1)] == hash) {
            return id;
        }
    }
    return 0;
}

static void table_put(Table *t, uint64_t hash, uint32_t id)
{
    uint32_t i = (uint32_t)hash & (t->size - 1);
    while (t->ids[i] != 0) {
        i = (i + 1) & (t->size - 1);
    }
    t->hashes[i] = hash;
    t->ids[i] = id;
}

/* Room for one more; false: no memory. */
static bool table_room(Table *t)
{
    if (t->n * 2 < t->size) {
        return true;
    }
    uint32_t size = t->size > 0 ? t->size * 2 : 256;
    Table bigger = {calloc(size, sizeof(uint64_t)), calloc(size, sizeof(uint32_t)), size, t->n};
    if (size == 0 || bigger.hashes == NULL || bigger.ids == NULL) {
        free(bigger.hashes);
        free(bigger.ids);
        return false;
    }
    for (uint32_t i = 0; i < t->size; i++) {
        if (t->ids[i] != 0) {
            table_put(&bigger, t->hashes[i], t->ids[i]);
        }
    }
    free(t->hashes);
    free(t->ids);
    *t = bigger;
    return true;
}

static uint32_t table_add(Table *t, uint64_t hash)
{
    if (!table_room(t)) {
        return 0;
    }
    table_put(t, hash, ++t->n);
    return t->n;
}

static bool hold(PyObject *obj) /* tracer.lock */
{
    if (tracer.nheld == tracer.held_cap) {
        size_t cap = tracer.held_cap > 0 ? tracer.held_cap * 2 : 256;
        PyObject **more = realloc(tracer.held, cap * sizeof *more);
        if (more == NULL) {
            return false;
        }
        tracer.held = more;
        tracer.held_cap = cap;
    }
    tracer.held[tracer.nheld++] = Py_NewRef(obj);
    return true;
}

void trace_tables_clear(void)
{
    lock(&tracer.lock);
    Tracer old = tracer;
    tracer.strings = tracer.stacks = (Table){0};
    tracer.string_defs = tracer.stack_defs = tracer.thread_defs = (Bytes){0};
    tracer.held = NULL;
    tracer.nheld = tracer.held_cap = 0;
    unlock(&tracer.lock);
    free(old.strings.hashes);
    free(old.strings.ids);
    free(old.stacks.hashes);
    free(old.stacks.ids);
    free(old.string_defs.data);
    free(old.stack_defs.data);
    free(old.thread_defs.data);
    for (size_t i = 0; i < old.nheld; i++) {
        Py_DECREF(old.held[i]);
    }
    free(old.held);
}

/* ---- threads and their buffers ---- */

static TraceBuf *buf_get(void) /* tracer.lock */
{
    TraceBuf *b = tracer.free;
    if (b != NULL) {
        tracer.free = b->next;
        tracer.nfree--;
    }
    else {
        b = malloc(sizeof *b);
    }
    if (b != NULL) {
        b->epoch = 0; /* of no trace yet */
        atomic_store(&b->used, 0);
    }
    return b;
}

static void buf_begin(TraceThread *t, TraceBuf *b)
{
    b->next = NULL;
    b->epoch = t->epoch;
    b->thread = t->index;
    b->base = t->last;
    atomic_store_explicit(&b->used, 0, memory_order_relaxed);
    t->buf = b;
    t->at = b->data;
    t->end = b->data + TRACE_BUF;
}

/* Its start. Unless tracing has been switched off meanwhile. */
uint64_t trace_next_period(void)
{
    uint64_t start = ticks();
    uint32_t now = atomic_load(&sched.trace_period);
    if (now != 0 && atomic_compare_exchange_strong(&sched.trace_period, &now, now + 1)) {
        tracer.periods.starts[tracer.periods.n++ % PERIODS] = start;
        tracer.periods.bytes = 0;
        tracer.periods.begun_ns = nanotime();
    }
    return start;
}

/* tracer.lock. The buffer is the writer's now, or nobody's. */
static void buf_hand_over(const TraceThread *t)
{
    TraceBuf *b = t->buf;
    b->last = t->last;
    if (b->epoch != atomic_load(&tracer.epoch) || !tracer.collecting ||
        atomic_load(&b->used) == 0) {
        b->next = tracer.free;
        tracer.free = b;
        tracer.nfree++;
        return;
    }
    b->next = NULL;
    *tracer.full_tail = b;
    tracer.full_tail = &b->next;
    atomic_fetch_add(&tracer.npending, 1);
    /* Here, not in the writer: it may come late, and find more than the recorder keeps. */
    tracer.periods.bytes += sizeof *b;
    if (tracer.periods.max_bytes > 0 && tracer.periods.bytes >= tracer.periods.max_bytes) {
        trace_next_period();
    }
}

static void event_lost(TraceThread *t)
{
    atomic_store_explicit(&t->lost, atomic_load_explicit(&t->lost, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* The buffer is full. False: the writer has enough to do, or there is no memory. */
static bool buf_next(TraceThread *t)
{
    if (atomic_load_explicit(&tracer.npending, memory_order_relaxed) >= TRACE_PENDING) {
        return false;
    }
    lock(&tracer.lock);
    TraceBuf *b = buf_get();
    if (b != NULL) {
        buf_hand_over(t);
        buf_begin(t, b);
    }
    unlock(&tracer.lock);
    /* The writer looks by itself every few milliseconds: to wake it for each buffer costs more than to fill one. */
    if (atomic_load_explicit(&tracer.npending, memory_order_relaxed) >= TRACE_WAKE) {
        note_wake(&tracer.note);
    }
    return b != NULL;
}

static void thread_link(TraceThread *t) /* tracer.lock */
{
    t->index = ++tracer.nthreads;
    t->next = tracer.threads;
    if (t->next != NULL) {
        t->next->prev = t;
    }
    tracer.threads = t;
}

static void thread_define(const TraceThread *t) /* tracer.lock */
{
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    Bytes *b = &tracer.thread_defs;
    size_t len = strlen(name), before = b->len;
    if (!bytes_varint(b, t->index) || !bytes_varint(b, (uint64_t)syscall(SYS_gettid)) ||
        !bytes_varint(b, len) || !bytes_add(b, name, len)) {
        b->len = before;
    }
}

/* The first event of this thread in this trace. NULL: no memory, or the trace is over. */
static TraceThread *thread_enter(TraceThread *t, uint32_t epoch)
{
    if (t == NULL) {
        t = calloc(1, sizeof *t);
        if (t == NULL || pthread_setspecific(thread_end, t) != 0) {
            free(t);
            return NULL;
        }
        tls_trace = t;
    }
    lock(&tracer.lock);
    if (t->index == 0) {
        thread_link(t);
    }
    TraceBuf *b = t->buf != NULL ? t->buf : buf_get();
    t->buf = b;
    bool late = !tracer.collecting || epoch != atomic_load(&tracer.epoch);
    t->period = UINT32_MAX; /* none */
    if (b != NULL && !late) {
        t->epoch = epoch;
        t->told = 0;
        t->stack_of = NULL;
        t->last = ticks();
        atomic_store(&t->lost, 0);
        t->lost_told = 0;
        memset(t->stacks, 0, sizeof t->stacks);
        memset(t->strings, 0, sizeof t->strings);
        memset(t->roots, 0, sizeof t->roots);
        buf_begin(t, b);
        thread_define(t);
    }
    unlock(&tracer.lock);
    return b != NULL && !late ? t : NULL;
}

/* `period` is 0: tracing is off by now. Or it is older than the epoch: the next trace is about to begin. */
static SLOW TraceThread *self_slow(uint32_t period)
{
    TraceThread *t = tls_trace;
    uint32_t epoch = atomic_load_explicit(&tracer.epoch, memory_order_relaxed);
    if (period == 0 || period < epoch) {
        return NULL;
    }
    if (t == NULL || t->epoch != epoch) {
        t = thread_enter(t, epoch);
    }
    if (t != NULL) {
        t->period = period;
    }
    return t;
}

/* Whether tracing is on is looked at once for each event, here: it may end and begin again at any time. A period
 * is of one trace only, so if this thread has been in it, it is in that trace. */
static inline TraceThread *self(void)
{
    TraceThread *t = tls_trace;
    uint32_t period = atomic_load_explicit(&sched.trace_period, memory_order_acquire);
    return likely(t != NULL && t->period == period) ? t : self_slow(period);
}

void trace_thread_leave(void)
{
    TraceThread *t = tls_trace;
    if (t == NULL) {
        return;
    }
    tls_trace = NULL;
    pthread_setspecific(thread_end, NULL);
    lock(&tracer.lock);
    if (t->prev != NULL) {
        t->prev->next = t->next;
    }
    else {
        tracer.threads = t->next;
    }
    if (t->next != NULL) {
        t->next->prev = t->prev;
    }
    if (t->epoch == atomic_load(&tracer.epoch)) {
        tracer.lost += atomic_load(&t->lost);
    }
    buf_hand_over(t);
    unlock(&tracer.lock);
    free(t);
}

static void at_thread_end(void *t)
{
    tls_trace = t;
    trace_thread_leave();
}

/* ---- writing an event ---- */

/* There is no room. False: nor will there be. */
static SLOW bool event_room(TraceThread *t)
{
    if (!buf_next(t)) {
        event_lost(t);
        return false;
    }
    uint64_t lost = atomic_load_explicit(&t->lost, memory_order_relaxed);
    if (lost != t->lost_told) {
        *t->at++ = EV_LOST;
        *t->at++ = 0;
        t->at = put_varint(t->at, lost - t->lost_told);
        t->lost_told = lost;
    }
    return true;
}

static inline uint8_t *event_begin(TraceThread *t, int kind, uint64_t now, size_t more)
{
    if (unlikely((size_t)(t->end - t->at) < 2 * EVENT_MAX + more) && !event_room(t)) {
        return NULL;
    }
    uint8_t *p = t->at;
    *p = (uint8_t)kind;
    now = likely(now > t->last) ? now : t->last;
    p = put_varint(p + 1, now - t->last);
    t->last = now;
    return p;
}

static inline void event_end(TraceThread *t, uint8_t *p)
{
    t->at = p;
    atomic_store_explicit(&t->buf->used, (uint32_t)(p - t->buf->data), memory_order_release);
}

/* ---- names and stacks ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h ^= v;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = mix(0, n), word;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = mix(h, word);
    }
    word = 0;
    memcpy(&word, s, n);
    return mix(h, word);
}

static bool in_this_trace(const TraceThread *t) /* tracer.lock */
{
    return tracer.collecting && t->epoch == atomic_load(&tracer.epoch);
}

/* `str` may be NULL: nobody knows its address. */
static uint32_t intern_text(TraceThread *t, PyObject *str, const char *text, size_t n)
{
    uint64_t hash = hash_bytes(text, n);
    uint32_t id = 0;
    bool held = false;
    lock(&tracer.lock);
    if (in_this_trace(t) && (id = table_find(&tracer.strings, hash)) == 0) {
        Bytes *b = &tracer.string_defs;
        size_t before = b->len;
        id = table_add(&tracer.strings, hash);
        if (id != 0 && bytes_varint(b, id) && bytes_varint(b, n) && bytes_add(b, text, n)) {
            held = str != NULL && hold(str);
        }
        else {
            b->len = before;
        }
    }
    unlock(&tracer.lock);
    if (held) {
        size_t i = ((uintptr_t)str >> 4) % CACHE_SIZE;
        t->strings[i].str = str;
        t->strings[i].id = id;
    }
    return id;
}

static uint32_t intern_str(TraceThread *t, PyObject *str)
{
    size_t i = ((uintptr_t)str >> 4) % CACHE_SIZE;
    if (likely(t->strings[i].str == str)) {
        return t->strings[i].id;
    }
    if (str == NULL || !PyUnicode_Check(str)) {
        return 0;
    }
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(str, &n);
    if (text != NULL) {
        return intern_text(t, str, text, (size_t)(n < TEXT_MAX ? n : TEXT_MAX));
    }
    PyErr_Clear(); /* half a surrogate pair, from a file name */
    PyObject *bytes = PyUnicode_AsEncodedString(str, "utf-8", "surrogatepass");
    if (bytes == NULL) {
        PyErr_Clear();
        return 0;
    }
    n = PyBytes_GET_SIZE(bytes);
    uint32_t id =
        intern_text(t, NULL, PyBytes_AS_STRING(bytes), (size_t)(n < TEXT_MAX ? n : TEXT_MAX));
    Py_DECREF(bytes);
    return id;
}

typedef struct {
    PyCodeObject *code;
    int lasti;
} Site;

static uint32_t intern_stack_slow(TraceThread *t, const Site *sites, int n, uint64_t hash)
{
    uint32_t funcs[STACK_MAX], files[STACK_MAX];
    int lines[STACK_MAX];
    for (int i = 0; i < n; i++) {
        funcs[i] = intern_str(t, sites[i].code->co_qualname);
        files[i] = intern_str(t, sites[i].code->co_filename);
        lines[i] = PyCode_Addr2Line(sites[i].code, sites[i].lasti);
    }
    uint32_t id = 0;
    lock(&tracer.lock);
    if (in_this_trace(t) && (id = table_find(&tracer.stacks, hash)) == 0) {
        Bytes *b = &tracer.stack_defs;
        size_t before = b->len;
        id = table_add(&tracer.stacks, hash);
        bool ok = id != 0 && bytes_varint(b, id) && bytes_varint(b, (uint64_t)n);
        for (int i = 0; ok && i < n; i++) {
            ok = bytes_varint(b, funcs[i]) && bytes_varint(b, files[i]) &&
                 bytes_varint(b, (uint64_t)(lines[i] > 0 ? lines[i] : 0)) &&
                 hold((PyObject *)sites[i].code);
        }
        if (!ok) {
            b->len = before;
        }
    }
    unlock(&tracer.lock);
    return id;
}

/* Innermost first. */
static uint32_t intern_stack(TraceThread *t, const Site *sites, int n)
{
    uint64_t hash = (uint64_t)n;
    for (int i = 0; i < n; i++) {
        hash = mix(hash, (uintptr_t)sites[i].code ^ (uint64_t)sites[i].lasti << 48);
    }
    size_t i = hash % CACHE_SIZE;
    if (unlikely(t->stacks[i].hash != hash)) {
        uint32_t id = intern_stack_slow(t, sites, n, hash);
        if (id == 0) {
            return 0;
        }
        t->stacks[i].hash = hash;
        t->stacks[i].id = id;
    }
    return t->stacks[i].id;
}

/* The frames from where the thread stands out to the goroutine's own function: how many, and the stack's
 * number. None of what is let go of here is let go of by the last. */
static int walk(TraceThread *t, const G *g, uint32_t *stack)
{
    Site sites[STACK_MAX];
    int n = 0;
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (frame != NULL && n < STACK_MAX) {
        sites[n].code = PyFrame_GetCode(frame);
        sites[n++].lasti = PyFrame_GetLasti(frame);
        PyObject *coro = PyFrame_GetGenerator(frame);
        Py_XDECREF(coro);
        PyFrameObject *back = coro != g->coro ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF((PyObject *)frame);
    *stack = n > 0 ? intern_stack(t, sites, n) : 0;
    for (int i = 0; i < n; i++) {
        Py_DECREF(sites[i].code);
    }
    return n;
}

void trace_on_suspend(G *g)
{
    M *m = tls_m;
    TraceThread *t = m != NULL && !g->foreign ? self() : NULL;
    if (t == NULL) {
        return;
    }
    uintptr_t where;
    const void *frame = compat_position(m->ts, &where);
    size_t i = (g->id * 31 + where) % CACHE_SIZE;
    t->stack_of = g;
    if (likely(t->roots[i].g == g->id && t->roots[i].frame == frame &&
               t->roots[i].where == where)) {
        t->stack = t->roots[i].stack;
        return;
    }
    if (walk(t, g, &t->stack) == 1) {
        t->roots[i].g = g->id;
        t->roots[i].frame = frame;
        t->roots[i].where = where;
        t->roots[i].stack = t->stack;
    }
}

/* ---- who is who ---- */

/* False: there was no room for it. */
static SLOW bool describe(TraceThread *t, G *g, int kind, uint64_t now, int state)
{
    PyObject *name = g->name;
    if (name != NULL && PyFunction_Check(name)) {
        name = ((PyFunctionObject *)name)->func_qualname;
    }
    uint32_t name_id = intern_str(t, name), site = 0;
    if (g->site_code != NULL) {
        site = intern_stack(t, &(Site){g->site_code, g->site_lasti}, 1);
    }
    uint8_t *p = event_begin(t, kind, now, 0);
    if (p == NULL) {
        return false;
    }
    p = put_varint(p, g->id);
    p = put_varint(p, g->parent_id);
    p = put_varint(p, name_id);
    p = put_varint(p, site);
    *p++ = (uint8_t)((g->plain ? TRACED_PLAIN : 0) | (g->late ? TRACED_RUNTIME : 0));
    if (kind == EV_GO_STATUS) {
        *p++ = (uint8_t)state;
        *p++ = state == G_WAITING ? atomic_load_explicit(&g->wait_reason, memory_order_relaxed) : 0;
    }
    event_end(t, p);
    return true;
}

/* Not before what was last said of `g`. If that was here, it is so anyway, and need not cost a fence. */
static inline uint64_t ticks_of(const TraceThread *t, const G *g)
{
    if (HAVE_GIL) {
        return ticks();
    }
    bool here = atomic_load_explicit(&g->traced_by, memory_order_relaxed) == (uint16_t)t->index;
    return here ? ticks() : ticks_after();
}

static inline void know(TraceThread *t, G *g, uint64_t now)
{
    if (!HAVE_GIL) {
        atomic_store_explicit(&g->traced_by, (uint16_t)t->index, memory_order_relaxed);
    }
    if (unlikely(atomic_load_explicit(&g->traced, memory_order_relaxed) != t->period) &&
        describe(t, g, EV_GO_STATUS, now, G_IDLE)) {
        atomic_store_explicit(&g->traced, t->period, memory_order_relaxed);
    }
}

/* Which M this is, which P it has and what it runs: once a period. Only where the P is certainly ours: in user
 * code it may be taken any moment. */
static SLOW void tell_with(TraceThread *t, uint64_t now, const P *has)
{
    M *m = tls_m;
    if (t->told == t->period) {
        return;
    }
    if (m != NULL && m->p != NULL &&
        atomic_load_explicit(&m->p->owner, memory_order_relaxed) != p_owner(m, P_RUNNING)) {
        return;
    }
    t->told = t->period;
    if (m == NULL) {
        return;
    }
    if (m->curg != NULL) {
        know(t, m->curg, now);
    }
    uint8_t *p = event_begin(t, EV_STATUS, now, 0);
    if (p != NULL) {
        p = put_varint(p, (uint64_t)m->id);
        p = put_varint(p, has != NULL ? (uint64_t)has->id + 1 : 0);
        p = put_varint(p, m->curg != NULL ? m->curg->id : 0);
        event_end(t, p);
    }
}

static inline void tell(TraceThread *t, uint64_t now)
{
    if (unlikely(t->told != t->period)) {
        tell_with(t, now, tls_m != NULL ? tls_m->p : NULL);
    }
}

/* ---- the events ---- */

/* An event with up to two numbers. */
static void emit(TraceThread *t, int kind, int n, uint64_t a, uint64_t b)
{
    if (t == NULL) {
        return;
    }
    uint64_t now = ticks_after();
    tell(t, now);
    uint8_t *p = event_begin(t, kind, now, 0);
    if (p == NULL) {
        return;
    }
    if (n > 0) {
        p = put_varint(p, a);
    }
    if (n > 1) {
        p = put_varint(p, b);
    }
    event_end(t, p);
}

void trace_on_run(M *m, bool begins)
{
    TraceThread *t = self();
    if (t == NULL) {
        return;
    }
    t->told = t->period;                  /* this says it all */
    memset(t->roots, 0, sizeof t->roots); /* ids begin anew */
    if (begins) {
        emit(t, EV_RUN_BEGIN, 2, (uint64_t)m->id, (uint64_t)sched.procs);
        emit(t, EV_PROC_START, 1, (uint64_t)m->p->id, 0);
    }
    else {
        emit(t, EV_RUN_END, 0, 0, 0);
    }
}

void trace_on_procs(int n)
{
    emit(self(), EV_PROCS, 1, (uint64_t)n, 0);
}

void trace_on_proc(M *m, int kind)
{
    TraceThread *t = self();
    if (t != NULL && kind == EV_PROC_START) {
        tell_with(t, ticks_after(), NULL); /* it had none so far */
    }
    emit(t, kind, kind == EV_PROC_START, m->p != NULL ? (uint64_t)m->p->id : 0, 0);
}

void trace_on_taken(const P *p, uint64_t owner)
{
    emit(self(), EV_PROC_TAKEN, 2, (uint64_t)p->id, owner >> 8);
}

void trace_on_steal(const P *victim, uint32_t n)
{
    emit(self(), EV_STEAL, 2, (uint64_t)victim->id, n);
}

void trace_on_timer(int kind, int64_t late_ns)
{
    emit(self(), EV_TIMER, 2, (uint64_t)kind, late_ns > 0 ? (uint64_t)late_ns : 0);
}

void trace_on_net_ready(int fd, G *g)
{
    if (!g->foreign) {
        emit(self(), EV_NET_READY, 2, (uint64_t)fd, g->id);
    }
}

void trace_on_net_poll(int woken)
{
    emit(self(), EV_NET_POLL, 1, (uint64_t)woken, 0);
}

void trace_on_stw(bool begins)
{
    emit(self(), begins ? EV_STW_BEGIN : EV_STW_END, begins, 0, 0); /* kind 0: gomaxprocs */
}

void trace_on_create(G *g)
{
    TraceThread *t = self();
    if (t == NULL || g->foreign) {
        return;
    }
    uint64_t now = ticks();
    tell(t, now);
    if (describe(t, g, EV_GO_CREATE, now, 0)) {
        atomic_store_explicit(&g->traced, t->period, memory_order_relaxed);
        atomic_store_explicit(&g->traced_by, (uint16_t)t->index, memory_order_relaxed);
    }
}

void trace_on_start(G *g, bool inherit)
{
    TraceThread *t = self();
    if (t == NULL) {
        return;
    }
    /* One that was handed over by the last here starts where that stopped, an instant ago. */
    uint64_t now = inherit && t->told == t->period ? t->last : ticks_of(t, g);
    tell(t, now);
    know(t, g, now);
    uint8_t *p = event_begin(t, EV_GO_START, now, 0);
    if (p != NULL) {
        event_end(t, put_varint(p, g->id));
    }
}

void trace_on_park(G *g, bool yields)
{
    TraceThread *t = self();
    if (unlikely(t == NULL)) {
        return;
    }
    uint64_t now = ticks();
    tell(t, now);
    know(t, g, now);
    uint8_t *p = event_begin(t, yields ? EV_GO_STOP : EV_GO_BLOCK, now, 0);
    if (p == NULL) {
        return;
    }
    p = put_varint(p, g->id);
    *p++ = !yields      ? atomic_load_explicit(&g->wait_reason, memory_order_relaxed)
           : g->yielded ? STOP_GOSCHED
                        : STOP_PREEMPTED;
    p = put_varint(p, t->stack_of == g ? t->stack : 0);
    t->stack_of = NULL;
    event_end(t, p);
}

void trace_on_go(G *g, int kind)
{
    TraceThread *t = self();
    if (t == NULL || g->foreign) {
        return;
    }
    uint64_t now = ticks_of(t, g);
    tell(t, now);
    know(t, g, now);
    uint8_t *p = event_begin(t, kind, now, 0);
    if (p != NULL) {
        event_end(t, put_varint(p, g->id));
    }
}

void trace_on_end(G *g, GEnd how)
{
    TraceThread *t = self();
    if (t == NULL || g->foreign) {
        return;
    }
    uint64_t now = ticks();
    tell(t, now);
    know(t, g, now);
    uint8_t *p = event_begin(t, EV_GO_END, now, 0);
    if (p != NULL) {
        p = put_varint(p, g->id);
        *p++ = (uint8_t)how;
        event_end(t, p);
    }
}

/* The lengths of the queues, now and then: by the writer. */
void trace_sample(void)
{
    TraceThread *t = atomic_load(&sched.running) == RUN_ON ? self() : NULL;
    enum { PS = 64 };
    uint64_t now = ticks();
    uint8_t *p = t != NULL ? event_begin(t, EV_SAMPLE, now, 2 * PS) : NULL;
    if (p == NULL) {
        return;
    }
    int n = sched.procs < PS ? sched.procs : PS;
    p = put_varint(p, (uint64_t)atomic_load_explicit(&sched.runq_size, memory_order_relaxed));
    p = put_varint(p, (uint64_t)atomic_load_explicit(&sched.nmspinning, memory_order_relaxed));
    *p++ = (uint8_t)n;
    for (int i = 0; i < n; i++) {
        P *proc = sched.allp[i];
        uint32_t len = atomic_load_explicit(&proc->tail, memory_order_relaxed) -
                       atomic_load_explicit(&proc->head, memory_order_relaxed);
        len = len <= RING_SIZE ? len : 0; /* not of one instant */
        p = put_varint(p,
                       len + (atomic_load_explicit(&proc->runnext, memory_order_relaxed) != NULL));
    }
    event_end(t, p);
}

/* The trace is about to end: name those that it has not seen. */
void trace_status_of_silent(void)
{
    TraceThread *t = self();
    Py_ssize_t n;
    G **all = t != NULL ? allgs_snapshot(&n) : NULL;
    for (Py_ssize_t i = 0; all != NULL && i < n; i++) {
        if (atomic_exchange(&all[i]->traced, t->period) != t->period) {
            describe(t, all[i], EV_GO_STATUS, ticks(), (int)g_state(all[i]));
        }
        Py_DECREF(all[i]);
    }
    free(all);
}

/* ---- what the user has to say ---- */

/* In user code: claim the P for a moment, so that this M can say which it has. */
static TraceThread *user_self(void)
{
    M *m = tls_m;
    TraceThread *t = tracing() ? self() : NULL;
    if (t != NULL && m != NULL && m->curg != NULL && t->told != t->period) {
        bool have_p = p_enter(m);
        tell(t, ticks());
        if (have_p) {
            p_leave(m);
        }
    }
    return t;
}

static PyObject *name_event(PyObject *name, int kind, uint64_t number)
{
    TraceThread *t = user_self();
    if (t != NULL) {
        uint32_t id = intern_str(t, name);
        uint8_t *p = event_begin(t, kind, ticks(), 0);
        if (p != NULL) {
            p = put_varint(p, number);
            event_end(t, put_varint(p, id));
        }
    }
    Py_RETURN_NONE;
}

/* trace_region(begins, task, name) */
static PyObject *core_trace_region(PyObject *Py_UNUSED(mod), PyObject *args)
{
    int begins;
    unsigned long long task;
    PyObject *name;
    if (!PyArg_ParseTuple(args, "pKU:trace_region", &begins, &task, &name)) {
        return NULL;
    }
    return name_event(name, begins ? EV_REGION_BEGIN : EV_REGION_END, task);
}

/* trace_task_begin(id, parent, name) */
static PyObject *core_trace_task_begin(PyObject *Py_UNUSED(mod), PyObject *args)
{
    unsigned long long id, parent;
    PyObject *name;
    if (!PyArg_ParseTuple(args, "KKU:trace_task_begin", &id, &parent, &name)) {
        return NULL;
    }
    TraceThread *t = user_self();
    if (t != NULL) {
        uint32_t name_id = intern_str(t, name);
        uint8_t *p = event_begin(t, EV_TASK_BEGIN, ticks(), 0);
        if (p != NULL) {
            p = put_varint(p, id);
            p = put_varint(p, parent);
            event_end(t, put_varint(p, name_id));
        }
    }
    Py_RETURN_NONE;
}

static PyObject *core_trace_task_end(PyObject *Py_UNUSED(mod), PyObject *arg)
{
    unsigned long long id = PyLong_AsUnsignedLongLong(arg);
    if (PyErr_Occurred()) {
        return NULL;
    }
    emit(user_self(), EV_TASK_END, 1, id, 0);
    Py_RETURN_NONE;
}

/* trace_log(task, category, message) */
static PyObject *core_trace_log(PyObject *Py_UNUSED(mod), PyObject *args)
{
    unsigned long long task;
    PyObject *category, *bytes;
    if (!PyArg_ParseTuple(args, "KUS:trace_log", &task, &category, &bytes)) {
        return NULL;
    }
    TraceThread *t = user_self();
    if (t != NULL) {
        size_t n = (size_t)PyBytes_GET_SIZE(bytes);
        n = n < TEXT_MAX ? n : TEXT_MAX;
        uint32_t id = intern_str(t, category);
        uint8_t *p = event_begin(t, EV_LOG, ticks(), n);
        if (p != NULL) {
            p = put_varint(p, task);
            p = put_varint(p, id);
            p = put_varint(p, n);
            memcpy(p, PyBytes_AS_STRING(bytes), n);
            event_end(t, p + n);
        }
    }
    Py_RETURN_NONE;
}

/* trace_gc(begins, generation or objects collected): from gc.callbacks */
static PyObject *core_trace_gc(PyObject *Py_UNUSED(mod), PyObject *args)
{
    int begins;
    unsigned long long n;
    if (!PyArg_ParseTuple(args, "pK:trace_gc", &begins, &n)) {
        return NULL;
    }
    /* No context: the collection may have begun anywhere, with the P in P_RUNNING too. */
    if (tracing()) {
        emit(self(), begins ? EV_GC_BEGIN : EV_GC_END, 1, n, 0);
    }
    Py_RETURN_NONE;
}

static PyObject *core_trace_enabled(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return PyBool_FromLong(tracing());
}

/* The wait reasons by number, for the file: they differ from version to version. */
static PyObject *core_trace_reasons(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    PyObject *list = PyList_New(0);
    const char *text;
    for (unsigned i = 0; list != NULL && (text = wait_reason_text(i)) != NULL; i++) {
        PyObject *str = PyUnicode_FromString(text);
        if (str == NULL || PyList_Append(list, str) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(str);
    }
    return list;
}

PyMethodDef trace_methods[] = {
    {"trace_region", core_trace_region, METH_VARARGS, NULL},
    {"trace_task_begin", core_trace_task_begin, METH_VARARGS, NULL},
    {"trace_task_end", core_trace_task_end, METH_O, NULL},
    {"trace_log", core_trace_log, METH_VARARGS, NULL},
    {"trace_gc", core_trace_gc, METH_VARARGS, NULL},
    {"trace_reasons", core_trace_reasons, METH_NOARGS, NULL},
    {"trace_enabled", core_trace_enabled, METH_NOARGS, NULL},
    {NULL},
};

/* What other threads were doing with all this when the process was forked is not known. Their memory is lost. */
void trace_forked(void)
{
    atomic_store(&sched.trace_period, 0);
    tracer.lock = (Lock){0};
    tracer.threads = NULL;
    tracer.full = tracer.free = NULL;
    tracer.full_tail = &tracer.full;
    tracer.nfree = 0;
    tracer.collecting = false;
    atomic_store(&tracer.npending, 0);
    if (tls_trace != NULL) {
        tls_trace->index = 0;
        tls_trace->epoch = 0;
        tls_trace->period = UINT32_MAX;
        tls_trace->prev = tls_trace->next = NULL;
    }
    tracewrite_forked();
}

void trace_init(void)
{
    use_tsc = tsc_is_good();
    if (pthread_key_create(&thread_end, at_thread_end) != 0) {
        Py_FatalError("gofer: no thread-specific data");
    }
}
