"""GC: what do a million waiting tasks cost Python's garbage collector?

`start`: a million tasks are started and park, while the collector runs as it likes. `collect`: all
of them wait, and somebody calls gc.collect(). Beside it runs a thread (of gofer a plain goroutine)
that does nothing but look at the clock: the worst delay is the longest time for which it stood
still. With the GIL that is the collection; without, what the collector needs the world stopped for.

`tuned` is with gofer.runtime.gc_tuned(), `off` with the collector switched off.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from benchmarks._model import NS_PER_OP, WORST_DELAY, Case, Job, Workload, peer, with_procs
from benchmarks.parked import SETTLE, arrived, wait_for, wait_on

Tuning = Callable[[], AbstractContextManager[Any]]


def tuned() -> AbstractContextManager[Any]:
    from gofer.runtime import gc_tuned

    return gc_tuned()


def switched_off() -> AbstractContextManager[Any]:
    gc.disable()
    return nullcontext()


class Watch:
    """Looks at the clock without a pause, until it is told to stop."""

    def __init__(self) -> None:
        self.gaps: list[float] = [0.0]
        self.stopped = False
        # With the GIL it would only keep the others from running.
        self.idle = 0.0002 if getattr(sys, "_is_gil_enabled", lambda: True)() else 0.0

    def __call__(self) -> None:
        last = time.perf_counter()
        while not self.stopped:
            if self.idle:
                time.sleep(self.idle)
            now = time.perf_counter()
            if now - last > self.idle + 0.0005:
                self.gaps.append(now - last - self.idle)
            last = now


def collect(job: Job, settle: Callable[[], Any]) -> None:
    """The measured part of `collect`, in which others look at the clock."""
    with job.measure():  # which collects first: what is measured is the second time
        gc.collect()
    settle()


def gofer_start(tuning: Tuning) -> Callable[[Job], None]:
    def run(job: Job) -> None:
        import gofer

        tasks = job.size["tasks"]

        async def closed() -> None:
            await gofer.sleep(3600)

        async def main() -> None:
            gate = gofer.go(closed)
            with tuning(), job.measure():
                for _ in range(tasks):
                    gofer.go(wait_for, gate)
                while arrived() < tasks:
                    await gofer.sleep(0.001)
            job.emit_and_exit()

        gofer.run(main, procs=job.procs)

    return run


def asyncio_start(tuning: Tuning) -> Callable[[Job], None]:
    def run(job: Job) -> None:
        asyncio = peer("asyncio")
        tasks = job.size["tasks"]

        async def main() -> None:
            event = asyncio.Event()
            with tuning(), job.measure():
                held = [asyncio.create_task(wait_on(event)) for _ in range(tasks)]
                while arrived() < tasks:
                    await asyncio.sleep(0.001)
            assert len(held) == tasks
            job.emit_and_exit()

        job.run_loop(main)

    return run


def gofer_collect(freeze: bool) -> Callable[[Job], None]:
    def run(job: Job) -> None:
        import gofer

        tasks = job.size["tasks"]

        async def closed() -> None:
            await gofer.sleep(3600)

        async def main() -> None:
            gate = gofer.go(closed)
            with tuned() as block:
                for _ in range(tasks):
                    gofer.go(wait_for, gate)
                while arrived() < tasks:
                    await gofer.sleep(0.001)
                await gofer.sleep(SETTLE)
                if freeze:
                    block.freeze()
                watch = Watch()
                watcher = gofer.go(watch)
                await gofer.sleep(0.05)
                collect(job, lambda: setattr(watch, "stopped", True))
                await watcher
            job.delays(watch.gaps)
            job.emit_and_exit()

        gofer.run(main, procs=job.procs)

    return run


def asyncio_collect(job: Job) -> None:
    asyncio = peer("asyncio")
    tasks = job.size["tasks"]

    async def main() -> None:
        event = asyncio.Event()
        held = [asyncio.create_task(wait_on(event)) for _ in range(tasks)]
        while arrived() < tasks:
            await asyncio.sleep(0.001)
        watch = Watch()
        watcher = threading.Thread(target=watch)
        watcher.start()
        time.sleep(0.05)
        collect(job, lambda: setattr(watch, "stopped", True))
        watcher.join()
        assert len(held) == tasks
        job.delays(watch.gaps)
        job.emit_and_exit()

    job.run_loop(main)


WORKLOAD = Workload(
    name="gc",
    title="garbage collection beside waiting tasks",
    how_to_read="Time for one task: to start it, or to look at it in gc.collect(); wall s: all.",
    metric=NS_PER_OP,
    size={"tasks": 1_000_000},
    quick={"tasks": 50_000},
    ops=lambda size: size["tasks"],
    cases=(
        *with_procs(Case("gofer", "default", gofer_start(nullcontext), "start"), 1),
        *with_procs(Case("gofer", "tuned", gofer_start(tuned), "start"), 1),
        *with_procs(Case("gofer", "off", gofer_start(switched_off), "start"), 1),
        Case("asyncio", "default", asyncio_start(nullcontext), "start"),
        Case("asyncio", "off", asyncio_start(switched_off), "start"),
        *with_procs(Case("gofer", "default", gofer_collect(False), "collect"), 1, 2),
        *with_procs(Case("gofer", "frozen", gofer_collect(True), "collect"), 1, 2),
        Case("asyncio", "default", asyncio_collect, "collect"),
    ),
    more=(WORST_DELAY,),
)
