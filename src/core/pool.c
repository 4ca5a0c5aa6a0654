/* The busy part of a WorkerPool: submit(), and the loop of a worker, which takes a job, calls or
 * awaits the handler, and gives the result. That is all that a small job costs, so it is in C. What is rare is in _pool.py:
 * handlers that raise, CPU-bound jobs, executors, the end.
 *
 * Everything here runs attached, with the P in P_USER, by the goroutine of the worker. Others look only at the
 * atomic fields, and may take `job` away: then the worker has been given up on, and keeps its result to itself. */
#include "chan.h"

typedef struct {
    PyObject_HEAD
    Chan *jobs, *results; /* owned */
    PyObject *handler;    /* owned */
    PyObject *
        is_value; /* owned: whether what a plain handler has returned is its value; NULL: it is async */
    PyTypeObject *type;         /* owned: gofer.Result, a tuple (job, value, error, elapsed) */
    PyObject *coro;             /* owned: the handler's, while it runs */
    PyObject *wait;             /* owned: the operation that gets the next job */
    _Atomic(PyObject *) job;    /* owned; whoever takes it out accounts for it */
    _Atomic int64_t started_ns; /* when it was begun */
    _Atomic int64_t done;       /* how many handlers have returned */
    bool handling;              /* an exception is the handler's */
} PoolWorker;

static PyTypeObject PoolWorker_Type;

/* ---- one job ---- */

static void begin(PoolWorker *w, PyObject *job)
{
    w->handling = true;
    atomic_store_explicit(&w->started_ns, nanotime(), memory_order_relaxed);
    atomic_store_explicit(&w->job, Py_NewRef(job), memory_order_release);
}

static double elapsed(const PoolWorker *w)
{
    return (double)(nanotime() - atomic_load_explicit(&w->started_ns, memory_order_relaxed)) / 1e9;
}

static PyObject *make_result(PoolWorker *w, PyObject *job, PyObject *value, double seconds)
{
    PyObject *result = compat_tuple_new(w->type, 4);
    PyObject *time = PyFloat_FromDouble(seconds);
    if (result == NULL || time == NULL) {
        Py_XDECREF(result);
        Py_XDECREF(time);
        return NULL;
    }
    if (sharing()) { /* whoever reads the result lets go of all of it */
        compat_share_new(time);
        compat_share(value);
    }
    PyTuple_SET_ITEM(result, 0, Py_NewRef(job));
    PyTuple_SET_ITEM(result, 1, Py_NewRef(value));
    PyTuple_SET_ITEM(result, 2, Py_NewRef(Py_None));
    PyTuple_SET_ITEM(result, 3, time);
    return result;
}

/* 1: the result is on its way, 0: we have been given up on, -1: exception. */
static int give(PoolWorker *w, PyObject *value)
{
    double seconds = elapsed(w);
    PyObject *job = atomic_exchange(&w->job, NULL);
    if (job == NULL) {
        return 0;
    }
    PyObject *result = make_result(w, job, value, seconds);
    Py_DECREF(job);
    if (result == NULL) {
        return -1;
    }
    atomic_fetch_add_explicit(&w->done, 1, memory_order_relaxed);
    return chan_put(w->results, result) ? 1 : -1;
}

/* Submitters and workers wake each other, and could go on so for a whole slice while whoever reads the results
 * waits for his turn. So if many are unread, let others run now and then. */
static bool let_others_run(const PoolWorker *w)
{
    enum { OFTEN = 64, MANY = 128 };
    return atomic_load_explicit(&w->done, memory_order_relaxed) % OFTEN == 0 &&
           atomic_load_explicit(&w->results->count, memory_order_relaxed) > MANY;
}

/* ---- the loop ---- */

/* *job is the caller's. */
static PySendResult next_job(PoolWorker *w, PyObject **job)
{
    w->handling = false;
    if (w->wait == NULL) {
        if ((*job = chan_take_now(w->jobs)) != NULL) {
            return PYGEN_RETURN;
        }
        w->wait = chan_next_op(w->jobs);
        if (w->wait == NULL) {
            return PYGEN_ERROR;
        }
    }
    PySendResult r = Py_TYPE(w->wait)->tp_as_async->am_send(w->wait, Py_None, job);
    if (r != PYGEN_NEXT) {
        Py_CLEAR(w->wait);
    }
    return r;
}

