"""Reading that takes more than one statement, or one that is put together; each on a given connection."""

from __future__ import annotations

from collections.abc import Collection

import apsw
import msgspec

from holdfast import errors
from holdfast.store import chain, port
from holdfast.store.sqlite import opening
from holdfast.store.sqlite.rows import LATEST, NUMBER_MASK, first, mark, number, row_of


def feed(connection: apsw.Connection, base: int, after: int, limit: int) -> list[port.StoredEvent]:
    """Return a tenant's events after a position; `base` is the tenant's part of every key."""
    sql = opening.queries()
    found = connection.execute(sql["read_feed"], (base | after, base | NUMBER_MASK, limit))
    events = [row_of(row) for row in found]
    names = {row.place.stream: "" for row in events}
    for stream in names:
        name = first(connection, sql["stream_name"], (base | stream,))
        if name is None:
            raise errors.Corrupt(f"stream {stream:,} has no name.", facts={"stream": stream})
        names[stream] = str(name[0])
    return [chain.opened(row, names[row.place.stream]) for row in events]


def blobs(
    connection: apsw.Connection, tenant: int, hashes: Collection[bytes]
) -> dict[bytes, bytes]:
    """Return the contents of a tenant's blobs that are there; raise Corrupt for a damaged one."""
    wanted = msgspec.json.encode([hash_.hex() for hash_ in hashes]).decode()
    found: dict[bytes, bytes] = {}
    for hash_, content in connection.execute(opening.queries()["blobs"], (tenant, wanted)):
        assert isinstance(hash_, bytes)
        if not isinstance(content, bytes) or not chain.is_blob(hash_, content):
            raise chain.damaged_blob(hash_)
        found[hash_] = content
    return found


def seek(connection: apsw.Connection, key: int, stream: str, ordinal: int) -> int:
    """Return the lowest version of a stream whose event has at least this ordinal; 0 if there is none."""
    sql = opening.queries()
    low, last = 1, number(connection, sql["stream_version"], (key,)) + 1
    high = last
    while low < high:
        middle = (low + high) // 2
        row = first(connection, sql["header_at"], (key, middle))
        if row is None:
            raise errors.Corrupt(
                f"version {middle:,} of a stream is missing.", facts={"version": middle}
            )
        if chain.opened(row_of(row), stream).ordinal >= ordinal:
            high = middle
        else:
            low = middle + 1
    return low if low < last else 0


def snapshot(connection: apsw.Connection, key: int, stream: str) -> port.Snapshot | None:
    """Return a stream's newest snapshot, None if there is none or its mark is wrong."""
    match first(connection, opening.queries()["snapshot"], (key,)):
        case (int(version), int(fold), bytes(state), bytes(check), bytes(link)):
            whole = mark(key, version, fold, state, link) == check
            return port.Snapshot(stream, version, fold, state) if whole else None
        case _:
            return None


def page(query: port.Query) -> tuple[str, dict[str, apsw.SQLiteValue]]:
    """Return the statement of a page and what it is bound to; the tenant is still missing."""
    sql = opening.queries()
    after_time, after_id = query.after or (LATEST, "")
    bindings: dict[str, apsw.SQLiteValue] = {
        "kind": query.kind,
        "since": query.since_us if query.since_us is not None else -LATEST,
        "until": query.until_us if query.until_us is not None else LATEST,
        "after_time": after_time,
        "after_id": after_id,
        "limit": query.limit,
        "offset": query.offset,
    }
    parts = [sql["query"]]
    for name in ("owner", "status", "lookup"):
        if (wanted := getattr(query, name)) is not None:
            parts.append(
                sql[f"query_{name}"] if wanted or name != "lookup" else sql["query_no_lookup"]
            )
            bindings[name] = wanted
    if query.terms:
        parts.append(sql["query_terms"])
        terms = sorted(set(query.terms))
        bindings |= {"terms": msgspec.json.encode(terms).decode(), "terms_count": len(terms)}
    parts.append(sql["query_page"])
    return "\n".join(parts), bindings
