"""The flight recorder: the last seconds, on demand."""

import time
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import trace
from gofer._trace.summary import summarise
from gofer._trace.validate import validate
from tests import trace_support
from tests.support import TINY, parked, run_program
from tests.trace_support import PROGRAMS, Program, ping_pong


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.trace"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_snapshot_of_all_that_happened(program: Program, file: Path) -> None:
    with trace.FlightRecorder() as recorder:
        program(2)
        recorder.snapshot(file)
    t = trace.load(file)
    problems = [p for p in validate(t) if "not exact" not in p]
    assert problems == []
    assert all(g.created is not None for g in t.goroutines)


def test_it_forgets_what_is_too_much(file: Path) -> None:
    rounds = 10_000 if TINY else 60_000
    with trace.FlightRecorder(size=1 << 18) as recorder:
        for _ in range(3):
            ping_pong(2, rounds)
        done = recorder.snapshot(file)
    assert 0 < done.size < 1_000_000
    t = trace.load(file)
    assert 0 < len(t) < 3 * 6 * rounds
    assert t.begin > 0  # not the whole story
    names = {g.name.rpartition(".")[2] for g in t.goroutines}
    assert names <= {"main", "ping", "pong"}  # also of those that began before
    summarise(t)


def test_it_forgets_what_is_too_old(file: Path) -> None:
    async def chatter(mark: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            trace.log("x" * 2000)
            await gofer.gosched()
        trace.log(mark)

    with trace.FlightRecorder(seconds=0.2, size=1 << 30) as recorder:
        gofer.run(chatter, "old", 0.05, procs=1)
        time.sleep(0.5)
        gofer.run(chatter, "new", 0.05, procs=1)
        recorder.snapshot(file)
    logs = [entry.message for entry in trace.load(file).marks.logs]
    assert "new" in logs
    assert logs.count("x" * min(2000, 128 if TINY else 2000)) > 0
    t = trace.load(file)
    assert (t.end - t.begin) < 0.5e9


def test_names_survive_although_their_births_are_forgotten(file: Path) -> None:
    async def old_one(ch: gofer.Chan[int]) -> None:
        async for _ in ch:
            pass

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        g = gofer.go(old_one, ch, name="old one")
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            await ch.send(1)
        recorder.snapshot(file)
        ch.close()
        await g

    with trace.FlightRecorder(seconds=0.3, size=1 << 18) as recorder:
        gofer.run(main, procs=1)
    t = trace.load(file)
    assert {g.name.rpartition(".")[2] for g in t.goroutines} == {"old one", "main"}
    assert all(g.created is None for g in t.goroutines)


def test_who_ended_long_ago_is_not_in_it(file: Path) -> None:
    """Although a thread that has been idle since still has in hand what it wrote of them."""

    async def child(other: gofer.Chan[int]) -> None:
        for _ in range(5):
            await gofer.gosched()
        await other.send(1)

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        for _ in range(200):
            gofer.go(child, ch)
        for _ in range(200):
            await ch.recv()
        gofer.gomaxprocs(1)
        for _ in range(60_000):
            await gofer.gosched()
        recorder.snapshot(file)

    with trace.FlightRecorder(size=1 << 18) as recorder:
        gofer.run(main, procs=4)
    t = trace.load(file)
    assert [g.name.rpartition(".")[2] for g in t.goroutines] == ["main"]
    assert summarise(t).alive == 1


def test_a_trace_beside_the_recorder_names_who_lives(file: Path) -> None:
    async def quiet(ch: gofer.Chan[int]) -> None:
        await ch.recv()

    async def busy(ch: gofer.Chan[int]) -> None:
        async for _ in ch:
            pass

    async def main() -> None:
        waits: gofer.Chan[int] = gofer.Chan()
        gofer.go(quiet, waits)
        ch: gofer.Chan[int] = gofer.Chan()
        gofer.go(busy, ch)
        await ch.send(0)
        with trace.recording(file):
            for i in range(100):
                await ch.send(i)
        ch.close()
        await waits.send(0)

    with trace.FlightRecorder():
        gofer.run(main, procs=2)
    t = trace.load(file)
    names = sorted(g.name.rpartition(".")[2] for g in t.goroutines)
    assert names == ["busy", "main", "quiet"]
    assert summarise(t).alive == 3


def test_a_recorder_beside_a_trace_names_who_lives(file: Path, tmp_path: Path) -> None:
    async def quiet(ch: gofer.Chan[int]) -> None:
        await ch.recv()

    async def main() -> None:
        waits: gofer.Chan[int] = gofer.Chan()
        g = gofer.go(quiet, waits)
        await parked(g)
        with trace.FlightRecorder() as recorder:
            await gofer.sleep(0.001)
            recorder.snapshot(file)
        await waits.send(0)

    with trace.recording(tmp_path / "whole"):
        gofer.run(main, procs=2)
    t = trace.load(file)
    assert sorted(g.name.rpartition(".")[2] for g in t.goroutines) == ["main", "quiet"]


def test_snapshots_while_all_is_moving(tmp_path: Path) -> None:
    async def snap() -> None:
        for i in range(8):
            recorder.snapshot(tmp_path / str(i))
            await gofer.sleep(0.001)

    async def noise(mu: gofer.Mutex) -> None:
        while True:
            async with mu:
                await gofer.gosched()

    async def main() -> None:
        mu = gofer.Mutex()
        for _ in range(10):
            gofer.go(noise, mu)
        await gofer.go(snap)

    with trace.FlightRecorder() as recorder:
        gofer.run(main, procs=4)
    for i in range(8):
        t = trace.load(tmp_path / str(i))
        # Threads are copied one after the other, so the edge may be ragged, but nothing else.
        assert t.repairs < 50
        summarise(t)


def test_beside_a_trace(file: Path, tmp_path: Path) -> None:
    with trace.FlightRecorder() as recorder:
        ping_pong(2, 50)
        with trace.recording(file):
            trace_support.many(2)
            recorder.snapshot(tmp_path / "snapshot")
        trace_support.sleepers(1)
        recorder.snapshot(tmp_path / "later")
    inner = trace.load(file)
    assert len([g for g in inner.goroutines if g.name.endswith("child")]) == 500
    assert inner.repairs < 20  # it begins in the middle of what the recorder has seen
    assert len(trace.load(tmp_path / "snapshot").goroutines) >= 504
    assert len(trace.load(tmp_path / "later").goroutines) >= 504 + 41
    with trace.recording(file), trace.FlightRecorder() as recorder:  # the other way round
        ping_pong(1, 50)
        recorder.snapshot(tmp_path / "snapshot")
    assert validate(trace.load(file)) == []
    assert len(trace.load(tmp_path / "snapshot").goroutines) == 3


def test_misuse(file: Path) -> None:
    recorder = trace.FlightRecorder(seconds=1)
    assert not recorder.enabled
    assert "off" in repr(recorder)
    with pytest.raises(RuntimeError, match="off"):
        recorder.snapshot(file)
    recorder.stop()
    with recorder:
        assert recorder.enabled
        assert trace.enabled()
        with pytest.raises(RuntimeError, match="already"):
            trace.FlightRecorder().start()
        with pytest.raises(OSError, match="No such file"):
            recorder.snapshot(file / "nowhere")
    assert not trace.enabled()
    bad: dict[str, Any]
    for bad in ({"seconds": 0}, {"seconds": float("nan")}, {"size": 3}):
        with pytest.raises(ValueError, match="must be"):
            trace.FlightRecorder(**bad)


def test_a_crash_is_written_down(file: Path) -> None:
    with trace.FlightRecorder(on_crash=file):
        trace_support.many(1)
        assert not file.exists()
        trace_support.failing(1)
    t = trace.load(file)
    assert "failed" in {g.end for g in t.goroutines}


def test_a_crash_ends_the_program_as_ever(file: Path) -> None:
    end = run_program(
        f"""
        import gofer
        from gofer import trace
        async def main():
            raise ValueError("no")
        trace.FlightRecorder(on_crash={str(file)!r}).start()
        gofer.run(main)
        """
    )
    assert end.returncode == 1
    assert "ValueError: no" in end.stderr
    assert len(trace.load(file).goroutines) == 1
