"""Many producers, many consumers: what does a channel cost that everybody uses?

Eight producers, eight consumers, one channel with room for 64. With two processors they meet on
the channel's lock, and the question is whether a second processor hurts.
"""

from __future__ import annotations

from typing import Any

from benchmarks._model import NS_PER_OP, Bar, Case, Job, Workload, peer, with_procs

PRODUCERS = 8
CONSUMERS = 8
CAPACITY = 64


def share(job: Job) -> int:
    """How many items each producer sends."""
    return job.size["items"] // PRODUCERS


def check(job: Job, counts: list[int]) -> None:
    assert sum(counts) == job.size["items"], counts


def gofer_async_for(job: Job) -> None:
    import gofer

    async def produce(ch: gofer.Chan[int], items: int) -> None:
        for i in range(items):
            await ch.send(i)

    async def consume(ch: gofer.Chan[int]) -> int:
        count = 0
        async for _ in ch:
            count += 1
        return count

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan(CAPACITY)
        with job.measure():
            consumers = [gofer.go(consume, ch) for _ in range(CONSUMERS)]
            producers = [gofer.go(produce, ch, share(job)) for _ in range(PRODUCERS)]
            for g in producers:
                await g
            ch.close()
            counts = [await g for g in consumers]
        check(job, counts)

    gofer.run(main, procs=job.procs)


def gofer_recv(job: Job) -> None:
    """The shape of tonio's program: receive until that fails."""
    import gofer

    async def produce(ch: gofer.Chan[int], items: int) -> None:
        for i in range(items):
            await ch.send(i)

    async def consume(ch: gofer.Chan[int]) -> int:
        count = 0
        while True:
            try:
                await ch.recv()
            except gofer.ChannelClosed:
                return count
            count += 1

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan(CAPACITY)
        with job.measure():
            consumers = [gofer.go(consume, ch) for _ in range(CONSUMERS)]
            producers = [gofer.go(produce, ch, share(job)) for _ in range(PRODUCERS)]
            for g in producers:
                await g
            ch.close()
            counts = [await g for g in consumers]
        check(job, counts)

    gofer.run(main, procs=job.procs)


def asyncio_queue(job: Job) -> None:
    """A None for each consumer ends it: every Python's queues can do that, and it is cheap."""
    asyncio = peer("asyncio")

    async def produce(queue: Any, items: int) -> None:
        for i in range(items):
            await queue.put(i)

    async def consume(queue: Any) -> int:
        count = 0
        while await queue.get() is not None:
            count += 1
        return count

    async def main() -> None:
        queue = asyncio.Queue(CAPACITY)
        with job.measure():
            consumers = [asyncio.create_task(consume(queue)) for _ in range(CONSUMERS)]
            await asyncio.gather(*[produce(queue, share(job)) for _ in range(PRODUCERS)])
            for _ in consumers:
                await queue.put(None)
            counts = await asyncio.gather(*consumers)
        check(job, counts)

    job.run_loop(main)


def trio_channel(job: Job) -> None:
    """Every task has its own clone, and the channel is closed when the last sender has closed."""
    trio = peer("trio")
    counts: list[int] = []

    async def produce(sender: Any, items: int) -> None:
        async with sender:
            for i in range(items):
                await sender.send(i)

    async def consume(receiver: Any) -> None:
        count = 0
        async with receiver:
            async for _ in receiver:
                count += 1
        counts.append(count)

    async def main() -> None:
        sender, receiver = trio.open_memory_channel(CAPACITY)
        with job.measure():
            async with trio.open_nursery() as nursery, sender, receiver:
                for _ in range(CONSUMERS):
                    nursery.start_soon(consume, receiver.clone())
                for _ in range(PRODUCERS):
                    nursery.start_soon(produce, sender.clone(), share(job))
        check(job, counts)

    trio.run(main)


def tonio_channel(job: Job) -> None:
    tonio = peer("tonio.colored")
    channel = peer("tonio.colored.sync.channel").channel

    async def produce(sender: Any, items: int) -> None:
        for i in range(items):
            await sender.send(i)

    async def consume(receiver: Any) -> int:
        count = 0
        while True:
            try:
                await receiver.receive()
            except BrokenPipeError:
                return count
            count += 1

    async def main() -> None:
        sender, receiver = channel(CAPACITY)
        with job.measure():
            consumers = tonio.spawn(*[consume(receiver) for _ in range(CONSUMERS)])
            await tonio.spawn.without_results(
                *[produce(sender, share(job)) for _ in range(PRODUCERS)]
            )
            sender.close()
            counts = await consumers
        check(job, counts)

    tonio.run(main(), threads=job.procs)


OURS = "gofer-p1/async for"
OURS_2 = "gofer-p2/async for"

WORKLOAD = Workload(
    name="mpmc",
    title=f"{PRODUCERS} producers, {CONSUMERS} consumers, capacity {CAPACITY}",
    how_to_read="Time for one item, sent and received. trio moves fewer of them.",
    metric=NS_PER_OP,
    size={"items": 1_000_000},
    quick={"items": 48_000},
    ops=lambda size: size["items"],
    cases=(
        *with_procs(Case("gofer", "async for", gofer_async_for), 1, 2),
        *with_procs(Case("gofer", "recv", gofer_recv), 1, 2),
        Case("asyncio", "Queue", asyncio_queue),
        Case("uvloop", "Queue", asyncio_queue),
        Case("trio", "memory_channel", trio_channel, size={"items": 48_000}),
        *with_procs(Case("tonio", "channel", tonio_channel), 1, 2),
        *with_procs(Case("go", "chan", None), 1, 2),
    ),
    bars=(
        Bar("at least 6x asyncio", "gil", OURS, ("asyncio/Queue",), at_least=6),
        Bar("at least 4x asyncio", "free-threaded", OURS, ("asyncio/Queue",), at_least=4),
        Bar(
            "at least 1.5x tonio, 1 P and 1 thread",
            "free-threaded",
            OURS,
            ("tonio-t1/channel",),
            at_least=1.5,
        ),
        Bar(
            "at least 1.5x tonio, 2 Ps and 2 threads",
            "free-threaded",
            OURS_2,
            ("tonio-t2/channel",),
            at_least=1.5,
        ),
        Bar("2 Ps at most 1.3x 1 P", "free-threaded", OURS_2, (OURS,), at_most=1.3),
    ),
)
