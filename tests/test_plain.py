"""Plain functions as goroutines: go(fn), run(fn), and block() inside them."""

import contextvars
import functools
import gc
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import Cancelled, Chan, _core, block, context
from tests.support import (
    FREE_THREADED,
    PATIENCE,
    Program,
    all_came_back,
    give,
    here,
    parked,
    run_program,
    sleep_long,
    thread,
    until,
    wait_for,
)


def add(a: int, b: int = 1) -> int:
    """A plain function that ends at once."""
    return a + b


def fail() -> None:
    """One that fails."""
    raise ValueError("as told")


def receive(ch: Chan[Any]) -> Any:
    """One that waits."""
    return block(ch.recv())


def wait_until_left(released: threading.Event) -> None:
    """After a run: those that it has left behind shall come back, and be gone."""
    released.set()
    all_came_back()


# --- Results and exceptions -----------------------------------------------------------------------


def test_its_result_is_what_the_function_returns(procs: int) -> None:
    async def main() -> list[Any]:
        gs: list[Awaitable[Any]] = [
            gofer.go(add, 1, 2),
            gofer.go(add, 1, b=3),
            gofer.go(functools.partial(add, 4)),
            gofer.go(lambda: [1, 2]),
            gofer.go(int, "7"),
            gofer.go("abc".upper),
            gofer.go(len, "four"),
            gofer.go(dict, a=1),
        ]
        return [await g for g in gs]

    assert gofer.run(main, procs=procs) == [3, 4, 5, [1, 2], 7, "ABC", 4, {"a": 1}]


def test_an_instance_with_call_is_a_plain_function() -> None:
    class Adder:
        def __call__(self, a: int) -> int:
            return a + 1

    async def main() -> tuple[int, str]:
        g = gofer.go(Adder(), 1)
        return await g, g.name

    result, name = gofer.run(main)
    assert result == 2
    assert "Adder" in name


def test_a_coroutine_or_an_operation_that_it_returns_is_awaited(procs: int) -> None:
    async def main() -> None:
        ch = Chan[int]()
        assert await gofer.go(lambda: give(3)) == 3
        sender = gofer.go(ch.send, 4)
        assert await gofer.go(ch.recv) == 4
        await sender
        handle = await gofer.go(lambda: gofer.go(give, 5))
        assert await handle == 5

    gofer.run(main, procs=procs)


def test_its_exception_is_raised_where_it_is_awaited(procs: int) -> None:
    async def main() -> None:
        g = gofer.go(fail)
        with pytest.raises(ValueError, match="as told"):
            await g
        assert isinstance(g.exception(), ValueError)
        with pytest.raises(ValueError, match="as told"):
            g.result()

    gofer.run(main, procs=procs)


def test_an_exception_nobody_takes_ends_the_run(procs: int) -> None:
    line = ""

    async def main() -> None:
        nonlocal line
        gofer.go(fail)
        line = here(-1)
        await sleep_long()

    with pytest.raises(ValueError, match="as told") as info:
        gofer.run(main, procs=procs)
    note = "".join(info.value.__notes__)
    assert "(fail)" in note
    assert line in note


def test_wrong_arguments_are_its_own_error() -> None:
    async def main() -> None:
        g = gofer.go(add)
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            await g

    gofer.run(main)


def test_thousands_of_them(procs: int) -> None:
    """They need a thread only while they run: so few are enough for all."""

    async def main() -> tuple[int, int]:
        gs = [gofer.go(add, i, 0) for i in range(3000)]
        total = sum([await g for g in gs])
        return total, _core.counters()["threads"]

    total, threads = gofer.run(main, procs=procs)
    assert total == 3000 * 2999 // 2
    assert threads < 100


def test_hundreds_that_wait_have_a_thread_each_and_share_it_later(procs: int) -> None:
    async def main() -> None:
        ch = Chan[int]()
        for _ in range(2):
            gs = [gofer.go(receive, ch) for _ in range(300)]
            await parked(*gs)
            assert 300 < _core.counters()["threads"] < 400
            for i in range(300):
                await ch.send(i)
            assert sorted([await g for g in gs]) == list(range(300))

    gofer.run(main, procs=procs)


