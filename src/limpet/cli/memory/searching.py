"""`limpet search`: what a user ever said or was told, the best first."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet import errors
from limpet.cli import again, exits, figures, references, target, visible
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values import ids
from limpet.core.windows import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpet.core.values.json_values import Json
    from limpet.core.values.memory_records import Hit, Said
    from limpet.wiring import Limpet

_LINE_CHARS = 400


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to look for, whose, under which conditions, how many, and with how much around each."""

    query: str
    user: str
    role: str | None = None
    since: str | None = None
    until: str | None = None
    session: str | None = None
    around: int = 0
    limit: int = 10


def run(wanted: Wanted, common: Common) -> int:
    """Print hits."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    since, until = figures.moment("--since", wanted.since), figures.moment("--until", wanted.until)
    with target.opened(common) as lp:
        session = references.session(lp, wanted.session).id if wanted.session else None
        found = lp.archive.search(
            wanted.query, user_id=wanted.user or None, k=wanted.limit, role=wanted.role,
            since=since, until=until, session_id=session,
        )  # fmt: skip
        stranger = (
            not found
            and not session
            and not lp.sessions.list_sessions(1, user_id=wanted.user or None)
        )
        earlier = _earlier(lp, found) if surface.face is Face.TERMINAL else frozenset[int]()
        beside = {hit.position: around(lp, hit, wanted.around) for hit in found}
    if surface.face is Face.JSON:
        hits = [_document(hit, beside[hit.position]) for hit in found]
        surface.document({"hits": hits, "behind": found.behind})
    elif surface.face is Face.PIPE:
        for hit in found:
            surface.row(
                hit.session_id, hit.number, hit.role, ids.iso(hit.time_us), f"{hit.score:.3f}",
                hit.message_id, hit.excerpt,
            )  # fmt: skip
    else:
        for hit in found:
            _show(surface, hit, beside[hit.position], earlier=hit.position in earlier)
    if not found and surface.face is not Face.JSON:
        surface.note(_nothing(wanted, common) if stranger else "Nothing was found.")
    if found.behind:
        surface.note(
            f"{figures.count(found.behind, 'event')} not searched yet. A worker takes them in:"
            f" {again.command('worker', '--once', on=again.on(common.url, 'default'))}"
        )
    if found and not wanted.around:
        surface.note(f"To read around a hit: {_nearer(wanted, common)}")
    return exits.DONE


def _nothing(wanted: Wanted, common: Common) -> str:
    known = again.command("sessions list", on=common.on)
    return f"Nothing was found: no session here is of {wanted.user!r}. Whose there are: {known}"


def around(lp: Limpet, hit: Hit, count: int) -> Sequence[Said]:
    """Return what was said around a hit, itself included; nothing if nobody asked for it."""
    return lp.archive.open(hit, around=count) if count else ()


def said(one: Said) -> dict[str, Json]:
    """Return a message and its place as JSON."""
    return {
        "session": one.session_id,
        "number": one.number,
        "position": one.position,
        "time": ids.iso(one.time_us),
        "message": one.message.to_dict(),
    }


def _document(hit: Hit, beside: Sequence[Said]) -> dict[str, Json]:
    data: dict[str, Json] = {
        "session": hit.session_id,
        "generation": hit.generation,
        "number": hit.number,
        "message": hit.message_id,
        "position": hit.position,
        "role": hit.role,
        "time": ids.iso(hit.time_us),
        "score": hit.score,
        "excerpt": hit.excerpt,
    }
    return {**data, "around": [said(one) for one in beside]} if beside else data


def _earlier(lp: Limpet, found: Sequence[Hit]) -> frozenset[int]:
    """Return the hits that were said before their session was reset: their numbers are not those it has now."""
    now: dict[str, int] = {}
    for hit in found:
        if hit.session_id not in now:
            with contextlib.suppress(errors.NotFound):
                now[hit.session_id] = lp.sessions.get_session(hit.session_id).state.generation
    return frozenset(
        hit.position for hit in found if hit.generation < now.get(hit.session_id, hit.generation)
    )


def _show(surface: Surface, hit: Hit, beside: Sequence[Said], *, earlier: bool) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    where = f"{hit.session_id} #{hit.number:,}" + (" before a reset" if earlier else "")
    when = figures.ago(ids.iso(hit.time_us))
    head = Text.assemble(
        (visible.line(where), "cyan"), f"  {hit.role}  ", (when, "dim"), no_wrap=True
    )
    surface.console.print(head, soft_wrap=True)
    if not beside:
        surface.console.print(Text(f"  {visible.line(hit.excerpt)}"))
    for one in beside:
        show_said(surface, one, here=one.position == hit.position)


def show_said(surface: Surface, one: Said, *, here: bool) -> None:
    """Print one message of some that stand together; the one that is meant is marked."""
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    text = visible.line(summary.message_text(one.message))
    shown = text if len(text) <= _LINE_CHARS else f"{text[:_LINE_CHARS]}{surface.glyphs.cut}"
    mark = surface.glyphs.to if here else " "
    style = "bold" if here else "dim"
    surface.console.print(
        Text(f"  {mark} {one.number:>5,} {one.message.role:<9} {shown}", style=style)
    )


def _nearer(wanted: Wanted, common: Common) -> str:
    given = [
        ("--user", wanted.user), ("--role", wanted.role), ("--since", wanted.since),
        ("--until", wanted.until), ("--session", wanted.session), ("--around", 2),
    ]  # fmt: skip
    words = [
        word for name, value in given if value is not None for word in again.option(name, value)
    ]
    return again.command("search", *words, named=wanted.query, on=common.on)
