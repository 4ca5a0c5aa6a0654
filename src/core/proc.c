/* The scheduler: Ms that look for Gs, run them and park.
 *
 * THE MODEL is Go's. An M (thread) that holds a P runs goroutines from the P's ring, and when that is
 * empty takes from the global queue or steals half of another P's ring. An M without work keeps looking
 * for a moment (it *spins*), then gives up its P and sleeps.
 *
 * WHERE IT DIFFERS FROM GO
 *   - A goroutine's stack is a chain of coroutine frames on the heap. execute() resumes it and gets the
 *     thread back when it suspends, so there is no stack to switch and g0 is simply the C stack.
 *   - Python code cannot be made to call us. While a coroutine runs, its P is in P_USER, which
 *     anybody may take; the M finds out at its next p_enter(). In Go that is a P in a system call.
 *   - The main goroutine runs on the thread that called run() (M0), because signal handlers and much of
 *     the standard library want it there. M0 runs other goroutines too; if main becomes runnable meanwhile
 *     it waits in m0_slot, and sysmon lets it go elsewhere if M0 does not come back for 10 ms.
 *   - With the GIL nobody spins: looking for work costs the one who does it.
 *
 * REJECTED
 *   - A lock around parking (as threading.Condition would have it): the goroutine is on a wait queue
 *     while its coroutine still runs towards its suspension, and a waker must neither wait for that nor
 *     resume it early. The state word decides, see below.
 *   - Main pinned to M0 with M0 doing nothing else: every message to main would cost two thread switches.
 *   - Handing a woken goroutine to the thread it last ran on: a coroutine has no affinity, its waker's
 *     cache holds what it was sent.
 *
 * PARKING AND WAKING A GOROUTINE: one atomic word, no lock.
 *   The goroutine puts its wait record on a queue while it is G_RUNNING, then suspends. From the moment
 *   the record is on the queue, any thread may take it off and call goready():
 *     G_WAITING   -> G_RUNNABLE: the waker queues it.
 *     G_RUNNING   -> G_RUNNING|G_NOTIFIED: it has not suspended yet. The M that sees it suspend finds
 *                    the mark when it tries G_RUNNING -> G_WAITING, and requeues it.
 *     otherwise   it will run anyway, and looks for itself.
 *   Every operation tolerates a wake-up that was not meant for it (see op.c), so nobody has to prove
 *   that one cannot happen.
 *
 * PUBLISHING WORK AND GOING TO SLEEP: no wake-up is lost.
 *   Submitter: put G on a queue; full fence; if there is an idle P and nobody spins, start an M.
 *   Sleeper:   give up the P; stop spinning (atomic, full fence); look at all queues again; sleep.
 *   If the submitter saw a spinning M, that M's second look comes after the submission. If it saw
 *   none, it starts one. If it saw no idle P, whoever gives one up afterwards takes that second look
 *   too, whether it spun or not. (In Go only spinning Ms do, and a flag `needspinning` makes up for it.)
 *   An M that finds work while it spins starts another in its place, because submitters relied on it to
 *   go on looking; so all Ps get busy as long as there is work. */
#include "net.h"
#include "trace.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

Sched sched;
Hooks hooks;
_Atomic int64_t live_rest[LIVE_KINDS];
_Thread_local M *tls_m __attribute__((tls_model("initial-exec")));

uint32_t m_random(M *m) /* xorshift32 */
{
    uint32_t x = m->rng;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return m->rng = x;
}

/* ---- references to drop when nothing is held ---- */

static _Thread_local Drops foreign_drops; /* of a thread that is no M */

static void put_off(M *m, uintptr_t item)
{
    Drops *d = m != NULL ? &m->drops : &foreign_drops;
    if (d->n == d->cap) {
        size_t cap = d->cap > 0 ? d->cap * 2 : 64;
        uintptr_t *more = realloc(d->items, cap * sizeof *more);
        if (more == NULL) {
            return; /* out of memory: keeping the object alive for ever is the safe mistake */
        }
        d->items = more;
        d->cap = cap;
    }
    d->items[d->n++] = item;
}

void drop_later(M *m, PyObject *op)
{
    put_off(m, (uintptr_t)op);
}

void due_later(M *m, PyObject *op)
{
    put_off(m, (uintptr_t)op | 1);
}

void drop_now(M *m)
{
    Drops *d = m != NULL ? &m->drops : &foreign_drops;
    while (d->n > 0) { /* what these call may add some */
        Drops batch = *d;
        *d = (Drops){0};
        for (size_t i = 0; i < batch.n; i++) { /* timers in the order in which they were due */
            PyObject *op = (PyObject *)(batch.items[i] & ~(uintptr_t)1);
            if ((batch.items[i] & 1) && Py_IS_TYPE(op, &JoinOp_Type)) {
                join_counted(op);
            }
            else if (batch.items[i] & 1) {
                timer_due(op);
            }
            Py_DECREF(op);
        }
        if (d->items == NULL && m != NULL) {
            *d = (Drops){batch.items, 0, batch.cap};
        }
        else {
            free(batch.items);
        }
    }
}

/* ---- Ps ---- */

P *p_of(const M *m)
{
    for (int i = 0; i < sched.procs; i++) {
        if (atomic_load(&sched.allp[i]->owner) >> 8 == (uint64_t)m->id) {
            return sched.allp[i];
        }
    }
    return NULL;
}

static void p_give(P *p, M *m) /* sched.lock */
{
    m->node = (int16_t)atomic_load_explicit(&p->node, memory_order_relaxed);
    atomic_store_explicit(&p->m, m, memory_order_relaxed);
    atomic_store_explicit(&p->owner, p_owner(m, P_USER), memory_order_release);
}

/* `m` has got a P that it did not have, and holds it in P_RUNNING. */
static void p_started(M *m)
{
    trace_proc_start(m);
    if (unlikely(atomic_load_explicit(&numa_pinning, memory_order_relaxed)) && m->p != NULL) {
        numa_settle(m);
    }
}

/* Give up a P that is in our hands. */
void p_idle(P *p)
{
    lock(&sched.lock);
    pidle_put(p);
    unlock(&sched.lock);
}

P *pidle_get(int node)
{
    P **at = &sched.idle_ps;
    if (numa_many() && node >= 0) {
        while (*at != NULL && atomic_load_explicit(&(*at)->node, memory_order_relaxed) != node) {
            at = &(*at)->idle_next;
        }
        at = *at != NULL ? at : &sched.idle_ps;
    }
    P *p = *at;
    if (p != NULL) {
        *at = p->idle_next;
        atomic_fetch_sub(&sched.npidle, 1);
        if (unlikely(atomic_load_explicit(&sched.sysmon_asleep, memory_order_relaxed))) {
            atomic_store(&sched.sysmon_asleep, false);
            sysmon_poke();
        }
    }
    return p;
}

void pidle_put(P *p)
{
    if (atomic_load(&sched.stop_world)) { /* start_world puts it on the list */
        atomic_store(&p->owner, P_STOPPED_IDLE);
        return;
    }
    atomic_store_explicit(&p->owner, P_IDLE, memory_order_release);
    p->idle_next = sched.idle_ps;
    sched.idle_ps = p;
    atomic_fetch_add(&sched.npidle, 1);
}

/* The quick way in failed: the P was taken, or the world stops. Attached; may detach for a while. */
bool p_enter_slow(M *m)
{
    while (m->p != NULL) {
        uint32_t epoch = atomic_load(&sched.world_epoch);
        uint64_t owner = p_owner(m, P_USER);
        if (atomic_compare_exchange_strong(&m->p->owner, &owner, p_owner(m, P_RUNNING))) {
            return true;
        }
        if (owner != p_owner(m, P_STOPPED_U)) {
            m->p = NULL;
            trace_back(m);
            atomic_store_explicit(&m->in_syscall, SYSCALL_NONE, memory_order_relaxed);
            break;
        }
        Py_BEGIN_ALLOW_THREADS
        world_wait(epoch);
        Py_END_ALLOW_THREADS
    }
    return false;
}

