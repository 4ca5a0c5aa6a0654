/* sysmon: a thread that watches what no M watches. It is no M, is never attached to Python, and sleeps in
 * poll() on a pipe unless there is something to watch:
 *   - signals. Python's C handler only notes a signal and writes its number to the pipe (see
 *     signal.set_wakeup_fd); the Python handler must run on M0, which may be asleep, or just about to;
 *   - main in m0_slot while M0 runs something else: after 10 ms without M0 coming back for it, it may run
 *     elsewhere;
 *   - SIGQUIT (quit.c), and the time for the next line of schedtrace;
 *   - affinity and cgroup quota, once a second, while gomaxprocs or pinned threads (numa.c) follow them;
 *   - the network, when no M has looked for 10 ms: it then sees to it that one does (netpoll.c);
 *   - Ms in user code. Python code need not ever call us, so a P whose M blocks or computes is handed to another M
 *     (retake), as Go does with a P in a system call.
 *
 * It looks every 20 us while there is something to take, less and less often while there is not, down to every
 * 2 ms. When all Ps have been idle for some time it sleeps until one is busy: an idle program uses no CPU. */
#include "net.h"
#include "trace.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LATE_NS 1000000LL /* of a timer that nobody serves */

static pthread_t thread;
static bool started;
static _Atomic uint32_t stopping;
/* Read and write end: the caller's of run(). An M may be about to write while they are given back. */
static _Atomic int pipe_fd[2] = {-1, -1};

void sysmon_poke(void)
{
    char nothing = 0; /* no signal has this number */
    if (write(pipe_fd[1], &nothing, 1) < 0) {
        return; /* full: it wakes up anyway */
    }
}

/* M0 shall run Python's signal handlers and pending calls. stop_m looks at the mark before it sleeps, under the same lock. */
void signal_m0(void)
{
    lock(&sched.lock);
    atomic_store(&sched.signalled, 1);
    wake_m0();
    unlock(&sched.lock);
}

/* When main will have waited 10 ms for M0, TIME_NEVER if it does not wait. If that is now, let it run
 * elsewhere: under the lock, so that it is always in the slot or in the queue. */
static int64_t release_main(int64_t now)
{
    lock(&sched.lock);
    G *g = atomic_load(&sched.m0_slot);
    int64_t at = g != NULL ? atomic_load(&sched.slot_since_ns) + SLICE_NS : TIME_NEVER;
    bool release = at <= now && (g = atomic_exchange(&sched.m0_slot, NULL)) != NULL;
    if (release) {
        g->roam = true;
        globrunq_put(g);
        atomic_store(&sched.m0_gone, true);
    }
    unlock(&sched.lock);
    if (release) {
        wakep();
    }
    return release ? TIME_NEVER : at;
}

static void drain_pipe(void)
{
    char bytes[64];
    ssize_t n;
    bool signalled = false;
    while ((n = read(pipe_fd[0], bytes, sizeof bytes)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            signalled |= bytes[i] != 0;
        }
    }
    if (signalled) {
        signal_m0();
    }
}

/* ---- retake ---- */

_Atomic int64_t sysmon_fixed_ns;

static struct {
    uint64_t owner;
    uint32_t slices;
    int64_t since_ns,
        since_cpu_ns; /* when this slice was first seen: time, and CPU time of its thread */
    int64_t asked_ns; /* when preempt.c was asked to stop it; 0: not yet */
    int64_t looked_ns, cpu_ns; /* at the last look: time, and the CPU time of its thread */
} seen[MAX_PROCS];

/* Is there something that only this P can do, or that nobody does? */
static bool has_work(P *p, int64_t now)
{
    return !runq_empty(p) || atomic_load(&sched.runq_size) > 0 || timers_next() <= now ||
           nobody_hurries(now) || atomic_load(&netpoll_due);
}

static bool is_detached(M *m)
{
    lock(&sched.lock);
    bool detached = m->ts != NULL && compat_detached(m->ts);
    unlock(&sched.lock);
    return detached;
}

/* The thread has not run since the last look, and not because it waits for a core or for the GIL: then another
 * would only wait too. Or, if somebody else has the GIL, it has not run for so long that it would have had its turn. */
static bool is_blocked(int i, M *m, int64_t cpu, int64_t now, bool gil_unused)
{
    if ((cpu - seen[i].cpu_ns) * 10 >= now - seen[i].looked_ns) {
        return false;
    }
    return (gil_unused && is_detached(m)) || (HAVE_GIL && now - seen[i].since_ns > 2 * SLICE_NS &&
                                              cpu - seen[i].since_cpu_ns < SLICE_NS / 100);
}

