"""offload(): calls that another process, interpreter or machine carries out."""

import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gofer import _core
from gofer._hooks import is_async

if TYPE_CHECKING:
    from concurrent.futures import Executor

P = ParamSpec("P")
T = TypeVar("T")


def offload(
    executor: "Executor", fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> "_core.Operation[T]":
    """Operation: have an executor call `fn(*args, **kwargs)`; its result, or its exception.

    Any concurrent.futures.Executor will do: of processes, interpreters or threads, Dask's
    `client.get_executor()`. Nothing is submitted before it is awaited. If whoever waits is
    cancelled, or out of time, so is the call: one that has not begun never will, of one that runs
    nobody will hear. As a case of select() it is cancelled if another case comes first.

    >>> async with timeout(60):
    ...     digest = await offload(executor, slow_hash, data)
    """
    from concurrent.futures import Executor

    if not isinstance(executor, Executor):
        raise TypeError(_no_executor(executor))
    if not callable(fn):
        raise TypeError(f"offload() needs a function to call, not {fn!r}")
    if _is_async(fn):
        raise TypeError(
            f"offload() is for plain functions: {fn!r} is async, start it with gofer.go()"
        )
    operation: _core.Operation[T] = _core.future_op(None, (executor, fn, args, kwargs))
    return operation


def _is_async(fn: Callable[..., Any]) -> bool:
    if type(fn) is types.FunctionType:  # nearly always, and much faster
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
    return is_async(fn)


def _no_executor(obj: Any) -> str:
    from concurrent.futures import Executor

    text = f"offload() needs a concurrent.futures.Executor, not {obj!r}"
    if obj is None:
        return f"{text}: there is no default one; gofer.go(fn) runs a plain function in a goroutine"
    if isinstance(obj, type):
        return f"{text}: make one" if issubclass(obj, Executor) else text
    if callable(getattr(obj, "get_executor", None)):
        return f"{text}: use its get_executor()"
    if callable(obj):
        return f"{text}: the executor comes before the function"
    return text


offload.__module__ = "gofer"
