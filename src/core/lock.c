/* What threads sleep on: Lock and Note, both one futex word.
 *
 * Lock is held for some dozen instructions and never over a call into Python, so waiting for one while
 * attached to Python cannot deadlock with the GIL or with a stop of all attached threads: the holder
 * needs neither to go on. Spinning first is worth it, because the holder is nearly always running. */
#include "runtime.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, timeout, NULL,
                   FUTEX_BITSET_MATCH_ANY);
}

void spin_lock_slow(SpinLock *l)
{
    int tries = 0;
    do {
        spin_wait(&tries);
    } while (atomic_exchange_explicit(&l->held, 1, memory_order_acquire));
}

void spin_wait(int *tries)
{
    if (++*tries < 100) {
        cpu_pause();
    }
    else {
        sched_yield(); /* the holder was preempted */
    }
}

void lock_slow(Lock *l)
{
    for (int round = 0; round < 4; round++) { /* as Go's lock2: 4 rounds of 30 pauses */
        for (int i = 0; i < 30; i++) {
            cpu_pause();
        }
        uint32_t free_ = 0;
        if (atomic_compare_exchange_weak_explicit(&l->word, &free_, 1, memory_order_acquire,
                                                  memory_order_relaxed)) {
            return;
        }
    }
    while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0) {
        futex(&l->word, FUTEX_WAIT, 2, NULL);
    }
}

void unlock_slow(Lock *l)
{
    futex(&l->word, FUTEX_WAKE, 1, NULL);
}

void note_clear(Note *n)
{
    atomic_store_explicit(&n->word, 0, memory_order_relaxed);
}

void note_wake(Note *n)
{
    /* release: the sleeper sees what was written before (nextp) */
    atomic_store_explicit(&n->word, 1, memory_order_release);
    futex(&n->word, FUTEX_WAKE, 1, NULL);
}

bool note_sleep(Note *n, int64_t until_ns)
{
    /* FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time: a restart cannot stretch the wait. */
    struct timespec until = {until_ns / NS_PER_S, until_ns % NS_PER_S};
    while (atomic_load_explicit(&n->word, memory_order_acquire) == 0) {
        if (futex(&n->word, FUTEX_WAIT_BITSET, 0, until_ns == TIME_NEVER ? NULL : &until) == 0) {
            continue;
        }
        if (errno == ETIMEDOUT || errno == EINTR) {
            return false;
        }
    }
    return true;
}

void word_wait(_Atomic uint32_t *word, uint32_t while_is, int64_t until_ns)
{
    struct timespec until = {until_ns / NS_PER_S, until_ns % NS_PER_S};
    futex(word, FUTEX_WAIT_BITSET, while_is, until_ns == TIME_NEVER ? NULL : &until);
}

void word_wake_all(_Atomic uint32_t *word)
{
    futex(word, FUTEX_WAKE, INT32_MAX, NULL);
}
