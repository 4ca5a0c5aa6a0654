/* Contexts: Go's context and a cancel scope in one.
 *
 * A context is over when it is cancelled, its deadline has passed, or its parent is over. Goroutines are bound to
 * contexts (`async with ctx`, inherited by go()); while one of these is over, every operation of theirs
 * raises Cancelled. The end of a context leaves the hint G_OVER in the goroutine's state word and wakes it; an
 * operation that sees the hint looks at its contexts (context_over). Otherwise a binding costs an operation nothing.
 *
 * LOCKING. A tree, from a child of background() (or a context without_cancel) downwards, has one lock, its root's.
 * It guards all lists of the tree. p_enter first, that lock, then a channel's: as everywhere.
 *
 * OWNERSHIP. A child owns its parent. A parent owns a child only while it is *pinned*: while a goroutine is bound to
 * it, somebody has its `done`, a function is to be called, or a child of it is pinned. So a context that has been dropped
 * goes, and one whose end somebody waits for stays. Its timer is armed only while it is pinned too; err() of others
 * looks at the clock. A context owns the goroutines bound to it: it can wake them, so they are no leaks while
 * it can be reached. */
#include "chan.h"

typedef struct Context Context;
typedef struct Func Func;

typedef enum { BACKGROUND, CANCEL, DEADLINE, TIMEOUT, VALUE, DETACHED, SHIELD } Kind;

typedef struct Bind {
    G *g;                     /* owned, on behalf of the context */
    Context *ctx;             /* owned, on behalf of the goroutine */
    struct Bind *outer;       /* of the same goroutine */
    struct Bind *prev, *next; /* in ctx->bound */
} Bind;

struct Context {
    PyObject_HEAD
    ObjLock lock;    /* of a root */
    Context *parent; /* owned; NULL: background */
    Context *root;   /* itself or an ancestor */
    Context *children, *prev, *next;
    Bind *bound;
    Func *funcs;
    int64_t pins;
    _Atomic int64_t deadline_ns; /* its own; TIME_NEVER: none, or an ancestor's comes first */
    Timer timer;
    uint8_t kind;
    bool in_heap; /* as in time.c */
    bool linked;  /* in parent->children */
    bool unarmed; /* in the list of those: see arm() */
    bool used;    /* TIMEOUT: its block has been left */
    Context *unarmed_prev, *unarmed_next;
    _Atomic bool over;
    Context
        *origin; /* which ended: itself or an ancestor. This and the next two: set before `over` */
    PyObject *err, *cause; /* owned; cause NULL: none was given */
    Chan *done;            /* owned; made when asked for */
    PyObject *key, *value; /* owned */
    PyObject *weakrefs;
};

/* What after_func() returns: call it to stop it. */
struct Func {
    PyObject_HEAD
    Context *ctx;      /* owned */
    Func *prev, *next; /* in ctx->funcs, which owns it */
    bool pending;
    Callback cb;
};

static PyTypeObject Context_Type, Func_Type;
static Context *background;

static bool is_over(const Context *c)
{
    return atomic_load_explicit(&c->over, memory_order_acquire);
}

#define LIST_ADD(head, item)       \
    do {                           \
        (item)->prev = NULL;       \
        (item)->next = (head);     \
        if ((head) != NULL) {      \
            (head)->prev = (item); \
        }                          \
        (head) = (item);           \
    } while (0)

#define LIST_REMOVE(head, item)                \
    do {                                       \
        if ((item)->prev != NULL) {            \
            (item)->prev->next = (item)->next; \
        }                                      \
        else {                                 \
            (head) = (item)->next;             \
        }                                      \
        if ((item)->next != NULL) {            \
            (item)->next->prev = (item)->prev; \
        }                                      \
        (item)->prev = (item)->next = NULL;    \
    } while (0)

/* ---- pins; under the tree's lock. References to drop go to drop_later: call drop_now when it is released ---- */

/* Contexts whose timers should run, but there is no runtime: the next one arms them. It owns nothing: they are
 * of interest while somebody holds them, or their `done`. Innermost of the locks here. */
static Lock unarmed_lock;
static Context *unarmed;

static void unarmed_add(Context *c)
{
    lock(&unarmed_lock);
    if (!c->unarmed) {
        c->unarmed = true;
        c->unarmed_prev = NULL;
        c->unarmed_next = unarmed;
        if (unarmed != NULL) {
            unarmed->unarmed_prev = c;
        }
        unarmed = c;
    }
    unlock(&unarmed_lock);
}

