"""singleflight: one call for all who ask the same at the same time."""

from typing import Any

import pytest

import gofer
from gofer import context
from gofer.singleflight import Flight
from tests.support import here, parked, until
from tests.sync_support import outcome, waiting


class Call:
    """A function that is called, and returns when it is told what."""

    def __init__(self) -> None:
        self.calls = 0
        self.answer = gofer.Chan[Any]()

    async def __call__(self, *args: Any) -> Any:
        self.calls += 1
        answer = await self.answer.recv()
        if isinstance(answer, BaseException):
            raise answer
        return (*args, answer) if args else answer


def test_those_who_ask_at_the_same_time_share_one_call(procs: int) -> None:
    async def main() -> None:
        flight, call = Flight(), Call()
        gs = [gofer.go(flight.do, "key", call, 1, 2) for _ in range(10)]
        await parked(*gs)
        await call.answer.send(3)
        values = [await g for g in gs]
        assert call.calls == 1
        assert values == [(1, 2, 3)] * 10
        assert all(value is values[0] for value in values)

    gofer.run(main, procs=procs)


def test_afterwards_it_is_called_anew(procs: int) -> None:
    async def main() -> None:
        flight, call = Flight(), Call()
        for n in range(1, 5):
            g = gofer.go(flight.do, "key", call)
            await call.answer.send(n)
            assert await g == n
            assert call.calls == n

    gofer.run(main, procs=procs)


def test_other_keys_are_other_calls(procs: int) -> None:
    async def main() -> None:
        flight, calls = Flight(), [Call() for _ in range(5)]
        gs = [await waiting(flight.do(i, call)) for i, call in enumerate(calls)]
        for i, call in enumerate(calls):
            await call.answer.send(10 * i)
            assert call.calls == 1
        assert [await g for g in gs] == [0, 10, 20, 30, 40]

    gofer.run(main, procs=procs)


def test_plain_functions_are_fine() -> None:
    async def main() -> None:
        flight = Flight()
        assert await flight.do("key", divmod, 7, 3) == (2, 1)
        result: Any = await flight.do("key", lambda: None)
        assert result is None

    gofer.run(main)


def test_a_plain_function_may_block(procs: int) -> None:
    """It runs as a plain goroutine."""

    async def main() -> None:
        flight, answer = Flight(), gofer.Chan[int]()
        gs = [await waiting(flight.do("key", lambda: gofer.block(answer.recv()))) for _ in range(3)]
        await answer.send(7)
        assert [await g for g in gs] == [7, 7, 7]

    gofer.run(main, procs=procs)


def test_one_that_could_not_be_started_is_started_by_the_next(procs: int) -> None:
    async def main() -> None:
        flight = Flight()
        nothing: Any = None
        with pytest.raises(TypeError):
            await flight.do("key", nothing)
        assert await flight.do("key", divmod, 7, 3) == (2, 1)

    gofer.run(main, procs=procs)


def test_its_goroutine_says_where_it_was_asked_for(procs: int) -> None:
    sites: list[str] = []

    async def main() -> None:
        async def look() -> None:
            sites.append(gofer.current().created_at)

        await Flight().do("key", look)
        sites.append(here(-1))

    gofer.run(main, procs=procs)
    assert sites[0] == sites[1]


def test_all_get_the_exception(procs: int) -> None:
    async def main() -> None:
        flight, call = Flight(), Call()
        gs = [await waiting(flight.do("key", call)) for _ in range(5)]
        failure = KeyError("for all")
        await call.answer.send(failure)
        for g in gs:
            with pytest.raises(KeyError) as info:
                await g
            assert info.value is failure
        again = gofer.go(flight.do, "key", call)
        await call.answer.send("better")
        assert await again == "better"
        assert call.calls == 2

    gofer.run(main, procs=procs)


def test_a_caller_that_is_cancelled_does_not_stop_it_for_others(procs: int) -> None:
    """Not even the first, who caused the call."""

    async def main() -> None:
        flight, call = Flight(), Call()
        gs = [await waiting(flight.do("key", call)) for _ in range(3)]
        for i in (0, 2):
            gs[i].cancel()
            with pytest.raises(gofer.Cancelled):
                await gs[i]
        late = await waiting(flight.do("key", call))
        await call.answer.send("value")
        assert await gs[1] == await late == "value"
        assert call.calls == 1

    gofer.run(main, procs=procs)


