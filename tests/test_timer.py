"""Timer, after() and after_func(): on time, once, and never stale."""

import contextvars
import decimal
import fractions
import gc
import math
import random
import sys
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

import gofer
from gofer import _core
from tests.support import PATIENCE, RING_SIZE, here, parked, spin, thread, until, wait_for

T = TypeVar("T")

# What a float of seconds may lose of the nanoseconds behind it.
ROUNDING = 1e-6
NOT_FINITE = [math.nan, math.inf, -math.inf]
NO_NUMBER: list[Any] = ["x", None, [], 1j, b"1", object]
HUGE = [1e9, 4.6e9, 1e10, 1e100, sys.float_info.max, 2**62, 10**30]


async def waiting(operation: Awaitable[T]) -> gofer.Goroutine[T]:
    """A goroutine that waits in `operation`, and has come to wait."""
    g = gofer.go(wait_for, operation)
    await parked(g)
    return g


def channel(timer: gofer.Timer) -> gofer.RecvChan[float]:
    assert timer.c is not None
    return timer.c


def ready(ch: gofer.RecvChan[float]) -> bool:
    """Whether there is a value; it is taken."""
    try:
        ch.recv_nowait()
    except gofer.WouldBlock:
        return False
    return True


def set_between(seconds: float, value: float, start: float, end: float) -> bool:
    """Whether `value` is when a timer is due that was set between `start` and `end`."""
    return start + seconds - ROUNDING <= value <= end + seconds + ROUNDING


# --- The value, and when it comes -----------------------------------------------------------------


def test_the_value_is_when_it_was_due_however_late_it_is_read() -> None:
    async def main() -> None:
        start = time.monotonic()
        timer = gofer.Timer(0.005)
        end = time.monotonic()
        await gofer.sleep(0.03)
        assert set_between(0.005, await channel(timer).recv(), start, end)

    gofer.run(main)


def test_never_comes_early(procs: int) -> None:
    async def receive(seconds: float) -> float:
        start = time.monotonic()
        due = await gofer.after(seconds).recv()
        now = time.monotonic()
        assert due >= start + seconds - ROUNDING
        return now - due

    async def main() -> float:
        rng = random.Random(procs)
        gs = [gofer.go(receive, rng.expovariate(100)) for _ in range(2000)]
        return min([await g for g in gs])

    assert gofer.run(main, procs=procs) >= -ROUNDING


def test_comes_not_much_later(procs: int) -> None:
    async def main() -> float:
        late = []
        for _ in range(10):
            due = await channel(gofer.Timer(0.005)).recv()
            late.append(time.monotonic() - due)
        return sorted(late)[5]

    assert gofer.run(main, procs=procs) < 0.05


def test_zero_and_less_are_due_at_once() -> None:
    async def main() -> None:
        for seconds in (0, 0.0, -0.0, -1, -1e308, False):
            start = time.monotonic()
            timer = gofer.Timer(seconds)
            assert set_between(0, channel(timer).recv_nowait(), start, time.monotonic())
            assert not timer.reset(seconds)
            assert set_between(0, await channel(timer).recv(), start, time.monotonic())
            assert await gofer.after(seconds).recv() >= start - ROUNDING

    gofer.run(main)


def test_on_one_p_receivers_wake_in_the_order_of_the_deadlines() -> None:
    n = RING_SIZE // 2  # so that none goes through the global queue
    woken: list[float] = []

    async def receive(i: int) -> None:
        woken.append(await gofer.after(start + 0.02 + i * 1e-5 - time.monotonic()).recv())

    async def main() -> None:
        gs = [gofer.go(receive, i) for i in random.Random(1).sample(range(n), n)]
        await parked(*gs)
        spin(start + 0.05 - time.monotonic())  # all are late
        for g in gs:
            await g

    start = time.monotonic()
    gofer.run(main, procs=1)
    assert woken == sorted(woken)
    assert len(woken) == n


