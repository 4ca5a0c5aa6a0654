/* Run queues: each P's ring and runnext, and the global queue. Go's runqput, runqget, runqgrab,
 * globrunqget. A queue owns one reference to each G in it, and that reference moves with the G.
 *
 * The ring has one producer (the P's M, while it holds the P in P_RUNNING) and many consumers.
 * Slots are atomics only because a thief may read one that the owner overwrites meanwhile; it then
 * loses the CAS on `head` and throws the value away.
 *   tail  stored with release by the owner: publishes the slot.
 *   head  CAS with release by whoever takes: the owner's acquire load of head before it reuses a slot
 *         then comes after the taker has read it. */
#include "trace.h"

static bool runq_spill(P *p, G *g, uint32_t head, uint32_t tail)
{
    /* Half of the ring, oldest first, and the newcomer: one lock for 129 goroutines. */
    G *batch[RING_SIZE / 2 + 1];
    uint32_t n = (tail - head) / 2;
    for (uint32_t i = 0; i < n; i++) {
        batch[i] = atomic_load_explicit(&p->ring[(head + i) % RING_SIZE], memory_order_relaxed);
    }
    if (!atomic_compare_exchange_strong_explicit(&p->head, &head, head + n, memory_order_release,
                                                 memory_order_relaxed)) {
        return false; /* thieves made room */
    }
    batch[n] = g;
    for (uint32_t i = 0; i < n; i++) {
        batch[i]->schedlink = batch[i + 1];
    }
    count_add(&p->nspill, 1);
    lock(&sched.lock);
    globrunq_put_list(batch[0], batch[n], (int)n + 1);
    unlock(&sched.lock);
    return true;
}

/* Owner only. `next`: it runs next and inherits the slice; whoever was there goes to the tail. */
void runq_put(P *p, G *g, bool next)
{
    if (next) {
        g = atomic_exchange_explicit(&p->runnext, g, memory_order_acq_rel);
        if (g == NULL) {
            return;
        }
    }
    for (;;) {
        uint32_t head = atomic_load_explicit(&p->head, memory_order_acquire);
        uint32_t tail = atomic_load_explicit(&p->tail, memory_order_relaxed);
        if (likely(tail - head < RING_SIZE)) {
            atomic_store_explicit(&p->ring[tail % RING_SIZE], g, memory_order_relaxed);
            atomic_store_explicit(&p->tail, tail + 1, memory_order_release);
            return;
        }
        if (runq_spill(p, g, head, tail)) {
            return;
        }
    }
}

/* Owner only. */
G *runq_get(P *p, bool *inherit)
{
    G *g = atomic_load_explicit(&p->runnext, memory_order_relaxed);
    /* If the CAS fails, a thief took it; only we set it, so there is nothing to retry. */
    if (g != NULL && atomic_compare_exchange_strong_explicit(
                         &p->runnext, &g, NULL, memory_order_acquire, memory_order_relaxed)) {
        *inherit = true;
        return g;
    }
    *inherit = false;
    for (;;) {
        uint32_t head = atomic_load_explicit(&p->head, memory_order_acquire);
        uint32_t tail = atomic_load_explicit(&p->tail, memory_order_relaxed);
        if (head == tail) {
            return NULL;
        }
        g = atomic_load_explicit(&p->ring[head % RING_SIZE], memory_order_relaxed);
        if (atomic_compare_exchange_strong_explicit(&p->head, &head, head + 1, memory_order_release,
                                                    memory_order_relaxed)) {
            return g;
        }
    }
}

/* Any thread. Empty means empty at one instant: the owner may kick runnext into the ring between our
 * looks at the one and the other, hence the second look at the tail. */
bool runq_empty(P *p)
{
    for (;;) {
        uint32_t head = atomic_load(&p->head);
        uint32_t tail = atomic_load(&p->tail);
        G *next = atomic_load(&p->runnext);
        if (tail == atomic_load(&p->tail)) {
            return head == tail && next == NULL;
        }
    }
}

/* Any thread: about how many are in the ring. */
uint32_t runq_length(P *p)
{
    uint32_t head = atomic_load(&p->head), n = atomic_load(&p->tail) - head;
    return n <= RING_SIZE ? n : 0; /* not of one instant: it was emptied meanwhile */
}

/* Move half of the victim's ring into ours, starting at `at`; return how many. We own our ring's free
 * part (we are its producer), so the writes need no order until our tail is stored. */
