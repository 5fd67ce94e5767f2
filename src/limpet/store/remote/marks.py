"""Checksums over rows that no digest covers: whoever reads such a row can tell that it is as it was written."""

from __future__ import annotations

import hashlib

import msgspec

from limpet import errors
from limpet.store import port
from limpet.store.remote.driver import Blank, KeptKey, KeptNote, KeptProjection, Stream

MARK_BYTES = 8

_packer = msgspec.msgpack.Encoder()


def _mark(*fields: object) -> bytes:
    return hashlib.sha256(_packer.encode(fields)).digest()[:MARK_BYTES]


def note(tenant: str, name: str, note: port.Note) -> bytes:
    """Return the mark of a note."""
    return _mark(tenant, name, note.version, note.value)


def projection(tenant: str, row: port.Projection) -> bytes:
    """Return the mark of a projection."""
    return _mark(tenant, row)


def snapshot(tenant: str, number: int, snapshot: port.Snapshot, link: bytes) -> bytes:
    """Return the mark of the snapshot of a stream, which is known by its number: its name may be given back.

    The link of the event at its version is in it: a snapshot holds for what came before it, and for nothing else.
    """
    return _mark(tenant, number, snapshot.version, snapshot.fold, snapshot.state, link)


def stream(tenant: str, stream: Stream) -> bytes:
    """Return the mark of a stream. Its last version is not in it: that the log proves."""
    return _mark(tenant, stream.number, stream.name, stream.first, stream.bases)


def key(tenant: str, used: port.RawKey) -> KeptKey:
    """Return an idempotency key's use as it is kept; the command's hash behind a mark."""
    kept = _mark(tenant, used) + used.command_hash
    return KeptKey(used.key, kept, used.first, used.last, used.time_us)


def blank(tenant: str, position: int, notice: int, cause: int, payload: bytes | None) -> Blank:
    """Return what becomes of an erased event; its stand-in is kept behind a mark."""
    kept = None if payload is None else _mark(tenant, position, cause, payload) + payload
    return Blank(notice, cause, kept)


def stand_in(tenant: str, position: int, blank: Blank) -> bytes | None:
    """Return what is read in place of an erased event; raise Corrupt if it is not what was written."""
    if blank.payload is None:
        return None
    payload = blank.payload[MARK_BYTES:]
    if _mark(tenant, position, blank.cause, payload) != blank.payload[:MARK_BYTES]:
        raise errors.Corrupt("a row that says what was erased is not what was written.")
    return payload


def checked_stream(tenant: str, kept: Stream) -> Stream:
    """Return a stream whose mark is right; raise Corrupt otherwise."""
    if kept.mark != stream(tenant, kept):
        raise errors.Corrupt(
            f"what is kept of stream {kept.number:,} is not what was written.",
            facts={"tenant": tenant, "stream": kept.number},
        )
    return kept


def checked_key(tenant: str, kept: KeptKey) -> port.RawKey:
    """Return an idempotency key's use whose mark is right; raise Corrupt otherwise."""
    hash_ = kept.command_hash[MARK_BYTES:]
    used = port.RawKey(kept.key, hash_, kept.first, kept.last, kept.time_us)
    if kept != key(tenant, used):
        raise errors.Corrupt(
            "a stored idempotency key is not what was written.", facts={"tenant": tenant}
        )
    return used


def checked_note(tenant: str, kept: KeptNote) -> port.Note:
    """Return a note whose mark is right; raise Corrupt otherwise."""
    if kept.mark != note(tenant, kept.name, kept.note):
        raise errors.Corrupt("a stored note is not what was written.", facts={"tenant": tenant})
    return kept.note


def checked_projection(tenant: str, kept: KeptProjection) -> port.Projection:
    """Return a projection whose mark is right; raise Corrupt otherwise."""
    if kept.mark != projection(tenant, kept.projection):
        raise errors.Corrupt("a stored projection is not what was written.")
    return kept.projection
