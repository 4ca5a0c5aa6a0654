/* G, M, P and Sched: read this first.
 *
 *   G   a goroutine: a Python coroutine and its state word        goroutine.c
 *   M   an OS thread attached to Python, which runs Gs             proc.c
 *   P   the right to run Python code, and local queues and timers  runq.c timer.c stw.c
 *
 * An M needs a P to run Gs. It looks for a runnable G (find_runnable), resumes its coroutine until it
 * suspends (execute), and looks again. proc.c opens with the model and the park/wake protocol;
 * docs/internals.md has the whole story. Names follow Go's runtime where the role is the same.
 *
 * Rules that hold everywhere:
 *   1. No call into Python and no DECREF while a Lock is held or a P is in P_RUNNING: a destructor may
 *      run anything. What must be dropped there goes to drop_later().
 *   2. Nobody sleeps while attached to Python. Lock is for critical sections of some dozen instructions;
 *      everything longer detaches first.
 *   3. Wait queues are touched only by threads attached to Python, so the garbage collector (which runs
 *      under the GIL, or with all attached threads stopped) always sees them whole.
 *   4. The order of locks: p_enter() first (it may detach), then the ObjLock of what goroutines wait on
 *      (contexts before channels, channels by address), then g_lock, a heap's timers_lock, sched.lock.
 *   5. Memory that is no object's is the C library's. CPython's may want to be attached, also in a thread that is
 *      not and that holds a lock: PyMem_RawMalloc() under tracemalloc waits for the GIL.
 */
#ifndef GOFER_RUNTIME_H
#define GOFER_RUNTIME_H

#include "compat.h"
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define SLOW        __attribute__((noinline)) /* keeps its registers out of the fast path */

#ifdef GOFER_TINY /* edges are common in tests: see meson option `tiny` */
enum { RING_SIZE = 4, FREE_MAX = 4, ID_BLOCK = 4 };
#else
enum { RING_SIZE = 256, FREE_MAX = 1024, ID_BLOCK = 16 };
#endif
#if defined(__SANITIZE_ADDRESS__)
#define USE_FREE_LISTS 0 /* a cached object would hide its use after free */
#else
#define USE_FREE_LISTS 1
#endif

enum {
    GLOBAL_TICK = 61, /* every so many slices the global queue comes first */
    STEAL_ROUNDS = 4,
    ALLG_SHARDS = 64,
    MAX_PROCS = 4096,
    MAX_NODES = 64,
    DEFAULT_MAX_THREADS = 10000,
};
#define CACHE_PAIR     128        /* two lines: processors fetch the neighbour along */
#define SLICE_NS       10000000LL /* 10 ms */
#define SIGNAL_LOOK_NS 100000000LL
#define SYSMON_MIN_NS  20000LL    /* how often sysmon looks, when things move */
#define SYSMON_MAX_NS  2000000LL  /* ... and when they do not */
#define SYSMON_CALM_NS 10000000LL /* ... nor have for a second: see next_look() */
#define PREEMPT_LEAD_NS \
    (HAVE_GIL ? 5000000LL : 0)          /* we get the GIL so late, see sys.setswitchinterval */
#define PREEMPT_PATIENCE_NS 100000000LL /* for a goroutine to stop */
#define LINGER_NS           50000LL     /* for these see linger() in proc.c */
#define LOOT_MIN            32
#define LOOT_PATIENCE_NS    10000LL
#define NS_PER_S            1000000000LL
#define TIME_NEVER          INT64_MAX

typedef struct G G;
typedef struct M M;
typedef struct P P;
typedef struct Timer Timer;
typedef struct SelectOp SelectOp;

/* ---- lock.c: the two things a thread can sleep on -------------------------------------------- */

typedef struct {
    _Atomic uint32_t word;
} Lock; /* 0 free, 1 held, 2 held and somebody sleeps */
void lock_slow(Lock *l);
void unlock_slow(Lock *l);

static inline void lock(Lock *l)
{
    uint32_t free_ = 0;
    if (unlikely(!atomic_compare_exchange_strong_explicit(&l->word, &free_, 1, memory_order_acquire,
                                                          memory_order_relaxed))) {
        lock_slow(l);
    }
}

static inline void unlock(Lock *l)
{
    if (unlikely(atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2)) {
        unlock_slow(l);
    }
}

/* For the tiniest sections, a few loads and stores: letting go of one costs no locked instruction. */
typedef struct {
    _Atomic uint8_t held;
} SpinLock;
void spin_wait(
    int *tries); /* between two tries to get something that is held for an instant only */

void spin_lock_slow(SpinLock *l);

static inline void spin_lock(SpinLock *l)
{
    if (unlikely(atomic_exchange_explicit(&l->held, 1, memory_order_acquire))) {
        spin_lock_slow(l);
    }
}

static inline void spin_unlock(SpinLock *l)
{
    atomic_store_explicit(&l->held, 0, memory_order_release);
}

/* Guards an object that goroutines wait on. With the GIL it is the GIL: whoever gets here is attached to
 * Python, and stays so until he is done. */
#if HAVE_GIL
typedef struct {
    char nothing;
} ObjLock;
static inline void obj_lock(ObjLock *Py_UNUSED(l)) {}
static inline void obj_unlock(ObjLock *Py_UNUSED(l)) {}
#else
typedef SpinLock ObjLock;
static inline void obj_lock(ObjLock *l)
{
    spin_lock(l);
}
static inline void obj_unlock(ObjLock *l)
{
    spin_unlock(l);
}
#endif

/* One sleeper, one wake-up, remembered if it comes first. */
typedef struct {
    _Atomic uint32_t word;
} Note;
void note_clear(Note *n);
void note_wake(Note *n);
bool note_sleep(
    Note *n,
    int64_t until_ns); /* false: time is up, or a signal. TIME_NEVER: no time-out. Call detached. */
void word_wait(_Atomic uint32_t *word, uint32_t while_is, int64_t until_ns); /* may return early */
void word_wake_all(_Atomic uint32_t *word);

