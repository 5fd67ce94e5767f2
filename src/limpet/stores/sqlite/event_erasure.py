"""Erasure of events inside an open transaction, and the list of erased events beside the store.

Payloads are removed, notices appended, derived rows derived again. Nothing here commits. The
list names events by tenant, stream, position and part of their link, so that a restored backup
can be erased again. It holds no caller's text.
"""

from __future__ import annotations

import functools
import glob
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import msgspec

from limpet import errors, limits
from limpet.stores import chain, port
from limpet.stores.chain import erased_stream_name, erasure_proof, is_notice, make_notice, row_checksum
from limpet.stores.port import Erasure, ErasureCounts, ErasureReplay, RedactedPayload, StreamErasure
from limpet.stores.sqlite import database, log_writes, reads
from limpet.stores.sqlite.database import NUMBER_MASK, TENANT_SHIFT, SQLiteCache, first_row, read_head, read_integer
from limpet.stores.sqlite.reads import decode_event_row, number_in_tenant
from limpet.stores.sqlite.shared_file import store_files
from limpet.stores.sqlite.shared_file.store_files import ErasedListEntry, LogHead, StoreFiles


class SQLiteErasure:
    """One erasure in the open transaction. The caller holds the write lock."""

    def __init__(
        self, connection: apsw.Connection, erasure: Erasure, derive: port.StreamDeriver, random: Callable[[int], bytes]
    ) -> None:
        self._connection = connection
        self._erasure = erasure
        self._derive = derive
        self._sql = database.statements()
        # A separate cache, because names change during the erasure.
        self._cache = SQLiteCache()
        self._tenant = self._cache.tenant_number(connection, erasure.tenant)
        self._base = self._tenant << TENANT_SHIFT
        self._batch = log_writes.AppendBatch(connection.cursor(), self._cache, random, careful=True)
        self._events = self._claims = 0
        self._hashes: set[str] = set()
        self._drops: dict[tuple[str, str], None] = {}

    def find_stale(self) -> port.Stale | None:
        """Return the first difference from the erasure's expectations: the feed's head or a stream's version."""
        if self._erasure.head not in (None, self._next - 1):
            return port.Stale("", self._next - 1)
        for share in self._erasure.streams:
            actual = read_integer(self._connection, self._sql["stream_version"], (self._key(share),))
            if actual != share.expected or not actual:
                return port.Stale(share.stream, actual)
        return None

    def _key(self, share: StreamErasure) -> int:
        return read_integer(self._connection, self._sql["stream_key"], (self._tenant, share.stream))

    def run(self) -> tuple[ErasureCounts, dict[int, LogHead]]:
        """Erase; return the counts, and the new heads by tenant."""
        shares = [(share, self._key(share)) for share in self._erasure.streams]
        for share, key in shares:
            self._forget_derived(share, key)
        writes = [self._erase_stream(share, key, self._next + at) for at, (share, key) in enumerate(shares)]
        appended = self._batch.append(
            port.Append(
                tenant=self._erasure.tenant, writes=tuple(writes), drops=tuple(self._drops),
                time_us=self._erasure.time_us,
            )
        )  # fmt: skip
        assert isinstance(appended, port.Appended), "`find_stale` has compared versions under the write lock"
        for share, key in shares:
            if not share.whole:
                derived = derive_stream(self._connection, key, share.stream, self._derive)
                self._batch.write_derived(self._tenant, key, derived)
        return self._finish(), self._batch.heads

    @functools.cached_property
    def _next(self) -> int:
        return read_head(self._connection, self._tenant).position + 1

    def _forget_derived(self, share: StreamErasure, key: int) -> None:
        """Drop all that is derived from a stream. Rows that the caller has not named are found by deriving them again."""
        rows = share.derived_rows
        if rows is None:
            derived = derive_stream(self._connection, key, share.stream, self._derive)
            rows = tuple((row.kind, row.id) for row in derived.projections)
        self._drops |= dict.fromkeys(rows)
        run, sql = self._connection.execute, self._sql
        self._hashes.update(str(found) for (found,) in run(sql["hashes_of"], (key,)))
        self._claims += drop_derived(self._connection, key)

    def _erase_stream(self, share: StreamErasure, key: int, position: int) -> port.StreamWrite:
        """Remove payloads from one stream; return the write of its notice, which gets that position."""
        redactions = {each.position: each for each in share.redactions}
        gone: list[tuple[int, bytes]] = []
        ordinal = 0
        for event, header, digest, blank in self._connection.execute(self._sql["own_events"], (key,)).fetchall():
            assert isinstance(event, int) and isinstance(header, bytes) and isinstance(digest, bytes)
            at, kind, ordinal = event & NUMBER_MASK, *chain.kind_and_ordinal(header)
            redaction = redactions.pop(at, None)
            if is_notice(kind) or not (share.whole or redaction):
                continue
            self._erase_event(event, self._base | position, redaction)
            if not blank:
                gone.append((at, digest))
        assert not redactions, "a redaction is for an event of its stream"
        self._events += len(gone)
        name = share.stream
        if share.whole:
            name = erased_stream_name(key & NUMBER_MASK)
            log_writes.rename_stream(self._connection, key, self._tenant, name)
        notice = make_notice(share.kind, self._erasure.time_us, ordinal, erasure_proof(gone))
        return port.StreamWrite(name, share.expected, (notice,))

    def _erase_event(self, event: int, notice: int, redaction: RedactedPayload | None) -> None:
        run, sql = self._connection.execute, self._sql
        # An event that was erased before keeps the notice that proves it.
        notice = read_integer(self._connection, sql["erased_row"], (event,)) or notice
        cause = self._base | redaction.cause if redaction else 0
        payload = redaction.payload if redaction else None
        run(sql["blank_event"], (event,))
        row = (event, notice, cause, payload)
        run(sql["put_erased"], (*row, row_checksum(*row)))
        for content in redaction.blobs if redaction else ():
            run(sql["add_blob"], (self._tenant, chain.blob_hash(content), content))

    def _finish(self) -> ErasureCounts:
        run, sql, changes = self._connection.execute, self._sql, self._connection.changes
        run(sql["drop_keys"], (self._tenant,))
        keys = changes()
        run(sql["drop_blobs"], (self._tenant, msgspec.json.encode(sorted(self._hashes)).decode()))
        blobs = changes()
        run(sql["count_rebuild"])
        run(sql["put_pending"], (self._erasure.pending_work,))
        return ErasureCounts(
            events=self._events, blobs=blobs, keys=keys, claims=self._claims, rows=len(self._drops),
            link=self._batch.heads[self._tenant].link,
        )  # fmt: skip


