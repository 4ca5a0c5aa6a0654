"""SIGQUIT: a dump of all goroutines and exit 2, whatever they do."""

import os
import re
import signal
import sys
import time

import pytest

import gofer
from gofer import signals
from tests.support import FREE_THREADED, Program, run_program, until

HEADERS = re.compile(r"^goroutine (\d+) \[([^\]]+)\]:$", re.MULTILINE)

WAITING = """
    import ctypes, gofer, os, time

    async def worker(ch):
        await ch.recv()

    async def main():
        ch, never, libc = gofer.Chan(), gofer.Chan(), ctypes.CDLL(None)
        gs = [gofer.go(worker, ch) for _ in range(3)]
        while any(g.state != "waiting" for g in gs):
            await gofer.sleep(0.001)
        print("ready", flush=True)
        {wait}

    gofer.run(main, procs={procs})
"""


def quit_it(program: Program, ready: str = "ready") -> str:
    """What it writes when it gets the signal; it must end with 2."""
    program.expect(ready)
    time.sleep(0.5)  # from its last line to where it waits: nobody can tell us
    program.process.send_signal(signal.SIGQUIT)
    end = program.finish()
    assert end.returncode == 2, (end.returncode, end.stderr)
    assert end.stderr.startswith("SIGQUIT: quit\n\n")
    return end.stderr


@pytest.mark.parametrize("procs", [1, 2, 4])
@pytest.mark.parametrize(
    ("wait", "status"),
    [
        ("await gofer.sleep(1000)", "sleep"),
        ("await gofer.select(never.recv(), gofer.sleep(1000))", "select"),
        ("time.sleep(1000)", "syscall|running"),
        # With the GIL it seems to block while it waits for that, and nobody has it yet.
        ("while True: pass", "running|runnable" + "|syscall" * (not FREE_THREADED)),
        ("libc.read(os.pipe()[0], ctypes.create_string_buffer(1), 1)", "syscall|running"),
    ],
    ids=["sleeping", "selecting", "blocked", "computing", "in C"],
)
def test_dumps_all_and_exits_2(wait: str, status: str, procs: int) -> None:
    text = quit_it(Program(WAITING.format(wait=wait, procs=procs)))
    creator = "main.<locals>.<listcomp>" if sys.version_info < (3, 12) else "main"
    headers = dict(HEADERS.findall(text))
    assert len(headers) == 4
    assert re.fullmatch(status, headers["1"])
    assert list(headers.values())[1:] == ["chan receive"] * 3
    assert text.count("worker()\n\t<string>:5") == 3
    assert text.count(f"created by {creator} in goroutine 1\n\t<string>:9") == 3
    if "runnable" not in status or FREE_THREADED:
        assert "main()\n\t<string>:" in text


def test_when_all_ps_compute_on_every_thread() -> None:
    program = Program(
        """
        import gofer

        def hog():
            while True:
                pass

        async def main():
            gs = [gofer.go(hog) for _ in range(4)]
            print("ready", flush=True)
            while True:
                pass

        gofer.run(main, procs=2)
        """
    )
    text = quit_it(program)
    assert len(HEADERS.findall(text)) == 5


def test_when_c_code_never_lets_go_of_the_gil() -> None:
    program = Program(
        """
        import gofer

        async def waits(ch):
            await ch.recv()

        async def main():
            ch = gofer.Chan()
            g = gofer.go(waits, ch)
            while g.state != "waiting":
                await gofer.sleep(0.001)
            print("ready", flush=True)
            sum(range(10**13))

        gofer.run(main)
        """
    )
    text = quit_it(program)
    headers = dict(HEADERS.findall(text))
    assert headers["2"] == "chan receive"
    assert headers["1"] in ("running", "syscall")
    assert "created by main in goroutine 1\n\t<string>:9\n" in text
    if not FREE_THREADED:
        assert "The stacks of goroutines are not to be had" in text


def test_plain_goroutines_and_many_threads() -> None:
    program = Program(
        """
        import gofer, time

        def block():
            time.sleep(1000)

        def main():
            gs = [gofer.go(block) for _ in range(20)]
            while not all(g.state == "syscall" for g in gs):
                time.sleep(0.01)
            print("ready", flush=True)
            gofer.block(gofer.sleep(1000))

        gofer.run(main, procs=2)
        """
    )
    text = quit_it(program)
    headers = dict(HEADERS.findall(text))
    assert len(headers) == 21
    assert list(headers.values()).count("syscall") >= 18  # one may look busy for a moment
    assert text.count("block()\n\t<string>:5") == 20


def test_a_second_signal_does_not_disturb() -> None:
    program = Program(WAITING.format(wait="await gofer.sleep(1000)", procs=2))
    program.expect("ready")
    for _ in range(20):
        program.process.send_signal(signal.SIGQUIT)
    end = program.finish()
    assert end.returncode == 2
    assert end.stderr.count("SIGQUIT: quit") == 1
    assert len(HEADERS.findall(end.stderr)) == 4


