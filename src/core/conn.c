/* Descriptors that goroutines read and write: Conn, Listener, PacketConn.
 *
 * An operation tries first, on its own M, and waits for the poller's next edge only if the kernel says EAGAIN.
 * Each direction of a descriptor (a Side) serves one operation at a time, its holder; others queue, first come,
 * first served, so that what several goroutines write stays whole and what they read is cut at their calls.
 *
 *   IO_NEW     not awaited yet
 *   IO_QUEUED  waits for its turn, on side->queue, which owns it; `who` is owned by the record
 *   IO_TURN    it is the holder, and it, or the M that will resume it, is about to try
 *   IO_PARKED  the holder waits for an edge: its G is in the word of the PollDesc
 *   IO_FAILED  taken off by close() or a deadline: `error` says which. It is not the holder any more
 *   IO_YIELDED done, `value` is there, but its slice was over
 *   IO_DONE
 *
 * WHO MAY DO WHAT. All but the words are under conn->lock. The poller does not take that lock: it takes the G out
 * of the word and wakes it; the operation, still the holder, tries again. close() and deadlines take the G out
 * with a CAS, under the lock, and whoever loses that race does nothing: the operation finds out when it tries.
 *
 * CLOSING. The number of a descriptor may be another file's as soon as it is closed. So close() marks the Conn,
 * takes off all that wait, and closes it if nobody is between two waits (a holder in IO_TURN, perhaps in a call of
 * the kernel right now); else that one does when it leaves.
 *
 * NO READ TOO MANY. If a TCP socket gave less than was asked for, it was empty then, and whatever comes later is
 * an edge. So the next read waits for that edge without asking the kernel first (`drained`), unless the poller has
 * ever seen more than data on it (PollDesc.rough): the end of the stream may have come along with its last bytes.
 *
 * With the GIL it is kept during these calls, which do not block and mostly take less time than giving it up and
 * taking it again; except to copy a lot. Ordinary files do block, and their callers detach. */
#include "net.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    SCRATCH = 65536,     /* what an M reads into: bytes objects are then made to measure */
    READ_MAX = 1 << 20,  /* read(n) asks the kernel for no more at a time, whatever n is */
    FILL = 16384,        /* read_until() asks for at least so much */
    IOV = 64,            /* pieces written at a time */
    GIL_BYTES = 1 << 17, /* copying more takes longer than giving up the GIL and taking it again */
};
#define BACKOFF_MIN_NS 5000000LL /* after EMFILE, as in Go's net/http */
#define BACKOFF_MAX_NS NS_PER_S

typedef enum {
    IO_READ,
    IO_READ_INTO,
    IO_READ_EXACTLY,
    IO_READ_UNTIL,
    IO_RECV_FROM,
    IO_ACCEPT,
    IO_NEXT, /* accept, of `async for` */
    IO_WRITE,
    IO_SEND_TO,
    IO_CONNECT,
} IoKind;

enum { IO_NEW, IO_QUEUED, IO_TURN, IO_PARKED, IO_FAILED, IO_YIELDED, IO_DONE };
typedef enum { ERR_NONE, ERR_CLOSED, ERR_TIMEOUT } IoError;

typedef struct IoOp IoOp;

typedef struct {
    IoOp *holder; /* borrowed: whoever awaits it holds it, and its dealloc lets go of the turn */
    IoOp *queue;  /* circular, oldest first; entries owned */
    int64_t deadline_ns; /* TIME_NEVER: none */
    int64_t backoff_ns;  /* accept: how long it waited for a free descriptor the last time */
    Timer
        timer; /* in a heap, which then owns the Conn, while the holder waits and has a deadline */
    bool armed;
    bool drained; /* the holder's: see above */
} Side;

typedef struct {
    PyObject_HEAD
    ObjLock lock;
    int fd; /* -1: closed */
    _Atomic uint8_t closing;
    bool is_socket, is_tcp;
    bool is_file;           /* an ordinary file: its calls may block, whatever we say */
    bool bulk;              /* the reader's: the last read filled the scratch buffer */
    int8_t family;          /* AF_... of a socket */
    _Atomic(PollDesc *) pd; /* NULL: never had to wait. Lock to write */
    Side side[SIDES];
    char *
        buf; /* the reader's: what was read from the kernel and not yet by anybody, buf[start..end] */
    size_t start, end, cap;
    PyObject *local, *remote; /* addresses: NULL while nobody has asked. Owned */
    socklen_t peer_len;
    char peer[sizeof(
        struct sockaddr_in6)]; /* of an accepted one, so that it is known when the peer is gone */
    PyObject *weakrefs;
} Conn;

struct IoOp {
    PyObject_HEAD
    G *who;            /* owned: IO_QUEUED, or in the hands of whoever wakes it from IO_FAILED */
    Conn *conn;        /* owned */
    IoOp *prev, *next; /* in the queue, or in a chain of failed ones */
    const G *waiter;   /* who awaits it: only ever compared */
    PyObject *arg;     /* owned: bytes to write, separator, address; or a tuple of such */
    PyObject *value;   /* owned: IO_YIELDED */
    Py_buffer *views;  /* nviews of them, PyMem_Malloc: what is written or read into, if no bytes */
    char *at;          /* what is left to write, or to read into, if it is one piece */
    size_t n;          /* how much: left to write, to read at most or exactly, limit */
    size_t scanned;    /* read_until: so much of the buffer has no separator */
    int64_t retry_ns;  /* accept: try again then although there was no edge; 0: no */
    _Atomic uint8_t state;
    uint8_t kind, error;
    uint16_t nviews;
    Address *to; /* PyMem_Malloc: send_to */
    socklen_t to_len;
};

static PyTypeObject Descriptor_Type, Conn_Type, Listener_Type, PacketConn_Type, IoOp_Type;

static int io_side(const IoOp *op)
{
    return op->kind >= IO_WRITE ? SIDE_WRITE : SIDE_READ;
}

static int io_state(const IoOp *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire);
}

static void io_set_state(IoOp *op, int state)
{
    atomic_store_explicit(&op->state, (uint8_t)state, memory_order_release);
}

/* ---- the queue of a side; conn->lock ---- */

static void enqueue(Side *s, IoOp *op)
{
    IoOp *first = s->queue;
    Py_INCREF(op);
    if (first == NULL) {
        op->next = op->prev = s->queue = op;
        return;
    }
    op->next = first;
    op->prev = first->prev;
    first->prev->next = op;
    first->prev = op;
}

static void dequeue(Side *s, IoOp *op) /* its reference is the caller's */
{
    if (op->next == op) {
        s->queue = NULL;
    }
    else {
        op->prev->next = op->next;
        op->next->prev = op->prev;
        if (s->queue == op) {
            s->queue = op->next;
        }
    }
    op->next = op->prev = NULL;
}

static IoError side_error(const Conn *c, const Side *s)
{
    if (unlikely(atomic_load_explicit(&c->closing, memory_order_relaxed))) {
        return ERR_CLOSED;
    }
    return unlikely(s->deadline_ns != TIME_NEVER) && nanotime() >= s->deadline_ns ? ERR_TIMEOUT
                                                                                  : ERR_NONE;
}

/* ---- timers; conn->lock ---- */

/* The holder is about to wait. The heap's reference is one more than the caller's. */
static void timer_arm(M *m, Conn *c, Side *s, int64_t when_ns)
{
    if (likely(when_ns == TIME_NEVER) || sched.allp[0] == NULL) {
        return;
    }
    s->timer.when_ns = when_ns;
    Py_INCREF(c);
    s->armed = timer_add(m, &s->timer);
    if (!s->armed) {
        Py_FatalError("gofer: out of memory for a timer");
    }
}

/* True: the heap's reference is the caller's to drop; it is not the last. If the timer is being served right now,
 * conn_due finds nobody late. */
static bool timer_disarm(Side *s)
{
    bool was = s->armed;
    s->armed = false;
    return unlikely(was) && timer_del(&s->timer);
}

static int64_t wake_time(const Side *s)
{
    int64_t retry = s->holder->retry_ns;
    return retry != 0 && retry < s->deadline_ns ? retry : s->deadline_ns;
}

/* ---- taking off those who wait; conn->lock ---- */

/* The holder, if it is parked, is no longer in its word, and the reference that stood there is returned. NULL:
 * it is not, or the poller has just woken it. */
static G *unpark(Conn *c, int side)
{
    IoOp *op = c->side[side].holder;
    if (op == NULL || io_state(op) != IO_PARKED) {
        return NULL;
    }
    uintptr_t word = (uintptr_t)op->waiter;
    if (!atomic_compare_exchange_strong(&c->pd->word[side], &word, POLL_NIL)) {
        return NULL;
    }
    netpoll_count(-1);
    return (G *)(uintptr_t)op->waiter;
}

