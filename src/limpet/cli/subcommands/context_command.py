"""`limpet context`: the present window of a session or a recorded one, with the reason for each message.

Also compares two recorded windows and finds the budget that a message needs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from limpet import errors, limits
from limpet.cli import exit_codes, hints, output, target
from limpet.cli.options import CommonOptions, Positive, ProviderFormat, Reference, Switch
from limpet.cli.output import Output, OutputMode, Symbols
from limpet.core.values.context import Fate
from limpet.core.values.messages import MessageCategory

if TYPE_CHECKING:
    from limpet.core.values.context import Ledger, LedgerEntry
    from limpet.core.values.messages import Message
    from limpet.core.values.validation import Json
    from limpet.core.windows.pack import ContextPack
    from limpet.core.windows.window import Window, WindowDifference
    from limpet.sessions.manager import Session
    from limpet.sessions.windows import RecordedWindow


_HASH_CHARS = 12
_DIFF_WIDTH_MAX = 78
CAUSE_UNKNOWN = "unknown: both the budget and the conversation changed"


class RecordedWindowView(NamedTuple):
    """A recorded window, rebuilt."""

    row: RecordedWindow
    window: Window

    def hash_statement(self, glyphs: Symbols) -> str:
        """Return the statement that the rebuilt window has the recorded hash."""
        short = self.row.digest[:_HASH_CHARS]
        return f"rebuilt byte for byte: hash {short}{glyphs.cut} equals the recorded hash  {glyphs.good}"


class WindowDiffRow(NamedTuple):
    """Consecutive messages that only one of two windows has."""

    sign: str
    first: int | None
    last: int | None
    messages: int
    tokens: int
    role: str
    text: str
    ids: tuple[str, ...]


def rebuild_window(session: Session, version: int) -> RecordedWindowView:
    """Return the window recorded with an event; raise CommandFailure, which names the nearest recorded windows."""
    try:
        row = session.recorded_window(version)
    except errors.WindowNotFound as error:
        raise _no_recorded_window(error, version, session) from error
    window = session.window_of(row.message_id)
    if window.digest != row.digest:
        raise errors.Corrupt("the rebuilt window differs from the recorded window.", facts={"event": row.version})
    return RecordedWindowView(row, window)


def _no_recorded_window(error: errors.WindowNotFound, asked: int, session: Session) -> exit_codes.CommandFailure:
    near = {side: event for side in ("before", "after") if isinstance(event := error.facts[side], int)}
    if not near:
        why, then, command = "No window is recorded in this session.", error.hint, ()
    else:
        told = ", ".join(f"the nearest {side} is event {event:,}" for side, event in near.items())
        nearest = min(near.values(), key=lambda event: abs(event - asked))
        why, then, command = f"{told[0].upper()}{told[1:]}.", "", ("context", "--at", str(nearest))
    return exit_codes.failure(
        exit_codes.NOT_FOUND,
        error.code,
        error.message,
        why,
        then,
        facts=error.facts,
        command=command,
        subject=session.id,
    )


def recording_document(row: RecordedWindow) -> dict[str, Json]:
    """Return the record of a window as JSON."""
    return {
        "event": row.version, "answer_event": row.answer, "message": row.message_id,
        "number": row.number, "recorded_at": row.recorded_at, "session": row.session_id,
        "version": row.seen, "messages": row.messages, "budget": row.budget, "tokens": row.tokens,
        "counter": row.counter, "exact": row.exact, "level": row.level.name.lower(), "hash": row.digest,
    }  # fmt: skip


_RECORDING_COLUMNS = ("event", "number", "messages", "budget", "tokens", "level", "hash", "message", "recorded_at")
"""The columns of a TSV line, in order."""


def print_recordings(surface: Output, session: Session, wanted: ContextOptions) -> None:
    """Print a page of recorded windows, newest first."""
    limit = limits.RECORDED_PAGE if wanted.limit is None else wanted.limit
    rows = session.recorded_windows(limit, before=wanted.before)
    last = rows[-1].version if rows else 1
    more = last > 1 and bool(session.recorded_windows(1, before=last))
    documents = [recording_document(row) for row in rows]
    lines = ([document[name] for name in _RECORDING_COLUMNS] for document in documents)
    document: Json = {"session": session.id, "windows": documents, "next_before": last if more else None}
    if not surface.print_data(document, lines) and rows:
        _print_recordings_table(surface, rows)
    if surface.mode is OutputMode.JSON:
        return
    if not rows:
        surface.note("No window is recorded. add_message(reply, window=window) records one.")
    if more:
        options = ("--recorded", "--limit", str(limit), "--before", str(last))
        then = hints.command_line("context", *options, named=session.id, on=wanted.store_options)
        surface.note(f"There are more: {then}")


def _print_recordings_table(surface: Output, rows: Sequence[RecordedWindow]) -> None:
    table = surface.new_table(">EVENT", ">ANSWER", ">MSGS", ">BUDGET", ">TOKENS", "LEVEL", "HASH")
    for row in rows:
        table.add_row(
            f"{row.version:,}", f"#{row.number:,}", f"{row.messages:,}", f"{row.budget:,}",
            f"{row.tokens:,}", row.level.name.lower(), row.digest[:_HASH_CHARS],
        )  # fmt: skip
    surface.console.print(table, soft_wrap=True)


def print_difference(surface: Output, session: Session, first: int, second: int) -> None:
    """Print the differences of two recorded windows."""
    a, b = rebuild_window(session, first), rebuild_window(session, second)
    difference = a.window.diff(b.window)
    changes = [*_diff_rows("-", a.window, difference.gone_at), *_diff_rows("+", b.window, difference.new_at)]
    why = difference_cause(a.window, b.window, difference)
    start = _first_change_label(a.window, b.window, difference)
    if surface.mode is OutputMode.JSON:
        surface.print_json({
            "a": recording_document(a.row), "b": recording_document(b.row),
            "same": difference.same, "same_tokens": difference.same_tokens, "share": difference.share,
            "common": {"messages": difference.common, "tokens": difference.common_tokens},
            "changes": [change._asdict() for change in changes],
            "first_change": start, "cause": why,
            "rebuilt": True,
        })  # fmt: skip
    elif surface.mode is OutputMode.PIPE:
        surface.print_row("=", "", "", difference.common, difference.common_tokens, "", "")
        for change in changes:
            surface.print_row(*change[:-1])
        surface.note(_prefix_statement(difference, start, why))
        surface.note(f"both rebuilt byte for byte {surface.symbols.good}")
    else:
        _print_diff_rows(surface, (a, b), difference, changes)
        say = surface.console.print
        say(_prefix_statement(difference, start, why))
        say(f"both rebuilt byte for byte {surface.symbols.good}", style="green")


def _diff_rows(sign: str, window: Window, places: Sequence[int]) -> list[WindowDiffRow]:
    numbers = message_numbers(window)
    runs: list[list[int]] = []
    for at_, before in zip(places, (None, *places), strict=False):
        follows = before is not None and at_ == before + 1
        if follows and _is_next(numbers[before or 0], numbers[at_]):
            runs[-1].append(at_)
        else:
            runs.append([at_])
    return [_diff_row(sign, window, numbers, run) for run in runs]


def _is_next(before: int | None, number: int | None) -> bool:
    return before is not None and number == before + 1


def _diff_row(sign: str, window: Window, numbers: Sequence[int | None], run: list[int]) -> WindowDiffRow:
    messages = [window.messages[at_] for at_ in run]
    roles = {message.role for message in messages}
    role = "summary" if run[0] == window.summary_at else roles.pop() if len(roles) == 1 else ""
    first = numbers[run[0]]
    entry = window.ledger.entry_of(first) if first is not None and len(run) == 1 else None
    text = f"{len(run):,} messages"
    if len(run) == 1:
        text = _message_excerpt(messages[0])
        if entry is not None and entry.fate is Fate.SHORTENED:
            text = f"(shortened) {text}"
    return WindowDiffRow(
        sign, first, numbers[run[-1]], len(run), sum(window.sizes[at_] for at_ in run), role, text,
        tuple(message.id for message in messages),
    )  # fmt: skip


def _message_excerpt(message: Message) -> str:
    told = message.to_dict()
    content = told["content"]
    if isinstance(content, str) and content:
        return " ".join(content.split())
    if message.tool_calls:
        return "calls " + ", ".join(call.name for call in message.tool_calls)
    results = output.quantity(len(message.tool_results), "result")
    return results if message.tool_results else "content in parts"


def _first_change_label(a: Window, b: Window, difference: WindowDifference) -> str | None:
    """Return the label of the first message that differs; None if the windows are equal."""
    at_ = difference.same
    for window in (b, a):
        if at_ < len(window):
            number = message_numbers(window)[at_]
            return "the summary" if number is None else f"#{number:,}"
    return None


def difference_cause(a: Window, b: Window, difference: WindowDifference) -> str:
    """Return why two windows differ, as far as their records tell."""
    if difference.same == len(a) == len(b):
        return "nothing changed"
    if (a.session_id, a.began) != (b.session_id, b.began):
        return "different conversation: the session was reset or continued in between"
    if a.counter != b.counter:
        return f"different counter: {a.counter}, then {b.counter}"
    budgets = (a.budget, a.overhead) != (b.budget, b.overhead)
    if a.version != b.version:
        if difference.same in (len(a), len(b)):
            older = a.version < b.version
            return "new messages at the end" if older else "B is older and has fewer messages"
        if budgets:
            return CAUSE_UNKNOWN
    if budgets:
        return f"budget: {a.budget - a.overhead:,}, then {b.budget - b.overhead:,} tokens for messages"
    reasons: list[str] = []
    if a.level is not b.level:
        reasons.append(f"level: {a.level.name.lower()}, then {b.level.name.lower()}")
    before, after = cut_number(a.ledger), cut_number(b.ledger)
    if before != after:
        reasons.append(f"cut: at {_cut_label(before)}, then at {_cut_label(after)}")
    return "; ".join(reasons) or "a different selection of messages"


def _cut_label(cut: int | None) -> str:
    return "the beginning" if cut is None else f"#{cut:,}"


def _prefix_statement(difference: WindowDifference, start: str | None, why: str) -> str:
    share = f"{difference.share * 100:.0f} %"
    where = f"; first change: {start}" if start is not None else ""
    return f"prefix identical for {output.quantity(difference.same_tokens, 'token')} ({share}){where}. Cause: {why}."


def _print_diff_rows(
    surface: Output,
    both: tuple[RecordedWindowView, RecordedWindowView],
    difference: WindowDifference,
    changes: Sequence[WindowDiffRow],
) -> None:
    say, width = surface.console.print, min(surface.console.width, _DIFF_WIDTH_MAX)
    for name, past in zip("AB", both, strict=True):
        row = past.row
        of = f"{row.tokens:,} of {row.budget:,} tokens"
        say(f"{name} event {row.version:,}, answer #{row.number:,}   {of}", style="bold")
    rows = [("=", f"{output.quantity(difference.common, 'message')} in both", difference.common_tokens)]
    rows += [(change.sign, _diff_label(change, surface), change.tokens) for change in changes]
    styles = {"=": "", "-": "red", "+": "green"}
    for sign, text, tokens in rows:
        figure = f"{tokens:,}"
        room = max(width - 6 - len(figure), 12)
        shown = output.fit_width(output.escape_line(text), room, surface.symbols.cut)
        say(f"  {sign}  {shown} {figure}", style=styles[sign], soft_wrap=True)


def _diff_label(change: WindowDiffRow, surface: Output) -> str:
    if change.first is None:
        return f"{change.role}  {change.text}"
    dash = "-" if surface.ascii else "–"
    where = f"#{change.first:,}"
    if change.last is not None and change.last != change.first:
        where += f"{dash}#{change.last:,}"
    return "  ".join(part for part in (where, change.role, change.text) if part)


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
    """The messages of a conversation, each counted once: in the window, under the summary, or left out.

    `under` and `out` are None for a recorded window with a summary: which messages the summary covered is not recorded.
    """

    messages: int
    inside: int
    shortened: int
    not_in: int
    under: int | None
    out: int | None


def tokens_by_part(window: Window) -> dict[str, int]:
    """Return the tokens of each part of a window. Their sum is its budget."""
    found: dict[str, int] = dict.fromkeys(_WINDOW_PARTS, 0)
    for at, (message, size) in enumerate(zip(window.messages, window.sizes, strict=True)):
        found["summary" if at == window.summary_at else _PART_OF_CATEGORY[message.category]] += size
    found["besides"] = window.overhead
    found["free"] = window.budget - window.tokens
    return found


def window_coverage(window: Window) -> WindowCoverage:
    """Count the messages that are in the window, under the summary, and left out."""
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
    """Yield the lines that show a window on a terminal of this width. `plain` uses ASCII only."""
    yield from window_bar(window, plain=plain, width=width)
    yield "", ""
    yield from _account_lines(window, min(width, _WINDOW_WIDTH_MAX))
    yield coverage_statement(window, glyphs), ""
    yield "", ""
    for line in textwrap.wrap(_level_text(window, glyphs), max(width - 2, 20)):
        yield f"  {line}", "dim"


def window_bar(window: Window, *, plain: bool, width: int) -> Iterator[StyledLine]:
    """Yield the bar of the tokens and its legend."""
    glyphs, sizes = _ASCII_FILL if plain else _UNICODE_FILL, tokens_by_part(window)
    share = window.tokens * 100 // window.budget
    figures = f"{window.tokens:,} / {window.budget:,}  {share}%"
    room = width - len(figures) - 4
    beside = room >= _WINDOW_BAR_CELLS_MIN
    room = min(WINDOW_BAR_CELLS, max(_WINDOW_BAR_CELLS_MIN, room if beside else width - 2))
    drawn = "".join(glyphs[name] * count for name, count in output.share_cells(sizes, room).items())
    yield f"  {drawn}" + (f"  {figures}" if beside else ""), ""
    if not beside:
        yield f"  {figures}", ""
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
    yield from _item_lines("in", f"{output.quantity(counted.inside, 'message')}{short}", inside, width)
    if window.summary_at >= 0:
        size = window.sizes[window.summary_at]
        told = "1 summary"
        if counted.under:
            under = ledger.tokens(Fate.SUMMARISED)
            told += f" covers {output.quantity(counted.under, 'message')} ({under:,} tokens)"
        yield from _item_lines("under", told, size, width)
    if counted.out is None:
        rest = f"{output.quantity(counted.not_in, 'message')}, under the summary or left out"
        yield from _item_lines("not in", rest, 0, width)
        return
    for rule, (count, size) in ledger.left_out().items():
        yield from _item_lines("out", f"{output.quantity(count, 'message')}: {rule}", size, width)


def _item_lines(name: str, text: str, tokens: int, width: int) -> Iterator[StyledLine]:
    # The sizes of left-out messages are not recorded.
    figure = f"{tokens:,}" if tokens else ""
    room = max(width - 10 - len(figure) - 1, 16)
    first, *rest = textwrap.wrap(output.escape_line(text), room) or [""]
    yield f"  {name:<8}{first:<{room}} {figure}".rstrip(), ""
    for more in rest:
        yield f"  {'':<8}{more}", ""


def coverage_statement(window: Window, glyphs: Symbols) -> str:
    """Return the equation that shows that every message is counted."""
    counted = window_coverage(window)
    rest = f"{counted.not_in:,} not in"
    if counted.under is not None and counted.out is not None:
        rest = f"{counted.under:,} under + {counted.out:,} out"
    good = counted.inside + counted.not_in == counted.messages
    mark = glyphs.good if good else glyphs.bad
    whole = output.quantity(counted.messages, "message")
    return f"  {whole} = {counted.inside:,} in + {rest}  {mark}"


def _level_text(window: Window, glyphs: Symbols) -> str:
    level, first = window.level.name.lower(), cut_number(window.ledger)
    where = "nothing cut" if first is None else f"cut at #{first:,}: every message from there on is in"
    if first is not None and first > window.ledger.messages():
        where = "the newest message is not in"
    return f"level {level} {glyphs.dot} {where}"


DEFAULT_BUDGET = 8_000


@dataclass(frozen=True, kw_only=True)
class ContextOptions(CommonOptions):
    """Which window to show, and how."""

    budget: Positive | None = None
    """The token budget. Default: that of the session's policy, or 8000."""
    model: str | None = None
    """Count tokens as this model does, for example gpt-4o."""
    counter: str | None = None
    """Count tokens with this counter, for example estimate."""
    why: Positive | None = None
    """Explain why the message with this number is in the window or not, and which budget it needs."""
    what_if: Positive | None = None
    """Compare with the window for this budget."""
    provider: ProviderFormat = None
    at: Positive | None = None
    """Show the window recorded with this event; the event of the answer after it works too."""
    diff: Annotated[tuple[Positive, Positive] | None, Parameter(negative_iterable="")] = None
    """Compare the windows recorded with two events."""
    recorded: Switch = False
    """List the recorded windows, newest first."""
    limit: Positive | None = None
    """The largest number of recorded windows. Default: 20."""
    before: Positive | None = None
    """Only windows recorded before this event."""

    @property
    def counting_options(self) -> list[str]:
        """The given options that choose the counter."""
        return hints.given_options([("--model", self.model), ("--counter", self.counter)])


