"""The receipt of an erasure: how much was erased, and when. It names no user."""

from __future__ import annotations

import msgspec

from limpet.core.values import ids
from limpet.core.values.json_values import Json


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure removed, and when.

    `what` is its scope: a user, a session, a message, or deleted sessions. `events` lost their content, and `blobs`,
    idempotency `keys` and `rows` of search index and memory are gone. `waiting` sessions are hidden and go with the
    last fork that still reads them. `pending`: nothing is readable any more, but traces stay in files until a reader
    closes; the next erasure or opening removes them. The same erasure has the same `id`.
    """

    id: str
    what: str
    erased_us: int
    events: int = 0
    sessions: int = 0
    frames: int = 0
    blobs: int = 0
    keys: int = 0
    rows: int = 0
    waiting: int = 0
    pending: bool = False

    @property
    def erased_at(self) -> str:
        """The time as ISO 8601."""
        return ids.iso(self.erased_us)

    def to_dict(self) -> dict[str, Json]:
        """Return the receipt as plain JSON, with the time as ISO 8601."""
        made: dict[str, Json] = {name: getattr(self, name) for name in self.__struct_fields__}
        made["erased_at"] = ids.iso(made.pop("erased_us"))
        return made
