"""`gofer dump`: the goroutines of a running program."""

import argparse
import sys

from gofer._cli.attach import attach
from gofer._cli.text import printable


def command(options: argparse.Namespace) -> int:
    """Print them."""
    with attach(options.pid) as link:
        text: str = link.ask("dump", timeout=120.0, group=options.group)
    if sys.stdout.isatty():
        text = printable(text, "\n\t")
    sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
    return 0
