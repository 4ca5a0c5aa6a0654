"""TLS over a Conn, with Python's ssl module doing the cryptography in memory."""

import contextlib
import ssl
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from gofer._core import Conn, Listener, Mutex, Operation, go, sleep
from gofer._errors import ClosedError, IncompleteRead, LimitExceeded

T = TypeVar("T")

RAW = 65536  # read from the socket at a time
RECORDS = 65536  # encrypted before it is written: memory stays flat however much is written
GOODBYE = 5.0  # seconds for a peer that is slow to take the end of what we say, as in Go


class TLSConn(Conn):
    """A Conn that encrypts. The handshake happens in dial(), or with a server's first operation.

    One goroutine may read while another writes. A stream that ends without the peer saying so
    (close_notify) has been cut short: ssl.SSLEOFError.

    >>> conn = await net.dial("example.org", 443, tls=True)
    >>> conn.ssl_object.version()
    'TLSv1.3'
    """

    __slots__ = (
        "_broken",
        "_buffer",
        "_early",
        "_eof",
        "_incoming",
        "_lock",
        "_outgoing",
        "_ragged",
        "_reading",
        "_said_bye",
        "_sending",
        "_shaken",
        "_ssl",
        "_writing",
    )

    _ssl: ssl.SSLObject
    _incoming: ssl.MemoryBIO
    _outgoing: ssl.MemoryBIO
    _lock: threading.Lock
    _reading: Mutex
    _writing: Mutex  # for a write(), so that it stays whole; before _reading and _sending
    _sending: Mutex  # keeps what is in _outgoing in order on its way out; after _reading
    _buffer: bytearray  # decrypted, not yet asked for
    _early: bytearray  # decrypted before anybody wanted to; before all that is in _incoming
    _shaken: bool
    _said_bye: bool
    _broken: bool
    _eof: bool
    _ragged: bool  # the encrypted stream has ended: good if the peer has said so before

    def __new__(
        cls, fd: int, tls: ssl.SSLContext, server_side: bool, server_hostname: str | None
    ) -> "TLSConn":
        self = super().__new__(cls, fd)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = tls.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)
        self._lock = threading.Lock()
        self._reading = Mutex()
        self._writing = Mutex()
        self._sending = Mutex()
        self._buffer = bytearray()
        self._early = bytearray()
        self._ragged = False
        self._broken = False
        self._shaken = False
        self._said_bye = False
        self._eof = False
        return self

    @property
    def ssl_object(self) -> ssl.SSLObject:
        """The ssl.SSLObject that encrypts: certificates, protocol, cipher. Only to be asked.

        >>> conn = await net.dial("example.org", 443, tls=True)
        >>> conn.ssl_object.version()
        'TLSv1.3'
        """
        return self._ssl

    # --- the encrypted stream ---

    def _locked(self, fn: Callable[..., T], *args: Any) -> T:
        """Call it, one thread at a time: OpenSSL gives up the GIL and needs this, BIOs included."""
        with self._lock:
            return fn(*args)

    async def _send(self, data: bytes) -> None:
        """Holds _sending."""
        try:
            await super().write(data)
        except BaseException:
            self._broken = True  # half a record may be out
            raise

    async def _say(self) -> None:
        """Send what the protocol itself has to say.

        Whoever is sending already does it, and looks once more when it is done: a reader must not
        wait for a writer that waits for its peer, whose reader might do the same.
        """
        while self._has_to_say() and self._sending.try_lock():
            try:
                while data := self._locked(self._outgoing.read):
                    await self._send(data)
            finally:
                self._sending.unlock()

    def _has_to_say(self) -> bool:
        with self._lock:
            return self._outgoing.pending > 0

    def _open(self, n: int) -> bytes:
        """Decrypt: at most n bytes."""
        with self._lock:
            if self._early:
                data = bytes(self._early[:n])
                del self._early[:n]
                return data
            return self._ssl.read(n)

    def _close_notify(self) -> bytes:
        """What to send as the last.

        unwrap() also looks for the peer's close_notify, and if it comes upon data the connection
        is done for. So there must not be any; it is the reader's.
        """
        with self._lock:
            held = b"" if self._ragged else self._incoming.read()
            while n := self._ssl.pending():
                self._early += self._ssl.read(n)
            with contextlib.suppress(ssl.SSLError):  # the peer has not said goodbye yet
                self._ssl.unwrap()
            if held:
                self._incoming.write(held)
            return self._outgoing.read()

    def _seal(self, data: memoryview) -> bytes:
        """Encrypt. Nobody sees it in _outgoing, and sends it in the writer's place."""
        with self._lock:
            self._ssl.write(data)
            return self._outgoing.read()

    async def _hear(self) -> None:
        """Read what the peer has to say. Holds _reading."""
        if data := await super().read(RAW):
            self._locked(self._incoming.write, data)
        else:
            self._ragged = True
            self._locked(self._incoming.write_eof)

    async def handshake(self) -> None:
        """Agree on keys, if that has not been done. Reads and writes do it by themselves.

        >>> conn = await net.dial("example.org", 443, tls=True)
        >>> await conn.handshake()
        """
        if self._shaken:
            return
        async with self._reading:
            await self._handshake()

    async def _handshake(self) -> None:
        while not self._shaken:
            try:
                self._locked(self._ssl.do_handshake)
                self._shaken = True
            except ssl.SSLWantReadError:
                await self._say()
                await self._hear()
            except ssl.SSLError:
                await self._last_words()
                raise
        await self._say()

    async def _last_words(self) -> None:
        """The alert that tells the peer what is wrong, if it still listens."""
        with contextlib.suppress(OSError):
            await self._say()

    async def _decrypt(self, n: int) -> bytes:
        """At most n bytes, b'' at the end. Holds _reading."""
        if not self._shaken:
            await self._handshake()
        while not self._eof:
            try:
                if data := self._open(n):
                    return data
                self._eof = True
            except ssl.SSLWantReadError:
                await self._say()
                await self._hear()
            except ssl.SSLZeroReturnError:
                self._eof = True
            except ssl.SSLEOFError:
                raise
            except ssl.SSLError:
                await self._last_words()
                raise
            await self._say()  # renewed keys, for example
        return b""

    # --- Conn ---

    async def read(self, n: int = 65536) -> bytes:  # type: ignore[override]
        """As Conn.read().

        >>> data = await conn.read()
        """
        _check_size(n)
        async with self._reading:
            if self._buffer:
                return self._take(min(n, len(self._buffer)))
            return await self._decrypt(min(n, 1 << 20)) if n else b""

    def _take(self, n: int) -> bytes:
        data = bytes(memoryview(self._buffer)[:n])
        del self._buffer[:n]
        return data

    async def read_into(self, buf: Any) -> int:  # type: ignore[override]
        """As Conn.read_into().

        >>> n = await conn.read_into(buf)
        """
        with memoryview(buf).cast("B") as view:
            data = await self.read(len(view))
            view[: len(data)] = data
            return len(data)

    async def read_exactly(self, n: int) -> bytes:  # type: ignore[override]
        """As Conn.read_exactly().

        >>> header = await conn.read_exactly(16)
        """
        _check_size(n)
        async with self._reading:
            while len(self._buffer) < n:
                if not (data := await self._decrypt(RAW)):
                    raise IncompleteRead(self._take(len(self._buffer)), n)
                self._buffer += data
            return self._take(n)

    async def read_until(self, sep: bytes, limit: int = 65536) -> bytes:  # type: ignore[override]
        """As Conn.read_until().

        >>> line = await conn.read_until(b"\\r\\n")
        """
        if not sep or limit < 1:
            raise ValueError("read_until() needs a separator and a positive limit")
        start = 0
        async with self._reading:
            while (at := self._buffer.find(sep, start)) < 0 and len(self._buffer) < limit:
                start = max(0, len(self._buffer) - len(sep) + 1)
                if not (data := await self._decrypt(RAW)):
                    raise IncompleteRead(self._take(len(self._buffer)), None)
                self._buffer += data
            if at < 0 or at + len(sep) > limit:
                raise LimitExceeded(f"no {sep!r} within {limit} bytes")
            return self._take(at + len(sep))

    async def write(self, data: Any) -> None:  # type: ignore[override]
        """As Conn.write().

        >>> await conn.write(b"hello")
        """
        pieces = data if isinstance(data, list | tuple) else (data,)
        await self.handshake()
        async with self._writing:
            for piece in pieces:
                with memoryview(piece).cast("B") as view:
                    for start in range(0, len(view), RECORDS):
                        # Released here and now: without the GIL, one that is dropped on another
                        # thread than it was made on goes when it likes, and is not counted well.
                        with view[start : start + RECORDS] as part:
                            await self._write_records(part)
                        await self._say()

    async def _write_records(self, data: memoryview) -> None:
        """Holds _writing."""
        while True:
            try:
                async with self._sending:
                    self._check_writable()
                    await self._send(self._seal(data))
                return
            except ssl.SSLWantReadError:  # TLS 1.2: the peer has begun another handshake
                await self._say()
            if not self._reading.try_lock():
                await sleep(0.001)  # whoever reads goes on with it
                continue
            try:
                await self._renegotiate()
            finally:
                self._reading.unlock()

    async def _renegotiate(self) -> None:
        """A step of it. Holds _reading."""
        try:
            self._buffer += self._open(RAW)
        except ssl.SSLWantReadError:
            await self._say()
            await self._hear()

    def _check_writable(self) -> None:
        if self.closed or self._said_bye:
            raise ClosedError("use of closed connection")
        if self._broken:
            raise ClosedError("an earlier write was cut short: nothing can follow it")

    def _say_bye(self) -> bytes:
        """close_notify, unless somebody is in the middle of a record; gives what is left of it."""
        if self._said_bye or self._broken or not self._shaken or not self._writing.try_lock():
            return b""
        try:
            if not self._sending.try_lock():
                return b""
            try:
                self._said_bye = True
                data = self._close_notify()
                return data[self.write_nowait(data) :]
            finally:
                self._sending.unlock()
        finally:
            self._writing.unlock()

    def close_write(self) -> Operation[None]:
        """As Conn.close_write(), and the peer can tell that it is no accident.

        >>> conn.close_write()
        """
        if rest := self._say_bye():
            with contextlib.suppress(RuntimeError):  # there is no run
                return go(self._finish, rest)  # type: ignore[return-value]  # may be awaited, too
        return super().close_write()

    async def _finish(self, rest: bytes) -> None:
        with contextlib.suppress(OSError):
            await super().write(rest)
            super().close_write()

    def close(self) -> Operation[None]:
        """As Conn.close(), and the peer can tell that it is no accident.

        >>> conn.close()
        """
        if not self.closed:
            rest = self._say_bye()
            self.discard_input()  # tickets that a server sends unasked
            if rest:
                # ClosedError: somebody is in the middle of something. RuntimeError: no run.
                with contextlib.suppress(ClosedError, RuntimeError):
                    conn = Conn(self.detach())
                    return go(_say_and_close, conn, rest)  # type: ignore[return-value]
        return super().close()


