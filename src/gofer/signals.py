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

_lock = threading.RLock()  # a handler may run while this thread holds it
_listeners: dict[int, list[Chan[signal.Signals]]] = {}
_before: dict[int, Any] = {}  # the handlers that were there
_of_contexts: set[RecvChan[signal.Signals]] = set()  # those that nobody but us can stop


def _deliver(signum: int, frame: types.FrameType | None) -> None:
    for ch in list(_listeners.get(signum, ())):
        try:
            ch.send_nowait(signal.Signals(signum))
        except (WouldBlock, ChannelClosed):  # one is waiting to be received: they coalesce
            continue


def _on_main_thread(fn: Callable[[], None]) -> None:
    """Python lets only the main thread change handlers."""
    if threading.current_thread() is threading.main_thread():
        fn()
    else:
        ident = threading.main_thread().ident
        assert ident is not None
        _core.call_on_main_thread(fn, ident)


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
        with _lock:
            for s in wanted:
                if s not in _before:
                    _before[s] = signal.signal(s, _deliver)
                _listeners.setdefault(s, []).append(ch)

    _on_main_thread(install)
    return ch.receiver


def stop(ch: RecvChan[signal.Signals]) -> None:
    """No more signals on this channel. What nobody listens to any more does what it did before.

    >>> ch = signals.notify(signal.SIGHUP)
    >>> signals.stop(ch)
    """

    def remove() -> None:
        with _lock:
            for s, channels in list(_listeners.items()):
                channels[:] = [c for c in channels if c.receiver != ch]
                if not channels:
                    del _listeners[s]
                    signal.signal(s, _before.pop(s))
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
    return bool(_listeners)


@contextlib.contextmanager
def contexts_stopped() -> Iterator[None]:
    """For the thread in run(): what notify_context() listens to, it listens to no longer."""
    try:
        yield
    finally:
        while _of_contexts:
            stop(_of_contexts.pop())
