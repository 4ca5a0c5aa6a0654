"""RWMutex: one writer or many readers, and neither kind starves the other."""

import pytest

import gofer
from tests.support import parked, thread, until
from tests.sync_support import waiting

UNLOCKED = r"^sync: Unlock of unlocked RWMutex$"
RUNLOCKED = r"^sync: RUnlock of unlocked RWMutex$"


def free(rw: gofer.RWMutex) -> bool:
    """Whether nobody holds it in any way."""
    if not rw.try_lock():
        return False
    rw.unlock()
    return True


def writer_waits(rw: gofer.RWMutex) -> bool:
    """Whether a writer keeps new readers out."""
    if not rw.try_rlock():
        return True
    rw.runlock()
    return False


# --- Locking --------------------------------------------------------------------------------------


def test_who_may_be_inside_together() -> None:
    rw = gofer.RWMutex()
    assert not rw.locked()
    assert rw.try_lock()
    assert rw.locked()
    assert not rw.try_lock()
    assert not rw.try_rlock()
    rw.unlock()
    for _ in range(3):
        assert rw.try_rlock()
    assert not rw.try_lock()
    for _ in range(2):
        rw.runlock()
        assert not rw.try_lock()
    rw.runlock()
    assert free(rw)


def test_async_with_releases_however_it_ends(procs: int) -> None:
    rw = gofer.RWMutex()

    async def main() -> None:
        async with rw:
            assert rw.locked()
            assert not rw.try_rlock()
        assert free(rw)
        async with rw.reader, rw.reader:
            assert rw.try_rlock()
            rw.runlock()
            assert not rw.try_lock()
        assert free(rw)
        for lock in (rw, rw.reader):
            with pytest.raises(KeyError):
                async with lock:
                    raise KeyError
            assert free(rw)
        for holder in (writer, reader):
            g = gofer.go(holder)
            await parked(g)
            assert not free(rw)
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g
            assert free(rw)

    async def writer() -> None:
        async with rw:
            await gofer.sleep(100_000)

    async def reader() -> None:
        async with rw.reader:
            await gofer.sleep(100_000)

    gofer.run(main, procs=procs)


def test_readers_do_not_wait_for_each_other(procs: int) -> None:
    rw = gofer.RWMutex()
    meet = gofer.WaitGroup()
    meet.add(10)

    async def reader() -> None:
        async with rw.reader:
            meet.done()
            await meet.wait()  # all ten are inside

    async def main() -> None:
        gs = [gofer.go(reader) for _ in range(10)]
        for g in gs:
            await g
        assert free(rw)

    gofer.run(main, procs=procs)


# --- Bad use --------------------------------------------------------------------------------------


def test_releasing_what_is_not_held_is_a_runtime_error() -> None:
    rw = gofer.RWMutex()
    with pytest.raises(RuntimeError, match=UNLOCKED):
        rw.unlock()
    with pytest.raises(RuntimeError, match=RUNLOCKED):
        rw.runlock()

    assert rw.try_rlock()
    with pytest.raises(RuntimeError, match=UNLOCKED):
        rw.unlock()
    assert not rw.try_lock()  # still read-locked
    rw.runlock()
    with pytest.raises(RuntimeError, match=RUNLOCKED):
        rw.runlock()

    assert rw.try_lock()
    with pytest.raises(RuntimeError, match=RUNLOCKED):
        rw.runlock()
    assert rw.locked()
    rw.unlock()
    with pytest.raises(RuntimeError, match=UNLOCKED):
        rw.unlock()
    assert free(rw)


def test_also_while_others_wait(procs: int) -> None:
    async def main() -> None:
        rw = gofer.RWMutex()
        await rw.lock()
        reader = await waiting(rw.rlock())
        writer = await waiting(rw.lock())
        with pytest.raises(RuntimeError, match=RUNLOCKED):
            rw.runlock()
        assert (reader.state, writer.state) == ("waiting", "waiting")
        rw.unlock()
        await reader
        with pytest.raises(RuntimeError, match=UNLOCKED):
            rw.unlock()
        assert writer.state == "waiting"
        rw.runlock()
        await writer
        rw.unlock()
        assert free(rw)

    gofer.run(main, procs=procs)


def test_with_in_a_goroutine_says_async_with(procs: int) -> None:
    async def main() -> None:
        rw = gofer.RWMutex()
        for lock in (rw, rw.reader):
            with pytest.raises(RuntimeError, match="async with"), lock:
                pass
            assert free(rw)

    gofer.run(main, procs=procs)


def test_a_read_lock_cannot_be_made_a_write_lock(procs: int) -> None:
    rw = gofer.RWMutex()

    async def main() -> None:
        async with rw.reader, rw:
            pass

    with pytest.raises(gofer.Deadlock, match=r"goroutine 1 \[sync\.RWMutex\.Lock\]"):
        gofer.run(main, procs=procs)


def test_a_second_read_lock_behind_a_waiting_writer_is_a_deadlock(procs: int) -> None:
    rw = gofer.RWMutex()

    async def main() -> None:
        await rw.rlock()
        await waiting(rw.lock())
        await rw.rlock()

    with pytest.raises(gofer.Deadlock) as info:
        gofer.run(main, procs=procs)
    assert "goroutine 1 [sync.RWMutex.RLock]" in str(info.value)
    assert "goroutine 2 [sync.RWMutex.Lock]" in str(info.value)


# --- Phases ---------------------------------------------------------------------------------------


