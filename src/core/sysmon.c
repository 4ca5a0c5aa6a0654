/* sysmon: a thread that watches what no M watches. It is no M, is never attached to Python, and sleeps in
 * poll() on a pipe unless there is something to watch:
 *   - signals. Python's C handler only notes a signal and writes its number to the pipe (see
 *     signal.set_wakeup_fd); the Python handler must run on M0, which may be asleep, or just about to;
 *   - main in m0_slot while M0 runs something else: after 10 ms without M0 coming back for it, it may run
 *     elsewhere;
 *   - affinity and cgroup quota, once a second, while gomaxprocs follows them. */
#include "runtime.h"

#include <poll.h>
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

static void *sysmon(void *Py_UNUSED(arg))
{
    int64_t next_refresh = nanotime() + NS_PER_S;
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
        int timeout_ms = next == TIME_NEVER ? -1 : (int)((next - now) / 1000000) + 1;
        struct pollfd p = {.fd = pipe_fd[0], .events = POLLIN};
        if (poll(&p, 1, timeout_ms) > 0) {
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