static void unarmed_remove(Context *c)
{
    lock(&unarmed_lock);
    if (c->unarmed) {
        c->unarmed = false;
        if (c->unarmed_prev != NULL) {
            c->unarmed_prev->unarmed_next = c->unarmed_next;
        }
        else {
            unarmed = c->unarmed_next;
        }
        if (c->unarmed_next != NULL) {
            c->unarmed_next->unarmed_prev = c->unarmed_prev;
        }
    }
    unlock(&unarmed_lock);
}

static void arm(M *m, Context *c)
{
    int64_t at = atomic_load(&c->deadline_ns);
    if (at == TIME_NEVER || c->in_heap || is_over(c)) {
        return;
    }
    if (atomic_load(&sched.running) != RUN_ON) {
        unarmed_add(c);
    }
    else {
        c->timer.when_ns = at;
        Py_INCREF(c);
        if (!timer_add(m, &c->timer)) {
            Py_FatalError("gofer: out of memory for a timer");
        }
        c->in_heap = true;
    }
}

static void disarm(M *m, Context *c)
{
    unarmed_remove(c);
    if (c->in_heap && timer_del(&c->timer)) {
        c->in_heap = false;
        drop_later(m, (PyObject *)c);
    }
}

/* All the way up: one that was pinned before this run began has not been armed. */
static void pin(M *m, Context *c)
{
    for (bool first = true;; c = c->parent) {
        first = first && c->pins++ == 0;
        arm(m, c);
        if (!c->linked) {
            return;
        }
        if (first) {
            Py_INCREF(c); /* its parent's, from here on */
        }
    }
}

static void unpin(M *m, Context *c)
{
    for (; --c->pins == 0; c = c->parent) {
        disarm(m, c);
        if (!c->linked) {
            return;
        }
        drop_later(m, (PyObject *)c);
    }
}

/* ---- the end ---- */

typedef struct {
    Context **all; /* each owned */
    size_t n, cap;
} Ended;

static void ended_add(Ended *e, Context *c)
{
    if (e->n == e->cap) {
        e->cap = e->cap > 0 ? e->cap * 2 : 16;
        e->all = realloc(e->all, e->cap * sizeof *e->all);
        if (e->all == NULL) {
            Py_FatalError("gofer: out of memory while ending a context");
        }
    }
    e->all[e->n++] = c;
}

/* Locked; `c` is off its parent's list. From here on everybody sees it over, and `done` closed. In this order: who sees
 * `done` closed, without any lock, finds it over. Who sees it over waits for the lock (look), and finds `done` closed. */
static void mark_over(M *with_p, Context *c, Context *origin, PyObject *err, PyObject *cause)
{
    c->origin = origin;
    c->err = Py_NewRef(err);
    c->cause = Py_XNewRef(cause);
    atomic_store_explicit(&c->over, true, memory_order_release);
    if (c->done != NULL) {
        obj_lock(&c->done->lock);
        atomic_store_explicit(&c->done->closed, 1, memory_order_release);
        obj_unlock(&c->done->lock);
    }
    /* The oldest first: he who is in the block hears of it before those that he has started there, whose clean-up
     * might end his wait. */
    Bind *oldest = c->bound;
    while (oldest != NULL && oldest->next != NULL) {
        oldest = oldest->next;
    }
    for (Bind *b = oldest; b != NULL; b = b->prev) {
        atomic_fetch_or(&b->g->state, G_OVER);
        Py_INCREF(b->g);
        if (!goready(with_p, b->g, false)) {
            Py_DECREF(b->g); /* not the last: the binding has one */
        }
    }
}

/* Locked. The children of `c`, which is over, go with it. */
static void take_children(Context *c, Ended *ended)
{
    for (Context *child; (child = c->children) != NULL;) {
        LIST_REMOVE(c->children, child);
        child->linked = false;
        if (child->pins > 0) {
            c->pins--; /* and its reference is ours */
        }
        else if (!compat_try_incref((PyObject *)child)) {
            continue; /* too late for it */
        }
        ended_add(ended, child);
    }
}

/* What needs Python. */
static void after_end(M *m, Context *c)
{
    obj_lock(&c->root->lock);
    Chan *done = c->done; /* never changes again */
    obj_unlock(&c->root->lock);
    chan_wake_closed(done);
    for (;;) {
        obj_lock(&c->root->lock);
        Func *f = c->funcs;
        if (f != NULL) {
            LIST_REMOVE(c->funcs, f);
            f->pending = false;
        }
        else {
            disarm(m, c);
        }
        obj_unlock(&c->root->lock);
        if (f == NULL) {
            return;
        }
        callback_start(&f->cb);
        Py_DECREF(f);
    }
}

