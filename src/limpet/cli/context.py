"""`limpet context`: what a model would see of a session now, or has seen, what not, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet.cli import again, exits, figures, picture, recalled, references, target, visible
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values.context import Fate

if TYPE_CHECKING:
    from limpet.core.values.context import LedgerEntry
    from limpet.core.values.json_values import Json
    from limpet.core.windows.pack import ContextPack
    from limpet.core.windows.window import Window
    from limpet.sessions.manager import Session

BUDGET = 8_000


@dataclass(frozen=True, kw_only=True)
class Wanted:
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
    def counting(self) -> tuple[str, ...]:
        """The options that decide who counts, as they were given."""
        model = again.option("--model", self.model) if self.model is not None else ()
        return (
            (*model, *again.option("--counter", self.counter))
            if self.counter is not None
            else model
        )


class _View:
    """A window to show: made now, or recorded and made again."""

    def __init__(self, session: Session, wanted: Wanted, common: Common) -> None:
        self.session, self.wanted, self.common = session, wanted, common
        self.past = None if wanted.at is None else recalled.at(session, wanted.at)
        budget = wanted.budget if wanted.budget or session.policy else BUDGET
        self.window = self.past.window if self.past else self.now(budget)

    def now(self, budget: int | None) -> Window:
        """Make the window of a budget; None: as the session's policy has it."""
        return self.session.window(budget, model=self.wanted.model, counter=self.wanted.counter)

    def again(self, *options: str) -> str:
        """Return the command that makes this window now, with something asked about it."""
        which = ("--budget", str(self.window.budget), *self.wanted.counting)
        return again.command("context", *which, *options, named=self.session.id, on=self.common.on)


def run(reference: str, wanted: Wanted, common: Common) -> int:
    """Print a window of a session, or what became of one message in it."""
    _check(wanted)
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        session = references.session(lp, reference)
        if wanted.recorded:
            recalled.show_list(surface, session, recalled.Part(wanted.limit, wanted.before), common)
        elif wanted.diff is not None:
            recalled.show_difference(surface, session, *wanted.diff)
        else:
            _print(surface, _View(session, wanted, common))
    return exits.DONE


def _check(wanted: Wanted) -> None:
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
        [name for name, value in options if value is not None]
        for options in (chosen, asked, made, page)
    )
    together = [*past, *now]
    if past and now:
        raise _misuse(together, "A recorded window has its own budget and counter.")
    if len(past) > 1 or len(view) > 1:
        raise _misuse(past if len(past) > 1 else view, "Each asks for something else.")
    if view and past and past != ["--at"]:
        raise _misuse([*past, *view], "It is asked of one window.")
    if paged and past != ["--recorded"]:
        raise _misuse(paged, "It is for the list of recorded windows.", "Add --recorded.")


def _misuse(names: list[str], why: str, then: str = "Give one of them.") -> exits.Failure:
    told = " and ".join(names)
    what = f"{told} can't be given together." if len(names) > 1 else f"{told} needs --recorded."
    return exits.Failure(exits.Problem(exits.USAGE, "usage", what, why, then))


def _print(surface: Surface, view: _View) -> None:
    wanted, window = view.wanted, view.window
    if wanted.why is not None:
        _why(surface, view, wanted.why)
    elif wanted.what_if is not None:
        _what_if(surface, window, view.now(wanted.what_if))
    elif wanted.provider is not None:
        surface.document(rendered(window, wanted.provider))
    elif surface.face is Face.JSON:
        surface.document(document(view.session, window) | _past(view))
    elif surface.face is Face.PIPE:
        for entry in window.ledger:
            surface.row(*_cells(entry))
        if view.past is not None:
            surface.note(view.past.told(surface.glyphs))
    else:
        _show(surface, view)


def rendered(window: Window | ContextPack, provider: str) -> Json:
    """Return the request that a provider takes."""
    return {
        "openai": window.to_openai,
        "responses": window.to_openai_responses,
        "anthropic": window.to_anthropic,
        "gemini": window.to_gemini,
    }[provider]()


def _cells(entry: LedgerEntry) -> tuple[object, ...]:
    category = entry.category.name.lower() if entry.category else ""
    return (entry.first, entry.last, entry.fate, entry.tokens, entry.used, category, entry.rule)


