"""Ticker: every so often, in phase, and never more than one tick behind."""

import gc
import math
import time
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import PATIENCE, parked, spin, until, wait_for

ROUNDING = 1e-6  # what a float of seconds may lose of the nanoseconds behind it


def in_phase(first: float, tick: float, period: float) -> bool:
    """Whether a whole number of periods lies between the two."""
    periods = (tick - first) / period
    return abs(periods - round(periods)) < 1e-3


def test_the_first_tick_is_one_period_away() -> None:
    async def main() -> None:
        start = time.monotonic()
        ticker = gofer.Ticker(0.005)
        end = time.monotonic()
        assert start + 0.005 - ROUNDING <= await ticker.c.recv() <= end + 0.005 + ROUNDING
        assert time.monotonic() >= start + 0.005

    gofer.run(main)


def test_ticks_come_in_phase_and_never_early(procs: int) -> None:
    async def main() -> None:
        ticker = gofer.Ticker(0.002)
        first = await ticker.c.recv()
        last = first
        for _ in range(20):
            tick = await ticker.c.recv()
            assert time.monotonic() >= tick - ROUNDING
            assert tick > last
            assert in_phase(first, tick, 0.002)
            last = tick

    gofer.run(main, procs=procs)


def test_the_rate_is_kept_by_one_who_is_always_late(procs: int) -> None:
    """Time for the work of each tick does not add up."""

    async def main() -> None:
        start = time.monotonic()
        ticker = gofer.Ticker(0.01)
        for _ in range(10):
            await ticker.c.recv()
            await gofer.sleep(0.006)
        assert 0.1 <= time.monotonic() - start < 0.15

    for attempt in range(5):  # the machine may be busy
        try:
            gofer.run(main, procs=procs)
            return
        except AssertionError:
            if attempt == 4:
                raise


def test_of_the_ticks_nobody_received_the_first_is_left(procs: int) -> None:
    async def main() -> None:
        period = 0.002
        start = time.monotonic()
        ticker = gofer.Ticker(period)
        end = time.monotonic()
        for _ in range(3):
            await gofer.sleep(10 * period)
            before = time.monotonic()
            tick = await ticker.c.recv()
            assert tick <= end + period + ROUNDING
            following = await ticker.c.recv()
            assert following > before
            assert in_phase(tick, following, period)
            end = time.monotonic()
        assert start + period <= tick

    gofer.run(main, procs=procs)


def test_async_for_goes_over_the_ticks() -> None:
    async def main() -> None:
        ticks = []
        ticker = gofer.Ticker(0.001)
        async for tick in ticker:
            ticks.append(tick)
            if len(ticks) == 5:
                break
        assert ticks == sorted(set(ticks))
        async for tick in ticker.c:
            assert tick > ticks[-1]
            break

    gofer.run(main)


def test_the_channel_holds_nothing_and_stays_open() -> None:
    async def main() -> None:
        ticker = gofer.Ticker(0.001)
        await gofer.sleep(0.005)
        assert isinstance(ticker.c, gofer.RecvChan)
        assert (len(ticker.c), ticker.c.cap, ticker.c.closed) == (0, 0, False)
        ticker.stop()
        assert (len(ticker.c), ticker.c.cap, ticker.c.closed) == (0, 0, False)

    gofer.run(main)


def test_stop_takes_away_the_tick_that_is_due() -> None:
    async def main() -> None:
        ticker = gofer.Ticker(0.001)
        await gofer.sleep(0.003)
        ticker.stop()
        for _ in range(3):
            with pytest.raises(gofer.WouldBlock):
                ticker.c.recv_nowait()
            await gofer.sleep(0.002)
        ticker.stop()

    gofer.run(main)


def test_stop_leaves_a_receiver_waiting_and_reset_wakes_it(procs: int) -> None:
    async def main() -> None:
        ticker = gofer.Ticker(100_000)
        g = gofer.go(wait_for, ticker.c.recv())
        await parked(g)
        ticker.stop()
        await gofer.sleep(0.005)
        assert (g.state, g.wait_reason) == ("waiting", "chan receive")
        start = time.monotonic()
        ticker.reset(0.005)
        assert await g >= start + 0.005 - ROUNDING

    gofer.run(main, procs=procs)


def test_waiting_for_a_stopped_one_is_a_deadlock(procs: int) -> None:
    async def main() -> None:
        ticker = gofer.Ticker(0.001)
        async for _ in ticker:
            ticker.stop()

    with pytest.raises(gofer.Deadlock, match=r"\[chan receive\]"):
        gofer.run(main, procs=procs)


def test_reset_begins_a_new_phase_and_drops_what_was_due(procs: int) -> None:
    async def main() -> None:
        ticker = gofer.Ticker(0.001)
        await gofer.sleep(0.005)
        start = time.monotonic()
        ticker.reset(0.004)
        end = time.monotonic()
        first = await ticker.c.recv()
        assert start + 0.004 - ROUNDING <= first <= end + 0.004 + ROUNDING
        for _ in range(3):
            assert in_phase(first, await ticker.c.recv(), 0.004)

    gofer.run(main, procs=procs)


