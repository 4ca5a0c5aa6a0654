"""GOFERDEBUG=schedtrace: Go's lines, field for field."""

import itertools
import re
from typing import Any

import pytest

import gofer
from tests.support import Finished, run_program

LINE = re.compile(
    r"SCHED (?P<ms>\d+)ms: gomaxprocs=(?P<procs>\d+) idleprocs=(?P<idle>\d+) "
    r"threads=(?P<threads>\d+) spinningthreads=(?P<spinning>\d+) needspinning=(?P<need>[01]) "
    r"idlethreads=(?P<idlethreads>\d+) "
    r"runqueue=(?P<global>\d+)(?: \[(?P<queues>(?: \d+)*) \] schedticks=\[(?P<ticks>(?: \d+)*) \]"
    r"| gcwaiting=(?P<gcwaiting>[01]) nmidlelocked=(?P<locked>\d+) stopwait=(?P<stopwait>\d+) "
    r"sysmonwait=(?P<sysmonwait>[01]))"
)
P_LINE = re.compile(
    r"  P(\d+): status=(\d) schedtick=(\d+) syscalltick=(\d+) m=(\d+|nil) runqsize=(\d+) "
    r"gfreecnt=(\d+) timerslen=(\d+)"
)
M_LINE = re.compile(
    r"  M(\d+): p=(\d+|nil) curg=(\d+|nil) mallocing=0 throwing=0 preemptoff= locks=0 dying=0 "
    r"spinning=(true|false) blocked=(true|false) lockedg=(\d+|nil)"
)
G_LINE = re.compile(
    r"  G(\d+): status=(\d+)\(([^)]*(?:\(no cases\))?)\) m=(\d+|nil) lockedm=(\d+|nil)"
)


def program(source: str, debug: str, *args: str) -> Finished:
    end = run_program(source, *args, env={"GOFERDEBUG": debug})
    assert end.returncode == 0, end
    return end


def lines(end: Finished) -> list[dict[str, Any]]:
    found = []
    for line in end.stderr.splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        values: dict[str, Any] = {
            k: int(v) for k, v in match.groupdict().items() if v and k not in ("queues", "ticks")
        }
        for name in ("queues", "ticks"):
            if match[name] is not None:
                values[name] = [int(n) for n in match[name].split()]
        found.append(values)
    return found


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_lines_under_load(procs: int) -> None:
    end = program(
        """
        import gofer, sys, time

        async def worker(n):
            for i in range(n):
                await gofer.gosched()
                sum(range(50))
            return n

        async def main():
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                for g in [gofer.go(worker, 20) for _ in range(300)]:
                    await g

        gofer.run(main, procs=int(sys.argv[1]))
        """,
        "schedtrace=20",
        str(procs),
    )
    seen = lines(end)
    assert len(seen) >= 5
    assert seen[0]["ms"] == 0
    for line in seen:
        assert line["procs"] == procs
        assert 0 <= line["idle"] <= procs
        assert len(line["queues"]) == len(line["ticks"]) == procs
        assert line["threads"] >= 2
        assert line["idlethreads"] < line["threads"]
    times = [line["ms"] for line in seen]
    assert times == sorted(set(times))
    assert all(b - a >= 19 for a, b in itertools.pairwise(times))
    for a, b in itertools.pairwise(seen):
        assert all(x <= y for x, y in zip(a["ticks"], b["ticks"], strict=True))
    assert sum(seen[-1]["ticks"]) > sum(seen[0]["ticks"])
    assert any(line["global"] or any(line["queues"]) for line in seen)


def test_what_is_queued_on_one_p_is_seen() -> None:
    end = program(
        """
        import gofer, time

        async def nothing():
            pass

        async def main():
            gofer._core.set_sysmon(-1)  # nobody else gets the P
            gs = [gofer.go(nothing) for _ in range(300)]
            end = time.perf_counter() + 0.2
            while time.perf_counter() < end:
                pass
            gofer._core.set_sysmon(0)

        gofer.run(main, procs=1)
        """,
        "schedtrace=20,asyncpreemptoff=1",
    )
    assert any(line["global"] + sum(line["queues"]) in (299, 300) for line in lines(end))


