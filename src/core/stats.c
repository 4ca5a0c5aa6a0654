/* Numbers about the runtime: stats(), metrics().
 *
 * A look stops nobody. What is under sched.lock is of one instant; each P's counters are read while it goes on, so
 * sums may be off by what happens meanwhile. Counters only grow, over all runs of the process: Ps are never freed. */
#include "net.h"

_Atomic int64_t mutex_wait_ns;
Histogram pauses_stopping, pauses_total;

/* ---- histograms ---- */

/* The highest bit picks the power of two, the two bits below it a quarter of that. What is below the least
 * power counts as if it had that bit, so its quarters begin at 0. */
static int hist_index(int64_t ns)
{
    if (ns < 0) {
        return 0;
    }
    int bits = ns > 0 ? 64 - __builtin_clzll((unsigned long long)ns) : 0;
    int power = bits < HIST_BITS_MIN ? 0 : bits - HIST_BITS_MIN + 1;
    if (bits > HIST_BITS_MAX - 1) {
        return HIST_SIZE - 1;
    }
    int shift = (bits < HIST_BITS_MIN ? HIST_BITS_MIN : bits) - 1 - HIST_SUB_BITS;
    int quarter = (int)(ns >> shift) & ((1 << HIST_SUB_BITS) - 1);
    return 1 + (power << HIST_SUB_BITS) + quarter;
}

void hist_count(Histogram h, int64_t ns, int n)
{
    count_add(&h[hist_index(ns)], n);
}

void latency_count(M *m, G *g)
{
    uint32_t stamp = atomic_load_explicit(&g->stamp, memory_order_relaxed);
    int64_t units = (uint32_t)(stamp_now() - (stamp & ~(uint32_t)STAMP_MARKS));
    hist_count(m->p->latency, units << STAMP_SHIFT, stamp & STAMP_COUNTS_MORE ? SAMPLE : 1);
}

static PyObject *hist_tuple(const int64_t counts[HIST_SIZE])
{
    PyObject *t = PyTuple_New(HIST_SIZE);
    for (int i = 0; t != NULL && i < HIST_SIZE; i++) {
        PyObject *n = PyLong_FromLongLong(counts[i]);
        if (n == NULL) {
            Py_CLEAR(t);
            break;
        }
        PyTuple_SET_ITEM(t, i, n);
    }
    return t;
}

static PyObject *hist_look(Histogram h)
{
    int64_t counts[HIST_SIZE];
    for (int i = 0; i < HIST_SIZE; i++) {
        counts[i] = atomic_load_explicit(&h[i], memory_order_relaxed);
    }
    return hist_tuple(counts);
}

/* histogram_bounds(): of the buckets between the first and the last, in nanoseconds. */
static PyObject *core_histogram_bounds(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    PyObject *t = PyTuple_New(HIST_SIZE - 1);
    for (int i = 0; t != NULL && i < HIST_SIZE - 1; i++) {
        int power = i >> HIST_SUB_BITS, quarter = i & ((1 << HIST_SUB_BITS) - 1);
        int shift = HIST_BITS_MIN - 1 - HIST_SUB_BITS + (power > 0 ? power - 1 : 0);
        int64_t least = power > 0 ? (int64_t)1 << (HIST_BITS_MIN - 2 + power) : 0;
        PyObject *n = PyLong_FromLongLong(least + ((int64_t)quarter << shift));
        if (n == NULL) {
            Py_CLEAR(t);
            break;
        }
        PyTuple_SET_ITEM(t, i, n);
    }
    return t;
}

/* ---- goroutines and threads, by what they do ---- */

typedef struct {
    int64_t alive, created, running, syscall;
    int threads, idle, blocked, spinning, stopped, idle_ps, global_queue;
} SchedLook;

bool m_in_user(M *m)
{
    uint8_t user = atomic_load(&m->user);
    return __atomic_load_n(&m->curg, __ATOMIC_RELAXED) != NULL && user != USER_NONE &&
           user != USER_ORPHAN;
}

