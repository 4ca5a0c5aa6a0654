"""Connections that read like blocking code and run like an event loop, on all Ps.

>>> from gofer import go, net, run
>>> async def echo(conn):
...     async with conn:
...         while data := await conn.read():
...             await conn.write(data)
>>> async def serve(listener):
...     async for conn in listener:
...         go(echo, conn)
>>> async def main():
...     async with net.listen("127.0.0.1", 0) as listener:
...         go(serve, listener)
...         async with await net.dial(*listener.addr) as conn:
...             await conn.write(b"hello")
...             return await conn.read()
>>> run(main)
b'hello'
"""

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

from gofer import _dial
from gofer._core import (
    Conn,
    Descriptor,
    Listener,
    Operation,
    PacketConn,
    notify_closing,
    wait_readable,
    wait_writable,
)
from gofer._errors import ClosedError, IncompleteRead, LimitExceeded
from gofer._time import timeout as _timeout

if TYPE_CHECKING:
    import ssl

    from gofer._tls import TLSConn, TLSListener

__all__ = [
    "ClosedError",
    "Conn",
    "Descriptor",
    "IncompleteRead",
    "LimitExceeded",
    "Listener",
    "PacketConn",
    "TLSConn",
    "TLSListener",
    "UnixListener",
    "dial",
    "dial_udp",
    "dial_unix",
    "listen",
    "listen_udp",
    "listen_unix",
    "notify_closing",
    "open_fd",
    "resolve",
    "start_tls",
    "wait_readable",
    "wait_writable",
]

BACKLOG = 4096  # the kernel takes at most net.core.somaxconn


def __getattr__(name: str) -> Any:
    if name in ("TLSConn", "TLSListener"):  # only these need module ssl
        from gofer import _tls

        return getattr(_tls, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


async def resolve(host: str | None, port: int) -> list[Any]:
    """The addresses of a host, as module socket writes them, in the order in which to try them.

    >>> await net.resolve("127.0.0.1", 80)
    [('127.0.0.1', 80)]
    """
    return [t.address for t in await _dial.targets(host, port, socket.SOCK_STREAM)]


# --- connecting ----------------------------------------------------------------------------------


async def dial(
    host: str | None,
    port: int,
    *,
    tls: "ssl.SSLContext | bool | None" = None,
    server_hostname: str | None = None,
    timeout: float | None = None,
) -> Conn:
    """Connect to a TCP server.

    A host with several addresses is tried at all of them, one a quarter of a second after the
    other, and the first that answers is taken. `tls` is an ssl.SSLContext, or True for the default
    one, which checks the server's certificate. TimeoutError if all of it takes longer than
    `timeout` seconds.

    >>> async with await net.dial("example.org", 443, tls=True, timeout=10) as conn:
    ...     await conn.write(b"GET / HTTP/1.0\\r\\nHost: example.org\\r\\n\\r\\n")
    """
    if timeout is not None:
        async with _timeout(timeout):
            return await dial(host, port, tls=tls, server_hostname=server_hostname)
    if not tls:
        return await _dial.connect_any(await _dial.targets(host, port, socket.SOCK_STREAM))
    from gofer import _tls

    settings = _tls.client_context(tls)
    conn = await _dial.connect_any(await _dial.targets(host, port, socket.SOCK_STREAM))
    try:
        return await _tls.start(conn, settings, False, server_hostname or host)
    finally:
        conn.close()  # nothing, unless it failed before TLS took over


async def dial_unix(path: str | bytes | os.PathLike[str], *, timeout: float | None = None) -> Conn:
    """Connect to a Unix stream socket. A name that begins with a zero byte is an abstract one.

    >>> async with net.listen_unix("app.sock") as listener:
    ...     conn = await net.dial_unix("app.sock")
    """
    if timeout is not None:
        async with _timeout(timeout):
            return await dial_unix(path)
    address = path if isinstance(path, bytes) else os.fspath(path)
    return await _dial.connect(_dial.Target(socket.AF_UNIX, socket.SOCK_STREAM, address))


async def start_tls(
    conn: Conn,
    tls: "ssl.SSLContext",
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
) -> "TLSConn":
    """Encrypt a connection from here on; `conn` itself is used up.

    >>> conn = await net.dial("example.org", 443)
    >>> tls = ssl.create_default_context()
    >>> conn = await net.start_tls(conn, tls, server_hostname="example.org")
    """
    from gofer import _tls

    return await _tls.start(conn, _tls.server_context(tls), server_side, server_hostname)


def dial_udp(host: str | None, port: int) -> PacketConn:
    """A UDP socket that sends to, and hears from, one peer only.

    >>> server = net.listen_udp("127.0.0.1", 0)
    >>> udp = net.dial_udp(*server.local_addr)
    >>> await udp.write(b"question")
    >>> await server.read()
    b'question'
    """
    found = _dial.targets_now(host or "localhost", port, socket.SOCK_DGRAM, 0)
    with socket.socket(found[0].family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        with _dial.naming(found[0].address):
            sock.connect(found[0].address)
        return PacketConn(sock.detach())


# --- listening -----------------------------------------------------------------------------------


class UnixListener(Listener):
    """A Listener on a path, which close() removes.

    >>> listener = net.listen_unix("app.sock")
    >>> listener.close()
    """

    __slots__ = ("_path",)
    _path: str | bytes

    def __new__(cls, fd: int, path: str | bytes) -> "UnixListener":
        self = super().__new__(cls, fd)
        self._path = path
        return self

    def close(self) -> Operation[None]:
        """As Listener.close(), and remove the path.

        >>> listener.close()
        """
        abstract = self._path[:1] in ("\0", b"\0")
        if not self.closed and not abstract:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        return super().close()


def _bound(host: str | None, port: int, kind: int, reuse_port: bool) -> socket.socket:
    """A socket bound to the first address of `host`; without one, to all of this machine."""
    found = _dial.targets_now(host, port, kind, socket.AI_PASSIVE)
    if host:
        found.sort(key=lambda t: t.family != socket.AF_INET)  # as Go: IPv4 if there is one
    else:
        found.sort(key=lambda t: t.family != socket.AF_INET6)  # serves both
    errors: list[OSError] = []
    for target in found if not host else found[:1]:
        try:
            with _dial.naming(target.address):
                sock = socket.socket(target.family, target.kind | socket.SOCK_NONBLOCK)
        except OSError as exc:  # no IPv6 here
            errors.append(exc)
            continue
        try:
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                _dial.set_tcp_options(sock)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if target.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(host)))
            with _dial.naming(target.address):
                sock.bind(target.address)
            return sock
        except OSError as exc:
            sock.close()
            errors.append(exc)
        except BaseException:
            sock.close()
            raise
    raise errors[-1]


