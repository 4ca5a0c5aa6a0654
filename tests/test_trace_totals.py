"""What a trace adds up to is what stats() counted meanwhile."""

import itertools
import threading
from pathlib import Path

import pytest

import gofer
from gofer import net, runtime, trace
from gofer._trace.read import Kind, Trace
from gofer._trace.validate import validate
from tests.support import parked, wait_for
from tests.trace_support import PROGRAMS, Program


def record(program: Program, procs: int, file: Path) -> tuple[Trace, dict[str, int]]:
    """The trace, and by how much each counter has grown. Between the two nothing moves."""
    names = ("created", "steals", "handoffs", "preemptions", "switches")
    before = runtime.stats()
    with trace.recording(file):
        program(procs)
    after = runtime.stats()
    return trace.load(file), {name: getattr(after, name) - getattr(before, name) for name in names}


def total(t: Trace, kind: Kind, arg: int | None = None) -> int:
    return sum(1 if arg is None else e.args[arg] for e in t.events() if e.kind is kind)


@pytest.mark.parametrize("n", [1, 2, 4], ids="procs={}".format)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_totals_agree_with_stats(program: Program, n: int, tmp_path: Path) -> None:
    t, grown = record(program, n, tmp_path / "x.trace")
    assert total(t, Kind.GO_CREATE) == grown["created"]
    assert total(t, Kind.GO_START) == grown["switches"]
    assert total(t, Kind.STEAL, 1) == grown["steals"]


def test_hand_offs_agree(tmp_path: Path) -> None:
    def program(procs: int) -> None:
        release = threading.Event()

        async def main() -> None:
            gs = [gofer.go(release.wait) for _ in range(5)]
            await gofer.sleep(0.05)
            release.set()
            for g in gs:
                await g

        gofer.run(main, procs=procs)

    t, grown = record(program, 2, tmp_path / "x.trace")
    assert grown["handoffs"] > 0
    assert total(t, Kind.PROC_TAKEN) == grown["handoffs"]


@pytest.mark.parametrize("n", [1, 2, 4], ids="procs={}".format)
def test_the_network_wakes_goroutines(n: int, tmp_path: Path) -> None:
    fds: list[int] = []

    def program(procs: int) -> None:
        async def serve(conn: net.Conn) -> None:
            async with conn:
                while data := await conn.read():
                    await conn.write(data)

        async def main() -> None:
            async with await net.listen("127.0.0.1", 0) as listener:
                accepts = gofer.go(wait_for, listener.accept())
                await parked(accepts)
                async with await net.dial(*listener.addr) as conn:
                    server = await accepts
                    fds.extend([listener.fileno(), server.fileno(), conn.fileno()])
                    g = gofer.go(serve, server)
                    for i in range(50):
                        await parked(g)
                        await conn.write(b"%d" % i)
                        assert await conn.read() == b"%d" % i
                await g

        gofer.run(main, procs=procs)

    t, _ = record(program, n, tmp_path / "x.trace")
    assert validate(t) == []
    ready = [e for e in t.events() if e.kind is Kind.NET_READY]
    assert len(ready) >= 51
    assert {e.args[0] for e in ready} <= set(fds)
    assert fds[0] in {e.args[0] for e in ready}
    assert total(t, Kind.NET_POLL, 0) == len(ready)
    # Each is followed by the wake-up itself, on the same thread, unless it ran meanwhile.
    kinds = {Kind.GO_UNBLOCK, Kind.GO_NOTIFY, Kind.NET_READY}
    for thread in {e.thread for e in ready}:
        events = [e for e in t.events() if e.thread == thread and e.kind in kinds]
        for a, b in itertools.pairwise(events):
            if a.kind is Kind.NET_READY:
                assert b.kind is not Kind.NET_READY
                assert b.args[0] == a.args[1]