class _WindowView:
    """The window to show: the present one, or a recorded one that is rebuilt."""

    def __init__(self, session: Session, wanted: ContextOptions) -> None:
        self.session, self.wanted = session, wanted
        self.recording = None if wanted.at is None else rebuild_window(session, wanted.at)
        budget = wanted.budget if wanted.budget or session.policy else DEFAULT_BUDGET
        self.window = self.recording.window if self.recording else self.window_now(budget)

    def window_now(self, budget: int | None) -> Window:
        """Return the present window for a budget; None is the budget of the session's policy."""
        return self.session.window(budget, model=self.wanted.model, counter=self.wanted.counter)

    def command_line(self, *options: str) -> str:
        """Return the command that shows this window with further options."""
        which = ("--budget", str(self.window.budget), *self.wanted.counting_options)
        return hints.command_line("context", *which, *options, named=self.session.id, on=self.wanted.store_options)


def show_context(session: Reference, /, *, wanted: ContextOptions = ContextOptions()) -> None:
    """Show which messages of a session fit a token budget, which are left out, and why. Changes nothing.

    With --at, --diff and --recorded: show windows that were recorded with answers, rebuilt byte for byte. An event
    number names each of them. Events are numbered from 1 in each session.

    Example: limpet context @last --budget 8000
    """
    _check_options(wanted)
    surface = Output(wanted)
    with target.open_store(wanted) as lp:
        found = target.find_session(lp, session)
        if wanted.recorded:
            print_recordings(surface, found, wanted)
        elif wanted.diff is not None:
            print_difference(surface, found, *wanted.diff)
        else:
            _print_view(surface, _WindowView(found, wanted))


