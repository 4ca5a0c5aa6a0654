"""`gofer trace`: a look at an execution trace."""

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from gofer import trace
from gofer._cli.text import UsageError, UserError, why

if TYPE_CHECKING:
    from gofer._trace.read import Trace


def _serve(loaded: "Trace", port: int, open_browser: bool) -> None:
    from gofer._trace.serve import Viewer

    with Viewer(loaded) as viewer:
        try:
            viewer.serve(port, open_browser=open_browser)
        except OSError as exc:
            raise UserError(f"cannot serve on port {port}: {why(exc)}") from None


def command(options: argparse.Namespace) -> int:
    """Show it the way that was asked for."""
    from gofer._trace.perfetto import export
    from gofer._trace.summary import summarise, text

    if not options.serve and (options.port is not None or options.no_browser):
        raise UsageError("--port and --no-browser go with --serve")
    try:
        loaded = trace.load(options.file, truncated=options.truncated)
    except trace.TraceError as exc:
        helps = "truncated" in str(exc) and not options.truncated
        hint = " (--truncated reads it as far as it goes)" if helps else ""
        raise UserError(f"{exc}{hint}") from None
    except (OSError, ValueError) as exc:  # ValueError: what cannot be mapped into memory
        reason = why(exc) if isinstance(exc, OSError) else str(exc)
        raise UserError(f"cannot read {options.file!r}: {reason}") from None
    if options.serve:
        _serve(loaded, options.port or 0, not options.no_browser)
    elif options.perfetto is not None:
        try:
            entries = export(loaded, options.perfetto)
        except OSError as exc:
            raise UserError(f"cannot write {options.perfetto!r}: {why(exc)}") from None
        print(f"{options.perfetto}: {entries:,} entries; open it at https://ui.perfetto.dev")
    elif options.json:
        json.dump(dataclasses.asdict(summarise(loaded, top=options.longest)), sys.stdout, indent=2)
        print()
    else:
        print(text(summarise(loaded, top=options.longest)))
    return 0
