/* select: wait for several operations at once, of which exactly one is done.
 *
 * First look: with the locks of all its channels held (taken by address), it sees them in one instant and picks
 * at random among those that are ready. If none is, every case goes on its queue, still under the locks.
 * From then on the first waker to set `winner` wins; the others find it set and go on to the next waiter.
 * The woken goroutine takes the losers off their queues. They have not been used.
 *
 * Ownership: each queued case owns the select (Who, tagged), the select owns its goroutine until `winner` is set:
 * whoever sets it takes that reference over.
 *
 * A future is a case by way of the channel that is closed when it is done (future.c). It is begun, which calls into
 * Python, before the first look; a call that loses is cancelled. */
#include "future.h"

struct SelectOp {
    PyObject_VAR_HEAD
    G *g;
    _Atomic(const G *) waiter;  /* who awaits it: only ever compared, by others too */
    _Atomic(PyObject *) winner; /* NULL: open. One of the cases, or the select itself: taken back */
    _Atomic uint8_t state;
    uint8_t reason;
    bool has_default;
    PyObject *futures; /* owned: the FutureOps, in a tuple as long as `cases`; or NULL */
    PyObject *cases[]; /* owned: ChanOp, SleepOp, JoinOp, NULL for None; FutureOp until begun */
};

bool who_select_decided(Who who)
{
    return atomic_load(&((SelectOp *)who_object(who))->winner) != NULL;
}

static bool decide(SelectOp *sel, PyObject *winner)
{
    PyObject *open = NULL;
    return atomic_compare_exchange_strong(&sel->winner, &open, winner);
}

G *who_take_select(Who *who, PyObject *record, PyObject **drop)
{
    SelectOp *sel = (SelectOp *)who_object(*who);
    who->word = 0;
    *drop = (PyObject *)sel;
    if (!decide(sel, record)) {
        return NULL;
    }
    G *g = sel->g;
    sel->g = NULL;
    return g;
}

/* ---- the locks of all channels ---- */

#if HAVE_GIL
typedef struct {
    char nothing;
} Locks;

static bool lock_all(SelectOp *Py_UNUSED(sel), Locks *Py_UNUSED(l))
{
    return true;
}

static void unlock_all(Locks *Py_UNUSED(l)) {}
#else
typedef struct {
    Chan *few[16], **ch; /* by address, each once */
    Py_ssize_t n;
} Locks;

static int by_address(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

static bool lock_all(SelectOp *sel, Locks *l)
{
    Py_ssize_t n = 0, m = 0;
    l->ch = Py_SIZE(sel) <= 16 ? l->few : malloc((size_t)Py_SIZE(sel) * sizeof(Chan *));
    if (l->ch == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        if (sel->cases[i] != NULL && Py_IS_TYPE(sel->cases[i], &ChanOp_Type)) {
            l->ch[n++] = ((ChanOp *)sel->cases[i])->ch;
        }
    }
    qsort(l->ch, (size_t)n, sizeof(Chan *), by_address);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (m == 0 || l->ch[i] != l->ch[m - 1]) {
            l->ch[m++] = l->ch[i];
        }
    }
    l->n = m;
    for (Py_ssize_t i = 0; i < m; i++) {
        obj_lock(&l->ch[i]->lock);
    }
    return true;
}

static void unlock_all(Locks *l)
{
    for (Py_ssize_t i = 0; i < l->n; i++) {
        obj_unlock(&l->ch[i]->lock);
    }
    if (l->ch != l->few) {
        free(l->ch);
    }
}
#endif

/* ---- the cases ---- */

static bool case_ready(PyObject *c, int64_t *now_ns)
{
    if (Py_IS_TYPE(c, &ChanOp_Type)) {
        ChanOp *op = (ChanOp *)c;
        return chan_ready(op->ch, op->kind, now_ns);
    }
    if (Py_IS_TYPE(c, &SleepOp_Type)) {
        return sleep_is_over((SleepOp *)c);
    }
    return g_state(((JoinOp *)c)->target) == G_DEAD;
}

static uint32_t next_random(M *m)
{
    static _Thread_local uint32_t foreign = 1; /* in block() there is no M */
    return m != NULL ? m_random(m) : (foreign = foreign * 1664525 + 1013904223) >> 8;
}

