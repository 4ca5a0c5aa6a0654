"""run(): results, failures, and how a run ends."""

import asyncio
import contextlib
import functools
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import pytest

import gofer
from tests.support import (
    CRASH,
    FREE_THREADED,
    SANITIZED,
    Program,
    give,
    os_threads,
    parked,
    run_program,
    sleep_long,
    thread,
    until,
    wait_for,
    wait_for_first,
    wait_until,
)


class Oops(Exception):
    pass


async def fail(text: str = "oops") -> NoReturn:
    raise Oops(text)


# --- What it returns and raises -------------------------------------------------------------------


def test_returns_the_result_of_main(procs: int) -> None:
    value = object()
    assert gofer.run(give, value, procs=procs) is value


def test_raises_the_exception_of_main(procs: int) -> None:
    with pytest.raises(Oops, match=r"^no$") as info:
        gofer.run(fail, "no", procs=procs)
    assert info.value.__cause__ is None
    assert info.value.__context__ is None
    assert not hasattr(info.value, "__notes__")
    assert info.traceback[-1].name == "fail"


def test_passes_the_arguments() -> None:
    async def main(*args: int) -> tuple[int, ...]:
        return args

    assert gofer.run(main) == ()
    assert gofer.run(main, 1, 2, 3) == (1, 2, 3)


def test_takes_a_coroutine_object() -> None:
    assert gofer.run(give(5)) == 5


def test_takes_everything_that_makes_a_coroutine() -> None:
    class Main:
        async def method(self, x: int) -> int:
            return x

        async def __call__(self, x: int) -> int:
            return x

    assert gofer.run(Main().method, 1) == 1
    assert gofer.run(Main(), 2) == 2
    assert gofer.run(functools.partial(give, 3)) == 3


def test_wrong_arguments_are_the_usual_type_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        gofer.run(give)


@pytest.mark.parametrize("main", [None, 5, "main", (1, 2)])
def test_anything_else_is_a_type_error_that_names_it(main: Any) -> None:
    with pytest.raises(TypeError) as info:
        gofer.run(main)
    assert repr(main) in str(info.value)


def test_an_async_generator_function_is_a_type_error() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="numbers"):
        gofer.run(numbers)  # type: ignore[arg-type]


def test_a_coroutine_with_extra_arguments_is_a_type_error() -> None:
    coro = give(5)
    with pytest.raises(TypeError, match="takes no arguments"):
        gofer.run(coro, 1)
    coro.close()


def test_a_finished_coroutine_is_a_runtime_error() -> None:
    coro = give(5)
    gofer.run(coro)
    with pytest.raises(RuntimeError, match=r"cannot reuse already awaited|already finished"):
        gofer.run(coro)


def test_procs_is_gomaxprocs_of_this_run(procs: int) -> None:
    async def main() -> int:
        return gofer.gomaxprocs()

    before = gofer.gomaxprocs()
    assert gofer.run(main, procs=procs) == procs
    assert gofer.gomaxprocs() == before


@pytest.mark.parametrize(
    ("procs", "error"),
    [(0, ValueError), (-1, ValueError), (10**9, ValueError), ("2", TypeError), (True, TypeError)],
)
def test_bad_procs_are_refused_before_main_is_called(procs: Any, error: type[Exception]) -> None:
    called = []

    async def main() -> None:
        called.append(1)

    with pytest.raises(error, match="procs"):
        gofer.run(main, procs=procs)
    assert not called


def test_main_sees_the_context_variables_of_the_caller() -> None:
    import contextvars

    var: contextvars.ContextVar[str] = contextvars.ContextVar("var")

    async def main() -> str:
        seen = var.get()
        var.set("main's own")
        return seen

    token = var.set("the caller's")
    assert gofer.run(main) == "the caller's"
    assert var.get() == "the caller's"
    var.reset(token)


# --- One at a time, again and again ---------------------------------------------------------------


