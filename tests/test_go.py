"""go() and the handle it returns."""

import contextvars
import copy
import decimal
import functools
import gc
import inspect
import pickle
import re
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, NoReturn

import pytest

import gofer
from gofer import _core
from tests.support import (
    RING_SIZE,
    SANITIZED,
    give,
    gone,
    here,
    parked,
    run_program,
    sleep_long,
    thread,
    until,
    wait_for,
)


class Oops(Exception):
    pass


async def fail(text: str = "oops") -> NoReturn:
    raise Oops(text)


# --- What can be started --------------------------------------------------------------------------


class Worker:
    async def method(self, x: int, y: int = 0) -> int:
        return x + y

    @classmethod
    async def of_class(cls, x: int) -> int:
        return x

    @staticmethod
    async def static(x: int) -> int:
        return x

    async def __call__(self, x: int) -> int:
        return x


@types.coroutine
def by_generator(x: int) -> Generator[Any, Any, int]:
    yield from gofer.sleep(0.001).__await__()
    return x


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"),
    [
        (give, (1,), {}),
        (give, (), {"value": 1}),
        (functools.partial(give, 1), (), {}),
        (functools.partial(functools.partial(Worker().method, 0), y=1), (), {}),
        (Worker().method, (1,), {}),
        (Worker().method, (0,), {"y": 1}),
        (Worker.of_class, (1,), {}),
        (Worker.static, (1,), {}),
        (Worker(), (1,), {}),
        (by_generator, (1,), {}),
    ],
    ids=[
        "function",
        "keyword",
        "partial",
        "partial of partial",
        "method",
        "method with keyword",
        "classmethod",
        "staticmethod",
        "callable object",
        "types.coroutine",
    ],
)
def test_starts_whatever_makes_a_coroutine(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], procs: int
) -> None:
    async def main() -> int:
        g = gofer.go(fn, *args, **kwargs)
        assert isinstance(g, gofer.Goroutine)
        result: int = await g
        return result

    assert gofer.run(main, procs=procs) == 1


def test_starts_a_coroutine_object(procs: int) -> None:
    async def main() -> list[int]:
        return [await gofer.go(give(1)), await gofer.go(by_generator(2))]

    assert gofer.run(main, procs=procs) == [1, 2]


def test_passes_many_arguments_in_order() -> None:
    async def echo(*args: int, **kwargs: int) -> tuple[tuple[int, ...], dict[str, int]]:
        return args, kwargs

    async def main() -> None:
        args = tuple(range(50))
        kwargs: dict[str, Any] = {f"k{i}": i for i in range(50)}
        assert await gofer.go(echo, *args, **kwargs) == (args, kwargs)
        assert await gofer.go(echo, *args, name="x", **kwargs) == (args, kwargs)
        first = dict(list(kwargs.items())[:25])
        rest = dict(list(kwargs.items())[25:])
        g = gofer.go(echo, *args, **first, name="middle", **rest)
        assert await g == (args, kwargs)
        assert g.name == "middle"
        assert await gofer.go(echo, fn=1, coro=2) == ((), {"fn": 1, "coro": 2})

    gofer.run(main)


async def async_generator() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "fn", [5, None, "x", generator, async_generator, object(), [], ...], ids=repr
)
def test_anything_else_is_a_type_error_at_the_call(fn: Any) -> None:
    async def main() -> None:
        with pytest.raises(TypeError) as info:
            gofer.go(fn)
        assert repr(fn) in str(info.value)
        assert gofer.num_goroutine() == 1

    gofer.run(main)


def test_a_generator_and_an_async_generator_object_are_type_errors() -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="generator"):
            gofer.go(x for x in "")  # type: ignore[call-overload]
        agen = async_generator()
        with pytest.raises(TypeError, match="async_generator"):
            gofer.go(agen)  # type: ignore[call-overload]

    gofer.run(main)


def test_without_arguments_is_a_type_error() -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="go"):
            gofer.go()  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="go"):
            gofer.go(name="x")  # type: ignore[call-overload]

    gofer.run(main)


def test_wrong_arguments_raise_at_the_call() -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
            gofer.go(give)
        with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
            gofer.go(give, 1, 2)
        with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
            gofer.go(give, x=1)
        assert gofer.num_goroutine() == 1

    gofer.run(main)


def test_a_callable_that_lies_about_being_async_is_a_type_error() -> None:
    def liar() -> int:
        return 5

    flags = liar.__code__.co_flags | inspect.CO_ITERABLE_COROUTINE
    liar.__code__ = liar.__code__.replace(co_flags=flags)

    async def main() -> None:
        with pytest.raises(TypeError, match="returned 5, not a coroutine"):
            gofer.go(liar)  # type: ignore[arg-type]
        assert gofer.num_goroutine() == 1

    gofer.run(main)


def test_an_exception_of_the_callable_itself_comes_out_of_go() -> None:
    class Raises:
        async def __call__(self) -> None: ...

        def __getattribute__(self, name: str) -> Any:
            if name == "__call__":
                raise Oops(name)
            return super().__getattribute__(name)

    async def main() -> None:
        with pytest.raises(Oops):
            gofer.go(Raises())
        assert gofer.num_goroutine() == 1

    gofer.run(main)