/* Everybody who waits on this side, chained. `heap_ref`: the Conn is to be dropped once. */
static IoOp *fail_all(Conn *c, int side, IoError error, IoOp *chain, int *heap_refs)
{
    Side *s = &c->side[side];
    while (s->queue != NULL) { /* youngest first: the chain is turned round */
        IoOp *op = s->queue->prev;
        dequeue(s, op);
        op->error = (uint8_t)error;
        op->next = chain;
        chain = op;
        io_set_state(op, IO_FAILED);
    }
    IoOp *op = s->holder;
    G *g = unpark(c, side);
    if (g != NULL) {
        s->holder = NULL;
        *heap_refs += timer_disarm(s);
        op->who = g;
        op->error = (uint8_t)error;
        op->next = chain;
        chain = (IoOp *)Py_NewRef(
            op); /* its frame holds it: it is suspended, and its G is in our hands */
        io_set_state(op, IO_FAILED);
    }
    return chain;
}

/* P in P_USER, no lock held. */
static void wake_chain(M *m, IoOp *chain)
{
    while (chain != NULL) {
        IoOp *op = chain;
        G *g = op->who;
        chain = op->next;
        op->who = NULL;
        wake_from_user(m, g, false);
        Py_DECREF(op);
    }
}

static void drop_refs(Conn *c, int n)
{
    for (; n > 0; n--) {
        Py_DECREF(c);
    }
}

/* A deadline has passed, or accept() shall try again. */
void conn_due(M *m, PyObject *owner, int64_t now_ns)
{
    Conn *c = (Conn *)owner;
    IoOp *chain = NULL;
    G *again = NULL;
    int refs = 1; /* the one that the popped timer held */
    obj_lock(&c->lock);
    for (int side = 0; side < SIDES; side++) {
        Side *s = &c->side[side];
        if (s->deadline_ns <= now_ns) {
            chain = fail_all(c, side, ERR_TIMEOUT, chain, &refs);
        }
        else if (s->holder != NULL && s->holder->retry_ns != 0 && s->holder->retry_ns <= now_ns &&
                 (again = unpark(c, side)) != NULL) {
            refs += timer_disarm(s);
            io_set_state(s->holder, IO_TURN);
        }
    }
    obj_unlock(&c->lock);
    if (again != NULL && !goready(m, again, false)) {
        drop_later(m, (PyObject *)again);
    }
    while (chain != NULL) {
        IoOp *op = chain;
        chain = op->next;
        G *g = op->who;
        op->who = NULL;
        if (!goready(m, g, false)) {
            drop_later(m, (PyObject *)g);
        }
        drop_later(m, (PyObject *)op);
    }
    for (; refs > 0; refs--) {
        drop_later(m, owner);
    }
}

void conn_dropped(PyObject *owner)
{
    Conn *c = (Conn *)owner;
    obj_lock(&c->lock);
    c->side[SIDE_READ].armed = c->side[SIDE_WRITE].armed = false;
    obj_unlock(&c->lock);
}

/* ---- the turn ---- */

/* conn->lock: if it is closing and nobody is between two waits, the descriptor is the caller's to close. */
static int take_fd(Conn *c, PollDesc **pd)
{
    *pd = NULL;
    if (likely(!atomic_load_explicit(&c->closing, memory_order_relaxed)) || c->fd < 0 ||
        c->side[SIDE_READ].holder != NULL || c->side[SIDE_WRITE].holder != NULL) {
        return -1;
    }
    int fd = c->fd;
    c->fd = -1;
    *pd = c->pd;
    c->pd = NULL;
    return fd;
}

/* Not before desc_free: the number may be somebody's at once. */
static void close_fd(int fd, PollDesc *pd)
{
    if (pd != NULL) {
        desc_free(pd);
    }
    if (fd >= 0) {
        close(fd); /* never blocks: SO_LINGER is not ours. Its errors come too late for anybody */
    }
}

/* The holder is done: the next one's turn. P in P_USER; an exception may be set. */
static void release_turn(M *m, Conn *c, int side)
{
    Side *s = &c->side[side];
    PollDesc *pd;
    obj_lock(&c->lock);
    IoOp *next = s->queue;
    G *g = NULL;
    s->holder = next;
    if (unlikely(next != NULL)) {
        dequeue(s, next);
        g = next->who;
        next->who = NULL;
        io_set_state(next, IO_TURN);
    }
    int fd = take_fd(c, &pd);
    obj_unlock(&c->lock);
    if (unlikely(fd >= 0)) {
        close_fd(fd, pd);
    }
    if (unlikely(g != NULL)) {
        PyObject *exc = compat_take_exception();
        wake_from_user(m, g, false);
        Py_DECREF(next);
        if (exc != NULL) {
            compat_raise(exc);
        }
    }
}

static void raise_error(const IoOp *op, IoError error)
{
    if (error == ERR_TIMEOUT) {
        PyErr_SetString(PyExc_TimeoutError, "i/o timeout: the deadline has passed");
    }
    else if (op->kind == IO_NEXT) {
        PyErr_SetNone(PyExc_StopAsyncIteration);
    }
    else {
        PyErr_Format(hooks.Closed, "use of closed %s",
                     PyObject_TypeCheck(op->conn, &Listener_Type) ? "listener" : "connection");
    }
}

/* ---- calls of the kernel; by the holder, without the lock ---- */

/* An edge that was noted is used up by what we do now. */
static void use_edge(Conn *c, int side)
{
    if (c->pd != NULL &&
        atomic_load_explicit(&c->pd->word[side], memory_order_acquire) == POLL_READY) {
        atomic_store(&c->pd->word[side],
                     POLL_NIL); /* before the call: what comes later is a new edge */
    }
}

/* Whoever waits for a disk is detached from Python, so that sysmon finds it blocked and takes its P. */
static ssize_t read_file(int fd, void *to, size_t n)
{
    ssize_t got;
    int error;
    Py_BEGIN_ALLOW_THREADS
    got = read(fd, to, n);
    error = errno;
    Py_END_ALLOW_THREADS
    errno = error;
    return got;
}

static ssize_t do_recv(Conn *c, void *to, size_t n)
{
    Side *s = &c->side[SIDE_READ];
    if (s->drained && atomic_load(&c->pd->word[SIDE_READ]) != POLL_READY) {
        errno = EAGAIN;
        return -1;
    }
    use_edge(c, SIDE_READ);
    ssize_t got;
    do {
        got = c->is_socket ? recv(c->fd, to, n, 0)
              : c->is_file ? read_file(c->fd, to, n)
                           : read(c->fd, to, n);
    } while (got < 0 && errno == EINTR);
    s->drained =
        c->is_tcp && got > 0 && (size_t)got < n && c->pd != NULL && !atomic_load(&c->pd->rough);
    return got;
}

typedef enum { TRY_AGAIN, TRY_DONE, TRY_FAILED } Try;

static Try failed(PyObject **value)
{
    *value = NULL;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return TRY_AGAIN;
    }
    PyErr_SetFromErrno(PyExc_OSError);
    return TRY_FAILED;
}

static Try done(PyObject *result, PyObject **value)
{
    *value = result;
    return result != NULL ? TRY_DONE : TRY_FAILED;
}

/* ---- the buffer ---- */

static size_t buffered(const Conn *c)
{
    return c->end - c->start;
}

/* Most connections have nothing in it most of the time: then it is not there at all. */
static void buf_release(Conn *c)
{
    free(c->buf);
    c->buf = NULL;
    c->start = c->end = c->cap = 0;
}

static PyObject *buf_take(Conn *c, size_t n)
{
    PyObject *bytes = PyBytes_FromStringAndSize(c->buf + c->start, (Py_ssize_t)n);
    if (bytes != NULL) {
        c->start += n;
        if (c->start == c->end) {
            buf_release(c);
        }
    }
    return bytes;
}

/* Room for more, but no more than comes: who asks for a terabyte has not got it yet. False: no memory. */
static bool buf_room(Conn *c)
{
    if (c->start > 0) {
        memmove(c->buf, c->buf + c->start, buffered(c));
        c->end -= c->start;
        c->start = 0;
    }
    if (c->cap - c->end >= FILL / 2) {
        return true;
    }
    size_t cap = c->cap == 0 ? FILL : c->cap * 2;
    char *more = realloc(c->buf, cap);
    if (more == NULL) {
        PyErr_NoMemory();
        return false;
    }
    c->buf = more;
    c->cap = cap;
    return true;
}

