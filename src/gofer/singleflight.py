"""One call for all who ask the same at the same time.

>>> flight = singleflight.Flight()
>>> page = await flight.do(url, fetch, url)
"""

import functools
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, overload

from gofer import _core, context
from gofer._sync import _call, go_wrapped, name_of

__all__ = ["Flight"]

T = TypeVar("T")


class _Flying:
    """One call: its goroutine, as soon as it has been started."""

    __slots__ = ("goroutine", "started")

    def __init__(self) -> None:
        self.started = _core.Mutex()
        self.goroutine: _core.Goroutine[Any] | None = None


class Flight:
    """Shares the result of a call among all who ask for the same key while it runs.

    >>> flight = Flight()
    >>> one, two = go(flight.do, url, fetch, url), go(flight.do, url, fetch, url)  # one fetch
    >>> await one, await two
    ('a page', 'a page')
    """

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Flying] = {}

    @overload
    async def do(self, key: Hashable, fn: Callable[..., Awaitable[T]], *args: Any) -> T: ...
    @overload
    async def do(self, key: Hashable, fn: Callable[..., T], *args: Any) -> T: ...
    async def do(self, key: Hashable, fn: Callable[..., Any], *args: Any) -> Any:
        """Operation: the result, or the exception, of `fn(*args)`, plain or async.

        It runs in a goroutine of its own: a caller that is cancelled does not stop it for others.

        >>> page = await flight.do(url, fetch, url)
        """
        await _core.sleep(0)  # one who has been cancelled starts nothing
        mine = _Flying()
        mine.started.try_lock()
        while (call := self._calls.setdefault(key, mine)) is not mine:
            async with call.started:  # the one who started it is about to say so
                pass
            g = call.goroutine
            if g is not None and not (g.done() and g.cancelled()):
                return await g
            self._land(key, call)  # it could not be started, or was cut off before it began
        try:
            mine.goroutine = go_wrapped(
                functools.partial(self._fly, key, mine),
                fn,
                args,
                {},
                f"singleflight {name_of(fn)}",
            )
        except BaseException:
            self._land(key, mine)
            raise
        finally:
            mine.started.unlock()
        return await mine.goroutine

    def forget(self, key: Hashable) -> None:
        """Let the next call for the key start anew, although one runs.

        >>> flight.forget(url)
        """
        self._calls.pop(key, None)

    def __repr__(self) -> str:
        return f"<Flight {len(self._calls)} calls at {id(self):#x}>"

    async def _fly(
        self,
        key: Hashable,
        call: _Flying,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            async with context.without_cancel():  # by the one who happened to start it
                return await _call(fn, *args, **kwargs)
        finally:
            self._land(key, call)

    def _land(self, key: Hashable, call: _Flying) -> None:
        if self._calls.get(key) is call:
            self._calls.pop(key, None)
