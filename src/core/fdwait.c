/* wait_readable(fd), wait_writable(fd): for descriptors that somebody else reads, writes and closes.
 *
 * He may close one at any time and the system give its number to another, so nothing is kept registered but
 * switched off (EPOLLONESHOT), and each wait asks anew. Level-triggered: a wait ends if the descriptor is ready
 * now, and all who wait for the same are woken together; each tries for himself. */
#include "net.h"
#include "trace.h"

#include <errno.h>

typedef struct WaitOp WaitOp;

struct WaitOp {
    PyObject_HEAD
    G *who;              /* owned, while it is on the list */
    const G *waiter;     /* who awaits it: only ever compared */
    WaitOp *prev, *next; /* in its entry's list; which owns it */
    int fd;
    _Atomic uint8_t state; /* OP_NEW, OP_WAITING, OP_FIRED, OP_CLOSED, OP_DONE */
    uint8_t side;
};

typedef struct {
    PollDesc *pd;           /* NULL: never used */
    WaitOp *waiting[SIDES]; /* NULL-terminated, youngest first */
    bool
        registered; /* by us; if the descriptor was closed it no longer is, and the kernel says so */
} Entry;

static Lock
    table_lock; /* over all below, and the lists; only short calls of the kernel are made under it */
static Entry *table; /* by descriptor */
static int table_size;

static PyTypeObject WaitOp_Type;

static const uint32_t side_events[SIDES] = {EPOLLIN | EPOLLRDHUP | EPOLLPRI, EPOLLOUT};

/* ---- the table; table_lock ---- */

static Entry *entry_get(int fd)
{
    if (fd >= table_size) {
        int size = table_size > 0 ? table_size : 64;
        while (size <= fd) {
            size *= 2;
        }
        Entry *more = realloc(table, (size_t)size * sizeof *more);
        if (more == NULL) {
            errno = ENOMEM;
            return NULL;
        }
        memset(more + table_size, 0, (size_t)(size - table_size) * sizeof *more);
        table = more;
        table_size = size;
    }
    Entry *e = &table[fd];
    if (e->pd == NULL || atomic_load(&e->pd->run) != netpoll_run()) {
        PollDesc *pd = e->pd != NULL ? e->pd : desc_new();
        if (pd == NULL) {
            return NULL;
        }
        atomic_store(&pd->run, netpoll_run());
        atomic_store(&pd->fdwait, fd + 1);
        e->pd = pd;
        e->registered = false;
    }
    return e;
}

static void list_add(Entry *e, WaitOp *op)
{
    WaitOp **head = &e->waiting[op->side];
    op->prev = NULL;
    op->next = *head;
    if (op->next != NULL) {
        op->next->prev = op;
    }
    *head = op;
}

static void list_remove(Entry *e, WaitOp *op)
{
    if (op->prev != NULL) {
        op->prev->next = op->next;
    }
    else {
        e->waiting[op->side] = op->next;
    }
    if (op->next != NULL) {
        op->next->prev = op->prev;
    }
    op->prev = op->next = NULL;
}

/* Tell the kernel what is waited for, once. False: errno. */
static bool arm(Entry *e, int fd)
{
    uint32_t events = EPOLLONESHOT;
    for (int side = 0; side < SIDES; side++) {
        events |= e->waiting[side] != NULL ? side_events[side] : 0;
    }
    if (e->registered) {
        if (netpoll_ctl(EPOLL_CTL_MOD, fd, events, e->pd)) {
            return true;
        }
        if (errno != ENOENT) { /* closed, and the number is another's now */
            return false;
        }
    }
    e->registered = netpoll_ctl(EPOLL_CTL_ADD, fd, events, e->pd);
    return e->registered;
}

/* Take all that wait on this side; chained by `next`, oldest first. */
static WaitOp *take_all(Entry *e, int side, int state, WaitOp *chain)
{
    WaitOp *op = e->waiting[side];
    e->waiting[side] = NULL;
    while (op != NULL) {
        WaitOp *next = op->next;
        op->prev = NULL;
        op->next = chain;
        atomic_store_explicit(&op->state, (uint8_t)state, memory_order_release);
        chain = op;
        op = next;
    }
    return chain;
}

/* ---- waking; no lock held ---- */

int fdwait_ready(M *m, PollDesc *pd, uint32_t seq, uint32_t events)
{
    WaitOp *chain = NULL;
    lock(&table_lock);
    int fd = atomic_load(&pd->fdwait) - 1;
    if (fd >= 0 && atomic_load(&pd->seq) == seq) {
        Entry *e = &table[fd];
        bool both = events & (EPOLLHUP | EPOLLERR);
        for (int side = SIDES - 1; side >= 0; side--) {
            if (both || (events & side_events[side])) {
                chain = take_all(e, side, OP_FIRED, chain);
            }
        }
        if (e->waiting[SIDE_READ] != NULL || e->waiting[SIDE_WRITE] != NULL) {
            if (!arm(e, fd)) { /* gone: whoever waits finds out when he tries */
                chain = take_all(e, SIDE_READ, OP_FIRED, chain);
                chain = take_all(e, SIDE_WRITE, OP_FIRED, chain);
            }
        }
    }
    unlock(&table_lock);
    int woken = 0;
    for (WaitOp *op = chain, *next; op != NULL; op = next, woken++) {
        next = op->next;
        netpoll_count(-1);
        trace_net_ready(op->fd, op->who);
        if (!goready(m, op->who, false)) {
            drop_later(m, (PyObject *)op->who);
        }
        op->who = NULL;
        drop_later(m, (PyObject *)op);
    }
    return woken;
}