def test_nested_is_a_runtime_error_and_the_outer_goes_on(procs: int) -> None:
    async def main() -> str:
        with pytest.raises(RuntimeError, match="inside a running runtime"):
            gofer.run(give, 1)
        with pytest.raises(RuntimeError, match="inside a running runtime"):
            await gofer.go(nested)
        return "fine"

    async def nested() -> None:
        gofer.run(give, 1)

    assert gofer.run(main, procs=procs) == "fine"


def test_from_another_thread_meanwhile_is_a_runtime_error(procs: int) -> None:
    seen = []

    def other() -> None:
        with pytest.raises(RuntimeError, match="another thread"):
            gofer.run(give, 1)
        seen.append(True)

    async def main() -> str:
        with thread(other):
            await until(lambda: seen)
        return "fine"

    assert gofer.run(main, procs=procs) == "fine"


def test_inside_a_running_asyncio_loop_works() -> None:
    async def outer() -> int:
        before = sys.get_asyncgen_hooks()
        result: int = gofer.run(give, 5)
        assert sys.get_asyncgen_hooks() == before
        await asyncio.sleep(0)
        return result

    assert asyncio.run(outer()) == 5


def test_a_thousand_runs(procs: int) -> None:
    for i in range(1000):
        assert gofer.run(give, i, procs=procs) == i


def test_two_hundred_runs_with_goroutines(procs: int) -> None:
    async def main() -> int:
        return sum([await g for g in [gofer.go(give, i) for i in range(20)]])

    for _ in range(200):
        assert gofer.run(main, procs=procs) == 190


def test_works_after_every_kind_of_failure(procs: int) -> None:
    async def deadlock() -> None:
        await gofer.go(wait_for, gofer.current())

    async def untaken() -> None:
        gofer.go(fail)
        await sleep_long()

    async def goexit() -> None:
        gofer.goexit()

    for main, error in [
        (fail, Oops),
        (deadlock, gofer.Deadlock),
        (untaken, Oops),
        (goexit, gofer.Deadlock),
    ]:
        with pytest.raises(error):
            gofer.run(main, procs=procs)
        assert gofer.run(give, 7, procs=procs) == 7


def test_on_a_thread_that_is_not_the_main_one(procs: int) -> None:
    results = []

    async def main() -> tuple[int, int]:
        return await gofer.go(give, 5), threading.get_ident()

    def body() -> None:
        results.append((*gofer.run(main, procs=procs), threading.get_ident()))

    with thread(body):
        pass
    value, ran_on, thread_id = results[0]
    assert value == 5
    assert ran_on == thread_id


def test_runs_of_many_threads_one_after_the_other(procs: int) -> None:
    done = []

    def body(i: int) -> None:
        done.append(gofer.run(give, i, procs=procs))

    for i in range(50):
        with thread(body, i):
            pass
    assert done == list(range(50))


# --- The end --------------------------------------------------------------------------------------


def test_cancels_all_others_and_runs_their_finally_blocks(procs: int) -> None:
    cleaned = []
    reasons = set()

    async def other(i: int) -> None:
        try:
            await sleep_long()
        except gofer.Cancelled as exc:
            reasons.add(exc.reason)
            raise
        finally:
            cleaned.append(i)

    async def main() -> str:
        others = [gofer.go(other, i) for i in range(100)]
        await parked(*others)
        return "done"

    assert gofer.run(main, procs=procs) == "done"
    assert sorted(cleaned) == list(range(100))
    assert reasons == {None}


def test_finally_blocks_may_await(procs: int) -> None:
    steps = []

    async def other() -> None:
        try:
            await sleep_long()
        finally:
            await gofer.gosched()
            steps.append("yielded")
            await gofer.sleep(0.01)
            steps.append("slept")
            with contextlib.suppress(gofer.Cancelled):
                await brothers[0]
            steps.append("joined")

    async def slow() -> None:
        try:
            await sleep_long()
        finally:
            await gofer.sleep(0.05)
            steps.append("brother")

    async def main() -> None:
        brothers.append(gofer.go(slow))
        await parked(*brothers, gofer.go(other))

    brothers: list[gofer.Goroutine[None]] = []
    gofer.run(main, procs=procs)
    assert steps == ["yielded", "slept", "brother", "joined"]


