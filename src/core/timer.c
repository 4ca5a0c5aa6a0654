/* Timers: a 4-ary heap for each P, under a lock of its own, so that idle Ms can serve the timers of a
 * busy P. The key stands beside the pointer: sifting touches no timer. A timer knows its place, so
 * removing one costs O(log n) and leaves nothing behind.
 *
 * Ownership: the heap owns a reference to the object that a timer is part of. What it reaches is never a
 * leak, because the heap is a root that the collector does not look into. */
#include "net.h"
#include "trace.h"

#include <math.h>

/* The operation behind sleep(). Its wait record is the timer. */
struct SleepOp {
    PyObject_HEAD
    Who who;         /* see the rule in runtime.h */
    const G *waiter; /* who awaits it: only ever compared */
    Timer timer;
    int64_t duration_ns;
    _Atomic uint8_t fired, used;
};

void timer_init(Timer *t, TimerKind kind, size_t offset)
{
    t->index = -1;
    t->kind = (int16_t)kind;
    t->offset = (uint16_t)offset;
    atomic_store_explicit(&t->p, NULL, memory_order_relaxed);
}

static PyObject *timer_owner(Timer *t)
{
    return (PyObject *)((char *)t - t->offset);
}

static void heap_set(P *p, size_t i, TimerEntry e)
{
    p->heap[i] = e;
    e.timer->index = (int32_t)i;
}

static void sift_up(P *p, size_t i, TimerEntry e)
{
    while (i > 0) {
        size_t parent = (i - 1) / 4;
        if (p->heap[parent].when_ns <= e.when_ns) {
            break;
        }
        heap_set(p, i, p->heap[parent]);
        i = parent;
    }
    heap_set(p, i, e);
}

static void sift_down(P *p, size_t i, TimerEntry e)
{
    for (;;) {
        size_t first = 4 * i + 1;
        if (first >= p->ntimers) {
            break;
        }
        size_t end = first + 4 < p->ntimers ? first + 4 : p->ntimers;
        size_t least = first;
        for (size_t c = first + 1; c < end; c++) {
            if (p->heap[c].when_ns < p->heap[least].when_ns) {
                least = c;
            }
        }
        if (p->heap[least].when_ns >= e.when_ns) {
            break;
        }
        heap_set(p, i, p->heap[least]);
        i = least;
    }
    heap_set(p, i, e);
}

static void publish_next(P *p)
{
    atomic_store(&p->next_timer_ns, p->ntimers > 0 ? p->heap[0].when_ns : TIME_NEVER);
}

static bool heap_push(P *p, Timer *t)
{
    if (p->ntimers == p->heap_cap) {
        size_t cap = p->heap_cap > 0 ? p->heap_cap * 2 : 16;
        TimerEntry *heap = realloc(p->heap, cap * sizeof(TimerEntry));
        if (heap == NULL) {
            return false;
        }
        p->heap = heap;
        p->heap_cap = cap;
    }
    atomic_store_explicit(&t->p, p, memory_order_relaxed);
    p->ntimers++;
    sift_up(p, p->ntimers - 1, (TimerEntry){t->when_ns, t});
    return true;
}

static void heap_remove(P *p, size_t i)
{
    Timer *t = p->heap[i].timer;
    TimerEntry last = p->heap[--p->ntimers];
    if (last.timer != t) {
        if (i > 0 && last.when_ns < p->heap[(i - 1) / 4].when_ns) {
            sift_up(p, i, last);
        }
        else {
            sift_down(p, i, last);
        }
    }
    t->index = -1;
    publish_next(p);
}

/* Lock the heap that holds (or will hold) timers of `p`: P 0's if `p` has been taken away. */
static P *timers_lock(P *p)
{
    lock(&p->timers_lock);
    if (unlikely(p->timers_closed)) {
        unlock(&p->timers_lock);
        p = sched.allp[0]; /* never closed */
        lock(&p->timers_lock);
    }
    return p;
}

/* Into the heap of the M's P, if it has one. */
bool timer_add(M *m, Timer *t)
{
    P *p = timers_lock(m != NULL && m->p != NULL ? m->p : sched.allp[0]);
    bool ok = heap_push(p, t);
    bool earliest = ok && t->index == 0;
    if (earliest) {
        publish_next(p);
    }
    unlock(&p->timers_lock);
    if (earliest) {
        poller_look(t->when_ns);
    }
    return ok;
}

bool timer_del(Timer *t)
{
    for (;;) {
        P *p = atomic_load_explicit(&t->p, memory_order_relaxed);
        if (p == NULL) {
            return false; /* never was in one */
        }
        lock(&p->timers_lock);
        if (p != atomic_load_explicit(&t->p, memory_order_relaxed)) {
            unlock(&p->timers_lock); /* moved to another heap meanwhile */
            continue;
        }
        bool there = t->index >= 0;
        if (there) {
            heap_remove(p, (size_t)t->index);
        }
        unlock(&p->timers_lock);
        return there;
    }
}

/* We took the record off, so whom it wakes is ours to hand on, and the record stays alive until drop_later: the
 * goroutine may see `fired` and go on before we are done. */