/* From user code: P in P_USER. */
static void wake_chain(WaitOp *chain)
{
    for (WaitOp *op = chain, *next; op != NULL; op = next) {
        G *g = op->who;
        next = op->next;
        op->who = NULL;
        netpoll_count(-1);
        wake_from_user(tls_m, g, false);
        Py_DECREF(op);
    }
}

void fdwait_forget(int fd)
{
    lock(&table_lock);
    if (fd < table_size) {
        table[fd].registered = false;
    }
    unlock(&table_lock);
}

void fdwait_count(uint32_t waiting[SIDES])
{
    lock(&table_lock);
    for (int fd = 0; fd < table_size; fd++) {
        for (int side = 0; side < SIDES; side++) {
            for (const WaitOp *op = table[fd].waiting[side]; op != NULL; op = op->next) {
                waiting[side]++;
            }
        }
    }
    unlock(&table_lock);
}

void fdwait_discard(void)
{
    for (int fd = 0; fd < table_size; fd++) { /* nobody else is there any more */
        Entry *e = &table[fd];
        lock(&table_lock);
        /* Threads in block(), which are about to hear that the run is over, and what an aborted run left. */
        WaitOp *chain = take_all(e, SIDE_WRITE, OP_CLOSED, NULL);
        chain = take_all(e, SIDE_READ, OP_CLOSED, chain);
        PollDesc *pd = e->pd;
        e->pd = NULL;
        if (pd != NULL) {
            atomic_store(&pd->fdwait, 0);
        }
        unlock(&table_lock);
        if (pd != NULL) {
            desc_free(pd);
        }
        for (WaitOp *op = chain, *next; op != NULL; op = next) {
            next = op->next;
            netpoll_count(-1);
            Py_CLEAR(op->who);
            Py_DECREF(op);
        }
    }
}

/* ---- the operation ---- */

static PyObject *waitop_new(PyObject *arg, int side)
{
    int fd = PyObject_AsFileDescriptor(arg);
    WaitOp *op = fd >= 0 ? PyObject_New(WaitOp, &WaitOp_Type) : NULL;
    if (op == NULL) {
        return NULL;
    }
    live_add(tls_m, LIVE_OP, 1);
    op->who = NULL;
    op->waiter = NULL;
    op->prev = op->next = NULL;
    op->fd = fd;
    atomic_store_explicit(&op->state, OP_NEW, memory_order_relaxed);
    op->side = (uint8_t)side;
    if (sharing()) {
        compat_share_new((PyObject *)op);
    }
    return (PyObject *)op;
}

static PySendResult waitop_error(int error)
{
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return PYGEN_ERROR;
}

static PySendResult waitop_begin(G *g, WaitOp *op, PyObject **result)
{
    if (!netpoll_start()) {
        return waitop_error(errno);
    }
    int error = 0;
    Py_INCREF(op); /* the list's */
    Py_INCREF(g);
    lock(&table_lock);
    uint8_t unused = OP_NEW;
    bool ours = atomic_compare_exchange_strong(&op->state, &unused, OP_WAITING);
    Entry *e = ours ? entry_get(op->fd) : NULL;
    if (e != NULL) {
        op->waiter = g;
        op->who = g;
        list_add(e, op);
        netpoll_count(1);
        if (arm(e, op->fd)) {
            unlock(&table_lock);
            if (tls_m == NULL) {
                poller_look(TIME_NEVER); /* no M looks round because of us */
            }
            return op_suspend(g, WAIT_IO, result);
        }
        error = errno;
        list_remove(e, op);
        netpoll_count(-1);
    }
    else {
        error = errno;
    }
    op->who = ours ? NULL : op->who;
    unlock(&table_lock);
    Py_DECREF(g);
    Py_DECREF(op);
    if (!ours) {
        op_error_other((PyObject *)op);
        return PYGEN_ERROR;
    }
    atomic_store(&op->state, OP_DONE);
    if (error == EPERM) { /* an ordinary file: it never blocks */
        return op_finish(Py_None, result);
    }
    if (error == EEXIST) {
        PyErr_Format(PyExc_ValueError, "descriptor %d belongs to a Conn: use that", op->fd);
        return PYGEN_ERROR;
    }
    return waitop_error(error);
}

/* Take it off, unless somebody was faster: false. */
static bool waitop_take_back(WaitOp *op)
{
    lock(&table_lock);
    bool there = atomic_load(&op->state) == OP_WAITING;
    if (there) {
        list_remove(&table[op->fd], op);
        atomic_store(&op->state, OP_DONE);
    }
    unlock(&table_lock);
    if (there) {
        netpoll_count(-1);
        Py_CLEAR(op->who);
        Py_DECREF(op);
    }
    return there;
}

