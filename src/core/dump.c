/* Where goroutines stand: for dumps and deadlock reports. The text is made in src/gofer/_dump.py.
 *
 * A goroutine that is parked is kept from running while its frames are walked (scan_begin): a microsecond.
 * One that runs, or is parked in the middle of a plain function, has its frames on the stack of its thread.
 * Those of all such threads are walked in one go while none of them can move: with the GIL that is ours, else the
 * world of CPython is stopped; but only if that will be quick (all_in_bytecode), so a dump never waits for a thread in
 * a long call of C code.
 *
 * A stack is an array of places, innermost first. Many goroutines stand in the same: each distinct one is told
 * once, in a dict that is the caller's, under the bytes of the array. */
#include "runtime.h"

#include <unistd.h>

typedef struct {
    PyCodeObject *code; /* owned */
    intptr_t lasti;
} Place; /* no padding: it is hashed */

typedef struct {
    Place *at;
    size_t n, cap;
} Places;

static PyCodeObject *run_code; /* owned: what is below this is no goroutine's */

void dump_below(PyCodeObject *code) /* eats the reference */
{
    Py_XSETREF(run_code, code);
}

static void places_add(Places *s, PyCodeObject *code, int lasti) /* eats the reference */
{
    if (s->n == s->cap) {
        size_t cap = s->cap > 0 ? s->cap * 2 : 16;
        Place *more = realloc(s->at, cap * sizeof *more);
        if (more == NULL) {
            Py_DECREF(code); /* not the last: it runs */
            return;
        }
        s->at = more;
        s->cap = cap;
    }
    s->at[s->n++] = (Place){code, lasti};
}

static void places_add_frame(Places *s, PyFrameObject *frame)
{
    places_add(s, PyFrame_GetCode(frame), PyFrame_GetLasti(frame));
}

static void places_reverse(Places *s)
{
    for (size_t i = 0; i < s->n / 2; i++) {
        Place p = s->at[i];
        s->at[i] = s->at[s->n - 1 - i];
        s->at[s->n - 1 - i] = p;
    }
}

static void places_clear(Places *s)
{
    for (size_t i = 0; i < s->n; i++) {
        Py_DECREF(s->at[i].code);
    }
    free(s->at);
    *s = (Places){0};
}

/* ((code, line), ...) */
static PyObject *places_tuple(const Places *s)
{
    PyObject *t = PyTuple_New((Py_ssize_t)s->n);
    for (size_t i = 0; t != NULL && i < s->n; i++) {
        int line = PyCode_Addr2Line(s->at[i].code, (int)s->at[i].lasti);
        PyObject *pair = Py_BuildValue("(Oi)", s->at[i].code, line);
        if (pair == NULL) {
            Py_CLEAR(t);
            break;
        }
        PyTuple_SET_ITEM(t, (Py_ssize_t)i, pair);
    }
    return t;
}

/* The key of this stack in `known`, where it is put if it is new. Clears it. NULL: exception. */
static PyObject *places_key(Places *s, PyObject *known)
{
    PyObject *key = PyBytes_FromStringAndSize((char *)s->at, (Py_ssize_t)(s->n * sizeof *s->at));
    int found = key != NULL ? PyDict_Contains(known, key) : -1;
    if (found == 0) {
        PyObject *t = places_tuple(s); /* keeps the code objects, so the key means nothing else */
        found = t != NULL ? PyDict_SetItem(known, key, t) : -1;
        Py_XDECREF(t);
    }
    places_clear(s);
    if (found < 0) {
        Py_CLEAR(key);
    }
    return key;
}

/* ---- a chain of awaits ---- */

static PyObject *frame_names[3], *await_names[3]; /* of coroutines, generators, async generators */

