"""Under tracemalloc, CPython's own memory functions want to be attached, in any thread."""

import pytest

from tests.support import run_program

BUSY = """
    import sys, time
    import gofer

    def blocks():
        time.sleep(0.005)

    async def yields():
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            await gofer.gosched()

    async def waits(ch):
        await ch.recv_ok()

    async def main():
        ch = gofer.Chan()
        waiting = [gofer.go(waits, ch) for _ in range(300)]
        busy = [gofer.go(blocks) for _ in range(8)] + [gofer.go(yields) for _ in range(4)]
        for g in busy:
            await g
        ch.close()
        for g in waiting:
            await g

    for _ in range(30):
        gofer.run(main, procs=int(sys.argv[1]))
    print("done")
    """


@pytest.mark.parametrize("debug", ["", "schedtrace=1,scheddetail=1"])
@pytest.mark.parametrize("procs", [1, 2, 4])
def test_threads_that_are_not_attached_do_not_wait_to_be(procs: int, debug: str) -> None:
    options = ("-X", "tracemalloc=2")
    end = run_program(BUSY, str(procs), options=options, env={"GOFERDEBUG": debug})
    assert end.returncode == 0, end.stderr[-2000:]
    assert end.stdout == "done\n"
