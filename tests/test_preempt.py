"""Preemption: goroutines that compute, and reach no scheduling point, share the Ps with others."""

import contextlib
import gc
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gofer
from gofer import _core
from tests import support
from tests.support import FREE_THREADED, run_program, thread, until

needs_monitoring = pytest.mark.skipif(
    sys.version_info < (3, 12) or FREE_THREADED,
    reason="sys.monitoring is what stops code from Python 3.12 on, where there is a GIL",
)
needs_gil = pytest.mark.skipif(FREE_THREADED, reason="no GIL, no switch interval")
TOOL_IDS = (3, 4)  # those of sys.monitoring that have no owner


@pytest.fixture(autouse=True)
def as_usual() -> Iterator[None]:
    """Where GOFER_TEST_SYSMON_US has the Ps of loops taken all the time, none is ever stopped."""
    before = _core.set_sysmon(0)
    yield
    _core.set_sysmon(before)


class Hogs:
    """Loops that never call the runtime, each counting its rounds."""

    def __init__(self, n: int) -> None:
        self.rounds = [0] * n
        self.stop = False

    async def spin(self, i: int) -> None:
        rounds = self.rounds
        while not self.stop:
            rounds[i] += 1

    def spin_plainly(self, i: int) -> None:
        rounds = self.rounds
        while not self.stop:
            rounds[i] += 1

    async def all_have_run(self) -> None:
        """Since the call."""
        before = self.rounds[:]
        await until(
            lambda: all(n > b for n, b in zip(self.rounds, before, strict=True)), "every hog's turn"
        )


def preemptions() -> int:
    """So far, in this process."""
    return _core.counters()["preemptions"]


async def preempted(times: int = 5) -> None:
    """Wait until that has happened."""
    before = preemptions()
    await until(lambda: preemptions() >= before + times, "preemptions")


# --- Taking turns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_loops_share_the_ps_with_each_other_and_with_all_others(procs: int, plain: bool) -> None:
    async def main() -> None:
        hogs = Hogs(2 * procs)
        loop: Callable[[int], Any] = hogs.spin_plainly if plain else hogs.spin
        goroutines = [gofer.go(loop, i) for i in range(2 * procs)]
        for _ in range(5):
            await hogs.all_have_run()
        hogs.stop = True
        for g in goroutines:
            await g

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_loops_are_stopped_when_their_slice_is_over(procs: int, plain: bool) -> None:
    async def main() -> None:
        hogs = Hogs(procs + 2)
        loop: Callable[[int], Any] = hogs.spin_plainly if plain else hogs.spin
        goroutines = [gofer.go(loop, i) for i in range(procs + 2)]
        await preempted(10)
        # as many as have no P are stopped
        await until(lambda: _core.counters()["stopped_threads"] >= 2, "stopped threads")
        hogs.stop = True
        for g in goroutines:
            await g
        assert _core.counters()["stopped_threads"] == 0

    gofer.run(main, procs=procs)


def test_turns_are_fair() -> None:
    async def main() -> None:
        hogs = Hogs(4)
        for i in range(4):
            gofer.go(hogs.spin, i)
        await until(lambda: min(hogs.rounds) > 0)
        before = hogs.rounds[:]
        await gofer.sleep(2)
        after = hogs.rounds[:]
        hogs.stop = True
        done = [a - b for a, b in zip(after, before, strict=True)]
        assert max(done) < 8 * min(done), done

    gofer.run(main, procs=1)


def test_a_timer_is_served_beside_loops(procs: int) -> None:
    async def main() -> float:
        hogs = Hogs(procs)
        for i in range(procs):
            gofer.go(hogs.spin, i)
        await until(lambda: all(hogs.rounds))
        start = time.monotonic()
        for _ in range(20):
            await gofer.sleep(0.001)
        hogs.stop = True
        return time.monotonic() - start

    # alone it takes 20 ms, and for ever if loops kept their Ps
    assert gofer.run(main, procs=procs) < 20


