"""Turns outcomes into a table, verdicts and JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._model import Bar, Case, Workload
from benchmarks._runner import BUILD, FREE_THREADED, PYTHON, RUNTIMES, Outcome, Presence

NOISY = 0.08  # above this share of the CPUs used by others, a run says little


@dataclass(frozen=True)
class Verdict:
    workload: str
    bar: Bar
    word: str  # PASS, FAIL, SKIP, or NOTE for a bar that is no promise
    detail: str


def header(presences: dict[str, Presence]) -> str:
    """What is measured, on what, and what is missing. Nothing is missing in silence."""
    flags = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    pgo = "PGO" if "--enable-optimizations" in flags else "no PGO"
    python = f"CPython {platform.python_version()} ({BUILD}, {pgo})"
    lines = [f"{python}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"]
    there = [f"{name} {presence.version}" for name, presence in presences.items() if presence]
    lines.append("present: " + ", ".join(there))
    lines += [f"absent: {name} ({p.reason})" for name, p in presences.items() if not p]
    if not_asked := [name for name in RUNTIMES if name not in presences]:
        lines.append("not asked for: " + ", ".join(not_asked))
    return "\n".join(lines)


def table(
    workload: Workload,
    outcomes: Sequence[Outcome],
    left_out: Sequence[tuple[Case, str]],
    *,
    quick: bool,
) -> str:
    lines = [title(workload, quick=quick), workload.how_to_read]
    for group in dict.fromkeys(outcome.case.group for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.case.group == group]
        lines += ["", *_group(workload, group, rows)]
    if left_out:
        lines.append(_omissions(left_out))
    return "\n".join(lines)


def title(workload: Workload, *, quick: bool) -> str:
    size = workload.quick if quick else workload.size
    told = ", ".join(f"{what} {count:,}" for what, count in size.items())
    return f"## {workload.name}: {workload.title} ({told})"


def listing(
    workload: Workload, cases: Sequence[Case], left_out: Sequence[tuple[Case, str]], *, quick: bool
) -> str:
    """What --list says of a workload."""
    lines = [title(workload, quick=quick), workload.how_to_read]
    lines += [f"  case  {case.key}" for case in cases]
    lines += [f"  bar   {bar.says}" for bar in workload.bars if bar.build == BUILD and bar.promise]
    if left_out:
        lines.append(_omissions(left_out))
    return "\n".join(lines)


def _omissions(left_out: Sequence[tuple[Case, str]]) -> str:
    """An absent runtime by its name, once; a case that does not suit this Python by its key."""
    names = [
        reason if reason.startswith(case.runtime) else f"{case.key} {reason}"
        for case, reason in left_out
    ]
    return "left out: " + ", ".join(dict.fromkeys(names))


def _group(workload: Workload, group: str, outcomes: list[Outcome]) -> list[str]:
    """One table, best first, with each figure as a multiple of gofer's and of asyncio's."""
    show = workload.metric.show
    gofer, asyncio = (_reference(outcomes, runtime) for runtime in ("gofer", "asyncio"))
    heads = ["runtime", "idiom", workload.metric.name, "median", "/ gofer", "/ asyncio"]
    heads += [metric.name for metric in workload.more]
    rows = [[*heads, "wall s", "CPU s", "peak MB", ""]]
    for outcome in sorted(outcomes, key=lambda o: float("inf") if o.best is None else o.best):
        case, sample = outcome.case, outcome.best_sample
        name = [f"{case.label} {group}".strip(), case.idiom]
        remarks = [f"FAILED: {error}" for error in outcome.errors]
        if sample is None or outcome.best is None or outcome.median is None:
            rows.append([*name, *["-"] * (7 + len(workload.more)), *remarks])
            continue
        if FREE_THREADED and sample.gil:
            remarks.append("the GIL was on")
        if all(run.others > NOISY for run in outcome.runs):
            remarks.append("no quiet run")
        rows.append(
            [
                *name,
                show(outcome.best),
                show(outcome.median),
                f"{outcome.best / gofer:.2f}" if gofer else "-",
                f"{outcome.best / asyncio:.2f}" if asyncio else "-",
                *(metric.show(metric.of(sample)) for metric in workload.more),
                f"{sample.seconds:.3f}",
                f"{sample.cpu_seconds:.2f}",
                f"{sample.peak_bytes / 2**20:.0f}",
                "; ".join(remarks),
            ]
        )
    return _align(rows)


def _reference(outcomes: list[Outcome], runtime: str) -> float | None:
    """The runtime's first case of the group: its plainest idiom, on one processor."""
    return next((o.best for o in outcomes if o.case.runtime == runtime), None)


