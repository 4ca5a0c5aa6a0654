"""Mutex: what does a lock cost, free and fought for?

One task locks and unlocks a mutex that nobody else wants: the fast path, and nothing else. Then
eight tasks share one. On a single thread the others hardly ever run while it is held, so nobody
waits; two processors fight for it in earnest.
"""

from __future__ import annotations

from typing import Any

from benchmarks._model import NS_PER_OP, Bar, Case, Job, Workload, peer, with_procs


class Counter:
    """What the lock protects: if it does not, the count is wrong."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def check(self, job: Job) -> None:
        assert self.value == job.size["pairs"], self.value


def share(job: Job) -> int:
    """How many times each task locks and unlocks."""
    return job.size["pairs"] // job.size["tasks"]


async def async_with(lock: Any, counter: Counter, pairs: int) -> None:
    """The form that every runtime has."""
    for _ in range(pairs):
        async with lock:
            counter.value += 1


def gofer_async_with(job: Job) -> None:
    import gofer

    async def main() -> None:
        mu, counter = gofer.Mutex(), Counter()
        with job.measure():
            goroutines = [
                gofer.go(async_with, mu, counter, share(job)) for _ in range(job.size["tasks"])
            ]
            for g in goroutines:
                await g
        counter.check(job)

    gofer.run(main, procs=job.procs)


def gofer_lock(job: Job) -> None:
    """As Go writes it, without the protection of a block."""
    import gofer

    async def task(mu: gofer.Mutex, counter: Counter, pairs: int) -> None:
        for _ in range(pairs):
            await mu.lock()
            counter.value += 1
            mu.unlock()

    async def main() -> None:
        mu, counter = gofer.Mutex(), Counter()
        with job.measure():
            goroutines = [gofer.go(task, mu, counter, share(job)) for _ in range(job.size["tasks"])]
            for g in goroutines:
                await g
        counter.check(job)

    gofer.run(main, procs=job.procs)


def asyncio_async_with(job: Job) -> None:
    asyncio = peer("asyncio")

    async def main() -> None:
        lock, counter = asyncio.Lock(), Counter()
        with job.measure():
            await asyncio.gather(
                *[async_with(lock, counter, share(job)) for _ in range(job.size["tasks"])]
            )
        counter.check(job)

    job.run_loop(main)


def asyncio_acquire(job: Job) -> None:
    asyncio = peer("asyncio")

    async def task(lock: Any, counter: Counter, pairs: int) -> None:
        for _ in range(pairs):
            await lock.acquire()
            counter.value += 1
            lock.release()

    async def main() -> None:
        lock, counter = asyncio.Lock(), Counter()
        with job.measure():
            await asyncio.gather(
                *[task(lock, counter, share(job)) for _ in range(job.size["tasks"])]
            )
        counter.check(job)

    job.run_loop(main)


def trio_async_with(job: Job) -> None:
    """Taking trio's lock is a checkpoint, so it goes round the scheduler even when it is free."""
    trio = peer("trio")

    async def main() -> None:
        lock, counter = trio.Lock(), Counter()
        with job.measure():
            async with trio.open_nursery() as nursery:
                for _ in range(job.size["tasks"]):
                    nursery.start_soon(async_with, lock, counter, share(job))
        counter.check(job)

    trio.run(main)


def tonio_async_with(job: Job) -> None:
    tonio = peer("tonio.colored")
    lock_type = peer("tonio.colored.sync").Lock

    async def main() -> None:
        lock, counter = lock_type(), Counter()
        with job.measure():
            await tonio.spawn.without_results(
                *[async_with(lock, counter, share(job)) for _ in range(job.size["tasks"])]
            )
        counter.check(job)

    tonio.run(main(), threads=job.procs)


def cases(group: str, **size: int) -> list[Case]:
    """The idioms that every group has."""
    return [
        *with_procs(Case("gofer", "async with", gofer_async_with, group, size=size), 1, 2),
        *with_procs(Case("gofer", "lock, unlock", gofer_lock, group, size=size), 1, 2),
        Case("asyncio", "async with", asyncio_async_with, group, size=size),
        Case("asyncio", "acquire, release", asyncio_acquire, group, size=size),
        Case("uvloop", "async with", asyncio_async_with, group, size=size),
        Case("trio", "async with", trio_async_with, group, size={**size, "pairs": 40_000}),
        *with_procs(Case("tonio", "async with", tonio_async_with, group, size=size), 1, 2),
        *with_procs(Case("go", "Lock, Unlock", None, group, size=size), 1, 2),
    ]


OURS = "gofer-p1/alone/async with"
ASYNCIO = ("asyncio/alone/async with",)
OURS_BARE = "gofer-p1/alone/lock, unlock"
ASYNCIO_BARE = ("asyncio/alone/acquire, release",)

WORKLOAD = Workload(
    name="mutex",
    title="lock and unlock",
    how_to_read=(
        "Time for one lock and unlock, with a counter between them. alone: one task;"
        " shared: eight on one mutex. trio locks fewer times."
    ),
    metric=NS_PER_OP,
    size={"pairs": 1_000_000, "tasks": 1},
    quick={"pairs": 40_000, "tasks": 1},
    ops=lambda size: size["pairs"],
    cases=(*cases("alone"), *cases("shared", tasks=8)),
    bars=(
        Bar("at least 5x asyncio, uncontended", "gil", OURS, ASYNCIO, at_least=5),
        Bar(
            "the same, without async with",
            "gil",
            OURS_BARE,
            ASYNCIO_BARE,
            at_least=5,
            promise=False,
        ),
        Bar("at least 4x asyncio, uncontended", "free-threaded", OURS, ASYNCIO, at_least=4),
        Bar(
            "the same, without async with",
            "free-threaded",
            OURS_BARE,
            ASYNCIO_BARE,
            at_least=4,
            promise=False,
        ),
        Bar(
            "at least 3x tonio, uncontended, 1 P and 1 thread",
            "free-threaded",
            OURS,
            ("tonio-t1/alone/async with",),
            at_least=3,
        ),
        Bar(
            "at least 4x tonio, shared by 8, 2 Ps and 2 threads",
            "free-threaded",
            "gofer-p2/shared/async with",
            ("tonio-t2/shared/async with",),
            at_least=4,
        ),
    ),
)
