"""Looking at goroutines, collecting garbage and starting over, while everything moves."""

import contextlib
import gc
import threading
import warnings
from typing import Any

import gofer
from gofer import _core
from tests.support import FREE_THREADED, give, rounds, thread, wait_for


async def outer(n: int) -> int:
    """Always somewhere else in its await chain."""
    return await middle(n)


async def middle(n: int) -> int:
    for i in range(n):
        if i % 3 == 0:
            await gofer.gosched()
        elif i % 3 == 1:
            await gofer.sleep(0.00001)
        else:
            await gofer.go(give, 1)
    return n


KNOWN = {"outer", "middle", "give", "main", "wait_for", "<listcomp>"}  # the last: in Python 3.11


def look_at(g: gofer.Goroutine[Any]) -> None:
    names = [frame.name for frame in g.stack()]
    assert set(names) <= KNOWN, names
    assert names[:1] in ([], ["outer"], ["give"], ["main"], ["wait_for"])
    assert g.state in ("runnable", "running", "waiting", "syscall", "dead")
    assert g.wait_reason in (None, "", "sleep", "goroutine wait")
    assert repr(g).startswith(f"<Goroutine {g.id} ")
    assert isinstance(g.done(), bool)


def test_stacks_are_looked_at_by_goroutines_while_they_run(procs: int) -> None:
    async def main() -> None:
        for _ in rounds(divide_by=20):
            gs = [gofer.go(outer, 9) for _ in range(8)]
            while not all(g.done() for g in gs):
                for g in gs:
                    look_at(g)
                await gofer.gosched()
            assert [await g for g in gs] == [9] * 8

    gofer.run(main, procs=procs)


def test_stacks_are_looked_at_by_foreign_threads_while_they_run(procs: int) -> None:
    stop = False

    def looker() -> None:
        while not stop:
            for g in _core.goroutines():
                look_at(g)

    async def main() -> None:
        nonlocal stop
        try:
            with thread(looker), thread(looker):
                try:
                    # With the GIL the lookers have it for 5 ms at a time.
                    for _ in rounds(divide_by=20 if FREE_THREADED else 500):
                        gs = [gofer.go(outer, 9) for _ in range(8)]
                        assert [await g for g in gs] == [9] * 8
                finally:
                    stop = True
        finally:
            stop = True

    gofer.run(main, procs=procs)


def test_one_that_is_looked_at_while_it_is_woken_is_woken(procs: int) -> None:
    """The looker holds it for a moment; the wake-up that comes meanwhile must not be lost."""

    async def target(yields: int) -> int:
        for _ in range(yields):
            await gofer.gosched()
        return 1

    async def main() -> None:
        for i in rounds():
            waiter = gofer.go(wait_for, gofer.go(target, i % 3))
            for _ in range(3):
                waiter.stack()
                await gofer.gosched()
            assert await waiter == 1

    gofer.run(main, procs=procs)


def test_the_collector_runs_all_the_time(procs: int) -> None:
    stop = False

    async def collector() -> None:
        while not stop:
            gc.collect(0)
            await gofer.gosched()
            gc.collect()
            await gofer.sleep(0.0001)

    async def main() -> None:
        nonlocal stop
        g = gofer.go(collector)
        for _ in rounds(divide_by=20):
            gs = [gofer.go(outer, 6) for _ in range(8)]
            victims = [gofer.go(wait_for, gofer.current()) for _ in range(4)]
            assert [await g for g in gs] == [6] * 8
            for v in victims:
                v.cancel()
            for v in victims:
                with contextlib.suppress(gofer.Cancelled):
                    await v
        stop = True
        await g

    gofer.run(main, procs=procs)


def test_leaks_are_found_while_others_work(procs: int) -> None:
    leaked = 0

    async def wait_for_first(box: list[Any]) -> None:
        nonlocal leaked
        while not box:
            await gofer.gosched()
        try:
            await box[0]
        finally:
            with lock:
                leaked += 1

    def leak_a_pair() -> None:
        a: list[Any] = []
        b: list[Any] = []
        a.append(gofer.go(wait_for_first, b))
        b.append(gofer.go(wait_for_first, a))

    async def main() -> None:
        for _ in rounds(divide_by=50):
            for _ in range(5):
                leak_a_pair()
            gs = [gofer.go(outer, 3) for _ in range(4)]
            gc.collect()
            assert [await g for g in gs] == [3] * 4
        while gofer.num_goroutine() > 1:
            gc.collect()
            await gofer.sleep(0.001)

    lock = threading.Lock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gofer.GoroutineLeakWarning)
        gofer.run(main, procs=procs)
    assert leaked == 10 * len(list(rounds(divide_by=50)))


def test_many_short_runs(procs: int) -> None:
    async def main(i: int) -> int:
        gs = [gofer.go(outer, 2) for _ in range(i % 5)]
        others = [gofer.go(wait_for, gofer.current()) for _ in range(i % 3)]
        total = sum([await g for g in gs])
        assert len(others) == i % 3
        return total

    for i in rounds(divide_by=2):
        assert gofer.run(main, i, procs=procs) == i % 5 * 2
