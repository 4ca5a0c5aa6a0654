/* block(): an operation awaited by a thread that is in no goroutine.
 *
 * A G stands for the thread (`foreign`). The operation sees it as it sees any other: its wait record
 * holds it, a waker changes its state word. Only what comes then is different: such a G is put in no run
 * queue, its thread is woken and goes on, without a P. */
#include "runtime.h"

_Thread_local G *block_g;

/* All that are in block(), so that the end of the runtime reaches them. */
static Lock blocked_lock;
static G *blocked;

static void blocked_add(G *g)
{
    lock(&blocked_lock);
    g->all_next = blocked;
    if (blocked != NULL) {
        blocked->all_prev = g;
    }
    blocked = g;
    unlock(&blocked_lock);
}

static void blocked_remove(G *g)
{
    lock(&blocked_lock);
    if (g->all_prev != NULL) {
        g->all_prev->all_next = g->all_next;
    }
    else {
        blocked = g->all_next;
    }
    if (g->all_next != NULL) {
        g->all_next->all_prev = g->all_prev;
    }
    unlock(&blocked_lock);
}

void block_interrupt_all(void)
{
    for (;;) {
        lock(&blocked_lock);
        G *g = blocked;
        while (g != NULL && g->late) {
            g = g->all_next;
        }
        if (g != NULL) {
            Py_INCREF(g); /* its thread holds one as long as it is on the list */
            g->late = true;
            atomic_fetch_or(&g->state, G_CANCEL);
        }
        unlock(&blocked_lock);
        if (g == NULL) {
            return;
        }
        ready_from_user(g, false);
        Py_DECREF(g);
    }
}

static G *thread_g_new(Note *note)
{
    G *g = PyObject_GC_New(G, &Goroutine_Type);
    if (g != NULL) {
        memset((char *)g + sizeof(PyObject), 0, sizeof(G) - sizeof(PyObject));
        live_add(NULL, LIVE_G, 1);
        g->foreign = 1;
        g->note = note;
        compat_share_new((PyObject *)g);
        atomic_store_explicit(&g->state, G_RUNNING, memory_order_relaxed);
        /* The collector need not know it: it owns nothing. */
    }
    return g;
}

/* The operation waits. Sleep until it is woken; false: time is up, or a signal. On return the G is G_RUNNING,
 * and the reference that a waker handed over has been dropped. */
static bool sleep_until_woken(G *g, int64_t until_ns)
{
    note_clear(g->note);
    uint32_t s = atomic_load(&g->state);
    do {
        if (s & G_NOTIFIED) { /* woken before we could sleep */
            atomic_fetch_and(&g->state, ~(uint32_t)G_NOTIFIED);
            return true;
        }
    } while (!atomic_compare_exchange_weak(&g->state, &s, (s & G_MARKS) | G_WAITING));
    bool woken;
    Py_BEGIN_ALLOW_THREADS
    woken = note_sleep(g->note, until_ns);
    if (!woken) {
        s = atomic_load(&g->state);
        while ((s & G_STATE) == G_WAITING &&
               !atomic_compare_exchange_weak(&g->state, &s, (s & G_MARKS) | G_RUNNING)) {
        }
        woken = (s & G_STATE) != G_WAITING;
        while (woken && !note_sleep(g->note, TIME_NEVER)) {
            /* somebody woke us at the same time: he is about to say so */
        }
    }
    Py_END_ALLOW_THREADS
    if (woken) {
        s = atomic_load(&g->state);
        while (!atomic_compare_exchange_weak(&g->state, &s, (s & G_MARKS) | G_RUNNING)) {
        }
        Py_DECREF(g);
    }
    return woken;
}

static int raise_later(void *exc)
{
    compat_raise(exc);
    return -1;
}

