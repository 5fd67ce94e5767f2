"""The list of what was erased, in a file beside the store: a backup that is put back is told by it what has to go.

It names events by tenant, stream and position, with a part of their links: an entry means only the very events
that were erased, whatever a copy that was written on has at their positions. It holds no text of anybody's.
"""

from __future__ import annotations

import glob
import hashlib
import os
from pathlib import Path
from typing import Final

import apsw
import msgspec

from limpet import errors
from limpet.store.sqlite import opening
from limpet.store.sqlite.files import Files, read_here, reading
from limpet.store.sqlite.rows import NUMBER_MASK, TENANT_SHIFT

MAGIC: Final = b"LPERASE1"
LINK_BYTES: Final = 12
"""Of an event's link, how much is kept to know it by."""

_SUM_BYTES = 32

Place = tuple[bytes, int, int, int]
"""Which store, tenant and stream, and because of which event (0: the whole stream went)."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Events of one stream that were erased for one reason, each by its position and the beginning of its link."""

    store: bytes
    tenant: int
    stream: int
    cause: int
    events: tuple[tuple[int, bytes], ...]

    @property
    def place(self) -> Place:
        """What it has in common with others that say more of the same."""
        return self.store, self.tenant, self.stream, self.cause


def path_of(store: Path) -> Path:
    """Return where the list of a store is."""
    return Path(f"{store}-erased")


def read(path: Path) -> list[Entry]:
    """Return the entries of a list, none if there is no file; raise Corrupt if it is not as it was written."""
    if not path.exists():
        return []
    data = read_here(path)
    body, check = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if data.startswith(MAGIC) and hashlib.sha256(body).digest() == check:
        try:
            return msgspec.msgpack.decode(body[len(MAGIC) :], type=list[Entry])
        except msgspec.MsgspecError:
            pass
    raise errors.Corrupt(
        f"{path}, the list of what was erased, is damaged.",
        hint="Put a copy of it back. Remove it only if no backup from before an erasure will ever be put here.",
        facts={"path": str(path)},
    )


def check_of(path: Path) -> bytes:
    """Return the checksum that a list ends with; nothing if there is none."""
    if not path.exists():
        return b""
    with reading(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _SUM_BYTES))
        return file.read()


def bring_up(files: Files, path: Path, connection: apsw.Connection, store_id: bytes) -> None:
    """Write the list anew with all that the store has erased, if it does not have that yet; durable on return."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.new"):
        files.remove(leftover)
    before = read(path)
    known: dict[Place, dict[tuple[int, bytes], None]] = {}
    for entry in before:
        known.setdefault(entry.place, {}).update(dict.fromkeys(entry.events))
    count = sum(map(len, known.values()))
    for event, cause, stream, link in connection.execute(opening.queries()["gone_events"]):
        assert isinstance(event, int) and isinstance(cause, int)
        assert isinstance(stream, int) and isinstance(link, bytes)
        place = (store_id, event >> TENANT_SHIFT, stream & NUMBER_MASK, cause & NUMBER_MASK)
        known.setdefault(place, {})[event & NUMBER_MASK, link[:LINK_BYTES]] = None
    if sum(map(len, known.values())) > count:
        entries = [Entry(*place, tuple(events)) for place, events in known.items()]
        body = MAGIC + msgspec.msgpack.encode(entries)
        files.put(path, body + hashlib.sha256(body).digest())