bool dump_init(void)
{
    static const char *const names[3][2] = {
        {"cr_frame", "cr_await"}, {"gi_frame", "gi_yieldfrom"}, {"ag_frame", "ag_await"}};
    for (int i = 0; i < 3; i++) {
        frame_names[i] = PyUnicode_InternFromString(names[i][0]);
        await_names[i] = PyUnicode_InternFromString(names[i][1]);
        if (frame_names[i] == NULL || await_names[i] == NULL) {
            return false;
        }
    }
    return true;
}

/* One step: note its frame, if it has one. What it awaits: a new reference, or NULL. */
static PyObject *step_in(Places *s, PyObject *at)
{
    static _Atomic size_t offset; /* of the frame in all of them; 0: not known */
    int kind = PyCoro_CheckExact(at)       ? 0
               : PyGen_CheckExact(at)      ? 1
               : PyAsyncGen_CheckExact(at) ? 2
                                           : -1;
    PyObject *frame = NULL, *inner = NULL;
    size_t known = atomic_load_explicit(&offset, memory_order_relaxed);
    int lasti;
    PyCodeObject *code = kind >= 0 && known > 0 ? compat_suspended_at(at, known, &lasti) : NULL;
    if (code != NULL) {
        places_add(s, code, lasti);
    }
    else if (kind >= 0) {
        frame = PyObject_GetAttr(at, frame_names[kind]);
    }
    if (kind >= 0) {
        inner = PyObject_GetAttr(at, await_names[kind]);
    }
    else if (!PyObject_TypeCheck(at, &Operation_Type) && !Py_IS_TYPE(at, &Goroutine_Type)) {
        /* What is behind `async for`, or of another implementation. */
        PyObject *r = PyObject_CallOneArg(hooks.frame_and_awaited, at);
        if (r != NULL) {
            frame = Py_NewRef(PyTuple_GET_ITEM(r, 0));
            inner = Py_NewRef(PyTuple_GET_ITEM(r, 1));
            Py_DECREF(r);
        }
    }
    if (PyErr_Occurred()) {
        PyErr_Clear(); /* the attributes of a stranger may do anything: then we see that much */
    }
    if (frame != NULL && PyFrame_Check(frame)) {
        places_add_frame(s, (PyFrameObject *)frame);
        if (kind >= 0) {
            known = compat_frame_offset(at, (PyFrameObject *)frame);
            atomic_store_explicit(&offset, known, memory_order_relaxed);
        }
    }
    Py_XDECREF(frame);
    if (inner == Py_None) {
        Py_CLEAR(inner);
    }
    return inner;
}

/* Of a coroutine that is suspended, and of all that it awaits. */
static void walk_awaits(Places *s, PyObject *coro)
{
    PyObject *at = Py_NewRef(coro);
    size_t first = s->n;
    for (int depth = 0; at != NULL && depth < 100000; depth++) {
        Py_SETREF(at, step_in(s, at));
    }
    Py_XDECREF(at);
    Places rest = {s->at + first, s->n - first, 0};
    places_reverse(&rest);
}

/* ---- the stack of a thread ---- */

/* From `frame` (eaten, may be NULL) out to where the goroutine begins: its coroutine, or run(). */
static void walk_thread(Places *s, PyFrameObject *frame, PyObject *coro)
{
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *runs = PyFrame_GetGenerator(frame);
        Py_XDECREF(runs); /* not the last */
        PyFrameObject *back = NULL;
        if (code == run_code) {
            Py_DECREF(code);
        }
        else {
            places_add(s, code, PyFrame_GetLasti(frame));
            back = coro == NULL || runs != coro ? PyFrame_GetBack(frame) : NULL;
        }
        Py_DECREF(frame); /* nor this: the thread is in it */
        frame = back;
    }
}

/* Where this thread stands, without what is ours: the dump itself. And what block() awaits, if it is parked there and
 * looks for a deadlock. */
static void walk_own(Places *s, M *m, G *g)
{
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (frame != NULL && frame_is_ours(frame)) {
        Py_SETREF(frame, PyFrame_GetBack(frame));
    }
    if (m->blocked_on != NULL) {
        walk_awaits(s, m->blocked_on);
    }
    walk_thread(s, frame, g->coro);
}

