"""A real browser, driven through the DevTools protocol over a pipe. No packages are needed."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 90.0

# Chromium wants its pipe as descriptors 3 and 4.
_LAUNCH = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for fd, wanted in zip(ours, (3, 4)):
    os.dup2(fd, wanted)
    os.close(fd)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page in a headless Chromium. Messages are JSON, each ended by a zero byte."""

    def __init__(self, width: int = 1440, height: int = 900, *, dark: bool = False) -> None:
        assert CHROMIUM is not None
        self.profile = tempfile.TemporaryDirectory(
            prefix="gofer-browser-", ignore_cleanup_errors=True
        )
        its_in, self.out = os.pipe()
        self.inp, its_out = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.profile.name}",
            f"--window-size={width},{height}",
            *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []),
            "about:blank",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _LAUNCH, str(its_in), str(its_out), CHROMIUM, *flags],
            pass_fds=(its_in, its_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(its_in)
        os.close(its_out)
        self.buffer = b""
        self.ids = itertools.count(1)
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        try:
            self._prepare(width, height, dark)
        except BaseException:
            self.close()
            raise

    def _prepare(self, width: int, height: int, dark: bool) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.inp], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.inp, 1 << 20)
            if not data:
                raise ConnectionError("the browser has ended")
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its result."""
        id = next(self.ids)
        message = {"id": id, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while (answer := self._message(deadline)).get("id") != id:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def goto(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in done:
            raise AssertionError(f"{expression}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true; return its value."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.js(expression)):
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {expression}; {self.errors()}")
            time.sleep(0.02)
        return value

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float, count: int = 1) -> None:
        self.mouse("mouseMoved", x, y)
        for n in range(1, count + 1):
            self.mouse("mousePressed", x, y, button="left", clickCount=n)
            self.mouse("mouseReleased", x, y, button="left", clickCount=n)

    def drag(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.mouse("mousePressed", x1, y1, button="left", clickCount=1)
        for k in range(1, 6):
            self.mouse("mouseMoved", x1 + (x2 - x1) * k / 5, y1 + (y2 - y1) * k / 5, buttons=1)
        self.mouse("mouseReleased", x2, y2, button="left", clickCount=1)

    def wheel(self, x: float, y: float, dy: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=dy)

    def key(self, key: str) -> None:
        text = key if len(key) == 1 else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element."""
        left, top, width, height = self.js(
            f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
            " return [b.left, b.top, b.width, b.height]; })()"
        )
        return left, top, width, height

    def press(self, selector: str) -> None:
        """Click into the middle of an element."""
        left, top, width, height = self.box(selector)
        self.click(left + width / 2, top + height / 2)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )

    def errors(self) -> list[str]:
        """What the page complained of."""
        self.js("0")
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif (
                event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
            ):
                found.append(str(event["params"]["entry"]))
        return found

    def close(self) -> None:
        os.close(self.out)
        os.close(self.inp)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
