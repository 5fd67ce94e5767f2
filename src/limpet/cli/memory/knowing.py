"""`limpet memory profile`, `list`, `why` and `search`: what is known of a user, and who said so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet import errors
from limpet.cli import again, exits, figures, target, visible
from limpet.cli.memory import searching
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values import ids

_PREFIX = "fact_"
_SHORT = len(_PREFIX) + 8

if TYPE_CHECKING:
    from limpet.core.values.json_values import Json
    from limpet.core.values.memory_records import Fact, Recalled
    from limpet.wiring import Limpet


def profile(user: str, budget: int, common: Common) -> int:
    """Print what a new session would be told of a user."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        found = lp.memory.profile(user, budget)
        known = bool(found.facts or lp.memory.facts(user))
    if surface.face is Face.JSON:
        surface.document(
            {
                "user": user,
                "budget": budget,
                "tokens": found.tokens,
                "text": found.text,
                "facts": [_document(fact) for fact in found.facts],
            }
        )
    elif found.text:
        print(visible.lines(found.text))
        surface.note(
            f"{found.tokens:,} of {budget:,} tokens, {figures.count(len(found.facts), 'fact')}."
            f" Each with its source: {again.command('memory list', named=user, on=common.on)}"
        )
    elif known:
        surface.note(
            f"Nothing of what is known of {user!r} fits into {budget:,} tokens. Raise --budget."
        )
    else:
        _nothing(surface, user, common)
    return exits.DONE


def facts(user: str, *, all_: bool, common: Common) -> int:
    """Print what is known of a user, the newest first."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        known = lp.memory.facts(user)
    found = [fact for fact in known if all_ or fact.until_us is None]
    if surface.face is Face.JSON:
        surface.document({"user": user, "facts": [_document(fact) for fact in found]})
    elif surface.face is Face.PIPE:
        for fact in found:
            until = ids.iso(fact.until_us) if fact.until_us is not None else None
            surface.row(
                fact.id, fact.kind, fact.about, ids.iso(fact.since_us), until,
                fact.source.session_id, fact.source.message_id, fact.text,
            )  # fmt: skip
    elif found:
        _table(surface, found)
        command = again.command("memory why", _short(found[0]), named=user, on=common.on)
        surface.note(f"Who said so: {command}")
    elif known:
        command = again.command("memory list", "--all", named=user, on=common.on)
        surface.note(f"Nothing holds any more. What held once: {command}")
    else:
        _nothing(surface, user, common)
    return exits.DONE


def _table(surface: Surface, found: list[Fact]) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    rows = [
        [
            Text(_short(fact), style="cyan"),
            Text(fact.kind),
            Text(figures.ago(ids.iso(fact.since_us))),
            Text("now" if fact.until_us is None else f"until {ids.iso(fact.until_us)[:10]}"),
            Text(visible.line(fact.text), style="" if fact.until_us is None else "dim"),
        ]
        for fact in found
    ]
    surface.listed(["ID", "KIND", "SAID", "HOLDS", "FACT"], rows)


def _short(fact: Fact) -> str:
    return fact.id[:_SHORT]


def why(user: str, reference: str, around: int, common: Common) -> int:
    """Print the message that a fact comes from, and what was said around it."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        fact = _named(lp, user, reference)
        source = fact.source
        beside = lp.archive.open((source.session_id, source.message_id), around=around)
    if surface.face is Face.JSON:
        surface.document(
            {"fact": _document(fact), "around": [searching.said(one) for one in beside]}
        )
    elif surface.face is Face.PIPE:
        for one in beside:
            surface.row(
                one.session_id, one.number, one.message.role, ids.iso(one.time_us), one.message.id,
                one.message.content if isinstance(one.message.content, str) else "",
            )  # fmt: skip
    else:
        surface.say(f"{fact.text}  ({fact.kind}, said {figures.ago(ids.iso(fact.since_us))})")
        surface.say(source.session_id)
        for one in beside:
            searching.show_said(surface, one, here=one.position == source.position)
    return exits.DONE


def _named(lp: Limpet, user: str, reference: str) -> Fact:
    known = list(lp.memory.facts(user))
    wanted = _PREFIX + reference.removeprefix(_PREFIX)
    found = [fact for fact in known if fact.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    several = "is the beginning of more than one fact's id" if found else "names no fact"
    raise exits.Failure(
        exits.Problem(
            exits.USAGE if found else exits.NOT_FOUND,
            "ambiguous_id" if found else errors.NotFound.code,
            f"{reference!r} {several} of {user!r}.",
            f"It could be {', '.join(map(_short, found[:3]))}{' and more' if len(found) > 3 else ''}."
            if found
            else f"Memory has {figures.count(len(known), 'fact')} of this user, what held once included.",
            "Give more of the id, or list them:" if found else "",
            command=("memory list", "--all"),
            named=user,
        )
    )


def recall(user: str, query: str, limit: int, common: Common) -> int:
    """Print what memory finds, facts and messages, the best first."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        found = list(lp.memory.search(user, query, limit))
    if surface.face is Face.JSON:
        surface.document({"user": user, "found": [_recalled(one) for one in found]})
    elif surface.face is Face.PIPE:
        for one in found:
            source = one.source
            surface.row(
                one.kind or "message", f"{one.score:.4f}", ids.iso(one.time_us),
                source.session_id if source else "", source.message_id if source else "", one.text,
            )  # fmt: skip
    else:
        for one in found:
            _show(surface, one)
    if not found and surface.face is not Face.JSON:
        surface.note("Nothing was found.")
    return exits.DONE


def _show(surface: Surface, one: Recalled) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    place = visible.line(one.source.session_id) if one.source else ""
    when = figures.ago(ids.iso(one.time_us))
    head = Text.assemble((place, "cyan"), f"  {one.kind or 'message'}  ", (when, "dim"))
    surface.console.print(head, soft_wrap=True)
    surface.console.print(Text(f"  {visible.line(one.text)}"))


def _nothing(surface: Surface, user: str, common: Common) -> None:
    surface.note(
        f"Nothing is known of {user!r}. A worker learns from conversations that have ended:"
        f" {again.command('worker', '--once', on=again.on(common.url, 'default'))}"
    )


def _document(fact: Fact) -> dict[str, Json]:
    return {
        "id": fact.id,
        "kind": str(fact.kind),
        "about": fact.about,
        "text": fact.text,
        "since": ids.iso(fact.since_us),
        "until": ids.iso(fact.until_us) if fact.until_us is not None else None,
        "session": fact.source.session_id,
        "message": fact.source.message_id,
        "position": fact.source.position,
    }


def _recalled(one: Recalled) -> dict[str, Json]:
    return {
        "kind": str(one.kind) if one.kind else "message",
        "text": one.text,
        "score": one.score,
        "time": ids.iso(one.time_us),
        "session": one.source.session_id if one.source else None,
        "message": one.source.message_id if one.source else None,
        "position": one.source.position if one.source else None,
    }
