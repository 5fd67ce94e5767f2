"""A window as people see it: a bar of its tokens, the account of its messages, and where it was cut."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from limpet.cli import figures, visible
from limpet.core.values.context import Fate
from limpet.core.values.messages import MessageCategory

if TYPE_CHECKING:
    from limpet.cli.surface import Glyphs
    from limpet.core.values.context import Ledger
    from limpet.core.windows.window import Window

BAR_CELLS = 52
_BAR_LEAST = 12
_WIDTH_MAX = 78
_PARTS: tuple[str, ...] = ("system", "summary", "context", "dialog", "output", "besides", "free")
_UNICODE: Mapping[str, str] = dict(zip(_PARTS, "█▓▒▚░▪·", strict=True))
_ASCII: Mapping[str, str] = dict(zip(_PARTS, "SUCDOb.", strict=True))
_OF_CATEGORY: Mapping[MessageCategory, str] = {
    MessageCategory.SYSTEM: "system",
    MessageCategory.CONTEXT: "context",
    MessageCategory.DIALOG: "dialog",
    MessageCategory.SYSTEM_OUTPUT: "output",
}
IN = (Fate.KEPT, Fate.SHORTENED)

Line = tuple[str, str]
"""A line and its style."""


class Coverage(NamedTuple):
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


def parts(window: Window) -> dict[str, int]:
    """Return the tokens of a window by what they are for; together they are its budget."""
    found: dict[str, int] = dict.fromkeys(_PARTS, 0)
    for at, (message, size) in enumerate(zip(window.messages, window.sizes, strict=True)):
        found["summary" if at == window.summary_at else _OF_CATEGORY[message.category]] += size
    found["besides"] = window.overhead
    found["free"] = window.budget - window.tokens
    return found


def cells(sizes: Mapping[str, int], width: int) -> dict[str, int]:
    """Share a bar among parts by largest remainder; each part that is there has a cell at least."""
    whole = sum(sizes.values())
    there = [name for name, size in sizes.items() if size]
    exact = {name: sizes[name] * (width - len(there)) / max(1, whole) for name in there}
    shared = {name: 1 + int(exact[name]) for name in there}
    by_remainder = sorted(there, key=lambda name: (int(exact[name]) - exact[name], name))
    for name in by_remainder[: width - sum(shared.values())]:
        shared[name] += 1
    return shared


def coverage(window: Window) -> Coverage:
    """Count the messages of the conversation by where they are."""
    ledger = window.ledger
    shortened, under = ledger.messages(Fate.SHORTENED), ledger.messages(Fate.SUMMARISED)
    inside, out = ledger.messages(Fate.KEPT) + shortened, ledger.messages(Fate.LEFT_OUT)
    told = under > 0 or window.summary_at < 0
    return Coverage(
        ledger.messages(), inside, shortened, under + out, under if told else None, out if told else None
    )  # fmt: skip


def numbers(window: Window) -> list[int | None]:
    """Return the number that each message of the window has in the conversation; a summary has none."""
    inside = (n for e in window.ledger if e.fate in IN for n in range(e.first, e.last + 1))
    return [
        None if at == window.summary_at else next(inside, None)
        for at in range(len(window.messages))
    ]


def cut(ledger: Ledger) -> int | None:
    """Return the number from which on everything is in the window; None if all of it is."""
    first = ledger.messages() + 1
    for entry in reversed(ledger.entries):
        if entry.fate not in IN:
            return first
        first = entry.first
    return None


def lines(window: Window, glyphs: Glyphs, *, plain: bool, width: int) -> Iterator[Line]:
    """Yield the whole picture, for a terminal of this width; plain is ASCII alone."""
    yield from bar(window, plain=plain, width=width)
    yield "", ""
    yield from _account(window, min(width, _WIDTH_MAX))
    yield covered(window, glyphs), ""
    yield "", ""
    for line in textwrap.wrap(_level(window, glyphs), max(width - 2, 20)):
        yield f"  {line}", "dim"


def bar(window: Window, *, plain: bool, width: int) -> Iterator[Line]:
    """Yield the bar of the tokens, and what its parts are."""
    glyphs, sizes = _ASCII if plain else _UNICODE, parts(window)
    share = window.tokens * 100 // window.budget
    figures_ = f"{window.tokens:,} / {window.budget:,}  {share}%"
    room = width - len(figures_) - 4
    beside = room >= _BAR_LEAST
    room = min(BAR_CELLS, max(_BAR_LEAST, room if beside else width - 2))
    drawn = "".join(glyphs[name] * count for name, count in cells(sizes, room).items())
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


def _account(window: Window, width: int) -> Iterator[Line]:
    ledger, counted = window.ledger, coverage(window)
    short = f" ({counted.shortened:,} shortened)" if counted.shortened else ""
    inside = sum(entry.used for entry in ledger if entry.fate in IN)
    yield from _item("in", f"{figures.count(counted.inside, 'message')}{short}", inside, width)
    if window.summary_at >= 0:
        size = window.sizes[window.summary_at]
        told = "1 summary"
        if counted.under:
            under = ledger.tokens(Fate.SUMMARISED)
            told += f" stands for {figures.count(counted.under, 'message')} ({under:,} tokens)"
        yield from _item("under", told, size, width)
    if counted.out is None:
        rest = f"{figures.count(counted.not_in, 'message')}, under the summary or left out"
        yield from _item("not in", rest, 0, width)
        return
    for rule, (count, size) in ledger.left_out().items():
        yield from _item("out", f"{figures.count(count, 'message')}: {rule}", size, width)


def _item(name: str, text: str, tokens: int, width: int) -> Iterator[Line]:
    # What a recorded window left out has no size any more.
    figure = f"{tokens:,}" if tokens else ""
    room = max(width - 10 - len(figure) - 1, 16)
    first, *rest = textwrap.wrap(visible.line(text), room) or [""]
    yield f"  {name:<8}{first:<{room}} {figure}".rstrip(), ""
    for more in rest:
        yield f"  {'':<8}{more}", ""


def covered(window: Window, glyphs: Glyphs) -> str:
    """Return the sum that shows that no message is forgotten."""
    counted = coverage(window)
    rest = f"{counted.not_in:,} not in"
    if counted.under is not None and counted.out is not None:
        rest = f"{counted.under:,} under + {counted.out:,} out"
    good = counted.inside + counted.not_in == counted.messages
    mark = glyphs.good if good else glyphs.bad
    whole = figures.count(counted.messages, "message")
    return f"  {whole} = {counted.inside:,} in + {rest}  {mark}"


def _level(window: Window, glyphs: Glyphs) -> str:
    level, first = window.level.name.lower(), cut(window.ledger)
    where = "nothing cut" if first is None else f"cut at #{first:,}: all from there on is in"
    if first is not None and first > window.ledger.messages():
        where = "the newest message is not in"
    return f"level {level} {glyphs.dot} {where}"
