"""Every program in the README and the documentation runs, and prints what stands below it."""

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import SANITIZED, TESTS, run_program

ROOT = TESTS.parent
# A ```python block and, if one follows, the ```text block that says what it prints.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


class Snippet(NamedTuple):
    source: str
    printed: str | None


def snippets() -> dict[str, Snippet]:
    found = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found[f"{path.name}:{line}"] = Snippet(match[1], match[2])
    return found


def test_there_are_some() -> None:
    assert len(snippets()) >= 5


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
    out = run_program(program).check()
    if printed is not None:
        assert out == printed