/* ---- would it be quick to stop the world of CPython? ---- */

#if HAVE_GIL

static bool all_in_bytecode(void)
{
    return true; /* whoever gives the GIL away is at a boundary */
}

#else

#define PROBE_NS     10000000LL /* of CPU time, without getting to a boundary: it is in C code */
#define PROBE_MAX_NS NS_PER_S   /* some may have to wait for a core */

/* Ask those in the list, or look whether they are still to come. */
static void probe(M *m, bool ask, bool *waits, bool *in_c) /* sched.lock */
{
    for (; m != NULL; m = m->all_next) {
        if (m->ts == NULL || atomic_load(&m->user) == USER_NONE || compat_detached(m->ts)) {
            continue;
        }
        if (ask) {
            m->probe_cpu_ns = clock_ns(m->cpu_clock);
            compat_probe(m->ts);
        }
        if (compat_probe_waits(m->ts)) {
            *waits = true;
            *in_c |= clock_ns(m->cpu_clock) - m->probe_cpu_ns > PROBE_NS;
        }
    }
}

/* Have each thread that is attached to Python do something at its next boundary, and see whether it does, soon.
 * (Of threads that are no Ms we know nothing.) Detached. */
static bool all_in_bytecode(void)
{
    bool waits = true, in_c = false;
    int64_t until = nanotime() + PROBE_MAX_NS;
    for (bool first = true; waits && !in_c && nanotime() < until; first = false) {
        waits = false;
        lock(&sched.lock);
        probe(sched.m0, first, &waits, &in_c); /* which is in no list */
        probe(sched.allm, first, &waits, &in_c);
        probe(sched.orphans, first, &waits, &in_c);
        unlock(&sched.lock);
        if (waits) {
            usleep(first ? 10 : 50);
        }
    }
    return !waits;
}

#endif

/* ---- all that are on threads ---- */

typedef struct {
    uint64_t *ids;
    Places *stacks;
    size_t n, cap;
} OnThreads;

/* All goroutines that are on a thread. Nobody moves: see the top of this file. */
static int walk_threads(PyObject *Py_UNUSED(any), void *arg)
{
    OnThreads *found = arg;
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        if (m->ts != NULL && m->ts != PyThreadState_Get() && m->curg != NULL &&
            found->n < found->cap) {
            found->ids[found->n] = m->curg->id;
            walk_thread(&found->stacks[found->n++], PyThreadState_GetFrame(m->ts), m->curg->coro);
        }
    }
    unlock(&sched.lock);
    return 0; /* that was all: visit no object */
}

static bool on_threads_alloc(OnThreads *found)
{
    lock(&sched.lock);
    found->cap = (size_t)sched.nm + 16; /* more may come: they are missed */
    unlock(&sched.lock);
    found->ids = calloc(found->cap, sizeof *found->ids);
    found->stacks = calloc(found->cap, sizeof *found->stacks);
    return found->ids != NULL && found->stacks != NULL;
}

/* look_at_threads(known) -> {id: key of its stack} for goroutines that are on a thread. Empty if one of them is in a
 * long call of C code. */
