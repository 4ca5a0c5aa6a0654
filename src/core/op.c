/* Operations: what `await` sees.
 *
 * An operation is its own iterator and its own wait record, so an await that must wait costs one
 * object. am_send is called once to begin and once after every wake-up:
 *
 *   begin     done at once: return the value. Otherwise put the record on a queue and op_suspend().
 *   resumed   the record was taken off by a waker: return the value. Else, if the goroutine has been
 *             cancelled, take it off ourselves (under the queue's lock, so exactly one of the two
 *             happens) and raise. Else the wake-up was meant for an earlier wait: suspend again.
 *
 * Cancelling a goroutine therefore never touches its operation from another thread: it leaves a mark
 * in the state word and wakes the goroutine, which looks for itself. */
#include "trace.h"

G *op_begin_slow(M *m, PyObject *op, int used)
{
    if (unlikely(check_forked())) {
        return NULL;
    }
    G *g = m != NULL ? m->curg : block_g;
    if (unlikely(g == NULL)) {
        PyErr_Format(PyExc_RuntimeError,
                     "%R can only be awaited inside a goroutine: start one with gofer.run()", op);
        return NULL;
    }
    if (unlikely(used == OP_DONE)) {
        op_error_used(op, used);
        return NULL;
    }
    return g; /* of block() */
}

void op_error_used(PyObject *op, int state)
{
    if (state == OP_DONE) {
        PyErr_Format(PyExc_RuntimeError, "%R has been awaited already: make a new one", op);
    }
    else {
        op_error_other(op);
    }
}

void op_error_other(PyObject *op)
{
    PyErr_Format(PyExc_RuntimeError, "%R is already awaited by another goroutine", op);
}

PySendResult op_suspend(G *g, WaitReason why, PyObject **result)
{
    trace_suspend(g);
    atomic_store_explicit(&g->wait_reason, why, memory_order_relaxed);
    *result = Py_NewRef(PARKED);
    return PYGEN_NEXT;
}

/* The operation is done and will say so when it is resumed. */
PySendResult op_yield(G *g, PyObject **result)
{
    return op_suspend(g, WAIT_NONE, result);
}

/* Looks at once when a slice begins, then ever less often, down to every 64th operation; but at the next one if
 * the last look is long ago. */
bool op_slice_over_slow(M *m)
{
    P *p = m->p; /* somebody may have taken it: then this only looks at a clock that is not ours */
    if (p == NULL) {
        m->ops_left = 0;
        return true;
    }
    int64_t now = coarse_nanotime();
    m->ops_step = now - m->ops_looked_ns > SLICE_NS / 4 ? 0 : m->ops_step * 2 + 1;
    m->ops_step = m->ops_step > 63 ? 63 : m->ops_step;
    m->ops_left = m->ops_step;
    m->ops_looked_ns = now;
    int64_t start = atomic_load_explicit(&p->slice_start_ns, memory_order_relaxed);
    if (start == 0) {
        atomic_store_explicit(&p->slice_start_ns, now, memory_order_relaxed);
    }
    return start != 0 && now - start > SLICE_NS;
}

/* Deliver a pending cancellation, once. */
bool op_raise_pending(G *g)
{
    if (!g_cancel_due(g)) {
        /* tell() may just have taken the mark, to raise Cancelled at the next boundary. */
        if (!context_over(g)) {
            return false;
        }
        context_raise(g); /* again and again, as long as it is bound to that context */
        return true;
    }
    if (unlikely(g_state(g) == G_DEAD)) { /* run() did not wait for it */
        PyErr_SetNone(hooks.Cancelled);
        return true;
    }
    g_lock(g);
    PyObject *reason = NULL;
    bool ours = atomic_fetch_and(&g->state, ~(uint32_t)G_CANCEL) & G_CANCEL;
    if (ours && g_state(g) != G_DEAD) { /* abandoned by run(): then it is its outcome */
        reason = g->value;
        g->value = NULL;
    }
    g_unlock(g);
    if (!ours) { /* see above */
        return false;
    }
    /* by call: a tuple or an exception as reason must stay one argument */
    PyObject *exc = reason != NULL ? PyObject_CallOneArg(hooks.Cancelled, reason)
                                   : PyObject_CallNoArgs(hooks.Cancelled);
    Py_XDECREF(reason);
    if (exc != NULL) {
        compat_raise(exc);
    }
    return true;
}

