/* Reading a trace: from the bytes of a file to events in order of time, and from these to the life of every
 * goroutine as a row of spans. In C, since a trace has millions of events; what is made of the spans is done in
 * Python (gofer/_trace).
 *
 * A file may be anything. Nothing is believed of it but what has been checked: lengths, numbers, the checksum of
 * every chunk, that time goes forward. What does not fit raises ValueError. That events contradict one
 * another is no error here: some may be lost, or older than what a flight recorder remembers. Then the state
 * that an event implies is taken for true, and counted as a repair. */
#include "trace.h"

#include <stdlib.h>

enum { MAX_THREADS = 1 << 20, MAX_P = MAX_PROCS, HEAD = 16, CHUNK_HEAD = 12 };
enum { GAPS = 1000 };              /* strings and stacks that may be missing, for want of memory */
#define MAX_ID ((uint64_t)1 << 53) /* exact in JavaScript too */

/* ---- vectors and maps ---- */

typedef struct {
    uint8_t *data;
    size_t len, cap; /* in bytes */
} Vec;

static bool vec_add(Vec *v, const void *item, size_t n)
{
    if (n == 0) {
        return true;
    }
    if (v->len + n > v->cap) {
        size_t cap = v->cap * 2 > v->len + n ? v->cap * 2 : v->len + n + 1024;
        uint8_t *more = realloc(v->data, cap);
        if (more == NULL) {
            PyErr_NoMemory();
            return false;
        }
        v->data = more;
        v->cap = cap;
    }
    memcpy(v->data + v->len, item, n);
    v->len += n;
    return true;
}

typedef struct {
    uint64_t *keys;
    uint32_t *values; /* 0: free */
    size_t size, n;
} Map;

static uint64_t map_hash(uint64_t key)
{
    key ^= key >> 32;
    key *= 0xd6e8feb86659fd93u;
    return key ^ key >> 32;
}

static uint32_t *map_slot(const Map *m, uint64_t key)
{
    size_t i = map_hash(key) & (m->size - 1);
    while (m->values[i] != 0 && m->keys[i] != key) {
        i = (i + 1) & (m->size - 1);
    }
    m->keys[i] = key;
    return &m->values[i];
}

static uint32_t map_get(const Map *m, uint64_t key)
{
    return m->size > 0 ? *map_slot(m, key) : 0;
}

static bool map_put(Map *m, uint64_t key, uint32_t value)
{
    if (m->n * 2 >= m->size) {
        size_t size = m->size > 0 ? m->size * 2 : 64;
        Map bigger = {calloc(size, sizeof(uint64_t)), calloc(size, sizeof(uint32_t)), size, m->n};
        if (bigger.keys == NULL || bigger.values == NULL) {
            free(bigger.keys);
            free(bigger.values);
            PyErr_NoMemory();
            return false;
        }
        for (size_t i = 0; i < m->size; i++) {
            if (m->values[i] != 0) {
                *map_slot(&bigger, m->keys[i]) = m->values[i];
            }
        }
        free(m->keys);
        free(m->values);
        *m = bigger;
    }
    uint32_t *slot = map_slot(m, key);
    m->n += *slot == 0;
    *slot = value;
    return true;
}

static void map_free(Map *m)
{
    free(m->keys);
    free(m->values);
}

/* ---- decoding ---- */

typedef struct {
    uint64_t ticks;
    uint32_t thread, at; /* at: index of its first argument */
    uint8_t kind;
} Event;

typedef struct {
    uint64_t ticks, mono_ns, wall_ns;
} Clock;

typedef struct {
    Vec events; /* Event, as in the file */
    Vec args;   /* int64_t */
    Vec text;   /* of logs */
    Vec clocks; /* Clock */
    PyObject *info, *threads, *strings, *stacks;
    uint64_t lost, from, flags;
    uint32_t max_thread;
    uint64_t nstrings, nstacks; /* defined so far */
    bool ended;
} File;

typedef struct {
    const uint8_t *at, *end;
} Cursor;

static bool corrupt(const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "the trace is corrupt: %s", what);
    }
    return false;
}

static bool get_varint(Cursor *c, uint64_t *value)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        uint8_t byte = *c->at++;
        if (shift == 63 && byte > 1) {
            break;
        }
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = v;
            return true;
        }
    }
    return corrupt("a number is broken off or too large");
}

static bool get_small(Cursor *c, uint64_t most, const char *what, uint64_t *value)
{
    return get_varint(c, value) && (*value <= most || corrupt(what));
}

/* What an event has: a letter for each number, and so what it must be below. */
static const char *const event_args[EV_KINDS] = {
    [EV_LOST] = "n",          [EV_RUN_BEGIN] = "mp",      [EV_RUN_END] = "",
    [EV_PROCS] = "p",         [EV_STATUS] = "mpg",        [EV_PROC_START] = "p",
    [EV_PROC_STOP] = "",      [EV_PROC_TAKEN] = "pm",     [EV_STEAL] = "pn",
    [EV_BACK] = "",           [EV_GO_STATUS] = "ggsssbb", [EV_GO_CREATE] = "ggssb",
    [EV_GO_START] = "g",      [EV_GO_STOP] = "gbs",       [EV_GO_BLOCK] = "gbs",
    [EV_GO_UNBLOCK] = "g",    [EV_GO_NOTIFY] = "g",       [EV_GO_REQUEUE] = "g",
    [EV_GO_END] = "gb",       [EV_TIMER] = "bn",          [EV_STW_BEGIN] = "b",
    [EV_STW_END] = "",        [EV_GC_BEGIN] = "n",        [EV_GC_END] = "n",
    [EV_REGION_BEGIN] = "ns", [EV_REGION_END] = "ns",     [EV_TASK_BEGIN] = "nns",
    [EV_TASK_END] = "n",      [EV_LOG] = "nst",           [EV_SAMPLE] = "nnl",
    [EV_NET_POLL] = "n",      [EV_NET_READY] = "ng",
};

static uint64_t arg_limit(char letter)
{
    switch (letter) {
    case 'p':
        return MAX_P;
    case 'm':
    case 's':
        return INT32_MAX;
    case 'b':
        return 127;
    case 'l':
        return 64;
    default:
        return MAX_ID;
    }
}

static bool add_arg(File *f, uint64_t v)
{
    int64_t n = (int64_t)v;
    return vec_add(&f->args, &n, sizeof n);
}

