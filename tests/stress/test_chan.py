"""Channels and select under contention: no value is lost, none comes twice, nobody is left."""

import contextlib
import gc
import os
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

import gofer
from tests.support import PATIENCE, SANITIZED, STRESS_ROUNDS, give, parked, rounds, thread

T = TypeVar("T")
Ints: TypeAlias = gofer.Chan[int]


async def drain(ch: gofer.Chan[T]) -> list[T]:
    return [value async for value in ch]


async def came_to_wait(*goroutines: gofer.Goroutine[Any]) -> None:
    """As parked(), for tests that do it a thousand times."""
    for g in goroutines:
        while g.state != "waiting":
            assert not g.done(), g
            await gofer.gosched()


# --- Ways to receive one value, and to send one ---------------------------------------------------


async def by_recv(ch: Ints) -> tuple[int | None, bool]:
    try:
        return await ch.recv(), True
    except gofer.ChannelClosed:
        return None, False


async def by_recv_ok(ch: Ints) -> tuple[int | None, bool]:
    return await ch.recv_ok()


async def by_async_for(ch: Ints) -> tuple[int | None, bool]:
    async for value in ch:
        return value, True
    return None, False


NEVER = gofer.Chan[int]()  # nobody sends here
NOWHERE = gofer.Chan[int]()  # and here nobody receives


async def by_select(ch: Ints) -> tuple[int | None, bool]:
    index, value, ok = await gofer.select(NEVER.recv(), ch.recv(), NOWHERE.send(1))
    assert index == 1
    return value, ok


RECEIVE = [by_recv, by_recv_ok, by_async_for, by_select]


async def by_send(ch: Ints, value: int) -> None:
    await ch.send(value)


async def by_selected_send(ch: Ints, value: int) -> None:
    result = await gofer.select(NEVER.recv(), ch.send(value), NOWHERE.send(1))
    assert result == (1, None, True)


SEND = [by_send, by_selected_send]


# --- Producers and consumers ----------------------------------------------------------------------


