"""Everything at once: births, ends, cancellations, resizing, looks, collections, leaks."""

import gc
import random
import threading
import time
import warnings
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import rounds


async def leaf(n: int) -> int:
    if n % 3 == 0:
        await gofer.gosched()
    if n % 5 == 0:
        await gofer.sleep(random.random() * 0.0005)
    if n % 7 == 0:
        raise ValueError(n)
    return 1


async def tree(depth: int) -> int:
    if depth == 0:
        return await leaf(random.randrange(1000))
    total = 0
    for g in [gofer.go(tree, depth - 1) for _ in range(3)]:
        try:
            total += await g
        except ValueError:
            total += 1
    return total


async def restless() -> None:
    try:
        while True:
            await gofer.sleep(random.random() * 0.0003)
            await gofer.gosched()
            await gofer.go(leaf, 1)
    finally:
        await gofer.sleep(0.00005)


async def cancel_some() -> None:
    for _ in range(5):
        g = gofer.go(restless)
        for _ in range(random.randrange(5)):
            await gofer.gosched()
        g.cancel("enough")
        with pytest.raises(gofer.Cancelled, match="enough"):
            await g


async def resize() -> None:
    for _ in range(5):
        gofer.gomaxprocs(random.randrange(1, 9))
        await gofer.sleep(0.0002)


async def look() -> None:
    for _ in range(3):
        for g in _core.goroutines():
            g.stack()
            repr(g)
        await gofer.sleep(0.0005)


async def collect() -> None:
    gc.collect()
    await gofer.gosched()
    gc.collect()


async def leak() -> None:
    async def wait_for(box: list[gofer.Goroutine[Any]]) -> None:
        while not box:
            await gofer.gosched()
        await box[0]

    first: list[Any] = []
    second: list[Any] = []
    first.append(gofer.go(wait_for, second))
    second.append(gofer.go(wait_for, first))


async def main() -> None:
    jobs = (cancel_some, cancel_some, resize, look, collect, leak)
    others = [gofer.go(job) for job in jobs]
    assert await gofer.go(tree, 3) == 27
    for g in others:
        await g


def test_all_at_once(procs: int) -> None:
    stop = False

    def from_outside() -> None:
        while not stop:
            time.sleep(0.0005)
            try:
                g = gofer.go(restless)
            except RuntimeError:  # between two runs
                continue
            g.cancel()

    thread = threading.Thread(target=from_outside)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gofer.GoroutineLeakWarning)
            for _ in rounds(divide_by=20):
                gofer.run(main, procs=procs)
    finally:
        stop = True
        thread.join()