def _past(view: _View) -> dict[str, Json]:
    if view.past is None:
        return {"at": None, "recorded": None}
    row = view.past.row
    return {"version": row.seen, "at": row.version, "recorded": recalled.document(row)}


def document(session: Session, window: Window) -> dict[str, Json]:
    """Return all that there is to say of a window, as JSON."""
    counted = picture.coverage(window)
    return {
        "session": session.id,
        "version": session.version,
        "budget": window.budget,
        "tokens": window.tokens,
        "counter": window.counter,
        "exact": window.exact,
        "level": window.level.name.lower(),
        "cut": picture.cut(window.ledger),
        "hash": window.digest,
        "by_part": picture.parts(window),
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


def _show(surface: Surface, view: _View) -> None:
    session, window, past = view.session, view.window, view.past
    dot, say = surface.glyphs.dot, surface.console.print
    title = visible.line(session.title or session.state.preview or "")
    when = f"version {session.version:,}"
    if past is not None:
        when = f"recorded with event {past.row.version:,}, answer #{past.row.number:,}"
    kind = "exact" if window.exact else "estimated"
    heading = f"{session.id}  {title} {dot} {when} {dot} {window.counter}, {kind}"
    say(visible.line(heading), style="bold")
    say()
    width = surface.console.width
    for line, style in picture.lines(window, surface.glyphs, plain=surface.ascii, width=width):
        say(line, style=style, soft_wrap=True)
    if past is not None:
        say(f"  {past.told(surface.glyphs)}", style="green")
        _before(surface, view, past)
        return
    out = next((e for e in window.ledger if e.fate is Fate.LEFT_OUT), None)
    if out is not None:
        then = visible.line(view.again("--why", str(out.first)))
        # Not wrapped: it is to be copied.
        say(f"  why is #{out.first:,} out?   {then}", style="dim", soft_wrap=True)


def _before(surface: Surface, view: _View, past: recalled.Past) -> None:
    """Name the recorded window before this one, to compare."""
    earlier = view.session.recorded_windows(1, before=past.row.version)
    if earlier:
        options = ("--diff", str(earlier[0].version), str(past.row.version))
        on = view.common.on
        then = again.command("context", *options, named=view.session.id, on=on)
        told = f"  what changed since the one before?   {visible.line(then)}"
        surface.console.print(told, style="dim", soft_wrap=True)


def _why(surface: Surface, view: _View, number: int) -> None:
    told = view.window.explain(number)
    entry = view.window.ledger.of(number)
    assert entry is not None, "explained above"
    needed = None
    if view.past is None and entry.fate in (Fate.LEFT_OUT, Fate.SUMMARISED):
        needed = _needed(view, number)
    if surface.face is Face.JSON:
        surface.document({
            "message": number, "fate": str(entry.fate), "rule": entry.rule, "tokens": entry.tokens,
            "budget_needed": needed,
        })  # fmt: skip
        return
    if surface.ascii:
        told = told.replace("–", "-")
    print(visible.line(told))
    if needed is not None:
        print(f"in with a budget of {needed:,}, or if it is pinned")


def _needed(view: _View, number: int) -> int | None:
    """Return the smallest budget with which a message is in, by halving; None if none is large enough."""

    def inside(budget: int) -> bool:
        entry = view.now(budget).ledger.of(number)
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


def _what_if(surface: Surface, now: Window, then: Window) -> None:
    difference = now.diff(then)
    if surface.face is Face.JSON:
        surface.document({
            "budget": now.budget, "what_if": then.budget, "tokens": now.tokens, "tokens_then": then.tokens,
            "messages": len(now), "messages_then": len(then),
            "gone": [message.id for message in difference.gone],
            "new": [message.id for message in difference.new],
        })  # fmt: skip
        return
    print(f"{now.budget:,} tokens: {figures.count(len(now), 'message')}, {now.tokens:,} tokens")
    print(f"{then.budget:,} tokens: {figures.count(len(then), 'message')}, {then.tokens:,} tokens")
    print(f"{len(difference.new):,} come in, {len(difference.gone):,} go")
