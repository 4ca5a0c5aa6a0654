"""Cancellation against everything it can meet: exactly one outcome each time."""

import contextlib
import random
import threading
from typing import Any

import gofer
from gofer import _core
from tests.support import give, parked, rounds, thread, wait_for


class Told:
    """Set once cancel() has returned: from then on the goroutine must know of it."""

    def __init__(self) -> None:
        self.value = False
        self.begun = False


async def count_cancellations(first: Any, told: Told) -> int:
    """How many times Cancelled came out: of the operation, or of one after it."""
    seen = 0
    told.begun = True
    try:
        await first
    except gofer.Cancelled:
        seen += 1
    while not told.value:
        try:
            await gofer.gosched()
        except gofer.Cancelled:
            seen += 1
    for _ in range(2):
        try:
            await gofer.gosched()
        except gofer.Cancelled:
            seen += 1
    return seen


def test_a_sleep_that_ends_against_its_cancellation(procs: int) -> None:
    async def main() -> None:
        rng = random.Random(procs)
        for i in rounds():
            told = Told()
            g = gofer.go(count_cancellations, gofer.sleep(0.00003), told)
            while not told.begun:
                await gofer.gosched()
            if i % 2:
                await gofer.sleep(rng.random() * 0.00006)
            assert g.cancel()
            told.value = True
            assert await g == 1
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_a_join_that_ends_against_its_cancellation(procs: int) -> None:
    async def target(yields: int) -> None:
        for _ in range(yields):
            await gofer.gosched()

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds():
            told = Told()
            g = gofer.go(count_cancellations, gofer.go(target, rng.randrange(3)), told)
            while not told.begun:
                await gofer.gosched()
            for _ in range(rng.randrange(3)):
                await gofer.gosched()
            assert g.cancel()
            told.value = True
            assert await g == 1

    gofer.run(main, procs=procs)


def test_the_end_of_a_goroutine_against_its_cancellation(procs: int) -> None:
    """It returns its value or it is cancelled; False means that it had ended by itself."""

    async def target(yields: int) -> str:
        for _ in range(yields):
            await gofer.gosched()
        return "value"

    async def main() -> None:
        rng = random.Random(procs)
        for _ in rounds():
            g = gofer.go(target, rng.randrange(3))
            for _ in range(rng.randrange(4)):
                await gofer.gosched()
            taken = g.cancel("reason")
            with contextlib.suppress(gofer.Cancelled):
                await g
            if g.cancelled():
                assert taken
                assert repr(g.exception()) == "Cancelled('reason')"
            else:
                assert g.result() == "value"

    gofer.run(main, procs=procs)


def test_the_start_of_a_goroutine_against_its_cancellation(procs: int) -> None:
    async def target(log: list[str]) -> None:
        log.append("began")
        try:
            await gofer.sleep(100_000)
        finally:
            log.append("ended")

    async def main() -> None:
        for i in rounds():
            log: list[str] = []
            g = gofer.go(target, log)
            if i % 3 == 0:
                await gofer.gosched()
            assert g.cancel()
            with contextlib.suppress(gofer.Cancelled):
                await g
            assert g.cancelled()
            assert log in ([], ["began", "ended"])

    gofer.run(main, procs=procs)


def test_a_storm_of_cancellations_from_foreign_threads(procs: int) -> None:
    received = [0] * 20
    stop = False
    sent = [0] * 4

    async def target(me: int) -> None:
        with contextlib.suppress(gofer.Cancelled):
            await gofer.sleep(100_000)
        received[me] += 1
        while not stop:
            try:
                kind = received[me] % 3
                if kind == 0:
                    await gofer.sleep(0.001)
                elif kind == 1:
                    await gofer.gosched()
                else:
                    await wait_for(gofer.go(give, 1))
            except gofer.Cancelled:
                received[me] += 1

    def storm(me: int, targets: list[gofer.Goroutine[None]]) -> None:
        rng = random.Random(me)
        for i in rounds():  # each at least once, or it would sleep for ever
            sent[me] += (targets[i] if i < len(targets) else rng.choice(targets)).cancel(me)
        ended.release()

    async def main() -> None:
        nonlocal stop
        targets = [gofer.go(target, i) for i in range(20)]
        await parked(*targets)  # one that is cancelled before it begins never does
        with contextlib.ExitStack() as stack:
            for i in range(4):
                stack.enter_context(thread(storm, i, targets))
            for _ in range(4):
                while not ended.acquire(blocking=False):
                    await gofer.sleep(0.001)
        stop = True
        for g in targets:
            with contextlib.suppress(gofer.Cancelled):
                await g

    ended = threading.Semaphore(0)
    gofer.run(main, procs=procs)
    assert 0 < sum(received) <= sum(sent)


def test_the_reason_that_comes_out_is_one_that_went_in(procs: int) -> None:
    async def target(log: list[Any], n: int) -> None:
        while len(log) < n:
            try:
                await gofer.sleep(100_000)
            except gofer.Cancelled as exc:
                log.append(exc.reason)

    async def main() -> None:
        for _ in rounds(divide_by=10):
            log: list[Any] = []
            g = gofer.go(target, log, 5)
            await parked(g)

            async def sender(me: int, g: gofer.Goroutine[None] = g) -> None:
                while g.cancel(me):
                    await gofer.gosched()

            senders = [gofer.go(sender, i) for i in range(1, 4)]
            await g
            for s in senders:
                await s
            assert len(log) == 5
            assert set(log) <= {1, 2, 3}

    gofer.run(main, procs=procs)
