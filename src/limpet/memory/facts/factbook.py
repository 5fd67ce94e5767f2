"""The rows of the built-in memory: slots, what finds them by source and by word, and the profile that stands ready.

One change of any of them is one write. It expects the ready row, which counts the changes, as it was before
anything else was read: two who change what is known of one user never overwrite each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from limpet import limits
from limpet.core.values.memory_records import Fact, Who
from limpet.memory.facts import profiles, slots
from limpet.memory.facts.finding import terms
from limpet.memory.facts.profiles import Ready
from limpet.memory.facts.slots import Slot
from limpet.memory.shelf import NOTHING, Drop, Expected, Put, Shelf, after, decoded, key

SLOTS = "memory.slots"
SOURCES = "memory.sources"
WORDS = "memory.words"
READY = "memory.ready"
BOOKS = (SLOTS, SOURCES, WORDS, READY)

Slots = Mapping[str, Slot]


class Seen(msgspec.Struct, frozen=True):
    """The ready row of a user as it was before anything else was read."""

    who: Who
    row: bytes | None
    ready: Ready


class Factbook:
    """The rows of all users on a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def slots(self, who: Who, names: Iterable[str]) -> dict[str, Slot]:
        """Return the slots of these names that are there."""
        at = {_at(who, name): name for name in names}
        found = self._shelf.get(SLOTS, list(at))
        return {at[row]: _slot(value) for row, value in found.items()}

    def all_slots(self, who: Who) -> Iterator[Slot]:
        """Yield every slot of a user, some hundred at a time."""
        for _key, value in self._rows(SLOTS, _at(who)):
            yield _slot(value)

    def ready(self, who: Who) -> Ready:
        """Return the facts that stand ready for a profile."""
        return self.seen(who).ready

    def seen(self, who: Who) -> Seen:
        """Return what a change must begin with: whatever is read after it is as it says, or the change fails."""
        row = self._shelf.get(READY, [_at(who)]).get(_at(who))
        return Seen(who, row, decoded(row, Ready) if row else Ready())

    def said_at(self, who: Who, session_id: str, positions: Collection[int]) -> set[str]:
        """Return the names of the slots that have something of these messages."""
        first, last = _at(who, session_id, min(positions)), _at(who, session_id, max(positions))
        rows = self._rows(SOURCES, first, after(last))
        return {
            source.slot
            for _, value in rows
            if (source := decoded(value, Named)).position in positions
        }

    def named(self, who: Who, session_id: str | None, position: int | None) -> set[str]:
        """Return the names of some slots that have something of a session, or of a message; none: there are none."""
        if session_id is None:
            rows = self._rows(SOURCES, _at(who))
        elif position is None:
            rows = self._rows(SOURCES, _at(who, session_id))
        else:
            rows = self._rows(SOURCES, _at(who, session_id, position))
        found = set[str]()
        for _, value in rows:
            source = decoded(value, Named)
            if position in (None, source.position):
                found.add(source.slot)
            if len(found) >= limits.MEMORY_ROWS:
                break
        return found

    def with_word(self, who: Who, word: str) -> list[str]:
        """Return the names of slots that have a word."""
        at = _at(who, word)
        rows = self._shelf.scan(WORDS, at, after(at), limit=limits.MEMORY_ROWS)
        return [value.decode() for _, value in rows]

    def change(
        self, seen: Seen, before: Slots, then: Slots, *, expected: Expected = NOTHING
    ) -> bool:
        """Put slots in the place of others, all or none; return whether nothing has changed since it was seen.

        `before` has those that are there, `then` all that change; one without mentions is gone.
        """
        who = seen.who
        names = [name for name in then if then[name] != before.get(name)]
        changes = list[Put | Drop]()
        for name in names:
            changes += _slot_rows(who, name, before.get(name), then[name])
        gone = [fact for name in names for fact in _holding(who, before.get(name))]
        new = [fact for name in names for fact in _holding(who, then[name])]
        now = profiles.changed(seen.ready, gone, new, lambda: self._all_holding(who, then))
        changes.append(Put(READY, _at(who), msgspec.msgpack.encode(now)))
        return self._shelf.write(changes, expected={**expected, (READY, _at(who)): seen.row})

    def _all_holding(self, who: Who, then: Slots) -> Iterator[Fact]:
        """Yield the facts that hold once these slots are changed."""
        for slot in self.all_slots(who):
            if slot.mentions and _name(slot) not in then:
                yield from _holding(who, slot)
        for slot in then.values():
            yield from _holding(who, slot)

    def forgotten(self, who: Who) -> list[Drop]:
        """Return what drops every row of a user."""
        return [Drop(book, _at(who), after(_at(who))) for book in BOOKS]

    def scrub(self) -> None:
        """See to it that nothing of what was dropped is left in any file."""
        self._shelf.scrub()

    def _rows(
        self, book: str, first: bytes, last: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        end = after(first) if last is None else last
        while rows := self._shelf.scan(book, first, end, limit=limits.MEMORY_ROWS):
            yield from rows
            first = rows[-1][0] + b"\0"


class Named(msgspec.Struct, frozen=True, array_like=True):
    """That a message is a source of a slot."""

    position: int
    slot: str


def _at(who: Who, *parts: str | int) -> bytes:
    return key(who.tenant, who.user_id, *parts)


def _slot(value: bytes) -> Slot:
    return decoded(value, Slot)


def _name(slot: Slot) -> str:
    return slots.name(slot.about, slot.mentions[-1].text)


def _holding(who: Who, slot: Slot | None) -> Sequence[Fact]:
    return slots.facts(who, slot)[:1] if slot and slot.mentions else ()


def _slot_rows(who: Who, name: str, before: Slot | None, then: Slot) -> Iterator[Put | Drop]:
    at = _at(who, name)
    yield (
        Put(SLOTS, at, msgspec.msgpack.encode(then))
        if then.mentions
        else Drop(SLOTS, at, at + b"\0")
    )
    for rows, book in ((_source_rows, SOURCES), (_word_rows, WORDS)):
        was, now = rows(who, name, before), rows(who, name, then)
        yield from (Drop(book, key_, key_ + b"\0") for key_ in was.keys() - now.keys())
        yield from (Put(book, key_, value) for key_, value in now.items() if key_ not in was)


def _source_rows(who: Who, name: str, slot: Slot | None) -> dict[bytes, bytes]:
    return {
        _at(who, said.session_id, said.position, name): msgspec.msgpack.encode(
            Named(said.position, name)
        )
        for said in (slot.mentions if slot else ())
    }


def _word_rows(who: Who, name: str, slot: Slot | None) -> dict[bytes, bytes]:
    words = {word for said in (slot.mentions if slot else ()) for word in terms(said.text)}
    return {_at(who, word, name): name.encode() for word in words}
