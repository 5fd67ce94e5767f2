"""The output of a command: tables on a terminal, TSV in a pipe, one JSON document with --json.

Data goes to stdout; notes and questions go to stderr. Control characters in stored text are escaped, because a
terminal would execute them. Colour, width and symbols are chosen here. Also formats counts, sizes and times.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from limpet.cli.options import OutputOptions
    from limpet.core.values.validation import Json


Cell = str | tuple[str, str]
"""A cell of a table: its text, or its text and style."""


# Controls (C0, DEL, C1), line and paragraph separators, everything that turns the direction of
# writing, invisible tags and fillers, lone surrogates. Joiners stay: scripts and emoji need them.
_UNSAFE_CHARACTERS: Final = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
_UNSAFE_IN_LINE: Final = re.compile(f"[{_UNSAFE_CHARACTERS}]")
_UNSAFE_IN_TEXT: Final = re.compile(rf"(?!\n)[{_UNSAFE_CHARACTERS}]")


def escape_line(text: str) -> str:
    """Return the text as one line, with control characters replaced by symbols, newline and tab included."""
    return _UNSAFE_IN_LINE.sub(_control_symbol, text)


def escape_text(text: str) -> str:
    """Return the text with tabs as spaces and control characters other than newline replaced by symbols."""
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
    """The form in which a command prints."""

    TERMINAL = "terminal"
    PIPE = "pipe"
    JSON = "json"


class Symbols(NamedTuple):
    """The symbols of the output."""

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
    """Prints the results and notes of one command."""

    def __init__(self, options: OutputOptions) -> None:
        self.quiet = options.quiet
        self.ascii = bool(os.environ.get("LIMPET_ASCII")) or not _supports_unicode(sys.stdout)
        self.symbols = ASCII_SYMBOLS if self.ascii else UNICODE_SYMBOLS
        terminal = sys.stdout.isatty() or _colour_forced()
        self.mode = OutputMode.JSON if options.json else OutputMode.TERMINAL if terminal else OutputMode.PIPE
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """The rich console, which follows NO_COLOR, FORCE_COLOR, TERM=dumb and COLUMNS."""
        if self._console is None:
            self._console = _new_console(sys.stdout)
        return self._console

    def print_json(self, data: Json) -> None:
        """Print one JSON document."""
        indent = 2 if sys.stdout.isatty() else None
        print(escape_json(json.dumps(data, ensure_ascii=self.ascii, indent=indent)))

    def print_row(self, *cells: object) -> None:
        """Print one TSV line, without truncation."""
        print("\t".join(escape_line(_cell_text(cell)) for cell in cells))

    def print_data(self, document: Json, rows: Iterable[Sequence[object]]) -> bool:
        """Print the document with --json, or the rows as TSV in a pipe. Return False on a terminal, and print nothing."""
        if self.mode is OutputMode.JSON:
            self.print_json(document)
        elif self.mode is OutputMode.PIPE:
            for row in rows:
                self.print_row(*row)
        return self.mode is not OutputMode.TERMINAL

    def note(self, text: str) -> None:
        """Print a note on stderr, unless --quiet is given."""
        if not self.quiet:
            print(escape_line(text), file=sys.stderr)

    @contextlib.contextmanager
    def hint_on_interrupt(self) -> Iterator[None]:
        """Print a hint if the body is interrupted: the same command continues the work."""
        try:
            yield
        except KeyboardInterrupt:
            self.note("Repeat the same command to continue.")
            raise

    def confirm(self, question: str, lines: Sequence[str] = (), *, yes: bool) -> None:
        """Ask for confirmation unless `yes` is set. Raise CommandFailure without a terminal, or if the answer is not yes."""
        if yes:
            return
        from limpet.cli import exit_codes  # noqa: PLC0415 - it prints with this module

        if self.mode is OutputMode.JSON or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise exit_codes.usage_failure(
                f"this command asks: {question}",
                "To confirm in advance, add --yes.",
                "There is no terminal for the question, or --json was given. Nothing was done.",
                "would_ask",
            )
        for line in lines:
            print(escape_line(line), file=sys.stderr)
        print(f"{escape_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise exit_codes.failure(
                exit_codes.FAILED,
                "declined",
                "the question was not answered with y.",
                "Nothing was done.",
                "To continue, answer y.",
            )

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line on a terminal."""
        self.print_head((text, style))

    def print_head(self, *parts: Cell) -> None:
        """Print styled parts as one line on a terminal. The terminal wraps the line, so that it can be copied whole."""
        from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

        cells = ((part, "") if isinstance(part, str) else part for part in parts)
        self.console.print(Text.assemble(*((escape_line(text), style) for text, style in cells)), soft_wrap=True)

    def print_block(self, text: str, style: str = "", indent: int = 0) -> None:
        """Print a text wrapped to the width of the terminal, with its newlines."""
        from rich.padding import Padding  # noqa: PLC0415 - only a terminal pays for rich
        from rich.text import Text  # noqa: PLC0415

        shown = Text(escape_text(text), style=style)
        self.console.print(Padding(shown, (0, 0, 0, indent)) if indent else shown)

    def print_truncated(self, text: str) -> None:
        """Print a line cut to the width of the terminal."""
        from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

        shown = Text(escape_line(text))
        shown.truncate(self.console.width, overflow="crop" if self.ascii else "ellipsis")
        self.console.print(shown, soft_wrap=True)

    def print_outcome(self, head: str, rest: str, style: str = "bold green") -> None:
        """Print the result of a command: `head` in the style, then `rest`."""
        self.console.print(head, style=style, end="")
        self.console.print(f"   {rest}")

    def new_table(self, *headings: str) -> Table:
        """Return an empty table; a heading that begins with > makes a right-aligned column."""
        from rich.table import Table  # noqa: PLC0415 - only a terminal pays for rich

        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in headings:
            side = "right" if heading.startswith(">") else "left"
            made.add_column(heading.removeprefix(">"), justify=side, no_wrap=True, overflow="ellipsis")
        return made

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Print a table. Only the last column is truncated, so that ids can be copied."""
        from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

        cells = ([(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows)
        lines = [[Text(escape_line(text), style=style) for text, style in row] for row in cells]
        taken = sum(
            max([len(heading), *(cell.cell_len for cell in column)]) + 2
            for heading, *column in list(zip(headings, *lines, strict=True))[:-1]
        )
        table = self.new_table(*headings)
        for line in lines:
            room = max(self.console.width - taken - 1, 8)
            line[-1].truncate(room, overflow="crop" if self.ascii else "ellipsis")
            table.add_row(*line)
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
        """Show a progress bar on stderr if it is a terminal; yield the function that updates it with (done, total)."""
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

    # Without colour, rich would still print bold and dim; NO_COLOR asks for plain text.
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return Console(file=stream, highlight=False, markup=False, emoji=False, color_system=None if plain else "auto")


def _supports_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")


def _colour_forced() -> bool:
    return os.environ.get("FORCE_COLOR", "") not in ("", "0") and "NO_COLOR" not in os.environ


def quantity(number: int, noun: str) -> str:
    """Return "1 event", "2,000 events"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def byte_size(number: float) -> str:
    """Format a number of bytes, such as "1.2 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def relative_time(moment: str) -> str:
    """Format an ISO 8601 time relative to now, such as "5 min ago"."""
    from limpet.core.values import ids  # noqa: PLC0415 - an error message does not need it

    seconds = time.time() - ids.microseconds(moment) / 1_000_000
    if seconds < 60:
        return "just now"
    for bound, unit, name in ((3600, 60, "min"), (86_400, 3600, "h"), (8_640_000, 86_400, "d")):
        if seconds < bound:
            return f"{seconds // unit:.0f} {name} ago"
    return moment[:10]


def duration(seconds: float) -> str:
    """Format a duration in one unit, rounded down, such as "5 min"."""
    for bound, unit, name in ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < bound:
            return f"{max(seconds, 0) // unit:.0f} {name}"
    return f"{seconds // 86_400:,.0f} d"


def local_time(time_us: int) -> str:
    """Format a time in the local time zone; the date is left out if it is today."""
    then = datetime.fromtimestamp(time_us / 1_000_000, UTC).astimezone()
    today = then.date() == datetime.now().astimezone().date()
    return f"{then:%H:%M %Z}" if today else f"{then:%Y-%m-%d %H:%M %Z}"


def share_cells(sizes: Mapping[str, int], width: int) -> dict[str, int]:
    """Distribute the cells of a bar by largest remainder; each part that is not empty gets at least one."""
    whole = sum(sizes.values())
    there = [name for name, size in sizes.items() if size]
    exact = {name: sizes[name] * (width - len(there)) / max(1, whole) for name in there}
    shared = {name: 1 + int(exact[name]) for name in there}
    by_remainder = sorted(there, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_remainder[: width - sum(shared.values())]:
        shared[name] += 1
    return shared


def text_width(text: str) -> int:
    """Return the width of a text in terminal cells."""
    from rich.cells import cell_len  # noqa: PLC0415 - only a terminal pays for rich

    return cell_len(text)


def fit_width(text: str, room: int, cut: str) -> str:
    """Pad or truncate a text to `room` terminal cells; `cut` marks a truncated text."""
    from rich.cells import set_cell_size  # noqa: PLC0415 - only a terminal pays for rich

    if text_width(text) <= room:
        return set_cell_size(text, room)
    return set_cell_size(text, room - len(cut)) + cut


def compact_json(value: Json) -> str:
    """Format a value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False)


def flat_rows(facts: Mapping[str, Json], whole: Sequence[str] = (), above: str = "") -> Iterator[tuple[str, Json]]:
    """Yield a document as (name, value) rows. Nested names are joined by dots, except below the names in `whole`."""
    for name, value in facts.items():
        if isinstance(value, dict) and name not in whole:
            yield from flat_rows(cast("dict[str, Json]", value), whole, f"{above}{name}.")
        elif isinstance(value, list):
            for item in cast("list[Json]", value):
                yield above + name, item if isinstance(item, str) else compact_json(item)
        else:
            yield above + name, compact_json(value) if isinstance(value, dict) else value
