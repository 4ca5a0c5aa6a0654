"""Locks, permits and signals under fire: none is lost, and none is had by two."""

import contextlib
import random
from typing import Any

import pytest

import gofer
from tests.support import rounds, thread, until


class Inside:
    """Who is in a critical section. Fails as soon as somebody is who must not be."""

    def __init__(self) -> None:
        self.readers = gofer.atomic.Int()
        self.writers = gofer.atomic.Int()

    def enter(self, write: bool = True) -> None:
        if write:
            assert self.writers.add(1) == 1
            assert self.readers.load() == 0
        else:
            self.readers.add(1)
            assert self.writers.load() == 0

    def leave(self, write: bool = True) -> None:
        if write:
            assert self.readers.load() == 0
            assert self.writers.add(-1) == 0
        else:
            assert self.writers.load() == 0
            self.readers.add(-1)


async def all_end(gs: list[gofer.Goroutine[Any]]) -> int:
    """Wait for all; how many were cancelled."""
    cancelled = 0
    for g in gs:
        try:
            await g
        except gofer.Cancelled:
            cancelled += 1
    return cancelled


async def cancel_some(gs: list[gofer.Goroutine[Any]], rng: random.Random) -> None:
    """Some of them, at random moments."""
    for g in rng.sample(gs, len(gs) // 2):
        for _ in range(rng.randrange(3)):
            await gofer.gosched()
        g.cancel()


def pause(rng: random.Random) -> gofer.Operation[None]:
    """Nothing, a yield or a short sleep."""
    kind = rng.randrange(4)
    return gofer.gosched() if kind == 0 else gofer.sleep(0.00001 if kind == 1 else 0)


# --- Hammers --------------------------------------------------------------------------------------


def test_a_hammered_mutex_has_one_holder(procs: int) -> None:
    mu, inside = gofer.Mutex(), Inside()
    count = 0

    async def worker(seed: int) -> None:
        nonlocal count
        rng = random.Random(seed)
        for i in range(20):
            if i % 4 == 3:
                if not mu.try_lock():
                    continue
            else:
                await mu.lock()
            inside.enter()
            count += 1
            if rng.random() < 0.2:
                await pause(rng)
            inside.leave()
            mu.unlock()

    async def main() -> None:
        for i in rounds(divide_by=10):
            gs = [gofer.go(worker, 8 * i + k) for k in range(8)]
            await all_end(gs)
            assert not mu.locked()

    gofer.run(main, procs=procs)
    assert count >= 8 * 15 * len(list(rounds(divide_by=10)))


def test_a_hammered_rwmutex_has_one_writer_or_only_readers(procs: int) -> None:
    """In changing proportions of the two."""
    rw, inside = gofer.RWMutex(), Inside()

    async def writer(rng: random.Random) -> None:
        for _ in range(5):
            async with rw:
                inside.enter()
                await pause(rng)
                inside.leave()

    async def reader(rng: random.Random) -> None:
        for i in range(10):
            if i % 5 == 4:
                if not rw.try_rlock():
                    continue
            else:
                await rw.rlock()
            inside.enter(write=False)
            await pause(rng)
            inside.leave(write=False)
            rw.runlock()

    async def main() -> None:
        for i in rounds(divide_by=10):
            writers, readers = ((1, 3), (2, 6), (4, 4), (1, 10))[i % 4]
            gs = [gofer.go(writer, random.Random(i + k)) for k in range(writers)]
            gs += [gofer.go(reader, random.Random(i - k)) for k in range(readers)]
            await all_end(gs)
            assert rw.try_lock()
            rw.unlock()

    gofer.run(main, procs=procs)


def test_a_semaphore_keeps_its_permits(procs: int) -> None:
    """Random weights, random cancellations."""
    sem, used = gofer.Semaphore(5), gofer.atomic.Int()

    async def worker(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(5):
            k = rng.randrange(1, 6)
            if rng.random() < 0.2:
                if not sem.try_acquire(k):
                    continue
            else:
                await sem.acquire(k)
            try:
                assert used.add(k) <= 5
                await pause(rng)
            finally:
                used.add(-k)
                sem.release(k)

    async def main() -> None:
        for i in rounds(divide_by=5):
            gs = [gofer.go(worker, 10 * i + k) for k in range(10)]
            await cancel_some(gs, random.Random(i))
            await all_end(gs)
            assert used.load() == 0
            assert sem.try_acquire(5)
            sem.release(5)

    gofer.run(main, procs=procs)


def test_a_waitgroup_is_used_again_at_once(procs: int) -> None:
    """Two phases that wait for each other, over and over, with the same two groups."""

    async def member(first: gofer.WaitGroup, second: gofer.WaitGroup, log: list[int]) -> None:
        log.append(1)
        first.done()
        await second.wait()
        log.append(2)

    async def main() -> None:
        first, second = gofer.WaitGroup(), gofer.WaitGroup()
        for _ in rounds(divide_by=2):
            log: list[int] = []
            first.add(8)
            second.add()
            gs = [gofer.go(member, first, second, log) for _ in range(8)]
            await first.wait()
            assert log == [1] * 8
            second.done()
            await all_end(gs)
            assert log == [1] * 8 + [2] * 8

    gofer.run(main, procs=procs)


def test_all_waiters_of_a_waitgroup_go_on(procs: int) -> None:
    async def main() -> None:
        for i in rounds(divide_by=2):
            wg = gofer.WaitGroup()
            workers = [wg.go(worker) for _ in range(5)]
            waiters = [gofer.go(waiter, wg) for _ in range(5)]
            if i % 2:
                waiters[0].cancel()
            await wg.wait()
            cancelled = await all_end(waiters)
            assert cancelled <= i % 2
            await all_end(workers)

    async def worker() -> None:
        await gofer.gosched()

    async def waiter(wg: gofer.WaitGroup) -> None:
        await wg.wait()

    gofer.run(main, procs=procs)


# --- Cond -----------------------------------------------------------------------------------------


def test_signals_reach_waiters_generation_by_generation(procs: int) -> None:
    """Each waits for its number, and signals the next: nobody is woken out of turn."""

    async def waiter(cond: gofer.Cond, i: int, log: list[int], parked: gofer.WaitGroup) -> None:
        async with cond.mu:
            parked.done()
            await cond.wait()
            log.append(i)
        cond.signal()

    async def main() -> None:
        for _ in rounds(divide_by=10):
            cond, log = gofer.Cond(gofer.Mutex()), list[int]()
            gs = []
            for i in range(10):
                here = gofer.WaitGroup()
                here.add()
                gs.append(gofer.go(waiter, cond, i, log, here))
                await here.wait()
                async with cond.mu:  # it waits by now
                    pass
            cond.signal()
            await all_end(gs)
            assert log == list(range(10))

    gofer.run(main, procs=procs)


def test_a_signal_is_never_stolen(procs: int) -> None:
    """A waiter that comes after the signal must not have it."""

    async def waiter(cond: gofer.Cond, ready: gofer.Chan[None], log: list[str], me: str) -> None:
        async with cond.mu:
            await ready.send(None)
            await cond.wait()
            log.append(me)

    async def main() -> None:
        for _ in rounds(divide_by=2):
            cond, ready, log = gofer.Cond(gofer.Mutex()), gofer.Chan[None](1), list[str]()
            first = gofer.go(waiter, cond, ready, log, "first")
            await ready.recv()
            async with cond.mu:
                cond.signal()
            second = gofer.go(waiter, cond, ready, log, "second")
            await first  # or it waits for ever
            await ready.recv()
            async with cond.mu:
                cond.signal()
            await second
            assert log == ["first", "second"]

    gofer.run(main, procs=procs)


def test_broadcasts_wake_whole_generations(procs: int) -> None:
    """A barrier: all of one generation pass, nobody is a generation ahead."""
    n = 6

    async def member(barrier: dict[str, int], cond: gofer.Cond, times: int) -> None:
        for generation in range(times):
            async with cond.mu:
                assert barrier["generation"] == generation
                barrier["count"] += 1
                if barrier["count"] == n:
                    barrier["count"] = 0
                    barrier["generation"] += 1
                    cond.broadcast()
                while barrier["generation"] == generation:
                    await cond.wait()

    async def main() -> None:
        for _ in rounds(divide_by=25):
            barrier = {"generation": 0, "count": 0}
            cond = gofer.Cond(gofer.Mutex())
            gs = [gofer.go(member, barrier, cond, 10) for _ in range(n)]
            await all_end(gs)
            assert barrier == {"generation": 10, "count": 0}

    gofer.run(main, procs=procs)


def test_cancelled_waiters_lose_no_signal(procs: int) -> None:
    """As many tokens are taken as there were, whoever is cancelled: a token is a signal."""

    class Shared:
        def __init__(self) -> None:
            self.tokens = 0
            self.taken = 0

    async def taker(cond: gofer.Cond, shared: Shared) -> None:
        async with cond.mu:
            while not shared.tokens:
                await cond.wait()
            shared.tokens -= 1
            shared.taken += 1

    async def main() -> None:
        for i in rounds(divide_by=5):
            cond, shared = gofer.Cond(gofer.Mutex()), Shared()
            victims = [gofer.go(taker, cond, shared) for _ in range(4)]
            others = [gofer.go(taker, cond, shared) for _ in range(4)]
            canceller = gofer.go(cancel_some, victims, random.Random(i))
            for _ in range(8):
                async with cond.mu:
                    shared.tokens += 1
                    cond.signal()
                await gofer.gosched()
            await canceller
            await all_end(others)  # there are tokens for all, and a signal with each
            await all_end(victims)
            assert shared.tokens + shared.taken == 8
            assert not cond.mu.locked()

    gofer.run(main, procs=procs)


# --- Cancellation at random -----------------------------------------------------------------------


class Locks:
    """One of each; in a section of one of them, only those may be who are allowed to."""

    def __init__(self) -> None:
        self.mu = gofer.Mutex()
        self.rw = gofer.RWMutex()
        self.sem = gofer.Semaphore(1)
        self.inside = {self.mu: Inside(), self.rw: Inside(), self.sem: Inside()}

    def choose(self, rng: random.Random) -> tuple[Any, Inside, bool]:
        """What to enter, who is inside, and whether to be alone there."""
        kind = rng.randrange(4)
        if kind == 0:
            return self.mu, self.inside[self.mu], True
        if kind == 1:
            return self.sem, self.inside[self.sem], True
        write = kind == 2
        return self.rw if write else self.rw.reader, self.inside[self.rw], write

    async def use(self, rng: random.Random) -> None:
        lock, inside, write = self.choose(rng)
        async with lock:
            inside.enter(write)
            try:
                await pause(rng)
            finally:
                inside.leave(write)

    def use_in_thread(self, rng: random.Random) -> None:
        lock, inside, write = self.choose(rng)
        with lock:
            inside.enter(write)
            inside.leave(write)

    def try_in_thread(self, rng: random.Random) -> None:
        """With hardly any time, so that waiting operations are taken back."""
        kind = rng.randrange(3)
        lock = (self.mu, self.rw, self.sem)[kind]
        op = (self.mu.lock, self.rw.lock, self.sem.acquire)[kind]()
        release = (self.mu.unlock, self.rw.unlock, self.sem.release)[kind]
        with contextlib.suppress(TimeoutError):
            gofer.block(op, timeout=rng.random() * 0.0002)
            self.inside[lock].enter()
            self.inside[lock].leave()
            release()

    def assert_free(self) -> None:
        assert self.mu.try_lock()
        assert self.rw.try_lock()
        assert self.sem.try_acquire()
        self.mu.unlock()
        self.rw.unlock()
        self.sem.release()


def test_cancelled_waiters_lose_nothing_and_leave_no_two_holders(procs: int) -> None:
    async def worker(locks: Locks, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(4):
            await locks.use(rng)

    async def main() -> None:
        locks = Locks()
        for i in rounds(divide_by=2):
            gs = [gofer.go(worker, locks, 12 * i + k) for k in range(12)]
            await cancel_some(gs, random.Random(i))
            await all_end(gs)
            locks.assert_free()

    gofer.run(main, procs=procs)


def test_timeouts_lose_nothing_and_leave_no_two_holders(procs: int) -> None:
    """The same with contexts that end, which every operation inside is told."""

    async def worker(locks: Locks, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(4):
            with contextlib.suppress(TimeoutError):
                async with gofer.timeout(rng.random() * 0.0002):
                    await locks.use(rng)

    async def main() -> None:
        locks = Locks()
        for i in rounds(divide_by=5):
            gs = [gofer.go(worker, locks, 12 * i + k) for k in range(12)]
            assert await all_end(gs) == 0
            locks.assert_free()

    gofer.run(main, procs=procs)


def test_foreign_threads_against_goroutines(procs: int) -> None:
    async def worker(locks: Locks, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(4):
            await locks.use(rng)

    def foreign(locks: Locks, seed: int, ended: gofer.WaitGroup) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(10):
                locks.use_in_thread(rng)
                locks.try_in_thread(rng)
        finally:
            ended.done()

    async def main() -> None:
        locks = Locks()
        for i in rounds(divide_by=25):
            ended = gofer.WaitGroup()
            ended.add(2)
            with thread(foreign, locks, i, ended), thread(foreign, locks, -i, ended):
                gs = [gofer.go(worker, locks, 8 * i + k) for k in range(8)]
                await cancel_some(gs, random.Random(i))
                await all_end(gs)
                await ended.wait()
            locks.assert_free()

    gofer.run(main, procs=procs)


def test_threads_wait_for_conditions_and_groups(procs: int) -> None:
    """A goroutine and a thread hand a baton to and fro."""

    class Baton:
        at = "goroutine"

    def foreign(cond: gofer.Cond, baton: Baton, ended: gofer.WaitGroup) -> None:
        try:
            for _ in range(10):
                with cond.mu:
                    while baton.at != "thread":
                        with contextlib.suppress(TimeoutError):
                            gofer.block(cond.wait(), timeout=0.001)
                    baton.at = "goroutine"
                    cond.signal()
        finally:
            ended.done()

    async def main() -> None:
        for _ in rounds(divide_by=50):
            cond, baton, ended = gofer.Cond(gofer.Mutex()), Baton(), gofer.WaitGroup()
            ended.add()
            with thread(foreign, cond, baton, ended):
                for _ in range(10):
                    async with cond.mu:
                        while baton.at != "goroutine":
                            await cond.wait()
                        baton.at = "thread"
                        cond.signal()
                await ended.wait()
            assert baton.at == "goroutine"
            assert not cond.mu.locked()

    gofer.run(main, procs=procs)


# --- What is built of them ------------------------------------------------------------------------


def test_once_is_once(procs: int) -> None:
    async def user(once: gofer.Once, calls: list[int]) -> None:
        await once.do(calls.append, 1)
        assert calls == [1]

    async def main() -> None:
        for i in rounds(divide_by=2):
            once, calls = gofer.Once(), list[int]()
            gs = [gofer.go(user, once, calls) for _ in range(8)]
            if i % 2:
                await cancel_some(gs[1:], random.Random(i))
            await all_end(gs)

    gofer.run(main, procs=procs)


def test_a_value_is_made_although_those_who_make_it_are_cancelled(procs: int) -> None:
    """The first who is not cancelled makes it, and nobody gets a Cancelled that is another's."""
    making = gofer.atomic.Int()

    async def main() -> None:
        for i in rounds(divide_by=4):
            rng = random.Random(i)

            async def make(rng: random.Random = rng) -> int:
                assert making.add(1) == 1
                try:
                    await pause(rng)
                    await gofer.gosched()
                finally:
                    making.add(-1)
                return 7

            get = gofer.once_value(make)
            gs = [gofer.go(get) for _ in range(6)]
            hit = [g for g in gs[:5] if rng.random() < 0.5 and g.cancel()]
            for g in gs:
                try:
                    assert await g == 7
                except gofer.Cancelled:
                    assert g in hit
            assert await get() == 7

    gofer.run(main, procs=procs)


def test_all_that_a_waitgroup_has_started_are_dead_after_wait(procs: int) -> None:
    async def child(rng: random.Random) -> None:
        await pause(rng)

    def plain() -> None:
        pass

    async def main() -> None:
        for i in rounds(divide_by=2):
            rng = random.Random(i)
            wg = gofer.WaitGroup()
            gs = [wg.go(child, rng) if rng.random() < 0.8 else wg.go(plain) for _ in range(5)]
            if rng.random() < 0.5:
                gs[0].cancel()
            await wg.wait()
            assert [g.state for g in gs] == ["dead"] * 5
            assert gofer.num_goroutine() == 1

    gofer.run(main, procs=procs)


def test_conditions_whose_mutex_is_left_locked_at_the_end(procs: int) -> None:
    """Waiters end one after the other, each with the mutex, whoever left it locked."""
    inside: Inside

    async def waiter(cond: gofer.Cond, rng: random.Random) -> None:
        await cond.mu.lock()
        try:
            await cond.wait()
        finally:
            inside.enter()
            with contextlib.suppress(gofer.Cancelled):
                await pause(rng)
            inside.leave()
            if rng.random() < 0.8:
                cond.mu.unlock()

    async def main(rng: random.Random) -> None:
        cond = gofer.Cond(gofer.Mutex())
        for _ in range(5):
            gofer.go(waiter, cond, rng)
        for _ in range(rng.randrange(5)):
            await gofer.gosched()
        if rng.random() < 0.3:
            cond.broadcast()
        await cond.mu.lock()

    for i in rounds(divide_by=10):
        inside = Inside()
        gofer.run(main, random.Random(i), procs=procs)


def test_a_group_ends_with_all_its_goroutines(procs: int) -> None:
    """Whether they return, fail, are cancelled or cancel the group; at the end each is dead."""

    async def child(group: gofer.Group, kind: int, rng: random.Random) -> int:
        await pause(rng)
        if kind == 0:
            raise KeyError(kind)
        if kind == 1:
            group.cancel()
        if kind == 2:
            group.go(child, group, 5, rng)
        await pause(rng)
        return kind

    async def main() -> None:
        for i in rounds(divide_by=2):
            rng = random.Random(i)
            gs: list[gofer.Goroutine[int]] = []
            with contextlib.suppress(ExceptionGroup):
                async with gofer.Group(limit=rng.choice([None, 2])) as group:
                    gs += [group.go(child, group, rng.randrange(8), rng) for _ in range(6)]
                    if rng.random() < 0.3:
                        gs[0].cancel()
            for g in gs:
                assert g.done(), g
                if not g.cancelled() and g.exception() is None:
                    assert g.result() in range(1, 8)
            assert gofer.num_goroutine() == 1

    gofer.run(main, procs=procs)


def test_a_flight_is_shared_by_whoever_is_there(procs: int) -> None:
    flying = gofer.atomic.Int()

    async def fetch(rng: random.Random) -> int:
        assert flying.add(1) == 1
        await pause(rng)
        assert flying.add(-1) == 0
        return 7

    async def user(flight: gofer.singleflight.Flight, rng: random.Random) -> None:
        for _ in range(3):
            assert await flight.do("key", fetch, rng) == 7

    async def main() -> None:
        flight = gofer.singleflight.Flight()
        for i in rounds(divide_by=5):
            gs = [gofer.go(user, flight, random.Random(i)) for _ in range(8)]
            await cancel_some(gs[1:], random.Random(i))
            await all_end(gs)
            await until(lambda: flying.load() == 0)

    gofer.run(main, procs=procs)


def test_a_failure_in_a_group_frees_the_turn_of_nobody(procs: int) -> None:
    """The others are cancelled before the permit of the one that failed can be another's."""

    async def main() -> None:
        for _ in rounds(divide_by=10):
            called: list[int] = []

            async def worker(i: int, called: list[int] = called) -> None:
                called.append(i)
                raise KeyError(i)

            with pytest.raises(ExceptionGroup):
                await gofer.go(fail_together, worker)
            assert len(called) == 1

    async def fail_together(worker: Any) -> None:
        async with gofer.Group(limit=1) as g:
            for i in range(10):
                g.go(worker, i)
            await gofer.sleep(100_000)

    gofer.run(main, procs=procs)
