"""Tracing: what does an execution trace cost the program it watches?

The ping-pong of `pingpong.py`, which does nothing but switch: six events a round trip, and nothing
to hide them behind. Without a trace, to a file, and with a flight recorder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks._model import NS_PER_OP, Bar, Case, Job, Workload, with_procs
from benchmarks.pingpong import gofer_chan


def traced(job: Job) -> None:
    from gofer import trace

    with tempfile.TemporaryDirectory() as directory:
        with trace.recording(Path(directory, "x.trace")):
            gofer_chan(job)
        loaded = trace.load(Path(directory, "x.trace"))
        if loaded.lost or len(loaded) < 6 * job.size["rounds"]:
            raise RuntimeError(f"events are missing: {loaded!r}")


def recorded(job: Job) -> None:
    from gofer import trace

    with trace.FlightRecorder():
        gofer_chan(job)


def cases(idiom: str, run: Callable[[Job], None]) -> list[Case]:
    return with_procs(Case("gofer", idiom, run), 1, 2)


WORKLOAD = Workload(
    name="tracing",
    title="ping-pong while it is traced",
    how_to_read="Time for one round trip, as in pingpong. Compare with `no trace`.",
    metric=NS_PER_OP,
    size={"rounds": 300_000},
    quick={"rounds": 10_000},
    ops=lambda size: size["rounds"],
    cases=(
        *cases("no trace", gofer_chan),
        *cases("trace", traced),
        *cases("flight recorder", recorded),
    ),
    bars=(
        Bar("at most 1.25x without", "gil", "gofer-p1/trace", ("gofer-p1/no trace",), at_most=1.25),
        Bar(
            "at most 1.25x without",
            "free-threaded",
            "gofer-p1/trace",
            ("gofer-p1/no trace",),
            at_most=1.25,
        ),
    ),
)
