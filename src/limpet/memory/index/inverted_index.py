"""The rows of the archive index: layout, adding batches of the log, and deleting messages.

Each message of an owner is a document with a number, in order. The newest documents are pending: they
are stored with their terms. Every 32 documents become a segment of posting lists, and eight segments
are merged into one of the next size, so a document is moved four times at most. The number of documents
determines which segments exist. Every deletion changes the cursor, so that a batch read before the
deletion cannot be written after it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from limpet.core.values.memory_records import TenantUser
from limpet.memory.index import postings
from limpet.memory.index.postings import (
    FORGOTTEN,
    HIDDEN,
    DocumentBlock,
    DocumentBlockView,
    NewDocument,
    SessionGeneration,
    length_of_kind,
)
from limpet.memory.index.terms import Term
from limpet.memory.index_store import (
    DropRows,
    IndexStore,
    PutRow,
    decode_row,
    drop_row,
    encode_key,
    encode_number,
    prefix_end,
    retry_write,
    scan_all,
)

CURSORS: Final = "archive.cursors"
OWNERS: Final = "archive.owners"
SESSIONS: Final = "archive.sessions"
MEMBERS: Final = "archive.members"
HEADS: Final = "archive.heads"
PENDING: Final = "archive.waiting"
DOCUMENTS: Final = "archive.documents"
TERMS: Final = "archive.terms"
OWNER_TABLES: Final = (MEMBERS, HEADS, PENDING, DOCUMENTS, TERMS)
"""The tables whose keys begin with an owner's number."""

ROW_FORMAT: Final = 2 if sys.byteorder == "little" else 3
"""The format of the rows. An index of another format is rebuilt."""

SEGMENT_SIZES: Final = (32, 256, 2_048, 16_384)
"""The numbers of documents that a segment may have. No segment spans a multiple of 65,536."""

OWNER_COUNTER_KEY: Final = encode_key("")
"""The key, in the table of cursors, of the number of the next owner. No tenant has this name."""

_SCAN_LIMIT: Final = 100_000


class IndexCursor(msgspec.Struct, frozen=True, array_like=True):
    """How far a tenant's log is indexed: the position of the last event, and its link.

    `revision` changes with every deletion, so that a batch read before the deletion can't be written after it.
    """

    format: int = ROW_FORMAT
    position: int = 0
    link: bytes = b""
    revision: int = 0


class OwnerHead(msgspec.Struct, frozen=True, array_like=True):
    """Counts of one owner: the next document number, visible documents, their total length, and changes."""

    following: int = 0
    documents: int = 0
    length: int = 0
    revision: int = 0


class PendingDocuments(msgspec.Struct, array_like=True):
    """Documents that are in no segment yet: an encoded block, and the joined terms of each document."""

    documents: bytes
    once: list[bytes]
    often: list[bytes]


Segment = tuple[int, int]
"""The size of a segment, and the number of its first document."""

encode_row: Final = msgspec.msgpack.encode


def owner_key_range(owner: int, *parts: int | str) -> tuple[bytes, bytes]:
    """Return the range of keys of an owner that begin with some parts."""
    first = encode_key(owner, *parts)
    return first, prefix_end(first)


