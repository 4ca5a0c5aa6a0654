/* What sync offers to wait on: Mutex, RWMutex, WaitGroup, Cond, Semaphore.
 *
 * All five are one thing: some state, a queue or two of waiting operations, a lock over both. An operation
 * tries under the lock and, if it must wait, queues itself. Whoever changes the state grants, under the lock,
 * what can now be granted, oldest first: the woken goroutine finds its operation done. Only a Mutex in normal
 * mode wakes its waiter to try again (OP_WOKEN), because letting a running goroutine have it first is
 * several times faster; one that waited 1 ms switches it to starvation mode, where it is handed over.
 * A cancelled goroutine takes its own operation off, under the lock, and passes on what that makes possible. */
#include "runtime.h"

#include <structmember.h>

#define STARVING_NS 1000000LL /* as in Go */

typedef struct SyncOp SyncOp;

typedef enum { MUTEX_LOCK, RW_LOCK, RW_RLOCK, WG_WAIT, COND_WAIT, SEM_ACQUIRE } SyncKind;

/* The common head. Which fields mean something depends on the type. */
typedef struct {
    PyObject_HEAD
    ObjLock lock;
    uint8_t inherited; /* Mutex, RWMutex: the last time somebody took it over (see inherit) */
    _Alignas(4)        /* compilers look at all three at once, and not at the lock beside them */
        bool locked;   /* Mutex, RWMutex: by a writer */
    bool woken;        /* Mutex: somebody is on its way to try again */
    bool starving;     /* Mutex: handed over, no barging */
    bool voided;       /* WaitGroup: one of its goroutines has failed, the program ends */
    _Atomic int64_t count; /* RWMutex: readers. WaitGroup: the counter. Semaphore: free permits */
    int64_t size;          /* Semaphore: all permits */
    PyObject *mu;          /* Cond: its mutex, owned */
    SyncOp *queue;         /* circular, oldest first; entries owned */
    SyncOp *readers;       /* RWMutex: those that wait for a read lock */
    PyObject *weakrefs;
} Sync;

struct SyncOp {
    PyObject_HEAD
    Who who;
    Sync *obj;  /* owned; NULL when it is spare */
    Sync *cond; /* owned: COND_WAIT in its second half, where obj is the mutex */
    SyncOp *prev, *next;
    const G *waiter;
    int64_t since_ns;      /* MUTEX_LOCK: when it began to wait */
    int64_t n;             /* SEM_ACQUIRE: permits. `relocks`: sched.orphaned when it was queued */
    _Atomic uint8_t state; /* OP_...; OP_WAITING under the lock means: on its queue */
    uint8_t kind;
    bool relocks;   /* COND_WAIT in its second half: nothing stops it from locking */
    bool cancelled; /* ... and then it raises */
};

static PyTypeObject Mutex_Type, RWMutex_Type, WaitGroup_Type, Cond_Type, Semaphore_Type,
    SyncOp_Type, Reader_Type;

static const WaitReason reasons[] = {
    [MUTEX_LOCK] = WAIT_MUTEX, [RW_LOCK] = WAIT_RW_LOCK, [RW_RLOCK] = WAIT_RW_RLOCK,
    [WG_WAIT] = WAIT_GROUP,    [COND_WAIT] = WAIT_COND,  [SEM_ACQUIRE] = WAIT_SEMA,
};

static int op_state(const SyncOp *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire);
}

static void op_set_state(SyncOp *op, int state)
{
    atomic_store_explicit(&op->state, (uint8_t)state, memory_order_release);
}

static int64_t get(const Sync *s)
{
    return atomic_load_explicit(&s->count, memory_order_relaxed);
}

static void add(Sync *s, int64_t n)
{
    atomic_store_explicit(&s->count, get(s) + n, memory_order_relaxed);
}

/* ---- queues; under the lock ---- */

static SyncOp **queue_of(SyncOp *op)
{
    return op->kind == RW_RLOCK ? &op->obj->readers : &op->obj->queue;
}

static void enqueue(SyncOp *op, bool at_front)
{
    SyncOp **queue = queue_of(op), *oldest = *queue;
    Py_INCREF(op);
    op_set_state(op, OP_WAITING);
    if (oldest == NULL) {
        op->next = op->prev = *queue = op;
        return;
    }
    op->next = oldest;
    op->prev = oldest->prev;
    oldest->prev->next = op;
    oldest->prev = op;
    if (at_front) {
        *queue = op;
    }
}

static void dequeue(SyncOp *op)
{
    SyncOp **queue = queue_of(op);
    if (op->next == op) {
        *queue = NULL;
    }
    else {
        op->prev->next = op->next;
        op->next->prev = op->prev;
        if (*queue == op) {
            *queue = op->next;
        }
    }
    op->next = op->prev = NULL;
}

/* Those to wake when the lock is released. Taken out of their operations under it: a goroutine that is woken
 * early by something else may go on with its operation, and queue it again, before we get to it. */
typedef struct {
    SyncOp *op; /* the queue's reference */
    G *g;
} Waiter;

typedef struct {
    size_t n, cap;
    Waiter *all, few[4];
} Woken;

static void woken_init(Woken *w)
{
    w->n = 0;
    w->cap = sizeof w->few / sizeof *w->few;
    w->all = w->few;
}

static void wake(SyncOp *op, int state, Woken *w)
{
    if (w->n == w->cap) {
        Waiter *more = malloc(w->cap * 4 * sizeof *more);
        if (more == NULL) {
            Py_FatalError("gofer: out of memory while waking goroutines");
        }
        memcpy(more, w->all, w->n * sizeof *more);
        if (w->all != w->few) {
            free(w->all);
        }
        w->all = more;
        w->cap *= 4;
    }
    dequeue(op);
    w->all[w->n++] = (Waiter){op, (G *)op->who.word};
    op->who = (Who){0};
    op_set_state(op, state);
}

/* The oldest waiter. Goroutines that were leaks, and have ended, are waved through (see op_closed_by_hand). */
static SyncOp *first(SyncOp **queue, Woken *w)
{
    while (*queue != NULL && unlikely(g_state((G *)(*queue)->who.word) == G_DEAD)) {
        wake(*queue, OP_DONE, w);
    }
    return *queue;
}

