"""What holds for every operation of sync, whatever it waits for."""

import gc
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

import gofer
from gofer import context
from tests.support import PATIENCE, gone, here, parked, sleep_long, thread, until, wait_for
from tests.sync_support import ALL, REASONS, TAKERS, Scene, outcome, waiting


def run_with(
    kinds: Iterable[str], main: Callable[[str], Coroutine[Any, Any, None]], procs: int
) -> None:
    """Run main(kind) for each; a failure says which it was."""
    for kind in kinds:
        try:
            gofer.run(main, kind, procs=procs)
        except BaseException as exc:
            exc.add_note(f"with {kind}")
            raise


def ready(kind: str) -> Scene:
    """One whose operation need not wait (but a Cond's always must)."""
    scene = ALL[kind]()
    scene.let()
    return scene


# --- Waiting --------------------------------------------------------------------------------------


def test_it_waits_until_it_may_go_on(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        g = await waiting(scene.op)
        assert g.wait_reason == REASONS[kind]
        scene.let()
        assert await g is None  # type: ignore[func-returns-value]
        scene.assert_taken()
        scene.give_back()
        scene.assert_free()

    run_with(ALL, main, procs)


def test_it_does_nothing_until_it_is_awaited() -> None:
    for kind in TAKERS:
        scene = ready(kind)
        scene.assert_free()
        del scene.op
        scene.assert_free()


def test_its_repr_shows_its_state(procs: int) -> None:
    async def main(kind: str) -> None:
        owner, _, method = kind.partition(".")
        scene = ALL[kind]()
        assert repr(scene.op).startswith(f"<{method} of <")
        assert owner in repr(scene.op)
        assert repr(scene.op).endswith(" not awaited>")
        g = await waiting(scene.op)
        assert repr(scene.op).endswith(" waiting>")
        scene.let()
        await g
        assert repr(scene.op).endswith(" done>")

    run_with(ALL, main, procs)


def test_one_that_need_not_wait_does_not_suspend() -> None:
    """Unless the slice is over, which happens on a busy machine, but not every time."""
    ran: list[int] = []

    async def other() -> None:
        ran.append(1)

    async def main(kind: str) -> None:
        scene = ready(kind)
        for _ in range(100):
            ran.clear()
            g = gofer.go(other)
            for _ in range(10):
                await scene.make()
                scene.give_back()
            suspended = bool(ran)
            await g
            if not suspended:
                return
        raise AssertionError("it always let others run")

    run_with((*TAKERS, "WaitGroup.wait"), main, 1)


def test_one_that_never_waits_starves_nobody() -> None:
    """When the 10 ms of its goroutine are over, others have their turn."""
    ran: list[str] = []

    async def other(kind: str) -> None:
        ran.append(kind)

    async def main(kind: str) -> None:
        scene = ready(kind)
        g = gofer.go(other, kind)
        deadline = time.monotonic() + PATIENCE
        while kind not in ran:
            await scene.make()
            scene.give_back()
            assert time.monotonic() < deadline
        await g

    run_with((*TAKERS, "WaitGroup.wait"), main, 1)


# --- Bad use --------------------------------------------------------------------------------------

USED = r" has been awaited already: make a new one$"


def test_an_operation_can_be_used_once(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        g = await waiting(scene.op)
        scene.let()
        await g
        with pytest.raises(RuntimeError, match=USED):
            await scene.op
        scene.give_back()
        scene.assert_free()

    run_with(ALL, main, procs)


def test_also_if_it_need_not_wait(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ready(kind)
        await scene.op
        with pytest.raises(RuntimeError, match=USED):
            await scene.op
        scene.give_back()
        scene.assert_free()

    run_with(TAKERS, main, procs)


def test_also_if_it_was_cancelled(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        g = await waiting(scene.op)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        with pytest.raises(RuntimeError, match=USED):
            await scene.op

    run_with(ALL, main, procs)


def test_two_goroutines_cannot_await_the_same_operation(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        g = await waiting(scene.op)
        with pytest.raises(RuntimeError, match=r" is already awaited by another goroutine$"):
            await scene.op
        assert g.state == "waiting"
        scene.let()
        await g
        scene.assert_taken()

    run_with(ALL, main, procs)


def test_outside_a_goroutine_it_is_a_runtime_error() -> None:
    for kind in ALL:
        scene = ALL[kind]()
        coro = wait_for(scene.op)
        with pytest.raises(RuntimeError, match=r" can only be awaited inside a goroutine"):
            coro.send(None)
        scene.let()
        scene.assert_free()


# --- Cancellation ---------------------------------------------------------------------------------


def test_cancelled_while_it_waits_it_takes_nothing(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        g = await waiting(scene.op)
        assert g.cancel("enough")
        with pytest.raises(gofer.Cancelled) as info:
            await g
        assert info.value.reason == "enough"
        scene.let()
        scene.assert_free()

    run_with(ALL, main, procs)


def test_a_cancelled_waiter_leaves_the_others_their_turn(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        gs = [await waiting(scene.make()) for _ in range(5)]
        for i in (0, 2, 4):
            gs[i].cancel()
        for i in (0, 2, 4):
            with pytest.raises(gofer.Cancelled):
                await gs[i]
        assert gs[1].state == gs[3].state == "waiting"
        scene.let()
        for i in (1, 3):
            await gs[i]
            scene.give_back()
        scene.assert_free()

    run_with((*TAKERS, "WaitGroup.wait"), main, procs)


def test_a_pending_cancellation_comes_first(procs: int) -> None:
    """Also if there was no need to wait."""

    async def child(scene: Scene) -> tuple[str, str]:
        gofer.current().cancel()
        return await outcome(scene.op), await outcome(gofer.gosched())

    async def main(kind: str) -> None:
        scene = ready(kind)
        assert await gofer.go(child, scene) == ("cancelled", "done")
        scene.assert_free()

    run_with(ALL, main, procs)


def test_what_was_granted_before_the_cancellation_stays_granted(procs: int) -> None:
    """The next operation raises. (A Mutex is not granted, but left to be taken.)"""

    async def child(scene: Scene) -> tuple[str, str]:
        return await outcome(scene.op), await outcome(sleep_long())

    async def main(kind: str) -> None:
        scene = ALL[kind]()
        g = gofer.go(child, scene)
        await parked(g)
        scene.let()
        assert g.cancel()
        assert await g == ("done", "cancelled")
        scene.assert_taken()
        scene.give_back()
        scene.assert_free()

    run_with([kind for kind in ALL if kind != "Mutex.lock"], main, procs)


def test_the_end_of_its_context_ends_the_wait(procs: int) -> None:
    async def child(scene: Scene, ctx: context.Context) -> str:
        async with ctx:
            await scene.op
        return "quietly"

    async def main(kind: str) -> None:
        scene = ALL[kind]()
        ctx = context.with_cancel()
        g = gofer.go(child, scene, ctx)
        await parked(g)
        ctx.cancel()
        assert await g == "quietly"
        scene.let()
        scene.assert_free()

    run_with(ALL, main, procs)


def test_in_a_context_that_is_over_it_raises_every_time(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ready(kind)
        ctx = context.with_cancel()
        async with ctx:
            ctx.cancel("over")
            for _ in range(3):
                with pytest.raises(gofer.Cancelled) as info:
                    await scene.make()
                assert info.value.reason == "over"
        scene.assert_free()

    run_with(ALL, main, procs)


def test_a_timeout_ends_the_wait(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        with pytest.raises(TimeoutError):
            async with gofer.timeout(0.002):
                await scene.op
        scene.let()
        scene.assert_free()

    run_with(ALL, main, procs)


def test_one_that_is_driven_by_hand_and_closed_waits_no_more(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        coro = wait_for(scene.op)
        coro.send(None)
        coro.close()
        scene.let()
        scene.assert_free()
        await gofer.sleep(0.0001)

    run_with(ALL, main, procs)


# --- For ever -------------------------------------------------------------------------------------


def test_who_waits_for_what_nobody_else_has_is_a_leak(procs: int) -> None:
    cleaned: list[str] = []

    async def child(kind: str) -> None:
        try:
            await ALL[kind]().op
        finally:
            cleaned.append(kind)

    async def main(kind: str) -> None:
        g = gofer.go(child, kind, name="hopeless")
        site = here(-1)
        await parked(g)
        del g

        def ended() -> bool:
            gc.collect()
            return gofer.num_goroutine() == 1

        with pytest.warns(gofer.GoroutineLeakWarning) as caught:
            await until(ended, "only main left")
        assert cleaned[-1] == kind
        assert len(caught) == 1
        text = str(caught[0].message)
        assert f"(hopeless) leaked: it waits for ever [{REASONS[kind]}]" in text
        assert f"{caught[0].filename}:{caught[0].lineno}" == site

    run_with(ALL, main, procs)
    assert cleaned == list(ALL)


def test_who_waits_for_what_somebody_has_is_no_leak(procs: int) -> None:
    async def main() -> None:
        scenes = [make() for make in ALL.values()]
        refs = [weakref.ref(await waiting(scene.op)) for scene in scenes]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                gc.collect()
        assert all(ref() is not None for ref in refs)
        for scene, ref in zip(scenes, refs, strict=True):
            scene.let()
            await gone(ref, procs)

    gofer.run(main, procs=procs)


def test_a_deadlock_names_what_everybody_waits_for(procs: int) -> None:
    scenes: list[Scene] = []

    async def main(kind: str) -> None:
        scenes[:] = ALL[kind](), ALL[kind]()
        g = gofer.go(wait_for, scenes[0].op)
        await parked(g)
        await scenes[1].op

    for kind in ALL:
        with pytest.raises(gofer.Deadlock) as info:
            gofer.run(main, kind, procs=procs)
        text = str(info.value)
        assert text.startswith("all goroutines are asleep - deadlock!")
        assert f"goroutine 1 [{REASONS[kind]}]" in text
        assert f"goroutine 2 [{REASONS[kind]}]" in text
        scenes.clear()


def test_when_main_ends_the_waiters_are_cancelled(procs: int) -> None:
    ends: list[str] = []

    async def child(scene: Scene) -> None:
        ends.append(await outcome(scene.op))

    async def main(kind: str) -> None:
        await parked(gofer.go(child, ALL[kind]()))

    run_with(ALL, main, procs)
    assert ends == ["cancelled"] * len(ALL)


# --- Threads --------------------------------------------------------------------------------------


def test_a_foreign_thread_lets_a_goroutine_go_on(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        g = await waiting(scene.op)
        with thread(scene.let):
            await g
        scene.assert_taken()

    run_with(ALL, main, procs)


def test_a_goroutine_lets_a_foreign_thread_go_on(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        passed: list[None] = []

        def foreign() -> None:
            passed.append(gofer.block(scene.op))

        with thread(foreign):
            await until(lambda: repr(scene.op).endswith(" waiting>"))
            assert not passed
            scene.let()
            await until(lambda: passed)
        scene.assert_taken()

    run_with(ALL, main, procs)


def test_a_foreign_thread_whose_time_is_up_takes_nothing(procs: int) -> None:
    async def main(kind: str) -> None:
        scene = ALL[kind]()
        lasted: list[float] = []

        def foreign() -> None:
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                gofer.block(scene.op, timeout=0.003)
            lasted.append(time.monotonic() - start)

        with thread(foreign):
            await until(lambda: lasted)
        assert lasted[0] >= 0.003
        scene.let()
        scene.assert_free()

    run_with(ALL, main, procs)


# --- Objects --------------------------------------------------------------------------------------


def test_objects_can_be_referred_to_weakly_and_go_when_they_are_dropped() -> None:
    for make in (
        gofer.Mutex,
        gofer.RWMutex,
        gofer.WaitGroup,
        lambda: gofer.Cond(gofer.Mutex()),
        lambda: gofer.Semaphore(1),
    ):
        obj: Any = make()
        ref = weakref.ref(obj)
        assert ref() is obj
        del obj
        assert ref() is None


def test_the_collector_finds_them_in_cycles() -> None:
    class Owner:
        pass

    owner: Any = Owner()
    owner.mu = gofer.Mutex()
    owner.cond = gofer.Cond(owner.mu)
    owner.op = owner.cond.wait()
    owner.me = owner
    refs = [weakref.ref(x) for x in (owner, owner.mu, owner.cond)]
    del owner
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


@pytest.mark.parametrize("cls", [gofer.Mutex, gofer.RWMutex, gofer.WaitGroup])
def test_constructors_without_parameters_take_none(cls: Any) -> None:
    with pytest.raises(TypeError):
        cls(1)
    with pytest.raises(TypeError):
        cls(n=1)


def test_wrong_argument_counts_are_type_errors() -> None:
    mu, rw, wg = gofer.Mutex(), gofer.RWMutex(), gofer.WaitGroup()
    cond, sem = gofer.Cond(mu), gofer.Semaphore(1)
    calls: list[Any] = [mu.lock, mu.unlock, mu.try_lock, mu.locked]
    calls += [rw.lock, rw.unlock, rw.try_lock, rw.rlock, rw.runlock, rw.try_rlock]
    calls += [wg.done, wg.wait, cond.wait, cond.signal, cond.broadcast]
    for call in calls:
        with pytest.raises(TypeError):
            call(1)
    more: list[Any] = [sem.acquire, sem.release, sem.try_acquire, wg.add]
    for call in more:
        with pytest.raises(TypeError):
            call(1, 2)
    assert not mu.locked()
    assert sem.try_acquire()
