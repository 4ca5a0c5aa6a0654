"""A trace in memory. The work is done by src/core/traceread.c; this makes it pleasant to use."""

import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

from gofer import _core
from gofer.trace import TraceError


class Kind(IntEnum):
    """Kinds of events: src/core/trace.h."""

    LOST = 1
    RUN_BEGIN = 2
    RUN_END = 3
    PROCS = 4
    STATUS = 5
    PROC_START = 6
    PROC_STOP = 7
    PROC_TAKEN = 8
    STEAL = 9
    BACK = 10
    GO_STATUS = 11
    GO_CREATE = 12
    GO_START = 13
    GO_STOP = 14
    GO_BLOCK = 15
    GO_UNBLOCK = 16
    GO_NOTIFY = 17
    GO_REQUEUE = 18
    GO_END = 19
    TIMER = 20
    STW_BEGIN = 21
    STW_END = 22
    GC_BEGIN = 23
    GC_END = 24
    REGION_BEGIN = 25
    REGION_END = 26
    TASK_BEGIN = 27
    TASK_END = 28
    LOG = 29
    SAMPLE = 30
    NET_POLL = 31
    NET_READY = 32


RUNNABLE, RUNNING, SYSCALL, WAITING = 1, 2, 3, 4
STATES = {RUNNABLE: "runnable", RUNNING: "running", SYSCALL: "syscall", WAITING: "waiting"}
STOP_REASONS = ("", "gosched", "preempted")
ENDS = ("", "returned", "failed", "cancelled", "goexit", "leaked")
TIMERS = ("sleep", "timer channel", "after_func", "context deadline")
BINS = 8192  # as in traceread.c


class Event(NamedTuple):
    """One event, as it is in the file but for its time: nanoseconds since the trace began."""

    ts: int
    kind: Kind
    thread: int
    args: tuple[int, ...]


