"""One case, once, in this fresh process: `python -m benchmarks._worker WORKLOAD CASE SIZE`."""

from __future__ import annotations

import json
import sys

from benchmarks._model import Job, load


def main(name: str, key: str, size_json: str) -> None:
    workload = load(name)
    case = workload.case(key)
    size: dict[str, int] = json.loads(size_json)
    job = Job(case.runtime, case.procs, size, workload.ops(size))
    if case.run is None:
        raise SystemExit(f"{key} is not a Python case")
    case.run(job)
    job.emit()


if __name__ == "__main__":
    main(*sys.argv[1:])
