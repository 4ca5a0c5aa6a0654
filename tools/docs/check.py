"""Check a built site: every link and anchor inside it holds, and nothing is loaded from elsewhere.

python tools/docs/check.py build/docs
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page has, and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attributes if value is not None}
        self.anchors.update(value for name, value in found.items() if name in ("id", "name"))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in found:
            self.loads.append(found["src"])
        if tag == "link" and "href" in found:
            self.loads.append(found["href"])


def is_elsewhere(link: str) -> bool:
    return urlsplit(link).scheme not in ("", "data") or link.startswith("//")


def problems(site: Path) -> list[str]:
    """What is wrong, a line each."""
    # The page for what is not found is served from anywhere, so its links begin at the root.
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in sorted(pages.items()):
        where = path.relative_to(site)
        found += [f"{where}: loads {load}" for load in page.loads if is_elsewhere(load)]
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{where}: {link}: there is no such file")
            elif target in pages and unquote(parts.fragment) not in ("", *pages[target].anchors):
                found.append(f"{where}: {link}: there is no such anchor")
    if len(pages) < 10:
        found.append(f"{site}: only {len(pages)} pages")
    return found


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    wrong = problems(site)
    print("\n".join(wrong) or f"{site.name}: all links hold")
    sys.exit(bool(wrong))