static bool get_args(File *f, Cursor *c, int kind)
{
    for (const char *letter = event_args[kind]; *letter != 0; letter++) {
        uint64_t v, n;
        if (*letter == 't') { /* text: where it begins, and its length */
            if (!get_small(c, (uint64_t)(c->end - c->at), "a text is longer than its chunk", &v) ||
                (v > (uint64_t)(c->end - c->at) && !corrupt("a text is broken off")) ||
                !add_arg(f, f->text.len) || !add_arg(f, v) || !vec_add(&f->text, c->at, v)) {
                return false;
            }
            c->at += v;
            continue;
        }
        if (!get_small(c, arg_limit(*letter), "a number is out of range", &v) || !add_arg(f, v)) {
            return false;
        }
        for (n = *letter == 'l' ? v : 0; n > 0; n--) { /* a list */
            if (!get_small(c, MAX_ID, "a number is out of range", &v) || !add_arg(f, v)) {
                return false;
            }
        }
    }
    return true;
}

static bool get_events(File *f, Cursor c)
{
    uint64_t thread, delta;
    Event e = {0};
    if (!get_small(&c, MAX_THREADS, "a thread's number is out of range", &thread)) {
        return false;
    }
    if (c.end - c.at < 8) {
        return corrupt("a chunk of events is too short");
    }
    memcpy(&e.ticks, c.at, 8);
    c.at += 8;
    e.thread = (uint32_t)thread;
    f->max_thread = e.thread > f->max_thread ? e.thread : f->max_thread;
    while (c.at < c.end) {
        e.kind = *c.at++;
        if (e.kind == 0 || e.kind >= EV_KINDS) {
            return corrupt("an event is of no known kind");
        }
        if (!get_varint(&c, &delta)) {
            return false;
        }
        if (e.ticks + delta < e.ticks || f->args.len / 8 > UINT32_MAX) {
            return corrupt("time does not go forward");
        }
        e.ticks += delta;
        e.at = (uint32_t)(f->args.len / 8);
        if (!get_args(f, &c, e.kind) || !vec_add(&f->events, &e, sizeof e)) {
            return false;
        }
    }
    return true;
}

/* `list[id] = value`, eating value. */
static bool set_item(PyObject *list, uint64_t id, PyObject *value)
{
    bool ok = value != NULL;
    while (ok && (uint64_t)PyList_GET_SIZE(list) <= id) {
        ok = PyList_Append(list, Py_None) == 0;
    }
    if (ok) {
        return PyList_SetItem(list, (Py_ssize_t)id, value) == 0;
    }
    Py_XDECREF(value);
    return false;
}

static bool get_text(Cursor *c, PyObject **text)
{
    uint64_t n;
    if (!get_varint(c, &n)) {
        return false;
    }
    if (n > (uint64_t)(c->end - c->at)) {
        return corrupt("a text is broken off");
    }
    *text = PyUnicode_DecodeUTF8((const char *)c->at, (Py_ssize_t)n, "replace");
    c->at += n;
    return *text != NULL;
}

static bool get_strings(File *f, Cursor c)
{
    while (c.at < c.end) {
        uint64_t id;
        PyObject *text;
        uint64_t most = ++f->nstrings + GAPS;
        if (!get_small(&c, most, "a string's number is out of range", &id) ||
            !get_text(&c, &text) || !set_item(f->strings, id, text)) {
            return false;
        }
    }
    return true;
}

static bool get_threads(File *f, Cursor c)
{
    while (c.at < c.end) {
        uint64_t index, tid;
        PyObject *name;
        if (!get_small(&c, MAX_THREADS, "a thread's number is out of range", &index) ||
            !get_small(&c, MAX_ID, "a thread's id is out of range", &tid) || !get_text(&c, &name)) {
            return false;
        }
        PyObject *item =
            Py_BuildValue("KKN", (unsigned long long)index, (unsigned long long)tid, name);
        bool ok = item != NULL && PyList_Append(f->threads, item) == 0;
        Py_XDECREF(item);
        if (!ok) {
            return false;
        }
    }
    return true;
}

static bool get_stacks(File *f, Cursor c)
{
    while (c.at < c.end) {
        uint64_t id, n, v[3];
        uint64_t most = ++f->nstacks + GAPS;
        if (!get_small(&c, most, "a stack's number is out of range", &id) ||
            !get_small(&c, 1000, "a stack is too deep", &n)) {
            return false;
        }
        PyObject *frames = PyTuple_New((Py_ssize_t)n);
        for (Py_ssize_t i = 0; frames != NULL && i < (Py_ssize_t)n; i++) {
            bool ok = true;
            for (int k = 0; k < 3 && ok; k++) {
                ok = get_small(&c, INT32_MAX, "a frame is out of range", &v[k]);
            }
            PyObject *frame =
                ok ? Py_BuildValue("III", (unsigned)v[0], (unsigned)v[1], (unsigned)v[2]) : NULL;
            if (frame == NULL) {
                Py_CLEAR(frames);
                break;
            }
            PyTuple_SET_ITEM(frames, i, frame);
        }
        if (!set_item(f->stacks, id, frames)) {
            return false;
        }
    }
    return true;
}

static bool get_clock(File *f, Cursor c)
{
    Clock k;
    if (c.end - c.at != sizeof k) {
        return corrupt("a chunk of time is not 24 bytes long");
    }
    memcpy(&k, c.at, sizeof k);
    if (f->clocks.len > 0) {
        const Clock *last = (const Clock *)(f->clocks.data + f->clocks.len) - 1;
        if (k.ticks <= last->ticks || k.mono_ns < last->mono_ns ||
            k.mono_ns - last->mono_ns > (uint64_t)1 << 60) {
            return corrupt("its clocks do not go forward");
        }
    }
    return vec_add(&f->clocks, &k, sizeof k);
}

static bool get_chunk(File *f, int type, Cursor c)
{
    uint64_t tail[3];
    switch (type) {
    case 'I':
        Py_XSETREF(f->info, PyBytes_FromStringAndSize((const char *)c.at, c.end - c.at));
        return f->info != NULL;
    case 'C':
        return get_clock(f, c);
    case 'E':
        return get_events(f, c);
    case 'T':
        return get_threads(f, c);
    case 'S':
        return get_strings(f, c);
    case 'K':
        return get_stacks(f, c);
    case 'Z':
        if (c.end - c.at != sizeof tail) {
            return corrupt("its last chunk is not 24 bytes long");
        }
        memcpy(tail, c.at, sizeof tail);
        f->lost = tail[0] <= MAX_ID ? tail[0] : MAX_ID;
        f->from = tail[1];
        f->flags = tail[2];
        f->ended = true;
        return true;
    default:
        return corrupt("a chunk is of no known type");
    }
}

