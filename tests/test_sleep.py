"""sleep(): never early, in order, and no burden on anybody."""

import decimal
import fractions
import math
import random
import sys
import time
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import RING_SIZE, TINY, parked, sleep_long, spin, thread, until


def test_never_returns_early(procs: int) -> None:
    async def sleeper(seconds: float) -> float:
        start = time.monotonic()
        await gofer.sleep(seconds)
        return time.monotonic() - start - seconds

    async def main() -> float:
        rng = random.Random(procs)
        gs = [gofer.go(sleeper, rng.expovariate(100)) for _ in range(10_000)]
        return min([await g for g in gs])

    assert gofer.run(main, procs=procs) >= 0


def test_returns_not_much_later(procs: int) -> None:
    async def main() -> float:
        late = []
        for _ in range(20):
            start = time.monotonic()
            await gofer.sleep(0.01)
            late.append(time.monotonic() - start - 0.01)
        return sorted(late)[10]

    assert gofer.run(main, procs=procs) < 0.005


def test_returns_none() -> None:
    async def main() -> Any:
        return await gofer.sleep(0.001)

    assert gofer.run(main) is None


def test_sleepers_wake_in_the_order_of_their_deadlines(procs: int) -> None:
    gap = 0.01
    delays = [0.02 + gap * i for i in range(10)]
    shuffled = random.Random(1).sample(delays, len(delays))
    woken: list[float] = []
    late: list[float] = []

    async def sleeper(seconds: float) -> None:
        await gofer.sleep(start + seconds - time.monotonic())
        late.append(time.monotonic() - start - seconds)
        woken.append(seconds)

    async def main() -> None:
        gs = [gofer.go(sleeper, s) for s in shuffled]
        for g in gs:
            await g

    for _ in range(50):
        woken.clear()
        late.clear()
        start = time.monotonic()
        gofer.run(main, procs=procs)
        if max(late) < gap / 2:  # else the machine was busy, and two may be due at once
            break
    assert woken == delays


