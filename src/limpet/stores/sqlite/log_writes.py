"""Writes to the log inside an open transaction: appends, and pages copied from another store.

The conditions of an append are checked before its first row is written. Nothing here commits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import apsw
import msgspec

from limpet import errors
from limpet.stores import chain, port, store_copy
from limpet.stores.chain import UNBOUNDED, Span, row_checksum
from limpet.stores.port import RawEvent, RawKey
from limpet.stores.sqlite import database, reads
from limpet.stores.sqlite.database import NUMBER_MASK, TENANT_SHIFT, SQLiteCache, first_row, read_head, read_integer
from limpet.stores.sqlite.reads import decode_event_row, decode_key_record, decode_projection
from limpet.stores.sqlite.shared_file.store_files import LogHead

if TYPE_CHECKING:
    SQLiteRow = tuple[apsw.SQLiteValue, ...]

TIME_BUCKET_BITS = 20
"""The width of an index bucket of times, as a power of two microseconds. The SQL has the same number."""


class AppendBatch:
    """Appends of one transaction, and the heads that they lead to.

    Rows are collected for `flush`, which writes them together. Database constraints detect a version or claim that
    is taken, and outdated index columns of a projection. Then, rarely, the appends are repeated in a `careful` batch,
    which checks each append first and writes it at once.
    """

    def __init__(
        self, cursor: apsw.Cursor, known: SQLiteCache, random: Callable[[int], bytes], *, careful: bool
    ) -> None:
        self._careful = careful
        self._events: list[SQLiteRow] = []
        self._claims: list[SQLiteRow] = []
        self._touched_projections: dict[tuple[int, str, str], SQLiteRow] = {}
        self._blobs: list[SQLiteRow] = []
        self._uses: list[SQLiteRow] = []
        self._cursor = cursor
        self._connection = cursor.connection
        self._cache = known
        self._random = random
        self._sql = known.sql
        self._links: dict[int, bytes] = {}
        self.heads: dict[int, LogHead] = {}

    def append(self, append: port.Append) -> port.AppendOutcome:
        """Check one append's conditions and write it; on any other outcome than Appended nothing is written."""
        known, connection = self._cache, self._connection
        tenant = known.tenant_number(connection, append.tenant)
        if append.key is not None:
            row = first_row(self._connection, self._sql["key"], (tenant, append.key.key))
            if row is not None:
                return decode_key_record(row)
        keys: list[int] = []
        earlier = self._careful
        for write in append.writes:
            key = known.stream_key(connection, tenant, write.stream) if tenant else 0
            if known.versions.get(key) != write.expected:
                if key not in self._links:
                    known.stretches.pop(key, None)
                actual = self._version(key) if key else 0
                if actual != write.expected:
                    return port.Stale(write.stream, actual)
            keys.append(key)
            earlier = earlier or write.base is not None or (key and bool(self._stretch(key)[1]))
        # The constraint on claims covers the stretch that is written, not those before it.
        if earlier and (taken := self._find_taken_claim(append, keys)):
            return taken
        tenant = tenant or known.add_tenant(connection, append.tenant)
        head = self.heads.get(tenant) or self._cache.heads.get(tenant) or read_head(connection, tenant)
        begin = head.position + 1
        for write, key in zip(append.writes, keys, strict=True):
            head = self._write(tenant, write, key, head)
        self.heads[tenant] = head
        for projection in append.projections:
            self._put_projection(tenant, projection)
        if append.drops or append.snapshots or append.key is not None:
            self._write_drops_snapshots_key(tenant, append, begin, head.position)
        if self._careful:
            self.flush()
        return port.Appended(begin, head.position)

    def flush(self) -> bool:
        """Write the collected rows; return False if a cached value was stale: then the caller rolls back."""
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
        if self._touched_projections:
            changes = self._connection.total_changes
            before = changes()
            executemany(sql["touch_projection"], self._touched_projections.values())
            if changes() - before != len(self._touched_projections):
                assert not self._careful, "a careful batch touches only rows that it has put"
                return False
        self._events, self._claims, self._blobs, self._uses, self._touched_projections = [], [], [], [], {}
        return True

    def _find_taken_claim(self, append: port.Append, keys: list[int]) -> port.ClaimTaken | None:
        for write, key in zip(append.writes, keys, strict=True):
            spans = self._previous_spans(append.tenant, write, key)
            if not spans and len(write.claims) <= 1:
                continue
            made: dict[str, int] = {}
            for claim, index in write.claims:
                taken = reads.find_claim_on_path(self._connection, spans, claim)
                if taken or claim in made:
                    return port.ClaimTaken(write.stream, claim, taken or made[claim])
                made[claim] = chain.previous_version(write) + index + 1
        return None

    def _previous_spans(self, tenant: str, write: port.StreamWrite, key: int) -> tuple[Span, ...]:
        """Return the spans that a write continues."""
        if write.base is not None:
            return self._resolve_base(self._cache.tenant_number(self._connection, tenant), write.base)[1]
        if not key:
            return ()
        stretch, spans = self._stretch(key)
        return (*spans, Span(key, stretch, 1, UNBOUNDED))

    def _resolve_base(self, tenant: int, base: tuple[str, int]) -> tuple[int, tuple[Span, ...]]:
        """Return the key of a base's stream, and its path at the base version."""
        source = self._cache.stream_key(self._connection, tenant, base[0])
        assert source and base[1] <= self._version(source), "a base names a stream that exists"
        spans = chain.resolve_path(source, base[1], functools.partial(reads.read_bases, self._connection))
        assert chain.last_version(spans) == base[1], "a base names a version that existed"
        return source, spans

    def _stretch(self, key: int) -> tuple[int, tuple[Span, ...]]:
        """Return the newest stretch of a stream, and the spans before it."""
        found = self._cache.stretches.get(key)
        if found is None:
            *spans, last = reads.read_path(self._connection, key, None)
            found = self._cache.stretches[key] = (last.stretch, tuple(spans))
        return found

    def _version(self, key: int) -> int:
        if key in self._links:
            return self._cache.versions[key]
        return read_integer(self._connection, self._sql["stream_version"], (key,))

    def _write(self, tenant: int, write: port.StreamWrite, key: int, head: LogHead) -> LogHead:
        base = tenant << TENANT_SHIFT
        begin = base | (head.position + 1)
        if not key:
            key = begin
            self._connection.execute(
                self._sql["add_stream"], (key, tenant, write.stream, row_checksum(key, tenant, write.stream))
            )
            self._cache.stretches[key] = (key, ())
        if write.base is not None:
            source, spans = self._resolve_base(tenant, write.base)
            row = (begin, key, chain.previous_version(write) + 1, source, write.base[1])
            self._connection.execute(self._sql["add_base"], (*row, row_checksum(*row)))
            self._cache.stretches[key] = (begin, spans)
        position, version, link = head.position, chain.previous_version(write), head.link
        for event in write.events:
            position, version, payload = position + 1, version + 1, event.payload
            header = chain.encode_header(event, chain.EventAddress(position, key & NUMBER_MASK, version))
            salt = self._random(chain.SALT_BYTES)
            digest = chain.event_digest(salt, header, payload)
            link = chain.next_link(link, digest, header)
            self._events.append((base | position, key, version, header, payload, salt, digest, link))
            if event.blobs:
                self._add_blobs(tenant, base | position, event.blobs)
        if write.claims:
            stretch = self._stretch(key)[0]
            for claim, index in write.claims:
                self._claims.append((stretch, claim, chain.previous_version(write) + index + 1))
        self._links[key] = link
        self._cache.versions[key] = version
        return LogHead(position, link)

    def _add_blobs(self, tenant: int, event: int, contents: tuple[bytes, ...]) -> None:
        for hash_, content in {chain.blob_hash(content): content for content in contents}.items():
            self._blobs.append((tenant, hash_, content))
            self._uses.append((event, hash_))

    def _write_drops_snapshots_key(self, tenant: int, append: port.Append, begin: int, end: int) -> None:
        execute, sql = self._connection.execute, self._sql
        for place in append.drops:
            self.drop_projection(tenant, *place)
        for snap in append.snapshots:
            key = self._cache.stream_key(self._connection, tenant, snap.stream)
            check = row_checksum(key, snap.version, snap.fold, snap.state, self._link(key, snap.version))
            execute(sql["put_snapshot"], (key, snap.version, snap.fold, snap.state, check))
        if append.key is not None:
            row = (tenant, append.key.key, append.key.command_hash, begin, end, append.time_us)
            execute(sql["add_key"], (*row, row_checksum(*row)))

    def drop_projection(self, tenant: int, kind: str, id_: str) -> None:
        place = (tenant, kind, id_)
        self._change_terms(place, ())
        self._connection.execute(self._sql["drop_projection"], place)
        self._cache.shapes.pop(place, None)
        self._touched_projections.pop(place, None)

    def _link(self, key: int, version: int) -> bytes:
        if key in self._links and self._cache.versions.get(key) == version:
            return self._links[key]
        row = first_row(self._connection, self._sql["link_of"], (key, version))
        assert row is not None and isinstance(row[0], bytes), "a snapshot is of what was written"
        return row[0]

    def write_derived(self, tenant: int, key: int, derived: port.DerivedState) -> int:
        """Write the derived rows of a whole stream that has none; return the number of its claims."""
        claims = chain.claims_by_stretch(key, reads.read_bases(self._connection, key), derived.claims)
        self._claims += claims
        for projection in derived.projections:
            self._put_projection(tenant, projection)
        for hash_, version in derived.blobs:
            event = read_integer(self._connection, self._sql["event_key"], (key, version))
            self._uses.append((event, hash_))
        self.flush()
        return len(claims)

    def _put_projection(self, tenant: int, p: port.Projection) -> None:
        # A row with an unchanged shape is updated without touching an index.
        place, moment = (tenant, p.kind, p.id), p.time_us >> TIME_BUCKET_BITS
        terms = msgspec.json.encode(p.terms).decode() if p.terms else "[]"
        row = (*place, p.owner, p.status, moment, p.time_us, p.lookup, terms, p.document)
        check = row_checksum(*row)
        shape = (p.owner, p.status, moment, p.lookup, terms)
        before = self._cache.shapes.get(place)
        if before == shape:
            self._touched_projections[place] = (p.time_us, p.document, check, *place, *shape)
            return
        self._touched_projections.pop(place, None)
        self._cache.shapes[place] = shape
        if before is None:
            added = self._connection.execute(self._sql["add_projection"], (*row, check))
            if added.connection.changes():
                self._add_terms(place, dict.fromkeys(p.terms))
                return
        elif before[-1] == terms:
            # This updates no row if the cached terms are stale.
            again = (*row[3:-2], p.document, check, *place, terms)
            if self._connection.execute(self._sql["reshape"], again).connection.changes():
                return
        self._change_terms(place, p.terms)
        self._connection.execute(self._sql["put_projection"], (*row, check))

    def _change_terms(self, place: tuple[int, str, str], terms: tuple[str, ...]) -> None:
        tenant, kind, id_ = place
        row = first_row(self._connection, self._sql["projection"], place)
        before = set(decode_projection(row).terms) if row else set[str]()
        for term in before - set(terms):
            self._connection.execute(self._sql["drop_term"], (tenant, kind, term, id_))
        self._add_terms(place, set(terms) - before)

    def _add_terms(self, place: tuple[int, str, str], terms: Iterable[str]) -> None:
        tenant, kind, id_ = place
        for term in terms:
            self._connection.execute(self._sql["add_term"], (tenant, kind, term, id_))


