"""A loop that never awaits, beside a goroutine that wants to run every 10 ms, on a single P.

Nothing in the loop calls the scheduler. It is stopped after its slice of 10 ms, at a bytecode
boundary, and goes on later. Where that cannot be done, in C code for example, its P is handed to
another thread and the kernel shares the CPU among the two.
"""

import sys
import time

import gofer


def busy(seconds: float) -> int:
    """A CPU loop, as everybody writes one."""
    end = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < end:
        rounds += 1
    return rounds


async def loop(name: str, seconds: float, ended: list[str]) -> None:
    busy(seconds)
    ended.append(name)


async def ticker(gaps: list[float]) -> None:
    last = time.perf_counter()
    while True:
        await gofer.sleep(0.01)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now


async def main() -> None:
    gaps: list[float] = []
    ended: list[str] = []
    ticks = gofer.go(ticker, gaps)
    loops = [gofer.go(loop, name, 1.0, ended) for name in ("first", "second")]
    for g in loops:
        await g
    ticks.cancel()
    print(f"while two loops of a second each were busy, the ticker ran {len(gaps)} times;")
    print(f"   every {1000 * sum(gaps) / len(gaps):.0f} ms on average, at worst after")
    print(f"   {1000 * max(gaps):.0f} ms. An event loop would have run it 0 times.")
    print(f"the loops ended in this order: {', '.join(ended)}")


if __name__ == "__main__":
    print(f"Python {sys.version.split()[0]}, 1 P: two loops that do not yield, and a ticker")
    gofer.run(main, procs=1)