def _check_options(wanted: ContextOptions) -> None:
    """Raise CommandFailure for options that exclude each other."""
    chosen = [
        ("--at", wanted.at), ("--diff", wanted.diff), ("--recorded", wanted.recorded or None),
    ]  # fmt: skip
    asked = [("--why", wanted.why), ("--what-if", wanted.what_if), ("--as", wanted.provider)]
    made = [
        ("--budget", wanted.budget), ("--model", wanted.model), ("--counter", wanted.counter),
        ("--what-if", wanted.what_if),
    ]  # fmt: skip
    page = [("--limit", wanted.limit), ("--before", wanted.before)]
    past, view, now, paged = (
        [name for name, value in options if value is not None] for options in (chosen, asked, made, page)
    )
    if past and now:
        raise _usage_failure([*past, *now], "A recorded window has its own budget and counter.")
    if len(past) > 1 or len(view) > 1:
        raise _usage_failure(past if len(past) > 1 else view, "Each of them chooses a different output.")
    if view and past and past != ["--at"]:
        raise _usage_failure([*past, *view], "It needs a single window.")
    if paged and past != ["--recorded"]:
        raise _usage_failure(paged, "It applies to the list of recorded windows.", "Add --recorded.")


def _usage_failure(names: list[str], why: str, then: str = "Give one of them.") -> exit_codes.CommandFailure:
    told = " and ".join(names)
    what = f"{told} can't be given together." if len(names) > 1 else f"{told} needs --recorded."
    return exit_codes.usage_failure(what, then, why)


