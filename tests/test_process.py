"""Programs: their pipes, their ends, and that none is left behind."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import net, process
from gofer.process import DEVNULL, PIPE, STDOUT
from tests.net_support import raised_by
from tests.support import parked, until


@pytest.fixture(params=[1, 2, 4], ids="procs={}".format)
def procs(request: pytest.FixtureRequest) -> int:
    return int(request.param)


others: set[str] = set()  # what earlier tests left for the whole run, such as a fork server


def children() -> list[str]:
    """Processes that are ours, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[1]) == os.getpid() and entry.name not in others:
                found.append(f"{entry.name} {stat[0]}")
    return found


@pytest.fixture(autouse=True)
def no_child_is_left() -> Any:
    others.clear()
    others.update(child.split()[0] for child in children())
    yield
    assert children() == []


def test_run_gives_output_and_status(procs: int) -> None:
    async def main() -> None:
        script = "echo out; echo err >&2; exit 3"
        done = await process.run(["sh", "-c", script], capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
        done = await process.run(["sh", "-c", "echo out; echo err >&2"], stdout=PIPE, stderr=STDOUT)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"out\nerr\n", None)
        done = await process.run("exit 5", shell=True)
        assert (done.returncode, done.stdout) == (5, None)
        done = await process.run(["echo"], stdout=DEVNULL)
        assert done.stdout is None

    gofer.run(main, procs=procs)


def test_input_goes_in_and_output_comes_out_at_the_same_time(procs: int) -> None:
    async def main() -> None:
        data = os.urandom(3_000_000)
        done = await process.run(["cat"], input=data, stdout=PIPE)
        assert done.stdout == data

    gofer.run(main, procs=procs)


def test_a_program_that_does_not_read_its_input() -> None:
    async def main() -> None:
        done = await process.run(["true"], input=bytes(3_000_000), stdout=PIPE)
        assert (done.returncode, done.stdout) == (0, b"")

    gofer.run(main)


def test_check() -> None:
    async def main() -> None:
        with pytest.raises(process.CalledProcessError) as info:
            await process.run(["sh", "-c", "echo why; exit 7"], stdout=PIPE, check=True)
        assert (info.value.returncode, info.value.stdout) == (7, b"why\n")
        await process.run(["true"], check=True)

    gofer.run(main)


def test_what_cannot_be_started() -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await process.run(["/no/such/program"], stdout=PIPE, stdin=PIPE)
        with pytest.raises(PermissionError):
            await process.start(["/etc/passwd"])
        with pytest.raises(NotADirectoryError):
            await process.run(["true"], cwd="/etc/passwd")
        with pytest.raises(TypeError, match="bytes"):
            await process.run(["true"], text=True)
        with pytest.raises(ValueError, match="not both"):
            await process.run(["true"], input=b"", stdin=PIPE)
        with pytest.raises(ValueError, match="not both"):
            await process.run(["true"], capture_output=True, stdout=PIPE)

    gofer.run(main)


def test_input_that_is_no_bytes_is_told_at_the_call() -> None:
    async def main() -> None:
        text: Any = "text"
        with pytest.raises(TypeError, match="input must be bytes, not str"):
            await process.run(["cat"], input=text)
        with pytest.raises(TypeError, match="input must be bytes, not str"):
            await process.run(["cat"], input=text, timeout=10)
        async with await process.start(["cat"], stdin=PIPE, stdout=PIPE) as p:
            with pytest.raises(TypeError, match="input must be bytes, not str"):
                await p.communicate(text)
            assert await p.communicate(b"bytes") == (b"bytes", None)
        for data in (bytearray(b"abc"), memoryview(b"abc")):
            assert (await process.run(["cat"], input=data, stdout=PIPE)).stdout == b"abc"

    gofer.run(main)


def test_a_command_that_is_none() -> None:
    async def main() -> None:
        for call in (process.run, process.start):
            nothings: list[Any] = [[], (), "", b""]
            for nothing in nothings:
                with pytest.raises(ValueError, match="must begin with a program"):
                    await call(nothing, stdout=PIPE)
            wrongs: list[Any] = [None, 5, {"echo": 1}, {"echo"}]
            for wrong in wrongs:
                with pytest.raises(TypeError, match=f"a list.*not {type(wrong).__name__}"):
                    await call(wrong, stdout=PIPE)
            item: Any = ["echo", 5]
            with pytest.raises(TypeError, match="not int"):
                await call(item, stdout=PIPE)
            with pytest.raises(FileNotFoundError, match="echo hello") as info:
                await call("echo hello", stdout=PIPE)
            assert "list" in info.value.__notes__[0]
        assert (await process.run(Path("/bin/true"))).returncode == 0
        assert (await process.run("true")).returncode == 0

    gofer.run(main)