/* More into the buffer: 1, 0 at the end of the stream, -1: *how says why. */
static int buf_fill(Conn *c, Try *how, PyObject **value)
{
    if (!buf_room(c)) {
        *how = done(NULL, value);
        return -1;
    }
    ssize_t got = do_recv(c, c->buf + c->end, c->cap - c->end);
    if (got < 0) {
        *how = failed(value);
        if (buffered(c) == 0) {
            buf_release(c);
        }
        return -1;
    }
    c->end += (size_t)got;
    return got > 0;
}

/* ---- what the operations do when it is their turn ---- */

static Try try_read(M *m, Conn *c, IoOp *op, PyObject **value)
{
    if (buffered(c) > 0) {
        return done(buf_take(c, op->n < buffered(c) ? op->n : buffered(c)), value);
    }
    size_t n = op->n < READ_MAX ? op->n : READ_MAX;
    if (n == 0) {
        return done(PyBytes_FromString(""), value);
    }
    if (m != NULL && m->scratch == NULL) {
        m->scratch = malloc(SCRATCH);
    }
    if (m != NULL && m->scratch != NULL && n <= SCRATCH && !c->bulk) {
        ssize_t got = do_recv(c, m->scratch, n);
        c->bulk = got == SCRATCH;
        return got < 0 ? failed(value) : done(PyBytes_FromStringAndSize(m->scratch, got), value);
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n);
    if (bytes == NULL) {
        return TRY_FAILED;
    }
    ssize_t got = do_recv(c, PyBytes_AS_STRING(bytes), n);
    c->bulk = got >= SCRATCH / 2;
    if (got < 0) {
        int error = errno;
        Py_DECREF(bytes);
        errno = error;
        return failed(value);
    }
    if ((size_t)got < n) {
        _PyBytes_Resize(&bytes, got);
    }
    return done(bytes, value);
}

static Try try_read_into(Conn *c, IoOp *op, PyObject **value)
{
    size_t n = op->n;
    if (buffered(c) > 0) {
        n = n < buffered(c) ? n : buffered(c);
        memcpy(op->at, c->buf + c->start, n);
        c->start += n;
        if (c->start == c->end) {
            buf_release(c);
        }
    }
    else if (n > 0) {
        ssize_t got = do_recv(c, op->at, n);
        if (got < 0) {
            return failed(value);
        }
        n = (size_t)got;
    }
    return done(PyLong_FromSize_t(n), value);
}

/* The stream has ended before the operation had what it wanted. */
static Try incomplete(Conn *c, PyObject *expected, PyObject **value)
{
    PyObject *partial = buffered(c) > 0 ? buf_take(c, buffered(c)) : PyBytes_FromString("");
    PyObject *exc =
        partial != NULL && expected != NULL
            ? PyObject_CallFunctionObjArgs(hooks.IncompleteRead, partial, expected, NULL)
            : NULL;
    Py_XDECREF(partial);
    Py_XDECREF(expected);
    if (exc != NULL) {
        compat_raise(exc);
    }
    return done(NULL, value);
}

/* What has been read stays in the buffer until all is there: nothing is lost if it is cancelled. */
static Try try_read_exactly(Conn *c, IoOp *op, PyObject **value)
{
    while (buffered(c) < op->n) {
        Try how;
        int more = buf_fill(c, &how, value);
        if (more < 0) {
            return how;
        }
        if (more == 0) {
            return incomplete(c, PyLong_FromSize_t(op->n), value);
        }
    }
    return done(op->n > 0 ? buf_take(c, op->n) : PyBytes_FromString(""), value);
}

static Try try_read_until(Conn *c, IoOp *op, PyObject **value)
{
    size_t len = (size_t)PyBytes_GET_SIZE(op->arg);
    for (;;) {
        size_t have = buffered(c);
        char *from = c->buf + c->start + op->scanned;
        char *hit = have >= len + op->scanned
                        ? memmem(from, have - op->scanned, PyBytes_AS_STRING(op->arg), len)
                        : NULL;
        size_t size = hit != NULL ? (size_t)(hit - (c->buf + c->start)) + len : have;
        if (size > op->n || (hit == NULL && have >= op->n)) {
            PyErr_Format(hooks.LimitExceeded, "no %R within %zu bytes", op->arg, op->n);
            return done(NULL, value);
        }
        if (hit != NULL) {
            return done(buf_take(c, size), value);
        }
        op->scanned = have >= len ? have - len + 1 : 0;
        Try how;
        int more = buf_fill(c, &how, value);
        if (more < 0) {
            return how;
        }
        if (more == 0) {
            return incomplete(c, Py_NewRef(Py_None), value);
        }
    }
}

static Try try_recv_from(M *m, Conn *c, IoOp *op, PyObject **value)
{
    Address from;
    socklen_t len = sizeof from;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)op->n);
    if (bytes == NULL) {
        return TRY_FAILED;
    }
    use_edge(c, SIDE_READ);
    ssize_t got;
    do {
        got = recvfrom(c->fd, PyBytes_AS_STRING(bytes), op->n, 0, &from.sa, &len);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        int error = errno;
        Py_DECREF(bytes);
        errno = error;
        return failed(value);
    }
    _PyBytes_Resize(&bytes, got);
    PyObject *addr = bytes != NULL ? addr_to_object(&from, len) : NULL;
    PyObject *pair = addr != NULL ? PyTuple_Pack(2, bytes, addr) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(addr);
    return done(pair, value);
}

/* Write one piece, or as many as the kernel takes at a time. */
static ssize_t write_some(Conn *c, IoOp *op)
{
    struct iovec iov[IOV];
    struct msghdr msg = {.msg_iov = iov};
    int n = 0;
    if (op->at != NULL) {
        iov[n++] = (struct iovec){op->at, op->n};
    }
    else {
        for (int i = 0; i < op->nviews && n < IOV; i++) {
            if (op->views[i].len > 0) {
                iov[n++] = (struct iovec){op->views[i].buf, (size_t)op->views[i].len};
            }
        }
    }
    msg.msg_iovlen = (size_t)n;
    if (n == 1) {
        return c->is_socket ? send(c->fd, iov[0].iov_base, iov[0].iov_len, MSG_NOSIGNAL)
                            : write(c->fd, iov[0].iov_base, iov[0].iov_len);
    }
    return c->is_socket ? sendmsg(c->fd, &msg, MSG_NOSIGNAL) : writev(c->fd, iov, n);
}

static void wrote(IoOp *op, size_t n)
{
    op->n -= n;
    if (op->at != NULL) {
        op->at += n;
        return;
    }
    for (int i = 0; n > 0;
         i++) { /* buf and len are ours to move: PyBuffer_Release looks at neither */
        size_t part = (size_t)op->views[i].len < n ? (size_t)op->views[i].len : n;
        op->views[i].buf = (char *)op->views[i].buf + part;
        op->views[i].len -= (Py_ssize_t)part;
        n -= part;
    }
}

static Try try_write(Conn *c, IoOp *op, PyObject **value)
{
    while (op->n > 0) {
        ssize_t sent;
        use_edge(c, SIDE_WRITE);
        if (unlikely(c->is_file || (HAVE_GIL && op->n >= GIL_BYTES))) {
            int error;
            Py_BEGIN_ALLOW_THREADS
            sent = write_some(c, op);
            error = errno;
            Py_END_ALLOW_THREADS
            errno = error;
        }
        else {
            sent = write_some(c, op);
        }
        if (sent < 0) {
            if (errno == EINTR) {
                continue;
            }
            return failed(value);
        }
        wrote(op, (size_t)sent);
    }
    return done(Py_NewRef(Py_None), value);
}

static Try try_send_to(Conn *c, IoOp *op, PyObject **value)
{
    ssize_t sent;
    use_edge(c, SIDE_WRITE);
    do {
        sent = sendto(c->fd, op->at, op->n, MSG_NOSIGNAL, op->to != NULL ? &op->to->sa : NULL,
                      op->to_len);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? failed(value) : done(Py_NewRef(Py_None), value);
}

/* The socket has been told to connect: has it? */
static Try try_connect(Conn *c, PyObject **value)
{
    int error = 0;
    socklen_t len = sizeof error;
    Address peer;
    use_edge(c, SIDE_WRITE);
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0) {
        return failed(value);
    }
    if (error == 0) { /* perhaps a wake-up that was not meant for us */
        len = sizeof peer;
        if (getpeername(c->fd, &peer.sa, &len) == 0) {
            return done(Py_NewRef(Py_None), value);
        }
        error = EINPROGRESS;
    }
    errno = error == EINPROGRESS || error == EALREADY || error == EINTR ? EAGAIN : error;
    return failed(value);
}

