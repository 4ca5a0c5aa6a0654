"""GOFERDEBUG: a comma-separated list of name=value, as GODEBUG is for Go."""

import os
from collections.abc import Callable

# What is to be done before the first run(), by `gofer run`.
before_first_run: list[Callable[[], None]] = []
# Python threads that serve who looks at the program, and never wake a goroutine.
service_threads: set[int] = set()


def options() -> dict[str, str]:
    """What the environment variable says now; an item without a value has the value "1".

    >>> os.environ["GOFERDEBUG"] = "schedtrace=1000,asyncpreemptoff=1"
    >>> options()
    {'schedtrace': '1000', 'asyncpreemptoff': '1'}
    """
    items = (item.partition("=") for item in os.environ.get("GOFERDEBUG", "").split(",") if item)
    return {name.strip(): value.strip() or "1" for name, _, value in items}


def run_begins(options: dict[str, str]) -> None:
    """A run() begins, with these options."""
    while before_first_run:
        before_first_run.pop(0)()
    if options.get("socket", "0") != "0":
        from gofer import _debugsocket  # which most programs do not need

        _debugsocket.serve()