def test_it_stays_on_its_thread(procs: int) -> None:
    def plain() -> None:
        own = threading.get_ident()
        assert own != threading.main_thread().ident
        for _ in range(20):
            block(gofer.gosched())
            block(gofer.sleep(0.0001))
            assert threading.get_ident() == own

    async def main() -> None:
        for g in [gofer.go(plain) for _ in range(5)]:
            await g

    gofer.run(main, procs=procs)


# --- run(fn) --------------------------------------------------------------------------------------


def test_run_takes_a_plain_function(procs: int) -> None:
    def main(a: int, b: int) -> tuple[int, int, int, str]:
        assert threading.current_thread() is threading.main_thread()
        g = gofer.current()
        return block(gofer.go(add, a, b)), g.id, g.parent_id, g.name

    total, own, parent, name = gofer.run(main, 1, 2, procs=procs)
    assert (total, own, parent) == (3, 1, 0)
    assert name.endswith("main")


def test_run_raises_what_a_plain_main_raises(procs: int) -> None:
    with pytest.raises(ValueError, match="as told") as info:
        gofer.run(fail, procs=procs)
    assert "fail" in [entry.name for entry in info.traceback]


@pytest.mark.parametrize("main", [print, lambda: None, dict], ids=["print", "lambda", "dict"])
@pytest.mark.usefixtures("capsys")
def test_run_takes_any_callable(main: Callable[[], Any]) -> None:
    assert gofer.run(main) in (None, {})


def test_generator_functions_are_refused() -> None:
    def numbers() -> Any:
        yield 1

    with pytest.raises(TypeError, match="generator function"):
        gofer.run(numbers)


def test_a_plain_main_does_everything_with_block(procs: int) -> None:
    def main() -> int:
        ch = Chan[int](1)
        mu = gofer.Mutex()
        wg = gofer.WaitGroup()
        total = 0

        async def producer(i: int) -> None:
            await ch.send(i)

        for i in range(10):
            wg.go(producer, i)
        for _ in range(10):
            with mu:
                total += block(ch.recv())
        block(wg.wait())
        block(gofer.sleep(0.001))
        assert block(gofer.select(gofer.sleep(0.001), ch.recv())).index == 0
        return total

    assert gofer.run(main, procs=procs) == 45


def test_a_plain_main_that_computes_or_sleeps_lets_others_run(procs: int) -> None:
    def main() -> int:
        ticks = 0

        async def ticker() -> None:
            nonlocal ticks
            while True:
                await gofer.sleep(0.001)
                ticks += 1

        gofer.go(ticker)
        time.sleep(0.3)
        return ticks

    assert gofer.run(main, procs=procs) > 30


# --- block ----------------------------------------------------------------------------------------


def test_block_takes_operations_coroutines_and_handles(procs: int) -> None:
    class Three:
        def __await__(self) -> Any:
            return give(3).__await__()

    def plain(ch: Chan[int]) -> list[Any]:
        async def later() -> int:
            await gofer.sleep(0.001)
            return await ch.recv()

        return [
            block(later()),
            block(gofer.go(give, 2)),
            block(Three()),
            block(gofer.select(default=True)).index,
            block(ch.recv_ok()),
        ]

    async def main() -> None:
        ch = Chan[int]()
        g = gofer.go(plain, ch)
        await ch.send(1)
        ch.close()
        assert await g == [1, 2, 3, -1, (None, False)]

    gofer.run(main, procs=procs)


def test_block_nests_in_what_it_awaits(procs: int) -> None:
    """Plain code called by a coroutine that a plain goroutine blocks on: still that goroutine."""

    async def outer() -> int:
        await gofer.gosched()
        return inner() + 1

    def inner() -> int:
        return block(give(1))

    async def main() -> int:
        return await gofer.go(lambda: block(outer()))

    assert gofer.run(main, procs=procs) == 2


def test_block_with_a_timeout(procs: int) -> None:
    def plain(ch: Chan[int]) -> str:
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            block(ch.recv(), timeout=0.05)
        assert 0.05 <= time.monotonic() - start < PATIENCE / 2
        with pytest.raises(TimeoutError):
            block(sleep_long(), timeout=0.01)
        assert block(give("in time"), timeout=PATIENCE) == "in time"
        return block(give("at once"), timeout=0)

    async def main() -> None:
        ch = Chan[int]()
        assert await gofer.go(plain, ch) == "at once"
        with pytest.raises(gofer.WouldBlock):  # whoever timed out has left the queue
            ch.send_nowait(1)

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("timeout", ["1", None, float("nan"), [1]])
def test_a_wrong_timeout(timeout: Any) -> None:
    def plain() -> None:
        if timeout is None:
            block(gofer.sleep(0), timeout=None)
            raise TypeError("needs")
        block(gofer.sleep(0), timeout=timeout)

    with pytest.raises((TypeError, ValueError), match="needs"):
        gofer.run(plain)


