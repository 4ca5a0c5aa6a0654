"""Channels: rendezvous, buffers, first come first served, closing, one-way views."""

import gc
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, get_origin

import pytest

import gofer
from gofer import _core
from tests.support import (
    PATIENCE,
    SANITIZED,
    gone,
    parked,
    run_program,
    spin,
    thread,
    until,
    wait_for,
)

T = TypeVar("T")

SEND_CLOSED = "^send on closed channel$"
RECV_CLOSED = "^receive from closed channel$"
CLOSE_CLOSED = "^close of closed channel$"


async def waiting(operation: Awaitable[T]) -> gofer.Goroutine[T]:
    """A goroutine that waits in `operation`, and has come to wait."""
    g = gofer.go(wait_for, operation)
    await parked(g)
    return g


async def all_of(ch: gofer.Chan[T] | gofer.RecvChan[T]) -> list[T]:
    """What comes out until it is closed."""
    return [value async for value in ch]


async def send_all(ch: gofer.Chan[T] | gofer.SendChan[T], values: list[T]) -> None:
    for value in values:
        await ch.send(value)


def full(*values: T) -> gofer.Chan[T]:
    """A channel whose buffer holds just these."""
    ch = gofer.Chan[T](len(values))
    for value in values:
        ch.send_nowait(value)
    return ch


def would_block(ch: gofer.Chan[Any]) -> None:
    """Nobody waits at this channel, and it holds nothing and has no room."""
    with pytest.raises(gofer.WouldBlock):
        ch.recv_nowait()
    with pytest.raises(gofer.WouldBlock):
        ch.send_nowait("value")


# --- Making one -----------------------------------------------------------------------------------


def test_a_new_one_is_open_and_empty() -> None:
    for ch, cap in [
        (gofer.Chan[int](), 0),
        (gofer.Chan[int](0), 0),
        (gofer.Chan[int](3), 3),
        (gofer.Chan[int](capacity=5), 5),
    ]:
        assert (len(ch), ch.cap, ch.closed) == (0, cap, False)
        assert isinstance(ch, gofer.Chan)


@pytest.mark.parametrize("capacity", [1.0, "1", None, True, False, [], 1j, object()])
def test_a_capacity_that_is_no_integer_is_a_type_error(capacity: Any) -> None:
    with pytest.raises(TypeError):
        gofer.Chan(capacity)


