"""The debug socket: what it answers, to whom, and what it leaves behind."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli_support import GOFER, WAITING, environment, fails, gofer, running, script
from tests.support import PATIENCE, run_program

ON = {"GOFERDEBUG": "socket=1"}
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A runtime directory, as a session of a user has one."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@contextlib.contextmanager
def waiting_program(place: Path, source: str = WAITING) -> Iterator[subprocess.Popen[str]]:
    """A program with a socket that waits."""
    command = [sys.executable, "-c", textwrap.dedent(source)]
    with running([*command], environment(place, **ON)) as process:
        if source is WAITING:
            settled(socket_of(place, process.pid))
        yield process


def socket_of(place: Path, pid: int) -> Path:
    return place / "gofer" / f"{pid}.sock"


def ask(path: Path, *requests: bytes, timeout: float = PATIENCE) -> list[Any]:
    """The answers to these lines, in order."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout)
        sock.connect(str(path))
        sock.sendall(b"".join(line + b"\n" for line in requests))
        file = sock.makefile("rb")
        return [json.loads(file.readline()) for _ in requests]


def settled(path: Path) -> None:
    """Wait until all of its goroutines wait for something."""
    deadline = time.monotonic() + PATIENCE
    while True:
        (answer,) = ask(path, b'{"get": "goroutines"}')
        if all(group["state"] == "waiting" for group in answer["result"]["groups"]):
            return
        assert time.monotonic() < deadline, answer
        time.sleep(0.005)


# --- When it is there ----------------------------------------------------------------------------


def test_it_is_off_unless_asked_for(place: Path) -> None:
    source = "import gofer, threading\nasync def main(): pass\ngofer.run(main)\n"
    source += "import sys; print(threading.active_count(), 'gofer._debugsocket' in sys.modules)"
    for value in ("", "socket=0", "schedtrace=0"):
        end = run_program(source, env={"XDG_RUNTIME_DIR": str(place), "GOFERDEBUG": value})
        assert end.stdout == "1 False\n", end
    assert list(place.iterdir()) == []


def test_it_comes_with_the_first_run_and_goes_with_the_process(place: Path) -> None:
    source = f"""
        import os, stat
        import gofer
        path = "{place}/gofer/" + str(os.getpid()) + ".sock"
        async def main():
            mode = os.stat(path).st_mode
            print(stat.S_ISSOCK(mode), oct(stat.S_IMODE(mode)))
        print(os.path.exists(path))
        gofer.run(main)
        print(os.path.exists(path))
        gofer.run(main)
        """
    end = run_program(source, env={"XDG_RUNTIME_DIR": str(place), **ON})
    assert end.check() == "False\nTrue 0o600\nTrue\nTrue 0o600\n"
    assert list((place / "gofer").iterdir()) == []
    assert stat.S_IMODE((place / "gofer").stat().st_mode) == 0o700


def test_gofer_run_switches_it_on(place: Path, tmp_path: Path) -> None:
    path = script(tmp_path, WAITING)
    env = environment(place)
    with running([*GOFER, "run", path], env) as process:
        (hello,) = ask(socket_of(place, process.pid), b'{"get": "hello"}')
        assert hello["result"]["program"] == "prog.py"
    with running([*GOFER, "run", "--no-socket", path], env) as process:
        assert not socket_of(place, process.pid).exists()


def test_without_a_session_it_is_under_tmp() -> None:
    env = environment(**ON)
    env.pop("XDG_RUNTIME_DIR", None)
    command = [sys.executable, "-c", textwrap.dedent(WAITING)]
    with running([*command], env) as process:
        directory = Path(f"/tmp/gofer-{os.geteuid()}")
        assert (directory / f"{process.pid}.sock").is_socket()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not (directory / f"{process.pid}.sock").exists()


