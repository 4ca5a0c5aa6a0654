"""Parked: how much memory does a waiting goroutine hold?

A million tasks wait for one thing that never comes. The figure is how much the resident memory
grew from before the first one was started until all were parked, divided by their number: frames,
handles, queue entries and whatever the allocator rounds up to are all in it.
"""

from __future__ import annotations

import threading
from typing import Any

from benchmarks._model import BYTES_PER_OP, Bar, Case, Job, Workload, peer, with_procs

SETTLE = 0.05  # seconds from the last arrival to its being parked, with room to spare

_lock = threading.Lock()
_arrived = 0


def arrive() -> None:
    """Count a task that is about to park, rightly so when two threads run them.

    A call and not a `with` in the task: that would make every task's frame larger.
    """
    global _arrived
    with _lock:
        _arrived += 1


def arrived() -> int:
    return _arrived


async def wait_for(gate: Any) -> None:
    arrive()
    await gate


async def wait_on(event: Any) -> None:
    arrive()
    await event.wait()


def gofer_gate(job: Job) -> None:
    """All await the handle of one goroutine that sleeps. Nobody keeps theirs: gofer does."""
    import gofer

    tasks = job.size["tasks"]

    async def closed() -> None:
        await gofer.sleep(3600)

    async def main() -> None:
        gate = gofer.go(closed)
        with job.measure():
            for _ in range(tasks):
                gofer.go(wait_for, gate)
            while arrived() < tasks:
                await gofer.sleep(0.001)
            await gofer.sleep(SETTLE)
        job.emit_and_exit()

    gofer.run(main, procs=job.procs)


def asyncio_event(job: Job) -> None:
    asyncio = peer("asyncio")
    tasks = job.size["tasks"]

    async def main() -> None:
        event = asyncio.Event()
        with job.measure():
            # asyncio asks its users to hold the tasks; the list (8 bytes each) is part of its way.
            held = [asyncio.create_task(wait_on(event)) for _ in range(tasks)]
            while arrived() < tasks:
                await asyncio.sleep(0.001)
            await asyncio.sleep(SETTLE)
        assert len(held) == tasks
        job.emit_and_exit()

    job.run_loop(main)


def trio_event(job: Job) -> None:
    trio = peer("trio")
    tasks = job.size["tasks"]

    async def main() -> None:
        event = trio.Event()
        async with trio.open_nursery() as nursery:
            with job.measure():
                for _ in range(tasks):
                    nursery.start_soon(wait_on, event)
                while arrived() < tasks:
                    await trio.sleep(0.001)
                await trio.sleep(SETTLE)
            job.emit_and_exit()

    trio.run(main)


def tonio_event(job: Job) -> None:
    """Untracked, as gofer's: the leanest tonio has."""
    tonio = peer("tonio.colored")
    tasks = job.size["tasks"]

    async def main() -> None:
        event = tonio.Event()
        with job.measure():
            for _ in range(tasks):
                tonio.spawn.without_tracking(wait_on(event))
            while arrived() < tasks:
                await tonio.sleep(0.001)
            await tonio.sleep(SETTLE)
        job.emit_and_exit()

    tonio.run(main(), threads=job.procs)


WORKLOAD = Workload(
    name="parked",
    title="memory of parked tasks",
    how_to_read="Resident memory that one waiting task adds.",
    metric=BYTES_PER_OP,
    size={"tasks": 1_000_000},
    quick={"tasks": 50_000},
    ops=lambda size: size["tasks"],
    cases=(
        *with_procs(Case("gofer", "gate", gofer_gate), 1, 2),
        Case("asyncio", "Event", asyncio_event),
        Case("uvloop", "Event", asyncio_event),
        Case("trio", "Event", trio_event),
        *with_procs(Case("tonio", "Event", tonio_event), 1, 2),
        *with_procs(Case("go", "channel", None), 1, 2),
    ),
    bars=(
        Bar("at most 450 bytes", "gil", "gofer-p1/gate", at_most=450),
        Bar("at most 500 bytes", "free-threaded", "gofer-p1/gate", at_most=500),
    ),
)
