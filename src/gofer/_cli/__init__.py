"""The command `gofer`. A file for each of its commands; what they share is in options and text."""

import os
import sys

from gofer._cli.options import parser
from gofer._cli.text import UserError

__all__ = ["main"]


def _say(command: str, what: str) -> None:
    print(f"gofer {command}: {what}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    built = parser()
    options = built.parse_args(arguments)
    if options.command is None:
        built.print_help(sys.stderr)
        return 2
    try:
        then = options.action(options)
        sys.stdout.flush()
    except UserError as exc:
        _say(options.command, str(exc))
        return exc.status
    except BrokenPipeError:  # as in `gofer dump 1234 | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the flush at the end fails once more
        return 1
    except KeyboardInterrupt:
        return 130
    # The user's program, outside all this: what it raises is none of our business.
    return int(then() if callable(then) else then)
