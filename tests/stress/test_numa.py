"""Nodes under load: no goroutine and no wake-up is lost, whatever the thieves' order, and however
many Ps and nodes come and go."""

import os
import random

import pytest

import gofer
from gofer import _core, _numa
from tests.support import rounds


async def hop(ch: "gofer.Chan[int]", n: int) -> None:
    for i in range(n):
        await ch.send(i)


async def drain(ch: "gofer.Chan[int]", n: int) -> int:
    return sum([await ch.recv() for _ in range(n)])


@pytest.mark.parametrize("affinity", [False, True])
def test_work_on_nodes_that_come_and_go(affinity: bool) -> None:
    async def main(rng: random.Random) -> None:
        for _ in range(4):
            gs = []
            for _ in range(8):
                ch: gofer.Chan[int] = gofer.Chan(rng.randrange(3))
                gofer.go(hop, ch, 50)
                gs.append(gofer.go(drain, ch, 50))
            gofer.gomaxprocs(rng.randint(1, 12))
            for g in gs:
                assert await g == 1225

    cpus = sorted(os.sched_getaffinity(0))
    try:
        for i in rounds(50):
            rng = random.Random(i)
            if affinity:  # nodes that are there, as far as a machine with one node goes
                nodes: list[list[int]] = [[cpu] for cpu in cpus]
                allowed = None
            else:
                size = rng.randint(1, 4)
                nodes = [list(range(n * size, n * size + size)) for n in range(rng.randint(1, 8))]
                allowed = [cpu for node in nodes for cpu in node if rng.random() < 0.8]
            gofer.run(drain_nothing)
            assert _core.set_nodes(list(enumerate(nodes)), allowed)
            gofer.run(main, rng, procs=rng.randint(1, 12), affinity=affinity)
            assert sorted(os.sched_getaffinity(0)) == cpus
    finally:
        _core.set_nodes(_numa.nodes(), None)


async def drain_nothing() -> None:
    pass
