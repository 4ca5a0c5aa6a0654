/* Stopping the world, and gomaxprocs.
 *
 * Any thread may stop the world, attached to Python or not; it must be detached, since it waits. A P is
 * never far from stoppable: in P_USER it is taken with one CAS and its M notices when it next calls in
 * (user code itself goes on), in P_RUNNING its M is in the scheduler and gives way at the top of
 * find_runnable or goes back to P_USER soon, and idle Ps are under sched.lock. */
#include "trace.h"

#include <unistd.h>

void world_wait(uint32_t epoch)
{
    if (atomic_load(&sched.stop_world)) {
        word_wait(&sched.world_epoch, epoch, TIME_NEVER);
    }
}

static int64_t stop_began_ns; /* stw_lock */

static void stop_world(void)
{
    lock(&sched.stw_lock);
    stop_began_ns = nanotime();
    trace_stw(true);
    lock(&sched.lock);
    atomic_store(&sched.stop_world, 1);
    for (P *p; (p = pidle_get(-1)) != NULL;) {
        atomic_store(&p->owner, P_STOPPED_IDLE);
    }
    unlock(&sched.lock);
    for (;;) {
        int left = 0;
        for (int i = 0; i < sched.procs; i++) {
            P *p = sched.allp[i];
            uint64_t owner = atomic_load(&p->owner);
            if ((owner & 0xff) == P_USER) {
                atomic_compare_exchange_strong(&p->owner, &owner,
                                               (owner & ~(uint64_t)0xff) | P_STOPPED_U);
            }
            int status = (int)(atomic_load(&p->owner) & 0xff);
            left += status == P_USER || status == P_RUNNING || status == P_IDLE;
        }
        if (left == 0) {
            hist_count(pauses_stopping, nanotime() - stop_began_ns, 1);
            return;
        }
        usleep(20);
    }
}

static void start_world(void)
{
    lock(&sched.lock);
    atomic_store(&sched.stop_world, 0);
    for (int i = sched.procs - 1; i >= 0; i--) {
        P *p = sched.allp[i];
        uint64_t owner = atomic_load(&p->owner), m = owner & ~(uint64_t)0xff;
        switch (owner & 0xff) {
        case P_STOPPED_U:
            atomic_store(&p->owner, m | P_USER);
            break;
        case P_STOPPED_R:
            atomic_store(&p->owner, m | P_RUNNING);
            break;
        default:
            pidle_put(p);
        }
    }
    atomic_fetch_add(&sched.world_epoch, 1);
    unlock(&sched.lock);
    word_wake_all(&sched.world_epoch);
    hist_count(pauses_total, nanotime() - stop_began_ns, 1);
    trace_stw(false);
    unlock(&sched.stw_lock);
    /* For what stopped Ps left in the global queue, and for the timers: an M that watched them may have found
     * no idle P meanwhile. Each M that wakes up wakes the next while there is work; with the GIL nobody spins,
     * so nobody does, and we wake them all. */
    int wakes = HAVE_GIL ? atomic_load(&sched.npidle) : 1;
    do {
        wakep();
    } while (--wakes > 0 && atomic_load(&sched.runq_size) > 0);
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b != 0) {
        uint32_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* World stopped, or not yet begun. New Ps are idle; what was in Ps that go away goes to the head of the
 * global queue, their timers to P 0. */
static void set_procs(int n)
{
    for (int i = 0; i < n; i++) {
        P *p = sched.allp[i];
        if (p == NULL) {
            p = aligned_alloc(CACHE_PAIR, sizeof(P));
            if (p == NULL) {
                Py_FatalError("gofer: no memory for a P");
            }
            memset(p, 0, sizeof(P));
            p->id = i;
            atomic_store(&p->owner, P_DEAD);
            atomic_store(&p->next_timer_ns, TIME_NEVER);
            __atomic_store_n(&sched.allp[i], p, __ATOMIC_RELEASE); /* stats() looks at any time */
        }
        if (atomic_load(&p->owner) == P_DEAD) {
            lock(&p->timers_lock);
            p->timers_closed = false;
            unlock(&p->timers_lock);
            atomic_store(&p->slices, 0);
            atomic_store(&p->owner, P_STOPPED_IDLE);
        }
    }
    for (int i = n; i < sched.procs; i++) {
        P *p = sched.allp[i];
        G *first, *last;
        int size = runq_drain(p, &first, &last);
        if (size > 0) {
            lock(&sched.lock);
            globrunq_put_head(first, last, size);
            unlock(&sched.lock);
        }
        timers_move(sched.allp[0], p);
        trace_proc_taken(p, atomic_load(&p->owner));
        atomic_store(&p->owner, P_DEAD); /* its M, if any, finds it gone */
    }
    sched.procs = n;
    numa_assign(n);
    sched.ncoprimes = 0;
    for (uint32_t i = 1; i <= (uint32_t)n; i++) {
        if (gcd(i, (uint32_t)n) == 1) {
            sched.coprimes[sched.ncoprimes++] = i;
        }
    }
}

int procs_change(int n)
{
    stop_world();
    int before = sched.procs;
    if (n > 0 && n != before && !atomic_load(&sched.exiting)) {
        set_procs(n);
        trace_procs(n);
    }
    else {
        numa_assign(before); /* the CPUs that we may use may be others */
    }
    start_world();
    return before;
}

/* Before the first M of a run: it holds P 0, in P_RUNNING, and all others are idle. */
void procs_init(M *m0, int n)
{
    lock(&sched.stw_lock); /* a foreign gomaxprocs() may come at once */
    numa_begin();
    for (int i = 0; i < sched.procs; i++) {
        atomic_store(&sched.allp[i]->owner, P_DEAD);
    }
    sched.procs = 0;
    set_procs(n);
    lock(&sched.lock);
    sched.idle_ps = NULL;
    atomic_store(&sched.npidle, 0);
    for (int i = n - 1; i > 0; i--) {
        pidle_put(sched.allp[i]);
    }
    m0->p = sched.allp[0];
    atomic_store(&m0->p->m, m0);
    atomic_store(&m0->p->owner, p_owner(m0, P_RUNNING));
    /* Not before: a foreign wake-up for the last run may still be under way, and would use its Ps. */
    atomic_store(&sched.exiting, 0);
    unlock(&sched.lock);
    unlock(&sched.stw_lock);
}
