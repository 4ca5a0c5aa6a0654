"""gofer demo, as users run it: in a pipe, and in a terminal."""

import os
import pty
import re
import subprocess
import sys

import pytest

from tests.support import FREE_THREADED, SANITIZED, TINY, busy, run_program

pytestmark = pytest.mark.skipif(
    SANITIZED or TINY,
    reason="it shows speeds and times, which sanitizers and rings of 4 slots distort",
)

COMMAND = [sys.executable, "-m", "gofer._demo", "--quick"]


@pytest.fixture(scope="module")
def plain() -> str:
    """What it prints when nobody watches."""
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=110, check=True)
    assert done.stderr == ""
    return done.stdout


def test_shows_all_scenes_in_order(plain: str) -> None:
    numbers = re.findall(r"^(\d)\. ", plain, re.MULTILINE)
    assert numbers == [str(i) for i in range(1, 10)]


def test_is_plain_text_outside_a_terminal(plain: str) -> None:
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 120


def test_is_honest_about_the_gil(plain: str) -> None:
    assert f"GIL {'off' if FREE_THREADED else 'on'}" in plain
    assert ("With the GIL one P runs at a time" in plain) is not FREE_THREADED
    assert ("all that the GIL allows" in plain) is not FREE_THREADED


def test_what_it_claims_is_so(plain: str) -> None:
    """Every P of scene 2 has had its share, asyncio has stalled and gofer has not, and so on."""
    shares = re.findall(r"slices: (.*);", plain)[1]
    assert all(int(n) > 0 for n in re.findall(r"P\d+ (\d+)", shares))
    gaps = re.findall(r"(\w+) +[.X]+ longest gap (\d+)", plain)
    assert [name for name, _ in gaps] == ["asyncio", "gofer", "gofer"]
    assert int(gaps[0][1]) >= 390
    if not busy():
        assert max(int(ms) for _, ms in gaps[1:]) < 390
    assert "20,000 goroutines started" in plain
    assert re.search(r"shutdown: \d+ completed, \d+ cancelled or never begun", plain)
    assert "GoroutineLeakWarning: goroutine 2 (forgotten) leaked" in plain
    assert "Deadlock: all goroutines are asleep" in plain
    assert plain.splitlines()[-1].startswith("Next: ")


def test_draws_in_place_in_a_terminal() -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        COMMAND, stdin=child, stdout=child, stderr=child, env=os.environ | {"TERM": "xterm"}
    )
    os.close(child)
    shown = b""
    try:
        while data := os.read(parent, 65536):
            shown += data
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(parent)
    text = shown.decode()
    assert process.wait(110) == 0, text
    assert re.search(r"\x1b\[2A\r\x1b\[J", text)  # two lines, drawn again
    assert "\x1b[1m1. 26 goroutines" in text
    assert text.rstrip().splitlines()[-1].startswith("Next: ")


def test_ctrl_c_ends_it() -> None:
    process = subprocess.Popen(
        [*COMMAND[:-1]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("   P0"):
        assert process.poll() is None
    process.send_signal(2)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "stopped" in out


def test_a_reader_that_has_seen_enough() -> None:
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("gofer ")
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), err) == (1, "")


def test_help() -> None:
    end = run_program("from gofer import _demo; _demo.main(['--help'])")
    assert end.returncode == 0
    assert "guided tour" in end.stdout
