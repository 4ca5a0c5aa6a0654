"""dial, listen, names and addresses; UDP and Unix sockets."""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import _core, _dial, net
from tests.net_support import echo, echo_server, raised_by, serving
from tests.support import PATIENCE, TINY, all_came_back, parked, spin, until, wait_for


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


# --- dial ----------------------------------------------------------------------------------------


def test_dial_by_name_and_number(procs: int) -> None:
    async def main() -> None:
        async with echo_server() as port:
            for host in ("127.0.0.1", "localhost", None, ""):
                async with await net.dial(host, port) as conn:
                    assert conn.remote_addr == ("127.0.0.1", port)
                    await conn.write(b"x")
                    assert await conn.read() == b"x"

    gofer.run(main, procs=procs)


@IPV6
def test_dial_ipv6() -> None:
    async def main() -> None:
        async with (
            serving(net.listen("::1", 0)) as addr,
            await net.dial("::1", addr[1]) as conn,
        ):
            assert conn.remote_addr == ("::1", addr[1], 0, 0)
            await conn.write(b"six")
            assert await conn.read() == b"six"

    gofer.run(main)


def test_dial_where_nobody_listens_is_refused(procs: int) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(ConnectionRefusedError, match=str(port)):
                await net.dial(host, port)

    gofer.run(main, procs=procs)


def test_dial_a_name_that_is_none() -> None:
    async def main() -> None:
        with pytest.raises(socket.gaierror, match=r"'no-such-host\.invalid'"):
            await net.dial("no-such-host.invalid", 80)
        with pytest.raises(socket.gaierror, match=r"'no-such-host\.invalid'"):
            net.dial_udp("no-such-host.invalid", 80)
        with pytest.raises(TypeError):
            await net.dial(80, 80)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await net.dial("127.0.0.1", "http")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="65535"):
            await net.dial("127.0.0.1", 100_000)

    gofer.run(main)


@contextlib.asynccontextmanager
async def unanswering(host: str = "127.0.0.1") -> AsyncIterator[Any]:
    """An address at which connecting takes for ever: a listener whose backlog is full."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock, contextlib.ExitStack() as stack:
        sock.bind((host, 0))
        sock.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket(family))
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
        yield sock.getsockname()


def test_dial_has_a_timeout_and_can_be_cancelled(procs: int) -> None:
    async def main() -> None:
        async with unanswering() as (host, port):
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                await net.dial(host, port, timeout=0.1)
            assert 0.1 <= time.monotonic() - start < 10
            g = gofer.go(net.dial, host, port)
            await parked(g)
            assert g.wait_reason == "IO wait"
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g

    gofer.run(main, procs=procs)


def test_happy_eyeballs_does_not_wait_for_an_address_that_does_not_answer(
    procs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with unanswering() as dead, echo_server() as port:
            tcp = socket.SOCK_STREAM

            async def two(*args: Any) -> list[_dial.Target]:
                return [
                    _dial.Target(socket.AF_INET, tcp, dead),
                    _dial.Target(socket.AF_INET, tcp, ("127.0.0.1", port)),
                ]

            monkeypatch.setattr(_dial, "targets", two)
            start = time.monotonic()
            async with await net.dial("both", port) as conn:
                assert 0.2 < time.monotonic() - start < 5
                assert conn.remote_addr == ("127.0.0.1", port)
            # The attempt that lost is cancelled; accept() and perhaps the echo are left.
            await until(lambda: _core.counters()["io_waiters"] <= 2)

    gofer.run(main, procs=procs)


@IPV6
def test_happy_eyeballs_falls_back_to_the_other_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with many addresses of a family that leads nowhere, and one of the other."""

    async def main() -> None:
        async with unanswering("::1") as dead, echo_server() as port:
            real = socket.getaddrinfo

            def both(host: Any, port: Any, *args: Any, **more: Any) -> Any:
                if host != "both.test" or more["flags"] & socket.AI_NUMERICHOST:
                    return real(host, port, *args, **more)
                six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (*dead[:2], 0))
                four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
                return [(*six[:4], (*six[4], i)) for i in range(5)] + [four]

            monkeypatch.setattr(socket, "getaddrinfo", both)
            start = time.monotonic()
            async with await net.dial("both.test", port) as conn:
                assert conn.remote_addr == ("127.0.0.1", port)
                assert 0.2 < time.monotonic() - start < 1.0, "not the second to be tried"

    gofer.run(main)


