"""Producer and consumer: what does a value cost on its way through a buffered channel?

One producer, one consumer, room for 128 between them. Most operations find room or a value and
complete at once, so this is the fast path of send and receive, with a switch now and then.
"""

from __future__ import annotations

from typing import Any

from benchmarks._model import NS_PER_OP, Bar, Case, Job, Workload, peer, with_procs

CAPACITY = 128


def check(total: int, items: int) -> None:
    """Everything that was sent has arrived, once."""
    assert total == items * (items - 1) // 2, total


def gofer_recv(job: Job) -> None:
    import gofer

    items = job.size["items"]

    async def produce(ch: gofer.Chan[int]) -> None:
        for i in range(items):
            await ch.send(i)

    async def consume(ch: gofer.Chan[int]) -> int:
        total = 0
        for _ in range(items):
            total += await ch.recv()
        return total

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan(CAPACITY)
        with job.measure():
            producer = gofer.go(produce, ch)
            consumer = gofer.go(consume, ch)
            await producer
            total = await consumer
        check(total, items)

    gofer.run(main, procs=job.procs)


def gofer_async_for(job: Job) -> None:
    """As Go's row: the producer closes the channel, and that ends the consumer's loop."""
    import gofer

    items = job.size["items"]

    async def produce(ch: gofer.Chan[int]) -> None:
        for i in range(items):
            await ch.send(i)
        ch.close()

    async def consume(ch: gofer.Chan[int]) -> int:
        total = 0
        async for i in ch:
            total += i
        return total

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan(CAPACITY)
        with job.measure():
            producer = gofer.go(produce, ch)
            consumer = gofer.go(consume, ch)
            await producer
            total = await consumer
        check(total, items)

    gofer.run(main, procs=job.procs)


def asyncio_queue(job: Job) -> None:
    asyncio = peer("asyncio")
    items = job.size["items"]

    async def produce(queue: Any) -> None:
        for i in range(items):
            await queue.put(i)

    async def consume(queue: Any) -> int:
        total = 0
        for _ in range(items):
            total += await queue.get()
        return total

    async def main() -> None:
        queue = asyncio.Queue(CAPACITY)
        with job.measure():
            _, total = await asyncio.gather(produce(queue), consume(queue))
        check(total, items)

    job.run_loop(main)


def trio_channel(job: Job) -> None:
    trio = peer("trio")
    items = job.size["items"]
    total = 0

    async def produce(sender: Any) -> None:
        async with sender:
            for i in range(items):
                await sender.send(i)

    async def consume(receiver: Any) -> None:
        nonlocal total
        received = 0
        async for i in receiver:
            received += i
        total = received

    async def main() -> None:
        sender, receiver = trio.open_memory_channel(CAPACITY)
        with job.measure():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce, sender)
                nursery.start_soon(consume, receiver)
        check(total, items)

    trio.run(main)


def tonio_channel(job: Job) -> None:
    tonio = peer("tonio.colored")
    channel = peer("tonio.colored.sync.channel").channel
    items = job.size["items"]

    async def produce(sender: Any) -> None:
        for i in range(items):
            await sender.send(i)

    async def consume(receiver: Any) -> int:
        total = 0
        for _ in range(items):
            total += await receiver.receive()
        return total

    async def main() -> None:
        sender, receiver = channel(CAPACITY)
        with job.measure():
            _, total = await tonio.spawn(produce(sender), consume(receiver))
        check(total, items)

    tonio.run(main(), threads=job.procs)


WORKLOAD = Workload(
    name="prodcons",
    title=f"one producer, one consumer, capacity {CAPACITY}",
    how_to_read="Time for one item, sent and received. trio moves fewer of them.",
    metric=NS_PER_OP,
    size={"items": 1_000_000},
    quick={"items": 50_000},
    ops=lambda size: size["items"],
    cases=(
        *with_procs(Case("gofer", "recv", gofer_recv), 1, 2),
        *with_procs(Case("gofer", "async for", gofer_async_for), 1, 2),
        Case("asyncio", "Queue", asyncio_queue),
        Case("uvloop", "Queue", asyncio_queue),
        Case("trio", "memory_channel", trio_channel, size={"items": 50_000}),
        *with_procs(Case("tonio", "channel", tonio_channel), 1, 2),
        *with_procs(Case("go", "chan", None), 1, 2),
    ),
    bars=(
        Bar("at least 7x asyncio", "gil", "gofer-p1/recv", ("asyncio/Queue",), at_least=7),
        Bar(
            "at least 4x asyncio",
            "free-threaded",
            "gofer-p1/recv",
            ("asyncio/Queue",),
            at_least=4,
        ),
        Bar(
            "at least 2x tonio, 1 P and 1 thread",
            "free-threaded",
            "gofer-p1/recv",
            ("tonio-t1/channel",),
            at_least=2,
        ),
        Bar(
            "the same, 2 Ps and 2 threads",
            "free-threaded",
            "gofer-p2/recv",
            ("tonio-t2/channel",),
            at_least=2,
            promise=False,
        ),
    ),
)
