"""Hard ends: a run is over and goroutines are not; and what comes back after it."""

import gc
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator

import pytest

import gofer
from gofer import Chan, _core, block
from tests.support import (
    FREE_THREADED,
    PATIENCE,
    Program,
    all_came_back,
    gone,
    parked,
    run_program,
    spin,
    until,
)

SLICE = 0.01


async def hog(seconds: float = 0.1) -> None:
    spin(seconds)


async def preempted() -> None:
    """See to it that preemption has been used in this run, where there is any."""
    for g in [gofer.go(hog) for _ in range(4)]:
        await g


# --- Main ends while others compute or are in foreign code ----------------------------------------


@pytest.mark.skipif(not FREE_THREADED, reason="with the GIL a long call of C code stops everybody")
def test_a_call_of_c_code_is_not_waited_for_after_preemption_either() -> None:
    program = """
        import os, sys, time, gofer

        async def hog():
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                pass

        def in_c():
            sum(range(10**10))

        async def main():
            for g in [gofer.go(hog) for _ in range(4)]:
                await g
            gofer.go(in_c)
            await gofer.sleep(0.3)

        gofer.run(main, procs=2)
        print("over", flush=True)
        os._exit(0)
        """
    assert run_program(program).check() == "over\n"


def test_many_loops_are_all_waited_for() -> None:
    """More of them than the hand-offs that one look of sysmon makes."""
    many = 24
    begun, ended = set(), set()

    def loop(i: int) -> None:
        begun.add(i)
        try:
            while True:
                pass
        finally:
            ended.add(i)
            end_of_loop()

    def end_of_loop() -> None:
        pass

    async def main() -> None:
        for i in range(many):
            gofer.go(loop, i)
        await until(lambda: len(begun) == many)

    gofer.run(main, procs=2)
    all_came_back()
    # A quirk of CPython 3.11 and 3.12: an exception that comes from outside between the jump of
    # `while True: pass` and its target is not covered by the handler, so a few may be missing.
    assert len(ended) == many or sys.version_info < (3, 13)
    assert _core.counters()["goroutines"] == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_end_that_comes_in_the_middle_of_a_collection_is_not_missed() -> None:
    """What is raised in a callback of the collector is told and forgotten."""

    def callback(_phase: str, _info: dict[str, int]) -> None:
        spin(0.0005)

    async def collect() -> None:
        while True:
            gc.collect(0)
            spin(0.001)

    async def main() -> None:
        gofer.go(collect)
        await gofer.sleep(0.01)

    gc.callbacks.append(callback)
    try:
        for _ in range(10):
            gofer.run(main, procs=2)
    finally:
        gc.callbacks.remove(callback)


@pytest.mark.parametrize("procs", [1, 2])
def test_one_that_waits_for_a_loop_which_only_the_end_stops(procs: int) -> None:
    """No idle thread is left when main ends: the one that runs must still be told."""
    stopped = threading.Event()
    order = []

    def loop() -> None:
        try:
            while not stopped.is_set():
                spin(0.001)
        finally:
            order.append("loop")
            stopped.set()

    async def waiter() -> None:
        try:
            await Chan[None]().recv()
        finally:
            stopped.wait()  # blocks its thread
            order.append("waiter")

    async def main() -> None:
        w = gofer.go(waiter)
        gofer.go(loop)
        await parked(w)
        await gofer.sleep(0.05)

    gofer.run(main, procs=procs)
    assert order == ["loop", "waiter"]


