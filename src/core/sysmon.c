/* sysmon: a thread that watches what no M watches. It is no M, is never attached to Python, and sleeps
 * unless there is something to watch:
 *   - main in m0_slot while M0 runs something else: after 10 ms without M0 coming back for it, it may run
 *     elsewhere;
 *   - affinity and cgroup quota, once a second, while gomaxprocs follows them. */
#include "runtime.h"

static pthread_t thread;
static bool started;
static _Atomic uint32_t stopping;
static _Atomic uint32_t poked; /* bumped to wake it */

void sysmon_poke(void)
{
    atomic_fetch_add(&poked, 1);
    word_wake_all(&poked);
}

/* Main has waited for M0 since the last look, 10 ms ago. Taking it out of the slot makes it ours. */
static void release_main(void)
{
    G *g = atomic_exchange(&sched.m0_slot, NULL);
    if (g != NULL) {
        g->roam = 1;
        lock(&sched.lock);
        globrunq_put(g);
        unlock(&sched.lock);
        wakep();
    }
}

static void *sysmon(void *Py_UNUSED(arg))
{
    int64_t next_refresh = nanotime() + NS_PER_S;
    bool waited = false;
    while (!atomic_load(&stopping)) {
        uint32_t seen = atomic_load(&poked);
        bool waits = atomic_load(&sched.m0_slot) != NULL;
        if (waits && waited) {
            release_main();
            waits = false;
        }
        waited = waits;
        int64_t now = nanotime();
        if (atomic_load(&maxprocs_auto)) {
            if (now >= next_refresh) {
                next_refresh = now + NS_PER_S;
                int n = maxprocs_default();
                if (n != sched.procs && atomic_load(&maxprocs_auto)) {
                    procs_change(n);
                }
            }
            word_wait(&poked, seen, waits ? now + SLICE_NS : next_refresh);
        }
        else {
            word_wait(&poked, seen, waits ? now + SLICE_NS : TIME_NEVER);
        }
    }
    return NULL;
}

void sysmon_start(void)
{
    atomic_store(&stopping, 0);
    started = pthread_create(&thread, NULL, sysmon, NULL) == 0;
}

/* Detached: it may be waiting for the world to stop. */
void sysmon_stop(void)
{
    if (started) {
        atomic_store(&stopping, 1);
        sysmon_poke();
        pthread_join(thread, NULL);
        started = false;
    }
}
