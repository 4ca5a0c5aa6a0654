"""Worker processes that are spawned, not forked, may be started inside a run."""

import multiprocessing

import gofer


def square(n: int) -> int:
    return n * n


async def main() -> list[int]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(square, range(4))


if __name__ == "__main__":
    print(gofer.run(main, procs=2))
