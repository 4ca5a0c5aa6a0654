/* The methods of `with` and `async with`, bound cheaply.
 *
 * Up to 3.13 the interpreter binds both methods of such a block before it calls the first. To make and free two
 * bound methods takes longer than to lock and unlock a mutex. So these have a descriptor of ours in front of CPython's
 * own, which binds to an object that is used again and again. Everything else is asked of CPython's. */
#include "runtime.h"

#if COMPAT_WITH_BINDS

typedef struct {
    PyObject_HEAD
    PyTypeObject *type;
    PyObject *method; /* CPython's, for good */
    vectorcallfunc call;
    PyCFunction function;
} Special;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Special *special; /* which lives as long as its type: for ever */
    PyObject *self;   /* NULL: a spare one */
} Bound;

static PyTypeObject Bound_Type;

/* Spare ones, under the GIL as all here: the reference to each is ours. They stay known to the collector, which saves
 * most of what a new one costs, so they must be fit to be seen. Blocks within blocks need one each. There are some
 * during a run only: what gc.freeze() finds, the collector never looks at again. */
enum { SPARES_MAX = 16 };
static Bound *spares[SPARES_MAX];
static int nspares, spares_max;

/* As CPython binds. */
static PyObject *bind(Special *special, PyObject *obj)
{
    return Py_TYPE(special->method)->tp_descr_get(special->method, obj, (PyObject *)special->type);
}

static PyObject *bound_by_cpython(PyObject *self)
{
    return bind(((Bound *)self)->special, ((Bound *)self)->self);
}

/* Arguments that it does not take, or a spare one, which somebody has found in the collector's lists: CPython has the
 * words. */
static SLOW PyObject *call_by_cpython(PyObject *self, PyObject *const *args, size_t nargsf,
                                      PyObject *kwnames)
{
    PyObject *real = bound_by_cpython(self);
    if (real == NULL) {
        return NULL;
    }
    PyObject *r = PyObject_Vectorcall(real, args, nargsf, kwnames);
    Py_DECREF(real);
    return r;
}

static PyObject *call_noargs(PyObject *self, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames)
{
    Bound *b = (Bound *)self;
    if (unlikely(PyVectorcall_NARGS(nargsf) != 0 || kwnames != NULL)) {
        return call_by_cpython(self, args, nargsf, kwnames);
    }
    return b->special->function(b->self, NULL);
}

static PyObject *call_fast(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Bound *b = (Bound *)self;
    if (unlikely(kwnames != NULL)) {
        return call_by_cpython(self, args, nargsf, kwnames);
    }
    _PyCFunctionFast function = (_PyCFunctionFast)(void (*)(void))b->special->function;
    return function(b->self, args, PyVectorcall_NARGS(nargsf));
}

static SLOW Bound *bound_new(void)
{
    Bound *b = PyObject_GC_New(Bound, &Bound_Type);
    if (b != NULL) {
        b->self = NULL;
        compat_track((PyObject *)b);
    }
    return b;
}

static PyObject *special_get(PyObject *self, PyObject *obj, PyObject *Py_UNUSED(type))
{
    Special *special = (Special *)self;
    if (unlikely(obj == NULL || !Py_IS_TYPE(obj, special->type))) {
        return bind(special,
                    obj); /* to the type; or some other class has borrowed it, which is an error */
    }
    Bound *b = likely(nspares > 0) ? spares[--nspares] : bound_new();
    if (unlikely(b == NULL)) {
        return NULL;
    }
    b->call = special->call;
    b->special = special;
    b->self = Py_NewRef(obj);
    return (PyObject *)b;
}

void special_clear(bool running)
{
    spares_max = running && USE_FREE_LISTS ? SPARES_MAX : 0;
    while (nspares > 0) {
        Py_DECREF(spares[--nspares]); /* gc.get_objects() may have found it */
    }
}

static void bound_dealloc(PyObject *op)
{
    Bound *b = (Bound *)op;
    PyObject *self = b->self;
    if (likely(self != NULL && nspares < spares_max)) {
        compat_revive(op);
        b->call = call_by_cpython;
        b->self = NULL;
        spares[nspares++] = b;
    }
    else {
        compat_untrack(op);
        PyObject_GC_Del(b);
    }
    Py_XDECREF(self);
}

static int bound_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(((Bound *)op)->self);
    return 0;
}

static PyObject *bound_getattr(PyObject *op, PyObject *name)
{
    PyObject *real = bound_by_cpython(op);
    PyObject *value = real != NULL ? PyObject_GetAttr(real, name) : NULL;
    Py_XDECREF(real);
    return value;
}

static PyObject *bound_repr(PyObject *op)
{
    PyObject *real = bound_by_cpython(op);
    PyObject *text = real != NULL ? PyObject_Repr(real) : NULL;
    Py_XDECREF(real);
    return text;
}

static PyObject *bound_compare(PyObject *op, PyObject *other, int how)
{
    bool comparable = Py_IS_TYPE(other, &Bound_Type) && (how == Py_EQ || how == Py_NE);
    Bound *a = (Bound *)op, *b = (Bound *)other;
    return comparable
               ? PyBool_FromLong((a->self == b->self && a->special == b->special) == (how == Py_EQ))
               : Py_NewRef(Py_NotImplemented);
}

static Py_hash_t bound_hash(PyObject *op)
{
    Bound *b = (Bound *)op;
    return (Py_hash_t)(((uintptr_t)b->self ^ (uintptr_t)b->special) >> 4);
}

static PyTypeObject Bound_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.BoundMethod",
    .tp_basicsize = sizeof(Bound),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = bound_dealloc,
    .tp_traverse = bound_traverse,
    .tp_getattro = bound_getattr,
    .tp_repr = bound_repr,
    .tp_richcompare = bound_compare,
    .tp_hash = bound_hash,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Bound, call),
};

static PyTypeObject Special_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.SpecialMethod",
    .tp_basicsize = sizeof(Special),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_descr_get = special_get,
};

bool bind_cheaply(PyTypeObject *type)
{
    static const char *const names[] = {"__enter__", "__exit__", "__aenter__", "__aexit__"};
    if (PyType_Ready(&Bound_Type) < 0 || PyType_Ready(&Special_Type) < 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        PyObject *method = PyDict_GetItemString(type->tp_dict, names[i]);
        if (Py_IS_TYPE(method, &Special_Type)) {
            continue; /* the module is made once more, its types are not */
        }
        PyMethodDef *def = ((PyMethodDescrObject *)method)->d_method;
        Special *special = PyObject_New(Special, &Special_Type);
        if (special == NULL) {
            return false;
        }
        special->type = type;
        special->method = Py_NewRef(method);
        special->function = def->ml_meth;
        special->call = def->ml_flags == METH_NOARGS ? call_noargs : call_fast;
        int err = PyDict_SetItemString(type->tp_dict, names[i], (PyObject *)special);
        Py_DECREF(special);
        if (err < 0) {
            return false;
        }
    }
    PyType_Modified(type);
    return true;
}

#endif
