"""A chat server, and three people who use it.

One goroutine for each connection reads, another one writes what is in the person's channel. The
room is one goroutine that owns the list of people: nobody else touches it, so there is no lock.
"""

import gofer
from gofer import net

Inbox = gofer.Chan[str]


async def room(joins: gofer.Chan[tuple[str, Inbox]], lines: gofer.Chan[tuple[str, str]]) -> None:
    people: dict[str, Inbox] = {}
    while True:
        which, (name, what), _ = await gofer.select(joins.recv(), lines.recv())
        if which == 0:
            people[name] = what
            text = f"* {name} is here ({len(people)})"
        elif what:
            text = f"{name}: {what}"
        else:
            people.pop(name).close()
            text = f"* {name} has left ({len(people)})"
        for inbox in people.values():
            await inbox.send(text)


async def write(conn: net.Conn, inbox: Inbox) -> None:
    async for text in inbox:
        await conn.write(text.encode() + b"\n")
    await conn.close_write()


async def person(conn: net.Conn, joins: gofer.Chan, lines: gofer.Chan) -> None:
    async with conn:
        name = (await conn.read_until(b"\n")).decode().strip()
        inbox: Inbox = gofer.Chan(100)
        await joins.send((name, inbox))
        writer = gofer.go(write, conn, inbox)
        while (line := (await conn.read_until(b"\n")).decode().strip()) != "/quit":
            await lines.send((name, line))
        await lines.send((name, ""))
        await writer


async def serve(listener: net.Listener) -> None:
    joins: gofer.Chan[tuple[str, Inbox]] = gofer.Chan()
    lines: gofer.Chan[tuple[str, str]] = gofer.Chan()
    gofer.go(room, joins, lines)
    async for conn in listener:
        gofer.go(person, conn, joins, lines)


async def somebody(addr: tuple[str, int], name: str, says: list[str], pause: float) -> list[str]:
    """A client. What it has seen when it leaves."""
    async with await net.dial(*addr) as conn:
        for line in [name, *says, "/quit"]:
            await gofer.sleep(pause)
            await conn.write(line.encode() + b"\n")
        seen = b""
        while data := await conn.read():
            seen += data
    return seen.decode().splitlines()


async def main() -> None:
    async with net.listen("127.0.0.1", 0) as listener:
        gofer.go(serve, listener)
        ann = gofer.go(somebody, listener.addr, "ann", ["hello?", "who is there?", "bye"], 0.15)
        bob = gofer.go(somebody, listener.addr, "bob", ["bob is", "just looking"], 0.2)
        cy = gofer.go(somebody, listener.addr, "cy", ["me too"], 0.25)
        print("what ann saw:", *await ann, sep="\n   ")
        print(f"bob saw {len(await bob)} lines, cy saw {len(await cy)}")


if __name__ == "__main__":
    gofer.run(main)
