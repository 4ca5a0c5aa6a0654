/* preempt: stop a goroutine that computes and reaches no scheduling point, at a bytecode boundary.
 *
 * sysmon asks for it (preempt_ask) when a slice is over and others wait. A thread of ours that may call into Python
 * has the goroutine's thread interrupted (interrupt.c). When that gets to a bytecode boundary it sleeps until the
 * goroutine has a P again (preempt_park). Its frames are on the stack of its thread, so it is wired to it meanwhile, as
 * a plain goroutine is.
 *
 * It is not for ever: in C code, when it cannot be interrupted, or when too many are stopped, sysmon hands the P off
 * after a while and the kernel shares the cores among the threads. */
#include "runtime.h"

#include <sys/prctl.h>

enum { STOPPED_MAX = 1000 };    /* threads that sleep in preempt_park() */
#define PROBE_NS    2000000LL   /* of CPU time, without getting to a boundary: it is in C code */
#define TRY_MIN_NS  4000000LL   /* between two tries: one may move on to other code each time ... */
#define TRY_MAX_NS  32000000LL  /* ... or sit in C code for long */
#define LOST_MAX_NS 256000000LL /* they sleep */
#define LOST_CPU_NS 5000000LL   /* of one that came back without a P: see is_due() */
#define QUICK_NS    100000000LL /* nobody was interrupted for so long: the GIL as usual */

_Atomic int32_t preempt_stopped;
_Atomic bool preempt_off;

static pthread_t thread;
static _Atomic bool started;  /* sysmon's to write, until it has ended */
static _Atomic uint32_t work; /* counts up when there is some: what the thread sleeps on */
static _Atomic uint32_t stopping;
static _Atomic bool unavailable; /* in this run */
static _Atomic int32_t nwanted;  /* Ms for which preempt_is_wanted() */

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

bool preempt_is_wanted(M *m)
{
    return is_wanted(atomic_load(&m->preempt));
}

bool preempt_wants_any(void)
{
    return atomic_load(&nwanted) > 0;
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
    if (can_stop() && !preempt_is_wanted(m)) {
        atomic_store(&m->lost_cpu_ns, clock_ns(m->cpu_clock));
        set_preempt(m, PREEMPT_LOST);
        wake();
    }
}

void preempt_forget(M *m)
{
    set_preempt(m, PREEMPT_NONE);
}

void preempt_failed(M *m)
{
    uint8_t asked = PREEMPT_ASKED;
    atomic_compare_exchange_strong(&m->preempt, &asked, PREEMPT_FAILED);
}

/* ---- stopping ---- */

/* One that comes back from a call that blocked, and now has no P, may just have got a lock there for which many wait. It
 * had better let go of that than wait for its turn, which comes after theirs. */
static bool is_due(M *m)
{
    uint8_t mark = atomic_load_explicit(&m->preempt, memory_order_relaxed);
    return is_wanted(mark) ||
           (mark == PREEMPT_LOST &&
            clock_ns(m->cpu_clock) - atomic_load(&m->lost_cpu_ns) >= LOST_CPU_NS);
}

bool preempt_claim(M *m)
{
    G *g = m->curg;
    bool stop = g != NULL && atomic_load_explicit(&m->collecting, memory_order_relaxed) == 0 &&
                !atomic_load_explicit(&sched.forked, memory_order_relaxed) && is_due(m) &&
                /* it has not begun to wait, in code that drives a coroutine by hand */
                atomic_load_explicit(&g->wait_reason, memory_order_relaxed) == WAIT_NONE &&
                /* nobody waits for it to have looked at his frames, with a P perhaps */
                !g_scanning() &&
                atomic_load_explicit(&m->user, memory_order_relaxed) == USER_RUNS &&
                /* the scheduler has not been here and called something that is in Python */
                (m->p == NULL ||
                 atomic_load_explicit(&m->p->owner, memory_order_relaxed) != p_owner(m, P_RUNNING));
    if (stop) {
        preempt_forget(m);
    }
    return stop;
}

bool preempt_park(M *m)
{
    atomic_fetch_add(&preempt_stopped, 1);
    park_stopped(m, m->curg);
    atomic_fetch_sub(&preempt_stopped, 1);
    return !atomic_load(&sched.aborted) && !hurry_self(m);
}

/* ---- our thread ---- */

