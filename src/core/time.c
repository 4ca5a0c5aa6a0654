/* Timers that programs hold: the channel of Timer and Ticker, and after_func().
 *
 * Both stand in a heap only while somebody has to be woken. `in_heap` is true from timer_add until the timer is
 * taken back or the code that serves it has the lock; while it is, nobody adds it again, and whoever serves it
 * looks at what is wanted by then. */
#include "chan.h"

/* ---- TimeChan ---- */

bool timechan_due_now(const TimeChan *tc, int64_t *now_ns)
{
    if (!tc->armed) {
        return false;
    }
    if (*now_ns == 0) {
        *now_ns = nanotime();
    }
    return tc->when_ns <= *now_ns;
}

/* It is due: take the value. A ticker keeps its phase; ticks that nobody took in time are gone. */
int64_t timechan_take(TimeChan *tc, int64_t now_ns)
{
    int64_t due = tc->when_ns;
    if (tc->period_ns > 0) {
        tc->when_ns += tc->period_ns * (1 + (now_ns - due) / tc->period_ns);
    }
    else {
        tc->armed = false;
    }
    return due;
}

/* Into the heap, if it shall fire and somebody waits. False: no memory. */
bool timechan_start(M *m, TimeChan *tc)
{
    if (!tc->armed || tc->in_heap || queue_first(&tc->ch.recvq) == NULL) {
        return true;
    }
    tc->timer.when_ns = tc->when_ns;
    Py_INCREF(tc);
    tc->in_heap = sched.allp[0] != NULL && timer_add(m, &tc->timer);
    if (!tc->in_heap) {
        Py_DECREF(tc); /* not the last: the caller holds one */
    }
    return tc->in_heap;
}

bool timechan_stop(TimeChan *tc)
{
    if (!tc->in_heap || !timer_del(&tc->timer)) {
        return false; /* if it is being served right now, that finds what we want */
    }
    tc->in_heap = false;
    return true;
}

void timechan_due(M *m, PyObject *owner, int64_t now_ns)
{
    TimeChan *tc = (TimeChan *)owner;
    Wake wake = {0};
    obj_lock(&tc->ch.lock);
    tc->in_heap = false;
    if (timechan_due_now(tc, &now_ns) && chan_hand_over(&tc->ch, tc->when_ns, &wake)) {
        timechan_take(tc, now_ns);
    }
    bool ok = timechan_start(m, tc);
    obj_unlock(&tc->ch.lock);
    if (!ok) {
        Py_FatalError("gofer: out of memory for a timer");
    }
    if (wake.g != NULL) {
        if (!goready(m, wake.g, false)) {
            drop_later(m, (PyObject *)wake.g);
        }
        if (wake.sel != NULL) {
            drop_later(m, wake.sel);
        }
        drop_later(m, wake.op);
    }
    drop_later(m, owner);
}

void timechan_dropped(PyObject *owner)
{
    TimeChan *tc = (TimeChan *)owner;
    obj_lock(&tc->ch.lock);
    tc->in_heap = false;
    obj_unlock(&tc->ch.lock);
}

/* The argument of Ticker() and of its reset(): what a Timer takes for "now" is an error there. */
static bool period_to_ns(PyObject *seconds, const char *what, int64_t *ns)
{
    if (!seconds_to_ns(seconds, what, ns)) {
        return false;
    }
    if (*ns == 0) {
        PyErr_Format(PyExc_ValueError, "%s needs more than 0 seconds, not %R", what, seconds);
    }
    return *ns > 0;
}

/* timechan(what, seconds, ticks): the channel of a Timer, an after() or a Ticker, as `what` says. */
static PyObject *timechan_new(PyObject *Py_UNUSED(mod), PyObject *args)
{
    const char *what;
    PyObject *seconds;
    int ticks;
    int64_t ns;
    if (!PyArg_ParseTuple(args, "sOp", &what, &seconds, &ticks) ||
        !(ticks ? period_to_ns(seconds, what, &ns) : seconds_to_ns(seconds, what, &ns))) {
        return NULL;
    }
    TimeChan *tc = (TimeChan *)TimeChan_Type.tp_alloc(&TimeChan_Type, 0);
    if (tc != NULL) {
        tc->ch.timed = true;
        timer_init(&tc->timer, TIMER_CHAN, offsetof(TimeChan, timer));
        tc->when_ns = nanotime() + ns;
        tc->period_ns = ticks ? ns : 0;
        tc->armed = true;
    }
    return (PyObject *)tc;
}

