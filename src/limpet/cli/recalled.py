"""Recorded windows in the terminal: one as it was, two side by side, and the list to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from limpet import errors, limits
from limpet.cli import again, exits, figures, picture, visible
from limpet.cli.surface import Face, Glyphs, Surface
from limpet.core.values.context import Fate

if TYPE_CHECKING:
    from limpet.cli.options import Common
    from limpet.core.values.json_values import Json
    from limpet.core.values.messages import Message
    from limpet.core.windows.window import Window, WindowDifference
    from limpet.sessions.manager import Session
    from limpet.sessions.windows import RecordedWindow

_HASH = 12
_WIDTH_MAX = 78
NOT_TOLD = "both budget and conversation changed; which of them did it can't be told"


class Past(NamedTuple):
    """A recorded window, made again."""

    row: RecordedWindow
    window: Window

    def told(self, glyphs: Glyphs) -> str:
        """Say that it is the same."""
        short = self.row.digest[:_HASH]
        return f"rebuilt byte for byte: its hash {short}{glyphs.cut} is the recorded one  {glyphs.good}"


class Part(NamedTuple):
    """Which of the recorded windows."""

    limit: int | None
    before: int | None


class Change(NamedTuple):
    """Messages that follow on each other and are in one of two windows alone."""

    sign: str
    first: int | None
    last: int | None
    messages: int
    tokens: int
    role: str
    text: str
    ids: tuple[str, ...]


def at(session: Session, version: int) -> Past:
    """Return the window that was recorded with an event; raise what names the nearest ones."""
    try:
        row = session.recorded_window(version)
    except errors.WindowNotFound as error:
        raise exits.Failure(_nearest(error, session)) from error
    window = session.window_of(row.message_id)
    if window.digest != row.digest:
        raise errors.Corrupt(
            "a recorded window can't be made again as it was.", facts={"event": row.version}
        )
    return Past(row, window)


def _nearest(error: errors.WindowNotFound, session: Session) -> exits.Problem:
    before, after = error.facts["before"], error.facts["after"]
    near = [event for event in (before, after) if isinstance(event, int)]
    if not near:
        why, then = "No window is recorded in this session.", error.hint
        return exits.Problem(exits.NOT_FOUND, error.code, error.message, why, then, error.facts)
    sides = [
        f"the nearest {side} is event {event:,}"
        for side, event in (("before", before), ("after", after))
        if event is not None
    ]
    told = ", ".join(sides)
    asked = error.facts["version"]
    assert isinstance(asked, int), "as it was asked for"
    nearest = min(near, key=lambda event: abs(event - asked))
    return exits.Problem(
        exits.NOT_FOUND,
        error.code,
        error.message,
        f"{told[0].upper()}{told[1:]}.",
        "",
        error.facts,
        ("context", "--at", str(nearest)),
        named=session.id,
    )


def document(row: RecordedWindow) -> dict[str, Json]:
    """Return what is known of a recorded window, as JSON."""
    return {
        "event": row.version, "answer_event": row.answer, "message": row.message_id,
        "number": row.number, "recorded_at": row.recorded_at, "session": row.session_id,
        "version": row.seen, "messages": row.messages, "budget": row.budget, "tokens": row.tokens,
        "counter": row.counter, "exact": row.exact, "level": row.level.name.lower(), "hash": row.digest,
    }  # fmt: skip


def show_list(surface: Surface, session: Session, part: Part, common: Common) -> None:
    """Print recorded windows, newest first, and how to get the next page."""
    limit = limits.RECORDED_PAGE if part.limit is None else part.limit
    rows = session.recorded_windows(limit, before=part.before)
    last = rows[-1].version if rows else 1
    more = last > 1 and bool(session.recorded_windows(1, before=last))
    if surface.face is Face.JSON:
        surface.document({
            "session": session.id, "windows": [document(row) for row in rows],
            "next_before": last if more else None,
        })  # fmt: skip
        return
    if surface.face is Face.PIPE:
        for row in rows:
            surface.row(
                row.version, row.number, row.messages, row.budget, row.tokens,
                row.level.name.lower(), row.digest, row.message_id, row.recorded_at,
            )  # fmt: skip
    elif rows:
        _table(surface, rows)
    if not rows:
        surface.note("No window is recorded: add_message(reply, window=window) records one.")
    if more:
        options = ("--recorded", "--limit", str(limit), "--before", str(last))
        then = again.command("context", *options, named=session.id, on=common.on)
        surface.note(f"There are more: {then}")


def _table(surface: Surface, rows: Sequence[RecordedWindow]) -> None:
    table = surface.table(">EVENT", ">ANSWER", ">MSGS", ">BUDGET", ">TOKENS", "LEVEL", "HASH")
    for row in rows:
        table.add_row(
            f"{row.version:,}", f"#{row.number:,}", f"{row.messages:,}", f"{row.budget:,}",
            f"{row.tokens:,}", row.level.name.lower(), row.digest[:_HASH],
        )  # fmt: skip
    surface.console.print(table, soft_wrap=True)


def show_difference(surface: Surface, session: Session, first: int, second: int) -> None:
    """Print how one recorded window became another."""
    a, b = at(session, first), at(session, second)
    difference = a.window.diff(b.window)
    changes = [
        *_changes("-", a.window, difference.gone_at),
        *_changes("+", b.window, difference.new_at),
    ]
    why = cause(a.window, b.window, difference)
    start = _first_change(a.window, b.window, difference)
    if surface.face is Face.JSON:
        surface.document({
            "a": document(a.row), "b": document(b.row),
            "same": difference.same, "same_tokens": difference.same_tokens, "share": difference.share,
            "common": {"messages": difference.common, "tokens": difference.common_tokens},
            "changes": [change._asdict() for change in changes],
            "first_change": start, "cause": why,
            "rebuilt": True,
        })  # fmt: skip
    elif surface.face is Face.PIPE:
        surface.row("=", "", "", difference.common, difference.common_tokens, "", "")
        for change in changes:
            surface.row(*change[:-1])
        surface.note(_prefix(difference, start, why))
        surface.note(f"both rebuilt byte for byte {surface.glyphs.good}")
    else:
        _draw(surface, (a, b), difference, changes)
        say = surface.console.print
        say(_prefix(difference, start, why))
        say(f"both rebuilt byte for byte {surface.glyphs.good}", style="green")


def _changes(sign: str, window: Window, places: Sequence[int]) -> list[Change]:
    numbers = picture.numbers(window)
    runs: list[list[int]] = []
    for at_, before in zip(places, (None, *places), strict=False):
        follows = before is not None and at_ == before + 1
        if follows and _next(numbers[before or 0], numbers[at_]):
            runs[-1].append(at_)
        else:
            runs.append([at_])
    return [_change(sign, window, numbers, run) for run in runs]


def _next(before: int | None, number: int | None) -> bool:
    return before is not None and number == before + 1


def _change(sign: str, window: Window, numbers: Sequence[int | None], run: list[int]) -> Change:
    messages = [window.messages[at_] for at_ in run]
    roles = {message.role for message in messages}
    role = "summary" if run[0] == window.summary_at else roles.pop() if len(roles) == 1 else ""
    first = numbers[run[0]]
    entry = window.ledger.of(first) if first is not None and len(run) == 1 else None
    text = f"{len(run):,} messages"
    if len(run) == 1:
        text = _words(messages[0])
        if entry is not None and entry.fate is Fate.SHORTENED:
            text = f"(shortened) {text}"
    return Change(
        sign, first, numbers[run[-1]], len(run), sum(window.sizes[at_] for at_ in run), role, text,
        tuple(message.id for message in messages),
    )  # fmt: skip


def _words(message: Message) -> str:
    told = message.to_dict()
    content = told["content"]
    if isinstance(content, str) and content:
        return " ".join(content.split())
    if message.tool_calls:
        return "calls " + ", ".join(call.name for call in message.tool_calls)
    results = figures.count(len(message.tool_results), "result")
    return results if message.tool_results else "content in parts"


def _first_change(a: Window, b: Window, difference: WindowDifference) -> str | None:
    """Name the first message at which the windows part; None if they never do."""
    at_ = difference.same
    for window in (b, a):
        if at_ < len(window):
            number = picture.numbers(window)[at_]
            return "the summary" if number is None else f"#{number:,}"
    return None


def cause(a: Window, b: Window, difference: WindowDifference) -> str:
    """Say why two windows differ, as far as that follows from what was recorded of them."""
    if difference.same == len(a) == len(b):
        return "nothing changed"
    if (a.session_id, a.began) != (b.session_id, b.began):
        return "another conversation: the session was reset or continued in between"
    if a.counter != b.counter:
        return f"another counter: {a.counter}, then {b.counter}"
    budgets = (a.budget, a.overhead) != (b.budget, b.overhead)
    if a.version != b.version:
        if difference.same in (len(a), len(b)):
            older = a.version < b.version
            return (
                "new messages at the end" if older else "B is older: what came later is not in it"
            )
        if budgets:
            return NOT_TOLD
    if budgets:
        return (
            f"budget: {a.budget - a.overhead:,}, then {b.budget - b.overhead:,} tokens for messages"
        )
    reasons: list[str] = []
    if a.level is not b.level:
        reasons.append(f"level: {a.level.name.lower()}, then {b.level.name.lower()}")
    before, after = picture.cut(a.ledger), picture.cut(b.ledger)
    if before != after:
        reasons.append(f"cut: at {_place(before)}, then at {_place(after)}")
    return "; ".join(reasons) or "the choice of messages"


def _place(cut: int | None) -> str:
    return "the beginning" if cut is None else f"#{cut:,}"


def _prefix(difference: WindowDifference, start: str | None, why: str) -> str:
    share = f"{difference.share * 100:.0f} %"
    where = f"; first change: {start}" if start is not None else ""
    return (
        f"prefix identical for {figures.count(difference.same_tokens, 'token')} ({share}){where}."
        f" Cause: {why}."
    )


def _draw(
    surface: Surface,
    both: tuple[Past, Past],
    difference: WindowDifference,
    changes: Sequence[Change],
) -> None:
    say, width = surface.console.print, min(surface.console.width, _WIDTH_MAX)
    for name, past in zip("AB", both, strict=True):
        row = past.row
        of = f"{row.tokens:,} of {row.budget:,} tokens"
        say(f"{name} event {row.version:,}, answer #{row.number:,}   {of}", style="bold")
    rows = [
        ("=", f"{figures.count(difference.common, 'message')} in both", difference.common_tokens)
    ]
    rows += [(change.sign, _label(change, surface), change.tokens) for change in changes]
    styles = {"=": "", "-": "red", "+": "green"}
    for sign, text, tokens in rows:
        figure = f"{tokens:,}"
        room = max(width - 6 - len(figure), 12)
        shown = visible.line(text)
        shown = _cut_to(shown, room, surface.glyphs.cut)
        say(
            f"  {sign}  {shown}{' ' * (room - _cells(shown))} {figure}",
            style=styles[sign],
            soft_wrap=True,
        )


def _label(change: Change, surface: Surface) -> str:
    if change.first is None:
        return f"{change.role}  {change.text}"
    dash = "-" if surface.ascii else "–"
    where = f"#{change.first:,}"
    if change.last is not None and change.last != change.first:
        where += f"{dash}#{change.last:,}"
    return "  ".join(part for part in (where, change.role, change.text) if part)


def _cells(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415 - only a terminal pays for rich

    return cell_len(text)


def _cut_to(text: str, room: int, mark: str) -> str:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - only a terminal pays for rich

    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - len(mark)) + mark
