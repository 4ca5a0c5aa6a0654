"""The command line: what there is, and what --help says of it.

The completion of shells is made from this too: see completion.py. A metavar there tells what can be
completed: FILE and SCRIPT are files, PID is a process that can be looked at.
"""

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import gofer

MAX_PROCS = 4096  # as in src/core/runtime.h

ABOUT = """\
Go's runtime scheduler for Python: run a program on it, and look into it.
"""

EXAMPLES = """\
examples:
  gofer run server.py --port 8080         run a program; its own arguments come last
  gofer run --trace x.trace server.py     and record what its scheduler does
  gofer trace x.trace --serve             look at the record in the browser
  gofer top                               watch the program that runs now
  gofer dump 1234 | less                  where does every goroutine of process 1234 stand?

Every command explains itself: gofer COMMAND --help
"""

RUN = """\
Run a Python program: a script, a directory or zip file with a __main__.py, or a module, as Python
itself would, with sys.argv, sys.path[0] and __name__ == "__main__" as it expects them.

A program that only defines `async def main()`, without parameters and without ever mentioning it
again, and that does not call gofer.run() itself, gets it run: as if its last line were
gofer.run(main). If main returns an integer, that is the exit status.

While it runs, `gofer top` and `gofer dump` can look into it, as the same user.
"""

RUN_MORE = """\
The options stand for environment variables, which work without `gofer run` as well:
  --procs N           GOMAXPROCS=N
  --schedtrace MS     GOFERDEBUG=schedtrace=MS
  --scheddetail       GOFERDEBUG=scheddetail=1
  --socket            GOFERDEBUG=socket=1
A program that passes procs= to gofer.run() has decided for itself.

The exit status is the program's own; 2 if it could not be started.
"""

TRACE = """\
Look at an execution trace: one that was recorded by `gofer run --trace`, by gofer.trace.recording()
or by a flight recorder. Without an option: a page of text. Who ran and who waited, for what, what
took longest, and how long goroutines that could run had to wait for a P.
"""

TOP = """\
Watch a running program: what its Ps, threads and goroutines do, and how often they switch, steal,
hand off and are preempted. It must have been started with `gofer run` or with GOFERDEBUG=socket=1,
by the same user. Without PID, the one program that can be watched is; if there are several, they
are listed.

Where the output is no terminal, and with --once, one picture is printed as plain text.
"""

TOP_KEYS = """\
keys:
  q, Ctrl-C     quit
  p, space      pause, go on
  s             sort goroutines by number, function, state or what they wait for
  r             the other way round
  + -           look less or more often
  arrows, j k   move through the goroutines; Home, End, PageUp, PageDown
  ?             help
"""

DUMP = """\
Print the stack of every goroutine of a running program, in Go's format: its state or what it waits
for, since when, each line of the whole chain of awaits, and who created it. The program goes on. It
must have been started with `gofer run` or with GOFERDEBUG=socket=1, by the same user.
"""

BENCH = """\
Measure gofer beside asyncio, and beside uvloop, trio and tonio if they are installed, in less than
a minute. Each figure is the best of several runs, each in a process of its own. The benchmarks of
the source repository (`make bench`) are the thorough ones.
"""

DEMO = """\
A guided tour in this terminal, in less than two minutes: goroutines that move over Ps, very many
of them, blocking calls and loops that stop nobody, a leak and a deadlock that are found.
"""

COMPLETION = """\
Print a completion script for a shell.

  bash:  source <(gofer completion bash)
  zsh:   source <(gofer completion zsh)
  fish:  gofer completion fish | source
"""


