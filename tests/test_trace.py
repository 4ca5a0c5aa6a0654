"""gofer.trace: what is recorded, and that it makes sense."""

import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

import gofer
from gofer import trace
from gofer._trace.read import Kind, Trace, read
from gofer._trace.validate import Checker, validate
from tests import trace_support
from tests.support import TINY, run_program, spin, thread
from tests.trace_support import PROGRAMS, Program, ping_pong


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.trace"


def record(program: Program, procs: int, file: Path) -> Trace:
    with trace.recording(file):
        program(procs)
    return trace.load(file)


def kinds(t: Trace) -> dict[str, int]:
    return {kind.name: t.kind.count(bytes([kind])) for kind in Kind}


def only(t: Trace, name: str) -> int:
    """The index of the one goroutine of this name."""
    (found,) = [g.index for g in t.goroutines if g.name.endswith(name)]
    return found


# --- The stream makes sense ----------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4], ids="procs={}".format)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_every_program_obeys_the_state_machine(program: Program, n: int, file: Path) -> None:
    t = record(program, n, file)
    assert validate(t) == []
    assert all(g.created is not None for g in t.goroutines)
    created, ended = kinds(t)["GO_CREATE"], kinds(t)["GO_END"]
    assert created == ended == len(t.goroutines)


def test_the_validator_sees_what_is_wrong(file: Path) -> None:
    """Otherwise the tests above prove nothing."""
    t = record(ping_pong, 2, file)
    start = t.kind.index(Kind.GO_START)
    block = t.kind.index(Kind.GO_BLOCK)
    unblock = t.kind.index(Kind.GO_UNBLOCK)
    proc_stop = t.kind.rindex(Kind.PROC_STOP)
    for missing in (start, block, unblock, proc_stop):
        damaged = bytearray(t.kind)
        damaged[missing] = Kind.BACK
        kept = t.kind
        t.kind = bytes(damaged)
        assert Checker(t).check() != [], Kind(kept[missing])
        t.kind = kept
    assert Checker(t).check() == []


@pytest.mark.parametrize("n", [1, 2, 4], ids="procs={}".format)
def test_a_trace_may_begin_and_end_inside_a_run(n: int, file: Path) -> None:
    async def worker(mu: gofer.Mutex) -> None:
        while True:
            async with mu:
                await gofer.gosched()
            await gofer.sleep(0)

    async def never(ch: gofer.Chan[int]) -> None:
        await ch.recv()

    async def main() -> None:
        mu = gofer.Mutex()
        silent: gofer.Chan[int] = gofer.Chan()
        gofer.go(never, silent, name="silent")
        for _ in range(10):
            gofer.go(worker, mu, name="worker")
        await gofer.sleep(0.002)
        for i in range(5):
            trace.start(f"{file}{i}")
            await gofer.sleep(0.002)
            trace.stop()

    gofer.run(main, procs=n)
    for i in range(5):
        t = trace.load(f"{file}{i}")
        assert validate(t) == []
        names = [g.name for g in t.goroutines]
        assert names.count("worker") == 10
        silent = t.life(only(t, "silent"))
        assert [(s.state, s.reason, s.start) for s in silent] == [(4, "chan receive", t.begin)]
        assert silent[0].end == t.end


def test_totals_agree_with_what_the_program_did(file: Path) -> None:
    t = record(trace_support.many, 2, file)
    count = kinds(t)
    assert count["GO_CREATE"] == count["GO_END"] == 501
    stops = [e for e in t.events() if e.kind is Kind.GO_STOP]
    assert len([e for e in stops if e.args[1] == 0]) == 500  # one gosched() each
    main = t.goroutines[0]
    assert (main.id, main.parent_id, main.name.rpartition(".")[2]) == (1, 0, "main")
    assert {g.parent_id for g in t.goroutines[1:]} == {1}


