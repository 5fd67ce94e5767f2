"""Reads that are verified: checksums of rows, paths of streams, events with their digests.

A row that no event digest covers has a checksum over its fields; reading it raises Corrupt if the
checksum differs. The checksums hash MessagePack of structs, so the field names of those structs are
part of the stored format. Events are checked against their digest, and for gaps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from limpet import errors, limits
from limpet.stores import chain, port, stream_paths
from limpet.stores.server.driver import (
    Driver,
    EventErasure,
    FeedRow,
    KeyRow,
    NoteRow,
    ProjectionRow,
    StreamRow,
)
from limpet.stores.stream_paths import Span, StreamBase

CHECKSUM_BYTES = 8

_encoder = msgspec.msgpack.Encoder()


def _checksum(*fields: object) -> bytes:
    return hashlib.sha256(_encoder.encode(fields)).digest()[:CHECKSUM_BYTES]


def note_checksum(tenant: str, name: str, note: port.Note) -> bytes:
    """Return the mark of a note."""
    return _checksum(tenant, name, note.version, note.value)


def projection_checksum(tenant: str, row: port.Projection) -> bytes:
    """Return the mark of a projection."""
    return _checksum(tenant, row)


def snapshot_checksum(tenant: str, number: int, snapshot: port.Snapshot, link: bytes) -> bytes:
    """Return the mark of the snapshot of a stream, which is known by its number: its name may be given back.

    The link of the event at its version is in it: a snapshot holds for what came before it, and for nothing else.
    """
    return _checksum(tenant, number, snapshot.version, snapshot.fold, snapshot.state, link)


def stream_checksum(tenant: str, stream: StreamRow) -> bytes:
    """Return the mark of a stream. Its last version is not in it: that the log proves."""
    return _checksum(tenant, stream.number, stream.name, stream.first, stream.bases)


def key_row(tenant: str, used: port.RawKey) -> KeyRow:
    """Return an idempotency key's use as it is kept; the command's hash behind a mark."""
    kept = _checksum(tenant, used) + used.command_hash
    return KeyRow(used.key, kept, used.first, used.last, used.time_us)


def event_erasure(
    tenant: str, position: int, notice: int, cause: int, payload: bytes | None
) -> EventErasure:
    """Return what becomes of an erased event; its stand-in is kept behind a mark."""
    kept = None if payload is None else _checksum(tenant, position, cause, payload) + payload
    return EventErasure(notice, cause, kept)


def checked_redaction(tenant: str, position: int, blank: EventErasure) -> bytes | None:
    """Return what is read in place of an erased event; raise Corrupt if it is not what was written."""
    if blank.redacted_payload is None:
        return None
    payload = blank.redacted_payload[CHECKSUM_BYTES:]
    if _checksum(tenant, position, blank.cause, payload) != blank.redacted_payload[:CHECKSUM_BYTES]:
        raise errors.Corrupt("a row that says what was erased is not what was written.")
    return payload


def checked_stream(tenant: str, kept: StreamRow) -> StreamRow:
    """Return a stream whose mark is right; raise Corrupt otherwise."""
    if kept.checksum != stream_checksum(tenant, kept):
        raise errors.Corrupt(
            f"what is kept of stream {kept.number:,} is not what was written.",
            facts={"tenant": tenant, "stream": kept.number},
        )
    return kept


def checked_key(tenant: str, kept: KeyRow) -> port.RawKey:
    """Return an idempotency key's use whose mark is right; raise Corrupt otherwise."""
    hash_ = kept.command_hash[CHECKSUM_BYTES:]
    used = port.RawKey(kept.key, hash_, kept.first, kept.last, kept.time_us)
    if kept != key_row(tenant, used):
        raise errors.Corrupt(
            "a stored idempotency key is not what was written.", facts={"tenant": tenant}
        )
    return used


def checked_note(tenant: str, kept: NoteRow) -> port.Note:
    """Return a note whose mark is right; raise Corrupt otherwise."""
    if kept.checksum != note_checksum(tenant, kept.name, kept.note):
        raise errors.Corrupt("a stored note is not what was written.", facts={"tenant": tenant})
    return kept.note