def test_a_timeout_kills_it(procs: int) -> None:
    async def main() -> None:
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            await process.run(["sleep", "100"], timeout=0.1)
        assert 0.1 <= time.monotonic() - start < 20
        assert children() == []

    gofer.run(main, procs=procs)


def test_cancelling_kills_it(procs: int) -> None:
    async def main() -> None:
        g = gofer.go(process.run, ["sh", "-c", "trap '' TERM; sleep 100 & wait"], stdout=PIPE)
        await until(children)
        await parked(g)
        g.cancel()
        with pytest.raises(gofer.Cancelled):
            await g
        assert children() == []

    gofer.run(main, procs=procs)


def test_a_conversation(procs: int) -> None:
    async def main() -> None:
        async with await process.start(["cat", "-u"], stdin=PIPE, stdout=PIPE) as p:
            assert p.stdin is not None
            assert p.stdout is not None
            assert p.stderr is None
            assert p.returncode is None
            assert "running" in repr(p)
            for i in range(10):
                await p.stdin.write(b"%d\n" % i)
                assert await p.stdout.read_until(b"\n") == b"%d\n" % i
            p.stdin.close()
            assert await p.stdout.read() == b""
            assert await p.wait() == 0
        assert p.returncode == 0
        assert "ended with 0" in repr(p)

    gofer.run(main, procs=procs)


def test_signals() -> None:
    async def main() -> None:
        for send, sig in (
            (process.Process.terminate, signal.SIGTERM),
            (process.Process.kill, signal.SIGKILL),
            (lambda p: p.send_signal(signal.SIGUSR1), signal.SIGUSR1),
        ):
            p = await process.start(["sleep", "100"])
            waiters = [gofer.go(p.wait) for _ in range(3)]
            await parked(*waiters)
            send(p)
            assert [await w for w in waiters] == [-sig] * 3
            send(p)  # it has ended: nothing
            assert await p.wait() == -sig

    gofer.run(main)


def test_the_end_of_its_starter_s_context_kills_it(procs: int) -> None:
    async def main() -> None:
        ctx = gofer.context.with_cancel()
        async with ctx:
            p = await process.start(["sleep", "100"])
            ctx.cancel()
        assert await p.wait() == -signal.SIGKILL
        assert children() == []

    gofer.run(main, procs=procs)


def test_a_process_that_nobody_waits_for_leaves_no_zombie(procs: int) -> None:
    async def main() -> None:
        for _ in range(5):
            await process.start(["true"])
        await until(lambda: children() == [])

    gofer.run(main, procs=procs)


def test_the_end_of_the_run_kills_what_still_runs() -> None:
    async def main() -> None:
        await process.start(["sleep", "100"])
        await process.start(["cat"], stdin=PIPE)

    gofer.run(main)
    assert children() == []


def test_leaving_the_block_by_an_exception_kills_it() -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with await process.start(["sleep", "100"]):
                1 / 0
        assert children() == []

    gofer.run(main)


def test_a_process_that_is_killed_because_time_is_up_ends_the_block_with_timeout_error(
    procs: int,
) -> None:
    async def too_long() -> None:
        async with gofer.timeout(0.05):
            p = await process.start(["sleep", "100"])
            await p.wait()

    async def main() -> None:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await too_long()

    gofer.run(main, procs=procs)


def test_leaving_the_block_waits_for_what_still_runs(procs: int) -> None:
    """As with subprocess: one that is read to its end has not ended yet, and keeps its status."""

    async def main() -> None:
        script = "exec 1>&-; sleep 0.05; exit 3"
        async with await process.start(["sh", "-c", script], stdout=PIPE) as p:
            assert p.stdout is not None
            assert await p.stdout.read() == b""
            assert p.returncode is None
        assert p.returncode == 3
        async with await process.start(["cat"], stdin=PIPE) as p:
            pass  # its input ends with the block
        assert p.returncode == 0

    gofer.run(main, procs=procs)


def test_leaving_the_block_while_cancelled_leaves_no_zombie(procs: int) -> None:
    async def leaves() -> None:
        async with await process.start(["sleep", "100"]):
            me = gofer.current()
            assert me is not None
            me.cancel()

    async def main() -> None:
        assert isinstance(await raised_by(gofer.go(leaves)), gofer.Cancelled)
        assert children() == []

    gofer.run(main, procs=procs)


def test_what_has_ended_before_the_end_of_the_block_keeps_its_status(procs: int) -> None:
    async def main() -> None:
        async with await process.start(["sh", "-c", "exit 3"]) as p:
            await until(lambda: all(child.endswith("Z") for child in children()))
        assert p.returncode == 3

    gofer.run(main, procs=procs)


def test_waiting_does_not_block_others() -> None:
    async def main() -> int:
        ticks = 0
        g = gofer.go(process.run, ["sleep", "0.3"])
        while not g.done():
            await gofer.sleep(0.001)
            ticks += 1
        return ticks

    assert gofer.run(main, procs=1) > 3


