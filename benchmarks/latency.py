"""Latency: how long does a request take when the server is half busy?

The servers of echo.py, but requests come at a fixed rate that all of them can stand, whether the
one before has been answered or not. Latency counts from when a request was due.
"""

from __future__ import annotations

from benchmarks import _servers
from benchmarks._model import P99_DELAY, Bar, Case, Workload, with_procs

OURS = "gofer-p1/streams"

WORKLOAD = Workload(
    name="latency",
    title="echo server at half load, 50 connections, 1 KB",
    how_to_read="99 of 100 requests were answered within this time.",
    metric=P99_DELAY,
    size={"requests": 60_000, "conns": 50, "size": 1024, "rate": 20_000},
    quick={"requests": 6_000, "conns": 50, "size": 1024, "rate": 5_000},
    ops=lambda size: size["requests"],
    load="echo",
    cases=(
        *with_procs(Case("gofer", "streams", _servers.gofer_streams), 1, 2),
        Case("asyncio", "streams", _servers.asyncio_streams),
        Case("uvloop", "streams", _servers.asyncio_streams),
        Case("uvloop", "protocol", _servers.asyncio_protocol),
        *with_procs(Case("tonio", "sockets", _servers.tonio_sockets), 1, 2),
        *with_procs(Case("go", "Read, Write", None), 1, 2),
    ),
    bars=tuple(
        Bar("at most uvloop's streams", build, OURS, ("uvloop/streams",), at_most=1)
        for build in ("gil", "free-threaded")
    ),
)
