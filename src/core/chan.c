/* Channels, with Go's semantics: values in order, waiters in order, each value handed over directly.
 *
 * A goroutine that must wait puts its operation on one of the channel's two queues. Whoever does the other
 * half takes it off, under the channel's lock, and completes it there: the woken goroutine finds its
 * operation done and has nothing to try again. A cancelled goroutine takes its own operation off, under the same
 * lock, so each value is either received or still there.
 *
 * Ownership: a queue owns its operations and they own their goroutine (Who). The collector sees both, so a
 * goroutine that waits on a channel which nobody else can reach is found as a leak. */
#include "chan.h"

#define MAX_CAPACITY ((Py_ssize_t)1 << 48)

/* ---- the queues ---- */

static void queue_set(_Atomic(ChanOp *) *queue, ChanOp *first)
{
    atomic_store_explicit(queue, first, memory_order_relaxed);
}

static void queue_add(_Atomic(ChanOp *) *queue, ChanOp *op)
{
    ChanOp *first = queue_first(queue);
    if (first == NULL) {
        op->next = op->prev = op;
        queue_set(queue, op);
        return;
    }
    op->next = first;
    op->prev = first->prev;
    first->prev->next = op;
    first->prev = op;
}

static _Atomic(ChanOp *) *queue_of(Chan *ch, int kind)
{
    return kind == CHAN_SEND ? &ch->sendq : &ch->recvq;
}

void chan_unlink(Chan *ch, ChanOp *op)
{
    _Atomic(ChanOp *) *queue = queue_of(ch, op->kind);
    if (op->next == op) {
        queue_set(queue, NULL);
    }
    else {
        op->prev->next = op->next;
        op->next->prev = op->prev;
        if (queue_first(queue) == op) {
            queue_set(queue, op->next);
        }
    }
    op->next = op->prev = NULL;
}

/* Its select has been won elsewhere. */
static void lose(ChanOp *op, Wake *wake)
{
    M *m = tls_m;
    PyObject *sel = who_object(op->who);
    op->who = (Who){0};
    op_set_state(op, OP_NEW);
    drop_later(m, (PyObject *)op);
    drop_later(m, sel);
    wake->dropped = true;
}

/* Its goroutine was a leak, and has ended. */
static void bury(ChanOp *op, Wake *wake)
{
    M *m = tls_m;
    op_set_state(op, OP_DONE);
    drop_later(m, (PyObject *)op);
    drop_later(m, (PyObject *)wake->g);
    if (wake->sel != NULL) {
        drop_later(m, wake->sel);
    }
    *wake = (Wake){.dropped = true};
}

/* Take the oldest waiter off. The caller completes the operation and wakes its goroutine. */
static ChanOp *dequeue(Chan *ch, int kind, Wake *wake)
{
    for (ChanOp *op; (op = queue_first(queue_of(ch, kind))) != NULL;) {
        chan_unlink(ch, op);
        if (who_is_select(op->who) && who_select_decided(op->who)) {
            lose(op, wake);
            continue;
        }
        Who who = op->who; /* if its select is decided right now, `lose` needs it */
        wake->g = who_take(&op->who, (PyObject *)op, &wake->sel);
        if (unlikely(wake->g != NULL && g_state(wake->g) == G_DEAD)) { /* see op_closed_by_hand */
            bury(op, wake);
            continue;
        }
        if (wake->g != NULL) {
            wake->op = (PyObject *)op;
            return op;
        }
        op->who = who;
        lose(op, wake);
    }
    return NULL;
}

/* ---- send, receive, close, under the lock ---- */

static void put(Chan *ch, PyObject *value)
{
    Py_ssize_t count = atomic_load_explicit(&ch->count, memory_order_relaxed);
    Py_ssize_t at = ch->head + count;
    ch->buf[at >= ch->cap ? at - ch->cap : at] = value;
    atomic_store_explicit(&ch->count, count + 1, memory_order_relaxed);
}

static PyObject *take(Chan *ch)
{
    PyObject *value = ch->buf[ch->head];
    ch->head = ch->head + 1 == ch->cap ? 0 : ch->head + 1;
    atomic_store_explicit(&ch->count, atomic_load_explicit(&ch->count, memory_order_relaxed) - 1,
                          memory_order_relaxed);
    return value;
}

/* It is full: twice the room. The values that wrap around its end follow the others. */
static SLOW bool grow(Chan *ch)
{
    PyObject **buf = malloc((size_t)ch->cap * 2 * sizeof *buf);
    if (buf == NULL) {
        return false;
    }
    size_t first = (size_t)(ch->cap - ch->head);
    memcpy(buf, ch->buf + ch->head, first * sizeof *buf);
    memcpy(buf + first, ch->buf, (size_t)ch->head * sizeof *buf);
    free(ch->buf);
    ch->buf = buf;
    ch->head = 0;
    ch->cap *= 2;
    return true;
}

