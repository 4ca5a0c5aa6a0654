"""The command `gofer`. A file for each of its commands; what they share is in options and text."""

import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

from gofer._cli.options import parser
from gofer._cli.text import CannotWrite, Output, UserError

__all__ = ["main"]


def _say(who: str, what: str) -> None:
    print(f"{who}: {what}", file=sys.stderr)


def _forget_output() -> None:
    """What is left in its buffer goes nowhere, or the flush at the end fails once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _command(arguments: list[str] | None) -> int | Callable[[], Any]:
    built = parser()
    options = built.parse_args(arguments)
    if options.command is None:
        built.print_help(sys.stderr)
        return 2
    try:
        then: int | Callable[[], Any] = options.action(options)
    except CannotWrite:
        raise
    except UserError as exc:
        _say(f"gofer {options.command}", str(exc))
        return exc.status
    except KeyboardInterrupt:
        return 130
    return then


def _checked(arguments: list[str] | None) -> int | Callable[[], Any]:
    """The command, and whether all that it printed could be written."""
    try:
        try:
            return _command(arguments)
        finally:  # --help and --version leave by SystemExit
            sys.stdout.flush()
    except CannotWrite as exc:
        _forget_output()
        if not exc.broken_pipe:  # `gofer dump 1234 | head` has seen enough
            _say("gofer", str(exc))
        return exc.status
    except BrokenPipeError:  # not by way of sys.stdout
        _forget_output()
        return 1


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    stdout: TextIO | None = sys.stdout
    sys.stdout = cast(TextIO, Output(stdout))
    try:
        then = _checked(arguments)
    finally:
        if stdout is None:  # the program that is run finds no descriptor that is not its own
            sys.stdout.close()
        sys.stdout = stdout
    # The user's program, outside all this: what it raises is none of our business.
    return int(then() if callable(then) else then)
