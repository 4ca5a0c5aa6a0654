"""block(): operations in plain code, in threads that are no goroutines."""

import math
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

import gofer
from gofer import context
from tests.support import PATIENCE, Program, give, parked, sleep_long, thread, until, wait_for


def beside(foreign: Callable[[], object], procs: int) -> Any:
    """Run a function in a foreign thread while a runtime runs; its result or exception."""
    result: list[Any] = []

    async def main() -> None:
        with thread(lambda: result.append(foreign())) as t:
            await until(lambda: not t.is_alive())

    gofer.run(main, procs=procs)
    return result[0]


# --- What it can wait for -------------------------------------------------------------------------


def test_channels(procs: int) -> None:
    async def double(inbox: gofer.Chan[int], outbox: gofer.Chan[int]) -> None:
        async for value in inbox:
            await outbox.send(2 * value)
        outbox.close()

    def foreign() -> list[int]:
        inbox, outbox = gofer.Chan[int](), gofer.Chan[int]()
        gofer.go(double, inbox, outbox)
        got = []
        for i in range(20):
            gofer.block(inbox.send(i))
            got.append(gofer.block(outbox.recv()))
        inbox.close()
        assert gofer.block(outbox.recv_ok()) == (None, False)
        with pytest.raises(gofer.ChannelClosed):
            gofer.block(outbox.recv())
        return got

    assert beside(foreign, procs) == [2 * i for i in range(20)]


def test_select(procs: int) -> None:
    def foreign() -> None:
        a, b = gofer.Chan[int](), gofer.Chan[int](1)
        b.send_nowait(5)
        assert gofer.block(gofer.select(a.recv(), b.recv())) == (1, 5, True)
        assert gofer.block(gofer.select(a.recv(), default=True)).index == -1
        assert gofer.block(gofer.select(a.recv(), gofer.sleep(0.001))).index == 1
        gofer.go(wait_for, a.send(7))
        assert gofer.block(gofer.select(a.recv(), b.recv())) == (0, 7, True)

    beside(foreign, procs)


def test_sleep(procs: int) -> None:
    def foreign() -> float:
        start = time.monotonic()
        gofer.block(gofer.sleep(0.005))
        return time.monotonic() - start

    assert beside(foreign, procs) >= 0.005


def test_gosched_does_nothing(procs: int) -> None:
    def foreign() -> None:
        for _ in range(10):
            gofer.block(gofer.gosched())

    beside(foreign, procs)


def test_a_goroutine(procs: int) -> None:
    async def fails() -> None:
        await gofer.gosched()
        raise KeyError("its own")

    def foreign() -> int:
        with pytest.raises(KeyError, match="its own"):
            gofer.block(gofer.go(fails))
        g = gofer.go(sleep_long)
        g.cancel()
        with pytest.raises(gofer.Cancelled):  # the goroutine's own
            gofer.block(g)
        return int(gofer.block(gofer.go(give, 7)))

    assert beside(foreign, procs) == 7


def test_a_coroutine(procs: int) -> None:
    async def work(n: int) -> int:
        assert gofer.current().id > 1  # it has a goroutine of its own
        await gofer.sleep(0.001)
        if n < 0:
            raise ValueError(n)
        return n + int(await gofer.go(give, 1))

    def foreign() -> int:
        with pytest.raises(ValueError, match="-1"):
            gofer.block(work(-1))
        return gofer.block(work(4))

    assert beside(foreign, procs) == 5


def test_any_awaitable(procs: int) -> None:
    class Thing:
        def __await__(self) -> Generator[Any, Any, str]:
            yield from gofer.sleep(0.001).__await__()
            return "thing"

    assert beside(lambda: gofer.block(Thing()), procs) == "thing"


def test_many_threads_at_once(procs: int) -> None:
    ch = gofer.Chan[int]()
    got: list[int] = []

    def producer(k: int) -> None:
        for i in range(20):
            gofer.block(ch.send(100 * k + i))

    def consumer() -> None:
        for _ in range(20):
            got.append(gofer.block(ch.recv()))  # noqa: PERF401

    async def main() -> None:
        with (
            thread(producer, 0),
            thread(producer, 1),
            thread(consumer),
            thread(consumer),
        ):
            await until(lambda: len(got) == 40)

    gofer.run(main, procs=procs)
    assert sorted(got) == [100 * k + i for k in range(2) for i in range(20)]