def test_every_way_to_receive_gets_the_value(procs: int) -> None:
    async def by_recv(ch: gofer.RecvChan[float]) -> float:
        return await ch.recv()

    async def by_recv_ok(ch: gofer.RecvChan[float]) -> float:
        value, ok = await ch.recv_ok()
        assert ok
        assert value is not None
        return value

    async def by_async_for(ch: gofer.RecvChan[float]) -> float:
        async for value in ch:
            return value
        raise AssertionError("it was closed")

    async def by_select(ch: gofer.RecvChan[float]) -> float:
        selected = await gofer.select(gofer.Chan[int]().recv(), ch.recv(), None)
        assert (selected.index, selected.ok) == (1, True)
        assert isinstance(selected.value, float)
        return selected.value

    async def main() -> None:
        for way in (by_recv, by_recv_ok, by_async_for, by_select):
            for wait_first in (True, False):
                start = time.monotonic()
                ch = gofer.after(0.002)
                end = time.monotonic()
                if not wait_first:
                    await gofer.sleep(0.004)
                assert set_between(0.002, await way(ch), start, end)
                assert not ready(ch)

    gofer.run(main, procs=procs)


def test_it_comes_once() -> None:
    async def main() -> None:
        timer = gofer.Timer(0.001)
        await channel(timer).recv()
        await gofer.sleep(0.005)
        assert not ready(channel(timer))
        chosen = await gofer.select(channel(timer).recv(), gofer.sleep(0.005))
        assert chosen.index == 1

    gofer.run(main)


def test_the_channel_holds_nothing_and_stays_open() -> None:
    async def main() -> None:
        timer = gofer.Timer(0.001)
        ch = channel(timer)
        assert isinstance(ch, gofer.RecvChan)
        assert timer.c == ch
        for _ in range(2):
            assert (len(ch), ch.cap, ch.closed, bool(ch)) == (0, 0, False, True)
            await gofer.sleep(0.003)  # now it is due
        assert ready(ch)
        assert (len(ch), ch.cap, ch.closed) == (0, 0, False)
        for name in ("send", "send_nowait", "close"):
            with pytest.raises(AttributeError, match="receive-only"):
                getattr(ch, name)

    gofer.run(main)


def test_of_several_receivers_the_first_gets_it(procs: int) -> None:
    async def main() -> None:
        timer = gofer.Timer(100_000)
        gs = [await waiting(channel(timer).recv()) for _ in range(3)]
        for i, g in enumerate(gs):
            timer.reset(0.001)
            assert isinstance(await g, float)
            assert [other.done() for other in gs] == [True] * (i + 1) + [False] * (2 - i)

    gofer.run(main, procs=procs)


def test_it_comes_while_others_keep_every_p_busy(procs: int) -> None:
    stop = False

    async def busy() -> None:
        while not stop:
            await gofer.gosched()

    async def ping(a: gofer.Chan[int], b: gofer.Chan[int]) -> None:
        while not stop:
            await a.send(1)
            await b.recv()

    async def pong(a: gofer.Chan[int], b: gofer.Chan[int]) -> None:
        while not stop:
            await a.recv()
            await b.send(1)

    async def main() -> float:
        nonlocal stop
        a, b = gofer.Chan[int](), gofer.Chan[int]()
        for fn in (ping, pong):
            gofer.go(fn, a, b)
        for _ in range(2 * procs):
            gofer.go(busy)
        late = []
        for _ in range(10):
            due = await gofer.after(0.002).recv()
            late.append(time.monotonic() - due)
        stop = True
        return sorted(late)[5]

    assert gofer.run(main, procs=procs) < 0.1


def test_a_thread_can_wait_for_it(procs: int) -> None:
    def foreign() -> None:
        start = time.monotonic()
        ch = gofer.after(0.005)
        assert gofer.block(ch.recv()) >= start + 0.005 - ROUNDING
        assert time.monotonic() >= start + 0.005
        with pytest.raises(TimeoutError):
            gofer.block(ch.recv(), timeout=0.002)

    async def main() -> None:
        with thread(foreign) as t:
            await until(lambda: not t.is_alive())

    gofer.run(main, procs=procs)