@pytest.mark.parametrize("what", [1, None, add, [], "x"])
def test_block_refuses_what_cannot_be_awaited(what: Any) -> None:
    with pytest.raises(TypeError, match=r"block\(\) needs an operation or a coroutine"):
        gofer.run(block, what)


def test_block_in_an_async_goroutine_says_to_use_await(procs: int) -> None:
    async def main() -> None:
        for use in (lambda: block(gofer.sleep(0)), lambda: gofer.Mutex().__enter__()):
            with pytest.raises(RuntimeError, match=r"use `?(await|async with)"):
                use()
        g = gofer.go(helper)
        with pytest.raises(RuntimeError, match="use await"):
            await g

    async def helper() -> None:
        block(gofer.sleep(0))

    gofer.run(main, procs=procs)


def test_block_needs_a_running_runtime() -> None:
    op = gofer.sleep(0)
    with pytest.raises(RuntimeError, match="running runtime"):
        block(op)
    gofer.run(give, 1)
    with pytest.raises(RuntimeError, match="running runtime"):
        block(op)


def test_an_operation_is_awaited_once_here_too() -> None:
    def plain() -> None:
        op = Chan[int](1).send(1)
        block(op)
        with pytest.raises(RuntimeError, match="has been awaited already"):
            block(op)

    gofer.run(plain)


def test_a_foreign_awaitable_is_the_usual_error() -> None:
    class Foreign:
        def __await__(self) -> Any:
            yield "something"

    def plain() -> None:
        with pytest.raises(TypeError, match="cannot await 'something'"):
            block(Foreign())

    gofer.run(plain)


# --- Cancellation ---------------------------------------------------------------------------------


def test_cancel_raises_out_of_block_once(procs: int) -> None:
    def plain(ch: Chan[int]) -> str:
        try:
            block(ch.recv())
        except Cancelled as exc:
            block(gofer.sleep(0.001))  # clean-up may wait
            return f"cancelled: {exc.reason}"
        return "not"

    async def main() -> None:
        g = gofer.go(plain, Chan[int]())
        await parked(g)
        assert g.cancel("enough")
        assert await g == "cancelled: enough"
        assert not g.cancelled()
        other = gofer.go(receive, Chan[int]())
        await parked(other)
        other.cancel()
        with pytest.raises(Cancelled):
            await other
        assert other.cancelled()

    gofer.run(main, procs=procs)


def test_one_that_is_cancelled_before_it_begins_never_does() -> None:
    ran = []

    async def main() -> None:
        g = gofer.go(ran.append, 1)
        g.cancel()
        with pytest.raises(Cancelled):
            await g

    gofer.run(main, procs=1)
    assert ran == []


def test_a_cancel_that_comes_while_it_runs_waits_for_its_next_operation(procs: int) -> None:
    def plain() -> str:
        running.set()
        cancelled.wait()
        try:
            block(gofer.sleep(0))
        except Cancelled:
            return "then"
        return "never"

    async def main() -> None:
        g = gofer.go(plain)
        await until(running.is_set)
        g.cancel()
        cancelled.set()
        assert await g == "then"

    running, cancelled = threading.Event(), threading.Event()
    gofer.run(main, procs=procs)


def test_contexts_reach_plain_goroutines(procs: int) -> None:
    def plain() -> str:
        assert context.current().value("key") == "value"
        try:
            block(sleep_long())
        except Cancelled:
            return "ended by its context"
        return "not"

    async def main() -> None:
        async with context.with_value("key", "value"), context.with_cancel() as ctx:
            g = gofer.go(plain)
            await parked(g)
            ctx.cancel()
            async with context.shield():
                assert await g == "ended by its context"

    gofer.run(main, procs=procs)


def test_goexit_ends_it_and_runs_its_finally_blocks(procs: int) -> None:
    ended = []

    def plain() -> int:
        try:
            gofer.goexit()
        finally:
            block(gofer.sleep(0.001))
            ended.append(1)
        return 1

    async def main() -> None:
        g = gofer.go(plain)
        assert await g is None
        assert g.done()
        assert not g.cancelled()

    gofer.run(main, procs=procs)
    assert ended == [1]