def test_a_deadlock_is_still_found(place: Path) -> None:
    """Its thread is none of those that could wake a goroutine."""
    source = """
        import gofer
        async def main():
            await gofer.Chan().recv()
        try:
            gofer.run(main)
        except gofer.Deadlock:
            print("deadlock")
        """
    env = {"XDG_RUNTIME_DIR": str(place), **ON}
    assert run_program(source, env=env).check() == "deadlock\n"


def test_a_future_that_nobody_completes_is_still_a_deadlock(place: Path) -> None:
    source = """
        import concurrent.futures, gofer
        async def main():
            await concurrent.futures.Future()
        try:
            gofer.run(main)
        except gofer.Deadlock:
            print("deadlock")
        """
    env = {"XDG_RUNTIME_DIR": str(place), **ON}
    assert run_program(source, env=env).check() == "deadlock\n"


def test_a_child_has_a_socket_of_its_own(place: Path) -> None:
    source = f"""
        import os
        import gofer
        directory = "{place}/gofer"
        async def main():
            return str(os.getpid()) + ".sock" in os.listdir(directory)
        assert gofer.run(main)
        parent = str(os.getpid()) + ".sock"
        before = set(os.listdir("/proc/self/fd"))
        pid = os.fork()
        if pid == 0:
            assert not [t for t in os.listdir("/proc/self/task") if t != str(os.getpid())]
            assert gofer.run(main)
            os._exit(0 if len(os.listdir(directory)) == 2 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert parent in os.listdir(directory)
        assert gofer.run(main)
        print("both")
        """
    end = run_program(source, env={"XDG_RUNTIME_DIR": str(place), **ON}, options=("-W", "ignore"))
    assert end.check() == "both\n"


def test_signals_reach_the_main_thread(place: Path) -> None:
    with waiting_program(place) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == -signal.SIGINT
        _, err = process.communicate()
        assert "KeyboardInterrupt" in err
        assert not socket_of(place, process.pid).exists()


# --- What it says --------------------------------------------------------------------------------


def test_it_answers_several_questions_on_one_connection(place: Path) -> None:
    with waiting_program(place) as process:
        questions = [b"hello", b"stats", b"goroutines", b"dump", b"metrics"]
        lines = [b'{"get": "%s"}' % what for what in questions]
        answers = ask(socket_of(place, process.pid), *lines)
    assert all(answer["ok"] for answer in answers), answers
    hello, stats, goroutines, dump, metrics = (answer["result"] for answer in answers)
    assert hello["pid"] == process.pid
    assert hello["running"] is True
    assert stats["goroutines"] == 6
    assert len(stats["procs"]) == stats["gomaxprocs"] > 0
    assert {"name": "waiter", "state": "waiting", "wait_reason": "chan receive", "count": 5} in (
        goroutines["groups"]
    )
    assert dump.count("goroutine ") >= 6
    assert "[chan receive]:" in dump
    assert metrics["/sched/goroutines:goroutines"] == 6
    assert len(metrics["/sched/latencies:seconds"]["counts"]) > 100


def test_it_answers_when_every_p_is_stuck(place: Path) -> None:
    source = """
        import gofer, sys
        def stuck():
            print("up", flush=True)
            sys.stdin.read()
        async def main():
            stuck()
        gofer.run(main, procs=1)
        """
    with waiting_program(place, source) as process:
        (answer,) = ask(socket_of(place, process.pid), b'{"get": "dump"}')
    assert answer["ok"]
    assert "stuck()" in answer["result"]


def test_it_answers_while_all_compute(place: Path) -> None:
    source = """
        import gofer, sys
        async def compute():
            while True:
                pass
        async def main():
            for _ in range(3):
                gofer.go(compute)
            await gofer.sleep(0.05)
            print("up", flush=True)
            await gofer.net.wait_readable(0)
        gofer.run(main, procs=2)
        """
    with waiting_program(place, source) as process:
        (answer,) = ask(socket_of(place, process.pid), b'{"get": "stats"}')
        process.kill()
    assert answer["result"]["goroutines"] == 4


