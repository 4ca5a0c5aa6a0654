/* G and its Python face, the Goroutine handle: birth, end, cancellation, leaks.
 *
 * Who owns a G: the run queue it is in, the M that runs it, the wait record it waits with, and whoever
 * holds the handle. `allgs` owns nothing. So a goroutine that only its own cycle can reach can never
 * run again, the collector finds it, and g_finalize reports it. */
#include "trace.h"

#include <structmember.h>

static const char *const wait_reasons[] = {
    [WAIT_NONE] = "",
    [WAIT_SLEEP] = "sleep",
    [WAIT_JOIN] = "goroutine wait",
    [WAIT_SEND] = "chan send",
    [WAIT_RECV] = "chan receive",
    [WAIT_SELECT] = "select",
    [WAIT_NO_CASES] = "select (no cases)",
    [WAIT_MUTEX] = "sync.Mutex.Lock",
    [WAIT_RW_LOCK] = "sync.RWMutex.Lock",
    [WAIT_RW_RLOCK] = "sync.RWMutex.RLock",
    [WAIT_GROUP] = "sync.WaitGroup.Wait",
    [WAIT_COND] = "sync.Cond.Wait",
    [WAIT_SEMA] = "semacquire",
    [WAIT_IO] = "IO wait",
    [WAIT_FUTURE] = "future wait",
};

const char *wait_reason_text(unsigned why)
{
    return why < sizeof wait_reasons / sizeof *wait_reasons ? wait_reasons[why] : NULL;
}

/* ---- allocation ---- */

static bool is_plain(int kind) /* of no interest to the collector */
{
    return kind == FREE_SLEEP || kind == FREE_IO;
}

void *object_new_slow(M *m, int kind, PyTypeObject *type)
{
    PyObject *op = is_plain(kind) ? _PyObject_New(type) : _PyObject_GC_New(type);
    if (op != NULL) {
        live_add(m, kind == FREE_G ? LIVE_G : LIVE_OP, 1);
    }
    return op;
}

void object_free_slow(M *m, int kind, PyObject *op)
{
    live_add(m, kind == FREE_G ? LIVE_G : LIVE_OP, -1);
    if (is_plain(kind)) {
        PyObject_Free(op);
    }
    else {
        PyObject_GC_Del(op);
    }
}

void free_lists_clear(M *m)
{
    for (int kind = 0; kind < FREE_KINDS; kind++) {
        Py_XDECREF(spare_take(m, kind));
        for (PyObject *op; (op = m->free[kind].head) != NULL;) {
            m->free[kind].head = *free_link(op);
            count_add(&m->free[kind].count, -1);
            object_free_slow(m, kind, op);
        }
    }
}

/* Who has the GIL may touch what is another M's: operations are made and dropped under it. */
void spares_clear(void)
{
    special_clear(atomic_load(&sched.running) == RUN_ON);
    for (PyObject *op = NULL;;
         Py_DECREF(op)) { /* without the lock: the last one. spare_take drops others' only */
        op = NULL;
        lock(&sched.lock);
        for (M *m = NULL; HAVE_GIL && op == NULL && (m = m_after(m)) != NULL;) {
            for (int kind = 0; op == NULL && kind < FREE_KINDS; kind++) {
                op = spare_take(m, kind);
            }
        }
        unlock(&sched.lock);
        if (op == NULL) {
            return;
        }
    }
}

/* ---- allgs ---- */

static AllgShard *g_shard(G *g)
{
    return &sched.allgs[g->id % ALLG_SHARDS];
}

static void allgs_add(G *g)
{
    AllgShard *s = g_shard(g);
    spin_lock(&s->lock);
    g->all_prev = NULL;
    g->all_next = s->head;
    if (s->head != NULL) {
        s->head->all_prev = g;
    }
    s->head = g;
    spin_unlock(&s->lock);
}

/* At dealloc, not at death: that is often on another core than the birth. */
static void allgs_remove(G *g)
{
    AllgShard *s = g_shard(g);
    spin_lock(&s->lock);
    if (g->all_prev != NULL) {
        g->all_prev->all_next = g->all_next;
    }
    else {
        s->head = g->all_next;
    }
    if (g->all_next != NULL) {
        g->all_next->all_prev = g->all_prev;
    }
    spin_unlock(&s->lock);
}

M *own_m(void)
{
    M *m = tls_m;
    bool orphan = m != NULL && atomic_load_explicit(&m->user, memory_order_relaxed) == USER_ORPHAN;
    return unlikely(orphan) ? NULL : m;
}

/* On a thread that is no M, the run whose goroutine it was may be over (it was aborted). */
static void count_ended(M *m, const G *g)
{
    if (likely(m != NULL)) {
        count_add(&m->gended, 1);
        return;
    }
    lock(&sched.lock);
    if (g->run == sched.run) {
        atomic_fetch_add(&sched.gended, 1);
    }
    unlock(&sched.lock);
}

/* sched.lock. Ends first, then births: what is born and ends meanwhile makes it too high, never too low. And an M
 * counts an end, fences (here) and adds up, so of several that end at once the last sees them all. */
int64_t g_alive_locked(void)
{
    atomic_thread_fence(memory_order_seq_cst);
    int64_t n = -atomic_load(&sched.gended);
    n -= sched.m0 != NULL ? atomic_load(&sched.m0->gended) : 0;
    for (M *m = sched.allm; m != NULL; m = m->all_next) {
        n -= atomic_load(&m->gended);
    }
    n += atomic_load(&sched.gbegun);
    n += sched.m0 != NULL ? atomic_load(&sched.m0->gbegun) : 0;
    for (M *m = sched.allm; m != NULL; m = m->all_next) {
        n += atomic_load(&m->gbegun);
    }
    return n;
}

int64_t g_alive(void)
{
    lock(&sched.lock);
    int64_t n = g_alive_locked();
    unlock(&sched.lock);
    return n;
}

void g_count_fold(M *m)
{
    atomic_fetch_add(&sched.gbegun, atomic_exchange(&m->gbegun, 0));
    atomic_fetch_add(&sched.gended, atomic_exchange(&m->gended, 0));
}