static void look_at_m(M *m, SchedLook *look) /* sched.lock */
{
    if (!m_in_user(m)) {
        return; /* it looks for work, or sleeps: perhaps in the middle of a goroutine that waits */
    }
    if (!m_in_syscall(m)) {
        look->running++;
        return;
    }
    look->syscall++;
    look->blocked += p_of(m) == NULL;
}

static SchedLook look_at_sched(void)
{
    SchedLook look = {0};
    lock(&sched.lock);
    look.created = sched.created_before + atomic_load(&sched.gbegun);
    if (sched.m0 != NULL && atomic_load(&sched.running) == RUN_ON) {
        look.alive = g_alive_locked();
        look.threads = sched.nm + 1 + preempt_threads(); /* 1: sysmon */
        look.idle = sched.nmidle;
        look.spinning = atomic_load(&sched.nmspinning);
        look.stopped = atomic_load(&preempt_stopped);
        look.idle_ps = atomic_load(&sched.npidle);
        look.global_queue = atomic_load(&sched.runq_size);
        for (M *m = NULL; (m = m_after(m)) != NULL;) {
            look.created += atomic_load(&m->gbegun);
            look_at_m(m, &look);
        }
    }
    unlock(&sched.lock);
    return look;
}

/* ---- Ps ---- */

int p_status(P *p, uint64_t owner)
{
    uint32_t slices = atomic_load_explicit(&p->slices, memory_order_relaxed);
    switch (owner & 0xff) {
    case P_IDLE:
        return 0;
    case P_USER:
        return slices % 2 == 1 && atomic_load_explicit(&p->blocked, memory_order_relaxed) == slices
                   ? 2
                   : 1;
    case P_RUNNING:
        return 1;
    default:
        return 3;
    }
}

static const char *const status_names[] = {"idle", "running", "syscall", "stopped"};

/* The M with this id, and what it runs: 0 if nothing. */
static uint64_t running_on(uint64_t m_id)
{
    uint64_t g = 0;
    lock(&sched.lock);
    for (M *m = NULL; m_id != 0 && (m = m_after(m)) != NULL;) {
        if ((uint64_t)m->id == m_id && __atomic_load_n(&m->curg, __ATOMIC_RELAXED) != NULL) {
            g = atomic_load_explicit(&m->curg_id, memory_order_relaxed);
        }
    }
    unlock(&sched.lock);
    return g;
}

static uint64_t number_of(const _Atomic int64_t *n)
{
    return (uint64_t)atomic_load_explicit(n, memory_order_relaxed);
}

/* As ProcStats in gofer.runtime has it. */
static PyObject *look_at_p(P *p)
{
    lock(&p->timers_lock);
    size_t timers = p->ntimers;
    unlock(&p->timers_lock);
    uint64_t owner = atomic_load(&p->owner), m = owner >> 8, g = running_on(m);
    PyObject *thread = m != 0 ? PyLong_FromUnsignedLongLong(m) : Py_NewRef(Py_None);
    PyObject *goroutine = g != 0 ? PyLong_FromUnsignedLongLong(g) : Py_NewRef(Py_None);
    return Py_BuildValue(
        "(iisINKKKKKKnNN)", p->id, numa_id(atomic_load(&p->node)), status_names[p_status(p, owner)],
        runq_length(p),
        PyBool_FromLong(atomic_load_explicit(&p->runnext, memory_order_relaxed) != NULL),
        (unsigned long long)number_of(&p->tick), (unsigned long long)atomic_load(&p->nsyscall),
        (unsigned long long)number_of(&p->nsteal), (unsigned long long)number_of(&p->nfar),
        (unsigned long long)atomic_load(&p->nhandoff),
        (unsigned long long)atomic_load(&p->npreempt), (Py_ssize_t)timers, thread, goroutine);
}