def test_between_two_runs_it_answers_too(place: Path) -> None:
    source = """
        import gofer, sys
        async def main(): pass
        gofer.run(main)
        print("up", flush=True)
        sys.stdin.read()
        """
    with waiting_program(place, source) as process:
        lines = [b'{"get": "%s"}' % what for what in (b"stats", b"goroutines", b"dump", b"hello")]
        stats, goroutines, dump, hello = ask(socket_of(place, process.pid), *lines)
    assert stats["result"]["goroutines"] == 0
    assert stats["result"]["procs"] == []
    assert goroutines["result"]["groups"] == []
    assert dump["ok"]
    assert hello["result"]["running"] is False


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b"17",
        b"null",
        b'"stats"',
        b'{"get": 5}',
        b'{"get": []}',
        b'{"get": "exec"}',
        b'{"get": "__init__"}',
        b"[" * 5000,
        b"\xff\xfe\x00",
    ],
    ids=lambda line: repr(line[:12]),
)
def test_nonsense_gets_an_error_and_the_connection_lives(line: bytes, place: Path) -> None:
    with waiting_program(place) as process:
        bad, good = ask(socket_of(place, process.pid), line, b'{"get": "hello"}')
    assert bad["ok"] is False
    assert bad["error"]
    assert good["ok"] is True


def test_a_request_without_end_is_cut_off(place: Path) -> None:
    with waiting_program(place) as process:
        path = str(socket_of(place, process.pid))
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(path)
            with contextlib.suppress(OSError):
                for _ in range(64):
                    sock.sendall(b"x" * 65536)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        assert ask(Path(path), b'{"get": "hello"}')[0]["ok"]


def test_one_that_does_not_read_holds_up_nobody(place: Path) -> None:
    with waiting_program(place) as process:
        path = socket_of(place, process.pid)
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                lazy = stack.enter_context(socket.socket(socket.AF_UNIX))
                lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                lazy.connect(str(path))
                lazy.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    lazy.send(b'{"get": "metrics"}\n' * 500)
            for _ in range(20):
                assert ask(path, b'{"get": "hello"}')[0]["ok"]


def test_too_many_are_turned_away_and_the_others_served(place: Path) -> None:
    with waiting_program(place) as process, contextlib.ExitStack() as stack:
        path = socket_of(place, process.pid)
        open_ones = []
        for _ in range(40):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(path))
            sock.settimeout(PATIENCE)
            open_ones.append(sock)
        served = 0
        for sock in open_ones:
            with contextlib.suppress(OSError):
                sock.sendall(b'{"get": "hello"}\n')
                served += bool(sock.recv(1 << 16))
        assert 16 <= served <= 32


def test_many_names_are_taken_for_one_function(place: Path) -> None:
    source = """
        import gofer
        async def main():
            for i in range(1000):
                gofer.go(nap, name=f"worker-{i}")
            await gofer.sleep(0)
            print("up", flush=True)
            await gofer.net.wait_readable(0)
        async def nap():
            await gofer.sleep(1000)
        gofer.run(main)
        """
    with waiting_program(place, source) as process:
        (answer,) = ask(socket_of(place, process.pid), b'{"get": "goroutines"}')
    groups = answer["result"]["groups"]  # several: they may not all have begun
    assert sum(group["count"] for group in groups if group["name"] == "worker-#") == 1000


# --- Whom it refuses -----------------------------------------------------------------------------


def as_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


# It becomes the other user when it has started: Python itself may be in a place closed to that one.
CONNECT = f"""
    import os, socket, sys
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    try:
        sock.connect(sys.argv[1])
        sock.sendall(b'{{"get": "hello"}}\\n')
        print("closed" if not sock.recv(1) else "answered")
    except PermissionError:
        print("no permission")
    except (BrokenPipeError, ConnectionResetError):
        print("closed")
    """