/* It computes: take its P when it has had its slice, and could not be stopped. */
static bool has_had_enough(int i, M *m, int64_t cpu, int64_t now, bool idle)
{
    int64_t had = now - seen[i].since_ns;
    if (atomic_load(&m->user) == USER_NONE) {
        return had >= SLICE_NS; /* destructors, in no goroutine: drop_as_user() */
    }
    if (idle && runq_empty(sched.allp[i])) {
        return false; /* there are others to do what is to be done */
    }
    /* One that the kernel has given little time to may be anywhere, holding a lock that all want, say. */
    bool worked = cpu - seen[i].since_cpu_ns >= SLICE_NS / 4 || had >= 10 * SLICE_NS;
    if (seen[i].asked_ns == 0 && worked && had >= SLICE_NS - PREEMPT_LEAD_NS && preempt_ask(m)) {
        seen[i].asked_ns = now;
    }
    if (had < SLICE_NS || !worked) {
        return false;
    }
    return seen[i].asked_ns == 0 || atomic_load(&m->preempt) == PREEMPT_FAILED ||
           now - seen[i].asked_ns >= PREEMPT_PATIENCE_NS;
}

/* The mark first: the M takes it back when it finds its P gone. */
static bool take(P *p, M *m, uint64_t owner, bool blocked, int64_t now, int64_t cpu)
{
    if (owner >> 8 != (uint64_t)m->id) {
        return false; /* it has changed hands since we looked */
    }
    atomic_store(&m->seen_ns, now);
    atomic_store(&m->seen_cpu_ns, cpu);
    atomic_store(&m->in_syscall, blocked ? SYSCALL_SEEN : SYSCALL_NONE);
    if (atomic_compare_exchange_strong(&p->owner, &owner, P_IDLE)) {
        return true;
    }
    atomic_store(&m->in_syscall, SYSCALL_NONE);
    return false;
}

typedef struct {
    int taken;
    bool user, stay; /* a P was in user code; and in the same slice at the last look */
} Looked;

/* Take Ps whose Ms block, or have been computing for too long, if there is work for them. `idle`: there were idle Ps. */
static Looked retake(int64_t now, bool idle)
{
    /* A slice that we see for the first time began since the last look. */
    static int64_t last_ns;
    int64_t since_look = now - last_ns < SYSMON_MAX_NS ? now - last_ns : SYSMON_MAX_NS;
    last_ns = now;
    Looked found = {0};
    bool gil_unused = gil_is_unused(now);
    for (int i = 0; i < sched.procs; i++) {
        P *p = sched.allp[i];
        uint64_t owner = atomic_load(&p->owner);
        uint32_t slices = atomic_load_explicit(&p->slices, memory_order_relaxed);
        if ((owner & 0xff) != P_USER || slices % 2 == 0) {
            seen[i].owner = 0;
            continue;
        }
        found.user = true;
        M *m = atomic_load_explicit(&p->m, memory_order_relaxed); /* freed by nobody but us */
        int64_t cpu = clock_ns(m->cpu_clock);
        if (seen[i].owner != owner || seen[i].slices != slices) {
            seen[i].owner = owner;
            seen[i].slices = slices;
            seen[i].since_ns = now - since_look;
            seen[i].since_cpu_ns = cpu;
            seen[i].asked_ns = 0;
        }
        else {
            found.stay = true;
            bool blocked = is_blocked(i, m, cpu, now, gil_unused);
            atomic_store_explicit(&p->blocked, blocked ? slices : 0, memory_order_relaxed);
            int64_t fixed = atomic_load(&sysmon_fixed_ns);
            if (fixed >= 0 && has_work(p, now) &&
                (fixed > 0 || blocked || has_had_enough(i, m, cpu, now, idle)) &&
                take(p, m, owner, blocked, now, cpu)) {
                /* It is in nobody's hands now, as one that wakep() has just taken. */
                trace_proc_taken(p, owner);
                atomic_store_explicit(&p->slices, slices + 1, memory_order_relaxed);
                atomic_fetch_add_explicit(&p->nhandoff, 1, memory_order_relaxed);
                atomic_fetch_add_explicit(&p->nsyscall, blocked, memory_order_relaxed);
                seen[i].owner = 0;
                if (!blocked || !start_wired(p)) {
                    p_idle(p);
                    start_m(false);
                }
                preempt_lost(m);
                if (!blocked && atomic_load(&numa_pinning)) {
                    numa_release(m);
                }
                found.taken++;
                continue;
            }
        }
        seen[i].looked_ns = now;
        seen[i].cpu_ns = cpu;
    }
    return found;
}

/* The CPUs that we may use, or the quota, may have changed. */
static void follow(void)
{
    int n = atomic_load(&maxprocs_auto) ? maxprocs_default() : sched.procs;
    if (numa_moved() || n != sched.procs) {
        procs_change(atomic_load(&maxprocs_auto) ? n : sched.procs);
    }
}

/* All Ps are idle, and somebody watches timers and descriptors: tell those who take one that we want to know. */
static bool fall_asleep(void)
{
    lock(&sched.lock);
    bool idle = atomic_load(&sched.npidle) == sched.procs && !atomic_load(&sched.draining) &&
                atomic_load(&sched.runq_size) == 0 && !nobody_watches();
    atomic_store(&sched.sysmon_asleep, idle);
    unlock(&sched.lock);
    return idle;
}