def rename_stream(connection: apsw.Connection, key: int, tenant: int, name: str) -> None:
    connection.execute(database.statements()["rename_stream"], (name, row_checksum(key, tenant, name), key))


_hash_list_decoder = msgspec.json.Decoder(list[str])


def copy_page(connection: apsw.Connection, base: int, after: int, limit: int) -> list[RawEvent]:
    """Return a tenant's events after a position, as stored. `base` is the tenant's part of every key."""
    found = connection.execute(database.statements()["copy"], (base | after, base | NUMBER_MASK, limit))
    return [_raw_event(row) for row in found]


def _raw_event(row: tuple[apsw.SQLiteValue, ...]) -> RawEvent:
    event, stream = decode_event_row(row[:8]), row[1]
    name, named, tenant = row[8:11]
    if not isinstance(name, str) or named != row_checksum(stream, tenant, name):
        raise chain.damaged_event_error(event.address, "the name of its stream is not what was written")
    chain.decode_event(event, name)
    raw = RawEvent(
        stream=name, position=event.address.position, number=event.address.stream,
        version=event.address.version, header=event.header, payload=event.payload, salt=event.salt,
        digest=event.digest, link=event.link, base=_raw_base(event.address, row[11:17]),
        blobs=tuple(map(bytes.fromhex, _hash_list_decoder.decode(str(row[22])))),
        erased=_raw_erasure(event.address, row[17:22]),
    )  # fmt: skip
    if (raw.payload is None) != (raw.erased is not None):
        raise chain.unexplained_erasure_error(event.address)
    return raw


