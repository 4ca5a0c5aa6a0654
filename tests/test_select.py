"""select(): one of several, whichever can be done first."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

import gofer
from gofer import _core
from tests.support import give, parked, sleep_long, thread, until, wait_for

T = TypeVar("T")

SEND_CLOSED = "^send on closed channel$"


async def waiting(operation: Awaitable[T]) -> gofer.Goroutine[T]:
    """A goroutine that waits in `operation`, and has come to wait."""
    g = gofer.go(wait_for, operation)
    await parked(g)
    return g


def full(*values: T) -> gofer.Chan[T]:
    """A channel whose buffer holds just these."""
    ch = gofer.Chan[T](len(values))
    for value in values:
        ch.send_nowait(value)
    return ch


def closed(*values: int) -> gofer.Chan[int]:
    ch = full(*values)
    ch.close()
    return ch


def nobody_waits_at(*channels: gofer.Chan[Any]) -> None:
    """At channels that are empty and without a buffer."""
    for ch in channels:
        with pytest.raises(gofer.WouldBlock):
            ch.recv_nowait()
        with pytest.raises(gofer.WouldBlock):
            ch.send_nowait("value")


async def fail() -> None:
    raise ValueError("failed")


# --- One that is ready ----------------------------------------------------------------------------


def test_the_one_that_is_ready_is_done(procs: int) -> None:
    async def main() -> None:
        never = gofer.Chan[int]()
        ch = gofer.Chan[int](1)
        assert await gofer.select(never.recv(), ch.send(5), never.send(1)) == (1, None, True)
        assert len(ch) == 1
        assert await gofer.select(never.recv(), never.recv(), ch.recv()) == (2, 5, True)
        assert len(ch) == 0
        assert await gofer.select(full(6).recv_ok(), never.recv()) == (0, 6, True)
        nobody_waits_at(never)

    gofer.run(main, procs=procs)


def test_the_result_is_a_named_tuple_made_for_match(procs: int) -> None:
    async def main() -> None:
        result = await gofer.select(full("value").recv())
        assert isinstance(result, gofer.Selected)
        assert isinstance(result, tuple)
        assert (result.index, result.value, result.ok) == (0, "value", True)
        assert repr(result) == "Selected(index=0, value='value', ok=True)"
        match await gofer.select(None, full("other").recv()):
            case gofer.Selected(1, value, True):
                assert value == "other"
            case _:
                raise AssertionError
        match await gofer.select(closed().recv(), gofer.sleep(1000)):
            case (0, _, ok):
                assert ok is False
            case _:
                raise AssertionError

    gofer.run(main, procs=procs)


def test_a_partner_that_waits_makes_it_ready(procs: int) -> None:
    async def main() -> None:
        a, b = gofer.Chan[str](), gofer.Chan[str]()
        sender = await waiting(a.send("from a"))
        assert await gofer.select(b.recv(), a.recv()) == (1, "from a", True)
        await sender
        receiver = await waiting(b.recv())
        assert await gofer.select(a.send("to a"), b.send("to b")) == (1, None, True)
        assert await receiver == "to b"
        nobody_waits_at(a, b)

    gofer.run(main, procs=procs)


def test_only_one_of_those_ready_is_done(procs: int) -> None:
    async def main() -> None:
        for _ in range(50):
            sources = [full(i) for i in range(5)]
            sinks = [gofer.Chan[int](1) for _ in range(5)]
            cases = [ch.recv() for ch in sources] + [ch.send(9) for ch in sinks]
            index, value, ok = await gofer.select(*cases)
            assert ok
            assert value == (index if index < 5 else None)
            assert [len(ch) for ch in sources] == [int(i != index) for i in range(5)]
            assert [len(ch) for ch in sinks] == [int(i + 5 == index) for i in range(5)]

    gofer.run(main, procs=procs)


def test_a_closed_channel_is_ready_when_it_is_drained_too(procs: int) -> None:
    async def main() -> None:
        never = gofer.Chan[int]()
        for name in ("recv", "recv_ok"):
            ch = closed(1, 2)
            got = [await gofer.select(never.recv(), getattr(ch, name)()) for _ in range(4)]
            assert got == [(1, 1, True), (1, 2, True), (1, None, False), (1, None, False)]

    gofer.run(main, procs=procs)


def test_a_send_case_on_a_closed_channel_raises(procs: int) -> None:
    async def main() -> None:
        for ch in (closed(), closed(1), gofer.Chan[int](3)):
            if not ch.closed:
                ch.close()
            for default in (False, True):
                with pytest.raises(gofer.ChannelClosed, match=SEND_CLOSED):
                    await gofer.select(gofer.Chan[int]().recv(), ch.send(1), default=default)

    gofer.run(main, procs=procs)


def test_none_is_never_ready_and_keeps_its_number(procs: int) -> None:
    async def main() -> None:
        ch = full(1, 2)
        assert await gofer.select(None, None, ch.recv(), None) == (2, 1, True)
        ch.send_nowait(3)
        g = await waiting(gofer.select(None, gofer.Chan[int]().recv(), None, ch.send(4)))
        assert await ch.recv() == 2
        assert await g == (3, None, True)

    gofer.run(main, procs=procs)


def test_views_are_as_good_as_channels(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        g = await waiting(gofer.select(None, ch.receiver.recv()))
        assert await gofer.select(ch.sender.send(7)) == (0, None, True)
        assert await g == (1, 7, True)
        g = await waiting(gofer.select(ch.sender.send(8)))
        assert await gofer.select(ch.receiver.recv_ok()) == (0, 8, True)
        assert await g == (0, None, True)

    gofer.run(main, procs=procs)


def test_a_thousand_cases(procs: int) -> None:
    async def main() -> None:
        channels = [gofer.Chan[int]() for _ in range(1000)]
        for i in (0, 1, 500, 998, 999):
            g = await waiting(gofer.select(*[ch.recv() for ch in channels]))
            channels[i].send_nowait(i)
            assert await g == (i, i, True)
            g = await waiting(gofer.select(*[ch.send(k) for k, ch in enumerate(channels)]))
            assert channels[i].recv_nowait() == i
            assert await g == (i, None, True)
        nobody_waits_at(*channels)

    gofer.run(main, procs=procs)


# --- default --------------------------------------------------------------------------------------


def test_default_is_taken_if_none_is_ready(procs: int) -> None:
    async def main() -> None:
        empty, no_room, never = gofer.Chan[int](3), full(1), gofer.Chan[int]()
        g = gofer.go(sleep_long)
        for cases in (
            [],
            [None],
            [empty.recv()],
            [empty.recv_ok(), no_room.send(1)],
            [never.recv(), never.send(1), None],
            [gofer.sleep(1000)],
            [g],
        ):
            result = await gofer.select(*cases, default=True)
            assert result == (-1, None, False)
            assert isinstance(result, gofer.Selected)
        nobody_waits_at(never)
        assert (len(empty), len(no_room)) == (0, 1)
        g.cancel()

    gofer.run(main, procs=procs)


def test_default_is_not_taken_if_one_is_ready(procs: int) -> None:
    async def main() -> None:
        never, done = gofer.Chan[int](), gofer.go(give, "result")
        await done
        sender = await waiting(gofer.select(never.send(1)))
        for cases, expected in (
            ([never.recv()], (0, 1, True)),
            ([never.recv(), full(2).recv()], (1, 2, True)),
            ([never.recv(), gofer.Chan[int](1).send(1)], (1, None, True)),
            ([never.recv(), closed().recv()], (1, None, False)),
            ([done, never.recv()], (0, "result", True)),
        ):
            assert await gofer.select(*cases, default=True) == expected
        await sender

    gofer.run(main, procs=procs)


def test_default_leaves_the_cases_as_they_were(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int](1)
        recv, send, sleep = ch.recv(), ch.send(1), gofer.sleep(0.001)
        for _ in range(3):
            assert (await gofer.select(recv, sleep, default=True)).index == -1
        await send
        assert await recv == 1
        await sleep

    gofer.run(main, procs=procs)


# --- Waiting --------------------------------------------------------------------------------------


def test_it_waits_until_one_is_ready_and_then_waits_nowhere(procs: int) -> None:
    async def main() -> None:
        a, b, c = (gofer.Chan[str]() for _ in range(3))

        async def start() -> gofer.Goroutine[gofer.Selected]:
            g = await waiting(gofer.select(a.recv(), b.send("mine"), c.recv_ok()))
            assert g.wait_reason == "select"
            return g

        g = await start()
        await a.send("to a")
        assert await g == (0, "to a", True)
        nobody_waits_at(a, b, c)
        g = await start()
        assert await b.recv() == "mine"
        assert await g == (1, None, True)
        nobody_waits_at(a, b, c)
        g = await start()
        c.send_nowait("to c")
        assert await g == (2, "to c", True)
        nobody_waits_at(a, b, c)
        g = await start()
        c.close()
        assert await g == (2, None, False)
        nobody_waits_at(a, b)
        c = gofer.Chan[str]()
        g = await start()
        b.close()
        with pytest.raises(gofer.ChannelClosed, match=SEND_CLOSED):
            await g
        nobody_waits_at(a, c)

    gofer.run(main, procs=procs)


def test_one_value_wakes_one_select_and_is_received_once(procs: int) -> None:
    async def main() -> None:
        a, b = gofer.Chan[int](), gofer.Chan[int]()
        gs = [await waiting(gofer.select(a.recv(), b.recv())) for _ in range(10)]
        for i in range(10):
            (a, b)[i % 2].send_nowait(i)
        assert [await g for g in gs] == [(i % 2, i, True) for i in range(10)]
        nobody_waits_at(a, b)

    gofer.run(main, procs=procs)


def test_it_waits_in_one_line_with_all_others(procs: int) -> None:
    """First come, first served, however one waits."""

    async def main() -> None:
        ch, other = gofer.Chan[int](), gofer.Chan[int]()
        gs: list[gofer.Goroutine[Any]] = []
        for i in range(10):
            recv = ch.recv()
            gs.append(await waiting(recv if i % 2 else gofer.select(other.recv(), recv)))
        for i in range(10):
            ch.send_nowait(i)
        assert [await g for g in gs] == [i if i % 2 else (1, i, True) for i in range(10)]
        gs = []
        for i in range(10):
            send = ch.send(i)
            gs.append(await waiting(send if i % 2 else gofer.select(send, other.recv())))
        assert [ch.recv_nowait() for _ in range(10)] == list(range(10))
        for g in gs:
            await g
        nobody_waits_at(ch, other)

    gofer.run(main, procs=procs)


def test_one_that_has_gone_elsewhere_does_not_hold_up_the_line(procs: int) -> None:
    async def main() -> None:
        ch, elsewhere = gofer.Chan[int](), gofer.Chan[int]()
        first = await waiting(gofer.select(ch.recv(), elsewhere.recv()))
        second = await waiting(ch.recv())
        third = await waiting(gofer.select(elsewhere.recv(), ch.recv()))
        elsewhere.send_nowait(0)
        ch.send_nowait(1)
        elsewhere.send_nowait(2)
        assert await first == (1, 0, True)
        assert await second == 1
        assert await third == (0, 2, True)
        nobody_waits_at(ch, elsewhere)

    gofer.run(main, procs=procs)


def test_two_selects_meet(procs: int) -> None:
    async def main() -> None:
        a, b = gofer.Chan[str](), gofer.Chan[str]()
        for _ in range(20):
            g = await waiting(gofer.select(a.send("a"), b.send("b")))
            index, value, ok = await gofer.select(b.recv(), a.recv())
            assert (index, value, ok) in ((0, "b", True), (1, "a", True))
            assert await g == (1 - index, None, True)
            nobody_waits_at(a, b)

    gofer.run(main, procs=procs)


def test_one_channel_several_times(procs: int) -> None:
    """It stands in the line once for each case, and leaves all places at once."""

    async def main() -> None:
        ch, other = gofer.Chan[int](), gofer.Chan[int]()
        g = await waiting(gofer.select(ch.recv(), other.recv(), ch.recv_ok(), ch.recv()))
        behind = await waiting(ch.recv())
        other.send_nowait(1)
        assert await g == (1, 1, True)
        ch.send_nowait(2)
        assert await behind == 2
        nobody_waits_at(ch, other)

        g = await waiting(gofer.select(ch.send(3), ch.send(3), other.recv()))
        behind_it = await waiting(ch.send(4))
        assert ch.recv_nowait() == 3
        assert ch.recv_nowait() == 4
        index, value, ok = await g
        assert index in (0, 1)
        assert (value, ok) == (None, True)
        await behind_it
        nobody_waits_at(ch, other)

        g = await waiting(gofer.select(ch.recv(), ch.recv()))
        ch.close()
        index, value, ok = await g
        assert index in (0, 1)
        assert (value, ok) == (None, False)

    gofer.run(main, procs=procs)


def test_both_directions_of_a_buffer(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int](1)
        for i in range(10):
            assert await gofer.select(ch.recv(), ch.send(i)) == (1, None, True)
            assert await gofer.select(ch.recv(), ch.send(-1)) == (0, i, True)

    gofer.run(main, procs=procs)


def test_it_never_meets_itself(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[str]()
        assert (await gofer.select(ch.send("own"), ch.recv(), default=True)).index == -1
        first = await waiting(gofer.select(ch.send("first"), ch.recv()))
        # Another of the same kind meets it, one way or the other.
        index, value, ok = await gofer.select(ch.send("second"), ch.recv())
        assert ok
        if index == 0:
            assert value is None
            assert await first == (1, "second", True)
        else:
            assert value == "first"
            assert await first == (0, None, True)
        nobody_waits_at(ch)

    gofer.run(main, procs=procs)


def test_a_foreign_thread_wakes_it(procs: int) -> None:
    a, b = gofer.Chan[int](), gofer.Chan[int]()

    def foreign(g: gofer.Goroutine[Any]) -> None:
        while g.state != "waiting":
            time.sleep(0.0001)
        b.send_nowait(1)

    async def main() -> gofer.Selected:
        with thread(foreign, gofer.current()):
            return await gofer.select(a.recv(), b.recv())

    assert gofer.run(main, procs=procs) == (1, 1, True)


# --- sleep ----------------------------------------------------------------------------------------


def test_sleep_is_a_time_limit(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        start = time.monotonic()
        assert await gofer.select(ch.recv(), gofer.sleep(0.01)) == (1, None, True)
        assert time.monotonic() - start >= 0.01
        nobody_waits_at(ch)
        g = await waiting(gofer.select(ch.recv(), gofer.sleep(100_000)))
        assert g.wait_reason == "select"
        ch.send_nowait(1)
        assert await g == (0, 1, True)

    gofer.run(main, procs=procs)


def test_the_shortest_sleep_wins(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        start = time.monotonic()
        assert (
            await gofer.select(
                gofer.sleep(1000), ch.recv(), gofer.sleep(0.005), None, gofer.sleep(100)
            )
        ).index == 2
        assert time.monotonic() - start < 50

    gofer.run(main, procs=procs)


def test_a_sleep_of_nothing_is_ready(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        assert await gofer.select(ch.recv(), gofer.sleep(0)) == (1, None, True)
        assert await gofer.select(gofer.sleep(-1), ch.send(1)) == (0, None, True)
        nobody_waits_at(ch)

    gofer.run(main, procs=procs)


def test_a_sleep_that_loses_leaves_no_timer_and_may_be_used_again(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        sleep = gofer.sleep(0.01)
        for _ in range(20):
            g = await waiting(gofer.select(ch.recv(), gofer.sleep(100_000)))
            ch.send_nowait(1)
            await g
            assert await gofer.select(full(1).recv(), sleep) == (0, 1, True)
            g = await waiting(gofer.select(ch.recv(), gofer.sleep(100_000), gofer.sleep(200_000)))
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g
        assert _core.counters()["timers"] == 0
        start = time.monotonic()
        await sleep
        assert time.monotonic() - start >= 0.01

    gofer.run(main, procs=procs)


# --- Goroutines -----------------------------------------------------------------------------------


def test_a_goroutine_is_ready_when_it_has_ended(procs: int) -> None:
    async def ending(ch: gofer.Chan[str]) -> str:
        return await ch.recv()

    async def main() -> None:
        ch, never = gofer.Chan[str](), gofer.Chan[int]()
        target = gofer.go(ending, ch)
        await parked(target)
        gs = [await waiting(gofer.select(never.recv(), target)) for _ in range(5)]
        assert gs[0].wait_reason == "select"
        plain = await waiting(target)
        await ch.send("result")
        assert [await g for g in gs] == [(1, "result", True)] * 5
        assert await plain == "result"
        assert await gofer.select(never.recv(), target) == (1, "result", True)
        nobody_waits_at(never)

    gofer.run(main, procs=procs)


def test_the_exception_of_a_goroutine_is_raised_and_counts_as_taken(procs: int) -> None:
    async def failing(ch: gofer.Chan[str]) -> None:
        raise ValueError(await ch.recv())

    async def cancelled(target: gofer.Goroutine[Any]) -> None:
        await gofer.select(target)

    async def main() -> None:
        ch, never = gofer.Chan[str](), gofer.Chan[int]()
        for ended in (False, True):
            target = gofer.go(failing, ch)
            await parked(target)
            if ended:
                await ch.send("ended")
                await until(target.done)
                with pytest.raises(ValueError, match="ended"):
                    await gofer.select(never.recv(), target)
            else:
                g = await waiting(gofer.select(never.recv(), target))
                await ch.send("waited")
                with pytest.raises(ValueError, match="waited"):
                    await g
            del target  # without a complaint: somebody has seen it
            nobody_waits_at(never)

        target = gofer.go(sleep_long)
        g2 = gofer.go(cancelled, target)
        await parked(target, g2)
        target.cancel("reason")
        with pytest.raises(gofer.Cancelled, match="reason"):
            await g2

    gofer.run(main, procs=procs)


def test_a_goroutine_that_loses_may_be_awaited_still(procs: int) -> None:
    async def main() -> None:
        ch, go_on = gofer.Chan[int](), gofer.Chan[str]()
        target = gofer.go(wait_for, go_on.recv())
        for i in range(20):
            g = await waiting(gofer.select(target, ch.recv()))
            ch.send_nowait(i)
            assert await g == (1, i, True)
        assert target.state == "waiting"
        await go_on.send("result")
        assert await target == "result"

    gofer.run(main, procs=procs)


# --- Fairness -------------------------------------------------------------------------------------


def even(counts: list[int]) -> bool:
    """Within ten standard deviations of what an even choice gives."""
    n, k = sum(counts), len(counts)
    sigma = math.sqrt(n / k * (1 - 1 / k))
    return all(abs(c - n / k) < 10 * sigma for c in counts)


def test_all_that_are_ready_have_the_same_chance(procs: int) -> None:
    async def main() -> None:
        never, a, b = gofer.Chan[int](), closed(), closed()
        counts = [0] * 4
        for _ in range(10_000):
            counts[(await gofer.select(a.recv(), never.recv(), never.send(1), b.recv())).index] += 1
        assert counts[1] == counts[2] == 0
        assert even([counts[0], counts[3]]), counts

    gofer.run(main, procs=procs)


def test_one_channel_several_times_has_several_chances(procs: int) -> None:
    async def main() -> None:
        a, b = closed(), closed()
        counts = [0] * 4
        for _ in range(10_000):
            counts[
                (await gofer.select(a.recv(), a.recv_ok(), b.recv(), a.receiver.recv())).index
            ] += 1
        assert even(counts), counts

    gofer.run(main, procs=procs)


def test_what_is_sent_is_random_too(procs: int) -> None:
    async def sender(ch: gofer.Chan[int], n: int) -> None:
        for _ in range(n):
            await gofer.select(ch.send(0), ch.send(1))
        ch.close()

    async def main() -> None:
        for cap in (0, 1, 10):
            ch = gofer.Chan[int](cap)
            gofer.go(sender, ch, 1000)
            got = [value async for value in ch]
            assert len(got) == 1000
            assert 300 < sum(got) < 700

    gofer.run(main, procs=procs)


def test_the_order_is_another_each_time(procs: int) -> None:
    """No run of choices repeats: it is no rotation."""

    async def main() -> None:
        a, b, c = closed(), closed(), closed()
        seen = set()
        for _ in range(50):
            run = [
                (await gofer.select(a.recv(), b.recv(), c.recv(), default=True)).index
                for _ in range(20)
            ]
            seen.add(tuple(run))
        assert len(seen) == 50

    gofer.run(main, procs=procs)


# --- Bad use --------------------------------------------------------------------------------------


class Strange:
    def __repr__(self) -> str:
        return "<something strange>"

    def __await__(self) -> Any:
        yield self


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: 5, "5"),
        (lambda: "text", "'text'"),
        (lambda: True, "True"),
        (Strange, "<something strange>"),
        (lambda: [gofer.Chan[int]().recv()], r"\["),
        (lambda: gofer.Chan[int](), "Chan"),
        (lambda: gofer.Chan[int]().receiver, "RecvChan"),
        (lambda: gofer.Chan[int]().recv, "recv"),
        (gofer.gosched, "gosched"),
        (lambda: gofer.select(), "select"),
        (lambda: asyncio.sleep, "sleep"),
    ],
    ids=[
        "int",
        "str",
        "bool",
        "awaitable",
        "list",
        "channel",
        "view",
        "method",
        "gosched",
        "select",
        "function",
    ],
)
def test_a_foreign_object_is_a_type_error_that_names_it(make: Callable[[], Any], text: str) -> None:
    ch = full(1)
    with pytest.raises(TypeError, match=text):
        gofer.select(ch.recv(), make())
    assert len(ch) == 1


def test_a_coroutine_is_a_type_error_that_names_it() -> None:
    coro = give(1)
    with pytest.raises(TypeError, match="give"):
        gofer.select(coro)
    coro.close()


def test_unknown_keywords_are_type_errors() -> None:
    with pytest.raises(TypeError):
        gofer.select(defualt=True)  # type: ignore[call-arg]


def test_one_operation_twice_is_a_value_error(procs: int) -> None:
    async def main() -> None:
        ch = full(1)
        recv, send, sleep = ch.recv(), ch.send(1), gofer.sleep(1)
        for operation in (recv, send, sleep):
            with pytest.raises(ValueError):  # noqa: PT011
                gofer.select(operation, None, operation)
            with pytest.raises(ValueError):  # noqa: PT011
                gofer.select(ch.recv(), operation, ch.recv(), operation, default=True)
        assert len(ch) == 1
        assert await recv == 1  # and is none the worse for it
        await send

    gofer.run(main, procs=procs)


def test_an_operation_that_was_awaited_is_an_error_and_nothing_is_done(procs: int) -> None:
    async def main() -> None:
        ch, ready, never = gofer.Chan[int](1), full(7), gofer.Chan[int]()
        send = ch.send(1)
        await send
        recv = ch.recv()
        await recv
        won = ready.recv()
        assert await gofer.select(won, never.recv()) == (0, 7, True)
        ready.send_nowait(8)
        for operation in (send, recv, won):
            for default in (False, True):
                for cases in (
                    [operation, ready.recv()],
                    [ready.recv(), ch.send(1), operation],
                    [never.recv(), operation],
                ):
                    with pytest.raises(RuntimeError, match="has been awaited already"):
                        await gofer.select(*cases, default=default)
        assert (len(ch), len(ready)) == (0, 1)
        nobody_waits_at(never)
        with pytest.raises(RuntimeError, match="has been awaited already"):
            await won

    gofer.run(main, procs=procs)


def test_an_operation_that_another_awaits_is_an_error_and_nothing_is_done(procs: int) -> None:
    async def main() -> None:
        ch, other = gofer.Chan[int](), gofer.Chan[int]()
        recv = ch.recv()
        for how in (recv, gofer.select(other.recv(), ch.recv())):
            g: gofer.Goroutine[Any] = await waiting(how)
            if how is recv:
                with pytest.raises(RuntimeError, match="already awaited by another goroutine"):
                    await gofer.select(recv, full(1).recv())
            else:
                with pytest.raises(RuntimeError, match="already awaited by another goroutine"):
                    await how
            assert g.state == "waiting"
            ch.send_nowait(3)
            assert await g in (3, (1, 3, True))
        nobody_waits_at(ch, other)

    gofer.run(main, procs=procs)


def test_an_operation_in_two_selects_at_once_is_an_error(procs: int) -> None:
    async def main() -> None:
        ch, other = gofer.Chan[int](), gofer.Chan[int]()
        shared = ch.recv()
        g = await waiting(gofer.select(shared, other.recv()))
        for operation in (gofer.select(other.send(1), shared), wait_for(shared)):
            with pytest.raises(RuntimeError, match="already awaited by another goroutine"):
                await operation
        assert g.state == "waiting"
        other.send_nowait(1)
        assert await g == (1, 1, True)
        nobody_waits_at(ch, other)
        # It lost, so it is free again.
        g2 = await waiting(shared)
        ch.send_nowait(2)
        assert await g2 == 2

    gofer.run(main, procs=procs)


def test_a_select_cannot_be_awaited_again(procs: int) -> None:
    async def main() -> None:
        ch = full(1, 2)
        ready = gofer.select(ch.recv())
        await ready
        nothing = gofer.select(default=True)
        await nothing
        waited = gofer.select(gofer.Chan[int]().recv(), gofer.sleep(0.0001))
        await waited
        for operation in (ready, nothing, waited):
            with pytest.raises(RuntimeError, match="has been awaited already: make a new one"):
                await operation
        assert len(ch) == 1

    gofer.run(main, procs=procs)


def test_it_shows_its_state() -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        op = gofer.select(ch.recv(), None)
        assert "select" in repr(op)
        assert "not awaited" in repr(op)
        g = await waiting(op)
        assert "waiting" in repr(op)
        ch.send_nowait(1)
        await g
        assert "done" in repr(op)

    gofer.run(main)


# --- Losers, and those who are cancelled ----------------------------------------------------------


def test_cases_that_lose_may_be_used_again(procs: int) -> None:
    async def main() -> None:
        a, b = gofer.Chan[int](), gofer.Chan[int]()
        patient_recv, patient_send = a.recv(), a.send(9)
        for i in range(20):
            g = await waiting(gofer.select(patient_recv, b.recv()))
            b.send_nowait(i)
            assert await g == (1, i, True)
            b_is_ready = full(i)
            assert await gofer.select(patient_send, b_is_ready.recv()) == (1, i, True)
        nobody_waits_at(a, b)
        g2 = await waiting(patient_recv)
        a.send_nowait(5)
        assert await g2 == 5
        g = await waiting(gofer.select(patient_send))
        assert a.recv_nowait() == 9
        assert await g == (0, None, True)

    gofer.run(main, procs=procs)


def test_a_cancelled_one_waits_nowhere_and_its_cases_are_free(procs: int) -> None:
    async def main() -> None:
        a, b, c = (gofer.Chan[int]() for _ in range(3))
        target = gofer.go(sleep_long)
        recv, send = a.recv(), b.send(1)
        for _ in range(10):
            g = await waiting(gofer.select(recv, send, c.recv_ok(), target, gofer.sleep(100_000)))
            assert g.cancel("reason")
            with pytest.raises(gofer.Cancelled, match="reason"):
                await g
            nobody_waits_at(a, b, c)
        g = await waiting(gofer.select(recv, send))
        a.send_nowait(1)
        assert await g == (0, 1, True)
        target.cancel()

    gofer.run(main, procs=procs)


def test_one_that_raised_waits_nowhere_and_its_other_cases_are_free(procs: int) -> None:
    async def main() -> None:
        a, b = gofer.Chan[int](), gofer.Chan[int]()
        recv = a.recv()
        g = await waiting(gofer.select(recv, b.send(1)))
        b.close()
        with pytest.raises(gofer.ChannelClosed):
            await g
        with pytest.raises(gofer.ChannelClosed):
            await gofer.select(recv, b.send(1))
        failing = gofer.go(fail)
        with pytest.raises(ValueError, match="failed"):
            await gofer.select(failing, recv)
        nobody_waits_at(a)
        g2 = await waiting(recv)
        a.send_nowait(1)
        assert await g2 == 1

    gofer.run(main, procs=procs)


def test_a_case_that_was_handed_its_value_wins_over_a_cancellation() -> None:
    """On one P the goroutine has not run yet when the cancellation comes."""

    async def selector(a: gofer.Chan[int], b: gofer.Chan[int]) -> list[Any]:
        log: list[Any] = []
        for _ in range(3):
            try:
                log.append(await gofer.select(a.recv(), b.send(5)))
            except gofer.Cancelled:
                log.append("cancelled")
        return log

    async def main() -> None:
        a, b = gofer.Chan[int](), gofer.Chan[int]()
        g = gofer.go(selector, a, b)
        await parked(g)
        a.send_nowait(1)
        assert g.cancel()
        assert await b.recv() == 5
        assert await g == [(0, 1, True), "cancelled", (1, None, True)]
        nobody_waits_at(a, b)

    gofer.run(main, procs=1)


# --- Put together ---------------------------------------------------------------------------------


def test_finished_sources_are_set_to_none(procs: int) -> None:
    async def produce(ch: gofer.Chan[int], base: int, n: int) -> None:
        for i in range(n):
            await ch.send(base + i)
        ch.close()

    async def main() -> None:
        sources: list[gofer.Chan[int] | None] = [gofer.Chan[int](cap) for cap in (0, 1, 5)]
        for k, ch in enumerate(sources):
            assert ch is not None
            gofer.go(produce, ch, 1000 * k, 50 * (k + 1))
        got: list[list[int]] = [[], [], []]
        while any(sources):
            index, value, ok = await gofer.select(*[ch and ch.recv() for ch in sources])
            if ok:
                got[index].append(value)
            else:
                sources[index] = None
        assert got == [[1000 * k + i for i in range(50 * (k + 1))] for k in range(3)]

    gofer.run(main, procs=procs)


def test_a_sender_that_watches_for_a_signal_to_stop(procs: int) -> None:
    async def count(ch: gofer.Chan[int], stop: gofer.Chan[None]) -> int:
        n = 0
        while (await gofer.select(ch.send(n), stop.recv())).index == 0:
            n += 1
        return n

    async def main() -> None:
        ch, stop = gofer.Chan[int](), gofer.Chan[None]()
        g = gofer.go(count, ch, stop)
        assert [await ch.recv() for _ in range(100)] == list(range(100))
        stop.close()
        assert await g == 100

    gofer.run(main, procs=procs)


def test_the_first_of_several_answers(procs: int) -> None:
    async def main() -> None:
        gs: list[gofer.Goroutine[Any]] = [gofer.go(sleep_long) for _ in range(5)]
        gs[3] = gofer.go(give, "fast")
        assert await gofer.select(*gs) == (3, "fast", True)

    gofer.run(main, procs=procs)
