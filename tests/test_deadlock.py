"""Deadlock: every goroutine sleeps and nothing can wake one."""

import contextlib
import re
import threading
import time
from typing import Any

import pytest

import gofer
from tests.support import (
    PATIENCE,
    give,
    here,
    parked,
    run_program,
    sleep_long,
    thread,
    until,
    wait_for,
    wait_for_first,
)

HEADLINE = "all goroutines are asleep - deadlock!"


async def main_and_child() -> None:
    """The smallest deadlock: each waits for the other."""
    await gofer.go(wait_for, gofer.current())


# --- When it is one -------------------------------------------------------------------------------


def test_is_detected_at_once(procs: int) -> None:
    start = time.monotonic()
    with pytest.raises(gofer.Deadlock) as info:
        gofer.run(main_and_child, procs=procs)
    assert time.monotonic() - start < 1
    assert str(info.value).startswith(HEADLINE)


def test_is_a_runtime_error() -> None:
    assert issubclass(gofer.Deadlock, RuntimeError)


def test_is_detected_after_much_has_happened(procs: int) -> None:
    async def main() -> None:
        gs = [gofer.go(give, i) for i in range(1000)]
        for g in gs:
            await g
        for _ in range(20):
            await gofer.sleep(0.0001)
        await main_and_child()

    with pytest.raises(gofer.Deadlock):
        gofer.run(main, procs=procs)


def test_the_message_tells_every_goroutine_its_reason_stack_and_origin(procs: int) -> None:
    sites: list[str] = []

    async def outer(target: gofer.Goroutine[Any]) -> None:
        await inner(target)

    async def inner(target: gofer.Goroutine[Any]) -> None:
        await target

    async def main() -> None:
        first = gofer.go(outer, gofer.current(), name="first")
        sites.append(here(-1))
        second = gofer.go(outer, first, name="second")
        sites.append(here(-1))
        ids.extend([first.id, second.id])
        await second

    ids: list[int] = []
    with pytest.raises(gofer.Deadlock) as info:
        gofer.run(main, procs=procs)
    head, *blocks = str(info.value).split("\n\n")
    assert head == HEADLINE
    assert len(blocks) == 3
    main_block, first_block, second_block = blocks

    assert main_block.startswith("goroutine 1 [goroutine wait]:\n")
    assert "main()" in main_block
    assert "await second" in main_block
    assert "created by" not in main_block
    for block, id, name, site in [
        (first_block, ids[0], "first", sites[0]),
        (second_block, ids[1], "second", sites[1]),
    ]:
        assert block.startswith(f"goroutine {id} [goroutine wait]:\n")
        assert block.index("outer()") > block.index("inner()")
        assert re.search(rf"inner\(\)\n\t{re.escape(__file__)}:\d+\n\t\tawait target", block)
        created = rf"\ncreated by \S+main in goroutine 1 as '{name}'\n\t{re.escape(site)}$"
        assert re.search(created, block)


def test_of_many_only_the_first_thousand_are_told_in_full() -> None:
    async def main() -> None:
        me = gofer.current()
        gs = [gofer.go(wait_for, me) for _ in range(1500)]
        await gs[0]

    with pytest.raises(gofer.Deadlock) as info:
        gofer.run(main)
    text = str(info.value)
    assert text.count("\n\ngoroutine ") == 1000
    assert text.endswith("... and 501 more goroutines")


@pytest.mark.parametrize("procs", ["1", "2", "4", "8"])
def test_is_not_hidden_by_timers_that_were_cancelled(procs: str) -> None:
    """A thread may still sleep until such a timer would have fired."""
    end = run_program(
        """
        import sys, gofer

        async def sleeper():
            await gofer.sleep(100_000)

        async def wait(g):
            await g

        async def main():
            gs = [gofer.go(sleeper) for _ in range(8)]
            await gofer.sleep(0.002)
            for g in gs:
                g.cancel()
            for g in gs:
                try:
                    await g
                except gofer.Cancelled:
                    pass
            await gofer.go(wait, gofer.current())

        detected = 0
        for _ in range(200):
            try:
                gofer.run(main, procs=int(sys.argv[1]))
            except gofer.Deadlock:
                detected += 1
        print(detected)
        """,
        procs,
        timeout=30,
    )
    assert end.check() == "200\n"


