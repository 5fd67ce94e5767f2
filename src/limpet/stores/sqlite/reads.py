"""Reads of the SQLite store: reading verbs, row decoding, connection pool and cache.

Every function takes the connection it reads over. Row types and checksums are checked on each read.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence

import apsw
import msgspec

from limpet import errors
from limpet.stores import chain, port
from limpet.stores.chain import UNBOUNDED, Span, StreamBase, row_checksum
from limpet.stores.sqlite import database
from limpet.stores.sqlite.database import NUMBER_MASK, TENANT_SHIFT, first_row, read_integer


def decode_key_record(row: tuple[apsw.SQLiteValue, ...]) -> port.KeyRecord:
    command_hash, begin, end = row
    assert isinstance(command_hash, bytes) and isinstance(begin, int) and isinstance(end, int)
    return port.KeyRecord(command_hash, begin, end)


def decode_event_row(row: tuple[apsw.SQLiteValue, ...]) -> chain.EventRow:
    """Return an event's columns; raise Corrupt if a type is wrong."""
    match row:
        case (
            int(key), int(stream), int(version), bytes(header), None | bytes() as payload, None | bytes() as salt,
            bytes(digest), bytes(link),
        ):  # fmt: skip
            place = chain.EventAddress(key & NUMBER_MASK, stream & NUMBER_MASK, version)
            return chain.EventRow(place, header, payload, salt, digest, link)
        case (int(key), _, int(version), *_):
            raise chain.damaged_event_error(
                chain.EventAddress(key & NUMBER_MASK, 0, version), "a column has another type"
            )
        case _:
            raise errors.Corrupt("a stored event's columns are not what was written.")


def decode_projection(row: tuple[apsw.SQLiteValue, ...]) -> port.Projection:
    """Return a projection; raise Corrupt if its checksum does not match."""
    match row:
        case (
            int(), str(kind), str(id_), str(owner), str(status), int(), int(time_us), str(lookup),
            str(terms), bytes(document), bytes(check),
        ) if check == row_checksum(*row[:-1]):  # fmt: skip
            return port.Projection(
                kind=kind, id=id_, owner=owner, status=status, time_us=time_us, lookup=lookup,
                terms=msgspec.json.decode(terms, type=tuple[str, ...]), document=document,
            )  # fmt: skip
        case _:
            raise errors.Corrupt("a stored projection is not what was written.")


def number_in_tenant(key: apsw.SQLiteValue) -> int:
    """Return a key's number within its tenant; 0 if it is no integer, as in a damaged file."""
    return key & NUMBER_MASK if isinstance(key, int) else 0


def read_feed(connection: apsw.Connection, base: int, after: int, limit: int) -> list[port.StoredEvent]:
    """Return a tenant's events after a position; `base` is the tenant's part of every key."""
    sql = database.statements()
    found = connection.execute(sql["read_feed"], (base | after, base | NUMBER_MASK, limit))
    raw = found.fetchall()
    names = {row[1]: "" for row in raw}
    for stream in names:
        name = first_row(connection, sql["stream_name"], (stream,))
        if name is None:
            number_ = number_in_tenant(stream)
            raise errors.Corrupt(f"stream {number_:,} has no name.", facts={"stream": number_})
        names[stream] = str(name[0])
    return decode_events(connection, raw, names)


def decode_events(
    connection: apsw.Connection,
    raw: Iterable[tuple[apsw.SQLiteValue, ...]],
    names: Mapping[apsw.SQLiteValue, str] | str,
) -> list[port.StoredEvent]:
    """Return stored events, each checked, erased ones with their redacted payload; raise Corrupt for a damaged one."""
    found = [(line[0], line[1], decode_event_row(line)) for line in raw]
    erased = [key for key, _, row in found if row.payload is None]
    redactions = _read_redactions(connection, erased) if erased else {}
    made: list[port.StoredEvent] = []
    for key, stream, row in found:
        name = names if isinstance(names, str) else names[stream]
        if row.payload is None and key not in redactions:
            raise chain.unexplained_erasure_error(row.address)
        made.append(chain.decode_event(row, name, redactions.get(key)))
    return made


def _read_redactions(connection: apsw.Connection, keys: list[apsw.SQLiteValue]) -> dict[apsw.SQLiteValue, bytes | None]:
    found: dict[apsw.SQLiteValue, bytes | None] = {}
    for row in connection.execute(database.statements()["stand_ins"], (msgspec.json.encode(keys).decode(),)):
        match row:
            case (int(event), int(), int(), payload, bytes(check)) if check == row_checksum(*row[:-1]):
                assert payload is None or isinstance(payload, bytes), "its checksum matches"
                found[event] = payload
            case _:
                raise errors.Corrupt("the record of an erased event is not what was written.")
    return found


def read_forks(connection: apsw.Connection, key: int) -> list[tuple[str, int]]:
    """Return the streams that have this one as their base, each with the base version."""
    found = connection.execute(database.statements()["forks_of"], (key,))
    return [(str(name), version) for name, version in found if isinstance(version, int)]


def read_blobs(connection: apsw.Connection, tenant: int, hashes: Collection[bytes]) -> dict[bytes, bytes]:
    """Return the contents of a tenant's blobs that exist; raise Corrupt for a damaged one."""
    wanted = msgspec.json.encode([hash_.hex() for hash_ in hashes]).decode()
    found: dict[bytes, bytes] = {}
    for hash_, content in connection.execute(database.statements()["blobs"], (tenant, wanted)):
        assert isinstance(hash_, bytes)
        if not isinstance(content, bytes) or not chain.blob_matches(hash_, content):
            raise chain.damaged_blob_error(hash_)
        found[hash_] = content
    return found


