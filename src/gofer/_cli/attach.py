"""The other end of the debug socket: see gofer/_debugsocket.py."""

import contextlib
import json
import os
import pwd
import socket
import time
from dataclasses import dataclass
from typing import Any

from gofer import _debugsocket as rules
from gofer._cli.text import UserError, why

HOW = "start it with `gofer run`, or with GOFERDEBUG=socket=1"


class Gone(UserError):
    """The process has ended."""


class Link:
    """A connection to a process. Requests can be sent without waiting for the answer."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.sock = sock
        self.inbox = bytearray()
        self.searched = 0  # so far there is no end of a line

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, what: str, **more: object) -> None:
        """Ask for something."""
        line = json.dumps({"get": what, **more}).encode() + b"\n"
        try:
            self.sock.settimeout(10)
            self.sock.sendall(line)
        except OSError:
            raise Gone(f"process {self.pid} has ended") from None

    def feed(self, timeout: float) -> None:
        """Take in what has come, waiting so long for something. TimeoutError if nothing does."""
        self.sock.settimeout(max(timeout, 1e-6))
        try:
            data = self.sock.recv(1 << 20)
        except (TimeoutError, BlockingIOError):
            raise TimeoutError from None
        except OSError:
            data = b""
        if not data:
            raise Gone(f"process {self.pid} has ended, or does not want to be looked at")
        self.searched = len(self.inbox)
        self.inbox += data

    def answered(self) -> bool:
        """Whether an answer is there, whole."""
        return self.inbox.find(b"\n", self.searched) >= 0

    def take(self) -> Any:
        """The answer to the oldest request, which is there. UserError if it is no good one."""
        line, _, self.inbox = self.inbox.partition(b"\n")
        self.searched = 0
        try:
            reply = json.loads(bytes(line))
            ok, answer = reply["ok"], reply["result" if reply["ok"] else "error"]
        except (ValueError, LookupError, TypeError):
            raise UserError(f"process {self.pid} says what gofer does not understand") from None
        if not ok:
            raise UserError(f"process {self.pid}: {answer}")
        return answer

    def ask(self, what: str, *, timeout: float = 10.0, **more: object) -> Any:
        """Ask, and wait for the answer."""
        self.send(what, **more)
        deadline = time.monotonic() + timeout
        try:
            while not self.answered():
                self.feed(deadline - time.monotonic())
            return self.take()
        except TimeoutError:
            raise UserError(
                f"process {self.pid} does not answer: it is stopped, or one of its threads does "
                "not let go of the GIL"
            ) from None

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _connect(directory: int, pid: int) -> Link | None:
    name = f"{pid}.sock"
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(10)
        sock.connect(rules.address(directory, name))
        process, user = rules.peer(sock)
        # Process 0 is one of another name space, which may share the directory with us.
        if user != os.geteuid() or process not in (pid, 0):
            raise UserError(f"the socket of process {pid} is another's")
    except (ConnectionRefusedError, FileNotFoundError):
        sock.close()
        rules.is_dead(directory, name)
        return None
    except OSError as exc:
        sock.close()
        raise UserError(f"cannot reach process {pid}: {why(exc)}") from None
    except BaseException:
        sock.close()
        raise
    return Link(pid, sock)


def _why_not(pid: int) -> str:
    """Why there is no socket of this process."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"there is no process {pid}"
    if owner != os.geteuid():
        name = str(owner)
        with contextlib.suppress(KeyError):
            name = pwd.getpwuid(owner).pw_name
        return f"process {pid} belongs to another user, {name}: only that user can look into it"
    return (
        f"process {pid} cannot be looked into: it does not run gofer, "
        f"or its debug socket is off ({HOW})"
    )


def attach(pid: int) -> Link:
    """A connection to this process. UserError says why there is none."""
    unsafe = None
    for place in rules.places():
        try:
            directory = rules.open_directory(place)
        except FileNotFoundError:
            continue
        except (OSError, rules.UnsafeError) as exc:
            unsafe = exc
            continue
        try:
            link = _connect(directory, pid)
        finally:
            os.close(directory)
        if link is not None:
            return link
    raise UserError(_why_not(pid) + (f". Besides: {unsafe}" if unsafe else ""))


@dataclass(frozen=True)
class Process:
    """One that can be looked into."""

    pid: int
    hello: dict[str, Any] | None
    """What it says of itself. None: it does not answer."""

    @property
    def title(self) -> str:
        if self.hello is None:
            return "(does not answer)"
        return " ".join([str(self.hello["program"]), *map(str, self.hello["argv"][1:])])


def processes() -> list[Process]:
    """All that this user can look into."""
    found = {}
    for place in rules.places():
        with contextlib.suppress(OSError, rules.UnsafeError):
            directory = rules.open_directory(place)
            try:
                for pid in rules.pids(directory):
                    found[pid] = _greet(directory, pid)
            finally:
                os.close(directory)
    return [Process(pid, hello) for pid, hello in sorted(found.items())]


def _greet(directory: int, pid: int) -> dict[str, Any] | None:
    with contextlib.suppress(UserError):
        link = _connect(directory, pid)
        if link is not None:
            with link:
                hello: dict[str, Any] = link.ask("hello", timeout=2.0)
                return hello
    return None
