"""WorkerPool: a bounded queue, some goroutines that serve it, and a channel of results.

What a job costs is two channel operations, one to get in and one to get out, and little else; so:
- submit() gives the very operation that sends to the queue, and close() of that channel is what
  "no more jobs" means: who waits in submit() is told, what is in the queue can still be taken.
- Results go to a channel that grows, so a worker never waits for whoever reads them.
- Nothing is counted twice. Each worker has counters of its own, which .stats adds up.
- The loop of a worker is in C, as submit() is: see src/core/pool.c.

Every job that was accepted gives one Result, whatever happens, because it is always in one place:
the queue, the lane of the CPU-bound, or with a worker. Whoever takes it out of there accounts for
it. That is the worker itself, or a shutdown that waited for long enough; take() lets one have it.
"""

import collections
import contextlib
import inspect
import math
import sys
import threading
import time
import types
from collections.abc import Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    NoReturn,
    TextIO,
    TypeVar,
    overload,
)

from gofer import _core, _run, atomic, context
from gofer._errors import Cancelled, ChannelClosed, GoExit, PoolClosed, WouldBlock
from gofer._future import is_future, wait_future
from gofer._hooks import is_async
from gofer._sync import go_wrapped, name_of
from gofer._time import Ticker

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Job = TypeVar("Job")
Value = TypeVar("Value")

MIN_QUEUE = 128  # the default has room enough that small jobs need no switch each
GRACE = 1.0

_NOTHING: Final[Any] = object()
_CPU, _FREE, _DONE, _GIVEN_UP = "CPU-bound", "free", "done", "given up"  # what a job is


class Result(NamedTuple, Generic[Job, Value]):
    """What came of a job: its value, or the error that its handler raised, and the seconds it took.

    >>> async with WorkerPool(2, len) as pool:
    ...     await pool.submit("hello")
    >>> async for job, value, error, elapsed in pool.results:
    ...     print(job, "failed:" if error else "gave", error or value)
    hello gave 5
    """

    job: Job
    value: Value | None
    error: BaseException | None
    elapsed: float


class PoolStats(NamedTuple):
    """What a WorkerPool was doing when its `.stats` was read.

    >>> pool.stats.queued, pool.stats.completed
    (0, 0)
    """

    workers: int
    running: int  # jobs that a handler has now
    queued: int  # accepted and not begun
    cpu_running: int  # of those that run, the CPU-bound
    cpu_waiting: int  # of those queued, the CPU-bound that wait for a permit
    submitted: int  # accepted, since the beginning
    completed: int  # the handler has ended, with a value or an error
    failed: int  # of those, with an error
    unread: int  # results that nobody has received yet


class ShutdownReport(NamedTuple):
    """What became of the jobs of a WorkerPool that has shut down.

    >>> report = await pool.shutdown(timeout=10)
    >>> for job in report.unfinished:
    ...     save_for_later(job)
    """

    completed: int  # jobs whose handler ended by itself, with a value or an error
    failed: int  # of those, with an error
    cancelled: tuple[Any, ...]  # jobs that had begun, and were cancelled
    abandoned: tuple[Any, ...]  # the same, but they have not ended: they may still run
    never_begun: tuple[Any, ...]

    @property
    def unfinished(self) -> tuple[Any, ...]:
        """All jobs that were accepted and not completed.

        >>> report = await pool.shutdown(timeout=10)
        >>> report.unfinished
        ()
        """
        return self.cancelled + self.abandoned + self.never_begun


class _Worker:
    """One of the goroutines, as others see it."""

    __slots__ = ("cancelled", "ended", "failed", "id", "loop")

    def __init__(self, loop: "_core._PoolWorker") -> None:
        self.id = 0
        self.loop = loop  # has the job while the handler has it, and its own count of those done
        self.failed = 0
        self.cancelled: list[Any] = []
        self.ended = False

    @property
    def completed(self) -> int:
        return self.loop.done + self.failed