def test_a_run_that_ends_meanwhile_does_not_hide_it() -> None:
    program = Program(
        """
        import gofer, os, signal

        async def main():
            gs = [gofer.go(gofer.sleep, 1000) for _ in range(2000)]
            await gofer.sleep(0.1)
            os.kill(os.getpid(), signal.SIGQUIT)

        gofer.run(main, procs=2)
        print("not reached")
        """
    )
    end = program.finish()
    assert end.returncode == 2
    assert end.stdout == ""
    assert end.stderr.startswith("SIGQUIT: quit")


# --- Whose it is ----------------------------------------------------------------------------------


def test_a_handler_of_the_user_wins(procs: int) -> None:
    caught: list[int] = []

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGQUIT)
        await until(lambda: caught == [signal.SIGQUIT])

    before = signal.signal(signal.SIGQUIT, lambda signum, frame: caught.append(signum))
    try:
        gofer.run(main, procs=procs)
    finally:
        signal.signal(signal.SIGQUIT, before)


def test_one_that_is_installed_while_it_runs_wins_too(procs: int) -> None:
    caught: list[int] = []

    async def main() -> None:
        gofer.lock_os_thread()
        before = signal.signal(signal.SIGQUIT, lambda signum, frame: caught.append(signum))
        assert before == signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGQUIT)
        await until(lambda: caught == [signal.SIGQUIT])

    try:
        gofer.run(main, procs=procs)
        os.kill(os.getpid(), signal.SIGQUIT)
        assert caught == [signal.SIGQUIT] * 2
    finally:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def test_notify_wins_until_it_stops(procs: int) -> None:
    async def main() -> None:
        ch = signals.notify(signal.SIGQUIT)
        os.kill(os.getpid(), signal.SIGQUIT)
        assert await ch.recv() == signal.SIGQUIT
        signals.stop(ch)

    gofer.run(main, procs=procs)
    assert signal.getsignal(signal.SIGQUIT) == signal.SIG_DFL


def test_after_notify_has_stopped_it_dumps_again() -> None:
    program = Program(
        """
        import gofer, os, signal
        from gofer import signals

        async def main():
            ch = signals.notify(signal.SIGQUIT)
            signals.stop(ch)
            print("ready", flush=True)
            await gofer.sleep(1000)

        gofer.run(main)
        """
    )
    quit_it(program)


def test_after_the_run_it_ends_the_process_as_before() -> None:
    end = run_program(
        """
        import gofer, os, resource, signal

        async def main():
            pass

        gofer.run(main)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGQUIT)
        """
    )
    assert end.returncode == -signal.SIGQUIT
    assert end.stderr == ""


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    end = run_program(
        """
        import gofer, os, signal

        async def main():
            os.kill(os.getpid(), signal.SIGQUIT)
            await gofer.sleep(0.05)
            print("alive")

        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        gofer.run(main)
        assert signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN
        """
    )
    assert end.check() == "alive\n"


def ignore() -> None:
    """As a shell does for `program &`."""
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


def test_one_that_was_ignored_when_the_program_began_dumps() -> None:
    program = Program(WAITING.format(wait="await gofer.sleep(1000)", procs=2), preexec=ignore)
    assert len(HEADERS.findall(quit_it(program))) == 4


def test_that_one_is_ignored_again_after_the_run_and_dumps_in_the_next() -> None:
    program = Program(
        """
        import gofer, os, signal
        from gofer import signals

        async def listen():
            ch = signals.notify(signal.SIGQUIT)
            os.kill(os.getpid(), signal.SIGQUIT)
            await ch.recv()
            signals.stop(ch)

        async def main():
            await listen()
            print("ready", flush=True)
            await gofer.sleep(1000)

        for _ in range(2):
            gofer.run(listen)
            assert signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGQUIT)
        gofer.run(main)
        """,
        preexec=ignore,
    )
    quit_it(program)


def test_a_program_that_ignores_it_itself_is_left_alone_however_it_began() -> None:
    end = run_program(
        """
        import gofer, os, signal
        from gofer import signals

        async def main():
            signals.stop(signals.notify(signal.SIGQUIT))
            os.kill(os.getpid(), signal.SIGQUIT)
            await gofer.sleep(0.05)
            print("alive")

        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        gofer.run(main)
        """,
        preexec=ignore,
    )
    assert end.check() == "alive\n"


def test_a_forked_child_ends_as_any_process() -> None:
    end = run_program(
        """
        import gofer, os, resource, signal, warnings
        warnings.simplefilter("ignore")

        async def main():
            pid = os.fork()
            if pid == 0:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                os.kill(os.getpid(), signal.SIGQUIT)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status))

        gofer.run(main)
        """
    )
    assert end.check() == f"{-signal.SIGQUIT}\n"