def test_goroutines_that_never_started_never_do() -> None:
    started = []

    async def other() -> None:
        started.append(1)

    async def main() -> None:
        for _ in range(1000):
            gofer.go(other)

    gofer.run(main, procs=1)
    assert not started


def test_others_end_before_run_raises(procs: int) -> None:
    cleaned = []

    async def other() -> None:
        try:
            await sleep_long()
        finally:
            await gofer.sleep(0.01)
            cleaned.append(1)

    async def main() -> None:
        await parked(gofer.go(other))
        raise Oops

    with pytest.raises(Oops):
        gofer.run(main, procs=procs)
    assert cleaned


def test_go_after_main_has_ended_is_a_runtime_error(procs: int) -> None:
    errors = []

    async def other() -> None:
        try:
            await sleep_long()
        finally:
            try:
                gofer.go(give, 1)
            except RuntimeError as exc:
                errors.append(str(exc))

    async def main() -> None:
        await parked(gofer.go(other))

    gofer.run(main, procs=procs)
    assert errors == ["go() after the main goroutine has ended: the runtime is stopping"]


def test_an_exception_in_clean_up_is_raised_with_a_note(procs: int) -> None:
    async def other() -> None:
        try:
            await sleep_long()
        finally:
            raise Oops("in clean-up")

    async def main() -> None:
        await parked(gofer.go(other, name="cleaner"))

    with pytest.raises(Oops, match="in clean-up") as info:
        gofer.run(main, procs=procs)
    assert "cleaner" in info.value.__notes__[0]


def test_main_that_lets_a_cancellation_through_raises_cancelled(procs: int) -> None:
    async def main() -> None:
        gofer.current().cancel("enough")
        await sleep_long()

    with pytest.raises(gofer.Cancelled) as info:
        gofer.run(main, procs=procs)
    assert info.value.reason == "enough"


def test_no_thread_is_left_when_run_returns(procs: int) -> None:
    async def busy() -> None:
        for _ in range(10):
            await gofer.gosched()
            await gofer.sleep(0.0001)

    async def main() -> None:
        for g in [gofer.go(busy) for _ in range(50)]:
            await g

    before = os_threads()
    gofer.run(main, procs=procs)
    # The kernel lists a thread for a moment after its end.
    wait_until(lambda: os_threads().keys() <= before.keys(), "the threads gone")


def test_those_who_wait_for_ever_in_spite_of_cancellation_are_given_up(procs: int) -> None:
    async def stubborn(me: list[gofer.Goroutine[None]]) -> None:
        while True:
            with contextlib.suppress(gofer.Cancelled):
                await wait_for_first(me)

    async def main() -> None:
        pair: list[list[gofer.Goroutine[None]]] = [[], []]
        a, b = gofer.go(stubborn, pair[0]), gofer.go(stubborn, pair[1])
        pair[0].append(b)
        pair[1].append(a)
        await parked(a, b)

    with pytest.raises(RuntimeError, match="2 goroutines did not end although they were cancelled"):
        gofer.run(main, procs=procs)
    assert gofer.run(give, 5, procs=procs) == 5


def test_a_second_cancellation_frees_clean_up_that_waits_in_vain(procs: int) -> None:
    ended = []

    async def other(partner: list[gofer.Goroutine[None]]) -> None:
        try:
            await sleep_long()
        finally:
            try:
                await partner[0]  # who waits for us
            finally:
                ended.append(1)

    async def main() -> None:
        a: list[gofer.Goroutine[None]] = []
        b: list[gofer.Goroutine[None]] = []
        first, second = gofer.go(other, a), gofer.go(other, b)
        a.append(second)
        b.append(first)
        await parked(first, second)

    gofer.run(main, procs=procs)
    assert len(ended) == 2


def test_goexit_ends_a_goroutine_and_nothing_else(procs: int) -> None:
    steps = []

    def deep() -> None:
        gofer.goexit()

    async def other() -> str:
        try:
            deep()
        except Exception:
            steps.append("caught")
        finally:
            steps.append("finally")
        return "not reached"

    async def main() -> None:
        g = gofer.go(other)
        assert await g is None
        assert g.done()
        assert g.result() is None
        assert g.exception() is None
        assert not g.cancelled()

    gofer.run(main, procs=procs)
    assert steps == ["finally"]


