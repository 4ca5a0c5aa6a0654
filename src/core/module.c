/* The extension module gofer._core. Its types and the scheduler are static: there is one runtime in a
 * process, and subinterpreters are refused. */
#include "future.h"
#include "net.h"
#include "trace.h"

PyDoc_STRVAR(
    go_doc,
    "go(fn, /, *args, name=None, **kwargs)\n--\n\n"
    "Start a goroutine that runs fn(*args, **kwargs), an async function, or a coroutine object,\n"
    "and return its handle. It need not be kept.\n\n"
    ">>> g = go(fetch, url, name='fetcher')\n>>> page = await g");
PyDoc_STRVAR(sleep_doc, "sleep(seconds, /)\n--\n\n"
                        "Operation: let at least this much time pass. Zero or less returns at "
                        "once, without yielding.\n\n"
                        ">>> await sleep(0.5)");
PyDoc_STRVAR(gosched_doc,
             "gosched()\n--\n\n"
             "Operation: let the others run, by going to the tail of the global queue.\n\n"
             ">>> await gosched()");

PyDoc_STRVAR(
    select_doc,
    "select(*cases, default=False)\n--\n\n"
    "Operation: wait until one of several operations can be done, do exactly that one, and give\n"
    "Selected(index, value, ok). A case is ch.send(v), ch.recv(), ch.recv_ok(), sleep(s), a\n"
    "Goroutine, a Future, offload(...), or None, which is never ready. With default=True it does\n"
    "not wait: index -1.\n\n"
    ">>> match await select(a.recv(), b.recv(), sleep(1)):\n"
    "...     case Selected(0, value, ok):\n...         print(value)\n1");

static PyObject *core_gosched(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return Py_NewRef((PyObject *)&gosched_op);
}

static PyMethodDef methods[] = {
    {"go", (PyCFunction)(void (*)(void))core_go, METH_FASTCALL | METH_KEYWORDS, go_doc},
    {"go_here", (PyCFunction)(void (*)(void))core_go_here, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"go_for", (PyCFunction)(void (*)(void))core_go_for, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"sleep", sleep_new, METH_O, sleep_doc},
    {"gosched", core_gosched, METH_NOARGS, gosched_doc},
    {"select", (PyCFunction)(void (*)(void))core_select, METH_FASTCALL | METH_KEYWORDS, select_doc},
    {NULL},
};

/* configure(hooks): take the functions of gofer._hooks that the engine calls. */
static PyObject *configure(PyObject *Py_UNUSED(mod), PyObject *from)
{
    struct {
        const char *name;
        PyObject **to;
    } wanted[] = {
        {"Cancelled", &hooks.Cancelled},
        {"Deadlock", &hooks.Deadlock},
        {"GoExit", &hooks.GoExit},
        {"ChannelClosed", &hooks.ChannelClosed},
        {"WouldBlock", &hooks.WouldBlock},
        {"ClosedError", &hooks.Closed},
        {"IncompleteRead", &hooks.IncompleteRead},
        {"LimitExceeded", &hooks.LimitExceeded},
        {"Selected", &hooks.Selected},
        {"as_coroutine", &hooks.as_coroutine},
        {"limited", &hooks.limited},
        {"attach_thread", &hooks.attach_thread},
        {"is_coroutine", &hooks.is_coroutine},
        {"is_async", &hooks.is_async},
        {"stack_of", &hooks.stack_of},
        {"deadlock_text", &hooks.deadlock_text},
        {"quit_dump", &hooks.quit_dump},
        {"stalled", &hooks.stalled},
        {"frame_and_awaited", &hooks.frame_and_awaited},
        {"note_failure", &hooks.note_failure},
        {"warn_leak", &hooks.warn_leak},
        {"foreign_threads", &hooks.foreign_threads},
        {"foreign_await", &hooks.foreign_await},
        {"Interrupted", &hooks.Interrupted},
        {"nothing", &hooks.nothing},
        {"last_chance", &hooks.last_chance},
        {"as_case", &hooks.as_case},
        {"future_started", &hooks.future_started},
        {"call_submitted", &hooks.call_submitted},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        PyObject *value = PyObject_GetAttrString(from, wanted[i].name);
        if (value == NULL) {
            return NULL;
        }
        Py_XSETREF(*wanted[i].to, value);
    }
    Py_RETURN_NONE;
}

static PyMethodDef configure_method[] = {{"configure", configure, METH_O, NULL}, {NULL}};

static int module_exec(PyObject *mod)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(
            PyExc_ImportError,
            "gofer does not support subinterpreters: import it in the main interpreter");
        return -1;
    }
    PyTypeObject *types[] = {&Operation_Type, &Goroutine_Type, &SleepOp_Type, &GoschedOp_Type,
                             &JoinOp_Type,    &ReadyOp_Type,   &DoneOp_Type,  &FutureOp_Type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyType_Ready(types[i]) < 0) {
            return -1;
        }
    }
#ifdef Py_GIL_DISABLED
    if (PyType_Ready(&interrupt_type) < 0) {
        return -1;
    }
#endif
    if (!claims_init() || !dump_init()) {
        return -1;
    }
    run_module_init();
    trace_init();
    tracewrite_init();
    if (!chan_module_init(mod) || !sema_module_init(mod) || !time_module_init(mod) ||
        !context_module_init(mod) || !atomic_module_init(mod) || !pool_module_init(mod) ||
        !fdwait_module_init(mod) || !conn_module_init(mod) ||
        PyModule_AddFunctions(mod, block_methods) < 0 ||
        PyModule_AddFunctions(mod, future_module_methods) < 0 ||
        PyModule_AddType(mod, &Operation_Type) < 0) {
        return -1;
    }
    if (PyModule_AddType(mod, &Goroutine_Type) < 0 || PyModule_AddFunctions(mod, methods) < 0 ||
        PyModule_AddFunctions(mod, run_methods) < 0 ||
        PyModule_AddFunctions(mod, maxprocs_methods) < 0 ||
        PyModule_AddFunctions(mod, numa_methods) < 0 ||
        PyModule_AddFunctions(mod, stats_methods) < 0 ||
        PyModule_AddFunctions(mod, dump_methods) < 0 ||
        PyModule_AddFunctions(mod, preempt_methods) < 0 ||
        PyModule_AddFunctions(mod, schedtrace_methods) < 0 ||
        PyModule_AddFunctions(mod, signals_methods) < 0 ||
        PyModule_AddFunctions(mod, leaks_methods) < 0 ||
        PyModule_AddFunctions(mod, stall_methods) < 0 ||
        PyModule_AddFunctions(mod, configure_method) < 0 ||
        PyModule_AddFunctions(mod, trace_methods) < 0 ||
        PyModule_AddFunctions(mod, tracewrite_methods) < 0 ||
        PyModule_AddFunctions(mod, traceread_methods) < 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gofer._core",
    .m_doc = "The engine of gofer. Use the gofer package.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&def);
}