def test_a_finished_coroutine_is_a_runtime_error() -> None:
    async def main() -> None:
        coro = give(1)
        await coro
        with pytest.raises(RuntimeError, match="already finished"):
            gofer.go(coro)
        closed = give(1)
        closed.close()
        with pytest.raises(RuntimeError, match="already finished"):
            gofer.go(closed)
        assert gofer.num_goroutine() == 1

    gofer.run(main)


def test_the_same_coroutine_twice_is_a_runtime_error(procs: int) -> None:
    async def main() -> None:
        coro = sleep_long()
        g = gofer.go(coro)
        with pytest.raises(RuntimeError, match=f"already runs as goroutine {g.id}|already running"):
            gofer.go(coro)
        await parked(g)
        with pytest.raises(RuntimeError, match=f"already runs as goroutine {g.id}|already running"):
            gofer.go(coro)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        with pytest.raises(RuntimeError, match="already finished"):
            gofer.go(coro)

    gofer.run(main, procs=procs)


def test_a_coroutine_that_has_begun_elsewhere_is_a_runtime_error() -> None:
    async def main() -> None:
        coro = async_wait()
        coro.send(None)
        with pytest.raises(RuntimeError, match="already running"):
            gofer.go(coro)
        coro.close()
        with pytest.raises(RuntimeError, match="already running"):
            gofer.go(main_coro)

    @types.coroutine
    def bare() -> Generator[None, None, None]:
        yield

    async def async_wait() -> None:
        await bare()

    main_coro = main()
    gofer.run(main_coro)


def test_a_coroutine_with_extra_arguments_is_a_type_error_and_can_still_be_used() -> None:
    async def main() -> None:
        coro = give(1)
        with pytest.raises(TypeError, match="takes no arguments"):
            gofer.go(coro, 1)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="takes no arguments"):
            gofer.go(coro, x=1)  # type: ignore[call-overload]
        assert await gofer.go(coro, name="fine") == 1

    gofer.run(main)


def test_outside_a_runtime_is_a_runtime_error_and_the_function_is_not_called() -> None:
    called = []

    def make() -> Any:
        called.append(1)
        return give(1)

    with pytest.raises(RuntimeError, match=r"inside gofer\.run"):
        gofer.go(functools.partial(make))
    assert not called


def test_from_a_foreign_thread_while_a_runtime_runs(procs: int) -> None:
    handles: list[gofer.Goroutine[int]] = []
    site = []

    def foreign() -> None:
        for i in range(100):
            handles.append(gofer.go(give, i))
            site.append(here(-1))

    async def main() -> None:
        with thread(foreign):
            await until(lambda: len(site) == 100)
        assert [await g for g in handles] == list(range(100))
        assert {g.parent_id for g in handles} == {0}
        assert {g.created_at for g in handles} == set(site)
        assert len({g.id for g in handles}) == 100

    gofer.run(main, procs=procs)
    handles.clear()


def test_the_call_returns_before_the_goroutine_runs() -> None:
    order = []

    async def child() -> None:
        order.append("child")

    async def main() -> None:
        g = gofer.go(child)
        order.append("main")
        await g

    gofer.run(main, procs=1)
    assert order == ["main", "child"]


# --- The handle -----------------------------------------------------------------------------------


def test_main_is_number_1_and_has_no_parent(procs: int) -> None:
    async def main() -> None:
        me = gofer.current()
        assert me.id == 1
        assert me.parent_id == 0
        assert me.state == "running"

    for _ in range(3):
        gofer.run(main, procs=procs)


def test_ids_are_unique_and_name_the_parent(procs: int) -> None:
    async def child() -> tuple[int, int]:
        me = gofer.current()
        return me.id, me.parent_id

    async def parent(n: int) -> list[tuple[int, int]]:
        me = gofer.current().id
        children = [gofer.go(child) for _ in range(n)]
        seen = [await g for g in children]
        assert seen == [(g.id, me) for g in children]
        return [*seen, (me, gofer.current().parent_id)]

    async def main() -> None:
        parents = [gofer.go(parent, 99) for _ in range(100)]
        seen = [pair for g in parents for pair in await g]
        assert len({id for id, _ in seen} | {1}) == 10_001
        assert sum(parent == 1 for _, parent in seen) == 100

    gofer.run(main, procs=procs)


def test_current_is_the_handle_that_go_returned(procs: int) -> None:
    async def child() -> gofer.Goroutine[Any]:
        await gofer.gosched()
        return gofer.current()

    async def main() -> None:
        g = gofer.go(child)
        assert await g is g
        assert gofer.current() is not g

    gofer.run(main, procs=procs)


def test_name_is_the_qualified_name_unless_given() -> None:
    async def main() -> None:
        async def local() -> None: ...

        named = gofer.go(local, name="worker \N{SNOWMAN}")
        unnamed = gofer.go(local)
        none = gofer.go(local, name=None)
        empty = gofer.go(local, name="")
        for g in (named, unnamed, none, empty):
            await g
        own = local.__qualname__
        assert own.endswith("main.<locals>.local")
        assert [g.name for g in (named, unnamed, none, empty)] == [
            "worker \N{SNOWMAN}",
            own,
            own,
            "",
        ]
        with pytest.raises(TypeError, match="name"):
            gofer.go(local, name=5)  # type: ignore[call-overload]

    gofer.run(main)