class _Lane:
    """The CPU-bound jobs: as many run as there are Ps, the others wait here and hold no worker.

    A worker that gets one for which there is no permit leaves it here and takes the next job. As
    long as one waits, one runs, whose worker takes the next from here.
    """

    def __init__(self, workers: int, room: int) -> None:
        # "Look again": there may be a permit, or room.
        self.kick: _core.Chan[None] = _core.Chan(workers)
        self.lock = threading.Lock()  # over what follows
        self.running = 0
        self.waiting: collections.deque[Any] = collections.deque()
        self.room = room
        self.stalled = 0  # workers that take no job, as it might be one for which there is no room

    def full(self) -> bool:
        return len(self.waiting) >= self.room

    def admit(self, job: Any) -> bool:
        """A permit for this job; if there is none, it waits here."""
        with self.lock:
            if self.running < _core.gomaxprocs(0):
                self.running += 1
                return True
            self.waiting.append(job)
            return False

    def claim(self) -> Any:
        """The next job that waits, with a permit."""
        with self.lock:
            if not self.waiting or self.running >= _core.gomaxprocs(0):
                return _NOTHING
            self.running += 1
            job = self.waiting.popleft()
        self.wake()
        return job

    def release(self) -> None:
        with self.lock:
            self.running -= 1

    def wake(self) -> None:
        """One that was stalled, if there is room now. It will wake the next if there is more."""
        if self.stalled and not self.full():
            self.look_again(1)

    def look_again(self, workers: int) -> None:
        for _ in range(workers):
            try:
                self.kick.send_nowait(None)
            except WouldBlock:
                return

    def procs_changed(self) -> None:
        self.look_again(self.kick.cap)

    async def wait_for_room(self) -> None:
        with self.lock:
            self.stalled += 1
        try:
            if self.full():  # or one who made room has looked at `stalled` too early
                await self.kick.recv()
        finally:
            with self.lock:
                self.stalled -= 1


