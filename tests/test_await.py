"""What a goroutine may await, and what happens if it awaits something else."""

import asyncio
import contextlib
import gc
import sys
import types
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import RING_SIZE, give, gone, parked, run_program, sleep_long, until, wait_for

# --- Awaitables of others -------------------------------------------------------------------------


class Foreign:
    """An awaitable that suspends with an object of its own, as other frameworks' do."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)

    def __repr__(self) -> str:
        return "<a foreign awaitable>"


@types.coroutine
def bare_yield() -> Generator[None, None, None]:
    yield


@pytest.fixture
def future() -> Iterator[asyncio.Future[None]]:
    loop = asyncio.new_event_loop()
    yield loop.create_future()
    loop.close()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Foreign, "<a foreign awaitable>"),
        (bare_yield, "a bare `yield`"),
        (lambda: asyncio.sleep(0), "a bare `yield`"),
    ],
    ids=["awaitable", "bare yield", "asyncio.sleep(0)"],
)
def test_a_foreign_awaitable_is_a_type_error_that_names_it(
    make: Callable[[], Awaitable[Any]], text: str, procs: int
) -> None:
    async def child() -> str:
        try:
            await make()
        except TypeError as exc:
            return str(exc)
        return "no error"

    async def main() -> str:
        return await gofer.go(child)

    assert text in gofer.run(main, procs=procs)


def test_an_asyncio_future_is_a_type_error_that_names_it(
    future: asyncio.Future[None], procs: int
) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match=r"cannot await <Future.*asyncio"):
            await future

    gofer.run(main, procs=procs)


def test_after_a_foreign_awaitable_the_goroutine_goes_on(procs: int) -> None:
    async def main() -> str:
        for _ in range(100):
            with pytest.raises(TypeError):
                await Foreign()
            await gofer.sleep(0.00001)
            with pytest.raises(TypeError):
                await bare_yield()
            await gofer.gosched()
        return await gofer.go(give, "went on")

    assert gofer.run(main, procs=procs) == "went on"


def test_one_that_insists_is_told_every_time(procs: int) -> None:
    errors = []

    @types.coroutine
    def stubborn() -> Generator[Any, Any, str]:
        for i in range(5):
            try:
                yield i
            except TypeError as exc:
                errors.append(str(exc))
        return "gave up"

    async def main() -> str:
        return await stubborn()

    assert gofer.run(main, procs=procs) == "gave up"
    assert len(errors) == 5
    assert "cannot await 4" in errors[4]


def test_uncaught_it_ends_the_goroutine(procs: int) -> None:
    async def child() -> None:
        await Foreign()

    async def main() -> None:
        g = gofer.go(child)
        with pytest.raises(TypeError, match="foreign awaitable"):
            await g

    gofer.run(main, procs=procs)


def test_a_yielded_object_whose_repr_fails_does_no_harm() -> None:
    class Bad:
        def __await__(self) -> Generator[Any, Any, None]:
            yield self

        def __repr__(self) -> str:
            raise ValueError("no repr")

    async def main() -> str:
        with pytest.raises((TypeError, ValueError)):
            await Bad()
        await gofer.sleep(0.001)
        return "went on"

    assert gofer.run(main) == "went on"


def test_one_that_waits_by_hand_for_an_operation_may_still_await_nothing_foreign() -> None:
    """An operation that a hand-driven coroutine has begun is not what the goroutine waits for."""

    async def inner() -> None:
        await gofer.sleep(0.001)

    async def yields() -> None:
        await gofer.gosched()

    async def main() -> None:
        for make in (inner, yields):
            coro = make()
            coro.send(None)
            with pytest.raises(TypeError, match="bare `yield`"):
                await bare_yield()
            coro.close()
            await gofer.sleep(0.002)

    gofer.run(main, procs=1)


def test_an_operation_begun_by_hand_leaves_nothing_behind(procs: int) -> None:
    """What is left of it ends with the run: no timer wakes anybody in the next one."""

    async def main() -> str:
        for _ in range(10):
            coro = sleep_long()
            coro.send(None)
            coro.close()
            await gofer.gosched()
        return "fine"

    assert gofer.run(main, procs=procs) == "fine"
    assert _core.counters()["timers"] == 0


def test_awaitables_made_of_ours_work(procs: int) -> None:
    class Wrapped:
        def __await__(self) -> Generator[Any, Any, str]:
            yield from gofer.sleep(0.0001).__await__()
            value: str = yield from gofer.go(give, "value").__await__()
            yield from gofer.gosched().__await__()
            return value

    class Delegating:
        def __await__(self) -> Generator[Any, Any, str]:
            return wait_for(Wrapped()).__await__()

    async def main() -> list[str]:
        return [await Wrapped(), await Delegating(), await wait_for(Delegating())]

    assert gofer.run(main, procs=procs) == ["value"] * 3


# --- Operations, and who may await them -----------------------------------------------------------


def test_an_operation_does_nothing_until_it_is_awaited() -> None:
    async def main() -> None:
        op = gofer.sleep(0.001)
        gofer.gosched()
        gofer.go(give, 1).__await__()
        assert _core.counters()["timers"] == 0
        assert "not awaited" in repr(op)
        await op
        assert "done" in repr(op)

    gofer.run(main)


def test_an_operation_can_be_awaited_once(procs: int) -> None:
    async def main() -> None:
        for seconds in (0, 0.001):
            op = gofer.sleep(seconds)
            await op
            with pytest.raises(RuntimeError, match="awaited already"):
                await op
        join = gofer.go(wait_for, gofer.sleep(0.001)).__await__()
        assert await wait_for_iterator(join) is None
        with pytest.raises(RuntimeError, match="awaited already"):
            await wait_for_iterator(join)

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("how", ["awaited", "by hand", "found by the collector"])
@pytest.mark.parametrize("kind", ["channel", "mutex"])
def test_an_operation_that_somebody_holds_is_his(kind: str, how: str, procs: int) -> None:
    """The engine uses finished operations again, but only those that nobody can see any more."""

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan(20)
        mutexes = [gofer.Mutex() for _ in range(20)]
        held: list[Any] = []

        def make(i: int) -> Any:
            op: Any = ch.send(i) if kind == "channel" else mutexes[i].lock()
            assert not any(op is other for other in held)
            return op

        for i in range(20):
            if how == "awaited":
                op = make(i)
                await op
                held.append(op)
            elif how == "by hand":
                op = make(i)
                with contextlib.suppress(StopIteration):
                    while True:  # it is done at once, but asks for a pause when the slice is over
                        op.__next__()  # called through a reference that is not counted, on 3.14
                held.append(op)
            else:
                await make(i)
                held += [o for o in gc.get_objects() if type(o).__name__ in ("ChanOp", "SyncOp")]
        for op in held:
            assert "done" in repr(op)
            with pytest.raises(RuntimeError, match="awaited already"):
                await op
            if kind == "channel":
                with pytest.raises(RuntimeError, match="awaited already"):
                    await gofer.select(op, default=True)
        if kind == "channel":
            assert [await ch.recv() for _ in range(20)] == list(range(20))
        assert all(mu.locked() == (kind == "mutex") for mu in mutexes)

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("awaited", [True, False])
def test_a_finished_operation_keeps_nothing_alive(awaited: bool, procs: int) -> None:
    async def lock(mu: gofer.Mutex) -> None:
        op = mu.lock()
        if awaited:
            del op
            await mu.lock()

    async def send(ch: gofer.Chan[int]) -> None:
        op = ch.send(1)
        if awaited:
            del op
            await ch.send(1)

    async def main() -> None:
        mu, ch = gofer.Mutex(), gofer.Chan[int](2)
        refs = weakref.ref(mu), weakref.ref(ch)
        await lock(mu)
        await send(ch)
        del mu, ch
        for ref in refs:
            await gone(ref, procs)

    gofer.run(main, procs=procs)


async def wait_for_iterator(op: Any) -> Any:
    """Operations are their own iterators, and awaitable as such."""
    return await op


@pytest.mark.parametrize("kind", ["sleep", "join"])
def test_an_operation_that_one_goroutine_awaits_is_refused_to_another(
    kind: str, procs: int
) -> None:
    async def slow() -> str:
        await gofer.sleep(0.05)
        return "slept"

    async def main() -> None:
        op: Any = gofer.sleep(0.05) if kind == "sleep" else gofer.go(slow).__await__()
        first = gofer.go(wait_for_iterator, op)
        await parked(first)
        second = gofer.go(wait_for_iterator, op)
        with pytest.raises(RuntimeError, match="already awaited by another goroutine"):
            await second
        assert await first == (None if kind == "sleep" else "slept")

    gofer.run(main, procs=procs)


def test_an_operation_whose_await_was_cancelled_is_over(procs: int) -> None:
    async def main() -> None:
        op = gofer.sleep(1000)
        g = gofer.go(wait_for, op)
        await parked(g)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        with pytest.raises(RuntimeError, match="awaited already"):
            await op

    gofer.run(main, procs=procs)


def test_an_operation_made_outside_a_runtime_can_be_awaited_inside() -> None:
    op = gofer.sleep(0.001)
    yielding = gofer.gosched()

    async def main() -> None:
        await op
        await yielding

    gofer.run(main)


@pytest.mark.parametrize(
    "make", [lambda: gofer.sleep(1), lambda: gofer.sleep(0), gofer.gosched], ids=repr
)
def test_await_outside_a_runtime_is_a_runtime_error(make: Callable[[], Awaitable[Any]]) -> None:
    coro = wait_for(make())
    with pytest.raises(RuntimeError, match=r"inside a goroutine.*gofer\.run"):
        coro.send(None)


def test_await_of_a_goroutine_outside_a_runtime_is_a_runtime_error() -> None:
    async def main() -> gofer.Goroutine[int]:
        g = gofer.go(give, 1)
        await g
        return g

    coro = wait_for(gofer.run(main))
    with pytest.raises(RuntimeError, match=r"inside a goroutine.*gofer\.run"):
        coro.send(None)


def test_await_under_asyncio_is_a_runtime_error() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"inside a goroutine.*gofer\.run"):
            await gofer.sleep(0.001)

    asyncio.run(main())


def test_a_goroutine_that_awaits_itself_is_told_so(procs: int) -> None:
    async def main() -> None:
        me = gofer.current()
        with pytest.raises(RuntimeError, match="goroutine 1 awaits itself"):
            await me
        await gofer.sleep(0.001)

    gofer.run(main, procs=procs)


def test_many_may_await_one_goroutine(procs: int) -> None:
    async def slow() -> object:
        await gofer.sleep(0.01)
        return value

    async def main() -> None:
        target = gofer.go(slow)
        waiters = [gofer.go(wait_for, target) for _ in range(1000)]
        assert all([await w is value for w in waiters])
        assert await target is value

    value = object()
    gofer.run(main, procs=procs)


# How many fit into the ring: beyond it, the order of the queues is another matter.
FEW = min(20, RING_SIZE // 2)


def test_awaiters_are_woken_in_the_order_they_came() -> None:
    came: list[int] = []
    woken: list[int] = []

    async def waiter(i: int, target: gofer.Goroutine[None]) -> None:
        came.append(i)
        await target
        woken.append(i)

    async def slow() -> None:
        await gofer.sleep(0.01)

    async def main() -> None:
        target = gofer.go(slow)
        waiters = [gofer.go(waiter, i, target) for i in range(FEW)]
        for w in waiters:
            await w

    gofer.run(main, procs=1)
    assert sorted(woken) == list(range(FEW))
    assert woken == came


def test_the_order_of_awaiters_survives_cancellations_in_the_middle() -> None:
    came: list[int] = []
    woken: list[int] = []
    gone = {i for i in (0, 7, 8, 19) if i < FEW}

    async def waiter(i: int, target: gofer.Goroutine[None]) -> None:
        came.append(i)
        await target
        woken.append(i)

    async def slow() -> None:
        await until(lambda: all(waiters[i].done() for i in gone))
        await gofer.sleep(0.01)

    async def main() -> None:
        target = gofer.go(slow)
        waiters.extend(gofer.go(waiter, i, target) for i in range(FEW))
        await parked(*waiters)
        for i in gone:
            assert waiters[i].cancel()
        for w in waiters:
            with contextlib.suppress(gofer.Cancelled):
                await w

    waiters: list[gofer.Goroutine[None]] = []
    gofer.run(main, procs=1)
    waiters.clear()
    assert woken == [i for i in came if i not in gone]


# --- Async generators -----------------------------------------------------------------------------


async def numbers(n: int, closed: list[str]) -> AsyncGenerator[int, None]:
    try:
        for i in range(n):
            await gofer.sleep(0.0001)
            yield i
    finally:
        await gofer.sleep(0.0001)
        closed.append("closed")


def test_async_for_over_an_async_generator(procs: int) -> None:
    closed: list[str] = []

    async def main() -> list[int]:
        return [i async for i in numbers(20, closed)]

    assert gofer.run(main, procs=procs) == list(range(20))
    assert closed == ["closed"]


def test_async_with_and_comprehensions_and_aclose(procs: int) -> None:
    steps: list[str] = []

    @contextlib.asynccontextmanager
    async def managed() -> AsyncIterator[str]:
        await gofer.sleep(0.0001)
        steps.append("enter")
        try:
            yield "managed"
        finally:
            await gofer.gosched()
            steps.append("exit")

    async def main() -> None:
        async with managed() as m:
            steps.append(m)
        with pytest.raises(ValueError, match="inside"):
            async with managed():
                raise ValueError("inside")
        agen = numbers(5, steps)
        assert await anext(agen) == 0
        await agen.aclose()
        async with contextlib.aclosing(numbers(5, steps)) as closing:
            async for _ in closing:
                break

    gofer.run(main, procs=procs)
    assert steps == ["enter", "managed", "exit", "enter", "exit", "closed", "closed"]


def test_a_generator_left_early_is_closed_when_it_is_collected(procs: int) -> None:
    closed: list[str] = []

    async def main() -> None:
        async for _ in numbers(5, closed):
            break
        gc.collect()
        await until(lambda: closed)

    gofer.run(main, procs=procs)
    assert closed == ["closed"]


def test_a_generator_still_alive_is_closed_at_the_end_of_the_run(procs: int) -> None:
    closed: list[str] = []
    kept: list[Any] = []

    async def main() -> None:
        for _ in range(10):
            agen = numbers(5, closed)
            kept.append(agen)
            await anext(agen)

    gofer.run(main, procs=procs)
    assert closed == ["closed"] * 10
    kept.clear()
    assert closed == ["closed"] * 10


def test_one_that_is_used_by_another_goroutine_than_its_maker(procs: int) -> None:
    closed: list[str] = []

    async def take(agen: AsyncGenerator[int, None]) -> int:
        return await anext(agen)

    async def main() -> list[int]:
        agen = numbers(10, closed)
        return [await gofer.go(take, agen) for _ in range(5)]

    assert gofer.run(main, procs=procs) == [0, 1, 2, 3, 4]
    assert closed == ["closed"]


def test_an_exception_while_one_is_closed_at_the_end_is_not_lost() -> None:
    kept = []

    async def bad() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise ValueError("in its finally")

    async def main() -> None:
        agen = bad()
        kept.append(agen)
        await anext(agen)

    with pytest.raises(ValueError, match="in its finally"):
        gofer.run(main)


def test_one_that_fails_to_close_does_not_keep_the_others_open() -> None:
    closed: list[str] = []
    kept: list[Any] = []

    async def bad() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise ValueError("in its finally")

    async def main() -> None:
        for agen in (numbers(5, closed), bad(), numbers(5, closed), bad(), numbers(5, closed)):
            kept.append(agen)
            await anext(agen)

    with pytest.raises(ValueError, match="in its finally"):
        gofer.run(main)
    assert closed == ["closed"] * 3


def test_the_hooks_of_the_caller_are_restored(procs: int) -> None:
    def mine(agen: Any) -> None:
        raise AssertionError("the caller's hooks are not for our generators")

    async def main() -> None:
        assert sys.get_asyncgen_hooks().finalizer is not mine
        async for _ in numbers(3, []):
            pass

    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=mine, finalizer=mine)
    try:
        gofer.run(main, procs=procs)
        assert sys.get_asyncgen_hooks() == (mine, mine)
        with pytest.raises(ZeroDivisionError):
            gofer.run(wait_for, divide())
        assert sys.get_asyncgen_hooks() == (mine, mine)
    finally:
        sys.set_asyncgen_hooks(*before)


async def divide() -> float:
    return 1 / 0


# --- Under a tracer -------------------------------------------------------------------------------


async def everything() -> list[Any]:
    """All kinds of await, for the tests below."""
    closed: list[str] = []

    async def child(i: int) -> tuple[int, int]:
        await gofer.sleep(0.0001)
        await gofer.gosched()
        return i, i

    async def cancelled() -> Exception:
        try:
            await sleep_long()
        except gofer.Cancelled:
            return StopIteration(1)
        raise AssertionError

    gs = [gofer.go(child, i) for i in range(5)]
    results: list[Any] = [await g for g in gs]
    results.append([i async for i in numbers(3, closed)])
    g = gofer.go(cancelled)
    await parked(g)
    g.cancel()
    results.append(repr(await g))
    await gofer.sleep(0)
    try:
        await Foreign()
    except TypeError:
        results.append("TypeError")
    return results


EVERYTHING = [(i, i) for i in range(5)] + [[0, 1, 2], "StopIteration(1)", "TypeError"]


def test_everything_works_without_a_tracer(procs: int) -> None:
    assert gofer.run(everything, procs=procs) == EVERYTHING


def test_everything_works_under_settrace(procs: int) -> None:
    lines = 0

    def trace(frame: types.FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = gofer.run(everything, procs=procs)
    finally:
        sys.settrace(before)
    assert result == EVERYTHING
    assert lines > 10


def test_everything_works_under_setprofile(procs: int) -> None:
    calls = 0

    def profile(frame: types.FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(profile)
    try:
        result = gofer.run(everything, procs=procs)
    finally:
        sys.setprofile(None)
    assert result == EVERYTHING
    assert calls > 10


def test_everything_works_if_each_goroutine_sets_a_trace_function() -> None:
    async def main() -> list[Any]:
        sys.settrace(lambda frame, event, arg: None)
        try:
            return await everything()
        finally:
            sys.settrace(None)

    before = sys.gettrace()
    try:
        assert gofer.run(main, procs=1) == EVERYTHING
    finally:
        sys.settrace(before)


def test_development_mode_has_nothing_to_complain_about() -> None:
    end = run_program(
        """
        import gofer
        async def child(i):
            await gofer.sleep(0.001)
            return i
        async def main():
            gs = [gofer.go(child, i) for i in range(10)]
            kept = [await g for g in gs]
            gofer.go(child, 1)
            return sum(kept)
        print(gofer.run(main, procs=4))
        """,
        options=("-X", "dev", "-W", "error"),
    )
    assert end.check() == "45\n"
