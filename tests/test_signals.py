"""Signals as values on a channel, and as the end of a context."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import gofer
from gofer import context, signals
from tests.support import PATIENCE, Program, parked, run_program, sleep_long, thread, until

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2

caught: list[int] = []


def catch(signum: int, frame: object) -> None:
    caught.append(signum)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A handler that was there before, and must be there afterwards."""
    caught.clear()
    before = {s: signal.signal(s, catch) for s in (USR1, USR2)}
    try:
        yield
        assert [signal.getsignal(s) for s in before] == [catch, catch]
        assert not signals.awaited()
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def send(*signums: int) -> None:
    for s in signums:
        os.kill(os.getpid(), s)


def ready(ch: gofer.RecvChan[signal.Signals]) -> bool:
    return len(ch) > 0


async def ours() -> None:
    """The handler that was there before has come back: it catches what is sent."""
    caught.clear()
    send(USR1)
    await until(lambda: caught == [USR1])


# --- notify ---------------------------------------------------------------------------------------


def test_a_signal_comes_out_of_the_channel(procs: int) -> None:
    async def main() -> None:
        ch = signals.notify(USR1)
        assert isinstance(ch, gofer.RecvChan)
        assert (len(ch), ch.cap, ch.closed) == (0, 1, False)
        for _ in range(10):
            send(USR1)
            s = await ch.recv()
            assert s is signal.Signals.SIGUSR1
        g = gofer.go(receive, ch)
        await parked(g)
        send(USR1)
        assert await g == USR1
        signals.stop(ch)
        assert not caught
        await ours()

    async def receive(ch: gofer.RecvChan[signal.Signals]) -> signal.Signals:
        return await ch.recv()

    gofer.run(main, procs=procs)


def test_what_nobody_receives_is_dropped_and_blocks_nobody(procs: int) -> None:
    async def main() -> None:
        ch = signals.notify(USR1)
        roomy = signals.notify(USR1, capacity=3)

        def full() -> bool:
            send(USR1)
            return len(roomy) == 3

        await until(full)
        send(USR1, USR1)
        await gofer.sleep(0.001)
        assert (len(ch), ch.cap, roomy.cap) == (1, 1, 3)
        assert ch.recv_nowait() == USR1
        send(USR1)  # there is room again
        assert await ch.recv() == USR1
        assert len(roomy) == 3
        signals.stop(ch)
        signals.stop(roomy)

    gofer.run(main, procs=procs)


def test_without_capacity_only_one_who_waits_gets_it(procs: int) -> None:
    async def main() -> None:
        ch = signals.notify(USR1, capacity=0)
        other = signals.notify(USR1)
        send(USR1)
        await other.recv()
        with pytest.raises(gofer.WouldBlock):
            ch.recv_nowait()
        g = gofer.go(receive, ch)
        await parked(g)
        send(USR1)
        assert await g == USR1
        signals.stop(ch)
        signals.stop(other)

    async def receive(ch: gofer.RecvChan[signal.Signals]) -> signal.Signals:
        return await ch.recv()

    gofer.run(main, procs=procs)


def test_one_channel_for_several_signals(procs: int) -> None:
    async def main() -> None:
        ch = signals.notify(USR1, USR2, capacity=2)
        for s in (USR2, USR1, USR1, USR2):
            send(s)
            assert await ch.recv() == s
        signals.stop(ch)
        send(USR2)
        await until(lambda: caught == [USR2])

    gofer.run(main, procs=procs)


def test_every_channel_gets_its_own(procs: int) -> None:
    async def main() -> None:
        channels = [signals.notify(USR1) for _ in range(5)]
        send(USR1)
        for ch in channels:
            assert await ch.recv() == USR1
        for ch in channels[:4]:
            signals.stop(ch)
        send(USR1)
        assert await channels[4].recv() == USR1
        assert not any(ready(ch) for ch in channels)
        assert not caught
        signals.stop(channels[4])
        await ours()

    gofer.run(main, procs=procs)