/* One of the ready cases, each with the same chance; done. -1: there is none. */
static Py_ssize_t pick(SelectOp *sel, M *m, Wake *wake)
{
    int64_t now_ns = 0;
    for (;;) {
        Py_ssize_t found = -1;
        uint32_t nready = 0;
        for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
            if (sel->cases[i] == NULL || !case_ready(sel->cases[i], &now_ns)) {
                continue;
            }
            if (next_random(m) % ++nready == 0) {
                found = i;
            }
        }
        if (found < 0) {
            return -1;
        }
        PyObject *c = sel->cases[found];
        if (!Py_IS_TYPE(c, &ChanOp_Type)) {
            return found;
        }
        ChanOp *op = (ChanOp *)c;
        if (chan_try(op->ch, op, wake, &now_ns)) {
            return found;
        }
        /* Its waiters were those of selects that had been decided; now they are gone. */
    }
}

/* ---- futures among the cases ---- */

static PyObject *future_at(SelectOp *sel, Py_ssize_t index)
{
    if (sel->futures == NULL || index < 0) {
        return NULL;
    }
    PyObject *op = PyTuple_GET_ITEM(sel->futures, index);
    return op != Py_None ? op : NULL;
}

/* All but the winner: nobody waits for them any more. */
static void futures_end(SelectOp *sel, Py_ssize_t winner)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        PyObject *op = i != winner ? future_at(sel, i) : NULL;
        if (op != NULL && !Py_IS_TYPE(sel->cases[i], &FutureOp_Type)) {
            future_give_up(op);
        }
    }
}

/* Put what they wait for in their place. False: an exception. */
static bool futures_begin(SelectOp *sel)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        PyObject *op = future_at(sel, i), *wait = op != NULL ? future_begin(op) : NULL;
        if (wait != NULL) {
            Py_SETREF(sel->cases[i], Py_NewRef(wait));
        }
        else if (op != NULL) {
            futures_end(sel, -1);
            return false;
        }
    }
    return true;
}

/* What a case has given. */
static PyObject *selected(SelectOp *sel, Py_ssize_t index)
{
    PyObject *value;
    bool ok = false;
    if (index < 0) {
        value = Py_NewRef(Py_None);
    }
    else {
        PyObject *c = sel->cases[index], *future = future_at(sel, index);
        if (future != NULL) {
            value = future_result(future);
            ok = true;
        }
        else if (Py_IS_TYPE(c, &ChanOp_Type)) {
            value = chanop_value((ChanOp *)c, &ok);
        }
        else {
            value =
                Py_IS_TYPE(c, &SleepOp_Type) ? Py_NewRef(Py_None) : g_result(((JoinOp *)c)->target);
            ok = true;
        }
        if (value == NULL) {
            return NULL;
        }
    }
    /* Selected(index, value, ok), a tuple with a name */
    PyTypeObject *type = (PyTypeObject *)hooks.Selected;
    PyObject *result = type->tp_alloc(type, 3), *number = PyLong_FromSsize_t(index);
    if (result == NULL || number == NULL) {
        Py_XDECREF(result);
        Py_XDECREF(number);
        Py_DECREF(value);
        return NULL;
    }
    PyTuple_SET_ITEM(result, 0, number);
    PyTuple_SET_ITEM(result, 1, value);
    PyTuple_SET_ITEM(result, 2, Py_NewRef(ok ? Py_True : Py_False));
    return result;
}

/* Unless it is off already: then it may be another's by now. */
static void unlink_chanop(SelectOp *sel, ChanOp *op)
{
    Chan *ch = op->ch;
    PyObject *timer = NULL;
    obj_lock(&ch->lock);
    bool ours = op_state(op) == OP_WAITING && op->who.word == ((uintptr_t)sel | 1);
    if (ours) {
        chan_unlink(ch, op);
        op->who = (Who){0};
        op_set_state(op, OP_NEW);
        timer = chan_take_heap_ref(ch);
    }
    obj_unlock(&ch->lock);
    if (ours) {
        Py_DECREF(sel);
        Py_DECREF(op);
    }
    Py_XDECREF(timer);
}

/* The select is decided: take everything off its queue that is still on one. Taking the lock also waits for a
 * waker that is about to complete the winner. */
static void unlink_cases(SelectOp *sel)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        PyObject *c = sel->cases[i];
        if (c == NULL) {
            continue;
        }
        if (Py_IS_TYPE(c, &ChanOp_Type)) {
            unlink_chanop(sel, (ChanOp *)c);
        }
        else if (Py_IS_TYPE(c, &SleepOp_Type)) {
            sleep_unselect((SleepOp *)c);
        }
        else {
            join_unselect((JoinOp *)c);
        }
    }
}

/* Locks held: queue the cases that are channels, in random order: of two on one channel the first in its queue
 * will win. False: no memory, and an exception. */
