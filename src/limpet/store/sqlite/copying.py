"""A log as it is kept: given page by page, and kept the same elsewhere, inside one open transaction.

Nothing here commits, and nothing is derived: `rebuild` has to follow.
"""

from __future__ import annotations

from collections.abc import Collection

import apsw
import msgspec

from limpet import errors
from limpet.store import chain, portable
from limpet.store.port import Raw, RawKey
from limpet.store.sqlite import opening
from limpet.store.sqlite.known import Known
from limpet.store.sqlite.rows import (
    NUMBER_MASK,
    TENANT_SHIFT,
    first,
    head_of,
    mark,
    number,
    row_of,
)

_hashes = msgspec.json.Decoder(list[str])


def page(connection: apsw.Connection, base: int, after: int, limit: int) -> list[Raw]:
    """Return a tenant's events after a position; `base` is the tenant's part of every key. One statement."""
    found = connection.execute(opening.queries()["copy"], (base | after, base | NUMBER_MASK, limit))
    return [_raw(row) for row in found]


def _raw(row: tuple[apsw.SQLiteValue, ...]) -> Raw:
    event, stream = row_of(row[:8]), row[1]
    name, named, tenant = row[8:11]
    if not isinstance(name, str) or named != mark(stream, tenant, name):
        raise chain.damaged(event.place, "its stream's name is not what was written")
    chain.opened(event, name)
    raw = Raw(
        stream=name, position=event.place.position, number=event.place.stream,
        version=event.place.version, header=event.header, payload=event.payload, salt=event.salt,
        digest=event.digest, link=event.link, base=_base(event.place, row[11:17]),
        blobs=tuple(map(bytes.fromhex, _hashes.decode(str(row[22])))),
        erased=_erased(event.place, row[17:22]),
    )  # fmt: skip
    if (raw.payload is None) != (raw.erased is not None):
        raise chain.damaged(event.place, "its content is gone, and nothing says that it was erased")
    return raw


def _base(place: chain.Place, row: tuple[apsw.SQLiteValue, ...]) -> tuple[int, int] | None:
    match row:
        case (None, *_):
            return None
        case (check, *_, int(source), int(version)) if check == mark(*row[1:]):
            return source & NUMBER_MASK, version
        case _:
            raise chain.damaged(place, "what it goes on from is not what was written")


def _erased(
    place: chain.Place, row: tuple[apsw.SQLiteValue, ...]
) -> tuple[int, int, bytes | None] | None:
    match row:
        case (None, *_):
            return None
        case (check, int(), int(notice), int(cause), None | bytes() as payload) if check == mark(
            *row[1:]
        ):
            return notice & NUMBER_MASK, cause & NUMBER_MASK, payload
        case _:
            raise chain.damaged(place, "what says that it was erased is not what was written")


def keys(connection: apsw.Connection, tenant: int, after: str, limit: int) -> list[RawKey]:
    """Return a tenant's idempotency keys after one, by their text."""
    found = connection.execute(opening.queries()["copy_keys"], (tenant, after, limit))
    return [_key(tenant, row) for row in found]


def _key(tenant: int, row: tuple[apsw.SQLiteValue, ...]) -> RawKey:
    match row:
        case (str(key), bytes(hash_), int(begin), int(end), int(time_us), bytes(check)) if (
            check == mark(tenant, *row[:-1])
        ):
            return RawKey(key, hash_, begin, end, time_us)
        case _:
            raise errors.Corrupt("a stored idempotency key is not what was written.")


