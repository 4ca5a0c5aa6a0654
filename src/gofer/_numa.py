"""The NUMA nodes of this machine and their CPUs, from sysfs.

Read once; which of the CPUs this process may use is seen by the engine (src/core/numa.c).
"""

import re
from pathlib import Path

Nodes = list[tuple[int, list[int]]]


def _numbers(text: str) -> list[int]:
    """What the kernel calls a list: `0-3,8`."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if part:
            found.extend(range(int(first), int(last if dash else first) + 1))
    return found


def nodes(root: str = "/sys") -> Nodes:
    """Number and CPUs of each node that has CPUs; empty if the system does not say.

    `root` stands in for the real file system in tests.
    """
    where = Path(root, "devices/system/node")
    try:
        online = set(_numbers((where / "online").read_text()))
        found = []
        for path in where.iterdir():
            match = re.fullmatch(r"node(\d+)", path.name)
            if match and int(match[1]) in online:
                found.append((int(match[1]), _numbers((path / "cpulist").read_text())))
    except (OSError, ValueError):
        return []
    return sorted(node for node in found if node[1])