G **allgs_snapshot(Py_ssize_t *n)
{
    size_t cap = 64;
    G **all = malloc(cap * sizeof(G *));
    *n = 0;
    for (int i = 0; i < ALLG_SHARDS && all != NULL; i++) {
        AllgShard *s = &sched.allgs[i];
        Py_ssize_t before = *n;
        spin_lock(&s->lock);
        for (G *g = s->head; g != NULL; g = g->all_next) {
            if (g_state(g) == G_DEAD || compat_is_garbage((PyObject *)g) ||
                !compat_try_incref((PyObject *)g)) {
                continue; /* too late for it */
            }
            all[(*n)++] = g;
            if ((size_t)*n == cap) { /* grow without the lock, and look at this shard again */
                break;
            }
        }
        spin_unlock(&s->lock);
        if ((size_t)*n < cap) {
            continue;
        }
        while (*n > before) {
            Py_DECREF(all[--*n]);
        }
        i--;
        cap *= 2;
        G **more = realloc(all, cap * sizeof(G *));
        if (more == NULL) {
            while (*n > 0) {
                Py_DECREF(all[--*n]);
            }
            free(all);
        }
        all = more;
    }
    return all;
}

/* ---- birth ---- */

/* Coroutine objects passed to go(), by address. Two goroutines on one coroutine would run one frame on
 * two threads at once, which free-threaded CPython does not survive. */
static PyObject *claimed;

bool claims_init(void)
{
    return claimed != NULL || (claimed = PyDict_New()) != NULL;
}

static bool claim(G *g)
{
    PyObject *key = PyLong_FromVoidPtr(g->coro);
    PyObject *mine = PyLong_FromUnsignedLongLong(g->id);
    PyObject *owner = NULL;
    if (key != NULL && mine != NULL) {
#if PY_VERSION_HEX >= 0x030D0000
        PyDict_SetDefaultRef(claimed, key, mine, &owner);
#else
        owner = Py_XNewRef(PyDict_SetDefault(claimed, key, mine));
#endif
    }
    if (owner == mine) {
        g->claimed = 1;
    }
    else if (owner != NULL) {
        PyErr_Format(PyExc_RuntimeError, "%R already runs as goroutine %S", g->coro, owner);
    }
    Py_XDECREF(key);
    Py_XDECREF(mine);
    Py_XDECREF(owner);
    return g->claimed;
}

static void g_unclaim(G *g)
{
    PyObject *key = PyLong_FromVoidPtr(g->coro);
    if (key == NULL || PyDict_DelItem(claimed, key) < 0) {
        PyErr_WriteUnraisable((PyObject *)g);
    }
    Py_XDECREF(key);
    g->claimed = 0;
}

static uint64_t next_id(M *m)
{
    if (m->id_next == m->id_end) {
        m->id_next = atomic_fetch_add(&sched.next_id, ID_BLOCK);
        m->id_end = m->id_next + ID_BLOCK;
    }
    return m->id_next++;
}

/* Of a coroutine or a function. */
static PyObject *name_of(PyObject *obj)
{
    PyObject *name = PyObject_GetAttrString(obj, "__qualname__"), *inner = NULL;
    if (name != NULL) {
        return name;
    }
    PyErr_Clear(); /* a coroutine of another implementation, or no plain function */
    inner = PyObject_GetAttrString(obj, "func"); /* functools.partial */
    name = inner != NULL ? PyObject_GetAttrString(inner, "__qualname__") : NULL;
    Py_XDECREF(inner);
    if (name != NULL && PyUnicode_Check(name)) {
        return name;
    }
    Py_XDECREF(name);
    PyErr_Clear();
    return PyUnicode_FromString(Py_TYPE(obj)->tp_name);
}

static _Thread_local bool go_for_caller, go_begins;

/* Whether it runs code of this package. */
bool frame_is_ours(PyFrameObject *frame)
{
    PyObject *globals = PyFrame_GetGlobals(frame);
    PyObject *name = PyDict_GetItemString(globals, "__name__");
    bool ours = name != NULL && PyUnicode_Check(name) &&
                PyUnicode_CompareWithASCIIString(name, "gofer.") > 0 &&
                PyUnicode_CompareWithASCIIString(name, "gofer/") < 0; /* gofer.anything */
    Py_DECREF(globals);
    return ours;
}

/* Where the user's code stands that called the function of ours that called us: a new reference, or NULL. */
static PyCodeObject *caller_outside(int32_t *lasti)
{
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL && frame_is_ours(frame)) {
        Py_SETREF(frame, PyFrame_GetBack(frame));
    }
    PyCodeObject *code = frame != NULL ? PyFrame_GetCode(frame) : NULL;
    *lasti = frame != NULL ? PyFrame_GetLasti(frame) : 0;
    Py_XDECREF(frame);
    return code;
}

/* `asked`: what was noted when it was asked for, if that was earlier than now. */
static G *g_make(M *m, PyObject *coro, PyObject *name, int put_off, bool plain, bool late,
                 const Callback *asked)
{
    PyObject *context = NULL;
    PyThreadState *ts = m != NULL ? m->ts : PyThreadState_Get();
    PyObject *current = asked != NULL ? asked->context : compat_current_context(ts);
    /* An empty context is not copied: see execute(). */
    if (current != NULL && PyObject_Size(current) > 0 &&
        (context = PyContext_Copy(current)) == NULL) {
        Py_DECREF(coro);
        return NULL;
    }
    name = name != NULL ? Py_NewRef(name) : name_of(coro);
    if (name == NULL) {
        Py_DECREF(coro);
        Py_XDECREF(context);
        return NULL;
    }
    G *g = object_new(m, FREE_G, &Goroutine_Type);
    if (g == NULL) {
        Py_DECREF(coro);
        Py_DECREF(name);
        Py_XDECREF(context);
        return NULL;
    }
    memset((char *)g + sizeof(PyObject), 0, sizeof(G) - sizeof(PyObject));
    G *parent = asked == NULL && m != NULL ? m->curg : NULL;
    g->parent_id = asked != NULL ? asked->parent_id : parent != NULL ? parent->id : 0;
    g->coro = coro;
    g->name = name; /* never changes: anybody may read it */
    g->context = context;
    g->put_off = put_off & 3;
    g->plain = plain;
    g->late = late;
    if (unlikely(asked != NULL)) {
        g->site_code = (PyCodeObject *)Py_XNewRef((PyObject *)asked->site_code);
        g->site_lasti = asked->site_lasti;
    }
    else if (unlikely(go_for_caller)) {
        g->site_code = caller_outside(&g->site_lasti);
        g->begins = go_begins;
    }
    else {
        g->site_code = compat_caller(ts, &g->site_lasti);
    }
    Py_INCREF(g);                    /* one reference for the caller, one for the run queue */
    compat_share_new((PyObject *)g); /* always: compat_try_incref counts on it */
    compat_track((PyObject *)g);
    /* Before others can find it: they may leave marks in the word from then on. */
    atomic_store_explicit(&g->state, G_RUNNABLE, memory_order_relaxed);
    if (unlikely(m == NULL)) {
        g->foreign = 1; /* until it is let in */
        return g;
    }
    g->id = next_id(m);
    g->run = sched.run;
    allgs_add(g);
    count_add(&m->gbegun, 1);
    if (parent != NULL && unlikely(parent->bind != NULL)) {
        bind_inherit(g, parent); /* may mark it, at once or from another thread: so it comes last */
    }
    return g;
}