async def _say_and_close(conn: Conn, last: bytes) -> None:
    """The peer is slow: the end of what we have to say waits for it, and nobody else does."""
    with conn, contextlib.suppress(OSError):
        conn.set_write_deadline(GOODBYE)
        await conn.write(last)


def _check_size(n: int) -> None:
    if n < 0:
        raise ValueError(f"a number of bytes cannot be negative: {n}")


class TLSListener(Listener):
    """A Listener whose connections are TLSConns.

    A client that is slow with its handshake, or fails in it, bothers nobody but whoever serves it.

    >>> tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # and load_cert_chain()
    >>> listener = net.listen("127.0.0.1", 0, tls=tls)
    >>> listener.close()
    """

    __slots__ = ("_tls",)
    _tls: ssl.SSLContext

    def __new__(cls, fd: int, tls: ssl.SSLContext) -> "TLSListener":
        self = super().__new__(cls, fd)
        self._tls = tls
        return self

    @property
    def tls(self) -> ssl.SSLContext:
        """What its connections are encrypted with.

        >>> tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        >>> net.listen("127.0.0.1", 0, tls=tls).tls is tls
        True
        """
        return self._tls

    def _wrap(self, conn: Conn) -> TLSConn:
        return TLSConn(conn.detach(), self._tls, True, None)

    async def accept(self) -> TLSConn:  # type: ignore[override]
        """As Listener.accept().

        >>> conn = await listener.accept()
        """
        return self._wrap(await super().accept())

    async def __anext__(self) -> TLSConn:  # type: ignore[override]
        return self._wrap(await super().__anext__())


def client_context(tls: object) -> ssl.SSLContext:
    """What dial(tls=...) means."""
    if tls is True:
        return ssl.create_default_context()
    return server_context(tls)


def server_context(tls: object) -> ssl.SSLContext:
    """What listen(tls=...) means: a server needs its certificate."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    raise TypeError(f"tls must be an ssl.SSLContext, not {tls!r}")


async def start(
    conn: Conn, tls: ssl.SSLContext, server_side: bool, server_hostname: str | None
) -> TLSConn:
    """Encrypt a connection from here on. It is closed if that fails."""
    encrypted = TLSConn(conn.detach(), tls, server_side, server_hostname)
    try:
        await encrypted.handshake()
    except BaseException:
        encrypted.close()
        raise
    return encrypted


for _cls in (TLSConn, TLSListener):
    _cls.__module__ = "gofer.net"
del _cls
