"""Ping-pong: what does it cost to hand a value over and wait for the answer?

Two goroutines and two unbuffered channels. A round trip is four channel operations; two of them
have to wait: park, hand over, wake, switch. Nothing can be done ahead, so this is latency.
"""

from __future__ import annotations

from typing import Any

from benchmarks._model import NS_PER_OP, Bar, Case, Job, Workload, peer, with_procs


def gofer_chan(job: Job) -> None:
    import gofer

    rounds = job.size["rounds"]

    async def ping(there: gofer.Chan[int], back: gofer.Chan[int]) -> None:
        for i in range(rounds):
            await there.send(i)
            await back.recv()

    async def pong(there: gofer.Chan[int], back: gofer.Chan[int]) -> None:
        for _ in range(rounds):
            await back.send(await there.recv())

    async def main() -> None:
        there: gofer.Chan[int] = gofer.Chan()
        back: gofer.Chan[int] = gofer.Chan()
        with job.measure():
            goroutines = [gofer.go(ping, there, back), gofer.go(pong, there, back)]
            for g in goroutines:
                await g

    gofer.run(main, procs=job.procs)


def asyncio_queue(job: Job) -> None:
    """A queue of one is the nearest there is: put() does not wait until the value is taken."""
    asyncio = peer("asyncio")
    rounds = job.size["rounds"]

    async def ping(there: Any, back: Any) -> None:
        for i in range(rounds):
            await there.put(i)
            await back.get()

    async def pong(there: Any, back: Any) -> None:
        for _ in range(rounds):
            await back.put(await there.get())

    async def main() -> None:
        there, back = asyncio.Queue(1), asyncio.Queue(1)
        with job.measure():
            await asyncio.gather(ping(there, back), pong(there, back))

    job.run_loop(main)


async def ping(sender: Any, receiver: Any, rounds: int) -> None:
    """trio and tonio name their operations alike."""
    for i in range(rounds):
        await sender.send(i)
        await receiver.receive()


async def pong(sender: Any, receiver: Any, rounds: int) -> None:
    for _ in range(rounds):
        await sender.send(await receiver.receive())


def trio_channel(job: Job) -> None:
    trio = peer("trio")
    rounds = job.size["rounds"]

    async def main() -> None:
        to_pong, from_ping = trio.open_memory_channel(0)
        to_ping, from_pong = trio.open_memory_channel(0)
        with job.measure():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ping, to_pong, from_pong, rounds)
                nursery.start_soon(pong, to_ping, from_ping, rounds)

    trio.run(main)


def tonio_channel(job: Job, capacity: int = 0) -> None:
    tonio = peer("tonio.colored")
    channel = peer("tonio.colored.sync.channel").channel
    rounds = job.size["rounds"]

    async def main() -> None:
        to_pong, from_ping = channel(capacity)
        to_ping, from_pong = channel(capacity)
        with job.measure():
            await tonio.spawn.without_results(
                ping(to_pong, from_pong, rounds), pong(to_ping, from_ping, rounds)
            )

    tonio.run(main(), threads=job.procs)


def tonio_channel_of_one(job: Job) -> None:
    """What asyncio's row does."""
    tonio_channel(job, capacity=1)


WORKLOAD = Workload(
    name="pingpong",
    title="ping-pong over unbuffered channels",
    how_to_read="Time for one round trip, which is four operations. trio makes fewer of them.",
    metric=NS_PER_OP,
    size={"rounds": 200_000},
    quick={"rounds": 20_000},
    ops=lambda size: size["rounds"],
    cases=(
        *with_procs(Case("gofer", "Chan", gofer_chan), 1, 2),
        Case("asyncio", "Queue(1)", asyncio_queue),
        Case("uvloop", "Queue(1)", asyncio_queue),
        Case("trio", "memory_channel(0)", trio_channel, size={"rounds": 20_000}),
        *with_procs(Case("tonio", "channel(0)", tonio_channel), 1, 2),
        *with_procs(Case("tonio", "channel(1)", tonio_channel_of_one), 1, 2),
        *with_procs(Case("go", "chan", None), 1, 2),
    ),
    bars=(
        Bar("at least 18x asyncio", "gil", "gofer-p1/Chan", ("asyncio/Queue(1)",), at_least=18),
        Bar("at most 2x Go", "gil", "gofer-p1/Chan", ("go-p1/chan",), at_most=2),
        Bar(
            "at least 8x asyncio",
            "free-threaded",
            "gofer-p1/Chan",
            ("asyncio/Queue(1)",),
            at_least=8,
        ),
        Bar(
            "at least 2x tonio, 1 P and 1 thread",
            "free-threaded",
            "gofer-p1/Chan",
            ("tonio-t1/channel(0)",),
            at_least=2,
        ),
        Bar(
            "the same, 2 Ps and 2 threads",
            "free-threaded",
            "gofer-p2/Chan",
            ("tonio-t2/channel(0)",),
            at_least=2,
            promise=False,
        ),
        Bar("at most 4x Go", "free-threaded", "gofer-p1/Chan", ("go-p1/chan",), at_most=4),
    ),
)
