"""Every example runs, is short, and what it claims on the screen is so."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import FREE_THREADED, SANITIZED, TINY, busy

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))

slowed_down = pytest.mark.skipif(
    SANITIZED or TINY,
    reason="it shows speeds and times, which sanitizers and rings of 4 slots distort",
)


def run(name: str) -> str:
    """What it prints. On stderr it must print nothing."""
    environ = {k: v for k, v in os.environ.items() if k not in ("GOMAXPROCS", "GOFERDEBUG")}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    if not SANITIZED and not TINY:
        assert time.monotonic() - started < (60 if busy() else 10)
    return done.stdout


def numbers(text: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def line(out: str, pattern: str) -> str:
    """The line that has it."""
    found = [text for text in out.splitlines() if re.search(pattern, text)]
    assert found, out
    return found[0]


@pytest.mark.parametrize("name", NAMES)
def test_is_short_and_says_what_it_shows(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert len(text.splitlines()) < 80
    assert text.startswith('"""')
    assert 'if __name__ == "__main__":' in text
    assert max(map(len, text.splitlines())) <= 120


def test_all_are_listed_in_the_table_and_tested_here() -> None:
    table = (EXAMPLES / "README.md").read_text()
    tests = Path(__file__).read_text()
    for name in NAMES:
        assert f"[{name}]({name})" in table
        assert f'run("{name}")' in tests
    assert set(re.findall(r"\]\(([\w/]+\.py)\)", table)) >= set(NAMES)
    for target in re.findall(r"\]\(([^)#]+)\)", table):
        assert (EXAMPLES / target).exists(), target


def test_hello() -> None:
    out = run("hello.py")
    assert out.index("from Al") < out.index("from Emil") < out.index("from Zacharias")
    assert "they returned [4, 2, 9]" in out
    assert "now 1 is alive" in out


def test_three_tasks() -> None:
    out = run("three_tasks.py")
    assert f"GIL {'off' if FREE_THREADED else 'on'}" in out
    ran = {p: numbers(line(out, f"^P{p} ran")) for p in (0, 1)}
    for i in (2, 3, 4):  # A, B, C: each has had all of its slices
        assert ran[0][i] + ran[1][i] == 40
    picture = "".join(text for text in out.splitlines() if re.fullmatch(r"[ ABC]+", text))
    assert [picture.count(c) for c in "ABC"] == [40, 40, 40]


def test_pingpong() -> None:
    out = run("pingpong.py")
    assert "pong: it comes back as 3" in out
    assert "after 200,000 more rounds it is at 200,003" in out
    assert 50 < numbers(line(out, "ns a round trip"))[-1] < 100_000


def test_sieve() -> None:
    out = run("sieve.py")
    primes = [n for n in range(2, 542) if all(n % d for d in range(2, n))]
    assert [int(n) for text in out.splitlines()[:5] for n in text.split()] == primes
    assert "sifted by 100 goroutines" in out


@slowed_down
def test_stealing() -> None:
    out = run("stealing.py")
    before, _, after = out.partition("after:")
    assert [numbers(line(before, f"P{p}:"))[1:3] for p in (0, 1)] == [[24, 90], [24, 9]]
    shares = [numbers(line(after, f"P{p}:")) for p in (0, 1)]
    assert shares[0][1] + shares[1][1] == 48
    assert min(shares[0][2], shares[1][2]) > 15  # nobody is idle: it was 9


@slowed_down
def test_service() -> None:
    out = run("service.py")
    computed = numbers(line(out, "requests:"))
    assert computed[0] == computed[1] + computed[2] == 160
    assert computed[1] > 0
    assert numbers(line(out, "pings meanwhile"))[0] == 100
    assert numbers(line(out, "pings meanwhile"))[1] < 200  # ms
    procs = int(numbers(line(out, "40 clients"))[1])
    for text in re.findall(r"CPU-bound (\d+) \+", line(out, "^compute: ")):
        assert int(text) <= procs


