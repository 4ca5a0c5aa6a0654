"""Goroutines that the collector condemns wake others that it condemns too."""

import gc
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

import gofer
from gofer import Chan, Mutex, WaitGroup
from tests.support import rounds

MANY = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gofer.GoroutineLeakWarning)
        yield


async def settle() -> None:
    for _ in range(3):
        await gofer.sleep(0.0005)


def leak_a_wait_group() -> None:
    """One that waits for a member which nobody can wake."""

    async def member(ch: Chan[int]) -> None:
        await ch.recv()

    async def waiter(wg: WaitGroup) -> None:
        await wg.wait()
        await go_on()

    wg = WaitGroup()
    wg.go(member, Chan[int]())
    gofer.go(waiter, wg)


def leak_a_mutex() -> None:
    """One that waits for a mutex whose holder nobody can wake."""

    async def holder(mu: Mutex, ch: Chan[int]) -> None:
        async with mu:
            await ch.recv()

    async def waiter(mu: Mutex) -> None:
        async with mu:
            await go_on()

    mu = Mutex()
    gofer.go(holder, mu, Chan[int]())
    gofer.go(waiter, mu)


async def go_on() -> None:
    for _ in range(100):
        await gofer.gosched()


@pytest.mark.parametrize("leak", [leak_a_wait_group, leak_a_mutex])
def test_one_that_is_ended_wakes_one_that_is_about_to_be(
    procs: int, leak: Callable[[], None]
) -> None:
    async def main() -> None:
        for _ in rounds(divide_by=100):
            for _ in range(MANY):
                leak()
            await settle()
            gc.collect()
            await settle()

    gofer.run(main, procs=procs)


def test_operations_that_are_kept_for_reuse_while_somebody_looks_at_all_objects(
    procs: int,
) -> None:
    """gc.get_objects() shows operations between two uses: who takes one must not share it."""
    stop = False
    kept: list[object] = []

    def look() -> None:
        while not stop:
            ops = [o for o in gc.get_objects() if type(o).__name__ in ("ChanOp", "SyncOp")]
            for op in ops:
                repr(op)
            kept[:] = [*ops[:1], *kept[:4]]

    async def produce(ch: Chan[int], k: int) -> None:
        for i in range(300):
            await ch.send(300 * k + i)

    async def consume(ch: Chan[int], mu: Mutex, box: list[int]) -> list[int]:
        got = []
        async for value in ch:
            async with mu:
                box[0] += 1
            got.append(value)
        return got

    async def main() -> None:
        for _ in rounds(divide_by=100):
            ch, mu, box, wg = Chan[int](8), Mutex(), [0], WaitGroup()
            consumers = [gofer.go(consume, ch, mu, box) for _ in range(3)]
            for k in range(3):
                wg.go(produce, ch, k)
            await wg.wait()
            ch.close()
            got = [value for c in consumers for value in await c]
            assert sorted(got) == list(range(900))
            assert box[0] == 900

    looker = threading.Thread(target=look)
    looker.start()
    try:
        gofer.run(main, procs=procs)
    finally:
        stop = True
        looker.join()
        kept.clear()
