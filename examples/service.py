"""A scheduler-aware service: I/O layer -> bounded CPU layer -> I/O, with its monitor.

Connections are cheap, so there may be hundreds. Computing is not: a WorkerPool lets as many
requests compute as there are Ps, queues some, and refuses the rest at once. "ping" needs no CPU and
is answered in the I/O layer, quickly, however busy the CPU layer is.
"""

import sys
import time

import gofer
from gofer import net

Request = tuple[int, gofer.Chan[bytes]]


def count_primes(n: int) -> int:
    return sum(all(k % d for d in range(2, int(k**0.5) + 1)) for k in range(2, n))


def compute(request: Request) -> int:
    """The CPU layer. The reply goes back to the goroutine of the connection."""
    n, reply = request
    found = count_primes(n)
    reply.send_nowait(b"%d\n" % found)
    return found


async def connection(conn: net.Conn, pool: gofer.WorkerPool[Request, int]) -> None:
    """The I/O layer."""
    reply: gofer.Chan[bytes] = gofer.Chan(1)
    async with conn:
        while line := (await conn.read()).strip():
            if line == b"ping":
                await conn.write(b"pong\n")
                continue
            try:
                await pool.submit((int(line), reply), timeout=0.2)
                await conn.write(await reply.recv())
            except TimeoutError:
                await conn.write(b"busy, try later\n")


async def client(addr: tuple[str, int], line: bytes, times: int, answers: list) -> None:
    async with await net.dial(*addr) as conn:
        for _ in range(times):
            started = time.perf_counter()
            await conn.write(line)
            answers.append((await conn.read(), time.perf_counter() - started))
            await gofer.sleep(0.01)


async def main() -> None:
    heavy: list[tuple[bytes, float]] = []
    pings: list[tuple[bytes, float]] = []
    async with (
        gofer.WorkerPool(8, compute, queue=8, cpu_bound=lambda _: True, monitor=sys.stdout) as pool,
        net.listen("127.0.0.1", 0) as listener,
    ):

        async def serve() -> None:
            async for conn in listener:
                gofer.go(connection, conn, pool)

        gofer.go(serve)
        print(f"40 clients want to compute, on {gofer.gomaxprocs()} P(s); another one pings")
        async with gofer.Group() as group:
            for _ in range(40):
                group.go(client, listener.addr, b"12000\n", 4, heavy)
            group.go(client, listener.addr, b"ping\n", 100, pings)
    refused = sum(text.startswith(b"busy") for text, _ in heavy)
    typical = sorted(seconds for _, seconds in pings)[len(pings) // 2]
    print(f"{len(heavy)} requests: {len(heavy) - refused} computed, {refused} refused as too many")
    print(f"{len(pings)} pings meanwhile, typically answered in {typical * 1000:.1f} ms")


if __name__ == "__main__":
    gofer.run(main)
