"""The end of main against everything that happens at the same time."""

import contextlib
import sys
import time
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

import gofer
from tests.support import rounds, thread, until


def test_loops_that_take_turns_all_hear_of_the_end() -> None:
    """Each time somebody has the time to tell them, one has just been stopped and none runs yet."""

    begun: list[None] = []

    async def loop() -> None:
        begun.append(None)
        while True:
            pass

    async def main() -> None:
        gofer.go(loop)
        gofer.go(loop)
        await until(lambda: len(begun) == 2)

    for _ in rounds(divide_by=10):
        begun.clear()
        start = time.monotonic()
        gofer.run(main, procs=1)
        assert time.monotonic() - start < 10


def test_go_against_the_end_of_main(procs: int) -> None:
    """Whatever go() has returned a handle for is cancelled; whatever it refuses leaves no trace."""

    async def sleeper() -> None:
        await gofer.sleep(10)

    async def spawner() -> None:
        for _ in range(1000):
            try:
                gofer.go(sleeper)
            except RuntimeError:
                break
            await gofer.gosched()

    async def main() -> None:
        for _ in range(4):
            gofer.go(spawner)
        for _ in range(20):
            await gofer.gosched()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "coroutine ... was never awaited"
        for _ in rounds():
            start = time.monotonic()
            gofer.run(main, procs=procs)
            assert time.monotonic() - start < 5, "one was not cancelled, and slept to its end"


def test_many_async_generators_are_closed_at_once(procs: int) -> None:
    """The first one to be closed may be so before the last one is begun."""
    kept: list[Any] = []
    closed: list[int] = []

    async def numbers(i: int) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            closed.append(i)

    async def main() -> None:
        for i in range(20):
            agen = numbers(i)
            kept.append(agen)
            await anext(agen)

    for _ in rounds():
        gofer.run(main, procs=procs)
        assert sorted(closed) == list(range(20))
        closed.clear()
        kept.clear()


def test_without_main_the_last_one_to_end_is_really_the_last(procs: int) -> None:
    """Goroutines are born and die on all Ps at once; run() ends when none is left, not before."""

    async def nothing() -> None:
        pass

    async def worker() -> None:
        for _ in range(20):
            gofer.go(nothing)
            await gofer.go(nothing)
        ended.append(1)

    async def main() -> None:
        for _ in range(8):
            gofer.go(worker)
        gofer.goexit()

    ended: list[int] = []
    for _ in rounds():
        with pytest.raises(gofer.Deadlock, match="no goroutines"):
            gofer.run(main, procs=procs)
        assert len(ended) == 8
        ended.clear()


def test_many_goroutines_end_at_once_while_an_async_generator_is_open(procs: int) -> None:
    """The last one to end closes it: exactly one, and before run() returns."""
    kept: list[Any] = []
    closed = 0

    async def numbers() -> AsyncIterator[int]:
        nonlocal closed
        try:
            yield 1
        finally:
            await gofer.gosched()
            closed += 1

    async def main() -> None:
        agen = numbers()
        kept.append(agen)
        await anext(agen)
        for _ in range(4):
            gofer.go(sleeper)
        await gofer.gosched()

    async def sleeper() -> None:
        await gofer.sleep(1000)

    for i in rounds():
        gofer.run(main, procs=procs)
        assert closed == i + 1
        kept.clear()


def test_goroutines_that_end_together_with_main(procs: int) -> None:
    async def waiter(main: gofer.Goroutine[Any]) -> None:
        with contextlib.suppress(gofer.Cancelled):
            await main

    async def main() -> str:
        for _ in range(4):
            gofer.go(waiter, gofer.current())
        await gofer.gosched()
        return "done"

    for _ in rounds():
        assert gofer.run(main, procs=procs) == "done"


def test_who_starts_others_for_ever_is_cancelled_like_anybody(procs: int) -> None:
    """Not told that the runtime stops before it is told that it is cancelled."""

    async def nothing() -> None:
        pass

    async def spawner() -> None:
        while True:
            await gofer.gosched()
            gofer.go(nothing)

    async def main() -> str:
        for _ in range(4):
            gofer.go(spawner)
        for _ in range(20):
            await gofer.gosched()
        return "done"

    for _ in rounds():
        assert gofer.run(main, procs=procs) == "done"


@pytest.mark.parametrize("how", ["return", "goexit"])
def test_threads_that_call_go_while_runs_end_and_begin(how: str, procs: int) -> None:
    """Each goroutine is started and counted in one run, or refused; main is always number 1."""
    stop = False
    started = [0, 0]
    ended: list[int] = []

    async def one() -> None:
        await gofer.gosched()

    def foreign(i: int) -> None:
        while not stop:
            with contextlib.suppress(RuntimeError):
                gofer.go(one)
                started[i] += 1
            if how == "goexit":  # such a run ends when no goroutine is left
                time.sleep(0.0001)

    async def main() -> str:
        me = gofer.current()
        assert me.id == 1
        for _ in range(3):
            await gofer.gosched()
        if how == "goexit":
            ended.append(1)
            gofer.goexit()
        return "done"

    async def both_are_at_it() -> None:
        await until(lambda: min(started) > 0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with thread(foreign, 0), thread(foreign, 1):
            try:
                gofer.run(both_are_at_it, procs=procs)
                for i in rounds(4):
                    if how == "return":
                        assert gofer.run(main, procs=procs) == "done"
                        continue
                    with pytest.raises(gofer.Deadlock, match="no goroutines"):
                        gofer.run(main, procs=procs)
                    assert len(ended) == i + 1
            finally:
                stop = True
    finally:
        sys.setswitchinterval(interval)


def test_who_is_dead_is_not_counted_any_more(procs: int) -> None:
    """Seen by looking, without waiting for it."""

    async def nothing() -> None:
        pass

    async def main() -> None:
        for _ in rounds():
            g = gofer.go(nothing)
            for _ in range(1000):
                if g.done():
                    break
            else:
                await g
            assert gofer.num_goroutine() == 1

    gofer.run(main, procs=procs)


def test_who_waits_when_all_ends_is_cancelled_and_nothing_else(procs: int) -> None:
    """Some wake up just as those who end the run look for goroutines that compute."""
    heard: list[type[BaseException]] = []

    def receive() -> None:
        try:
            gofer.block(gofer.Chan[int]().recv())
        except BaseException as exc:
            heard.append(type(exc))
            raise

    async def main() -> None:
        for g in [gofer.go(receive) for _ in range(200)]:
            await g

    for _ in rounds(20):
        with pytest.raises(gofer.Deadlock):
            gofer.run(main, procs=procs)
    assert set(heard) == {gofer.Cancelled}
