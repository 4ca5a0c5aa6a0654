"""os.fork() inside a run: the child uses gofer."""

import os
import sys
import warnings

import gofer

who, use, procs = sys.argv[1], sys.argv[2], int(sys.argv[3])
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about threads and fork


async def sleeper() -> None:
    await gofer.sleep(1000)


async def use_it(handle: gofer.Goroutine[None]) -> None:
    if use == "go":
        gofer.go(sleeper)
    elif use == "await":
        await handle
    elif use == "sleep":
        await gofer.sleep(0.01)
    elif use == "run":
        gofer.run(sleeper)
    elif use == "cancel":
        handle.cancel()
    elif use == "gomaxprocs":
        gofer.gomaxprocs(2)


async def forks(handle: gofer.Goroutine[None]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            await use_it(handle)
            text = "no error"
        except RuntimeError as exc:
            text = f"RuntimeError: {exc}"
        print("child:", text.partition(",")[0], flush=True)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print("child status", status, flush=True)


async def main() -> str:
    handle = gofer.go(sleeper)
    for _ in range(10):
        await gofer.go(noop)  # threads come up
    if who == "main":
        await forks(handle)
    else:
        await gofer.go(forks, handle)
    return "fine"


async def noop() -> None:
    await gofer.sleep(0.001)


print("parent:", gofer.run(main, procs=procs))
