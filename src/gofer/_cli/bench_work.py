"""What `gofer bench` measures: the same work on every runtime.

`python -m gofer._cli.bench_work WORKLOAD RUNTIME PROCS` does one piece of it once, and prints how
many nanoseconds an operation took.
"""

import importlib
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import gofer

Call = tuple[Any, ...]
"""An async function and its arguments."""


class Runtime(NamedTuple):
    """A runtime, as far as the workloads need it. Its own objects are used directly, so that
    nothing but itself is measured."""

    run: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    join: Callable[[list[Call]], Awaitable[Any]]
    """Make these calls all at once, and wait for their ends."""
    gosched: Callable[[], Awaitable[Any]]
    sleep: Callable[[float], Awaitable[Any]]
    mutex: Callable[[], Any]
    channel: Callable[[int], tuple[Callable[[Any], Awaitable[Any]], Callable[[], Awaitable[Any]]]]
    """How to send to and to receive from a new channel of this capacity."""


def _gofer(procs: int) -> Runtime:
    async def join(calls: list[Call]) -> None:
        for g in [gofer.go(*call) for call in calls]:
            await g

    def channel(capacity: int) -> Any:
        ch: gofer.Chan[Any] = gofer.Chan(capacity)
        return ch.send, ch.recv

    def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        gofer.run(main, procs=procs)

    return Runtime(run, join, gofer.gosched, gofer.sleep, gofer.Mutex, channel)


def _asyncio(procs: int) -> Runtime:
    import asyncio

    async def join(calls: list[Call]) -> None:
        for task in [asyncio.create_task(fn(*args)) for fn, *args in calls]:
            await task

    def channel(capacity: int) -> Any:
        queue: asyncio.Queue[Any] = asyncio.Queue(max(capacity, 1))  # there is none without a place
        return queue.put, queue.get

    def gosched() -> Awaitable[None]:
        return asyncio.sleep(0)

    return Runtime(
        lambda main: asyncio.run(main()), join, gosched, asyncio.sleep, asyncio.Lock, channel
    )


def _uvloop(procs: int) -> Runtime:
    import asyncio

    uvloop = importlib.import_module("uvloop")

    def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    return _asyncio(procs)._replace(run=run)


def _trio(procs: int) -> Runtime:
    trio = importlib.import_module("trio")

    async def join(calls: list[Call]) -> None:
        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(*call)

    def channel(capacity: int) -> Any:
        sender, receiver = trio.open_memory_channel(capacity)
        return sender.send, receiver.receive

    return Runtime(trio.run, join, trio.lowlevel.checkpoint, trio.sleep, trio.Lock, channel)


def _tonio(procs: int) -> Runtime:
    tonio = importlib.import_module("tonio.colored")
    sync = importlib.import_module("tonio.colored.sync")
    channels = importlib.import_module("tonio.colored.sync.channel")

    def join(calls: list[Call]) -> Any:
        return tonio.spawn.without_results(*[fn(*args) for fn, *args in calls])

    def channel(capacity: int) -> Any:
        sender, receiver = channels.channel(capacity)
        return sender.send, receiver.receive

    def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        tonio.run(main(), threads=procs)

    return Runtime(run, join, lambda: tonio.sleep(0), tonio.sleep, sync.Lock, channel)


RUNTIMES = {
    "gofer": _gofer,
    "asyncio": _asyncio,
    "uvloop": _uvloop,
    "trio": _trio,
    "tonio": _tonio,
}


# --- The work ------------------------------------------------------------------------------------


async def _spawn(r: Runtime, n: int) -> None:
    async def task(x: int) -> int:
        return x + 1

    for _ in range(n // 1000):
        await r.join([(task, i) for i in range(1000)])


async def _yields(r: Runtime, n: int) -> None:
    gosched = r.gosched

    async def task() -> None:
        for _ in range(n // 1000):
            await gosched()

    await r.join([(task,)] * 1000)


async def _pingpong(r: Runtime, n: int) -> None:
    there, here = r.channel(0)
    back, home = r.channel(0)

    async def ping() -> None:
        for i in range(n):
            await there(i)
            await home()

    async def pong() -> None:
        for _ in range(n):
            await back(await here())

    await r.join([(ping,), (pong,)])


async def _prodcons(r: Runtime, n: int) -> None:
    send, receive = r.channel(128)

    async def produce() -> None:
        for i in range(n):
            await send(i)

    async def consume() -> None:
        total = 0
        for _ in range(n):
            total += await receive()
        assert total == n * (n - 1) // 2

    await r.join([(produce,), (consume,)])


async def _mutex(r: Runtime, n: int) -> None:
    mu = r.mutex()
    count = 0

    async def task() -> None:
        nonlocal count
        for _ in range(n // 8):
            async with mu:
                count += 1

    await r.join([(task,)] * 8)
    assert count == n


async def _sleeps(r: Runtime, n: int) -> None:
    sleep, draw = r.sleep, random.Random(1).random

    async def task(seconds: float) -> None:
        await sleep(seconds)

    await r.join([(task, draw() / 5) for _ in range(n)])


class Workload(NamedTuple):
    """One piece of work."""

    title: str
    work: Callable[[Runtime, int], Coroutine[Any, Any, None]]
    ops: int
    clock: Callable[[], float] = time.perf_counter


WORKLOADS = {
    "spawn": Workload("spawn and join", _spawn, 50_000),
    "yield": Workload("yield, 1000 goroutines", _yields, 100_000),
    "pingpong": Workload("ping-pong, round trip", _pingpong, 20_000),
    "prodcons": Workload("one producer, one consumer", _prodcons, 50_000),
    "mutex": Workload("mutex, shared by 8", _mutex, 40_000),
    # How long they take is how long they are asked to: what they cost is time of the CPU.
    "sleep": Workload("10,000 sleeps, CPU time of one", _sleeps, 10_000, time.process_time),
}


def measure(workload: str, runtime: str, procs: int) -> float:
    """Do it once; nanoseconds for an operation."""
    _, work, ops, clock = WORKLOADS[workload]
    r = RUNTIMES[runtime](procs)
    taken = 0.0

    async def main() -> None:
        nonlocal taken
        begun = clock()
        await work(r, ops)
        taken = clock() - begun

    r.run(main)
    return taken / ops * 1e9


if __name__ == "__main__":
    print(measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))