@pytest.mark.parametrize("n", [1, 2, 4], ids="procs={}".format)
def test_the_states_of_a_goroutine_fill_its_life(n: int, file: Path) -> None:
    t = record(trace_support.contention, n, file)
    for g in t.goroutines:
        life = t.life(g.index)
        assert life[0].start == g.created
        assert life[-1].end == g.ended
        assert all(a.end == b.start for a, b in pairwise(life))
        assert sum(s.end - s.start for s in life) == g.running + g.runnable + g.syscall + g.waiting


def test_nobody_runs_on_two_ps_and_no_p_runs_two(file: Path) -> None:
    t = record(trace_support.many, 4, file)
    for key in ("p", "thread"):
        rows: dict[int, list[tuple[int, int]]] = {}
        for i in range(len(t.spans["g"])):
            s = t.span(i)
            if s.state == 2:
                rows.setdefault(getattr(s, key), []).append((s.start, s.end))
        for spans in rows.values():
            spans.sort()
            assert all(a[1] <= b[0] for a, b in pairwise(spans))


# --- What it says --------------------------------------------------------------------------------


def test_a_wait_says_for_what_where_and_who_ended_it(file: Path) -> None:
    async def inner(ch: gofer.Chan[str]) -> str:
        return await ch.recv()  # it waits here

    async def outer(ch: gofer.Chan[str]) -> str:
        return await inner(ch)

    async def main() -> None:
        ch: gofer.Chan[str] = gofer.Chan()
        g = gofer.go(outer, ch, name="waiter")
        await gofer.sleep(0.001)
        await ch.send("x")
        await g

    with trace.recording(file):
        gofer.run(main, procs=1)
    t = trace.load(file)
    index = only(t, "waiter")
    life = t.life(index)
    assert [s.state for s in life] == [1, 2, 4, 1, 2]
    wait, woken = life[2], life[3]
    assert wait.reason == "chan receive"
    assert woken.by == only(t, "main")
    functions = [frame.function.rpartition(".")[2] for frame in t.stack(wait.stack)]
    assert functions == ["inner", "outer"]
    assert t.stack(wait.stack)[0].file == __file__
    line = Path(__file__).read_text().splitlines()[t.stack(wait.stack)[0].line - 1]
    assert "it waits here" in line
    created_at = t.goroutines[index].created_at
    assert created_at is not None
    assert (created_at.function.rpartition(".")[2], created_at.file) == ("main", __file__)


def test_a_stack_is_that_of_this_wait_and_no_other(file: Path) -> None:
    """The same function, awaited from two lines; and one goroutine after the other."""

    async def helper(ch: gofer.Chan[int]) -> None:
        await ch.recv()

    async def waits_twice(ch: gofer.Chan[int]) -> None:
        await helper(ch)  # first
        await helper(ch)  # second

    async def main() -> None:
        ch: gofer.Chan[int] = gofer.Chan()
        for _ in range(20):
            g = gofer.go(waits_twice, ch, name="twice")
            for _ in range(2):
                await gofer.sleep(0.0001)
                await ch.send(1)
            await g

    with trace.recording(file):
        gofer.run(main, procs=1)
    t = trace.load(file)
    source = Path(__file__).read_text().splitlines()
    for g in t.goroutines:
        if g.name == "twice":
            stacks = [t.stack(s.stack) for s in t.life(g.index) if s.state == 4]
            lines = [source[stack[1].line - 1].partition("# ")[2] for stack in stacks]
            assert lines == ["first", "second"]


def test_a_blocking_call_is_a_syscall_and_its_p_goes_on(file: Path) -> None:
    async def main() -> None:
        def sleeper() -> None:
            with gofer.blocking():
                time.sleep(0.02)

        g = gofer.go(sleeper, name="sleeper")
        await g

    with trace.recording(file):
        gofer.run(main, procs=1)
    t = trace.load(file)
    sleeper = t.goroutines[only(t, "sleeper")]
    assert sleeper.plain
    assert sleeper.syscall > 15e6
    assert sleeper.running < sleeper.syscall


