"""Ps change hands while goroutines run: nothing is lost, nothing runs twice.

sysmon is set to take, every few microseconds, each P that there is work for. So nearly every call
into the runtime may find that the P has gone, or is going just now.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gofer
from gofer import _core, block
from tests.support import all_came_back, parked, rounds, until


@pytest.fixture(params=[20, 50], ids="every {} us".format)
def eager(request: pytest.FixtureRequest) -> Iterator[int]:
    """How often sysmon looks, and takes all it may."""
    before = _core.set_sysmon(request.param)
    yield request.param
    _core.set_sysmon(before)


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def ps(request: pytest.FixtureRequest) -> int:
    """How many Ps."""
    return int(request.param)


def test_retake_against_re_entry(ps: int, eager: int) -> None:
    """Operations that complete at once, one after the other, each an entry and a way out."""
    hands = 0

    async def worker(ch: gofer.Chan[int], n: int) -> int:
        total = 0
        for i in range(n):
            ch.send_nowait(i)
            total += await ch.recv()
        return total

    async def main() -> None:
        nonlocal hands
        n = 5000  # long enough for sysmon to look twice
        for _ in rounds(divide_by=n * 4):
            gs = [gofer.go(worker, gofer.Chan[int](1), n) for _ in range(4)]
            assert [await g for g in gs] == [n * (n - 1) // 2] * 4
        hands = _core.counters()["handoffs"]

    gofer.run(main, procs=ps)
    assert hands > 0 or sum(1 for _ in rounds()) < 100_000


def test_a_ball_is_neither_lost_nor_doubled(ps: int, eager: int) -> None:
    """Players on a ring of channels; some linger with the ball where their P can be taken."""

    async def player(i: int, inbox: gofer.Chan[int], outbox: gofer.Chan[int]) -> None:
        async for ball in inbox:
            if i % 3 == 0:
                time.sleep(0)
            if i % 3 == 1:
                with gofer.blocking():
                    pass
            await outbox.send(ball + 1)

    async def main() -> None:
        ring = [gofer.Chan[int]() for _ in range(7)]
        last = gofer.Chan[int]()
        for i, inbox in enumerate(ring):
            gofer.go(player, i, inbox, ring[i + 1] if i < 6 else last)
        for i in rounds(divide_by=20):
            await ring[0].send(i)
            assert await last.recv() == i + 7

    gofer.run(main, procs=ps)


def test_plain_goroutines_block_and_unblock_at_random(ps: int, eager: int) -> None:
    """Plain and async ones on both ends of channels, a mutex between them: all is counted once."""
    n = 6

    def plain(seed: int, ch: gofer.Chan[int], mu: gofer.Mutex, times: int) -> int:
        rng = random.Random(seed)
        got = 0
        for _ in range(times):
            match rng.randrange(5):
                case 0:
                    block(ch.send(1))
                    got -= 1
                case 1:
                    got += block(ch.recv())
                case 2:
                    with mu:
                        box[0] += 1
                case 3:
                    block(gofer.gosched())
                case _:
                    time.sleep(rng.random() * 5e-5)
        return got

    async def sink(ch: gofer.Chan[int]) -> int:
        """Keeps the plain ones from waiting for ever."""
        got = 0
        while True:
            match await gofer.select(ch.send(1), ch.recv(), stop.recv()):
                case gofer.Selected(0, _, _):
                    got -= 1
                case gofer.Selected(1, value, _):
                    got += value
                case _:
                    return got

    async def main() -> None:
        nonlocal stop
        for i in rounds(divide_by=200):
            ch = gofer.Chan[int](i % 3)
            stop = gofer.Chan[None]()
            mu = gofer.Mutex()
            sinks = [gofer.go(sink, ch) for _ in range(2)]
            gs = [gofer.go(plain, i * n + k, ch, mu, 10) for k in range(n)]
            total = sum([await g for g in gs])
            stop.close()
            total += sum([await g for g in sinks])
            assert total == -len(ch)  # what is in the buffer was sent and not received

    stop = gofer.Chan[None]()
    box = [0]
    gofer.run(main, procs=ps)


def test_a_mutex_guards_plain_and_async_alike(ps: int, eager: int) -> None:
    total = 0

    def plain(mu: gofer.Mutex) -> None:
        nonlocal total
        for _ in range(10):
            with mu:
                seen = total
                time.sleep(0)
                total = seen + 1

    async def asynchronous(mu: gofer.Mutex) -> None:
        nonlocal total
        for _ in range(10):
            async with mu:
                seen = total
                time.sleep(0)
                total = seen + 1

    async def main() -> None:
        nonlocal total
        for _ in rounds(divide_by=100):
            total = 0
            mu = gofer.Mutex()
            gs = [gofer.go(fn, mu) for fn in (plain, asynchronous) * 2]
            for g in gs:
                await g
            assert total == 40

    gofer.run(main, procs=ps)


def test_locked_goroutines_are_woken_on_their_threads(ps: int, eager: int) -> None:
    async def locked(inbox: gofer.Chan[int], outbox: gofer.Chan[int]) -> int:
        with gofer.lock_os_thread():
            own = threading.get_ident()
            seen = 0
            async for value in inbox:
                assert threading.get_ident() == own
                await outbox.send(value)
                assert threading.get_ident() == own
                seen += 1
        return seen

    async def main() -> None:
        pairs = [(gofer.Chan[int](), gofer.Chan[int]()) for _ in range(3)]
        gs = [gofer.go(locked, *pair) for pair in pairs]
        n = 0
        for n in rounds(divide_by=20):
            for inbox, outbox in pairs:
                await inbox.send(n)
                assert await outbox.recv() == n
        for inbox, _ in pairs:
            inbox.close()
        assert [await g for g in gs] == [n + 1] * 3

    gofer.run(main, procs=ps)


def test_locked_goroutines_while_the_number_of_ps_changes(eager: int) -> None:
    """A P that is on its way to a locked thread may be taken away before the thread wakes up."""

    async def locked() -> None:
        with gofer.lock_os_thread():
            own = threading.get_ident()
            while not stop:
                await gofer.gosched()
                assert threading.get_ident() == own

    def plain() -> None:
        own = threading.get_ident()
        while not stop:
            block(gofer.gosched())
            assert threading.get_ident() == own

    async def main() -> None:
        nonlocal stop
        gs = [gofer.go(fn) for fn in (locked, plain) * 2]
        for i in rounds(divide_by=20):
            gofer.gomaxprocs(1 + i % 4)
            await gofer.gosched()
        stop = True
        for g in gs:
            await g

    stop = False
    gofer.run(main, procs=4)


def test_threads_that_end_with_their_goroutines(ps: int, eager: int) -> None:
    def plain() -> int:
        gofer.lock_os_thread()
        return block(child())

    async def child() -> int:
        await gofer.gosched()
        return 1

    async def asynchronous() -> int:
        gofer.lock_os_thread()
        return await child()

    async def main() -> None:
        for _ in rounds(divide_by=200):
            gs = [gofer.go(fn) for fn in (plain, asynchronous) * 2]
            assert [await g for g in gs] == [1] * 4
        await until(lambda: _core.counters()["threads"] < 50, "the threads gone")

    gofer.run(main, procs=ps)


def test_cancelling_plain_goroutines_that_block(ps: int, eager: int) -> None:
    """A value that was handed over is never lost, whoever is cancelled meanwhile."""

    def receiver(ch: gofer.Chan[int]) -> int:
        got = 0
        try:
            begun.add(1)  # one that is cancelled before never begins
            while True:
                got += block(ch.recv())
        except gofer.Cancelled:
            return got

    async def main() -> None:
        for _ in rounds(divide_by=100):
            ch = gofer.Chan[int]()
            begun.store(0)
            gs = [gofer.go(receiver, ch) for _ in range(3)]
            while begun.load() < 3:
                await gofer.gosched()
            sent = 0
            for k in range(6):
                selected = await gofer.select(ch.send(1), gofer.sleep(0.0001))
                sent += selected.index == 0
                if k % 2:
                    gs[k // 2].cancel()
            assert sum([await g for g in gs]) == sent

    begun = gofer.atomic.Int()
    gofer.run(main, procs=ps)


def test_block_with_a_timeout_that_is_up_just_now(ps: int, eager: int) -> None:
    def plain(ch: gofer.Chan[int], n: int) -> int:
        got = 0
        for i in range(n):
            with contextlib.suppress(TimeoutError):
                got += block(ch.recv(), timeout=i % 4 * 0.00002)
        return got

    async def main() -> None:
        for _ in rounds(divide_by=100):
            ch = gofer.Chan[int]()
            gs = [gofer.go(plain, ch, 10) for _ in range(2)]
            sent = 0
            while not all(g.done() for g in gs):
                sent += (await gofer.select(ch.send(1), gofer.sleep(0.00002))).index == 0
            assert sum([g.result() for g in gs]) == sent

    gofer.run(main, procs=ps)


def test_looking_at_plain_goroutines_while_they_park_and_go_on(ps: int, eager: int) -> None:
    def plain() -> None:
        while not stop:
            inner()

    def inner() -> None:
        block(gofer.sleep(0.00001))

    async def main() -> None:
        nonlocal stop
        gs = [gofer.go(plain) for _ in range(3)]
        for _ in rounds(divide_by=20):
            for g in gs:
                names = [frame.name for frame in g.stack()]
                assert names in ([], ["plain"], ["plain", "inner"]), names
                assert g.state in ("runnable", "running", "waiting", "syscall")
                assert g.wait_reason in (None, "sleep")
            await gofer.gosched()
        stop = True
        for g in gs:
            await g

    stop = False
    gofer.run(main, procs=ps)


def test_leaving_blocking_while_others_want_the_p(ps: int, eager: int) -> None:
    """Each comes back to find that it has to queue for a P."""

    async def worker() -> int:
        for _ in range(10):
            with gofer.blocking():
                time.sleep(0)
            await gofer.gosched()
        return 1

    async def main() -> None:
        for _ in rounds(divide_by=100):
            gs = [gofer.go(worker) for _ in range(6)]
            assert sum([await g for g in gs]) == 6

    gofer.run(main, procs=ps)


def test_the_end_of_main_against_plain_goroutines(ps: int, eager: int) -> None:
    """Main ends at any time; plain ones end in block(), in their code, or are left behind."""
    ended = 0
    lock = threading.Lock()

    def plain(i: int) -> None:
        nonlocal ended
        try:
            for _ in range(3):
                if i % 2:
                    time.sleep(0.00005)
                block(gofer.sleep(0.00005))
        finally:
            with lock:
                ended += 1

    async def main(i: int) -> None:
        for k in range(4):
            gofer.go(plain, k)
        if i % 3:
            await gofer.sleep(i % 7 * 0.00003)

    started = 0
    for i in rounds(divide_by=50):
        started += 4
        gofer.run(main, i, procs=ps)
    assert ended <= started  # one that is cancelled before never begins
    all_came_back()


def test_left_behind_functions_come_back_while_another_run_runs(ps: int) -> None:
    """They call into the runtime, which is not theirs any more."""
    errors: list[str] = []

    def stuck(go_on: threading.Event, ch: gofer.Chan[int]) -> None:
        go_on.wait()
        for call in calls(ch):
            try:
                call()
            except RuntimeError as exc:
                errors.append(str(exc))

    def calls(ch: gofer.Chan[int]) -> list[Callable[[], Any]]:
        return [
            lambda: gofer.go(main2),
            lambda: block(ch.recv()),
            lambda: block(gofer.sleep(0)),
            lambda: ch.send_nowait(1),
            gofer.num_goroutine,
            lambda: gofer.current().state,
        ]

    async def main(go_on: threading.Event) -> None:
        started = [gofer.go(stuck, go_on, gofer.Chan[int](1)) for _ in range(2)]
        await until(lambda: all(g.state in ("syscall", "running") for g in started))

    async def main2() -> None:
        pass

    async def other(go_on: threading.Event) -> None:
        gs = [gofer.go(gofer.sleep, 0.001) for _ in range(4)]
        go_on.set()
        for g in gs:
            await g

    for _ in rounds(divide_by=200):
        go_on = threading.Event()
        gofer.run(main, go_on, procs=ps)
        gofer.run(other, go_on, procs=ps)
        all_came_back()
    assert {e for e in errors if "has ended" not in e} == set()


def test_short_blocking_calls_of_many(ps: int) -> None:
    """Go's TestPreemptionAfterSyscall: 10 us to 1 ms in more goroutines than Ps, and all get on."""

    async def worker(seconds: float) -> int:
        for _ in range(20):
            time.sleep(seconds)
            await gofer.gosched()
        return 1

    async def main() -> None:
        for _ in rounds(divide_by=1000):
            for seconds in (0.00001, 0.0001, 0.001):
                gs = [gofer.go(worker, seconds) for _ in range(8)]
                assert sum([await g for g in gs]) == 8

    gofer.run(main, procs=ps)


def test_a_goroutine_that_waits_is_seen_waiting_although_its_thread_lives(eager: int) -> None:
    def plain(ch: gofer.Chan[int]) -> int:
        return block(ch.recv())

    async def main() -> None:
        for i in rounds(divide_by=50):
            ch = gofer.Chan[int]()
            g = gofer.go(plain, ch)
            await parked(g)
            assert g.wait_reason == "chan receive"
            await ch.send(i)
            assert await g == i

    gofer.run(main, procs=2)


def test_loops_that_were_ended_leave_the_next_run_alone(procs: int) -> None:
    """Exceptions that were raised in threads, or taken back, must not catch those that compute."""

    def endless(i: int) -> None:
        while True:
            i += fib(2)

    async def leaves() -> None:
        for i in range(procs + 1):
            gofer.go(endless, i)
        for _ in range(4):
            gofer.go(time.sleep, 0.15)
        await gofer.sleep(0.02)

    async def computes() -> int:
        return fib(16)

    async def main() -> None:
        for g in [gofer.go(computes) for _ in range(4)]:
            assert await g == 987

    for _ in rounds(100):
        gofer.run(leaves, procs=procs)
        gofer.run(main, procs=procs)
    all_came_back()


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)
