"""offload(): calls that an executor carries out."""

import gc
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import context, offload
from tests import offload_work as work
from tests.future_support import AtOnce, ByHand, cancelled
from tests.support import parked, thread, until, wait_for


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


# --- An operation --------------------------------------------------------------------------------


def test_gives_the_result(procs: int, pool: ThreadPoolExecutor) -> None:
    async def main() -> tuple[object, ...]:
        return (
            await offload(pool, work.add, 1, 2),
            await offload(pool, work.add, b=3, a=4),
            await offload(pool, work.keywords, 1, executor=2, fn=3),
        )

    assert gofer.run(main, procs=procs) == (3, 7, ((1,), {"executor": 2, "fn": 3}))


def test_does_nothing_until_it_is_awaited(procs: int) -> None:
    async def main() -> None:
        hand = ByHand()
        operation = offload(hand, work.add, 1, 2)
        assert isinstance(operation, gofer.Operation)
        assert "offload of <function add" in repr(operation)
        assert repr(operation).endswith("not awaited>")
        await gofer.gosched()
        assert hand.calls == []
        g = gofer.go(wait_for, operation)
        await parked(g)
        assert g.wait_reason == "future wait"
        assert hand.calls == [(work.add, (1, 2), {})]
        assert repr(operation).endswith("waiting>")
        hand.futures[0].set_result("set")
        assert await g == "set"
        assert repr(operation).endswith("done>")
        with pytest.raises(RuntimeError, match="awaited already"):
            await operation
        assert len(hand.calls) == 1

    gofer.run(main, procs=procs)


def test_what_is_never_awaited_is_never_submitted() -> None:
    hand = ByHand()

    async def main() -> None:
        offload(hand, work.add, 1, 2)

    gofer.run(main)
    assert hand.calls == []


def test_one_who_has_been_cancelled_submits_nothing(procs: int) -> None:
    hand = ByHand()

    async def main() -> None:
        gofer.current().cancel()
        with pytest.raises(gofer.Cancelled):
            await offload(hand, work.add, 1, 2)
        ctx = context.with_cancel()
        async with ctx:
            ctx.cancel()
            with pytest.raises(gofer.Cancelled):
                await gofer.select(offload(hand, work.add, 1, 2))

    gofer.run(main, procs=procs)
    assert hand.calls == []


def test_an_executor_that_calls_at_once_need_not_suspend() -> None:
    async def main() -> list[object]:
        seen: list[object] = []

        async def other() -> None:
            seen.append("other")

        g = gofer.go(other)
        seen.append(await offload(AtOnce(), work.add, 1, 2))
        await g
        return seen

    assert gofer.run(main, procs=1) == [3, "other"]


def test_plain_code_waits_with_block(procs: int, pool: ThreadPoolExecutor) -> None:
    async def main() -> list[object]:
        got = [await gofer.go(lambda: gofer.block(offload(pool, work.add, 1, 2)))]
        with thread(lambda: got.append(gofer.block(offload(pool, work.add, 3, 4), timeout=60))):
            await until(lambda: len(got) == 2)
        return got

    assert gofer.run(main, procs=procs) == [3, 7]


def test_many_at_once(procs: int) -> None:
    async def main() -> list[int]:
        with ThreadPoolExecutor(4) as pool:
            calls = [gofer.go(wait_for, offload(pool, work.add, i, i)) for i in range(500)]
            return [await g for g in calls]

    assert gofer.run(main, procs=procs) == [2 * i for i in range(500)]


def test_the_arguments_are_the_executors_once_submitted() -> None:
    """A call that takes long shall not keep what it was given, if the executor does not."""

    class Big:
        pass

    async def main() -> None:
        hand, big = ByHand(), Big()
        ref = weakref.ref(big)
        g = gofer.go(wait_for, offload(hand, work.size, big))  # type: ignore[arg-type]
        del big
        await parked(g)
        hand.calls.clear()
        gc.collect()
        assert ref() is None
        hand.futures[0].set_result(None)
        await g

    gofer.run(main, procs=1)


# --- Errors --------------------------------------------------------------------------------------


def test_the_exception_comes_with_its_traceback(procs: int, pool: ThreadPoolExecutor) -> None:
    async def main() -> None:
        await offload(pool, work.fail, "no luck")

    with pytest.raises(LookupError, match="no luck") as failure:
        gofer.run(main, procs=procs)
    frames = traceback.extract_tb(failure.value.__traceback__)
    assert frames[-1].name == "fail"
    assert "main" in [frame.name for frame in frames]


