"""What the tests of the network need: servers, pairs of connections, certificates."""

import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import gofer
from gofer import net

Handler = Callable[[net.Conn], Awaitable[None]]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two plain blocking sockets, connected over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = socket.create_connection(server.getsockname())
        b, _ = server.accept()
    return a, b


def conn_pair(unix: bool = False) -> tuple[net.Conn, net.Conn]:
    """Two Conns, connected."""
    a, b = socket.socketpair() if unix else tcp_pair()
    return net.Conn(a.detach()), net.Conn(b.detach())


def conn_and_socket() -> tuple[net.Conn, socket.socket]:
    """A Conn, and a plain socket at its other end."""
    a, b = tcp_pair()
    return net.Conn(a.detach()), b


def fill(sock: socket.socket) -> None:
    """Write to a non-blocking socket until it takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(10_000))


def drain(sock: socket.socket) -> None:
    """Read from a non-blocking socket until there is no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.recv(100_000)


async def echo(conn: net.Conn) -> None:
    """Serve one connection: send back what comes."""
    async with conn:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await conn.read():
                await conn.write(data)


async def serve(listener: net.Listener, handler: Handler) -> None:
    async for conn in listener:
        gofer.go(handler, conn)


@contextlib.asynccontextmanager
async def serving(listener: net.Listener, handler: Handler = echo) -> AsyncIterator[Any]:
    """A server for the time of the block; gives its address."""
    server = gofer.go(serve, listener, handler)
    try:
        yield listener.addr
    finally:
        listener.close()
        await server


@contextlib.asynccontextmanager
async def echo_server(handler: Handler = echo) -> AsyncIterator[int]:
    """A TCP server for the time of the block; gives its port."""
    async with serving(net.listen("127.0.0.1", 0), handler) as addr:
        yield addr[1]


async def raised_by(awaitable: Awaitable[Any]) -> BaseException | None:
    """As a goroutine: what awaiting it raises."""
    try:
        await awaitable
    except BaseException as exc:
        return exc.with_traceback(None)
    return None


class Certificate(NamedTuple):
    """A self-signed certificate of localhost, and contexts that use it."""

    path: str
    key: str

    def server(self, *alpn: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self.key)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    def client(self, *alpn: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.path)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context


def make_certificate(folder: Path, host: str = "localhost") -> Certificate:
    """With the openssl program: the ssl module cannot make one."""
    path, key = str(folder / f"{host}.pem"), str(folder / f"{host}.key")
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -keyout {key} -out {path} -subj /CN={host}"
        f" -addext subjectAltName=DNS:{host},IP:127.0.0.1".split(),
        check=True,
        capture_output=True,
    )
    return Certificate(path, key)