G *g_new(M *m, PyObject *coro, PyObject *name, int put_off, bool plain, bool late)
{
    return g_make(m, coro, name, put_off, plain, late, NULL);
}

/* A thread that is no M may be anywhere in go() when the run ends and the next one begins. Being counted, being
 * found by those who look and being sure of the run are one step for it. */
static bool let_in_foreign(G *g)
{
    lock(&sched.lock);
    bool ok = atomic_load(&sched.running) == RUN_ON && !atomic_load(&sched.exiting);
    if (ok) {
        g->id = atomic_fetch_add(&sched.next_id, 1);
        allgs_add(g);
        if (!g->late && atomic_load(&sched.draining)) {
            allgs_remove(g);
            ok = false;
        }
    }
    if (ok) {
        g->foreign = 0;
        g->run = sched.run;
        atomic_fetch_add(&sched.gbegun, 1);
    }
    unlock(&sched.lock);
    return ok;
}

bool g_let_in(G *g)
{
    if (unlikely(g->foreign)) {
        return let_in_foreign(g);
    }
    /* It is in allgs, so either we see here that main has ended, or main's end sees it there. */
    return g->late || likely(!atomic_load(&sched.draining));
}

void g_let_in_main(G *g)
{
    lock(&sched.lock);
    g->id = 1; /* whatever threads of the last run's do now */
    g->foreign = 0;
    g->run = sched.run;
    allgs_add(g);
    atomic_fetch_add(&sched.gbegun, 1);
    unlock(&sched.lock);
}

void g_discard(G *g)
{
    bool counted = !g->foreign;
    if (g->claimed) {
        g_unclaim(g);
    }
    bind_drop_all(g);
    atomic_fetch_and(&g->state, ~(uint32_t)G_STATE); /* G_IDLE: no leak report */
    if (counted) {
        count_ended(own_m(), g);
    }
    Py_DECREF(g);
    Py_DECREF(g);
    if (counted && atomic_load(&sched.counting)) {
        some_g_ended();
    }
}

/* 1: calling `fn` makes a coroutine. 0: it is plain. -1 with an exception: it cannot be run. */
static int is_async(PyObject *fn)
{
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError, "go() needs a function or a coroutine object, not %R", fn);
        return -1;
    }
    if (!PyFunction_Check(fn)) {
        PyObject *answer = PyObject_CallOneArg(hooks.is_async, fn);
        int async = answer == NULL ? -1 : answer == Py_True;
        Py_XDECREF(answer);
        return async;
    }
    int flags = ((PyCodeObject *)PyFunction_GET_CODE(fn))->co_flags;
    if (flags & (CO_COROUTINE | CO_ITERABLE_COROUTINE)) {
        return 1;
    }
    if (flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)) {
        PyErr_Format(PyExc_TypeError,
                     "go() cannot run the generator function %R: iterate over it in one", fn);
        return -1;
    }
    return 0;
}

/* What a plain goroutine keeps until it calls its function: (fn, args, kwargs or None). */
static PyObject *keep_call(PyObject *fn, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *kwargs = kwnames != NULL ? PyDict_New() : Py_NewRef(Py_None);
    PyObject *tuple = PyTuple_New(nargs);
    bool ok = kwargs != NULL && tuple != NULL;
    for (Py_ssize_t i = 0; ok && i < nargs; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
    }
    for (Py_ssize_t i = 0; ok && kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        ok = PyDict_SetItem(kwargs, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) == 0;
    }
    PyObject *call = ok ? PyTuple_Pack(3, fn, tuple, kwargs) : NULL;
    Py_XDECREF(kwargs);
    Py_XDECREF(tuple);
    return call;
}

/* Its coroutine has returned a function: a plain goroutine from here on, which runs that. */
GEnd g_become_plain(G *g, PyObject **value)
{
    PyObject *call = keep_call(*value, NULL, 0, NULL);
    Py_DECREF(*value);
    if (call == NULL) {
        *value = compat_take_exception();
        return END_ERROR;
    }
    *value = NULL;
    if (sharing()) {
        compat_share_new(call);
    }
    Py_SETREF(g->coro, call);
    __atomic_store_n(&g->plain, true, __ATOMIC_RELAXED); /* stack() may ask whether it is */
    g->becomes = 0;
    atomic_store_explicit(&g->wait_reason, WAIT_NONE, memory_order_relaxed);
    return END_NONE;
}

/* The result of its function. If that is a coroutine or an operation (of `lambda: fetch(url)`, or `ch.send`), it
 * is awaited here too. */
PyObject *g_call_plain(G *g)
{
    PyObject *kwargs = PyTuple_GET_ITEM(g->coro, 2);
    PyObject *result = PyObject_Call(PyTuple_GET_ITEM(g->coro, 0), PyTuple_GET_ITEM(g->coro, 1),
                                     kwargs != Py_None ? kwargs : NULL);
    bool more = result != NULL &&
                (PyCoro_CheckExact(result) || PyObject_TypeCheck(result, &Operation_Type));
    return more ? block_plain(tls_m, result) : result;
}

/* With several Ps it is often another M that runs a new goroutine. So the call of `fn` is put off until
 * then: that M makes, uses and frees the coroutine, and no cache line of it changes hands. Until then
 * g->coro holds the arguments, and g->name is `fn` (and stays it, so that the thread that counted it
 * up is mostly the one that counts it down).
 * Only where it is certain that the call will succeed, and a handle that is kept keeps nothing large alive. */
static bool may_put_off(PyObject *fn, Py_ssize_t nargs, Py_ssize_t nkw, PyObject *name)
{
    if (!sharing() || !PyFunction_Check(fn) || nkw > 0 || name != NULL ||
        PyFunction_GET_CLOSURE(fn) != NULL) {
        return false;
    }
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(fn);
    PyObject *defaults = PyFunction_GET_DEFAULTS(fn);
    Py_ssize_t optional = defaults != NULL ? PyTuple_GET_SIZE(defaults) : 0;
    return (code->co_flags & (CO_COROUTINE | CO_VARARGS | CO_VARKEYWORDS)) == CO_COROUTINE &&
           code->co_kwonlyargcount == 0 && nargs <= code->co_argcount &&
           nargs >= code->co_argcount - optional;
}

/* What g->coro is until then: one argument itself, or a tuple of them. */
static PyObject *keep_args(PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs == 1) {
        return Py_NewRef(args[0]);
    }
    PyObject *tuple = PyTuple_New(nargs);
    for (Py_ssize_t i = 0; tuple != NULL && i < nargs; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
    }
    if (tuple != NULL && nargs > 0) {
        compat_share_new(tuple);
    }
    return tuple;
}

