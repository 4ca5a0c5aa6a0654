"""`gofer top`: a running program, live, in the terminal. Escape sequences; nothing to install.

The program is asked for a snapshot twenty times a second, which takes it a tenth of a millisecond,
and for a summary of its goroutines with each picture. Nothing here waits for an answer: keys work
while the program is stopped, and the screen says so.
"""

import argparse
import contextlib
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
import types
import unicodedata
from collections.abc import Iterator
from typing import Any

import gofer
from gofer._cli.attach import HOW, Gone, Link, Process, attach, processes
from gofer._cli.options import TOP_KEYS
from gofer._cli.text import UserError, can_print, printable, table
from gofer._cli.view import SORTS, Line, Look, Picture, Sampler, screen, span

LOOKS_PER_SECOND = 20
SILENCE = 2.0  # seconds without an answer that are worth a word

SGR = {
    "": "",
    "title": "1",
    "dim": "2",
    "head": "1;36",
    "bar": "32",
    "warn": "33",
    "bad": "1;31",
    "key": "7",
}


# --- From lines to the terminal ------------------------------------------------------------------


def width_of(ch: str) -> int:
    """How many columns a character takes."""
    if unicodedata.combining(ch):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in "WF" else 1


def draw(line: Line, width: int, colour: bool) -> str:
    """A line, not wider than the terminal."""
    out, left = [], width
    for style, text in line:
        taken = ""
        for ch in text:
            left -= width_of(ch)
            if left < 0:
                break
            taken += ch
        if style and colour and taken:
            taken = f"\x1b[{SGR[style]}m{taken}\x1b[m"
        out.append(taken)
        if left < 0:
            break
    drawn = "".join(out)
    return drawn if colour else drawn.rstrip()