@pytest.mark.parametrize("capacity", [-1, -(2**40), -(2**64), 2**48 + 1, 2**63, 2**64, 10**30])
def test_a_capacity_below_zero_or_beyond_all_measure_is_a_value_error(capacity: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        gofer.Chan(capacity)


@pytest.mark.skipif(SANITIZED, reason="sanitizers end a program that asks for so much")
def test_a_capacity_for_which_there_is_no_memory_is_a_value_error_if_it_is_huge() -> None:
    end = run_program(
        """
        import gofer, resource

        resource.setrlimit(resource.RLIMIT_AS, (900 << 20, resource.RLIM_INFINITY))
        for capacity in (2**27 - 1, 2**27, 2**40, 2**48):
            try:
                gofer.Chan(capacity)
            except (MemoryError, ValueError) as exc:
                print(type(exc).__name__, exc)
        """
    )
    needs = "ValueError a channel of capacity {} needs more memory than there is\n"
    assert end.check() == "MemoryError \n" + "".join(
        needs.format(capacity) for capacity in (2**27, 2**40, 2**48)
    )


def test_wrong_arguments_are_type_errors() -> None:
    ch = gofer.Chan[int](1)
    calls: list[Callable[[], Any]] = [
        lambda: gofer.Chan(1, 2),  # type: ignore[call-arg]
        lambda: gofer.Chan(size=1),  # type: ignore[call-arg]
        lambda: ch.send(),  # type: ignore[call-arg]
        lambda: ch.send(1, 2),  # type: ignore[call-arg]
        lambda: ch.send_nowait(),  # type: ignore[call-arg]
        lambda: ch.recv(1),  # type: ignore[call-arg]
        lambda: ch.recv_ok(1),  # type: ignore[call-arg]
        lambda: ch.recv_nowait(1),  # type: ignore[call-arg]
        lambda: ch.close(1),  # type: ignore[call-arg]
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    assert len(ch) == 0


def test_its_properties_cannot_be_set() -> None:
    ch = gofer.Chan[int](1)
    for name in ("cap", "closed", "sender", "receiver"):
        with pytest.raises(AttributeError):
            setattr(ch, name, True)
    assert (ch.cap, ch.closed) == (1, False)


def test_types_may_be_subscripted() -> None:
    assert gofer.Chan[int](3).cap == 3
    for alias, cls in (
        (gofer.SendChan[int], gofer.SendChan),
        (gofer.RecvChan[int], gofer.RecvChan),
    ):
        assert get_origin(alias) is cls


def test_an_empty_one_is_true() -> None:
    ch = gofer.Chan[int](1)
    assert bool(ch)
    assert bool(ch.sender)
    assert bool(ch.receiver)
    ch.close()
    assert bool(ch)


def test_repr_shows_how_full_it_is_and_whether_it_is_closed() -> None:
    ch = full(1, 2)
    before = repr(ch)
    assert "Chan" in before
    assert "2" in before
    assert "closed" not in before
    ch.recv_nowait()
    assert repr(ch) != before
    ch.close()
    assert "closed" in repr(ch)
    for view, name in ((ch.sender, "SendChan"), (ch.receiver, "RecvChan")):
        assert name in repr(view)


# --- One at a time --------------------------------------------------------------------------------


def test_without_a_buffer_send_waits_for_receive(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[str]()
        sender = await waiting(ch.send("value"))
        assert sender.wait_reason == "chan send"
        assert len(ch) == 0
        assert await ch.recv() == "value"
        assert await sender is None  # type: ignore[func-returns-value]
        would_block(ch)

    gofer.run(main, procs=procs)


def test_without_a_buffer_receive_waits_for_send(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[str]()
        receiver = await waiting(ch.recv())
        assert receiver.wait_reason == "chan receive"
        await ch.send("value")
        assert await receiver == "value"
        would_block(ch)

    gofer.run(main, procs=procs)


def test_a_buffer_holds_as_many_as_its_capacity_and_the_next_waits(procs: int) -> None:
    async def main() -> None:
        for cap in (1, 2, 7, 100):
            ch = gofer.Chan[int](cap)
            for i in range(cap):
                assert len(ch) == i
                await ch.send(i)
            with pytest.raises(gofer.WouldBlock):
                ch.send_nowait(-1)
            sender = await waiting(ch.send(cap))
            assert len(ch) == cap  # who waits does not count
            assert [await ch.recv() for _ in range(cap + 1)] == list(range(cap + 1))
            await sender
            assert len(ch) == 0
            with pytest.raises(gofer.WouldBlock):
                ch.recv_nowait()

    gofer.run(main, procs=procs)


def test_a_buffer_goes_round_and_keeps_the_order(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int](5)
        sent = received = 0
        for step in (3, 5, 1, 4, 2, 5, 5):
            while len(ch) < step:
                ch.send_nowait(sent)
                sent += 1
            for _ in range(step - step // 2):
                assert ch.recv_nowait() == received
                received += 1
        assert sent > 10
        ch.close()
        assert await all_of(ch) == list(range(received, sent))

    gofer.run(main, procs=procs)


def test_a_receiver_that_waits_is_handed_the_value_past_the_buffer(procs: int) -> None:
    """Nobody can snatch it: as soon as send is done, it is the receiver's."""

    async def main() -> None:
        for cap in (0, 1, 3):
            ch = gofer.Chan[str](cap)
            receiver = await waiting(ch.recv())
            ch.send_nowait("value")
            assert len(ch) == 0
            with pytest.raises(gofer.WouldBlock):
                ch.recv_nowait()
            assert await receiver == "value"

    gofer.run(main, procs=procs)


def test_a_sender_that_waits_has_sent_as_soon_as_there_is_room(procs: int) -> None:
    async def main() -> None:
        ch = full("a", "b")
        senders = [await waiting(ch.send(value)) for value in "cd"]
        for value in "ab":
            assert ch.recv_nowait() == value
            assert len(ch) == 2  # the next one has moved up
        for g in senders:
            await g
        assert [ch.recv_nowait(), ch.recv_nowait()] == ["c", "d"]
        assert len(ch) == 0

    gofer.run(main, procs=procs)


def test_senders_that_wait_are_served_in_the_order_they_came(procs: int) -> None:
    async def main() -> None:
        for cap in (0, 1, 2):
            ch = gofer.Chan[int](cap)
            for i in range(cap):
                ch.send_nowait(i)
            senders = [await waiting(ch.send(i)) for i in range(cap, 20)]
            assert [await ch.recv() for _ in range(20)] == list(range(20))
            for g in senders:
                await g

    gofer.run(main, procs=procs)


def test_receivers_that_wait_are_served_in_the_order_they_came(procs: int) -> None:
    async def main() -> None:
        for cap in (0, 2):
            ch = gofer.Chan[int](cap)
            receivers = [await waiting(ch.recv()) for _ in range(20)]
            for i in range(20):
                await ch.send(i)
            assert [await g for g in receivers] == list(range(20))

    gofer.run(main, procs=procs)


def test_one_sender_and_one_receiver_keep_the_order(procs: int) -> None:
    async def main() -> None:
        for cap in (0, 1, 10):
            ch = gofer.Chan[int](cap)
            values = list(range(1000))
            sender = gofer.go(send_all, ch, values)
            assert [await ch.recv() for _ in values] == values
            await sender

    gofer.run(main, procs=procs)


def test_what_can_be_done_at_once_does_not_suspend() -> None:
    async def other(ran: list[int]) -> None:
        ran.append(1)

    async def main() -> None:
        ch = gofer.Chan[int](1)
        closed = gofer.Chan[int]()
        closed.close()
        for _ in range(20):  # a slice may end in the middle, but not every time
            ran: list[int] = []
            g = gofer.go(other, ran)
            await ch.send(1)
            await ch.recv()
            await ch.send(1)
            await ch.recv_ok()
            await closed.recv_ok()
            async for _ in closed:
                pass
            await gofer.select(ch.send(1), ch.recv())
            await gofer.select(ch.send(1), ch.recv())
            await gofer.select(ch.recv(), default=True)
            if not ran:
                return
            await g
        raise AssertionError("others ran each time")

    gofer.run(main, procs=1)


# --- Without waiting ------------------------------------------------------------------------------


def test_nowait_succeeds_where_the_operation_would_not_wait(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[str](1)
        assert ch.send_nowait("a") is None  # type: ignore[func-returns-value]
        assert ch.recv_nowait() == "a"

        unbuffered = gofer.Chan[str]()
        would_block(unbuffered)
        receiver = await waiting(unbuffered.recv())
        unbuffered.send_nowait("b")
        assert await receiver == "b"
        sender = await waiting(unbuffered.send("c"))
        assert unbuffered.recv_nowait() == "c"
        await sender
        would_block(unbuffered)

    gofer.run(main, procs=procs)


def test_nowait_needs_no_runtime() -> None:
    ch = gofer.Chan[int](2)
    ch.send_nowait(1)
    ch.send_nowait(2)
    with pytest.raises(gofer.WouldBlock):
        ch.send_nowait(3)
    assert [ch.recv_nowait(), ch.recv_nowait()] == [1, 2]
    with pytest.raises(gofer.WouldBlock):
        ch.recv_nowait()
    ch.close()
    with pytest.raises(gofer.ChannelClosed, match=RECV_CLOSED):
        ch.recv_nowait()


def test_errors_are_ordinary_exceptions() -> None:
    for error in (gofer.ChannelClosed, gofer.WouldBlock):
        assert issubclass(error, Exception)
        assert not issubclass(error, gofer.Cancelled)


# --- Values ---------------------------------------------------------------------------------------

# What careless code takes for a sign of something else.
VALUES: list[Any] = [
    None,
    (),
    (1, 2),
    (None, False),
    False,
    0,
    StopIteration(3),
    StopIteration,
    StopAsyncIteration(),
    ValueError("a value"),
    ValueError,
    gofer.Cancelled("a value"),
    gofer.ChannelClosed,
    NotImplemented,
    ...,
]


async def one_by_recv(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    try:
        return await ch.recv(), True
    except gofer.ChannelClosed as exc:
        return (None, False) if str(exc) == "receive from closed channel" else (exc, False)


async def one_by_recv_ok(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    return await ch.recv_ok()


async def one_by_async_for(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    async for value in ch:
        return value, True
    return None, False


async def one_by_anext(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    try:
        return await anext(aiter(ch)), True
    except StopAsyncIteration:
        return None, False


async def one_by_select(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    index, value, ok = await gofer.select(None, ch.recv())
    assert index == 1
    return value, ok


async def one_by_select_ok(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    _, value, ok = await gofer.select(ch.recv_ok())
    return value, ok


async def one_by_view(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    return await ch.receiver.recv_ok()


async def one_by_nowait(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    try:
        return ch.recv_nowait(), True
    except gofer.ChannelClosed as exc:
        return (None, False) if str(exc) == "receive from closed channel" else (exc, False)


async def one_by_default(ch: gofer.Chan[T]) -> tuple[Any, bool]:
    index, value, ok = await gofer.select(ch.recv(), default=True)
    assert index == 0
    return value, ok


WAITING_STYLES: list[Callable[[gofer.Chan[Any]], Any]] = [
    one_by_recv,
    one_by_recv_ok,
    one_by_async_for,
    one_by_anext,
    one_by_select,
    one_by_select_ok,
    one_by_view,
]
RECEIVE_STYLES = [*WAITING_STYLES, one_by_nowait, one_by_default]


def test_any_value_passes_unchanged_from_a_buffer(procs: int) -> None:
    async def main() -> None:
        for take in RECEIVE_STYLES:
            for value in VALUES:
                got, ok = await take(full(value))
                assert got is value
                assert ok is True

    gofer.run(main, procs=procs)


def test_any_value_passes_unchanged_from_hand_to_hand(procs: int) -> None:
    async def main() -> None:
        for take in WAITING_STYLES:
            for value in VALUES:
                ch = gofer.Chan[Any]()
                g = gofer.go(take, ch)
                await parked(g)
                await ch.send(value)
                got, ok = await g
                assert got is value
                assert ok is True

    gofer.run(main, procs=procs)


def test_a_channel_may_be_sent_through_itself() -> None:
    async def main() -> None:
        ch = gofer.Chan[Any](1)
        await ch.send(ch)
        assert await ch.recv() is ch

    gofer.run(main)


class Thing:
    """Something that a weak reference can watch."""

    ch: gofer.Chan["Thing"]


def test_a_value_is_kept_no_longer_than_it_must(procs: int) -> None:
    async def received(ch: gofer.Chan[Thing]) -> None:
        await ch.send(Thing())
        refs.append(weakref.ref(await ch.recv()))

    async def dropped_with_its_channel(_: gofer.Chan[Thing]) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        full(thing)

    async def never_awaited(ch: gofer.Chan[Thing]) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        ch.send(thing)

    async def refused(ch: gofer.Chan[Thing]) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        await ch.send(Thing())
        with pytest.raises(gofer.WouldBlock):
            ch.send_nowait(thing)
        await gofer.select(ch.send(thing), default=True)
        await ch.recv()

    async def cancelled(ch: gofer.Chan[Thing]) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        await ch.send(Thing())
        for operation in (ch.send(thing), gofer.select(ch.send(thing))):
            g = await waiting(operation)
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g
        await ch.recv()

    async def closed(_: gofer.Chan[Thing]) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        ch = gofer.Chan[Thing]()
        g = await waiting(ch.send(thing))
        ch.close()
        with pytest.raises(gofer.ChannelClosed):
            await g
        with pytest.raises(gofer.ChannelClosed):
            ch.send_nowait(thing)

    async def main() -> None:
        ch = gofer.Chan[Thing](1)
        for case in (received, dropped_with_its_channel, never_awaited, refused, cancelled, closed):
            refs.clear()
            await gofer.go(case, ch)
            assert refs, case
            if case in (refused, cancelled, closed):
                gc.collect()  # an exception and the frames it went through are a cycle
            for ref in refs:
                await gone(ref, procs)
        assert len(ch) == 0

    refs: list[weakref.ref[Thing]] = []
    gofer.run(main, procs=procs)


def test_a_cycle_through_a_buffer_is_collected() -> None:
    thing = Thing()
    thing.ch = full(thing)
    ref = weakref.ref(thing)
    del thing
    gc.collect()
    assert ref() is None


# --- Closing --------------------------------------------------------------------------------------


def test_close_is_seen_at_once_and_returns_nothing() -> None:
    ch = gofer.Chan[int](1)
    assert ch.close() is None  # type: ignore[func-returns-value]
    assert ch.closed is True


def test_a_closed_channel_gives_what_it_holds_and_then_nothing_for_ever(procs: int) -> None:
    async def main() -> None:
        for take in RECEIVE_STYLES:
            for cap in (0, 1, 10):
                ch = gofer.Chan[Any](cap)
                for i in range(min(cap, 3)):
                    ch.send_nowait(i)
                ch.close()
                for i in range(min(cap, 3)):
                    assert await take(ch) == (i, True)
                for _ in range(3):
                    assert await take(ch) == (None, False)
                assert len(ch) == 0

    gofer.run(main, procs=procs)


def test_close_wakes_every_receiver(procs: int) -> None:
    async def main() -> None:
        for cap in (0, 2):
            ch = gofer.Chan[Any](cap)
            gs = [gofer.go(take, ch) for take in WAITING_STYLES for _ in range(3)]
            await parked(*gs)
            ch.close()
            assert [await g for g in gs] == [(None, False)] * len(gs)

    gofer.run(main, procs=procs)


def test_to_send_on_a_closed_channel_is_an_error_in_every_style(procs: int) -> None:
    async def main() -> None:
        for ch in (gofer.Chan[int](), gofer.Chan[int](1), full(1)):
            ch.close()
            before = len(ch)
            for _ in range(2):
                for operation in (
                    ch.send(2),
                    ch.sender.send(2),
                    gofer.select(ch.send(2)),
                    gofer.select(ch.send(2), default=True),
                    gofer.select(None, ch.sender.send(2), gofer.sleep(1000)),
                ):
                    with pytest.raises(gofer.ChannelClosed, match=SEND_CLOSED):
                        await operation
                for send_nowait in (ch.send_nowait, ch.sender.send_nowait):
                    with pytest.raises(gofer.ChannelClosed, match=SEND_CLOSED):
                        send_nowait(2)
            assert len(ch) == before

    gofer.run(main, procs=procs)


def test_close_wakes_every_sender_with_an_error(procs: int) -> None:
    async def main() -> None:
        for ch in (gofer.Chan[int](), full(1, 2)):
            before = len(ch)
            gs: list[gofer.Goroutine[Any]] = [await waiting(ch.send(-1)) for _ in range(5)]
            gs += [await waiting(gofer.select(ch.send(-1), None)) for _ in range(5)]
            ch.close()
            for g in gs:
                with pytest.raises(gofer.ChannelClosed, match=SEND_CLOSED):
                    await g
            assert await all_of(ch) == [1, 2][:before]  # and nothing of theirs

    gofer.run(main, procs=procs)


def test_to_close_twice_is_an_error(procs: int) -> None:
    async def main() -> None:
        for ch in (gofer.Chan[int](), full(1)):
            ch.close()
            for close in (ch.close, ch.sender.close):
                with pytest.raises(gofer.ChannelClosed, match=CLOSE_CLOSED):
                    close()
            assert ch.closed

    gofer.run(main, procs=procs)


# --- async for ------------------------------------------------------------------------------------


def test_async_for_ends_when_all_is_closed_and_drained(procs: int) -> None:
    async def producer(ch: gofer.Chan[int | None]) -> None:
        for i in range(100):
            await ch.send(i if i % 3 else None)
        ch.close()

    async def main() -> None:
        for cap in (0, 1, 10, 1000):
            ch = gofer.Chan[int | None](cap)
            gofer.go(producer, ch)
            assert await all_of(ch) == [i if i % 3 else None for i in range(100)]

    gofer.run(main, procs=procs)


def test_async_for_left_early_leaves_the_rest(procs: int) -> None:
    async def main() -> None:
        ch = full(*range(10))
        ch.close()
        async for value in ch:
            if value == 3:
                break
        assert await all_of(ch.receiver) == [4, 5, 6, 7, 8, 9]

    gofer.run(main, procs=procs)


def test_async_for_waits_as_a_receiver_and_may_be_cancelled(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        g = gofer.go(all_of, ch)
        await parked(g)
        assert g.wait_reason == "chan receive"
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        would_block(ch)

    gofer.run(main, procs=procs)


def test_several_share_the_values_of_one_channel(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        gs = [gofer.go(all_of, ch) for _ in range(5)]
        await send_all(ch, list(range(500)))
        ch.close()
        got = [await g for g in gs]
        assert sorted(v for values in got for v in values) == list(range(500))
        for values in got:
            assert values == sorted(values)

    gofer.run(main, procs=procs)


# --- One-way views --------------------------------------------------------------------------------


def test_views_are_the_same_channel(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int](2)
        tx, rx = ch.sender, ch.receiver
        assert isinstance(tx, gofer.SendChan)
        assert isinstance(rx, gofer.RecvChan)
        tx.send_nowait(1)
        await tx.send(2)
        for end in (ch, tx, rx):
            assert (len(end), end.cap, end.closed) == (2, 2, False)
        assert rx.recv_nowait() == 1
        assert await rx.recv() == 2
        await ch.send(3)
        assert await rx.recv_ok() == (3, True)
        await tx.send(4)
        tx.close()
        for end in (ch, tx, rx):
            assert (len(end), end.cap, end.closed) == (1, 2, True)
        assert await all_of(rx) == [4]
        with pytest.raises(gofer.ChannelClosed, match=RECV_CLOSED):
            await rx.recv()
        with pytest.raises(gofer.ChannelClosed, match=SEND_CLOSED):
            await tx.send(5)

    gofer.run(main, procs=procs)


def test_waiting_at_a_view_is_waiting_at_the_channel(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        receivers = [await waiting(end.recv()) for end in (ch, ch.receiver, ch)]
        for i in range(3):
            ch.sender.send_nowait(i)
        assert [await g for g in receivers] == [0, 1, 2]
        sender = await waiting(ch.sender.send(3))
        assert sender.wait_reason == "chan send"
        assert ch.recv_nowait() == 3
        await sender

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("name", ["send", "send_nowait", "close"])
def test_a_receive_only_view_cannot_send_or_close(name: str) -> None:
    with pytest.raises(AttributeError, match="RecvChan is receive-only"):
        getattr(gofer.Chan[int]().receiver, name)


@pytest.mark.parametrize("name", ["recv", "recv_ok", "recv_nowait"])
def test_a_send_only_view_cannot_receive(name: str) -> None:
    with pytest.raises(AttributeError, match="SendChan is send-only"):
        getattr(gofer.Chan[int]().sender, name)


def test_a_send_only_view_cannot_be_iterated() -> None:
    async def main() -> None:
        ch = full(1)
        with pytest.raises((TypeError, AttributeError)):
            async for _ in ch.sender:  # type: ignore[attr-defined]
                pass
        assert len(ch) == 1

    gofer.run(main)


def test_other_missing_attributes_are_the_usual_error() -> None:
    ch = gofer.Chan[int]()
    for end in (ch, ch.sender, ch.receiver):
        with pytest.raises(AttributeError, match="nonsense") as info:
            end.nonsense  # type: ignore[union-attr]
        assert "only:" not in str(info.value)


def test_views_are_equal_if_channel_and_direction_are() -> None:
    a, b = gofer.Chan[int](), gofer.Chan[int]()
    assert a != b
    views: list[tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = [
        (lambda: a.sender, lambda: b.sender, lambda: a.receiver),
        (lambda: a.receiver, lambda: b.receiver, lambda: a.sender),
    ]
    for of_a, of_b, other in views:
        assert of_a() == of_a()
        assert not (of_a() != of_a())  # noqa: SIM202
        assert hash(of_a()) == hash(of_a())
        assert of_a() != of_b()
        assert of_a() != other()
        assert of_a() != a
        assert of_a() != "something else"
    assert len({a.sender, a.sender, a.receiver, a.receiver, b.sender, b.receiver}) == 4


def test_a_view_keeps_its_channel() -> None:
    rx = full(1, 2).receiver
    gc.collect()
    assert [rx.recv_nowait(), rx.recv_nowait()] == [1, 2]


def test_a_view_cannot_be_made_without_a_channel() -> None:
    for cls in (gofer.SendChan, gofer.RecvChan):
        with pytest.raises(TypeError):
            cls()


# --- Operations -----------------------------------------------------------------------------------


def test_an_operation_does_nothing_until_it_is_awaited(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int](1)
        for _ in range(100):
            ch.send(1)
            ch.sender.send(1)
            gofer.select(ch.send(1))
        assert len(ch) == 0
        ch.send_nowait(2)
        for _ in range(100):
            ch.recv()
            ch.recv_ok()
            gofer.select(ch.recv())
        assert len(ch) == 1
        kept = ch.recv()
        assert await ch.recv() == 2
        ch.send_nowait(3)
        assert await kept == 3

    gofer.run(main, procs=procs)


def test_an_operation_may_be_made_long_before_and_elsewhere() -> None:
    ch = gofer.Chan[int](1)
    send, recv = ch.send(1), ch.recv()

    async def main() -> int:
        await send
        return await recv

    assert gofer.run(main) == 1


def test_an_operation_shows_what_it_is() -> None:
    ch = gofer.Chan[int](1)

    async def main() -> None:
        for operation, name in ((ch.send(1), "send"), (ch.recv(), "recv")):
            assert name in repr(operation)
            assert "not awaited" in repr(operation)
            await operation
            assert "done" in repr(operation)
        recv = ch.recv_ok()
        g = await waiting(recv)
        assert "recv_ok" in repr(recv)
        assert "waiting" in repr(recv)
        ch.send_nowait(1)
        await g

    gofer.run(main)


def test_to_await_an_operation_again_is_an_error(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int](1)
        for operation in (ch.send(1), ch.recv(), ch.send(1), ch.recv_ok()):
            await operation
            before = len(ch)
            with pytest.raises(RuntimeError, match="has been awaited already: make a new one"):
                await operation
            assert len(ch) == before
        waited, sent = ch.recv(), gofer.Chan[int]()
        g = await waiting(waited)
        await ch.send(1)
        await g
        late = sent.send(1)
        g2 = await waiting(late)
        await sent.recv()
        await g2
        for operation in (waited, late):
            with pytest.raises(RuntimeError, match="has been awaited already"):
                await operation
        would_block(sent)

    gofer.run(main, procs=procs)


def test_an_operation_that_failed_or_was_cancelled_is_used_too(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        recv, send = ch.recv(), ch.send(1)
        g = await waiting(recv)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        ch.close()
        with pytest.raises(gofer.ChannelClosed):
            await send
        for operation in (recv, send):
            with pytest.raises(RuntimeError, match="has been awaited already"):
                await operation

    gofer.run(main, procs=procs)


def test_two_goroutines_cannot_await_one_operation(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        for operation, finish in (
            (ch.recv(), lambda: ch.send(5)),
            (ch.recv_ok(), lambda: ch.send(5)),
            (ch.send(5), lambda: ch.recv()),
        ):
            g = await waiting(operation)
            with pytest.raises(RuntimeError, match="is already awaited by another goroutine"):
                await operation
            assert g.state == "waiting"  # and is none the worse for it
            await finish()
            assert await g in (5, (5, True), None)
        would_block(ch)

    gofer.run(main, procs=procs)


def test_an_operation_can_be_awaited_only_in_a_goroutine() -> None:
    ch = full(1)
    for operation in (ch.recv(), ch.recv_ok(), ch.send(1), gofer.select(ch.recv())):
        coro = wait_for(operation)
        with pytest.raises(RuntimeError, match="can only be awaited inside a goroutine"):
            coro.send(None)
    assert len(ch) == 1


def test_an_operation_begun_by_hand_and_closed_takes_no_value(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        for operation in (ch.recv(), ch.recv_ok(), ch.send(1), gofer.select(ch.recv(), ch.send(1))):
            coro = wait_for(operation)
            coro.send(None)
            coro.close()
            would_block(ch)

    gofer.run(main, procs=procs)


# --- Cancelling -----------------------------------------------------------------------------------


def test_a_pending_cancellation_comes_first_even_if_nothing_need_wait(procs: int) -> None:
    async def main() -> None:
        one, none = full(1), gofer.Chan[int](1)
        me = gofer.current()
        closed = gofer.Chan[int]()
        closed.close()
        for make in (
            one.recv,
            one.recv_ok,
            one.receiver.recv,
            lambda: anext(aiter(one)),
            lambda: none.send(1),
            lambda: none.sender.send(1),
            lambda: gofer.select(one.recv(), none.send(1)),
            lambda: gofer.select(default=True),
            closed.recv,
            closed.recv_ok,
            lambda: closed.send(1),
        ):
            me.cancel("reason")
            with pytest.raises(gofer.Cancelled, match="reason"):
                await make()
            assert (len(one), len(none)) == (1, 0)
        await none.send(2)  # once only
        assert await none.recv() == 2

    gofer.run(main, procs=procs)


def test_a_cancelled_receiver_takes_no_value(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        for make in (ch.recv, ch.recv_ok, lambda: gofer.select(ch.recv())):
            g: gofer.Goroutine[Any] = await waiting(make())
            assert g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g
            would_block(ch)

    gofer.run(main, procs=procs)


def test_a_cancelled_sender_leaves_no_value(procs: int) -> None:
    async def main() -> None:
        for cap in (0, 2):
            ch = gofer.Chan[int](cap)
            await send_all(ch, list(range(cap)))
            for make in (lambda ch=ch: ch.send(9), lambda ch=ch: gofer.select(ch.send(9))):
                g: gofer.Goroutine[Any] = await waiting(make())
                assert g.cancel()
                with pytest.raises(gofer.Cancelled):
                    await g
            assert [ch.recv_nowait() for _ in range(cap)] == list(range(cap))
            with pytest.raises(gofer.WouldBlock):
                ch.recv_nowait()

    gofer.run(main, procs=procs)


@pytest.mark.parametrize("gone", [{0}, {9}, {4}, {0, 9}, {3, 4, 5}, {0, 1, 2, 7, 8, 9}])
def test_those_who_go_leave_the_others_in_order(gone: set[int]) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        stay = [i for i in range(10) if i not in gone]
        receivers = [await waiting(ch.recv()) for _ in range(10)]
        for i in sorted(gone, reverse=True):
            receivers[i].cancel()
            with pytest.raises(gofer.Cancelled):
                await receivers[i]
        for i in stay:
            ch.send_nowait(i)
        assert [await receivers[i] for i in stay] == stay
        would_block(ch)

        senders = [await waiting(ch.send(i)) for i in range(10)]
        for i in sorted(gone):
            senders[i].cancel()
            with pytest.raises(gofer.Cancelled):
                await senders[i]
        assert [ch.recv_nowait() for _ in stay] == stay
        for i in stay:
            await senders[i]
        would_block(ch)

    gofer.run(main, procs=2)


def test_who_has_the_value_already_keeps_it_and_the_next_operation_raises() -> None:
    """On one P the receiver has not run yet when the cancellation comes."""

    async def receiver(ch: gofer.Chan[int]) -> list[Any]:
        log: list[Any] = []
        for _ in range(3):
            try:
                log.append(await ch.recv())
            except gofer.Cancelled:
                log.append("cancelled")
        return log

    async def sender(ch: gofer.Chan[int]) -> list[Any]:
        log: list[Any] = []
        for i in range(3):
            try:
                await ch.send(i)
                log.append(i)
            except gofer.Cancelled:
                log.append("cancelled")
        return log

    async def main() -> None:
        ch = gofer.Chan[int]()
        g = gofer.go(receiver, ch)
        await parked(g)
        ch.send_nowait(1)
        assert g.cancel()
        await ch.send(2)
        assert await g == [1, "cancelled", 2]

        g = gofer.go(sender, ch)
        await parked(g)
        assert ch.recv_nowait() == 0
        assert g.cancel()
        assert await ch.recv() == 2
        assert await g == [0, "cancelled", 2]

    gofer.run(main, procs=1)


def test_the_end_of_the_run_frees_all_who_wait_and_they_may_still_use_channels(procs: int) -> None:
    left: list[str] = []

    async def stuck(ch: gofer.Chan[int], how: str) -> None:
        try:
            if how == "recv":
                await ch.recv()
            elif how == "send":
                await ch.send(1)
            else:
                await gofer.select(ch.recv(), gofer.sleep(100_000))
        finally:
            _, other, _ = await gofer.select(meeting.send(how), meeting.recv())
            left.append(how)
            if other is not None:
                met.append(other)

    async def main() -> None:
        gs = [gofer.go(stuck, receive_only, how) for how in ("recv", "select") for _ in range(20)]
        gs += [gofer.go(stuck, send_only, "send") for _ in range(20)]
        await parked(*gs)

    receive_only, send_only, meeting = gofer.Chan[int](), gofer.Chan[int](), gofer.Chan[str]()
    met: list[str] = []
    gofer.run(main, procs=procs)
    assert len(met) == 30  # who is gone meets nobody, so they met in pairs
    assert sorted(left) == ["recv"] * 20 + ["select"] * 20 + ["send"] * 20
    would_block(receive_only)
    would_block(send_only)


def test_a_channel_may_be_used_in_one_run_after_another(procs: int) -> None:
    ch = gofer.Chan[int](3)
    gofer.run(send_all, ch, [1, 2, 3], procs=procs)
    assert len(ch) == 3

    async def main() -> list[int]:
        ch.close()
        return await all_of(ch)

    assert gofer.run(main, procs=procs) == [1, 2, 3]


# --- Waiting for ever -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda ch: ch.recv(), "chan receive"),
        (lambda ch: ch.recv_ok(), "chan receive"),
        (lambda ch: anext(aiter(ch)), "chan receive"),
        (lambda ch: ch.send(1), "chan send"),
        (lambda ch: gofer.select(ch.recv(), None, ch.recv_ok()), "select"),
        (lambda ch: gofer.select(), "select (no cases)"),
        (lambda ch: gofer.select(None, None), "select (no cases)"),
    ],
    ids=["recv", "recv_ok", "anext", "send", "select", "no cases", "None"],
)
def test_a_deadlock_tells_the_reason(make: Callable[[Any], Awaitable[Any]], reason: str) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        g = await waiting(make(ch))
        assert g.wait_reason == reason
        await make(ch)

    for procs in (1, 4):
        start = time.monotonic()
        with pytest.raises(gofer.Deadlock) as info:
            gofer.run(main, procs=procs)
        assert time.monotonic() - start < 5
        assert str(info.value).count(f"[{reason}]") == 2
        assert f"goroutine 1 [{reason}]:" in str(info.value)


async def all_collected() -> None:
    """Collect until only this goroutine is left: an M may hold one that has just parked."""

    def alone() -> bool:
        gc.collect()
        return gofer.num_goroutine() == 1

    await until(alone, "alone")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: gofer.Chan[int]().recv(), "chan receive"),
        (lambda: gofer.Chan[int]().receiver.recv(), "chan receive"),
        (lambda: gofer.Chan[int]().send(1), "chan send"),
        (lambda: gofer.select(gofer.Chan[int]().send(1), gofer.Chan[int]().recv()), "select"),
        (lambda: gofer.select(None), "select (no cases)"),
    ],
    ids=["recv", "view", "send", "select", "no cases"],
)
def test_who_waits_at_a_channel_that_nobody_else_has_is_a_leak(
    make: Callable[[], Awaitable[Any]], reason: str
) -> None:
    async def main() -> None:
        await waiting(make())
        with pytest.warns(gofer.GoroutineLeakWarning) as caught:
            await all_collected()
        assert len(caught) == 1
        assert f"[{reason}]" in str(caught[0].message)

    for procs in (1, 4):
        gofer.run(main, procs=procs)


def test_who_waits_at_a_channel_that_somebody_has_is_none(procs: int) -> None:
    async def receiver(rx: gofer.RecvChan[int]) -> None:
        log.append(await rx.recv())

    async def selector(rx: gofer.RecvChan[int]) -> None:
        log.append((await gofer.select(gofer.Chan[int]().recv(), rx.recv())).value)

    async def main() -> None:
        ch = gofer.Chan[int]()
        gs = [gofer.go(receiver, ch.receiver), gofer.go(selector, ch.receiver)]
        await parked(*gs)
        tx = ch.sender
        del ch, gs
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                gc.collect()
        assert gofer.num_goroutine() == 3
        await tx.send(1)
        await tx.send(2)
        await until(lambda: len(log) == 2)
        assert sorted(log) == [1, 2]

    log: list[int] = []
    gofer.run(main, procs=procs)


# --- Slices ---------------------------------------------------------------------------------------


def never_waiting() -> list[Callable[[], Awaitable[Any]]]:
    """Operations that can be done at once, for ever."""
    ch, closed = gofer.Chan[int](1), gofer.Chan[int]()
    closed.close()
    never = gofer.Chan[int]()

    async def there_and_back() -> None:
        await ch.send(1)
        await ch.recv()

    return [
        there_and_back,
        closed.recv_ok,
        lambda: gofer.select(closed.recv(), never.recv()),
        lambda: gofer.select(ch.send(1), ch.recv()),
        lambda: gofer.select(never.recv(), default=True),
    ]


def test_one_that_need_not_wait_still_yields_when_its_slice_is_over() -> None:
    async def other() -> None:
        ran.append(1)

    async def main() -> None:
        for make in never_waiting():
            ran.clear()
            g = gofer.go(other)
            deadline = time.monotonic() + PATIENCE / 4
            while not ran and time.monotonic() < deadline:
                await make()
            assert ran
            await g

    ran: list[int] = []
    gofer.run(main, procs=1)


def test_two_that_wake_each_other_share_one_slice() -> None:
    """Each makes the other the next to run: together they have one slice, not one each time."""

    async def player(recv_from: gofer.Chan[int], send_to: gofer.Chan[int]) -> None:
        async for ball in recv_from:
            await send_to.send(ball)

    async def other() -> None:
        ran.append(1)

    async def main() -> None:
        ping, pong = gofer.Chan[int](), gofer.Chan[int]()
        g = gofer.go(player, ping, pong)
        await parked(g)
        gofer.go(other)
        deadline = time.monotonic() + PATIENCE / 4
        while not ran and time.monotonic() < deadline:
            await ping.send(1)
            await pong.recv()
        assert ran
        ping.close()
        await g

    ran: list[int] = []
    gofer.run(main, procs=1)


def test_two_that_wake_each_other_and_become_slow_keep_nobody_waiting_for_long() -> None:
    """As long as each turn is short, the clock is looked at now and then only."""

    async def player(recv_from: gofer.Chan[int], send_to: gofer.Chan[int]) -> None:
        nonlocal pieces
        async for ball in recv_from:
            if ball % 120 >= 80:
                spin(0.004)
                pieces += 1
            await send_to.send(ball)

    async def other() -> None:
        nonlocal pieces
        while not over:
            most.append(pieces)
            pieces = 0
            await gofer.gosched()

    async def main() -> None:
        nonlocal over
        ping, pong = gofer.Chan[int](), gofer.Chan[int]()
        g = gofer.go(player, ping, pong)
        third = gofer.go(other)
        for ball in range(360):
            await ping.send(ball)
            await pong.recv()
        over = True
        ping.close()
        await g
        await third

    over, pieces = False, 0
    most: list[int] = []
    gofer.run(main, procs=1)
    assert max(most) < 10  # of 4 ms each, where a slice has 10


# --- From other threads ---------------------------------------------------------------------------


def test_a_foreign_thread_may_send_and_close(procs: int) -> None:
    ch = gofer.Chan[int](2)

    def foreign() -> None:
        for i in range(100):
            while True:
                try:
                    ch.send_nowait(i)
                    break
                except gofer.WouldBlock:
                    time.sleep(0.0001)
        ch.close()

    async def main() -> list[int]:
        with thread(foreign):
            return await all_of(ch)

    assert gofer.run(main, procs=procs) == list(range(100))


def test_a_foreign_thread_may_receive(procs: int) -> None:
    ch = gofer.Chan[int]()
    got: list[int] = []

    def foreign() -> None:
        while len(got) < 100:
            try:
                got.append(ch.recv_nowait())
            except gofer.WouldBlock:
                time.sleep(0.0001)

    async def main() -> None:
        with thread(foreign):
            await send_all(ch, list(range(100)))
            await until(lambda: len(got) == 100)

    gofer.run(main, procs=procs)
    assert got == list(range(100))


def test_block_waits_in_a_foreign_thread(procs: int) -> None:
    there, back = gofer.Chan[int](), gofer.Chan[int]()

    async def double(ch: gofer.Chan[int]) -> int:
        return 2 * await ch.recv()

    def foreign() -> None:
        for _ in range(20):
            gofer.block(back.send(gofer.block(there.recv()) + 1))
        gofer.block(back.send(gofer.block(double(there))))
        assert gofer.block(there.recv_ok()) == (7, True)
        assert gofer.block(gofer.select(None, there.recv())) == (1, 8, True)
        assert gofer.block(there.recv_ok()) == (None, False)
        with pytest.raises(gofer.ChannelClosed, match=RECV_CLOSED):
            gofer.block(there.recv())
        back.close()

    async def main() -> None:
        with thread(foreign):
            for i in range(20):
                await there.send(i)
                assert await back.recv() == i + 1
            await there.send(21)
            assert await back.recv() == 42
            await there.send(7)
            await there.send(8)
            there.close()
            assert await all_of(back) == []

    gofer.run(main, procs=procs)


def test_block_with_a_timeout_takes_the_operation_back(procs: int) -> None:
    ch, done = gofer.Chan[int](), gofer.Chan[int](1)

    def foreign() -> None:
        for operation in (ch.recv(), ch.send(1), gofer.select(ch.recv(), ch.send(1))):
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                gofer.block(operation, timeout=0.01)
            assert time.monotonic() - start >= 0.01
            would_block(ch)
        done.send_nowait(1)

    async def main() -> None:
        with thread(foreign):
            await done.recv()

    gofer.run(main, procs=procs)


def test_block_inside_a_goroutine_says_to_use_await(procs: int) -> None:
    async def main() -> None:
        ch = full(1)
        with pytest.raises(RuntimeError, match="await"):
            gofer.block(ch.recv())
        assert len(ch) == 1

    gofer.run(main, procs=procs)


def test_block_needs_a_runtime() -> None:
    ch = full(1)
    with pytest.raises(RuntimeError):
        gofer.block(ch.recv())
    assert len(ch) == 1


# --- Put together ---------------------------------------------------------------------------------


def test_capacity_limits_how_many_are_inside(procs: int) -> None:
    """The semaphore idiom: receive k happens before send k + capacity is done."""
    inside: list[int] = []
    peak: list[int] = []

    async def worker(permits: gofer.Chan[None]) -> None:
        await permits.send(None)
        inside.append(1)
        peak.append(len(inside))
        await gofer.gosched()
        inside.pop()
        await permits.recv()

    async def main() -> None:
        permits = gofer.Chan[None](3)
        gs = [gofer.go(worker, permits) for _ in range(50)]
        for g in gs:
            await g

    gofer.run(main, procs=procs)
    assert len(peak) == 50
    assert max(peak) <= 3
    if procs == 1:
        assert max(peak) == 3


def test_the_prime_sieve(procs: int) -> None:
    async def count(ch: gofer.SendChan[int]) -> None:
        i = 2
        while True:
            await ch.send(i)
            i += 1

    async def sift(rx: gofer.RecvChan[int], tx: gofer.SendChan[int], prime: int) -> None:
        async for i in rx:
            if i % prime:
                await tx.send(i)

    async def primes(cap: int) -> AsyncIterator[int]:
        ch = gofer.Chan[int](cap)
        gofer.go(count, ch.sender)
        while True:
            prime = await ch.recv()
            yield prime
            rest = gofer.Chan[int](cap)
            gofer.go(sift, ch.receiver, rest.sender, prime)
            ch = rest

    async def main() -> None:
        for cap in (0, 1, 10):
            found = []
            async for prime in primes(cap):
                found.append(prime)
                if prime > 100:
                    break
            assert found == [n for n in range(2, 102) if all(n % d for d in range(2, n))]

    gofer.run(main, procs=procs)


def test_a_daisy_chain_of_ten_thousand(procs: int) -> None:
    async def link(left: gofer.Chan[int], right: gofer.Chan[int]) -> None:
        await left.send(1 + await right.recv())

    async def main() -> int:
        leftmost = left = gofer.Chan[int]()
        for _ in range(10_000):
            right = gofer.Chan[int]()
            gofer.go(link, left, right)
            left = right
        await left.send(0)
        return await leftmost.recv()

    assert gofer.run(main, procs=procs) == 10_000


def test_a_chain_of_turns_takes_the_values_in_order(procs: int) -> None:
    """Each one waits for its turn, takes one value and passes the turn on."""

    async def taker(
        ch: gofer.Chan[int], expected: int, mine: gofer.Chan[None], next_one: gofer.Chan[None]
    ) -> None:
        await mine.recv()
        assert await ch.recv() == expected
        await next_one.send(None)

    async def main() -> None:
        ch, first = gofer.Chan[int](), gofer.Chan[None]()
        gs, turn = [], first
        for i in range(100):
            after = gofer.Chan[None]()
            gs.append(gofer.go(taker, ch, i, turn, after))
            turn = after
        await first.send(None)
        await send_all(ch, list(range(100)))
        await turn.recv()
        for g in gs:
            await g

    gofer.run(main, procs=procs)


def test_many_wait_at_one_channel(procs: int) -> None:
    async def main() -> None:
        ch = gofer.Chan[int]()
        receivers = [gofer.go(wait_for, ch.recv()) for _ in range(2000)]
        await send_all(ch, list(range(2000)))
        assert sorted([await g for g in receivers]) == list(range(2000))

    gofer.run(main, procs=procs)


def test_an_operation_that_a_plain_function_returns_is_awaited(procs: int) -> None:
    """go(ch.send, 1) would do nothing otherwise; after_func() and Group.go() are used like that."""

    async def main() -> list[object]:
        ch: gofer.Chan[int] = gofer.Chan()
        gofer.go(ch.send, 1)
        gofer.after_func(0, ch.send, 2)
        return sorted([await ch.recv(), await ch.recv()])

    assert gofer.run(main, procs=procs) == [1, 2]


# --- Channels that grow, as WorkerPool uses them for results -------------------------------------


@pytest.mark.parametrize("taken_before", [0, 1, 3, 4])
def test_a_growing_channel_keeps_the_order(procs: int, taken_before: int) -> None:
    """Also if its values wrap around the end of the ring when it grows."""

    async def main() -> None:
        ch = _core.growing_chan()
        for i in range(4):
            ch.send_nowait(i)
        for i in range(taken_before):
            assert ch.recv_nowait() == i
        for i in range(4, 1000):
            if i % 2:
                await ch.send(i)
            else:
                ch.send_nowait(i)
        assert len(ch) == 1000 - taken_before
        assert ch.cap > 2**60
        assert f"<Chan {len(ch)} values at 0x" in repr(ch)
        ch.close()
        with pytest.raises(gofer.ChannelClosed):
            ch.send_nowait(1)
        assert [i async for i in ch] == list(range(taken_before, 1000))

    gofer.run(main, procs=procs)


def test_a_growing_channel_is_always_ready_to_be_sent_to(procs: int) -> None:
    async def main() -> None:
        ch = _core.growing_chan()
        for i in range(100):
            assert (await gofer.select(ch.send(i), default=True)).index == 0
        readers = [gofer.go(wait_for, ch.recv()) for _ in range(100)]
        assert sorted([await g for g in readers]) == list(range(100))
        late = gofer.go(wait_for, ch.recv())
        await parked(late)
        ch.send_nowait("now")
        assert await late == "now"

    gofer.run(main, procs=procs)