/* Make the call that was put off. False with an exception. */
bool g_make_coro(G *g)
{
    PyObject *args = g->coro;
    PyObject *const *items = g->put_off == PUT_OFF_ONE ? &args : &PyTuple_GET_ITEM(args, 0);
    Py_ssize_t n = g->put_off == PUT_OFF_ONE ? 1 : PyTuple_GET_SIZE(args);
    g->put_off = 0;
    g->coro = PyObject_Vectorcall(g->name, items, (size_t)n, NULL);
    Py_DECREF(args);
    return g->coro != NULL;
}

/* 1 if `obj` is a coroutine (or awaitable generator) object, 0 if not, -1 with an exception. */
static int is_coroutine(PyObject *obj)
{
    if (PyCoro_CheckExact(obj)) {
        return 1;
    }
    PyObject *answer = PyObject_CallOneArg(hooks.is_coroutine, obj);
    int yes = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    return yes;
}

/* A coroutine that has begun belongs to whoever resumes it. */
static bool check_fresh(PyObject *coro)
{
    const char *what = NULL;
    PyObject *frame =
        PyObject_GetAttrString(coro, PyCoro_CheckExact(coro) ? "cr_frame" : "gi_frame");
    if (frame == NULL) {
        PyErr_Clear(); /* a coroutine of another implementation: it will say so itself */
        return true;
    }
    if (frame == Py_None) {
        what = "has already finished";
    }
    else if (PyFrame_GetLasti((PyFrameObject *)frame) > 0 && PyCoro_CheckExact(coro)) {
        PyObject *suspended = PyObject_GetAttrString(coro, "cr_suspended");
        PyObject *running = PyObject_GetAttrString(coro, "cr_running");
        if (suspended == Py_True || running == Py_True) {
            what = "is already running";
        }
        Py_XDECREF(suspended);
        Py_XDECREF(running);
        PyErr_Clear();
    }
    Py_DECREF(frame);
    if (what != NULL) {
        PyErr_Format(PyExc_RuntimeError, "cannot start %R as a goroutine: it %s", coro, what);
    }
    return what == NULL;
}

/* Main has ended, so go() refuses. A goroutine that has not been told so yet (main_ended may not have come to it,
 * or it has not awaited since) is told here: it did nothing wrong. Sets an exception. */
static void refuse_go(M *m)
{
    G *g = m != NULL ? m->curg : NULL;
    if (g != NULL) {
        g_lock(g);
        if (!g->drained && !g->late) {
            g->drained = true;
            atomic_fetch_or(&g->state, G_CANCEL);
        }
        g_unlock(g);
        if (op_raise_if_cancelled(g)) {
            return;
        }
    }
    PyErr_SetString(PyExc_RuntimeError,
                    "go() after the main goroutine has ended: the runtime is stopping");
}

/* go(fn, *args, name=None, **kwargs). Takes `name` out of the keywords; the rest goes to fn. */
PyObject *core_go(PyObject *Py_UNUSED(mod), PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    bool for_caller = go_for_caller, begins = go_begins;
    go_for_caller = go_begins = false; /* not for what the calls below may start */
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "go() needs a function or a coroutine object");
        return NULL;
    }
    if (check_forked()) {
        return NULL;
    }
    M *m = own_m();
    if (unlikely(m != tls_m)) {
        error_orphan("go()"); /* there may be another runtime by now: it is not this thread's */
        return NULL;
    }
    if (atomic_load(&sched.running) != RUN_ON) {
        PyErr_SetString(PyExc_RuntimeError,
                        "go() needs a running runtime: call it inside gofer.run(main)");
        return NULL;
    }
    if (atomic_load(&sched.draining)) {
        refuse_go(m);
        return NULL;
    }
    PyObject *fn = args[0], *name = NULL, *coro = NULL;
    bool later = false; /* the call of fn is put off */
    bool plain = false;
    PyObject *rest = kwnames;          /* borrowed unless `name` was taken out */
    PyObject *small[16], **buf = NULL; /* args without `name` */
    Py_ssize_t nkw = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t i = 0; i < nkw; i++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "name") != 0) {
            continue;
        }
        name = args[nargs + i];
        if (name != Py_None && !PyUnicode_Check(name)) {
            PyErr_Format(PyExc_TypeError, "the name of a goroutine must be a str, not %R", name);
            return NULL;
        }
        name = name == Py_None ? NULL : name;
        Py_ssize_t total = nargs + nkw;
        buf = total <= 16 ? small : PyMem_Malloc((size_t)total * sizeof(PyObject *));
        PyObject *before = PyTuple_GetSlice(kwnames, 0, i);
        PyObject *after = PyTuple_GetSlice(kwnames, i + 1, nkw);
        rest = before && after ? PySequence_Concat(before, after) : NULL;
        Py_XDECREF(before);
        Py_XDECREF(after);
        if (buf == NULL || rest == NULL) {
            if (buf == NULL) {
                PyErr_NoMemory();
            }
            goto done;
        }
        memcpy(buf, args, (size_t)(nargs + i) * sizeof(PyObject *));
        memcpy(buf + nargs + i, args + nargs + i + 1, (size_t)(nkw - i - 1) * sizeof(PyObject *));
        args = buf;
        nkw--;
        break;
    }

    int given = PyFunction_Check(fn) ? 0 : is_coroutine(fn);
    if (given < 0) {
        goto done;
    }
    if (given) {
        if (nargs > 1 || nkw > 0) {
            PyErr_Format(PyExc_TypeError, "go(coroutine) takes no arguments: %R has its own", fn);
            goto done;
        }
        if (!check_fresh(fn)) {
            goto done;
        }
        coro = Py_NewRef(fn);
    }
    else {
        later = may_put_off(fn, nargs - 1, nkw, name);
        int async = later ? 1 : is_async(fn);
        if (async < 0) {
            goto done;
        }
        plain = !async;
        PyObject *kw = nkw > 0 ? rest : NULL;
        coro = later   ? keep_args(args + 1, nargs - 1)
               : plain ? keep_call(fn, args + 1, nargs - 1, kw)
                       : PyObject_Vectorcall(fn, args + 1, (size_t)(nargs - 1), kw);
        if (async && !later && coro != NULL && !PyCoro_CheckExact(coro) &&
            is_coroutine(coro) != 1) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_TypeError, "go() called %R, which returned %R, not a coroutine",
                             fn, coro);
            }
            Py_CLEAR(coro);
        }
        name = later ? fn : name;
        if (coro != NULL && sharing()) {
            if (!later) {
                compat_share_new(coro);
            }
            for (Py_ssize_t i = 1; i < nargs + nkw; i++) {
                compat_share(args[i]);
            }
        }
    }
