"""`limpet rebuild`: drop all that is derived from the log, and make it again."""

from __future__ import annotations

import time

import msgspec

from limpet import errors
from limpet.cli import again, exits, figures, target
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.wiring import Limpet, store_schemes


def run(store: str | None, common: Common, *, accept_loss: bool, give_up_copy: bool) -> int:
    """Make it all again, whole or not at all."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    url = target.named(target.given(store, common))
    started = time.monotonic()

    def opener(url: str) -> Limpet:
        if give_up_copy:
            _give_up(surface, url, common.tenant)
        return _connected(url, common.tenant, surface if accept_loss else None)

    with (
        target.opened(common, store, opener=opener) as lp,
        surface.progress("going through events") as bar,
    ):
        made = lp.admin.rebuild(bar)
    seconds = time.monotonic() - started
    if surface.face is Face.JSON:
        document = {"store": url, **msgspec.structs.asdict(made), "seconds": round(seconds, 3)}
        surface.document(document)
    elif surface.face is Face.PIPE:
        surface.row(made.events, made.projections, made.claims, url)
    else:
        surface.console.print(f"{surface.glyphs.good} made again", style="bold green", end="")
        surface.console.print(
            f"   {figures.count(made.projections, 'row')} and {figures.count(made.claims, 'claim')}"
            f" from {figures.count(made.events, 'event')} ({seconds:.1f} s)"
        )
    surface.note(
        f"Check it with: {again.command('verify', on=again.on(store or common.url, common.tenant))}"
    )
    return exits.DONE


def _give_up(surface: Surface, url: str, tenant: str) -> None:
    """Open tenants with what came of a copy."""
    from limpet.wiring import backup_restore  # noqa: PLC0415 - only whoever gives one up pays for it

    with surface.progress("proving what has come") as bar:
        for opened in backup_restore.abandon_copy(url, (tenant,), bar):
            surface.note(f"Tenant {opened} can be used, with what has come of it.")


def _connected(url: str, tenant: str, told: Surface | None) -> Limpet:
    """Open a store. Who is told of the loss accepts it: a journal whose index knows of more is taken as it is."""
    try:
        return target.connect(url, tenant=tenant, writes=True)
    except errors.Corrupt as error:
        if (
            told is None
            or error.facts.get("journal") != "cut off"
            or not store_schemes.accept_journal(url)
        ):
            raise
        told.note(f"Accepted: {error.message}")
    return target.connect(url, tenant=tenant, writes=True)
