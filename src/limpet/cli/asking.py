"""Before something that can't be taken back: a person is asked, and whoever can't be asked has to say --yes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from limpet.cli import exits, visible
from limpet.cli.surface import Face, Surface


def confirm(surface: Surface, question: str, lines: Sequence[str] = (), *, yes: bool) -> None:
    """Go on if a person says so; raise Failure if there is nobody to ask, or the answer is no."""
    if yes:
        return
    if surface.face is Face.JSON or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "would_ask",
                f"this would ask: {question}",
                "There is no terminal to ask on, or --json was given. Nothing was done.",
                "To do it without being asked, add --yes.",
            )
        )
    for line in lines:
        print(visible.line(line), file=sys.stderr)
    print(f"{visible.line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise exits.Failure(
            exits.Problem(
                exits.FAILED, "declined", "it was not confirmed.", "Nothing was done.", "To go on, answer y."
            )
        )  # fmt: skip
