"""HTTP: the example server beside uvicorn.

A GET of some bytes of plain text, 50 connections, as in echo.py. Both parse with httptools; uvicorn
runs on uvloop and an ASGI application that does nothing else, without an access log.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import _load
from benchmarks._model import CPU_PER_OP, Bar, Case, Job, Workload, peer, with_procs

EXAMPLES = Path(__file__).parent.parent / "examples" / "servers"


def gofer_http(job: Job) -> None:
    import gofer
    from gofer import net

    sys.path.insert(0, str(EXAMPLES))
    example = peer("http_server")

    async def main() -> None:
        async with net.listen("127.0.0.1", 0) as listener:
            _load.start(job, listener.addr[1], http=1)
            await example.Server(example.hello).accept(listener)

    gofer.run(main, procs=job.procs)


def uvicorn_asgi(job: Job) -> None:
    uvicorn = peer("uvicorn")
    headers = [(b"content-type", b"text/plain; charset=utf-8")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"Hello, world!"})

    config = uvicorn.Config(
        app,
        port=0,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    server = uvicorn.Server(config)
    start = server.startup

    async def startup(sockets: Any = None) -> None:
        await start(sockets)
        _load.start(job, server.servers[0].sockets[0].getsockname()[1], http=1)

    server.startup = startup
    server.run()


WORKLOAD = Workload(
    name="http",
    title="HTTP server, 50 connections, plain text",
    how_to_read="CPU time of the server, user and system, for one request and its answer.",
    metric=CPU_PER_OP,
    size={"requests": 100_000, "conns": 50},
    quick={"requests": 5_000, "conns": 50},
    ops=lambda size: size["requests"],
    load="echo",
    cases=(
        *with_procs(Case("gofer", "http_server.py", gofer_http), 1, 2),
        Case("uvloop", "uvicorn", uvicorn_asgi),
    ),
    bars=tuple(
        Bar(
            "at most uvicorn's",
            build,
            "gofer-p1/http_server.py",
            ("uvloop/uvicorn",),
            at_most=1,
        )
        for build in ("gil", "free-threaded")
    ),
)