/* Eats *value if it succeeds. 1: done, 0: would block, -1: closed. */
static int try_send(Chan *ch, PyObject *value, Wake *wake)
{
    if (atomic_load_explicit(&ch->closed, memory_order_relaxed)) {
        return -1;
    }
    ChanOp *receiver = dequeue(ch, CHAN_RECV, wake);
    if (receiver != NULL) {
        receiver->value = value;
        op_set_state(receiver, OP_FIRED);
        return 1;
    }
    bool room = atomic_load_explicit(&ch->count, memory_order_relaxed) < ch->cap;
    if (room || (unlikely(ch->grows) && grow(ch))) {
        put(ch, value);
        return 1;
    }
    return 0;
}

/* The same; *value is the caller's, NULL from a timer, whose time is then in *due_ns. */
static int try_recv(Chan *ch, PyObject **value, int64_t *due_ns, Wake *wake, int64_t *now_ns)
{
    if (unlikely(ch->timed)) {
        TimeChan *tc = (TimeChan *)ch;
        if (!timechan_due_now(tc, now_ns)) {
            return 0;
        }
        *value = NULL;
        *due_ns = timechan_take(tc, *now_ns);
        return 1;
    }
    bool some = atomic_load_explicit(&ch->count, memory_order_relaxed) > 0;
    if (some) {
        *value = take(ch);
    }
    ChanOp *sender = dequeue(ch, CHAN_SEND, wake);
    if (sender != NULL) {
        if (some) {
            put(ch, sender->value);
        }
        else {
            *value = sender->value;
        }
        sender->value = NULL;
        op_set_state(sender, OP_FIRED);
        return 1;
    }
    return some ? 1 : atomic_load_explicit(&ch->closed, memory_order_relaxed) ? -1 : 0;
}

bool chan_try(Chan *ch, ChanOp *op, Wake *wake, int64_t *now_ns)
{
    int done;
    if (op->kind == CHAN_SEND) {
        done = try_send(ch, op->value, wake);
        if (done > 0) {
            op->value = NULL;
        }
    }
    else {
        done = try_recv(ch, &op->value, &op->due_ns, wake, now_ns);
    }
    if (done == 0) {
        return false;
    }
    op_set_state(op, done > 0 ? OP_FIRED : OP_CLOSED);
    return true;
}

/* A waiter whose select is decided counts, although it will turn out to be none: then chan_try says so. */
bool chan_ready(const Chan *ch, int kind, int64_t *now_ns)
{
    if (unlikely(ch->timed)) {
        return timechan_due_now((const TimeChan *)ch, now_ns);
    }
    bool closed = atomic_load_explicit(&ch->closed, memory_order_relaxed);
    Py_ssize_t count = atomic_load_explicit(&ch->count, memory_order_relaxed);
    return closed ||
           (kind == CHAN_SEND ? queue_first(&ch->recvq) != NULL || count < ch->cap || ch->grows
                              : queue_first(&ch->sendq) != NULL || count > 0);
}

/* op->who is set; the queue takes a reference of its own. */
bool chan_enqueue(M *m, Chan *ch, ChanOp *op)
{
    queue_add(queue_of(ch, op->kind), (ChanOp *)Py_NewRef(op));
    op_set_state(op, OP_WAITING);
    if (unlikely(ch->timed) && !timechan_start(m, (TimeChan *)ch)) {
        chan_unlink(ch, op);
        op_set_state(op, OP_DONE);
        Py_DECREF(op); /* not the last: it is being awaited */
        return false;
    }
    return true;
}

/* A timer is due: to the first who waits. */
bool chan_hand_over(Chan *ch, int64_t due_ns, Wake *wake)
{
    ChanOp *receiver = dequeue(ch, CHAN_RECV, wake);
    if (receiver == NULL) {
        return false;
    }
    receiver->due_ns = due_ns;
    op_set_state(receiver, OP_FIRED);
    return true;
}

PyObject *chan_take_heap_ref(Chan *ch)
{
    bool idle = ch->timed && queue_first(&ch->recvq) == NULL;
    return idle && timechan_stop((TimeChan *)ch) ? (PyObject *)ch : NULL;
}

void wake_now(M *m, Wake *wake)
{
    if (wake->g != NULL) {
        wake_from_user(m, wake->g, true);
        Py_XDECREF(wake->sel);
        Py_DECREF(wake->op);
    }
    if (unlikely(wake->dropped)) {
        drop_now(m);
    }
}

/* Everybody who waits is done, in one step with the closing. P first: see the order of locks. */
static bool close_and_wake(Chan *ch, bool again)
{
    M *m = tls_m;
    bool have_p = m != NULL && p_enter(m);
    M *with_p = have_p ? m : NULL;
    obj_lock(&ch->lock);
    bool first = !atomic_load_explicit(&ch->closed, memory_order_relaxed);
    atomic_store_explicit(&ch->closed, 1, memory_order_relaxed);
    for (int i = 0; (first || again) && i < 2; i++) {
        Wake wake = {0};
        for (ChanOp *op; (op = dequeue(ch, i == 0 ? CHAN_RECV : CHAN_SEND, &wake)) != NULL;) {
            op_set_state(op, OP_CLOSED);
            if (!goready(with_p, wake.g, false)) {
                drop_later(m, (PyObject *)wake.g);
            }
            if (wake.sel != NULL) {
                drop_later(m, wake.sel);
            }
            drop_later(m, wake.op);
        }
    }
    obj_unlock(&ch->lock);
    if (have_p) {
        p_leave(m);
    }
    drop_now(m);
    return first;
}

