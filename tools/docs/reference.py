"""The reference, as Markdown, from the docstrings of the installed package.

Pages are chosen by what a reader looks for. A new name that no page lists goes to the last page, so
that none is ever missing; a new module gets a page of its own.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import gofer

PAGES = {
    "running": (
        "Goroutines",
        """run go Goroutine Operation block sleep gosched goexit current num_goroutine num_cpu
        gomaxprocs set_max_threads lock_os_thread unlock_os_thread""",
    ),
    "channels": ("Channels and select", "Chan SendChan RecvChan select Selected"),
    "sync": (
        "Groups and locks",
        "Group WaitGroup Mutex RWMutex Cond Semaphore Once once_value Pool",
    ),
    "time": ("Time", "sleep timeout after after_func Timer Ticker"),
    "blocking": (
        "Blocking work and pools",
        "blocking offload wait_future WorkerPool Result PoolStats ShutdownReport PoolClosed",
    ),
    "errors": (
        "Errors",
        "Cancelled ChannelClosed WouldBlock Deadlock GoroutineLeakWarning",
    ),
}
MORE = "more", "More"


def _modules() -> dict[str, ModuleType]:
    found = {name: getattr(gofer, name) for name in gofer.__all__}
    return {name: thing for name, thing in found.items() if inspect.ismodule(thing)}


@functools.cache
def _names() -> dict[str, tuple[str, list[str]]]:
    """Title and names of each page of the package itself."""
    pages = {}
    listed = set(_modules())
    for page, (title, names) in PAGES.items():
        there = [name for name in names.split() if name in gofer.__all__ and name not in listed]
        listed.update(there)
        pages[page] = (title, there)
    if rest := [name for name in gofer.__all__ if name not in listed]:
        pages[MORE[0]] = (MORE[1], rest)
    return pages


def titles() -> dict[str, str]:
    """The pages in order, with their titles."""
    return {
        "index": "All names",
        **{page: title for page, (title, names) in _names().items() if names},
        **{name: f"gofer.{name}" for name in _modules()},
    }


def pages() -> dict[str, str]:
    """The text of each page."""
    made = {
        page: "\n".join([f"# {title}\n", *(_entry(f"gofer.{n}", getattr(gofer, n)) for n in names)])
        for page, (title, names) in _names().items()
        if names
    }
    for name, module in _modules().items():
        inner = (_entry(f"gofer.{name}.{n}", getattr(module, n)) for n in _exported(module))
        made[name] = "\n".join([f"# gofer.{name}\n", _markdown(module), *inner])
    made["index"] = _index()
    return made


def _exported(module: ModuleType) -> list[str]:
    """Its names, without what it passes on from the standard library."""
    return [n for n in module.__all__ if _is_ours(getattr(module, n))]


def _is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "gofer"


def _index() -> str:
    lines = ["# All names\n", "Each has an example, and each example is run by the tests.\n"]
    for page, (title, names) in _names().items():
        if names:
            lines += [f"## [{title}]({page}.md)\n", "| name | |", "| --- | --- |"]
            lines += [_row(page, f"gofer.{n}", n, getattr(gofer, n)) for n in names]
            lines.append("")
    for name, module in _modules().items():
        lines += [f"## [gofer.{name}]({name}.md)\n", "| name | |", "| --- | --- |"]
        lines += [
            _row(name, f"gofer.{name}.{n}", f"{name}.{n}", getattr(module, n))
            for n in _exported(module)
        ]
        lines.append("")
    return "\n".join(lines)


def _row(page: str, anchor: str, name: str, thing: Any) -> str:
    first = (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")
    return f"| [`{name}`]({page}.md#{anchor}) | {first} |"


# --- One thing -----------------------------------------------------------------------------------


def _entry(qualified: str, thing: Any) -> str:
    name = qualified.removeprefix("gofer.")
    lines = [f"## `{name}` {{ #{qualified} }}\n", _signature(name, thing), _markdown(thing)]
    if inspect.isclass(thing):
        own = name.rpartition(".")[2]
        for member, attribute in members(thing):
            title = f"{own}.{member}"
            lines.append(f"### `{title}` {{ #{qualified}.{member} }}\n")
            if callable(attribute):
                lines.append(_signature(member, attribute, method=True))
            lines.append(_markdown(attribute))
    return "\n".join(lines)


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Its public attributes that have a docstring of ours."""
    seen = set()
    for base in cls.__mro__:
        if not _is_ours(base):
            continue
        for name, attribute in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if inspect.getdoc(attribute) and not inspect.isclass(attribute):
                yield name, attribute


def _signature(name: str, thing: Any, method: bool = False) -> str:
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = list(signature.parameters.values())
    if method and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    text = str(signature.replace(parameters=parameters))
    for pattern, plain in (
        (r"(?:gofer|collections|typing|types|contextlib|os)\.(?:\w+\.)*(?=[A-Za-z_])", ""),
        (r"_core\.", ""),
        (r"['\"]", ""),
        (r"~(?=[A-Z])", ""),
        (r" -> NoneType", " -> None"),
    ):
        text = re.sub(pattern, plain, text)
    is_async = inspect.iscoroutinefunction(thing)
    return f"```python\n{'async ' if is_async else ''}{name}{text}\n```\n"


def _markdown(thing: Any) -> str:
    """Its docstring: text, and examples as blocks of code."""
    lines: list[str] = []
    inside = False
    for line in (inspect.getdoc(thing) or "").splitlines():
        if not inside and line.startswith(">>> "):
            lines.append("```pycon")
            inside = True
        elif inside and not line:
            lines.append("```")
            inside = False
        lines.append(line.partition("  # doctest:")[0])
    if inside:
        lines.append("```")
    return "\n".join(lines) + "\n"
