"""Group: goroutines that end with their block, and whose failures nobody can miss."""

import contextlib
import functools
import threading
import time
import traceback
from concurrent.futures import Future
from typing import Any

import pytest

import gofer
from gofer import _core, context
from tests.support import PATIENCE, give, here, parked, sleep_long, thread, until, wait_for


async def fail(exc: BaseException) -> None:
    """As a goroutine: one that fails."""
    raise exc


def errors_of(group: BaseExceptionGroup[Any]) -> list[str]:
    """What is in there, in no particular order."""
    return sorted(map(repr, group.exceptions))


# --- Together -------------------------------------------------------------------------------------


def test_the_block_waits_for_all(procs: int) -> None:
    ended: list[int] = []

    async def worker(i: int, *, yields: int) -> int:
        for _ in range(yields):
            await gofer.gosched()
        ended.append(i)
        return 2 * i

    async def main() -> None:
        async with gofer.Group() as g:
            gs = [g.go(worker, i, yields=i % 5) for i in range(50)]
        assert sorted(ended) == list(range(50))
        assert [x.result() for x in gs] == [2 * i for i in range(50)]

    gofer.run(main, procs=procs)


def test_after_the_block_all_its_goroutines_are_dead(procs: int) -> None:
    async def main() -> None:
        for i in range(100):
            async with gofer.Group() as g:
                gs = [g.go(give, i) for _ in range(4)]
            assert [x.state for x in gs] == ["dead"] * 4
            assert gofer.num_goroutine() == 1

    gofer.run(main, procs=procs)


def test_an_empty_one_is_fine() -> None:
    async def main() -> None:
        async with gofer.Group() as g:
            assert isinstance(g, gofer.Group)
            assert g.context.err() is None
        async with gofer.Group(limit=3):
            pass

    gofer.run(main)


def test_a_goroutine_of_the_group_can_be_awaited_in_it(procs: int) -> None:
    async def main() -> None:
        async with gofer.Group() as g:
            assert await g.go(give, 1) + await g.go(give, 2) == 3

    gofer.run(main, procs=procs)


def test_goroutines_of_the_group_may_start_more(procs: int) -> None:
    ended: list[int] = []

    async def worker(g: gofer.Group, n: int) -> None:
        for _ in range(2 if n else 0):
            g.go(worker, g, n - 1)
        await gofer.gosched()
        ended.append(n)

    async def main() -> None:
        async with gofer.Group() as g:
            g.go(worker, g, 5)

    gofer.run(main, procs=procs)
    assert len(ended) == 63


def test_others_may_start_goroutines_in_it(procs: int) -> None:
    """They are bound to the context of the group, not to that of their starter."""

    async def main() -> None:
        box: list[gofer.Group] = []
        started: list[gofer.Goroutine[None]] = []

        async def outsider() -> None:
            await until(lambda: box)
            started.append(box[0].go(sleep_long))

        def foreign() -> None:
            started.append(box[0].go(sleep_long))

        out = gofer.go(outsider)
        async with gofer.Group() as g:
            box.append(g)
            await out
            with thread(foreign):
                await until(lambda: len(started) == 2)
            await parked(*started)
            g.cancel()
        assert all(s.cancelled() for s in started)
        box.clear()

    gofer.run(main, procs=procs)


def test_its_goroutines_say_who_they_are_and_where_they_were_started() -> None:
    async def main() -> None:
        async with gofer.Group() as g:
            one = g.go(give, 1)
            assert one.created_at == here(-1)
            assert one.name == "give"
            assert g.go(functools.partial(give, 2)).name == "give"
            assert g.go(give, 3, name="three").name == "three"

    gofer.run(main)