static bool enqueue_channels(SelectOp *sel, M *m, uint32_t *order)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        uint32_t j = next_random(m) % (uint32_t)(i + 1);
        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        ChanOp *op = (ChanOp *)sel->cases[order[i]];
        if (op == NULL || !Py_IS_TYPE(op, &ChanOp_Type)) {
            continue;
        }
        op->who = (Who){(uintptr_t)Py_NewRef(sel) | 1};
        if (!chan_enqueue(m, op->ch, op)) {
            op->who = (Who){0};
            Py_DECREF(sel); /* not the last: it is being awaited */
            return false;
        }
    }
    return true;
}

/* No locks held; the channels may have woken us already, and then this is in vain. False: as above. */
static bool enqueue_others(SelectOp *sel, M *m)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(sel) && atomic_load(&sel->winner) == NULL; i++) {
        PyObject *c = sel->cases[i];
        if (c == NULL || Py_IS_TYPE(c, &ChanOp_Type)) {
            continue;
        }
        if (Py_IS_TYPE(c, &SleepOp_Type)) {
            if (sleep_select(m, (SleepOp *)c, sel) < 0) {
                return false;
            }
        }
        else if (join_select((JoinOp *)c, sel) < 0 && decide(sel, c)) { /* it has just died */
            Py_CLEAR(sel->g);
        }
    }
    return true;
}

static PySendResult finish(SelectOp *sel, PyObject **result)
{
    PyObject *winner = atomic_load(&sel->winner);
    Py_ssize_t index = winner == (PyObject *)sel ? -1 : 0; /* the default */
    while (index >= 0 && sel->cases[index] != winner) {
        index++;
    }
    sel->state = OP_DONE;
    *result = selected(sel, index);
    if (unlikely(sel->futures != NULL)) {
        futures_end(sel, index);
    }
    return *result != NULL ? PYGEN_RETURN : PYGEN_ERROR;
}

static bool check_cases(SelectOp *sel, G *g)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        PyObject *c = sel->cases[i];
        if (c == NULL || Py_IS_TYPE(c, &FutureOp_Type)) { /* future_begin() sees to those */
            continue;
        }
        if (Py_IS_TYPE(c, &JoinOp_Type)) {
            if (((JoinOp *)c)->target == g) {
                PyErr_Format(PyExc_RuntimeError, "goroutine %llu awaits itself",
                             (unsigned long long)g->id);
                return false;
            }
        }
        else {
            int state =
                Py_IS_TYPE(c, &ChanOp_Type) ? op_state((ChanOp *)c) : sleep_state((SleepOp *)c);
            if (state != OP_NEW) {
                op_error_used(c, state);
                return false;
            }
        }
    }
    return true;
}

/* Locks held: nobody else has begun one of them meanwhile. */
static PyObject *find_used(SelectOp *sel)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        PyObject *c = sel->cases[i];
        if (c != NULL && Py_IS_TYPE(c, &ChanOp_Type) && op_state((ChanOp *)c) != OP_NEW) {
            return c;
        }
    }
    return NULL;
}

/* Looks, and waits if it must. Releases the locks. */
static PySendResult select_locked(M *m, G *g, SelectOp *sel, Locks *locks, uint32_t *order,
                                  bool any, PyObject **result)
{
    Wake wake = {0};
    PyObject *used = find_used(sel);
    if (used != NULL) {
        unlock_all(locks);
        op_error_other(used);
        return PYGEN_ERROR;
    }
    Py_ssize_t index = pick(sel, m, &wake);
    if (index >= 0 || sel->has_default) {
        unlock_all(locks);
        wake_now(m, &wake);
        atomic_store(&sel->winner, index >= 0 ? sel->cases[index] : (PyObject *)sel);
        if (op_slice_over(m)) {
            atomic_store_explicit(&sel->waiter, g,
                                  memory_order_relaxed); /* first: see select_send */
            sel->state = OP_FIRED;
            return op_yield(g, result);
        }
        return finish(sel, result);
    }
    sel->g = (G *)Py_NewRef(g);
    atomic_store_explicit(&sel->waiter, g, memory_order_relaxed);
    bool ok = enqueue_channels(sel, m, order);
    unlock_all(locks);
    ok = ok && enqueue_others(sel, m);
    PyObject *winner = atomic_load(&sel->winner);
    if (likely(ok && winner == NULL)) {
        sel->reason = any ? WAIT_SELECT : WAIT_NO_CASES;
        sel->state = OP_WAITING;
        wake_now(m, &wake);
        return op_suspend(g, sel->reason, result);
    }
    wake_now(m, &wake);
    /* Decided before we could wait, or out of memory (then a value that arrived is delivered all the same). */
    if (winner == NULL && decide(sel, (PyObject *)sel)) {
        Py_CLEAR(sel->g);
        unlink_cases(sel);
        return PYGEN_ERROR;
    }
    PyErr_Clear();
    unlink_cases(sel);
    return finish(sel, result);
}

