"""Programs that end, are killed, cancelled and timed out at the same time."""

import contextlib
import os
import random
import signal

import pytest

import gofer
from gofer import process
from tests.net_support import raised_by
from tests.support import rounds


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

    gofer.run(main, procs=procs)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