/* One that uses no CPU time: would it, if it had the GIL, or a core? Else it blocks. */
static bool is_kept_waiting(M *m) /* sched.lock: thread states go under it */
{
    return HAVE_GIL ? p_of(m) != NULL && !gil_is_free() : m->ts != NULL && !compat_detached(m->ts);
}

/* Of those with a mark, how many have used CPU time since we looked last, or would. `rest`: there are others.
 * `users`: threads in the code of goroutines that are not stopped. The M may reach a scheduling point right now: then it
 * clears a mark that we have just set, or we set one that is cleared at the next. */
static int wanted(bool *rest, int *users)
{
    int n = 0;
    *rest = false;
    *users = 0;
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        uint8_t mark = atomic_load(&m->preempt), user = atomic_load(&m->user);
        *users += user != USER_NONE;
        if (mark != PREEMPT_NONE && user == USER_NONE) {
            set_preempt(m, mark = PREEMPT_NONE); /* it was set a moment too late */
        }
        if (mark == PREEMPT_NONE) {
            continue;
        }
        int64_t cpu = clock_ns(m->cpu_clock), used = cpu - m->tried_cpu_ns;
        m->tried_cpu_ns = cpu;
        bool computes = mark == PREEMPT_LOST ? is_due(m) : used > 0 || is_kept_waiting(m);
        if (computes != is_wanted(mark)) {
            atomic_store(&m->lost_cpu_ns, cpu);
            set_preempt(m, computes ? PREEMPT_ASKED : PREEMPT_LOST);
        }
        else if (used > PROBE_NS && interrupt_waits(m)) {
            preempt_failed(m); /* sysmon need not wait */
        }
        n += computes;
        *rest |= !computes;
    }
    unlock(&sched.lock);
    return n;
}

static void give_up(void)
{
    atomic_store(&unavailable, true);
    gil_as_usual();
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        preempt_failed(m);
    }
    unlock(&sched.lock);
}

/* One look, detached: when to look again. */
static int64_t look(PyThreadState *ts, int64_t pause)
{
    static int64_t quick_until; /* while gil_is_quick() */
    bool rest;
    int users, n = wanted(&rest, &users);
    bool clear = n == 0 && !preempt_wants_any() && interrupt_lingers();
    bool usual = n == 0 && gil_is_quick() && nanotime() >= quick_until;
    if (n > 0 || clear || usual) {
        PyEval_RestoreThread(ts);
        if (clear) {
            interrupt_clear();
        }
        if (usual) {
            gil_as_usual();
        }
        if (n > 0) {
            gil_quick(users);
            quick_until = nanotime() + QUICK_NS;
            if (!interrupt_wanted()) {
                if (PyErr_Occurred()) {
                    PyErr_WriteUnraisable(NULL);
                }
                give_up();
            }
        }
        PyEval_SaveThread();
    }
    if (atomic_load(&unavailable) || (n == 0 && !rest)) {
        return gil_is_quick() ? QUICK_NS : TIME_NEVER;
    }
    int64_t limit = n > 0 ? TRY_MAX_NS : LOST_MAX_NS;
    return pause < limit ? pause : limit;
}

/* Attached to Python only while it does something there. */
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
    PyEval_RestoreThread(ts);
    gil_as_usual();
    interrupt_stop();
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

/* collecting(phase, info): in gc.callbacks, as the first of all and as the last, so it counts: the others are Python
 * functions. While a thread that collects did not go on, nobody else could collect. And what is raised there, or
 * in destructors, is told and forgotten. */
static PyObject *core_collecting(PyObject *Py_UNUSED(mod), PyObject *args)
{
    const char *phase;
    PyObject *info;
    M *m = tls_m;
    if (!PyArg_ParseTuple(args, "sO", &phase, &info)) {
        return NULL;
    }
    if (m != NULL && strcmp(phase, "start") == 0) {
        m->collecting++;
    }
    else if (m != NULL && m->collecting > 0 && --m->collecting == 0 && hurry_self(m)) {
        user_cancel(m);
    }
    Py_RETURN_NONE;
}

/* gil_as_usual(): in a child that was forked while it was not. */
static PyObject *core_gil_as_usual(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    gil_as_usual();
    Py_RETURN_NONE;
}

PyMethodDef preempt_methods[] = {
    {"collecting", core_collecting, METH_VARARGS, NULL},
    {"gil_as_usual", core_gil_as_usual, METH_NOARGS, NULL},
    {NULL},
};