def test_a_thread_is_no_goroutine(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        op = ch.recv()
        with thread(lambda: gofer.block(op)):
            await until(lambda: repr(op).endswith("waiting>"))
            assert gofer.num_goroutine() == 1
            await ch.send(1)

    gofer.run(main, procs=procs)


def test_the_main_thread_can_block_while_another_runs_the_runtime(procs: int) -> None:
    boxes: list[gofer.Chan[str]] = []

    async def main() -> None:
        stop = gofer.Chan[str]()
        boxes.append(stop)
        assert await stop.recv() == "stop"

    with thread(lambda: gofer.run(main, procs=procs)):
        while not boxes:
            time.sleep(0.0005)
        assert gofer.block(wait_for(gofer.go(give, 3))) == 3
        gofer.block(boxes[0].send("stop"))


# --- Time -----------------------------------------------------------------------------------------


def test_when_time_is_up_the_operation_is_taken_back(procs: int) -> None:
    ch = gofer.Chan[int]()

    def foreign() -> None:
        for op in (ch.recv(), ch.send(1), gofer.select(ch.recv(), ch.send(2))):
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                gofer.block(op, timeout=0.003)
            assert time.monotonic() - start >= 0.003
            with pytest.raises(gofer.WouldBlock):
                ch.recv_nowait()
            with pytest.raises(gofer.WouldBlock):
                ch.send_nowait(3)
        with pytest.raises(TimeoutError):
            gofer.block(gofer.sleep(100_000), timeout=0.001)
        with pytest.raises(TimeoutError):
            gofer.block(gofer.select(), 0.001)

    beside(foreign, procs)


def test_a_goroutine_goes_on_when_time_is_up(procs: int) -> None:
    async def slow(ch: gofer.Chan[int]) -> int:
        return await ch.recv()

    def foreign() -> int:
        ch = gofer.Chan[int]()
        g = gofer.go(slow, ch)
        with pytest.raises(TimeoutError):
            gofer.block(g, timeout=0.002)
        gofer.block(ch.send(5))
        return gofer.block(g, timeout=30)

    assert beside(foreign, procs) == 5


def in_plain_goroutine(fn: Callable[[], object], procs: int) -> None:
    gofer.run(fn, procs=procs)


@pytest.mark.parametrize("where", [beside, in_plain_goroutine])
@pytest.mark.parametrize("timeout", [0, -1, 0.0])
def test_without_time_it_does_what_can_be_done_at_once(
    timeout: float, where: Callable[[Callable[[], object], int], object], procs: int
) -> None:
    async def receive(ch: gofer.Chan[int]) -> int:
        await gofer.gosched()
        await gofer.sleep(0)
        return await ch.recv()

    class Receives:
        def __init__(self, ch: gofer.Chan[int]) -> None:
            self.ch = ch

        def __await__(self) -> Generator[Any, Any, int]:
            return self.ch.recv().__await__()

    def plain() -> None:
        ch, mu, ended = gofer.Chan[int](1), gofer.Mutex(), gofer.go(give, 5)
        gofer.block(ended)
        assert gofer.block(ended, timeout=timeout) == 5
        gofer.block(gofer.gosched(), timeout=timeout)
        gofer.block(mu.lock(), timeout=timeout)
        with pytest.raises(TimeoutError):
            gofer.block(mu.lock(), timeout=timeout)
        awaitables: list[Callable[[], Awaitable[Any]]] = [
            ch.recv,
            lambda: receive(ch),
            lambda: Receives(ch),
            lambda: gofer.go(receive, ch),
            lambda: gofer.select(ch.recv(), gofer.sleep(1000)),
        ]
        for make in awaitables:
            with pytest.raises(TimeoutError, match=r"block\(\) timed out"):
                gofer.block(make(), timeout=timeout)
        gofer.block(gofer.sleep(0.001))
        gofer.block(ch.send(1))  # the goroutine's, which goes on
        for make in (ch.recv, lambda: receive(ch), lambda: Receives(ch)):
            ch.send_nowait(1)
            assert gofer.block(make(), timeout=timeout) == 1
        gofer.block(ch.send(1), timeout=timeout)
        with pytest.raises(TimeoutError):
            gofer.block(ch.send(2), timeout=timeout)
        assert len(ch) == 1

    where(plain, procs)


def test_without_time_to_poll_is_to_wait(procs: int) -> None:
    async def poll() -> None:
        while True:
            await gofer.gosched()

    def plain() -> None:
        with pytest.raises(TimeoutError):
            gofer.block(poll(), timeout=0)

    gofer.run(plain, procs=procs)


def test_without_time_what_is_no_operation_is_told_where_it_is_awaited(procs: int) -> None:
    class Foreign:
        def __await__(self) -> Generator[Any, Any, None]:
            yield 5

    async def recovers() -> str:
        with pytest.raises(TypeError, match="cannot await 5"):
            await Foreign()
        return "recovered"

    async def fails() -> None:
        try:
            await Foreign()
        finally:
            log.append("finally")

    def plain() -> None:
        assert gofer.block(recovers(), timeout=0) == "recovered"
        with pytest.raises(TypeError, match="cannot await 5"):
            gofer.block(fails(), timeout=0)
        assert log == ["finally"]

    log: list[str] = []
    gofer.run(plain, procs=procs)


def test_without_time_other_ends_are_not_hidden(procs: int) -> None:
    async def fails() -> None:
        raise KeyError("its own")

    async def cleans_up(ch: gofer.Chan[int]) -> int:
        try:
            return await ch.recv()
        except gofer.Cancelled:
            return -1

    def cancelled(ch: gofer.Chan[int]) -> None:
        gofer.current().cancel()
        gofer.block(ch.recv(), timeout=0)

    def plain() -> None:
        ch = gofer.Chan[int](1)
        with pytest.raises(KeyError, match="its own"):
            gofer.block(fails(), timeout=0)
        assert gofer.block(cleans_up(ch), timeout=0) == -1
        ch.send_nowait(1)
        with pytest.raises(gofer.Cancelled):
            gofer.block(gofer.go(cancelled, ch))
        assert len(ch) == 1
        with pytest.raises(gofer.Cancelled):
            gofer.block(within_cancelled(ch))
        assert len(ch) == 1

    async def within_cancelled(ch: gofer.Chan[int]) -> None:
        ctx = context.with_cancel()

        def receive() -> None:
            ctx.cancel()
            gofer.block(ch.recv(), timeout=0)

        async with context.with_cancel(ctx):
            g = gofer.go(receive)
            async with context.shield():
                await g

    gofer.run(plain, procs=procs)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (math.nan, ValueError),
        (math.inf, ValueError),
        ("1", TypeError),
        ([], TypeError),
    ],
)
def test_a_bad_timeout_is_refused(timeout: Any, error: type[Exception]) -> None:
    ch = gofer.Chan[int](1)

    def foreign() -> None:
        with pytest.raises(error):
            gofer.block(ch.send(1), timeout=timeout)

    beside(foreign, 1)
    assert len(ch) == 0