done:
    if (rest != kwnames) {
        Py_XDECREF(rest);
    }
    if (buf != NULL && buf != small) {
        PyMem_Free(buf);
    }
    if (coro == NULL) {
        return NULL;
    }

    PyObject *own_name = NULL;
    if (name == NULL && PyFunction_Check(fn)) {
        name = ((PyFunctionObject *)fn)->func_qualname;
    }
    else if (name == NULL && plain) {
        name = own_name = name_of(fn);
    }
    int put_off = !later ? 0 : nargs == 2 ? PUT_OFF_ONE : PUT_OFF_TUPLE;
    go_for_caller = for_caller;
    go_begins = begins;
    G *g = g_new(m, coro, name, put_off, plain, false);
    go_for_caller = go_begins = false;
    Py_XDECREF(own_name);
    if (g == NULL) {
        return NULL;
    }
    if (unlikely(!g_let_in(g))) {
        PyObject *r = given || later || plain ? NULL : PyObject_CallMethod(coro, "close", NULL);
        Py_XDECREF(r); /* not "never awaited": closing what has not begun cannot fail */
        g_discard(g);
        refuse_go(m);
        return NULL;
    }
    if (given && !claim(g)) {
        g_discard(g);
        return NULL;
    }
    start_g(g, true); /* the run queue's reference; the other is the caller's */
    return (PyObject *)g;
}

/* go() on behalf of WaitGroup.go() and the like: created by whoever called that. */
PyObject *core_go_for(PyObject *mod, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    go_for_caller = true;
    return core_go(mod, args, nargs, kwnames);
}

/* The same for a function of ours around the caller's, which has to clean up: it always begins. */
PyObject *core_go_here(PyObject *mod, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    go_begins = true;
    return core_go_for(mod, args, nargs, kwnames);
}

/* ---- callbacks: goroutines asked for now and started later ---- */

bool callback_init(Callback *cb, PyObject *fn, PyObject *args)
{
    M *m = tls_m;
    PyThreadState *ts = m != NULL ? m->ts : PyThreadState_Get();
    PyObject *current = compat_current_context(ts);
    *cb = (Callback){0};
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError, "%R is not callable", fn);
        return false;
    }
    if (current != NULL && PyObject_Size(current) > 0 &&
        (cb->context = PyContext_Copy(current)) == NULL) {
        return false;
    }
    cb->fn = Py_NewRef(fn);
    cb->args = Py_NewRef(args);
    cb->site_code = caller_outside(&cb->site_lasti);
    cb->parent_id = m != NULL && m->curg != NULL ? m->curg->id : 0;
    return true;
}

void callback_start(Callback *cb)
{
    if (atomic_load(&sched.running) != RUN_ON || atomic_load(&sched.draining)) {
        return; /* as timers are that have not fired when main ends */
    }
    int async = is_async(cb->fn);
    PyObject *coro = async < 0 ? NULL
                     : async   ? PyObject_Call(cb->fn, cb->args, NULL)
                               : PyTuple_Pack(3, cb->fn, cb->args, Py_None);
    PyObject *name = coro != NULL ? name_of(cb->fn) : NULL;
    G *g = NULL;
    if (name != NULL) {
        g = g_make(own_m(), coro, name, 0, !async, false, cb); /* eats coro */
        Py_DECREF(name);
    }
    else {
        Py_XDECREF(coro);
    }
    if (g == NULL) {
        run_fail(compat_take_exception());
        return;
    }
    if (unlikely(!g_let_in(g))) { /* as in core_go */
        PyObject *r = async ? PyObject_CallMethod(g->coro, "close", NULL) : NULL;
        Py_XDECREF(r);
        g_discard(g);
        return;
    }
    start_g(g, false);
    Py_DECREF(g); /* nobody keeps the handle */
}

int callback_traverse(Callback *cb, visitproc visit, void *arg)
{
    Py_VISIT(cb->fn);
    Py_VISIT(cb->args);
    Py_VISIT(cb->context);
    return 0;
}

void callback_clear(Callback *cb)
{
    Py_CLEAR(cb->fn);
    Py_CLEAR(cb->args);
    Py_CLEAR(cb->context);
    Py_CLEAR(cb->site_code);
}

/* ---- end ---- */

void g_finish(M *m, G *g, GEnd end, PyObject *value)
{
    g_lock(g);
    PyObject *reason = g->value;
    g->end = (uint8_t)end;
    g->value = value;
    count_ended(m, g); /* first: who sees it dead does not find it in num_goroutine() any more */
    JoinOp *waiters = join_take_all(g);
    /* Unlocks too. A mark that somebody leaves meanwhile may be lost: it is dead. */
    atomic_store_explicit(&g->state, G_DEAD, memory_order_release);
    if (reason != NULL) { /* of a cancellation that came too late */
        drop_later(m, reason);
    }
    /* A goroutine that was handed its slice hands it back; one that came through the queue sends its
     * joiner through the queue, or `for g in gs: await g` would switch twice for every g. */
    /* Failed, and nobody can take its exception any more: the run is about to fail. */
    bool untaken = unlikely(end == END_ERROR) && Py_REFCNT(g) == 1;
    if (!untaken || !join_void_all(m, waiters)) {
        join_fire_all(m, waiters, m->inherited);
    }
    trace_end(g, end);
}

/* What belongs to the goroutine alone (its contexts, for example) its thread lets go of, when it comes back. */
void g_abandon(M *m, G *g, PyObject *exc)
{
    g_lock(g);
    g->end = END_CANCELLED;
    PyObject *reason = g->value;
    g->value = exc;
    JoinOp *waiters = join_take_all(g);
    atomic_fetch_add(&sched.gended, 1);
    trace_end(g, END_CANCELLED);
    atomic_store_explicit(&g->state, G_DEAD | G_CANCEL, memory_order_release);
    join_fire_all(m, waiters, false);
    Py_XDECREF(reason);
}

/* The coroutine has ended; before g_finish, since it calls into Python. */
void g_drop_coro(G *g)
{
    if (g->claimed) {
        g_unclaim(g);
    }
    if (g->bind != NULL) {
        bind_drop_all(g);
    }
    Py_CLEAR(g->context);
    Py_CLEAR(g->coro);
}

PyObject *g_result(G *g)
{
    switch (g->end) {
    case END_RESULT:
        return Py_NewRef(g->value);
    case END_GOEXIT:
        Py_RETURN_NONE;
    case END_LEAKED:
        PyErr_SetNone(hooks.Cancelled);
        return NULL;
    default:
        atomic_store_explicit(&g->taken, 1, memory_order_relaxed);
        compat_raise(Py_NewRef(g->value));
        return NULL;
    }
}

