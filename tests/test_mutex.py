"""Mutex: one holder at a time, first come first served, and nobody starves."""

import contextlib
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest

import gofer
from tests.support import PATIENCE, parked, spin, thread, until
from tests.sync_support import waiting

UNLOCKED = r"^sync: unlock of unlocked mutex$"


# --- Locking --------------------------------------------------------------------------------------


def test_a_new_one_is_unlocked() -> None:
    mu = gofer.Mutex()
    assert not mu.locked()
    assert repr(mu).startswith("<Mutex at ")
    assert mu.try_lock()
    assert mu.locked()
    assert repr(mu).startswith("<Mutex locked at ")
    assert not mu.try_lock()
    mu.unlock()
    assert not mu.locked()


def test_lock_and_unlock(procs: int) -> None:
    async def main() -> None:
        mu = gofer.Mutex()
        for _ in range(100):
            await mu.lock()
            assert mu.locked()
            assert not mu.try_lock()
            mu.unlock()
            assert not mu.locked()

    gofer.run(main, procs=procs)


def test_async_with_unlocks_however_it_ends(procs: int) -> None:
    mu = gofer.Mutex()

    async def main() -> None:
        async with mu:
            assert mu.locked()
        assert not mu.locked()
        with pytest.raises(KeyError):
            async with mu:
                raise KeyError
        assert not mu.locked()
        g = gofer.go(holder)
        await parked(g)
        assert mu.locked()
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        assert not mu.locked()
        gofer.go(holder)
        await until(mu.locked)

    async def holder() -> None:
        async with mu:
            await gofer.sleep(100_000)

    gofer.run(main, procs=procs)
    assert not mu.locked()  # the end of the run has cancelled the holder


LOCKS: dict[str, Callable[[], Any]] = {
    "mutex": gofer.Mutex,
    "rwmutex": gofer.RWMutex,
    "reader": lambda: gofer.RWMutex().reader,
    "semaphore": lambda: gofer.Semaphore(1),
}


@pytest.mark.parametrize("kind", LOCKS)
def test_the_methods_of_with_are_ordinary_methods(kind: str) -> None:
    lock = LOCKS[kind]()
    for name in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
        bound, unbound = getattr(lock, name), getattr(type(lock), name)
        assert bound.__self__ is lock
        assert bound.__name__ == unbound.__name__ == name
        assert name in repr(bound)
        assert callable(bound)
        assert bound == getattr(lock, name)
        assert hash(bound) == hash(getattr(lock, name))
        assert bound != getattr(LOCKS[kind](), name)
        assert bound != lock
        stolen = type("Stolen", (), {name: vars(type(lock))[name]})
        with pytest.raises(TypeError, match=name):
            getattr(stolen(), name)()
        assert inspect.isroutine(unbound)
        with pytest.raises(TypeError, match="keyword"):
            bound(wrong=1)
        with pytest.raises(AttributeError):
            _ = bound.nothing
        with pytest.raises(TypeError):
            unbound(1)
    for name in ("__enter__", "__aenter__"):
        with pytest.raises(TypeError, match="takes no arguments"):
            getattr(lock, name)(1)


@pytest.mark.parametrize("kind", LOCKS)
def test_in_an_exit_stack(procs: int, kind: str) -> None:
    async def main() -> None:
        locks = [LOCKS[kind]() for _ in range(40)]
        async with contextlib.AsyncExitStack() as stack:
            for lock in locks:
                await stack.enter_async_context(lock)
        for lock in locks:
            async with lock:
                pass

    gofer.run(main, procs=procs)


def test_a_bound_method_keeps_its_lock(procs: int) -> None:
    """Many at once, each called after its lock has been dropped by everybody else."""

    async def main() -> None:
        enters, exits = [], []
        for _ in range(40):
            mu = gofer.Mutex()
            enters.append(mu.__aenter__)
            exits.append(mu.__aexit__)
        del mu
        for _ in range(2):
            for enter in enters:
                await enter()
            for leave in reversed(exits):
                await leave(None, None, None)
        with pytest.raises(RuntimeError, match="unlock of unlocked mutex"):
            exits[7](None, None, None)

    gofer.run(main, procs=procs)


def test_blocks_within_blocks(procs: int) -> None:
    async def nest(locks: list[gofer.Mutex], done: list[gofer.Mutex]) -> None:
        if not locks:
            await gofer.gosched()
            return
        async with locks[0]:
            await nest(locks[1:], done)
        done.append(locks[0])

    async def main() -> None:
        locks = [gofer.Mutex() for _ in range(40)]
        for _ in range(3):
            done: list[gofer.Mutex] = []
            await nest(locks, done)
            assert done == locks[::-1]
            assert not any(mu.locked() for mu in locks)

    gofer.run(main, procs=procs)


