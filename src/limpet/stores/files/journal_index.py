"""The journal and its index: recording, applying, verifying and rewriting commits.

A hook of SQLite records every row that a transaction changes, so no change can be missed. After an erasure every line
is written again without the erased content. A plan file makes the replacement of segments atomic: it exists from the
decision until the index has the new end of the journal.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import apsw
import msgspec
from msgspec import Raw

from limpet import errors, limits
from limpet.stores import chain, port, split_statements
from limpet.stores.chain import is_erased_stream, row_checksum
from limpet.stores.files.folder import StoreFolder
from limpet.stores.files.journal import (
    JOURNAL_FORMAT,
    PADDING,
    START,
    BaseEntry,
    BlobEntry,
    CommitJournal,
    CommitLine,
    ErasedEntry,
    EventEntry,
    JournalPoint,
    KeyEntry,
    NoteEntry,
    SegmentHead,
    StreamEntry,
    TenantEntry,
    decode_content,
    encode_content,
    encode_line,
    event_address,
)
from limpet.stores.sqlite import database, event_erasure, log_writes
from limpet.stores.sqlite.database import NUMBER_MASK, TENANT_SHIFT, SQLiteCache, first_row
from limpet.stores.sqlite.shared_file.store_files import StoreFiles, read_regular_file

SQLiteRow = tuple[Any, ...]

PRIMARY_KEY_WIDTHS: Final[dict[str, int]] = {
    "tenants": 1, "streams": 1, "events": 1, "bases": 1, "erased": 1, "keys": 2, "blobs": 2,
    "notes": 2, "store": 1,
}  # fmt: skip
"""The tables that the journal has, and how many of their first columns form the key."""

PENDING_KEY: Final = ("pending",)
"""The key of the only row of `store` that the journal has."""


class RowChangeRecorder:
    """The rows that the open transaction of one connection has changed."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[SQLiteRow, SQLiteRow | None]] = {}
        self._paused = False

    def attach(self, connection: apsw.Connection) -> None:
        connection.preupdate_hook(self._record)

    def _record(self, update: apsw.PreUpdate) -> None:
        table = update.table_name
        width = PRIMARY_KEY_WIDTHS.get(table)
        if self._paused or width is None or update.database_name != "main":
            return
        new = update.new
        known = new or update.old or ()
        self._rows.setdefault(table, {})[known[:width]] = new

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing in the body. Rows from the journal need not be written to it, and may exceed the memory."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def clear(self) -> None:
        self._rows = {}

    def take_commit(
        self, connection: apsw.Connection, n: int, keep: Callable[[bytes, bytes], None]
    ) -> CommitLine | None:
        """Return the recorded changes as commit n, and drop them; None if there are none.

        `keep` gets the hash and content of large blobs.
        """
        rows, self._rows = self._rows, {}
        if rows.keys() == {"events"}:
            # Most commits only add messages, and skip the work for the other tables.
            return CommitLine(n=n, events=_event_entries(connection, filter(None, rows["events"].values())))
        put = {table: [row for row in found.values() if row] for table, found in rows.items()}
        gone = {table: [key for key, row in found.items() if not row] for table, found in rows.items()}
        pending = [row for row in put.get("store", ()) if row[:1] == PENDING_KEY]
        cleared = PENDING_KEY in gone.get("store", ())
        if not (pending or cleared or any(rows.keys() - {"store"})):
            return None
        return CommitLine(
            n=n,
            tenants=tuple(TenantEntry(number=number, name=name) for number, name, _ in put.get("tenants", ())),
            streams=tuple(
                StreamEntry(tenant=tenant, number=key & NUMBER_MASK, name=name)
                for key, tenant, name, _ in put.get("streams", ())
            ),
            events=_event_entries(connection, put.get("events", ())),
            bases=tuple(_base_entry(*row) for row in put.get("bases", ())),
            keys=tuple(
                KeyEntry(tenant=tenant, key=key, command=command.hex(), first=first, last=last, time_us=time_us)
                for tenant, key, command, first, last, time_us, _ in put.get("keys", ())
            ),
            blobs=tuple(_blob_entry(*row, keep=keep) for row in put.get("blobs", ())),
            notes=tuple(
                NoteEntry(tenant=tenant, name=name, version=version, value=encode_content(value))
                for tenant, name, version, value, _ in put.get("notes", ())
            ),
            erased=tuple(_erased_entry(*row) for row in put.get("erased", ())),
            pending=encode_content(pending[0][1]) if pending else None,
            dropped_keys=tuple(cast("list[tuple[int, str]]", gone.get("keys", ()))),
            dropped_blobs=tuple((tenant, hash_.hex()) for tenant, hash_ in gone.get("blobs", ())),
            dropped_notes=tuple(cast("list[tuple[str, str]]", gone.get("notes", ()))),
            dropped_pending=cleared,
        )