def test_an_address_that_refuses_is_followed_by_the_next_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with echo_server() as port:
            with socket.create_server(("127.0.0.1", 0)) as sock:
                refused = sock.getsockname()
            addresses = [refused, refused, ("127.0.0.1", port)]

            async def several(*args: Any) -> list[_dial.Target]:
                return [_dial.Target(socket.AF_INET, socket.SOCK_STREAM, a) for a in addresses]

            monkeypatch.setattr(_dial, "targets", several)
            start = time.monotonic()
            async with await net.dial("several", port):
                assert time.monotonic() - start < 0.2
            addresses.pop()
            with pytest.raises(ConnectionRefusedError) as info:
                await net.dial("several", port)
            assert len(info.value.__notes__) == 1

    gofer.run(main)


def test_families_take_turns() -> None:
    def target(family: int, n: int) -> _dial.Target:
        return _dial.Target(family, 1, n)

    six, four = socket.AF_INET6, socket.AF_INET
    found = [target(six, 1), target(six, 2), target(six, 3), target(four, 4)]
    assert [t.address for t in _dial.interleaved(found)] == [1, 4, 2, 3]


class SlowNames:
    """A name server that takes its time over one name. Numbers need none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.counting = threading.Lock()  # they ask all at once
        self.answer = threading.Event()
        self.real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.getaddrinfo)

    def getaddrinfo(self, host: Any, port: Any, *args: Any, flags: int = 0, **more: Any) -> Any:
        if host == "slow.test" and not flags & socket.AI_NUMERICHOST:
            with self.counting:
                self.asked += 1
            assert self.answer.wait(PATIENCE)
            host = "127.0.0.1"
        return self.real(host, port, *args, flags=flags, **more)


def test_lookups_stall_nobody(procs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = SlowNames(monkeypatch)

    async def main() -> None:
        async with echo_server() as port:
            dialled = [gofer.go(net.dial, "slow.test", port) for _ in range(20)]
            await until(lambda: names.asked == 20)
            async with await net.dial("127.0.0.1", port) as conn:
                for _ in range(100):
                    await conn.write(b"x")
                    assert await conn.read() == b"x"
            assert not any(g.done() for g in dialled)
            names.answer.set()
            for g in dialled:
                async with await g as conn:
                    assert conn.remote_addr == ("127.0.0.1", port)
            assert names.asked == 20

    gofer.run(main, procs=procs)


def test_a_lookup_can_be_given_up(procs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread cannot be stopped; nobody waits for it."""
    names = SlowNames(monkeypatch)

    async def main() -> None:
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            await net.dial("slow.test", 80, timeout=0.1)
        g = gofer.go(net.resolve, "slow.test", 80)
        await until(lambda: names.asked == 2)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        assert time.monotonic() - start < PATIENCE / 2

    try:
        gofer.run(main, procs=procs)
        assert not names.answer.is_set()
    finally:
        names.answer.set()
        all_came_back()


def test_resolve() -> None:
    async def main() -> None:
        assert await net.resolve("127.0.0.1", 80) == [("127.0.0.1", 80)]
        assert await net.resolve("::1", 80) == [("::1", 80, 0, 0)]
        assert ("127.0.0.1", 1) in await net.resolve("localhost", 1)
        with pytest.raises(socket.gaierror):
            await net.resolve("no-such-host.invalid", 80)

    gofer.run(main)


def test_small_writes_are_not_held_back() -> None:
    async def main() -> None:
        async with net.listen("127.0.0.1", 0) as listener:
            acceptor = gofer.go(wait_for, listener.accept())
            async with (
                await net.dial("127.0.0.1", listener.addr[1]) as conn,
                await acceptor as server,
            ):
                for c in (conn, server):
                    with socket.socket(fileno=os.dup(c.fileno())) as sock:
                        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                        assert not os.get_inheritable(c.fileno())

    gofer.run(main)