static PyObject *core_look_at_threads(PyObject *Py_UNUSED(mod), PyObject *known)
{
    OnThreads found = {0};
    PyObject *result = PyDict_New();
    bool quick;
    if (result == NULL || !on_threads_alloc(&found)) {
        Py_XDECREF(result);
        free(found.ids);
        free(found.stacks);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    quick = all_in_bytecode();
    Py_END_ALLOW_THREADS
    if (quick) {
        compat_stop_world_and(walk_threads, &found);
    }
    for (size_t i = 0; i < found.n; i++) {
        PyObject *id = PyLong_FromUnsignedLongLong(found.ids[i]);
        PyObject *key = places_key(&found.stacks[i], known);
        if (result != NULL && (id == NULL || key == NULL || PyDict_SetItem(result, id, key) < 0)) {
            Py_CLEAR(result);
        }
        Py_XDECREF(id);
        Py_XDECREF(key);
    }
    free(found.ids);
    free(found.stacks);
    return result;
}

/* ---- one goroutine ---- */

/* A function that has not been called yet stands at its first line. */
static void walk_function(Places *s, PyObject *fn)
{
    fn = PyMethod_Check(fn) ? PyMethod_GET_FUNCTION(fn) : fn;
    if (PyFunction_Check(fn)) {
        places_add(s, (PyCodeObject *)Py_NewRef(PyFunction_GET_CODE(fn)), -1);
    }
}

/* What block() awaits on the thread of `g`, which waits for us: borrowed. `on`: it is on a thread. */
static PyObject *blocked_on(G *g, bool *on)
{
    PyObject *op = NULL;
    lock(&sched.lock); /* Ms are freed under it */
    M *m = atomic_load_explicit(&g->wired, memory_order_relaxed);
    *on = m != NULL && __atomic_load_n(&m->curg, __ATOMIC_RELAXED) == g;
    if (*on) {
        op = m->blocked_on;
    }
    unlock(&sched.lock);
    return op;
}

/* Whether it is on a thread, where look_at_threads() finds the rest. `since`: see core_look. */
static bool walk(Places *s, G *g, uint32_t *since)
{
    bool on = true;
    G *outer = scanning;
    if (!scan_begin(g)) {
        return g_state(g) != G_DEAD;
    }
    scanning = g;                  /* what a hook runs may want to look, too */
    if (g_state(g) == G_WAITING) { /* and does so until we have looked */
        *since = atomic_load_explicit(&g->stamp, memory_order_relaxed);
    }
    PyObject *op = blocked_on(g, &on);
    if (on) {
        if (op != NULL) {
            walk_awaits(s, op);
        }
    }
    else if (g->plain || g->put_off) {
        walk_function(s, g->plain ? PyTuple_GET_ITEM(g->coro, 0) : g->name);
    }
    else if (g->coro != NULL) {
        walk_awaits(s, g->coro);
    }
    scanning = outer;
    scan_end(g);
    return on;
}

/* look(g, known) -> (state, wait reason, since, locked, key of its stack, on a thread, key of its creation). Of the
 * caller's own goroutine the stack is that of the caller. `since`: when it began to wait, in seconds of the monotonic
 * clock; 0 if it does not. */
static PyObject *core_look(PyObject *Py_UNUSED(mod), PyObject *args)
{
    G *g;
    PyObject *known;
    if (!PyArg_ParseTuple(args, "O!O!", &Goroutine_Type, &g, &PyDict_Type, &known)) {
        return NULL;
    }
    Places stack = {0}, site = {0};
    uint32_t since = 0;
    PyObject *state = PyObject_GetAttrString((PyObject *)g, "state");
    PyObject *reason = PyObject_GetAttrString((PyObject *)g, "wait_reason");
    M *m = tls_m;
    bool on = false;
    if (m != NULL && m->curg == g) {
        walk_own(&stack, m, g);
    }
    else {
        on = walk(&stack, g, &since);
    }
    if (g->site_code != NULL) {
        places_add(&site, (PyCodeObject *)Py_NewRef((PyObject *)g->site_code), g->site_lasti);
    }
    PyObject *key = places_key(&stack, known);
    PyObject *site_key = key != NULL ? places_key(&site, known) : NULL;
    places_clear(&site);
    return Py_BuildValue("(NNINNNN)", state, reason, (unsigned)since, PyBool_FromLong(g->locks > 0),
                         key, PyBool_FromLong(on), site_key);
}

PyMethodDef dump_methods[] = {
    {"look", core_look, METH_VARARGS, NULL},
    {"look_at_threads", core_look_at_threads, METH_O, NULL},
    {NULL},
};
