/* Waiting for a concurrent.futures.Future: `await fut`, offload().
 *
 * The future is completed by a thread that knows nothing of us. All it does is to close a channel, from a
 * callback that the Python side has added (future_started and call_submitted in _hooks.py). An operation here
 * is therefore the receive operation of that channel, which has the queue, the lock and the races behind it,
 * and what comes before and after: the call is submitted, the result is fetched, and a call that nobody waits
 * for any more is cancelled.
 *
 * Everything here runs attached, with the P in P_USER, by the goroutine that awaits. */
#include "future.h"

/* How many wait, or are about to: see foreign_threads in _hooks.py. */
static _Atomic int64_t waiting;

typedef struct FutureOp {
    PyObject_HEAD
    PyObject *call;   /* owned: (executor, fn, args, kwargs) until it has been submitted; or NULL */
    PyObject *fn;     /* owned: that of the call, NULL if there is none; for repr() */
    PyObject *future; /* owned; NULL until there is one */
    PyObject *wait;   /* owned: the ChanOp */
    const G *waiter;  /* who awaits it: only ever compared */
    _Atomic uint8_t state;
    bool own;     /* the future is of our making: cancelled if nobody waits for it any more */
    bool counted; /* in `waiting` */
} FutureOp;

static void count(FutureOp *op, bool on)
{
    if (op->counted != on) {
        op->counted = on;
        atomic_fetch_add(&waiting, on ? 1 : -1);
    }
}

PyObject *future_begin(PyObject *self)
{
    FutureOp *op = (FutureOp *)self;
    uint8_t unused = OP_NEW;
    /* Until it waits it is marked as done: whoever comes meanwhile is told so. */
    if (!atomic_compare_exchange_strong(&op->state, &unused, OP_DONE)) {
        op_error_used(self, unused);
        return NULL;
    }
    PyObject *channel = NULL, *call = op->call;
    count(op, true);
    if (call == NULL) {
        channel = PyObject_CallOneArg(hooks.future_started, op->future);
    }
    else {
        op->call = NULL;
        PyObject *pair = PyObject_Call(hooks.call_submitted, call, NULL);
        Py_DECREF(call); /* the executor has what it needs of it */
        if (pair != NULL) {
            op->future = Py_NewRef(PyTuple_GET_ITEM(pair, 0));
            channel = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
            Py_DECREF(pair);
        }
    }
    op->wait = channel != NULL ? chan_until_closed_op((Chan *)channel) : NULL;
    Py_XDECREF(channel);
    if (op->wait == NULL) {
        future_give_up(self);
    }
    return op->wait;
}

PyObject *future_result(PyObject *self)
{
    FutureOp *op = (FutureOp *)self;
    count(op, false);
    atomic_store(&op->state, OP_DONE);
    return PyObject_CallMethod(op->future, "result", NULL);
}

void future_give_up(PyObject *self)
{
    FutureOp *op = (FutureOp *)self;
    count(op, false);
    atomic_store(&op->state, OP_DONE);
    if (!op->own || op->future == NULL) {
        return;
    }
    PyObject *exc = PyErr_Occurred() ? compat_take_exception() : NULL;
    PyObject *r = PyObject_CallMethod(op->future, "cancel", NULL); /* false: too late, it runs */
    if (r == NULL) {
        PyErr_WriteUnraisable(op->future);
    }
    Py_XDECREF(r);
    if (exc != NULL) {
        compat_raise(exc);
    }
}

static PySendResult future_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    FutureOp *op = (FutureOp *)self;
    int state = atomic_load(&op->state);
    *result = NULL;
    G *g = op_begin(tls_m, self, state);
    if (g == NULL) {
        return PYGEN_ERROR;
    }
    if (state == OP_NEW) {
        if (op_raise_if_cancelled(g)) { /* nothing is begun; if another has begun it, it is his */
            uint8_t unused = OP_NEW;
            atomic_compare_exchange_strong(&op->state, &unused, OP_DONE);
            return PYGEN_ERROR;
        }
        if (future_begin(self) == NULL) {
            return PYGEN_ERROR;
        }
        op->waiter = g;
        atomic_store(&op->state, OP_WAITING);
    }
    else if (op->waiter != g) {
        op_error_other(self);
        return PYGEN_ERROR;
    }
    PySendResult r = Py_TYPE(op->wait)->tp_as_async->am_send(op->wait, Py_None, result);
    if (r == PYGEN_NEXT) {
        if (atomic_load_explicit(&g->wait_reason, memory_order_relaxed) != WAIT_NONE) {
            atomic_store_explicit(&g->wait_reason, WAIT_FUTURE, memory_order_relaxed);
        }
        return r;
    }
    if (r == PYGEN_ERROR) {
        future_give_up(self);
        return r;
    }
    Py_CLEAR(*result);
    *result = future_result(self);
    return *result != NULL ? PYGEN_RETURN : PYGEN_ERROR;
}

