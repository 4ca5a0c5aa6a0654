"""`gofer demo`."""

import argparse


def command(options: argparse.Namespace) -> int:
    """Run it."""
    from gofer import _demo

    return _demo.main(
        ["--quick"] * options.quick + ["--plain"] * options.plain  # what it takes, too
    )