def test_a_loop_in_an_except_block_ends_too() -> None:
    begun = threading.Event()

    def loop() -> None:
        try:
            raise ValueError
        except ValueError:
            begun.set()
            while True:
                spin(0.001)

    async def main() -> None:
        gofer.go(loop)
        await until(begun.is_set)

    gofer.run(main)


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_two_ctrl_c_while_others_wait_for_their_turn_on_their_own_threads(kind: str) -> None:
    program = Program(
        """
        import sys, time, gofer

        def burn(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass

        async def computes():
            data = [object() for _ in range(100)]
            burn(1.5)
            return len(data)

        def asks():
            data = [object() for _ in range(100)]
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                try:
                    gofer.block(gofer.gosched())
                except gofer.Cancelled:
                    burn(0.5)
                    return len(data)

        async def main():
            for _ in range(6):
                gofer.go(computes if sys.argv[1] == "async" else asks)
            await gofer.sleep(0.1)
            try:
                print("ready", flush=True)
                await gofer.sleep(100)
            finally:
                print("cleaning", flush=True)
                await gofer.sleep(100)

        try:
            gofer.run(main, procs=2)
        except KeyboardInterrupt:
            print("KeyboardInterrupt", flush=True)
        while True:
            try:
                print(gofer.run(gofer.sleep, 0))
                break
            except RuntimeError:  # a thread of theirs has still to end
                time.sleep(0.01)
        """,
        kind,
    )
    program.expect("ready")
    program.interrupt()
    program.expect("cleaning")
    program.interrupt()
    assert program.finish().check() == "KeyboardInterrupt\nNone\n"


# --- What is left behind and comes back -----------------------------------------------------------


def test_one_that_was_left_behind_serves_no_later_run(procs: int) -> None:
    """Its thread belongs to a run that is over."""
    released = threading.Event()
    here = threading.local()
    ran_there = []

    def stuck() -> None:
        here.is_stuck = True
        released.wait()

    async def first() -> None:
        g = gofer.go(stuck)
        await until(lambda: g.state == "syscall")

    async def work() -> None:
        for _ in range(3):
            await gofer.sleep(0.001)
            ran_there.append(hasattr(here, "is_stuck"))
            time.sleep(0.002)

    async def second() -> None:
        released.set()
        for _ in range(20):
            for g in [gofer.go(work) for _ in range(8)]:
                await g

    gofer.run(first, procs=procs)
    gofer.run(second, procs=procs)
    assert True not in ran_there
    all_came_back()


def test_an_async_generator_that_one_left_behind_drops(procs: int) -> None:
    """There is no runtime any more that could close it; the next one is not disturbed."""
    released = threading.Event()
    held: list[AsyncIterator[int]] = []
    outcome = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            outcome.append("closed")

    def stuck() -> None:
        while True:
            try:
                released.wait()
                break
            except gofer.Cancelled:
                pass
        held.clear()
        outcome.append("dropped")

    async def first() -> None:
        a = numbers()
        held.append(a)
        assert await anext(a) == 1
        del a
        g = gofer.go(stuck)
        await until(lambda: g.state == "syscall")

    async def second() -> int:
        released.set()
        await until(lambda: "dropped" in outcome)
        return gofer.num_goroutine()

    gofer.run(first, procs=procs)
    assert gofer.run(second, procs=procs) == 1
    assert outcome == ["closed", "dropped"]  # all that was open when main ended was closed then
    all_came_back()


def test_operations_made_by_the_destructor_of_what_one_left_behind_held(procs: int) -> None:
    """The last value that a thread received may die with it, and use channels then."""
    released = threading.Event()
    values, other = Chan[object](10), Chan[int](1)
    died = threading.Event()

    class Value:
        def __del__(self) -> None:
            for _ in range(8):
                other.recv()
            died.set()

    async def stuck() -> None:
        await values.recv()
        released.wait()

    async def main() -> None:
        values.send_nowait(Value())
        g = gofer.go(stuck)
        await until(lambda: g.state == "syscall")

    with_main_elsewhere = threading.Thread(target=gofer.run, args=(main,), kwargs={"procs": procs})
    with_main_elsewhere.start()
    time.sleep(0.2)
    released.set()
    with_main_elsewhere.join(PATIENCE)
    assert not with_main_elsewhere.is_alive()
    assert died.wait(PATIENCE)
    all_came_back()