/* The world stops and we are in the scheduler: give way until it goes on. */
static void world_stop_here(M *m)
{
    P *p = m->p;
    uint32_t epoch = atomic_load(&sched.world_epoch);
    atomic_store(&p->owner, p_owner(m, P_STOPPED_R));
    while (atomic_load(&p->owner) == p_owner(m, P_STOPPED_R)) {
        Py_BEGIN_ALLOW_THREADS
        world_wait(epoch);
        Py_END_ALLOW_THREADS
        epoch = atomic_load(&sched.world_epoch);
    }
    if (atomic_load(&p->owner) != p_owner(m, P_RUNNING)) {
        m->p = NULL; /* gomaxprocs took it away */
    }
}

/* ---- Ms ---- */

static void *m_main(void *arg);

static void idle_m_remove(M *m) /* sched.lock */
{
    if (m->idle_prev != NULL) {
        m->idle_prev->idle_next = m->idle_next;
    }
    else {
        sched.idle_ms = m->idle_next;
    }
    if (m->idle_next != NULL) {
        m->idle_next->idle_prev = m->idle_prev;
    }
    m->on_idle_list = false;
    sched.nmidle--;
    if (sched.poller == m) {
        sched.poller = NULL;
        atomic_store(&sched.poll_until_ns, 0);
    }
}

static void idle_m_add(M *m) /* sched.lock */
{
    m->idle_prev = NULL;
    m->idle_next = sched.idle_ms;
    if (sched.idle_ms != NULL) {
        sched.idle_ms->idle_prev = m;
    }
    sched.idle_ms = m;
    m->on_idle_list = true;
    sched.nmidle++;
}

/* It has been taken off the idle list: let it go on. It may be gone when this returns. */
static void m_wake(M *m)
{
    bool polls = m->polls;
    note_wake(&m->note);
    if (polls) {
        netpoll_break();
    }
}

/* The one that slept least, of those that last were on the node of `p` if a few looks find one. But not the one
 * that watches the timers, unless no P is left idle for which it could do so. */
static M *idle_m_get(const P *p) /* sched.lock */
{
    M *m = sched.idle_ms;
    if (numa_many()) {
        int node = atomic_load_explicit(&p->node, memory_order_relaxed), looks = 16;
        while (m != NULL && (m->node != node || m == sched.poller) && --looks > 0) {
            m = m->idle_next;
        }
        m = m != NULL && m->node == node && m != sched.poller ? m : sched.idle_ms;
    }
    if (m != NULL && m == sched.poller && (m->idle_next != NULL || sched.idle_ps != NULL)) {
        m = m->idle_next;
    }
    if (m != NULL) {
        idle_m_remove(m);
    }
    return m;
}

M *m_new(void)
{
    M *m = calloc(1, sizeof(M));
    if (m != NULL) {
        m->id = ++sched.next_m_id; /* never used again: P.owner relies on it */
        m->node = -1;
        m->rng = (uint32_t)m->id * 2654435761u | 1;
    }
    return m;
}

void m_set_thread(M *m)
{
    pthread_getcpuclockid(pthread_self(), &m->cpu_clock);
    m->tid = (pid_t)syscall(SYS_gettid);
}

bool m_init(M *m, PyThreadState *ts)
{
    lock(&sched.lock); /* sysmon and the preemptor look */
    m->ts = ts;
    unlock(&sched.lock);
    m->context = PyContext_New();
    if (m->context == NULL || PyContext_Enter(m->context) < 0) {
        return false;
    }
    tls_m = m;
    interrupt_ready(m);
    m->ident = PyThread_get_thread_ident();
    PyObject *r = PyObject_CallNoArgs(hooks.attach_thread);
    Py_XDECREF(r);
    return r != NULL;
}

void m_fini(M *m)
{
    drop_now(m);
    Py_CLEAR(m->stop); /* of an orphan: with the last result that was awaited */
    if (m->context != NULL) {
        PyContext_Exit(m->context);
        Py_CLEAR(m->context);
    }
    free_lists_clear(m); /* last: what these let go of comes to them */
    tls_m = NULL;
    lock(&sched.lock);
    m->ts = NULL;
    unlock(&sched.lock);
    interrupt_end_m(m); /* nobody gives it another now */
    for (int i = 0; i < LIVE_KINDS; i++) {
        atomic_fetch_add(&live_rest[i], atomic_exchange(&m->live[i], 0));
    }
    free(m->drops.items);
    m->drops = (Drops){0};
    free(m->scratch);
    m->scratch = NULL;
}

void m_unlink(M *m)
{
    M **at = &sched.allm;
    while (*at != m) {
        at = &(*at)->all_next;
    }
    *at = m->all_next;
}

void m_free(M *m)
{
    preempt_forget(m); /* sysmon may have asked a moment too late */
    free(m);
}

void reap_dead_ms(void)
{
    lock(&sched.lock);
    M *m = sched.dead_ms;
    sched.dead_ms = NULL;
    unlock(&sched.lock);
    while (m != NULL) {
        M *next = m->all_next;
        if (atomic_load(&m->user) != USER_ORPHAN) { /* that has been detached */
            pthread_join(m->thread, NULL);
        }
        m_free(m);
        m = next;
    }
}

M *m_of(G *g)
{
    M *m = sched.allm, *m0 = sched.m0;
    if (m0 != NULL && __atomic_load_n(&m0->curg, __ATOMIC_RELAXED) == g) {
        return m0;
    }
    while (m != NULL && __atomic_load_n(&m->curg, __ATOMIC_RELAXED) != g) {
        m = m->all_next;
    }
    return m;
}

/* A new M, with its thread, or NULL. */
static M *m_start(P *p, G *g, bool spinning) /* sched.lock */
{
    int limit = atomic_load(&sched.max_threads);
    if (unlikely(sched.nm >= limit) && atomic_load(&sched.fatal) == NULL) {
        /* No place for an exception here: the next M in execute() reports it. That may have to be this one, and
         * there may be more to come: all others may be wired or blocked, and the program needs Ms to end. */
        atomic_store(&sched.thread_limit_hit, limit);
    }
    M *m = m_new();
    if (m != NULL) {
        m->nextp = p;
        m->nextg = g;
        m->spinning = spinning;
        m->pin = tls_m != NULL ? tls_m->pin : 0; /* its thread inherits our mask */
        p_give(p, m);
        sched.nm++;
        m->all_next = sched.allm;
        sched.allm = m;
        /* Under the lock, so that m->thread is set for whoever joins it. */
        if (pthread_create(&m->thread, NULL, m_main, m) == 0) {
            return m;
        }
        sched.allm = m->all_next;
        sched.nm--;
        free(m);
    }
    atomic_store(&sched.thread_limit_hit, -sched.nm);
    return NULL;
}

/* An M that sleeps, or a new one, gets `p` and, if that is not NULL, `g`. The caller wakes it if it sleeps.
 * NULL: there is none to be had. */
static M *m_take(P *p, G *g, bool spinning, bool *asleep) /* sched.lock */
{
    M *m = idle_m_get(p);
    *asleep = m != NULL;
    if (m == NULL) {
        return m_start(p, g, spinning);
    }
    m->nextp = p;
    m->nextg = g;
    m->spinning = spinning;
    p_give(p, m);
    return m;
}

static void wired_m_remove(M *m) /* sched.lock */
{
    if (m->idle_prev != NULL) {
        m->idle_prev->idle_next = m->idle_next;
    }
    else {
        sched.wired_ms = m->idle_next;
    }
    if (m->idle_next != NULL) {
        m->idle_next->idle_prev = m->idle_prev;
    }
    m->on_wired_list = false;
    sched.nmwired--;
}

