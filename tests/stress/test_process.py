"""Programs that end, are killed, cancelled and timed out at the same time."""

import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

import gofer
from gofer import process
from tests.net_support import raised_by
from tests.support import rounds


def children() -> set[str]:
    """The processes whose parent we are, zombies too. Other tests may have left some that stay."""
    me = str(os.getpid())
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid, _, rest = stat.read_text().partition(" (")
            if rest.rpartition(") ")[2].split()[1] == me:
                found.add(pid)
    return found


@pytest.mark.parametrize("procs", [1, 2, 4])
def test_no_way_to_end_leaves_a_zombie_or_a_pipe(procs: int) -> None:
    async def one(rng: random.Random) -> None:
        script = rng.choice(["exit 3", "cat", "sleep 0.01", "sleep 100", "yes", "kill -9 $$"])
        pipe = process.PIPE
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with (
                gofer.timeout(rng.random() * 0.1),
                await process.start(["sh", "-c", script], stdin=pipe, stdout=pipe) as p,
            ):
                assert p.stdin is not None
                assert p.stdout is not None
                if rng.random() < 0.5:
                    await p.stdin.write(b"hello")
                    p.stdin.close()
                if rng.random() < 0.5:
                    await p.stdout.read()
                for _ in range(rng.randrange(3)):
                    p.send_signal(rng.choice([signal.SIGTERM, signal.SIGKILL, signal.SIGCONT]))
                if rng.random() < 0.5:
                    await p.wait()

    async def worker(seed: int) -> None:
        rng = random.Random(seed)
        for _ in rounds(divide_by=100):
            g = gofer.go(one, rng)
            if rng.random() < 0.3:
                await gofer.sleep(rng.random() * 0.02)
                g.cancel()
            error = await raised_by(g)
            assert error is None or isinstance(error, gofer.Cancelled), error

    async def main() -> None:
        gs = [gofer.go(worker, i) for i in range(8)]
        for g in gs:
            await g

    before = children()
    gofer.run(main, procs=procs)
    assert children() <= before