static bool cancel(G *g, PyObject *reason, bool drain)
{
    g_lock(g);
    bool dead = g_state(g) == G_DEAD;
    if (dead || (drain && g->drained)) {
        g_unlock(g);
        return !dead;
    }
    g->drained |= drain;
    if (reason != NULL && reason != Py_None && g->value == NULL) { /* the first one pending wins */
        g->value = Py_NewRef(reason);
    }
    /* The mark first, then the wake-up: both change the same word, so whatever state we find it in,
     * the goroutine looks at the mark after it leaves that state. */
    atomic_fetch_or(&g->state, G_CANCEL);
    g_unlock(g);
    ready_from_user(g, true);
    return true;
}

/* True: it will see Cancelled. False: it is dead. */
bool g_cancel(G *g, PyObject *reason)
{
    return cancel(g, reason, false);
}

void g_drain(G *g)
{
    cancel(g, NULL, true);
}

/* ---- looking at a suspended coroutine from outside ---- */

_Thread_local G *scanning;

bool g_scanning(void)
{
    return scanning != NULL;
}

bool scan_begin(G *g)
{
    for (;;) {
        uint32_t s = atomic_load(&g->state);
        if ((s & G_SCAN) && scanning != NULL) {
            return false; /* perhaps ourselves, and this is a handler that ran meanwhile */
        }
        if (s & G_SCAN) { /* somebody else looks: give way */
            Py_BEGIN_ALLOW_THREADS
            sched_yield();
            Py_END_ALLOW_THREADS
            continue;
        }
        bool wanted = (s & G_STATE) == G_RUNNABLE && (s & G_NOTIFIED); /* see give_way_to_scan */
        if (wanted || ((s & G_STATE) != G_WAITING && (s & G_STATE) != G_RUNNABLE)) {
            return false;
        }
        if (atomic_compare_exchange_strong(&g->state, &s, s | G_SCAN)) {
            return true;
        }
    }
}

/* The same duty as an M that parks a goroutine: a wake-up that came meanwhile is ours to carry out. */
void scan_end(G *g)
{
    uint32_t s = atomic_fetch_and(&g->state, ~(uint32_t)G_SCAN);
    if ((s & G_STATE) == G_WAITING && (s & G_NOTIFIED)) {
        ready_from_user(g, true);
    }
}

/* ---- the collector's side ---- */

static int g_traverse(PyObject *self, visitproc visit, void *arg)
{
    G *g = (G *)self;
    Py_VISIT(g->coro);
    Py_VISIT(g->name);
    Py_VISIT(g->value);
    Py_VISIT(g->context);
    int r = bind_traverse(g, visit, arg);
    if (r != 0) {
        return r;
    }
    JoinOp *op = g->waiters;
    if (op != NULL) {
        do {
            Py_VISIT(op);
            op = op->next;
        } while (op != g->waiters);
    }
    return 0;
}

static int g_clear(PyObject *self)
{
    G *g = (G *)self;
    JoinOp *op = NULL;
    if (g->waiters != NULL) {
        g_lock(g);
        op = join_take_all(g);
        g_unlock(g);
    }
    join_drop_all(op);
    Py_CLEAR(g->value);
    Py_CLEAR(g->context);
    Py_CLEAR(g->coro);
    return 0;
}

/* That is: the collector closes it at this moment, and its finally block let go of the goroutine. */
static bool is_running(PyObject *coro)
{
    PyObject *running =
        PyObject_GetAttrString(coro, PyCoro_CheckExact(coro) ? "cr_running" : "gi_running");
    if (running == NULL) {
        PyErr_Clear(); /* a coroutine of another implementation */
    }
    Py_XDECREF(running);
    return running == Py_True;
}

/* Nothing can ever wake it: report it, run its finally blocks, let go of it. The collector may have
 * closed the coroutines of the cycle already (it calls finalizers in no particular order). */
static void g_leaked(G *g)
{
    /* Nobody can get at it any more, not even through allgs (compat_is_garbage). */
    g->end = END_LEAKED;
    trace_end(g, END_LEAKED);
    atomic_store(&g->state, G_DEAD);
    int reason = atomic_load_explicit(&g->wait_reason, memory_order_relaxed);
    PyObject *name = g_name(g);
    PyObject *site = g_created_at(g);
    if (name != NULL && site != NULL) {
        PyObject *r = PyObject_CallFunction(hooks.warn_leak, "KOsO", (unsigned long long)g->id,
                                            name, wait_reasons[reason], site);
        Py_XDECREF(r);
    }
    Py_XDECREF(name);
    Py_XDECREF(site);
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable((PyObject *)g); /* -W error: the warning as an exception */
    }
    /* Its clean-up runs here, in the middle of somebody else's slice: it must not await in his name. */
    M *m = tls_m;
    G *current = m != NULL ? m->curg : NULL;
    /* Nor hear of the end of the run in his place. (USER_NONE: he is about to park. Only he leaves that.) */
    bool user = current != NULL && atomic_load(&m->user) != USER_NONE && user_leave(m);
    if (m != NULL) {
        __atomic_store_n(&m->curg, NULL, __ATOMIC_RELAXED);
    }
    PyObject *r =
        is_running(g->coro) ? Py_NewRef(Py_None) : PyObject_CallMethod(g->coro, "close", NULL);
    if (m != NULL) {
        __atomic_store_n(&m->curg, current, __ATOMIC_RELAXED);
        if (user) {
            atomic_store(&m->user, USER_RUNS);
        }
    }
    if (r == NULL) {
        PyErr_WriteUnraisable(g->coro);
    }
    Py_XDECREF(r);
    g_drop_coro(g);
    count_ended(own_m(), g);
    join_leaked(g);
    if (atomic_load(&sched.counting)) {
        some_g_ended();
    }
}

/* Dropped with an exception that nobody has looked at: run() shall raise it. */
static void g_untaken(G *g)
{
    PyObject *exc = Py_NewRef(g->value);
    PyObject *name = g_name(g);
    PyObject *site = g_created_at(g);
    if (name != NULL && site != NULL) {
        PyObject *r = PyObject_CallFunction(hooks.note_failure, "OKOO", exc,
                                            (unsigned long long)g->id, name, site);
        Py_XDECREF(r);
    }
    Py_XDECREF(name);
    Py_XDECREF(site);
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(NULL);
    }
    run_fail(exc);
}