class Frame(NamedTuple):
    """A line of Python code."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class Goroutine:
    """What a trace says of a goroutine as a whole. Times are in nanoseconds."""

    index: int
    id: int
    run: int
    name: str
    parent_id: int
    created_at: Frame | None
    created: int | None
    """None: before the trace began."""
    ended: int | None
    """None: not before the trace ended."""
    end: str
    plain: bool
    running: int
    runnable: int
    syscall: int
    waiting: int


class Span(NamedTuple):
    """A goroutine in one state, from one moment to another."""

    start: int
    end: int
    goroutine: int
    """Index of the goroutine."""
    state: int
    p: int
    """The P it ran on, -1 if on none. Of a runnable one: the P of who made it so."""
    thread: int
    reason: str
    """What it waited for; of a runnable one, why it had stopped."""
    stack: int
    """Where it waits; where the code stood when it stopped running."""
    by: int | None
    """Index of the goroutine that ended the wait, or made the runnable one so."""


class Interval(NamedTuple):
    """Something that lasted: a garbage collection, a region, a task ..."""

    start: int
    end: int
    name: str
    goroutine: int | None
    thread: int
    task: int


class Log(NamedTuple):
    """What the program logged."""

    ts: int
    goroutine: int | None
    thread: int
    task: int
    category: str
    message: str


class Sample(NamedTuple):
    """The lengths of the queues at one moment."""

    ts: int
    global_queue: int
    spinning: int
    queues: tuple[int, ...]


@dataclass
class Marks:
    """The events that are few, gone through once."""

    gc: list[Interval] = field(default_factory=list)
    stw: list[Interval] = field(default_factory=list)
    regions: list[Interval] = field(default_factory=list)
    tasks: list[Interval] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    procs: list[tuple[int, int]] = field(default_factory=list)
    """When gomaxprocs became what."""


_FEW = frozenset(
    {
        Kind.RUN_BEGIN,
        Kind.PROCS,
        Kind.STW_BEGIN,
        Kind.STW_END,
        Kind.GC_BEGIN,
        Kind.GC_END,
        Kind.REGION_BEGIN,
        Kind.REGION_END,
        Kind.TASK_BEGIN,
        Kind.TASK_END,
        Kind.LOG,
        Kind.SAMPLE,
    }
)


def column(data: bytes, format: str) -> Any:
    """The bytes as an array of numbers."""
    return memoryview(data).cast(format)  # type: ignore[call-overload]


class Trace:
    """A trace. Times are in nanoseconds since it began; columns are arrays, one entry an event,
    a span or a goroutine."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.raw = data
        try:
            info = json.loads(data["info"])
        except ValueError:
            raise TraceError(
                "the trace is corrupt: what it says of the program is no JSON"
            ) from None
        self.info: dict[str, Any] = info if isinstance(info, dict) else {}
        reasons = self.info.get("wait_reasons")
        self.wait_reasons = [str(r) for r in reasons] if isinstance(reasons, list) else []
        self.strings: list[str | None] = data["strings"]
        self.stacks: list[tuple[tuple[int, int, int], ...] | None] = data["stacks"]
        self.begin: int = data["t0"]
        self.end: int = data["t1"]
        self.wall_ns: int = data["wall_ns"]
        self.lost: int = data["lost"]
        self.exact: bool = data["exact"]
        """Nothing is missing, at its begin, at its end, or between."""
        self.repairs: int = data["repairs"]
        """Events that did not fit to those before. Zero in an exact trace."""
        self.thread_names: dict[int, str] = {index: name for index, _, name in data["threads"]}
        self.thread_ms: dict[int, int] = data["thread_ms"]
        self.ts = column(data["ts"], "q")
        self.kind: bytes = data["kind"]
        self.thread = column(data["thread"], "I")
        self.at = column(data["at"], "I")
        self.g = column(data["g"], "I")
        self.args = column(data["args"], "q")

    def __repr__(self) -> str:
        seconds = (self.end - self.begin) / 1e9
        return (
            f"<Trace of {seconds:.3f} s: {len(self.kind)} events, "
            f"{len(self.raw['g_id']) // 8} goroutines>"
        )

    # --- names ---

    def string(self, id: int) -> str:
        """An interned string, "?" if the trace does not define it."""
        text = self.strings[id] if 0 < id < len(self.strings) else None
        return "?" if text is None else text

    def stack(self, id: int) -> list[Frame]:
        """The frames of a stack, innermost first."""
        frames = self.stacks[id] if 0 < id < len(self.stacks) else None
        return [
            Frame(self.string(function), self.string(file), line)
            for function, file, line in frames or ()
        ]

    def reason(self, state: int, number: int) -> str:
        """Why a span is what it is, in words."""
        words = self.wait_reasons if state == WAITING else STOP_REASONS
        if state in (RUNNING, SYSCALL):
            return ""
        return str(words[number]) if number < len(words) else "?"

    def thread_name(self, index: int) -> str:
        """M3, sysmon, or what the system calls it."""
        if index in self.thread_ms:
            return f"M{self.thread_ms[index]}"
        name = self.thread_names.get(index, "?")
        return "sysmon" if name == "gofer-sysmon" else name

    # --- events ---

    def event_args(self, i: int) -> tuple[int, ...]:
        """The numbers of the i-th event."""
        n = ARGS[self.kind[i]]
        at = self.at[i]
        if self.kind[i] == Kind.SAMPLE:
            n += self.args[at + 2]
        return tuple(self.args[at : at + n])

    def events(self) -> Iterator[Event]:
        """All events in order of time."""
        for i, kind in enumerate(self.kind):
            yield Event(self.ts[i], Kind(kind), self.thread[i], self.event_args(i))

    # --- goroutines and spans ---

    @cached_property
    def goroutines(self) -> list[Goroutine]:
        """All goroutines that the trace knows of."""
        return [self.goroutine(i) for i in range(self.num_goroutines)]

    @property
    def num_goroutines(self) -> int:
        """How many there are."""
        return len(self.raw["g_id"]) // 8

    @cached_property
    def _g(self) -> dict[str, Any]:
        formats = {
            "id": "Q",
            "run": "I",
            "name": "I",
            "parent": "Q",
            "site": "I",
            "created": "q",
            "ended": "q",
            "end": "B",
            "flags": "B",
            "total": "q",
        }
        return {name: column(self.raw["g_" + name], f) for name, f in formats.items()}

    def goroutine(self, i: int) -> Goroutine:
        """The i-th goroutine."""
        c = self._g
        id, name, created, ended, end = (c[k][i] for k in ("id", "name", "created", "ended", "end"))
        total = c["total"][5 * i : 5 * i + 5]
        return Goroutine(
            i,
            id,
            c["run"][i],
            self.string(name) if name else f"goroutine {id}",
            c["parent"][i],
            next(iter(self.stack(c["site"][i])), None),
            created if created >= 0 else None,
            ended if ended >= 0 else None,
            ENDS[end] if end < len(ENDS) else "?",
            bool(c["flags"][i] & 1),
            total[RUNNING],
            total[RUNNABLE],
            total[SYSCALL],
            total[WAITING],
        )

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def spans(self) -> dict[str, Any]:
        """Columns of all spans, in the order in which they ended."""
        formats = {
            "start": "q",
            "end": "q",
            "g": "I",
            "thread": "I",
            "stack": "I",
            "by": "I",
            "p": "i",
            "state": "B",
            "reason": "B",
        }
        return {name: column(self.raw["span_" + name], f) for name, f in formats.items()}

    def span(self, i: int) -> Span:
        """The i-th span."""
        c = self.spans
        by = c["by"][i]
        return Span(
            c["start"][i],
            c["end"][i],
            c["g"][i],
            c["state"][i],
            c["p"][i],
            c["thread"][i],
            self.reason(c["state"][i], c["reason"][i]),
            c["stack"][i],
            by - 1 if by else None,
        )

    def life(self, goroutine: int) -> list[Span]:
        """The spans of one goroutine, by its index."""
        return [self.span(i) for i, g in enumerate(self.spans["g"]) if g == goroutine]

    @cached_property
    def marks(self) -> Marks:
        """Collections, regions, tasks, logs, and what else is not about every goroutine."""
        return _marks(self)


