/* run(): the life of the runtime, from the first M to the last.
 *
 * HOW IT ENDS, in steps. Each may happen on any M; all of them with no lock held and the P in P_USER.
 *   1. The main goroutine ends (main_ended). If by goexit(), the others go on and step 2 waits for them.
 *      Otherwise `draining` is set, so go() refuses, and every other goroutine is cancelled, once: its
 *      finally blocks may still wait for things.
 *      go() puts its goroutine into allgs before it looks at `draining`; we set it before we look into
 *      allgs. So none slips through. On a thread that is no M go() does that, and counts it, under
 *      sched.lock, where it also sees whether this run, or the next, lets anybody in (g_let_in).
 *   2. The last goroutine ends (some_g_ended). Async generators that are still alive are closed by
 *      goroutines made for that; then `exiting` is set under sched.lock, after which no M is started and
 *      none goes to sleep, and all that sleep are woken.
 *   3. Every M leaves schedule(). M0 joins the threads of the others and raises or returns.
 * If what is left at step 2 sleeps for ever, it is cancelled again, some times over, then abandoned
 * (rescue). Each time that helped one of them to its end it starts counting anew.
 *
 * An exception that run() must raise instead of main's result (`fatal`) cancels main and so starts step 1:
 * a deadlock, an exception nobody took, thread exhaustion. abort() (a second Ctrl-C) goes to step 3. */
#include "net.h"
#include "trace.h"

#include <unistd.h>

enum { RESCUES = 10, FOREIGN_LOOK_NS = 50000000 };

static _Atomic int64_t drain_since_ns; /* when main ended */
static int rescues;                    /* in vain: since as few were alive as are now */
static int64_t fewest_alive;           /* while they were made */

void error_forked(void)
{
    PyErr_SetString(
        PyExc_RuntimeError,
        "this process was forked inside a running gofer runtime, whose threads did not come "
        "along: start processes with spawn or subprocess instead");
}

static void in_forked_child(void)
{
    trace_forked();
    signals_forked();
    if (atomic_load(&sched.running)) {
        atomic_store(&sched.forked, 1);
        if (tls_m != NULL) {
            tls_m->ops_left = 0; /* see op_undisturbed */
        }
    }
}

/* A new reference, or NULL. Any thread: run() takes it back under the lock before it lets go of it. */
static G *main_goroutine(void)
{
    lock(&sched.lock);
    G *g = (G *)Py_XNewRef(sched.main_g);
    unlock(&sched.lock);
    return g;
}

/* ---- failing ---- */

/* Whether `exc` shows up in the traceback of `shown`. (Bounded: people make cycles.) */
static bool shows(PyObject *shown, PyObject *exc)
{
    PyObject *at = Py_NewRef(shown);
    bool found = false;
    for (int i = 0; at != NULL && !(found = at == exc) && i < 1000; i++) {
        Py_SETREF(at, PyException_GetContext(at));
    }
    Py_XDECREF(at);
    return found;
}

/* Make `exc`, not the first to fail, show up in the traceback of the first. Eats exc. */
static void add_failure(PyObject *first, PyObject *exc)
{
    if (shows(first, exc)) {
        Py_DECREF(exc);
        return;
    }
    if (shows(exc, first)) { /* then raise this one: it shows both */
        Py_XDECREF(atomic_exchange(&sched.fatal, exc));
        return;
    }
    PyObject *end = Py_NewRef(first), *next;
    for (int i = 0; i < 1000 && (next = PyException_GetContext(end)) != NULL; i++) {
        Py_SETREF(end, next);
    }
    PyException_SetContext(end, exc);
    Py_DECREF(end);
}

void run_fail(PyObject *exc)
{
    PyObject *first = NULL;
    if (atomic_load(&sched.running) != RUN_ON || atomic_load(&sched.forked)) {
        compat_raise(exc);
        PyErr_WriteUnraisable(NULL); /* no run() to raise it */
        return;
    }
    if (!atomic_compare_exchange_strong(&sched.fatal, &first, exc)) {
        Py_INCREF(first);
        add_failure(first, exc);
        Py_DECREF(first);
        return;
    }
    G *main_g = main_goroutine();
    if (main_g != NULL && !g_cancel(main_g, NULL) && !atomic_load(&sched.draining)) {
        main_ended(END_CANCELLED); /* it had left by goexit() */
    }
    Py_XDECREF(main_g);
}

/* ---- ending ---- */

/* One step with the count: a thread that is no M may start a goroutine right now. */
static bool leave_if(bool none_left)
{
    lock(&sched.lock);
    bool ok = !none_left || g_alive_locked() == 0;
    if (ok) {
        atomic_store(&sched.exiting, 1);
        wake_all_ms();
    }
    unlock(&sched.lock);
    return ok;
}

static void leave(void) /* whatever is left */
{
    leave_if(false);
}

static void cancel_all(bool again)
{
    Py_ssize_t n;
    G **all = allgs_snapshot(&n);
    for (Py_ssize_t i = 0; all != NULL && i < n; i++) {
        if (again) {
            g_cancel(all[i], NULL);
        }
        else if (!all[i]->late) {
            g_drain(all[i]);
        }
        Py_DECREF(all[i]);
    }
    free(all);
}

void main_ended(GEnd end)
{
    bool drain = end != END_GOEXIT || atomic_load(&sched.fatal) != NULL;
    if (drain) { /* first: whoever counts down to none must know that main did not leave by goexit() */
        atomic_store(&drain_since_ns, nanotime());
        atomic_store(&sched.draining, 1);
    }
    atomic_store(&sched.counting, 1);
    if (drain) {
        atomic_store(&sched.unshielded, 0); /* main's end was what they were in vain against */
        cancel_all(false);
        lock(&sched.lock);
        wake_m0(); /* main may have ended elsewhere; see abandon() */
        unlock(&sched.lock);
    }
    some_g_ended();
}

