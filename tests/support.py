"""What several test files need."""

import contextlib
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gofer
from gofer import _core

T = TypeVar("T")

TESTS = Path(__file__).parent
CRASH = TESTS / "crash"

# Whether threads run Python code at the same time.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
RING_SIZE = _core.counters()["ring_size"]
# The build option `tiny` shrinks rings and caches to 4.
TINY = RING_SIZE < 256
# AddressSanitizer is there before the interpreter, ThreadSanitizer is built into it.
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "") or "-fsanitize=thread" in (
    sysconfig.get_config_var("PY_CFLAGS") or ""
)

# How long we wait for what should come at once, before we call it lost.
PATIENCE = 60.0


# --- Inside a runtime ----------------------------------------------------------------------------


async def sleep_long() -> None:
    """Wait for a timer that no test lives to see."""
    await gofer.sleep(100_000)


async def wait_for(awaitable: Awaitable[T]) -> T:
    """As a goroutine: one that waits for `awaitable`."""
    return await awaitable


async def wait_for_first(box: list[gofer.Goroutine[T]]) -> T:
    """As a goroutine: one that waits for the goroutine that will be put into `box`."""
    while not box:
        await gofer.gosched()
    return await box[0]


async def give(value: T) -> T:
    """As a goroutine: one that ends at once."""
    return value


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait for a state that the API lets us see, but not await."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true in {PATIENCE:g} s")
        await gofer.sleep(0.0005)


async def gone(ref: weakref.ref[Any], procs: int) -> None:
    """Wait until an object has been freed.

    On one thread that needs no collector. On several, free-threaded CPython leaves the last step
    to the thread that made the object, which may sleep; the collector does it for all of them.
    """

    def dead() -> bool:
        if procs > 1:
            gc.collect()
        return ref() is None

    await until(dead, f"{ref!r} dead")


async def parked(*goroutines: gofer.Goroutine[Any]) -> None:
    """Wait until each of these waits for something."""
    for g in goroutines:
        while g.state != "waiting":
            assert not g.done(), g
            await gofer.sleep(0.0001)


def spin(seconds: float) -> int:
    """Be busy, without coming near the scheduler."""
    rounds = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        rounds += 1
    return rounds


def busy() -> bool:
    """Whether others are at work on this machine, so that nothing can be said about times."""
    return os.getloadavg()[0] > len(os.sched_getaffinity(0)) + 1


def here(offset: int = 0) -> str:
    """`file:line` of the caller, `offset` lines further: what created_at says of a go() there."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


# --- Threads -------------------------------------------------------------------------------------


def os_threads() -> dict[int, str]:
    """Thread id and name of every thread that the kernel knows of in this process."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended while we looked
            found[int(task.name)] = (task / "comm").read_text().strip()
    return found


@contextlib.contextmanager
def thread(target: Callable[..., object], *args: object) -> Iterator[threading.Thread]:
    """A foreign thread that has ended when the block has. What it raises is raised here."""
    failure: list[BaseException] = []

    def body() -> None:
        try:
            target(*args)
        except BaseException as exc:
            failure.append(exc)

    t = threading.Thread(target=body)
    t.start()
    try:
        yield t
    finally:
        t.join(PATIENCE)
        assert not t.is_alive(), "the thread did not end"
    if failure:
        raise failure[0]


def wait_until(condition: Callable[[], object], what: str) -> None:
    """`until()` where there is no runtime."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in {PATIENCE:g} s"
        time.sleep(0.001)


def all_came_back() -> None:
    """After a run: wait for the functions that it did not wait for."""

    def none() -> bool:
        gc.collect()  # an exception may hold the frame that holds it
        return _core.counters()["goroutines"] == 0

    wait_until(none, "every function that was left behind come back")


# --- Programs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> str:
        """What it printed, if it ended well and complained of nothing."""
        assert self.returncode == 0, f"exit status {self.returncode}\n{self.stdout}{self.stderr}"
        assert self.stderr == "", self.stderr
        return self.stdout


class Program:
    """A Python program in a process of its own: source text, or a file of tests/crash."""

    def __init__(
        self,
        source: str | Path,
        *args: str,
        env: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
        preexec: Callable[[], None] | None = None,
        cwd: Path | None = None,
    ) -> None:
        code = [str(source)] if isinstance(source, Path) else ["-c", textwrap.dedent(source)]
        environ = {k: v for k, v in os.environ.items() if k not in ("GOMAXPROCS", "GOFERDEBUG")}
        environ |= {"PYTHONFAULTHANDLER": "1", "PYTHONPATH": str(TESTS.parent), **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, *options, *code, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            preexec_fn=preexec,
            cwd=cwd,
        )

    def expect(self, line: str) -> None:
        """Wait until it has printed this line, which must be the next one."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE / 2, self.process.send_signal, [signal.SIGABRT])
        watchdog.start()
        got = self.process.stdout.readline().rstrip("\n")
        watchdog.cancel()
        watchdog.join()
        if got != line:
            self.process.kill()
            rest, err = self.process.communicate()
            raise AssertionError(f"expected {line!r}, got {got!r}\n{rest}{err}")

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def finish(self, timeout: float = PATIENCE) -> Finished:
        """Wait for its end; if that does not come, show where every thread of it stands."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
            out, err = self.process.communicate()
            raise AssertionError(f"no end within {timeout:g} s\n{out}{err}") from None
        return Finished(self.process.returncode, out, err)


def run_program(
    source: str | Path,
    *args: str,
    timeout: float = PATIENCE,
    env: dict[str, str] | None = None,
    options: tuple[str, ...] = (),
    preexec: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run a program to its end."""
    program = Program(source, *args, env=env, options=options, preexec=preexec, cwd=cwd)
    return program.finish(timeout)


# --- Stress --------------------------------------------------------------------------------------

real_stderr = 2  # a descriptor that pytest does not capture, once conftest.py has set it
rearm = 0.0  # when the watchdog is next due to be told that all is well
rearm_lock = threading.Lock()
STRESS_ROUNDS = int(os.environ.get("GOFER_STRESS_ROUNDS", "1000"))


def rounds(divide_by: int = 1) -> Iterator[int]:
    """As many rounds as asked for; tests with heavy rounds do a fraction of them.

    One round that takes longer than a minute is a hang: the watchdog (which is no Python thread, so
    it keeps no deadlock from being seen) writes all stacks and ends the process.
    """
    global rearm
    for i in range(max(1, STRESS_ROUNDS // divide_by)):
        if time.monotonic() > rearm:
            with rearm_lock:
                if time.monotonic() > rearm:
                    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=real_stderr)
                    rearm = time.monotonic() + 1
        yield i
