"""gofer: Go's runtime scheduler for Python.

Goroutines are ordinary async functions, run by every core of a free-threaded Python:

>>> import gofer
>>> async def hello(n):
...     await gofer.sleep(0.01)
...     return n * n
>>> async def main():
...     squares = [gofer.go(hello, n) for n in range(5)]
...     return [await g for g in squares]
>>> gofer.run(main)
[0, 1, 4, 9, 16]
"""

from gofer._core import Goroutine, go, gosched, num_goroutine, sleep
from gofer._errors import (
    Cancelled,
    ChannelClosed,
    Deadlock,
    GoroutineLeakWarning,
    WouldBlock,
)
from gofer._run import current, goexit, gomaxprocs, num_cpu, run, set_max_threads

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "ChannelClosed",
    "Deadlock",
    "Goroutine",
    "GoroutineLeakWarning",
    "WouldBlock",
    "current",
    "go",
    "goexit",
    "gomaxprocs",
    "gosched",
    "num_cpu",
    "num_goroutine",
    "run",
    "set_max_threads",
    "sleep",
]