def test_goexit_of_a_plain_main() -> None:
    ran = []

    def main() -> None:
        gofer.go(ran.append, 1)
        gofer.goexit()

    with pytest.raises(gofer.Deadlock, match="main called goexit"):
        gofer.run(main)
    assert ran == [1]


# --- Context variables ----------------------------------------------------------------------------


def test_each_has_its_own_context_variables(procs: int) -> None:
    var = contextvars.ContextVar("var", default=0)

    def plain(i: int) -> tuple[int, int]:
        before = var.get()
        var.set(i)
        block(gofer.sleep(0.001))
        block(gofer.gosched())
        assert var.get() == i
        return before, block(child())

    async def child() -> int:
        return var.get()

    def unset() -> int:
        return var.get()

    async def main() -> None:
        assert await gofer.go(unset) == 0
        assert [await g for g in [gofer.go(plain, i) for i in range(1, 9)]] == [
            (0, i) for i in range(1, 9)
        ]
        assert await gofer.go(unset) == 0
        var.set(100)
        assert await gofer.go(plain, 5) == (100, 5)
        assert var.get() == 100

    gofer.run(main, procs=procs)


def test_a_plain_main_starts_with_a_copy_of_the_callers() -> None:
    var = contextvars.ContextVar("var", default=0)

    def main() -> int:
        seen = var.get()
        var.set(2)
        return seen

    var.set(1)
    assert gofer.run(main) == 1
    assert var.get() == 1


# --- Looking at it --------------------------------------------------------------------------------


def test_names_sites_and_parents(procs: int) -> None:
    async def main() -> None:
        named = gofer.go(add, 1, name="an adder")
        plain = gofer.go(add, 1)
        site = here(-1)
        partial = gofer.go(functools.partial(add, 1))
        builtin = gofer.go(len, "")
        assert named.name == "an adder"
        assert plain.name == "add"
        assert builtin.name == "len"
        assert plain.created_at == site
        assert plain.parent_id == 1
        assert "add" in repr(plain)
        for g in (named, plain, partial, builtin):
            await g

    gofer.run(main, procs=procs)


def test_current_is_the_plain_goroutine(procs: int) -> None:
    def plain() -> Any:
        block(gofer.gosched())
        return gofer.current()

    async def main() -> None:
        g = gofer.go(plain)
        assert await g is g

    gofer.run(main, procs=procs)
    gc.collect()


def test_state_and_wait_reason(procs: int) -> None:
    def plain(ch: Chan[int], sleeping: threading.Event) -> None:
        block(ch.recv())
        block(gofer.sleep(0.05))
        with gofer.Mutex():
            pass
        sleeping.wait()

    async def main() -> None:
        ch = Chan[int]()
        sleeping = threading.Event()
        g = gofer.go(plain, ch, sleeping)
        assert g.state in ("runnable", "running", "waiting")
        await until(lambda: g.wait_reason == "chan receive")
        assert g.state == "waiting"
        assert "(chan receive)" in repr(g)
        await ch.send(1)
        await until(lambda: g.wait_reason == "sleep")
        try:  # one that waits for the GIL is taken for blocked, for a moment
            await until(lambda: "syscall" in repr(g) and g.wait_reason is None)
            await until(lambda: g.state == "syscall")
        finally:
            sleeping.set()
        await g
        assert g.state == "dead"

    gofer.run(main, procs=procs)


def test_stack_of_one_that_waits(procs: int) -> None:
    def outer(ch: Chan[int]) -> int:
        return middle(ch)

    def middle(ch: Chan[int]) -> int:
        return block(ch.recv())

    async def main() -> None:
        ch = Chan[int]()
        g = gofer.go(outer, ch)
        await parked(g)
        frames = g.stack()
        assert [f.name for f in frames] == ["outer", "middle"]
        assert frames[-1].line == "return block(ch.recv())"
        await ch.send(1)
        await g
        assert list(g.stack()) == []

    gofer.run(main, procs=procs)


