"""run(), and what is asked of the runtime as a whole."""

import contextlib
import functools
import gc
import inspect
import os
import signal
import threading
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn, TypeVar, overload

from gofer import (
    _asyncgen,
    _cgroup,
    _core,
    _debug,
    _future,
    _hooks,
    _numa,
    _stall,
    _watched,
    signals,
    trace,
)
from gofer._errors import Cancelled, GoExit
from gofer._sync import name_of

T = TypeVar("T")

MAX_PROCS = 4096  # as in src/core/runtime.h
MAX_THREADS = 2**31 - 1

_core.configure(_hooks)
os.register_at_fork(after_in_child=_core.gil_as_usual)
_num_cpu = _core.num_cpu()  # fixed at start-up, as in Go
_wanted_procs = 0  # by gomaxprocs() outside a run
procs_watchers: set[Callable[[], None]] = set()  # called when gomaxprocs() has changed it in a run
_nodes_known = False


def _watch_collections() -> None:
    """Leave goroutines alone in a collection, and in what others do when one begins or ends."""
    ours = _core.collecting
    if gc.callbacks[:1] != [ours] or gc.callbacks[-1] != ours:
        gc.callbacks[:] = [ours, *(other for other in gc.callbacks if other != ours), ours]


@functools.cache
def _find_quota() -> None:
    _core.set_quota_files(*_cgroup.quota_files())


def _find_nodes() -> None:
    """Once, by the first run."""
    global _nodes_known
    _nodes_known = _nodes_known or _core.set_nodes(_numa.nodes(), None)


def _check_affinity(affinity: object) -> None:
    if affinity is not None and not isinstance(affinity, bool):
        raise TypeError(f"affinity must be a bool, not {affinity!r}")


def _environment_procs() -> int:
    """GOMAXPROCS if it is a positive integer; anything else is ignored, as in Go. 0: not set."""
    text = os.environ.get("GOMAXPROCS", "").strip()
    return min(int(text), MAX_PROCS) if text.isascii() and text.isdigit() else 0


def _default_procs() -> int:
    _find_quota()
    return _core.default_procs()


def _check_int(n: object, what: str, least: int, most: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"{what} must be an int, not {n!r}")
    if not least <= n <= most:
        raise ValueError(f"{what} must be between {least} and {most}, not {n}")
    return n


