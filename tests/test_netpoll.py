"""The poller: who waits in it, who is woken, and what it means for the rest of the runtime."""

import contextlib
import multiprocessing
import os
import random
import select
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import _core, net
from tests.net_support import (
    conn_and_socket,
    conn_pair,
    drain,
    fill,
    make_certificate,
    raised_by,
    tcp_pair,
)
from tests.support import (
    PATIENCE,
    parked,
    run_program,
    spin,
    thread,
    until,
    wait_for,
)


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def nonblocking_pair() -> tuple[socket.socket, socket.socket]:
    a, b = socket.socketpair()
    a.setblocking(False)
    b.setblocking(False)
    return a, b


# --- wait_readable, wait_writable ----------------------------------------------------------------


def test_wait_readable_waits_until_there_is_something(procs: int) -> None:
    async def main() -> None:
        a, b = nonblocking_pair()
        with a, b:
            for fd in (a, a.fileno()):
                g = gofer.go(wait_for, net.wait_readable(fd))
                await parked(g)
                assert g.wait_reason == "IO wait"
                assert "not awaited" in repr(net.wait_readable(a))
                b.send(b"x")
                assert await g is None
                assert a.recv(10) == b"x"

    gofer.run(main, procs=procs)


def test_what_is_ready_already_is_seen_every_time() -> None:
    """Level-triggered: nobody need read until there is nothing left."""

    async def main() -> None:
        a, b = nonblocking_pair()
        with a, b:
            b.send(b"x")
            for _ in range(10):
                await net.wait_readable(a)
                await net.wait_writable(a)

    gofer.run(main)


def test_wait_writable_waits_until_there_is_room(procs: int) -> None:
    async def main() -> None:
        a, b = nonblocking_pair()
        with a, b:
            fill(a)
            g = gofer.go(wait_for, net.wait_writable(a))
            await parked(g)
            drain(b)
            await g
            assert a.send(b"x") == 1

    gofer.run(main, procs=procs)


def test_both_directions_and_several_waiters_at_once(procs: int) -> None:
    async def main() -> None:
        a, b = nonblocking_pair()
        with a, b:
            fill(a)
            readers = [gofer.go(wait_for, net.wait_readable(a)) for _ in range(3)]
            writers = [gofer.go(wait_for, net.wait_writable(a)) for _ in range(3)]
            await parked(*readers, *writers)
            b.send(b"x")
            for g in readers:
                await g
            assert {g.state for g in writers} == {"waiting"}
            drain(b)
            for g in writers:
                await g

    gofer.run(main, procs=procs)


def test_the_end_of_the_peer_wakes_both_directions() -> None:
    async def main() -> None:
        a, b = nonblocking_pair()
        with a:
            fill(a)
            gs = [gofer.go(wait_for, f(a)) for f in (net.wait_readable, net.wait_writable)]
            await parked(*gs)
            b.close()
            for g in gs:
                await g

    gofer.run(main)


def test_a_wait_can_be_cancelled(procs: int) -> None:
    async def main() -> None:
        a, b = nonblocking_pair()
        with a, b:
            for _ in range(20):
                g = gofer.go(wait_for, net.wait_readable(a))
                other = gofer.go(wait_for, net.wait_readable(a))
                await parked(g, other)
                g.cancel()
                with pytest.raises(gofer.Cancelled):
                    await g
                b.send(b"x")
                await other
                a.recv(10)
            with pytest.raises(TimeoutError):
                async with gofer.timeout(0.01):
                    await net.wait_readable(a)
            assert _core.counters()["io_waiters"] == 0

    gofer.run(main, procs=procs)


def test_notify_closing_wakes_whoever_waits() -> None:
    async def main() -> None:
        a, b = nonblocking_pair()
        with a, b:
            gs = [gofer.go(raised_by, net.wait_readable(a)) for _ in range(2)]
            await parked(*gs)
            net.notify_closing(a)
            for g in gs:
                assert isinstance(await g, net.ClosedError)
            net.notify_closing(b)
            net.notify_closing(900_000)

    gofer.run(main)


