/* Where events go: a file, and the ring of the flight recorder.
 *
 * One thread, the writer, takes the buffers that others hand over when they are full, writes them to the file, and
 * keeps them for the recorder as long as that wants them. It is never attached to Python. What is still in
 * the hands of other threads is copied, without disturbing them, when a trace ends or a snapshot is made.
 *
 * start, stop and snapshot come from Python one at a time (gofer/trace.py holds a lock). */
#include "tracebuf.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SAMPLE_NS 10000000LL

enum {
    FORMAT_VERSION = 1,
    /* flags in the last chunk: */
    BEGINS_EXACTLY = 1, /* no event of this trace is older than its file */
    ENDS_EXACTLY = 2,   /* nothing was going on behind its end */
};

typedef struct {
    int fd; /* -1: none */
    int error;
    bool exact;
    uint64_t written;
    uint64_t from;                   /* ticks: what is older may have gaps */
    size_t strings, stacks, threads; /* how much of the definitions is in the file */
} Sink;

typedef struct {
    uint64_t ticks, mono_ns, wall_ns;
} Clock;

static struct {
    pthread_mutex_t mutex; /* the sinks. Taken detached, held while writing */
    pthread_t thread;
    bool started;
    _Atomic uint32_t stopping;
    Sink file;
    bool ring_on;
    TraceBuf *ring, **ring_tail; /* oldest first */
    size_t ring_bytes, ring_max;
    uint64_t ring_window_ns, ring_from;
    Clock begun;
} w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .file = {.fd = -1}, .ring_tail = &w.ring};

/* ---- chunks ---- */

static uint32_t crc_table[8][256];

static void crc_init(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) {
            c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
        }
        crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int k = 1; k < 8; k++) {
            uint32_t c = crc_table[k - 1][i];
            crc_table[k][i] = crc_table[0][c & 0xff] ^ c >> 8;
        }
    }
}

/* zlib's crc32, eight bytes at a time. */
static uint32_t crc32_of(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + 4, 4);
        a ^= crc;
        crc = crc_table[7][a & 0xff] ^ crc_table[6][a >> 8 & 0xff] ^ crc_table[5][a >> 16 & 0xff] ^
              crc_table[4][a >> 24] ^ crc_table[3][b & 0xff] ^ crc_table[2][b >> 8 & 0xff] ^
              crc_table[1][b >> 16 & 0xff] ^ crc_table[0][b >> 24];
    }
    while (n-- > 0) {
        crc = crc_table[0][(crc ^ *p++) & 0xff] ^ crc >> 8;
    }
    return ~crc;
}

static void put(Sink *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    while (n > 0 && s->error == 0) {
        ssize_t done = write(s->fd, p, n);
        if (done < 0) {
            s->error = errno != EINTR ? errno : 0;
            continue;
        }
        p += done;
        n -= (size_t)done;
        s->written += (uint64_t)done;
    }
}

/* type, length, checksum of these two and of what follows: the payload, which may come in two parts */
static void put_chunk(Sink *s, char type, const void *a, size_t an, const void *b, size_t bn)
{
    uint8_t head[12] = {(uint8_t)type};
    uint32_t len = (uint32_t)(an + bn);
    memcpy(head + 4, &len, 4);
    uint32_t crc = crc32_of(crc32_of(crc32_of(0, head, 8), a, an), b, bn);
    memcpy(head + 8, &crc, 4);
    put(s, head, sizeof head);
    put(s, a, an);
    put(s, b, bn);
}

static void put_events(Sink *s, uint32_t thread, uint64_t base, const uint8_t *data, size_t n)
{
    uint8_t head[16];
    uint8_t *p = put_varint(head, thread);
    memcpy(p, &base, 8);
    if (n > 0) {
        put_chunk(s, 'E', head, (size_t)(p + 8 - head), data, n);
    }
}

static Clock clock_now(void)
{
    struct timespec wall;
    uint64_t before = trace_ticks();
    int64_t mono = nanotime();
    uint64_t after = trace_ticks();
    clock_gettime(CLOCK_REALTIME, &wall);
    return (Clock){before + (after - before) / 2, (uint64_t)mono,
                   (uint64_t)(wall.tv_sec * NS_PER_S + wall.tv_nsec)};
}

static void put_clock(Sink *s, Clock c)
{
    put_chunk(s, 'C', &c, sizeof c, NULL, 0);
}

