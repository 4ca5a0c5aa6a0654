"""Pool: objects to use again, until the collector has come by twice."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import gofer
from tests.support import thread, until


class Thing:
    """Something that can be referred to weakly."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only the collections of the test itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def never() -> Any:
    raise AssertionError("there was one to use again")


@pytest.mark.usefixtures("no_collector")
def test_what_was_put_is_got_again(procs: int) -> None:
    async def main() -> None:
        pool = gofer.Pool(never)
        things = [Thing() for _ in range(100)]
        for thing in things:
            pool.put(thing)
        got = [pool.get() for _ in range(100)]
        assert set(got) == set(things)
        with pytest.raises(AssertionError):
            pool.get()

    gofer.run(main, procs=procs)


def test_an_empty_one_makes_a_new_one() -> None:
    made: list[Thing] = []

    def make() -> Thing:
        made.append(Thing())
        return made[-1]

    pool = gofer.Pool(make)
    assert pool.get() is made[0]
    assert pool.get() is made[1]
    assert len(made) == 2


@pytest.mark.usefixtures("no_collector")
def test_the_last_one_put_is_the_first_one_got() -> None:
    """Which is most likely still in the cache of this core."""

    async def main() -> None:
        pool = gofer.Pool(never)
        for i in range(5):
            pool.put(i)
        assert [pool.get() for _ in range(5)] == [4, 3, 2, 1, 0]

    gofer.run(main, procs=1)


@pytest.mark.usefixtures("no_collector")
def test_what_one_p_has_put_another_can_get(procs: int) -> None:
    async def putter(pool: gofer.Pool[int], i: int) -> None:
        await gofer.gosched()
        pool.put(i)

    async def main() -> None:
        pool = gofer.Pool[int](never)
        gs = [gofer.go(putter, pool, i) for i in range(100)]
        for g in gs:
            await g
        with thread(pool.put, 100):
            pass
        assert sorted(pool.get() for _ in range(101)) == list(range(101))

    gofer.run(main, procs=procs)


@pytest.mark.usefixtures("no_collector")
def test_none_is_ignored_and_other_false_objects_are_not() -> None:
    pool = gofer.Pool(Thing)
    pool.put(None)  # type: ignore[arg-type]
    assert isinstance(pool.get(), Thing)
    anything = gofer.Pool[Any](never)
    for value in (0, "", False):
        anything.put(value)
    assert sorted(map(repr, (anything.get() for _ in range(3)))) == ["''", "0", "False"]


@pytest.mark.usefixtures("no_collector")
def test_one_collection_leaves_them_and_two_take_them() -> None:
    pool = gofer.Pool[Thing](never)
    thing = Thing()
    ref = weakref.ref(thing)
    pool.put(thing)
    del thing
    gc.collect()
    assert ref() is not None
    thing = pool.get()
    assert thing is ref()
    pool.put(thing)  # which makes it young again
    del thing
    gc.collect()
    assert ref() is not None
    gc.collect()
    assert ref() is None
    with pytest.raises(AssertionError):
        pool.get()


@pytest.mark.usefixtures("no_collector")
def test_a_pool_that_is_dropped_goes_with_all_it_has() -> None:
    pool = gofer.Pool[Thing](never)
    thing = Thing()
    refs: list[weakref.ref[Any]] = [weakref.ref(pool), weakref.ref(thing)]
    pool.put(thing)
    del pool, thing
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.parametrize("new", [None, 5, "new", []])
def test_what_cannot_be_called_is_a_type_error_that_names_it(new: Any) -> None:
    with pytest.raises(TypeError) as info:
        gofer.Pool(new)
    assert repr(new) in str(info.value)


def test_an_exception_of_new_is_raised_by_get() -> None:
    def fails() -> int:
        raise KeyError("new")

    pool = gofer.Pool(fails)
    with pytest.raises(KeyError, match="new"):
        pool.get()
    pool.put(1)
    assert pool.get() == 1


def test_no_object_is_ever_given_to_two(procs: int) -> None:
    class Buffer:
        users = 0

    async def worker(pool: gofer.Pool[Buffer], i: int) -> None:
        for n in range(50):
            buffer = pool.get()
            buffer.users += 1
            assert buffer.users == 1
            if (n + i) % 7 == 0:
                await gofer.gosched()
            assert buffer.users == 1
            buffer.users -= 1
            pool.put(buffer)

    def foreign(pool: gofer.Pool[Buffer], done: list[bool]) -> None:
        for n in range(100):
            buffer = pool.get()
            buffer.users += 1
            assert buffer.users == 1
            buffer.users -= 1
            pool.put(buffer)
            if n % 50 == 0:
                gc.collect()
        done.append(True)

    async def main() -> None:
        pool = gofer.Pool(Buffer)
        done: list[bool] = []
        with thread(foreign, pool, done):
            gs = [gofer.go(worker, pool, i) for i in range(16)]
            for g in gs:
                await g
            await until(lambda: done)

    gofer.run(main, procs=procs)
