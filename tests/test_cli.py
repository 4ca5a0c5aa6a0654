"""The command line, as users type it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gofer as package
from gofer import trace
from tests.cli_support import GOFER, environment, fails, gofer, script
from tests.support import FREE_THREADED, PATIENCE, Finished

CONSOLE = Path(sys.executable).parent / "gofer"


# --- The command itself --------------------------------------------------------------------------


def test_the_console_script_and_the_module_are_the_same() -> None:
    by_script = gofer("--version", command=[str(CONSOLE)])
    assert by_script == gofer("--version")
    assert by_script.check() == f"gofer {package.__version__}\n"


def test_without_a_command_it_shows_its_help_and_fails() -> None:
    end = gofer()
    fails(end, 2, "usage: gofer", "examples:")
    assert end.stdout == ""


def test_help_names_every_command_and_every_command_has_help() -> None:
    out = gofer("--help").check()
    names = ["run", "top", "dump", "trace", "demo", "bench", "completion"]
    for name in names:
        assert re.search(rf"^ +{name} ", out, re.MULTILINE), name
        of_command = gofer(name, "--help").check()
        assert f"gofer {name}" in of_command
        assert len(of_command.splitlines()) >= 7
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["run"],
        ["run", "-m"],
        ["run", "--nonsense", "x.py"],
        ["run", "--procs", "0", "x.py"],
        ["run", "--procs", "many", "x.py"],
        ["run", "--procs", "5000", "x.py"],
        ["run", "--schedtrace", "-1", "x.py"],
        ["run", "no such file.py"],
        ["run", "-m", "no_such_module"],
        ["run", "-m", "os.no_such_module"],
        ["run", "-m", "json.decoder.no_such_module"],
        ["run", "-m", "concurrent"],
        ["run", "-m", "..x"],
        ["run", "-m", "sys"],
        ["run", "."],
        ["run", "--trace", "no such directory/x.trace", __file__],
        ["dump"],
        ["dump", "abc"],
        ["dump", "-5"],
        ["dump", "99999999999"],
        ["top", "abc"],
        ["top", "--interval", "0"],
        ["trace"],
        ["trace", "--port", "1", "x.trace"],
        ["trace", "--json", "--serve", "x.trace"],
        ["bench", "nonsense"],
        ["completion", "tcsh"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_told_and_the_status_is_2(
    arguments: list[str], tmp_path: Path
) -> None:
    end = gofer(*arguments, cwd=tmp_path)
    fails(end, 2)
    assert end.stderr
    assert end.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_closes_is_no_error_to_speak_of(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*GOFER, "completion", "bash"],
            stdout=closed,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=PATIENCE,
        )
    assert done.returncode == 1
    assert done.stderr == b""


PRINTING = [
    ["--help"],
    ["--version"],
    ["trace", "--help"],
    ["completion", "bash"],
    ["top", "--list"],
    ["demo", "--quick"],
]


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_output_that_cannot_be_written_is_told_in_a_line(
    arguments: list[str], unbuffered: str
) -> None:
    env = environment(PYTHONUNBUFFERED=unbuffered)
    shell = ["sh", "-c", '"$@" >/dev/full', "sh", *GOFER]
    told = "gofer: cannot write to standard output: No space left on device\n"
    assert gofer(*arguments, command=shell, env=env) == Finished(1, "", told)
    shell = ["sh", "-c", '"$@" >&-', "sh", *GOFER]
    told = "gofer: cannot write to standard output: Bad file descriptor\n"
    assert gofer(*arguments, command=shell, env=env) == Finished(1, "", told)


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_pipe_that_closes_is_silent_for_every_command(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*GOFER, *arguments],
            stdout=closed,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=PATIENCE,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_without_output_nothing_else_changes(tmp_path: Path) -> None:
    """Mistakes are told, and a program that prints nothing runs with what Python gives it."""
    shell = ["sh", "-c", '"$@" >&-', "sh", *GOFER]
    fails(gofer("trace", "nothing", command=shell, cwd=tmp_path), 1, "gofer trace: ", "nothing")
    fails(gofer("nonsense", command=shell, cwd=tmp_path), 2, "usage: gofer")
    path = script(tmp_path, "import sys; sys.exit(7 if sys.stdout is None else 8)")
    assert gofer("run", path, command=shell) == Finished(7, "", "")


# --- gofer run: as Python would ------------------------------------------------------------------

SHOW = """
    import json, sys
    print(json.dumps({
        "name": __name__,
        "file": __file__,
        "argv": sys.argv,
        "path0": sys.path[0],
        "package": __package__,
        "spec": __spec__ and __spec__.name,
        "main": sys.modules["__main__"].__dict__ is globals(),
        "loader": type(__loader__).__name__,
        "builtins": type(__builtins__).__name__,
    }))
