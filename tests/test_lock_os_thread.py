"""lock_os_thread(): a goroutine keeps its thread, and everybody else off it."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from typing import Any

import pytest

import gofer
from gofer import Chan, _core, block, context, lock_os_thread, unlock_os_thread
from tests.support import PATIENCE, all_came_back, os_threads, parked, spin, thread, until


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def ps(request: pytest.FixtureRequest) -> int:
    """How many Ps."""
    return int(request.param)


def test_the_thread_stays_the_same_over_a_thousand_awaits(ps: int) -> None:
    async def locked() -> set[int]:
        lock_os_thread()
        seen = {threading.get_native_id()}
        for i in range(1000):
            match i % 4:
                case 0:
                    await gofer.gosched()
                case 1:
                    await gofer.sleep(0.00001)
                case 2:
                    await ch.send(i)
                case _:
                    await gofer.go(child)
            seen.add(threading.get_native_id())
        unlock_os_thread()
        return seen

    async def child() -> None:
        await gofer.gosched()

    async def drain() -> None:
        async for _ in ch:
            pass

    async def main() -> None:
        gofer.go(drain)
        for g in [gofer.go(locked) for _ in range(2)]:
            assert len(await g) == 1
        ch.close()

    ch = Chan[int]()
    gofer.run(main, procs=ps)


def test_nothing_else_runs_on_that_thread(ps: int) -> None:
    async def locked(ready: Chan[int], stop: Chan[None]) -> None:
        with lock_os_thread():
            await ready.send(threading.get_native_id())
            while (await gofer.select(stop.recv(), gofer.sleep(0.0005))).index != 0:
                pass

    async def other() -> None:
        for _ in range(50):
            elsewhere.add(threading.get_native_id())
            await gofer.gosched()

    def plain() -> None:
        elsewhere.add(threading.get_native_id())

    async def main() -> None:
        ready, stop = Chan[int](), Chan[None]()
        gs = [gofer.go(locked, ready, stop) for _ in range(3)]
        own = [await ready.recv() for _ in gs]
        assert len(set(own)) == 3
        others = [gofer.go(other) for _ in range(50)] + [gofer.go(plain) for _ in range(50)]
        for g in others:
            await g
        assert elsewhere.isdisjoint(own)
        stop.close()
        for g in gs:
            await g

    elsewhere: set[int] = set()
    gofer.run(main, procs=ps)


def test_it_nests(ps: int) -> None:
    async def locked() -> None:
        lock_os_thread()
        with lock_os_thread():
            lock_os_thread()
        own = threading.get_ident()
        for _ in range(20):
            await gofer.sleep(0.0001)
            assert threading.get_ident() == own
        unlock_os_thread()
        for _ in range(20):
            await gofer.sleep(0.0001)
            assert threading.get_ident() == own  # still one left
        unlock_os_thread()
        with pytest.raises(RuntimeError, match="without lock_os_thread"):
            unlock_os_thread()

    async def noise() -> None:
        while not stop:
            await gofer.gosched()

    async def main() -> None:
        nonlocal stop
        gs = [gofer.go(noise) for _ in range(3)]
        await gofer.go(locked)
        stop = True
        for g in gs:
            await g

    stop = False
    gofer.run(main, procs=ps)


def test_after_unlock_the_thread_serves_others_again() -> None:
    async def locked() -> None:
        with lock_os_thread():
            await gofer.sleep(0.001)

    async def main() -> int:
        for _ in range(200):
            await gofer.go(locked)
        return _core.counters()["threads"]

    assert gofer.run(main, procs=2) < 20


def test_a_goroutine_that_ends_while_locked_ends_the_thread(ps: int) -> None:
    async def locked() -> int:
        lock_os_thread()
        await gofer.sleep(0.001)
        return threading.get_native_id()

    def plain() -> int:
        lock_os_thread()
        block(gofer.sleep(0.001))
        return threading.get_native_id()

    async def main() -> None:
        for fn in (locked, plain) * 3:
            tid = await gofer.go(fn)
            if tid != threading.main_thread().native_id:
                await until(lambda tid=tid: tid not in os_threads(), "the thread gone")  # type: ignore[misc]

    gofer.run(main, procs=ps)


def test_threads_that_end_leave_nothing_behind() -> None:
    """No matter how many: their memory is given back while the run goes on."""

    def plain() -> None:
        lock_os_thread()

    async def main() -> None:
        for _ in range(500):
            await gofer.go(plain)
        # Soon: on a busy machine some are still on their way out.
        await until(lambda: _core.counters()["threads"] < 10, "the threads gone")

    gofer.run(main, procs=2)


@pytest.mark.parametrize("how", ["goexit", "error", "cancel"])
def test_however_it_ends(ps: int, how: str) -> None:
    async def locked() -> None:
        lock_os_thread()
        tids.append(threading.get_native_id())
        await gofer.gosched()
        if how == "goexit":
            gofer.goexit()
        if how == "error":
            raise ValueError("as told")
        await gofer.sleep(PATIENCE)

    async def main() -> None:
        # Not on the main thread: that is kept busy.
        with lock_os_thread():
            g = gofer.go(locked)
            await until(lambda: tids)
            if how == "cancel":
                await parked(g)
                g.cancel()
            errors = {"error": ValueError, "cancel": gofer.Cancelled}
            with pytest.raises(errors[how]) if how in errors else contextlib.nullcontext():
                await g
            await until(lambda: tids[0] not in os_threads())

    tids: list[int] = []
    gofer.run(main, procs=ps)


def test_main_can_hold_the_main_thread(ps: int) -> None:
    async def noise() -> None:
        while not stop:
            time.sleep(0.001)
            seen.add(threading.get_ident())
            await gofer.gosched()

    async def main() -> None:
        nonlocal stop
        with lock_os_thread():
            gs = [gofer.go(noise) for _ in range(5)]
            for _ in range(100):
                await gofer.sleep(0.0005)
                assert threading.current_thread() is threading.main_thread()
            stop = True
            for g in gs:
                await g
            assert threading.current_thread() is threading.main_thread()

    stop = False
    seen: set[int] = set()
    gofer.run(main, procs=ps)
    assert threading.main_thread().ident not in seen


def test_main_that_ends_while_locked_keeps_its_thread(ps: int) -> None:
    async def main() -> int:
        lock_os_thread()
        await gofer.sleep(0.001)
        return threading.get_ident()

    for _ in range(3):
        assert gofer.run(main, procs=ps) == threading.get_ident()


def test_a_goroutine_that_locks_the_main_thread_does_not_stop_main(ps: int) -> None:
    """Any goroutine may find itself there. Main runs elsewhere meanwhile, and comes back."""

    async def locked(stop: Chan[None]) -> bool:
        with lock_os_thread():
            await stop.recv_ok()
            return threading.current_thread() is threading.main_thread()

    async def main() -> None:
        stop = Chan[None]()
        gs = [gofer.go(locked, stop) for _ in range(10)]
        await parked(*gs)
        for _ in range(20):
            await gofer.sleep(0.0005)
        stop.close()
        on_main = [await g for g in gs]
        assert sum(on_main) <= 1
        await until(lambda: threading.current_thread() is threading.main_thread())

    gofer.run(main, procs=ps)


# --- With everything else -------------------------------------------------------------------------


def test_channels_select_mutexes_and_timers(ps: int) -> None:
    async def locked(inbox: Chan[int], outbox: Chan[int], mu: gofer.Mutex) -> int:
        nonlocal total
        with lock_os_thread():
            own = threading.get_ident()
            ticker = gofer.Ticker(0.001)
            n = 0
            while True:
                match await gofer.select(inbox.recv_ok(), ticker.c.recv()):
                    case gofer.Selected(0, value, True):
                        async with mu:
                            total += 1
                        await outbox.send(value)
                    case gofer.Selected(0, _, False):
                        break
                n += 1
                assert threading.get_ident() == own
            ticker.stop()
            return n

    async def main() -> None:
        inbox, outbox, mu = Chan[int](), Chan[int](), gofer.Mutex()
        gs = [gofer.go(locked, inbox, outbox, mu) for _ in range(3)]
        for i in range(100):
            await inbox.send(i)
            assert await outbox.recv() == i
        inbox.close()
        assert sum([await g for g in gs]) >= 100

    total = 0
    gofer.run(main, procs=ps)
    assert total == 100


def test_cancel_wakes_it_on_its_thread(ps: int) -> None:
    async def locked() -> bool:
        with lock_os_thread():
            own = threading.get_ident()
            try:
                await gofer.sleep(PATIENCE)
            except gofer.Cancelled:
                await gofer.sleep(0.001)
            return threading.get_ident() == own

    async def main() -> None:
        g = gofer.go(locked)
        await parked(g)
        g.cancel()
        assert await g
        async with context.with_cancel() as ctx:
            g = gofer.go(locked)
            await parked(g)
            g.cancel()
            assert await g
            ctx.cancel()

    gofer.run(main, procs=ps)


def test_while_gomaxprocs_changes() -> None:
    async def locked() -> None:
        with lock_os_thread():
            own = threading.get_ident()
            while not stop:
                await gofer.gosched()
                assert threading.get_ident() == own

    async def main() -> None:
        nonlocal stop
        gs = [gofer.go(locked) for _ in range(4)]
        for n in [1, 4, 2, 8, 1, 3] * 10:
            gofer.gomaxprocs(n)
            await gofer.sleep(0.0005)
        stop = True
        for g in gs:
            await g

    stop = False
    gofer.run(main, procs=4)


def test_more_locked_goroutines_than_ps_take_turns(ps: int) -> None:
    async def locked(i: int) -> None:
        with lock_os_thread():
            for _ in range(20):
                order.append(i)
                await gofer.gosched()

    async def main() -> None:
        for g in [gofer.go(locked, i) for i in range(3 * ps)]:
            await g

    order: list[int] = []
    gofer.run(main, procs=ps)
    assert sorted(order) == sorted(list(range(3 * ps)) * 20)


def test_a_deadlock_of_locked_goroutines_is_reported(ps: int) -> None:
    async def locked() -> None:
        lock_os_thread()
        await Chan[int]().recv()

    async def main() -> None:
        lock_os_thread()
        await gofer.go(locked)

    with pytest.raises(gofer.Deadlock, match="all goroutines are asleep"):
        gofer.run(main, procs=ps)


def test_a_deadlock_after_the_last_other_thread_has_ended(ps: int) -> None:
    """The thread that ends is the last that was awake: others must look."""

    def plain(ch: Chan[int]) -> None:
        lock_os_thread()

    async def main() -> None:
        ch = Chan[int]()
        gofer.go(plain, ch)
        await ch.recv()

    with pytest.raises(gofer.Deadlock, match="all goroutines are asleep"):
        gofer.run(main, procs=ps)


def test_when_main_ends_locked_goroutines_clean_up_on_their_threads(ps: int) -> None:
    ended: list[bool] = []

    async def locked() -> None:
        lock_os_thread()
        own = threading.get_ident()
        try:
            await gofer.sleep(PATIENCE)
        finally:
            async with context.shield():
                await gofer.sleep(0.001)
            ended.append(threading.get_ident() == own)

    async def main() -> None:
        await parked(*[gofer.go(locked) for _ in range(3)])

    gofer.run(main, procs=ps)
    assert ended == [True] * 3


def test_others_go_on_beside_a_locked_goroutine_that_blocks(ps: int) -> None:
    async def locked() -> None:
        with lock_os_thread():
            time.sleep(0.5)
            await gofer.gosched()
            spin(0.05)

    async def main() -> int:
        ticks = 0
        gs = [gofer.go(locked) for _ in range(ps)]
        while not all(g.done() for g in gs):
            await gofer.sleep(0.001)
            ticks += 1
        return ticks

    assert gofer.run(main, procs=ps) > 30


# --- What is tied to a thread ---------------------------------------------------------------------


def test_thread_locals_are_kept_with_the_thread(ps: int) -> None:
    """A goroutine that moves finds another thread's; a locked or a plain one finds its own."""
    local = threading.local()

    async def locked(i: int) -> None:
        with lock_os_thread():
            local.value = i
            for _ in range(20):
                await gofer.sleep(0.0001)
                assert local.value == i

    def plain(i: int) -> None:
        local.value = i
        for _ in range(20):
            block(gofer.sleep(0.0001))
            assert local.value == i

    async def main() -> None:
        for g in [gofer.go(fn, i) for i in range(5) for fn in (locked, plain)]:  # type: ignore[operator]
            await g

    gofer.run(main, procs=ps)


