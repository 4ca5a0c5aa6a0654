/* Code that only Python's main thread may run, such as changes of signal handlers.
 *
 * Others have it run there by a pending call: at its next bytecode boundary, or at once if it sleeps as M0. One
 * at a time, also where the main thread calls itself: it may get to a boundary in the middle of that. Then the
 * others' wait in a list until it is done. */
#include "runtime.h"

#include <unistd.h>

typedef struct MainCall {
    struct MainCall *next;
    PyObject *fn, *exc; /* fn: borrowed from the caller, who waits */
    Note note;
} MainCall;

static struct {
    Lock lock; /* the list */
    MainCall *first, **last;
    bool busy; /* the main thread's */
} main_calls = {.last = &main_calls.first};

static void main_calls_add(MainCall *call)
{
    lock(&main_calls.lock);
    *main_calls.last = call;
    main_calls.last = &call->next;
    unlock(&main_calls.lock);
}

static MainCall *main_calls_take(void)
{
    lock(&main_calls.lock);
    MainCall *call = main_calls.first;
    if (call != NULL) {
        main_calls.first = call->next;
        main_calls.last = call->next != NULL ? main_calls.last : &main_calls.first;
    }
    unlock(&main_calls.lock);
    return call;
}

void maincall_forked(void) /* in the child, where those that wait are not */
{
    main_calls.lock = (Lock){0};
    main_calls.first = NULL;
    main_calls.last = &main_calls.first;
}

static PyObject *main_call(PyObject *fn) /* what it raised, or NULL */
{
    PyObject *r = PyObject_CallNoArgs(fn);
    PyObject *exc = r == NULL ? compat_take_exception() : NULL;
    Py_XDECREF(r);
    return exc;
}

/* From the last look into the list to the end of `busy` this thread gets to no boundary, so it misses none. */
static void main_calls_run(void)
{
    main_calls.busy = true;
    for (MainCall *call; (call = main_calls_take()) != NULL;) {
        call->exc = main_call(call->fn);
        note_wake(&call->note); /* the last that we do with it */
    }
    main_calls.busy = false;
}

static int main_calls_pending(void *Py_UNUSED(arg))
{
    if (!main_calls.busy) {
        main_calls_run();
    }
    return 0;
}

static PyObject *call_here(PyObject *fn)
{
    bool nested = main_calls.busy; /* a signal handler, inside of such a call: it cannot wait */
    main_calls.busy = true;
    PyObject *exc = main_call(fn);
    if (!nested) {
        main_calls_run();
    }
    return exc;
}

/* False: exception. */
static bool call_there(PyObject *fn, unsigned long ident, PyObject **exc)
{
    lock(&sched.lock);
    bool m0_is_main = sched.m0 != NULL && sched.m0->ident == ident;
    unlock(&sched.lock);
    if (!m0_is_main) {
        PyErr_SetString(PyExc_RuntimeError,
                        "signals reach Python on its main thread only: call gofer.run() there");
        return false;
    }
    MainCall call = {.fn = fn};
    main_calls_add(&call);
    while (Py_AddPendingCall(main_calls_pending, NULL) < 0) { /* there are too many by now */
        Py_BEGIN_ALLOW_THREADS
        usleep(100);
        Py_END_ALLOW_THREADS
    }
    signal_m0(); /* it may sleep */
    Py_BEGIN_ALLOW_THREADS
    while (!note_sleep(&call.note, TIME_NEVER)) {
    }
    Py_END_ALLOW_THREADS
    *exc = call.exc;
    return true;
}

/* call_on_main_thread(fn, ident of that thread). Waits, and raises what fn raised. */
static PyObject *core_call_on_main_thread(PyObject *Py_UNUSED(mod), PyObject *args)
{
    PyObject *fn, *exc;
    unsigned long ident;
    if (!PyArg_ParseTuple(args, "Ok", &fn, &ident)) {
        return NULL;
    }
    if (PyThread_get_thread_ident() == ident) {
        exc = call_here(fn);
    }
    else if (!call_there(fn, ident, &exc)) {
        return NULL;
    }
    if (exc != NULL) {
        compat_raise(exc);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyMethodDef maincall_methods[] = {
    {"call_on_main_thread", core_call_on_main_thread, METH_VARARGS, NULL},
    {NULL},
};
