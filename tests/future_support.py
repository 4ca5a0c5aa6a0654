"""Executors whose futures the tests complete, when it suits them."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import gofer
from tests.support import until


class ByHand(Executor):
    """Keeps the futures; the test does with them what it likes."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.calls.append((fn, args, kwargs))
        self.futures.append(future)
        return future

    async def submitted(self, n: int = 1) -> "Future[Any]":
        """Wait until there have been `n` calls; the last one's future."""
        await until(lambda: len(self.futures) >= n, f"call {n}")
        return self.futures[n - 1]


class AtOnce(Executor):
    """Calls the function in submit()."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as exc:
            future.set_exception(exc)
        return future


async def cancelled(g: gofer.Goroutine[Any]) -> bool:
    """Wait for its end; whether it was cancelled."""
    try:
        await g
    except gofer.Cancelled:
        return True
    return False
