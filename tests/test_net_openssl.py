"""TLS against an implementation that is not Python's: the programs s_client and s_server."""

import contextlib
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

import gofer
from gofer import net
from tests.net_support import Certificate, echo, make_certificate, raised_by, serving
from tests.support import wait_for

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="the openssl program, which makes the certificates, is not installed",
)

BIG = random.Random(3).randbytes(5_000_000)


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def cert(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("cert"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Of another host; or of a client."""
    return make_certificate(tmp_path_factory.mktemp("cert"), "other.test")


@pytest.fixture(params=["-tls1_2", "-tls1_3"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class OpenSSL:
    """The program, with Conns for its pipes."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            ["openssl", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = net.open_fd(os.dup(self.process.stdin.fileno()))
        self.stdout = net.open_fd(os.dup(self.process.stdout.fileno()))
        self.process.stdin.close()
        self.process.stdout.close()
        self.said = b""

    async def line(self, pattern: bytes) -> "re.Match[bytes]":
        """Wait for a line like this one."""
        while not (found := re.search(pattern, self.said)):
            line = await self.stdout.read_until(b"\n", limit=1 << 20)
            self.said += line
        return found

    async def all(self) -> bytes:
        while data := await self.stdout.read():
            self.said += data
        return self.said

    async def close(self) -> None:
        self.stdin.close()
        self.stdout.close()
        self.process.kill()
        self.process.wait()


@contextlib.asynccontextmanager
async def openssl(*args: str) -> AsyncIterator[OpenSSL]:
    program = OpenSSL(*args)
    try:
        yield program
    finally:
        await program.close()


def s_client(addr: Any, cert: Certificate, *args: str) -> Any:
    where = ["-connect", f"127.0.0.1:{addr[1]}", "-CAfile", cert.path]
    return openssl("s_client", *where, "-verify_return_error", *args)


@contextlib.asynccontextmanager
async def s_server(cert: Certificate, *args: str) -> AsyncIterator[tuple[OpenSSL, int]]:
    """The server, when it listens, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = ["-accept", f"127.0.0.1:{port}", "-cert", cert.path, "-key", cert.key]
    async with openssl("s_server", *where, *args) as program:
        if "-quiet" not in args:
            await program.line(rb"ACCEPT")
        yield program, port


async def dial(port: int, context: ssl.SSLContext, host: str = "localhost") -> net.TLSConn:
    """As soon as it listens."""
    async with gofer.timeout(30):
        while True:
            try:
                conn = await net.dial("127.0.0.1", port, tls=context, server_hostname=host)
                assert isinstance(conn, net.TLSConn)
                return conn
            except ConnectionRefusedError:
                await gofer.sleep(0.01)


# --- s_client and our server ---------------------------------------------------------------------


def test_a_client_s_handshake_with_alpn_and_sni(
    procs: int, cert: Certificate, other: Certificate, version: str
) -> None:
    """The certificate is that of the host that the client asks for."""
    asked = []

    def choose(sock: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        asked.append(name)
        if name == "localhost":
            sock.context = cert.server("h2", "http/1.1")

    context = other.server("h2", "http/1.1")
    context.sni_callback = choose

    async def greet(conn: net.Conn) -> None:
        assert isinstance(conn, net.TLSConn)
        async with conn:
            if error := await raised_by(conn.handshake()):
                assert isinstance(error, ssl.SSLError)
                return
            text = f"{conn.ssl_object.version()} {conn.ssl_object.selected_alpn_protocol()}\n"
            await conn.write(text.encode())
            await raised_by(conn.read())

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=context), greet) as addr:
            names = ["-servername", "localhost", "-alpn", "http/1.1", version]
            async with s_client(addr, cert, *names) as client:
                await client.line(b"Verify return code: 0 .ok.")
                found = await client.line(rb"(TLSv1\.[23]) http/1\.1\n")
                assert found[1].decode() == "TLSv1." + version[-1]
                assert b"ALPN protocol: http/1.1\n" in client.said
                await client.stdin.write(b"bye\n")
                await client.all()
            async with s_client(addr, cert, "-servername", "other.test", version) as client:
                said = await client.all()
                assert b"verify error" in said  # we trust only the other one

    gofer.run(main, procs=procs)
    assert asked == ["localhost", "other.test"]


def test_a_client_with_a_certificate(cert: Certificate, other: Certificate, version: str) -> None:
    context = cert.server()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(other.path)
    seen: gofer.Chan[Any] = gofer.Chan(2)

    async def check(conn: net.Conn) -> None:
        assert isinstance(conn, net.TLSConn)
        async with conn:
            error = await raised_by(conn.handshake())
            await seen.send(error or conn.ssl_object.getpeercert())
            if error is None:
                await conn.write(b"welcome\n")
                await raised_by(conn.read())

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=context), check) as addr:
            async with s_client(addr, cert, version, "-cert", other.path, "-key", other.key) as c:
                peer = await seen.recv()
                assert peer["subject"] == ((("commonName", "other.test"),),)
                await c.line(b"welcome")
            async with s_client(addr, cert, version) as c:
                error = await seen.recv()
                assert isinstance(error, ssl.SSLError)
                assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in str(error)
                assert b"alert" in await c.all()  # and it is told why

    gofer.run(main)


def test_a_lot_of_data_both_ways_with_a_client(procs: int, cert: Certificate, version: str) -> None:
    async def main() -> None:
        async with (
            serving(net.listen("127.0.0.1", 0, tls=cert.server()), echo) as addr,
            s_client(addr, cert, "-quiet", version, "-max_send_frag", "600") as client,
        ):
            feeder = gofer.go(wait_for, client.stdin.write(BIG))
            got = bytearray()
            while b"verify return:1\n" not in got:
                got += await client.stdout.read_until(b"\n")
            assert await client.stdout.read_exactly(len(BIG)) == BIG
            await feeder

    gofer.run(main, procs=procs)


def test_both_say_goodbye(cert: Certificate, version: str) -> None:
    ends: gofer.Chan[Any] = gofer.Chan(1)

    async def until_the_end(conn: net.Conn) -> None:
        async with conn:
            while data := await conn.read():
                if data == b"close\n":
                    break
            await ends.send(data)

    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=cert.server()), until_the_end) as addr:
            async with s_client(addr, cert, version, "-msg", "-no_ign_eof") as client:
                await client.line(b"Verify return code: 0 .ok.")
                client.stdin.close()  # then it says goodbye
                assert await ends.recv() == b""
            async with s_client(addr, cert, version, "-msg") as client:
                await client.line(b"Verify return code: 0 .ok.")
                await client.stdin.write(b"close\n")
                assert await ends.recv() == b"close\n"
                said = await client.all()
                received = re.findall(rb"<<< .*Alert.*, (\w+ \w+)\n", said)
                assert received == [b"warning close_notify"], said

    gofer.run(main)


def test_a_client_that_is_cut_off_is_no_clean_end(cert: Certificate, version: str) -> None:
    ends: gofer.Chan[Any] = gofer.Chan(1)

    async def all_of_it(conn: net.Conn) -> None:
        async with conn:
            assert await conn.read() == b"begin\n"
            await ends.send(None)
            await ends.send(await raised_by(conn.read()))

    async def main() -> None:
        async with (
            serving(net.listen("127.0.0.1", 0, tls=cert.server()), all_of_it) as addr,
            s_client(addr, cert, version, "-quiet") as client,
        ):
            await client.stdin.write(b"begin\n")
            await ends.recv()
            client.process.kill()
            error = await ends.recv()
            assert isinstance(error, ssl.SSLEOFError | ConnectionResetError), error

    gofer.run(main)


def test_a_client_that_does_not_trust_us_hurts_nobody_else(
    cert: Certificate, other: Certificate, version: str
) -> None:
    async def main() -> None:
        async with serving(net.listen("127.0.0.1", 0, tls=cert.server()), echo) as addr:
            async with s_client(addr, other, version) as client:
                assert b"verify error" in await client.all()
            async with s_client(addr, cert, version, "-quiet") as client:
                await client.stdin.write(b"hello\n")
                await client.line(b"hello\n")

    gofer.run(main)


def test_sessions_are_resumed(cert: Certificate) -> None:
    async def main() -> None:
        async with (
            serving(net.listen("127.0.0.1", 0, tls=cert.server()), echo) as addr,
            s_client(addr, cert, "-reconnect", "-tls1_2") as client,
        ):
            client.stdin.close()
            said = await client.all()
            assert said.count(b"\nReused, TLSv1.2") == 5, said

    gofer.run(main)


def test_keys_are_renewed_on_the_way(procs: int, cert: Certificate) -> None:
    """TLS 1.3 key updates, asked for by either side in the middle of the stream."""

    async def main() -> None:
        async with (
            serving(net.listen("127.0.0.1", 0, tls=cert.server()), echo) as addr,
            s_client(addr, cert, "-tls1_3") as client,
        ):
            await client.line(b"Verify return code: 0 .ok.")
            for i in range(3):
                await client.stdin.write(b"K\n")  # update the keys of both
                await client.line(b"KEYUPDATE\n" * 1)
                client.said = b""
                await client.stdin.write(b"line %d\n" % i)
                await client.line(b"line %d\n" % i)

    gofer.run(main, procs=procs)


# --- s_server and our client ---------------------------------------------------------------------


def test_a_server_s_handshake_with_alpn_and_sni(
    procs: int, cert: Certificate, other: Certificate, version: str
) -> None:
    second = ["-servername", "localhost", "-cert2", cert.path, "-key2", cert.key]

    async def main() -> None:
        async with (
            s_server(cert, "-alpn", "h2,http/1.1", version) as (_, port),
            await dial(port, cert.client("http/1.1", "h2")) as conn,
        ):
            assert conn.ssl_object.selected_alpn_protocol() == "h2"
            assert conn.ssl_object.version() == "TLSv1." + version[-1]
        async with s_server(other, *second, version) as (_, port):
            async with await dial(port, cert.client()):
                pass  # the certificate was that of localhost
            with pytest.raises(ssl.SSLCertVerificationError):
                await dial(port, cert.client(), "other.test")

    gofer.run(main, procs=procs)


def test_a_server_that_wants_our_certificate(
    cert: Certificate, other: Certificate, version: str
) -> None:
    wants = ["-Verify", "1", "-verify_return_error", "-CAfile", other.path]

    async def main() -> None:
        async with s_server(cert, "-rev", *wants, version) as (_, port):
            context = cert.client()
            context.load_cert_chain(other.path, other.key)
            async with await dial(port, context) as conn:
                await conn.write(b"abc\n")
                assert await conn.read_until(b"\n") == b"cba\n"
            with pytest.raises((ssl.SSLError, ConnectionResetError)) as info:
                async with await dial(port, cert.client()) as conn:
                    await conn.read()  # TLS 1.3: it tells us only now
            if isinstance(info.value, ssl.SSLError):
                assert "ALERT" in str(info.value)

    gofer.run(main)


def test_a_lot_of_data_both_ways_with_a_server(procs: int, cert: Certificate, version: str) -> None:
    async def main() -> None:
        async with (
            s_server(cert, "-quiet", "-naccept", "1", version) as (program, port),
            await dial(port, cert.client()) as conn,
        ):
            gs = [gofer.go(wait_for, conn.write(BIG))]
            gs.append(gofer.go(wait_for, program.stdin.write(BIG)))
            theirs = gofer.go(wait_for, program.stdout.read_exactly(len(BIG)))
            assert await conn.read_exactly(len(BIG)) == BIG
            assert await theirs == BIG
            for g in gs:
                await g

    gofer.run(main, procs=procs)


def test_a_server_s_goodbye_and_its_sudden_end(cert: Certificate, version: str) -> None:
    async def main() -> None:
        async with (
            s_server(cert, version, "-rev") as (_, port),
            await dial(port, cert.client()) as conn,
        ):
            await conn.write(b"CLOSE\n")  # its word for "say goodbye"
            assert await conn.read() == b""
            assert await conn.read() == b""
        for how in ("kill", "q"):  # which closes the socket, and says nothing
            async with (
                s_server(cert, version) as (program, port),
                await dial(port, cert.client()) as conn,
            ):
                await program.stdin.write(b"half of the\n")
                assert await conn.read_exactly(4) == b"half"
                if how == "kill":
                    program.process.kill()
                else:
                    await program.stdin.write(b"q\n")
                assert await conn.read_exactly(8) == b" of the\n"
                error = await raised_by(conn.read())
                assert isinstance(error, ssl.SSLEOFError | ConnectionResetError), error

    gofer.run(main)


def test_our_goodbye_reaches_the_server(cert: Certificate, version: str) -> None:
    async def main() -> None:
        async with (
            s_server(cert, version, "-msg") as (program, port),
            await dial(port, cert.client()) as conn,
        ):
            await conn.write(b"hello\n")
            await program.line(b"hello\n")
            conn.close_write()
            await program.line(rb"<<< .*Alert.*, warning close_notify")

    gofer.run(main)


def test_a_handshake_in_the_middle(cert: Certificate) -> None:
    """TLS 1.2 servers may begin a new one at any time, while data flows both ways."""

    async def main() -> None:
        async with (
            s_server(cert, "-tls1_2") as (program, port),
            await dial(port, cert.client()) as conn,
        ):
            for i in range(5):
                await program.stdin.write(b"r\n")  # negotiate anew
                line = b"line %d\n" % i
                reader = gofer.go(wait_for, conn.read_until(b"\n"))
                for _ in range(20):
                    await conn.write(b"from us %d\n" % i)
                await program.line(b"from us %d\n" % i)
                await program.stdin.write(line)
                assert await reader == line

    gofer.run(main)