/* Lock released, P in P_USER. */
static void wake_all(Woken *w)
{
    M *m = tls_m;
    for (size_t i = 0; i < w->n; i++) {
        wake_from_user(m, w->all[i].g, w->n == 1);
        Py_DECREF(w->all[i].op);
    }
    if (unlikely(w->all != w->few)) {
        free(w->all);
    }
}

/* ---- the rules of each; under the lock ---- */

static void mutex_wake_one(Sync *s, Woken *woken)
{
    if (s->locked || s->woken) {
        return;
    }
    if (first(&s->queue, woken) == NULL) {
        s->starving = false; /* those it was for are gone */
        return;
    }
    if (s->starving) { /* hand it over */
        SyncOp *op = s->queue;
        s->locked = true;
        wake(op, OP_FIRED, woken);
        s->starving = s->queue != NULL && nanotime() - op->since_ns >= STARVING_NS;
    }
    else {
        s->woken = true;
        wake(s->queue, OP_WOKEN, woken);
    }
}

/* Readers that queued behind a writer enter together when it leaves, before the next writer. */
static void rw_grant(Sync *s, bool readers_first, Woken *woken)
{
    if (s->locked) {
        return;
    }
    if (readers_first || first(&s->queue, woken) == NULL) {
        while (first(&s->readers, woken) != NULL) {
            add(s, 1);
            wake(s->readers, OP_FIRED, woken);
        }
    }
    if (get(s) == 0 && first(&s->queue, woken) != NULL) {
        s->locked = true;
        wake(s->queue, OP_FIRED, woken);
    }
}

static void sem_grant(Sync *s, Woken *woken)
{
    while (first(&s->queue, woken) != NULL && s->queue->n <= get(s)) {
        add(s, -s->queue->n);
        wake(s->queue, OP_FIRED, woken);
    }
}

/* Can it be done right now? Then it is. */
static bool try_now(SyncOp *op)
{
    Sync *s = op->obj;
    switch (op->kind) {
    case MUTEX_LOCK:
        if (s->locked || s->starving) {
            return false;
        }
        s->locked = true;
        return true;
    case RW_LOCK:
        if (s->locked || get(s) > 0 || s->queue != NULL || s->readers != NULL) {
            return false;
        }
        s->locked = true;
        return true;
    case RW_RLOCK:
        if (s->locked || s->queue != NULL) {
            return false;
        }
        add(s, 1);
        return true;
    case WG_WAIT:
        return get(s) == 0;
    case SEM_ACQUIRE:
        if (s->queue != NULL || op->n > get(s)) {
            return false;
        }
        add(s, -op->n);
        return true;
    default:
        return false;
    }
}

/* An operation has left the queue without being granted: others may go on now. */
static void left(SyncOp *op, Woken *woken)
{
    Sync *s = op->obj;
    switch (op->kind) {
    case MUTEX_LOCK:
        s->starving = s->starving && s->queue != NULL;
        mutex_wake_one(s, woken);
        break;
    case RW_LOCK:
        rw_grant(s, s->queue == NULL, woken);
        break;
    case SEM_ACQUIRE:
        sem_grant(s, woken);
        break;
    default:
        break;
    }
}

/* Under the lock, released here. */
static SLOW bool mutex_unlock_slow(Sync *s)
{
    Woken woken;
    woken_init(&woken);
    bool was = s->locked;
    s->locked = false;
    if (was && Py_IS_TYPE(s, &RWMutex_Type)) {
        rw_grant(s, true, &woken);
    }
    else if (was) {
        mutex_wake_one(s, &woken);
    }
    obj_unlock(&s->lock);
    wake_all(&woken);
    return was;
}

/* A Mutex, or an RWMutex held by a writer; false: it was not locked. */
static inline bool mutex_unlock(Sync *s)
{
    obj_lock(&s->lock);
    if (unlikely(!s->locked || s->queue != NULL || s->readers != NULL)) {
        return mutex_unlock_slow(s);
    }
    s->locked = false;
    obj_unlock(&s->lock);
    return true;
}

static void raise_unlocked(Sync *s)
{
    PyErr_SetString(PyExc_RuntimeError, Py_IS_TYPE(s, &RWMutex_Type)
                                            ? "sync: Unlock of unlocked RWMutex"
                                            : "sync: unlock of unlocked mutex");
}

/* ---- the operation ---- */

static SLOW SyncOp *syncop_alloc(M *m)
{
    SyncOp *op = object_new(m, FREE_SYNC, &SyncOp_Type);
    if (likely(op != NULL)) {
        memset((char *)op + sizeof(PyObject), 0, sizeof(SyncOp) - sizeof(PyObject));
        compat_track((PyObject *)op);
    }
    return op;
}

static inline PyObject *syncop_new(Sync *obj, SyncKind kind, int64_t n)
{
    M *m = tls_m;
    SyncOp *op = spare_take(m, FREE_SYNC);
    if (unlikely(op == NULL) && (op = syncop_alloc(m)) == NULL) {
        return NULL;
    }
    op->obj = (Sync *)Py_NewRef(obj);
    op->n = n;
    atomic_store_explicit(&op->state, OP_NEW, memory_order_relaxed);
    op->kind = (uint8_t)kind;
    return (PyObject *)op;
}

/* It is done and will not be looked at again, if nobody but the await has it. */
static inline void syncop_spare(M *m, SyncOp *op)
{
    if (likely(spare_put(m, FREE_SYNC, (PyObject *)op))) {
        Sync *s = op->obj;
        op->obj = NULL;
        op->waiter = NULL;
        Py_DECREF(s);
    }
}

static bool may_cancel(SyncOp *op, G *g)
{
    return !op->relocks && op_cancel_pending(g);
}

static PySendResult syncop_done(M *m, SyncOp *op, G *g, PyObject **result)
{
    op_set_state(op, OP_DONE);
    if (unlikely(op->cancelled) && op_raise_if_cancelled(g)) {
        return PYGEN_ERROR;
    }
    if (likely(op->cond == NULL)) {
        syncop_spare(m, op);
    }
    return op_finish(Py_None, result);
}

