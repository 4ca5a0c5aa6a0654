"""Conn and Listener: bytes arrive whole and in order, and every way to end is told to who waits."""

import array
import contextlib
import gc
import os
import random
import resource
import shutil
import socket
import struct
import subprocess
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import _core, net
from tests.net_support import (
    conn_and_socket,
    conn_pair,
    echo,
    echo_server,
    raised_by,
    serving,
    tcp_pair,
)
from tests.support import SANITIZED, TINY, parked, run_program, until, wait_for


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


# --- reading -------------------------------------------------------------------------------------


def test_read_gives_what_is_there_and_nothing_at_the_end(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            await a.write(b"hello")
            assert await b.read() == b"hello"
            await a.write(b"ab")
            assert await b.read(1) == b"a"
            assert await b.read(n=1) == b"b"
            a.close_write()
            assert await b.read() == b""
            assert await b.read() == b""

    gofer.run(main, procs=procs)


def test_read_waits_for_data(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            for i in range(100):
                reader = gofer.go(wait_for, b.read())
                if i % 2:
                    await parked(reader)
                    assert reader.wait_reason == "IO wait"
                await a.write(b"%d" % i)
                assert await reader == b"%d" % i

    gofer.run(main, procs=procs)


def test_data_and_the_end_of_the_stream_in_one_segment_are_both_seen(procs: int) -> None:
    """The poller may see them in one event: reading less than asked for is not the end."""

    async def main() -> None:
        for _ in range(200):
            conn, sock = conn_and_socket()
            async with conn:
                reader = gofer.go(wait_for, conn.read())
                await parked(reader)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                sock.send(b"last words")
                sock.close()  # the kernel sends data and FIN together
                assert await reader == b"last words"
                assert await conn.read() == b""

    gofer.run(main, procs=procs)


def test_urgent_data_does_not_stop_the_stream() -> None:
    """A read stops short at the urgent mark although there is more."""

    async def main() -> None:
        conn, sock = conn_and_socket()
        with sock:
            async with conn:
                await conn.write(b"x")  # so that it is known to the poller
                reader = gofer.go(wait_for, conn.read())
                await parked(reader)
                sock.send(b"before")
                assert await reader == b"before"
                sock.send(b"!", socket.MSG_OOB)
                sock.send(b"after")
                async with gofer.timeout(10):
                    assert await conn.read_exactly(5) == b"after"

    gofer.run(main)


def test_read_of_nothing_is_nothing_and_does_not_wait() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            assert await a.read(0) == b""
            assert await a.read_exactly(0) == b""
            assert await a.read_into(bytearray()) == 0

    gofer.run(main)


@pytest.mark.parametrize("n", [-1, -(2**62)])
def test_a_negative_size_is_a_value_error(n: int) -> None:
    a, b = conn_pair()
    with a, b:
        for method in (a.read, a.read_exactly):
            with pytest.raises(ValueError, match="negative"):
                method(n)


@pytest.mark.parametrize("n", ["1", None, 1.5, b"1"])
def test_a_size_that_is_no_integer_is_a_type_error(n: Any) -> None:
    a, b = conn_pair()
    with a, b:
        for method in (a.read, a.read_exactly):
            with pytest.raises(TypeError):
                method(n)
        with pytest.raises(TypeError):
            a.read(1, 2)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            a.read(m=1)  # type: ignore[call-arg]


def test_a_huge_read_needs_no_huge_memory() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            await a.write(b"x" * 1000)
            assert await b.read(2**62) == b"x" * 1000
            reader = gofer.go(raised_by, b.read_exactly(2**62))
            await parked(reader)
            a.close()
            end = await reader
            assert isinstance(end, net.IncompleteRead)
            assert end.expected == 2**62

    gofer.run(main)


def test_read_into_fills_any_writable_buffer() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            await a.write(b"abcdefgh")
            buf = bytearray(3)
            assert await b.read_into(buf) == 3
            assert buf == b"abc"
            words = array.array("H", [0] * 10)
            assert await b.read_into(words) == 5
            assert words.tobytes()[:5] == b"defgh"
            await a.write(b"xyz")
            view = memoryview(bytearray(10))[4:6]
            assert await b.read_into(view) == 2
            assert bytes(view) == b"xy"
            a.close()
            assert await b.read_into(buf) == 1
            assert await b.read_into(buf) == 0

    gofer.run(main)


@pytest.mark.parametrize("buf", [b"abc", 3, None, "abc"])
def test_read_into_what_cannot_be_written_is_a_type_error(buf: Any) -> None:
    a, b = conn_pair()
    with a, b, pytest.raises((TypeError, BufferError)):
        a.read_into(buf)


def test_read_exactly_waits_for_all_of_it(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            data = random.Random(1).randbytes(300_000)
            reader = gofer.go(wait_for, b.read_exactly(len(data)))
            for start in range(0, len(data), 7001):
                await a.write(data[start : start + 7001])
            await a.write(b"rest")
            assert await reader == data
            assert await b.read() == b"rest"

    gofer.run(main, procs=procs)


def test_read_exactly_tells_what_came_before_the_end() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            await a.write(b"abc")
            a.close()
            with pytest.raises(net.IncompleteRead, match="after 3 bytes; 10 bytes") as info:
                await b.read_exactly(10)
            assert info.value.partial == b"abc"
            assert info.value.expected == 10
            assert isinstance(info.value, EOFError)
            assert await b.read() == b""

    gofer.run(main)


def test_read_until_cuts_at_the_separator(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            await a.write(b"one\r\ntwo\r\nthree\r")
            assert await b.read_until(b"\r\n") == b"one\r\n"
            assert await b.read_until(b"\r\n") == b"two\r\n"
            reader = gofer.go(wait_for, b.read_until(b"\r\n"))
            await parked(reader)
            await a.write(b"\nrest")
            assert await reader == b"three\r\n"
            assert await b.read(2) == b"re"
            assert await b.read() == b"st"

    gofer.run(main, procs=procs)


def test_read_until_finds_a_separator_that_comes_byte_by_byte() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            text = b"aabaabaaabaab" * 100 + b"aabaaabb"
            reader = gofer.go(wait_for, b.read_until(b"aabaaabb"))
            for i in range(len(text)):
                await a.write(text[i : i + 1])
                if i % 50 == 0:
                    await gofer.sleep(0.0005)
            assert await reader == text

    gofer.run(main)


def test_read_until_has_a_limit_and_takes_nothing_if_it_is_exceeded() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            await a.write(b"x" * 100 + b"\n")
            for limit in (1, 50, 100):
                with pytest.raises(net.LimitExceeded, match=f"within {limit} bytes"):
                    await b.read_until(b"\n", limit=limit)
            assert await b.read_until(b"\n", 101) == b"x" * 100 + b"\n"
            await a.write(b"abc")
            a.close()
            with pytest.raises(net.IncompleteRead, match="a separator expected") as info:
                await b.read_until(b"\n")
            assert info.value.partial == b"abc"
            assert info.value.expected is None

    gofer.run(main)


def test_read_until_needs_a_separator_and_a_limit() -> None:
    a, b = conn_pair()
    with a, b:
        with pytest.raises(ValueError, match="separator"):
            a.read_until(b"")
        with pytest.raises(ValueError, match="limit"):
            a.read_until(b"x", limit=0)
        with pytest.raises(TypeError):
            a.read_until("x")  # type: ignore[arg-type]


def test_a_cancelled_read_loses_nothing() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            for op in (b.read_exactly(10), b.read_until(b"\n")):
                reader = gofer.go(wait_for, op)
                await a.write(b"abc")
                await until(lambda r=reader: r.state == "waiting")  # type: ignore[misc]
                await gofer.sleep(0.01)
                reader.cancel()
                with pytest.raises(gofer.Cancelled):
                    await reader
            assert await b.read_exactly(6) == b"abcabc"

    gofer.run(main)


def test_two_readers_take_turns_in_the_order_in_which_they_came(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            readers = []
            for _ in range(10):
                readers.append(gofer.go(wait_for, b.read_exactly(100)))
                await parked(readers[-1])
            for i in range(10):
                await a.write(bytes([i]) * 100)
            assert [await r for r in readers] == [bytes([i]) * 100 for i in range(10)]

    gofer.run(main, procs=procs)


def test_a_reader_in_the_queue_can_be_cancelled() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            readers = []
            for _ in range(4):
                readers.append(gofer.go(wait_for, b.read_exactly(3)))
                await parked(readers[-1])
            readers[1].cancel()
            readers[0].cancel()
            for r in readers[:2]:
                with pytest.raises(gofer.Cancelled):
                    await r
            await a.write(b"abcdef")
            assert [await readers[2], await readers[3]] == [b"abc", b"def"]

    gofer.run(main)


# --- writing -------------------------------------------------------------------------------------


def test_write_takes_all_kinds_of_buffers() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            assert await a.write(b"bytes ") is None
            await a.write(bytearray(b"bytearray "))
            await a.write(memoryview(b"..view ..")[2:7])
            await a.write(array.array("B", b"array "))
            await a.write([b"list ", bytearray(b"of "), b"", memoryview(b"pieces")])
            await a.write((b".",))
            await a.write([])
            await a.write(b"")
            a.close()
            text = b""
            while data := await b.read():
                text += data
            assert text == b"bytes bytearray view array list of pieces."

    gofer.run(main)


@pytest.mark.parametrize("data", ["text", 1, None, [b"a", "b"], {b"a": 1}, [[b"a"]]])
def test_write_of_what_is_no_buffer_is_a_type_error(data: Any) -> None:
    a, b = conn_pair()
    with a, b, pytest.raises(TypeError):
        a.write(data)


def test_a_buffer_that_is_being_written_cannot_be_resized() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            data = bytearray(20_000_000)
            writer = gofer.go(wait_for, a.write(data))
            await parked(writer)
            with pytest.raises(BufferError):
                data.append(1)
            writer.cancel()
            with pytest.raises(gofer.Cancelled):
                await writer
            del writer
            gc.collect()
            data.append(1)

    gofer.run(main)


def test_a_big_write_waits_for_the_reader_and_arrives_whole(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            data = random.Random(1).randbytes(10_000_000)
            writer = gofer.go(wait_for, a.write(data))
            await parked(writer)
            assert writer.wait_reason == "IO wait"
            assert await b.read_exactly(len(data)) == data
            await writer

    gofer.run(main, procs=procs)


def test_many_pieces_arrive_whole_and_in_order() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            rng = random.Random(1)
            pieces = [rng.randbytes(rng.choice([0, 1, 10, 5000])) for _ in range(3000)]
            writer = gofer.go(wait_for, a.write(pieces))
            whole = b"".join(pieces)
            assert await b.read_exactly(len(whole)) == whole
            await writer

    gofer.run(main)


def test_what_several_goroutines_write_is_not_mixed_up(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()

        async def writer(i: int) -> None:
            for _ in range(5):
                await a.write(bytes([i]) * 300_000)

        async with a, b:
            writers = [gofer.go(writer, i) for i in range(8)]
            seen = [0] * 8
            for _ in range(40):
                block = await b.read_exactly(300_000)
                assert block == bytes([block[0]]) * 300_000
                seen[block[0]] += 1
            assert seen == [5] * 8
            for w in writers:
                await w

    gofer.run(main, procs=procs)


def test_a_slow_reader_holds_the_writer_back() -> None:
    """Backpressure: memory stays flat, since no byte is taken that nobody reads."""

    async def main() -> None:
        a, b = conn_pair()
        written = 0

        async def writer() -> None:
            nonlocal written
            while True:
                await a.write(bytes(100_000))
                written += 100_000

        async with a, b:
            g = gofer.go(writer)
            await parked(g)
            before = written
            await gofer.sleep(0.05)
            assert written == before
            assert before < 50_000_000
            await b.read_exactly(before)
            await until(lambda: written > before)
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g

    gofer.run(main)


async def write_forever(conn: net.Conn) -> None:
    while True:
        await conn.write(bytes(1000))


def test_a_write_to_a_peer_that_is_gone_fails() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a:
            b.close()
            g = gofer.go(raised_by, write_forever(a))
            assert isinstance(await g, BrokenPipeError | ConnectionResetError)

    gofer.run(main)


def test_a_reset_by_the_peer_is_told_to_the_reader(procs: int) -> None:
    async def main() -> None:
        conn, sock = conn_and_socket()
        async with conn:
            reader = gofer.go(raised_by, conn.read())
            await parked(reader)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            assert isinstance(await reader, ConnectionResetError)

    gofer.run(main, procs=procs)


def test_half_closing_leaves_the_other_direction_open(procs: int) -> None:
    async def total(conn: net.Conn) -> None:
        n = 0
        while data := await conn.read():
            n += len(data)
        await conn.write(b"%d" % n)
        conn.close()

    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            server = gofer.go(total, b)
            await a.write(bytes(12345))
            assert await a.close_write() is None  # type: ignore[func-returns-value]
            assert await a.read() == b"12345"
            assert await a.read() == b""
            with pytest.raises(BrokenPipeError):
                await a.write(b"more")
            await server

    gofer.run(main, procs=procs)


# --- closing -------------------------------------------------------------------------------------


def test_close_wakes_whoever_reads_writes_or_waits_for_a_turn(procs: int) -> None:
    async def main() -> None:
        for _ in range(20):
            a, b = conn_pair()
            async with a, b:
                waiting = [
                    gofer.go(raised_by, op)
                    for op in (
                        a.read(),
                        a.read_exactly(10),
                        a.read_into(bytearray(5)),
                        a.read_until(b"x"),
                        a.write(bytes(20_000_000)),
                        a.write([bytes(20_000_000)]),
                    )
                ]
                await parked(*waiting)
                a.close()
                assert a.closed
                for g in waiting:
                    exc = await g
                    assert type(exc) is net.ClosedError
                    assert str(exc) == "use of closed connection"

    gofer.run(main, procs=procs)


def test_everything_on_a_closed_connection_raises_closed_error() -> None:
    async def main() -> None:
        a, b = conn_pair()
        b.close()
        assert await a.close() is None  # type: ignore[func-returns-value]
        for make in (
            lambda: a.read(),
            lambda: a.read_exactly(1),
            lambda: a.read_until(b"x"),
            lambda: a.read_into(bytearray(1)),
            lambda: a.write(b"x"),
            lambda: a.write([b"x"]),
        ):
            with pytest.raises(net.ClosedError):
                await make()  # type: ignore[no-untyped-call]
        with pytest.raises(net.ClosedError):
            a.close_write()
        with pytest.raises(net.ClosedError):
            a.detach()
        assert a.fileno() == -1
        a.close()
        a.close()
        a.set_deadline(1)
        assert "closed" in repr(a)

    gofer.run(main)


def test_closed_error_is_a_connection_error() -> None:
    assert issubclass(net.ClosedError, ConnectionError)
    assert issubclass(net.ClosedError, OSError)


def test_close_closes_the_descriptor_at_once(procs: int) -> None:
    async def main() -> None:
        for _ in range(50):
            a, b = conn_pair()
            fd = a.fileno()
            reader = gofer.go(raised_by, a.read())
            await parked(reader)
            a.close()
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(fd)
            assert await b.read() == b""
            b.close()
            await reader

    gofer.run(main, procs=procs)


def test_a_descriptor_is_not_reused_under_somebody_s_feet(procs: int) -> None:
    """Readers of a connection that is closed, while others are opened with its number."""

    async def victim(conn: net.Conn, started: gofer.WaitGroup) -> None:
        started.done()
        with contextlib.suppress(net.ClosedError):
            while True:
                data = await conn.read()
                assert data == b"", "read from somebody else's connection"

    async def main() -> None:
        for _ in range(100):
            a, b = conn_pair()
            started = gofer.WaitGroup()
            started.add(1)
            g = gofer.go(victim, a, started)
            await started.wait()
            a.close()
            c, d = conn_pair()
            await d.write(b"secret")
            await g
            assert await c.read() == b"secret"
            for conn in (b, c, d):
                conn.close()

    gofer.run(main, procs=procs)


def test_a_connection_that_nobody_holds_is_closed() -> None:
    async def main() -> None:
        a, b = conn_pair()
        ref = weakref.ref(a)
        del a
        assert ref() is None
        assert await b.read() == b""
        b.close()

    gofer.run(main)


def test_async_with_and_with_close() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a as same:
            assert same is a
        with b as same:
            assert same is b
        assert a.closed
        assert b.closed

    gofer.run(main)


def test_detach_loses_nothing_that_was_read_ahead() -> None:
    async def main() -> None:
        a, b = (net.Conn(s.detach()) for s in socket.socketpair())
        async with a, b:
            await b.write(b"abcd")
            assert await a.read_until(b"b") == b"ab"
            with pytest.raises(ValueError, match=r"would lose 2 bytes .* read\(2\) first"):
                a.detach()
            assert await a.read(2) == b"cd"
            os.close(a.detach())

    gofer.run(main)


def test_detach_gives_the_descriptor_back() -> None:
    async def main() -> None:
        a, b = conn_pair()
        reader = gofer.go(raised_by, a.read())
        await parked(reader)
        with socket.socket(fileno=a.detach()) as sock:
            assert isinstance(await reader, net.ClosedError)
            await b.write(b"x")
            await net.wait_readable(sock)
            assert sock.recv(10) == b"x"
        b.close()

    gofer.run(main)


# --- cancelling and deadlines --------------------------------------------------------------------


def test_cancelling_ends_any_wait_and_leaves_the_connection_usable(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            for make in (a.read, lambda: a.read_exactly(5), lambda: a.read_until(b"x")):
                g = gofer.go(wait_for, make())  # type: ignore[arg-type]
                await parked(g)
                assert _core.counters()["io_waiters"] == 1
                g.cancel("enough")
                with pytest.raises(gofer.Cancelled, match="enough"):
                    await g
                assert _core.counters()["io_waiters"] == 0
            await b.write(b"fine")
            assert await a.read() == b"fine"

    gofer.run(main, procs=procs)


def test_who_is_cancelled_and_whose_connection_is_closed_hears_of_the_first(procs: int) -> None:
    """So that it ends as a cancelled goroutine does, and its failure is nobody's business."""

    async def main() -> None:
        a, b = conn_pair()
        async with b:
            readers = [gofer.go(wait_for, a.read()) for _ in range(3)]
            await parked(*readers)
            for g in readers:
                g.cancel()
            a.close()
            for g in readers:
                with pytest.raises(gofer.Cancelled):
                    await g

    gofer.run(main, procs=procs)


def test_a_timeout_block_ends_a_read() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.02):
                    await a.read()
            await b.write(b"x")
            assert await a.read() == b"x"

    gofer.run(main)


def test_a_read_deadline_ends_a_read_that_waits(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            start = time.monotonic()
            a.set_read_deadline(0.05)
            with pytest.raises(TimeoutError, match="deadline"):
                await a.read()
            assert 0.05 <= time.monotonic() - start < 10
            with pytest.raises(TimeoutError):
                await a.read()
            await a.write(b"writing is not affected")
            await b.write(b"x")
            with pytest.raises(TimeoutError):
                await a.read()  # even if there is something
            a.set_read_deadline(None)
            assert await a.read() == b"x"

    gofer.run(main, procs=procs)


def test_a_deadline_can_be_set_moved_and_cleared_while_somebody_waits(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            for seconds in (0, -1, 0.001):
                reader = gofer.go(raised_by, a.read())
                await parked(reader)
                a.set_deadline(seconds)
                assert isinstance(await reader, TimeoutError)
                a.set_deadline(None)
            a.set_read_deadline(1000)
            reader = gofer.go(raised_by, a.read())
            await parked(reader)
            a.set_read_deadline(0.01)
            assert isinstance(await reader, TimeoutError)
            a.set_read_deadline(0.02)
            a.set_read_deadline(None)
            waits = gofer.go(wait_for, a.read())
            await parked(waits)
            a.set_read_deadline(0.02)
            a.set_read_deadline(None)
            await gofer.sleep(0.05)
            assert waits.state == "waiting"
            assert _core.counters()["timers"] == 0
            await b.write(b"late")
            assert await waits == b"late"

    gofer.run(main, procs=procs)


def test_a_deadline_ends_all_that_wait_in_that_direction(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            readers = [gofer.go(raised_by, a.read()) for _ in range(5)]
            writers = [gofer.go(raised_by, a.write(bytes(20_000_000))) for _ in range(5)]
            await parked(*readers, *writers)
            a.set_write_deadline(0.01)
            for w in writers:
                assert isinstance(await w, TimeoutError)
            assert {r.state for r in readers} == {"waiting"}
            a.set_read_deadline(0.01)
            for r in readers:
                assert isinstance(await r, TimeoutError)

    gofer.run(main, procs=procs)


def test_a_deadline_that_nobody_waits_for_keeps_nothing_alive() -> None:
    async def main() -> None:
        a, b = conn_pair()
        a.set_deadline(1000)
        reader = gofer.go(wait_for, a.read())
        await parked(reader)
        assert _core.counters()["timers"] == 1
        await b.write(b"x")
        await reader
        assert _core.counters()["timers"] == 0
        ref = weakref.ref(a)
        del a, reader
        assert ref() is None
        b.close()

    gofer.run(main, procs=1)


@pytest.mark.parametrize("seconds", ["1", b"", [], float("nan"), float("inf")])
def test_a_deadline_is_a_number_of_seconds(seconds: Any) -> None:
    a, b = conn_pair()
    with a, b, pytest.raises((TypeError, ValueError)):
        a.set_deadline(seconds)


def test_a_peer_that_sends_one_byte_at_a_time_is_not_lost() -> None:
    async def main() -> None:
        conn, sock = conn_and_socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        async def drip() -> None:
            for i in range(50):
                sock.send(bytes([i]))
                await gofer.sleep(0.002)

        async with conn:
            g = gofer.go(drip)
            assert await conn.read_exactly(50) == bytes(range(50))
            await g
        sock.close()

    gofer.run(main)


# --- operations ----------------------------------------------------------------------------------


def test_an_operation_does_nothing_until_it_is_awaited_and_is_awaited_once() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            write = a.write(b"x")
            assert "not awaited" in repr(write)
            reader = gofer.go(wait_for, b.read())
            await parked(reader)
            await write
            assert await reader == b"x"
            assert "done" in repr(write)
            with pytest.raises(RuntimeError, match="awaited already"):
                await write
            read = a.read()
            first = gofer.go(wait_for, read)
            await parked(first)
            assert "waiting" in repr(read)
            with pytest.raises(RuntimeError, match="another goroutine"):
                await read
            await b.write(b"y")
            assert await first == b"y"

    gofer.run(main)


def test_an_operation_needs_a_goroutine() -> None:
    a, b = conn_pair()
    with a, b:
        op = a.read()
        with pytest.raises(RuntimeError, match="inside a goroutine"):
            op.__await__().__next__()


def test_closing_a_coroutine_by_hand_takes_its_read_back() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            coro = wait_for(a.read())
            coro.send(None)
            coro.close()
            await b.write(b"x")
            assert await a.read() == b"x"

    gofer.run(main)


def test_in_plain_code(procs: int) -> None:
    def client(port: int) -> bytes:
        with gofer.block(net.dial("127.0.0.1", port)) as conn:
            gofer.block(conn.write(b"from a plain goroutine"))
            with pytest.raises(TimeoutError):
                gofer.block(conn.read_exactly(1000), timeout=0.02)
            return gofer.block(conn.read_exactly(22), timeout=30)

    async def main() -> None:
        async with echo_server() as port:
            clients = [gofer.go(client, port) for _ in range(5)]
            for c in clients:
                assert await c == b"from a plain goroutine"

    gofer.run(main, procs=procs)


def test_a_goroutine_that_reads_what_is_there_lets_others_run() -> None:
    """An operation that completes at once is a scheduling point too."""

    async def main() -> None:
        a, b = conn_pair()
        ticks = 0

        async def ticker() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await gofer.gosched()

        async with a, b:
            g = gofer.go(ticker)
            end = time.monotonic() + 0.2
            while time.monotonic() < end:
                await a.write(b"x")
                await b.read()
            assert ticks > 2
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g

    gofer.run(main, procs=1)


# --- listening -----------------------------------------------------------------------------------


def test_accept_gives_connections_in_order(procs: int) -> None:
    async def main() -> None:
        async with net.listen("127.0.0.1", 0) as listener:
            assert listener.addr == listener.local_addr
            for _ in range(20):
                acceptor = gofer.go(wait_for, listener.accept())
                client = await net.dial("127.0.0.1", listener.addr[1])
                server = await acceptor
                assert server.remote_addr == client.local_addr
                assert server.local_addr == client.remote_addr == listener.addr
                client.close()
                server.close()

    gofer.run(main, procs=procs)


def test_listen_may_be_awaited() -> None:
    async def main() -> None:
        listener = await net.listen("127.0.0.1", 0)
        assert isinstance(listener, net.Listener)
        assert await listener.close() is None  # type: ignore[func-returns-value]

    gofer.run(main)


def test_closing_a_listener_wakes_accept_and_ends_async_for(procs: int) -> None:
    async def main() -> None:
        listener = net.listen("127.0.0.1", 0)

        async def count() -> int:
            n = 0
            async for conn in listener:
                conn.close()
                n += 1
            return n

        loop = gofer.go(count)
        acceptor = gofer.go(raised_by, listener.accept())
        await parked(loop, acceptor)
        listener.close()
        assert await loop == 0
        exc = await acceptor
        assert isinstance(exc, net.ClosedError)
        assert str(exc) == "use of closed listener"

    gofer.run(main, procs=procs)


def test_accept_has_deadlines() -> None:
    async def main() -> None:
        async with net.listen("127.0.0.1", 0) as listener:
            listener.set_deadline(0.01)
            with pytest.raises(TimeoutError):
                await listener.accept()
            listener.set_deadline(None)
            acceptor = gofer.go(wait_for, listener.accept())
            async with await net.dial("127.0.0.1", listener.addr[1]):
                (await acceptor).close()

    gofer.run(main)


def test_several_goroutines_accept_from_one_listener(procs: int) -> None:
    async def main() -> None:
        listener = net.listen("127.0.0.1", 0)
        served = [0] * 4

        async def server(i: int) -> None:
            async for conn in listener:
                served[i] += 1
                gofer.go(echo, conn)

        async def client() -> None:
            async with await net.dial("127.0.0.1", listener.addr[1]) as conn:
                await conn.write(b"x")
                assert await conn.read() == b"x"

        servers = [gofer.go(server, i) for i in range(4)]
        clients = [gofer.go(client) for _ in range(100)]
        for g in clients:
            await g
        listener.close()
        for g in servers:
            await g
        assert sum(served) == 100

    gofer.run(main, procs=procs)


def test_a_listener_survives_the_want_of_descriptors(procs: int) -> None:
    """It backs off while there are none, and goes on when there are."""

    async def main() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        async with echo_server() as port:
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
            await until(lambda: _core.counters()["connections"] >= 4)
            waiting = socket.socket()
            used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
            fillers = []
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
                with contextlib.suppress(OSError):
                    while True:
                        fillers.append(os.open("/dev/null", os.O_RDONLY))
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.1", port))  # the kernel completes it
                used_cpu = time.process_time()
                await gofer.sleep(0.3)
                assert time.process_time() - used_cpu < 0.15, "it does not wait between attempts"
                assert _core.counters()["connections"] == 4
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for fd in fillers:
                    os.close(fd)
            await until(lambda: _core.counters()["connections"] == 5)
            waiting.setblocking(True)
            waiting.send(b"hello")
            await net.wait_readable(waiting)
            assert waiting.recv(10) == b"hello"
            for sock in (*clients, waiting):
                sock.close()

    gofer.run(main, procs=procs)


def test_reuse_port_lets_two_listeners_share() -> None:
    accepted = [0, 0]

    async def accept(i: int, listener: net.Listener) -> None:
        async for conn in listener:
            conn.close()
            accepted[i] += 1

    async def main() -> None:
        first = net.listen("127.0.0.1", 0, reuse_port=True)
        port = first.addr[1]
        with first, pytest.raises(OSError, match="Address already in use"):
            net.listen("127.0.0.1", port)
        both = [net.listen("127.0.0.1", port, reuse_port=True) for _ in range(2)]
        gs = [gofer.go(accept, i, listener) for i, listener in enumerate(both)]
        for _ in range(60):  # the kernel throws a coin for each
            async with await net.dial("127.0.0.1", port) as conn:
                assert await conn.read() == b""
        for listener, g in zip(both, gs, strict=True):
            listener.close()
            await g
        assert sum(accepted) == 60
        assert min(accepted) > 0

    gofer.run(main)


def test_listen_without_a_host_hears_both_families() -> None:
    async def main() -> None:
        async with serving(net.listen("", 0)) as addr:
            hosts = ["127.0.0.1"]
            if addr[0] == "::":
                hosts.append("::1")
            for host in hosts:
                async with await net.dial(host, addr[1]) as conn:
                    await conn.write(b"x")
                    assert await conn.read() == b"x"

    gofer.run(main)


@pytest.mark.parametrize("port", ["80", None, 1.5, True])
def test_a_port_is_an_int(port: Any) -> None:
    with pytest.raises(TypeError, match="port"):
        net.listen("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_has_a_range(port: int) -> None:
    with pytest.raises(ValueError, match="port"):
        net.listen("127.0.0.1", port)


# --- all together --------------------------------------------------------------------------------


async def proxy(conn: net.Conn, port: int) -> None:
    """Pass everything on, both ways, with half-closes."""

    async def copy(source: net.Conn, to: net.Conn) -> None:
        while data := await source.read(random.choice([1, 100, 65536])):
            await to.write(data)
        to.close_write()

    async with conn, await net.dial("127.0.0.1", port) as other, gofer.Group() as group:
        group.go(copy, conn, other)
        group.go(copy, other, conn)


def test_random_data_through_a_chain_of_proxies_arrives_byte_by_byte_the_same(procs: int) -> None:
    async def send(conn: net.Conn, data: bytes, seed: int) -> None:
        rng = random.Random(seed)
        at = 0
        while at < len(data):
            n = rng.choice([1, 10, 1000, 100_000])
            await conn.write(data[at : at + n])
            at += n
        conn.close_write()

    async def client(port: int, seed: int) -> None:
        data = random.Random(seed).randbytes(200_000)
        async with await net.dial("127.0.0.1", port) as conn:
            sender = gofer.go(send, conn, data, seed)
            back = bytearray()
            while piece := await conn.read():
                back += piece
            assert back == data
            await sender

    async def main() -> None:
        async with echo_server() as port:
            listeners = []
            servers = []
            for _ in range(3):

                async def handler(conn: net.Conn, to: int = port) -> None:
                    await proxy(conn, to)

                listener = net.listen("127.0.0.1", 0)
                listeners.append(listener)
                servers.append(gofer.go(_serve, listener, handler))
                port = listener.addr[1]
            clients = [gofer.go(client, port, seed) for seed in range(2 if TINY else 5)]
            for g in clients:
                await g
            for listener in listeners:
                listener.close()
            for g in servers:
                await g

    async def _serve(listener: net.Listener, handler: Any) -> None:
        async for conn in listener:
            gofer.go(handler, conn)

    gofer.run(main, procs=procs)


def test_many_connections_at_once(procs: int) -> None:
    async def client(port: int, i: int) -> None:
        async with await net.dial("127.0.0.1", port) as conn:
            for n in range(3):
                text = b"%d/%d" % (i, n)
                await conn.write(text)
                assert await conn.read() == text

    async def main() -> None:
        async with echo_server() as port:
            clients = [gofer.go(client, port, i) for i in range(300)]
            for g in clients:
                await g

    gofer.run(main, procs=procs)


def test_a_connection_outlives_its_run() -> None:
    """The next run registers it anew."""
    a, b = conn_pair()

    async def main(i: int) -> None:
        reader = gofer.go(wait_for, b.read())
        await parked(reader)
        await a.write(b"%d" % i)
        assert await reader == b"%d" % i
        big = gofer.go(wait_for, a.write(bytes(20_000_000)))
        await parked(big)
        await b.read_exactly(20_000_000)
        await big

    with a, b:
        for i in range(3):
            gofer.run(main, i)


def test_the_end_of_main_ends_all_servers() -> None:
    async def main() -> None:
        listener = net.listen("127.0.0.1", 0)

        async def serve() -> None:
            async for conn in listener:
                gofer.go(echo, conn)

        gofer.go(serve)
        for _ in range(5):
            conn = await net.dial("127.0.0.1", listener.addr[1])
            await conn.write(b"x")
            await conn.read()

    gofer.run(main)
    gc.collect()


def test_an_aborted_run_leaves_no_descriptor_behind() -> None:
    end = run_program(
        """
        import gc, os, signal, threading, time
        import gofer
        from gofer import net, _core
        import socket

        async def stubborn(conn):
            while True:
                try:
                    await conn.read()
                except gofer.Cancelled:
                    pass

        async def main():
            a, b = (net.Conn(s.detach()) for s in socket.socketpair())
            g = gofer.go(stubborn, a)
            w = gofer.go(stubborn, b)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            await gofer.sleep(100)

        gofer.gomaxprocs()  # which opens files, once
        fds = len(os.listdir("/proc/self/fd"))
        try:
            gofer.run(main)
        except KeyboardInterrupt:
            print("interrupted")
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == fds
        print(_core.counters()["io_waiters"])
        """
    )
    assert end.check() == "interrupted\n0\n"


def test_pipes(procs: int) -> None:
    async def main() -> None:
        r, w = (net.open_fd(fd) for fd in os.pipe())
        async with r, w:
            reader = gofer.go(wait_for, r.read_exactly(1_000_000))
            data = random.Random(1).randbytes(1_000_000)
            await w.write([data[:300], data[300:]])
            assert await reader == data
            assert r.local_addr is None
            assert r.remote_addr is None
            assert "Conn" in repr(r)
            reader = gofer.go(wait_for, r.read())
            await parked(reader)
            w.close()
            assert await reader == b""

    gofer.run(main, procs=procs)


def test_terminals() -> None:
    async def main() -> None:
        master, slave = os.openpty()
        async with net.open_fd(master) as m, net.open_fd(slave) as s:
            reader = gofer.go(wait_for, s.read())
            await parked(reader)
            await m.write(b"line\n")
            assert await reader == b"line\n"

    gofer.run(main)


def test_an_ordinary_file_never_waits(tmp_path: Any) -> None:
    async def main() -> None:
        path = tmp_path / "file"
        path.write_bytes(b"text")
        async with net.open_fd(os.open(path, os.O_RDWR)) as f:
            assert await f.read() == b"text"
            assert await f.read() == b""
            await f.write(b" and more")
        assert path.read_bytes() == b"text and more"

    gofer.run(main)


SLOW_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

static void wait_for_the_disk(int fd)
{
    if (fd == 77) {
        usleep(500000);
    }
}

ssize_t read(int fd, void *to, size_t n)
{
    wait_for_the_disk(fd);
    return ((ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(fd, to, n);
}

ssize_t write(int fd, const void *from, size_t n)
{
    wait_for_the_disk(fd);
    return ((ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, from, n);
}
"""


@pytest.mark.skipif(SANITIZED, reason="sanitizers have their own read()")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_slow_disk_stalls_nobody(tmp_path: Path) -> None:
    (tmp_path / "slow.c").write_text(SLOW_DISK)
    library = str(tmp_path / "slow.so")
    command = ["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "slow.c"), "-ldl"]
    subprocess.run(command, check=True)
    end = run_program(
        """
        import os, sys
        import gofer
        from gofer import net

        async def use(f):
            await f.write(b"text")
            os.lseek(f.fileno(), 0, os.SEEK_SET)
            assert await f.read() == b"text"

        async def main():
            os.dup2(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), 77)
            g = gofer.go(use, net.open_fd(77))
            ticks = 0
            while not g.done():
                await gofer.sleep(0.01)
                ticks += 1
            await g
            print(ticks > 20, ticks)

        gofer.run(main, procs=1)
        """,
        str(tmp_path / "file"),
        env={"LD_PRELOAD": library},
    )
    assert end.check().startswith("True"), end.stdout


@pytest.mark.parametrize("fd", [-1, 999_999, "x", None])
def test_open_fd_needs_an_open_descriptor(fd: Any) -> None:
    with pytest.raises((OSError, ValueError, TypeError)):
        net.open_fd(fd)


def test_a_thousand_idle_connections_cost_little() -> None:
    end = run_program(
        """
        import gc, os, resource, socket
        import gofer
        from gofer import net

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096

        async def idle(conn):
            while await conn.read():
                pass

        async def serve(listener):
            async for conn in listener:
                gofer.go(idle, conn)

        async def main():
            listener = net.listen("127.0.0.1", 0)
            gofer.go(serve, listener)
            warm = [socket.create_connection(listener.addr) for _ in range(100)]
            await gofer.sleep(0.1)
            socks = []
            gc.collect()
            before = resident()
            for _ in range(1000):
                socks.append(socket.create_connection(listener.addr))
            while gofer.num_goroutine() < 1102:
                await gofer.sleep(0.01)
            print((resident() - before) // 1000 < 8000)

        gofer.run(main, procs=1)
        """
    )
    assert end.check() == "True\n"


def test_addresses_are_those_of_module_socket() -> None:
    a, b = tcp_pair()
    names = a.getsockname(), a.getpeername()
    conn = net.Conn(a.detach())
    with conn, b:
        assert (conn.local_addr, conn.remote_addr) == names
    assert (conn.local_addr, conn.remote_addr) == names  # known since
    u, v = socket.socketpair()
    with net.Conn(u.detach()) as conn, v:
        assert conn.local_addr == ""