/* Whether what a plain handler has returned is its value; if not, it is to be awaited. -1: exception. */
static int is_value(PoolWorker *w, PyObject *made)
{
    PyAsyncMethods *async = Py_TYPE(made)->tp_as_async;
    if (likely(async == NULL || async->am_await == NULL)) {
        return 1;
    }
    PyObject *r = PyObject_CallOneArg(w->is_value, made);
    int is = r != NULL ? PyObject_IsTrue(r) : -1;
    Py_XDECREF(r);
    return is;
}

/* What the handler has returned, as an iterator that awaits it. Eats it. */
static PyObject *awaited(PyObject *made)
{
    if (likely(PyCoro_CheckExact(made))) {
        return made;
    }
    PyAsyncMethods *async = Py_TYPE(made)->tp_as_async;
    PyObject *it = NULL;
    if (async != NULL && async->am_await != NULL) {
        it = async->am_await(made);
    }
    else {
        PyErr_Format(PyExc_TypeError, "an async handler gave %R, which cannot be awaited", made);
    }
    Py_DECREF(made);
    return it;
}

/* The interpreter would take a StopIteration for the end of the await. As in a generator, it becomes an error. */
static void no_stop_iteration(void)
{
    if (likely(!PyErr_ExceptionMatches(PyExc_StopIteration))) {
        return;
    }
    PyObject *stop = compat_take_exception();
    PyErr_SetString(PyExc_RuntimeError, "the handler raised StopIteration");
    PyObject *error = compat_take_exception();
    PyException_SetCause(error, stop); /* eats it */
    compat_raise(error);
}

/* Call the handler. 1: *value is there, 0: it is to be awaited, -1: exception. */
static int call(PoolWorker *w, PyObject *job, PyObject **value)
{
    begin(w, job);
    *value = PyObject_CallOneArg(w->handler, job);
    int done = *value == NULL ? -1 : w->is_value != NULL ? is_value(w, *value) : 0;
    if (done == 0) {
        w->coro = awaited(*value);
        *value = NULL;
        return w->coro != NULL ? 0 : -1;
    }
    if (done < 0) {
        Py_CLEAR(*value);
        no_stop_iteration();
    }
    return done;
}

/* The handler is done; eats `value`. True: go on with the next job. False: *r and *result are what to say. */
static bool after(PoolWorker *w, PyObject *value, PySendResult *r, PyObject **result)
{
    int given = give(w, value);
    Py_DECREF(value);
    M *m = tls_m;
    if (given <= 0) {
        *result = given == 0 ? Py_NewRef(Py_False) : NULL;
        *r = given == 0 ? PYGEN_RETURN : PYGEN_ERROR;
        return false;
    }
    if (unlikely(let_others_run(w)) && m != NULL && m->curg != NULL) {
        *r = op_yield(m->curg, result);
        return false;
    }
    return true;
}

static PySendResult worker_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    PoolWorker *w = (PoolWorker *)self;
    PySendResult r;
    for (;;) {
        PyObject *job = NULL, *value = NULL;
        if (w->coro == NULL) {
            r = next_job(w, &job);
            if (r != PYGEN_RETURN) {
                *result = job;
                break;
            }
            int done = call(w, job, &value);
            Py_DECREF(job);
            if (done < 0) {
                *result = NULL;
                return PYGEN_ERROR;
            }
        }
        if (w->coro != NULL) {
            r = PyIter_Send(w->coro, Py_None, &value);
            if (r == PYGEN_NEXT) { /* the handler waits */
                *result = value;
                return r;
            }
            Py_CLEAR(w->coro);
            if (r == PYGEN_ERROR) {
                no_stop_iteration();
                *result = NULL;
                return r;
            }
        }
        if (!after(w, value, &r, result)) {
            return r;
        }
    }
    if (r == PYGEN_ERROR && PyErr_ExceptionMatches(PyExc_StopAsyncIteration)) {
        PyErr_Clear(); /* closed and drained */
        *result = Py_NewRef(Py_True);
        return PYGEN_RETURN;
    }
    return r;
}

