"""Erasure of events inside an open transaction, and the list of erased events beside the store.

Payloads are removed, notices appended, derived rows derived again. Nothing here commits. The
list names events by tenant, stream, position and part of their link, so that a restored backup
can be erased again. It holds no caller's text.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import apsw
import msgspec

from limpet import errors, limits
from limpet.stores import chain, port
from limpet.stores.erasure import (
    Erasure,
    ErasureCounts,
    RedactedPayload,
    StreamErasure,
    derived_row_ids,
    erased_stream_name,
    erasure_proof,
    is_notice,
    make_notice,
)
from limpet.stores.sqlite import database, log_writes, reads
from limpet.stores.sqlite.reads import (
    NUMBER_MASK,
    TENANT_SHIFT,
    SQLiteCache,
    decode_event_row,
    decode_head,
    number_in_tenant,
    read_integer,
    row_checksum,
)
from limpet.stores.sqlite.shared_file.anchor import LogHead
from limpet.stores.sqlite.shared_file.store_files import StoreFiles, open_regular_file, read_regular_file


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
        self._events = self._claims = self._rows = 0
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
        shares = self._erasure.streams
        keys = [self._key(share) for share in shares]
        for share, key in zip(shares, keys, strict=True):
            self._forget_derived(share, key)
        writes = [
            self._erase_stream(share, key, self._next + at)
            for at, (share, key) in enumerate(zip(shares, keys, strict=True))
        ]
        appended = self._batch.append(
            port.Append(
                tenant=self._erasure.tenant, writes=tuple(writes), drops=tuple(self._drops),
                time_us=self._erasure.time_us,
            )
        )  # fmt: skip
        assert isinstance(appended, port.Appended), "`find_stale` has compared versions under the write lock"
        for share, key in zip(shares, keys, strict=True):
            if not share.whole:
                self._derive_again(share, key)
        return self._finish(), self._batch.heads

    @functools.cached_property
    def _next(self) -> int:
        row = self._connection.execute(self._sql["head"], (self._base, self._base | NUMBER_MASK)).fetchone()
        return decode_head(row).position + 1

    def _forget_derived(self, share: StreamErasure, key: int) -> None:
        """Drop all that is derived from a stream. Its rows are found by deriving them once more."""
        rows, _ = derived_row_ids(share, lambda: derive_stream(self._connection, key, share.stream, self._derive))
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
            check = row_checksum(key, self._tenant, name)
            self._connection.execute(self._sql["rename_stream"], (name, check, key))
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

    def _derive_again(self, share: StreamErasure, key: int) -> None:
        derived = derive_stream(self._connection, key, share.stream, self._derive)
        self._batch.write_derived(self._tenant, key, derived)

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
    """Drop claims, uses of blobs and the snapshot of a stream; return the number of claims."""
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


ERASED_LIST_MAGIC: Final = b"LPERASE1"
LINK_PREFIX_BYTES: Final = 12
"""How much of an event's link identifies it in the list."""

_LIST_CHECKSUM_BYTES = 32

ErasureGroup = tuple[bytes, int, int, int]
"""Store, tenant and stream, and the event that required the erasure (0: the whole stream was erased)."""


class ErasedListEntry(msgspec.Struct, frozen=True, array_like=True):
    """Events of one stream that were erased for one reason, each by its position and the beginning of its link."""

    store: bytes
    tenant: int
    stream: int
    cause: int
    events: tuple[tuple[int, bytes], ...]

    @property
    def group(self) -> ErasureGroup:
        """The key by which entries are merged."""
        return self.store, self.tenant, self.stream, self.cause


def erased_list_path(store: Path) -> Path:
    """Return the path of a store's list."""
    return Path(f"{store}-erased")


def read_erased_list(path: Path) -> list[ErasedListEntry]:
    """Return the entries of a list, none if the file is missing; raise Corrupt if it is damaged."""
    if not path.exists():
        return []
    data = read_regular_file(path)
    body, check = data[:-_LIST_CHECKSUM_BYTES], data[-_LIST_CHECKSUM_BYTES:]
    if data.startswith(ERASED_LIST_MAGIC) and hashlib.sha256(body).digest() == check:
        try:
            return msgspec.msgpack.decode(body[len(ERASED_LIST_MAGIC) :], type=list[ErasedListEntry])
        except msgspec.MsgspecError:
            pass
    raise errors.Corrupt(
        f"{path}, the list of what was erased, is damaged.",
        hint="Put a copy of it back. Remove it only if no backup from before an erasure will ever be put here.",
        facts={"path": str(path)},
    )


def erased_list_checksum(path: Path) -> bytes:
    """Return the checksum at the end of a list; empty if the file is missing."""
    if not path.exists():
        return b""
    with open_regular_file(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LIST_CHECKSUM_BYTES))
        return file.read()


def update_erased_list(files: StoreFiles, path: Path, connection: apsw.Connection, store_id: bytes) -> None:
    """Add all events that the store has erased to the list; durable on return."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.new"):
        files.remove(leftover)
    before = read_erased_list(path)
    known: dict[ErasureGroup, dict[tuple[int, bytes], None]] = {}
    for entry in before:
        known.setdefault(entry.group, {}).update(dict.fromkeys(entry.events))
    count = sum(map(len, known.values()))
    for event, cause, stream, link in connection.execute(database.statements()["gone_events"]):
        assert isinstance(event, int) and isinstance(cause, int)
        assert isinstance(stream, int) and isinstance(link, bytes)
        place = (store_id, event >> TENANT_SHIFT, stream & NUMBER_MASK, cause & NUMBER_MASK)
        known.setdefault(place, {})[event & NUMBER_MASK, link[:LINK_PREFIX_BYTES]] = None
    if sum(map(len, known.values())) > count:
        entries = [ErasedListEntry(*place, tuple(events)) for place, events in known.items()]
        body = ERASED_LIST_MAGIC + msgspec.msgpack.encode(entries)
        files.replace_content(path, body + hashlib.sha256(body).digest())
