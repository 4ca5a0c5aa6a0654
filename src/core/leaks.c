/* Goroutines that wait for something that nothing can ever do any more, without waiting for the collector to find and
 * end them.
 *
 * What owns a goroutine is what can wake it (see docs/internals.md), so one that waits and that only garbage refers to
 * is a leak. Which objects those are is found as the collector does: of each container's references, those
 * that come from other containers are taken off; what has some left is referred to from elsewhere (the stack of a
 * thread, C code, a run queue, a timer, the poller) and is alive, and so is all that can be reached from there.
 * Whatever we do not know of counts as such a reference. So nothing is called a leak that could still be woken.
 *
 * All references are noted in one go, while nobody runs; the rest works on the notes. */
#include "runtime.h"

typedef struct {
    PyObject *op;    /* NULL: free. Only an address: it may be gone when we look at the notes */
    int64_t refs;    /* that no container explains */
    size_t first, n; /* its references, in `edges` */
    bool alive;
    bool waits; /* a goroutine that waits */
} Node;

typedef struct {
    Node *nodes; /* by hash of the address */
    size_t n, size;
    uintptr_t *edges; /* addresses; tagged with 1: to be taken back, see compat_visit_borrowed */
    size_t nedges, cap;
    PyObject *probe; /* has one reference, ours: what is seen beyond that is the looker's own */
    Py_ssize_t extra;
    bool begun, failed;
} Notes;

/* ---- the notes ---- */

static Node *node_at(const Notes *notes, PyObject *op)
{
    uint64_t h = (uint64_t)(uintptr_t)op >> 4;
    h *= 0x9e3779b97f4a7c15u;
    for (size_t i = (size_t)(h >> 20) & (notes->size - 1);; i = (i + 1) & (notes->size - 1)) {
        if (notes->nodes[i].op == op || notes->nodes[i].op == NULL) {
            return &notes->nodes[i];
        }
    }
}

/* Room for one more. */
static bool nodes_grow(Notes *notes)
{
    if (notes->n * 2 < notes->size) {
        return true;
    }
    Notes more = {.size = notes->size > 0 ? notes->size * 2 : 1 << 16};
    more.nodes = calloc(more.size, sizeof *more.nodes);
    if (more.nodes == NULL) {
        return false;
    }
    for (size_t i = 0; i < notes->size; i++) {
        if (notes->nodes[i].op != NULL) {
            *node_at(&more, notes->nodes[i].op) = notes->nodes[i];
        }
    }
    free(notes->nodes);
    notes->nodes = more.nodes;
    notes->size = more.size;
    return true;
}

static bool edges_grow(Notes *notes)
{
    if (notes->nedges < notes->cap) {
        return true;
    }
    size_t cap = notes->cap > 0 ? notes->cap * 2 : 1 << 18;
    uintptr_t *more = realloc(notes->edges, cap * sizeof *more);
    if (more == NULL) {
        return false;
    }
    notes->edges = more;
    notes->cap = cap;
    return true;
}

static int note_edge(Notes *notes, uintptr_t edge)
{
    if (!edges_grow(notes)) {
        notes->failed = true;
        return 1;
    }
    notes->edges[notes->nedges++] = edge;
    return 0;
}

static int note_reference(PyObject *to, void *arg)
{
    return note_edge(arg, (uintptr_t)to);
}

static int note_borrowed(PyObject *to, void *arg)
{
    return note_edge(arg, (uintptr_t)to | 1);
}

/* What Ms are about to let go of, and only had to put off, wakes nobody. */
static void note_drops(Notes *notes)
{
    lock(&sched.lock);
    for (M *m = NULL; (m = m_after(m)) != NULL;) {
        for (size_t i = 0; i < m->drops.n; i++) {
            if (!(m->drops.items[i] & 1)) { /* else a timer is due */
                note_reference((PyObject *)m->drops.items[i], notes);
            }
        }
    }
    unlock(&sched.lock);
}

