"""One million goroutines: start them, let them all wait for one channel, wake them, add up what
they return.
"""

import gc
import time

import gofer

N = 1_000_000


def resident() -> int:
    """Memory in use by this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def wait(start: gofer.RecvChan[None], i: int) -> int:
    await start.recv_ok()
    return i


async def main() -> None:
    gc.disable()  # or the collector would look at all of them again and again while they are made
    start: gofer.Chan[None] = gofer.Chan()
    receiver = start.receiver
    before, started = resident(), time.perf_counter()
    goroutines = [gofer.go(wait, receiver, i) for i in range(N)]
    while goroutines[-1].state != "waiting":
        await gofer.sleep(0.01)
    seconds = time.perf_counter() - started
    print(f"{gofer.num_goroutine():,} goroutines after {seconds:.2f} s,")
    print(f"   {(resident() - before) / N:.0f} bytes each, handle and list included")

    started = time.perf_counter()
    start.close()
    total = 0
    for g in goroutines:
        total += await g
    print(f"all woken and joined in {time.perf_counter() - started:.2f} s; their sum is {total:,}")
    assert total == N * (N - 1) // 2


if __name__ == "__main__":
    gofer.run(main)
