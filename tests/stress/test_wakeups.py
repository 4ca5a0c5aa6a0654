"""No wake-up is lost and none comes twice: each round ends, and ends once."""

import threading
import time
from typing import Any

import gofer
from gofer import _core
from tests.support import RING_SIZE, give, rounds, thread, wait_for


def test_one_readies_another_while_all_else_sleeps(procs: int) -> None:
    """Start one, wait for it: the other Ms fall asleep and wake up all the time."""

    async def main() -> int:
        total = 0
        for i in rounds():
            total += await gofer.go(give, 1)
            if i % 10 == 0:
                await gofer.sleep(0.00005)  # time enough for the others to fall asleep
        return total

    assert gofer.run(main, procs=procs) == len(list(rounds()))


def test_a_relay_of_joins_across_ps(procs: int) -> None:
    """Each waits for the next; the last one's end wakes all, one by one."""

    async def link(n: int) -> int:
        if n == 0:
            await gofer.gosched()
            return 0
        return 1 + await gofer.go(link, n - 1)

    async def main() -> None:
        for _ in rounds(divide_by=20):
            relays = [gofer.go(link, 20) for _ in range(procs)]
            assert [await g for g in relays] == [20] * procs

    gofer.run(main, procs=procs)


def test_timers_wake_sleepers_on_all_ps(procs: int) -> None:
    async def sleeper(i: int) -> int:
        for n in range(5):
            await gofer.sleep((i * 7 + n) % 5 * 0.00001)
        return 1

    async def main() -> None:
        for _ in rounds(divide_by=20):
            gs = [gofer.go(sleeper, i) for i in range(20)]
            assert sum([await g for g in gs]) == 20

    gofer.run(main, procs=procs)


def test_a_foreign_thread_starts_one_while_all_sleep(procs: int) -> None:
    done = threading.Semaphore(0)

    async def child() -> None:
        done.release()

    def foreign() -> None:
        for i in rounds():
            gofer.go(child)
            assert done.acquire(timeout=30), f"goroutine {i} never ran"
        main_goroutine[0].cancel()

    async def main() -> None:
        main_goroutine.append(gofer.current())
        with thread(foreign):
            try:
                await gofer.sleep(100_000)
            except gofer.Cancelled:
                return

    main_goroutine: list[gofer.Goroutine[Any]] = []
    gofer.run(main, procs=procs)
    main_goroutine.clear()


def test_many_join_one_just_as_it_ends(procs: int) -> None:
    """A joiner comes before, during or after the end of its target, and gets the result."""

    async def target(yields: int) -> int:
        for _ in range(yields):
            await gofer.gosched()
        return 7

    async def main() -> None:
        for i in rounds(divide_by=5):
            g = gofer.go(target, i % 3)
            joiners = [gofer.go(wait_for, g) for _ in range(8)]
            assert await g == 7
            assert [await j for j in joiners] == [7] * 8

    gofer.run(main, procs=procs)


def test_no_goroutine_is_ever_run_by_two_threads(procs: int) -> None:
    inside: list[int] = [0] * 16
    overlaps = 0

    async def worker(me: int) -> None:
        nonlocal overlaps
        for i in range(20):
            if inside[me]:
                overlaps += 1
            inside[me] = 1
            sum(range(10))
            inside[me] = 0
            kind = (me + i) % 3
            if kind == 0:
                await gofer.gosched()
            elif kind == 1:
                await gofer.sleep(0.00001)
            else:
                await gofer.go(give, 1)

    async def main() -> None:
        for _ in rounds(divide_by=20):
            workers = [gofer.go(worker, i) for i in range(16)]
            for g in workers:
                await g

    gofer.run(main, procs=procs)
    assert overlaps == 0


def test_rings_overflow_and_nothing_is_lost_or_run_twice(procs: int) -> None:
    ran: list[int] = []

    async def child(i: int) -> None:
        ran.append(i)

    async def spawner(base: int, n: int) -> None:
        gs = [gofer.go(child, base + i) for i in range(n)]
        for g in gs:
            await g

    async def main() -> None:
        for _ in rounds(divide_by=50):
            ran.clear()
            n = 2 * RING_SIZE + 3
            spawners = [gofer.go(spawner, k * n, n) for k in range(procs)]
            for g in spawners:
                await g
            assert sorted(ran) == list(range(n * procs))
        assert _core.counters()["spills"] > 0

    gofer.run(main, procs=procs)


def test_thieves_against_the_owner(procs: int) -> None:
    """One P has all the work; the others take it away while it works on it."""
    ran: list[int] = []

    async def child(i: int) -> None:
        if i % 16 == 0:
            time.sleep(0.00002)
        ran.append(i)

    async def producer(n: int) -> None:
        gs = []
        for i in range(n):
            gs.append(gofer.go(child, i))
            if i % 8 == 0:
                await gofer.gosched()
        for g in gs:
            await g

    async def main() -> None:
        for _ in rounds(divide_by=20):
            ran.clear()
            await gofer.go(producer, 100)
            assert sorted(ran) == list(range(100))

    gofer.run(main, procs=procs)


def test_shrinking_against_spawning(procs: int) -> None:
    async def child(i: int) -> int:
        if i % 2:
            await gofer.sleep(0.00001)
        return 1

    async def spawner() -> int:
        gs = [gofer.go(child, i) for i in range(20)]
        return sum([await g for g in gs])

    async def main() -> None:
        for i in rounds(divide_by=5):
            gs = [gofer.go(spawner) for _ in range(4)]
            gofer.gomaxprocs(1 + i % 8)
            assert sum([await g for g in gs]) == 80

    gofer.run(main, procs=procs)
