"""Cond: wait for a signal, in the order of arrival; the mutex is held before and after."""

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

import gofer
from tests.support import parked, thread, until
from tests.sync_support import outcome, waiting


async def wait_locked(cond: gofer.Cond, then: Callable[[], object] = lambda: None) -> None:
    """As a goroutine: wait once for a signal."""
    async with cond.mu:
        await cond.wait()
        assert cond.mu.locked()
        then()


async def waiters(
    cond: gofer.Cond, n: int, then: Callable[[int], object] = lambda _: None
) -> list[gofer.Goroutine[None]]:
    """Goroutines that have come to wait, one after the other."""
    gs = []
    for i in range(n):
        g = gofer.go(wait_locked, cond, lambda i=i: then(i))
        await until(lambda g=g: g.wait_reason == "sync.Cond.Wait")  # type: ignore[misc]
        gs.append(g)
    return gs


# --- Waiting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [gofer.Mutex, gofer.RWMutex])
def test_wait_lets_go_of_the_mutex_and_has_it_again_after(kind: Any, procs: int) -> None:
    async def main() -> None:
        mu = kind()
        cond = gofer.Cond(mu)
        assert cond.mu is mu
        (g,) = await waiters(cond, 1)
        assert not mu.locked()
        async with mu:
            cond.signal()
            await until(lambda: g.wait_reason != "sync.Cond.Wait")
            await parked(g)  # for the mutex, which we have
            assert g.wait_reason == f"sync.{kind.__name__}.Lock"
        await g
        assert not mu.locked()

    gofer.run(main, procs=procs)


def test_signals_wake_in_the_order_of_arrival(procs: int) -> None:
    order: list[int] = []

    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        gs = await waiters(cond, 10, order.append)
        for i in range(10):
            assert order == list(range(i))
            cond.signal()
            await gs[i]
            assert sum(not g.done() for g in gs) == 9 - i  # one signal, one waiter
        assert order == list(range(10))

    gofer.run(main, procs=procs)