static uint32_t crc32_of(const uint8_t *head, const uint8_t *data, size_t n)
{
    static uint32_t table[256];
    if (table[1] == 0) {
        for (uint32_t i = 256; i-- > 0;) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) {
                c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
            }
            table[i] = c;
        }
    }
    uint32_t crc = ~0u;
    for (int i = 0; i < 8; i++) {
        crc = table[(crc ^ head[i]) & 0xff] ^ crc >> 8;
    }
    for (size_t i = 0; i < n; i++) {
        crc = table[(crc ^ data[i]) & 0xff] ^ crc >> 8;
    }
    return ~crc;
}

static bool truncated(size_t at)
{
    PyErr_Format(
        PyExc_ValueError,
        "the trace is truncated at byte %zu: was the program killed before it could end it?", at);
    return false;
}

/* `whole`: nothing may be missing. Else what is there up to the first thing that is broken off will do. */
static bool get_file(File *f, const uint8_t *data, size_t size, bool whole)
{
    static const uint8_t magic[12] = "gofer trace\n";
    uint16_t version;
    if (size < HEAD || memcmp(data, magic, sizeof magic) != 0) {
        if (size > 0 && memcmp(data, magic, size < sizeof magic ? size : sizeof magic) == 0) {
            return truncated(size);
        }
        PyErr_SetString(PyExc_ValueError,
                        size == 0 ? "the file is empty" : "this is no gofer trace");
        return false;
    }
    memcpy(&version, data + 12, 2);
    if (version != 1) {
        PyErr_Format(PyExc_ValueError,
                     "this trace is of version %d, and this gofer reads version 1", (int)version);
        return false;
    }
    size_t at = HEAD;
    while (at < size) {
        const uint8_t *head = data + at;
        uint32_t len, crc;
        if (f->ended) {
            return corrupt("something comes after its end");
        }
        if (size - at < CHUNK_HEAD) {
            return whole ? truncated(at) : true;
        }
        memcpy(&len, head + 4, 4);
        memcpy(&crc, head + 8, 4);
        if (len > size - at - CHUNK_HEAD) {
            return whole ? truncated(at) : true;
        }
        const uint8_t *payload = head + CHUNK_HEAD;
        if (crc32_of(head, payload, len) != crc) {
            PyErr_Format(PyExc_ValueError,
                         "the trace is corrupt: the checksum at byte %zu is wrong", at);
            return false;
        }
        if (!get_chunk(f, head[0], (Cursor){payload, payload + len})) {
            return false;
        }
        at += CHUNK_HEAD + len;
    }
    return f->ended || !whole || truncated(at);
}

/* ---- order ---- */

/* Of two events in the same tick: first what lets others go on, then what follows. */
static int rank(const Event *e)
{
    return e->kind == EV_GO_START || e->kind == EV_PROC_START;
}

static bool before(const Event *a, const Event *b)
{
    if (a->ticks != b->ticks) {
        return a->ticks < b->ticks;
    }
    if (a->thread != b->thread && rank(a) != rank(b)) {
        return rank(a) < rank(b);
    }
    return a < b; /* as in the file */
}

/* Each thread's events are in order already: link them, then take the earliest head again and again. */
static const Event **in_order(const File *f)
{
    size_t n = f->events.len / sizeof(Event), nheap = 0, out = 0,
           threads = (size_t)f->max_thread + 1;
    const Event *all = (const Event *)f->events.data;
    uint32_t *next = malloc((n + 1) * sizeof *next), *last = calloc(threads, sizeof *last);
    const Event **heap = malloc((threads + 1) * sizeof *heap);
    const Event **order = malloc((n + 1) * sizeof *order);
    if (next == NULL || last == NULL || heap == NULL || order == NULL || n >= UINT32_MAX) {
        PyErr_NoMemory();
        free(order);
        order = NULL;
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        next[i] = UINT32_MAX;
        uint32_t *prev = &last[all[i].thread];
        if (*prev != 0) {
            next[*prev - 1] = (uint32_t)i;
        }
        else { /* the thread's first: into the heap */
            size_t k = nheap++;
            for (; k > 0 && before(&all[i], heap[(k - 1) / 2]); k = (k - 1) / 2) {
                heap[k] = heap[(k - 1) / 2];
            }
            heap[k] = &all[i];
        }
        *prev = (uint32_t)i + 1;
    }
    while (nheap > 0) {
        const Event *e = heap[0];
        order[out++] = e;
        uint32_t follows = next[e - all];
        const Event *in = follows != UINT32_MAX ? &all[follows] : heap[--nheap];
        size_t k = 0, child;
        while ((child = 2 * k + 1) < nheap) {
            child += child + 1 < nheap && before(heap[child + 1], heap[child]);
            if (!before(heap[child], in)) {
                break;
            }
            heap[k] = heap[child];
            k = child;
        }
        if (nheap > 0) {
            heap[k] = in;
        }
    }
done:
    free(next);
    free(last);
    free(heap);
    return order;
}

/* ---- time ---- */

typedef struct {
    const Clock *clocks;
    size_t n, at;
    uint64_t base_ns;
} Time;

/* Ticks never go back from one call to the next. */
static int64_t to_ns(Time *t, uint64_t ticks)
{
    while (t->at + 2 < t->n && ticks >= t->clocks[t->at + 1].ticks) {
        t->at++;
    }
    const Clock *a = &t->clocks[t->at], *b = a + 1;
    ticks = ticks > a->ticks ? ticks : a->ticks;
    double ratio = (double)(b->mono_ns - a->mono_ns) / (double)(b->ticks - a->ticks);
    double ns = (double)(ticks - a->ticks) * ratio;
    double most = (double)(b->mono_ns - a->mono_ns);
    ns = ns < most ? ns : most;
    return (int64_t)(a->mono_ns - t->base_ns) + (int64_t)ns;
}

/* ---- the life of goroutines ---- */

enum { S_NONE = 0, S_RUNNABLE = 1, S_RUNNING = 2, S_SYSCALL = 3, S_WAITING = 4, S_DEAD = 6 };
enum { BINS = 8192 };

