"""Timers. All times are those of time.monotonic(), in seconds."""

from collections.abc import Callable
from typing import Any

from gofer import _core
from gofer.context import _TIMEOUT


class Timer:
    """A channel that gets one value, the time, when the timer is due.

    The rules are those of Go 1.23: after stop() or reset() nothing from before can be received, and
    a timer that nobody refers to any more is collected. No value is buffered: len(timer.c) is 0.

    >>> timer = Timer(0.1)
    >>> now = await timer.c.recv()
    """

    __slots__ = ("_c", "_impl")

    _impl: "_core.TimeChan | _core.FuncTimer"
    _c: "_core.RecvChan[float]"

    def __init__(self, s: float) -> None:
        self._impl = _core.timechan("Timer()", s, False)
        self._c = self._impl.receiver()

    @property
    def c(self) -> "_core.RecvChan[float]":
        """The channel that gets the time when it is due. None of an after_func(), as in Go.

        >>> now = await Timer(0.1).c.recv()
        """
        return self._c

    def stop(self) -> bool:
        """Stop it. True if it was still to come, or was not received.

        >>> timer.stop()
        True
        """
        return self._impl.stop()

    def reset(self, s: float) -> bool:
        """Start it anew. True if it was still to come, or was not received.

        >>> timer.reset(2)
        True
        """
        return self._impl.reset(s)

    def __repr__(self) -> str:
        return f"<Timer {self._impl.state()} at {id(self):#x}>"


def after(s: float) -> "_core.RecvChan[float]":
    """A channel that gets the time in `s` seconds.

    >>> first = await select(ch.recv(), after(1.5).recv())
    """
    return _core.timechan("after()", s, False).receiver()


def after_func(s: float, fn: Callable[..., object], *args: Any) -> Timer:
    """Call `fn`, plain or async, in a goroutine of its own in `s` seconds.

    stop() of the timer tells whether it came in time; its `c` is None.

    >>> timer = after_func(1.5, print, "late")
    >>> timer.stop()
    True
    """
    timer = Timer.__new__(Timer)
    timer._impl = _core.functimer(s, fn, args)
    timer._c = None  # type: ignore[assignment]
    return timer


class Ticker:
    """A channel, `c`, that gets the time every `s` seconds.

    It keeps its phase. Of several ticks that nobody received in time, one is left.

    >>> ticker = Ticker(0.1)
    >>> async for now in ticker:
    ...     break  # or do something ten times a second
    """

    __slots__ = ("_c", "_impl")

    def __init__(self, s: float) -> None:
        self._impl = _core.timechan("Ticker()", s, True)
        self._c: _core.RecvChan[float] = self._impl.receiver()

    @property
    def c(self) -> "_core.RecvChan[float]":
        """The channel that gets the time with every tick.

        >>> now = await Ticker(0.1).c.recv()
        """
        return self._c

    def stop(self) -> None:
        """No more ticks. The channel is not closed: who waits goes on waiting.

        >>> ticker.stop()
        """
        self._impl.stop()

    def reset(self, s: float) -> None:
        """Tick every `s` seconds from now on.

        >>> ticker.reset(0.5)
        """
        self._impl.reset(s)

    def __aiter__(self) -> "_core.RecvChan[float]":
        return self._c

    def __repr__(self) -> str:
        return f"<Ticker {self._impl.state()} at {id(self):#x}>"


def timeout(s: float | None) -> _core.Context:
    """A block that may take `s` seconds: then its operations are given up; TimeoutError.

    None: no limit. What the block has started goes on after it.

    >>> async with timeout(1.5):
    ...     page = await fetch(url)
    """
    return _core.context(_TIMEOUT, None, s, None, None)


for _object in (Timer, Ticker, after, after_func, timeout):
    _object.__module__ = "gofer"
del _object
