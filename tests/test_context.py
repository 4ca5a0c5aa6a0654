"""Contexts: who is over when and why, what that does to those inside, and what is left of it."""

import contextlib
import gc
import math
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

import gofer
from gofer import _core, context
from gofer.context import Context
from tests.support import (
    PATIENCE,
    Program,
    give,
    gone,
    here,
    parked,
    sleep_long,
    spin,
    thread,
    until,
    wait_for,
)

T = TypeVar("T")

ROUNDING = 1e-6  # what a float of seconds may lose of the nanoseconds behind it
PARENTLESS: list[Callable[[], Context]] = [
    context.with_cancel,
    lambda: context.with_timeout(1),
    lambda: context.with_deadline(1),
    lambda: context.with_value("key", 1),
    context.without_cancel,
    context.shield,
]


def over(ctx: Context) -> bool:
    """Whether it is over: err() and done agree."""
    err = ctx.err()
    assert ctx.done.closed is (err is not None)
    assert (ctx.cause() is not None) is (err is not None)
    if err is not None:
        assert isinstance(err, gofer.Cancelled | TimeoutError)
        assert ctx.err() is err
        with pytest.raises(gofer.ChannelClosed):
            ctx.done.recv_nowait()
    else:
        with pytest.raises(gofer.WouldBlock):
            ctx.done.recv_nowait()
    return err is not None


async def waiting(operation: Awaitable[T]) -> gofer.Goroutine[T]:
    """A goroutine that waits in `operation`, and has come to wait."""
    g = gofer.go(wait_for, operation)
    await parked(g)
    return g


async def inside(ctx: Context, fn: Callable[[], Awaitable[Any]] = sleep_long) -> None:
    """As a goroutine: one that is bound to `ctx`, and waits."""
    async with ctx:
        await fn()


async def bound(ctx: Context) -> gofer.Goroutine[None]:
    """A goroutine that waits inside of `ctx`."""
    g = gofer.go(inside, ctx)
    await parked(g)
    return g


def background() -> Context:
    return context.background()


# --- One context ----------------------------------------------------------------------------------


def test_background_is_never_over() -> None:
    root = context.background()
    assert root is context.background()
    assert not over(root)
    assert (root.err(), root.cause(), root.deadline, root.value("key")) == (None, None, None, None)
    with pytest.raises(RuntimeError, match=r"^context\.Background cannot be cancelled"):
        root.cancel()
    assert not over(root)
    assert context.current() is root

    async def main() -> None:
        assert context.current() is root
        async with root:
            await gofer.sleep(0)
            assert context.current() is root

    gofer.run(main)


def test_cancel_counts_once() -> None:
    ctx = context.with_cancel(background())
    done = ctx.done
    assert not over(ctx)
    ctx.cancel("first")
    assert over(ctx)
    err = ctx.err()
    assert isinstance(err, gofer.Cancelled)
    assert (err.reason, ctx.cause()) == ("first", "first")
    ctx.cancel("second")
    ctx.cancel()
    assert ctx.err() is err
    assert ctx.cause() == "first"
    assert done == ctx.done
    assert done.closed


def test_a_cause_may_be_anything() -> None:
    for cause in (0, "", False, (), (1, 2), ValueError("why"), gofer.Cancelled("x"), Exception):
        ctx = context.with_cancel(background())
        child = context.with_value("key", 1, ctx)
        ctx.cancel(cause=cause)
        for c in (ctx, child):
            err = c.err()
            assert isinstance(err, gofer.Cancelled)
            assert err.args == (cause,)
            assert c.cause() is cause


def test_without_a_cause_it_is_the_error() -> None:
    for args in ((), (None,)):
        ctx = context.with_cancel(background())
        ctx.cancel(*args)
        err = ctx.err()
        assert isinstance(err, gofer.Cancelled)
        assert err.args == ()
        assert ctx.cause() is err


def test_done_wakes_all_who_wait(procs: int) -> None:
    async def main() -> None:
        ctx = context.with_cancel()
        gs: list[gofer.Goroutine[Any]] = [await waiting(ctx.done.recv_ok()) for _ in range(5)]
        gs.append(await waiting(gofer.select(gofer.Chan[int]().recv(), ctx.done.recv())))
        ctx.cancel()
        assert [await g for g in gs[:5]] == [(None, False)] * 5
        assert await gs[5] == (1, None, False)
        with pytest.raises(gofer.ChannelClosed):
            await ctx.done.recv()

    gofer.run(main, procs=procs)


def test_a_timeout_ends_it_on_time(procs: int) -> None:
    async def main() -> None:
        for make in (context.with_timeout, in_seconds):
            start = time.monotonic()
            ctx = make(0.005)
            end = time.monotonic()
            assert ctx.deadline is not None
            assert start + 0.005 - ROUNDING <= ctx.deadline <= end + 0.005 + ROUNDING
            assert await ctx.done.recv_ok() == (None, False)
            assert time.monotonic() >= ctx.deadline - ROUNDING
            assert over(ctx)
            assert isinstance(ctx.err(), TimeoutError)
            assert ctx.cause() is ctx.err()
            ctx.cancel("late")
            assert isinstance(ctx.cause(), TimeoutError)

    def in_seconds(seconds: float) -> Context:
        return context.with_deadline(time.monotonic() + seconds)

    gofer.run(main, procs=procs)


def test_a_deadline_that_has_passed_is_over_on_return() -> None:
    for ctx in (
        context.with_timeout(0, background()),
        context.with_timeout(-1, background()),
        context.with_timeout(-1e308, background()),
        context.with_deadline(time.monotonic(), background()),
        context.with_deadline(0, background()),
        context.with_deadline(-1e308, background()),
    ):
        assert over(ctx)
        assert isinstance(ctx.err(), TimeoutError)
        assert context.with_value("key", 1, ctx).err() is ctx.err()


def test_a_deadline_far_away_disturbs_nobody() -> None:
    async def main() -> None:
        for seconds in (4.6e9, 1e10, 1e300, 2**62, 10**30):
            for ctx in (context.with_timeout(seconds), context.with_deadline(seconds)):
                async with ctx:
                    await gofer.sleep(0.0001)
                    assert not over(ctx)
                assert ctx.deadline is not None

    gofer.run(main)


def test_the_earlier_deadline_of_parent_and_child_counts() -> None:
    parent = context.with_timeout(1000, background())
    assert context.with_timeout(2000, parent).deadline == parent.deadline
    assert context.with_cancel(parent).deadline == parent.deadline
    assert context.with_value("key", 1, parent).deadline == parent.deadline
    sooner = context.with_timeout(500, parent).deadline
    assert sooner is not None
    assert parent.deadline is not None
    assert sooner < parent.deadline


def test_the_deadline_of_a_parent_ends_the_child(procs: int) -> None:
    async def main() -> None:
        parent = context.with_timeout(0.005)
        children = [
            context.with_timeout(100_000, parent),
            context.with_cancel(context.with_value("key", 1, parent)),
        ]
        for child in children:
            await child.done.recv_ok()
            assert over(child)
            assert over(parent)
            assert child.err() is parent.err()
            assert isinstance(child.cause(), TimeoutError)

    gofer.run(main, procs=procs)


def test_without_a_runtime_the_clock_decides() -> None:
    ctx = context.with_timeout(0.05, background())
    child = context.with_cancel(ctx)
    assert not over(child)
    time.sleep(0.06)
    assert over(child)
    assert over(ctx)
    assert isinstance(ctx.err(), TimeoutError)