def test_created_at_is_the_line_of_the_call(procs: int) -> None:
    async def main() -> None:
        first, first_site = gofer.go(give, 1), here()
        by_coroutine, second_site = gofer.go(give(1)), here()
        # fmt: off
        third = gofer.go(
            give,
            1,
        ); third_site = here(-3)  # noqa: E702
        # fmt: on
        for g, site in [
            (first, first_site),
            (by_coroutine, second_site),
            (third, third_site),
        ]:
            assert g.created_at == site
            await g
            assert g.created_at == site

    gofer.run(main, procs=procs)


def test_created_at_of_main_is_the_line_of_run() -> None:
    async def main() -> str:
        return gofer.current().created_at

    seen, site = gofer.run(main), here()
    assert seen == site


def test_state_and_wait_reason_in_each_state() -> None:
    seen = {}

    async def child() -> None:
        seen["running"] = (me[0].state, me[0].wait_reason)
        await gofer.sleep(0.1)
        await gofer.go(sleep_long)

    async def main() -> None:
        me.append(gofer.go(child))
        g = me[0]
        assert (g.state, g.wait_reason) == ("runnable", None)
        await until(lambda: g.wait_reason == "sleep")
        assert g.state == "waiting"
        await until(lambda: g.wait_reason == "goroutine wait")
        assert g.state == "waiting"
        g.cancel()
        assert (g.state, g.wait_reason) == ("runnable", None)
        with pytest.raises(gofer.Cancelled):
            await g
        assert (g.state, g.wait_reason) == ("dead", None)

    me: list[gofer.Goroutine[None]] = []
    gofer.run(main, procs=1)
    assert seen == {"running": ("running", None)}


def test_one_that_yields_is_runnable_and_waits_for_nothing() -> None:
    async def child() -> None:
        await gofer.gosched()

    async def main() -> None:
        g = gofer.go(child)
        await gofer.gosched()  # it runs, and goes behind us
        assert (g.state, g.wait_reason) == ("runnable", None)
        assert not g.done()
        await g

    gofer.run(main, procs=1)


def test_wait_reason_is_not_that_of_an_earlier_wait() -> None:
    async def child() -> None:
        await gofer.sleep(0.001)
        await gofer.gosched()
        seen.append(gofer.current().wait_reason)

    async def main() -> None:
        await gofer.go(child)

    seen: list[str | None] = []
    gofer.run(main, procs=1)
    assert seen == [None]


def test_the_attributes_cannot_be_set() -> None:
    async def main() -> None:
        g = gofer.go(give, 1)
        for name in ("id", "parent_id", "name", "state", "wait_reason", "created_at"):
            with pytest.raises(AttributeError):
                setattr(g, name, 1)
        with pytest.raises(AttributeError):
            g.other = 1  # type: ignore[attr-defined]
        await g

    gofer.run(main)


def test_repr_shows_id_name_state_and_site() -> None:
    async def main() -> None:
        g, site = gofer.go(sleep_long, name="sleeper"), here()
        head, tail = f"<Goroutine {g.id} 'sleeper' ", f", created at {site}>"
        assert repr(g) == f"{head}runnable{tail}"
        await parked(g)
        assert repr(g) == f"{head}waiting (sleep){tail}"
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        assert repr(g) == f"{head}dead (cancelled){tail}"
        bad = gofer.go(fail, name="bad")
        with pytest.raises(Oops):
            await bad
        assert "'bad' dead (failed)" in repr(bad)
        assert repr(gofer.current()).startswith("<Goroutine 1 ")
        assert " running," in repr(gofer.current())

    gofer.run(main, procs=1)


def test_done_result_exception_and_cancelled_while_alive_and_after(procs: int) -> None:
    async def main() -> None:
        alive = gofer.go(sleep_long)
        assert not alive.done()
        assert not alive.cancelled()
        for method in (alive.result, alive.exception):
            with pytest.raises(RuntimeError, match="has not ended"):
                method()

        good = gofer.go(give, [1])
        value = await good
        assert good.done()
        assert good.result() is value
        assert good.result() is value
        assert good.exception() is None
        assert not good.cancelled()

        bad = gofer.go(fail)
        with pytest.raises(Oops) as info:
            await bad
        assert bad.done()
        assert bad.exception() is info.value
        with pytest.raises(Oops) as again:
            bad.result()
        assert again.value is info.value
        assert not bad.cancelled()

        alive.cancel("why")
        with pytest.raises(gofer.Cancelled):
            await alive
        assert alive.done()
        assert alive.cancelled()
        assert isinstance(alive.exception(), gofer.Cancelled)
        with pytest.raises(gofer.Cancelled) as cancelled:
            alive.result()
        assert cancelled.value.reason == "why"

    gofer.run(main, procs=procs)


