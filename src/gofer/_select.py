"""What select() gives."""

from typing import Any, NamedTuple


class Selected(NamedTuple):
    """Which case of a select() was done, and what it gave.

    >>> match await select(a.recv(), b.recv(), default=True):
    ...     case Selected(0, value, True):
    ...         print("a sent", value)
    ...     case Selected(-1):
    ...         print("neither was ready")
    a sent 1
    """

    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    value: Any
    ok: bool


Selected.__module__ = "gofer"
