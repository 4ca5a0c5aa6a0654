"""What the tests of WorkerPool have done in other processes."""

import os
import signal


def square(n: int) -> int:
    return n * n


def chaos(job: tuple[int, str]) -> int:
    """Return, raise, end the process, or have it killed."""
    n, what = job
    if what == "raise":
        raise LookupError(n)
    if what == "exit":
        os._exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def zeros(n: int) -> bytes:
    return bytes(n)
