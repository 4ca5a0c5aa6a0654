"""Yield: what does one trip through the scheduler cost?

1000 goroutines give way 1000 times each. Nothing is created or woken in between, so this is the
bare switch: suspend, go to the tail of a queue, find the next one, resume it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from benchmarks._model import NS_PER_OP, Bar, Case, Job, Workload, peer, with_procs


def gofer_gosched(job: Job) -> None:
    import gofer

    gosched = gofer.gosched
    rounds = range(job.size["rounds"])

    async def task() -> None:
        for _ in rounds:
            await gosched()

    async def main() -> None:
        with job.measure():
            goroutines = [gofer.go(task) for _ in range(job.size["tasks"])]
            for g in goroutines:
                await g

    gofer.run(main, procs=job.procs)


def asyncio_sleep0(job: Job) -> None:
    asyncio = peer("asyncio")
    sleep = asyncio.sleep
    rounds = range(job.size["rounds"])

    async def task() -> None:
        for _ in rounds:
            await sleep(0)

    async def main() -> None:
        with job.measure():
            await asyncio.gather(*[task() for _ in range(job.size["tasks"])])

    job.run_loop(main)


def trio_checkpoint(job: Job) -> None:
    trio = peer("trio")
    checkpoint = trio.lowlevel.checkpoint
    rounds = range(job.size["rounds"])

    async def task() -> None:
        for _ in rounds:
            await checkpoint()

    async def main() -> None:
        with job.measure():
            async with trio.open_nursery() as nursery:
                for _ in range(job.size["tasks"]):
                    nursery.start_soon(task)

    trio.run(main)


def tonio_yield_now(job: Job) -> None:
    """Not a fair yield: the task is resumed at once, ahead of its peers. See README.md."""
    tonio = peer("tonio.colored")
    yield_now = tonio.yield_now
    rounds = range(job.size["rounds"])

    async def task() -> None:
        for _ in rounds:
            await yield_now()

    async def main() -> None:
        with job.measure():
            await tonio.spawn.without_results(*[task() for _ in range(job.size["tasks"])])

    tonio.run(main(), threads=job.procs)


def tonio_sleep0(job: Job) -> None:
    """The async form that does go round: the one that does the same work as gosched()."""
    tonio = peer("tonio.colored")
    sleep = tonio.sleep
    rounds = range(job.size["rounds"])

    async def task() -> None:
        for _ in rounds:
            await sleep(0)

    async def main() -> None:
        with job.measure():
            await tonio.spawn.without_results(*[task() for _ in range(job.size["tasks"])])

    tonio.run(main(), threads=job.procs)


def tonio_bare_yield(job: Job) -> None:
    """tonio's other API, generators without async/await: no awaitable is made for a yield."""
    tonio = peer("tonio")
    rounds = range(job.size["rounds"])

    def task() -> Generator[None, None, None]:
        for _ in rounds:
            yield

    def main() -> Generator[Any, None, None]:
        with job.measure():
            yield tonio.spawn.without_results(*[task() for _ in range(job.size["tasks"])])

    tonio.run(main(), threads=job.procs)


WORKLOAD = Workload(
    name="yields",
    title="yield",
    how_to_read="Time for one yield and the switch to the next task.",
    metric=NS_PER_OP,
    size={"tasks": 1000, "rounds": 1000},
    quick={"tasks": 1000, "rounds": 50},
    ops=lambda size: size["tasks"] * size["rounds"],
    cases=(
        *with_procs(Case("gofer", "gosched", gofer_gosched), 1, 2),
        Case("asyncio", "sleep(0)", asyncio_sleep0),
        Case("uvloop", "sleep(0)", asyncio_sleep0),
        Case("trio", "checkpoint", trio_checkpoint),
        *with_procs(Case("tonio", "yield_now", tonio_yield_now), 1, 2),
        *with_procs(Case("tonio", "sleep(0)", tonio_sleep0), 1, 2),
        *with_procs(Case("tonio", "bare yield", tonio_bare_yield), 1, 2),
        *with_procs(Case("go", "Gosched", None), 1, 2),
    ),
    bars=(
        Bar("at least 6x asyncio", "gil", "gofer-p1/gosched", ("asyncio/sleep(0)",), at_least=6),
        Bar(
            "at least 5x asyncio",
            "free-threaded",
            "gofer-p1/gosched",
            ("asyncio/sleep(0)",),
            at_least=5,
        ),
        Bar(
            "at least 2x tonio's yield_now, 1 P and 1 thread",
            "free-threaded",
            "gofer-p1/gosched",
            ("tonio-t1/yield_now",),
            at_least=2,
        ),
        Bar(
            "the same, 2 Ps and 2 threads",
            "free-threaded",
            "gofer-p2/gosched",
            ("tonio-t2/yield_now",),
            at_least=2,
            promise=False,
        ),
    ),
)