/* Under the lock, released here: queue the operation and suspend. */
static PySendResult syncop_wait(SyncOp *op, G *g, bool at_front, PyObject **result)
{
    if (sharing()) {
        compat_share((PyObject *)op); /* others will see it from here on */
    }
    if (op->relocks) {
        op->n = atomic_load_explicit(&sched.orphaned, memory_order_relaxed);
    }
    op->waiter = g;
    op->who = who_g(g);
    enqueue(op, at_front);
    obj_unlock(&op->obj->lock);
    return op_suspend(g, reasons[op->kind], result);
}

/* Under the lock, released here. */
static SLOW PySendResult syncop_begin(M *m, G *g, SyncOp *op, PyObject **result)
{
    Sync *s = op->obj;
    if (unlikely(op_state(op) != OP_NEW &&
                 !op->relocks)) { /* another has begun it at the same time */
        obj_unlock(&s->lock);
        op_error_other((PyObject *)op);
        return PYGEN_ERROR;
    }
    op->waiter = g; /* before the state says that it is somebody's: another may look right now */
    if (try_now(op)) {
        op_set_state(op, OP_FIRED);
        obj_unlock(&s->lock);
        if (op_slice_over(m)) {
            return op_yield(g, result);
        }
        return syncop_done(m, op, g, result);
    }
    if (op->kind == MUTEX_LOCK) {
        op->since_ns = nanotime();
    }
    if (unlikely(s->voided) && atomic_load(&sched.fatal) != NULL) { /* it would be for ever */
        op_set_state(op, OP_DONE);
        obj_unlock(&s->lock);
        PyErr_SetNone(hooks.Cancelled);
        return PYGEN_ERROR;
    }
    return syncop_wait(op, g, false, result);
}

/* The condition has been signalled, or the wait was cancelled: lock the mutex again, whatever comes. */
static PySendResult cond_relock(M *m, G *g, SyncOp *op, PyObject **result)
{
    Sync *cond = op->obj;
    op->obj = (Sync *)Py_NewRef(cond->mu);
    op->kind = Py_IS_TYPE(cond->mu, &RWMutex_Type) ? RW_LOCK : MUTEX_LOCK;
    op->relocks = true;
    op->cond = cond;
    obj_lock(&op->obj->lock);
    return syncop_begin(m, g, op, result);
}

/* On the queue first, then the mutex is released: no signal is missed. Under the lock of the condition, released
 * here. */
static PySendResult cond_begin(G *g, SyncOp *op, PyObject **result)
{
    Sync *s = op->obj;
    if (unlikely(op_state(op) != OP_NEW)) {
        obj_unlock(&s->lock);
        op_error_other((PyObject *)op);
        return PYGEN_ERROR;
    }
    PySendResult r = syncop_wait(op, g, false, result);
    if (mutex_unlock((Sync *)s->mu)) {
        return r;
    }
    Py_CLEAR(*result);
    obj_lock(&s->lock);
    bool ours = op_state(op) == OP_WAITING; /* else somebody signals at this very moment */
    if (ours) {
        dequeue(op);
    }
    op_set_state(op, OP_DONE);
    obj_unlock(&s->lock);
    if (ours) {
        WHO_CLEAR(op->who);
        Py_DECREF(op);
    }
    PyErr_SetString(PyExc_RuntimeError, "Cond.wait() needs its mutex to be locked");
    return PYGEN_ERROR;
}

/* Take it off its queue, unless somebody was faster: false. */
static bool syncop_take_back(SyncOp *op)
{
    Sync *s = op->obj;
    Woken woken;
    woken_init(&woken);
    obj_lock(&s->lock);
    int state = op_state(op);
    if (state == OP_WAITING) {
        dequeue(op);
    }
    else if (state == OP_WOKEN) {
        s->woken = false;
    }
    if (state == OP_WAITING || state == OP_WOKEN) {
        op_set_state(op, OP_DONE);
        left(op, &woken);
    }
    obj_unlock(&s->lock);
    wake_all(&woken);
    if (state == OP_WAITING) {
        WHO_CLEAR(op->who);
        Py_DECREF(op);
    }
    return state == OP_WAITING || state == OP_WOKEN;
}

/* The run ends, and whoever holds the lock cannot let go of it any more: he is dead, or waits for ever and has
 * been cancelled in vain (see check_dead). One of those who would raise Cancelled as soon as they have it again
 * gets it in his place, so what follows runs with the lock held, and may unlock it, as always. One at a time:
 * the others wait for him. */
static bool inherit(SyncOp *op)
{
    Sync *s = op->obj;
    uint32_t now = atomic_load(&sched.orphaned);
    if (op->n == now) { /* queued since: the holder may be well */
        return false;
    }
    obj_lock(&s->lock);
    bool ours = op_state(op) == OP_WAITING && s->inherited != (uint8_t)now;
    if (ours) {
        dequeue(op);
        op_set_state(op, OP_FIRED);
        s->inherited = (uint8_t)now;
        s->locked = true;
        s->starving = s->starving && s->queue != NULL;
        add(s, -get(s)); /* RWMutex: of readers */
    }
    obj_unlock(&s->lock);
    if (ours) {
        WHO_CLEAR(op->who);
        Py_DECREF(op);
    }
    return ours;
}

static void mutex_waited(const SyncOp *op) /* for the metrics */
{
    if (op->kind == MUTEX_LOCK) {
        atomic_fetch_add_explicit(&mutex_wait_ns, nanotime() - op->since_ns, memory_order_relaxed);
    }
}

static PySendResult mutex_try_again(M *m, SyncOp *op, G *g, PyObject **result)
{
    Sync *s = op->obj;
    obj_lock(&s->lock);
    s->woken = false;
    if (!s->locked) {
        s->locked = true;
        obj_unlock(&s->lock);
        mutex_waited(op);
        return syncop_done(m, op, g, result);
    }
    s->starving = s->starving || nanotime() - op->since_ns > STARVING_NS;
    return syncop_wait(op, g, true, result);
}