def test_listen_on_a_port_in_use_or_an_address_of_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(OSError, match="in use"):
        net.listen("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(OSError, match="assign"):
        net.listen("203.0.113.1", 0)


@pytest.mark.parametrize("listen", [net.listen, net.listen_udp])
def test_what_cannot_be_listened_on_is_named(listen: Callable[[str, int], Any]) -> None:
    kind = socket.SOCK_STREAM if listen is net.listen else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        if listen is net.listen:
            sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(OSError, match=rf"in use: \('127\.0\.0\.1', {port}\)") as info:
            listen("127.0.0.1", port)
        assert (info.value.errno, type(info.value)) == (errno.EADDRINUSE, OSError)
    with pytest.raises(OSError, match=r"assign.*: \('203\.0\.113\.1', 0\)") as info:
        listen("203.0.113.1", 0)
    assert info.value.errno == errno.EADDRNOTAVAIL

    async def by_name() -> None:
        listen("no-such-host.invalid", 0)

    with pytest.raises(socket.gaierror, match=r": 'no-such-host\.invalid'") as name:
        gofer.run(by_name)
    assert name.value.errno in (socket.EAI_NONAME, socket.EAI_AGAIN)


def test_a_port_that_is_taken_between_bind_and_listen_is_named() -> None:
    """Both may bind it, as neither listens yet; the second to listen is told."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        listening = socket.socket.listen

        def late(self: socket.socket, backlog: int) -> None:
            listening(sock)
            listening(self, backlog)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket.socket, "listen", late)
            with pytest.raises(OSError, match=rf"in use: \('127\.0\.0\.1', {port}\)"):
                net.listen("127.0.0.1", port)


def test_a_unix_path_that_cannot_be_listened_on_is_named(tmp_path: Path) -> None:
    taken, nowhere = str(tmp_path / "taken"), tmp_path / "no" / "socket"
    with net.listen_unix(taken), pytest.raises(OSError, match=f"in use: '{taken}'") as info:
        net.listen_unix(taken)
    assert info.value.errno == errno.EADDRINUSE
    with pytest.raises(FileNotFoundError, match=f": '{nowhere}'"):
        net.listen_unix(nowhere)
    with pytest.raises(OSError, match=r"too long: 'xxx"):
        net.listen_unix("x" * 200)


def test_accepted_connections_are_served_by_all_ps() -> None:
    async def main() -> set[int]:
        used: set[int] = set()

        async def handler(conn: net.Conn) -> None:
            async with conn:
                while data := await conn.read():
                    spin(0.002)
                    used.add(_core.proc_id())
                    await conn.write(data)

        async def client(port: int) -> None:
            async with await net.dial("127.0.0.1", port) as conn:
                for _ in range(10):
                    await conn.write(b"x")
                    await conn.read()

        async with echo_server(handler) as port:
            gs = [gofer.go(client, port) for _ in range(20)]
            for g in gs:
                await g
        return used

    assert len(gofer.run(main, procs=4) - {-1}) > 1


# --- Unix ----------------------------------------------------------------------------------------


def test_unix_sockets(procs: int, tmp_path: Path) -> None:
    path = tmp_path / "socket"

    async def client(i: int) -> None:
        async with await net.dial_unix(path) as conn:
            assert conn.remote_addr == str(path)
            await conn.write(b"%d" % i)
            assert await conn.read() == b"%d" % i

    async def main() -> None:
        async with serving(net.listen_unix(path)) as addr:
            assert addr == str(path)
            assert path.exists()
            gs = [gofer.go(client, i) for i in range(20)]
            for g in gs:
                await g
        assert not path.exists()
        with pytest.raises(FileNotFoundError):
            await net.dial_unix(path)

    gofer.run(main, procs=procs)


def test_an_abstract_unix_socket() -> None:
    async def main() -> None:
        name = f"\0gofer-test-{os.getpid()}"
        async with serving(net.listen_unix(name)) as addr:
            assert addr == name.encode()
            async with await net.dial_unix(name) as conn:
                await conn.write(b"x")
                assert await conn.read() == b"x"

    gofer.run(main)


def test_dial_unix_waits_while_the_backlog_is_full(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")

    async def main() -> None:
        async with net.listen_unix(path, backlog=1) as listener:
            gs = [gofer.go(net.dial_unix, path) for _ in range(10)]
            await gofer.sleep(0.01)
            for _ in gs:
                (await listener.accept()).close()
            for g in gs:
                (await g).close()
            outcomes = [await raised_by(net.dial_unix(path, timeout=0.05)) for _ in range(5)]
            assert isinstance(outcomes[-1], TimeoutError)

    gofer.run(main)


def test_a_unix_path_that_is_taken_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with net.listen_unix(path):
        with pytest.raises(OSError, match="in use"):
            net.listen_unix(path)
        assert os.path.exists(path)
    with pytest.raises((OSError, ValueError)):
        net.listen_unix("x" * 200)


# --- UDP -----------------------------------------------------------------------------------------


def test_udp_messages_keep_their_borders(procs: int) -> None:
    async def main() -> None:
        async with (
            net.listen_udp("127.0.0.1", 0) as server,
            net.dial_udp("127.0.0.1", server.local_addr[1]) as client,
        ):
            for data in (b"one", b"", b"three", bytes(60_000)):
                await client.write(data)
                got, addr = await server.read_from()
                assert got == data
                assert addr == client.local_addr
                await server.write_to(bytearray(got), addr)
                assert await client.read() == data
            assert client.remote_addr == server.local_addr
            assert server.remote_addr is None
            await client.write(b"a long message")
            assert (await server.read_from(6))[0] == b"a long"

    gofer.run(main, procs=procs)


def test_udp_order_and_several_readers(procs: int) -> None:
    async def main() -> None:
        async with (
            net.listen_udp("127.0.0.1", 0) as server,
            net.dial_udp("127.0.0.1", server.local_addr[1]) as client,
        ):
            got: list[int] = []

            async def reader() -> None:
                while True:
                    data, _ = await server.read_from()
                    got.append(int(data))

            gs = [gofer.go(reader) for _ in range(3)]
            for i in range(100):
                await client.write(b"%d" % i)
                if i % 10 == 9:  # or the kernel drops some
                    while len(got) <= i:
                        await gofer.sleep(0.0005)
            assert sorted(got) == list(range(100))
            for g in gs:
                g.cancel()
                assert isinstance(await raised_by(g), gofer.Cancelled)

    gofer.run(main, procs=procs)


def test_udp_loses_what_does_not_fit_and_goes_on() -> None:
    async def main() -> None:
        async with (
            net.listen_udp("127.0.0.1", 0) as server,
            net.dial_udp("127.0.0.1", server.local_addr[1]) as client,
        ):
            for i in range(2000):
                await client.write(b"%08d" % i * 1000)
            await client.write(b"end")
            seen = []
            server.set_read_deadline(0.2)
            with contextlib.suppress(TimeoutError):
                while True:
                    seen.append((await server.read_from())[0])
            assert 0 < len(seen) < 2000
            assert [m for m in seen if m != b"end"] == sorted(m for m in seen if m != b"end")

    gofer.run(main)


def test_udp_to_a_port_where_nobody_listens() -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        async with net.dial_udp("127.0.0.1", port) as client:
            await client.write(b"anybody?")
            with pytest.raises(ConnectionRefusedError):
                await client.read()

    gofer.run(main)


def test_udp_close_and_cancel(procs: int) -> None:
    async def main() -> None:
        udp = await net.listen_udp("127.0.0.1", 0)
        gs = [gofer.go(raised_by, udp.read_from()) for _ in range(3)]
        await parked(*gs)
        gs[1].cancel()
        assert isinstance(await gs[1], gofer.Cancelled)
        udp.close()
        for g in (gs[0], gs[2]):
            assert isinstance(await g, net.ClosedError)
        with pytest.raises(net.ClosedError):
            await udp.write_to(b"x", ("127.0.0.1", 1))

    gofer.run(main, procs=procs)


@pytest.mark.parametrize(
    "addr", ["127.0.0.1", ("localhost", 1), ("127.0.0.1",), ("127.0.0.1", 70000), (1, 2), None]
)
def test_a_udp_address_is_checked(addr: Any) -> None:
    with net.listen_udp("127.0.0.1", 0) as udp, pytest.raises((TypeError, ValueError)):
        udp.write_to(b"x", addr)


@IPV6
def test_udp_over_ipv6() -> None:
    async def main() -> None:
        async with net.listen_udp("::1", 0) as a, net.listen_udp("", 0) as b:
            await a.write_to(b"x", ("::1", b.local_addr[1]))
            data, addr = await b.read_from()
            assert (data, addr[0]) == (b"x", "::1")
            await b.write_to(b"y", addr)
            assert (await a.read_from())[0] == b"y"

    gofer.run(main)


def test_many_senders_get_their_answers(procs: int) -> None:
    n = 20 if TINY else 50

    async def main() -> None:
        async with net.listen_udp("127.0.0.1", 0) as server:
            addr = server.local_addr

            async def responder() -> None:
                while True:
                    data, back = await server.read_from()
                    await server.write_to(data, back)

            async def client(i: int) -> None:
                async with net.dial_udp(addr[0], addr[1]) as udp:
                    for k in range(20):
                        text = b"%d/%d" % (i, k)
                        await udp.write(text)
                        assert await udp.read() == text

            r = gofer.go(responder)
            gs = [gofer.go(client, i) for i in range(n)]
            for g in gs:
                await g
            r.cancel()
            assert isinstance(await raised_by(r), gofer.Cancelled)

    gofer.run(main, procs=procs)


def test_a_server_serves_while_names_are_resolved(procs: int) -> None:
    async def main() -> None:
        async with serving(net.listen("localhost", 0), echo) as addr:
            gs = [gofer.go(net.dial, "localhost", addr[1]) for _ in range(20)]
            for g in gs:
                async with await g as conn:
                    await conn.write(b"x")
                    assert await conn.read() == b"x"

    gofer.run(main, procs=procs)