def test_goexit_of_main_lets_the_others_end_first(procs: int) -> None:
    ended = []

    async def other(i: int) -> None:
        await gofer.sleep(0.01)
        if i:
            await gofer.go(other, i - 1)
        ended.append(i)

    async def main() -> None:
        gofer.go(other, 5)
        gofer.goexit()

    with pytest.raises(gofer.Deadlock) as info:
        gofer.run(main, procs=procs)
    assert str(info.value) == "no goroutines (main called goexit) - deadlock!"
    assert ended == [0, 1, 2, 3, 4, 5]


def test_after_goexit_of_main_a_failure_still_ends_the_run(procs: int) -> None:
    cleaned = []

    async def sleeper() -> None:
        try:
            await sleep_long()
        finally:
            cleaned.append(1)

    async def main() -> None:
        await parked(gofer.go(sleeper))
        gofer.go(fail, "late")
        gofer.goexit()

    with pytest.raises(Oops, match="late"):
        gofer.run(main, procs=procs)
    assert cleaned


def test_after_goexit_of_main_the_rest_can_deadlock(procs: int) -> None:
    async def main() -> None:
        first: list[gofer.Goroutine[None]] = []
        second = gofer.go(wait_for_first, first)
        first.append(gofer.go(wait_for, second))
        gofer.goexit()

    with pytest.raises(gofer.Deadlock, match="all goroutines are asleep"):
        gofer.run(main, procs=procs)


def test_goexit_outside_a_goroutine_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="outside a goroutine"):
        gofer.goexit()


# --- Signals --------------------------------------------------------------------------------------

INTERRUPTED = """
import os, sys, time
import gofer

async def sleeper():
    try:
        await gofer.sleep(1000)
    finally:
        await gofer.sleep(0.01)
        os.write(1, b"sleeper cleaned up\\n")

async def main():
    gofer.go(sleeper)
    await gofer.sleep(0.05)
    try:
        {body}
    except BaseException as exc:
        print("main got", type(exc).__name__, exc.args, flush=True)
        raise
    finally:
        await gofer.sleep(0.01)
        print("main cleaned up", flush=True)

try:
    gofer.run(main, procs=int(sys.argv[1]))
except KeyboardInterrupt as exc:
    assert exc.__context__ is None or exc.__suppress_context__
    print("run raised KeyboardInterrupt", flush=True)
"""


@pytest.mark.parametrize("procs", ["1", "4"])
@pytest.mark.parametrize(
    "body",
    [
        "print('ready', flush=True); await gofer.sleep(1000)",
        "print('ready', flush=True); await gofer.go(sleeper)",
        # CPU-bound, but with operations on the way
        "print('ready', flush=True)\n        while True:\n            await gofer.sleep(0)",
        "print('ready', flush=True)\n        while True:\n            await gofer.gosched()",
    ],
    ids=["asleep", "joining", "busy", "yielding"],
)
def test_ctrl_c_cancels_main_and_everything_cleans_up(body: str, procs: str) -> None:
    program = Program(INTERRUPTED.format(body=body), procs)
    program.expect("ready")
    program.interrupt()
    lines = program.finish().check().splitlines()
    assert lines[0] == "main got Cancelled ('KeyboardInterrupt',)"
    assert "main cleaned up" in lines
    assert "sleeper cleaned up" in lines
    assert lines[-1] == "run raised KeyboardInterrupt"


@pytest.mark.parametrize("procs", ["1", "4"])
def test_ctrl_c_that_nobody_catches_ends_the_program_like_any_other(procs: str) -> None:
    program = Program(
        """
        import sys, gofer
        async def main():
            print("ready", flush=True)
            await gofer.sleep(1000)
        gofer.run(main, procs=int(sys.argv[1]))
        """,
        procs,
    )
    program.expect("ready")
    program.interrupt()
    end = program.finish()
    assert end.returncode == -signal.SIGINT
    assert end.stderr.rstrip().endswith("KeyboardInterrupt")
    assert "Cancelled" not in end.stderr