def connect_as_nobody(path: Path) -> str:
    return run_program(CONNECT, str(path)).check().strip()


@AS_ROOT
def test_another_user_is_refused(place: Path) -> None:
    with waiting_program(place) as process:
        path = socket_of(place, process.pid)
        assert connect_as_nobody(path) == "no permission"
        # Even if every door is opened: the kernel says who comes.
        for step in [*reversed(path.parents), path]:
            if step.is_relative_to("/tmp") and step != Path("/tmp"):
                step.chmod(0o777)
        try:
            assert connect_as_nobody(path) == "closed"
            assert ask(path, b'{"get": "hello"}')[0]["ok"]
        finally:
            path.parent.chmod(0o700)


@AS_ROOT
def test_a_program_of_another_user_is_not_looked_into(place: Path) -> None:
    with subprocess.Popen(["sleep", "1000"], preexec_fn=as_nobody) as process:
        try:
            end = gofer("dump", str(process.pid), env=environment(place))
            fails(end, 1, f"process {process.pid} belongs to another user")
        finally:
            process.kill()


QUICK = "import gofer\nasync def main(): print('ran')\ngofer.run(main)\n"


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o1777])
def test_a_directory_that_others_may_enter_is_not_used(mode: int, place: Path) -> None:
    from gofer import _debugsocket

    (place / "gofer").mkdir()
    (place / "gofer").chmod(mode)
    with pytest.raises(_debugsocket.UnsafeError, match="open to other users"):
        _debugsocket.open_directory(str(place / "gofer"), create=True)
    end = run_program(QUICK, env={"XDG_RUNTIME_DIR": str(place), **ON})
    assert end.stdout == "ran\n"  # with the other directory
    assert list((place / "gofer").iterdir()) == []


@AS_ROOT
def test_a_directory_of_another_user_is_not_used(place: Path) -> None:
    from gofer import _debugsocket

    (place / "gofer").mkdir(mode=0o700)
    os.chown(place / "gofer", NOBODY, NOBODY)
    with pytest.raises(_debugsocket.UnsafeError, match="another user"):
        _debugsocket.open_directory(str(place / "gofer"))
    os.chown(place, NOBODY, NOBODY)
    assert not any(str(place) in path for path in _debugsocket.places())


def test_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    from gofer import _debugsocket

    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (place / "gofer").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(_debugsocket.UnsafeError, match="link"):
        _debugsocket.open_directory(str(place / "gofer"), create=True)
    end = run_program(QUICK, env={"XDG_RUNTIME_DIR": str(place), **ON})
    assert end.stdout == "ran\n"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@AS_ROOT
def test_a_program_without_a_safe_directory_runs_and_says_so(tmp_path: Path) -> None:
    """As another user, in whose stead somebody has made the directory."""
    user = 54321
    taken = Path(f"/tmp/gofer-{user}")
    taken.mkdir(mode=0o700)  # root's, not that user's
    source = f"""
        import os
        import gofer
        from gofer import _debugsocket

        async def main():
            print("ran")

        gofer.run(main)  # which imports what that user may not be allowed to read
        os.setgroups([])
        os.setuid({user})
        os.environ["GOFERDEBUG"] = "socket=1"
        gofer.run(main)
        gofer.run(main)
        """
    try:
        end = run_program(source, env={"XDG_RUNTIME_DIR": str(tmp_path / "none")})
    finally:
        taken.rmdir()
    assert (end.returncode, end.stdout) == (0, "ran\nran\nran\n"), end
    assert end.stderr == f"gofer: no debug socket: {taken} belongs to another user\n"


