"""Async generators that are not run to their end.

Python asks the framework to close them: when one is collected, and when the framework itself ends.
Each thread of the runtime has these hooks; they may be called on any of them, at any time.
"""

import contextlib
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from gofer import _core

AsyncGen = AsyncGenerator[Any, Any]

_lock = threading.Lock()
_alive: dict[int, weakref.ref[AsyncGen]] = {}


def _first_iteration(agen: AsyncGen) -> None:
    key = id(agen)
    with _lock:
        _alive[key] = weakref.ref(agen)


async def _close(agen: AsyncGen) -> None:
    await agen.aclose()


def _finalize(agen: AsyncGen) -> None:
    # Weak references to it are dead already, but its id is still its own.
    with _lock:
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
    with _lock:
        refs = list(_alive.values())
        _alive.clear()
    agens = [agen for ref in refs if (agen := ref()) is not None]
    for agen in agens:
        _core.go_late(_close(agen))
    return bool(agens)