static Conn *conn_new(PyTypeObject *type, int fd);

static Try try_accept(Conn *c, IoOp *op, PyObject **value)
{
    Side *s = &c->side[SIDE_READ];
    Address from;
    socklen_t len;
    int fd;
    op->retry_ns = 0;
    for (;;) {
        len = sizeof from;
        use_edge(c, SIDE_READ);
        fd = accept4(c->fd, &from.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            break;
        }
        switch (errno) {
        case EINTR:
        case ECONNABORTED: /* this and what follows: that connection failed, not the listener */
        case EPROTO:
        case ENETDOWN:
        case ENOPROTOOPT:
        case EHOSTDOWN:
        case ENONET:
        case EHOSTUNREACH:
        case ENETUNREACH:
        case EPERM:
            continue;
        case EMFILE: /* no descriptor is free: wait for a while, those who come wait in the backlog */
        case ENFILE:
        case ENOBUFS:
        case ENOMEM:
            s->backoff_ns = s->backoff_ns == 0 ? BACKOFF_MIN_NS : s->backoff_ns * 2;
            s->backoff_ns = s->backoff_ns < BACKOFF_MAX_NS ? s->backoff_ns : BACKOFF_MAX_NS;
            op->retry_ns = nanotime() + s->backoff_ns;
            *value = NULL;
            return TRY_AGAIN;
        default:
            return failed(value);
        }
    }
    s->backoff_ns = 0;
    Conn *conn = conn_new(&Conn_Type, fd);
    if (conn == NULL) {
        close(fd);
        return TRY_FAILED;
    }
    conn->is_socket = true;
    conn->is_tcp = c->is_tcp;
    conn->family = c->family;
    if (len <= sizeof conn->peer) {
        conn->peer_len = len;
        memcpy(conn->peer, &from, len);
    }
    return done((PyObject *)conn, value);
}

static Try try_now(M *m, IoOp *op, PyObject **value)
{
    Conn *c = op->conn;
    switch (op->kind) {
    case IO_READ:
        return try_read(m, c, op, value);
    case IO_READ_INTO:
        return try_read_into(c, op, value);
    case IO_READ_EXACTLY:
        return try_read_exactly(c, op, value);
    case IO_READ_UNTIL:
        return try_read_until(c, op, value);
    case IO_RECV_FROM:
        return try_recv_from(m, c, op, value);
    case IO_WRITE:
        return try_write(c, op, value);
    case IO_SEND_TO:
        return try_send_to(c, op, value);
    case IO_CONNECT:
        return try_connect(c, value);
    default:
        return try_accept(c, op, value);
    }
}

/* ---- the operation ---- */

static IoOp *ioop_new(Conn *c, IoKind kind)
{
    M *m = tls_m;
    IoOp *op = object_new(m, FREE_IO, &IoOp_Type);
    if (op == NULL) {
        return NULL;
    }
    memset((char *)op + sizeof(PyObject), 0, sizeof(IoOp) - sizeof(PyObject));
    op->conn = (Conn *)Py_NewRef(c);
    op->kind = (uint8_t)kind;
    return op;
}

/* conn->lock. Registered with the poller of this run? False: errno. */
static bool conn_register(Conn *c)
{
    PollDesc *pd = c->pd;
    if (likely(pd != NULL &&
               atomic_load_explicit(&pd->run, memory_order_relaxed) == netpoll_run())) {
        return true;
    }
    if (!netpoll_start() || (pd == NULL && (pd = desc_new()) == NULL)) {
        return false;
    }
    c->pd = pd;
    return netpoll_add(c->fd, pd);
}

/* The holder must wait. 1: it does; 0: there was an edge meanwhile, try again; -1: an exception is set, and the
 * turn has been passed on. */
static int park(M *m, G *g, IoOp *op)
{
    Conn *c = op->conn;
    int side = io_side(op);
    Side *s = &c->side[side];
    if (unlikely(op_raise_if_cancelled(g))) {
        release_turn(m, c, side);
        return -1;
    }
    Py_INCREF(g); /* the word's */
    obj_lock(&c->lock);
    IoError error = side_error(c, s);
    bool registered = error == ERR_NONE && conn_register(c);
    if (likely(registered)) {
        uintptr_t word = POLL_NIL;
        op->waiter = g;
        io_set_state(op, IO_PARKED);
        netpoll_count(1);
        if (likely(atomic_compare_exchange_strong(&c->pd->word[side], &word, (uintptr_t)g))) {
            timer_arm(m, c, s, wake_time(s));
            obj_unlock(&c->lock);
            if (unlikely(m == NULL)) {
                poller_look(TIME_NEVER); /* no M looks round because of us */
            }
            return 1;
        }
        netpoll_count(-1);
        io_set_state(op, IO_TURN);
    }
    obj_unlock(&c->lock);
    Py_DECREF(g); /* not the last: the M that runs us holds one */
    if (registered) {
        return 0;
    }
    if (error == ERR_NONE) {
        PyErr_SetFromErrno(PyExc_OSError);
    }
    else {
        raise_error(op, error);
    }
    release_turn(m, c, side);
    return -1;
}

/* It is our turn. */
static PySendResult ioop_go(M *m, G *g, IoOp *op, PyObject **result)
{
    Conn *c = op->conn;
    int side = io_side(op);
    for (;;) {
        PyObject *value = NULL;
        Try how = atomic_load_explicit(&c->closing, memory_order_relaxed) ? TRY_AGAIN
                                                                          : try_now(m, op, &value);
        if (how != TRY_AGAIN) {
            release_turn(m, c, side);
            if (unlikely(how == TRY_DONE && op_slice_over(m))) {
                op->value = value;
                op->waiter = g;
                io_set_state(op, IO_YIELDED);
                return op_yield(g, result);
            }
            io_set_state(op, IO_DONE);
            *result = value;
            return how == TRY_DONE ? PYGEN_RETURN : PYGEN_ERROR;
        }
        int parked = park(m, g, op);
        if (parked > 0) {
            return op_suspend(g, WAIT_IO, result);
        }
        if (parked < 0) {
            io_set_state(op, IO_DONE);
            return PYGEN_ERROR;
        }
    }
}

static PySendResult ioop_begin(M *m, G *g, IoOp *op, PyObject **result)
{
    Conn *c = op->conn;
    Side *s = &c->side[io_side(op)];
    obj_lock(&c->lock);
    bool ours = io_state(op) == IO_NEW; /* else another has begun it at the same time */
    IoError error = ours ? side_error(c, s) : ERR_NONE;
    bool wait = ours && error == ERR_NONE && s->holder != NULL;
    if (likely(ours)) {
        op->waiter = g;
        io_set_state(op, error != ERR_NONE ? IO_DONE : wait ? IO_QUEUED : IO_TURN);
        if (unlikely(wait)) {
            if (sharing()) {
                compat_share((PyObject *)op); /* others will see it from here on */
            }
            op->who = (G *)Py_NewRef(g);
            enqueue(s, op);
        }
        else if (likely(error == ERR_NONE)) {
            s->holder = op;
        }
    }
    obj_unlock(&c->lock);
    if (unlikely(!ours)) {
        op_error_other((PyObject *)op);
        return PYGEN_ERROR;
    }
    if (unlikely(error != ERR_NONE)) {
        raise_error(op, error);
        return PYGEN_ERROR;
    }
    return unlikely(wait) ? op_suspend(g, WAIT_IO, result) : ioop_go(m, g, op, result);
}

/* Give up: off its queue or out of its word, and the turn, if it has it, to the next. False: it is done, or has
 * failed, or has been woken for another try that nobody takes from it. */
static bool take_back(M *m, IoOp *op, bool even_turn)
{
    Conn *c = op->conn;
    int side = io_side(op);
    Side *s = &c->side[side];
    G *g = NULL;
    bool heap_ref = false;
    obj_lock(&c->lock);
    int state = io_state(op);
    bool queued = state == IO_QUEUED, has_turn = false;
    if (queued) {
        dequeue(s, op);
        g = op->who;
        op->who = NULL;
    }
    else if (state == IO_PARKED) {
        heap_ref = timer_disarm(s);
        g = unpark(c, side);
        has_turn = g != NULL || even_turn;
    }
    else if (state == IO_TURN) {
        has_turn = even_turn;
    }
    if (queued || has_turn) {
        io_set_state(op, IO_DONE);
    }
    else if (state == IO_PARKED) { /* the poller was faster */
        io_set_state(op, IO_TURN);
    }
    obj_unlock(&c->lock);
    if (heap_ref) {
        Py_DECREF(c); /* not the last: the operation holds one */
    }
    if (has_turn) {
        release_turn(m, c, side);
    }
    Py_XDECREF(g);
    if (queued) {
        Py_DECREF(op); /* not the last: the caller has one */
    }
    return queued || has_turn;
}