def test_several_signals_at_once_wake_as_many(procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        gs = await waiters(cond, 5)
        async with cond.mu:
            for _ in range(3):
                cond.signal()
        for g in gs[:3]:
            await g
        assert [g.wait_reason for g in gs[3:]] == ["sync.Cond.Wait"] * 2
        cond.broadcast()
        for g in gs[3:]:
            await g

    gofer.run(main, procs=procs)


def test_a_later_waiter_cannot_steal_a_signal(procs: int) -> None:
    """It was sent before it came, so it is another's, who has not yet got the mutex back."""

    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        for _ in range(20):
            (first,) = await waiters(cond, 1)
            await cond.mu.lock()
            cond.signal()
            second = gofer.go(wait_locked, cond)
            await parked(second)  # for the mutex
            cond.mu.unlock()
            await first
            await until(lambda g=second: g.wait_reason == "sync.Cond.Wait")  # type: ignore[misc]
            cond.signal()
            await second

    gofer.run(main, procs=procs)


def test_broadcast_wakes_all_who_wait_and_nobody_else(procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        gs = await waiters(cond, 20)
        async with cond.mu:
            cond.broadcast()
            late = gofer.go(wait_locked, cond)
            await parked(late)
        for g in gs:
            await g
        await until(lambda: late.wait_reason == "sync.Cond.Wait")
        cond.broadcast()
        await late

    gofer.run(main, procs=procs)


def test_a_signal_that_nobody_waits_for_is_forgotten(procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        cond.signal()
        cond.broadcast()
        (g,) = await waiters(cond, 1)
        assert g.wait_reason == "sync.Cond.Wait"
        cond.signal()
        await g

    gofer.run(main, procs=procs)


def test_a_queue_with_two_conditions(procs: int) -> None:
    """What a Cond is for: bounded producers and consumers, all with one mutex."""
    mu = gofer.Mutex()
    not_empty, not_full = gofer.Cond(mu), gofer.Cond(mu)
    queue: list[int] = []
    got: list[int] = []
    most = 0

    async def producer(k: int) -> None:
        nonlocal most
        for i in range(50):
            async with mu:
                while len(queue) == 3:
                    await not_full.wait()
                queue.append(50 * k + i)
                most = max(most, len(queue))
                not_empty.signal()

    async def consumer() -> None:
        for _ in range(50):
            async with mu:
                while not queue:
                    await not_empty.wait()
                got.append(queue.pop(0))
                not_full.signal()

    async def main() -> None:
        gs = [gofer.go(producer, k) for k in range(4)] + [gofer.go(consumer) for _ in range(4)]
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    assert sorted(got) == list(range(200))
    assert most <= 3


# --- Bad use --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [None, 5, "mu", object(), gofer.WaitGroup()])
def test_what_is_no_mutex_is_a_type_error_that_names_it(mu: Any) -> None:
    with pytest.raises(TypeError) as info:
        gofer.Cond(mu)
    assert repr(mu) in str(info.value)


def test_wrong_arguments_are_type_errors() -> None:
    mu: Any = gofer.Mutex()
    with pytest.raises(TypeError):
        gofer.Cond()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        gofer.Cond(mu, mu)  # type: ignore[call-arg]
    cond: Any = gofer.Cond(mu=mu)
    with pytest.raises(AttributeError):
        cond.mu = gofer.Mutex()
    assert cond.mu is mu


@pytest.mark.parametrize("kind", [gofer.Mutex, gofer.RWMutex])
def test_wait_without_the_mutex_is_a_runtime_error(kind: Any, procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(kind())
        op = cond.wait()
        with pytest.raises(RuntimeError, match="mutex"):
            await op
        assert not cond.mu.locked()
        (g,) = await waiters(cond, 1)
        cond.signal()  # not for the one that never waited
        await g

    gofer.run(main, procs=procs)


def test_to_wait_with_a_read_lock_is_a_runtime_error(procs: int) -> None:
    async def main() -> None:
        rw = gofer.RWMutex()
        cond = gofer.Cond(rw)
        async with rw.reader:
            with pytest.raises(RuntimeError, match="mutex"):
                await cond.wait()
            assert not rw.try_lock()  # it is still held for reading

    gofer.run(main, procs=procs)


# --- Cancellation ---------------------------------------------------------------------------------


def test_a_cancelled_waiter_has_the_mutex_when_it_is_told(procs: int) -> None:
    log: list[bool] = []

    async def child(cond: gofer.Cond) -> None:
        await cond.mu.lock()
        try:
            await cond.wait()
        finally:
            log.append(cond.mu.locked())
            cond.mu.unlock()

    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        g = gofer.go(child, cond)
        await parked(g)
        async with cond.mu:
            assert g.cancel("why")
            await until(lambda: g.wait_reason == "sync.Mutex.Lock")
            assert not log
            g.cancel("again")  # that does not keep it from locking either
            await gofer.sleep(0.001)
            assert (g.wait_reason, log) == ("sync.Mutex.Lock", [])
        with pytest.raises(gofer.Cancelled):
            await g
        assert log == [True]
        assert not cond.mu.locked()

    gofer.run(main, procs=procs)


def test_a_timeout_has_the_mutex_too(procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        async with cond.mu:
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.001):
                    await cond.wait()
            assert cond.mu.locked()
        assert not cond.mu.locked()

    gofer.run(main, procs=procs)


def test_a_cancelled_waiter_takes_no_signal(procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        first, second = await waiters(cond, 2)
        async with cond.mu:
            first.cancel()
            await until(lambda: first.wait_reason == "sync.Mutex.Lock")
            cond.signal()
        await second
        with pytest.raises(gofer.Cancelled):
            await first

    gofer.run(main, procs=procs)


def test_one_that_was_signalled_first_is_not_cancelled(procs: int) -> None:
    """It has its signal and must make use of it; the next operation raises."""

    async def child(cond: gofer.Cond) -> tuple[str, str]:
        async with cond.mu:
            return await outcome(cond.wait()), await outcome(gofer.gosched())

    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        for _ in range(20):
            g = gofer.go(child, cond)
            await parked(g)
            async with cond.mu:
                cond.signal()
                assert g.cancel()
            assert await g == ("done", "cancelled")

    gofer.run(main, procs=procs)


def test_a_leaked_waiter_cleans_up_as_if_it_had_the_mutex(procs: int) -> None:
    cleaned: list[str] = []

    async def child() -> None:
        try:
            await wait_locked(gofer.Cond(gofer.Mutex()))
        finally:
            cleaned.append("child")

    async def main() -> None:
        await parked(gofer.go(child))

        def ended() -> bool:
            gc.collect()
            return gofer.num_goroutine() == 1

        with pytest.warns(gofer.GoroutineLeakWarning, match=r"\[sync\.Cond\.Wait\]"):
            await until(ended)
        assert cleaned == ["child"]

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("kind", [gofer.Mutex, gofer.RWMutex])
def test_waiters_end_with_the_run_although_main_has_left_the_mutex_locked(
    kind: Any, procs: int
) -> None:
    """Nobody will ever unlock it: they take it over, one after the other, and hold it alone."""
    told: list[str] = []

    async def waiter(cond: gofer.Cond, i: int) -> None:
        async with cond.mu:
            try:
                await cond.wait()
            except gofer.Cancelled:
                assert cond.mu.locked()
                told.append(f"{i} in")
                await gofer.gosched()
                assert told[-1] == f"{i} in"
                told.append(f"{i} out")
                raise

    async def main() -> str:
        cond = gofer.Cond(kind())
        gs = []
        for i in range(3):
            gs.append(gofer.go(waiter, cond, i))
            await until(lambda: gs[-1].wait_reason == "sync.Cond.Wait")
        await cond.mu.lock()
        return "done"

    assert gofer.run(main, procs=procs) == "done"
    assert sorted(told) == sorted(f"{i} {what}" for i in range(3) for what in ("in", "out"))


def test_waiters_that_were_left_with_read_locks_held_end_too(procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(gofer.RWMutex())
        await waiters(cond, 3)
        for _ in range(2):
            assert isinstance(cond.mu, gofer.RWMutex)
            await cond.mu.rlock()

    gofer.run(main, procs=procs)


def test_more_waiters_than_rescues_that_leave_the_mutex_locked_end_too(procs: int) -> None:
    """Each that ends without unlocking it is one more holder that is gone."""
    told: list[int] = []

    async def waiter(cond: gofer.Cond, i: int) -> None:
        await cond.mu.lock()
        try:
            await cond.wait()
        finally:
            told.append(i)

    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        gs = [gofer.go(waiter, cond, i) for i in range(15)]
        await until(lambda: all(g.wait_reason == "sync.Cond.Wait" for g in gs))
        await cond.mu.lock()

    gofer.run(main, procs=procs)
    assert sorted(told) == list(range(15))


def test_one_that_was_signalled_ends_too_although_the_mutex_stays_locked(procs: int) -> None:
    """It got its signal, and gets the mutex: what it awaits next is cancelled."""
    told: list[str] = []

    async def waiter(cond: gofer.Cond) -> None:
        async with cond.mu:
            await cond.wait()
            told.append("signalled")
            await gofer.gosched()
            told.append("never")

    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        g = gofer.go(waiter, cond)
        await until(lambda: g.wait_reason == "sync.Cond.Wait")
        await cond.mu.lock()
        cond.signal()
        await until(lambda: g.wait_reason == "sync.Mutex.Lock")

    gofer.run(main, procs=procs)
    assert told == ["signalled"]


def test_at_the_end_a_holder_that_still_lives_keeps_the_mutex(procs: int) -> None:
    """Clean-up that takes its time, and even waits in vain, is not robbed of it."""
    told: list[str] = []

    async def holder(cond: gofer.Cond) -> None:
        async with cond.mu:
            try:
                await gofer.Chan[None]().recv()
            finally:
                await gofer.sleep(0.05)
                with pytest.raises(gofer.Cancelled):
                    await gofer.Chan[None]().recv()
                told.append("holder")

    async def waiter(cond: gofer.Cond) -> None:
        async with cond.mu:
            try:
                await cond.wait()
            finally:
                told.append("waiter")

    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        await parked(gofer.go(waiter, cond))
        await parked(gofer.go(holder, cond))

    gofer.run(main, procs=procs)
    assert told == ["holder", "waiter"]


def test_a_plain_waiter_ends_too_although_the_mutex_stays_locked(procs: int) -> None:
    told: list[bool] = []

    def waiter(cond: gofer.Cond) -> None:
        with cond.mu:
            try:
                gofer.block(cond.wait())
            finally:
                told.append(cond.mu.locked())

    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        g = gofer.go(waiter, cond)
        await until(lambda: g.wait_reason == "sync.Cond.Wait")
        await cond.mu.lock()

    gofer.run(main, procs=procs)
    assert told == [True]


# --- Threads --------------------------------------------------------------------------------------


def test_a_thread_waits_and_has_the_mutex_after(procs: int) -> None:
    mu = gofer.Mutex()
    cond = gofer.Cond(mu)
    log: list[str] = []

    def foreign() -> None:
        with mu:
            log.append("waits")
            gofer.block(cond.wait())
            assert mu.locked()
            log.append("signalled")
            with pytest.raises(TimeoutError):
                gofer.block(cond.wait(), timeout=0.002)
            assert mu.locked()
            log.append("late")

    async def main() -> None:
        with thread(foreign):
            await until(lambda: log == ["waits"])
            async with mu:
                cond.signal()
                assert log == ["waits"]
            await until(lambda: "late" in log)
        await mu.lock()

    gofer.run(main, procs=procs)


def test_a_thread_signals(procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        gs = await waiters(cond, 3)

        def foreign() -> None:
            with cond.mu:
                cond.signal()
            time.sleep(0)
            cond.broadcast()

        with thread(foreign):
            for g in gs:
                await g

    gofer.run(main, procs=procs)


def test_wait_reason_of_one_that_waits(procs: int) -> None:
    async def main() -> None:
        cond = gofer.Cond(gofer.Mutex())
        await cond.mu.lock()
        g = await waiting(cond.wait())
        assert g.wait_reason == "sync.Cond.Wait"
        cond.signal()
        await g

    gofer.run(main, procs=procs)
