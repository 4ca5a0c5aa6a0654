/* preempt: stop a goroutine that computes and reaches no scheduling point, at a bytecode boundary.
 *
 * sysmon asks for it (preempt_ask) when a slice is over and others wait. A thread of ours that may call into
 * Python has sys.monitoring watch the code that the goroutine is in (arm). When the goroutine jumps or
 * returns there, the interpreter calls at_boundary(), which sleeps until the goroutine has a P again (stop_here). Its
 * frames are on the stack of its thread, so it is wired to it meanwhile, as a plain goroutine is.
 *
 * Python 3.11 has no sys.monitoring. There the interpreter calls the trace function of a thread at each line, and
 * whoever has the GIL can set that of another thread: at_line(), which is taken off when it is first called. A thread
 * that a debugger or a coverage tool traces has one already, and cannot be stopped.
 *
 *   - With sys.monitoring, only the innermost code is watched. Soon it jumps, or returns, or calls what takes long: then the next try
 *     finds that.
 *   - Whatever runs the same code calls at_boundary() too. Who finds that nobody is wanted any more disarms it.
 *   - Without the GIL, looking at frames and arming stop the world of CPython, which waits until each thread is at
 *     a boundary: one in a long call of C code would make all wait. So we see first whether they get to one
 *     (all_in_bytecode).
 *   - It is not for ever: without a free tool id, in C code, or when too many are stopped, sysmon hands the P off
 *     after a while and the kernel shares the cores among the threads. */
#include "runtime.h"

#include <sys/prctl.h>
#include <unistd.h>

_Atomic int32_t preempt_stopped;
_Atomic bool preempt_off;
_Atomic bool preempt_arming;

enum {
    STOPPED_MAX = 1000, /* threads that sleep in at_boundary() */
    WANTED_MAX = 64,    /* stopped in one go */
};
#define PROBE_NS     2000000LL   /* of CPU time, without getting to a boundary: it is in C code */
#define PROBE_MAX_NS 100000000LL /* some may have to wait for a core */
#define TRY_MIN_NS   4000000LL  /* between two tries: one may move on to other code each time ... */
#define TRY_MAX_NS   32000000LL /* ... or sit in C code for long */
#define LOST_MAX_NS  256000000LL /* they sleep */

static pthread_t thread;
static _Atomic bool started;  /* sysmon's to write, until it has ended */
static _Atomic uint32_t work; /* counts up when there is some: what the thread sleeps on */
static _Atomic uint32_t stopping;
static _Atomic bool unavailable; /* in this run */
static _Atomic int32_t nwanted;  /* Ms with m->preempt set */

/* ---- asking ---- */

static void wake(void)
{
    atomic_fetch_add(&work, 1);
    word_wake_all(&work);
}

static void *preemptor(void *arg);

static bool can_stop(void)
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
    return true;
}

static bool is_wanted(uint8_t preempt)
{
    return preempt == PREEMPT_ASKED || preempt == PREEMPT_FAILED;
}

/* Either the M or, under sched.lock, our thread; or sysmon. */
static void set_preempt(M *m, uint8_t to)
{
    uint8_t was = atomic_exchange(&m->preempt, to);
    if (is_wanted(was) != is_wanted(to)) {
        atomic_fetch_add(&nwanted, is_wanted(to) ? 1 : -1);
    }
}

bool preempt_ask(M *m)
{
    if (!can_stop()) {
        return false;
    }
    set_preempt(m, PREEMPT_ASKED);
    wake();
    return true;
}

void preempt_lost(M *m)
{
    if (can_stop() && !is_wanted(atomic_load(&m->preempt))) {
        set_preempt(m, PREEMPT_LOST);
        wake();
    }
}

static void disarm_own(M *m);

void preempt_forget(M *m)
{
    set_preempt(m, PREEMPT_NONE);
    if (m == tls_m) {
        disarm_own(m);
    }
}

/* ---- is everybody in bytecode? ---- */

/* All Ms, m0 first. sched.lock: an M in the list is not freed, nor its thread state. */
static M *m_after(M *m)
{
    return m == NULL ? sched.m0 : m == sched.m0 ? sched.allm : m->all_next;
}

#if HAVE_GIL

bool all_in_bytecode(void)
{
    return true; /* whoever gives the GIL away is at a boundary */
}

