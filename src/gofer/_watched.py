"""What is done for those who look at the program from outside, when a run() begins.

It is little, since most programs are not looked at: the socket itself is in _debugsocket.py.
"""

from collections.abc import Callable

# What is to be done before the first run(), by `gofer run`.
before_first_run: list[Callable[[], None]] = []
# Python threads that serve who looks at the program, and never wake a goroutine.
service_threads: set[int] = set()


def run_begins(options: dict[str, int]) -> None:
    """A run() begins, with these settings of GOFERDEBUG."""
    while before_first_run:
        before_first_run.pop(0)()
    if options.get("socket"):
        from gofer import _debugsocket

        _debugsocket.serve()