def _print_view(surface: Output, view: _WindowView) -> None:
    wanted, window = view.wanted, view.window
    if wanted.why is not None:
        _print_explanation(surface, view, wanted.why)
    elif wanted.what_if is not None:
        _print_what_if(surface, window, view.window_now(wanted.what_if))
    elif wanted.provider is not None:
        surface.print_json(provider_request(window, wanted.provider))
    elif surface.mode is OutputMode.JSON:
        surface.print_json(window_document(view.session, window) | _recording_fields(view))
    elif surface.mode is OutputMode.PIPE:
        for entry in window.ledger:
            surface.print_row(*_ledger_row(entry))
        if view.recording is not None:
            surface.note(view.recording.hash_statement(surface.symbols))
    else:
        _print_window(surface, view)


def provider_request(window: Window | ContextPack, provider: str) -> Json:
    """Return the request body for a provider."""
    return {
        "openai": window.to_openai,
        "responses": window.to_openai_responses,
        "anthropic": window.to_anthropic,
        "gemini": window.to_gemini,
    }[provider]()


def _ledger_row(entry: LedgerEntry) -> tuple[object, ...]:
    category = entry.category.name.lower() if entry.category else ""
    return (entry.first, entry.last, entry.fate, entry.tokens, entry.used, category, entry.rule)


