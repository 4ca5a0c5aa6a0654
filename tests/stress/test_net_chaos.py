"""Two thousand connections at once, both ends ours, whose every byte is accounted for.

What a stream carries is known beforehand: a place on one long tape that depends on the connection
and the direction. So a reader can tell a byte that is lost, twice there, or somebody else's. At
random moments readers are cancelled and others go on in their place, deadlines pass, writes are cut
short, and connections are half-closed, closed and reset.
"""

import collections
import contextlib
import os
import random
import resource
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import _core, net
from tests.net_support import raised_by
from tests.support import SANITIZED, STRESS_ROUNDS, TINY, rounds, until

CONNECTIONS = 200 if TINY or SANITIZED else 2000
SECONDS = min(STRESS_ROUNDS / 300, 120)  # 1 s in `make test`; long runs get up to two minutes

TAPE_LENGTH = 65521
TAPE = random.Random(5).randbytes(TAPE_LENGTH)
TAPE += TAPE  # so that up to TAPE_LENGTH bytes from anywhere are one slice
SIZES = (1, 10, 1000, 4096, 20_000, 65536)
AMOUNTS = (0, 1, 300, 3000, 30_000, 200_000)

count: collections.Counter[str] = collections.Counter()


@dataclass(slots=True)
class Stream:
    """One direction of a connection."""

    start: int  # of its place on the tape
    tried: int = 0  # bytes of all writes that have begun
    wrote: int = 0  # of those that have returned
    got: int = 0
    ended: bool = False  # the reader has come to the end

    def next(self, n: int) -> bytes:
        at = (self.start + self.tried) % TAPE_LENGTH
        self.tried += n
        return TAPE[at : at + n]

    def take(self, data: bytes) -> None:
        at = (self.start + self.got) % TAPE_LENGTH
        for i in range(0, len(data), TAPE_LENGTH):
            piece = data[i : i + TAPE_LENGTH]
            assert piece == TAPE[at : at + len(piece)], f"wrong bytes after {self.got}"
            at = (at + len(piece)) % TAPE_LENGTH
            self.got += len(piece)


@dataclass(slots=True)
class Link:
    """A connection: what both of its ends know."""

    number: int
    up: Stream = field(init=False)
    down: Stream = field(init=False)
    served: bool = False
    rough: bool = False  # one end was closed before its time: what was under way may be lost

    def __post_init__(self) -> None:
        self.up = Stream(self.number * 7919 % TAPE_LENGTH)
        self.down = Stream(self.number * 104729 % TAPE_LENGTH)

    def check(self) -> None:
        for s in (self.up, self.down):
            assert s.got <= s.tried, "more came than was sent"
            if not self.rough:
                assert self.served
                assert s.ended
                assert s.got >= s.wrote, "what was written has not come"
        count["rough" if self.rough else "whole"] += 1


def form(data: bytes, rng: random.Random) -> Any:
    """The same bytes as one object or another."""
    match rng.randrange(4):
        case 0:
            return bytearray(data)
        case 1:
            cut = len(data) // 3
            return [data[:cut], b"", memoryview(data)[cut:]]
        case _:
            return data


async def read_some(conn: net.Conn, s: Stream, rng: random.Random) -> bool:
    """One read of some kind; False at the end of the stream."""
    n = rng.choice(SIZES)
    match rng.randrange(4):
        case 0:
            buf = bytearray(n)
            data = bytes(buf[: await conn.read_into(buf)])
        case 1:
            try:
                data = await conn.read_exactly(n)
            except net.IncompleteRead as end:
                s.take(end.partial)
                return False
        case 2:
            try:
                async with gofer.timeout(rng.random() * 0.05):
                    s.take(data := await conn.read(n))
            except TimeoutError:
                count["read timeout"] += 1
                return True
            return bool(data)
        case _:
            data = await conn.read(n)
    s.take(data)
    return bool(data)


async def reader(conn: net.Conn, link: Link, s: Stream, rng: random.Random) -> None:
    """Read to the end. If it is cancelled another can go on: it has not lost anything."""
    while True:
        try:
            if not await read_some(conn, s, rng):
                s.ended = True
                return
        except TimeoutError:
            count["read deadline"] += 1
            conn.set_read_deadline(None)
        except ConnectionError:
            assert link.rough
            s.ended = True
            return
        if rng.random() < 0.05:
            await gofer.sleep(rng.random() * 0.02)  # the writer has to wait


async def writer(conn: net.Conn, link: Link, s: Stream, rng: random.Random) -> None:
    amount = rng.choice(AMOUNTS)
    try:
        while s.tried < amount:
            data = s.next(min(rng.choice(SIZES), TAPE_LENGTH, amount - s.tried))
            await conn.write(form(data, rng))
            s.wrote += len(data)
            if rng.random() < 0.05:
                await gofer.sleep(rng.random() * 0.02)
    except TimeoutError:
        count["write deadline"] += 1
    except ConnectionError:
        assert link.rough
    finally:
        with contextlib.suppress(net.ClosedError):
            conn.close_write()