class WorkerPool(_core.PoolBase, Generic[Job, Value]):
    """Goroutines that handle jobs from a bounded queue, and give their results on a channel.

    `handler`, async or plain, is called with each job, by at most `workers` at once. `queue` is how
    many jobs may wait (default: 128, or twice the workers if that is more); then submit() waits.
    Jobs of which `cpu_bound(job)` is true hold a permit, of which there are gomaxprocs(); others
    run freely beside them. With `executor`, any concurrent.futures.Executor, the calls of the
    handler are made there. `monitor=True`, or a stream, prints a line of statistics every second.

    Leaving the block waits for all jobs; leaving it by an exception cancels them. Each job that was
    accepted gives exactly one Result.

    >>> async with WorkerPool(8, fetch) as pool:
    ...     for url in urls:
    ...         await pool.submit(url)
    >>> async for url, page, error, elapsed in pool.results:
    ...     print(error or page)
    a page
    a page
    """

    @overload
    def __init__(
        self,
        workers: int,
        handler: Callable[[Job], Coroutine[Any, Any, Value]],
        *,
        queue: int | None = None,
        cpu_bound: Callable[[Job], object] | None = None,
        executor: None = None,
        monitor: bool | TextIO = False,
    ) -> None: ...
    @overload
    def __init__(
        self,
        workers: int,
        handler: Callable[[Job], Value],
        *,
        queue: int | None = None,
        cpu_bound: Callable[[Job], object] | None = None,
        executor: "Executor | None" = None,
        monitor: bool | TextIO = False,
    ) -> None: ...
    def __init__(
        self,
        workers: int,
        handler: Callable[[Job], Any],
        *,
        queue: int | None = None,
        cpu_bound: Callable[[Job], object] | None = None,
        executor: "Executor | None" = None,
        monitor: bool | TextIO = False,
    ) -> None:
        _check_count(workers, "workers", 1)
        if queue is not None:
            _check_count(queue, "queue", 0)
        _check_functions(handler, cpu_bound, executor)
        if not isinstance(monitor, bool) and not callable(getattr(monitor, "write", None)):
            raise TypeError(f"monitor must be a bool or a stream to write to, not {monitor!r}")
        size = max(MIN_QUEUE, 2 * workers) if queue is None else queue
        self._handler = handler
        self._cpu_bound = cpu_bound
        self._executor = executor
        self._own_executor = False
        self._monitor = sys.stderr if monitor is True else monitor or None
        self._left = atomic.Int(workers)
        self._jobs: _core.Chan[Job] = _core.Chan(size)
        self._results: _core.Chan[Result[Job, Value]] = _core.growing_chan()
        check = None if is_async(handler) else _is_value
        self._workers = [
            _Worker(_core.pool_worker(self._jobs, self._results, handler, check, Result))
            for _ in range(workers)
        ]
        self._receiver = self._results.receiver
        self._lane = _Lane(workers, size + workers) if cpu_bound is not None else None
        self._ended: _core.Chan[None] = _core.Chan()  # closed at the end of all
        self._state = "new"
        self._closing = threading.Lock()
        self._context: context.Context | None = None
        self._stopping: Cancelled | None = None  # what cancels the jobs
        self._abandoned: list[Job] = []
        self._report: ShutdownReport | None = None

    # --- Jobs in, results out ---

    if TYPE_CHECKING:

        def submit(self, job: Job, timeout: float | None = None) -> _core.Operation[None]: ...

    def _submit(self, job: Job, timeout: float | None = None) -> _core.Operation[None]:
        """What submit() does if there is a time limit, or anything is wrong."""
        seconds = None if timeout is None else _check_seconds(timeout, "submit()")
        if self._state == "new":
            raise RuntimeError(
                "submit() to a WorkerPool before its block: async with WorkerPool(...) as pool"
            )
        if self._state != "open":
            self._refuse_closed()
        if seconds is None:
            return self._jobs.send(job)
        waiting: Any = self._submit_within(job, seconds)
        operation: _core.Operation[None] = waiting
        return operation

    async def _submit_within(self, job: Job, seconds: float) -> None:
        await _core.sleep(0)  # one who has been cancelled submits nothing
        jobs = self._jobs
        try:
            jobs.send_nowait(job)
        except WouldBlock:
            if seconds > 0:
                try:
                    which, _, _ = await _core.select(jobs.send(job), _core.sleep(seconds))
                except ChannelClosed:
                    self._refuse_closed()
                if which == 0:
                    return
            raise TimeoutError(f"the queue of the WorkerPool was full for {seconds:g} s") from None
        except ChannelClosed:
            self._refuse_closed()

    def _refuse_closed(self) -> NoReturn:
        raise PoolClosed("submit() to a WorkerPool that has been shut down")

    @property
    def results(self) -> "_core.RecvChan[Result[Job, Value]]":
        """The channel of results, in the order in which jobs end. Closed when the pool has ended.

        It has room for all that nobody reads: a worker never waits for a reader.

        >>> await pool.submit(job)
        >>> result = await pool.results.recv()
        """
        return self._receiver

    @property
    def stats(self) -> PoolStats:
        """What it does right now.

        >>> pool.stats.running
        0
        """
        workers, lane = self._workers, self._lane
        running = sum(w.loop.busy for w in workers)
        done = sum(w.completed for w in workers)
        waiting = len(lane.waiting) if lane is not None else 0
        queued = len(self._jobs) + waiting
        lost = sum(len(w.cancelled) for w in workers) + len(self._abandoned)
        if (report := self._report) is not None:
            lost += len(report.never_begun)
        return PoolStats(
            workers=len(workers),
            running=running,
            queued=queued,
            cpu_running=lane.running if lane is not None else 0,
            cpu_waiting=waiting,
            submitted=done + running + queued + lost,
            completed=done,
            failed=sum(w.failed for w in workers),
            unread=len(self._results),
        )

    def __repr__(self) -> str:
        s = self.stats
        return (
            f"<WorkerPool of {name_of(self._handler)} {self._state}, {s.running} of {s.workers} "
            f"workers busy, {s.queued} queued, {s.completed} completed, at {id(self):#x}>"
        )

    # --- The workers ---

    async def _worker(
        self, handler: Callable[[Job], Any], args: tuple[_Worker], kwargs: dict[str, Any]
    ) -> None:
        (me,) = args
        given_up = False
        try:
            me.id = _run.current().id
            assert self._context is not None
            await self._context.__aenter__()  # for good: with the context all workers end
            given_up = await self._serve_on(me, self._server())
        finally:
            me.ended = True
            if not given_up:
                self._failed(me, Cancelled("the worker was ended"))  # if it still has a job
                self._one_less()

    def _server(self) -> Callable[[_Worker], Coroutine[Any, Any, bool]]:
        if self._lane is not None:
            return self._serve_with_lane
        return self._serve if self._executor is None else self._serve_elsewhere

    async def _serve_on(
        self, me: _Worker, serve: Callable[[_Worker], Coroutine[Any, Any, bool]]
    ) -> bool:
        """Until there are no more jobs. True: somebody has given up on this worker.

        A cancel() of just this goroutine, once, is no reason to end.
        """
        cancelled_at = -1
        while True:
            try:
                return await serve(me)
            except Cancelled:
                if self._stopping or _over(self._context) or cancelled_at == me.completed:
                    return False
                cancelled_at = me.completed

    async def _serve(self, me: _Worker) -> bool:
        """True: somebody has given up on this worker."""
        loop = me.loop
        while True:
            try:
                return not await loop
            except BaseException as exc:
                if not loop.handling:
                    raise
                if not self._failed(me, exc):
                    return True

    async def _serve_elsewhere(self, me: _Worker) -> bool:
        job: Any
        async for job in self._jobs:
            if not await self._handle(me, job):
                return True
            job = None  # it may be huge, and the next may be long in coming
        return False

    async def _serve_with_lane(self, me: _Worker) -> bool:
        lane, jobs = self._lane, self._jobs
        assert lane is not None
        job: Any
        while self._stopping is None:
            job, kind = lane.claim(), _CPU
            if job is _NOTHING:
                if lane.full():
                    await lane.wait_for_room()
                    continue
                which, job, ok = await _core.select(jobs.recv_ok(), lane.kick.recv())
                if which == 1:
                    continue
                lane.wake()
                if not ok:  # those that wait in the lane are left to those that run
                    return False
                kind = self._kind(me, job)
                if kind is _DONE or (kind is _CPU and not lane.admit(job)):
                    continue
                if kind is _GIVEN_UP:
                    return True
            try:
                if not await self._handle(me, job):
                    return True
            finally:
                if kind is _CPU:
                    lane.release()
            job = None
        return False

    def _kind(self, me: _Worker, job: Job) -> str:
        """Which kind of job it is. If that cannot be told, it is done, and that is its result."""
        assert self._cpu_bound is not None
        me.loop.begin(job)  # while it is in the hands of somebody else's code
        try:
            kind = _CPU if self._cpu_bound(job) else _FREE
        except BaseException as exc:
            return _DONE if self._failed(me, exc) else _GIVEN_UP
        return kind if me.loop.take(_NOTHING) is not _NOTHING else _GIVEN_UP

    async def _handle(self, me: _Worker, job: Job) -> bool:
        """One job, whatever the handler is. False: we were given up on meanwhile."""
        me.loop.begin(job)
        try:
            value = await self._call(job)
        except GeneratorExit:
            raise
        except BaseException as exc:
            return self._failed(me, exc)
        return me.loop.give(value)

    async def _call(self, job: Job) -> Any:
        if self._executor is not None:
            return await self._call_elsewhere(job)
        value = self._handler(job)
        return value if _is_value(value) else await value

    def _failed(self, me: _Worker, exc: BaseException) -> bool:
        """The handler has raised. False: we were given up on meanwhile."""
        elapsed = me.loop.elapsed()
        if (job := me.loop.take(_NOTHING)) is _NOTHING:
            return False
        stopping = self._stopping
        if isinstance(exc, Cancelled) and stopping is not None:
            me.cancelled.append(job)
        else:
            me.failed += 1
        if isinstance(exc, GoExit):
            exc = RuntimeError("the handler has called goexit()")
        elif exc.__traceback__ is not None:
            exc.__traceback__ = _outside(exc.__traceback__)
        self._results.send_nowait(Result(job, None, exc, elapsed))
        return True

    # --- Executors ---

    async def _call_elsewhere(self, job: Job) -> Any:
        future = self._submit_elsewhere(job)
        try:
            return await wait_future(future)
        except BaseException:
            future.cancel()  # if it has not begun, it never will
            raise

    def _submit_elsewhere(self, job: Job) -> "Future[Any]":
        from concurrent.futures import BrokenExecutor

        executor = self._executor
        assert executor is not None
        try:
            return executor.submit(self._handler, job)
        except BrokenExecutor:  # by another job; this one has not begun
            if (another := self._renewed(executor)) is None:
                raise
            return another.submit(self._handler, job)

    def _renewed(self, broken: "Executor") -> "Executor | None":
        """A process pool is of no use any more when one of its processes has died: make another."""
        with self._closing:
            if self._executor is broken:
                if (twin := _twin(broken)) is None:
                    return None
                if self._own_executor:
                    broken.shutdown(wait=False)
                self._executor, self._own_executor = twin, True
            return self._executor

    # --- The beginning and the end ---

    async def __aenter__(self) -> "WorkerPool[Job, Value]":
        if self._state != "new":
            raise RuntimeError("a WorkerPool can be used once: make a new one")
        if _core.current() is None:
            raise RuntimeError("a WorkerPool needs a running runtime: see gofer.run()")
        await _core.sleep(0)  # one who has been cancelled starts nothing
        self._state = "open"
        self._context = context.with_cancel()
        kind = self._handler if self._executor is None else self._call_elsewhere
        started = 0
        try:
            for worker in self._workers:
                name = f"worker {started} of {name_of(self._handler)}"
                go_wrapped(self._worker, kind, (worker,), {}, name)
                started += 1
        except BaseException:  # the run is about to end
            self._cancel_jobs("the WorkerPool could not be started")
            for _ in self._workers[started:]:
                self._one_less()
            raise
        if self._lane is not None:
            _run.procs_watchers.add(self._lane.procs_changed)
        if self._monitor is not None:
            _core.go(self._watch, self._monitor, name=f"monitor of {name_of(self._handler)}")
        self._accept(self._jobs)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: types.TracebackType | None,
    ) -> None:
        if exc is None or isinstance(exc, GoExit):
            self._stop_accepting()
            try:
                await self._ended.recv_ok()
                await _core.sleep(0)  # a context that ended the jobs may be over for us too: say so
            except BaseException:
                await self._end_now()
                raise
            return
        await self._end_now()

    async def shutdown(
        self, timeout: float | None = None, *, grace: float = GRACE
    ) -> ShutdownReport:
        """Operation: accept no more jobs, wait for those there are; after `timeout` cancel them.

        What does not end within `grace` seconds of being cancelled is abandoned: it may run on, but
        nobody hears of it. The report names every job that was accepted and not completed. Their
        results, too, say so.

        >>> report = await pool.shutdown(timeout=10)
        >>> report = await pool.shutdown(timeout=10)
        >>> report.unfinished
        ()
        """
        if timeout is not None:
            timeout = _check_seconds(timeout, "shutdown()")
        grace = _check_seconds(grace, "shutdown(grace=...)")
        if self._state == "new":
            raise RuntimeError("shutdown() of a WorkerPool that was never used: async with it")
        me = _core.current()
        if me is not None and any(w.id == me.id and not w.ended for w in self._workers):
            raise RuntimeError(
                "shutdown() in a handler would wait for itself: gofer.go(pool.shutdown)"
            )
        self._stop_accepting()
        if not await self._over_within(timeout):
            self._cancel_jobs("the shutdown of the WorkerPool has timed out")
            if not await self._over_within(grace):
                await self._give_up()
        assert self._report is not None
        return self._report

    async def _over_within(self, seconds: float | None) -> bool:
        if seconds is None:
            await self._ended.recv_ok()
        elif not self._ended.closed:
            await _core.select(self._ended.recv_ok(), _core.sleep(seconds))
        return self._ended.closed

    async def _end_now(self) -> None:
        """Whatever comes: cancel all jobs, and see to it that each is accounted for."""
        self._stop_accepting()
        self._cancel_jobs("the block of the WorkerPool was left by an exception")
        cancelled: Cancelled | None = None
        deadline = time.monotonic() + GRACE
        while not self._ended.closed:
            try:
                async with context.without_cancel():  # but a cancel() is heard
                    if not await self._over_within(max(0.0, deadline - time.monotonic())):
                        await self._give_up()
            except Cancelled as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled

    def _stop_accepting(self) -> None:
        with self._closing:
            if self._state == "open":
                self._state = "closing"
                self._accept(None)
        # Whoever gets here finds it closed afterwards: he who came first may not have got so far.
        with contextlib.suppress(ChannelClosed):
            self._jobs.close()

    def _cancel_jobs(self, why: str) -> None:
        with self._closing:
            if self._stopping is not None:
                return
            self._stopping = Cancelled(why)
        assert self._context is not None
        self._context.cancel(why)

    async def _give_up(self) -> None:
        """Account for the jobs of workers that do not end. If the last one is gone, so is the pool.

        A worker that is between two jobs has one in its hands for a moment, or is about to end.
        """
        while not self._ended.closed:
            for worker in self._workers:
                elapsed = worker.loop.elapsed()
                if (job := worker.loop.take(_NOTHING)) is _NOTHING:
                    continue
                self._abandoned.append(job)
                self._results.send_nowait(Result(job, None, self._stopping, elapsed))
                self._one_less()
            if not self._ended.closed:
                await _core.sleep(0.001)

    def _one_less(self) -> None:
        if self._left.add(-1) == 0:
            self._finish()

    def _finish(self) -> None:
        """No worker is left: done once, by whoever notices."""
        self._stop_accepting()
        never_begun = []
        why = self._stopping or Cancelled("the context of the WorkerPool has ended")
        while (job := self._take_back()) is not _NOTHING:
            never_begun.append(job)
            self._results.send_nowait(Result(job, None, why, 0.0))
        if self._lane is not None:
            _run.procs_watchers.discard(self._lane.procs_changed)
        if self._own_executor and self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._report = ShutdownReport(
            completed=sum(w.completed for w in self._workers),
            failed=sum(w.failed for w in self._workers),
            cancelled=tuple(job for w in self._workers for job in w.cancelled),
            abandoned=tuple(self._abandoned),
            never_begun=tuple(never_begun),
        )
        self._state = "closed"
        self._results.close()
        self._ended.close()

    def _take_back(self) -> Any:
        """A job that no worker has begun."""
        if self._lane is not None:
            with self._lane.lock:
                if self._lane.waiting:
                    return self._lane.waiting.popleft()
        try:
            return self._jobs.recv_nowait()
        except ChannelClosed:
            return _NOTHING

    # --- The monitor ---

    async def _watch(self, stream: TextIO) -> None:
        ticker = Ticker(1.0)
        before, since = 0, time.monotonic()
        try:
            while not self._ended.closed:
                await _core.select(ticker.c.recv(), self._ended.recv_ok())
                stats, now = self.stats, time.monotonic()
                rate = (stats.completed - before) / max(now - since, 1e-9)
                before, since = stats.completed, now
                stream.write(f"{_line(name_of(self._handler), stats)}, {rate:.0f}/s\n")
                stream.flush()
        except (OSError, ValueError):  # nobody listens any more
            return
        finally:
            ticker.stop()


