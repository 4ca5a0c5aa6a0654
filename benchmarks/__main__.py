"""The command line: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks import NAMES, _report, _runner
from benchmarks._model import Workload, load

RESULTS = Path(__file__).parent / "results"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="gofer beside its peers, in one table"
    )
    parser.add_argument("workload", nargs="*", help=f"any of: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each case (5; quick: 2)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument(
        "--peers",
        metavar="A,B",
        help=f"which runtimes beside gofer, of {', '.join(_runner.RUNTIMES[1:])} (default: all)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write every figure")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="for one run (300)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is not met")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    options = parser.parse_args(arguments)
    for name in options.workload:
        if name not in NAMES:
            parser.error(f"no workload {name!r}; there are {', '.join(NAMES)}")
    options.runtimes = _runner.RUNTIMES
    if options.peers is not None:
        wanted = {"gofer", *filter(None, options.peers.split(","))}
        if unknown := wanted - set(_runner.RUNTIMES):
            parser.error(f"no peer {', '.join(sorted(unknown))}")
        options.runtimes = tuple(name for name in _runner.RUNTIMES if name in wanted)
    if options.repeats is None:
        options.repeats = 2 if options.quick else 5
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def json_path(options: argparse.Namespace) -> Path:
    """A run of only a part, or a quick one, must not replace the figures of a whole one."""
    if options.json is not None:
        return Path(options.json)
    part = "-quick" if options.quick else ""
    part += "-partial" if options.workload or options.peers is not None else ""
    return Path(os.path.relpath(RESULTS)) / f"{_runner.PYTHON}{part}.json"


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    workloads = [load(name) for name in dict.fromkeys(options.workload or NAMES)]
    presences = {name: _runner.find(name) for name in options.runtimes}
    print(_report.header(presences), flush=True)
    _runner.compile_workloads()
    results: list[tuple[Workload, list[_runner.Outcome]]] = []
    verdicts: list[_report.Verdict] = []
    for workload in workloads:
        asked = [case for case in workload.cases if case.runtime in presences]
        reasons = [(case, _runner.why_not(case, presences)) for case in asked]
        cases = [case for case, reason in reasons if not reason]
        left_out = [(case, reason) for case, reason in reasons if reason]
        if options.list:
            print("\n" + _report.listing(workload, cases, left_out, quick=options.quick))
            continue
        outcomes = _runner.run_all(
            workload,
            cases,
            repeats=options.repeats,
            quick=options.quick,
            timeout=options.timeout,
            progress=progress,
        )
        table = _report.table(workload, outcomes, left_out, quick=options.quick)
        print("\n" + table, flush=True)
        results.append((workload, outcomes))
        verdicts += _report.judge(workload, outcomes)
    if options.list:
        return 0
    print("\n" + _report.bars(verdicts, repeats=options.repeats, quick=options.quick))
    print("\n" + _report.noise(outcome for _, outcomes in results for outcome in outcomes))
    path = json_path(options)
    _report.write_json(path, presences, results, verdicts, quick=options.quick)
    print(f"every figure: {path}")
    return int(options.check and any(v.word == "FAIL" for v in verdicts))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
