"""Programs to trace: each does something else with the scheduler."""

import gc
import threading
import time
import warnings
from collections.abc import Callable

import gofer
from gofer import trace
from tests.support import spin, thread

Program = Callable[[int], None]


async def _count(ch: gofer.Chan[int], n: int) -> None:
    for i in range(n):
        await ch.send(i)


def ping_pong(procs: int, rounds: int = 300) -> None:
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
        for g in [gofer.go(ping, there, back), gofer.go(pong, there, back)]:
            await g

    gofer.run(main, procs=procs)


def many(procs: int) -> None:
    async def child(n: int) -> int:
        await gofer.gosched()
        return n

    async def main() -> None:
        for g in [gofer.go(child, n) for n in range(500)]:
            await g

    gofer.run(main, procs=procs)


def sleepers(procs: int) -> None:
    async def nap(n: int) -> None:
        for _ in range(3):
            await gofer.sleep(0.0001 * n)

    async def main() -> None:
        async with gofer.Group() as group:
            for n in range(40):
                group.go(nap, n)

    gofer.run(main, procs=procs)


def contention(procs: int) -> None:
    async def worker(mu: gofer.Mutex, sem: gofer.Semaphore, rw: gofer.RWMutex) -> None:
        for i in range(50):
            async with mu:
                if i % 10 == 0:
                    await gofer.gosched()
            async with sem:
                await gofer.gosched()
            async with rw.reader:
                pass
            async with rw:
                pass

    async def main() -> None:
        mu, sem, rw = gofer.Mutex(), gofer.Semaphore(2), gofer.RWMutex()
        wg = gofer.WaitGroup()
        for _ in range(8):
            wg.go(worker, mu, sem, rw)
        await wg.wait()

    gofer.run(main, procs=procs)


def selects(procs: int) -> None:
    async def main() -> None:
        a: gofer.Chan[int] = gofer.Chan()
        b: gofer.Chan[int] = gofer.Chan(3)
        senders = [gofer.go(_count, ch, 200) for ch in (a, b)]
        for _ in range(400):
            await gofer.select(a.recv(), b.recv(), gofer.sleep(10))
        for g in senders:
            await g
        await gofer.select(a.recv(), gofer.sleep(0.001))

    gofer.run(main, procs=procs)


def cancelled(procs: int) -> None:
    async def wait(ch: gofer.Chan[int]) -> None:
        try:
            await ch.recv()
        finally:
            await gofer.sleep(0)

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        gs = [gofer.go(wait, ch) for _ in range(50)]
        await gofer.sleep(0.001)
        for g in gs[:25]:
            g.cancel()
        for _ in range(10):
            gofer.go(wait, ch)

    gofer.run(main, procs=procs)


def plain(procs: int) -> None:
    def work(n: int) -> int:
        time.sleep(0.002)
        gofer.block(gofer.sleep(0.001))
        with gofer.blocking():
            time.sleep(0.001)
        return n

    async def main() -> None:
        gs = [gofer.go(work, n) for n in range(6)]
        spin(0.015)
        for g in gs:
            await g

    gofer.run(main, procs=procs)


def limited(procs: int) -> None:
    def work(n: int) -> int:
        gofer.block(gofer.sleep(0.0005))
        return n

    async def main() -> None:
        async with gofer.Group(limit=2) as group:
            gs = [group.go(work, n) for n in range(12)]
            gs[5].cancel()

    gofer.run(main, procs=procs)


def hogs(procs: int) -> None:
    async def hog() -> None:
        spin(0.03)
        await gofer.gosched()
        spin(0.001)

    async def main() -> None:
        for g in [gofer.go(hog) for _ in range(3)] + [gofer.go(_nothing) for _ in range(50)]:
            await g

    gofer.run(main, procs=procs)


async def _nothing() -> None:
    pass


def changing_procs(procs: int) -> None:
    async def worker() -> None:
        for _ in range(30):
            await gofer.gosched()

    async def main() -> None:
        gs = [gofer.go(worker) for _ in range(20)]
        for n in (1, 3, 2, procs):
            gofer.gomaxprocs(n)
            await gofer.sleep(0.001)
        for g in gs:
            await g

    gofer.run(main, procs=procs)


def failing(procs: int) -> None:
    async def bad() -> None:
        await gofer.sleep(0.001)
        raise ValueError("no")

    async def main() -> None:
        gofer.go(bad)
        await gofer.sleep(100)

    try:
        gofer.run(main, procs=procs)
    except ValueError:
        return
    raise AssertionError


def deadlocked(procs: int) -> None:
    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        gofer.go(_count, gofer.Chan[int](), 1)
        await ch.recv()

    try:
        gofer.run(main, procs=procs)
    except gofer.Deadlock:
        return
    raise AssertionError


def locked(procs: int) -> None:
    async def on_its_thread() -> None:
        with gofer.lock_os_thread():
            for _ in range(20):
                await gofer.gosched()
                await gofer.sleep(0)

    async def main() -> None:
        for g in [gofer.go(on_its_thread) for _ in range(3)]:
            await g

    gofer.run(main, procs=procs)


def foreign(procs: int) -> None:
    def outside(ch: gofer.Chan[int], ready: threading.Event) -> None:
        ready.wait()
        for i in range(100):
            gofer.block(ch.send(i))
        ch.close()

    async def main(ch: gofer.Chan[int], ready: threading.Event) -> int:
        ready.set()
        return sum([n async for n in ch])

    ch: gofer.Chan[int] = gofer.Chan()
    ready = threading.Event()
    with thread(outside, ch, ready):
        assert gofer.run(main, ch, ready, procs=procs) == 4950


def leaking(procs: int) -> None:
    async def forgotten() -> None:
        await gofer.Chan[int]().recv()

    async def main() -> None:
        gofer.go(forgotten)
        await gofer.sleep(0.001)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()

    gofer.run(main, procs=procs)


def marked(procs: int) -> None:
    async def child(n: int) -> None:
        with trace.region("child"):
            await gofer.sleep(0.0005)
            trace.log("count", f"child {n}")

    async def main() -> None:
        with trace.task("work"), trace.region("outer"):
            for g in [gofer.go(child, n) for n in range(10)]:
                await g
            gc.collect()
        trace.log("done")

    gofer.run(main, procs=procs)


def twice(procs: int) -> None:
    many(procs)
    ping_pong(procs, 20)


PROGRAMS: list[Program] = [
    ping_pong,
    many,
    sleepers,
    contention,
    selects,
    cancelled,
    plain,
    limited,
    hogs,
    changing_procs,
    failing,
    deadlocked,
    locked,
    foreign,
    leaking,
    marked,
    twice,
]
