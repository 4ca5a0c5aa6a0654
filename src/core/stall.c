/* GOFERDEBUG=stallwarn=MS and on_stall(): tell of a goroutine whose code runs, or sits in a call, for so long without
 * an operation. Others go on meanwhile, but whoever blocks in an async function costs a thread, and a moment to all in his
 * queue.
 *
 * sysmon looks at what each M does. It may not call into Python, so it starts a thread that does: one at a time, and
 * no more than one in a second. */
#include "runtime.h"

#include <sys/prctl.h>
#include <unistd.h>

#define PAUSE_NS NS_PER_S

static _Atomic int64_t limit_ns; /* 0: off */
static _Atomic bool telling;     /* the thread is there */
static int64_t looked_ns, told_ns;
static struct {
    uint64_t g;
    uint32_t stretch;
    int64_t ns;
} found; /* the thread's, while it is there */

/* Code of a plain function, and what is inside blocking(), is meant to take its time. */
static bool may_stall(M *m) /* sched.lock */
{
    return m_in_user(m) && __atomic_load_n(&m->wired, __ATOMIC_RELAXED) == NULL &&
           atomic_load(&m->in_syscall) != SYSCALL_SAID;
}

/* Whether it has done the same for too long; true once for each time. */
static bool has_stalled(M *m, int64_t now, int64_t limit) /* sched.lock */
{
    uint32_t stretch = atomic_load_explicit(&m->stretch, memory_order_relaxed);
    uint32_t ops = __atomic_load_n(&m->ops_left, __ATOMIC_RELAXED);
    if (!may_stall(m) || m->stall.stretch != stretch || m->stall.ops != ops) {
        m->stall.stretch = stretch;
        m->stall.ops = ops;
        m->stall.since_ns = now;
        m->stall.told = false;
    }
    return !m->stall.told && now - m->stall.since_ns >= limit;
}

static G *find_g(uint64_t id) /* a new reference, or NULL */
{
    AllgShard *s = &sched.allgs[id % ALLG_SHARDS];
    spin_lock(&s->lock);
    G *g = s->head;
    while (g != NULL && g->id != id) {
        g = g->all_next;
    }
    if (g != NULL && (g_state(g) == G_DEAD || compat_is_garbage((PyObject *)g) ||
                      !compat_try_incref((PyObject *)g))) {
        g = NULL;
    }
    spin_unlock(&s->lock);
    return g;
}

static void *teller(void *Py_UNUSED(arg))
{
    prctl(PR_SET_NAME, "gofer-stall", 0, 0, 0);
    PyGILState_STATE gil = PyGILState_Ensure();
    G *g = find_g(found.g);
    if (g != NULL) {
        PyObject *r = PyObject_CallFunction(hooks.stalled, "OdI", g, (double)found.ns / NS_PER_S,
                                            (unsigned)found.stretch);
        if (r == NULL) {
            PyErr_WriteUnraisable((PyObject *)g);
        }
        Py_XDECREF(r);
        Py_DECREF(g);
    }
    PyGILState_Release(gil);
    atomic_store(&telling, false);
    return NULL;
}

/* The one that has stalled longest. */
static bool look(int64_t now, int64_t limit)
{
    M *worst = NULL;
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        if (has_stalled(m, now, limit) &&
            (worst == NULL || m->stall.since_ns < worst->stall.since_ns)) {
            worst = m;
        }
    }
    bool tell = worst != NULL && now - told_ns >= PAUSE_NS && !atomic_load(&telling);
    if (tell) {
        worst->stall.told = true;
        found.g = atomic_load(&worst->curg_id);
        found.stretch = worst->stall.stretch;
        found.ns = now - worst->stall.since_ns;
    }
    unlock(&sched.lock);
    return tell;
}

int64_t stall_look(int64_t now)
{
    int64_t limit = atomic_load_explicit(&limit_ns, memory_order_relaxed);
    if (likely(limit == 0)) {
        return TIME_NEVER;
    }
    if (now - looked_ns < limit / 8) {
        return looked_ns + limit / 8;
    }
    looked_ns = now;
    pthread_t thread;
    if (look(now, limit)) {
        told_ns = now;
        atomic_store(&telling, true);
        if (pthread_create(&thread, NULL, teller, NULL) == 0) {
            pthread_detach(thread);
        }
        else {
            atomic_store(&telling, false);
        }
    }
    return now + limit / 8;
}

/* sysmon has ended. Detached. */
void stall_stop(void)
{
    while (atomic_load(&telling)) {
        usleep(100);
    }
    told_ns = 0;
}

/* set_stall(milliseconds): 0 is off. */
static PyObject *core_set_stall(PyObject *Py_UNUSED(mod), PyObject *arg)
{
    long long ms = PyLong_AsLongLong(arg);
    if (ms == -1 && PyErr_Occurred()) {
        return NULL;
    }
    atomic_store(&limit_ns, ms * 1000000);
    if (atomic_load(&sched.running) == RUN_ON) {
        sysmon_poke();
    }
    Py_RETURN_NONE;
}

/* stretch(id): counts up whenever that goroutine, which runs, is resumed; None: it does not run. */
static PyObject *core_stretch(PyObject *Py_UNUSED(mod), PyObject *arg)
{
    uint64_t id = PyLong_AsUnsignedLongLong(arg);
    int64_t stretch = -1;
    if (PyErr_Occurred()) {
        return NULL;
    }
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        if (m_in_user(m) && atomic_load(&m->curg_id) == id) {
            stretch = atomic_load(&m->stretch);
        }
    }
    unlock(&sched.lock);
    return stretch >= 0 ? PyLong_FromLongLong(stretch) : Py_NewRef(Py_None);
}

PyMethodDef stall_methods[] = {
    {"set_stall", core_set_stall, METH_O, NULL},
    {"stretch", core_stretch, METH_O, NULL},
    {NULL},
};
