"""Once and once_value(): whoever comes first does it, the others wait and share."""

import contextlib
import gc
import traceback
import weakref
from typing import Any

import pytest

import gofer
from gofer import context
from tests.support import parked, until, wait_for
from tests.sync_support import outcome, waiting

# --- Once -----------------------------------------------------------------------------------------


def test_of_many_who_come_one_does_it_and_all_wait_for_it(procs: int) -> None:
    calls: list[int] = []
    ready = False

    async def setup() -> None:
        nonlocal ready
        calls.append(1)
        await gofer.sleep(0.001)
        ready = True

    async def user(once: gofer.Once) -> None:
        await once.do(setup)
        assert ready

    async def main() -> None:
        once = gofer.Once()
        gs = [gofer.go(user, once) for _ in range(50)]
        for g in gs:
            await g
        await once.do(setup)

    gofer.run(main, procs=procs)
    assert calls == [1]


def test_plain_functions_and_arguments_are_fine() -> None:
    calls: list[tuple[int, ...]] = []

    def plain(*args: int) -> str:
        calls.append(args)
        return "ignored"

    async def main() -> None:
        once = gofer.Once()
        assert await once.do(plain, 1, 2) is None  # type: ignore[func-returns-value]
        await once.do(plain, 3, 4)

    gofer.run(main)
    assert calls == [(1, 2)]


def test_a_failure_is_raised_once_and_counts_as_done(procs: int) -> None:
    calls: list[int] = []

    async def fails() -> None:
        calls.append(1)
        await gofer.sleep(0.001)
        raise KeyError("first caller")

    async def user(once: gofer.Once) -> str:
        try:
            await once.do(fails)
        except KeyError:
            return "failed"
        return "done"

    async def main() -> None:
        once = gofer.Once()
        gs = [gofer.go(user, once) for _ in range(10)]
        assert sorted([await g for g in gs]) == ["done"] * 9 + ["failed"]
        await once.do(fails)

    gofer.run(main, procs=procs)
    assert calls == [1]


def test_a_plain_function_that_fails_counts_as_done() -> None:
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        raise KeyError

    async def main() -> None:
        once = gofer.Once()
        with pytest.raises(KeyError):
            await once.do(fails)
        for _ in range(3):
            await once.do(fails)

    gofer.run(main)
    assert calls == [1]


def test_goexit_inside_counts_as_done(procs: int) -> None:
    calls: list[int] = []

    async def exits() -> None:
        calls.append(1)
        gofer.goexit()

    async def main() -> None:
        once = gofer.Once()
        await gofer.go(once.do, exits)
        await once.do(exits)

    gofer.run(main, procs=procs)
    assert calls == [1]


def test_a_waiter_that_is_cancelled_disturbs_nobody(procs: int) -> None:
    calls: list[int] = []

    async def main() -> None:
        once = gofer.Once()
        go_on = gofer.Chan[None]()

        async def slow() -> None:
            calls.append(1)
            await go_on.recv()

        first = await waiting(once.do(slow))
        impatient = await waiting(once.do(slow))
        patient = await waiting(once.do(slow))
        impatient.cancel()
        with pytest.raises(gofer.Cancelled):
            await impatient
        assert first.state == patient.state == "waiting"
        await go_on.send(None)
        await first
        await patient

    gofer.run(main, procs=procs)
    assert calls == [1]


@pytest.mark.parametrize("how", ["cancel", "context", "timeout"])
def test_a_caller_that_is_cancelled_while_it_does_it_leaves_it_to_the_next(
    how: str, procs: int
) -> None:
    calls: list[str] = []

    async def main() -> None:
        once = gofer.Once()
        go_on = gofer.Chan[None]()
        ctx = context.with_timeout(0.05) if how == "timeout" else context.with_cancel()

        async def slow(who: str) -> None:
            calls.append(who)
            await go_on.recv()

        async def caller() -> None:
            async with ctx:
                await once.do(slow, "first")

        first = gofer.go(caller)
        await until(lambda: calls)
        others = [await waiting(once.do(slow, f"next {i}")) for i in range(3)]
        if how == "cancel":
            first.cancel()
        elif how == "context":
            ctx.cancel()
        await until(lambda: len(calls) == 2)
        assert calls == ["first", "next 0"]
        with contextlib.suppress(gofer.Cancelled, TimeoutError):
            await first
        assert [g.done() for g in others] == [False] * 3
        await go_on.send(None)
        for g in others:
            await g
        await once.do(slow, "never")

    gofer.run(main, procs=procs)
    assert calls == ["first", "next 0"]


def test_a_caller_that_is_cancelled_with_nobody_behind_it_leaves_it_undone(procs: int) -> None:
    calls: list[int] = []

    async def main() -> None:
        once = gofer.Once()

        async def slow() -> None:
            calls.append(1)
            await gofer.sleep(100_000)

        first = await waiting(once.do(slow))
        first.cancel()
        assert await outcome(first) == "cancelled"
        await once.do(calls.append, 2)
        await once.do(calls.append, 3)

    gofer.run(main, procs=procs)
    assert calls == [1, 2]


