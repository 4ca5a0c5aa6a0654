"""Load programs, in C: built once a source, started by the server under test, from a thread of it.

The server says on which port it listens; the program connects, warms it up, and says "ready". What
comes then is measured: the server's own CPU time and memory, and what the program says of latency.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

from benchmarks._model import Job

SOURCES = Path(__file__).parent / "load"
VARIABLE = "GOFER_BENCH_LOAD"  # where the program is, for the process under test


class NoCompiler(Exception):
    """There is no C compiler."""


def build(name: str) -> str:
    """The path of the program; built unless this very source was built before."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise NoCompiler("no C compiler for the load program")
    source = SOURCES / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = cache / "gofer" / "bench-load" / f"{name}-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-o", str(unfinished), str(source)], check=True)
        unfinished.rename(program)
    return str(program)


def start(job: Job, port: int, **more: int) -> None:
    """Put load on the server of this process; when it has been measured, the process ends."""
    threading.Thread(target=_drive, args=(job, {**job.size, "port": port, **more})).start()


def _drive(job: Job, sizes: dict[str, int]) -> None:
    command = [os.environ[VARIABLE], *(f"{key}={value}" for key, value in sizes.items())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            os._exit(1)
        with job.measure():
            process.stdin.write(b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        assert job.sample is not None
        job.sample = dataclasses.replace(job.sample, p99_seconds=json.loads(line)["p99_us"] / 1e6)
        job.emit_and_exit()


def hold(job: Job, port: int) -> None:
    """Hold connections to the server of this process, and measure what they cost it."""
    threading.Thread(target=_hold, args=(job, {**job.size, "port": port})).start()


def _hold(job: Job, sizes: dict[str, int]) -> None:
    command = [os.environ[VARIABLE], *(f"{key}={value}" for key, value in sizes.items())]
    # Some first, so that what is needed once is there.
    few = subprocess.Popen([*command, "conns=100"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert few.stdout is not None
    few.stdout.readline()
    with job.measure():
        many = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert many.stdout is not None
        ready = many.stdout.readline()
        threading.Event().wait(1)  # the last ones are being accepted
    if ready != b"ready\n":
        os._exit(1)
    job.emit()
    for process in (few, many):
        process.kill()
    os._exit(0)