def _event_entries(connection: apsw.Connection, rows: Iterable[SQLiteRow]) -> tuple[EventEntry, ...]:
    query, names = database.statements()["stream_name"], dict[int, str]()
    made: list[EventEntry] = []
    for key, stream, _, header, payload, salt, digest, link in rows:
        if stream not in names:
            found = first_row(connection, query, (stream,))
            names[stream] = str(found[0]) if found else ""
        made.append(
            EventEntry(
                tenant=key >> TENANT_SHIFT, stream=names[stream], header=Raw(header), digest=digest.hex(),
                link=link.hex(), salt=None if salt is None else salt.hex(),
                payload=None if payload is None else encode_content(payload),
            )
        )  # fmt: skip
    return tuple(made)


def _blob_entry(tenant: int, hash_: bytes, content: bytes, *, keep: Callable[[bytes, bytes], None]) -> BlobEntry:
    if len(content) <= limits.BLOB_INLINE_BYTES:
        return BlobEntry(tenant=tenant, sha256=hash_.hex(), content=encode_content(content))
    keep(hash_, content)
    return BlobEntry(tenant=tenant, sha256=hash_.hex())


def _base_entry(key: int, stream: int, first: int, source: int, version: int, _: bytes) -> BaseEntry:
    return BaseEntry(
        tenant=key >> TENANT_SHIFT, position=key & NUMBER_MASK, stream=stream & NUMBER_MASK,
        first=first, source=source & NUMBER_MASK, version=version,
    )  # fmt: skip


def _erased_entry(event: int, notice: int, cause: int, payload: bytes | None, _: bytes) -> ErasedEntry:
    return ErasedEntry(
        tenant=event >> TENANT_SHIFT, position=event & NUMBER_MASK, notice=notice & NUMBER_MASK,
        cause=cause & NUMBER_MASK, stand_in=None if payload is None else encode_content(payload),
    )  # fmt: skip


BlobFileLoader = Callable[[str], bytes]
"""From a blob's hash to the content of its file. Raises Corrupt if it is damaged."""


@functools.cache
def index_statements() -> dict[str, str]:
    """Return the statements of the SQLite store and of the file store by name."""
    text = Path(__file__).with_name("index.sql").read_text(encoding="utf-8")
    return {**database.statements(), **split_statements(text)}


def apply_commit(connection: apsw.Connection, change: CommitLine, fetch: BlobFileLoader) -> None:
    """Put and drop the rows of one commit, in an open transaction. Nothing is derived."""
    run, sql = connection.execute, index_statements()
    for tenant, key in change.dropped_keys:
        run(sql["drop_key"], (tenant, key))
    for tenant, hash_ in change.dropped_blobs:
        run(sql["drop_blob"], (tenant, bytes.fromhex(hash_)))
    for tenant, name in change.dropped_notes:
        run(sql["drop_note"], (tenant, name))
    for each in change.blobs:
        content = fetch(each.sha256) if each.content is None else each.content.bytes
        run(sql["add_blob"], (each.tenant, bytes.fromhex(each.sha256), content))
    for each in change.events:
        row, high = event_row(each), each.tenant << TENANT_SHIFT
        place = (high | row.address.position, high | row.address.stream, row.address.version)
        run(sql["put_event"], (*place, row.header, row.payload, row.salt, row.digest, row.link))
    for statement, row in _checksummed_rows(change):
        run(sql[statement], (*row, row_checksum(*row)))
    if change.pending is not None:
        run(sql["put_todo"], (change.pending.bytes,))
    if change.dropped_pending:
        run(sql["clear_pending"])


