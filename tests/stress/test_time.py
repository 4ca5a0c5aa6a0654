"""Timers that are stopped, moved and fired at the same time: none is lost, none comes twice."""

import random
import threading
import time
from typing import Any

import gofer
from gofer import _core
from tests.support import parked, rounds, thread, until

HUGE = [1e9, 4.6e9, 1e300, 2**62]


async def linger(rng: random.Random) -> None:
    """A little time, of a kind."""
    kind = rng.randrange(4)
    if kind == 0:
        await gofer.gosched()
    elif kind == 1:
        await gofer.sleep(rng.random() * 1e-4)
    else:
        for _ in range(rng.randrange(300)):
            pass


def channel(timer: gofer.Timer) -> gofer.RecvChan[float]:
    assert timer.c is not None
    return timer.c


def test_stop_against_fire(procs: int) -> None:
    """stop() is True if and only if the receiver gets nothing."""

    async def receive(ch: gofer.RecvChan[float], stopped: gofer.Chan[None]) -> bool:
        chosen = await gofer.select(ch.recv(), stopped.recv())
        return chosen.index == 0

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds():
            timer = gofer.Timer(rng.random() * 1e-4)
            stopped = gofer.Chan[None]()
            g = gofer.go(receive, channel(timer), stopped)
            await linger(rng)
            was_stopped = timer.stop()
            stopped.close()
            assert await g is not was_stopped

    gofer.run(main, procs=procs)


def test_if_it_was_not_stopped_it_was_received(procs: int) -> None:
    """The idiom of Go before 1.23 never hangs: there is always something to receive."""

    async def main() -> None:
        rng = random.Random(procs)
        timer = gofer.Timer(0)
        for _ in rounds():
            timer.reset(rng.random() * 2e-5)
            await linger(rng)
            if not timer.stop():
                await channel(timer).recv()
            try:
                channel(timer).recv_nowait()
            except gofer.WouldBlock:
                continue
            raise AssertionError("a value after stop()")

    gofer.run(main, procs=procs)


def test_reset_against_fire(procs: int) -> None:
    """Every reset() that is False had one value received before it, and no other had."""

    async def receive(ch: gofer.RecvChan[float], done: gofer.Chan[None]) -> list[float]:
        got: list[float] = []
        while True:
            chosen = await gofer.select(ch.recv(), done.recv())
            if chosen.index == 1:
                return got
            got.append(chosen.value)

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds(divide_by=20):
            timer = gofer.Timer(rng.random() * 1e-4)
            done = gofer.Chan[None]()
            g = gofer.go(receive, channel(timer), done)
            fired = 0
            for _ in range(20):
                await linger(rng)
                fired += not timer.reset(rng.random() * 1e-4)
            await linger(rng)
            fired += not timer.stop()
            done.close()
            got = await g
            assert len(got) == fired
            assert got == sorted(set(got))

    gofer.run(main, procs=procs)


def test_after_func_stop_and_reset_against_fire(procs: int) -> None:
    """Every stop() or reset() that is False had one call before it, and no other had."""
    calls = gofer.atomic.Int()

    async def one(seed: int) -> int:
        rng = random.Random(seed)
        started = 0
        timer = gofer.after_func(rng.random() * 1e-4, calls.add, 1)
        for _ in range(10):
            await linger(rng)
            if rng.randrange(2):
                started += not timer.reset(rng.random() * 1e-4)
            else:
                started += not timer.stop()
                timer.reset(rng.random() * 1e-4)
        await linger(rng)
        return started + (not timer.stop())

    async def main() -> None:
        expected = 0
        for i in rounds(divide_by=20):
            gs = [gofer.go(one, 4 * i + k) for k in range(4)]
            expected += sum([await g for g in gs])
        await until(lambda: calls.load() >= expected)
        await gofer.sleep(0.002)
        assert calls.load() == expected

    gofer.run(main, procs=procs)


