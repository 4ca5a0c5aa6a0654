"""A trace in figures: what the command line prints, and the tables of the viewer."""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gofer._trace.read import RUNNABLE, RUNNING, SYSCALL, WAITING, Kind, Trace

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


def _notable(trace: Trace, spans: list[int], next_of: dict[int, int]) -> list[Notable]:
    found = []
    for i in spans:
        span = trace.span(i)
        g = trace.goroutines[span.goroutine]
        by = ""
        follows = next_of.get(i)
        if follows is not None and (waker := trace.span(follows).by) is not None:
            by = f"{trace.goroutines[waker].name} ({trace.goroutines[waker].id})"
        found.append(
            Notable(
                g.index,
                g.id,
                g.name,
                span.start,
                span.end,
                span.p,
                span.reason,
                [str(frame) for frame in trace.stack(span.stack)],
                by,
            )
        )
    return found


def _followers(spans: list[int], gs: list[int], states: list[int]) -> dict[int, int]:
    """Which span of the same goroutine comes after each of these."""
    found = {}
    for i in spans:
        g = gs[i]
        for k in range(i + 1, len(gs)):
            if gs[k] == g:
                if states[k] == RUNNABLE:
                    found[i] = k
                break
    return found


def _functions(trace: Trace, gs: list[int], states: list[int], took: list[int]) -> list[Function]:
    rows: dict[str, Function] = {}
    row_of = []
    for g in trace.goroutines:
        row = rows.get(g.name)
        if row is None:
            row = rows[g.name] = Function(g.name)
        row.count += 1
        row.running += g.running
        row.runnable += g.runnable
        row.syscall += g.syscall
        row.waiting += g.waiting
        row_of.append(row)
    waits: dict[int, int] = defaultdict(int)
    worst = [0] * len(row_of)
    for g_, state, reason, ns in zip(gs, states, trace.spans["reason"].tolist(), took, strict=True):
        if state == WAITING:
            waits[g_ << 8 | reason] += ns
        elif state == RUNNABLE and ns > worst[g_]:
            worst[g_] = ns
    for key, ns in waits.items():
        row, words = row_of[key >> 8], trace.reason(WAITING, key & 255)
        row.waits[words] = row.waits.get(words, 0) + ns
    for row, ns in zip(row_of, worst, strict=True):
        row.worst_latency = max(row.worst_latency, ns)
    for row in rows.values():
        row.waits = dict(sorted(row.waits.items(), key=lambda item: -item[1]))
    return sorted(rows.values(), key=lambda row: -(row.running + row.syscall))


def _ps(trace: Trace, states: list[int], took: list[int]) -> list[Proc]:
    held: dict[int, int] = defaultdict(int)
    raw = trace.raw
    columns = (memoryview(raw["held_" + c]).cast(f) for c, f in (("p", "i"), ("start", "q")))
    for p, start, end in zip(*columns, memoryview(raw["held_end"]).cast("q"), strict=True):
        held[p] += end - start
    running: dict[int, int] = defaultdict(int)
    slices: dict[int, int] = defaultdict(int)
    for p, state, ns in zip(trace.spans["p"].tolist(), states, took, strict=True):
        if state == RUNNING:
            running[p] += ns
            slices[p] += 1
    return [Proc(p, running[p], held[p], slices[p]) for p in sorted(held)]


def _percentile(ordered: list[int], percent: int) -> int:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0


def summarise(trace: Trace, *, top: int = 10) -> Summary:
    """Work out the figures."""
    c = trace.spans
    gs: list[int] = c["g"].tolist()
    states: list[int] = c["state"].tolist()
    took = [end - start for start, end in zip(c["start"].tolist(), c["end"].tolist(), strict=True)]
    reasons = trace.wait_reasons
    asleep = reasons.index("sleep") if "sleep" in reasons else -1

    def longest(state: int) -> list[Notable]:
        chosen: Iterator[int] = (i for i, s in enumerate(states) if s == state)
        if state == WAITING:
            chosen = (i for i in chosen if c["reason"][i] != asleep)
        indices = heapq.nlargest(top, chosen, key=took.__getitem__)
        follows = _followers(indices, gs, states) if state == WAITING else {}
        return _notable(trace, indices, follows)

    waited = sorted(ns for ns, state in zip(took, states, strict=True) if state == RUNNABLE)
    latencies = {f"p{p}": _percentile(waited, p) for p in PERCENTILES}
    latencies["worst"] = waited[-1] if waited else 0
    latencies["count"] = len(waited)
    marks = trace.marks
    return Summary(
        info=trace.info,
        duration=trace.end - trace.begin,
        events=len(trace),
        lost=trace.lost,
        exact=trace.exact,
        runs=trace.raw["runs"],
        goroutines=len(trace.goroutines),
        alive=sum(trace.raw["g_open"]),
        threads=len(trace.thread_ms),
        procs=max((n for _, n in marks.procs), default=0),
        counts={kind.name: n for kind in Kind if (n := trace.kind.count(bytes([kind])))},
        functions=_functions(trace, gs, states, took),
        ps=_ps(trace, states, took),
        latencies=latencies,
        slowest=longest(RUNNABLE),
        hogs=longest(RUNNING),
        stalls=longest(WAITING),
        calls=longest(SYSCALL),
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
        f"{program}: {show_ns(s.duration)}, {s.events:,} events, {s.goroutines:,} goroutines, "
        f"{s.threads} threads, gomaxprocs {s.procs} (Python {python}{threaded})"
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
            (f"P{p.p}", show_ns(p.running), f"{p.running / max(s.duration, 1):.1%}", f"{p.slices:,}")
            for p in s.ps
        ],
    )
    latency = s.latencies
    lines += [
        "",
        f"scheduling latency: p50 {show_ns(latency['p50'])}, p90 {show_ns(latency['p90'])}, "
        f"p99 {show_ns(latency['p99'])}, worst {show_ns(latency['worst'])}"
        f" ({latency['count']:,} times)",
        f"steals {s.counts.get('STEAL', 0):,}, hand-offs {s.counts.get('PROC_TAKEN', 0):,}, "
        f"timers {s.counts.get('TIMER', 0):,}, "
        f"garbage collection {show_ns(s.gc_time)}, world stopped {show_ns(s.stw_time)}",
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