static PySendResult waitop_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    WaitOp *op = (WaitOp *)self;
    *result = NULL;
    int state = atomic_load_explicit(&op->state, memory_order_acquire);
    G *g = op_begin(tls_m, self, state);
    if (g == NULL) {
        return PYGEN_ERROR;
    }
    if (state == OP_NEW) {
        if (op_raise_if_cancelled(g)) {
            atomic_store(&op->state, OP_DONE);
            return PYGEN_ERROR;
        }
        return waitop_begin(g, op, result);
    }
    if (op->waiter != g) {
        op_error_other(self);
        return PYGEN_ERROR;
    }
    if (state == OP_WAITING) {
        if (!op_cancel_pending(g)) {
            return op_suspend(g, WAIT_IO, result); /* a wake-up meant for an earlier wait */
        }
        if (waitop_take_back(op)) {
            op_raise_taken_back(g);
            return PYGEN_ERROR;
        }
        state = atomic_load(&op->state);
    }
    atomic_store(&op->state, OP_DONE);
    if (state == OP_CLOSED && op_raise_if_cancelled(g)) {
        return PYGEN_ERROR;
    }
    if (state == OP_CLOSED) {
        PyErr_Format(hooks.Closed, "descriptor %d has been closed", op->fd);
        return PYGEN_ERROR;
    }
    return op_finish(Py_None, result);
}

static PyObject *waitop_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    waitop_take_back((WaitOp *)self);
    Py_RETURN_NONE;
}

static void waitop_dealloc(PyObject *self)
{
    Py_CLEAR(((WaitOp *)self)->who);
    live_add(tls_m, LIVE_OP, -1);
    PyObject_Free(self);
}

static PyObject *waitop_repr(PyObject *self)
{
    WaitOp *op = (WaitOp *)self;
    return PyUnicode_FromFormat("<gofer.net.%s(%d) %s>",
                                op->side == SIDE_READ ? "wait_readable" : "wait_writable", op->fd,
                                op_state_text(atomic_load(&op->state)));
}

static PyMethodDef waitop_methods[] = {{"close", waitop_close, METH_NOARGS, NULL}, {NULL}};
static PyAsyncMethods waitop_async = {.am_await = PyObject_SelfIter, .am_send = waitop_send};

static PyTypeObject WaitOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.WaitOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(WaitOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation that wait_readable() and wait_writable() return.",
    .tp_dealloc = waitop_dealloc,
    .tp_repr = waitop_repr,
    .tp_as_async = &waitop_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = op_iternext,
    .tp_methods = waitop_methods,
};

/* ---- functions ---- */

PyDoc_STRVAR(
    wait_readable_doc,
    "wait_readable(fd, /)\n--\n\n"
    "Operation: wait until a descriptor (an int, or an object with fileno()) can be read.\n"
    "For libraries with non-blocking descriptors of their own. They must not close one\n"
    "that is waited for without notify_closing().\n\n"
    ">>> await net.wait_readable(sock)\n>>> data = sock.recv(65536)");
PyDoc_STRVAR(wait_writable_doc, "wait_writable(fd, /)\n--\n\n"
                                "Operation: wait until a descriptor can be written.\n\n"
                                ">>> await net.wait_writable(sock)\n>>> n = sock.send(data)");
PyDoc_STRVAR(notify_closing_doc,
             "notify_closing(fd, /)\n--\n\n"
             "This descriptor is about to be closed: whoever waits for it gets ClosedError.\n\n"
             ">>> net.notify_closing(sock)\n>>> sock.close()");

static PyObject *wait_readable(PyObject *Py_UNUSED(mod), PyObject *fd)
{
    return waitop_new(fd, SIDE_READ);
}

static PyObject *wait_writable(PyObject *Py_UNUSED(mod), PyObject *fd)
{
    return waitop_new(fd, SIDE_WRITE);
}

static PyObject *notify_closing(PyObject *Py_UNUSED(mod), PyObject *arg)
{
    int fd = PyObject_AsFileDescriptor(arg);
    if (fd < 0) {
        return NULL;
    }
    WaitOp *chain = NULL;
    lock(&table_lock);
    if (fd < table_size) {
        chain = take_all(&table[fd], SIDE_WRITE, OP_CLOSED, NULL);
        chain = take_all(&table[fd], SIDE_READ, OP_CLOSED, chain);
    }
    unlock(&table_lock);
    wake_chain(chain);
    Py_RETURN_NONE;
}

static PyMethodDef fdwait_methods[] = {
    {"wait_readable", wait_readable, METH_O, wait_readable_doc},
    {"wait_writable", wait_writable, METH_O, wait_writable_doc},
    {"notify_closing", notify_closing, METH_O, notify_closing_doc},
    {NULL},
};

bool fdwait_module_init(PyObject *mod)
{
    return PyType_Ready(&WaitOp_Type) == 0 && PyModule_AddFunctions(mod, fdwait_methods) == 0;
}
