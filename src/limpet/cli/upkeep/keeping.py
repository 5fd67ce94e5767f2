"""`limpet retention`: what ended long ago goes, and why the rest stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from limpet.cli import again, asking, exits, figures, target
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface

if TYPE_CHECKING:
    from limpet.admin.retention import Retained
    from limpet.wiring import Limpet

_SHOWN = 20
"""Sessions that a terminal names for each list."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """For how long, and how."""

    keep: str
    dry_run: bool = False
    memory: bool = True
    yes: bool = False


def run(wanted: Wanted, common: Common) -> int:
    """Say what would go; if it is to, ask, and let it go."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    days = (figures.length("--keep", wanted.keep, figures.DAYS) or 0.0) / 86_400
    with target.opened(common, opener=lambda url: _opened(url, wanted, common)) as lp:
        told = lp.admin.retention(days, dry_run=True)
        if not wanted.dry_run and told.gone:
            count = figures.count(len(told.gone), "session")
            question = f"erase {count} in {target.named(common.url)}, for good?"
            asking.confirm(surface, question, yes=wanted.yes)
            told = lp.admin.retention(days)
    _show(surface, told)
    if told.dry_run and told.gone:
        command = again.command("retention", *again.option("--keep", wanted.keep), on=common.on)
        surface.note(f"Nothing was changed. To let them go: {command}")
    return exits.DONE


def _opened(url: str, wanted: Wanted, common: Common) -> Limpet:
    import limpet  # noqa: PLC0415 - the package is loaded by now; this only names it

    return limpet.connect(url, tenant=common.tenant, memory=wanted.memory)


def _show(surface: Surface, told: Retained) -> None:
    if surface.face is Face.JSON:
        surface.document(msgspec.to_builtins(told))
        return
    word = "would go" if told.dry_run else "gone"
    if surface.face is Face.PIPE:
        for session_id in told.gone:
            surface.row(word, session_id)
        for kept in told.kept:
            surface.row("stays", kept.session_id, kept.why, kept.other)
        surface.note(
            f"{figures.count(len(told.gone), 'session')} {word}, {sum(told.stays.values()):,} stay."
        )
        return
    from limpet.admin.retention import KEEP_REASON_TEXTS, KeepReason  # noqa: PLC0415 - only a terminal shows them

    surface.say(f"{surface.glyphs.good} {figures.count(len(told.gone), 'session')} {word}")
    for session_id in told.gone[:_SHOWN]:
        surface.say(f"  {surface.glyphs.dot} {session_id}")
    for why, count in told.stays.items():
        surface.say(f"{figures.count(count, 'session')} stay: {KEEP_REASON_TEXTS[KeepReason(why)]}")
        named = [kept for kept in told.kept if kept.why == why]
        for kept in named[:_SHOWN]:
            because = f" ({kept.other})" if kept.other else ""
            surface.say(f"  {surface.glyphs.dot} {kept.session_id}{because}")