def test_a_signal_named_twice_comes_once(procs: int) -> None:
    async def main() -> None:
        ch = signals.notify(USR1, USR1, int(USR1), capacity=4)
        other = signals.notify(USR1)
        send(USR1)
        await other.recv()
        await ch.recv()
        assert not ready(ch)
        signals.stop(ch)
        signals.stop(other)

    gofer.run(main, procs=procs)


def test_stop_twice_or_of_another_channel_does_nothing() -> None:
    ch = signals.notify(USR1)
    signals.stop(gofer.Chan[Any]().receiver)
    send(USR1)
    assert ch.recv_nowait() == USR1
    signals.stop(ch)
    signals.stop(ch)
    send(USR1)
    assert caught == [USR1]
    assert not ready(ch)


def test_what_came_before_stop_can_still_be_received() -> None:
    ch = signals.notify(USR1)
    send(USR1)
    signals.stop(ch)
    send(USR1)
    assert ch.recv_nowait() == USR1
    assert caught == [USR1]


def test_it_needs_no_runtime() -> None:
    ch = signals.notify(USR1)
    send(USR1)
    assert ch.recv_nowait() == USR1

    async def main() -> None:
        send(USR1)
        assert await ch.recv() == USR1

    for _ in range(2):
        gofer.run(main)
    signals.stop(ch)


def test_bad_use_changes_nothing() -> None:
    with pytest.raises(ValueError, match="at least one signal"):
        signals.notify()
    for number in (0, -1, 10_000):
        with pytest.raises(ValueError, match=repr(number)):
            signals.notify(USR1, number)
    none: Any
    for none in ("SIGUSR1", "x", None, 12.0, True, [USR1]):
        with pytest.raises(TypeError, match=re.escape(repr(none))):
            signals.notify(USR1, none)
    for bad in (signal.SIGKILL, signal.SIGSTOP):
        with pytest.raises(ValueError, match="cannot be caught"):
            signals.notify(USR1, bad)
    with pytest.raises(ValueError):  # noqa: PT011
        signals.notify(USR1, capacity=-1)
    with pytest.raises(TypeError):
        signals.notify(USR1, capacity="x")  # type: ignore[arg-type]
    send(USR1)
    assert caught == [USR1]


def test_a_handler_may_begin_and_cease_to_listen_while_others_do() -> None:
    """At any point of theirs: it runs in the middle of what the main thread does."""
    inner: list[gofer.RecvChan[signal.Signals]] = []

    def handler(signum: int, frame: object) -> None:
        inner.append(signals.notify(USR1))
        if len(inner) % 2:
            signals.stop(inner.pop())

    async def main() -> None:
        for _ in range(300):
            timer = threading.Timer(0.0001, send, [USR2])
            timer.start()
            while timer.is_alive():
                ch = signals.notify(USR1)
                send(USR1)
                assert await ch.recv() == USR1
                signals.stop(ch)
            timer.join()
        for ch in inner:
            assert ready(ch)
            signals.stop(ch)
        await ours()

    signal.signal(USR2, handler)
    gofer.run(main, procs=2)
    signal.signal(USR2, catch)


def test_what_a_handler_raises_is_not_for_whoever_listens_meanwhile() -> None:
    """A thread asks the main thread to change handlers; that is interrupted, and carries it out."""
    raised = []
    ready = threading.Event()

    class Raised(Exception):
        pass

    def handler(signum: int, frame: object) -> None:
        raised.append(signum)
        if len(raised) == 1:  # another may have been sent before this one was handled
            raise Raised

    def foreign() -> None:
        ready.wait()
        while not raised:
            ch = signals.notify(USR1)
            send(USR2)
            signals.stop(ch)

    def compute() -> None:
        ready.set()
        while True:
            pass

    def main() -> None:
        with thread(foreign) as t:
            with pytest.raises(Raised):
                compute()
            while t.is_alive():
                time.sleep(0.001)

    signal.signal(USR2, handler)
    gofer.run(main)
    signal.signal(USR2, catch)
    assert raised