PyObject *block_on(PyObject *op, int64_t until_ns, bool needs_runtime)
{
    Note note;
    G *outer = block_g, *g = thread_g_new(&note);
    if (g == NULL) {
        Py_DECREF(op);
        return NULL;
    }
    if (needs_runtime) {
        blocked_add(g);
    }
    block_g = g;
    PyObject *result = NULL, *signal = NULL;
    bool late = false, ended = false;
    if (needs_runtime &&
        atomic_load(&sched.running) != RUN_ON) { /* it ended before we were on the list */
        ended = true;
        atomic_fetch_or(&g->state, G_CANCEL);
    }
    for (;;) {
        PySendResult r = Py_TYPE(op)->tp_as_async->am_send(op, Py_None, &result);
        if (r != PYGEN_NEXT) {
            break;
        }
        Py_CLEAR(result); /* PARKED */
        if (atomic_load_explicit(&g->wait_reason, memory_order_relaxed) == WAIT_NONE ||
            sleep_until_woken(g, until_ns)) {
            continue;
        }
        if (signal == NULL && PyErr_CheckSignals() < 0) {
            signal = compat_take_exception();
        }
        late = late || nanotime() >= until_ns;
        if (late ||
            signal != NULL) { /* the operation takes itself back, unless it is done by now */
            atomic_fetch_or(&g->state, G_CANCEL);
            until_ns = late ? TIME_NEVER : until_ns;
        }
    }
    block_g = outer;
    if (needs_runtime) {
        blocked_remove(g);
        ended = ended || g->late;
    }
    /* Whether Cancelled is ours: the operation has consumed the mark. */
    bool consumed = !(atomic_exchange(&g->state, G_DEAD) & G_CANCEL);
    Py_DECREF(g);
    Py_DECREF(op);
    bool ours = result == NULL && consumed && (late || ended || signal != NULL) &&
                PyErr_ExceptionMatches(hooks.Cancelled);
    if (signal != NULL) {
        if (!ours && Py_AddPendingCall(raise_later, signal) == 0) {
            return result; /* what was done is done; the handler's exception comes right after */
        }
        Py_CLEAR(result);
        PyErr_Clear();
        compat_raise(signal);
    }
    else if (ours) {
        PyErr_Clear();
        if (late) {
            PyErr_SetString(PyExc_TimeoutError, "block() timed out");
        }
        else {
            PyErr_SetString(PyExc_RuntimeError, "block() was interrupted: the runtime has ended");
        }
    }
    return result;
}

/* A coroutine that awaits it so long. Without time it does what it can do at once: see hooks.limited. */
static PyObject *limit(PyObject *obj, PyObject *timeout, int64_t ns)
{
    return PyObject_CallFunctionObjArgs(hooks.limited, obj, ns > 0 ? timeout : Py_None, NULL);
}

/* What to send to: an operation of ours. Coroutines and foreign awaitables get a goroutine, in *own. That one
 * needs a P before it can try: if there is no time, it is told to give up when it begins to wait. */
static PyObject *as_operation(PyObject *obj, bool at_once, G **own)
{
    if (PyObject_TypeCheck(obj, &Operation_Type)) {
        return Py_NewRef(obj);
    }
    PyObject *coro = NULL, *g;
    if (Py_IS_TYPE(obj, &Goroutine_Type)) {
        g = Py_NewRef(obj);
    }
    else {
        bool is_coro = PyCoro_CheckExact(obj);
        if (is_coro && !at_once) {
            coro = Py_NewRef(obj);
        }
        else if (is_coro || (Py_TYPE(obj)->tp_as_async != NULL &&
                             Py_TYPE(obj)->tp_as_async->am_await != NULL)) {
            coro = at_once ? limit(obj, Py_None, 0) : PyObject_CallOneArg(hooks.as_coroutine, obj);
        }
        else {
            PyErr_Format(PyExc_TypeError, "block() needs an operation or a coroutine, not %R", obj);
        }
        g = coro != NULL ? core_go(NULL, &coro, 1, NULL) : NULL;
        Py_XDECREF(coro);
    }
    PyObject *op = g != NULL ? join_new(g) : NULL;
    if (op != NULL && coro != NULL) {
        *own = (G *)Py_NewRef(g);
    }
    Py_XDECREF(g);
    return op;
}

/* ---- in a plain goroutine ---- */

void error_orphan(const char *what)
{
    PyErr_Format(PyExc_RuntimeError, "%s: the runtime of this goroutine has ended", what);
}

PyObject *block_plain(M *m, PyObject *iter)
{
    PyObject *result, *outer = m->blocked_on;
    PySendResult r;
    while ((r = resume_coro(iter, &result)) == PYGEN_NEXT) {
        Py_DECREF(result); /* PARKED */
        m->blocked_on = iter;
        park_wired(m, m->curg);
        m->blocked_on = outer;
    }
    Py_DECREF(iter);
    if (r != PYGEN_RETURN && atomic_load(&m->user) == USER_ORPHAN &&
        PyErr_ExceptionMatches(hooks.Cancelled)) {
        PyErr_Clear();
        error_orphan("block()");
    }
    return r == PYGEN_RETURN ? result : NULL;
}

