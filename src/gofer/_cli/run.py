"""`gofer run`: a program as Python would run it, with the runtime set up from the command line."""

import argparse
import atexit
import builtins
import contextlib
import dis
import importlib.machinery
import importlib.util
import inspect
import io
import os
import pkgutil
import signal
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gofer
from gofer import _watched, trace
from gofer._cli.text import UsageError, why

PACKAGE = os.path.dirname(gofer.__file__) + os.sep


@dataclass
class Program:
    """What to run, and what it should find."""

    argv: list[str]
    path0: str
    spec: importlib.machinery.ModuleSpec | None
    """Of a module; a script has none."""
    file: str
    loader: Any
    code: Callable[[], types.CodeType | None]
    """Compiles it: an error in there is the program's."""


# --- Finding it ----------------------------------------------------------------------------------


def _in_module(name: str, arguments: list[str]) -> Program:
    """What `python -m name` runs."""
    if name.startswith("."):
        raise UsageError(f"{name!r} cannot be run: give the whole name of the module")
    try:
        with _own_tracebacks():
            spec = importlib.util.find_spec(name)  # imports the packages that it is in
            if spec is not None and spec.submodule_search_locations is not None:
                package, name = name, f"{name}.__main__"
                spec = importlib.util.find_spec(name)
                if spec is None:
                    raise UsageError(f"{package} is a package without a __main__: it cannot be run")
    except ModuleNotFoundError as exc:
        if exc.name is None or not (name + ".").startswith(exc.name + "."):
            raise
        spec = None
    except ValueError as exc:
        raise UsageError(f"{name!r} cannot be run: {exc}") from None
    if spec is None:
        raise UsageError(f"there is no module named {name}")
    compiled = (importlib.machinery.BuiltinImporter, importlib.machinery.ExtensionFileLoader)
    loader: Any = spec.loader  # BuiltinImporter is a class and no instance of one
    kind = loader if isinstance(loader, type) else type(loader)
    if issubclass(kind, compiled) or not hasattr(loader, "get_code"):
        raise UsageError(f"{name} has no Python code to run")
    return _from_spec(spec, spec.name, [spec.origin or name, *arguments], os.getcwd())


def _from_spec(
    spec: importlib.machinery.ModuleSpec, name: str, argv: list[str], path0: str
) -> Program:
    loader: Any = spec.loader
    return Program(argv, path0, spec, spec.origin or "", loader, lambda: loader.get_code(name))


def _in_file(path: str, arguments: list[str]) -> Program:
    """What `python path` runs."""
    if not os.path.exists(path):
        raise UsageError(f"there is no file {path!r}")
    importer = pkgutil.get_importer(os.path.abspath(path))  # for a directory or a zip file
    if importer is not None:
        found = importer.find_spec("__main__")
        if found is None:
            raise UsageError(f"{path!r} holds no __main__.py")
        return _from_spec(found, "__main__", [path, *arguments], os.path.abspath(path))
    file = os.path.abspath(path)
    try:
        with io.open_code(file) as stream:
            source = stream.read()
    except OSError as exc:
        raise UsageError(f"cannot read {path!r}: {why(exc)}") from None

    def code() -> types.CodeType | None:
        compiled = pkgutil.read_code(io.BytesIO(source))
        return compiled or compile(source, file, "exec", dont_inherit=True)

    loader = importlib.machinery.SourceFileLoader("__main__", file)
    where = os.path.dirname(os.path.realpath(path))
    return Program([path, *arguments], where, None, file, loader, code)


def find(options: argparse.Namespace) -> Program:
    """The program that the command line names."""
    if options.module is not None:
        if not options.module:
            raise UsageError("-m needs the name of a module")
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()
        return _in_module(options.module[0], options.module[1:])
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not words:
        raise UsageError("which program? See gofer run --help")
    return _in_file(words[0], words[1:])


# --- Setting up ----------------------------------------------------------------------------------


def set_environment(options: argparse.Namespace) -> None:
    """Through the environment: for every run() in the program, and in those that it starts."""
    if options.procs is not None:
        os.environ["GOMAXPROCS"] = str(options.procs)
    items = (item.partition("=") for item in os.environ.get("GOFERDEBUG", "").split(",") if item)
    debug = {name.strip(): value for name, _, value in items}
    if options.schedtrace is not None:
        debug["schedtrace"] = str(options.schedtrace)
    if options.scheddetail:
        debug["scheddetail"] = "1"
    if options.socket is not None:
        debug["socket"] = str(int(options.socket))
    debug.setdefault("socket", "1")
    os.environ["GOFERDEBUG"] = ",".join(
        f"{name}={value}" if value else name for name, value in debug.items()
    )


