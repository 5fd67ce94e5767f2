"""Appending, inside one open transaction: conditions first, then rows. Nothing here commits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import apsw
import msgspec

from limpet.store import chain, paths, port
from limpet.store.paths import Span
from limpet.store.sqlite import reading
from limpet.store.sqlite.anchor import Head
from limpet.store.sqlite.known import Known
from limpet.store.sqlite.rows import (
    LATEST,
    NUMBER_MASK,
    TENANT_SHIFT,
    first,
    head_of,
    mark,
    number,
    projection_of,
    replayed,
)

if TYPE_CHECKING:
    Row = tuple[apsw.SQLiteValue, ...]

MOMENT_BITS = 20
"""Microseconds of one moment, as a power of two; the same number stands in the SQL."""


MANY = 8


class Batch:
    """Appends of one transaction, and the heads that they lead to.

    Rows wait for `flush`, which writes them together and finds out whether a version or a claim was
    taken after all, or a row is not as remembered: that is rare, and then a `careful` batch asks before
    each append and writes at once.
    """

    def __init__(
        self,
        cursor: apsw.Cursor,
        known: Known,
        random: Callable[[int], bytes],
        *,
        careful: bool,
    ) -> None:
        self._careful = careful
        self._events: list[Row] = []
        self._claims: list[Row] = []
        self._added: dict[tuple[int, str, str], Row] = {}
        self._touches: dict[tuple[int, str, str], Row] = {}
        self._blobs: list[Row] = []
        self._uses: list[Row] = []
        self._cursor = cursor
        self._connection = cursor.connection
        self._known = known
        self._random = random
        self._sql = known.sql
        self._links: dict[int, bytes] = {}
        self.heads: dict[int, Head] = {}

    def append(self, append: port.Append) -> port.Outcome:
        """Check one append's conditions and write it; on any other outcome than Appended nothing is written."""
        known, connection = self._known, self._connection
        tenant = known.tenant(connection, append.tenant)
        if append.key is not None:
            row = first(self._connection, self._sql["key"], (tenant, append.key.key))
            if row is not None:
                return replayed(row)
        keys: list[int] = []
        earlier = self._careful
        for write in append.writes:
            key = known.stream(connection, tenant, write.stream) if tenant else 0
            if known.versions.get(key) != write.expected:
                if key not in self._links:
                    known.stretches.pop(key, None)
                actual = self._version(key) if key else 0
                if actual != write.expected:
                    return port.Stale(write.stream, actual)
            keys.append(key)
            earlier = earlier or write.base is not None or (key and bool(self._stretch(key)[1]))
        # A row that is there already tells of a claim in the stretch that is written, not before it.
        if earlier and (taken := self._claimed(append, keys)):
            return taken
        tenant = tenant or known.add_tenant(connection, append.tenant)
        head = self._head(tenant)
        begin = head.position + 1
        for write, key in zip(append.writes, keys, strict=True):
            head = self._write(tenant, write, key, head)
        self.heads[tenant] = head
        many = len(append.projections) >= MANY and not self._careful
        for projection in append.projections:
            self._put(tenant, projection, many=many)
        if append.drops or append.snapshots or append.key is not None:
            self._derive(tenant, append, begin, head.position)
        if self._careful:
            self.flush()
        return port.Appended(begin, head.position)

    def flush(self) -> bool:
        """Write the rows that wait; False if something was not as remembered, and then all of it must be undone."""
        executemany, sql = self._cursor.executemany, self._sql
        try:
            executemany(sql["add_event"], self._events)
            if self._claims:
                executemany(sql["add_claim"], self._claims)
            if self._uses:
                executemany(sql["add_blob"], self._blobs)
                executemany(sql["add_blob_use"], self._uses)
        except apsw.ConstraintError:
            if self._careful:
                raise
            return False
        if self._added or self._touches:
            changes = self._connection.total_changes
            before = changes()
            if self._added:
                executemany(sql["add_projection"], self._added.values())
            executemany(sql["touch_projection"], self._touches.values())
            if changes() - before != len(self._added) + len(self._touches):
                assert not self._careful, "a careful batch touches only rows that it has put"
                return False
        self._events, self._claims, self._added, self._touches = [], [], {}, {}
        self._blobs, self._uses = [], []
        return True

    def _claimed(self, append: port.Append, keys: list[int]) -> port.Claimed | None:
        for write, key in zip(append.writes, keys, strict=True):
            spans = self._before(append.tenant, write, key)
            if not spans and len(write.claims) <= 1:
                continue
            made: dict[str, int] = {}
            for claim, index in write.claims:
                taken = reading.claim(self._connection, spans, claim)
                if taken or claim in made:
                    return port.Claimed(write.stream, claim, taken or made[claim])
                made[claim] = write.before + index + 1
        return None

    def _before(self, tenant: str, write: port.StreamWrite, key: int) -> tuple[Span, ...]:
        """Return what a write goes on from."""
        if write.base is not None:
            return self._based(self._known.tenant(self._connection, tenant), write.base)[1]
        if not key:
            return ()
        stretch, spans = self._stretch(key)
        return (*spans, Span(key, stretch, 1, LATEST))

    def _based(self, tenant: int, base: tuple[str, int]) -> tuple[int, tuple[Span, ...]]:
        """Return the stream that a base names, and what that is made of there."""
        source = self._known.stream(self._connection, tenant, base[0])
        assert source and base[1] <= self._version(source), "a base names a stream that is there"
        spans = paths.path(source, base[1], functools.partial(reading.bases, self._connection))
        assert paths.end(spans) == base[1], "a base names a version that was"
        return source, spans

    def _stretch(self, key: int) -> tuple[int, tuple[Span, ...]]:
        """Return the stretch that a stream is written in, and what of it came before."""
        found = self._known.stretches.get(key)
        if found is None:
            *spans, last = reading.path(self._connection, key, None)
            found = self._known.stretches[key] = (last.stretch, tuple(spans))
        return found

    def _version(self, key: int) -> int:
        if key in self._links:
            return self._known.versions[key]
        return number(self._connection, self._sql["stream_version"], (key,))

    def _head(self, tenant: int) -> Head:
        head = self.heads.get(tenant) or self._known.heads.get(tenant)
        if head is None:
            base = tenant << TENANT_SHIFT
            head = head_of(first(self._connection, self._sql["head"], (base, base | NUMBER_MASK)))
        return head

    def _write(self, tenant: int, write: port.StreamWrite, key: int, head: Head) -> Head:
        base = tenant << TENANT_SHIFT
        begin = base | (head.position + 1)
        if not key:
            key = begin
            self._connection.execute(
                self._sql["add_stream"],
                (key, tenant, write.stream, mark(key, tenant, write.stream)),
            )
            self._known.stretches[key] = (key, ())
        if write.base is not None:
            source, spans = self._based(tenant, write.base)
            row = (begin, key, write.before + 1, source, write.base[1])
            self._connection.execute(self._sql["add_base"], (*row, mark(*row)))
            self._known.stretches[key] = (begin, spans)
        position, version, link = head.position, write.before, head.link
        for event in write.events:
            position, version, payload = position + 1, version + 1, event.payload
            header = chain.header(event, chain.Place(position, key & NUMBER_MASK, version))
            salt = self._random(chain.SALT_BYTES)
            digest = chain.digest(salt, header, payload)
            link = chain.link(link, digest, header)
            self._events.append(
                (base | position, key, version, header, payload, salt, digest, link)
            )
            if event.blobs:
                self._bring(tenant, base | position, event.blobs)
        if write.claims:
            stretch = self._stretch(key)[0]
            for claim, index in write.claims:
                self._claims.append((stretch, claim, write.before + index + 1))
        self._links[key] = link
        self._known.versions[key] = version
        return Head(position, link)

    def _bring(self, tenant: int, event: int, contents: tuple[bytes, ...]) -> None:
        for hash_, content in {chain.blob_hash(content): content for content in contents}.items():
            self._blobs.append((tenant, hash_, content))
            self._uses.append((event, hash_))

    def _derive(self, tenant: int, append: port.Append, begin: int, end: int) -> None:
        execute, sql = self._connection.execute, self._sql
        for place in append.drops:
            self.drop(tenant, *place)
        for snap in append.snapshots:
            key = self._known.stream(self._connection, tenant, snap.stream)
            check = mark(key, snap.version, snap.fold, snap.state, self._link(key, snap.version))
            execute(sql["put_snapshot"], (key, snap.version, snap.fold, snap.state, check))
        if append.key is not None:
            row = (tenant, append.key.key, append.key.command_hash, begin, end, append.time_us)
            execute(sql["add_key"], (*row, mark(*row)))

    def drop(self, tenant: int, kind: str, id_: str) -> None:
        """Drop a projection."""
        place = (tenant, kind, id_)
        self._change_terms(place, ())
        self._connection.execute(self._sql["drop_projection"], place)
        self._known.shapes.pop(place, None)
        self._added.pop(place, None)
        self._touches.pop(place, None)

    def _link(self, key: int, version: int) -> bytes:
        if key in self._links and self._known.versions.get(key) == version:
            return self._links[key]
        row = first(self._connection, self._sql["link_of"], (key, version))
        assert row is not None and isinstance(row[0], bytes), "a snapshot is of what was written"
        return row[0]

    def derive(self, tenant: int, key: int, derived: port.Derived) -> int:
        """Write what a whole stream leads to, where nothing derived is left; return how many claims it has."""
        claims = paths.claimed(key, reading.bases(self._connection, key), derived.claims)
        self._claims += claims
        for projection in derived.projections:
            self._put(tenant, projection)
        for hash_, version in derived.blobs:
            event = number(self._connection, self._sql["event_key"], (key, version))
            self._uses.append((event, hash_))
        self.flush()
        return len(claims)

    def _put(self, tenant: int, p: port.Projection, *, many: bool = False) -> None:
        # Rows that come by the dozen are new ones, as a rule: they are added together.
        place, moment = (tenant, p.kind, p.id), p.time_us >> MOMENT_BITS
        terms = msgspec.json.encode(p.terms).decode() if p.terms else "[]"
        row = (*place, p.owner, p.status, moment, p.time_us, p.lookup, terms, p.document)
        check = mark(*row)
        shape = (p.owner, p.status, moment, p.lookup, terms)
        before = self._known.shapes.get(place)
        if self._added.pop(place, None):
            before = None
        if before == shape:
            self._touches[place] = (p.time_us, p.document, check, *place, *shape)
            return
        self._touches.pop(place, None)
        self._known.shapes[place] = shape
        if before is None and many and not p.terms:
            self._added[place] = (*row, check)
            return
        if before is None:
            added = self._connection.execute(self._sql["add_projection"], (*row, check))
            if added.connection.changes():
                self._add_terms(place, dict.fromkeys(p.terms))
                return
        elif before[-1] == terms:
            # Its terms are as remembered, or this finds no row.
            again = (*row[3:-2], p.document, check, *place, terms)
            if self._connection.execute(self._sql["reshape"], again).connection.changes():
                return
        self._change_terms(place, p.terms)
        self._connection.execute(self._sql["put_projection"], (*row, check))

    def _change_terms(self, place: tuple[int, str, str], terms: tuple[str, ...]) -> None:
        tenant, kind, id_ = place
        row = first(self._connection, self._sql["projection"], place)
        before = set(projection_of(row).terms) if row else set[str]()
        for term in before - set(terms):
            self._connection.execute(self._sql["drop_term"], (tenant, kind, term, id_))
        self._add_terms(place, set(terms) - before)

    def _add_terms(self, place: tuple[int, str, str], terms: Iterable[str]) -> None:
        tenant, kind, id_ = place
        for term in terms:
            self._connection.execute(self._sql["add_term"], (tenant, kind, term, id_))
