"""Every program in the README and the documentation runs, and prints what stands below it.

The ```text block right below a ```python block is what it prints, errors last; `...` in it stands
for anything, so file names and times need not be exact. A program whose text has a traceback in it
is expected to fail. A program without such a block prints what it likes, but no complaint.
"""

import doctest
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import SANITIZED, TESTS, run_program

ROOT = TESTS.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
TRACEBACK = "Traceback (most recent call last)"


class Snippet(NamedTuple):
    source: str
    printed: str | None


def snippets() -> dict[str, Snippet]:
    found = {}
    for path in PAGES:
        text = path.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found[f"{path.name}:{line}"] = Snippet(match[1], match[2])
    return found


def test_there_are_some() -> None:
    assert len(snippets()) >= 30


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """So that no program is left out because its fence is written another way."""
    fences = FENCE.findall(page.read_text())
    assert set(fences[::2]) <= {"python", "text", "sh"}
    assert set(fences[1::2]) <= {""}
    assert fences[::2].count("python") == sum(w.startswith(f"{page.name}:") for w in snippets())


@pytest.mark.parametrize("where", snippets())
def test_runs_and_prints(where: str, tmp_path: Path) -> None:
    source, printed = snippets()[where]
    if "distributed" in source:
        if importlib.util.find_spec("distributed") is None:
            pytest.skip("distributed is not installed: the extra gofer[dask]")
        if SANITIZED:
            pytest.skip("Dask's own C extensions are not built for sanitizers")
    for package in ("prometheus_client", "opentelemetry"):
        if package in source and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: an extra")
    program = tmp_path / "snippet.py"  # a file, since processes that are spawned import it
    program.write_text(source)
    end = run_program(program, cwd=tmp_path)
    if printed is None:
        end.check()
        return
    got = end.stdout + end.stderr
    checker = doctest.OutputChecker()
    assert checker.check_output(printed, got, doctest.ELLIPSIS), f"it printed:\n{got}"
    assert (end.returncode != 0) == (TRACEBACK in printed)


def test_the_check_of_output_notices_a_difference() -> None:
    checker = doctest.OutputChecker()
    assert checker.check_output("a ...:9\n", "a /tmp/x.py:9\n", doctest.ELLIPSIS)
    assert not checker.check_output("a ...:9\n", "a /tmp/x.py:8\n", doctest.ELLIPSIS)


def test_the_commands_exist() -> None:
    """What a reader is told to type: targets of the Makefile, and files."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    typed = 0
    for page in PAGES:
        for block in SHELL.findall(page.read_text()):
            for target in re.findall(r"^make ([a-z]+)", block, re.MULTILINE):
                typed += 1
                assert target in targets, f"{page.name}: make {target}"
            for path in re.findall(r"\b(?:examples|benchmarks|tools)/[\w./-]+", block):
                assert (ROOT / path).exists(), f"{page.name}: {path}"
    assert typed >= 3
