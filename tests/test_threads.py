"""Ms: how many threads there are, which goroutine runs where, and that idle ones are idle."""

import resource
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import FREE_THREADED, give, os_threads, spin, thread, until

# --- How many -------------------------------------------------------------------------------------


@pytest.fixture
def limit() -> Iterator[None]:
    """Tests of the limit put it back."""
    yield
    gofer.set_max_threads(10_000)


@pytest.mark.usefixtures("limit")
def test_set_max_threads_returns_the_former_limit() -> None:
    assert gofer.set_max_threads(50) == 10_000
    assert gofer.set_max_threads(60) == 50

    async def main() -> int:
        return gofer.set_max_threads(70)

    assert gofer.run(main) == 60
    assert gofer.set_max_threads(10_000) == 70


@pytest.mark.parametrize(
    ("n", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (2**31, ValueError),
        (2**70, ValueError),
        ("x", TypeError),
        (True, TypeError),
        (1.5, TypeError),
        (None, TypeError),
    ],
)
@pytest.mark.usefixtures("limit")
def test_bad_limits_are_refused_and_change_nothing(n: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="limit"):
        gofer.set_max_threads(n)
    assert gofer.set_max_threads(10_000) == 10_000


async def many_at_once() -> None:
    """Needs more than one thread."""

    async def worker() -> None:
        for _ in range(20):
            time.sleep(0.001)
            await gofer.gosched()

    gs = [gofer.go(worker) for _ in range(16)]
    for g in gs:
        await g


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_program_that_needs_more_than_the_limit_ends(most: int) -> None:
    gofer.set_max_threads(most)
    with pytest.raises(RuntimeError, match=f"exceeds {most}-thread limit"):
        gofer.run(many_at_once, procs=8)
    gofer.set_max_threads(10_000)
    gofer.run(many_at_once, procs=8)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("procs", [1, 4])
def test_goroutines_that_are_locked_to_more_threads_than_the_limit(procs: int) -> None:
    """None of them can run another, not even to say that there is no thread left."""

    async def locked() -> None:
        gofer.lock_os_thread()
        await gofer.sleep(0.2)

    async def main() -> None:
        for g in [gofer.go(locked) for _ in range(20)]:
            await g

    gofer.set_max_threads(8)
    with pytest.raises(RuntimeError, match="exceeds 8-thread limit"):
        gofer.run(main, procs=procs)


@pytest.mark.usefixtures("limit")
def test_the_limit_is_checked_at_once_when_it_is_lowered() -> None:
    async def main() -> None:
        await many_at_once()
        await until(lambda: _core.counters()["threads"] > 2)
        gofer.set_max_threads(2)
        for _ in range(1000):
            await gofer.sleep(0.001)

    with pytest.raises(RuntimeError, match="exceeds 2-thread limit"):
        gofer.run(main, procs=8)


@pytest.mark.usefixtures("no_handoff")  # which gives those that block one more each
def test_there_are_never_more_threads_than_ps_need(procs: int) -> None:
    most = 0

    async def worker() -> None:
        nonlocal most
        for _ in range(20):
            await gofer.gosched()
            await gofer.sleep(0.0001)
            most = max(most, _core.counters()["threads"])

    async def main() -> None:
        gs = [gofer.go(worker) for _ in range(100)]
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    # One more for main's own thread when it has handed its P on. And a thread that has given up its
    # P cannot be given another before it sleeps: who finds that P idle meanwhile needs one more,
    # which then stays.
    assert most <= 2 * procs + 1


@pytest.mark.usefixtures("no_handoff")
def test_one_p_needs_one_thread() -> None:
    async def main() -> int:
        gs = [gofer.go(give, 1) for _ in range(100)]
        for g in gs:
            await g
        await gofer.sleep(0.001)
        return _core.counters()["threads"]

    assert gofer.run(main, procs=1) == 1


def test_the_threads_have_names(procs: int) -> None:
    names: set[str] = set()

    async def worker() -> None:
        time.sleep(0.002)
        names.update(os_threads().values())

    async def main() -> None:
        gs = [gofer.go(worker) for _ in range(20)]
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    if procs > 1 and FREE_THREADED:
        assert any(name.startswith("gofer-m") for name in names)


# --- Which runs where -----------------------------------------------------------------------------


def test_main_runs_on_the_thread_that_called_run(procs: int) -> None:
    async def other() -> None:
        for _ in range(20):
            await gofer.gosched()
            await gofer.sleep(0.0001)

    async def main() -> set[int]:
        ran_on = set()
        gs = [gofer.go(other) for _ in range(50)]
        for g in gs:
            ran_on.add(threading.get_ident())
            await g
            ran_on.add(threading.get_ident())
            await gofer.gosched()
            ran_on.add(threading.get_ident())
            await gofer.sleep(0.0001)
        return ran_on

    assert gofer.run(main, procs=procs) == {threading.get_ident()}