#else

/* Ask those in the list, or look whether they are still to come. */
static void probe(M *m, bool ask, bool *waits, bool *in_c) /* sched.lock */
{
    for (; m != NULL; m = m->all_next) {
        if (m->ts == NULL || atomic_load(&m->user) == USER_NONE || compat_detached(m->ts)) {
            continue;
        }
        if (ask) {
            m->probe_cpu_ns = clock_ns(m->cpu_clock);
            compat_probe(m->ts);
        }
        if (compat_probe_waits(m->ts)) {
            *waits = true;
            *in_c |= clock_ns(m->cpu_clock) - m->probe_cpu_ns > PROBE_NS;
        }
    }
}

/* Have each thread that is attached to Python do something at its next boundary, and see whether it does, soon.
 * (Of threads that are no Ms we know nothing.) Detached. */
bool all_in_bytecode(void)
{
    bool waits = true, in_c = false;
    int64_t until = nanotime() + PROBE_MAX_NS;
    for (bool first = true; waits && !in_c && nanotime() < until; first = false) {
        waits = false;
        lock(&sched.lock);
        probe(sched.m0, first, &waits, &in_c); /* which is in no list */
        probe(sched.allm, first, &waits, &in_c);
        probe(sched.orphans, first, &waits, &in_c);
        unlock(&sched.lock);
        if (waits) {
            usleep(first ? 10 : 50);
        }
    }
    return !waits;
}

#endif

/* ---- stopping ---- */

/* At a boundary, on the goroutine's thread. */
static bool shall_stop(M *m)
{
    G *g = m != NULL ? m->curg : NULL;
    return g != NULL && !atomic_load_explicit(&sched.forked, memory_order_relaxed) &&
           atomic_load_explicit(&m->preempt, memory_order_relaxed) != PREEMPT_NONE &&
           /* it has not begun to wait, in code that drives a coroutine by hand */
           atomic_load_explicit(&g->wait_reason, memory_order_relaxed) == WAIT_NONE &&
           /* nobody waits for it to have looked at his frames, with a P perhaps */
           !g_scanning() && atomic_load_explicit(&m->user, memory_order_relaxed) == USER_RUNS;
}

/* Sleep until the goroutine has a P again. False: an exception is set, to be raised in the code that we have stopped. */
static bool stop_here(M *m)
{
    atomic_fetch_add(&preempt_stopped, 1);
    park_stopped(m, m->curg);
    atomic_fetch_sub(&preempt_stopped, 1);
    if (unlikely(atomic_load(&sched.aborted))) {
        PyErr_SetNone(hooks.Cancelled);
        return false;
    }
    return true;
}

#if COMPAT_HAVE_MONITORING

static _Atomic bool disarm_asked; /* our thread has been woken to do it */

static PyObject *monitoring;  /* sys.monitoring, once it was needed; owned for ever */
static _Atomic int tool = -1; /* our id there; set by the thread before it arms anything */
static PyObject *armed;       /* owned: a list of code objects; the thread's, as all below */
static long events;

/* With the GIL it is done at once, so that the next one to run the same code is not slowed down while our
 * thread waits for the GIL. Without it our thread does it, since that stops the world. */
static void disarm(PyObject *code)
{
    if (!HAVE_GIL) {
        if (!atomic_exchange(&disarm_asked, true)) {
            wake();
        }
        return;
    }
    PyObject *r = PyObject_CallMethod(monitoring, "set_local_events", "iOi", tool, code, 0);
    if (r == NULL) {
        PyErr_WriteUnraisable(code);
    }
    Py_XDECREF(r);
}