/* Eats err. P in P_USER. */
static void context_end(Context *c, PyObject *err, PyObject *cause)
{
    M *m = tls_m;
    Ended ended = {0};
    bool have_p = m != NULL && p_enter(m);
    M *with_p = have_p ? m : NULL;
    obj_lock(&c->root->lock);
    bool first = !is_over(c);
    if (first) {
        if (c->linked) {
            LIST_REMOVE(c->parent->children, c);
            c->linked = false;
            if (c->pins > 0) {
                drop_later(m, (PyObject *)c); /* its parent's */
                unpin(m, c->parent);
            }
        }
        ended_add(&ended, (Context *)Py_NewRef((PyObject *)c));
        for (size_t i = 0; i < ended.n; i++) { /* it grows */
            mark_over(with_p, ended.all[i], c, err, cause);
            take_children(ended.all[i], &ended);
        }
    }
    obj_unlock(&c->root->lock);
    if (have_p) {
        p_leave(m);
    }
    for (size_t i = 0; i < ended.n; i++) {
        after_end(m, ended.all[i]);
        Py_DECREF(ended.all[i]);
    }
    free(ended.all);
    drop_now(m);
    Py_DECREF(err);
}

static bool context_expire(Context *c)
{
    PyObject *err = PyObject_CallFunction(PyExc_TimeoutError, "s", "context deadline exceeded");
    if (err != NULL) {
        context_end(c, err, NULL);
    }
    return err != NULL;
}

void context_due(PyObject *owner)
{
    Context *c = (Context *)owner;
    obj_lock(&c->root->lock);
    c->in_heap = false;
    bool due = atomic_load(&c->deadline_ns) != TIME_NEVER;
    obj_unlock(&c->root->lock);
    if (due && !context_expire(c)) {
        run_fail(compat_take_exception());
    }
}

void context_dropped(PyObject *owner)
{
    Context *c = (Context *)owner;
    obj_lock(&c->root->lock);
    c->in_heap = false;
    if (c->pins > 0 && !is_over(c) && atomic_load(&c->deadline_ns) != TIME_NEVER) {
        unarmed_add(c);
    }
    obj_unlock(&c->root->lock);
}

/* A run begins. */
void contexts_arm(M *m)
{
    for (;;) {
        lock(&unarmed_lock);
        Context *c = unarmed;
        while (c != NULL && !compat_try_incref((PyObject *)c)) {
            c = c->unarmed_next; /* too late for it */
        }
        unlock(&unarmed_lock);
        if (c == NULL) {
            return;
        }
        unarmed_remove(c);
        obj_lock(&c->root->lock);
        if (c->pins > 0) {
            arm(m, c);
        }
        obj_unlock(&c->root->lock);
        Py_DECREF(c);
    }
}

/* The next one that takes it along when it ends. */
static Context *outer(const Context *c)
{
    return c->root == c ? NULL : c->parent;
}

/* It is over: let whoever ends it get on to `done`, see mark_over. */
static void await_end(Context *c)
{
    obj_lock(&c->root->lock);
    obj_unlock(&c->root->lock);
}

/* Whether it is over by now, and `done` closed. -1 with an exception. */
static int look(Context *c)
{
    Context *whose = is_over(c) ? NULL : c;
    int64_t now = whose != NULL ? nanotime() : 0;
    while (whose != NULL && atomic_load(&whose->deadline_ns) > now) {
        whose = outer(whose);
    }
    if (whose != NULL && !context_expire(whose)) {
        return -1;
    }
    if (!is_over(c)) {
        return 0;
    }
    await_end(c);
    return 1;
}

/* ---- binding ---- */

static Bind *bind_new(M *m, G *g, Context *c)
{
    Bind *b = malloc(sizeof *b);
    if (b == NULL) {
        Py_FatalError("gofer: out of memory for a binding");
    }
    b->g = (G *)Py_NewRef((PyObject *)g);
    b->ctx = (Context *)Py_NewRef((PyObject *)c);
    obj_lock(&c->root->lock);
    LIST_ADD(c->bound, b);
    pin(m, c);
    if (is_over(c)) {
        atomic_fetch_or(&g->state, G_OVER);
    }
    obj_unlock(&c->root->lock);
    return b;
}

static void bind_free(M *m, Bind *b)
{
    Context *c = b->ctx;
    obj_lock(&c->root->lock);
    LIST_REMOVE(c->bound, b);
    unpin(m, c);
    obj_unlock(&c->root->lock);
    drop_now(m);
    Py_DECREF(b->g);
    Py_DECREF(c);
    free(b);
}

