"""Runs cases: each run in a fresh process, round-robin over the cases, noise noted.

Round-robin because a machine's speed drifts: when every case runs once before any runs again,
a slow minute hits all of them, and the best of n of each comes from the same good moments.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median

from benchmarks import _go, _load
from benchmarks._model import Build, Case, Metric, Sample, Workload

ROOT = Path(__file__).parent.parent
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
BUILD: Build = "free-threaded" if FREE_THREADED else "gil"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}{'t' if FREE_THREADED else ''}"

# What to import to know that a runtime is there. Go is looked for by _go.
MODULES = {
    "gofer": "gofer",
    "asyncio": "asyncio",
    "uvloop": "uvloop",
    "trio": "trio",
    "tonio": "tonio.colored",
    "threads": "threading",
}
RUNTIMES = (*MODULES, "go")

# Settings from outside that would change what is measured.
UNWANTED = (
    "GODEBUG",
    "GOFERDEBUG",
    "GOGC",
    "GOMAXPROCS",
    "GOMEMLIMIT",
    "PYTHONASYNCIODEBUG",
    "PYTHONDEVMODE",
    "PYTHONDONTWRITEBYTECODE",  # see compile_workloads
    "PYTHONFAULTHANDLER",
    "PYTHONMALLOC",
    "PYTHONTRACEMALLOC",
    "PYTHON_GIL",
)


@dataclass(frozen=True)
class Run:
    """One process: what it measured or why it did not, and how quiet the machine was."""

    sample: Sample | None
    error: str
    others: float  # share of all CPUs that other work used meanwhile, 0 to 1
    probe_ms: float  # a fixed piece of Python just before: the machine's speed at the moment


@dataclass
class Outcome:
    """All runs of one case."""

    workload: Workload
    case: Case
    runs: list[Run] = field(default_factory=list)

    @property
    def samples(self) -> list[Sample]:
        return [run.sample for run in self.runs if run.sample is not None]

    @property
    def errors(self) -> list[str]:
        return [run.error for run in self.runs if run.error]

    @property
    def best_sample(self) -> Sample | None:
        return min(self.samples, key=self.workload.metric.of, default=None)

    @property
    def best(self) -> float | None:
        return self.best_of(self.workload.metric)

    def best_of(self, metric: Metric) -> float | None:
        return min(map(metric.of, self.samples), default=None)

    @property
    def median(self) -> float | None:
        values = [self.workload.metric.of(sample) for sample in self.samples]
        return median(values) if values else None


@dataclass(frozen=True)
class Presence:
    """Whether a runtime can run here: its version, or else why not."""

    version: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


def find(runtime: str) -> Presence:
    """Look for a runtime by importing it, in another process: a broken one must not hurt us."""
    if runtime == "go":
        try:
            return Presence(version=_go.compiler()[1].removeprefix("go"))
        except _go.NoGo as error:
            return Presence(reason=_last_line(str(error)))
    done = subprocess.run(
        [sys.executable, "-c", f"import {MODULES[runtime]}"],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return Presence(reason=_last_line(done.stderr) or f"exit code {done.returncode}")
    try:
        return Presence(version=metadata.version(runtime))
    except metadata.PackageNotFoundError:
        return Presence(version=PYTHON)  # part of Python


def why_not(case: Case, presences: dict[str, Presence]) -> str:
    """Why this case cannot or should not run here; empty if it can."""
    if not presences[case.runtime]:
        return f"{case.runtime} is absent"
    if case.free_threaded and not FREE_THREADED:
        return "needs a free-threaded build"
    if sys.version_info < case.since:
        return "needs Python {}.{}".format(*case.since)
    return ""


def compile_workloads() -> None:
    """Write the bytecode files of this package before anything runs.

    Free-threaded CPython 3.14 makes a function's constants immortal when it loads a module from a
    bytecode file, but not when it compiles the source on import. A constant that is not immortal
    has a reference count, and two threads in the same loop then spend their time passing that
    count from core to core: no runtime would get anything from a second processor.
    """
    compileall.compile_dir(Path(__file__).parent, maxlevels=0, quiet=2)


def run_all(
    workload: Workload,
    cases: Iterable[Case],
    *,
    repeats: int,
    quick: bool,
    timeout: float,
    progress: Callable[[str], None],
) -> list[Outcome]:
    """Run each case `repeats` times, round-robin. A case that failed is not run again."""
    outcomes = [Outcome(workload, case) for case in cases]
    for repeat in range(1, repeats + 1):
        for outcome in outcomes:
            if outcome.errors:
                continue
            run = run_once(workload, outcome.case, quick=quick, timeout=timeout)
            outcome.runs.append(run)
            if run.sample is None:
                told = f"FAILED: {run.error}"
            else:
                told = workload.metric.show(workload.metric.of(run.sample))
            progress(f"{workload.name} {repeat}/{repeats} {outcome.case.key}: {told}")
    return outcomes


def run_once(workload: Workload, case: Case, *, quick: bool, timeout: float) -> Run:
    size = workload.size_of(case, quick=quick)
    environment = _environment()
    try:
        if workload.load:
            environment[_load.VARIABLE] = _load.build(workload.load)
        if case.run is None:
            command = [_go.build(workload.name), *(f"{key}={size[key]}" for key in size)]
            environment["GOMAXPROCS"] = str(case.procs)
        else:
            command = [sys.executable, "-m", "benchmarks._worker"]
            command += [workload.name, case.key, json.dumps(size)]
    except (_go.NoGo, _load.NoCompiler) as failure:
        return Run(None, _last_line(str(failure)), 0.0, 0.0)
    probe = _probe_ms()
    before = _Clocks()
    output, error = _communicate(command, environment, timeout)
    others = before.others_until(_Clocks())
    if error:
        return Run(None, error, others, probe)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        return Run(None, "it printed no sample", others, probe)
    return Run(Sample(**json.loads(lines[-1])), "", others, probe)


def _communicate(
    command: list[str], environment: dict[str, str], timeout: float
) -> tuple[str, str]:
    """The output of a command, or what went wrong."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that whatever it started can be ended with it
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return "", f"no end after {timeout:.0f} s"
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode < 0:
        return "", f"killed by {signal.Signals(-process.returncode).name}"
    if process.returncode:
        return "", f"exit code {process.returncode}: {_last_line(errors)}"
    return output, ""


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in UNWANTED}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


class _Clocks:
    """CPU seconds of the machine and of ourselves: their difference is other people's work."""

    def __init__(self) -> None:
        self.wall = time.monotonic()
        usages = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        self.ours = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        with open("/proc/stat") as file:
            # user nice system idle iowait irq softirq steal; guest time is in user already
            ticks = [int(field) for field in file.readline().split()[1:9]]
        self.busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")

    def others_until(self, end: _Clocks) -> float:
        theirs = (end.busy - self.busy) - (end.ours - self.ours)
        available = (os.cpu_count() or 1) * (end.wall - self.wall)
        return max(0.0, theirs / available)


def _probe_ms() -> float:
    start = time.perf_counter()
    total = 0
    for i in range(200_000):
        total += i * i % 1000
    return (time.perf_counter() - start) * 1e3