typedef struct {
    uint64_t id, parent;
    int64_t since, created, ended; /* -1: before, or not yet */
    int64_t total[5], worst;       /* worst: the longest it was runnable */
    uint32_t run, name, site, thread, stack, by, notified_by;
    int32_t p, notified_p;
    uint8_t flags, state, reason, end, open;
} Life;

typedef struct {
    int64_t start, end;
    uint32_t g, thread, stack, by;
    int32_t p; /* of a runnable one: where the one was that made it so */
    uint8_t state, reason;
    uint16_t pad;
} Span;

typedef struct {
    int64_t start, end;
    uint32_t thread;
    int32_t p;
} Held; /* a P by a thread */

typedef struct {
    int64_t total[5], worst, count;
    uint32_t name;
} Function; /* all goroutines of one name */

typedef struct {
    int64_t total;
    uint32_t name, reason;
} Wait; /* of those of one name, for one reason */

typedef struct {
    int64_t running, slices;
} Work; /* of a P */

enum { TOP = 64 };

typedef struct {
    int64_t took[TOP]; /* the longest first */
    uint32_t span[TOP], n;
} Top;

typedef struct {
    uint32_t curg; /* index + 1 */
    int32_t p;     /* -1: none */
    int64_t p_since;
    uint32_t m;
    bool told;
} Thread;

typedef struct {
    int64_t t0, t1, clip;
    Vec lives, spans, helds;
    Map ids;   /* run and id -> index + 1 */
    Map ms;    /* M -> thread */
    Map names; /* of functions -> index + 1 in `functions` */
    Map why;   /* name and reason -> index + 1 in `waits` */
    Vec functions, waits, latencies;
    Work work[MAX_P + 1];
    Top top[5], top_waits[128]; /* by state; waits by reason */
    Thread *threads;
    uint32_t holder[MAX_P + 1]; /* of a P: thread, 0 if none */
    uint32_t run, run_first;
    uint64_t repairs;
    uint64_t repaired_at; /* the first one */
    size_t event;
    bool begun;                   /* what came before has no spans */
    int32_t count[5], (*bins)[5]; /* goroutines in each state: now, and at the end of each bin */
    size_t bin;
} Story;

static Life *life_at(Story *s, uint32_t index)
{
    return (Life *)s->lives.data + index;
}

static void repair(Story *s)
{
    if (s->repairs++ == 0) {
        s->repaired_at = s->event;
    }
}

static uint64_t life_key(const Story *s, uint64_t id)
{
    return id | (uint64_t)(s->run & 0x3ff) << 54;
}

/* Index + 1; 0: it has not been heard of. */
static uint32_t life_known(Story *s, uint64_t id)
{
    uint32_t g = map_get(&s->ids, life_key(s, id));
    return g != 0 && life_at(s, g - 1)->run == s->run ? g : 0;
}

/* Index + 1; 0: no memory. */
static uint32_t life_of(Story *s, uint64_t id)
{
    uint32_t g = life_known(s, id);
    if (g != 0) {
        return g;
    }
    Life new = {.id = id,
                .run = s->run,
                .since = s->t0,
                .created = -1,
                .ended = -1,
                .p = -1,
                .notified_p = -1};
    g = (uint32_t)(s->lives.len / sizeof(Life)) + 1;
    return vec_add(&s->lives, &new, sizeof new) && map_put(&s->ids, life_key(s, id), g) ? g : 0;
}

static void count(Story *s, int state, int by)
{
    if (state >= S_RUNNABLE && state <= S_WAITING) {
        s->count[state] += by;
        s->bins[s->bin][state] = s->count[state];
    }
}

/* Time has come to `now`: in the bins since the last change nothing happened. */
static void bins_to(Story *s, int64_t now)
{
    int64_t width = (s->t1 - s->t0) / BINS + 1;
    int64_t bin = (now - s->t0) / width;
    bin = bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin;
    while ((int64_t)s->bin < bin) {
        s->bin++;
        memcpy(s->bins[s->bin], s->count, sizeof s->count);
    }
}

static void top_add(Top *top, int64_t took, uint32_t span)
{
    uint32_t at = top->n;
    if (at == TOP && top->took[TOP - 1] >= took) {
        return;
    }
    at = at < TOP ? top->n++ : TOP - 1;
    for (; at > 0 && top->took[at - 1] < took; at--) {
        top->took[at] = top->took[at - 1];
        top->span[at] = top->span[at - 1];
    }
    top->took[at] = took;
    top->span[at] = span;
}

/* For the tables: the span that has just been added. */
static bool span_counts(Story *s, Life *g, int64_t took)
{
    uint32_t span = (uint32_t)(s->spans.len / sizeof(Span)) - 1;
    if (g->state != S_WAITING) {
        top_add(&s->top[g->state], took, span);
        if (g->state == S_RUNNABLE) {
            g->worst = took > g->worst ? took : g->worst;
            return vec_add(&s->latencies, &took, sizeof took);
        }
        if (g->state == S_RUNNING && g->p >= 0) {
            s->work[g->p].running += took;
            s->work[g->p].slices++;
        }
        return true;
    }
    top_add(&s->top_waits[g->reason & 127], took, span);
    uint64_t key = (uint64_t)g->name << 8 | g->reason;
    uint32_t at = map_get(&s->why, key);
    if (at == 0) {
        Wait new = {0, g->name, g->reason};
        at = (uint32_t)(s->waits.len / sizeof(Wait)) + 1;
        if (!vec_add(&s->waits, &new, sizeof new) || !map_put(&s->why, key, at)) {
            return false;
        }
    }
    ((Wait *)s->waits.data)[at - 1].total += took;
    return true;
}

static bool span_end(Story *s, Life *g, int64_t now)
{
    if (g->state < S_RUNNABLE || g->state > S_WAITING) {
        return true;
    }
    int64_t start = g->since > s->clip ? g->since : s->clip;
    if (now < start || !s->begun) {
        return true;
    }
    Span span = {start,     now,      (uint32_t)(g - (Life *)s->lives.data),
                 g->thread, g->stack, g->by,
                 g->p,      g->state, g->reason,
                 0};
    g->total[g->state] += now - start;
    return vec_add(&s->spans, &span, sizeof span) && span_counts(s, g, now - start);
}