def test_many_at_once(procs: int) -> None:
    async def one(i: int) -> bytes:
        done = await process.run(
            [sys.executable, "-S", "-c", f"print({i})"] if i % 10 == 0 else ["echo", str(i)],
            stdout=PIPE,
        )
        assert done.stdout is not None
        return done.stdout

    async def main() -> None:
        gs = [gofer.go(one, i) for i in range(30)]
        assert [await g for g in gs] == [b"%d\n" % i for i in range(30)]

    gofer.run(main, procs=procs)


def test_environment_and_folder(tmp_path: Path) -> None:
    async def main() -> None:
        done = await process.run(
            ["sh", "-c", "pwd; echo $X"], cwd=tmp_path, env={"X": "y"}, stdout=PIPE
        )
        assert done.stdout == f"{tmp_path}\ny\n".encode()

    gofer.run(main)


def test_waiting_is_no_deadlock() -> None:
    async def main() -> int:
        p = await process.start(["sleep", "0.2"])
        return await p.wait()

    assert gofer.run(main) == 0


def test_a_wait_can_be_cancelled_alone() -> None:
    async def main() -> None:
        async with await process.start(["sleep", "100"]) as p:
            g = gofer.go(raised_by, p.wait())
            await parked(g)
            g.cancel()
            assert isinstance(await g, gofer.Cancelled)
            assert p.returncode is None
            p.kill()
            assert await p.wait() == -9

    gofer.run(main)


def test_the_want_of_descriptors_leaves_nothing_behind() -> None:
    """Whichever of the pipes, the program or the pidfd is the one too many."""

    async def main() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = os.listdir("/proc/self/fd")
        await process.run(["true"], capture_output=True, input=b"")  # what is needed once is there
        failed = 0
        for room in range(14):
            used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
            fillers = [os.open("/dev/null", os.O_RDONLY)]
            while fillers[-1] <= used:
                fillers.append(os.open("/dev/null", os.O_RDONLY))
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + room, hard))
                error = await raised_by(process.run(["true"], input=b"", capture_output=True))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for fd in fillers:
                    os.close(fd)
            if error is not None:
                assert isinstance(error, OSError)
                assert error.errno == errno.EMFILE, error
                failed += 1
            await until(lambda: children() == [])
        assert 3 < failed < 14, failed
        await until(lambda: len(os.listdir("/proc/self/fd")) <= len(before) + 2)  # the poller's

    gofer.run(main)


def test_no_descriptor_is_inherited(procs: int) -> None:
    """What is open here, sockets and other programs' pipes too, is none of its business."""

    async def main() -> None:
        script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
        args = [sys.executable, "-S", "-c", script]
        options: Any = {"stdin": DEVNULL, "stdout": PIPE, "close_fds": False}
        before = subprocess.run(args, check=True, **options)
        async with (
            net.listen("127.0.0.1", 0) as listener,
            await net.dial(*listener.addr),
            await process.start(["cat"], stdin=PIPE, stdout=PIPE) as cat,
        ):
            done = await process.run(args, **options)
            assert done.stdout == before.stdout
            assert cat.stdin is not None
            cat.stdin.close()  # if another held it, this cat would live for ever
            assert await cat.wait() == 0

    gofer.run(main, procs=procs)


def test_a_program_that_lives_on_after_its_output_and_one_whose_child_does() -> None:
    async def main() -> None:
        script = "exec >&- 2>&-; sleep 0.2; exit 4"
        done = await process.run(["sh", "-c", script], capture_output=True)
        assert (done.returncode, done.stdout) == (4, b"")
        start = time.monotonic()
        with pytest.raises(TimeoutError):  # its child has the pipe, as with subprocess
            await process.run(["sh", "-c", "sleep 5 & exit 0"], stdout=PIPE, timeout=0.3)
        assert time.monotonic() - start < 4

    gofer.run(main)


def test_a_program_that_nobody_reads_is_held_back_and_can_be_killed() -> None:
    async def main() -> None:
        async with await process.start(["yes"], stdout=PIPE) as p:
            assert p.stdout is not None
            assert await p.stdout.read_exactly(4) == b"y\ny\n"
            await gofer.sleep(0.1)
            assert p.returncode is None
            p.kill()
            assert await p.wait() == -signal.SIGKILL
            rest = 0
            while data := await p.stdout.read():
                rest += len(data)
            assert 0 < rest <= 200_000  # a pipe holds 64 KB

    gofer.run(main)


def test_stopping_is_not_ending() -> None:
    async def main() -> None:
        async with await process.start(["sleep", "0.3"]) as p:
            p.send_signal(signal.SIGSTOP)
            waiter = gofer.go(p.wait)
            await gofer.sleep(0.5)
            assert not waiter.done()
            p.send_signal(signal.SIGCONT)
            assert await waiter == 0

    gofer.run(main)
