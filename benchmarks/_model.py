"""What a workload is made of. A workload file is these objects plus one small function a runtime.

A `Case` is one row of the table: a runtime, an idiom of it, a number of processors. Its function
gets a `Job`, does its set-up, and puts what is to be measured inside `with job.measure():`, inside
the running runtime. So neither the interpreter's start nor the runtime's teardown is in a figure.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Size = Mapping[str, int]
Build = Literal["gil", "free-threaded"]


@dataclass(frozen=True)
class Sample:
    """What one run of one case said; the Go programs print the same fields."""

    ops: int
    seconds: float
    cpu_seconds: float  # user + system, all threads, during the measured part
    grown_bytes: int  # resident memory at the end of the measured part minus at its start
    peak_bytes: int  # the process's highest resident memory so far
    gil: bool = False  # the GIL was on: on a free-threaded build some import switched it on
    worst_seconds: float = 0.0  # workloads about delays: the longest, and the 99th percentile
    p99_seconds: float = 0.0


@dataclass
class Job:
    """One run of one case, as its function sees it."""

    runtime: str
    procs: int
    size: Size
    ops: int
    sample: Sample | None = None

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the block. The collector runs before it, so every runtime starts alike."""
        gc.collect()
        grown = -_resident_bytes()
        cpu = -time.process_time()
        seconds = -time.perf_counter()
        yield
        seconds += time.perf_counter()
        cpu += time.process_time()
        grown += _resident_bytes()
        self.sample = Sample(self.ops, seconds, cpu, grown, _peak_bytes(), _gil_enabled())

    def delays(self, seconds: Sequence[float]) -> None:
        """After the measured part: how late things were in it."""
        assert self.sample is not None
        ordered = sorted(seconds)
        self.sample = dataclasses.replace(
            self.sample,
            worst_seconds=ordered[-1],
            p99_seconds=ordered[len(ordered) * 99 // 100],
        )

    def emit(self) -> None:
        """Print the sample as one JSON line, which the parent reads."""
        if self.sample is None:
            raise RuntimeError("the case ended without measuring anything")
        sys.stdout.write(json.dumps(dataclasses.asdict(self.sample)) + "\n")
        sys.stdout.flush()

    def emit_and_exit(self) -> None:
        """End the process here: tearing down a million tasks would only cost time."""
        self.emit()
        os._exit(0)

    def run_loop(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `main` on asyncio's own loop or on uvloop's: their programs are the same."""
        peer("uvloop" if self.runtime == "uvloop" else "asyncio").run(main())


def peer(module: str) -> Any:
    """Import a peer, untyped and late: nobody needs the peers installed to read or check this
    package, and a measured process holds one runtime only."""
    return importlib.import_module(module)


@dataclass(frozen=True)
class Case:
    runtime: str
    idiom: str
    run: Callable[[Job], None] | None  # None: the Go program of the workload
    group: str = ""  # rows are compared within a group
    procs: int = 0  # 0: the runtime has one thread and no such notion
    size: Size = field(default_factory=dict)  # overrides the workload's
    since: tuple[int, int] = (3, 11)
    free_threaded: bool = False  # makes sense on a free-threaded build only

    @property
    def label(self) -> str:
        if not self.procs:
            return self.runtime
        return f"{self.runtime}-{'p' if self.runtime in ('gofer', 'go') else 't'}{self.procs}"

    @property
    def key(self) -> str:
        """Names the case in bars, in JSON and on the worker's command line."""
        return "/".join(part for part in (self.label, self.group, self.idiom) if part)


def with_procs(case: Case, *counts: int) -> list[Case]:
    """The case once for each number of processors. With the GIL one is all a Python runtime has."""
    python = case.run is not None
    return [
        dataclasses.replace(
            case, procs=count, free_threaded=case.free_threaded or (python and count > 1)
        )
        for count in counts
    ]


@dataclass(frozen=True)
class Metric:
    """The figure a workload is judged by. Less is always better."""

    name: str
    of: Callable[[Sample], float]
    show: Callable[[float], str]


def _show_ns(value: float) -> str:
    if value < 1e3:
        return f"{value:.0f} ns"
    return f"{value / 1e3:.2f} µs" if value < 1e6 else f"{value / 1e6:.2f} ms"


NS_PER_OP = Metric("time per op", lambda s: s.seconds / s.ops * 1e9, _show_ns)
CPU_PER_OP = Metric("CPU per op", lambda s: s.cpu_seconds / s.ops * 1e9, _show_ns)
CPU_SECONDS = Metric("CPU time", lambda s: s.cpu_seconds, lambda v: f"{v:.3f} s")
WALL_SECONDS = Metric("wall time", lambda s: s.seconds, lambda v: f"{v:.3f} s")
WORST_DELAY = Metric("worst delay", lambda s: s.worst_seconds, lambda v: f"{v * 1e3:.2f} ms")
P99_DELAY = Metric("99th percentile", lambda s: s.p99_seconds, lambda v: f"{v * 1e3:.2f} ms")
CPU_SHARE = Metric("of one CPU", lambda s: s.cpu_seconds / s.seconds, lambda v: f"{v:.2%}")
BYTES_PER_OP = Metric("bytes each", lambda s: s.grown_bytes / s.ops, lambda v: f"{v:.0f} B")


@dataclass(frozen=True)
class Bar:
    """What we promise. Exactly one of `at_least` and `at_most` is given.

    `at_least=8` with `than`: the best of `than` needs at least 8 times what `case` needs.
    `at_most=0.25` with `than`: `case` needs at most a quarter of the best of `than`.
    `at_most=450` alone: the figure itself.
    """

    says: str
    build: Build
    case: str
    than: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    promise: bool = True  # False: print the number beside the promises, without a verdict
    metric: Metric | None = None  # None: the workload's


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    how_to_read: str
    metric: Metric
    size: Size
    quick: Size
    ops: Callable[[Size], int]
    cases: tuple[Case, ...]
    bars: tuple[Bar, ...] = ()
    load: str = ""  # the program under load/ that the cases use, see _load
    more: tuple[Metric, ...] = ()  # shown too, of the best run

    def __post_init__(self) -> None:
        keys = [case.key for case in self.cases]
        if len(set(keys)) != len(keys):
            raise ValueError(f"{self.name}: two cases have the same key")
        for bar in self.bars:
            if (bar.at_least is None) == (bar.at_most is None):
                raise ValueError(f"{self.name}: bar {bar.says!r} needs one limit")
            for key in (bar.case, *bar.than):
                if key not in keys:
                    raise ValueError(f"{self.name}: bar {bar.says!r} names no case: {key!r}")

    def case(self, key: str) -> Case:
        return next(case for case in self.cases if case.key == key)

    def size_of(self, case: Case, *, quick: bool) -> dict[str, int]:
        return {**(self.quick if quick else self.size), **case.size}


def load(name: str) -> Workload:
    workload = importlib.import_module(f"benchmarks.{name}").WORKLOAD
    if not isinstance(workload, Workload):
        raise TypeError(f"benchmarks.{name}.WORKLOAD is not a Workload")
    return workload


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak_bytes() -> int:
    # Not ru_maxrss: that one remembers the parent's size through fork and exec.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def _gil_enabled() -> bool:
    enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return enabled() if enabled is not None else True
