"""The main thread ends while a runtime runs in a daemon thread."""

import sys
import threading
import time

import gofer

load, procs = sys.argv[1], int(sys.argv[2])
started = threading.Event()


async def work() -> None:
    while True:
        if load == "asleep":
            await gofer.sleep(1000)
        elif load == "busy":
            sum(range(1000))
            await gofer.sleep(0)
        else:
            await gofer.gosched()


async def main() -> None:
    for _ in range(20):
        gofer.go(work)
    started.set()
    await work()


threading.Thread(target=gofer.run, args=(main,), kwargs={"procs": procs}, daemon=True).start()
started.wait()
time.sleep(0.05)
print("leaving")
