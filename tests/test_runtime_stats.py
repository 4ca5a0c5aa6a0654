"""runtime.stats(), metrics() and goroutines(): numbers that agree with what goes on."""

import dataclasses
import itertools
import math
import threading
import time
from typing import Any

import pytest

import gofer
from gofer import runtime
from tests.support import (
    FREE_THREADED,
    RING_SIZE,
    give,
    parked,
    sleep_long,
    spin,
    thread,
    until,
    wait_for,
)

COUNTERS = ("created", "steals", "handoffs", "preemptions", "switches")


def check(s: runtime.Stats) -> None:
    """What holds at any moment."""
    assert s.gomaxprocs == len(s.procs)
    assert [p.id for p in s.procs] == list(range(s.gomaxprocs))
    assert 0 <= s.idle_procs <= s.gomaxprocs
    assert s.idle_threads + s.spinning_threads <= s.threads + s.gomaxprocs
    assert s.need_spinning == 0
    assert s.timers == sum(p.timers for p in s.procs)
    for p in s.procs:
        assert p.status in ("idle", "running", "syscall", "stopped")
        assert 0 <= p.queue <= RING_SIZE
        assert isinstance(p.runnext, bool)
        assert (p.status == "idle") <= (p.thread is None)
        assert (p.thread is None) <= (p.goroutine is None)
    for name in ("runnable", "running", "waiting", "syscall", "goroutines", "created"):
        assert getattr(s, name) >= 0


# --- Outside a run --------------------------------------------------------------------------------


def test_outside_a_run_it_is_empty() -> None:
    s = runtime.stats()
    assert s.gomaxprocs == gofer.gomaxprocs()
    assert s.num_cpu == gofer.num_cpu()
    assert s.procs == ()
    for name in ("goroutines", "runnable", "running", "waiting", "syscall", "threads", "timers"):
        assert getattr(s, name) == 0, name
    for name in ("idle_procs", "idle_threads", "blocked_threads", "stopped_threads"):
        assert getattr(s, name) == 0, name
    assert runtime.goroutines() == []
    assert runtime.leaks() == []


def test_is_frozen_and_typed() -> None:
    s = runtime.stats()
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.goroutines = 5  # type: ignore[misc]
    assert isinstance(s.time, float)
    assert abs(s.time - time.monotonic()) < 60
    assert isinstance(s.latencies, runtime.Histogram)
    assert isinstance(s.poller, runtime.PollerStats)


# --- Goroutines by state --------------------------------------------------------------------------


def test_counts_goroutines_that_wait(procs: int) -> None:
    async def main() -> runtime.Stats:
        ch = gofer.Chan[int]()
        gs = [gofer.go(wait_for, ch.recv()) for _ in range(1000)]
        await parked(*gs)
        s = runtime.stats()
        for _ in gs:
            await ch.send(1)
        return s

    s = gofer.run(main, procs=procs)
    check(s)
    assert s.gomaxprocs == procs
    assert s.goroutines == 1001
    assert 1000 <= s.waiting <= 1001
    assert s.running >= 1


def test_created_grows_by_exactly_as_many_as_were_started(procs: int) -> None:
    async def main() -> int:
        before = runtime.stats().created
        for g in [gofer.go(give, i) for i in range(500)]:
            await g
        return runtime.stats().created - before

    before = runtime.stats().created
    assert gofer.run(main, procs=procs) == 500
    assert runtime.stats().created == before + 501


def test_one_that_runs_and_those_that_are_queued_behind_it(no_handoff: None) -> None:
    async def main() -> runtime.Stats:
        gs = [gofer.go(give, i) for i in range(300)]
        s = runtime.stats()
        for g in gs:
            await g
        return s

    s = gofer.run(main, procs=1)
    check(s)
    assert s.running == 1
    assert s.runnable == 300
    assert s.global_queue + s.procs[0].queue + s.procs[0].runnext == 300
    assert s.procs[0].runnext
    assert s.procs[0].goroutine == 1
    assert s.procs[0].status == "running"


@pytest.mark.skipif(not FREE_THREADED, reason="with the GIL one at a time computes")
def test_spinners_on_enough_ps_all_run() -> None:
    stop = threading.Event()

    async def spinner() -> None:
        while not stop.is_set():
            spin(0.001)

    async def main() -> None:
        gs = [gofer.go(spinner) for _ in range(10)]
        try:
            await until(lambda: 10 <= runtime.stats().running <= 14, "ten that run")
        finally:
            stop.set()
        for g in gs:
            await g

    gofer.run(main, procs=14)