def _checksummed_rows(change: CommitLine) -> Iterator[tuple[str, tuple[apsw.SQLiteValue, ...]]]:
    """Yield the statement and the columns of each row that has a checksum."""
    for each in change.tenants:
        yield "put_tenant", (each.number, each.name)
    for each in change.streams:
        yield "put_stream", (each.tenant << TENANT_SHIFT | each.number, each.tenant, each.name)
    for each in change.bases:
        high = each.tenant << TENANT_SHIFT
        source = high | each.source
        yield "put_base", (high | each.position, high | each.stream, each.first, source, each.version)
    for each in change.keys:
        command = bytes.fromhex(each.command)
        yield "put_key", (each.tenant, each.key, command, each.first, each.last, each.time_us)
    for each in change.notes:
        yield "put_note", (each.tenant, each.name, each.version, each.value.bytes)
    for each in change.erased:
        high = each.tenant << TENANT_SHIFT
        cause = high | each.cause if each.cause else 0
        yield "put_gone", (high | each.position, high | each.notice, cause, decode_content(each.stand_in))


def event_row(event: EventEntry) -> chain.EventRow:
    salt = None if event.salt is None else bytes.fromhex(event.salt)
    digest, link = bytes.fromhex(event.digest), bytes.fromhex(event.link)
    return chain.EventRow(event_address(event), bytes(event.header), decode_content(event.payload), salt, digest, link)


def apply_and_derive(
    connection: apsw.Connection, changes: Sequence[CommitLine], derive: port.StreamDeriver, fetch: BlobFileLoader
) -> None:
    """Apply commits to the index, in an open transaction, and derive the touched streams again."""
    keys = sorted(_touched_streams(changes))
    batch = log_writes.AppendBatch(connection.cursor(), SQLiteCache(), bytes, careful=True)
    for key in keys:
        _drop_derived(connection, batch, key, derive)
    for change in changes:
        apply_commit(connection, change, fetch)
    for key in keys:
        name = _stream_name(connection, key)
        if name and not is_erased_stream(name):
            batch.write_derived(key >> TENANT_SHIFT, key, event_erasure.derive_stream(connection, key, name, derive))
    connection.execute(index_statements()["count_rebuild"])


def _touched_streams(changes: Iterable[CommitLine]) -> set[int]:
    found: set[int] = set()
    for change in changes:
        found |= {e.tenant << TENANT_SHIFT | event_address(e).stream for e in change.events}
        found |= {s.tenant << TENANT_SHIFT | s.number for s in change.streams}
        found |= {b.tenant << TENANT_SHIFT | b.stream for b in change.bases}
    return found


def _stream_name(connection: apsw.Connection, key: int) -> str:
    row = first_row(connection, index_statements()["stream_name"], (key,))
    return str(row[0]) if row else ""


def _drop_derived(
    connection: apsw.Connection, batch: log_writes.AppendBatch, key: int, derive: port.StreamDeriver
) -> None:
    """Drop all that is derived from a stream. Its rows are found by deriving them once more."""
    name = _stream_name(connection, key)
    if not name or is_erased_stream(name):
        return
    for row in event_erasure.derive_stream(connection, key, name, derive).projections:
        batch.drop_projection(key >> TENANT_SHIFT, row.kind, row.id)
    event_erasure.drop_derived(connection, key)


