"""The `limpet` command.

`program` registers the commands, `subcommands` implements them, and `output` prints their results.
cyclopts and rich are imported only where they are needed, because the command must start quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from limpet.cli import hints

if TYPE_CHECKING:
    from cyclopts import App

    app: App


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. `limpet help exit-codes` lists the codes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    from limpet.cli import exit_codes  # noqa: PLC0415 - costs nothing but keeps this module light

    if given in ([], ["--help"], ["-h"], ["help"]):
        return exit_codes.run_guarded(lambda: print(hints.FIRST_SCREEN), as_json=False)
    return exit_codes.run_command_line(given)


def __getattr__(name: str) -> App:
    if name == "app":
        from limpet.cli import program  # noqa: PLC0415 - cyclopts is slow to import

        return program.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