static void g_finalize(PyObject *self)
{
    G *g = (G *)self;
    g->finalized = 1;
    uint32_t state = g_state(g);
    bool untaken = state == G_DEAD && g->end == END_ERROR && !g->taken;
    if (!untaken && (state == G_DEAD || state == G_IDLE)) {
        return;
    }
    if (atomic_load(&sched.forked)) {
        return; /* the parent's: its locks may be held by threads that are not here */
    }
    PyObject *pending = compat_take_exception();
    if (untaken) {
        g->taken = 1;
        g_untaken(g);
    }
    else {
        g_leaked(g);
    }
    if (pending != NULL) {
        compat_raise(pending);
    }
}

static void g_dealloc(PyObject *self)
{
    G *g = (G *)self;
    uint32_t state = g_state(g);
    bool plain = state == G_IDLE || (state == G_DEAD && (g->end != END_ERROR || g->taken));
    if (!plain && PyObject_CallFinalizerFromDealloc(self) < 0) {
        return;
    }
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, g_dealloc) /* a result may be a handle, whose result is a handle ... */
        if (g->weakrefs != NULL)
    {
        PyObject_ClearWeakRefs(self);
    }
    if (!g->foreign) {
        allgs_remove(g);
    }
    g_clear(self);
    Py_CLEAR(g->name);
    Py_CLEAR(g->site_code);
    if (unlikely(g->finalized)) {
        object_free_slow(tls_m, FREE_G, self);
    }
    else {
        object_free(tls_m, FREE_G, self);
    }
    Py_TRASHCAN_END
}

/* ---- the Python face ---- */

/* A dead goroutine is its own operation: no wait record is needed. */
static PyObject *g_await(PyObject *self)
{
    return g_state((G *)self) == G_DEAD ? Py_NewRef(self) : join_new(self);
}

/* For `yield from g.__await__()`. */
static PyObject *g_iter(PyObject *self)
{
    if (g_state((G *)self) != G_DEAD) {
        PyErr_Format(PyExc_TypeError, "%R is not iterable: await it", self);
        return NULL;
    }
    return Py_NewRef(self);
}

static PySendResult g_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    G *g = (G *)self, *waiter = op_begin(tls_m, self, OP_NEW);
    *result = NULL;
    if (waiter == NULL || op_raise_if_cancelled(waiter)) {
        return PYGEN_ERROR;
    }
    if (g_state(g) != G_DEAD) {
        PyErr_Format(PyExc_TypeError, "%R is no iterator: await it", self);
        return PYGEN_ERROR;
    }
    *result = g_result(g);
    return *result != NULL ? PYGEN_RETURN : PYGEN_ERROR;
}

PyObject *g_name(G *g)
{
    return PyFunction_Check(g->name) ? PyObject_GetAttrString(g->name, "__qualname__")
                                     : Py_NewRef(g->name);
}

PyObject *g_created_at(G *g)
{
    if (g->site_code == NULL) {
        return PyUnicode_FromString("?:0");
    }
    return PyUnicode_FromFormat("%U:%d", g->site_code->co_filename,
                                PyCode_Addr2Line(g->site_code, g->site_lasti));
}

static PyObject *get_name(PyObject *self, void *Py_UNUSED(c))
{
    return g_name((G *)self);
}

static PyObject *get_created_at(PyObject *self, void *Py_UNUSED(c))
{
    return g_created_at((G *)self);
}

/* Has its thread, which runs user code without a P, stood still since the last look? Too short a time says nothing:
 * then as it was. */
static bool stands_still(M *m) /* sched.lock */
{
    int64_t now = nanotime(), cpu = clock_ns(m->cpu_clock);
    int64_t passed = now - atomic_load(&m->seen_ns), used = cpu - atomic_load(&m->seen_cpu_ns);
    if (passed > NS_PER_S / 1000) {
        atomic_store(&m->seen_ns, now);
        atomic_store(&m->seen_cpu_ns, cpu);
        uint8_t seen = SYSCALL_SEEN, none = SYSCALL_NONE; /* not SYSCALL_SAID */
        if (used * 10 < passed) {
            atomic_compare_exchange_strong(&m->in_syscall, &none, SYSCALL_SEEN);
        }
        else {
            atomic_compare_exchange_strong(&m->in_syscall, &seen, SYSCALL_NONE);
        }
    }
    return atomic_load(&m->in_syscall) != SYSCALL_NONE;
}

/* It said so, or its thread does not run. If that has its P still, sysmon knows. */
bool m_in_syscall(M *m)
{
    P *p = m != tls_m ? p_of(m) : NULL;
    if (m == tls_m) {
        return false;
    }
    uint32_t slices = p != NULL ? atomic_load_explicit(&p->slices, memory_order_relaxed) : 0;
    return p == NULL ? stands_still(m)
                     : slices % 2 == 1 &&
                           atomic_load_explicit(&p->blocked, memory_order_relaxed) == slices;
}

static bool in_syscall(G *g)
{
    lock(&sched.lock);
    M *m = m_of(g);
    bool found = m != NULL && m_in_syscall(m);
    unlock(&sched.lock);
    return found;
}

static const char *state_text(G *g)
{
    switch (g_state(g)) {
    case G_RUNNING:
        return in_syscall(g) ? "syscall" : "running";
    case G_WAITING:
        return "waiting";
    case G_DEAD:
        return "dead";
    default:
        return "runnable";
    }
}

static PyObject *get_state(PyObject *self, void *Py_UNUSED(c))
{
    return PyUnicode_FromString(state_text((G *)self));
}

static PyObject *get_wait_reason(PyObject *self, void *Py_UNUSED(c))
{
    G *g = (G *)self;
    if (g_state(g) != G_WAITING) {
        Py_RETURN_NONE;
    }
    return PyUnicode_FromString(
        wait_reasons[atomic_load_explicit(&g->wait_reason, memory_order_relaxed)]);
}

static PyObject *g_repr(PyObject *self)
{
    G *g = (G *)self;
    PyObject *name = g_name(g), *site = g_created_at(g), *r = NULL;
    if (name != NULL && site != NULL) {
        uint32_t state = g_state(g);
        /* by name: gcc takes an atomic that stands as an index for a plain one */
        int reason = atomic_load_explicit(&g->wait_reason, memory_order_relaxed);
        const char *how = state == G_WAITING        ? wait_reasons[reason]
                          : state != G_DEAD         ? ""
                          : g->end == END_ERROR     ? "failed"
                          : g->end == END_CANCELLED ? "cancelled"
                          : g->end == END_LEAKED    ? "leaked"
                                                    : "";
        r = PyUnicode_FromFormat("<Goroutine %llu %R %s%s%s%s, created at %U>",
                                 (unsigned long long)g->id, name, state_text(g), *how ? " (" : "",
                                 how, *how ? ")" : "", site);
    }
    Py_XDECREF(name);
    Py_XDECREF(site);
    return r;
}

