"""Stall: what does a task that does not let go do to the others?

Tickers sleep 10 ms at a time and note how late they are. Beside them some tasks do what one should
not do on an event loop: call something that blocks, or compute. The figure is the worst delay of
any tick; the 99th percentile stands beside it. A runtime that cannot take a processor away from a
task shows the length of the call.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from benchmarks._model import (
    CPU_SECONDS,
    CPU_SHARE,
    P99_DELAY,
    WORST_DELAY,
    Bar,
    Case,
    Job,
    Workload,
    peer,
    with_procs,
)

PERIOD = 0.01  # seconds
SLEEP, LOOP = 0, 1  # kinds of blockers


def block(job: Job) -> None:
    """What a task should not do for long."""
    seconds = job.size["ms"] / 1000
    if job.size["kind"] == SLEEP:
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Ticks:
    """Collects how late each tick is."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.stopped = False

    async def ticker(self, sleep: Callable[[float], Any]) -> None:
        last = time.perf_counter()
        while not self.stopped:
            await sleep(PERIOD)
            now = time.perf_counter()
            self.late.append(now - last - PERIOD)
            last = now


def gofer_async(job: Job) -> None:
    import gofer

    async def blocker() -> None:
        block(job)

    async def main() -> None:
        ticks = Ticks()
        with job.measure():
            tickers = [gofer.go(ticks.ticker, gofer.sleep) for _ in range(job.size["tickers"])]
            await gofer.sleep(0.1)
            for g in [gofer.go(blocker) for _ in range(job.size["blockers"])]:
                await g
            ticks.stopped = True
            for t in tickers:
                await t
        job.delays(ticks.late)

    gofer.run(main, procs=job.procs)


def gofer_plain(job: Job) -> None:
    """As a plain function: the idiom for code that is not async."""
    import gofer

    async def main() -> None:
        ticks = Ticks()
        with job.measure():
            tickers = [gofer.go(ticks.ticker, gofer.sleep) for _ in range(job.size["tickers"])]
            await gofer.sleep(0.1)
            for g in [gofer.go(block, job) for _ in range(job.size["blockers"])]:
                await g
            ticks.stopped = True
            for t in tickers:
                await t
        job.delays(ticks.late)

    gofer.run(main, procs=job.procs)


def gofer_no_tickers(job: Job) -> None:
    """The same computations alone: what the tickers cost them."""
    import gofer

    async def blocker(rounds: int) -> None:
        work(rounds)

    async def main() -> None:
        with job.measure():
            for g in [gofer.go(blocker, job.size["work"]) for _ in range(job.size["blockers"])]:
                await g

    gofer.run(main, procs=job.procs)


def gofer_work(job: Job) -> None:
    """Computations of a fixed length beside tickers."""
    import gofer

    async def blocker(rounds: int) -> None:
        work(rounds)

    async def main() -> None:
        ticks = Ticks()
        tickers = [gofer.go(ticks.ticker, gofer.sleep) for _ in range(job.size["tickers"])]
        await gofer.sleep(0.1)
        with job.measure():
            for g in [gofer.go(blocker, job.size["work"]) for _ in range(job.size["blockers"])]:
                await g
        ticks.stopped = True
        for t in tickers:
            await t
        job.delays(ticks.late)

    gofer.run(main, procs=job.procs)


def work(rounds: int) -> int:
    """A piece of computing, the same everywhere."""
    total = 0
    for i in range(rounds):
        total += i * i % 1000
    return total


def gofer_blocking(job: Job) -> None:
    """`with blocking()`: how long until another goroutine runs."""
    import gofer

    late: list[float] = []

    async def other(ch: gofer.Chan[float]) -> None:
        late.extend([time.perf_counter() - began async for began in ch])

    async def main() -> None:
        ch = gofer.Chan[float](1)
        g = gofer.go(other, ch)
        with job.measure():
            for _ in range(job.size["blockers"]):
                ch.send_nowait(time.perf_counter())
                with gofer.blocking():
                    time.sleep(0.001)
                await gofer.sleep(0)
        ch.close()
        await g
        job.delays(late)

    gofer.run(main, procs=job.procs)


def gofer_many(job: Job) -> None:
    """Many that block at once: how much later than the call takes the last one ends."""
    import gofer

    async def blocker() -> None:
        block(job)

    async def main() -> None:
        start = time.perf_counter()
        with job.measure():
            for g in [gofer.go(blocker) for _ in range(job.size["blockers"])]:
                await g
        job.delays([time.perf_counter() - start - job.size["ms"] / 1000])

    gofer.run(main, procs=job.procs)


def gofer_idle(job: Job) -> None:
    """One goroutine in a long sleep, nothing else."""
    import gofer

    async def main() -> None:
        await gofer.sleep(0.5)
        with job.measure():
            await gofer.sleep(job.size["ms"] / 1000)

    gofer.run(main, procs=job.procs)


def asyncio_ticks(job: Job) -> None:
    asyncio = peer("asyncio")

    async def blocker() -> None:
        block(job)

    async def main() -> None:
        ticks = Ticks()
        with job.measure():
            tickers = [
                asyncio.create_task(ticks.ticker(asyncio.sleep)) for _ in range(job.size["tickers"])
            ]
            await asyncio.sleep(0.1)
            await asyncio.gather(*[blocker() for _ in range(job.size["blockers"])])
            ticks.stopped = True
            await asyncio.gather(*tickers)
        job.delays(ticks.late)

    job.run_loop(main)