@pytest.mark.parametrize("procs", ["1", "4"])
@pytest.mark.parametrize(
    "hang",
    ["await gofer.sleep(1000)", "await twin", "time.sleep(1000)", "while True: pass"],
    ids=["asleep", "joining", "blocked", "busy"],
)
def test_a_second_ctrl_c_ends_the_run_even_if_clean_up_hangs(hang: str, procs: str) -> None:
    program = Program(
        f"""
        import sys, time, gofer

        async def wait():
            await gofer.sleep(1000)

        async def main():
            twin = gofer.go(wait)
            try:
                print("ready", flush=True)
                await gofer.sleep(1000)
            finally:
                print("cleaning", flush=True)
                {hang}

        try:
            gofer.run(main, procs=int(sys.argv[1]))
        except KeyboardInterrupt:
            print("KeyboardInterrupt", flush=True)
        """,
        procs,
    )
    program.expect("ready")
    program.interrupt()
    program.expect("cleaning")
    time.sleep(0.2)  # as in any Python program, one that comes just before a call ends no call
    program.interrupt()
    assert program.finish().check() == "KeyboardInterrupt\n"


def test_a_main_that_never_awaits_takes_two_ctrl_c() -> None:
    """The first one only asks: a goroutine sees it at its next operation."""
    program = Program(
        """
        import time, gofer

        async def main():
            print("ready", flush=True)
            while True:
                end = time.monotonic() + 0.1
                while time.monotonic() < end:
                    pass
                print("tick", flush=True)

        try:
            gofer.run(main)
        except KeyboardInterrupt:
            print("KeyboardInterrupt")
        """
    )
    program.expect("ready")
    program.interrupt()
    for _ in range(3):
        program.expect("tick")
    program.interrupt()
    *ticks, last = program.finish().check().splitlines()
    assert last == "KeyboardInterrupt"
    assert set(ticks) <= {"tick"}


def test_after_two_ctrl_c_the_next_run_works() -> None:
    program = Program(
        """
        import gofer

        async def stuck(me):
            while True:
                try:
                    await me
                except gofer.Cancelled:
                    pass

        async def main():
            gofer.go(stuck, gofer.current())
            try:
                print("ready", flush=True)
                await gofer.sleep(1000)
            finally:
                print("cleaning", flush=True)
                await gofer.sleep(1000)

        try:
            gofer.run(main)
        except KeyboardInterrupt:
            print("KeyboardInterrupt")

        async def again():
            await gofer.sleep(0.01)
            return await gofer.go(give)

        async def give():
            return "works"

        print(gofer.run(again), gofer.num_goroutine())
        """
    )
    program.expect("ready")
    program.interrupt()
    program.expect("cleaning")
    program.interrupt()
    end = program.finish()
    assert end.returncode == 0, end.stderr
    assert end.stdout.splitlines() == ["KeyboardInterrupt", "works 0"]


@pytest.mark.parametrize("procs", ["1", "4"])
def test_a_sigint_handler_of_the_user_is_left_alone_and_called(procs: str) -> None:
    program = Program(
        """
        import signal, sys, gofer

        def mine(signum, frame):
            print("mine", flush=True)
            waiting.cancel("by the handler")

        signal.signal(signal.SIGINT, mine)

        async def main():
            global waiting
            assert signal.getsignal(signal.SIGINT) is mine
            waiting = gofer.current()
            print("ready", flush=True)
            try:
                await gofer.sleep(1000)
            except gofer.Cancelled as exc:
                print(exc.reason)

        gofer.run(main, procs=int(sys.argv[1]))
        assert signal.getsignal(signal.SIGINT) is mine
        """,
        procs,
    )
    program.expect("ready")
    program.interrupt()
    assert program.finish().check() == "mine\nby the handler\n"


def test_an_ignored_sigint_stays_ignored() -> None:
    program = Program(
        """
        import os, signal, gofer
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        async def main():
            os.kill(os.getpid(), signal.SIGINT)
            await gofer.sleep(0.05)
            return "not interrupted"
        print(gofer.run(main))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        """
    )
    assert program.finish().check() == "not interrupted\n"