/* The goroutine is ended from outside: so is what it waits for. */
static PyObject *worker_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    PoolWorker *w = (PoolWorker *)self;
    PyObject *inner = w->coro != NULL ? w->coro : w->wait;
    w->coro = w->wait = NULL;
    w->handling = false; /* what is raised now is not the handler's */
    if (inner == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *r = PyObject_HasAttrString(inner, "close") ? PyObject_CallMethod(inner, "close", NULL)
                                                         : Py_NewRef(Py_None);
    Py_DECREF(inner);
    return r;
}

/* ---- for the loops in _pool.py ---- */

static PyObject *worker_begin(PyObject *self, PyObject *job)
{
    begin((PoolWorker *)self, job);
    Py_RETURN_NONE;
}

static PyObject *worker_give(PyObject *self, PyObject *value)
{
    int given = give((PoolWorker *)self, value);
    return given < 0 ? NULL : PyBool_FromLong(given);
}

/* take(default): its job, or the default if it has none. Any thread. */
static PyObject *worker_take(PyObject *self, PyObject *none)
{
    PyObject *job = atomic_exchange(&((PoolWorker *)self)->job, NULL);
    return job != NULL ? job : Py_NewRef(none);
}

static PyObject *worker_elapsed(PyObject *self, PyObject *Py_UNUSED(a))
{
    return PyFloat_FromDouble(elapsed((PoolWorker *)self));
}

static PyObject *get_busy(PyObject *self, void *Py_UNUSED(c))
{
    return PyBool_FromLong(atomic_load(&((PoolWorker *)self)->job) != NULL);
}

static PyObject *get_done(PyObject *self, void *Py_UNUSED(c))
{
    return PyLong_FromLongLong((long long)atomic_load(&((PoolWorker *)self)->done));
}

static PyObject *get_handling(PyObject *self, void *Py_UNUSED(c))
{
    return PyBool_FromLong(((PoolWorker *)self)->handling);
}

static PyMethodDef worker_methods[] = {
    {"close", worker_close, METH_NOARGS, NULL},
    {"begin", worker_begin, METH_O, NULL},
    {"give", worker_give, METH_O, NULL},
    {"take", worker_take, METH_O, NULL},
    {"elapsed", worker_elapsed, METH_NOARGS, NULL},
    {NULL},
};
static PyGetSetDef worker_getset[] = {
    {"busy", get_busy, NULL, NULL, NULL},
    {"done", get_done, NULL, NULL, NULL},
    {"handling", get_handling, NULL, NULL, NULL},
    {NULL},
};

/* pool_worker(jobs, results, handler, is_value or None, type) */
static PyObject *pool_worker(PyObject *Py_UNUSED(mod), PyObject *args)
{
    PyObject *jobs, *results, *handler, *check, *type;
    if (!PyArg_ParseTuple(args, "O!O!OOO!:pool_worker", &Chan_Type, &jobs, &Chan_Type, &results,
                          &handler, &check, &PyType_Type, &type)) {
        return NULL;
    }
    PoolWorker *w = PyObject_GC_New(PoolWorker, &PoolWorker_Type);
    if (w == NULL) {
        return NULL;
    }
    w->jobs = (Chan *)Py_NewRef(jobs);
    w->results = (Chan *)Py_NewRef(results);
    w->handler = Py_NewRef(handler);
    w->is_value = check != Py_None ? Py_NewRef(check) : NULL;
    w->type = (PyTypeObject *)Py_NewRef(type);
    w->coro = w->wait = NULL;
    atomic_init(&w->job, NULL);
    atomic_init(&w->started_ns, 0);
    atomic_init(&w->done, 0);
    w->handling = false;
    live_add(tls_m, LIVE_OP, 1);
    PyObject_GC_Track(w);
    return (PyObject *)w;
}

static int worker_traverse(PyObject *self, visitproc visit, void *arg)
{
    PoolWorker *w = (PoolWorker *)self;
    Py_VISIT(w->coro); /* first: whoever walks the frames of a goroutine looks for it here */
    Py_VISIT(w->wait);
    Py_VISIT(w->jobs);
    Py_VISIT(w->results);
    Py_VISIT(w->handler);
    Py_VISIT(w->is_value);
    Py_VISIT(w->type);
    PyObject *job = atomic_load_explicit(&w->job, memory_order_relaxed);
    Py_VISIT(job);
    return 0;
}

