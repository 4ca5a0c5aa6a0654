"""Goroutines whose code runs for long without an operation: who hears of them."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gofer import _core, _dump


@dataclass(frozen=True, slots=True)
class Stall:
    """A goroutine whose code has run, or sat in a call, for long without an await.

    >>> runtime.on_stall(lambda stall: print(stall.goroutine.name, stall.file, stall.line))
    >>> runtime.on_stall(None)
    """

    goroutine: _core.Goroutine[Any]
    seconds: float
    file: str | None
    """Where it is: None if it has gone on meanwhile."""
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        g = self.goroutine
        where = f", at {self.file}:{self.line} in {self.function}" if self.file else ""
        source = f": {self.source}" if self.source else ""
        return (
            f"goroutine {g.id} ({g.name}) has been running for {self.seconds * 1000:.0f} ms "
            f"without an await{where}{source}"
        )


callback: Callable[[Stall], object] | None = None
after_ms = 0


def stalled(g: _core.Goroutine[Any], seconds: float, stretch: int) -> None:
    """Called by the engine, on a thread of its own."""
    dump = _dump.Dump()
    key = _core.look_at_threads(dump.known).get(g.id)
    places = dump.known[key] if key and _core.stretch(g.id) == stretch else ()
    stall = Stall(g, seconds, None, 0, "", "")
    if places:
        code, line = places[0]
        stall = Stall(g, seconds, code.co_filename, line, code.co_qualname, dump.source(*places[0]))
    if callback is not None:
        callback(stall)
        return
    with contextlib.suppress(OSError):  # nobody is there to read it
        os.write(2, f"gofer: {stall}\n".encode(errors="backslashreplace"))
