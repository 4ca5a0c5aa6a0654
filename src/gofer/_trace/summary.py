"""A trace in figures: what the command line prints, and the tables of the viewer."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from gofer._trace.read import RUNNABLE, RUNNING, SYSCALL, WAITING, Kind, Trace, column

PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class Function:
    """All goroutines of one name. Times are in nanoseconds."""

    name: str
    count: int = 0
    running: int = 0
    runnable: int = 0
    syscall: int = 0
    waiting: int = 0
    worst_latency: int = 0
    waits: dict[str, int] = field(default_factory=dict)
    """How long for what."""


@dataclass(slots=True)
class Notable:
    """A span that is longer than others."""

    goroutine: int
    id: int
    name: str
    start: int
    end: int
    p: int
    reason: str
    where: list[str]
    """The stack, innermost first."""
    by: str
    """Of a wait: who ended it."""


@dataclass(slots=True)
class Proc:
    """What a P did."""

    p: int
    running: int
    held: int
    slices: int


@dataclass(slots=True)
class Summary:
    """What a trace says, in figures."""

    info: dict[str, Any]
    duration: int
    events: int
    lost: int
    exact: bool
    runs: int
    goroutines: int
    alive: int
    threads: int
    procs: int
    counts: dict[str, int]
    """How many events of each kind."""
    functions: list[Function]
    ps: list[Proc]
    latencies: dict[str, int]
    """Scheduling latency: percentiles and the worst."""
    slowest: list[Notable]
    """The worst scheduling latencies."""
    hogs: list[Notable]
    """The longest slices without a break."""
    stalls: list[Notable]
    """The longest waits for something other than time."""
    calls: list[Notable]
    """The longest blocking calls."""
    gc_time: int
    stw_time: int


def _notable(trace: Trace, i: int) -> Notable:
    span = trace.span(i)
    g = trace.goroutine(span.goroutine)
    by = ""
    if span.state == WAITING and span.by is not None:
        waker = trace.goroutine(span.by)
        by = f"{waker.name} ({waker.id})"
    where = [str(frame) for frame in trace.stack(span.stack)]
    return Notable(g.index, g.id, g.name, span.start, span.end, span.p, span.reason, where, by)


def _longest(trace: Trace, state: int, top: int) -> list[Notable]:
    """The engine keeps the longest spans of each state, and the longest waits for each reason."""
    if state == WAITING:
        reasons = trace.wait_reasons
        asleep = reasons.index("sleep") if "sleep" in reasons else -1
        lists = [spans for why, spans in enumerate(trace.raw["top_waits"]) if why != asleep]
    else:
        lists = [trace.raw["top"][state]]
    spans = [i for found in lists for i in column(found, "I")]
    start, end = trace.spans["start"], trace.spans["end"]
    spans.sort(key=lambda i: start[i] - end[i])
    return [_notable(trace, i) for i in spans[:top]]


def _functions(trace: Trace) -> list[Function]:
    raw = trace.raw
    rows: dict[int, Function] = {}
    total = column(raw["f_total"], "q")
    columns = (column(raw["f_" + c], f) for c, f in (("name", "I"), ("count", "q"), ("worst", "q")))
    for k, (name, count, worst) in enumerate(zip(*columns, strict=True)):
        of = total[5 * k : 5 * k + 5]
        title = trace.string(name) if name else "(unknown)"
        rows[name] = Function(
            title, count, of[RUNNING], of[RUNNABLE], of[SYSCALL], of[WAITING], worst
        )
    columns = (
        column(raw["w_" + c], f) for c, f in (("total", "q"), ("name", "I"), ("reason", "I"))
    )
    for ns, name, reason in sorted(zip(*columns, strict=True), reverse=True):
        if name in rows:
            rows[name].waits[trace.reason(WAITING, reason)] = ns
    return sorted(rows.values(), key=lambda row: -(row.running + row.syscall))


def _ps(trace: Trace) -> list[Proc]:
    raw = trace.raw
    held: dict[int, int] = defaultdict(int)
    columns = (column(raw["held_" + c], f) for c, f in (("p", "i"), ("start", "q"), ("end", "q")))
    for p, start, end in zip(*columns, strict=True):
        held[p] += end - start
    work = column(raw["work"], "q")
    return [Proc(p, work[2 * p], held[p], work[2 * p + 1]) for p in sorted(held)]


def _latencies(trace: Trace) -> dict[str, int]:
    ordered = column(trace.raw["latencies"], "q")
    n = len(ordered)
    found = {f"p{p}": ordered[min(n - 1, n * p // 100)] if n else 0 for p in PERCENTILES}
    return {**found, "worst": ordered[-1] if n else 0, "count": n}


def summarise(trace: Trace, *, top: int = 10) -> Summary:
    """Work out the figures."""
    marks = trace.marks
    return Summary(
        info=trace.info,
        duration=trace.end - trace.begin,
        events=len(trace),
        lost=trace.lost,
        exact=trace.exact,
        runs=trace.raw["runs"],
        goroutines=trace.num_goroutines,
        alive=sum(trace.raw["g_open"]),
        threads=len(trace.thread_ms),
        procs=max((n for _, n in marks.procs), default=0),
        counts={kind.name: n for kind in Kind if (n := trace.kind.count(bytes([kind])))},
        functions=_functions(trace),
        ps=_ps(trace),
        latencies=_latencies(trace),
        slowest=_longest(trace, RUNNABLE, top),
        hogs=_longest(trace, RUNNING, top),
        stalls=_longest(trace, WAITING, top),
        calls=_longest(trace, SYSCALL, top),
        gc_time=sum(i.end - i.start for i in marks.gc),
        stw_time=sum(i.end - i.start for i in marks.stw),
    )


# --- As text -------------------------------------------------------------------------------------


def show_ns(ns: float) -> str:
    """A time as people write it."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}" if ns < 1000 * scale else f"{ns / scale:.0f} {unit}"
    return f"{ns:.0f} ns"


