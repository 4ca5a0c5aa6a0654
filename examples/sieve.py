"""The prime sieve: a chain of goroutines, one for each prime, that lets through what it cannot
divide.

Known from the earliest talks about Go. It is no way to compute primes, but a fine test of a
scheduler: at the end there are a hundred goroutines, and every number is handed through many of
them.
"""

import time

import gofer


async def generate(out: gofer.Chan[int]) -> None:
    n = 2
    while True:
        await out.send(n)
        n += 1


async def sift(numbers: gofer.Chan[int], out: gofer.Chan[int], prime: int) -> None:
    async for n in numbers:
        if n % prime:
            await out.send(n)


async def main(count: int = 100) -> None:
    started = time.perf_counter()
    ch: gofer.Chan[int] = gofer.Chan()
    gofer.go(generate, ch)
    primes = []
    for _ in range(count):
        prime = await ch.recv()
        primes.append(prime)
        rest: gofer.Chan[int] = gofer.Chan()
        gofer.go(sift, ch, rest, prime)
        ch = rest
    seconds = time.perf_counter() - started
    for i in range(0, count, 20):
        print(" ".join(f"{p:3}" for p in primes[i : i + 20]))
    print(f"the first {count} primes, sifted by {gofer.num_goroutine() - 2} goroutines")
    print(f"in {seconds * 1000:.0f} ms; run() ends them all, since main has ended")


if __name__ == "__main__":
    gofer.run(main)