static uint32_t runq_grab(P *victim, P *p, uint32_t at, bool take_next)
{
    for (;;) {
        uint32_t head = atomic_load_explicit(&victim->head, memory_order_acquire);
        uint32_t tail = atomic_load_explicit(&victim->tail, memory_order_acquire);
        uint32_t n = tail - head;
        n -= n / 2;
        if (n == 0) {
            if (!take_next) {
                return 0;
            }
            G *next = atomic_load_explicit(&victim->runnext, memory_order_relaxed);
            if (next == NULL) {
                return 0;
            }
            /* A G readied just now runs on its own P in a moment, and a pair that plays ping-pong
             * would be torn apart each time: leave the owner some 3 us to get there first. */
            for (int i = 0; i < 64; i++) {
                cpu_pause();
            }
            if (!atomic_compare_exchange_strong_explicit(
                    &victim->runnext, &next, NULL, memory_order_acquire, memory_order_relaxed)) {
                continue;
            }
            atomic_store_explicit(&p->ring[at % RING_SIZE], next, memory_order_relaxed);
            return 1;
        }
        if (n > RING_SIZE / 2) {
            continue; /* head and tail were not of one instant */
        }
        for (uint32_t i = 0; i < n; i++) {
            G *g =
                atomic_load_explicit(&victim->ring[(head + i) % RING_SIZE], memory_order_relaxed);
            atomic_store_explicit(&p->ring[(at + i) % RING_SIZE], g, memory_order_relaxed);
        }
        if (atomic_compare_exchange_strong_explicit(&victim->head, &head, head + n,
                                                    memory_order_release, memory_order_relaxed)) {
            return n;
        }
    }
}

/* Owner of `p` only, whose ring is empty. The newest of the batch is run at once, the rest are queued. */
G *runq_steal(P *p, P *victim, bool take_next)
{
    uint32_t tail = atomic_load_explicit(&p->tail, memory_order_relaxed);
    uint32_t n = runq_grab(victim, p, tail, take_next);
    if (n == 0) {
        return NULL;
    }
    n--;
    G *g = atomic_load_explicit(&p->ring[(tail + n) % RING_SIZE], memory_order_relaxed);
    if (n > 0) {
        atomic_store_explicit(&p->tail, tail + n, memory_order_release);
    }
    count_add(&p->nsteal, (int)n + 1);
    trace_steal(victim, n + 1);
    return g;
}

/* The world is stopped and `p` goes away: all it holds as one list, runnext first. */
int runq_drain(P *p, G **first, G **last)
{
    int n = 0;
    bool inherit;
    *first = *last = NULL;
    for (G *g; (g = runq_get(p, &inherit)) != NULL; n++) {
        if (*last == NULL) {
            *first = g;
        }
        else {
            (*last)->schedlink = g;
        }
        *last = g;
    }
    return n;
}

/* ---- global queue: sched.lock for all of it ---- */

static void globrunq_resize(int by)
{
    atomic_store(&sched.runq_size,
                 atomic_load_explicit(&sched.runq_size, memory_order_relaxed) + by);
}

void globrunq_put_list(G *first, G *last, int n)
{
    last->schedlink = NULL;
    if (sched.runq_tail != NULL) {
        sched.runq_tail->schedlink = first;
    }
    else {
        sched.runq_head = first;
    }
    sched.runq_tail = last;
    globrunq_resize(n);
}

void globrunq_put(G *g)
{
    globrunq_put_list(g, g, 1);
}

void globrunq_put_head(G *first, G *last, int n)
{
    last->schedlink = sched.runq_head;
    sched.runq_head = first;
    if (sched.runq_tail == NULL) {
        sched.runq_tail = last;
    }
    globrunq_resize(n);
}

G *globrunq_get(void)
{
    G *g = sched.runq_head;
    if (g != NULL) {
        sched.runq_head = g->schedlink;
        if (sched.runq_head == NULL) {
            sched.runq_tail = NULL;
        }
        g->schedlink = NULL;
        globrunq_resize(-1);
    }
    return g;
}

/* A fair share, at most half a ring, into our empty ring; the first is for the caller to run. One that is wired to
 * another thread stays for him who has nothing else to do: most of them have had a whole slice and want the next, and
 * what is woken meanwhile would queue behind them all. */
G *globrunq_get_batch(P *p)
{
    int size = atomic_load_explicit(&sched.runq_size, memory_order_relaxed);
    int n = size / sched.procs + 1;
    n = n > size ? size : n;
    n = n > RING_SIZE / 2 ? RING_SIZE / 2 : n;
    G *first = globrunq_get();
    for (int i = 1; i < n && atomic_load(&sched.runq_head->wired) == NULL; i++) {
        runq_put(p, globrunq_get(), false);
    }
    return first;
}

/* The first that has a thread of its own. */
G *globrunq_get_wired(void)
{
    G *before = NULL, *g = sched.runq_head;
    while (g != NULL && atomic_load(&g->wired) == NULL) {
        before = g;
        g = g->schedlink;
    }
    if (g == NULL || before == NULL) {
        return g != NULL ? globrunq_get() : NULL;
    }
    before->schedlink = g->schedlink;
    if (sched.runq_tail == g) {
        sched.runq_tail = before;
    }
    g->schedlink = NULL;
    globrunq_resize(-1);
    return g;
}