class JournalVerification:
    """A check of the whole journal: most of it while other processes write, the rest under the write lock."""

    def __init__(self, journal: CommitJournal, folder: StoreFolder) -> None:
        self._journal = journal
        self._folder = folder
        self._restart()

    def _restart(self) -> None:
        self._point = START
        self._heads: dict[int, tuple[int, str]] = {}
        self._blobs: dict[bytes, bool | None] = {}
        self._seen = 0

    def check_unlocked(self) -> Iterator[int]:
        """Yield the number of events checked so far, without the write lock. Faults are left to `check_locked`."""
        try:
            yield from self._check()
        except (errors.Corrupt, errors.NotAStore):
            # An erasure meanwhile rewrites segments and removes blobs, so this need not be damage.
            self._restart()

    def check_locked(self) -> Iterator[int]:
        """Check up to the end, under the write lock; raise Corrupt for a damaged line or blob."""
        if not self._journal.has_line_at(self._point):
            self._restart()
        yield from self._check()

    def _check(self) -> Iterator[int]:
        for step in self._journal.walk(self._point):
            for event in step.change.events:
                row = event_row(event)
                chain.decode_event(row, event.stream)
                head = (row.address.position, event.link)
                self._heads[event.tenant] = max(self._heads.get(event.tenant, (0, "")), head)
            for blob in step.change.blobs:
                inline = blob.content.bytes if blob.content else None
                hash_ = bytes.fromhex(blob.sha256)
                self._blobs[hash_] = None if inline is None else chain.blob_matches(hash_, inline)
            for _, gone in step.change.dropped_blobs:
                self._blobs.pop(bytes.fromhex(gone), None)
            self._seen += len(step.change.events)
            self._point = step.end
            yield self._seen
        # Of a blob that was added again, the last content counts. A later call reads blobs of later lines only.
        blobs, self._blobs = self._blobs, {}
        for hash_, intact in blobs.items():
            if intact is None:
                self._folder.read_blob(hash_.hex())
            elif not intact:
                raise chain.damaged_blob_error(hash_)

    def differences(self, connection: apsw.Connection) -> Iterator[str]:
        names = database.read_tenants(connection)
        for tenant in sorted(names.keys() | self._heads.keys()):
            head = database.read_head(connection, tenant)
            journal_head = self._heads.get(tenant, (0, ""))
            if (head.position, head.link.hex() if head.position else "") != journal_head:
                yield (
                    f"the index ends at position {head.position:,} of {names.get(tenant, 'a tenant')},"
                    f" and the journal at {journal_head[0]:,}, or otherwise."
                )


REWRITE_PLAN_NAME: Final = "rewriting"

CommitEdit = Callable[[CommitLine], CommitLine]


class RewritePlan(msgspec.Struct, frozen=True):
    """A replacement of segments: the end of the journal before and after, and the renames (from, to)."""

    before: JournalPoint
    after: JournalPoint
    moves: tuple[tuple[str, str], ...]


class JournalRewriter:
    """Replaces segments of one journal together. The caller of every method holds the write lock."""

    def __init__(self, files: StoreFiles, journal: CommitJournal) -> None:
        self._files = files
        self._journal = journal
        self._path = journal.folder / REWRITE_PLAN_NAME

    def write_plan(self, store_id: bytes, edit: CommitEdit) -> None:
        """Write new segments with every line edited beside the old ones, and a plan if anything changed."""
        moves: list[tuple[str, str]] = []
        ends = (self._journal.first_point(),) * 2
        for content, ends in self._segments(store_id, edit):
            path = self._journal.path(ends[1].segment)
            if moves or content != read_regular_file(path).rstrip(PADDING):
                moves.append((self._files.write_temporary(path, content).name, path.name))
        if moves:
            decided = RewritePlan(ends[0], ends[1], tuple(moves))
            self._files.replace_content(self._path, msgspec.json.encode(decided))

    def _segments(self, store_id: bytes, edit: CommitEdit) -> Iterator[tuple[bytes, tuple[JournalPoint, JournalPoint]]]:
        """Yield each segment's new content, with the ends of the old and the new segment."""
        segment, n, check, content = 0, 0, "", bytearray()
        before = self._journal.first_point()
        for step in self._journal.walk():
            if step.end.segment != segment:
                if segment:
                    yield bytes(content), (before, JournalPoint(segment, len(content), n, check))
                segment = step.end.segment
                head = SegmentHead(
                    limpet="journal", format=JOURNAL_FORMAT, store=store_id.hex(), segment=segment,
                    n=n, after=check,
                )  # fmt: skip
                line, check = encode_line(check, head)
                content = bytearray(line)
            line, check = encode_line(check, edit(step.change))
            content += line
            n, before = step.end.n, step.end
        if segment:
            yield bytes(content), (before, JournalPoint(segment, len(content), n, check))

    def read_plan(self) -> RewritePlan | None:
        """Return the plan that is not completed, or None; raise Corrupt unless it names segments in this folder."""
        if not self._path.exists():
            return None
        try:
            found = msgspec.json.decode(read_regular_file(self._path), type=RewritePlan)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _unreadable_plan_error(self._path) from error
        for made, place in found.moves:
            fresh = re.fullmatch(re.escape(place) + r"\.\w+\.new", made)
            if not re.fullmatch(r"\d{6,}\.jsonl", place) or fresh is None:
                raise _unreadable_plan_error(self._path)
        return found

    def move_segments(self, decided: RewritePlan) -> bool:
        """Rename the new segments into place; return whether the journal now ends as planned.

        Nothing is renamed if the journal went on since the plan was made: acknowledged commits are never overwritten.
        Raises Corrupt if it went on after some segments were renamed.
        """
        folder = self._journal.folder
        left = [(made, place) for made, place in decided.moves if (folder / made).exists()]
        before = decided.before
        if left and not (self._journal.has_line_at(before) and next(self._journal.walk(before), None) is None):
            if len(left) == len(decided.moves):
                return False
            raise errors.Corrupt(
                f"{self._path} names segments that an erasure was putting into place when others wrote to the journal or replaced it.",
                hint="Nothing was changed. Put the folder journal back from a backup or from git.",
                facts={"path": str(self._path), "journal": "damaged"},
            )
        for made, place in left:
            self._files.rename(folder / made, folder / place)
        # The open file is no longer the one at its path.
        self._journal.close()
        return self._journal.has_line_at(decided.after)

    def remove_plan(self) -> None:
        """Remove a plan that is completed or void; durable on return."""
        self._files.remove(self._path)
        self._files.sync(self._journal.folder)


