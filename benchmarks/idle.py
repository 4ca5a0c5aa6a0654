"""Idle: how much memory does a connection hold that nobody uses?

10,000 connections to the servers of echo.py. What the kernel holds for them is not in the figure.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

from benchmarks import _load, _servers
from benchmarks._model import BYTES_PER_OP, Bar, Case, Job, Workload, with_procs

OURS = "gofer-p1/streams"


def holding(server: Callable[[Job, _servers.Load], None]) -> Callable[[Job], None]:
    def run(job: Job) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        server(job, _load.hold)

    return run


WORKLOAD = Workload(
    name="idle",
    title="idle connections",
    how_to_read="Growth of the resident memory of the server, divided by the connections.",
    metric=BYTES_PER_OP,
    size={"conns": 10_000, "size": 1},
    quick={"conns": 500, "size": 1},
    ops=lambda size: size["conns"],
    load="echo",
    cases=(
        *with_procs(Case("gofer", "streams", holding(_servers.gofer_streams)), 1, 2),
        Case("asyncio", "streams", holding(_servers.asyncio_streams)),
        Case("uvloop", "streams", holding(_servers.asyncio_streams)),
        Case("uvloop", "protocol", holding(_servers.asyncio_protocol)),
        *with_procs(Case("tonio", "sockets", holding(_servers.tonio_sockets)), 1, 2),
    ),
    bars=tuple(
        Bar("at most 4 KB", build, OURS, at_most=4096) for build in ("gil", "free-threaded")
    ),
)
