"""cancel(): Cancelled comes out of the current or the next operation, once."""

import contextlib
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import give, parked, sleep_long, thread, until, wait_for


async def wait_for_main() -> None:
    """Join something that ends after us."""
    await main_goroutine[0]


main_goroutine: list[gofer.Goroutine[Any]] = []


@pytest.mark.parametrize("wait", [sleep_long, wait_for_main], ids=["sleeping", "joining"])
def test_a_waiting_goroutine_wakes_with_cancelled(
    wait: Callable[[], Awaitable[None]], procs: int
) -> None:
    seen: list[gofer.Cancelled] = []

    async def child() -> None:
        try:
            await wait()
        except gofer.Cancelled as exc:
            seen.append(exc)
            raise

    async def main() -> None:
        main_goroutine[:] = [gofer.current()]
        g = gofer.go(child)
        await parked(g)
        assert g.cancel() is True
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value is seen[0]
        assert info.value.args == ()
        assert info.value.reason is None
        assert g.cancelled()

    gofer.run(main, procs=procs)
    main_goroutine.clear()


def test_one_that_yields_gets_it_from_gosched(procs: int) -> None:
    async def child() -> None:
        while True:
            await gofer.gosched()

    async def main() -> None:
        g = gofer.go(child)
        await gofer.sleep(0.001)
        assert g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g

    gofer.run(main, procs=procs)


@pytest.mark.parametrize(
    "operation",
    [lambda: gofer.sleep(1), lambda: gofer.sleep(0), gofer.gosched, lambda: gofer.go(give, 1)],
    ids=["sleep", "sleep(0)", "gosched", "join"],
)
def test_a_running_goroutine_gets_it_from_its_next_operation(
    operation: Callable[[], Awaitable[Any]], procs: int
) -> None:
    async def child() -> str:
        assert gofer.current().cancel("me")
        try:
            await operation()
        except gofer.Cancelled as exc:
            return str(exc.reason)
        return "not raised"

    async def main() -> str:
        return await gofer.go(child)

    assert gofer.run(main, procs=procs) == "me"


def test_even_an_operation_that_need_not_wait_raises_it(procs: int) -> None:
    async def main() -> None:
        done = gofer.go(give, 1)
        await done
        gofer.current().cancel()
        with pytest.raises(gofer.Cancelled):
            await done
        assert await done == 1

    gofer.run(main, procs=procs)


def test_before_the_start_the_body_never_runs() -> None:
    started = []

    async def child() -> None:
        started.append(1)
        try:
            await gofer.gosched()
        finally:
            started.append(2)

    async def main() -> None:
        g = gofer.go(child)
        assert g.cancel("early") is True
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value.reason == "early"
        assert g.cancelled()

    gofer.run(main, procs=1)
    assert not started


def test_of_the_dead_is_false_and_changes_nothing(procs: int) -> None:
    async def main() -> None:
        good = gofer.go(give, 5)
        await good
        assert good.cancel() is False
        assert good.cancel("reason") is False
        assert not good.cancelled()
        assert good.result() == 5

    gofer.run(main, procs=procs)


def test_without_an_operation_the_goroutine_ends_as_if_nothing_had_happened(procs: int) -> None:
    async def child() -> int:
        gofer.current().cancel("too late")
        return 5

    async def main() -> None:
        g = gofer.go(child)
        assert await g == 5
        assert not g.cancelled()
        assert g.exception() is None

    gofer.run(main, procs=procs)


def test_twice_before_it_is_seen_counts_once_and_the_first_reason_wins(procs: int) -> None:
    seen = []

    async def child() -> str:
        me = gofer.current()
        me.cancel("first")
        me.cancel("second")
        for _ in range(2):
            try:
                await gofer.gosched()
            except gofer.Cancelled as exc:
                seen.append(exc.reason)
        return "went on"

    async def main() -> None:
        assert await gofer.go(child) == "went on"

    gofer.run(main, procs=procs)
    assert seen == ["first"]