def test_an_rlock_over_an_await(ps: int) -> None:
    """It belongs to a thread: hold one over an await only if the thread is yours."""
    rlock = threading.RLock()

    async def locked() -> None:
        nonlocal inside
        with lock_os_thread(), gofer.blocking(), rlock, rlock:
            inside += 1
            assert inside == 1
            await gofer.sleep(0.001)
            inside -= 1

    def plain() -> None:
        nonlocal inside
        with rlock, rlock:
            inside += 1
            assert inside == 1
            block(gofer.sleep(0.001))
            inside -= 1

    async def main() -> None:
        for g in [gofer.go(fn) for fn in (locked, plain) * 3]:
            await g

    inside = 0
    gofer.run(main, procs=ps)


def test_a_sqlite_connection_belongs_to_a_thread(ps: int) -> None:
    async def locked() -> int:
        with lock_os_thread():
            connection = sqlite3.connect(":memory:")
            connection.execute("CREATE TABLE t (x)")
            for i in range(10):
                connection.execute("INSERT INTO t VALUES (?)", (i,))
                await gofer.sleep(0.0001)
            (total,) = connection.execute("SELECT sum(x) FROM t").fetchone()
            connection.close()
            return int(total)

    async def main() -> None:
        assert [await g for g in [gofer.go(locked) for _ in range(4)]] == [45] * 4

    gofer.run(main, procs=ps)