def read_own_events(connection: apsw.Connection, key: int, name: str) -> Iterator[port.StoredEvent]:
    """Yield a stream's own events, including those that a rewind left out."""
    after, query = 0, database.statements()["read_stream"]
    while found := connection.execute(query, (key, after, 1 << 60, limits.READ_CHUNK)).fetchall():
        for event in reads.decode_events(connection, found, name):
            after = event.version
            yield event


def derive_stream(connection: apsw.Connection, key: int, name: str, derive: port.StreamDeriver) -> port.DerivedState:
    """Return what is derived from a stream's own events."""
    blobs = functools.partial(reads.read_blobs, connection, key >> TENANT_SHIFT)
    return derive(name, read_own_events(connection, key, name), blobs)


def drop_derived(connection: apsw.Connection, key: int) -> int:
    """Delete a stream's claims (the unique ids it holds), uses of blobs and snapshot; return the number of claims."""
    run, sql = connection.execute, database.statements()
    stretches = [key, *(stretch for (stretch,) in run(sql["stretches_of"], (key,)))]
    run(sql["drop_claims"], (msgspec.json.encode(stretches).decode(),))
    claims = connection.changes()
    run(sql["drop_uses"], (key,))
    run(sql["drop_snapshot"], (key,))
    return claims


def erasure_faults(connection: apsw.Connection) -> Iterator[str]:
    """Yield faults of erased events: damaged records, missing notices, wrong proofs, unexplained empty payloads."""
    sql = database.statements()
    groups: dict[int, list[tuple[int, int, bytes]]] = {}
    for row in connection.execute(sql["every_erased"]):
        match row:
            case (int(event), int(by), int(), _, bytes(check), int(stream), bytes(digest), 1) if check == row_checksum(
                *row[:4]
            ):
                groups.setdefault(by, []).append((event, stream, digest))
            case _:
                yield "a row of erased is damaged."
    for by, gone in groups.items():
        yield from _notice_faults(connection, by, gone)
    for key, version in connection.execute(sql["unexplained"]):
        # In a damaged file either may be anything.
        place = chain.EventAddress(number_in_tenant(key), 0, version if isinstance(version, int) else 0)
        yield chain.unexplained_erasure_error(place).message