def test_stack_goes_on_into_the_coroutine_it_blocks_on(procs: int) -> None:
    async def inner(ch: Chan[int]) -> int:
        return await ch.recv()

    async def outer(ch: Chan[int]) -> int:
        return await inner(ch)

    def plain(ch: Chan[int]) -> int:
        return block(outer(ch))

    async def main() -> None:
        ch = Chan[int]()
        g = gofer.go(plain, ch)
        await parked(g)
        assert [f.name for f in g.stack()] == ["plain", "outer", "inner"]
        await ch.send(1)
        assert await g == 1

    gofer.run(main, procs=procs)


def test_stack_of_oneself_and_of_a_plain_main() -> None:
    def plain() -> list[str]:
        return [f.name for f in gofer.current().stack()]

    def main() -> None:
        assert plain() == ["main", "plain"]
        assert block(gofer.go(plain)) == ["plain"]
        looked = block(gofer.go(look, gofer.current()))
        assert looked == ["main"]

    async def look(g: gofer.Goroutine[Any]) -> list[str]:
        await parked(g)
        return [f.name for f in g.stack()]

    gofer.run(main)


def test_stack_of_one_that_has_not_begun() -> None:
    async def main() -> None:
        g = gofer.go(add, 1)
        assert [f.name for f in g.stack()] in (["add"], [])
        await g

    gofer.run(main, procs=1)


def test_stack_of_one_in_a_blocking_call(procs: int) -> None:
    """With the GIL its frames can be walked while it is away; without, nobody may."""

    def plain(done: threading.Event) -> None:
        done.wait()

    async def main() -> None:
        done = threading.Event()
        g = gofer.go(plain, done)
        await until(lambda: g.state == "syscall")
        names = [f.name for f in g.stack()]
        assert names[:1] == ([] if FREE_THREADED else ["plain"])
        done.set()
        await g

    gofer.run(main, procs=procs)


# --- With the rest of the library -----------------------------------------------------------------


def test_group(procs: int) -> None:
    async def main() -> None:
        async with gofer.Group(limit=2) as group:
            gs = [group.go(add, i) for i in range(10)]
            named = group.go(add, 1, name="named")
        assert [g.result() for g in gs] == list(range(1, 11))
        assert named.name == "named"
        gs = []
        with pytest.raises(ExceptionGroup) as info:
            await failing(gs)
        assert [type(e) for e in info.value.exceptions] == [ValueError]
        assert gs[0].cancelled()

    async def failing(gs: list[gofer.Goroutine[Any]]) -> None:
        async with gofer.Group() as group:
            gs.append(group.go(receive, Chan[int]()))
            group.go(fail)

    gofer.run(main, procs=procs)


def test_members_of_a_group_block_at_once(procs: int) -> None:
    """Each on a thread of its own."""

    async def main() -> float:
        start = time.monotonic()
        async with gofer.Group() as group:
            for _ in range(20):
                group.go(time.sleep, 0.2)
        return time.monotonic() - start

    assert gofer.run(main, procs=procs) < 1.5


def test_wait_group(procs: int) -> None:
    async def main() -> list[int]:
        wg = gofer.WaitGroup()
        done: list[int] = []
        for i in range(10):
            wg.go(done.append, i)
        await wg.wait()
        failing = wg.go(fail)
        await wg.wait()
        with pytest.raises(ValueError, match="as told"):
            await failing
        return sorted(done)

    assert gofer.run(main, procs=procs) == list(range(10))


def test_once_and_once_value(procs: int) -> None:
    calls = []

    def load() -> int:
        calls.append(1)
        time.sleep(0.01)
        return 7

    def plain(once: gofer.Once, get: Callable[[], Any]) -> int:
        block(once.do(calls.append, 2))
        return int(block(get()))

    async def main() -> None:
        once = gofer.Once()
        get = gofer.once_value(load)
        gs = [gofer.go(plain, once, get) for _ in range(10)]
        assert [await g for g in gs] == [7] * 10

    gofer.run(main, procs=procs)
    assert sorted(calls) == [1, 2]


def test_after_func(procs: int) -> None:
    def plain(ch: Chan[int]) -> None:
        block(gofer.sleep(0.001))
        time.sleep(0.001)
        block(ch.send(threading.get_ident()))

    async def main() -> None:
        ch = Chan[int]()
        gofer.after_func(0.001, plain, ch)
        assert await ch.recv() != threading.main_thread().ident
        async with context.with_cancel() as ctx:
            context.after_func(ctx, plain, ch)
            ctx.cancel()
            async with context.shield():
                await ch.recv()

    gofer.run(main, procs=procs)