/* Woken while it stood in a word, or in the queue: by whom? True: it is our turn. */
static bool resumed(IoOp *op, const G *g)
{
    Conn *c = op->conn;
    int side = io_side(op);
    bool heap_ref = false;
    obj_lock(&c->lock);
    if (io_state(op) == IO_PARKED &&
        atomic_load_explicit(&c->pd->word[side], memory_order_relaxed) != (uintptr_t)g) {
        heap_ref = timer_disarm(&c->side[side]);
        io_set_state(op, IO_TURN);
    }
    bool turn = io_state(op) == IO_TURN;
    obj_unlock(&c->lock);
    if (unlikely(heap_ref)) {
        Py_DECREF(c); /* not the last: the operation holds one */
    }
    return turn;
}

static PySendResult ioop_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    IoOp *op = (IoOp *)self;
    M *m = tls_m;
    *result = NULL;
    int state = io_state(op);
    G *g = op_begin(m, self, state == IO_DONE ? OP_DONE : OP_NEW);
    if (unlikely(g == NULL)) {
        return PYGEN_ERROR;
    }
    if (state == IO_NEW) {
        if (unlikely(op_raise_if_cancelled(g))) {
            io_set_state(op, IO_DONE);
            return PYGEN_ERROR;
        }
        return ioop_begin(m, g, op, result);
    }
    if (unlikely(op->waiter != g)) {
        op_error_other(self);
        return PYGEN_ERROR;
    }
    if (state == IO_YIELDED) {
        io_set_state(op, IO_DONE);
        *result = op->value;
        op->value = NULL;
        return PYGEN_RETURN;
    }
    if (likely(state == IO_TURN || resumed(op, g))) {
        return ioop_go(m, g, op,
                       result); /* if it can be done, a cancellation waits for the next one */
    }
    state = io_state(op);
    if (state == IO_FAILED) {
        io_set_state(op, IO_DONE);
        if (!op_raise_if_cancelled(
                g)) { /* who is cancelled need not hear that it was closed, too */
            raise_error(op, op->error);
        }
        return PYGEN_ERROR;
    }
    if (!op_cancel_pending(g)) {
        return op_suspend(g, WAIT_IO, result); /* a wake-up meant for an earlier wait */
    }
    if (take_back(m, op, false)) {
        op_raise_taken_back(g);
        return PYGEN_ERROR;
    }
    return ioop_send(self, Py_None, result); /* somebody was faster: now it is one of the above */
}

static PyObject *ioop_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    IoOp *op = (IoOp *)self;
    int state = io_state(op);
    if (state == IO_QUEUED || state == IO_PARKED || state == IO_TURN) {
        take_back(tls_m, op, true);
    }
    Py_RETURN_NONE;
}

static void ioop_dealloc(PyObject *self)
{
    IoOp *op = (IoOp *)self;
    M *m = tls_m;
    int state = io_state(op);
    if (unlikely(state == IO_PARKED || state == IO_TURN)) {
        take_back(m, op, true); /* of a coroutine that was freed, not closed */
    }
    for (int i = 0; i < op->nviews; i++) {
        PyBuffer_Release(&op->views[i]);
    }
    PyMem_Free(op->views);
    PyMem_Free(op->to);
    Py_XDECREF(op->arg);
    Py_XDECREF(op->value);
    Py_XDECREF(op->who);
    Py_DECREF(op->conn);
    object_free(m, FREE_IO, self);
}

static PyObject *ioop_repr(PyObject *self)
{
    static const char *const names[] = {"read",      "read_into", "read_exactly", "read_until",
                                        "read_from", "accept",    "__anext__",    "write",
                                        "write_to",  "connect"};
    IoOp *op = (IoOp *)self;
    int state = io_state(op);
    return PyUnicode_FromFormat("<%s of %R, %s>", names[op->kind], op->conn,
                                state == IO_NEW    ? "not awaited"
                                : state == IO_DONE ? "done"
                                                   : "waiting");
}

static PyMethodDef ioop_methods[] = {{"close", ioop_close, METH_NOARGS, NULL}, {NULL}};
static PyAsyncMethods ioop_async = {.am_await = PyObject_SelfIter, .am_send = ioop_send};

static PyTypeObject IoOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.IoOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = sizeof(IoOp),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation that read(), write(), accept() and their like return.",
    .tp_dealloc = ioop_dealloc,
    .tp_repr = ioop_repr,
    .tp_as_async = &ioop_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = op_iternext,
    .tp_methods = ioop_methods,
};

/* ---- Descriptor: what the three types share ---- */

static Conn *conn_new(PyTypeObject *type, int fd)
{
    Conn *c = (Conn *)type->tp_alloc(type, 0); /* all zero */
    if (c == NULL) {
        return NULL;
    }
    live_add(tls_m, LIVE_CONN, 1);
    c->fd = fd;
    for (int side = 0; side < SIDES; side++) {
        size_t at = offsetof(Conn, side) + (size_t)side * sizeof(Side) + offsetof(Side, timer);
        c->side[side].deadline_ns = TIME_NEVER;
        timer_init(&c->side[side].timer, TIMER_CONN, at);
    }
    if (sharing()) {
        compat_share_new((PyObject *)c); /* goroutines hand them to one another */
    }
    return c;
}

static int get_option(int fd, int what)
{
    int value = 0;
    socklen_t len = sizeof value;
    return getsockopt(fd, SOL_SOCKET, what, &value, &len) < 0 ? -1 : value;
}

/* Conn(fd): the descriptor is the object's from here on. */
static PyObject *descriptor_tp_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *arg;
    if (!PyArg_ParseTuple(args, "O", &arg)) {
        return NULL;
    }
    int fd = PyObject_AsFileDescriptor(arg);
    if (fd < 0) {
        return NULL;
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (!(flags & O_NONBLOCK) && fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Conn *c = conn_new(type, fd);
    if (c != NULL) {
        int kind = get_option(fd, SO_TYPE);
        c->is_socket = kind >= 0;
        c->family = (int8_t)(c->is_socket ? get_option(fd, SO_DOMAIN) : AF_UNSPEC);
        c->is_tcp = kind == SOCK_STREAM && (c->family == AF_INET || c->family == AF_INET6);
        struct stat st;
        c->is_file =
            !c->is_socket && fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode));
    }
    return (PyObject *)c;
}

/* With `ahead`, detach: the descriptor is not closed but returned, -1 if it is in use right now. Or, with nothing done,
 * if *ahead bytes that have been read would be lost: only the holder touches the buffer, so there must be none. */
static int shut(Conn *c, size_t *ahead)
{
    M *m = tls_m;
    IoOp *chain = NULL;
    int refs = 0, fd = -1;
    PollDesc *pd = NULL;
    obj_lock(&c->lock);
    if (ahead != NULL) {
        bool whole = !atomic_load(&c->closing) && c->side[SIDE_READ].holder == NULL;
        *ahead = whole ? buffered(c) : 0;
    }
    bool first = (ahead == NULL || *ahead == 0) && !atomic_exchange(&c->closing, 1);
    if (first) {
        chain = fail_all(c, SIDE_WRITE, ERR_CLOSED, chain, &refs);
        chain = fail_all(c, SIDE_READ, ERR_CLOSED, chain, &refs);
        fd = take_fd(c, &pd);
    }
    obj_unlock(&c->lock);
    if (ahead != NULL) {
        if (pd != NULL) {
            netpoll_ctl(EPOLL_CTL_DEL, fd, 0, pd);
            desc_free(pd);
        }
    }
    else {
        close_fd(fd, pd);
    }
    wake_chain(m, chain);
    drop_refs(c, refs);
    return fd;
}

