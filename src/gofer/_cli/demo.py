"""`gofer demo`."""

import argparse


def command(options: argparse.Namespace) -> int:
    """Run it."""
    from gofer import _demo

    _demo.main()
    return 0
