/* GOFERDEBUG=schedtrace=MS[,scheddetail=1]: Go's lines about the scheduler, on standard error, written by sysmon. So
 * they come also when every P is stuck. */
#include "runtime.h"

#include <errno.h>
#include <stdarg.h>
#include <unistd.h>

static _Atomic int64_t every_ns; /* 0: off */
static _Atomic bool detailed;
static int64_t first_ns, last_ns; /* sysmon's */

enum { G_SYSCALL = 3 }; /* in Go a state of its own */

/* ---- text; a report is one write ---- */

void text_add(Text *t, const char *format, ...)
{
    for (;;) {
        va_list args;
        va_start(args, format);
        int n = vsnprintf(t->data + t->n, t->cap - t->n, format, args);
        va_end(args);
        if (n < 0 || (size_t)n < t->cap - t->n) {
            t->n += n > 0 ? (size_t)n : 0;
            return;
        }
        size_t cap = t->cap * 2 + (size_t)n + 1024;
        char *more = realloc(t->data, cap);
        if (more == NULL) {
            return; /* a line less */
        }
        t->data = more;
        t->cap = cap;
    }
}

void text_write(Text *t)
{
    for (size_t at = 0; at < t->n;) {
        ssize_t n = write(STDERR_FILENO, t->data + at, t->n - at);
        if (n < 0 && errno != EINTR) {
            break; /* nobody wants it */
        }
        at += n > 0 ? (size_t)n : 0;
    }
    free(t->data);
}

/* ---- the lines ---- */

static void add_head(Text *t, int64_t now)
{
    lock(&sched.lock);
    int threads = sched.nm + 1 + preempt_threads(), idle = sched.nmidle, wired = sched.nmwired;
    unlock(&sched.lock);
    text_add(t,
             "SCHED %lldms: gomaxprocs=%d idleprocs=%d threads=%d spinningthreads=%d "
             "needspinning=0 idlethreads=%d runqueue=%d",
             (long long)((now - first_ns) / 1000000), (int)sched.procs,
             (int)atomic_load(&sched.npidle), threads, (int)atomic_load(&sched.nmspinning), idle,
             (int)atomic_load(&sched.runq_size));
    if (!atomic_load(&detailed)) {
        return;
    }
    int waits = 0;
    for (int i = 0; atomic_load(&sched.stop_world) && i < sched.procs; i++) {
        uint64_t status = atomic_load(&sched.allp[i]->owner) & 0xff;
        waits += status == P_USER || status == P_RUNNING;
    }
    text_add(t, " gcwaiting=%d nmidlelocked=%d stopwait=%d sysmonwait=0\n",
             atomic_load(&sched.stop_world) != 0, wired, waits);
}

static void add_queues(Text *t)
{
    text_add(t, " [");
    for (int i = 0; i < sched.procs; i++) {
        text_add(t, " %u", runq_length(sched.allp[i]));
    }
    text_add(t, " ] schedticks=[");
    for (int i = 0; i < sched.procs; i++) {
        text_add(t, " %lld", (long long)atomic_load(&sched.allp[i]->tick));
    }
    text_add(t, " ]\n");
}

static void add_id(Text *t, const char *name, uint64_t id)
{
    if (id != 0) {
        text_add(t, " %s=%llu", name, (unsigned long long)id);
    }
    else {
        text_add(t, " %s=nil", name);
    }
}

static void add_ps(Text *t)
{
    for (int i = 0; i < sched.procs; i++) {
        P *p = sched.allp[i];
        lock(&p->timers_lock);
        size_t timers = p->ntimers;
        unlock(&p->timers_lock);
        uint64_t owner = atomic_load(&p->owner);
        text_add(t, "  P%d: status=%d schedtick=%lld syscalltick=%llu", i, p_status(p, owner),
                 (long long)atomic_load(&p->tick), (unsigned long long)atomic_load(&p->nsyscall));
        add_id(t, "m", owner >> 8);
        text_add(t, " runqsize=%u gfreecnt=0 timerslen=%zu\n", runq_length(p), timers);
    }
}

/* What is told of an M, copied under the lock: the text is made later. */
typedef struct {
    M *m; /* only to be compared */
    G *curg;
    uint64_t id, p, g, locked_g;
    bool spinning, blocked, syscall;
} MLook;

