"""timeout(): TimeoutError at the edge of the block, and only there."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import gofer
from gofer import _core, context
from tests.support import parked, sleep_long, spin, thread, until


def test_a_block_that_takes_too_long_ends_with_timeout_error(procs: int) -> None:
    async def main() -> None:
        start = time.monotonic()
        with pytest.raises(TimeoutError) as info:
            async with gofer.timeout(0.01):
                await gofer.sleep(100_000)
        assert 0.01 <= time.monotonic() - start < 10
        assert isinstance(info.value.__cause__, gofer.Cancelled)
        await gofer.sleep(0.001)  # all is well again

    gofer.run(main, procs=procs)


def test_a_block_that_is_fast_enough_is_left_alone(procs: int) -> None:
    async def main() -> None:
        async with gofer.timeout(1000):
            await gofer.sleep(0.001)
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_inside_it_is_cancelled_that_is_raised_again_and_again() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await block()
        assert len(seen) == 3
        assert all(isinstance(exc.reason, TimeoutError) for exc in seen)

    async def block() -> None:
        async with gofer.timeout(0.005):
            try:
                await gofer.sleep(100_000)
            except Exception:
                pytest.fail("Cancelled is no Exception")
            finally:
                for _ in range(3):
                    with pytest.raises(gofer.Cancelled) as info:
                        await gofer.gosched()
                    seen.append(info.value)

    seen: list[gofer.Cancelled] = []

    gofer.run(main)


def test_a_block_that_swallows_it_ends_as_it_likes() -> None:
    async def main() -> None:
        async with gofer.timeout(0.005):
            with pytest.raises(gofer.Cancelled):
                await gofer.sleep(100_000)
        with pytest.raises(ValueError, match="mine"):
            await block()

    async def block() -> None:
        async with gofer.timeout(0.005):
            try:
                await gofer.sleep(100_000)
            finally:
                raise ValueError("mine")

    gofer.run(main)


def test_a_late_block_without_an_operation_is_not_interrupted() -> None:
    async def main() -> None:
        async with gofer.timeout(0.001):
            spin(0.005)

    gofer.run(main)


def test_after_the_time_the_next_operation_raises(procs: int) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await block()

    async def block() -> None:
        async with gofer.timeout(0.001):
            spin(0.02)
            while True:  # the timer may fire a little later than it is due
                await gofer.gosched()

    gofer.run(main, procs=procs)


def test_zero_and_less_leave_no_time_at_all() -> None:
    async def main() -> None:
        for seconds in (0, 0.0, -0.0, -1, -1e308):
            with pytest.raises(TimeoutError):
                await block(seconds)
        assert began == [0, 0, 0, -1, -1e308]

    async def block(seconds: float) -> None:
        async with gofer.timeout(seconds):
            began.append(seconds)
            await gofer.sleep(0)

    began: list[float] = []

    gofer.run(main)


def test_none_is_no_limit() -> None:
    async def main() -> None:
        async with gofer.timeout(None) as ctx:
            await gofer.sleep(0.002)
            assert ctx.deadline is None
            assert _core.counters()["timers"] == 0

    gofer.run(main)


def test_a_huge_one_never_ends() -> None:
    async def main() -> None:
        for seconds in (4.6e9, 1e10, 1e300, 2**62, 10**30):
            async with gofer.timeout(seconds):
                await gofer.sleep(0.001)

    gofer.run(main)


def test_it_is_a_context() -> None:
    async def main() -> None:
        outer = context.current()
        start = time.monotonic()
        async with gofer.timeout(1000) as ctx:
            assert isinstance(ctx, context.Context)
            assert context.current() is ctx
            assert ctx.deadline is not None
            assert start + 1000 - 1e-6 <= ctx.deadline <= time.monotonic() + 1000
            assert ctx.err() is None
            assert repr(ctx).startswith("context.Background.WithDeadline(")
        assert context.current() is outer

    gofer.run(main)


def test_nested_the_one_whose_time_is_up_ends(procs: int) -> None:
    log = []

    async def outer() -> None:
        async with gofer.timeout(0.01):
            try:
                async with gofer.timeout(100_000):
                    await gofer.sleep(100_000)
            except TimeoutError:
                log.append("inner")  # not its own
            except gofer.Cancelled:
                log.append("cancelled")
                raise

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await outer()
        assert log == ["cancelled"]
        async with gofer.timeout(100_000):
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.005):
                    await gofer.sleep(100_000)
            await gofer.sleep(0.001)  # the outer one has time

    gofer.run(main, procs=procs)


def test_it_reaches_the_goroutines_started_inside(procs: int) -> None:
    gs: list[gofer.Goroutine[None]] = []

    async def block() -> None:
        async with gofer.timeout(0.01):
            gs.extend(gofer.go(sleep_long) for _ in range(10))
            await gs[0]

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await block()
        assert len(gs) == 10
        for g in gs:
            with pytest.raises(gofer.Cancelled):
                await g

    gofer.run(main, procs=procs)


def test_what_the_block_has_started_goes_on_after_it(procs: int) -> None:
    async def sleep_on() -> None:
        await gofer.sleep(0.03)
        await gofer.gosched()

    async def main() -> None:
        async with gofer.timeout(0.02):
            g = gofer.go(sleep_on)
        await g

    gofer.run(main, procs=procs)


def test_what_was_made_from_it_outlives_the_block(procs: int) -> None:
    """The time was that of the block: nobody's, once the block has been left in time."""

    async def main() -> None:
        async with gofer.timeout(0.2) as ctx:
            child = context.with_cancel()
            value = context.with_value("key", "value", child)
        await gofer.sleep(0.25)
        assert [c.err() for c in (ctx, child, value)] == [None] * 3
        assert value.value("key") == "value"
        async with child:
            await gofer.sleep(0.001)
        child.cancel("why")
        assert value.cause() == "why"
        late = context.with_timeout(0.005, ctx)
        assert await late.done.recv_ok() == (None, False)
        assert isinstance(late.err(), TimeoutError)

    gofer.run(main, procs=procs)


