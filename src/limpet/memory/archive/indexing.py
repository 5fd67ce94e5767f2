"""Taking messages into the index: a batch of a tenant's log, read before it, written in one step or not at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from limpet.memory.archive import documents, index, postings
from limpet.memory.archive.documents import HIDDEN, Documents, Entry, Place
from limpet.memory.archive.index import SIZES, Head, Index, Segment, Waiting, encode, owned
from limpet.memory.archive.terms import Term
from limpet.memory.shelf import Drop, Put, key


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What the index knows of a session: whose it is, its generation, and the last that was said in it.

    `asked`, `told` and `called` are the numbers of the last documents of a user, of an assistant with words,
    and of one with calls.
    """

    owner: int
    generation: int
    began: int
    asked: int | None = None
    told: int | None = None
    called: int | None = None


class Batch:
    """What the next events of a tenant's log bring."""

    def __init__(self, rows: Index, tenant: str) -> None:
        self._index = rows
        self._tenant = tenant
        self.cursor, self._cursor_row = rows.cursor(tenant)
        self._known: dict[str, Known] = {}
        self._owners: dict[str, int] = {}
        self._counter: bytes | None = None
        self._next_owner = 0
        self._heads: dict[int, Head] = {}
        self._new: defaultdict[int, list[Entry]] = defaultdict(list)
        self._members: set[tuple[int, str]] = set()
        self._hidden: defaultdict[int, set[str]] = defaultdict(set)

    def look(self, session_ids: Collection[str]) -> None:
        """Fetch what is known of sessions, in one look."""
        keys = {key(self._tenant, name): name for name in session_ids if name not in self._known}
        for found, row in self._index.shelf.get(index.SESSIONS, list(keys)).items():
            self._known[keys[found]] = index.decode(Known, row)

    def known(self, session_id: str) -> Known | None:
        """Return what is known of a session that was looked for."""
        return self._known.get(session_id)

    def begin(self, session_id: str, user_id: str | None, generation: int, began: int) -> None:
        """Know whose a session is from here on, and the generation that it is in."""
        owner = self._owner(user_id or "")
        self._known[session_id] = Known(owner, generation, began)
        self._members.add((owner, session_id))

    def again(self, session_id: str, generation: int, began: int) -> None:
        """Know that a session began its next generation."""
        owner = self._known[session_id].owner
        self._known[session_id] = Known(owner, generation, began)

    def _owner(self, user_id: str) -> int:
        if user_id not in self._owners:
            named = key(self._tenant, user_id)
            row = self._index.shelf.get(index.OWNERS, [named]).get(named)
            self._owners[user_id] = int.from_bytes(row, "big") if row else self._another()
        return self._owners[user_id]

    def _another(self) -> int:
        if not self._next_owner:
            row = self._index.shelf.get(index.CURSORS, [index.COUNTER]).get(index.COUNTER)
            self._counter, self._next_owner = row, int.from_bytes(row or b"\1", "big")
        self._next_owner += 1
        return self._next_owner - 1

    def hide(self, session_id: str) -> None:
        """Let nothing be found of what was said in a session so far. Not in one batch with messages."""
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
        spoken: bool,
        calls: bool,
    ) -> None:
        """Take a message of a session that is known."""
        known = self._known[session_id]
        new = self._new[known.owner]
        number = self._head(known.owner).following + len(new)
        answers = _answered(known, role, spoken)
        once = [term for term, count in terms.items() if count == 1]
        often = [] if len(once) == len(terms) else [term for term, n in terms.items() if n > 1]
        place = Place(session_id, known.generation, known.began)
        new.append(Entry(position, time_us, place, role, once, often, answers))
        if role == "user":
            known = msgspec.structs.replace(known, asked=number)
        elif role == "assistant":
            told, called = number if spoken else known.told, number if calls else known.called
            known = msgspec.structs.replace(known, told=told, called=called)
        self._known[session_id] = known

    def _head(self, owner: int) -> Head:
        if owner not in self._heads:
            self._heads[owner] = self._index.head(owner)
        return self._heads[owner]

    def write(self, position: int, link: bytes) -> bool:
        """Write it all, and that the index has the log up to a position; False if somebody else was first."""
        at = (index.CURSORS, key(self._tenant))
        following = msgspec.structs.replace(
            self.cursor, format=index.FORMAT, position=position, link=link
        )
        expected: dict[tuple[str, bytes], bytes | None] = {at: self._cursor_row}
        changes: list[Put | Drop] = [Put(*at, encode(following))]
        if self._next_owner:
            counter = (index.CURSORS, index.COUNTER)
            expected[counter] = self._counter
            changes.append(Put(*counter, index.numbered(self._next_owner)))
        changes += self._named()
        for owner, entries in self._new.items():
            changes += _Owner(self._index, owner, self._head(owner)).taken(entries)
        for owner, sessions in self._hidden.items():
            changes += _Owner(self._index, owner, self._head(owner)).hidden(sessions)
        return self._index.shelf.write(changes, expected=expected)

    def _named(self) -> Iterable[Put]:
        for user_id, owner in self._owners.items():
            yield Put(index.OWNERS, key(self._tenant, user_id), index.numbered(owner))
        for owner, session_id in sorted(self._members):
            yield Put(index.MEMBERS, key(owner, session_id), b"")
        for session_id, known in self._known.items():
            yield Put(index.SESSIONS, key(self._tenant, session_id), encode(known))


def _answered(known: Known, role: str, spoken: bool) -> int | None:
    """Return the document that a message answers: a user an assistant, an assistant a user, a tool its call."""
    if role == "tool":
        return known.called
    if role == "user":
        return known.told
    return known.asked if role == "assistant" and spoken else None