def test_groups_can_be_nested(procs: int) -> None:
    ended: list[str] = []

    async def leaf(name: str) -> None:
        await gofer.sleep(0.0005)
        ended.append(name)

    async def inner(name: str) -> None:
        async with gofer.Group() as g:
            g.go(leaf, name + "1")
            g.go(leaf, name + "2")
        ended.append(name)

    async def main() -> None:
        async with gofer.Group() as g:
            g.go(inner, "a")
            g.go(inner, "b")
        assert sorted(ended) == ["a", "a1", "a2", "b", "b1", "b2"]
        assert ended.index("a") > max(ended.index("a1"), ended.index("a2"))

    gofer.run(main, procs=procs)


# --- Failure --------------------------------------------------------------------------------------


def test_a_failure_cancels_the_others_and_is_raised(procs: int) -> None:
    causes: list[Any] = []

    async def waits() -> None:
        try:
            await gofer.sleep(100_000)
        except gofer.Cancelled as exc:
            causes.append(exc.reason)
            raise

    async def block(g: gofer.Group, others: list[Any], failure: Exception) -> None:
        async with g:
            others += [g.go(waits) for _ in range(5)]
            await parked(*others)
            g.go(fail, failure)
            await gofer.sleep(100_000)  # the block is cancelled too

    async def main() -> None:
        g, failure = gofer.Group(), KeyError("first")
        others: list[gofer.Goroutine[None]] = []
        with pytest.raises(ExceptionGroup) as info:
            await block(g, others, failure)
        assert info.value.exceptions == (failure,)
        assert causes == [failure] * 5
        assert all(x.cancelled() for x in others)
        assert g.context.cause() is failure

    for _ in range(5):
        causes.clear()
        gofer.run(main, procs=procs)


def test_all_failures_are_in_the_group(procs: int) -> None:
    """Also those of goroutines that fail because they are cancelled."""

    async def stubborn(i: int) -> None:
        try:
            await gofer.sleep(100_000)
        finally:
            raise ValueError(i)

    async def block() -> None:
        async with gofer.Group() as g:
            gs = [g.go(stubborn, i) for i in range(3)]
            await parked(*gs)
            g.go(fail, KeyError("first"))

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as info:
            await block()
        assert errors_of(info.value) == [
            "KeyError('first')",
            "ValueError(0)",
            "ValueError(1)",
            "ValueError(2)",
        ]

    gofer.run(main, procs=procs)


def test_many_fail_at_once(procs: int) -> None:
    """Whoever is first: none is lost, and none is taken for one that nobody looks at."""

    async def block() -> None:
        async with gofer.Group() as g:
            for i in range(10):
                g.go(fail, KeyError(i))

    async def main() -> None:
        for _ in range(20):
            with pytest.raises(ExceptionGroup) as info:
                await block()
            # Some may have been cancelled before they began.
            assert 1 <= len(info.value.exceptions) <= 10
            assert len(set(map(id, info.value.exceptions))) == len(info.value.exceptions)

    gofer.run(main, procs=procs)


def test_a_failure_of_the_block_cancels_its_goroutines(procs: int) -> None:
    async def block(g: gofer.Group, children: list[Any], failure: Exception) -> None:
        async with g:
            children.append(g.go(sleep_long))
            await parked(*children)
            raise failure

    async def main() -> None:
        g, failure = gofer.Group(), KeyError("block")
        children: list[gofer.Goroutine[None]] = []
        with pytest.raises(ExceptionGroup) as info:
            await block(g, children, failure)
        assert info.value.exceptions == (failure,)
        assert children[0].cancelled()
        assert g.context.cause() is failure

    gofer.run(main, procs=procs)


def test_failures_of_the_block_and_of_a_goroutine_are_raised_together(procs: int) -> None:
    async def fails_when_cancelled() -> None:
        try:
            await gofer.sleep(100_000)
        finally:
            raise KeyError("child")

    async def block() -> None:
        async with gofer.Group() as g:
            await parked(g.go(fails_when_cancelled))
            raise KeyError("block")

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as info:
            await block()
        assert errors_of(info.value) == ["KeyError('block')", "KeyError('child')"]

    gofer.run(main, procs=procs)


