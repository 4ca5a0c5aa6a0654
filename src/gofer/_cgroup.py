"""Where this process's CPU quota is written.

The engine reads the files again while it runs (src/core/maxprocs.c); finding them needs the mount
table and is done once. Only the leaf cgroup is looked at, as in Go.
"""

import os
import re
from pathlib import Path


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as \\ooo."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), field)


def _own_cgroups(proc: Path) -> tuple[str | None, str | None]:
    """The path of this process in the v1 cpu hierarchy and in the v2 one."""
    v1 = v2 = None
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            v1 = path
        elif controllers == "":
            v2 = path
    return v1, v2


def _mounted(proc: Path, want_v1: bool, path: str) -> str | None:
    """The directory in which the cgroup `path` is visible to us, if it is."""
    for line in (proc / "self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        is_v1 = kind == "cgroup" and "cpu" in options.split(" ")[-1].split(",")
        if not (is_v1 if want_v1 else kind == "cgroup2"):
            continue
        fields = left.split(" ")
        root, where = _unescape(fields[3]), _unescape(fields[4])
        if path == root:
            return where
        prefix = root.rstrip("/") + "/"
        if path.startswith(prefix) and not path.startswith("/.."):
            return where.rstrip("/") + "/" + path[len(prefix) :]
    return None


def quota_files(proc: str = "/proc", root: str = "/") -> tuple[str | None, str | None]:
    """The files of quota and period; (cpu.max, None) for cgroup v2; (None, None) if there are none.

    `proc` and `root` stand in for the real file system in tests.
    """
    try:
        v1, v2 = _own_cgroups(Path(proc))
        if v1 is not None:
            where = _mounted(Path(proc), True, v1)
            names: tuple[str, ...] = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        elif v2 is not None:
            where = _mounted(Path(proc), False, v2)
            names = ("cpu.max",)
        else:
            return None, None
    except (OSError, ValueError, IndexError):
        return None, None  # no cgroups, or a /proc we cannot read: no quota known
    if where is None:
        return None, None
    files = [os.path.join(root, where.lstrip("/"), name) for name in names]
    if not all(os.path.exists(f) for f in files):
        return None, None
    return files[0], files[1] if len(files) > 1 else None
