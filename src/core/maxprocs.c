/* How many Ps by default: the CPUs of the affinity mask, capped by the cgroup's CPU quota (rounded up,
 * but not below 2). Which files hold the quota is found out by the Python side (_cgroup.py), once; here
 * they are read again and again, so no Python is needed and sysmon can do it. */
#include "runtime.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

_Atomic uint32_t maxprocs_auto;

/* v2: [0] is cpu.max. v1: [0] is cpu.cfs_quota_us, [1] is cpu.cfs_period_us. Opened once, as the process
 * may be moved out of reach of the paths. -1: not there. */
static int quota_fd[2] = {-1, -1};

static int affinity_cpus(void)
{
    /* The kernel wants a mask as large as its own. */
    for (int cpus = 1024; cpus <= 1 << 18; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        int n = set != NULL && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (n > 0) {
            return n;
        }
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* Up to two numbers from the start of a file; "max" and anything else that is none counts as -1. */
static void read_numbers(int fd, double out[2])
{
    char text[64];
    ssize_t n = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : -1;
    out[0] = out[1] = -1;
    if (n <= 0) {
        return;
    }
    text[n] = '\0';
    char *at = text, *end;
    for (int i = 0; i < 2; i++) {
        out[i] = strtod(at, &end);
        if (end == at) {
            out[i] = -1;
            return;
        }
        at = end;
    }
}

int maxprocs_default(void)
{
    int cpus = affinity_cpus();
    double q[2], period[2];
    read_numbers(quota_fd[0], q);
    if (quota_fd[1] >= 0) {
        read_numbers(quota_fd[1], period);
        q[1] = period[0];
    }
    if (q[0] > 0 && q[1] > 0) {
        double limit = q[0] / q[1];
        int procs = limit >= cpus ? cpus : (int)limit + (limit > (int)limit);
        procs = procs < 2 ? 2 : procs;
        cpus = procs < cpus ? procs : cpus;
    }
    return cpus < MAX_PROCS ? cpus : MAX_PROCS;
}

/* set_quota_files(quota: str | None, period: str | None) */
static PyObject *set_quota_files(PyObject *Py_UNUSED(mod), PyObject *args)
{
    const char *path[2];
    if (!PyArg_ParseTuple(args, "zz", &path[0], &path[1])) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        int fd = path[i] != NULL ? open(path[i], O_RDONLY | O_CLOEXEC) : -1;
        int old = quota_fd[i];
        quota_fd[i] = fd;
        if (old >= 0) {
            close(old);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *default_procs(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return PyLong_FromLong(HAVE_GIL ? 1 : maxprocs_default());
}

static PyObject *allowed_cpus(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return PyLong_FromLong(maxprocs_default());
}

static PyObject *num_cpu(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    return PyLong_FromLong(affinity_cpus());
}

PyMethodDef maxprocs_methods[] = {
    {"set_quota_files", set_quota_files, METH_VARARGS, NULL},
    {"default_procs", default_procs, METH_NOARGS, NULL},
    {"allowed_cpus", allowed_cpus, METH_NOARGS, NULL},
    {"num_cpu", num_cpu, METH_NOARGS, NULL},
    {NULL},
};