/* The M of `g`, which has been taken from a queue and is wired, gets `p` and the reference. */
static void wired_m_give(P *p, G *g) /* sched.lock */
{
    M *m = atomic_load_explicit(&g->wired, memory_order_relaxed);
    m->nextp = p;
    p_give(p, m);
    if (m->on_wired_list) { /* else it is about to be, and will see nextp */
        wired_m_remove(m);
        note_wake(&m->note);
    }
}

/* `p`, which was taken from an M that blocks, for a goroutine that was stopped: it may hold the lock for which that and
 * all others wait. They would block one thread after the other until its turn came. */
bool start_wired(P *p)
{
    if (atomic_load(&preempt_stopped) == 0) {
        return false;
    }
    lock(&sched.lock);
    G *g = atomic_load(&sched.exiting) ? NULL : globrunq_get_wired();
    if (g != NULL) {
        wired_m_give(p, g);
    }
    unlock(&sched.lock);
    return g != NULL;
}

/* Give an idle P to an M that sleeps, or to a new one, which is counted as spinning if `spinning`: the caller
 * has added it to sched.nmspinning.
 * All in one section, because a thread that is no M may be stopped by the kernel anywhere in wakep() while the
 * run ends and the next begins: it must not have a P in its hands then. That it is counted as spinning does
 * no harm. It takes that back itself, and a new run does not reset the count. */
void start_m(bool spinning)
{
    lock(&sched.lock);
    P *p = atomic_load(&sched.exiting) ? NULL : pidle_get(tls_m != NULL ? tls_m->node : -1);
    bool asleep = false;
    M *m = p != NULL ? m_take(p, NULL, spinning, &asleep) : NULL;
    if (p != NULL && m == NULL) {
        /* There are no more threads to be had. Those that they wait for may have one: who holds a lock, say, and has
         * been stopped. */
        G *g = globrunq_get_wired();
        if (g != NULL) {
            wired_m_give(p, g);
        }
        else {
            pidle_put(p);
        }
    }
    unlock(&sched.lock);
    if (asleep) {
        m_wake(m);
    }
    else if (m == NULL && spinning) {
        atomic_fetch_sub(&sched.nmspinning, 1);
    }
}

/* Work has been published: see that an M looks for it. */
void wakep(void)
{
    atomic_thread_fence(memory_order_seq_cst); /* publish, fence, look: see the top of this file */
    if (atomic_load_explicit(&sched.npidle, memory_order_relaxed) == 0) {
        return;
    }
    if (!HAVE_GIL) {
        int32_t none = 0;
        if (atomic_load_explicit(&sched.nmspinning, memory_order_relaxed) != 0 ||
            !atomic_compare_exchange_strong(&sched.nmspinning, &none, 1)) {
            return;
        }
    }
    start_m(!HAVE_GIL);
}

void poller_look(int64_t when_ns)
{
    atomic_thread_fence(memory_order_seq_cst); /* the timer is published; pairs with stop_m */
    int64_t until = atomic_load_explicit(&sched.poll_until_ns, memory_order_relaxed);
    if (until == 0) {
        wakep(); /* nobody watches the timers, and we may be busy for long */
    }
    else if (when_ns < until) {
        lock(&sched.lock);
        M *m = sched.poller;
        if (m != NULL) {
            idle_m_remove(m);
            m_wake(m); /* without a P: it looks again and sleeps again */
        }
        unlock(&sched.lock);
    }
}

void wake_m0(void)
{
    M *m0 = sched.m0;
    if (m0->on_idle_list) {
        idle_m_remove(m0);
        m_wake(m0);
    }
    else if (m0->on_wired_list) { /* it runs the handlers and sleeps again */
        wired_m_remove(m0);
        m_wake(m0);
    }
}

void wake_all_ms(void)
{
    while (sched.wired_ms != NULL) {
        M *m = sched.wired_ms;
        wired_m_remove(m);
        note_wake(&m->note);
    }
    while (sched.idle_ms != NULL) {
        M *m = sched.idle_ms;
        idle_m_remove(m);
        m_wake(m);
    }
}

/* sched.lock: all Ms sleep, nothing is queued, no timer runs and nobody waits for a descriptor. Not whether there is a poller: its timer may have
 * been taken back. */
bool nobody_works(void)
{
    return sched.nmidle + sched.nmwired == sched.nm && atomic_load(&sched.runq_size) == 0 &&
           atomic_load(&sched.m0_slot) == NULL && timers_next() == TIME_NEVER &&
           atomic_load(&netpoll_waiters) == 0;
}

/* M0 is about to sleep: run Python's signal handlers and pending calls. They are no goroutine's code, even if one
 * is on this thread's stack: it waits, and cannot wait for something else meanwhile. */
static void run_handlers(M *m)
{
    G *g = m->curg;
    __atomic_store_n(&m->curg, NULL, __ATOMIC_RELAXED);
    atomic_store(&sched.signalled, 0);
    if (PyErr_CheckSignals() < 0 || Py_MakePendingCalls() < 0) {
        run_fail(compat_take_exception());
    }
    __atomic_store_n(&m->curg, g, __ATOMIC_RELAXED);
}

/* Sleep until somebody hands us a P (then held in P_RUNNING) or, if we are the poller, until the next timer or
 * until a descriptor is ready. Attached, without P. */
static void stop_m(M *m)
{
    if (m == sched.m0) {
        run_handlers(m);
    }
    lock(&sched.lock);
    G *main_g = m == sched.m0 ? atomic_exchange(&sched.m0_slot, NULL) : NULL;
    if (main_g != NULL) {
        globrunq_put(main_g); /* we have no P to run it: whoever finds it hands us his */
    }
    if (atomic_load(&sched.exiting) ||
        (atomic_load(&sched.runq_size) > 0 && sched.idle_ps != NULL) ||
        (m == sched.m0 && atomic_load(&sched.signalled))) {
        unlock(&sched.lock);
        return;
    }
    idle_m_add(m);
    note_clear(&m->note);
    int64_t until = TIME_NEVER;
    bool poller = false;
    m->polls = false;
    if (sched.poller == NULL && sched.idle_ps != NULL) {
        until = timers_next();
        m->polls = netpoll_on();
        poller = until != TIME_NEVER || m->polls;
    }
    if (poller) {
        sched.poller = m;
        atomic_store(&sched.poll_until_ns, until);
    }
    bool dead = nobody_works();
    unlock(&sched.lock);
    if (poller) {
        /* Whoever added an earlier timer before it could see poll_until_ns did not wake us. */
        atomic_thread_fence(memory_order_seq_cst);
        int64_t again = timers_next();
        until = again < until ? again : until; /* never later than what poll_until_ns tells them */
        if (unlikely(!m->polls && netpoll_on())) {
            until = 0; /* somebody needs the poller just now, and may not have seen us either */
        }
    }
    if (dead && until == TIME_NEVER) {
        until = check_dead();
    }

    if (m == sched.m0) {
        int64_t soon = sched.signal_pipe ? TIME_NEVER : nanotime() + SIGNAL_LOOK_NS;
        until = soon < until ? soon : until;
    }
    if (unlikely(atomic_load_explicit(&sched.draining, memory_order_relaxed))) {
        int64_t again = hurry(m);
        drop_now(m); /* who waits for those that it has declared dead */
        until = again < until ? again : until;
    }

    PollEvents events;
    bool woken;
    events.n = 0;
    Py_BEGIN_ALLOW_THREADS
    if (m->polls) {
        netpoll_wait(&events, &m->note, until);
        woken = atomic_load_explicit(&m->note.word, memory_order_acquire) != 0;
    }
    else {
        woken = note_sleep(&m->note, until);
    }
    if (!woken) {
        lock(&sched.lock);
        bool ours = m->on_idle_list;
        if (ours) {
            idle_m_remove(m);
        }
        unlock(&sched.lock);
        while (!ours && !note_sleep(&m->note, TIME_NEVER)) {
            /* somebody woke us at the same time: what he handed over is on its way */
        }
    }
    clock_tick(nanotime());
    if (HAVE_GIL && unlikely(atomic_load_explicit(&sched.draining, memory_order_relaxed))) {
        lock(&sched.lock);
        m->gil_free_ns = gil_is_free() ? nanotime() : 0; /* for hurry(), where it is ours */
        unlock(&sched.lock);
    }
    Py_END_ALLOW_THREADS
    m->p = m->nextp;
    m->nextp = NULL;
    if (m->p != NULL) {
        p_enter(m);
        p_started(m);
    }
    if (events.n > 0) { /* edges come once: they are ours to deliver, whatever else woke us */
        if (m->p == NULL) {
            get_idle_p(m);
        }
        netpoll_ready(m, &events);
    }
}