# --- Destructors that run where the engine drops something ----------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_a_destructor_that_awaits_while_a_result_is_handed_over(plain: bool) -> None:
    """The result of the operation that it interrupts, so to say, is not taken for its own."""
    inner, outer = Chan[object](10), Chan[object](10)
    got = []

    class Value:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            if self.name != "first":
                return

            async def receive() -> object:
                return await inner.recv()

            if plain:
                got.append(block(receive()))
                return
            try:
                receive().send(None)
            except StopIteration as end:
                got.append(end.value)

    async def body() -> object:
        await outer.recv()  # nobody keeps it
        return await outer.recv()

    async def main() -> object:
        inner.send_nowait("inner")
        outer.send_nowait(Value("first"))
        outer.send_nowait("second")
        return await gofer.go(lambda: block(body()) if plain else body())

    assert gofer.run(main) == "second"
    gc.collect()
    assert got == ["inner"]


def test_a_received_value_is_not_kept_by_the_thread_that_waits_on() -> None:
    class Value:
        pass

    values, never = Chan[Value](5), Chan[int](1)

    async def body() -> None:
        await values.recv()
        await never.recv()

    async def main() -> None:
        value = Value()
        ref = weakref.ref(value)
        values.send_nowait(value)
        del value
        g = gofer.go(lambda: block(body()))
        await parked(g)
        await gone(ref, 2)
        never.send_nowait(1)
        await g

    gofer.run(main, procs=2)


# --- Threads and their roles ----------------------------------------------------------------------


def test_main_locks_a_thread_that_is_not_its_own() -> None:
    """Main has moved to another thread, locks that and waits while its first thread comes back."""

    async def blocks() -> None:
        time.sleep(0.2)

    async def main() -> None:
        first = threading.get_ident()
        while threading.get_ident() == first:
            gofer.go(blocks)
            await gofer.sleep(0.01)
        with gofer.lock_os_thread():
            mine = threading.get_ident()
            await gofer.sleep(0.5)
            for _ in range(50):
                await gofer.sleep(0.001)
                assert threading.get_ident() == mine

    gofer.run(main, procs=2)


def test_a_deadlock_is_seen_after_preemption_was_used() -> None:
    async def main() -> None:
        await preempted()
        await Chan[None]().recv()

    with pytest.raises(gofer.Deadlock):
        gofer.run(main, procs=2)


def test_looking_at_stacks_while_the_looker_is_stopped() -> None:
    """Who is stopped at a bytecode boundary inside stack() must not hold what others need."""
    stop = False

    def plain() -> None:
        while not stop:
            block(gofer.sleep(0.0005))

    async def other() -> None:
        while not stop:
            spin(2 * SLICE)
            await gofer.gosched()

    async def main() -> None:
        nonlocal stop
        gs = [gofer.go(plain) for _ in range(3)]
        gofer.go(other)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for g in gs:
                g.stack()
        stop = True

    gofer.run(main, procs=1)


def test_a_fork_inside_blocking_while_others_compute() -> None:
    done = False

    async def computes() -> None:
        while not done:
            spin(SLICE / 2)
            await gofer.gosched()

    def forker() -> int:
        with gofer.blocking():
            time.sleep(0.05)
            with warnings.catch_warnings():  # 3.12+ warns of threads and fork
                warnings.simplefilter("ignore")
                pid = os.fork()
            if pid == 0:
                os._exit(7)
            return pid

    async def main() -> int:
        nonlocal done
        gofer.go(computes)
        gofer.go(computes)
        pid = await gofer.go(forker)
        _, status = await gofer.go(os.waitpid, pid, 0)
        done = True
        return os.waitstatus_to_exitcode(status)

    assert gofer.run(main, procs=1) == 7


@pytest.mark.parametrize("what", ["notify", "raise"])
def test_signals_reach_a_plain_main_that_waits_for_a_goroutine(what: str) -> None:
    program = """
        import signal, sys, gofer

        async def worker():
            await gofer.sleep(0.1)
            if sys.argv[1] == "notify":  # which the main thread has to install
                ch = gofer.signals.notify(signal.SIGUSR1)
                signal.raise_signal(signal.SIGUSR1)
                await ch.recv()
                gofer.signals.stop(ch)
            else:
                signal.raise_signal(signal.SIGINT)
                await gofer.sleep(1000)
            return "fine"

        def main():
            return gofer.block(gofer.go(worker))

        try:
            print(gofer.run(main, procs=2))
        except KeyboardInterrupt:
            print("KeyboardInterrupt")
        """
    expected = "fine\n" if what == "notify" else "KeyboardInterrupt\n"
    assert run_program(program, what).check() == expected


