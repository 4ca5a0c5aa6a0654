"""Echo: what does a request cost the server?

50 connections, each with one request of 1 KB under way. The load comes from one program in C, the
same for all. It and the server share two cores, so how many requests a second there are says as
much about the load program as about the server: the figure is the server's own CPU time for each.
"""

from __future__ import annotations

from benchmarks import _servers
from benchmarks._model import CPU_PER_OP, Bar, Case, Workload, with_procs

OURS = "gofer-p1/streams"
STREAMS = ("uvloop/streams",)
PROTOCOL = ("uvloop/protocol",)

WORKLOAD = Workload(
    name="echo",
    title="echo server, 50 connections, 1 KB",
    how_to_read=(
        "CPU time of the server, user and system, for one request and its answer. streams: code"
        " that reads and writes in turn; protocol: callbacks."
    ),
    metric=CPU_PER_OP,
    size={"requests": 200_000, "conns": 50, "size": 1024},
    quick={"requests": 10_000, "conns": 50, "size": 1024},
    ops=lambda size: size["requests"],
    load="echo",
    cases=(
        *with_procs(Case("gofer", "streams", _servers.gofer_streams), 1, 2),
        Case("asyncio", "streams", _servers.asyncio_streams),
        Case("asyncio", "protocol", _servers.asyncio_protocol),
        Case("uvloop", "streams", _servers.asyncio_streams),
        Case("uvloop", "protocol", _servers.asyncio_protocol),
        Case("trio", "streams", _servers.trio_streams, size={"requests": 40_000}),
        *with_procs(Case("tonio", "sockets", _servers.tonio_sockets), 1, 2),
        *with_procs(Case("go", "Read, Write", None), 1, 2),
    ),
    bars=(
        *(
            bar
            for build in ("gil", "free-threaded")
            for bar in (
                Bar("at most 1.1x uvloop's protocols", build, OURS, PROTOCOL, at_most=1.1),
                Bar("at most 0.75x uvloop's streams", build, OURS, STREAMS, at_most=0.75),
            )
        ),
        Bar(
            "at most half of tonio's, 1 P and 1 thread",
            "free-threaded",
            OURS,
            ("tonio-t1/sockets",),
            at_most=0.5,
        ),
        Bar(
            "2 Ps at most 1.3x 1 P",
            "free-threaded",
            "gofer-p2/streams",
            (OURS,),
            at_most=1.3,
        ),
    ),
)