static int worker_clear(PyObject *self)
{
    PoolWorker *w = (PoolWorker *)self;
    PyObject *job = atomic_exchange(&w->job, NULL);
    Py_XDECREF(job);
    Py_CLEAR(w->coro);
    Py_CLEAR(w->wait);
    return 0; /* the others stay: they are looked at whenever it runs; dealloc drops them */
}

static void worker_dealloc(PyObject *self)
{
    PoolWorker *w = (PoolWorker *)self;
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, worker_dealloc);
    worker_clear(self);
    Py_CLEAR(w->jobs);
    Py_CLEAR(w->results);
    Py_CLEAR(w->handler);
    Py_CLEAR(w->is_value);
    Py_CLEAR(w->type);
    live_add(tls_m, LIVE_OP, -1);
    PyObject_GC_Del(self);
    Py_TRASHCAN_END
}

static PyAsyncMethods worker_async = {.am_await = PyObject_SelfIter, .am_send = worker_send};

static PyTypeObject PoolWorker_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.PoolWorker",
    .tp_basicsize = sizeof(PoolWorker),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The loop of a worker: awaited, it gives True when there are no more jobs.",
    .tp_dealloc = worker_dealloc,
    .tp_traverse = worker_traverse,
    .tp_clear = worker_clear,
    .tp_as_async = &worker_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = op_iternext,
    .tp_methods = worker_methods,
    .tp_getset = worker_getset,
};

/* ---- the base of WorkerPool ---- */

typedef struct {
    PyObject_HEAD
    Chan *jobs; /* owned; NULL until it accepts jobs */
    _Atomic bool open;
} PoolBase;

static PyObject *pool_submit(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames)
{
    PoolBase *pool = (PoolBase *)self;
    if (likely(nargs == 1 && kwnames == NULL && atomic_load(&pool->open))) {
        return chan_send_op(pool->jobs, args[0]);
    }
    PyObject *slow = PyObject_GetAttrString(self, "_submit");
    PyObject *r = slow != NULL ? PyObject_Vectorcall(slow, args, (size_t)nargs, kwnames) : NULL;
    Py_XDECREF(slow);
    return r;
}

/* _accept(jobs): from now on; _accept(None): no longer. Not both at once; the channel stays, as a submit() may be
 * under way. */
static PyObject *pool_accept(PyObject *self, PyObject *jobs)
{
    PoolBase *pool = (PoolBase *)self;
    if (Py_IS_TYPE(jobs, &Chan_Type) && pool->jobs == NULL) {
        pool->jobs = (Chan *)Py_NewRef(jobs);
    }
    atomic_store(&pool->open, jobs != Py_None);
    Py_RETURN_NONE;
}

static int pool_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((PoolBase *)self)->jobs);
    return 0;
}

static void pool_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((PoolBase *)self)->jobs);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef pool_methods[] = {
    {"submit", (PyCFunction)(void (*)(void))pool_submit, METH_FASTCALL | METH_KEYWORDS,
     "submit($self, job, timeout=None)\n--\n\n"
     "Operation: hand a job over, waiting while the queue is full; TimeoutError after "
     "`timeout`.\n\n"
     "Whoever is cancelled, or out of time, has not submitted it. After shutdown(), or if that\n"
     "comes meanwhile: ChannelClosed.\n\n"
     ">>> await pool.submit(job, timeout=0.5)"},
    {"_accept", pool_accept, METH_O, NULL},
    {NULL},
};

static PyTypeObject PoolBase_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer._core.PoolBase",
    .tp_basicsize = sizeof(PoolBase),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_doc = "What WorkerPool is made of.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = pool_dealloc,
    .tp_traverse = pool_traverse,
    .tp_methods = pool_methods,
};

static PyMethodDef pool_functions[] = {
    {"pool_worker", pool_worker, METH_VARARGS, NULL},
    {NULL},
};

bool pool_module_init(PyObject *mod)
{
    return PyType_Ready(&PoolWorker_Type) == 0 && PyModule_AddType(mod, &PoolBase_Type) == 0 &&
           PyModule_AddFunctions(mod, pool_functions) == 0;
}