/* Definitions that are not in the file yet. Copied under the lock: others add to them. */
static void put_new_definitions(Sink *s)
{
    struct {
        char type;
        const Bytes *all;
        size_t *sent;
    } kinds[] = {
        {'T', &tracer.thread_defs, &s->threads},
        {'S', &tracer.string_defs, &s->strings},
        {'K', &tracer.stack_defs, &s->stacks},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        Bytes copy = {0};
        lock(&tracer.lock);
        size_t n = kinds[i].all->len - *kinds[i].sent;
        bool ok = n > 0 && bytes_add(&copy, kinds[i].all->data + *kinds[i].sent, n);
        unlock(&tracer.lock);
        if (ok) {
            put_chunk(s, kinds[i].type, copy.data, copy.len, NULL, 0);
            *kinds[i].sent += n;
        }
        free(copy.data);
    }
}

static void put_head(Sink *s, const char *info, size_t n)
{
    uint8_t head[16] = "gofer trace\n";
    uint16_t version = FORMAT_VERSION;
    memcpy(head + 12, &version, 2);
    put(s, head, sizeof head);
    put_chunk(s, 'I', info, n, NULL, 0);
}

static void put_tail(Sink *s, uint64_t lost, int flags)
{
    struct {
        uint64_t lost, from, flags;
    } tail = {lost, s->from, (uint64_t)flags};
    put_clock(s, clock_now());
    put_chunk(s, 'Z', &tail, sizeof tail, NULL, 0);
}

/* ---- buffers ---- */

static void buf_free(TraceBuf *b)
{
    enum { KEEP = 2 * TRACE_WAKE };
    lock(&tracer.lock);
    bool keep = tracer.nfree < KEEP;
    if (keep) {
        b->next = tracer.free;
        tracer.free = b;
        tracer.nfree++;
    }
    unlock(&tracer.lock);
    if (!keep) {
        free(b);
    }
}

static void bufs_free(TraceBuf *b)
{
    while (b != NULL) {
        TraceBuf *next = b->next;
        buf_free(b);
        b = next;
    }
}

static void put_buf(Sink *s, const TraceBuf *b)
{
    put_events(s, b->thread, b->base, b->data,
               atomic_load_explicit(&b->used, memory_order_acquire));
}

/* When what the recorder should remember begins. */
static uint64_t window_begin(void)
{
    Clock now = clock_now();
    double ratio =
        (double)(now.ticks - w.begun.ticks) / (double)(now.mono_ns - w.begun.mono_ns + 1);
    double window = (double)w.ring_window_ns * ratio;
    return window < (double)now.ticks ? now.ticks - (uint64_t)window : 0;
}

/* Let go of what is too old or too much. */
static void ring_trim(void)
{
    uint64_t begin = window_begin();
    while (w.ring != NULL) {
        uint64_t last = w.ring->last;
        if (w.ring_bytes <= w.ring_max && last >= begin) {
            break;
        }
        TraceBuf *b = w.ring;
        w.ring = b->next;
        if (w.ring == NULL) {
            w.ring_tail = &w.ring;
        }
        w.ring_bytes -= sizeof *b;
        w.ring_from = last > w.ring_from ? last : w.ring_from;
        buf_free(b);
    }
}

/* tracer.lock. What threads have in hand so far. They go on. */
static TraceBuf *copy_unfinished(void)
{
    TraceBuf *copies = NULL;
    for (TraceThread *t = tracer.threads; t != NULL; t = t->next) {
        TraceBuf *b = t->buf, *copy;
        if (b == NULL || b->epoch != atomic_load(&tracer.epoch) ||
            (copy = malloc(sizeof *copy)) == NULL) {
            continue;
        }
        copy->thread = b->thread;
        copy->base = b->base;
        uint32_t used = atomic_load_explicit(&b->used, memory_order_acquire);
        atomic_store(&copy->used, used);
        memcpy(copy->data, b->data, used);
        copy->next = copies;
        copies = copy;
    }
    return copies;
}

/* mutex. Take what others have handed over; if the trace ends here, return copies of the rest too. In one
 * go: a thread may hand over its buffer right now. */
static TraceBuf *drain(bool ends)
{
    lock(&tracer.lock);
    TraceBuf *all = tracer.full, *copies = ends ? copy_unfinished() : NULL;
    tracer.full = NULL;
    tracer.full_tail = &tracer.full;
    unlock(&tracer.lock);
    while (all != NULL) {
        TraceBuf *b = all;
        all = b->next;
        b->next = NULL;
        atomic_fetch_sub(&tracer.npending, 1);
        if (w.file.fd >= 0) {
            put_buf(&w.file, b);
        }
        if (w.ring_on) {
            *w.ring_tail = b;
            w.ring_tail = &b->next;
            w.ring_bytes += sizeof *b;
        }
        else {
            buf_free(b);
        }
    }
    if (w.ring_on) {
        ring_trim();
    }
    if (w.file.fd >= 0) {
        put_new_definitions(&w.file);
    }
    return copies;
}

static void put_copies(Sink *s, TraceBuf *copies)
{
    while (copies != NULL) {
        TraceBuf *next = copies->next;
        put_buf(s, copies);
        free(copies);
        copies = next;
    }
}

