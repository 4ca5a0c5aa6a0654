"""What the tests of offload() have done elsewhere: in processes that need not know gofer, and in
interpreters that cannot import it."""

import os
import signal
import time
from pathlib import Path
from typing import Any


def add(a: int, b: int) -> int:
    return a + b


def keywords(*args: object, **kwargs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    return args, kwargs


def fail(text: str) -> None:
    raise LookupError(text)


def zeros(n: int) -> bytes:
    return bytes(n)


def size(data: bytes) -> int:
    return len(data)


def unpicklable() -> Any:
    return lambda: None


def end() -> None:
    os._exit(3)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_file(begun: str, go_on: str) -> str:
    """Say that it runs, and go on doing so until told to end. Not for ever: nobody may come."""
    Path(begun).touch()
    deadline = time.monotonic() + 60
    while not Path(go_on).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return "done"