def trio_ticks(job: Job) -> None:
    trio = peer("trio")

    async def blocker() -> None:
        block(job)

    async def main() -> None:
        ticks = Ticks()
        with job.measure():
            async with trio.open_nursery() as nursery:
                for _ in range(job.size["tickers"]):
                    nursery.start_soon(ticks.ticker, trio.sleep)
                await trio.sleep(0.1)
                async with trio.open_nursery() as blockers:
                    for _ in range(job.size["blockers"]):
                        blockers.start_soon(blocker)
                ticks.stopped = True
        job.delays(ticks.late)

    trio.run(main)


def tonio_ticks(job: Job) -> None:
    tonio = peer("tonio.colored")

    async def blocker() -> None:
        block(job)

    async def blockers(ticks: Ticks) -> None:
        await tonio.sleep(0.1)
        await tonio.spawn.without_results(*[blocker() for _ in range(job.size["blockers"])])
        ticks.stopped = True

    async def main() -> None:
        ticks = Ticks()
        with job.measure():
            await tonio.spawn.without_results(
                *[ticks.ticker(tonio.sleep) for _ in range(job.size["tickers"])], blockers(ticks)
            )
        job.delays(ticks.late)

    tonio.run(main(), threads=job.procs)


def both(case: Case) -> list[Case]:
    """At 1 and 2 Ps, with the GIL too: that one thread at a time runs Python code is no excuse."""
    return [dataclasses.replace(case, procs=procs) for procs in (1, 2)]


def ticking(group: str, **size: int) -> list[Case]:
    """gofer and all peers beside the same blockers."""
    return [
        *both(Case("gofer", "async", gofer_async, group, size=size)),
        *both(Case("gofer", "plain", gofer_plain, group, size=size)),
        Case("asyncio", "async", asyncio_ticks, group, size=size),
        Case("trio", "async", trio_ticks, group, size=size),
        *with_procs(Case("tonio", "async", tonio_ticks, group, size=size), 1, 2),
        *both(Case("go", "go", None, group, size=size)),
    ]


WORKERS = {"blockers": 16, "tickers": 50}

CASES = (
    *ticking("sleep", kind=SLEEP),
    *ticking("loop", kind=LOOP),
    *both(Case("gofer", "beside tickers", gofer_work, "computing", size=WORKERS)),
    *both(Case("gofer", "alone", gofer_no_tickers, "computing", size=WORKERS)),
    *both(Case("gofer", "blocking()", gofer_blocking, "hand-over", size={"blockers": 200})),
    *both(Case("gofer", "time.sleep", gofer_many, "many", size={"blockers": 1000, "ms": 500})),
    *both(Case("gofer", "asleep", gofer_idle, "idle", size={"ms": 5000})),
)


def bars() -> list[Bar]:
    """Those of both builds and both numbers of Ps; then what only one of them promises."""
    found = []
    for build in ("gil", "free-threaded"):
        for procs in (1, 2):
            ours = f"gofer-p{procs}"

            def bar(says: str, case: str, at_most: float, **more: Any) -> Bar:
                return Bar(f"{ours}: {says}", build, f"{ours}/{case}", at_most=at_most, **more)  # noqa: B023

            found += [
                bar("beside time.sleep, worst at most 25 ms", "sleep/async", 0.025),
                bar("... 99th percentile 5 ms", "sleep/async", 0.005, metric=P99_DELAY),
                bar("beside loops, worst 70 ms", "loop/async", 0.070),
                bar("... 99th percentile 35 ms", "loop/async", 0.035, metric=P99_DELAY),
                bar("blocking(): 1 ms", "hand-over/blocking()", 0.001, metric=P99_DELAY),
                bar("1000 time.sleep(0.5) at most 1 s late", "many/time.sleep", 1.0),
                bar("idle: under 0.5 % of a CPU", "idle/asleep", 0.005, metric=CPU_SHARE),
            ]
        found += [
            Bar(
                "beside 16 that compute, 99th percentile",
                build,
                "gofer-p2/computing/beside tickers",
                at_most=0.040,
                metric=P99_DELAY,
            ),
            Bar(
                "... which take at most 10 % more CPU than alone",
                build,
                "gofer-p2/computing/beside tickers",
                ("gofer-p2/computing/alone",),
                at_most=1.10,
                metric=CPU_SECONDS,
            ),
        ]
    return found


WORKLOAD = Workload(
    name="stall",
    title="tickers of 10 ms beside tasks that do not let go",
    how_to_read=(
        "How late ticks are. sleep: beside two calls of time.sleep(2) (in Go, of nanosleep);"
        " loop: beside two loops of 2 s; work: beside 16 computations. hand-over: until another"
        " goroutine runs; many: the last of 1000 time.sleep(0.5); idle: look at the CPU column."
    ),
    metric=WORST_DELAY,
    size={"tickers": 100, "blockers": 2, "kind": SLEEP, "ms": 2000, "work": 8_000_000},
    quick={"tickers": 20, "blockers": 2, "kind": SLEEP, "ms": 200, "work": 200_000},
    ops=lambda size: size["tickers"],
    cases=CASES,
    bars=tuple(bars()),
    more=(P99_DELAY, CPU_SHARE),
)