def test_asyncio_runs_inside_a_plain_goroutine(ps: int) -> None:
    """A loop belongs to the thread that runs it; so it is for a goroutine that stays on one."""

    async def on_asyncio(i: int) -> int:
        await asyncio.sleep(0.01)
        return i

    def plain(i: int) -> int:
        return asyncio.run(on_asyncio(i))

    async def main() -> list[Any]:
        return [await g for g in [gofer.go(plain, i) for i in range(4)]]

    assert gofer.run(main, procs=ps) == list(range(4))


# --- Misuse ---------------------------------------------------------------------------------------


def test_unlock_without_lock(ps: int) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="without lock_os_thread"):
            unlock_os_thread()
        with lock_os_thread():
            pass
        with pytest.raises(RuntimeError, match="without lock_os_thread"):
            unlock_os_thread()

    def plain() -> None:
        with pytest.raises(RuntimeError, match="without lock_os_thread"):
            unlock_os_thread()

    gofer.run(main, procs=ps)
    gofer.run(plain, procs=ps)


def test_outside_a_goroutine() -> None:
    for use in (lock_os_thread, unlock_os_thread):
        with pytest.raises(RuntimeError, match=r"lock_os_thread\(\) outside a goroutine"):
            use()

    async def main() -> None:
        def foreign() -> None:
            with pytest.raises(RuntimeError, match="outside a goroutine"):
                lock_os_thread()

        with thread(foreign):
            pass

    gofer.run(main)


def test_a_locked_plain_goroutine_that_is_left_behind(ps: int) -> None:
    released = threading.Event()

    def stuck() -> None:
        lock_os_thread()
        released.wait()
        unlock_os_thread()
        lock_os_thread()

    async def main() -> gofer.Goroutine[None]:
        g = gofer.go(stuck)
        await until(lambda: g.state == "syscall")
        return g

    g = gofer.run(main, procs=ps)
    released.set()
    assert g.cancelled()
    assert list(g.stack()) == []
    del g
    all_came_back()
