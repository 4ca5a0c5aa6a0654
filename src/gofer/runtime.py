"""A look inside the runtime: numbers, goroutines, dumps.

>>> from gofer import runtime
>>> runtime.stats().goroutines
1
>>> runtime.dump(sys.stdout)
goroutine 1 [running]:
...
"""

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from gofer import _core, _dump, _run, _stall
from gofer._gc import gc_tuned
from gofer._stall import Stall

__all__ = [
    "Histogram",
    "PollerStats",
    "ProcStats",
    "Stall",
    "Stats",
    "dump",
    "gc_tuned",
    "goroutines",
    "leaks",
    "metrics",
    "on_stall",
    "stats",
]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many times lay between each two of `buckets`, in seconds: `counts` has one less.

    The layout is Go's: four buckets for each power of two, so a time is known to within 25 %. The
    first begins at minus infinity, the last ends at infinity. Counts only grow.

    >>> seconds = runtime.stats().latencies.quantile(0.99)
    """

    counts: tuple[int, ...]
    buckets: tuple[float, ...]

    @property
    def total(self) -> int:
        """How many times have been measured."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """The upper end of the bucket that the q-th part of all times ends in; 0 if there are none.

        >>> h = runtime.stats().latencies
        >>> h.quantile(0.5) <= h.quantile(0.99)
        True
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be between 0 and 1, not {q!r}")
        total, seen = self.total, 0
        for count, end in zip(self.counts, self.buckets[1:], strict=True):
            seen += count
            if count and seen >= q * total:
                return min(end, self.buckets[-2])
        return 0.0

    def __sub__(self, before: "Histogram") -> "Histogram":
        """What has been measured since `before`.

        >>> before = runtime.stats().latencies
        >>> new = (runtime.stats().latencies - before).total
        """
        if before.buckets != self.buckets:
            raise ValueError("these histograms have different buckets")
        counts = tuple(a - b for a, b in zip(self.counts, before.counts, strict=True))
        return Histogram(counts, self.buckets)


_BUCKETS = (float("-inf"), *(ns / 1e9 for ns in _core.histogram_bounds()), float("inf"))


@dataclass(frozen=True, slots=True)
class ProcStats:
    """One P: the right to run Python code, and its queue.

    >>> sum(p.queue for p in runtime.stats().procs)
    0
    """

    id: int
    node: int
    """The NUMA node that it belongs to; 0 if the system has but one."""
    status: str
    """`"idle"`, `"running"`, `"syscall"` (what runs is in a call that blocks) or `"stopped"`."""
    queue: int
    """Goroutines in its ring, without `runnext`."""
    runnext: bool
    """Whether one runs next, before those in the ring."""
    schedtick: int
    """Time slices started."""
    syscalltick: int
    """How often it was given up or taken because of a call that blocks."""
    steals: int
    """Goroutines that it got from others."""
    cross_node_steals: int
    """... from those of other NUMA nodes."""
    handoffs: int
    """How often it was taken from a goroutine that blocked, or computed too long."""
    preemptions: int
    """How often a goroutine that had it was stopped because its slice was over."""
    timers: int
    thread: int | None
    """The M that has it."""
    goroutine: int | None
    """The goroutine that runs on it."""


@dataclass(frozen=True, slots=True)
class PollerStats:
    """The network poller.

    >>> runtime.stats().poller.readers
    0
    """

    descriptors: int
    """File descriptors that it knows."""
    readers: int
    """Goroutines that wait for a descriptor to be readable."""
    writers: int
    """... or writable."""
    polls: int
    """Calls of the kernel."""
    events: int
    """What these brought."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What `stats()` gives: the runtime at one moment.

    `created`, `steals`, `cross_node_steals`, `handoffs`, `preemptions`, `switches` and `latencies`
    count from the start of the process, over all runs. The others are as of now; numbers of
    goroutines by state are approximate while goroutines run, as in Go.

    >>> s = runtime.stats()
    >>> s.runnable, s.running, s.waiting
    (0, 1, 0)
    """

    time: float
    """When: seconds of `time.monotonic()`."""
    gomaxprocs: int
    num_cpu: int
    goroutines: int
    created: int
    runnable: int
    running: int
    waiting: int
    syscall: int
    """Goroutines in a call that blocks: of the system, or of a library."""
    procs: tuple[ProcStats, ...]
    idle_procs: int
    threads: int
    """All of the runtime's, with those that only watch."""
    idle_threads: int
    spinning_threads: int
    """Threads that look for work."""
    need_spinning: int
    """As Go has it; always 0, see docs/internals.md."""
    blocked_threads: int
    """Threads in calls that block, whose P has gone to another."""
    stopped_threads: int
    """Threads in the middle of a goroutine that was stopped and waits for its turn."""
    global_queue: int
    timers: int
    poller: PollerStats
    steals: int
    cross_node_steals: int
    """Steals from Ps of other NUMA nodes."""
    handoffs: int
    preemptions: int
    switches: int
    """Goroutines resumed."""
    latencies: Histogram
    """How long goroutines were runnable before they ran, of one in eight."""


def stats() -> Stats:
    """The runtime at this moment. Any thread may ask; outside a run nothing moves.

    >>> runtime.stats().goroutines
    1
    """
    raw = _core.stats()
    procs = tuple(ProcStats(*p) for p in raw.pop("procs"))
    raw["gomaxprocs"] = len(procs) or _run.gomaxprocs()
    waiting = raw["goroutines"] - raw["runnable"] - raw["running"] - raw["syscall"]
    return Stats(
        time=time.monotonic(),
        num_cpu=_run.num_cpu(),
        waiting=max(waiting, 0),
        procs=procs,
        need_spinning=0,
        timers=sum(p.timers for p in procs),
        poller=PollerStats(*raw.pop("poller")),
        latencies=Histogram(raw.pop("latencies"), _BUCKETS),
        **raw,
    )