static inline int64_t nanotime(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

/* Good to a few ms and several times cheaper: for slices. */
static inline int64_t coarse_nanotime(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

/* Of any clock, such as a thread's CPU clock; 0 if it is gone. */
static inline int64_t clock_ns(clockid_t clock)
{
    struct timespec ts;
    return clock_gettime(clock, &ts) == 0 ? ts.tv_sec * NS_PER_S + ts.tv_nsec : 0;
}

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- G ---------------------------------------------------------------------------------------- */

/* The state word: one of these (Go's numbers) ... */
enum { G_IDLE = 0, G_RUNNABLE = 1, G_RUNNING = 2, G_WAITING = 4, G_DEAD = 6, G_STATE = 7 };
/* ... and these marks. */
enum {
    G_NOTIFIED = 8, /* woken while it still ran (or was looked at): do not park it, requeue it */
    G_CANCEL = 16,  /* cancelled; its next operation raises */
    G_SCAN = 32,    /* somebody looks at its frames: do not run it */
    G_LOCK = 64,    /* spin lock over value, waiters, and the step to G_DEAD; see g_lock */
    G_OVER = 128,   /* a context it is bound to may be over; its next operation looks */
    G_MARKS = G_CANCEL | G_OVER | G_LOCK, /* what a change of state keeps */
};

/* What it waits for, in Go's words: see wait_reasons in goroutine.c. */
typedef enum {
    WAIT_NONE,
    WAIT_SLEEP,
    WAIT_JOIN,
    WAIT_SEND,
    WAIT_RECV,
    WAIT_SELECT,
    WAIT_NO_CASES,
    WAIT_MUTEX,
    WAIT_RW_LOCK,
    WAIT_RW_RLOCK,
    WAIT_GROUP,
    WAIT_COND,
    WAIT_SEMA,
    WAIT_IO,
    WAIT_FUTURE,
} WaitReason;

const char *wait_reason_text(unsigned why); /* NULL: there are not that many */

/* How a dead G ended. */
typedef enum { END_NONE, END_RESULT, END_ERROR, END_CANCELLED, END_GOEXIT, END_LEAKED } GEnd;

enum { PUT_OFF_ONE = 1, PUT_OFF_TUPLE = 2 };

struct JoinOp;
struct Bind;

struct G {
    PyObject_HEAD
    _Atomic uint32_t state;
    int32_t site_lasti;
    uint64_t id, parent_id;
    PyObject *coro;    /* NULL when dead; the arguments of it while put_off */
    PyObject *value;   /* dead: result or exception. alive: reason of a pending cancel or NULL */
    PyObject *name;    /* or the function whose it is; NULL while it is the coroutine's */
    PyObject *context; /* contextvars.Context, or NULL while it is empty (see execute) */
    PyCodeObject *site_code; /* creation site, with site_lasti; the line is looked up when asked */
    _Atomic uint8_t wait_reason;
    uint8_t end;
    _Atomic uint8_t taken; /* dead with an exception that somebody has seen */
    uint8_t started : 1,   /* the coroutine has been resumed at least once */
        yielded : 1,       /* suspended in gosched() */
        claimed : 1,       /* the coroutine is in the table of claimed ones */
        put_off : 2,       /* coro is no coroutine yet: see may_put_off */
        finalized : 1,     /* CPython calls a finalizer once for an object: do not use it again */
        foreign : 1,       /* no goroutine: stands for a thread in block(), or is not let in yet */
        becomes : 1;       /* when its coroutine ends, it goes on as a plain function: the result */
    bool plain;            /* a plain function: coro is (fn, args, kwargs or None) */
    uint8_t run;           /* which run it belongs to, of the last 256 */
    uint16_t locks;        /* nested lock_os_thread() */
    uint16_t blocking;     /* nested blocking() */
    bool late;             /* cleans up after others: not cancelled when main ends */
    bool begins;           /* even if it is cancelled before: a wrapper that must clean up */
    bool roam;             /* main only: may run on another thread this time */
    bool drained;          /* g_lock: cancelled because main has ended, which happens once */
    _Atomic uint32_t
        shields; /* how many context.shield() it is in; this G's to change (context.c) */
    _Atomic uint16_t traced_by; /* by whom it was last traced: TraceThread.index, cut short */
    _Atomic uint32_t traced;    /* the trace period in which it was last described */
    _Atomic uint32_t stamp; /* waiting: since when, see g_stamp_wait. Runnable: see g_stamp_ready */
    union {
        G *schedlink; /* next in the global queue */
        Note *note;   /* foreign: what its thread sleeps on */
    };
    _Atomic(M *) wired;     /* it runs on this M only: a plain function that has begun, or locked */
    struct JoinOp *waiters; /* circular, oldest first; each entry owned */
    struct Bind *bind;      /* innermost context it is bound to; this G's to change (context.c) */
    G *all_prev, *all_next; /* in sched.allgs[id % ALLG_SHARDS] until dealloc; owns nothing */
    PyObject *weakrefs;
};

extern PyTypeObject Goroutine_Type;

static inline void g_lock(G *g)
{
    int tries = 0;
    while (atomic_fetch_or_explicit(&g->state, G_LOCK, memory_order_acquire) & G_LOCK) {
        spin_wait(&tries);
    }
}

static inline void g_unlock(G *g)
{
    atomic_fetch_and_explicit(&g->state, ~(uint32_t)G_LOCK, memory_order_release);
}

static inline uint32_t g_state(G *g)
{
    return atomic_load_explicit(&g->state, memory_order_acquire) & G_STATE;
}

/* ---- M ---------------------------------------------------------------------------------------- */

typedef struct { /* memory of dead objects, chained through their first bytes after the head */
    PyObject *head;
    _Atomic int64_t count;     /* the M's own, as the next; counters() looks */
    _Atomic(PyObject *) spare; /* owned, or NULL: see spare_put */
} FreeList;

enum { FREE_G, FREE_JOIN, FREE_SLEEP, FREE_CHAN, FREE_SYNC, FREE_IO, FREE_KINDS };
enum { LIVE_G, LIVE_OP, LIVE_CONN, LIVE_KINDS };

/* What is put off until no lock is held and the P is in P_USER: references to drop and, tagged with 1, owners of
 * timers that are due (see timer_due) and records that count (see join_count). */
typedef struct {
    uintptr_t *items;
    size_t n, cap;
} Drops;

/* SYSCALL_SAID: it is in blocking(). SYSCALL_SEEN: its thread did not run when somebody looked. */
enum { SYSCALL_NONE, SYSCALL_SEEN, SYSCALL_SAID };

/* Whether the goroutine of an M shall be stopped (preempt.c).
 *   PREEMPT_LOST    when it computes: it does so without a P, or may after a blocking call
 *   PREEMPT_FAILED  could not be, so far; it will be tried again */
enum { PREEMPT_NONE, PREEMPT_LOST, PREEMPT_ASKED, PREEMPT_FAILED };

/* Whether an M is in user code, for those who want to end it: see hurry() in run.c.
 *   USER_TELLING  somebody is about to have Cancelled raised in it
 *   USER_TOLD     that has been done; it is raised when the thread is at a bytecode boundary
 *   USER_ORPHAN   run() has returned, or is about to, without waiting for it */
enum { USER_NONE, USER_RUNS, USER_TELLING, USER_TOLD, USER_ORPHAN };

struct M {
    int id;
    bool spinning;
    uint8_t luck;               /* how often it may still linger */
    bool on_idle_list;          /* sched.lock */
    bool on_wired_list;         /* sched.lock: sleeps until its wired goroutine may run */
    bool ends;                  /* its goroutine ended in lock_os_thread(): so does the thread */
    _Atomic uint8_t in_syscall; /* has no P, because its goroutine blocks: one of SYSCALL_... */
    _Atomic uint8_t user;       /* one of USER_... */
    _Atomic uint8_t preempt;    /* whether its goroutine shall be stopped: one of PREEMPT_... */
    _Atomic uint8_t collecting; /* it is in a collection: see core_collecting */
    bool inherited;             /* curg got its slice from the G that readied it */
    int16_t node;               /* sched.lock: of the P that it got last */
    _Atomic uint32_t pin;       /* pin_lock to write: whether it keeps to a node, see numa.c */
    Lock pin_lock;
    pid_t tid;                   /* pin_lock to clear: its thread has ended */
    uint8_t nready, nready_next; /* goroutines made runnable: see g_stamp_ready */
    uint64_t id_next, id_end;    /* block of goroutine ids */
    uint32_t rng;
    uint32_t ops_left, ops_step; /* operations that need not look at the clock: see op_slice_over */
    int64_t ops_looked_ns;
    P *p;     /* written by this M only; see p_enter for what it is worth */
    P *nextp; /* sched.lock until the note is woken: handed over by start_m */
    G *nextg; /* owned; as nextp: what to run first */
    G *curg;  /* owned while set; others may compare it, under sched.lock: see m_of() */
    _Atomic uint64_t curg_id; /* of the last one, for others to look at while curg is set */
    _Atomic uint32_t stretch; /* counts up whenever code of a goroutine begins to run */
    struct {
        uint32_t stretch, ops;
        int64_t since_ns;
        bool told;
    } stall;  /* sysmon's: see stall.c */
    G *wired; /* the goroutine that is wired to it; borrowed. See m_wire */
    PyObject
        *blocked_on; /* borrowed: what block() of that goroutine awaits. For whoever looks at it */
    PyThreadState *ts;   /* sched.lock to clear */
    unsigned long ident; /* m0: as threading knows it */
    PyObject *context;   /* an empty Context, always entered on this thread */
    PyObject *stop;      /* a StopIteration to use again and again: see op_iternext */
    Note note;
    bool polls;               /* sched.lock to write: it sleeps in the poller, not on the note */
    char *scratch;            /* conn.c reads into it: SCRATCH bytes, or NULL */
    M *idle_prev, *idle_next; /* sched.lock */
    M *all_next;
    FreeList free[FREE_KINDS];
    _Atomic int64_t live[LIVE_KINDS]; /* see live_add */
    _Atomic int64_t gbegun, gended;   /* goroutines, on this M */
    Drops drops;
    pthread_t thread;
    clockid_t cpu_clock; /* of the thread; set before it runs anything */
    _Atomic int64_t seen_ns,
        seen_cpu_ns;      /* without a P: when somebody looked at its clock, see in_syscall() */
    int64_t tried_cpu_ns; /* sched.lock: its CPU time when preempt.c looked */
    _Atomic int64_t lost_cpu_ns; /* its CPU time when it lost its P */
#ifdef Py_GIL_DISABLED
    _Atomic(PyObject *) token; /* owned. See interrupt.c */
#else
    int64_t armed_cpu_ns; /* sched.lock: its CPU time when interrupt.c armed it */
#endif
    int64_t probe_cpu_ns;    /* sched.lock: its CPU time when dump.c looked */
    int64_t gil_free_ns;     /* when it woke up and nobody had the GIL: see is_stuck() in run.c */
    _Atomic int64_t told_ns; /* when its goroutine was told to end, see tell() in run.c ... */
    _Atomic int64_t told_cpu_ns; /* ... and its CPU time then */
};

extern _Thread_local M *tls_m __attribute__((tls_model("initial-exec")));

/* By the M itself; others look. */
static inline void m_wire(M *m, G *g)
{
    __atomic_store_n(&m->wired, g, __ATOMIC_RELAXED);
    atomic_store_explicit(&g->wired, m, memory_order_relaxed);
}

static inline void m_unwire(M *m, G *g)
{
    __atomic_store_n(&m->wired, NULL, __ATOMIC_RELAXED);
    atomic_store_explicit(&g->wired, NULL, memory_order_relaxed);
}

/* ---- P ---------------------------------------------------------------------------------------- */

/* P.owner holds the M's id and one of these, so that one CAS by the M finds out whether the P is still
 * its own, and one CAS by anybody else takes it.
 *   P_USER     the M is in user code. Anybody may take the P.
 *   P_RUNNING  the M is in the scheduler. Nobody may; it will not be long.
 *   P_STOPPED  stop-the-world took it from user code (U) or its M gave it up (R), to be put back. */
enum { P_IDLE, P_USER, P_RUNNING, P_STOPPED_U, P_STOPPED_R, P_STOPPED_IDLE, P_DEAD };

typedef struct {
    int64_t when_ns;
    Timer *timer;
} TimerEntry;

/* Go's histogram of times: 40 powers of two, each cut in 4, from 64 ns to 78 hours, and one below and one above. */
enum { HIST_BITS_MIN = 9, HIST_BITS_MAX = 48, HIST_SUB_BITS = 2 };
enum { HIST_SIZE = ((HIST_BITS_MAX - HIST_BITS_MIN + 1) << HIST_SUB_BITS) + 2 };
typedef _Atomic int64_t Histogram[HIST_SIZE]; /* one thread at a time counts, anybody looks */

struct P {
    _Atomic uint64_t owner;
    _Atomic(M *) m; /* who was given it last; sysmon only looks at its clock */
    _Atomic uint32_t
        slices; /* counts up when a goroutine starts to run (then it is odd) and when it stops */
    int id;
    _Atomic int32_t node; /* an index of numa.c; world stopped to write */
    _Atomic int64_t tick; /* slices started. The owner counts these three, counters() looks */
    _Atomic int64_t slice_start_ns;
    _Atomic int64_t nsteal, nspill;
    _Atomic int64_t nfar;      /* of nsteal: from other nodes */
    _Atomic uint32_t blocked;  /* the value of slices in which sysmon found its M blocked */
    _Atomic uint64_t nhandoff; /* how often sysmon took it from an M in user code */
    _Atomic uint64_t npreempt; /* how often a goroutine that had it was stopped */
    _Atomic uint64_t
        nsyscall; /* how often it was given up, or taken, because of a call that blocks */
    _Atomic int64_t nswitch; /* the owner counts: goroutines resumed */
    P *idle_next;            /* sched.lock */

    _Alignas(CACHE_PAIR) _Atomic uint32_t head; /* thieves and owner: CAS */
    _Alignas(CACHE_PAIR) _Atomic uint32_t tail; /* owner only */
    _Atomic(G *) runnext;                       /* owner sets; others may only CAS it to NULL */
    _Atomic(G *) ring[RING_SIZE];

    _Alignas(CACHE_PAIR) Lock timers_lock;
    TimerEntry *heap; /* 4-ary */
    size_t ntimers, heap_cap;
    bool timers_closed;            /* P is dead: use allp[0] */
    _Atomic int64_t next_timer_ns; /* of heap[0], TIME_NEVER if none: for a look without the lock */

    _Alignas(CACHE_PAIR) Histogram latency; /* the owner's: from runnable to running */
};

static inline uint64_t p_owner(const M *m, int status)
{
    return (uint64_t)m->id << 8 | (uint64_t)status;
}

/* ---- Sched ------------------------------------------------------------------------------------ */

typedef struct {
    _Alignas(CACHE_PAIR) SpinLock lock;
    G *head;
} AllgShard;

/* RUN_STARTING: nobody else may use it yet. RUN_STUCK: an aborted run left an M in user code. */
enum { RUN_NONE, RUN_ON, RUN_STARTING, RUN_STUCK };

typedef struct {
    /* Read by everybody all the time, written hardly ever. */
    _Atomic int32_t procs; /* changes only with the world stopped */
    _Atomic uint32_t stop_world;
    /* 0: no trace. Else a number that is new for each trace and, while a flight recorder runs, for each period in
     * which all that do something say once who they are (G.traced, TraceThread.told). */
    _Atomic uint32_t trace_period;
    _Atomic uint32_t running;    /* one of RUN_... */
    _Atomic uint32_t counting;   /* main has ended: when the last goroutine does, so does run() */
    _Atomic uint32_t draining;   /* ... and the others have been cancelled; no new ones */
    _Atomic uint32_t ending;     /* somebody sees to it: see some_g_ended */
    _Atomic uint32_t exiting;    /* lock to write: Ms leave */
    _Atomic uint32_t aborted;    /* exiting although goroutines are left */
    _Atomic uint32_t unshielded; /* all sleep, and the run must end: shields are in vain */
    _Atomic uint32_t orphaned;   /* counts up when locks may be taken from their holders: sema.c */
    _Atomic uint32_t forked;     /* this is the child of a fork made inside a run */
    _Atomic int32_t
        thread_limit_hit; /* the limit, or minus what the system allowed; to be reported by
                                         the next M that can */
    _Atomic int32_t max_threads;
    _Atomic uint32_t clock_s;   /* seconds of the monotonic clock, see clock_tick */
    _Atomic bool sysmon_asleep; /* lock to write: it wants to know when a P gets busy */
    bool signal_pipe;           /* sysmon hears of signals; if not, M0 must look now and then */
    _Atomic uint32_t signalled; /* lock to set: M0 has Python signal handlers to run */
    M *m0;                      /* the thread that called run */
    G *main_g;                  /* owned by run() */

    /* Who works and who sleeps. */
    _Alignas(CACHE_PAIR) _Atomic int32_t npidle; /* lock to write */
    _Atomic int32_t nmspinning;
    _Atomic int64_t poll_until_ns; /* when the poller wakes by itself; 0: nobody polls */
    _Atomic int64_t slot_since_ns; /* when main was put there */
    _Atomic(G *) m0_slot;          /* the main goroutine, waiting for m0 to finish what it runs */
    _Atomic bool m0_gone;          /* it waited in vain; until m0 has finished, it need not again */

    _Alignas(CACHE_PAIR) Lock lock;
    _Atomic int32_t runq_size; /* lock to write */
    G *runq_head, *runq_tail;  /* lock, as all below */
    P *idle_ps;                /* LIFO */
    M *idle_ms;                /* LIFO */
    M *wired_ms;               /* sleep until their goroutine may run; linked as the idle ones */
    int32_t nmwired;
    M *poller;
    M *allm;    /* all but m0 */
    M *orphans; /* run functions that no run() waits for; linked as allm */
    M *dead_ms; /* have ended before the run has: sysmon frees them. Linked as allm */
    int32_t nmidle, nm;
    int32_t next_m_id;
    int64_t created_before; /* goroutines, in the runs before this one */
    uint8_t run;            /* counts the runs; changes while there is none */

    _Alignas(CACHE_PAIR) Lock stw_lock;
    _Atomic uint32_t world_epoch; /* bumped at every restart; Ms wait for it to change */
    _Atomic uint64_t next_id;     /* of goroutines */
    _Atomic int64_t gbegun,
        gended;                /* goroutines, by threads that are no M, or no more; see g_alive */
    _Atomic(PyObject *) fatal; /* owned: the exception run() must raise */

    P *allp[MAX_PROCS];           /* filled up to the highest procs ever; never freed */
    uint32_t coprimes[MAX_PROCS]; /* strides that visit every P once; world stopped to write */
    int32_t ncoprimes;
    AllgShard allgs[ALLG_SHARDS];
} Sched;

extern Sched sched;

/* Objects let go of by another M than the one that made them are worth sharing (see compat_share); with
 * one P there are none. */
static inline bool sharing(void)
{
    return !HAVE_GIL && atomic_load_explicit(&sched.procs, memory_order_relaxed) > 1;
}

/* What the Python side provides (src/gofer/_hooks.py), looked up when the module is loaded. */
typedef struct {
    PyObject *Cancelled, *Deadlock, *GoExit, *ChannelClosed, *WouldBlock;
    PyObject *Closed, *IncompleteRead, *LimitExceeded; /* of net */
    PyObject *Selected;                                /* the named tuple */
    PyObject *as_coroutine;                            /* (awaitable) -> coroutine that awaits it */
    PyObject *limited;           /* (awaitable, seconds) -> coroutine that awaits it so long */
    PyObject *attach_thread;     /* () -> None: on each new M */
    PyObject *is_coroutine;      /* (object) -> bool, for what is not exactly a coroutine */
    PyObject *is_async;          /* (callable) -> bool, for what is not exactly a function */
    PyObject *stack_of;          /* (coroutine) -> traceback.StackSummary */
    PyObject *deadlock_text;     /* (goroutines) -> str */
    PyObject *stalled;           /* (goroutine, seconds, stretch) -> None: tell of it */
    PyObject *quit_dump;         /* () -> None: write a dump of all to standard error */
    PyObject *frame_and_awaited; /* (awaitable) -> its frame or None, what it awaits or None */
    PyObject *note_failure;      /* (exc, id, name, created_at): who failed, in its notes */
    PyObject *warn_leak;         /* (id, name, wait reason, created_at) */
    PyObject
        *foreign_threads;    /* (ident of m0) -> bool: are there Python threads that may call in? */
    PyObject *foreign_await; /* (yielded object) -> TypeError */
    PyObject *Interrupted;   /* the class to raise in a thread: tells us, and becomes Cancelled */
    PyObject *nothing;       /* () -> None */
    PyObject *last_chance;   /* () -> bool: no goroutine is left; has it started another? */
    PyObject *as_case;       /* (object) -> operation to wait for in a select, or None */
    PyObject *future_started; /* (future) -> Chan that is closed when it is done */
    PyObject *call_submitted; /* (executor, fn, args, kwargs) -> (future, such a Chan) */
} Hooks;
extern Hooks hooks;

/* Live objects, checked by every test at its end: those that were allocated, without those on free lists. Each M
 * counts for itself, so that counting costs one plain store; threads that are no M, and Ms that have ended,
 * count in `live_rest`. */
extern _Atomic int64_t live_rest[LIVE_KINDS];
static inline void count_add(_Atomic int64_t *own, int n) /* for the one thread that writes it */
{
    atomic_store_explicit(own, atomic_load_explicit(own, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static inline void live_add(M *m, int kind, int n) /* allocated or freed */
{
    if (likely(m != NULL)) {
        count_add(&m->live[kind], n);
    }
    else {
        atomic_fetch_add_explicit(&live_rest[kind], n, memory_order_relaxed);
    }
}

/* ---- special.c: types whose `with` blocks are entered by the million; false: exception ---- */

#if COMPAT_WITH_BINDS
bool bind_cheaply(PyTypeObject *type);
void special_clear(
    bool running); /* no spare objects any more, and if not running, none from now on */
#else
static inline bool bind_cheaply(PyTypeObject *Py_UNUSED(type))
{
    return true;
}
static inline void special_clear(bool Py_UNUSED(running)) {}
#endif

/* ---- run.c: in a child forked from a running runtime ---- */

void error_forked(void);
static inline bool check_forked(void) /* true, with RuntimeError set */
{
    if (likely(!atomic_load_explicit(&sched.forked, memory_order_relaxed))) {
        return false;
    }
    error_forked();
    return true;
}

/* ---- objects that come and go by the million: G and operations ---------------------------------- */

/* The free lists are the M's and not the P's, since a DECREF may come at any time, with a P or without. */
void *object_new_slow(M *m, int kind, PyTypeObject *type);
void object_free_slow(M *m, int kind, PyObject *op);
void free_lists_clear(M *m);
void spares_clear(void); /* of all Ms: with the GIL, before gc.freeze() */

static inline PyObject **free_link(PyObject *op)
{
    return (PyObject **)(op + 1);
}

/* Of one reference, untracked; what follows the head is anything. `type` is always the same for a `kind`. */
static inline void *object_new(M *m, int kind, PyTypeObject *type)
{
    if (unlikely(m == NULL || m->free[kind].head == NULL)) {
        return object_new_slow(m, kind, type);
    }
    PyObject *op = m->free[kind].head;
    m->free[kind].head = *free_link(op);
    count_add(&m->free[kind].count, -1);
    compat_revive(op);
    return op;
}

static inline void object_free(M *m, int kind, PyObject *op)
{
    if (unlikely(!USE_FREE_LISTS || m == NULL ||
                 atomic_load_explicit(&m->free[kind].count, memory_order_relaxed) >= FREE_MAX)) {
        object_free_slow(m, kind, op);
        return;
    }
    *free_link(op) = m->free[kind].head;
    m->free[kind].head = op;
    count_add(&m->free[kind].count, 1);
}

/* An operation that has just been done, in the name of M, usually has but one reference: that of the await, which
 * drops it in the next instant. The next operation is made soon after. So the M keeps it as it is, tracked, and
 * saves its end and its rebirth. It must own nothing then. False: drop it as usual. */
static inline bool spare_put(M *m, int kind, PyObject *op)
{
    if (unlikely(!USE_FREE_LISTS || m == NULL || !compat_unique(op) ||
                 atomic_load_explicit(&m->free[kind].spare, memory_order_relaxed) != NULL)) {
        return false;
    }
    compat_set_two(op);
    atomic_store_explicit(&m->free[kind].spare, op, memory_order_relaxed);
    return true;
}

/* One reference, the caller's. NULL: there is none, make a new one. */
static inline void *spare_take(M *m, int kind)
{
    PyObject *op =
        likely(m != NULL) ? atomic_load_explicit(&m->free[kind].spare, memory_order_relaxed) : NULL;
    if (likely(op != NULL)) {
        atomic_store_explicit(&m->free[kind].spare, NULL, memory_order_relaxed);
        if (unlikely(!compat_unique(op))) {
            Py_CLEAR(op); /* it is not dropped yet, or gc.get_objects() has found it */
        }
        else {
            compat_thaw(op);
        }
    }
    return op;
}

/* ---- proc.c ----------------------------------------------------------------------------------- */

void schedule(M *m);                   /* run goroutines until the runtime ends */
void start_g(G *g, bool next);         /* a new G; eats a reference */
bool goready(M *m, G *g, bool next);   /* eats the caller's reference if it returns true */
bool goready_quietly(M *m, G *g);      /* at the tail, and the caller sees to wakep() */
void ready_from_user(G *g, bool next); /* for code that does not hold its P */
void wakep(void);
void start_m(bool spinning); /* an idle P gets an M */
bool start_wired(P *p);      /* by sysmon, of a P that nobody has */
void p_idle(P *p);           /* on the idle list */
void handoff_p(M *m);        /* give up the P, held in P_RUNNING */
bool get_idle_p(M *m);       /* held in P_RUNNING */
void slice_begin(
    M *m); /* of the current goroutine, on a P that it did not have; leaves it in P_USER */
void slice_end(M *m); /* out of user code: the P, if it is still ours, is then in P_RUNNING */
void park_wired(M *m,
                G *g); /* the thread sleeps until `g`, its current one, is woken; P in P_USER */
void wait_for_p(M *m, G *g);       /* `g`, the current one, goes on when it has a P; it has none */
void park_stopped(M *m, G *g);     /* ... or had one for long enough; P in P_USER */
M *m_of(G *g);                     /* who runs it, or NULL; sched.lock */
P *p_of(const M *m);               /* the one that it owns now, or NULL */
void m_unlink(M *m);               /* from allm; sched.lock */
void reap_dead_ms(void);           /* detached; sysmon, or while there is none */
void poller_look(int64_t when_ns); /* a timer for then has been added; 1: look again in any case */
P *pidle_get(int node);            /* sched.lock; one of this node, if there is any; -1: any */
void pidle_put(P *p);              /* sched.lock */
bool p_enter_slow(M *m);
bool nobody_works(void);   /* sched.lock */
bool nobody_watches(void); /* no M sleeps until timers are due or descriptors ready */
PySendResult resume_coro(PyObject *coro, PyObject **result);
void drop_later(M *m, PyObject *op); /* `m` NULL: this is no M */
void due_later(M *m, PyObject *op);
void drop_now(M *m);
void wake_from_user(M *m, G *g, bool next); /* as goready; eats the reference in any case */
M *m_new(void);                             /* NULL: no memory */
void m_set_thread(M *m);                    /* on its thread */
bool m_init(M *m, PyThreadState *ts);       /* attached */
void m_fini(M *m);                          /* attached */
void m_free(M *m);
void wake_all_ms(void); /* sched.lock */
void wake_m0(void);     /* sched.lock */
uint32_t m_random(M *m);

/* From user code into the scheduler: the M claims its P for a moment. False: it has none any more,
 * use the global queue. */
static inline bool p_enter(M *m)
{
    if (likely(m->p != NULL)) {
        uint64_t user = p_owner(m, P_USER);
        if (likely(atomic_compare_exchange_strong_explicit(
                &m->p->owner, &user, p_owner(m, P_RUNNING), memory_order_acquire,
                memory_order_relaxed))) {
            return true;
        }
    }
    return p_enter_slow(m);
}

static inline void p_leave(M *m)
{
    atomic_store_explicit(&m->p->owner, p_owner(m, P_USER), memory_order_release);
}

/* ---- numa.c ----------------------------------------------------------------------------------- */

/* Ps by node. */
typedef struct {
    _Atomic int32_t nodes; /* that have Ps. Up to 1: nobody looks at the rest */
    uint32_t procs;
    uint8_t node[MAX_PROCS];                     /* of each P */
    uint16_t order[MAX_PROCS];                   /* all Ps, those of a node together ... */
    uint16_t first[MAX_NODES], count[MAX_NODES]; /* ... which are these */
} Nodes;

/* The way of a thief through all Ps (itself too): those of its own node, then the others. */
typedef struct {
    uint32_t base, n;          /* the part of Nodes.order that it visits */
    uint32_t at, stride, left; /* where it is there */
    uint32_t others;           /* how many are left for a second part */
    uint32_t random;
} Victims;

extern Nodes numa;                /* world stopped to write */
extern _Atomic bool numa_pinning; /* run(affinity=True) */
void numa_assign(int n);          /* world stopped: the nodes of `n` Ps */
bool numa_moved(void);            /* by sysmon: we may use other CPUs now; then procs_change() */
int numa_id(int node);            /* what the system calls it */
void numa_watched(void);          /* by sysmon, when it begins */
void numa_begin(void);            /* by M0, before there are Ps */
void numa_end(M *m0);             /* ... and when the run is over */
void numa_settle(M *m);           /* stay on the node of the P; that is in P_RUNNING */
void numa_release(M *m);          /* it may run anywhere; sysmon, or sched.lock */
void victims_begin(Victims *v, const Nodes *of, int p, uint32_t random);
int victims_next(Victims *v, const Nodes *of); /* -1: that was all */
extern PyMethodDef numa_methods[];

static inline bool numa_many(void)
{
    return unlikely(atomic_load_explicit(&numa.nodes, memory_order_relaxed) > 1);
}

/* ---- runq.c ----------------------------------------------------------------------------------- */

void runq_put(P *p, G *g, bool next);
G *runq_get(P *p, bool *inherit);
G *runq_steal(P *p, P *victim, bool take_next);
bool runq_empty(P *p);
uint32_t runq_length(P *p);
int runq_drain(P *p, G **head, G **tail);        /* world stopped */
void globrunq_put(G *g);                         /* sched.lock */
void globrunq_put_list(G *head, G *tail, int n); /* sched.lock */
void globrunq_put_head(G *head, G *tail, int n); /* sched.lock */
G *globrunq_get(void);                           /* sched.lock */
G *globrunq_get_batch(P *p);                     /* sched.lock */
G *globrunq_get_wired(void);                     /* sched.lock */

/* ---- timer.c ---------------------------------------------------------------------------------- */

typedef enum { TIMER_SLEEP, TIMER_CHAN, TIMER_FUNC, TIMER_CONTEXT, TIMER_CONN } TimerKind;

struct Timer {
    int64_t when_ns;
    int32_t index;   /* in the heap; -1: not in one. Lock of the P below */
    int16_t kind;    /* what to do when it is due */
    uint16_t offset; /* where in its owner it stands */
    _Atomic(P *) p;  /* whose heap; written under that P's timers_lock */
};

void timer_init(Timer *t, TimerKind kind, size_t offset);
bool timer_add(M *m, Timer *t); /* the heap takes over a reference to the owner; false: no memory */
bool timer_del(
    Timer *
        t); /* true: that reference is the caller's; false: it is about to be fired, or is not in */
bool seconds_to_ns(PyObject *seconds, const char *what,
                   int64_t *ns); /* rounded up; false: exception */
int timers_run(M *m, P *p, int64_t *now_ns);
void timer_due(PyObject *owner); /* what a timer does that needs Python: P in P_USER */
/* By kind. A timer that has been popped from the heap is `due`: it still holds its reference to the owner.
 * `dropped`: the run is over. */
void timechan_due(M *m, PyObject *owner, int64_t now_ns); /* P in P_RUNNING; eats the reference */
void timechan_dropped(PyObject *owner);
void functimer_due(PyObject *owner);
void functimer_dropped(PyObject *owner);
void context_due(PyObject *owner);
void context_dropped(PyObject *owner);
/* conn_due, conn_dropped: net.h */
void timers_move(P *to, P *from); /* world stopped */
int64_t timers_next(void);
void timers_discard(P *p);
extern PyTypeObject SleepOp_Type, FuncTimer_Type;
typedef struct SleepOp SleepOp;
int sleep_state(SleepOp *op);
bool sleep_is_over(SleepOp *op);                    /* of no duration */
int sleep_select(M *m, SleepOp *op, SelectOp *sel); /* start: 1; -1: no memory */
void sleep_unselect(SleepOp *op);
PyObject *sleep_new(PyObject *module, PyObject *seconds);

/* ---- op.c: what all operations share, gosched, and waiting for a goroutine --------------------- */

/* Whom a wait record wakes: a goroutine or, tagged with 1, a select, of whose records the first that is
 * taken off its queue wins. (Tagged with 2, in the list of a goroutine: a WaitGroup, which counts its end.) One rule for every record: `who` belongs to whoever takes the record off. A
 * waker that does moves the goroutine's reference to the run queue; the goroutine itself, cancelled,
 * drops it. */
typedef struct {
    uintptr_t word; /* an owned reference */
} Who;

typedef struct JoinOp {
    PyObject_HEAD
    Who who;                       /* who waits */
    G *target;                     /* owned; NULL: it only counts */
    _Atomic(struct JoinOp *) prev; /* in target->waiters (g_lock); or one of the marks in op.c */
    struct JoinOp *next;
} JoinOp;

extern PyTypeObject Operation_Type; /* the base of them all */
extern PyTypeObject JoinOp_Type, GoschedOp_Type, ReadyOp_Type, DoneOp_Type;
typedef struct {
    PyObject_HEAD
} BareOp;
extern BareOp gosched_op;
#define PARKED ((PyObject *)&gosched_op)
PyObject *join_new(PyObject *target);
JoinOp *join_take_all(G *target); /* g_lock */
void join_fire_all(M *m, JoinOp *first, bool next);
void join_drop_all(JoinOp *first);          /* nobody will ever run again */
bool join_void_all(M *m, JoinOp *first);    /* they never hear of it; false: they must */
int join_count(G *target, PyObject *wg);    /* tell `wg` of its end: 1; 0: it is dead; -1: error */
void join_counted(PyObject *op);            /* by due_later: it has ended; P in P_USER */
void join_leaked(G *target);                /* so has a leak: only those that count are told */
void wg_ended(PyObject *wg);                /* sema.c: one counted down; P in P_USER */
void wg_void(PyObject *wg);                 /* ... one has failed, and the program is about to */
int join_select(JoinOp *op, SelectOp *sel); /* put on the queue: 1; -1: target is dead already */
void join_unselect(JoinOp *op);
PyObject *ready_new(PyObject *value); /* an operation that gives this at once */
extern BareOp done_op;                /* ... and one that gives None */

/* OP_FIRED: taken off its queue and done, by a waker. OP_CLOSED: so by close(). OP_WOKEN: taken off,
 * to try again. */
enum { OP_NEW, OP_WAITING, OP_FIRED, OP_CLOSED, OP_WOKEN, OP_DONE };
extern _Thread_local G *block_g; /* stands for this thread in block() */
G *op_begin_slow(M *m, PyObject *op, int used);
PySendResult op_suspend(G *g, WaitReason why, PyObject **result);
bool op_raise_pending(G *g);
void op_raise_taken_back(G *g);
PySendResult op_yield(G *g, PyObject **result); /* done, but the slice is over: to be resumed */
bool op_slice_over_slow(M *m);
void op_error_used(PyObject *op, int state); /* that, or "has been awaited already" */
void op_error_other(PyObject *op);           /* "already awaited by another goroutine" */
PyObject *op_iternext(PyObject *self);       /* for any type with am_send */
void op_stop_with(M *m, PyObject *value);    /* raise StopIteration; eats value */
void op_drop_stop_value(M *m);
bool op_closed_by_hand(const G *waiter);
const char *op_state_text(int used);
PyObject *op_repr(const char *what, PyObject *of, int state); /* <recv of ..., waiting> */

bool context_over(G *g);  /* G_OVER is set: is it true? Only by the goroutine itself */
void context_raise(G *g); /* Cancelled, by the context that is over */

/* A shield puts the cancellation of a goroutine off, as it does that of a context. Not when all wait for ever or run()
 * leaves, not for one that run() has given up, and not for main when the program must end because another has failed. */
static inline bool g_shielded(G *g)
{
    return unlikely(atomic_load_explicit(&g->shields, memory_order_relaxed) > 0) &&
           g_state(g) != G_DEAD && !atomic_load_explicit(&sched.unshielded, memory_order_relaxed) &&
           !atomic_load(&sched.exiting) && (g != sched.main_g || atomic_load(&sched.fatal) == NULL);
}

static inline bool g_cancel_due(G *g)
{
    return (atomic_load_explicit(&g->state, memory_order_relaxed) & G_CANCEL) && !g_shielded(g);
}

static inline bool op_cancel_pending(G *g)
{
    uint32_t s = atomic_load_explicit(&g->state, memory_order_relaxed);
    return unlikely(s & (G_CANCEL | G_OVER)) &&
           (g_cancel_due(g) || ((s & G_OVER) && context_over(g)));
}

/* Who awaits; NULL with an exception set. */
static inline G *op_begin(M *m, PyObject *op, int used)
{
    if (likely(m != NULL && m->curg != NULL && used != OP_DONE &&
               !atomic_load_explicit(&sched.forked, memory_order_relaxed))) {
        return m->curg;
    }
    return op_begin_slow(m, op, used);
}

static inline PySendResult op_finish(PyObject *value, PyObject **result)
{
    *result = Py_NewRef(value);
    return PYGEN_RETURN;
}

/* What lets an operation go the short way: it is a goroutine's, its slice need not be looked at, nobody wants
 * it to stop. (In a forked child ops_left is 0.) */
static inline bool op_undisturbed(const M *m)
{
    return m != NULL && m->ops_left > 0 && m->curg != NULL &&
           !(atomic_load_explicit(&m->curg->state, memory_order_relaxed) & (G_CANCEL | G_OVER));
}

static inline bool op_raise_if_cancelled(G *g)
{
    return op_cancel_pending(g) && op_raise_pending(g);
}

/* An operation has been completed, but has nothing to lose. Who completed it may have done so because he, too, is in a
 * context that is over. A cancel() that came later waits for the next operation. */
static inline bool op_raise_if_over(G *g)
{
    if (likely(!(atomic_load_explicit(&g->state, memory_order_relaxed) & G_OVER)) ||
        !context_over(g)) {
        return false;
    }
    context_raise(g);
    return true;
}

/* What am_send tells, as tp_iternext tells it. From 3.12 on the interpreter calls only that (3.11 does while a
 * trace function is set), and wants a result other than None as a StopIteration. */
static inline PyObject *op_tell(M *m, PySendResult r, PyObject *value)
{
    if (unlikely(r != PYGEN_RETURN)) {
        return r == PYGEN_NEXT ? value : NULL;
    }
    if (value == Py_None) {
        compat_drop_none();
    }
    else {
        op_stop_with(m, value);
    }
    return NULL; /* without an exception: None */
}

/* An operation that completes at once is a scheduling point too: now and then see whether the slice is over. */
static inline bool op_slice_over(M *m)
{
    return m != NULL && unlikely(m->ops_left-- == 0) && op_slice_over_slow(m);
}

static inline Who who_g(G *g)
{
    return (Who){(uintptr_t)Py_NewRef(g)};
}

static inline PyObject *who_object(Who who)
{
    return (PyObject *)(who.word & ~(uintptr_t)3);
}

static inline bool who_is_select(Who who)
{
    return who.word & 1;
}

G *who_take_select(Who *who, PyObject *record, PyObject **drop);

/* The record has been taken off its queue: the goroutine to wake, NULL if its select is decided already.
 * `drop` is the caller's to drop, once he holds nothing. */
static inline G *who_take(Who *who, PyObject *record, PyObject **drop)
{
    if (unlikely(who_is_select(*who))) {
        return who_take_select(who, record, drop);
    }
    G *g = (G *)who->word;
    who->word = 0;
    *drop = NULL;
    return g;
}

#define WHO_CLEAR(who)                    \
    do {                                  \
        PyObject *who_ = who_object(who); \
        (who).word = 0;                   \
        Py_XDECREF(who_);                 \
    } while (0)

/* ---- chan.c select.c sema.c time.c context.c atomic.c block.c ----------------------------------- */

bool who_select_decided(Who who);
extern PyTypeObject SelectOp_Type;
PyObject *core_select(PyObject *mod, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
bool chan_module_init(PyObject *mod);
bool sema_module_init(PyObject *mod);
bool time_module_init(PyObject *mod);
bool context_module_init(PyObject *mod);
bool atomic_module_init(PyObject *mod);
bool pool_module_init(PyObject *mod);

/* Await `op` (eaten) on this thread, which is in no goroutine. NULL with an exception; TimeoutError at `until_ns`. */
PyObject *block_on(PyObject *op, int64_t until_ns, bool needs_runtime);
void block_interrupt_all(void); /* the runtime has ended */
void error_orphan(
    const char *what); /* this is the thread of a goroutine whose run() has returned */
extern PyMethodDef block_methods[];

void contexts_arm(M *m);            /* a run begins */
void bind_inherit(G *g, G *parent); /* a new goroutine in the contexts of the one that starts it */
void bind_drop_all(G *g);           /* it has ended; P in P_USER */
int bind_traverse(G *g, visitproc visit, void *arg);

/* ---- goroutine.c ------------------------------------------------------------------------------ */

/* Created where the caller stands. Eats coro; returns two references. Then it must be let in, or discarded. */
G *g_new(M *m, PyObject *coro, PyObject *name, int put_off, bool plain, bool late);
void g_abandon(M *m, G *g, PyObject *exc); /* its function goes on, nobody waits for it; eats exc */
bool g_let_in(G *g);                       /* into the run; false: that ends */
void g_let_in_main(G *g);
void g_discard(G *g); /* never started after all; eats both references */
void g_finish(M *m, G *g, GEnd end, PyObject *value); /* eats value; P in P_RUNNING, if any */
bool g_cancel(G *g, PyObject *reason);                /* from user code */
void g_drain(G *g);                                   /* main has ended; from user code */
bool g_make_coro(G *g);
GEnd g_become_plain(G *g, PyObject **value); /* eats value; END_NONE: done. P in P_USER */
PyObject *g_call_plain(G *g);
PyObject *block_plain(M *m, PyObject *iter); /* eats iter, an operation or a coroutine */
void g_drop_coro(G *g);
PyObject *g_result(G *g);
PyObject *g_name(G *g);
PyObject *g_created_at(G *g);
bool g_scanning(void); /* this thread looks at the frames of another goroutine */
extern _Thread_local G
    *scanning; /* what this thread looks at: a handler may look again meanwhile */
bool frame_is_ours(PyFrameObject *frame); /* it runs code of this package */
bool scan_begin(G *g); /* keep it from being run; false: it runs now, or it is dead */
void scan_end(G *g);
bool m_in_syscall(M *m); /* sched.lock: whether the call it is in blocks */
M *own_m(
    void); /* of this thread; NULL if it has none, or only finishes what run() did not wait for */
G **allgs_snapshot(Py_ssize_t *n); /* free it; each entry owned; NULL: no memory */
int64_t g_alive_locked(void);      /* sched.lock */
int64_t g_alive(void);             /* how many are alive; never too few */
void g_count_fold(M *m);           /* the M is about to be freed */
/* Start fn(*args), plain or async, as a goroutine made earlier: nobody is there to hear of an error. */
typedef struct {
    PyObject *fn, *args, *context; /* owned; context NULL: empty */
    PyCodeObject *site_code;       /* owned: where it was asked for */
    int32_t site_lasti;
    uint64_t parent_id;
} Callback;
bool callback_init(Callback *cb, PyObject *fn, PyObject *args); /* false: exception */
void callback_start(Callback *cb);
int callback_traverse(Callback *cb, visitproc visit, void *arg);
void callback_clear(Callback *cb);
bool claims_init(void);
PyObject *core_go(PyObject *mod, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *core_go_here(PyObject *mod, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *core_go_for(PyObject *mod, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* ---- run.c / stw.c / maxprocs.c / sysmon.c ---------------------------------------------------- */

int64_t check_dead(void);         /* nothing runs: is it for ever? Returns when to look again */
bool nobody_hurries(int64_t now); /* main has ended, and nobody is idle to hurry() the others */
bool hurry_self(M *m);            /* it must be cancelled now */
int64_t hurry(M *m);              /* by an M that is idle: see there. Returns when to look again */
bool user_leave(M *m);            /* out of user code; false: too late, it is an orphan */
void user_cancel(M *m); /* its own: Cancelled is raised there, soon, if it does not leave before */
void main_ended(GEnd end);    /* P in P_USER, as for all below */
void some_g_ended(void);      /* while sched.counting */
void run_fail(PyObject *exc); /* eats exc: run() shall raise it */
void run_module_init(void);
extern PyMethodDef run_methods[];

void procs_init(M *m0, int n);   /* before the first M */
int procs_change(int n);         /* detached, any thread; returns the former number */
void world_wait(uint32_t epoch); /* detached */

int maxprocs_default(void);
extern _Atomic uint32_t maxprocs_auto; /* follow affinity and cgroup quota while running */
extern PyMethodDef maxprocs_methods[];

bool sysmon_start(int read_fd, int write_fd); /* both ends of a non-blocking pipe */
void sysmon_stop(void);
void sysmon_poke(void); /* it has something to watch */
void signal_m0(void);
extern _Atomic int64_t sysmon_fixed_ns; /* for tests: see core_set_sysmon */

/* All Ms, m0 first; sched.lock. An M in the list is not freed, nor its thread state. */
static inline M *m_after(M *m)
{
    return m == NULL ? sched.m0 : m == sched.m0 ? sched.allm : m->all_next;
}

/* ---- gil.c ------------------------------------------------------------------------------------- */

bool gil_is_free(void);          /* sched.lock: no M has it, that is. Another thread may */
bool gil_is_unused(int64_t now); /* sysmon, at each look: and no M has used it of late */
void gil_quick(
    int threads); /* who keeps it lets others have it soon: so many threads may want it */
void gil_as_usual(void);
bool gil_is_quick(void);

/* ---- interrupt.c ------------------------------------------------------------------------------- */

#ifdef Py_GIL_DISABLED
extern PyTypeObject interrupt_type;
#endif
void interrupt_ready(
    M *m); /* its own, when it begins and at scheduling points: it can be interrupted, and is not */
void interrupt_end_m(M *m); /* its own: it ends */
bool interrupt_waits(M *m); /* it has been interrupted, and has not noticed yet */
bool interrupt_wanted(
    void); /* all that preempt_is_wanted(). False: it cannot be done, or an exception is set */
bool interrupt_lingers(void); /* there is something to clear */
void interrupt_clear(void);   /* nobody is wanted any more */
void interrupt_stop(void);    /* the run ends */

/* ---- stats.c ----------------------------------------------------------------------------------- */

void hist_count(Histogram h, int64_t ns, int n);
void latency_count(M *m, G *g);       /* P in P_RUNNING: it was stamped when it became runnable */
extern _Atomic int64_t mutex_wait_ns; /* what goroutines have waited for mutexes */
extern Histogram pauses_stopping, pauses_total; /* stw_lock to count */
bool m_in_user(M *m); /* sched.lock: it runs code of a goroutine, or is in a call that this made */
/* Of a P with this owner, read once: who holds it must agree. Go's numbers: 0 idle, 1 running, 2 in a call that
 * blocks, 3 stopped. */
int p_status(P *p, uint64_t owner);
extern PyMethodDef stats_methods[];

/* How long goroutines are runnable before they run is measured for one in eight: two looks at the clock cost as much
 * as a switch of goroutines does. Of those that run next, which is where switches are quickest, it is one in
 * sixty-four, which counts for eight. The stamp is in units of 16 ns, with these marks; 0: not this one. */
enum { SAMPLE = 8, STAMP_SHIFT = 4, STAMP_IS = 1, STAMP_COUNTS_MORE = 2, STAMP_MARKS = 3 };

static inline uint32_t stamp_now(void)
{
    return (uint32_t)(nanotime() >> STAMP_SHIFT) & ~(uint32_t)STAMP_MARKS;
}

static inline void g_stamp_ready(M *m, G *g, bool next)
{
    uint32_t stamp = 0;
    if (likely(m != NULL)) {
        if (next && unlikely(++m->nready_next % (SAMPLE * SAMPLE) == 0)) {
            stamp = stamp_now() | STAMP_IS | STAMP_COUNTS_MORE;
        }
        else if (!next && unlikely(++m->nready % SAMPLE == 0)) {
            stamp = stamp_now() | STAMP_IS;
        }
    }
    atomic_store_explicit(&g->stamp, stamp, memory_order_relaxed);
}

/* About to run. P in P_RUNNING. */
static inline void g_stamp_run(M *m, G *g)
{
    count_add(&m->p->nswitch, 1);
    if (unlikely(atomic_load_explicit(&g->stamp, memory_order_relaxed) != 0)) {
        latency_count(m, g);
    }
}

/* About to wait, for a dump that says how many minutes. A clock that sysmon keeps going costs nothing; but that
 * sleeps when all Ps are idle, so whoever gets one then looks at the clock too. */
static inline void g_stamp_wait(G *g)
{
    atomic_store_explicit(&g->stamp, atomic_load_explicit(&sched.clock_s, memory_order_relaxed),
                          memory_order_relaxed);
}

static inline void clock_tick(int64_t now_ns)
{
    uint32_t s = (uint32_t)(now_ns / NS_PER_S);
    if (unlikely(atomic_load_explicit(&sched.clock_s, memory_order_relaxed) != s)) {
        atomic_store_explicit(&sched.clock_s, s, memory_order_relaxed);
    }
}

/* ---- schedtrace.c ------------------------------------------------------------------------------ */

typedef struct { /* grows; for threads that are not attached to Python */
    char *data;
    size_t n, cap;
} Text;
void text_add(Text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_write(Text *t);        /* to standard error, and free it */
int64_t schedtrace(int64_t now); /* by sysmon; when to come again */
extern PyMethodDef schedtrace_methods[];

/* ---- quit.c ------------------------------------------------------------------------------------ */

struct sigaction;
bool quit_ignored_by_program(const struct sigaction *now); /* not by whoever started it */
void quit_watch(void);          /* from now on SIGQUIT is ours, if it is nobody's */
void quit_unwatch(void);        /* detached. Does not return if it has come */
int64_t quit_look(int64_t now); /* by sysmon; when to come again */

/* signals.c */
extern PyMethodDef signals_methods[];
void signals_forked(void); /* in the child */
int signals_serve(void);   /* what others have asked of this thread. -1: a handler has raised */

extern PyMethodDef leaks_methods[]; /* leaks.c */

/* ---- stall.c ----------------------------------------------------------------------------------- */

int64_t stall_look(int64_t now); /* by sysmon; when to come again */
void stall_stop(void);
extern PyMethodDef stall_methods[];

/* ---- dump.c ------------------------------------------------------------------------------------ */

bool dump_init(void);                /* when the module is made. False: exception */
void dump_below(PyCodeObject *code); /* what runs it is below every goroutine: run() */
extern PyMethodDef dump_methods[];

/* ---- preempt.c --------------------------------------------------------------------------------- */

bool preempt_ask(M *m);    /* by sysmon: stop its goroutine soon. False: it cannot be done */
void preempt_lost(M *m);   /* by sysmon: it has no P any more */
void preempt_forget(M *m); /* its goroutine has reached a scheduling point, or has been stopped */
void preempt_stop(void);   /* after sysmon_stop, detached */
int preempt_threads(void);
bool preempt_is_wanted(M *m);
bool preempt_wants_any(void);
void preempt_failed(M *m); /* it cannot be interrupted: sysmon need not wait */
bool preempt_claim(M *m);  /* its own, at a boundary: shall it be stopped here? If so, then ... */
bool preempt_park(M *m);   /* ... sleep until its turn. False: its goroutine must be cancelled */

extern PyMethodDef preempt_methods[];
extern _Atomic int32_t preempt_stopped; /* threads that are stopped now */
extern _Atomic bool preempt_off;        /* GOFERDEBUG=asyncpreemptoff=1 */

#endif
