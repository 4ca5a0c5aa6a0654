"""In a container: how GOMAXPROCS is found, shown with made-up cgroups.

A container with a quota of 3 CPUs on a machine with 64 of them should get 3 Ps, or the kernel stops
all its threads for most of each period. gofer reads the quota (cgroup v1 and v2) and the affinity
mask at the start, and again while it runs. The cgroup directory below is a temporary one of our
own.
"""

import os
import tempfile
from pathlib import Path

import gofer
from gofer import _cgroup, _core  # what gofer.run() uses; the public way to ask is gomaxprocs()


def fake_cgroup(root: Path, quota: str) -> None:
    """What a process in a container with this cpu.max sees under / and /proc."""
    files = {
        "proc/self/cgroup": "0::/pod\n",
        "proc/self/mountinfo": "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/pod/cpu.max": quota,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def main() -> None:
    cpus = len(os.sched_getaffinity(0))
    print(f"this process may use {cpus} CPUs (affinity); a quota rounds up, but not below 2")
    for quota, says in (
        ("max 100000", "no limit"),
        ("50000 100000", "0.5 CPUs"),
        ("250000 100000", "2.5 CPUs"),
        ("1600000 100000", "16 CPUs"),
    ):
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            fake_cgroup(root, quota)
            _core.set_quota_files(*_cgroup.quota_files(f"{root}/proc", str(root)))
            print(f"   cpu.max {quota!r:17} {says:9} -> {_core.allowed_cpus()} Ps")
    _core.set_quota_files(*_cgroup.quota_files())

    everything = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everything)})
    print(f"pinned to one CPU with taskset       -> {_core.allowed_cpus()} Ps")
    os.sched_setaffinity(0, everything)

    os.environ["GOMAXPROCS"] = "5"
    print(f"GOMAXPROCS=5 in the environment      -> {gofer.run(gofer.gomaxprocs)} Ps")
    print(f"run(main, procs=3)                   -> {gofer.run(gofer.gomaxprocs, procs=3)} Ps")
    del os.environ["GOMAXPROCS"]

    async def changes() -> list[int]:
        seen = [gofer.gomaxprocs()]
        for n in (4, 1, 2):
            gofer.gomaxprocs(n)
            seen.append(gofer.gomaxprocs())
        return seen

    print(f"changed while running                -> {gofer.run(changes)}")
    print("with the GIL the default is 1, whatever the machine has")


if __name__ == "__main__":
    main()
