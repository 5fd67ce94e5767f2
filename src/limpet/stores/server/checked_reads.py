"""Reads that are verified: checksums of rows, paths of streams, events with their digests.

A row that no event digest covers has a checksum over its fields; reading it raises Corrupt if the
checksum differs. Events are checked against their digest, and for gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from limpet import errors, limits
from limpet.stores import chain, port
from limpet.stores.chain import CHECKSUM_BYTES, UNBOUNDED, Span, StreamBase, row_checksum
from limpet.stores.server.driver import Driver, EventErasure, FeedRow, KeyRow, NoteRow, ProjectionRow, StreamRow


def note_checksum(tenant: str, name: str, note: port.Note) -> bytes:
    return row_checksum(tenant, name, note.version, note.value)


def projection_checksum(tenant: str, row: port.Projection) -> bytes:
    return row_checksum(tenant, row)


def snapshot_checksum(tenant: str, number: int, snapshot: port.Snapshot, link: bytes) -> bytes:
    """Return the checksum of a snapshot.

    It covers the stream's number, because its name may later belong to another stream, and the link of the event at
    its version: a snapshot is valid for exactly one history.
    """
    return row_checksum(tenant, number, snapshot.version, snapshot.fold, snapshot.state, link)


def stream_checksum(tenant: str, stream: StreamRow) -> bytes:
    """Return the checksum of a stream. It does not cover the last version, which the log proves."""
    return row_checksum(tenant, stream.number, stream.name, stream.first, stream.bases)


def key_row(tenant: str, used: port.RawKey) -> KeyRow:
    """Return an idempotency key's use as stored: the command's hash is prefixed with a checksum."""
    prefixed_hash = row_checksum(tenant, used) + used.command_hash
    return KeyRow(used.key, prefixed_hash, used.first, used.last, used.time_us)


def event_erasure(tenant: str, position: int, notice: int, cause: int, payload: bytes | None) -> EventErasure:
    """Return the erasure of an event as stored: its redacted payload is prefixed with a checksum."""
    prefixed = None if payload is None else row_checksum(tenant, position, cause, payload) + payload
    return EventErasure(notice, cause, prefixed)


def checked_redaction(tenant: str, position: int, erasure: EventErasure) -> bytes | None:
    """Return the redacted payload of an erased event, None if it has none; raise Corrupt if its checksum differs."""
    if erasure.redacted_payload is None:
        return None
    checksum = erasure.redacted_payload[:CHECKSUM_BYTES]
    payload = erasure.redacted_payload[CHECKSUM_BYTES:]
    if row_checksum(tenant, position, erasure.cause, payload) != checksum:
        raise errors.Corrupt("the record of an erased event is damaged.")
    return payload


def checked_key(tenant: str, row: KeyRow) -> port.RawKey:
    hash_ = row.command_hash[CHECKSUM_BYTES:]
    used = port.RawKey(row.key, hash_, row.first, row.last, row.time_us)
    if row != key_row(tenant, used):
        raise errors.Corrupt("a stored idempotency key is damaged.", facts={"tenant": tenant})
    return used


def checked_note(tenant: str, row: NoteRow) -> port.Note:
    if row.checksum != note_checksum(tenant, row.name, row.note):
        raise errors.Corrupt("a stored note is damaged.", facts={"tenant": tenant})
    return row.note


def checked_projection(tenant: str, row: ProjectionRow) -> port.Projection:
    if row.checksum != projection_checksum(tenant, row.projection):
        raise errors.Corrupt("a stored projection is damaged.")
    return row.projection


def checked_event(tenant: str, row: FeedRow, name: str) -> port.StoredEvent:
    """Return an event, with its redacted payload if it was erased; raise Corrupt if it is damaged."""
    event, erasure = row.event, row.erasure
    if event.payload is not None:
        return chain.decode_event(event, name)
    if erasure is None:
        raise chain.unexplained_erasure_error(event.address)
    return chain.decode_event(event, name, checked_redaction(tenant, event.address.position, erasure))


def unnamed_stream_error(number: int) -> errors.Corrupt:
    return errors.Corrupt(f"stream {number:,} has no name.", facts={"stream": number})


def continues_after(driver: Driver, tenant: str, position: int) -> bool:
    """Whether the log has events after the head's position, and the head has not moved meanwhile."""
    return bool(driver.feed(tenant, after=position, limit=1)) and (driver.head(tenant).position == position)


def find_stream(driver: Driver, tenant: str, stream: str | int) -> StreamRow | None:
    """Return a stream by name or number, checked; None if it does not exist."""
    row = driver.stream(tenant, stream)
    return None if row is None else _check_requested(tenant, row, stream)


def _check_requested(tenant: str, row: StreamRow, stream: str | int) -> StreamRow:
    """Return a stream, checked; raise Corrupt if it is not the requested one."""
    if stream not in (row.name, row.number):
        raise errors.Corrupt("a stream is stored under the name of another.", facts={"stream": row.number})
    if row.checksum != stream_checksum(tenant, row):
        raise errors.Corrupt(
            f"the record of stream {row.number:,} is damaged.", facts={"tenant": tenant, "stream": row.number}
        )
    return row


