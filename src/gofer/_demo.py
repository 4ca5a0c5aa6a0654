"""gofer demo: a guided tour through the scheduler, in your terminal, in less than two minutes.

Live pictures in a terminal, plain text elsewhere. Each scene is a program that anybody could write.
"""

import argparse
import collections
import contextlib
import gc
import os
import shutil
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TextIO

import gofer
from gofer._core import proc_id

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Screen:
    """Where it is shown: text, and a picture that changes in place if the terminal can do that."""

    def __init__(self, stream: TextIO, live: bool, pause: float) -> None:
        self.stream = stream
        self.live = live
        self.pause = pause
        self.columns = min(shutil.get_terminal_size((100, 24)).columns, 110)
        self.shown = 0  # lines of the picture

    def say(self, text: str = "") -> None:
        self.stream.write(text + "\n")
        self.stream.flush()

    def scene(self, number: int, title: str, text: str) -> None:
        """A heading, and time to read it."""
        head = f"{number}. {title}"
        self.say()
        self.say(f"\x1b[1m{head}\x1b[0m" if self.live else head)
        self.say(f"   {text}")
        time.sleep(self.pause)

    def picture(self, lines: list[str]) -> None:
        """Over the last one, in a terminal."""
        lines = [line[: self.columns] for line in lines]
        if self.live and self.shown:
            self.stream.write(f"\x1b[{self.shown}A\r\x1b[J")
        self.say("\n".join(lines))
        self.shown = len(lines) if self.live else 0

    @contextlib.contextmanager
    def pictures(self) -> Iterator[float]:
        """How often there should be one: a terminal can take many."""
        self.shown = 0
        yield 0.1 if self.live else 0.5
        self.shown = 0


class Board:
    """Which goroutine ran on which P: a letter for each slice."""

    def __init__(self, procs: int) -> None:
        self.rows: list[collections.deque[str]] = [collections.deque() for _ in range(procs)]
        self.slices = [0] * procs
        self.moves = 0

    def mark(self, letter: str, before: int) -> int:
        """That `letter` runs now; where."""
        here = max(proc_id(), 0) % len(self.rows)
        self.rows[here].append(letter)
        self.slices[here] += 1
        self.moves += before not in (here, -1)
        return here

    def lines(self, width: int) -> list[str]:
        """A row for each P: what ran there last."""
        found = []
        queues = _queues()
        for p, row in enumerate(self.rows):
            while len(row) > width:
                row.popleft()
            waiting = f" +{queues[p]:<3}" if p < len(queues) else ""
            found.append(f"   P{p}{waiting} {''.join(list(row))}")
        return found


def _queues() -> list[int]:
    """How many goroutines wait in the queue of each P."""
    from gofer import runtime

    return [p.queue + p.runnext for p in runtime.stats().procs]


def _burn(n: int) -> int:
    total = 0
    for i in range(n):
        total += i & 7
    return total


async def _letter(letter: str, board: Board) -> None:
    where = -1
    while True:
        where = board.mark(letter, where)
        _burn(20_000)
        await gofer.gosched()


async def _end(goroutines: list[gofer.Goroutine[Any]]) -> None:
    for g in goroutines:
        g.cancel()
    for g in goroutines:
        with contextlib.suppress(gofer.Cancelled):
            await g


async def goroutines_on(screen: Screen, procs: int, seconds: float) -> None:
    """26 goroutines, all started on one P."""
    gofer.gomaxprocs(procs)
    board = Board(procs)
    workers: list[gofer.Goroutine[Any]] = [
        gofer.go(_letter, c, board, name=f"letter {c}") for c in LETTERS
    ]
    end = time.monotonic() + seconds
    with screen.pictures() as every:
        while time.monotonic() < end:
            await gofer.sleep(every)
            screen.picture(board.lines(screen.columns - 12))
    await _end(workers)
    shares = ", ".join(f"P{p} {n}" for p, n in enumerate(board.slices))
    screen.say(f"   slices: {shares}; goroutines changed their P {board.moves} times")


