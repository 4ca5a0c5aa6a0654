"""runtime.dump(): what every goroutine does and where it stands, in Go's format."""

import io
import os
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import gofer
from gofer import _dump, net, runtime
from tests.support import (
    FREE_THREADED,
    SANITIZED,
    all_came_back,
    here,
    parked,
    sleep_long,
    spin,
    thread,
    until,
)

HEADER = re.compile(
    r"goroutine (\d+) \[([a-zA-Z .]+(?: \(no cases\))?)( \(leaked\))?"
    r"(?:, (\d+) minutes)?(, locked to thread)?\]:"
)
CREATED = re.compile(r"created by (\S+)(?: in goroutine (\d+))?(?: as (.*))?")


class Block(NamedTuple):
    id: int
    status: str
    leaked: bool
    minutes: int
    locked: bool
    functions: list[str]
    places: list[str]
    sources: list[str]
    creator: str | None
    parent: int
    site: str


def parse(text: str) -> dict[int, Block]:
    """Every line must be one that we know."""
    found = {}
    for part in text.rstrip("\n").split("\n\n"):
        lines = part.split("\n")
        header = HEADER.fullmatch(lines.pop(0))
        assert header, part
        functions, places, sources = [], [], []
        creator, parent, site = None, 0, ""
        while lines:
            line = lines.pop(0)
            if line == _dump.ELSEWHERE:
                continue
            if created := CREATED.fullmatch(line):
                creator, parent = created[1], int(created[2] or 0)
                site = lines.pop(0).removeprefix("\t")
                assert not lines, part
            elif line.startswith("\t\t"):
                sources.append(line[2:])
            elif line.startswith("\t"):
                assert re.fullmatch(r"\t.+:\d+", line), part
                places.append(line[1:])
            else:
                assert line.endswith("()"), part
                functions.append(line[:-2].rpartition(".")[2])
        id = int(header[1])
        assert id not in found
        minutes = int(header[4] or 0)
        found[id] = Block(
            *(id, header[2], bool(header[3]), minutes, bool(header[5])),
            *(functions, places, sources, creator, parent, site),
        )
    return found


def dumped(**options: bool) -> dict[int, Block]:
    f = io.StringIO()
    runtime.dump(f, **options)
    return parse(f.getvalue())


# --- One of each reason ---------------------------------------------------------------------------


async def in_select(a: Awaitable[Any], b: Awaitable[Any]) -> None:
    await gofer.select(a, b)


async def reads(conn: net.Conn) -> None:
    await conn.read()


class Waiters:
    """What goroutines can wait for; each of these blocks until the run ends."""

    def __init__(self) -> None:
        self.mu = gofer.Mutex()
        self.rw = gofer.RWMutex()
        self.cond_mu = gofer.Mutex()
        self.wg = gofer.WaitGroup()
        self.ch = gofer.Chan[int]()

    async def sleep(self) -> None:
        await gofer.sleep(100_000)

    async def goroutine_wait(self) -> None:
        await gofer.go(self.sleep)

    async def chan_send(self) -> None:
        await gofer.Chan[int]().send(1)

    async def chan_receive(self) -> None:
        await self.ch.recv()

    async def select(self) -> None:
        await gofer.select(self.ch.recv(), gofer.sleep(100_000))

    async def select_no_cases(self) -> None:
        await gofer.select()

    async def mutex(self) -> None:
        await self.mu.lock()

    async def rw_lock(self) -> None:
        await self.rw.lock()

    async def rw_rlock(self) -> None:
        await self.rw.rlock()

    async def wait_group(self) -> None:
        await self.wg.wait()

    async def cond(self) -> None:
        async with self.cond_mu:
            await gofer.Cond(self.cond_mu).wait()

    async def semaphore(self) -> None:
        s = gofer.Semaphore(1)
        await s.acquire()
        await s.acquire()

    async def io(self) -> None:
        async with await net.listen("127.0.0.1", 0) as listener:
            await listener.accept()


REASONS: dict[str, tuple[str, Callable[[Waiters], Any]]] = {
    "sleep": ("sleep", Waiters.sleep),
    "goroutine wait": ("goroutine_wait", Waiters.goroutine_wait),
    "chan send": ("chan_send", Waiters.chan_send),
    "chan receive": ("chan_receive", Waiters.chan_receive),
    "select": ("select", Waiters.select),
    "select (no cases)": ("select_no_cases", Waiters.select_no_cases),
    "sync.Mutex.Lock": ("mutex", Waiters.mutex),
    "sync.RWMutex.Lock": ("rw_lock", Waiters.rw_lock),
    "sync.RWMutex.RLock": ("rw_rlock", Waiters.rw_rlock),
    "sync.WaitGroup.Wait": ("wait_group", Waiters.wait_group),
    "sync.Cond.Wait": ("cond", Waiters.cond),
    "semacquire": ("semaphore", Waiters.semaphore),
    "IO wait": ("io", Waiters.io),
}