bool chan_close(Chan *ch)
{
    return close_and_wake(ch, false);
}

void chan_wake_closed(Chan *ch)
{
    if (ch != NULL) {
        close_and_wake(ch, true);
    }
}

/* ---- the operation ---- */

static SLOW ChanOp *chanop_alloc(M *m)
{
    ChanOp *op = object_new(m, FREE_CHAN, &ChanOp_Type);
    if (likely(op != NULL)) {
        op->who = (Who){0};
        op->ch = NULL;
        op->value = NULL;
        op->next = op->prev = NULL;
        op->waiter = NULL;
        compat_track((PyObject *)op);
    }
    return op;
}

static inline PyObject *chanop_new(Chan *ch, ChanOpKind kind, PyObject *value)
{
    M *m = tls_m;
    ChanOp *op = spare_take(m, FREE_CHAN);
    if (unlikely(op == NULL) && (op = chanop_alloc(m)) == NULL) {
        return NULL;
    }
    op->ch = (Chan *)Py_NewRef(ch);
    op->value = Py_XNewRef(value);
    atomic_store_explicit(&op->state, OP_NEW, memory_order_relaxed);
    op->kind = (uint8_t)kind;
    return (PyObject *)op;
}

/* It is done and will not be looked at again, if nobody but the await has it. */
static inline void chanop_spare(M *m, ChanOp *op)
{
    if (likely(spare_put(m, FREE_CHAN, (PyObject *)op))) {
        Chan *ch = op->ch;
        op->ch = NULL;
        op->waiter = NULL;
        Py_DECREF(ch);
    }
}

static void raise_closed(const char *text)
{
    PyErr_SetString(hooks.ChannelClosed, text);
}

/* The operation is done; what it got is the caller's. Closed and drained: None and not *ok. */
PyObject *chanop_value(ChanOp *op, bool *ok)
{
    bool closed = op_state(op) == OP_CLOSED;
    op_set_state(op, OP_DONE);
    *ok = !closed;
    if (op->kind == CHAN_SEND) {
        if (closed) {
            raise_closed("send on closed channel");
            return NULL;
        }
        Py_RETURN_NONE;
    }
    if (closed) {
        Py_RETURN_NONE;
    }
    PyObject *value = op->value;
    op->value = NULL;
    return value != NULL ? value : PyFloat_FromDouble((double)op->due_ns / 1e9);
}

static PySendResult chanop_finish(M *m, ChanOp *op, PyObject **result)
{
    bool ok;
    PyObject *value = chanop_value(op, &ok);
    if (unlikely(op->kind == CHAN_RECV_OK && value != NULL)) {
        PyObject *pair = PyTuple_Pack(2, value, ok ? Py_True : Py_False);
        Py_SETREF(value, pair);
    }
    else if (unlikely(!ok && value != NULL && op->kind != CHAN_UNTIL_CLOSED)) {
        Py_CLEAR(value);
        if (op->kind == CHAN_NEXT) {
            PyErr_SetNone(PyExc_StopAsyncIteration);
        }
        else {
            raise_closed("receive from closed channel");
        }
    }
    *result = value;
    if (unlikely(value == NULL)) {
        return PYGEN_ERROR;
    }
    chanop_spare(m, op);
    return PYGEN_RETURN;
}

/* Room or a value in the buffer, and nobody who waits: the value of the operation, which is done then. Under the
 * lock. NULL: not so simple. */
static inline PyObject *take_or_put(Chan *ch, ChanOp *op)
{
    Py_ssize_t count = atomic_load_explicit(&ch->count, memory_order_relaxed);
    if (op->kind == CHAN_SEND) {
        if (count >= ch->cap || queue_first(&ch->recvq) != NULL ||
            atomic_load_explicit(&ch->closed, memory_order_relaxed)) {
            return NULL;
        }
        put(ch, op->value);
        op->value = NULL;
        op_set_state(op, OP_DONE);
        return compat_none();
    }
    if (count == 0 || queue_first(&ch->sendq) != NULL || op->kind == CHAN_RECV_OK) {
        return NULL;
    }
    op_set_state(op, OP_DONE);
    return take(ch);
}

/* Under the lock, released here. */
static SLOW PySendResult chanop_begin(M *m, G *g, ChanOp *op, PyObject **result)
{
    Chan *ch = op->ch;
    int64_t now_ns = 0;
    Wake wake = {0};
    *result = NULL;
    if (unlikely(op_state(op) != OP_NEW)) { /* another goroutine has begun it at the same time */
        obj_unlock(&ch->lock);
        op_error_other((PyObject *)op);
        return PYGEN_ERROR;
    }
    op->waiter = g; /* before the state says that it is somebody's: another may look right now */
    if (!chan_try(ch, op, &wake, &now_ns)) {
        if (sharing()) {
            compat_share((PyObject *)op); /* others will see it from here on */
        }
        op->who = who_g(g);
        bool waits = chan_enqueue(m, ch, op);
        obj_unlock(&ch->lock);
        wake_now(m, &wake);
        if (waits) {
            return op_suspend(g, op->kind == CHAN_SEND ? WAIT_SEND : WAIT_RECV, result);
        }
        WHO_CLEAR(op->who);
        PyErr_NoMemory();
        return PYGEN_ERROR;
    }
    obj_unlock(&ch->lock);
    wake_now(m, &wake);
    if (op_slice_over(m)) {
        return op_yield(g, result);
    }
    return chanop_finish(m, op, result);
}

