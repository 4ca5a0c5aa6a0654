/* What differs between the CPythons we run on, and the few places where their documented C API
 * is not enough. Nothing outside this header may look at a version number or at the inside of a
 * CPython structure. */
#ifndef GOFER_COMPAT_H
#define GOFER_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000
#error "gofer needs CPython 3.11 or newer"
#endif

#ifdef Py_GIL_DISABLED
#define HAVE_GIL 0
#else
#define HAVE_GIL 1
#endif

/* `with` and `async with` make a bound method of each of their two. From 3.14 on they do without. */
#define COMPAT_WITH_BINDS (HAVE_GIL && PY_VERSION_HEX < 0x030E0000)

/* sys.monitoring, which can stop code at a bytecode boundary. */
#define COMPAT_HAVE_MONITORING (PY_VERSION_HEX >= 0x030C0000)

#if !COMPAT_HAVE_MONITORING
/* Have `fn` called at the next line of the code that this thread, any thread, runs. The GIL is ours, so it does not run
 * now. As PyEval_SetTrace() does for the calling thread, but without an audit event: nothing is traced. False: the thread
 * has a trace function already. */
static inline bool compat_trace(PyThreadState *ts, Py_tracefunc fn)
{
    if (ts->c_tracefunc != NULL && ts->c_tracefunc != fn) {
        return false;
    }
    ts->c_tracefunc = fn;
    ts->cframe->use_tracing = 255;
    return true;
}

static inline bool compat_traced(PyThreadState *ts, Py_tracefunc fn)
{
    return ts->c_tracefunc == fn;
}

/* Whether some thread has still to raise what PyThreadState_SetAsyncExc() gave it. Until then a thread that is traced and
 * calls a function is caught in the interpreter: it looks for a reason to stop, and the reason is not its own. */
static inline bool compat_exception_waits(void)
{
    PyThreadState *ts = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
    while (ts != NULL && ts->async_exc == NULL) {
        ts = PyThreadState_Next(ts);
    }
    return ts != NULL;
}

/* Take that back, if it is still there. */
static inline void compat_untrace(PyThreadState *ts, Py_tracefunc fn)
{
    if (ts->c_tracefunc == fn) {
        ts->c_tracefunc = NULL;
        ts->cframe->use_tracing = ts->c_profilefunc != NULL && ts->tracing == 0 ? 255 : 0;
    }
}
#endif

/* Call `fn`, once, while no thread of Python runs. It may make frame objects, and must not call into Python. */
static inline void compat_stop_world_and(int (*fn)(PyObject *, void *), void *arg)
{
#ifdef Py_GIL_DISABLED
    PyUnstable_GC_VisitObjects(fn, arg); /* fn returns 0: no other object is visited */
#else
    int collects = PyGC_Disable(); /* up to 3.11 making an object might start a collection */
    fn(NULL, arg);                 /* the GIL is ours */
    if (collects) {
        PyGC_Enable();
    }
#endif
}

/* Call `fn` for each object that the collector watches, while no thread of Python runs, until it returns 0. It must not
 * make objects or call into Python. References that this makes itself are the same number for each. False: exception. */
static inline bool compat_visit_containers(int (*fn)(PyObject *, void *), void *arg)
{
#ifdef Py_GIL_DISABLED
    PyUnstable_GC_VisitObjects(fn, arg);
    return true;
#else
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *all = gc != NULL ? PyObject_CallMethod(gc, "get_objects", NULL) : NULL;
    Py_XDECREF(gc);
    bool ok = all != NULL && PyList_Check(all);
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(all) && fn(PyList_GET_ITEM(all, i), arg);
         i++) {
    }
    Py_XDECREF(all);
    return ok;
#endif
}

/* What a coroutine or generator visits and has no reference of its own to: since 3.14 its stack may borrow from its local
 * variables. Such an entry is marked in its lowest bit. `visit` is called for each. */