/* ---- goroutines that run on one thread only ---- */

static bool missed_work(void);

bool nobody_watches(void)
{
    return atomic_load(&sched.poll_until_ns) == 0 &&
           (timers_next() != TIME_NEVER || atomic_load(&netpoll_waiters) > 0);
}

void handoff_p(M *m)
{
    P *p = m->p;
    trace_proc_stop(m);
    m->p = NULL;
    bool work = nobody_watches() || !runq_empty(p) || atomic_load(&sched.runq_size) > 0;
    p_idle(p);
    if (work) {
        start_m(false);
        return;
    }
    atomic_thread_fence(memory_order_seq_cst); /* give up, fence, look: see the top of this file */
    if (missed_work() || nobody_watches()) {
        wakep();
    }
}

/* This M will sleep until its wired goroutine may run. If it has a P it gives that up; if not, nobody looks round because
 * of it, and the goroutine may be the only one that waits for a descriptor. */
static void leave_to_others(M *m)
{
    if (m->p != NULL) {
        handoff_p(m);
    }
    else if (atomic_load(&netpoll_waiters) > 0) {
        poller_look(TIME_NEVER);
    }
}

/* Sleep on the wired list until somebody hands over his P, or there is another reason to look. Attached,
 * without P. */
static void sleep_wired(M *m)
{
    if (m == sched.m0) {
        run_handlers(m);
    }
    lock(&sched.lock);
    G *main_g = m == sched.m0 ? atomic_exchange(&sched.m0_slot, NULL) : NULL;
    if (main_g != NULL) {
        globrunq_put(main_g); /* this thread is another's now: main goes elsewhere */
    }
    if (m->nextp != NULL || atomic_load(&sched.exiting) || atomic_load(&m->user) == USER_ORPHAN) {
        unlock(&sched.lock);
        if (main_g != NULL) {
            wakep();
        }
        return;
    }
    m->idle_prev = NULL;
    m->idle_next = sched.wired_ms;
    if (sched.wired_ms != NULL) {
        sched.wired_ms->idle_prev = m;
    }
    sched.wired_ms = m;
    m->on_wired_list = true;
    sched.nmwired++;
    note_clear(&m->note);
    bool dead = nobody_works();
    bool signalled = m == sched.m0 && atomic_load(&sched.signalled);
    unlock(&sched.lock);
    if (main_g != NULL) {
        wakep();
    }
    int64_t until = signalled ? 0 : dead ? check_dead() : TIME_NEVER;
    if (m == sched.m0 && !sched.signal_pipe) {
        int64_t soon = nanotime() + SIGNAL_LOOK_NS;
        until = soon < until ? soon : until;
    }
    Py_BEGIN_ALLOW_THREADS
    note_sleep(&m->note, until);
    lock(&sched.lock);
    if (m->on_wired_list) { /* time is up, or a signal */
        wired_m_remove(m);
    }
    unlock(&sched.lock);
    clock_tick(nanotime());
    Py_END_ALLOW_THREADS
}

/* Sleep until `g`, which is wired to this M, may run: somebody has taken it from a queue and handed over its
 * reference and his P, then held in P_RUNNING. False: the runtime ends. Attached, without P. */
static bool stop_wired(M *m, G *g)
{
    for (;;) {
        sleep_wired(m);
        if (m->nextp != NULL) {
            m->p = m->nextp;
            m->nextp = NULL;
            if (p_enter(m)) {
                p_started(m);
                return true;
            }
            /* gomaxprocs took it away before we woke up */
            lock(&sched.lock);
            globrunq_put(g);
            unlock(&sched.lock);
            wakep();
        }
        else if (atomic_load(&sched.exiting) || atomic_load(&m->user) == USER_ORPHAN) {
            return false;
        }
    }
}

/* `g`, which we have taken from a queue, is wired to another M: that gets our P, and the reference. */
static void hand_to_wired(M *m, G *g)
{
    lock(&sched.lock);
    if (atomic_load(&sched.exiting) ||
        atomic_load_explicit(&g->wired, memory_order_relaxed) == NULL) {
        globrunq_put(g); /* it leaves, and may be freed; or has been abandoned */
    }
    else {
        trace_proc_stop(m);
        wired_m_give(m->p, g);
        m->p = NULL;
    }
    unlock(&sched.lock);
}

/* ---- slices ---- */