def read_bases(connection: apsw.Connection, key: int) -> list[StreamBase]:
    """Return the bases of a stream's stretches, in order; raise Corrupt for a damaged one."""
    found: list[StreamBase] = []
    for row in connection.execute(database.statements()["bases_of"], (key,)):
        match row:
            case (bytes(check), int(stretch), int(), int(since), int(source), int(version)) if check == row_checksum(
                *row[1:]
            ):
                found.append(StreamBase(stretch, since, source, version))
            case _:
                raise errors.Corrupt("a stored base of a stream is not what was written.")
    return found


def read_path(connection: apsw.Connection, key: int, at: int | None) -> tuple[Span, ...]:
    """Return the path of a stream, now or at a version.

    The path to a version never changes, so it is valid for later statements even if another process writes meanwhile.
    """
    row = first_row(connection, database.statements()["stream_extent"], (key,))
    latest, based = row if row else (0, 0)
    last = latest if isinstance(latest, int) else 0
    last = last if at is None else min(at, last)
    if not based:
        return (Span(key, key, 1, last),) if last > 0 else ()
    return chain.resolve_path(key, last, functools.partial(read_bases, connection))


def read_stream(
    connection: apsw.Connection,
    key: int,
    name: str,
    after: int,
    until: int | None,
    *,
    limit: int,
    at: int | None,
    newest: bool,
) -> list[port.StoredEvent]:
    """Return a stream's events with after < version <= until: the first `limit` of them or the newest."""
    found: list[port.StoredEvent] = []
    query = database.statements()["read_stream_back" if newest else "read_stream"]
    spans = chain.clip(read_path(connection, key, at), after, UNBOUNDED if until is None else until)
    for part in reversed(spans) if newest else spans:
        bindings = (part.stream, part.low - 1, part.high, limit - len(found))
        found += decode_events(connection, connection.execute(query, bindings).fetchall(), name)
        if len(found) >= limit:
            break
    return found[::-1] if newest else found


def find_version_at(connection: apsw.Connection, key: int, position: int) -> int:
    """Return the version that a stream had when the feed was at a position; 0 if it did not exist."""
    sql = database.statements()
    first = read_integer(connection, sql["stream_first"], (key,))
    versions = range(first, read_integer(connection, sql["stream_version"], (key,)) + 1)
    most = key >> TENANT_SHIFT << TENANT_SHIFT | min(position, NUMBER_MASK)
    event_key = functools.partial(read_integer, connection, sql["event_key"])
    count = bisect_right(versions, most, key=lambda version: event_key((key, version)))
    return first + count - 1 if count else 0


def find_version_by_ordinal(connection: apsw.Connection, key: int, name: str, ordinal: int, at: int | None) -> int:
    """Return the lowest version of a stream whose event has at least this ordinal; 0 if there is none."""
    sql = database.statements()
    spans = read_path(connection, key, at)

    def ordinal_at(index: int) -> int:
        place = chain.locate(spans, index)
        row = first_row(connection, sql["header_at"], place)
        if row is None:
            raise errors.Corrupt(f"version {place[1]:,} of a stream is missing.", facts={"version": place[1]})
        return chain.decode_event(decode_event_row(row), name).ordinal

    count = sum(span.high - span.low + 1 for span in spans)
    index = bisect_left(range(count), ordinal, key=ordinal_at)
    return chain.locate(spans, index)[1] if index < count else 0


def find_claim_on_path(connection: apsw.Connection, spans: Sequence[Span], text: str) -> int:
    """Return the version at which a path has a claim; 0 if it has none."""
    if not spans:
        return 0
    if len(spans) == 1:
        made = read_integer(connection, database.statements()["claim"], (spans[0].stretch, text))
        return made if made <= spans[0].high else 0
    stretches = msgspec.json.encode([span.stretch for span in spans]).decode()
    found = connection.execute(database.statements()["claims_among"], (text, stretches))
    return chain.find_claim_version(spans, [(s, v) for s, v in found if isinstance(s, int) and isinstance(v, int)])


def read_snapshot(connection: apsw.Connection, key: int, name: str) -> port.Snapshot | None:
    """Return a stream's newest snapshot; None if it is damaged, or a rewind left out its version."""
    match first_row(connection, database.statements()["snapshot"], (key,)):
        case (int(version), int(fold), bytes(state), bytes(check), bytes(link)):
            whole = row_checksum(key, version, fold, state, link) == check
            if not whole or not chain.clip(read_path(connection, key, None), version - 1, version):
                return None
            return port.Snapshot(name, version, fold, state)
        case _:
            return None


def projection_query(query: port.Query) -> tuple[str, dict[str, apsw.SQLiteValue]]:
    """Return the statement of a page and its bindings, which lack the tenant."""
    sql = database.statements()
    after_time, after_id = query.after or (UNBOUNDED, "")
    bindings: dict[str, apsw.SQLiteValue] = {
        "kind": query.kind,
        "since": query.since_us if query.since_us is not None else -UNBOUNDED,
        "until": query.until_us if query.until_us is not None else UNBOUNDED,
        "after_time": after_time,
        "after_id": after_id,
        "limit": query.limit,
        "offset": query.offset,
    }
    parts = [sql["query"]]
    for name in ("owner", "status", "lookup"):
        if (wanted := getattr(query, name)) is not None:
            parts.append(sql[f"query_{name}"] if wanted or name != "lookup" else sql["query_no_lookup"])
            bindings[name] = wanted
    if query.terms:
        parts.append(sql["query_terms"])
        terms = sorted(set(query.terms))
        bindings |= {"terms": msgspec.json.encode(terms).decode(), "terms_count": len(terms)}
    parts.append(sql["query_page"])
    return "\n".join(parts), bindings
