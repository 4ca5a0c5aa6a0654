"""Looking inside from everywhere, while goroutines come and go and runs end and begin."""

import gc
import io
import itertools
import threading
import warnings
from collections.abc import Callable

import pytest

import gofer
from gofer import _core, runtime
from tests.support import FREE_THREADED, SANITIZED, give, rounds, spin, thread, until


async def child(n: int) -> int:
    """Somewhere else each time somebody looks."""
    for i in range(n):
        if i % 4 == 0:
            await gofer.gosched()
        elif i % 4 == 1:
            await gofer.sleep(0.00001)
        elif i % 4 == 2:
            await gofer.go(give, 1)
        else:
            spin(0.00002)
    return n


def plain(n: int) -> int:
    for _ in range(n):
        gofer.block(gofer.sleep(0.00001))
        spin(0.00002)
    return n


def look_at_stats() -> None:
    s = runtime.stats()
    assert s.goroutines >= 0
    assert len(s.procs) in (0, s.gomaxprocs)
    for p in s.procs:
        assert p.status != "idle" or (p.thread, p.goroutine) == (None, None), p
    assert runtime.metrics()["/sched/goroutines-created:goroutines"] >= s.created


def look_at_dump() -> None:
    f = io.StringIO()
    runtime.dump(f)
    for block in f.getvalue().rstrip("\n").split("\n\n"):
        assert block == "" or block.startswith("goroutine "), block
    runtime.dump(io.StringIO(), group=True)


def look_at_handles() -> None:
    for g in runtime.goroutines():
        assert g.id >= 1
        assert g.state in ("runnable", "running", "waiting", "syscall", "dead")


def look_for_leaks() -> None:
    assert runtime.leaks() == []


LOOKS = [look_at_stats, look_at_dump, look_at_handles, look_for_leaks]


@pytest.mark.parametrize("look", LOOKS, ids=lambda f: f.__name__)
def test_foreign_threads_look_while_runs_begin_and_end(
    look: Callable[[], None], procs: int
) -> None:
    stop = False

    def looker() -> None:
        while not stop:
            look()

    async def main() -> int:
        gs = [gofer.go(child, 6) for _ in range(8)] + [gofer.go(plain, 3) for _ in range(2)]
        waits = [gofer.go(gofer.Chan[int]().recv) for _ in range(3)]
        total = sum([await g for g in gs])
        assert len(waits) == 3
        return total

    # With the GIL the lookers have it for 5 ms at a time.
    slow = (1 if FREE_THREADED else 4) * (4 if look is look_for_leaks else 1)
    try:
        with thread(looker), thread(looker):
            try:
                for _ in rounds(divide_by=20 * slow):
                    assert gofer.run(main, procs=procs) == 54
            finally:
                stop = True
    finally:
        stop = True


def test_goroutines_look_at_each_other(procs: int) -> None:
    async def looker(n: int) -> None:
        for _ in range(n):
            look_at_stats()
            look_at_dump()
            await gofer.gosched()

    async def main() -> None:
        for _ in rounds(divide_by=100):
            gs = [gofer.go(child, 8) for _ in range(8)] + [gofer.go(plain, 3) for _ in range(2)]
            lookers = [gofer.go(looker, 3) for _ in range(3)]
            assert sum([await g for g in gs]) == 70
            for g in lookers:
                await g

    gofer.run(main, procs=procs)


def test_a_dump_while_goroutines_compute_block_and_are_stopped(procs: int) -> None:
    stop = threading.Event()
    release = threading.Event()

    def hog() -> None:
        while not stop.is_set():
            spin(0.0005)

    async def main() -> None:
        hogs = [gofer.go(hog) for _ in range(procs + 1)]
        blocked = [gofer.go(release.wait) for _ in range(3)]
        try:
            for _ in rounds(divide_by=50):
                look_at_dump()
                await gofer.gosched()
        finally:
            stop.set()
            release.set()
        for g in itertools.chain(hogs, blocked):
            await g

    gofer.run(main, procs=procs)


def test_leaks_are_the_same_whoever_looks(procs: int) -> None:
    """What leaks is found, and nothing else, while others work and the collector is off."""

    async def stuck() -> None:
        await gofer.Chan[int]().recv()

    async def main() -> None:
        for i in rounds(divide_by=100):
            gs = [gofer.go(child, 9) for _ in range(4)]
            gofer.go(stuck)
            seen = 0
            while seen <= i:
                found = [g.name for g in runtime.leaks()]
                assert {name.rpartition(".")[2] for name in found} <= {"stuck"}, found
                seen = len(found)
                await gofer.gosched()
            assert seen == i + 1
            for g in gs:
                await g

    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", gofer.GoroutineLeakWarning)
            gofer.run(main, procs=procs)
    finally:
        gc.enable()
        gc.collect()


def test_every_goroutine_hears_that_main_has_ended(procs: int) -> None:
    """So many that it takes longer than run() is patient.

    It then raises Cancelled in threads, and takes it back if the goroutine has suspended meanwhile.
    That one must not wait: nobody would wake it any more.
    """
    n = 2_000 if SANITIZED else 20_000

    async def waits(ch: gofer.Chan[int]) -> None:
        await ch.recv()

    async def main() -> None:
        ch = gofer.Chan[int]()
        for _ in range(n):
            gofer.go(waits, ch)
        await until(lambda: runtime.stats().waiting >= n)

    with warnings.catch_warnings():
        warnings.simplefilter("error", gofer.GoroutineLeakWarning)
        for _ in rounds(divide_by=100):
            gofer.run(main, procs=procs)
    assert _core.counters()["goroutines"] == 0
