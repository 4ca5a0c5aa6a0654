"""The execution trace: what every goroutine did, and when.

>>> from gofer import trace
>>> with trace.recording("program.trace"):
...     gofer.run(main)
>>> text = trace.summary("program.trace")

A trace shows each goroutine running, waiting (for what, where, and who woke it), ready to run but
not running, and in a blocking call; what each P and each thread did; timers, garbage collections,
and whatever the program says about itself with `region`, `task` and `log`. It can be recorded at
any time, inside a run or around it. `FlightRecorder` keeps only the last seconds, until something
is worth a look.

See docs/trace-format.md for the file.
"""

import atexit
import contextvars
import gc
import itertools
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from gofer import _core

if TYPE_CHECKING:
    from gofer._trace.read import Trace

__all__ = [
    "FlightRecorder",
    "Recorded",
    "Task",
    "TraceError",
    "enabled",
    "load",
    "log",
    "perfetto",
    "recording",
    "region",
    "serve",
    "start",
    "stop",
    "summary",
    "task",
]

Path = str | os.PathLike[str]


class TraceError(Exception):
    """A file is no trace, or is truncated or corrupt.

    >>> trace.load("README.md")
    Traceback (most recent call last):
    gofer.trace.TraceError: README.md: this is no gofer trace
    """

    __module__ = "gofer.trace"


class Recorded(NamedTuple):
    """What `stop` and `FlightRecorder.snapshot` wrote.

    >>> trace.start("program.trace")
    >>> trace.stop()
    Recorded(path='program.trace', size=..., lost=0)
    """

    path: str
    size: int
    lost: int
    """Events that were dropped because the disk could not keep up."""


# --- Recording -----------------------------------------------------------------------------------

_lock = threading.RLock()
_path: str | None = None  # of the trace that is being recorded
_file = -1
_recorder: "FlightRecorder | None" = None


def _info() -> bytes:
    """What a reader should know of the process."""
    import json  # not before it is needed: most programs are not traced

    return json.dumps(
        {
            "program": os.path.basename(sys.argv[0] if sys.argv else "") or "python",
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
            "wait_reasons": _core.trace_reasons(),
        }
    ).encode()


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def _watch_gc(phase: str, info: dict[str, int]) -> None:
    begins = phase == "start"
    _core.trace_gc(begins, info["generation" if begins else "collected"])


def _first() -> None:
    if _path is None and _recorder is None:
        gc.callbacks.insert(1, _watch_gc)  # the first and the last are collecting(): see _run.py


def _last() -> None:
    if _path is None and _recorder is None:
        gc.callbacks.remove(_watch_gc)


def enabled() -> bool:
    """Whether a trace or a flight recorder is on.

    >>> if trace.enabled():
    ...     trace.log("state", describe())
    """
    return _core.trace_enabled()


def start(path: Path) -> None:
    """Begin to record a trace to this file. RuntimeError if one is being recorded.

    >>> trace.start("program.trace")
    >>> recorded = trace.stop()
    """
    global _path, _file
    with _lock:
        if _path is not None:
            raise RuntimeError(f"a trace is being recorded already, to {_path}")
        file = _open(path)
        _first()
        try:
            _core.trace_start(file, _info())
        except BaseException:
            _last()
            os.close(file)
            raise
        _path, _file = os.fspath(path), file


