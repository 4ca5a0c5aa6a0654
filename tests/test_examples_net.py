"""The example servers, and the program of docs/net.md, as users run them."""

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import run_program

ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def server(name: str) -> Iterator[int]:
    """The example, running; gives its port. It ends well when interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-u", str(ROOT / "examples" / "servers" / name)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r":(\d+)/?$", line)
        assert found, (line, process.communicate())
        yield int(found[1])
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, ""), out


def test_the_echo_server() -> None:
    with server("echo.py") as port, socket.create_connection(("127.0.0.1", port)) as sock:
        for text in (b"one", b"two" * 1000):
            sock.sendall(text)
            back = b""
            while len(back) < len(text):
                back += sock.recv(65536)
            assert back == text


def exchange(port: int, request: bytes) -> bytes:
    """What the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(request)
        answer = b""
        while data := sock.recv(65536):
            answer += data
        return answer


def test_the_http_server() -> None:
    pytest.importorskip("httptools")
    get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with server("http_server.py") as port:
        answer = exchange(port, last)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nHello, world!")
        assert exchange(port, get * 3 + last).count(b"Hello, world!") == 4  # pipelined
        assert exchange(port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert exchange(port, last.replace(b"/ ", b"/other ")).startswith(b"HTTP/1.1 404 ")
        head = exchange(port, last.replace(b"GET", b"HEAD"))
        assert b"content-length: 13\r\n" in head
        assert head.endswith(b"\r\n\r\n")
        big = b"X: " + b"y" * 70_000 + b"\r\n\r\n"
        assert exchange(port, get[:-2] + big).startswith(b"HTTP/1.1 4")
        post = b"POST /echo HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
        assert exchange(port, post + body).endswith(b"\r\n\r\nhello world")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_http_server_and_curl() -> None:
    pytest.importorskip("httptools")
    with server("http_server.py") as port:
        url = f"http://127.0.0.1:{port}"
        done = subprocess.run(
            ["curl", "-s", "-S", f"{url}/", f"{url}/", "-d", "x" * 5000, f"{url}/echo"],
            capture_output=True,
            check=True,
        )
        assert done.stdout.endswith(b"x" * 5000)


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
