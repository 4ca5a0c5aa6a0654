/* Which channels hear of which signals: gofer.signals.
 *
 * Python lets only its main thread change handlers. Others ask it to: by a pending call, which it gets to at its next
 * bytecode boundary, or at once if it sleeps as M0, or joins the others at the end of a run. What it does then is C
 * code without a boundary, so nothing comes in between; but for signal.signal(), which first runs the handlers of
 * signals that have come. These may listen, or cease to, themselves: after each call of it things may have changed.
 * And they may raise; that is not for whoever asked, but for the code that they interrupted. */
#include "runtime.h"

#include <signal.h>
#include <unistd.h>

typedef struct Request {
    struct Request *next;
    PyObject *
        signums; /* a tuple: listen; NULL: cease to. Borrowed, as all here: the one who asks waits */
    PyObject *view, *ch, *deliver;
    PyObject *exc;    /* what he gets for it: owned */
    unsigned long of; /* the main thread */
    Note note;
} Request;

static struct {
    Lock lock;
    Request *first, **last;
} asked = {.last = &asked.first};

/* The main thread's. */
static struct {
    PyObject *channels; /* view -> Chan; NULL: there never were any */
    PyObject *before;   /* the handler that was there */
    struct sigaction action;
} heard[NSIG];
static _Atomic int listening; /* channels and signals */

void signals_forked(void)
{
    asked.lock = (Lock){0};
    asked.first = NULL; /* those that wait are not here */
    asked.last = &asked.first;
}

/* ---- handlers ---- */

/* Of the module in C: `signal` wraps it in Python code, which has boundaries. A new reference. */
static PyObject *of_signal(const char *name)
{
    PyObject *module = PyImport_ImportModule("_signal");
    PyObject *r = module != NULL ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    return r;
}

/* Did a handler raise this, or signal.signal() itself? That has no frame. */
static bool from_handler(PyObject *exc)
{
    PyObject *tb = PyException_GetTraceback(exc);
    Py_XDECREF(tb);
    return tb != NULL || PyErr_GivenExceptionMatches(exc, PyExc_KeyboardInterrupt);
}

/* The first is kept, to be raised where it belongs. */
static void keep(PyObject **raised, PyObject *exc)
{
    if (*raised == NULL) {
        *raised = exc;
    }
    else {
        compat_raise(exc);
        PyErr_WriteUnraisable(NULL);
    }
}

/* The handler that was there, a new reference; NULL: exception. */
static PyObject *set_handler(int signum, PyObject *handler, PyObject **raised)
{
    PyObject *set = of_signal("signal"), *old = NULL;
    while (set != NULL && (old = PyObject_CallFunction(set, "iO", signum, handler)) == NULL) {
        PyObject *exc = compat_take_exception();
        if (!from_handler(exc)) {
            compat_raise(exc);
            break;
        }
        keep(raised, exc);
    }
    Py_XDECREF(set);
    return old;
}

/* SIGQUIT that was ignored when the program began, and still is as Python sees it. */
static void restore_ignored(const struct sigaction *action)
{
    struct sigaction now;
    if (!quit_ignored_by_program(action) && sigaction(SIGQUIT, NULL, &now) == 0 &&
        now.sa_handler == SIG_IGN) {
        now.sa_flags = 0;
        sigaction(SIGQUIT, &now, NULL);
    }
}

static bool restore(int signum, PyObject **raised)
{
    PyObject *handler =
        heard[signum].before != Py_None ? Py_NewRef(heard[signum].before) : of_signal("SIG_DFL");
    PyObject *old = handler != NULL ? set_handler(signum, handler, raised) : NULL;
    if (old != NULL && heard[signum].before == Py_None) {
        sigaction(signum, &heard[signum].action, NULL); /* not Python's, as faulthandler's */
    }
    if (old != NULL && signum == SIGQUIT) {
        restore_ignored(&heard[signum].action);
    }
    if (old != NULL && signum == SIGQUIT && atomic_load(&sched.running) == RUN_ON &&
        !atomic_load(&sched.exiting)) {
        quit_watch();
    }
    Py_XDECREF(handler);
    Py_XDECREF(old);
    return old != NULL;
}