def test_another_goroutine_may_unlock_it(procs: int) -> None:
    mu = gofer.Mutex()

    async def locks() -> None:
        await mu.lock()

    async def unlocks() -> None:
        mu.unlock()

    async def main() -> None:
        await gofer.go(locks)
        assert mu.locked()
        await gofer.go(unlocks)
        assert not mu.locked()

    gofer.run(main, procs=procs)


def test_it_is_not_reentrant(procs: int) -> None:
    mu = gofer.Mutex()

    async def main() -> None:
        async with mu, mu:
            pass

    with pytest.raises(gofer.Deadlock, match=r"goroutine 1 \[sync\.Mutex\.Lock\]"):
        gofer.run(main, procs=procs)


def test_it_outlives_a_run() -> None:
    mu = gofer.Mutex()

    async def first() -> None:
        await mu.lock()

    async def second() -> None:
        assert mu.locked()
        g = await waiting(mu.lock())
        mu.unlock()
        await g
        mu.unlock()

    gofer.run(first)
    gofer.run(second)
    assert not mu.locked()


# --- Bad use --------------------------------------------------------------------------------------


def test_unlock_of_an_unlocked_one_is_a_runtime_error(procs: int) -> None:
    mu = gofer.Mutex()

    async def main() -> None:
        with pytest.raises(RuntimeError, match=UNLOCKED):
            mu.unlock()
        await mu.lock()
        mu.unlock()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=UNLOCKED):
                mu.unlock()
        with pytest.raises(RuntimeError, match=UNLOCKED):
            async with mu:
                mu.unlock()
        assert not mu.locked()
        assert mu.try_lock()  # it still works
        mu.unlock()

    gofer.run(main, procs=procs)
    with pytest.raises(RuntimeError, match=UNLOCKED):
        mu.unlock()


def test_with_in_a_goroutine_says_async_with(procs: int) -> None:
    async def main() -> None:
        mu = gofer.Mutex()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="async with"), mu:
                pass
            assert not mu.locked()
            await mu.lock()
            with pytest.raises(RuntimeError, match="async with"), mu:  # it would have to wait
                pass
            assert mu.locked()
            mu.unlock()

    gofer.run(main, procs=procs)


# --- Who is next ----------------------------------------------------------------------------------


def test_waiters_have_it_in_the_order_of_their_arrival(procs: int) -> None:
    order: list[int] = []
    mu = gofer.Mutex()

    async def waiter(i: int) -> None:
        async with mu:
            order.append(i)
            await gofer.gosched()

    async def main() -> None:
        await mu.lock()
        gs = []
        for i in range(20):
            gs.append(gofer.go(waiter, i))
            await parked(gs[-1])
        mu.unlock()
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    assert order == list(range(20))


def test_in_normal_mode_who_runs_may_have_it_before_who_waits() -> None:
    """On one P, so that the waiter comes to try only when we let it."""

    async def main() -> None:
        mu = gofer.Mutex()
        await mu.lock()
        g = await waiting(mu.lock())
        mu.unlock()
        assert mu.try_lock()
        mu.unlock()
        await mu.lock()
        assert not g.done()
        mu.unlock()
        await g
        assert mu.locked()

    gofer.run(main, procs=1)


async def starving(mu: gofer.Mutex) -> gofer.Goroutine[None]:
    """A goroutine that has waited for more than 1 ms and lost against us, who hold the mutex."""
    await mu.lock()
    g = await waiting(mu.lock())
    spin(0.002)
    mu.unlock()
    assert mu.try_lock()
    assert g.state == "runnable"
    await parked(g)  # it has tried
    return g


def test_who_waited_for_1_ms_is_handed_the_mutex_by_the_next_unlock() -> None:
    async def main() -> None:
        mu = gofer.Mutex()
        g = await starving(mu)
        mu.unlock()
        assert mu.locked()  # it is its already
        assert not mu.try_lock()
        await g
        mu.unlock()
        assert mu.try_lock()  # nobody waits: normal again

    gofer.run(main, procs=1)


def test_who_comes_while_another_starves_waits_behind_it() -> None:
    order: list[str] = []

    async def newcomer(mu: gofer.Mutex) -> None:
        async with mu:
            order.append("newcomer")

    async def main() -> None:
        mu = gofer.Mutex()
        g = await starving(mu)
        late = gofer.go(newcomer, mu)
        await parked(late)
        mu.unlock()
        assert not mu.try_lock()
        await g
        order.append("starving")
        mu.unlock()
        await late

    gofer.run(main, procs=1)
    assert order == ["starving", "newcomer"]


def test_who_loses_waits_at_the_front() -> None:
    order: list[int] = []

    async def waiter(mu: gofer.Mutex, i: int) -> None:
        async with mu:
            order.append(i)

    async def main() -> None:
        mu = gofer.Mutex()
        await mu.lock()
        gs = []
        for i in range(3):
            gs.append(gofer.go(waiter, mu, i))
            await parked(gs[-1])
        mu.unlock()
        assert mu.try_lock()
        assert gs[0].state == "runnable"
        await parked(*gs)  # it has lost
        mu.unlock()
        for g in gs:
            await g

    gofer.run(main, procs=1)
    assert order == [0, 1, 2]