class Pasting:
    """One page on its way into the log of a tenant. It is what `portable.fit` compares with."""

    def __init__(self, connection: apsw.Connection, tenant: str) -> None:
        self._connection = connection
        self._sql = opening.queries()
        self._name = tenant
        # A memory of its own: names change on the way.
        self._known = Known()
        self.tenant = self._known.tenant(connection, tenant)

    @property
    def _base(self) -> int:
        return self.tenant << TENANT_SHIFT

    def head(self) -> tuple[int, bytes]:
        """Return position and link of the last event."""
        row = first(self._connection, self._sql["head"], (self._base, self._base | NUMBER_MASK))
        found = head_of(row if self.tenant else None)
        return found.position, found.link

    def stream(self, number_: int) -> tuple[str, int] | None:
        """Return name and version of a stream."""
        key = self._base | number_
        name = first(self._connection, self._sql["stream_name"], (key,))
        version = number(self._connection, self._sql["stream_version"], (key,))
        return (str(name[0]), version) if name else None

    def number(self, name: str) -> int:
        """Return the number of the stream that has a name."""
        found = number(self._connection, self._sql["stream_key"], (self.tenant, name))
        return found & NUMBER_MASK

    def link(self, position: int) -> bytes:
        """Return the link of an event."""
        row = first(self._connection, self._sql["link_at"], (self._base | position,))
        return row[0] if row and isinstance(row[0], bytes) else b""

    def lacks(self, hashes: Collection[bytes]) -> Collection[bytes]:
        """Return those of the blobs that are not there."""
        wanted = msgspec.json.encode([hash_.hex() for hash_ in hashes]).decode()
        found = self._connection.execute(self._sql["known_blobs"], (self.tenant, wanted))
        return set(hashes) - {bytes.fromhex(str(hash_)) for (hash_,) in found}

    def key(self, key: str) -> RawKey | None:
        """Return what an idempotency key was used for."""
        row = first(self._connection, self._sql["whole_key"], (self.tenant, key))
        return _key(self.tenant, row) if row else None

    def put(self, fit: portable.Fit) -> None:
        """Keep what fits."""
        if not self.tenant:
            self.tenant = self._known.add_tenant(self._connection, self._name)
        for number_, name in fit.renamed.items():
            self._rename(number_, name)
        many, sql, tenant = self._connection.executemany, self._sql, self.tenant
        named = [(self._base | at, tenant, name) for at, name in fit.streams.items()]
        many(sql["add_stream"], [(*row, mark(*row)) for row in named])
        many(sql["add_blob"], [(tenant, hash_, content) for hash_, content in fit.blobs.items()])
        for raw in fit.new:
            self._add(raw)
        if fit.again:
            self._erase_too(fit.again)
        rows = [(tenant, k.key, k.command_hash, k.first, k.last, k.time_us) for k in fit.keys]
        many(sql["add_key"], [(*row, mark(*row)) for row in rows])
        self._connection.execute(sql["count_rebuild"])

    def _rename(self, number_: int, name: str) -> None:
        key = self._base | number_
        check = mark(key, self.tenant, name)
        self._connection.execute(self._sql["rename_stream"], (name, check, key))

    def _add(self, raw: Raw) -> None:
        run, sql, base = self._connection.execute, self._sql, self._base
        event, stream = base | raw.position, base | raw.number
        row = (event, stream, raw.version, raw.header, raw.payload, raw.salt, raw.digest, raw.link)
        run(sql["add_event"], row)
        if raw.base is not None:
            made = (event, stream, raw.version, base | raw.base[0], raw.base[1])
            run(sql["add_base"], (*made, mark(*made)))
        self._put_uses_and_erased(raw)

    def _put_uses_and_erased(self, raw: Raw) -> None:
        run, sql, event = self._connection.execute, self._sql, self._base | raw.position
        for hash_ in raw.blobs:
            run(sql["add_blob_use"], (event, hash_))
        if raw.erased is not None:
            notice, cause, payload = raw.erased
            # No cause has the number 0, whatever its tenant: its whole stream went.
            row = (event, self._base | notice, self._base | cause if cause else 0, payload)
            run(sql["put_erased"], (*row, mark(*row)))

    def _erase_too(self, again: list[Raw]) -> None:
        run, sql = self._connection.execute, self._sql
        hashes: set[str] = set()
        for raw in again:
            event = self._base | raw.position
            hashes.update(str(hash_) for (hash_,) in run(sql["hashes_of_event"], (event,)))
            run(sql["drop_uses_of_event"], (event,))
            run(sql["blank_event"], (event,))
            self._put_uses_and_erased(raw)
        run(sql["drop_keys"], (self.tenant,))
        run(sql["drop_blobs"], (self.tenant, msgspec.json.encode(sorted(hashes)).decode()))
        run(sql["put_pending"], (b"",))