class _Ticks:
    """A ticker every 10 ms for a second, as a row of dots: an X is 20 ms without a tick."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    async def run(self, sleep: Callable[[float], Awaitable[Any]]) -> None:
        self.times = [time.perf_counter()]
        while self.times[-1] - self.times[0] < 1:
            await sleep(0.01)
            self.times.append(time.perf_counter())

    def row(self, name: str) -> str:
        slots = {int((t - self.times[0]) / 0.02) for t in self.times}
        dots = "".join("." if i in slots else "X" for i in range(50))
        gap = max(b - a for a, b in zip(self.times, self.times[1:], strict=False))
        return f"   {name:8} {dots} longest gap {gap * 1000:.0f} ms"


def blocking_in_asyncio(screen: Screen) -> None:
    """time.sleep() beside a ticker."""
    import asyncio

    ticks = _Ticks()

    async def block() -> None:
        await asyncio.sleep(0.3)
        time.sleep(0.4)

    async def main() -> None:
        await asyncio.gather(block(), ticks.run(asyncio.sleep))

    asyncio.run(main())
    screen.say(ticks.row("asyncio"))


async def blocking(screen: Screen) -> None:
    """The same, on one P."""
    ticks = _Ticks()

    async def block() -> None:
        await gofer.sleep(0.3)
        time.sleep(0.4)

    async with gofer.Group() as group:
        group.go(block)
        group.go(ticks.run, gofer.sleep)
    screen.say(ticks.row("gofer"))


async def hogs(screen: Screen) -> None:
    """Two loops that never await, beside a ticker, on one P."""
    ticks = _Ticks()

    async def loop() -> None:
        end = time.perf_counter() + 1.0
        while time.perf_counter() < end:
            pass

    async with gofer.Group() as group:
        group.go(loop)
        group.go(loop)
        group.go(ticks.run, gofer.sleep)
    screen.say(ticks.row("gofer"))


def _primes(low: int, high: int) -> int:
    found = 0
    for n in range(low, high):
        d = 2
        while d * d <= n and n % d:
            d += 1
        found += d * d > n
    return found


async def all_cores() -> float:
    """Seconds for 16 CPU-bound goroutines."""

    async def count(i: int) -> int:
        return _primes(1_000_000 + i * 3000, 1_003_000 + i * 3000)

    started = time.perf_counter()
    for g in [gofer.go(count, i) for i in range(16)]:
        await g
    return time.perf_counter() - started


async def many(screen: Screen, n: int) -> None:
    """Goroutines that sleep, all at once."""

    async def nap(i: int) -> int:
        await gofer.sleep(i % 1000 / 1000)
        return i

    gc.collect()
    gc.disable()
    started = time.perf_counter()
    try:
        sleepers = [gofer.go(nap, i) for i in range(n)]
        born = time.perf_counter() - started
        total = 0
        for g in sleepers:
            total += await g
    finally:
        gc.enable()
    screen.say(f"   {n:,} goroutines started in {born:.2f} s, each slept up to a second,")
    screen.say(f"   and all {n:,} were joined after {time.perf_counter() - started:.2f} s")


async def channels(screen: Screen, rounds: int) -> None:
    """A ball over two unbuffered channels."""
    ping: gofer.Chan[int] = gofer.Chan()
    pong: gofer.Chan[int] = gofer.Chan()

    async def player() -> None:
        async for ball in ping:
            await pong.send(ball + 1)

    gofer.go(player)
    ball, started = 0, time.perf_counter()
    for _ in range(rounds):
        await ping.send(ball)
        ball = await pong.recv()
    ns = (time.perf_counter() - started) / rounds * 1e9
    ping.close()
    screen.say(f"   {ball:,} round trips, {ns:,.0f} ns each: 4 channel operations, 2 switches")


async def pool(screen: Screen, seconds: float) -> None:
    """A WorkerPool with CPU-bound and other jobs, and its numbers."""

    async def handle(job: str) -> None:
        if job == "cpu":
            _burn(200_000)
        else:
            await gofer.sleep(0.02)

    async def submit(workers: gofer.WorkerPool[str, None]) -> None:
        while True:
            for job in ("cpu", "io", "io", "io"):
                await workers.submit(job)

    async with gofer.WorkerPool(
        16, handle, queue=32, cpu_bound=lambda job: job == "cpu"
    ) as workers:
        feeder = gofer.go(submit, workers)
        end = time.monotonic() + seconds
        with screen.pictures() as every:
            while time.monotonic() < end:
                await gofer.sleep(every)
                s = workers.stats
                bar = "#" * s.cpu_running + "=" * (s.running - s.cpu_running)
                screen.picture(
                    [
                        f"   [{bar:<16}] # computes, = waits for I/O",
                        f"   {s.queued} queued, {s.completed} completed",
                    ]
                )
        await _end([feeder])
        report = await workers.shutdown(timeout=0.05)
    screen.say(
        f"   shutdown: {report.completed} completed, {len(report.unfinished)} cancelled or never "
        f"begun and named in the report: nothing is lost"
    )


async def leak(screen: Screen) -> None:
    """A goroutine that nothing can wake any more."""

    async def forgotten() -> None:
        await gofer.Chan[int]().recv()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gofer.go(forgotten, name="forgotten")
        for _ in range(100):
            await gofer.sleep(0.001)
            gc.collect()
            if caught:
                break
    for warning in caught:
        text = str(warning.message).partition("; created")[0]
        screen.say(f"   {warning.category.__name__}: {text}")


async def deadlock() -> None:
    """Two goroutines that wait for each other."""
    main = gofer.current()

    async def other() -> None:
        await main

    await gofer.go(other, name="other")


def _deadlock(screen: Screen) -> None:
    try:
        gofer.run(deadlock)
    except gofer.Deadlock as exc:
        lines = str(exc).splitlines()
        heads = [line for line in lines if line.startswith("goroutine ")]
        screen.say(f"   Deadlock: {lines[0]}")
        for head in heads:
            screen.say(f"   {head}")


def _gil() -> bool:
    enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return enabled()


def tour(screen: Screen, quick: bool) -> None:
    """All scenes, one after the other."""
    part = 0.4 if quick else 1.0
    gil = _gil()
    procs = max(2, min(gofer.num_cpu(), 8))
    screen.say(
        f"gofer {gofer.__version__}: Go's scheduler for Python. Python {sys.version.split()[0]}, "
        f"GIL {'on' if gil else 'off'}, {gofer.num_cpu()} CPUs"
    )
    if gil:
        screen.say("With the GIL one P runs at a time, and the default is 1 P: the first scenes")
        screen.say(
            "show how goroutines are scheduled, not a gain in speed. Python 3.14t has no GIL."
        )
    screen.scene(
        1, "26 goroutines on 1 P", "Each letter is a slice of one goroutine; they take turns."
    )
    gofer.run(goroutines_on, screen, 1, 2 * part)
    screen.scene(
        2,
        f"The same on {procs} Ps",
        "All start on one P. The others find it, and steal half of what it has.",
    )
    gofer.run(goroutines_on, screen, procs, 4 * part)
    screen.scene(
        3,
        "CPU-bound work on all cores",
        "16 goroutines that count primes, with GOMAXPROCS 1 and then more.",
    )
    one, all_ = gofer.run(all_cores, procs=1), gofer.run(all_cores, procs=procs)
    screen.say(f"   1 P: {one:.2f} s, {procs} Ps: {all_:.2f} s, {one / all_:.2f} times as fast")
    if gil:
        screen.say("   (about 1 is all that the GIL allows)")
    screen.scene(
        4,
        "A blocking call",
        "A ticker every 10 ms, and time.sleep(0.4) beside it. X: no tick for 20 ms.",
    )
    blocking_in_asyncio(screen)
    gofer.run(blocking, screen, procs=1)
    screen.scene(
        5,
        "A loop that never awaits",
        "Two of them for a second, beside the same ticker, on 1 P. asyncio would show only X.",
    )
    gofer.run(hogs, screen, procs=1)
    screen.scene(6, "Channels", "A ball goes to and fro between two goroutines.")
    gofer.run(channels, screen, 20_000 if quick else 200_000, procs=1)
    screen.scene(7, "Many goroutines", "Each costs some 400 bytes.")
    gofer.run(many, screen, 20_000 if quick else 200_000)
    screen.scene(
        8,
        "A worker pool",
        "16 workers: CPU-bound jobs hold one of GOMAXPROCS permits, others run freely.",
    )
    gofer.run(pool, screen, 3 * part)
    screen.scene(9, "Nothing is lost", "A goroutine that leaks, and two that wait for each other.")
    gofer.run(leak, screen)
    _deadlock(screen)
    screen.say()
    if gil:
        screen.say("Next: make demo PYTHON=python3.14t, then python examples/service.py")
    else:
        screen.say("Next: python examples/service.py, then README.md and docs/worker-pool.md")


def main(argv: list[str] | None = None) -> int:
    """The command `gofer demo`.

    >>> main(["--quick"])
    0
    """
    parser = argparse.ArgumentParser(
        prog="gofer demo", description="a guided tour, in less than two minutes"
    )
    parser.add_argument("--quick", action="store_true", help="everything for a moment only")
    parser.add_argument("--plain", action="store_true", help="plain text, also in a terminal")
    options = parser.parse_args(argv or [])
    terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    live = terminal and not options.plain
    screen = Screen(sys.stdout, live, pause=0 if options.quick else 2.5 if live else 0.2)
    try:
        tour(screen, options.quick)
    except KeyboardInterrupt:
        screen.say("\nstopped; `gofer demo --quick` is shorter")
        return 130
    except BrokenPipeError:  # gofer demo | head
        sys.stdout = None
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
