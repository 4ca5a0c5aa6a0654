/* interrupt: have the thread of an M call preempt_claim() and preempt_park() when it gets to its next bytecode boundary.
 *
 * CPython has no such call, so each kind of it is asked in its own way. All of it is for the thread of preempt.c, which
 * is attached to Python, but for what is marked as the M's own. */
#include "runtime.h"

#ifdef Py_GIL_DISABLED

/* Who drops the last reference to an object that another thread owns leaves the rest to that: it deallocates the object
 * when it is next at a boundary (_Py_brc_queue_object). So each M has a token, made by its own thread, and whoever wants
 * it to stop drops that. Nobody else is slowed down, and nothing of CPython's is stopped or changed.
 *
 * A collection, on a thread of its choice, does what others have not done yet: the token may end anywhere. It is not
 * freed but goes back to its M, which may be in a loop for long and could not make another there. */

typedef struct {
    PyObject ob_base;
    int m_id;         /* no pointer: it may outlive its M */
    uintptr_t thread; /* that made it, as CPython calls it */
} Token;

/* By the last who has it, on any thread. */
static bool give_back(Token *token)
{
    M *m = NULL;
    PyObject *none = NULL;
    compat_revive_for((PyObject *)token, token->thread);
    lock(&sched.lock);
    while ((m = m_after(m)) != NULL && m->id != token->m_id) {
    }
    bool back = m != NULL && m->ts != NULL && /* else it ends */
                atomic_compare_exchange_strong(&m->token, &none, (PyObject *)token);
    unlock(&sched.lock);
    return back;
}

static void token_dealloc(PyObject *self)
{
    M *m = tls_m;
    bool own = m != NULL && m->id == ((Token *)self)->m_id;
    if (!give_back((Token *)self)) {
        PyObject_Free(self);
    }
    if (own && preempt_claim(m) && !preempt_park(m)) {
        user_cancel(m); /* nothing can be raised here */
    }
}

PyTypeObject interrupt_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer._core.Token",
    .tp_basicsize = sizeof(Token),
    .tp_dealloc = token_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
};

void interrupt_ready(M *m)
{
    PyObject *none = NULL;
    if (atomic_load(&m->token) == NULL) {
        Token *token = PyObject_New(Token, &interrupt_type);
        if (token == NULL) {
            PyErr_Clear(); /* it will not be stopped, then: sysmon hands its P on */
            return;
        }
        token->m_id = m->id;
        token->thread = _Py_ThreadId();
        if (!atomic_compare_exchange_strong(&m->token, &none, (PyObject *)token)) {
            PyObject_Free(token); /* it has just got its own back */
        }
    }
}

void interrupt_end_m(M *m)
{
    Py_XDECREF(atomic_exchange(&m->token, NULL));
}

bool interrupt_waits(M *m)
{
    return atomic_load(&m->token) == NULL;
}

bool interrupt_wanted(void)
{
    enum { MAX = 64 };
    PyObject *tokens[MAX];
    int n = 0;
    lock(&sched.lock);
    for (M *m = NULL; n < MAX && (m = m_after(m)) != NULL;) {
        if (preempt_is_wanted(m) && (tokens[n] = atomic_exchange(&m->token, NULL)) != NULL) {
            n++;
        }
    }
    unlock(&sched.lock);
    while (n-- > 0) {
        Py_DECREF(tokens[n]); /* of a thread that has ended meanwhile: it is simply freed */
    }
    return true;
}

bool interrupt_lingers(void)
{
    return false;
}

void interrupt_clear(void) {}
void interrupt_stop(void) {}

#else

void interrupt_end_m(M *Py_UNUSED(m)) {}

/* Who has the GIL and gets to no boundary keeps our thread, too, from looking. */
bool interrupt_waits(M *Py_UNUSED(m))
{
    return false;
}

#if !COMPAT_HAVE_MONITORING

/* The interpreter calls the trace function of a thread, if it has one, at the start of each line and when code jumps
 * back. Whoever has the GIL may set it. */

#define ARMED_NS 2000000LL

