"""The package itself: what it exports, and that all of it is documented and typed."""

import ast
import doctest
import importlib.metadata
import importlib.resources
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gofer
from gofer import _core
from tests.support import run_program

# The names of the API contract that exist so far. A release may add to them, never take one away.
CONTRACT = {
    "Cancelled",
    "ChannelClosed",
    "Deadlock",
    "Goroutine",
    "GoroutineLeakWarning",
    "WouldBlock",
    "current",
    "go",
    "goexit",
    "gomaxprocs",
    "gosched",
    "num_cpu",
    "num_goroutine",
    "run",
    "set_max_threads",
    "sleep",
}

GOROUTINE = {
    "id",
    "name",
    "state",
    "wait_reason",
    "created_at",
    "parent_id",
    "done",
    "result",
    "exception",
    "cancel",
    "cancelled",
    "stack",
}


def test_exports_the_contract() -> None:
    assert set(gofer.__all__) >= CONTRACT


def test_every_export_exists_once_and_in_order() -> None:
    assert sorted(gofer.__all__) == gofer.__all__
    assert len(set(gofer.__all__)) == len(gofer.__all__)
    for name in gofer.__all__:
        assert getattr(gofer, name) is not None


def test_nothing_else_is_public() -> None:
    public = {name for name in vars(gofer) if not name.startswith("_")}
    assert public - set(gofer.__all__) == set()


@pytest.mark.parametrize("name", sorted(gofer.__all__))
def test_every_export_has_a_docstring_with_an_example(name: str) -> None:
    doc = inspect.getdoc(getattr(gofer, name))
    assert doc
    assert ">>> " in doc
    assert len(doc.splitlines()[0]) <= 100


@pytest.mark.parametrize("name", sorted(gofer.__all__))
def test_every_export_says_that_it_lives_in_gofer(name: str) -> None:
    thing = getattr(gofer, name)
    if inspect.ismodule(thing):
        assert thing.__name__ == f"gofer.{name}"
    else:
        assert thing.__module__.partition(".")[0] == "gofer"
        assert thing.__name__ == name


@pytest.mark.parametrize("name", sorted(gofer.__all__))
def test_every_callable_export_has_a_signature(name: str) -> None:
    thing = getattr(gofer, name)
    if not isinstance(thing, type) and not inspect.ismodule(thing):
        assert inspect.signature(thing) is not None


def test_the_goroutine_has_all_of_its_contract_and_documents_it() -> None:
    for name in GOROUTINE:
        attribute = getattr(gofer.Goroutine, name)
        assert attribute.__doc__, name
        if callable(attribute):
            assert ">>> " in attribute.__doc__, name


def exceptions() -> Iterator[type[BaseException]]:
    for name in gofer.__all__:
        thing = getattr(gofer, name)
        if isinstance(thing, type) and issubclass(thing, BaseException):
            yield thing


def test_exceptions_have_the_bases_of_the_contract() -> None:
    assert gofer.Cancelled.__mro__[1] is BaseException
    assert issubclass(gofer.Deadlock, RuntimeError)
    assert issubclass(gofer.ChannelClosed, Exception)
    assert issubclass(gofer.WouldBlock, Exception)
    assert {exc.__name__ for exc in exceptions()} >= {"Cancelled", "ChannelClosed", "Deadlock"}


@pytest.mark.parametrize("exc", list(exceptions()), ids=lambda exc: exc.__name__)
def test_exceptions_can_be_pickled(exc: type[BaseException]) -> None:
    again = pickle.loads(pickle.dumps(exc("text")))
    assert type(again) is exc
    assert again.args == ("text",)


def test_is_typed() -> None:
    assert importlib.resources.files("gofer").joinpath("py.typed").is_file()
    assert importlib.resources.files("gofer").joinpath("_core.pyi").is_file()


def test_the_stub_of_the_engine_names_what_is_there() -> None:
    """A stub that lies would type-check programs that cannot run, and the other way round."""
    stub = ast.parse(importlib.resources.files("gofer").joinpath("_core.pyi").read_text())
    names = {
        node.name
        for node in stub.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    }
    # What begins with _ is shared by several types, for the type checker only.
    missing = {n for n in names if not hasattr(_core, n) and not n.startswith("_")}
    assert missing == set()
    public = {name for name in vars(_core) if not name.startswith("_")}
    assert public - names == set()


def test_the_version_is_that_of_the_distribution() -> None:
    assert gofer.__version__ == importlib.metadata.version("gofer")


def test_needs_no_other_package() -> None:
    needed = importlib.metadata.requires("gofer") or []
    assert [requirement for requirement in needed if "extra ==" not in requirement] == []


def test_what_needs_other_packages_is_an_extra() -> None:
    extras = importlib.metadata.metadata("gofer").get_all("Provides-Extra")
    assert extras == ["dask", "metrics", "otel"]


def test_importing_it_starts_no_thread_and_imports_no_framework() -> None:
    end = run_program(
        """
        import os, sys, threading
        threads = len(os.listdir("/proc/self/task"))
        import gofer
        assert len(os.listdir("/proc/self/task")) == threads
        print(sorted({"asyncio", "trio", "concurrent.futures"} & set(sys.modules)))
        """
    )
    assert end.check() == "[]\n"


def test_it_can_be_imported_once_more() -> None:
    end = run_program(
        """
        import sys
        for _ in range(2):
            for name in [name for name in sys.modules if name.split(".")[0] == "gofer"]:
                del sys.modules[name]
            import gofer

            async def main():
                async with gofer.Mutex(), gofer.Semaphore(1):
                    return 5

            print(gofer.run(main))
        """
    )
    assert end.check() == "5\n5\n"


def test_importing_it_costs_little() -> None:
    """What it adds to a bare interpreter, in a program that never uses it."""

    def modules(code: str) -> int:
        show = "import sys; print(len(sys.modules))"
        command = [sys.executable, "-c", f"{code}; {show}"]
        return int(subprocess.run(command, capture_output=True, check=True).stdout)

    assert modules("import gofer") - modules("pass") < 100


@pytest.mark.parametrize("make", [lambda: gofer.sleep(1), gofer.gosched], ids=["sleep", "gosched"])
def test_the_types_of_operations_are_final_and_cannot_be_made(make: Callable[[], Any]) -> None:
    operation = make()
    with pytest.raises(TypeError):
        type(operation)()
    with pytest.raises(TypeError):
        type("Sub", (type(operation),), {})
    assert type(operation).__module__ == "gofer"
    assert type(operation).__doc__


def test_the_example_of_the_package_works() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(gofer)
    results = doctest.DocTestRunner().run(example)
    assert results.attempted > 0
    assert results.failed == 0