/* The operation has been taken back, because there was a mark. Whoever ends the run may have taken that since, to raise
 * Cancelled at the next boundary of this thread (tell() in run.c): it is raised here instead. */
void op_raise_taken_back(G *g)
{
    M *m = tls_m;
    if (op_raise_if_cancelled(g)) {
        return;
    }
    bool again = m != NULL && m->curg == g && atomic_load(&m->user) != USER_NONE &&
                 user_leave(m); /* then the mark is back */
    if (again) {
        atomic_store(&m->user, USER_RUNS);
    }
    if (!again || !op_raise_if_cancelled(g)) {
        PyErr_SetNone(hooks.Cancelled);
    }
}

/* Nobody but us holds it, and nobody who caught it (driving a coroutine by hand) left anything in it. */
static inline bool stop_reusable(PyObject *stop)
{
    PyStopIterationObject *s = (PyStopIterationObject *)stop;
    return compat_unique(stop) && s->traceback == NULL && s->context == NULL && s->dict == NULL;
}

/* The interpreter takes the value out and drops the exception, so each M uses one over again instead of paying
 * for a new one with every result. */
void op_stop_with(M *m, PyObject *value)
{
    PyObject *stop = m != NULL ? m->stop : NULL;
    if (likely(stop != NULL && stop_reusable(stop))) {
        PyObject *last = ((PyStopIterationObject *)stop)->value;
        ((PyStopIterationObject *)stop)->value = value;
        compat_raise_in(m->ts, Py_NewRef(stop));
        Py_XDECREF(last); /* now: its destructor may await, and then finds `stop` in use */
        return;
    }
    stop = PyObject_CallNoArgs(PyExc_StopIteration); /* as an argument it would be in `args`, too */
    if (unlikely(stop == NULL)) {
        Py_DECREF(value);
        return;
    }
    Py_XSETREF(((PyStopIterationObject *)stop)->value, value);
    if (m != NULL) {
        Py_XSETREF(m->stop, Py_NewRef(stop));
    }
    compat_raise(stop);
}

PyObject *op_iternext(PyObject *self)
{
    PyObject *value;
    PySendResult r = Py_TYPE(self)->tp_as_async->am_send(self, Py_None, &value);
    return op_tell(tls_m, r, value);
}

/* The slice is over: what its last await returned shall not live on in m->stop. */
void op_drop_stop_value(M *m)
{
    if (stop_reusable(m->stop)) {
        Py_CLEAR(((PyStopIterationObject *)m->stop)->value);
    }
    else {
        Py_CLEAR(m->stop);
    }
}

/* close() of an operation: the coroutine that awaits it is being closed. If by the goroutine itself, which
 * drove it by hand, it no longer waits. If by the collector, the goroutine is a leak, and letting go of it
 * here would finalize it in the middle of that: its record stays where it is, and whoever comes upon it finds
 * the goroutine dead. */
bool op_closed_by_hand(const G *waiter)
{
    M *m = tls_m;
    return m != NULL && m->curg != NULL && m->curg == waiter;
}

const char *op_state_text(int used)
{
    return used == OP_NEW ? "not awaited" : used == OP_DONE ? "done" : "waiting";
}

PyObject *op_repr(const char *what, PyObject *of, int state)
{
    return PyUnicode_FromFormat("<%s of %R, %s>", what, of, op_state_text(state));
}

/* throw(): the coroutine that awaits it is thrown into by hand, past the operation. */
static PyObject *op_throw(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *r = PyObject_CallMethod(self, "close", NULL);
    if (r == NULL) {
        return NULL;
    }
    Py_DECREF(r);
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "throw() needs an exception");
    }
    else if (PyExceptionInstance_Check(args[0])) {
        compat_raise(Py_NewRef(args[0]));
    }
    else {
        PyErr_SetObject(args[0], nargs > 1 ? args[1] : NULL);
    }
    return NULL;
}

