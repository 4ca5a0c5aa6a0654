/* gofer.atomic: Int, Bool and Ref. */
#include "runtime.h"

/* ---- Int and Bool: one word ---- */

typedef struct {
    PyObject_HEAD
    _Atomic int64_t value;
} Word;

static PyTypeObject Int_Type, Bool_Type, Ref_Type;

static PyObject *word_object(PyObject *self, int64_t value)
{
    return Py_IS_TYPE(self, &Bool_Type) ? PyBool_FromLong(value != 0) : PyLong_FromLongLong(value);
}

static bool word_value(PyTypeObject *type, PyObject *obj, int64_t *value)
{
    if (type == &Bool_Type) {
        if (!PyBool_Check(obj)) {
            PyErr_Format(PyExc_TypeError, "atomic.Bool holds a bool, not %R", obj);
            return false;
        }
        *value = obj == Py_True;
        return true;
    }
    if (!PyLong_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "atomic.Int holds an int, not %R", obj);
        return false;
    }
    *value = PyLong_AsLongLong(obj);
    if (*value == -1 && PyErr_Occurred()) {
        PyErr_Format(PyExc_OverflowError, "atomic.Int holds 64 bits: %R does not fit", obj);
        return false;
    }
    return true;
}

static PyObject *word_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char name[] = "value", *names[] = {name, NULL};
    PyObject *obj = type == &Bool_Type ? Py_False : NULL;
    int64_t value = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &obj) ||
        (obj != NULL && !word_value(type, obj, &value))) {
        return NULL;
    }
    Word *w = (Word *)type->tp_alloc(type, 0);
    if (w != NULL) {
        atomic_store_explicit(&w->value, value, memory_order_relaxed);
    }
    return (PyObject *)w;
}

static void plain_dealloc(PyObject *self)
{
    Py_TYPE(self)->tp_free(self);
}

static PyObject *word_load(PyObject *self, PyObject *Py_UNUSED(a))
{
    return word_object(self, atomic_load(&((Word *)self)->value));
}

static PyObject *word_store(PyObject *self, PyObject *obj)
{
    int64_t value;
    if (!word_value(Py_TYPE(self), obj, &value)) {
        return NULL;
    }
    atomic_store(&((Word *)self)->value, value);
    Py_RETURN_NONE;
}

static PyObject *word_swap(PyObject *self, PyObject *obj)
{
    int64_t value;
    return word_value(Py_TYPE(self), obj, &value)
               ? word_object(self, atomic_exchange(&((Word *)self)->value, value))
               : NULL;
}

static PyObject *word_cas(PyObject *self, PyObject *args)
{
    PyObject *old, *new;
    int64_t from, to;
    if (!PyArg_ParseTuple(args, "OO:compare_and_swap", &old, &new) ||
        !word_value(Py_TYPE(self), old, &from) || !word_value(Py_TYPE(self), new, &to)) {
        return NULL;
    }
    return PyBool_FromLong(atomic_compare_exchange_strong(&((Word *)self)->value, &from, to));
}

static PyObject *int_add(PyObject *self, PyObject *obj)
{
    Word *w = (Word *)self;
    int64_t delta, sum, value;
    if (!word_value(&Int_Type, obj, &delta)) {
        return NULL;
    }
    value = atomic_load(&w->value);
    do {
        if (__builtin_add_overflow(value, delta, &sum)) {
            PyErr_Format(PyExc_OverflowError, "atomic.Int holds 64 bits: %lld + %lld does not fit",
                         (long long)value, (long long)delta);
            return NULL;
        }
    } while (!atomic_compare_exchange_weak(&w->value, &value, sum));
    return PyLong_FromLongLong(sum);
}

static PyObject *any_repr(PyObject *self, PyObject *value)
{
    const char *name = Py_IS_TYPE(self, &Int_Type)    ? "Int"
                       : Py_IS_TYPE(self, &Bool_Type) ? "Bool"
                                                      : "Ref";
    PyObject *r = value != NULL ? PyUnicode_FromFormat("atomic.%s(%R)", name, value) : NULL;
    Py_XDECREF(value);
    return r;
}

static PyObject *word_repr(PyObject *self)
{
    return any_repr(self, word_load(self, NULL));
}

#define METHODS(load, store, swap, cas)                                                      \
    {"load", load, METH_NOARGS, "load()\n--\n\nThe value.\n\n>>> n.load()\n1"},              \
        {"store", store, METH_O, "store(value, /)\n--\n\nSet the value.\n\n>>> n.store(2)"}, \
        {"swap", swap, METH_O,                                                               \
         "swap(new, /)\n--\n\nSet the value; return the old one.\n\n>>> n.swap(2)\n1"},      \
        {"compare_and_swap", cas, METH_VARARGS,                                              \
         "compare_and_swap(old, new, /)\n--\n\nSet it to new if it is old; say whether.\n\n" \
         ">>> n.compare_and_swap(1, 2)\nTrue"}

