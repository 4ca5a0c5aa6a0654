/* Channels, as chan.c, select.c and time.c see them. */
#ifndef GOFER_CHAN_H
#define GOFER_CHAN_H

#include "runtime.h"

typedef struct Chan Chan;
typedef enum {
    CHAN_SEND,
    CHAN_RECV,
    CHAN_RECV_OK,
    CHAN_NEXT,        /* of `async for` */
    CHAN_UNTIL_CLOSED /* of a channel that nobody sends on: that it is closed is the message */
} ChanOpKind;

/* The operation behind send() and recv(), and its wait record. */
typedef struct ChanOp {
    PyObject_HEAD
    Who who;
    Chan *ch;        /* owned; NULL when it is spare */
    PyObject *value; /* owned: to send, or received */
    struct ChanOp *next;
    union {
        struct ChanOp *prev; /* while on a queue */
        int64_t due_ns;      /* received from a timer: when it was due */
    };
    const G *waiter;       /* who awaits it: only ever compared */
    _Atomic uint8_t state; /* OP_...; OP_WAITING under the channel's lock means: on its queue */
    uint8_t kind;
} ChanOp;

struct Chan {
    PyObject_HEAD
    ObjLock lock; /* over all below; the atomic ones may be looked at without it */
    _Atomic uint8_t closed;
    bool timed; /* it is a TimeChan */
    bool grows; /* a send finds room always: `cap` is what there is for now, under the lock only */
    Py_ssize_t cap, head;
    _Atomic Py_ssize_t count;
    PyObject **buf;                 /* a ring; owned */
    _Atomic(ChanOp *) recvq, sendq; /* circular, oldest first; entries owned */
    PyObject *weakrefs;
};

/* The channel of a Timer or Ticker, after Go 1.23: it holds nothing. Whether a value is there depends on the
 * clock alone, so none can be stale, and a timer that nobody waits for is in no heap. */
typedef struct {
    Chan ch;
    Timer timer;
    int64_t when_ns, period_ns; /* period 0: once */
    bool armed;                 /* a value is there, or will be */
    bool in_heap; /* from timer_add until it is taken back, or timechan_due has the lock */
} TimeChan;

/* Whom to wake when the lock is released: the goroutine of a record that was taken off its queue. */
typedef struct {
    G *g;
    PyObject *op, *sel; /* to be dropped */
    bool dropped;       /* there is something for drop_now() */
} Wake;

extern PyTypeObject Chan_Type, SendChan_Type, RecvChan_Type, ChanOp_Type, TimeChan_Type;

/* All with the channel's lock held. */
bool chan_ready(const Chan *ch, int kind, int64_t *now_ns);
bool chan_try(Chan *ch, ChanOp *op, Wake *wake, int64_t *now_ns); /* done: op->state says how */
bool chan_enqueue(M *m, Chan *ch, ChanOp *op); /* false: no memory for the timer */
void chan_unlink(Chan *ch, ChanOp *op);        /* from its queue; the references are the caller's */
bool chan_hand_over(Chan *ch, int64_t due_ns, Wake *wake); /* false: nobody waits */
PyObject *chan_take_heap_ref(Chan *ch); /* the timer, now that nobody waits; to be dropped */

bool timechan_due_now(const TimeChan *tc, int64_t *now_ns);
int64_t timechan_take(TimeChan *tc, int64_t now_ns);
bool timechan_start(M *m, TimeChan *tc);
bool timechan_stop(TimeChan *tc); /* true: the heap's reference is the caller's */

/* No lock held, P in P_USER. */
void wake_now(M *m, Wake *wake);
bool chan_close(Chan *ch);       /* false: it was closed */
void chan_wake_closed(Chan *ch); /* somebody has set `closed`: wake all; NULL: none */
PyObject *chan_new(Py_ssize_t cap);
PyObject *chan_until_closed_op(Chan *ch);
PyObject *chan_next_op(Chan *ch); /* of `async for` */
PyObject *chan_send_op(Chan *ch, PyObject *value);
bool chan_put(Chan *ch, PyObject *value); /* at once, eats it; false: exception */
PyObject *chan_take_now(Chan *ch);        /* a value, if that is simple; NULL: no exception */
PyObject *recv_view(Chan *ch,
                    PyObject *owner); /* its RecvChan; owner NULL, or what shall live as long */
PyObject *chanop_value(ChanOp *op, bool *ok); /* of a finished one; NULL with an exception */

static inline ChanOp *queue_first(_Atomic(ChanOp *) const *queue)
{
    return atomic_load_explicit(queue, memory_order_relaxed);
}

static inline int op_state(const ChanOp *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire);
}

static inline void op_set_state(ChanOp *op, int state)
{
    atomic_store_explicit(&op->state, (uint8_t)state, memory_order_release);
}

#endif
