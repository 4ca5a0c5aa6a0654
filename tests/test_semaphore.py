"""Semaphore: permits, one or several at a time, strictly first come first served."""

from typing import Any

import pytest

import gofer
from tests.support import parked, thread, until
from tests.sync_support import waiting

TOO_MANY = r"^semaphore: released more than held$"


def permits(sem: gofer.Semaphore, n: int) -> None:
    """Check that just n are free."""
    assert not sem.try_acquire(n + 1)
    if n > 0:
        assert sem.try_acquire(n)
        sem.release(n)


# --- Permits --------------------------------------------------------------------------------------


def test_permits_are_taken_and_given_back() -> None:
    sem = gofer.Semaphore(3)
    permits(sem, 3)
    assert sem.try_acquire()
    permits(sem, 2)
    assert sem.try_acquire(k=2)
    permits(sem, 0)
    assert not sem.try_acquire()
    sem.release(2)
    permits(sem, 2)
    sem.release()
    permits(sem, 3)
    assert repr(sem).startswith("<Semaphore 3/3 at ")


def test_acquire_takes_as_many_as_it_says(procs: int) -> None:
    async def main() -> None:
        sem = gofer.Semaphore(5)
        await sem.acquire()
        await sem.acquire(2)
        permits(sem, 2)
        await sem.acquire(k=2)
        permits(sem, 0)
        sem.release(5)
        permits(sem, 5)

    gofer.run(main, procs=procs)


def test_async_with_gives_one_back_however_it_ends(procs: int) -> None:
    sem = gofer.Semaphore(2)

    async def main() -> None:
        async with sem:
            permits(sem, 1)
            async with sem:
                permits(sem, 0)
        permits(sem, 2)
        with pytest.raises(KeyError):
            async with sem:
                raise KeyError
        permits(sem, 2)
        g = gofer.go(holder)
        await parked(g)
        permits(sem, 1)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        permits(sem, 2)

    async def holder() -> None:
        async with sem:
            await gofer.sleep(100_000)

    gofer.run(main, procs=procs)


def test_no_more_are_inside_than_there_are_permits(procs: int) -> None:
    sem = gofer.Semaphore(3)
    inside = gofer.atomic.Int()
    most: list[int] = []

    async def worker() -> None:
        async with sem:
            most.append(inside.add(1))
            await gofer.gosched()
            inside.add(-1)

    async def main() -> None:
        gs = [gofer.go(worker) for _ in range(30)]
        for g in gs:
            await g
        permits(sem, 3)

    gofer.run(main, procs=procs)
    assert max(most) == 3


# --- Bad use --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1.0, "1", None, True, [], object()])
def test_what_is_no_integer_is_a_type_error(n: Any) -> None:
    with pytest.raises(TypeError):
        gofer.Semaphore(n)
    sem = gofer.Semaphore(2)
    for method in (sem.acquire, sem.try_acquire, sem.release):
        with pytest.raises(TypeError):
            method(n)
    permits(sem, 2)


def test_a_semaphore_of_less_than_none_is_a_value_error() -> None:
    for n in (-1, -(2**63), 2**63, 10**30):
        with pytest.raises(ValueError, match="Semaphore"):
            gofer.Semaphore(n)
    with pytest.raises(TypeError):
        gofer.Semaphore()  # type: ignore[call-arg]


def test_less_than_one_permit_is_a_value_error() -> None:
    sem = gofer.Semaphore(2)
    assert sem.try_acquire()
    for method in (sem.acquire, sem.try_acquire, sem.release):
        for k in (0, -1, 2**63):
            with pytest.raises(ValueError):  # noqa: PT011
                method(k)
    permits(sem, 1)


def test_acquire_of_more_than_there_are_is_a_value_error_at_once() -> None:
    sem = gofer.Semaphore(2)
    with pytest.raises(ValueError, match=r"acquire\(\) of 3 permits"):
        sem.acquire(3)
    assert not sem.try_acquire(3)
    with pytest.raises(ValueError, match="acquire"):
        gofer.Semaphore(0).acquire()


def test_release_of_more_than_are_held_is_a_runtime_error(procs: int) -> None:
    async def main() -> None:
        sem = gofer.Semaphore(3)
        with pytest.raises(RuntimeError, match=TOO_MANY):
            sem.release()
        await sem.acquire(2)
        with pytest.raises(RuntimeError, match=TOO_MANY):
            sem.release(3)
        permits(sem, 1)  # none of them has been given back
        sem.release(2)
        with pytest.raises(RuntimeError, match=TOO_MANY):
            async with sem:
                sem.release()
        permits(sem, 3)

    gofer.run(main, procs=procs)


