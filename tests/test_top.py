"""gofer top, in a terminal."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gofer._cli import view
from gofer._cli.top import draw, width_of
from tests.cli_support import GOFER, environment, fails, gofer, running
from tests.support import PATIENCE

BUSY = """
    import gofer, sys

    async def compute():
        while True:
            for _ in range(1000):
                pass
            await gofer.gosched()

    async def ping(ch):
        while True:
            await ch.send(1)

    async def pong(ch):
        async for _ in ch:
            await gofer.sleep(0.0001)

    async def main():
        ch = gofer.Chan()
        gofer.go(compute)
        gofer.go(ping, ch)
        gofer.go(pong, ch)
        names = ["sleeper"] * 7 + ["evil \\x1b[31m name"]
        sleepers = [gofer.go(sleeper, name=name) for name in names]
        while any(g.state != "waiting" for g in sleepers):
            await gofer.sleep(0.001)
        print("up", flush=True)
        await gofer.net.wait_readable(0)

    async def sleeper():
        await gofer.sleep(1000)

    gofer.run(main, procs=2)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def busy(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A program with something to see."""
    command: list[str | Path] = [sys.executable, "-c", textwrap.dedent(BUSY)]
    with running(command, environment(place, GOFERDEBUG="socket=1")) as process:
        yield process


class Screen:
    """A terminal of our own with a program in it. We see what it draws, not only what it writes."""

    def __init__(self, command: list[str], env: dict[str, str], size: tuple[int, int]) -> None:
        self.master, slave = pty.openpty()
        self.resize(*size)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.slave = slave
        self.written = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self, timeout: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], timeout)
        if ready:
            self.written += os.read(self.master, 1 << 16).decode("utf-8", "replace")
        return bool(ready)

    @property
    def lines(self) -> list[str]:
        """The last whole picture: it is drawn from the top, and ends with a wipe."""
        pictures = re.findall(r"\x1b\[H(.*?)\x1b\[J", self.written, re.DOTALL)
        if not pictures:
            return []
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", pictures[-1])
        assert "\x1b" not in plain
        return str(plain).replace("\r", "").split("\n")

    def until(self, condition: Callable[[list[str]], object], what: str) -> list[str]:
        deadline = time.monotonic() + PATIENCE
        while not condition(self.lines):
            assert time.monotonic() < deadline, f"no {what}:\n" + "\n".join(self.lines)
            self.read(0.2)
        return self.lines

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end"
            self.read(0.05)
        while self.read(0.05):
            pass
        return int(self.process.returncode)


@contextlib.contextmanager
def top(
    place: Path, *arguments: str, size: tuple[int, int] = (120, 36), **env: str
) -> Iterator[Screen]:
    screen = Screen([*GOFER, "top", *arguments], environment(place, **env), size)
    try:
        yield screen
    finally:
        if screen.process.poll() is None:
            screen.process.kill()
            screen.process.wait()
        os.close(screen.slave)
        os.close(screen.master)


def has(*words: str) -> Callable[[list[str]], bool]:
    return lambda lines: all(any(word in line for line in lines) for word in words)


def shows(*patterns: str) -> Callable[[list[str]], bool]:
    def check(lines: list[str]) -> bool:
        text = "\n".join(lines)
        return all(re.search(pattern, text, re.MULTILINE) for pattern in patterns)

    return check


# --- In a terminal -------------------------------------------------------------------------------


def test_it_shows_ps_threads_goroutines_and_rates(place: Path, busy: subprocess.Popen[str]) -> None:
    with top(place, str(busy.pid), "--interval", "0.3") as screen:
        lines = screen.until(
            shows(
                r"^goroutines +12 alive",
                r"^rates +[1-9].*/s switches",
                r"^[01] +━",  # a P has been busy
                r"^ +7  waiting +sleep +sleeper",
                r"compute$",
            ),
            "picture",
        )
        assert len(lines) == 36
        assert max(map(len, lines)) <= 120
        assert f"process {busy.pid}" in lines[0]
        assert any(r"evil \x1b[31m name" in line for line in lines)
        screen.press("q")
        assert screen.end() == 0


def test_keys_sort_pause_move_and_help(place: Path, busy: subprocess.Popen[str]) -> None:
    with top(place, str(busy.pid), "--interval", "0.2") as screen:
        screen.until(has("number ▼", "sleeper"), "picture")
        screen.press("s")
        lines = screen.until(has("function ▼"), "order by function")
        at = next(i for i, line in enumerate(lines) if "function ▼" in line)
        names = [line.split()[-1] for line in lines[at + 1 : -1] if line.strip()]
        assert {"compute", "main", "sleeper"} <= set(names)
        assert names[:2] == ["compute", "name"]  # the second is called "evil ... name"
        screen.press("r")
        screen.until(has("function ▲"), "the other way round")
        screen.press("p")
        screen.until(has("paused"), "pause")
        screen.press(" ")
        screen.until(lambda lines: lines and not has("paused")(lines), "end of the pause")
        screen.press("?")
        screen.until(has("keys:"), "help")
        screen.press("x")
        screen.until(has("function ▲"), "end of the help")
        screen.press("\x1b[B\x1b[A+-j")
        screen.press("q")
        assert screen.end() == 0


def test_a_small_screen_and_one_that_grows(place: Path, busy: subprocess.Popen[str]) -> None:
    with top(place, str(busy.pid), "--interval", "0.2", size=(60, 16)) as screen:
        lines = screen.until(has("goroutines", "busy"), "picture")
        assert len(lines) == 16
        assert max(map(len, lines)) <= 60
        screen.resize(140, 50)
        screen.until(lambda lines: len(lines) == 50, "larger picture")
        screen.resize(20, 3)
        screen.until(lambda lines: len(lines) == 3, "tiny picture")
        screen.press("q")
        assert screen.end() == 0


def test_it_leaves_the_terminal_as_it_was(place: Path, busy: subprocess.Popen[str]) -> None:
    for how in ("q", "\x03", signal.SIGTERM):
        with top(place, str(busy.pid)) as screen:
            before = termios.tcgetattr(screen.slave)
            screen.until(has("goroutines"), "picture")
            assert termios.tcgetattr(screen.slave) != before
            if isinstance(how, str):
                screen.press(how)
            else:
                screen.process.send_signal(how)
            assert screen.end() == (0 if isinstance(how, str) else 128 + how)
            assert termios.tcgetattr(screen.slave) == before
            assert screen.written.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")


def test_it_says_when_the_process_does_not_answer_and_when_it_ends(
    place: Path, busy: subprocess.Popen[str]
) -> None:
    with top(place, str(busy.pid), "--interval", "0.2") as screen:
        screen.until(has("goroutines"), "picture")
        os.kill(busy.pid, signal.SIGSTOP)
        screen.until(has("no answer for"), "word about the silence")
        os.kill(busy.pid, signal.SIGCONT)
        screen.until(lambda lines: not has("no answer for")(lines), "answer")
        busy.kill()
        assert screen.end() == 0
        assert f"process {busy.pid} has ended" in screen.written


def test_without_colour_and_without_unicode(place: Path, busy: subprocess.Popen[str]) -> None:
    with top(place, str(busy.pid), NO_COLOR="1", PYTHONIOENCODING="ascii") as screen:
        screen.until(has("#", "sleeper"), "picture")
        assert re.search(r"\x1b\[[0-9;]*m", screen.written) is None
        assert screen.written.isascii()
        screen.press("q")
        assert screen.end() == 0


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_in_tmux(place: Path, tmp_path: Path, busy: subprocess.Popen[str]) -> None:
    """A real terminal emulator, which shows what a user sees."""

    def tmux(*arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null", *arguments],
            capture_output=True,
            text=True,
            env={**environment(place), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
            timeout=PATIENCE,
        )
        return done.stdout

    def until(*patterns: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while not shows(*patterns)((text := tmux("capture-pane", "-p")).splitlines()):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        return text

    command = f"{' '.join(GOFER)} top {busy.pid} --interval 0.3; echo left; exec cat"
    tmux("new-session", "-d", "-x", "130", "-y", "40", command)
    try:
        until(r"^[01] +━", r"^ +7  waiting +sleep +sleeper *$", "hand-offs", "^q quit")
        tmux("send-keys", "p")
        until("paused")
        tmux("send-keys", "q")
        text = until("^left")
        assert "sleeper" not in text  # the screen is what it was before
    finally:
        tmux("kill-server")


# --- Not in a terminal ---------------------------------------------------------------------------


def test_once_is_plain_text(place: Path, busy: subprocess.Popen[str]) -> None:
    for arguments in ([str(busy.pid)], ["--once", "--interval", "0.2", str(busy.pid)]):
        out = gofer("top", *arguments, env=environment(place)).check()
        assert "\x1b" not in out
        assert re.search(r"^ +7  waiting +sleep +sleeper$", out, re.MULTILINE), out
        assert re.search(r"^[01] +━", out, re.MULTILINE), out
        assert r"evil \x1b[31m name" in out


def test_without_a_number_it_takes_the_only_one_or_asks(
    place: Path, busy: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gofer import _debugsocket
    from gofer._cli import top as module
    from gofer._cli.text import UserError

    # Only here: /tmp may have sockets of other programs.
    monkeypatch.setattr(_debugsocket, "places", lambda: [str(place / "gofer")])
    assert module.choose() == busy.pid
    command: list[str | Path] = [sys.executable, "-c", textwrap.dedent(BUSY)]
    with running(command, environment(place, GOFERDEBUG="socket=1")) as second:
        with pytest.raises(UserError, match="which of these") as caught:
            module.choose()
        assert caught.value.status == 2
        for process in (busy, second):
            assert str(process.pid) in str(caught.value)
    monkeypatch.setattr(_debugsocket, "places", lambda: [str(place / "nothing")])
    with pytest.raises(UserError, match="there is no program to watch: start it with"):
        module.choose()


def test_processes_are_listed(place: Path, busy: subprocess.Popen[str]) -> None:
    out = gofer("top", "--list", env=environment(place)).check()
    assert out.splitlines()[0].split() == ["PID", "up", "Python", "program"]
    assert re.search(rf"^{busy.pid} +\d+s +3\.", out, re.MULTILINE), out


def test_a_process_that_cannot_be_watched(place: Path) -> None:
    fails(gofer("top", str(os.getpid()), env=environment(place)), 1, "cannot be looked into")
    fails(gofer("top", "2147483646", env=environment(place)), 1, "there is no process")


OTHER = """
    import json, os, socket, sys
    directory = os.environ["XDG_RUNTIME_DIR"] + "/gofer"
    os.mkdir(directory, 0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(directory + "/" + str(os.getpid()) + ".sock")
    listener.listen()
    print("up", flush=True)
    sock, _ = listener.accept()
    for line in sock.makefile("rb"):
        what = json.loads(line)["get"]
        result = {"pid": os.getpid(), "program": "x", "argv": ["x"], "gofer": "99.0"}
        if what != "hello":
            result = {"something": "else"}
        sock.sendall(json.dumps({"ok": True, "result": result}).encode() + b"\\n")
"""


def test_a_program_with_another_version_of_gofer(place: Path) -> None:
    command: list[str | Path] = [sys.executable, "-c", textwrap.dedent(OTHER)]
    with running(command, environment(place)) as process:
        end = gofer("top", "--once", str(process.pid), env=environment(place))
    fails(end, 1, f"process {process.pid} runs gofer 99.0")


# --- Without anything ----------------------------------------------------------------------------


def look(time: float, status: str, tick: int, **more: Any) -> dict[str, Any]:
    proc = {"id": 0, "status": status, "queue": 3, "runnext": True, "schedtick": tick, "steals": 0}
    proc |= {"handoffs": 0, "preemptions": 0, "timers": 1, "thread": 2, "goroutine": None}
    return {"time": time, "procs": [proc], "goroutines": 5, "switches": tick, **more}


def test_rates_and_shares_are_those_of_the_time_between_two_pictures() -> None:
    sampler = view.Sampler(os.getpid())
    assert sampler.picture() is None
    for i, status in enumerate(["running", "running", "syscall", "idle"]):
        sampler.add(look(10 + i * 0.5, status, 100 * i))
    picture = sampler.picture()
    assert picture is not None
    assert picture.seconds == 1.5
    assert picture.rates["switches"] == pytest.approx(200)
    (proc,) = picture.procs
    assert (proc.busy, proc.calls) == (0.75, 0.25)
    assert proc.rates["switches"] == pytest.approx(200)
    sampler.add(look(12, "idle", 300))
    assert sampler.picture() is None  # one look says nothing about a time
    sampler.add(look(12.5, "idle", 310))
    picture = sampler.picture()
    assert picture is not None
    assert picture.rates["switches"] == pytest.approx(10)
    assert picture.procs[0].busy == 0
    assert sampler.history[0] == [0.75, 0.0]


def test_latencies_are_those_since_the_picture_before() -> None:
    buckets = ["-Inf", 0, 1e-6, 1e-3, "+Inf"]
    before = {"counts": [0, 100, 0, 0], "buckets": buckets}
    now = {"counts": [0, 100, 60, 40], "buckets": buckets}
    assert view.quantiles(now, before) == (1e-3, float("inf"))
    assert view.quantiles(before, None) == (1e-6, 1e-6)
    assert view.quantiles(now, now) is None


def test_numbers_are_short() -> None:
    numbers = [0, 1.25, 12, 1234, 12345, 1234567, 2.5e9]
    assert [view.number(n) for n in numbers] == [
        "0", "1.2", "12", "1,234", "12.3k", "1.23M", "2.5G"
    ]  # fmt: skip
    assert [view.span(s) for s in (5, 65, 3700, 90000)] == ["5s", "1m05s", "1h01m", "1d01h"]
    assert [view.duration(s) for s in (2, 0.0125, 1.5e-5, 5e-8)] == [
        "2 s", "12.5 ms", "15 us", "50 ns"
    ]  # fmt: skip


def test_bars_are_as_long_as_they_should_be() -> None:
    for unicode in (True, False):
        for share in (0, 0.03, 0.5, 0.97, 1):
            full, empty = view.bar(share, 20, unicode)
            assert len(full) + len(empty) == 20
            assert abs(len(full) - share * 20) <= 1
    assert view.sparks([0, 0.5, 1], True) == "▁▄▇"


def test_a_line_is_never_wider_than_the_screen() -> None:
    line: view.Line = [("title", "世界 abc"), ("", "e\u0301tude")]
    assert width_of("世") == 2
    for width in range(15):
        drawn = draw(line, width, colour=False)
        assert sum(map(width_of, drawn)) <= width
    assert draw(line, 5, colour=True) == "\x1b[1m世界 \x1b[m"
