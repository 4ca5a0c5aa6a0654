/* NUMA: which P belongs to which node, in which order a thief visits the others and, if asked for, threads that
 * stay on the node of their P.
 *
 * P i belongs to the node of the i-th CPU that we may use, counted node by node; with more Ps than CPUs it starts
 * over. So gomaxprocs() moves no P that stays, and few Ps share a node. The nodes come from sysfs and are read by
 * the Python side (_numa.py), once; which of their CPUs we may use is seen here, again and again.
 *
 * A thief visits the Ps of its own node first, then all others, each part in random order, and all of them in
 * every round: nobody starves, only the order is another. With one node none of this is used.
 *
 * Pinning (run(affinity=True)). An M that gets a P of another node than before sets its thread's mask to the CPUs
 * of that node, as far as the process may use them (numa_settle). A mask that is neither the process's nor what we gave
 * the thread is the user's, and stays: what he allowed is never widened.
 *   - sysmon has taken the P of an M that computes: it may run anywhere until it has one again, or the node would
 *     have more to do than others (numa_release). One that blocks keeps its mask: it needs no CPU.
 *   - M0 is the caller's thread and gets its mask back at the end (numa_end). Other threads end.
 *   - A thread that is wired to a goroutine stays where it is, whatever node the P is of that it gets.
 *   - The mask of the process is sysmon's own, which we never change: `taskset -a` from outside is seen there, and looked
 *     for before each change. What we may have given threads at that very moment sysmon takes back (take_back).
 *   - A new thread inherits the mask of the M that starts it, and knows. */
#include "runtime.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_CPUS = 8192, WORD_BITS = 64, PIN_NODES = MAX_NODES * 2 };

typedef struct { /* as large as the kernel may want it */
    uint64_t words[MAX_CPUS / WORD_BITS];
} CpuMask;

Nodes numa;
_Atomic bool numa_pinning;

static struct {
    int n; /* 0: not known. Changes while nothing runs, as the next two */
    int id[MAX_NODES];
    CpuMask cpus[MAX_NODES];
    bool fake; /* for tests: `allowed` is given and stays */
    /* World stopped and sched.lock to write; so who holds either may read. */
    CpuMask allowed;
    uint32_t generation; /* of `allowed`, never 0 */
} topology = {.generation = 1};

static CpuMask caller_mask; /* M0's before the run */
static CpuMask moved_to;    /* sysmon's until `moved`, then whoever stops the world */
static _Atomic bool moved;
static _Atomic pid_t sysmon_tid; /* 0: it has not come so far */

/* ---- masks ---- */