static uint64_t lost_so_far(void)
{
    lock(&tracer.lock);
    uint64_t lost = tracer.lost;
    for (TraceThread *t = tracer.threads; t != NULL; t = t->next) {
        lost += t->epoch == atomic_load(&tracer.epoch) ? atomic_load(&t->lost) : 0;
    }
    unlock(&tracer.lock);
    return lost;
}

/* ---- the writer ---- */

/* mutex. Periods also end when much has been said in them. */
static void end_old_period(int64_t now_ns)
{
    lock(&tracer.lock);
    if (now_ns - tracer.periods.begun_ns >= (int64_t)(w.ring_window_ns / PERIODS_KEPT)) {
        trace_next_period();
    }
    unlock(&tracer.lock);
}

/* Where a period began: the last in which the window does, or else the first of which nothing has been let go of. 0: the
 * recorder remembers all. */
static uint64_t ring_begin(void)
{
    uint64_t begin = window_begin(), whole = UINT64_MAX, found = 0;
    lock(&tracer.lock);
    uint32_t n = tracer.periods.n < PERIODS ? tracer.periods.n : PERIODS;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t start = tracer.periods.starts[i];
        if (start >= w.ring_from) {
            whole = start < whole ? start : whole;
            found = start <= begin && start > found ? start : found;
        }
    }
    unlock(&tracer.lock);
    return found > 0 || w.ring_from == 0 ? found : whole != UINT64_MAX ? whole : w.ring_from;
}

static void *writer(void *Py_UNUSED(arg))
{
    prctl(PR_SET_NAME, "gofer-trace", 0, 0, 0);
    int64_t next_clock = nanotime() + NS_PER_S;
    while (!atomic_load(&w.stopping)) {
        note_sleep(&tracer.note, nanotime() + SAMPLE_NS);
        note_clear(&tracer.note);
        if (atomic_load_explicit(&sched.trace_period, memory_order_relaxed) != 0) {
            trace_sample();
        }
        pthread_mutex_lock(&w.mutex);
        drain(false);
        int64_t now = nanotime();
        if (now >= next_clock) {
            next_clock = now + NS_PER_S;
            if (w.file.fd >= 0) {
                put_clock(&w.file, clock_now());
            }
        }
        if (w.ring_on) {
            end_old_period(now);
        }
        pthread_mutex_unlock(&w.mutex);
    }
    trace_thread_leave();
    return NULL;
}

/* Detached. Signals are for Python's threads. */
static int writer_start(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&w.stopping, 0);
    int error = pthread_create(&w.thread, NULL, writer, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w.started = error == 0;
    return error;
}

static void writer_stop(void) /* detached */
{
    if (w.started) {
        atomic_store(&w.stopping, 1);
        note_wake(&tracer.note);
        pthread_join(w.thread, NULL);
        w.started = false;
    }
}

/* ---- on and off ---- */

static uint32_t last_period;

/* Attached. The sink has been set before: the writer takes buffers from the first moment on. */
static bool begin(void)
{
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = writer_start();
    Py_END_ALLOW_THREADS
    if (error != 0) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    atomic_store(&sched.trace_period, last_period);
    if (atomic_load(&sched.running) == RUN_ON) {
        trace_procs(sched.procs);
    }
    return true;
}

static void prepare(void) /* attached */
{
    trace_tables_clear();
    last_period++;
    lock(&tracer.lock);
    atomic_store(&tracer.epoch, last_period);
    tracer.collecting = true;
    tracer.lost = 0;
    unlock(&tracer.lock);
    w.begun = clock_now();
}

/* From here on nobody writes an event that another might lead to: see trace.c. */
static void end(void)
{
    trace_status_of_silent();
    last_period = atomic_exchange(&sched.trace_period, 0);
    Py_BEGIN_ALLOW_THREADS
    writer_stop();
    Py_END_ALLOW_THREADS
}

static void end_of_tables(void)
{
    lock(&tracer.lock);
    tracer.collecting = false;
    unlock(&tracer.lock);
    trace_tables_clear();
}

/* Something is being written already: from here on, which is returned, all say anew who they are. */
static uint64_t begin_period(void)
{
    lock(&tracer.lock);
    uint64_t start = trace_next_period();
    unlock(&tracer.lock);
    return start;
}