def test_made_and_looked_at_before_the_run_it_ends_in_the_run(procs: int) -> None:
    ctx = context.with_timeout(0.01, background())
    child = context.with_timeout(100_000, ctx)
    done = child.done

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with ctx:
                await gofer.sleep(PATIENCE / 10)
        assert await done.recv_ok() == (None, False)

    gofer.run(main, procs=procs)


def test_waiting_in_a_run_for_a_channel_from_before_is_no_deadlock(procs: int) -> None:
    done = context.with_timeout(0.01, background()).done

    async def main() -> None:
        assert await done.recv_ok() == (None, False)

    gofer.run(main, procs=procs)


def test_it_outlives_a_run_that_was_bound_to_it(procs: int) -> None:
    ctx = context.with_timeout(0.1, background())

    async def leave_it() -> None:
        gofer.go(inside, ctx)
        gofer.go(wait_for, ctx.done.recv_ok())
        await gofer.sleep(0.002)

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            async with ctx:
                await gofer.sleep(PATIENCE / 10)

    gofer.run(leave_it, procs=procs)
    gofer.run(wait, procs=procs)


# --- Values ---------------------------------------------------------------------------------------


def test_the_nearest_value_counts() -> None:
    key = object()
    a = context.with_value("a", 1, background())
    b = context.with_value("b", None, a)
    c = context.with_cancel(context.with_timeout(1000, b))
    d = context.with_value(key, "d", context.with_value("a", 2, context.without_cancel(c)))
    assert [ctx.value("a") for ctx in (background(), a, b, c, d)] == [None, 1, 1, 1, 2]
    assert [ctx.value("b") for ctx in (a, b, c, d)] == [None] * 4
    assert d.value(key) == "d"
    assert d.value(object()) is None
    assert a.value("A") is None


def test_keys_are_compared_like_those_of_a_dict() -> None:
    ctx = context.with_value(1, "one", context.with_value("1", "text", background()))
    ctx = context.with_value((1, 2), "pair", ctx)
    assert (ctx.value(1), ctx.value(1.0), ctx.value("1")) == ("one", "one", "text")
    assert ctx.value((1, 2)) == "pair"

    class Bad:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise ValueError("compared")

    with pytest.raises(ValueError, match="compared"):
        ctx.value(Bad())


def test_a_value_ends_with_its_parent_but_not_the_parent_with_it() -> None:
    parent = context.with_cancel(background())
    ctx = context.with_value("key", 1, parent)
    other = context.with_value("key", 2, parent)
    ctx.cancel("why")  # a context like any other
    assert over(ctx)
    assert ctx.value("key") == 1
    assert not over(parent)
    parent.cancel("later")
    assert (ctx.cause(), other.cause()) == ("why", "later")


# --- Bad use --------------------------------------------------------------------------------------


def test_outside_a_goroutine_there_is_no_default_parent() -> None:
    def foreign() -> None:
        for make in PARENTLESS:
            with pytest.raises(RuntimeError, match=r"outside a goroutine.*context\.background\(\)"):
                make()
        assert context.current() is background()

    async def main() -> None:
        for make in PARENTLESS:
            assert isinstance(make(), Context)
        with thread(foreign) as t:
            await until(lambda: not t.is_alive())

    foreign()
    gofer.run(main)


def test_a_parent_must_be_a_context() -> None:
    bad: Any
    calls: list[Callable[[Any], Context]] = [
        context.with_cancel,
        lambda bad: context.with_timeout(1, bad),
        lambda bad: context.with_deadline(1, bad),
        lambda bad: context.with_value("key", 1, bad),
        context.without_cancel,
    ]
    for bad in (1, "parent", object(), Context):
        for call in calls:
            with pytest.raises(TypeError, match="must be a Context"):
                call(bad)
        with pytest.raises(TypeError, match="needs a Context"):
            context.after_func(bad, print)


def test_a_time_must_be_a_finite_number() -> None:
    bad: Any
    for call in (context.with_timeout, context.with_deadline):
        for bad in (math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match=repr(bad)):
                call(bad, background())
        for bad in ("x", None, [], 1j, b"1", object):
            with pytest.raises(TypeError):
                call(bad, background())


def test_a_key_must_be_hashable_and_not_none() -> None:
    bad: Any
    for bad in ([], {}, set(), ([],)):
        with pytest.raises(TypeError, match="unhashable"):
            context.with_value(bad, 1, background())
    with pytest.raises(TypeError, match="must not be None"):
        context.with_value(None, 1, background())


def test_none_can_be_made_or_changed_by_hand() -> None:
    ctx: Any = context.with_cancel(background())
    with pytest.raises(TypeError):
        Context()
    for name in ("done", "deadline", "other"):
        with pytest.raises(AttributeError):
            setattr(ctx, name, 1)
    with pytest.raises(TypeError):
        ctx.cancel(1, 2)
    with pytest.raises(TypeError):
        ctx.value()


def test_binding_needs_a_goroutine() -> None:
    ctx = context.with_cancel(background())
    coro = inside(ctx)
    with pytest.raises(RuntimeError, match="outside a goroutine"):
        coro.send(None)
    with pytest.raises(TypeError), ctx:  # type: ignore[attr-defined]
        pass


def test_blocks_are_left_in_order_by_the_one_who_entered() -> None:
    async def leave(ctx: Context) -> None:
        await ctx.__aexit__(None, None, None)

    async def main() -> None:
        a, b = context.with_cancel(), context.with_cancel()
        with pytest.raises(RuntimeError, match="left by another goroutine, or in another order"):
            await leave(a)
        await a.__aenter__()
        await b.__aenter__()
        with pytest.raises(RuntimeError, match="left by another goroutine, or in another order"):
            await leave(a)
        assert context.current() is b
        g = gofer.go(leave, a)
        with pytest.raises(RuntimeError, match="left by another goroutine, or in another order"):
            await g
        await leave(b)
        await leave(a)
        assert context.current() is background()

    gofer.run(main)


def test_repr_tells_how_it_was_made() -> None:
    root = background()
    assert repr(root) == "context.Background"
    a = context.with_cancel(root)
    assert repr(a) == "context.Background.WithCancel"
    b = context.with_value("key", 5, a)
    assert repr(b) == "context.Background.WithCancel.WithValue('key', 5)"
    assert repr(context.without_cancel(b)) == f"{b!r}.WithoutCancel"
    assert repr(context.with_timeout(1000, root)).startswith("context.Background.WithDeadline(")
    a.cancel("enough")
    assert repr(a) == "context.Background.WithCancel (over: Cancelled('enough'))"
    assert repr(b).endswith(".WithValue('key', 5) (over: Cancelled('enough'))")


# --- Causes ---------------------------------------------------------------------------------------

Case = Callable[[Context], tuple[Context, Any, Any]]


def too_late(ctx: Context) -> bool:
    """The machine was so busy that the deadline may have come first."""
    return ctx.deadline is not None and time.monotonic() >= ctx.deadline


def never(root: Context) -> tuple[Context, Any, Any]:
    return context.with_cancel(root), None, None


def cancelled(root: Context) -> tuple[Context, Any, Any]:
    ctx = context.with_cancel(root)
    ctx.cancel()
    return ctx, gofer.Cancelled, ctx.err()