static bool mask_equal(const CpuMask *a, const CpuMask *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool mask_get(pid_t tid, CpuMask *mask)
{
    memset(mask, 0, sizeof *mask);
    return sched_getaffinity(tid, sizeof *mask, (cpu_set_t *)mask) == 0;
}

static bool mask_set(pid_t tid, const CpuMask *mask)
{
    return sched_setaffinity(tid, sizeof *mask, (const cpu_set_t *)mask) == 0;
}

/* The CPUs of a node that we may use. False: there are none. */
static bool node_mask(int node, CpuMask *mask)
{
    uint64_t any = 0;
    for (size_t i = 0; i < MAX_CPUS / WORD_BITS; i++) {
        mask->words[i] = topology.cpus[node].words[i] & topology.allowed.words[i];
        any |= mask->words[i];
    }
    return any != 0;
}

/* ---- pinned threads ---- */

/* M.pin: which node, and of which mask of the process. 0: not pinned. */
static uint32_t pin_of(int node)
{
    return topology.generation * PIN_NODES + (uint32_t)node + 1;
}

/* Whether we gave `m` the mask that it has, not the user. */
static bool is_ours(const M *m, const CpuMask *mask)
{
    CpuMask ours;
    int node = (int)(m->pin % PIN_NODES) - 1;
    return m->pin != 0 && node_mask(node, &ours) && mask_equal(mask, &ours);
}

static void give_back(M *m, const CpuMask *mask)
{
    CpuMask has;
    lock(&m->pin_lock);
    if (m->pin != 0 && m->tid != 0 && mask_get(m->tid, &has) && is_ours(m, &has)) {
        mask_set(m->tid, mask);
        m->pin = 0;
    }
    unlock(&m->pin_lock);
}

/* The process has another mask: no thread may keep what it got while that was not known. */
static void take_back(void) /* sched.lock */
{
    for (M *m = sched.m0; m != NULL; m = m == sched.m0 ? sched.allm : m->all_next) {
        give_back(m, &moved_to);
    }
}

/* ---- Ps and nodes ---- */

/* From node[] of `n` Ps the rest of it. (What it says of nodes without Ps nobody asks.) */
static void nodes_group(Nodes *to, int n)
{
    int at = 0, used = 0;
    for (int node = 0; node < MAX_NODES && at < n; node++) {
        to->first[node] = (uint16_t)at;
        for (int i = 0; i < n; i++) {
            if (to->node[i] == node) {
                to->order[at++] = (uint16_t)i;
            }
        }
        to->count[node] = (uint16_t)(at - to->first[node]);
        used += to->count[node] > 0;
    }
    to->procs = (uint32_t)n;
    atomic_store_explicit(&to->nodes, used, memory_order_relaxed);
}

static int node_cpus(int node)
{
    CpuMask mask;
    int n = 0;
    node_mask(node, &mask);
    for (size_t i = 0; i < MAX_CPUS / WORD_BITS; i++) {
        n += __builtin_popcountll(mask.words[i]);
    }
    return n;
}

void numa_assign(int n)
{
    if (atomic_load(&moved)) {
        lock(&sched.lock);
        take_back();
        topology.allowed = moved_to;
        topology.generation = topology.generation % 0xffffff + 1;
        unlock(&sched.lock);
        atomic_store(&moved, false);
    }
    int cpus[MAX_NODES], total = 0;
    for (int node = 0; node < topology.n; node++) {
        total += cpus[node] = node_cpus(node);
    }
    for (int i = 0; i < n; i++) {
        int node = 0, cpu = total > 0 ? i % total : 0;
        while (total > 0 && cpu >= cpus[node]) {
            cpu -= cpus[node++];
        }
        numa.node[i] = (uint8_t)node;
        atomic_store_explicit(&sched.allp[i]->node, node, memory_order_relaxed);
    }
    nodes_group(&numa, n);
}

bool numa_moved(void)
{
    CpuMask mask;
    if (topology.n == 0 || topology.fake || atomic_load(&moved) || !mask_get(0, &mask) ||
        mask_equal(&mask, &topology.allowed)) {
        return false;
    }
    moved_to = mask;
    atomic_store(&moved, true);
    return true;
}

int numa_id(int node)
{
    return node < topology.n ? topology.id[node] : 0;
}

/* ---- the order of victims ---- */

/* Visit `n` Ps of Nodes.order, from `base` on, round the end. A stride that is prime and does not divide n meets all. */
static void visit(Victims *v, uint32_t base, uint32_t n)
{
    static const uint8_t primes[16] = {3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59};
    uint32_t i = v->random % 16;
    while (n % primes[i] == 0) { /* MAX_PROCS has not room for all of them */
        i = (i + 1) % 16;
    }
    v->base = base;
    v->n = v->left = n;
    v->stride = primes[i];
    v->at = (v->random >> 8) % n;
}

void victims_begin(Victims *v, const Nodes *of, int p, uint32_t random)
{
    int node = of->node[p];
    v->random = random;
    v->others = of->procs - of->count[node];
    visit(v, of->first[node], of->count[node]);
}

int victims_next(Victims *v, const Nodes *of)
{
    if (v->left == 0) {
        if (v->others == 0) {
            return -1;
        }
        uint32_t n = v->others;
        v->others = 0;
        v->random = v->random * 2654435761u ^ v->random >> 16;
        visit(v, (v->base + v->n) % of->procs, n);
    }
    uint32_t at = (v->base + v->at) % of->procs;
    v->at = (v->at + v->stride) % v->n;
    v->left--;
    return of->order[at];
}

/* ---- pinning ---- */

/* Has the process the mask that we believe it has? */
static bool is_current(void)
{
    pid_t tid = atomic_load(&sysmon_tid);
    CpuMask mask;
    return tid == 0 || topology.fake ||
           (mask_get(tid, &mask) && mask_equal(&mask, &topology.allowed));
}

void numa_settle(M *m)
{
    int node = atomic_load_explicit(&m->p->node, memory_order_relaxed);
    if (topology.n == 0 || m->wired != NULL || m->pin == pin_of(node)) {
        return;
    }
    CpuMask has, wants;
    lock(&m->pin_lock);
    bool ours = mask_get(0, &has) && (mask_equal(&has, &topology.allowed) || is_ours(m, &has));
    m->pin =
        ours && is_current() && node_mask(node, &wants) && mask_set(0, &wants) ? pin_of(node) : 0;
    unlock(&m->pin_lock);
}

void numa_release(M *m)
{
    give_back(m, &topology.allowed);
}

void numa_watched(void)
{
    atomic_store(&sysmon_tid, (pid_t)syscall(SYS_gettid));
}

void numa_begin(void)
{
    atomic_store(&moved, false);
    atomic_store(&sysmon_tid, 0);
    if (topology.n > 0 && mask_get(0, &caller_mask) && !topology.fake) {
        topology.allowed = caller_mask;
    }
}

void numa_end(M *m0)
{
    CpuMask has;
    lock(&m0->pin_lock);
    if (m0->pin != 0 && mask_get(0, &has) && is_ours(m0, &has)) {
        mask_set(0, &caller_mask);
    }
    m0->pin = 0;
    unlock(&m0->pin_lock);
}

/* ---- what Python sees ---- */

static bool parse_cpus(PyObject *cpus, CpuMask *mask)
{
    PyObject *items = PySequence_Fast(cpus, "CPUs must be a sequence");
    memset(mask, 0, sizeof *mask);
    for (Py_ssize_t i = 0; items != NULL && i < PySequence_Fast_GET_SIZE(items); i++) {
        long cpu = PyLong_AsLong(PySequence_Fast_GET_ITEM(items, i));
        if (cpu >= 0 && cpu < MAX_CPUS) { /* others we could not pin to */
            mask->words[cpu / WORD_BITS] |= 1ULL << (cpu % WORD_BITS);
        }
        if (PyErr_Occurred()) {
            Py_CLEAR(items);
        }
    }
    Py_XDECREF(items);
    return items != NULL;
}

/* set_nodes(nodes: list[tuple[int, list[int]]], allowed: list[int] | None): the nodes' numbers and their CPUs. With
 * `allowed`, for tests, those CPUs count as ours, whatever the affinity mask says. False: not while something runs. */
static PyObject *set_nodes(PyObject *Py_UNUSED(mod), PyObject *args)
{
    PyObject *nodes, *allowed;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &nodes, &allowed)) {
        return NULL;
    }
    if (atomic_load(&sched.running) != RUN_NONE) {
        Py_RETURN_FALSE;
    }
    topology.n = 0;
    topology.fake = allowed != Py_None;
    if (topology.fake && !parse_cpus(allowed, &topology.allowed)) {
        return NULL;
    }
    Py_ssize_t n = PyList_GET_SIZE(nodes);
    for (int i = 0; i < n && i < MAX_NODES; i++) {
        PyObject *cpus;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(nodes, i), "iO", &topology.id[i], &cpus) ||
            !parse_cpus(cpus, &topology.cpus[i])) {
            return NULL;
        }
    }
    topology.n = n > 1 ? (int)(n < MAX_NODES ? n : MAX_NODES) : 0;
    Py_RETURN_TRUE;
}

