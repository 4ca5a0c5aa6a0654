"""A leaking HTTP endpoint, found under load: schedtrace-like numbers, the leak report, a dump.

/search asks two backends and takes the first answer. The loser's answer nobody receives: its
goroutine waits in send() for ever. That is the most common leak of Go programs; a channel with room
for both cures it.
"""

import gc
import io
from collections import Counter

import gofer
from gofer import net, runtime

gc.disable()  # the collector would find them, warn, and end them; we look for them ourselves


async def backend(answers: gofer.Chan[str], seconds: float) -> None:
    await gofer.sleep(seconds)
    await answers.send(f"found in {seconds} s")


async def search(room: int) -> str:
    answers: gofer.Chan[str] = gofer.Chan(room)
    gofer.go(backend, answers, 0.001)
    gofer.go(backend, answers, 0.01)
    return await answers.recv()  # and the other one?


async def handle(conn: net.Conn) -> None:
    async with conn:
        path = (await conn.read_until(b"\r\n\r\n")).split()[1]
        text = await search(room=0 if path == b"/search" else 2)
        await conn.write(f"HTTP/1.0 200 OK\r\n\r\n{text}".encode())


async def serve(listener: net.Listener) -> None:
    async for conn in listener:
        gofer.go(handle, conn)


async def load(addr: tuple[str, int], path: str, requests: int, clients: int = 20) -> None:
    """The load generator."""

    async def client() -> None:
        for _ in range(requests // clients):
            async with await net.dial(*addr) as conn:
                await conn.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                await conn.read()

    async with gofer.Group() as group:
        for _ in range(clients):
            group.go(client)
    await gofer.sleep(0.05)  # the slower backend, too


async def main() -> None:
    async with net.listen("127.0.0.1", 0) as listener:
        gofer.go(serve, listener)
        print("200 requests at a time; the numbers that a schedtrace would show:")
        for path in ("/search", "/search", "/search", "/fixed", "/fixed"):
            await load(listener.addr, path, 200)
            s = runtime.stats()
            print(f"   {path:8} goroutines={s.goroutines:4} waiting={s.waiting:4}")
        leaked = runtime.leaks()
        print(f"{len(leaked)} goroutines wait for what nobody can do any more:")
        for (name, where, why), n in Counter(
            (g.name, g.created_at.rpartition("/")[2], g.wait_reason) for g in leaked
        ).items():
            print(f"   {n} x {name}, created at {where}, in {why}")
        text = io.StringIO()
        runtime.dump(text, group=True, leaks=True)
        print("and the dump, grouped, has them so:")
        block = next(b for b in text.getvalue().split("\n\n") if "backend" in b)
        print("   " + block.strip().replace("\n", "\n   "))


if __name__ == "__main__":
    gofer.run(main)