/* Take it off its queue, unless a waker was faster. The queue's references are dropped. */
static bool chanop_take_back(ChanOp *op)
{
    Chan *ch = op->ch;
    PyObject *timer = NULL;
    obj_lock(&ch->lock);
    bool ours = op_state(op) == OP_WAITING && !who_is_select(op->who);
    if (ours) {
        chan_unlink(ch, op);
        op_set_state(op, OP_DONE);
        timer = chan_take_heap_ref(ch);
    }
    obj_unlock(&ch->lock);
    if (ours) {
        WHO_CLEAR(op->who);
        Py_XDECREF(timer);
        Py_DECREF(op);
    }
    return ours;
}

/* Somebody else will let go of the value. */
static inline void share_value(ChanOp *op) /* the channel's lock: another may await it too */
{
    if (op->kind == CHAN_SEND && sharing() && op_state(op) == OP_NEW && op->value != NULL) {
        compat_share(op->value);
    }
}

static SLOW PySendResult chanop_step_slow(M *m, ChanOp *op, PyObject **result)
{
    int state = op_state(op);
    G *g = op_begin(m, (PyObject *)op, state);
    *result = NULL;
    if (unlikely(g == NULL)) {
        return PYGEN_ERROR;
    }
    if (state == OP_NEW) {
        if (unlikely(op_raise_if_cancelled(g))) {
            uint8_t unused = OP_NEW; /* if another has begun it, it is his */
            atomic_compare_exchange_strong(&op->state, &unused, OP_DONE);
            return PYGEN_ERROR;
        }
        obj_lock(&op->ch->lock);
        share_value(op);
        return chanop_begin(m, g, op, result);
    }
    if (unlikely(op->waiter != g)) {
        op_error_other((PyObject *)op);
        return PYGEN_ERROR;
    }
    if (unlikely(state == OP_WAITING)) {
        if (!op_cancel_pending(g)) { /* a wake-up meant for an earlier wait */
            return op_suspend(g, op->kind == CHAN_SEND ? WAIT_SEND : WAIT_RECV, result);
        }
        if (chanop_take_back(op)) {
            op_raise_taken_back(g);
            return PYGEN_ERROR;
        }
    }
    if (unlikely(op_state(op) == OP_CLOSED) && op->kind != CHAN_UNTIL_CLOSED &&
        op_raise_if_over(g)) {
        op_set_state(op, OP_DONE);
        return PYGEN_ERROR;
    }
    return chanop_finish(m, op, result); /* a cancellation waits for the next operation */
}

static inline PySendResult chanop_step(M *m, ChanOp *op, PyObject **result)
{
    if (unlikely(op_state(op) != OP_NEW || !op_undisturbed(m))) {
        return chanop_step_slow(m, op, result);
    }
    Chan *ch = op->ch;
    obj_lock(&ch->lock);
    share_value(op);
    if (unlikely(op_state(op) != OP_NEW || (*result = take_or_put(ch, op)) == NULL)) {
        return chanop_begin(m, m->curg, op, result);
    }
    obj_unlock(&ch->lock);
    m->ops_left--;
    chanop_spare(m, op);
    return PYGEN_RETURN;
}

static PySendResult chanop_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    return chanop_step(tls_m, (ChanOp *)self, result);
}

static PyObject *chanop_next(PyObject *self)
{
    M *m = tls_m;
    PyObject *value;
    PySendResult r = chanop_step(m, (ChanOp *)self, &value);
    return op_tell(m, r, value);
}

static PyObject *chanop_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    ChanOp *op = (ChanOp *)self;
    if (op_closed_by_hand(op->waiter)) {
        chanop_take_back(op);
    }
    Py_RETURN_NONE;
}

static PyMethodDef chanop_methods[] = {{"close", chanop_close, METH_NOARGS, NULL}, {NULL}};

static int chanop_traverse(PyObject *self, visitproc visit, void *arg)
{
    ChanOp *op = (ChanOp *)self;
    Py_VISIT(who_object(op->who));
    Py_VISIT(op->ch);
    Py_VISIT(op->value);
    return 0;
}

static int chanop_clear(PyObject *self)
{
    ChanOp *op = (ChanOp *)self;
    WHO_CLEAR(op->who);
    Py_CLEAR(op->value);
    return 0; /* the channel stays: it is looked at whenever the operation is; dealloc drops it */
}

static void chanop_free(PyObject *self)
{
    Py_XDECREF(((ChanOp *)self)->ch);
    object_free(tls_m, FREE_CHAN, self);
}