static bool is_handled_by(int signum, PyObject *handler)
{
    PyObject *get = of_signal("getsignal");
    PyObject *now = get != NULL ? PyObject_CallFunction(get, "i", signum) : NULL;
    Py_XDECREF(get);
    Py_XDECREF(now);
    PyErr_Clear();
    return now == handler;
}

/* ---- on the main thread ---- */

/* False: exception, and nothing has changed. */
static bool add(const Request *r, int signum, PyObject **raised)
{
    PyObject *channels = heard[signum].channels;
    if (channels == NULL && (channels = heard[signum].channels = PyDict_New()) == NULL) {
        return false;
    }
    if (PyDict_GET_SIZE(channels) == 0) {
        struct sigaction action;
        sigaction(signum, NULL, &action);
        PyObject *old = set_handler(signum, r->deliver, raised);
        if (old == NULL) {
            return false;
        }
        if (old != r->deliver) { /* else a handler that has just run began to listen */
            heard[signum].action = action;
            Py_XSETREF(heard[signum].before, Py_NewRef(old));
        }
        Py_DECREF(old);
    }
    if (PyDict_SetItem(channels, r->view, r->ch) < 0) {
        return false; /* what comes is dropped, until the next ceases to listen */
    }
    atomic_fetch_add(&listening, 1);
    return true;
}

/* The handler first: until it is back, what comes is this channel's. False: exception, and it listens on. */
static bool drop(const Request *r, int signum, PyObject **raised)
{
    PyObject *channels = heard[signum].channels;
    if (channels == NULL || PyDict_Contains(channels, r->view) != 1) {
        return true;
    }
    bool back = false; /* again and again, if handlers that run in between listen, or cease to */
    while (back ? PyDict_GET_SIZE(channels) > 1
                : PyDict_GET_SIZE(channels) == 1 && is_handled_by(signum, r->deliver)) {
        PyObject *old = NULL;
        if (back ? (old = set_handler(signum, r->deliver, raised)) == NULL
                 : !restore(signum, raised)) {
            return false;
        }
        Py_XDECREF(old);
        back = !back;
    }
    if (PyDict_Contains(channels, r->view) == 1 && PyDict_DelItem(channels, r->view) == 0) {
        atomic_fetch_sub(&listening, 1);
    }
    return !PyErr_Occurred();
}

static void drop_all(const Request *r, PyObject **raised)
{
    for (int signum = 1; signum < NSIG; signum++) {
        if (!drop(r, signum, raised)) {
            PyErr_WriteUnraisable(r->view);
        }
    }
}

/* What the one who asked gets for it is in `exc`, what handlers raised in `raised`. */
static void perform(Request *r, PyObject **raised)
{
    if (r->signums == NULL) {
        drop_all(r, raised);
        return;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(r->signums) && r->exc == NULL; i++) {
        if (!add(r, (int)PyLong_AsLong(PyTuple_GET_ITEM(r->signums, i)), raised)) {
            r->exc = compat_take_exception();
        }
    }
    if (r->exc != NULL) {
        drop_all(r, raised);
    }
}

int signals_serve(void)
{
    PyObject *raised = NULL;
    for (;;) {
        lock(&asked.lock);
        Request *r = asked.first;
        if (r != NULL && r->of != PyThread_get_thread_ident()) {
            r = NULL; /* a run on another thread: the main thread will get to its pending call */
        }
        if (r != NULL) {
            asked.first = r->next;
            asked.last = r->next != NULL ? asked.last : &asked.first;
        }
        unlock(&asked.lock);
        if (r == NULL) {
            break;
        }
        perform(r, &raised);
        note_wake(&r->note); /* the last that we do with it */
    }
    if (raised != NULL) {
        compat_raise(raised);
        return -1;
    }
    return 0;
}

