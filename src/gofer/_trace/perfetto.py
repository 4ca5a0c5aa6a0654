"""Export to the JSON that ui.perfetto.dev and chrome://tracing read.

Two processes: "Ps", a row for each P with the goroutines that ran on it, and "goroutines", a row
for each with all of its states. Flow arrows lead from who woke a goroutine to where it runs next.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

from gofer._trace.read import RUNNABLE, RUNNING, STATES, Trace

PS, GOROUTINES, COUNTERS = 1, 2, 3
_OUTSIDE = 1 << 20  # the row of what runs without a P


def _meta(pid: int, tid: int | None, name: str) -> dict[str, Any]:
    what = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "pid": pid, "tid": tid or 0, "name": what, "args": {"name": name}}


def _where(trace: Trace, stack: int) -> dict[str, Any]:
    frames = [str(frame) for frame in trace.stack(stack)]
    return {"stack": frames} if frames else {}


def _spans(trace: Trace) -> Iterator[dict[str, Any]]:
    goroutines = trace.goroutines  # once: there are many spans
    waiting_for_start: dict[int, int] = {}  # goroutine -> number of the flow that ends there
    for i in range(len(trace.spans["g"])):
        span = trace.span(i)
        g = goroutines[span.goroutine]
        ts, us = span.start / 1e3, (span.end - span.start) / 1e3
        name = STATES[span.state] + (f" ({span.reason})" if span.reason else "")
        args = {"goroutine": g.id, **_where(trace, span.stack)}
        yield {"ph": "X", "pid": GOROUTINES, "tid": g.index, "ts": ts, "dur": us, "name": name,
               "cat": STATES[span.state], "args": args}  # fmt: skip
        if span.state == RUNNABLE:
            if span.by is not None:
                waiting_for_start[g.index] = i
                source = {"pid": GOROUTINES, "tid": span.by, "ts": ts}
                yield {"ph": "s", "id": i, "name": "wake", "cat": "wake", **source}
        else:
            tid = span.p if span.p >= 0 else _OUTSIDE
            if span.state == RUNNING:
                yield {"ph": "X", "pid": PS, "tid": tid, "ts": ts, "dur": us, "name": g.name,
                       "cat": "running", "args": {"goroutine": g.id}}  # fmt: skip
            flow = waiting_for_start.pop(g.index, None)
            if flow is not None:
                target = {"pid": GOROUTINES, "tid": g.index, "ts": ts}
                yield {"ph": "f", "bp": "e", "id": flow, "name": "wake", "cat": "wake", **target}


def _marks(trace: Trace) -> Iterator[dict[str, Any]]:
    marks = trace.marks
    for what, intervals in (("gc", marks.gc), ("stop the world", marks.stw)):
        for m in intervals:
            yield {"ph": "X", "pid": PS, "tid": _OUTSIDE + 1, "ts": m.start / 1e3,
                   "dur": (m.end - m.start) / 1e3, "name": f"{what}: {m.name}"}  # fmt: skip
    for number, (cat, intervals) in enumerate((("region", marks.regions), ("task", marks.tasks))):
        for k, m in enumerate(intervals):
            common = {"pid": GOROUTINES, "cat": cat, "id": 2 * k + number, "name": m.name,
                      "tid": m.goroutine or 0}  # fmt: skip
            yield {"ph": "b", "ts": m.start / 1e3, **common}
            yield {"ph": "e", "ts": m.end / 1e3, **common}
    for entry in marks.logs:
        yield {"ph": "i", "s": "t", "pid": GOROUTINES, "tid": entry.goroutine or 0,
               "ts": entry.ts / 1e3, "name": entry.message,
               "args": {"category": entry.category}}  # fmt: skip
    for sample in marks.samples:
        yield {"ph": "C", "pid": COUNTERS, "ts": sample.ts / 1e3, "name": "run queues",
               "args": {"global": sample.global_queue, "local": sum(sample.queues)}}  # fmt: skip


def _all(trace: Trace) -> Iterator[dict[str, Any]]:
    yield _meta(PS, None, "Ps")
    yield _meta(GOROUTINES, None, "goroutines")
    yield _meta(COUNTERS, None, "counters")
    for p in sorted({p for p in memoryview(trace.raw["held_p"]).cast("i") if p >= 0}):
        yield _meta(PS, p, f"P{p}")
    yield _meta(PS, _OUTSIDE + 1, "runtime")
    for g in trace.goroutines:
        yield _meta(GOROUTINES, g.index, f"{g.id} {g.name}")
    yield from _spans(trace)
    yield from _marks(trace)


def export(trace: Trace, out: str | os.PathLike[str]) -> int:
    """Write it; return how many entries it has."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    n = 0
    with open(out, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for n, entry in enumerate(_all(trace), 1):  # counts
            file.write((",\n" if n > 1 else "") + encode(entry))
        file.write("\n]}\n")
    return n