@pytest.mark.usefixtures("no_handoff")  # or nobody is late
def test_on_one_p_deadlines_fire_in_order_even_when_all_are_late() -> None:
    n = min(RING_SIZE // 2, 30)  # so that none goes through the global queue
    step = 0.02  # longer than the thread may be without a core between the two clocks below
    woken: list[int] = []

    async def sleeper(i: int) -> None:
        await gofer.sleep(start + 0.5 + i * step - time.monotonic())
        woken.append(i)

    async def main() -> None:
        gs = [gofer.go(sleeper, i) for i in random.Random(2).sample(range(n), n)]
        await parked(gs[0], gs[-1])
        spin(start + 0.55 + n * step - time.monotonic())
        for g in gs:
            await g

    start = time.monotonic()
    gofer.run(main, procs=1)
    assert woken == list(range(n))


@pytest.mark.parametrize("seconds", [0, 0.0, -0.0, -1, -1e-9, -1e308, False])
def test_zero_and_less_return_at_once_without_yielding(seconds: float) -> None:
    ran = []

    async def other() -> None:
        ran.append(1)

    async def main() -> None:
        g = gofer.go(other)
        for _ in range(1000):
            await gofer.sleep(seconds)
        assert not ran
        await g

    gofer.run(main, procs=1)


@pytest.mark.parametrize("seconds", [1e-12, 1e-9, 5e-324])
def test_the_shortest_sleep_still_lets_others_run(seconds: float) -> None:
    async def main() -> None:
        start = time.monotonic()
        await gofer.sleep(seconds)
        assert time.monotonic() - start < 10

    gofer.run(main, procs=1)


@pytest.mark.parametrize("seconds", ["x", None, [], 1j, b"1", object])
def test_what_is_no_number_is_a_type_error_that_names_it(seconds: Any) -> None:
    with pytest.raises(TypeError) as info:
        gofer.sleep(seconds)
    assert repr(seconds) in str(info.value)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_value_error_that_names_it(seconds: float) -> None:
    with pytest.raises(ValueError, match=repr(seconds)):
        gofer.sleep(seconds)


def test_wrong_argument_counts_are_type_errors() -> None:
    with pytest.raises(TypeError):
        gofer.sleep()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        gofer.sleep(1, 2)  # type: ignore[call-arg]


def test_numbers_of_all_kinds_are_fine() -> None:
    class Floaty:
        def __float__(self) -> float:
            return 0.0001

    async def main() -> None:
        for seconds in (
            0.0001,
            decimal.Decimal("0.0001"),
            fractions.Fraction(1, 10_000),
            Floaty(),
            True - 1,
        ):
            await gofer.sleep(seconds)  # type: ignore[arg-type]

    gofer.run(main)


@pytest.mark.parametrize("seconds", [1e9, 4.6e9, 1e10, 1e100, sys.float_info.max, 2**62, 10**30])
def test_a_huge_one_sleeps_and_disturbs_nobody(seconds: float, procs: int) -> None:
    async def main() -> None:
        g = gofer.go(sleeper)
        await parked(g)
        for _ in range(10):
            await gofer.sleep(0.001)
        assert (g.state, g.wait_reason) == ("waiting", "sleep")
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g

    async def sleeper() -> None:
        await gofer.sleep(seconds)

    gofer.run(main, procs=procs)


def test_repr_shows_seconds_and_state() -> None:
    op = gofer.sleep(1.5)
    assert repr(op) == "<gofer.sleep(1.5) not awaited>"

    async def main() -> None:
        short = gofer.sleep(0.25)
        g = gofer.go(wait)
        await parked(g)
        assert repr(long) == "<gofer.sleep(1.5) waiting>"
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        assert repr(long) == "<gofer.sleep(1.5) done>"
        del short

    async def wait() -> None:
        await long

    long = op
    gofer.run(main)


def test_cancel_removes_the_timer(procs: int) -> None:
    async def main() -> None:
        gs = [gofer.go(sleep_long) for _ in range(500)]
        await parked(*gs)
        assert _core.counters()["timers"] >= 500
        for i in random.Random(3).sample(range(500), 500):
            gs[i].cancel()
            with pytest.raises(gofer.Cancelled):
                await gs[i]
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_removing_some_timers_leaves_the_order_of_the_others() -> None:
    async def sleeper(i: int) -> None:
        await gofer.sleep(start + 0.1 + i * 0.0001 - time.monotonic())
        woken.append(i)

    async def main(seed: int) -> bool:
        rng = random.Random(seed)
        gs = {i: gofer.go(sleeper, i) for i in rng.sample(range(500), 500)}
        await parked(*gs.values())
        gone = rng.sample(range(500), 250)
        for i in gone:
            gs.pop(i).cancel()
        for i in sorted(gs):
            await gs[i]
        assert sorted(woken) == sorted(gs)
        return TINY or woken == sorted(gs)  # TINY: some go through the global queue

    for seed in range(5):
        woken: list[int] = []
        start = time.monotonic()
        if gofer.run(main, seed, procs=1):
            return  # else the kernel may have taken the core from a sleeper that had read the clock
    pytest.fail("not once in order")


def test_a_new_earliest_timer_wakes_an_idle_runtime(procs: int) -> None:
    """All Ms sleep until a late timer; a foreign thread adds an early one."""
    done: list[float] = []

    async def short() -> None:
        await gofer.sleep(0.001)
        done.append(time.monotonic())

    def foreign() -> None:
        time.sleep(0.05)  # so that all are asleep
        gofer.go(short)

    async def main() -> float:
        g = gofer.go(sleep_long)
        start = time.monotonic()
        with thread(foreign):
            while not done:
                await gofer.sleep(0.2)
        g.cancel()
        return done[0] - start

    assert gofer.run(main, procs=procs) < 5


@pytest.mark.parametrize("procs", [2, 4])
def test_the_timers_of_a_busy_p_are_served_by_others(procs: int) -> None:
    """The sleeper's timer is in the heap of the P that the hog keeps."""
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await gofer.sleep(seconds)
        woken.append(time.monotonic())

    async def hog() -> float:
        gs = [gofer.go(sleeper, 0.01 * (1 + i % 5)) for i in range(50)]
        await parked(*gs)
        start = time.monotonic()
        spin(0.5)
        end = time.monotonic()
        assert sum(t < end for t in woken) == 50, f"{len(woken)} woken, after {end - start:.3f} s"
        return max(woken) - start

    async def main() -> float:
        return await gofer.go(hog)

    assert gofer.run(main, procs=procs) < 0.4


def test_a_timer_set_just_before_a_hog_begins_is_served() -> None:
    woken: list[float] = []

    async def sleeper() -> None:
        await gofer.sleep(0.01)
        woken.append(time.monotonic())

    async def main() -> None:
        for _ in range(5):
            woken.clear()
            gofer.go(sleeper)
            await gofer.gosched()  # it sleeps, in the heap of this P as likely as not
            end = time.monotonic() + 0.2
            spin(0.2)
            assert woken
            assert woken[0] < end

    gofer.run(main, procs=2)


def test_sleepers_do_not_starve_while_others_keep_the_p_busy(procs: int) -> None:
    stop = False

    async def busy() -> None:
        while not stop:
            await gofer.gosched()

    async def main() -> float:
        nonlocal stop
        for _ in range(2 * procs):
            gofer.go(busy)
        late = []
        for _ in range(20):
            start = time.monotonic()
            await gofer.sleep(0.002)
            late.append(time.monotonic() - start)
        stop = True
        return sorted(late)[10]

    assert gofer.run(main, procs=procs) < 0.1


def test_a_hundred_thousand_sleepers(procs: int) -> None:
    async def sleeper(i: int) -> int:
        await gofer.sleep(0.05 + (i * 7919 % 1000) * 1e-5)
        return 1

    async def main() -> int:
        gs = [gofer.go(sleeper, i) for i in range(100_000)]
        await until(lambda: _core.counters()["timers"] > 0)
        return sum([await g for g in gs])

    assert gofer.run(main, procs=procs) == 100_000
