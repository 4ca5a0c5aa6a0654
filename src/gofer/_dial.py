"""Names, addresses and connecting: what is behind net.dial() and net.listen()."""

import contextlib
import errno
import itertools
import os
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from gofer._core import Chan, Conn, go, select, sleep
from gofer._run import blocking

# How long an attempt to connect may take before the next address is tried beside it (RFC 8305).
ATTEMPT_DELAY = 0.25
# A Unix listener whose backlog is full refuses at once: try again after these many seconds.
UNIX_RETRY = 0.001

# As Go sets them: a peer that is gone is noticed after some minutes.
KEEPALIVE_IDLE = KEEPALIVE_INTERVAL = 15
KEEPALIVE_COUNT = 9


class Target(NamedTuple):
    """Where to connect, or what to bind."""

    family: int
    kind: int
    address: Any


@contextlib.contextmanager
def naming(address: object) -> Iterator[None]:
    """Errors of the same kind and number that name the address: the kernel does not."""
    try:
        yield
    except OSError as exc:
        if exc.errno is None:  # of module socket: a path that is too long
            raise type(exc)(f"{exc}: {address!r}") from None
        raise type(exc)(exc.errno, f"{exc.strerror}: {address!r}") from None


def _lookup(host: str | None, port: int, kind: int, flags: int) -> list[Target]:
    with naming(host):
        found = socket.getaddrinfo(host, port, type=kind, flags=flags)
    return list(dict.fromkeys(Target(family, kind, address) for family, _, _, _, address in found))


def check_port(port: object) -> int:
    """A port is a number: services are not looked up."""
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"a port must be an int, not {port!r}")
    if not 0 <= port <= 65535:
        raise ValueError(f"a port must be between 0 and 65535, not {port}")
    return port


def _check_host(host: object) -> str | None:
    if host is not None and not isinstance(host, str):
        raise TypeError(f"a host must be a str, not {host!r}")
    return host or None


def _numeric(host: str | None, port: int, kind: int, flags: int) -> list[Target] | None:
    """Without asking anybody; None if that takes a name server."""
    try:
        return _lookup(host, port, kind, flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        return None


def _lookup_or_error(
    host: str | None, port: int, kind: int, flags: int
) -> list[Target] | Exception:
    """In a goroutine whose awaiter may have gone: then nobody would take the exception."""
    try:
        return _lookup(host, port, kind, flags)
    except Exception as exc:
        return exc


async def targets(host: str | None, port: int, kind: int) -> list[Target]:
    """Resolve without stalling anybody: the lookup blocks a thread of its own."""
    host = _check_host(host) or "localhost"
    check_port(port)
    known = _numeric(host, port, kind, 0)
    if known is not None:
        return known
    found = await go(_lookup_or_error, host, port, kind, 0, name=f"resolve {host}")
    if isinstance(found, Exception):
        raise found
    return found


def targets_now(host: str | None, port: int, kind: int, flags: int) -> list[Target]:
    """The same in plain code: a lookup gives up the P while it blocks."""
    host = _check_host(host)
    check_port(port)
    known = _numeric(host, port, kind, flags)
    if known is not None:
        return known
    with blocking():
        return _lookup(host, port, kind, flags)


def interleaved(found: list[Target]) -> list[Target]:
    """Families by turns, so that one which does not work delays each other address once at most."""
    first = [t for t in found if t.family == found[0].family]
    rest = [t for t in found if t.family != found[0].family]
    pairs = itertools.zip_longest(first, rest)
    return [t for t in itertools.chain.from_iterable(pairs) if t is not None]


def set_tcp_options(sock: socket.socket) -> None:
    """No delay for small writes, and a look at silent peers; accepted sockets inherit these."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)


async def connect(target: Target) -> Conn:
    """Connect to one address."""
    sock = socket.socket(target.family, target.kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if target.family != socket.AF_UNIX:
            set_tcp_options(sock)
        while (error := sock.connect_ex(target.address)) == errno.EAGAIN:
            await sleep(UNIX_RETRY)
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, f"{os.strerror(error)}: {target.address!r}")
    except BaseException:
        sock.close()
        raise
    conn = Conn(sock.detach())
    if error:
        try:
            with naming(target.address):
                await conn.connected()
        except BaseException:
            conn.close()
            raise
    return conn


def _close(outcome: Conn | OSError) -> None:
    if isinstance(outcome, Conn):
        outcome.close()


class _Race:
    """Happy eyeballs: several attempts at once, the first that succeeds wins."""

    def __init__(self, candidates: list[Target]) -> None:
        self.waiting = candidates
        self.running = 0
        self.over = False
        self.results: Chan[Conn | OSError] = Chan(len(candidates))
        self.errors: list[OSError] = []

    async def attempt(self, target: Target) -> None:
        try:
            outcome: Conn | OSError = await connect(target)
        except OSError as exc:
            outcome = exc
        if self.over:
            _close(outcome)
        else:
            self.results.send_nowait(outcome)  # as many places as attempts

    async def first(self) -> Conn:
        attempts = []
        winner = None
        try:
            while winner is None:
                if self.waiting:
                    attempts.append(go(self.attempt, self.waiting.pop(0)))
                    self.running += 1
                elif self.running == 0:
                    raise self.failure()
                winner = await self.next_result()
            return winner
        finally:
            for g in attempts:
                g.cancel()
            self.over = True
            while len(self.results):  # too late
                _close(self.results.recv_nowait())

    async def next_result(self) -> Conn | None:
        """None: an attempt failed, or takes long; start another."""
        pause = sleep(ATTEMPT_DELAY) if self.waiting else None
        selected = await select(self.results.recv(), pause)
        if selected.index == 1:
            return None
        self.running -= 1
        outcome: Conn | OSError = selected.value
        if isinstance(outcome, OSError):
            self.errors.append(outcome)
            return None
        return outcome

    def failure(self) -> OSError:
        """The first error tells most; the others are in its notes."""
        error = self.errors[0]
        for other in self.errors[1:]:
            error.add_note(f"also tried: {other}")
        return error


async def connect_any(candidates: list[Target]) -> Conn:
    """Connect to the first of these that answers."""
    if len(candidates) == 1:
        return await connect(candidates[0])
    return await _Race(interleaved(candidates)).first()
