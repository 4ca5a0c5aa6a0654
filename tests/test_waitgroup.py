"""WaitGroup: wait until a counter is zero."""

import functools
import gc
import threading
from typing import Any

import pytest

import gofer
from tests.support import give, here, parked, sleep_long, thread, until, wait_for
from tests.sync_support import waiting

NEGATIVE = r"^sync: negative WaitGroup counter$"


def count_of(wg: gofer.WaitGroup) -> int:
    """What its counter is."""
    return int(repr(wg).split()[1])


async def at_zero(wg: gofer.WaitGroup) -> None:
    """Check that wait() need not wait."""
    async with gofer.timeout(10):
        await wg.wait()


# --- The counter ----------------------------------------------------------------------------------


def test_a_new_one_is_at_zero(procs: int) -> None:
    async def main() -> None:
        wg = gofer.WaitGroup()
        for _ in range(10):
            await wg.wait()

    gofer.run(main, procs=procs)


def test_all_waiters_go_on_when_it_is_zero_and_not_before(procs: int) -> None:
    async def main() -> None:
        wg = gofer.WaitGroup()
        wg.add(3)
        wg.add()
        waiters = [await waiting(wg.wait()) for _ in range(5)]
        for n in (-2, -1):
            wg.add(n)
            assert [g.state for g in waiters] == ["waiting"] * 5
        wg.done()
        for g in waiters:
            await g
        await at_zero(wg)

    gofer.run(main, procs=procs)


def test_below_zero_is_a_value_error_and_changes_nothing(procs: int) -> None:
    async def main() -> None:
        wg = gofer.WaitGroup()
        with pytest.raises(ValueError, match=NEGATIVE):
            wg.done()
        await at_zero(wg)
        wg.add(2)
        g = await waiting(wg.wait())
        for n in (-3, -(2**62)):
            with pytest.raises(ValueError, match=NEGATIVE):
                wg.add(n)
        assert count_of(wg) == 2
        assert g.state == "waiting"
        wg.add(-2)
        await g
        with pytest.raises(ValueError, match=NEGATIVE):
            wg.add(-1)

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("n", [1.0, "1", None, True, [], object()])
def test_what_is_no_integer_is_a_type_error(n: Any) -> None:
    wg = gofer.WaitGroup()
    with pytest.raises(TypeError):
        wg.add(n)
    assert count_of(wg) == 0


def test_beyond_64_bits_is_a_value_error() -> None:
    wg = gofer.WaitGroup()
    for n in (2**63, -(2**63) - 1, 10**30):
        with pytest.raises(ValueError, match="out of range"):
            wg.add(n)
    wg.add(2**63 - 1)
    with pytest.raises(ValueError, match="overflow"):
        wg.add()
    wg.add(n=-(2**63 - 1))
    assert count_of(wg) == 0


def test_add_zero_wakes_nobody(procs: int) -> None:
    async def main() -> None:
        wg = gofer.WaitGroup()
        wg.add(0)
        await at_zero(wg)
        wg.add()
        g = await waiting(wg.wait())
        wg.add(0)
        assert g.state == "waiting"
        wg.done()
        await g

    gofer.run(main, procs=procs)


def test_it_can_be_used_again(procs: int) -> None:
    async def worker(wg: gofer.WaitGroup, done: list[int]) -> None:
        await gofer.gosched()
        done.append(1)
        wg.done()

    async def main() -> None:
        wg = gofer.WaitGroup()
        for n in range(1, 20):
            done: list[int] = []
            wg.add(n)
            for _ in range(n):
                gofer.go(worker, wg, done)
            await wg.wait()
            assert len(done) == n

    gofer.run(main, procs=procs)


def test_who_was_let_go_stays_so_although_it_counts_again(procs: int) -> None:
    async def main() -> None:
        wg = gofer.WaitGroup()
        wg.add()
        waiters = [await waiting(wg.wait()) for _ in range(3)]
        wg.done()
        wg.add()
        for g in waiters:
            await g
        await waiting(wg.wait())
        wg.done()

    gofer.run(main, procs=procs)


