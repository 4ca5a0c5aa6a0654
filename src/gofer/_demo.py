"""Goroutines moving over Ps, in your terminal, in about ten seconds.

Every letter is a slice of one goroutine, printed in the column of the P that ran it. Watch work
that starts on one P spread over the others, and gomaxprocs change under load.
"""

import collections
import contextlib
import shutil
import sys
import time

import gofer
from gofer._core import proc_id

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Board:
    """What ran where, a line for every few milliseconds."""

    def __init__(self, procs: int) -> None:
        self.procs = procs
        self.slices: list[list[str]] = [[] for _ in range(procs)]
        self.total: collections.Counter[int] = collections.Counter()
        self.moves = 0
        self.width = max(8, (shutil.get_terminal_size().columns - 12) // procs - 3)

    def mark(self, letter: str, before: int) -> int:
        """Note that `letter` runs now, and return where."""
        here = max(proc_id(), 0) % self.procs
        self.slices[here].append(letter)
        self.total[here] += 1
        self.moves += before not in (here, -1)
        return here

    def line(self, started: float) -> str:
        """The slices since the last line, a column for each P."""
        columns = []
        for p, letters in enumerate(self.slices):
            shown = "".join(letters)[: self.width]
            self.slices[p] = []
            columns.append(f"{shown:<{self.width}}")
        return f"{time.monotonic() - started:6.2f} s | " + " | ".join(columns)


def burn(n: int) -> int:
    """A little work, so that a slice takes a while."""
    total = 0
    for i in range(n):
        total += i * i % 7
    return total


async def worker(letter: str, rounds: int, board: Board) -> None:
    """Work in many short slices, and note where each one ran."""
    where = -1
    for _ in range(rounds):
        where = board.mark(letter, where)
        burn(4000)
        await gofer.gosched()


async def show(board: Board, seconds: float) -> None:
    """Print the board while the others work."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        await gofer.sleep(0.15)
        print(board.line(started), flush=True)


def head(text: str) -> None:
    """A title of a scene."""
    print(f"\n== {text}")


async def scene(procs: int, seconds: float) -> None:
    """All workers are started on one P; the others come and take their share."""
    gofer.gomaxprocs(procs)
    board = Board(procs)
    workers = [gofer.go(worker, c, 10**9, board, name=c) for c in LETTERS]
    await show(board, seconds)
    for g in workers:
        g.cancel()
    for g in workers:
        with contextlib.suppress(gofer.Cancelled):
            await g
    shares = ", ".join(f"P{p} {board.total[p]}" for p in range(procs))
    print(f"         slices: {shares}; goroutines changed P {board.moves} times")


async def deadlock() -> None:
    """Two goroutines that wait for each other."""
    main = gofer.current()

    async def other() -> None:
        await main

    await gofer.go(other, name="other")


async def scenes() -> None:
    """One after the other."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    head(f"26 goroutines on 1 P (Python {sys.version.split()[0]}, GIL {'on' if gil else 'off'})")
    await scene(1, 1.5)
    head("the same on 2 Ps: work that was started on one is stolen by the other")
    await scene(2, 2.5)
    head("and on 4 Ps, whatever number of cores there is")
    await scene(4, 2.0)

    head("100,000 goroutines that sleep at random, and are all joined")
    started = time.monotonic()
    sleepers = [gofer.go(gofer_sleep, i % 1000 / 1000) for i in range(100_000)]
    for g in sleepers:
        await g
    print(f"         all done in {time.monotonic() - started:.2f} s; the longest slept 1.00 s")


async def gofer_sleep(seconds: float) -> None:
    """Sleep."""
    await gofer.sleep(seconds)


def main() -> None:
    """All of it."""
    gofer.run(scenes)
    head("a deadlock is found the moment it happens")
    try:
        gofer.run(deadlock)
    except gofer.Deadlock as exc:
        print(exc)
    print("\nNext: read README.md, then change a line of this file and run it again.")


if __name__ == "__main__":
    main()