def test_it_goes_on_although_nobody_is_left(procs: int) -> None:
    async def main() -> None:
        flight, call = Flight(), Call()
        g = await waiting(flight.do("key", call))
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        second = await waiting(flight.do("key", call))
        await call.answer.send("value")
        assert await second == "value"
        assert call.calls == 1

    gofer.run(main, procs=procs)


def test_the_context_of_the_first_caller_is_not_that_of_the_call(procs: int) -> None:
    async def main() -> None:
        flight, call = Flight(), Call()

        async def caller(ctx: context.Context) -> str:
            async with ctx:
                await flight.do("key", call)
            return "cancelled"

        ctx = context.with_cancel()
        first = gofer.go(caller, ctx)
        await until(lambda: call.calls)
        second = await waiting(flight.do("key", call))
        ctx.cancel()
        assert await first == "cancelled"
        await call.answer.send("value")
        assert await second == "value"
        assert call.calls == 1

    gofer.run(main, procs=procs)


def test_one_who_has_been_cancelled_starts_nothing(procs: int) -> None:
    async def main() -> None:
        flight, call = Flight(), Call()

        async def cancelled() -> str:
            gofer.current().cancel()
            return await outcome(flight.do("key", call))

        assert await gofer.go(cancelled) == "cancelled"
        ctx = context.with_cancel()
        async with ctx:
            ctx.cancel()
            await flight.do("key", call)
        await gofer.gosched()
        assert call.calls == 0

    gofer.run(main, procs=procs)


def test_forget_lets_the_next_caller_start_anew(procs: int) -> None:
    async def main() -> None:
        flight, old, new = Flight(), Call(), Call()
        first = await waiting(flight.do("key", old))
        flight.forget("key")
        flight.forget("nothing there")
        second = await waiting(flight.do("key", new))
        await until(lambda: (old.calls, new.calls) == (1, 1))
        await old.answer.send("old")
        assert await first == "old"
        third = await waiting(flight.do("key", old))  # the end of the old call changes nothing
        await new.answer.send("new")
        assert await second == await third == "new"
        assert (old.calls, new.calls) == (1, 1)

    gofer.run(main, procs=procs)


def test_the_key_may_be_asked_for_again_from_within(procs: int) -> None:
    """For another key; for its own it would wait for itself."""

    async def main() -> None:
        flight = Flight()

        async def factorial(n: int) -> int:
            return n * await flight.do(n - 1, factorial, n - 1) if n else 1

        assert await flight.do(10, factorial, 10) == 3628800

    gofer.run(main, procs=procs)


def test_an_unhashable_key_is_a_type_error() -> None:
    async def main() -> None:
        flight, call = Flight(), Call()
        key: Any = []
        with pytest.raises(TypeError):
            await flight.do(key, call)
        assert call.calls == 0

    gofer.run(main)


def test_keys_are_equal_if_python_says_so() -> None:
    async def main() -> None:
        flight, call = Flight(), Call()
        gs = [await waiting(flight.do(key, call)) for key in (1, 1.0, True)]
        await call.answer.send("one")
        assert [await g for g in gs] == ["one"] * 3
        assert call.calls == 1

    gofer.run(main)


def test_a_flight_that_a_run_has_cut_off_works_in_the_next(procs: int) -> None:
    flight = Flight()

    async def first(began: bool) -> None:
        gofer.go(flight.do, "key", Call())
        if began:
            await until(lambda: gofer.num_goroutine() == 3)

    async def second() -> str:
        return str(await flight.do("key", lambda: "value"))

    for began in (False, True):
        gofer.run(first, began, procs=procs)
        assert gofer.run(second, procs=procs) == "value"


def test_the_goroutine_of_the_call_has_a_telling_name() -> None:
    names: list[str] = []

    async def fetch() -> None:
        names.append(gofer.current().name)

    async def main() -> None:
        await Flight().do("key", fetch)

    gofer.run(main)
    assert "singleflight" in names[0]
    assert "fetch" in names[0]