static SLOW PySendResult syncop_step_slow(M *m, SyncOp *op, PyObject **result)
{
    int state = op_state(op);
    G *g = op_begin(m, (PyObject *)op, state);
    *result = NULL;
    if (unlikely(g == NULL)) {
        return PYGEN_ERROR;
    }
    if (state == OP_NEW) {
        if (unlikely(op_raise_if_cancelled(g))) {
            uint8_t unused = OP_NEW; /* if another has begun it, it is his */
            atomic_compare_exchange_strong(&op->state, &unused, OP_DONE);
            return PYGEN_ERROR;
        }
        obj_lock(&op->obj->lock);
        return op->kind == COND_WAIT ? cond_begin(g, op, result) : syncop_begin(m, g, op, result);
    }
    if (unlikely(op->waiter != g)) {
        op_error_other((PyObject *)op);
        return PYGEN_ERROR;
    }
    if (state == OP_WAITING || state == OP_WOKEN) {
        if (unlikely(op->relocks) && state == OP_WAITING && inherit(op)) {
            return syncop_done(m, op, g, result);
        }
        if (!may_cancel(op, g)) {
            return state == OP_WOKEN ? mutex_try_again(m, op, g, result)
                                     : op_suspend(g, reasons[op->kind], result);
        }
        if (syncop_take_back(op)) {
            if (op->kind == COND_WAIT) {
                op->cancelled = true;
                return cond_relock(m, g, op, result);
            }
            op_raise_taken_back(g);
            return PYGEN_ERROR;
        }
    }
    if (op->kind == COND_WAIT) {
        return cond_relock(m, g, op, result);
    }
    if (op->kind == WG_WAIT && op_raise_if_over(g)) {
        op_set_state(op, OP_DONE);
        return PYGEN_ERROR;
    }
    mutex_waited(op);
    return syncop_done(m, op, g, result); /* a cancellation waits for the next operation */
}

static inline PySendResult syncop_step(M *m, SyncOp *op, PyObject **result)
{
    if (unlikely(op->kind != MUTEX_LOCK || op_state(op) != OP_NEW || !op_undisturbed(m))) {
        return syncop_step_slow(m, op, result);
    }
    Sync *s = op->obj;
    *result = NULL;
    obj_lock(&s->lock);
    if (unlikely(s->locked || s->starving || op_state(op) != OP_NEW)) {
        return syncop_begin(m, m->curg, op, result);
    }
    s->locked = true;
    op_set_state(op, OP_DONE);
    obj_unlock(&s->lock);
    m->ops_left--;
    syncop_spare(m, op);
    *result = compat_none();
    return PYGEN_RETURN;
}

static PySendResult syncop_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    return syncop_step(tls_m, (SyncOp *)self, result);
}

static PyObject *syncop_next(PyObject *self)
{
    M *m = tls_m;
    PyObject *value;
    PySendResult r = syncop_step(m, (SyncOp *)self, &value);
    return op_tell(m, r, value);
}

static PyObject *give_back(SyncOp *op);

static PyObject *syncop_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    SyncOp *op = (SyncOp *)self;
    if (op_closed_by_hand(op->waiter)) {
        syncop_take_back(op);
    }
    uint8_t fired = OP_FIRED;
    if (!op->relocks && op->waiter != NULL &&
        atomic_compare_exchange_strong(&op->state, &fired, OP_DONE)) {
        return give_back(op); /* nobody will hear that it was granted */
    }
    if (op->kind == COND_WAIT && op->waiter != NULL) { /* what follows will unlock the mutex */
        Sync *mu = (Sync *)op->obj->mu;
        obj_lock(&mu->lock);
        mu->locked = true;
        obj_unlock(&mu->lock);
    }
    Py_RETURN_NONE;
}

static PyMethodDef syncop_methods[] = {{"close", syncop_close, METH_NOARGS, NULL}, {NULL}};

static int syncop_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(who_object(((SyncOp *)self)->who));
    Py_VISIT(((SyncOp *)self)->obj);
    Py_VISIT(((SyncOp *)self)->cond);
    return 0;
}

static int syncop_clear(PyObject *self)
{
    WHO_CLEAR(((SyncOp *)self)->who);
    return 0;
}

static void syncop_dealloc(PyObject *self)
{
    SyncOp *op = (SyncOp *)self;
    compat_untrack(self);
    WHO_CLEAR(op->who);
    Py_XDECREF(op->obj);
    Py_XDECREF(op->cond);
    object_free(tls_m, FREE_SYNC, self);
}

static PyObject *syncop_repr(PyObject *self)
{
    static const char *const names[] = {"lock", "lock", "rlock", "wait", "wait", "acquire"};
    SyncOp *op = (SyncOp *)self;
    if (op->obj == NULL) {
        return PyUnicode_FromFormat("<%s, done>", names[op->kind]);
    }
    return op_repr(names[op->kind], (PyObject *)op->obj, op_state(op));
}

static PyAsyncMethods syncop_async = {.am_send = syncop_send};

static PyTypeObject SyncOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.SyncOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(SyncOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation that lock(), wait() and acquire() return.",
    .tp_dealloc = syncop_dealloc,
    .tp_traverse = syncop_traverse,
    .tp_clear = syncop_clear,
    .tp_repr = syncop_repr,
    .tp_as_async = &syncop_async,
    .tp_iternext = syncop_next,
    .tp_methods = syncop_methods,
};

/* ---- what the five types share ---- */

static PyObject *sync_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) > 0 || (kwargs != NULL && PyDict_Size(kwargs) > 0)) {
        PyErr_Format(PyExc_TypeError, "%s() takes no arguments", type->tp_name);
        return NULL;
    }
    return type->tp_alloc(type, 0); /* all zero */
}

static int sync_traverse(PyObject *self, visitproc visit, void *arg)
{
    Sync *s = (Sync *)self;
    Py_VISIT(s->mu);
    for (int i = 0; i < 2; i++) {
        SyncOp *first = i == 0 ? s->queue : s->readers, *op = first;
        while (op != NULL) {
            Py_VISIT(op);
            op = op->next == first ? NULL : op->next;
        }
    }
    return 0;
}

