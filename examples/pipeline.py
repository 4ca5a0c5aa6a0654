"""A pipeline that is cancelled: generate -> square (four of them) -> merge, until somebody has had
enough.

Every stage runs in one context. When that is cancelled, each goroutine stops where it waits, its
`finally` runs, and none is left: no stage needs to know of any other's end.
"""

import time

import gofer
from gofer import context


async def generate(out: gofer.Chan[int], ended: list[str]) -> None:
    try:
        n = 0
        while True:
            await out.send(n)
            n += 1
    finally:
        ended.append("generate")


async def square(i: int, numbers: gofer.Chan[int], out: gofer.Chan[int], ended: list[str]) -> None:
    try:
        async for n in numbers:
            await gofer.sleep(0.002)  # the slow stage: so there are four
            await out.send(n * n)
    finally:
        ended.append(f"square {i}")


async def main() -> None:
    numbers: gofer.Chan[int] = gofer.Chan(10)
    squares: gofer.Chan[int] = gofer.Chan(10)
    ended: list[str] = []
    ctx = context.with_cancel()
    started = time.perf_counter()
    async with ctx:
        gofer.go(generate, numbers, ended)
        for i in range(4):
            gofer.go(square, i, numbers, squares, ended)
        print(f"{gofer.num_goroutine()} goroutines: main, the source, and four that square")
        taken: list[int] = []
        async for n in squares:
            taken.append(n)
            if len(taken) == 200:
                ctx.cancel("200 are enough")
    seconds = time.perf_counter() - started
    while gofer.num_goroutine() > 1:
        await gofer.sleep(0.001)
    print(f"took {len(taken)} squares in {seconds:.2f} s; the largest is {max(taken):,}")
    print(f"   (one goroutine alone would have needed {200 * 0.002:.1f} s)")
    print(f"cancelled: {ctx.cause()}; ended: {', '.join(sorted(ended))}")
    print(f"goroutines left: {gofer.num_goroutine()}, which is main")


if __name__ == "__main__":
    gofer.run(main)