class ArchiveIndex:
    """Reads the rows of the archive."""

    def __init__(self, index: IndexStore) -> None:
        self.store = index

    def cursor(self, tenant: str) -> tuple[IndexCursor, bytes | None]:
        """Return how far a tenant's log is indexed, and the row with that cursor, if it exists."""
        row = self.store.get(CURSORS, [encode_key(tenant)]).get(encode_key(tenant))
        if row is None:
            return IndexCursor(), None
        return decode_row(row, IndexCursor), row

    def owner(self, user: TenantUser) -> int | None:
        """Return the owner number of a user; None if the index has nothing of this user."""
        key = encode_key(user.tenant, user.user_id)
        row = self.store.get(OWNERS, [key]).get(key)
        return None if row is None else int.from_bytes(row, "big")

    def head(self, owner: int) -> OwnerHead:
        row = self.store.get(HEADS, [encode_key(owner)]).get(encode_key(owner))
        return OwnerHead() if row is None else decode_row(row, OwnerHead)

    def pending(self, owner: int) -> list[tuple[bytes, PendingDocuments]]:
        """Return the rows of an owner's pending documents, with their keys."""
        rows = self.store.scan(PENDING, *owner_key_range(owner), limit=SEGMENT_SIZES[0])
        return [(key, decode_row(row, PendingDocuments)) for key, row in rows]

    def documents(self, owner: int, first: int, last: int) -> list[tuple[int, DocumentBlock]]:
        """Return blocks of documents in segments, each with its first number. first <= first number of block < last."""
        return [(at, postings.decode_block(row)) for at, row in self._documents(owner, first, last)]

    def views(self, owner: int, first: int, last: int) -> list[tuple[int, DocumentBlockView]]:
        """Return the same blocks as read-only views."""
        return [(at, DocumentBlockView(row)) for at, row in self._documents(owner, first, last)]

    def _documents(self, owner: int, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        for key, row in self.store.scan(
            DOCUMENTS, encode_key(owner, first), encode_key(owner, last), limit=_SCAN_LIMIT
        ):
            yield int.from_bytes(key[-8:], "big"), row

    def terms(self, owner: int, segment: Segment) -> dict[Term, bytes]:
        """Return all posting lists of a segment."""
        rows = self.store.scan(TERMS, *owner_key_range(owner, *segment), limit=_SCAN_LIMIT)
        found: dict[Term, bytes] = {}
        for _, row in rows:
            found |= postings.unpack_row(row)
        return found

    def rows(self, owner: int, wanted: Sequence[tuple[Segment, Term]]) -> list[bytes | None]:
        """Return, for each segment and term, the row that has the posting list if the segment has one. One read."""
        firsts = {segment: encode_key(owner, *segment) for segment, _ in wanted}
        spans = [(firsts[segment], firsts[segment] + term + b"\0") for segment, term in wanted]
        return self.store.last_values(TERMS, spans)


def segments(following: int) -> Iterator[Segment]:
    """Yield the segments of an owner with `following` documents, in order. The documents behind them are pending."""
    start = 0
    for size in reversed(SEGMENT_SIZES):
        while start + size <= following:
            yield size, start
            start += size


def segment_rows(owner: int, segment: Segment, lists: dict[Term, bytes]) -> Iterator[PutRow]:
    first = encode_key(owner, *segment)
    for term, row in postings.pack_rows(lists):
        yield PutRow(TERMS, first + term, row)


def document_rows(owner: int, first: int, block: DocumentBlock) -> Iterator[PutRow]:
    """Yield the rows of a block that begins at the number `first`. A row has at most SEGMENT_SIZES[1] documents."""
    for start in range(0, len(block), SEGMENT_SIZES[1]):
        yield PutRow(
            DOCUMENTS, encode_key(owner, first + start), block.section(start, start + SEGMENT_SIZES[1]).encode()
        )


def drop_owner(owner: int) -> list[DropRows]:
    """Return the changes that delete all rows of an owner."""
    return [DropRows(table, *owner_key_range(owner)) for table in OWNER_TABLES]


class IndexedSession(msgspec.Struct, frozen=True, array_like=True):
    """What the index knows of a session: its owner, its generation, and its last documents by role.

    `last_assistant` is the last assistant message with words, `last_call` the last one with tool calls.
    """

    owner: int
    generation: int
    began: int
    last_user: int | None = None
    last_assistant: int | None = None
    last_call: int | None = None


class IndexBatch:
    """Collects the changes of the next events of a tenant's log, and writes them at once."""

    def __init__(self, rows: ArchiveIndex, tenant: str) -> None:
        self._index = rows
        self._tenant = tenant
        self.cursor, self._cursor_row = rows.cursor(tenant)
        self._known: dict[str, IndexedSession] = {}
        self._owners: dict[str, int] = {}
        self._counter: bytes | None = None
        self._next_owner = 0
        self._heads: dict[int, OwnerHead] = {}
        self._new: defaultdict[int, list[NewDocument]] = defaultdict(list)
        self._members: set[tuple[int, str]] = set()
        self._hidden: defaultdict[int, set[str]] = defaultdict(set)

    def load_sessions(self, session_ids: Collection[str]) -> None:
        """Read what is known of these sessions, in one read."""
        keys = {encode_key(self._tenant, name): name for name in session_ids if name not in self._known}
        for found, row in self._index.store.get(SESSIONS, list(keys)).items():
            self._known[keys[found]] = decode_row(row, IndexedSession)

    def session(self, session_id: str) -> IndexedSession | None:
        """Return what is known of a session that `load_sessions` has read; None if it is not in the index."""
        return self._known.get(session_id)

    def add_session(self, session_id: str, user_id: str | None, generation: int, began: int) -> None:
        """Add a session with its owner and its generation."""
        owner = self._owner(user_id or "")
        self._known[session_id] = IndexedSession(owner, generation, began)
        self._members.add((owner, session_id))

    def start_generation(self, session_id: str, generation: int, began: int) -> None:
        """Record that a session has begun its next generation."""
        owner = self._known[session_id].owner
        self._known[session_id] = IndexedSession(owner, generation, began)

    def _owner(self, user_id: str) -> int:
        if user_id not in self._owners:
            key = encode_key(self._tenant, user_id)
            row = self._index.store.get(OWNERS, [key]).get(key)
            self._owners[user_id] = int.from_bytes(row, "big") if row else self._next_owner_number()
        return self._owners[user_id]

    def _next_owner_number(self) -> int:
        if not self._next_owner:
            row = self._index.store.get(CURSORS, [OWNER_COUNTER_KEY]).get(OWNER_COUNTER_KEY)
            self._counter, self._next_owner = row, int.from_bytes(row or b"\1", "big")
        self._next_owner += 1
        return self._next_owner - 1

    def hide(self, session_id: str) -> None:
        """Hide all messages of a session so far. A batch with messages must be written first."""
        assert not self._new, "messages are written first: they may be the session's"
        if known := self._known.get(session_id):
            self._hidden[known.owner].add(session_id)

    def add(
        self,
        session_id: str,
        *,
        position: int,
        time_us: int,
        role: str,
        terms: Mapping[Term, int],
        has_words: bool,
        calls: bool,
    ) -> None:
        """Add a message of a known session."""
        known = self._known[session_id]
        new = self._new[known.owner]
        number = self._head(known.owner).following + len(new)
        answers = _answered_document(known, role, has_words)
        once = [term for term, count in terms.items() if count == 1]
        often = [] if len(once) == len(terms) else [term for term, n in terms.items() if n > 1]
        place = SessionGeneration(session_id, known.generation, known.began)
        new.append(NewDocument(position, time_us, place, role, once, often, answers))
        if role == "user":
            known = msgspec.structs.replace(known, last_user=number)
        elif role == "assistant":
            known = msgspec.structs.replace(
                known,
                last_assistant=number if has_words else known.last_assistant,
                last_call=number if calls else known.last_call,
            )
        self._known[session_id] = known

    def _head(self, owner: int) -> OwnerHead:
        if owner not in self._heads:
            self._heads[owner] = self._index.head(owner)
        return self._heads[owner]

    def write(self, position: int, link: bytes) -> bool:
        """Write all changes and the new cursor at once; return False if another writer was faster."""
        at = (CURSORS, encode_key(self._tenant))
        following = msgspec.structs.replace(self.cursor, format=ROW_FORMAT, position=position, link=link)
        expected: dict[tuple[str, bytes], bytes | None] = {at: self._cursor_row}
        changes: list[PutRow | DropRows] = [PutRow(*at, encode_row(following))]
        if self._next_owner:
            counter = (CURSORS, OWNER_COUNTER_KEY)
            expected[counter] = self._counter
            changes.append(PutRow(*counter, encode_number(self._next_owner)))
        changes += self._name_rows()
        for owner, entries in self._new.items():
            changes += _OwnerUpdate(self._index, owner, self._head(owner)).add_documents(entries)
        for owner, sessions in self._hidden.items():
            changes += _OwnerUpdate(self._index, owner, self._head(owner)).hide_sessions(sessions)
        return self._index.store.write(changes, expected=expected)

    def _name_rows(self) -> Iterable[PutRow]:
        for user_id, owner in self._owners.items():
            yield PutRow(OWNERS, encode_key(self._tenant, user_id), encode_number(owner))
        for owner, session_id in sorted(self._members):
            yield PutRow(MEMBERS, encode_key(owner, session_id), b"")
        for session_id, known in self._known.items():
            yield PutRow(SESSIONS, encode_key(self._tenant, session_id), encode_row(known))


def _answered_document(known: IndexedSession, role: str, has_words: bool) -> int | None:
    """Return the document that a message answers: users answer assistants, assistants users, tools their call."""
    if role == "tool":
        return known.last_call
    if role == "user":
        return known.last_assistant
    return known.last_user if role == "assistant" and has_words else None


class _OwnerUpdate:
    """Builds the changes of one owner's rows for a batch."""

    def __init__(self, rows: ArchiveIndex, owner: int, head: OwnerHead) -> None:
        self._index = rows
        self._owner = owner
        self._head = head
        self._new_lists: dict[Segment, dict[Term, bytes]] = {}
        self._new_blocks: dict[int, DocumentBlock] = {}
        self._changes: list[PutRow | DropRows] = []

    def add_documents(self, entries: list[NewDocument]) -> list[PutRow | DropRows]:
        self._append(entries)
        length = sum(len(entry.once) + 2 * len(entry.often) for entry in entries)
        return self._with_head(len(entries), len(entries), length)

    def hide_sessions(self, sessions: Collection[str]) -> list[PutRow | DropRows]:
        return self._with_head(0, -self._hide(sessions), 0)

    def _with_head(self, new: int, more: int, length: int) -> list[PutRow | DropRows]:
        old = self._head
        head = OwnerHead(old.following + new, old.documents + more, old.length + length, old.revision + 1)
        return [*self._changes, PutRow(HEADS, encode_key(self._owner), encode_row(head))]

    def _append(self, entries: list[NewDocument]) -> None:
        first = self._head.following
        fresh = DocumentBlock()
        for number, entry in enumerate(entries, first):
            fresh.add(entry, number)
        once = [b"\n".join(entry.once) for entry in entries]
        often = [b"\n".join(entry.often) for entry in entries]
        start, following = first - first % SEGMENT_SIZES[0], first + len(entries)
        if following - start < SEGMENT_SIZES[0]:
            row = PendingDocuments(fresh.encode(), once, often)
            self._changes.append(PutRow(PENDING, encode_key(self._owner, first), encode_row(row)))
            return
        block, before, before_often = DocumentBlock(), list[bytes](), list[bytes]()
        for _, row in self._index.pending(self._owner):
            block.extend(postings.decode_block(row.documents))
            before += row.once
            before_often += row.often
        block.extend(fresh)
        self._build_segments(start, block, before + once, before_often + often)

    def _build_segments(self, start: int, block: DocumentBlock, once: list[bytes], often: list[bytes]) -> None:
        """Make the largest full segments of the pending documents; leave the rest pending."""
        begin, following = start, start + len(block)
        self._changes.append(DropRows(PENDING, *owner_key_range(self._owner)))
        while (size := _largest_segment(start, following)) is not None:
            low, high = start - begin, start - begin + size
            self._new_lists[size, start] = postings.invert(
                (number & 0xFFFF, one.split(b"\n") if one else (), many.split(b"\n") if many else ())
                for number, one, many in zip(range(start, start + size), once[low:high], often[low:high], strict=True)
            )
            self._new_blocks[start] = block.section(low, high)
            start += size
            self._merge(size, start)
        for segment, lists in self._new_lists.items():
            self._changes += segment_rows(self._owner, segment, lists)
        for first, part in self._new_blocks.items():
            self._changes += document_rows(self._owner, first, part)
        if start < following:
            rest = slice(start - begin, None)
            row = PendingDocuments(block.section(start - begin, len(block)).encode(), once[rest], often[rest])
            self._changes.append(PutRow(PENDING, encode_key(self._owner, start), encode_row(row)))

    def _merge(self, size: int, end: int) -> None:
        """Merge segments into one of the next size, as often as there are enough of them."""
        for larger in SEGMENT_SIZES[SEGMENT_SIZES.index(size) + 1 :]:
            if end % larger:
                return
            first = end - larger
            parts = [(size, start) for start in range(first, end, size)]
            self._new_lists[larger, first] = postings.merge([self._lists(part) for part in parts])
            if larger == SEGMENT_SIZES[1]:
                self._merge_document_rows(first, end)
            size = larger

    def _lists(self, segment: Segment) -> dict[Term, bytes]:
        new = self._new_lists.pop(segment, None)
        if new is not None:
            return new
        self._changes.append(DropRows(TERMS, *owner_key_range(self._owner, *segment)))
        return self._index.terms(self._owner, segment)

    def _merge_document_rows(self, first: int, end: int) -> None:
        rows = self._index.documents(self._owner, first, end)
        self._changes.append(DropRows(DOCUMENTS, encode_key(self._owner, first), encode_key(self._owner, end)))
        whole = DocumentBlock()
        for _, part in rows:
            whole.extend(part)
        for start in range(first, end, SEGMENT_SIZES[0]):
            if part := self._new_blocks.pop(start, None):
                whole.extend(part)
        self._new_blocks[first] = whole

    def _hide(self, sessions: Collection[str]) -> int:
        hidden = 0
        for first, block in self._index.documents(self._owner, 0, self._head.following):
            if count := _hide_sessions(block, sessions):
                hidden += count
                self._changes.append(PutRow(DOCUMENTS, encode_key(self._owner, first), block.encode()))
        for key, row in self._index.pending(self._owner):
            block = postings.decode_block(row.documents)
            if count := _hide_sessions(block, sessions):
                hidden += count
                row.documents = block.encode()
                self._changes.append(PutRow(PENDING, key, encode_row(row)))
        return hidden


def _hide_sessions(block: DocumentBlock, sessions: Collection[str]) -> int:
    """Mark the documents of some sessions as hidden; return how many were visible."""
    numbers = {number for number, place in enumerate(block.generations) if place.session_id in sessions}
    found = [at for at, n in enumerate(block.generation_numbers) if n in numbers and block.kinds[at] < HIDDEN]
    for at in found:
        block.kinds[at] = HIDDEN
    return len(found)


def _largest_segment(start: int, following: int) -> int | None:
    for size in reversed(SEGMENT_SIZES):
        if start % size == 0 and start + size <= following:
            return size
    return None


_TRIES: Final = 64

DocumentFilter = Callable[[DocumentBlock, int], bool]
"""Whether the document at an index of a block is to be deleted."""


def forget(rows: ArchiveIndex, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
    """Delete a user, a session or a message from the index; return how many messages were deleted.

    When this returns, no file of the index store contains any of them.
    """
    deleted = _write_with_retry(rows, user.tenant, lambda: _removal(rows, user, session_id, position))
    rows.store.scrub()
    return deleted


def reset_tenant(rows: ArchiveIndex, tenant: str) -> None:
    """Delete all rows of a tenant, so that its log is indexed again from the beginning."""

    def changes() -> tuple[int, list[PutRow | DropRows]]:
        span = encode_key(tenant), prefix_end(encode_key(tenant))
        made: list[PutRow | DropRows] = [DropRows(OWNERS, *span), DropRows(SESSIONS, *span)]
        for _, row in scan_all(rows.store, OWNERS, *span):
            made += drop_owner(int.from_bytes(row, "big"))
        return 0, made

    _write_with_retry(rows, tenant, changes, anew=True)


def _write_with_retry(
    rows: ArchiveIndex, tenant: str, changes: Callable[[], tuple[int, list[PutRow | DropRows]]], *, anew: bool = False
) -> int:
    at = (CURSORS, encode_key(tenant))

    def step() -> int | None:
        cursor, row = rows.cursor(tenant)
        kept = IndexCursor() if anew else cursor
        following = msgspec.structs.replace(kept, revision=cursor.revision + 1)
        count, made = changes()
        written = rows.store.write([*made, PutRow(*at, encode_row(following))], expected={at: row})
        return count if written else None

    return retry_write(step, _TRIES)


def _removal(
    rows: ArchiveIndex, user: TenantUser, session_id: str | None, position: int | None
) -> tuple[int, list[PutRow | DropRows]]:
    owner = rows.owner(user)
    if owner is None:
        return 0, []
    if session_id is None and position is None:
        return _user_removal(rows, user, owner)
    count, made = _DocumentRemoval(rows, owner, _document_filter(session_id, position)).changes()
    if session_id is not None and position is None:
        made += (
            drop_row(SESSIONS, encode_key(user.tenant, session_id)),
            drop_row(MEMBERS, encode_key(owner, session_id)),
        )
    return count, made


def _document_filter(session_id: str | None, position: int | None) -> DocumentFilter:
    def chosen(block: DocumentBlock, at: int) -> bool:
        if position is not None and block.positions[at] != position:
            return False
        return session_id is None or block.generations[block.generation_numbers[at]].session_id == session_id

    return chosen


def _user_removal(rows: ArchiveIndex, user: TenantUser, owner: int) -> tuple[int, list[PutRow | DropRows]]:
    made: list[PutRow | DropRows] = list(drop_owner(owner))
    made.append(drop_row(OWNERS, encode_key(user.tenant, user.user_id)))
    prefix = encode_key(owner)
    for member, _ in scan_all(rows.store, MEMBERS, *owner_key_range(owner)):
        made.append(drop_row(SESSIONS, encode_key(user.tenant) + member[len(prefix) :]))
    return rows.head(owner).documents, made


class _DocumentRemoval:
    """Builds the changes that delete some documents of one owner and their terms."""

    def __init__(self, rows: ArchiveIndex, owner: int, chosen: DocumentFilter) -> None:
        self._index = rows
        self._owner = owner
        self._chosen = chosen
        self._head = rows.head(owner)
        self._count = 0
        self._length = 0.0
        self._made: list[PutRow | DropRows] = []

    def changes(self) -> tuple[int, list[PutRow | DropRows]]:
        gone = self._blank_documents()
        for size, first in segments(self._head.following):
            if within := {number & 0xFFFF for number in gone if first <= number < first + size}:
                self._rewrite_segment((size, first), within)
        self._remove_pending()
        head = msgspec.structs.replace(
            self._head,
            documents=self._head.documents - self._count,
            length=max(0, self._head.length - round(self._length)),
            revision=self._head.revision + 1,
        )
        return self._count, [*self._made, PutRow(HEADS, encode_key(self._owner), encode_row(head))]

    def _blank_documents(self) -> set[int]:
        gone = set[int]()
        stop = self._head.following - self._head.following % SEGMENT_SIZES[0]
        for first, block in self._index.documents(self._owner, 0, stop):
            if found := self._blank(block):
                gone |= {first + at for at in found}
                self._made.append(PutRow(DOCUMENTS, encode_key(self._owner, first), block.encode()))
        return gone

    def _blank(self, block: DocumentBlock) -> list[int]:
        """Blank the chosen documents of a block; return their indexes."""
        found = [at for at, kind in enumerate(block.kinds) if kind != FORGOTTEN and self._chosen(block, at)]
        visible = [block.kinds[at] for at in found if block.kinds[at] < HIDDEN]
        self._count += len(visible)
        self._length += sum(map(length_of_kind, visible))
        block.blank(found)
        return found

    def _rewrite_segment(self, segment: Segment, gone: Collection[int]) -> None:
        lists = self._index.terms(self._owner, segment)
        left = {term: postings.remove_numbers(data, gone) for term, data in lists.items()}
        kept = {term: data for term, data in left.items() if data}
        self._made.append(DropRows(TERMS, *owner_key_range(self._owner, *segment)))
        self._made += segment_rows(self._owner, segment, kept)

    def _remove_pending(self) -> None:
        for key, row in self._index.pending(self._owner):
            block = postings.decode_block(row.documents)
            if found := self._blank(block):
                for at in found:
                    row.once[at] = row.often[at] = b""
                row.documents = block.encode()
                self._made.append(PutRow(PENDING, key, encode_row(row)))
