"""A blocking call beside tickers: what asyncio and gofer make of time.sleep() in the wrong place.

Two tickers tick every 10 ms for a second. In the middle somebody calls time.sleep(0.4), as a
library would that knows nothing of async code. In gofer the P of whoever blocks moves on to another
thread.
"""

import asyncio
import time

import gofer

PERIOD, LONG = 0.01, 0.4


class Ticks:
    """When it ticked."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def tick(self) -> None:
        self.times.append(time.perf_counter())

    def longest(self) -> float:
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False))

    def picture(self) -> str:
        """A character for each 20 ms: a dot if it ticked."""
        first = self.times[0]
        slots = {int((t - first) / 0.02) for t in self.times}
        return "".join("." if i in slots else "X" for i in range(50))


async def with_asyncio(ticks: list[Ticks]) -> None:
    async def ticker(mine: Ticks) -> None:
        for _ in range(100):
            await asyncio.sleep(PERIOD)
            mine.tick()

    async def blocker() -> None:
        await asyncio.sleep(0.3)
        time.sleep(LONG)

    await asyncio.gather(blocker(), *map(ticker, ticks))


async def with_gofer(ticks: list[Ticks]) -> None:
    async def ticker(mine: Ticks) -> None:
        for _ in range(100):
            await gofer.sleep(PERIOD)
            mine.tick()

    async def blocker() -> None:
        await gofer.sleep(0.3)
        time.sleep(LONG)

    async with gofer.Group() as group:
        group.go(blocker)
        for mine in ticks:
            group.go(ticker, mine)


def report(name: str, ticks: list[Ticks]) -> None:
    for mine in ticks:
        print(f"{name:8} {mine.picture()}  longest gap {mine.longest() * 1000:4.0f} ms")


if __name__ == "__main__":
    print(f"two tickers, and one time.sleep({LONG}) beside them; X: 20 ms without a tick")
    stalled, fine = [Ticks(), Ticks()], [Ticks(), Ticks()]
    asyncio.run(with_asyncio(stalled))
    report("asyncio", stalled)
    fine = [Ticks(), Ticks()]
    gofer.run(with_gofer, fine, procs=1)
    report("gofer", fine)