/* Change when it fires, and how often; negative: not at all. Returns whether it was to. */
static int timechan_set(TimeChan *tc, int64_t ns)
{
    M *m = tls_m;
    obj_lock(&tc->ch.lock);
    bool was = tc->armed;
    tc->armed = ns >= 0;
    if (ns >= 0) {
        tc->when_ns = nanotime() + ns;
        tc->period_ns = tc->period_ns > 0 ? ns : 0;
    }
    bool heap_ref = timechan_stop(tc);
    bool ok = timechan_start(m, tc);
    obj_unlock(&tc->ch.lock);
    if (heap_ref) {
        Py_DECREF(tc);
    }
    if (!ok) {
        PyErr_NoMemory();
        return -1;
    }
    return was;
}

static PyObject *as_bool(int r)
{
    return r < 0 ? NULL : PyBool_FromLong(r);
}

static PyObject *timechan_stop_method(PyObject *self, PyObject *Py_UNUSED(a))
{
    return as_bool(timechan_set((TimeChan *)self, -1));
}

static PyObject *timechan_reset(PyObject *self, PyObject *seconds)
{
    TimeChan *tc = (TimeChan *)self;
    int64_t ns;
    obj_lock(&tc->ch.lock);
    bool ticks = tc->period_ns > 0; /* it stays so */
    obj_unlock(&tc->ch.lock);
    bool ok = ticks ? period_to_ns(seconds, "Ticker.reset()", &ns)
                    : seconds_to_ns(seconds, "Timer.reset()", &ns);
    return ok ? as_bool(timechan_set(tc, ns)) : NULL;
}

/* For reprs: "in 1.5 s", "due" (and not received) or "idle". */
static PyObject *time_left(bool armed, int64_t when_ns)
{
    int64_t left = armed ? when_ns - nanotime() : 0;
    if (left <= 0) {
        return PyUnicode_FromString(armed ? "due" : "idle");
    }
    PyObject *seconds = PyFloat_FromDouble((double)((left + 999999) / 1000000) / 1e3);
    PyObject *text = seconds != NULL ? PyUnicode_FromFormat("in %R s", seconds) : NULL;
    Py_XDECREF(seconds);
    return text;
}

static PyObject *timechan_state(PyObject *self, PyObject *Py_UNUSED(a))
{
    TimeChan *tc = (TimeChan *)self;
    obj_lock(&tc->ch.lock);
    bool armed = tc->armed;
    int64_t when_ns = tc->when_ns, period_ns = tc->period_ns;
    obj_unlock(&tc->ch.lock);
    PyObject *left = time_left(armed, when_ns);
    if (left == NULL || period_ns == 0 || !armed) {
        return left;
    }
    PyObject *period = PyFloat_FromDouble((double)period_ns / 1e9);
    PyObject *text = period != NULL ? PyUnicode_FromFormat("%U, every %R s", left, period) : NULL;
    Py_DECREF(left);
    Py_XDECREF(period);
    return text;
}

static PyObject *timechan_receiver(PyObject *self, PyObject *Py_UNUSED(a))
{
    return recv_view((Chan *)self, NULL);
}

static PyMethodDef timechan_methods[] = {{"stop", timechan_stop_method, METH_NOARGS, NULL},
                                         {"reset", timechan_reset, METH_O, NULL},
                                         {"state", timechan_state, METH_NOARGS, NULL},
                                         {"receiver", timechan_receiver, METH_NOARGS, NULL},
                                         {NULL}};

/* ---- FuncTimer ---- */

typedef struct {
    PyObject_HEAD
    ObjLock lock;
    Timer timer;
    int64_t when_ns;
    bool armed, in_heap; /* as in TimeChan */
    Callback cb;
} FuncTimer;

static bool functimer_start(M *m, FuncTimer *ft)
{
    if (!ft->armed || ft->in_heap) {
        return true;
    }
    ft->timer.when_ns = ft->when_ns;
    Py_INCREF(ft);
    ft->in_heap = timer_add(m, &ft->timer);
    if (!ft->in_heap) {
        Py_DECREF(ft); /* not the last: the caller holds one */
    }
    return ft->in_heap;
}

