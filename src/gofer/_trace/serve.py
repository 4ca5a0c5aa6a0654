"""The viewer: one page, served on the loopback interface.

The page is self-contained: its style and script are in it, and it loads nothing but /data, from the
same server. Nothing that comes from a trace becomes HTML: the script puts it into the page as text
only, and the page's policy forbids all other scripts anyway. Only requests that name the loopback
address are answered, so no other site can reach the server by a name of its own (DNS rebinding).
"""

import base64
import dataclasses
import hashlib
import json
import threading
import webbrowser
from array import array
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from gofer._trace.read import BINS, ENDS, Trace
from gofer._trace.summary import summarise

MAX_MARKS = 200_000  # regions and logs that are sent to the page

_TYPES = {"d": "f64", "Q": "f64", "q": "f64", "I": "u32", "i": "i32", "B": "u8"}


def _floats(data: bytes, format: str) -> "array[float]":
    """JavaScript's numbers are these; whole ones up to 2**53 are exact."""
    return array("d", memoryview(data).cast(format).tolist())  # type: ignore[call-overload]


class Payload:
    """What the page fetches: a line of JSON, then columns of numbers, each at a multiple of 8."""

    def __init__(self) -> None:
        self.columns: dict[str, dict[str, Any]] = {}
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, name: str, data: bytes, format: str) -> None:
        if format in "qQ":
            data = _floats(data, format).tobytes()
        self.columns[name] = {"type": _TYPES[format], "offset": self.size, "bytes": len(data)}
        padding = bytes(-len(data) % 8)
        self.parts += [data, padding]
        self.size += len(data) + len(padding)

    def done(self, head: dict[str, Any]) -> bytes:
        text = json.dumps({**head, "columns": self.columns}, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 4) % 8)
        return len(text).to_bytes(4, "little") + text + b"".join(self.parts)


def payload(trace: Trace) -> bytes:
    """All that the page shows."""
    out, raw = Payload(), trace.raw
    for name, format in (
        ("span_start", "q"),
        ("span_end", "q"),
        ("span_g", "I"),
        ("span_thread", "I"),
        ("span_stack", "I"),
        ("span_by", "I"),
        ("span_p", "i"),
        ("span_state", "B"),
        ("span_reason", "B"),
        ("held_start", "q"),
        ("held_end", "q"),
        ("held_thread", "I"),
        ("held_p", "i"),
        ("g_id", "Q"),
        ("g_parent", "Q"),
        ("g_run", "I"),
        ("g_name", "I"),
        ("g_site", "I"),
        ("g_created", "q"),
        ("g_ended", "q"),
        ("g_flags", "B"),
        ("g_end", "B"),
        ("g_open", "B"),
        ("g_total", "q"),
        ("bins", "i"),
    ):
        out.add(name, raw[name], format)
    marks = trace.marks
    summary = summarise(trace, top=50)
    threads = sorted({*trace.thread_names, *trace.thread_ms})
    return out.done(
        {
            "info": trace.info,
            "begin": trace.begin,
            "end": trace.end,
            "wall_ns": trace.wall_ns,
            "nbins": BINS,
            "strings": trace.strings,
            "stacks": trace.stacks,
            "wait_reasons": trace.wait_reasons,
            "ends": ENDS,
            "threads": [[index, trace.thread_name(index)] for index in threads],
            "gc": [list(m) for m in marks.gc],
            "stw": [list(m) for m in marks.stw],
            "regions": [list(m) for m in marks.regions[:MAX_MARKS]],
            "tasks": [list(m) for m in marks.tasks[:MAX_MARKS]],
            "logs": [list(m) for m in marks.logs[:MAX_MARKS]],
            "samples": [[s.ts, s.global_queue, sum(s.queues), s.spinning] for s in marks.samples],
            "procs": marks.procs,
            "summary": dataclasses.asdict(summary),
        }
    )


def _sha(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


class Page:
    """The page, put together, and the policy that allows its own style and script only."""

    def __init__(self) -> None:
        files = resources.files("gofer._trace") / "viewer"
        style, script = ((files / f"viewer.{kind}").read_text("utf-8") for kind in ("css", "js"))
        html = (files / "viewer.html").read_text("utf-8")
        html = html.replace("/*STYLE*/", style, 1).replace("/*SCRIPT*/", script, 1)
        self.html = html.encode()
        self.policy = (
            f"default-src 'none'; script-src {_sha(script)}; style-src {_sha(style)}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    viewer: "Viewer"


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "gofer"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to read these."""

    def answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", self.server.viewer.page.policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        allowed = {f"127.0.0.1:{port}", f"localhost:{port}"}
        if (self.headers.get("Host") or "").lower() not in allowed:
            self.answer(403, "text/plain", b"This server answers on the loopback address only.\n")
        elif self.path.partition("?")[0] == "/":
            self.answer(200, "text/html; charset=utf-8", self.server.viewer.page.html)
        elif self.path == "/data":
            self.answer(200, "application/octet-stream", self.server.viewer.data)
        else:
            self.answer(404, "text/plain", b"There is nothing here.\n")

    do_HEAD = do_GET


class Viewer:
    """A trace, served until the block ends.

    >>> with Viewer(trace) as viewer:
    ...     viewer.start()
    ...     viewer.url
    'http://127.0.0.1:41203/'
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.server: _Server | None = None
        self.thread: threading.Thread | None = None

    @cached_property
    def page(self) -> Page:
        return Page()

    @cached_property
    def data(self) -> bytes:
        return payload(self.trace)

    @property
    def url(self) -> str:
        """Where it is."""
        if self.server is None:
            raise RuntimeError("the viewer has not been started")
        return f"http://127.0.0.1:{self.server.server_address[1]}/"

    def start(self, port: int = 0) -> None:
        """Serve in a thread. Port 0: any that is free."""
        self.server = _Server(("127.0.0.1", port), _Handler)
        self.server.viewer = self
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def serve(self, port: int = 0, *, open_browser: bool = True) -> None:
        """Serve until Ctrl-C."""
        _ = self.data  # before somebody waits for it
        self.start(port)
        print(f"{self.url}  (Ctrl-C to end)", flush=True)
        if open_browser:
            webbrowser.open(self.url)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()

    def close(self) -> None:
        """Serve no more."""
        if self.server is not None and self.thread is not None:
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()
            self.server = self.thread = None

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