/* What the interpreter calls at a jump or return, and at the start, of code that is armed. */
static PyObject *at_boundary(PyObject *Py_UNUSED(self), PyObject *const *args,
                             Py_ssize_t Py_UNUSED(n))
{
    M *m = tls_m;
    bool stop = shall_stop(m);
    if (stop) {
        preempt_forget(m);
    }
    if (atomic_load(&nwanted) <= 0) {
        disarm(args[0]);
    }
    if (stop && !stop_here(m)) {
        return NULL;
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
    atomic_store(&preempt_arming, true);
    for (Py_ssize_t i = PyList_GET_SIZE(armed); i-- > 0;) {
        PyObject *r = PyObject_CallMethod(monitoring, "set_local_events", "iOi", tool,
                                          PyList_GET_ITEM(armed, i), 0);
        if (r == NULL) {
            PyErr_WriteUnraisable(NULL);
        }
        Py_XDECREF(r);
    }
    atomic_store(&preempt_arming, false);
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

typedef struct {
    const unsigned long *idents;
    PyFrameObject *frames[WANTED_MAX]; /* owned, or NULL */
    int n;
} Frames;

/* The innermost frame of each. Nobody runs: with the GIL it is ours, else the world of CPython is stopped. A frame
 * object of any other thread would let its locals outlive their function, so sys._current_frames() will not do. */
static int find_frames(PyObject *Py_UNUSED(any), void *arg)
{
    Frames *found = arg;
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        for (int i = 0; i < found->n; i++) {
            if (m->ts != NULL && m->ident == found->idents[i] && found->frames[i] == NULL) {
                found->frames[i] = PyThreadState_GetFrame(m->ts);
            }
        }
    }
    unlock(&sched.lock);
    return 0; /* that was all: visit no other object */
}

/* Watch the code of that frame. False: exception. */
static bool arm(PyFrameObject *frame)
{
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    PyObject *r = PyObject_CallMethod(monitoring, "set_local_events", "iOl", tool, code, events);
    int known = r != NULL ? PySequence_Contains(armed, code) : -1;
    bool ok = known == 1 || (known == 0 && PyList_Append(armed, code) == 0);
    Py_XDECREF(r);
    Py_DECREF(code);
    return ok;
}

/* Attached. False: it cannot be done in this run. */
static bool arm_all(const unsigned long *idents, int n)
{
    if (!monitoring_start()) {
        return false;
    }
    if (PyList_GET_SIZE(armed) > WANTED_MAX) {
        disarm_all();
    }
    Frames found = {.idents = idents, .n = n};
    atomic_store(&preempt_arming, true);
    if (HAVE_GIL) {
        find_frames(NULL, &found);
    }
    else {
        PyUnstable_GC_VisitObjects(find_frames,
                                   &found); /* stops the world, and that is all we want */
    }
    bool ok = true;
    for (int i = 0; i < n; i++) {
        ok = ok && (found.frames[i] == NULL || arm(found.frames[i]));
    }
    atomic_store(&preempt_arming, false);
    for (int i = 0; i < n; i++) {
        Py_XDECREF(found.frames[i]); /* if it has returned meanwhile, what it held is freed here */
    }
    return ok;
}

static void disarm_own(M *Py_UNUSED(m)) {} /* others may run the same code */

/* Is there code to disarm? */
static bool any_armed(void)
{
    return armed != NULL && PyList_GET_SIZE(armed) > 0;
}

static void disarm_idle(void)
{
    disarm_all();
    atomic_store(&disarm_asked, false);
}

#else

/* What the interpreter calls at a line, and when a function begins or ends. */
static int at_line(PyObject *Py_UNUSED(none), PyFrameObject *Py_UNUSED(frame), int what,
                   PyObject *arg)
{
    if (what != PyTrace_LINE && what != PyTrace_CALL && (what != PyTrace_RETURN || arg == NULL)) {
        return 0; /* an exception is on its way */
    }
    M *m = tls_m;
    compat_untrace(PyThreadState_Get(), at_line);
    if (!shall_stop(m)) {
        return 0;
    }
    preempt_forget(m);
    return stop_here(m) ? 0 : -1;
}

/* It has reached a scheduling point: attached. */
static void disarm_own(M *m)
{
    if (m->ts != NULL) {
        compat_untrace(m->ts, at_line);
    }
}

/* A thread that is in user code. If it has computed since we armed it, and not come to a line, it is in C code; or caught,
 * see compat_exception_waits. Either way let it go. */
static void arm(M *m, bool may) /* sched.lock, and the GIL */
{
    int64_t cpu = clock_ns(m->cpu_clock);
    bool in_vain = compat_traced(m->ts, at_line) && cpu - m->probe_cpu_ns > PROBE_NS;
    if (may && !in_vain && compat_trace(m->ts, at_line)) {
        m->probe_cpu_ns = cpu;
        return;
    }
    compat_untrace(m->ts, at_line);
    set_preempt(m, PREEMPT_FAILED);
}

/* Of all that are wanted, also those that have not used CPU time: they may be armed from before. */
static bool arm_all(const unsigned long *Py_UNUSED(idents), int Py_UNUSED(n))
{
    bool may = !compat_exception_waits();
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        if (m->ts != NULL && is_wanted(atomic_load(&m->preempt)) &&
            atomic_load(&m->user) == USER_RUNS) {
            arm(m, may);
        }
    }
    unlock(&sched.lock);
    return true;
}

