"""gofer beside its peers: the same small programs on every runtime, in one table.

Run it from the root of the repository with an interpreter that has gofer and the peers:

    python -m benchmarks                     every workload, best of 5
    python -m benchmarks spawn --quick       one workload, small sizes
    python -m benchmarks --list              what there is and what can run here

README.md tells how the figures are taken and how far to trust them.
"""

from __future__ import annotations

# A workload is the module of the same name, holding WORKLOAD. The order is that of the report.
NAMES = (
    "spawn",
    "yields",
    "pingpong",
    "prodcons",
    "mpmc",
    "mutex",
    "selects",
    "offload",
    "workerpool",
    "sleeps",
    "parked",
    "gc",
    "cpu",
    "stall",
    "echo",
    "latency",
    "idle",
    "http",
    "tracing",
)