def _line(name: str, s: PoolStats) -> str:
    cpu = f", CPU-bound {s.cpu_running} + {s.cpu_waiting} waiting" if s.cpu_running else ""
    return (
        f"{name}: {s.running} of {s.workers} busy{cpu}, {s.queued} queued, "
        f"{s.completed} completed, {s.failed} failed, {s.unread} unread"
    )


def _is_value(returned: object) -> bool:
    """Whether what a handler has returned is its value, and not something to await.

    A goroutine or a future can be awaited, too, but goes on by itself.
    """
    if not inspect.isawaitable(returned):
        return True
    return isinstance(returned, _core.Goroutine) or is_future(returned)


def _over(ctx: context.Context | None) -> bool:
    return ctx is not None and ctx.err() is not None


def _outside(tb: types.TracebackType | None) -> types.TracebackType | None:
    """Without the frames of this file: they mean nothing to users, and live long."""
    while tb is not None and tb.tb_frame.f_globals is globals():
        tb = tb.tb_next
    return tb


def _twin(broken: "Executor") -> "Executor | None":
    """A new one made as this one was; None if we do not know how."""
    from concurrent.futures import ProcessPoolExecutor

    if type(broken) is not ProcessPoolExecutor:
        return None
    names = ("max_workers", "mp_context", "initializer", "initargs", "max_tasks_per_child")
    try:
        made_with = {name: getattr(broken, f"_{name}") for name in names}
    except AttributeError:
        return None
    return ProcessPoolExecutor(**made_with)