def checked_projection(tenant: str, kept: ProjectionRow) -> port.Projection:
    """Return a projection whose mark is right; raise Corrupt otherwise."""
    if kept.checksum != projection_checksum(tenant, kept.projection):
        raise errors.Corrupt("a stored projection is not what was written.")
    return kept.projection


UNBOUNDED = (1 << 62) - 1
"""A version and a position that nothing reaches."""


def checked_event(tenant: str, kept: FeedRow, name: str) -> port.StoredEvent:
    """Return an event, checked, with its stand-in if it was erased; raise Corrupt if it is damaged."""
    row = kept.event
    if row.payload is not None:
        return chain.decode_event(row, name)
    if kept.erasure is None:
        raise unexplained_erasure_error(row.address)
    return chain.decode_event(
        row, name, checked_redaction(tenant, row.address.position, kept.erasure)
    )


def unexplained_erasure_error(place: chain.EventAddress) -> errors.Corrupt:
    """Return the error for an event whose payload is gone though nothing says that it was erased."""
    return chain.damaged_event_error(
        place, "its content is gone, and nothing says that it was erased"
    )


def unnamed_stream_error(number: int) -> errors.Corrupt:
    """Return the error for a stream that events belong to and that is not there."""
    return errors.Corrupt(f"stream {number:,} has no name.", facts={"stream": number})


def continues_after(driver: Driver, tenant: str, position: int) -> bool:
    """Whether the log goes on after a position that is said to be its last, and nobody wrote meanwhile."""
    return bool(driver.feed(tenant, after=position, limit=1)) and (
        driver.head(tenant).position == position
    )


def missing_head_error(tenant: str) -> errors.Corrupt:
    """Return the error for a log without a head."""
    return errors.Corrupt(
        f"tenant {tenant!r} has events, but what says how many is lost.",
        hint="Put the server's data back from a backup; what is readable can be exported: `limpet export`.",
        facts={"tenant": tenant},
    )


def find_stream(driver: Driver, tenant: str, stream: str | int) -> StreamRow | None:
    """Return a stream by name or number, checked; None if it is not there."""
    there = driver.stream(tenant, stream)
    return None if there is None else _check_requested(tenant, there, stream)


def _check_requested(tenant: str, there: StreamRow, stream: str | int) -> StreamRow:
    """Return a stream that is what was written, and the one that was asked for; raise Corrupt otherwise."""
    if stream not in (there.name, there.number):
        raise errors.Corrupt(
            "a stream is found under the name of another.", facts={"stream": there.number}
        )
    return checked_stream(tenant, there)


def base_lookup(
    driver: Driver, tenant: str, *streams: StreamRow
) -> Callable[[int], Sequence[StreamBase]]:
    """Return how the bases of a stream are found by its number; those of some are known."""
    known = {stream.number: stream.bases for stream in streams}

    def find(number: int) -> Sequence[StreamBase]:
        if number not in known:
            there = find_stream(driver, tenant, number)
            if there is None:
                raise unnamed_stream_error(number)
            known[number] = there.bases
        return known[number]

    return find


def stream_path(driver: Driver, tenant: str, stream: StreamRow, at: int | None) -> tuple[Span, ...]:
    """Return what a stream is made of, now or at a version. What it was at a version never changes."""
    last = stream.version if at is None else min(at, stream.version)
    if not stream.bases:
        return (Span(stream.number, stream.number, 1, last),) if last > 0 else ()
    return stream_paths.resolve_path(stream.number, last, base_lookup(driver, tenant, stream))


def read_stream(
    driver: Driver,
    tenant: str,
    name: str,
    *,
    low: int,
    high: int,
    limit: int,
    at: int | None,
    newest: bool,
) -> tuple[StreamRow | None, list[port.StoredEvent]]:
    """Return a stream, and its events with low <= version <= high, the first of them or the newest."""
    last = high if at is None else min(high, at)
    there, own = driver.own_events(tenant, name, low=low, high=last, limit=limit, newest=newest)
    if there is None:
        return None, []
    _check_requested(tenant, there, name)
    first = there.bases[-1].first if there.bases else there.first
    if there.bases and low < first:
        spans = stream_paths.clip(stream_path(driver, tenant, there, at), low - 1, high)
        own = _read_spans(driver, tenant, spans, limit, newest=newest)
    else:
        # Versions that are all of its last stretch are all its own.
        span = Span(there.number, 0, max(low, first), min(last, there.version))
        _check_versions(own, span, limit, newest=newest)
    return there, [checked_event(tenant, kept, name) for kept in own]