# --- The collector --------------------------------------------------------------------------------


def test_a_leaked_goroutine_that_blocks_in_its_clean_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector closes it in the thread of whoever called it, for as long as that takes."""
    order = []

    class Box:
        def __init__(self, ch: Chan[int]) -> None:
            self.me, self.ch = self, ch

    async def leak() -> None:
        ch = Chan[int]()
        Box(ch)
        try:
            await ch.recv()
        finally:
            time.sleep(0.3)
            order.append("leak")

    def collector() -> None:
        gc.collect()
        order.append("collected")

    async def main() -> None:
        g = gofer.go(leak)
        await parked(g)
        del g
        c = gofer.go(collector)
        await gofer.sleep(0.05)
        await c

    monkeypatch.setattr(warnings, "showwarning", lambda *_: None)
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gofer.GoroutineLeakWarning)
            gofer.run(main, procs=2)
    finally:
        gc.enable()
    assert order == ["leak", "collected"]


def test_a_collection_while_a_deadlock_is_looked_for() -> None:
    """It closes what was leaked on a thread that is about to park, in nobody's name."""
    program = """
        import gc, sys, warnings, gofer

        async def leaked():
            await gofer.Chan().recv()

        def collect(frame, event, arg):
            if frame.f_code.co_name == "foreign_threads" and event == "call":
                gc.collect()
                print("collected", flush=True)

        def waits(ch):
            sys.setprofile(collect)  # as if a collection happened to begin there
            gofer.block(ch.recv())

        async def main():
            gofer.go(leaked)
            await gofer.sleep(0.01)
            await gofer.go(waits, gofer.Chan())

        gc.disable()
        warnings.simplefilter("ignore")
        try:
            gofer.run(main, procs=1)
        except gofer.Deadlock:
            print("deadlock")
        """
    assert run_program(program).check() == "collected\ndeadlock\n"


def test_after_an_abort_a_mutex_is_what_its_holder_left() -> None:
    """A waiter that the end of the run takes off the queue does not get the lock for good."""
    mu = gofer.Mutex()

    async def holder(ch: Chan[None], held: Chan[None]) -> None:
        await mu.lock()
        try:
            held.close()
            await gofer.sleep(0.02)
            mu.unlock()
            await mu.lock()  # overtakes who waits
            await ch.recv()
        finally:
            mu.unlock()

    async def waiter() -> None:
        async with mu:
            pass

    async def main() -> None:
        ch, held = Chan[None](), Chan[None]()
        h = gofer.go(holder, ch, held)
        await held.recv_ok()
        w = gofer.go(waiter)
        await gofer.sleep(0.1)
        assert h.wait_reason == "chan receive"
        assert w.wait_reason == "sync.Mutex.Lock"
        _core.abort()
        await gofer.sleep(1)

    with pytest.raises(BaseException):  # noqa: B017, PT011 - whichever: the run is torn down
        gofer.run(main, procs=1)
    assert not mu.locked()


def test_after_an_abort_a_goroutine_that_was_locked_to_its_thread_is_closed() -> None:
    """The channel it waits on outlives the run, and so would it: for a thread that is gone."""
    ch = Chan[int]()
    closed = []

    async def locked() -> None:
        gofer.lock_os_thread()
        try:
            await ch.recv()
        finally:
            closed.append(True)

    async def main() -> None:
        await parked(gofer.go(locked))
        _core.abort()
        await gofer.sleep(1)

    async def later() -> None:
        with pytest.raises(gofer.WouldBlock):
            ch.send_nowait(1)

    with pytest.raises(BaseException):  # noqa: B017, PT011 - whichever: the run is torn down
        gofer.run(main, procs=2)
    assert closed == [True]
    gofer.run(later)
