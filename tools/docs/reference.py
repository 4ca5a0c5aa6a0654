"""The reference, as Markdown, from the docstrings of the installed package.

Pages are chosen by what a reader looks for. A new name that no page lists goes to the last page, so
that none is ever missing; a new module gets a page of its own.
"""

import ast
import functools
import importlib.resources
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gofer
from gofer import _core

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
        fields = _fields(thing)
        if fields:
            lines += ["| field | |", "| --- | --- |"]
            lines += [f"| `{field}` | {text} |" for field, text in fields.items()]
            lines.append("")
        elsewhere: dict[type, list[str]] = {}
        for member, attribute, base in _members(thing):
            if member in fields:
                continue
            if base is not thing and base.__name__ in _siblings(qualified):
                elsewhere.setdefault(base, []).append(member)
                continue
            lines.append(f"### `{own}.{member}` {{ #{qualified}.{member} }}\n")
            if callable(attribute):
                lines.append(_signature(member, attribute, thing))
            lines.append(_markdown(attribute))
        for base, inherited in elsewhere.items():
            anchor = f"{qualified.rpartition('.')[0]}.{base.__name__}"
            links = ", ".join(f"[`{m}`](#{anchor}.{m})" for m in inherited)
            lines.append(f"From [`{base.__name__}`](#{anchor}): {links}.\n")
    return "\n".join(lines)


def _fields(cls: type) -> dict[str, str]:
    """The fields of a record: what stands below each, or behind it as a comment."""
    if not hasattr(cls, "__dataclass_fields__") and not hasattr(cls, "_fields"):
        return {}
    node, lines = _classes()[cls.__name__]
    found = {}
    for field, below in itertools.zip_longest(node.body, node.body[1:]):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = inspect.cleandoc(str(below.value.value))
        else:
            text = lines[(field.end_lineno or 1) - 1].partition("  # ")[2]
        if not text.startswith("type: "):
            found[field.target.id] = " ".join(text.split())
    return found if any(found.values()) else {}


@functools.cache
def _classes() -> dict[str, tuple[ast.ClassDef, list[str]]]:
    """The source of every class. inspect looks where the class says it lives: in gofer."""
    found = {}
    for path in Path(_core.__file__).parent.glob("*.py"):
        source = path.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = node, source.splitlines()
    return found


def _siblings(qualified: str) -> list[str]:
    """The names of the module that it is in."""
    module = qualified.split(".")[1:-1]
    return _exported(getattr(gofer, module[0])) if module else []


def _members(cls: type) -> Iterator[tuple[str, Any, type]]:
    """Its public attributes that have a docstring, and the class that each comes from."""
    seen = set()
    for base in filter(_is_ours, cls.__mro__):
        for name, attribute in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if inspect.getdoc(attribute) and not inspect.isclass(attribute):
                yield name, attribute, base


CANNOT_BE_MADE = 1 << 7  # Py_TPFLAGS_DISALLOW_INSTANTIATION
WIDE = 84


def _signature(name: str, thing: Any, owner: type | None = None) -> str:
    """How it is called, in a block of code; nothing for what is not called by users."""
    if isinstance(thing, type) and (
        issubclass(thing, BaseException) or thing.__flags__ & CANNOT_BE_MADE
    ):
        return ""
    parameters, result = _from_stub(thing, owner) or _from_object(thing, owner is not None)
    result = f" -> {result}" if result else ""
    text = f"{name}({', '.join(parameters)}){result}"
    if len(text) > WIDE:
        text = f"{name}(\n    " + ",\n    ".join(parameters) + f",\n){result}"
    is_async = inspect.iscoroutinefunction(thing)
    return f"```python\n{'async ' if is_async else ''}{text}\n```\n"


def _from_object(thing: Any, method: bool) -> tuple[list[str], str]:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return [], ""
    parameters = list(signature.parameters.values())
    if method and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    result = inspect._empty if isinstance(thing, type) else signature.return_annotation
    text = str(signature.replace(parameters=parameters, return_annotation=inspect._empty))
    found = _clean(text)[1:-1]
    returned = "" if result is inspect._empty else _clean(inspect.formatannotation(result))
    return _split(found), returned


def _split(text: str) -> list[str]:
    """At the commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [part.strip() for part in parts if part.strip()]
    return [re.sub(r" ?= ?", " = ", part, count=1) if ":" in part else part for part in parts]


def _clean(text: str) -> str:
    """Types as a reader of the documentation would write them."""
    for pattern, plain in (
        (r"(?:gofer|collections|typing|types|contextlib|os)\.(?:\w+\.)*(?=[A-Za-z_])", ""),
        (r"_core\.", ""),
        (r"['\"]", ""),
        (r"~(?=[A-Z])", ""),
        (r"T_co(?:ntra)?\b", "T"),
        (r"\bNoneType\b", "None"),
    ):
        text = re.sub(pattern, plain, text)
    return text


@functools.cache
def _stub() -> dict[str, list[ast.FunctionDef]]:
    """The engine's functions and methods, which know their types from the stub only.

    Those that a class of the stub inherits are its own here.
    """
    found: dict[str, list[ast.FunctionDef]] = {}
    text = importlib.resources.files("gofer").joinpath("_core.pyi").read_text()
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in inner:
            if isinstance(function, ast.FunctionDef):
                found.setdefault(prefix + function.name, []).append(function)
        for base in getattr(node, "bases", ()):
            of_base = f"{ast.unparse(base)}."
            for name in [name for name in found if name.startswith(of_base)]:
                found.setdefault(prefix + name.removeprefix(of_base), found[name])
    return found


def _from_stub(thing: Any, owner: type | None) -> tuple[list[str], str] | None:
    classes = owner.__mro__ if owner else (thing,)
    names = [name for base in classes for name, value in vars(_core).items() if value is base]
    if not names:
        return None
    if inspect.isfunction(thing):  # of Python, in a class that is derived from one of the engine's
        return None
    what = f"{names[0]}.{thing.__name__}" if owner else names[0]
    if isinstance(thing, type):
        what = f"{names[0]}.__new__"
    functions = _stub().get(what, [])
    if len(functions) != 1:  # none, or several ways to call it
        return None
    (function,) = functions
    parameters = _split(_clean(ast.unparse(function.args)))
    if parameters[:1] in (["self"], ["cls"]):
        parameters = parameters[1:]
    if parameters[:1] == ["/"]:
        parameters = parameters[1:]
    if isinstance(thing, type) or function.returns is None:
        return parameters, ""
    return parameters, _clean(ast.unparse(function.returns))


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