static void descriptor_dealloc(PyObject *self)
{
    Conn *c = (Conn *)self;
    if (c->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    close_fd(c->fd, c->pd); /* nobody uses it: operations hold a reference */
    free(c->buf);
    Py_XDECREF(c->local);
    Py_XDECREF(c->remote);
    live_add(tls_m, LIVE_CONN, -1);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *descriptor_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    shut((Conn *)self, NULL);
    return Py_NewRef((PyObject *)&done_op); /* may be awaited, need not be */
}

static PyObject *descriptor_detach(PyObject *self, PyObject *Py_UNUSED(a))
{
    size_t ahead;
    int fd = shut((Conn *)self, &ahead);
    if (ahead > 0) {
        PyErr_Format(PyExc_ValueError,
                     "detach() would lose %zu bytes that have been read ahead: read(%zu) first",
                     ahead, ahead);
        return NULL;
    }
    if (fd < 0) {
        PyErr_SetString(hooks.Closed, "detach() of a closed connection, or one in use");
        return NULL;
    }
    return PyLong_FromLong(fd);
}

static PyObject *descriptor_fileno(PyObject *self, PyObject *Py_UNUSED(a))
{
    Conn *c = (Conn *)self;
    return PyLong_FromLong(atomic_load(&c->closing) ? -1 : c->fd);
}

static PyObject *descriptor_closed(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(atomic_load(&((Conn *)self)->closing));
}

/* ---- deadlines ---- */

static void set_deadline(Conn *c, int side, int64_t when_ns)
{
    M *m = tls_m;
    Side *s = &c->side[side];
    IoOp *chain = NULL;
    int refs = 0;
    obj_lock(&c->lock);
    s->deadline_ns = when_ns;
    if (when_ns <= nanotime()) {
        chain = fail_all(c, side, ERR_TIMEOUT, chain, &refs);
    }
    else if (s->holder != NULL && io_state(s->holder) == IO_PARKED) {
        refs += timer_disarm(s);
        timer_arm(m, c, s, wake_time(s));
    }
    obj_unlock(&c->lock);
    wake_chain(m, chain);
    drop_refs(c, refs);
}

static PyObject *deadline_method(PyObject *self, PyObject *seconds, bool read, bool write)
{
    int64_t ns = 0, when = TIME_NEVER;
    if (seconds != Py_None) {
        if (!seconds_to_ns(seconds, "a deadline", &ns)) {
            return NULL;
        }
        when = nanotime() + ns;
    }
    if (read) {
        set_deadline((Conn *)self, SIDE_READ, when);
    }
    if (write) {
        set_deadline((Conn *)self, SIDE_WRITE, when);
    }
    Py_RETURN_NONE;
}

static PyObject *descriptor_set_deadline(PyObject *self, PyObject *seconds)
{
    return deadline_method(self, seconds, true, true);
}

static PyObject *descriptor_set_read_deadline(PyObject *self, PyObject *seconds)
{
    return deadline_method(self, seconds, true, false);
}

static PyObject *descriptor_set_write_deadline(PyObject *self, PyObject *seconds)
{
    return deadline_method(self, seconds, false, true);
}

/* ---- addresses ---- */

typedef int NameFunction(int fd, struct sockaddr *addr, socklen_t *len);

/* None if there is none: a pipe, or it is closed and nobody has asked before. */
static PyObject *name_of(Conn *c, NameFunction *ask)
{
    Address a;
    socklen_t len = sizeof a;
    obj_lock(&c->lock); /* so that nobody closes it now */
    bool ok = c->fd >= 0 && c->is_socket && ask(c->fd, &a.sa, &len) == 0;
    obj_unlock(&c->lock);
    return ok ? addr_to_object(&a, len) : Py_NewRef(Py_None);
}

/* Two may ask at once: the first answer stays. */
static PyObject *keep_name(Conn *c, PyObject **slot, PyObject *name)
{
    if (name == NULL || name == Py_None) {
        return name;
    }
    obj_lock(&c->lock);
    PyObject *before = *slot;
    if (before == NULL) {
        *slot = Py_NewRef(name);
    }
    else {
        Py_INCREF(before);
    }
    obj_unlock(&c->lock);
    if (before != NULL) {
        Py_DECREF(name);
    }
    return before != NULL ? before : name;
}

static PyObject *kept_name(Conn *c, PyObject **slot)
{
    obj_lock(&c->lock);
    PyObject *name = Py_XNewRef(*slot);
    obj_unlock(&c->lock);
    return name;
}

static PyObject *descriptor_local_addr(PyObject *self, void *Py_UNUSED(closure))
{
    Conn *c = (Conn *)self;
    PyObject *name = kept_name(c, &c->local);
    return name != NULL ? name : keep_name(c, &c->local, name_of(c, getsockname));
}

static PyObject *descriptor_remote_addr(PyObject *self, void *Py_UNUSED(closure))
{
    Conn *c = (Conn *)self;
    PyObject *name = kept_name(c, &c->remote);
    if (name != NULL) {
        return name;
    }
    if (c->peer_len > 0) {
        Address a;
        memcpy(&a, c->peer, c->peer_len);
        name = addr_to_object(&a, c->peer_len);
    }
    else {
        name = name_of(c, getpeername);
    }
    return keep_name(c, &c->remote, name);
}

/* ---- with, async with ---- */

static PyObject *descriptor_enter(PyObject *self, PyObject *Py_UNUSED(a))
{
    return Py_NewRef(self);
}

static PyObject *descriptor_aenter(PyObject *self, PyObject *Py_UNUSED(a))
{
    return ready_new(self);
}

/* `await net.listen(...)` is fine too. */
static PyObject *descriptor_await(PyObject *self)
{
    return ready_new(self);
}

/* By the name, so that a subclass closes in its own way. */
static PyObject *descriptor_exit(PyObject *self, PyObject *Py_UNUSED(args))
{
    PyObject *r = PyObject_CallMethod(self, "close", NULL);
    Py_XDECREF(r);
    return r != NULL ? Py_NewRef(Py_None) : NULL;
}

static PyObject *descriptor_aexit(PyObject *self, PyObject *Py_UNUSED(args))
{
    return PyObject_CallMethod(self, "close", NULL);
}

static PyObject *descriptor_repr(PyObject *self)
{
    Conn *c = (Conn *)self;
    if (atomic_load(&c->closing)) {
        return PyUnicode_FromFormat("<%s, closed>", Py_TYPE(self)->tp_name);
    }
    PyObject *local = descriptor_local_addr(self, NULL);
    PyObject *remote = local != NULL ? descriptor_remote_addr(self, NULL) : NULL;
    PyObject *r = NULL;
    if (remote != NULL) {
        r = remote == Py_None
                ? PyUnicode_FromFormat("<%s %R, fd %d>", Py_TYPE(self)->tp_name, local, c->fd)
                : PyUnicode_FromFormat("<%s %R to %R, fd %d>", Py_TYPE(self)->tp_name, local,
                                       remote, c->fd);
    }
    Py_XDECREF(local);
    Py_XDECREF(remote);
    return r;
}

PyDoc_STRVAR(
    close_doc,
    "close()\n--\n\n"
    "Close it, at once. Whoever waits on it gets ClosedError. A second time does nothing.\n\n"
    ">>> conn.close()");
PyDoc_STRVAR(detach_doc, "detach()\n--\n\n"
                         "Give up the descriptor and return it, still open.\n\n"
                         "ValueError while there are bytes that have been read ahead.\n\n"
                         ">>> fd = conn.detach()\n>>> os.close(fd)");
PyDoc_STRVAR(fileno_doc,
             "fileno()\n--\n\n"
             "The descriptor, -1 if closed. It stays this object's.\n\n>>> fd = conn.fileno()");
PyDoc_STRVAR(set_deadline_doc,
             "set_deadline(seconds, /)\n--\n\n"
             "From so many seconds on, reads and writes raise TimeoutError, also those that\n"
             "wait already. None: no deadline.\n\n>>> conn.set_deadline(30)");
PyDoc_STRVAR(set_read_deadline_doc, "set_read_deadline(seconds, /)\n--\n\n"
                                    "As set_deadline(), for reads and accept().\n\n"
                                    ">>> conn.set_read_deadline(5)");
PyDoc_STRVAR(set_write_deadline_doc,
             "set_write_deadline(seconds, /)\n--\n\n"
             "As set_deadline(), for writes.\n\n>>> conn.set_write_deadline(None)");

static PyMethodDef descriptor_methods[] = {
    {"close", descriptor_close, METH_NOARGS, close_doc},
    {"detach", descriptor_detach, METH_NOARGS, detach_doc},
    {"fileno", descriptor_fileno, METH_NOARGS, fileno_doc},
    {"set_deadline", descriptor_set_deadline, METH_O, set_deadline_doc},
    {"set_read_deadline", descriptor_set_read_deadline, METH_O, set_read_deadline_doc},
    {"set_write_deadline", descriptor_set_write_deadline, METH_O, set_write_deadline_doc},
    {"__enter__", descriptor_enter, METH_NOARGS, NULL},
    {"__exit__", descriptor_exit, METH_VARARGS, NULL},
    {"__aenter__", descriptor_aenter, METH_NOARGS, NULL},
    {"__aexit__", descriptor_aexit, METH_VARARGS, NULL},
    {NULL},
};

static PyGetSetDef descriptor_getset[] = {
    {"closed", descriptor_closed, NULL, "Whether close() has been called.", NULL},
    {"local_addr", descriptor_local_addr, NULL, "This end's address, as module socket writes it.",
     NULL},
    {NULL},
};

static PyTypeObject Descriptor_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.net.Descriptor",
    .tp_basicsize = sizeof(Conn),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "What Conn, Listener and PacketConn share.\n\n>>> isinstance(conn, net.Descriptor)\n"
              "True",
    .tp_dealloc = descriptor_dealloc,
    .tp_repr = descriptor_repr,
    .tp_weaklistoffset = offsetof(Conn, weakrefs),
    .tp_methods = descriptor_methods,
    .tp_getset = descriptor_getset,
};