/* Several may find at once that none is left; one of them acts, and looks again before it goes. */
void some_g_ended(void)
{
    while (g_alive() == 0 && !atomic_load(&sched.exiting) && !atomic_exchange(&sched.ending, 1)) {
        PyObject *more = PyObject_CallNoArgs(hooks.last_chance);
        if (more == NULL) {
            run_fail(compat_take_exception());
        }
        Py_XDECREF(more);
        if (more == Py_True) {
            atomic_store(&sched.ending, 0);
            continue;
        }
        if (!atomic_load(&sched.draining)) {
            PyErr_SetString(hooks.Deadlock, "no goroutines (main called goexit) - deadlock!");
            run_fail(compat_take_exception());
        }
        if (!leave_if(true)) {
            atomic_store(&sched.ending, 0);
        }
    }
}

/* ---- goroutines that do not come back ---- */

/* A goroutine in user code hears of its cancellation at its next operation, which may never come. So, when main
 * has ended and some time has passed, the exception is raised in its thread, at the next bytecode boundary. One that
 * does not reach one either sits in foreign code: run() returns without it (not if it is on M0, which is
 * the thread of run()), and its thread ends when it comes back. */

#define GRACE_NS 100000000LL

static _Atomic int64_t hurried_ns;
static _Atomic bool hurrying;

/* The exception that was to be raised in this thread has not been. */
static void take_back(M *m)
{
    PyThreadState_SetAsyncExc(m->ident, NULL);
    if (COMPAT_TAKING_BACK_IS_FELT) {
        PyThreadState_SetAsyncExc(m->ident, hooks.Cancelled);
        PyObject *r = PyObject_CallNoArgs(hooks.nothing); /* where it is raised */
        Py_XDECREF(r);
        if (r == NULL && !PyErr_ExceptionMatches(hooks.Cancelled)) {
            run_fail(compat_take_exception()); /* by a signal handler, which came first */
        }
        PyErr_Clear();
    }
}

bool user_leave(M *m)
{
    for (;;) {
        uint8_t was = USER_RUNS;
        if (atomic_compare_exchange_strong(&m->user, &was, USER_NONE)) {
            return true;
        }
        if (was == USER_ORPHAN) {
            return false;
        }
        if (was == USER_TOLD && atomic_compare_exchange_strong(&m->user, &was, USER_NONE)) {
            take_back(m);
            /* Be cancelled as usual. It may be about to wait, in an operation that did not see the mark while it was
             * gone: then it must not. */
            atomic_fetch_or(&m->curg->state, G_CANCEL | G_NOTIFIED);
            return true;
        }
        Py_BEGIN_ALLOW_THREADS
        usleep(50); /* USER_TELLING */
        Py_END_ALLOW_THREADS
    }
}

/* interrupted(): the exception is being raised in this thread. */
static PyObject *core_interrupted(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    M *m = tls_m;
    uint8_t told = USER_TOLD;
    while (m != NULL && !atomic_compare_exchange_strong(&m->user, &told, USER_RUNS) &&
           told == USER_TELLING) {
        told = USER_TOLD;
        Py_BEGIN_ALLOW_THREADS
        usleep(50);
        Py_END_ALLOW_THREADS
    }
    if (m != NULL && m->curg != NULL && m->collecting > 0) {
        atomic_fetch_or(&m->curg->state, G_CANCEL); /* it will not hear of it: tell it again */
    }
    Py_RETURN_NONE;
}

/* Of an M in USER_TELLING, which therefore stays in user code: raise Cancelled there. Not if its goroutine has
 * heard of it and cleans up, or does so behind a shield, unless `force`. */
static void tell(M *m, bool force)
{
    bool heard = (!force && g_shielded(m->curg)) ||
                 !(atomic_fetch_and(&m->curg->state, ~(uint32_t)G_CANCEL) & G_CANCEL);
    atomic_store(&m->told_ns, nanotime());
    atomic_store(&m->told_cpu_ns, clock_ns(m->cpu_clock));
    if (!heard || force) {
        PyThreadState_SetAsyncExc(m->ident, hooks.Interrupted);
    }
    atomic_store(&m->user, heard && !force ? USER_RUNS : USER_TOLD);
}

void user_cancel(M *m)
{
    uint8_t runs = USER_RUNS;
    if (atomic_compare_exchange_strong(&m->user, &runs, USER_TELLING)) { /* else somebody does so */
        tell(m, true);
    }
}

static void tell_all(int64_t now, bool force)
{
    bool patient = !force && now - atomic_load(&drain_since_ns) < 10 * GRACE_NS;
    for (M *m = sched.m0; m != NULL;) {
        lock(&sched.lock);
        /* Nobody adds Ms to the list that run anything but cleaning up, so from the start is soon enough. */
        for (m = force ? sched.allm : sched.m0; m != NULL;
             m = m == sched.m0 ? sched.allm : m->all_next) {
            uint8_t runs = USER_RUNS;
            if (atomic_load(&m->told_ns) < now && (!patient || atomic_load(&m->collecting) == 0) &&
                atomic_compare_exchange_strong(&m->user, &runs, USER_TELLING)) {
                break;
            }
        }
        unlock(&sched.lock);
        if (m != NULL) {
            tell(m, force);
        }
    }
}

/* It has been told, and does not get to a bytecode boundary: it is away in a call, or computes in one. If it has hardly
 * run since, it waits for a core or for the GIL, and is given longer. */
