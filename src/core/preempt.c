/* preempt: stop a goroutine that computes and reaches no scheduling point, at a bytecode boundary.
 *
 * sysmon asks for it (preempt_ask) when a slice is over and others wait. A thread of ours that may call into
 * Python has sys.monitoring watch the code that the goroutine is in (arm). When the goroutine jumps or
 * returns there, the interpreter calls at_boundary(), which sleeps until the goroutine has a P again. Its frames
 * are on the stack of its thread, so it is wired to it meanwhile, as a plain goroutine is.
 *
 *   - Only the innermost code is watched. Soon it jumps, or returns, or calls what takes long: then the next try
 *     finds that.
 *   - Whatever runs the same code calls at_boundary() too. Who finds that nobody is wanted any more disarms it.
 *   - Without the GIL, looking at frames and arming stop the world of CPython, which waits until each thread is at
 *     a boundary: one in a long call of C code would make all wait. So we see first whether they get to one
 *     (all_in_bytecode).
 *   - It is not for ever: on Python 3.11, without a free tool id, in C code, or when too many are stopped, sysmon
 *     hands the P off after a while and the kernel shares the cores among the threads. */
#include "runtime.h"

_Atomic int32_t preempt_stopped;
_Atomic bool preempt_off;
_Atomic bool preempt_arming;

#if !COMPAT_HAVE_MONITORING

bool preempt_ask(M *Py_UNUSED(m))
{
    return false;
}

void preempt_forget(M *Py_UNUSED(m)) {}
void preempt_stop(void) {}

#else

#include <sys/prctl.h>
#include <unistd.h>

enum {
    STOPPED_MAX = 1000, /* threads that sleep in at_boundary() */
    WANTED_MAX = 64,    /* stopped in one go */
};
#define PROBE_NS   2000000LL  /* of CPU time, without getting to a boundary: it is in C code */
#define TRY_MIN_NS 4000000LL  /* between two tries: one may move on to other code each time ... */
#define TRY_MAX_NS 32000000LL /* ... or sit in C code for long */

static pthread_t thread;
static bool started;          /* sysmon only, until it has ended */
static _Atomic uint32_t work; /* counts up when there is some: what the thread sleeps on */
static _Atomic uint32_t stopping;
static _Atomic bool unavailable; /* in this run */
static _Atomic int32_t nwanted;  /* Ms with m->preempt set */

static PyObject *monitoring;  /* sys.monitoring, once it was needed; owned for ever */
static _Atomic int tool = -1; /* our id there; set by the thread before it arms anything */
static PyObject *armed;       /* owned: a list of code objects; the thread's, as all below */
static long events;

/* ---- asking ---- */

static void wake(void)
{
    atomic_fetch_add(&work, 1);
    word_wake_all(&work);
}

static void *preemptor(void *arg);

bool preempt_ask(M *m)
{
    if (atomic_load(&preempt_off) || atomic_load(&unavailable) ||
        atomic_load(&preempt_stopped) >= STOPPED_MAX) {
        return false;
    }
    if (!started) {
        atomic_store(&stopping, 0);
        if (pthread_create(&thread, NULL, preemptor, NULL) != 0) {
            atomic_store(&unavailable, true);
            return false;
        }
        started = true;
    }
    if (atomic_exchange(&m->preempt, PREEMPT_ASKED) == PREEMPT_NONE) {
        atomic_fetch_add(&nwanted, 1);
    }
    wake();
    return true;
}

/* Its goroutine has reached a scheduling point by itself, or has been stopped. */
void preempt_forget(M *m)
{
    if (atomic_exchange(&m->preempt, PREEMPT_NONE) != PREEMPT_NONE) {
        atomic_fetch_sub(&nwanted, 1);
    }
}

/* ---- is everybody in bytecode? ---- */

/* All Ms, m0 first. sched.lock: an M in the list is not freed, nor its thread state. */
static M *m_after(M *m)
{
    return m == NULL ? sched.m0 : m == sched.m0 ? sched.allm : m->all_next;
}

#if HAVE_GIL

static bool all_in_bytecode(void)
{
    return true; /* whoever gives the GIL away is at a boundary */
}

#else

/* Have each thread that is attached to Python do something at its next boundary, and see whether it does, soon.
 * (Of threads that are no Ms we know nothing.) Detached. */
