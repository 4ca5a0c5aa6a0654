/* The network poller: epoll, edge-triggered, each descriptor registered once for both directions.
 *
 * WHO POLLS. An M that finds no other work looks without waiting (find_runnable); one M, of those that have
 * nothing to do at all, waits in the kernel in place of its note until the next timer (stop_m), and
 * netpoll_break() gets it out. When all Ms are busy, sysmon notices that nobody has looked for 10 ms. It does
 * not touch goroutines, so it only says so (netpoll_due), and the next M that comes by looks.
 *
 * WHAT IS OWNED. A word of a PollDesc owns the G that stands in it: the poller is a root for the collector,
 * as the timer heaps are. Only threads attached to Python change words. The wait in the kernel is detached;
 * what it brought is handed out afterwards.
 *
 * Another system's poller (kqueue) would replace this file: registration, wait, break. */
#include "net.h"
#include "trace.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHUNK = 256, CHUNKS = 1 << 14 };
#define STALL_NS      SLICE_NS  /* nobody has polled for so long: something is wrong ... */
#define IDLE_STALL_NS 1000000LL /* ... sooner if there is an idle P */

static struct {
    _Atomic int epfd;          /* -1: nobody has needed it in this run */
    int wake_fd;               /* an eventfd, level-triggered */
    _Atomic uint32_t run;      /* counts the pollers this process has had */
    _Atomic uint32_t breaking; /* somebody has written to wake_fd, and it has not been read */
    _Atomic int32_t inside;    /* Ms in netpoll_wait: two for a moment, when one has been got out */
    _Atomic uint32_t looking;  /* an M is in netpoll_look: one at a time is enough */
    _Atomic uint64_t polls;    /* calls of the kernel: what sysmon watches */
    _Atomic uint64_t events;   /* what these brought */
    uint64_t seen_polls;       /* by sysmon */
    int64_t seen_ns;
    Lock lock; /* over start and stop, and all below */
    PollDesc *free;
    uint32_t ndescs, nused;
    _Atomic(PollDesc *)
        chunks[CHUNKS]; /* set once each, so that an index may be looked up without the lock */
} net = {.epfd = -1, .wake_fd = -1};

_Atomic int32_t netpoll_waiters;
_Atomic uint32_t netpoll_due;

bool netpoll_on(void)
{
    return atomic_load_explicit(&net.epfd, memory_order_relaxed) >= 0;
}

uint32_t netpoll_run(void)
{
    return atomic_load_explicit(&net.run, memory_order_relaxed);
}

uint64_t netpoll_polls(void)
{
    return atomic_load_explicit(&net.polls, memory_order_relaxed);
}

static PollDesc *desc_at(uint32_t index)
{
    PollDesc *chunk = atomic_load_explicit(&net.chunks[index / CHUNK], memory_order_acquire);
    return &chunk[index % CHUNK];
}

PollerLook netpoll_stats(void)
{
    PollerLook look = {.polls = netpoll_polls(), .events = atomic_load(&net.events)};
    lock(&net.lock);
    uint32_t n = net.ndescs;
    look.descriptors = net.nused;
    unlock(&net.lock);
    for (uint32_t i = 0; i < n; i++) { /* never freed: see PollDesc */
        PollDesc *pd = desc_at(i);
        for (int side = 0; side < SIDES; side++) {
            look.waiting[side] +=
                atomic_load_explicit(&pd->word[side], memory_order_relaxed) > POLL_READY;
        }
    }
    fdwait_count(look.waiting);
    return look;
}

/* ---- descriptors ---- */