def _whole(least: int, most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(
                f"{text!r} is no whole number between {least} and {most}"
            )
        return int(text)

    return convert


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds between 0.05 and 3600")
    return value


def _pid(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise argparse.ArgumentTypeError(f"{text!r} is no process number")
    return int(text)


def _action(module: str) -> Callable[[argparse.Namespace], Any]:
    """The command's function, imported when it is called: `gofer run` needs nothing of `top`."""

    def call(options: argparse.Namespace) -> Any:
        return importlib.import_module(f"gofer._cli.{module}").command(options)

    return call


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, max_help_position=24, **more)
        self._action_max_length = 14  # it forgets that the names of commands are indented twice


def parser() -> argparse.ArgumentParser:
    """All of it."""
    top = argparse.ArgumentParser(
        prog="gofer",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"gofer {gofer.__version__}")
    commands = top.add_subparsers(dest="command", title="commands", metavar="COMMAND")

    def add(name: str, help: str, description: str, **more: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=help,
            description=description,
            formatter_class=_Formatter,
            allow_abbrev=False,
            **more,
        )
        sub.set_defaults(action=_action(name))
        return sub

    _run(add("run", "run a program", RUN, epilog=RUN_MORE, usage=RUN_USAGE))
    _top(add("top", "watch a running program", TOP, epilog=TOP_KEYS))
    _dump(add("dump", "print the goroutines of a running program", DUMP))
    _trace(add("trace", "look at an execution trace", TRACE))
    demo = add("demo", "see it work", DEMO)
    demo.add_argument("--quick", action="store_true", help="everything for a moment only")
    demo.add_argument("--plain", action="store_true", help="plain text, also in a terminal")
    _bench(add("bench", "measure it beside its peers", BENCH))
    completion = add("completion", "print a completion script for a shell", COMPLETION)
    completion.add_argument("shell", choices=["bash", "zsh", "fish"], help="for which shell")
    return top


RUN_USAGE = """\
gofer run [OPTIONS] SCRIPT [ARGS ...]
       gofer run [OPTIONS] -m MODULE [ARGS ...]"""


def _run(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--procs",
        metavar="N",
        type=_whole(1, MAX_PROCS),
        help="how many goroutines may run at once: GOMAXPROCS",
    )
    run.add_argument(
        "--schedtrace",
        metavar="MS",
        type=_whole(1, 3_600_000),
        help="print a line about the scheduler every MS milliseconds",
    )
    run.add_argument(
        "--scheddetail",
        action="store_true",
        help="with --schedtrace: a line for each P, M and goroutine as well",
    )
    run.add_argument(
        "--trace",
        metavar="FILE",
        help="record an execution trace, from the first gofer.run() to the end of the program",
    )
    run.add_argument(
        "--socket",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let `gofer top` and `gofer dump` look into it, or not (default: let them)",
    )
    run.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module, as `python -m` does",
    )
    run.add_argument(
        "program",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="the program, and its own arguments",
    )


def _top(top: argparse.ArgumentParser) -> None:
    top.add_argument("pid", metavar="PID", type=_pid, nargs="?", help="the process to watch")
    top.add_argument(
        "--interval",
        metavar="S",
        type=_seconds,
        default=1.0,
        help="seconds between two pictures (default: 1)",
    )
    top.add_argument("--once", action="store_true", help="print one picture as text")
    top.add_argument("--list", action="store_true", help="list the processes that can be watched")


def _dump(dump: argparse.ArgumentParser) -> None:
    dump.add_argument("pid", metavar="PID", type=_pid, help="the process")
    dump.add_argument(
        "--group", action="store_true", help="print equal stacks once, with their number"
    )


def _trace(trace: argparse.ArgumentParser) -> None:
    trace.add_argument("file", metavar="FILE", help="the trace")
    how = trace.add_mutually_exclusive_group()
    how.add_argument(
        "--serve",
        action="store_true",
        help="show it in the browser, from a server on the loopback interface, until Ctrl-C",
    )
    how.add_argument(
        "--perfetto",
        metavar="OUT",
        help="convert it to the JSON that ui.perfetto.dev and chrome://tracing read",
    )
    how.add_argument("--json", action="store_true", help="print the figures as JSON")
    trace.add_argument(
        "--port", metavar="N", type=_whole(0, 65535), help="with --serve: the port (default: any)"
    )
    trace.add_argument(
        "--no-browser", action="store_true", help="with --serve: only print the address"
    )
    trace.add_argument(
        "--longest",
        metavar="N",
        type=_whole(0, 1000),
        default=10,
        help="how many of the longest waits, calls and slices to tell (default: 10)",
    )
    trace.add_argument(
        "--truncated",
        action="store_true",
        help="read a file that was broken off, as far as it goes",
    )


def _bench(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("workload", nargs="*", metavar="WORKLOAD", help="which (default: all)")
    bench.add_argument(
        "--rounds",
        metavar="N",
        type=_whole(1, 100),
        default=3,
        help="runs of each, of which the best counts (default: 3)",
    )
    bench.add_argument("--json", action="store_true", help="print the figures as JSON")