def test_results_may_be_anything(procs: int) -> None:
    values = [None, (), (1, 2), StopIteration(5), Oops("not raised"), Exception, [1], gofer]

    async def main() -> list[Any]:
        gs = [gofer.go(give, v) for v in values]
        return [await g for g in gs]

    results = gofer.run(main, procs=procs)
    assert all(a is b for a, b in zip(results, values, strict=True))


def test_goroutine_can_be_subscripted_in_annotations() -> None:
    alias = gofer.Goroutine[int]
    assert alias.__origin__ is gofer.Goroutine  # type: ignore[attr-defined]
    assert alias.__args__ == (int,)  # type: ignore[attr-defined]


def test_goroutine_cannot_be_made_subclassed_copied_or_pickled() -> None:
    with pytest.raises(TypeError):
        gofer.Goroutine()
    with pytest.raises(TypeError):
        type("Sub", (gofer.Goroutine,), {})

    async def main() -> None:
        g = gofer.go(give, 1)
        await g
        for method in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                method(g)

    gofer.run(main)


def test_handles_are_hashable_and_equal_only_to_themselves() -> None:
    async def main() -> None:
        a, b = gofer.go(give, 1), gofer.go(give, 1)
        assert a == a
        assert a != b
        assert len({a, b, a}) == 2
        await a
        await b

    gofer.run(main)


def test_a_weak_reference_to_a_handle_dies_with_it(procs: int) -> None:
    async def main() -> weakref.ref[gofer.Goroutine[None]]:
        g = gofer.go(sleep_long)
        ref = weakref.ref(g)
        assert ref() is g
        del g
        await until(lambda: ref().state == "waiting")  # type: ignore[union-attr]
        gc.collect()
        assert ref() is not None, "the runtime keeps what can still run"
        ref().cancel()  # type: ignore[union-attr]
        await gone(ref, procs)

        died: list[object] = []
        g = gofer.go(sleep_long)
        other = weakref.ref(g, died.append)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        del g
        await until(lambda: died)
        assert died == [other]
        return ref

    assert gofer.run(main, procs=procs)() is None


def test_nobody_needs_to_keep_the_handle(procs: int) -> None:
    ended = []

    async def child(i: int) -> None:
        await gofer.sleep(0.001)
        await gofer.gosched()
        await gofer.go(give, i)
        ended.append(i)

    async def main() -> None:
        for i in range(300):
            gofer.go(child, i)
        while len(ended) < 300:
            gc.collect()
            await gofer.sleep(0.001)

    gofer.run(main, procs=procs)
    assert sorted(ended) == list(range(300))


def test_a_dead_goroutine_lets_go_of_its_frames_and_arguments(procs: int) -> None:
    class Big:
        pass

    async def child(big: Big) -> None:
        await gofer.sleep(0.001)

    async def main() -> None:
        big = Big()
        ref = weakref.ref(big)
        g = gofer.go(child, big)
        del big
        await g
        await gone(ref, procs)
        assert g.done()

    gofer.run(main, procs=procs)


def test_stack_of_a_waiting_goroutine_is_its_await_chain(procs: int) -> None:
    async def outer() -> None:
        await middle()

    async def middle() -> None:
        async for _ in inner():
            pass

    async def inner() -> AsyncIterator[int]:
        await by_generator_forever()
        yield 1

    @types.coroutine
    def by_generator_forever() -> Generator[Any, Any, None]:
        yield from gofer.sleep(100_000).__await__()

    async def main() -> None:
        g = gofer.go(outer)
        await parked(g)
        stack = g.stack()
        assert isinstance(stack, traceback.StackSummary)
        names = [frame.name for frame in stack]
        assert names == ["outer", "middle", "inner", "by_generator_forever"]
        assert stack[0].line == "await middle()"
        assert stack[-1].line == "yield from gofer.sleep(100_000).__await__()"
        assert {frame.filename for frame in stack} == {__file__}

    gofer.run(main, procs=procs)


def test_stack_of_oneself_and_of_the_dead_and_of_the_unborn() -> None:
    async def main() -> None:
        await inner()
        g = gofer.go(give, 1)
        assert [frame.name for frame in g.stack()] == ["give"]
        await g
        assert list(g.stack()) == []

    async def inner() -> None:
        def plain() -> list[str]:
            return [frame.name for frame in gofer.current().stack()]

        assert plain() == ["main", "inner", "plain"]

    gofer.run(main, procs=1)


def test_stack_of_one_that_runs_on_another_thread_is_empty() -> None:
    stop = False

    async def busy() -> None:
        running.append(1)
        while not stop:
            pass

    async def main() -> None:
        nonlocal stop
        g = gofer.go(busy)
        await until(lambda: running and g.state == "running")  # with the GIL it may be stopped
        assert list(g.stack()) == []
        stop = True
        await g

    running: list[int] = []
    gofer.run(main, procs=2)


# --- The order in which they run ------------------------------------------------------------------


def run_order(n: int) -> list[int]:
    """Start 1..n on one P, then block: who runs when."""
    order: list[int] = []

    async def child(i: int) -> None:
        order.append(i)

    async def main() -> None:
        gs = [gofer.go(child, i) for i in range(1, n + 1)]
        for g in gs:
            await g

    gofer.run(main, procs=1)
    assert sorted(order) == list(range(1, n + 1))
    return order


