"""lock_os_thread with a library that insists on one thread: sqlite3.

A goroutine may go on on another thread after any await. A connection of sqlite3 raises if it is
used by another thread than the one that made it. lock_os_thread keeps the goroutine on its thread,
and others off it.
"""

import sqlite3
import threading
import time

import gofer

STEPS = 30


async def insert(locked: bool) -> tuple[int, int]:
    """How many statements were refused, and how many threads the goroutine has seen."""
    if locked:
        gofer.lock_os_thread()
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (n)")
    threads = set()
    refused = 0
    for n in range(STEPS):
        await gofer.sleep(0.005)
        threads.add(threading.get_ident())
        try:
            connection.execute("insert into t values (?)", (n,))
        except sqlite3.ProgrammingError as exc:
            refused += 1
            if refused == 1:
                print(f"   sqlite3: {str(exc)[:68]}...")
    if locked:
        connection.close()
        gofer.unlock_os_thread()
    return refused, len(threads)


async def neighbour() -> None:
    """Blocks now and then, so that the scheduler moves others to other threads."""
    while True:
        time.sleep(0.02)
        await gofer.sleep(0.001)


async def main() -> None:
    for _ in range(3):
        gofer.go(neighbour)
    for locked in (False, True):
        print("with lock_os_thread():" if locked else "without:")
        refused, threads = await gofer.go(insert, locked)
        print(f"   {STEPS} steps on {threads} thread(s), {refused} refused")


if __name__ == "__main__":
    gofer.run(main, procs=2)