"""


def compare(arguments: list[str], cwd: Path) -> dict[str, object]:
    """What the program sees is what it sees under python itself."""
    ours = json.loads(gofer("run", *arguments, cwd=cwd).check())
    pythons = json.loads(gofer(*arguments, cwd=cwd, command=[sys.executable]).check())
    assert ours == pythons
    return dict(ours)


def test_a_script_finds_what_it_expects(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    script(tmp_path / "deep", SHOW)
    seen = compare(["deep/prog.py", "--help", "-x", "--", "a b", ""], tmp_path)
    assert seen["argv"] == ["deep/prog.py", "--help", "-x", "--", "a b", ""]
    assert seen["path0"] == str(tmp_path / "deep")


def test_a_link_to_a_script_is_followed(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    script(tmp_path / "deep", SHOW)
    (tmp_path / "link.py").symlink_to("deep/prog.py")
    assert compare(["link.py"], tmp_path)["path0"] == str(tmp_path / "deep")


def test_a_module_finds_what_it_expects(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    script(tmp_path / "pack", "", "__init__.py")
    script(tmp_path / "pack", SHOW, "__main__.py")
    script(tmp_path / "pack", SHOW, "mod.py")
    assert compare(["-m", "pack", "-m", "--procs", "7"], tmp_path)["package"] == "pack"
    assert compare(["-m", "pack.mod", "x"], tmp_path)["spec"] == "pack.mod"
    assert compare(["-m", "pack.__main__"], tmp_path)["path0"] == str(tmp_path)


def test_a_directory_and_a_zip_file_are_programs(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    script(tmp_path / "app", SHOW, "__main__.py")
    compare(["app", "x"], tmp_path)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(tmp_path / "app" / "__main__.py", "__main__.py")
    compare(["app.zip", "-y"], tmp_path)


def test_a_compiled_script_is_a_program(tmp_path: Path) -> None:
    import py_compile

    path = script(tmp_path, "print('compiled')")
    py_compile.compile(str(path), str(tmp_path / "prog.pyc"))
    assert gofer("run", tmp_path / "prog.pyc").check() == "compiled\n"


def test_what_it_defines_can_be_pickled(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import pickle
        class Thing: pass
        print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)
        """,
    )
    assert gofer("run", path).check() == "True\n"


def test_processes_that_it_spawns_find_its_functions(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import multiprocessing

        def double(n):
            return 2 * n

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        """,
    )
    assert gofer("run", path).check() == "[2, 4]\n"


@pytest.mark.parametrize(
    ("last", "status", "err"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no good')", 1, "no good\n"),
        ("os._exit(9)", 9, ""),
        ("os.kill(os.getpid(), 15)", -15, ""),
    ],
)
def test_the_exit_status_is_the_programs(last: str, status: int, err: str, tmp_path: Path) -> None:
    path = script(tmp_path, f"import os, sys\n{last}\n")
    assert gofer("run", path) == Finished(status, "", err)


def test_tracebacks_show_the_programs_frames_only(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import gofer

        async def main():
            raise ValueError("broken")

        def start():
            gofer.run(main)

        start()
        """,
    )
    ours = gofer("run", path)
    pythons = gofer(path, command=[sys.executable])
    assert ours == pythons
    assert ours.returncode == 1
    assert "ValueError: broken" in ours.stderr
    for where in ("_cli", "runpy", "__main__.py"):
        assert where not in ours.stderr


def test_an_error_of_syntax_is_the_programs(tmp_path: Path) -> None:
    path = script(tmp_path, "def x(:\n    pass\n")
    ours = gofer("run", path)
    assert ours == gofer(path, command=[sys.executable])
    assert "SyntaxError" in ours.stderr


