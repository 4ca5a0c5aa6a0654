"""Offload: what does it cost to have an executor make a call, and to wait for it?

A thread pool, and a call that does nothing. Most of the time is the pool's: its queue, and two
switches of threads by the kernel. What differs is how the answer gets back: asyncio writes to a
pipe, which its loop polls; here the thread that has done the call makes the goroutine runnable.
One at a time is latency; a hundred at once is throughput.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks._model import NS_PER_OP, Bar, Build, Case, Job, Workload, peer, with_procs


def nothing() -> None:
    pass


def gofer_offload(job: Job) -> None:
    import gofer

    calls, callers = job.size["calls"], job.size["callers"]

    async def caller(pool: ThreadPoolExecutor, n: int) -> None:
        for _ in range(n):
            await gofer.offload(pool, nothing)

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            await gofer.offload(pool, nothing)
            with job.measure():
                for g in [gofer.go(caller, pool, calls // callers) for _ in range(callers)]:
                    await g

    gofer.run(main, procs=job.procs)


def gofer_future(job: Job) -> None:
    """submit() and `await` of what it gives."""
    import gofer

    calls, callers = job.size["calls"], job.size["callers"]

    async def caller(pool: Any, n: int) -> None:
        for _ in range(n):
            await pool.submit(nothing)

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            await gofer.offload(pool, nothing)
            with job.measure():
                for g in [gofer.go(caller, pool, calls // callers) for _ in range(callers)]:
                    await g

    gofer.run(main, procs=job.procs)


def asyncio_executor(job: Job) -> None:
    asyncio = peer("asyncio")
    calls, callers = job.size["calls"], job.size["callers"]

    async def caller(pool: ThreadPoolExecutor, n: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(n):
            await loop.run_in_executor(pool, nothing)

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, nothing)
            with job.measure():
                await asyncio.gather(*[caller(pool, calls // callers) for _ in range(callers)])

    job.run_loop(main)


def trio_thread(job: Job) -> None:
    """trio has threads of its own and no executors."""
    trio = peer("trio")
    calls, callers = job.size["calls"], job.size["callers"]

    async def caller(limiter: Any, n: int) -> None:
        for _ in range(n):
            await trio.to_thread.run_sync(nothing, limiter=limiter)

    async def main() -> None:
        limiter = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(nothing, limiter=limiter)
        with job.measure():
            async with trio.open_nursery() as nursery:
                for _ in range(callers):
                    nursery.start_soon(caller, limiter, calls // callers)

    trio.run(main)


def threads_result(job: Job) -> None:
    """No runtime at all: the calling thread waits in result(). What the pool itself costs."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(nothing).result()
        with job.measure():
            for _ in range(job.size["calls"] // job.size["callers"]):
                for future in [pool.submit(nothing) for _ in range(job.size["callers"])]:
                    future.result()


BUILDS: tuple[Build, ...] = ("gil", "free-threaded")


def cases(group: str, callers: int) -> list[Case]:
    size = {"callers": callers}
    return [
        *with_procs(Case("gofer", "offload", gofer_offload, group, size=size), 1, 2),
        *with_procs(Case("gofer", "await future", gofer_future, group, size=size), 1, 2),
        Case("asyncio", "run_in_executor", asyncio_executor, group, size=size),
        Case("uvloop", "run_in_executor", asyncio_executor, group, size=size),
        Case("trio", "to_thread", trio_thread, group, size=size),
        Case("threads", "result()", threads_result, group, size=size),
    ]


WORKLOAD = Workload(
    name="offload",
    title="a thread pool of one, calls that do nothing",
    how_to_read="Time for one call, there and back. threads is the pool alone, with no runtime.",
    metric=NS_PER_OP,
    size={"calls": 50_000, "callers": 1},
    quick={"calls": 5_000, "callers": 1},
    ops=lambda size: size["calls"],
    cases=(*cases("one at a time", 1), *cases("100 at once", 100)),
    bars=tuple(
        Bar(
            f"{group}: beside asyncio",
            build,
            f"gofer-p1/{group}/offload",
            (f"asyncio/{group}/run_in_executor",),
            at_least=1.5,
            promise=False,
        )
        for build in BUILDS
        for group in ("one at a time", "100 at once")
    ),
)