@pytest.mark.usefixtures("no_handoff")
@pytest.mark.parametrize("n", [1, 2, 3, RING_SIZE, RING_SIZE + 1])
def test_on_one_p_the_last_runs_first_then_the_others_in_order(n: int) -> None:
    assert run_order(n) == [n, *range(1, n)]


@pytest.mark.usefixtures("no_handoff")
def test_when_the_ring_is_full_half_of_it_and_the_newcomer_go_to_the_global_queue() -> None:
    """Go's oracle for 300 on a ring of 256, told for any size."""
    half = RING_SIZE // 2
    n = RING_SIZE + half
    order = run_order(n)
    at = {i: order.index(i) for i in order}
    spilled = [*range(1, half + 1), RING_SIZE + 1]  # in the order of the global queue
    kept = [*range(half + 1, RING_SIZE + 1), *range(RING_SIZE + 2, n)]
    assert [i for i in order if i in set(spilled)] == spilled
    assert [i for i in order if i not in set(spilled)] == [n, *kept]
    assert at[half + 1] < at[half]
    # One from the global queue every 61 ticks, until the ring is empty.
    before = order[1 : at[kept[-1]]]
    assert sum(i in set(spilled) for i in before) <= len(before) // 60 + 1


def test_every_61st_tick_one_from_the_global_queue_comes_first() -> None:
    """Those in the ring would keep it full for ever: one in the global queue runs all the same."""
    count = 0
    seen: list[int] = []
    stop = False

    async def again() -> None:
        nonlocal count
        count += 1
        if not stop:
            # The first goes to the ring when the second takes its place as the next to run.
            gofer.go(again)
            gofer.go(give, 0)

    async def main() -> None:
        nonlocal stop
        gofer.go(again)
        gofer.go(again)
        for _ in range(10):
            before = count
            await gofer.gosched()  # into the global queue
            seen.append(count - before)
        stop = True

    gofer.run(main, procs=1)
    assert max(seen) <= 61
    assert sum(seen) > 0


def test_a_pair_that_hands_the_slice_to_and_fro_does_not_starve_the_ring() -> None:
    """Each starts the next, which inherits the slice: together they have 10 ms, then others run."""
    stop = False

    async def chain() -> None:
        if not stop:
            gofer.go(chain)

    async def third() -> float:
        return time.monotonic()

    async def main() -> float:
        nonlocal stop
        gofer.go(chain)
        waited = 0.0
        for _ in range(5):
            start = time.monotonic()
            waited = max(waited, await gofer.go(third) - start, time.monotonic() - start)
        stop = True
        return waited

    assert gofer.run(main, procs=1) < 0.5


def test_a_pair_that_hands_the_slice_to_and_fro_does_not_starve_the_global_queue() -> None:
    """In Go the pair is preempted after 10 ms and goes behind whoever waits in the global queue."""
    stop = False
    waits: list[float] = []

    async def chain() -> None:
        if not stop:
            gofer.go(chain)

    async def main() -> None:
        nonlocal stop
        gofer.go(chain)
        for _ in range(10):
            start = time.monotonic()
            await gofer.gosched()
            waits.append(time.monotonic() - start)
        stop = True

    gofer.run(main, procs=1)
    assert sorted(waits)[5] < 0.1


def test_gosched_goes_behind_all_that_are_runnable() -> None:
    order: list[str] = []

    async def child(name: str, yields: int) -> None:
        for i in range(yields):
            order.append(f"{name}{i}")
            await gofer.gosched()

    async def main() -> None:
        gs = [gofer.go(child, name, 3) for name in "abc"]
        for g in gs:
            await g

    gofer.run(main, procs=1)
    assert order == ["c0", "a0", "b0", "c1", "a1", "b1", "c2", "a2", "b2"]


def test_gosched_goes_behind_all_that_are_runnable_in_the_first_slice_of_a_process_too() -> None:
    """That no slice has been counted yet is no reason to look at the global queue first."""
    out = run_program(
        """
        import gofer

        async def child():
            print("child")

        async def main():
            g = gofer.go(child)
            await gofer.gosched()
            print("main")
            await g

        gofer.run(main, procs=1)
        """
    ).check()
    assert out == "child\nmain\n"


def test_work_spreads_over_all_ps() -> None:
    ran_on: list[int] = []

    async def child() -> None:
        await gofer.sleep(0.002)
        time.sleep(0.0005)
        ran_on.append(_core.proc_id())

    async def main() -> None:
        gs = [gofer.go(child) for _ in range(400)]
        for g in gs:
            await g

    gofer.run(main, procs=4)
    assert len(set(ran_on)) == 4
    assert max(map(ran_on.count, set(ran_on))) < 0.8 * len(ran_on)


# --- Context variables ----------------------------------------------------------------------------

VAR: contextvars.ContextVar[Any] = contextvars.ContextVar("VAR", default="unset")


