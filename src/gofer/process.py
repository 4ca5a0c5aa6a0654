"""Other programs: started, talked to through pipes, waited for and never left behind.

>>> from gofer import process
>>> done = await process.run(["echo", "hello"], stdout=process.PIPE, timeout=10)
>>> done.stdout
b'hello\\n'
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL, PIPE, STDOUT, CalledProcessError, CompletedProcess
from typing import Any

from gofer import net
from gofer._core import Chan, go_here
from gofer._errors import Cancelled
from gofer._group import Group
from gofer._run import blocking
from gofer._time import timeout as _timeout

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "CalledProcessError",
    "CompletedProcess",
    "Process",
    "run",
    "start",
]

Args = str | bytes | os.PathLike[str] | Sequence[str | bytes | os.PathLike[str]]


class Process:
    """A running program. `stdin`, `stdout` and `stderr` are Conns where start() was given PIPE.

    `async with` closes the pipes at the end of the block and waits for its end; if an exception
    leaves the block, it is killed. So is one that still runs when the run ends, or when its
    starter's context is over.

    >>> pipe = process.PIPE
    >>> async with await process.start(["cat"], stdin=pipe, stdout=pipe) as cat:
    ...     await cat.stdin.write(b"meow")
    ...     cat.stdin.close()
    ...     print(await cat.stdout.read())
    b'meow'
    """

    __slots__ = (
        "__weakref__",
        "_exited",
        "_popen",
        "_stderr",
        "_stdin",
        "_stdout",
    )

    def __init__(self, popen: "subprocess.Popen[bytes]", pipes: "_Pipes") -> None:
        self._popen = popen
        self._stdin, self._stdout, self._stderr = pipes.ours
        self._exited: Chan[None] = Chan()
        # Which begins even if the run ends right now.
        go_here(_reap, popen, os.pidfd_open(popen.pid), self._exited, name=f"reaper of {popen.pid}")

    @property
    def stdin(self) -> net.Conn | None:
        """Our end of its input, to write to; None without PIPE.

        >>> async with await process.start(["cat"], stdin=process.PIPE) as cat:
        ...     cat.stdin.close()
        """
        return self._stdin

    @property
    def stdout(self) -> net.Conn | None:
        """Our end of its output, to read from; None without PIPE.

        >>> async with await process.start(["echo", "hello"], stdout=process.PIPE) as echo:
        ...     print(await echo.stdout.read())
        b'hello\\n'
        """
        return self._stdout

    @property
    def stderr(self) -> net.Conn | None:
        """Our end of its error output, to read from; None without PIPE.

        >>> p.stderr is None
        True
        """
        return self._stderr

    @property
    def args(self) -> Any:
        """What was started."""
        return self._popen.args

    @property
    def pid(self) -> int:
        """Its number."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """As subprocess has it: None while it runs, -N if signal N killed it."""
        return self._popen.returncode

    def __repr__(self) -> str:
        how = "running" if self.returncode is None else f"ended with {self.returncode}"
        return f"<gofer.process.Process {self.pid} {how}: {self.args!r}>"

    async def wait(self) -> int:
        """Wait for its end and return its exit status.

        >>> status = await p.wait()
        """
        await self._exited.recv_ok()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal; nothing if it has ended.

        >>> p.send_signal(signal.SIGHUP)
        """
        self._popen.send_signal(sig)  # which looks, under a lock, whether it has been waited for

    def terminate(self) -> None:
        """Ask it to end: SIGTERM.

        >>> p.terminate()
        """
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it: SIGKILL.

        >>> p.kill()
        """
        self.send_signal(signal.SIGKILL)

    async def communicate(self, input: bytes | None = None) -> tuple[bytes | None, bytes | None]:
        """Write `input`, read all that it writes, wait for its end; as subprocess's.

        >>> out, err = await p.communicate(b"text")
        """
        _check_input(input)
        async with Group() as group:
            if self.stdin is not None:
                group.go(_feed, self.stdin, input or b"")
            out = group.go(_drain, self.stdout)
            err = group.go(_drain, self.stderr)
        await self.wait()
        return await out, await err

    def _close(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    async def __aenter__(self) -> "Process":
        return self

    async def __aexit__(self, *exc: object) -> None:
        from gofer import context

        self._close()
        if exc[0] is not None and self.returncode is None:
            self.kill()
        try:
            await self.wait()
        except Cancelled:
            self.kill()
            async with context.shield():
                await self.wait()
            raise


async def _reap(popen: "subprocess.Popen[bytes]", pidfd: int, exited: Chan[None]) -> None:
    """Wait for its end, so that no zombie stays, whoever else waits."""
    try:
        await net.wait_readable(pidfd)
    except Cancelled:
        popen.kill()
        raise
    finally:
        popen.wait()  # at once, or nearly so: it has ended or been killed
        os.close(pidfd)
        exited.close()


async def _feed(pipe: net.Conn, data: bytes) -> None:
    try:
        await pipe.write(data)
    except BrokenPipeError:
        pass  # it did not want all of it
    finally:
        pipe.close()


async def _drain(pipe: net.Conn | None) -> bytes | None:
    if pipe is None:
        return None
    data = bytearray()
    while piece := await pipe.read():
        data += piece
    pipe.close()
    return bytes(data)


def _check_input(data: object) -> None:
    """Here, not in the goroutine that writes it: there the error would come in a group."""
    if data is None:
        return
    try:
        memoryview(data).release()  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"input must be bytes, not {type(data).__name__}") from None


def _check_args(args: object) -> None:
    if isinstance(args, os.PathLike):
        return
    if not isinstance(args, str | bytes | Sequence):
        kind = type(args).__name__
        raise TypeError(f"a command must be a list of a program and its arguments, not {kind}")
    if not args:
        raise ValueError("a command must begin with a program, and this one is empty")


class _Pipes:
    """The ends of its pipes: ours as Conns, the child's as descriptors to be closed."""

    def __init__(self, *wanted: Any) -> None:
        self.ours: list[net.Conn | None] = []
        self.theirs: list[Any] = []
        self.to_close: list[int] = []
        try:
            for i, what in enumerate(wanted):
                self._add(what, to_child=i == 0)
        except BaseException:
            self.close_all()
            raise

    def _add(self, what: Any, *, to_child: bool) -> None:
        if what != PIPE:
            self.ours.append(None)
            self.theirs.append(what)
            return
        reader, writer = os.pipe2(os.O_CLOEXEC)
        ours, theirs = (writer, reader) if to_child else (reader, writer)
        self.to_close.append(theirs)
        self.theirs.append(theirs)
        self.ours.append(net.open_fd(ours))

    def close_theirs(self) -> None:
        for fd in self.to_close:
            os.close(fd)
        self.to_close.clear()

    def close_all(self) -> None:
        self.close_theirs()
        for pipe in self.ours:
            if pipe is not None:
                pipe.close()