def _align(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            text.ljust(width) if column in (0, 1, len(row) - 1) else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return lines


def judge(workload: Workload, outcomes: Iterable[Outcome]) -> list[Verdict]:
    """A verdict for each bar of this build."""
    by_key = {outcome.case.key: outcome for outcome in outcomes}
    return [_judge(workload, bar, by_key) for bar in workload.bars if bar.build == BUILD]


def _judge(workload: Workload, bar: Bar, by_key: dict[str, Outcome]) -> Verdict:
    def verdict(word: str, detail: str) -> Verdict:
        return Verdict(workload.name, bar, word if bar.promise else "NOTE", detail)

    metric = bar.metric or workload.metric
    ours = by_key.get(bar.case)
    if ours is None:
        return verdict("SKIP", f"{bar.case} did not run")
    best = ours.best_of(metric)
    if best is None or ours.errors:
        # One crash in five runs is no pass, however fast the other four were.
        return verdict("FAIL", f"{bar.case}: {ours.errors[-1]}")
    show = metric.show
    if not bar.than:
        assert bar.at_most is not None
        return verdict("PASS" if best <= bar.at_most else "FAIL", show(best))
    than = [by_key[key] for key in bar.than if key in by_key]
    if len(than) < len(bar.than):
        return verdict("SKIP", f"{', '.join(set(bar.than) - set(by_key))} did not run")
    figures = [(figure, o) for o in than if (figure := o.best_of(metric)) is not None]
    if not figures:
        return verdict("SKIP", f"{than[0].case.key}: {than[0].errors[-1]}")
    least, theirs = min(figures, key=lambda pair: pair[0])
    pair = f"{show(best)} against {show(least)} ({theirs.case.key})"
    if bar.at_least is not None:
        ratio = least / best
        # "Faster" means faster: a bar of 1 is not met by a tie.
        met = ratio > 1 if bar.at_least == 1 else ratio >= bar.at_least
    else:
        assert bar.at_most is not None
        ratio = best / least
        met = ratio <= bar.at_most
    return verdict("PASS" if met else "FAIL", f"{ratio:.2f}x: {pair}")


def bars(verdicts: Sequence[Verdict], *, repeats: int, quick: bool) -> str:
    lines = [f"## bars ({PYTHON}, best of {repeats})"]
    if quick:
        lines.append("Small sizes: these show that everything runs, not how fast it is.")
    first = max((len(v.workload) for v in verdicts), default=0)
    wide = max((len(v.bar.says) for v in verdicts), default=0)
    lines += [f"{v.word}  {v.workload:{first}}  {v.bar.says:{wide}}  {v.detail}" for v in verdicts]
    if not verdicts:
        lines.append("none of these workloads has a bar on this build")
    return "\n".join(lines)


def noise(outcomes: Iterable[Outcome]) -> str:
    runs = [run for outcome in outcomes for run in outcome.runs]
    if not runs:
        return "nothing ran"
    others = sorted(run.others for run in runs)
    probes = sorted(run.probe_ms for run in runs)
    noisy = sum(share > NOISY for share in others)
    return (
        f"noise: other work used {median(others):.1%} of the CPUs (median;"
        f" at most {others[-1]:.1%}; {noisy} of {len(runs)} runs above {NOISY:.0%});"
        f" machine-speed probe {probes[0]:.1f} to {probes[-1]:.1f} ms, median {median(probes):.1f}"
    )


def write_json(
    path: Path,
    presences: dict[str, Presence],
    results: Sequence[tuple[Workload, Sequence[Outcome]]],
    verdicts: Sequence[Verdict],
    *,
    quick: bool,
) -> None:
    document = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version,
        "build": BUILD,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "quick": quick,
        "runtimes": {name: p.version or f"absent: {p.reason}" for name, p in presences.items()},
        "workloads": {
            workload.name: {
                "title": workload.title,
                "metric": workload.metric.name,
                "cases": {o.case.key: _case_json(o, quick=quick) for o in outcomes},
            }
            for workload, outcomes in results
        },
        "bars": [
            {"workload": v.workload, "bar": v.bar.says, "verdict": v.word, "detail": v.detail}
            for v in verdicts
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _case_json(outcome: Outcome, *, quick: bool) -> dict[str, Any]:
    return {
        "size": outcome.workload.size_of(outcome.case, quick=quick),
        "best": outcome.best,
        "median": outcome.median,
        "runs": [dataclasses.asdict(run) for run in outcome.runs],
    }
