"""Forgetting: no row of the archive keeps anything of a message, a session, or a user that is to be forgotten.

Whoever has read the log before, and would write it afterwards, can't: every step here changes the cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.values.memory_records import Who
from limpet.memory.archive import documents, index, postings
from limpet.memory.archive.documents import GONE, HIDDEN, Documents, length_of
from limpet.memory.archive.index import SIZES, Index, encode, owned
from limpet.memory.shelf import Drop, Put, after, key

_TRIES: Final = 64

Chosen = Callable[[Documents, int], bool]
"""Whether a document, of some by its place among them, is to be forgotten."""


def forget(
    rows: Index, who: Who, session_id: str | None = None, position: int | None = None
) -> int:
    """Drop everything of a user, of one session of theirs, or one message; return how many messages it was.

    When this returns, nothing of it is left in any file.
    """
    forgotten = _tried(rows, who.tenant, lambda: _forgotten(rows, who, session_id, position))
    rows.shelf.scrub()
    return forgotten


def reset(rows: Index, tenant: str) -> None:
    """Drop everything of a tenant, so that its log is taken in from its beginning."""

    def changes() -> tuple[int, list[Put | Drop]]:
        span = key(tenant), after(key(tenant))
        made: list[Put | Drop] = [Drop(index.OWNERS, *span), Drop(index.SESSIONS, *span)]
        for _, row in _paged(rows, index.OWNERS, *span):
            made += index.everything(int.from_bytes(row, "big"))
        return 0, made

    _tried(rows, tenant, changes, anew=True)


def _paged(rows: Index, book: str, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
    while page := rows.shelf.scan(book, first, last, limit=limits.MEMORY_ROWS):
        yield from page
        first = page[-1][0] + b"\0"


def _tried(
    rows: Index,
    tenant: str,
    changes: Callable[[], tuple[int, list[Put | Drop]]],
    *,
    anew: bool = False,
) -> int:
    at = (index.CURSORS, key(tenant))
    for _ in range(_TRIES):
        cursor, row = rows.cursor(tenant)
        if anew:
            following = index.Cursor(turn=cursor.turn + 1)
        else:
            following = msgspec.structs.replace(cursor, turn=cursor.turn + 1)
        count, made = changes()
        if rows.shelf.write([*made, Put(*at, encode(following))], expected={at: row}):
            return count
    raise errors.Unavailable(
        "the archive changes too fast for anything to be forgotten; try again."
    )


def _forgotten(
    rows: Index, who: Who, session_id: str | None, position: int | None
) -> tuple[int, list[Put | Drop]]:
    owner = rows.owner(who)
    if owner is None:
        return 0, []
    if session_id is None and position is None:
        return _user(rows, who, owner)
    count, made = _Sweep(rows, owner, _chosen(session_id, position)).changes()
    if session_id is not None and position is None:
        for book, named in (
            (index.SESSIONS, key(who.tenant, session_id)),
            (index.MEMBERS, key(owner, session_id)),
        ):
            made.append(Drop(book, named, named + b"\0"))
    return count, made


def _chosen(session_id: str | None, position: int | None) -> Chosen:
    def chosen(held: Documents, at: int) -> bool:
        if position is not None and held.positions[at] != position:
            return False
        return session_id is None or held.named[held.places[at]].session_id == session_id

    return chosen


def _user(rows: Index, who: Who, owner: int) -> tuple[int, list[Put | Drop]]:
    made: list[Put | Drop] = list(index.everything(owner))
    named = key(who.tenant, who.user_id)
    made.append(Drop(index.OWNERS, named, named + b"\0"))
    prefix = key(owner)
    for member, _ in _paged(rows, index.MEMBERS, *owned(owner)):
        session = key(who.tenant) + member[len(prefix) :]
        made.append(Drop(index.SESSIONS, session, session + b"\0"))
    return rows.head(owner).documents, made


class _Sweep:
    """One owner's rows, without some documents and their terms."""

    def __init__(self, rows: Index, owner: int, chosen: Chosen) -> None:
        self._index = rows
        self._owner = owner
        self._chosen = chosen
        self._head = rows.head(owner)
        self._count = 0
        self._length = 0.0
        self._made: list[Put | Drop] = []

    def changes(self) -> tuple[int, list[Put | Drop]]:
        gone = self._documents()
        for size, first in index.segments(self._head.following):
            if within := {number & 0xFFFF for number in gone if first <= number < first + size}:
                self._segment((size, first), within)
        self._waiting()
        head = msgspec.structs.replace(
            self._head,
            documents=self._head.documents - self._count,
            length=max(0, self._head.length - round(self._length)),
            turn=self._head.turn + 1,
        )
        return self._count, [*self._made, Put(index.HEADS, key(self._owner), encode(head))]

    def _documents(self) -> set[int]:
        gone = set[int]()
        stop = self._head.following - self._head.following % SIZES[0]
        for first, held in self._index.documents(self._owner, 0, stop):
            if found := self._blanked(held):
                gone |= {first + at for at in found}
                self._made.append(Put(index.DOCUMENTS, key(self._owner, first), held.encode()))
        return gone

    def _blanked(self, held: Documents) -> list[int]:
        """Forget the chosen ones among documents; return their places."""
        found = [
            at for at, kind in enumerate(held.kinds) if kind != GONE and self._chosen(held, at)
        ]
        shown = [held.kinds[at] for at in found if held.kinds[at] < HIDDEN]
        self._count += len(shown)
        self._length += sum(map(length_of, shown))
        held.forget(found)
        return found

    def _segment(self, segment: index.Segment, gone: Collection[int]) -> None:
        lists = self._index.terms(self._owner, segment)
        left = {term: postings.without(data, gone) for term, data in lists.items()}
        kept = {term: data for term, data in left.items() if data}
        self._made.append(Drop(index.TERMS, *owned(self._owner, *segment)))
        self._made += index.segment_rows(self._owner, segment, kept)

    def _waiting(self) -> None:
        for named, row in self._index.waiting(self._owner):
            held = documents.decode(row.documents)
            if found := self._blanked(held):
                for at in found:
                    row.once[at] = row.often[at] = b""
                row.documents = held.encode()
                self._made.append(Put(index.WAITING, named, encode(row)))
