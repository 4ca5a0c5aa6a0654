"""os.fork() in a foreign thread while a runtime runs."""

import os
import threading
import warnings

import gofer

warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about threads and fork
done = threading.Event()


async def noop() -> None:
    pass


def forks() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            gofer.go(noop)
            text = "no error"
        except RuntimeError as exc:
            text = f"RuntimeError: {exc}"
        print("child:", text.partition(",")[0], flush=True)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    print("child status", status, flush=True)
    done.set()


async def main() -> str:
    t = threading.Thread(target=forks)
    t.start()
    while not done.is_set():
        await gofer.sleep(0.001)
    t.join()
    return "fine"


print("parent:", gofer.run(main, procs=4))
