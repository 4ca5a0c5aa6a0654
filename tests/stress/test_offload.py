"""Futures that other threads complete at any instant, against cancellation and time limits."""

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import Any

import pytest

import gofer
from gofer import _core, offload
from tests.support import rounds, wait_for


class AnyTime(Executor):
    """Its threads complete calls soon, or a little later, some with an exception."""

    def __init__(self, threads: int = 2) -> None:
        self.calls: queue.SimpleQueue[tuple[Future[Any], Any] | None] = queue.SimpleQueue()
        self.futures: list[Future[Any]] = []
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(threads)]
        for t in self.threads:
            t.start()

    def work(self, seed: int) -> None:
        dice = random.Random(seed)
        while (item := self.calls.get()) is not None:
            future, value = item
            if (pause := dice.random()) < 0.3:
                time.sleep(pause / 1000)
            if not future.set_running_or_notify_cancel():
                continue
            if dice.random() < 0.1:
                time.sleep(0.0001)  # it runs, and cannot be cancelled
            if value % 10 == 0:
                future.set_exception(LookupError(value))
            else:
                future.set_result(value)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.futures.append(future)
        self.calls.put((future, *args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in self.threads:
            self.calls.put(None)
        for t in self.threads:
            t.join()


def identity(value: int) -> int:
    return value


async def outcome(make: Callable[[], Any], value: int, got: list[str]) -> None:
    """Wait for it; whatever comes must be the right thing for this value."""
    try:
        result = await make()
        if isinstance(result, gofer.Selected):
            assert result.index == 0
            result = result.value
        assert result == value
        assert value % 10 != 0
        got.append("result")
    except LookupError as exc:
        got.append("error" if exc.args == (value,) else repr(exc))
    except CancelledError:
        got.append("future cancelled")
    except TimeoutError:
        got.append("timeout")
    except gofer.Cancelled:
        got.append("cancelled")
        raise


async def limited(awaitable: Any, seconds: float) -> Any:
    async with gofer.timeout(seconds):
        return await awaitable


@pytest.mark.parametrize("procs", [1, 2, 4])
@pytest.mark.parametrize("shape", ["await", "select", "timeout"])
def test_calls_against_cancellation(procs: int, shape: str) -> None:
    dice = random.Random(procs)
    n = 40

    def operation(executor: Executor, i: int, seconds: float) -> Any:
        op = offload(executor, identity, i)
        if shape == "select":
            return gofer.select(op, gofer.Chan[int]().recv())
        return limited(op, seconds) if shape == "timeout" else op

    async def main(executor: AnyTime) -> None:
        for _ in rounds(divide_by=20):
            got: list[str] = []
            goroutines = [
                gofer.go(outcome, partial(operation, executor, i, dice.random() / 1000), i, got)
                for i in range(1, n + 1)
            ]
            for g in dice.sample(goroutines, n // 2):
                if dice.random() < 0.5:
                    await gofer.gosched()
                g.cancel()
            for g in goroutines:
                with contextlib.suppress(gofer.Cancelled):
                    await g
            # One that was cancelled before it had begun has not said anything.
            silent = sum(g.cancelled() for g in goroutines) - got.count("cancelled")
            assert len(got) + silent == n
            assert set(got) <= {"result", "error", "timeout", "cancelled"}
            executor.futures.clear()
        assert _core.futures_waiting() == 0

    executor = AnyTime()
    try:
        gofer.run(main, executor, procs=procs)
    finally:
        executor.shutdown()


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_a_call_is_done_or_cancelled_never_forgotten(procs: int) -> None:
    """One whose waiter was cancelled has been cancelled in time, or has run: nothing between."""
    dice = random.Random(procs)

    async def main(executor: AnyTime) -> None:
        for i in rounds(divide_by=4):
            value = 10 * i + 1
            g = gofer.go(wait_for, offload(executor, identity, value))
            for _ in range(dice.randrange(4)):
                await gofer.gosched()
            g.cancel()
            try:
                assert await g == value
                assert executor.futures[0].result() == value
            except gofer.Cancelled:
                for future in executor.futures:  # none if it had not begun
                    assert future.cancelled() or future.running() or future.done()
            executor.futures.clear()

    executor = AnyTime(1)
    try:
        gofer.run(main, executor, procs=procs)
    finally:
        executor.shutdown()


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_many_waiters_of_one_future(procs: int) -> None:
    """The first of them makes the channel; they may all be the first."""
    dice = random.Random(procs)

    async def waiter(future: "Future[int]") -> int:
        if dice.random() < 0.3:
            return int((await gofer.select(future, gofer.sleep(60))).value)
        return await future  # type: ignore[misc, no-any-return]

    async def main(executor: AnyTime) -> None:
        for i in rounds(divide_by=10):
            future = executor.submit(identity, 10 * i + 1)
            waiters = [gofer.go(waiter, future) for _ in range(10)]
            for g in dice.sample(waiters, 3):
                g.cancel()
            for g in waiters:
                with contextlib.suppress(gofer.Cancelled):
                    assert await g == 10 * i + 1
            executor.futures.clear()
        assert _core.futures_waiting() == 0

    executor = AnyTime()
    try:
        gofer.run(main, executor, procs=procs)
    finally:
        executor.shutdown()


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_blocked_threads_against_time_limits(procs: int) -> None:
    async def main(executor: AnyTime) -> None:
        def plain(seed: int) -> int:
            dice, late = random.Random(seed), 0
            for i in rounds(divide_by=20):
                value = 10 * i + 1
                try:
                    limit = dice.random() / 2000
                    assert gofer.block(offload(executor, identity, value), timeout=limit) == value
                except TimeoutError:
                    late += 1
            return late

        for g in [gofer.go(plain, seed) for seed in range(4)]:
            await g

    executor = AnyTime()
    try:
        gofer.run(main, executor, procs=procs)
    finally:
        executor.shutdown()


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_the_run_ends_while_calls_are_being_completed(procs: int) -> None:
    executor = AnyTime()

    async def main() -> None:
        for i in range(20):
            gofer.go(wait_for, offload(executor, identity, 10 * i + 1))
        for _ in range(random.randrange(3)):
            await gofer.gosched()

    try:
        for _ in rounds(divide_by=20):
            gofer.run(main, procs=procs)
            executor.futures.clear()
            assert _core.futures_waiting() == 0
    finally:
        executor.shutdown()
