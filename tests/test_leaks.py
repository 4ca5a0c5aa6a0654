"""Goroutines that nothing can ever wake: found by the collector, reported, and ended."""

import gc
import sys
import warnings
import weakref
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import (
    give,
    here,
    parked,
    run_program,
    sleep_long,
    until,
    wait_for,
    wait_for_first,
)


class Pair:
    """Two goroutines that await each other."""

    def __init__(self) -> None:
        self.cleaned: list[str] = []
        self.sites: list[str] = []

    async def wait(self, name: str, partner: list[gofer.Goroutine[None]]) -> None:
        try:
            await wait_for_first(partner)
        finally:
            self.cleaned.append(name)

    async def start(self) -> tuple[gofer.Goroutine[None], gofer.Goroutine[None]]:
        a_waits_for: list[gofer.Goroutine[None]] = []
        b_waits_for: list[gofer.Goroutine[None]] = []
        a = gofer.go(self.wait, "a", a_waits_for)
        self.sites.append(here(-1))
        b = gofer.go(self.wait, "b", b_waits_for)
        self.sites.append(here(-1))
        a_waits_for.append(b)
        b_waits_for.append(a)
        await parked(a, b)
        return a, b


async def collected(count: int) -> None:
    """Collect until so many goroutines are left: an M may hold one that has just parked."""

    def few() -> bool:
        gc.collect()
        return gofer.num_goroutine() <= count

    await until(few, f"only {count} goroutines left")


def test_a_pair_that_nobody_holds_is_reported_and_ended(procs: int) -> None:
    pair = Pair()

    async def main() -> None:
        await pair.start()
        with pytest.warns(gofer.GoroutineLeakWarning) as caught:
            await collected(1)
        assert len(caught) == 2
        texts = sorted(str(w.message) for w in caught)
        for text, site in zip(texts, sorted(pair.sites), strict=True):
            assert "(Pair.wait) leaked: it waits for ever [goroutine wait]" in text
            assert f"created at {site}" in text
        # The warning points at the line that started it.
        assert sorted(f"{w.filename}:{w.lineno}" for w in caught) == sorted(pair.sites)
        assert sorted(pair.cleaned) == ["a", "b"]
        assert gofer.num_goroutine() == 1
        assert _core.counters()["goroutines"] == 1

    gofer.run(main, procs=procs)


def test_the_name_given_to_go_is_in_the_warning() -> None:
    async def main() -> None:
        chain: list[gofer.Goroutine[Any]] = []
        chain.append(gofer.go(wait_second, chain, name="first"))
        chain.append(gofer.go(wait_for, chain[0], name="second"))
        await parked(*chain)
        chain_of_weak = [weakref.ref(g) for g in chain]
        del chain
        with pytest.warns(gofer.GoroutineLeakWarning) as caught:
            await collected(1)
        assert all(ref() is None for ref in chain_of_weak)
        assert sorted(str(w.message).split()[2] for w in caught) == ["(first)", "(second)"]

    async def wait_second(chain: list[gofer.Goroutine[Any]]) -> None:
        await chain[1]

    gofer.run(main, procs=1)


def test_a_long_chain_that_ends_in_a_cycle_is_reported_whole(procs: int) -> None:
    async def main() -> None:
        pair = Pair()
        a, b = await pair.start()
        last: gofer.Goroutine[Any] = a
        for _ in range(50):
            last = gofer.go(wait_for, last)
        await parked(last)
        del a, b, last
        with pytest.warns(gofer.GoroutineLeakWarning) as caught:
            await collected(1)
        assert len(caught) == 52

    gofer.run(main, procs=procs)


def no_leak_is_found() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            gc.collect()


def test_a_held_handle_keeps_both(procs: int) -> None:
    async def main() -> None:
        a, b = await Pair().start()
        del b
        no_leak_is_found()
        assert a.state == "waiting"
        assert gofer.num_goroutine() == 3
        a.cancel()
        await until(lambda: gofer.num_goroutine() == 1)

    gofer.run(main, procs=procs)


def test_an_awaiter_that_may_live_keeps_them(procs: int) -> None:
    async def main() -> None:
        a, b = await Pair().start()

        async def patient(target: gofer.Goroutine[None]) -> str:
            for _ in range(3):
                await gofer.sleep(0.005)
            target.cancel()
            return "woke it"

        rescuer = gofer.go(patient, a)
        del a, b
        await parked(rescuer)
        no_leak_is_found()
        assert await rescuer == "woke it"
        await until(lambda: gofer.num_goroutine() == 1)

    gofer.run(main, procs=procs)


HELD: list[Any] = []


def test_a_module_global_keeps_them(procs: int) -> None:
    async def main() -> None:
        a, b = await Pair().start()
        HELD.append({"deep": [b]})
        del a, b
        no_leak_is_found()
        assert gofer.num_goroutine() == 3
        HELD.clear()
        with pytest.warns(gofer.GoroutineLeakWarning):
            await collected(1)

    gofer.run(main, procs=procs)


