"""`gofer bench`: gofer beside its peers, quickly, wherever it is installed.

Every run is a process of its own, and the runtimes take turns, so that a slow moment of the machine
hits all of them; the best run counts.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from typing import Any, NamedTuple

import gofer
from gofer._cli.bench_work import WORKLOADS
from gofer._cli.text import UsageError, UserError, can_print, table

PEERS = ("asyncio", "uvloop", "trio", "tonio")
# Settings from outside that would change what is measured.
UNWANTED = ("GOFERDEBUG", "GOMAXPROCS", "PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONMALLOC")


class Column(NamedTuple):
    """A runtime, and with how many Ps or threads it runs."""

    title: str
    runtime: str
    procs: int


def columns() -> list[Column]:
    """Who takes part here."""
    found = [Column("gofer", "gofer", 1)]
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if free_threaded and (procs := gofer.gomaxprocs()) > 1:
        found = [Column("gofer, 1 P", "gofer", 1), Column(f"gofer, {procs} Ps", "gofer", procs)]
    for name in PEERS:
        if importlib.util.find_spec(name) is not None:
            found.append(Column(name, name, 1))
    return found


def once(workload: str, column: Column) -> float:
    """Nanoseconds for one operation, measured in a new process."""
    environ = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    command = [sys.executable, "-P", "-m", "gofer._cli.bench_work"]
    done = subprocess.run(
        [*command, workload, column.runtime, str(column.procs)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environ,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"{workload} on {column.title} failed: {reason}")
    return float(done.stdout)


def show_ns(ns: float) -> str:
    """A time with three digits."""
    micro = "µs" if can_print("µ") else "us"
    for unit, scale in (("s", 1e9), ("ms", 1e6), (micro, 1e3), ("ns", 1.0)):
        if ns >= scale or unit == "ns":
            value = ns / scale
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    raise AssertionError


def show(results: dict[str, dict[str, float]], taking_part: list[Column]) -> list[str]:
    """The table: each peer beside gofer at one P."""
    ours = taking_part[0].title
    rows: list[tuple[str, ...]] = [("", *(column.title for column in taking_part))]
    for name, figures in results.items():
        cells = []
        for column in taking_part:
            ns = figures.get(column.title)
            if ns is None:
                cells.append("-")
            elif column.runtime == "gofer":
                cells.append(show_ns(ns))
            else:
                cells.append(f"{show_ns(ns)} {ns / figures[ours]:5.1f}x")
        rows.append((WORKLOADS[name].title, *cells))
    return table(rows)


def command(options: argparse.Namespace) -> int:
    """Measure, and print the table."""
    names = list(dict.fromkeys(options.workload)) or list(WORKLOADS)
    for name in names:
        if name not in WORKLOADS:
            raise UsageError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    taking_part = columns()
    results: dict[str, dict[str, float]] = {}
    tell = sys.stderr.isatty()
    for name in names:
        best: dict[str, float] = {}
        for turn in range(options.rounds):
            for column in taking_part:
                if tell:
                    progress = f"{WORKLOADS[name].title}: {column.title}, run {turn + 1}"
                    print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)
                ns = once(name, column)
                best[column.title] = min(best.get(column.title, ns), ns)
        results[name] = best
    if tell:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(_record(results, taking_part), indent=2))
    else:
        print(f"{_about()}; time for one operation, best of {options.rounds}\n")
        print("\n".join(show(results, taking_part)))
    return 0


def _about() -> str:
    threaded = ", free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    version = sys.version.split()[0]
    return f"gofer {gofer.__version__}, Python {version}{threaded}, {gofer.num_cpu()} CPUs"


def _record(results: dict[str, dict[str, float]], taking_part: list[Column]) -> dict[str, Any]:
    return {
        "gofer": gofer.__version__,
        "python": sys.version.split()[0],
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "cpus": gofer.num_cpu(),
        "results": [
            {
                "workload": name,
                "title": WORKLOADS[name].title,
                "runtime": column.runtime,
                "procs": column.procs,
                "ns": round(figures[column.title], 1),
            }
            for name, figures in results.items()
            for column in taking_part
        ],
    }