static int at_line(PyObject *Py_UNUSED(obj), PyFrameObject *Py_UNUSED(frame), int what,
                   PyObject *Py_UNUSED(arg))
{
    if (what != PyTrace_LINE) {
        return 0; /* an exception may be on its way */
    }
    M *m = tls_m;
    compat_untrace(PyThreadState_Get(), at_line);
    if (m != NULL && preempt_claim(m) && !preempt_park(m)) {
        atomic_fetch_and(&m->curg->state, ~(uint32_t)G_CANCEL); /* it hears of it now */
        PyErr_SetNone(hooks.Cancelled);
        return -1;
    }
    return 0;
}

void interrupt_ready(M *m)
{
    compat_untrace(m->ts, at_line);
}

/* If it has computed since it was armed, and not come to a line, it is in C code; or caught, see compat_exception_waits.
 * Either way let it go. So if a debugger, or coverage, has its trace function. */
static void arm(M *m, bool may) /* sched.lock: thread states go under it */
{
    int64_t cpu = clock_ns(m->cpu_clock);
    bool in_vain = compat_traced(m->ts, at_line) && cpu - m->armed_cpu_ns > ARMED_NS;
    if (may && !in_vain && compat_trace(m->ts, at_line)) {
        m->armed_cpu_ns = cpu;
        return;
    }
    compat_untrace(m->ts, at_line);
    preempt_failed(m);
}

bool interrupt_wanted(void)
{
    bool may = !compat_exception_waits();
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        if (preempt_is_wanted(m) && m->ts != NULL && atomic_load(&m->user) == USER_RUNS) {
            arm(m, may);
        }
    }
    unlock(&sched.lock);
    return true;
}

bool interrupt_lingers(void)
{
    return false; /* one that comes too late takes itself away */
}

void interrupt_clear(void) {}

/* Those that have not come to another line. M0's thread is the caller's. */
void interrupt_stop(void)
{
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        if (m->ts != NULL) {
            compat_untrace(m->ts, at_line);
        }
    }
    for (M *m = sched.orphans; m != NULL; m = m->all_next) {
        if (m->ts != NULL) {
            compat_untrace(m->ts, at_line);
        }
    }
    unlock(&sched.lock);
}

#else

void interrupt_ready(M *Py_UNUSED(m)) {} /* others may run the same code */

/* sys.monitoring watches the code that the goroutine is in: whoever runs that calls at_boundary() when it jumps or
 * returns.
 *   - Only the innermost code is watched. Soon it jumps, or returns, or calls what takes long: then the next try
 *     finds that.
 *   - Who finds that nobody is wanted any more disarms it, so that the next one to run the same code is not slowed down
 *     while our thread waits for the GIL. */

enum { ARMED_MAX = 64 };

static PyObject *monitoring; /* sys.monitoring, once it was needed; owned for ever */
static int tool = -1;        /* our id there */
static PyObject *armed;      /* owned: a list of code objects */
static long events;

static bool set_events(PyObject *code, long set)
{
    PyObject *r = PyObject_CallMethod(monitoring, "set_local_events", "iOl", tool, code, set);
    Py_XDECREF(r);
    return r != NULL;
}

static void disarm(PyObject *code)
{
    if (!set_events(code, 0)) {
        PyErr_WriteUnraisable(code);
    }
}

static PyObject *at_boundary(PyObject *Py_UNUSED(self), PyObject *const *args,
                             Py_ssize_t Py_UNUSED(n))
{
    M *m = tls_m;
    bool stop = m != NULL && preempt_claim(m);
    if (!preempt_wants_any()) {
        disarm(args[0]);
    }
    if (stop && !preempt_park(m)) {
        user_cancel(m); /* at a jump, what is raised here passes the `try` around it: up to 3.13 */
    }
    Py_RETURN_NONE;
}

static PyMethodDef at_boundary_def = {"at_boundary", (PyCFunction)(void (*)(void))at_boundary,
                                      METH_FASTCALL, NULL};
static const char *const event_names[] = {"JUMP", "PY_START", "PY_RETURN"};
enum { EVENTS = sizeof event_names / sizeof *event_names };

