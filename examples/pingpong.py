"""Ping-pong: two goroutines hand a ball to and fro over unbuffered channels."""

import time

import gofer

ROUNDS = 200_000


async def player(table_in: gofer.RecvChan[int], table_out: gofer.SendChan[int]) -> None:
    async for ball in table_in:
        await table_out.send(ball + 1)


async def main() -> None:
    ping: gofer.Chan[int] = gofer.Chan()
    pong: gofer.Chan[int] = gofer.Chan()
    gofer.go(player, ping.receiver, pong.sender)

    ball = 0
    for _ in range(3):
        print(f"ping: the ball is at {ball}")
        await ping.send(ball)
        ball = await pong.recv()
        print(f"pong: it comes back as {ball}")

    started = time.perf_counter()
    for _ in range(ROUNDS):
        await ping.send(ball)
        ball = await pong.recv()
    each = (time.perf_counter() - started) / ROUNDS
    ping.close()
    print(f"after {ROUNDS:,} more rounds it is at {ball:,}: {each * 1e9:.0f} ns a round trip,")
    print("with four channel operations and two switches in each")


if __name__ == "__main__":
    gofer.run(main)