static bool is_stuck(M *m, M *by, int64_t now) /* sched.lock: thread states go under it */
{
    if (atomic_load(&m->user) != USER_TOLD) {
        return false;
    }
    int64_t told_ns = atomic_load(&m->told_ns), had = now - told_ns;
    bool ran = clock_ns(m->cpu_clock) - atomic_load(&m->told_cpu_ns) >= GRACE_NS / 10;
    bool away = m->ts != NULL && compat_detached(m->ts) &&
                (!HAVE_GIL || now - by->gil_free_ns < GRACE_NS / 10);
    return had >= GRACE_NS && (ran || away || had >= 10 * GRACE_NS) &&
           atomic_load(&m->user) == USER_TOLD &&
           atomic_load(&m->told_ns) == told_ns; /* else it has just told itself again */
}

/* Take its P, if it has one. False: it is in the scheduler just now. */
static bool take_p(M *m, P **taken) /* sched.lock */
{
    P *p = p_of(m);
    uint64_t user = p_owner(m, P_USER);
    if (p == NULL) {
        return true;
    }
    if (!atomic_compare_exchange_strong(&p->owner, &user, P_IDLE)) {
        return false;
    }
    atomic_store(&p->slices, 0);
    pidle_put(p);
    *taken = p;
    return true;
}

/* Make `m` an orphan: it goes on, but belongs to no runtime any more. Its goroutine, a new reference, or NULL if
 * it comes back just now. */
static G *orphan(M *m, P **p) /* sched.lock */
{
    uint8_t told = USER_TOLD;
    if (!take_p(m, p) || !atomic_compare_exchange_strong(&m->user, &told, USER_ORPHAN)) {
        return NULL;
    }
    m_unlink(m);
    m->all_next = sched.orphans;
    sched.orphans = m;
    sched.nm--;
    g_count_fold(m);
    pthread_detach(m->thread);
    numa_release(m);
    G *g =
        (G *)Py_NewRef((PyObject *)m->curg); /* which it keeps until that is dead: see orphan_end */
    atomic_store_explicit(&g->wired, NULL, memory_order_relaxed);
    return g;
}

/* If all that is left is stuck, or the rest waits for something that never comes, leave without the stuck ones. */
static void orphan_all(M *by, int64_t now)
{
    int32_t stuck = 0;
    lock(&sched.lock);
    for (M *m = sched.allm; m != NULL; m = m->all_next) {
        stuck += is_stuck(m, by, now);
    }
    bool rest_sleeps = sched.nmidle + sched.nmwired + stuck == sched.nm &&
                       atomic_load(&sched.runq_size) == 0 && timers_next() == TIME_NEVER;
    unlock(&sched.lock);
    if (stuck == 0 || (g_alive() > stuck && !rest_sleeps)) {
        return;
    }
    PyObject *cancelled = PyObject_CallNoArgs(hooks.Cancelled);
    if (cancelled == NULL) {
        run_fail(compat_take_exception());
        return;
    }
    for (;;) {
        G *g = NULL;
        P *p = NULL;
        lock(&sched.lock);
        for (M *m = sched.allm, *next; m != NULL && g == NULL && p == NULL; m = next) {
            next = m->all_next;
            g = is_stuck(m, by, now) ? orphan(m, &p) : NULL;
        }
        unlock(&sched.lock);
        if (p != NULL && (!runq_empty(p) || atomic_load(&sched.runq_size) > 0)) {
            start_m(false);
        }
        if (g == NULL) {
            break; /* if that was one who came back just now, we come here again soon */
        }
        g_abandon(by, g, Py_NewRef(cancelled));
        Py_DECREF(g);
    }
    Py_DECREF(cancelled);
    some_g_ended();
}

/* By sysmon. An M that was idle before main ended may sleep for ever. */
bool nobody_hurries(int64_t now)
{
    int64_t last = 0;
    return atomic_load(&sched.draining) && !atomic_load(&sched.exiting) &&
           !atomic_compare_exchange_strong(&hurried_ns, &last, now) && now - last > 2 * GRACE_NS;
}

/* By `m`, whose goroutine goes on after it was stopped, or after a collection. It may be in neither state for so short a time
 * that nobody ever tells it then: it must do so itself. */
bool hurry_self(M *m)
{
    return atomic_load(&sched.draining) && m->curg != NULL && g_cancel_due(m->curg) &&
           nanotime() - atomic_load(&drain_since_ns) >= GRACE_NS;
}

/* Main has ended, and `m` has nothing to do. */
int64_t hurry(M *m)
{
    if (atomic_load(&sched.exiting)) {
        return TIME_NEVER;
    }
    int64_t now = nanotime(), since = atomic_load(&drain_since_ns);
    atomic_store(&hurried_ns, now);
    if (now < since + GRACE_NS) {
        return since + GRACE_NS;
    }
    if (!atomic_exchange(&hurrying, true)) {
        tell_all(now, false);
        orphan_all(m, now);
        atomic_store(&hurrying, false);
    }
    return now + GRACE_NS;
}

/* goroutines(): all that are alive. */
static PyObject *core_goroutines(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    Py_ssize_t n;
    G **all = allgs_snapshot(&n);
    PyObject *list = all != NULL ? PyList_New(n) : PyErr_NoMemory();
    for (Py_ssize_t i = 0; all != NULL && i < n; i++) {
        if (list != NULL) {
            PyList_SET_ITEM(list, i, (PyObject *)all[i]);
        }
        else {
            Py_DECREF(all[i]);
        }
    }
    free(all);
    return list;
}

static bool all_asleep(void)
{
    lock(&sched.lock);
    bool asleep = nobody_works();
    unlock(&sched.lock);
    return asleep && !atomic_load(&sched.exiting);
}

/* Clean-up code waits for something that will never come: cancel it again. After some times in vain it may be a
 * lock whose holder is gone, for which a cancelled Cond.wait() waits whatever comes: see inherit() in sema.c. */