/* What is bound further out does not reach in. */
static bool keeps_out(const Context *c)
{
    return c->kind == SHIELD || c->root->kind == DETACHED;
}

/* Only by the goroutine itself. The hint goes first: if the context ends now, it comes again. */
bool context_over(G *g)
{
    atomic_fetch_and(&g->state, ~(uint32_t)G_OVER);
    for (Bind *b = g->bind; b != NULL; b = b->outer) {
        if (is_over(b->ctx)) {
            atomic_fetch_or(&g->state, G_OVER);
            return true;
        }
        if (keeps_out(b->ctx)) {
            break;
        }
    }
    return false;
}

void context_raise(G *g)
{
    Bind *b = g->bind;
    while (!is_over(b->ctx)) {
        b = b->outer;
    }
    Context *c = b->ctx;
    await_end(c);
    PyObject *reason = c->cause != NULL                                       ? c->cause
                       : PyErr_GivenExceptionMatches(c->err, hooks.Cancelled) ? NULL
                                                                              : c->err;
    PyObject *exc = reason != NULL ? PyObject_CallOneArg(hooks.Cancelled, reason)
                                   : PyObject_CallNoArgs(hooks.Cancelled);
    if (exc != NULL && PyObject_SetAttrString(exc, "_context", (PyObject *)c->origin) < 0) {
        Py_CLEAR(exc);
    }
    if (exc != NULL) {
        compat_raise(exc);
    }
}

static bool descends(const Context *c, const Context *from)
{
    while (c != NULL && c != from && c->root != c) {
        c = c->parent;
    }
    return c == from;
}

/* `g` does not run yet. What an inner context tells it anyway need not be copied. */
void bind_inherit(G *g, G *parent)
{
    M *m = tls_m;
    Bind **end = &g->bind;
    Context *last = NULL;
    for (Bind *b = parent->bind; b != NULL; b = b->outer) {
        if (last == NULL || !descends(last, b->ctx)) {
            *end = bind_new(m, g, last = b->ctx);
            (*end)->outer = NULL;
            end = &(*end)->outer;
        }
        if (keeps_out(b->ctx)) {
            break;
        }
    }
}

void bind_drop_all(G *g)
{
    M *m = tls_m;
    while (g->bind != NULL) {
        Bind *b = g->bind;
        g->bind = b->outer;
        bind_free(m, b);
    }
}

int bind_traverse(G *g, visitproc visit, void *arg)
{
    for (Bind *b = g->bind; b != NULL; b = b->outer) {
        Py_VISIT(b->ctx);
    }
    return 0;
}

static G *current_g(void)
{
    M *m = tls_m;
    return m != NULL ? m->curg : NULL;
}

static PyObject *ctx_aenter(PyObject *self, PyObject *Py_UNUSED(a))
{
    G *g = current_g();
    if (g == NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "`async with %R` outside a goroutine: start one with gofer.run()", self);
        return NULL;
    }
    Context *c = (Context *)self;
    if (c->used) {
        PyErr_SetString(PyExc_RuntimeError, "a timeout() is for one block: make a new one");
        return NULL;
    }
    PyObject *op = look(c) < 0 ? NULL : ready_new(self);
    if (op != NULL) {
        Bind *b = bind_new(tls_m, g, c);
        b->outer = g->bind;
        g->bind = b;
        if (c->kind == SHIELD) {
            M *m = tls_m;
            atomic_store(&g->shields, g->shields + 1);
            /* The end of main may have told this thread a moment ago: it had better wait for the end of the shield. */
            if (atomic_load(&m->user) != USER_NONE && user_leave(m)) {
                atomic_store(&m->user, USER_RUNS);
            }
        }
        if (keeps_out(c)) {
            context_over(g);
        }
    }
    return op;
}

/* Cancelled by this very context: its edge. 1: the block ends quietly. -1: TimeoutError. */
static int at_edge(Context *c, PyObject *exc)
{
    if (!PyErr_GivenExceptionMatches(exc, hooks.Cancelled)) {
        return 0;
    }
    PyObject *origin = PyObject_GetAttrString(exc, "_context");
    if (origin == NULL) {
        return -1;
    }
    Py_DECREF(origin);
    if (origin != (PyObject *)c) {
        return 0;
    }
    if (PyErr_GivenExceptionMatches(c->err, hooks.Cancelled)) {
        return 1;
    }
    PyObject *late = PyObject_CallFunction(PyExc_TimeoutError, "s", "context deadline exceeded");
    if (late != NULL) {
        PyException_SetCause(late, Py_NewRef(exc));
        PyException_SetContext(late, Py_NewRef(exc));
        compat_raise(late);
    }
    return -1;
}