def test_finally_blocks_of_main_and_of_the_others_run(procs: int) -> None:
    cleaned = []

    async def waits(name: str, target: list[gofer.Goroutine[None]]) -> None:
        try:
            await wait_for_first(target)
        finally:
            await gofer.sleep(0.001)
            cleaned.append(name)

    async def main() -> None:
        first: list[gofer.Goroutine[None]] = []
        second = gofer.go(waits, "second", first)
        first.append(gofer.go(waits, "first", [second]))
        await waits("main", [second])

    with pytest.raises(gofer.Deadlock):
        gofer.run(main, procs=procs)
    assert sorted(cleaned) == ["first", "main", "second"]


def test_main_cannot_swallow_it(procs: int) -> None:
    async def main() -> str:
        with pytest.raises(gofer.Cancelled):
            await main_and_child()
        return "swallowed"

    with pytest.raises(gofer.Deadlock):
        gofer.run(main, procs=procs)


def test_an_exception_of_mains_clean_up_is_shown_too(procs: int) -> None:
    async def main() -> None:
        try:
            await main_and_child()
        finally:
            raise ValueError("in clean-up")

    with pytest.raises(gofer.Deadlock) as info:
        gofer.run(main, procs=procs)
    assert isinstance(info.value.__context__, ValueError)


@pytest.mark.parametrize("procs", ["1", "4"])
def test_a_main_whose_clean_up_waits_in_vain_does_not_hang_the_run(procs: str) -> None:
    end = run_program(
        """
        import sys, gofer

        async def wait(g):
            await g

        async def main():
            g = gofer.go(wait, gofer.current())
            try:
                await g
            finally:
                await g

        try:
            gofer.run(main, procs=int(sys.argv[1]))
        except gofer.Deadlock as exc:
            print(str(exc).splitlines()[0])
        """,
        procs,
        timeout=20,
    )
    assert end.check() == f"{HEADLINE}\n"


@pytest.mark.parametrize("procs", ["1", "4"])
def test_a_main_that_ignores_every_cancellation_is_given_up(procs: str) -> None:
    end = run_program(
        """
        import sys, gofer

        async def wait(g):
            await g

        async def main():
            g = gofer.go(wait, gofer.current())
            while True:
                try:
                    await g
                except gofer.Cancelled:
                    pass

        try:
            gofer.run(main, procs=int(sys.argv[1]))
        except RuntimeError as exc:
            print(type(exc).__name__)
        """,
        procs,
        timeout=20,
    )
    assert end.returncode == 0, end.stderr
    assert end.stdout in ("Deadlock\n", "RuntimeError\n")


def test_uncaught_it_ends_the_program_with_the_whole_story() -> None:
    end = run_program(
        """
        import gofer
        async def wait(g):
            await g
        async def main():
            await gofer.go(wait, gofer.current())
        gofer.run(main)
        """
    )
    assert end.returncode == 1
    assert f"gofer.Deadlock: {HEADLINE}\n\ngoroutine 1 [goroutine wait]:\nmain()\n" in end.stderr


# --- When it is none ------------------------------------------------------------------------------


def test_not_with_a_sleeper(procs: int) -> None:
    async def main() -> str:
        me = gofer.current()
        waiter = gofer.go(wait_for, me)
        await parked(waiter)
        sleeper = gofer.go(rescue, waiter)
        with pytest.raises(gofer.Cancelled):
            await waiter
        await sleeper
        return "rescued"

    async def rescue(g: gofer.Goroutine[Any]) -> None:
        await gofer.sleep(0.2)
        g.cancel()

    assert gofer.run(main, procs=procs) == "rescued"


def test_not_with_a_sleeper_that_will_do_nothing_of_use(procs: int) -> None:
    """As in Go: a timer is enough. Nobody can know what its goroutine will do."""

    async def main() -> None:
        gofer.go(sleep_long)
        await wait_for(gofer.go(wait_for, gofer.current()))

    with contextlib.ExitStack() as stack:
        ended = threading.Event()
        handles: list[gofer.Goroutine[None]] = []

        def watch() -> None:
            while not handles or handles[0].state != "waiting":
                time.sleep(0.001)
            time.sleep(0.3)
            try:
                assert not ended.is_set()
                assert handles[0].state == "waiting"
            finally:
                handles[0].cancel("enough")

        async def watched() -> None:
            handles.append(gofer.current())
            await main()

        stack.enter_context(thread(watch))
        with pytest.raises(gofer.Cancelled, match="enough"):
            gofer.run(watched, procs=procs)
        ended.set()


