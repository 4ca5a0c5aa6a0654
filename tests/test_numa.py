"""NUMA: nodes from sysfs, their Ps, victims on the own node first, threads that keep to a node."""

import collections
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gofer
from gofer import _core, _numa, runtime
from tests.support import (
    FREE_THREADED,
    PATIENCE,
    SANITIZED,
    TESTS,
    all_came_back,
    run_program,
    spin,
    until,
)

CPUS = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


# --- What the system says -------------------------------------------------------------------------


def fake_sysfs(root: Path, online: str, **cpulists: str) -> str:
    where = root / "devices/system/node"
    where.mkdir(parents=True)
    (where / "online").write_text(online)
    (where / "has_cpu").write_text(online)
    (where / "power").mkdir()
    for name, text in cpulists.items():
        (where / name).mkdir()
        (where / name / "cpulist").write_text(text)
    return str(root)


def test_nodes_and_their_cpus(tmp_path: Path) -> None:
    root = fake_sysfs(tmp_path, "0-1\n", node0="0-3,8-11\n", node1="4-7,12,14-15\n")
    assert _numa.nodes(root) == [
        (0, [0, 1, 2, 3, 8, 9, 10, 11]),
        (1, [4, 5, 6, 7, 12, 14, 15]),
    ]


def test_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    lists = {f"node{i}": f"{i}\n" for i in range(12)}
    assert _numa.nodes(fake_sysfs(tmp_path, "0-11\n", **lists)) == [(i, [i]) for i in range(12)]


def test_nodes_without_cpus_and_nodes_that_are_off_do_not_count(tmp_path: Path) -> None:
    root = fake_sysfs(tmp_path, "0,2-3\n", node0="0-1\n", node1="2-3\n", node2="\n", node3="4\n")
    assert _numa.nodes(root) == [(0, [0, 1]), (3, [4])]


@pytest.mark.parametrize(("online", "cpus"), [("what?", "0-1"), ("0", "a-b"), ("0", "1-")])
def test_what_cannot_be_understood_means_not_known(tmp_path: Path, online: str, cpus: str) -> None:
    assert _numa.nodes(fake_sysfs(tmp_path, online, node0=cpus)) == []


def test_no_sysfs_means_not_known(tmp_path: Path) -> None:
    assert _numa.nodes(str(tmp_path)) == []


def test_the_nodes_of_this_machine_have_its_cpus() -> None:
    found = _numa.nodes()
    if found:
        assert {cpu for _, cpus in found for cpu in cpus} >= set(CPUS)


# --- Ps and nodes ---------------------------------------------------------------------------------

SetNodes = Callable[..., None]


@pytest.fixture
def topology() -> Iterator[SetNodes]:
    """Nodes for the runs of this test: topology([0, 1], [2, 3]). They are numbered from 0."""

    async def nothing() -> None:
        pass

    gofer.run(nothing)  # now run() will not look at the real ones any more

    def set_nodes(
        *cpus: list[int], allowed: list[int] | None = None, ids: list[int] | None = None
    ) -> None:
        numbers = ids or list(range(len(cpus)))
        assert _core.set_nodes(list(zip(numbers, cpus, strict=True)), allowed)

    yield set_nodes
    _core.set_nodes(_numa.nodes(), None)


def machine(nodes: int, cpus: int) -> dict[str, Any]:
    """Arguments for topology(): a machine that we do not have."""
    lists = [list(range(i * cpus, (i + 1) * cpus)) for i in range(nodes)]
    return {"cpus": lists, "allowed": list(range(nodes * cpus))}


def set_machine(topology: SetNodes, nodes: int, cpus: int) -> None:
    m = machine(nodes, cpus)
    topology(*m["cpus"], allowed=m["allowed"])


async def proc_nodes() -> list[int]:
    return _core.proc_nodes()


@pytest.mark.parametrize(
    ("procs", "nodes"),
    [
        (1, [0]),
        (3, [0, 0, 0]),
        (4, [0] * 4),
        (6, [0] * 4 + [1] * 2),
        (8, [0] * 4 + [1] * 4),
        (11, [0] * 4 + [1] * 4 + [0] * 3),  # more than CPUs: it starts over
    ],
)
def test_ps_fill_one_node_after_the_other(topology: SetNodes, procs: int, nodes: list[int]) -> None:
    set_machine(topology, 2, 4)
    assert gofer.run(proc_nodes, procs=procs) == nodes