static inline void compat_visit_borrowed(PyObject *op, visitproc visit, void *arg)
{
#if PY_VERSION_HEX >= 0x030E0000
    if (!PyGen_CheckExact(op) && !PyCoro_CheckExact(op) && !PyAsyncGen_CheckExact(op)) {
        return;
    }
    /* Local variables and stack are at its end. Of its other words, one points there: how far they are filled. */
    PyCodeObject *code = PyGen_GetCode((PyGenObject *)op); /* any of the three */
    uintptr_t *items = (uintptr_t *)((char *)op + Py_TYPE(op)->tp_basicsize), *top = items;
    uintptr_t end = (uintptr_t)(items + code->co_nlocalsplus + code->co_stacksize);
    Py_DECREF(code); /* not the last */
    for (uintptr_t *word = (uintptr_t *)(op + 1); word < items; word++) {
        if (*word > (uintptr_t)items && *word <= end) {
            top = (uintptr_t *)*word;
        }
    }
    for (; items < top; items++) {
        if ((*items & 3) == 1 && *items > 3) {
            visit((PyObject *)(*items & ~(uintptr_t)3), arg);
        }
    }
#else
    (void)op;
    (void)visit;
    (void)arg;
#endif
}

/* Write where the Python code of each thread stands, when nobody can attach any more: faulthandler's own, which some
 * CPythons let others use. */
#if defined(__GNUC__) && !defined(Py_GIL_DISABLED)
extern const char *_Py_DumpTracebackThreads(int fd, PyInterpreterState *interp,
                                            PyThreadState *current) __attribute__((weak));
#endif

static inline void compat_dump_threads(int fd)
{
#if defined(__GNUC__) && !defined(Py_GIL_DISABLED)
    if (_Py_DumpTracebackThreads != NULL) {
        _Py_DumpTracebackThreads(fd, PyInterpreterState_Main(), NULL);
    }
#else
    (void)fd;
#endif
}

/* Up to 3.12, when PyThreadState_SetAsyncExc() takes an exception back, all threads go on looking for one at each jump and
 * call, until one is raised. */
#define COMPAT_TAKING_BACK_IS_FELT (PY_VERSION_HEX < 0x030D0000)

/* Take the current exception as one normalised object (3.12's API, spelled out for 3.11). */
static inline PyObject *compat_take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &tb);
    if (tb != NULL) {
        PyException_SetTraceback(value, tb);
    }
    Py_DECREF(type);
    Py_XDECREF(tb);
    return value;
#endif
}

/* Raise `exc`, taking over the caller's reference. */
static inline void compat_raise(PyObject *exc)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exc);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), exc, PyException_GetTraceback(exc));
#endif
}

/* Whether that thread, any thread, is not attached to Python: does not have the GIL, if there is one. It may be
 * otherwise a moment later. One that a collection has stopped is not detached. */
static inline bool compat_detached(PyThreadState *ts)
{
#if PY_VERSION_HEX >= 0x030D0000
    return __atomic_load_n(&ts->state, __ATOMIC_ACQUIRE) == 0; /* _Py_THREAD_DETACHED */
#elif PY_VERSION_HEX >= 0x030C0000
    return !ts->_status.active;
#else
    return _PyThreadState_UncheckedGet() != ts; /* of the process, up to 3.11 */
#endif
}

#ifdef Py_GIL_DISABLED
/* Does a thread get to bytecode boundaries, or is it in a long call of C code? compat_probe() sets a bit that the
 * interpreter clears there: _PY_EVAL_EXPLICIT_MERGE_BIT, which has it merge reference counts that other threads left
 * for it, if any. compat_probe_waits(): it has not been there yet. The bits are those of 3.13 and 3.14. */
#if PY_VERSION_HEX >= 0x030F0000
#error "see whether pycore_ceval.h still has this bit"
#endif
enum { COMPAT_PROBE_BIT = 1 << 6 };

static inline void compat_probe(PyThreadState *ts)
{
    __atomic_fetch_or(&ts->eval_breaker, COMPAT_PROBE_BIT, __ATOMIC_SEQ_CST);
}

