"""Nothing stalls: a blocking call or a long computation in a goroutine does not stop the others.

Tickers run beside whatever blocks; what counts is the longest time that one of them did not run. On
an idle machine that is a few milliseconds; the bounds here are generous, and far below the time for
which something blocks.
"""

import hashlib
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import (
    PATIENCE,
    SANITIZED,
    Program,
    all_came_back,
    os_threads,
    parked,
    run_program,
    spin,
    thread,
    until,
    wait_until,
)

# How long the calls here block, and how long at most the others may stand still meanwhile.
BLOCKED = 1.0
STALL = 0.5


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def ps(request: pytest.FixtureRequest) -> int:
    """How many Ps."""
    return int(request.param)


class Tickers:
    """Goroutines that only sleep and note when they ran."""

    def __init__(self, n: int = 10) -> None:
        self.longest = 0.0
        self.ticks = 0
        self.n = n
        self.stopped = False

    async def _tick(self) -> None:
        last = time.monotonic()
        while not self.stopped:
            await gofer.sleep(0.002)
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            self.ticks += 1
            last = now

    async def __aenter__(self) -> "Tickers":
        self._gs = [gofer.go(self._tick) for _ in range(self.n)]
        await gofer.sleep(0.01)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stopped = True
        for g in self._gs:
            await g


async def beside(*calls: Callable[[], Any], tickers: int = 10) -> Tickers:
    """Make these calls inside async goroutines, all at once, beside tickers."""

    async def caller(call: Callable[[], Any]) -> None:
        call()

    async with Tickers(tickers) as ticking:
        gs = [gofer.go(caller, call) for call in calls]
        for g in gs:
            await g
    return ticking


# --- What blocks ----------------------------------------------------------------------------------


def socket_recv() -> None:
    """Wait for the other end, which takes its time."""
    near, far = socket.socketpair()

    def answer() -> None:
        time.sleep(BLOCKED)
        far.sendall(b"at last")

    with near, far, thread(answer):
        assert near.recv(100) == b"at last"