def test_a_goroutine_starts_with_a_copy_of_its_creators_context(procs: int) -> None:
    async def child() -> Any:
        seen = VAR.get()
        VAR.set("child's")
        await gofer.sleep(0.001)
        assert VAR.get() == "child's"
        return seen

    async def main() -> None:
        assert VAR.get() == "unset"
        before = gofer.go(child)
        VAR.set("main's")
        after = gofer.go(child)
        VAR.set("main's later")
        assert await before == "unset"
        assert await after == "main's"
        assert VAR.get() == "main's later"

    gofer.run(main, procs=procs)
    assert VAR.get() == "unset"


def test_variables_of_many_goroutines_do_not_mix(procs: int) -> None:
    async def child(i: int) -> bool:
        VAR.set(i)
        for n in range(20):
            if n % 3 == 0:
                await gofer.gosched()
            elif n % 3 == 1:
                await gofer.sleep(0.0001)
            else:
                await gofer.go(give, 0)
            if VAR.get() != i:
                return False
        return True

    async def untouched() -> bool:
        for _ in range(50):
            await gofer.gosched()
            if VAR.get() != "unset":
                return False
        return True

    async def main() -> bool:
        gs = [gofer.go(child, i) for i in range(100)]
        gs += [gofer.go(untouched) for _ in range(100)]
        return all([await g for g in gs])

    assert gofer.run(main, procs=procs)


def test_a_token_resets_across_awaits(procs: int) -> None:
    async def child() -> None:
        token = VAR.set(1)
        await gofer.sleep(0.001)
        inner = VAR.set(2)
        await gofer.gosched()
        VAR.reset(inner)
        assert VAR.get() == 1
        await gofer.sleep(0.001)
        VAR.reset(token)
        assert VAR.get() == "unset"
        await gofer.gosched()
        assert VAR.get() == "unset"

    async def main() -> None:
        for g in [gofer.go(child) for _ in range(20)]:
            await g

    gofer.run(main, procs=procs)


def test_a_token_of_another_goroutine_is_refused(procs: int) -> None:
    async def child(token: contextvars.Token[Any]) -> None:
        with pytest.raises(ValueError, match="different Context"):
            VAR.reset(token)

    async def main() -> None:
        token = VAR.set(1)
        await gofer.go(child, token)
        VAR.reset(token)

    gofer.run(main, procs=procs)


def test_decimal_contexts_are_per_goroutine(procs: int) -> None:
    async def child(precision: int) -> bool:
        decimal.setcontext(decimal.Context(prec=precision))
        good = len(str(decimal.Decimal(1) / 3)) == len("0.") + precision
        for _ in range(10):
            await gofer.gosched()
            good &= decimal.getcontext().prec == precision
            with decimal.localcontext() as local:
                local.prec = precision + 1
                await gofer.sleep(0.0001)
                good &= decimal.getcontext().prec == precision + 1
        return good

    async def main() -> bool:
        return all([await g for g in [gofer.go(child, p) for p in range(5, 40)]])

    before = decimal.getcontext().prec
    assert gofer.run(main, procs=procs)
    assert decimal.getcontext().prec == before


def test_go_inside_context_run_takes_that_context(procs: int) -> None:
    async def child() -> Any:
        seen = VAR.get()
        VAR.set("child's")
        await gofer.gosched()
        return seen

    async def main() -> None:
        context = contextvars.copy_context()
        context.run(VAR.set, "inside")
        g = context.run(gofer.go, child)
        assert await g == "inside"
        assert context[VAR] == "inside"
        assert VAR.get() == "unset"
        empty = contextvars.Context()
        VAR.set("main's")
        assert await empty.run(gofer.go, child) == "unset"
        assert VAR.get() == "main's"

    gofer.run(main, procs=procs)


def test_go_from_a_foreign_thread_takes_that_threads_context(procs: int) -> None:
    seen = []

    async def child() -> None:
        seen.append(VAR.get())

    def foreign() -> None:
        VAR.set("the thread's")
        gofer.go(child)

    async def main() -> None:
        with thread(foreign):
            await until(lambda: seen)

    gofer.run(main, procs=procs)
    assert seen == ["the thread's"]


def test_values_in_a_context_die_with_the_goroutine(procs: int) -> None:
    class Big:
        pass

    async def child() -> weakref.ref[Big]:
        big = Big()
        VAR.set(big)
        await gofer.gosched()
        return weakref.ref(big)

    async def main() -> None:
        ref = await gofer.go(child)
        await gone(ref, procs)

    gofer.run(main, procs=procs)


# --- Exceptions -----------------------------------------------------------------------------------


def note_of(exc: BaseException) -> str:
    (note,) = exc.__notes__
    return note


def test_an_exception_is_taken_by_await(procs: int) -> None:
    async def main() -> str:
        g = gofer.go(fail)
        with pytest.raises(Oops) as info:
            await g
        assert not hasattr(info.value, "__notes__")
        names = [entry.name for entry in info.traceback]
        assert names[0] == "main"
        assert names[-1] == "fail"
        return "fine"

    assert gofer.run(main, procs=procs) == "fine"