def _check_count(n: object, what: str, least: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{what} of a WorkerPool must be an int, not {n!r}")
    if n < least:
        raise ValueError(f"{what} of a WorkerPool must be at least {least}, not {n}")


def _check_functions(handler: object, cpu_bound: object, executor: object) -> None:
    if not callable(handler):
        raise TypeError(f"the handler of a WorkerPool must be a function, not {handler!r}")
    if cpu_bound is not None and (not callable(cpu_bound) or is_async(cpu_bound)):
        raise TypeError(f"cpu_bound must be a plain function of a job, not {cpu_bound!r}")
    if executor is None:
        return
    from concurrent.futures import Executor

    if not isinstance(executor, Executor):
        hint = ": use its get_executor()" if hasattr(executor, "get_executor") else ""
        raise TypeError(f"executor must be a concurrent.futures.Executor, not {executor!r}{hint}")
    if is_async(handler):
        raise TypeError(f"an executor calls plain functions only: {handler!r} is async")


def _check_seconds(seconds: Any, what: str) -> float:
    try:
        finite = math.isfinite(seconds)
    except TypeError:
        raise TypeError(f"{what} needs a number of seconds, not {seconds!r}") from None
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError(f"{what} needs a finite number of seconds, not {seconds!r}")
    return float(seconds)


for _object in (Result, PoolStats, ShutdownReport, WorkerPool):
    _object.__module__ = "gofer"
del _object
