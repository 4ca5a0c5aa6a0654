"""await of a concurrent.futures.Future."""

import asyncio
import contextlib
import gc
import inspect
import threading
import time
import traceback
import warnings
import weakref
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pytest

import gofer
from gofer import context
from tests.future_support import cancelled
from tests.support import (
    PATIENCE,
    Program,
    os_threads,
    parked,
    run_program,
    thread,
    wait_for,
)


def complete_later(future: "Future[Any]", value: Any, delay: float = 0.05) -> None:
    time.sleep(delay)
    future.set_result(value)


def test_gives_the_result(procs: int) -> None:
    async def main() -> object:
        future: Future[str] = Future()
        g = gofer.go(wait_for, future)
        await parked(g)
        assert g.wait_reason == "future wait"
        future.set_result("here")
        return await g

    assert gofer.run(main, procs=procs) == "here"


def test_wakes_from_any_thread(procs: int) -> None:
    async def main() -> object:
        future: Future[str] = Future()
        with thread(complete_later, future, "from outside"):
            return await future

    assert gofer.run(main, procs=procs) == "from outside"


def test_raises_the_exception_with_its_traceback(procs: int) -> None:
    def fails() -> None:
        raise LookupError("no such thing")

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            await pool.submit(fails)

    with pytest.raises(LookupError, match="no such thing") as failure:
        gofer.run(main, procs=procs)
    assert "fails" in [frame.name for frame in traceback.extract_tb(failure.value.__traceback__)]


def test_any_number_of_goroutines_may_wait_for_one(procs: int) -> None:
    async def main() -> list[object]:
        future: Future[object] = Future()
        waiters = [gofer.go(wait_for, future) for _ in range(100)]
        await parked(*waiters)
        threading.Thread(target=future.set_result, args=("for all",)).start()
        return [await g for g in waiters]

    assert gofer.run(main, procs=procs) == ["for all"] * 100


def test_a_failure_reaches_every_waiter(procs: int) -> None:
    async def main() -> list[BaseException | None]:
        future: Future[object] = Future()
        waiters = [gofer.go(wait_for, future) for _ in range(20)]
        await parked(*waiters)
        future.set_exception(LookupError("for all"))
        for g in waiters:
            with pytest.raises(LookupError):
                await g
        return [g.exception() for g in waiters]

    found = gofer.run(main, procs=procs)
    assert len(found) == 20
    assert {str(exc) for exc in found} == {"for all"}


def test_one_that_is_done_does_not_suspend() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def other() -> None:
            seen.append("other")

        future: Future[str] = Future()
        future.set_result("done")
        g = gofer.go(other)
        seen += [await future for _ in range(5)]
        await g
        return seen

    assert gofer.run(main, procs=1) == ["done"] * 5 + ["other"]


def test_a_loop_over_done_ones_lets_others_run() -> None:
    async def main() -> int:
        stop = []

        async def other() -> None:
            stop.append(True)

        future: Future[None] = Future()
        future.set_result(None)
        gofer.go(other)
        rounds = 0
        deadline = time.monotonic() + PATIENCE
        while not stop and time.monotonic() < deadline:
            await future
            rounds += 1
        assert stop
        return rounds

    assert gofer.run(main, procs=1) > 0


def test_a_cancelled_one_raises_its_own_cancelled_error(procs: int) -> None:
    async def main() -> None:
        future: Future[None] = Future()
        g = gofer.go(wait_for, future)
        await parked(g)
        assert future.cancel()
        with pytest.raises(CancelledError):
            await g
        assert not g.cancelled()  # that is another matter
        with pytest.raises(CancelledError):
            await future

    gofer.run(main, procs=procs)


def test_cancelling_who_waits_does_not_cancel_the_future(procs: int) -> None:
    """It is somebody else's, and others may wait for it."""

    async def main() -> object:
        future: Future[str] = Future()
        first, second = gofer.go(wait_for, future), gofer.go(wait_for, future)
        await parked(first, second)
        first.cancel()
        assert await cancelled(first)
        assert not future.cancelled()
        future.set_result("for the other")
        return await second

    assert gofer.run(main, procs=procs) == "for the other"


def test_a_result_that_is_there_comes_before_a_cancellation() -> None:
    async def main() -> list[str]:
        future: Future[str] = Future()
        got: list[str] = []

        async def waiter() -> None:
            got.append(await future)
            await gofer.sleep(0)
            got.append("not reached")

        g = gofer.go(waiter)
        await parked(g)
        future.set_result("the result")
        g.cancel()
        assert await cancelled(g)
        return got

    assert gofer.run(main, procs=1) == ["the result"]