static void chanop_dealloc(PyObject *self)
{
    ChanOp *op = (ChanOp *)self;
    compat_untrack(self);
    if (likely(op->value == NULL && op->who.word == 0)) {
        chanop_free(self);
        return;
    }
    Py_TRASHCAN_BEGIN(self, chanop_dealloc);
    chanop_clear(self);
    chanop_free(self);
    Py_TRASHCAN_END
}

static PyObject *chanop_repr(PyObject *self)
{
    static const char *const names[] = {"send", "recv", "recv_ok", "__anext__", "recv"};
    ChanOp *op = (ChanOp *)self;
    if (op->ch == NULL) {
        return PyUnicode_FromFormat("<%s, done>", names[op->kind]);
    }
    return op_repr(names[op->kind], (PyObject *)op->ch, op_state(op));
}

static PyAsyncMethods chanop_async = {.am_send = chanop_send};

PyTypeObject ChanOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.ChanOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(ChanOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation that send() and recv() of a channel return.",
    .tp_dealloc = chanop_dealloc,
    .tp_traverse = chanop_traverse,
    .tp_clear = chanop_clear,
    .tp_repr = chanop_repr,
    .tp_as_async = &chanop_async,
    .tp_iternext = chanop_next,
    .tp_methods = chanop_methods,
};

/* ---- Chan and its two views: the same methods, through `chan_of` ---- */

typedef struct {
    PyObject_HEAD
    Chan *ch;        /* owned */
    PyObject *owner; /* owned: the context whose `done` it is */
} View;

static inline Chan *chan_of(PyObject *self)
{
    return likely(Py_IS_TYPE(self, &Chan_Type)) || Py_IS_TYPE(self, &TimeChan_Type)
               ? (Chan *)self
               : ((View *)self)->ch;
}

static PyObject *chan_send(PyObject *self, PyObject *value)
{
    return chanop_new(chan_of(self), CHAN_SEND, value);
}

static PyObject *chan_recv(PyObject *self, PyObject *Py_UNUSED(a))
{
    return chanop_new(chan_of(self), CHAN_RECV, NULL);
}

static PyObject *chan_recv_ok(PyObject *self, PyObject *Py_UNUSED(a))
{
    return chanop_new(chan_of(self), CHAN_RECV_OK, NULL);
}

PyObject *chan_until_closed_op(Chan *ch)
{
    return chanop_new(ch, CHAN_UNTIL_CLOSED, NULL);
}

PyObject *chan_next_op(Chan *ch)
{
    return chanop_new(ch, CHAN_NEXT, NULL);
}

PyObject *chan_send_op(Chan *ch, PyObject *value)
{
    return chanop_new(ch, CHAN_SEND, value);
}

PyObject *chan_take_now(Chan *ch)
{
    M *m = tls_m;
    if (unlikely(!op_undisturbed(m))) {
        return NULL;
    }
    obj_lock(&ch->lock);
    bool some = atomic_load_explicit(&ch->count, memory_order_relaxed) > 0;
    PyObject *value = some && queue_first(&ch->sendq) == NULL ? take(ch) : NULL;
    obj_unlock(&ch->lock);
    if (value != NULL) {
        m->ops_left--;
    }
    return value;
}

static PyObject *chan_anext(PyObject *self)
{
    return chanop_new(chan_of(self), CHAN_NEXT, NULL);
}

/* The failed attempt takes no lock. First whether it could be done, then whether it is closed: a closed channel
 * does not open again, so if it is open now it was so at the first look, and the answer was right then. */
static bool hopeless(Chan *ch, int kind)
{
    if (HAVE_GIL || ch->timed || ch->grows) {
        return false;
    }
    Py_ssize_t count = atomic_load(&ch->count);
    bool nobody = atomic_load(kind == CHAN_SEND ? &ch->recvq : &ch->sendq) == NULL;
    return nobody && count == (kind == CHAN_SEND ? ch->cap : 0) && !atomic_load(&ch->closed);
}

static PyObject *would_block(void)
{
    PyErr_SetNone(hooks.WouldBlock);
    return NULL;
}

/* `done` is what try_send or try_recv said: 0 or -1. */
static PyObject *nowait_failed(int done, const Wake *wake, const char *if_closed)
{
    if (unlikely(wake->dropped)) {
        drop_now(tls_m);
    }
    if (done == 0) {
        return would_block();
    }
    raise_closed(if_closed);
    return NULL;
}

bool chan_put(Chan *ch, PyObject *value)
{
    Wake wake = {0};
    if (sharing()) {
        compat_share(value);
    }
    obj_lock(&ch->lock);
    int done = try_send(ch, value, &wake);
    obj_unlock(&ch->lock);
    if (done > 0) {
        wake_now(tls_m, &wake);
        return true;
    }
    Py_DECREF(value);
    nowait_failed(done, &wake, "send on closed channel");
    return false;
}