def with_a_cause(root: Context) -> tuple[Context, Any, Any]:
    ctx = context.with_cancel(root)
    ctx.cancel("cause")
    return ctx, gofer.Cancelled, "cause"


def twice(root: Context) -> tuple[Context, Any, Any]:
    ctx = context.with_cancel(root)
    ctx.cancel()
    ctx.cancel("late")
    return ctx, gofer.Cancelled, ctx.err()


def parent(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.with_cancel(p)
    p.cancel("parent")
    return ctx, gofer.Cancelled, "parent"


def parent_without_cause(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.with_cancel(p)
    p.cancel()
    return ctx, gofer.Cancelled, p.err()


def parent_before_child(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.with_cancel(p)
    p.cancel("parent")
    ctx.cancel("child")
    return ctx, gofer.Cancelled, "parent"


def child_before_parent(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.with_cancel(p)
    ctx.cancel("child")
    p.cancel("parent")
    return ctx, gofer.Cancelled, "child"


def parent_of_a_child_that_ended(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    context.with_cancel(p).cancel("child")
    return p, None, None


def parent_after_its_child(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    context.with_cancel(p).cancel("child")
    p.cancel("parent")
    return p, gofer.Cancelled, "parent"


def child_of_one_that_is_over(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    p.cancel("parent")
    return context.with_cancel(p), gofer.Cancelled, "parent"


def through_values(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.with_value("b", 2, context.with_cancel(context.with_value("a", 1, p)))
    p.cancel("parent")
    return ctx, gofer.Cancelled, "parent"


def sibling(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.with_cancel(p)
    context.with_cancel(p).cancel("sibling")
    return ctx, None, None


def detached(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.without_cancel(p)
    p.cancel("parent")
    return ctx, None, None


def detached_afterwards(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    p.cancel("parent")
    return context.without_cancel(p), None, None


def below_a_detached_one(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.with_cancel(context.without_cancel(p))
    p.cancel("parent")
    ctx.cancel("child")
    return ctx, gofer.Cancelled, "child"


def expired(root: Context) -> tuple[Context, Any, Any]:
    ctx = context.with_timeout(0.001, root)
    time.sleep(0.002)
    return ctx, TimeoutError, ctx.err()


def expired_before_cancel(root: Context) -> tuple[Context, Any, Any]:
    ctx = context.with_timeout(0.001, root)
    time.sleep(0.002)
    ctx.cancel("late")
    return ctx, TimeoutError, ctx.err()


def cancelled_before_the_deadline(root: Context) -> tuple[Context, Any, Any]:
    ctx = context.with_timeout(0.001, root)
    ctx.cancel("early")
    if too_late(ctx):
        return cancelled_before_the_deadline(root)
    time.sleep(0.002)
    return ctx, gofer.Cancelled, "early"


def parent_expired(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_timeout(0.001, root)
    ctx = context.with_cancel(p)
    time.sleep(0.002)
    return ctx, TimeoutError, p.err()


def parent_expired_before_cancel(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_timeout(0.001, root)
    ctx = context.with_cancel(p)
    time.sleep(0.002)
    ctx.cancel("late")
    return ctx, TimeoutError, p.err()


def child_before_the_deadline_of_its_parent(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_timeout(0.001, root)
    ctx = context.with_cancel(p)
    ctx.cancel("child")
    if too_late(ctx):
        return child_before_the_deadline_of_its_parent(root)
    time.sleep(0.002)
    return ctx, gofer.Cancelled, "child"


def parent_before_the_deadline_of_its_child(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    ctx = context.with_timeout(0.001, p)
    p.cancel("parent")
    if too_late(ctx):
        return parent_before_the_deadline_of_its_child(root)
    time.sleep(0.002)
    return ctx, gofer.Cancelled, "parent"


def deadline_before_that_of_the_parent(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_timeout(1000, root)
    ctx = context.with_timeout(0.001, p)
    time.sleep(0.002)
    assert not over(p)
    return ctx, TimeoutError, ctx.err()


def past_deadline_below_one_that_is_over(root: Context) -> tuple[Context, Any, Any]:
    p = context.with_cancel(root)
    p.cancel("parent")
    return context.with_timeout(-1, p), gofer.Cancelled, "parent"


CAUSES: list[Case] = [
    never,
    cancelled,
    with_a_cause,
    twice,
    parent,
    parent_without_cause,
    parent_before_child,
    child_before_parent,
    parent_of_a_child_that_ended,
    parent_after_its_child,
    child_of_one_that_is_over,
    through_values,
    sibling,
    detached,
    detached_afterwards,
    below_a_detached_one,
    expired,
    expired_before_cancel,
    cancelled_before_the_deadline,
    parent_expired,
    parent_expired_before_cancel,
    child_before_the_deadline_of_its_parent,
    parent_before_the_deadline_of_its_child,
    deadline_before_that_of_the_parent,
    past_deadline_below_one_that_is_over,
]


def check_causes() -> None:
    for look_first in (False, True):
        for case in CAUSES:
            root = context.with_cancel(background())
            if look_first:
                assert not over(root)
            ctx, err, cause = case(root)
            where = case.__name__
            assert over(ctx) is (err is not None), where
            assert err is None or isinstance(ctx.err(), err), where
            assert ctx.cause() == cause, where
            below = context.with_value("key", 1, ctx)
            assert (below.err(), below.cause()) == (ctx.err(), cause), where
            assert not over(root), where


def test_the_matrix_of_causes(procs: int) -> None:
    async def main() -> None:
        check_causes()

    check_causes()
    gofer.run(main, procs=procs)


# --- Trees ----------------------------------------------------------------------------------------


def tree(root: Context, fanout: int, depth: int) -> list[Context]:
    """Many contexts below this one."""
    level, nodes = [root], []
    for _ in range(depth):
        level = [context.with_cancel(c) for c in level for _ in range(fanout)]
        nodes += level
    return nodes


def test_cancel_ends_all_below_before_it_returns_and_nothing_else() -> None:
    top = context.with_cancel(background())
    left, right = context.with_cancel(top), context.with_cancel(top)
    below_left, below_right = tree(left, 4, 4), tree(right, 4, 4)
    left.cancel("left")
    assert {c.cause() for c in below_left} == {"left"}
    assert all(over(c) for c in below_left[::7])
    assert not any(c.err() for c in [top, right, *below_right])
    top.cancel("top")
    assert {c.cause() for c in below_right} == {"top"}
    assert {c.cause() for c in below_left} == {"left"}


def test_thousands_of_children(procs: int) -> None:
    async def main() -> None:
        root = context.with_cancel()
        gs = [gofer.go(inside, context.with_cancel(root)) for _ in range(1000)]
        gs += [gofer.go(inside, context.with_timeout(100_000, root)) for _ in range(1000)]
        idle = [context.with_cancel(root) for _ in range(2000)]
        await parked(*gs)
        root.cancel("all")
        assert {c.cause() for c in idle} == {"all"}
        for g in gs:
            with pytest.raises(gofer.Cancelled):
                await g
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_children_cost_the_same_however_many_there_are() -> None:
    def measure(n: int) -> float:
        best = math.inf
        for _ in range(3):
            start = time.thread_time()
            root = context.with_cancel(background())
            children = [context.with_cancel(root) for _ in range(n)]
            for child in children[: n // 3]:
                child.cancel()
            del children[n // 3 : 2 * n // 3]
            root.cancel()
            assert all(child.err() for child in children)
            best = min(best, time.thread_time() - start)
        return best

    gc.disable()
    try:
        for _ in range(3):  # the machine may be busy
            ratio = measure(16_000) / measure(4_000)
            if ratio < 8:
                return
        raise AssertionError(f"4 times as many took {ratio:.1f} times as long")
    finally:
        gc.enable()


def test_a_chain_of_ten_thousand() -> None:
    first = context.with_cancel(background())
    last = context.with_value("key", "value", first)
    for _ in range(10_000):
        last = context.with_cancel(last)
    assert last.value("key") == "value"
    done = last.done
    with contextlib.suppress(RecursionError):
        repr(last)
    first.cancel("why")
    assert done.closed
    assert last.cause() == "why"
    del first
    ref = weakref.ref(last)
    del last, done  # and all above go with it
    assert ref() is None


def test_a_dropped_child_goes_while_its_parent_lives(procs: int) -> None:
    async def enter(ctx: Context) -> None:
        async with ctx:
            await gofer.sleep(0)

    async def main() -> None:
        root = context.with_cancel()
        refs = []

        def keep(ctx: Context) -> Context:
            refs.append(weakref.ref(ctx))
            return ctx

        keep(context.with_cancel(root))
        keep(context.with_timeout(100_000, root))
        keep(context.with_value("key", 1, keep(context.with_cancel(root))))
        keep(context.without_cancel(root))
        keep(context.with_cancel(root)).cancel("why")
        keep(context.with_cancel(root)).done  # closed with it, not with a dropped one
        refs.pop()
        ended = keep(context.with_cancel(root))
        ended.done
        context.after_func(ended, give, 1)
        ended.cancel()
        del ended
        await enter(keep(context.with_cancel(root)))
        await enter(keep(context.with_timeout(100_000, root)))
        stop = context.after_func(keep(context.with_cancel(root)), print)
        assert stop()
        del stop
        await gofer.go(enter, keep(context.with_cancel(root)))
        for ref in refs:
            await gone(ref, procs)
        await until(lambda: _core.counters()["timers"] <= 1)
        assert not over(root)

    gofer.run(main, procs=procs)


def test_a_parent_does_not_grow_with_children_that_are_gone() -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(obj, Context) for obj in gc.get_objects())

    async def main() -> None:
        root = context.with_timeout(100_000)
        before = alive()
        for i in range(3000):
            ctx = context.with_timeout(50_000, root)
            async with ctx:
                await gofer.sleep(0)
            if i % 2:
                ctx.done
                ctx.cancel()
        del ctx
        assert alive() <= before + 2
        assert _core.counters()["timers"] == 0

    gofer.run(main)


def test_a_child_keeps_its_parents(procs: int) -> None:
    async def main() -> None:
        root = context.with_cancel()
        ref = weakref.ref(root)
        child = context.with_cancel(context.with_value("key", 1, root))
        del root
        gc.collect()
        assert ref() is not None
        assert child.value("key") == 1
        del child
        await gone(ref, procs)

    gofer.run(main, procs=procs)


def test_what_somebody_waits_for_stays_although_nobody_holds_it(procs: int) -> None:
    async def main() -> None:
        called = gofer.Chan[str](1)
        root = context.with_cancel()
        done = context.with_cancel(context.with_value("key", 1, root)).done
        soon = context.with_timeout(0.01, root).done
        context.after_func(context.with_cancel(root), called.send, "called")
        gc.collect()
        assert await soon.recv_ok() == (None, False)
        closed = [done.closed]
        root.cancel()
        assert [*closed, done.closed] == [False, True]
        assert await called.recv() == "called"

    gofer.run(main, procs=procs)


def test_a_goroutine_that_a_context_can_end_is_no_leak(procs: int) -> None:
    async def main() -> None:
        ctx = context.with_cancel(background())
        child = context.with_cancel(ctx)
        gofer.go(inside, child, gofer.Chan[int]().recv)
        await until(lambda: "waiting" in [g.state for g in _core.goroutines()])
        del child
        for _ in range(3):
            gc.collect()
        assert gofer.num_goroutine() == 2
        ctx.cancel()
        await until(lambda: gofer.num_goroutine() == 1)

    gofer.run(main, procs=procs)


def test_a_goroutine_whose_context_nobody_holds_is_a_leak(procs: int) -> None:
    async def main() -> None:
        ctx = context.with_cancel(background())
        gofer.go(inside, ctx, gofer.Chan[int]().recv)
        await until(lambda: "waiting" in [g.state for g in _core.goroutines()])
        del ctx

        def collected() -> bool:
            gc.collect()
            return gofer.num_goroutine() == 1

        with pytest.warns(gofer.GoroutineLeakWarning, match=r"\[chan receive\]"):
            await until(collected)

    gofer.run(main, procs=procs)


def test_waiting_for_the_end_of_one_that_cannot_end_is_a_deadlock(procs: int) -> None:
    async def main() -> None:
        async with context.with_cancel() as ctx:
            await ctx.done.recv_ok()

    with pytest.raises(gofer.Deadlock, match=r"\[chan receive\]"):
        gofer.run(main, procs=procs)


def test_a_deadline_costs_one_timer_and_only_while_somebody_waits(procs: int) -> None:
    async def main() -> None:
        ctx = context.with_timeout(100_000)
        children = [context.with_timeout(200_000, ctx) for _ in range(10)]
        assert _core.counters()["timers"] == 0
        never = gofer.Chan[int]()
        gs = [gofer.go(inside, c, never.recv) for c in children]
        await parked(*gs)
        assert _core.counters()["timers"] == 1
        children[0].done
        assert _core.counters()["timers"] == 1
        ctx.cancel()
        for g in gs:
            with pytest.raises(gofer.Cancelled):
                await g
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


# --- Binding: the edge ----------------------------------------------------------------------------


def test_its_own_cancel_ends_the_block_quietly(procs: int) -> None:
    async def main() -> None:
        seen: list[Any] = []
        ctx = context.with_cancel()
        async with ctx as entered:
            assert entered is ctx
            gofer.after_func(0.002, ctx.cancel, "why")
            try:
                await gofer.sleep(100_000)
            except gofer.Cancelled as exc:
                seen.append(exc.reason)
                raise
            seen.append("not reached")
        assert seen == ["why"]
        assert context.current() is background()
        await gofer.sleep(0)

    gofer.run(main, procs=procs)


def test_its_own_deadline_becomes_a_timeout_error() -> None:
    async def main() -> None:
        ctx = context.with_timeout(0.002)
        with pytest.raises(TimeoutError) as info:
            async with ctx:
                await gofer.sleep(100_000)
        assert isinstance(info.value.__cause__, gofer.Cancelled)
        assert isinstance(info.value.__cause__.reason, TimeoutError)
        await gofer.sleep(0)
        ctx = context.with_timeout(100_000)  # cancelled before its time: quiet
        async with ctx:
            ctx.cancel()
            await gofer.sleep(0)
            pytest.fail("not cancelled")

    gofer.run(main)


def test_what_is_further_out_goes_on_outward(procs: int) -> None:
    """Three blocks, unrelated or each the child of the next; one of them ends."""

    async def nested(related: bool, which: int, by_deadline: bool) -> list[str]:
        log: list[str] = []
        contexts: list[Context] = []
        for i in range(3):
            above = contexts[-1] if related and contexts else background()
            if by_deadline and i == which:
                contexts.append(context.with_timeout(0.001, above))
            else:
                contexts.append(context.with_cancel(above))
        if not by_deadline:
            gofer.after_func(0.001, contexts[which].cancel)

        async def enter(level: int) -> None:
            if level == 3:
                await gofer.sleep(100_000)
            try:
                async with contexts[level]:
                    await enter(level + 1)
                    await gofer.gosched()
                log.append("quiet")
            except TimeoutError:
                log.append("timeout")
            except gofer.Cancelled:
                log.append("cancelled")
                raise

        await enter(0)
        await gofer.sleep(0)
        return log

    async def main() -> None:
        for related in (False, True):
            for which in range(3):
                for by_deadline in (False, True):
                    log = await nested(related, which, by_deadline)
                    own = ["timeout" if by_deadline else "quiet"]
                    assert log == ["cancelled"] * (2 - which) + own + ["quiet"] * which

    gofer.run(main, procs=procs)


def test_the_end_of_a_parent_that_is_not_bound_is_not_its_own(procs: int) -> None:
    async def main() -> None:
        parent = context.with_cancel()
        g = await bound(context.with_cancel(parent))
        late = context.with_timeout(0.01)
        h = gofer.go(inside, context.with_cancel(late))
        parent.cancel("parent")
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value.reason == "parent"
        assert g.cancelled()
        with pytest.raises(gofer.Cancelled) as info:
            await h
        assert isinstance(info.value.reason, TimeoutError)

    gofer.run(main, procs=procs)


def test_only_a_cancelled_of_this_context_is_taken_at_its_edge() -> None:
    async def main() -> None:
        ctx = context.with_cancel()
        ctx.cancel()
        with pytest.raises(ValueError, match="mine"):
            async with ctx:
                raise ValueError("mine")
        with pytest.raises(gofer.Cancelled, match="by hand"):
            async with ctx:
                raise gofer.Cancelled("by hand")
        gofer.current().cancel("me")
        with pytest.raises(gofer.Cancelled) as info:
            async with ctx:
                await gofer.sleep(0)
        assert info.value.reason == "me"
        with pytest.raises(TimeoutError, match="mine"):
            async with ctx:
                raise TimeoutError("mine")

    gofer.run(main)


def test_a_block_that_does_not_wait_or_swallows_it_ends_as_it_likes() -> None:
    async def main() -> None:
        for ctx in (context.with_cancel(), context.with_timeout(100_000)):
            async with ctx:
                ctx.cancel()
            async with ctx:
                with pytest.raises(gofer.Cancelled):
                    await gofer.sleep(0)
        past = context.with_timeout(-1)
        async with past:
            pass
        with pytest.raises(TimeoutError):
            async with past:
                await gofer.sleep(0)

    gofer.run(main)


def test_the_same_context_twice() -> None:
    async def main() -> None:
        log = []
        ctx = context.with_cancel()
        async with ctx:
            async with ctx:
                ctx.cancel()
                await gofer.sleep(0)
                log.append("inner")
            log.append("between")
            await gofer.sleep(0)
            log.append("outer")
        assert log == ["between"]
        await gofer.sleep(0)

    gofer.run(main)


# --- Binding: level-triggered ---------------------------------------------------------------------


def test_while_it_is_over_every_operation_raises_and_does_nothing(procs: int) -> None:
    async def main() -> None:
        full, room, closed = gofer.Chan[int](1), gofer.Chan[int](1), gofer.Chan[int]()
        full.send_nowait(1)
        closed.close()
        done = gofer.go(give, 1)
        await done
        mu, rw, sem, wg = gofer.Mutex(), gofer.RWMutex(), gofer.Semaphore(1), gofer.WaitGroup()
        once = gofer.Once()
        timer = gofer.Timer(0)
        assert timer.c is not None
        operations: list[Callable[[], Awaitable[Any]]] = [
            lambda: gofer.sleep(0),
            lambda: gofer.sleep(100_000),
            gofer.gosched,
            full.recv,
            full.recv_ok,
            lambda: room.send(1),
            closed.recv_ok,
            lambda: full.__anext__(),
            lambda: gofer.select(full.recv(), room.send(1)),
            lambda: gofer.select(default=True),
            lambda: done,
            mu.lock,
            rw.lock,
            rw.rlock,
            sem.acquire,
            wg.wait,
            lambda: once.do(pytest.fail, "called"),
            timer.c.recv,
            gofer.Chan[int]().recv,
        ]
        ctx = context.with_cancel()
        async with ctx:
            ctx.cancel("over")
            for i, operation in enumerate(operations * 2):
                with pytest.raises(gofer.Cancelled) as info:
                    await operation()
                assert info.value.reason == "over", i
            assert full.recv_nowait() == 1  # what needs no goroutine goes on
            room.send_nowait(1)
            assert (mu.try_lock(), rw.try_lock(), sem.try_acquire()) == (True, True, True)
            assert timer.stop()
        assert await done == 1

    gofer.run(main, procs=procs)


def test_whatever_it_waits_in_is_given_up(procs: int) -> None:
    async def main() -> None:
        ch, other = gofer.Chan[int](), gofer.Chan[int]()
        mu, sem, wg = gofer.Mutex(), gofer.Semaphore(1), gofer.WaitGroup()
        await mu.lock()
        await sem.acquire()
        wg.add()
        forever = gofer.go(sleep_long)
        ctx = context.with_cancel()
        waits: list[Callable[[], Awaitable[Any]]] = [
            sleep_long,
            ch.recv,
            lambda: other.send(1),
            lambda: gofer.select(ch.recv(), other.send(1)),
            gofer.select,
            mu.lock,
            sem.acquire,
            wg.wait,
            lambda: forever,
        ]
        gs: list[gofer.Goroutine[Any]] = [gofer.go(inside, ctx, wait) for wait in waits]
        await parked(*gs)
        ctx.cancel()
        for g in gs:
            await g  # quietly
        with pytest.raises(gofer.WouldBlock):
            ch.send_nowait(1)
        with pytest.raises(gofer.WouldBlock):
            other.recv_nowait()
        mu.unlock()
        sem.release()
        assert (mu.try_lock(), sem.try_acquire()) == (True, True)
        forever.cancel()

    gofer.run(main, procs=procs)


def test_what_the_other_side_has_done_is_done(procs: int) -> None:
    async def main() -> None:
        async def receive() -> None:
            async with ctx:
                got.append(await ch.recv())
                await gofer.sleep(0)
                got.append(2)

        for _ in range(20):
            got: list[int] = []
            ch = gofer.Chan[int]()
            ctx = context.with_cancel()
            g = gofer.go(receive)
            await parked(g)
            ch.send_nowait(1)
            ctx.cancel()
            await g
            assert got[0] == 1
            if procs == 1:
                assert got == [1]

    gofer.run(main, procs=procs)


def test_one_that_is_over_when_it_is_entered_lets_the_block_begin() -> None:
    async def main() -> None:
        ctx = context.with_cancel()
        ctx.cancel()
        log = []
        async with ctx:
            log.append("began")
            await gofer.sleep(0)
            log.append("not reached")
        assert log == ["began"]

    gofer.run(main)


def test_cancel_of_the_goroutine_comes_once_and_the_context_again_and_again() -> None:
    async def main() -> None:
        ctx = context.with_cancel()
        async with ctx:
            ctx.cancel("context")
            gofer.current().cancel("goroutine")
            reasons = []
            for _ in range(4):
                with pytest.raises(gofer.Cancelled) as info:
                    await gofer.sleep(0)
                reasons.append(info.value.reason)
        assert sorted(reasons) == ["context"] * 3 + ["goroutine"]

    gofer.run(main)


def test_the_innermost_that_is_over_is_named() -> None:
    async def main() -> None:
        outer, inner = context.with_cancel(background()), context.with_cancel(background())
        seen: list[Any] = []
        async with outer:
            async with inner:
                for ctx, cause in ((outer, "outer"), (inner, "inner")):
                    ctx.cancel(cause)
                    with pytest.raises(gofer.Cancelled) as info:
                        await gofer.sleep(0)
                    seen.append(info.value.reason)
                await gofer.sleep(0)  # quietly out of the inner one
            with pytest.raises(gofer.Cancelled) as info:
                await gofer.sleep(0)
            seen.append(info.value.reason)
        assert seen == ["outer", "inner", "outer"]

    gofer.run(main)


def test_a_thread_can_cancel(procs: int) -> None:
    async def main() -> None:
        ctx = context.with_cancel()
        gs = [await bound(context.with_cancel(ctx)) for _ in range(10)]
        waiter = await waiting(ctx.done.recv_ok())
        with thread(ctx.cancel, "thread"):
            for g in gs:
                with pytest.raises(gofer.Cancelled) as info:
                    await g
                assert info.value.reason == "thread"
        assert await waiter == (None, False)

    gofer.run(main, procs=procs)


def test_a_thread_can_wait(procs: int) -> None:
    def foreign() -> None:
        assert gofer.block(ctx.done.recv_ok()) == (None, False)

    ctx = context.with_cancel(background())

    async def main() -> None:
        with thread(foreign) as t:
            await gofer.sleep(0.002)
            assert t.is_alive()
            ctx.cancel()
            await until(lambda: not t.is_alive())

    gofer.run(main, procs=procs)


# --- Inheritance ----------------------------------------------------------------------------------


def test_what_is_started_inside_is_bound_too(procs: int) -> None:
    async def child(depth: int) -> None:
        current.append(context.current())
        g = gofer.go(child, depth - 1) if depth else None
        try:
            await sleep_long()
        finally:
            ended.append(depth)
        assert g is None

    current: list[Context] = []
    ended: list[int] = []

    async def main() -> None:
        before = gofer.go(sleep_long)
        ctx = context.with_cancel()
        async with ctx:
            g = gofer.go(child, 3)
        after = gofer.go(sleep_long)
        await until(lambda: len(current) == 4)
        assert all(c is ctx for c in current)
        await parked(before, after)
        ctx.cancel("why")
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value.reason == "why"
        await until(lambda: len(ended) == 4)  # and nobody who takes it: no failure
        await gofer.sleep(0.001)
        assert not before.done()
        assert not after.done()

    gofer.run(main, procs=procs)


def test_what_is_started_inside_one_that_is_over_is_cancelled_at_once(procs: int) -> None:
    async def child() -> str:
        try:
            await gofer.sleep(0)
        except gofer.Cancelled as exc:
            return str(exc.reason)
        return "not cancelled"

    async def main() -> None:
        ctx = context.with_cancel()
        ctx.cancel("over")
        async with ctx:
            gs = [gofer.go(child) for _ in range(10)]
        assert [await g for g in gs] == ["over"] * 10

    gofer.run(main, procs=procs)


def test_all_contexts_are_inherited_related_or_not(procs: int) -> None:
    async def main() -> None:
        for which in range(3):
            contexts = [context.with_cancel(background()) for _ in range(3)]
            async with contexts[0], contexts[1], contexts[2]:
                g = gofer.go(sleep_long)
                await parked(g)
            contexts[which].cancel(which)
            with pytest.raises(gofer.Cancelled) as info:
                await g
            assert info.value.reason == which

    gofer.run(main, procs=procs)


def test_a_child_bound_inside_its_parent_is_inherited_with_it(procs: int) -> None:
    async def main() -> None:
        for which in range(3):
            a = context.with_cancel()
            b = context.with_value("key", 1, a)
            c = context.with_cancel(b)
            async with a, b, c:
                g = gofer.go(sleep_long)
                await parked(g)
            (a, b, c)[which].cancel(which)
            with pytest.raises(gofer.Cancelled) as info:
                await g
            assert info.value.reason == which

    gofer.run(main, procs=procs)


def test_the_default_parent_is_the_current_one(procs: int) -> None:
    async def child() -> None:
        assert context.current() is ctx
        async with context.with_value("b", 2) as inner:
            assert context.current() is inner
            assert (inner.value("a"), inner.value("b")) == (1, 2)
        assert context.current() is ctx
        made.append(context.with_cancel())

    made: list[Context] = []
    ctx = context.with_value("a", 1, background())

    async def main() -> None:
        async with ctx:
            made.append(context.with_cancel())
            made.append(context.with_timeout(100_000))
            await gofer.go(child)
        assert context.current() is background()
        ctx.cancel("why")
        assert [c.cause() for c in made] == ["why"] * 3

    gofer.run(main, procs=procs)


def test_a_goroutine_that_ended_is_no_longer_bound(procs: int) -> None:
    async def main() -> None:
        ctx = context.with_cancel()
        async with ctx:
            g = gofer.go(give, object())
            result = weakref.ref(g)
            await g
            del g
            await gone(result, procs)

    gofer.run(main, procs=procs)


# --- shield and without_cancel --------------------------------------------------------------------


def test_in_a_shield_what_is_over_outside_raises_nothing(procs: int) -> None:
    async def main() -> None:
        log = []
        ctx = context.with_cancel()
        async with ctx:
            ctx.cancel()
            try:
                await gofer.sleep(0)
            finally:
                async with context.shield():
                    await gofer.sleep(0.001)
                    await gofer.gosched()
                    assert await gofer.go(give, 1) == 1
                    log.append("cleaned up")
                with pytest.raises(gofer.Cancelled):
                    await gofer.sleep(0)
                log.append("over again")
        assert log == ["cleaned up", "over again"]

    gofer.run(main, procs=procs)


def test_in_a_shield_waiting_is_not_disturbed(procs: int) -> None:
    """The end of the context outside wakes who is bound to it; he must go on waiting."""

    async def main() -> None:
        a, b = gofer.Chan[int](), gofer.Chan[int]()
        mu, sem, wg = gofer.Mutex(), gofer.Semaphore(1), gofer.WaitGroup()
        rw, cond_mu = gofer.RWMutex(), gofer.Mutex()
        cond = gofer.Cond(cond_mu)
        await mu.lock()
        await sem.acquire()
        await rw.lock()
        wg.add()
        timer = gofer.Timer(100_000)
        assert timer.c is not None
        target = gofer.go(wait_for, b.recv())

        async def wait_cond() -> None:
            async with cond_mu:
                await cond.wait()

        waits: list[tuple[Callable[[], Awaitable[Any]], Callable[[], object]]] = [
            (a.recv, lambda: a.send_nowait(1)),
            (lambda: a.send(1), a.recv_nowait),
            (lambda: gofer.select(a.recv(), gofer.sleep(100_000)), lambda: a.send_nowait(1)),
            (lambda: target, lambda: b.send_nowait(1)),
            (mu.lock, mu.unlock),
            (rw.rlock, rw.unlock),
            (sem.acquire, sem.release),
            (wg.wait, wg.done),
            (timer.c.recv, lambda: timer.reset(0)),
            (wait_cond, cond.broadcast),
        ]
        for wait, wake in waits:
            ctx = context.with_cancel()

            async def shielded(ctx: Context = ctx, wait: Callable[[], Any] = wait) -> str:
                async with ctx:
                    async with context.shield():
                        await wait()
                    with pytest.raises(gofer.Cancelled):
                        await gofer.sleep(0)
                    return "waited"
                return "not reached"

            g = gofer.go(shielded)
            await parked(g)
            ctx.cancel()
            await gofer.sleep(0.001)
            assert not g.done()
            await parked(g)
            wake()
            assert await g == "waited"

    gofer.run(main, procs=procs)


def test_in_a_shield_a_sleep_is_not_cut_short(procs: int) -> None:
    async def main() -> None:
        ctx = context.with_timeout(0.002)
        with pytest.raises(TimeoutError):
            await limited(ctx)

    async def limited(ctx: Context) -> None:
        async with ctx:
            await sleep_shielded()
            await gofer.sleep(0)

    async def sleep_shielded() -> None:
        start = time.monotonic()
        async with context.shield():
            await gofer.sleep(0.01)
        assert time.monotonic() - start >= 0.01

    gofer.run(main, procs=procs)


def test_what_is_bound_inside_a_shield_counts(procs: int) -> None:
    async def main() -> None:
        outer = context.with_cancel()
        async with outer:
            outer.cancel()
            async with context.shield() as shield:
                with pytest.raises(TimeoutError):
                    async with gofer.timeout(0.002):
                        await sleep_long()
                inner = context.with_cancel()
                async with inner:
                    inner.cancel()
                    await gofer.sleep(0)
                    pytest.fail("not cancelled")
                async with context.shield():
                    await gofer.sleep(0)
                async with outer:  # over, and inside
                    with pytest.raises(gofer.Cancelled):
                        await gofer.sleep(0)
                await gofer.sleep(0)
                assert context.current() is shield
        await gofer.sleep(0)

    gofer.run(main, procs=procs)


def test_what_is_started_in_a_shield_is_shielded(procs: int) -> None:
    async def child() -> str:
        await gofer.sleep(0.005)
        return "lived"

    async def main() -> None:
        ctx = context.with_value("key", 1)
        async with ctx:
            async with context.shield():
                g = gofer.go(child)
                assert context.current().value("key") == 1
                assert context.current().deadline is None
            ctx.cancel()
        assert await g == "lived"

    gofer.run(main, procs=procs)


def test_cancel_of_the_goroutine_waits_for_the_end_of_the_shield(procs: int) -> None:
    log: list[str] = []

    async def child(ended: gofer.Chan[None]) -> None:
        async with context.shield(), context.shield():
            with pytest.raises(TimeoutError):  # what is inside counts
                async with gofer.timeout(0.001):
                    await sleep_long()
            await ended.recv()
            log.append("clean")
        log.append("left")
        await gofer.sleep(0)
        log.append("not reached")

    async def main() -> None:
        ended = gofer.Chan[None]()
        g = gofer.go(child, ended)
        await parked(g)
        g.cancel("why")
        g.cancel("again")
        await ended.send(None)
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value.reason == "why"
        assert log == ["clean", "left"]
        log.clear()

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("how", ["by a context", "by cancel", "by nobody"])
def test_clean_up_in_a_shield_outlives_main(procs: int, how: str) -> None:
    log: list[str] = []

    async def child() -> None:
        try:
            await sleep_long()
        finally:
            async with context.shield():
                await gofer.sleep(0.03)
                spin(0.15)  # so long that whoever computes is told at a boundary
                await gofer.sleep(0.001)
                log.append("clean")

    async def main() -> None:
        async with context.with_cancel() as ctx:
            g = gofer.go(child)
            await parked(g)
            if how == "by a context":
                ctx.cancel()
            elif how == "by cancel":
                g.cancel()

    gofer.run(main, procs=procs)
    assert log == ["clean"]


def test_a_shield_does_not_keep_a_run_that_is_stuck(procs: int) -> None:
    log: list[str] = []

    async def stuck() -> None:
        try:
            async with context.shield():
                await gofer.Chan[int]().recv()
        finally:
            log.append("out")

    async def ends() -> None:
        g = gofer.go(stuck)
        await parked(g)

    gofer.run(ends, procs=procs)
    assert log == ["out"]
    with pytest.raises(gofer.Deadlock):
        gofer.run(stuck, procs=procs)
    assert log == ["out", "out"]


async def ticks() -> None:
    """So that not all goroutines are asleep."""
    while True:
        await gofer.sleep(0.001)


def test_a_shield_does_not_keep_main_when_another_has_failed(procs: int) -> None:
    async def fails() -> None:
        raise KeyError("nobody looks")

    async def main() -> None:
        gofer.go(ticks)
        try:
            async with context.shield():
                gofer.go(fails)
                await gofer.Chan[int]().recv()
        finally:
            async with context.shield():
                await gofer.sleep(0.01)
                log.append("clean")

    log: list[str] = []
    with pytest.raises(KeyError, match="nobody looks"):
        gofer.run(main, procs=procs)
    assert log == ["clean"]


def test_that_main_was_stuck_in_a_shield_takes_it_from_nobody_else(procs: int) -> None:
    async def child(begin: gofer.Chan[None]) -> None:
        await begin.recv()
        async with context.shield():
            await gofer.sleep(0.05)
            log.append("clean")

    async def main() -> None:
        begin = gofer.Chan[None]()
        await parked(gofer.go(child, begin))
        try:
            async with context.shield():
                await gofer.Chan[int]().recv()
        finally:
            await begin.send(None)

    log: list[str] = []
    with pytest.raises(gofer.Deadlock):
        gofer.run(main, procs=procs)
    assert log == ["clean"]


def test_shields_within_shields(procs: int) -> None:
    async def child(n: int, ended: gofer.Chan[int]) -> int:
        if n == 0:
            return await ended.recv()
        async with context.shield():
            return await child(n - 1, ended)

    async def main() -> None:
        ended = gofer.Chan[int]()
        g = gofer.go(child, 256, ended)
        await parked(g)
        g.cancel()
        await ended.send(5)
        assert await g == 5

    gofer.run(main, procs=procs)


def test_who_leaves_an_inherited_shield_by_hand_has_none(procs: int) -> None:
    async def child(shield: Context) -> None:
        await shield.__aexit__(None, None, None)
        await sleep_long()

    async def main() -> None:
        async with context.shield() as shield:
            g = gofer.go(child, shield)
            await parked(g)
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("main", ["waits", "plain"])
def test_a_second_ctrl_c_ends_a_plain_goroutine_in_a_shield(main: str, procs: int) -> None:
    program = Program(
        """
        import sys, gofer
        from gofer import block, context

        async def ticks():
            async with context.shield():  # so that they are never all asleep
                while True:
                    await gofer.sleep(0.001)

        async def shielded():
            async with context.shield():
                print("ready", flush=True)
                await gofer.Chan().recv()

        def plain():
            gofer.go(ticks)
            block(shielded())

        async def waits():
            gofer.go(plain)
            try:
                await gofer.Chan().recv()
            finally:
                print("cancelled", flush=True)

        async def nothing():
            pass

        try:
            gofer.run(globals()[sys.argv[1]], procs=int(sys.argv[2]))
        except KeyboardInterrupt:
            print("KeyboardInterrupt", flush=True)
        gofer.run(nothing)
        """,
        main,
        str(procs),
    )
    program.expect("ready")
    program.interrupt()
    if main == "waits":
        program.expect("cancelled")
    time.sleep(0.2)  # there is nothing to see
    program.interrupt()
    assert program.finish().check() == "KeyboardInterrupt\n"


def test_what_is_started_in_a_shield_can_be_cancelled(procs: int) -> None:
    async def main() -> None:
        async with context.shield():
            g = gofer.go(sleep_long)
            await parked(g)
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g

    gofer.run(main, procs=procs)


def test_a_shield_cannot_be_cancelled() -> None:
    async def main() -> None:
        async with context.with_cancel() as ctx, context.shield() as shield:
            with pytest.raises(RuntimeError, match="cannot be cancelled"):
                shield.cancel()
            ctx.cancel()
            assert not over(shield)
            await gofer.sleep(0)

    gofer.run(main)


def test_without_cancel_keeps_the_values_alone() -> None:
    async def main() -> None:
        async with context.with_timeout(100_000) as outer, context.with_value("key", 1):
            ctx = context.without_cancel()
            assert ctx.deadline is None
            assert ctx.value("key") == 1
            with pytest.raises(RuntimeError, match="cannot be cancelled"):
                ctx.cancel()
            outer.cancel()
            assert not over(ctx)
            assert not over(context.without_cancel(outer))
            child = context.with_cancel(ctx)
            assert not over(child)
            child.cancel("child")
            assert child.cause() == "child"
            assert not over(ctx)
            for inner in (ctx, context.with_value("key", 2, ctx), context.with_timeout(10, ctx)):
                async with inner:
                    await gofer.sleep(0)
            with pytest.raises(gofer.Cancelled):
                await gofer.sleep(0)

    gofer.run(main)


def test_what_is_started_without_cancel_is_not_cancelled(procs: int) -> None:
    async def main() -> None:
        async with context.with_cancel() as ctx:
            async with context.without_cancel():
                g = gofer.go(give, 5)
                waits = gofer.go(sleep_long)
            ctx.cancel()
        assert await g == 5
        waits.cancel()  # which is another thing
        with pytest.raises(gofer.Cancelled):
            await waits

    gofer.run(main, procs=procs)


# --- after_func -----------------------------------------------------------------------------------


def test_the_function_is_called_when_it_is_over(procs: int) -> None:
    told = gofer.Chan[tuple[Any, ...]](1)

    def plain(*args: Any) -> None:
        g = gofer.current()
        told.send_nowait((g.id, g.parent_id, g.name, g.created_at, args))

    async def slow(*args: Any) -> None:
        await gofer.sleep(0.001)
        plain(*args)

    async def main() -> None:
        def by_cancel() -> tuple[Context, Callable[[], object]]:
            ctx = context.with_cancel()
            return ctx, ctx.cancel

        def by_parent() -> tuple[Context, Callable[[], object]]:
            parent = context.with_cancel()
            return context.with_value("key", 1, parent), parent.cancel

        def by_deadline() -> tuple[Context, Callable[[], object]]:
            return context.with_timeout(0.002), lambda: None

        def before() -> tuple[Context, Callable[[], object]]:
            ctx = context.with_cancel()
            ctx.cancel()
            return ctx, lambda: None

        for make in (by_cancel, by_parent, by_deadline, before):
            for fn in (plain, slow):
                ctx, end = make()
                stop = context.after_func(ctx, fn, 1, "two")
                line = here(-1)
                end()
                id, parent_id, name, created_at, args = await told.recv()
                assert id != gofer.current().id == parent_id
                assert name == fn.__qualname__
                assert created_at == line
                assert args == (1, "two")
                assert over(ctx)
                assert (stop(), stop()) == (False, False)

    gofer.run(main, procs=procs)


def test_cancel_does_not_call_it_itself() -> None:
    called: list[int] = []

    async def main() -> None:
        ctx = context.with_cancel()
        for i in range(3):
            context.after_func(ctx, called.append, i)
        ctx.cancel()
        context.after_func(ctx, called.append, 3)
        assert not called
        await until(lambda: len(called) == 4)
        assert sorted(called) == [0, 1, 2, 3]

    gofer.run(main, procs=1)


def test_stop_is_true_once_and_only_if_it_came_in_time(procs: int) -> None:
    async def main() -> None:
        called: list[int] = []
        ctx = context.with_cancel()
        stops = [context.after_func(ctx, called.append, i) for i in range(10)]
        assert [stop() for stop in stops[::2]] == [True] * 5
        assert [stop() for stop in stops[::2]] == [False] * 5
        ctx.cancel()
        assert not any(stop() for stop in stops)
        await until(lambda: len(called) == 5)
        await gofer.sleep(0.001)
        assert sorted(called) == [1, 3, 5, 7, 9]

    gofer.run(main, procs=procs)


def test_it_may_wait_although_it_was_asked_for_inside(procs: int) -> None:
    """It is there to clean up: what is over does not bind it, whoever ended it."""

    async def clean_up() -> None:
        current.append(context.current())
        await gofer.sleep(0.001)
        await cleaned.send(1)

    current: list[Context] = []
    cleaned = gofer.Chan[int]()

    async def main() -> None:
        ctx, other = context.with_cancel(), context.with_cancel()
        async with ctx:
            context.after_func(ctx, clean_up)
            async with other:  # who cancels has nothing to do with it
                ctx.cancel()
        other.cancel()
        await cleaned.recv()
        assert current == [background()]

    gofer.run(main, procs=procs)


def test_its_failure_ends_the_run_and_tells_where_it_came_from(procs: int) -> None:
    line = ""

    def fail() -> None:
        raise ValueError("as told")

    async def main() -> None:
        nonlocal line
        ctx = context.with_cancel()
        context.after_func(ctx, fail)
        line = here(-1)
        ctx.cancel()
        await gofer.sleep(PATIENCE)

    with pytest.raises(ValueError, match="as told") as info:
        gofer.run(main, procs=procs)
    assert any(line in note and "fail" in note for note in info.value.__notes__)


def test_what_has_not_ended_when_main_does_calls_nothing(procs: int) -> None:
    called: list[int] = []
    stops: list[Callable[[], bool]] = []
    ctx = context.with_cancel(background())

    async def main() -> None:
        stops.append(context.after_func(ctx, called.append, 1))
        stops.append(context.after_func(background(), called.append, 2))

    gofer.run(main, procs=procs)
    assert [stop() for stop in stops] == [True, True]
    ctx.cancel()
    assert not called


def test_bad_use_of_after_func() -> None:
    ctx = context.with_cancel(background())
    bad: Any
    for bad in (None, 5, "print"):
        with pytest.raises(TypeError, match=repr(bad)):
            context.after_func(ctx, bad)
    stop: Any = context.after_func(ctx, print)
    with pytest.raises(TypeError):
        stop(1)
    with pytest.raises(TypeError):
        stop(x=1)
    assert stop()