static int functimer_set(FuncTimer *ft, int64_t ns)
{
    M *m = tls_m;
    if (ns >= 0 && atomic_load(&sched.running) != RUN_ON) {
        PyErr_SetString(PyExc_RuntimeError,
                        "after_func() needs a running runtime: see gofer.run()");
        return -1;
    }
    obj_lock(&ft->lock);
    bool was = ft->armed;
    ft->armed = ns >= 0;
    ft->when_ns = nanotime() + (ns >= 0 ? ns : 0);
    bool heap_ref = ft->in_heap && timer_del(&ft->timer);
    if (heap_ref) {
        ft->in_heap = false;
    }
    bool ok = functimer_start(m, ft);
    obj_unlock(&ft->lock);
    if (heap_ref) {
        Py_DECREF(ft);
    }
    if (!ok) {
        PyErr_NoMemory();
        return -1;
    }
    return was;
}

void functimer_due(PyObject *owner)
{
    FuncTimer *ft = (FuncTimer *)owner;
    obj_lock(&ft->lock);
    ft->in_heap = false;
    bool fire = ft->armed && ft->when_ns <= nanotime();
    if (fire) {
        ft->armed = false;
    }
    bool ok = functimer_start(tls_m, ft);
    obj_unlock(&ft->lock);
    if (!ok) {
        Py_FatalError("gofer: out of memory for a timer");
    }
    if (fire) {
        callback_start(&ft->cb);
    }
}

void functimer_dropped(PyObject *owner)
{
    FuncTimer *ft = (FuncTimer *)owner;
    obj_lock(&ft->lock);
    ft->in_heap = false;
    ft->armed = false;
    obj_unlock(&ft->lock);
}

/* functimer(seconds, fn, args) */
static PyObject *functimer_new(PyObject *Py_UNUSED(mod), PyObject *args)
{
    PyObject *seconds, *fn, *fn_args;
    int64_t ns;
    if (!PyArg_ParseTuple(args, "OOO!", &seconds, &fn, &PyTuple_Type, &fn_args) ||
        !seconds_to_ns(seconds, "after_func()", &ns)) {
        return NULL;
    }
    FuncTimer *ft = (FuncTimer *)FuncTimer_Type.tp_alloc(&FuncTimer_Type, 0);
    if (ft == NULL) {
        return NULL;
    }
    timer_init(&ft->timer, TIMER_FUNC, offsetof(FuncTimer, timer));
    if (!callback_init(&ft->cb, fn, fn_args) || functimer_set(ft, ns) < 0) {
        Py_CLEAR(ft);
    }
    return (PyObject *)ft;
}

static PyObject *functimer_stop(PyObject *self, PyObject *Py_UNUSED(a))
{
    return as_bool(functimer_set((FuncTimer *)self, -1));
}

static PyObject *functimer_reset(PyObject *self, PyObject *seconds)
{
    int64_t ns;
    return seconds_to_ns(seconds, "Timer.reset()", &ns)
               ? as_bool(functimer_set((FuncTimer *)self, ns))
               : NULL;
}

static PyObject *functimer_state(PyObject *self, PyObject *Py_UNUSED(a))
{
    FuncTimer *ft = (FuncTimer *)self;
    obj_lock(&ft->lock);
    bool armed = ft->armed;
    int64_t when_ns = ft->when_ns;
    obj_unlock(&ft->lock);
    PyObject *left = time_left(armed, when_ns);
    PyObject *text = left != NULL ? PyUnicode_FromFormat("%U, calls %R", left, ft->cb.fn) : NULL;
    Py_XDECREF(left);
    return text;
}

static int functimer_traverse(PyObject *self, visitproc visit, void *arg)
{
    return callback_traverse(&((FuncTimer *)self)->cb, visit, arg);
}

static int functimer_clear(PyObject *self)
{
    callback_clear(&((FuncTimer *)self)->cb);
    return 0;
}

static void functimer_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    functimer_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef functimer_methods[] = {{"stop", functimer_stop, METH_NOARGS, NULL},
                                          {"reset", functimer_reset, METH_O, NULL},
                                          {"state", functimer_state, METH_NOARGS, NULL},
                                          {NULL}};

PyTypeObject FuncTimer_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.FuncTimer",
    .tp_basicsize = sizeof(FuncTimer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = functimer_dealloc,
    .tp_traverse = functimer_traverse,
    .tp_clear = functimer_clear,
    .tp_methods = functimer_methods,
};

static PyMethodDef time_methods[] = {{"timechan", timechan_new, METH_VARARGS, NULL},
                                     {"functimer", functimer_new, METH_VARARGS, NULL},
                                     {NULL}};

bool time_module_init(PyObject *mod)
{
    TimeChan_Type.tp_methods = timechan_methods;
    return PyModule_AddType(mod, &TimeChan_Type) == 0 &&
           PyModule_AddType(mod, &FuncTimer_Type) == 0 &&
           PyModule_AddFunctions(mod, time_methods) == 0;
}
