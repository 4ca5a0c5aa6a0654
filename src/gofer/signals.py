"""Signals as values on a channel.

>>> stop = signals.notify(signal.SIGTERM, signal.SIGINT)
>>> os.kill(os.getpid(), signal.SIGTERM)
>>> await stop.recv()
<Signals.SIGTERM: 15>
>>> signals.stop(stop)
"""

import contextlib
import signal
import threading
import types
from collections.abc import Iterator
from typing import SupportsIndex

from gofer import _core, context
from gofer._core import Chan, Context, RecvChan
from gofer._errors import ChannelClosed, WouldBlock

__all__ = ["notify", "notify_context", "stop"]

_of_contexts: set[RecvChan[signal.Signals]] = set()  # those that nobody but us can stop


def _deliver(signum: int, frame: types.FrameType | None) -> None:
    for ch in _core.listeners(signum):
        try:
            ch.send_nowait(signal.Signals(signum))
        except (WouldBlock, ChannelClosed):  # one is waiting to be received: they coalesce
            continue


def _main_thread() -> int:
    """Python lets only that one change handlers."""
    ident = threading.main_thread().ident
    assert ident is not None
    return ident


def _check(signals: tuple[int, ...]) -> list[signal.Signals]:
    if not signals:
        raise ValueError("name at least one signal, for example signal.SIGTERM")
    for s in signals:
        if isinstance(s, bool) or not isinstance(s, SupportsIndex):
            raise TypeError(f"a signal is a number, for example signal.SIGTERM, not {s!r}")
    wanted = list(dict.fromkeys(signal.Signals(s) for s in signals))
    for s in wanted:
        if s in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"{s.name} cannot be caught")
    return wanted


def notify(*signals: int, capacity: int = 1) -> RecvChan[signal.Signals]:
    """A channel that gets every one of these signals that the process gets.

    Delivery never waits: when the channel is full, the signal is dropped. Until stop() the signals
    do nothing else. On another thread than Python's main thread this waits until that one is done
    with what it calls, since Python changes handlers only there.

    >>> ch = signals.notify(signal.SIGHUP)
    >>> signals.stop(ch)
    """
    wanted = _check(signals)
    ch: Chan[signal.Signals] = Chan(capacity)
    _core.listen(tuple(wanted), ch.receiver, ch, _deliver, _main_thread())
    return ch.receiver


def stop(ch: RecvChan[signal.Signals]) -> None:
    """No more signals on this channel. What nobody listens to any more does what it did before.

    >>> ch = signals.notify(signal.SIGHUP)
    >>> signals.stop(ch)
    """
    _core.unlisten(ch, _deliver, _main_thread())


def notify_context(*signals: int, parent: Context | None = None) -> Context:
    """A context that is cancelled by the first of these signals.

    Its cause then names the signal. Until the context is over, however it ends, the signals do
    nothing else.

    >>> ctx = signals.notify_context(signal.SIGTERM)
    >>> async with ctx:
    ...     await serve()
    """
    _check(signals)
    ctx = context.with_cancel(parent)
    ch = notify(*signals)
    _of_contexts.add(ch)

    async def watch() -> None:
        try:
            async with context.without_cancel():  # the caller's contexts need not be those of `ctx`
                chosen = await _core.select(ch.recv(), ctx.done.recv())
            if chosen.index == 0:
                ctx.cancel(f"{chosen.value.name} signal received")
        finally:
            stop(ch)
            _of_contexts.discard(ch)

    _core.go(watch, name="signals.notify_context")
    return ctx


# --- For the runtime ------------------------------------------------------------------------------


def awaited() -> bool:
    """Whether a signal could still wake a goroutine: then there is no deadlock."""
    return _core.listening()


@contextlib.contextmanager
def contexts_stopped() -> Iterator[None]:
    """For the thread in run(): what notify_context() listens to, it listens to no longer."""
    try:
        yield
    finally:
        while _of_contexts:
            stop(_of_contexts.pop())