class Recording:
    """--trace: from the first run() to the end of the program, however that comes."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)  # the program may go to another directory
        self.begun = False
        self.failure = "the program never called gofer.run()"
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
        except OSError as exc:
            raise UsageError(f"cannot write {path!r}: {why(exc)}") from None
        self.pid = os.getpid()
        _watched.before_first_run.append(self.begin)
        # Before gofer's own, which was registered earlier and says nothing.
        atexit.register(self.end)

    def begin(self) -> None:
        if os.getpid() == self.pid:
            try:
                trace.start(self.path)
            except (OSError, RuntimeError) as exc:  # RuntimeError: the program has its own
                self.failure = str(exc)
                return
            self.begun = True
            # Without a handler a process that is told to end has no time to complete the file.
            with contextlib.suppress(ValueError):  # not the main thread
                if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                    signal.signal(signal.SIGTERM, self.terminated)

    def terminated(self, signum: int, frame: types.FrameType | None) -> None:
        self.end()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    def end(self) -> None:
        if os.getpid() != self.pid:
            return
        if not self.begun:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            print(f"gofer run: no trace: {self.failure}", file=sys.stderr)
            return
        try:
            done = trace.stop()
        except OSError as exc:
            print(f"gofer run: the trace is not whole: {why(exc)}", file=sys.stderr)
            return
        if done is not None and done.lost:
            print(f"gofer run: {done.lost} events of the trace were lost", file=sys.stderr)


# --- Running -------------------------------------------------------------------------------------


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def mentions(code: types.CodeType, name: str) -> bool:
    """Whether the global `name` is used anywhere in this module, not only defined."""
    loads = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
    return any(
        instruction.opname in loads and instruction.argval == name
        for part in _codes(code)
        if name in part.co_names
        for instruction in dis.get_instructions(part)
    )


def forgotten_main(code: types.CodeType, module: dict[str, Any]) -> Callable[[], Any] | None:
    """The async main of a program that defines one and does nothing with it."""
    main = module.get("main")
    if (
        isinstance(main, types.FunctionType)
        and inspect.iscoroutinefunction(main)
        and main.__module__ == "__main__"
        and not mentions(code, "main")
        and not inspect.signature(main).parameters
    ):
        return main
    return None


def _without_ours(tb: types.TracebackType | None) -> types.TracebackType | None:
    while tb is not None and (
        tb.tb_frame.f_code.co_filename.startswith((PACKAGE, "<frozen importlib", "<frozen runpy"))
    ):
        tb = tb.tb_next
    return tb


@contextlib.contextmanager
def _own_tracebacks() -> Iterator[None]:
    """What the program raises is shown without the frames of who started it.

    It goes on outward all the same, so that Python does with it what it does with any program's.
    """
    try:
        yield
    except (SystemExit, UsageError):
        raise
    except BaseException as exc:
        user = _without_ours(exc.__traceback__)
        hook, raised = sys.excepthook, exc

        def show(
            kind: type[BaseException], value: BaseException, tb: types.TracebackType | None
        ) -> None:
            if value is raised:
                value.__traceback__ = tb = user
            hook(kind, value, tb)

        sys.excepthook = show
        raise


def execute(program: Program) -> int:
    """Run it. Its result is the exit status, unless it raises something."""
    ran: list[bool] = []
    _watched.before_first_run.append(lambda: ran.append(True))
    sys.argv[:] = program.argv
    if not sys.flags.safe_path:
        sys.path[0] = program.path0
    main = types.ModuleType("__main__")
    package = program.spec.parent if program.spec is not None else None
    vars(main).update(
        __file__=program.file,
        __cached__=None,
        __loader__=program.loader,
        __package__=package,
        __spec__=program.spec,
        __builtins__=builtins,
    )
    sys.modules["__main__"] = main
    with _own_tracebacks():
        code = program.code()
        if code is None:
            raise ImportError(f"{program.file} has no Python code to run")
        exec(code, vars(main))
        forgotten = None if ran else forgotten_main(code, vars(main))
        if forgotten is not None:
            status = gofer.run(forgotten)
            return status if isinstance(status, int) and not isinstance(status, bool) else 0
    return 0


def command(options: argparse.Namespace) -> Callable[[], int]:
    """Find the program and set all up; running it is what this returns."""
    program = find(options)
    set_environment(options)
    if options.trace is not None:
        Recording(options.trace)
    return lambda: execute(program)