def test_the_programs_own_excepthook_is_called(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import sys, traceback
        def hook(kind, exc, tb):
            print(kind.__name__, len(traceback.extract_tb(tb)))
        sys.excepthook = hook
        1 / 0
        """,
    )
    assert gofer("run", path) == Finished(1, "ZeroDivisionError 1\n", "")


def test_an_import_that_fails_is_shown_as_the_programs(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    script(tmp_path / "pack", "import nothing_of_this_name", "__init__.py")
    script(tmp_path / "pack", "", "mod.py")
    end = gofer("run", "-m", "pack.mod", cwd=tmp_path)
    assert end.returncode == 1
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in end.stderr
    assert "_cli" not in end.stderr


def test_an_interrupt_ends_it_as_it_would_end_python(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import gofer
        async def main():
            print("up", flush=True)
            try:
                await gofer.sleep(1000)
            finally:
                print("cleaned up", flush=True)
        gofer.run(main)
        """,
    )
    with subprocess.Popen(
        [*GOFER, "run", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert out == "cleaned up\n"
    assert "KeyboardInterrupt" in err
    assert "_cli" not in err


# --- gofer run: a main that nobody calls ---------------------------------------------------------


def run_source(source: str, tmp_path: Path, *options: str) -> Finished:
    return gofer("run", *options, script(tmp_path, source))


def test_an_async_main_that_nobody_mentions_is_run(tmp_path: Path) -> None:
    source = """
        import gofer
        async def main():
            print("goroutine", gofer.current().id, gofer.current().name)
        """
    assert run_source(source, tmp_path).check() == "goroutine 1 main\n"


def test_what_it_returns_is_the_exit_status_if_it_is_an_integer(tmp_path: Path) -> None:
    for value, status in (("3", 3), ("None", 0), ("True", 0), ("'text'", 0)):
        end = run_source(f"async def main():\n    return {value}\n", tmp_path)
        assert end == Finished(status, "", "")


@pytest.mark.parametrize(
    "source",
    [
        "import gofer\nasync def main(): print('main')\ngofer.run(main)",
        "import asyncio\nasync def main(): print('main')\nasyncio.run(main())",
        (
            "import asyncio\nasync def main(): print('main')\n"
            "def start(): asyncio.run(main())\nstart()"
        ),
        (
            "import gofer\nasync def main(): print('not this')\n"
            "async def other(): print('main')\ngofer.run(other)"
        ),
        "def main(): print('not this')\nprint('main')",
        "async def main(argument): print('not this')\nprint('main')",
        "class A:\n    async def main(self): print('not this')\nmain = A().main\nprint('main')",
    ],
)
def test_a_main_that_is_called_or_cannot_be_is_not_run(source: str, tmp_path: Path) -> None:
    assert run_source(source, tmp_path).check() == "main\n"


def test_its_traceback_begins_with_itself(tmp_path: Path) -> None:
    end = run_source("async def main():\n    1 / 0\n", tmp_path)
    assert end.returncode == 1
    assert re.findall(r'File ".*/(.+?)"', end.stderr) == ["prog.py"]


# --- gofer run: options --------------------------------------------------------------------------


def test_procs_and_the_environment(tmp_path: Path) -> None:
    source = """
        import gofer, os
        async def main():
            print(gofer.gomaxprocs(), os.environ["GOMAXPROCS"], os.environ["GOFERDEBUG"])
        gofer.run(main)
        """
    out = run_source(source, tmp_path, "--procs", "3", "--no-socket").check()
    assert out == "3 3 socket=0\n"
    path = script(tmp_path, source)
    env = environment(GOFERDEBUG="socket=0,asyncpreemptoff=1", GOMAXPROCS="2")
    assert gofer("run", path, env=env).check() == "2 2 socket=0,asyncpreemptoff=1\n"
    out = gofer("run", "--socket", "--schedtrace=100000", "--scheddetail", path, env=env).stdout
    assert out == "2 2 socket=1,asyncpreemptoff=1,schedtrace=100000,scheddetail=1\n"


def test_the_scheduler_tells_of_itself(tmp_path: Path) -> None:
    source = """
        import gofer
        async def main():
            await gofer.sleep(1)
        gofer.run(main)
        """
    end = run_source(source, tmp_path, "--procs", "2", "--schedtrace", "50")
    lines = end.stderr.splitlines()
    assert len(lines) >= 3
    assert all(re.match(r"SCHED \d+ms: gomaxprocs=2 idleprocs=\d ", line) for line in lines)
    end = run_source(source, tmp_path, "--schedtrace", "50", "--scheddetail")
    assert re.search(r"^  P0: status=", end.stderr, re.MULTILINE)


TRACED = """
    import os, signal, sys
    import gofer

    async def worker():
        await gofer.sleep(0.001)

    async def main():
        await gofer.go(worker, name="a worker")

    gofer.run(main)
    gofer.run(main)
    {}
"""


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("pass", 0),
        ("sys.exit(5)", 5),
        ("raise ValueError('broken')", 1),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.chdir('/')", 0),
    ],
)
def test_the_trace_is_whole_however_the_program_ends(
    last: str, status: int, tmp_path: Path
) -> None:
    script(tmp_path, TRACED.format(last))
    end = gofer("run", "--trace", "x.trace", "prog.py", cwd=tmp_path)
    assert end.returncode == status, end
    t = trace.load(tmp_path / "x.trace")
    assert t.exact
    assert t.raw["runs"] == 2
    assert [g.name for g in t.goroutines].count("a worker") == 2


