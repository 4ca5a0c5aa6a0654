"""Somebody looks, from another thread, at all there is to see, while goroutines come and go."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import gofer
from gofer import _debugsocket
from tests.support import rounds, thread

QUESTIONS = [
    b'{"get": "goroutines"}',
    b'{"get": "stats"}',
    b'{"get": "dump"}',
    b'{"get": "dump", "group": true}',
    b'{"get": "metrics"}',
]


@contextmanager
def watched() -> Iterator[None]:
    """As the thread of the debug socket does, but without a pause."""
    done = threading.Event()

    def watch() -> None:
        summary = _debugsocket._ANSWERS["goroutines"]
        while not done.is_set():
            for question in QUESTIONS:
                summary.again = 0.0  # type: ignore[attr-defined]  # count them anew
                answer = _debugsocket.answer(question)
                assert answer["ok"], answer
                json.dumps(answer)

    with thread(watch):
        try:
            yield
        finally:
            done.set()


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_runs_of_many_short_goroutines(procs: int) -> None:
    async def child(n: int) -> int:
        await gofer.gosched()
        return n

    async def main() -> int:
        return sum([await g for g in [gofer.go(child, n) for n in range(50)]])

    with watched():
        for _ in rounds(10):
            assert gofer.run(main, procs=procs) == 1225


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_an_exception_that_nobody_takes_is_not_lost(procs: int) -> None:
    """The one that looks may be the last that holds the handle."""

    async def fails() -> None:
        await gofer.gosched()
        raise ValueError("broken")

    async def main() -> None:
        for _ in range(5):
            gofer.go(fails)
        await gofer.sleep(100)

    with watched():
        for _ in rounds(10):
            with pytest.raises(ValueError, match="broken"):
                gofer.run(main, procs=procs)


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_goroutines_that_block_compute_and_are_cancelled(procs: int) -> None:
    async def waits(ch: gofer.Chan[int]) -> None:
        await ch.recv()

    async def computes() -> None:
        for _ in range(5):
            sum(range(1000))
            await gofer.gosched()

    def plain() -> None:
        gofer.block(gofer.sleep(0.0001))

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        waiting = [gofer.go(waits, ch) for _ in range(10)]
        working = [gofer.go(computes) for _ in range(5)] + [gofer.go(plain) for _ in range(3)]
        for g in working:
            await g
        for g in waiting:
            g.cancel()

    with watched():
        for _ in rounds(20):
            gofer.run(main, procs=procs)
