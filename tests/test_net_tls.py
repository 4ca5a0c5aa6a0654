"""TLS: against ourselves and against Python's own ssl sockets."""

import contextlib
import random
import shutil
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import net
from tests.net_support import (
    Certificate,
    conn_pair,
    make_certificate,
    raised_by,
    serving,
    tcp_pair,
)
from tests.support import parked, thread, until, wait_for

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="the openssl program, which makes the certificates, is not installed",
)


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def cert(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("cert"))


@pytest.fixture(params=["TLSv1_2", "TLSv1_3"])
def version(request: pytest.FixtureRequest) -> ssl.TLSVersion:
    return ssl.TLSVersion[request.param]


async def tls_pair(cert: Certificate, *pair: net.Conn) -> tuple[net.TLSConn, net.TLSConn]:
    """Client and server, after the handshake."""
    a, b = pair or conn_pair()
    client = gofer.go(net.start_tls, a, cert.client(), server_hostname="localhost")
    server = await net.start_tls(b, cert.server(), server_side=True)
    return await client, server


def test_dial_and_listen(procs: int, cert: Certificate, version: ssl.TLSVersion) -> None:
    context = cert.server()
    context.maximum_version = version

    async def client(port: int, i: int) -> None:
        async with await net.dial("localhost", port, tls=cert.client(), timeout=30) as conn:
            assert isinstance(conn, net.TLSConn)
            assert conn.ssl_object.version() == version.name.replace("_", ".")
            for k in range(5):
                await conn.write(b"%d/%d" % (i, k))
                assert await conn.read() == b"%d/%d" % (i, k)
            conn.close_write()
            assert await conn.read() == b""

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=context)) as addr:
            gs = [gofer.go(client, addr[1], i) for i in range(10)]
            for g in gs:
                await g

    gofer.run(main, procs=procs)


def test_a_lot_of_data_both_ways_at_once(procs: int, cert: Certificate) -> None:
    data = random.Random(1).randbytes(3_000_000)

    async def main() -> None:
        client, server = await tls_pair(cert)
        async with client, server:
            gs = [gofer.go(wait_for, c.write(data)) for c in (client, server)]
            gs += [gofer.go(_expect, c, data) for c in (client, server)]  # type: ignore[list-item]
            for g in gs:
                await g

    async def _expect(conn: net.Conn, expected: bytes) -> None:
        assert await conn.read_exactly(len(expected)) == expected

    gofer.run(main, procs=procs)


def test_all_ways_to_read_and_write(cert: Certificate) -> None:
    async def main() -> None:
        client, server = await tls_pair(cert)
        async with client, server:
            await client.write([b"one\r\n", bytearray(b"two\r\n"), memoryview(b"12345rest")])
            assert await server.read_until(b"\r\n") == b"one\r\n"
            assert await server.read_until(b"\r\n") == b"two\r\n"
            assert await server.read_exactly(5) == b"12345"
            buf = bytearray(2)
            assert await server.read_into(buf) == 2
            assert buf == b"re"
            assert await server.read(1) == b"s"
            assert await server.read(0) == b""
            assert await server.read() == b"t"
            await client.write(b"")
            await client.write(b"x" * 100)
            with pytest.raises(net.LimitExceeded):
                await server.read_until(b"\n", limit=10)
            assert await server.read_exactly(100) == b"x" * 100
            await client.write(b"abc")
            client.close()
            with pytest.raises(net.IncompleteRead) as info:
                await server.read_exactly(10)
            assert info.value.partial == b"abc"
            with pytest.raises(net.IncompleteRead):
                await server.read_until(b"\n")
            assert await server.read() == b""
            with pytest.raises(ValueError, match="negative"):
                await server.read(-1)

    gofer.run(main)


def test_what_several_goroutines_write_is_not_mixed_up(procs: int, cert: Certificate) -> None:
    async def main() -> None:
        client, server = await tls_pair(cert)

        async def writer(i: int) -> None:
            for _ in range(3):
                await client.write(bytes([i]) * 100_000)

        async with client, server:
            gs = [gofer.go(writer, i) for i in range(4)]
            for _ in range(12):
                block = await server.read_exactly(100_000)
                assert block == bytes([block[0]]) * 100_000
            for g in gs:
                await g

    gofer.run(main, procs=procs)