def test_an_exception_is_taken_by_exception_and_by_result(procs: int) -> None:
    async def main() -> str:
        a, b = gofer.go(fail), gofer.go(fail)
        await until(a.done)
        await until(b.done)
        assert isinstance(a.exception(), Oops)
        with pytest.raises(Oops):
            b.result()
        del a, b
        await gofer.sleep(0.001)
        return "fine"

    assert gofer.run(main, procs=procs) == "fine"


def test_a_held_handle_keeps_the_exception(procs: int) -> None:
    async def main() -> str:
        g = gofer.go(fail)
        await until(g.done)
        gc.collect()
        await gofer.sleep(0.01)
        with pytest.raises(Oops):
            await g
        return "fine"

    assert gofer.run(main, procs=procs) == "fine"


def test_the_exception_of_a_dropped_handle_is_raised_by_run_with_a_note(procs: int) -> None:
    async def fails_below() -> None:
        await gofer.sleep(0.001)
        await fail("lost?")

    async def main() -> str:
        gofer.go(fails_below, name="worker")
        lines.append(here(-1))
        try:
            await sleep_long()
        finally:
            lines.append("main cleaned up")
        return "not reached"

    lines: list[str] = []
    with pytest.raises(Oops, match=r"lost\?") as info:
        gofer.run(main, procs=procs)
    failed_line = inspect.getsourcelines(fail)[1] + 1
    note = note_of(info.value)
    match = re.fullmatch(
        r"goroutine (\d+) \(worker\), created at (.*), failed at (.*), and nobody awaited it", note
    )
    assert match, note
    assert int(match[1]) > 1
    assert match[2] == lines[0]
    assert match[3] == f"{__file__}:{failed_line}"
    assert lines[1:] == ["main cleaned up"]


def test_a_handle_dropped_after_the_failure_lets_it_out(procs: int) -> None:
    async def main() -> None:
        g = gofer.go(fail, "late")
        await until(g.done)
        del g
        await sleep_long()

    with pytest.raises(Oops, match="late") as info:
        gofer.run(main, procs=procs)
    assert "nobody awaited it" in note_of(info.value)


def test_a_handle_that_main_drops_by_ending_lets_the_failure_out(procs: int) -> None:
    async def main() -> str:
        g = gofer.go(fail, "at the end")
        await until(g.done)
        return "not seen"

    with pytest.raises(Oops, match="at the end"):
        gofer.run(main, procs=procs)


def test_a_failure_in_a_cycle_is_found_by_the_collector(procs: int) -> None:
    async def main() -> None:
        cycle: list[Any] = []
        cycle.append(cycle)
        cycle.append(gofer.go(fail, "in a cycle"))
        await until(cycle[1].done)
        del cycle
        gc.collect()
        await sleep_long()

    with pytest.raises(Oops, match="in a cycle"):
        gofer.run(main, procs=procs)


def test_a_handle_dropped_after_the_run_is_unraisable_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unraisable: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(args.exc_value))

    async def main() -> list[gofer.Goroutine[Any]]:
        g = gofer.go(fail, "kept")
        await until(g.done)
        return [g]

    handles = gofer.run(main)
    assert not unraisable
    handles.clear()
    (exc,) = unraisable
    assert isinstance(exc, Oops)
    assert "nobody awaited it" in note_of(exc)


def test_what_comes_out_while_run_returns_belongs_to_this_run_not_to_the_next(
    procs: int,
) -> None:
    """main's result, which nobody will see, holds a failed goroutine."""

    async def main() -> list[gofer.Goroutine[Any]]:
        held = gofer.go(fail, "held")
        gofer.go(fail, "dropped")
        with pytest.raises(gofer.Cancelled):
            await sleep_long()
        await until(held.done)
        return [held]

    with pytest.raises(Oops, match=r"dropped|held") as info:
        gofer.run(main, procs=procs)
    told = [str(info.value)]
    if info.value.__context__ is not None:
        told.append(str(info.value.__context__))
    assert sorted(told) == ["dropped", "held"]
    assert gofer.run(give, 5, procs=procs) == 5


def test_of_several_untaken_failures_none_is_lost(procs: int) -> None:
    async def main() -> None:
        for i in range(5):
            gofer.go(fail, str(i))
        await sleep_long()

    with pytest.raises(Oops) as info:
        gofer.run(main, procs=procs)
    texts = []
    exc: BaseException | None = info.value
    while exc is not None:
        texts.append(str(exc))
        assert "nobody awaited it" in note_of(exc)
        exc = exc.__context__
    # Those that had not begun when the first one failed were cancelled.
    assert len(set(texts)) == len(texts)
    assert set(texts) <= set("01234")


def test_an_untaken_failure_beside_an_exception_of_main_shows_both(procs: int) -> None:
    async def main() -> None:
        gofer.go(fail, "goroutine")
        try:
            await sleep_long()
        finally:
            raise ValueError("main")

    with pytest.raises(Oops, match="goroutine") as info:
        gofer.run(main, procs=procs)
    seen = []
    exc = info.value.__context__
    while exc is not None:
        seen.append(type(exc))
        exc = exc.__context__
    assert ValueError in seen