def test_what_the_block_gets_from_a_goroutine_is_one_failure(procs: int) -> None:
    async def block(failure: Exception) -> None:
        async with gofer.Group() as g:
            child = g.go(fail, failure)
            async with context.shield():
                await child

    async def main() -> None:
        failure = KeyError("once")
        with pytest.raises(ExceptionGroup) as info:
            await block(failure)
        assert info.value.exceptions == (failure,)

    gofer.run(main, procs=procs)


def test_except_star_picks_them(procs: int) -> None:
    async def main() -> list[str]:
        log: list[str] = []
        try:
            async with gofer.Group() as g:
                g.go(fail, KeyError("k"))
                await gofer.sleep(100_000)
        except* KeyError as group:
            log += errors_of(group)
        except* ValueError:
            log.append("wrong")
        return log

    assert gofer.run(main, procs=procs) == ["KeyError('k')"]


def test_collapse_raises_a_single_failure_as_it_is(procs: int) -> None:
    failure = KeyError("alone")

    async def of_a_goroutine() -> None:
        async with gofer.Group(collapse=True) as g:
            g.go(sleep_long)
            g.go(fail, failure)

    async def of_the_block() -> None:
        async with gofer.Group(collapse=True) as g:
            g.go(sleep_long)
            raise failure

    async def of_both() -> None:
        async with gofer.Group(collapse=True) as g:
            child = g.go(fail, failure)
            async with context.shield():
                await child

    async def main() -> None:
        for case in (of_a_goroutine, of_the_block, of_both):
            with pytest.raises(KeyError) as info:
                await case()
            assert info.value is failure

    gofer.run(main, procs=procs)


def test_collapse_raises_several_as_a_group(procs: int) -> None:
    async def second() -> None:
        try:
            await gofer.sleep(100_000)
        finally:
            raise ValueError

    async def block() -> None:
        async with gofer.Group(collapse=True) as g:
            await parked(g.go(second))
            g.go(fail, KeyError())

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as info:
            await block()
        assert errors_of(info.value) == ["KeyError()", "ValueError()"]

    gofer.run(main, procs=procs)


def test_a_base_exception_makes_a_base_exception_group(procs: int) -> None:
    class Fatal(BaseException):
        pass

    async def main() -> None:
        with pytest.raises(BaseExceptionGroup) as info:
            async with gofer.Group() as g:
                g.go(fail, Fatal("x"))
        assert not isinstance(info.value, ExceptionGroup)
        assert errors_of(info.value) == ["Fatal('x')"]

    gofer.run(main, procs=procs)


def test_goexit_is_no_failure(procs: int) -> None:
    ended: list[str] = []

    async def exits() -> None:
        gofer.goexit()

    async def goes_on() -> str:
        await gofer.sleep(0.001)
        ended.append("child")
        return "not cancelled"

    async def exits_the_block() -> None:
        async with gofer.Group() as g:
            g.go(goes_on)
            gofer.goexit()
        ended.append("never")

    async def main() -> None:
        async with gofer.Group() as g:
            g.go(exits)
            child = g.go(goes_on)
        assert child.result() == "not cancelled"
        ended.clear()
        assert await gofer.go(exits_the_block) is None  # type: ignore[func-returns-value]
        assert ended == ["child"]

    gofer.run(main, procs=procs)


# --- Cancellation ---------------------------------------------------------------------------------


def test_a_goroutine_that_is_cancelled_is_no_failure(procs: int) -> None:
    async def main() -> None:
        async with gofer.Group() as g:
            child = g.go(sleep_long)
            other = g.go(give, 7)
            await parked(child)
            child.cancel("only you")
        assert child.cancelled()
        assert other.result() == 7
        assert g.context.cause() is None or "only you" not in repr(g.context.cause())

    gofer.run(main, procs=procs)