static PyObject *op_close(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(a))
{
    Py_RETURN_NONE; /* of those that never wait */
}

static PyMethodDef operation_methods[] = {
    {"throw", (PyCFunction)(void (*)(void))op_throw, METH_FASTCALL, NULL},
    {"close", op_close, METH_NOARGS, NULL},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Operation[T]: typing only."},
    {NULL}};

static PyAsyncMethods operation_async = {.am_await = PyObject_SelfIter};

/* What awaits and iterates is the same for all of them; each has its own am_send. */
PyTypeObject Operation_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.Operation",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "What can be awaited: it does nothing until then.\n\n>>> op = ch.recv()\n>>> value = "
              "await op",
    .tp_as_async = &operation_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = op_iternext,
    .tp_methods = operation_methods,
};

/* ---- an operation that is done from the start ---- */

typedef struct {
    PyObject_HEAD
    PyObject *value;
} ReadyOp;

PyObject *ready_new(PyObject *value)
{
    ReadyOp *op = PyObject_GC_New(ReadyOp, &ReadyOp_Type);
    if (op != NULL) {
        op->value = Py_NewRef(value);
        PyObject_GC_Track(op);
    }
    return (PyObject *)op;
}

static PySendResult ready_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    return op_finish(((ReadyOp *)self)->value, result);
}

static int ready_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((ReadyOp *)self)->value);
    return 0;
}

static int ready_clear(PyObject *self)
{
    Py_CLEAR(((ReadyOp *)self)->value);
    return 0;
}

static void ready_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    ready_clear(self);
    PyObject_GC_Del(self);
}

static PyObject *ready_repr(PyObject *Py_UNUSED(self))
{
    return PyUnicode_FromString("<operation, done>");
}

static PyAsyncMethods ready_async = {.am_send = ready_send};

PyTypeObject ReadyOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.ReadyOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(ReadyOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = ready_dealloc,
    .tp_traverse = ready_traverse,
    .tp_clear = ready_clear,
    .tp_repr = ready_repr,
    .tp_as_async = &ready_async,
};

/* ... and gives None: one immortal object serves all, and `async with` needs it at every end of a block. */

static PySendResult done_send(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(arg),
                              PyObject **result)
{
    *result = compat_none();
    return PYGEN_RETURN;
}

static PyObject *done_next(PyObject *Py_UNUSED(self))
{
    return NULL; /* without an exception: None */
}

static void static_dealloc(PyObject *self)
{
    Py_SET_REFCNT(self, 1); /* only an extension that over-DECREFs gets here */
}

static PyAsyncMethods done_async = {.am_await = PyObject_SelfIter, .am_send = done_send};

PyTypeObject DoneOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.DoneOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(BareOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = static_dealloc,
    .tp_as_async = &done_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = done_next,
};

BareOp done_op = {PyObject_HEAD_INIT(&DoneOp_Type)};

/* ---- gosched(): stateless, so one immortal object serves all; the G remembers where it is ---- */

static PySendResult gosched_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    M *m = tls_m;
    *result = NULL;
    G *g = op_begin(m, self, OP_NEW);
    if (g == NULL) {
        return PYGEN_ERROR;
    }
    bool resumed = g->yielded;
    g->yielded = !resumed;
    if (unlikely(op_raise_if_cancelled(g))) {
        g->yielded = false;
        return PYGEN_ERROR;
    }
    if (resumed) {
        return op_finish(Py_None, result);
    }
    return op_suspend(g, WAIT_NONE, result); /* execute() sees `yielded` and requeues */
}

static PyObject *gosched_repr(PyObject *Py_UNUSED(self))
{
    return PyUnicode_FromString("<gofer.gosched()>");
}

static PyAsyncMethods gosched_async = {.am_send = gosched_send};

PyTypeObject GoschedOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.GoschedOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(BareOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation that gosched() returns.",
    .tp_dealloc = static_dealloc,
    .tp_repr = gosched_repr,
    .tp_as_async = &gosched_async,
};