static void slice_mark(P *p) /* by its owner, in P_RUNNING */
{
    atomic_store_explicit(&p->slices, atomic_load_explicit(&p->slices, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

void slice_begin(M *m)
{
    m->ops_left = m->ops_step = 0;
    count_add(&m->p->tick, 1);
    /* op_slice_over starts the clock when it matters */
    atomic_store_explicit(&m->p->slice_start_ns, 0, memory_order_relaxed);
    slice_mark(m->p);
    p_leave(m);
}

void slice_end(M *m)
{
    if (unlikely(atomic_load_explicit(&m->preempt, memory_order_relaxed) != PREEMPT_NONE)) {
        preempt_forget(m);
        interrupt_ready(m);
        m->ops_left = 0; /* sysmon thinks that the slice is over: see for ourselves */
    }
    if (p_enter(m)) {
        slice_mark(m->p);
    }
}

/* Somebody looks at the frames of `g`, which is on this thread's stack: let him finish. Then it is G_RUNNING;
 * unless it is dead, abandoned by run(). P, if any, in P_USER. */
static bool resume_wired(G *g)
{
    uint32_t s = atomic_load(&g->state);
    for (;;) {
        if ((s & G_STATE) == G_DEAD) {
            return false;
        }
        if (s & G_SCAN) {
            atomic_fetch_or(&g->state, G_NOTIFIED); /* keeps the next one from looking */
            Py_BEGIN_ALLOW_THREADS
            usleep(50);
            Py_END_ALLOW_THREADS
            s = atomic_load(&g->state);
        }
        else if (atomic_compare_exchange_weak(&g->state, &s, (s & G_MARKS) | G_RUNNING)) {
            return true;
        }
    }
}

/* Suspended in block(): the thread sleeps until the goroutine is woken and has a P again. If the runtime ends
 * meanwhile, it goes on without, cancelled, so that it unwinds. */
void park_wired(M *m, G *g)
{
    if (!user_leave(m)) {
        return; /* an orphan: whatever it waits for raises */
    }
    if (m->stop != NULL) {
        op_drop_stop_value(m);
    }
    slice_end(m);
    g_stamp_wait(g);
    uint32_t s = atomic_load(&g->state);
    bool requeue, yields = atomic_load_explicit(&g->wait_reason, memory_order_relaxed) == WAIT_NONE;
    trace_park(g, yields);
    do {
        requeue = yields || (s & G_NOTIFIED);
    } while (!atomic_compare_exchange_weak(&g->state, &s,
                                           (s & G_MARKS) | (requeue ? G_RUNNABLE : G_WAITING)));
    if (requeue) {
        if (!yields) {
            trace_requeue(g);
        }
        g_stamp_ready(m, g, false);
        lock(&sched.lock);
        globrunq_put((G *)Py_NewRef(g));
        unlock(&sched.lock);
    }
    if (m->p == NULL && requeue) {
        wakep();
    }
    else {
        leave_to_others(m);
    }
    bool handed = stop_wired(m, g);
    trace_resume(g);
    if (handed) {
        g_stamp_run(m, g);
        p_leave(m);
    }
    if (!resume_wired(g) || !handed) {
        atomic_fetch_or(&g->state, G_CANCEL);
    }
    atomic_store_explicit(&g->wait_reason, WAIT_NONE, memory_order_relaxed);
    atomic_store(&m->user, USER_RUNS);
    if (handed) {
        if (p_enter(m)) {
            slice_begin(m);
        }
        Py_DECREF(g); /* the run queue's; not the last */
    }
}

void wait_for_p(M *m, G *g)
{
    bool wired = m->wired == g;
    m_wire(m, g);
    atomic_store_explicit(&g->wait_reason, WAIT_NONE, memory_order_relaxed);
    trace_suspend(g);
    park_wired(m, g);
    if (!wired) {
        m_unwire(m, g);
    }
}

void park_stopped(M *m, G *g)
{
    if (p_enter(m)) {
        atomic_fetch_add_explicit(&m->p->npreempt, 1, memory_order_relaxed);
        p_leave(m);
        wait_for_p(m, g);
    }
    else if (get_idle_p(m)) { /* it has computed without one: now it has one */
        slice_begin(m);
    }
    else {
        wait_for_p(m, g);
    }
}

/* `g` is a plain function, which might never come back. This is M0, which must: another M shall have it, and
 * our P. False: there is none to be had. */
static bool hand_to_other(M *m, G *g)
{
    bool asleep = false;
    trace_proc_stop(m);
    lock(&sched.lock);
    M *other = m_take(m->p, g, false, &asleep);
    if (other != NULL) {
        m->p = NULL;
    }
    else {
        p_give(m->p, m); /* m_start tried */
    }
    unlock(&sched.lock);
    if (asleep) {
        m_wake(other);
    }
    if (other != NULL) {
        return true;
    }
    if (p_enter(m)) {
        trace_proc_start(m);
        return false;
    }
    lock(&sched.lock); /* gomaxprocs took the P away */
    globrunq_put(g);
    unlock(&sched.lock);
    return true;
}

/* The thread of an M ends, before the run does or after it. */
static void m_gone(M *m)
{
    lock(&m->pin_lock);
    m->tid = 0;
    unlock(&m->pin_lock);
    lock(&sched.lock);
    if (atomic_load(&m->user) == USER_ORPHAN) {
        M **at = &sched.orphans;
        while (*at != m) {
            at = &(*at)->all_next;
        }
        *at = m->all_next;
        m->all_next = sched.dead_ms;
        sched.dead_ms = m; /* not ours any more when the lock is free */
    }
    else {
        sched.nm--;
        if (m->ends && !atomic_load(&sched.exiting)) {
            m_unlink(m);
            g_count_fold(m);
            m->all_next = sched.dead_ms;
            sched.dead_ms = m;
            M *other = sched.idle_ms != NULL ? sched.idle_ms : sched.wired_ms;
            if (nobody_works() && other != NULL) {
                /* We were the last to be awake: somebody must see whether that is for ever. */
                if (other->on_idle_list) {
                    idle_m_remove(other);
                    m_wake(other);
                }
                else {
                    wired_m_remove(other);
                    m_wake(other);
                }
            }
        }
    }
    unlock(&sched.lock);
}

static void *m_main(void *arg)
{
    M *m = arg;
    char name[16];
    snprintf(name, sizeof name, "gofer-m%d", m->id);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    m_set_thread(m);
    PyGILState_STATE gil = PyGILState_Ensure();
    m->p = m->nextp;
    m->nextp = NULL;
    if (!m_init(m, PyThreadState_Get())) {
        run_fail(compat_take_exception());
    }
    p_enter(m);
    p_started(m);
    schedule(m);
    if (atomic_load(&sched.forked)) {
        /* The child of os.fork() ran to the end of its goroutine: there is nothing to go back to. */
        check_forked();
        PyErr_WriteUnraisable(NULL);
        _exit(1);
    }
    m_fini(m);
    PyGILState_Release(gil);
    m_gone(m);
    return NULL;
}

/* ---- making goroutines runnable ---- */

static void ready_put(M *m, G *g, bool next)
{
    g_stamp_ready(m, g, next);
    if (unlikely(g->foreign)) {
        note_wake(g->note); /* its thread runs it, without a P */
    }
    else if (m != NULL && m->p != NULL) {
        runq_put(m->p, g, next);
    }
    else {
        lock(&sched.lock);
        globrunq_put(g);
        unlock(&sched.lock);
    }
}

static void ready_queue(M *m, G *g, bool next)
{
    ready_put(m, g, next);
    if (sched.procs > 1 || m == NULL || m->p == NULL) { /* else we hold the only P there is */
        wakep();
    }
}

void start_g(G *g, bool next)
{
    M *m = tls_m;
    bool have_p = m != NULL && p_enter(m);
    trace_create(g);
    ready_queue(have_p ? m : NULL, g, next);
    if (have_p) {
        p_leave(m);
    }
}

/* True: it must be queued, by the caller. */
static bool make_runnable(G *g)
{
    uint32_t s = atomic_load(&g->state);
    if (unlikely(compat_is_garbage((PyObject *)g))) {
        return false; /* woken by a finalizer of its own cycle: the collector ends it, too */
    }
    for (;;) {
        uint32_t state = s & G_STATE, to;
        if (state == G_WAITING && !(s & G_SCAN)) {
            to = (s & ~(uint32_t)(G_STATE | G_NOTIFIED)) | G_RUNNABLE;
        }
        else if (state == G_RUNNING || state == G_WAITING) {
            trace_notify(g);
            to = s | G_NOTIFIED;
        }
        else {
            /* It will look for itself. The fence: it must then see what the caller stored before (that
             * its wait is over), and did so if it leaves this state after our second load. */
            atomic_thread_fence(memory_order_seq_cst);
            uint32_t again = atomic_load(&g->state);
            if (again == s) {
                return false;
            }
            s = again;
            continue;
        }
        if (atomic_compare_exchange_weak(&g->state, &s, to)) {
            if ((to & G_STATE) != G_RUNNABLE) {
                return false;
            }
            trace_unblock(g);
            return true;
        }
    }
}

/* `m` is the calling M with its P, if it has one, in P_RUNNING; NULL from anywhere else. */
bool goready(M *m, G *g, bool next)
{
    if (!make_runnable(g)) {
        return false;
    }
    ready_queue(m, g, next);
    return true;
}

/* The same, but waking another M is left to the caller: wakep(). */
bool goready_quietly(M *m, G *g)
{
    if (!make_runnable(g)) {
        return false;
    }
    ready_put(m, g, false);
    return true;
}

void ready_from_user(G *g, bool next)
{
    wake_from_user(tls_m, (G *)Py_NewRef(g), next);
}

void wake_from_user(M *m, G *g, bool next)
{
    bool have_p = m != NULL && p_enter(m);
    bool taken = goready(have_p ? m : NULL, g, next);
    if (have_p) {
        p_leave(m);
    }
    if (!taken) {
        Py_DECREF(g);
    }
}

/* ---- running a goroutine ---- */

/* coro.throw(exc), with the outcome told as PyIter_Send tells it. Eats exc. */
static PySendResult throw_into(PyObject *coro, PyObject *exc, PyObject **result)
{
    *result = exc != NULL ? PyObject_CallMethod(coro, "throw", "O", exc) : NULL;
    Py_XDECREF(exc);
    if (*result != NULL) {
        return PYGEN_NEXT;
    }
    if (!PyErr_ExceptionMatches(PyExc_StopIteration)) {
        return PYGEN_ERROR;
    }
    PyObject *stop = compat_take_exception();
    *result = PyObject_GetAttrString(stop, "value");
    Py_DECREF(stop);
    return *result != NULL ? PYGEN_RETURN : PYGEN_ERROR;
}

/* Resume a coroutine (or an operation) until it suspends in one of our operations, or ends. */
PySendResult resume_coro(PyObject *coro, PyObject **result)
{
    PySendResult r = PyIter_Send(coro, Py_None, result);
    while (unlikely(r == PYGEN_NEXT && *result != PARKED)) {
        /* An awaitable of somebody else suspended, and nobody here will ever wake it. */
        PyObject *exc = PyObject_CallOneArg(hooks.foreign_await, *result);
        Py_DECREF(*result);
        r = throw_into(coro, exc, result);
    }
    return r;
}

static PySendResult resume(G *g, PyObject **result)
{
    if (unlikely(g->plain)) {
        *result = !g->begins && op_raise_if_cancelled(g) ? NULL : g_call_plain(g);
        return *result != NULL ? PYGEN_RETURN : PYGEN_ERROR;
    }
    if (unlikely(!g->started)) {
        /* Cancelled before it began: it never does. (A context that is over is met by its first operation.) */
        if ((atomic_load_explicit(&g->state, memory_order_relaxed) & G_CANCEL) && !g->begins &&
            op_raise_if_cancelled(g)) {
            return g->put_off ? PYGEN_ERROR : throw_into(g->coro, compat_take_exception(), result);
        }
        if (g->put_off && !g_make_coro(g)) {
            return PYGEN_ERROR;
        }
        g->started = 1;
    }
    return resume_coro(g->coro, result);
}

/* Most programs use no context variables, and a Context of its own would cost every goroutine 80 bytes.
 * So one whose context is empty runs in the M's, which is empty too. If it has set a variable by the end
 * of the slice, it keeps that Context, and the M takes a new one. */
static PySendResult resume_in_context(M *m, G *g, PyObject **result)
{
    if (unlikely(g->context != NULL)) {
        if (PyContext_Enter(g->context) < 0) {
            return PYGEN_ERROR;
        }
        PySendResult r = resume(g, result);
        PyContext_Exit(g->context);
        return r;
    }
    PySendResult r = resume(g, result);
    if (unlikely(PyObject_Size(m->context) > 0)) {
        PyObject *exc = compat_take_exception();
        PyObject *fresh = PyContext_New();
        if (fresh != NULL) {
            PyContext_Exit(m->context);
            g->context = m->context;
            m->context = fresh;
            PyContext_Enter(fresh);
        }
        else {
            PyErr_WriteUnraisable((PyObject *)g); /* no memory: its variables leak to the next */
        }
        if (exc != NULL) {
            compat_raise(exc);
        }
    }
    return r;
}

static GEnd classify(PyObject *exc)
{
    return PyErr_GivenExceptionMatches(exc, hooks.Cancelled) ? END_CANCELLED
           : PyErr_GivenExceptionMatches(exc, hooks.GoExit)  ? END_GOEXIT
                                                             : END_ERROR;
}

static void report_thread_limit(void)
{
    int limit = atomic_exchange(&sched.thread_limit_hit, 0);
    if (limit == 0) {
        return; /* another M does it */
    }
    if (limit > 0) {
        PyErr_Format(PyExc_RuntimeError,
                     "program exceeds %d-thread limit: thread exhaustion (see set_max_threads)",
                     limit);
    }
    else {
        PyErr_Format(PyExc_RuntimeError,
                     "the system gives the program no more than %d threads: thread exhaustion (see "
                     "ulimit -u)",
                     -limit);
    }
    run_fail(compat_take_exception());
}

/* The coroutine has suspended. The M owns `g` until the state word says otherwise. */
static void park_or_requeue(M *m, G *g)
{
    uint32_t s = atomic_load(&g->state), to;
    g_stamp_wait(g);
    /* Not `yielded`, which may be from a gosched() of code that drove a coroutine by hand. */
    bool yields = atomic_load_explicit(&g->wait_reason, memory_order_relaxed) == WAIT_NONE, requeue;
    trace_park(g, yields);
    do {
        requeue = yields || (s & G_NOTIFIED);
        to = (s & G_MARKS) | (requeue ? G_RUNNABLE : G_WAITING);
    } while (!atomic_compare_exchange_weak(&g->state, &s, to));
    if (!requeue) {
        drop_later(m,
                   (PyObject *)g); /* its wait record holds it now; it may run elsewhere already */
    }
    else if (yields) {
        g_stamp_ready(m, g, false);
        lock(&sched.lock);
        globrunq_put(g);
        unlock(&sched.lock);
        wakep();
    }
    else {
        trace_requeue(g);
        ready_queue(m, g, true);
    }
}

/* Somebody looks at the frames of a runnable goroutine: let him finish (he may need the GIL). The mark keeps
 * the next one from looking before it has run. */
static void give_way_to_scan(M *m, G *g)
{
    atomic_fetch_or(&g->state, G_NOTIFIED);
    lock(&sched.lock);
    globrunq_put(g);
    unlock(&sched.lock);
    p_leave(m);
    Py_BEGIN_ALLOW_THREADS
    usleep(50);
    Py_END_ALLOW_THREADS
    p_enter(m);
}

/* Run what was put off. It may do anything, block too: sysmon takes the P then as it does from a goroutine.
 * Enters with the P, if any, in P_RUNNING, and leaves so, unless it was taken. */
static void drop_as_user(M *m)
{
    if (m->p == NULL) {
        drop_now(m);
        return;
    }
    slice_mark(m->p);
    p_leave(m);
    drop_now(m);
    if (p_enter(m)) {
        slice_mark(m->p);
    }
}

/* run() did not wait for `g`, and is about to declare it dead, or has. */
static void orphan_end(M *m, G *g)
{
    Py_BEGIN_ALLOW_THREADS
    while (g_state(g) != G_DEAD) {
        usleep(50);
    }
    Py_END_ALLOW_THREADS
    __atomic_store_n(&m->curg, NULL, __ATOMIC_RELAXED);
    m_unwire(m, g);
    g_drop_coro(g);
    Py_DECREF(g);
}

/* Run `g` (whose reference is ours) for one slice. Enters and leaves with the P, if any, in P_RUNNING. */
static void execute(M *m, G *g, bool inherit)
{
    uint32_t s = atomic_load(&g->state);
    do {
        if (unlikely((s & (G_STATE | G_SCAN)) != G_RUNNABLE)) {
            if (s & G_SCAN) {
                give_way_to_scan(m, g);
            }
            else {
                drop_later(m, (PyObject *)g); /* abandoned by run() while it was queued */
            }
            return;
        }
    } while (!atomic_compare_exchange_weak(&g->state, &s, (s & G_MARKS) | G_RUNNING));
    m->inherited = inherit;
    g_stamp_run(m, g);
    trace_start(g, inherit);
    if (!inherit) {
        slice_begin(m);
    }
    else {
        slice_mark(m->p);
        p_leave(m);
    }
    atomic_store_explicit(&g->wait_reason, WAIT_NONE, memory_order_relaxed);
    if (m->drops.n > 0) {
        drop_now(m);
    }
    if (unlikely(atomic_load_explicit(&sched.thread_limit_hit, memory_order_relaxed) != 0)) {
        report_thread_limit();
    }
    /* From here on, what runs on this thread is its code. */
    atomic_store_explicit(&m->in_syscall, SYSCALL_NONE, memory_order_relaxed);
    atomic_store_explicit(&m->curg_id, g->id, memory_order_relaxed);
    atomic_store_explicit(&m->stretch, m->stretch + 1, memory_order_relaxed);
    __atomic_store_n(&m->curg, g, __ATOMIC_RELAXED);
    if (unlikely(g->plain)) {
        m_wire(m, g);
    }
    atomic_store_explicit(&m->user, USER_RUNS, memory_order_release);
    if (unlikely(g == sched.main_g)) {
        g->roam = false;
    }
    PyObject *value = NULL;
    GEnd end = END_NONE;
    switch (resume_in_context(m, g, &value)) {
    case PYGEN_NEXT:
        Py_DECREF(value); /* PARKED */
        break;
    case PYGEN_RETURN:
        end = END_RESULT;
        if (sharing()) {
            compat_share(value);
        }
        break;
    default:
        value = compat_take_exception();
        end = classify(value);
    }
    uint8_t runs = USER_RUNS;
    if (unlikely(!atomic_compare_exchange_strong(&m->user, &runs, USER_NONE)) && !user_leave(m)) {
        Py_XDECREF(value);
        orphan_end(m, g);
        return;
    }
    __atomic_store_n(&m->curg, NULL, __ATOMIC_RELAXED);
    if (unlikely(m->wired == g && end != END_NONE)) {
        m->ends = g->locks > 0 && m != sched.m0;
        m_unwire(m, g);
    }
    if (m->stop != NULL) {
        op_drop_stop_value(m);
    }
    if (unlikely(atomic_load_explicit(&sched.forked, memory_order_relaxed))) {
        return; /* schedule() leaves too */
    }
    if (unlikely(g->becomes) && end == END_RESULT) {
        end = g_become_plain(g, &value);
    }
    if (end == END_NONE) {
        slice_end(m);
        park_or_requeue(m, g);
        return;
    }
    g_drop_coro(g);
    bool is_main = g == sched.main_g;
    slice_end(m);
    g_finish(m, g, end, value);
    /* A reference is dropped when the next goroutine is about to run, in the same turn outside the scheduler. Not
     * if a destructor may come with it, for which that one would have to wait. */
    bool may_block = Py_REFCNT(g) == 1 && PyObject_IS_GC(g->value);
    drop_later(m, (PyObject *)g);
    if (may_block) {
        drop_as_user(m);
    }
    if (unlikely(is_main || atomic_load(&sched.counting))) {
        if (m->p != NULL) { /* as in drop_as_user() */
            slice_mark(m->p);
            p_leave(m);
        }
        drop_now(m);
        if (is_main) {
            main_ended(end);
        }
        else {
            some_g_ended();
        }
        if (p_enter(m)) {
            slice_mark(m->p);
        }
    }
}

/* ---- finding work ---- */

/* A goroutine readied by the one that just ran runs next and shares its slice. A pair that does so for
 * ever is one slice: when that is over, it goes behind all others, to the global queue. sysmon sees none of it (a new
 * goroutine is a new slice to it), so a switch counts as many operations: every fourth looks at the clock. */
static G *local_get(M *m, bool *inherit)
{
    enum { SWITCH = 15 };
    G *g = runq_get(m->p, inherit);
    if (g != NULL && *inherit) {
        m->ops_left = m->ops_left > SWITCH ? m->ops_left - SWITCH : 0;
        if (op_slice_over(m)) {
            lock(&sched.lock);
            globrunq_put(g);
            unlock(&sched.lock);
            g = runq_get(m->p, inherit);
        }
    }
    return g;
}

static inline G *steal_from(M *m, P *victim, bool last, int64_t *now_ns, bool *inherit)
{
    if (victim == m->p) {
        return NULL;
    }
    if (last && timers_run(m, victim, now_ns) > 0) {
        return runq_get(m->p, inherit);
    }
    return runq_steal(m->p, victim, last);
}

/* One round of the below where there are several nodes. */
static SLOW G *steal_by_node(M *m, bool last, int64_t *now_ns, bool *inherit)
{
    P *p = m->p;
    Victims way;
    victims_begin(&way, &numa, p->id, m_random(m));
    for (int at; (at = victims_next(&way, &numa)) >= 0;) {
        if (atomic_load_explicit(&sched.stop_world, memory_order_relaxed)) {
            return NULL;
        }
        int64_t stolen = atomic_load_explicit(&p->nsteal, memory_order_relaxed);
        G *g = steal_from(m, sched.allp[at], last, now_ns, inherit);
        if (g != NULL) {
            if (numa.node[at] != numa.node[p->id]) {
                stolen = atomic_load_explicit(&p->nsteal, memory_order_relaxed) - stolen;
                count_add(&p->nfar, (int)stolen);
            }
            return g;
        }
    }
    return NULL;
}

/* Look at every other P, four times over, each time in another order. Goroutines that would run soon
 * anyway (runnext) and timers come last. */
static G *steal_work(M *m, int64_t *now_ns, bool *inherit)
{
    uint32_t n = (uint32_t)sched.procs;
    *inherit = false;
    for (int round = 0; round < STEAL_ROUNDS; round++) {
        bool last = round == STEAL_ROUNDS - 1;
        if (numa_many()) {
            G *g = steal_by_node(m, last, now_ns, inherit);
            if (g != NULL) {
                return g;
            }
            continue;
        }
        uint32_t at = m_random(m) % n;
        uint32_t stride = sched.coprimes[m_random(m) % (uint32_t)sched.ncoprimes];
        for (uint32_t i = 0; i < n; i++, at = (at + stride) % n) {
            if (atomic_load_explicit(&sched.stop_world, memory_order_relaxed)) {
                return NULL;
            }
            G *g = steal_from(m, sched.allp[at], last, now_ns, inherit);
            if (g != NULL) {
                return g;
            }
        }
    }
    return NULL;
}

static void stop_spinning(M *m)
{
    __atomic_store_n(&m->spinning, false, __ATOMIC_RELAXED); /* schedtrace reads it */
    atomic_fetch_sub(&sched.nmspinning, 1);
}

static void start_spinning(M *m)
{
    __atomic_store_n(&m->spinning, true, __ATOMIC_RELAXED);
    atomic_fetch_add(&sched.nmspinning, 1);
}

/* The second look after we stopped spinning: did somebody queue work and count on us? */
static bool missed_work(void)
{
    for (int i = 0; i < sched.procs; i++) {
        if (!runq_empty(sched.allp[i])) {
            return true;
        }
    }
    return atomic_load(&sched.runq_size) > 0;
}

/* How much there is to steal. */
static uint32_t loot(void)
{
    uint32_t most = (uint32_t)atomic_load_explicit(&sched.runq_size, memory_order_relaxed);
    for (int i = 0; i < sched.procs; i++) {
        P *p = sched.allp[i];
        uint32_t n = atomic_load_explicit(&p->tail, memory_order_relaxed) -
                     atomic_load_explicit(&p->head, memory_order_relaxed);
        n += atomic_load_explicit(&p->runnext, memory_order_relaxed) != NULL;
        most = n > most ? n : most;
    }
    return most;
}

/* A thread switch costs more than most goroutines run. An M that has lived off others lately therefore
 * looks a little longer before it sleeps; one that finds nothing that way twice no longer does.
 * And a stolen goroutine costs both sides a dozen cache misses, so a few that were queued just now are
 * left to their P for some microseconds, which also keeps us from fighting over its cache lines. */
static bool linger(M *m)
{
    if (m->luck == 0) {
        return false;
    }
    int64_t now = nanotime(), until = now + LINGER_NS, seen = 0;
    do {
        for (int i = 0; i < 64; i++) {
            cpu_pause();
        }
        now = nanotime();
        uint32_t n = loot();
        if (n == 0) {
            seen = 0;
        }
        else if (seen == 0) {
            seen = now;
        }
        if (n >= LOOT_MIN || (seen != 0 && now - seen > LOOT_PATIENCE_NS) ||
            atomic_load_explicit(&sched.stop_world, memory_order_relaxed) ||
            atomic_load_explicit(&sched.exiting, memory_order_relaxed) ||
            (m == sched.m0 && atomic_load_explicit(&sched.m0_slot, memory_order_relaxed) != NULL)) {
            return true;
        }
    } while (now < until);
    m->luck--;
    return false;
}

/* Take an idle P, if there is one, and hold it in P_RUNNING. */
bool get_idle_p(M *m)
{
    lock(&sched.lock);
    P *p = atomic_load(&m->user) == USER_ORPHAN ? NULL : pidle_get(m->node);
    if (p != NULL) {
        p_give(p, m);
    }
    unlock(&sched.lock);
    m->p = p;
    clock_tick(nanotime()); /* sysmon may have slept */
    if (p == NULL || !p_enter(m)) {
        return false;
    }
    p_started(m);
    return true;
}

/* The next goroutine to run: Go's findRunnable, step by step. Blocks until there is one; NULL when the
 * runtime ends. On return the M holds a P in P_RUNNING; the reference is the caller's. */
static G *find_runnable(M *m, bool *inherit)
{
    G *g;
    for (;;) {
        bool exiting = atomic_load_explicit(&sched.exiting, memory_order_relaxed);
        if (unlikely(m->nextg != NULL)) {
            g = m->nextg;
            m->nextg = NULL;
            if (m->p != NULL && !exiting) {
                *inherit = false;
                return g;
            }
            lock(&sched.lock);
            globrunq_put(g);
            unlock(&sched.lock);
        }
        if (unlikely(exiting)) {
            return NULL;
        }
        if (unlikely(m->p == NULL && !get_idle_p(m))) {
            if (m->spinning) { /* our P was taken away: submitters counted on us */
                stop_spinning(m);
                wakep();
            }
            if (m->drops.n > 0) {
                drop_now(m);
            }
            stop_m(m);
            continue;
        }
        P *p = m->p;
        if (unlikely(atomic_load_explicit(&sched.stop_world, memory_order_relaxed))) {
            world_stop_here(m);
            continue;
        }
        if (m == sched.m0 && atomic_load_explicit(&sched.m0_slot, memory_order_relaxed) != NULL &&
            (g = atomic_exchange(&sched.m0_slot, NULL)) != NULL) {
            *inherit = false;
            return g;
        }
        int64_t now_ns = 0;
        if (atomic_load_explicit(&p->next_timer_ns, memory_order_relaxed) != TIME_NEVER) {
            timers_run(m, p, &now_ns);
        }

        if (unlikely(atomic_load_explicit(&netpoll_due, memory_order_relaxed))) {
            netpoll_look(m);
        }

        *inherit = false;
        if (atomic_load_explicit(&p->tick, memory_order_relaxed) % GLOBAL_TICK == 0 &&
            atomic_load_explicit(&sched.runq_size, memory_order_relaxed) > 0) {
            lock(&sched.lock);
            g = globrunq_get();
            unlock(&sched.lock);
            if (g != NULL) {
                return g;
            }
        }
        if ((g = local_get(m, inherit)) != NULL) {
            return g;
        }
        if (atomic_load_explicit(&sched.runq_size, memory_order_relaxed) > 0) {
            lock(&sched.lock);
            g = globrunq_get_batch(p);
            unlock(&sched.lock);
            if (g != NULL) {
                return g;
            }
        }
        if (atomic_load_explicit(&netpoll_waiters, memory_order_relaxed) > 0 &&
            atomic_load_explicit(&sched.poll_until_ns, memory_order_relaxed) == 0 &&
            netpoll_look(m) > 0 && (g = local_get(m, inherit)) != NULL) {
            return g;
        }
        if (sched.procs > 1) {
            int busy = sched.procs - atomic_load_explicit(&sched.npidle, memory_order_relaxed);
            bool may_spin = HAVE_GIL || m->spinning || 2 * atomic_load(&sched.nmspinning) < busy;
            if (may_spin) {
                if (!HAVE_GIL && !m->spinning) {
                    start_spinning(m);
                }
                if ((g = steal_work(m, &now_ns, inherit)) != NULL) {
                    m->luck = 2;
                    return g;
                }
                if (m->spinning && linger(m)) {
                    continue;
                }
            }
        }
        if (m->drops.n > 0) { /* we may sleep for long: let go of what we hold, then look again */
            drop_as_user(m);
            continue;
        }

        lock(&sched.lock);
        if (atomic_load(&sched.stop_world) || atomic_load(&sched.exiting) ||
            (m == sched.m0 && atomic_load(&sched.m0_slot) != NULL)) {
            unlock(&sched.lock);
            continue;
        }
        if (atomic_load(&sched.runq_size) > 0) {
            g = globrunq_get_batch(p);
            unlock(&sched.lock);
            return g;
        }
        trace_proc_stop(m);
        m->p = NULL;
        pidle_put(p);
        unlock(&sched.lock);

        if (m->spinning) {
            stop_spinning(m); /* before the second look: see the top of this file */
        }
        if (missed_work() && get_idle_p(m)) {
            if (!HAVE_GIL) {
                start_spinning(m);
            }
            continue;
        }
        stop_m(m);
    }
}

/* `g` is main, and this is not its thread. False: that is busy for long, or belongs to a goroutine that has called
 * lock_os_thread() there, so run it here. */
static bool give_to_m0(M *m, G *g)
{
    M *m0 = sched.m0;
    lock(&sched.lock);
    if (__atomic_load_n(&m0->wired, __ATOMIC_RELAXED) != NULL ||
        (atomic_load(&sched.m0_gone) && __atomic_load_n(&m0->curg, __ATOMIC_RELAXED) != NULL)) {
        unlock(&sched.lock);
        return false;
    }
    atomic_store(&sched.slot_since_ns, nanotime());
    atomic_store(&sched.m0_slot, g);
    bool idle = m0->on_idle_list;
    if (idle) { /* it gets our P; we find another or sleep */
        idle_m_remove(m0);
        trace_proc_stop(m);
        m0->nextp = m->p;
        __atomic_store_n(&m0->spinning, false, __ATOMIC_RELAXED);
        p_give(m->p, m0);
        m->p = NULL;
    }
    unlock(&sched.lock);
    if (idle) {
        m_wake(m0);
    }
    else {
        sysmon_poke();
    }
    return true;
}

void schedule(M *m)
{
    for (;;) {
        bool inherit = false;
        G *g = m->wired;
        if (unlikely(g != NULL)) { /* lock_os_thread(): nothing else runs here */
            leave_to_others(m);
            drop_now(m);
            if (!stop_wired(m, g)) {
                break;
            }
        }
        else if ((g = find_runnable(m, &inherit)) == NULL) {
            break;
        }
        if (m->spinning) {
            stop_spinning(m);
            wakep(); /* submitters relied on us to look; somebody else must now */
        }
        M *wired = atomic_load_explicit(&g->wired, memory_order_relaxed);
        if (unlikely(wired != NULL && wired != m)) {
            hand_to_wired(m, g);
            continue;
        }
        if (unlikely(g->plain && m == sched.m0 && g != sched.main_g) && hand_to_other(m, g)) {
            continue;
        }
        if (unlikely(g == sched.main_g && m != sched.m0 && !g->roam && m->wired != g) &&
            give_to_m0(m, g)) {
            continue;
        }
        execute(m, g, inherit);
        if (m == sched.m0 && unlikely(atomic_load_explicit(&sched.m0_gone, memory_order_relaxed))) {
            atomic_store(&sched.m0_gone, false);
        }
        if (unlikely(atomic_load_explicit(&sched.forked, memory_order_relaxed) ||
                     atomic_load_explicit(&m->user, memory_order_relaxed) == USER_ORPHAN)) {
            return;
        }
        if (unlikely(m->ends)) {
            break;
        }
    }
    if (m->spinning) {
        stop_spinning(m);
    }
    if (m->p != NULL) {
        handoff_p(m);
    }
}
