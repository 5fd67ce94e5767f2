"""Where a command prints: tables on a terminal, TSV in a pipe, one document with --json.

Data goes to stdout, notes go to stderr. Control characters in stored text are escaped, because a
terminal would obey them. Colour, width and symbols are decided here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from limpet.core.values.validation import Json


# Controls (C0, DEL, C1), line and paragraph separators, everything that turns the direction of
# writing, invisible tags and fillers, lone surrogates. Joiners stay: scripts and emoji need them.
_UNSAFE_CHARACTERS: Final = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
_UNSAFE_IN_LINE: Final = re.compile(f"[{_UNSAFE_CHARACTERS}]")
_UNSAFE_IN_TEXT: Final = re.compile(rf"(?!\n)[{_UNSAFE_CHARACTERS}]")


def escape_line(text: str) -> str:
    """Return the text as one line: every control character a symbol, newline and tab included."""
    return _UNSAFE_IN_LINE.sub(_control_symbol, text)


def escape_text(text: str) -> str:
    """Return the text with its newlines kept and tabs as spaces, every other control a symbol."""
    return _UNSAFE_IN_TEXT.sub(_control_symbol, text.replace("\r\n", "\n").expandtabs(4))


def escape_json(document: str) -> str:
    """Return a JSON document with unsafe characters inside its strings written as escapes."""
    return _UNSAFE_IN_TEXT.sub(_json_escape, document)


def _control_symbol(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{{{code:x}}}"


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


class OutputMode(Enum):
    """To whom a command speaks."""

    TERMINAL = "terminal"
    PIPE = "pipe"
    JSON = "json"


class Symbols(NamedTuple):
    """Symbols for a terminal that has them; `ASCII` for one that has not."""

    good: str
    bad: str
    warn: str
    dot: str
    to: str
    back: str
    cut: str


UNICODE_SYMBOLS = Symbols("✓", "✗", "!", "·", "→", "←", "…")
ASCII_SYMBOLS = Symbols("ok", "FAILED", "!", "-", "->", "<-", "...")


class Output:
    """Where a command prints. Made once per command."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.quiet = quiet
        self.ascii = bool(os.environ.get("LIMPET_ASCII")) or not _supports_unicode(sys.stdout)
        self.symbols = ASCII_SYMBOLS if self.ascii else UNICODE_SYMBOLS
        terminal = sys.stdout.isatty() or _colour_forced()
        self.mode = OutputMode.JSON if as_json else OutputMode.TERMINAL if terminal else OutputMode.PIPE
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """The terminal, which obeys NO_COLOR, FORCE_COLOR, TERM=dumb and COLUMNS."""
        if self._console is None:
            self._console = _new_console(sys.stdout)
        return self._console

    def print_json(self, data: Json) -> None:
        """Print one JSON document, whole values."""
        indent = 2 if sys.stdout.isatty() else None
        print(escape_json(json.dumps(data, ensure_ascii=self.ascii, indent=indent)))

    def print_row(self, *cells: object) -> None:
        """Print one TSV line: no header, no colour, nothing cut off."""
        print("\t".join(escape_line(_cell_text(cell)) for cell in cells))

    def note(self, text: str) -> None:
        """Say something beside the data."""
        if not self.quiet:
            print(escape_line(text), file=sys.stderr)

    @contextlib.contextmanager
    def hint_on_interrupt(self) -> Iterator[None]:
        """Say that what is interrupted in the body can be gone on with."""
        try:
            yield
        except KeyboardInterrupt:
            self.note("Repeat the same command: it goes on.")
            raise

    def print_sentence(self, text: str) -> None:
        """Print a sentence on a terminal."""
        from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

        self.console.print(Text(escape_line(text)), soft_wrap=True)

    def new_table(self, *headings: str) -> Table:
        """Return an empty table; a heading that begins with > makes a right-aligned column."""
        from rich.table import Table  # noqa: PLC0415 - only a terminal pays for rich

        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in headings:
            right = heading.startswith(">")
            made.add_column(
                heading.removeprefix(">"), justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
            )
        return made

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        """Print a table. What is copied stays whole; only the last column gives way."""
        taken = sum(
            max(len(heading), *(cell.cell_len for cell in cells)) + 2
            for heading, *cells in list(zip(headings, *rows, strict=True))[:-1]
        )
        table = self.new_table(*headings)
        for row in rows:
            room = max(self.console.width - taken - 1, 8)
            row[-1].truncate(room, overflow="crop" if self.ascii else "ellipsis")
            table.add_row(*row)
        self.console.print(table, soft_wrap=True)

    def print_facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names and values in two columns."""
        from rich.table import Table  # noqa: PLC0415 - only a terminal pays for rich
        from rich.text import Text  # noqa: PLC0415

        grid = Table.grid(padding=(0, 3, 0, 0))
        for name, value in pairs:
            grid.add_row(Text(name, style="bold"), Text(escape_text(value)))
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
        with bars.Progress(*columns, console=_new_console(sys.stderr)) as bar:
            task = bar.add_task(doing, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _new_console(stream: TextIO) -> Console:
    from rich.console import Console  # noqa: PLC0415 - only a terminal pays for rich

    # Rich keeps bold and dim when there is to be no colour; whoever asks for none wants plain text.
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return Console(file=stream, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto")


def _supports_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def _colour_forced() -> bool:
    return os.environ.get("FORCE_COLOR", "") not in ("", "0") and "NO_COLOR" not in os.environ
