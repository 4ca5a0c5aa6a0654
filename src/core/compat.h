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

/* The context the running code sees: borrowed, NULL if this thread never had one. There is no
 * public way to look at it without copying it, and `go` must look on every call. */
static inline PyObject *compat_current_context(PyThreadState *ts)
{
    return ts->context;
}

/* Free-threaded CPython counts the references of an object's creating thread apart from all others.
 * When the other thread drops the last one, the object goes through a locked queue back to its
 * creator. Goroutines, their coroutines and wait records are made to change threads, so they start
 * with the two counts already merged (the state CPython itself leaves such an object in): every
 * thread then counts atomically, and whoever drops the last reference frees the object on the spot.
 *
 * Call only while the calling thread holds all `refs` references and no other thread can see it. */
static inline void compat_share(PyObject *op, Py_ssize_t refs)
{
#ifdef Py_GIL_DISABLED
    if (op->ob_tid == _Py_ThreadId() && op->ob_ref_local == (uint32_t)refs &&
        op->ob_ref_shared == 0) {
        op->ob_ref_local = 0;
        op->ob_ref_shared = _Py_REF_SHARED(refs, _Py_REF_MERGED);
        op->ob_tid = 0;
    }
#else
    (void)op;
    (void)refs;
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