def test_only_cpus_that_we_may_use_count(topology: SetNodes) -> None:
    topology([0, 1, 2, 3], [4, 5, 6, 7], [8, 9], allowed=[1, 2, 8, 9], ids=[0, 3, 5])
    assert gofer.run(proc_nodes, procs=4) == [0, 0, 5, 5]


def test_without_nodes_or_with_one_all_ps_are_on_it(topology: SetNodes) -> None:
    topology([0, 1, 2, 3], allowed=[0, 1, 2, 3])
    assert gofer.run(proc_nodes, procs=4) == [0] * 4
    topology()
    assert gofer.run(proc_nodes, procs=4) == [0] * 4


def test_cpus_that_nobody_has_are_no_reason_to_fail(topology: SetNodes) -> None:
    topology([0], [1], allowed=[77])
    assert gofer.run(proc_nodes, procs=4) == [0] * 4


def test_nodes_follow_gomaxprocs(topology: SetNodes) -> None:
    set_machine(topology, 4, 2)

    async def main() -> None:
        for n in (8, 3, 1, 5, 8):
            gofer.gomaxprocs(n)
            assert _core.proc_nodes() == [i // 2 for i in range(n)]

    gofer.run(main, procs=2)


def test_nodes_do_not_change_while_something_runs() -> None:
    async def main() -> bool:
        return _core.set_nodes([], None)

    assert gofer.run(main) is False


# --- The order of victims -------------------------------------------------------------------------


@given(
    nodes=st.lists(st.integers(0, 7), min_size=1, max_size=200).map(bytes),
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_a_thief_visits_every_other_p_once_and_its_own_node_first(
    nodes: bytes, data: st.DataObject, seed: int
) -> None:
    p = data.draw(st.integers(0, len(nodes) - 1))
    way = _core.victims(nodes, p, seed)
    assert sorted(way) == [i for i in range(len(nodes)) if i != p]
    near = [nodes[v] == nodes[p] for v in way]
    assert near == sorted(near, reverse=True)


@pytest.mark.parametrize("procs", [2, 4096])
def test_the_smallest_and_the_largest_machine(procs: int) -> None:
    nodes = bytes(i * 2 // procs for i in range(procs))
    assert sorted(_core.victims(nodes, 1, 7)) == [i for i in range(procs) if i != 1]
    with pytest.raises(ValueError, match="not that many"):
        _core.victims(nodes, procs, 7)


def test_the_order_within_a_part_is_random() -> None:
    """Every P of a node is somebody's first victim about as often as the next; so with the far."""
    nodes = bytes(i // 16 for i in range(64))
    first: collections.Counter[int] = collections.Counter()
    far: collections.Counter[int] = collections.Counter()
    orders = set()
    rounds = 6000
    for seed in range(rounds):
        way = _core.victims(nodes, 20, seed * 2654435761 % 2**32)
        near = [v for v in way if v // 16 == 1]
        first[way[0]] += 1
        far[way[15]] += 1
        orders.add(tuple(near))
    assert set(first) == set(range(16, 32)) - {20}
    assert set(far) == set(range(64)) - set(range(16, 32))
    assert max(first.values()) < 3 * rounds / 15
    assert min(first.values()) > rounds / 15 / 3
    assert max(far.values()) < 3 * rounds / 48
    assert len(orders) > 50


# --- Stealing -------------------------------------------------------------------------------------


async def nothing() -> int:
    return 1


async def fan_out(n: int) -> int:
    return sum([await g for g in [gofer.go(nothing) for _ in range(n)]])


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_every_goroutine_runs_whatever_node_it_is_on(topology: SetNodes, nodes: int) -> None:
    set_machine(topology, nodes, 2)

    async def main() -> int:
        return sum([await g for g in [gofer.go(fan_out, 200) for _ in range(50)]])

    assert gofer.run(main, procs=2 * nodes) == 10_000


def test_a_node_without_work_takes_it_from_another(topology: SetNodes) -> None:
    """One P a node: whatever is stolen is stolen from another node."""
    set_machine(topology, 4, 1)

    async def busy() -> None:
        spin(0.002)

    async def main() -> None:
        before = _core.counters()
        deadline = time.monotonic() + PATIENCE
        while _core.counters()["cross_node_steals"] == before["cross_node_steals"]:
            assert time.monotonic() < deadline
            for g in [gofer.go(busy) for _ in range(40)]:
                await g
        after = _core.counters()
        assert (
            after["cross_node_steals"] - before["cross_node_steals"]
            == after["steals"] - before["steals"]
        )

    gofer.run(main, procs=4)


def test_on_one_node_nothing_crosses(topology: SetNodes) -> None:
    topology(list(range(8)), allowed=list(range(8)))

    async def main() -> int:
        far = _core.counters()["cross_node_steals"]
        for g in [gofer.go(fan_out, 100) for _ in range(50)]:
            await g
        return _core.counters()["cross_node_steals"] - far

    assert gofer.run(main, procs=8) == 0


def test_stats_show_nodes_and_what_crossed(topology: SetNodes) -> None:
    topology([0], [1], allowed=[0, 1], ids=[2, 5])

    async def main() -> None:
        for _ in range(20):
            for g in [gofer.go(fan_out, 100) for _ in range(20)]:
                await g
        stats = runtime.stats()
        assert [p.node for p in stats.procs] == [2, 5, 2]
        assert all(p.cross_node_steals <= p.steals for p in stats.procs)
        assert stats.cross_node_steals >= sum(p.cross_node_steals for p in stats.procs)

    gofer.run(main, procs=3)


def simulation() -> ModuleType:
    path = TESTS.parent / "tools/numa_simulation.py"
    spec = importlib.util.spec_from_file_location("numa_simulation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_the_simulation_says_that_it_helps_and_starves_nobody(nodes: int) -> None:
    simulate = simulation().simulate
    without = simulate(nodes, 300, 0.8, 1, aware=False)
    with_nodes = simulate(nodes, 300, 0.8, 1, aware=True)
    assert with_nodes.far * 1.6 < without.far
    assert with_nodes.busy > 0.95 * without.busy
    assert with_nodes.worst < 5 * without.worst


# --- Threads that keep to a node ------------------------------------------------------------------


@pytest.fixture
def two_nodes(topology: SetNodes) -> dict[int, set[int]]:
    """The first two CPUs that we may use, as if each were a node. All others are of the first."""
    masks = {0: set(CPUS) - {CPUS[1]}, 1: {CPUS[1]}}
    topology(sorted(masks[0]), sorted(masks[1]))
    return masks


def where() -> tuple[int, frozenset[int]]:
    """The P of this goroutine and the CPUs of its thread. Not if the P was taken meanwhile."""
    while True:
        p, cpus = _core.proc_id(), frozenset(os.sched_getaffinity(0))
        if p == _core.proc_id():
            return p, cpus


@needs_two_cpus
@pytest.mark.usefixtures("no_handoff")
def test_a_thread_keeps_to_the_node_of_its_p(two_nodes: dict[int, set[int]]) -> None:
    count = len(CPUS)
    seen: set[tuple[int, frozenset[int]]] = set()

    async def look() -> None:
        spin(0.001)
        seen.add(where())
        await gofer.gosched()
        seen.add(where())

    async def main() -> None:
        # The last P is of the second node.
        await until_all_used(look, lambda: {p for p, _ in seen} >= {0, count - 1})

    gofer.run(main, procs=count, affinity=True)
    assert {cpus for p, cpus in seen if p < count - 1} == {frozenset(two_nodes[0])}
    assert {cpus for p, cpus in seen if p == count - 1} == {frozenset(two_nodes[1])}
    assert os.sched_getaffinity(0) == set(CPUS)


async def until_all_used(look: Callable[[], Any], done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        for g in [gofer.go(look) for _ in range(20)]:
            await g


@needs_two_cpus
@pytest.mark.usefixtures("two_nodes")
def test_without_affinity_no_mask_is_touched() -> None:
    async def look() -> set[int]:
        spin(0.001)
        return os.sched_getaffinity(0)

    async def main() -> list[set[int]]:
        return [await g for g in [gofer.go(look) for _ in range(50)]]

    for affinity in (None, False):
        assert all(cpus == set(CPUS) for cpus in gofer.run(main, procs=4, affinity=affinity))


@needs_two_cpus
@pytest.mark.filterwarnings("error")
def test_the_environment_may_ask_for_affinity(
    two_nodes: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> set[int]:
        return os.sched_getaffinity(0)

    for setting, cpus in (("affinity=1", two_nodes[0]), ("affinity=0", set(CPUS))):
        monkeypatch.setenv("GOFERDEBUG", setting)
        assert gofer.run(main, procs=1) == cpus


@pytest.mark.parametrize("wrong", [1, "1", []])
def test_affinity_is_a_bool(wrong: Any) -> None:
    with pytest.raises(TypeError, match="affinity must be a bool"):
        gofer.run(nothing, affinity=wrong)


PROGRAM = """
import os, sys
import gofer
from gofer import _core, _run

cpus = sorted(os.sched_getaffinity(0))
async def nothing(): pass
gofer.run(nothing)
assert _core.set_nodes([(0, cpus[:1]), (1, cpus[1:])], None)

def masks():
    return {frozenset(os.sched_getaffinity(int(tid))) for tid in os.listdir("/proc/self/task")}
"""


@needs_two_cpus
@pytest.mark.parametrize(
    ("debug", "argument", "pinned"),
    [("affinity=1", "None", 1), ("affinity=1", "False", 0), ("", "None", 0), ("", "True", 1)],
)
def test_the_environment_or_the_argument_asks_for_it(
    debug: str, argument: str, pinned: int
) -> None:
    source = f"""
async def main():
    return os.sched_getaffinity(0)
print(int(gofer.run(main, procs=2, affinity={argument}) == set(cpus[:1])))
assert os.sched_getaffinity(0) == set(cpus)
"""
    env = {"GOFERDEBUG": debug}
    assert run_program(PROGRAM + source, env=env).check() == f"{pinned}\n"


@needs_two_cpus
def test_what_the_user_allowed_is_never_widened() -> None:
    """One CPU, of the second node: all Ps are on that node, and every thread keeps to it."""
    source = """
os.sched_setaffinity(0, cpus[1:2])
async def look():
    return os.sched_getaffinity(0)
async def main():
    assert set(_core.proc_nodes()) == {1}
    for g in [gofer.go(look) for _ in range(100)]:
        assert await g == set(cpus[1:2])
    assert masks() == {frozenset(cpus[1:2])}
gofer.run(main, procs=4, affinity=True)
print(os.sched_getaffinity(0) == set(cpus[1:2]))
"""
    assert run_program(PROGRAM + source).check() == "True\n"


@needs_two_cpus
def test_a_change_from_outside_is_followed() -> None:
    """`taskset -a` while it runs: within a second or so Ps and threads are where it says."""
    source = """
import contextlib, time

def set_all(to):
    for _ in range(2):  # one may have been started meanwhile, by a thread that came later
        for tid in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(tid), to)

async def look():
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass
    return frozenset(os.sched_getaffinity(0))

async def becomes(nodes, allowed):
    end = time.monotonic() + 30
    while set(_core.proc_nodes()) != nodes:
        assert time.monotonic() < end
        await gofer.sleep(0.01)
    found = set()
    for _ in range(20):
        for g in [gofer.go(look) for _ in range(10)]:
            found.add(await g)
    assert all(cpus <= set(allowed) for cpus in found), found

async def main():
    await becomes({0, 1}, cpus)
    set_all(cpus[1:2])
    await becomes({1}, cpus[1:2])
    set_all(cpus)
    await becomes({0, 1}, cpus)
gofer.run(main, procs=max(2, len(cpus)), affinity=True)
print("followed")
"""
    assert run_program(PROGRAM + source).check() == "followed\n"


@needs_two_cpus
@pytest.mark.usefixtures("two_nodes")
def test_a_mask_that_the_user_sets_on_a_thread_stays(procs: int) -> None:
    mine = {CPUS[0]} if len(CPUS) > 2 else set(CPUS)  # not what we would give it

    async def locked() -> None:
        gofer.lock_os_thread()  # for good: the thread ends with it
        os.sched_setaffinity(0, mine)
        for _ in range(200):
            await gofer.sleep(0.0001)
            assert os.sched_getaffinity(0) == mine

    async def main() -> None:
        gofer.lock_os_thread()  # the main thread is not theirs
        others = [gofer.go(fan_out, 100) for _ in range(20)]
        for g in [gofer.go(locked) for _ in range(3)] + others:
            await g
        gofer.unlock_os_thread()

    gofer.run(main, procs=procs, affinity=True)


@needs_two_cpus
def test_a_mask_that_main_sets_outlives_the_run() -> None:
    source = """
async def main():
    gofer.lock_os_thread()
    os.sched_setaffinity(0, cpus[1:2])
    await gofer.sleep(0.01)
    gofer.unlock_os_thread()
    await gofer.sleep(0.01)
gofer.run(main, procs=1, affinity=True)
print(os.sched_getaffinity(0) == set(cpus[1:2]))
"""
    assert run_program(PROGRAM + source).check() == "True\n"


@needs_two_cpus
@pytest.mark.usefixtures("two_nodes")
def test_the_caller_has_its_mask_back_however_the_run_ends() -> None:
    async def fails() -> None:
        assert os.sched_getaffinity(0) != set(CPUS)
        raise ZeroDivisionError

    async def deadlock() -> None:
        await gofer.Chan[int]().recv()

    with pytest.raises(ZeroDivisionError):
        gofer.run(fails, affinity=True)
    assert os.sched_getaffinity(0) == set(CPUS)
    with pytest.raises(gofer.Deadlock):
        gofer.run(deadlock, affinity=True)
    assert os.sched_getaffinity(0) == set(CPUS)


@needs_two_cpus
@pytest.mark.usefixtures("two_nodes")
def test_a_thread_that_is_left_behind_may_run_anywhere() -> None:
    release = threading.Event()
    tids: list[int] = []

    def stuck() -> None:
        tids.append(threading.get_native_id())
        assert os.sched_getaffinity(0) != set(CPUS)
        while not release.is_set():
            try:
                time.sleep(0.5)  # one call: where it is, no exception reaches it soon
            except BaseException:
                release.wait()

    async def main() -> None:
        gofer.go(stuck)
        await until(lambda: tids)

    gofer.run(main, procs=2, affinity=True)
    try:
        if tids[0] in {int(t) for t in os.listdir("/proc/self/task")}:
            assert os.sched_getaffinity(tids[0]) == set(CPUS)
    finally:
        release.set()
        all_came_back()


@needs_two_cpus
@pytest.mark.usefixtures("two_nodes")
def test_who_computes_without_a_p_may_run_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its P has been handed to another thread, which is on that node now."""
    monkeypatch.setenv("GOFERDEBUG", "asyncpreemptoff=1")
    masks: set[frozenset[int]] = set()
    stop = False

    def hog() -> None:
        while not stop:
            masks.add(frozenset(os.sched_getaffinity(0)))

    async def main() -> None:
        nonlocal stop
        g = gofer.go(hog)
        await until(lambda: frozenset(CPUS) in masks)
        stop = True
        await g

    gofer.run(main, procs=1, affinity=True)
    assert len(masks) == 2


@needs_two_cpus
@pytest.mark.usefixtures("two_nodes")
def test_threads_and_ps_stay_together_while_ps_come_and_go() -> None:
    """Not exact, as Ps are taken and given back all the time; but most looks must fit."""
    right = wrong = 0

    async def look() -> None:
        nonlocal right, wrong
        for _ in range(10):
            p, cpus = where()
            nodes = _core.proc_nodes()
            node = nodes[p] if 0 <= p < len(nodes) else -1
            if node >= 0 and cpus <= {0: set(CPUS) - {CPUS[1]}, 1: {CPUS[1]}}[node]:
                right += 1
            else:
                wrong += 1
            await gofer.gosched()

    async def main() -> None:
        for i in range(100 if FREE_THREADED and not SANITIZED else 30):
            gs = [gofer.go(look) for _ in range(8)]
            gofer.gomaxprocs(1 + i % 4)
            for g in gs:
                await g

    gofer.run(main, procs=2, affinity=True)
    assert right > wrong