static void sleep_fire(M *m, SleepOp *op)
{
    PyObject *sel;
    G *g = who_take(&op->who, (PyObject *)op, &sel);
    atomic_store_explicit(&op->fired, 1, memory_order_release);
    if (g != NULL && !goready(m, g, false)) {
        drop_later(m, (PyObject *)g);
    }
    if (sel != NULL) {
        drop_later(m, sel);
    }
    drop_later(m, (PyObject *)op);
}

void timer_due(PyObject *owner)
{
    if (Py_IS_TYPE(owner, &FuncTimer_Type)) {
        functimer_due(owner);
    }
    else {
        context_due(owner);
    }
}

/* Fire what is due in `p` (ours or another's). Holds m->p in P_RUNNING. Returns how many. */
int timers_run(M *m, P *p, int64_t *now_ns)
{
    int64_t next = atomic_load_explicit(&p->next_timer_ns, memory_order_relaxed);
    if (next == TIME_NEVER) {
        return 0;
    }
    if (*now_ns == 0) {
        *now_ns = nanotime();
    }
    int fired = 0;
    while (next <= *now_ns) {
        lock(&p->timers_lock);
        if (p->ntimers == 0 || p->heap[0].when_ns > *now_ns) {
            unlock(&p->timers_lock);
            break;
        }
        Timer *t = p->heap[0].timer;
        heap_remove(p, 0);
        trace_timer(t->kind, *now_ns - t->when_ns);
        next = atomic_load_explicit(&p->next_timer_ns, memory_order_relaxed);
        unlock(&p->timers_lock);
        PyObject *owner = timer_owner(t);
        switch (t->kind) {
        case TIMER_SLEEP:
            sleep_fire(m, (SleepOp *)owner);
            break;
        case TIMER_CHAN:
            timechan_due(m, owner, *now_ns);
            break;
        case TIMER_CONN:
            conn_due(m, owner, *now_ns);
            break;
        default:
            due_later(m, owner);
        }
        fired++;
    }
    return fired;
}

/* World stopped: `from` goes away. */
void timers_move(P *to, P *from)
{
    lock(&to->timers_lock);
    lock(&from->timers_lock); /* two heap locks are held at once only here */
    if (to->heap_cap < to->ntimers + from->ntimers) {
        size_t cap = to->ntimers + from->ntimers;
        TimerEntry *heap = realloc(to->heap, cap * sizeof(TimerEntry));
        if (heap == NULL) {
            Py_FatalError("gofer: out of memory while moving timers");
        }
        to->heap = heap;
        to->heap_cap = cap;
    }
    for (size_t i = 0; i < from->ntimers; i++) {
        heap_push(to, from->heap[i].timer);
    }
    from->ntimers = 0;
    from->timers_closed = true;
    publish_next(to); /* first: at no instant are they in neither */
    publish_next(from);
    unlock(&from->timers_lock);
    unlock(&to->timers_lock);
}

/* The earliest timer of all Ps. Sequentially consistent, for the poller's re-check. */
int64_t timers_next(void)
{
    int64_t next = TIME_NEVER;
    for (int i = 0; i < sched.procs; i++) {
        int64_t t = atomic_load(&sched.allp[i]->next_timer_ns);
        next = t < next ? t : next;
    }
    return next;
}

/* The run is over: give up the timers that are left. */
void timers_discard(P *p)
{
    for (;;) {
        lock(&p->timers_lock);
        Timer *t = p->ntimers > 0 ? p->heap[0].timer : NULL;
        if (t != NULL) {
            heap_remove(p, 0);
        }
        unlock(&p->timers_lock);
        if (t == NULL) {
            return;
        }
        PyObject *owner = timer_owner(t);
        switch (t->kind) {
        case TIMER_SLEEP:
            WHO_CLEAR(((SleepOp *)owner)->who);
            break;
        case TIMER_CHAN:
            timechan_dropped(owner);
            break;
        case TIMER_FUNC:
            functimer_dropped(owner);
            break;
        case TIMER_CONN:
            conn_dropped(owner);
            break;
        default:
            context_dropped(owner);
        }
        Py_DECREF(owner);
    }
}

/* ---- sleep() ---- */

bool seconds_to_ns(PyObject *seconds, const char *what, int64_t *ns)
{
    double s = PyFloat_AsDouble(seconds);
    if (s == -1.0 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Format(PyExc_TypeError, "%s needs a number of seconds, not %R", what, seconds);
        }
        else if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Format(PyExc_ValueError,
                         "%s needs a finite number of seconds, not an int that large", what);
        }
        return false;
    }
    if (!isfinite(s)) {
        PyErr_Format(PyExc_ValueError, "%s needs a finite number of seconds, not %R", what,
                     seconds);
        return false;
    }
    /* rounded up: never early; beyond 146 years is for ever */
    *ns = s <= 0 ? 0 : s >= 4.6e9 ? (int64_t)4600000000 * NS_PER_S : (int64_t)ceil(s * 1e9);
    return true;
}

