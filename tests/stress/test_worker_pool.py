"""WorkerPool under chaos: every job that was accepted is accounted for, once."""

import contextlib
import gc
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import random
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import gofer
from gofer import Result, WorkerPool, block
from tests import pool_work
from tests.support import os_threads, rounds


class Chaos(BaseException):
    pass


async def work(job: tuple[int, float]) -> int:
    """Return, raise, or be slow, as the job has it."""
    n, fate = job
    if fate < 0.05:
        raise LookupError(n)
    if fate < 0.08:
        raise Chaos(n)
    if fate < 0.1:
        gofer.goexit()
    if fate < 0.15:
        gofer.current().cancel()
    if fate < 0.3:
        await gofer.sleep(fate / 1000)
    elif fate < 0.6:
        await gofer.gosched()
    if fate < 0.62:
        raise gofer.Cancelled(n)
    return n


def plain_work(job: tuple[int, float]) -> int:
    return block(work(job))


class Accounts:
    """Who has been accepted, and what came of it."""

    def __init__(self) -> None:
        self.accepted: list[Any] = []
        self.results: list[Result[Any, Any]] = []

    async def submit_all(self, pool: WorkerPool[Any, Any], dice: random.Random, n: int) -> None:
        for _ in range(n):
            job = (dice.randrange(10**9), dice.random())
            if dice.random() < 0.1:
                await gofer.sleep(dice.random() / 5000)
            try:
                await pool.submit(job, timeout=dice.choice([None, None, 0, 0.0005]))
            except TimeoutError:
                continue
            except gofer.ChannelClosed:
                return
            self.accepted.append(job)

    async def submit_or_be_cancelled(
        self, pool: WorkerPool[Any, Any], dice: random.Random, n: int
    ) -> None:
        """One submitter after the other is cancelled, perhaps as its job is accepted."""
        for _ in range(n):
            job = (dice.randrange(10**9), dice.random())
            g = gofer.go(self.submit_one, pool, job)
            for _ in range(dice.randrange(3)):
                await gofer.gosched()
            g.cancel()
            with contextlib.suppress(gofer.Cancelled, gofer.ChannelClosed):
                await g

    async def submit_one(self, pool: WorkerPool[Any, Any], job: Any) -> None:
        await pool.submit(job)
        self.accepted.append(job)

    async def read(self, pool: WorkerPool[Any, Any], dice: random.Random) -> None:
        async for result in pool.results:
            self.results.append(result)
            if dice.random() < 0.02:
                await gofer.sleep(dice.random() / 1000)  # a slow consumer

    def check(self, report: gofer.ShutdownReport) -> None:
        assert sorted(r.job for r in self.results) == sorted(self.accepted)
        stopped = {r.job for r in self.results if r.job in set(report.unfinished)}
        assert len(report.unfinished) == len(stopped)
        assert report.completed + len(report.unfinished) == len(self.accepted)
        for r in self.results:
            if r.error is None:
                assert r.value == r.job[0]
            elif isinstance(r.error, (LookupError, Chaos)):
                assert r.error.args == (r.job[0],)
            else:
                assert isinstance(r.error, (gofer.Cancelled, RuntimeError)), r


async def one_round(seed: int, plain: bool) -> None:
    dice = random.Random(seed)
    books = Accounts()
    cpu_bound = (lambda job: job[0] % 3 == 0) if dice.random() < 0.5 else None
    pool = WorkerPool(
        dice.choice([1, 2, 5]),
        plain_work if plain else work,
        queue=dice.choice([0, 1, 3, 20]),
        cpu_bound=cpu_bound,
    )
    submitters = []
    try:
        async with pool:
            readers = [gofer.go(books.read, pool, random.Random(seed + i)) for i in range(2)]
            for i in range(3):
                how = books.submit_or_be_cancelled if i == 2 else books.submit_all
                submitters.append(gofer.go(how, pool, random.Random(seed + i), 20))
            if dice.random() < 0.3:
                gofer.gomaxprocs(dice.choice([1, 2, 3]))
            if dice.random() < 0.4:
                await gofer.sleep(dice.random() / 300)
                await pool.shutdown(dice.choice([None, 0, 0.001]), grace=60)
            elif dice.random() < 0.4:
                await gofer.sleep(dice.random() / 300)
                raise LookupError("in the block")
            for g in submitters:
                await g
    except LookupError:
        pass
    for g in submitters + readers:
        await g
    books.check(await pool.shutdown())


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("procs", [1, 2, 4])
def test_every_job_is_accounted_for(procs: int, plain: bool) -> None:
    for i in rounds(10 if plain else 3):
        gofer.run(one_round, i * 10 + procs, plain, procs=procs)


@pytest.mark.parametrize("procs", [1, 4])
def test_giving_up_and_coming_back_at_once(procs: int) -> None:
    """A handler comes back at the very moment in which a shutdown gives it up: one tells."""

    async def main(seed: int) -> None:
        dice = random.Random(seed)

        async def stubborn(n: float) -> float:
            async with gofer.context.shield():
                await gofer.sleep(n)
            return n

        async with WorkerPool(8, stubborn) as pool:
            jobs = [dice.random() / 500 for _ in range(20)]
            for job in jobs:
                await pool.submit(job)
            report = await pool.shutdown(0, grace=dice.random() / 500)
            results = [r async for r in pool.results]
        assert sorted(r.job for r in results) == sorted(jobs)
        assert {r.job for r in results if r.error is not None} == set(report.unfinished)
        assert report.completed + len(report.unfinished) == len(jobs)

    for i in rounds(3):
        gofer.run(main, i, procs=procs)


@pytest.fixture(scope="module", autouse=True)
def helpers_of_multiprocessing() -> None:
    """Two processes that it starts when first needed; it keeps pipes to them open for ever."""
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


def test_processes_that_are_killed() -> None:
    async def main(seed: int) -> None:
        dice = random.Random(seed)
        fates = ["", "", "", "", "raise", "exit", "kill"]
        jobs = [(n, dice.choice(fates)) for n in range(20)]
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            async with WorkerPool(3, pool_work.chaos, executor=executor) as pool:
                for job in jobs:
                    await pool.submit(job)
        results = [r async for r in pool.results]
        assert sorted(r.job for r in results) == jobs
        for (n, fate), value, error, _ in results:
            if error is None:
                assert (value, fate) == (n, "")
            elif isinstance(error, LookupError):
                assert fate == "raise"
            else:  # its own fault, or that of one beside it
                assert "terminated abruptly" in str(error)
        assert any(r.error is None for r in results)

    threads = len(os_threads())
    for i in rounds(300):
        gofer.run(main, i, procs=2)
    while len(os_threads()) > threads:  # executors that were replaced end by themselves
        time.sleep(0.001)
    gc.collect()
