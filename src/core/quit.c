/* SIGQUIT: what every goroutine does, on standard error, then exit 2, as in Go. Also when every P is stuck, in C code
 * too.
 *
 *   1. The handler is the system's, not Python's: nobody need be at a bytecode boundary. It leaves a mark and wakes
 *      sysmon.
 *   2. sysmon starts a thread that attaches to Python and writes the dump.
 *   3. If it cannot attach, because C code has the GIL for long, or a collection waits for such a thread,
 *      sysmon writes what can be known without: it has been patient for two seconds then.
 * A handler that somebody has installed, through Python or not, is left alone; one that is installed later
 * takes our place. So is the program's wish to ignore it, but not that of whoever started it, as a shell does for
 * `program &`: Go, too, leaves only SIGHUP and SIGINT ignored. */
#include "runtime.h"

#include <signal.h>
#include <unistd.h>

#define ATTACH_NS (2 * NS_PER_S)  /* for the thread to attach */
#define WRITE_NS  (60 * NS_PER_S) /* ... and to be done */

enum { QUIT_NONE, QUIT_ASKED, QUIT_STARTED, QUIT_WRITING, QUIT_RAW };

static _Atomic uint32_t quit;
static int64_t since_ns;        /* sysmon's: when it was seen */
static struct sigaction before; /* what we have replaced */

/* ---- the handler ---- */

static void on_quit(int signum)
{
    int error = errno;
    if (atomic_load(&sched.forked)) { /* no sysmon here: as if we had never been */
        sigaction(signum, &before, NULL);
        raise(signum);
        return;
    }
    uint32_t none = QUIT_NONE;
    if (atomic_compare_exchange_strong(&quit, &none, QUIT_ASKED)) {
        sysmon_poke();
    }
    errno = error;
}

/* signal.signal() and signal() leave a flag; exec() keeps none. */
bool quit_ignored_by_program(const struct sigaction *now)
{
    return now->sa_handler == SIG_IGN && (now->sa_flags & (SA_ONSTACK | SA_RESTART));
}

/* Nobody in this process has had a say. */
static bool is_nobodys(const struct sigaction *now)
{
    return !(now->sa_flags & SA_SIGINFO) &&
           (now->sa_handler == SIG_DFL || now->sa_handler == SIG_IGN) &&
           !quit_ignored_by_program(now);
}

void quit_watch(void)
{
    struct sigaction now, ours = {.sa_handler = on_quit, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGQUIT, NULL, &now) == 0 && is_nobodys(&now)) {
        before = now;
        sigaction(SIGQUIT, &ours, NULL);
    }
}

void quit_unwatch(void)
{
    struct sigaction now;
    if (sigaction(SIGQUIT, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
        now.sa_handler == on_quit) {
        sigaction(SIGQUIT, &before, NULL);
    }
    while (atomic_load(&quit) != QUIT_NONE) {
        usleep(10000); /* the process is about to end: sysmon sees to it */
    }
}

/* ---- the dump ---- */

/* Without Python: texts that are not ASCII are left out. G and its code object live while the shard is locked. */
static void add_raw(Text *t, G *g)
{
    uint32_t state = g_state(g);
    unsigned reason = atomic_load_explicit(&g->wait_reason, memory_order_relaxed);
    text_add(t, "\ngoroutine %llu [%s]:\n", (unsigned long long)g->id,
             state == G_WAITING   ? wait_reason_text(reason)
             : state == G_RUNNING ? "running"
                                  : "runnable");
    PyCodeObject *code = g->site_code;
    if (code != NULL && PyUnicode_IS_ASCII(code->co_filename) &&
        PyUnicode_IS_ASCII(code->co_qualname)) {
        text_add(t, "created by %s in goroutine %llu\n\t%s:%d\n",
                 (const char *)PyUnicode_DATA(code->co_qualname), (unsigned long long)g->parent_id,
                 (const char *)PyUnicode_DATA(code->co_filename),
                 PyCode_Addr2Line(code, g->site_lasti));
    }
}

static void write_raw(void)
{
    Text t = {0};
    text_add(&t,
             "SIGQUIT: quit\n\nThe stacks of goroutines are not to be had: a thread is in C code "
             "and does not let Python go on.\n");
    for (int i = 0; i < ALLG_SHARDS; i++) {
        spin_lock(&sched.allgs[i].lock);
        for (G *g = sched.allgs[i].head; g != NULL; g = g->all_next) {
            if (g_state(g) != G_DEAD) {
                add_raw(&t, g);
            }
        }
        spin_unlock(&sched.allgs[i].lock);
    }
    text_add(&t, "\n");
    text_write(&t);
    compat_dump_threads(STDERR_FILENO);
    _exit(2);
}

static void *writer(void *Py_UNUSED(arg))
{
    PyGILState_Ensure();
    uint32_t started = QUIT_STARTED;
    if (atomic_compare_exchange_strong(&quit, &started, QUIT_WRITING)) {
        PyObject *r = PyObject_CallNoArgs(hooks.quit_dump);
        if (r == NULL) {
            PyErr_Print();
        }
        _exit(2);
    }
    for (;;) {
        pause(); /* sysmon does it */
    }
}

int64_t quit_look(int64_t now)
{
    uint32_t state = atomic_load_explicit(&quit, memory_order_relaxed);
    if (likely(state == QUIT_NONE)) {
        return TIME_NEVER;
    }
    if (state == QUIT_ASKED) {
        pthread_t thread;
        since_ns = now;
        atomic_store(&quit, QUIT_STARTED);
        if (pthread_create(&thread, NULL, writer, NULL) != 0) {
            write_raw();
        }
        pthread_detach(thread);
        return now + ATTACH_NS;
    }
    if (state == QUIT_STARTED && now - since_ns >= ATTACH_NS &&
        atomic_compare_exchange_strong(&quit, &state, QUIT_RAW)) {
        write_raw();
    }
    if (now - since_ns >= WRITE_NS) {
        write_raw();
    }
    return since_ns + (state == QUIT_STARTED ? ATTACH_NS : WRITE_NS);
}