def test_moved_earlier_and_later_none_is_lost(procs: int) -> None:
    async def receive(timer: gofer.Timer) -> float:
        return await channel(timer).recv()

    async def mover(timers: list[gofer.Timer], seed: int) -> None:
        rng = random.Random(seed)
        for timer in rng.sample(timers, len(timers)):
            timer.reset(rng.choice([*HUGE, 100, 1000, 10_000]))
            if rng.randrange(8) == 0:
                await gofer.gosched()

    async def main() -> None:
        for i in rounds(divide_by=100):
            timers = [gofer.Timer(100_000) for _ in range(100)]
            gs = [gofer.go(receive, timer) for timer in timers]
            await parked(gs[0], gs[-1])
            movers = [gofer.go(mover, timers, 4 * i + k) for k in range(4)]
            for m in movers:
                await m
            assert not any(g.done() for g in gs)
            start = time.monotonic()
            for timer in timers:
                timer.reset(0.001)
            for g in gs:
                assert await g >= start + 0.001 - 1e-6
            assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_one_timer_moved_by_many(procs: int) -> None:
    """Goroutines and a thread set, stop and receive at will; at the end it can still be used."""

    async def work(timer: gofer.Timer, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(20):
            kind = rng.randrange(4)
            if kind == 0:
                timer.reset(rng.random() * 1e-4)
            elif kind == 1:
                timer.stop()
            elif kind == 2:
                timer.reset(rng.choice(HUGE))
            else:
                await gofer.select(channel(timer).recv(), gofer.sleep(rng.random() * 1e-4))

    stop = threading.Event()

    def foreign(timer: gofer.Timer) -> None:
        while not stop.is_set():
            timer.reset(1e-5)
            timer.stop()
            time.sleep(1e-4)

    async def main() -> None:
        timer = gofer.Timer(0)
        with thread(foreign, timer):
            try:
                for i in rounds(divide_by=50):
                    gs = [gofer.go(work, timer, 8 * i + k) for k in range(8)]
                    for g in gs:
                        await g
            finally:
                stop.set()
        timer.reset(0.001)
        await channel(timer).recv()

    gofer.run(main, procs=procs)


def test_zero_timers_are_never_lost(procs: int) -> None:
    calls = gofer.atomic.Int()

    async def wait(n: int) -> None:
        for i in range(n):
            await gofer.after(0 if i % 2 else 1e-9).recv()

    async def main() -> None:
        total = 0
        for _ in rounds(divide_by=10):
            gs = [gofer.go(wait, 20) for _ in range(4)]
            for _ in range(20):
                gofer.after_func(0, calls.add, 1)
            total += 20
            for g in gs:
                await g
        await until(lambda: calls.load() == total)

    gofer.run(main, procs=procs)


def test_adjusted_all_the_time(procs: int) -> None:
    """Waiting with a time limit that is set anew for every value, as servers do."""

    async def produce(ch: gofer.Chan[int], n: int, seed: int) -> None:
        rng = random.Random(seed)
        for i in range(n):
            await ch.send(i)
            if rng.randrange(4) == 0:
                await gofer.sleep(rng.random() * 1e-4)

    async def consume(ch: gofer.Chan[int], n: int) -> None:
        timer = gofer.Timer(100_000)
        for i in range(n):
            timer.reset(60)
            chosen = await gofer.select(ch.recv(), channel(timer).recv())
            assert chosen == (0, i, True)
        assert timer.stop()

    async def main() -> None:
        for i in rounds(divide_by=50):
            gs: list[gofer.Goroutine[Any]] = []
            for k in range(4):
                ch = gofer.Chan[int](k)
                gs.append(gofer.go(produce, ch, 25, 4 * i + k))
                gs.append(gofer.go(consume, ch, 25))
            for g in gs:
                await g
            assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_tickers_stopped_and_reset_under_their_receivers(procs: int) -> None:
    async def receive(ticker: gofer.Ticker, done: gofer.Chan[None]) -> int:
        last, count = 0.0, 0
        while True:
            chosen = await gofer.select(ticker.c.recv(), done.recv())
            if chosen.index == 1:
                return count
            assert last < chosen.value <= time.monotonic() + 1e-6
            last = chosen.value
            count += 1

    async def main() -> None:
        rng = random.Random(procs)
        ticks = 0
        for _ in rounds(divide_by=50):
            ticker = gofer.Ticker(rng.random() * 1e-4 + 1e-9)
            done = gofer.Chan[None]()
            g = gofer.go(receive, ticker, done)
            for _ in range(10):
                await linger(rng)
                ticker.stop()
                await linger(rng)
                ticker.reset(rng.choice([1e-9, 1e-5, 1e-4, 1e300]))
            done.close()
            ticks += await g
        assert ticks > 0
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_two_receivers_of_one_ticker_never_get_the_same_tick(procs: int) -> None:
    async def receive(ticker: gofer.Ticker, n: int) -> list[float]:
        return [await ticker.c.recv() for _ in range(n)]

    async def main() -> None:
        for _ in rounds(divide_by=50):
            ticker = gofer.Ticker(2e-5)
            gs = [gofer.go(receive, ticker, 10) for _ in range(4)]
            got = [await g for g in gs]
            for ticks in got:
                assert ticks == sorted(ticks)
            assert len({tick for ticks in got for tick in ticks}) == 40

    gofer.run(main, procs=procs)


def test_a_receiver_is_cancelled_as_it_fires(procs: int) -> None:
    """The value is received, or it is still there."""

    async def receive(timer: gofer.Timer) -> float:
        return await channel(timer).recv()

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds(divide_by=2):
            timer = gofer.Timer(rng.random() * 1e-4)
            g = gofer.go(receive, timer)
            await linger(rng)
            g.cancel()
            try:
                await g
                assert timer.stop() is False
            except gofer.Cancelled:
                await channel(timer).recv()

    gofer.run(main, procs=procs)


def test_timers_move_when_ps_come_and_go(procs: int) -> None:
    async def wait(seed: int) -> int:
        rng = random.Random(seed)
        timer = gofer.Timer(100_000)
        called = gofer.Chan[int](1)
        gofer.after_func(rng.random() * 1e-3, called.send_nowait, 1)
        timer.reset(rng.random() * 1e-3)
        await channel(timer).recv()
        return await called.recv()

    async def main() -> None:
        for i in rounds(divide_by=50):
            gs = [gofer.go(wait, 20 * i + k) for k in range(20)]
            for n in (1, 8, 3, procs):
                gofer.gomaxprocs(n)
                await gofer.sleep(1e-4)
            assert sum([await g for g in gs]) == 20

    gofer.run(main, procs=procs)