static PyObject *ctx_aexit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Context *c = (Context *)self;
    M *m = tls_m;
    G *g = current_g();
    Bind *b = g != NULL ? g->bind : NULL;
    if ((b == NULL || b->ctx != c) && nargs >= 1 && args[0] == PyExc_GeneratorExit) {
        return ready_new(
            Py_False); /* the collector closes a leaked goroutine, whose bindings go with it */
    }
    if (b == NULL || b->ctx != c) {
        PyErr_Format(PyExc_RuntimeError,
                     "%R is left by another goroutine, or in another order, than it was entered",
                     self);
        return NULL;
    }
    g->bind = b->outer;
    if (c->kind == SHIELD && g->shields > 0) { /* none: one that it has inherited, left by hand */
        atomic_store_explicit(&g->shields, g->shields - 1, memory_order_relaxed);
    }
    /* What is outside may be over: the next operation looks. */
    if (g->bind != NULL) {
        atomic_fetch_or(&g->state, G_OVER);
    }
    else {
        atomic_fetch_and(&g->state, ~(uint32_t)G_OVER);
    }
    if (c->kind == TIMEOUT) { /* it was for this block, not for what the block has started */
        obj_lock(&c->root->lock);
        atomic_store(&c->deadline_ns, TIME_NEVER);
        c->used = true;
        disarm(m, c);
        obj_unlock(&c->root->lock);
    }
    bind_free(m, b);
    int quiet = nargs >= 2 && args[1] != Py_None ? at_edge(c, args[1]) : 0;
    return quiet < 0 ? NULL : ready_new(quiet ? Py_True : Py_False);
}

/* ---- making one ---- */

static Context *context_alloc(Kind kind, Context *parent)
{
    Context *c = (Context *)Context_Type.tp_alloc(&Context_Type, 0); /* all zero */
    if (c == NULL) {
        return NULL;
    }
    compat_share_new((PyObject *)c); /* always: compat_try_incref counts on it */
    c->kind = (uint8_t)kind;
    c->parent = (Context *)Py_XNewRef((PyObject *)parent);
    bool detached = parent == NULL || parent == background || kind == DETACHED || kind == SHIELD;
    c->root = detached ? c : parent->root;
    atomic_store(&c->deadline_ns, TIME_NEVER);
    timer_init(&c->timer, TIMER_CONTEXT, offsetof(Context, timer));
    return c;
}

/* Into its parent's list; over at once if that is. */
static bool context_link(Context *c)
{
    if (c->root == c) {
        return true;
    }
    if (look(c->parent) < 0) {
        return false;
    }
    obj_lock(&c->root->lock);
    Context *p = c->parent;
    if (is_over(p)) {
        mark_over(NULL, c, p->origin, p->err, p->cause); /* nobody is bound to it yet */
    }
    else {
        LIST_ADD(p->children, c);
        c->linked = true;
    }
    obj_unlock(&c->root->lock);
    return true;
}

static Context *context_current(void)
{
    G *g = current_g();
    return g != NULL && g->bind != NULL ? g->bind->ctx : background;
}

/* Its own, or the earliest of those that take it along. */
static int64_t deadline_of(const Context *c)
{
    int64_t at = TIME_NEVER;
    for (; c != NULL; c = outer(c)) {
        int64_t own = atomic_load(&c->deadline_ns);
        at = own < at ? own : at;
    }
    return at;
}

/* context(kind, parent, seconds, key, value). `seconds` from now, or None; parent None: the goroutine's own. */
static PyObject *core_context(PyObject *Py_UNUSED(mod), PyObject *args)
{
    int kind;
    PyObject *parent, *seconds, *key, *value;
    int64_t ns = 0;
    if (!PyArg_ParseTuple(args, "iOOOO", &kind, &parent, &seconds, &key, &value) ||
        (seconds != Py_None &&
         !seconds_to_ns(seconds, kind == TIMEOUT ? "timeout()" : "with_timeout()", &ns)) ||
        check_forked()) {
        return NULL;
    }
    if (parent == Py_None) {
        if (current_g() == NULL) {
            PyErr_SetString(PyExc_RuntimeError,
                            "outside a goroutine a context needs a parent, such as "
                            "context.background()");
            return NULL;
        }
        parent = (PyObject *)context_current();
    }
    else if (!Py_IS_TYPE(parent, &Context_Type)) {
        PyErr_Format(PyExc_TypeError, "the parent of a context must be a Context, not %R", parent);
        return NULL;
    }
    Context *c = context_alloc((Kind)kind, (Context *)parent);
    if (c == NULL) {
        return NULL;
    }
    if (kind == VALUE) {
        c->key = Py_NewRef(key);
        c->value = Py_NewRef(value);
    }
    bool past = false;
    if (seconds != Py_None) {
        int64_t at = nanotime() + ns;
        if (at < deadline_of(c)) {
            atomic_store(&c->deadline_ns, at);
            past = ns == 0;
        }
    }
    if (!context_link(c) || (past && !is_over(c) && !context_expire(c))) {
        Py_CLEAR(c);
    }
    return (PyObject *)c;
}

