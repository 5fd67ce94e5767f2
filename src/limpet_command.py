"""Where the `limpet` command begins: apart from the package, so that ^C is heard while that is loaded."""

from __future__ import annotations

import sys


def main() -> int:
    """Load the command line and run it; return the exit code."""
    try:
        from limpet.cli import main as run  # noqa: PLC0415 - this is what takes long

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted.\n")
        return 130