def _raw_base(place: chain.EventAddress, row: tuple[apsw.SQLiteValue, ...]) -> tuple[int, int] | None:
    match row:
        case (None, *_):
            return None
        case (check, *_, int(source), int(version)) if check == row_checksum(*row[1:]):
            return source & NUMBER_MASK, version
        case _:
            raise chain.damaged_event_error(place, "its base is not what was written")


def _raw_erasure(place: chain.EventAddress, row: tuple[apsw.SQLiteValue, ...]) -> tuple[int, int, bytes | None] | None:
    match row:
        case (None, *_):
            return None
        case (check, int(), int(notice), int(cause), None | bytes() as payload) if check == row_checksum(*row[1:]):
            return notice & NUMBER_MASK, cause & NUMBER_MASK, payload
        case _:
            raise chain.damaged_event_error(place, "the record of its erasure is not what was written")


def copy_keys(connection: apsw.Connection, tenant: int, after: str, limit: int) -> list[RawKey]:
    """Return a tenant's idempotency keys after a key, by their text."""
    found = connection.execute(database.statements()["copy_keys"], (tenant, after, limit))
    return [_raw_key(tenant, row) for row in found]


def _raw_key(tenant: int, row: tuple[apsw.SQLiteValue, ...]) -> RawKey:
    match row:
        case (str(key), bytes(hash_), int(begin), int(end), int(time_us), bytes(check)) if check == row_checksum(
            tenant, *row[:-1]
        ):
            return RawKey(key, hash_, begin, end, time_us)
        case _:
            raise errors.Corrupt("a stored idempotency key is not what was written.")