def test_every_kind_of_waiting_is_given_up(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        mu, sem, wg = gofer.Mutex(), gofer.Semaphore(1), gofer.WaitGroup()
        await mu.lock()
        await sem.acquire()
        wg.add()
        forever = gofer.go(sleep_long)
        waits: list[Callable[[], Awaitable[Any]]] = [
            ch.recv,
            lambda: ch.send(1),
            lambda: gofer.select(ch.recv(), ch.send(1)),
            gofer.select,
            mu.lock,
            sem.acquire,
            wg.wait,
            lambda: forever,
            lambda: gofer.sleep(100_000),
            gofer.after(100_000).recv,
        ]
        for wait in waits:
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.001):
                    await wait()
        with pytest.raises(gofer.WouldBlock):
            ch.recv_nowait()
        with pytest.raises(gofer.WouldBlock):
            ch.send_nowait(1)
        forever.cancel()

    gofer.run(main, procs=procs)


def test_a_thousand_at_once(procs: int) -> None:
    async def one(i: int) -> str:
        try:
            async with gofer.timeout(0.01 if i % 2 else 100_000):
                await gofer.sleep(100_000 if i % 2 else 0.01)
        except TimeoutError:
            return "late"
        return "in time"

    async def main() -> None:
        gs = [gofer.go(one, i) for i in range(1000)]
        assert [await g for g in gs] == ["in time", "late"] * 500
        await until(lambda: _core.counters()["timers"] <= 1)

    gofer.run(main, procs=procs)


def test_cancel_of_the_goroutine_passes_the_edge(procs: int) -> None:
    async def child() -> None:
        async with gofer.timeout(100_000):
            await gofer.sleep(100_000)

    async def main() -> None:
        g = gofer.go(child)
        await parked(g)
        g.cancel("why")
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value.reason == "why"

    gofer.run(main, procs=procs)


def test_a_time_must_be_a_finite_number() -> None:
    async def main() -> None:
        for seconds in (math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match=repr(seconds)):
                gofer.timeout(seconds)
        no_numbers: list[Any] = ["x", [], 1j, b"1", object]
        for no_number in no_numbers:
            with pytest.raises(TypeError) as info:
                gofer.timeout(no_number)
            assert repr(no_number) in str(info.value)

    gofer.run(main)


def test_outside_a_goroutine_it_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="outside a goroutine"):
        gofer.timeout(1)

    def foreign() -> None:
        with pytest.raises(RuntimeError, match="outside a goroutine"):
            gofer.timeout(1)

    async def main() -> None:
        with thread(foreign) as t:
            await until(lambda: not t.is_alive())

    gofer.run(main)


def test_it_is_for_one_block(procs: int) -> None:
    async def main() -> None:
        limit = gofer.timeout(10)
        async with limit:
            pass
        with pytest.raises(RuntimeError, match="make a new one"):
            async with limit:
                pass

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("how", ["recv_ok", "recv", "async for", "send", "wait"])
def test_what_others_do_because_time_is_up_does_not_end_the_block(procs: int, how: str) -> None:
    """They are in the same context, and their clean-up comes while this one still waits."""

    async def child(ch: gofer.Chan[int], wg: gofer.WaitGroup) -> None:
        try:
            await sleep_long()
        finally:
            ch.close()
            wg.done()

    async def wait(ch: gofer.Chan[int], wg: gofer.WaitGroup) -> None:
        match how:
            case "recv_ok":
                await ch.recv_ok()
            case "recv":
                await ch.recv()
            case "async for":
                async for _ in ch:
                    pass
            case "send":
                await ch.send(1)
            case _:
                await wg.wait()

    async def main() -> None:
        for _ in range(20):
            ch, wg = gofer.Chan[int](), gofer.WaitGroup()
            wg.add()
            with pytest.raises(TimeoutError):
                await within_a_moment(ch, wg)

    async def within_a_moment(ch: gofer.Chan[int], wg: gofer.WaitGroup) -> None:
        async with gofer.timeout(0.002):
            gofer.go(child, ch, wg)
            await wait(ch, wg)

    gofer.run(main, procs=procs)
