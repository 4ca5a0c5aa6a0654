"""Spawn and join: what does it cost to start something and to wait for its end?

A task is `x + 1`, so everything measured is the runtime's own: making the coroutine's wrapper,
queueing it, running it once, waking whoever joins it. In batches of 1000 the objects are recycled
and the caches are warm, as in a server. All at once shows what a million live ones cost.
"""

from __future__ import annotations

from typing import Any

from benchmarks._model import NS_PER_OP, Bar, Case, Job, Workload, peer, with_procs


async def task(x: int) -> int:
    return x + 1


def batches(job: Job) -> list[range]:
    """The tasks to start, a range for each batch. A batch of 0 means all at once."""
    total = job.size["tasks"]
    batch = job.size["batch"] or total
    return [range(batch)] * (total // batch)


def gofer_handles(job: Job) -> None:
    import gofer

    async def main() -> None:
        with job.measure():
            for batch in batches(job):
                goroutines = [gofer.go(task, i) for i in batch]
                for g in goroutines:
                    await g

    gofer.run(main, procs=job.procs)


def asyncio_gather(job: Job) -> None:
    gather = peer("asyncio").gather

    async def main() -> None:
        with job.measure():
            for batch in batches(job):
                await gather(*[task(i) for i in batch])

    job.run_loop(main)


def asyncio_handles(job: Job) -> None:
    """The same shape as gofer's: keep the handles, await each."""
    create_task = peer("asyncio").create_task

    async def main() -> None:
        with job.measure():
            for batch in batches(job):
                tasks = [create_task(task(i)) for i in batch]
                for t in tasks:
                    await t

    job.run_loop(main)


def asyncio_taskgroup(job: Job) -> None:
    task_group = peer("asyncio").TaskGroup

    async def main() -> None:
        with job.measure():
            for batch in batches(job):
                async with task_group() as group:
                    for i in batch:
                        group.create_task(task(i))

    job.run_loop(main)


def asyncio_eager(job: Job) -> None:
    """The task runs inside create_task and never reaches the run queue: not a real spawn."""
    asyncio = peer("asyncio")

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        with job.measure():
            for batch in batches(job):
                await asyncio.gather(*[task(i) for i in batch])

    job.run_loop(main)


def trio_nursery(job: Job) -> None:
    trio = peer("trio")

    async def main() -> None:
        with job.measure():
            for batch in batches(job):
                async with trio.open_nursery() as nursery:
                    for i in batch:
                        nursery.start_soon(task, i)

    trio.run(main)


def tonio_results(job: Job) -> None:
    """What hands back results and exceptions, as a goroutine's handle does."""
    tonio = peer("tonio.colored")

    async def main() -> None:
        with job.measure():
            for batch in batches(job):
                await tonio.spawn(*[task(i) for i in batch])

    tonio.run(main(), threads=job.procs)


def tonio_without_results(job: Job) -> None:
    """tonio's own benchmark does it this way: joined, exceptions seen, results dropped."""
    tonio = peer("tonio.colored")

    async def main() -> None:
        with job.measure():
            for batch in batches(job):
                await tonio.spawn.without_results(*[task(i) for i in batch])

    tonio.run(main(), threads=job.procs)


async def acknowledging(x: int, barrier: Any) -> None:
    x += 1
    barrier.ack()


def tonio_barrier(job: Job) -> None:
    """Nothing is tracked and the tasks count themselves: tonio's fastest way that still joins."""
    tonio = peer("tonio.colored")
    barrier_type = peer("tonio.colored.sync").Barrier

    async def main() -> None:
        with job.measure():
            for batch in batches(job):
                barrier = barrier_type(len(batch) + 1)
                tonio.spawn.without_tracking(*[acknowledging(i, barrier) for i in batch])
                await barrier.wait()

    tonio.run(main(), threads=job.procs)


def cases(group: str, **size: int) -> list[Case]:
    """The idioms that every group has."""
    return [
        *with_procs(Case("gofer", "handles", gofer_handles, group, size=size), 1, 2),
        Case("asyncio", "gather", asyncio_gather, group, size=size),
        Case("uvloop", "gather", asyncio_gather, group, size=size),
        Case("trio", "nursery", trio_nursery, group, size=size),
        *with_procs(
            Case("tonio", "without_results", tonio_without_results, group, size=size), 1, 2
        ),
        *with_procs(Case("tonio", "barrier", tonio_barrier, group, size=size), 1, 2),
        *with_procs(Case("go", "WaitGroup", None, group, size=size), 1, 2),
    ]


OURS = "gofer-p1/batch/handles"
GATHER = ("asyncio/batch/gather",)
# Every asyncio idiom that puts its tasks on the run queue: which is fastest depends on the version.
ASYNCIO = (*GATHER, "asyncio/batch/handles", "asyncio/batch/TaskGroup")

WORKLOAD = Workload(
    name="spawn",
    title="spawn and join",
    how_to_read=(
        "Time for one task, started, run and joined. batch: one batch after the other;"
        " all: every task alive at once."
    ),
    metric=NS_PER_OP,
    size={"tasks": 1_000_000, "batch": 1000},
    quick={"tasks": 50_000, "batch": 1000},
    ops=lambda size: size["tasks"],
    cases=(
        *cases("batch"),
        Case("asyncio", "handles", asyncio_handles, "batch"),
        Case("asyncio", "TaskGroup", asyncio_taskgroup, "batch"),
        Case("asyncio", "eager", asyncio_eager, "batch", since=(3, 12)),
        *with_procs(Case("tonio", "results", tonio_results, "batch"), 1, 2),
        *cases("all", batch=0),
    ),
    bars=(
        Bar("at least 8x asyncio's gather", "gil", OURS, GATHER, at_least=8),
        Bar("beside asyncio's fastest idiom", "gil", OURS, ASYNCIO, at_least=8, promise=False),
        Bar("at least 6x asyncio's gather", "free-threaded", OURS, GATHER, at_least=6),
        Bar(
            "beside asyncio's fastest idiom",
            "free-threaded",
            OURS,
            ASYNCIO,
            at_least=6,
            promise=False,
        ),
        Bar(
            "1 P at most 1.2x tonio's fastest join, 1 thread",
            "free-threaded",
            OURS,
            ("tonio-t1/batch/barrier",),
            at_most=1.2,
        ),
        Bar(
            "1 P beside tonio's without_results, 1 thread",
            "free-threaded",
            OURS,
            ("tonio-t1/batch/without_results",),
            at_most=1.2,
            promise=False,
        ),
        Bar("2 Ps faster than 1", "free-threaded", "gofer-p2/batch/handles", (OURS,), at_least=1),
    ),
)