PyObject *sleep_new(PyObject *Py_UNUSED(module), PyObject *seconds)
{
    int64_t ns;
    if (!seconds_to_ns(seconds, "sleep()", &ns)) {
        return NULL;
    }
    SleepOp *op = object_new(tls_m, FREE_SLEEP, &SleepOp_Type);
    if (op == NULL) {
        return NULL;
    }
    if (sharing()) {
        compat_share_new((PyObject *)op);
    }
    op->who = (Who){0};
    op->waiter = NULL;
    timer_init(&op->timer, TIMER_SLEEP, offsetof(SleepOp, timer));
    op->duration_ns = ns;
    atomic_store_explicit(&op->fired, 0, memory_order_relaxed);
    op->used = 0;
    return (PyObject *)op;
}

static bool sleep_start(M *m, SleepOp *op, const G *waiter, Who who) /* eats who */
{
    uint8_t state = OP_NEW;
    if (!atomic_compare_exchange_strong(&op->used, &state,
                                        OP_WAITING)) { /* another does the same */
        WHO_CLEAR(who);
        op_error_used((PyObject *)op, state);
        return false;
    }
    op->waiter = waiter;
    op->timer.when_ns = nanotime() + op->duration_ns;
    op->who = who;
    Py_INCREF(op); /* the heap's */
    if (sched.allp[0] != NULL && timer_add(m, &op->timer)) {
        return true;
    }
    op->used = OP_DONE;
    WHO_CLEAR(op->who);
    Py_DECREF(op);
    PyErr_NoMemory();
    return false;
}

int sleep_state(SleepOp *op)
{
    return atomic_load_explicit(&op->used, memory_order_relaxed);
}

bool sleep_is_over(SleepOp *op)
{
    return op->duration_ns <= 0;
}

int sleep_select(M *m, SleepOp *op, SelectOp *sel)
{
    return sleep_start(m, op, NULL, (Who){(uintptr_t)Py_NewRef((PyObject *)sel) | 1}) ? 1 : -1;
}

/* It lost, or won: in the second case, or if it is being fired right now, it is used up. */
void sleep_unselect(SleepOp *op)
{
    if (op->used != OP_WAITING) {
        return;
    }
    op->used = OP_DONE;
    if (timer_del(&op->timer)) {
        WHO_CLEAR(op->who);
        Py_DECREF(op);
        op->used = OP_NEW;
    }
}

static PySendResult sleep_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    SleepOp *op = (SleepOp *)self;
    M *m = tls_m;
    *result = NULL;
    G *g = op_begin(m, self, op->used);
    if (g == NULL) {
        return PYGEN_ERROR;
    }
    if (op->used == OP_NEW) {
        if (op_raise_if_cancelled(g)) {
            op->used = OP_DONE;
            return PYGEN_ERROR;
        }
        if (op->duration_ns <= 0) {
            op->used = OP_DONE;
            return op_finish(Py_None, result);
        }
        if (!sleep_start(m, op, g, who_g(g))) {
            return PYGEN_ERROR;
        }
        return op_suspend(g, WAIT_SLEEP, result);
    }
    if (op->waiter != g) {
        op_error_other(self);
        return PYGEN_ERROR;
    }
    bool fired = atomic_load_explicit(&op->fired, memory_order_acquire);
    if (!fired && !op_cancel_pending(g)) {
        return op_suspend(g, WAIT_SLEEP, result); /* a wake-up meant for an earlier wait */
    }
    if (fired || !timer_del(&op->timer)) {
        /* Over, or being fired right now; a cancellation waits for the next operation. */
        op->used = OP_DONE;
        return op_finish(Py_None, result);
    }
    op->used = OP_DONE;
    WHO_CLEAR(op->who); /* not the last: the M that runs us holds one */
    Py_DECREF(op);
    op_raise_taken_back(g);
    return PYGEN_ERROR;
}

static PyObject *sleep_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    SleepOp *op = (SleepOp *)self;
    if (op->used == OP_WAITING && op_closed_by_hand(op->waiter)) {
        if (timer_del(&op->timer)) {
            WHO_CLEAR(op->who);
            Py_DECREF(op);
        }
        op->used = OP_DONE;
    }
    Py_RETURN_NONE;
}

static PyMethodDef sleep_methods[] = {{"close", sleep_close, METH_NOARGS, NULL}, {NULL}};

static void sleep_dealloc(PyObject *self)
{
    WHO_CLEAR(((SleepOp *)self)->who);
    object_free(tls_m, FREE_SLEEP, self);
}

static PyObject *sleep_repr(PyObject *self)
{
    SleepOp *op = (SleepOp *)self;
    PyObject *s = PyFloat_FromDouble((double)op->duration_ns / 1e9);
    PyObject *r =
        s ? PyUnicode_FromFormat("<gofer.sleep(%R) %s>", s, op_state_text(op->used)) : NULL;
    Py_XDECREF(s);
    return r;
}

static PyAsyncMethods sleep_async = {.am_send = sleep_send};

PyTypeObject SleepOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.SleepOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(SleepOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation that sleep() returns.",
    .tp_dealloc = sleep_dealloc,
    .tp_repr = sleep_repr,
    .tp_as_async = &sleep_async,
    .tp_methods = sleep_methods,
};