def _notice_faults(connection: apsw.Connection, by: int, gone: list[tuple[int, int, bytes]]) -> Iterator[str]:
    first = gone[0][0] & NUMBER_MASK
    raw = connection.execute(database.statements()["event_at"], (by,)).fetchone()
    if raw is not None:
        row, streams = decode_event_row(raw), {stream for _, stream, _ in gone}
        kind, _ = chain.kind_and_ordinal(row.header)
        said = erasure_proof((event & NUMBER_MASK, digest) for event, _, digest in gone)
        later = all(event < by for event, _, _ in gone)
        if is_notice(kind) and later and streams == {raw[1]} and row.payload == msgspec.json.encode(said):
            return
    yield f"{len(gone):,} event(s), from position {first:,} on, are erased, but no notice in the log says so."


def update_erased_list(files: StoreFiles, path: Path, connection: apsw.Connection, store_id: bytes) -> None:
    """Add all events that the store has erased to the list; durable on return."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.new"):
        files.remove(leftover)
    before = store_files.read_erased_list(path)
    known: dict[store_files.ErasureGroup, dict[tuple[int, bytes], None]] = {}
    for entry in before:
        known.setdefault(entry.group, {}).update(dict.fromkeys(entry.events))
    count = sum(map(len, known.values()))
    for event, cause, stream, link in connection.execute(database.statements()["gone_events"]):
        assert isinstance(event, int) and isinstance(cause, int)
        assert isinstance(stream, int) and isinstance(link, bytes)
        place = (store_id, event >> TENANT_SHIFT, stream & NUMBER_MASK, cause & NUMBER_MASK)
        known.setdefault(place, {})[event & NUMBER_MASK, link[: store_files.LINK_PREFIX_BYTES]] = None
    if sum(map(len, known.values())) > count:
        entries = [ErasedListEntry(*place, tuple(events)) for place, events in known.items()]
        body = store_files.ERASED_LIST_MAGIC + msgspec.msgpack.encode(entries)
        files.replace_content(path, body + hashlib.sha256(body).digest())


def rewrite_file(connection: apsw.Connection, path: Path) -> None:
    """Rewrite the database and empty its log; raise StoreBusy if a reader holds on for too long."""
    connection.execute("VACUUM")
    connection.set_busy_timeout(int(limits.SCRUB_WAIT_S * 1000))
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError as error:
        raise errors.StoreBusy(
            f"what was erased can't be read any more, but parts of it may still be in {path}-wal: a program"
            f" has been reading it for more than {limits.SCRUB_WAIT_S:g} s.",
            hint="Let a long read (a backup, a verify, a SQLite shell) end, then erase() once more; the next opening does it too.",
            facts={"path": str(path), "pending": True},
        ) from error
    finally:
        connection.set_busy_timeout(int(limits.WRITE_LOCK_WAIT_S * 1000))


class ErasuresToRepeat:
    """Events of this log that the erased list names and that still have their payload, as in a restored backup."""

    def __init__(self, connection: apsw.Connection, entries: list[ErasedListEntry], store_id: bytes) -> None:
        self._connection = connection
        self._sql = database.statements()
        self._causes: dict[int, int] = {}
        for entry in entries:
            base = entry.tenant << TENANT_SHIFT
            for position, link in entry.events if entry.store == store_id else ():
                if self._is_here(base | position, link):
                    self._causes[base | position] = base | entry.cause if entry.cause else 0

    def _is_here(self, key: int, link: bytes) -> bool:
        row = first_row(self._connection, self._sql["event_at"], (key,))
        return row is not None and isinstance(row[7], bytes) and row[7].startswith(link) and row[4] is not None

    def __bool__(self) -> bool:
        return bool(self._causes)

    def erasures(self, again: ErasureReplay, time_us: int) -> Iterator[Erasure]:
        """Yield the erasures to repeat, one for each tenant."""
        for tenant, name in database.read_tenants(self._connection).items():
            mine = {k: cause for k, cause in self._causes.items() if k >> TENANT_SHIFT == tenant}
            if mine:
                shares = tuple(self._stream_erasures(tenant, mine, again))
                todo = again.pending_work(name)
                yield Erasure(tenant=name, streams=shares, time_us=time_us, pending_work=todo)

    def _stream_erasures(self, tenant: int, gone: dict[int, int], again: ErasureReplay) -> Iterator[StreamErasure]:
        streams: dict[int, list[int]] = {}
        for key in sorted(gone):
            row = first_row(self._connection, self._sql["event_at"], (key,))
            assert row is not None and isinstance(row[1], int), "the constructor found it"
            streams.setdefault(row[1], []).append(key)
        whole = self._wholly_erased(streams, gone)
        for stream, keys in streams.items():
            row = first_row(self._connection, self._sql["stream_name"], (stream,))
            name = str(row[0]) if row else ""
            pairs = [] if stream in whole else [self._event_and_cause(key, gone[key], name) for key in keys]
            yield StreamErasure(
                stream=name,
                expected=read_integer(self._connection, self._sql["stream_version"], (stream,)),
                kind=again.notice_kind(name),
                whole=stream in whole,
                redactions=tuple(
                    again.redactions(pairs, lambda hashes: reads.read_blobs(self._connection, tenant, hashes))
                ),
            )

    def _wholly_erased(self, streams: dict[int, list[int]], gone: dict[int, int]) -> set[int]:
        """Return the streams to erase completely: no event of them stays, and no stream that stays has them as its base."""
        whole = {stream for stream, keys in streams.items() if self._all_events_erased(stream, keys, gone)}
        while True:
            kept = {s for s in whole if not self._is_base_of_kept(s, whole)}
            if kept == whole:
                return whole
            whole = kept

    def _all_events_erased(self, stream: int, keys: list[int], gone: dict[int, int]) -> bool:
        if any(gone[key] for key in keys):
            return False
        there = self._connection.execute(self._sql["own_events"], (stream,)).fetchall()
        rest = (header for key, header, _, blank in there if key not in gone and not blank)
        return all(isinstance(header, bytes) and is_notice(chain.kind_and_ordinal(header)[0]) for header in rest)

    def _is_base_of_kept(self, stream: int, whole: set[int]) -> bool:
        forks = reads.read_forks(self._connection, stream)
        tenant = stream >> TENANT_SHIFT
        keys = (read_integer(self._connection, self._sql["stream_key"], (tenant, n)) for n, _ in forks)
        return any(key not in whole for key in keys)

    def _event_and_cause(self, key: int, cause: int, name: str) -> tuple[port.StoredEvent, port.StoredEvent]:
        event = self._event(key, name)
        return event, self._event(cause, "") if cause and cause != key else event

    def _event(self, key: int, name: str) -> port.StoredEvent:
        found = self._connection.execute(self._sql["event_at"], (key,)).fetchall()
        return reads.decode_events(self._connection, found, name)[0]