def stop() -> Recorded | None:
    """End the trace; the file is complete when this returns. Without a trace: nothing happens.

    >>> trace.start("program.trace")
    >>> trace.stop()
    Recorded(path='program.trace', size=..., lost=0)
    """
    global _path, _file
    with _lock:
        if _path is None:
            return None
        size, lost, error = _core.trace_stop()
        os.close(_file)
        done = Recorded(_path, size, lost)
        _path, _file = None, -1
        _last()
    if error:
        raise OSError(error, os.strerror(error), done.path)
    return done


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Record what happens in the block.

    >>> with trace.recording("program.trace"):
    ...     gofer.run(main)
    """
    start(path)
    try:
        yield
    finally:
        stop()


class FlightRecorder:
    """Remember the last seconds, and write them down when asked.

    There can be one at a time, also beside a trace. It keeps about `seconds` of events, but no more
    than `size` bytes. With `on_crash`, a run() that ends with an exception writes them to that
    file.

    >>> with trace.FlightRecorder(seconds=5) as recorder:
    ...     if slow:
    ...         recorded = recorder.snapshot("slow.trace")
    """

    def __init__(
        self, seconds: float = 10.0, size: int = 10 << 20, *, on_crash: Path | None = None
    ) -> None:
        if not 0 < seconds < 1e6:
            raise ValueError(f"seconds must be positive and less than a million, not {seconds!r}")
        if size < 1 << 18:
            raise ValueError(f"size must be at least 262144 bytes, not {size!r}")
        self.seconds = seconds
        self.size = size
        self.on_crash = on_crash

    def __repr__(self) -> str:
        state = "on" if self.enabled else "off"
        return f"<FlightRecorder of {self.seconds:g} s and {self.size} bytes, {state}>"

    @property
    def enabled(self) -> bool:
        """Whether it is on."""
        return _recorder is self

    def start(self) -> None:
        """Begin to remember. RuntimeError if a recorder is on.

        >>> recorder.start()
        """
        global _recorder
        with _lock:
            if _recorder is not None:
                raise RuntimeError("a flight recorder is on already")
            _first()
            try:
                _core.trace_ring_start(int(self.seconds * 1e9), self.size)
            except BaseException:
                _last()
                raise
            _recorder = self

    def stop(self) -> None:
        """Forget all. Without effect if it is off.

        >>> recorder.stop()
        """
        global _recorder
        with _lock:
            if _recorder is self:
                _core.trace_ring_stop()
                _recorder = None
                _last()

    def snapshot(self, path: Path) -> Recorded:
        """Write what it remembers to this file. It goes on.

        >>> with trace.FlightRecorder(seconds=5) as recorder:
        ...     recorder.snapshot("slow.trace")
        Recorded(path='slow.trace', size=..., lost=0)
        """
        with _lock:
            if _recorder is not self:
                raise RuntimeError("the flight recorder is off")
            file = _open(path)
            try:
                size, lost, error = _core.trace_ring_write(file, _info())
            finally:
                os.close(file)
        if error:
            raise OSError(error, os.strerror(error), os.fspath(path))
        return Recorded(os.fspath(path), size, lost)

    def __enter__(self) -> "FlightRecorder":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _crashed() -> None:
    """run() is about to raise: see there."""
    with _lock:
        if _recorder is not None and _recorder.on_crash is not None:
            _recorder.snapshot(_recorder.on_crash)


def _end() -> None:
    """The program ends: complete what is being written."""
    with _lock:
        stop()
        if _recorder is not None:
            _recorder.stop()


def _forked() -> None:
    """The trace is the parent's: the engine has forgotten it."""
    global _lock, _path, _file, _recorder
    _lock = threading.RLock()
    if _file >= 0:
        os.close(_file)
    if _path is not None or _recorder is not None:
        _path, _file, _recorder = None, -1, None
        _last()


atexit.register(_end)
os.register_at_fork(after_in_child=_forked)


# --- What the program says about itself ----------------------------------------------------------