def test_a_starving_one_that_is_cancelled_leaves_a_normal_mutex() -> None:
    async def main() -> None:
        mu = gofer.Mutex()
        g = await starving(mu)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        mu.unlock()
        assert not mu.locked()
        assert mu.try_lock()

    gofer.run(main, procs=1)


def test_one_that_was_handed_the_mutex_and_then_cancelled_has_it() -> None:
    async def main() -> None:
        mu = gofer.Mutex()
        g = await starving(mu)
        mu.unlock()
        assert g.cancel()
        await g  # its lock() was done
        assert mu.locked()

    gofer.run(main, procs=1)


def test_one_that_was_woken_and_then_cancelled_leaves_it_to_the_next(procs: int) -> None:
    """Woken but not yet the holder: either it takes the mutex, or the next one does."""

    async def locker(mu: gofer.Mutex) -> None:
        async with mu:
            pass

    async def main() -> None:
        mu = gofer.Mutex()
        for _ in range(100):
            await mu.lock()
            gs = []
            for _ in range(3):
                gs.append(gofer.go(locker, mu))
                await parked(gs[-1])
            mu.unlock()
            gs[0].cancel()
            for g in gs[1:]:
                await g
            await until(gs[0].done)
            assert not mu.locked()

    gofer.run(main, procs=procs)


def test_a_hog_starves_nobody(procs: int) -> None:
    """It holds the mutex nearly all the time; another still has it ten times in a moment."""
    mu = gofer.Mutex()
    stop = False

    async def hog() -> None:
        while not stop:
            async with mu:
                spin(0.0001)

    async def main() -> float:
        nonlocal stop
        gofer.go(hog)
        start = time.monotonic()
        for _ in range(10):
            await gofer.sleep(0.0001)
            async with mu:
                pass
        stop = True
        return time.monotonic() - start

    assert gofer.run(main, procs=procs) < 5


# --- Threads --------------------------------------------------------------------------------------


def test_with_in_plain_code_without_a_runtime() -> None:
    mu = gofer.Mutex()
    with mu:
        assert mu.locked()
    assert not mu.locked()
    with pytest.raises(KeyError), mu:
        raise KeyError
    assert not mu.locked()


def test_with_waits_for_another_thread_without_a_runtime() -> None:
    mu = gofer.Mutex()
    log: list[str] = []
    trying: list[bool] = []

    def foreign() -> None:
        trying.append(True)
        with mu:
            log.append("thread")

    with mu:
        context = thread(foreign)
        context.__enter__()
        while not trying:
            time.sleep(0.0001)
        time.sleep(0.005)  # so that it waits, most likely
        log.append("main")
    context.__exit__(None, None, None)
    assert log == ["main", "thread"]
    assert not mu.locked()


def test_with_in_a_thread_waits_for_a_goroutine(procs: int) -> None:
    mu = gofer.Mutex()
    log: list[str] = []

    async def main() -> None:
        async with mu:
            with thread(foreign):
                await until(lambda: log)
                await gofer.sleep(0.002)
                log.append("goroutine")
                mu.unlock()
                await until(lambda: len(log) == 3)
                await mu.lock()

    def foreign() -> None:
        log.append("thread comes")
        with mu:
            assert mu.locked()
            log.append("thread")

    gofer.run(main, procs=procs)
    assert log == ["thread comes", "goroutine", "thread"]


def test_a_goroutine_waits_for_a_thread(procs: int) -> None:
    mu = gofer.Mutex()
    inside: list[bool] = []
    leave: list[bool] = []

    def foreign() -> None:
        with mu:
            inside.append(True)
            deadline = time.monotonic() + PATIENCE
            while not leave and time.monotonic() < deadline:
                time.sleep(0.0001)
            inside.clear()

    async def main() -> None:
        with thread(foreign):
            await until(lambda: inside)
            g = await waiting(mu.lock())
            leave.append(True)
            await g
            assert not inside

    gofer.run(main, procs=procs)


def test_many_of_both_kinds_count_right(procs: int) -> None:
    mu = gofer.Mutex()
    count = 0

    def step() -> None:
        nonlocal count
        before = count
        sum(range(20))
        count = before + 1

    async def counter() -> None:
        for i in range(50):
            async with mu:
                step()
                if i % 10 == 0:
                    await gofer.gosched()

    def foreign() -> None:
        for _ in range(50):
            with mu:
                step()

    async def main() -> None:
        with thread(foreign), thread(foreign):
            gs = [gofer.go(counter) for _ in range(8)]
            for g in gs:
                await g
            await until(lambda: count == 500)

    gofer.run(main, procs=procs)
    assert not mu.locked()


def test_a_mutex_cannot_be_awaited_itself() -> None:
    async def main() -> None:
        mu: Any = gofer.Mutex()
        with pytest.raises(TypeError):
            await mu

    gofer.run(main)