/* For each container, while nobody runs. */
static int note_object(PyObject *op, void *arg)
{
    Notes *notes = arg;
    if (!notes->begun) {
        notes->begun = true;
        note_drops(notes);
    }
    if (!nodes_grow(notes)) {
        notes->failed = true;
        return 0;
    }
    Node *node = node_at(notes, op);
    *node = (Node){.op = op, .refs = Py_REFCNT(op), .first = notes->nedges};
    notes->n++;
    if (Py_IS_TYPE(op, &Goroutine_Type)) {
        node->waits = g_state((G *)op) == G_WAITING;
    }
    if (op == notes->probe) {
        notes->extra = Py_REFCNT(op) - 1;
    }
    traverseproc traverse = Py_TYPE(op)->tp_traverse;
    if (traverse != NULL) {
        traverse(op, note_reference, notes);
    }
    node->n = notes->nedges - node->first;
    compat_visit_borrowed(op, note_borrowed, notes);
    return !notes->failed;
}

/* ---- what they say ---- */

static void mark_alive(Notes *notes, Node *root, Node **stack)
{
    size_t depth = 0;
    root->alive = true;
    stack[depth++] = root;
    while (depth > 0) {
        Node *node = stack[--depth];
        for (size_t i = 0; i < node->n; i++) {
            Node *to = node_at(notes, (PyObject *)notes->edges[node->first + i]);
            if (to->op != NULL && !to->alive) {
                to->alive = true;
                stack[depth++] = to; /* each once: there is room for all */
            }
        }
    }
}

static bool find_alive(Notes *notes)
{
    for (size_t i = 0; i < notes->size; i++) {
        notes->nodes[i].refs -= notes->extra;
    }
    for (size_t i = 0; i < notes->nedges; i++) {
        bool borrowed = notes->edges[i] & 1;
        Node *to = node_at(notes, (PyObject *)(notes->edges[i] & ~(uintptr_t)1));
        if (to->op != NULL) {
            to->refs += borrowed ? 1 : -1;
        }
    }
    Node **stack = malloc((notes->n + 1) * sizeof *stack);
    if (stack == NULL) {
        return false;
    }
    for (size_t i = 0; i < notes->size; i++) {
        Node *node = &notes->nodes[i];
        if (node->op != NULL && node->refs > 0 && !node->alive) {
            mark_alive(notes, node, stack);
        }
    }
    free(stack);
    return true;
}

static bool is_leaked(const Notes *notes, G *g)
{
    const Node *node = node_at(notes, (PyObject *)g);
    return node->op != NULL && !node->alive && node->waits;
}

static PyObject *leaked_of(Notes *notes, G **all, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) { /* the snapshot's own */
        Node *node = node_at(notes, (PyObject *)all[i]);
        node->refs -= node->op != NULL;
    }
    if (!find_alive(notes)) {
        return PyErr_NoMemory();
    }
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        if (is_leaked(notes, all[i]) && PyList_Append(list, (PyObject *)all[i]) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* leaks(): goroutines that nothing can wake. */
static PyObject *core_leaks(PyObject *Py_UNUSED(mod), PyObject *Py_UNUSED(a))
{
    Py_ssize_t n = 0;
    Notes notes = {.probe = PyList_New(0)};
    G **all = notes.probe != NULL ? allgs_snapshot(&n) : NULL;
    PyObject *list = NULL;
    if (all == NULL || !nodes_grow(&notes) || !compat_visit_containers(note_object, &notes) ||
        notes.failed) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
    }
    else {
        list = leaked_of(&notes, all, n);
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_DECREF(all[i]);
    }
    free(all);
    free(notes.nodes);
    free(notes.edges);
    Py_XDECREF(notes.probe);
    return list;
}

PyMethodDef leaks_methods[] = {
    {"leaks", core_leaks, METH_NOARGS, NULL},
    {NULL},
};