def test_tells_every_reason_to_wait(procs: int) -> None:
    async def main() -> dict[int, Block]:
        w = Waiters()
        await w.mu.lock()
        await w.rw.lock()
        w.wg.add(1)
        gs = {reason: gofer.go(wait, w) for reason, (_, wait) in REASONS.items()}
        await parked(*gs.values())
        blocks = dumped()
        assert len(blocks) == gofer.num_goroutine()
        for reason, g in gs.items():
            block = blocks[g.id]
            assert block.status == reason == g.wait_reason
            assert block.functions[-1] == REASONS[reason][0]
            assert block.creator is not None
            assert block.creator.endswith("main.<locals>.<dictcomp>" if PY311 else "main")
            assert block.parent == 1
            assert block.site == g.created_at
            assert not block.locked
        assert blocks[1].status == "running"
        assert blocks[1].creator is None
        return blocks

    PY311 = sys.version_info < (3, 12)
    gofer.run(main, procs=procs)


def test_a_future_is_waited_for(procs: int) -> None:
    from concurrent.futures import Future

    async def wait(f: "Future[int]") -> None:
        await gofer.wait_future(f)

    async def main() -> None:
        f: Future[int] = Future()
        g = gofer.go(wait, f)
        await parked(g)
        assert dumped()[g.id].status == "future wait"
        f.set_result(1)
        await g

    gofer.run(main, procs=procs)


# --- Frames ---------------------------------------------------------------------------------------


async def inner(ch: gofer.Chan[int]) -> int:
    return await ch.recv()


async def numbers(ch: gofer.Chan[int]) -> AsyncIterator[int]:
    yield await inner(ch)


class Awaitable_:
    def __init__(self, ch: gofer.Chan[int]) -> None:
        self.ch = ch

    def __await__(self) -> Generator[Any, Any, int]:
        return (yield from inner(self.ch).__await__())


async def through_everything(ch: gofer.Chan[int]) -> None:
    async for _ in numbers(ch):
        pass


async def through_await(ch: gofer.Chan[int]) -> None:
    await Awaitable_(ch)