/* ---- Conn ---- */

static bool size_arg(PyObject *arg, const char *what, size_t *n)
{
    Py_ssize_t size = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    if (size == -1 && PyErr_Occurred()) {
        return false;
    }
    if (size < 0) {
        PyErr_Format(PyExc_ValueError, "%s needs a number of bytes that is not negative, not %zd",
                     what, size);
        return false;
    }
    *n = (size_t)size;
    return true;
}

static PyObject *conn_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames)
{
    size_t n = SCRATCH;
    if (nargs + (kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0) > 1 ||
        (kwnames != NULL && PyTuple_GET_SIZE(kwnames) == 1 &&
         PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "n") != 0)) {
        PyErr_SetString(PyExc_TypeError, "read() takes one argument, n");
        return NULL;
    }
    if ((nargs > 0 || kwnames != NULL) && !size_arg(args[0], "read()", &n)) {
        return NULL;
    }
    IoOp *op = ioop_new((Conn *)self, IO_READ);
    if (op != NULL) {
        op->n = n;
    }
    return (PyObject *)op;
}

/* Point the operation at the memory of `obj`, which must be contiguous. */
static bool take_view(IoOp *op, PyObject *obj, int flags)
{
    op->views = PyMem_Malloc(sizeof *op->views);
    if (op->views == NULL) {
        PyErr_NoMemory();
        return false;
    }
    if (PyObject_GetBuffer(obj, op->views, flags) < 0) {
        return false;
    }
    op->nviews = 1;
    op->at = op->views->buf;
    op->n = (size_t)op->views->len;
    return true;
}

static bool take_data(IoOp *op, PyObject *data)
{
    if (likely(PyBytes_CheckExact(data))) {
        op->arg = Py_NewRef(data);
        op->at = PyBytes_AS_STRING(data);
        op->n = (size_t)PyBytes_GET_SIZE(data);
        return true;
    }
    return take_view(op, data, PyBUF_SIMPLE);
}

static bool take_pieces(IoOp *op, PyObject *list)
{
    PyObject *pieces = PySequence_Tuple(list); /* nobody changes that */
    if (pieces == NULL) {
        return false;
    }
    op->arg = pieces;
    Py_ssize_t n = PyTuple_GET_SIZE(pieces);
    if (n > UINT16_MAX) {
        PyErr_Format(PyExc_ValueError, "write() takes at most %d pieces, not %zd", UINT16_MAX, n);
        return false;
    }
    op->views = PyMem_Calloc(n > 0 ? (size_t)n : 1, sizeof *op->views);
    if (op->views == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++, op->nviews++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(pieces, i), &op->views[i], PyBUF_SIMPLE) < 0) {
            return false;
        }
        op->n += (size_t)op->views[i].len;
    }
    return true;
}

static PyObject *conn_write(PyObject *self, PyObject *data)
{
    IoOp *op = ioop_new((Conn *)self, IO_WRITE);
    if (op == NULL) {
        return NULL;
    }
    bool many = PyList_Check(data) || PyTuple_Check(data);
    if (!(many ? take_pieces(op, data) : take_data(op, data))) {
        Py_CLEAR(op);
    }
    return (PyObject *)op;
}

static PyObject *conn_read_into(PyObject *self, PyObject *buf)
{
    IoOp *op = ioop_new((Conn *)self, IO_READ_INTO);
    if (op != NULL && !take_view(op, buf, PyBUF_WRITABLE)) {
        Py_CLEAR(op);
    }
    return (PyObject *)op;
}

static PyObject *conn_read_exactly(PyObject *self, PyObject *arg)
{
    size_t n;
    if (!size_arg(arg, "read_exactly()", &n)) {
        return NULL;
    }
    IoOp *op = ioop_new((Conn *)self, IO_READ_EXACTLY);
    if (op != NULL) {
        op->n = n;
    }
    return (PyObject *)op;
}

static PyObject *conn_read_until(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char sep_name[] = "sep", limit_name[] = "limit", *names[] = {sep_name, limit_name, NULL};
    PyObject *sep;
    Py_ssize_t limit = SCRATCH;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|n:read_until", names, &sep, &limit)) {
        return NULL;
    }
    PyObject *bytes = PyBytes_FromObject(sep);
    if (bytes == NULL) {
        return NULL;
    }
    if (PyBytes_GET_SIZE(bytes) == 0 || limit < 1) {
        PyErr_SetString(PyExc_ValueError, PyBytes_GET_SIZE(bytes) == 0
                                              ? "read_until() needs a separator that is not empty"
                                              : "read_until() needs a positive limit");
        Py_DECREF(bytes);
        return NULL;
    }
    IoOp *op = ioop_new((Conn *)self, IO_READ_UNTIL);
    if (op == NULL) {
        Py_DECREF(bytes);
        return NULL;
    }
    op->arg = bytes;
    op->n = (size_t)limit;
    return (PyObject *)op;
}

/* write_nowait(data): how much of it could be written at once; 0 also if somebody else is writing. For the last
 * words of a TLS connection. */
static PyObject *conn_write_nowait(PyObject *self, PyObject *data)
{
    Conn *c = (Conn *)self;
    char *at;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(data, &at, &n) < 0) {
        return NULL;
    }
    obj_lock(&c->lock); /* so that nobody closes it, or takes the turn, now */
    bool free = c->fd >= 0 && !atomic_load(&c->closing) && c->side[SIDE_WRITE].holder == NULL;
    ssize_t sent =
        free && c->is_socket ? send(c->fd, at, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
    obj_unlock(&c->lock);
    return PyLong_FromSsize_t(sent > 0 ? sent : 0);
}

/* discard_input(): throw away what has come and nobody has read. A TCP socket that is closed with such input resets
 * the connection, and what was written just before may never arrive. */
static PyObject *conn_discard_input(PyObject *self, PyObject *Py_UNUSED(a))
{
    Conn *c = (Conn *)self;
    obj_lock(&c->lock);
    if (c->fd >= 0 && c->is_tcp && !atomic_load(&c->closing)) {
        for (int i = 0; i < 16 && recv(c->fd, NULL, SCRATCH, MSG_DONTWAIT | MSG_TRUNC) > 0; i++) {
        }
    }
    obj_unlock(&c->lock);
    Py_RETURN_NONE;
}

/* Operation: the socket was told to connect; it has, or this raises why not. */
static PyObject *conn_connected(PyObject *self, PyObject *Py_UNUSED(a))
{
    return (PyObject *)ioop_new((Conn *)self, IO_CONNECT);
}

