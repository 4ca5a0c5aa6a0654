"""A program that uses a Dask cluster: see test_dask.py, which runs it.

In a process of its own, since Dask leaves threads behind that would hold back the deadlock reports
of other tests. Prints a line for each check that has passed.
"""

import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, KilledWorker, LocalCluster

import gofer
from gofer import offload
from tests import offload_work as work
from tests import pool_work
from tests.future_support import cancelled
from tests.support import parked, until, wait_for

files = ""  # a directory that outlives the tasks


async def results(client: Client) -> None:
    executor = client.get_executor()
    assert await offload(executor, work.add, 1, 2) == 3
    calls = [gofer.go(wait_for, offload(executor, work.add, i, i)) for i in range(20)]
    assert [await g for g in calls] == [2 * i for i in range(20)]


async def errors(client: Client) -> None:
    with pytest.raises(LookupError, match="over there") as failure:
        await offload(client.get_executor(), work.fail, "over there")
    assert "fail" in [frame.name for frame in traceback.extract_tb(failure.tb)]


async def native_await(client: Client) -> None:
    future = client.get_executor().submit(work.add, 3, 4)
    waiters = [gofer.go(wait_for, future) for _ in range(5)]
    assert [await g for g in waiters] == [7] * 5
    assert await future == 7


async def select(client: Client) -> None:
    executor = client.get_executor()
    ch: gofer.Chan[int] = gofer.Chan()
    assert await gofer.select(ch.recv(), offload(executor, work.add, 5, 6)) == (1, 11, True)


async def cancellation(client: Client) -> None:
    """It reaches the scheduler, which forgets the task."""
    directory = tempfile.mkdtemp(dir=files)
    begun, go_on = Path(directory, "begun"), Path(directory, "go on")
    call = offload(client.get_executor(), work.wait_for_file, str(begun), str(go_on))
    g = gofer.go(wait_for, call)
    await until(begun.exists)
    assert tasks(client) == 1
    g.cancel()
    assert await cancelled(g)
    await until(lambda: tasks(client) == 0)
    go_on.touch()


async def end_of_run(client: Client) -> None:
    """Main ends while a call runs or waits for a worker: main() looks at what came of it."""
    executor = client.get_executor(pure=False)  # or the call of the run before is this one, too
    g = gofer.go(wait_for, offload(executor, time.sleep, 0.1))
    await parked(g)


async def dead_worker(client: Client) -> None:
    with pytest.raises(KilledWorker):
        await offload(client.get_executor(), work.end)
    assert await offload(client.get_executor(), work.add, 1, 2) == 3


async def worker_pool(client: Client) -> None:
    """The same code as with processes. A worker that dies takes along what it had, not the pool."""
    fates = ["", "raise", "exit", *[""] * 5]
    executor = client.get_executor()
    async with gofer.WorkerPool(4, pool_work.chaos, executor=executor) as pool:
        for job in enumerate(fates):
            await pool.submit(job)
        first = [await pool.results.recv() for _ in fates]
        await pool.submit((100, ""))
    assert sorted(r.job for r in first) == list(enumerate(fates))
    for (n, fate), value, error, _ in first:
        if not isinstance(error, KilledWorker):
            assert (value, error) == (n, None) or (fate, type(error)) == ("raise", LookupError)
        assert fate != "exit" or isinstance(error, KilledWorker)
    assert (await pool.results.recv()).value == 100


async def advice(client: Any) -> None:
    with pytest.raises(TypeError, match=r"use its get_executor\(\)"):
        offload(client, work.add, 1, 2)


def tasks(client: Client) -> int:
    return sum(len(keys) for keys in client.processing().values())


def main() -> None:
    global files
    # A task whose worker dies is not tried again; nobody looks at the dashboard.
    settings = {"distributed.scheduler.allowed-failures": 0}
    with (
        tempfile.TemporaryDirectory() as files,
        dask.config.set(settings),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for check in (results, errors, native_await, select, cancellation, end_of_run, advice):
            for procs in (1, 2, 4):
                gofer.run(check, client, procs=procs)
            while tasks(client):
                time.sleep(0.01)
            print(check.__name__, flush=True)
        for check in (dead_worker, worker_pool):
            gofer.run(check, client)
            print(check.__name__, flush=True)


if __name__ == "__main__":
    main()