/* `g` was in `was` (if nobody knows better, it is taken for true) and is in `state` from now on. */
static bool change(Story *s, Life *g, int64_t now, int was, int state)
{
    bool known = g->state == was || (was == S_RUNNING && g->state == S_SYSCALL);
    if (!known && g->state != S_NONE) {
        repair(s);
    }
    if (!known && (g->state == S_NONE || g->state == S_DEAD)) {
        g->state = (uint8_t)was;
        count(s, was, 1);
    }
    bool ok = span_end(s, g, now);
    count(s, g->state, -1);
    count(s, state, 1);
    g->state = (uint8_t)state;
    g->since = now;
    g->reason = 0;
    g->stack = 0;
    g->by = 0;
    g->p = -1;
    g->thread = 0;
    return ok;
}

static void runs_on(Life *g, uint32_t thread, const Thread *t)
{
    g->thread = thread;
    g->p = t->p;
}

/* The span that has just ended, if it is this goroutine's and in this state or that. */
static Span *just_ended(Story *s, const Life *g, int state, int or_state)
{
    if (s->spans.len == 0) {
        return NULL;
    }
    Span *last = (Span *)(s->spans.data + s->spans.len) - 1;
    bool its = last->g == (uint32_t)(g - (Life *)s->lives.data) &&
               (last->state == state || last->state == or_state);
    return its ? last : NULL;
}

/* A wait is over, and this one ended it. */
static void wait_ended_by(Story *s, const Life *g, uint32_t by)
{
    Span *wait = just_ended(s, g, S_WAITING, S_WAITING);
    if (wait != NULL) {
        wait->by = by;
    }
}

/* Where the code stood when it stopped: the best there is to say where it was all the time. */
static void slice_ended_at(Story *s, const Life *g, uint32_t stack)
{
    Span *slice = just_ended(s, g, S_RUNNING, S_SYSCALL);
    if (slice != NULL) {
        slice->stack = stack;
    }
}

static bool held_end(Story *s, uint32_t thread, int64_t now)
{
    Thread *t = &s->threads[thread];
    int64_t start = t->p_since > s->clip ? t->p_since : s->clip;
    Held held = {start, now, thread, t->p};
    if (t->p < 0) {
        return true;
    }
    s->holder[t->p] = 0;
    t->p = -1;
    return now < start || vec_add(&s->helds, &held, sizeof held);
}

/* What it runs goes on without a P, or with one again. */
static bool curg_moves(Story *s, uint32_t thread, int64_t now)
{
    Thread *t = &s->threads[thread];
    if (t->curg == 0) {
        return true;
    }
    Life *g = life_at(s, t->curg - 1);
    if (!change(s, g, now, S_RUNNING, t->p >= 0 ? S_RUNNING : S_SYSCALL)) {
        return false;
    }
    runs_on(g, thread, t);
    return true;
}

static bool p_lost(Story *s, uint32_t thread, int64_t now)
{
    return held_end(s, thread, now) && curg_moves(s, thread, now);
}

static bool p_taken_up(Story *s, uint32_t thread, int32_t p, int64_t now, int64_t since)
{
    Thread *t = &s->threads[thread];
    uint32_t other = s->holder[p];
    if (other != 0 && other != thread) {
        repair(s);
        if (!p_lost(s, other, now)) {
            return false;
        }
    }
    if (t->p >= 0 && t->p != p) {
        repair(s);
    }
    if (t->p == p) {
        return true;
    }
    if (!held_end(s, thread, now)) {
        return false;
    }
    t->p = p;
    t->p_since = since;
    s->holder[p] = thread;
    return true;
}

static bool begins_to_run(Story *s, uint32_t g, uint32_t thread, int64_t now, int was)
{
    Thread *t = &s->threads[thread];
    if (t->curg != 0 && t->curg != g) {
        repair(s);
    }
    t->curg = g;
    Life *life = life_at(s, g - 1);
    if (!change(s, life, now, was, t->p >= 0 ? S_RUNNING : S_SYSCALL)) {
        return false;
    }
    runs_on(life, thread, t);
    return true;
}

static bool stops_running(Story *s, uint32_t g, uint32_t thread, int64_t now, int state)
{
    Thread *t = &s->threads[thread];
    Life *life = life_at(s, g - 1);
    if (t->curg != g && t->curg != 0) {
        repair(s);
    }
    if (life->state == S_NONE) {
        runs_on(life, thread, t);
    }
    t->curg = 0;
    return change(s, life, now, S_RUNNING, state);
}

static bool describe(Story *s, uint32_t g, const int64_t *a, const Event *e, int64_t now)
{
    Life *life = life_at(s, g - 1);
    life->parent = (uint64_t)a[1];
    life->name = (uint32_t)a[2];
    life->site = (uint32_t)a[3];
    life->flags = (uint8_t)a[4];
    if (e->kind == EV_GO_STATUS) {
        if (a[5] == G_WAITING && life->state == S_NONE) { /* it has waited all the time */
            life->state = S_WAITING;
            life->since = s->t0;
            life->reason = (uint8_t)a[6];
            count(s, S_WAITING, 1);
        }
        return true;
    }
    if (life->state != S_NONE && life->state != S_DEAD) {
        repair(s);
    }
    life->created = now;
    life->state = S_NONE;
    life->since = now;
    const Thread *t = &s->threads[e->thread];
    if (!change(s, life, now, S_NONE, S_RUNNABLE)) {
        return false;
    }
    life->by = t->curg;
    life->p = t->p;
    return true;
}

/* The run is over, or the trace: so is every goroutine of it. */
static bool run_over(Story *s, int64_t now)
{
    uint32_t n = (uint32_t)(s->lives.len / sizeof(Life));
    for (uint32_t i = s->run_first; i < n; i++) {
        Life *g = life_at(s, i);
        g->open = g->state >= S_RUNNABLE && g->state <= S_WAITING;
        if (!span_end(s, g, now)) {
            return false;
        }
        count(s, g->state, -1);
        g->state = S_DEAD;
    }
    s->run_first = n;
    return true;
}

static bool thread_is_m(Story *s, uint32_t thread, int64_t m)
{
    s->threads[thread].m = (uint32_t)m;
    s->threads[thread].told = true;
    return map_put(&s->ms, (uint64_t)m, thread);
}

