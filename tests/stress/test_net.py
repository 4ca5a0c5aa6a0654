"""The network while everything happens at once: no byte, wake-up or descriptor is lost."""

import contextlib
import random
import socket
import threading
import time
from typing import Any

import pytest

import gofer
from gofer import _core, net
from tests.net_support import conn_pair, echo_server, raised_by, tcp_pair
from tests.support import SANITIZED, TINY, rounds, thread, wait_for


async def outcome(g: gofer.Goroutine[Any]) -> BaseException | None:
    """How it ended: what it raised, if anything."""
    return await raised_by(g)


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_ping_pong_between_goroutines_that_park_every_time(procs: int) -> None:
    async def pong(conn: net.Conn) -> None:
        while data := await conn.read():
            await conn.write(data)

    async def ping(conn: net.Conn, share: Any) -> None:
        for i in share:
            text = b"%d" % i
            await conn.write(text)
            assert await conn.read() == text
        conn.close_write()

    async def main() -> None:
        pairs = [conn_pair() for _ in range(4)]
        gs = [gofer.go(pong, b) for _, b in pairs]
        gs += [gofer.go(ping, a, rounds(divide_by=4)) for a, _ in pairs]
        for g in gs:
            await g
        for a, b in pairs:
            a.close()
            b.close()

    gofer.run(main, procs=procs)


def test_an_edge_that_comes_while_a_reader_parks_is_not_lost(procs: int) -> None:
    """A foreign thread writes at every moment of the reader's way into the poller."""
    a, b = tcp_pair()
    b.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    conn = net.Conn(a.detach())
    turn = threading.Semaphore(0)

    def writer() -> None:
        rng = random.Random(1)
        for _ in rounds():
            for _ in range(rng.randrange(200)):
                pass
            b.send(b"x")
            assert turn.acquire(timeout=30), "the byte was never read"

    async def main() -> None:
        with thread(writer):
            for _ in rounds():
                assert await conn.read(100) == b"x"
                turn.release()

    with conn, b:
        gofer.run(main, procs=procs)


def test_the_poller_is_got_out_of_the_kernel_every_time(procs: int) -> None:
    """Wake-ups from other threads, timers and edges, while an M waits in the poller."""
    a, b = tcp_pair()
    conn = net.Conn(a.detach())
    done = threading.Semaphore(0)

    async def child() -> None:
        await gofer.sleep(0.00005)
        done.release()

    def foreign() -> None:
        for i in rounds(divide_by=2):
            if i % 3 == 0:
                b.send(b"x")
            gofer.go(child)
            assert done.acquire(timeout=30), f"goroutine {i} never ran"

    async def main() -> None:
        reader = gofer.go(_read_all, conn)
        with thread(foreign):
            pass
        b.close()
        await reader

    async def blocked_main() -> None:
        """Main sleeps in the runtime, not in join()."""
        reader = gofer.go(_read_all, conn)
        t = threading.Thread(target=foreign)
        t.start()
        while t.is_alive():
            await gofer.sleep(0.001)
        t.join()
        b.close()
        await reader

    with conn:
        gofer.run(blocked_main, procs=procs)


def test_the_poller_starts_while_an_m_goes_to_sleep_over_the_timers(procs: int) -> None:
    """Each run has its own. If nobody waits in it, what comes is seen when the timer is due."""
    rng = random.Random(2)

    def send_later(sock: socket.socket) -> None:
        time.sleep(0.001)
        sock.send(b"x")

    async def main() -> None:
        a, b = tcp_pair()
        conn = net.Conn(a.detach())
        with conn, b:
            gofer.go(wait_for, gofer.sleep(20))
            await gofer.gosched()
            time.sleep(rng.random() * 0.0003)  # the others go to sleep
            gofer.go(send_later, b)
            assert await conn.read() == b"x"

    for _ in rounds(divide_by=5):
        start = time.monotonic()
        gofer.run(main, procs=procs)
        assert time.monotonic() - start < 15


async def _read_all(conn: net.Conn) -> None:
    while await conn.read():
        pass


def test_closing_while_others_read_and_write(procs: int) -> None:
    async def reader(conn: net.Conn) -> None:
        with contextlib.suppress(ConnectionError):
            while await conn.read(10):
                pass

    async def writer(conn: net.Conn) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await conn.write(bytes(5000))

    async def main() -> None:
        for i in rounds(divide_by=30):
            a, b = conn_pair(unix=i % 2 == 0)
            gs = [gofer.go(f, conn) for f in (reader, writer) for conn in (a, b, a, b)]
            for _ in range(i % 7):
                await gofer.gosched()
            a.close()
            if i % 3:
                await gofer.gosched()
            b.close()
            for g in gs:
                await g

    gofer.run(main, procs=procs)
    assert _core.counters()["io_waiters"] == 0


def test_cancelling_readers_and_writers_loses_no_byte(procs: int) -> None:
    """Each byte is read by somebody, in order, whoever is cancelled meanwhile."""

    async def main() -> None:
        a, b = conn_pair()
        got = bytearray()

        async def reader() -> None:
            while data := await b.read(7):
                got.extend(data)

        total = 0
        readers = [gofer.go(reader) for _ in range(2)]
        for i in rounds(divide_by=2):
            await a.write(bytes([i % 256]))
            total += 1
            if i % 3 == 0:
                victim = readers.pop(0)
                victim.cancel()
                await outcome(victim)
                readers.append(gofer.go(reader))
        a.close()
        for g in readers:
            await g
        assert len(got) == total
        # Two readers may append in another order than they read; but nothing is lost or twice.
        assert sorted(got) == sorted(i % 256 for i in range(total))
        b.close()

    gofer.run(main, procs=procs)


