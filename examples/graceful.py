"""Graceful shutdown on signals: finish what was accepted, within a time limit, and say what was
not.

A service takes jobs for ever. SIGTERM (here sent by the program itself) ends the context of the
part that takes them; the pool gets half a second for those it has. One job hangs: it is cancelled,
and the report names it.
"""

import os
import signal
import time

import gofer
from gofer import signals


async def handle(job: str) -> str:
    if job == "job 13":
        await gofer.sleep(1_000_000)  # will never be done
    await gofer.sleep(0.05)
    return job


async def accept(pool: gofer.WorkerPool[str, str]) -> None:
    """As a server would take requests."""
    n = 0
    while True:
        await pool.submit(f"job {n}")
        n += 1
        await gofer.sleep(0.004)


async def main() -> None:
    stop = signals.notify_context(signal.SIGTERM, signal.SIGINT)
    gofer.after_func(0.3, os.kill, os.getpid(), signal.SIGTERM)
    async with gofer.WorkerPool(8, handle) as pool:
        print(f"process {os.getpid()} takes jobs until SIGTERM or Ctrl-C")
        async with stop:
            await accept(pool)
        print(f"{stop.cause()}: {pool.stats.running} running, {pool.stats.queued} queued")
        started = time.perf_counter()
        report = await pool.shutdown(timeout=0.5)
        print(f"drained for {time.perf_counter() - started:.1f} s: {report.completed} completed,")
        print(f"   cancelled: {', '.join(report.unfinished)}")
        try:
            await pool.submit("too late")
        except gofer.PoolClosed as refused:
            print(f"one more job: {refused}")
    accepted = pool.stats.submitted
    assert accepted == report.completed + len(report.unfinished) == len(pool.results)
    print(f"{accepted} jobs were accepted, and there are {len(pool.results)} results")


if __name__ == "__main__":
    gofer.run(main)