static int procs_now(void)
{
    return atomic_load(&sched.running) == RUN_ON ? atomic_load(&sched.procs) : 0;
}

static int64_t queued(const SchedLook *look)
{
    int64_t n = look->global_queue + (procs_now() > 0 && atomic_load(&sched.m0_slot) != NULL);
    for (int i = 0; i < procs_now(); i++) {
        P *p = sched.allp[i];
        n += runq_length(p) + (atomic_load_explicit(&p->runnext, memory_order_relaxed) != NULL);
    }
    return n;
}

static PyObject *look_at_ps(void)
{
    int n = procs_now();
    PyObject *all = PyTuple_New(n);
    for (int i = 0; all != NULL && i < n; i++) {
        PyObject *p = look_at_p(sched.allp[i]);
        if (p == NULL) {
            Py_CLEAR(all);
            break;
        }
        PyTuple_SET_ITEM(all, i, p);
    }
    return all;
}

typedef struct {
    uint64_t steals, far, handoffs, preempts, switches;
    int64_t latency[HIST_SIZE];
} Sums;

/* Over all Ps that there ever were. */
static void add_up(Sums *s)
{
    *s = (Sums){0};
    P *p;
    for (int i = 0;
         i < MAX_PROCS && (p = __atomic_load_n(&sched.allp[i], __ATOMIC_ACQUIRE)) != NULL; i++) {
        s->steals += number_of(&p->nsteal);
        s->far += number_of(&p->nfar);
        s->handoffs += atomic_load(&p->nhandoff);
        s->preempts += atomic_load(&p->npreempt);
        s->switches += number_of(&p->nswitch);
        for (int b = 0; b < HIST_SIZE; b++) {
            s->latency[b] += atomic_load_explicit(&p->latency[b], memory_order_relaxed);
        }
    }
}

/* stats(): what gofer.runtime.stats() is made of. */
static PyObject *core_stats(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    SchedLook look = look_at_sched();
    PollerLook poller = netpoll_stats();
    PyObject *ps = look_at_ps();
    Sums sums;
    add_up(&sums);
    PyObject *latency = hist_tuple(sums.latency);
    return Py_BuildValue(
        "{sisLsLsLsLsLsNsisisisisisisis(IIIKK)sKsKsKsKsKsN}", "gomaxprocs", (int)sched.procs,
        "goroutines", (long long)look.alive, "created", (long long)look.created, "runnable",
        (long long)queued(&look), "running", (long long)look.running, "syscall",
        (long long)look.syscall, "procs", ps, "idle_procs", look.idle_ps, "threads", look.threads,
        "idle_threads", look.idle, "spinning_threads", look.spinning, "blocked_threads",
        look.blocked, "stopped_threads", look.stopped, "global_queue", look.global_queue, "poller",
        poller.descriptors, poller.waiting[SIDE_READ], poller.waiting[SIDE_WRITE],
        (unsigned long long)poller.polls, (unsigned long long)poller.events, "steals",
        (unsigned long long)sums.steals, "cross_node_steals", (unsigned long long)sums.far,
        "handoffs", (unsigned long long)sums.handoffs, "preemptions",
        (unsigned long long)sums.preempts, "switches", (unsigned long long)sums.switches,
        "latencies", latency);
}

/* more_metrics(): (pauses while stopping, whole pauses, nanoseconds waited for mutexes). */
static PyObject *core_more_metrics(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    PyObject *stopping = hist_look(pauses_stopping), *total = hist_look(pauses_total);
    return Py_BuildValue("(NNL)", stopping, total, (long long)atomic_load(&mutex_wait_ns));
}

PyMethodDef stats_methods[] = {
    {"stats", core_stats, METH_NOARGS, NULL},
    {"more_metrics", core_more_metrics, METH_NOARGS, NULL},
    {"histogram_bounds", core_histogram_bounds, METH_NOARGS, NULL},
    {NULL},
};
