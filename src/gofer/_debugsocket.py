"""The debug socket: what `gofer top` and `gofer dump` look at a running program through.

It is off unless GOFERDEBUG says socket=1, or the program was started by `gofer run`. The first
run() opens it, and it is there until the process ends. It shows things; there is nothing in it that
changes the program or runs code.

Who may use it. The socket is named PID.sock and lies in a directory that must belong to this user
and be closed to all others: $XDG_RUNTIME_DIR/gofer, or /tmp/gofer-UID. The directory is opened once
without following a link, looked at through that descriptor, and used through it, so nobody can put
another in its place between the look and the use. Besides, the kernel says who is at the other end
(SO_PEERCRED), and only this user is answered, whoever has managed to connect.

What is said. A request is a line of JSON, {"get": "stats"}; the answer is a line of JSON too,
{"ok": true, "result": ...} or {"ok": false, "error": "..."}. A connection carries any number of
them. See docs/command-line.md for what can be asked.

Why a thread. A goroutine could not answer when every P is stuck, which is when people look. One
thread serves all connections and never waits for one of them.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import re
import selectors
import signal
import socket
import stat
import struct
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gofer import _core, _watched

MAX_REQUEST = 1 << 16
MAX_CLIENTS = 32
MAX_GROUPS = 200  # of goroutines, in a summary
IDLE = 600.0  # seconds after which a silent connection is closed
SHARE = 20  # a summary that took a second is not made again within so many seconds

_NAME = re.compile(r"(\d+)\.sock")


# --- The directory -------------------------------------------------------------------------------


class UnsafeError(Exception):
    """The directory is not one that only its owner can use."""


def places() -> list[str]:
    """Where sockets may be, the preferred one first. A program and who looks at it may differ in
    their environments, so who looks tries both."""
    uid = os.geteuid()
    found = []
    parent = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(parent) and os.stat(parent).st_uid == uid:  # not so after `sudo -E`
            found.append(os.path.join(parent, "gofer"))
    return [*found, f"/tmp/gofer-{uid}"]


def open_directory(path: str, *, create: bool = False) -> int:
    """A descriptor of the directory, which is this user's and nobody else's; else UnsafeError."""
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise UnsafeError(f"{path} is no directory, or a link to one") from None
    except PermissionError:
        raise UnsafeError(f"{path} belongs to another user") from None
    info = os.fstat(fd)
    mode = stat.S_IMODE(info.st_mode)
    wrong = None
    if info.st_uid != os.geteuid():
        wrong = f"{path} belongs to another user"
    elif mode & 0o077:
        wrong = f"{path} is open to other users: its mode is {mode:04o}, and should be 0700"
    if wrong is None:
        return fd
    os.close(fd)
    raise UnsafeError(wrong)


def address(directory: int, name: str) -> str:
    """How to name a socket in a directory that is open, whatever the directory is called by now."""
    return f"/proc/self/fd/{directory}/{name}"


def _identity(directory: int, name: str) -> tuple[int, int] | None:
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None
    return info.st_ino, info.st_ctime_ns


def is_dead(directory: int, name: str) -> bool:
    """Whether nobody listens there any more. Then the name is removed."""
    seen = _identity(directory, name)
    if seen is None:
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address(directory, name))
        except ConnectionRefusedError:
            pass
        except FileNotFoundError:
            return True
        except OSError:
            return False  # a queue that is full, for example: somebody is there
        else:
            return False
    # A name appears only when its socket listens, so a refusal is final, unless the name has become
    # another socket's just now.
    if _identity(directory, name) == seen:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
    return True


def named(directory: int) -> dict[int, str]:
    """The sockets that there are, by the numbers of their processes."""
    found = (_NAME.fullmatch(name) for name in os.listdir(directory))
    return {int(match[1]): match[0] for match in found if match}


def pids(directory: int) -> list[int]:
    """Of whom there is a socket. Those of the dead are removed."""
    found = named(directory).items()
    return sorted(pid for pid, name in found if not is_dead(directory, name))


def clean(directory: int) -> None:
    """Remove the sockets of the dead, without bothering the living."""
    for pid, name in named(directory).items():
        if not os.path.exists(f"/proc/{pid}"):  # it may be one of another name space
            is_dead(directory, name)


# --- What can be asked ---------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """As JSON has it: dataclasses and mappings become objects, tuples arrays."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"  # JSON has no infinity
    return value