def test_alpn_and_sni(cert: Certificate) -> None:
    names: list[str | None] = []

    def on_name(sock: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        names.append(name)

    async def main() -> None:
        context = cert.server("h2", "http/1.1")
        context.sni_callback = on_name
        async with serving(net.listen("127.0.0.1", 0, tls=context)) as addr:
            tls = cert.client("http/1.1")
            async with await net.dial(
                "127.0.0.1", addr[1], tls=tls, server_hostname="localhost"
            ) as conn:
                assert isinstance(conn, net.TLSConn)
                assert conn.ssl_object.selected_alpn_protocol() == "http/1.1"
                await conn.write(b"x")
                assert await conn.read() == b"x"
        assert names == ["localhost"]

    gofer.run(main)


def test_an_end_without_close_notify_is_told_from_one_with_it(cert: Certificate) -> None:
    async def main() -> None:
        client, server = await tls_pair(cert)
        async with server:
            await server.write(b"y")
            assert await client.read() == b"y"  # nothing is left unread: no reset
            await client.write(b"x")
            with socket.socket(fileno=client.detach()):
                pass  # cut off
            assert await server.read() == b"x"
            with pytest.raises(ssl.SSLEOFError):
                await server.read()
        client, server = await tls_pair(cert)
        async with server:
            await client.write(b"x")
            client.close()
            assert await server.read() == b"x"
            assert await server.read() == b""

    gofer.run(main)


async def slow_pair(cert: Certificate) -> tuple[net.TLSConn, net.TLSConn]:
    """Client and server with next to no room between them."""
    a, b = tcp_pair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return await tls_pair(cert, net.Conn(a.detach()), net.Conn(b.detach()))


@pytest.mark.parametrize("half", [False, True])
def test_the_goodbye_waits_for_a_slow_reader(cert: Certificate, half: bool) -> None:
    """When the way is full there is no room for close_notify: it must follow, not be dropped."""
    wrote = 0

    async def write(server: net.TLSConn, n: int) -> None:
        nonlocal wrote
        wrote = 0
        while wrote < n:
            await server.write(b"x")
            wrote += 1

    async def main() -> None:
        client, server = await slow_pair(cert)
        g = gofer.go(raised_by, write(server, 1_000_000))
        await until(lambda: g.state == "waiting" and g.wait_reason == "IO wait")
        full = wrote
        server.close()
        await g
        client.close()
        for n in (full - 1, full, full + 1):
            client, server = await slow_pair(cert)
            g = gofer.go(raised_by, write(server, n))
            await until(lambda g=g: g.done() or g.state == "waiting")  # type: ignore[misc]
            whole = g.done()
            if half:
                server.close_write()
            else:
                server.close()
            got = 0
            with contextlib.nullcontext() if whole else pytest.raises(ssl.SSLEOFError):
                while data := await client.read():
                    got += len(data)
                assert got == n
            await g
            client.close()
            server.close()

    gofer.run(main)


def test_half_close(cert: Certificate) -> None:
    async def main() -> None:
        client, server = await tls_pair(cert)
        async with client, server:
            await client.write(b"question")
            client.close_write()
            with pytest.raises(net.ClosedError):
                await client.write(b"more")
            assert await server.read() == b"question"
            assert await server.read() == b""
            await server.write(b"answer")
            server.close()
            assert await client.read() == b"answer"
            assert await client.read() == b""

    gofer.run(main)


def test_close_wakes_and_deadlines_hold(procs: int, cert: Certificate) -> None:
    async def main() -> None:
        client, server = await tls_pair(cert)
        async with client, server:
            client.set_read_deadline(0.02)
            with pytest.raises(TimeoutError):
                await client.read()
            client.set_read_deadline(None)
            await server.write(b"x")
            assert await client.read() == b"x"
            gs = [gofer.go(raised_by, client.read()) for _ in range(2)]
            await parked(*gs)
            client.close()
            for g in gs:
                assert isinstance(await g, net.ClosedError)
            with pytest.raises(net.ClosedError):
                await client.write(b"x")

    gofer.run(main, procs=procs)


def test_a_cancelled_read_loses_nothing(cert: Certificate) -> None:
    async def main() -> None:
        client, server = await tls_pair(cert)
        async with client, server:
            g = gofer.go(wait_for, server.read_exactly(6))
            await client.write(b"abc")
            await parked(g)
            await gofer.sleep(0.02)
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g
            await client.write(b"def")
            assert await server.read_exactly(6) == b"abcdef"

    gofer.run(main)


def test_nothing_follows_a_write_that_was_cut_short(cert: Certificate) -> None:
    async def main() -> None:
        client, server = await tls_pair(cert)
        async with client, server:
            g = gofer.go(wait_for, client.write(bytes(20_000_000)))
            await until(lambda: g.wait_reason == "IO wait")
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g
            with pytest.raises(net.ClosedError, match="cut short"):
                await client.write(b"more")
            await server.write(b"but this way is open")
            assert await client.read() == b"but this way is open"

    gofer.run(main)


# --- what goes wrong -----------------------------------------------------------------------------


def test_a_certificate_that_nobody_vouches_for_is_refused(procs: int, cert: Certificate) -> None:
    outcomes: list[BaseException | None] = []

    async def handler(conn: net.Conn) -> None:
        async with conn:
            outcomes.append(await raised_by(conn.read()))

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=cert.server()), handler) as addr:
            with pytest.raises(ssl.SSLCertVerificationError):
                await net.dial("localhost", addr[1], tls=True)
            await until(lambda: outcomes)
            assert isinstance(outcomes[0], ssl.SSLError)  # it was told why

    gofer.run(main, procs=procs)