def test_one_that_is_cancelled_before_it_begins_is_waited_for_all_the_same(procs: int) -> None:
    called: list[int] = []

    async def child() -> None:
        called.append(1)

    async def main() -> None:
        for limit in (None, 3):
            for _ in range(20):
                called.clear()
                async with gofer.timeout(10), gofer.Group(limit) as g:
                    member = g.go(child)
                    member.cancel()
                await until(member.done)
                assert member.cancelled() == (not called)

    gofer.run(main, procs=procs)


def test_cancel_ends_the_block_quietly(procs: int) -> None:
    async def main() -> str:
        async with gofer.Group() as g:
            children = [g.go(sleep_long) for _ in range(3)]
            await parked(*children)
            g.cancel("enough")
            await gofer.sleep(100_000)
        assert all(child.cancelled() for child in children)
        assert g.context.cause() == "enough"
        return "went on"

    assert gofer.run(main, procs=procs) == "went on"


def test_a_goroutine_may_cancel_the_group(procs: int) -> None:
    async def winner(g: gofer.Group, values: list[int]) -> None:
        values.append(42)
        g.cancel()

    async def main() -> None:
        values: list[int] = []
        async with gofer.Group() as g:
            for _ in range(3):
                g.go(sleep_long)
            g.go(winner, g, values)
        assert values == [42]

    gofer.run(main, procs=procs)


def test_after_cancel_its_goroutines_still_clean_up_before_the_block_ends(procs: int) -> None:
    cleaned: list[int] = []

    async def child(i: int) -> None:
        try:
            await gofer.sleep(100_000)
        finally:
            async with context.shield():
                await gofer.sleep(0.001)
            cleaned.append(i)

    async def main() -> None:
        async with gofer.Group() as g:
            await parked(*[g.go(child, i) for i in range(5)])
            g.cancel()
        assert sorted(cleaned) == list(range(5))

    gofer.run(main, procs=procs)


