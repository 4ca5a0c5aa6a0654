"""How often would goroutines cross nodes on a machine that we do not have?

Simulates 2 to 8 nodes of 16 Ps. Each node has one P to which goroutines come (a listener, say); a
goroutine runs for some time and may start others. As in the engine, an idle P sleeps; new work
wakes one, and one that finds work wakes the next. A P that is awake and has none visits the others
in the order that the engine's own code gives (`_core.victims`), takes half of the first ring that
is not empty, or goes to sleep. Once with the nodes as they are, once as if all Ps were of one node.

    python tools/numa_simulation.py [--ticks N] [--load SHARE] [--seed N]
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from dataclasses import dataclass

from gofer import _core

PS = 16  # of each node
LONGEST = 8  # ticks that a goroutine runs: 1 to this
CHILDREN = 0.25  # chance that a goroutine starts another one when it ends


@dataclass
class Result:
    """What one simulation said."""

    done: int = 0  # goroutines
    steals: int = 0  # goroutines that changed the P
    far: int = 0  # ... and the node
    busy: int = 0  # ticks of all Ps
    waited: int = 0  # ticks of all goroutines in rings
    worst: int = 0  # of one goroutine

    def line(self, ticks: int, ps: int) -> list[str]:
        return [
            f"{self.steals:,}",
            f"{self.far:,}",
            f"{self.far / max(1, self.steals):.1%}",
            f"{self.busy / ticks / ps:.1%}",
            f"{self.waited / max(1, self.done):.2f}",
            str(self.worst),
        ]


class Machine:
    """The Ps, their rings and who sleeps."""

    def __init__(self, nodes: int, seed: int, *, aware: bool) -> None:
        self.ps = nodes * PS
        self.node_of = bytes(p // PS for p in range(self.ps))
        self.seen = self.node_of if aware else bytes(self.ps)  # what the engine is told
        self.rng, self.thief = random.Random(seed), random.Random(seed + 1)
        self.rings: list[deque[int]] = [deque() for _ in range(self.ps)]  # when each came
        self.left = [0] * self.ps  # ticks that the goroutine has still to run
        self.idle = list(range(self.ps))  # the last one is woken first
        self.result = Result()

    def submit(self, p: int, now: int) -> None:
        self.rings[p].append(now)
        if p in self.idle:
            self.idle.remove(p)
        else:
            self.wake(p)

    def wake(self, near: int) -> None:
        """As pidle_get() does: a P of this node, if one sleeps."""
        same = [p for p in self.idle if self.seen[p] == self.seen[near]]
        if self.idle:
            self.idle.remove((same or self.idle)[-1])

    def steal(self, p: int) -> bool:
        for victim in _core.victims(self.seen, p, self.thief.getrandbits(32)):
            n = (len(self.rings[victim]) + 1) // 2
            if n > 0:
                self.rings[p].extend(self.rings[victim].popleft() for _ in range(n))
                self.result.steals += n
                self.result.far += n * (self.node_of[p] != self.node_of[victim])
                self.wake(p)
                return True
        return False

    def tick(self, p: int, now: int) -> None:
        """One P, if it is awake."""
        if self.left[p] == 0 and not self.rings[p] and not self.steal(p):
            self.idle.append(p)
            return
        if self.left[p] == 0:
            waited = now - self.rings[p].popleft()
            self.result.waited += waited
            self.result.worst = max(self.result.worst, waited)
            self.left[p] = self.rng.randint(1, LONGEST)
        self.result.busy += 1
        self.left[p] -= 1
        if self.left[p] == 0:
            self.result.done += 1
            if self.rng.random() < CHILDREN:
                self.submit(p, now)


def simulate(nodes: int, ticks: int, load: float, seed: int, *, aware: bool) -> Result:
    """`aware`: the engine knows the nodes."""
    machine = Machine(nodes, seed, aware=aware)
    mean = (1 + LONGEST) / 2 / (1 - CHILDREN)
    arrivals = load * PS / mean  # for each node and tick
    owed = [0.0] * nodes
    for now in range(ticks):
        for node in range(nodes):
            # In bursts, as from a poll.
            owed[node] += machine.rng.expovariate(1 / arrivals)
            while owed[node] >= 1:
                owed[node] -= 1
                machine.submit(node * PS, now)
        asleep = set(machine.idle)
        for p in machine.thief.sample(range(machine.ps), machine.ps):
            if p not in asleep:
                machine.tick(p, now)
    return machine.result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ticks", type=int, default=2000)
    parser.add_argument("--load", type=float, default=0.8, help="share of all Ps that is needed")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    heads = ["nodes", "Ps", "own node first", "steals", "cross-node", "share", "busy"]
    heads += ["mean wait", "worst"]
    rows = [heads]
    for nodes in (2, 4, 8):
        for aware in (False, True):
            r = simulate(nodes, args.ticks, args.load, args.seed, aware=aware)
            row = [str(nodes), str(nodes * PS), "yes" if aware else "no"]
            rows.append(row + r.line(args.ticks, nodes * PS))
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main()