def test_a_sleeper_is_never_a_leak(procs: int) -> None:
    async def main() -> None:
        gofer.go(sleep_long)
        gofer.go(wait_for, gofer.go(sleep_long))
        await until(lambda: _core.counters()["timers"] >= 2)
        no_leak_is_found()
        assert gofer.num_goroutine() == 4

    gofer.run(main, procs=procs)


def test_one_that_waits_for_main_is_never_a_leak(procs: int) -> None:
    async def main() -> None:
        for _ in range(10):
            gofer.go(wait_for, gofer.current())
        await gofer.sleep(0.01)
        no_leak_is_found()
        assert gofer.num_goroutine() == 11

    gofer.run(main, procs=procs)


def test_runnable_ones_are_never_leaks(procs: int) -> None:
    ended = []

    async def child(i: int) -> None:
        await gofer.gosched()
        ended.append(i)

    async def main() -> None:
        for i in range(1000):
            gofer.go(child, i)
        no_leak_is_found()
        await until(lambda: len(ended) == 1000)

    gofer.run(main, procs=procs)


def test_the_automatic_collector_finds_them_too() -> None:
    async def main() -> None:
        await Pair().start()
        with pytest.warns(gofer.GoroutineLeakWarning):
            await until(make_garbage)

    def make_garbage() -> bool:
        for _ in range(20_000):
            cycle: list[Any] = []
            cycle.append(cycle)
        return gofer.num_goroutine() == 1

    assert gc.isenabled()
    gofer.run(main, procs=1)


def test_a_finally_block_that_awaits_is_told_that_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is nobody left to wait for it; that must not be silent, and must not crash."""
    unraisable: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(repr(args.exc_value)))
    reached: list[str] = []

    async def wait(partner: list[gofer.Goroutine[None]]) -> None:
        try:
            await wait_for_first(partner)
        finally:
            reached.append("finally")
            await gofer.sleep(0.001)
            reached.append("slept")

    async def main() -> None:
        lists: list[list[gofer.Goroutine[None]]] = [[], []]
        a, b = (gofer.go(wait, x) for x in lists)
        lists[0].append(b)
        lists[1].append(a)
        await parked(a, b)
        del a, b, lists
        with pytest.warns(gofer.GoroutineLeakWarning):
            await collected(1)

    gofer.run(main, procs=1)
    assert reached.count("finally") == 2
    assert len(unraisable) == 2 - reached.count("slept")


def test_as_an_error_the_warning_is_unraisable_and_not_lost(
    monkeypatch: pytest.MonkeyPatch, procs: int
) -> None:
    unraisable: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(args.exc_value))
    pair = Pair()

    async def main() -> None:
        await pair.start()
        with warnings.catch_warnings():
            warnings.simplefilter("error", gofer.GoroutineLeakWarning)
            await collected(1)

    gofer.run(main, procs=procs)
    assert [type(exc) for exc in unraisable] == [gofer.GoroutineLeakWarning] * 2
    assert sorted(pair.cleaned) == ["a", "b"]


def test_is_a_runtime_warning() -> None:
    assert issubclass(gofer.GoroutineLeakWarning, RuntimeWarning)


def test_the_warning_is_shown_by_default_with_its_line() -> None:
    end = run_program(
        """
        import gc, gofer

        async def wait(partner):
            while not partner:
                await gofer.gosched()
            await partner[0]

        async def main():
            a, b = [], []
            a.append(gofer.go(wait, b))
            b.append(gofer.go(wait, a))
            del a, b
            while gofer.num_goroutine() > 1:
                await gofer.sleep(0.001)
                gc.collect()

        gofer.run(main)
        """
    )
    assert end.returncode == 0
    lines = end.stderr.splitlines()
    assert len([line for line in lines if "GoroutineLeakWarning" in line]) == 2
    assert "<string>:11: GoroutineLeakWarning: goroutine 2 (wait) leaked" in end.stderr


def test_a_leak_that_is_still_there_at_the_end_is_cancelled_like_the_others(procs: int) -> None:
    pair = Pair()

    async def main() -> None:
        gc.disable()
        await pair.start()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gofer.run(main, procs=procs)
    finally:
        gc.enable()
    assert sorted(pair.cleaned) == ["a", "b"]


def test_a_leaked_coroutine_object_may_be_looked_at_afterwards() -> None:
    async def main() -> None:
        a_waits_for: list[gofer.Goroutine[None]] = []
        pair = Pair()
        coro = pair.wait("a", a_waits_for)
        a = gofer.go(coro)
        b = gofer.go(wait_for, a)
        a_waits_for.append(b)
        await parked(a, b)
        del a, b, a_waits_for
        # Somebody holds the coroutine: through its frame that keeps everything it waits for, but
        # not its goroutine, and nothing else can resume it.
        gc.collect()
        await gofer.sleep(0.01)
        del coro

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gofer.GoroutineLeakWarning)
        gofer.run(main, procs=1)
        gc.collect()


def test_memory_stays_flat_over_many_leaks() -> None:
    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gofer.GoroutineLeakWarning)
            for _ in range(50):
                for _ in range(10):
                    await Pair().start()
                await collected(1)
                assert _core.counters()["goroutines"] == 1
        assert await gofer.go(give, 5) == 5

    gofer.run(main, procs=1)