def _recording_fields(view: _WindowView) -> dict[str, Json]:
    if view.recording is None:
        return {"at": None, "recorded": None}
    row = view.recording.row
    return {"version": row.seen, "at": row.version, "recorded": recording_document(row)}


def window_document(session: Session, window: Window) -> dict[str, Json]:
    """Return a window with its ledger and messages as JSON."""
    counted = window_coverage(window)
    return {
        "session": session.id,
        "version": session.version,
        "budget": window.budget,
        "tokens": window.tokens,
        "counter": window.counter,
        "exact": window.exact,
        "level": window.level.name.lower(),
        "cut": cut_number(window.ledger),
        "hash": window.digest,
        "by_part": tokens_by_part(window),
        "coverage": {
            "messages": counted.messages,
            "in": counted.inside,
            "shortened": counted.shortened,
            "not_in": counted.not_in,
            "under_summary": counted.under,
            "left_out": counted.out,
        },
        "items": [
            {
                "first": entry.first, "last": entry.last, "fate": str(entry.fate), "tokens": entry.tokens,
                "used": entry.used, "category": entry.category.name if entry.category else None,
                "rule": entry.rule,
            }
            for entry in window.ledger
        ],
        "messages": [message.to_dict() for message in window],
    }  # fmt: skip


def _print_window(surface: Output, view: _WindowView) -> None:
    session, window, past = view.session, view.window, view.recording
    dot, say = surface.symbols.dot, surface.console.print
    title = output.escape_line(session.title or session.state.preview or "")
    when = f"version {session.version:,}"
    if past is not None:
        when = f"recorded with event {past.row.version:,}, answer #{past.row.number:,}"
    kind = "exact" if window.exact else "estimated"
    heading = f"{session.id}  {title} {dot} {when} {dot} {window.counter}, {kind}"
    say(output.escape_line(heading), style="bold")
    say()
    width = surface.console.width
    for line, style in window_lines(window, surface.symbols, plain=surface.ascii, width=width):
        say(line, style=style, soft_wrap=True)
    if past is not None:
        say(f"  {past.hash_statement(surface.symbols)}", style="green")
        _print_previous_window_hint(surface, view, past)
        return
    out = next((e for e in window.ledger if e.fate is Fate.LEFT_OUT), None)
    if out is not None:
        then = output.escape_line(view.command_line("--why", str(out.first)))
        # Not wrapped, so that the command can be copied.
        say(f"  why is #{out.first:,} out?   {then}", style="dim", soft_wrap=True)