static PyObject *g_done(PyObject *self, PyObject *Py_UNUSED(a))
{
    return PyBool_FromLong(g_state((G *)self) == G_DEAD);
}

static bool check_dead_g(G *g)
{
    if (g_state(g) == G_DEAD) {
        return true;
    }
    PyErr_Format(PyExc_RuntimeError, "goroutine %llu has not ended: await it first",
                 (unsigned long long)g->id);
    return false;
}

static PyObject *g_result_method(PyObject *self, PyObject *Py_UNUSED(a))
{
    return check_dead_g((G *)self) ? g_result((G *)self) : NULL;
}

static PyObject *g_exception(PyObject *self, PyObject *Py_UNUSED(a))
{
    G *g = (G *)self;
    if (!check_dead_g(g)) {
        return NULL;
    }
    if (g->end != END_ERROR && g->end != END_CANCELLED) {
        Py_RETURN_NONE;
    }
    atomic_store_explicit(&g->taken, 1, memory_order_relaxed);
    return Py_NewRef(g->value);
}

static PyObject *g_cancelled(PyObject *self, PyObject *Py_UNUSED(a))
{
    G *g = (G *)self;
    return PyBool_FromLong(g_state(g) == G_DEAD && g->end == END_CANCELLED);
}

static PyObject *g_cancel_method(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char reason_name[] = "reason", *names[] = {reason_name, NULL};
    PyObject *reason = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:cancel", names, &reason) || check_forked()) {
        return NULL;
    }
    return PyBool_FromLong(g_cancel((G *)self, reason));
}

static PyObject *g_stack(PyObject *self, PyObject *Py_UNUSED(a))
{
    G *g = (G *)self;
    M *m = tls_m;
    bool own = (m != NULL && m->curg == g) || scanning == g;
    bool scan = !own && scan_begin(g);
    G *outer = scanning;
    if (scan) {
        scanning = g;
    }
    /* A plain function, or one that waits for a P in the middle of its code, is on the stack of its thread. Of one
     * that runs meanwhile, those frames can be walked with the GIL only. */
    lock(&sched.lock); /* Ms are freed under it */
    M *on = m_of(g);
    bool walk = on != NULL && (g->plain || scan) && (own || scan || HAVE_GIL);
    unsigned long ident = walk ? on->ident : 0;
    unlock(&sched.lock);
    PyObject *what;
    if (walk) {
        PyObject *in = own || scan ? on->blocked_on : NULL; /* `on` waits for us */
        what = Py_BuildValue("(kO)", ident, in != NULL ? in : Py_None);
    }
    else if (g->plain) {
        what = Py_NewRef(scan ? PyTuple_GET_ITEM(g->coro, 0) : Py_None);
    }
    else {
        what = Py_NewRef(!own && !scan ? Py_None : g->put_off ? g->name : g->coro);
    }
    PyObject *r = what != NULL ? PyObject_CallOneArg(hooks.stack_of, what) : NULL;
    Py_XDECREF(what);
    if (scan) {
        scanning = outer;
        scan_end(g);
    }
    return r;
}

static PyMethodDef g_methods[] = {
    {"done", g_done, METH_NOARGS,
     "done()\n--\n\nWhether the goroutine has ended, in whatever way.\n\n>>> g.done()\nFalse"},
    {"result", g_result_method, METH_NOARGS,
     "result()\n--\n\nThe value it returned; raises what it raised. RuntimeError while it is "
     "alive.\n\n"
     ">>> g = go(pow, 2, 10)\n>>> await g\n1024\n>>> g.result()\n1024"},
    {"exception", g_exception, METH_NOARGS,
     "exception()\n--\n\nThe exception that ended it, or None. RuntimeError while it is alive.\n\n"
     ">>> g = go(int, 'x')\n>>> while not g.done():\n...     await gosched()\n"
     ">>> type(g.exception())\n<class 'ValueError'>"},
    {"cancel", (PyCFunction)(void (*)(void))g_cancel_method, METH_VARARGS | METH_KEYWORDS,
     "cancel(reason=None)\n--\n\nMake its current or next operation raise Cancelled(reason), "
     "once.\n"
     "False if it has ended.\n\n>>> g.cancel('too slow')\nTrue"},
    {"cancelled", g_cancelled, METH_NOARGS,
     "cancelled()\n--\n\nWhether it ended by letting Cancelled through.\n\n>>> "
     "g.cancelled()\nFalse"},
    {"stack", g_stack, METH_NOARGS,
     "stack()\n--\n\nWhere it stands: a traceback.StackSummary of its whole await chain, outermost "
     "first.\n"
     "Empty if it has ended, or runs (or is about to) on another thread.\n\n>>> "
     "text = ''.join(g.stack().format())"},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Goroutine[T]: typing only."},
    {NULL},
};

static PyMemberDef g_members[] = {
    {"id", T_ULONGLONG, offsetof(G, id), READONLY,
     "Its number: main is 1, none is used twice in a run."},
    {"parent_id", T_ULONGLONG, offsetof(G, parent_id), READONLY,
     "The id of the goroutine that started it; 0 for main and from a foreign thread."},
    {NULL},
};

static PyGetSetDef g_getset[] = {
    {"name", get_name, NULL, "The name given to go(), else the function's qualified name.", NULL},
    {"state", get_state, NULL, "\"runnable\", \"running\", \"waiting\", \"syscall\" or \"dead\".",
     NULL},
    {"wait_reason", get_wait_reason, NULL, "What it waits for, in Go's words; None if it does not.",
     NULL},
    {"created_at", get_created_at, NULL, "Where go() was called: file:line.", NULL},
    {NULL},
};

static PyAsyncMethods g_async = {.am_await = g_await, .am_send = g_send};

PyDoc_STRVAR(
    g_doc,
    "A goroutine: the handle that go() returns. Await it for its result or its exception.\n\n"
    "Nobody needs to keep it: the runtime owns every goroutine that can still run. If one fails\n"
    "and its handle is gone, or goes without the exception having been taken, run() raises it.\n\n"
    ">>> g = go(fetch, url)\n>>> page = await g");

PyTypeObject Goroutine_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.Goroutine",
    .tp_basicsize = sizeof(G),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = g_doc,
    .tp_dealloc = g_dealloc,
    .tp_finalize = g_finalize,
    .tp_traverse = g_traverse,
    .tp_clear = g_clear,
    .tp_weaklistoffset = offsetof(G, weakrefs),
    .tp_repr = g_repr,
    .tp_as_async = &g_async,
    .tp_iter = g_iter,
    .tp_iternext = op_iternext,
    .tp_methods = g_methods,
    .tp_members = g_members,
    .tp_getset = g_getset,
};
