"""Code that runs for long without an await, and who hears of it."""

import re
import time
from collections.abc import Iterator

import pytest

import gofer
from gofer import runtime
from tests.support import run_program, spin, until

SAID = re.compile(
    r"gofer: goroutine (\d+) \((\S+)\) has been running for (\d+) ms without an await, "
    r"at (\S+):(\d+) in (\S+)(?:: (.*))?"
)

PROGRAM = """
    import gofer, time

    def parse():
        {stuck}

    async def handle():
        parse()

    async def main():
        await gofer.go(handle)

    gofer.run(main, procs=2)
"""


@pytest.mark.parametrize(
    "stuck",
    ["time.sleep(0.6)", "end = time.monotonic() + 0.6\n        while time.monotonic() < end: pass"],
    ids=["blocked", "computing"],
)
def test_says_who_where_and_how_long(stuck: str) -> None:
    end = run_program(PROGRAM.format(stuck=stuck), env={"GOFERDEBUG": "stallwarn=100"})
    assert end.returncode == 0
    (line,) = end.stderr.splitlines()
    said = SAID.fullmatch(line)
    assert said, line
    assert (said[1], said[2], said[4], said[6]) == ("2", "handle", "<string>", "parse")
    assert 100 <= int(said[3]) < 500
    assert int(said[5]) in (5, 6)


def test_off_it_says_nothing() -> None:
    run_program(PROGRAM.format(stuck="time.sleep(0.3)")).check()
    run_program(PROGRAM.format(stuck="time.sleep(0.3)"), env={"GOFERDEBUG": "stallwarn=0"}).check()


def test_only_one_a_second_is_told_of() -> None:
    end = run_program(
        """
        import gofer, time

        async def main():
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                time.sleep(0.1)
                await gofer.gosched()

        gofer.run(main)
        """,
        env={"GOFERDEBUG": "stallwarn=20"},
    )
    assert end.returncode == 0
    assert 1 <= len(end.stderr.splitlines()) <= 4


# --- on_stall -------------------------------------------------------------------------------------


@pytest.fixture
def stalls() -> Iterator[list[runtime.Stall]]:
    found: list[runtime.Stall] = []
    runtime.on_stall(found.append, after=0.05)
    yield found
    runtime.on_stall(None)
    found.clear()  # the goroutines in it


def test_a_callback_gets_them(stalls: list[runtime.Stall], procs: int) -> None:
    async def blocks() -> None:
        deadline = time.monotonic() + 10
        while not stalls and time.monotonic() < deadline:
            time.sleep(0.2)

    async def main() -> None:
        g = gofer.go(blocks)
        ids.append(g.id)
        await g

    ids: list[int] = []
    gofer.run(main, procs=procs)
    (stall,) = stalls
    assert stall.goroutine.id == ids[0]
    assert 0.05 <= stall.seconds < 5
    assert (stall.file, stall.function.rpartition(".")[2]) == (__file__, "blocks")
    assert "time.sleep(0.2)" in stall.source
    assert str(stall).startswith(f"goroutine {ids[0]} (test_a_callback_gets_them")


def test_what_awaits_is_no_stall(stalls: list[runtime.Stall], procs: int) -> None:
    async def busy(ch: gofer.Chan[int]) -> None:
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            ch.send_nowait(1)
            await ch.recv()

    async def main() -> None:
        await gofer.go(busy, gofer.Chan[int](1))
        for _ in range(60):
            spin(0.01)
            await gofer.gosched()

    runtime.on_stall(stalls.append, after=0.5)  # the machine may have no core for it for a while
    gofer.run(main, procs=procs)
    assert stalls == []


def test_what_is_meant_to_take_long_is_no_stall(stalls: list[runtime.Stall], procs: int) -> None:
    def plain() -> None:
        time.sleep(0.2)

    async def says_so() -> None:
        with gofer.blocking():
            time.sleep(0.2)

    async def main() -> None:
        for g in [gofer.go(plain), gofer.go(says_so)]:
            await g

    gofer.run(main, procs=procs)
    assert stalls == []


def test_a_callback_that_fails_is_unraisable_and_hurts_nobody(
    monkeypatch: pytest.MonkeyPatch, procs: int
) -> None:
    unraisable: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: unraisable.append(str(args.exc_value)))

    def fails(stall: runtime.Stall) -> None:
        raise ValueError("no")

    async def main() -> str:
        deadline = time.monotonic() + 10
        while not unraisable and time.monotonic() < deadline:
            time.sleep(0.1)
        return "went on"

    runtime.on_stall(fails, after=0.05)
    try:
        assert gofer.run(main, procs=procs) == "went on"
    finally:
        runtime.on_stall(None)
    assert unraisable == ["no"]


def test_may_be_switched_while_a_run_is_on(procs: int) -> None:
    found: list[runtime.Stall] = []

    async def main() -> None:
        runtime.on_stall(found.append, after=0.05)
        deadline = time.monotonic() + 10
        while not found and time.monotonic() < deadline:
            time.sleep(0.1)
        runtime.on_stall(None)
        await until(lambda: len(found) == 1)

    gofer.run(main, procs=procs)
    assert len(found) == 1


def test_misuse() -> None:
    with pytest.raises(ValueError, match="at least"):
        runtime.on_stall(print, after=0)
    with pytest.raises(TypeError, match="needs a function or None, not 5"):
        runtime.on_stall(5)  # type: ignore[arg-type]