static inline bool compat_probe_waits(PyThreadState *ts)
{
    return !compat_detached(ts) &&
           (__atomic_load_n(&ts->eval_breaker, __ATOMIC_ACQUIRE) & COMPAT_PROBE_BIT) != 0;
}
#endif

/* The same for an exception that is raised to be taken at once, which happens with every value that an await
 * returns. `ts` is the caller's. */
static inline void compat_raise_in(PyThreadState *ts, PyObject *exc)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (ts->current_exception == NULL) {
        ts->current_exception = exc;
        return;
    }
#endif
    (void)ts;
    compat_raise(exc);
}

/* A reference to None. From 3.12 on it is immortal: nobody need count. */
static inline PyObject *compat_none(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return Py_None;
#else
    return Py_NewRef(Py_None);
#endif
}

static inline void compat_drop_none(void)
{
#if PY_VERSION_HEX < 0x030C0000
    Py_DECREF(Py_None);
#endif
}

/* The context the running code sees: borrowed, NULL if this thread never had one. There is no
 * public way to look at it without copying it, and `go` must look on every call. */
static inline PyObject *compat_current_context(PyThreadState *ts)
{
    return ts->context;
}

/* Where the running code stands: its code object (a new reference, NULL if there is no Python code on this
 * thread) and the offset in it, for PyCode_Addr2Line. Going through a frame object costs ten times more,
 * and `go` does this on every call. */
static inline PyCodeObject *compat_caller(PyThreadState *ts, int *lasti)
{
#if PY_VERSION_HEX >= 0x030D0000
    struct _PyInterpreterFrame *frame = ts->current_frame;
    PyObject *code = frame != NULL ? PyUnstable_InterpreterFrame_GetCode(frame) : NULL;
    if (code != NULL && !PyCode_Check(code)) {
        Py_CLEAR(code);
    }
    *lasti = code != NULL ? PyUnstable_InterpreterFrame_GetLasti(frame) : 0;
    return (PyCodeObject *)code;
#else
    (void)ts;
    PyFrameObject *frame = PyEval_GetFrame();
    *lasti = frame != NULL ? PyFrame_GetLasti(frame) : 0;
    return frame != NULL ? PyFrame_GetCode(frame) : NULL;
#endif
}

/* Where in a coroutine or generator its frame is, for compat_suspended_at; 0: we do not know. `frame` is its frame
 * object. A frame begins with its code object, whose address may carry marks. */
static inline size_t compat_frame_offset(PyObject *coro, PyFrameObject *frame)
{
    size_t found = 0;
#if PY_VERSION_HEX >= 0x030D0000
    PyCodeObject *code = PyFrame_GetCode(frame);
    size_t end = (size_t)Py_TYPE(coro)->tp_basicsize - sizeof(uintptr_t);
    for (size_t at = sizeof(PyObject); found == 0 && at <= end; at += sizeof(uintptr_t)) {
        char *word = (char *)coro + at;
        if ((*(uintptr_t *)word & ~(uintptr_t)7) == (uintptr_t)code &&
            PyUnstable_InterpreterFrame_GetLasti((void *)word) == PyFrame_GetLasti(frame)) {
            found = at;
        }
    }
    Py_DECREF(code);
#else
    (void)coro;
    (void)frame;
#endif
    return found;
}

/* Where one that is suspended stands. No frame object is made of it, which would stay as long as it does: of a
 * hundred thousand, enough to start a collection. A new reference, or NULL. */
static inline PyCodeObject *compat_suspended_at(PyObject *coro, size_t offset, int *lasti)
{
#if PY_VERSION_HEX >= 0x030D0000
    struct _PyInterpreterFrame *frame = (void *)((char *)coro + offset);
    PyObject *code = PyUnstable_InterpreterFrame_GetCode(frame);
    if (code != NULL && !PyCode_Check(code)) {
        Py_CLEAR(code);
    }
    *lasti = code != NULL ? PyUnstable_InterpreterFrame_GetLasti(frame) : 0;
    return (PyCodeObject *)code;
#else
    (void)coro;
    (void)offset;
    (void)lasti;
    return NULL;
#endif
}