static PyObject *future_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    FutureOp *op = (FutureOp *)self;
    if (atomic_load(&op->state) != OP_WAITING || !op_closed_by_hand(op->waiter)) {
        Py_RETURN_NONE;
    }
    PyObject *r = PyObject_CallMethod(op->wait, "close", NULL);
    future_give_up(self);
    return r;
}

static PyMethodDef future_methods[] = {{"close", future_close, METH_NOARGS, NULL}, {NULL}};

/* future_op(future, None) or future_op(None, (executor, fn, args, kwargs)): _offload.py has checked them. */
static PyObject *core_future_op(PyObject *Py_UNUSED(mod), PyObject *args)
{
    PyObject *future, *call;
    if (!PyArg_ParseTuple(args, "OO:future_op", &future, &call)) {
        return NULL;
    }
    FutureOp *op = PyObject_GC_New(FutureOp, &FutureOp_Type);
    if (op == NULL) {
        return NULL;
    }
    live_add(tls_m, LIVE_OP, 1);
    op->own = call != Py_None;
    op->call = op->own ? Py_NewRef(call) : NULL;
    op->fn = op->own ? Py_NewRef(PyTuple_GET_ITEM(call, 1)) : NULL;
    op->future = op->own ? NULL : Py_NewRef(future);
    op->wait = NULL;
    op->waiter = NULL;
    op->counted = false;
    atomic_store_explicit(&op->state, OP_NEW, memory_order_relaxed);
    PyObject_GC_Track(op);
    return (PyObject *)op;
}

/* futures_waiting(): by how many operations. */
static PyObject *core_futures_waiting(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return PyLong_FromLongLong((long long)atomic_load(&waiting));
}

PyMethodDef future_module_methods[] = {
    {"future_op", core_future_op, METH_VARARGS, NULL},
    {"futures_waiting", core_futures_waiting, METH_NOARGS, NULL},
    {NULL},
};

static int future_traverse(PyObject *self, visitproc visit, void *arg)
{
    FutureOp *op = (FutureOp *)self;
    Py_VISIT(op->call);
    Py_VISIT(op->fn);
    Py_VISIT(op->future);
    Py_VISIT(op->wait);
    return 0;
}

static void future_dealloc(PyObject *self)
{
    FutureOp *op = (FutureOp *)self;
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, future_dealloc);
    count(op, false);
    Py_CLEAR(op->call);
    Py_CLEAR(op->fn);
    Py_CLEAR(op->future);
    Py_CLEAR(op->wait);
    live_add(tls_m, LIVE_OP, -1);
    PyObject_GC_Del(self);
    Py_TRASHCAN_END
}

static PyObject *future_repr(PyObject *self)
{
    FutureOp *op = (FutureOp *)self;
    const char *state = op_state_text(atomic_load(&op->state));
    if (op->own) {
        return PyUnicode_FromFormat("<offload of %R, %s>", op->fn, state);
    }
    return PyUnicode_FromFormat("<wait for %R, %s>", op->future, state);
}

static PyAsyncMethods future_async = {.am_await = PyObject_SelfIter, .am_send = future_send};

/* No tp_clear: what it refers to is looked at whenever it is. A cycle through it is broken elsewhere: in the
 * future, the channel or the frame. */
PyTypeObject FutureOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.FutureOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(FutureOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation behind offload() and `await future`.",
    .tp_dealloc = future_dealloc,
    .tp_traverse = future_traverse,
    .tp_repr = future_repr,
    .tp_as_async = &future_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = op_iternext,
    .tp_methods = future_methods,
};