def test_with_in_a_goroutine_says_async_with(procs: int) -> None:
    async def main() -> None:
        sem = gofer.Semaphore(1)
        with pytest.raises(RuntimeError, match="async with"), sem:
            pass
        permits(sem, 1)

    gofer.run(main, procs=procs)


# --- First come first served ----------------------------------------------------------------------


def test_waiters_are_served_in_the_order_of_their_arrival(procs: int) -> None:
    order: list[int] = []
    sem = gofer.Semaphore(1)

    async def waiter(i: int) -> None:
        async with sem:
            order.append(i)
            await gofer.gosched()

    async def main() -> None:
        await sem.acquire()
        gs = []
        for i in range(20):
            gs.append(gofer.go(waiter, i))
            await parked(gs[-1])
        sem.release()
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    assert order == list(range(20))


def test_a_large_request_is_not_overtaken_by_small_ones(procs: int) -> None:
    async def main() -> None:
        sem = gofer.Semaphore(4)
        await sem.acquire(2)
        large = await waiting(sem.acquire(3))
        assert not sem.try_acquire()  # two are free, but somebody waits
        small = await waiting(sem.acquire())
        sem.release()
        await large
        assert small.state == "waiting"
        sem.release()
        await small
        assert not sem.try_acquire()
        sem.release(4)
        permits(sem, 4)

    gofer.run(main, procs=procs)


def test_one_release_serves_all_it_is_enough_for(procs: int) -> None:
    async def main() -> None:
        sem = gofer.Semaphore(6)
        await sem.acquire(6)
        gs = [await waiting(sem.acquire(k)) for k in (1, 2, 2, 3, 1)]
        sem.release(6)
        for g in gs[:3]:
            await g
        assert [g.state for g in gs[3:]] == ["waiting"] * 2  # one is free, the next wants three
        sem.release(3)
        await gs[3]
        await gs[4]
        permits(sem, 0)

    gofer.run(main, procs=procs)


def test_when_the_first_is_cancelled_the_next_are_served(procs: int) -> None:
    async def main() -> None:
        sem = gofer.Semaphore(4)
        await sem.acquire(2)
        large = await waiting(sem.acquire(4))
        others = [await waiting(sem.acquire(k)) for k in (1, 1, 1)]
        large.cancel()
        await others[0]
        await others[1]
        assert others[2].state == "waiting"
        with pytest.raises(gofer.Cancelled):
            await large
        sem.release(4)
        await others[2]
        sem.release()
        permits(sem, 4)

    gofer.run(main, procs=procs)


def test_one_in_the_middle_that_is_cancelled_changes_nothing_for_the_others(procs: int) -> None:
    async def main() -> None:
        sem = gofer.Semaphore(2)
        await sem.acquire(2)
        first, second, third = [await waiting(sem.acquire(k)) for k in (2, 1, 2)]
        second.cancel()
        with pytest.raises(gofer.Cancelled):
            await second
        assert (first.state, third.state) == ("waiting", "waiting")
        sem.release(2)
        await first
        assert third.state == "waiting"
        sem.release(2)
        await third

    gofer.run(main, procs=procs)


# --- Threads --------------------------------------------------------------------------------------


def test_with_in_plain_code() -> None:
    sem = gofer.Semaphore(2)
    with sem, sem:
        permits(sem, 0)
    with pytest.raises(KeyError), sem:
        raise KeyError
    permits(sem, 2)


def test_threads_and_goroutines_queue_together(procs: int) -> None:
    sem = gofer.Semaphore(1)
    order: list[str] = []

    def foreign() -> None:
        with sem:
            order.append("thread")

    async def goroutine() -> None:
        async with sem:
            order.append("goroutine")

    async def main() -> None:
        await sem.acquire()
        first = gofer.go(goroutine)
        await parked(first)
        op = sem.acquire()

        def waits() -> None:
            gofer.block(op)
            order.append("thread")
            sem.release()

        with thread(waits):
            await until(lambda: repr(op).endswith(" waiting>"))
            last = gofer.go(goroutine)
            await parked(last)
            sem.release()
            await first
            await last
        with thread(foreign):
            await until(lambda: len(order) == 4)
        permits(sem, 1)

    gofer.run(main, procs=procs)
    assert order == ["goroutine", "thread", "goroutine", "thread"]
