"""Every public object has a repr that shows its state."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import gofer
from gofer import atomic, context, singleflight
from tests.support import give, until
from tests.sync_support import waiting

# Takes an object from state to state; in each it yields the object and what its repr says then.
Story = Iterator[tuple[object, str]]


def chan() -> Story:
    ch = gofer.Chan[int](2)
    yield ch, r"<Chan 0/2 at \w+>"
    ch.send_nowait(1)
    yield ch, r"<Chan 1/2 at \w+>"
    yield ch.sender, r"<SendChan 1/2 at \w+>"
    ch.close()
    yield ch, r"<Chan 1/2 closed at \w+>"
    yield ch.receiver, r"<RecvChan 1/2 closed at \w+>"


def mutex() -> Story:
    mu = gofer.Mutex()
    yield mu, r"<Mutex at \w+>"
    mu.try_lock()
    yield mu, r"<Mutex locked at \w+>"
    yield mu.lock(), r"<lock of <Mutex locked at \w+>, not awaited>"


def rwmutex() -> Story:
    rw = gofer.RWMutex()
    yield rw, r"<RWMutex at \w+>"
    rw.try_rlock()
    rw.try_rlock()
    yield rw, r"<RWMutex read-locked 2 times at \w+>"
    yield rw.reader, r"<reader of <RWMutex read-locked 2 times at \w+>>"
    rw.runlock()
    rw.runlock()
    rw.try_lock()
    yield rw, r"<RWMutex locked at \w+>"
    yield rw.rlock(), r"<rlock of <RWMutex locked at \w+>, not awaited>"


def waitgroup() -> Story:
    wg = gofer.WaitGroup()
    yield wg, r"<WaitGroup 0 at \w+>"
    wg.add(3)
    yield wg, r"<WaitGroup 3 at \w+>"
    yield wg.wait(), r"<wait of <WaitGroup 3 at \w+>, not awaited>"


def cond() -> Story:
    cond = gofer.Cond(gofer.Mutex())
    yield cond, r"<Cond of <Mutex at \w+>, 0 waiting, at \w+>"
    cond.mu.try_lock()
    yield cond, r"<Cond of <Mutex locked at \w+>, 0 waiting, at \w+>"


def semaphore() -> Story:
    sem = gofer.Semaphore(3)
    yield sem, r"<Semaphore 3/3 at \w+>"
    sem.try_acquire(2)
    yield sem, r"<Semaphore 1/3 at \w+>"
    yield sem.acquire(), r"<acquire of <Semaphore 1/3 at \w+>, not awaited>"


def pool() -> Story:
    pool = gofer.Pool(list)
    yield pool, r"<Pool 0 kept, new: <class 'list'>, at \w+>"
    pool.put([1])
    pool.put([2])
    yield pool, r"<Pool 2 kept, .*>"


def once() -> Story:
    yield gofer.Once(), r"<Once new at \w+>"


def group() -> Story:
    yield gofer.Group(), r"<Group new, .*>"


def worker_pool() -> Story:
    pool = gofer.WorkerPool(2, len)
    yield pool, r"<WorkerPool of len new, 0 of 2 workers busy, 0 queued, 0 completed, at \w+>"
    yield pool.results, r"<RecvChan 0 values at \w+>"
    yield pool.stats, r"PoolStats\(workers=2, running=0, queued=0, .*\)"
    result = gofer.Result("x", 1, None, 0.5)
    yield result, r"Result\(job='x', value=1, error=None, elapsed=0\.5\)"
    report = gofer.ShutdownReport(5, 1, (), (), (6,))
    yield report, r"ShutdownReport\(completed=5, failed=1, .*, never_begun=\(6,\)\)"


def flight() -> Story:
    yield singleflight.Flight(), r"<Flight 0 calls at \w+>"


def atomics() -> Story:
    yield atomic.Int(3), r"atomic\.Int\(3\)"
    yield atomic.Bool(True), r"atomic\.Bool\(True\)"
    yield atomic.Ref("x"), r"atomic\.Ref\('x'\)"


def timer() -> Story:
    t = gofer.Timer(100)
    yield t, r"<Timer in (99\.\d+|100\.0) s at \w+>"
    yield t.c, r"<RecvChan of a timer, in (99\.\d+|100\.0) s, at \w+>"
    t.reset(0)
    yield t, r"<Timer due at \w+>"
    t.stop()
    yield t, r"<Timer idle at \w+>"
    yield gofer.after(100), r"<RecvChan of a timer, in (99\.\d+|100\.0) s, at \w+>"
    f = gofer.after_func(100, print)
    yield f, r"<Timer in (99\.\d+|100\.0) s, calls <built-in function print> at \w+>"
    f.stop()
    yield f, r"<Timer idle, calls <built-in function print> at \w+>"


def ticker() -> Story:
    t = gofer.Ticker(100)
    yield t, r"<Ticker in (99\.\d+|100\.0) s, every 100\.0 s at \w+>"
    t.stop()
    yield t, r"<Ticker idle at \w+>"


def contexts() -> Story:
    ctx = context.with_cancel()
    yield ctx, r"context\.Background\.WithCancel"
    stop = context.after_func(ctx, print)
    yield stop, r"<after_func of .*WithCancel, calls <built-in function print>, pending>"
    stop()
    yield stop, r"<after_func of .*WithCancel, calls .*, called or stopped>"
    ctx.cancel("enough")
    yield ctx, r"context\.Background\.WithCancel \(over: Cancelled\('enough'\)\)"
    yield gofer.timeout(100), r"context\.Background\.WithDeadline\(in (99\.\d+|100\.0) s\)"
    yield context.shield(), r"context\.Background\.Shield"


def operations() -> Story:
    yield gofer.sleep(1.5), r"<gofer\.sleep\(1\.5\) not awaited>"
    yield gofer.gosched(), r"<gofer\.gosched\(\)>"
    yield gofer.Chan[int]().send(1), r"<send of <Chan 0/0 at \w+>, not awaited>"
    yield gofer.Chan[int]().recv(), r"<recv of <Chan 0/0 at \w+>, not awaited>"
    yield gofer.select(None, None), r"<select of 2 cases, not awaited>"
    yield gofer.select(None, None).__await__(), r"<select of 2 cases, not awaited>"
    yield gofer.Selected(1, 2, True), r"Selected\(index=1, value=2, ok=True\)"


def threads() -> Story:
    yield gofer.current(), r"<Goroutine 1 '.*main' running, created at .*>"
    yield gofer.blocking(), r"<blocking\(\)>"
    yield gofer.lock_os_thread(), r"<lock_os_thread\(\)>"
    gofer.unlock_os_thread()


STORIES: list[Callable[[], Story]] = [
    chan, mutex, rwmutex, waitgroup, cond, semaphore, pool, once, group, flight, worker_pool,
    atomics, timer, ticker, contexts, operations, threads,
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_repr_shows_the_state(story: Callable[[], Story]) -> None:
    async def main() -> None:
        for thing, pattern in story():
            assert re.fullmatch(pattern, repr(thing)), repr(thing)

    gofer.run(main)


def test_every_public_class_is_shown_here() -> None:
    """Or is an exception, which shows itself."""

    async def main() -> set[type]:
        return {type(thing) for story in STORIES for thing, _ in story()}

    shown = gofer.run(main)
    for module in (gofer, atomic, context, singleflight):
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.isclass(thing) or issubclass(thing, BaseException):
                continue
            assert thing in shown or thing is gofer.Operation, f"{name}: show its repr above"
            assert "object at" not in repr(thing.__repr__), name


def test_repr_of_what_is_going_on(procs: int) -> None:
    async def shows(thing: object, pattern: str) -> None:
        await until(lambda: re.fullmatch(pattern, repr(thing)), f"{thing!r} like {pattern}")

    async def main() -> None:
        go_on = gofer.Chan[None]()
        once, flight = gofer.Once(), singleflight.Flight()
        g = await waiting(once.do(go_on.recv))
        await shows(once, r"<Once running at \w+>")
        await go_on.send(None)
        await g
        await shows(once, r"<Once done at \w+>")

        g = await waiting(flight.do("key", go_on.recv))
        await shows(flight, r"<Flight 1 calls at \w+>")
        await go_on.send(None)
        await g

        cond = gofer.Cond(gofer.Mutex())
        gs = [gofer.go(locked, cond, cond.wait) for _ in range(2)]
        await shows(cond, r"<Cond of <Mutex at \w+>, 2 waiting, at \w+>")
        cond.broadcast()
        for g in gs:
            await g

        async with gofer.Group() as group:
            group.go(go_on.recv)
            await shows(group, r"<Group open, running: <WaitGroup 1 at \w+>, at \w+>")
            await go_on.send(None)
        await shows(group, r"<Group closed, running: <WaitGroup 0 at \w+>, at \w+>")

        op = go_on.recv()
        g = await waiting(op)
        await shows(op, r"<recv of <Chan 0/0 at \w+>, waiting>")
        await go_on.send(None)
        await g
        await shows(op, r"<recv of <Chan 0/0 at \w+>, done>")
        ended = gofer.go(give, 1)
        await ended
        await shows(ended, r"<Goroutine \d+ 'give' dead, created at .*>")

    async def locked(cond: gofer.Cond, make: Callable[[], Awaitable[Any]]) -> None:
        async with cond.mu:
            await make()

    gofer.run(main, procs=procs)
