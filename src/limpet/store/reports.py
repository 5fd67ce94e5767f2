"""What looking at a store as a whole found, and what was made anew."""

from __future__ import annotations

import msgspec


class Report(msgspec.Struct, frozen=True):
    """What `verify` found: how much was checked, and every fault as a sentence."""

    events: int
    tenants: int
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything is as it was written."""
        return not self.faults


class Rebuilt(msgspec.Struct, frozen=True):
    """What `rebuild` made anew, and from how many events."""

    events: int = 0
    tenants: int = 0
    streams: int = 0
    claims: int = 0
    projections: int = 0
