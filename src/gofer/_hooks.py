"""What the engine asks of Python: see `Hooks` in src/core/runtime.h."""

import _thread
import functools
import gc
import inspect
import itertools
import linecache
import os
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

from gofer import _asyncgen, _core, _dump, _watched, signals
from gofer._errors import (
    Cancelled,
    ChannelClosed,
    ClosedError,
    Deadlock,
    GoExit,
    GoroutineLeakWarning,
    IncompleteRead,
    LimitExceeded,
    WouldBlock,
)
from gofer._future import as_case, call_submitted, future_started
from gofer._select import Selected
from gofer._stall import stalled

__all__ = [
    "Cancelled",
    "ChannelClosed",
    "ClosedError",
    "Deadlock",
    "GoExit",
    "IncompleteRead",
    "Interrupted",
    "LimitExceeded",
    "Selected",
    "WouldBlock",
    "as_case",
    "as_coroutine",
    "attach_thread",
    "call_submitted",
    "deadlock_text",
    "foreign_await",
    "foreign_threads",
    "frame_and_awaited",
    "future_started",
    "is_async",
    "is_coroutine",
    "last_chance",
    "limited",
    "note_failure",
    "nothing",
    "quit_dump",
    "stack_of",
    "stalled",
    "warn_leak",
]

TIMEOUT = 3  # as in src/core/context.c


class Interrupted(Cancelled):
    """Raised in the thread of a goroutine that does not notice that the run ends: as Cancelled."""

    def __new__(cls, made: Cancelled | None = None) -> Cancelled:  # type: ignore[misc]
        # Python 3.11 calls this once more with what it has made already.
        _core.interrupted()
        return made if made is not None else Cancelled()


# A deadlock of a million goroutines is told by its first ones.
MAX_TOLD = 1000

attach_thread = _asyncgen.install
last_chance = _asyncgen.close_all


def nothing() -> None:
    """Give the interpreter an occasion to raise what it has to."""


