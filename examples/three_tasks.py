"""Three tasks on two Ps: which one runs where, slice by slice.

A letter is one slice of a task. Each column is a P, time runs downwards. With the GIL the Ps take
turns; on a free-threaded Python both really run at once.
"""

import sys

import gofer
from gofer._core import proc_id

SLICES = 40


def work(n: int) -> int:
    """A slice: a little arithmetic."""
    total = 0
    for i in range(n):
        total += i
    return total


async def task(letter: str, log: list[tuple[int, str]]) -> None:
    for _ in range(SLICES):
        work(20_000)
        log.append((proc_id(), letter))
        await gofer.gosched()  # let the others have a turn


async def main() -> list[tuple[int, str]]:
    log: list[tuple[int, str]] = []
    for g in [gofer.go(task, letter, log) for letter in "ABC"]:
        await g
    return log


def show(log: list[tuple[int, str]]) -> None:
    """Eight slices a line."""
    print("   P0         P1")
    for start in range(0, len(log), 8):
        line = log[start : start + 8]
        columns = ("".join(c for p, c in line if p == where) for where in (0, 1))
        print("   " + "   ".join(f"{column:<8}" for column in columns).rstrip())


if __name__ == "__main__":
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"three tasks of {SLICES} slices on 2 Ps, GIL {'on' if gil else 'off'}:")
    log = gofer.run(main, procs=2)
    show(log)
    for p in (0, 1):
        ran = [c for where, c in log if where == p]
        print(f"P{p} ran {len(ran)} slices: " + ", ".join(f"{c} {ran.count(c)}" for c in "ABC"))