class Task:
    """A piece of work that several goroutines do together: see `task`. Has a `name` and an `id`.

    >>> with trace.task("request") as t:
    ...     print(t.name)
    request
    """

    __slots__ = ("_id", "_name", "_token")

    def __init__(self, name: str) -> None:
        self._name = name
        self._id = next(_task_ids)

    @property
    def name(self) -> str:
        """What it was called.

        >>> with trace.task("request") as t:
        ...     print(t.name)
        request
        """
        return self._name

    @property
    def id(self) -> int:
        """Its number, of its own in this process.

        >>> with trace.task("a") as a, trace.task("b") as b:
        ...     print(a.id < b.id)
        True
        """
        return self._id

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.name!r}>"

    def __enter__(self) -> "Task":
        parent = _current_task.get()
        _core.trace_task_begin(self.id, parent, self.name)
        self._token = _current_task.set(self.id)
        return self

    def __exit__(self, *exc: object) -> None:
        _current_task.reset(self._token)
        _core.trace_task_end(self.id)


_task_ids = itertools.count(1)
_current_task: contextvars.ContextVar[int] = contextvars.ContextVar("gofer.trace.task", default=0)


def task(name: str) -> Task:
    """A piece of work: the block, and all goroutines that are started in it.

    Regions and logs in any of them belong to it. Tasks nest.

    >>> with trace.task("request"):
    ...     gofer.go(fetch, url)
    """
    return Task(_check_name(name, "a task"))


def _check_name(name: object, what: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} must be a str, not {name!r}")
    return name


class region:  # reads as a statement
    """Give a `name` to what a goroutine does in the block, also across awaits. Regions nest.

    >>> with trace.region("parse"):
    ...     page = await fetch(url)
    """

    __slots__ = ("_name", "_on")

    def __init__(self, name: str) -> None:
        self._name = _check_name(name, "a region")
        self._on = False

    @property
    def name(self) -> str:
        """What the block is called.

        >>> trace.region("parse").name
        'parse'
        """
        return self._name

    def __enter__(self) -> None:
        if _core.trace_enabled():
            self._on = True
            _core.trace_region(True, _current_task.get(), self._name)

    def __exit__(self, *exc: object) -> None:
        if self._on:
            self._on = False
            _core.trace_region(False, _current_task.get(), self._name)


def log(*parts: Any) -> None:
    """Write a message into the trace, or a category and a message. Without a trace: does nothing.

    >>> trace.log("cache is cold")
    >>> trace.log("cache", f"{hits} hits")
    """
    if not parts:
        raise TypeError("log() needs a message, or a category and a message")
    if _core.trace_enabled():
        category = str(parts[0]) if len(parts) > 1 else ""
        message = " ".join(map(str, parts[1:] if len(parts) > 1 else parts))
        _core.trace_log(_current_task.get(), category, message.encode("utf-8", "replace"))


# --- Looking at a trace --------------------------------------------------------------------------


def load(path: Path, *, truncated: bool = False) -> "Trace":
    """Read a trace: its events, and the life of every goroutine. TraceError if it is none.

    With `truncated`, a file that was broken off is read as far as it goes.

    >>> t = trace.load("program.trace")
    >>> t.goroutines[0].name
    'main'
    """
    from gofer._trace.read import read

    return read(path, truncated=truncated)


def summary(path: Path, *, top: int = 10) -> str:
    """A trace in a page of text: who ran, who waited and for what, and what took longest.

    >>> text = trace.summary("program.trace")
    """
    from gofer._trace.summary import summarise, text

    return text(summarise(load(path), top=top))


def perfetto(path: Path, out: Path) -> int:
    """Convert a trace to the JSON that ui.perfetto.dev and chrome://tracing read.

    Returns how many entries were written.

    >>> entries = trace.perfetto("program.trace", "program.json")
    """
    from gofer._trace.perfetto import export

    return export(load(path), out)


def serve(path: Path, *, port: int = 0, open_browser: bool = True) -> None:
    """Show a trace in the browser, until Ctrl-C. The page is served on the loopback interface only.

    >>> trace.serve("program.trace")  # doctest: +SKIP
    program.trace: http://127.0.0.1:41203/
    """
    from gofer._trace.serve import Viewer

    with Viewer(load(path)) as viewer:
        viewer.serve(port, open_browser=open_browser)