static bool all_in_bytecode(void)
{
    bool waits = true, in_c = false;
    for (bool first = true; waits && !in_c && !atomic_load(&stopping); first = false) {
        waits = false;
        lock(&sched.lock);
        for (M *m = NULL; (m = m_after(m)) != NULL;) {
            if (m->ts == NULL || atomic_load(&m->user) == USER_NONE) {
                continue;
            }
            if (first) {
                m->probe_cpu_ns = clock_ns(m->cpu_clock);
                compat_probe(m->ts);
            }
            if (compat_probe_waits(m->ts)) {
                waits = true;
                in_c |= clock_ns(m->cpu_clock) - m->probe_cpu_ns > PROBE_NS;
            }
        }
        unlock(&sched.lock);
        if (waits) {
            usleep(first ? 10 : 50);
        }
    }
    return !waits;
}

#endif

/* ---- stopping ---- */

/* With the GIL it is done at once, so that the next one to run the same code is not slowed down while our
 * thread waits for the GIL. Without it our thread does it, since that stops the world. */
static void disarm(PyObject *code)
{
#if HAVE_GIL
    PyObject *r = PyObject_CallMethod(monitoring, "set_local_events", "iOi", tool, code, 0);
    if (r == NULL) {
        PyErr_WriteUnraisable(code);
    }
    Py_XDECREF(r);
#else
    (void)code;
    wake();
#endif
}

/* What the interpreter calls at a jump or return, and at the start, of code that is armed. */
static PyObject *at_boundary(PyObject *Py_UNUSED(self), PyObject *const *args,
                             Py_ssize_t Py_UNUSED(n))
{
    M *m = tls_m;
    G *g = m != NULL ? m->curg : NULL;
    bool stop = g != NULL &&
                atomic_load_explicit(&m->preempt, memory_order_relaxed) != PREEMPT_NONE &&
                /* it has not begun to wait, in code that drives a coroutine by hand */
                atomic_load_explicit(&g->wait_reason, memory_order_relaxed) == WAIT_NONE &&
                atomic_load_explicit(&m->user, memory_order_relaxed) == USER_RUNS;
    if (stop) {
        preempt_forget(m);
    }
    if (atomic_load(&nwanted) == 0) {
        disarm(args[0]);
    }
    if (stop) {
        atomic_fetch_add(&preempt_stopped, 1);
        park_stopped(m, g);
        atomic_fetch_sub(&preempt_stopped, 1);
    }
    Py_RETURN_NONE;
}

static PyMethodDef at_boundary_def = {"at_boundary", (PyCFunction)(void (*)(void))at_boundary,
                                      METH_FASTCALL, NULL};
static const char *const event_names[] = {"JUMP", "PY_START", "PY_RETURN"};
enum { EVENTS = sizeof event_names / sizeof *event_names };

/* The value of each event, and with `callback` registered for each of them. False: exception. */
static bool register_all(PyObject *callback)
{
    PyObject *all = PyObject_GetAttrString(monitoring, "events");
    events = 0;
    for (int i = 0; all != NULL && i < EVENTS; i++) {
        PyObject *event = PyObject_GetAttrString(all, event_names[i]);
        PyObject *r = event == NULL ? NULL
                                    : PyObject_CallMethod(monitoring, "register_callback", "iOO",
                                                          tool, event, callback);
        if (r != NULL) {
            events |= PyLong_AsLong(event);
            Py_DECREF(r);
        }
        else {
            Py_CLEAR(all);
        }
        Py_XDECREF(event);
    }
    Py_XDECREF(all);
    return all != NULL;
}

/* Get a tool id. False: none is free, or an exception is set. */
static bool monitoring_start(void)
{
    if (tool >= 0) {
        return true;
    }
    if (monitoring == NULL) {
        monitoring = Py_XNewRef(PySys_GetObject("monitoring"));
    }
    armed = PyList_New(0);
    for (int id = 4; monitoring != NULL && armed != NULL && tool < 0 && id >= 3; id--) {
        /* 3 and 4 belong to nobody: see sys.monitoring */
        PyObject *r = PyObject_CallMethod(monitoring, "use_tool_id", "is", id, "gofer");
        if (r != NULL) {
            tool = id;
            Py_DECREF(r);
        }
        else if (PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Clear(); /* taken */
        }
        else {
            return false;
        }
    }
    PyObject *callback = tool >= 0 ? PyCFunction_New(&at_boundary_def, NULL) : NULL;
    bool ok = callback != NULL && register_all(callback);
    Py_XDECREF(callback);
    return ok;
}

static void disarm_all(void)
{
    for (Py_ssize_t i = PyList_GET_SIZE(armed); i-- > 0;) {
        PyObject *r = PyObject_CallMethod(monitoring, "set_local_events", "iOi", tool,
                                          PyList_GET_ITEM(armed, i), 0);
        if (r == NULL) {
            PyErr_WriteUnraisable(NULL);
        }
        Py_XDECREF(r);
    }
    if (PyList_SetSlice(armed, 0, PY_SSIZE_T_MAX, NULL) < 0) {
        PyErr_WriteUnraisable(NULL);
    }
}

