"""offload() to Dask: a real cluster with two worker processes, started once."""

import importlib.util

import pytest

from tests.support import SANITIZED, TESTS, run_program

CHECKS = [
    "results",
    "errors",
    "native_await",
    "select",
    "cancellation",
    "end_of_run",
    "advice",
    "dead_worker",
    "worker_pool",
]

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("distributed") is None,
        reason="distributed is not installed: the extra gofer[dask]",
    ),
    pytest.mark.skipif(SANITIZED, reason="Dask's own C extensions are not built for sanitizers"),
]


@pytest.fixture(scope="module")
def output() -> str:
    """What the program printed: the names of the checks that have passed."""
    end = run_program(TESTS / "dask_program.py", timeout=110)
    # Dask logs on stderr what it thinks of dying workers.
    assert end.returncode == 0, end.stdout + end.stderr
    return end.stdout


@pytest.mark.parametrize("check", CHECKS)
def test_dask(check: str, output: str) -> None:
    assert check in output.splitlines()