def stopped(pid: int) -> None:
    """Stop it. Its threads do not all stop at once."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    for task in Path(f"/proc/{pid}/task").iterdir():
        while (task / "stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.001)


# --- What the dead leave behind ------------------------------------------------------------------


def killed(place: Path) -> int:
    """The number of a program that had no time to tidy up."""
    with waiting_program(place) as process:
        process.kill()
        process.wait()
        assert socket_of(place, process.pid).is_socket()
    return process.pid


def test_the_socket_of_a_dead_process_is_removed_by_the_next_program(place: Path) -> None:
    pid = killed(place)
    with waiting_program(place) as process:
        assert not socket_of(place, pid).exists()
        assert socket_of(place, process.pid).is_socket()


def test_the_socket_of_a_dead_process_is_removed_by_who_looks(place: Path) -> None:
    pid = killed(place)
    fails(gofer("dump", str(pid), env=environment(place)), 1, f"there is no process {pid}")
    assert not socket_of(place, pid).exists()
    pid = killed(place)
    assert str(pid) not in gofer("top", "--list", env=environment(place)).check()
    assert not socket_of(place, pid).exists()


def test_a_socket_that_lives_is_left_alone(place: Path) -> None:
    with waiting_program(place) as first, waiting_program(place) as second:
        for process in (first, second):
            assert ask(socket_of(place, process.pid), b'{"get": "hello"}')[0]["ok"]
        listed = gofer("top", "--list", env=environment(place)).check()
        assert str(first.pid) in listed
        assert str(second.pid) in listed
        stopped(first.pid)
        try:
            listed = gofer("top", "--list", env=environment(place)).check()
            assert "(does not answer)" in listed
        finally:
            os.kill(first.pid, signal.SIGCONT)


def test_other_files_in_the_directory_are_left_alone(place: Path) -> None:
    (place / "gofer").mkdir(mode=0o700)
    (place / "gofer" / "notes.txt").touch()
    (place / "gofer" / "1.sock").touch()  # no socket at all
    with waiting_program(place):
        pass
    assert (place / "gofer" / "notes.txt").exists()


# --- gofer dump ----------------------------------------------------------------------------------


def test_a_dump_from_outside(place: Path) -> None:
    env = environment(place)
    with waiting_program(place) as process:
        out = gofer("dump", str(process.pid), env=env).check()
        grouped = gofer("dump", str(process.pid), "--group", env=env).check()
        assert process.poll() is None
    assert out.count("[chan receive]:") == 5
    assert "goroutine 1 [IO wait]" in out
    assert "await ch.recv()" in out or "waiter()" in out
    assert grouped.count("waiter()") == 1


def test_a_dump_of_what_is_no_gofer_program(place: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            end = gofer("dump", str(process.pid), env=environment(place))
            fails(end, 1, f"process {process.pid} cannot be looked into", "gofer run")
        finally:
            process.kill()
    fails(gofer("dump", "2147483646", env=environment(place)), 1, "there is no process")


def test_a_socket_that_is_another_processs_is_not_believed(place: Path) -> None:
    (place / "gofer").mkdir(mode=0o700)
    with subprocess.Popen(["sleep", "1000"]) as process, socket.socket(socket.AF_UNIX) as fake:
        try:
            fake.bind(str(socket_of(place, process.pid)))
            fake.listen()
            end = gofer("dump", str(process.pid), env=environment(place))
            fails(end, 1, f"the socket of process {process.pid} is another's")
        finally:
            process.kill()


def test_a_process_that_is_stopped_does_not_hang_us(place: Path) -> None:
    from gofer._cli import attach
    from gofer._cli.text import UserError

    with waiting_program(place) as process:
        stopped(process.pid)
        try:
            directory = os.open(place / "gofer", os.O_RDONLY)
            link = attach._connect(directory, process.pid)
            os.close(directory)
            assert link is not None
            begun = time.monotonic()
            with link, pytest.raises(UserError, match="does not answer"):
                link.ask("hello", timeout=0.2)
            assert time.monotonic() - begun < PATIENCE / 2
        finally:
            os.kill(process.pid, signal.SIGCONT)
