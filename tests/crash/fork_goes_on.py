"""os.fork() inside a run, and the child goes on as if nothing had happened."""

import os
import sys
import warnings

import gofer

who, what, procs = sys.argv[1], sys.argv[2], int(sys.argv[3])
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about threads and fork
parent = os.getpid()


async def noop() -> None:
    await gofer.sleep(0.001)


async def forks() -> None:
    pid = os.fork()
    if pid == 0:
        if what == "raises":
            raise ValueError("in the child")
        if what == "awaits":
            await gofer.sleep(0.01)
        return
    _, status = os.waitpid(pid, 0)
    print("child ended well" if status == 0 else "child ended badly", flush=True)


async def main() -> str:
    gs = [gofer.go(noop) for _ in range(20)]
    for g in gs:
        await g
    if who == "main":
        await forks()
    else:
        await gofer.go(forks)
    return "fine"


result = gofer.run(main, procs=procs)
if os.getpid() != parent:
    print("run() returned in the child", flush=True)
print("parent:", result)
