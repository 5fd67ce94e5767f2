"""Reading that takes more than one statement, or one that is put together; each on a given connection."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence

import apsw
import msgspec

from limpet import errors
from limpet.store import chain, paths, port
from limpet.store.paths import Base, Span
from limpet.store.sqlite import opening
from limpet.store.sqlite.rows import (
    LATEST,
    NUMBER_MASK,
    TENANT_SHIFT,
    first,
    mark,
    number,
    row_of,
    within,
)


def feed(connection: apsw.Connection, base: int, after: int, limit: int) -> list[port.StoredEvent]:
    """Return a tenant's events after a position; `base` is the tenant's part of every key."""
    sql = opening.queries()
    found = connection.execute(sql["read_feed"], (base | after, base | NUMBER_MASK, limit))
    raw = found.fetchall()
    names = {row[1]: "" for row in raw}
    for stream in names:
        name = first(connection, sql["stream_name"], (stream,))
        if name is None:
            number_ = within(stream)
            raise errors.Corrupt(f"stream {number_:,} has no name.", facts={"stream": number_})
        names[stream] = str(name[0])
    return opened(connection, raw, names)


def opened(
    connection: apsw.Connection,
    raw: Iterable[tuple[apsw.SQLiteValue, ...]],
    names: Mapping[apsw.SQLiteValue, str] | str,
) -> list[port.StoredEvent]:
    """Return stored events, checked, with stand-ins for what was erased; raise Corrupt for a damaged one."""
    found = [(line[0], line[1], row_of(line)) for line in raw]
    gone = [key for key, _, row in found if row.payload is None]
    stand_ins = _stand_ins(connection, gone) if gone else {}
    made: list[port.StoredEvent] = []
    for key, stream, row in found:
        name = names if isinstance(names, str) else names[stream]
        if row.payload is None and key not in stand_ins:
            raise chain.damaged(
                row.place, "its content is gone, and nothing says that it was erased"
            )
        made.append(chain.opened(row, name, stand_ins.get(key)))
    return made


def _stand_ins(
    connection: apsw.Connection, keys: list[apsw.SQLiteValue]
) -> dict[apsw.SQLiteValue, bytes | None]:
    found: dict[apsw.SQLiteValue, bytes | None] = {}
    for row in connection.execute(
        opening.queries()["stand_ins"], (msgspec.json.encode(keys).decode(),)
    ):
        match row:
            case (int(event), int(), int(), payload, bytes(check)) if check == mark(*row[:-1]):
                assert payload is None or isinstance(payload, bytes), "its mark is right"
                found[event] = payload
            case _:
                raise errors.Corrupt("a row that says what was erased is not what was written.")
    return found


def forks(connection: apsw.Connection, key: int) -> list[tuple[str, int]]:
    """Return the streams that go on from another one, and from which version of it."""
    found = connection.execute(opening.queries()["forks_of"], (key,))
    return [(str(name), version) for name, version in found if isinstance(version, int)]


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


def bases(connection: apsw.Connection, key: int) -> list[Base]:
    """Return the bases of a stream's stretches, in order; raise Corrupt for a damaged one."""
    found: list[Base] = []
    for row in connection.execute(opening.queries()["bases_of"], (key,)):
        match row:
            case (bytes(check), int(stretch), int(), int(since), int(source), int(version)) if (
                check == mark(*row[1:])
            ):
                found.append(Base(stretch, since, source, version))
            case _:
                raise errors.Corrupt("a stored base of a stream is not what was written.")
    return found


def path(connection: apsw.Connection, key: int, at: int | None) -> tuple[Span, ...]:
    """Return what a stream is made of, now or at a version.

    What it was made of at a version never changes: so it holds for the statements that follow, even
    if others write meanwhile.
    """
    row = first(connection, opening.queries()["stream_extent"], (key,))
    latest, based = row if row else (0, 0)
    last = latest if isinstance(latest, int) else 0
    last = last if at is None else min(at, last)
    if not based:
        return (Span(key, key, 1, last),) if last > 0 else ()
    return paths.path(key, last, functools.partial(bases, connection))


def stream(
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
    """Return a stream's events after and until two versions, the first of them or the newest."""
    found: list[port.StoredEvent] = []
    query = opening.queries()["read_stream_back" if newest else "read_stream"]
    spans = paths.within(path(connection, key, at), after, LATEST if until is None else until)
    for part in reversed(spans) if newest else spans:
        bindings = (part.stream, part.low - 1, part.high, limit - len(found))
        found += opened(connection, connection.execute(query, bindings).fetchall(), name)
        if len(found) >= limit:
            break
    return found[::-1] if newest else found


def version_at(connection: apsw.Connection, key: int, position: int) -> int:
    """Return the version that a stream had when the feed was at a position; 0 if it did not exist."""
    sql = opening.queries()
    begin = low = number(connection, sql["stream_first"], (key,))
    high = number(connection, sql["stream_version"], (key,)) + 1
    most = key >> TENANT_SHIFT << TENANT_SHIFT | min(position, NUMBER_MASK)
    while low < high:
        middle = (low + high) // 2
        if number(connection, sql["event_key"], (key, middle)) > most:
            high = middle
        else:
            low = middle + 1
    return low - 1 if low > begin else 0


def seek(connection: apsw.Connection, key: int, name: str, ordinal: int, at: int | None) -> int:
    """Return the lowest version of a stream whose event has at least this ordinal; 0 if there is none."""
    sql = opening.queries()
    spans = path(connection, key, at)
    low, last = 0, paths.count(spans)
    high = last
    while low < high:
        middle = (low + high) // 2
        place = paths.place(spans, middle)
        row = first(connection, sql["header_at"], place)
        if row is None:
            raise errors.Corrupt(
                f"version {place[1]:,} of a stream is missing.", facts={"version": place[1]}
            )
        if chain.opened(row_of(row), name).ordinal >= ordinal:
            high = middle
        else:
            low = middle + 1
    return paths.place(spans, low)[1] if low < last else 0


def claim(connection: apsw.Connection, spans: Sequence[Span], text: str) -> int:
    """Return the version at which a path has a claim; 0 if it has not."""
    if not spans:
        return 0
    if len(spans) == 1:
        made = number(connection, opening.queries()["claim"], (spans[0].stretch, text))
        return made if made <= spans[0].high else 0
    stretches = msgspec.json.encode([span.stretch for span in spans]).decode()
    found = connection.execute(opening.queries()["claims_among"], (text, stretches))
    return paths.made(
        spans, [(s, v) for s, v in found if isinstance(s, int) and isinstance(v, int)]
    )


def snapshot(connection: apsw.Connection, key: int, name: str) -> port.Snapshot | None:
    """Return a stream's newest snapshot, None if there is none, its mark is wrong, or it was left out."""
    match first(connection, opening.queries()["snapshot"], (key,)):
        case (int(version), int(fold), bytes(state), bytes(check), bytes(link)):
            whole = mark(key, version, fold, state, link) == check
            if not whole or not paths.within(path(connection, key, None), version - 1, version):
                return None
            return port.Snapshot(name, version, fold, state)
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
