"""os.fork() before and after runs, none in progress: parent and child both go on."""

import os

import gofer


async def give(n: int) -> int:
    await gofer.sleep(0.001)
    return n


async def main() -> int:
    return sum([await g for g in [gofer.go(give, n) for n in range(5)]])


gofer.run(main, procs=4)
pid = os.fork()
if pid == 0:
    print("child:", gofer.run(main, procs=4), flush=True)
    os._exit(0)
_, status = os.waitpid(pid, 0)
print("child status", status)
print("parent:", gofer.run(main, procs=4))