async def start(
    args: Args,
    *,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    cwd: str | bytes | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Process:
    """Start a program. PIPE for stdin, stdout or stderr makes that a Conn of the Process.

    Everything else is as for subprocess.Popen, whose other options are taken too; but all is bytes.

    >>> p = await process.start(["sleep", "100"])
    >>> p.terminate()
    >>> await p.wait()
    -15
    """
    for name in ("text", "encoding", "errors", "universal_newlines", "bufsize"):
        if name in options:
            raise TypeError(f"start() has no option {name!r}: pipes carry bytes")
    _check_args(args)
    pipes = _Pipes(stdin, stdout, stderr)
    popen = None
    try:
        with blocking():  # until the program has been loaded, or could not be
            popen = subprocess.Popen(
                args,
                stdin=pipes.theirs[0],
                stdout=pipes.theirs[1],
                stderr=pipes.theirs[2],
                cwd=cwd,
                env=env,
                **options,
            )
        pipes.close_theirs()
        return Process(popen, pipes)
    except BaseException as exc:
        pipes.close_all()
        if popen is not None:
            popen.kill()
            popen.wait()
        if isinstance(exc, FileNotFoundError) and isinstance(args, str) and " " in args:
            exc.add_note("a str is the program alone: put it and its arguments into a list")
        raise


async def run(
    args: Args,
    *,
    input: bytes | None = None,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> "CompletedProcess[bytes]":
    """Run a program to its end, as subprocess.run() does. It is killed if this is cancelled.

    TimeoutError if it takes longer than `timeout` seconds; with `check`, CalledProcessError if it
    fails. `capture_output=True` stands for stdout=PIPE, stderr=PIPE.

    >>> done = await process.run(["sort"], input=b"b\\na\\n", stdout=process.PIPE)
    >>> done.stdout
    b'a\\nb\\n'
    """
    if timeout is not None:
        async with _timeout(timeout):
            return await run(
                args, input=input, stdin=stdin, stdout=stdout, stderr=stderr, check=check, **options
            )
    _check_input(input)
    if input is not None:
        if stdin is not None:
            raise ValueError("run() takes input or stdin, not both")
        stdin = PIPE
    if options.pop("capture_output", False):
        if stdout is not None or stderr is not None:
            raise ValueError("run() takes capture_output, or stdout and stderr, not both")
        stdout = stderr = PIPE
    async with await start(args, stdin=stdin, stdout=stdout, stderr=stderr, **options) as p:
        out, err = await p.communicate(input)
    status = await p.wait()
    if check and status:
        raise CalledProcessError(status, args, out, err)
    return CompletedProcess(args, status, out, err)


Process.__module__ = "gofer.process"
