"""WorkerPool: jobs in, results out, and each job accounted for."""

import contextlib
import gc
import io
import math
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import re
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

import gofer
from gofer import Result, WorkerPool, block, context
from tests import pool_work
from tests.future_support import AtOnce, ByHand
from tests.support import PATIENCE, parked, sleep_long, thread, until, wait_for


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def double(n: int) -> int:
    await gofer.gosched()
    return 2 * n


def plain_double(n: int) -> int:
    return 2 * n


class Gate:
    """A handler that counts who is inside, and lets nobody out until it is told to."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.let_out: gofer.Chan[None] = gofer.Chan()
        self.lock = threading.Lock()

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1

    async def __call__(self, job: Any) -> Any:
        self.enter()
        try:
            await self.let_out.recv_ok()
        finally:
            self.leave()
        return job

    def open(self) -> None:
        self.let_out.close()


async def all_of(pool: WorkerPool[Any, Any]) -> list[Result[Any, Any]]:
    return [r async for r in pool.results]


# --- Jobs and results ----------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [double, plain_double], ids=["async", "plain"])
@pytest.mark.parametrize("workers", [1, 3, 20])
def test_each_job_gives_one_result(procs: int, workers: int, handler: Callable[[int], Any]) -> None:
    async def main() -> list[Result[int, int]]:
        async with WorkerPool(workers, handler) as pool:
            for n in range(500):
                await pool.submit(n)
        return await all_of(pool)

    results = gofer.run(main, procs=procs)
    assert sorted(r.job for r in results) == list(range(500))
    for job, value, error, elapsed in results:
        assert (value, error) == (2 * job, None)
        assert 0 <= elapsed < 60


@pytest.mark.parametrize("handler", [double, plain_double], ids=["async", "plain"])
def test_results_can_be_read_while_jobs_are_submitted(
    procs: int, handler: Callable[[int], Any]
) -> None:
    async def main() -> int:
        async with WorkerPool(4, handler, queue=2) as pool:
            reader = gofer.go(all_of, pool)
            for n in range(300):
                await pool.submit(n)
        return sum(r.value for r in await reader)

    assert gofer.run(main, procs=procs) == 300 * 299


def test_a_submitter_need_not_read_results_first(procs: int) -> None:
    """Not one who submits far more than the queue holds, either."""

    async def main() -> None:
        async with WorkerPool(2, double, queue=1) as pool:
            for n in range(2000):
                await pool.submit(n)
            assert pool.stats.unread <= 2000
            await until(lambda: pool.stats.unread == 2000)
            for _ in range(2000):
                assert (await pool.results.recv()).error is None
            assert pool.stats.unread == 0

    gofer.run(main, procs=procs)


def test_results_is_a_channel_to_receive_from(procs: int) -> None:
    async def main() -> None:
        async with WorkerPool(1, double) as pool:
            assert isinstance(pool.results, gofer.RecvChan)
            assert pool.results is pool.results
            with pytest.raises(gofer.WouldBlock):
                pool.results.recv_nowait()
            await pool.submit(21)
            which, value, ok = await gofer.select(pool.results.recv(), gofer.sleep(60))
            assert (which, value.value, ok) == (0, 42, True)
            assert len(pool.results) == 0
        with pytest.raises(gofer.ChannelClosed):
            await pool.results.recv()

    gofer.run(main, procs=procs)


def test_none_is_a_job_and_a_value(procs: int) -> None:
    async def main() -> list[Result[None, None]]:
        async def nothing(job: None) -> None:
            assert job is None

        async with WorkerPool(2, nothing) as pool:
            for _ in range(3):
                await pool.submit(None)
        return await all_of(pool)

    assert [r[:3] for r in gofer.run(main, procs=procs)] == [(None, None, None)] * 3


def test_elapsed_is_the_time_in_the_handler() -> None:
    async def main() -> list[float]:
        async with WorkerPool(1, gofer.sleep, queue=10) as pool:
            for s in (0.05, 0.0, 0.02):
                await pool.submit(s)
        return [r.elapsed for r in await all_of(pool)]

    first, second, third = gofer.run(main)
    assert 0.05 <= first < 10
    assert second < first
    assert third >= 0.02


def test_a_handler_may_return_an_operation_or_a_coroutine(procs: int) -> None:
    async def main() -> list[int | None]:
        async with WorkerPool(2, lambda n: double(n)) as pool:
            await pool.submit(4)
        return [r.value for r in await all_of(pool)]

    assert gofer.run(main, procs=procs) == [8]


def test_a_goroutine_or_a_future_is_a_value(procs: int) -> None:
    async def main() -> None:
        def start(n: int) -> gofer.Goroutine[int]:
            return gofer.go(double, n)

        async with WorkerPool(1, start) as pool:
            await pool.submit(4)
            result = await pool.results.recv()
        assert await result.value == 8

    gofer.run(main, procs=procs)


def test_a_plain_handler_may_block(procs: int) -> None:
    """On time, and on operations, each on a thread of its own."""

    async def main() -> list[Result[int, int]]:
        meet: gofer.Chan[int] = gofer.Chan()

        def handler(n: int) -> int:
            time.sleep(0.001)
            if n % 2:
                block(meet.send(n), timeout=60)
                return n
            return block(meet.recv(), timeout=60)

        async with WorkerPool(4, handler) as pool:
            for n in range(20):
                await pool.submit(n)
        return await all_of(pool)

    results = gofer.run(main, procs=procs)
    assert [r.error for r in results] == [None] * 20
    assert sum(r.value for r in results) == 2 * sum(range(1, 20, 2))


def test_at_most_so_many_run_at_once(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(3, gate, queue=10) as pool:
            for n in range(8):
                await pool.submit(n)
            await until(lambda: gate.inside == 3)
            assert (pool.stats.running, pool.stats.queued, pool.stats.submitted) == (3, 5, 8)
            gate.open()
        assert gate.most == 3
        assert pool.stats.completed == 8

    gofer.run(main, procs=procs)


def test_handlers_may_submit_jobs(procs: int) -> None:
    async def main() -> int:
        async def tree(depth: int) -> None:
            if depth:
                await pool.submit(depth - 1)
                await pool.submit(depth - 1)

        async with WorkerPool(2, tree, queue=200) as pool:
            await pool.submit(5)
            for _ in range(63):
                await pool.results.recv()
            return pool.stats.completed

    assert gofer.run(main, procs=procs) == 63


# --- Backpressure --------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [0, 1, 5])
def test_submit_waits_while_the_queue_is_full(procs: int, queue: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(2, gate, queue=queue) as pool:
            for n in range(2):
                await pool.submit(n)
            await until(lambda: gate.inside == 2)
            for n in range(queue):
                await pool.submit(n, timeout=0)
            with pytest.raises(TimeoutError, match="full for 0 s"):
                await pool.submit(99, timeout=0)
            with pytest.raises(TimeoutError, match=r"full for 0\.01 s"):
                await pool.submit(99, timeout=0.01)
            waiting = gofer.go(wait_for, pool.submit(77))
            await parked(waiting)
            gate.open()
            await waiting
        assert sorted(r.job for r in await all_of(pool)) == sorted([0, 1, *range(queue), 77])

    gofer.run(main, procs=procs)


def test_submit_with_time_waits_no_longer_than_needed(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(1, gate, queue=0) as pool:
            await pool.submit(1, timeout=60)
            waiting = gofer.go(wait_for, pool.submit(2, timeout=60))
            await parked(waiting)
            gate.open()
            await waiting

    gofer.run(main, procs=procs)


def test_submit_in_plain_code(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(1, gate, queue=2) as pool:

            def plain() -> None:
                block(pool.submit(1))
                block(pool.submit(2, timeout=60))
                deadline = time.monotonic() + 60
                while not gate.inside and time.monotonic() < deadline:
                    block(gofer.sleep(0.001))
                block(pool.submit(3), timeout=60)
                with pytest.raises(TimeoutError):
                    block(pool.submit(99, timeout=0.01))
                with pytest.raises(TimeoutError):
                    block(pool.submit(99), timeout=0.01)

            await gofer.go(plain)
            gate.open()

            def foreign() -> None:
                block(pool.submit(4))
                block(pool.submit(5, timeout=60))

            with thread(foreign) as t:
                while t.is_alive():
                    await gofer.sleep(0.001)
        assert sorted(r.job for r in await all_of(pool)) == [1, 2, 3, 4, 5]

    gofer.run(main, procs=procs)


def test_a_submit_that_is_cancelled_submits_nothing(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(1, gate, queue=0) as pool:
            await pool.submit(1)
            await until(lambda: gate.inside == 1)
            for timeout in (None, 60):
                waiting = gofer.go(wait_for, pool.submit(99, timeout))
                await parked(waiting)
                waiting.cancel()
                with pytest.raises(gofer.Cancelled):
                    await waiting
            gate.open()
        assert [r.job for r in await all_of(pool)] == [1]

    gofer.run(main, procs=procs)


def test_submit_does_nothing_until_it_is_awaited(procs: int) -> None:
    async def main() -> None:
        async with WorkerPool(1, double) as pool:
            operation = pool.submit(1)
            assert isinstance(operation, gofer.Operation)
            await gofer.sleep(0.001)
            assert pool.stats.submitted == 0
            await operation
        assert pool.stats.submitted == 1

    gofer.run(main, procs=procs)


def test_submit_is_a_case_of_select(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(1, gate, queue=0) as pool:
            assert (await gofer.select(pool.submit(1), gofer.sleep(60))).index == 0
            assert (await gofer.select(pool.submit(2), gofer.sleep(0.01))).index == 1
            gate.open()
        assert [r.job for r in await all_of(pool)] == [1]

    gofer.run(main, procs=procs)


# --- What handlers do ----------------------------------------------------------------------------


def test_the_result_carries_the_error(procs: int) -> None:
    async def main() -> list[Result[int, int]]:
        async def odd_fails(n: int) -> int:
            await gofer.gosched()
            if n % 2:
                raise LookupError(n)
            return n

        async with WorkerPool(3, odd_fails) as pool:
            for n in range(10):
                await pool.submit(n)
        assert (pool.stats.completed, pool.stats.failed) == (10, 5)
        return await all_of(pool)

    for r in gofer.run(main, procs=procs):
        if r.job % 2:
            assert isinstance(r.error, LookupError)
            assert r.error.args == (r.job,)
            assert r.value is None
            names = [frame.name for frame in traceback.extract_tb(r.error.__traceback__)]
            assert names == ["odd_fails"]
        else:
            assert (r.value, r.error) == (r.job, None)


class Odd(BaseException):
    pass


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(
    ("what", "error"),
    [
        (Odd("x"), Odd),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(3), SystemExit),
        (GeneratorExit("x"), GeneratorExit),
        (StopIteration(1), RuntimeError),
        (StopAsyncIteration(1), (StopAsyncIteration, RuntimeError)),
        (gofer.Cancelled("x"), gofer.Cancelled),
        (TimeoutError(), TimeoutError),
        ("goexit", RuntimeError),
        ("cancel", type(None)),
    ],
    ids=str,
)
def test_the_pool_goes_on_whatever_the_handler_does(
    procs: int, what: Any, error: Any, plain: bool
) -> None:
    def act() -> None:
        if what == "goexit":
            gofer.goexit()
        if what == "cancel":
            gofer.current().cancel()
            return
        raise type(what)(*what.args)  # one of its own: it keeps the frames of its traceback

    def plain_handler(n: int) -> int:
        if n == 1:
            act()
        return n

    async def handler(n: int) -> int:
        return plain_handler(n)

    async def main() -> list[Result[int, int]]:
        async with WorkerPool(1, plain_handler if plain else handler) as pool:
            for n in range(4):
                await pool.submit(n)
        return await all_of(pool)

    results = gofer.run(main, procs=procs)
    assert [r.job for r in results] == [0, 1, 2, 3]
    assert isinstance(results[1].error, error)
    assert [results[i].value for i in (0, 2, 3)] == [0, 2, 3]


def test_a_handler_that_cancels_itself_and_waits(procs: int) -> None:
    async def handler(n: int) -> int:
        if n == 1:
            gofer.current().cancel("enough")
            await gofer.sleep(60)
        return n

    async def main() -> list[Result[int, int]]:
        async with WorkerPool(1, handler) as pool:
            for n in range(4):
                await pool.submit(n)
        return await all_of(pool)

    results = gofer.run(main, procs=procs)
    assert [type(r.error) for r in results] == [type(None), gofer.Cancelled, *[type(None)] * 2]


def test_a_worker_keeps_nothing_of_a_job_that_is_done(procs: int) -> None:
    class Big:
        pass

    async def main() -> None:
        refs: list[weakref.ref[Any]] = []

        async def handler(job: Big) -> Big:
            big = Big()
            refs.append(weakref.ref(big))
            if len(refs) > 3:
                raise LookupError(job)
            return big

        async with WorkerPool(2, handler) as pool:
            for _ in range(6):
                job = Big()
                refs.append(weakref.ref(job))
                await pool.submit(job)
                del job
                await pool.results.recv()

            def all_gone() -> bool:
                gc.collect()
                return all(ref() is None for ref in refs)

            await until(all_gone)

    gofer.run(main, procs=procs)


# --- The end -------------------------------------------------------------------------------------


def test_leaving_the_block_waits_for_all_jobs(procs: int) -> None:
    async def main() -> None:
        done = []

        async def slow(n: int) -> None:
            await gofer.sleep(0.005)
            done.append(n)

        async with WorkerPool(4, slow) as pool:
            for n in range(10):
                await pool.submit(n)
        assert sorted(done) == list(range(10))
        assert pool.results.closed
        assert len(await all_of(pool)) == 10

    gofer.run(main, procs=procs)


def test_leaving_it_by_an_exception_cancels(procs: int) -> None:
    cleaned = []

    async def main() -> None:
        async def hang(n: int) -> None:
            try:
                await sleep_long()
            finally:
                cleaned.append(n)

        pool = WorkerPool(2, hang)

        async def leave() -> None:
            async with pool:
                for n in range(5):
                    await pool.submit(n)
                await until(lambda: pool.stats.running == 2)
                raise LookupError("x")

        with pytest.raises(LookupError, match="x"):
            await leave()
        assert sorted(cleaned) == [0, 1]
        report = await pool.shutdown()
        assert sorted(report.cancelled) == [0, 1]
        assert report.never_begun == (2, 3, 4)
        results = await all_of(pool)
        assert sorted(r.job for r in results) == list(range(5))
        assert {type(r.error) for r in results} == {gofer.Cancelled}

    gofer.run(main, procs=procs)


def test_goexit_in_the_block_drains(procs: int) -> None:
    async def main() -> list[int | None]:
        pool = WorkerPool(2, double)

        async def user() -> None:
            async with pool:
                await pool.submit(1)
                await pool.submit(2)
                gofer.goexit()

        g = gofer.go(user)
        with contextlib.suppress(BaseException):
            await g
        return sorted(r.value for r in await all_of(pool))

    assert gofer.run(main, procs=procs) == [2, 4]


def test_being_cancelled_while_it_drains(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        pool = WorkerPool(2, gate)

        async def user() -> None:
            async with pool:
                for n in range(4):
                    await pool.submit(n)

        g = gofer.go(user)
        await until(lambda: gate.inside == 2)
        await parked(g)
        g.cancel("stop")
        with pytest.raises(gofer.Cancelled, match="stop"):
            await g
        assert gate.inside == 0
        assert sorted(r.job for r in await all_of(pool)) == [0, 1, 2, 3]

    gofer.run(main, procs=procs)


def test_a_context_around_it_that_ends(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        pool = WorkerPool(2, gate)

        async def use() -> None:
            async with gofer.timeout(0.02), pool:
                for n in range(4):
                    await pool.submit(n)

        with pytest.raises(TimeoutError):
            await use()
        assert gate.inside == 0
        results = await all_of(pool)
        assert sorted(r.job for r in results) == [0, 1, 2, 3]
        assert {type(r.error) for r in results} == {gofer.Cancelled}

    gofer.run(main, procs=procs)


def test_shutdown_drains_and_reports(procs: int) -> None:
    async def main() -> None:
        async with WorkerPool(2, double) as pool:
            for n in range(20):
                await pool.submit(n)
            report = await pool.shutdown(timeout=60)
            assert report.completed == 20
            assert report.unfinished == ()
            assert pool.results.closed
            assert len(await all_of(pool)) == 20
            with pytest.raises(gofer.PoolClosed, match="shut down"):
                await pool.submit(1)
            with pytest.raises(gofer.ChannelClosed):
                await pool.submit(1, timeout=1)
            assert await pool.shutdown() == report
        assert await pool.shutdown(0) == report

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("timeout", [0, 0.02])
def test_shutdown_cancels_when_time_is_up(procs: int, timeout: float) -> None:
    async def main() -> None:
        async def handler(n: int) -> int:
            if n >= 2:
                await sleep_long()
            return n

        async with WorkerPool(3, handler, queue=10) as pool:
            for n in range(8):
                await pool.submit(n)
            await until(lambda: (pool.stats.completed, pool.stats.running) == (2, 3))
            report = await pool.shutdown(timeout)
            assert (report.completed, report.failed) == (2, 0)
            assert sorted(report.cancelled) == [2, 3, 4]
            assert report.never_begun == (5, 6, 7)
            assert sorted(report.unfinished) == [2, 3, 4, 5, 6, 7]
            results = await all_of(pool)
            assert sorted(r.job for r in results) == list(range(8))
            for r in results:
                assert isinstance(r.error, gofer.Cancelled) == (r.job >= 2)
            stats = pool.stats
            assert (stats.submitted, stats.completed, stats.running, stats.queued) == (8, 2, 0, 0)

    gofer.run(main, procs=procs)


def test_who_waits_in_submit_hears_of_the_shutdown(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(1, gate, queue=0) as pool:
            await pool.submit(1)
            waiting = [gofer.go(wait_for, pool.submit(n, t)) for n, t in ((8, None), (9, 60))]
            await parked(*waiting)
            end = gofer.go(pool.shutdown)
            for g in waiting:
                with pytest.raises(gofer.ChannelClosed):
                    await g
            gate.open()
            assert (await end).completed == 1

    gofer.run(main, procs=procs)


def test_a_plain_handler_that_hangs_is_abandoned(procs: int) -> None:
    """It runs on, but nobody hears of it."""
    go_on = threading.Event()
    back: list[int] = []

    async def main() -> None:
        def hang(n: int) -> int:
            go_on.wait(60)
            back.append(n)
            return n

        async with WorkerPool(2, hang) as pool:
            for n in range(3):
                await pool.submit(n)
            await until(lambda: pool.stats.running == 2)
            report = await pool.shutdown(0.01, grace=0.01)
            assert sorted(report.abandoned) == [0, 1]
            assert report.never_begun == (2,)
            results = await all_of(pool)
            assert sorted(r.job for r in results) == [0, 1, 2]
            assert {type(r.error) for r in results} == {gofer.Cancelled}
            assert max(r.elapsed for r in results) >= 0.02
            go_on.set()
            await until(lambda: sorted(back) == [0, 1])
        assert await all_of(pool) == []
        assert pool.stats.completed == 0

    gofer.run(main, procs=procs)


def test_an_async_handler_that_will_not_be_cancelled_is_abandoned(procs: int) -> None:
    async def main() -> None:
        gate = Gate()

        async def stubborn(n: int) -> None:
            async with context.shield():
                await gate(n)

        async with WorkerPool(1, stubborn) as pool:
            await pool.submit(1)
            await until(lambda: gate.inside == 1)
            report = await pool.shutdown(0, grace=0)
            assert report.abandoned == (1,)
            gate.open()
            await until(lambda: gate.inside == 0)

    gofer.run(main, procs=procs)


def test_clean_up_may_take_its_time(procs: int) -> None:
    async def main() -> None:
        async def handler(n: int) -> None:
            try:
                await sleep_long()
            finally:
                async with context.shield():
                    await gofer.sleep(0.01)

        async with WorkerPool(2, handler) as pool:
            await pool.submit(1)
            await until(lambda: pool.stats.running == 1)
            report = await pool.shutdown(0, grace=60)
            assert (report.cancelled, report.abandoned) == ((1,), ())

    gofer.run(main, procs=procs)


def test_several_may_shut_it_down_at_once(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(1, gate) as pool:
            for n in range(3):
                await pool.submit(n)
            ends = [gofer.go(pool.shutdown, t) for t in (None, 60, 0.01, 0.01)]
            reports = [await g for g in ends]
            assert all(r is reports[0] for r in reports)
            assert len(reports[0].unfinished) == 3

    gofer.run(main, procs=procs)


def test_a_shutdown_that_is_given_up_leaves_the_jobs_running(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(1, gate) as pool:
            await pool.submit(1)
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.01):
                    await pool.shutdown()
            with pytest.raises(gofer.PoolClosed):
                await pool.submit(2)
            gate.open()
            assert (await pool.shutdown()).completed == 1

    gofer.run(main, procs=procs)


def test_shutdown_in_a_handler_is_refused(procs: int) -> None:
    async def main() -> None:
        async def handler(n: int) -> None:
            await pool.shutdown()

        async with WorkerPool(1, handler) as pool:
            await pool.submit(1)
            result = await pool.results.recv()
        assert isinstance(result.error, RuntimeError)
        assert "wait for itself" in str(result.error)

    gofer.run(main, procs=procs)


def test_the_end_of_main_ends_a_pool_of_another_goroutine(procs: int) -> None:
    pools = []

    async def main() -> None:
        async def user() -> None:
            async with WorkerPool(2, double) as pool:
                pools.append(pool)
                await pool.submit(1)
                await sleep_long()

        gofer.go(user)
        await until(lambda: pools and pools[0].stats.completed == 1)

    gofer.run(main, procs=procs)
    assert pools[0].results.closed
    assert pools[0].results.recv_nowait().value == 2


def test_waiting_for_a_result_that_cannot_come_is_a_deadlock() -> None:
    async def main() -> None:
        async with WorkerPool(2, double) as pool:
            await pool.results.recv()

    with pytest.raises(gofer.Deadlock):
        gofer.run(main)


# --- CPU-bound jobs ------------------------------------------------------------------------------


def test_cpu_bound_jobs_hold_a_permit(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(6, gate, cpu_bound=lambda job: True) as pool:
            for n in range(12):
                await pool.submit(n)
            await until(lambda: gate.inside == procs)
            await until(lambda: pool.stats.cpu_waiting == 12 - procs)
            assert pool.stats.cpu_running == procs
            gate.open()
        assert gate.most == procs
        assert sorted(r.job for r in await all_of(pool)) == list(range(12))

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("handler", ["async", "plain"])
def test_others_run_freely_beside_them(procs: int, handler: str) -> None:
    """Also if more CPU-bound jobs wait than there are workers."""

    async def main() -> None:
        gate = Gate()

        async def serve(job: str) -> str:
            return await gate(job) if job == "cpu" else job

        def plain(job: str) -> str:
            return block(serve(job))

        work = serve if handler == "async" else plain
        async with WorkerPool(5, work, cpu_bound=lambda job: job == "cpu") as pool:
            for _ in range(10):
                await pool.submit("cpu")
            for _ in range(50):
                await pool.submit("io")
            for _ in range(50):
                assert (await pool.results.recv()).job == "io"
            assert gate.inside == procs
            gate.open()
        assert [r.job for r in await all_of(pool)] == ["cpu"] * 10

    gofer.run(main, procs=procs)


def test_the_permits_follow_gomaxprocs(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(8, gate, cpu_bound=lambda job: True, queue=30) as pool:
            for n in range(20):
                await pool.submit(n)
            await until(lambda: gate.inside == procs)
            gofer.gomaxprocs(procs + 3)
            await until(lambda: gate.inside == procs + 3)
            gofer.gomaxprocs(1)
            for _ in range(procs + 2):
                await gate.let_out.send(None)
                await pool.results.recv()
            assert gate.inside == 1
            assert pool.stats.cpu_running == 1
            await gate.let_out.send(None)
            await pool.results.recv()
            await until(lambda: gate.inside == 1)
            gate.open()
        assert gate.most == procs + 3

    gofer.run(main, procs=procs)


def test_cpu_bound_jobs_exert_backpressure(procs: int) -> None:
    async def main() -> int:
        gate = Gate()
        accepted = 0
        async with WorkerPool(4, gate, cpu_bound=lambda job: True, queue=5) as pool:
            with contextlib.suppress(TimeoutError):
                while accepted < 1000:
                    await pool.submit(accepted, timeout=0.05)
                    accepted += 1
            await until(lambda: pool.stats.submitted == accepted)  # a worker may hold one just now
            gate.open()
        assert gate.most == procs
        assert sorted(r.job for r in await all_of(pool)) == list(range(accepted))
        return accepted

    assert gofer.run(main, procs=procs) <= 5 + (5 + 4) + 4 + 4


def test_many_of_both_through_a_small_queue(procs: int) -> None:
    async def main() -> None:
        gate = Gate()

        async def work(n: int) -> int:
            if n % 3 == 0:
                gate.enter()
                for _ in range(3):
                    await gofer.gosched()
                gate.leave()
            else:
                await gofer.gosched()
            return n

        async with WorkerPool(7, work, cpu_bound=lambda n: n % 3 == 0, queue=2) as pool:
            for n in range(600):
                await pool.submit(n)
        assert gate.most <= procs
        assert sorted(r.value for r in await all_of(pool)) == list(range(600))

    gofer.run(main, procs=procs)


def test_cpu_bound_that_raises_is_the_result(procs: int) -> None:
    async def main() -> list[Result[int, int]]:
        def cpu_bound(n: int) -> bool:
            if n == 1:
                raise LookupError("which?")
            return n > 1

        async with WorkerPool(2, double, cpu_bound=cpu_bound) as pool:
            for n in range(4):
                await pool.submit(n)
        return sorted(await all_of(pool))

    results = gofer.run(main, procs=procs)
    assert [r.value for r in results] == [0, None, 4, 6]
    assert isinstance(results[1].error, LookupError)


def test_cpu_bound_that_hangs_is_given_up(procs: int) -> None:
    async def main() -> None:
        go_on = threading.Event()
        begun = []

        def cpu_bound(n: int) -> bool:
            begun.append(n)
            return go_on.wait(60)

        async with WorkerPool(1, double, cpu_bound=cpu_bound) as pool:
            await pool.submit(1)
            await pool.submit(2)
            await until(lambda: begun)
            report = await pool.shutdown(0, grace=0)
            assert (report.abandoned, report.never_begun) == ((1,), (2,))
            go_on.set()
        assert [r.job async for r in pool.results] == [1, 2]

    gofer.run(main, procs=procs)


def test_a_pool_that_cannot_be_started_is_closed() -> None:
    async def main() -> None:
        pool = WorkerPool(3, double)

        async def user() -> None:
            try:
                await sleep_long()
            finally:  # the run ends: go() refuses
                with pytest.raises(RuntimeError):
                    await pool.__aenter__()
                refused.append(pool)

        gofer.go(user)
        await gofer.gosched()

    refused: list[WorkerPool[int, int]] = []
    gofer.run(main, procs=1)
    assert refused[0].results.closed
    with pytest.raises(gofer.PoolClosed):
        refused[0].submit(1)


class ClosedLate:
    """The queue of a pool; the first close() of it is held up in the middle."""

    def __init__(self, ch: Any, meanwhile: Callable[[], object]) -> None:
        self.ch = ch
        self.meanwhile: list[Callable[[], object]] = [meanwhile]

    def __len__(self) -> int:
        return len(self.ch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ch, name)

    def close(self) -> None:
        while self.meanwhile:
            self.meanwhile.pop()()
        self.ch.close()


def test_workers_that_end_while_the_queue_is_being_closed(procs: int) -> None:
    async def main() -> None:
        def meanwhile() -> None:
            ctx.cancel()
            end = time.monotonic() + PATIENCE / 10
            while not pool._results.closed and time.monotonic() < end:
                time.sleep(0.001)

        ctx = context.with_cancel()
        async with ctx, WorkerPool(2, wait_for) as pool:
            jobs: Any = ClosedLate(pool._jobs, meanwhile)
            pool._jobs = jobs
            for _ in range(4):
                await pool.submit(gofer.Chan[None]().recv())
            await gofer.go(lambda: block(pool.shutdown()))
        assert pool.stats.queued == pool.stats.running == 0
        results = [result async for result in pool.results]
        assert [type(r.error) for r in results] == [gofer.Cancelled] * 4

    gofer.run(main, procs=procs)


def test_a_shutdown_names_those_that_wait_for_a_permit(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        async with WorkerPool(6, gate, cpu_bound=lambda job: True) as pool:
            for n in range(10):
                await pool.submit(n)
            await until(lambda: pool.stats.cpu_waiting == 10 - procs)
            report = await pool.shutdown(0)
            assert len(report.cancelled) == procs
            assert sorted(report.unfinished) == list(range(10))
        assert sorted(r.job for r in await all_of(pool)) == list(range(10))

    gofer.run(main, procs=procs)


def test_plain_cpu_bound_jobs_that_wait_are_not_begun_after_a_cancel() -> None:
    async def main() -> None:
        go_on = threading.Event()
        begun = []

        def work(n: int) -> None:
            begun.append(n)
            go_on.wait(60)

        async with WorkerPool(3, work, cpu_bound=lambda job: True) as pool:
            for n in range(4):
                await pool.submit(n)
            await until(lambda: len(begun) == 1 and pool.stats.cpu_waiting == 3)
            end = gofer.go(pool.shutdown, 0, grace=60)
            await until(lambda: pool._stopping)
            go_on.set()
            report = await end
            assert len(begun) == 1
            assert sorted(report.never_begun) == [1, 2, 3]

    gofer.run(main, procs=1)


# --- Executors -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def helpers_of_multiprocessing() -> None:
    """Two processes that it starts when first needed; it keeps pipes to them open for ever."""
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


def process_pool(n: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("forkserver"))


def test_jobs_in_threads_of_an_executor(procs: int) -> None:
    async def main() -> list[int | None]:
        with ThreadPoolExecutor(2) as executor:
            async with WorkerPool(4, plain_double, executor=executor) as pool:
                for n in range(50):
                    await pool.submit(n)
        return sorted(r.value for r in await all_of(pool))

    assert gofer.run(main, procs=procs) == [2 * n for n in range(50)]


def test_jobs_in_processes() -> None:
    async def main() -> list[int | None]:
        with process_pool(2) as executor:
            async with WorkerPool(4, pool_work.square, executor=executor) as pool:
                for n in range(20):
                    await pool.submit(n)
        return sorted(r.value for r in await all_of(pool))

    assert gofer.run(main) == [n * n for n in range(20)]


def test_a_job_that_kills_its_process() -> None:
    """The pool goes on, with new processes."""

    async def main() -> list[Result[Any, Any]]:
        with process_pool(1) as executor:
            async with WorkerPool(1, pool_work.chaos, executor=executor) as pool:
                for n, what in enumerate(["", "kill", "", "raise", "exit", ""]):
                    await pool.submit((n, what))
        return await all_of(pool)

    results = gofer.run(main)
    assert [r.value for r in results] == [0, None, 2, None, None, 5]
    assert [type(results[n].error) for n in (1, 3, 4)] == [
        BrokenProcessPool,
        LookupError,
        BrokenProcessPool,
    ]


def test_a_huge_value_from_a_process() -> None:
    async def main() -> list[int]:
        with process_pool(1) as executor:
            async with WorkerPool(1, pool_work.zeros, executor=executor) as pool:
                await pool.submit(20_000_000)
                await pool.submit(1)
        return [len(r.value) for r in await all_of(pool)]

    assert gofer.run(main) == [20_000_000, 1]


def test_a_shutdown_cancels_calls_that_have_not_begun(procs: int) -> None:
    async def main() -> None:
        hand = ByHand()
        async with WorkerPool(2, plain_double, executor=hand) as pool:
            for n in range(3):
                await pool.submit(n)
            await hand.submitted(2)
            report = await pool.shutdown(0)
            assert sorted(report.cancelled) == [0, 1]
            assert report.never_begun == (2,)
            assert all(f.cancelled() for f in hand.futures)

    gofer.run(main, procs=procs)


def test_an_executor_that_is_shut_down(procs: int) -> None:
    async def main() -> list[Result[int, int]]:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        async with WorkerPool(2, plain_double, executor=executor) as pool:
            await pool.submit(1)
        return await all_of(pool)

    (result,) = gofer.run(main, procs=procs)
    assert isinstance(result.error, RuntimeError)


def test_an_executor_and_permits(procs: int) -> None:
    async def main() -> list[int | None]:
        pool = WorkerPool(4, plain_double, executor=AtOnce(), cpu_bound=lambda n: n % 2 == 0)
        async with pool:
            for n in range(40):
                await pool.submit(n)
        return sorted(r.value for r in await all_of(pool))

    assert gofer.run(main, procs=procs) == [2 * n for n in range(40)]


# --- Looking at it -------------------------------------------------------------------------------


def test_stats_and_repr(procs: int) -> None:
    async def main() -> None:
        gate = Gate()
        pool = WorkerPool(2, gate, queue=5)
        assert pool.stats == (2, 0, 0, 0, 0, 0, 0, 0, 0)
        assert re.fullmatch(
            r"<WorkerPool of Gate new, 0 of 2 workers busy, 0 queued, 0 completed, at 0x\w+>",
            repr(pool),
        )
        async with pool:
            for n in range(5):
                await pool.submit(n)
            await until(lambda: pool.stats.running == 2)
            assert pool.stats == (2, 2, 3, 0, 0, 5, 0, 0, 0)
            assert "open, 2 of 2 workers busy, 3 queued" in repr(pool)
            gate.open()
        assert pool.stats == (2, 0, 0, 0, 0, 5, 5, 0, 5)
        assert "closed" in repr(pool)

    gofer.run(main, procs=procs)


def test_the_goroutines_have_names() -> None:
    async def main() -> None:
        names = []

        async def handler(n: int) -> None:
            names.append(gofer.current().name)

        async with WorkerPool(1, handler) as pool:
            await pool.submit(1)
        assert names == [f"worker 0 of {handler.__qualname__}"]

    gofer.run(main)


def test_the_stack_of_a_worker_shows_the_handler(procs: int) -> None:
    async def main() -> None:
        async def handler(g: list[gofer.Goroutine[Any]]) -> None:
            g.append(gofer.current())
            await sleep_long()

        box: list[gofer.Goroutine[Any]] = []
        async with WorkerPool(1, handler) as pool:
            await pool.submit(box)
            await until(lambda: box)
            await parked(box[0])
            names = [frame.name for frame in box[0].stack()]
            assert names[-2:] == ["handler", "sleep_long"]
            assert box[0].wait_reason == "sleep"
            await pool.shutdown(0)

    gofer.run(main, procs=procs)


def test_a_pool_that_is_forgotten_is_a_leak() -> None:
    """Its workers wait for jobs that nobody can submit any more: they are found, and end."""

    async def main() -> None:
        async def leave_it() -> None:
            await WorkerPool(2, double).__aenter__()

        await gofer.go(leave_it)
        await until(lambda: gc.collect() is not None and gofer.num_goroutine() == 1)

    with pytest.warns(gofer.GoroutineLeakWarning, match=r"worker \d of double"):
        gofer.run(main)


def test_a_leak_with_a_job_in_its_hands_accounts_for_it() -> None:
    """The handler waits for what cannot come, and nobody else knows the pool."""
    results: list[gofer.RecvChan[Result[int, None]]] = []

    async def main() -> None:
        async def forever(n: int) -> None:
            await gofer.Chan[int]().recv()

        async def leave_it() -> None:
            pool = WorkerPool(1, forever)
            await pool.__aenter__()
            results.append(pool.results)
            await pool.submit(1)
            await until(lambda: pool.stats.running)

        await gofer.go(leave_it)
        await until(lambda: gc.collect() is not None and gofer.num_goroutine() == 1)

    with pytest.warns(gofer.GoroutineLeakWarning, match="worker 0 of"):
        gofer.run(main)
    assert results[0].recv_nowait().job == 1
    assert results[0].closed


def test_the_monitor_prints_a_line_every_second() -> None:
    async def main() -> str:
        stream = io.StringIO()
        async with WorkerPool(2, gofer.sleep, monitor=stream) as pool:
            for _ in range(4):
                await pool.submit(0.6)
        await until(lambda: stream.getvalue().count("\n") == 2)
        return stream.getvalue()

    first, last = gofer.run(main).splitlines()
    assert re.fullmatch(
        r"sleep: 2 of 2 busy, 0 queued, 2 completed, 0 failed, 2 unread, [12]/s", first
    )
    assert last.startswith("sleep: 0 of 2 busy, 0 queued, 4 completed, 0 failed, 4 unread, ")


def test_a_monitor_whose_stream_is_closed_does_no_harm() -> None:
    async def main() -> int:
        stream = io.StringIO()
        stream.close()
        async with WorkerPool(1, double, monitor=stream) as pool:
            await pool.submit(1)
        return len(await all_of(pool))

    assert gofer.run(main) == 1


def test_results_are_what_they_seem() -> None:
    result = Result("job", 1, None, 0.5)
    assert result == ("job", 1, None, 0.5)
    match result:
        case Result(job, value, None, elapsed):
            assert (job, value, elapsed) == ("job", 1, 0.5)
        case _:
            raise AssertionError

    async def main() -> Result[int, int]:
        async with WorkerPool(1, double) as pool:
            await pool.submit(1)
        return await pool.results.recv()

    assert type(gofer.run(main)) is Result


# --- Misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: WorkerPool(0, double), ValueError, "workers .* at least 1, not 0"),
        (lambda: WorkerPool(-1, double), ValueError, "at least 1, not -1"),
        (lambda: WorkerPool(1.5, double), TypeError, "must be an int, not 1.5"),
        (lambda: WorkerPool(True, double), TypeError, "must be an int, not True"),
        (lambda: WorkerPool(None, double), TypeError, "must be an int, not None"),
        (lambda: WorkerPool(1, None), TypeError, "handler .* must be a function, not None"),
        (lambda: WorkerPool(1, double(1).close()), TypeError, "must be a function"),
        (lambda: WorkerPool(1, double, queue=-1), ValueError, "queue .* at least 0, not -1"),
        (lambda: WorkerPool(1, double, queue="5"), TypeError, "queue .* must be an int"),
        (lambda: WorkerPool(1, double, queue=2**60), ValueError, "capacity"),
        (lambda: WorkerPool(1, double, cpu_bound=True), TypeError, "cpu_bound must be a plain"),
        (lambda: WorkerPool(1, double, cpu_bound=double), TypeError, "cpu_bound must be a plain"),
        (lambda: WorkerPool(1, plain_double, executor=4), TypeError, "Executor, not 4"),
        (lambda: WorkerPool(1, double, executor=AtOnce()), TypeError, "plain functions only"),
        (lambda: WorkerPool(1, double, monitor="yes"), TypeError, "monitor must be"),
    ],
)
def test_wrong_arguments_are_refused(
    make: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_dask_client_is_refused_with_advice() -> None:
    class Client:
        def get_executor(self) -> None: ...

    with pytest.raises(TypeError, match=r"use its get_executor\(\)"):
        WorkerPool(1, plain_double, executor=Client())  # type: ignore[call-overload]


@pytest.mark.parametrize("method", ["submit", "shutdown"])
@pytest.mark.parametrize(
    ("seconds", "error"),
    [(math.nan, ValueError), (math.inf, ValueError), (10**400, ValueError), ("1", TypeError)],
)
def test_wrong_times_are_refused(method: str, seconds: Any, error: type[Exception]) -> None:
    async def main() -> None:
        async with WorkerPool(1, double) as pool:
            with pytest.raises(error, match=rf"{method}\(\) needs a (finite )?number of seconds"):
                await (pool.submit(1, seconds) if method == "submit" else pool.shutdown(seconds))
            await pool.submit(1, timeout=-1)  # as with sleep(): no time at all

    gofer.run(main)


def test_used_too_early_too_often_or_outside(procs: int) -> None:
    pool = WorkerPool(1, double)
    with pytest.raises(RuntimeError, match="before its block"):
        pool.submit(1)
    with pytest.raises(RuntimeError, match="needs a running runtime"):
        pool.__aenter__().send(None)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="never used"):
            await pool.shutdown()
        async with pool:
            with pytest.raises(RuntimeError, match="used once"):
                await pool.__aenter__()
        with pytest.raises(RuntimeError, match="used once"):
            async with pool:
                pass

    gofer.run(main, procs=procs)
    with pytest.raises(gofer.PoolClosed):
        pool.submit(1)


def test_cancelled_before_it_is_entered(procs: int) -> None:
    async def main() -> None:
        pool = WorkerPool(1, double)

        async def user() -> None:
            gofer.current().cancel()
            async with pool:
                raise AssertionError

        with pytest.raises(gofer.Cancelled):
            await gofer.go(user)
        async with pool:
            await pool.submit(1)

    gofer.run(main, procs=procs)