# --- Bad use --------------------------------------------------------------------------------------


def test_in_a_goroutine_it_says_await(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int](1)
        with pytest.raises(RuntimeError, match="await"):
            gofer.block(ch.send(1))
        assert len(ch) == 0
        with pytest.raises(RuntimeError, match="await"):
            gofer.block(gofer.sleep(0), timeout=1)
        coro = give(1)
        with pytest.raises(RuntimeError, match="await"):
            gofer.block(coro)
        assert await coro == 1  # it has not been touched

    gofer.run(main, procs=procs)


def test_without_a_runtime_it_is_a_runtime_error() -> None:
    ch = gofer.Chan[int](1)
    with pytest.raises(RuntimeError, match="running runtime"):
        gofer.block(ch.send(1))
    with pytest.raises(RuntimeError, match="running runtime"):
        gofer.block(ch.recv(), timeout=1)
    assert len(ch) == 0
    coro = give(1)
    with pytest.raises(RuntimeError, match="running runtime"):
        gofer.block(coro)
    coro.close()


@pytest.mark.parametrize("op", [None, 5, "op", [], give])
def test_what_cannot_be_awaited_is_a_type_error_that_names_it(op: Any) -> None:
    def foreign() -> None:
        with pytest.raises(TypeError) as info:
            gofer.block(op)
        assert repr(op) in str(info.value)

    beside(foreign, 1)


