"""Importing gofer in a subinterpreter, after and besides the main one."""

import sys

import gofer

SOURCE = """
try:
    import gofer
    text = "no error"
except ImportError as exc:
    text = f"ImportError: {exc}"
with open(path, "w") as f:
    f.write(text)
"""


def run_in_subinterpreter(path: str) -> None:
    source = f"path = {path!r}\n{SOURCE}"
    if sys.version_info >= (3, 13):
        import _interpreters as interpreters

        interp = interpreters.create()
        failure = interpreters.exec(interp, source)
        assert failure is None, failure
    else:
        import _xxsubinterpreters as interpreters  # type: ignore[import-not-found]

        interp = interpreters.create()
        interpreters.run_string(interp, source)
    interpreters.destroy(interp)


async def main() -> int:
    return 5


if __name__ == "__main__":
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "out")
        run_in_subinterpreter(path)
        with open(path) as f:
            print(f.read())
    print("main:", gofer.run(main))
