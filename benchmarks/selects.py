"""Select: what does it cost to wait for four channels at once?

Beside Go only: no peer has a select over channels. When all four are ready, nothing waits and this
is the fast path: look at all of them in one instant, choose at random. When all four are idle, the
goroutine joins four queues, and leaves three of them when a sender has come to the fourth.
"""

from __future__ import annotations

from benchmarks._model import NS_PER_OP, Bar, Build, Case, Job, Workload, with_procs


def gofer_ready(job: Job) -> None:
    """Each channel holds as many values as there are selects, so none ever runs dry."""
    import gofer

    selects = job.size["selects"]

    async def receive(
        a: gofer.Chan[int], b: gofer.Chan[int], c: gofer.Chan[int], d: gofer.Chan[int]
    ) -> None:
        for _ in range(selects):
            await gofer.select(a.recv(), b.recv(), c.recv(), d.recv())

    async def main() -> None:
        channels: list[gofer.Chan[int]] = [gofer.Chan(selects) for _ in range(4)]
        for ch in channels:
            for i in range(selects):
                ch.send_nowait(i)
        with job.measure():
            await gofer.go(receive, *channels)
        assert sum(len(ch) for ch in channels) == 3 * selects

    gofer.run(main, procs=job.procs)


def gofer_idle(job: Job) -> None:
    """The sender is asked for each value, so on one P it cannot come before the select has gone to
    wait. The question has room in its channel: whoever asks does not wait for it to be taken."""
    import gofer

    selects = job.size["selects"]

    async def receive(
        ask: gofer.Chan[int],
        a: gofer.Chan[int],
        b: gofer.Chan[int],
        c: gofer.Chan[int],
        d: gofer.Chan[int],
    ) -> None:
        for i in range(selects):
            await ask.send(i)
            await gofer.select(a.recv(), b.recv(), c.recv(), d.recv())

    async def send(ask: gofer.Chan[int], *channels: gofer.Chan[int]) -> None:
        for _ in range(selects):
            i = await ask.recv()
            await channels[i % 4].send(i)

    async def main() -> None:
        ask: gofer.Chan[int] = gofer.Chan(1)
        channels: list[gofer.Chan[int]] = [gofer.Chan() for _ in range(4)]
        with job.measure():
            goroutines = [gofer.go(receive, ask, *channels), gofer.go(send, ask, *channels)]
            for g in goroutines:
                await g

    gofer.run(main, procs=job.procs)


BUILDS: tuple[Build, ...] = ("gil", "free-threaded")

WORKLOAD = Workload(
    name="selects",
    title="select over four channels",
    how_to_read=(
        "ready: time for one select. idle: time for one round trip with the sender, as in pingpong,"
        " but the answer is taken by a select."
    ),
    metric=NS_PER_OP,
    size={"selects": 300_000, "senders": 0},
    quick={"selects": 20_000, "senders": 0},
    ops=lambda size: size["selects"],
    cases=(
        *with_procs(Case("gofer", "select", gofer_ready, "ready"), 1, 2),
        *with_procs(Case("go", "select", None, "ready"), 1, 2),
        *with_procs(Case("gofer", "select", gofer_idle, "idle", size={"senders": 1}), 1, 2),
        *with_procs(Case("go", "select", None, "idle", size={"senders": 1}), 1, 2),
    ),
    bars=tuple(
        Bar(
            f"{group}, beside Go",
            build,
            f"gofer-p1/{group}/select",
            (f"go-p1/{group}/select",),
            at_most=4,
            promise=False,
        )
        for build in BUILDS
        for group in ("ready", "idle")
    ),
)