class Terminal:
    """The screen, taken over for the length of the block."""

    def __init__(self) -> None:
        self.input, self.output = sys.stdin.fileno(), sys.stdout.fileno()
        self.colour = not os.environ.get("NO_COLOR")
        self.unicode = can_print("━▁·▼")
        self.before = termios.tcgetattr(self.input)

    def enter(self) -> None:
        tty.setcbreak(self.input)
        self.write("\x1b[?1049h\x1b[?25l\x1b[?7l")  # other screen, no cursor, no wrapping

    def leave(self) -> None:
        self.write("\x1b[?7h\x1b[?25h\x1b[?1049l")
        termios.tcsetattr(self.input, termios.TCSADRAIN, self.before)

    def stopped(self, signum: int, frame: types.FrameType | None) -> None:
        """Ctrl-Z: the shell gets its screen back, and we get ours when we go on."""
        self.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self.stopped)
        self.enter()

    def ended(self, signum: int, frame: types.FrameType | None) -> None:
        sys.exit(128 + signum)

    def __enter__(self) -> "Terminal":
        self.handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTSTP, self.stopped),
                (signal.SIGTERM, self.ended),
                (signal.SIGHUP, self.ended),
            )
        }
        self.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            self.leave()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        while data:
            data = data[os.write(self.output, data) :]

    def size(self) -> tuple[int, int]:
        try:
            return os.get_terminal_size(self.output)
        except OSError:
            return 80, 24

    def show(self, lines: list[Line]) -> None:
        width, _ = self.size()
        text = "\x1b[K\r\n".join(draw(line, width, self.colour) for line in lines)
        self.write(f"\x1b[H{text}\x1b[K\x1b[J")

    def pressed(self) -> list[str]:
        """The keys that have been pressed."""
        data = os.read(self.input, 1024)
        if not data:
            return ["q"]  # the terminal has gone
        return re.findall(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", data.decode("utf-8", "replace"))


# --- The program ---------------------------------------------------------------------------------

MOVES = {
    "\x1b[A": -1, "\x1bOA": -1, "k": -1,
    "\x1b[B": 1, "\x1bOB": 1, "j": 1,
    "\x1b[5~": -10, "\x1b[6~": 10,
    "\x1b[H": -(10**9), "\x1b[1~": -(10**9), "\x1bOH": -(10**9),
    "\x1b[F": 10**9, "\x1b[4~": 10**9, "\x1bOF": 10**9,
}  # fmt: skip


class Top:
    """What is asked, what has been answered, and what the keys have set."""

    def __init__(self, link: Link, hello: dict[str, Any], interval: float) -> None:
        self.link = link
        self.hello = hello
        self.interval = interval
        self.look = Look()
        self.sampler = Sampler(link.pid)
        self.picture: Picture | None = None
        self.waiting: list[str] = []  # for these answers
        self.asked = time.monotonic()
        self.paused = self.help = False
        self.error = ""

    def ask(self, what: str) -> None:
        if what not in self.waiting:
            if not self.waiting:
                self.asked = time.monotonic()
            more = {} if what != "stats" else {"latencies": self.sampler.wants_latencies}
            self.link.send(what, **more)
            self.waiting.append(what)

    def answers(self) -> None:
        """Take what has come."""
        self.link.feed(0.0)
        while self.link.answered():
            what = self.waiting.pop(0)
            self.asked = time.monotonic()
            try:
                answer = self.link.take()
            except UserError as exc:
                self.error = str(exc)
                continue
            self.error = ""
            if what == "stats":
                self.sampler.add(answer)
            else:
                self.sampler.groups = answer["groups"]

    def advance(self) -> None:
        """A new picture."""
        if not self.paused:
            self.picture = self.sampler.picture() or self.picture

    def note(self) -> tuple[str, bool]:
        silent = time.monotonic() - self.asked if self.waiting else 0.0
        if silent > SILENCE:
            return f"no answer for {span(silent)}", True
        if self.error:
            return printable(self.error), True
        return ("paused", False) if self.paused else ("", False)

    def lines(self, terminal: Terminal) -> list[Line]:
        self.look.width, self.look.height = terminal.size()
        self.look.unicode = terminal.unicode
        self.look.note, self.look.bad = self.note()
        if self.help:
            return [[("", line)] for line in TOP_KEYS.splitlines()]
        if self.picture is None:
            return [[("dim", self.look.note or f"looking at process {self.link.pid} ...")]]
        return screen(self.hello, self.sampler, self.picture, self.look, footer=True)

    def press(self, key: str) -> bool:
        """Do what a key stands for. False: quit."""
        look = self.look
        if self.help:
            self.help = False
        elif key == "?":
            self.help = True
        elif key in "pP ":
            self.paused = not self.paused
            self.sampler.restart()
        elif key == "s":
            look.sort, look.scroll = (look.sort + 1) % len(SORTS), 0
        elif key == "r":
            look.reverse, look.scroll = not look.reverse, 0
        elif key in ("+", "="):
            self.interval = min(self.interval * 2, 60.0)
        elif key == "-":
            self.interval = max(self.interval / 2, 0.125)
        elif key in MOVES:
            look.scroll = max(0, look.scroll + MOVES[key])
        return key not in ("q", "Q")


def watch(top: Top) -> None:
    """Until q is pressed or the process ends."""
    with Terminal() as terminal:
        next_look = next_picture = time.monotonic()
        size = terminal.size()
        while True:
            now = time.monotonic()
            if now >= next_look:
                top.ask("stats")
                next_look = now + 1 / LOOKS_PER_SECOND
            if now >= next_picture:
                top.ask("goroutines")
                top.advance()
            if now >= next_picture or size != terminal.size():
                size = terminal.size()
                terminal.show(top.lines(terminal))
                # The first comes as soon as there is something to show.
                next_picture = now + (top.interval if top.picture else 2 / LOOKS_PER_SECOND)
            wait = max(0.0, min(next_look, next_picture) - time.monotonic())
            ready, _, _ = select.select([terminal.input, top.link], [], [], wait)
            if top.link in ready:
                top.answers()
            if terminal.input in ready:
                for key in terminal.pressed():
                    if not top.press(key):
                        return
                terminal.show(top.lines(terminal))


def once(top: Top) -> None:
    """One picture, as plain text."""
    deadline = time.monotonic() + top.interval
    while True:
        top.sampler.add(top.link.ask("stats"))
        if time.monotonic() >= deadline and len(top.sampler.looks) > 1:
            break
        time.sleep(1 / LOOKS_PER_SECOND)
    top.sampler.groups = top.link.ask("goroutines", timeout=60.0)["groups"]
    top.advance()
    assert top.picture is not None
    top.look.width = max(80, shutil.get_terminal_size((100, 24)).columns)
    top.look.unicode = can_print("━▁·▼")
    for line in screen(top.hello, top.sampler, top.picture, top.look):
        print(draw(line, 10_000, colour=False))


def listing(found: list[Process]) -> Iterator[str]:
    """A line for each process."""
    rows: list[tuple[str, ...]] = [("PID", "up", "Python", "program")]
    for process in found:
        hello = process.hello or {}
        up = span(time.time() - hello["started"]) if hello else "?"
        python = str(hello.get("python", "?"))
        rows.append((str(process.pid), up, printable(python), printable(process.title)))
    return iter(table(rows, left=4))


def choose() -> int:
    """The process, when none was named."""
    found = processes()
    if not found:
        raise UserError(f"there is no program to watch: {HOW}")
    if len(found) > 1:
        lines = "\n".join("  " + line for line in listing(found))
        raise UserError(f"which of these?\n{lines}", 2)
    return found[0].pid


def command(options: argparse.Namespace) -> int:
    """Watch, or list what can be watched."""
    if options.list:
        print("\n".join(listing(processes())))
        return 0
    with attach(options.pid or choose()) as link:
        hello = link.ask("hello")
        live = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        try:
            top = Top(link, hello, options.interval)
            if options.once or not live:
                once(top)
            else:
                watch(top)
        except Gone:
            if not live:
                raise
            print(f"process {link.pid} has ended")
        except KeyboardInterrupt:
            pass
        except (LookupError, TypeError, ValueError, AttributeError):
            if hello.get("gofer") == gofer.__version__:
                raise
            version = printable(str(hello.get("gofer")))
            raise UserError(
                f"process {link.pid} runs gofer {version}, and this is {gofer.__version__}"
            ) from None
    return 0