static PySendResult select_begun(M *m, G *g, SelectOp *sel, PyObject **result)
{
    Locks locks;
    bool any = false;
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        PyObject *c = sel->cases[i];
        any |= c != NULL;
        if (c != NULL && Py_IS_TYPE(c, &ChanOp_Type) && sharing()) {
            compat_share(c);
            if (((ChanOp *)c)->value != NULL) {
                compat_share(((ChanOp *)c)->value);
            }
        }
    }
    uint32_t few[16], *order = few;
    if (Py_SIZE(sel) > 16 && (order = malloc((size_t)Py_SIZE(sel) * sizeof *order)) == NULL) {
        PyErr_NoMemory();
        return PYGEN_ERROR;
    }
    PySendResult r = PYGEN_ERROR;
    if (lock_all(sel, &locks)) {
        r = select_locked(m, g, sel, &locks, order, any, result);
    }
    if (order != few) {
        free(order);
    }
    return r;
}

static PySendResult select_begin(M *m, G *g, SelectOp *sel, PyObject **result)
{
    uint8_t fresh = OP_NEW;
    if (!atomic_compare_exchange_strong(&sel->state, &fresh, OP_DONE)) {
        op_error_used((PyObject *)sel, fresh);
        return PYGEN_ERROR;
    }
    if (op_raise_if_cancelled(g) || !check_cases(sel, g) ||
        (sel->futures != NULL && !futures_begin(sel))) {
        return PYGEN_ERROR;
    }
    PySendResult r = select_begun(m, g, sel, result);
    if (unlikely(r == PYGEN_ERROR && sel->futures != NULL)) {
        futures_end(sel, -1);
    }
    return r;
}

static PySendResult select_send(PyObject *self, PyObject *Py_UNUSED(arg), PyObject **result)
{
    SelectOp *sel = (SelectOp *)self;
    M *m = tls_m;
    *result = NULL;
    G *g = op_begin(m, self, sel->state);
    if (g == NULL) {
        return PYGEN_ERROR;
    }
    if (sel->state == OP_NEW) {
        return select_begin(m, g, sel, result);
    }
    /* Another may be about to begin it. */
    if (atomic_load_explicit(&sel->waiter, memory_order_relaxed) != g) {
        op_error_other(self);
        return PYGEN_ERROR;
    }
    if (sel->state == OP_FIRED) {
        return finish(sel, result);
    }
    if (atomic_load(&sel->winner) == NULL) {
        if (!op_cancel_pending(g)) { /* a wake-up meant for an earlier wait */
            return op_suspend(g, sel->reason, result);
        }
        if (decide(sel, self)) {
            sel->state = OP_DONE;
            Py_CLEAR(sel->g); /* not the last: the M that runs us holds one */
            unlink_cases(sel);
            op_raise_taken_back(g);
            futures_end(sel, -1);
            return PYGEN_ERROR;
        }
    }
    unlink_cases(sel);
    return finish(sel, result); /* a cancellation waits for the next operation */
}

static PyObject *select_close(PyObject *self, PyObject *Py_UNUSED(a))
{
    SelectOp *sel = (SelectOp *)self;
    if (sel->state == OP_WAITING && op_closed_by_hand(sel->waiter)) {
        sel->state = OP_DONE;
        if (decide(sel, self)) {
            Py_CLEAR(sel->g);
        }
        unlink_cases(sel); /* also if it was won just now: nobody else will */
        futures_end(sel, -1);
    }
    Py_RETURN_NONE;
}

static PyMethodDef select_methods[] = {{"close", select_close, METH_NOARGS, NULL}, {NULL}};

/* ---- making one ---- */

/* The object behind a case: a new reference, NULL with an exception. */
static PyObject *as_case(PyObject *c)
{
    if (Py_IS_TYPE(c, &ChanOp_Type) && ((ChanOp *)c)->ch == NULL) {
        op_error_used(c, OP_DONE);
        return NULL;
    }
    if (Py_IS_TYPE(c, &ChanOp_Type) || Py_IS_TYPE(c, &SleepOp_Type) ||
        Py_IS_TYPE(c, &FutureOp_Type)) {
        return Py_NewRef(c);
    }
    if (Py_IS_TYPE(c, &Goroutine_Type)) {
        return join_new(c);
    }
    PyObject *op = PyObject_CallOneArg(hooks.as_case, c);
    if (op != Py_None) {
        return op;
    }
    Py_DECREF(op);
    PyErr_Format(PyExc_TypeError,
                 "select() cannot wait for %R: a case is ch.send(v), ch.recv(), ch.recv_ok(), "
                 "sleep(s), a Goroutine, a Future, offload(...) or None",
                 c);
    return NULL;
}