static bool on_status(Story *s, const Event *e, const int64_t *a, int64_t now)
{
    Thread *t = &s->threads[e->thread];
    int64_t since = t->told ? now : s->t0; /* the first time it says what was so all along */
    bool first = !t->told;
    if (!thread_is_m(s, e->thread, a[0])) {
        return false;
    }
    if (a[1] > 0 && !p_taken_up(s, e->thread, (int32_t)a[1] - 1, now, since)) {
        return false;
    }
    if (a[2] == 0 || !first) {
        return true;
    }
    uint32_t g = life_of(s, (uint64_t)a[2]);
    if (g == 0) {
        return false;
    }
    Life *life = life_at(s, g - 1);
    if (life->state == S_NONE) {
        t->curg = g;
        life->state = t->p >= 0 ? S_RUNNING : S_SYSCALL;
        count(s, life->state, 1);
        runs_on(life, e->thread, t);
    }
    return true;
}

static bool about_a_goroutine(int kind)
{
    return kind >= EV_GO_STATUS && kind <= EV_GO_END;
}

static bool on_event(Story *s, const Event *e, const int64_t *a, int64_t now)
{
    Thread *t = &s->threads[e->thread];
    uint32_t g = 0, th;
    if (about_a_goroutine(e->kind) && (g = life_of(s, (uint64_t)a[0])) == 0) {
        return false;
    }
    Life *life = g != 0 ? life_at(s, g - 1) : NULL;
    switch (e->kind) {
    case EV_RUN_BEGIN:
        s->run++;
        t->curg = 0;
        return thread_is_m(s, e->thread, a[0]) && p_lost(s, e->thread, now);
    case EV_RUN_END:
        t->curg = 0;
        return p_lost(s, e->thread, now) && run_over(s, now);
    case EV_STATUS:
        return on_status(s, e, a, now);
    case EV_PROC_START:
        return p_taken_up(s, e->thread, (int32_t)a[0], now, now) && curg_moves(s, e->thread, now);
    case EV_PROC_STOP:
        if (t->p < 0) {
            repair(s);
        }
        return p_lost(s, e->thread, now);
    case EV_PROC_TAKEN:
        th = map_get(&s->ms, (uint64_t)a[1]);
        return th == 0 || s->threads[th].p != (int32_t)a[0] || p_lost(s, th, now);
    case EV_GO_STATUS:
    case EV_GO_CREATE:
        return describe(s, g, a, e, now);
    case EV_GO_START:
        return begins_to_run(s, g, e->thread, now, S_RUNNABLE);
    case EV_GO_STOP:
    case EV_GO_BLOCK:
        if (!stops_running(s, g, e->thread, now, e->kind == EV_GO_STOP ? S_RUNNABLE : S_WAITING)) {
            return false;
        }
        life->reason = (uint8_t)(a[1] + (e->kind == EV_GO_STOP)); /* 0: woken, or new */
        life->stack = (uint32_t)a[2];
        slice_ended_at(s, life, life->stack);
        return true;
    case EV_GO_UNBLOCK:
        if (!change(s, life, now, S_WAITING, S_RUNNABLE)) {
            return false;
        }
        wait_ended_by(s, life, t->curg);
        life->by = t->curg;
        life->p = t->p;
        return true;
    case EV_GO_NOTIFY:
        life->notified_by = t->curg;
        life->notified_p = t->p;
        return true;
    case EV_GO_REQUEUE:
        if (!change(s, life, now, S_WAITING, S_RUNNABLE)) {
            return false;
        }
        wait_ended_by(s, life, life->notified_by);
        life->by = life->notified_by;
        life->p = life->notified_p;
        return true;
    case EV_GO_END:
        if (t->curg == g) {
            t->curg = 0;
        }
        if (!change(s, life, now, life->state == S_NONE ? S_RUNNING : life->state, S_DEAD)) {
            return false;
        }
        life->end = (uint8_t)a[1];
        life->ended = now;
        return true;
    default:
        return true;
    }
}

/* The trace begins here: at events[at], in order. What came before serves to know what state things were in, but may
 * have gaps: a goroutine may have ended in one of them. All that live are heard of again, if only because the snapshot
 * names them: forget the others, and count anew. `owners`: the goroutines of the events so far. */
static bool forget_the_dead(Story *s, const File *f, const Event **events, size_t at,
                            uint32_t *owners)
{
    size_t total = f->events.len / sizeof(Event);
    uint32_t n = (uint32_t)(s->lives.len / sizeof(Life)), kept = 0;
    uint32_t *now = calloc((size_t)n + 1, sizeof *now); /* index + 1 before -> index + 1 */
    if (now == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = at; i < total && events[i]->kind != EV_RUN_BEGIN; i++) {
        if (about_a_goroutine(events[i]->kind)) {
            const int64_t *args = (const int64_t *)f->args.data + events[i]->at;
            uint32_t g = life_known(s, (uint64_t)args[0]);
            now[g] = g;
        }
    }
    bool ok = true;
    Map ids = {0};
    for (uint32_t i = 0; ok && i < n; i++) {
        const Life *g = life_at(s, i);
        if (now[i + 1] == 0) {
            count(s, g->state, -1);
            continue;
        }
        ok = map_put(&ids, life_key(s, g->id), kept + 1);
        *life_at(s, kept) = *g;
        now[i + 1] = ++kept;
    }
    map_free(&s->ids);
    s->ids = ids;
    s->lives.len = kept * sizeof(Life);
    s->run_first = 0;
    for (uint32_t i = 0; i < kept; i++) {
        Life *g = life_at(s, i);
        g->by = now[g->by];
        g->notified_by = now[g->notified_by];
    }
    for (uint32_t i = 0; i <= f->max_thread; i++) {
        s->threads[i].curg = now[s->threads[i].curg];
    }
    for (size_t i = 0; i < at; i++) {
        owners[i] = now[owners[i]];
    }
    free(now);
    return ok;
}

/* ---- figures ---- */

