"""`limpet context`: the window of a session, now or as recorded, with the reason for each message.

Also compares two recorded windows, and finds the budget that a message needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from limpet import errors, limits
from limpet.cli import exit_codes, formatting, hints, output, target
from limpet.cli.options import CommonOptions
from limpet.cli.output import Output, OutputMode, Symbols
from limpet.core.values.context import Fate

if TYPE_CHECKING:
    from limpet.core.values.context import LedgerEntry
    from limpet.core.values.messages import Message
    from limpet.core.values.validation import Json
    from limpet.core.windows.pack import ContextPack
    from limpet.core.windows.window import Window, WindowDifference
    from limpet.sessions.manager import Session
    from limpet.sessions.windows import RecordedWindow


_HASH_CHARS = 12
_DIFF_WIDTH_MAX = 78
CAUSE_UNKNOWN = "both budget and conversation changed; which of them did it can't be told"


class RecordedWindowView(NamedTuple):
    """A recorded window, made again."""

    row: RecordedWindow
    window: Window

    def hash_statement(self, glyphs: Symbols) -> str:
        """Say that it is the same."""
        short = self.row.digest[:_HASH_CHARS]
        return f"rebuilt byte for byte: its hash {short}{glyphs.cut} is the recorded one  {glyphs.good}"


class RecordingPage(NamedTuple):
    """Which of the recorded windows."""

    limit: int | None
    before: int | None


class WindowDiffRow(NamedTuple):
    """Messages that follow on each other and are in one of two windows alone."""

    sign: str
    first: int | None
    last: int | None
    messages: int
    tokens: int
    role: str
    text: str
    ids: tuple[str, ...]


def rebuild_window(session: Session, version: int) -> RecordedWindowView:
    """Return the window that was recorded with an event; raise what names the nearest ones."""
    try:
        row = session.recorded_window(version)
    except errors.WindowNotFound as error:
        raise exit_codes.CommandFailure(_nearest_windows_problem(error, session)) from error
    window = session.window_of(row.message_id)
    if window.digest != row.digest:
        raise errors.Corrupt("a recorded window can't be made again as it was.", facts={"event": row.version})
    return RecordedWindowView(row, window)


def _nearest_windows_problem(error: errors.WindowNotFound, session: Session) -> exit_codes.CommandProblem:
    before, after = error.facts["before"], error.facts["after"]
    near = [event for event in (before, after) if isinstance(event, int)]
    if not near:
        why, then = "No window is recorded in this session.", error.hint
        return exit_codes.CommandProblem(exit_codes.NOT_FOUND, error.code, error.message, why, then, error.facts)
    sides = [
        f"the nearest {side} is event {event:,}"
        for side, event in (("before", before), ("after", after))
        if event is not None
    ]
    told = ", ".join(sides)
    asked = error.facts["version"]
    assert isinstance(asked, int), "as it was asked for"
    nearest = min(near, key=lambda event: abs(event - asked))
    return exit_codes.CommandProblem(
        exit_codes.NOT_FOUND,
        error.code,
        error.message,
        f"{told[0].upper()}{told[1:]}.",
        "",
        error.facts,
        ("context", "--at", str(nearest)),
        subject=session.id,
    )


def recording_document(row: RecordedWindow) -> dict[str, Json]:
    """Return what is known of a recorded window, as JSON."""
    return {
        "event": row.version, "answer_event": row.answer, "message": row.message_id,
        "number": row.number, "recorded_at": row.recorded_at, "session": row.session_id,
        "version": row.seen, "messages": row.messages, "budget": row.budget, "tokens": row.tokens,
        "counter": row.counter, "exact": row.exact, "level": row.level.name.lower(), "hash": row.digest,
    }  # fmt: skip


def print_recordings(surface: Output, session: Session, part: RecordingPage, common: CommonOptions) -> None:
    """Print recorded windows, newest first, and how to get the next page."""
    limit = limits.RECORDED_PAGE if part.limit is None else part.limit
    rows = session.recorded_windows(limit, before=part.before)
    last = rows[-1].version if rows else 1
    more = last > 1 and bool(session.recorded_windows(1, before=last))
    if surface.mode is OutputMode.JSON:
        surface.print_json({
            "session": session.id, "windows": [recording_document(row) for row in rows],
            "next_before": last if more else None,
        })  # fmt: skip
        return
    if surface.mode is OutputMode.PIPE:
        for row in rows:
            surface.print_row(
                row.version, row.number, row.messages, row.budget, row.tokens,
                row.level.name.lower(), row.digest, row.message_id, row.recorded_at,
            )  # fmt: skip
    elif rows:
        _print_recordings_table(surface, rows)
    if not rows:
        surface.note("No window is recorded: add_message(reply, window=window) records one.")
    if more:
        options = ("--recorded", "--limit", str(limit), "--before", str(last))
        then = hints.command_line("context", *options, named=session.id, on=common.store_options)
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
    """Print how one recorded window became another."""
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
    numbers = formatting.message_numbers(window)
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
    results = formatting.quantity(len(message.tool_results), "result")
    return results if message.tool_results else "content in parts"


def _first_change_label(a: Window, b: Window, difference: WindowDifference) -> str | None:
    """Name the first message at which the windows part; None if they never do."""
    at_ = difference.same
    for window in (b, a):
        if at_ < len(window):
            number = formatting.message_numbers(window)[at_]
            return "the summary" if number is None else f"#{number:,}"
    return None


def difference_cause(a: Window, b: Window, difference: WindowDifference) -> str:
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
            return "new messages at the end" if older else "B is older: what came later is not in it"
        if budgets:
            return CAUSE_UNKNOWN
    if budgets:
        return f"budget: {a.budget - a.overhead:,}, then {b.budget - b.overhead:,} tokens for messages"
    reasons: list[str] = []
    if a.level is not b.level:
        reasons.append(f"level: {a.level.name.lower()}, then {b.level.name.lower()}")
    before, after = formatting.cut_number(a.ledger), formatting.cut_number(b.ledger)
    if before != after:
        reasons.append(f"cut: at {_cut_label(before)}, then at {_cut_label(after)}")
    return "; ".join(reasons) or "the choice of messages"


def _cut_label(cut: int | None) -> str:
    return "the beginning" if cut is None else f"#{cut:,}"


def _prefix_statement(difference: WindowDifference, start: str | None, why: str) -> str:
    share = f"{difference.share * 100:.0f} %"
    where = f"; first change: {start}" if start is not None else ""
    return (
        f"prefix identical for {formatting.quantity(difference.same_tokens, 'token')} ({share}){where}. Cause: {why}."
    )


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
    rows = [("=", f"{formatting.quantity(difference.common, 'message')} in both", difference.common_tokens)]
    rows += [(change.sign, _diff_label(change, surface), change.tokens) for change in changes]
    styles = {"=": "", "-": "red", "+": "green"}
    for sign, text, tokens in rows:
        figure = f"{tokens:,}"
        room = max(width - 6 - len(figure), 12)
        shown = output.escape_line(text)
        shown = _truncated(shown, room, surface.symbols.cut)
        say(f"  {sign}  {shown}{' ' * (room - _text_width(shown))} {figure}", style=styles[sign], soft_wrap=True)


def _diff_label(change: WindowDiffRow, surface: Output) -> str:
    if change.first is None:
        return f"{change.role}  {change.text}"
    dash = "-" if surface.ascii else "–"
    where = f"#{change.first:,}"
    if change.last is not None and change.last != change.first:
        where += f"{dash}#{change.last:,}"
    return "  ".join(part for part in (where, change.role, change.text) if part)


def _text_width(text: str) -> int:
    from rich.cells import cell_len  # noqa: PLC0415 - only a terminal pays for rich

    return cell_len(text)


def _truncated(text: str, room: int, mark: str) -> str:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - only a terminal pays for rich

    if cell_len(text) <= room:
        return text
    return set_cell_size(text, room - len(mark)) + mark


DEFAULT_BUDGET = 8_000


@dataclass(frozen=True, kw_only=True)
class ContextCommandOptions:
    """Which window, and what is asked about it."""

    budget: int | None = None
    model: str | None = None
    counter: str | None = None
    why: int | None = None
    what_if: int | None = None
    provider: str | None = None
    at: int | None = None
    diff: tuple[int, int] | None = None
    recorded: bool = False
    limit: int | None = None
    before: int | None = None

    @property
    def counting_options(self) -> tuple[str, ...]:
        """The options that decide who counts, as they were given."""
        model = hints.option_words("--model", self.model) if self.model is not None else ()
        return (*model, *hints.option_words("--counter", self.counter)) if self.counter is not None else model


class _WindowView:
    """A window to show: made now, or recorded and made again."""

    def __init__(self, session: Session, wanted: ContextCommandOptions, common: CommonOptions) -> None:
        self.session, self.wanted, self.common = session, wanted, common
        self.recording = None if wanted.at is None else rebuild_window(session, wanted.at)
        budget = wanted.budget if wanted.budget or session.policy else DEFAULT_BUDGET
        self.window = self.recording.window if self.recording else self.window_now(budget)

    def window_now(self, budget: int | None) -> Window:
        """Make the window of a budget; None: as the session's policy has it."""
        return self.session.window(budget, model=self.wanted.model, counter=self.wanted.counter)

    def command_line(self, *options: str) -> str:
        """Return the command that makes this window now, with something asked about it."""
        which = ("--budget", str(self.window.budget), *self.wanted.counting_options)
        return hints.command_line("context", *which, *options, named=self.session.id, on=self.common.store_options)