def test_main_cannot_swallow_an_untaken_failure(procs: int) -> None:
    async def main() -> str:
        gofer.go(fail)
        with pytest.raises(gofer.Cancelled):
            await sleep_long()
        return "swallowed"

    with pytest.raises(Oops):
        gofer.run(main, procs=procs)


class CustomBase(BaseException):
    pass


@pytest.mark.parametrize(
    "exc",
    [SystemExit(3), KeyboardInterrupt("raised"), GeneratorExit("raised"), CustomBase("raised")],
    ids=lambda exc: type(exc).__name__,
)
def test_base_exceptions_are_kept_and_raised_like_others(exc: BaseException, procs: int) -> None:
    async def raises() -> None:
        await gofer.gosched()
        raise exc

    async def taken() -> str:
        g = gofer.go(raises)
        with pytest.raises(type(exc)) as info:
            await g
        assert info.value is exc
        assert g.exception() is exc
        assert not g.cancelled()
        return "fine"

    async def untaken() -> None:
        gofer.go(raises)
        await sleep_long()

    assert gofer.run(taken, procs=procs) == "fine"
    assert not hasattr(exc, "__notes__")
    with pytest.raises(type(exc)) as info:
        gofer.run(untaken, procs=procs)
    assert info.value is exc
    assert "nobody awaited it" in note_of(exc)
    del exc.__notes__
    with pytest.raises(type(exc)) as info:
        gofer.run(raises, procs=procs)
    assert info.value is exc
    assert not hasattr(exc, "__notes__")
    exc.__traceback__ = None


def test_stop_iteration_becomes_a_runtime_error_as_in_any_coroutine(procs: int) -> None:
    async def raises() -> None:
        raise StopIteration(5)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="coroutine raised StopIteration"):
            await gofer.go(raises)

    gofer.run(main, procs=procs)


def test_one_exception_may_be_awaited_by_many(procs: int) -> None:
    async def slow_fail() -> None:
        await gofer.sleep(0.005)
        raise Oops

    async def main() -> None:
        g = gofer.go(slow_fail)
        waiters = [gofer.go(wait_for, g) for _ in range(20)]
        for w in waiters:
            with pytest.raises(Oops) as info:
                await w
            assert info.value is g.exception()

    gofer.run(main, procs=procs)


def test_an_exception_raised_again_by_an_awaiter_that_is_dropped_names_the_awaiter() -> None:
    async def main() -> None:
        g = gofer.go(fail, name="inner")
        gofer.go(wait_for, g, name="outer")
        await sleep_long()

    with pytest.raises(Oops) as info:
        gofer.run(main)
    assert "(outer)" in note_of(info.value)


async def recurse(depth: int) -> int:
    if depth == 0:
        await gofer.gosched()
        return 0
    return 1 + await recurse(depth - 1)


def test_endless_recursion_ends_only_the_goroutine_that_does_it(procs: int) -> None:
    async def main() -> int:
        g = gofer.go(recurse, 10_000_000)
        with pytest.raises(RecursionError):
            await g
        return await gofer.go(recurse, 10)

    assert gofer.run(main, procs=procs) == 10


def test_recursion_of_200_awaits_is_fine(procs: int) -> None:
    async def main() -> list[int]:
        return [await g for g in [gofer.go(recurse, 200) for _ in range(20)]]

    assert gofer.run(main, procs=procs) == [200] * 20


# --- Many -----------------------------------------------------------------------------------------


def test_a_chain_of_ten_thousand_each_awaiting_the_next(procs: int) -> None:
    async def link(n: int) -> int:
        return 0 if n == 0 else 1 + await gofer.go(link, n - 1)

    assert gofer.run(link, 10_000, procs=procs) == 10_000


@pytest.mark.parametrize("procs", [1, 2])
def test_a_million_goroutines(procs: int) -> None:
    n = 100_000 if SANITIZED else 1_000_000

    async def child(i: int) -> int:
        return i

    async def main() -> int:
        gs = [gofer.go(child, i) for i in range(n)]
        return sum([await g for g in gs])

    start = time.monotonic()
    assert gofer.run(main, procs=procs) == n * (n - 1) // 2
    assert time.monotonic() - start < 60


def test_a_hundred_thousand_parked_at_once(procs: int) -> None:
    n = 10_000 if SANITIZED else 100_000
    woken = 0
    lock = threading.Lock()

    async def child(gate: gofer.Goroutine[None]) -> None:
        nonlocal woken
        await gate
        with lock:
            woken += 1

    async def gate() -> None:
        await until(lambda: opened)

    async def main() -> None:
        g = gofer.go(gate)
        gs = [gofer.go(child, g) for _ in range(n)]
        await parked(gs[0], gs[-1])
        opened.append(1)
        for child_ in gs:
            await child_

    opened: list[int] = []
    gofer.run(main, procs=procs)
    assert woken == n


def test_handles_of_goroutines_that_never_ran_say_cancelled_after_the_run() -> None:
    async def main() -> list[gofer.Goroutine[int]]:
        return [gofer.go(give, i) for i in range(10)]

    handles = gofer.run(main, procs=1)
    assert all(g.cancelled() for g in handles)
    assert all(isinstance(g.exception(), gofer.Cancelled) for g in handles)
