"""Every public name has a docstring with an example, and every example does what it says.

An example is written as if it stood in a goroutine, with `await`, in a program that has the usual
things at hand: a channel `ch`, a connection `conn`, a function `fetch`. Those are in
doctest_world.py, and made for each example that names them. An example that calls run() stands
outside.
"""

import ast
import contextlib
import doctest
import inspect
import io
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gofer
from gofer import _dial
from tests.doctest_world import PLAIN, Internet, World, files

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "gofer"


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public attributes of a class that are ours, inherited ones too."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if is_ours(base):
            for name, attribute in vars(base).items():
                if not name.startswith("_"):
                    found.setdefault(name, attribute)
    yield from found.items()


def public() -> Iterator[tuple[str, Any]]:
    """Every public name with what it stands for."""

    def inside(prefix: str, thing: Any) -> Iterator[tuple[str, Any]]:
        yield prefix, thing
        if inspect.isclass(thing):
            for name, attribute in members(thing):
                yield f"{prefix}.{name}", attribute

    yield "gofer", gofer
    for name in gofer.__all__:
        thing = getattr(gofer, name)
        yield from inside(f"gofer.{name}", thing)
        if inspect.ismodule(thing):
            for inner in thing.__all__:
                if is_ours(value := getattr(thing, inner)):
                    yield from inside(f"gofer.{name}.{inner}", value)


NAMES = dict(public())


# What a coroutine has, for the interpreter.
PROTOCOL = {"gofer.Operation.throw", "gofer.Operation.close"}


def is_field(cls: object, name: str) -> bool:
    """Whether it is one of the values of which a record consists."""
    return name in getattr(cls, "__dataclass_fields__", ())


def is_attribute(thing: Any) -> bool:
    return inspect.isdatadescriptor(thing) or not callable(thing)


def complaint(name: str) -> str | None:
    """What is wrong with the docstring of this name."""
    thing = NAMES[name]
    doc = inspect.getdoc(thing)
    owner, _, attribute = name.rpartition(".")
    if not doc and is_field(NAMES.get(owner), attribute):
        return None  # the docstring of the record is for all of them
    if not doc:
        return "no docstring"
    if len(doc.splitlines()[0]) > 100:
        return "its first line is too long"
    if ">>> " not in doc and not inspect.ismodule(thing) and not is_attribute(thing):
        return "no example"
    return None


def test_every_name_has_a_docstring_with_an_example() -> None:
    found = {name: complaint(name) for name in NAMES if name not in PROTOCOL}
    assert len(found) > 300
    assert {name: text for name, text in found.items() if text is not None} == {}


def test_what_has_no_docstring_or_example_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def bare() -> None: ...

    def without_example() -> None:
        """Does nothing."""

    class Slots:
        """Has an attribute, `c`, that tells nothing itself."""

        __slots__ = ("c",)

    for thing, text in (
        (bare, "no docstring"),
        (Slots.c, "no docstring"),  # type: ignore[attr-defined]
        (without_example, "no example"),
    ):
        monkeypatch.setitem(NAMES, "gofer.new", thing)
        assert complaint("gofer.new") == text


def examples(name: str) -> list[doctest.Example]:
    doc = inspect.getdoc(NAMES[name]) or ""
    return doctest.DocTestParser().get_examples(doc, name)


def needs_no_runtime(parts: list[doctest.Example]) -> bool:
    """Whether an example starts the runtime itself."""
    nodes = [node for part in parts for node in ast.walk(ast.parse(part.source))]
    if any(isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor) for node in nodes):
        # In a function that run() is given, there may be some.
        functions = [node for node in nodes if isinstance(node, ast.AsyncFunctionDef)]
        if not functions:
            return False
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func) in ("gofer.run", "run", "trace.serve")
        for node in nodes
    )


def used(parts: list[doctest.Example]) -> set[str]:
    """The names that an example mentions. It may take them for granted, or set them itself."""
    nodes = [node for part in parts for node in ast.walk(ast.parse(part.source))]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


