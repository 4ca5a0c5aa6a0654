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

import typing as _typing

from gofer import atomic, context, runtime, signals, singleflight, trace
from gofer._core import (
    Chan,
    Cond,
    Goroutine,
    Mutex,
    Operation,
    RecvChan,
    RWMutex,
    Semaphore,
    SendChan,
    block,
    go,
    gosched,
    num_goroutine,
    select,
    sleep,
)
from gofer._errors import (
    Cancelled,
    ChannelClosed,
    Deadlock,
    GoroutineLeakWarning,
    PoolClosed,
    WouldBlock,
)
from gofer._future import wait_future
from gofer._group import Group
from gofer._offload import offload
from gofer._pool import PoolStats, Result, ShutdownReport, WorkerPool
from gofer._run import (
    blocking,
    current,
    goexit,
    gomaxprocs,
    lock_os_thread,
    num_cpu,
    run,
    set_max_threads,
    unlock_os_thread,
)
from gofer._select import Selected
from gofer._sync import Once, Pool, WaitGroup, once_value
from gofer._time import Ticker, Timer, after, after_func, timeout

if _typing.TYPE_CHECKING:
    from gofer import metrics, net, process

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "Chan",
    "ChannelClosed",
    "Cond",
    "Deadlock",
    "Goroutine",
    "GoroutineLeakWarning",
    "Group",
    "Mutex",
    "Once",
    "Operation",
    "Pool",
    "PoolClosed",
    "PoolStats",
    "RWMutex",
    "RecvChan",
    "Result",
    "Selected",
    "Semaphore",
    "SendChan",
    "ShutdownReport",
    "Ticker",
    "Timer",
    "WaitGroup",
    "WorkerPool",
    "WouldBlock",
    "after",
    "after_func",
    "atomic",
    "block",
    "blocking",
    "context",
    "current",
    "go",
    "goexit",
    "gomaxprocs",
    "gosched",
    "lock_os_thread",
    "metrics",
    "net",
    "num_cpu",
    "num_goroutine",
    "offload",
    "once_value",
    "process",
    "run",
    "runtime",
    "select",
    "set_max_threads",
    "signals",
    "singleflight",
    "sleep",
    "timeout",
    "trace",
    "unlock_os_thread",
    "wait_future",
]


def __getattr__(name: str) -> _typing.Any:
    # They need much that most programs do without: imported by who uses them.
    if name in ("metrics", "net", "process"):
        import importlib

        return importlib.import_module(f"gofer.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