def test_a_shut_down_executor_says_so_at_the_await(procs: int) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()

    async def main() -> None:
        operation = offload(pool, work.add, 1, 2)
        with pytest.raises(RuntimeError, match="after shutdown"):
            await operation
        hand = ByHand()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await gofer.select(offload(hand, work.add, 1, 2), offload(pool, work.add, 1, 2))
        assert hand.futures[0].cancelled()

    gofer.run(main, procs=procs)


def test_an_executor_that_is_shut_down_meanwhile_cancels(procs: int) -> None:
    async def main() -> None:
        release = threading.Event()
        pool = ThreadPoolExecutor(1)
        try:
            running = gofer.go(wait_for, offload(pool, release.wait))
            await parked(running)
            queued = gofer.go(wait_for, offload(pool, work.add, 1, 2))
            await parked(queued)
            pool.shutdown(wait=False, cancel_futures=True)
            with pytest.raises(CancelledError):
                await queued
            release.set()
            assert await running is True
        finally:
            release.set()
            pool.shutdown()

    gofer.run(main, procs=procs)


class NoFutures(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return "no future"


class Client:
    def get_executor(self) -> None: ...


async def async_function() -> None: ...


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (None, r"gofer\.go\(fn\)"),
        (4, r"needs a concurrent\.futures\.Executor, not 4$"),
        (ThreadPoolExecutor, "make one"),
        (int, "not <class 'int'>$"),
        (Client(), r"use its get_executor\(\)"),
        (work.add, "comes before the function"),
    ],
)
def test_what_is_no_executor_is_refused_with_advice(wrong: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        offload(wrong, work.add, 1, 2)


def test_the_call_must_be_one_that_an_executor_can_make(pool: ThreadPoolExecutor) -> None:
    with pytest.raises(TypeError, match="needs a function"):
        offload(pool, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"is async, start it with gofer\.go"):
        offload(pool, async_function)
    with pytest.raises(TypeError):
        offload(pool)  # type: ignore[call-arg]


def test_an_executor_that_gives_no_future_is_told(procs: int) -> None:
    async def main() -> None:
        await offload(NoFutures(), work.add, 1, 2)

    with pytest.raises(TypeError, match=r"gave no concurrent\.futures\.Future but 'no future'"):
        gofer.run(main, procs=procs)


# --- Cancellation --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "timeout", "context", "block", "select"])
def test_a_call_that_nobody_waits_for_any_more_is_cancelled(procs: int, how: str) -> None:
    async def main() -> None:
        hand = ByHand()
        operation = offload(hand, work.add, 1, 2)
        if how == "cancel":
            g = gofer.go(wait_for, operation)
            await parked(g)
            g.cancel()
            assert await cancelled(g)
        elif how == "timeout":
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.01):
                    await operation
        elif how == "context":
            async with context.with_cancel() as ctx:
                gofer.after_func(0.01, ctx.cancel)
                await operation
        elif how == "block":

            def plain() -> None:
                with pytest.raises(TimeoutError):
                    gofer.block(operation, timeout=0.01)

            await gofer.go(plain)
        else:
            g = gofer.go(wait_for, gofer.select(operation, gofer.sleep(1000)))
            await parked(g)
            g.cancel()
            assert await cancelled(g)
        assert hand.futures[0].cancelled()

    gofer.run(main, procs=procs)


def test_a_foreign_thread_that_gives_up_cancels_the_call(procs: int) -> None:
    async def main() -> None:
        hand = ByHand()

        def body() -> None:
            with pytest.raises(TimeoutError):
                gofer.block(offload(hand, work.add, 1, 2), timeout=0.01)
            assert hand.futures[0].cancelled()

        with thread(body) as t:
            await until(lambda: not t.is_alive())

    gofer.run(main, procs=procs)


def test_one_that_waits_in_the_executors_queue_is_never_called(procs: int) -> None:
    async def main() -> None:
        called: list[int] = []
        release = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            first = gofer.go(wait_for, offload(pool, release.wait))
            await parked(first)
            second = gofer.go(wait_for, offload(pool, called.append, 1))
            await parked(second)
            second.cancel()
            assert await cancelled(second)
            release.set()
            assert await first is True
        assert called == []

    gofer.run(main, procs=procs)