_started = time.time()


def _hello(request: dict[str, Any]) -> Any:
    import gofer

    return {
        "pid": os.getpid(),
        "program": os.path.basename(sys.argv[0] if sys.argv else "") or "python",
        "argv": sys.argv,
        "gofer": gofer.__version__,
        "python": sys.version.split()[0],
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "started": _started,
        "running": _core.running(),
    }


def _stats(request: dict[str, Any]) -> Any:
    from gofer import runtime

    s = runtime.stats()
    names = {f.name for f in dataclasses.fields(s)}
    if request.get("latencies") is False:  # the longest part of it, by far
        names.discard("latencies")
    return {name: plain(getattr(s, name)) for name in names}


def _metrics(request: dict[str, Any]) -> Any:
    from gofer import runtime

    return plain(runtime.metrics())


def _dump(request: dict[str, Any]) -> Any:
    import io

    from gofer import runtime

    text = io.StringIO()
    runtime.dump(text, group=request.get("group") is True)
    return text.getvalue()


class _Summary:
    """Goroutines by function and state.

    A look at a million of them takes a second; asked again soon, the same answer is given.
    """

    def __init__(self) -> None:
        self.again = 0.0
        self.made = 0.0
        self.groups: list[dict[str, Any]] = []

    def __call__(self, request: dict[str, Any]) -> Any:
        begun = time.monotonic()
        if begun >= self.again:
            self.groups = _grouped(
                Counter((g.name, g.state, g.wait_reason or "") for g in _core.goroutines())
            )
            self.made = time.monotonic()
            self.again = self.made + SHARE * (self.made - begun)
        return {"age": time.monotonic() - self.made, "groups": self.groups}


def _grouped(counts: "Counter[tuple[str, str, str]]") -> list[dict[str, Any]]:
    """The largest first. Many names, as of worker-1, worker-2 ..., are taken for one function's."""
    if len(counts) > MAX_GROUPS:
        folded: Counter[tuple[str, str, str]] = Counter()
        for (name, *rest), n in counts.items():
            folded[re.sub(r"\d+", "#", name), rest[0], rest[1]] += n
        counts = folded
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [
        {"name": name, "state": state, "wait_reason": reason, "count": n}
        for (name, state, reason), n in order[:MAX_GROUPS]
    ]
    if others := sum(n for _, n in order[MAX_GROUPS:]):
        rows.append({"name": "(others)", "state": "", "wait_reason": "", "count": others})
    return rows


_ANSWERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "hello": _hello,
    "stats": _stats,
    "goroutines": _Summary(),
    "dump": _dump,
    "metrics": _metrics,
}


def answer(line: bytes) -> dict[str, Any]:
    """The answer to one request, which may be anything."""
    try:
        request = json.loads(line)
        what = request["get"]
        ask = _ANSWERS[what]
    except (ValueError, RecursionError):
        return {"ok": False, "error": "the request is no JSON"}
    except (LookupError, TypeError):
        names = ", ".join(_ANSWERS)
        return {"ok": False, "error": f'the request is {{"get": NAME}}, and a name one of {names}'}
    try:
        return {"ok": True, "result": ask(request)}
    except Exception as exc:  # whatever is wrong with an answer, the socket goes on
        return {"ok": False, "error": f"{type(exc).__name__}: {exc}"}


# --- The server ----------------------------------------------------------------------------------