static bool sum_functions(Story *s)
{
    size_t n = s->lives.len / sizeof(Life);
    for (size_t i = 0; i < n; i++) {
        const Life *g = life_at(s, (uint32_t)i);
        uint32_t at = map_get(&s->names, g->name);
        if (at == 0) {
            Function new = {.name = g->name};
            at = (uint32_t)(s->functions.len / sizeof(Function)) + 1;
            if (!vec_add(&s->functions, &new, sizeof new) || !map_put(&s->names, g->name, at)) {
                return false;
            }
        }
        Function *f = (Function *)s->functions.data + at - 1;
        f->count++;
        f->worst = g->worst > f->worst ? g->worst : f->worst;
        for (int k = 0; k < 5; k++) {
            f->total[k] += g->total[k];
        }
    }
    return true;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* ---- to Python ---- */

static bool give(PyObject *dict, const char *name, PyObject *value) /* eats value */
{
    bool ok = value != NULL && PyDict_SetItemString(dict, name, value) == 0;
    Py_XDECREF(value);
    return ok;
}

static PyObject *bytes_of(const void *data, size_t n)
{
    return PyBytes_FromStringAndSize(data, (Py_ssize_t)n);
}

/* One member of every struct in a vector, as an array. */
static bool give_column(PyObject *dict, const char *name, const void *data, size_t n, size_t stride,
                        size_t offset, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * size));
    if (bytes == NULL) {
        return false;
    }
    char *to = PyBytes_AS_STRING(bytes);
    for (size_t i = 0; i < n; i++) {
        memcpy(to + i * size, (const char *)data + i * stride + offset, size);
    }
    return give(dict, name, bytes);
}

#define COLUMN(dict, prefix, vec, type, member)                                           \
    give_column(dict, prefix #member, (vec).data, (vec).len / sizeof(type), sizeof(type), \
                offsetof(type, member), sizeof((type){0}.member))

static bool give_tops(PyObject *d, const char *name, const Top *tops, int n)
{
    PyObject *list = PyList_New(n);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject *one = bytes_of(tops[i].span, tops[i].n * sizeof *tops[i].span);
        if (one == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, one);
    }
    return give(d, name, list);
}

static bool give_story(PyObject *d, const Story *s)
{
    return COLUMN(d, "span_", s->spans, Span, start) && COLUMN(d, "span_", s->spans, Span, end) &&
           COLUMN(d, "span_", s->spans, Span, g) && COLUMN(d, "span_", s->spans, Span, thread) &&
           COLUMN(d, "span_", s->spans, Span, stack) && COLUMN(d, "span_", s->spans, Span, by) &&
           COLUMN(d, "span_", s->spans, Span, p) && COLUMN(d, "span_", s->spans, Span, state) &&
           COLUMN(d, "span_", s->spans, Span, reason) &&
           COLUMN(d, "held_", s->helds, Held, start) && COLUMN(d, "held_", s->helds, Held, end) &&
           COLUMN(d, "held_", s->helds, Held, thread) && COLUMN(d, "held_", s->helds, Held, p) &&
           COLUMN(d, "g_", s->lives, Life, id) && COLUMN(d, "g_", s->lives, Life, parent) &&
           COLUMN(d, "g_", s->lives, Life, run) && COLUMN(d, "g_", s->lives, Life, name) &&
           COLUMN(d, "g_", s->lives, Life, site) && COLUMN(d, "g_", s->lives, Life, created) &&
           COLUMN(d, "g_", s->lives, Life, ended) && COLUMN(d, "g_", s->lives, Life, flags) &&
           COLUMN(d, "g_", s->lives, Life, end) && COLUMN(d, "g_", s->lives, Life, open) &&
           COLUMN(d, "g_", s->lives, Life, total) &&
           COLUMN(d, "f_", s->functions, Function, name) &&
           COLUMN(d, "f_", s->functions, Function, count) &&
           COLUMN(d, "f_", s->functions, Function, worst) &&
           COLUMN(d, "f_", s->functions, Function, total) &&
           COLUMN(d, "w_", s->waits, Wait, name) && COLUMN(d, "w_", s->waits, Wait, reason) &&
           COLUMN(d, "w_", s->waits, Wait, total) &&
           give(d, "work", bytes_of(s->work, sizeof s->work)) &&
           give(d, "latencies", bytes_of(s->latencies.data, s->latencies.len)) &&
           give_tops(d, "top", s->top, 5) && give_tops(d, "top_waits", s->top_waits, 128) &&
           give(d, "bins", bytes_of(s->bins, BINS * sizeof *s->bins)) &&
           give(d, "repairs", PyLong_FromUnsignedLongLong(s->repairs)) &&
           give(d, "repaired_at", PyLong_FromUnsignedLongLong(s->repaired_at)) &&
           give(d, "runs", PyLong_FromUnsignedLong(s->run));
}

static bool give_threads(PyObject *d, const File *f, const Story *s)
{
    PyObject *ms = PyDict_New();
    for (uint32_t i = 0; ms != NULL && i <= f->max_thread; i++) {
        if (s->threads[i].told) {
            PyObject *key = PyLong_FromUnsignedLong(i);
            PyObject *m = PyLong_FromUnsignedLong(s->threads[i].m);
            if (key == NULL || m == NULL || PyDict_SetItem(ms, key, m) < 0) {
                Py_CLEAR(ms);
            }
            Py_XDECREF(key);
            Py_XDECREF(m);
        }
    }
    return give(d, "thread_ms", ms) && give(d, "threads", Py_NewRef(f->threads));
}

static bool give_file(PyObject *d, const File *f)
{
    const Clock *first = (const Clock *)f->clocks.data;
    return give(d, "info", f->info != NULL ? Py_NewRef(f->info) : bytes_of("{}", 2)) &&
           give(d, "strings", Py_NewRef(f->strings)) && give(d, "stacks", Py_NewRef(f->stacks)) &&
           give(d, "lost", PyLong_FromUnsignedLongLong(f->lost)) &&
           give(d, "exact", PyBool_FromLong(f->ended && (f->flags & 3) == 3 && f->lost == 0)) &&
           give(d, "wall_ns", PyLong_FromUnsignedLongLong(first->wall_ns)) &&
           give(d, "text", bytes_of(f->text.data, f->text.len)) &&
           give(d, "args", bytes_of(f->args.data, f->args.len));
}