static PyObject *chan_send_nowait(PyObject *self, PyObject *value)
{
    Chan *ch = chan_of(self);
    if (check_forked()) {
        return NULL;
    }
    if (hopeless(ch, CHAN_SEND)) {
        return would_block();
    }
    return chan_put(ch, Py_NewRef(value)) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *chan_recv_nowait(PyObject *self, PyObject *Py_UNUSED(a))
{
    Chan *ch = chan_of(self);
    Wake wake = {0};
    PyObject *value = NULL;
    int64_t now_ns = 0, due_ns = 0;
    if (check_forked()) {
        return NULL;
    }
    if (hopeless(ch, CHAN_RECV)) {
        return would_block();
    }
    obj_lock(&ch->lock);
    int done = try_recv(ch, &value, &due_ns, &wake, &now_ns);
    obj_unlock(&ch->lock);
    if (done > 0) {
        wake_now(tls_m, &wake);
        return value != NULL ? value : PyFloat_FromDouble((double)due_ns / 1e9);
    }
    return nowait_failed(done, &wake, "receive from closed channel");
}

static PyObject *chan_close_method(PyObject *self, PyObject *Py_UNUSED(a))
{
    if (check_forked()) {
        return NULL;
    }
    if (!chan_close(chan_of(self))) {
        raise_closed("close of closed channel");
        return NULL;
    }
    Py_RETURN_NONE;
}

static Py_ssize_t chan_len(PyObject *self)
{
    return atomic_load_explicit(&chan_of(self)->count, memory_order_relaxed);
}

/* An empty channel is not false. */
static int chan_bool(PyObject *Py_UNUSED(self))
{
    return 1;
}

static PyObject *chan_cap(PyObject *self, void *Py_UNUSED(c))
{
    const Chan *ch = chan_of(self);
    return PyLong_FromSsize_t(ch->grows ? PY_SSIZE_T_MAX : ch->cap);
}

static PyObject *chan_closed(PyObject *self, void *Py_UNUSED(c))
{
    /* acquire: who sees that a context's `done` is closed sees what was before that */
    return PyBool_FromLong(atomic_load_explicit(&chan_of(self)->closed, memory_order_acquire));
}

static PyObject *view_new(PyTypeObject *type, Chan *ch, PyObject *owner)
{
    View *view = PyObject_GC_New(View, type);
    if (view != NULL) {
        view->ch = (Chan *)Py_NewRef(ch);
        view->owner = Py_XNewRef(owner);
        PyObject_GC_Track(view);
    }
    return (PyObject *)view;
}

PyObject *recv_view(Chan *ch, PyObject *owner)
{
    return view_new(&RecvChan_Type, ch, owner);
}

static PyObject *chan_sender(PyObject *self, void *Py_UNUSED(c))
{
    return view_new(&SendChan_Type, chan_of(self), NULL);
}

static PyObject *chan_receiver(PyObject *self, void *Py_UNUSED(c))
{
    return view_new(&RecvChan_Type, chan_of(self), NULL);
}

/* A ring of 1 GiB: if that is not to be had, the number is at fault, not the state of the program. */
#define HUGE_CAPACITY (((Py_ssize_t)1 << 30) / (Py_ssize_t)sizeof(PyObject *))

static Chan *chan_alloc(PyTypeObject *type, Py_ssize_t cap)
{
    PyObject **buf = cap > 0 ? calloc((size_t)cap, sizeof *buf) : NULL;
    if (cap > 0 && buf == NULL) {
        if (cap < HUGE_CAPACITY) {
            return (Chan *)PyErr_NoMemory();
        }
        PyErr_Format(PyExc_ValueError, "a channel of capacity %zd needs more memory than there is",
                     cap);
        return NULL;
    }
    Chan *ch = (Chan *)type->tp_alloc(type, 0); /* all zero */
    if (ch == NULL) {
        free(buf);
        return NULL;
    }
    ch->buf = buf;
    ch->cap = cap;
    if (sharing()) {
        compat_share_new((PyObject *)ch);
    }
    return ch;
}

PyObject *chan_new(Py_ssize_t cap)
{
    return (PyObject *)chan_alloc(&Chan_Type, cap);
}

static PyObject *growing_chan(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    Chan *ch = chan_alloc(&Chan_Type, 4);
    if (ch != NULL) {
        ch->grows = true;
    }
    return (PyObject *)ch;
}

static PyObject *chan_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char capacity_name[] = "capacity", *names[] = {capacity_name, NULL};
    PyObject *capacity = NULL;
    Py_ssize_t cap = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Chan", names, &capacity)) {
        return NULL;
    }
    if (capacity != NULL) {
        if (!PyLong_Check(capacity) || PyBool_Check(capacity)) {
            PyErr_Format(PyExc_TypeError, "the capacity of a channel must be an int, not %R",
                         capacity);
            return NULL;
        }
        cap = PyLong_AsSsize_t(capacity);
        if ((cap == -1 && PyErr_Occurred()) || cap < 0 || cap > MAX_CAPACITY) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError,
                         "the capacity of a channel must be between 0 and 2**48, not %R", capacity);
            return NULL;
        }
    }
    return (PyObject *)chan_alloc(type, cap);
}