def test_handlers_that_are_not_pythons_come_back() -> None:
    end = run_program(
        """
        import faulthandler, os, signal
        from gofer import signals
        faulthandler.enable()
        ch = signals.notify(signal.SIGABRT)
        signals.stop(ch)
        os.abort()
        """
    )
    assert end.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in end.stderr


def test_a_handler_of_a_run_does_not_come_back_after_it() -> None:
    listens = []

    async def main() -> None:
        listens.append(signals.notify(signal.SIGINT))

    gofer.run(main)
    signals.stop(listens[0])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_destructors_may_stop_while_the_run_ends() -> None:
    class Guard:
        def __init__(self) -> None:
            self.ch = signals.notify(USR1)

        def __del__(self) -> None:
            signals.stop(self.ch)

    async def worker() -> None:
        guard = Guard()
        await sleep_long()
        del guard

    async def main() -> None:
        await parked(*[gofer.go(worker) for _ in range(4)])

    for _ in range(20):
        gofer.run(main, procs=4)


def test_any_goroutine_may_ask(procs: int) -> None:
    async def listener() -> None:
        await gofer.gosched()
        for _ in range(5):
            ch = signals.notify(USR1)
            send(USR1)
            assert await ch.recv() == USR1
            signals.stop(ch)

    async def main() -> None:
        for g in [gofer.go(listener) for _ in range(4)]:
            await g
        await until(lambda: signal.getsignal(USR1) is catch)

    gofer.run(main, procs=procs)


def test_a_thread_may_ask_while_a_runtime_runs_on_the_main_thread(procs: int) -> None:
    def foreign() -> None:
        ch = signals.notify(USR1)
        send(USR1)
        assert gofer.block(ch.recv(), timeout=PATIENCE) == USR1
        signals.stop(ch)

    async def main() -> None:
        with thread(foreign) as t:
            await until(lambda: not t.is_alive())
        await ours()

    gofer.run(main, procs=procs)


def test_elsewhere_it_is_an_error_that_says_so() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="main thread"):
            signals.notify(USR1)
        with pytest.raises(RuntimeError, match="main thread"):
            signals.notify_context(USR1)

    def foreign() -> None:
        with pytest.raises(RuntimeError, match="main thread"):
            signals.notify(USR1)
        gofer.run(main)

    with thread(foreign):
        pass


# --- notify_context -------------------------------------------------------------------------------


def test_a_signal_ends_the_context(procs: int) -> None:
    async def main() -> None:
        ctx = signals.notify_context(USR1, USR2)
        assert isinstance(ctx, context.Context)
        log: list[Any] = []
        async with ctx:
            g = gofer.go(sleep_long)
            await parked(g)
            send(USR2)
            try:
                await sleep_long()
            except gofer.Cancelled as exc:
                log.append(exc.reason)
                raise
        assert log == ["SIGUSR2 signal received"]
        assert ctx.cause() == "SIGUSR2 signal received"
        assert isinstance(ctx.err(), gofer.Cancelled)
        with pytest.raises(gofer.Cancelled):
            await g
        await until(lambda: signal.getsignal(USR1) is catch)
        await ours()

    gofer.run(main, procs=procs)


def test_until_it_is_over_the_signals_do_nothing_else(procs: int) -> None:
    async def main() -> None:
        ctx = signals.notify_context(USR1)
        ctx.cancel("enough")
        await until(lambda: signal.getsignal(USR1) is catch)
        assert ctx.cause() == "enough"
        parent = context.with_cancel()
        ctx = signals.notify_context(USR1, parent=parent)
        parent.cancel("parent")
        assert ctx.cause() == "parent"
        await until(lambda: signal.getsignal(USR1) is catch)
        late = context.with_timeout(0.002)
        ctx = signals.notify_context(USR1, parent=late)
        await ctx.done.recv_ok()
        await until(lambda: signal.getsignal(USR1) is catch)
        assert not caught
        await ours()

    gofer.run(main, procs=procs)