def test_is_edge_triggered_each_call_raises_once(procs: int) -> None:
    about_to_wait = []
    seen = []

    async def child(main_goroutine: gofer.Goroutine[Any]) -> str:
        for i in range(5):
            about_to_wait.append(i)
            try:
                await main_goroutine
            except gofer.Cancelled as exc:
                seen.append(exc.reason)
            await gofer.sleep(0.0001)  # not cancelled any more
            await gofer.gosched()
            await gofer.go(give, 1)
        return "went on"

    async def main() -> None:
        g = gofer.go(child, gofer.current())
        for i in range(5):
            await until(lambda i=i: len(about_to_wait) == i + 1)  # type: ignore[misc]
            await parked(g)
            g.cancel(i)
        assert await g == "went on"

    gofer.run(main, procs=procs)
    assert seen == [0, 1, 2, 3, 4]


def test_the_reason_may_be_anything(procs: int) -> None:
    reasons: list[Any] = [
        "text",
        5,
        ("a", "tuple"),
        (),
        ValueError("an exception"),
        gofer.Cancelled("one of ours"),
        KeyError,
        [1],
        False,
    ]

    async def main() -> None:
        seen = []
        for reason in reasons:
            g = gofer.go(sleep_long)
            g.cancel(reason)
            with pytest.raises(gofer.Cancelled) as info:
                await g
            seen.append(info.value.args)
        assert seen == [(reason,) for reason in reasons]

        g = gofer.go(sleep_long)
        g.cancel(reason="by keyword")
        with pytest.raises(gofer.Cancelled, match="by keyword"):
            await g
        with pytest.raises(TypeError):
            g.cancel(1, 2)  # type: ignore[call-arg]

    gofer.run(main, procs=procs)


def test_cancelled_is_a_base_exception() -> None:
    assert issubclass(gofer.Cancelled, BaseException)
    assert not issubclass(gofer.Cancelled, Exception)
    assert gofer.Cancelled().reason is None
    assert gofer.Cancelled("x").reason == "x"

    async def child() -> None:
        try:
            await sleep_long()
        except Exception:
            raise AssertionError("`except Exception` caught it") from None

    async def main() -> None:
        g = gofer.go(child)
        await parked(g)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g

    gofer.run(main)


def test_finally_may_await(procs: int) -> None:
    steps = []

    async def child() -> None:
        try:
            await sleep_long()
        finally:
            await gofer.sleep(0.001)
            steps.append("slept")
            await gofer.gosched()
            steps.append("yielded")
            steps.append(await gofer.go(give, "joined"))

    async def main() -> None:
        g = gofer.go(child)
        await parked(g)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g

    gofer.run(main, procs=procs)
    assert steps == ["slept", "yielded", "joined"]


def test_one_that_catches_it_goes_on_and_may_return(procs: int) -> None:
    async def child() -> str:
        with contextlib.suppress(gofer.Cancelled):
            await sleep_long()
        await gofer.sleep(0.001)
        return "went on"

    async def main() -> None:
        g = gofer.go(child)
        await parked(g)
        g.cancel()
        assert await g == "went on"
        assert not g.cancelled()

    gofer.run(main, procs=procs)


def test_another_exception_in_its_place_is_a_failure_not_a_cancellation(procs: int) -> None:
    async def child() -> None:
        try:
            await sleep_long()
        finally:
            raise ValueError("instead")

    async def main() -> None:
        g = gofer.go(child)
        await parked(g)
        g.cancel()
        with pytest.raises(ValueError, match="instead") as info:
            await g
        assert isinstance(info.value.__context__, gofer.Cancelled)
        assert not g.cancelled()

    gofer.run(main, procs=procs)


