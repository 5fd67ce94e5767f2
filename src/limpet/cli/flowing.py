"""How help looks: sentences that fill the lines there are, however wide the source is."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

from cyclopts.help import DefaultFormatter, PlainFormatter

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

_HANGING: Final = "    "
"""What is under an option stands in by so much more."""


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each in one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


class Plain(PlainFormatter):
    """For pipes."""

    def _print_plain(self, console: Console, text: str) -> None:
        first = text[: len(text) - len(text.lstrip(" "))]
        rest = first + _HANGING if first else ""
        wrapped = [
            textwrap.fill(
                part, console.width, initial_indent=first, subsequent_indent=rest,
                break_long_words=False, break_on_hyphens=False,
            )
            for part in paragraphs(text)
        ]  # fmt: skip
        console.print("\n\n".join(wrapped), highlight=False, markup=False, soft_wrap=True)


class Framed(DefaultFormatter):
    """For terminals."""

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """Render what a command does."""
        from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

        written = getattr(description, "primary_renderable", description)
        if isinstance(written, Text):
            description = Text("\n\n".join(paragraphs(written.plain)) + "\n")
        super().render_description(console, options, description)
