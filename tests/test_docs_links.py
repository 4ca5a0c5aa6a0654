"""The links between the documents hold, as they stand in the repository.

`make docs` checks those of the built site as well, the pages of the reference among them.
"""

import re
from pathlib import Path

import pytest

from tests.support import TESTS

ROOT = TESTS.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks/README.md",
]
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED = re.compile(r"`((?:benchmarks|docs|examples|src|tests|tools)/[\w./-]+)`")
GENERATED = ("reference/", "examples.md")  # when the site is built


def anchors(page: Path) -> set[str]:
    """Those of its headings, as GitHub and mkdocs make them."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for title in HEADING.findall(text):
        words = re.sub(r"[^\w\s-]", "", title.lower()).strip()
        found.add(re.sub(r"[\s]+", "-", words))
    return found


def links(page: Path) -> list[str]:
    return LINK.findall(CODE.sub("", page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        if path.startswith(GENERATED) or re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    for path in NAMED.findall(page.read_text()):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_there_are_links_to_check() -> None:
    assert sum(len(links(page)) for page in PAGES) > 50


def test_every_drawing_is_shown_and_says_what_it_shows() -> None:
    texts = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    for drawing in (ROOT / "docs/drawings").glob("*.svg"):
        assert f"(drawings/{drawing.name})" in texts
        assert re.search(r"<title[^>]*>[^<]{20,}</title>", drawing.read_text())