def test_deadlines_race_with_data(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        sent = received = 0
        for i in rounds(divide_by=5):
            b.set_read_deadline(0.0002)
            reader = gofer.go(wait_for, b.read())
            if i % 2:
                await gofer.sleep(0.0001)
            if i % 5 == 4:
                b.set_read_deadline(None if i % 2 else 0.0001)
            await a.write(b"x")
            sent += 1
            with contextlib.suppress(TimeoutError):
                received += len(await reader)
            if i % 5 == 4:
                b.set_read_deadline(None)
        a.close()
        b.set_deadline(None)
        while data := await b.read():
            received += len(data)
        assert received == sent
        b.close()
        assert _core.counters()["timers"] == 0

    gofer.run(main, procs=procs)


def test_turns_are_passed_on_whatever_happens_to_the_holder(procs: int) -> None:
    async def main() -> None:
        for i in rounds(divide_by=20):
            a, b = conn_pair()
            readers = [gofer.go(raised_by, b.read_exactly(4)) for _ in range(8)]
            for g in readers[i % 3 :: 3]:
                g.cancel()
            if i % 4 == 0:
                b.set_read_deadline(0.0001)
            await a.write(bytes(32))
            if i % 4 == 1:
                b.close()
            elif i % 4 != 0:
                a.close()
            for g in readers:
                await outcome(g)
            a.close()
            b.close()

    gofer.run(main, procs=procs)


def test_wait_readable_of_foreign_sockets(procs: int) -> None:
    async def reader(sock: socket.socket) -> int:
        n = 0
        while True:
            try:
                data = sock.recv(1)
            except BlockingIOError:
                await net.wait_readable(sock)
                continue
            if not data:
                return n
            n += 1

    async def writer(sock: socket.socket) -> int:
        n = 0
        for _ in rounds(divide_by=4):
            await net.wait_writable(sock)
            n += sock.send(b"x")
            if n % 5 == 0:
                await gofer.gosched()
        sock.close()
        return n

    async def main() -> None:
        gs = []
        socks = []
        for _ in range(4):
            a, b = socket.socketpair()
            a.setblocking(False)
            b.setblocking(False)
            socks.append(a)
            gs.append((gofer.go(reader, a), gofer.go(writer, b)))
        for r, w in gs:
            assert await r == await w
        for a in socks:
            a.close()

    gofer.run(main, procs=procs)


def test_the_descriptor_numbers_go_round(procs: int) -> None:
    """Conns and foreign sockets with the same numbers, one after the other."""

    async def main() -> None:
        for i in rounds(divide_by=5):
            if i % 2:
                a, b = conn_pair(unix=True)
                reader = gofer.go(wait_for, b.read())
                await a.write(b"x")
                assert await reader == b"x"
                a.close()
                b.close()
            else:
                s, t = socket.socketpair()
                s.setblocking(False)
                waiter = gofer.go(wait_for, net.wait_readable(s))
                t.send(b"x")
                await waiter
                assert s.recv(10) == b"x"
                s.close()
                t.close()

    gofer.run(main, procs=procs)


CHAOS = 200 if TINY or SANITIZED else 500


def test_chaos(procs: int) -> None:
    """Hundreds of connections that are closed, cancelled and timed out at random moments."""

    async def handler(conn: net.Conn) -> None:
        rng = random.Random()
        with contextlib.suppress(OSError):
            async with conn:
                if rng.random() < 0.1:
                    conn.set_deadline(rng.random() * 0.01)
                while data := await conn.read(rng.choice([1, 100, 65536])):
                    if rng.random() < 0.01:
                        return
                    await conn.write(data)

    async def sender(conn: net.Conn, data: bytes) -> None:
        with contextlib.suppress(OSError):
            await conn.write(data)

    async def client(port: int, seed: int) -> None:
        rng = random.Random(seed)
        with contextlib.suppress(OSError, EOFError):
            async with await net.dial("127.0.0.1", port, timeout=20) as conn:
                for _ in range(rng.randrange(5)):
                    if rng.random() < 0.2:
                        conn.set_deadline(rng.random() * 0.01)
                    data = rng.randbytes(rng.choice([1, 1000, 100_000]))
                    writer = gofer.go(sender, conn, data)
                    try:
                        assert await conn.read_exactly(len(data)) == data
                    finally:
                        if rng.random() < 0.3:
                            writer.cancel()
                            conn.close()
                        await outcome(writer)

    async def main() -> None:
        async with echo_server(handler) as port:
            for start in rounds(divide_by=150):
                gs = [gofer.go(client, port, start * CHAOS + i) for i in range(CHAOS)]
                rng = random.Random(start)
                for g in rng.sample(gs, CHAOS // 5):
                    if rng.random() < 0.5:
                        await gofer.sleep(rng.random() * 0.001)
                    g.cancel()
                for g in gs:
                    exc = await outcome(g)
                    assert exc is None or isinstance(exc, gofer.Cancelled), exc

    gofer.run(main, procs=procs)
    assert _core.counters()["io_waiters"] == 0