static void monitoring_stop(void)
{
    if (tool >= 0) {
        disarm_all();
        PyObject *r = register_all(Py_None)
                          ? PyObject_CallMethod(monitoring, "free_tool_id", "i", tool)
                          : NULL;
        if (r == NULL) {
            PyErr_WriteUnraisable(NULL);
        }
        Py_XDECREF(r);
        atomic_store(&tool, -1);
    }
    Py_CLEAR(armed);
}

/* ---- arming ---- */

/* Who is wanted, and does not sleep meanwhile. */
static int wanted(unsigned long *idents)
{
    int n = 0;
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL && n < WANTED_MAX;) {
        if (atomic_load(&m->preempt) != PREEMPT_NONE && m->ts != NULL &&
            (HAVE_GIL || !compat_detached(m->ts))) {
            idents[n++] = m->ident;
        }
    }
    unlock(&sched.lock);
    return n;
}

/* Watch the innermost code of that thread. False: exception. */
static bool arm(PyObject *frames, unsigned long ident)
{
    PyObject *key = PyLong_FromUnsignedLong(ident);
    PyObject *frame = key != NULL ? PyDict_GetItemWithError(frames, key) : NULL; /* borrowed */
    Py_XDECREF(key);
    if (frame == NULL) {
        return !PyErr_Occurred();
    }
    PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
    PyObject *r = PyObject_CallMethod(monitoring, "set_local_events", "iOl", tool, code, events);
    int known = r != NULL ? PySequence_Contains(armed, code) : -1;
    bool ok = known == 1 || (known == 0 && PyList_Append(armed, code) == 0);
    Py_XDECREF(r);
    Py_DECREF(code);
    return ok;
}

/* Attached. False: it cannot be done in this run. */
static bool arm_all(void)
{
    unsigned long idents[WANTED_MAX];
    int n = wanted(idents);
    if (n == 0) {
        return true;
    }
    if (!monitoring_start()) {
        return false;
    }
    if (PyList_GET_SIZE(armed) > WANTED_MAX) {
        disarm_all();
    }
    PyObject *current_frames = PySys_GetObject("_current_frames"); /* borrowed */
    PyObject *frames = current_frames != NULL ? PyObject_CallNoArgs(current_frames) : NULL;
    bool ok = frames != NULL;
    for (int i = 0; ok && i < n; i++) {
        ok = arm(frames, idents[i]);
    }
    Py_XDECREF(frames);
    return ok;
}

/* Not this time: sysmon need not wait. */
static void give_up(void)
{
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        uint8_t asked = PREEMPT_ASKED;
        atomic_compare_exchange_strong(&m->preempt, &asked, PREEMPT_FAILED);
    }
    unlock(&sched.lock);
}

/* Our thread. Attached to Python only while it does something there. */
static void *preemptor(void *Py_UNUSED(arg))
{
    prctl(PR_SET_NAME, "gofer-preempt", 0, 0, 0);
    PyGILState_STATE gil = PyGILState_Ensure();
    uint32_t seen = 0;
    int64_t pause = TRY_MIN_NS;
    while (!atomic_load(&stopping)) {
        uint32_t asked = atomic_load(&work);
        pause = asked != seen ? TRY_MIN_NS : pause < TRY_MAX_NS ? pause * 2 : pause;
        seen = asked;
        bool may = false;
        if (atomic_load(&nwanted) > 0) {
            Py_BEGIN_ALLOW_THREADS
            may = all_in_bytecode();
            Py_END_ALLOW_THREADS
        }
        atomic_store(&preempt_arming, true);
        if (may && !arm_all()) {
            atomic_store(&unavailable, true);
            may = false;
            if (PyErr_Occurred()) {
                PyErr_WriteUnraisable(NULL);
            }
        }
        if (atomic_load(&nwanted) == 0 && tool >= 0) {
            disarm_all();
        }
        atomic_store(&preempt_arming, false);
        if (!may) {
            give_up();
        }
        Py_BEGIN_ALLOW_THREADS
        bool again = !atomic_load(&unavailable) && atomic_load(&nwanted) > 0;
        word_wait(&work, seen, again ? nanotime() + pause : TIME_NEVER);
        Py_END_ALLOW_THREADS
    }
    monitoring_stop();
    PyGILState_Release(gil);
    return NULL;
}

void preempt_stop(void)
{
    if (started) {
        atomic_store(&stopping, 1);
        wake();
        pthread_join(thread, NULL);
        started = false;
    }
    atomic_store(&unavailable, false);
}

#endif
