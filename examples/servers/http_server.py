"""An HTTP/1.1 server on gofer.net and httptools: python examples/servers/http_server.py [PORT]

One goroutine a connection. Requests are answered in order, also if several come at once
(pipelining); connections are kept alive, and closed when they have been silent for long, or take
too long with a request. On SIGTERM and Ctrl-C the server answers the requests that it has begun,
and ends. An application is an async function from a Request to a Response.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

import httptools

from gofer import WaitGroup, go, net, run, signals, timeout

# Seconds:
IDLE = 60.0  # without a request before a connection is closed
REQUEST_TIME = 30.0  # for all of a request, once it has begun
WRITE_TIME = 30.0  # for a client to take an answer
LINGER = 2.0  # for a client to hear our last words
GRACE = 10.0  # for requests under way, when the server ends

# Bytes:
MAX_TARGET = 8192
MAX_HEAD = 65536
MAX_BODY = 1 << 20


@dataclass(slots=True)
class Request:
    """What a client asks for."""

    method: str = ""
    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True
    wants_to_hear: bool = False  # that it is kept alive: clients of HTTP/1.0


@dataclass(slots=True)
class Response:
    """What it gets."""

    body: bytes = b""
    status: int = 200
    content_type: bytes = b"text/plain; charset=utf-8"


App = Callable[[Request], Awaitable[Response]]


class Refused(Exception):
    """A request that is not answered as it wishes, and ends the connection."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status)
        self.status = status


