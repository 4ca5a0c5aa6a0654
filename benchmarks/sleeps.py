"""Sleeps: what do timers cost?

100,000 tasks sleep for a random time below half a second. How long that takes is fixed by the
longest sleep unless the runtime cannot keep up, so the figure is the CPU time it burns.
Starting the tasks is included: it is the same for everyone and nobody has timers without it.
"""

from __future__ import annotations

import random

from benchmarks._model import CPU_SECONDS, Bar, Case, Job, Workload, peer, with_procs

LONGEST = 0.5  # seconds


def delays(job: Job) -> list[float]:
    """The same sleeps in every run and on every runtime (Go draws its own of the same kind)."""
    draw = random.Random(1).random
    return [draw() * LONGEST for _ in range(job.size["tasks"])]


def gofer_sleep(job: Job) -> None:
    import gofer

    async def nap(seconds: float) -> None:
        await gofer.sleep(seconds)

    async def main() -> None:
        seconds = delays(job)
        with job.measure():
            goroutines = [gofer.go(nap, s) for s in seconds]
            for g in goroutines:
                await g

    gofer.run(main, procs=job.procs)


def asyncio_sleep(job: Job) -> None:
    asyncio = peer("asyncio")

    async def main() -> None:
        seconds = delays(job)
        with job.measure():
            await asyncio.gather(*[asyncio.sleep(s) for s in seconds])

    job.run_loop(main)


def trio_sleep(job: Job) -> None:
    trio = peer("trio")

    async def main() -> None:
        seconds = delays(job)
        with job.measure():
            async with trio.open_nursery() as nursery:
                for s in seconds:
                    nursery.start_soon(trio.sleep, s)

    trio.run(main)


def tonio_sleep(job: Job) -> None:
    tonio = peer("tonio.colored")

    async def nap(seconds: float) -> None:
        await tonio.sleep(seconds)

    async def main() -> None:
        seconds = delays(job)
        with job.measure():
            await tonio.spawn.without_results(*[nap(s) for s in seconds])

    tonio.run(main(), threads=job.procs)


WORKLOAD = Workload(
    name="sleeps",
    title="random sleeps of 0 to 0.5 s",
    how_to_read=(
        "CPU time, user and system, of the whole process. The wall column should be near 0.5 s:"
        " what is above it, the timers were late."
    ),
    metric=CPU_SECONDS,
    size={"tasks": 100_000},
    quick={"tasks": 10_000},
    ops=lambda size: size["tasks"],
    cases=(
        *with_procs(Case("gofer", "sleep", gofer_sleep), 1, 2),
        Case("asyncio", "sleep", asyncio_sleep),
        Case("uvloop", "sleep", asyncio_sleep),
        Case("trio", "sleep", trio_sleep),
        *with_procs(Case("tonio", "sleep", tonio_sleep), 1, 2),
        *with_procs(Case("go", "Sleep", None), 1, 2),
    ),
    bars=(
        Bar(
            "at most a quarter of asyncio's",
            "gil",
            "gofer-p1/sleep",
            ("asyncio/sleep",),
            at_most=1 / 4,
        ),
        Bar(
            "at most a third of asyncio's",
            "free-threaded",
            "gofer-p1/sleep",
            ("asyncio/sleep",),
            at_most=1 / 3,
        ),
        Bar(
            "at most tonio's, 1 P and 1 thread",
            "free-threaded",
            "gofer-p1/sleep",
            ("tonio-t1/sleep",),
            at_most=1,
        ),
        Bar(
            "the same, 2 Ps and 2 threads",
            "free-threaded",
            "gofer-p2/sleep",
            ("tonio-t2/sleep",),
            at_most=1,
            promise=False,
        ),
    ),
)