def listen(
    host: str | None,
    port: int,
    *,
    tls: "ssl.SSLContext | None" = None,
    backlog: int = BACKLOG,
    reuse_port: bool = False,
) -> Listener:
    """Wait for TCP connections. Port 0: any that is free, see `addr`. No host: all addresses.

    With `tls`, a server's ssl.SSLContext, its connections are encrypted. `reuse_port` lets several
    processes share a port. It need not be awaited, but may be.

    >>> async with net.listen("127.0.0.1", 0) as listener:
    ...     host, port = listener.addr
    ...     go(net.dial, host, port)
    ...     conn = await listener.accept()
    """
    settings = None
    if tls is not None:
        from gofer import _tls

        settings = _tls.server_context(tls)
    with _bound(host, port, socket.SOCK_STREAM, reuse_port) as sock:
        with _dial.naming(sock.getsockname()):  # another may have begun to since
            sock.listen(backlog)
        if settings is not None:
            return _tls.TLSListener(sock.detach(), settings)
        return Listener(sock.detach())


def listen_unix(path: str | bytes | os.PathLike[str], *, backlog: int = BACKLOG) -> UnixListener:
    """Wait for connections on a Unix stream socket. close() removes the path.

    >>> async with net.listen_unix("app.sock") as listener:
    ...     go(net.dial_unix, "app.sock")
    ...     conn = await listener.accept()
    """
    address = path if isinstance(path, bytes) else os.fspath(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        with _dial.naming(address):
            sock.bind(address)
            sock.listen(backlog)
        return UnixListener(sock.detach(), address)


def listen_udp(host: str | None, port: int, *, reuse_port: bool = False) -> PacketConn:
    """A UDP socket that hears from anybody.

    >>> async with net.listen_udp("127.0.0.1", 0) as udp:
    ...     await udp.write_to(b"to myself", udp.local_addr)
    ...     data, addr = await udp.read_from()
    """
    with _bound(host, port, socket.SOCK_DGRAM, reuse_port) as sock:
        return PacketConn(sock.detach())


def open_fd(fd: int) -> Conn:
    """A Conn from a descriptor, of a pipe, a terminal or a socket, which it owns from then on.

    >>> reader, writer = (net.open_fd(fd) for fd in os.pipe())
    """
    return Conn(fd)