PollDesc *desc_new(void)
{
    lock(&net.lock);
    if (net.free == NULL && net.ndescs < (uint32_t)CHUNK * CHUNKS) {
        PollDesc *chunk = calloc(CHUNK, sizeof *chunk);
        for (uint32_t i = 0; chunk != NULL && i < CHUNK; i++) {
            chunk[i].index = net.ndescs + i;
            chunk[i].next_free = i + 1 < CHUNK ? &chunk[i + 1] : NULL;
        }
        if (chunk != NULL) {
            atomic_store_explicit(&net.chunks[net.ndescs / CHUNK], chunk, memory_order_release);
            net.ndescs += CHUNK;
            net.free = chunk;
        }
    }
    PollDesc *pd = net.free;
    if (pd != NULL) {
        net.free = pd->next_free;
        net.nused++;
    }
    unlock(&net.lock);
    if (pd == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    /* Late events for the one that had it before may have left their mark. */
    for (int side = 0; side < SIDES; side++) {
        atomic_store(&pd->word[side], POLL_NIL);
    }
    atomic_store(&pd->rough, 0);
    atomic_store(&pd->fdwait, 0);
    atomic_store(&pd->run, 0);
    return pd;
}

/* Nobody waits on it. */
void desc_free(PollDesc *pd)
{
    atomic_fetch_add(&pd->seq, 1); /* events that are under way are for another */
    lock(&net.lock);
    pd->next_free = net.free;
    net.free = pd;
    net.nused--;
    unlock(&net.lock);
}

bool netpoll_ctl(int op, int fd, uint32_t events, PollDesc *pd)
{
    uint64_t tag = (uint64_t)atomic_load(&pd->seq) << 32 | pd->index;
    struct epoll_event event = {.events = events, .data.u64 = tag};
    return epoll_ctl(atomic_load(&net.epfd), op, fd, &event) == 0;
}

bool netpoll_add(int fd, PollDesc *pd)
{
    const uint32_t all = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET;
    uint32_t run = netpoll_run();
    fdwait_forget(fd);
    atomic_store_explicit(&pd->fd, fd, memory_order_relaxed);
    /* EEXIST: wait_readable() has known it before it became a Conn's */
    if (!netpoll_ctl(EPOLL_CTL_ADD, fd, all, pd) &&
        (errno != EEXIST || !netpoll_ctl(EPOLL_CTL_MOD, fd, all, pd))) {
        return false;
    }
    atomic_store_explicit(&pd->run, run, memory_order_relaxed);
    return true;
}

/* ---- start and stop ---- */

/* The index of no descriptor. */
static const uint64_t WAKE_TAG = UINT64_MAX;

bool netpoll_start(void)
{
    if (likely(netpoll_on())) {
        return true;
    }
    lock(&net.lock);
    int error = 0;
    bool first = !netpoll_on();
    if (first) {
        int epfd = epoll_create1(EPOLL_CLOEXEC);
        int wake_fd = epfd >= 0 ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE_TAG};
        if (wake_fd < 0 || epoll_ctl(epfd, EPOLL_CTL_ADD, wake_fd, &event) < 0) {
            error = errno;
            close(epfd);
            close(wake_fd);
        }
        else {
            net.wake_fd = wake_fd;
            atomic_store(&net.breaking, 0);
            atomic_fetch_add(&net.run, 1);
            atomic_store(&net.epfd, epfd);
        }
    }
    unlock(&net.lock);
    if (first && error == 0) {
        poller_look(0); /* the M that watches the timers does not sleep in the kernel: it shall */
    }
    errno = error;
    return error == 0;
}

/* All Ms have ended. Descriptors that are still open register anew when they are used in another run. */
void netpoll_stop(void)
{
    fdwait_discard();
    for (uint32_t i = 0; i < net.ndescs; i++) { /* only an aborted run leaves somebody here */
        PollDesc *pd = desc_at(i);
        for (int side = 0; side < SIDES; side++) {
            uintptr_t was = atomic_exchange(&pd->word[side], POLL_NIL);
            if (was > POLL_READY) {
                netpoll_count(-1);
                Py_DECREF((PyObject *)was);
            }
        }
    }
    lock(&net.lock);
    int epfd = atomic_exchange(&net.epfd, -1), wake_fd = net.wake_fd;
    net.wake_fd = -1;
    atomic_fetch_add(&net.run, 1); /* nobody is registered with any */
    atomic_store(&netpoll_due, 0);
    unlock(&net.lock);
    if (epfd >= 0) {
        close(epfd);
        close(wake_fd);
    }
}

/* ---- polling ---- */

/* Waits to the nanosecond where the kernel can (5.11), else to the millisecond, rounded up: never early. */
static int epoll_until(int epfd, PollEvents *events, int64_t until_ns)
{
    int64_t wait = until_ns == TIME_NEVER ? 0 : until_ns - nanotime();
    wait = wait < 0 ? 0 : wait;
#ifdef SYS_epoll_pwait2
    static _Atomic bool missing;
    if (!atomic_load_explicit(&missing, memory_order_relaxed)) {
        struct timespec ts = {wait / NS_PER_S, wait % NS_PER_S};
        int n = (int)syscall(SYS_epoll_pwait2, epfd, events->all, POLL_EVENTS,
                             until_ns == TIME_NEVER ? NULL : &ts, NULL, (size_t)0);
        if (n >= 0 || (errno != ENOSYS && errno != EPERM)) {
            return n;
        }
        atomic_store(&missing, true);
    }
#endif
    int64_t ms = (wait + 999999) / 1000000;
    int most = ms < 1000000000 ? (int)ms : 1000000000;
    return epoll_wait(epfd, events->all, POLL_EVENTS, until_ns == TIME_NEVER ? -1 : most);
}