def socket_connect_and_accept() -> None:
    """A server that nobody calls for a while."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def client() -> None:
            time.sleep(BLOCKED)
            socket.create_connection(server.getsockname()).close()

        with thread(client):
            server.accept()[0].close()


def sqlite_query() -> None:
    """Some seconds of computing inside SQLite, with the GIL let go of."""
    with sqlite3.connect(":memory:") as connection:
        count = 0
        end = time.monotonic() + BLOCKED
        while time.monotonic() < end:
            rows = connection.execute(
                "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 500000)"
                " SELECT sum(x) FROM c"
            )
            count += len(rows.fetchall())
        assert count
    connection.close()


def run_a_program() -> None:
    """Wait for another process."""
    subprocess.run([sys.executable, "-S", "-c", f"import time; time.sleep({BLOCKED})"], check=True)


def derive_a_key() -> None:
    """A long call into C that lets go of the GIL."""
    end = time.monotonic() + BLOCKED
    while time.monotonic() < end:
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 300_000)


def compress() -> None:
    """The same with much memory."""
    end = time.monotonic() + BLOCKED
    data = os.urandom(1 << 20) * 8
    while time.monotonic() < end:
        zlib.compress(data, 9)


def wait_for_an_event() -> None:
    """A lock of the threading module."""
    threading.Event().wait(BLOCKED)


def read_a_pipe() -> None:
    """As input() does."""
    reader, writer = os.pipe()

    def write() -> None:
        time.sleep(BLOCKED)
        os.write(writer, b"line\n")

    with os.fdopen(reader) as lines, thread(write):
        assert lines.readline() == "line\n"
    os.close(writer)


BLOCKING = [
    lambda: time.sleep(BLOCKED),
    socket_recv,
    socket_connect_and_accept,
    sqlite_query,
    run_a_program,
    derive_a_key,
    compress,
    wait_for_an_event,
    read_a_pipe,
]
IDS = ["time.sleep", *(fn.__name__ for fn in BLOCKING[1:])]


@pytest.mark.parametrize("call", BLOCKING, ids=IDS)
def test_others_go_on_beside_a_call_that_blocks(ps: int, call: Callable[[], Any]) -> None:
    async def main() -> None:
        ticking = await beside(call)
        assert ticking.longest < STALL
        assert ticking.ticks > 10 * BLOCKED / 0.1

    gofer.run(main, procs=ps)


def test_others_go_on_beside_calls_that_block_in_every_p_and_more(ps: int) -> None:
    async def main() -> None:
        start = time.monotonic()
        ticking = await beside(*[lambda: time.sleep(BLOCKED)] * (2 * ps + 3))
        assert time.monotonic() - start < 2 * BLOCKED  # at once, not one after the other
        assert ticking.longest < STALL

    gofer.run(main, procs=ps)


def test_others_go_on_beside_a_main_that_blocks(ps: int) -> None:
    async def main() -> None:
        async with Tickers() as ticking:
            time.sleep(BLOCKED)
        assert ticking.longest < STALL

    gofer.run(main, procs=ps)


def test_main_goes_on_beside_a_goroutine_that_blocks_its_thread(ps: int) -> None:
    """Others run on the main thread too; main is then woken elsewhere."""

    async def main() -> None:
        gs = [gofer.go(time_sleep_async) for _ in range(ps + 1)]
        longest = 0.0
        while not all(g.done() for g in gs):
            last = time.monotonic()
            await gofer.sleep(0.001)
            longest = max(longest, time.monotonic() - last)
        assert longest < STALL

    async def time_sleep_async() -> None:
        time.sleep(BLOCKED)

    gofer.run(main, procs=ps)


def test_main_need_not_wait_for_its_thread_again_and_again() -> None:
    """Once it is known that the thread does not come back, a message to main takes no 10 ms."""

    async def main() -> float:
        ping, pong = gofer.Chan[int](), gofer.Chan[int]()
        hog = gofer.go(hogs)
        gofer.go(echo, ping, pong)
        await until(lambda: hog.state == "syscall")
        assert threading.current_thread() is not threading.main_thread()
        start = time.monotonic()
        for i in range(100):
            await ping.send(i)
            assert await pong.recv() == i
        took = time.monotonic() - start
        stop.set()
        await hog
        await until(lambda: threading.current_thread() is threading.main_thread())
        return took

    async def hogs() -> None:
        stop.wait()

    async def echo(ping: gofer.Chan[int], pong: gofer.Chan[int]) -> None:
        async for i in ping:
            await pong.send(i)

    stop = threading.Event()
    assert gofer.run(main, procs=1) < 0.5


def test_others_go_on_beside_goroutines_that_compute(ps: int) -> None:
    """Python code that never comes near the scheduler."""

    async def main() -> None:
        ticking = await beside(*[lambda: spin(BLOCKED)] * 2)
        assert ticking.longest < STALL

    gofer.run(main, procs=ps)


def test_timers_are_served_beside_calls_that_block(ps: int) -> None:
    async def main() -> float:
        start = time.monotonic()
        called = gofer.Chan[float](1)
        gofer.after_func(0.02, lambda: called.send_nowait(time.monotonic()))
        for _ in range(ps):
            gofer.go(sleeps)
        return await called.recv() - start

    async def sleeps() -> None:
        time.sleep(BLOCKED)

    assert gofer.run(main, procs=ps) < STALL


def test_others_go_on_beside_a_destructor_that_blocks(ps: int) -> None:
    """Run by the scheduler itself: the result of a goroutine whose handle nobody kept."""

    class Slow:
        def __del__(self) -> None:
            began.append(1)
            time.sleep(BLOCKED)

    async def make() -> Slow:
        return Slow()

    async def main() -> None:
        async with Tickers() as ticking:
            gofer.go(make)
            await until(lambda: began)
            await gofer.sleep(BLOCKED)
        assert ticking.longest < STALL

    began: list[int] = []
    gofer.run(main, procs=ps)


def test_input_on_a_pipe() -> None:
    program = Program(
        """
        import os, sys, gofer

        async def main():
            ticks = 0
            done = False

            async def ticker():
                nonlocal ticks
                while not done:
                    await gofer.sleep(0.001)
                    ticks += 1

            async def answer():
                while ticks < 50:
                    await gofer.sleep(0.001)
                os.write(writer, b"hello\\n")

            gs = [gofer.go(ticker), gofer.go(answer)]
            line = input()
            done = True
            for g in gs:
                await g
            return line, ticks >= 50

        reader, writer = os.pipe()
        os.dup2(reader, 0)
        print(gofer.run(main, procs=1))
        """
    )
    assert program.finish().check() == "('hello', True)\n"


# --- Many at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [300, pytest.param(1000, id="1000")])
def test_hundreds_that_block_at_once_need_hundreds_of_threads(ps: int, n: int) -> None:
    async def sleeper() -> None:
        time.sleep(0.5)

    async def main() -> tuple[float, int, int]:
        start = time.monotonic()
        gs = [gofer.go(sleeper) for _ in range(n)]
        for g in gs:
            await g
        took = time.monotonic() - start
        first = _core.counters()["threads"]
        for g in [gofer.go(sleeper) for _ in range(n)]:
            await g
        return took, first, _core.counters()["threads"]

    took, first, second = gofer.run(main, procs=ps)
    assert took < 0.5 + n * 0.004 * (10 if SANITIZED else 1)
    assert 100 < first <= n + ps + 5  # on a slow machine the first end before the last begin
    assert second <= max(first, n) + ps + 5  # used again, not piled up


def test_short_and_long_calls_mixed(ps: int) -> None:
    """From 10 us to 1 s: all end about when the longest does, and tickers go on."""
    lengths = [10**-e * k for e in (5, 4, 3, 2) for k in range(1, 11)] * 7 + [1.0] * 20

    async def caller(seconds: float) -> None:
        time.sleep(seconds)

    async def main() -> None:
        start = time.monotonic()
        async with Tickers() as ticking:
            gs = [gofer.go(caller, seconds) for seconds in lengths]
            for g in gs:
                await g
        assert time.monotonic() - start < 5
        assert ticking.longest < STALL

    gofer.run(main, procs=ps)


def test_threads_do_not_pile_up_over_short_calls(ps: int) -> None:
    """As many as block at once, however often they do."""

    async def worker() -> None:
        for _ in range(100):
            time.sleep(0.0005)
            await gofer.gosched()

    async def main() -> int:
        for g in [gofer.go(worker) for _ in range(10)]:
            await g
        return _core.counters()["threads"]

    assert gofer.run(main, procs=ps) <= 10 + ps + 5


def test_threads_of_a_run_are_gone_after_it(ps: int) -> None:
    async def sleeper() -> None:
        time.sleep(0.05)

    async def main() -> None:
        for g in [gofer.go(sleeper) for _ in range(50)]:
            await g

    before = len(os_threads())
    gofer.run(main, procs=ps)
    # The kernel lists a thread for a moment after its end.
    wait_until(lambda: len(os_threads()) <= before, "the threads gone")


def test_no_more_threads_compute_than_there_are_ps_when_nobody_blocks() -> None:
    """A goroutine that yields often keeps its P: nothing is handed on."""

    async def worker() -> None:
        for _ in range(2000):
            await gofer.gosched()

    async def main() -> int:
        for g in [gofer.go(worker) for _ in range(4)]:
            await g
        return _core.counters()["threads"]

    assert gofer.run(main, procs=2) <= 2 + 5


# --- What it looks like ---------------------------------------------------------------------------


def test_state_is_syscall_while_it_blocks(ps: int) -> None:
    async def blocks(ready: threading.Event) -> str:
        ready.wait()
        return gofer.current().state

    async def main() -> None:
        ready = threading.Event()
        g = gofer.go(blocks, ready)
        await until(lambda: g.state == "syscall")
        assert g.wait_reason is None
        assert "syscall" in repr(g)
        ready.set()
        assert await g == "running"
        assert g.state == "dead"

    gofer.run(main, procs=ps)


def test_state_is_running_while_it_computes(ps: int) -> None:
    async def computes() -> None:
        while not stop:
            pass

    async def main() -> None:
        nonlocal stop
        g = gofer.go(computes)
        try:
            await gofer.sleep(0.05)  # its P has been handed on, or it waits for its turn
            if ps > 1:
                await until(lambda: g.state == "running")
            else:  # it is stopped while we look
                await until(lambda: g.state in ("running", "runnable"))
            assert g.wait_reason is None
        finally:
            stop = True
        await g

    stop = False
    gofer.run(main, procs=ps)


# --- with blocking() ------------------------------------------------------------------------------


def test_blocking_hands_over_at_once(ps: int) -> None:
    """Others run before sysmon has looked: it is told not to take anything."""
    order: list[str] = []

    async def other() -> None:
        order.append("other")
        ran.set()

    async def blocks() -> None:
        with gofer.blocking():
            started = time.monotonic()
            assert ran.wait(PATIENCE)
            times.append(time.monotonic() - started)
        order.append("back")

    async def main() -> None:
        gs = []
        for _ in range(20):
            ran.clear()
            order.clear()
            # On one P: `blocks` runs first, as the last that was started, and must give way.
            gs = [gofer.go(other), gofer.go(blocks)]
            for g in gs:
                await g
            assert order == ["other", "back"] or ps > 1

    ran = threading.Event()
    times: list[float] = []
    before = _core.set_sysmon(-1)
    try:
        gofer.run(main, procs=ps)
    finally:
        _core.set_sysmon(before)
    assert sorted(times)[10] < 0.02  # a few microseconds, mostly; not 10 ms and more


def test_blocking_nests(ps: int) -> None:
    async def blocks() -> None:
        with gofer.blocking():
            with gofer.blocking():
                pass
            inside.set()
            done.wait()  # still in the outer block: the P is not ours

    async def main() -> None:
        gs = [gofer.go(blocks) for _ in range(ps)]
        await until(inside.is_set)
        assert "syscall" in [g.state for g in gs]
        done.set()
        for g in gs:
            await g

    inside, done = threading.Event(), threading.Event()
    before = _core.set_sysmon(-1)
    try:
        gofer.run(main, procs=ps)
    finally:
        _core.set_sysmon(before)


def test_blocking_in_plain_goroutines_and_in_a_plain_main(ps: int) -> None:
    def plain() -> int:
        with gofer.blocking():
            time.sleep(0.01)
        return gofer.block(gofer.go(lambda: 1))

    def main() -> int:
        with gofer.blocking():
            time.sleep(0.01)
        return sum([gofer.block(g) for g in [gofer.go(plain) for _ in range(5)]])

    assert gofer.run(main, procs=ps) == 5


def test_an_exception_leaves_the_block_and_takes_the_p_back(ps: int) -> None:
    async def main() -> None:
        for _ in range(3):
            with pytest.raises(ValueError, match="inside"), gofer.blocking():
                raise ValueError("inside")
        assert _core.proc_id() >= 0
        await gofer.gosched()

    gofer.run(main, procs=ps)


def test_awaiting_inside_blocking_works_all_the_same(ps: int) -> None:
    async def worker(ch: gofer.Chan[int]) -> None:
        with gofer.blocking():
            await ch.send(1)
            with gofer.blocking():
                await gofer.sleep(0.001)
            await ch.send(2)

    async def main() -> None:
        chans = [gofer.Chan[int]() for _ in range(5)]
        gs = [gofer.go(worker, ch) for ch in chans]
        for ch in chans:
            assert [await ch.recv(), await ch.recv()] == [1, 2]
        for g in gs:
            await g

    gofer.run(main, procs=ps)


def test_leaving_blocking_waits_for_a_p() -> None:
    """On one P, one goroutine at a time runs Python code between its operations."""
    inside = 0

    async def worker() -> None:
        nonlocal inside
        for _ in range(20):
            with gofer.blocking():
                time.sleep(0.0001)
            inside += 1
            assert inside == 1
            spin(0.0002)
            assert inside == 1
            inside -= 1
            await gofer.gosched()

    async def main() -> None:
        for g in [gofer.go(worker) for _ in range(5)]:
            await g

    before = _core.set_sysmon(-1)
    try:
        gofer.run(main, procs=1)
    finally:
        _core.set_sysmon(before)


def test_blocking_outside_a_goroutine_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"blocking\(\) outside a goroutine"), gofer.blocking():
        pass

    async def main() -> None:
        def foreign() -> None:
            with pytest.raises(RuntimeError, match="outside a goroutine"), gofer.blocking():
                pass

        with thread(foreign):
            pass

    gofer.run(main)


# --- No thread to be had --------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_a_program_that_needs_more_threads_than_allowed_ends(ps: int, plain: bool) -> None:
    async def blocks() -> None:
        time.sleep(0.2)

    async def main() -> None:
        gs = [gofer.go(time.sleep, 0.2) if plain else gofer.go(blocks) for _ in range(30)]
        for g in gs:
            await g

    before = gofer.set_max_threads(ps + 2)
    try:
        with pytest.raises(RuntimeError, match=f"exceeds {ps + 2}-thread limit"):
            gofer.run(main, procs=ps)
    finally:
        gofer.set_max_threads(before)
    all_came_back()


def test_a_plain_goroutine_when_there_is_one_thread_only() -> None:
    async def main() -> None:
        await gofer.go(len, "")

    before = gofer.set_max_threads(1)
    try:
        with pytest.raises(RuntimeError, match="exceeds 1-thread limit"):
            gofer.run(main, procs=1)
    finally:
        gofer.set_max_threads(before)
    gofer.run(main, procs=1)


def test_enough_threads_is_no_error(ps: int) -> None:
    async def blocks() -> None:
        time.sleep(0.05)

    async def main() -> None:
        for g in [gofer.go(blocks) for _ in range(10)]:
            await g

    before = gofer.set_max_threads(10 + ps + 2)
    try:
        gofer.run(main, procs=ps)
    finally:
        gofer.set_max_threads(before)


def test_the_system_gives_no_more_threads() -> None:
    """RLIMIT_NPROC: the program ends with an error that says so, and does not hang."""
    source = """
        import concurrent.futures, os, resource, time, gofer  # while it may read them all

        async def blocks():
            time.sleep(0.3)

        async def main():
            gs = [gofer.go(blocks) for _ in range(50)]
            for g in gs:
                await g

        if os.getuid() == 0:  # for whom there is no limit
            os.setuid(100_000 + os.getpid())  # one of its own: it is counted by user
        resource.setrlimit(resource.RLIMIT_NPROC, (8, 8))
        try:
            gofer.run(main, procs=1)
        except RuntimeError as exc:
            print(exc)
        """
    out = run_program(source).check()
    assert "the system gives the program no more than" in out


# --- What it costs --------------------------------------------------------------------------------


def cpu_time() -> float:
    """Of this process, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture
