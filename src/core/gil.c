/* gil: whether the GIL is used, and how long a thread may keep it while others wait for it. */
#include "runtime.h"

#if HAVE_GIL

/* ---- is it used? ---- */

#define UNUSED_NS 200000LL

bool gil_is_free(void)
{
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        if (m->ts != NULL && !compat_detached(m->ts)) {
            return false;
        }
    }
    return true;
}

/* That it is free just now says little: who is to have it may not be awake yet. It must be free at each look for a while,
 * in which the process did not compute. If it did, without the GIL perhaps, that takes some more looks. */
bool gil_is_unused(int64_t now)
{
    enum { LOOKS = 4 };
    static int64_t looked_ns, used_ns;   /* sysmon's alone: when it looked last; when it was used */
    static int64_t read_ns, read_cpu_ns; /* the clock of the process, which is dear, at `read_ns` */
    static int looks;                    /* at which it was free, one after another */
    lock(&sched.lock);
    looks = gil_is_free() ? looks + 1 : 0;
    unlock(&sched.lock);
    if (looks == 0 || now - looked_ns > 2 * SYSMON_MAX_NS) {
        used_ns = now; /* or who knows */
    }
    else if (looks < LOOKS) {
        int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        if ((cpu - read_cpu_ns) * 2 > now - read_ns) {
            used_ns = now;
        }
        read_ns = now;
        read_cpu_ns = cpu;
    }
    looked_ns = now;
    return now - used_ns >= UNUSED_NS;
}

/* ---- how long may it be kept? ----
 *
 * 5 ms, unless somebody has chosen otherwise (sys.setswitchinterval). Where goroutines compute and are stopped for others,
 * these wait for that several times over: until the thread of preempt.c can interrupt, until who is to stop gets to
 * a boundary, until another M has the P. So it is shorter meanwhile. Not where many threads want it: each wakes up so
 * often to ask again.
 *
 * All of it is for the thread of preempt.c, attached to Python; or for a forked child, which has no other. */

/* Ours is QUICK_US, and STEP_US more for each FEW threads. It is known by being so odd: somebody may set another
 * for a while and then what he found, which was ours. CPython rounds down, but not these. */
enum { USUAL_US = 5000, QUICK_US = 503, STEP_US = 1000, FEW = 8 };

static bool quick; /* we have set it, and not set it back */

/* Negative if it cannot be had, which has been told. */
static long interval_us(void)
{
    PyObject *get = PySys_GetObject("getswitchinterval");
    PyObject *seconds = get != NULL ? PyObject_CallNoArgs(get) : NULL;
    double s = seconds != NULL ? PyFloat_AsDouble(seconds) : -1;
    Py_XDECREF(seconds);
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(NULL);
        return -1;
    }
    return (long)(s * 1e6 + 0.5);
}

static void set_interval(long us)
{
    PyObject *set = PySys_GetObject("setswitchinterval");
    PyObject *r = set != NULL ? PyObject_CallFunction(set, "d", (double)us / 1e6) : NULL;
    if (r == NULL && PyErr_Occurred()) {
        PyErr_WriteUnraisable(NULL);
    }
    Py_XDECREF(r);
}

static bool is_ours(long us)
{
    return us < USUAL_US && us % STEP_US == QUICK_US;
}

bool gil_is_quick(void)
{
    return quick;
}

void gil_quick(int threads)
{
    long us = QUICK_US + threads / FEW * STEP_US, now = interval_us();
    if (us >= USUAL_US) {
        gil_as_usual();
    }
    else if (now == USUAL_US || is_ours(now)) {
        if (now != us) {
            set_interval(us);
        }
        quick = true;
    }
}

void gil_as_usual(void)
{
    if (is_ours(interval_us())) {
        set_interval(USUAL_US);
    }
    quick = false;
}

#else

bool gil_is_free(void)
{
    return true;
}

bool gil_is_unused(int64_t Py_UNUSED(now))
{
    return true;
}

bool gil_is_quick(void)
{
    return false;
}

void gil_quick(int Py_UNUSED(threads)) {}
void gil_as_usual(void) {}

#endif
