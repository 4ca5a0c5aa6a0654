"""The example servers, and the program of docs/net.md, as users run them."""

import contextlib
import importlib.util
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import _load
from tests.support import run_program, thread

ROOT = Path(__file__).parent.parent


class Server:
    """An example that runs."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.port = 0
        self.errors = ""  # what it may complain of

    def readline(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextlib.contextmanager
def server(*args: str) -> Iterator[Server]:
    """One that listens. It ends well when interrupted."""
    s = Server(*args)
    try:
        line = s.readline()
        found = re.search(r":(\d+)/?$", line)
        assert found, (line, s.process.communicate())
        s.port = int(found[1])
        yield s
    finally:
        s.process.send_signal(signal.SIGINT)
        out, err = s.process.communicate(timeout=30)
    assert (s.process.returncode, err) == (0, s.errors), out


def test_the_echo_server() -> None:
    with (
        server(str(ROOT / "examples" / "servers" / "echo.py")) as s,
        socket.create_connection(("127.0.0.1", s.port)) as sock,
    ):
        for text in (b"one", b"two" * 1000):
            sock.sendall(text)
            back = b""
            while len(back) < len(text):
                back += sock.recv(65536)
            assert back == text


# --- HTTP ----------------------------------------------------------------------------------------

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
MAX_BODY = 1 << 20

needs_httptools = pytest.mark.skipif(
    importlib.util.find_spec("httptools") is None, reason="needs httptools"
)


def http_server(app: str = "", **settings: float) -> "contextlib.AbstractContextManager[Server]":
    """The example with other settings, and perhaps another application."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples" / "servers")!r})
