"""atomic.Int, Bool and Ref: values that any thread may change at any time."""

import gc
import sys
import weakref
from typing import Any

import pytest

import gofer
from gofer import atomic
from tests.support import thread, until

LEAST, MOST = -(2**63), 2**63 - 1


# --- Int ------------------------------------------------------------------------------------------


def test_an_int() -> None:
    n = atomic.Int()
    assert n.load() == 0
    assert n.add(5) == 5
    assert n.add(-7) == -2
    assert n.store(10) is None  # type: ignore[func-returns-value]
    assert n.swap(11) == 10
    assert n.load() == 11
    assert not n.compare_and_swap(10, 12)
    assert n.load() == 11
    assert n.compare_and_swap(11, 12)
    assert n.load() == 12
    assert repr(n) == "atomic.Int(12)"
    assert atomic.Int(7).load() == atomic.Int(value=7).load() == 7


def test_an_int_has_64_bits() -> None:
    n = atomic.Int(MOST)
    with pytest.raises(OverflowError):
        n.add(1)
    assert n.load() == MOST
    assert n.add(-MOST) == 0
    assert n.swap(LEAST) == 0
    with pytest.raises(OverflowError):
        n.add(-1)
    assert n.load() == LEAST
    for beyond in (MOST + 1, LEAST - 1, 10**30):
        for call in (atomic.Int, n.store, n.swap, n.add):
            with pytest.raises(OverflowError):
                call(beyond)
        for pair in ((beyond, 0), (LEAST, beyond)):
            with pytest.raises(OverflowError):
                n.compare_and_swap(*pair)
    assert n.load() == LEAST


@pytest.mark.parametrize("value", [1.0, "1", None, [], object()])
def test_what_is_no_integer_is_a_type_error(value: Any) -> None:
    n = atomic.Int(3)
    for call in (atomic.Int, n.store, n.swap, n.add):
        with pytest.raises(TypeError):
            call(value)
    for pair in ((value, 1), (3, value)):
        with pytest.raises(TypeError):
            n.compare_and_swap(*pair)
    assert n.load() == 3


# --- Bool -----------------------------------------------------------------------------------------


def test_a_bool() -> None:
    b = atomic.Bool()
    assert b.load() is False
    assert b.store(True) is None  # type: ignore[func-returns-value]
    assert b.load() is True
    assert b.swap(False) is True
    assert b.swap(True) is False
    assert b.compare_and_swap(False, True) is False
    assert b.compare_and_swap(True, False) is True
    assert b.load() is False
    assert repr(b) == "atomic.Bool(False)"
    assert atomic.Bool(True).load() is atomic.Bool(value=True).load() is True
    assert not hasattr(b, "add")


@pytest.mark.parametrize("value", [1, 0, None, "x", []])
def test_what_is_no_bool_is_a_type_error(value: Any) -> None:
    b = atomic.Bool(True)
    for call in (atomic.Bool, b.store, b.swap):
        with pytest.raises(TypeError):
            call(value)
    for pair in ((value, True), (True, value)):
        with pytest.raises(TypeError):
            b.compare_and_swap(*pair)
    assert b.load() is True


# --- Ref ------------------------------------------------------------------------------------------


def test_a_ref_compares_by_identity() -> None:
    assert atomic.Ref().load() is None
    a, b = [1], [1]
    ref = atomic.Ref(a)
    assert ref.load() is a
    assert not ref.compare_and_swap(b, b)  # equal, but another object
    assert ref.load() is a
    assert ref.compare_and_swap(a, b)
    assert ref.load() is b
    assert ref.swap(a) is b
    ref.store(b)
    assert ref.load() is b
    assert repr(ref) == "atomic.Ref([1])"
    assert atomic.Ref[list[int]](value=a).load() is a