static int sync_clear(PyObject *self)
{
    Sync *s = (Sync *)self;
    for (;;) {
        obj_lock(&s->lock);
        SyncOp *op = s->queue != NULL ? s->queue : s->readers;
        if (op != NULL) {
            dequeue(op);
            op_set_state(op, OP_DONE);
        }
        obj_unlock(&s->lock);
        if (op == NULL) {
            return 0; /* `mu` stays until dealloc */
        }
        WHO_CLEAR(op->who);
        Py_DECREF(op);
    }
}

static void sync_dealloc(PyObject *self)
{
    Sync *s = (Sync *)self;
    PyObject_GC_UnTrack(self);
    if (s->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    sync_clear(self);
    Py_CLEAR(s->mu);
    Py_TYPE(self)->tp_free(self);
}

/* `with`: block this thread, which must be in no goroutine. */
static PyObject *enter(PyObject *self, PyObject *op)
{
    if (op == NULL) {
        return NULL;
    }
    M *m = tls_m;
    if (m != NULL && m->curg != NULL && m->curg->plain) {
        PyObject *r = block_plain(m, op);
        Py_XDECREF(r);
        return r != NULL ? Py_NewRef(self) : NULL;
    }
    if (m != NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "`with %R` inside an async goroutine would stop its thread: use `async with`",
                     self);
        Py_DECREF(op);
        return NULL;
    }
    PyObject *r = block_on(op, TIME_NEVER, false);
    if (r == NULL) {
        return NULL;
    }
    Py_DECREF(r);
    return Py_NewRef(self);
}

#define SYNC_FIELDS                                                                         \
    .tp_basicsize = sizeof(Sync), .tp_dealloc = sync_dealloc, .tp_traverse = sync_traverse, \
    .tp_clear = sync_clear, .tp_weaklistoffset = offsetof(Sync, weakrefs)
#define SYNC_TYPE SYNC_FIELDS, .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC

/* ---- Mutex and the write side of RWMutex ---- */

static SyncKind lock_kind(PyObject *self)
{
    return Py_IS_TYPE(self, &RWMutex_Type) ? RW_LOCK : MUTEX_LOCK;
}

static PyObject *mutex_lock_method(PyObject *self, PyObject *Py_UNUSED(a))
{
    return syncop_new((Sync *)self, lock_kind(self), 0);
}

static PyObject *mutex_unlock_method(PyObject *self, PyObject *Py_UNUSED(a))
{
    if (check_forked()) {
        return NULL;
    }
    if (!mutex_unlock((Sync *)self)) {
        raise_unlocked((Sync *)self);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *try_method(PyObject *self, SyncKind kind, int64_t n)
{
    SyncOp op = {.obj = (Sync *)self, .kind = (uint8_t)kind, .n = n};
    obj_lock(&op.obj->lock);
    bool done = try_now(&op);
    obj_unlock(&op.obj->lock);
    return PyBool_FromLong(done);
}

static PyObject *mutex_try_lock(PyObject *self, PyObject *Py_UNUSED(a))
{
    return try_method(self, lock_kind(self), 0);
}

static PyObject *mutex_locked(PyObject *self, PyObject *Py_UNUSED(a))
{
    Sync *s = (Sync *)self;
    obj_lock(&s->lock);
    bool locked = s->locked;
    obj_unlock(&s->lock);
    return PyBool_FromLong(locked);
}

static PyObject *mutex_enter(PyObject *self, PyObject *Py_UNUSED(a))
{
    return enter(self, mutex_lock_method(self, NULL));
}

/* `async with`: the way out is an operation too, but has been done already. Eats r; NULL if that is NULL. */
static PyObject *aexit(PyObject *r)
{
    if (unlikely(r == NULL)) {
        return NULL;
    }
    compat_drop_none();
    return Py_NewRef((PyObject *)&done_op);
}

static PyObject *mutex_aexit(PyObject *self, PyObject *const *Py_UNUSED(a), Py_ssize_t Py_UNUSED(n))
{
    return aexit(mutex_unlock_method(self, NULL));
}

static PyObject *mutex_exit(PyObject *self, PyObject *const *Py_UNUSED(a), Py_ssize_t Py_UNUSED(n))
{
    return mutex_unlock_method(self, NULL);
}

#define FAST(f) ((PyCFunction)(void (*)(void))(f))
#define LOCK_METHODS                                                                          \
    {"lock", mutex_lock_method, METH_NOARGS,                                                  \
     "lock()\n--\n\nOperation: lock it.\n\n>>> await mu.lock()"},                             \
        {"unlock", mutex_unlock_method, METH_NOARGS,                                          \
         "unlock()\n--\n\nUnlock it; RuntimeError if it is not locked.\n\n>>> await "         \
         "mu.lock()\n>>> mu.unlock()"},                                                       \
        {"try_lock", mutex_try_lock, METH_NOARGS,                                             \
         "try_lock()\n--\n\nLock it if that needs no waiting.\n\n>>> mu.try_lock()\nTrue"},   \
        {"locked", mutex_locked, METH_NOARGS,                                                 \
         "locked()\n--\n\nWhether it is locked, at this instant.\n\n>>> mu.locked()\nFalse"}, \
        {"__aenter__", mutex_lock_method, METH_NOARGS, NULL},                                 \
        {"__aexit__", FAST(mutex_aexit), METH_FASTCALL, NULL},                                \
        {"__enter__", mutex_enter, METH_NOARGS, NULL},                                        \
    {                                                                                         \
        "__exit__", FAST(mutex_exit), METH_FASTCALL, NULL                                     \
    }

static PyObject *mutex_repr(PyObject *self)
{
    Sync *s = (Sync *)self;
    obj_lock(&s->lock);
    bool locked = s->locked;
    long long readers = (long long)get(s); /* of a Mutex: none */
    obj_unlock(&s->lock);
    const char *name = Py_IS_TYPE(s, &RWMutex_Type) ? "RWMutex" : "Mutex";
    return readers > 0
               ? PyUnicode_FromFormat("<%s read-locked %lld times at %p>", name, readers,
                                      (void *)self)
               : PyUnicode_FromFormat("<%s%s at %p>", name, locked ? " locked" : "", (void *)self);
}

static PyMethodDef mutex_methods[] = {LOCK_METHODS, {NULL}};

static PyTypeObject Mutex_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.Mutex",
    SYNC_TYPE,
    .tp_doc =
        "Mutex()\n--\n\nMutual exclusion, with Go's normal and starvation modes. Any goroutine may "
        "unlock it.\n\n>>> mu = Mutex()\n>>> async with mu:\n...     counter += 1",
    .tp_new = sync_tp_new,
    .tp_repr = mutex_repr,
    .tp_methods = mutex_methods,
};

/* ---- RWMutex ---- */

static PyObject *rw_rlock(PyObject *self, PyObject *Py_UNUSED(a))
{
    return syncop_new((Sync *)self, RW_RLOCK, 0);
}

static PyObject *rw_runlock(PyObject *self, PyObject *Py_UNUSED(a))
{
    Sync *s = (Sync *)self;
    Woken woken;
    woken_init(&woken);
    if (check_forked()) {
        return NULL;
    }
    obj_lock(&s->lock);
    bool was = get(s) > 0;
    if (was) {
        add(s, -1);
        rw_grant(s, false, &woken);
    }
    obj_unlock(&s->lock);
    wake_all(&woken);
    if (!was) {
        PyErr_SetString(PyExc_RuntimeError, "sync: RUnlock of unlocked RWMutex");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *rw_try_rlock(PyObject *self, PyObject *Py_UNUSED(a))
{
    return try_method(self, RW_RLOCK, 0);
}

typedef struct {
    PyObject_HEAD
    PyObject *rw; /* owned */
} Reader;

static PyObject *rw_reader(PyObject *self, void *Py_UNUSED(c))
{
    Reader *r = PyObject_GC_New(Reader, &Reader_Type);
    if (r != NULL) {
        r->rw = Py_NewRef(self);
        PyObject_GC_Track(r);
    }
    return (PyObject *)r;
}

static PyMethodDef rw_methods[] = {
    LOCK_METHODS,
    {"rlock", rw_rlock, METH_NOARGS,
     "rlock()\n--\n\nOperation: lock it for reading, beside other readers.\n\n>>> await "
     "rw.rlock()"},
    {"runlock", rw_runlock, METH_NOARGS,
     "runlock()\n--\n\nUndo one rlock().\n\n>>> await rw.rlock()\n>>> rw.runlock()"},
    {"try_rlock", rw_try_rlock, METH_NOARGS,
     "try_rlock()\n--\n\nLock it for reading if that needs no waiting.\n\n>>> "
     "rw.try_rlock()\nTrue"},
    {NULL},
};
static PyGetSetDef rw_getset[] = {
    {"reader", rw_reader, NULL, "The read side, for `async with rw.reader`.", NULL}, {NULL}};

static PyTypeObject RWMutex_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.RWMutex",
    SYNC_TYPE,
    .tp_doc =
        "RWMutex()\n--\n\nOne writer or many readers. A waiting writer stops new readers; readers "
        "that waited\nfor a writer go before the next one.\n\n>>> async with rw.reader:\n...     "
        "look()\n>>> async with rw:\n...     change()",
    .tp_new = sync_tp_new,
    .tp_repr = mutex_repr,
    .tp_methods = rw_methods,
    .tp_getset = rw_getset,
};

static PyObject *reader_aenter(PyObject *self, PyObject *Py_UNUSED(a))
{
    return rw_rlock(((Reader *)self)->rw, NULL);
}

static PyObject *reader_enter(PyObject *self, PyObject *Py_UNUSED(a))
{
    return enter(self, reader_aenter(self, NULL));
}

static PyObject *reader_exit(PyObject *self, PyObject *const *Py_UNUSED(a), Py_ssize_t Py_UNUSED(n))
{
    return rw_runlock(((Reader *)self)->rw, NULL);
}

static PyObject *reader_aexit(PyObject *self, PyObject *const *Py_UNUSED(a),
                              Py_ssize_t Py_UNUSED(n))
{
    return aexit(rw_runlock(((Reader *)self)->rw, NULL));
}

static int reader_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Reader *)self)->rw);
    return 0;
}

