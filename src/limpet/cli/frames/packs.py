"""`limpet frames pack`: what a model saw for a frame, rebuilt byte for byte from what was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet.cli import exits, target, visible
from limpet.cli.context import rendered
from limpet.cli.frames import naming
from limpet.cli.surface import Face, Surface

if TYPE_CHECKING:
    from limpet.cli.options import Common


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which pack, and how it is shown."""

    at: int | None = None
    provider: str | None = None


def run(reference: str, wanted: Wanted, common: Common) -> int:
    """Print a recorded pack."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        frame = naming.frame(lp, reference)
        pack = lp.index.pack_of(frame.frame_id, version=wanted.at)
    if wanted.provider is not None:
        surface.document(rendered(pack, wanted.provider))
    elif surface.face is Face.JSON:
        surface.document(pack.to_dict())
    elif surface.face is Face.PIPE:
        for entry in pack.ledger.handles:
            cells = (entry.handle_id or "", entry.count, entry.fate, entry.tokens, entry.used)
            surface.row(*cells, entry.priority.label, entry.rule)
    else:
        for line in (*pack.explain().splitlines(), f"hash {pack.context_hash}"):
            surface.console.print(visible.line(line), markup=False, highlight=False)
    return exits.DONE