static bool any_armed(void)
{
    return false; /* at_line() takes itself off */
}

static void disarm_idle(void) {}

/* Those that have not come to another line. M0's thread is the caller's. */
static void monitoring_stop(void)
{
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        if (m->ts != NULL) {
            compat_untrace(m->ts, at_line);
        }
    }
    for (M *m = sched.orphans; m != NULL; m = m->all_next) {
        if (m->ts != NULL) {
            compat_untrace(m->ts, at_line);
        }
    }
    unlock(&sched.lock);
}

#endif

/* ---- arming ---- */

/* Who shall be stopped: of those with a mark, those that have used CPU time since we looked last. `rest`: there are others.
 * The M may reach a scheduling point right now: then it clears a mark that we have just set, or we set one that
 * is cleared at the next. */
static int wanted(unsigned long *idents, bool *rest)
{
    int n = 0;
    *rest = false;
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        uint8_t mark = atomic_load(&m->preempt);
        if (mark != PREEMPT_NONE && atomic_load(&m->user) == USER_NONE) {
            set_preempt(m, mark = PREEMPT_NONE); /* it was set a moment too late */
        }
        if (mark == PREEMPT_NONE || n == WANTED_MAX) {
            continue;
        }
        int64_t cpu = clock_ns(m->cpu_clock);
        bool computes = cpu != m->tried_cpu_ns;
        m->tried_cpu_ns = cpu;
        if (computes != is_wanted(mark)) {
            set_preempt(m, computes ? PREEMPT_ASKED : PREEMPT_LOST);
        }
        if (computes) {
            idents[n++] = m->ident;
        }
        *rest |= !computes;
    }
    unlock(&sched.lock);
    return n;
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

/* One look, detached: when to look again. */
static int64_t look(PyThreadState *ts, int64_t pause)
{
    unsigned long idents[WANTED_MAX];
    bool rest;
    int n = wanted(idents, &rest);
    bool arm_them = n > 0 && all_in_bytecode();
    if (arm_them || (atomic_load(&nwanted) <= 0 && any_armed())) {
        PyEval_RestoreThread(ts);
        if (!arm_them) {
            disarm_idle();
        }
        else if (!arm_all(idents, n)) {
            atomic_store(&unavailable, true);
            arm_them = false;
            if (PyErr_Occurred()) {
                PyErr_WriteUnraisable(NULL);
            }
        }
        PyEval_SaveThread();
    }
    if (n > 0 && !arm_them) {
        give_up();
    }
    int64_t limit = n > 0 ? TRY_MAX_NS : LOST_MAX_NS;
    return atomic_load(&unavailable) || (n == 0 && !rest) ? TIME_NEVER
           : pause < limit                                ? pause
                                                          : limit;
}

/* Our thread. Attached to Python only while it does something there. */
static void *preemptor(void *Py_UNUSED(arg))
{
    prctl(PR_SET_NAME, "gofer-preempt", 0, 0, 0);
    PyGILState_STATE gil = PyGILState_Ensure();
    PyThreadState *ts = PyEval_SaveThread();
    uint32_t seen = 0;
    int64_t pause = 0;
    while (!atomic_load(&stopping)) {
        uint32_t asked = atomic_load(&work);
        pause = look(ts, asked != seen ? TRY_MIN_NS : pause * 2);
        seen = asked;
        word_wait(&work, seen, pause == TIME_NEVER ? TIME_NEVER : nanotime() + pause);
        pause = pause == TIME_NEVER ? TRY_MIN_NS : pause;
    }
    /* A thread in C code, that run() does not wait for, would hold us up: then the next run does it, or inherits it. */
    bool may = all_in_bytecode();
    PyEval_RestoreThread(ts);
    if (may) {
        monitoring_stop();
    }
    PyGILState_Release(gil);
    return NULL;
}

int preempt_threads(void)
{
    return atomic_load(&started);
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