def _read_spans(
    driver: Driver, tenant: str, spans: Sequence[Span], limit: int, *, newest: bool
) -> list[FeedRow]:
    """Return the events of some spans in order, the first of them or the newest."""
    found: list[list[FeedRow]] = []
    for span in reversed(spans) if newest else spans:
        if limit <= 0:
            break
        _, own = driver.own_events(
            tenant, span.stream, low=span.low, high=span.high, limit=limit, newest=newest
        )
        _check_versions(own, span, limit, newest=newest)
        found.append(own)
        limit -= len(own)
    return [kept for part in (reversed(found) if newest else found) for kept in part]


def _check_versions(own: Sequence[FeedRow], span: Span, limit: int, *, newest: bool) -> None:
    """See that the events of a span are all there, in order; raise Corrupt otherwise. They come by version."""
    count = max(0, min(limit, span.high - span.low + 1))
    first = span.high - count + 1 if newest else span.low
    found = [own[at].event.address.version for at in (0, -1)] if own else []
    if len(own) != count or (own and found != [first, first + count - 1]):
        raise errors.Corrupt(
            f"stream {span.stream:,} has {len(own):,} of {count:,} events from version {first:,} on.",
            hint="`limpet verify` lists all damage.",
            facts={"stream": span.stream},
        )


def check_positions(found: Sequence[FeedRow], after: int) -> None:
    """See that events follow one another from a position on; raise Corrupt otherwise. They come by position."""
    if not found or found[-1].event.address.position == after + len(found):
        return
    at = next(at for at, kept in enumerate(found, after + 1) if kept.event.address.position != at)
    raise errors.Corrupt(
        f"the event at position {at:,} is missing.",
        hint="`limpet verify` lists all damage.",
        facts={"position": at},
    )


def own_events(driver: Driver, tenant: str, stream: StreamRow) -> Iterator[FeedRow]:
    """Yield the events that a stream has itself, those that a rewind has left out included."""
    after = 0
    while True:
        _, page = driver.own_events(
            tenant, stream.number, low=after + 1, high=stream.version, limit=limits.READ_CHUNK
        )
        yield from page
        if len(page) < limits.READ_CHUNK:
            return
        after = page[-1].event.address.version


def event_link(
    driver: Driver, tenant: str, stream: str | int, version: int
) -> tuple[StreamRow | None, bytes]:
    """Return a stream, and the link of its own event at a version; empty if it has none."""
    there, own = driver.own_events(tenant, stream, low=version, high=version, limit=1)
    found = None if there is None else _check_requested(tenant, there, stream)
    return found, own[0].event.link if own else b""


def find_claim(driver: Driver, tenant: str, spans: Sequence[Span], text: str) -> int:
    """Return the version at which a path has a claim; 0 if it has not."""
    if not spans:
        return 0
    found = driver.claims(tenant, (text,), [span.stretch for span in spans])
    return stream_paths.find_claim_version(
        spans, [(stretch, version) for stretch, _, version in found]
    )


def find_ordinal(driver: Driver, tenant: str, spans: Sequence[Span], ordinal: int) -> int:
    """Return the lowest version on a path whose event has at least this ordinal; 0 if there is none."""
    for span in spans:
        found = driver.find_ordinal(
            tenant, span.stream, low=span.low, high=span.high, ordinal=ordinal
        )
        if found:
            return found
    return 0


def to_key_record(used: port.RawKey) -> port.KeyRecord:
    """Return what an idempotency key was used for, as the port says it."""
    return port.KeyRecord(used.command_hash, used.first, used.last)


def read_blobs(driver: Driver, tenant: str, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the contents of a tenant's blobs that are there; raise Corrupt for a damaged one."""
    wanted = list(hashes)
    found = driver.blobs(tenant, wanted) if wanted else {}
    for hash_, content in found.items():
        if not chain.blob_matches(hash_, content):
            raise chain.damaged_blob_error(hash_)
    return found