def _unreadable_plan_error(path: Path) -> errors.Corrupt:
    return errors.Corrupt(
        f"{path} does not say which segments an erasure was about to put into place.",
        hint="Nothing was changed. If no erasure was under way, remove that file.",
        facts={"path": str(path), "journal": "damaged"},
    )


class ErasedContentRemover:
    """An edit of journal lines that removes the rows and payloads which the index no longer has."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._sql = index_statements()

    def __call__(self, change: CommitLine) -> CommitLine:
        pending = change.pending
        if pending is not None and self._row("pending") != (pending.bytes,):
            pending = None
        return CommitLine(
            n=change.n,
            tenants=change.tenants,
            streams=tuple(map(self._stream, change.streams)),
            events=tuple(map(self._event, change.events)),
            bases=change.bases,
            keys=tuple(
                key
                for key in change.keys
                if self._row("key_row", key.tenant, key.key, key.first, key.last, key.time_us)
            ),
            blobs=tuple(
                blob for blob in change.blobs if self._row("blob_row", blob.tenant, bytes.fromhex(blob.sha256))
            ),
            notes=tuple(filter(self._has_note, change.notes)),
            erased=tuple(filter(self._has_gone, change.erased)),
            pending=pending,
        )

    def _row(self, query: str, *bindings: apsw.SQLiteValue) -> tuple[apsw.SQLiteValue, ...] | None:
        return first_row(self._connection, self._sql[query], bindings)

    def _name(self, key: int) -> str:
        row = self._row("stream_name", key)
        return str(row[0]) if row else ""

    def _stream(self, stream: StreamEntry) -> StreamEntry:
        key = stream.tenant << TENANT_SHIFT | stream.number
        return msgspec.structs.replace(stream, name=self._name(key))

    def _event(self, event: EventEntry) -> EventEntry:
        place, high = event_address(event), event.tenant << TENANT_SHIFT
        event = msgspec.structs.replace(event, stream=self._name(high | place.stream))
        if event.salt is not None and self._row("is_blank", high | place.position) == (1,):
            return msgspec.structs.replace(event, payload=None, salt=None)
        return event

    def _has_note(self, note: NoteEntry) -> bool:
        row = self._row("note", note.tenant, note.name)
        return row is not None and row[1] == note.version

    def _has_gone(self, gone: ErasedEntry) -> bool:
        high = gone.tenant << TENANT_SHIFT
        row = self._row("gone_row", high | gone.position)
        cause = high | gone.cause if gone.cause else 0
        return row == (high | gone.notice, cause, decode_content(gone.stand_in))