def test_sysmon_takes_the_p_of_a_goroutine_that_blocks(file: Path) -> None:
    async def blocks() -> None:
        time.sleep(0.05)

    async def main() -> None:
        g = gofer.go(blocks, name="blocks")
        await gofer.gosched()
        for _ in range(100):
            await gofer.gosched()
        await g

    with trace.recording(file):
        gofer.run(main, procs=1)
    t = trace.load(file)
    assert kinds(t)["PROC_TAKEN"] >= 1
    assert t.goroutines[only(t, "blocks")].syscall > 10e6
    assert validate(t) == []


def test_regions_tasks_logs_and_collections(file: Path) -> None:
    t = record(trace_support.marked, 2, file)
    marks = t.marks
    assert sorted(r.name for r in marks.regions) == ["child"] * 10 + ["outer"]
    (task,) = marks.tasks
    assert task.name == "work"
    assert {r.task for r in marks.regions} == {task.task}  # children inherit it
    children = [r for r in marks.regions if r.name == "child"]
    assert len({r.goroutine for r in children}) == 10
    assert all(r.end - r.start >= 500_000 for r in children)
    logs = {(entry.category, entry.message) for entry in marks.logs}
    assert logs == {("count", f"child {n}") for n in range(10)} | {("", "done")}
    assert len(marks.gc) >= 1
    assert marks.procs[0][1] == 2


def test_the_queues_are_looked_at_now_and_then(file: Path) -> None:
    async def waits_for_its_turn() -> None:
        spin(0.002)

    async def main() -> None:
        for g in [gofer.go(waits_for_its_turn) for _ in range(30)]:
            await g

    with trace.recording(file):
        gofer.run(main, procs=1)
    samples = trace.load(file).marks.samples
    assert len(samples) >= 2
    assert all(len(s.queues) == 1 for s in samples)
    assert max(s.queues[0] + s.global_queue for s in samples) > 5


def test_marks_outside_a_run_and_without_a_trace(file: Path) -> None:
    with trace.region("nothing"), trace.task("nothing"):
        trace.log("nothing")
    with trace.recording(file), trace.region("here"):
        trace.log("a", "b")
        with thread(lambda: trace.log("from a thread")):
            pass
    t = trace.load(file)
    assert [r.name for r in t.marks.regions] == ["here"]
    assert {entry.message for entry in t.marks.logs} == {"b", "from a thread"}
    assert len({entry.thread for entry in t.marks.logs}) == 2


def test_a_region_that_is_cut_off_lasts_to_the_end(file: Path) -> None:
    region = trace.region("open")
    with trace.recording(file):
        region.__enter__()
    region.__exit__(None, None, None)
    t = trace.load(file)
    (only_region,) = t.marks.regions
    assert only_region.end == t.end


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "naïve ☃ \U0001f40d", "", "a\x00b\n", "\udc80"]
)
def test_any_text_survives(text: str, file: Path) -> None:
    async def main() -> None:
        await gofer.go(_nothing, name=text)
        with trace.region(text):
            trace.log(text, text)

    with trace.recording(file):
        gofer.run(main)
    t = trace.load(file)
    shown = text if text != "\udc80" else None
    names = {g.name for g in t.goroutines if g.id != 1}
    if shown is not None:
        assert names == {shown}
        assert t.marks.regions[0].name == shown
        assert t.marks.logs[0].message == shown
    assert len(t.goroutines) == 2


async def _nothing() -> None:
    pass


# --- start and stop ------------------------------------------------------------------------------