/* proc_nodes(): the node of each P. */
static PyObject *proc_nodes(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    int n = sched.procs;
    PyObject *list = PyList_New(n);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject *id = PyLong_FromLong(numa_id(atomic_load(&sched.allp[i]->node)));
        if (id == NULL) {
            Py_CLEAR(list);
        }
        else {
            PyList_SET_ITEM(list, i, id);
        }
    }
    return list;
}

/* victims(nodes: bytes, p: int, random: int): in which order P `p` would visit all others, if these were the nodes of the
 * Ps. For tests and the simulation. */
static PyObject *victims(PyObject *Py_UNUSED(mod), PyObject *args)
{
    const char *node;
    Py_ssize_t n;
    int p;
    unsigned int random;
    if (!PyArg_ParseTuple(args, "y#iI", &node, &n, &p, &random)) {
        return NULL;
    }
    Nodes *of = n > 0 && n <= MAX_PROCS && p >= 0 && p < n ? malloc(sizeof *of) : NULL;
    if (of == NULL) {
        PyErr_SetString(PyExc_ValueError, "there are not that many Ps");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        of->node[i] = (uint8_t)node[i] % MAX_NODES;
    }
    nodes_group(of, (int)n);
    PyObject *list = PyList_New(0);
    Victims v;
    victims_begin(&v, of, p, random);
    for (int at; list != NULL && (at = victims_next(&v, of)) >= 0;) {
        PyObject *id = PyLong_FromLong(at);
        if (id == NULL || (at != p && PyList_Append(list, id) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(id);
    }
    free(of);
    return list;
}

static PyObject *set_affinity(PyObject *Py_UNUSED(mod), PyObject *on)
{
    atomic_store(&numa_pinning, on == Py_True);
    Py_RETURN_NONE;
}

PyMethodDef numa_methods[] = {
    {"set_nodes", set_nodes, METH_VARARGS, NULL},
    {"proc_nodes", proc_nodes, METH_NOARGS, NULL},
    {"victims", victims, METH_VARARGS, NULL},
    {"set_affinity", set_affinity, METH_O, NULL},
    {NULL},
};