def test_cancelling_an_awaiter_does_not_cancel_what_it_awaits(procs: int) -> None:
    async def main() -> None:
        target = gofer.go(sleep_long)
        waiters = [gofer.go(wait_for, target) for _ in range(3)]
        await parked(target, *waiters)
        waiters[1].cancel()
        with pytest.raises(gofer.Cancelled):
            await waiters[1]
        assert target.state == "waiting"
        assert [w.state for w in waiters] == ["waiting", "dead", "waiting"]
        target.cancel("now")
        for w in (waiters[0], waiters[2]):
            with pytest.raises(gofer.Cancelled) as info:
                await w
            assert info.value.reason == "now"

    gofer.run(main, procs=procs)


def test_awaiting_a_cancelled_goroutine_raises_cancelled_in_the_awaiter(procs: int) -> None:
    async def main() -> str:
        g = gofer.go(sleep_long)
        g.cancel("g")
        with pytest.raises(gofer.Cancelled):
            await g
        await gofer.sleep(0.001)
        assert not gofer.current().cancelled()
        return "went on"

    assert gofer.run(main, procs=procs) == "went on"


def test_a_cancelled_goroutine_nobody_awaits_is_no_failure(procs: int) -> None:
    async def main() -> str:
        g = gofer.go(sleep_long)
        await parked(g)
        g.cancel()
        await until(g.done)
        del g
        gc.collect()
        await gofer.sleep(0.001)
        return "fine"

    assert gofer.run(main, procs=procs) == "fine"


def test_an_awaiter_that_lets_it_through_counts_as_cancelled_too(procs: int) -> None:
    async def main() -> None:
        target = gofer.go(sleep_long)
        waiter = gofer.go(wait_for, target)
        await parked(target, waiter)
        target.cancel()
        await until(waiter.done)
        assert waiter.cancelled()

    gofer.run(main, procs=procs)


def test_from_a_foreign_thread(procs: int) -> None:
    results: list[bool] = []

    async def main() -> None:
        sleeping = gofer.go(sleep_long)
        joining = gofer.go(wait_for, gofer.current())
        await parked(sleeping, joining)

        def foreign() -> None:
            results.append(sleeping.cancel("from outside"))
            results.append(joining.cancel("from outside"))

        with thread(foreign):
            for g in (sleeping, joining):
                with pytest.raises(gofer.Cancelled, match="from outside"):
                    await g
        assert results == [True, True]

    gofer.run(main, procs=procs)


def test_main_may_be_cancelled_by_anyone(procs: int) -> None:
    async def child(main_goroutine: gofer.Goroutine[Any]) -> None:
        main_goroutine.cancel("by a child")

    async def main() -> str:
        gofer.go(child, gofer.current())
        try:
            await sleep_long()
        except gofer.Cancelled as exc:
            return str(exc.reason)
        return "not reached"

    assert gofer.run(main, procs=procs) == "by a child"


def test_a_cancelled_sleep_leaves_no_timer(procs: int) -> None:
    async def main() -> None:
        gs = [gofer.go(sleep_long) for _ in range(100)]
        await parked(*gs)
        assert _core.counters()["timers"] >= 100
        for g in gs:
            g.cancel()
        for g in gs:
            with pytest.raises(gofer.Cancelled):
                await g
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_a_cancelled_join_leaves_the_queue_of_its_target(procs: int) -> None:
    """A million of them would otherwise stay with a target that lives long."""

    async def main() -> None:
        target = gofer.go(sleep_long)
        await parked(target)
        for _ in range(100):
            w = gofer.go(wait_for, target)
            await parked(w)
            w.cancel()
            with pytest.raises(gofer.Cancelled):
                await w
            del w
        gc.collect()
        assert _core.counters()["operations"] <= 2
        assert _core.counters()["goroutines"] <= 4

    gofer.run(main, procs=procs)


def test_all_of_ten_thousand(procs: int) -> None:
    async def main() -> int:
        gs = [gofer.go(sleep_long) for _ in range(10_000)]
        for g in gs:
            g.cancel()
        ended = 0
        for g in gs:
            with contextlib.suppress(gofer.Cancelled):
                await g
            ended += g.cancelled()
        return ended

    assert gofer.run(main, procs=procs) == 10_000