static PyObject *conn_close_write(PyObject *self, PyObject *Py_UNUSED(a))
{
    Conn *c = (Conn *)self;
    obj_lock(&c->lock); /* so that nobody closes it now */
    bool open = c->fd >= 0 && !atomic_load(&c->closing);
    int error = open && shutdown(c->fd, SHUT_WR) < 0 ? errno : 0;
    obj_unlock(&c->lock);
    if (!open) {
        PyErr_SetString(hooks.Closed, "use of closed connection");
        return NULL;
    }
    if (error != 0 && error != ENOTCONN) { /* not connected any more: there is nobody to tell */
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_NewRef((PyObject *)&done_op); /* may be awaited, need not be */
}

PyDoc_STRVAR(read_doc,
             "read(n=65536)\n--\n\n"
             "Operation: what is there, at most n bytes, at least one; b'' at the end.\n\n"
             ">>> while data := await conn.read():\n...     await conn.write(data)");
PyDoc_STRVAR(read_into_doc,
             "read_into(buf, /)\n--\n\n"
             "Operation: as read(), into a writable buffer; gives how many bytes.\n\n"
             ">>> n = await conn.read_into(buf)");
PyDoc_STRVAR(read_exactly_doc, "read_exactly(n, /)\n--\n\n"
                               "Operation: n bytes. If the stream ends before, IncompleteRead.\n\n"
                               ">>> header = await conn.read_exactly(16)");
PyDoc_STRVAR(
    read_until_doc,
    "read_until(sep, limit=65536)\n--\n\n"
    "Operation: all up to the separator, and that. If there is none within `limit` bytes,\n"
    "LimitExceeded, and nothing has been read; if the stream ends before, IncompleteRead.\n\n"
    ">>> line = await conn.read_until(b'\\r\\n')");
PyDoc_STRVAR(
    write_doc,
    "write(data, /)\n--\n\n"
    "Operation: write all of it: bytes, any buffer, or a list or tuple of such. What several\n"
    "goroutines write is not mixed up. It waits while the peer is slow.\n\n"
    ">>> await conn.write(b'hello')\n>>> await conn.write([header, body])");
PyDoc_STRVAR(write_nowait_doc, "write_nowait(data, /)\n--\n\n"
                               "Write what can be written at once; how many bytes that were.\n\n"
                               ">>> conn.write_nowait(b'bye')\n3");
PyDoc_STRVAR(discard_input_doc, "discard_input()\n--\n\n"
                                "Throw away what has come and nobody has read.\n\n"
                                ">>> conn.discard_input()");
PyDoc_STRVAR(connected_doc, "connected()\n--\n\n"
                            "Operation: until a non-blocking connect() of its socket is done.\n\n"
                            ">>> await conn.connected()");
PyDoc_STRVAR(close_write_doc, "close_write()\n--\n\n"
                              "Tell the peer that nothing more comes. Reading goes on.\n\n"
                              ">>> conn.close_write()");

static PyMethodDef conn_methods[] = {
    {"read", (PyCFunction)(void (*)(void))conn_read, METH_FASTCALL | METH_KEYWORDS, read_doc},
    {"read_into", conn_read_into, METH_O, read_into_doc},
    {"read_exactly", conn_read_exactly, METH_O, read_exactly_doc},
    {"read_until", (PyCFunction)(void (*)(void))conn_read_until, METH_VARARGS | METH_KEYWORDS,
     read_until_doc},
    {"write", conn_write, METH_O, write_doc},
    {"connected", conn_connected, METH_NOARGS, connected_doc},
    {"write_nowait", conn_write_nowait, METH_O, write_nowait_doc},
    {"discard_input", conn_discard_input, METH_NOARGS, discard_input_doc},
    {"close_write", conn_close_write, METH_NOARGS, close_write_doc},
    {NULL},
};

static PyGetSetDef conn_getset[] = {
    {"remote_addr", descriptor_remote_addr, NULL, "The peer's address, as module socket writes it.",
     NULL},
    {NULL},
};

static PyTypeObject Conn_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.net.Conn",
    .tp_base = &Descriptor_Type,
    .tp_basicsize = sizeof(Conn),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Conn(fd, /)\n--\n\nA stream: a TCP or Unix connection, a pipe, a terminal.\n\n"
              ">>> conn = await net.dial('example.org', 80)",
    .tp_new = descriptor_tp_new,
    .tp_methods = conn_methods,
    .tp_getset = conn_getset,
};

/* ---- Listener ---- */

static PyObject *listener_accept(PyObject *self, PyObject *Py_UNUSED(a))
{
    return (PyObject *)ioop_new((Conn *)self, IO_ACCEPT);
}

static PyObject *listener_anext(PyObject *self)
{
    return (PyObject *)ioop_new((Conn *)self, IO_NEXT);
}

PyDoc_STRVAR(accept_doc,
             "accept()\n--\n\n"
             "Operation: the next connection. If the process has no free descriptor it waits for\n"
             "one, and the connections wait in the backlog.\n\n>>> conn = await listener.accept()");

static PyMethodDef listener_methods[] = {{"accept", listener_accept, METH_NOARGS, accept_doc},
                                         {NULL}};

static PyGetSetDef listener_getset[] = {
    {"addr", descriptor_local_addr, NULL, "What it listens on, as module socket writes it.", NULL},
    {NULL},
};

static PyAsyncMethods listener_async = {
    .am_await = descriptor_await, .am_aiter = PyObject_SelfIter, .am_anext = listener_anext};

static PyTypeObject Listener_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.net.Listener",
    .tp_base = &Descriptor_Type,
    .tp_basicsize = sizeof(Conn),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Listener(fd, /)\n--\n\nWaits for connections; see net.listen().\n\n"
              ">>> async for conn in listener:\n...     go(serve, conn)",
    .tp_new = descriptor_tp_new,
    .tp_as_async = &listener_async,
    .tp_methods = listener_methods,
    .tp_getset = listener_getset,
};

/* ---- PacketConn ---- */

static PyObject *packet_read_from(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    size_t n = SCRATCH;
    if (nargs > 1) {
        PyErr_SetString(PyExc_TypeError, "read_from() takes one argument, n");
        return NULL;
    }
    if (nargs == 1 && !size_arg(args[0], "read_from()", &n)) {
        return NULL;
    }
    IoOp *op = ioop_new((Conn *)self, IO_RECV_FROM);
    if (op != NULL) {
        op->n = n < SCRATCH ? n : SCRATCH;
    }
    return (PyObject *)op;
}

static PyObject *packet_write_to(PyObject *self, PyObject *args)
{
    PyObject *data, *addr;
    if (!PyArg_ParseTuple(args, "OO:write_to", &data, &addr)) {
        return NULL;
    }
    IoOp *op = ioop_new((Conn *)self, IO_SEND_TO);
    if (op == NULL || !take_data(op, data)) {
        Py_XDECREF(op);
        return NULL;
    }
    op->to = PyMem_Malloc(sizeof *op->to);
    if (op->to == NULL) {
        PyErr_NoMemory();
    }
    else {
        op->to_len = addr_from_object(addr, ((Conn *)self)->family, op->to);
    }
    if (op->to_len == 0) {
        Py_CLEAR(op);
    }
    return (PyObject *)op;
}

/* To the peer it is connected to: a message each, even an empty one. */
static PyObject *packet_write(PyObject *self, PyObject *data)
{
    IoOp *op = ioop_new((Conn *)self, IO_SEND_TO);
    if (op != NULL && !take_data(op, data)) {
        Py_CLEAR(op);
    }
    return (PyObject *)op;
}

PyDoc_STRVAR(packet_read_doc,
             "read(n=65536)\n--\n\n"
             "Operation: the next message; what is beyond n bytes of it is lost.\n\n"
             ">>> answer = await udp.read()");
PyDoc_STRVAR(packet_write_doc, "write(data, /)\n--\n\n"
                               "Operation: send a message to the peer of dial_udp().\n\n"
                               ">>> await udp.write(b'question')");
PyDoc_STRVAR(read_from_doc, "read_from(n=65536, /)\n--\n\n"
                            "Operation: the next message, and who sent it.\n\n"
                            ">>> data, addr = await udp.read_from()");
PyDoc_STRVAR(write_to_doc,
             "write_to(data, addr, /)\n--\n\n"
             "Operation: send a message. The host of `addr` is numeric: see resolve().\n\n"
             ">>> await udp.write_to(b'hello', ('127.0.0.1', 5353))");

static PyMethodDef packet_methods[] = {
    {"read", (PyCFunction)(void (*)(void))conn_read, METH_FASTCALL | METH_KEYWORDS,
     packet_read_doc},
    {"write", packet_write, METH_O, packet_write_doc},
    {"read_from", (PyCFunction)(void (*)(void))packet_read_from, METH_FASTCALL, read_from_doc},
    {"write_to", packet_write_to, METH_VARARGS, write_to_doc},
    {NULL},
};

static PyAsyncMethods packet_async = {.am_await = descriptor_await};

static PyTypeObject PacketConn_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.net.PacketConn",
    .tp_base = &Descriptor_Type,
    .tp_basicsize = sizeof(Conn),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "PacketConn(fd, /)\n--\n\nA socket for messages; see net.listen_udp() and "
              "net.dial_udp().\n\n"
              ">>> udp = net.listen_udp('127.0.0.1', 0)",
    .tp_new = descriptor_tp_new,
    .tp_as_async = &packet_async,
    .tp_methods = packet_methods,
    .tp_getset = conn_getset,
};

bool conn_module_init(PyObject *mod)
{
    PyTypeObject *types[] = {&Descriptor_Type, &Conn_Type, &Listener_Type, &PacketConn_Type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyModule_AddType(mod, types[i]) < 0) {
            return false;
        }
    }
    return PyType_Ready(&IoOp_Type) == 0;
}
