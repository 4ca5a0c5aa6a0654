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
from collections.abc import Callable, Iterator
from typing import Any

from gofer import _core, context
from gofer._core import Chan, Context, RecvChan
from gofer._errors import ChannelClosed, WouldBlock

__all__ = ["notify", "notify_context", "stop"]

# All of this is the main thread's. Handlers of the program's own run there at any boundary and may
# call notify() or stop(): each step below holds if they do.
_listeners: dict[int, dict[RecvChan[signal.Signals], Chan[signal.Signals]]] = {}
_before: dict[int, Any] = {}  # the handlers that were there when they began to listen
_of_contexts: set[RecvChan[signal.Signals]] = set()  # those that nobody but us can stop


def _deliver(signum: int, frame: types.FrameType | None) -> None:
    for ch in list(_listeners[signum].values()):
        try:
            ch.send_nowait(signal.Signals(signum))
        except (WouldBlock, ChannelClosed):  # one is waiting to be received: they coalesce
            continue


def _on_main_thread(fn: Callable[[], None]) -> None:
    """Python lets only the main thread change handlers."""
    ident = threading.main_thread().ident
    assert ident is not None
    _core.call_on_main_thread(fn, ident)


def _follow(signum: int) -> None:
    """Handle this signal exactly as long as somebody listens."""
    while bool(_listeners[signum]) != (signal.getsignal(signum) is _deliver):
        if not _listeners[signum]:
            signal.signal(signum, _before[signum])
        elif (handler := signal.signal(signum, _deliver)) is not _deliver:
            _before[signum] = handler


def _check(signals: tuple[int, ...]) -> list[signal.Signals]:
    if not signals:
        raise ValueError("name at least one signal, for example signal.SIGTERM")
    wanted = list(dict.fromkeys(signal.Signals(s) for s in signals))
    for s in wanted:
        if s in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"{s.name} cannot be caught")
    return wanted


def notify(*signals: int, capacity: int = 1) -> RecvChan[signal.Signals]:
    """A channel that gets every one of these signals that the process gets.

    Delivery never waits: when the channel is full, the signal is dropped. Until stop() the signals
    do nothing else.

    >>> ch = signals.notify(signal.SIGHUP)
    >>> signals.stop(ch)
    """
    wanted = _check(signals)
    ch: Chan[signal.Signals] = Chan(capacity)

    def install() -> None:
        for s in wanted:
            _listeners.setdefault(s, {})[ch.receiver] = ch
            _follow(s)

    _on_main_thread(install)
    return ch.receiver


def stop(ch: RecvChan[signal.Signals]) -> None:
    """No more signals on this channel. What nobody listens to any more does what it did before.

    >>> ch = signals.notify(signal.SIGHUP)
    >>> signals.stop(ch)
    """

    def remove() -> None:
        for s, channels in list(_listeners.items()):
            if channels.pop(ch, None) is not None:
                _follow(s)
        _core.quit_watch()  # if SIGQUIT was one of them

    _on_main_thread(remove)


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
            async with context.shield():  # the contexts of the caller need not be those of `ctx`
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
    return any(_listeners.values())


@contextlib.contextmanager
def contexts_stopped() -> Iterator[None]:
    """For the thread in run(): what notify_context() listens to, it listens to no longer."""
    try:
        yield
    finally:
        while _of_contexts:
            stop(_of_contexts.pop())