def test_misuse(file: Path, tmp_path: Path) -> None:
    assert trace.stop() is None
    with trace.recording(file):
        assert trace.enabled()
        with pytest.raises(RuntimeError, match="already"):
            trace.start(tmp_path / "other")
    assert not trace.enabled()
    assert not (tmp_path / "other").exists()
    with pytest.raises(OSError, match="No such file"):
        trace.start(tmp_path / "nowhere" / "x")
    assert not trace.enabled()
    with pytest.raises(TypeError):
        trace.region(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        trace.task(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        trace.log()


def test_a_full_disk_is_reported_and_stops_nothing() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    trace.start("/dev/full")
    ping_pong(2)
    with pytest.raises(OSError, match="No space left"):
        trace.stop()
    assert not trace.enabled()


def test_recording_ends_with_its_block_even_if_that_fails(file: Path) -> None:
    with pytest.raises(ValueError, match="no"), trace.recording(file):
        raise ValueError("no")
    assert not trace.enabled()
    assert len(trace.load(file).goroutines) == 0


def test_what_was_recorded_is_told(file: Path) -> None:
    trace.start(file)
    ping_pong(1)
    done = trace.stop()
    assert done is not None
    assert done == (str(file), file.stat().st_size, 0)


def test_many_short_traces_in_one_process(file: Path) -> None:
    for n in range(20):
        t = record(lambda procs: ping_pong(procs, 10), n % 3 + 1, file)
        assert validate(t) == []
        assert len(t.goroutines) == 3


def test_a_trace_ends_with_the_program(file: Path) -> None:
    run_program(
        f"""
        import gofer
        from gofer import trace
        trace.start({str(file)!r})
        async def main():
            await gofer.sleep(0.001)
        gofer.run(main)
        """
    ).check()
    assert len(trace.load(file).goroutines) == 1


def test_a_killed_program_leaves_a_truncated_trace(file: Path) -> None:
    end = run_program(
        f"""
        import os, signal, gofer, time
        from gofer import trace
        from tests.trace_support import ping_pong
        trace.start({str(file)!r})
        ping_pong(1, 20000)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert end.returncode == -signal.SIGKILL
    with pytest.raises(trace.TraceError, match="truncated"):
        trace.load(file)
    t = trace.load(file, truncated=True)
    assert len(t) > (100 if TINY else 10_000)
    assert not t.exact


def test_a_forked_child_does_not_write_into_the_trace(file: Path) -> None:
    run_program(
        f"""
        import os, gofer
        from gofer import trace
        from tests.trace_support import ping_pong
        trace.start({str(file)!r})
        ping_pong(2)
        pid = os.fork()
        if pid == 0:
            assert not trace.enabled()
            trace.start({str(file) + "-child"!r})
            ping_pong(1)
            trace.stop()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        ping_pong(2)
        trace.stop()
        """,
        options=("-W", "ignore"),  # a warning that forking beside threads is dangerous: it is
    ).check()
    for path, runs in ((file, 2), (Path(f"{file}-child"), 1)):
        t = read(path)
        assert validate(t) == []
        assert len(t.goroutines) == 3 * runs


def test_events_that_nobody_takes_are_dropped_counted_and_shown(tmp_path: Path) -> None:
    """A pipe whose reader does not read stands for a disk that is too slow."""
    reader, writer = os.pipe()
    path = f"/dev/fd/{writer}"
    data: list[bytes] = []

    def read_all() -> None:
        while chunk := os.read(reader, 1 << 20):
            data.append(chunk)

    trace.start(path)
    started = time.monotonic()
    for _ in range(50_000 if TINY else 5000):  # does not hang, though nothing can be written
        trace.log("x" * 10_000)
    ping_pong(1)
    assert time.monotonic() - started < 60
    late = threading.Thread(target=read_all)
    late.start()
    done = trace.stop()
    os.close(writer)
    late.join()
    os.close(reader)
    assert done is not None
    assert done.lost > 0
    file = tmp_path / "x.trace"
    file.write_bytes(b"".join(data))
    t = trace.load(file)
    assert t.lost == done.lost
    assert not t.exact


def test_tracing_changes_nothing_for_the_program(file: Path, procs: int) -> None:
    async def square(n: int) -> int:
        await gofer.gosched()
        return n * n

    async def main() -> list[int]:
        return [await g for g in [gofer.go(square, n) for n in range(100)]]

    with trace.recording(file):
        assert gofer.run(main, procs=procs) == [n * n for n in range(100)]


def test_traces_begin_and_end_while_others_run(file: Path) -> None:
    """From a thread that is none of the runtime's, at any moment."""

    def switch() -> None:
        for i in range(12):
            trace.start(f"{file}{i}")
            spin(0.001)
            trace.stop()

    with thread(switch) as t:
        while t.is_alive():
            trace_support.selects(4)
    for i in range(12):
        assert validate(trace.load(f"{file}{i}")) == []