def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    other = make_certificate(tmp_path, "elsewhere")

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=other.server())) as addr:
            with pytest.raises(ssl.SSLCertVerificationError, match="localhost"):
                await net.dial("localhost", addr[1], tls=other.client())

    gofer.run(main)


def test_garbage_instead_of_a_handshake_hurts_only_its_sender(
    procs: int, cert: Certificate
) -> None:
    failures: list[BaseException | None] = []

    async def handler(conn: net.Conn) -> None:
        failures.append(await raised_by(echo_all(conn)))

    async def echo_all(conn: net.Conn) -> None:
        async with conn:
            while data := await conn.read():
                await conn.write(data)

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=cert.server()), handler) as addr:
            async with await net.dial("127.0.0.1", addr[1]) as plain:
                await plain.write(b"GET / HTTP/1.0\r\n\r\n" * 100)
                with contextlib.suppress(ConnectionResetError):
                    while await plain.read():
                        pass
            silent = await net.dial("127.0.0.1", addr[1])  # never says a word
            async with await net.dial("localhost", addr[1], tls=cert.client()) as conn:
                await conn.write(b"fine")
                assert await conn.read() == b"fine"
            silent.close()
            await until(lambda: len(failures) == 3)
            assert isinstance(failures[0], ssl.SSLError)

    gofer.run(main, procs=procs)


def test_garbage_in_the_middle_is_an_error(cert: Certificate) -> None:
    async def main() -> None:
        client, server = await tls_pair(cert)
        async with server, net.open_fd(client.detach()) as raw:
            await raw.write(b"\x17\x03\x03\x00\x20" + bytes(32))
            with pytest.raises(ssl.SSLError):
                await server.read()

    gofer.run(main)


def test_a_server_that_never_answers_times_out(cert: Certificate) -> None:
    async def main() -> None:
        async with net.listen("127.0.0.1", 0) as listener:
            with pytest.raises(TimeoutError):
                await net.dial("localhost", listener.addr[1], tls=cert.client(), timeout=0.1)

    gofer.run(main)


@pytest.mark.parametrize("tls", ["yes", 1, object()])
def test_tls_is_a_context(tls: Any) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="SSLContext"):
            await net.dial("localhost", 1, tls=tls)

    gofer.run(main)
    with pytest.raises(TypeError, match="SSLContext"):
        net.listen("127.0.0.1", 0, tls=tls)
    with pytest.raises(TypeError, match="SSLContext"):
        net.listen("127.0.0.1", 0, tls=True)  # type: ignore[arg-type]


# --- others --------------------------------------------------------------------------------------


def test_a_python_client(procs: int, cert: Certificate, version: ssl.TLSVersion) -> None:
    data = random.Random(2).randbytes(500_000)

    def client(port: int) -> None:
        context = cert.client()
        context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as sock,
        ):
            for start in range(0, len(data), 50_000):
                part = data[start : start + 50_000]
                sock.sendall(part)
                back = b""
                while len(back) < len(part):
                    back += sock.recv(65536)
                assert back == part
            sock.unwrap()  # both say goodbye

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=cert.server())) as addr:
            await gofer.go(client, addr[1])

    gofer.run(main, procs=procs)


def test_a_python_server(cert: Certificate, version: ssl.TLSVersion) -> None:
    data = random.Random(3).randbytes(500_000)
    listener = socket.create_server(("127.0.0.1", 0))
    context = cert.server()
    context.maximum_version = version

    def serve() -> None:
        raw, _ = listener.accept()
        with raw, context.wrap_socket(raw, server_side=True) as sock:
            while piece := sock.recv(65536):
                sock.sendall(piece)
            sock.unwrap()

    async def main() -> None:
        async with await net.dial(
            "localhost", listener.getsockname()[1], tls=cert.client()
        ) as conn:
            writer = gofer.go(wait_for, conn.write(data))
            assert await conn.read_exactly(len(data)) == data
            await writer
            conn.close_write()
            assert await conn.read() == b""

    with listener, thread(serve):
        gofer.run(main)


def test_threads_and_goroutines_together(procs: int, cert: Certificate) -> None:
    def client(port: int) -> None:
        with gofer.block(net.dial("localhost", port, tls=cert.client()), timeout=30) as conn:
            gofer.block(conn.write(b"plain"))
            assert gofer.block(conn.read(), timeout=30) == b"plain"

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=cert.server())) as addr:
            gs = [gofer.go(client, addr[1]) for _ in range(4)]
            for g in gs:
                await g
            assert threading.active_count() < 50

    gofer.run(main, procs=procs)