def test_a_closed_descriptor_s_number_can_be_used_again() -> None:
    async def main() -> None:
        for _ in range(20):
            a, b = nonblocking_pair()
            fd = a.fileno()
            g = gofer.go(wait_for, net.wait_readable(a))
            await parked(g)
            b.send(b"x")
            await g
            a.close()
            b.close()
            c, d = nonblocking_pair()
            with c, d:
                assert fd in (c.fileno(), d.fileno())
                g = gofer.go(wait_for, net.wait_readable(c))
                await parked(g)
                d.send(b"y")
                await g
            conn, peer = conn_pair()
            async with conn, peer:
                g = gofer.go(wait_for, conn.read())
                await peer.write(b"z")
                assert await g == b"z"

    gofer.run(main)


@pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="the openssl program, which makes the certificates, is not installed",
)
def test_a_foreign_tls_library(procs: int, tmp_path: Path) -> None:
    """Python's own SSLSocket, non-blocking: a library that wants now to read, now to write."""
    cert = make_certificate(tmp_path)
    data = random.Random(4).randbytes(1_000_000)

    async def ready(fn: Callable[..., Any], sock: ssl.SSLSocket, *args: Any) -> Any:
        while True:
            try:
                return fn(*args)
            except ssl.SSLWantReadError:
                await net.wait_readable(sock)
            except ssl.SSLWantWriteError:
                await net.wait_writable(sock)

    async def sender(sock: ssl.SSLSocket) -> None:
        await ready(sock.do_handshake, sock)
        sent = 0
        while sent < len(data):
            sent += await ready(sock.send, sock, data[sent : sent + 10_000])

    async def receiver(sock: ssl.SSLSocket) -> bytes:
        await ready(sock.do_handshake, sock)
        got = bytearray()
        while len(got) < len(data):
            got += await ready(sock.recv, sock, 65536)
        return bytes(got)

    async def main() -> None:
        a, b = tcp_pair()
        a.setblocking(False)
        b.setblocking(False)
        options: Any = {"do_handshake_on_connect": False}
        with (
            cert.client().wrap_socket(a, server_hostname="localhost", **options) as client,
            cert.server().wrap_socket(b, server_side=True, **options) as server,
        ):
            g = gofer.go(receiver, server)
            await sender(client)
            assert await g == data
            for sock in (client, server):
                net.notify_closing(sock)

    gofer.run(main, procs=procs)


def test_whatever_has_a_descriptor(procs: int) -> None:
    """Events, pipes of multiprocessing, processes, other pollers."""

    async def main() -> None:
        event = os.eventfd(0, os.EFD_NONBLOCK)
        waiter = gofer.go(wait_for, net.wait_readable(event))
        await parked(waiter)
        os.eventfd_write(event, 3)
        await waiter
        assert os.eventfd_read(event) == 3

        a, b = multiprocessing.Pipe()
        waiter = gofer.go(wait_for, net.wait_readable(a))
        await parked(waiter)
        b.send({"x": [1, 2]})
        await waiter
        assert a.recv() == {"x": [1, 2]}

        poller = select.epoll()  # a library with an event loop of its own
        poller.register(event, select.EPOLLIN)
        waiter = gofer.go(wait_for, net.wait_readable(poller))
        await parked(waiter)
        os.eventfd_write(event, 1)
        await waiter
        assert poller.poll(0) == [(event, select.EPOLLIN)]

        for each in (a, b, poller):
            net.notify_closing(each)
            each.close()
        net.notify_closing(event)
        os.close(event)

    gofer.run(main, procs=procs)


def test_an_ordinary_file_is_always_ready(tmp_path: Any) -> None:
    async def main() -> None:
        with (tmp_path / "file").open("w+b") as file:
            await net.wait_readable(file)
            await net.wait_writable(file)

    gofer.run(main)


