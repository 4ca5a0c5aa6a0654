/* The execution trace: what happened to every goroutine, and when. docs/trace-format.md has the format.
 *
 * A trace point is one line in the code it watches. With tracing off it is one load of a word that nobody
 * writes and a branch that is not taken. */
#ifndef GOFER_TRACE_H
#define GOFER_TRACE_H

#include "runtime.h"

/* What an event is about. The numbers are in files: never change one. docs/trace-format.md has the fields. */
enum {
    EV_LOST = 1,
    EV_RUN_BEGIN,
    EV_RUN_END,
    EV_PROCS,
    EV_STATUS,
    EV_PROC_START,
    EV_PROC_STOP,
    EV_PROC_TAKEN,
    EV_STEAL,
    EV_BACK,
    EV_GO_STATUS,
    EV_GO_CREATE,
    EV_GO_START,
    EV_GO_STOP,
    EV_GO_BLOCK,
    EV_GO_UNBLOCK,
    EV_GO_NOTIFY,
    EV_GO_REQUEUE,
    EV_GO_END,
    EV_TIMER,
    EV_STW_BEGIN,
    EV_STW_END,
    EV_GC_BEGIN,
    EV_GC_END,
    EV_REGION_BEGIN,
    EV_REGION_END,
    EV_TASK_BEGIN,
    EV_TASK_END,
    EV_LOG,
    EV_SAMPLE,
    EV_NET_POLL,
    EV_NET_READY,
    EV_KINDS,
};

enum { STOP_GOSCHED, STOP_PREEMPTED };         /* of EV_GO_STOP */
enum { TRACED_PLAIN = 1, TRACED_RUNTIME = 2 }; /* flags of EV_GO_CREATE and EV_GO_STATUS */

void trace_on_run(M *m, bool begins);
void trace_on_procs(int n);
void trace_on_proc(M *m, int kind);
void trace_on_taken(const P *p, uint64_t owner);
void trace_on_steal(const P *victim, uint32_t n);
void trace_on_create(G *g);
void trace_on_start(G *g, bool inherit);
void trace_on_park(G *g, bool yields);
void trace_on_go(G *g, int kind);
void trace_on_end(G *g, GEnd how);
void trace_on_suspend(G *g);
void trace_on_timer(int kind, int64_t late_ns);
void trace_on_stw(bool begins);
void trace_on_net_ready(int fd, G *g);
void trace_on_net_poll(int woken);
void trace_forked(void); /* in the child */
void trace_init(void);
void tracewrite_init(void);
void tracewrite_forked(void);
extern PyMethodDef trace_methods[], tracewrite_methods[], traceread_methods[];

static inline bool tracing(void)
{
    return unlikely(atomic_load_explicit(&sched.trace_period, memory_order_relaxed) != 0);
}

static inline void trace_run_begin(M *m) /* P in P_RUNNING */
{
    if (tracing()) {
        trace_on_run(m, true);
    }
}

static inline void trace_run_end(M *m)
{
    if (tracing()) {
        trace_on_run(m, false);
    }
}

static inline void trace_procs(int n)
{
    if (tracing()) {
        trace_on_procs(n);
    }
}

/* Before another can have it, and after it is ours, held in P_RUNNING. */
static inline void trace_proc_stop(M *m)
{
    if (tracing()) {
        trace_on_proc(m, EV_PROC_STOP);
    }
}

static inline void trace_proc_start(M *m)
{
    if (tracing() && m->p != NULL) {
        trace_on_proc(m, EV_PROC_START);
    }
}

/* The M comes back to the runtime and finds its P gone. */
static inline void trace_back(M *m)
{
    if (tracing()) {
        trace_on_proc(m, EV_BACK);
    }
}

/* `p` has been taken from the M that `owner` names. */
static inline void trace_proc_taken(const P *p, uint64_t owner)
{
    if (tracing()) {
        trace_on_taken(p, owner);
    }
}

static inline void trace_steal(const P *victim, uint32_t n)
{
    if (tracing()) {
        trace_on_steal(victim, n);
    }
}

/* Before it is in a queue. */
static inline void trace_create(G *g)
{
    if (tracing()) {
        trace_on_create(g);
    }
}

static inline void trace_start(G *g, bool inherit)
{
    if (tracing()) {
        trace_on_start(g, inherit);
    }
}

/* A plain goroutine goes on; if the runtime ends, perhaps without having been woken. */
static inline void trace_resume(G *g)
{
    if (tracing() && g_state(g) != G_DEAD) {
        if (g_state(g) == G_WAITING) {
            trace_on_go(g, EV_GO_REQUEUE);
        }
        trace_on_start(g, false);
    }
}

/* The goroutine suspends in an operation: note where its code stands. In user code. */
static inline void trace_suspend(G *g)
{
    if (tracing()) {
        trace_on_suspend(g);
    }
}

/* Before the state word says so: a waker may be quick. If it turns out that it must not wait, trace_requeue. */
static inline void trace_park(G *g, bool yields)
{
    if (tracing()) {
        trace_on_park(g, yields);
    }
}

static inline void trace_requeue(G *g)
{
    if (tracing()) {
        trace_on_go(g, EV_GO_REQUEUE);
    }
}

/* Before it is in a queue. */
static inline void trace_unblock(G *g)
{
    if (tracing()) {
        trace_on_go(g, EV_GO_UNBLOCK);
    }
}

/* About to be woken while it runs. */
static inline void trace_notify(G *g)
{
    if (tracing()) {
        trace_on_go(g, EV_GO_NOTIFY);
    }
}

static inline void trace_end(G *g, GEnd how)
{
    if (tracing()) {
        trace_on_end(g, how);
    }
}

static inline void trace_timer(int kind, int64_t late_ns)
{
    if (tracing()) {
        trace_on_timer(kind, late_ns);
    }
}

/* `g` is about to be woken because of this descriptor; and all that one look at the poller woke. */
static inline void trace_net_ready(int fd, G *g)
{
    if (tracing()) {
        trace_on_net_ready(fd, g);
    }
}

static inline void trace_net_poll(int woken)
{
    if (tracing() && woken > 0) {
        trace_on_net_poll(woken);
    }
}

static inline void trace_stw(bool begins)
{
    if (tracing()) {
        trace_on_stw(begins);
    }
}

#endif