def test_four_producers_and_four_consumers_at_every_capacity(procs: int) -> None:
    n = 25

    async def produce(ch: Ints, me: int) -> None:
        for i in range(n):
            await SEND[me % 2](ch, me * n + i)

    async def consume(ch: Ints, me: int) -> list[int]:
        got: list[int] = []
        while True:
            value, ok = await RECEIVE[me](ch)
            if not ok:
                return got
            assert value is not None
            got.append(value)

    async def main() -> None:
        for _ in rounds(divide_by=100):
            for cap in range(21):
                ch = gofer.Chan[int](cap)
                consumers = [gofer.go(consume, ch, i) for i in range(4)]
                producers = [gofer.go(produce, ch, i) for i in range(4)]
                for g in producers:
                    await g
                ch.close()
                got = [await g for g in consumers]
                assert sorted(v for values in got for v in values) == list(range(4 * n))
                for values in got:  # of each producer in order
                    for me in range(4):
                        mine = [v for v in values if v // n == me]
                        assert mine == sorted(mine)

    gofer.run(main, procs=procs)


def test_foreign_threads_against_goroutines(procs: int) -> None:
    n = 200

    def spin(call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except gofer.WouldBlock:
                time.sleep(0)

    def produce(ch: Ints, base: int) -> None:
        for i in range(base, base + n):
            spin(lambda i=i: ch.send_nowait(i))  # type: ignore[misc]
        ended.release()

    def consume(ch: Ints) -> None:
        with contextlib.suppress(gofer.ChannelClosed):
            while True:
                stolen.append(spin(ch.recv_nowait))

    async def produce_too(ch: Ints, base: int) -> None:
        for i in range(base, base + n):
            await ch.send(i)

    async def main() -> None:
        for r in rounds(divide_by=100):
            stolen.clear()
            ch = gofer.Chan[int](r % 3)
            with contextlib.ExitStack() as stack:
                stack.enter_context(thread(consume, ch))
                for i in range(2):
                    stack.enter_context(thread(produce, ch, i * n))
                consumers = [gofer.go(drain, ch) for _ in range(2)]
                await gofer.go(produce_too, ch, 2 * n)
                for _ in range(2):
                    while not ended.acquire(blocking=False):
                        await gofer.sleep(0.0005)
                ch.close()
                got = [value for g in consumers for value in await g]
            assert sorted(got + stolen) == list(range(3 * n))

    stolen: list[int] = []
    ended = threading.Semaphore(0)
    gofer.run(main, procs=procs)


# --- Cancelling -----------------------------------------------------------------------------------


class Storm:
    """Cancels goroutines at random until it is told to stop."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.targets: list[gofer.Goroutine[Any]] = []
        self.over = False

    async def blow(self) -> None:
        while not self.over:
            self.rng.choice(self.targets).cancel()
            for _ in range(self.rng.randrange(3)):
                await gofer.gosched()


@contextlib.asynccontextmanager
async def storm(seed: int, *targets: gofer.Goroutine[Any]) -> AsyncIterator[None]:
    it = Storm(seed)
    it.targets.extend(targets)
    blowing = [gofer.go(it.blow) for _ in range(2)]
    try:
        yield
    finally:
        it.over = True
        for g in blowing:
            await g


def test_cancelled_receivers_lose_and_double_nothing(procs: int) -> None:
    n = 60
    cancelled: list[int] = []

    async def consume(ch: Ints, me: int, got: list[int]) -> None:
        while True:
            try:
                value, ok = await RECEIVE[me % 4](ch)
            except gofer.Cancelled:
                cancelled.append(me)
                continue
            if not ok:
                return
            assert value is not None
            got.append(value)

    async def produce(ch: Ints, base: int) -> None:
        for i in range(base, base + n):
            await SEND[i % 2](ch, i)

    async def main() -> None:
        for r in rounds(divide_by=20):
            ch = gofer.Chan[int](r % 4)
            got: list[int] = []
            consumers = [gofer.go(consume, ch, i, got) for i in range(4)]
            await parked(*consumers)  # one that is cancelled before it begins never does
            async with storm(r, *consumers):
                producers = [gofer.go(produce, ch, i * n) for i in range(3)]
                for g in producers:
                    await g
            ch.close()
            for c in consumers:
                await c
            assert sorted(got) == list(range(3 * n))

    gofer.run(main, procs=procs)
    assert cancelled or STRESS_ROUNDS < 300


def test_cancelled_senders_lose_and_double_nothing(procs: int) -> None:
    """What was cancelled was not sent, what was sent arrives, once."""
    n = 60
    cancelled: list[int] = []
    arrived = 0

    async def produce(ch: Ints, me: int, begin: gofer.Chan[None], sent: list[int]) -> None:
        await begin.recv_ok()
        for i in range(me * n, (me + 1) * n):
            try:
                await SEND[i % 2](ch, i)
            except gofer.Cancelled:
                cancelled.append(i)
            else:
                sent.append(i)

    async def main() -> None:
        nonlocal arrived
        for r in rounds(divide_by=20):
            ch, begin = gofer.Chan[int](r % 4), gofer.Chan[None]()
            sent: list[int] = []
            before = len(cancelled)
            producers = [gofer.go(produce, ch, i, begin, sent) for i in range(4)]
            await parked(*producers)
            begin.close()  # so that has been received, and the next operation is the first send
            consumers = [gofer.go(drain, ch) for _ in range(2)]
            async with storm(r, *producers):
                for g in producers:
                    await g
            ch.close()
            got = [value for c in consumers for value in await c]
            assert sorted(got) == sorted(sent)
            assert sorted(sent + cancelled[before:]) == list(range(4 * n))
            arrived += len(got)

    gofer.run(main, procs=procs)
    assert cancelled or STRESS_ROUNDS < 300
    assert arrived


def test_cancelled_selects_lose_and_double_nothing(procs: int) -> None:
    """Each worker sends to one channel and receives from another, whichever can be done."""
    n = 40
    cancelled: list[int] = []

    async def work(out: Ints, back: Ints, me: int, got: list[int]) -> None:
        i = me * n
        is_open = True
        while i < (me + 1) * n:
            cases: list[Any] = [out.send(i), back.recv() if is_open else None]
            try:
                result = await gofer.select(*cases)
            except gofer.Cancelled:
                cancelled.append(i)
                continue  # it was not sent: try again
            if result.index == 0:
                i += 1
            elif result.ok:
                got.append(result.value)
            else:
                is_open = False

    async def produce(ch: Ints) -> None:
        for i in range(4 * n):
            await ch.send(i)
        ch.close()

    async def main() -> None:
        for r in rounds(divide_by=20):
            out, back = gofer.Chan[int](r % 3), gofer.Chan[int](r % 2)
            got: list[int] = []
            workers = [gofer.go(work, out, back, i, got) for i in range(4)]
            await parked(*workers)  # nobody receives yet
            producer, consumer = gofer.go(produce, back), gofer.go(drain, out)
            async with storm(r, *workers):
                for g in workers:
                    await g
            got += await drain(back)
            await producer
            out.close()
            assert sorted(await consumer) == list(range(4 * n))
            assert sorted(got) == list(range(4 * n))

    gofer.run(main, procs=procs)
    assert cancelled or STRESS_ROUNDS < 300


async def count_cancellations(operation: Awaitable[Any], told: list[bool]) -> tuple[Any, int]:
    """What the operation gave, and how often Cancelled came out: of it, or of one after it."""
    result, seen = None, 0
    try:
        result = await operation
    except gofer.Cancelled:
        seen += 1
    while not told:
        try:
            await gofer.gosched()
        except gofer.Cancelled:
            seen += 1
    for _ in range(2):
        try:
            await gofer.gosched()
        except gofer.Cancelled:
            seen += 1
    return result, seen


async def try_send(ch: Ints) -> Any:
    """What a receiver gets: 7, or None if there was none."""
    try:
        ch.send_nowait(7)
    except gofer.WouldBlock:
        return None
    return 7


async def try_recv(ch: Ints) -> Any:
    try:
        return ch.recv_nowait()
    except gofer.WouldBlock:
        return None


@pytest.mark.parametrize(
    ("make", "partner", "value_of"),
    [
        (lambda ch: ch.recv(), try_send, lambda result: result),
        (lambda ch: ch.recv_ok(), try_send, lambda result: result and result[0]),
        (
            lambda ch: gofer.select(NEVER.recv(), ch.recv()),
            try_send,
            lambda result: result and result.value,
        ),
        # A select tells that it has sent; a plain send gives None either way, and is tested above.
        (
            lambda ch: gofer.select(ch.send(7), NOWHERE.send(1)),
            try_recv,
            lambda result: result and 7,
        ),
    ],
    ids=["recv", "recv_ok", "select recv", "select send"],
)
def test_a_hand_over_against_a_cancellation(
    make: Callable[[Ints], Awaitable[Any]],
    partner: Callable[[Ints], Any],
    value_of: Callable[[Any], Any],
    procs: int,
) -> None:
    """Either both sides have the value or none has; the cancellation comes out once either way."""

    async def cancel(g: gofer.Goroutine[Any], told: list[bool]) -> None:
        assert g.cancel()
        told.append(True)

    async def main() -> None:
        ch = gofer.Chan[int]()
        for i in rounds():
            told: list[bool] = []
            g = gofer.go(count_cancellations, make(ch), told)
            await came_to_wait(g)
            if i % 2:
                other = gofer.go(partner, ch)
                canceller = gofer.go(cancel, g, told)
            else:
                canceller = gofer.go(cancel, g, told)
                other = gofer.go(partner, ch)
            value = await other
            await canceller
            result, seen = await g
            assert value_of(result) == value
            assert seen == 1
            assert await try_recv(ch) is None
            assert await try_send(ch) is None

    gofer.run(main, procs=procs)


# --- select ---------------------------------------------------------------------------------------


def test_select_among_plain_senders_and_receivers(procs: int) -> None:
    """Each of four channels has its own sender and receiver, and one more of both serve all."""
    n = 50
    caps = (0, 0, 2, 3)

    async def send(ch: Ints, base: int) -> None:
        for i in range(n):
            await ch.send(base + i)
            if i % 8 == 0:
                await gofer.gosched()

    async def receive(ch: Ints) -> list[int]:
        return [await ch.recv() for _ in range(n)]

    async def send_to_all(channels: list[Ints]) -> None:
        left = [n] * 4
        while any(left):
            index, _, ok = await gofer.select(
                *[ch.send(n + left[k] - 1) if left[k] else None for k, ch in enumerate(channels)]
            )
            assert ok
            left[index] -= 1

    async def receive_from_all(channels: list[Ints]) -> list[list[int]]:
        got: list[list[int]] = [[] for _ in channels]
        while any(len(values) < n for values in got):
            index, value, ok = await gofer.select(
                *[ch.recv() if len(got[k]) < n else None for k, ch in enumerate(channels)]
            )
            assert ok
            got[index].append(value)
        return got

    async def main() -> None:
        for _ in rounds(divide_by=20):
            channels = [gofer.Chan[int](cap) for cap in caps]
            plain = [gofer.go(receive, ch) for ch in channels]
            select = gofer.go(receive_from_all, channels)
            gs = [gofer.go(send_to_all, channels), *(gofer.go(send, ch, 0) for ch in channels)]
            for g in gs:
                await g
            by_select = await select
            for k in range(4):
                assert sorted(await plain[k] + by_select[k]) == list(range(2 * n))

    gofer.run(main, procs=procs)


def test_random_selects_in_every_order_of_channels(procs: int) -> None:
    """Whoever locks several channels must lock them in one order."""
    n = 30

    async def work(channels: list[Ints], me: int, log: Counter[tuple[int, int]]) -> None:
        rng = random.Random(me)
        for i in range(n):
            order = rng.sample(range(4), 4)
            value = me * n + i
            cases: list[Any] = [
                channels[k].send(value) if rng.random() < 0.5 else channels[k].recv() for k in order
            ]
            escape = [gofer.sleep(0.00002)] if i % 2 else []
            index, got, _ = await gofer.select(*cases, *escape, default=not escape)
            if 0 <= index < 4:
                log[order[index], value if got is None else got] += 1 if got is None else -1

    async def main() -> None:
        for r in rounds(divide_by=10):
            channels = [gofer.Chan[int](cap) for cap in (0, 0, 1, 3)]
            logs = [Counter[tuple[int, int]]() for _ in range(8)]
            gs = [gofer.go(work, channels, me + r, log) for me, log in enumerate(logs)]
            for g in gs:
                await g
            total = Counter[tuple[int, int]]()
            for log in logs:
                total.update(log)
            for k, ch in enumerate(channels):
                ch.close()
                for value in await drain(ch):
                    total[k, value] -= 1
            assert not +total, "sent and not received"
            assert not -total, "received and not sent"

    gofer.run(main, procs=procs)


def test_selects_that_both_send_and_receive_meet_only_others(procs: int) -> None:
    n = 50

    async def work(ch: Ints, me: int) -> None:
        for i in range(n):
            cases = [ch.send(me), ch.recv()]
            result = await gofer.select(*(cases if i % 2 else cases[::-1]))
            if result.value is not None and ch.cap == 0:
                assert result.value != me

    async def main() -> None:
        for _ in rounds(divide_by=50):
            for cap in range(11):
                ch = gofer.Chan[int](cap)
                gs = [gofer.go(work, ch, me) for me in range(2)]
                for g in gs:
                    await g

    gofer.run(main, procs=procs)


def test_of_one_select_only_one_case_is_done(procs: int) -> None:
    """Four receivers wake the same select at the same time: each value comes through once."""
    n = 100

    async def send(channels: list[Ints]) -> None:
        for i in range(n):
            assert (await gofer.select(*[ch.send(i) for ch in channels])).ok
        for ch in channels:
            ch.close()

    async def pass_on(ch: Ints, out: Ints, done: gofer.Chan[None]) -> None:
        async for value in ch:
            await out.send(value)
        await done.send(None)

    async def end(out: Ints, done: gofer.Chan[None]) -> None:
        for _ in range(4):
            await done.recv()
        out.close()

    async def main() -> None:
        for _ in rounds(divide_by=20):
            channels = [gofer.Chan[int]() for _ in range(4)]
            out, done = gofer.Chan[int](), gofer.Chan[None]()
            for ch in channels:
                gofer.go(pass_on, ch, out, done)
            gofer.go(send, channels)
            gofer.go(end, out, done)
            assert sorted(await drain(out)) == list(range(n))

    gofer.run(main, procs=procs)


class InStep:
    """Two goroutines that do one thing after the other, each at the same time if they can."""

    def __init__(self) -> None:
        self.at = [-1, -1]

    def meet(self, me: int, step: int) -> None:
        self.at[me] = step
        for _ in range(200 if step else 20_000):  # on one P the other cannot come
            if self.at[1 - me] >= step:
                break
        for _ in range(random.randrange(40)):  # one now a little before the other, now after it
            pass


BATCH = 50


@pytest.mark.parametrize("second", ["sent", "closed"])
def test_default_is_never_taken_while_one_of_two_is_ready(second: str, procs: int) -> None:
    """The first is ready until after the second is: at no instant is there none."""
    never = [gofer.Chan[int]() for _ in range(150)]

    async def look(pairs: list[tuple[Ints, Ints]], step: InStep) -> list[int]:
        found = []
        for i, (a, b) in enumerate(pairs):
            between = never[: i % 4 * 50]
            # Who looked at one after the other would miss both, the longer the way the likelier.
            op = gofer.select(b.recv(), *[ch.recv() for ch in between], a.recv(), default=True)
            step.meet(0, i)
            found.append((await op).index)
        step.meet(0, BATCH)
        return found

    async def change(pairs: list[tuple[Ints, Ints]], step: InStep) -> None:
        for i, (a, b) in enumerate(pairs):
            step.meet(1, i)
            if second == "sent":
                b.send_nowait(1)
            else:
                b.close()
            await gofer.select(a.recv(), default=True)
        step.meet(1, BATCH)

    async def main() -> None:
        for _ in rounds(divide_by=20):
            pairs = [(gofer.Chan[int](1), gofer.Chan[int](1)) for _ in range(BATCH)]
            for a, _ in pairs:
                a.send_nowait(1)
            step = InStep()
            looking, changing = gofer.go(look, pairs, step), gofer.go(change, pairs, step)
            assert -1 not in await looking
            await changing

    gofer.run(main, procs=procs)


def always_received(ch: Ints) -> bool:
    try:
        ch.recv_nowait()
    except gofer.WouldBlock:
        return False
    except gofer.ChannelClosed:
        pass
    return True


def always_sent(ch: Ints) -> bool:
    try:
        ch.send_nowait(1)
    except gofer.WouldBlock:
        return False
    except gofer.ChannelClosed:
        pass
    return True


@pytest.mark.parametrize("try_it", [always_received, always_sent])
def test_a_channel_that_is_ready_until_it_is_closed_never_would_block(
    try_it: Callable[[Ints], bool], procs: int
) -> None:
    """It has a value, or a receiver, until after it is closed. A quick look must not miss both."""

    async def look(channels: list[Ints], step: InStep) -> list[bool]:
        found = []
        for i, ch in enumerate(channels):
            step.meet(0, i)
            found.append(try_it(ch))
        step.meet(0, BATCH)
        return found

    async def close(channels: list[Ints], step: InStep) -> None:
        for i, ch in enumerate(channels):
            step.meet(1, i)
            ch.close()
            always_received(ch)
        step.meet(1, BATCH)

    async def main() -> None:
        receives = try_it is always_received
        for _ in rounds(divide_by=20):
            channels = [gofer.Chan[int](int(receives)) for _ in range(BATCH)]
            gs = []
            for ch in channels:
                if receives:
                    ch.send_nowait(1)
                else:
                    gs.append(gofer.go(by_recv_ok, ch))
            await came_to_wait(*gs)
            step = InStep()
            looking, closing = gofer.go(look, channels, step), gofer.go(close, channels, step)
            assert all(await looking)
            await closing
            for g in gs:
                await g

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("ready", [True, False], ids=["ready", "waiting"])
@pytest.mark.parametrize(
    "make",
    [
        lambda ch: ch.recv(),
        lambda ch: gofer.select(ch.recv(), NEVER.recv(), gofer.sleep(1000)),
    ],
    ids=["recv", "select"],
)
def test_of_two_who_await_one_operation_at_once_one_gets_an_error(
    make: Callable[[Ints], Awaitable[Any]], ready: bool, procs: int
) -> None:
    async def awaits(ops: list[Awaitable[Any]], me: int, step: InStep) -> list[bool]:
        done = []
        for i, op in enumerate(ops):
            step.meet(me, i)
            try:
                await op
            except RuntimeError as exc:
                done.append("awaited" not in str(exc))
            else:
                done.append(True)
        step.meet(me, BATCH)
        return done

    async def main() -> None:
        for _ in rounds(divide_by=50):
            channels = [gofer.Chan[int](2 if ready else 0) for _ in range(BATCH)]
            for ch in channels:
                while len(ch) < ch.cap:
                    ch.send_nowait(1)
            ops = [make(ch) for ch in channels]
            step = InStep()
            gs = [gofer.go(awaits, ops, me, step) for me in range(2)]
            for ch in channels:
                if not ready:
                    await ch.send(1)
            first, second = [await g for g in gs]
            assert [a + b for a, b in zip(first, second, strict=True)] == [1] * BATCH
            assert [len(ch) for ch in channels] == [int(ready)] * BATCH

    gofer.run(main, procs=procs)


def test_a_time_limit_that_ends_just_as_the_value_comes(procs: int) -> None:
    """Who gives up has not taken the value."""

    async def produce(ch: Ints) -> int:
        rng = random.Random(procs)
        n = 0
        for n in rounds():
            if n % 2:
                await gofer.sleep(rng.random() * 0.00006)
            await ch.send(n)
        ch.close()
        return n

    async def main() -> None:
        for cap in (0, 1):
            ch = gofer.Chan[int](cap)
            producer = gofer.go(produce, ch)
            got: list[int] = []
            while True:
                match await gofer.select(ch.recv(), gofer.sleep(0.00003)):
                    case (0, value, True):
                        got.append(value)
                    case (0, _, False):
                        break
            assert got == list(range(await producer + 1))

    gofer.run(main, procs=procs)


def test_a_goroutine_that_ends_just_as_the_value_comes(procs: int) -> None:
    async def send(ch: Ints) -> bool:
        return bool(await try_send(ch))

    async def main() -> None:
        ch = gofer.Chan[int]()
        for i in rounds():
            target = gofer.go(give, "result")
            sender = gofer.go(send, ch)
            if i % 2:
                await gofer.gosched()
            index, value, ok = await gofer.select(ch.recv(), target)
            assert (index, value, ok) in ((0, 7, True), (1, "result", True))
            assert await sender is (index == 0)
            assert await target == "result"

    gofer.run(main, procs=procs)


# --- Closing --------------------------------------------------------------------------------------


def test_close_against_all_who_wait(procs: int) -> None:
    """Each sender has delivered or knows that it has not; each receiver ends; one closer wins."""

    async def send(ch: Ints, me: int) -> list[int]:
        sent = []
        with contextlib.suppress(gofer.ChannelClosed):
            for i in range(10):
                await SEND[i % 2](ch, me * 10 + i)
                sent.append(me * 10 + i)
        return sent

    async def receive(ch: Ints, me: int) -> list[int]:
        got: list[int] = []
        while True:
            value, ok = await RECEIVE[me](ch)
            if not ok:
                return got
            assert value is not None
            got.append(value)

    async def close(ch: Ints, yields: int) -> bool:
        for _ in range(yields):
            await gofer.gosched()
        try:
            ch.close()
        except gofer.ChannelClosed:
            return False
        return True

    async def main() -> None:
        rng = random.Random(procs)
        for r in rounds(divide_by=2):
            ch = gofer.Chan[int](r % 4)
            receivers = [gofer.go(receive, ch, i) for i in range(r % 5)]
            senders = [gofer.go(send, ch, i) for i in range(4)]
            closers = [gofer.go(close, ch, rng.randrange(6)) for _ in range(2)]
            assert sum([await g for g in closers]) == 1
            sent = [value for g in senders for value in await g]
            got = [value for g in receivers for value in await g]
            got += await drain(ch)
            assert sorted(got) == sorted(sent)

    gofer.run(main, procs=procs)


def test_the_end_of_a_run_against_all_who_wait() -> None:
    """Main ends while others pass values on; nothing is left (conftest.py counts)."""

    async def play(ch: Ints, other: Ints) -> None:
        while True:
            result = await gofer.select(ch.send(1), other.recv(), gofer.sleep(0.001))
            assert result.ok
            await gofer.gosched()  # or each would use its slice to the end

    async def main(yields: int) -> None:
        a, b = gofer.Chan[int](), gofer.Chan[int](1)
        for _ in range(4):
            gofer.go(play, a, b)
            gofer.go(play, b, a)
            gofer.go(drain, a)
        for _ in range(yields):
            await gofer.gosched()

    for r in rounds(divide_by=4):
        gofer.run(main, r % 7, procs=1 + r % 4)


# --- Costs ----------------------------------------------------------------------------------------


async def time_to_wake(n: int) -> float:
    """Seconds to wake n that wait at one channel, each by another one, last come first served."""

    async def wait(own: Ints) -> None:
        await gofer.select(NEVER.recv(), own.recv(), NOWHERE.send(1))

    own = [gofer.Chan[int]() for _ in range(n)]
    gs = [gofer.go(wait, ch) for ch in own]
    await parked(*gs)
    start = time.perf_counter()
    for ch in reversed(own):
        ch.send_nowait(1)
    for g in gs:
        await g
    return time.perf_counter() - start


async def time_to_cancel(n: int) -> float:
    """Seconds to cancel n that wait at one channel, in random order."""
    ch = gofer.Chan[int]()

    async def wait() -> None:
        with contextlib.suppress(gofer.Cancelled):
            await ch.recv()

    gs = [gofer.go(wait) for _ in range(n)]
    await parked(*gs)
    shuffled = random.Random(n).sample(gs, n)
    start = time.perf_counter()
    for g in shuffled:
        g.cancel()
    for g in gs:
        await g
    return time.perf_counter() - start


@pytest.mark.parametrize("measure", [time_to_wake, time_to_cancel])
@pytest.mark.parametrize("procs", [1, 4])
def test_to_leave_a_line_costs_the_same_however_long_it_is(
    measure: Callable[[int], Awaitable[float]], procs: int
) -> None:
    """Twice as many take less than three times as long."""

    async def main() -> None:
        n = 10_000
        ratios = []
        for _ in range(5):  # others use this machine too
            once = await measure(n)
            ratios.append(await measure(2 * n) / once)
            if ratios[-1] < 3:
                return
        raise AssertionError(f"twice as many took {ratios} times as long")

    gc.disable()
    try:
        gofer.run(main, procs=procs)
    finally:
        gc.enable()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(SANITIZED, reason="sanitizers keep freed memory, so growth says nothing")
@pytest.mark.parametrize("procs", [1, 4])
def test_a_hundred_thousand_selects_need_no_more_memory_than_a_few(procs: int) -> None:
    """A record left behind by each would be five megabytes."""

    async def partner(ch: Ints) -> None:
        async for _ in ch:
            pass

    async def selects(n: int, ch: Ints, never: Ints) -> None:
        idle = gofer.go(wait_for_never, never)
        await parked(idle)
        for _ in range(n):
            await gofer.select(never.recv(), ch.send(1), idle, gofer.sleep(1000), never.recv())
        idle.cancel()

    async def wait_for_never(never: Ints) -> None:
        await never.recv()

    async def main() -> None:
        ch, never = gofer.Chan[int](), gofer.Chan[int]()
        gofer.go(partner, ch)
        await selects(20_000, ch, never)
        gc.collect()
        before = resident_bytes()
        await selects(100_000, ch, never)
        gc.collect()
        assert resident_bytes() - before < 3_000_000

    gofer.run(main, procs=procs)


def test_pairs_that_never_wait_starve_nobody(procs: int) -> None:
    """All Ps are taken by goroutines whose operations can always be done at once."""
    turns: list[float] = []
    stop: list[bool] = []
    deadline = time.monotonic() + PATIENCE / 2

    async def alone(ch: Ints) -> None:
        while not stop and time.monotonic() < deadline:
            await ch.send(1)
            await ch.recv()

    async def forth(ping: Ints, pong: Ints) -> None:
        while not stop and time.monotonic() < deadline:
            await ping.send(1)
            await pong.recv()
        ping.close()

    async def back(ping: Ints, pong: Ints) -> None:
        async for value in ping:
            await pong.send(value)

    async def modest() -> None:
        for _ in range(3):
            await gofer.gosched()
        turns.append(time.monotonic())

    async def main() -> None:
        greedy = []
        for i in range(procs + 1):
            if i % 2:
                greedy.append(gofer.go(alone, gofer.Chan[int](1)))
            else:
                ping, pong = gofer.Chan[int](), gofer.Chan[int]()
                greedy += [gofer.go(forth, ping, pong), gofer.go(back, ping, pong)]
        gs = [gofer.go(modest) for _ in range(4)]
        for g in gs:
            await g
        stop.append(True)
        for g in greedy:
            await g

    gofer.run(main, procs=procs)
    assert len(turns) == 4
    assert max(turns) < deadline