def base_lookup(driver: Driver, tenant: str, *streams: StreamRow) -> Callable[[int], Sequence[StreamBase]]:
    """Return a function that reads the bases of a stream by its number. The given streams need not be read."""
    bases_by_number = {stream.number: stream.bases for stream in streams}

    def find(number: int) -> Sequence[StreamBase]:
        if number not in bases_by_number:
            row = find_stream(driver, tenant, number)
            if row is None:
                raise unnamed_stream_error(number)
            bases_by_number[number] = row.bases
        return bases_by_number[number]

    return find


def stream_path(driver: Driver, tenant: str, stream: StreamRow, at: int | None) -> tuple[Span, ...]:
    """Return the spans of a stream, now or at a version. Those at a version never change."""
    last = stream.version if at is None else min(at, stream.version)
    if not stream.bases:
        return (Span(stream.number, stream.number, 1, last),) if last > 0 else ()
    return chain.resolve_path(stream.number, last, base_lookup(driver, tenant, stream))


def read_stream(
    driver: Driver, tenant: str, name: str, *, low: int, high: int, limit: int, at: int | None, newest: bool
) -> tuple[StreamRow | None, list[port.StoredEvent]]:
    """Return a stream, and its events with low <= version <= high: the first `limit` of them, or the newest."""
    last = high if at is None else min(high, at)
    row, own = driver.own_events(tenant, name, low=low, high=last, limit=limit, newest=newest)
    if row is None:
        return None, []
    _check_requested(tenant, row, name)
    first = row.bases[-1].first if row.bases else row.first
    if row.bases and low < first:
        spans = chain.clip(stream_path(driver, tenant, row, at), low - 1, high)
        own = _read_spans(driver, tenant, spans, limit, newest=newest)
    else:
        # All versions lie in its last stretch, so all events are its own.
        span = Span(row.number, 0, max(low, first), min(last, row.version))
        _check_versions(own, span, limit, newest=newest)
    return row, [checked_event(tenant, event, name) for event in own]


def _read_spans(driver: Driver, tenant: str, spans: Sequence[Span], limit: int, *, newest: bool) -> list[FeedRow]:
    """Return the events of spans in order, the first of them or the newest."""
    parts: list[list[FeedRow]] = []
    for span in reversed(spans) if newest else spans:
        if limit <= 0:
            break
        _, own = driver.own_events(tenant, span.stream, low=span.low, high=span.high, limit=limit, newest=newest)
        _check_versions(own, span, limit, newest=newest)
        parts.append(own)
        limit -= len(own)
    return [row for part in (reversed(parts) if newest else parts) for row in part]


def _check_versions(own: Sequence[FeedRow], span: Span, limit: int, *, newest: bool) -> None:
    """Raise Corrupt if events of a span are missing. The events are in the order of their versions."""
    count = max(0, min(limit, span.high - span.low + 1))
    first = span.high - count + 1 if newest else span.low
    ends = [own[at].event.address.version for at in (0, -1)] if own else []
    if len(own) != count or (own and ends != [first, first + count - 1]):
        raise errors.Corrupt(
            f"stream {span.stream:,} has {len(own):,} of {count:,} events from version {first:,} on.",
            hint="`limpet verify` lists all damage.",
            facts={"stream": span.stream},
        )


def check_positions(rows: Sequence[FeedRow], after: int) -> None:
    """Raise Corrupt if an event after a position is missing. The events are in the order of their positions."""
    if not rows or rows[-1].event.address.position == after + len(rows):
        return
    at = next(at for at, row in enumerate(rows, after + 1) if row.event.address.position != at)
    raise errors.Corrupt(
        f"the event at position {at:,} is missing.", hint="`limpet verify` lists all damage.", facts={"position": at}
    )


def own_events(driver: Driver, tenant: str, stream: StreamRow) -> Iterator[FeedRow]:
    """Yield a stream's own events, including those that a rewind has cut off."""
    after = 0
    while True:
        _, page = driver.own_events(tenant, stream.number, low=after + 1, high=stream.version, limit=limits.READ_CHUNK)
        yield from page
        if len(page) < limits.READ_CHUNK:
            return
        after = page[-1].event.address.version


def blob_uses(driver: Driver, tenant: str, *, after: int = 0, until: int = UNBOUNDED) -> Iterator[tuple[int, bytes]]:
    """Yield position and hash of uses of blobs with after < position <= until."""
    while page := driver.blob_uses(tenant, after=after):
        for position, hash_ in page:
            if position > until:
                return
            yield position, hash_
        after = page[-1][0]


def event_link(driver: Driver, tenant: str, stream: str | int, version: int) -> tuple[StreamRow | None, bytes]:
    """Return a stream, and the link of its own event at a version; empty if it has none."""
    row, own = driver.own_events(tenant, stream, low=version, high=version, limit=1)
    if row is not None:
        _check_requested(tenant, row, stream)
    return row, own[0].event.link if own else b""


def to_key_record(used: port.RawKey) -> port.KeyRecord:
    return port.KeyRecord(used.command_hash, used.first, used.last)


def read_blobs(driver: Driver, tenant: str, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the contents of those of the blobs that exist; raise Corrupt for a damaged one."""
    requested = list(hashes)
    contents = driver.blobs(tenant, requested) if requested else {}
    for hash_, content in contents.items():
        if not chain.blob_matches(hash_, content):
            raise chain.damaged_blob_error(hash_)
    return contents