def test_one_that_runs_is_not_waited_for(procs: int) -> None:
    async def main() -> None:
        begun, release, ended = threading.Event(), threading.Event(), threading.Event()

        def call() -> None:
            begun.set()
            release.wait()
            ended.set()
            raise LookupError("nobody hears of it")

        with ThreadPoolExecutor(1) as pool:
            g = gofer.go(wait_for, offload(pool, call))
            await until(begun.is_set)
            g.cancel()
            assert await cancelled(g)
            assert not ended.is_set()
            release.set()
        assert ended.is_set()

    gofer.run(main, procs=procs)


def test_a_result_that_is_there_comes_before_a_cancellation() -> None:
    async def main() -> list[object]:
        hand = ByHand()
        got: list[object] = []

        async def waiter() -> None:
            got.append(await offload(hand, work.add, 1, 2))
            await gofer.sleep(0)
            got.append("not reached")

        g = gofer.go(waiter)
        await parked(g)
        hand.futures[0].set_result("the result")
        g.cancel()
        assert await cancelled(g)
        return got

    assert gofer.run(main, procs=1) == ["the result"]


@pytest.mark.parametrize("outcome", ["result", "exception"])
def test_what_is_there_comes_before_the_end_of_the_context(outcome: str) -> None:
    async def main() -> None:
        hand = ByHand()

        async def waiter() -> object:
            async with ctx:
                return await offload(hand, work.add, 1, 2)

        ctx = context.with_cancel()
        g = gofer.go(waiter)
        await parked(g)
        if outcome == "result":
            hand.futures[0].set_result("the result")
            ctx.cancel()
            assert await g == "the result"
        else:
            hand.futures[0].set_exception(KeyError("the exception"))
            ctx.cancel()
            with pytest.raises(KeyError, match="the exception"):
                await g

    gofer.run(main, procs=1)


def test_a_shield_keeps_the_call(procs: int) -> None:
    async def main() -> object:
        hand = ByHand()

        async def waiter() -> object:
            async with context.shield():
                return await offload(hand, work.add, 1, 2)

        async with context.with_cancel() as ctx:
            g = gofer.go(waiter)
            await parked(g)
            ctx.cancel()
        hand.futures[0].set_result("kept")
        return await g

    assert gofer.run(main, procs=procs) == "kept"


def test_a_future_that_cannot_be_cancelled_does_not_stop_the_cancellation(
    procs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: complaints.append(info.exc_value))

    class Stubborn(Future[None]):
        def cancel(self) -> bool:
            raise LookupError("never")

    class Executors(ByHand):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
            self.futures.append(Stubborn())
            return self.futures[-1]

    async def main() -> None:
        g = gofer.go(wait_for, offload(Executors(), work.add, 1, 2))
        await parked(g)
        g.cancel()
        assert await cancelled(g)

    gofer.run(main, procs=procs)
    assert [str(exc) for exc in complaints] == ["never"]


def test_the_end_of_the_run_cancels_what_is_pending_and_waits_for_nothing(procs: int) -> None:
    hand = ByHand()
    release = threading.Event()
    ended: list[int] = []

    async def call(i: int, executor: Executor) -> None:
        try:
            await offload(executor, release.wait)
        finally:
            ended.append(i)

    with ThreadPoolExecutor(1) as pool:

        async def main() -> None:
            await parked(*[gofer.go(call, i, hand) for i in range(10)])
            await parked(*[gofer.go(call, i, pool) for i in range(10, 13)])

        gofer.run(main, procs=procs)
        assert sorted(ended) == list(range(13))
        assert all(future.cancelled() for future in hand.futures)
        release.set()


def test_a_goroutine_that_drives_it_by_hand_may_close_it(procs: int) -> None:
    async def main() -> None:
        hand = ByHand()

        async def inner() -> None:
            await offload(hand, work.add, 1, 2)

        coro = inner()
        coro.send(None)
        coro.close()
        assert hand.futures[0].cancelled()

    gofer.run(main, procs=procs)


# --- select --------------------------------------------------------------------------------------


