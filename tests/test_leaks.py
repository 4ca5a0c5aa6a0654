"""Goroutines that nothing can ever wake: found by the collector, reported, and ended."""

import gc
import io
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gofer
from gofer import _core, net, runtime
from tests.support import (
    PATIENCE,
    give,
    here,
    parked,
    run_program,
    sleep_long,
    spin,
    thread,
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


def test_one_that_waits_for_the_lock_that_it_holds(
    monkeypatch: pytest.MonkeyPatch, procs: int
) -> None:
    """What it waits for is unlocked by its own clean-up."""
    unraisable: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(repr(args.exc_value)))

    async def main() -> None:
        for _ in range(5):
            gofer.go(locks_in_a_block, gofer.Mutex())
        with pytest.warns(gofer.GoroutineLeakWarning, match="leaked"):
            await collected(1)

    gofer.run(main, procs=procs)
    assert unraisable == []


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


# --- runtime.leaks(): the same, on demand, and nothing is ended -----------------------------------


@pytest.fixture
def no_collector() -> Iterator[None]:
    """It would find them first."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def leaked(*names: str) -> None:
    """Wait until leaks() gives goroutines of these names: they may not be parked yet."""

    def found() -> bool:
        seen.append(sorted(g.name for g in runtime.leaks()))
        return seen[-1] == sorted(names)

    seen: list[list[str]] = []
    deadline = time.monotonic() + PATIENCE / 4
    while not found():
        assert time.monotonic() < deadline, (names, seen[-1])
        await gofer.sleep(0.001)


async def no_leaks(*goroutines: gofer.Goroutine[Any]) -> None:
    await parked(*goroutines)
    for _ in range(3):
        assert runtime.leaks() == []
        await gofer.sleep(0.002)


async def sends(ch: gofer.Chan[int]) -> None:
    await ch.send(1)


async def receives(ch: gofer.Chan[int]) -> None:
    await ch.recv()


async def iterates(ch: gofer.Chan[int]) -> None:
    async for _ in ch:
        pass


async def selects(a: gofer.Chan[int], b: gofer.Chan[int]) -> None:
    await gofer.select(a.recv(), b.send(1))


async def locks(mu: gofer.Mutex) -> None:
    await mu.lock()
    await mu.lock()


async def locks_in_a_block(mu: gofer.Mutex) -> None:
    async with mu:
        await mu.lock()


async def locks_rw(mu: gofer.RWMutex) -> None:
    await mu.rlock()
    await mu.lock()


async def rlocks(mu: gofer.RWMutex) -> None:
    await mu.lock()
    await mu.rlock()


async def waits_for_group() -> None:
    wg = gofer.WaitGroup()
    wg.add(1)
    await wg.wait()


async def waits_for_cond() -> None:
    mu = gofer.Mutex()
    async with mu:
        await gofer.Cond(mu).wait()


async def acquires() -> None:
    s = gofer.Semaphore(1)
    await s.acquire()
    await s.acquire()


async def selects_nothing() -> None:
    await gofer.select()


async def selects_nil() -> None:
    await gofer.select(None, None)


async def receives_from_a_view() -> None:
    await gofer.Chan[int]().receiver.recv()


async def waits_for_one_that_leaks() -> None:
    await gofer.go(receives, gofer.Chan[int]())


async def double_send() -> None:
    """Of two senders one finds nobody who receives."""
    ch = gofer.Chan[int]()
    gofer.go(sends, ch)
    gofer.go(sends, ch)
    await ch.recv()


async def early_return() -> None:
    """Who would have received has given up."""
    ch = gofer.Chan[int]()
    gofer.go(sends, ch)


async def n_casts() -> None:
    """The first answer is enough, the others are never taken."""
    ch = gofer.Chan[int]()
    for _ in range(3):
        gofer.go(sends, ch)
    await ch.recv()


async def no_close() -> None:
    """A channel that is iterated over and never closed."""
    ch = gofer.Chan[int]()
    gofer.go(iterates, ch)
    await ch.send(1)


async def timed_out() -> None:
    """The answer comes too late for whoever waited."""
    ch = gofer.Chan[int]()
    gofer.go(sends, ch)
    await gofer.select(gofer.sleep(0))


async def forgotten_worker() -> None:
    """A worker that listens for jobs and for the end, and hears of neither."""
    gofer.go(selects, gofer.Chan[int](), gofer.Chan[int]())


CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "send": (lambda: gofer.go(sends, gofer.Chan[int]()), ["sends"]),
    "receive": (lambda: gofer.go(receives, gofer.Chan[int]()), ["receives"]),
    "range": (lambda: gofer.go(iterates, gofer.Chan[int]()), ["iterates"]),
    "full buffer": (lambda: gofer.go(fills, gofer.Chan[int](1)), ["fills"]),
    "select": (lambda: gofer.go(selects, gofer.Chan[int](), gofer.Chan[int]()), ["selects"]),
    "empty select": (lambda: gofer.go(selects_nothing), ["selects_nothing"]),
    "nil channels": (lambda: gofer.go(selects_nil), ["selects_nil"]),
    "mutex": (lambda: gofer.go(locks, gofer.Mutex()), ["locks"]),
    "mutex in a block": (
        lambda: gofer.go(locks_in_a_block, gofer.Mutex()),
        ["locks_in_a_block"],
    ),
    "rw lock": (lambda: gofer.go(locks_rw, gofer.RWMutex()), ["locks_rw"]),
    "rw rlock": (lambda: gofer.go(rlocks, gofer.RWMutex()), ["rlocks"]),
    "wait group": (lambda: gofer.go(waits_for_group), ["waits_for_group"]),
    "cond": (lambda: gofer.go(waits_for_cond), ["waits_for_cond"]),
    "semaphore": (lambda: gofer.go(acquires), ["acquires"]),
    "view": (lambda: gofer.go(receives_from_a_view), ["receives_from_a_view"]),
    "chain": (lambda: gofer.go(waits_for_one_that_leaks), ["receives", "waits_for_one_that_leaks"]),
    "double send": (lambda: gofer.go(double_send), ["sends"]),
    "early return": (lambda: gofer.go(early_return), ["sends"]),
    "n casts": (lambda: gofer.go(n_casts), ["sends", "sends"]),
    "no close": (lambda: gofer.go(no_close), ["iterates"]),
    "timed out": (lambda: gofer.go(timed_out), ["sends"]),
    "forgotten worker": (lambda: gofer.go(forgotten_worker), ["selects"]),
}


async def fills(ch: gofer.Chan[int]) -> None:
    await ch.send(1)
    await ch.send(2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("procs", [1, 4])
def test_leaks_are_found_on_demand(no_collector: None, case: str, procs: int) -> None:
    start, names = CASES[case]

    async def main() -> None:
        start()
        await leaked(*names)
        assert gofer.num_goroutine() == 1 + len(names)  # nothing was ended

    gofer.run(main, procs=procs)


def test_leaks_are_marked_in_a_dump_on_request(no_collector: None, procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        gofer.go(receives, ch)
        gofer.go(receives, gofer.Chan[int]())
        await leaked("receives")
        f, g, h = io.StringIO(), io.StringIO(), io.StringIO()
        runtime.dump(f, leaks=True)
        assert f.getvalue().count("[chan receive (leaked)]:") == 1
        assert f.getvalue().count("[chan receive]:") == 1
        runtime.dump(g)
        assert g.getvalue().count("[chan receive]:") == 2
        runtime.dump(h, leaks=True, group=True)
        assert h.getvalue().count("(leaked)") == 1
        await ch.send(1)

    gofer.run(main, procs=procs)


GLOBAL: list[Any] = []


class Holder:
    pass


async def holds_while_it_sleeps(what: object) -> None:
    await gofer.sleep(100_000)


async def holds_while_it_reads(what: object) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        await net.wait_readable(reader)
    finally:
        os.close(reader)
        os.close(writer)


def held_by_a_closure(ch: gofer.Chan[int]) -> Callable[[], gofer.Chan[int]]:
    return lambda: ch


def test_what_could_still_be_woken_is_no_leak(no_collector: None, procs: int) -> None:
    async def main() -> None:
        holder = Holder()
        mine = gofer.Chan[int]()
        keep: list[Any] = [mine, gofer.Chan[int](), held_by_a_closure(gofer.Chan[int]())]
        holder.__dict__["deep"] = {"er": (gofer.Chan[int](),)}
        GLOBAL.append({"a": [gofer.Chan[int]()]})
        sleeps, io_waits = gofer.Chan[int](), gofer.Chan[int]()
        others = [gofer.go(holds_while_it_sleeps, sleeps), gofer.go(holds_while_it_reads, io_waits)]
        timer = gofer.Chan[int]()
        gofer.after_func(100_000, timer.close)
        bound = gofer.Chan[int]()
        weak = []
        for ch in (
            *(mine, keep[1], keep[2](), holder.__dict__["deep"]["er"][0], GLOBAL[0]["a"][0]),
            *(sleeps, io_waits, timer, bound.sender),
        ):
            if isinstance(ch, gofer.Chan):
                weak.append(weakref.ref(gofer.go(receives, ch)))
        del ch, sleeps, io_waits, timer, bound
        alive = [g for ref in weak if (g := ref()) is not None]
        assert len(alive) == len(weak) == 8
        await parked(*alive, *others)
        del alive
        await no_leaks()
        GLOBAL.clear()
        await leaked("receives")  # the one in the global

    gofer.run(main, procs=procs)
    GLOBAL.clear()


def test_what_a_foreign_thread_holds_is_no_leak(no_collector: None, procs: int) -> None:
    def foreign() -> None:
        ch = gofer.Chan[int]()
        gofer.go(receives, ch)
        ready.set()
        release.wait()
        gofer.block(ch.send(1))

    async def main() -> None:
        with thread(foreign):
            try:
                await until(ready.is_set)
                await until(lambda: len(runtime.goroutines()) == 2)
                await no_leaks(*runtime.goroutines()[1:])
            finally:
                release.set()
        await until(lambda: len(runtime.goroutines()) == 1)

    ready, release = threading.Event(), threading.Event()
    gofer.run(main, procs=procs)


async def holds_on_its_stack(ch: gofer.Chan[int]) -> None:
    """A leak, with a generator that stops in the middle of a call whose arguments it has loaded."""

    def gives() -> Iterator[None]:
        mine = ch
        (lambda *args: None)(mine, mine, mine, (yield))

    suspended = gives()
    next(suspended)
    await gofer.Chan[None]().recv()
    del suspended


def test_what_a_leak_has_on_its_stack_as_well_is_counted_once(
    no_collector: None, procs: int
) -> None:
    def foreign(box: list[gofer.Chan[int]]) -> None:
        ch = box.pop()
        gofer.block(started.send(None))
        gofer.block(done.recv_ok())
        ch.close()

    def start() -> None:
        ch = gofer.Chan[int]()
        gofer.go(holds_on_its_stack, ch)
        gofer.go(iterates, ch)
        box.append(ch)

    async def main() -> None:
        start()
        with thread(foreign, box):
            try:
                await started.recv()
                await leaked("holds_on_its_stack")
            finally:
                done.close()

    box: list[gofer.Chan[int]] = []
    started, done = gofer.Chan[None](), gofer.Chan[None]()
    gofer.run(main, procs=procs)


def test_what_a_handle_or_a_deadline_can_still_end_is_no_leak(
    no_collector: None, procs: int
) -> None:
    async def under_deadline() -> None:
        async with gofer.timeout(100_000):
            await gofer.Chan[int]().recv()

    async def main() -> None:
        held = gofer.go(receives, gofer.Chan[int]())
        timed = gofer.go(under_deadline)
        await no_leaks(held, timed)
        del timed
        await no_leaks()
        del held
        await leaked("receives")

    gofer.run(main, procs=procs)


def test_what_a_running_goroutine_holds_is_no_leak(no_collector: None) -> None:
    """In its frames, on another thread, in the middle of a plain function."""
    stop = threading.Event()

    def computes() -> None:
        ch = gofer.Chan[int]()
        gofer.go(receives, ch)
        started.set()
        while not stop.is_set():
            spin(0.001)
        gofer.block(ch.send(1))

    async def main() -> None:
        g = gofer.go(computes)
        try:
            await until(started.is_set)
            for _ in range(20):
                assert runtime.leaks() == []
                await gofer.sleep(0.002)
        finally:
            stop.set()
        await g

    started = threading.Event()
    gofer.run(main, procs=2)


def test_the_result_keeps_them_until_it_is_dropped(no_collector: None) -> None:
    async def main() -> None:
        gofer.go(receives, gofer.Chan[int]())
        await leaked("receives")
        found = runtime.leaks()
        assert [g.state for g in found] == ["waiting"]
        assert runtime.leaks() == []  # they could be cancelled now
        found[0].cancel()
        await until(found[0].done)

    gofer.run(main)


def test_the_collector_ends_them_afterwards(procs: int) -> None:
    async def main() -> None:
        gc.disable()
        gofer.go(receives, gofer.Chan[int]())
        await leaked("receives")
        gc.enable()
        with pytest.warns(gofer.GoroutineLeakWarning, match="leaked"):
            await collected(1)

    gofer.run(main, procs=procs)