class Output(io.StringIO):
    """What is printed, also by the values of expressions."""

    def show(self, value: object) -> None:
        in_passing = gofer.Goroutine | gofer.Operation  # of go(...), of conn.close()
        if value is not None and not isinstance(value, in_passing):
            self.write(repr(value) + "\n")


@contextlib.contextmanager
def captured() -> Iterator[Output]:
    out = Output()
    before = sys.displayhook
    sys.displayhook = out.show
    try:
        with contextlib.redirect_stdout(out):
            yield out
    finally:
        sys.displayhook = before


def compiled(part: doctest.Example, name: str, world: dict[str, Any]) -> Any:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(part.source, f"<{name}>", "single", flags, dont_inherit=True)
    return types.FunctionType(code, world)


def judge(part: doctest.Example, got: str, error: BaseException | None) -> None:
    checker = doctest.OutputChecker()
    if part.exc_msg is not None:
        assert error is not None, f"{part.source} did not raise"
        said = "".join(traceback.format_exception_only(type(error), error))
        assert checker.check_output(part.exc_msg, said, FLAGS), f"{part.source} raised {said}"
        return
    if error is not None:
        raise error
    assert checker.check_output(part.want, got, FLAGS), f"{part.source} printed {got!r}"


def play(name: str, parts: list[doctest.Example], world: dict[str, Any]) -> None:
    for part in parts:
        error = None
        with captured() as out:
            try:
                compiled(part, name, world)()
            except Exception as exc:
                error = exc
        judge(part, out.getvalue(), error)


async def play_inside(name: str, parts: list[doctest.Example], internet: Internet | None) -> None:
    async with contextlib.AsyncExitStack() as stack, World(used(parts)) as world:
        if internet is not None:
            await internet.open(stack)
        for part in parts:
            error = None
            with captured() as out:
                try:
                    result = compiled(part, name, world)()
                    if inspect.iscoroutine(result):
                        await result
                except (Exception, gofer.Cancelled) as exc:
                    error = exc
            judge(part, out.getvalue(), error)


# What is inherited has its example once.
WITH_EXAMPLES = list(
    {inspect.getdoc(NAMES[n]): n for n in reversed(NAMES) if examples(n)}.values()
)[::-1]


@pytest.fixture(scope="module")
def internet(tmp_path_factory: pytest.TempPathFactory) -> Internet:
    return Internet(tmp_path_factory.mktemp("certificate"))


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_example_does_what_it_says(
    name: str, internet: Internet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = [part for part in examples(name) if not part.options.get(doctest.SKIP)]
    text = "".join(part.source for part in parts)
    for needed in ("prometheus_client", "opentelemetry"):
        if needed in text or name.startswith("gofer.metrics."):
            pytest.importorskip(needed)
    if "README.md" in text or "program.trace" in text:
        files(tmp_path)
    if needs_no_runtime(parts):
        play(
            name,
            parts,
            {"__name__": "__main__", **{k: PLAIN[k] for k in used(parts) & PLAIN.keys()}},
        )
        return
    on_line = "example.org" in text
    if on_line:
        monkeypatch.setattr(_dial, "targets", internet.look_up)
        monkeypatch.setenv("SSL_CERT_FILE", internet.certificate.path)
    gofer.run(play_inside, name, parts, internet if on_line else None)


def test_few_examples_are_not_run() -> None:
    """Servers that run until the program ends."""
    skipped = {n for n in WITH_EXAMPLES for part in examples(n) if part.options.get(doctest.SKIP)}
    assert skipped == {"gofer.trace.serve", "gofer.metrics"}


def test_a_wrong_example_is_noticed() -> None:
    (part,) = doctest.DocTestParser().get_examples(">>> 1 + 1\n3\n")
    with pytest.raises(AssertionError, match="printed '2"):
        play("wrong", [part], {})
    (part,) = doctest.DocTestParser().get_examples(">>> await gofer.sleep('x')\n")
    with pytest.raises(TypeError):
        gofer.run(play_inside, "wrong", [part], None)
