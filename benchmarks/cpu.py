"""CPU: do two processors do twice the work?

64 tasks of pure Python arithmetic that never give way. On a free-threaded build two Ps should
halve the time; with the GIL nothing can, and the rows only show that nobody pays for trying.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks._model import WALL_SECONDS, Bar, Case, Job, Workload, peer, with_procs


def work(loops: int) -> int:
    total = 0
    for i in range(loops):
        total += i * i % 1000
    return total


async def task(loops: int) -> int:
    return work(loops)


def gofer_handles(job: Job) -> None:
    import gofer

    tasks, loops = job.size["tasks"], job.size["loops"]

    async def main() -> None:
        with job.measure():
            goroutines = [gofer.go(task, loops) for _ in range(tasks)]
            for g in goroutines:
                await g

    gofer.run(main, procs=job.procs)


def asyncio_gather(job: Job) -> None:
    asyncio = peer("asyncio")
    tasks, loops = job.size["tasks"], job.size["loops"]

    async def main() -> None:
        with job.measure():
            await asyncio.gather(*[task(loops) for _ in range(tasks)])

    job.run_loop(main)


def trio_nursery(job: Job) -> None:
    trio = peer("trio")
    tasks, loops = job.size["tasks"], job.size["loops"]

    async def main() -> None:
        with job.measure():
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(task, loops)

    trio.run(main)


def tonio_spawn(job: Job) -> None:
    tonio = peer("tonio.colored")
    tasks, loops = job.size["tasks"], job.size["loops"]

    async def main() -> None:
        with job.measure():
            await tonio.spawn(*[task(loops) for _ in range(tasks)])

    tonio.run(main(), threads=job.procs)


def threads_pool(job: Job) -> None:
    """No scheduler but the kernel's: the speed-up that this machine and this Python have in them.
    When it falls short of the bar, so does the machine."""
    tasks, loops = job.size["tasks"], job.size["loops"]
    with ThreadPoolExecutor(job.procs) as pool:
        list(pool.map(work, [1] * job.procs))  # start the threads before the clock
        with job.measure():
            list(pool.map(work, [loops] * tasks))


WORKLOAD = Workload(
    name="cpu",
    title="CPU-bound tasks",
    how_to_read=(
        "Wall time for all. threads is a plain pool of OS threads: what the machine can give."
        " Go's row is the same arithmetic compiled; only its scaling means something."
    ),
    metric=WALL_SECONDS,
    size={"tasks": 64, "loops": 300_000},
    quick={"tasks": 64, "loops": 30_000},
    ops=lambda size: size["tasks"],
    cases=(
        *with_procs(Case("gofer", "handles", gofer_handles), 1, 2),
        Case("asyncio", "gather", asyncio_gather),
        Case("uvloop", "gather", asyncio_gather),
        Case("trio", "nursery", trio_nursery),
        *with_procs(Case("tonio", "spawn", tonio_spawn), 1, 2),
        *with_procs(Case("threads", "pool", threads_pool), 1, 2),
        *with_procs(Case("go", "WaitGroup", None), 1, 2),
    ),
    bars=(
        Bar(
            "2 Ps at least 1.85x 1 P",
            "free-threaded",
            "gofer-p2/handles",
            ("gofer-p1/handles",),
            at_least=1.85,
        ),
        Bar(
            "the machine: 2 threads over 1",
            "free-threaded",
            "threads-t2/pool",
            ("threads-t1/pool",),
            at_least=1.85,
            promise=False,
        ),
    ),
)