@pytest.mark.parametrize("how", ["timeout", "context", "block"])
def test_waiting_may_be_limited(procs: int, how: str) -> None:
    async def main() -> None:
        future: Future[None] = Future()
        if how == "timeout":
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.01):
                    await future
        elif how == "context":
            async with context.with_cancel() as ctx:
                gofer.after_func(0.01, ctx.cancel)
                await future
        else:

            def plain() -> None:
                with pytest.raises(TimeoutError):
                    gofer.block(future, timeout=0.01)

            await gofer.go(plain)
        assert not future.cancelled()
        future.set_result(None)
        await future

    gofer.run(main, procs=procs)


def test_waits_that_were_given_up_leave_nothing_in_the_future() -> None:
    """A callback cannot be taken back, so there is one for all of them."""

    async def main() -> None:
        future: Future[None] = Future()
        for _ in range(50):
            with contextlib.suppress(TimeoutError):
                async with gofer.timeout(0):
                    await future
            with contextlib.suppress(TimeoutError):
                async with gofer.timeout(0.0001):
                    await future
        assert len(future._done_callbacks) == 1  # type: ignore[attr-defined]

    gofer.run(main)


def test_waiting_costs_no_thread() -> None:
    async def main() -> int:
        futures: list[Future[int]] = [Future() for _ in range(500)]
        waiters = [gofer.go(wait_for, future) for future in futures]
        await parked(*waiters)
        threads = len(os_threads())
        for i, future in enumerate(futures):
            future.set_result(i)
        assert [await g for g in waiters] == list(range(500))
        return threads

    before = len(os_threads())
    assert gofer.run(main, procs=2) - before < 10


def test_subclasses_can_be_awaited(procs: int) -> None:
    class Mine(Future[str]):
        pass

    async def main() -> str:
        future = Mine()
        with thread(complete_later, future, "mine"):
            return await future  # type: ignore[misc, no-any-return]

    assert gofer.run(main, procs=procs) == "mine"


def test_plain_code_waits_with_block(procs: int) -> None:
    async def main() -> tuple[object, object]:
        a: Future[str] = Future()
        b: Future[str] = Future()
        g = gofer.go(gofer.block, a)
        got: list[object] = []
        with thread(lambda: got.append(gofer.block(b))):
            a.set_result("plain")
            b.set_result("foreign")
            await g
        return await g, got[0]

    assert gofer.run(main, procs=procs) == ("plain", "foreign")


def test_wait_future_is_the_operation_behind_it(procs: int) -> None:
    async def main() -> str:
        future: Future[str] = Future()
        operation = gofer.wait_future(future)
        assert isinstance(operation, gofer.Operation)
        assert repr(operation).startswith("<wait for <Future at ")
        assert repr(operation).endswith("not awaited>")
        future.set_result("result")
        assert await operation == "result"
        with pytest.raises(RuntimeError, match="awaited already"):
            await operation
        return await gofer.wait_future(future)

    assert gofer.run(main, procs=procs) == "result"


def test_one_operation_is_for_one_goroutine(procs: int) -> None:
    async def main() -> None:
        future: Future[str] = Future()
        operation = gofer.wait_future(future)
        g = gofer.go(wait_for, operation)
        await parked(g)
        with pytest.raises(RuntimeError, match="another goroutine"):
            await operation
        future.set_result("one")
        assert await g == "one"

    gofer.run(main, procs=procs)


def test_an_operation_needs_a_goroutine() -> None:
    future: Future[None] = Future()
    operation = gofer.wait_future(future)
    with pytest.raises(RuntimeError, match="inside a goroutine"):
        next(operation.__await__())


@pytest.mark.parametrize("wrong", [None, 1, "x", asyncio, Future])
def test_wait_future_wants_a_future(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"needs a concurrent\.futures\.Future"):
        gofer.wait_future(wrong)


# --- select -------------------------------------------------------------------------------------


def test_is_a_case_of_select(procs: int) -> None:
    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        a: Future[str] = Future()
        b: Future[str] = Future()
        with thread(complete_later, b, "b"):
            assert await gofer.select(ch.recv(), a, b) == (2, "b", True)
        assert await gofer.select(a, b) == (1, "b", True)
        assert await gofer.select(a, gofer.sleep(0.001)) == (1, None, True)
        assert await gofer.select(a, None, default=True) == (-1, None, False)
        assert not a.cancelled()  # it has lost three times, but is not ours
        a.set_result("a")
        assert await gofer.select(ch.recv(), a, default=True) == (1, "a", True)

    gofer.run(main, procs=procs)