# --- stop() and reset() ---------------------------------------------------------------------------


def test_stop_tells_whether_it_took_the_value_away(procs: int) -> None:
    async def main() -> None:
        timer = gofer.Timer(0.005)  # still to come
        assert timer.stop() is True
        assert timer.stop() is False
        await gofer.sleep(0.01)
        assert not ready(channel(timer))
        timer = gofer.Timer(0.001)  # due, not received
        await gofer.sleep(0.005)
        assert timer.stop() is True
        assert not ready(channel(timer))
        assert timer.stop() is False
        timer = gofer.Timer(0.001)  # received
        await channel(timer).recv()
        assert timer.stop() is False

    gofer.run(main, procs=procs)


def test_reset_tells_the_same_and_leaves_nothing_from_before(procs: int) -> None:
    async def main() -> None:
        timer = gofer.Timer(100_000)
        assert timer.reset(0.001) is True  # still to come
        await gofer.sleep(0.005)
        start = time.monotonic()
        assert timer.reset(0.002) is True  # due, not received
        end = time.monotonic()
        assert set_between(0.002, await channel(timer).recv(), start, end)
        assert timer.reset(0.001) is False  # received
        assert timer.stop() is True
        assert timer.reset(0.001) is False  # stopped
        await gofer.sleep(0.005)
        assert timer.reset(100_000) is True
        assert not ready(channel(timer))

    gofer.run(main, procs=procs)


def test_reset_under_a_waiting_receiver(procs: int) -> None:
    async def main() -> None:
        for seconds in (0.002, 100_000):
            timer = gofer.Timer(100_000)
            g = await waiting(channel(timer).recv())
            timer.reset(seconds)
            start = time.monotonic()
            if timer.reset(0.01):  # else it came already
                end = time.monotonic()
                assert set_between(0.01, await g, start, end)
                assert time.monotonic() >= start + 0.01
            await g

    gofer.run(main, procs=procs)


def test_stop_leaves_a_receiver_waiting_and_reset_wakes_it(procs: int) -> None:
    async def main() -> None:
        timer = gofer.Timer(100_000)
        g = await waiting(channel(timer).recv())
        assert timer.stop() is True
        await gofer.sleep(0.002)
        assert (g.state, g.wait_reason) == ("waiting", "chan receive")
        assert timer.reset(0.001) is False
        assert isinstance(await g, float)

    gofer.run(main, procs=procs)


def test_after_stop_waiting_for_it_is_a_deadlock(procs: int) -> None:
    async def main() -> None:
        timer = gofer.Timer(0.001)
        assert timer.stop()
        await channel(timer).recv()

    with pytest.raises(gofer.Deadlock, match=r"\[chan receive\]"):
        gofer.run(main, procs=procs)


def test_a_receiver_that_is_cancelled_leaves_the_value_to_the_next(procs: int) -> None:
    async def main() -> None:
        timer = gofer.Timer(100_000)
        g = await waiting(channel(timer).recv())
        other = await waiting(channel(timer).recv())
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        timer.reset(0.001)
        assert isinstance(await other, float)

    gofer.run(main, procs=procs)


def test_a_case_that_loses_leaves_the_value_and_no_timer_behind(procs: int) -> None:
    async def main() -> None:
        full = gofer.Chan[int](1)
        timer = gofer.Timer(100_000)
        for i in range(20):
            g = await waiting(gofer.select(channel(timer).recv(), full.recv()))
            assert _core.counters()["timers"] >= 1
            full.send_nowait(i)
            assert await g == (1, i, True)
            await until(lambda: _core.counters()["timers"] == 0)
        timer.reset(0)
        chosen = await gofer.select(channel(timer).recv(), full.recv())
        assert chosen.index == 0

    gofer.run(main, procs=procs)


# --- Bad use --------------------------------------------------------------------------------------

MAKE: list[Callable[[Any], object]] = [
    gofer.Timer,
    gofer.after,
    lambda s: gofer.after_func(s, print),
    lambda s: gofer.Timer(100_000).reset(s),
]