def test_wrong_argument_counts_are_type_errors() -> None:
    with pytest.raises(TypeError):
        gofer.block()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        gofer.block(gofer.sleep(0), 1, 2)  # type: ignore[call-arg]


def test_an_operation_can_be_used_once(procs: int) -> None:
    def foreign() -> None:
        op = gofer.sleep(0)
        gofer.block(op)
        with pytest.raises(RuntimeError, match="awaited already"):
            gofer.block(op)
        late = gofer.Chan[int]().recv()
        with pytest.raises(TimeoutError):
            gofer.block(late, timeout=0.001)
        with pytest.raises(RuntimeError, match="awaited already"):
            gofer.block(late)

    beside(foreign, procs)


def test_an_operation_that_a_goroutine_awaits_is_refused(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        op = ch.recv()
        g = gofer.go(wait_for, op)
        await parked(g)

        def foreign() -> None:
            with pytest.raises(RuntimeError, match="already awaited by another goroutine"):
                gofer.block(op)

        with thread(foreign) as t:
            await until(lambda: not t.is_alive())
        await ch.send(1)
        assert await g == 1

    gofer.run(main, procs=procs)


# --- The end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["operation", "coroutine"])
def test_when_the_run_ends_the_thread_is_told(kind: str, procs: int) -> None:
    errors: list[BaseException] = []
    ready: list[bool] = []
    ch = gofer.Chan[int]()

    def foreign() -> None:
        op = ch.recv() if kind == "operation" else sleep_long()
        ready.append(True)
        try:
            gofer.block(op)
        except (RuntimeError, gofer.Cancelled) as exc:
            errors.append(exc)

    async def main() -> None:
        t.start()
        await until(lambda: ready)
        await gofer.sleep(0.002)  # so that it blocks, most likely

    t = threading.Thread(target=foreign, daemon=True)
    gofer.run(main, procs=procs)
    t.join(PATIENCE)
    assert not t.is_alive()
    if kind == "operation":
        assert "ended" in str(errors[0])
    assert len(errors) == 1
    with pytest.raises(gofer.WouldBlock):
        ch.send_nowait(1)  # nobody waits there any more


def test_with_needs_no_runtime_and_outlives_one(procs: int) -> None:
    mu = gofer.Mutex()
    log: list[str] = []

    def foreign() -> None:
        log.append("comes")
        with mu:
            log.append("has it")

    async def main() -> None:
        await mu.lock()
        t.start()
        await until(lambda: log)
        await gofer.sleep(0.002)  # so that it waits, most likely

    t = threading.Thread(target=foreign, daemon=True)
    gofer.run(main, procs=procs)
    assert log == ["comes"]
    mu.unlock()
    t.join(PATIENCE)
    assert log == ["comes", "has it"]
    assert not mu.locked()


def test_the_next_run_is_not_disturbed_by_the_threads_of_the_last(procs: int) -> None:
    """Threads that block again and again, through the end of one run and the start of another."""
    stop = False
    ended: list[int] = []

    def foreign() -> None:
        while not stop:
            try:
                ended.append(gofer.block(gofer.go(give, 1), timeout=PATIENCE))
            except RuntimeError:  # between two runs, or at the end of one
                time.sleep(0.0001)
            except gofer.Cancelled:
                pass

    async def main() -> None:
        n = len(ended)
        await until(lambda: len(ended) > n)

    with thread(foreign), thread(foreign):
        try:
            for _ in range(10):
                gofer.run(main, procs=procs)
        finally:
            stop = True


def test_ctrl_c_interrupts_the_main_thread() -> None:
    program = Program(
        """
        import threading
        import gofer

        async def main():
            ready.set()
            await stop.recv_ok()

        ready = threading.Event()
        stop = gofer.Chan()
        t = threading.Thread(target=gofer.run, args=[main])
        t.start()
        ready.wait()
        ch = gofer.Chan()
        print("blocks", flush=True)
        try:
            gofer.block(ch.recv())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        try:
            ch.send_nowait(1)
        except gofer.WouldBlock:
            print("taken back", flush=True)
        stop.close()
        t.join()
        """
    )
    program.expect("blocks")
    time.sleep(0.1)  # so that it is in block(), most likely
    program.interrupt()
    assert program.finish().check() == "interrupted\ntaken back\n"