def _print_previous_window_hint(surface: Output, view: _WindowView, past: RecordedWindowView) -> None:
    earlier = view.session.recorded_windows(1, before=past.row.version)
    if earlier:
        options = ("--diff", str(earlier[0].version), str(past.row.version))
        then = hints.command_line("context", *options, named=view.session.id, on=view.wanted.store_options)
        told = f"  what changed since the previous window?   {output.escape_line(then)}"
        surface.console.print(told, style="dim", soft_wrap=True)


def _print_explanation(surface: Output, view: _WindowView, number: int) -> None:
    told = view.window.explain(number)
    entry = view.window.ledger.entry_of(number)
    assert entry is not None, "explained above"
    needed = None
    if view.recording is None and entry.fate in (Fate.LEFT_OUT, Fate.SUMMARISED):
        needed = _smallest_budget(view, number)
    if surface.mode is OutputMode.JSON:
        surface.print_json({
            "message": number, "fate": str(entry.fate), "rule": entry.rule, "tokens": entry.tokens,
            "budget_needed": needed,
        })  # fmt: skip
        return
    if surface.ascii:
        told = told.replace("–", "-")
    print(output.escape_line(told))
    if needed is not None:
        print(f"it is in with a budget of {needed:,} tokens, or if it is pinned")


def _smallest_budget(view: _WindowView, number: int) -> int | None:
    """Return the smallest budget that includes a message, by binary search; None if no budget does."""

    def inside(budget: int) -> bool:
        entry = view.window_now(budget).ledger.entry_of(number)
        return entry is not None and entry.fate is Fate.KEPT

    low, high = view.window.budget, view.window.budget * 2
    while not inside(high):
        low, high = high, high * 2
        if high > max(view.session.total_tokens, 1) * 8:
            return None
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if inside(middle) else (middle, high)
    return high


def _print_what_if(surface: Output, now: Window, then: Window) -> None:
    difference = now.diff(then)
    if surface.mode is OutputMode.JSON:
        surface.print_json({
            "budget": now.budget, "what_if": then.budget, "tokens": now.tokens, "tokens_then": then.tokens,
            "messages": len(now), "messages_then": len(then),
            "gone": [message.id for message in difference.gone],
            "new": [message.id for message in difference.new],
        })  # fmt: skip
        return
    print(f"{now.budget:,} tokens: {output.quantity(len(now), 'message')}, {now.tokens:,} tokens")
    print(f"{then.budget:,} tokens: {output.quantity(len(then), 'message')}, {then.tokens:,} tokens")
    print(f"{len(difference.new):,} added, {len(difference.gone):,} removed")