def test_reset_under_a_waiting_receiver(procs: int) -> None:
    async def main() -> None:
        for before in (50_000, 200_000):
            ticker = gofer.Ticker(100_000)
            g = gofer.go(wait_for, ticker.c.recv())
            await parked(g)
            ticker.reset(before)
            start = time.monotonic()
            ticker.reset(0.005)
            first = await g
            assert start + 0.005 - ROUNDING <= first <= time.monotonic()
            assert in_phase(first, await ticker.c.recv(), 0.005)

    gofer.run(main, procs=procs)


def test_many_tickers_side_by_side(procs: int) -> None:
    async def count(period: float, n: int) -> float:
        ticker = gofer.Ticker(period)
        first = last = await ticker.c.recv()
        for _ in range(n):
            tick = await ticker.c.recv()
            assert tick > last
            last = tick
        assert in_phase(first, last, period)
        return (last - first) / (n * period)

    async def main() -> None:
        gs = [gofer.go(count, 0.002 + 0.0001 * i, 10) for i in range(20)]
        for g in gs:
            assert await g >= 1 - 1e-3

    gofer.run(main, procs=procs)


def test_one_faster_than_anybody_can_receive_starves_nobody(procs: int) -> None:
    async def main() -> None:
        others = 0

        async def other() -> None:
            nonlocal others
            while True:
                others += 1
                await gofer.gosched()

        gofer.go(other)
        start = time.monotonic()
        async for tick in gofer.Ticker(1e-12):
            if others >= 3:
                break
            assert tick < start + PATIENCE / 6

    gofer.run(main, procs=procs)


def test_it_ticks_while_others_keep_every_p_busy(procs: int) -> None:
    stop = False

    async def busy() -> None:
        while not stop:
            spin(0.0002)
            await gofer.gosched()

    async def main() -> None:
        nonlocal stop
        for _ in range(2 * procs):
            gofer.go(busy)
        start = time.monotonic()
        ticker = gofer.Ticker(0.002)
        for _ in range(10):
            await ticker.c.recv()
        assert time.monotonic() - start < PATIENCE / 6
        stop = True

    gofer.run(main, procs=procs)


def test_a_period_must_be_a_finite_number_above_zero() -> None:
    for bad in (0, 0.0, -0.0, -1, -1e-9, False):
        for call in (gofer.Ticker, gofer.Ticker(1).reset):
            with pytest.raises(ValueError, match=f"needs more than 0 seconds, not {bad!r}"):
                call(bad)
    for bad in (math.nan, math.inf, -math.inf):
        for call in (gofer.Ticker, gofer.Ticker(1).reset):
            with pytest.raises(ValueError, match=repr(bad)):
                call(bad)
    no_numbers: list[Any] = ["x", None, [], 1j, b"1", object]
    for no_number in no_numbers:
        for call in (gofer.Ticker, gofer.Ticker(1).reset):
            with pytest.raises(TypeError):
                call(no_number)


def test_a_bad_reset_changes_nothing() -> None:
    async def main() -> None:
        ticker = gofer.Ticker(0.002)
        first = await ticker.c.recv()
        for bad in (0, -1, math.nan, math.inf):
            with pytest.raises(ValueError):  # noqa: PT011
                ticker.reset(bad)
        assert in_phase(first, await ticker.c.recv(), 0.002)

    gofer.run(main)


def test_a_huge_period_never_comes_and_disturbs_nobody(procs: int) -> None:
    async def main() -> None:
        for seconds in (4.6e9, 1e10, 1e300, 2**62, 10**30):
            ticker = gofer.Ticker(seconds)
            g = gofer.go(wait_for, ticker.c.recv())
            await parked(g)
            await gofer.sleep(0.001)
            ticker.reset(seconds)
            assert not g.done()
            ticker.reset(0.001)
            await g

    gofer.run(main, procs=procs)


def test_without_a_runtime_the_clock_decides() -> None:
    ticker = gofer.Ticker(0.005)
    with pytest.raises(gofer.WouldBlock):
        ticker.c.recv_nowait()
    time.sleep(0.02)
    now = time.monotonic()
    assert ticker.c.recv_nowait() <= now
    assert gofer.run(wait_for, ticker.c.recv()) > now


def test_dropped_ones_go() -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(obj, _core.TimeChan) for obj in gc.get_objects())

    async def main() -> None:
        before = alive()
        done = gofer.Chan[int]()
        done.close()
        for _ in range(1000):
            ticker = gofer.Ticker(0.0001)
            ticker.reset(3600)
            await gofer.select(ticker.c.recv(), done.recv())
        assert _core.counters()["timers"] == 0
        del ticker
        assert alive() <= before + 2

    gofer.run(main)


def test_one_that_somebody_waits_for_stays_although_nobody_holds_it(procs: int) -> None:
    async def count(ticks: list[float]) -> None:
        async for tick in gofer.Ticker(0.005):
            ticks.append(tick)  # noqa: PERF401  # main looks at them

    async def main() -> None:
        ticks: list[float] = []
        g = gofer.go(count, ticks)
        for n in range(1, 4):
            await until(lambda n=n: len(ticks) >= n)  # type: ignore[misc]
            gc.collect()
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        await until(lambda: _core.counters()["timers"] <= 1)  # the one of until()

    gofer.run(main, procs=procs)