def _printable(text: str) -> str:
    """A name may be anything; a terminal should not obey it."""
    return "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    rows = [tuple(_printable(cell) for cell in row) for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]


def _notables(title: str, found: list[Notable], begin: int) -> list[str]:
    if not found:
        return []
    lines = ["", title]
    for n in found:
        line = f"  {show_ns(n.end - n.start):>8}  at {show_ns(n.start - begin):>8}  "
        line += f"goroutine {n.id} ({n.name})"
        line += f", {n.reason}" if n.reason else ""
        line += f", until {n.by}" if n.by else ""
        lines.append(_printable(line))
        if n.where:
            lines.append(_printable(f"            {n.where[0]}"))
    return lines


def text(s: Summary, *, begin: int = 0) -> str:
    """The summary as a page of text."""
    program = _printable(str(s.info.get("program", "?")))
    python = _printable(str(s.info.get("python", "?")))
    threaded = ", free-threaded" if s.info.get("free_threaded") else ""
    lines = [
        (
            f"{program}: {show_ns(s.duration)}, {s.events:,} events, {s.goroutines:,} goroutines, "
            f"{s.threads} threads, gomaxprocs {s.procs} (Python {python}{threaded})"
        )
    ]
    if s.lost:
        lines.append(f"{s.lost:,} events were lost: the disk could not keep up")
    elif not s.exact:
        lines.append("part of a longer story: states at its edges are inferred")
    if s.alive:
        lines.append(f"{s.alive:,} goroutines were alive at its end")
    lines += ["", "Ps"]
    lines += _table(
        ("", "running", "of the time", "slices"),
        [
            (
                f"P{p.p}",
                show_ns(p.running),
                f"{p.running / max(s.duration, 1):.1%}",
                f"{p.slices:,}",
            )
            for p in s.ps
        ],
    )
    latency = s.latencies
    lines += [
        "",
        (
            f"scheduling latency: p50 {show_ns(latency['p50'])}, p90 {show_ns(latency['p90'])}, "
            f"p99 {show_ns(latency['p99'])}, worst {show_ns(latency['worst'])}"
            f" ({latency['count']:,} times)"
        ),
        (
            f"steals {s.counts.get('STEAL', 0):,}, hand-offs {s.counts.get('PROC_TAKEN', 0):,}, "
            f"timers {s.counts.get('TIMER', 0):,}, "
            f"garbage collection {show_ns(s.gc_time)}, world stopped {show_ns(s.stw_time)}"
        ),
        "",
        "goroutines by function",
    ]
    lines += _table(
        ("", "count", "running", "blocking calls", "runnable", "worst", "waiting", "mostly for"),
        [
            (
                f.name,
                f"{f.count:,}",
                show_ns(f.running),
                show_ns(f.syscall),
                show_ns(f.runnable),
                show_ns(f.worst_latency),
                show_ns(f.waiting),
                next(iter(f.waits), ""),
            )
            for f in s.functions[:30]
        ],
    )
    if len(s.functions) > 30:
        lines.append(f"... and {len(s.functions) - 30} more")
    lines += _notables("longest without a break", s.hogs, begin)
    lines += _notables("longest blocking calls", s.calls, begin)
    lines += _notables("worst scheduling latencies", s.slowest, begin)
    lines += _notables("longest waits", s.stalls, begin)
    return "\n".join(lines)
