"""The anchor file: the heads of the log at the last acknowledged commit.

SQLite silently drops commits at a damaged end of its write-ahead log. A head in the anchor that
the log does not have means that acknowledged events are lost. The anchor is written after each
synced commit, before the acknowledgement, without a sync of its own: a power cut may leave an
older one, never one ahead of the log. Two slots alternate, so a torn write spoils at most the
newer.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from limpet.stores.sqlite.shared_file.store_files import StoreFiles, open_regular_file

SLOT_BYTES = 4096
HEADS_MAX = 64
"""Tenants whose heads one slot holds: those written last. The newest commit is always among them."""

_ANCHOR_MAGIC = b"LPANCHR1"
_SLOT_STRUCT = struct.Struct(">8s16sQBH")
_HEAD_STRUCT = struct.Struct(">QQ32s")
_COUNT_BYTES = slice(24, 32)
"""The position of a slot's count. It is big-endian, so its bytes sort as numbers do."""


class LogHead(msgspec.Struct, frozen=True):
    """A tenant's last event: its position and link."""

    position: int
    link: bytes


class AnchorSlot(msgspec.Struct, frozen=True):
    """The content of one slot: the store, the number of the write, the heads by tenant number.

    `clean`: the last process emptied the write-ahead log and closed the store.
    """

    store_id: bytes
    count: int
    heads: Mapping[int, LogHead]
    clean: bool = False


def encode_slot(slot: AnchorSlot) -> bytes:
    """Return a slot's bytes with their checksum."""
    heads = slot.heads
    body = _SLOT_STRUCT.pack(_ANCHOR_MAGIC, slot.store_id, slot.count, slot.clean, len(heads))
    for tenant in heads:
        head = heads[tenant]
        body += _HEAD_STRUCT.pack(tenant, head.position, head.link)
    return body + hashlib.sha256(body).digest()


def decode_slot(data: bytes) -> AnchorSlot | None:
    """Return the slot at the beginning of some bytes, or None if it does not verify."""
    if len(data) < _SLOT_STRUCT.size:
        return None
    magic, store_id, count, clean, size = _SLOT_STRUCT.unpack_from(data)
    end = _SLOT_STRUCT.size + size * _HEAD_STRUCT.size
    if magic != _ANCHOR_MAGIC or hashlib.sha256(data[:end]).digest() != data[end : end + 32]:
        return None
    heads = (_HEAD_STRUCT.unpack_from(data, _SLOT_STRUCT.size + i * _HEAD_STRUCT.size) for i in range(size))
    kept = {tenant: LogHead(position, link) for tenant, position, link in heads}
    return AnchorSlot(store_id, count, kept, bool(clean))


def acknowledged_events(path: Path) -> int:
    """Return how many acknowledged events an anchor file records; 0 if it is missing or unreadable."""
    if not path.exists():
        return 0
    with open_regular_file(path) as file:
        newest = _newest_slot(_split_slots(file.read(2 * SLOT_BYTES)))
    return sum(head.position for head in newest.heads.values()) if newest else 0


def is_anchor_file(path: Path) -> bool:
    """Return whether a file can be an anchor: not too long, each slot blank or with the magic."""
    with open_regular_file(path) as file:
        data = file.read(2 * SLOT_BYTES + 1)
    whole = len(data) <= 2 * SLOT_BYTES
    return whole and all(not any(s[:8]) or s.startswith(_ANCHOR_MAGIC) for s in _split_slots(data))


def _split_slots(data: bytes) -> tuple[bytes, bytes]:
    return data[:SLOT_BYTES], data[SLOT_BYTES:]


def _newest_slot(halves: tuple[bytes, bytes]) -> AnchorSlot | None:
    """Return the intact slot with the higher count. The other is decoded only if that one is damaged."""
    one, other = sorted(halves, key=lambda half: half[_COUNT_BYTES], reverse=True)
    return decode_slot(one) or decode_slot(other)


class Anchor:
    """The anchor file of one open store. The caller of every method holds the write lock."""

    def __init__(self, files: StoreFiles, path: Path, store_id: bytes) -> None:
        self._files = files
        self._store_id = store_id
        self._fd = files.open_or_create(path)
        # The blocks are allocated now: a full disk must not prevent the anchor of a commit that succeeded.
        size = len(files.read(self._fd, 2 * SLOT_BYTES, 0))
        files.write(self._fd, bytes(2 * SLOT_BYTES - size), size)
        self._last_written: AnchorSlot | None = None

    def read(self) -> tuple[AnchorSlot | None, int]:
        """Return the newest intact slot, and how many written slots are damaged."""
        halves = self._read_slots()
        damaged = sum(decode_slot(half) is None and any(half) for half in halves)
        return _newest_slot(halves), damaged

    def _read_slots(self) -> tuple[bytes, bytes]:
        return _split_slots(self._files.read(self._fd, 2 * SLOT_BYTES, 0))

    def write(self, changed: Mapping[int, LogHead], *, clean: bool = False) -> None:
        """Write new heads. Heads of other tenants stay while there is room."""
        self.write_prepared(*self.prepare(changed, clean=clean))

    def prepare(
        self, changed: Mapping[int, LogHead], *, clean: bool = False, alone: bool = False
    ) -> tuple[AnchorSlot, bytes]:
        """Return the slot to write after the commit, encoded before it, so that the acknowledgement is not delayed.

        `alone`: no other process has written since this object did, so the file need not be read.
        """
        before = self._last_written if alone else _newest_slot(self._read_slots())
        heads = changed
        if before and before.store_id == self._store_id and before.heads.keys() != changed.keys():
            kept = {t: h for t, h in before.heads.items() if t not in changed}
            heads = dict(itertools.islice({**changed, **kept}.items(), HEADS_MAX))
        elif len(heads) > HEADS_MAX:
            heads = dict(itertools.islice(heads.items(), HEADS_MAX))
        slot = AnchorSlot(self._store_id, before.count + 1 if before else 1, heads, clean)
        return slot, encode_slot(slot)

    def write_prepared(self, slot: AnchorSlot, data: bytes) -> None:
        """Write what `prepare` returned."""
        self._files.write(self._fd, data, slot.count % 2 * SLOT_BYTES)
        self._last_written = slot

    def close(self) -> None:
        """Close the file."""
        self._files.close(self._fd)