def test_the_whole_chain_of_awaits_is_there_innermost_first(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        a, b = gofer.go(through_everything, ch), gofer.go(through_await, ch)
        await parked(a, b)
        blocks = dumped()
        assert blocks[a.id].functions == ["inner", "numbers", "through_everything"]
        assert blocks[b.id].functions == ["inner", "__await__", "through_await"]
        assert blocks[a.id].sources[0] == "return await ch.recv()"
        assert blocks[a.id].sources[-1] == "async for _ in numbers(ch):"
        line = inner.__code__.co_firstlineno + 1
        assert blocks[a.id].places[0] == f"{__file__}:{line}"
        await ch.send(1)
        await ch.send(1)
        await a
        await b

    gofer.run(main, procs=procs)


def test_agrees_with_stack(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        g = gofer.go(through_everything, ch)
        await parked(g)
        frames = [f"{f.filename}:{f.lineno}" for f in g.stack()]
        assert dumped()[g.id].places == frames[::-1]
        await ch.send(1)
        await g

    gofer.run(main, procs=procs)


async def deep(n: int, ch: gofer.Chan[int]) -> None:
    if n > 1:
        await deep(n - 1, ch)
    else:
        await ch.recv()


def test_of_a_deep_stack_the_middle_is_left_out() -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        g = gofer.go(deep, 150, ch)
        await parked(g)
        f = io.StringIO()
        runtime.dump(f)
        assert f.getvalue().count("deep()") == 100
        assert "\n...50 frames elided...\n" in f.getvalue()
        await ch.send(1)
        await g

    gofer.run(main)


def test_one_that_has_not_begun_stands_at_its_first_line(procs: int, no_handoff: None) -> None:
    async def main() -> None:
        release = threading.Event()
        hogs = [gofer.go(release.wait) for _ in range(procs - 1)]
        try:
            gs = [gofer.go(sleep_long) for _ in range(100)]
            blocks = dumped()
        finally:
            release.set()
        queued = [blocks[g.id] for g in gs if blocks[g.id].status == "runnable"]
        if procs == 1:
            assert len(queued) == 100
        first = f"{sleep_long.__code__.co_filename}:{sleep_long.__code__.co_firstlineno}"
        for block in queued:
            assert block.functions == ["sleep_long"]
            assert block.places == [first]
        for g in hogs:
            await g

    gofer.run(main, procs=procs)


def test_the_one_that_dumps_is_seen_where_it_stands(procs: int) -> None:
    async def helper() -> tuple[dict[int, Block], str]:
        return dumped(), here()

    async def child() -> None:
        blocks, place = await helper()
        block = blocks[gofer.current().id]
        assert block.status == "running"
        assert block.functions[:3] == ["dumped", "helper", "child"]
        assert block.functions[3:] == ["main"] * (block.id == 1)
        assert block.places[1] == place

    async def main() -> None:
        await child()
        await gofer.go(child)

    gofer.run(main, procs=procs)


def test_a_plain_one_that_waits_shows_its_function_and_what_it_awaits(procs: int) -> None:
    def plain(ch: gofer.Chan[int]) -> None:
        nested(ch)

    def nested(ch: gofer.Chan[int]) -> None:
        gofer.block(inner(ch))

    async def main() -> None:
        ch = gofer.Chan[int]()
        g = gofer.go(plain, ch)
        await parked(g)
        block = dumped()[g.id]
        assert block.status == "chan receive"
        assert block.functions == ["inner", "nested", "plain"]
        await ch.send(1)
        await g

    gofer.run(main, procs=procs)


def test_a_blocked_thread_is_seen_where_it_blocks(procs: int) -> None:
    release = threading.Event()

    def plain() -> None:
        nested()

    def nested() -> None:
        release.wait()

    async def coroutine() -> None:
        nested()

    async def main() -> None:
        a, b = gofer.go(plain), gofer.go(coroutine)
        try:
            await until(lambda: a.state == b.state == "syscall")
            blocks = dumped()
            # A thread may get no core in time to be asked, or get one for its last steps.
            while blocks[a.id].functions == [] or {
                blocks[a.id].status,
                blocks[b.id].status,
            } != {"syscall"}:
                await gofer.sleep(0.01)
                blocks = dumped()
        finally:
            release.set()
        assert blocks[a.id].functions[-2:] == ["nested", "plain"]
        assert blocks[b.id].functions[-2:] == ["nested", "coroutine"]
        await a
        await b

    gofer.run(main, procs=procs)


def test_one_that_computes_on_another_thread_is_seen_too() -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            spin(0.001)

    async def main() -> None:
        g = gofer.go(busy)
        try:
            await until(lambda: g.state == "running")
            for _ in range(20):
                block = dumped()[g.id]
                assert block.status in ("running", "runnable", "syscall")
                if block.functions:
                    assert "busy" in block.functions
                    break
                await gofer.sleep(0.01)
            else:
                raise AssertionError("never seen")
        finally:
            stop.set()
        await g

    gofer.run(main, procs=4)


def test_locked_to_its_thread(procs: int) -> None:
    async def locked(ch: gofer.Chan[int]) -> None:
        with gofer.lock_os_thread():
            await ch.recv()

    async def main() -> None:
        ch = gofer.Chan[int]()
        g = gofer.go(locked, ch)
        await parked(g)
        block = dumped()[g.id]
        assert block.locked
        assert block.functions == ["locked"]
        assert not dumped()[1].locked
        await ch.send(1)
        await g

    gofer.run(main, procs=procs)


def test_minutes_are_told_when_it_has_waited_that_long(
    monkeypatch: pytest.MonkeyPatch, procs: int
) -> None:
    async def main() -> None:
        g = gofer.go(sleep_long)
        await parked(g)
        assert dumped()[g.id].minutes == 0
        real = time.monotonic
        monkeypatch.setattr(_dump.time, "monotonic", lambda: real() + 59)
        assert dumped()[g.id].minutes in (0, 1)
        monkeypatch.setattr(_dump.time, "monotonic", lambda: real() + 185)
        blocks = dumped()
        assert blocks[g.id].minutes == 3
        assert blocks[1].minutes == 0

    gofer.run(main, procs=procs)


def test_the_clock_of_a_wait_starts_when_it_does(procs: int) -> None:
    """Also after all have slept for so long that nobody looked at the clock."""
    late = []

    async def main() -> None:
        for _ in range(3):
            await gofer.sleep(1.1)
            g = gofer.go(sleep_long)
            while g.state != "waiting":
                await gofer.gosched()
            f: dict[bytes, Any] = {}
            late.append(time.monotonic() - gofer._core.look(g, f)[2])

    gofer.run(main, procs=procs)
    assert all(0 <= s < 1.1 for s in late), late


def test_a_name_that_was_given_is_told(procs: int) -> None:
    async def main() -> None:
        g, h = gofer.go(sleep_long, name="a sleeper"), gofer.go(sleep_long)
        await parked(g, h)
        f = io.StringIO()
        runtime.dump(f)
        assert f.getvalue().count(" as 'a sleeper'") == 1
        assert f.getvalue().count(" as ") == 1

    gofer.run(main, procs=procs)


def test_one_from_a_foreign_thread_has_no_parent() -> None:
    async def main() -> None:
        started: list[gofer.Goroutine[None]] = []
        with thread(lambda: started.append(gofer.go(sleep_long))):
            await until(lambda: bool(started))
        await parked(started[0])
        block = dumped()[started[0].id]
        assert block.parent == 0
        assert block.creator is not None

    gofer.run(main)


# --- Groups ---------------------------------------------------------------------------------------


def test_identical_stacks_are_written_once_with_their_number(procs: int) -> None:
    async def main() -> str:
        ch = gofer.Chan[int]()
        gs = [gofer.go(inner, ch) for _ in range(1000)]
        one = gofer.go(sleep_long)
        await parked(*gs, one)
        f = io.StringIO()
        runtime.dump(f, group=True)
        for _ in gs:
            await ch.send(1)
        ids.extend(g.id for g in gs)
        return f.getvalue()

    ids: list[int] = []
    parts = gofer.run(main, procs=procs).rstrip("\n").split("\n\n")
    assert len(parts) == 3
    first, *lines = parts[0].split("\n")
    some = ", ".join(map(str, sorted(ids)[:10]))
    assert first == f"1000 goroutines [chan receive]: {some}, ..."
    assert lines[0] == "inner()"
    assert re.match(r"created by .+ in goroutine 1$", lines[-2])
    rest = parse("\n\n".join(parts[1:]))
    assert {b.status for b in rest.values()} == {"running", "sleep"}


# --- Where to -------------------------------------------------------------------------------------


def test_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        runtime.dump()

    gofer.run(main)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("goroutine 1 [running]:\n")


def test_goes_to_a_file_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        runtime.dump(tmp_path / "a")
        runtime.dump(str(tmp_path / "b"))

    gofer.run(main)
    assert parse((tmp_path / "a").read_text())[1].status == "running"
    assert parse((tmp_path / "b").read_text())[1].status == "running"


@pytest.mark.parametrize("file", [5, b"name", object(), ["a"]])
def test_what_cannot_be_written_to_is_a_type_error_that_names_it(file: Any) -> None:
    with pytest.raises(TypeError, match="text stream or the name of a file") as info:
        runtime.dump(file)
    assert repr(file) in str(info.value)


def test_outside_a_run_there_is_nothing() -> None:
    f = io.StringIO()
    runtime.dump(f)
    assert f.getvalue() == ""


def test_a_program_without_sources_is_dumped_too() -> None:
    scope: dict[str, Any] = {"gofer": gofer}
    exec("async def ghost(ch):\n    await ch.recv()\n", scope)

    async def main() -> None:
        ch = gofer.Chan[int]()
        g = gofer.go(scope["ghost"], ch)
        await parked(g)
        block = dumped()[g.id]
        assert block.places == ["<string>:2"]
        assert block.sources == []
        await ch.send(1)
        await g

    gofer.run(main)


# --- Many -----------------------------------------------------------------------------------------


def test_many_are_dumped_quickly_and_the_program_goes_on() -> None:
    """100,000 in 2 s, on the machine that was the measure; here it is enough not to be far off."""
    n = 2_000 if SANITIZED else 100_000

    async def main() -> tuple[float, float, int]:
        ch = gofer.Chan[int]()
        gs = [gofer.go(inner, ch) for _ in range(n)]
        await parked(*gs)
        longest, last = 0.0, time.perf_counter()
        done = threading.Event()

        def dump() -> None:
            nonlocal took
            start = time.perf_counter()
            runtime.dump(os.devnull)
            took = time.perf_counter() - start
            done.set()

        took = 0.0
        with thread(dump):
            while not done.is_set():
                await gofer.gosched()
                now = time.perf_counter()
                longest, last = max(longest, now - last), now
        for g in gs:
            g.cancel()
        return took, longest, n

    took, longest, _ = gofer.run(main, procs=2)
    assert took < 20
    assert longest < 1
    print(f"took {took:.2f} s, the longest pause {longest * 1000:.1f} ms")


@pytest.mark.skipif(not FREE_THREADED, reason="with the GIL such a call lets nobody else run")
def test_does_not_wait_for_a_thread_in_c_code() -> None:
    def busy() -> None:
        sum(range(300_000_000))  # seconds, without a bytecode boundary

    async def main() -> None:
        g = gofer.go(busy)
        await until(lambda: g.state == "running")
        start = time.perf_counter()
        block = dumped()[g.id]
        assert time.perf_counter() - start < 1
        assert block.status in ("running", "syscall")
        assert block.functions == []

    gofer.run(main, procs=2)
    all_came_back()