def test_what_is_not_finite_is_a_value_error_that_names_it() -> None:
    for make in MAKE:
        for seconds in NOT_FINITE:
            with pytest.raises(ValueError, match=repr(seconds)):
                make(seconds)


def test_what_is_no_number_is_a_type_error_that_names_it() -> None:
    for make in MAKE:
        for seconds in NO_NUMBER:
            with pytest.raises(TypeError) as info:
                make(seconds)
            assert repr(seconds) in str(info.value)


def test_a_bad_reset_changes_nothing() -> None:
    timer = gofer.Timer(0.001)
    for bad in NOT_FINITE:
        with pytest.raises(ValueError, match="finite"):
            timer.reset(bad)
    time.sleep(0.002)
    assert ready(channel(timer))


def test_wrong_argument_counts_are_type_errors() -> None:
    calls: list[Any] = [gofer.Timer, gofer.after, gofer.after_func, gofer.Timer(1).reset]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        gofer.after_func(1)  # type: ignore[call-arg]


def test_numbers_of_all_kinds_are_fine() -> None:
    async def main() -> None:
        for seconds in (1, 0.0001, decimal.Decimal("0.0001"), fractions.Fraction(1, 10_000), True):
            timer = gofer.Timer(seconds)  # type: ignore[arg-type]
            timer.reset(seconds)  # type: ignore[arg-type]
            assert timer.stop()

    gofer.run(main)


def test_a_huge_one_never_comes_and_disturbs_nobody(procs: int) -> None:
    async def main() -> None:
        timers = [gofer.Timer(seconds) for seconds in HUGE]
        gs = [await waiting(channel(timer).recv()) for timer in timers]
        funcs = [gofer.after_func(seconds, pytest.fail, "it came") for seconds in HUGE]
        for _ in range(3):
            await gofer.after(0.001).recv()
        assert not any(g.done() for g in gs)
        for seconds, timer, func, g in zip(HUGE, timers, funcs, gs, strict=True):
            assert timer.reset(seconds) is True
            assert func.reset(seconds) is True
            assert timer.reset(0.001) is True
            await g
            assert func.stop() is True

    gofer.run(main, procs=procs)


# --- Outside, and afterwards ----------------------------------------------------------------------


def test_without_a_runtime_the_clock_decides() -> None:
    timer = gofer.Timer(0.005)
    assert not ready(channel(timer))
    time.sleep(0.01)
    assert ready(channel(timer))
    assert timer.reset(0.005) is False
    assert timer.stop() is True
    timer.reset(0.02)

    async def main() -> float:
        return await channel(timer).recv()

    assert gofer.run(main) <= time.monotonic()


def test_it_outlives_a_run(procs: int) -> None:
    timer = gofer.Timer(100_000)

    async def leave_a_receiver() -> None:
        await waiting(channel(timer).recv())

    async def receive() -> float:
        return await channel(timer).recv()

    gofer.run(leave_a_receiver, procs=procs)
    assert timer.reset(0.01) is True
    assert gofer.run(receive, procs=procs) <= time.monotonic()


def test_dropped_ones_go() -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(obj, _core.TimeChan) for obj in gc.get_objects())

    async def main() -> None:
        before = alive()
        done = gofer.Chan[int]()
        done.close()
        for _ in range(10_000):
            gofer.after(3600)
            gofer.Timer(3600).reset(7200)
        for _ in range(1000):
            await gofer.select(gofer.after(3600).recv(), done.recv())
        assert _core.counters()["timers"] == 0
        assert alive() <= before + 2

    gofer.run(main)


def test_one_that_somebody_waits_for_stays_although_nobody_holds_it(procs: int) -> None:
    async def main() -> None:
        gs = [gofer.go(wait_for, gofer.after(0.01).recv()) for _ in range(10)]
        await gofer.sleep(0.001)
        gc.collect()
        assert len([await g for g in gs]) == 10

    gofer.run(main, procs=procs)