/* Also what every operation yields to suspend (PARKED): immortal, and nothing else yields it. */
BareOp gosched_op = {PyObject_HEAD_INIT(&GoschedOp_Type)};

/* ---- waiting for a goroutine ---- */

/* JoinOp.prev when the record is on no queue. Parked goroutines come by the million, and two flag
 * bytes would cost 16 bytes each. */
static JoinOp join_fired, join_done; /* never used as records */
#define JOIN_FIRED (&join_fired)     /* taken off by the dying target, which hands `g` on */
#define JOIN_DONE  (&join_done)

enum { WHO_COUNTS = 2 }; /* the tag of a WaitGroup */

static bool who_counts(Who who)
{
    return who.word & WHO_COUNTS;
}

static JoinOp *join_alloc(G *target)
{
    JoinOp *op = object_new(tls_m, FREE_JOIN, &JoinOp_Type);
    if (op == NULL) {
        return NULL;
    }
    op->who = (Who){0};
    op->target = (G *)Py_XNewRef((PyObject *)target);
    atomic_store_explicit(&op->prev, NULL, memory_order_relaxed);
    op->next = NULL;
    compat_track((PyObject *)op);
    return op;
}

PyObject *join_new(PyObject *target)
{
    return (PyObject *)join_alloc((G *)target);
}

static JoinOp *join_prev(JoinOp *op)
{
    return atomic_load_explicit(&op->prev, memory_order_relaxed);
}

static void join_set_prev(JoinOp *op, JoinOp *prev)
{
    atomic_store_explicit(&op->prev, prev, memory_order_relaxed);
}

/* g_lock. The list owns a reference to `op`. */
static void join_link(G *target, JoinOp *op)
{
    JoinOp *first = target->waiters;
    if (first == NULL) {
        target->waiters = op;
        op->next = op;
        join_set_prev(op, op);
    }
    else {
        JoinOp *last = join_prev(first);
        op->next = first;
        last->next = op;
        join_set_prev(op, last);
        join_set_prev(first, op);
    }
}

/* g_lock. The list's references to `op` and its `who` are the caller's now. */
static void join_unlink(G *target, JoinOp *op, JoinOp *mark)
{
    if (op->next == op) {
        target->waiters = NULL;
    }
    else {
        join_prev(op)->next = op->next;
        join_set_prev(op->next, join_prev(op));
        if (target->waiters == op) {
            target->waiters = op->next;
        }
    }
    op->next = NULL;
    join_set_prev(op, mark);
}

/* The target dies: take off all records, oldest first, chained by `next`. */
JoinOp *join_take_all(G *target)
{
    JoinOp *first = target->waiters;
    if (first == NULL) {
        return NULL;
    }
    join_prev(first)->next = NULL;
    target->waiters = NULL;
    for (JoinOp *op = first; op != NULL; op = op->next) {
        /* release: whoever sees it also sees the target's value */
        atomic_store_explicit(&op->prev, JOIN_FIRED, memory_order_release);
    }
    return first;
}

/* Hand on the goroutines of a chain from join_take_all. The M's P is in P_RUNNING if it has one. */
void join_fire_all(M *m, JoinOp *op, bool next)
{
    while (op != NULL) {
        JoinOp *following = op->next;
        PyObject *sel;
        if (unlikely(who_counts(op->who))) {
            op->next = NULL;
            due_later(m, (PyObject *)op);
            op = following;
            continue;
        }
        G *g = who_take(&op->who, (PyObject *)op, &sel);
        op->next = NULL;
        if (g != NULL && !goready(m, g, next && following == NULL)) {
            drop_later(m, (PyObject *)g);
        }
        if (sel != NULL) {
            drop_later(m, sel);
        }
        drop_later(m, (PyObject *)op);
        op = following;
    }
}

/* Of one that has failed, and that nobody has a handle of: so these are records of WaitGroups. Who waits there for
 * all to end must not go on as if they had, but be cancelled. That is done once: while the run ends, they are counted.
 * We mark before we look whether it does. So who was cancelled for the end, and waits again, finds the mark or is
 * counted for. */
