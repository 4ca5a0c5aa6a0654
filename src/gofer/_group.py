"""Structured concurrency: no goroutine outlives the block that started it."""

import types
from collections.abc import Callable, Coroutine
from typing import Any, TypeGuard, TypeVar, overload

from gofer import _core, context
from gofer._errors import Cancelled, GoExit
from gofer._hooks import is_async
from gofer._sync import WaitGroup, _call, go_wrapped, name_of

T = TypeVar("T")


def _is_failure(exc: BaseException | None) -> TypeGuard[BaseException]:
    return exc is not None and not isinstance(exc, (Cancelled, GoExit))


class Group:
    """Goroutines that end together, and whose failures nobody can miss.

    The block waits for all of them. The first failure, of a goroutine or of the block itself,
    cancels the others; all failures are raised as an ExceptionGroup. `limit` bounds how many run at
    once. With `collapse`, a single failure is raised as it is.

    >>> async with Group(limit=10) as group:
    ...     pages = [group.go(fetch, url) for url in urls]
    >>> [await page for page in pages]
    ['a page', 'a page']
    """

    def __init__(self, limit: int | None = None, *, collapse: bool = False) -> None:
        if limit is not None:
            if isinstance(limit, bool) or not isinstance(limit, int):
                raise TypeError(f"the limit of a Group must be an int, not {limit!r}")
            if limit < 1:
                raise ValueError(f"the limit of a Group must be at least 1, not {limit}")
        self._permits = _core.Semaphore(limit) if limit is not None else None
        self._collapse = collapse
        self._running = WaitGroup()
        self._failed: list[_core.Goroutine[Any]] = []
        self._context: context.Context | None = None
        self._state = "new"

    @property
    def context(self) -> context.Context:
        """The context of its goroutines.

        >>> group.context.err()
        """
        if self._context is None:
            raise RuntimeError("a Group has no context before its block: async with Group() as g")
        return self._context

    def cancel(self, cause: object = None) -> None:
        """Cancel all its goroutines, and the block. No failure: the block ends quietly.

        >>> group.cancel("enough")
        """
        self.context.cancel(cause)

    @overload
    def go(
        self,
        fn: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        name: str | None = None,
        **kwargs: Any,
    ) -> _core.Goroutine[T]: ...
    @overload
    def go(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, **kwargs: Any
    ) -> _core.Goroutine[T]: ...
    def go(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        **kwargs: Any,
    ) -> _core.Goroutine[Any]:
        """Start a goroutine, plain or async, of this group.

        >>> page = group.go(fetch, url)
        """
        if self._state != "open":
            raise RuntimeError(f"Group.go() outside its block: this group is {self._state}")
        if not callable(fn):
            raise TypeError(f"Group.go() needs a function, not {fn!r}")
        self._running.add()
        try:
            if self._permits is not None and not is_async(fn):
                g = _core.go_here(self._admit, fn, args, kwargs, name=name or name_of(fn))
            else:
                g = go_wrapped(self._member, fn, args, kwargs, name or name_of(fn))
        except BaseException:
            self._running.done()
            raise
        self._running._count(g)
        return g

    def __repr__(self) -> str:
        return f"<Group {self._state}, running: {self._running!r}, at {id(self):#x}>"

    async def _member(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # For good, and without an edge where the end of the context would be quiet: one that is
        # cancelled shall say so. (go() may have been called by one who is not in the context.)
        await self.context.__aenter__()
        if self._permits is None:
            return await self._call(fn, args, kwargs)
        async with self._permits:
            return await self._call(fn, args, kwargs)

    async def _admit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        # A plain function has a thread to itself; while it waits for its turn it needs none.
        await self.context.__aenter__()
        assert self._permits is not None
        await self._permits.acquire()
        return _core.become_plain(lambda: self._admitted(fn, args, kwargs))

    async def _admitted(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        assert self._permits is not None
        try:
            return await self._call(fn, args, kwargs)
        finally:
            self._permits.release()

    async def _call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        me = _core.current()
        assert me is not None
        try:
            await _core.sleep(0)  # it may have been cancelled before it began, or before its turn
            return await _call(fn, *args, **kwargs)
        except (Cancelled, GoExit):
            raise
        except BaseException as exc:  # before the next gets its turn
            self._failed.append(me)
            self.context.cancel(exc)
            raise

    async def _all_ended(self) -> None:
        await self._running.wait()
        await _core.sleep(0)  # an outer context that ended them may be over for us too: say so

    async def _all_ended_at_last(self) -> Cancelled | None:
        """Whatever comes: nobody may outlive the block. Returns a cancel() that came meanwhile."""
        cancelled: Cancelled | None = None
        while True:
            try:
                async with context.without_cancel():  # but a cancel() is heard
                    await self._all_ended()
                return cancelled
            except Cancelled as exc:
                cancelled = exc

    async def __aenter__(self) -> "Group":
        if self._state != "new":
            raise RuntimeError("a Group can be used once: make a new one")
        self._state = "open"
        self._context = context.with_cancel()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: types.TracebackType | None,
    ) -> bool:
        ctx = self.context
        body = exc
        if body is not None and not isinstance(body, GoExit):
            ctx.cancel(body)
        try:
            await self._all_ended()
        except (
            Cancelled
        ) as late:  # by this context or an outer one, or by cancel() of this goroutine
            body = body or late
            ctx.cancel(late)
            later = await self._all_ended_at_last()
            if later is not None and isinstance(body, Cancelled):
                body = later
        self._state = "closed"
        quiet = await ctx.__aexit__(type(body) if body else None, body, tb)
        errors = [e for g in self._failed if (e := g.exception()) is not None]
        if _is_failure(body) and not any(body is e for e in errors):  # it may have awaited that one
            errors.append(body)
        if errors:
            self._failed.clear()
            if self._collapse and len(errors) == 1:
                if errors[0] is exc:
                    return False
                raise errors[0]
            raise BaseExceptionGroup(f"{len(errors)} failed in a Group", errors)
        if body is not None and body is not exc and not quiet:
            raise body
        return bool(quiet)


Group.__module__ = "gofer"
