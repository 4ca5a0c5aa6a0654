"""tools/docs/check.py, which `make docs` asks whether the links of the site hold."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import TESTS

CHECK = TESTS.parent / "tools/docs/check.py"


def site(folder: Path, page: str) -> Path:
    """Enough pages for a site, and one more."""
    for n in range(10):
        (folder / f"{n}.html").write_text(f'<h1 id="top">{n}</h1><a href="#top">top</a>')
    (folder / "page.html").write_text(page)
    return folder


def check(folder: Path) -> tuple[int, str]:
    command = [sys.executable, str(CHECK), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_links_that_hold(tmp_path: Path) -> None:
    page = '<a href="3.html#top">3</a><a href="https://example.org/">away</a><a href="4.html">4</a>'
    assert check(site(tmp_path, page)) == (0, f"{tmp_path.name}: all links hold\n")


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ('<a href="none.html">x</a>', "page.html: none.html: there is no such file\n"),
        ('<a href="3.html#none">x</a>', "page.html: 3.html#none: there is no such anchor\n"),
        ('<a href="#none">x</a>', "page.html: #none: there is no such anchor\n"),
        ('<img src="none.svg">', "page.html: none.svg: there is no such file\n"),
        (
            '<script src="https://cdn.example/x.js"></script>',
            "page.html: loads https://cdn.example/x.js\n",
        ),
        (
            '<link rel="stylesheet" href="//cdn.example/x.css">',
            "page.html: loads //cdn.example/x.css\n",
        ),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, page: str, complaint: str) -> None:
    assert check(site(tmp_path, page)) == (1, complaint)


def test_a_site_without_pages_is_no_site(tmp_path: Path) -> None:
    status, text = check(tmp_path)
    assert status == 1
    assert "only 0 pages" in text
