"""An HTTP/1.1 server on gofer.net and httptools: python examples/servers/http_server.py [PORT]

One goroutine a connection. Requests are answered in order, also if several come at once
(pipelining); connections are kept alive, and closed when they have been silent for long. An
application is an async function from a Request to a Response.
"""

import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import httptools

from gofer import go, net, run

IDLE = 60.0  # seconds without a request before a connection is closed
MAX_HEAD = 65536
MAX_BODY = 1 << 20


@dataclass(slots=True)
class Request:
    """What a client asks for."""

    method: str = ""
    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    keep_alive: bool = True


@dataclass(slots=True)
class Response:
    """What it gets."""

    body: bytes = b""
    status: int = 200
    content_type: bytes = b"text/plain; charset=utf-8"


App = Callable[[Request], Awaitable[Response]]


class Rejected(Exception):
    """A request that is not answered as it wishes."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status)
        self.status = status


class Parser:
    """Callbacks of httptools: whole requests end up in `requests`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.current = Request()
        self.size = 0
        self.wants_continue = False
        self.http = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self.current = Request()
        self.size = 0

    def on_url(self, url: bytes) -> None:
        self.current.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.size += len(name) + len(value)
        if self.size > MAX_HEAD:
            raise Rejected(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        self.current.headers.append((name, value))
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self.wants_continue = True

    def on_body(self, body: bytes) -> None:
        if len(self.current.body) + len(body) > MAX_BODY:
            raise Rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        self.current.body += body

    def on_message_complete(self) -> None:
        self.current.method = self.http.get_method().decode()
        self.current.keep_alive = self.http.should_keep_alive()
        self.requests.append(self.current)

    def feed(self, data: bytes) -> list[Request]:
        """Parse; return the requests that are complete. Raises Rejected."""
        try:
            self.http.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise Rejected(HTTPStatus.NOT_IMPLEMENTED) from None
        except httptools.HttpParserError as exc:
            if isinstance(exc.__context__, Rejected):
                raise exc.__context__ from None
            raise Rejected(HTTPStatus.BAD_REQUEST) from None
        done, self.requests = self.requests, []
        return done


HEADS = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}


def render(response: Response, *, keep_alive: bool, head: bool = False) -> bytes:
    """The bytes of a response."""
    return b"".join(
        (
            HEADS[response.status],
            b"content-type: ",
            response.content_type,
            b"\r\ncontent-length: %d\r\n" % len(response.body),
            b"" if keep_alive else b"connection: close\r\n",
            b"\r\n",
            b"" if head else response.body,
        )
    )


async def serve(conn: net.Conn, app: App) -> None:
    """One connection, from its first request to its last."""
    async with conn:
        with contextlib.suppress(ConnectionError, TimeoutError):
            parser = Parser()
            conn.set_deadline(IDLE)
            while data := await conn.read():
                try:
                    requests = parser.feed(data)
                except Rejected as exc:
                    refusal = Response(exc.status.phrase.encode(), exc.status)
                    await conn.write(render(refusal, keep_alive=False))
                    return
                if parser.wants_continue and not requests:
                    parser.wants_continue = False
                    await conn.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                for request in requests:
                    response = await answer(app, request)
                    head = request.method == "HEAD"
                    await conn.write(render(response, keep_alive=request.keep_alive, head=head))
                    if not request.keep_alive:
                        return
                if requests:
                    conn.set_deadline(IDLE)


async def answer(app: App, request: Request) -> Response:
    """An application that fails must not take the server along."""
    try:
        return await app(request)
    except Exception as exc:
        print(f"{request.method} {request.target!r}: {exc!r}", file=sys.stderr)
        return Response(b"Internal Server Error", 500)


async def hello(request: Request) -> Response:
    """The application of this example."""
    if request.target == b"/":
        return Response(b"Hello, world!")
    if request.target == b"/echo":
        return Response(request.body, content_type=b"application/octet-stream")
    return Response(b"Not Found", 404)


async def main(port: int) -> None:
    async with net.listen("127.0.0.1", port) as listener:
        print("listening on http://{}:{}/".format(*listener.addr), flush=True)
        async for conn in listener:
            go(serve, conn, hello)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