def test_in_a_select_it_can_be_there_twice(procs: int) -> None:
    async def main() -> tuple[int, object, bool]:
        future: Future[str] = Future()
        with thread(complete_later, future, "x"):
            return await gofer.select(future, future)

    index, value, ok = gofer.run(main, procs=procs)
    assert index in (0, 1)
    assert (value, ok) == ("x", True)


def test_each_of_the_done_ones_is_selected_now_and_then() -> None:
    async def main() -> set[int]:
        a: Future[int] = Future()
        b: Future[int] = Future()
        a.set_result(0)
        b.set_result(1)
        return {(await gofer.select(a, b)).index for _ in range(200)}

    assert gofer.run(main) == {0, 1}


def test_its_failure_comes_out_of_the_select(procs: int) -> None:
    async def main() -> None:
        future: Future[None] = Future()
        ch: gofer.Chan[int] = gofer.Chan()
        g = gofer.go(wait_for, gofer.select(future, ch.recv()))
        await parked(g)
        future.set_exception(LookupError("lost"))
        with pytest.raises(LookupError, match="lost"):
            await g
        with pytest.raises(LookupError, match="lost"):
            await gofer.select(future, ch.recv())

    gofer.run(main, procs=procs)


def test_a_select_that_is_cancelled_leaves_the_future_alone(procs: int) -> None:
    async def main() -> None:
        future: Future[str] = Future()
        g = gofer.go(wait_for, gofer.select(future, gofer.sleep(1000)))
        await parked(g)
        g.cancel()
        assert await cancelled(g)
        future.set_result("still good")
        assert await future == "still good"

    gofer.run(main, procs=procs)


# --- Beside asyncio -----------------------------------------------------------------------------


async def nothing() -> None:
    pass