class _Interrupts:
    """Ctrl-C while a runtime runs on the main thread.

    The first cancels the main goroutine, so that clean-up runs; the second ends the run at once. A
    plain main that does not wait in block() is interrupted where it stands, as any plain program.
    A handler that the user has set is left alone.
    """

    def __init__(self, plain: bool) -> None:
        self.count = 0
        self.plain = plain

    def __call__(self, signum: int, frame: types.FrameType | None) -> None:
        self.count += 1
        main = _core.main_goroutine()
        if self.count == 1 and self.plain and main is not None and _core.current() is main:
            raise KeyboardInterrupt
        if self.count == 1 and main is not None and main.cancel("KeyboardInterrupt"):
            return
        _core.abort()
        raise KeyboardInterrupt

    def __enter__(self) -> "_Interrupts":
        self.installed = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self.installed:
            signal.signal(signal.SIGINT, self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.installed and signal.getsignal(signal.SIGINT) is self:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif self.installed:
            _core.handler_gone(signal.SIGINT, self, signal.default_int_handler)


@contextlib.contextmanager
def _signal_pipe() -> Iterator[tuple[int, int, bool]]:
    """A pipe that tells the runtime of every signal, so that handlers run while all threads sleep.

    Somebody else's wake-up descriptor is left alone (False); the runtime then looks now and then.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    installed = False
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        installed = before == -1
        if not installed:
            signal.set_wakeup_fd(before)
    try:
        yield reader, writer, installed or not is_main
    finally:
        if installed and (now := signal.set_wakeup_fd(-1)) != writer:
            signal.set_wakeup_fd(now)  # main has installed one of its own
        os.close(reader)
        os.close(writer)


def _as_coroutine(
    main: Callable[..., Any] | Coroutine[Any, Any, T], args: tuple[Any, ...]
) -> Coroutine[Any, Any, T] | tuple[Callable[..., Any], tuple[Any, ...], None]:
    if isinstance(main, Coroutine):
        if args:
            raise TypeError(f"run(coroutine) takes no arguments: {main!r} has its own")
        return main
    if _hooks.is_async(main):
        coro: Coroutine[Any, Any, T] = main(*args)
        return coro
    if not callable(main):
        raise TypeError(f"run() needs a function or a coroutine object, not {main!r}")
    if inspect.isgeneratorfunction(main) or inspect.isasyncgenfunction(main):
        raise TypeError(f"run() cannot run the generator function {main!r}")
    return (main, args, None)


@overload
def run(
    main: Coroutine[Any, Any, T], *, procs: int | None = None, affinity: bool | None = None
) -> T: ...
@overload
def run(
    main: Callable[..., Coroutine[Any, Any, T]],
    *args: Any,
    procs: int | None = None,
    affinity: bool | None = None,
) -> T: ...
@overload
def run(
    main: Callable[..., T], *args: Any, procs: int | None = None, affinity: bool | None = None
) -> T: ...
def run(
    main: Callable[..., Any] | Coroutine[Any, Any, Any],
    *args: Any,
    procs: int | None = None,
    affinity: bool | None = None,
) -> Any:
    """Run `main` as goroutine 1 on this thread, and return its result or raise its exception.

    When it ends, every other goroutine is cancelled, its `finally` blocks run, and the threads of
    the runtime end, before run() returns. `procs` is GOMAXPROCS for this run. With `affinity`, on a
    machine of several NUMA nodes, threads keep to the node of the P they hold (see docs/numa.md);
    the default is what GOFERDEBUG=affinity=1 says.

    >>> async def main(name):
    ...     await gofer.sleep(0.1)
    ...     return f"hello {name}"
    >>> gofer.run(main, "gopher", procs=2)
    'hello gopher'
    """
    if procs is not None:
        _check_int(procs, "procs", 1, MAX_PROCS)
    _check_affinity(affinity)
    if _core.running():
        _core.run(None, None, 0, False, -1, -1, False)  # raises, saying which case it is
    chosen = procs or _wanted_procs or _environment_procs()
    _find_nodes()
    _watch_collections()
    debug = _debug.options()
    _watched.run_begins(debug)
    _core.set_affinity(bool(debug.get("affinity") if affinity is None else affinity))
    coro = _as_coroutine(main, args)
    _core.set_async_preempt(not debug.get("asyncpreemptoff"))
    _core.set_stall(debug.get("stallwarn", _stall.after_ms))
    _core.set_schedtrace(debug.get("schedtrace", 0), bool(debug.get("scheddetail")))
    interrupts = _Interrupts(plain=isinstance(coro, tuple))
    try:
        with (
            interrupts,
            _asyncgen.hooks_restored(),
            _future.futures_awaitable(),
            signals.contexts_stopped(),
            _signal_pipe() as pipe,
        ):
            name = name_of(main) if isinstance(coro, tuple) else None
            return _core.run(coro, name, chosen or _default_procs(), not chosen, *pipe)
    except BaseException as exc:
        if inspect.iscoroutine(coro) and inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
            coro.close()  # Ctrl-C came before it could begin
        trace._crashed()
        if not isinstance(exc, Cancelled):
            raise
        if interrupts.count and exc.reason == "KeyboardInterrupt":
            raise KeyboardInterrupt from None
        raise


def current() -> _core.Goroutine[Any]:
    """The goroutine that calls this.

    >>> gofer.current().id
    1
    """
    g = _core.current()
    if g is None:
        raise RuntimeError("current() outside a goroutine: start one with gofer.run()")
    return g


class lock_os_thread:  # used as a function, and with `with`
    """Keep this goroutine on its thread, and everybody else off it, until unlock_os_thread().

    Nests. Also for a block: `with lock_os_thread():`. A goroutine that ends while locked ends its
    thread.

    >>> with gofer.lock_os_thread():
    ...     library.use_thread_local_state()
    """

    __slots__ = ()

    def __init__(self) -> None:
        _core.lock_os_thread()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _core.unlock_os_thread()

    def __repr__(self) -> str:
        return "<lock_os_thread()>"


def unlock_os_thread() -> None:
    """Undo one lock_os_thread().

    >>> lock = gofer.lock_os_thread()
    >>> gofer.unlock_os_thread()
    """
    _core.unlock_os_thread()


class blocking:  # reads as a statement
    """Say that the block blocks: others get this goroutine's P at once, not milliseconds later.

    Nests. RuntimeError outside a goroutine.

    >>> with gofer.blocking():
    ...     rows = connection.execute(query)
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _core.enter_blocking()

    def __exit__(self, *exc: object) -> None:
        _core.exit_blocking()

    def __repr__(self) -> str:
        return "<blocking()>"


def goexit() -> NoReturn:
    """End the goroutine that calls this, running its `finally` blocks.

    Others go on. If main does it, they run to their end, and then run() raises Deadlock, as no
    goroutine is left that could end the program.

    >>> async def worker(job):
    ...     if job is None:
    ...         gofer.goexit()
    >>> gofer.go(worker, None)
    """
    current()
    raise GoExit


def num_cpu() -> int:
    """The CPUs this process was allowed to use when it started.

    >>> limit = 2 * gofer.num_cpu()
    """
    return _num_cpu


def gomaxprocs(n: int = 0) -> int:
    """Set how many goroutines may run Python code at once; return what it was before.

    0 only asks. Inside a run it takes effect at once, for that run; outside, for the runs to come.
    The default is the environment's GOMAXPROCS, else the CPUs allowed by affinity and cgroup quota,
    followed while running; 1 with the GIL.

    >>> before = gofer.gomaxprocs(4)
    >>> gofer.gomaxprocs()
    4
    """
    global _wanted_procs
    _check_int(n, "gomaxprocs", 0, MAX_PROCS)
    if _core.running():
        procs = _core.gomaxprocs(n)
        if n not in (0, procs):
            for changed in list(procs_watchers):
                changed()
        return procs
    before = _wanted_procs or _environment_procs() or _default_procs()
    _wanted_procs = n or _wanted_procs
    return before


def set_max_threads(n: int) -> int:
    """Limit the threads of the runtime; return the former limit. The default is 10000.

    A program that needs more ends: run() raises RuntimeError.

    >>> before = gofer.set_max_threads(100)
    >>> gofer.set_max_threads(before)
    100
    """
    return _core.set_max_threads(_check_int(n, "the limit", 1, MAX_THREADS))
