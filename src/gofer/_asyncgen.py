"""Async generators that are not run to their end.

Python asks the framework to close them: when one is collected, and when the framework itself ends.
Each thread of the runtime has these hooks. They may be called on any of them, at any time, also by
the collector in the middle of each other: so no lock, only single operations on one dict.
"""

import contextlib
import functools
import sys
import weakref
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from gofer import _core

AsyncGen = AsyncGenerator[Any, Any]

_alive: dict[int, weakref.ref[AsyncGen]] = {}


def _forget(key: int, ref: weakref.ref[AsyncGen]) -> None:
    _alive.pop(key, None)


def _first_iteration(agen: AsyncGen) -> None:
    key = id(agen)
    _alive[key] = weakref.ref(agen, functools.partial(_forget, key))


async def _close(agen: AsyncGen) -> None:
    await agen.aclose()


def _finalize(agen: AsyncGen) -> None:
    _alive.pop(id(agen), None)
    if _core.running():
        _core.go_late(_close(agen))


def install() -> None:
    """Set the hooks on this thread."""
    sys.set_asyncgen_hooks(firstiter=_first_iteration, finalizer=_finalize)


@contextlib.contextmanager
def hooks_restored() -> Iterator[None]:
    """For the thread in run(), which may belong to another framework afterwards."""
    before = sys.get_asyncgen_hooks()
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)


def close_all() -> bool:
    """At the end of a run: start to close all that are left. False: there are none."""
    started = False
    while _alive:
        try:
            _, ref = _alive.popitem()
        except KeyError:  # the last one went meanwhile
            break
        if (agen := ref()) is not None:
            _core.go_late(_close(agen))
            started = True
    return started
