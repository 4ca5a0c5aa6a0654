"""Hello, goroutines: start some with go(), talk over a channel, wait for a result."""

import gofer


async def greet(name: str, ch: gofer.Chan[str]) -> int:
    await gofer.sleep(len(name) / 20)
    await ch.send(f"hello from {name}, which is goroutine {gofer.current().id}")
    return len(name)


async def main() -> None:
    ch: gofer.Chan[str] = gofer.Chan()
    names = ("Emil", "Al", "Zacharias")
    handles = [gofer.go(greet, name, ch) for name in names]
    print(f"started {len(handles)} goroutines; {gofer.num_goroutine()} are alive, with main")
    for _ in names:
        print(await ch.recv())
    print("they returned", [await g for g in handles])
    print(f"now {gofer.num_goroutine()} is alive: this one")


if __name__ == "__main__":
    gofer.run(main)