class Parser:
    """Callbacks of httptools. Whole requests end up in `requests`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.refused: HTTPStatus | None = None  # what follows those
        self.current = Request()
        self.within = self.in_head = False  # of a request that is not complete
        self.wants_continue = False
        self.size = self.hosts = 0
        self.http = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self.current = Request()
        self.within = self.in_head = True
        self.size = self.hosts = 0

    def on_url(self, url: bytes) -> None:
        self.current.target += url
        if len(self.current.target) > MAX_TARGET:
            raise Refused(HTTPStatus.REQUEST_URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.size += len(name) + len(value)
        if self.size > MAX_HEAD:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if not self.in_head:
            return  # after the body: nobody wants these
        self.current.headers.append((name, value))
        match name.lower():
            case b"host":
                self.hosts += 1
            case b"connection":
                self.current.wants_to_hear = value.lower() == b"keep-alive"
            case b"content-length":
                if int(value) > MAX_BODY:  # the parser has looked at it: it is a number
                    raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            case b"expect":
                self.wants_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self.in_head = False
        if self.hosts != 1 and self.http.get_http_version() == "1.1":
            raise Refused(HTTPStatus.BAD_REQUEST)

    def on_body(self, body: bytes) -> None:
        if len(self.current.body) + len(body) > MAX_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        self.current.body += body

    def on_message_complete(self) -> None:
        self.current.method = self.http.get_method().decode()
        self.current.keep_alive = self.http.should_keep_alive()
        self.requests.append(self.current)
        self.within = self.wants_continue = False

    def feed(self, data: bytes) -> list[Request]:
        """Parse; return the requests that are complete. Look at `refused`, too."""
        before = self.current
        try:
            self._feed(data)
            if self.in_head and self.current is before:  # one line may be endless
                self.size += len(data)
                if self.size > MAX_HEAD:
                    self.refused = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        except Refused as exc:
            self.refused = exc.status
        except httptools.HttpParserError as exc:
            refusal = exc.__context__
            known = isinstance(refusal, Refused)
            self.refused = refusal.status if known else HTTPStatus.BAD_REQUEST
        done, self.requests = self.requests, []
        return done

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.http.feed_data(data)
                return
            except httptools.HttpParserUpgrade as exc:  # to another protocol: we stay with ours
                if self.http.get_method() == b"CONNECT":
                    self.requests.pop()
                    raise Refused(HTTPStatus.NOT_IMPLEMENTED) from None
                data = data[exc.args[0] :]


HEADS = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}
CONNECTION = {  # (keep alive, say so)
    (True, False): b"",
    (True, True): b"connection: keep-alive\r\n",
    (False, False): b"connection: close\r\n",
    (False, True): b"connection: close\r\n",
}
NO_REQUEST = Request()


class Date:
    """The header, made once a second."""

    second = 0
    text = b""

    @classmethod
    def now(cls) -> bytes:
        second = int(time.time())
        if second != cls.second:
            cls.text = b"date: %s\r\n" % formatdate(second, usegmt=True).encode()
            cls.second = second
        return cls.text


def render(response: Response, request: Request, *, keep_alive: bool) -> bytes:
    """The bytes of a response."""
    return b"".join(
        (
            HEADS[response.status],
            Date.now(),
            b"content-type: ",
            response.content_type,
            b"\r\ncontent-length: %d\r\n" % len(response.body),
            CONNECTION[keep_alive, request.wants_to_hear],
            b"\r\n",
            b"" if request.method == "HEAD" else response.body,
        )
    )


class Connection:
    """One connection, from its first request to its last."""

    def __init__(self, conn: net.Conn, app: App) -> None:
        self.conn = conn
        self.app = app
        self.busy = False  # with a request
        self.stopping = False

    def stop(self) -> None:
        """Answer what has begun, and nothing else."""
        self.stopping = True
        if not self.busy:
            self.conn.set_read_deadline(0)

    async def serve(self) -> None:
        async with self.conn:
            with contextlib.suppress(ConnectionError, TimeoutError):
                if await self.answer_all():
                    await self.say_goodbye()

    async def answer_all(self) -> bool:
        """True: the client does not expect that this was all."""
        conn, parser = self.conn, Parser()
        began = False
        while True:
            if not began:
                self.busy = False
                conn.set_read_deadline(IDLE)
                if self.stopping:
                    return True
            try:
                data = await conn.read()
            except TimeoutError:
                if began:
                    await self.refuse(HTTPStatus.REQUEST_TIMEOUT)
                return began
            if not data:
                return False
            self.busy = True
            for request in parser.feed(data):
                response = await answer(self.app, request)
                keep_alive = request.keep_alive and not self.stopping
                await self.write(render(response, request, keep_alive=keep_alive))
                if not keep_alive:
                    return True
                began = False
            if parser.refused is not None:
                await self.refuse(parser.refused)
                return True
            if parser.within and not began:
                began = True
                conn.set_read_deadline(REQUEST_TIME)
            if parser.wants_continue and not parser.in_head:
                parser.wants_continue = False
                await self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def refuse(self, status: HTTPStatus) -> None:
        response = Response(status.phrase.encode(), status)
        await self.write(render(response, NO_REQUEST, keep_alive=False))

    async def write(self, data: bytes) -> None:
        self.conn.set_write_deadline(WRITE_TIME)
        await self.conn.write(data)

    async def say_goodbye(self) -> None:
        """If we closed while the client still sends, it might never read our answer."""
        self.conn.close_write()
        self.conn.set_read_deadline(LINGER)
        while await self.conn.read():
            pass


async def answer(app: App, request: Request) -> Response:
    """An application that fails must not take the server along."""
    try:
        return await app(request)
    except Exception as exc:
        print(f"{request.method} {request.target!r}: {exc!r}", file=sys.stderr)
        return Response(b"Internal Server Error", 500)


class Server:
    """All connections."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.connections: set[Connection] = set()
        self.running = WaitGroup()
        self.stopping = False

    async def accept(self, listener: net.Listener) -> None:
        """Serve until the listener is closed."""
        async for conn in listener:
            self.running.go(self.serve, conn)

    async def serve(self, conn: net.Conn) -> None:
        connection = Connection(conn, self.app)
        self.connections.add(connection)
        if self.stopping:
            connection.stop()
        try:
            await connection.serve()
        finally:
            self.connections.discard(connection)

    async def stop(self) -> None:
        """Wait for the requests under way, but not for ever."""
        self.stopping = True
        for connection in self.connections.copy():
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with timeout(GRACE):
                await self.running.wait()


async def hello(request: Request) -> Response:
    """The application of this example."""
    if request.target == b"/":
        return Response(b"Hello, world!")
    if request.target == b"/echo":
        return Response(bytes(request.body), content_type=b"application/octet-stream")
    return Response(b"Not Found", 404)


async def main(port: int) -> None:
    stop = signals.notify(signal.SIGTERM, signal.SIGINT)
    server = Server(hello)
    async with net.listen("127.0.0.1", port) as listener:
        print("listening on http://{}:{}/".format(*listener.addr), flush=True)
        go(server.accept, listener)
        await stop.recv()
    signals.stop(stop)  # a second one ends it at once
    await server.stop()


if __name__ == "__main__":
    run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