static int chan_traverse(PyObject *self, visitproc visit, void *arg)
{
    Chan *ch = (Chan *)self;
    for (Py_ssize_t i = 0; i < ch->count; i++) {
        Py_ssize_t at = ch->head + i;
        Py_VISIT(ch->buf[at >= ch->cap ? at - ch->cap : at]);
    }
    for (int i = 0; i < 2; i++) {
        ChanOp *first = queue_first(i == 0 ? &ch->recvq : &ch->sendq), *op = first;
        while (op != NULL) {
            Py_VISIT(op);
            op = op->next == first ? NULL : op->next;
        }
    }
    return 0;
}

static int chan_clear(PyObject *self)
{
    Chan *ch = (Chan *)self;
    for (;;) {
        PyObject *value = NULL;
        obj_lock(&ch->lock);
        ChanOp *op = queue_first(&ch->recvq);
        op = op != NULL ? op : queue_first(&ch->sendq);
        if (op != NULL) {
            chan_unlink(ch, op);
            op_set_state(op, OP_DONE);
        }
        else if (ch->count > 0) {
            value = take(ch);
        }
        obj_unlock(&ch->lock);
        if (op == NULL && value == NULL) {
            return 0;
        }
        if (op != NULL) {
            WHO_CLEAR(op->who);
            Py_DECREF(op);
        }
        Py_XDECREF(value);
    }
}

static void chan_dealloc(PyObject *self)
{
    Chan *ch = (Chan *)self;
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, chan_dealloc); /* a channel in a channel in a channel ... */
    if (ch->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    chan_clear(self);
    free(ch->buf);
    Py_TYPE(self)->tp_free(self);
    Py_TRASHCAN_END
}

static PyObject *chan_repr(PyObject *self)
{
    Chan *ch = chan_of(self);
    const char *name = strrchr(Py_TYPE(self)->tp_name, '.');
    if (ch->timed) {
        PyObject *state = PyObject_CallMethod((PyObject *)ch, "state", NULL);
        PyObject *r = state != NULL ? PyUnicode_FromFormat("<%s of a timer, %U, at %p>", name + 1,
                                                           state, (void *)ch)
                                    : NULL;
        Py_XDECREF(state);
        return r;
    }
    const char *closed = atomic_load_explicit(&ch->closed, memory_order_relaxed) ? " closed" : "";
    if (ch->grows) {
        return PyUnicode_FromFormat("<%s %zd values%s at %p>", name + 1, chan_len(self), closed,
                                    (void *)ch);
    }
    return PyUnicode_FromFormat("<%s %zd/%zd%s at %p>", name + 1, chan_len(self), ch->cap, closed,
                                (void *)ch);
}

#define SEND_METHODS                                                                               \
    {"send", chan_send, METH_O,                                                                    \
     "send(value, /)\n--\n\nOperation: send a value; ChannelClosed if the channel is or gets "     \
     "closed."                                                                                     \
     "\n\n>>> await ch.send(42)"},                                                                 \
        {"send_nowait", chan_send_nowait, METH_O,                                                  \
         "send_nowait(value, /)\n--\n\nSend at once, or raise WouldBlock.\n\n>>> "                 \
         "ch.send_nowait(42)"},                                                                    \
        {"close", chan_close_method, METH_NOARGS,                                                  \
         "close()\n--\n\nNo more values: who waits is told, who receives gets what is left. Once " \
         "only."                                                                                   \
         "\n\n>>> ch.close()"}
#define RECV_METHODS                                                                            \
    {"recv", chan_recv, METH_NOARGS,                                                            \
     "recv()\n--\n\nOperation: the next value; ChannelClosed when closed and drained."          \
     "\n\n>>> value = await ch.recv()"},                                                        \
        {"recv_ok", chan_recv_ok, METH_NOARGS,                                                  \
         "recv_ok()\n--\n\nOperation: (value, True), or (None, False) when closed and drained." \
         "\n\n>>> value, ok = await ch.recv_ok()"},                                             \
        {"recv_nowait", chan_recv_nowait, METH_NOARGS,                                          \
         "recv_nowait()\n--\n\nReceive at once, or raise WouldBlock.\n\n>>> value = "           \
         "ch.recv_nowait()"}
#define SUBSCRIPT \
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Chan[T]: typing only."}
#define LOOK                                                                  \
    {"cap", chan_cap, NULL, "How many values it buffers.", NULL},             \
    {                                                                         \
        "closed", chan_closed, NULL, "Whether close() has been called.", NULL \
    }

static PyMethodDef chan_methods[] = {SEND_METHODS, RECV_METHODS, SUBSCRIPT, {NULL}};
static PyMethodDef send_methods[] = {SEND_METHODS, SUBSCRIPT, {NULL}};
static PyMethodDef recv_methods[] = {RECV_METHODS, SUBSCRIPT, {NULL}};
static PyGetSetDef chan_getset[] = {
    LOOK,
    {"sender", chan_sender, NULL, "This channel, to send only: a SendChan.", NULL},
    {"receiver", chan_receiver, NULL, "This channel, to receive only: a RecvChan.", NULL},
    {NULL}};