/* Which frame the running code is in (NULL: none), and where in it: both only to be compared. No reference is
 * counted and no object made: the trace asks on every wait. */
static inline const void *compat_position(PyThreadState *ts, uintptr_t *where)
{
#if PY_VERSION_HEX >= 0x030D0000
    struct _PyInterpreterFrame *frame = ts->current_frame;
#else
    struct _PyInterpreterFrame *frame = ts->cframe->current_frame;
#endif
#if PY_VERSION_HEX >= 0x030C0000
    *where = frame != NULL ? (uintptr_t)PyUnstable_InterpreterFrame_GetLasti(frame) : 0;
#else
    struct { /* the head of a frame in 3.11's pycore_frame.h */
        void *func, *globals, *builtins, *locals, *code, *frame_obj, *previous, *prev_instr;
    } *head = (void *)frame;
    *where = frame != NULL ? (uintptr_t)head->prev_instr : 0;
#endif
    return frame;
}

/* A new tuple of a type that is derived from tuple, to be filled. */
static inline PyObject *compat_tuple_new(PyTypeObject *type, Py_ssize_t n)
{
    PyObject *tuple = type->tp_alloc(type, n);
#if PY_VERSION_HEX >= 0x030E0000
    if (tuple != NULL) {
        ((PyTupleObject *)tuple)->ob_hash = -1; /* not known yet */
    }
#endif
    return tuple;
}

/* Free-threaded CPython counts the references of an object's creating thread apart from all others.
 * When another thread drops the last one, the object goes through a locked queue back to its creator.
 * Goroutines and what they carry are made to change threads, so we merge the two counts of such an
 * object (which its creator may do at any time; CPython does it in _Py_ExplicitMergeRefcount): from then
 * on every thread counts atomically, and whoever drops the last reference frees it on the spot. */
static inline void compat_share(PyObject *op)
{
#ifdef Py_GIL_DISABLED
    if (__atomic_load_n(&op->ob_tid, __ATOMIC_RELAXED) != _Py_ThreadId() || _Py_IsImmortal(op)) {
        return;
    }
    Py_ssize_t local = op->ob_ref_local;
    Py_ssize_t shared = __atomic_load_n(&op->ob_ref_shared, __ATOMIC_RELAXED), merged;
    __atomic_store_n(&op->ob_ref_local, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&op->ob_tid, 0, __ATOMIC_RELAXED);
    do {
        Py_ssize_t others = shared >> _Py_REF_SHARED_SHIFT; /* may be negative */
        merged = _Py_REF_SHARED(local + others, _Py_REF_MERGED);
    } while (!__atomic_compare_exchange_n(&op->ob_ref_shared, &shared, merged, 0, __ATOMIC_SEQ_CST,
                                          __ATOMIC_RELAXED));
#else
    (void)op;
#endif
}

/* The same for an object made just now, which no other thread can have seen: no locked instruction.
 * Relaxed atomics, because its memory may have been another object's: CPython reads lists without a lock, so
 * a reader with a pointer from before may still try to count it up. While ob_ref_shared is 0 it gives up; then
 * it counts up, sees that the list has changed, and counts down again. */
static inline void compat_share_new(PyObject *op)
{
#ifdef Py_GIL_DISABLED
    if (__atomic_load_n(&op->ob_tid, __ATOMIC_RELAXED) == _Py_ThreadId() &&
        __atomic_load_n(&op->ob_ref_shared, __ATOMIC_RELAXED) == 0) {
        Py_ssize_t merged = _Py_REF_SHARED((Py_ssize_t)op->ob_ref_local, _Py_REF_MERGED);
        __atomic_store_n(&op->ob_ref_local, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&op->ob_tid, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&op->ob_ref_shared, merged, __ATOMIC_RELAXED);
    }
#else
    (void)op;
#endif
}