static void reader_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Reader *)self)->rw);
    PyObject_GC_Del(self);
}

static PyObject *reader_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<reader of %R>", ((Reader *)self)->rw);
}

static PyMethodDef reader_methods[] = {
    {"__aenter__", reader_aenter, METH_NOARGS, NULL},
    {"__aexit__", FAST(reader_aexit), METH_FASTCALL, NULL},
    {"__enter__", reader_enter, METH_NOARGS, NULL},
    {"__exit__", FAST(reader_exit), METH_FASTCALL, NULL},
    {NULL},
};

static PyTypeObject Reader_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.RWMutexReader",
    .tp_basicsize = sizeof(Reader),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The read side of an RWMutex.",
    .tp_dealloc = reader_dealloc,
    .tp_traverse = reader_traverse,
    .tp_repr = reader_repr,
    .tp_methods = reader_methods,
};

/* ---- WaitGroup ---- */

static PyObject *wg_change(Sync *s, int64_t n)
{
    Woken woken;
    woken_init(&woken);
    if (check_forked()) {
        return NULL;
    }
    obj_lock(&s->lock);
    int64_t count;
    bool overflow = __builtin_add_overflow(get(s), n, &count);
    bool ok = !overflow && count >= 0;
    if (ok) {
        add(s, n);
        while (count == 0 && s->queue != NULL) {
            wake(s->queue, OP_FIRED, &woken);
        }
    }
    obj_unlock(&s->lock);
    wake_all(&woken);
    if (!ok) {
        PyErr_SetString(PyExc_ValueError, overflow && n > 0 ? "sync: WaitGroup counter overflow"
                                                            : "sync: negative WaitGroup counter");
        return NULL;
    }
    Py_RETURN_NONE;
}

static bool as_count(PyObject *obj, const char *what, int64_t *n)
{
    if (!PyLong_Check(obj) || PyBool_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "%s needs an int, not %R", what, obj);
        return false;
    }
    *n = PyLong_AsLongLong(obj);
    if (*n == -1 && PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "%s: %R is out of range", what, obj);
        return false;
    }
    return true;
}