static int pending(void *Py_UNUSED(arg))
{
    return signals_serve();
}

/* ---- on any thread ---- */

static bool ask(Request *r)
{
    lock(&sched.lock);
    bool m0_is_main = sched.m0 != NULL && sched.m0->ident == r->of;
    unlock(&sched.lock);
    if (!m0_is_main) {
        PyErr_SetString(PyExc_RuntimeError,
                        "signals reach Python on its main thread only: call gofer.run() there");
        return false;
    }
    lock(&asked.lock);
    *asked.last = r;
    asked.last = &r->next;
    unlock(&asked.lock);
    while (Py_AddPendingCall(pending, NULL) < 0) { /* there are too many by now */
        Py_BEGIN_ALLOW_THREADS
        usleep(100);
        Py_END_ALLOW_THREADS
    }
    signal_m0(); /* it may sleep */
    Py_BEGIN_ALLOW_THREADS
    while (!note_sleep(&r->note, TIME_NEVER)) {
    }
    Py_END_ALLOW_THREADS
    return true;
}

static PyObject *do_or_ask(Request *r)
{
    PyObject *raised = NULL;
    if (PyThread_get_thread_ident() != r->of) {
        if (!ask(r)) {
            return NULL;
        }
    }
    else {
        perform(r, &raised);
    }
    if (raised != NULL) { /* here the interrupted code is the one that asked */
        if (r->signums != NULL) {
            drop_all(r, &raised);
        }
        Py_CLEAR(r->exc);
        r->exc = raised;
    }
    if (r->exc != NULL) {
        compat_raise(r->exc);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* listen(signals, view, channel, handler, ident of the main thread): what comes is for this channel, too. */
static PyObject *core_listen(PyObject *Py_UNUSED(mod), PyObject *args)
{
    Request r = {0};
    if (!PyArg_ParseTuple(args, "O!OOOk", &PyTuple_Type, &r.signums, &r.view, &r.ch, &r.deliver,
                          &r.of)) {
        return NULL;
    }
    return do_or_ask(&r);
}

/* unlisten(view, handler, ident of the main thread) */
static PyObject *core_unlisten(PyObject *Py_UNUSED(mod), PyObject *args)
{
    Request r = {0};
    if (!PyArg_ParseTuple(args, "OOk", &r.view, &r.deliver, &r.of)) {
        return NULL;
    }
    return do_or_ask(&r);
}

/* listeners(signum) -> channels. On the main thread, by its handler. */
static PyObject *core_listeners(PyObject *Py_UNUSED(mod), PyObject *arg)
{
    long signum = PyLong_AsLong(arg);
    PyObject *channels = signum > 0 && signum < NSIG ? heard[signum].channels : NULL;
    if (PyErr_Occurred()) {
        return NULL;
    }
    return channels != NULL ? PyDict_Values(channels) : PyList_New(0);
}

/* listening(): whether anybody does. */
static PyObject *core_listening(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return PyBool_FromLong(atomic_load(&listening) > 0);
}

/* handler_gone(signum, handler, instead): `handler` shall not come back when nobody listens any more. On the main
 * thread. */
static PyObject *core_handler_gone(PyObject *Py_UNUSED(mod), PyObject *args)
{
    int signum;
    PyObject *handler, *instead;
    if (!PyArg_ParseTuple(args, "iOO", &signum, &handler, &instead)) {
        return NULL;
    }
    if (signum > 0 && signum < NSIG && heard[signum].before == handler) {
        Py_SETREF(heard[signum].before, Py_NewRef(instead));
    }
    Py_RETURN_NONE;
}

PyMethodDef signals_methods[] = {
    {"listen", core_listen, METH_VARARGS, NULL},
    {"unlisten", core_unlisten, METH_VARARGS, NULL},
    {"listeners", core_listeners, METH_O, NULL},
    {"listening", core_listening, METH_NOARGS, NULL},
    {"handler_gone", core_handler_gone, METH_VARARGS, NULL},
    {NULL},
};