def metrics() -> dict[str, int | float | Histogram]:
    """The numbers that Go's package runtime/metrics has too, under the same names.

    >>> runtime.metrics()["/sched/goroutines:goroutines"]
    1
    """
    s = stats()
    stopping, total, mutex_wait_ns = _core.more_metrics()
    return {
        "/sched/gomaxprocs:threads": s.gomaxprocs,
        "/sched/goroutines-created:goroutines": s.created,
        "/sched/goroutines/not-in-go:goroutines": s.syscall,
        "/sched/goroutines/runnable:goroutines": s.runnable,
        "/sched/goroutines/running:goroutines": s.running,
        "/sched/goroutines/waiting:goroutines": s.waiting,
        "/sched/goroutines:goroutines": s.goroutines,
        "/sched/latencies:seconds": s.latencies,
        "/sched/pauses/stopping/other:seconds": Histogram(stopping, _BUCKETS),
        "/sched/pauses/total/other:seconds": Histogram(total, _BUCKETS),
        "/sched/threads/total:threads": s.threads,
        "/sync/mutex/wait/total:seconds": mutex_wait_ns / 1e9,
    }


def goroutines() -> list[_core.Goroutine[Any]]:
    """All that are alive, oldest first.

    >>> waiting = [g.name for g in runtime.goroutines() if g.wait_reason == "chan receive"]
    """
    return sorted(_core.goroutines(), key=lambda g: g.id)


def leaks() -> list[_core.Goroutine[Any]]:
    """Goroutines that wait for something that nothing can ever do any more, oldest first.

    One is a leak if neither what it waits for nor its handle can be reached from anything that is
    alive: a global, the frames of a goroutine that runs, sleeps or waits for the network, of a
    thread, a timer. (Who has the handle could cancel it.) A channel in a global that nobody uses
    any more hides a leak; nothing is called a leak that could still be woken. A plain function in
    `block()` is not found, nor what it holds: its frames are those of a thread.

    The program stands still while the references of all objects are noted, as in a full collection.
    Leaks are not ended; the collector does that when it finds them, with a GoroutineLeakWarning.

    >>> async def handle_request(ch):
    ...     await ch.recv()
    >>> go(handle_request, Chan())  # nobody else has that channel
    >>> await sleep(0.01)
    >>> [g.name for g in runtime.leaks()]
    ['handle_request']
    """
    return sorted(_core.leaks(), key=lambda g: g.id)


def on_stall(callback: Callable[[Stall], object] | None, *, after: float = 0.1) -> None:
    """Have `callback` called when code of a goroutine runs for so many seconds without an await.

    Of plain functions and of what is inside `blocking()` it is not told: they are meant to take
    their time. At most one stall a second is told of, on a thread that is no goroutine's. None: no
    more. Without a callback, `GOFERDEBUG=stallwarn=100` has them written to standard error.

    >>> runtime.on_stall(lambda stall: log.warning("%s", stall), after=0.05)
    >>> runtime.on_stall(None)
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"on_stall() needs a function or None, not {callback!r}")
    if not 0.001 <= after < 1_000_000:
        raise ValueError(f"after must be at least 0.001, not {after!r}")
    _stall.callback = callback
    _stall.after_ms = round(after * 1000) if callback is not None else 0
    _core.set_stall(_stall.after_ms)


@contextlib.contextmanager
def _opened(file: "IO[str] | str | os.PathLike[str] | None") -> Iterator[IO[str]]:
    if isinstance(file, str | os.PathLike):
        with open(file, "w", encoding="utf-8", errors="surrogateescape") as f:
            yield f
    elif file is not None:
        yield file
    elif sys.stderr is not None:
        yield sys.stderr
    else:
        with open(2, "w", encoding="utf-8", errors="surrogateescape", closefd=False) as f:
            yield f


def _batched(texts: Iterable[str]) -> Iterator[list[str]]:
    """Standard error is flushed with every write."""
    rest = iter(texts)
    while batch := list(itertools.islice(rest, 1000)):
        yield batch


def dump(
    file: "IO[str] | str | os.PathLike[str] | None" = None,
    *,
    group: bool = False,
    leaks: bool = False,
) -> None:
    """Write what every goroutine does and where it stands, in Go's format.

    To a text stream, or to a file of that name; to standard error if none is given. The program
    goes on meanwhile: each goroutine is held for the moment it takes to look at it. With `group`
    those that do the same in the same place are written once, with their number. With `leaks` those
    that `leaks()` gives are marked `(leaked)`.

    >>> runtime.dump(sys.stdout)
    goroutine 1 [running]:
    ...
    """
    writes = isinstance(file, str | os.PathLike) or callable(getattr(file, "write", None))
    if file is not None and not writes:
        raise TypeError(f"dump() needs a text stream or the name of a file, not {file!r}")
    leaked = {g.id for g in _core.leaks()} if leaks else set()
    d = _dump.Dump()
    texts = d.groups(goroutines(), leaked) if group else d.blocks(goroutines(), leaked)
    with _opened(file) as f:
        for i, batch in enumerate(_batched(texts)):
            f.write("\n" * (i > 0) + "\n\n".join(batch) + "\n")
        f.flush()
