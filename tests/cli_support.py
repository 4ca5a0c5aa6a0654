"""The command `gofer` in processes of its own."""

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support import PATIENCE, TESTS, Finished

GOFER = [sys.executable, "-m", "gofer"]


def environment(runtime_dir: Path | None = None, **more: str) -> dict[str, str]:
    """Nothing from outside that changes what a program does; sockets in a place of our own."""
    unwanted = ("GOMAXPROCS", "GOFERDEBUG", "NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")
    environ = {name: value for name, value in os.environ.items() if name not in unwanted}
    environ |= {"PYTHONFAULTHANDLER": "1", "PYTHONPATH": str(TESTS.parent), "COLUMNS": "100"}
    environ |= {"PYTHON_COLORS": "0", "PYTHONIOENCODING": "utf-8"}
    if runtime_dir is not None:
        environ["XDG_RUNTIME_DIR"] = str(runtime_dir)
    return environ | more


def gofer(
    *args: str | Path,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    command: list[str] | None = None,
    preexec: Callable[[], None] | None = None,
    timeout: float = PATIENCE,
) -> Finished:
    """Run the command to its end."""
    done = subprocess.run(
        [*(command or GOFER), *map(str, args)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env or environment(),
        preexec_fn=preexec,
        timeout=timeout,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def fails(end: Finished, status: int, *words: str) -> None:
    """A user's mistake: told in a line or two, with this status."""
    assert end.returncode == status, end
    assert "Traceback" not in end.stderr, end
    for word in words:
        assert word in end.stderr, end


def script(directory: Path, source: str, name: str = "prog.py") -> Path:
    """A program in a file."""
    path = directory / name
    path.write_text(textwrap.dedent(source))
    return path


# Says that it is up, and ends when it is told to.
WAITING = """
    import os, sys
    import gofer

    async def waiter(ch):
        await ch.recv()

    async def main():
        ch = gofer.Chan()
        for _ in range(5):
            gofer.go(waiter, ch)
        await gofer.gosched()
        print("up", flush=True)
        await gofer.net.wait_readable(0)

    gofer.run(main)
"""


@contextlib.contextmanager
def running(
    command: list[str | Path], env: dict[str, str], preexec: Callable[[], None] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A program that has printed a line. Its input ends with the block, and so does it."""
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        preexec_fn=preexec,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if line != "up\n":
            process.kill()
            raise AssertionError((line, *process.communicate()))
        yield process
    finally:
        if process.poll() is None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdin = None
        try:
            process.communicate(timeout=PATIENCE / 2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