def test_asyncio_goes_on_as_before() -> None:
    gofer.run(nothing)

    async def main(pool: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        future = pool.submit(pow, 2, 5)
        assert not asyncio.isfuture(future)
        assert asyncio.isfuture(asyncio.wrap_future(future))
        assert await asyncio.wrap_future(future) == 32
        assert await loop.run_in_executor(pool, pow, 2, 6) == 64
        assert await asyncio.gather(pool.submit(pow, 2, 7), asyncio.sleep(0, 8)) == [128, 8]
        assert await future == 32
        pending: Future[None] = Future()
        task = asyncio.ensure_future(pending)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pending.cancelled()  # as wrap_future() does

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(main(pool))


def test_asyncio_in_a_goroutine_awaits_with_asyncio(procs: int) -> None:
    """Whoever drives the coroutine counts, not whose thread it is."""

    async def inner(pool: ThreadPoolExecutor) -> int:
        return await pool.submit(pow, 3, 3)  # type: ignore[misc, no-any-return]

    async def main() -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            plain = await gofer.go(lambda: asyncio.run(inner(pool)))
            return [plain, asyncio.run(inner(pool)), await inner(pool)]

    assert gofer.run(main, procs=procs) == [27, 27, 27]


def test_a_run_inside_a_loop_awaits_with_gofer(procs: int) -> None:
    """As in a notebook, whose cells run in a loop."""

    async def goroutine() -> str:
        future: Future[str] = Future()
        with thread(complete_later, future, "gofer"):
            return await future  # type: ignore[misc, no-any-return]

    async def main() -> tuple[str, int]:
        result = gofer.run(goroutine, procs=procs)
        with ThreadPoolExecutor(1) as pool:
            return result, await pool.submit(pow, 2, 3)  # type: ignore[misc]

    assert asyncio.run(main()) == ("gofer", 8)


def test_only_a_run_makes_futures_awaitable_not_the_import() -> None:
    end = run_program(
        """
        import inspect
        from concurrent.futures import Future
        import gofer
        before = inspect.isawaitable(Future()), hasattr(Future, "__await__")
        async def main(): pass
        gofer.run(main)
        print(before, inspect.isawaitable(Future()))
        """
    )
    assert end.check() == "(False, False) True\n"


def test_an_await_that_is_there_already_is_left_alone() -> None:
    end = run_program(
        """
        from concurrent.futures import Future
        import gofer
        def mine(self):
            return (yield from gofer.sleep(0).__await__()) or "mine"
        Future.__await__ = mine
        async def main():
            return await Future()
        print(gofer.run(main), Future.__await__ is mine)
        """
    )
    assert end.check() == "mine True\n"


def test_futures_are_awaitable_for_inspect() -> None:
    gofer.run(nothing)
    assert inspect.isawaitable(Future())


# --- Deadlocks and leaks ------------------------------------------------------------------------


def test_a_thread_that_may_complete_it_holds_back_the_deadlock_report(procs: int) -> None:
    async def main() -> object:
        future: Future[str] = Future()
        with thread(complete_later, future, "late", 0.3):
            return await future

    assert gofer.run(main, procs=procs) == "late"


def test_looking_for_such_threads_leaves_their_locals_alone(procs: int) -> None:
    """A frame that somebody has looked at may outlive its function, and all its locals with it."""

    class Local:
        pass

    def holds_one(future: "Future[None]") -> weakref.ref[Local]:
        local = Local()
        time.sleep(0.15)  # meanwhile the runtime asks several times whether anybody may wake it
        future.set_result(None)
        return weakref.ref(local)

    async def main() -> None:
        future: Future[None] = Future()

        def body() -> None:
            assert holds_one(future)() is None

        with thread(body):
            await future

    gofer.run(main, procs=procs)


def test_nobody_left_to_complete_it_is_a_deadlock() -> None:
    """In a process without pytest's watchdog, which is a thread like any other."""
    end = run_program(
        """
        import gofer
        from concurrent.futures import Future, ThreadPoolExecutor

        async def wait(future):
            return await future

        async def main():
            with ThreadPoolExecutor(1) as pool:  # its threads end with it
                print(await pool.submit(pow, 2, 3))
            for op in Future(), gofer.select(Future()):
                await op

        for procs in 1, 2, 4:
            try:
                gofer.run(main, procs=procs)
            except gofer.Deadlock as exc:
                print(str(exc).splitlines()[2])
        """
    )
    assert end.check() == "8\ngoroutine 1 [future wait]:\n" * 3


def test_a_thread_of_a_c_library_may_complete_it_too() -> None:
    """Such a thread has no Python frame until it calls in: here, one of the C library's timers."""
    end = run_program(
        """
        import ctypes, gofer, sys
        from concurrent.futures import Future

        class SigEvent(ctypes.Structure):
            _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int),
                        ("notify", ctypes.c_int), ("function", ctypes.c_void_p),
                        ("attributes", ctypes.c_void_p), ("pad", ctypes.c_char * 32)]
        class Times(ctypes.Structure):
            _fields_ = [(name, ctypes.c_long) for name in ("is", "ins", "s", "ns")]
        SIGEV_THREAD, MONOTONIC = 2, 1

        future = Future()
        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def complete(value):
            future.set_result("from C")

        libc = ctypes.CDLL(None, use_errno=True)
        timer = ctypes.c_void_p()
        event = SigEvent(notify=SIGEV_THREAD,
                         function=ctypes.cast(complete, ctypes.c_void_p).value)
        assert libc.timer_create(MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0

        async def main():
            when = ctypes.byref(Times(0, 0, 0, 300_000_000))
            assert libc.timer_settime(timer, 0, when, None) == 0
            assert len(sys._current_frames()) == 1
            return await future

        print(gofer.run(main, procs=1))
        """
    )
    assert end.check() == "from C\n"


def test_a_future_that_nobody_holds_is_a_leak() -> None:
    async def waits() -> None:
        await Future()  # type: ignore[misc]

    async def main() -> None:
        await parked(gofer.go(waits))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                gc.collect()
                await gofer.sleep(0.001)
        (warning,) = [w for w in caught if w.category is gofer.GoroutineLeakWarning]
        assert "future wait" in str(warning.message)

    gofer.run(main, procs=1)


def test_the_end_of_the_run_ends_the_waiting(procs: int) -> None:
    futures: list[Future[str]] = [Future() for _ in range(10)]
    ended: list[int] = []

    async def waits(i: int) -> None:
        try:
            await futures[i]
        finally:
            ended.append(i)

    async def main() -> None:
        await parked(*[gofer.go(waits, i) for i in range(10)])

    gofer.run(main, procs=procs)
    assert sorted(ended) == list(range(10))
    for future in futures:  # nobody is there any more
        assert not future.done()
        future.set_result("too late")


def test_one_that_an_aborted_run_waited_for_may_be_completed_later() -> None:
    program = Program(
        """
        import gofer
        from concurrent.futures import Future

        future = Future()
        async def waits():
            await future
        async def sleeps():
            await gofer.sleep(1000)
        async def main():
            gofer.go(waits)
            gofer.go(sleeps)  # so this is no deadlock
            while True:
                try:
                    print("waits", flush=True)
                    await future
                except gofer.Cancelled:
                    pass  # once too often: a second Ctrl-C is needed
        try:
            gofer.run(main, procs=2)
        except KeyboardInterrupt:
            future.set_result(1)
            async def again():
                return await future
            print(gofer.run(again))
        """
    )
    program.expect("waits")
    program.interrupt()
    program.expect("waits")
    program.interrupt()
    assert program.finish().check() == "1\n"