static PyMethodDef int_methods[] = {
    METHODS(word_load, word_store, word_swap, word_cas),
    {"add", int_add, METH_O,
     "add(delta, /)\n--\n\nAdd, and return the new value. OverflowError beyond 64 bits.\n\n>>> "
     "n.add(1)\n2"},
    {NULL},
};
static PyMethodDef bool_methods[] = {METHODS(word_load, word_store, word_swap, word_cas), {NULL}};

static PyTypeObject Int_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.atomic.Int",
    .tp_basicsize = sizeof(Word),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Int(value=0)\n--\n\nA 64-bit integer that any thread may change.\n\n"
              ">>> n = Int()\n>>> n.add(1)\n1",
    .tp_new = word_new,
    .tp_dealloc = plain_dealloc,
    .tp_repr = word_repr,
    .tp_methods = int_methods,
};

static PyTypeObject Bool_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.atomic.Bool",
    .tp_basicsize = sizeof(Word),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Bool(value=False)\n--\n\nA truth value that any thread may change.\n\n"
              ">>> b = Bool()\n>>> b.swap(True)\nFalse",
    .tp_new = word_new,
    .tp_dealloc = plain_dealloc,
    .tp_repr = word_repr,
    .tp_methods = bool_methods,
};

/* ---- Ref: a reference, under a lock, since it must be read and counted in one step ---- */

typedef struct {
    PyObject_HEAD
    ObjLock lock;
    PyObject *value; /* owned */
} Ref;

static PyObject *ref_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char name[] = "value", *names[] = {name, NULL};
    PyObject *value = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Ref", names, &value)) {
        return NULL;
    }
    Ref *r = (Ref *)type->tp_alloc(type, 0);
    if (r != NULL) {
        r->value = Py_NewRef(value);
    }
    return (PyObject *)r;
}

static PyObject *ref_load(PyObject *self, PyObject *Py_UNUSED(a))
{
    Ref *r = (Ref *)self;
    obj_lock(&r->lock);
    PyObject *value = Py_NewRef(r->value);
    obj_unlock(&r->lock);
    return value;
}

static PyObject *ref_swap(PyObject *self, PyObject *value)
{
    Ref *r = (Ref *)self;
    Py_INCREF(value);
    obj_lock(&r->lock);
    PyObject *old = r->value;
    r->value = value;
    obj_unlock(&r->lock);
    return old;
}

static PyObject *ref_store(PyObject *self, PyObject *value)
{
    Py_DECREF(ref_swap(self, value));
    Py_RETURN_NONE;
}

static PyObject *ref_cas(PyObject *self, PyObject *args)
{
    Ref *r = (Ref *)self;
    PyObject *old, *new;
    if (!PyArg_ParseTuple(args, "OO:compare_and_swap", &old, &new)) {
        return NULL;
    }
    Py_INCREF(new);
    obj_lock(&r->lock);
    bool same = r->value == old;
    if (same) {
        r->value = new;
    }
    obj_unlock(&r->lock);
    Py_DECREF(same ? old : new); /* the caller's arguments keep both alive */
    return PyBool_FromLong(same);
}

static PyObject *ref_repr(PyObject *self)
{
    return any_repr(self, ref_load(self, NULL));
}

static int ref_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Ref *)self)->value);
    return 0;
}

static int ref_clear(PyObject *self)
{
    Py_DECREF(ref_swap(self, Py_None));
    return 0;
}

static void ref_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_TRASHCAN_BEGIN(self, ref_dealloc);
    Py_CLEAR(((Ref *)self)->value);
    Py_TYPE(self)->tp_free(self);
    Py_TRASHCAN_END
}

static PyMethodDef ref_methods[] = {
    METHODS(ref_load, ref_store, ref_swap, ref_cas),
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Ref[T]: typing only."},
    {NULL}};

static PyTypeObject Ref_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gofer.atomic.Ref",
    .tp_basicsize = sizeof(Ref),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc =
        "Ref(value=None)\n--\n\nA reference that any thread may change; compared by identity.\n\n"
        ">>> r = Ref(config)\n>>> old = r.swap(new_config)",
    .tp_new = ref_new,
    .tp_dealloc = ref_dealloc,
    .tp_traverse = ref_traverse,
    .tp_clear = ref_clear,
    .tp_repr = ref_repr,
    .tp_methods = ref_methods,
};

bool atomic_module_init(PyObject *mod)
{
    return PyType_Ready(&Int_Type) == 0 && PyType_Ready(&Bool_Type) == 0 &&
           PyType_Ready(&Ref_Type) == 0 &&
           PyModule_AddObjectRef(mod, "AtomicInt", (PyObject *)&Int_Type) == 0 &&
           PyModule_AddObjectRef(mod, "AtomicBool", (PyObject *)&Bool_Type) == 0 &&
           PyModule_AddObjectRef(mod, "AtomicRef", (PyObject *)&Ref_Type) == 0;
}
