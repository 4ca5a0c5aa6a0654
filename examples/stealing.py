"""Work stealing: an uneven workload, split by hand and left to the scheduler.

Half of the tasks are ten times as heavy as the others. Before: each P gets its half of the list,
and the one with the light half is soon idle. After: each task is a goroutine, all started on one P.
The other P comes and steals until both have the same to do.
"""

import sys
import time
from collections import Counter

import gofer
from gofer._core import proc_id

WEIGHTS = [20] * 24 + [2] * 24


def burn(weight: int) -> None:
    total = 0
    for _ in range(weight):
        for i in range(40_000):
            total += i


async def one(weight: int, done: Counter[int], tasks: Counter[int]) -> None:
    await gofer.gosched()
    burn(weight)
    done[proc_id()] += weight
    tasks[proc_id()] += 1


async def share(weights: list[int], done: Counter[int], tasks: Counter[int], who: int) -> None:
    """A fixed share, done by one goroutine from its beginning to its end."""
    for weight in weights:
        burn(weight)
        done[who] += weight
        tasks[who] += 1


async def split_by_hand(done: Counter[int], tasks: Counter[int]) -> None:
    half = len(WEIGHTS) // 2
    shares = (WEIGHTS[:half], WEIGHTS[half:])
    for g in [gofer.go(share, s, done, tasks, i) for i, s in enumerate(shares)]:
        await g


async def left_to_the_scheduler(done: Counter[int], tasks: Counter[int]) -> None:
    for g in [gofer.go(one, weight, done, tasks) for weight in WEIGHTS]:
        await g


async def main() -> None:
    for how in (split_by_hand, left_to_the_scheduler):
        done: Counter[int] = Counter()
        tasks: Counter[int] = Counter()
        started = time.perf_counter()
        await how(done, tasks)
        seconds = time.perf_counter() - started
        print(f"{'before' if how is split_by_hand else 'after'}: {how.__name__.replace('_', ' ')}")
        for p in range(gofer.gomaxprocs()):
            bar = "#" * (done[p] * 50 // sum(WEIGHTS))
            print(f"   P{p}: {tasks[p]:3} tasks, {100 * done[p] // sum(WEIGHTS):3}% of work {bar}")
        print(f"   {seconds:.2f} s")


if __name__ == "__main__":
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        print("with the GIL one P runs at a time: the shares change, the seconds cannot")
    gofer.run(main, procs=2)
