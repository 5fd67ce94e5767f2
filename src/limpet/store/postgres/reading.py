"""The looks of a driver on PostgreSQL: one round trip each, within one tenant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from limpet import errors
from limpet.store import chain, paths, port
from limpet.store.postgres import names, packing
from limpet.store.postgres.connections import Connection, Connections, Rows
from limpet.store.remote.driver import (
    Blank,
    Head,
    Kept,
    KeptKey,
    KeptNote,
    KeptProjection,
    KeptSnapshot,
    Stream,
)

_BASE_COLUMNS = 4
_STREAM_COLUMNS = 6
_LAST = 2**63 - 1


class Reading:
    """Everything that is looked up. Row-level security lets a look see the one tenant that it names."""

    _connections: Connections
    _sql: Mapping[str, str]

    def _look(self, tenant: str, statement: str, **values: object) -> Rows:
        """Return the rows of one look. One that was cut off is made again: it changes nothing."""
        try:
            return self._asked(tenant, statement, **values)
        except errors.Unavailable as error:
            if not error.facts.get("cut"):
                raise
        return self._asked(tenant, statement, **values)

    def _asked(self, tenant: str, statement: str, **values: object) -> Rows:
        """Return the rows of one statement, in a transaction that is the tenant's."""
        values["tenant"] = kept = names.kept(tenant)
        with self._connections.borrow() as connection:
            return looked(connection, self._sql["tenant"], kept, statement, values)

    def head(self, tenant: str) -> Head:
        """Return a tenant's head."""
        rows = self._look(tenant, self._sql["head"])
        return Head(*rows[0]) if rows else Head()

    def tenants(self) -> list[str]:
        """Return every tenant that has events, sorted."""
        return self._register("tenants")

    def adrift(self) -> list[str]:
        """Return tenants whose head says that they have no events, and who have some. None is without a head."""
        return [
            tenant for tenant in self._register("eventless") if self.feed(tenant, after=0, limit=1)
        ]

    def noted(self) -> list[str]:
        """Return every tenant that has or had notes, sorted."""
        return self._register("noting")

    def _register(self, name: str) -> list[str]:
        with self._connections.borrow() as connection, connection.transaction():
            connection.execute(self._sql["register"].encode())
            rows = connection.execute(self._sql[name].encode()).fetchall()
        return sorted(names.read(tenant) for (tenant,) in rows)

    def stream(self, tenant: str, stream: str | int) -> Stream | None:
        """Return a stream by name or number."""
        rows = self._look(tenant, self._stream_sql(stream), **_named(stream))
        return _stream(rows[0]) if rows else None

    def _stream_sql(self, stream: str | int) -> str:
        which = "stream_by_name" if isinstance(stream, str) else "stream_by_number"
        return f"{self._sql['stream']} {self._sql[which]}"

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[Stream]:
        """Return streams by number, those after one."""
        statement = f"{self._sql['stream']} {self._sql['streams']}"
        return [_stream(row) for row in self._look(tenant, statement, after=after, limit=limit)]

    def own(
        self,
        tenant: str,
        stream: str | int,
        *,
        low: int,
        high: int,
        limit: int,
        newest: bool = False,
    ) -> tuple[Stream | None, list[Kept]]:
        """Return a stream, and its own events with low <= version <= high by version; one look."""
        statement = self._sql["own"].format(
            stream=self._stream_sql(stream), direction="DESC" if newest else "ASC"
        )
        values = {"low": low, "high": min(high, _LAST), "limit": limit, **_named(stream)}
        rows = self._look(tenant, statement, **values)
        if not rows:
            return None, []
        kept = [_kept(row[_STREAM_COLUMNS:]) for row in rows if row[_STREAM_COLUMNS] is not None]
        return _stream(rows[0]), kept

    def feed(self, tenant: str, *, after: int, limit: int) -> list[Kept]:
        """Return events with position > after, in order."""
        rows = self._look(tenant, self._sql["feed"], after=after, limit=limit)
        return [_kept(row) for row in rows]

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        """Return the version of a stream's last own event up to a position; 0 if it had none."""
        rows = self._look(
            tenant, self._sql["version_at"], name=stream.encode(), position=min(position, _LAST)
        )
        return int(rows[0][0])

    def seek(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        """Return the lowest own version within low … high whose event has at least this ordinal; 0: none."""
        rows = self._look(
            tenant,
            self._sql["seek"],
            number=number,
            low=low,
            high=min(high, _LAST),
            ordinal=ordinal,
        )
        return int(rows[0][0] or 0)

    def claims(
        self, tenant: str, claims: Collection[str], stretches: Collection[int]
    ) -> list[tuple[int, str, int]]:
        """Return stretch, text and version of those of these claims that these stretches have."""
        if not claims or not stretches:
            return []
        rows = self._look(
            tenant,
            self._sql["claims"],
            claims=packing.of_bytes([claim.encode() for claim in claims]),
            stretches=packing.of_integers(list(stretches)),
        )
        return [(stretch, _text(claim), version) for stretch, claim, version in rows]

    def claims_of(self, tenant: str, stretches: Collection[int]) -> int:
        """Return how many claims stretches have."""
        found = packing.of_integers(list(stretches))
        return int(self._look(tenant, self._sql["claims_of"], stretches=found)[0][0])

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        """Return the names of other streams that have a base in one, and the base's version."""
        rows = self._look(tenant, self._sql["forks"], number=number)
        return [(_text(name), version) for name, version in rows]

    def key(self, tenant: str, key: str) -> KeptKey | None:
        """Return what an idempotency key was used for."""
        rows = self._look(tenant, self._sql["key"], key=key.encode())
        return _key(rows[0]) if rows else None

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[KeptKey]:
        """Return keys by their text, those after one."""
        rows = self._look(tenant, self._sql["keys"], after=after.encode(), limit=limit)
        return [_key(row) for row in rows]

    def keys_of(self, tenant: str, positions: Collection[int]) -> list[str]:
        """Return keys whose first … last has one of these positions."""
        if not positions:
            return []
        found = packing.of_integers(sorted(positions))
        return [_text(key) for (key,) in self._look(tenant, self._sql["keys_of"], positions=found)]

    def projection(self, tenant: str, kind: str, id: str) -> KeptProjection | None:
        """Return one row."""
        values = {"kind": kind.encode(), "id": id.encode()}
        rows = self._look(tenant, self._sql["projection"], **values)
        return _projection(rows[0]) if rows else None

    def query(self, tenant: str, query: port.Query) -> list[KeptProjection]:
        """Return one page of rows."""
        values: dict[str, object] = {
            "kind": query.kind.encode(),
            "limit": min(query.limit, _LAST),
            "offset": min(query.offset, _LAST),
        }
        parts = ["query"]
        for name in ("owner", "status"):
            if (wanted := getattr(query, name)) is not None:
                parts.append(f"query_{name}")
                values[name] = wanted.encode()
        if query.lookup is not None:
            parts.append("query_lookup" if query.lookup else "query_no_lookup")
            values["lookup"] = query.lookup.encode()
        for name, bound in (("since", query.since_us), ("until", query.until_us)):
            if bound is not None:
                parts.append(f"query_{name}")
                values[name] = _bounded(bound)
        if query.after is not None:
            parts.append("query_after")
            values["after_time"], values["after_id"] = (
                _bounded(query.after[0]),
                query.after[1].encode(),
            )
        if query.terms:
            parts.append("query_terms")
            terms = sorted({term.encode() for term in query.terms})
            values["terms"] = packing.of_bytes(terms)
        statement = "\n".join(self._sql[part] for part in (*parts, "query_page"))
        return [_projection(row) for row in self._look(tenant, statement, **values)]

    def projections(
        self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500
    ) -> list[KeptProjection]:
        """Return rows of all kinds by (kind, id), those after one."""
        values = {"kind": after[0].encode(), "id": after[1].encode(), "limit": limit}
        return [_projection(row) for row in self._look(tenant, self._sql["projections"], **values)]

    def snapshot(self, tenant: str, stream: str) -> KeptSnapshot | None:
        """Return the newest snapshot of a stream."""
        for version, fold, state, mark in self._look(
            tenant, self._sql["snapshot"], name=stream.encode()
        ):
            return KeptSnapshot(port.Snapshot(stream, version, fold, state), mark)
        return None

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return contents by hash, those that are there; unchecked."""
        if not hashes:
            return {}
        return dict(self._look(tenant, self._sql["blobs"], hashes=packing.of_bytes(list(hashes))))

    def every_blob(
        self, tenant: str, *, after: bytes = b"", limit: int = 100
    ) -> list[tuple[bytes, bytes]]:
        """Return blobs by hash, those after one."""
        rows = self._look(tenant, self._sql["every_blob"], after=after, limit=limit)
        return [(hash_, content) for hash_, content in rows]

    def uses(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[tuple[int, bytes]]:
        """Return uses of blobs by position: of those after one, whole positions, about `limit` of them."""
        rows = self._look(tenant, self._sql["uses"], after=after, limit=limit)
        return [(position, hash_) for position, hash_ in rows]

    def unused(self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]) -> set[bytes]:
        """Return those of the blobs that are there and that no event but those of these streams refers to."""
        if not hashes:
            return set()
        found = packing.of_bytes(list(hashes))
        streams = packing.of_integers(list(but))
        rows = self._look(tenant, self._sql["unused"], hashes=found, but=streams)
        return {hash_ for (hash_,) in rows}

    def note(self, tenant: str, name: str) -> KeptNote | None:
        """Return a note."""
        rows = self._look(tenant, self._sql["note"], name=name.encode())
        return _note(rows[0]) if rows else None

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[KeptNote]:
        """Return notes by name, in the order of their UTF-8 bytes."""
        values = {"prefix": prefix.encode(), "after": after.encode(), "limit": limit}
        return [_note(row) for row in self._look(tenant, self._sql["notes"], **values)]


def looked(
    connection: Connection,
    tenant_statement: str,
    tenant: str,
    statement: str,
    values: Mapping[str, object],
) -> Rows:
    """Run one statement of one tenant. Sent together with the tenant's name, so both are one transaction."""
    with connection.pipeline():
        connection.execute(tenant_statement.encode(), {"tenant": tenant})
        cursor = connection.cursor(binary=True)
        cursor.execute(statement.encode(), values)
    return cursor.fetchall() if cursor.description else []


def _text(kept: bytes) -> str:
    """Return a text. Bytes that are none any more are damage, which marks and digests tell of."""
    return str(kept, "utf-8", "replace")


def _named(stream: str | int) -> dict[str, object]:
    return {"name": stream.encode()} if isinstance(stream, str) else {"number": stream}


def _bounded(number: int) -> int:
    return max(-_LAST, min(number, _LAST))


def _stream(row: Sequence[Any]) -> Stream:
    number, name, first, version, flat, mark = row[:_STREAM_COLUMNS]
    parts = (flat[at : at + _BASE_COLUMNS] for at in range(0, len(flat), _BASE_COLUMNS))
    bases = tuple(paths.Base(*part) for part in parts)
    return Stream(number, _text(name), first, version, bases, mark)


def _kept(row: Sequence[Any]) -> Kept:
    position, stream, version, header, payload, salt, digest, link, name, ordinal, notice = row[:11]
    found = chain.Row(chain.Place(position, stream, version), header, payload, salt, digest, link)
    blank = None if notice is None else Blank(notice, row[11] or 0, row[12])
    # A stream that lost its name is damage, which whoever reads finds by the number.
    return Kept(_text(name) if name is not None else "", found, ordinal, blank)


def _key(row: Sequence[Any]) -> KeptKey:
    return KeptKey(_text(row[0]), *row[1:])


def _projection(row: Sequence[Any]) -> KeptProjection:
    kind, id_, owner, status, time_us, lookup, terms, document, mark = row
    found = port.Projection(
        kind=_text(kind),
        id=_text(id_),
        owner=_text(owner),
        status=_text(status),
        time_us=time_us,
        lookup=_text(lookup),
        terms=tuple(_text(term) for term in terms),
        document=document,
    )
    return KeptProjection(found, mark)


def _note(row: Sequence[Any]) -> KeptNote:
    name, value, version, mark = row
    return KeptNote(_text(name), port.Note(value, version), mark)