def test_spinners_on_one_p_take_turns() -> None:
    stop = threading.Event()

    async def spinner() -> None:
        while not stop.is_set():
            spin(0.001)

    async def main() -> None:
        gs = [gofer.go(spinner) for _ in range(10)]
        try:
            await until(few_run, "one that runs and nine in the queue")
            await until(lambda: runtime.stats().stopped_threads > 0, "one that was stopped")
            assert runtime.stats().preemptions > 0
        finally:
            stop.set()
        for g in gs:
            await g

    def few_run() -> bool:
        s = runtime.stats()
        return s.running == 1 and s.runnable >= 9

    gofer.run(main, procs=1)


def test_calls_that_block_are_counted_apart(procs: int) -> None:
    release = threading.Event()

    def block() -> None:
        release.wait()

    async def main() -> runtime.Stats:
        before = runtime.stats()
        gs = [gofer.go(block) for _ in range(10)]
        try:
            await until(ten_block, "ten that block")
            await until(lambda: runtime.metrics()[not_in_go] == 10)
        finally:
            release.set()
        for g in gs:
            await g
        s = seen[-1]
        assert s.handoffs > before.handoffs
        return s

    def ten_block() -> bool:
        seen.append(runtime.stats())
        return seen[-1].syscall >= 10

    seen: list[runtime.Stats] = []
    not_in_go = "/sched/goroutines/not-in-go:goroutines"
    s = gofer.run(main, procs=procs)
    check(s)
    assert s.syscall == 10
    assert 10 - procs <= s.blocked_threads <= 10
    assert s.threads >= 11


def test_blocking_gives_the_p_up_at_once() -> None:
    async def main() -> None:
        before = sum(p.syscalltick for p in runtime.stats().procs)
        with gofer.blocking():
            s = runtime.stats()
            assert sum(p.syscalltick for p in s.procs) == before + 1
            assert s.running == 1

    gofer.run(main, procs=1)


# --- Timers, poller, counters ---------------------------------------------------------------------


def test_counts_timers(procs: int) -> None:
    async def main() -> None:
        before = runtime.stats().timers
        gs = [gofer.go(sleep_long) for _ in range(20)]
        await parked(*gs)
        assert runtime.stats().timers == before + 20

    gofer.run(main, procs=procs)


def test_counts_descriptors_and_who_waits_for_them(procs: int) -> None:
    from gofer import net

    async def main() -> None:
        before = runtime.stats().poller
        listener = await net.listen("127.0.0.1", 0)
        accepts = gofer.go(wait_for, listener.accept())
        await parked(accepts)
        async with await net.dial(*listener.addr) as conn:
            server = await accepts
            reads = gofer.go(wait_for, server.read(1))
            await parked(reads)
            s = runtime.stats().poller
            assert 2 <= s.descriptors - before.descriptors <= 3  # a quick dial needs none
            assert s.readers == before.readers + 1
            assert s.writers == before.writers
            assert s.polls > before.polls
            await conn.write(b"x")
            assert await reads == b"x"
            assert runtime.stats().poller.events > before.events
            await server.close()
        await listener.close()
        assert runtime.stats().poller.descriptors == before.descriptors

    gofer.run(main, procs=procs)


def test_counters_only_grow_over_runs_and_when_ps_go_away(procs: int) -> None:
    seen: list[runtime.Stats] = [runtime.stats()]

    async def main() -> None:
        for n in (procs, 1, procs):
            gofer.gomaxprocs(n)
            for g in [gofer.go(give, i) for i in range(100)]:
                await g
            seen.append(runtime.stats())

    for _ in range(3):
        gofer.run(main, procs=procs)
        seen.append(runtime.stats())
    for before, after in itertools.pairwise(seen):
        for name in COUNTERS:
            assert getattr(after, name) >= getattr(before, name), name
        assert (after.latencies - before.latencies).total >= 0
        assert all(n >= 0 for n in (after.latencies - before.latencies).counts)
    assert seen[-1].switches >= seen[0].switches + 900


def test_a_switch_is_counted_each_time_a_goroutine_goes_on(no_handoff: None) -> None:
    async def main() -> int:
        before = runtime.stats().switches
        for _ in range(100):
            await gofer.gosched()
        return runtime.stats().switches - before

    assert gofer.run(main, procs=1) == 100


# --- Latencies ------------------------------------------------------------------------------------


