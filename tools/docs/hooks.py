"""What the site has beyond Markdown: drawings in the reader's colours, reference, examples."""

import ast
import html
import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.structure.files import File

IMAGE = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*(drawings/[\w-]+\.svg)" ?/?>')


def on_config(config: Any) -> Any:
    """Complete the navigation: the reference, and pages that it does not mention, as guides."""
    pages = [{title: f"reference/{name}.md"} for name, title in reference.titles().items()]
    listed = re.findall(r"[\w-]+\.md", str(config.nav))
    rest = [p.name for p in sorted(Path(config.docs_dir).glob("*.md")) if p.name not in listed]
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = pages
        if "Guides" in entry:
            entry["Guides"] += rest
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here: the reference, the examples."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    root = Path(config.config_file_path).parent
    files.append(File.generated(config, "examples.md", content=examples(root / "examples")))
    return files


def examples(folder: Path) -> str:
    """The list of the examples, and the source of each."""
    text = (folder / "README.md").read_text()
    link = re.compile(r"\]\(([\w/]+\.py)\)")
    pages = [link.sub(r"](#\1)", text)]
    for name in link.findall(text):
        source = (folder / name).read_text()
        tree = ast.parse(source)
        story = ast.get_docstring(tree) or ""
        code = "\n".join(source.splitlines()[tree.body[0].end_lineno if story else 0 :])
        pages.append(f"## {name} {{ #{name} }}\n\n{story}\n\n```python\n{code.strip()}\n```\n")
    return "\n".join(pages)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Put drawings into the page: as images they would not see which colours the reader chose."""

    def inline(match: re.Match[str]) -> str:
        drawing = Path(config.docs_dir, match[2]).read_text()
        title = f"<title>{match[1]}</title>"
        drawing, n = re.subn(r"<title[^>]*>.*?</title>", lambda _: title, drawing, count=1)
        if n != 1:
            raise ValueError(f"{match[2]} has no title")
        label = f'aria-label="{html.escape(html.unescape(match[1]))}"'
        return re.sub(r'aria-labelledby="[^"]*"', lambda _: label, drawing)

    return IMAGE.sub(inline, content)