static void rescue(bool draining)
{
    int64_t alive = g_alive();
    if (alive < fewest_alive) {
        fewest_alive = alive;
        rescues = 0;
    }
    if (rescues++ >= RESCUES) {
        PyErr_Format(PyExc_RuntimeError,
                     "%lld goroutines did not end although they were cancelled %d times",
                     (long long)alive, RESCUES + 1);
        run_fail(compat_take_exception());
        atomic_store(&sched.aborted, 1);
        leave();
        tell_all(nanotime(), true);
        return;
    }
    if (rescues > RESCUES / 2) {
        atomic_fetch_add(&sched.orphaned, 1);
    }
    atomic_store(&sched.unshielded, 1);
    if (draining) {
        cancel_all(true);
        return;
    }
    G *main_g = main_goroutine();
    if (main_g != NULL) {
        g_cancel(main_g, NULL);
        Py_DECREF(main_g);
    }
}

/* Every goroutine sleeps and no timer will wake one. Only a thread that is none of ours could; if there is
 * one, look again in a while. Called by the last M to go idle, which is already on the idle list. */
int64_t check_dead(void)
{
    PyObject *count = PyObject_CallFunction(hooks.foreign_threads, "k", sched.m0->ident);
    bool foreign = count != NULL && count != Py_False;
    Py_XDECREF(count);
    if (count == NULL) {
        run_fail(compat_take_exception());
        return TIME_NEVER;
    }
    if (foreign) {
        return nanotime() + FOREIGN_LOOK_NS;
    }
    if (!all_asleep()) { /* what the hook ran (a destructor, say) woke somebody */
        return TIME_NEVER;
    }
    bool draining = atomic_load(&sched.draining);
    if (draining || atomic_load(&sched.fatal) != NULL) {
        rescue(draining);
        return TIME_NEVER;
    }
    PyObject *list = core_goroutines(NULL, NULL);
    PyObject *text = list != NULL ? PyObject_CallOneArg(hooks.deadlock_text, list) : NULL;
    Py_XDECREF(list);
    if (text != NULL) {
        PyErr_SetObject(hooks.Deadlock, text);
        Py_DECREF(text);
    }
    run_fail(compat_take_exception());
    return TIME_NEVER;
}

/* ---- what an aborted run leaves behind ---- */

/* `g` is in our hands, but a foreign thread may look at its frames. */
static bool await_scan(G *g)
{
    uint32_t s = atomic_fetch_or(&g->state, G_NOTIFIED) | G_NOTIFIED; /* see give_way_to_scan */
    do {
        while (s & G_SCAN) {
            Py_BEGIN_ALLOW_THREADS
            usleep(50);
            Py_END_ALLOW_THREADS
            s = atomic_load(&g->state);
        }
        if ((s & G_STATE) != G_RUNNABLE) {
            return false;
        }
    } while (!atomic_compare_exchange_strong(&g->state, &s, (s & G_MARKS) | G_RUNNING));
    return true;
}

static void close_g(M *m,
                    G *g) /* eats the reference; it is G_RUNNING: nobody looks at its frames */
{
    PyObject *r =
        g->put_off || g->plain ? Py_NewRef(Py_None) : PyObject_CallMethod(g->coro, "close", NULL);
    if (r == NULL) {
        PyErr_WriteUnraisable(g->coro);
    }
    Py_XDECREF(r);
    g_drop_coro(g);
    g_finish(m, g, END_CANCELLED, PyObject_CallNoArgs(hooks.Cancelled));
    Py_DECREF(g);
}

/* From a run queue; eats the reference. One that is wired its thread ends, which goes on without a P. */
static void bury(M *m, G *g)
{
    if (atomic_load(&g->wired) == NULL && await_scan(g)) {
        close_g(m, g);
    }
    else {
        Py_DECREF(g);
    }
}

/* Of goroutines that wait, locked to threads that have all ended but for ours, which runs none any more. */
static void unwire_all(M *m)
{
    Py_ssize_t n;
    G **all = allgs_snapshot(&n);
    for (Py_ssize_t i = 0; all != NULL && i < n; i++) {
        atomic_store(&all[i]->wired, NULL);
        Py_DECREF(all[i]);
    }
    free(all);
    __atomic_store_n(&m->wired, NULL, __ATOMIC_RELAXED);
}

/* Only goroutines of Ms that are stuck in user code are spared: they are G_RUNNING. `alone`: there are none. */
static void bury_the_rest(M *m, bool alone)
{
    bool found = true;
    if (alone) {
        unwire_all(m);
    }
    while (found) {
        found = false;
        for (int i = 0; i < MAX_PROCS && sched.allp[i] != NULL; i++) {
            bool inherit;
            for (G *g; (g = runq_get(sched.allp[i], &inherit)) != NULL; found = true) {
                bury(m, g);
            }
        }
        for (;;) {
            lock(&sched.lock);
            G *g = atomic_exchange(&sched.m0_slot, NULL);
            g = g != NULL ? g : globrunq_get();
            unlock(&sched.lock);
            if (g == NULL) {
                break;
            }
            bury(m, g);
            found = true;
        }
        Py_ssize_t n;
        G **all = allgs_snapshot(&n);
        for (Py_ssize_t i = 0; all != NULL && i < n; i++) {
            uint32_t s = atomic_load(&all[i]->state);
            bool waits = (s & G_STATE) == G_WAITING && all[i]->wired == NULL;
            bool comes = (s & G_STATE) == G_RUNNABLE &&
                         all[i]->wired == NULL; /* a foreign thread is about to queue it */
            found |= waits || comes;            /* if not now, then next time round */
            if (comes || (waits && (s & G_SCAN))) {
                Py_BEGIN_ALLOW_THREADS /* whoever looks at it may have to collect garbage */
                usleep(50);
                Py_END_ALLOW_THREADS
            }
            else if (waits && atomic_compare_exchange_strong(&all[i]->state, &s,
                                                             (s & G_MARKS) | G_RUNNING)) {
                close_g(m, (G *)Py_NewRef((PyObject *)all[i]));
            }
            Py_DECREF(all[i]);
        }
        free(all);
        drop_now(m);
    }
}