def show_context(reference: str, wanted: ContextCommandOptions, common: CommonOptions) -> int:
    """Print a window of a session, or what became of one message in it."""
    _check_options(wanted)
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        session = target.find_session(lp, reference)
        if wanted.recorded:
            print_recordings(surface, session, RecordingPage(wanted.limit, wanted.before), common)
        elif wanted.diff is not None:
            print_difference(surface, session, *wanted.diff)
        else:
            _print_view(surface, _WindowView(session, wanted, common))
    return exit_codes.DONE


def _check_options(wanted: ContextCommandOptions) -> None:
    """Refuse options that mean nothing together."""
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
    together = [*past, *now]
    if past and now:
        raise _usage_failure(together, "A recorded window has its own budget and counter.")
    if len(past) > 1 or len(view) > 1:
        raise _usage_failure(past if len(past) > 1 else view, "Each asks for something else.")
    if view and past and past != ["--at"]:
        raise _usage_failure([*past, *view], "It is asked of one window.")
    if paged and past != ["--recorded"]:
        raise _usage_failure(paged, "It is for the list of recorded windows.", "Add --recorded.")


def _usage_failure(names: list[str], why: str, then: str = "Give one of them.") -> exit_codes.CommandFailure:
    told = " and ".join(names)
    what = f"{told} can't be given together." if len(names) > 1 else f"{told} needs --recorded."
    return exit_codes.CommandFailure(exit_codes.CommandProblem(exit_codes.USAGE, "usage", what, why, then))


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
    """Return the request that a provider takes."""
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
    """Return all that there is to say of a window, as JSON."""
    counted = formatting.window_coverage(window)
    return {
        "session": session.id,
        "version": session.version,
        "budget": window.budget,
        "tokens": window.tokens,
        "counter": window.counter,
        "exact": window.exact,
        "level": window.level.name.lower(),
        "cut": formatting.cut_number(window.ledger),
        "hash": window.digest,
        "by_part": formatting.tokens_by_part(window),
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
    for line, style in formatting.window_lines(window, surface.symbols, plain=surface.ascii, width=width):
        say(line, style=style, soft_wrap=True)
    if past is not None:
        say(f"  {past.hash_statement(surface.symbols)}", style="green")
        _print_previous_window_hint(surface, view, past)
        return
    out = next((e for e in window.ledger if e.fate is Fate.LEFT_OUT), None)
    if out is not None:
        then = output.escape_line(view.command_line("--why", str(out.first)))
        # Not wrapped: it is to be copied.
        say(f"  why is #{out.first:,} out?   {then}", style="dim", soft_wrap=True)


def _print_previous_window_hint(surface: Output, view: _WindowView, past: RecordedWindowView) -> None:
    """Name the recorded window before this one, to compare."""
    earlier = view.session.recorded_windows(1, before=past.row.version)
    if earlier:
        options = ("--diff", str(earlier[0].version), str(past.row.version))
        on = view.common.store_options
        then = hints.command_line("context", *options, named=view.session.id, on=on)
        told = f"  what changed since the one before?   {output.escape_line(then)}"
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
        print(f"in with a budget of {needed:,}, or if it is pinned")


def _smallest_budget(view: _WindowView, number: int) -> int | None:
    """Return the smallest budget with which a message is in, by halving; None if none is large enough."""

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
    print(f"{now.budget:,} tokens: {formatting.quantity(len(now), 'message')}, {now.tokens:,} tokens")
    print(f"{then.budget:,} tokens: {formatting.quantity(len(then), 'message')}, {then.tokens:,} tokens")
    print(f"{len(difference.new):,} come in, {len(difference.gone):,} go")