def test_waiting_for_a_stopped_one_that_nobody_holds_is_a_leak(procs: int) -> None:
    async def main() -> None:
        timer = gofer.Timer(100_000)
        await waiting(channel(timer).recv())
        for _ in range(3):
            gc.collect()
        assert gofer.num_goroutine() == 2  # it will come
        timer.stop()
        for _ in range(3):
            gc.collect()
        assert gofer.num_goroutine() == 2  # it can be reset
        del timer

        def collected() -> bool:
            gc.collect()
            return gofer.num_goroutine() == 1

        with pytest.warns(gofer.GoroutineLeakWarning, match=r"\[chan receive\]"):
            await until(collected)

    gofer.run(main, procs=procs)


# --- after_func -----------------------------------------------------------------------------------


def test_the_function_gets_its_arguments_and_a_goroutine_of_its_own(procs: int) -> None:
    told = gofer.Chan[tuple[Any, ...]](2)

    def plain(*args: Any) -> None:
        g = gofer.current()
        told.send_nowait((g.id, g.parent_id, g.name, g.created_at, time.monotonic(), args))

    async def slow(*args: Any) -> None:
        await gofer.sleep(0.001)
        plain(*args)

    async def main() -> None:
        for fn in (plain, slow):
            start = time.monotonic()
            timer = gofer.after_func(0.005, fn, 1, "two")
            line = here(-1)
            assert isinstance(timer, gofer.Timer)
            assert timer.c is None
            id, parent_id, name, created_at, when, args = await told.recv()
            assert id != gofer.current().id == parent_id
            assert name == fn.__qualname__
            assert created_at == line
            assert when >= start + 0.005
            assert args == (1, "two")

    gofer.run(main, procs=procs)


def test_it_is_never_called_by_the_one_who_asks(procs: int) -> None:
    called: list[int] = []

    async def main() -> None:
        me = gofer.current().id
        for seconds in (0, -1):
            gofer.after_func(seconds, lambda: called.append(gofer.current().id))
        if procs == 1:
            assert not called
        await until(lambda: len(called) == 2)
        assert me not in called
        assert called[0] != called[1]

    gofer.run(main, procs=procs)


def test_stop_prevents_the_call(procs: int) -> None:
    async def main() -> None:
        called: list[int] = []
        timers = [gofer.after_func(0.005, called.append, i) for i in range(10)]
        stopped = [i for i, timer in enumerate(timers) if timer.stop()]
        assert [timer.stop() for timer in timers] == [False] * 10
        await gofer.sleep(0.01)
        await until(lambda: len(called) + len(stopped) >= 10)
        assert sorted(called + stopped) == list(range(10))

    gofer.run(main, procs=procs)


def test_stop_after_the_start_is_false_and_does_not_wait(procs: int) -> None:
    async def main() -> None:
        go_on = gofer.Chan[int]()
        started = gofer.Chan[int]()

        async def slow() -> None:
            await started.send(1)
            await go_on.recv()
            await started.send(2)

        timer = gofer.after_func(0.001, slow)
        await started.recv()
        assert timer.stop() is False
        await go_on.send(1)
        assert await started.recv() == 2

    gofer.run(main, procs=procs)


def test_reset_calls_it_again_and_the_calls_may_overlap(procs: int) -> None:
    async def main() -> None:
        started = gofer.Chan[int]()
        go_on = gofer.Chan[int]()

        async def slow() -> None:
            await started.send(1)
            await go_on.recv()

        timer = gofer.after_func(100_000, slow)
        assert timer.reset(0.001) is True
        await started.recv()
        assert timer.reset(0.001) is False
        await started.recv()
        assert timer.reset(100_000) is False
        assert timer.stop() is True
        assert timer.reset(0) is False
        await started.recv()
        for _ in range(3):
            await go_on.send(1)

    gofer.run(main, procs=procs)