/* The one optional positional or keyword argument `name` of a method; `otherwise` if it is not given. */
static bool one_count(PyObject *args, PyObject *kwargs, const char *what, char *name, int64_t *n)
{
    char *names[] = {name, NULL};
    PyObject *obj = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &obj)) {
        return false;
    }
    return obj == NULL || as_count(obj, what, n);
}

static PyObject *wg_add(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char name[] = "n";
    int64_t n = 1;
    return one_count(args, kwargs, "add()", name, &n) ? wg_change((Sync *)self, n) : NULL;
}

static PyObject *wg_done(PyObject *self, PyObject *Py_UNUSED(a))
{
    return wg_change((Sync *)self, -1);
}

static PyObject *wg_wait(PyObject *self, PyObject *Py_UNUSED(a))
{
    return syncop_new((Sync *)self, WG_WAIT, 0);
}

/* _count(goroutine): it has been added; count it down when it has ended. */
static PyObject *wg_count(PyObject *self, PyObject *g)
{
    if (!Py_IS_TYPE(g, &Goroutine_Type)) {
        PyErr_Format(PyExc_TypeError, "WaitGroup counts goroutines, not %R", g);
        return NULL;
    }
    int r = join_count((G *)g, self);
    return r < 0 ? NULL : r > 0 ? Py_NewRef(Py_None) : wg_change((Sync *)self, -1);
}

void wg_void(PyObject *wg)
{
    Sync *s = (Sync *)wg;
    obj_lock(&s->lock);
    s->voided = true;
    obj_unlock(&s->lock);
}

void wg_ended(PyObject *wg)
{
    PyObject *r = wg_change((Sync *)wg, -1);
    if (r == NULL) { /* somebody has called done() too often, and nobody is there to hear of it */
        run_fail(compat_take_exception());
    }
    Py_XDECREF(r);
}

static PyObject *wg_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<WaitGroup %lld at %p>", (long long)get((Sync *)self),
                                (void *)self);
}

static PyMethodDef wg_methods[] = {
    {"add", FAST(wg_add), METH_VARARGS | METH_KEYWORDS,
     "add(n=1)\n--\n\nCount n up (or down, if negative). ValueError below zero.\n\n>>> wg.add(2)"},
    {"done", wg_done, METH_NOARGS, "done()\n--\n\nCount one down.\n\n>>> wg.add(1)\n>>> wg.done()"},
    {"wait", wg_wait, METH_NOARGS,
     "wait()\n--\n\nOperation: until the counter is zero.\n\n>>> await wg.wait()"},
    {"_count", wg_count, METH_O, NULL},
    {NULL},
};

static PyTypeObject WaitGroup_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.WaitGroup",
    SYNC_FIELDS,
    .tp_flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, /* go() is in Python */
    .tp_new = sync_tp_new,
    .tp_repr = wg_repr,
    .tp_methods = wg_methods,
};

/* ---- Cond ---- */

static PyObject *cond_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char name[] = "mu", *names[] = {name, NULL};
    PyObject *mu;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Cond", names, &mu)) {
        return NULL;
    }
    if (!Py_IS_TYPE(mu, &Mutex_Type) && !Py_IS_TYPE(mu, &RWMutex_Type)) {
        PyErr_Format(PyExc_TypeError, "Cond() needs a Mutex or an RWMutex, not %R", mu);
        return NULL;
    }
    Sync *s = (Sync *)type->tp_alloc(type, 0);
    if (s != NULL) {
        s->mu = Py_NewRef(mu);
    }
    return (PyObject *)s;
}

static PyObject *cond_wait(PyObject *self, PyObject *Py_UNUSED(a))
{
    return syncop_new((Sync *)self, COND_WAIT, 0);
}

static PyObject *cond_wake(Sync *s, bool all)
{
    Woken woken;
    woken_init(&woken);
    if (check_forked()) {
        return NULL;
    }
    obj_lock(&s->lock);
    while (first(&s->queue, &woken) != NULL) {
        wake(s->queue, OP_FIRED, &woken);
        if (!all) {
            break;
        }
    }
    obj_unlock(&s->lock);
    wake_all(&woken);
    Py_RETURN_NONE;
}

static PyObject *cond_signal(PyObject *self, PyObject *Py_UNUSED(a))
{
    return cond_wake((Sync *)self, false);
}

static PyObject *cond_broadcast(PyObject *self, PyObject *Py_UNUSED(a))
{
    return cond_wake((Sync *)self, true);
}

static PyObject *cond_repr(PyObject *self)
{
    Sync *s = (Sync *)self;
    long long n = 0;
    obj_lock(&s->lock);
    for (SyncOp *op = s->queue; op != NULL; n++) {
        op = op->next != s->queue ? op->next : NULL;
    }
    obj_unlock(&s->lock);
    return PyUnicode_FromFormat("<Cond of %R, %lld waiting, at %p>", s->mu, n, (void *)self);
}

static PyMethodDef cond_methods[] = {
    {"wait", cond_wait, METH_NOARGS,
     "wait()\n--\n\nOperation: unlock the mutex, wait for a signal, lock it again (also before "
     "raising).\n"
     "If run() ends and the mutex was left locked, one that waits takes it over.\n\n"
     ">>> async with cond.mu:\n...     while not ready:\n...         await cond.wait()"},
    {"signal", cond_signal, METH_NOARGS,
     "signal()\n--\n\nWake the one that has waited longest.\n\n>>> cond.signal()"},
    {"broadcast", cond_broadcast, METH_NOARGS,
     "broadcast()\n--\n\nWake all that wait now.\n\n>>> cond.broadcast()"},
    {NULL},
};
static PyMemberDef cond_members[] = {{"mu", T_OBJECT, offsetof(Sync, mu), READONLY, "Its mutex."},
                                     {NULL}};

static PyTypeObject Cond_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.Cond",
    SYNC_TYPE,
    .tp_doc =
        "Cond(mu)\n--\n\nA condition variable: wait() for a signal, in the order of arrival.\n\n"
        ">>> cond = Cond(Mutex())\n>>> cond.signal()",
    .tp_new = cond_tp_new,
    .tp_repr = cond_repr,
    .tp_methods = cond_methods,
    .tp_members = cond_members,
};

/* ---- Semaphore ---- */