@slowed_down
def test_blocking() -> None:
    out = run("blocking.py")
    gaps = {
        name: max(numbers(text)[-1] for text in out.splitlines() if text.startswith(name))
        for name in ("asyncio", "gofer")
    }
    assert gaps["asyncio"] > 390
    assert busy() or gaps["gofer"] < 300


@slowed_down
def test_preemption() -> None:
    out = run("preemption.py")
    assert numbers(line(out, "the ticker ran"))[-1] > 5
    order = line(out, "ended in this order")
    assert "first" in order
    assert "second" in order


@slowed_down
def test_gomaxprocs() -> None:
    times = 0.0
    for _ in range(4):  # others may be at work on this machine, too
        out = run("gomaxprocs.py")
        assert len(re.findall("9237 primes", out)) == 2
        times = max(times, numbers(line(out, "times as fast"))[1])
        if times > 1.3 or not FREE_THREADED:
            break
    cpus = len(os.sched_getaffinity(0))
    if not FREE_THREADED:
        assert "python3.14t has none" in out
    elif cpus > 1 and not busy():
        assert times > 1.3


def test_container() -> None:
    out = run("container.py")
    cpus = len(os.sched_getaffinity(0))
    assert numbers(line(out, "no limit"))[-1] == cpus
    assert numbers(line(out, r"0\.5 CPUs"))[-1] == min(2, cpus)
    assert numbers(line(out, r"2\.5 CPUs"))[-1] == min(3, cpus)
    assert numbers(line(out, "pinned"))[-1] == 1
    assert numbers(line(out, "GOMAXPROCS=5"))[-1] == 5
    assert numbers(line(out, "procs=3"))[-1] == 3
    assert re.search(r"\[\d+, 4, 1, 2\]", out)


@slowed_down
def test_thread_affinity() -> None:
    out = run("thread_affinity.py")
    without, _, locked = out.partition("with lock_os_thread():")
    steps, threads, refused = numbers(line(without, "steps on"))
    assert steps == 30
    assert (refused > 0) == (threads > 1)
    assert "30 steps on 1 thread(s), 0 refused" in locked


@slowed_down
def test_leak() -> None:
    pytest.importorskip("gofer.runtime")
    out = run("leak.py")
    alive = [numbers(text)[0] for text in out.splitlines() if "goroutines=" in text]
    assert [n > 200 * (i + 1) for i, n in enumerate(alive[:3])] == [True] * 3  # each request leaks
    assert max(alive[3:]) < alive[2] + 100  # the cured one does not
    assert "600 goroutines wait for what nobody can do any more" in out
    found = re.findall(r"(\d+) x backend, created at leak\.py:\d+, in chan send", out)
    assert sum(map(int, found)) == 600
    assert "await answers.send" in out.partition("the dump")[2]


@slowed_down
def test_million() -> None:
    out = run("million.py")
    assert numbers(line(out, "goroutines after"))[0] == 1_000_001
    assert numbers(line(out, "bytes each"))[0] < 600
    assert "sum is 499,999,500,000" in out


def test_crawler() -> None:
    out = run("crawler.py")
    pages, _, workers = numbers(line(out, "pages in"))
    assert (pages, workers) == (200, 8)
    assert 1 < numbers(line(out, "at most"))[0] <= 8


def test_chat() -> None:
    out = run("chat.py")
    said = ["ann: hello?", "ann: who is there?", "ann: bye"]
    assert [text.strip() for text in out.splitlines() if "ann: " in text] == said
    assert "* bob is here (2)" in out
    assert "cy: me too" in out


def test_pipeline() -> None:
    out = run("pipeline.py")
    assert "took 200 squares" in out
    assert "200 are enough; ended: generate, square 0, square 1, square 2, square 3" in out
    assert "goroutines left: 1" in out


def test_graceful() -> None:
    out = run("graceful.py")
    assert "SIGTERM signal received" in out
    assert "cancelled: job 13" in out
    assert "one more job: submit() to a WorkerPool that has been shut down" in out
    accepted, results = numbers(line(out, "were accepted"))
    assert accepted == results > 13