/* False: no memory. */
static bool futures_add(SelectOp *sel, Py_ssize_t index)
{
    if (sel->futures == NULL) {
        sel->futures = PyTuple_New(Py_SIZE(sel));
        for (Py_ssize_t i = 0; sel->futures != NULL && i < Py_SIZE(sel); i++) {
            PyTuple_SET_ITEM(sel->futures, i, Py_NewRef(Py_None));
        }
    }
    if (sel->futures != NULL) {
        PyObject *none = PyTuple_GET_ITEM(sel->futures, index);
        PyTuple_SET_ITEM(sel->futures, index, Py_NewRef(sel->cases[index]));
        Py_DECREF(none);
    }
    return sel->futures != NULL;
}

PyObject *core_select(PyObject *Py_UNUSED(mod), PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames)
{
    int has_default = 0;
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "default") != 0) {
            PyErr_Format(PyExc_TypeError, "select() got an unexpected keyword argument %R",
                         PyTuple_GET_ITEM(kwnames, i));
            return NULL;
        }
        if ((has_default = PyObject_IsTrue(args[nargs + i])) < 0) {
            return NULL;
        }
    }
    SelectOp *sel = PyObject_GC_NewVar(SelectOp, &SelectOp_Type, nargs);
    if (sel == NULL) {
        return NULL;
    }
    live_add(tls_m, LIVE_OP, 1);
    sel->g = NULL;
    atomic_store_explicit(&sel->waiter, NULL, memory_order_relaxed);
    atomic_store_explicit(&sel->winner, NULL, memory_order_relaxed);
    sel->state = OP_NEW;
    sel->has_default = has_default;
    sel->futures = NULL;
    memset(sel->cases, 0, (size_t)nargs * sizeof(PyObject *));
    if (sharing()) {
        compat_share_new((PyObject *)sel);
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        if (args[i] == Py_None) {
            continue;
        }
        sel->cases[i] = as_case(args[i]);
        for (Py_ssize_t j = 0; j < i && sel->cases[i] != NULL; j++) {
            if (sel->cases[j] == sel->cases[i]) {
                PyErr_Format(PyExc_ValueError, "select() got %R twice: make one for each case",
                             args[i]);
                Py_CLEAR(sel->cases[i]);
            }
        }
        if (sel->cases[i] == NULL ||
            (Py_IS_TYPE(sel->cases[i], &FutureOp_Type) && !futures_add(sel, i))) {
            Py_DECREF(sel);
            return NULL;
        }
    }
    PyObject_GC_Track(sel);
    return (PyObject *)sel;
}

static int select_traverse(PyObject *self, visitproc visit, void *arg)
{
    SelectOp *sel = (SelectOp *)self;
    Py_VISIT(sel->g);
    Py_VISIT(sel->futures);
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        Py_VISIT(sel->cases[i]);
    }
    return 0;
}

static int select_clear(PyObject *self)
{
    Py_CLEAR(((SelectOp *)self)->g);
    return 0; /* the cases stay: they are looked at whenever the select is; dealloc drops them */
}

static void select_dealloc(PyObject *self)
{
    SelectOp *sel = (SelectOp *)self;
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, select_dealloc);
    select_clear(self);
    for (Py_ssize_t i = 0; i < Py_SIZE(sel); i++) {
        Py_CLEAR(sel->cases[i]);
    }
    Py_CLEAR(sel->futures);
    live_add(tls_m, LIVE_OP, -1);
    PyObject_GC_Del(self);
    Py_TRASHCAN_END
}

static PyObject *select_repr(PyObject *self)
{
    SelectOp *sel = (SelectOp *)self;
    return PyUnicode_FromFormat("<select of %zd cases, %s>", Py_SIZE(sel),
                                op_state_text(sel->state));
}

static PyAsyncMethods select_async = {.am_send = select_send};

PyTypeObject SelectOp_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.SelectOp",
    .tp_base = &Operation_Type,
    .tp_basicsize = offsetof(SelectOp, cases),
    .tp_itemsize = sizeof(PyObject *),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "The operation that select() returns.",
    .tp_dealloc = select_dealloc,
    .tp_traverse = select_traverse,
    .tp_clear = select_clear,
    .tp_repr = select_repr,
    .tp_as_async = &select_async,
    .tp_methods = select_methods,
};