import gofer, http_server
for name, value in {settings!r}.items():
    assert hasattr(http_server, name)
    setattr(http_server, name, value)
{textwrap.dedent(app)}
gofer.run(http_server.main, 0)
"""
    return server("-c", code)


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A connection that says exactly what it is told to."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def more(self) -> bool:
        data = self.sock.recv(65536)
        self.buffer += data
        return bool(data)

    def take(self, n: int) -> bytes:
        while len(self.buffer) < n:
            assert self.more(), self.buffer
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def reply(self, *, head: bool = False) -> Reply:
        while b"\r\n\r\n" not in self.buffer:
            assert self.more(), self.buffer
        lines = self.take(self.buffer.index(b"\r\n\r\n") + 4).decode().split("\r\n")
        fields = dict(line.split(": ") for line in lines[1:-2])
        length = int(fields.get("content-length", "0"))
        return Reply(int(lines[0].split()[1]), fields, b"" if head else self.take(length))

    def ask(self, request: bytes) -> Reply:
        self.send(request)
        return self.reply()

    def ended(self) -> bool:
        """Whether the server has closed the connection, and said nothing more."""
        return not self.more() and not self.buffer


@needs_httptools
def test_http_keep_alive_and_its_end() -> None:
    with http_server() as s:
        with Client(s.port) as c:
            for _ in range(3):
                reply = c.ask(GET)
                assert (reply.status, reply.body) == (200, b"Hello, world!")
                assert "connection" not in reply.headers
                assert reply.headers["date"].endswith(" GMT")
            c.send(GET.replace(b"GET", b"HEAD"))
            reply = c.reply(head=True)
            assert reply.headers["content-length"] == "13"
            assert c.ask(GET.replace(b"/ ", b"/other ", 1)).status == 404
            assert c.ask(LAST).headers["connection"] == "close"
            assert c.ended()
        old = b"GET / HTTP/1.0\r\n"
        with Client(s.port) as c:
            reply = c.ask(old + b"Connection: keep-alive\r\n\r\n")
            assert reply.headers["connection"] == "keep-alive"
            assert c.ask(old + b"\r\n").headers["connection"] == "close"
            assert c.ended()
        with Client(s.port) as c:  # it may finish speaking before it listens
            c.send(GET)
            c.sock.shutdown(socket.SHUT_WR)
            assert c.reply().status == 200
            assert c.ended()


@needs_httptools
def test_http_pipelining() -> None:
    with http_server() as s, Client(s.port) as c:
        posts = [POST + b"Content-Length: %d\r\n\r\n%d" % (len(str(i)), i) for i in range(1000)]
        with thread(c.send, b"".join(posts) + GET + b"nonsense\r\n\r\n" + GET):
            for i in range(1000):
                assert c.reply().body == b"%d" % i
            assert c.reply().body == b"Hello, world!"  # what came before the nonsense counts
            reply = c.reply()
            assert (reply.status, reply.headers["connection"]) == (400, "close")
            assert c.ended()


@needs_httptools
def test_http_bodies_in_chunks() -> None:
    with http_server() as s, Client(s.port) as c:
        text = CHUNKED + b"5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
        assert c.ask(text).body == b"hello world"
        for i in range(len(text)):
            c.send(text[i : i + 1])
        assert c.reply().body == b"hello world"
        assert c.ask(CHUNKED + b"1\r\nx\r\n0\r\nTrailer: y\r\n\r\n").body == b"x"
        many = b"1\r\nx\r\n" * 200_000
        assert c.ask(CHUNKED + many + b"0\r\n\r\n").body == b"x" * 200_000
        assert c.ask(CHUNKED + b"no number\r\n").status == 400
        assert c.ended()


@needs_httptools
def test_http_big_bodies_have_a_limit() -> None:
    with http_server() as s:
        with Client(s.port) as c:
            data = random.Random(1).randbytes(MAX_BODY)
            head = POST + b"Content-Length: %d\r\n\r\n"
            for _ in range(2):
                assert c.ask(head % MAX_BODY + data).body == data
            # One that goes on sending hears why, and is not just cut off.
            assert c.ask(head % (5 * MAX_BODY) + data * 5).status == 413
            assert c.ended()
        with Client(s.port) as c:
            chunk = b"%x\r\n" % len(data) + data + b"\r\n"
            assert c.ask(CHUNKED + chunk + b"0\r\n\r\n").body == data
            assert c.ask(CHUNKED + chunk + b"1\r\nx\r\n").status == 413
            assert c.ended()


@needs_httptools
def test_http_expect_continue() -> None:
    expects = POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with http_server() as s, Client(s.port) as c:
        for _ in range(2):
            assert c.ask(expects % 5).status == 100
            assert c.ask(b"hello").body == b"hello"
        assert c.ask(expects % 5 + b"hello").body == b"hello"  # it did not wait
        c.send(GET + expects % 5)
        assert (c.reply().status, c.reply().status) == (200, 100)
        assert c.ask(b"hello").body == b"hello"
        c.send(GET[:10])
        assert c.ask(GET[10:]).body == b"Hello, world!"  # nobody expects anything any more
        assert c.ask(expects % (MAX_BODY + 1)).status == 413
        assert c.ended()


@needs_httptools
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (POST + b"Content-Length: x\r\n\r\n", 400),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET /" + b"x" * 1_000_000, 414),
        (GET[:-2] + b"X: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (GET[:-2] + b"X: " + b"y" * 1_000_000, 431),  # a line without end
        (GET[:-2] + b"X: y\r\n" * 100_000, 431),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_http_requests_that_are_refused(request_: bytes, status: int) -> None:
    with http_server() as s, Client(s.port) as c:
        reply = c.ask(request_)
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert c.ended()
        with Client(s.port) as other:  # which has not suffered
            assert other.ask(GET).status == 200


@needs_httptools
def test_http_upgrades_are_ignored() -> None:
    with http_server() as s, Client(s.port) as c:
        upgrade = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        c.send(upgrade + GET)
        assert (c.reply().status, c.reply().status) == (200, 200)


@needs_httptools
def test_http_clients_that_take_their_time_are_cut_off() -> None:
    with http_server(REQUEST_TIME=0.5) as s, Client(s.port) as slow, Client(s.port) as c:
        slow.sock.settimeout(0.05)
        start = time.monotonic()
        for i in itertools.count():  # a byte now and then, as long as the server listens
            assert time.monotonic() - start < 20
            with contextlib.suppress(TimeoutError):
                slow.more()
                break
            slow.send(GET[:-2] if i == 0 else b"X: y\r\n"[(i - 1) % 6 :][:1])
            assert c.ask(GET).status == 200  # others are not affected
        assert time.monotonic() - start >= 0.5
        slow.sock.settimeout(30)
        assert slow.reply().status == 408
        assert slow.ended()
    with http_server(IDLE=0.3) as s, Client(s.port) as c:
        assert c.ask(GET).status == 200
        assert c.ended()
    with http_server(WRITE_TIME=0.3) as s, Client(s.port) as c:
        body = bytes(MAX_BODY)
        many = (POST + b"Content-Length: %d\r\n\r\n" % len(body) + body) * 30
        with pytest.raises(ConnectionError):
            c.send(many)  # and it never reads


SLOW = """
ordinary = http_server.hello