/* ---- run ---- */

/* They may wait for the main thread, in their destructors too. Sleeps, detached, for 5 ms or until `m` has ended: then
 * true. `m` NULL: for 1 ms. */
static bool join_m(const M *m)
{
    int error = ETIMEDOUT;
    Py_BEGIN_ALLOW_THREADS
    if (m == NULL) {
        usleep(1000);
    }
    else {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 5000000;
        until.tv_sec += until.tv_nsec / NS_PER_S;
        until.tv_nsec %= NS_PER_S;
        error = pthread_timedjoin_np(m->thread, NULL, &until);
    }
    Py_END_ALLOW_THREADS
    if (error == ETIMEDOUT && tls_m != NULL && tls_m == sched.m0 && signals_serve() < 0) {
        run_fail(compat_take_exception());
    }
    return error == 0;
}

/* Wait for the other Ms to end. False: one is still in user code after `patience_ns`. Attached. */
static bool join_ms(int64_t patience_ns)
{
    int64_t until = patience_ns == TIME_NEVER ? TIME_NEVER : nanotime() + patience_ns;
    Py_BEGIN_ALLOW_THREADS
    sysmon_stop();
    preempt_stop();
    Py_END_ALLOW_THREADS
    for (;;) {
        lock(&sched.lock);
        bool alone = sched.nm <= 1;
        unlock(&sched.lock);
        if (alone || patience_ns == TIME_NEVER) {
            break;
        }
        if (nanotime() > until) {
            return false;
        }
        join_m(NULL);
    }
    for (;;) {
        lock(&sched.lock);
        M *m = sched.allm; /* nobody adds to it any more */
        unlock(&sched.lock);
        if (m == NULL) {
            break;
        }
        while (!join_m(m)) {
        }
        lock(&sched.lock);
        sched.allm = m->all_next;
        g_count_fold(m);
        unlock(&sched.lock);
        m_free(m);
    }
    return true;
}

static void reset_sched(M *m0)
{
    lock(
        &sched
             .lock); /* a foreign thread may still be on its way out of a wake-up for the last run */
    sched.run++;
    sched.m0 = m0;
    sched.nm = 1;
    sched.nmidle = 0;
    sched.idle_ms = NULL;
    sched.nmwired = 0;
    sched.wired_ms = NULL;
    sched.poller = NULL;
    atomic_store(&sched.m0_gone, false);
    atomic_store(&sched.poll_until_ns, 0);
    atomic_store(&sched.next_id, 2);
    sched.created_before += atomic_load(&sched.gbegun);
    atomic_store(&sched.gbegun, 0);
    atomic_store(&sched.gended, 0);
    atomic_store(&sched.counting, 0);
    atomic_store(&sched.draining, 0);
    atomic_store(&sched.ending, 0);
    atomic_store(&sched.aborted, 0);
    atomic_store(&sched.unshielded, 0);
    atomic_store(&sched.thread_limit_hit, 0);
    atomic_store(&sched.signalled, 0);
    atomic_store(&sched.sysmon_asleep, false);
    rescues = 0;
    fewest_alive = INT64_MAX;
    atomic_store(&drain_since_ns, 0);
    atomic_store(&hurried_ns, 0);
    unlock(&sched.lock);
}

/* An aborted run may have left a thread in user code that would not come back. */
static bool begin(bool *stuck)
{
    uint32_t was = RUN_NONE;
    *stuck = false;
    if (atomic_compare_exchange_strong(&sched.running, &was, RUN_STARTING)) {
        return true;
    }
    if (was == RUN_STUCK && atomic_compare_exchange_strong(&sched.running, &was, RUN_STARTING)) {
        *stuck = join_ms(0);
        if (*stuck) {
            return true;
        }
        atomic_store(&sched.running, RUN_STUCK);
    }
    PyErr_SetString(
        PyExc_RuntimeError,
        was == RUN_STUCK
            ? "run() after an interrupted run, one of whose goroutines has not come back "
              "from a blocking call"
        : tls_m != NULL
            ? "run() inside a running runtime: start goroutines with go() instead"
            : "run() while a runtime runs in another thread: there is one in a process");
    return false;
}

/* The last steps of run(): whatever goroutines still hold is let go of, and only then is it known whether
 * one of them died of an exception that nobody took. Eats result, or the current exception. */
static PyObject *finish(M *m, PyObject *result, bool alone)
{
    PyObject *own = compat_take_exception();
    numa_end(m);
    m_fini(m);
    special_clear(false);
    if (atomic_load(&sched.fatal) != NULL) {
        Py_CLEAR(
            result); /* if handles are in it, run_fail() hears of them while we are still here */
    }
    lock(&sched.lock);
    g_count_fold(m);
    sched.m0 = NULL;
    unlock(&sched.lock);
    m_free(m);
    atomic_store(&sched.running,
                 RUN_STARTING); /* block() looks at this when it is on the list ... */
    block_interrupt_all();      /* ... and the next run's shall not be hit */
    atomic_store(&sched.running, alone ? RUN_NONE : RUN_STUCK);
    PyObject *fatal = atomic_exchange(&sched.fatal, NULL);
    if (fatal == NULL) {
        if (own != NULL) {
            compat_raise(own);
        }
        return result;
    }
    Py_XDECREF(result);
    /* What main raised besides (not the Cancelled we sent it) shall be seen too. */
    PyObject *context = PyException_GetContext(fatal);
    if (own != NULL && own != fatal && context == NULL &&
        !PyErr_GivenExceptionMatches(own, hooks.Cancelled)) {
        PyException_SetContext(fatal, own);
    }
    else {
        Py_XDECREF(own);
    }
    Py_XDECREF(context);
    compat_raise(fatal);
    return NULL;
}