/* The value of each event, and with `callback` registered for each of them. False: exception. */
static bool register_all(PyObject *callback)
{
    PyObject *all = PyObject_GetAttrString(monitoring, "events");
    events = 0;
    for (int i = 0; all != NULL && i < EVENTS; i++) {
        PyObject *event = PyObject_GetAttrString(all, event_names[i]);
        PyObject *r = event == NULL ? NULL
                                    : PyObject_CallMethod(monitoring, "register_callback", "iOO",
                                                          tool, event, callback);
        if (r != NULL) {
            events |= PyLong_AsLong(event);
            Py_DECREF(r);
        }
        else {
            Py_CLEAR(all);
        }
        Py_XDECREF(event);
    }
    Py_XDECREF(all);
    return all != NULL;
}

/* Get a tool id. False: none is free, or an exception is set. */
static bool monitoring_start(void)
{
    if (tool >= 0) {
        return true;
    }
    if (monitoring == NULL) {
        monitoring = Py_XNewRef(PySys_GetObject("monitoring"));
    }
    armed = PyList_New(0);
    for (int id = 4; monitoring != NULL && armed != NULL && tool < 0 && id >= 3; id--) {
        /* 3 and 4 belong to nobody: see sys.monitoring */
        PyObject *r = PyObject_CallMethod(monitoring, "use_tool_id", "is", id, "gofer");
        if (r != NULL) {
            tool = id;
            Py_DECREF(r);
        }
        else if (PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Clear(); /* taken */
        }
        else {
            return false;
        }
    }
    PyObject *callback = tool >= 0 ? PyCFunction_New(&at_boundary_def, NULL) : NULL;
    bool ok = callback != NULL && register_all(callback);
    Py_XDECREF(callback);
    return ok;
}

void interrupt_clear(void)
{
    for (Py_ssize_t i = PyList_GET_SIZE(armed); i-- > 0;) {
        disarm(PyList_GET_ITEM(armed, i));
    }
    if (PyList_SetSlice(armed, 0, PY_SSIZE_T_MAX, NULL) < 0) {
        PyErr_WriteUnraisable(NULL);
    }
}

bool interrupt_lingers(void)
{
    return armed != NULL && PyList_GET_SIZE(armed) > 0;
}

void interrupt_stop(void)
{
    if (tool >= 0) {
        interrupt_clear();
        PyObject *r = register_all(Py_None)
                          ? PyObject_CallMethod(monitoring, "free_tool_id", "i", tool)
                          : NULL;
        if (r == NULL) {
            PyErr_WriteUnraisable(NULL);
        }
        Py_XDECREF(r);
        tool = -1;
    }
    Py_CLEAR(armed);
}

/* Watch the code of that frame. False: exception. */
static bool arm(PyFrameObject *frame)
{
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    int known = set_events(code, events) ? PySequence_Contains(armed, code) : -1;
    bool ok = known == 1 || (known == 0 && PyList_Append(armed, code) == 0);
    Py_DECREF(code);
    return ok;
}

/* The innermost frame of each: of these only. A frame object of any other thread would let its locals outlive their
 * function, so sys._current_frames() will not do. */
bool interrupt_wanted(void)
{
    PyFrameObject *frames[ARMED_MAX]; /* owned */
    int n = 0;
    if (!monitoring_start()) {
        return false;
    }
    if (PyList_GET_SIZE(armed) > ARMED_MAX) {
        interrupt_clear();
    }
    lock(&sched.lock);
    for (M *m = NULL; n < ARMED_MAX && (m = m_after(m)) != NULL;) {
        if (preempt_is_wanted(m) && m->ts != NULL &&
            (frames[n] = PyThreadState_GetFrame(m->ts)) != NULL) {
            n++;
        }
    }
    unlock(&sched.lock);
    bool ok = true;
    while (n-- > 0) {
        ok = ok && arm(frames[n]);
        Py_DECREF(frames[n]); /* if it has returned meanwhile, what it held is freed here */
    }
    return ok;
}

#endif
#endif