def test_main_goes_elsewhere_if_its_thread_is_hogged_and_comes_back() -> None:
    own = threading.get_ident()
    hogged = False
    release = False

    async def hog() -> None:
        nonlocal hogged
        while threading.get_ident() != own:
            await gofer.gosched()
        hogged = True
        while not release:
            pass

    async def main() -> None:
        nonlocal release
        g = gofer.go(hog)
        start = time.monotonic()
        await until(lambda: hogged)
        assert threading.get_ident() != own
        assert time.monotonic() - start < 10
        release = True
        await g
        for _ in range(1000):
            await gofer.sleep(0.001)
            if threading.get_ident() == own:
                return
        raise AssertionError("main never came back to its thread")

    gofer.run(main, procs=2)


def test_current_thread_is_usable_in_goroutines(procs: int) -> None:
    """Threads of the runtime look like any thread that Python did not start."""
    names: list[str] = []

    async def worker() -> None:
        time.sleep(0.001)
        local.value = 1
        names.append(threading.current_thread().name)

    local = threading.local()

    async def main() -> None:
        gs = [gofer.go(worker) for _ in range(20)]
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    assert len(names) == 20
    # Those that threading made up for our threads are gone with them.
    with thread(lambda: None):
        pass
    alive = [t for t in threading.enumerate() if t is not threading.main_thread()]
    assert [t for t in alive if not t.name.startswith("Dummy")] == []


# --- Parallel -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
def test_goroutines_run_in_parallel(n: int) -> None:
    """Each waits for its turn without giving way: on fewer threads than n this never ends."""
    turn = 0

    async def spinner(me: int) -> None:
        nonlocal turn
        for i in range(50):
            end = time.monotonic() + 30
            while turn != i * n + me:
                assert time.monotonic() < end, f"the turn {i * n + me} never came"
            turn += 1

    async def main() -> None:
        gs = [gofer.go(spinner, i) for i in range(n)]
        for g in gs:
            await g

    gofer.run(main, procs=n + 1)
    assert turn == 50 * n


def test_two_busy_goroutines_overlap() -> None:
    spans: list[tuple[float, float]] = []

    async def busy() -> None:
        start = time.monotonic()
        spin(0.2)
        spans.append((start, time.monotonic()))

    async def main() -> None:
        gs = [gofer.go(busy) for _ in range(2)]
        for g in gs:
            await g

    gofer.run(main, procs=2)
    (start_a, end_a), (start_b, end_b) = spans
    assert max(start_a, start_b) < min(end_a, end_b)


def test_one_busy_goroutine_uses_one_cpu_however_many_ps_there_are() -> None:
    async def main() -> float:
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.monotonic()
        spin(1)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return used / (time.monotonic() - start)

    assert gofer.run(main, procs=8) < 1.3


def test_blocking_calls_of_several_goroutines_overlap() -> None:
    """With the GIL too: time.sleep() lets go of it."""

    async def blocks() -> None:
        time.sleep(0.2)

    async def main() -> None:
        gs = [gofer.go(blocks) for _ in range(8)]
        for g in gs:
            await g

    start = time.monotonic()
    gofer.run(main, procs=8)
    assert time.monotonic() - start < 8 * 0.2 / 2


# --- Idle -----------------------------------------------------------------------------------------


def test_an_idle_program_uses_no_cpu(procs: int) -> None:
    async def main() -> tuple[float, int]:
        gs = [gofer.go(give, i) for i in range(1000)]
        for g in gs:
            await g
        await gofer.sleep(0.1)
        before = resource.getrusage(resource.RUSAGE_SELF)
        await gofer.sleep(2)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        switches = after.ru_nvcsw - before.ru_nvcsw
        return cpu, switches

    cpu, switches = gofer.run(main, procs=procs)
    assert cpu < 0.05
    assert switches < 100


def test_a_program_that_waits_for_a_foreign_thread_uses_little_cpu(procs: int) -> None:
    """Nothing is runnable and no timer is set, but another thread may still call in."""
    event = threading.Event()
    used: list[float] = []

    async def main() -> None:
        waiter = gofer.go(wait_for_main, gofer.current())

        def foreign() -> None:
            before = resource.getrusage(resource.RUSAGE_SELF)
            event.wait(1)
            after = resource.getrusage(resource.RUSAGE_SELF)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            waiter.cancel()

        with thread(foreign), pytest.raises(gofer.Cancelled):
            await waiter

    async def wait_for_main(main_goroutine: gofer.Goroutine[Any]) -> None:
        await main_goroutine

    gofer.run(main, procs=procs)
    assert used[0] < 0.1


@pytest.mark.skipif(not FREE_THREADED, reason="this Python always has the GIL")
def test_the_gil_stays_off_while_goroutines_run() -> None:
    async def worker() -> bool:
        time.sleep(0.001)
        return bool(sys._is_gil_enabled())  # type: ignore[attr-defined,unused-ignore]

    async def main() -> list[bool]:
        gs = [gofer.go(worker) for _ in range(20)]
        return [await g for g in gs]

    assert not any(gofer.run(main, procs=4))