def sysmon_as_usual() -> Iterator[None]:
    """Even if GOFER_TEST_SYSMON_US keeps it awake in other tests."""
    before = _core.set_sysmon(0)
    yield
    _core.set_sysmon(before)


@pytest.mark.usefixtures("sysmon_as_usual")
@pytest.mark.skipif(SANITIZED, reason="the sanitizer's own work would be measured")
@pytest.mark.parametrize("how", ["asleep", "plain asleep"])
def test_an_idle_program_uses_no_cpu(ps: int, how: str) -> None:
    async def sleeper() -> None:
        await gofer.sleep(60)

    def plain() -> None:
        gofer.block(gofer.sleep(60))

    async def main() -> tuple[float, int]:
        g = gofer.go(sleeper if how == "asleep" else plain)
        await parked(g)
        await gofer.sleep(0.3)  # for sysmon to calm down
        before = cpu_time()
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        await gofer.sleep(2)
        return cpu_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches

    used, switches = gofer.run(main, procs=ps)
    assert used < 2 * 0.005
    assert switches < 2 * 20


@pytest.mark.usefixtures("sysmon_as_usual")
@pytest.mark.skipif(SANITIZED, reason="the sanitizer's own work would be measured")
def test_a_program_that_waits_in_a_blocking_call_uses_little_cpu(ps: int) -> None:
    """sysmon has to look now and then, whether there is work for the P."""

    async def main() -> float:
        time.sleep(0.3)
        before = cpu_time()
        time.sleep(2)
        return cpu_time() - before

    assert gofer.run(main, procs=ps) < 2 * 0.03
