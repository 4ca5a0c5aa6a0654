"""How long work may go on: Go's context and a cancel scope in one.

A context is over when it is cancelled, when its deadline has passed, or when its parent is over.
`async with ctx` binds it to the goroutine and to all goroutines started inside: while it is over,
every operation in there raises Cancelled. At the edge of the block its own deadline becomes a
TimeoutError, its own cancel() ends the block quietly, and what comes from further out goes on.

>>> ctx = context.with_timeout(1.5)
>>> async with ctx:
...     page = await fetch(url)
"""

import math
import time
from collections.abc import Callable, Hashable
from typing import Any

from gofer import _core
from gofer._core import Context

__all__ = [
    "Context",
    "after_func",
    "background",
    "current",
    "shield",
    "with_cancel",
    "with_deadline",
    "with_timeout",
    "with_value",
    "without_cancel",
]

# As in src/core/context.c.
_CANCEL, _DEADLINE, _TIMEOUT, _VALUE, _DETACHED, _SHIELD = range(1, 7)


def background() -> Context:
    """The root of all: never over, without values.

    >>> ctx = context.with_cancel(context.background())
    """
    return _core.background()


def current() -> Context:
    """The innermost context that this goroutine is bound to; background() if there is none.

    >>> context.current().deadline
    """
    return _core.current_context()


def with_cancel(parent: Context | None = None) -> Context:
    """A context that ends when its cancel() is called.

    >>> ctx = context.with_cancel()
    >>> ctx.cancel("enough")
    """
    return _core.context(_CANCEL, parent, None, None, None)


def with_timeout(s: float, parent: Context | None = None) -> Context:
    """A context that ends in `s` seconds.

    >>> async with context.with_timeout(1.5):
    ...     await work()
    """
    if s is None:  # which the engine takes for no limit
        raise TypeError("with_timeout() needs a number of seconds, not None: use with_cancel()")
    return _core.context(_DEADLINE, parent, s, None, None)


def with_deadline(t: float, parent: Context | None = None) -> Context:
    """A context that ends when time.monotonic() is `t`.

    >>> ctx = context.with_deadline(time.monotonic() + 1.5)
    """
    try:
        left = t - time.monotonic()
        finite = math.isfinite(left)
    except TypeError:
        raise TypeError(f"with_deadline() needs a number of seconds, not {t!r}") from None
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError(f"with_deadline() needs a finite number of seconds, not {t!r}")
    return _core.context(_DEADLINE, parent, left, None, None)


def with_value(key: Hashable, value: Any, parent: Context | None = None) -> Context:
    """A context in which `value(key)` is `value`.

    >>> context.with_value("user", "rob").value("user")
    'rob'
    """
    if key is None:
        raise TypeError("the key of a context value must not be None")
    hash(key)  # TypeError if it cannot be a key
    return _core.context(_VALUE, parent, None, key, value)


def without_cancel(parent: Context | None = None) -> Context:
    """A context with the values of its parent, which is not over when that is.

    Inside `async with` of it, or of one made from it, contexts further out raise nothing.

    >>> log = context.without_cancel(request)
    """
    return _core.context(_DETACHED, parent, None, None, None)


def shield() -> Context:
    """A context for clean-up: inside it, contexts further out that are over raise nothing.

    Nor does cancel() of this goroutine, or the end of main, before the block is left: run() waits.
    A second Ctrl-C ends it, and so it does when all goroutines wait for what will never come, or
    for main itself when another has failed.

    >>> async with context.shield():
    ...     await connection.goodbye()
    """
    return _core.context(_SHIELD, None, None, None, None)


def after_func(ctx: Context, fn: Callable[..., object], *args: Any) -> Callable[[], bool]:
    """Call `fn`, plain or async, in a goroutine of its own when `ctx` is over.

    Returns a function that stops it: True, once, if it came in time.

    >>> stop = context.after_func(ctx, connection.close)
    >>> stop()
    True
    """
    if not isinstance(ctx, Context):
        raise TypeError(f"after_func() needs a Context, not {ctx!r}")
    return _core.context_after_func(ctx, fn, args)