static PyGetSetDef view_getset[] = {LOOK, {NULL}};
static PySequenceMethods chan_sequence = {.sq_length = chan_len};
static PyNumberMethods chan_number = {.nb_bool = chan_bool};
static PyAsyncMethods recv_async = {.am_aiter = PyObject_SelfIter, .am_anext = chan_anext};
PyDoc_STRVAR(
    chan_doc,
    "Chan(capacity=0)\n--\n\nA channel: goroutines send values into it and receive them, in "
    "order.\n\nWithout capacity a send waits for its receiver. Any value may be sent, None "
    "too.\n\n>>> ch = Chan[int](10)\n>>> await ch.send(1)\n>>> await ch.send(2)\n>>> ch.close()\n"
    ">>> async for value in ch:\n...     print(value)\n1\n2");

PyTypeObject Chan_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.Chan",
    .tp_basicsize = sizeof(Chan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = chan_doc,
    .tp_new = chan_tp_new,
    .tp_dealloc = chan_dealloc,
    .tp_traverse = chan_traverse,
    .tp_clear = chan_clear,
    .tp_repr = chan_repr,
    .tp_weaklistoffset = offsetof(Chan, weakrefs),
    .tp_as_sequence = &chan_sequence,
    .tp_as_number = &chan_number,
    .tp_as_async = &recv_async,
    .tp_methods = chan_methods,
    .tp_getset = chan_getset,
};

/* Used through its RecvChan only. Whoever waits keeps it alive, and the heap while somebody does. */
PyTypeObject TimeChan_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.TimeChan",
    .tp_basicsize = sizeof(TimeChan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = chan_dealloc,
    .tp_traverse = chan_traverse,
    .tp_clear = chan_clear,
    .tp_repr = chan_repr,
    .tp_weaklistoffset = offsetof(Chan, weakrefs),
};

static int view_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((View *)self)->ch);
    Py_VISIT(((View *)self)->owner);
    return 0;
}

static void view_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, view_dealloc);
    Py_CLEAR(((View *)self)->ch);
    Py_CLEAR(((View *)self)->owner);
    PyObject_GC_Del(self);
    Py_TRASHCAN_END
}

static PyObject *view_compare(PyObject *self, PyObject *other, int op)
{
    if ((op != Py_EQ && op != Py_NE) || !Py_IS_TYPE(other, Py_TYPE(self))) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return PyBool_FromLong((((View *)self)->ch == ((View *)other)->ch) == (op == Py_EQ));
}

static Py_hash_t view_hash(PyObject *self)
{
    return (Py_hash_t)((uintptr_t)((View *)self)->ch >> 4);
}

/* What the other direction has is missed with a reason. */
static PyObject *view_getattro(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return value;
    }
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    bool sends = Py_IS_TYPE(self, &SendChan_Type);
    const char *const *missing = sends
                                     ? (const char *const[]){"recv", "recv_ok", "recv_nowait", NULL}
                                     : (const char *const[]){"send", "send_nowait", "close", NULL};
    for (; text != NULL && *missing != NULL; missing++) {
        if (strcmp(text, *missing) == 0) {
            PyErr_Format(PyExc_AttributeError, "%s-only: %s is for the other end of the channel",
                         sends ? "SendChan is send" : "RecvChan is receive", text);
        }
    }
    return NULL;
}

PyTypeObject SendChan_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.SendChan",
    .tp_basicsize = sizeof(View),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The sending end of a channel: ch.sender.\n\n>>> await ch.sender.send(1)",
    .tp_dealloc = view_dealloc,
    .tp_traverse = view_traverse,
    .tp_repr = chan_repr,
    .tp_richcompare = view_compare,
    .tp_hash = view_hash,
    .tp_getattro = view_getattro,
    .tp_as_sequence = &chan_sequence,
    .tp_as_number = &chan_number,
    .tp_methods = send_methods,
    .tp_getset = view_getset,
};

PyTypeObject RecvChan_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.RecvChan",
    .tp_basicsize = sizeof(View),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The receiving end of a channel: ch.receiver, timer.c, ctx.done.\n\n"
              ">>> value = await ch.receiver.recv()",
    .tp_dealloc = view_dealloc,
    .tp_traverse = view_traverse,
    .tp_repr = chan_repr,
    .tp_richcompare = view_compare,
    .tp_hash = view_hash,
    .tp_getattro = view_getattro,
    .tp_as_sequence = &chan_sequence,
    .tp_as_number = &chan_number,
    .tp_as_async = &recv_async,
    .tp_methods = recv_methods,
    .tp_getset = view_getset,
};

static PyMethodDef chan_functions[] = {
    {"growing_chan", growing_chan, METH_NOARGS, NULL}, /* sends to it never wait */
    {NULL},
};

bool chan_module_init(PyObject *mod)
{
    if (PyModule_AddFunctions(mod, chan_functions) < 0) {
        return false;
    }
    PyTypeObject *hidden[] = {&ChanOp_Type, &SelectOp_Type};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        if (PyType_Ready(hidden[i]) < 0) {
            return false;
        }
    }
    return PyModule_AddType(mod, &Chan_Type) == 0 && PyModule_AddType(mod, &SendChan_Type) == 0 &&
           PyModule_AddType(mod, &RecvChan_Type) == 0;
}