/* Events in order, each with the goroutine that its thread was running then, and the spans. */
static bool tell_story(PyObject *d, const File *f, Story *s, const Event **order)
{
    size_t n = f->events.len / sizeof(Event);
    Time time = {(const Clock *)f->clocks.data, f->clocks.len / sizeof(Clock), 0, 0};
    time.base_ns = time.clocks[0].mono_ns;
    PyObject *ts = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * 8));
    PyObject *kinds = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);
    PyObject *threads = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * 4));
    PyObject *ats = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * 4));
    PyObject *gs = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * 4));
    bool ok = ts != NULL && kinds != NULL && threads != NULL && ats != NULL && gs != NULL;
    s->t1 = (int64_t)(time.clocks[time.n - 1].mono_ns - time.base_ns);
    Time ahead = time;
    s->t0 = s->clip = f->from > time.clocks[0].ticks ? to_ns(&ahead, f->from) : 0;
    int64_t now = 0;
    uint32_t *owners = ok ? (uint32_t *)PyBytes_AS_STRING(gs) : NULL;
    s->begun = s->t0 == 0;
    for (size_t i = 0; ok && i < n; i++) {
        const Event *e = order[i];
        if (!s->begun && e->ticks >= f->from) {
            s->begun = true;
            if (!forget_the_dead(s, f, order, i, owners)) {
                ok = false;
                break;
            }
        }
        const int64_t *args = (const int64_t *)f->args.data + e->at;
        now = to_ns(&time, e->ticks);
        s->event = i;
        bins_to(s, now);
        uint32_t g = s->threads[e->thread].curg;
        memcpy(PyBytes_AS_STRING(ts) + i * 8, &now, 8);
        PyBytes_AS_STRING(kinds)[i] = (char)e->kind;
        memcpy(PyBytes_AS_STRING(threads) + i * 4, &e->thread, 4);
        memcpy(PyBytes_AS_STRING(ats) + i * 4, &e->at, 4);
        owners[i] = g;
        ok = on_event(s, e, args, now);
    }
    bins_to(s, s->t1);
    ok = ok && (s->begun || forget_the_dead(s, f, order, n, owners)) && run_over(s, s->t1);
    for (uint32_t i = 0; ok && i <= f->max_thread; i++) {
        ok = held_end(s, i, s->t1);
    }
    ok = ok && sum_functions(s);
    if (s->latencies.len > 0) {
        qsort(s->latencies.data, s->latencies.len / sizeof(int64_t), sizeof(int64_t), compare);
    }
    ok = ok && give(d, "ts", Py_NewRef(ts)) && give(d, "kind", Py_NewRef(kinds)) &&
         give(d, "thread", Py_NewRef(threads)) && give(d, "at", Py_NewRef(ats)) &&
         give(d, "g", Py_NewRef(gs)) && give(d, "t0", PyLong_FromLongLong(s->t0)) &&
         give(d, "t1", PyLong_FromLongLong(s->t1)) && give_story(d, s) && give_threads(d, f, s);
    Py_XDECREF(ts);
    Py_XDECREF(kinds);
    Py_XDECREF(threads);
    Py_XDECREF(ats);
    Py_XDECREF(gs);
    return ok;
}

static bool check_times(const File *f)
{
    if (f->clocks.len < 2 * sizeof(Clock)) {
        return corrupt("it has no clock");
    }
    const Clock *first = (const Clock *)f->clocks.data;
    const Clock *last = (const Clock *)(f->clocks.data + f->clocks.len) - 1;
    const Event *all = (const Event *)f->events.data;
    size_t n = f->events.len / sizeof(Event);
    /* A thread may get no core between its look at the clock and the writing, or the other way round: some tenths of a
     * second. */
    uint64_t slack = (last->ticks - first->ticks) / 100 + 1000000000;
    for (size_t i = 0; i < n; i++) {
        if (all[i].ticks + slack < first->ticks || all[i].ticks > last->ticks + slack) {
            return corrupt("an event is outside of its time");
        }
    }
    return true;
}

/* A trace that was broken off has no last clock: its last event will do. */
static bool make_end(File *f)
{
    if (f->ended || f->clocks.len == 0) {
        return true;
    }
    Clock *first = (Clock *)f->clocks.data;
    Clock last = *((Clock *)(f->clocks.data + f->clocks.len) - 1);
    double ratio = last.ticks > first->ticks ? (double)(last.mono_ns - first->mono_ns) /
                                                   (double)(last.ticks - first->ticks)
                                             : 1.0;
    const Event *all = (const Event *)f->events.data;
    uint64_t most = last.ticks + 1;
    for (size_t i = 0; i < f->events.len / sizeof(Event); i++) {
        most = all[i].ticks > most ? all[i].ticks : most;
    }
    double ns = (double)(most - last.ticks) * ratio;
    if (ns > 1e18) {
        return corrupt("an event is outside of its time");
    }
    last.mono_ns += (uint64_t)ns + 1;
    last.ticks = most;
    return vec_add(&f->clocks, &last, sizeof last);
}

static PyObject *core_trace_read(PyObject *Py_UNUSED(mod), PyObject *args)
{
    Py_buffer data;
    int whole;
    if (!PyArg_ParseTuple(args, "y*p:trace_read", &data, &whole)) {
        return NULL;
    }
    File f = {.threads = PyList_New(0), .strings = PyList_New(0), .stacks = PyList_New(0)};
    Story *s = calloc(1, sizeof *s);
    PyObject *d = PyDict_New();
    const Event **order = NULL;
    bool ok = f.threads != NULL && f.strings != NULL && f.stacks != NULL && d != NULL;
    if (s == NULL) {
        ok = false;
        PyErr_NoMemory();
    }
    ok = ok && get_file(&f, data.buf, (size_t)data.len, whole != 0) && make_end(&f) &&
         check_times(&f) && (order = in_order(&f)) != NULL;
    if (ok) {
        s->threads = calloc((size_t)f.max_thread + 1, sizeof(Thread));
        s->bins = calloc(BINS, sizeof *s->bins);
        ok = s->threads != NULL && s->bins != NULL;
        if (!ok) {
            PyErr_NoMemory();
        }
    }
    for (uint32_t i = 0; ok && i <= f.max_thread; i++) {
        s->threads[i].p = -1;
    }
    ok = ok && give_file(d, &f) && tell_story(d, &f, s, order);
    free(order);
    if (s != NULL) {
        free(s->threads);
        free(s->bins);
        free(s->lives.data);
        free(s->spans.data);
        free(s->helds.data);
        free(s->functions.data);
        free(s->waits.data);
        free(s->latencies.data);
        map_free(&s->names);
        map_free(&s->why);
        map_free(&s->ids);
        map_free(&s->ms);
        free(s);
    }
    free(f.events.data);
    free(f.args.data);
    free(f.text.data);
    free(f.clocks.data);
    Py_XDECREF(f.info);
    Py_XDECREF(f.threads);
    Py_XDECREF(f.strings);
    Py_XDECREF(f.stacks);
    PyBuffer_Release(&data);
    if (!ok) {
        Py_CLEAR(d);
    }
    return d;
}

PyMethodDef traceread_methods[] = {
    {"trace_read", core_trace_read, METH_VARARGS, NULL},
    {NULL},
};