bool join_void_all(M *m, JoinOp *op)
{
    for (JoinOp *each = op; each != NULL; each = each->next) {
        wg_void(who_object(each->who));
    }
    if (atomic_load(&sched.fatal) != NULL || atomic_load(&sched.draining)) {
        return false;
    }
    while (op != NULL) {
        JoinOp *next = op->next;
        op->next = NULL;
        drop_later(m, (PyObject *)op);
        op = next;
    }
    return true;
}

void join_drop_all(JoinOp *op)
{
    while (op != NULL) {
        JoinOp *next = op->next;
        op->next = NULL;
        if (who_counts(op->who)) {
            join_counted((PyObject *)op);
        }
        WHO_CLEAR(op->who);
        Py_DECREF(op);
        op = next;
    }
}

/* ---- a WaitGroup counts the end of a goroutine with a record in the list of those who wait for it ---- */

int join_count(G *target, PyObject *wg)
{
    JoinOp *op = join_alloc(NULL);
    if (op == NULL) {
        return -1;
    }
    if (sharing()) {
        compat_share((PyObject *)op);
    }
    op->who = (Who){(uintptr_t)Py_NewRef(wg) | WHO_COUNTS};
    g_lock(target);
    bool dead = g_state(target) == G_DEAD;
    if (!dead) {
        join_link(target, op); /* with our reference */
    }
    g_unlock(target);
    if (dead) {
        Py_DECREF(op);
    }
    return !dead;
}

void join_counted(PyObject *op)
{
    wg_ended(who_object(((JoinOp *)op)->who));
}

/* The others in its list are garbage as it is, and whoever is left of them when that is cleared is dropped. */
void join_leaked(G *target)
{
    for (;;) {
        JoinOp *found = NULL;
        g_lock(target);
        for (JoinOp *op = target->waiters; op != NULL && found == NULL;) {
            found = who_counts(op->who) ? op : NULL;
            op = op->next != target->waiters ? op->next : NULL;
        }
        if (found != NULL) {
            join_unlink(target, found, JOIN_DONE);
        }
        g_unlock(target);
        if (found == NULL) {
            return;
        }
        join_counted((PyObject *)found);
        Py_DECREF(found);
    }
}

/* A case of a select. */
int join_select(JoinOp *op, struct SelectOp *sel)
{
    G *target = op->target;
    Py_INCREF(op); /* the list's */
    op->who = (Who){(uintptr_t)Py_NewRef((PyObject *)sel) | 1};
    g_lock(target);
    bool dead = g_state(target) == G_DEAD;
    if (!dead) {
        join_link(target, op);
    }
    g_unlock(target);
    if (dead) {
        WHO_CLEAR(op->who);
        Py_DECREF(op);
    }
    return dead ? -1 : 1;
}

void join_unselect(JoinOp *op)
{
    G *target = op->target;
    g_lock(target);
    JoinOp *prev = join_prev(op);
    bool linked = prev != NULL && prev != JOIN_FIRED && prev != JOIN_DONE;
    if (linked) {
        join_unlink(target, op, JOIN_DONE);
    }
    g_unlock(target);
    if (linked) {
        WHO_CLEAR(op->who);
        Py_DECREF(op);
    }
}

static PySendResult join_result(JoinOp *op, PyObject **result)
{
    join_set_prev(op, JOIN_DONE);
    if (unlikely(g_state(op->target) != G_DEAD)) { /* a stray wake-up: it is about to say so */
        g_lock(op->target);
        g_unlock(op->target);
    }
    *result = g_result(op->target);
    return *result != NULL ? PYGEN_RETURN : PYGEN_ERROR;
}