@pytest.mark.parametrize("procs", ["1", "4"])
def test_an_exception_from_a_signal_handler_while_all_sleep_is_raised_by_run(procs: str) -> None:
    program = Program(
        """
        import signal, sys, gofer

        class Alarm(Exception): pass

        def ring(signum, frame):
            raise Alarm("ring")

        signal.signal(signal.SIGALRM, ring)

        async def main():
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                await gofer.sleep(1000)
            finally:
                print("cleaned up")

        try:
            gofer.run(main, procs=int(sys.argv[1]))
        except Alarm as exc:
            print("run raised", exc)
        """,
        procs,
    )
    assert program.finish().check() == "cleaned up\nrun raised ring\n"


def test_a_signal_handler_may_start_goroutines(procs: int) -> None:
    results = []

    def handler(signum: int, frame: object) -> None:
        gofer.go(record)

    async def record() -> None:
        results.append(gofer.current().id)

    async def main() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        await until(lambda: results)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        gofer.run(main, procs=procs)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(results) == 1


def test_a_wake_up_descriptor_of_the_user_is_left_alone_and_handlers_still_run(procs: int) -> None:
    ran = []

    async def main() -> None:
        me = gofer.current()
        signal.signal(signal.SIGALRM, lambda signum, frame: ran.append(me.cancel()))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(gofer.Cancelled):
            await sleep_long()

    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.getsignal(signal.SIGALRM)
    signal.set_wakeup_fd(theirs.fileno())
    try:
        gofer.run(main, procs=procs)
        assert ran == [True]
        assert ours.recv(10) == bytes([signal.SIGALRM])
    finally:
        assert signal.set_wakeup_fd(-1) == theirs.fileno()
        signal.signal(signal.SIGALRM, before)
        ours.close()
        theirs.close()


def test_a_wake_up_descriptor_that_main_installs_stays() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    async def main() -> None:
        signal.set_wakeup_fd(theirs.fileno())

    gofer.run(main)
    try:
        assert signal.set_wakeup_fd(-1) == theirs.fileno()
    finally:
        ours.close()
        theirs.close()


def test_handlers_are_put_back_also_after_a_failure() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(Oops):
        gofer.run(fail)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_sigint_handler_that_main_installs_stays() -> None:
    def mine(signum: int, frame: object) -> None:
        pass

    async def main() -> None:
        signal.signal(signal.SIGINT, mine)

    try:
        gofer.run(main)
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# --- The process around it ------------------------------------------------------------------------


@pytest.mark.skipif(
    SANITIZED and sys.version_info < (3, 14),
    reason="CPython ends such threads with pthread_exit(), which AddressSanitizer misreads",
)
@pytest.mark.parametrize("procs", ["1", "4"])
@pytest.mark.parametrize("load", ["asleep", "busy", "yielding"])
def test_the_interpreter_can_end_while_a_daemon_thread_is_in_run(load: str, procs: str) -> None:
    end = run_program(CRASH / "exit_under_daemon.py", load, procs)
    assert end.check() == "leaving\n"


@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
def test_the_interpreter_can_end_right_after_run(how: str) -> None:
    end = run_program(
        """
        import sys, gofer
        async def nothing(): await gofer.gosched()
        async def main(how):
            for _ in range(100): gofer.go(nothing)
            await gofer.gosched()
            if how == "raises": raise ZeroDivisionError
            if how == "exits": sys.exit(7)
        gofer.run(main, sys.argv[1], procs=4)
        """,
        how,
    )
    assert end.returncode == {"returns": 0, "raises": 1, "exits": 7}[how], end.stderr


@pytest.mark.parametrize("procs", ["1", "4"])
@pytest.mark.parametrize("who", ["main", "goroutine"])
@pytest.mark.parametrize("use", ["go", "await", "sleep", "run", "cancel", "gomaxprocs"])
def test_a_child_forked_inside_a_run_is_told_so_at_its_first_use(
    use: str, who: str, procs: str
) -> None:
    end = run_program(CRASH / "fork_inside.py", who, use, procs)
    assert end.returncode == 0, end.stderr
    assert end.stdout.splitlines() == [
        "child: RuntimeError: this process was forked inside a running gofer runtime",
        "child status 0",
        "parent: fine",
    ]