def peer(sock: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel knows them. 0: a process we cannot see."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


class _Client:
    """A connection. It is written to as it reads, and not read from before it has read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = bytearray()
        self.outbox = memoryview(b"")
        self.used = time.monotonic()

    @property
    def interest(self) -> int:
        return selectors.EVENT_WRITE if self.outbox else selectors.EVENT_READ

    def ready(self) -> bool:
        """Read, answer, write, as far as it goes. False: the connection is over."""
        self.used = time.monotonic()
        try:
            if not self.outbox:
                data = self.sock.recv(MAX_REQUEST)
                if not data:
                    return False
                self.inbox += data
            return self.answered()
        except BlockingIOError:
            return True
        except OSError:
            return False

    def answered(self) -> bool:
        while True:
            while self.outbox:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
            line, newline, rest = self.inbox.partition(b"\n")
            if not newline:
                return len(line) <= MAX_REQUEST
            self.inbox = rest
            reply = json.dumps(answer(bytes(line)), separators=(",", ":"))
            self.outbox = memoryview(reply.encode() + b"\n")


class _Server:
    """The socket of this process and the thread that serves it."""

    def __init__(self) -> None:
        self.name = f"{os.getpid()}.sock"
        self.directory, self.path = _usable_directory()
        try:
            clean(self.directory)
            self.listener = self.listen()
        except BaseException:
            os.close(self.directory)
            raise
        self.identity = _identity(self.directory, self.name)
        self.waker, self.wakened = os.pipe2(os.O_CLOEXEC)
        self.selector = selectors.DefaultSelector()
        self.clients: set[_Client] = set()
        # Before it runs: it is none of the threads that could wake a goroutine.
        self.thread = threading.Thread(target=self.serve, name="gofer-debug", daemon=True)
        self.started = threading.Event()
        self.thread.start()
        self.started.wait()

    def listen(self) -> socket.socket:
        new = f".{self.name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self.directory)
        if not is_dead(self.directory, self.name):
            raise UnsafeError(f"{self.path} is in use by another process of this number")
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.setblocking(False)
            listener.bind(address(self.directory, new))
            os.chmod(new, 0o600, dir_fd=self.directory)
            listener.listen(128)
            os.rename(new, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except BaseException:
            listener.close()
            raise
        return listener

    def serve(self) -> None:
        _watched.service_threads.add(threading.get_ident())
        self.started.set()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.waker, selectors.EVENT_READ)
        while self.turn():
            pass

    def turn(self) -> bool:
        """Wait for something and do it. False: the process ends."""
        for key, _ in self.selector.select(IDLE if self.clients else None):
            if key.fileobj == self.waker:
                return False
            if key.fileobj is self.listener:
                self.accept()
            elif key.data.ready():
                self.selector.modify(key.fileobj, key.data.interest, key.data)
            else:
                self.drop(key.data)
        for client in [c for c in self.clients if c.used < time.monotonic() - IDLE]:
            self.drop(client)
        return True

    def accept(self) -> None:
        try:
            while True:
                sock, _ = self.listener.accept()
                if peer(sock)[1] != os.geteuid() or len(self.clients) >= MAX_CLIENTS:
                    sock.close()
                    continue
                sock.setblocking(False)
                client = _Client(sock)
                self.clients.add(client)
                self.selector.register(sock, client.interest, client)
        except BlockingIOError:
            pass
        except OSError:  # there are no descriptors, for example: it is tried again
            time.sleep(0.01)

    def drop(self, client: _Client) -> None:
        self.selector.unregister(client.sock)
        self.clients.discard(client)
        client.sock.close()

    def close_files(self) -> None:
        self.selector.close()
        self.listener.close()
        for client in self.clients:
            client.sock.close()
        for fd in (self.waker, self.wakened, self.directory):
            os.close(fd)

    def stop(self) -> None:
        """The process ends."""
        if _identity(self.directory, self.name) == self.identity:
            with contextlib.suppress(OSError):
                os.unlink(self.name, dir_fd=self.directory)
        os.write(self.wakened, b"x")
        self.thread.join(1.0)
        if not self.thread.is_alive():  # it may be in the middle of a long dump: its files stay
            _watched.service_threads.clear()
            self.close_files()


def _usable_directory() -> tuple[int, str]:
    *preferred, last = places()
    for path in preferred:
        with contextlib.suppress(UnsafeError, OSError):
            return open_directory(path, create=True), path
    return open_directory(last, create=True), last


_lock = threading.Lock()
_server: _Server | None = None
_failed = False


def serve() -> None:
    """Open the socket of this process, unless it is open. What goes wrong is said, once."""
    global _server, _failed
    with _lock:
        if _server is not None or _failed:
            return
        try:
            _server = _Server()
        except (OSError, UnsafeError) as exc:
            _failed = True
            print(f"gofer: no debug socket: {exc}", file=sys.stderr)


def stop() -> None:
    """Close it."""
    global _server
    with _lock:
        if _server is not None:
            _server.stop()
            _server = None


def _forked() -> None:
    """The socket is the parent's, and the thread is not here. A run in this process opens its
    own."""
    global _lock, _server, _failed
    _lock = threading.Lock()
    _failed = False
    _watched.service_threads.clear()
    if _server is not None:
        _server.close_files()
        _server = None


atexit.register(stop)
os.register_at_fork(after_in_child=_forked)