@pytest.mark.parametrize("fd", [-1, "1", None, 1.5])
def test_what_is_no_descriptor_is_refused(fd: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        net.wait_readable(fd)


def test_a_descriptor_that_is_not_open_is_an_os_error() -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            await net.wait_readable(100_000)

    gofer.run(main)


def test_a_conn_s_descriptor_is_refused_once_it_is_the_poller_s() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            reader = gofer.go(wait_for, a.read())
            await parked(reader)
            with pytest.raises(ValueError, match="belongs to a Conn"):
                await net.wait_readable(a)
            await b.write(b"x")
            assert await reader == b"x"

    gofer.run(main)


def test_a_descriptor_that_was_waited_for_can_become_a_conn() -> None:
    async def main() -> None:
        a, b = nonblocking_pair()
        g = gofer.go(wait_for, net.wait_readable(a))
        await parked(g)
        b.send(b"x")
        await g
        async with net.open_fd(a.detach()) as conn, net.open_fd(b.detach()) as peer:
            assert await conn.read() == b"x"
            reader = gofer.go(wait_for, conn.read())
            await parked(reader)
            await peer.write(b"y")
            assert await reader == b"y"

    gofer.run(main)


# --- the scheduler -------------------------------------------------------------------------------


def test_a_goroutine_in_io_wait_is_no_deadlock(procs: int) -> None:
    """Only another process could wake it, for all that the runtime knows."""

    async def main() -> bytes:
        conn, sock = conn_and_socket()
        with sock:
            timer = threading.Timer(0.2, sock.send, [b"at last"])
            timer.start()
            async with conn:
                data = await conn.read()
            timer.join()
        return data

    assert gofer.run(main, procs=procs) == b"at last"


def test_no_deadlock_is_reported_while_only_the_kernel_can_wake_anybody() -> None:
    end = run_program(
        """
        import os, subprocess, sys
        import gofer
        from gofer import net

        async def main():
            r, w = os.pipe()
            subprocess.Popen(["sh", "-c", f"sleep 0.3; echo hello >&{w}"], pass_fds=[w])
            os.close(w)
            ch = gofer.Chan()

            async def reader():
                async with net.open_fd(r) as conn:
                    await ch.send(await conn.read())

            gofer.go(reader)
            print((await ch.recv()).decode(), end="")

        gofer.run(main, procs=int(sys.argv[1]))
        """,
        "2",
    )
    assert end.check() == "hello\n"


def test_a_deadlock_is_still_found_when_nobody_waits_for_io(procs: int) -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            await a.write(b"x")
            g = gofer.go(wait_for, b.read_exactly(2))
            await parked(g)
            await a.write(b"y")
            await g
            await gofer.Chan[int]().recv()

    with pytest.raises(gofer.Deadlock, match="chan receive"):
        gofer.run(main, procs=procs)


def test_readers_are_woken_while_all_ps_compute(procs: int) -> None:
    """sysmon notices that nobody polls."""

    async def main() -> float:
        conn, sock = conn_and_socket()
        stop = False

        async def hog() -> None:
            while not stop:
                spin(0.002)
                await gofer.gosched()

        async def reader() -> float:
            await conn.read()
            return time.monotonic()

        async with conn:
            g = gofer.go(reader)
            await parked(g)
            hogs = [gofer.go(hog) for _ in range(2 * procs)]
            await gofer.sleep(0.05)
            start = time.monotonic()
            sock.send(b"x")
            late = await g - start
            stop = True
            for h in hogs:
                await h
            sock.close()
        return late

    assert gofer.run(main, procs=procs) < 1


def test_readers_are_woken_while_goroutines_block_or_never_yield(procs: int) -> None:
    async def main() -> float:
        conn, sock = conn_and_socket()

        async def reader() -> float:
            await conn.read()
            return time.monotonic()

        async def hog(end: float) -> None:
            while time.monotonic() < end:
                pass

        async with conn:
            g = gofer.go(reader)
            await parked(g)
            end = time.monotonic() + 1.5
            hogs = [gofer.go(hog, end) for _ in range(procs)]
            timer = threading.Timer(0.1, sock.send, [b"x"])
            start = time.monotonic() + 0.1
            timer.start()
            late = await g - start
            for h in hogs:
                await h
            timer.join()
            sock.close()
        return late

    assert gofer.run(main, procs=procs) < 1.2


def test_the_first_to_wait_for_a_descriptor_finds_an_m_asleep_over_the_timers(procs: int) -> None:
    """That one went to sleep when there was nothing to poll."""

    async def main() -> None:
        sleeper = gofer.go(wait_for, gofer.sleep(PATIENCE / 2))
        await parked(sleeper)
        time.sleep(0.05)  # the other Ms have nothing to do but wait for the timer
        a, b = conn_and_socket()
        with a, b:
            reader = gofer.go(wait_for, a.read())
            with thread(send_later, b):
                assert await reader == b"x"
        sleeper.cancel()
        assert isinstance(await raised_by(sleeper), gofer.Cancelled)

    def send_later(sock: socket.socket) -> None:
        time.sleep(0.05)
        sock.send(b"x")

    start = time.monotonic()
    gofer.run(main, procs=procs)
    assert time.monotonic() - start < PATIENCE / 4


def test_timers_fire_in_time_while_an_m_waits_in_the_poller(procs: int) -> None:
    async def main() -> float:
        a, b = conn_pair()
        async with a, b:
            reader = gofer.go(wait_for, a.read())
            await parked(reader)
            late = []
            for _ in range(20):
                start = time.monotonic()
                await gofer.sleep(0.003)
                late.append(time.monotonic() - start - 0.003)
            await b.write(b"x")
            await reader
        assert min(late) >= 0
        return sorted(late)[5]

    assert gofer.run(main, procs=procs) < 0.02


def test_short_sleeps_are_short_in_the_poller() -> None:
    """Less than a millisecond is waited for by the nanosecond."""

    async def main() -> float:
        a, b = conn_pair()
        async with a, b:
            reader = gofer.go(wait_for, a.read())
            await parked(reader)
            took = []
            for _ in range(50):
                start = time.monotonic()
                await gofer.sleep(0.0001)
                took.append(time.monotonic() - start)
            reader.cancel()
            with pytest.raises(gofer.Cancelled):
                await reader
        return sorted(took)[10]

    assert gofer.run(main) < 0.001


def test_an_idle_server_uses_no_cpu(procs: int) -> None:
    async def main() -> float:
        async with net.listen("127.0.0.1", 0) as listener:
            g = gofer.go(raised_by, listener.accept())
            await gofer.sleep(0.2)
            cpu = time.process_time()
            await gofer.sleep(0.5)
            used = time.process_time() - cpu
        await g
        return used

    assert gofer.run(main, procs=procs) < 0.1


def test_signals_reach_the_main_thread_while_it_waits_in_the_poller() -> None:
    end = run_program(
        """
        import os, signal, threading
        import gofer
        from gofer import net

        async def main():
            async with net.listen("127.0.0.1", 0) as listener:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                got = gofer.Chan(1)
                signal.signal(signal.SIGUSR1, lambda *a: got.send_nowait("signal"))

                async def acceptor():
                    await listener.accept()

                g = gofer.go(acceptor)
                print(await got.recv())
                g.cancel()

        gofer.run(main)
        """
    )
    assert end.check() == "signal\n"


def test_ctrl_c_ends_a_server() -> None:
    end = run_program(
        """
        import os, signal, threading
        import gofer
        from gofer import net

        async def main():
            async with net.listen("127.0.0.1", 0) as listener:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    async for conn in listener:
                        pass
                finally:
                    print("clean-up")

        try:
            gofer.run(main)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert end.check() == "clean-up\ninterrupted\n"


def test_a_foreign_thread_can_wait_for_a_connection(procs: int) -> None:
    a, b = conn_pair()

    def reader() -> None:
        for i in range(20):
            assert gofer.block(a.read(), timeout=30) == b"%d" % i
            if i % 2:
                time.sleep(0.001)
            gofer.block(a.write(b"ok"))

    async def main() -> None:
        failure: list[BaseException] = []

        def body() -> None:
            try:
                reader()
            except BaseException as exc:
                failure.append(exc)

        t = threading.Thread(target=body)
        t.start()
        for i in range(20):
            await b.write(b"%d" % i)
            assert await b.read() == b"ok"
        await until(lambda: not t.is_alive())
        t.join()
        assert not failure

    with a, b:
        gofer.run(main, procs=procs)


def test_only_a_foreign_thread_waits_and_all_ms_sleep(procs: int) -> None:
    """Nobody polled when they fell asleep: the thread must wake one."""
    a, b = tcp_pair()
    conn = net.Conn(a.detach())
    got: list[bytes] = []

    def foreign() -> None:
        time.sleep(0.05)
        timer = threading.Timer(0.05, b.send, [b"x"])
        timer.start()
        got.append(gofer.block(conn.read(), timeout=30))
        timer.join()
        main_goroutine[0].cancel()

    async def main() -> None:
        main_goroutine.append(gofer.current())
        t = threading.Thread(target=foreign)
        t.start()
        try:
            await gofer.Chan[None]().recv()
        except gofer.Cancelled:
            t.join()

    main_goroutine: list[gofer.Goroutine[Any]] = []
    with conn, b:
        gofer.run(main, procs=procs)
    assert got == [b"x"]
    main_goroutine.clear()


@pytest.mark.parametrize("what", ["read", "wait_readable"])
def test_a_foreign_thread_that_waits_hears_of_the_end_of_the_run(procs: int, what: str) -> None:
    a, b = tcp_pair()
    conn = net.Conn(os.dup(a.fileno()))
    outcome: list[BaseException | None] = []
    waits = threading.Event()

    def foreign() -> None:
        op = conn.read() if what == "read" else net.wait_readable(b)
        waits.set()
        try:
            gofer.block(op)
        except BaseException as exc:
            outcome.append(exc.with_traceback(None))

    async def main() -> None:
        t.start()
        await until(waits.is_set)
        await until(lambda: _core.counters()["io_waiters"] == 1)

    t = threading.Thread(target=foreign)
    with conn, a, b:
        gofer.run(main, procs=procs)
        t.join(30)
        assert not t.is_alive()
    assert isinstance(outcome[0], RuntimeError)
    assert "the runtime has ended" in str(outcome[0])
    outcome.clear()


def test_the_waiters_are_counted_down_to_none(procs: int) -> None:
    async def main() -> None:
        pairs = [conn_pair() for _ in range(20)]
        gs = [gofer.go(raised_by, a.read()) for a, _ in pairs]
        await parked(*gs)
        assert _core.counters()["io_waiters"] == 20
        for i, (a, b) in enumerate(pairs):
            match i % 4:
                case 0:
                    a.close()
                case 1:
                    b.close()
                case 2:
                    gs[i].cancel()
                case 3:
                    a.set_deadline(0)
        for g in gs:
            await g
        assert _core.counters()["io_waiters"] == 0
        for a, b in pairs:
            a.close()
            b.close()

    gofer.run(main, procs=procs)


def test_gomaxprocs_can_change_while_everybody_waits() -> None:
    async def main() -> None:
        pairs = [conn_pair() for _ in range(10)]
        for procs in (4, 1, 3, 2, 1):
            gs = [gofer.go(wait_for, a.read()) for a, _ in pairs]
            await parked(*gs)
            gofer.gomaxprocs(procs)
            for _, b in pairs:
                await b.write(b"x")
            for g in gs:
                assert await g == b"x"
        for a, b in pairs:
            a.close()
            b.close()

    gofer.run(main, procs=2)


def test_wait_reason_and_stack_of_a_reader() -> None:
    async def main() -> None:
        a, b = conn_pair()
        async with a, b:
            g = gofer.go(wait_for, a.read())
            await parked(g)
            assert g.wait_reason == "IO wait"
            assert g.stack()[-1].name == "wait_for"
            g.cancel()
            with pytest.raises(gofer.Cancelled):
                await g

    gofer.run(main)


def test_a_forked_child_cannot_use_the_poller() -> None:
    end = run_program(
        """
        import os, socket
        import gofer
        from gofer import net

        async def main():
            a, b = (net.Conn(s.detach()) for s in socket.socketpair())
            await a.write(b"x")
            await b.read()
            pid = os.fork()
            if pid == 0:
                try:
                    await a.read()
                except RuntimeError as exc:
                    os.write(1, b"refused\\n" if "forked" in str(exc) else b"?")
                os._exit(0)
            os.waitpid(pid, 0)
            await a.write(b"y")
            print(await b.read())

        gofer.run(main)
        """,
        options=("-W", "ignore"),
    )
    assert end.stdout == "refused\nb'y'\n"


def test_sleepers_and_readers_and_a_busy_main(procs: int) -> None:
    """Main on its own thread, computing: others are served by other Ms."""

    async def pong(conn: net.Conn) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await conn.read():
                await gofer.sleep(0.0001)
                await conn.write(data)

    async def main() -> int:
        a, b = conn_pair()
        rounds = 0

        async def ping() -> None:
            nonlocal rounds
            while True:
                await a.write(b"x")
                await a.read()
                rounds += 1

        p, q = gofer.go(pong, b), gofer.go(ping)
        await gofer.sleep(0.05)
        spin(0.5)
        done = rounds
        q.cancel()
        assert isinstance(await raised_by(q), gofer.Cancelled)
        a.close()
        await p
        b.close()
        return done

    assert gofer.run(main, procs=procs) > 10


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_the_first_to_wait_for_io_gets_a_poller_although_somebody_watches_the_timers(
    procs: int,
) -> None:
    """The M that sleeps until the next timer fell asleep before there was a poller to sleep in."""
    source = f"""
        import os, threading, time
        import gofer
        from gofer import net

        async def sleeper():
            await gofer.sleep(100_000)

        async def main():
            gofer.go(sleeper)
            time.sleep(0.2)  # the P goes to another M, which has only the timer to wait for
            reader, writer = os.pipe()
            timer = threading.Timer(0.2, os.write, (writer, b"x"))
            timer.start()
            await net.wait_readable(reader)
            timer.join()
            print("readable")

        gofer.run(main, procs={procs})
        """
    assert run_program(source, timeout=20).check() == "readable\n"


# --- Who waits and has no P -----------------------------------------------------------------------

WITHOUT_A_P = """
    import socket, subprocess, sys, time, gofer
    from gofer import net

    a, b = socket.socketpair()
    never = gofer.Chan()

    def write_after(seconds):
        command = f"sleep {seconds}; printf x >&{b.fileno()}"
        return subprocess.Popen(["sh", "-c", command], pass_fds=[b.fileno()])

    def begin():  # so that there is a poller, which then has nothing to do
        writer = write_after(0.1)
        gofer.block(net.wait_readable(a))
        a.recv(1)
        writer.wait()
        write_after(0.8)

    def taken():
        begin()
        gofer.go(gofer.block, never.recv_ok())  # which needs our P, and gives it up
        time.sleep(0.3)
        gofer.block(net.wait_readable(a))

    def given():
        begin()
        with gofer.blocking():
            time.sleep(0.3)
            gofer.block(net.wait_readable(a))

    async def locked():
        gofer.lock_os_thread()
        writer = write_after(0.1)
        await net.wait_readable(a)
        a.recv(1)
        writer.wait()
        write_after(0.8)
        with gofer.blocking():
            time.sleep(0.3)
            await net.wait_readable(a)

    async def main():
        await gofer.go(globals()[sys.argv[1]])
        print("readable")

    gofer.run(main, procs=1)
    """


@pytest.mark.parametrize("how", ["taken", "given", "locked"])
def test_somebody_polls_for_a_goroutine_on_a_thread_without_a_p(how: str) -> None:
    """All Ps are idle, nobody polls, and sysmon sleeps."""
    assert run_program(WITHOUT_A_P, how).check() == "readable\n"


@pytest.mark.parametrize("procs", [1, 4])
def test_timers_beside_a_signal_handler_that_blocks(procs: int) -> None:
    program = """
        import os, signal, subprocess, sys, time, gofer

        def handler(*_):
            time.sleep(1)
            order.append("handler")

        async def sleeper():
            await gofer.sleep(0.5)
            order.append("sleeper")

        async def main():
            g = gofer.go(sleeper)
            subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -USR1 {os.getpid()}"])
            await gofer.sleep(1.5)
            await g

        order = []
        signal.signal(signal.SIGUSR1, handler)
        gofer.run(main, procs=int(sys.argv[1]))
        print(*order)
        """
    assert run_program(program, str(procs)).check() == "sleeper handler\n"