def test_latencies_have_the_layout_of_go() -> None:
    h = runtime.stats().latencies
    assert len(h.counts) == 162
    assert len(h.buckets) == 163
    assert h.buckets[0] == -math.inf
    assert h.buckets[-1] == math.inf
    assert h.buckets[1] == 0
    assert list(h.buckets) == sorted(set(h.buckets))
    for low, high in zip(h.buckets[5:-1], h.buckets[6:-1], strict=False):
        assert high <= low * 1.25001
    assert h.buckets[2] == 64e-9
    assert h.buckets[-2] == 2**47 / 1e9


def test_one_in_eight_is_measured(no_handoff: None) -> None:
    async def main() -> int:
        before = runtime.stats().latencies
        for _ in range(800):
            await gofer.gosched()
        return (runtime.stats().latencies - before).total

    assert 99 <= gofer.run(main, procs=1) <= 101


def test_a_long_wait_for_the_p_is_in_the_right_bucket(no_handoff: None) -> None:
    """They wait for one that has the only P for 50 ms. Of 64, one is measured and counts for 8."""

    async def main() -> runtime.Histogram:
        before = runtime.stats().latencies
        gs = [gofer.go(give, i) for i in range(64)]
        spin(0.05)
        for g in gs:
            await g
        return runtime.stats().latencies - before

    h = gofer.run(main, procs=1)
    slow = sum(n for n, low in zip(h.counts, h.buckets, strict=False) if low >= 0.03)
    assert slow == 8
    assert h.quantile(1) >= 0.05
    assert h.quantile(1) < 5


def test_quantiles() -> None:
    bounds = (-math.inf, 0.0, 1.0, 2.0, math.inf)
    h = runtime.Histogram((0, 90, 9, 1), bounds)
    assert h.total == 100
    assert h.quantile(0.5) == 1.0
    assert h.quantile(0.95) == 2.0
    assert h.quantile(1) == 2.0  # not infinity
    assert runtime.Histogram((0, 0, 0, 0), bounds).quantile(0.5) == 0.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        h.quantile(2)
    with pytest.raises(ValueError, match="different buckets"):
        h - runtime.Histogram((1,), (0.0, 1.0))


# --- Metrics --------------------------------------------------------------------------------------


def test_metrics_have_the_names_of_go(procs: int) -> None:
    async def main() -> dict[str, Any]:
        mu = gofer.Mutex()
        await mu.lock()
        gs = [gofer.go(hold, mu) for _ in range(64)]
        await parked(*gs)
        await gofer.sleep(0.02)
        mu.unlock()
        for g in gs:
            await g
        gofer.gomaxprocs(procs + 1)
        return dict(runtime.metrics())

    async def hold(mu: gofer.Mutex) -> None:
        async with mu:
            pass

    before = runtime.metrics()
    m = gofer.run(main, procs=procs)
    assert m["/sched/gomaxprocs:threads"] == procs + 1
    assert m["/sched/goroutines:goroutines"] == 1
    assert m["/sched/threads/total:threads"] >= 2
    created = "/sched/goroutines-created:goroutines"
    assert m[created] - before[created] == 65
    waited = "/sync/mutex/wait/total:seconds"
    assert m[waited] - before[waited] >= 64 * 0.02
    for name in ("/sched/pauses/stopping/other:seconds", "/sched/pauses/total/other:seconds"):
        assert (m[name] - before[name]).total == 1
    assert m["/sched/latencies:seconds"].total > 0
    for state in ("not-in-go", "runnable", "running", "waiting"):
        assert m[f"/sched/goroutines/{state}:goroutines"] >= 0


# --- goroutines -----------------------------------------------------------------------------------


def test_goroutines_gives_all_that_are_alive_oldest_first(procs: int) -> None:
    async def main() -> None:
        gs = [gofer.go(sleep_long) for _ in range(50)]
        dead = gofer.go(give, 1)
        await dead
        assert runtime.goroutines() == sorted([gofer.current(), *gs], key=lambda g: g.id)

    gofer.run(main, procs=procs)


# --- From elsewhere -------------------------------------------------------------------------------


def test_any_thread_may_ask(procs: int) -> None:
    async def main() -> None:
        gs = [gofer.go(sleep_long) for _ in range(5)]
        await parked(*gs)
        with thread(ask):
            await until(lambda: bool(seen))
        check(seen[0])
        assert seen[0].goroutines == 6

    def ask() -> None:
        seen.append(runtime.stats())

    seen: list[runtime.Stats] = []
    gofer.run(main, procs=procs)