def test_is_a_case_of_select(procs: int, pool: ThreadPoolExecutor) -> None:
    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        assert await gofer.select(ch.recv(), offload(pool, work.add, 1, 2)) == (1, 3, True)
        with pytest.raises(LookupError, match="no luck"):
            await gofer.select(ch.recv(), offload(pool, work.fail, "no luck"), gofer.sleep(60))
        assert await gofer.select(offload(AtOnce(), work.add, 1, 2), default=True) == (0, 3, True)

    gofer.run(main, procs=procs)


def test_the_first_of_several_wins_and_the_others_are_cancelled(procs: int) -> None:
    async def main() -> None:
        hand = ByHand()
        calls = [offload(hand, work.add, i, 0) for i in range(5)]
        g = gofer.go(wait_for, gofer.select(*calls, None, gofer.sleep(1000)))
        await parked(g)
        assert g.wait_reason == "select"
        hand.futures[3].set_result("third")
        assert await g == (3, "third", True)
        assert [f.cancelled() for f in hand.futures] == [True, True, True, False, True]
        with pytest.raises(RuntimeError, match="awaited already"):
            await calls[0]

    gofer.run(main, procs=procs)


def test_a_select_that_fails_cancels_the_others(procs: int) -> None:
    async def main() -> None:
        hand = ByHand()
        g = gofer.go(
            wait_for, gofer.select(offload(hand, work.add, 1, 2), offload(hand, work.add, 3, 4))
        )
        await parked(g)
        hand.futures[0].set_exception(LookupError("lost"))
        with pytest.raises(LookupError, match="lost"):
            await g
        assert hand.futures[1].cancelled()

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("winner", ["channel", "sleep", "default", "goroutine"])
def test_one_that_loses_is_cancelled(procs: int, winner: str) -> None:
    async def main() -> None:
        hand = ByHand()
        ch: gofer.Chan[int] = gofer.Chan(1)
        operation = offload(hand, work.add, 1, 2)
        if winner == "channel":
            ch.send_nowait(7)
            assert await gofer.select(operation, ch.recv()) == (1, 7, True)
        elif winner == "sleep":
            assert await gofer.select(operation, gofer.sleep(0.001)) == (1, None, True)
        elif winner == "default":
            assert await gofer.select(operation, default=True) == (-1, None, False)
        else:
            g = gofer.go(wait_for, gofer.sleep(0.001))
            assert await gofer.select(operation, g) == (1, None, True)
        assert hand.futures[0].cancelled()

    gofer.run(main, procs=procs)


def test_a_select_that_is_wrong_submits_nothing(procs: int) -> None:
    async def main() -> None:
        hand = ByHand()
        ch: gofer.Chan[int] = gofer.Chan(1)
        used = ch.send(1)
        await used
        with pytest.raises(RuntimeError, match="awaited already"):
            await gofer.select(offload(hand, work.add, 1, 2), used)
        operation = offload(hand, work.add, 1, 2)
        with pytest.raises(ValueError, match="twice"):
            gofer.select(operation, operation)
        with pytest.raises(TypeError, match="select"):
            gofer.select(operation, work.add)
        assert hand.calls == []

    gofer.run(main, procs=procs)


def test_one_in_use_cannot_be_selected(procs: int) -> None:
    async def main() -> None:
        hand, other = ByHand(), ByHand()
        operation = offload(hand, work.add, 1, 2)
        g = gofer.go(wait_for, operation)
        await parked(g)
        with pytest.raises(RuntimeError, match="another goroutine"):
            await gofer.select(offload(other, work.add, 1, 2), operation)
        assert other.futures[0].cancelled()  # it had begun
        assert not hand.futures[0].cancelled()
        hand.futures[0].set_result("unharmed")
        assert await g == "unharmed"

    gofer.run(main, procs=procs)


# --- Processes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def helpers_of_multiprocessing() -> None:
    """Two processes that it starts when first needed; it keeps pipes to them open for ever."""
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(scope="module", params=["spawn", "forkserver"])
def processes(request: pytest.FixtureRequest) -> Iterator[ProcessPoolExecutor]:
    """Not fork: the child of a process with threads gets their locks, but not the threads."""
    method = multiprocessing.get_context(request.param)
    with ProcessPoolExecutor(2, mp_context=method) as pool:
        assert list(pool.map(work.add, range(8), range(8))) == [2 * i for i in range(8)]
        yield pool