def test_reset_moves_the_call(procs: int) -> None:
    async def main() -> None:
        called = gofer.Chan[float](1)
        timer = gofer.after_func(100_000, lambda: called.send_nowait(time.monotonic()))
        for between in (50_000, 200_000):
            timer.reset(between)
            start = time.monotonic()
            timer.reset(0.005)
            assert await called.recv() >= start + 0.005

    gofer.run(main, procs=procs)


def test_a_timer_that_nobody_holds_still_calls() -> None:
    async def main() -> None:
        called = gofer.Chan[int]()
        gofer.after_func(0.005, called.send, 1)
        gc.collect()
        assert await called.recv() == 1  # and no deadlock, as it is to come

    gofer.run(main)


def test_its_failure_ends_the_run_and_tells_where_it_came_from(procs: int) -> None:
    line = ""

    def fail() -> None:
        raise ValueError("as told")

    async def main() -> None:
        nonlocal line
        gofer.after_func(0.001, fail)
        line = here(-1)
        await gofer.sleep(PATIENCE)

    with pytest.raises(ValueError, match="as told") as info:
        gofer.run(main, procs=procs)
    assert any(line in note and "fail" in note for note in info.value.__notes__)


def test_what_is_not_due_when_main_ends_is_never_called(procs: int) -> None:
    called: list[int] = []
    timers: list[gofer.Timer] = []

    async def main() -> None:
        timers.append(gofer.after_func(0.5, called.append, 1))
        timers.append(gofer.after_func(100_000, called.append, 2))

    start = time.monotonic()
    gofer.run(main, procs=procs)
    assert time.monotonic() - start < 0.4
    assert [timer.stop() for timer in timers] == [False, False]
    assert not called


def test_it_needs_a_runtime() -> None:
    with pytest.raises(RuntimeError, match="needs a running runtime"):
        gofer.after_func(1, print)

    async def main() -> gofer.Timer:
        return gofer.after_func(100_000, print)

    timer = gofer.run(main)
    with pytest.raises(RuntimeError, match="needs a running runtime"):
        timer.reset(1)


def test_what_cannot_be_called_is_a_type_error_that_names_it() -> None:
    async def main() -> None:
        for bad in (None, 5, "print"):
            with pytest.raises(TypeError, match=repr(bad)):
                gofer.after_func(1, bad)  # type: ignore[arg-type]

    gofer.run(main)


def test_it_sees_the_context_variables_of_the_one_who_asked() -> None:
    var = contextvars.ContextVar("var", default="none")

    async def main() -> None:
        told = gofer.Chan[str](1)
        var.set("then")
        gofer.after_func(0.001, lambda: told.send_nowait(var.get()))
        var.set("now")
        assert await told.recv() == "then"

    gofer.run(main)


def test_each_call_has_context_variables_of_its_own(procs: int) -> None:
    """Though they may run at once, and change them."""
    var = contextvars.ContextVar("var", default="none")

    async def main() -> None:
        told = gofer.Chan[str]()

        async def call() -> None:
            seen = var.get()
            var.set("changed")
            for _ in range(10):
                spin(0.0005)
                await gofer.gosched()
            await told.send(seen)

        var.set("then")
        timer = gofer.after_func(0, call)
        for _ in range(3):
            await until(lambda: not timer.reset(0))
        for _ in range(4):
            assert await told.recv() == "then"

    gofer.run(main, procs=procs)


def test_a_pending_one_keeps_its_function_alive_and_stop_lets_go(procs: int) -> None:
    class Called:
        def __call__(self) -> None:
            pass

    async def main() -> None:
        fn = Called()
        ref = weakref.ref(fn)
        timer = gofer.after_func(100_000, fn)
        del fn
        gc.collect()
        assert ref() is not None
        timer.stop()
        del timer

        def dead() -> bool:
            gc.collect()
            return ref() is None

        await until(dead)

    gofer.run(main, procs=procs)


def test_it_comes_although_main_spins_now_and_then() -> None:
    async def main() -> None:
        called: list[float] = []
        gofer.after_func(0.001, called.append, 1)
        for _ in range(10):
            spin(0.002)
            await gofer.gosched()
        assert called

    gofer.run(main, procs=1)
