"""What the tests of sync share: every operation that can wait, in a state where it does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import gofer
from tests.support import parked, wait_for

T = TypeVar("T")


async def waiting(awaitable: Awaitable[T]) -> gofer.Goroutine[T]:
    """A goroutine that has come to wait in `awaitable`."""
    g = gofer.go(wait_for, awaitable)
    await parked(g)
    return g


async def outcome(awaitable: Awaitable[Any]) -> str:
    """As a goroutine: how it ended."""
    try:
        await awaitable
    except gofer.Cancelled:
        return "cancelled"
    return "done"


@dataclass
class Scene:
    """An object of sync, and an operation of it that must wait until `let()`."""

    make: Callable[[], gofer.Operation[None]]
    let: Callable[[], object]
    # For those that take something: whether it is taken (asked after `let()`), and giving it back.
    taken: Callable[[], bool] | None = None
    give_back: Callable[[], object] = lambda: None
    op: gofer.Operation[None] = field(init=False)

    def __post_init__(self) -> None:
        self.op = self.make()

    def assert_taken(self) -> None:
        assert self.taken is None or self.taken()

    def assert_free(self) -> None:
        assert self.taken is None or not self.taken()


def mutex_lock() -> Scene:
    mu = gofer.Mutex()
    assert mu.try_lock()
    return Scene(mu.lock, mu.unlock, mu.locked, mu.unlock)


def rwmutex_lock() -> Scene:
    rw = gofer.RWMutex()
    assert rw.try_rlock()
    return Scene(rw.lock, rw.runlock, rw.locked, rw.unlock)


def rwmutex_rlock() -> Scene:
    rw = gofer.RWMutex()
    assert rw.try_lock()

    def taken() -> bool:
        if free := rw.try_lock():
            rw.unlock()
        return not free

    return Scene(rw.rlock, rw.unlock, taken, rw.runlock)


def semaphore_acquire() -> Scene:
    sem = gofer.Semaphore(3)
    assert sem.try_acquire(2)

    def give_back() -> None:
        sem.release(2)

    def taken() -> bool:
        if free := sem.try_acquire(3):
            sem.release(3)
        return not free

    return Scene(lambda: sem.acquire(2), give_back, taken, give_back)


def waitgroup_wait() -> Scene:
    wg = gofer.WaitGroup()
    wg.add()
    return Scene(wg.wait, wg.done)


def cond_wait() -> Scene:
    """The mutex is locked: wait() unlocks it, and leaves it locked however it ends."""
    mu = gofer.Mutex()
    assert mu.try_lock()
    cond = gofer.Cond(mu)
    return Scene(cond.wait, cond.signal)


# What takes something, which must not be lost when the waiter goes away.
TAKERS: dict[str, Callable[[], Scene]] = {
    "Mutex.lock": mutex_lock,
    "RWMutex.lock": rwmutex_lock,
    "RWMutex.rlock": rwmutex_rlock,
    "Semaphore.acquire": semaphore_acquire,
}
ALL = TAKERS | {"WaitGroup.wait": waitgroup_wait, "Cond.wait": cond_wait}

REASONS = {
    "Mutex.lock": "sync.Mutex.Lock",
    "RWMutex.lock": "sync.RWMutex.Lock",
    "RWMutex.rlock": "sync.RWMutex.RLock",
    "Semaphore.acquire": "semacquire",
    "WaitGroup.wait": "sync.WaitGroup.Wait",
    "Cond.wait": "sync.Cond.Wait",
}
