/* The poller and descriptors, as netpoll.c, fdwait.c, addr.c, conn.c and proc.c see them. */
#ifndef GOFER_NET_H
#define GOFER_NET_H

#include "runtime.h"

#include <sys/epoll.h>
#include <sys/socket.h>

/* ---- netpoll.c -------------------------------------------------------------------------------- */

enum { SIDE_READ, SIDE_WRITE, SIDES };
enum { POLL_EVENTS = 128 }; /* taken from the kernel at a time, as in Go */

/* One word for each direction of a descriptor:
 *   POLL_NIL     nothing is known
 *   POLL_READY   there was an edge that nobody has used yet
 *   else         a G that waits for the next edge. The word owns a reference to it.
 * The poller exchanges it for POLL_READY and owns what it finds; whoever else wants to take the G out does
 * so with a CAS. So an edge is never lost, and exactly one wakes the G. */
enum { POLL_NIL = 0, POLL_READY = 1 };

/* Never freed, since the kernel may report one that was closed an instant ago: `seq` tells. (Even an event
 * that slips through does no harm: whoever is woken tries, and waits again.) */
typedef struct PollDesc {
    _Atomic(uintptr_t) word[SIDES];
    _Atomic uint32_t seq;
    uint32_t index;
    _Atomic uint32_t run;  /* the poller it is registered with, see netpoll_run */
    _Atomic uint8_t rough; /* there was more than data: end of file, error, urgent data */
    _Atomic int fdwait;    /* fdwait.c's: the descriptor, plus 1. 0: a Conn's */
    _Atomic int fd;        /* a Conn's: for the trace */
    struct PollDesc *next_free;
} PollDesc;

typedef struct {
    int n;
    struct epoll_event all[POLL_EVENTS];
} PollEvents;

extern _Atomic int32_t
    netpoll_waiters; /* goroutines in words and in fdwait.c: they are not deadlocked */
extern _Atomic uint32_t netpoll_due; /* events have been lying there for long: somebody must look */

bool netpoll_on(void);
uint32_t netpoll_run(void); /* changes with every poller */
bool netpoll_start(void);   /* false: errno */
void netpoll_stop(void);    /* the run is over */
PollDesc *desc_new(void);   /* NULL: no memory */
void desc_free(PollDesc *pd);
bool netpoll_ctl(int op, int fd, uint32_t events, PollDesc *pd); /* false: errno */
bool netpoll_add(int fd, PollDesc *pd); /* for good, both ways, edges only. False: errno */
/* Detached; until then, or until `note` is set and netpoll_break called. */
void netpoll_wait(PollEvents *events, const Note *note, int64_t until_ns);
void netpoll_break(void);
int netpoll_look(M *m); /* without waiting; P in P_RUNNING. How many were woken */
int netpoll_ready(M *m, const PollEvents *events); /* attached; m's P, if any, in P_RUNNING */
bool netpoll_stalled(
    int64_t now_ns); /* sysmon: something is there, and nobody has looked for long */
uint64_t netpoll_polls(void);

typedef struct { /* for stats() */
    uint64_t polls, events;
    uint32_t descriptors, waiting[SIDES];
} PollerLook;
PollerLook netpoll_stats(void);

static inline void netpoll_count(int n)
{
    atomic_fetch_add(&netpoll_waiters, n);
}

/* ---- fdwait.c: wait_readable(), wait_writable() ------------------------------------------------- */

int fdwait_ready(M *m, PollDesc *pd, uint32_t seq, uint32_t events);
void fdwait_forget(int fd); /* the number is a Conn's now */
void fdwait_discard(void);  /* the run is over */
void fdwait_count(uint32_t waiting[SIDES]);
bool fdwait_module_init(PyObject *mod);

/* ---- addr.c ------------------------------------------------------------------------------------ */

typedef union {
    struct sockaddr sa;
    struct sockaddr_storage storage;
} Address;

PyObject *addr_to_object(const Address *a, socklen_t len);         /* as module socket has them */
socklen_t addr_from_object(PyObject *obj, int family, Address *a); /* 0: exception */

/* ---- conn.c ------------------------------------------------------------------------------------ */

void conn_due(M *m, PyObject *owner, int64_t now_ns); /* P in P_RUNNING; eats the reference */
void conn_dropped(PyObject *owner);
bool conn_module_init(PyObject *mod);

#endif