/* What to send to, in the name of this goroutine. */
static PyObject *as_iterator(PyObject *obj, PyObject *timeout, int64_t ns)
{
    PyAsyncMethods *async = Py_TYPE(obj)->tp_as_async;
    if (!PyCoro_CheckExact(obj) && (async == NULL || async->am_await == NULL)) {
        PyErr_Format(PyExc_TypeError, "block() needs an operation or a coroutine, not %R", obj);
        return NULL;
    }
    if (timeout != Py_None) {
        return limit(obj, timeout, ns);
    }
    if (PyCoro_CheckExact(obj) || PyObject_TypeCheck(obj, &Operation_Type)) {
        return Py_NewRef(obj);
    }
    if (Py_IS_TYPE(obj, &Goroutine_Type)) {
        return join_new(obj);
    }
    return PyObject_CallOneArg(hooks.as_coroutine, obj);
}

/* block(op, timeout=None) */
static PyObject *core_block(PyObject *Py_UNUSED(mod), PyObject *args, PyObject *kwargs)
{
    static char op_name[] = "", timeout_name[] = "timeout",
                *names[] = {op_name, timeout_name, NULL};
    PyObject *obj, *timeout = Py_None;
    int64_t ns = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:block", names, &obj, &timeout) ||
        (timeout != Py_None && !seconds_to_ns(timeout, "block()", &ns)) || check_forked()) {
        return NULL;
    }
    M *m = tls_m;
    if (m != NULL && m->curg != NULL && m->curg->plain) {
        if (atomic_load(&m->user) == USER_ORPHAN) {
            error_orphan("block()");
            return NULL;
        }
        if (atomic_load(&m->user) == USER_NONE) {
            PyErr_SetString(PyExc_RuntimeError, "block() in a destructor or signal handler that "
                                                "runs while its goroutine waits already");
            return NULL;
        }
        PyObject *iter = as_iterator(obj, timeout, ns);
        return iter != NULL ? block_plain(m, iter) : NULL;
    }
    if (m != NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "block() inside an async goroutine would stop its thread: use await");
        return NULL;
    }
    if (atomic_load(&sched.running) != RUN_ON) {
        PyErr_SetString(PyExc_RuntimeError, "block() needs a running runtime: see gofer.run()");
        return NULL;
    }
    G *own = NULL;
    bool at_once = timeout != Py_None && ns == 0;
    PyObject *op = as_operation(obj, at_once, &own);
    bool limited = timeout != Py_None && !(at_once && own != NULL);
    PyObject *result =
        op != NULL ? block_on(op, limited ? nanotime() + ns : TIME_NEVER, true) : NULL;
    if (own != NULL && result == NULL) { /* given up: so is the coroutine */
        PyObject *exc = compat_take_exception();
        g_cancel(own, NULL);
        compat_raise(exc);
    }
    Py_XDECREF(own);
    return result;
}

/* waits(): whether this goroutine has begun to wait, and is about to be suspended. For who drives a coroutine by
 * hand. */
static PyObject *core_waits(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    M *m = tls_m;
    G *g = m != NULL ? m->curg : NULL;
    return PyBool_FromLong(
        g != NULL && atomic_load_explicit(&g->wait_reason, memory_order_relaxed) != WAIT_NONE);
}

PyDoc_STRVAR(
    block_doc,
    "block(op, /, timeout=None)\n--\n\n"
    "Wait for an operation or a coroutine in plain code: in a plain goroutine, or in any other\n"
    "thread while a runtime runs. TimeoutError when `timeout` seconds have passed; the operation "
    "is "
    "then taken back. With 0 it does what can be done at once.\n\n>>> def plain(ch):\n...     "
    "return block(ch.recv(), timeout=1.5)\n"
    ">>> await go(plain, ch)\n1");

PyMethodDef block_methods[] = {
    {"block", (PyCFunction)(void (*)(void))core_block, METH_VARARGS | METH_KEYWORDS, block_doc},
    {"waits", core_waits, METH_NOARGS, NULL},
    {NULL},
};
