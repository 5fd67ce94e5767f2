"""Formats counts, sizes, times and windows for people, and parses the times that they type.

A window is drawn as a bar of its tokens with an account of its messages.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from limpet.cli import exit_codes, output
from limpet.core.values import ids
from limpet.core.values.context import Fate
from limpet.core.values.messages import MessageCategory

if TYPE_CHECKING:
    from limpet.cli.output import Symbols
    from limpet.core.values.context import Ledger
    from limpet.core.windows.window import Window


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION_PATTERN = re.compile(r"(\d{1,9})([smhdw])")


def quantity(number: int, noun: str) -> str:
    """Return "1 event", "2,000 events"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def byte_size(number: float) -> str:
    """Return bytes in the unit that fits."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def relative_time(moment: str) -> str:
    """Return how long ago an ISO 8601 moment was."""
    seconds = time.time() - ids.microseconds(moment) / 1_000_000
    if seconds < 60:
        return "just now"
    for bound, unit, name in ((3600, 60, "min"), (86_400, 3600, "h"), (8_640_000, 86_400, "d")):
        if seconds < bound:
            return f"{seconds // unit:.0f} {name} ago"
    return moment[:10]


def duration(seconds: float) -> str:
    """Return a length of time in the unit that fits, rounded down."""
    for bound, unit, name in ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if seconds < bound:
            return f"{max(seconds, 0) // unit:.0f} {name}"
    return f"{seconds // 86_400:,.0f} d"


def local_time(time_us: int) -> str:
    """Return the time of day here, with its zone; with the date if that is not today."""
    then = datetime.fromtimestamp(time_us / 1_000_000, UTC).astimezone()
    today = then.date() == datetime.now().astimezone().date()
    return f"{then:%H:%M %Z}" if today else f"{then:%Y-%m-%d %H:%M %Z}"


def parse_moment(option: str, text: str | None) -> datetime | None:
    """Return the moment that a person typed: ISO 8601, or 30m, 2h, 3d, 1w back from now."""
    if text is None:
        return None
    back = _DURATION_PATTERN.fullmatch(text)
    try:
        if back:
            seconds = int(back[1]) * _UNIT_SECONDS[back[2]]
            return datetime.now(UTC) - timedelta(seconds=seconds)
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.USAGE,
                "bad_moment",
                f"{option} {text!r} is not a moment.",
                "A moment is ISO 8601 (UTC unless it says otherwise) or a time back from now.",
                f"{option} 2026-01-31, {option} 2026-01-31T12:00:00+01:00, or {option} 2h",
            )
        ) from error


DURATION_EXAMPLES: Final = ("7d", "90d", "52w")
"""What a length of days or more may look like."""


def parse_duration(option: str, text: str | None, such: Sequence[str] = ("30m", "24h", "7d")) -> float | None:
    """Return the length of time that a person typed, in seconds: 30s, 30m, 24h, 7d, 1w. `such` would be taken."""
    if text is None:
        return None
    found = _DURATION_PATTERN.fullmatch(text)
    if found is None or not int(found[1]):
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.USAGE,
                "bad_length",
                f"{option} {text!r} is not a length of time.",
                "Nothing was done.",
                f"{', '.join(f'{option} {each}' for each in such[:-1])}, or {option} {such[-1]}",
            )
        )
    return float(int(found[1]) * _UNIT_SECONDS[found[2]])


WINDOW_BAR_CELLS = 52
_WINDOW_BAR_CELLS_MIN = 12
_WINDOW_WIDTH_MAX = 78
_WINDOW_PARTS: tuple[str, ...] = ("system", "summary", "context", "dialog", "output", "besides", "free")
_UNICODE_FILL: Mapping[str, str] = dict(zip(_WINDOW_PARTS, "█▓▒▚░▪·", strict=True))
_ASCII_FILL: Mapping[str, str] = dict(zip(_WINDOW_PARTS, "SUCDOb.", strict=True))
_PART_OF_CATEGORY: Mapping[MessageCategory, str] = {
    MessageCategory.SYSTEM: "system",
    MessageCategory.CONTEXT: "context",
    MessageCategory.DIALOG: "dialog",
    MessageCategory.SYSTEM_OUTPUT: "output",
}
FATES_IN_WINDOW = (Fate.KEPT, Fate.SHORTENED)

StyledLine = tuple[str, str]
"""A line and its style."""


class WindowCoverage(NamedTuple):
    """How many messages there are, and where they went: each is counted once.

    Of a recorded window it is known what was in it. Where it has a summary, nobody can say any more what of
    the rest was under it: `under` and `out` are None.
    """

    messages: int
    inside: int
    shortened: int
    not_in: int
    under: int | None
    out: int | None


def tokens_by_part(window: Window) -> dict[str, int]:
    """Return the tokens of a window by what they are for; together they are its budget."""
    found: dict[str, int] = dict.fromkeys(_WINDOW_PARTS, 0)
    for at, (message, size) in enumerate(zip(window.messages, window.sizes, strict=True)):
        found["summary" if at == window.summary_at else _PART_OF_CATEGORY[message.category]] += size
    found["besides"] = window.overhead
    found["free"] = window.budget - window.tokens
    return found


def share_cells(sizes: Mapping[str, int], width: int) -> dict[str, int]:
    """Share a bar among parts by largest remainder; each part that is there has a cell at least."""
    whole = sum(sizes.values())
    there = [name for name, size in sizes.items() if size]
    exact = {name: sizes[name] * (width - len(there)) / max(1, whole) for name in there}
    shared = {name: 1 + int(exact[name]) for name in there}
    by_remainder = sorted(there, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_remainder[: width - sum(shared.values())]:
        shared[name] += 1
    return shared


def window_coverage(window: Window) -> WindowCoverage:
    """Count the messages of the conversation by where they are."""
    ledger = window.ledger
    shortened, under = ledger.messages(Fate.SHORTENED), ledger.messages(Fate.SUMMARISED)
    inside, out = ledger.messages(Fate.KEPT) + shortened, ledger.messages(Fate.LEFT_OUT)
    told = under > 0 or window.summary_at < 0
    return WindowCoverage(
        ledger.messages(), inside, shortened, under + out, under if told else None, out if told else None
    )  # fmt: skip


def message_numbers(window: Window) -> list[int | None]:
    """Return the number that each message of the window has in the conversation; a summary has none."""
    inside = (n for e in window.ledger if e.fate in FATES_IN_WINDOW for n in range(e.first, e.last + 1))
    return [None if at == window.summary_at else next(inside, None) for at in range(len(window.messages))]


def cut_number(ledger: Ledger) -> int | None:
    """Return the number from which on everything is in the window; None if all of it is."""
    first = ledger.messages() + 1
    for entry in reversed(ledger.entries):
        if entry.fate not in FATES_IN_WINDOW:
            return first
        first = entry.first
    return None


def window_lines(window: Window, glyphs: Symbols, *, plain: bool, width: int) -> Iterator[StyledLine]:
    """Yield the whole picture, for a terminal of this width; plain is ASCII alone."""
    yield from window_bar(window, plain=plain, width=width)
    yield "", ""
    yield from _account_lines(window, min(width, _WINDOW_WIDTH_MAX))
    yield coverage_statement(window, glyphs), ""
    yield "", ""
    for line in textwrap.wrap(_level_text(window, glyphs), max(width - 2, 20)):
        yield f"  {line}", "dim"


def window_bar(window: Window, *, plain: bool, width: int) -> Iterator[StyledLine]:
    """Yield the bar of the tokens, and what its parts are."""
    glyphs, sizes = _ASCII_FILL if plain else _UNICODE_FILL, tokens_by_part(window)
    share = window.tokens * 100 // window.budget
    figures_ = f"{window.tokens:,} / {window.budget:,}  {share}%"
    room = width - len(figures_) - 4
    beside = room >= _WINDOW_BAR_CELLS_MIN
    room = min(WINDOW_BAR_CELLS, max(_WINDOW_BAR_CELLS_MIN, room if beside else width - 2))
    drawn = "".join(glyphs[name] * count for name, count in share_cells(sizes, room).items())
    yield f"  {drawn}" + (f"  {figures_}" if beside else ""), ""
    if not beside:
        yield f"  {figures_}", ""
    line = ""
    for name, size in sizes.items():
        if not size:
            continue
        item = f"  {glyphs[name]} {name} {size:,}"
        if line and len(line) + len(item) > width:
            yield line, "dim"
            line = ""
        line += item
    yield line, "dim"


def _account_lines(window: Window, width: int) -> Iterator[StyledLine]:
    ledger, counted = window.ledger, window_coverage(window)
    short = f" ({counted.shortened:,} shortened)" if counted.shortened else ""
    inside = sum(entry.used for entry in ledger if entry.fate in FATES_IN_WINDOW)
    yield from _item_lines("in", f"{quantity(counted.inside, 'message')}{short}", inside, width)
    if window.summary_at >= 0:
        size = window.sizes[window.summary_at]
        told = "1 summary"
        if counted.under:
            under = ledger.tokens(Fate.SUMMARISED)
            told += f" stands for {quantity(counted.under, 'message')} ({under:,} tokens)"
        yield from _item_lines("under", told, size, width)
    if counted.out is None:
        rest = f"{quantity(counted.not_in, 'message')}, under the summary or left out"
        yield from _item_lines("not in", rest, 0, width)
        return
    for rule, (count, size) in ledger.left_out().items():
        yield from _item_lines("out", f"{quantity(count, 'message')}: {rule}", size, width)


def _item_lines(name: str, text: str, tokens: int, width: int) -> Iterator[StyledLine]:
    # What a recorded window left out has no size any more.
    figure = f"{tokens:,}" if tokens else ""
    room = max(width - 10 - len(figure) - 1, 16)
    first, *rest = textwrap.wrap(output.escape_line(text), room) or [""]
    yield f"  {name:<8}{first:<{room}} {figure}".rstrip(), ""
    for more in rest:
        yield f"  {'':<8}{more}", ""


def coverage_statement(window: Window, glyphs: Symbols) -> str:
    """Return the sum that shows that no message is forgotten."""
    counted = window_coverage(window)
    rest = f"{counted.not_in:,} not in"
    if counted.under is not None and counted.out is not None:
        rest = f"{counted.under:,} under + {counted.out:,} out"
    good = counted.inside + counted.not_in == counted.messages
    mark = glyphs.good if good else glyphs.bad
    whole = quantity(counted.messages, "message")
    return f"  {whole} = {counted.inside:,} in + {rest}  {mark}"


def _level_text(window: Window, glyphs: Symbols) -> str:
    level, first = window.level.name.lower(), cut_number(window.ledger)
    where = "nothing cut" if first is None else f"cut at #{first:,}: all from there on is in"
    if first is not None and first > window.ledger.messages():
        where = "the newest message is not in"
    return f"level {level} {glyphs.dot} {where}"