@pytest.mark.parametrize("stuck", ["time.sleep(0.4)", "sum(range(30_000_000))"])
def test_lines_come_when_every_p_is_stuck(stuck: str) -> None:
    end = program(
        f"""
        import gofer, time

        async def main():
            start = time.monotonic()
            while time.monotonic() < start + 0.3:
                {stuck}

        gofer.run(main, procs=1)
        """,
        "schedtrace=20",
    )
    assert len(lines(end)) >= 8


def test_lines_come_while_all_sleep() -> None:
    end = program(
        """
        import gofer

        async def main():
            await gofer.sleep(0.5)

        gofer.run(main, procs=2)
        """,
        "schedtrace=50",
    )
    seen = lines(end)
    assert len(seen) >= 6
    assert any(line["idle"] == 2 for line in seen)


def test_detail_tells_ps_ms_and_gs() -> None:
    end = program(
        """
        import gofer, threading, time

        release = threading.Event()

        async def receives(ch):
            await ch.recv()

        async def locked(ch):
            with gofer.lock_os_thread():
                await ch.recv()

        async def main():
            ch = gofer.Chan()
            gs = [gofer.go(receives, ch) for _ in range(3)]
            gs += [gofer.go(locked, ch), gofer.go(gofer.select)]
            blocks = gofer.go(release.wait)
            while blocks.state != "syscall":
                await gofer.sleep(0.01)
            await gofer.sleep(0.3)
            release.set()

        gofer.run(main, procs=2)
        """,
        "schedtrace=50,scheddetail=1",
    )
    reports = re.split(r"(?m)^(?=SCHED)", end.stderr)[1:]
    assert len(reports) >= 4
    goroutines: dict[str, set[tuple[str, str]]] = {}
    locked = False
    strangers: list[str] = []
    for report in reports:
        head, *rest = report.splitlines()
        match = LINE.fullmatch(head)
        assert match
        assert match["gcwaiting"] == "0"
        ps = [m for line in rest if (m := P_LINE.fullmatch(line))]
        ms = [m for line in rest if (m := M_LINE.fullmatch(line))]
        gs = [m for line in rest if (m := G_LINE.fullmatch(line))]
        assert len(ps) + len(ms) + len(gs) == len(rest), report
        assert [m[1] for m in ps] == ["0", "1"]
        assert all(m[2] in "01234" for m in ps)
        ids = {m[1] for m in ms}
        strangers += [m[5] for m in ps if m[5] not in {*ids, "nil"}]
        assert len({m[1] for m in gs}) == len(gs)
        for m in gs:
            goroutines.setdefault(m[1], set()).add((m[2], m[3]))
            assert m[4] in {*ids, "nil"}
            locked |= m[1] == "5" and m[5] != "nil"
    # Ps are looked at before Ms, and one may have got another M meanwhile.
    assert len(strangers) <= 1
    assert ("4", "chan receive") in goroutines["2"]
    assert ("4", "select (no cases)") in goroutines["6"]
    assert ("4", "sleep") in goroutines["1"]
    assert any(status == "3" for status, _ in goroutines["7"])
    assert locked


# --- GOFERDEBUG itself ----------------------------------------------------------------------------


async def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("shedtrace=1", "shedtrace: there is no such setting"),
        ("schedtrace=often", "schedtrace=often: it takes a whole number of milliseconds"),
        ("scheddetail=2", "scheddetail=2: it takes 0 or 1"),
    ],
)
def test_what_it_does_not_know_it_warns_of_once(
    monkeypatch: pytest.MonkeyPatch, value: str, says: str
) -> None:
    monkeypatch.setattr(gofer._debug, "_warned", set())
    monkeypatch.setenv("GOFERDEBUG", value)
    with pytest.warns(RuntimeWarning, match=re.escape(f"GOFERDEBUG: {says}")) as caught:
        gofer.run(nothing)
    assert len(caught) == 1
    gofer.run(nothing)  # without a second warning, which would be an error
    assert caught[0].filename == __file__


def test_blanks_and_empty_items_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFERDEBUG", " asyncpreemptoff = 1,, scheddetail,")
    assert gofer._debug.options() == {"asyncpreemptoff": 1, "scheddetail": 1}
    gofer.run(nothing)


def test_off_it_writes_nothing() -> None:
    end = program("import gofer\nasync def main(): await gofer.sleep(0.1)\ngofer.run(main)", "")
    assert end.stderr == ""