class _Owner:
    """One owner's rows, as a batch changes them."""

    def __init__(self, rows: Index, owner: int, head: Head) -> None:
        self._index = rows
        self._owner = owner
        self._head = head
        self._made: dict[Segment, dict[Term, bytes]] = {}
        self._held: dict[int, Documents] = {}
        self._changes: list[Put | Drop] = []

    def taken(self, entries: list[Entry]) -> list[Put | Drop]:
        """Return what takes new documents in."""
        self._take(entries)
        length = sum(len(entry.once) + 2 * len(entry.often) for entry in entries)
        return self._headed(len(entries), len(entries), length)

    def hidden(self, sessions: Collection[str]) -> list[Put | Drop]:
        """Return what hides the documents of sessions."""
        return self._headed(0, -self._hide(sessions), 0)

    def _headed(self, new: int, more: int, length: int) -> list[Put | Drop]:
        old = self._head
        head = Head(old.following + new, old.documents + more, old.length + length, old.turn + 1)
        return [*self._changes, Put(index.HEADS, key(self._owner), encode(head))]

    def _take(self, entries: list[Entry]) -> None:
        first = self._head.following
        fresh = Documents()
        for number, entry in enumerate(entries, first):
            fresh.add(entry, number)
        once = [b"\n".join(entry.once) for entry in entries]
        often = [b"\n".join(entry.often) for entry in entries]
        start, following = first - first % SIZES[0], first + len(entries)
        if following - start < SIZES[0]:
            row = Waiting(fresh.encode(), once, often)
            self._changes.append(Put(index.WAITING, key(self._owner, first), encode(row)))
            return
        held, before, before_often = Documents(), list[bytes](), list[bytes]()
        for _, row in self._index.waiting(self._owner):
            held.extend(documents.decode(row.documents))
            before += row.once
            before_often += row.often
        held.extend(fresh)
        self._cut(start, held, before + once, before_often + often)

    def _cut(self, start: int, held: Documents, once: list[bytes], often: list[bytes]) -> None:
        """Make segments of what waits, the largest that are whole, and let the rest wait."""
        begin, following = start, start + len(held)
        self._changes.append(Drop(index.WAITING, *owned(self._owner)))
        while (size := _largest(start, following)) is not None:
            low, high = start - begin, start - begin + size
            self._made[size, start] = postings.inverted(
                (
                    number & 0xFFFF,
                    one.split(b"\n") if one else (),
                    many.split(b"\n") if many else (),
                )
                for number, one, many in zip(
                    range(start, start + size), once[low:high], often[low:high], strict=True
                )
            )
            self._held[start] = held.part(low, high)
            start += size
            self._merge(size, start)
        for segment, lists in self._made.items():
            self._changes += index.segment_rows(self._owner, segment, lists)
        for first, part in self._held.items():
            self._changes += index.document_rows(self._owner, first, part)
        if start < following:
            rest = slice(start - begin, None)
            row = Waiting(held.part(start - begin, len(held)).encode(), once[rest], often[rest])
            self._changes.append(Put(index.WAITING, key(self._owner, start), encode(row)))

    def _merge(self, size: int, end: int) -> None:
        """Make one segment of those that have become as many as the next size needs."""
        for larger in SIZES[SIZES.index(size) + 1 :]:
            if end % larger:
                return
            first = end - larger
            parts = [(size, start) for start in range(first, end, size)]
            self._made[larger, first] = postings.merged([self._lists(part) for part in parts])
            if larger == SIZES[1]:
                self._join(first, end)
            size = larger

    def _lists(self, segment: Segment) -> dict[Term, bytes]:
        made = self._made.pop(segment, None)
        if made is not None:
            return made
        self._changes.append(Drop(index.TERMS, *owned(self._owner, *segment)))
        return self._index.terms(self._owner, segment)

    def _join(self, first: int, end: int) -> None:
        """Put the documents of a stretch into one row."""
        rows = self._index.documents(self._owner, first, end)
        self._changes.append(Drop(index.DOCUMENTS, key(self._owner, first), key(self._owner, end)))
        whole = Documents()
        for _, part in rows:
            whole.extend(part)
        for start in range(first, end, SIZES[0]):
            if part := self._held.pop(start, None):
                whole.extend(part)
        self._held[first] = whole

    def _hide(self, sessions: Collection[str]) -> int:
        """Mark the documents of sessions; return how many."""
        marked = 0
        for first, held in self._index.documents(self._owner, 0, self._head.following):
            if found := _hidden(held, sessions):
                marked += found
                row = Put(index.DOCUMENTS, key(self._owner, first), held.encode())
                self._changes.append(row)
        for named, row in self._index.waiting(self._owner):
            held = documents.decode(row.documents)
            if found := _hidden(held, sessions):
                marked += found
                row.documents = held.encode()
                self._changes.append(Put(index.WAITING, named, encode(row)))
        return marked


def _hidden(held: Documents, sessions: Collection[str]) -> int:
    named = {at for at, place in enumerate(held.named) if place.session_id in sessions}
    if not named:
        return 0
    marked = 0
    for at, place in enumerate(held.places):
        if place in named and held.kinds[at] < HIDDEN:
            held.kinds[at] = HIDDEN
            marked += 1
    return marked


def _largest(start: int, following: int) -> int | None:
    """Return the size of the largest segment that begins here and is whole."""
    for size in reversed(SIZES):
        if start % size == 0 and start + size <= following:
            return size
    return None