def test_a_waiting_writer_stops_new_readers(procs: int) -> None:
    async def main() -> None:
        rw = gofer.RWMutex()
        await rw.rlock()
        writer = await waiting(rw.lock())
        assert not rw.try_rlock()
        assert not rw.try_lock()
        second = await waiting(rw.rlock())
        assert writer.wait_reason == "sync.RWMutex.Lock"
        assert second.wait_reason == "sync.RWMutex.RLock"
        rw.runlock()
        await writer
        assert rw.locked()
        assert second.state == "waiting"
        rw.unlock()
        await second
        assert rw.try_rlock()
        assert not rw.try_lock()

    gofer.run(main, procs=procs)


def test_the_last_of_the_readers_lets_the_writer_in(procs: int) -> None:
    async def main() -> None:
        rw = gofer.RWMutex()
        for _ in range(5):
            await rw.rlock()
        writer = await waiting(rw.lock())
        for _ in range(4):
            rw.runlock()
            assert writer.state == "waiting"
            assert not rw.locked()
        rw.runlock()
        await writer
        assert rw.locked()

    gofer.run(main, procs=procs)


def test_readers_that_waited_go_before_the_next_writer(procs: int) -> None:
    """All of them, also those that came after that writer."""

    async def main() -> None:
        rw = gofer.RWMutex()
        await rw.lock()
        first = await waiting(rw.rlock())
        writer = await waiting(rw.lock())
        others = [await waiting(rw.rlock()) for _ in range(3)]
        rw.unlock()
        for g in (first, *others):
            await g
        assert writer.state == "waiting"
        assert not rw.try_rlock()  # one that comes now waits for the writer
        for _ in range(4):
            assert not rw.locked()
            rw.runlock()
        await writer
        rw.unlock()
        assert free(rw)

    gofer.run(main, procs=procs)


def test_phases_alternate(procs: int) -> None:
    """With writers and readers always waiting, each writer is followed by readers."""
    log: list[str] = []
    rw = gofer.RWMutex()

    async def writer(i: int) -> None:
        async with rw:
            log.append("w")
            if i < 4:
                readers.append(gofer.go(reader))
                await parked(readers[-1])

    async def reader() -> None:
        async with rw.reader:
            log.append("r")

    async def main() -> None:
        await rw.lock()
        readers.append(gofer.go(reader))
        await parked(readers[0])
        writers = []
        for i in range(5):
            writers.append(gofer.go(writer, i))
            await parked(writers[-1])
        rw.unlock()
        for g in (*writers, *readers):
            await g

    readers: list[gofer.Goroutine[None]] = []
    gofer.run(main, procs=procs)
    readers.clear()
    assert log == ["r", "w"] * 5


def test_writers_go_in_the_order_of_their_arrival(procs: int) -> None:
    order: list[int] = []
    rw = gofer.RWMutex()

    async def writer(i: int) -> None:
        async with rw:
            order.append(i)
            await gofer.gosched()

    async def main() -> None:
        await rw.rlock()
        gs = []
        for i in range(10):
            gs.append(gofer.go(writer, i))
            await parked(gs[-1])
        rw.runlock()
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    assert order == list(range(10))


def test_readers_behind_a_writer_that_is_cancelled_go_on(procs: int) -> None:
    async def main() -> None:
        rw = gofer.RWMutex()
        await rw.rlock()
        writers = [await waiting(rw.lock()) for _ in range(2)]
        readers = [await waiting(rw.rlock()) for _ in range(3)]
        writers[0].cancel()
        with pytest.raises(gofer.Cancelled):
            await writers[0]
        assert not rw.try_rlock()  # another writer waits
        assert [g.state for g in readers] == ["waiting"] * 3
        writers[1].cancel()
        for g in readers:
            await g
        assert rw.try_rlock()
        for _ in range(5):
            assert not rw.try_lock()
            rw.runlock()
        assert free(rw)
        with pytest.raises(gofer.Cancelled):
            await writers[1]

    gofer.run(main, procs=procs)


def test_a_reader_that_is_cancelled_does_not_count(procs: int) -> None:
    async def main() -> None:
        rw = gofer.RWMutex()
        await rw.lock()
        readers = [await waiting(rw.rlock()) for _ in range(3)]
        readers[1].cancel()
        with pytest.raises(gofer.Cancelled):
            await readers[1]
        rw.unlock()
        await readers[0]
        await readers[2]
        rw.runlock()
        rw.runlock()
        assert free(rw)

    gofer.run(main, procs=procs)


# --- Threads --------------------------------------------------------------------------------------


def test_with_in_plain_code() -> None:
    rw = gofer.RWMutex()
    with rw:
        assert rw.locked()
        assert not rw.try_rlock()
    assert free(rw)
    with rw.reader, rw.reader:
        assert rw.try_rlock()
        rw.runlock()
        assert not rw.try_lock()
    assert free(rw)
    for lock in (rw, rw.reader):
        with pytest.raises(KeyError), lock:
            raise KeyError
        assert free(rw)


def test_threads_and_goroutines_share_one(procs: int) -> None:
    rw = gofer.RWMutex()
    log: list[str] = []

    def writes() -> None:
        log.append("comes")
        with rw:
            log.append("wrote")

    def reads() -> None:
        log.append("comes")
        with rw.reader:
            log.append("read")

    async def main() -> None:
        await rw.rlock()
        with thread(writes):
            await until(lambda: writer_waits(rw))
            assert log == ["comes"]
            rw.runlock()
            await until(lambda: "wrote" in log)
        log.clear()
        await rw.lock()
        with thread(reads), thread(reads):
            await until(lambda: len(log) == 2)
            await gofer.sleep(0.002)
            assert log == ["comes", "comes"]
            rw.unlock()
            await until(lambda: len(log) == 4)
        await rw.lock()
        rw.unlock()

    gofer.run(main, procs=procs)