static MLook *look_at_ms(int *n)
{
    *n = 0;
    for (int cap = 64;; cap *= 2) {
        MLook *all = calloc((size_t)cap, sizeof *all);
        lock(&sched.lock);
        if (all == NULL || sched.nm < cap) {
            for (M *m = NULL; all != NULL && *n < cap && (m = m_after(m)) != NULL;) {
                MLook *l = &all[(*n)++];
                P *p = p_of(m);
                l->m = m;
                l->curg = __atomic_load_n(&m->curg, __ATOMIC_RELAXED);
                l->id = (uint64_t)m->id;
                l->p = p != NULL ? (uint64_t)p->id + 1 : 0;
                l->g = l->curg != NULL ? atomic_load(&m->curg_id) : 0;
                l->locked_g = __atomic_load_n(&m->wired, __ATOMIC_RELAXED) != NULL ? l->g : 0;
                l->spinning = __atomic_load_n(&m->spinning, __ATOMIC_RELAXED);
                l->blocked = m->on_idle_list || m->on_wired_list;
                l->syscall = m_in_user(m) && m_in_syscall(m);
            }
            unlock(&sched.lock);
            return all;
        }
        unlock(&sched.lock);
        free(all);
    }
}

static void add_ms(Text *t, const MLook *ms, int n)
{
    for (int i = 0; i < n; i++) {
        text_add(t, "  M%llu:", (unsigned long long)ms[i].id);
        if (ms[i].p != 0) {
            text_add(t, " p=%llu", (unsigned long long)ms[i].p - 1);
        }
        else {
            text_add(t, " p=nil");
        }
        add_id(t, "curg", ms[i].g);
        text_add(t, " mallocing=0 throwing=0 preemptoff= locks=0 dying=0 spinning=%s blocked=%s",
                 ms[i].spinning ? "true" : "false", ms[i].blocked ? "true" : "false");
        add_id(t, "lockedg", ms[i].locked_g);
        text_add(t, "\n");
    }
}

/* Which one it is, or which one runs `g`; NULL: none. */
static const MLook *find_m(const MLook *ms, int n, const M *m, const G *g)
{
    for (int i = 0; i < n; i++) {
        if ((m != NULL && ms[i].m == m) || (g != NULL && ms[i].curg == g)) {
            return &ms[i];
        }
    }
    return NULL;
}

/* A G is not freed while its shard is locked. */
static void add_gs(Text *t, const MLook *ms, int n)
{
    for (int i = 0; i < ALLG_SHARDS; i++) {
        spin_lock(&sched.allgs[i].lock);
        for (G *g = sched.allgs[i].head; g != NULL; g = g->all_next) {
            uint32_t state = g_state(g);
            if (state == G_DEAD) {
                continue;
            }
            const M *wired = atomic_load_explicit(&g->wired, memory_order_relaxed);
            const MLook *on = state == G_RUNNING ? find_m(ms, n, NULL, g) : NULL;
            const MLook *locked = wired != NULL ? find_m(ms, n, wired, NULL) : NULL;
            state = on != NULL && on->syscall ? G_SYSCALL : state;
            text_add(t, "  G%llu: status=%u(%s)", (unsigned long long)g->id, state,
                     wait_reason_text(atomic_load_explicit(&g->wait_reason, memory_order_relaxed)));
            add_id(t, "m", on != NULL ? on->id : 0);
            add_id(t, "lockedm", locked != NULL ? locked->id : 0);
            text_add(t, "\n");
        }
        spin_unlock(&sched.allgs[i].lock);
    }
}

static void report(int64_t now)
{
    Text t = {0};
    add_head(&t, now);
    if (!atomic_load(&detailed)) {
        add_queues(&t);
    }
    else {
        int n;
        MLook *ms = look_at_ms(&n);
        add_ps(&t);
        add_ms(&t, ms, n);
        add_gs(&t, ms, n);
        free(ms);
    }
    text_write(&t);
}

int64_t schedtrace(int64_t now)
{
    int64_t every = atomic_load(&every_ns);
    if (every == 0) {
        return TIME_NEVER;
    }
    if (last_ns == 0 || now - last_ns >= every) {
        first_ns = first_ns == 0 ? now : first_ns;
        last_ns = now;
        report(now);
    }
    return last_ns + every;
}

/* set_schedtrace(milliseconds, detailed): from the next look of sysmon on; 0: off. */
static PyObject *core_set_schedtrace(PyObject *Py_UNUSED(mod), PyObject *args)
{
    long long ms;
    int detail;
    if (!PyArg_ParseTuple(args, "Lp", &ms, &detail)) {
        return NULL;
    }
    atomic_store(&detailed, detail);
    atomic_store(&every_ns, ms * 1000000);
    Py_RETURN_NONE;
}

PyMethodDef schedtrace_methods[] = {
    {"set_schedtrace", core_set_schedtrace, METH_VARARGS, NULL},
    {NULL},
};
