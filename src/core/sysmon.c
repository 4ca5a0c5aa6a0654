/* sysmon: a thread that watches what no M watches. It is no M, is never attached to Python, and sleeps in
 * poll() on a pipe unless there is something to watch:
 *   - signals. Python's C handler only notes a signal and writes its number to the pipe (see
 *     signal.set_wakeup_fd); the Python handler must run on M0, which may be asleep, or just about to;
 *   - main in m0_slot while M0 runs something else: after 10 ms without M0 coming back for it, it may run
 *     elsewhere;
 *   - affinity and cgroup quota, once a second, while gomaxprocs follows them;
 *   - Ms in user code. Python code need not ever call us, so a P whose M blocks or computes is handed to another M
 *     (retake), as Go does with a P in a system call.
 *
 * It looks every 20 us while there is something to take, less and less often while there is not, down to every
 * 5 ms. When all Ps have been idle for some time it sleeps until one is busy: an idle program uses no CPU. */
#define _GNU_SOURCE /* ppoll */
#include "trace.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_t thread;
static bool started;
static _Atomic uint32_t stopping;
static int pipe_fd[2] = {-1, -1}; /* read and write end: the caller's of run() */

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
    int64_t since_ns;            /* when this slice was first seen */
    int64_t looked_ns, cpu_ns;   /* at the last look: time, and the CPU time of its thread */
} seen[MAX_PROCS];
static int64_t process_cpu_ns, own_cpu_ns; /* at the last look */

static int64_t clock_ns(clockid_t clock)
{
    struct timespec ts;
    return clock_gettime(clock, &ts) == 0 ? ts.tv_sec * NS_PER_S + ts.tv_nsec : 0;
}

/* Is there something that only this P can do, or that nobody does? */
static bool has_work(P *p, int64_t now)
{
    return !runq_empty(p) || atomic_load(&sched.runq_size) > 0 || timers_next() <= now;
}

/* The thread has not run since the last look, so it blocks. With the GIL it may wait for that: then somebody
 * else of this process runs, and another thread would only wait too. */
static bool is_blocked(int64_t thread_cpu, int64_t others_cpu, int64_t passed)
{
    return thread_cpu * 10 < passed && (!HAVE_GIL || others_cpu * 5 < passed);
}

/* Take Ps whose Ms block, or have been computing for 10 ms, if there is work for them. Returns how many. */
static int retake(int64_t now)
{
    int taken = 0;
    int64_t process_cpu = HAVE_GIL ? clock_ns(CLOCK_PROCESS_CPUTIME_ID) : 0;
    int64_t own_cpu = HAVE_GIL ? clock_ns(CLOCK_THREAD_CPUTIME_ID) : 0;
    int64_t others_cpu = (process_cpu - process_cpu_ns) - (own_cpu - own_cpu_ns);
    process_cpu_ns = process_cpu;
    own_cpu_ns = own_cpu;
    for (int i = 0; i < sched.procs; i++) {
        P *p = sched.allp[i];
        uint64_t owner = atomic_load(&p->owner);
        uint32_t slices = atomic_load_explicit(&p->slices, memory_order_relaxed);
        if ((owner & 0xff) != P_USER || slices % 2 == 0) {
            seen[i].owner = 0;
            continue;
        }
        int64_t cpu = clock_ns(atomic_load_explicit(&p->m, memory_order_relaxed)->cpu_clock);
        if (seen[i].owner != owner || seen[i].slices != slices) {
            seen[i].owner = owner;
            seen[i].slices = slices;
            seen[i].since_ns = now;
        }
        else if (has_work(p, now) &&
                 (now - seen[i].since_ns >= SLICE_NS || atomic_load(&sysmon_fixed_ns) > 0 ||
                  is_blocked(cpu - seen[i].cpu_ns, others_cpu, now - seen[i].looked_ns)) &&
                 atomic_compare_exchange_strong(&p->owner, &owner, P_IDLE)) {
            /* It is in nobody's hands now, as one that wakep() has just taken. */
            trace_proc_taken(p, owner);
            atomic_store_explicit(&p->slices, slices + 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&p->nhandoff, 1, memory_order_relaxed);
            seen[i].owner = 0;
            p_idle(p);
            start_m(false);
            taken++;
            continue;
        }
        seen[i].looked_ns = now;
        seen[i].cpu_ns = cpu;
    }
    return taken;
}

/* All Ps are idle: tell those who take one that we want to know. */
static bool fall_asleep(void)
{
    lock(&sched.lock);
    bool idle = atomic_load(&sched.npidle) == sched.procs;
    atomic_store(&sched.sysmon_asleep, idle);
    unlock(&sched.lock);
    return idle;
}

static void *sysmon(void *Py_UNUSED(arg))
{
    prctl(PR_SET_NAME, "gofer-sysmon", 0, 0, 0);
    int64_t next_refresh = nanotime() + NS_PER_S, delay = SYSMON_MIN_NS;
    int quiet = 0; /* looks without anything to take */
    while (!atomic_load(&stopping)) {
        int64_t now = nanotime();
        int64_t next = release_main(now);
        if (atomic_load(&maxprocs_auto)) {
            if (now >= next_refresh) {
                next_refresh = now + NS_PER_S;
                int n = maxprocs_default();
                if (n != sched.procs && atomic_load(&maxprocs_auto)) {
                    procs_change(n);
                }
            }
            next = next_refresh < next ? next_refresh : next;
        }
        int64_t fixed = atomic_load(&sysmon_fixed_ns);
        if (retake(now) > 0) {
            quiet = 0;
            delay = SYSMON_MIN_NS;
        }
        else if (++quiet > 50) { /* 1 ms */
            delay = delay * 2 < SYSMON_MAX_NS ? delay * 2 : SYSMON_MAX_NS;
        }
        delay = fixed > 0 ? fixed : delay;
        if (quiet < 70 || !fall_asleep()) {
            next = now + delay < next ? now + delay : next;
        }
        else {
            quiet = 60; /* when woken, not every 20 us: it wakes often if we get here often */
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
        started = false;
        pipe_fd[0] = pipe_fd[1] = -1;
    }
}