def test_a_ref_keeps_its_object_and_lets_go_of_it() -> None:
    class Thing:
        pass

    def thing() -> Thing:
        made = Thing()
        refs.append(weakref.ref(made))
        return made

    refs: list[weakref.ref[Thing]] = []
    cell = atomic.Ref[Any](thing())
    gc.collect()
    assert refs[0]() is not None
    cell.store(thing())
    assert refs[0]() is None
    assert cell.swap(thing()) is not None
    assert refs[1]() is None
    assert not cell.compare_and_swap(None, thing())
    assert refs[3]() is None
    assert cell.compare_and_swap(cell.load(), thing())
    assert refs[2]() is None
    assert refs[4]() is not None
    del cell
    assert refs[4]() is None


def test_the_collector_sees_through_a_ref() -> None:
    class Node:
        def __init__(self) -> None:
            self.me = atomic.Ref[Any](self)

    ref = weakref.ref(Node())
    gc.collect()
    assert ref() is None


def test_reference_counts_stay_right() -> None:
    value, other = object(), object()
    cell = atomic.Ref(value)
    before = sys.getrefcount(value), sys.getrefcount(other)
    for _ in range(100):
        cell.load()
        cell.store(value)
        cell.swap(value)
        cell.compare_and_swap(value, value)
        cell.compare_and_swap(other, other)
        repr(cell)
    assert (sys.getrefcount(value), sys.getrefcount(other)) == before


# --- Bad use --------------------------------------------------------------------------------------


def test_wrong_argument_counts_are_type_errors() -> None:
    cells: list[Any] = [atomic.Int(), atomic.Bool(), atomic.Ref()]
    for cell in cells:
        with pytest.raises(TypeError):
            type(cell)(cell.load(), cell.load())
        for name, args in {
            "load": (1,),
            "store": (),
            "swap": (),
            "compare_and_swap": (cell.load(),),
        }.items():
            with pytest.raises(TypeError):
                getattr(cell, name)(*args)


# --- At once --------------------------------------------------------------------------------------


def test_no_addition_is_lost(procs: int) -> None:
    n = atomic.Int()

    async def adder(by: int) -> None:
        for _ in range(1000):
            n.add(by)

    def foreign() -> None:
        for _ in range(1000):
            n.add(1)

    async def main() -> None:
        with thread(foreign), thread(foreign):
            gs = [gofer.go(adder, by) for by in (1, 2, 3, -4, 5, 6, 7, -10)]
            for g in gs:
                await g
            await until(lambda: n.load() == 12_000)

    gofer.run(main, procs=procs)


def test_each_sum_is_seen_by_one(procs: int) -> None:
    n = atomic.Int()
    seen: list[int] = []

    async def adder() -> None:
        sums = [n.add(1) for _ in range(500)]
        seen.extend(sums)

    async def main() -> None:
        gs = [gofer.go(adder) for _ in range(8)]
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    assert sorted(seen) == list(range(1, 4001))


def test_compare_and_swap_has_one_winner(procs: int) -> None:
    flag, cell, count = atomic.Bool(), atomic.Ref[Any](), atomic.Int()
    won: list[int] = []

    async def racer(i: int, start: gofer.WaitGroup, n: int) -> None:
        await start.wait()
        won.extend(
            (
                flag.compare_and_swap(False, True),
                cell.compare_and_swap(None, racer),
                count.compare_and_swap(n, n + 1),
            )
        )

    async def main() -> None:
        for n in range(50):
            start = gofer.WaitGroup()
            start.add()
            gs = [gofer.go(racer, i, start, n) for i in range(8)]
            start.done()
            for g in gs:
                await g
            assert sum(won) == 3
            won.clear()
            flag.store(False)
            cell.store(None)

    gofer.run(main, procs=procs)


def test_swaps_pass_every_object_on_exactly_once(procs: int) -> None:
    """What goes into a Ref comes out again, once."""
    cell = atomic.Ref[Any]()
    out: list[Any] = []

    async def swapper(k: int) -> None:
        mine = [cell.swap((k, i)) for i in range(300)]
        out.extend(mine)

    async def main() -> None:
        gs = [gofer.go(swapper, k) for k in range(8)]
        for g in gs:
            await g
        out.append(cell.swap(None))

    gofer.run(main, procs=procs)
    out.remove(None)
    assert sorted(out) == [(k, i) for k in range(8) for i in range(300)]