class Slow:
    """A block in a goroutine of its own, whose child takes its time to end."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.go_on = gofer.Chan[None]()
        self.group: gofer.Group | None = None

    async def child(self) -> None:
        try:
            await gofer.sleep(100_000)
        finally:
            self.log.append("child is cancelled")
            async with context.shield():
                await self.go_on.recv()
            self.log.append("child ends")

    async def block(self) -> None:
        try:
            async with gofer.Group() as self.group:
                await parked(self.group.go(self.child))
                self.log.append("ready")
                await gofer.sleep(100_000)
            self.log.append("quiet")
        finally:
            self.log.append("block ends")

    async def until_cancelled(self) -> None:
        await until(lambda: "child is cancelled" in self.log)

    async def start(self) -> gofer.Goroutine[None]:
        g = gofer.go(self.block)
        await until(lambda: "ready" in self.log)
        await parked(g)
        self.log.clear()
        return g


def test_when_its_goroutine_is_cancelled_the_others_end_first(procs: int) -> None:
    async def main() -> None:
        slow = Slow()
        g = await slow.start()
        g.cancel("outer")
        await slow.until_cancelled()
        await parked(g)
        await slow.go_on.send(None)
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value.reason == "outer"
        assert slow.log == ["child is cancelled", "child ends", "block ends"]

    gofer.run(main, procs=procs)


def test_no_number_of_cancellations_lets_the_block_end_before_them(procs: int) -> None:
    async def main() -> None:
        slow = Slow()
        g = await slow.start()
        for i in range(4):
            g.cancel(i)
            await slow.until_cancelled()
            await gofer.sleep(0.001)
            await parked(g)
        await slow.go_on.send(None)
        with pytest.raises(gofer.Cancelled):
            await g
        assert slow.log == ["child is cancelled", "child ends", "block ends"]

    gofer.run(main, procs=procs)


def test_a_cancellation_of_its_goroutine_is_not_lost_in_a_quiet_end(procs: int) -> None:
    async def main() -> None:
        slow = Slow()
        g = await slow.start()
        assert slow.group is not None
        slow.group.cancel("quietly")
        await slow.until_cancelled()
        await parked(g)
        g.cancel("you too")
        await gofer.sleep(0.001)
        await slow.go_on.send(None)
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value.reason == "you too"
        assert slow.log == ["child is cancelled", "child ends", "block ends"]

    gofer.run(main, procs=procs)


def test_an_outer_context_cancels_it_and_goes_on_outward(procs: int) -> None:
    async def main() -> None:
        children: list[gofer.Goroutine[None]] = []
        with pytest.raises(TimeoutError):
            async with gofer.timeout(0.005), gofer.Group() as g:
                children += [g.go(sleep_long) for _ in range(3)]
        assert all(child.cancelled() for child in children)

        ctx = context.with_cancel()
        async with ctx, gofer.Group() as g:
            child = g.go(sleep_long)
            ctx.cancel("from outside")
            await gofer.sleep(100_000)
        assert child.cancelled()

    gofer.run(main, procs=procs)


def test_a_failure_after_the_end_of_an_outer_context_is_not_lost(procs: int) -> None:
    async def fails_late() -> None:
        try:
            await gofer.sleep(100_000)
        finally:
            raise KeyError("late")

    async def block() -> None:
        ctx = context.with_cancel()
        async with ctx, gofer.Group() as g:
            await parked(g.go(fails_late))
            ctx.cancel()
            await gofer.sleep(100_000)

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as info:
            await block()
        assert errors_of(info.value) == ["KeyError('late')"]

    gofer.run(main, procs=procs)


def test_the_context_is_that_of_its_goroutines(procs: int) -> None:
    async def child(g: gofer.Group) -> bool:
        return context.current() is g.context

    async def main() -> None:
        async with gofer.Group() as g:
            assert context.current() is g.context
            assert await g.go(child, g)
            assert g.context.err() is None
        assert context.current() is context.background()

    gofer.run(main, procs=procs)


def test_when_main_ends_a_group_elsewhere_ends_too(procs: int) -> None:
    slow = Slow()

    async def child() -> None:
        try:
            await gofer.sleep(100_000)
        finally:
            slow.log.append("child ends")

    async def block() -> None:
        try:
            async with gofer.Group() as g:
                await parked(g.go(child))
                slow.log.append("ready")
        finally:
            slow.log.append("block ends")

    async def main() -> None:
        gofer.go(block)
        await until(lambda: slow.log)

    gofer.run(main, procs=procs)
    assert slow.log == ["ready", "child ends", "block ends"]


# --- Limit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_run_at_once_than_the_limit(limit: int, procs: int) -> None:
    running = gofer.atomic.Int()
    most: list[int] = []
    full: gofer.Chan[None] = gofer.Chan()

    async def worker(i: int) -> int:
        most.append(now := running.add(1))
        if now == limit and not full.closed:
            with contextlib.suppress(gofer.ChannelClosed):  # by another at the same time
                full.close()
        await full.recv_ok()
        await gofer.gosched()
        running.add(-1)
        return i

    async def main() -> None:
        async with gofer.Group(limit=limit) as g:
            gs = [g.go(worker, i) for i in range(30)]  # which does not wait
        assert [x.result() for x in gs] == list(range(30))

    gofer.run(main, procs=procs)
    assert max(most) == limit


def test_those_who_wait_for_their_turn_are_cancelled_without_a_call(procs: int) -> None:
    called: list[int] = []

    async def worker(i: int) -> None:
        called.append(i)
        await gofer.sleep(100_000)

    async def main() -> None:
        async with gofer.Group(2) as g:
            gs = [g.go(worker, i) for i in range(10)]
            await until(lambda: len(called) == 2)
            await parked(*gs)
            g.cancel()
        assert all(x.cancelled() for x in gs)

    gofer.run(main, procs=procs)
    assert len(called) == 2


def test_a_failure_frees_the_turn_of_nobody(procs: int) -> None:
    called: list[int] = []

    async def worker(i: int) -> None:
        called.append(i)
        raise KeyError(i)

    async def block() -> None:
        async with gofer.Group(1) as g:
            for i in range(10):
                g.go(worker, i)
            await gofer.sleep(100_000)

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as info:
            await block()
        assert len(info.value.exceptions) == len(called)

    gofer.run(main, procs=procs)
    assert called == [called[0]]


# --- Plain functions ------------------------------------------------------------------------------


def hold(log: list[str]) -> None:
    """As a plain goroutine: wait until cancelled, and say so."""
    try:
        gofer.block(gofer.sleep(100_000))
    except gofer.Cancelled:
        log.append("cancelled")
        raise
    finally:
        time.sleep(0.005)  # clean-up that takes its time
        log.append("cleaned up")


def test_plain_functions_are_members_like_others(procs: int) -> None:
    def worker(i: int, *, times: int) -> tuple[int, bool]:
        thread_of_mine = threading.get_ident()
        for _ in range(times):
            gofer.block(gofer.gosched())
        return 2 * i, threading.get_ident() == thread_of_mine

    async def main() -> None:
        async with gofer.Group() as g:
            plain = [g.go(worker, i, times=i % 3) for i in range(20)]
            others = [g.go(give, i) for i in range(20)]
        assert [x.result() for x in plain] == [(2 * i, True) for i in range(20)]
        assert [x.result() for x in others] == list(range(20))

    gofer.run(main, procs=procs)


def test_a_plain_function_knows_who_it_is(procs: int) -> None:
    async def main() -> None:
        async with gofer.Group() as g:
            site, x = here(), g.go(gofer.current)
            y = g.go(gofer.current, name="mine")
        assert x.result() is x
        assert (x.name, x.created_at) == ("current", site)
        assert y.name == "mine"

    gofer.run(main, procs=procs)


def test_a_failure_cancels_plain_functions_and_waits_for_their_clean_up(procs: int) -> None:
    async def main() -> list[str]:
        log: list[str] = []
        held: list[gofer.Goroutine[Any]] = []

        async def block() -> None:
            async with gofer.Group() as g:
                held.extend(g.go(hold, log) for _ in range(3))
                await parked(*held)
                g.go(fail, LookupError("x"))

        with pytest.raises(ExceptionGroup) as failure:
            await block()
        assert errors_of(failure.value) == ["LookupError('x')"]
        assert all(x.cancelled() for x in held)
        return sorted(log)

    assert gofer.run(main, procs=procs) == ["cancelled"] * 3 + ["cleaned up"] * 3


def test_the_failure_of_a_plain_function_cancels_the_others(procs: int) -> None:
    def fails() -> None:
        raise LookupError("plain")

    async def main() -> None:
        log: list[str] = []
        others: list[gofer.Goroutine[Any]] = []

        async def block() -> None:
            async with gofer.Group() as g:
                others.extend([g.go(hold, log), g.go(sleep_long)])
                await parked(*others)
                g.go(fails)

        with pytest.raises(ExceptionGroup) as failure:
            await block()
        (error,) = failure.value.exceptions
        assert isinstance(error, LookupError)
        assert traceback.extract_tb(error.__traceback__)[-1].name == "fails"
        assert all(x.cancelled() for x in others)
        assert log == ["cancelled", "cleaned up"]

    gofer.run(main, procs=procs)


def test_a_blocking_call_is_waited_for_although_it_is_cancelled(procs: int) -> None:
    async def main() -> None:
        begun, release = threading.Event(), threading.Event()

        def blocks() -> str:
            begun.set()
            release.wait(PATIENCE)
            return "in its own time"

        async with gofer.Group() as g:
            x = g.go(blocks)
            await until(begun.is_set)
            threading.Timer(0.02, release.set).start()
            g.cancel()
        assert release.is_set()
        assert x.result() == "in its own time"  # it never came to an operation that could say so

    gofer.run(main, procs=procs)


def test_a_plain_function_may_go_on_after_a_cancellation(procs: int) -> None:
    def stubborn() -> int:
        times = 0
        for _ in range(3):
            try:
                gofer.block(gofer.sleep(100_000))
            except gofer.Cancelled:
                times += 1
        return times

    async def main() -> None:
        async with gofer.Group() as g:
            x = g.go(stubborn)
            await parked(x)
            g.cancel()
        assert x.result() == 3  # as long as the context is over

    gofer.run(main, procs=procs)


def test_a_plain_function_that_is_cancelled_before_it_begins_is_not_called(procs: int) -> None:
    called: list[int] = []

    async def main() -> None:
        async with gofer.Group() as g:
            g.cancel()
            xs = [g.go(called.append, i) for i in range(10)]
        assert all(x.cancelled() for x in xs)

    gofer.run(main, procs=procs)
    assert called == []


def test_the_limit_is_for_plain_functions_too(procs: int) -> None:
    running, most = gofer.atomic.Int(), [0]

    def worker() -> None:
        most[0] = max(most[0], running.add(1))
        gofer.block(gofer.sleep(0.0005))
        running.add(-1)

    async def main() -> None:
        async with gofer.Group(limit=3) as g:
            for _ in range(30):
                g.go(worker)

    gofer.run(main, procs=procs)
    assert 1 <= most[0] <= 3


def test_plain_functions_that_wait_for_their_turn_hold_no_thread(procs: int) -> None:
    release = threading.Event()
    began: list[int] = []

    def worker(i: int) -> int:
        began.append(i)
        release.wait(PATIENCE)
        return i

    async def main() -> None:
        async with gofer.Group(limit=2) as g:
            gs = [g.go(worker, i) for i in range(100)]
            await until(lambda: len(began) == 2)
            waiting = [x for i, x in enumerate(gs) if i not in began]
            await parked(*waiting)
            assert {x.wait_reason for x in waiting} == {"semacquire"}
            assert _core.counters()["threads"] < 2 + 2 * procs + 5
            release.set()
        assert [x.result() for x in gs] == list(range(100))

    gofer.run(main, procs=procs)


def test_plain_functions_get_their_turns_in_order(procs: int) -> None:
    order: list[int] = []
    done: gofer.Chan[None] = gofer.Chan()

    def worker(i: int) -> None:
        order.append(i)
        if i == 0:
            gofer.block(done.recv_ok())

    async def main() -> None:
        async with gofer.Group(limit=1) as g:
            for i in range(50):
                await parked(g.go(worker, i))
            done.close()

    gofer.run(main, procs=procs)
    assert order == list(range(50))


def test_a_plain_function_with_a_limit_is_a_goroutine_like_any_other(procs: int) -> None:
    def worker() -> tuple[str, int, str]:
        me = gofer.current()
        gofer.block(gofer.sleep(0.0001))
        assert gofer.current() is me
        return me.name, me.id, me.created_at

    async def main() -> None:
        async with gofer.Group(limit=1) as g:
            x, x_site = g.go(worker), here()
            y, y_site = g.go(worker, name="mine"), here()
            assert y.created_at == y_site
        assert x.result() == (worker.__qualname__, x.id, x_site)
        assert y.result() == ("mine", y.id, y_site)

    gofer.run(main, procs=procs)


def test_plain_functions_that_are_cancelled_lose_no_permit(procs: int) -> None:
    """Cancelled while they wait, between their permit and their first line, or later."""

    def worker(i: int) -> None:
        gofer.block(gofer.sleep(0.0001 * (i % 3)))

    async def main() -> None:
        for i in range(100):
            async with gofer.Group(limit=2) as g:
                gs = [g.go(worker, j) for j in range(8)]
                for _ in range(i % 7):
                    await gofer.gosched()
                for j in range(i % 3, 8, 3):
                    gs[j].cancel()
                last = g.go(lambda: "ran")
            assert last.result() == "ran"
            assert all(x.done() for x in gs)

    gofer.run(main, procs=procs)


def test_a_failure_of_a_plain_function_gives_the_permit_back_and_cancels_the_rest(
    procs: int,
) -> None:
    called: list[int] = []

    def worker(i: int) -> None:
        called.append(i)
        raise ZeroDivisionError(i)

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with gofer.Group(limit=1) as g:
                gs = [g.go(worker, i) for i in range(20)]
        assert errors_of(caught.value) == [f"ZeroDivisionError({called[0]})"]
        assert [x.cancelled() for x in gs].count(True) == 19

    gofer.run(main, procs=procs)
    assert len(called) == 1


def test_goexit_in_a_plain_function_is_no_failure(procs: int) -> None:
    async def main() -> None:
        async with gofer.Group() as g:
            g.go(gofer.goexit)
            x = g.go(give, 1)
        assert x.result() == 1

    gofer.run(main, procs=procs)


def test_a_plain_function_may_have_a_group_of_its_own(procs: int) -> None:
    async def inner() -> int:
        async with gofer.Group() as g:
            xs = [g.go(give, 1), g.go(lambda: 2)]
        return sum(x.result() for x in xs)

    async def main() -> None:
        async with gofer.Group() as g:
            x = g.go(lambda: gofer.block(inner()))
            y = g.go(lambda: inner())  # the coroutine that it returns is run
        assert (x.result(), y.result()) == (3, 3)

    gofer.run(main, procs=procs)


def test_a_goroutine_or_future_that_a_function_returns_is_its_result(procs: int) -> None:
    """They go on by themselves: whoever started them may want to have them, not their results."""

    async def main() -> None:
        future: Future[int] = Future()
        started = gofer.go(sleep_long)
        async with gofer.Group() as g:
            x = g.go(lambda: future)
            y = g.go(lambda: started)
        assert x.result() is future
        assert y.result() is started
        started.cancel()

    gofer.run(main, procs=procs)


# --- Bad use --------------------------------------------------------------------------------------


def test_a_limit_below_one_is_a_value_error() -> None:
    for limit in (0, -1):
        with pytest.raises(ValueError, match="limit"):
            gofer.Group(limit)


@pytest.mark.parametrize("limit", [1.5, "3", True, []])
def test_a_limit_that_is_no_integer_is_a_type_error(limit: Any) -> None:
    with pytest.raises(TypeError, match="limit"):
        gofer.Group(limit)


def test_outside_its_block_it_starts_nothing(procs: int) -> None:
    async def main() -> None:
        g = gofer.Group()
        with pytest.raises(RuntimeError, match="Group"):
            g.go(give, 1)
        with pytest.raises(RuntimeError, match="block"):
            g.context
        async with g:
            pass
        with pytest.raises(RuntimeError, match="Group"):
            g.go(give, 1)
        assert gofer.num_goroutine() == 1

    gofer.run(main, procs=procs)


def test_it_can_be_used_once() -> None:
    async def main() -> None:
        g = gofer.Group()
        async with g:
            with pytest.raises(RuntimeError, match="once"):
                async with g:
                    pass
            assert await g.go(give, 1) == 1
        with pytest.raises(RuntimeError, match="once"):
            async with g:
                pass

    gofer.run(main)


@pytest.mark.parametrize("fn", [5, None, "f"])
def test_go_of_what_cannot_be_called_is_a_type_error_at_once(fn: Any) -> None:
    async def main() -> None:
        async with gofer.Group() as g:
            with pytest.raises(TypeError) as info:
                g.go(fn)
            assert repr(fn) in str(info.value)

    gofer.run(main)


def test_outside_a_goroutine_it_is_a_runtime_error() -> None:
    async def use() -> None:
        async with gofer.Group():
            pass

    coro = use()
    with pytest.raises(RuntimeError):
        coro.send(None)


def test_a_group_that_failed_holds_nothing_back() -> None:
    """Its failures have been taken: dropping the handles does not end the run."""

    async def main() -> str:
        for _ in range(10):
            with pytest.raises(ExceptionGroup):
                async with gofer.Group() as g:
                    g.go(fail, KeyError())
            del g
        await gofer.go(wait_for, gofer.gosched())
        return "fine"

    assert gofer.run(main) == "fine"