def test_it_listens_on_when_the_contexts_of_the_caller_are_over(procs: int) -> None:
    async def main() -> None:
        outer = context.with_cancel()
        async with outer:
            ctx = signals.notify_context(USR1, parent=context.background())
            below = signals.notify_context(USR2)
            outer.cancel()
        assert below.err() is not None
        await gofer.sleep(0.002)
        assert ctx.err() is None
        send(USR1)
        await ctx.done.recv_ok()
        assert ctx.cause() == "SIGUSR1 signal received"
        await until(lambda: not signals.awaited())

    gofer.run(main, procs=procs)


def test_the_end_of_the_run_restores_the_handlers(procs: int) -> None:
    async def at_once() -> None:
        signals.notify_context(USR1)

    async def later() -> None:
        signals.notify_context(USR1)
        await gofer.sleep(0.002)

    async def fail() -> None:
        signals.notify_context(USR1)
        raise ValueError("as told")

    gofer.run(at_once, procs=procs)
    send(USR1)
    assert caught == [USR1]
    gofer.run(later, procs=procs)
    send(USR1)
    with pytest.raises(ValueError, match="as told"):
        gofer.run(fail, procs=procs)
    send(USR1)
    assert caught == [USR1] * 3


def test_bad_use_of_notify_context() -> None:
    with pytest.raises(ValueError, match="at least one signal"):
        signals.notify_context()
    with pytest.raises(RuntimeError, match="outside a goroutine"):
        signals.notify_context(USR1)

    async def main() -> None:
        with pytest.raises(TypeError, match="must be a Context"):
            signals.notify_context(USR1, parent=1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cannot be caught"):
            signals.notify_context(signal.SIGKILL)

    gofer.run(main)


# --- Programs -------------------------------------------------------------------------------------


def test_who_waits_for_a_signal_is_not_in_a_deadlock() -> None:
    """No timer, no other goroutine, no thread: only the signal can come."""
    program = Program(
        """
        import signal, gofer
        from gofer import signals

        async def main():
            ch = signals.notify(signal.SIGTERM)
            print("ready", flush=True)
            print(repr(await ch.recv()), flush=True)
            ctx = signals.notify_context(signal.SIGTERM)
            print("ready", flush=True)
            async with ctx:
                await gofer.Chan().recv()
            print(ctx.cause(), flush=True)

        gofer.run(main)
        """
    )
    program.expect("ready")
    threading.Event().wait(0.1)  # so that it has gone to sleep
    program.process.send_signal(signal.SIGTERM)
    program.expect("<Signals.SIGTERM: 15>")
    program.expect("ready")
    threading.Event().wait(0.1)
    program.process.send_signal(signal.SIGTERM)
    assert program.finish().check() == "SIGTERM signal received\n"


def test_ctrl_c_goes_to_who_asked_for_it_and_then_back() -> None:
    program = Program(
        """
        import signal, gofer
        from gofer import signals

        async def main():
            ch = signals.notify(signal.SIGINT)
            print("ready", flush=True)
            print(repr(await ch.recv()), flush=True)
            signals.stop(ch)
            try:
                await gofer.sleep(1000)
            finally:
                print("cleaned up", flush=True)

        try:
            gofer.run(main)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    program.expect("ready")
    program.interrupt()
    program.expect("<Signals.SIGINT: 2>")
    threading.Event().wait(0.1)
    program.interrupt()
    assert program.finish().check() == "cleaned up\ninterrupted\n"


def test_what_nobody_listens_to_any_more_does_its_default() -> None:
    finished = run_program(
        """
        import os, signal, gofer
        from gofer import signals

        async def main():
            ch = signals.notify(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            await ch.recv()
            signals.stop(ch)
            print("still here", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            await gofer.sleep(10)

        gofer.run(main)
        """
    )
    assert (finished.returncode, finished.stdout) == (-signal.SIGTERM, "still here\n")
