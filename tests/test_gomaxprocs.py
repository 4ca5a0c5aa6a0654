"""gomaxprocs(): how many goroutines may run Python code at once."""

import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import _cgroup, _core
from tests.support import FREE_THREADED, SANITIZED, give, run_program, thread, until

CPUS = len(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(CPUS < 2, reason="there is one CPU: nothing to choose from")


# --- Asking and setting ---------------------------------------------------------------------------


def test_zero_asks_and_n_sets_and_returns_the_former() -> None:
    async def main() -> None:
        assert gofer.gomaxprocs() == 3
        assert gofer.gomaxprocs(0) == 3
        assert gofer.gomaxprocs(5) == 3
        assert gofer.gomaxprocs() == 5
        assert gofer.gomaxprocs(5) == 5
        assert gofer.gomaxprocs(1) == 5
        assert gofer.gomaxprocs() == 1

    gofer.run(main, procs=3)


def test_what_is_set_inside_a_run_ends_with_it() -> None:
    async def main() -> None:
        gofer.gomaxprocs(7)

    before = gofer.gomaxprocs()
    gofer.run(main)
    assert gofer.gomaxprocs() == before


def test_what_is_set_outside_holds_for_the_runs_to_come() -> None:
    end = run_program(
        """
        import gofer
        async def main():
            return gofer.gomaxprocs()
        default = gofer.gomaxprocs()
        assert gofer.run(main) == default
        assert gofer.gomaxprocs(3) == default
        print(gofer.gomaxprocs(), gofer.run(main), gofer.run(main, procs=5), gofer.run(main))
        """
    )
    assert end.check() == "3 3 5 3\n"


@pytest.mark.parametrize(
    ("n", "error"),
    [
        (-1, ValueError),
        (-(2**70), ValueError),
        (4097, ValueError),
        (10**9, ValueError),
        (2**70, ValueError),
        ("x", TypeError),
        (True, TypeError),
        (False, TypeError),
        (1.0, TypeError),
        (None, TypeError),
    ],
)
def test_anything_else_is_refused_and_changes_nothing(n: Any, error: type[Exception]) -> None:
    async def main() -> None:
        with pytest.raises(error, match="gomaxprocs"):
            gofer.gomaxprocs(n)
        assert gofer.gomaxprocs() == 2

    before = gofer.gomaxprocs()
    with pytest.raises(error, match="gomaxprocs"):
        gofer.gomaxprocs(n)
    assert gofer.gomaxprocs() == before
    gofer.run(main, procs=2)


def test_the_largest_value_works() -> None:
    async def main() -> int:
        gs = [gofer.go(give, 1) for _ in range(100)]
        return sum([await g for g in gs])

    assert gofer.run(main, procs=4096) == 100


def test_can_be_set_by_a_foreign_thread(procs: int) -> None:
    seen = []

    async def main() -> None:
        with thread(lambda: seen.append(gofer.gomaxprocs(procs + 1))):
            await until(lambda: seen)
        assert gofer.gomaxprocs() == procs + 1

    gofer.run(main, procs=procs)
    assert seen == [procs]


# --- The default ----------------------------------------------------------------------------------

SHOW = """
import gofer
async def main():
    return gofer.gomaxprocs()
print(gofer.gomaxprocs(), gofer.run(main))
"""


@pytest.mark.parametrize("value", ["1", "3", " 3 ", "1024"])
def test_the_environment_decides(value: str) -> None:
    end = run_program(SHOW, env={"GOMAXPROCS": value})
    assert end.check() == f"{int(value)} {int(value)}\n"


@pytest.mark.parametrize("value", ["abc", "0", "-1", "", "1.5", "0x10", "\u0663", "2 3"])
def test_nonsense_in_the_environment_is_ignored(value: str) -> None:
    end = run_program(SHOW, env={"GOMAXPROCS": value})
    assert end.check() == run_program(SHOW).check()


def test_the_argument_of_run_beats_the_environment() -> None:
    end = run_program(
        """
        import gofer
        async def main():
            return gofer.gomaxprocs()
        print(gofer.run(main, procs=2), gofer.run(main))
        """,
        env={"GOMAXPROCS": "3"},
    )
    assert end.check() == "2 3\n"


@pytest.mark.skipif(FREE_THREADED, reason="this Python has no GIL")
def test_with_the_gil_the_default_is_one() -> None:
    assert run_program(SHOW).check() == "1 1\n"


@pytest.mark.skipif(not FREE_THREADED, reason="with the GIL the default is 1")
@needs_two_cpus
def test_without_the_gil_the_default_is_the_cpus_of_the_affinity_mask() -> None:
    one = {min(os.sched_getaffinity(0))}
    end = run_program(SHOW, preexec=lambda: os.sched_setaffinity(0, one))
    assert end.check() == "1 1\n"
    assert run_program(SHOW).check() == f"{_core.allowed_cpus()} {_core.allowed_cpus()}\n"


@needs_two_cpus
def test_num_cpu_is_what_it_was_at_the_start() -> None:
    end = run_program(
        """
        import os, gofer
        mask = os.sched_getaffinity(0)
        assert gofer.num_cpu() == len(mask)
        os.sched_setaffinity(0, {min(mask)})
        async def main():
            return gofer.num_cpu()
        print(gofer.num_cpu() == len(mask), gofer.run(main) == len(mask))
        """
    )
    assert end.check() == "True True\n"


# --- The CPU quota of the cgroup ------------------------------------------------------------------


class FakeSystem:
    """A /proc and a file system with cgroups, as far as we look at them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        (self.proc / "self").mkdir(parents=True)

    def write(self, cgroup: str, mountinfo: str) -> None:
        (self.proc / "self/cgroup").write_text(cgroup)
        (self.proc / "self/mountinfo").write_text(mountinfo)

    def file(self, path: str, text: str) -> Path:
        where = self.root / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text)
        return where

    def find(self) -> tuple[str | None, str | None]:
        return _cgroup.quota_files(proc=str(self.proc), root=str(self.root))

    def allowed(self) -> int:
        """What the engine makes of it."""
        _core.set_quota_files(*self.find())
        return _core.allowed_cpus()


@pytest.fixture
def system(tmp_path: Path) -> Iterator[FakeSystem]:
    yield FakeSystem(tmp_path)
    _core.set_quota_files(*_cgroup.quota_files())


V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "33 23 0:29 / /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"


def expected(quota: float) -> int:
    """Rounded up, not below 2, and never more than the CPUs that are there."""
    return min(CPUS, max(2, math.ceil(quota)))


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("200001 100000", 2.00001),
        ("250000 100000", 2.5),
        ("299999 100000", 2.99999),
        ("300000 100000", 3),
        ("50000 100000", 0.5),
        ("1000 100000", 0.01),
        ("100000 100000", 1),
        ("150000 100000", 1.5),
        ("150000 50000\n", 3),
        ("max 100000\n", math.inf),
        ("max", math.inf),
        (f"{CPUS * 200000} 100000", CPUS * 2),
        ("99999999999999 1", math.inf),
        # No quota at all, rather than a wrong one:
        ("", math.inf),
        ("garbage", math.inf),
        ("0 100000", math.inf),
        ("-1 100000", math.inf),
        ("100000 0", math.inf),
        ("100000", math.inf),
    ],
)
def test_quota_of_cgroup_v2(system: FakeSystem, text: str, quota: float) -> None:
    system.write("0::/app\n", V2_MOUNT)
    system.file("/sys/fs/cgroup/app/cpu.max", text)
    assert system.allowed() == (CPUS if quota == math.inf else expected(quota))


@pytest.mark.parametrize(
    ("quota_us", "period_us", "quota"),
    [
        ("-1\n", "100000\n", math.inf),
        ("250000\n", "100000\n", 2.5),
        ("50000\n", "100000\n", 0.5),
        ("150000\n", "50000\n", 3),
        ("", "", math.inf),
    ],
)
def test_quota_of_cgroup_v1(
    system: FakeSystem, quota_us: str, period_us: str, quota: float
) -> None:
    system.write("4:memory:/app\n3:cpu,cpuacct:/app\n", V1_MOUNT)
    system.file("/sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", quota_us)
    system.file("/sys/fs/cgroup/cpu/app/cpu.cfs_period_us", period_us)
    assert system.allowed() == (CPUS if quota == math.inf else expected(quota))


def test_finds_the_files_of_v2(system: FakeSystem) -> None:
    system.write("0::/\n", V2_MOUNT)
    assert system.find() == (None, None)
    top = system.file("/sys/fs/cgroup/cpu.max", "max 100000")
    assert system.find() == (str(top), None)
    system.write("0::/a/b\n", V2_MOUNT)
    assert system.find() == (None, None)
    leaf = system.file("/sys/fs/cgroup/a/b/cpu.max", "max 100000")
    assert system.find() == (str(leaf), None)


def test_finds_the_files_of_v1(system: FakeSystem) -> None:
    system.write("2:cpuacct,cpu:/app\n0::/other\n", V1_MOUNT + V2_MOUNT)
    quota = system.file("/sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", "-1")
    assert system.find() == (None, None)
    period = system.file("/sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000")
    assert system.find() == (str(quota), str(period))


def test_v1_takes_precedence_over_v2(system: FakeSystem) -> None:
    system.write("1:cpu:/app\n0::/app\n", V2_MOUNT + V1_MOUNT)
    quota = system.file("/sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", "-1")
    period = system.file("/sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "100000")
    system.file("/sys/fs/cgroup/app/cpu.max", "100000 100000")
    assert system.find() == (str(quota), str(period))


def test_v1_without_the_cpu_controller_leaves_v2(system: FakeSystem) -> None:
    system.write("5:cpuacct:/app\n3:cpuset:/app\n0::/app\n", V2_MOUNT)
    leaf = system.file("/sys/fs/cgroup/app/cpu.max", "max 100000")
    assert system.find() == (str(leaf), None)


def test_only_the_leaf_is_read(system: FakeSystem) -> None:
    system.write("0::/a/b\n", V2_MOUNT)
    system.file("/sys/fs/cgroup/a/cpu.max", "100000 100000")
    system.file("/sys/fs/cgroup/a/b/cpu.max", "max 100000")
    assert system.allowed() == CPUS


def test_mount_points_with_spaces_are_understood(system: FakeSystem) -> None:
    mount = V2_MOUNT.replace("/sys/fs/cgroup", r"/mnt/my\040c\134group\011s\012x")
    system.write("0::/app\n", mount)
    leaf = system.file("/mnt/my c\\group\ts\nx/app/cpu.max", "max 100000")
    assert system.find() == (str(leaf), None)


def test_a_mount_of_a_part_of_the_hierarchy(system: FakeSystem) -> None:
    """As in a container that sees only its own part: the mount's root is not /."""
    mount = V2_MOUNT.replace(" / /sys/fs/cgroup", " /box/1 /sys/fs/cgroup")
    system.write("0::/box/1/app\n", mount)
    leaf = system.file("/sys/fs/cgroup/app/cpu.max", "max 100000")
    assert system.find() == (str(leaf), None)
    system.write("0::/box/1\n", mount)
    top = system.file("/sys/fs/cgroup/cpu.max", "max 100000")
    assert system.find() == (str(top), None)
    system.write("0::/box/10/app\n", mount)
    assert system.find() == (None, None)


def test_a_cgroup_outside_the_namespace_is_ignored(system: FakeSystem) -> None:
    system.write("0::/../other\n", V2_MOUNT)
    system.file("/sys/fs/cgroup/../other/cpu.max", "100000 100000")
    system.file("/sys/fs/other/cpu.max", "100000 100000")
    assert system.find() == (None, None)
    system.write("0::/..\n", V2_MOUNT)
    system.file("/sys/fs/cpu.max", "100000 100000")
    assert system.find() == (None, None)


@pytest.mark.parametrize(
    ("cgroup", "mountinfo"),
    [("", ""), ("nonsense\n", V2_MOUNT), ("0::/app\n", "nonsense\n"), ("0::/app\n", "")],
)
def test_a_proc_that_cannot_be_understood_means_no_quota(
    system: FakeSystem, cgroup: str, mountinfo: str
) -> None:
    system.write(cgroup, mountinfo)
    assert system.find() == (None, None)
    assert system.allowed() == CPUS


def test_no_proc_at_all_means_no_quota(tmp_path: Path) -> None:
    assert _cgroup.quota_files(proc=str(tmp_path / "none")) == (None, None)


def test_the_quota_is_read_again_every_time(system: FakeSystem) -> None:
    system.write("0::/app\n", V2_MOUNT)
    file = system.file("/sys/fs/cgroup/app/cpu.max", "max 100000")
    assert system.allowed() == CPUS
    for text, quota in [("50000 100000", 0.5), ("300000 100000", 3), ("100 100000", 0.001)]:
        file.write_text(text)
        assert _core.allowed_cpus() == expected(quota)


# --- Followed while running -----------------------------------------------------------------------

FOLLOW = """
import os, sys, time
import gofer

mask = sorted(os.sched_getaffinity(0))

def set_affinity(cpus):
    # for the whole process, as `taskset -a -p` does from outside
    for tid in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(tid), cpus)

async def becomes(n, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if gofer.gomaxprocs() == n:
            return True
        await gofer.sleep(0.01)
    return False

async def main():
    {body}

gofer.run(main)
"""


@pytest.mark.skipif(not FREE_THREADED, reason="with the GIL the default is 1 and follows nothing")
@needs_two_cpus
def test_follows_the_affinity_mask_while_running() -> None:
    body = """
    assert gofer.gomaxprocs() == len(mask)
    set_affinity(mask[:1])
    assert await becomes(1, 10)
    set_affinity(mask)
    assert await becomes(len(mask), 10)
    print("followed")
    """
    assert run_program(FOLLOW.format(body=body)).check() == "followed\n"


@needs_two_cpus
@pytest.mark.parametrize("how", ["gomaxprocs(len(mask))", "gomaxprocs(3)"])
def test_after_an_explicit_gomaxprocs_it_stays(how: str) -> None:
    body = f"""
    gofer.{how}
    n = gofer.gomaxprocs()
    set_affinity(mask[:1])
    assert not await becomes(1, 3)
    assert gofer.gomaxprocs() == n
    print("stayed")
    """
    assert run_program(FOLLOW.format(body=body)).check() == "stayed\n"


@needs_two_cpus
@pytest.mark.parametrize("how", ["environment", "procs"])
def test_what_was_asked_for_at_the_start_stays(how: str) -> None:
    body = f"""
    set_affinity(mask[:1])
    assert not await becomes(1, 2.5)
    assert gofer.gomaxprocs() == {CPUS}
    print("stayed")
    """
    source = FOLLOW.format(body=body)
    env = {}
    if how == "environment":
        env = {"GOMAXPROCS": str(CPUS)}
    else:
        source = source.replace("gofer.run(main)", f"gofer.run(main, procs={CPUS})")
    assert run_program(source, env=env).check() == "stayed\n"


# --- Changes under load ---------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(8, 1), (1, 8), (8, 3), (4, 4)])
def test_a_change_loses_no_goroutine_and_no_timer(before: int, after: int) -> None:
    async def sleeper(seconds: float) -> int:
        await gofer.sleep(seconds)
        return 1

    async def worker(i: int) -> int:
        for _ in range(i % 5):
            await gofer.gosched()
        return 1

    async def main() -> int:
        rng = random.Random(before)
        sleepers = [gofer.go(sleeper, rng.uniform(0.3, 0.4)) for _ in range(1000)]
        await until(lambda: _core.counters()["timers"] >= 900)
        workers = [gofer.go(worker, i) for i in range(1000)]
        assert gofer.gomaxprocs(after) == before
        assert gofer.gomaxprocs() == after
        total = sum([await g for g in workers])
        return total + sum([await g for g in sleepers])

    assert gofer.run(main, procs=before) == 2000


def test_many_changes_under_load(procs: int) -> None:
    stop = False

    async def nothing() -> None:
        pass

    async def spawner() -> int:
        spawned = 0
        while not stop:
            await gofer.go(nothing)
            spawned += 1
            await gofer.gosched()
        return spawned

    async def sleeper() -> int:
        slept = 0
        while not stop:
            await gofer.sleep(0.0002)
            slept += 1
        return slept

    async def main() -> None:
        nonlocal stop
        gs = [gofer.go(spawner) for _ in range(4)] + [gofer.go(sleeper) for _ in range(4)]
        for i in range(1000 if FREE_THREADED and not SANITIZED else 100):
            gofer.gomaxprocs(1 + i % 8)
            if i % 10 == 0:
                await gofer.sleep(0.0001)
        stop = True
        assert all([await g > 0 for g in gs])

    gofer.run(main, procs=procs)


def test_a_change_by_a_hog_takes_effect_at_once() -> None:
    """The caller runs on a P that goes away, and goes on."""

    async def main() -> None:
        gs = [gofer.go(hog) for _ in range(4)]
        for g in gs:
            await g

    async def hog() -> None:
        for n in (1, 8, 2, 4):
            gofer.gomaxprocs(n)
            start = time.monotonic()
            while time.monotonic() - start < 0.005:
                pass
            gofer.go(give, n)

    gofer.run(main, procs=4)