async def hello(request):
    if request.target == b"/slow":
        print("begun", flush=True)
        await gofer.sleep(0.5)
    if request.target == b"/fails":
        1 / 0
    return await ordinary(request)

http_server.hello = hello
"""


@needs_httptools
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_http_graceful_end(sig: signal.Signals) -> None:
    """What has begun is answered; idle connections are closed; nobody new is let in."""
    with contextlib.ExitStack() as stack:
        s = stack.enter_context(http_server(SLOW))
        slow, half, idle = (stack.enter_context(Client(s.port)) for _ in range(3))
        assert idle.ask(GET).status == 200
        half.send(GET + GET[:10])
        assert half.reply().status == 200
        slow.send(GET.replace(b"/ ", b"/slow ", 1))
        assert s.readline() == "begun\n"
        s.process.send_signal(sig)
        assert idle.ended()
        with pytest.raises(ConnectionRefusedError):
            Client(s.port)
        reply = half.ask(GET[10:])
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        reply = slow.reply()
        assert (reply.status, reply.headers["connection"]) == (404, "close")
        assert slow.ended()
        assert half.ended()
        slow.sock.close()
        half.sock.close()
        assert s.process.wait(5) == 0


@needs_httptools
def test_http_the_end_does_not_wait_for_ever() -> None:
    with http_server(SLOW, GRACE=0.2) as s, Client(s.port) as c:
        assert c.ask(GET + GET[:10]).status == 200
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0


@needs_httptools
def test_http_an_application_that_fails() -> None:
    with http_server(SLOW) as s, Client(s.port) as c:
        assert c.ask(GET.replace(b"/ ", b"/fails ", 1)).status == 500
        assert c.ask(GET).status == 200
        s.errors = "GET b'/fails': ZeroDivisionError('division by zero')\n"


@needs_httptools
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("procs", ["1", "2", "4"])
def test_http_and_a_load_generator(procs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks' own: each answer must be as long as the first."""
    monkeypatch.setenv("GOMAXPROCS", procs)
    with http_server() as s:
        command = [_load.build("echo"), f"port={s.port}", "http=1", "conns=50", "requests=3000"]
        done = subprocess.run(command, input=b"\n", capture_output=True, timeout=60, check=True)
        assert b"per_second" in done.stdout


@needs_httptools
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_http_and_curl(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(random.Random(2).randbytes(MAX_BODY))

    def curl(*args: str) -> bytes:
        command = ["curl", "--silent", "--show-error", "--fail", "--max-time", "30", *args]
        env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # a sanitizer's
        return subprocess.run(command, capture_output=True, check=True, timeout=60, env=env).stdout

    with http_server() as s:
        url = f"http://127.0.0.1:{s.port}"
        assert curl(f"{url}/", f"{url}/", "-w", "%{num_connects} ").count(b"Hello") == 2
        assert curl("-d", "x" * 5000, f"{url}/echo") == b"x" * 5000
        assert curl("--data-binary", f"@{big}", f"{url}/echo") == big.read_bytes()
        chunked = ["-H", "Transfer-Encoding: chunked", "-T", str(big)]
        assert curl(*chunked, f"{url}/echo") == big.read_bytes()
        assert curl("-I", f"{url}/").startswith(b"HTTP/1.1 200")
        assert curl("--http1.0", f"{url}/") == b"Hello, world!"
        assert curl("--http2", f"{url}/") == b"Hello, world!"


# --- docs ----------------------------------------------------------------------------------------


def test_the_program_of_the_docs() -> None:
    text = (ROOT / "docs" / "net.md").read_text()
    code = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert code is not None
    assert run_program(code[1]).check() == code[2]


def test_every_name_of_net_and_process_is_documented() -> None:
    end = run_program(
        """
        import inspect
        from gofer import net, process

        for module in (net, process):
            for name in module.__all__:
                thing = getattr(module, name)
                if name in ("DEVNULL", "PIPE", "STDOUT", "CalledProcessError", "CompletedProcess"):
                    continue
                doc = inspect.getdoc(thing)
                assert doc, name
                assert ">>> " in doc or name in ("Descriptor", "TLSListener"), name
                assert thing.__module__.startswith("gofer"), name
                for key, method in vars(thing).items() if isinstance(thing, type) else ():
                    if callable(method) and not key.startswith("_") and module is net:
                        if key not in ("connected", "write_nowait", "discard_input"):
                            assert inspect.getdoc(method), (name, key)
        print("all")
        """
    )
    assert end.check() == "all\n"