def is_coroutine(obj: object) -> bool:
    """Whether `obj`, no plain coroutine, can be run as one (Cython's can, for example)."""
    if isinstance(obj, types.GeneratorType):
        return bool(obj.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return isinstance(obj, Coroutine)


def is_async(fn: object) -> bool:
    """Whether calling `fn`, no plain function, makes a coroutine."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.iscoroutinefunction(fn):
        return True
    return not isinstance(fn, type) and inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


async def as_coroutine(awaitable: Awaitable[Any]) -> Any:
    """Await what is awaitable but no coroutine."""
    return await awaitable


async def limited(awaitable: Awaitable[Any], seconds: float | None) -> Any:
    """Await it so long. None: it may do what it can, but not wait."""
    ctx = _core.context(TIMEOUT, None, seconds, None, None)
    async with ctx:
        # A deadline that has passed would give up before the first try.
        return await (awaitable if seconds is not None else _impatient(awaitable, ctx))
    raise TimeoutError("block() timed out")  # the block swallows a cancel() of its own


# How often it may let others run; then it polls, which is to wait.
TURNS = 100


@types.coroutine
def _impatient(awaitable: Awaitable[Any], ctx: _core.Context) -> Generator[Any, Any, Any]:
    """Await it until it begins to wait; then `ctx` is over."""
    steps: Any = awaitable.__await__()
    go_on = next_step = functools.partial(next, steps)
    for turn in itertools.count():
        try:
            step = go_on()
        except StopIteration as end:
            return end.value
        if turn >= TURNS or _core.waits():
            ctx.cancel()
        try:
            yield step
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:  # what it awaits is no operation: it hears of that
            go_on = functools.partial(steps.throw, error)
        else:
            go_on = next_step


def _frame_of(awaitable: Any) -> types.FrameType | None:
    for attribute in ("cr_frame", "gi_frame", "ag_frame"):
        frame: types.FrameType | None = getattr(awaitable, attribute, None)
        if frame is not None:
            return frame
    return None


def _awaited_by(awaitable: Any) -> Any:
    for attribute in ("cr_await", "gi_yieldfrom", "ag_await"):
        if (inner := getattr(awaitable, attribute, None)) is not None:
            return inner
    if _frame_of(awaitable) is not None or isinstance(awaitable, _core.Goroutine):
        return None
    # The objects behind `async for` and __await__() do not say what they drive, but refer to it.
    for inner in gc.get_referents(awaitable):
        if _frame_of(inner) is not None:
            return inner
    return None


def _stack_of_thread(ident: int) -> traceback.StackSummary:
    """Without what is below the goroutine: the caller of run()."""
    frames: list[tuple[types.FrameType, int]] = []
    frame = sys._current_frames().get(ident)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back  # this look itself, made by that thread
    while frame is not None and frame.f_code is not _run_code():
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return traceback.StackSummary.extract(iter(frames[::-1]))


def _run_code() -> types.CodeType:
    from gofer import _run  # which imports this module

    return _run.run.__code__


def stack_of(coro: Any) -> traceback.StackSummary:
    """The frames of a coroutine and of all that it awaits, outermost first.

    Or of a function that has not been called yet; or of a thread and what block() awaits there.
    """
    if isinstance(coro, tuple):  # the thread of a plain goroutine, and what it blocks on
        ident, awaited = coro
        return traceback.StackSummary([*_stack_of_thread(ident), *stack_of(awaited)])
    if isinstance(coro, types.FunctionType):
        code = coro.__code__
        first = traceback.FrameSummary(code.co_filename, code.co_firstlineno, code.co_name)
        return traceback.StackSummary.from_list([first])
    frames: list[tuple[types.FrameType, int]] = []
    if getattr(coro, "cr_running", False):  # called from within: it is on this thread's stack
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            frames.append((frame, frame.f_lineno))
            frame = None if frame is coro.cr_frame else frame.f_back
        frames.reverse()
        coro = None
    while coro is not None:
        if (frame := _frame_of(coro)) is not None:
            frames.append((frame, frame.f_lineno))
        coro = _awaited_by(coro)
    return traceback.StackSummary.extract(iter(frames))


def frame_and_awaited(awaitable: Any) -> tuple[types.FrameType | None, Any]:
    """One step along a chain of awaits, for what is no coroutine or generator of Python's."""
    return _frame_of(awaitable), _awaited_by(awaitable)


def deadlock_text(goroutines: list[_core.Goroutine[Any]]) -> str:
    """The message of a Deadlock."""
    goroutines.sort(key=lambda g: g.id)
    parts = ["all goroutines are asleep - deadlock!", *_dump.Dump().blocks(goroutines[:MAX_TOLD])]
    if len(goroutines) > MAX_TOLD:
        parts.append(f"... and {len(goroutines) - MAX_TOLD} more goroutines")
    return "\n\n".join(parts)


def quit_dump() -> None:
    """For SIGQUIT, on a thread of its own; the process ends afterwards."""
    texts = ["SIGQUIT: quit"]
    texts += _dump.Dump().blocks(sorted(_core.goroutines(), key=lambda g: g.id))
    data = "\n\n".join(texts).encode(errors="backslashreplace") + b"\n"
    while data:  # not to sys.stderr: somebody may hold its lock for ever
        data = data[os.write(2, data) :]


def note_failure(exc: BaseException, id: int, name: str, created_at: str) -> None:
    """Say in the notes of `exc` whose it is."""
    where = "?"
    tb = exc.__traceback__
    while tb is not None:
        where = f"{tb.tb_frame.f_code.co_filename}:{tb.tb_lineno}"
        tb = tb.tb_next
    exc.add_note(
        f"goroutine {id} ({name}), created at {created_at}, failed at {where}, "
        "and nobody awaited it"
    )


def warn_leak(id: int, name: str, wait_reason: str, created_at: str) -> None:
    """Warn at the line that started it: that is where a reader has to look."""
    filename, _, lineno = created_at.rpartition(":")
    linecache.checkcache(filename)
    warnings.warn_explicit(
        f"goroutine {id} ({name}) leaked: it waits for ever [{wait_reason}]; "
        f"created at {created_at}",
        GoroutineLeakWarning,
        filename,
        int(lineno),
    )


def foreign_threads(main_ident: int) -> bool:
    """Whether a Python thread that is none of ours is alive: it may still wake a goroutine.

    So may a signal that somebody listens to. Threads that Python has started are counted. Others
    show by their Python frames: our own, idle when this is asked, have none but the one in run()
    and the one that runs this. Nor has a thread of a C library, which may complete a future.
    """
    if signals.awaited():
        return True
    # First, because a look at their frames would let locals of other threads live longer than their
    # functions, and the collector free them in another order than Python would have.
    if _thread._count() > len(_watched.service_threads):
        return True
    ours = {main_ident, threading.get_ident()} | _core.m_idents() | _watched.service_threads
    if not sys._current_frames().keys() <= ours:
        return True
    return _core.futures_waiting() > 0 and _native_threads()


def _native_threads() -> bool:
    """Whether this process has threads that are neither ours nor, at the moment, Python's."""
    counters = _core.counters()
    ours = counters["threads"] + counters["helper_threads"] + len(_watched.service_threads)
    return len(os.listdir("/proc/self/task")) > ours


def foreign_await(obj: object) -> TypeError:
    """For a coroutine that awaits what is not ours."""
    try:
        what = "a bare `yield`" if obj is None else repr(obj)
    except Exception:  # whatever the object's own code does wrong
        what = object.__repr__(obj)
    hint = "asyncio's awaitables need an asyncio loop, trio's a trio loop"
    if obj is None:
        hint = "asyncio.sleep(0) does that; await gofer.gosched() to let others run"
    return TypeError(f"a goroutine cannot await {what}: await gofer operations only ({hint})")