static PySendResult join_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    JoinOp *op = (JoinOp *)self;
    M *m = tls_m;
    *result = NULL;
    JoinOp *prev = atomic_load_explicit(&op->prev, memory_order_acquire);
    G *g = op_begin(m, self, prev == JOIN_DONE || op->target == NULL ? OP_DONE : OP_NEW);
    if (g == NULL) {
        return PYGEN_ERROR;
    }
    if (prev == JOIN_FIRED) {
        return join_result(op, result);
    }
    G *target = op->target;
    if (prev == NULL) {
        if (unlikely(op_raise_if_cancelled(g))) {
            join_set_prev(op, JOIN_DONE);
            return PYGEN_ERROR;
        }
        if (target == g) {
            join_set_prev(op, JOIN_DONE);
            PyErr_Format(PyExc_RuntimeError, "goroutine %llu awaits itself",
                         (unsigned long long)g->id);
            return PYGEN_ERROR;
        }
        if (g_state(target) == G_DEAD) {
            return join_result(op, result);
        }
        if (sharing()) {
            compat_share((PyObject *)op); /* others will see it from here on */
        }
        Py_INCREF(op); /* the list's; dropped again if not needed */
        Py_INCREF(g);
        g_lock(target);
        bool dead = g_state(target) == G_DEAD;
        bool ours = !dead && join_prev(op) == NULL; /* else another has begun it at the same time */
        if (ours) {
            op->who = (Who){(uintptr_t)g};
            join_link(target, op);
        }
        g_unlock(target);
        if (ours) {
            return op_suspend(g, WAIT_JOIN, result);
        }
        Py_DECREF(g);
        Py_DECREF(op);
        if (!dead) {
            op_error_other(self);
            return PYGEN_ERROR;
        }
        return join_result(op, result);
    }
    g_lock(target);
    bool fired = join_prev(op) == JOIN_FIRED;
    bool ours =
        !fired && who_object(op->who) == (PyObject *)g; /* until it is fired, that is who waits */
    bool cancelled = ours && op_cancel_pending(g);
    if (cancelled) {
        join_unlink(target, op, JOIN_DONE);
    }
    g_unlock(target);
    if (fired) {
        return join_result(op, result); /* a cancellation waits for the next operation */
    }
    if (!ours) {
        op_error_other(self);
        return PYGEN_ERROR;
    }
    if (!cancelled) {
        return op_suspend(g, WAIT_JOIN, result); /* a wake-up meant for an earlier wait */
    }
    WHO_CLEAR(op->who); /* not the last: the M that runs us holds one */
    Py_DECREF(op);
    op_raise_taken_back(g);
    return PYGEN_ERROR;
}

static PyObject *join_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    JoinOp *op = (JoinOp *)self;
    bool ours = false;
    if (op->target != NULL) {
        g_lock(op->target);
        JoinOp *prev = join_prev(op);
        ours = prev != NULL && prev != JOIN_FIRED && prev != JOIN_DONE &&
               op_closed_by_hand((G *)who_object(op->who));
        if (ours) {
            join_unlink(op->target, op, JOIN_DONE);
        }
        g_unlock(op->target);
    }
    if (ours) {
        WHO_CLEAR(op->who);
        Py_DECREF(op);
    }
    Py_RETURN_NONE;
}

static PyMethodDef join_methods[] = {{"close", join_close, METH_NOARGS, NULL}, {NULL}};

static int join_traverse(PyObject *self, visitproc visit, void *arg)
{
    JoinOp *op = (JoinOp *)self;
    Py_VISIT(who_object(op->who));
    Py_VISIT(op->target);
    return 0;
}

static int join_clear(PyObject *self)
{
    JoinOp *op = (JoinOp *)self;
    WHO_CLEAR(op->who);
    Py_CLEAR(op->target);
    return 0;
}

static void join_dealloc(PyObject *self)
{
    compat_untrack(self);
    Py_TRASHCAN_BEGIN(self, join_dealloc);
    join_clear(self);
    object_free(tls_m, FREE_JOIN, self);
    Py_TRASHCAN_END
}

static PyObject *join_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<await of %R>", ((JoinOp *)self)->target);
}

static PyAsyncMethods join_async = {.am_send = join_send};

PyTypeObject JoinOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.JoinOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(JoinOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation behind `await goroutine`.",
    .tp_dealloc = join_dealloc,
    .tp_traverse = join_traverse,
    .tp_clear = join_clear,
    .tp_repr = join_repr,
    .tp_as_async = &join_async,
    .tp_methods = join_methods,
};