def test_the_trace_of_a_run_that_is_interrupted_is_whole(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        """
        import gofer
        async def main():
            print("up", flush=True)
            await gofer.sleep(1000)
        gofer.run(main)
        """,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(
            [*GOFER, "run", "--trace", str(tmp_path / "x.trace"), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            process.send_signal(number)
            process.communicate(timeout=PATIENCE)
        assert process.returncode == -number
        assert trace.load(tmp_path / "x.trace").num_goroutines == 1


def test_a_program_that_runs_nothing_leaves_no_trace(tmp_path: Path) -> None:
    script(tmp_path, "print('done')")
    end = gofer("run", "--trace", "x.trace", "prog.py", cwd=tmp_path)
    assert end.returncode == 0
    assert end.stdout == "done\n"
    assert "never called gofer.run()" in end.stderr
    assert not (tmp_path / "x.trace").exists()


def test_a_program_that_records_for_itself_is_left_to_it(tmp_path: Path) -> None:
    source = """
        import gofer
        async def main(): pass
        with gofer.trace.recording("own.trace"):
            gofer.run(main)
        """
    script(tmp_path, source)
    end = gofer("run", "--trace", "x.trace", "prog.py", cwd=tmp_path)
    assert end.returncode == 0
    assert "no trace: a trace is being recorded already, to own.trace" in end.stderr
    assert trace.load(tmp_path / "own.trace").num_goroutines == 1
    assert not (tmp_path / "x.trace").exists()


# --- gofer trace ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("traced")
    script(where, TRACED.format("pass"))
    gofer("run", "--trace", "x.trace", "prog.py", cwd=where).check()
    return where / "x.trace"


def test_a_trace_as_text_and_as_figures(traced: Path) -> None:
    out = gofer("trace", traced).check()
    assert out.startswith("prog.py: ")
    assert "a worker" in out
    figures = json.loads(gofer("trace", "--json", traced).check())
    assert figures["goroutines"] == 4
    assert {f["name"] for f in figures["functions"]} == {"main", "a worker"}
    assert "longest waits" not in gofer("trace", "--longest", "0", traced).check()


def test_a_trace_whose_text_cannot_be_written(traced: Path) -> None:
    shell = ["sh", "-c", '"$@" >/dev/full', "sh", *GOFER]
    told = "gofer: cannot write to standard output: No space left on device\n"
    assert gofer("trace", traced, command=shell) == Finished(1, "", told)
    assert gofer("trace", traced, "--json", command=shell) == Finished(1, "", told)


def test_a_trace_for_perfetto(traced: Path, tmp_path: Path) -> None:
    assert "x.json: " in gofer("trace", traced, "--perfetto", "x.json", cwd=tmp_path).check()
    assert json.loads((tmp_path / "x.json").read_text())["traceEvents"]


def test_a_trace_in_the_viewer(traced: Path) -> None:
    import urllib.request

    with subprocess.Popen(
        [*GOFER, "trace", str(traced), "--serve", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        found = re.match(r"(http://127\.0\.0\.1:(\d+)/)", process.stdout.readline())
        assert found
        with urllib.request.urlopen(found[1], timeout=PATIENCE) as answer:
            assert b"<!doctype html>" in answer.read(100).lower()
        taken = gofer("trace", traced, "--serve", "--no-browser", "--port", found[2])
        fails(taken, 1, f"port {found[2]}")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")


def test_bad_trace_files(traced: Path, tmp_path: Path) -> None:
    fails(gofer("trace", "nothing", cwd=tmp_path), 1, "nothing", "No such file")
    fails(gofer("trace", tmp_path), 1, "Is a directory")
    (tmp_path / "text").write_text("hello, world\n" * 10)
    fails(gofer("trace", "text", cwd=tmp_path), 1, "text: ", "no gofer trace")
    (tmp_path / "empty").touch()
    fails(gofer("trace", "empty", cwd=tmp_path), 1, "empty")
    (tmp_path / "cut").write_bytes(traced.read_bytes()[:-20])
    fails(gofer("trace", "cut", cwd=tmp_path), 1, "truncated", "--truncated")
    assert "prog.py: " in gofer("trace", "cut", "--truncated", cwd=tmp_path).check()
    (tmp_path / "stub").write_bytes(traced.read_bytes()[:5])
    fails(gofer("trace", "stub", cwd=tmp_path), 1, "truncated", "--truncated")
    end = gofer("trace", "stub", "--truncated", cwd=tmp_path)
    fails(end, 1, "truncated")
    assert "--truncated" not in end.stderr  # it was given, and did not help
    fails(gofer("trace", traced, "--perfetto", "no/where.json", cwd=tmp_path), 1, "no/where.json")


# --- gofer bench, gofer demo ---------------------------------------------------------------------


def test_the_benchmark_compares_with_asyncio(tmp_path: Path) -> None:
    out = gofer("bench", "pingpong", "yield", "--rounds", "1", cwd=tmp_path).check()
    assert "asyncio" in out
    assert re.search(r"^ping-pong, round trip .*\d [nµm]?s +\d+\.\dx", out, re.MULTILINE), out
    record = json.loads(gofer("bench", "mutex", "--rounds=1", "--json", cwd=tmp_path).check())
    assert record["gofer"] == package.__version__
    assert {r["runtime"] for r in record["results"]} >= {"gofer", "asyncio"}
    assert all(r["workload"] == "mutex" and r["ns"] > 0 for r in record["results"])


def test_every_workload_of_the_benchmark_works_on_gofer_and_asyncio() -> None:
    from gofer._cli.bench_work import WORKLOADS, measure

    for name in WORKLOADS:
        for runtime in ("gofer", "asyncio"):
            if runtime == "gofer" or name == "spawn":
                assert 0 < measure(name, runtime, 1) < 1e9
    if FREE_THREADED:
        assert measure("mutex", "gofer", 2) > 0


def test_the_demo_is_in_the_package() -> None:
    from gofer import _demo

    assert callable(_demo.main)


# --- Completion ----------------------------------------------------------------------------------


def complete(line: str, tmp_path: Path) -> list[str]:
    """What bash offers at the end of this line."""
    file = tmp_path / "completion"
    if not file.exists():
        file.write_text(gofer("completion", "bash").check())
    bash = f"""
        source {file}
        COMP_LINE={line!r}
        read -ra COMP_WORDS <<< "$COMP_LINE"
        [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        compopt() {{ :; }}
        _gofer
        printf '%s\\n' "${{COMPREPLY[@]}}"
        """
    done = subprocess.run(
        ["bash", "--norc", "-c", bash], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_files(tmp_path: Path) -> None:
    (tmp_path / "file.py").touch()
    everything = complete("gofer ", tmp_path)
    assert {"run", "top", "dump", "trace", "demo", "bench", "completion"} <= set(everything)
    assert complete("gofer tr", tmp_path) == ["trace"]
    assert "--procs" in complete("gofer run --", tmp_path)
    assert complete("gofer run --pr", tmp_path) == ["--procs"]
    assert complete("gofer run fi", tmp_path) == ["file.py"]
    assert complete("gofer run --trace fi", tmp_path) == ["file.py"]
    assert complete("gofer run --procs ", tmp_path) == []
    assert complete("gofer completion ", tmp_path) == ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_well_formed(shell: str, tmp_path: Path) -> None:
    out = gofer("completion", shell).check()
    assert "scheddetail" in out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its syntax is not checked")
    file = tmp_path / "completion"
    file.write_text(out)
    subprocess.run([shell, "-n", str(file)], check=True, timeout=PATIENCE)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_and_options(tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(gofer("completion", "fish").check())

    def offered(line: str) -> list[str]:
        command = f"source completion; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(HOME=str(tmp_path)),
            timeout=PATIENCE,
        )
        assert done.stderr == ""
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert {"run", "top", "dump", "trace"} <= set(offered("gofer "))
    assert "--procs" in offered("gofer run --")
    assert offered("gofer completion ") == ["bash", "fish", "zsh"]
    assert offered("gofer trace comp") == ["completion"]