/* The memory of a dead object, used again for another of its type: what PyObject_Init does, without the call. */
static inline void compat_revive(PyObject *op)
{
#if defined(Py_REF_DEBUG) || defined(Py_TRACE_REFS)
    PyObject_Init(op, Py_TYPE(op));
#elif defined(Py_GIL_DISABLED)
    __atomic_store_n(&op->ob_tid, _Py_ThreadId(), __ATOMIC_RELAXED);
    __atomic_store_n(&op->ob_gc_bits, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&op->ob_ref_local, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&op->ob_ref_shared, 0, __ATOMIC_RELAXED);
#else
    Py_SET_REFCNT(op, 1);
#endif
}

#ifdef Py_GIL_DISABLED
/* The same, but the object is that thread's (its _Py_ThreadId()). */
static inline void compat_revive_for(PyObject *op, uintptr_t thread)
{
    compat_revive(op);
    __atomic_store_n(&op->ob_tid, thread, __ATOMIC_RELAXED);
}
#endif

/* Whether there is one reference in all, so that nobody but its owner can get at the object: other threads get
 * references through the collector only, while this one is stopped. */
static inline bool compat_unique(PyObject *op)
{
#ifdef Py_GIL_DISABLED
    return __atomic_load_n(&op->ob_tid, __ATOMIC_RELAXED) == _Py_ThreadId() &&
           __atomic_load_n(&op->ob_ref_local, __ATOMIC_RELAXED) == 1 &&
           __atomic_load_n(&op->ob_ref_shared, __ATOMIC_RELAXED) == 0;
#else
    return Py_REFCNT(op) == 1;
#endif
}

/* A second reference to such an object. */
static inline void compat_set_two(PyObject *op)
{
#if defined(Py_GIL_DISABLED) && !defined(Py_REF_DEBUG)
    __atomic_store_n(&op->ob_ref_local, 2, __ATOMIC_RELAXED);
#else
    Py_INCREF(op);
#endif
}

/* PyObject_GC_Track, of a new object, and PyObject_GC_UnTrack. In free-threaded CPython that is a bit of the
 * object's own (_PyGC_BITS_TRACKED), which is not worth a call. */
static inline void compat_track(PyObject *op)
{
#ifdef Py_GIL_DISABLED
    __atomic_store_n(&op->ob_gc_bits, 1, __ATOMIC_RELAXED);
#else
    PyObject_GC_Track(op);
#endif
}

/* gc.freeze() may have come upon it: the collector shall look at it again. With the GIL it is on a list of its own then,
 * and we can only do without. */
static inline void compat_thaw(PyObject *op)
{
#ifdef Py_GIL_DISABLED
    compat_track(op);
#else
    (void)op;
#endif
}

static inline void compat_untrack(PyObject *op)
{
#ifdef Py_GIL_DISABLED
    __atomic_store_n(&op->ob_gc_bits, op->ob_gc_bits & ~1, __ATOMIC_RELAXED);
#else
    PyObject_GC_UnTrack(op);
#endif
}

/* Whether the collector has found the object unreachable and is about to finalize and free it. CPython keeps
 * weak references from bringing such an object back; a list that owns nothing must do so itself. (Other
 * threads run during finalizers, but not between the marking and their start.) The bits are those of
 * pycore_gc.h in 3.11 to 3.14: _PyGC_BITS_UNREACHABLE, and _PyGC_PREV_MASK_COLLECTING in the word before
 * the object. */
static inline bool compat_is_garbage(PyObject *op)
{
#ifdef Py_GIL_DISABLED
    return (__atomic_load_n(&op->ob_gc_bits, __ATOMIC_RELAXED) & (1 << 2)) != 0;
#else
    return (((uintptr_t *)op)[-1] & 2) != 0;
#endif
}

/* A strong reference from a borrowed pointer whose object may be on its way to be freed; false if it
 * is too late. The memory itself must be safe to read (its dealloc waits for a lock we hold). */
static inline bool compat_try_incref(PyObject *op)
{
#ifdef Py_GIL_DISABLED
    return PyUnstable_TryIncRef(op) != 0;
#else
    if (Py_REFCNT(op) <= 0) {
        return false;
    }
    Py_INCREF(op);
    return true;
#endif
}

#endif