def test_singleflight_with_a_plain_function(procs: int) -> None:
    calls = []

    def load() -> int:
        calls.append(1)
        time.sleep(0.05)
        return 1

    async def main() -> None:
        flight = gofer.singleflight.Flight()
        gs = [gofer.go(wait_for, flight.do("key", load)) for _ in range(5)]
        assert [await g for g in gs] == [1] * 5

    gofer.run(main, procs=procs)
    assert len(calls) < 5


# --- Deadlocks and leaks --------------------------------------------------------------------------


def test_a_deadlock_of_plain_goroutines_is_reported(procs: int) -> None:
    def inner(ch: Chan[int]) -> None:
        block(ch.recv())

    def waits(ch: Chan[int]) -> None:
        inner(ch)

    def main() -> None:
        ch = Chan[int]()
        g = gofer.go(waits, ch, name="the other")
        block(g)

    with pytest.raises(gofer.Deadlock) as info:
        gofer.run(main, procs=procs)
    text = str(info.value)
    assert "goroutine 1 [goroutine wait]:" in text
    assert "[chan receive]:" in text
    assert "inner()" in text
    assert "'the other'" in text


def test_a_deadlock_of_hundreds(procs: int) -> None:
    async def main() -> None:
        gs = [gofer.go(receive, Chan[int]()) for _ in range(300)]
        for g in gs:
            await g

    with pytest.raises(gofer.Deadlock, match="all goroutines are asleep"):
        gofer.run(main, procs=procs)


def test_one_that_blocks_elsewhere_is_no_deadlock(procs: int) -> None:
    """Its thread may come back and wake main."""

    def plain(ch: Chan[int]) -> None:
        time.sleep(0.3)
        ch.send_nowait(1)

    async def main() -> int:
        ch = Chan[int](1)
        gofer.go(plain, ch)
        return await ch.recv()

    assert gofer.run(main, procs=procs) == 1


def test_what_only_a_plain_goroutine_can_reach_is_no_leak(procs: int) -> None:
    """The thread's own stack holds what it works with."""

    def plain() -> None:
        block(Chan[int]().recv())

    async def main() -> None:
        g = gofer.go(plain)
        await parked(g)
        del g
        for _ in range(3):
            gc.collect()
        assert gofer.num_goroutine() == 2

    gofer.run(main, procs=procs)


# --- The end of the run ---------------------------------------------------------------------------


def test_when_main_ends_those_in_block_are_cancelled_and_clean_up(procs: int) -> None:
    ended: list[int] = []

    def plain(i: int) -> None:
        try:
            block(sleep_long())
        finally:
            block(gofer.sleep(0.001))
            ended.append(i)

    async def main() -> None:
        gs = [gofer.go(plain, i) for i in range(5)]
        await parked(*gs)

    gofer.run(main, procs=procs)
    assert sorted(ended) == list(range(5))


def test_one_that_returns_soon_after_main_is_waited_for(procs: int) -> None:
    ended = []

    def plain() -> None:
        time.sleep(0.02)
        ended.append(1)

    async def main() -> None:
        g = gofer.go(plain)
        await until(lambda: g.state in ("running", "syscall"))

    gofer.run(main, procs=procs)
    assert ended == [1]


def test_one_that_is_stuck_is_not_waited_for(procs: int) -> None:
    released = threading.Event()
    errors: list[str] = []

    def stuck() -> None:
        try:
            released.wait()
        except Cancelled:  # when it comes back
            for call in (lambda: block(gofer.sleep(0)), lambda: gofer.go(give, 1)):
                try:
                    call()
                except RuntimeError as exc:
                    errors.append(str(exc))
            with gofer.blocking(), gofer.lock_os_thread():
                pass

    async def main() -> gofer.Goroutine[None]:
        g = gofer.go(stuck)
        await until(lambda: g.state == "syscall")
        return g

    start = time.monotonic()
    g = gofer.run(main, procs=procs)
    assert time.monotonic() - start < PATIENCE / 4
    assert g.done()
    assert g.cancelled()
    assert list(g.stack()) == []
    assert gofer.run(give, 1, procs=procs) == 1  # the next run is not disturbed
    del g
    wait_until_left(released)
    assert len(errors) == 2
    assert all("the runtime of this goroutine has ended" in e for e in errors)


