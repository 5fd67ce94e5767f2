"""The three faces of every command: a terminal gets tables, a pipe plain TSV, --json one document.

Data goes to stdout, talk to stderr. What a table shows is always in the JSON as well. Nothing but
this module and the demo's stage decides about colour, width or symbols.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TextIO

from limpet.cli import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from limpet.core.values.json_values import Json


class Face(Enum):
    """To whom a command speaks."""

    TERMINAL = "terminal"
    PIPE = "pipe"
    JSON = "json"


class Glyphs(NamedTuple):
    """Symbols for a terminal that has them; `ASCII` for one that has not."""

    good: str
    bad: str
    warn: str
    dot: str
    to: str
    back: str
    cut: str


UNICODE = Glyphs("✓", "✗", "!", "·", "→", "←", "…")
ASCII = Glyphs("ok", "FAILED", "!", "-", "->", "<-", "...")


class Surface:
    """Where a command prints. Made once per command."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.quiet = quiet
        self.ascii = bool(os.environ.get("LIMPET_ASCII")) or not _unicode(sys.stdout)
        self.glyphs = ASCII if self.ascii else UNICODE
        terminal = sys.stdout.isatty() or _forced()
        self.face = Face.JSON if as_json else Face.TERMINAL if terminal else Face.PIPE
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """The terminal, which obeys NO_COLOR, FORCE_COLOR, TERM=dumb and COLUMNS."""
        if self._console is None:
            self._console = _console(sys.stdout)
        return self._console

    def document(self, data: Json) -> None:
        """Print one JSON document, whole values."""
        indent = 2 if sys.stdout.isatty() else None
        print(visible.json_text(json.dumps(data, ensure_ascii=self.ascii, indent=indent)))

    def row(self, *cells: object) -> None:
        """Print one TSV line: no header, no colour, nothing cut off."""
        print("\t".join(visible.line(_cell(cell)) for cell in cells))

    def note(self, text: str) -> None:
        """Say something beside the data."""
        if not self.quiet:
            print(visible.line(text), file=sys.stderr)

    @contextlib.contextmanager
    def repeatable(self) -> Iterator[None]:
        """Say that what is interrupted in the body can be gone on with."""
        try:
            yield
        except KeyboardInterrupt:
            self.note("Repeat the same command: it goes on.")
            raise

    def say(self, text: str) -> None:
        """Print a sentence on a terminal."""
        from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

        self.console.print(Text(visible.line(text)), soft_wrap=True)

    def table(self, *headings: str) -> Table:
        """Return an empty table; a heading that begins with > makes a right-aligned column."""
        from rich.table import Table  # noqa: PLC0415 - only a terminal pays for rich

        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in headings:
            right = heading.startswith(">")
            made.add_column(
                heading.removeprefix(">"),
                justify="right" if right else "left",
                no_wrap=True,
                overflow="ellipsis",
            )
        return made

    def listed(self, headings: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        """Print a table. What is copied stays whole; only the last column gives way."""
        taken = sum(
            max(len(heading), *(cell.cell_len for cell in cells)) + 2
            for heading, *cells in list(zip(headings, *rows, strict=True))[:-1]
        )
        table = self.table(*headings)
        for row in rows:
            room = max(self.console.width - taken - 1, 8)
            row[-1].truncate(room, overflow="crop" if self.ascii else "ellipsis")
            table.add_row(*row)
        self.console.print(table, soft_wrap=True)

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names and values in two columns."""
        from rich.table import Table  # noqa: PLC0415 - only a terminal pays for rich
        from rich.text import Text  # noqa: PLC0415

        grid = Table.grid(padding=(0, 3, 0, 0))
        for name, value in pairs:
            grid.add_row(Text(name, style="bold"), Text(visible.lines(value)))
        self.console.print(grid)

    @contextlib.contextmanager
    def progress(self, doing: str) -> Iterator[Callable[[int, int], None]]:
        """Show how far the body is, on stderr, if a person is watching; yield what it calls."""
        if self.quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield lambda _done, _total: None
            return
        from rich import progress as bars  # noqa: PLC0415 - only a terminal pays for rich

        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=32),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
        )
        with bars.Progress(*columns, console=_console(sys.stderr)) as bar:
            task = bar.add_task(doing, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _console(stream: TextIO) -> Console:
    from rich.console import Console  # noqa: PLC0415 - only a terminal pays for rich

    # Rich keeps bold and dim when there is to be no colour; whoever asks for none wants plain text.
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if plain else "auto",
    )


def _unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def _forced() -> bool:
    return os.environ.get("FORCE_COLOR", "") not in ("", "0") and "NO_COLOR" not in os.environ
