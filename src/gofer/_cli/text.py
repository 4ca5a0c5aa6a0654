"""What the commands print, and how."""

import io
import os
import sys
from typing import Any, TextIO


class UserError(Exception):
    """Something the user got wrong: told in a line, without a traceback."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class UsageError(UserError):
    """What was asked for makes no sense."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 2)


class CannotWrite(UserError):
    """Standard output takes no more."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(f"cannot write to standard output: {why(reason)}")
        self.broken_pipe = isinstance(reason, BrokenPipeError)


class Output:
    """Standard output, whose errors cannot be taken for those of other files.

    Where it is closed and Python has None for it, whatever is written fails.
    """

    def __init__(self, stream: TextIO | None) -> None:
        if stream is None:
            unwritable = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stream = io.TextIOWrapper(io.FileIO(unwritable, "w"), "utf-8", write_through=True)
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream's."""
        try:
            return self._stream.write(text)
        except OSError as exc:
            raise CannotWrite(exc) from None

    def flush(self) -> None:
        """As the stream's."""
        try:
            self._stream.flush()
        except OSError as exc:
            raise CannotWrite(exc) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def why(exc: OSError) -> str:
    """The reason alone, without number and file name."""
    return exc.strerror or str(exc)


def printable(text: str, keep: str = "") -> str:
    """A terminal should not obey what a program calls its goroutines."""
    return "".join(ch if ch.isprintable() or ch in keep else repr(ch)[1:-1] for ch in text)


def table(rows: list[tuple[str, ...]], *, left: int = 1) -> list[str]:
    """Columns as wide as they must be; the first `left` of them start at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def can_print(text: str) -> bool:
    """Whether standard output can show these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