@pytest.fixture
def own_processes() -> Iterator[ProcessPoolExecutor]:
    """To be broken."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        yield pool


def test_processes_carry_out_calls(procs: int, processes: ProcessPoolExecutor) -> None:
    async def main() -> tuple[list[int], int]:
        calls = [gofer.go(wait_for, offload(processes, work.add, i, i)) for i in range(50)]
        return [await g for g in calls], await offload(processes, os.getpid)

    sums, pid = gofer.run(main, procs=procs)
    assert sums == [2 * i for i in range(50)]
    assert pid != os.getpid()


def test_a_process_sends_the_traceback_along(procs: int, processes: ProcessPoolExecutor) -> None:
    async def main() -> None:
        await offload(processes, work.fail, "over there")

    with pytest.raises(LookupError, match="over there") as failure:
        gofer.run(main, procs=procs)
    assert "in fail" in str(failure.value.__cause__)


def test_what_cannot_be_pickled_says_so(procs: int, processes: ProcessPoolExecutor) -> None:
    async def main() -> None:
        with pytest.raises(Exception, match="pickle"):
            await offload(processes, work.size, threading.Lock())  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"pickle|get local object"):  # so says 3.13
            await offload(processes, work.unpicklable)
        assert await offload(processes, work.add, 1, 2) == 3

    gofer.run(main, procs=procs)


def test_large_arguments_and_results(procs: int, processes: ProcessPoolExecutor) -> None:
    async def main() -> None:
        size = 20_000_000
        calls = [
            gofer.go(wait_for, offload(processes, work.zeros, size)),
            gofer.go(wait_for, offload(processes, work.size, bytes(size))),
        ]
        ticks = 0
        while not all(g.done() for g in calls):
            await gofer.sleep(0.001)
            ticks += 1
        assert len(await calls[0]) == await calls[1] == size
        assert ticks > 1

    gofer.run(main, procs=procs)


def test_a_call_in_a_process_that_runs_is_not_waited_for(
    procs: int, processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    async def main() -> None:
        g = gofer.go(wait_for, offload(processes, work.wait_for_file, str(begun), str(go_on)))
        await until(begun.exists)
        g.cancel()
        assert await cancelled(g)
        assert not go_on.exists()
        assert await offload(processes, work.add, 1, 2) == 3  # by the other process

    gofer.run(main, procs=procs)
    go_on.touch()


def test_the_run_ends_while_a_process_works(
    procs: int, processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    async def main() -> None:
        gofer.go(wait_for, offload(processes, work.wait_for_file, str(begun), str(go_on)))
        await until(begun.exists)

    gofer.run(main, procs=procs)
    assert not go_on.exists()
    go_on.touch()


@pytest.mark.parametrize("death", [work.end, work.kill, None], ids=["exit", "SIGKILL", "outside"])
def test_a_worker_that_dies_gives_its_error_to_all_who_wait(
    procs: int, own_processes: ProcessPoolExecutor, death: Callable[[], None] | None, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "never"

    async def main() -> None:
        if death is not None:
            calls = [gofer.go(wait_for, offload(own_processes, death))]
        else:
            wait = offload(own_processes, work.wait_for_file, str(begun), str(go_on))
            calls = [gofer.go(wait_for, wait)]
        await until(lambda: calls[0].state in ("waiting", "dead"))  # it is the first in the queue
        calls += [gofer.go(wait_for, offload(own_processes, work.add, i, i)) for i in range(5)]
        if death is None:
            await until(begun.exists)
            (pid,) = own_processes._processes
            os.kill(pid, signal.SIGKILL)
        for g in calls:
            with pytest.raises(BrokenProcessPool):
                await g
        with pytest.raises(BrokenProcessPool):
            await offload(own_processes, work.add, 1, 2)

    gofer.run(main, procs=procs)


# --- Interpreters --------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 14), reason="InterpreterPoolExecutor is new in 3.14")
def test_interpreters_carry_out_calls(procs: int) -> None:
    from concurrent.futures import InterpreterPoolExecutor  # type: ignore[attr-defined]

    async def main() -> None:
        with InterpreterPoolExecutor(2) as pool:
            calls = [gofer.go(wait_for, offload(pool, pow, i, 2)) for i in range(20)]
            assert [await g for g in calls] == [i * i for i in range(20)]
            with pytest.raises(ZeroDivisionError):
                await offload(pool, divmod, 1, 0)
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.01):
                    await offload(pool, time.sleep, 0.1)
            assert await offload(pool, len, "abc") == 3

    gofer.run(main, procs=procs)