def reset(conn: net.Conn) -> None:
    """Have close() send a reset, and throw away what is under way."""
    with socket.socket(fileno=os.dup(conn.fileno())) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def torment(
    conn: net.Conn,
    link: Link,
    r: "gofer.Goroutine[None]",
    w: "gofer.Goroutine[None]",
    rng: random.Random,
) -> bool:
    """Something that happens to one end. False: that was its end."""
    what = rng.random()
    if what < 0.3:
        count["reader cancelled"] += r.cancel()
    elif what < 0.4:
        count["writer cancelled"] += w.cancel()
    elif what < 0.6:
        conn.set_read_deadline(rng.choice([-1, 0, 0.0001, 0.01]))
    elif what < 0.7:
        conn.set_write_deadline(rng.choice([0, 0.001, 0.05]))
    elif what < 0.8:
        conn.set_deadline(None)
    elif what < 0.9:
        count["closed" if what < 0.85 else "reset"] += 1
        link.rough = True
        if what >= 0.85:
            reset(conn)
        conn.close()
        return False
    return True


async def end(conn: net.Conn, link: Link, out: Stream, into: Stream) -> None:
    """One end of a connection, to the last byte of both directions, or until something happens."""
    rng = random.Random()
    r = gofer.go(reader, conn, link, into, rng)
    w = gofer.go(writer, conn, link, out, rng)
    me = gofer.current()
    assert me is not None
    killer = gofer.after_func(rng.random(), me.cancel) if rng.random() < 0.1 else None
    whole = False
    async with conn:
        try:
            while not whole:
                await gofer.sleep(rng.expovariate(5))
                if r.cancelled():
                    r = gofer.go(reader, conn, link, into, rng)
                if w.cancelled():
                    conn.close_write()  # it may never have begun
                whole = into.ended and w.done()
                if not whole and not torment(conn, link, r, w, rng):
                    return
        finally:
            if killer is not None:
                count["end cancelled"] += not killer.stop()
            link.rough |= not whole  # before it is closed


async def client(conn: net.Conn, link: Link) -> None:
    try:
        await conn.write(struct.pack("!I", link.number))
        await end(conn, link, link.up, link.down)
    except BaseException:
        link.rough = True
        raise
    finally:
        conn.close()


class Chaos:
    """A server, and places for clients: when one has gone, another comes."""

    def __init__(self, folder: str) -> None:
        self.links: dict[int, Link] = {}
        self.last = gofer.atomic.Int(0)
        # Each address has ports of its own: many connections wait for their last packet.
        self.listeners = [net.listen(f"127.0.0.{i}", 0) for i in range(1, 5)]
        self.listeners.append(net.listen_unix(f"{folder}/socket"))
        self.arrived = gofer.WaitGroup()
        self.open: gofer.Chan[None] = gofer.Chan()
        self.stop_at = 0.0

    async def server(self, listener: net.Listener) -> None:
        async for conn in listener:
            gofer.go(self.serve, conn)

    async def serve(self, conn: net.Conn) -> None:
        try:
            number = await conn.read_exactly(4)
        except (ConnectionError, EOFError):
            conn.close()
            return
        link = self.links[struct.unpack("!I", number)[0]]
        link.served = True
        try:
            await end(conn, link, link.down, link.up)
        except gofer.Cancelled:
            link.rough = True
            raise

    async def dial(self, rng: random.Random) -> net.Conn:
        address = rng.choice(self.listeners).addr
        if isinstance(address, str):
            return await net.dial_unix(address)
        return await net.dial(*address)

    async def place(self) -> None:
        rng = random.Random()
        conn = await self.dial(rng)
        self.arrived.done()
        await self.open.recv_ok()
        while True:
            link = Link(self.last.add(1))
            self.links[link.number] = link
            error = await raised_by(gofer.go(client, conn, link))
            if isinstance(error, gofer.Cancelled):
                link.rough = True
            elif error is not None:
                raise error
            if time.monotonic() > self.stop_at:
                return
            conn = await self.dial(rng)

    async def run(self) -> None:
        servers = [gofer.go(self.server, listener) for listener in self.listeners]
        self.arrived.add(CONNECTIONS)
        places = [gofer.go(self.place) for _ in range(CONNECTIONS)]
        await self.arrived.wait()
        assert _core.counters()["connections"] >= CONNECTIONS
        self.stop_at = time.monotonic() + SECONDS
        self.open.close()
        for g in places:
            for _ in rounds():
                break  # the watchdog sees that there is progress
            await g
        for listener in self.listeners:
            listener.close()
        for g in servers:
            await g
        await until(lambda: gofer.num_goroutine() == 1, "the end of all other goroutines")
        for link in self.links.values():
            link.check()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + 200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"its connections need {wanted} descriptors; this user may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("procs", [1, 2, 4])
def test_every_byte_is_accounted_for(procs: int, tmp_path: Path) -> None:
    async def main() -> None:
        await Chaos(str(tmp_path)).run()

    count.clear()
    gofer.run(main, procs=procs)
    assert _core.counters()["io_waiters"] == 0
    for what in ("whole", "rough", "closed", "reset", "end cancelled", "reader cancelled"):
        assert count[what] > 0, count
