"""Signals that arrive just as the thread that handles them goes to sleep, or has others to do."""

import os
import random
import signal
import threading
from typing import Any

import gofer
from gofer import signals
from tests.support import rounds, thread


def test_no_signal_is_lost_while_main_goes_to_sleep(procs: int) -> None:
    main_goroutine: list[gofer.Goroutine[Any]] = []
    about_to_sleep = threading.Semaphore(0)

    def handler(signum: int, frame: object) -> None:
        main_goroutine[0].cancel()

    def sender() -> None:
        rng = random.Random(procs)
        for _ in rounds():
            about_to_sleep.acquire()
            for _ in range(rng.randrange(400)):
                pass
            os.kill(os.getpid(), signal.SIGUSR1)

    async def main() -> list[int]:
        main_goroutine.append(gofer.current())
        lost = []
        for i in rounds():
            about_to_sleep.release()
            try:
                await gofer.sleep(5)
                lost.append(i)
            except gofer.Cancelled:
                pass
            if lost:
                break
        for _ in rounds():  # let the sender end
            about_to_sleep.release()
        return lost

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with thread(sender):
            assert gofer.run(main, procs=procs) == []
    finally:
        signal.signal(signal.SIGUSR1, before)
        main_goroutine.clear()


def test_many_begin_and_cease_to_listen(procs: int) -> None:
    """On the main thread, and on others in the middle of that."""

    def handler(signum: int, frame: object) -> None:
        pass

    async def listener() -> None:
        await gofer.gosched()
        for _ in range(5):
            ch = signals.notify(signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert await ch.recv() == signal.SIGUSR1
            signals.stop(ch)

    async def main() -> None:
        for _ in rounds():
            async with gofer.Group() as group:
                for _ in range(4):
                    group.go(listener)
            assert signal.getsignal(signal.SIGUSR1) is handler

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        gofer.run(main, procs=procs)
    finally:
        signal.signal(signal.SIGUSR1, before)