@pytest.mark.parametrize("procs", ["1", "4"])
@pytest.mark.parametrize("who", ["main", "goroutine"])
@pytest.mark.parametrize("what", ["returns", "raises", "awaits"])
def test_a_forked_child_that_goes_on_ends_and_does_not_hang(
    what: str, who: str, procs: str
) -> None:
    end = run_program(CRASH / "fork_goes_on.py", who, what, procs)
    assert end.returncode == 0, end.stderr
    lines = end.stdout.splitlines()
    assert lines[-1] == "parent: fine"
    assert lines[-2] == "child ended badly"
    assert "forked inside a running gofer runtime" in end.stderr


def test_fork_outside_a_run_is_fine() -> None:
    end = run_program(CRASH / "fork_outside.py")
    assert end.check().splitlines() == ["child: 10", "child status 0", "parent: 10"]


def test_fork_in_a_thread_while_a_runtime_runs_elsewhere_is_told_so() -> None:
    end = run_program(CRASH / "fork_beside.py")
    assert end.returncode == 0, end.stderr
    assert end.stdout.splitlines() == [
        "child: RuntimeError: this process was forked inside a running gofer runtime",
        "child status 0",
        "parent: fine",
    ]


def test_a_process_pool_with_spawn_works_inside_a_run() -> None:
    end = run_program(CRASH / "spawn_inside.py")
    assert end.check() == "[0, 1, 4, 9]\n"


def test_subinterpreters_are_refused_with_a_clear_import_error() -> None:
    end = run_program(CRASH / "subinterpreter.py")
    lines = end.check().splitlines()
    assert lines[0].startswith("ImportError: ")
    assert "subinterpreter" in lines[0]
    assert lines[1] == "main: 5"


@pytest.mark.skipif(not FREE_THREADED, reason="this Python always has the GIL")
def test_importing_gofer_leaves_the_gil_off() -> None:
    end = run_program(
        """
        import sys
        import gofer
        async def main():
            return sys._is_gil_enabled()
        print(sys._is_gil_enabled(), gofer.run(main))
        """,
        options=("-W", "error"),
    )
    assert end.check() == "False False\n"


def test_what_a_run_starts_outlives_nothing() -> None:
    """A foreign thread that kept a handle finds the goroutine dead, and can use the handle."""
    handles: list[gofer.Goroutine[None]] = []

    async def main() -> None:
        handles.append(gofer.go(sleep_long))
        await parked(*handles)

    gofer.run(main)
    (g,) = handles
    assert g.state == "dead"
    assert g.done()
    assert g.cancelled()
    assert g.cancel() is False
    assert isinstance(g.exception(), gofer.Cancelled)
    assert list(g.stack()) == []
    assert "cancelled" in repr(g)


def test_a_handle_of_an_earlier_run_can_be_awaited() -> None:
    async def first() -> gofer.Goroutine[int]:
        g = gofer.go(give, 5)
        await g
        return g

    g = gofer.run(first)
    assert gofer.run(wait_for, g) == 5


@pytest.mark.parametrize(
    "use",
    [
        lambda: gofer.go(give, 1),
        lambda: gofer.current(),
        lambda: gofer.goexit(),
    ],
    ids=["go", "current", "goexit"],
)
def test_what_needs_a_runtime_says_so(use: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=r"gofer\.run\("):
        use()


def test_num_goroutine_counts_the_living(procs: int) -> None:
    async def main() -> None:
        assert gofer.num_goroutine() == 1
        others = [gofer.go(sleep_long) for _ in range(100)]
        assert gofer.num_goroutine() == 101
        await parked(*others)
        assert gofer.num_goroutine() == 101
        for g in others:
            g.cancel()
        await until(lambda: gofer.num_goroutine() == 1)

    assert gofer.num_goroutine() == 0
    gofer.run(main, procs=procs)
    assert gofer.num_goroutine() == 0
