"""Waiting for futures of concurrent.futures: see also src/core/future.c.

A future is completed by a thread that knows nothing of goroutines. What reaches us is a callback,
in that thread. It closes a channel, and whoever waits for the future waits for that: no thread for
a wait, no polling, any number of waiters.

`await future` needs an `__await__` on the class: Python looks nowhere else. concurrent.futures has
none, so the first run() adds it, to Future itself and thereby to every class derived from it. The
alternative, a function alone, is there too (wait_future, for typed code); but a future is what
executors give, and `await` is how goroutines wait. What that changes for others is little:

- It is added once, by run(), not by `import gofer`, and not if Future has one already.
- Until now `await future` was a TypeError everywhere, so no working program depends on it.
- Code that asks inspect.isawaitable() before it awaits what it was given (as asyncio.gather() does)
  now takes a future for awaitable. So that it can await it, too, the method does under an asyncio
  loop what asyncio.wrap_future() does. asyncio.isfuture() and wrap_future() are as before.
"""

import contextlib
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from gofer import _core

if TYPE_CHECKING:  # it costs an import of logging, which a program that never runs us need not pay
    from concurrent.futures import Executor, Future

T = TypeVar("T")

_CHANNEL = "_gofer_done"  # the attribute of a future that holds its channel

_done_already: _core.Chan[None] = _core.Chan()
_done_already.close()

_outer_loop: Any = None  # the asyncio loop, if any, in whose thread run() was called


def _closed_by(future: "Future[Any]") -> _core.Chan[None]:
    channel: _core.Chan[None] = _core.Chan()
    future.add_done_callback(lambda _: channel.close())
    return channel


def future_started(future: "Future[Any]") -> _core.Chan[None]:
    """A channel that is closed when the future is done.

    The future keeps it, since a callback cannot be taken back: one that is waited for again and
    again, each time for a while, shall not collect them.
    """
    if future.done():
        return _done_already
    attributes = future.__dict__
    channel: _core.Chan[None] | None = attributes.get(_CHANNEL)
    if channel is None:  # with its callback, before others see it
        channel = attributes.setdefault(_CHANNEL, _closed_by(future))
    return channel


def call_submitted(
    executor: "Executor", fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> "tuple[Future[T], _core.Chan[None]]":
    """The call's future, and a channel that is closed when it is done."""
    future = executor.submit(fn, *args, **kwargs)
    if not is_future(future):
        raise TypeError(
            f"submit() of {executor!r} gave no concurrent.futures.Future but {future!r}"
        )
    try:
        return future, _closed_by(future)
    except BaseException:
        future.cancel()
        raise


def is_future(obj: object) -> bool:
    from concurrent.futures import Future

    return isinstance(obj, Future)


def as_case(obj: Any) -> "_core.Operation[Any] | None":
    """What a select() waits for if it is given `obj`."""
    return _core.future_op(obj, None) if is_future(obj) else None


def wait_future(future: "Future[T]") -> "_core.Operation[T]":
    """Operation: the result of a concurrent.futures.Future, or its exception.

    `await future` does the same. Any number of goroutines may wait for one future; cancelling one
    that waits does not cancel the future, which belongs to whoever submitted the call.

    >>> future = executor.submit(pow, 2, 10)
    >>> await wait_future(future)
    1024
    """
    if not is_future(future):
        raise TypeError(f"wait_future() needs a concurrent.futures.Future, not {future!r}")
    operation: _core.Operation[T] = _core.future_op(future, None)
    return operation


def _running_loop() -> Any:
    events = sys.modules.get("asyncio.events")
    return events._get_running_loop() if events is not None else None


def _await(self: "Future[T]") -> Generator[Any, Any, T]:
    """Wait for the future: in a goroutine of gofer, or in a task of asyncio."""
    loop = _running_loop()
    if loop is not None and loop is not _outer_loop:
        import asyncio

        return asyncio.wrap_future(self, loop=loop).__await__()
    operation: _core.Operation[T] = _core.future_op(self, None)
    return operation.__await__()


@contextlib.contextmanager
def futures_awaitable() -> Iterator[None]:
    """For a run. Only which loop is the outer one goes with it."""
    global _outer_loop
    from concurrent.futures import Future

    if not hasattr(Future, "__await__"):
        setattr(Future, "__await__", _await)  # noqa: B010  # mypy knows that there is none
        Awaitable.register(Future)  # isinstance() forgets what it has said of it before
    _outer_loop = _running_loop()
    try:
        yield
    finally:
        _outer_loop = None


wait_future.__module__ = "gofer"