/* run(coro, name, procs, follow, read_fd, write_fd, signal_pipe): coro may be (fn, args, None), a plain function; `follow` affinity and quota from here on; the pipe is for
 * sysmon. */
static PyObject *core_run(PyObject *Py_UNUSED(mod), PyObject *args)
{
    PyObject *coro, *name;
    int procs, follow, read_fd, write_fd, signal_pipe;
    bool stuck;
    if (!PyArg_ParseTuple(args, "OOipiip", &coro, &name, &procs, &follow, &read_fd, &write_fd,
                          &signal_pipe) ||
        check_forked() || !begin(&stuck)) {
        return NULL;
    }
    M *m = m_new();
    if (m == NULL) {
        atomic_store(&sched.running, RUN_NONE);
        return PyErr_NoMemory();
    }
    if (stuck) { /* its last Ms have come back: what they left */
        bury_the_rest(m, true);
        m->gended = 0;
    }
    reset_sched(m);
    /* Before m_init enters an empty context: main starts with a copy of the caller's. */
    G *g = g_new(NULL, Py_NewRef(coro), name != Py_None ? name : NULL, 0, PyTuple_CheckExact(coro),
                 false);
    if (g != NULL) {
        g_let_in_main(g);
    }
    PyFrameObject *frame = PyEval_GetFrame();
    PyFrameObject *caller = frame != NULL ? PyFrame_GetBack(frame) : NULL;
    if (frame != NULL) {
        dump_below(PyFrame_GetCode(frame));
    }
    if (g != NULL && caller != NULL) { /* main is created by whoever called gofer.run() */
        Py_XSETREF(g->site_code, PyFrame_GetCode(caller));
        g->site_lasti = PyFrame_GetLasti(caller);
    }
    Py_XDECREF(caller);
    m_set_thread(m);
    bool ready = g != NULL && m_init(m, PyThreadState_Get());
    PyObject *result = NULL, *pending;
    bool alone = true;
    if (!ready) {
        if (g != NULL) {
            g_discard(g);
        }
        goto done;
    }
    atomic_store(&maxprocs_auto, follow && !HAVE_GIL);
    sched.signal_pipe = signal_pipe;
    procs_init(m, procs);
    if (!sysmon_start(read_fd, write_fd)) {
        PyErr_SetString(PyExc_RuntimeError, "the system gives the program no thread for sysmon");
        g_discard(g);
        goto done;
    }
    if (atomic_load(&numa_pinning)) { /* after sysmon, whose mask stays the process's */
        numa_settle(m);
    }
    sched.main_g = g;
    quit_watch();
    trace_run_begin(m);
    trace_create(g);
    /* Not start_g(): there is no need for a second M before main has started anything. Nor as the next: there is
     * nobody whose slice it could share. */
    runq_put(m->p, g, false);
    atomic_store(&sched.running, RUN_ON);
    special_clear(true);
    p_leave(m);
    contexts_arm(m);
    p_enter(m);
    schedule(m);

    if (atomic_load(&sched.forked)) {
        tls_m = NULL;
        check_forked();
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    quit_unwatch();
    Py_END_ALLOW_THREADS
    alone = join_ms(atomic_load(&sched.aborted) ? NS_PER_S : TIME_NEVER);
    if (atomic_load(&sched.aborted)) {
        bury_the_rest(m, alone);
    }
    drop_now(m);
    lock(&sched.lock);
    sched.main_g = NULL;
    unlock(&sched.lock);
    if (g_state(g) == G_DEAD) {
        result = g_result(g);
    }
    else {
        PyErr_SetNone(PyExc_KeyboardInterrupt);
    }
    pending = compat_take_exception();
    for (int i = 0; i < MAX_PROCS && sched.allp[i] != NULL; i++) {
        timers_discard(sched.allp[i]); /* of operations that somebody began by hand */
    }
    netpoll_stop();
    Py_DECREF(g);
    drop_now(m);
    trace_run_end(m);
    if (pending != NULL) {
        compat_raise(pending);
    }
done:
    return finish(m, result, alone);
}

/* abort(): leave at once, whatever is left. */
static PyObject *core_abort(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    if (atomic_load(&sched.running) == RUN_ON) {
        atomic_store(&sched.draining, 1); /* no new ones */
        atomic_store(&sched.aborted, 1);
        leave();
    }
    Py_RETURN_NONE;
}

/* gomaxprocs(n): while running; n has been checked. */
static PyObject *core_gomaxprocs(PyObject *Py_UNUSED(mod), PyObject *arg)
{
    int n = (int)PyLong_AsLong(arg), before = sched.procs;
    if (PyErr_Occurred() || check_forked()) {
        return NULL;
    }
    if (n > 0) {
        atomic_store(&maxprocs_auto, 0); /* whoever sets it wants it to stay */
        Py_BEGIN_ALLOW_THREADS
        before = procs_change(n);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromLong(before);
}

static PyObject *core_set_max_threads(PyObject *Py_UNUSED(mod), PyObject *arg)
{
    int n = (int)PyLong_AsLong(arg);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int before = atomic_exchange(&sched.max_threads, n);
    lock(&sched.lock);
    int nm = atomic_load(&sched.running) == RUN_ON ? sched.nm : 0;
    unlock(&sched.lock);
    if (nm > n) {
        atomic_store(&sched.thread_limit_hit, n);
    }
    return PyLong_FromLong(before);
}

static PyObject *core_current(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    M *m = tls_m;
    return m != NULL && m->curg != NULL ? Py_NewRef((PyObject *)m->curg) : Py_NewRef(Py_None);
}

static PyObject *core_main_goroutine(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    G *g = main_goroutine();
    return g != NULL ? (PyObject *)g : Py_NewRef(Py_None);
}

PyDoc_STRVAR(num_goroutine_doc,
             "num_goroutine()\n--\n\nHow many goroutines are alive; 0 outside a run.\n\n"
             ">>> num_goroutine()\n1");

static PyObject *core_num_goroutine(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return PyLong_FromLongLong(atomic_load(&sched.running) == RUN_ON ? g_alive() : 0);
}

static PyObject *core_running(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return PyBool_FromLong(atomic_load(&sched.running) == RUN_ON && !atomic_load(&sched.exiting));
}

/* go for the runtime's own needs: allowed while it stops. Eats nothing. */
static PyObject *core_go_late(PyObject *Py_UNUSED(mod), PyObject *coro)
{
    G *g = g_new(own_m(), Py_NewRef(coro), NULL, 0, false, true);
    if (g == NULL) {
        return NULL;
    }
    if (!g_let_in(g)) {
        g_discard(g);
        PyErr_SetString(PyExc_RuntimeError, "the runtime has ended");
        return NULL;
    }
    start_g(g, true);
    return (PyObject *)g;
}

static PyObject *core_proc_id(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    M *m = tls_m;
    return PyLong_FromLong(m != NULL && m->p != NULL ? m->p->id : -1);
}

/* ---- a goroutine and its thread ---- */

static G *curg_or_error(const char *what)
{
    M *m = tls_m;
    G *g = m != NULL ? m->curg : NULL;
    if (g == NULL) {
        PyErr_Format(PyExc_RuntimeError, "%s outside a goroutine: start one with gofer.run()",
                     what);
    }
    return g;
}

static PyObject *core_lock_os_thread(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    G *g = curg_or_error("lock_os_thread()");
    if (g == NULL) {
        return NULL;
    }
    if (g->locks == UINT16_MAX) {
        PyErr_SetString(PyExc_RuntimeError, "lock_os_thread() is nested too deeply");
        return NULL;
    }
    if (g->locks++ == 0 && !g->plain) { /* a plain one is wired as it is */
        m_wire(tls_m, g);
    }
    Py_RETURN_NONE;
}

static PyObject *core_unlock_os_thread(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    G *g = curg_or_error("unlock_os_thread()");
    if (g == NULL) {
        return NULL;
    }
    if (g->locks == 0) {
        PyErr_SetString(PyExc_RuntimeError, "unlock_os_thread() without lock_os_thread()");
        return NULL;
    }
    if (--g->locks == 0 && !g->plain) {
        m_unwire(tls_m, g);
    }
    Py_RETURN_NONE;
}

/* become_plain(fn): give fn back. When the coroutine of this goroutine returns it, fn is called as a plain goroutine would be,
 * with the same handle. Begun by go_here(), so that it is called even if it is cancelled before. */
static PyObject *core_become_plain(PyObject *Py_UNUSED(mod), PyObject *fn)
{
    G *g = curg_or_error("become_plain()");
    if (g == NULL) {
        return NULL;
    }
    g->becomes = 1;
    return Py_NewRef(fn);
}

/* The code that follows will block: let another M have the P at once. */
static PyObject *core_enter_blocking(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    G *g = curg_or_error("blocking()");
    if (g == NULL) {
        return NULL;
    }
    if (g->blocking == UINT16_MAX) {
        PyErr_SetString(PyExc_RuntimeError, "blocking() is nested too deeply");
        return NULL;
    }
    M *m = tls_m;
    if (check_forked()) {
        return NULL;
    }
    if (g->blocking++ == 0) {
        slice_end(m);
        if (m->p != NULL) {
            atomic_store(&m->in_syscall, SYSCALL_SAID);
            atomic_fetch_add_explicit(&m->p->nsyscall, 1, memory_order_relaxed);
            handoff_p(m);
        }
    }
    Py_RETURN_NONE;
}

/* As at the end of a system call: go on with an idle P, or queue for one. (If the goroutine has awaited something in
 * the block, it has one already.) */
static PyObject *core_exit_blocking(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    G *g = curg_or_error("blocking()");
    if (g == NULL) {
        return NULL;
    }
    M *m = tls_m;
    if (g->blocking == 0) {
        PyErr_SetString(PyExc_RuntimeError, "the block of blocking() has been left already");
        return NULL;
    }
    if (--g->blocking > 0 || m->p != NULL || atomic_load(&m->user) == USER_ORPHAN ||
        atomic_load(&sched.forked)) {
        Py_RETURN_NONE;
    }
    atomic_store(&m->in_syscall, SYSCALL_NONE);
    if (get_idle_p(m)) {
        slice_begin(m);
    }
    else {
        wait_for_p(m, g);
    }
    Py_RETURN_NONE;
}

/* For tests: sysmon looks this often, in microseconds, and takes every P that there is work for. 0: as usual. -1: it
 * takes none. Returns the former setting. */
static PyObject *core_set_sysmon(PyObject *Py_UNUSED(mod), PyObject *us)
{
    long n = PyLong_AsLong(us);
    if (n == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyLong_FromLongLong(atomic_exchange(&sysmon_fixed_ns, n * 1000) / 1000);
}

static PyObject *core_set_async_preempt(PyObject *Py_UNUSED(mod), PyObject *on)
{
    atomic_store(&preempt_off, on != Py_True);
    Py_RETURN_NONE;
}

static int orphans(void) /* sched.lock */
{
    int n = 0;
    for (M *m = sched.orphans; m != NULL; m = m->all_next) {
        n++;
    }
    return n;
}

/* Threads that sleep in the middle of a goroutine: what Python code they have on their stacks is ours. When main has
 * ended, those that run() does not wait for too: clean-up code must not count on them. */
static PyObject *core_m_idents(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    PyObject *set = PySet_New(NULL);
    int n = 0, cap = 0;
    unsigned long *idents = NULL;
    lock(&sched.lock);
    for (int need; cap < (need = sched.nmwired + orphans());) { /* no allocation under the lock */
        cap = need + 16;
        unlock(&sched.lock);
        free(idents);
        idents = malloc((size_t)cap * sizeof *idents);
        if (idents == NULL) {
            Py_XDECREF(set);
            return PyErr_NoMemory();
        }
        lock(&sched.lock);
    }
    for (M *m = sched.wired_ms; m != NULL; m = m->idle_next) {
        idents[n++] = m->ident;
    }
    for (M *m = atomic_load(&sched.draining) ? sched.orphans : NULL; m != NULL; m = m->all_next) {
        idents[n++] = m->ident;
    }
    unlock(&sched.lock);
    for (int i = 0; set != NULL && i < n; i++) {
        PyObject *ident = PyLong_FromUnsignedLong(idents[i]);
        if (ident == NULL || PySet_Add(set, ident) < 0) {
            Py_CLEAR(set);
        }
        Py_XDECREF(ident);
    }
    free(idents);
    return set;
}

static void count_live(M *m, int64_t n[LIVE_KINDS])
{
    for (int i = 0; i < LIVE_KINDS; i++) {
        n[i] += atomic_load(&m->live[i]);
    }
    for (int kind = 0; kind < FREE_KINDS; kind++) {
        n[kind == FREE_G ? LIVE_G : LIVE_OP] -=
            atomic_load(&m->free[kind].count) + (atomic_load(&m->free[kind].spare) != NULL);
    }
}

static PyObject *core_spares_clear(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    spares_clear();
    Py_RETURN_NONE;
}

/* Live objects and queue lengths, for tests. */
static PyObject *core_counters(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    int64_t n[LIVE_KINDS];
    for (int i = 0; i < LIVE_KINDS; i++) {
        n[i] = atomic_load(&live_rest[i]);
    }
    lock(&sched.lock);
    for (M *m = sched.allm; m != NULL; m = m->all_next) {
        count_live(m, n);
    }
    for (M *m = sched.orphans; m != NULL; m = m->all_next) {
        count_live(m, n);
    }
    if (sched.m0 != NULL) {
        count_live(sched.m0, n);
    }
    int threads = atomic_load(&sched.running) ? sched.nm : 0, idle = sched.nmidle;
    int helpers =
        1 + preempt_threads() + (atomic_load(&sched.draining) ? orphans() : 0); /* 1: sysmon */
    unlock(&sched.lock);
    uint64_t ticks = 0, steals = 0, far = 0, spills = 0, timers = 0, handoffs = 0, preempts = 0;
    for (int i = 0; i < sched.procs; i++) {
        P *p = sched.allp[i];
        ticks += (uint64_t)atomic_load_explicit(&p->tick, memory_order_relaxed);
        steals += (uint64_t)atomic_load_explicit(&p->nsteal, memory_order_relaxed);
        far += (uint64_t)atomic_load_explicit(&p->nfar, memory_order_relaxed);
        spills += (uint64_t)atomic_load_explicit(&p->nspill, memory_order_relaxed);
        lock(&p->timers_lock);
        timers += p->ntimers;
        handoffs += atomic_load(&p->nhandoff);
        preempts += atomic_load(&p->npreempt);
        unlock(&p->timers_lock);
    }
    return Py_BuildValue(
        "{sLsLsLsisKsKsKsKsKsKsKsKsisisisisisi}", "goroutines", (long long)n[LIVE_G], "operations",
        (long long)n[LIVE_OP], "connections", (long long)n[LIVE_CONN], "io_waiters",
        (int)atomic_load(&netpoll_waiters), "polls", (unsigned long long)netpoll_polls(), "timers",
        (unsigned long long)timers, "ticks", (unsigned long long)ticks, "steals",
        (unsigned long long)steals, "cross_node_steals", (unsigned long long)far, "spills",
        (unsigned long long)spills, "handoffs", (unsigned long long)handoffs, "preemptions",
        (unsigned long long)preempts, "stopped_threads", (int)atomic_load(&preempt_stopped),
        "helper_threads", helpers, "threads", threads, "idle_threads", idle, "global_queue",
        (int)atomic_load(&sched.runq_size), "ring_size", (int)RING_SIZE);
}

PyMethodDef run_methods[] = {
    {"run", core_run, METH_VARARGS, NULL},
    {"abort", core_abort, METH_NOARGS, NULL},
    {"gomaxprocs", core_gomaxprocs, METH_O, NULL},
    {"set_max_threads", core_set_max_threads, METH_O, NULL},
    {"current", core_current, METH_NOARGS, NULL},
    {"num_goroutine", core_num_goroutine, METH_NOARGS, num_goroutine_doc},
    {"main_goroutine", core_main_goroutine, METH_NOARGS, NULL},
    {"running", core_running, METH_NOARGS, NULL},
    {"go_late", core_go_late, METH_O, NULL},
    {"goroutines", core_goroutines, METH_NOARGS, NULL},
    {"proc_id", core_proc_id, METH_NOARGS, NULL},
    {"lock_os_thread", core_lock_os_thread, METH_NOARGS, NULL},
    {"unlock_os_thread", core_unlock_os_thread, METH_NOARGS, NULL},
    {"become_plain", core_become_plain, METH_O, NULL},
    {"enter_blocking", core_enter_blocking, METH_NOARGS, NULL},
    {"exit_blocking", core_exit_blocking, METH_NOARGS, NULL},
    {"set_sysmon", core_set_sysmon, METH_O, NULL},
    {"set_async_preempt", core_set_async_preempt, METH_O, NULL},
    {"interrupted", core_interrupted, METH_NOARGS, NULL},
    {"m_idents", core_m_idents, METH_NOARGS, NULL},
    {"counters", core_counters, METH_NOARGS, NULL},
    {"spares_clear", core_spares_clear, METH_NOARGS, NULL},
    {NULL},
};

void run_module_init(void)
{
    atomic_store(&sched.max_threads, DEFAULT_MAX_THREADS);
    pthread_atfork(NULL, NULL, in_forked_child);
}
