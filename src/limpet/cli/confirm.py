"""The confirmation prompt before a change that cannot be undone.

Without a terminal, or with --json, a command that would ask fails unless --yes was given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from limpet.cli import exit_codes, output
from limpet.cli.output import Output, OutputMode


def require_confirmation(surface: Output, question: str, lines: Sequence[str] = (), *, yes: bool) -> None:
    """Go on if a person says so; raise Failure if there is nobody to ask, or the answer is no."""
    if yes:
        return
    if surface.mode is OutputMode.JSON or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.USAGE,
                "would_ask",
                f"this would ask: {question}",
                "There is no terminal to ask on, or --json was given. Nothing was done.",
                "To do it without being asked, add --yes.",
            )
        )
    for line in lines:
        print(output.escape_line(line), file=sys.stderr)
    print(f"{output.escape_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.FAILED, "declined", "it was not confirmed.", "Nothing was done.", "To go on, answer y."
            )
        )  # fmt: skip