def test_threads_count_too(procs: int) -> None:
    wg = gofer.WaitGroup()
    ended: list[int] = []

    def foreign(i: int) -> None:
        ended.append(i)
        wg.done()

    def waits() -> None:
        gofer.block(wg.wait())
        assert sorted(ended) == [0, 1, 2]
        ended.append(3)

    async def main() -> None:
        wg.add(3)
        with thread(waits), thread(foreign, 0), thread(foreign, 1):
            g = await waiting(wg.wait())
            foreign(2)
            await g
            await until(lambda: len(ended) == 4)

    gofer.run(main, procs=procs)


# --- go() -----------------------------------------------------------------------------------------


def test_go_counts_a_goroutine_until_it_has_ended(procs: int) -> None:
    ended: list[int] = []

    async def worker(i: int, *, times: int) -> int:
        for _ in range(times):
            await gofer.gosched()
        ended.append(i)
        return i * times

    async def main() -> None:
        wg = gofer.WaitGroup()
        gs = [wg.go(worker, i, times=3) for i in range(20)]
        await wg.wait()
        assert sorted(ended) == list(range(20))
        assert [await g for g in gs] == [3 * i for i in range(20)]

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("plain", [False, True])
def test_after_wait_all_that_go_has_started_are_dead(plain: bool, procs: int) -> None:
    """Not just about to be: num_goroutine() does not count them any more."""

    async def nothing() -> None:
        await gofer.gosched()

    async def main() -> None:
        wg = gofer.WaitGroup()
        for _ in range(100):
            gs = [wg.go(print, end="") if plain else wg.go(nothing) for _ in range(4)]
            await wg.wait()
            assert [g.state for g in gs] == ["dead"] * 4
            assert gofer.num_goroutine() == 1

    gofer.run(main, procs=procs)


def test_done_too_often_is_an_error_of_the_run(procs: int) -> None:
    """The goroutine counts down when it has ended, and there is nothing left to count."""

    async def main() -> None:
        wg = gofer.WaitGroup()
        go_on = gofer.Chan[None]()
        wg.go(go_on.recv)
        wg.done()
        await go_on.send(None)
        await gofer.sleep(100_000)

    with pytest.raises(ValueError, match=NEGATIVE):
        gofer.run(main, procs=procs)


def test_a_leaked_goroutine_is_counted_down(procs: int) -> None:
    async def main() -> None:
        wg = gofer.WaitGroup()
        g = wg.go(wait_for, gofer.Chan[None]().recv())
        await parked(g)
        del g
        with pytest.warns(gofer.GoroutineLeakWarning):
            gc.collect()
        await at_zero(wg)

    gofer.run(main, procs=procs)


def test_name_and_keywords_are_passed_on(procs: int) -> None:
    async def worker(a: int, *, b: int) -> int:
        return a + b

    def plain(a: int, *, b: int) -> int:
        return a * b

    async def main() -> None:
        wg = gofer.WaitGroup()
        gs = [
            wg.go(worker, 3, b=4, name="adder"),
            wg.go(plain, 3, b=4),
            wg.go(functools.partial(plain, 3), b=5),
        ]
        await wg.wait()
        assert [g.name.rpartition(".")[2] for g in gs] == ["adder", "plain", "plain"]
        assert [g.result() for g in gs] == [7, 12, 15]

    gofer.run(main, procs=procs)


def test_its_goroutine_says_who_it_is_and_where_it_was_started(procs: int) -> None:
    async def main() -> None:
        wg = gofer.WaitGroup()
        g = wg.go(give, 1)
        assert g.created_at == here(-1)
        assert g.name == "give"
        assert g.parent_id == 1
        p = wg.go(functools.partial(give, 2))
        assert p.name == "give"
        await wg.wait()
        assert (await g, await p) == (1, 2)

    gofer.run(main, procs=procs)