static PyObject *core_background(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return Py_NewRef((PyObject *)background);
}

static PyObject *core_current_context(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return Py_NewRef((PyObject *)context_current());
}

/* ---- methods ---- */

static PyObject *ctx_err(PyObject *self, PyObject *Py_UNUSED(a))
{
    int over = look((Context *)self);
    return over < 0 ? NULL : Py_NewRef(over ? ((Context *)self)->err : Py_None);
}

static PyObject *ctx_cause(PyObject *self, PyObject *Py_UNUSED(a))
{
    Context *c = (Context *)self;
    int over = look(c);
    return over < 0 ? NULL : Py_NewRef(!over ? Py_None : c->cause != NULL ? c->cause : c->err);
}

static PyObject *ctx_cancel(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char name[] = "cause", *names[] = {name, NULL};
    Context *c = (Context *)self;
    PyObject *cause = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:cancel", names, &cause) || check_forked()) {
        return NULL;
    }
    if (c == background || c->kind == DETACHED || c->kind == SHIELD) {
        PyErr_Format(PyExc_RuntimeError,
                     "%R cannot be cancelled: make a context with with_cancel()", self);
        return NULL;
    }
    int over = look(c);
    if (over < 0) {
        return NULL;
    }
    if (!over) {
        PyObject *err = cause != Py_None ? PyObject_CallOneArg(hooks.Cancelled, cause)
                                         : PyObject_CallNoArgs(hooks.Cancelled);
        if (err == NULL) {
            return NULL;
        }
        context_end(c, err, cause != Py_None ? cause : NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *ctx_value(PyObject *self, PyObject *key)
{
    for (Context *c = (Context *)self; c != NULL; c = c->parent) {
        int same = c->key != NULL ? PyObject_RichCompareBool(c->key, key, Py_EQ) : 0;
        if (same != 0) {
            return same > 0 ? Py_NewRef(c->value) : NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *ctx_done(PyObject *self, void *Py_UNUSED(x))
{
    Context *c = (Context *)self;
    M *m = tls_m;
    if (look(c) < 0) {
        return NULL;
    }
    obj_lock(&c->root->lock);
    Chan *have = c->done;
    obj_unlock(&c->root->lock);
    if (have == NULL) {
        Chan *ch = (Chan *)chan_new(0);
        if (ch == NULL) {
            return NULL;
        }
        obj_lock(&c->root->lock);
        have = c->done;
        if (have == NULL) {
            have = c->done = ch;
            ch = NULL;
            atomic_store_explicit(&have->closed, is_over(c), memory_order_relaxed);
            if (!is_over(c)) {
                pin(m, c); /* until it ends: somebody may wait for it */
            }
        }
        obj_unlock(&c->root->lock);
        Py_XDECREF(ch);
    }
    return recv_view(have, self); /* `have` never changes again */
}

static PyObject *ctx_deadline(PyObject *self, void *Py_UNUSED(x))
{
    int64_t at = deadline_of((Context *)self);
    return at == TIME_NEVER ? Py_NewRef(Py_None) : PyFloat_FromDouble((double)at / 1e9);
}

/* Where it comes from, as Go tells it. */
static PyObject *ctx_name(PyObject *self)
{
    Context *c = (Context *)self;
    if (c->parent == NULL) {
        return PyUnicode_FromString("context.Background");
    }
    if (Py_EnterRecursiveCall(" while getting the repr of a context")) {
        return NULL;
    }
    PyObject *parent = ctx_name((PyObject *)c->parent), *r = NULL;
    Py_LeaveRecursiveCall();
    if (parent == NULL) {
        return NULL;
    }
    if (c->kind == VALUE) {
        r = PyUnicode_FromFormat("%U.WithValue(%R, %R)", parent, c->key, c->value);
    }
    else if (c->kind == DEADLINE || c->kind == TIMEOUT) {
        int64_t at = deadline_of(c);
        PyObject *left = at == TIME_NEVER
                             ? PyUnicode_FromString("inf")
                             : PyFloat_FromDouble((double)((at - nanotime()) / 1000000) / 1e3);
        r = left != NULL ? PyUnicode_FromFormat("%U.WithDeadline(in %S s)", parent, left) : NULL;
        Py_XDECREF(left);
    }
    else {
        r = PyUnicode_FromFormat("%U.%s", parent,
                                 c->kind == CANCEL   ? "WithCancel"
                                 : c->kind == SHIELD ? "Shield"
                                                     : "WithoutCancel");
    }
    Py_DECREF(parent);
    return r;
}

static PyObject *ctx_repr(PyObject *self)
{
    Context *c = (Context *)self;
    PyObject *name = ctx_name(self);
    if (name == NULL || !is_over(c)) {
        return name;
    }
    PyObject *r = PyUnicode_FromFormat("%U (over: %R)", name, c->err);
    Py_DECREF(name);
    return r;
}

static int ctx_traverse(PyObject *self, visitproc visit, void *arg)
{
    Context *c = (Context *)self;
    Py_VISIT(c->parent);
    for (Context *child = c->children; child != NULL; child = child->next) {
        if (child->pins > 0) {
            Py_VISIT(child);
        }
    }
    for (Bind *b = c->bound; b != NULL; b = b->next) {
        Py_VISIT(b->g);
    }
    for (Func *f = c->funcs; f != NULL; f = f->next) {
        Py_VISIT(f);
    }
    Py_VISIT(c->err);
    Py_VISIT(c->cause);
    Py_VISIT(c->done);
    Py_VISIT(c->key);
    Py_VISIT(c->value);
    return 0;
}

static int ctx_clear(PyObject *self)
{
    Context *c = (Context *)self;
    for (Func *f; (f = c->funcs) != NULL;) {
        LIST_REMOVE(c->funcs, f);
        f->pending = false;
        Py_DECREF(f);
    }
    for (;;) { /* nobody is left who could end it, and so these */
        obj_lock(&c->root->lock);
        Context *child = c->children;
        bool pinned = child != NULL && child->pins > 0;
        if (child != NULL) {
            LIST_REMOVE(c->children, child);
            child->linked = false;
        }
        obj_unlock(&c->root->lock);
        if (child == NULL) {
            break;
        }
        if (pinned) {
            Py_DECREF(child);
        }
    }
    Py_CLEAR(c->cause);
    Py_CLEAR(c->value);
    Py_CLEAR(c->key);
    return 0; /* the rest is needed as long as anybody can look at it */
}

static void ctx_dealloc(PyObject *self)
{
    Context *c = (Context *)self;
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, ctx_dealloc); /* a chain of parents may be long */
    if (c->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    obj_lock(&c->root->lock);
    if (c->linked) {
        LIST_REMOVE(c->parent->children, c);
    }
    obj_unlock(&c->root->lock);
    unarmed_remove(c);
    ctx_clear(self);
    Py_CLEAR(c->err);
    Py_CLEAR(c->done);
    Py_CLEAR(c->parent);
    Py_TYPE(self)->tp_free(self);
    Py_TRASHCAN_END
}

static PyMethodDef ctx_methods[] = {
    {"err", ctx_err, METH_NOARGS,
     "err()\n--\n\nNone, or why it is over: a Cancelled or a TimeoutError.\n\n>>> ctx.err()"},
    {"cause", ctx_cause, METH_NOARGS,
     "cause()\n--\n\nWhat cancel() was given, of this context or the ancestor that ended; else "
     "err().\n\n"
     ">>> ctx.cancel('too slow')\n>>> ctx.cause()\n'too slow'"},
    {"cancel", (PyCFunction)(void (*)(void))ctx_cancel, METH_VARARGS | METH_KEYWORDS,
     "cancel(cause=None)\n--\n\nEnd it and all contexts made from it. Only the first time "
     "counts.\n\n"
     ">>> ctx.cancel('too slow')"},
    {"value", ctx_value, METH_O,
     "value(key, /)\n--\n\nThe value for the key, of this context or the nearest ancestor; "
     "None.\n\n"
     ">>> ctx.value('user')"},
    {"__aenter__", ctx_aenter, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))ctx_aexit, METH_FASTCALL, NULL},
    {NULL},
};
static PyGetSetDef ctx_getset[] = {
    {"done", ctx_done, NULL, "A RecvChan that is closed when the context is over.", NULL},
    {"deadline", ctx_deadline, NULL, "When it will be over, by time.monotonic(); None: no limit.",
     NULL},
    {NULL},
};

static PyTypeObject Context_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.context.Context",
    .tp_basicsize = sizeof(Context),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "How long work may go on, and values that go with it. See gofer.context.\n\n"
              ">>> ctx = context.with_timeout(1.5)\n>>> async with ctx:\n...     await work()",
    .tp_dealloc = ctx_dealloc,
    .tp_traverse = ctx_traverse,
    .tp_clear = ctx_clear,
    .tp_repr = ctx_repr,
    .tp_weaklistoffset = offsetof(Context, weakrefs),
    .tp_methods = ctx_methods,
    .tp_getset = ctx_getset,
};

/* ---- after_func ---- */

/* after_func(ctx, fn, args) */
static PyObject *core_after_func(PyObject *Py_UNUSED(mod), PyObject *args)
{
    M *m = tls_m;
    PyObject *ctx, *fn, *fn_args;
    if (!PyArg_ParseTuple(args, "O!OO!", &Context_Type, &ctx, &fn, &PyTuple_Type, &fn_args) ||
        check_forked()) {
        return NULL;
    }
    Context *c = (Context *)ctx;
    Func *f = (Func *)Func_Type.tp_alloc(&Func_Type, 0);
    if (f == NULL || !callback_init(&f->cb, fn, fn_args) || look(c) < 0) {
        Py_XDECREF(f);
        return NULL;
    }
    f->ctx = (Context *)Py_NewRef(ctx);
    obj_lock(&c->root->lock);
    bool pending = f->pending = !is_over(c);
    if (pending) {
        Py_INCREF(f);
        LIST_ADD(c->funcs, f);
        pin(m, c);
    }
    obj_unlock(&c->root->lock);
    if (!pending) {
        callback_start(&f->cb);
    }
    return (PyObject *)f;
}

static PyObject *func_stop(PyObject *self, PyObject *args, PyObject *kwargs)
{
    M *m = tls_m;
    Func *f = (Func *)self;
    Context *c = f->ctx;
    if (PyTuple_GET_SIZE(args) > 0 || (kwargs != NULL && PyDict_Size(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "stop() takes no arguments");
        return NULL;
    }
    obj_lock(&c->root->lock);
    bool was = f->pending;
    if (was) {
        f->pending = false;
        LIST_REMOVE(c->funcs, f);
        unpin(m, c);
        drop_later(m, self);
    }
    obj_unlock(&c->root->lock);
    drop_now(m);
    return PyBool_FromLong(was);
}

static int func_traverse(PyObject *self, visitproc visit, void *arg)
{
    Func *f = (Func *)self;
    Py_VISIT(f->ctx);
    return callback_traverse(&f->cb, visit, arg);
}

static int func_clear(PyObject *self)
{
    callback_clear(&((Func *)self)->cb);
    return 0;
}

static void func_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    func_clear(self);
    Py_CLEAR(((Func *)self)->ctx);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *func_repr(PyObject *self)
{
    Func *f = (Func *)self;
    obj_lock(&f->ctx->root->lock);
    bool pending = f->pending;
    obj_unlock(&f->ctx->root->lock);
    return PyUnicode_FromFormat("<after_func of %R, calls %R, %s>", f->ctx, f->cb.fn,
                                pending ? "pending" : "called or stopped");
}

static PyTypeObject Func_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.context.AfterFunc",
    .tp_basicsize = sizeof(Func),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "What context.after_func() returns. Calling it stops it: True if that came in time.",
    .tp_dealloc = func_dealloc,
    .tp_traverse = func_traverse,
    .tp_clear = func_clear,
    .tp_repr = func_repr,
    .tp_call = func_stop,
};

static PyMethodDef context_methods[] = {
    {"context", core_context, METH_VARARGS, NULL},
    {"background", core_background, METH_NOARGS, NULL},
    {"current_context", core_current_context, METH_NOARGS, NULL},
    {"context_after_func", core_after_func, METH_VARARGS, NULL},
    {NULL},
};

bool context_module_init(PyObject *mod)
{
    if (PyType_Ready(&Context_Type) < 0 || PyType_Ready(&Func_Type) < 0) {
        return false;
    }
    if (background == NULL && (background = context_alloc(BACKGROUND, NULL)) == NULL) {
        return false;
    }
    return PyModule_AddObjectRef(mod, "Context", (PyObject *)&Context_Type) == 0 &&
           PyModule_AddFunctions(mod, context_methods) == 0;
}
