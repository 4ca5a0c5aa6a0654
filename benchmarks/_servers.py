"""Echo servers on every runtime: echo.py, latency.py and idle.py put different load on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import _load
from benchmarks._model import Job, peer

Load = Callable[[Job, int], None]
SIZE = 65536  # what each reads at most
BACKLOG = 4096  # thousands come at once


def gofer_streams(job: Job, load: Load = _load.start) -> None:
    import gofer
    from gofer import net

    async def echo(conn: net.Conn) -> None:
        async with conn:
            while data := await conn.read(SIZE):
                await conn.write(data)

    async def main() -> None:
        async with net.listen("127.0.0.1", 0, backlog=BACKLOG) as listener:
            load(job, listener.addr[1])
            async for conn in listener:
                gofer.go(echo, conn)

    gofer.run(main, procs=job.procs)


def asyncio_protocol(job: Job, load: Load = _load.start) -> None:
    asyncio = peer("asyncio")

    class Echo(asyncio.Protocol):  # type: ignore[misc, name-defined]
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0, backlog=BACKLOG)
        load(job, server.sockets[0].getsockname()[1])
        await server.serve_forever()

    job.run_loop(main)


def asyncio_streams(job: Job, load: Load = _load.start) -> None:
    asyncio = peer("asyncio")

    async def echo(reader: Any, writer: Any) -> None:
        while data := await reader.read(SIZE):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0, backlog=BACKLOG)
        load(job, server.sockets[0].getsockname()[1])
        await server.serve_forever()

    job.run_loop(main)


def trio_streams(job: Job, load: Load = _load.start) -> None:
    trio = peer("trio")

    async def echo(stream: Any) -> None:
        while data := await stream.receive_some(SIZE):
            await stream.send_all(data)

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=BACKLOG)
        load(job, listener.socket.getsockname()[1])
        await trio.serve_listeners(echo, [listener])

    trio.run(main)


def tonio_sockets(job: Job, load: Load = _load.start) -> None:
    """The way of tonio's own benchmark."""
    tonio = peer("tonio.colored")
    sockets = peer("tonio.colored.net.socket")

    async def echo(conn: Any) -> None:
        with conn:
            while data := await conn.recv(SIZE):
                while data:
                    data = data[await conn.send(data) :]

    async def main() -> None:
        with sockets.socket() as sock:
            await sock.bind(("127.0.0.1", 0))
            sock.listen(BACKLOG)
            load(job, sock.getsockname()[1])
            while True:
                conn, _ = await sock.accept()
                tonio.spawn.without_tracking(echo(conn))

    tonio.run(main(), threads=job.procs)