def test_go_counts_down_however_it_ends(procs: int) -> None:
    async def fails() -> None:
        raise KeyError("failed")

    async def exits() -> None:
        gofer.goexit()

    async def waits() -> None:
        await gofer.sleep(100_000)

    async def main() -> None:
        wg = gofer.WaitGroup()
        failed = wg.go(fails)
        exited = wg.go(exits)
        cancelled = wg.go(waits)
        await parked(cancelled)
        cancelled.cancel()
        await wg.wait()
        assert count_of(wg) == 0
        with pytest.raises(KeyError, match="failed"):
            await failed
        assert await exited is None  # type: ignore[func-returns-value]
        with pytest.raises(gofer.Cancelled):
            await cancelled

    gofer.run(main, procs=procs)


def test_one_that_is_cancelled_before_it_begins_is_counted_down(procs: int) -> None:
    """Its function may never be called."""

    async def main() -> None:
        wg = gofer.WaitGroup()
        for _ in range(50):
            g = wg.go(give, 1)
            g.cancel()
            await at_zero(wg)
            await until(g.done)

    gofer.run(main, procs=procs)


def test_a_failure_that_nobody_takes_ends_the_run(procs: int) -> None:
    """wait() must not let main slip through before that is known."""

    async def fails() -> None:
        raise KeyError("nobody looks")

    async def main() -> None:
        wg = gofer.WaitGroup()
        wg.go(fails)
        await wg.wait()
        slipped.append(wg)

    slipped: list[gofer.WaitGroup] = []
    for _ in range(20):
        with pytest.raises(KeyError, match="nobody looks"):
            gofer.run(main, procs=procs)
    assert slipped == []


def test_who_waits_again_after_such_a_failure_is_cancelled_again(procs: int) -> None:
    """Else main would never end: the count does not fall any more, and others work on."""

    async def fails(begin: gofer.Chan[None]) -> None:
        await begin.recv()
        raise KeyError("nobody looks")

    async def ticks() -> None:
        while True:
            await gofer.sleep(0.001)

    async def main() -> None:
        wg, begin = gofer.WaitGroup(), gofer.Chan[None]()
        gofer.go(ticks)
        wg.go(fails, begin)
        await begin.send(None)  # nobody has its handle any more
        for _ in range(2):
            with pytest.raises(gofer.Cancelled):
                await wg.wait()
        ends.append(1)

    ends: list[int] = []
    for _ in range(20):
        with pytest.raises(KeyError, match="nobody looks"):
            gofer.run(main, procs=procs)
    assert len(ends) == 20


def test_one_that_fails_while_the_run_ends_is_counted(procs: int) -> None:
    """Another, which cleans up, may wait for it. With a foreign thread nothing is for ever."""

    async def fails(wg: gofer.WaitGroup) -> None:
        try:
            await sleep_long()
        finally:
            raise KeyError("in clean-up")

    async def waits(wg: gofer.WaitGroup) -> None:
        try:
            await sleep_long()
        finally:
            await wg.wait()
            cleaned.append(1)

    async def main() -> None:
        wg = gofer.WaitGroup()
        wg.go(fails, wg)
        await parked(gofer.go(waits, wg))

    cleaned: list[int] = []
    release = threading.Event()
    with thread(release.wait):
        try:
            with pytest.raises(KeyError, match="in clean-up"):
                gofer.run(main, procs=procs)
        finally:
            release.set()
    assert cleaned == [1]


@pytest.mark.parametrize("fn", [5, None, "f", object()])
def test_go_of_what_cannot_be_called_is_a_type_error_at_once(fn: Any) -> None:
    async def main() -> None:
        wg = gofer.WaitGroup()
        with pytest.raises(TypeError) as info:
            wg.go(fn)
        assert repr(fn) in str(info.value)
        await at_zero(wg)

    gofer.run(main)


def test_go_outside_a_run_is_a_runtime_error() -> None:
    wg = gofer.WaitGroup()
    with pytest.raises(RuntimeError):
        wg.go(give, 1)
    assert count_of(wg) == 0