def test_a_pending_cancellation_comes_first(procs: int) -> None:
    """Also if it has been done before."""
    calls: list[int] = []

    async def child(once: gofer.Once) -> str:
        gofer.current().cancel()
        return await outcome(once.do(calls.append, 1))

    async def main() -> None:
        once = gofer.Once()
        assert await gofer.go(child, once) == "cancelled"
        assert calls == []
        await once.do(calls.append, 2)
        assert await gofer.go(child, once) == "cancelled"

    gofer.run(main, procs=procs)
    assert calls == [2]


def test_inside_itself_it_is_a_deadlock(procs: int) -> None:
    once = gofer.Once()

    async def again() -> None:
        await once.do(again)

    async def main() -> None:
        await once.do(again)

    with pytest.raises(gofer.Deadlock, match=r"sync\.Mutex\.Lock"):
        gofer.run(main, procs=procs)


# --- once_value() ---------------------------------------------------------------------------------


def test_everybody_gets_the_same_value(procs: int) -> None:
    calls: list[int] = []

    async def load() -> object:
        calls.append(1)
        await gofer.sleep(0.001)
        return object()

    async def main() -> None:
        get = gofer.once_value(load)
        assert calls == []  # not before somebody asks
        gs = [gofer.go(get) for _ in range(20)]
        values = [await g for g in gs] + [await get()]
        assert all(value is values[0] for value in values)

    gofer.run(main, procs=procs)
    assert calls == [1]


def test_a_plain_function_and_none_are_fine() -> None:
    calls: list[int] = []

    def load() -> None:
        calls.append(1)

    async def main() -> None:
        get = gofer.once_value(load)
        for _ in range(3):
            assert await get() is None  # type: ignore[func-returns-value]

    gofer.run(main)
    assert calls == [1]


def test_everybody_gets_the_same_exception(procs: int) -> None:
    calls: list[int] = []

    async def load() -> int:
        calls.append(1)
        await gofer.sleep(0.001)
        raise KeyError("for all")

    async def main() -> None:
        get = gofer.once_value(load)
        gs = [gofer.go(get) for _ in range(10)]
        caught: list[BaseException] = []
        for g in (*gs, gofer.go(get)):
            with pytest.raises(KeyError, match="for all") as info:
                await g
            caught.append(info.value)
        assert all(exc is caught[0] for exc in caught)

    gofer.run(main, procs=procs)
    assert calls == [1]


def test_the_traceback_of_that_exception_does_not_grow() -> None:
    def load() -> int:
        raise KeyError

    async def main() -> None:
        get = gofer.once_value(load)
        depths = set()
        for _ in range(10):
            with pytest.raises(KeyError) as info:
                await get()
            frames = traceback.extract_tb(info.value.__traceback__)
            assert frames[-1].name == "load"
            depths.add(len(frames))
        assert len(depths) == 1

    gofer.run(main)


def test_the_function_is_not_kept_when_it_has_been_called() -> None:
    class Load:
        def __call__(self) -> int:
            return 7

    async def main() -> None:
        load = Load()
        ref = weakref.ref(load)
        get = gofer.once_value(load)
        del load
        assert ref() is not None
        assert await get() == 7
        gc.collect()
        assert ref() is None
        assert await get() == 7

    gofer.run(main)


def test_it_looks_like_the_function() -> None:
    async def load_config() -> int:
        """Read it."""
        return 1

    get = gofer.once_value(load_config)
    assert get.__name__ == "load_config"
    assert get.__doc__ == "Read it."


@pytest.mark.parametrize("fn", [3, None, "load", ["load"]])
def test_what_is_no_function_is_refused_at_once(fn: Any) -> None:
    with pytest.raises(TypeError, match="needs a function") as info:
        gofer.once_value(fn)
    assert repr(fn) in str(info.value)


def test_one_who_waits_for_the_value_may_be_cancelled(procs: int) -> None:
    async def main() -> None:
        go_on = gofer.Chan[int]()

        async def load() -> int:
            return await go_on.recv()

        get = gofer.once_value(load)
        first = gofer.go(get)
        await parked(first)
        second = gofer.go(wait_for, get())
        await parked(second)
        second.cancel()
        await until(second.cancelled)
        await go_on.send(5)
        assert await first == 5
        assert await get() == 5

    gofer.run(main, procs=procs)


def test_one_who_is_cancelled_while_it_makes_the_value_leaves_that_to_the_next(procs: int) -> None:
    calls: list[int] = []

    async def main() -> None:
        go_on = gofer.Chan[int]()

        async def load() -> int:
            calls.append(1)
            return await go_on.recv()

        get = gofer.once_value(load)
        first = await waiting(get())
        others = [await waiting(get()) for _ in range(3)]
        first.cancel()
        assert await outcome(first) == "cancelled"
        await go_on.send(5)
        assert [await g for g in others] == [5, 5, 5]
        assert await get() == 5

    gofer.run(main, procs=procs)
    assert calls == [1, 1]


def test_a_value_that_a_run_has_cut_off_is_made_in_the_next(procs: int) -> None:
    calls: list[int] = []

    async def load() -> int:
        calls.append(1)
        if len(calls) == 1:
            await gofer.sleep(100_000)
        return 7

    get = gofer.once_value(load)

    async def first() -> None:
        await waiting(get())

    gofer.run(first, procs=procs)
    assert gofer.run(get, procs=procs) == 7
    assert calls == [1, 1]
