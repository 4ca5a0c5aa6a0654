"""Finds a Go compiler and builds the Go side of a workload, outside the tree, once a source."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parent / "go"
# Debian's versioned packages put the compiler here and not on PATH.
DEBIAN_GO = "/usr/lib/go-1.23/bin/go"
OLDEST = (1, 23)


class NoGo(Exception):
    """There is no Go that can build the programs; says why."""


@functools.cache
def compiler() -> tuple[str, str]:
    """The compiler's path and its version, such as "go1.23.5"."""
    too_old = ""
    for name in ("go", DEBIAN_GO):
        if go := shutil.which(name):
            version = _run(go, "env", "GOVERSION")
            if _numbers(version) >= OLDEST:
                return go, version
            too_old += f", {go} is {version}"
    raise NoGo("no Go {}.{} or newer".format(*OLDEST) + too_old)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(?:devel )?go(\d+)\.(\d+)", version)
    return tuple(int(number) for number in found.groups()) if found else ()


def build(workload: str) -> str:
    """The path of the workload's binary; built unless these very sources were built before."""
    go, version = compiler()
    digest = hashlib.sha256(version.encode())
    sources = [SOURCES / "go.mod", *SOURCES.glob("bench/*.go"), *SOURCES.glob(f"{workload}/*.go")]
    for source in sorted(sources):
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = cache / "gofer" / "bench-go" / f"{workload}-{digest.hexdigest()[:16]}"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        # Under another name first: an interrupted build must not leave half a binary behind.
        unfinished = binary.with_suffix(f".{os.getpid()}")
        _run(go, "build", "-o", str(unfinished), f"./{workload}")
        unfinished.rename(binary)
    return str(binary)


def _run(*command: str) -> str:
    # local: never let Go fetch another toolchain on its own.
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run(command, cwd=SOURCES, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise NoGo(f"{' '.join(command[:2])}: {done.stderr.strip()}")
    return done.stdout.strip()
