"""What holds for every test: it leaves nothing behind."""

import gc
import signal
import sys
import time
from collections.abc import Iterator

import pytest

import gofer
from gofer import _core
from tests.support import PATIENCE, os_threads

NOTHING = {"goroutines": 0, "operations": 0, "timers": 0, "threads": 0}


@pytest.fixture(params=[1, 2, 4, 8], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    """How many Ps: behaviour must not depend on it."""
    return int(request.param)


def alive() -> dict[str, int]:
    """The engine's count of what is left."""
    gc.collect()
    counters = _core.counters()
    return {what: counters[what] for what in NOTHING}


def extra_threads(before: set[int]) -> list[str]:
    """Names of threads that were not there. The kernel lists one for a moment after its end."""
    deadline = time.monotonic() + PATIENCE
    while True:
        extra = [name for tid, name in os_threads().items() if tid not in before]
        if not extra or time.monotonic() > deadline:
            return extra
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No goroutine, operation, timer or thread; every setting is what it was."""
    threads = set(os_threads())
    hooks = sys.get_asyncgen_hooks()
    handler = signal.getsignal(signal.SIGINT)
    procs = gofer.gomaxprocs()
    yield
    assert alive() == NOTHING
    assert extra_threads(threads) == []
    assert sys.get_asyncgen_hooks() == hooks
    assert signal.getsignal(signal.SIGINT) is handler
    assert gofer.gomaxprocs() == procs
