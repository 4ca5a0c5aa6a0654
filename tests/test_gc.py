"""gc_tuned(): the collector beside very many goroutines, and everything as it was afterwards."""

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import gofer
from gofer.runtime import gc_tuned
from tests.support import SANITIZED, TINY, parked, sleep_long, until


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    """As in a program; the tests as a whole freeze what they begin with."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    yield
    assert gc.get_threshold() == thresholds
    assert gc.isenabled()
    assert nothing_is_frozen()
    gc.collect()
    gc.freeze()


def nothing_is_frozen() -> bool:
    """But what cannot die, which a collection of 3.12 puts with the frozen ones."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    gc.collect()
    return frozen in (0, gc.get_freeze_count())


class Node:
    """Something that is garbage only for the collector."""

    def __init__(self) -> None:
        self.me = self


def cycle() -> weakref.ref[Node]:
    return weakref.ref(Node())


def test_inside_the_threshold_is_high_and_what_was_there_is_frozen() -> None:
    before = gc.get_threshold()
    with gc_tuned(50_000) as tuned:
        assert gc.get_threshold() == (50_000, *before[1:])
        assert gc.get_freeze_count() > 1000
        assert "50000, in use" in repr(tuned)
    assert gc.get_threshold() == before
    assert nothing_is_frozen()
    assert "in use" not in repr(tuned)


def test_a_threshold_that_is_higher_already_stays() -> None:
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 5, 5)
    try:
        with gc_tuned(50_000):
            assert gc.get_threshold()[0] == 1_000_000
        assert gc.get_threshold()[0] == 1_000_000
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("how", ["disable", "threshold"])
def test_a_collector_that_is_off_stays_off(how: str) -> None:
    before = gc.get_threshold()
    if how == "disable":
        gc.disable()
    else:
        gc.set_threshold(0)
    try:
        with gc_tuned():
            assert not gc.isenabled() or gc.get_threshold()[0] == 0
        assert not gc.isenabled() or gc.get_threshold()[0] == 0
    finally:
        gc.enable()
        gc.set_threshold(*before)


def test_what_the_user_sets_inside_stays() -> None:
    before = gc.get_threshold()
    try:
        with gc_tuned():
            gc.set_threshold(1234, 5, 6)
        assert gc.get_threshold()[0] == 1234
    finally:
        gc.set_threshold(*before)


def test_an_exception_restores_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), gc_tuned():
        raise ZeroDivisionError
    assert gc.get_threshold() == before


def test_blocks_nest_and_overlap() -> None:
    before = gc.get_threshold()
    outer, inner = gc_tuned(10_000), gc_tuned(20_000)
    outer.__enter__()
    inner.__enter__()
    assert gc.get_threshold()[0] == 20_000
    outer.__exit__()  # another goroutine's, say: not in the order of blocks
    assert gc.get_threshold()[0] == 20_000
    assert gc.get_freeze_count() > 0
    inner.__exit__()
    assert gc.get_threshold() == before
    assert nothing_is_frozen()


def test_one_can_be_used_again_but_not_twice_at_once() -> None:
    tuned = gc_tuned()
    for _ in range(2):
        with tuned, pytest.raises(RuntimeError, match="in use"):
            tuned.__enter__()
    with pytest.raises(RuntimeError, match="outside the block"):
        tuned.freeze()


@pytest.mark.parametrize("wrong", [0, -1, 2**31])
def test_a_threshold_out_of_range_is_a_value_error(wrong: int) -> None:
    with pytest.raises(ValueError, match="threshold"):
        gc_tuned(wrong)


@pytest.mark.parametrize("wrong", [True, 1.5, "7", None])
def test_a_threshold_that_is_no_integer_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="threshold"):
        gc_tuned(wrong)


def test_what_comes_later_is_collected_what_is_frozen_after_the_block() -> None:
    node = Node()
    with gc_tuned() as tuned:
        late = cycle()
        gc.collect()
        assert late() is None
        frozen = weakref.ref(node)
        other = Node()
        tuned.freeze()
        frozen_too = weakref.ref(other)
        del node, other
        gc.collect()
        assert frozen() is not None
        assert frozen_too() is not None
    gc.collect()
    assert frozen() is None
    assert frozen_too() is None


@pytest.mark.parametrize("procs", [1, 4])
def test_leaks_that_come_later_are_found(procs: int) -> None:
    """Objects of the engine that are used again must not be frozen."""

    async def leaks(mu: gofer.Mutex) -> None:
        async with mu:
            await mu.lock()

    async def uses(mu: gofer.Mutex) -> None:
        for _ in range(10):
            async with mu:
                await gofer.gosched()

    async def main() -> None:
        mu = gofer.Mutex()
        for g in [gofer.go(uses, mu) for _ in range(20)]:
            await g
        with gc_tuned():
            for _ in range(30):
                gofer.go(leaks, gofer.Mutex())
            with pytest.warns(gofer.GoroutineLeakWarning):
                await until(collected, "all leaks found")

    def collected() -> bool:
        gc.collect()
        return gofer.num_goroutine() == 1

    gofer.run(main, procs=procs)


def test_what_was_frozen_before_stays_frozen() -> None:
    gc.freeze()
    with gc_tuned():
        pass
    assert gc.get_freeze_count() > 0
    gc.unfreeze()


def test_garbage_is_not_frozen() -> None:
    gc.disable()
    try:
        garbage = cycle()
        assert garbage() is not None
        with gc_tuned() as tuned:
            assert garbage() is None
            garbage = cycle()
            tuned.freeze()
            assert garbage() is None
    finally:
        gc.enable()


def test_a_leaked_goroutine_is_reported_after_the_block(procs: int) -> None:
    async def leaks() -> None:
        await gofer.Chan[int]().recv()

    async def main() -> None:
        gs = [gofer.go(leaks)]
        await parked(*gs)
        with gc_tuned():
            gs.clear()
            gc.collect()
            assert gofer.num_goroutine() == 2
        with pytest.warns(gofer.GoroutineLeakWarning):
            await until(lambda: gc.collect() >= 0 and gofer.num_goroutine() == 1)

    gofer.run(main, procs=procs)


@pytest.mark.skipif(SANITIZED or TINY, reason="sanitizers and small rings distort its times")
def test_a_collection_beside_frozen_goroutines_is_cheap(procs: int) -> None:
    """The cost of a full collection with 100,000 that wait, and with as many that are frozen."""

    async def main() -> tuple[float, float]:
        gate = gofer.go(sleep_long)
        done = gofer.atomic.Int()

        async def waiter() -> None:
            done.add(1)
            await gate

        with gc_tuned() as tuned:
            for _ in range(100_000):
                gofer.go(waiter)
            await until(lambda: done.load() == 100_000)
            looking = await best_collection()
            tuned.freeze()
            return looking, await best_collection()

    looking, frozen = gofer.run(main, procs=procs)
    assert frozen * 1.3 < looking


async def best_collection() -> float:
    """CPU seconds of this thread."""
    gc.disable()
    times: list[float] = []
    while len(times) < 3:
        before = gc.get_stats()[2]["collections"]
        start = time.thread_time()
        gc.collect()
        took = time.thread_time() - start
        if gc.get_stats()[2]["collections"] > before:
            times.append(took)
        else:  # one is under way, on a thread that waits for its turn
            await gofer.sleep(0.001)
    gc.enable()
    return min(times)
