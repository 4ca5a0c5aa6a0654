"""A worker pool: what does a job cost that does nothing?

8 workers, a bounded queue of jobs, and for every job a result with its value, its error and the
time it took. One goroutine submits, another one reads the results. asyncio has no such pool; the
one here is what its documentation shows for queues, with results:
https://docs.python.org/3/library/asyncio-queue.html.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from benchmarks._model import NS_PER_OP, Bar, Case, Job, Workload, peer, with_procs

WORKERS = 8
QUEUE = 128


def check(total: int, jobs: int) -> None:
    """Every job has given its result, once."""
    assert total == jobs * (jobs - 1) // 2, total


class Result(NamedTuple):
    """What the pools of the peers give."""

    job: int
    value: int | None
    error: BaseException | None
    elapsed: float


async def noop(job: int) -> int:
    return job


def plain_noop(job: int) -> int:
    return job


def gofer_pool(job: Job, handler: Any = noop) -> None:
    import gofer

    jobs = job.size["jobs"]

    async def consume(results: gofer.RecvChan[gofer.Result[int, int]]) -> int:
        total = 0
        async for result in results:
            total += result.value or 0
        return total

    async def main() -> None:
        with job.measure():
            async with gofer.WorkerPool(WORKERS, handler, queue=QUEUE) as pool:
                consumer = gofer.go(consume, pool.results)
                for i in range(jobs):
                    await pool.submit(i)
            total = await consumer
        check(total, jobs)

    gofer.run(main, procs=job.procs)


def gofer_plain(job: Job) -> None:
    gofer_pool(job, plain_noop)


def asyncio_pool(job: Job) -> None:
    asyncio = peer("asyncio")
    jobs = job.size["jobs"]

    async def worker(queue: Any, results: Any) -> None:
        while True:
            i = await queue.get()
            started = time.perf_counter()
            try:
                value, error = await noop(i), None
            except Exception as exc:
                value, error = None, exc
            await results.put(Result(i, value, error, time.perf_counter() - started))
            queue.task_done()

    async def consume(results: Any) -> int:
        total = 0
        for _ in range(jobs):
            total += (await results.get()).value
        return total

    async def main() -> None:
        queue, results = asyncio.Queue(QUEUE), asyncio.Queue()
        with job.measure():
            workers = [asyncio.create_task(worker(queue, results)) for _ in range(WORKERS)]
            consumer = asyncio.create_task(consume(results))
            for i in range(jobs):
                await queue.put(i)
            await queue.join()
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            total = await consumer
        check(total, jobs)

    job.run_loop(main)


def trio_pool(job: Job) -> None:
    trio = peer("trio")
    jobs = job.size["jobs"]
    total = 0

    async def worker(queue: Any, results: Any) -> None:
        async with results:
            async for i in queue:
                started = time.perf_counter()
                try:
                    value, error = await noop(i), None
                except Exception as exc:
                    value, error = None, exc
                await results.send(Result(i, value, error, time.perf_counter() - started))

    async def consume(results: Any) -> None:
        nonlocal total
        async for result in results:
            total += result.value

    async def main() -> None:
        submit, queue = trio.open_memory_channel(QUEUE)
        give, results = trio.open_memory_channel(float("inf"))
        with job.measure():
            async with trio.open_nursery() as nursery, give:
                nursery.start_soon(consume, results)
                for _ in range(WORKERS):
                    nursery.start_soon(worker, queue.clone(), give.clone())
                async with submit:
                    for i in range(jobs):
                        await submit.send(i)
        check(total, jobs)

    trio.run(main)


WORKLOAD = Workload(
    name="workerpool",
    title=f"worker pool, {WORKERS} workers, queue of {QUEUE}, jobs that do nothing",
    how_to_read="Time for one job, from submit to its result. trio does fewer of them.",
    metric=NS_PER_OP,
    size={"jobs": 100_000},
    quick={"jobs": 20_000},
    ops=lambda size: size["jobs"],
    cases=(
        *with_procs(Case("gofer", "async handler", gofer_pool), 1, 2),
        *with_procs(Case("gofer", "plain handler", gofer_plain), 1, 2),
        Case("asyncio", "Queue", asyncio_pool),
        Case("uvloop", "Queue", asyncio_pool),
        Case("trio", "memory_channel", trio_pool, size={"jobs": 20_000}),
    ),
    bars=(
        Bar(
            "at least 5x asyncio",
            "gil",
            "gofer-p1/async handler",
            ("asyncio/Queue",),
            at_least=5,
        ),
        Bar(
            "at least 5x asyncio",
            "free-threaded",
            "gofer-p1/async handler",
            ("asyncio/Queue",),
            at_least=5,
        ),
        Bar(
            "the same at 2 Ps",
            "free-threaded",
            "gofer-p2/async handler",
            ("asyncio/Queue",),
            at_least=5,
            promise=False,
        ),
    ),
)