/* trace_start(fd, info): events go to this file, from now on. */
static PyObject *core_trace_start(PyObject *Py_UNUSED(mod), PyObject *args)
{
    int fd;
    const char *info;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "iy#:trace_start", &fd, &info, &n)) {
        return NULL;
    }
    bool recording = w.started;
    Sink s = {.fd = fd, .exact = !recording};
    if (!recording) {
        prepare();
    }
    Py_BEGIN_ALLOW_THREADS
    put_head(&s, info, (size_t)n);
    put_clock(&s, w.begun);
    pthread_mutex_lock(&w.mutex);
    w.file = s;
    if (recording) {
        w.file.from = begin_period();
    }
    pthread_mutex_unlock(&w.mutex);
    Py_END_ALLOW_THREADS
    if (!recording && !begin()) {
        w.file.fd = -1;
        return NULL;
    }
    Py_RETURN_NONE;
}

/* trace_stop() -> (bytes, events lost, errno) */
static PyObject *core_trace_stop(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    bool last = !w.ring_on;
    if (last) {
        end();
    }
    else {
        trace_status_of_silent();
    }
    uint64_t lost;
    Sink *s = &w.file, done;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&w.mutex);
    put_copies(s, drain(true));
    put_new_definitions(s);
    lost = lost_so_far();
    put_tail(s, lost, (s->exact ? BEGINS_EXACTLY : 0) | (last ? ENDS_EXACTLY : 0));
    done = *s;
    s->fd = -1;
    pthread_mutex_unlock(&w.mutex);
    Py_END_ALLOW_THREADS
    if (last) {
        end_of_tables();
    }
    return Py_BuildValue("KKi", (unsigned long long)done.written, (unsigned long long)lost,
                         done.error);
}

static void set_periods(size_t max_bytes)
{
    lock(&tracer.lock);
    tracer.periods.n = 0;
    tracer.periods.bytes = 0;
    tracer.periods.max_bytes = max_bytes;
    tracer.periods.begun_ns = nanotime();
    unlock(&tracer.lock);
}

/* trace_ring_start(window_ns, bytes) */
static PyObject *core_trace_ring_start(PyObject *Py_UNUSED(mod), PyObject *args)
{
    unsigned long long window, bytes;
    if (!PyArg_ParseTuple(args, "KK:trace_ring_start", &window, &bytes)) {
        return NULL;
    }
    bool recording = w.started;
    if (!recording) {
        prepare();
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&w.mutex);
    w.ring_window_ns = window;
    w.ring_max = (size_t)bytes;
    set_periods((size_t)bytes / PERIODS_KEPT);
    w.ring_from = recording ? begin_period() : 0;
    w.ring_on = true;
    pthread_mutex_unlock(&w.mutex);
    Py_END_ALLOW_THREADS
    if (!recording && !begin()) {
        w.ring_on = false;
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *core_trace_ring_stop(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    bool last = w.file.fd < 0;
    if (last) {
        end();
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&w.mutex);
    drain(false);
    w.ring_on = false;
    set_periods(0);
    bufs_free(w.ring);
    w.ring = NULL;
    w.ring_tail = &w.ring;
    w.ring_bytes = 0;
    pthread_mutex_unlock(&w.mutex);
    Py_END_ALLOW_THREADS
    if (last) {
        end_of_tables();
    }
    Py_RETURN_NONE;
}

/* trace_ring_write(fd, info) -> (bytes, events lost, errno): what the recorder remembers. It goes on. */
static PyObject *core_trace_ring_write(PyObject *Py_UNUSED(mod), PyObject *args)
{
    Sink s = {0};
    const char *info;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "iy#:trace_ring_write", &s.fd, &info, &n)) {
        return NULL;
    }
    trace_status_of_silent();
    uint64_t lost;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&w.mutex);
    TraceBuf *copies = drain(true);
    s.from = ring_begin();
    put_head(&s, info, (size_t)n);
    put_clock(&s, w.begun);
    for (const TraceBuf *b = w.ring; b != NULL; b = b->next) {
        put_buf(&s, b);
    }
    put_copies(&s, copies);
    put_new_definitions(&s);
    lost = lost_so_far();
    put_tail(&s, lost, 0);
    pthread_mutex_unlock(&w.mutex);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("KKi", (unsigned long long)s.written, (unsigned long long)lost, s.error);
}

PyMethodDef tracewrite_methods[] = {
    {"trace_start", core_trace_start, METH_VARARGS, NULL},
    {"trace_stop", core_trace_stop, METH_NOARGS, NULL},
    {"trace_ring_start", core_trace_ring_start, METH_VARARGS, NULL},
    {"trace_ring_stop", core_trace_ring_stop, METH_NOARGS, NULL},
    {"trace_ring_write", core_trace_ring_write, METH_VARARGS, NULL},
    {NULL},
};

/* The child has neither the writer nor the other threads, and must not write into the parent's file. */
void tracewrite_forked(void)
{
    pthread_mutex_init(&w.mutex, NULL);
    w.started = false;
    w.file.fd = -1;
    w.ring_on = false;
    w.ring = NULL;
    w.ring_tail = &w.ring;
}

void tracewrite_init(void)
{
    crc_init();
}