# --- The code that is stopped does not notice -----------------------------------------------------


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def sieve(n: int) -> int:
    return sum(1 for i in range(2, n) if all(i % k for k in range(2, int(i**0.5) + 1)))


def tree(n: int) -> Iterator[int]:
    if n > 0:
        yield from tree(n - 1)
        yield n
        yield from tree(n - 1)


def walk() -> int:
    return sum(tree(15))


def failing(n: int) -> int:
    caught = 0
    for i in range(n):
        try:
            if i % 2:
                raise ValueError(i)
        except ValueError as exc:
            caught += exc.args[0]
    return caught


def comprehend(n: int) -> int:
    return len({str(i): list(range(i % 7)) for i in range(n)})


WORK = [
    (fib, (22,), 17711),
    (sieve, (8000,), 1007),
    (walk, (), 65519),
    (failing, (60_000,), 900_000_000),
    (comprehend, (40_000,), 40_000),
]


@pytest.mark.parametrize(("fn", "args", "result"), WORK, ids=[w[0].__name__ for w in WORK])
def test_results_are_right(procs: int, fn: Any, args: tuple[Any, ...], result: int) -> None:
    async def task() -> int:
        return int(fn(*args))

    async def main() -> None:
        goroutines = [gofer.go(task) for _ in range(4)] + [gofer.go(fn, *args) for _ in range(4)]
        for g in goroutines:
            assert await g == result

    gofer.run(main, procs=procs)


def test_a_lock_that_a_stopped_goroutine_holds_is_released_in_time() -> None:
    async def main() -> None:
        lock = threading.Lock()
        hogs = Hogs(2)

        async def holds() -> None:
            with lock:
                await_until = time.monotonic() + 0.2
                while time.monotonic() < await_until:
                    pass

        async def wants() -> bool:
            with lock:
                return True

        gofer.go(hogs.spin, 0)
        gofer.go(hogs.spin, 1)
        holder = gofer.go(holds)
        await until(lock.locked)
        assert await gofer.go(wants)
        await holder
        hogs.stop = True

    gofer.run(main, procs=1)


def test_a_lock_that_all_want_does_not_cost_a_thread_for_each() -> None:
    """Its holder, once stopped, goes on before more of them block their threads."""
    lock = threading.Lock()
    many = 500

    async def holds() -> None:
        with lock:
            support.spin(0.1)

    async def wants() -> None:
        with lock:
            pass

    async def main() -> int:
        holder = gofer.go(holds)
        await until(lock.locked)
        for g in [gofer.go(wants) for _ in range(many)]:
            await g
        await holder
        return _core.counters()["threads"]

    assert gofer.run(main, procs=1) < many / 4