def test_one_that_is_stuck_does_not_hide_one_that_waits_for_ever(procs: int) -> None:
    """Clean-up that waits for what never comes is cancelled again, stuck function or not."""
    released = threading.Event()

    async def waits() -> None:
        try:
            await sleep_long()
        finally:
            await Chan[int]().recv()

    async def main() -> None:
        gs = [gofer.go(released.wait), gofer.go(waits)]
        await until(lambda: gs[0].state == "syscall")
        await parked(gs[1])

    gofer.run(main, procs=procs)
    wait_until_left(released)


def test_main_may_end_elsewhere_while_one_is_stuck() -> None:
    """On another thread than its own, which sleeps: it must hear of the end."""
    released = threading.Event()

    async def hog() -> None:
        time.sleep(0.05)

    async def main() -> None:
        g = gofer.go(released.wait)
        await until(lambda: g.state == "syscall")
        gs = [gofer.go(hog) for _ in range(4)]
        for h in gs:
            await h

    gofer.run(main, procs=2)
    wait_until_left(released)


def test_one_that_catches_everything_and_blocks_again(procs: int) -> None:
    tries = 0

    def plain() -> None:
        nonlocal tries
        while tries < 3:
            try:
                block(Chan[int]().recv())
            except Cancelled:
                tries += 1

    async def main() -> None:
        await parked(gofer.go(plain))

    gofer.run(main, procs=procs)
    assert tries == 3


def test_a_program_ends_although_a_function_is_stuck_for_ever() -> None:
    source = """
        import threading, time, gofer

        async def main():
            g = gofer.go(threading.Event().wait)
            while g.state != "syscall":
                await gofer.sleep(0.001)
            return "over"

        print(gofer.run(main))
        """
    assert run_program(source).check() == "over\n"


# --- Signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["block(gofer.sleep(1000))", "time.sleep(1000)"])
def test_ctrl_c_reaches_a_plain_main(how: str) -> None:
    # A signal just before the system call does not interrupt it, in any Python program.
    program = Program(f"""
        import threading, time, gofer
        from gofer import block

        def tell(g):
            while g.state not in ("waiting", "syscall"):
                time.sleep(0.001)
            print("ready", flush=True)

        def main():
            threading.Thread(target=tell, args=[gofer.current()]).start()
            try:
                {how}
            finally:
                block(gofer.sleep(0.001))
                print("cleaned up", flush=True)

        try:
            gofer.run(main)
        except KeyboardInterrupt:
            print("interrupted")
        """)
    program.expect("ready")
    # A signal just before time.sleep() would be noticed after it, as in any Python program.
    main_thread = Path(f"/proc/{program.process.pid}/stat")
    for _ in range(3):
        while main_thread.read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)
        time.sleep(0.05)
    program.interrupt()
    assert program.finish().check() == "cleaned up\ninterrupted\n"


def test_signal_handlers_run_while_a_plain_main_waits() -> None:
    ran: list[bool] = []

    def handler(signum: int, frame: object) -> None:
        ran.append(threading.current_thread() is threading.main_thread())
        ch.send_nowait(1)
        with pytest.raises(RuntimeError):  # main waits already
            block(gofer.sleep(0))

    def signaller(main: gofer.Goroutine[Any]) -> None:
        while main.state != "waiting":
            time.sleep(0.001)
        signal.raise_signal(signal.SIGUSR1)

    def main() -> None:
        with thread(signaller, gofer.current()):
            assert block(ch.recv()) == 1

    ch = Chan[int](1)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        gofer.run(main)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ran == [True]


def test_signals_to_threads_that_wait_do_no_harm(procs: int) -> None:
    """The kernel may pick any thread: one in block() goes on waiting."""
    ran = []
    before = signal.signal(signal.SIGUSR1, lambda *_: ran.append(1))

    def plain(ch: Chan[int]) -> int:
        idents.append(threading.get_ident())
        return block(ch.recv())

    async def main() -> None:
        ch = Chan[int]()
        gs = [gofer.go(plain, ch) for _ in range(3)]
        await parked(*gs)
        for ident in idents * 5:
            signal.pthread_kill(ident, signal.SIGUSR1)
            await gofer.sleep(0.001)
        assert [g.state for g in gs] == ["waiting"] * 3
        for i in range(3):
            await ch.send(i)
        assert sorted([await g for g in gs]) == [0, 1, 2]

    idents: list[int] = []
    try:
        gofer.run(main, procs=procs)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ran
