"""`holdfast context`: what a model would see of a session now, what it would not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.cli import exits, figures, references, target, visible
from holdfast.cli.options import Common
from holdfast.cli.surface import Face, Surface
from holdfast.values.context import Fate
from holdfast.values.message import MessageCategory

if TYPE_CHECKING:
    from holdfast.context.window import Window
    from holdfast.engine.sessions import Session
    from holdfast.values.context import Entry
    from holdfast.values.frozen import Json

BAR_CELLS = 52
_PARTS: tuple[str, ...] = ("system", "summary", "context", "dialog", "output", "besides", "free")
_UNICODE: Mapping[str, str] = dict(zip(_PARTS, "█▓▒▚░▪·", strict=True))
_ASCII: Mapping[str, str] = dict(zip(_PARTS, "SUCDOb.", strict=True))
_OF_CATEGORY: Mapping[MessageCategory, str] = {
    MessageCategory.SYSTEM: "system",
    MessageCategory.CONTEXT: "context",
    MessageCategory.DIALOG: "dialog",
    MessageCategory.SYSTEM_OUTPUT: "output",
}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which window, and what is asked about it."""

    budget: int
    model: str | None = None
    counter: str | None = None
    why: int | None = None
    what_if: int | None = None
    provider: str | None = None


def run(reference: str, wanted: Wanted, common: Common) -> int:
    """Print a window of a session, or what became of one message in it."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.connect(target.choose(common.url), tenant=common.tenant) as hf:
        session = references.session(hf, reference)
        window = _window(session, wanted, wanted.budget)
        if wanted.why is not None:
            _why(surface, session, wanted, window)
        elif wanted.what_if is not None:
            _what_if(surface, window, _window(session, wanted, wanted.what_if))
        elif wanted.provider is not None:
            surface.document(_rendered(window, wanted.provider))
        elif surface.face is Face.JSON:
            surface.document(document(session, window))
        elif surface.face is Face.PIPE:
            for entry in window.ledger:
                surface.row(*_cells(entry))
        else:
            _show(surface, session, window)
    return exits.DONE


def _window(session: Session, wanted: Wanted, budget: int) -> Window:
    return session.window(budget, model=wanted.model, counter=wanted.counter)


def _rendered(window: Window, provider: str) -> Json:
    return {
        "openai": window.to_openai,
        "responses": window.to_openai_responses,
        "anthropic": window.to_anthropic,
        "gemini": window.to_gemini,
    }[provider]()


def _cells(entry: Entry) -> tuple[object, ...]:
    category = entry.category.name.lower() if entry.category else ""
    return (entry.first, entry.last, entry.fate, entry.tokens, entry.used, category, entry.rule)


def parts(window: Window) -> dict[str, int]:
    """Return the tokens of a window by what they are for; together they are its budget."""
    found: dict[str, int] = dict.fromkeys(_PARTS, 0)
    for at, (message, size) in enumerate(zip(window.messages, window.sizes, strict=True)):
        found["summary" if at == window.summary_at else _OF_CATEGORY[message.category]] += size
    found["besides"] = window.overhead
    found["free"] = window.budget - window.tokens
    return found


def document(session: Session, window: Window) -> Json:
    """Return all that there is to say of a window, as JSON."""
    ledger = window.ledger
    return {
        "session": session.id,
        "version": session.version,
        "budget": window.budget,
        "tokens": window.tokens,
        "counter": window.counter,
        "exact": window.exact,
        "level": window.level.name.lower(),
        "by_part": parts(window),
        "coverage": {
            "messages": ledger.messages(),
            "in": ledger.messages(Fate.KEPT) + ledger.messages(Fate.SHORTENED),
            "shortened": ledger.messages(Fate.SHORTENED),
            "under_summary": ledger.messages(Fate.SUMMARISED),
            "left_out": ledger.messages(Fate.LEFT_OUT),
        },
        "items": [
            {
                "first": entry.first, "last": entry.last, "fate": str(entry.fate), "tokens": entry.tokens,
                "used": entry.used, "category": entry.category.name if entry.category else None,
                "rule": entry.rule,
            }
            for entry in ledger
        ],
        "messages": [message.to_dict() for message in window],
    }  # fmt: skip


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


def _show(surface: Surface, session: Session, window: Window) -> None:
    dot, glyphs = surface.glyphs.dot, _ASCII if surface.ascii else _UNICODE
    title = visible.line(session.title or session.state.preview or "")
    kind = "exact" if window.exact else "estimated"
    sizes = parts(window)
    bar = "".join(glyphs[name] * count for name, count in cells(sizes, BAR_CELLS).items())
    say = surface.console.print
    heading = (
        f"{session.id}  {title} {dot} version {session.version:,} {dot} {window.counter}, {kind}"
    )
    say(visible.line(heading), style="bold")
    share = window.tokens * 100 // window.budget
    say(f"\n  {bar}  {window.tokens:,} / {window.budget:,}  {share}%")
    legend = [f"{glyphs[name]} {name} {size:,}" for name, size in sizes.items() if size]
    say("  " + "  ".join(legend), style="dim")
    say()
    for line in window.explain().splitlines()[1:]:
        say(visible.line(line))
    _coverage(surface, window)
    say(f"\n  level {window.level.name.lower()}", style="dim")
    out = next((e for e in window.ledger if e.fate is Fate.LEFT_OUT), None)
    if out is not None:
        again = f"holdfast context {session.id} --budget {window.budget} --why {out.first}"
        say(f"  why is #{out.first:,} out?   {visible.line(again)}", style="dim")


def _coverage(surface: Surface, window: Window) -> None:
    ledger = window.ledger
    inside = ledger.messages(Fate.KEPT) + ledger.messages(Fate.SHORTENED)
    under, out = ledger.messages(Fate.SUMMARISED), ledger.messages(Fate.LEFT_OUT)
    text = f"  {figures.count(ledger.messages(), 'message')} = {inside:,} in + {under:,} under + {out:,} out"
    surface.console.print(f"{text}  {surface.glyphs.good}")


def _why(surface: Surface, session: Session, wanted: Wanted, window: Window) -> None:
    assert wanted.why is not None, "asked for"
    told = window.explain(wanted.why)
    entry = window.ledger.of(wanted.why)
    assert entry is not None, "explained above"
    needed = None
    if entry.fate in (Fate.LEFT_OUT, Fate.SUMMARISED):
        needed = _needed(session, wanted)
    if surface.face is Face.JSON:
        surface.document({
            "message": wanted.why, "fate": str(entry.fate), "rule": entry.rule, "tokens": entry.tokens,
            "budget_needed": needed,
        })  # fmt: skip
        return
    print(visible.line(told))
    if needed is not None:
        print(f"in with a budget of {needed:,}, or if it is pinned")


def _needed(session: Session, wanted: Wanted) -> int | None:
    """Return the smallest budget with which a message is in, by halving; None if none is large enough."""
    assert wanted.why is not None, "asked for"

    def inside(budget: int) -> bool:
        window = session.window(budget, model=wanted.model, counter=wanted.counter)
        entry = window.ledger.of(wanted.why or 0)
        return entry is not None and entry.fate is Fate.KEPT

    low, high = wanted.budget, max(wanted.budget, 1) * 2
    while not inside(high):
        low, high = high, high * 2
        if high > max(session.total_tokens, 1) * 8:
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