static PyObject *sem_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char name[] = "n", *names[] = {name, NULL};
    PyObject *obj;
    int64_t n;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Semaphore", names, &obj) ||
        !as_count(obj, "Semaphore()", &n)) {
        return NULL;
    }
    if (n < 0) {
        PyErr_Format(PyExc_ValueError, "Semaphore() needs at least 0 permits, not %R", obj);
        return NULL;
    }
    Sync *s = (Sync *)type->tp_alloc(type, 0);
    if (s != NULL) {
        s->size = n;
        add(s, n);
    }
    return (PyObject *)s;
}

static bool sem_count(PyObject *args, PyObject *kwargs, const char *what, int64_t *k)
{
    static char name[] = "k";
    *k = 1;
    if (!one_count(args, kwargs, what, name, k)) {
        return false;
    }
    if (*k < 1) {
        PyErr_Format(PyExc_ValueError, "%s needs at least 1 permit, not %lld", what, (long long)*k);
        return false;
    }
    return true;
}

static PyObject *sem_acquire_n(PyObject *self, int64_t k)
{
    if (k > ((Sync *)self)->size) {
        PyErr_Format(PyExc_ValueError,
                     "acquire() of %lld permits can never succeed: there are %lld", (long long)k,
                     (long long)((Sync *)self)->size);
        return NULL;
    }
    return syncop_new((Sync *)self, SEM_ACQUIRE, k);
}

static PyObject *sem_acquire(PyObject *self, PyObject *args, PyObject *kwargs)
{
    int64_t k;
    return sem_count(args, kwargs, "acquire()", &k) ? sem_acquire_n(self, k) : NULL;
}

static PyObject *sem_try_acquire(PyObject *self, PyObject *args, PyObject *kwargs)
{
    int64_t k;
    return sem_count(args, kwargs, "try_acquire()", &k) ? try_method(self, SEM_ACQUIRE, k) : NULL;
}

static PyObject *sem_put(Sync *s, int64_t k)
{
    Woken woken;
    woken_init(&woken);
    if (check_forked()) {
        return NULL;
    }
    obj_lock(&s->lock);
    bool ok = k <= s->size - get(s);
    if (ok) {
        add(s, k);
        sem_grant(s, &woken);
    }
    obj_unlock(&s->lock);
    wake_all(&woken);
    if (!ok) {
        PyErr_SetString(PyExc_RuntimeError, "semaphore: released more than held");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *sem_release(PyObject *self, PyObject *args, PyObject *kwargs)
{
    int64_t k;
    return sem_count(args, kwargs, "release()", &k) ? sem_put((Sync *)self, k) : NULL;
}

static PyObject *sem_aenter(PyObject *self, PyObject *Py_UNUSED(a))
{
    return sem_acquire_n(self, 1);
}

static PyObject *sem_enter(PyObject *self, PyObject *Py_UNUSED(a))
{
    return enter(self, sem_aenter(self, NULL));
}

static PyObject *sem_exit(PyObject *self, PyObject *const *Py_UNUSED(a), Py_ssize_t Py_UNUSED(n))
{
    return sem_put((Sync *)self, 1);
}

static PyObject *sem_aexit(PyObject *self, PyObject *const *Py_UNUSED(a), Py_ssize_t Py_UNUSED(n))
{
    return aexit(sem_put((Sync *)self, 1));
}

static PyObject *sem_repr(PyObject *self)
{
    Sync *s = (Sync *)self;
    return PyUnicode_FromFormat("<Semaphore %lld/%lld at %p>", (long long)get(s),
                                (long long)s->size, (void *)s);
}

static PyMethodDef sem_methods[] = {
    {"acquire", FAST(sem_acquire), METH_VARARGS | METH_KEYWORDS,
     "acquire(k=1)\n--\n\nOperation: take k permits, in the order of arrival.\n\n>>> await "
     "sem.acquire(2)"},
    {"try_acquire", FAST(sem_try_acquire), METH_VARARGS | METH_KEYWORDS,
     "try_acquire(k=1)\n--\n\nTake k permits if that needs no waiting.\n\n>>> "
     "sem.try_acquire()\nTrue"},
    {"release", FAST(sem_release), METH_VARARGS | METH_KEYWORDS,
     "release(k=1)\n--\n\nGive k permits back.\n\n>>> await sem.acquire(2)\n>>> sem.release(2)"},
    {"__aenter__", sem_aenter, METH_NOARGS, NULL},
    {"__aexit__", FAST(sem_aexit), METH_FASTCALL, NULL},
    {"__enter__", sem_enter, METH_NOARGS, NULL},
    {"__exit__", FAST(sem_exit), METH_FASTCALL, NULL},
    {NULL},
};

static PyTypeObject Semaphore_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.Semaphore",
    SYNC_TYPE,
    .tp_doc =
        "Semaphore(n)\n--\n\nn permits, taken one or several at a time, strictly first come first "
        "served.\n\n>>> sem = Semaphore(10)\n>>> async with sem:\n...     page = await fetch(url)",
    .tp_new = sem_tp_new,
    .tp_repr = sem_repr,
    .tp_methods = sem_methods,
};

static PyObject *give_back(SyncOp *op)
{
    PyObject *obj = (PyObject *)op->obj;
    switch (op->kind) {
    case MUTEX_LOCK:
    case RW_LOCK:
        return mutex_unlock_method(obj, NULL);
    case RW_RLOCK:
        return rw_runlock(obj, NULL);
    case SEM_ACQUIRE:
        return sem_put(op->obj, op->n);
    default:
        Py_RETURN_NONE;
    }
}

bool sema_module_init(PyObject *mod)
{
    PyTypeObject *types[] = {&Mutex_Type, &RWMutex_Type, &WaitGroup_Type, &Cond_Type,
                             &Semaphore_Type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyModule_AddType(mod, types[i]) < 0) {
            return false;
        }
    }
    return PyType_Ready(&SyncOp_Type) == 0 && PyType_Ready(&Reader_Type) == 0 &&
           bind_cheaply(&Mutex_Type) && bind_cheaply(&RWMutex_Type) && bind_cheaply(&Reader_Type) &&
           bind_cheaply(&Semaphore_Type);
}