# How many numbers an event has, without the list at the end of a SAMPLE. A LOG has four: where its
# text begins, and how long it is.
ARGS = (
    0, 1, 2, 0, 1, 3, 1, 0, 2, 2, 0, 7, 5, 1, 3, 3, 1, 1, 1, 2, 2,
    1, 0, 1, 1, 2, 2, 3, 1, 4, 3, 1, 2,
)  # fmt: skip


def _marks(trace: Trace) -> Marks:
    found = Marks()
    gc: dict[int, tuple[int, int]] = {}
    stw: dict[int, int] = {}
    regions: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    tasks: dict[int, tuple[int, int, str, int | None, int]] = {}
    text: bytes = trace.raw["text"]
    few = _FEW
    for i in [i for i, kind in enumerate(trace.kind) if kind in few]:
        kind, ts, thread = trace.kind[i], trace.ts[i], trace.thread[i]
        args = trace.event_args(i)
        g = trace.g[i] - 1 if trace.g[i] else None
        where = ("thread", thread) if g is None else ("g", g)
        if kind == Kind.GC_BEGIN:
            gc[thread] = (ts, args[0])
        elif kind == Kind.GC_END and thread in gc:
            start, generation = gc.pop(thread)
            found.gc.append(Interval(start, ts, f"generation {generation}", g, thread, 0))
        elif kind == Kind.STW_BEGIN:
            stw[thread] = ts
        elif kind == Kind.STW_END and thread in stw:
            found.stw.append(Interval(stw.pop(thread), ts, "gomaxprocs", g, thread, 0))
        elif kind == Kind.REGION_BEGIN:
            regions.setdefault(where, []).append((ts, args[0], args[1]))
        elif kind == Kind.REGION_END and regions.get(where):
            start, task, name = regions[where].pop()
            found.regions.append(Interval(start, ts, trace.string(name), g, thread, task))
        elif kind == Kind.TASK_BEGIN:
            tasks[args[0]] = (ts, args[1], trace.string(args[2]), g, thread)
        elif kind == Kind.TASK_END and args[0] in tasks:
            start, _, title, owner, begun_on = tasks.pop(args[0])
            found.tasks.append(Interval(start, ts, title, owner, begun_on, args[0]))
        elif kind == Kind.LOG:
            category = trace.string(args[1]) if args[1] else ""
            message = text[args[2] : args[2] + args[3]].decode("utf-8", "replace")
            found.logs.append(Log(ts, g, thread, args[0], category, message))
        elif kind == Kind.SAMPLE:
            found.samples.append(Sample(ts, args[0], args[1], args[3:]))
        elif kind == Kind.RUN_BEGIN:
            found.procs.append((ts, args[1]))
        elif kind == Kind.PROCS:
            found.procs.append((ts, args[0]))
    for where, open_regions in regions.items():  # what the end of the trace cut off
        for start, task, name in open_regions:
            owner = where[1] if where[0] == "g" else None
            on = where[1] if where[0] == "thread" else 0
            found.regions.append(Interval(start, trace.end, trace.string(name), owner, on, task))
    for id, (start, _, title, owner, begun_on) in tasks.items():
        found.tasks.append(Interval(start, trace.end, title, owner, begun_on, id))
    if trace.begin > 0:
        _clip(found, trace.begin)
    for intervals in (found.gc, found.stw, found.regions, found.tasks):
        intervals.sort(key=lambda i: i.start)
    return found


def _clip(marks: Marks, begin: int) -> None:
    """A flight recorder's story begins later than its events."""
    for intervals in (marks.gc, marks.stw, marks.regions, marks.tasks):
        intervals[:] = [i._replace(start=max(i.start, begin)) for i in intervals if i.end >= begin]
    marks.logs = [entry for entry in marks.logs if entry.ts >= begin]
    marks.samples = [sample for sample in marks.samples if sample.ts >= begin]


def read(path: str | os.PathLike[str], *, truncated: bool = False) -> Trace:
    """Read the trace in this file."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return decode(file.read(), truncated=truncated)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return decode(data, truncated=truncated)
    except TraceError as exc:
        raise TraceError(f"{os.fspath(path)}: {exc}") from None


def decode(data: bytes | mmap.mmap, *, truncated: bool = False) -> Trace:
    """Read a trace from memory."""
    try:
        return Trace(_core.trace_read(data, not truncated))
    except ValueError as exc:
        raise TraceError(str(exc)) from None
