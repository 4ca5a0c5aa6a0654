"""What holds for every test: it leaves nothing behind."""

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

import gofer
from gofer import _core
from tests import support
from tests.support import PATIENCE, os_threads

# What the tests so far have left behind: nothing. If one does, the next are not blamed for it.
left = {
    "goroutines": 0,
    "operations": 0,
    "timers": 0,
    "threads": 0,
    "connections": 0,
    "io_waiters": 0,
}


def pytest_configure() -> None:
    support.real_stderr = os.dup(2)  # output is not captured yet


def pytest_collection_finish() -> None:
    """Each test collects its garbage: what was there before need not be looked at every time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def sysmon_as_asked() -> Iterator[None]:
    """GOFER_TEST_SYSMON_US=50: every 50 microseconds all Ps in user code are handed to others."""
    before = _core.set_sysmon(int(os.environ.get("GOFER_TEST_SYSMON_US", "0")))
    yield
    _core.set_sysmon(before)


@pytest.fixture
def no_handoff() -> Iterator[None]:
    """For what is exact only while no P is taken from a goroutine: an order, a number of threads.

    Otherwise that may happen whenever this machine has no time for the thread that holds it.
    """
    before = _core.set_sysmon(-1)
    yield
    _core.set_sysmon(before)


@pytest.fixture(params=[1, 2, 4, 8], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    """How many Ps: behaviour must not depend on it."""
    return int(request.param)


def alive(expected: dict[str, int]) -> dict[str, int]:
    """The engine's count of what is left, when it is what we expect, or some seconds later.

    run() does not wait for a function that does not come to a bytecode boundary in 100 ms. On a
    busy machine that may be any: its goroutine is counted until its thread gets a core again.
    """
    deadline = time.monotonic() + PATIENCE / 6
    while True:
        gc.collect()
        counters = _core.counters()
        found = {what: counters[what] for what in left}
        if found == expected or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def extra_threads(before: dict[int, str]) -> list[str]:
    """Names of threads that are too many. The kernel lists one for a moment after its end.

    Only their number counts: faulthandler's watchdog may be another thread than before, and bear
    the name of the M that set it.
    """
    deadline = time.monotonic() + PATIENCE / 4
    while len(now := os_threads()) > len(before):
        if time.monotonic() > deadline:
            return [name for tid, name in now.items() if tid not in before]
        time.sleep(0.001)
    return []


def open_files() -> list[str]:
    """What the file descriptors of this process stand for."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that listdir had open
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(found)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No goroutine, operation, timer, thread or open file; every setting is what it was."""
    procs = gofer.gomaxprocs()  # which opens the files of the CPU quota, once
    threads = os_threads()
    files = open_files()
    hooks = sys.get_asyncgen_hooks()
    handler = signal.getsignal(signal.SIGINT)
    cpus = os.sched_getaffinity(0)
    interval = sys.getswitchinterval()
    before = left.copy()
    yield
    left.update(alive(before))
    assert left == before
    assert extra_threads(threads) == []
    assert sys.get_asyncgen_hooks() == hooks
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.set_wakeup_fd(-1) == -1
    assert os.sched_getaffinity(0) == cpus
    assert sys.getswitchinterval() == interval
    if open_files() != files:
        gc.collect()  # a broken executor of the standard library is a cycle, with its pipes
    assert open_files() == files
    assert gofer.gomaxprocs() == procs