@pytest.mark.parametrize("how", ["cancel", "go"])
def test_not_while_a_foreign_thread_may_still_wake_one(how: str, procs: int) -> None:
    async def main() -> str:
        waiter = gofer.go(wait_for, gofer.current())

        async def cancels() -> None:
            waiter.cancel()

        def foreign() -> None:
            time.sleep(0.3)  # long enough for a hasty detector
            if how == "cancel":
                waiter.cancel()
            else:
                gofer.go(cancels)

        t = threading.Thread(target=foreign)
        t.start()
        with pytest.raises(gofer.Cancelled):
            await waiter
        t.join()
        return "woken"

    assert gofer.run(main, procs=procs) == "woken"


def test_once_the_foreign_thread_has_ended_it_is_one(procs: int) -> None:
    ended: list[float] = []

    def foreign() -> None:
        time.sleep(0.2)
        ended.append(time.monotonic())

    async def main() -> None:
        threads.append(threading.Thread(target=foreign))
        threads[0].start()
        await main_and_child()

    threads: list[threading.Thread] = []
    with pytest.raises(gofer.Deadlock):
        gofer.run(main, procs=procs)
    assert 0 <= time.monotonic() - ended[0] < 2
    threads[0].join()


def test_not_while_a_goroutine_is_in_a_blocking_call(procs: int) -> None:
    """The one that blocks is on a thread of its own; everybody else is idle."""

    async def blocks(main_goroutine: gofer.Goroutine[Any]) -> None:
        time.sleep(0.3)
        main_goroutine.cancel("after the call")

    async def main() -> None:
        me = gofer.current()
        gofer.go(blocks, me)
        await gofer.go(wait_for, me)

    with pytest.raises(gofer.Cancelled, match="after the call"):
        gofer.run(main, procs=procs)


def test_a_partial_one_is_not_reported(procs: int) -> None:
    """Two wait for each other, and main goes on: that is a leak at most, and they are held here."""

    async def main() -> None:
        box: list[gofer.Goroutine[None]] = []
        pair = [gofer.go(wait_for_first, box)]
        pair.append(gofer.go(wait_for, pair[0]))
        box.append(pair[1])
        await parked(*pair)
        for _ in range(20):
            await gofer.sleep(0.005)
        assert [g.state for g in pair] == ["waiting", "waiting"]

    gofer.run(main, procs=procs)


def test_main_asleep_with_everybody_else_stuck_is_none(procs: int) -> None:
    async def main() -> str:
        waiters = [gofer.go(wait_for, gofer.current()) for _ in range(10)]
        await parked(*waiters)
        await gofer.sleep(0.1)
        return "fine"

    assert gofer.run(main, procs=procs) == "fine"


def test_a_run_on_another_thread_while_the_main_thread_waits_is_left_alone() -> None:
    """The main thread is a foreign one here, and might wake somebody: nothing is reported."""
    handles: list[gofer.Goroutine[Any]] = []
    result: list[BaseException] = []

    async def main() -> None:
        handles.append(gofer.current())
        await main_and_child()

    def body() -> None:
        try:
            gofer.run(main)
        except BaseException as exc:
            result.append(exc)

    with thread(body):
        deadline = time.monotonic() + PATIENCE
        while not handles or handles[0].state != "waiting":
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.2)
        assert not result
        assert handles[0].state == "waiting"
        handles[0].cancel("by the main thread")
    assert isinstance(result[0], gofer.Cancelled)
    handles.clear()


def test_a_deadlock_after_another_in_the_next_run(procs: int) -> None:
    for _ in range(20):
        with pytest.raises(gofer.Deadlock):
            gofer.run(main_and_child, procs=procs)
        assert gofer.run(give, 1, procs=procs) == 1


def test_is_not_seen_where_a_goroutine_is_only_slow_to_start(procs: int) -> None:
    """Goroutines made runnable by a foreign thread just as everything goes to sleep."""
    made = 0

    async def main() -> int:
        nonlocal made

        def foreign() -> None:
            nonlocal made
            for _ in range(200):
                gofer.go(give, 1)
                made += 1

        with thread(foreign):
            await until(lambda: made == 200)
        return made

    assert gofer.run(main, procs=procs) == 200