/* Whoever wakes us sets `note` and breaks then. If the break is read by another M that is in here, that passes it
 * on to us, if it sees us; and if it came too early for that, we see the note. */
void netpoll_wait(PollEvents *events, const Note *note, int64_t until_ns)
{
    atomic_fetch_add(&net.inside, 1);
    int n =
        atomic_load(&note->word) == 0 ? epoll_until(atomic_load(&net.epfd), events, until_ns) : 0;
    atomic_fetch_sub(&net.inside, 1);
    atomic_fetch_add_explicit(&net.polls, 1, memory_order_relaxed);
    events->n = n > 0 ? n : 0; /* a signal: whoever waits looks round and comes back */
    for (int i = 0; i < events->n; i++) {
        if (events->all[i].data.u64 == WAKE_TAG) {
            uint64_t count;
            if (read(net.wake_fd, &count, sizeof count) > 0) {
                atomic_store(&net.breaking, 0);
            }
            if (atomic_load(&net.inside) > 0) {
                netpoll_break(); /* it may have been meant for the other */
            }
            events->all[i] = events->all[--events->n];
            break;
        }
    }
}

/* Get the M that waits in the kernel out of there, or the next one that would. */
void netpoll_break(void)
{
    uint32_t no = 0;
    uint64_t one = 1;
    if (atomic_compare_exchange_strong(&net.breaking, &no, 1) &&
        write(net.wake_fd, &one, sizeof one) < 0) {
        atomic_store(&net.breaking, 0);
    }
}

int netpoll_look(M *m)
{
    PollEvents events;
    atomic_store_explicit(&netpoll_due, 0, memory_order_relaxed);
    if (atomic_exchange(&net.looking, 1)) {
        return 0;
    }
    events.n = epoll_wait(atomic_load(&net.epfd), events.all, POLL_EVENTS, 0);
    atomic_fetch_add_explicit(&net.polls, 1, memory_order_relaxed);
    atomic_store_explicit(&net.looking, 0, memory_order_release);
    return netpoll_ready(m, &events);
}

static int side_ready(M *m, PollDesc *pd, int side)
{
    uintptr_t was = atomic_exchange(&pd->word[side], POLL_READY);
    if (was <= POLL_READY) {
        return 0;
    }
    netpoll_count(-1);
    trace_net_ready(atomic_load_explicit(&pd->fd, memory_order_relaxed), (G *)was);
    if (!goready_quietly(m, (G *)was)) {
        drop_later(m, (PyObject *)was);
    }
    return 1;
}

/* One that is woken, we run ourselves: for that another M is not worth its switch. If it computes for long, sysmon
 * sees to it that somebody polls. */
int netpoll_ready(M *m, const PollEvents *events)
{
    int woken = 0;
    if (events->n > 0) {
        atomic_fetch_add_explicit(&net.events, (uint64_t)events->n, memory_order_relaxed);
    }
    for (int i = 0; i < events->n; i++) {
        uint64_t tag = events->all[i].data.u64;
        uint32_t what = events->all[i].events, seq = (uint32_t)(tag >> 32);
        if (unlikely(tag == WAKE_TAG)) {
            continue; /* meant for the M that waits: left for it to read */
        }
        PollDesc *pd = desc_at((uint32_t)tag);
        if (unlikely(atomic_load(&pd->seq) != seq)) {
            continue; /* closed meanwhile */
        }
        if (unlikely(atomic_load_explicit(&pd->fdwait, memory_order_relaxed) != 0)) {
            woken += fdwait_ready(m, pd, seq, what);
            continue;
        }
        if (unlikely(what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI))) {
            atomic_store(&pd->rough, 1); /* before the word: who sees that sees this */
        }
        if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI)) {
            woken += side_ready(m, pd, SIDE_READ);
        }
        if (what & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
            woken += side_ready(m, pd, SIDE_WRITE);
        }
    }
    trace_net_poll(woken);
    if (woken > 1 || (woken > 0 && m->p == NULL)) {
        wakep();
    }
    return woken;
}

bool netpoll_stalled(int64_t now_ns)
{
    uint64_t polls = netpoll_polls();
    if (polls != net.seen_polls || atomic_load(&sched.poll_until_ns) != 0) {
        net.seen_polls = polls;
        net.seen_ns = now_ns;
        return false;
    }
    int64_t patience = atomic_load(&sched.npidle) > 0 ? IDLE_STALL_NS : STALL_NS;
    if (!netpoll_on() || now_ns - net.seen_ns < patience || atomic_load(&netpoll_waiters) == 0) {
        return false;
    }
    struct pollfd p = {.fd = atomic_load(&net.epfd), .events = POLLIN};
    return poll(&p, 1, 0) > 0; /* an epoll descriptor is readable if it has events */
}