/* In looks without anything to take: a millisecond of them; so many more that it may sleep; and a second. */
enum { QUIET = 50, QUIET_SLEEP = 70, QUIET_CALM = 550 };

/* How long until the next look. Each may cost somebody a core for a moment: the kernel, finding us on the core where a
 * thread ran last, wakes that on another. Where for a second every goroutine has come back before the next look, and
 * now all have, the next can wait; else it comes soon enough to see the same slice again. */
static int64_t next_look(Looked found, int *quiet)
{
    int64_t fixed = atomic_load(&sysmon_fixed_ns);
    if (found.taken > 0) {
        *quiet = 0;
    }
    else if (found.stay && *quiet > QUIET_SLEEP) {
        *quiet = QUIET_SLEEP;
    }
    else if (*quiet < QUIET_CALM) {
        ++*quiet;
    }
    if (fixed > 0) {
        return fixed;
    }
    if (*quiet == QUIET_CALM && !found.user && !atomic_load(&sched.draining)) {
        return SYSMON_CALM_NS;
    }
    int doublings = *quiet < QUIET         ? 0
                    : *quiet < QUIET_SLEEP ? *quiet - QUIET
                                           : QUIET_SLEEP - QUIET;
    int64_t delay = SYSMON_MIN_NS << doublings;
    return delay < SYSMON_MAX_NS ? delay : SYSMON_MAX_NS;
}

static void *sysmon(void *Py_UNUSED(arg))
{
    prctl(PR_SET_NAME, "gofer-sysmon", 0, 0, 0);
    numa_watched();
    int64_t next_refresh = nanotime() + NS_PER_S;
    int quiet = 0, awake = 0; /* looks: without anything to take; since the last deep sleep */
    while (!atomic_load(&stopping)) {
        int64_t now = nanotime();
        clock_tick(now);
        bool idle = atomic_load(&sched.npidle) > 0; /* before we start somebody */
        int64_t next = release_main(now);
        reap_dead_ms();
        int64_t trace_at = schedtrace(now), quit_at = quit_look(now), stall_at = stall_look(now);
        next = stall_at < next ? stall_at : next;
        next = trace_at < next ? trace_at : next;
        next = quit_at < next ? quit_at : next;
        if (atomic_load(&maxprocs_auto) || atomic_load(&numa_pinning)) {
            if (now >= next_refresh) {
                next_refresh = now + NS_PER_S;
                follow();
            }
            next = next_refresh < next ? next_refresh : next;
        }
        if (nobody_hurries(now)) {
            start_m(false); /* if there is an idle P; else retake() sees to it */
        }
        if (netpoll_stalled(now)) {
            atomic_store(&netpoll_due, 1); /* all Ms are busy: the next that comes by looks ... */
            wakep();                       /* ... or one that sleeps, if there is a P for it */
        }
        else if (atomic_load(&sched.npidle) > 0 && atomic_load(&sched.poll_until_ns) == 0 &&
                 timers_next() < now - LATE_NS) {
            wakep(); /* the M that watched the timers is busy */
        }
#ifndef GOFER_TINY /* where tests shall find a wake-up that was lost */
        else if (atomic_load(&sched.npidle) > 0 && atomic_load(&sched.runq_size) > 0 &&
                 atomic_load(&sched.nmspinning) == 0) {
            wakep();
        }
#endif
        int64_t delay = next_look(retake(now, idle), &quiet);
        if (quiet < QUIET_SLEEP || ++awake < 10 || !fall_asleep()) {
            next = now + delay < next ? now + delay : next;
        }
        else {
            awake = 0; /* whoever takes a P wakes us: not each time */
        }
        int64_t wait = next - now;
        struct timespec timeout = {wait / NS_PER_S, wait % NS_PER_S};
        struct pollfd p = {.fd = pipe_fd[0], .events = POLLIN};
        if (ppoll(&p, 1, next == TIME_NEVER ? NULL : &timeout, NULL) > 0) {
            drain_pipe();
        }
    }
    return NULL;
}

bool sysmon_start(int read_fd, int write_fd)
{
    pipe_fd[0] = read_fd;
    pipe_fd[1] = write_fd;
    atomic_store(&stopping, 0);
    memset(seen, 0, sizeof seen);
    return started = pthread_create(&thread, NULL, sysmon, NULL) == 0;
}

/* Detached: it may be waiting for the world to stop. */
void sysmon_stop(void)
{
    if (started) {
        atomic_store(&stopping, 1);
        sysmon_poke();
        pthread_join(thread, NULL);
        reap_dead_ms();
        stall_stop();
        started = false;
        pipe_fd[0] = -1;
        pipe_fd[1] = -1;
    }
}