def test_a_module_whose_import_takes_long_stops_nobody(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import time\nuntil = time.monotonic() + 0.3\nwhile time.monotonic() < until: pass\n"
    )
    (tmp_path / "quick_to_import.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def slow() -> str:
        import slow_to_import  # type: ignore[import-not-found]

        return str(slow_to_import.__name__)

    async def quick() -> int:
        import quick_to_import  # type: ignore[import-not-found]

        return int(quick_to_import.value)

    async def main() -> None:
        imports = gofer.go(slow)
        assert await gofer.go(quick) == 1
        assert await imports == "slow_to_import"

    try:
        gofer.run(main, procs=1)
    finally:
        sys.modules.pop("slow_to_import", None)
        sys.modules.pop("quick_to_import", None)


def test_code_that_is_traced_and_profiled_goes_on() -> None:
    calls = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    async def main() -> None:
        hogs = Hogs(2)

        async def profiled() -> int:
            sys.setprofile(profile)
            try:
                return fib(18)
            finally:
                sys.setprofile(None)

        for i in range(2):
            gofer.go(hogs.spin, i)
        assert await gofer.go(profiled) == 2584
        hogs.stop = True

    gofer.run(main, procs=1)
    assert calls > 5000


def test_code_that_a_debugger_traces_is_traced_on(procs: int) -> None:
    """On Python 3.11 that uses the same means as we do: then its P is handed off."""
    lines: set[int] = set()
    rounds = 0

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_code is traced.__code__:
            lines.add(frame.f_lineno)
        return tracer

    def traced(stop: list[bool]) -> Any:
        nonlocal rounds
        while not stop:
            rounds += 1
        return sys.gettrace()

    def plain(stop: list[bool]) -> Any:
        sys.settrace(tracer)
        try:
            return traced(stop)
        finally:
            sys.settrace(None)

    async def main() -> None:
        hogs = Hogs(2)
        stop: list[bool] = []
        for i in range(2):
            gofer.go(hogs.spin, i)
        g = gofer.go(plain, stop)
        for _ in range(5):
            await hogs.all_have_run()
        before = rounds
        await until(lambda: rounds > before)
        stop.append(True)
        assert await g is tracer
        hogs.stop = True

    gofer.run(main, procs=procs)
    first = traced.__code__.co_firstlineno
    assert lines == {first + 2, first + 3, first + 4}
    assert sys.gettrace() is None


def test_loops_of_one_line_and_of_generators_are_stopped(procs: int) -> None:
    async def one_line() -> None:
        while not hogs.stop: pass  # noqa: E701  # fmt: skip

    def numbers() -> Iterator[int]:
        while not hogs.stop:
            yield 1

    async def generator() -> int:
        return sum(numbers())

    async def comprehension() -> int:
        return len([None for _ in iter(lambda: hogs.stop, True)])

    hogs = Hogs(2)

    async def main() -> None:
        gs = [gofer.go(f) for f in (one_line, generator, comprehension) for _ in range(procs)]
        await preempted(10 * procs)
        hogs.stop = True
        for g in gs:
            await g

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("procs", [1, 2])
def test_however_many_compute_others_go_on_and_few_threads_run(procs: int) -> None:
    """60 endless loops: they take turns, and a ticker need not wait for all of them."""
    n = 60

    async def main() -> None:
        hogs = Hogs(n)
        goroutines = [gofer.go(hogs.spin, i) for i in range(n)]
        await until(lambda: all(hogs.rounds), "every hog's turn")
        turns = []  # of hogs, while it waits
        for _ in range(20):
            before = hogs.rounds[:]
            await gofer.sleep(0.001)
            turns.append(sum(a != b for a, b in zip(hogs.rounds, before, strict=True)))
        assert sorted(turns)[10] < n // 2, turns
        await most_are_stopped(n)
        hogs.stop = True
        for g in goroutines:
            await g

    gofer.run(main, procs=procs)


async def most_are_stopped(n: int) -> None:
    """Of n hogs, those that do not run are, and keep nobody from running."""
    await until(lambda: _core.counters()["stopped_threads"] > n // 2, "most hogs stopped")


def test_few_threads_run_on_a_busy_machine_too() -> None:
    """Who has no core for long does not block. Others have its P meanwhile, then it is stopped."""
    n = 30

    def burn() -> None:
        while not hogs.stop:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000)

    async def main() -> None:
        goroutines = [gofer.go(hogs.spin, i) for i in range(n)]
        await until(lambda: all(hogs.rounds), "every hog's turn")
        await most_are_stopped(n)
        hogs.stop = True
        for g in goroutines:
            await g

    hogs = Hogs(n)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(thread(burn))
        try:
            gofer.run(main, procs=2)
        finally:
            hogs.stop = True


# --- A stopped goroutine, seen from outside -------------------------------------------------------


def test_a_stopped_goroutine_is_runnable_and_shows_its_stack() -> None:
    async def main() -> None:
        hogs = Hogs(2)
        goroutines = [gofer.go(hogs.spin, i) for i in range(2)]
        await hogs.all_have_run()
        await until(lambda: _core.counters()["stopped_threads"] == 2)
        for g in goroutines:
            assert g.state == "runnable"
            assert [frame.name for frame in g.stack()] == ["spin"]
        hogs.stop = True

    gofer.run(main, procs=1)


def test_cancelling_it_waits_for_its_next_operation() -> None:
    async def main() -> None:
        hogs = Hogs(2)
        goroutines = [gofer.go(hogs.spin, i) for i in range(2)]
        await hogs.all_have_run()
        for g in goroutines:
            g.cancel()
        await hogs.all_have_run()
        hogs.stop = True
        for g in goroutines:
            await g  # it ended by itself, without an operation

    gofer.run(main, procs=1)


# --- The end of the run ---------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_the_end_of_main_ends_endless_loops(procs: int, plain: bool) -> None:
    begun, ended = [], []

    def spin(i: int) -> None:
        begun.append(i)
        try:
            while True:
                i += 1
        finally:
            ended.append(sys.exc_info()[0])

    async def spin_async(i: int) -> None:
        spin(i)

    async def main() -> None:
        for i in range(procs + 1):
            gofer.go(spin if plain else spin_async, i)
        await until(lambda: len(begun) == procs + 1)

    gofer.run(main, procs=procs)
    assert ended == [gofer.Cancelled] * (procs + 1)


def test_a_slow_clean_up_is_not_cut_short(procs: int) -> None:
    cleaned = []

    async def works() -> None:
        try:
            await gofer.Chan[None]().recv()
        finally:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass
            cleaned.append(True)

    async def main() -> None:
        g = gofer.go(works)
        await until(lambda: g.state == "waiting")

    gofer.run(main, procs=procs)
    assert cleaned == [True]


def test_the_second_ctrl_c_ends_an_endless_main() -> None:
    done = run_program(
        """
        import os, signal, threading, time, gofer

        async def main():
            for seconds in (0.2, 0.4):
                threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                pass

        try:
            gofer.run(main)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert done.check() == "interrupted\n"


def test_an_abort_raises_nothing_where_no_goroutine_runs() -> None:
    """In the stopped goroutine, yes: but not after that has come to its end all the same."""
    done = run_program(
        """
        import sys, threading, time, traceback, gofer
        from gofer import _core

        over = False
        waiting = threading.Event()
        sys.unraisablehook = lambda what: print("unraisable", repr(what.exc_value))

        def killer():
            global over
            waiting.wait()
            while main_g.state != "runnable":
                time.sleep(0.0005)
            over = True
            _core.abort()

        async def spin():
            while not over:
                pass

        async def main():
            global main_g
            main_g = _core.current()
            for _ in range(3):
                gofer.go(spin)
            waiting.set()
            while not over:
                pass

        for _ in range(5):
            over = False
            waiting.clear()
            thread = threading.Thread(target=killer)
            thread.start()
            try:
                gofer.run(main, procs=1)
            except gofer.Cancelled as e:
                where = traceback.extract_tb(e.__traceback__)[-1].name
                if where != "main":
                    print("raised in", where)
            except KeyboardInterrupt:
                pass
            thread.join()
        print("done")
        """
    )
    assert done.check() == "done\n"


# --- Collections ----------------------------------------------------------------------------------


class Cycle:
    """Garbage whose end takes a while."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        for _ in range(1000):
            pass


def test_loops_are_stopped_after_collections_as_before() -> None:
    """However many there were, on other threads, while they were about to be stopped."""

    async def main() -> None:
        hogs = Hogs(4)
        goroutines = [gofer.go(hogs.spin, i) for i in range(4)]
        collected = False

        def collect() -> None:
            nonlocal collected
            enough = time.monotonic() + 5
            for _ in range(150):
                gc.collect(0)
                time.sleep(0.003)
                if hogs.stop or time.monotonic() > enough:
                    break
            collected = True

        with thread(collect):
            try:
                await until(lambda: collected, "collections")
                await until(lambda: _core.counters()["stopped_threads"] >= 2, "two are stopped")
            finally:
                hogs.stop = True
        for g in goroutines:
            await g

    gofer.run(main, procs=2)


def test_nobody_is_stopped_in_the_middle_of_a_collection() -> None:
    """Until he went on, no other could collect anything."""
    phases: dict[str, object] = {}
    stopped_inside = 0

    async def collect(hogs: Hogs) -> None:
        while not hogs.stop:
            for _ in range(20):
                Cycle()
            phases.clear()
            gc.collect()

    async def main() -> None:
        nonlocal stopped_inside
        hogs = Hogs(3)
        goroutines = [gofer.go(hogs.spin, i) for i in range(3)]
        collector = gofer.go(collect, hogs)
        before = preemptions()

        def look() -> None:
            nonlocal stopped_inside
            enough = time.monotonic() + 5
            while preemptions() < before + 60 and time.monotonic() < enough:
                if collector.state == "runnable" and "start" in phases and "stop" not in phases:
                    stopped_inside += collector.state == "runnable"
                time.sleep(0.001)
            hogs.stop = True

        with thread(look):
            for g in [*goroutines, collector]:
                await g

    enabled = gc.isenabled()
    gc.disable()
    gc.callbacks.insert(1, phases.__setitem__)
    try:
        gofer.run(main, procs=1)
    finally:
        gc.callbacks.remove(phases.__setitem__)
        if enabled:
            gc.enable()
    assert stopped_inside == 0


def test_destructors_that_take_long_are_handed_off() -> None:
    """What a goroutine leaves behind runs in none: it cannot be stopped, so nobody tries to."""
    waited: list[float] = []
    ticks = 0

    class Slow:
        def __del__(self) -> None:
            before, since = ticks, time.monotonic()
            while ticks == before and time.monotonic() < since + 5:
                pass
            waited.append(time.monotonic() - since)

    async def make() -> list[Slow]:
        return [Slow()]

    async def main() -> None:
        nonlocal ticks
        for _ in range(8):
            n = len(waited)
            gofer.go(make)
            while len(waited) == n:
                await gofer.gosched()
                ticks += 1

    gofer.run(main, procs=1)
    assert min(waited) < 0.09  # it is 0.1 longer if somebody waits for it to be stopped


# --- Limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_with_too_few_threads_it_fails_as_without_preemption(limit: int) -> None:
    """All threads there may be wait, in calls that block, for a goroutine that is stopped."""
    done = run_program(
        """
        import os, sys, time, gofer

        read_fd, write_fd = os.pipe()
        begun = False

        def computes():
            global begun
            begun = True
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                pass
            os.write(write_fd, b"...")

        async def main():
            gs = [gofer.go(computes)]
            while not begun:
                await gofer.gosched()
            gs += [gofer.go(os.read, read_fd, 1) for _ in range(3)]
            for g in gs:
                await g

        gofer.set_max_threads(int(sys.argv[1]))
        try:
            gofer.run(main, procs=1)
        except RuntimeError as e:
            print(e)
        """,
        str(limit),
    )
    assert f"{limit}-thread limit" in done.check()


# --- The GIL is handed on sooner ------------------------------------------------------------------


@pytest.fixture
def usual_interval() -> Iterator[float]:
    """That of sys.setswitchinterval: CPython's own."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield sys.getswitchinterval()
    sys.setswitchinterval(before)


@needs_gil
def test_the_switch_interval_is_short_while_loops_are_stopped(
    usual_interval: float, procs: int
) -> None:
    async def main() -> None:
        await gofer.sleep(0.05)
        assert sys.getswitchinterval() == usual_interval
        hogs = Hogs(procs + 1)
        goroutines = [gofer.go(hogs.spin, i) for i in range(procs + 1)]
        await until(lambda: sys.getswitchinterval() <= usual_interval / 2, "a short interval")
        hogs.stop = True
        for g in goroutines:
            await g
        await until(lambda: sys.getswitchinterval() == usual_interval, "the usual interval")

    gofer.run(main, procs=procs)


@needs_gil
def test_the_switch_interval_is_the_usual_one_after_the_run(usual_interval: float) -> None:
    async def main() -> None:
        hogs = Hogs(2)
        for i in range(2):
            gofer.go(hogs.spin, i)
        await until(lambda: sys.getswitchinterval() <= usual_interval / 2, "a short interval")
        hogs.stop = True

    gofer.run(main, procs=2)
    assert sys.getswitchinterval() == usual_interval


@needs_gil
@pytest.mark.parametrize("loops", [2, 40])
def test_where_many_threads_may_want_the_gil_the_interval_is_longer(
    usual_interval: float, loops: int
) -> None:
    """Each that waits for the GIL wakes up so often."""

    async def main() -> None:
        hogs = Hogs(loops)
        for i in range(loops):
            gofer.go(hogs.spin, i)
        await until(lambda: sys.getswitchinterval() <= usual_interval / 2, "a short interval")
        release = threading.Event()
        waits = [gofer.go(release.wait) for _ in range(60)]
        await until(lambda: sys.getswitchinterval() == usual_interval, "the usual interval")
        release.set()
        for g in waits:
            await g
        await until(lambda: sys.getswitchinterval() <= usual_interval / 2, "a short interval")
        hogs.stop = True

    gofer.run(main, procs=2)


@needs_gil
@pytest.mark.parametrize("before", [True, False], ids=["before the run", "during the run"])
def test_a_switch_interval_that_somebody_has_chosen_is_left_alone(
    usual_interval: float, before: bool
) -> None:
    async def main() -> None:
        hogs = Hogs(2)
        for i in range(2):
            gofer.go(hogs.spin, i)
        if not before:
            await until(lambda: sys.getswitchinterval() <= usual_interval / 2, "a short interval")
            sys.setswitchinterval(0.004)
        chosen = sys.getswitchinterval()
        for _ in range(5):
            await preempted()
            assert sys.getswitchinterval() == chosen
        hogs.stop = True

    if before:
        sys.setswitchinterval(0.004)
    gofer.run(main, procs=2)
    assert round(sys.getswitchinterval() * 1000) == 4


@needs_gil
def test_who_sets_another_for_a_while_and_then_ours_does_not_keep_it(usual_interval: float) -> None:
    async def main() -> None:
        hogs = Hogs(2)
        for i in range(2):
            gofer.go(hogs.spin, i)
        await until(lambda: sys.getswitchinterval() <= usual_interval / 2, "a short interval")
        found = sys.getswitchinterval()
        release = threading.Event()
        waits = [gofer.go(release.wait) for _ in range(10)]  # which makes it longer
        await until(lambda: found < sys.getswitchinterval() < usual_interval, "another interval")
        sys.setswitchinterval(0.004)
        await preempted()
        sys.setswitchinterval(found)
        await preempted()
        release.set()
        for g in waits:
            await g
        hogs.stop = True

    gofer.run(main, procs=2)
    assert sys.getswitchinterval() == usual_interval


@needs_gil
def test_a_forked_child_has_the_usual_switch_interval() -> None:
    done = run_program(
        """
        import os, sys, warnings, gofer

        warnings.simplefilter("ignore", DeprecationWarning)  # of fork, where there are threads
        stop = False

        async def spin():
            while not stop:
                pass

        async def main():
            global stop
            for _ in range(2):
                gofer.go(spin)
            while sys.getswitchinterval() == 0.005:
                await gofer.sleep(0.001)
            child = os.fork()
            if child == 0:
                os._exit(42 if sys.getswitchinterval() == 0.005 else 1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            stop = True

        gofer.run(main, procs=2)
        """
    )
    assert done.check() == "42\n"


# --- sys.monitoring belongs to others too ---------------------------------------------------------


@needs_monitoring
def test_without_a_free_tool_id_loops_are_handed_off() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    for tool in TOOL_IDS:
        monitoring.use_tool_id(tool, "somebody else")
    try:

        async def main() -> None:
            hogs = Hogs(2)
            before = _core.counters()
            for i in range(2):
                gofer.go(hogs.spin, i)
            for _ in range(3):
                await hogs.all_have_run()
            assert preemptions() == before["preemptions"]
            assert _core.counters()["handoffs"] > before["handoffs"]
            hogs.stop = True

        gofer.run(main, procs=1)
    finally:
        for tool in TOOL_IDS:
            monitoring.free_tool_id(tool)


@needs_monitoring
def test_who_takes_our_tool_id_away_leaves_nothing_changed() -> None:
    done = run_program(
        """
        import sys, time, gofer

        stop = False

        def spin():
            while not stop:
                pass

        async def main():
            global stop
            gs = [gofer.go(spin) for _ in range(3)]
            while sys.getswitchinterval() == 0.005:
                await gofer.sleep(0.001)
            for tool in 3, 4:
                sys.monitoring.free_tool_id(tool)
            while sys.getswitchinterval() != 0.005:
                await gofer.sleep(0.001)
            stop = True
            for g in gs:
                await g

        gofer.run(main, procs=2)
        print("done")
        """
    )
    assert "SystemError" not in done.stderr
    assert done.stdout == "done\n"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
def test_other_tools_see_what_they_asked_for() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    starts = 0

    def started(code: Any, offset: int) -> None:
        nonlocal starts
        starts += code is fib.__code__

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "coverage")
    try:
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, started)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)

        async def main() -> None:
            hogs = Hogs(2)
            for i in range(2):
                gofer.go(hogs.spin, i)
            await preempted()
            assert await gofer.go(fib, 15) == 610
            hogs.stop = True

        gofer.run(main, procs=1)
    finally:
        monitoring.set_events(monitoring.COVERAGE_ID, 0)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)
    assert starts == 1973


@needs_monitoring
def test_nothing_stays_behind() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]

    async def main() -> None:
        hogs = Hogs(2)
        for i in range(2):
            gofer.go(hogs.spin, i)
        await preempted()
        assert [monitoring.get_tool(tool) for tool in TOOL_IDS].count("gofer") == 1
        hogs.stop = True

    gofer.run(main, procs=1)
    for tool in TOOL_IDS:
        assert monitoring.get_tool(tool) is None
        monitoring.use_tool_id(tool, "test")
        assert monitoring.get_local_events(tool, Hogs.spin.__code__) == 0
        monitoring.free_tool_id(tool)


@needs_monitoring
def test_a_program_that_needs_no_preemption_takes_no_tool_id(procs: int) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]

    async def main() -> None:
        await gofer.sleep(0.05)
        assert [monitoring.get_tool(tool) for tool in TOOL_IDS] == [None, None]

    gofer.run(main, procs=procs)


def test_nothing_is_traced_after_the_run() -> None:
    async def main() -> None:
        hogs = Hogs(2)
        for i in range(2):
            gofer.go(hogs.spin, i)
        await preempted()
        hogs.stop = True

    for _ in range(3):
        gofer.run(main, procs=1)
        assert sys.gettrace() is None
        assert sys.getprofile() is None


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFERDEBUG", "asyncpreemptoff=1")

    async def main() -> None:
        hogs = Hogs(2)
        before = preemptions()
        for i in range(2):
            gofer.go(hogs.spin, i)
        for _ in range(3):
            await hogs.all_have_run()
        assert preemptions() == before
        hogs.stop = True

    gofer.run(main, procs=1)


# --- C code ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not FREE_THREADED, reason="with the GIL a long call of C code stops everybody")
def test_a_long_call_of_c_code_beside_loops_stops_nobody() -> None:
    async def c_code() -> int:
        return pow(7, 6_000_000) & 1

    async def main() -> None:
        start = time.monotonic()
        await gofer.go(c_code)
        alone = time.monotonic() - start
        hogs = Hogs(2)
        for i in range(2):
            gofer.go(hogs.spin, i)
        g = gofer.go(c_code)
        turns = 0
        while not g.done():
            await gofer.sleep(alone / 100)
            turns += 1
        hogs.stop = True
        # if each stop of a loop waited for the C code, there would be a handful
        assert turns > 10, (turns, alone)

    gofer.run(main, procs=2)
