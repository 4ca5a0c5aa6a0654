"""GOMAXPROCS 1 against N: the same CPU-bound goroutines on one P and on one for each CPU."""

import sys
import time

import gofer

TASKS = 32


def count_primes(low: int, high: int) -> int:
    """By trial division: slow on purpose."""
    found = 0
    for n in range(low, high):
        d = 2
        while d * d <= n and n % d:
            d += 1
        found += d * d > n
    return found


async def work(i: int) -> int:
    return count_primes(1_000_000 + i * 4000, 1_000_000 + (i + 1) * 4000)


async def main() -> tuple[int, float]:
    started = time.perf_counter()
    found = 0
    for g in [gofer.go(work, i) for i in range(TASKS)]:
        found += await g
    return found, time.perf_counter() - started


if __name__ == "__main__":
    cpus = max(2, gofer.num_cpu())
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, GIL {'on' if gil else 'off'}, {gofer.num_cpu()} CPUs")
    seconds = {}
    for procs in (1, cpus):
        found, seconds[procs] = min(
            (gofer.run(main, procs=procs) for _ in range(2)), key=lambda r: r[1]
        )
        print(f"GOMAXPROCS={procs}: {found} primes in {seconds[procs]:.2f} s")
    print(f"{cpus} Ps are {seconds[1] / seconds[cpus]:.2f} times as fast as 1")
    if gil:
        print("with the GIL one thread computes at a time; python3.14t has none: try that")