class SQLiteCopyTarget:
    """The log of a tenant into which a page is copied: what `store_copy.plan_page` compares with."""

    def __init__(self, connection: apsw.Connection, tenant: str) -> None:
        self._connection = connection
        self._sql = database.statements()
        self._name = tenant
        # A separate cache, because names change during the copy.
        self._cache = SQLiteCache()
        self.tenant = self._cache.tenant_number(connection, tenant)

    @property
    def _key_base(self) -> int:
        return self.tenant << TENANT_SHIFT

    def head(self) -> tuple[int, bytes]:
        found = read_head(self._connection, self.tenant)
        return found.position, found.link

    def stream_name_and_version(self, number_: int) -> tuple[str, int] | None:
        key = self._key_base | number_
        name = first_row(self._connection, self._sql["stream_name"], (key,))
        version = read_integer(self._connection, self._sql["stream_version"], (key,))
        return (str(name[0]), version) if name else None

    def stream_number(self, name: str) -> int:
        found = read_integer(self._connection, self._sql["stream_key"], (self.tenant, name))
        return found & NUMBER_MASK

    def link_at(self, position: int) -> bytes:
        row = first_row(self._connection, self._sql["link_at"], (self._key_base | position,))
        return row[0] if row and isinstance(row[0], bytes) else b""

    def missing_blobs(self, hashes: Collection[bytes]) -> Collection[bytes]:
        wanted = msgspec.json.encode([hash_.hex() for hash_ in hashes]).decode()
        found = self._connection.execute(self._sql["known_blobs"], (self.tenant, wanted))
        return set(hashes) - {bytes.fromhex(str(hash_)) for (hash_,) in found}

    def find_raw_key(self, key: str) -> RawKey | None:
        row = first_row(self._connection, self._sql["whole_key"], (self.tenant, key))
        return _raw_key(self.tenant, row) if row else None

    def write_page(self, plan: store_copy.CopyPlan) -> None:
        """Write what a plan adds, renames and erases."""
        if not self.tenant:
            self.tenant = self._cache.add_tenant(self._connection, self._name)
        for number_, name in plan.renamed_streams.items():
            rename_stream(self._connection, self._key_base | number_, self.tenant, name)
        many, sql, tenant = self._connection.executemany, self._sql, self.tenant
        named = [(self._key_base | at, tenant, name) for at, name in plan.new_streams.items()]
        many(sql["add_stream"], [(*row, row_checksum(*row)) for row in named])
        many(sql["add_blob"], [(tenant, hash_, content) for hash_, content in plan.blobs.items()])
        for raw in plan.new_events:
            self._add_event(raw)
        if plan.newly_erased:
            self._erase_events(plan.newly_erased)
        rows = [(tenant, k.key, k.command_hash, k.first, k.last, k.time_us) for k in plan.new_keys]
        many(sql["add_key"], [(*row, row_checksum(*row)) for row in rows])
        self._connection.execute(sql["count_rebuild"])

    def _add_event(self, raw: RawEvent) -> None:
        run, sql, base = self._connection.execute, self._sql, self._key_base
        event, stream = base | raw.position, base | raw.number
        row = (event, stream, raw.version, raw.header, raw.payload, raw.salt, raw.digest, raw.link)
        run(sql["add_event"], row)
        if raw.base is not None:
            made = (event, stream, raw.version, base | raw.base[0], raw.base[1])
            run(sql["add_base"], (*made, row_checksum(*made)))
        self._put_uses_and_erased(raw)

    def _put_uses_and_erased(self, raw: RawEvent) -> None:
        run, sql, event = self._connection.execute, self._sql, self._key_base | raw.position
        for hash_ in raw.blobs:
            run(sql["add_blob_use"], (event, hash_))
        if raw.erased is not None:
            notice, cause, payload = raw.erased
            # 0 means for every tenant that the whole stream was erased.
            row = (event, self._key_base | notice, self._key_base | cause if cause else 0, payload)
            run(sql["put_erased"], (*row, row_checksum(*row)))

    def _erase_events(self, again: list[RawEvent]) -> None:
        run, sql = self._connection.execute, self._sql
        hashes: set[str] = set()
        for raw in again:
            event = self._key_base | raw.position
            hashes.update(str(hash_) for (hash_,) in run(sql["hashes_of_event"], (event,)))
            run(sql["drop_uses_of_event"], (event,))
            run(sql["blank_event"], (event,))
            self._put_uses_and_erased(raw)
        run(sql["drop_keys"], (self.tenant,))
        run(sql["drop_blobs"], (self.tenant, msgspec.json.encode(sorted(hashes)).decode()))
        run(sql["put_pending"], (b"",))
