"""Vectors of what was said, on the shelf: in blocks, all of one owner side by side.

Every write of a tenant's vectors rests on two rows that it has seen: how far the log was embedded, and how
often something was forgotten. So of two workers one is first, and a step that read the log before something
was erased can't bring it back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet import errors, limits
from limpet.core.values.memory_records import Who
from limpet.memory.meaning import blocks
from limpet.memory.meaning.blocks import Block, Vector
from limpet.memory.meaning.embedding import MARKS, Embedder
from limpet.memory.meaning.gallery import ANY, Gallery, Near, Wanted, empty
from limpet.memory.shelf import Drop, Put, Shelf, after, key

BLOCKS: Final = "vectors"
HEADS: Final = "vectors-heads"
_PAGE: Final = 64
_TRIES: Final = 100


class Mark(msgspec.Struct, frozen=True):
    """What a step goes by: up to which position of the log everything is embedded, and the rows that say so."""

    position: int
    cursor: bytes | None
    forgotten: bytes | None


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """Of one owner's vectors: when one was last forgotten, the last block and how many it has, and all there are."""

    forgotten: int = 0
    last: int = 0
    in_last: int = 0
    count: int = 0


_heads: Final = msgspec.msgpack.Decoder(_Head)
_encoder: Final = msgspec.msgpack.Encoder()


class VectorStore:
    """The vectors of all owners by one embedder. Several threads and processes may use one shelf."""

    def __init__(self, shelf: Shelf, embedder: Embedder) -> None:
        self._shelf = shelf
        self._name = embedder.name
        self._dimensions = embedder.dimensions
        self._lock = Lock()
        self._cache: OrderedDict[Who, tuple[_Head, Gallery]] = OrderedDict()

    def mark(self, tenant: str) -> Mark:
        """Return how far a tenant's log is embedded. To be asked before the log is read."""
        cursor, forgotten = key(tenant, self._name), key(tenant)
        rows = self._shelf.get(MARKS, [cursor, forgotten])
        return Mark(_number(rows.get(cursor)), rows.get(cursor), rows.get(forgotten))

    def add(
        self, tenant: str, mark: Mark, found: Mapping[str, Sequence[Vector]], position: int
    ) -> bool:
        """Keep vectors of users, and that the log is embedded up to a position, in one step.

        Returns False, and changes nothing, if somebody else was first or something was forgotten since `mark`.
        """
        cursor, forgotten = key(tenant, self._name), key(tenant)
        changes = [Put(MARKS, cursor, _bytes(position))]
        for user_id, vectors in found.items():
            if vectors:
                block = blocks.packed(vectors, self._dimensions)
                changes += self._appended(Who(tenant, user_id), block, _number(mark.forgotten))
        expected = {(MARKS, cursor): mark.cursor, (MARKS, forgotten): mark.forgotten}
        return self._shelf.write(changes, expected=expected)

    def _appended(self, who: Who, block: Block, forgotten: int) -> Iterator[Put]:
        place = self._place(who)
        head = self._head(place) or _Head(forgotten)
        count = head.count + len(block)
        if kept := self._shelf.get(BLOCKS, [place + key(head.last)]):
            block = blocks.joined([*map(blocks.decoded, kept.values()), block])
        last, part = head.last, block
        for last, part in enumerate(block.parts(limits.VECTOR_BLOCK), head.last):
            yield Put(BLOCKS, place + key(last), part.encode())
        yield _put(place, _Head(head.forgotten, last, len(part), count))

    def nearest(
        self, who: Who, vector: NDArray[np.float32], k: int, wanted: Wanted = ANY
    ) -> list[Near]:
        """Return up to k messages of an owner that lie nearest to a vector of length 1, the nearest first."""
        return self.gallery(who).nearest(vector, k, wanted)

    def gallery(self, who: Who) -> Gallery:
        """Return an owner's vectors as they are now: from memory, but for what has come since."""
        place, nothing = self._place(who), Gallery(empty(self._dimensions))
        for _ in range(_TRIES):
            head = self._head(place)
            if head is None:
                self._let_go(who)
                return nothing
            with self._lock:
                known, gallery = self._cache.get(who, (head, None))
            if gallery is None or known.forgotten != head.forgotten:
                known, gallery = _Head(), nothing
            if known != head:
                gallery = self._grown(place, known, gallery)
            # If not so, somebody writes just now, and what was read is of two moments.
            if len(gallery.vectors) == head.count and self._head(place) == head:
                self._keep(who, head, gallery)
                return gallery
        raise errors.Unavailable("the vectors change too fast to be searched; try again.")

    def _grown(self, place: bytes, known: _Head, gallery: Gallery) -> Gallery:
        found = [block for _, block in self._blocks(place, known.last)]
        if not found:
            return gallery
        # The last block that was known may have grown.
        return gallery.grown(blocks.joined(found).part(slice(known.in_last, None)).vectors())

    def _keep(self, who: Who, head: _Head, gallery: Gallery) -> None:
        with self._lock:
            self._cache[who] = head, gallery
            self._cache.move_to_end(who)
            total = sum(kept.size for _, kept in self._cache.values())
            while total > limits.VECTOR_CACHE_BYTES and len(self._cache) > 1:
                _, (_, dropped) = self._cache.popitem(last=False)
                total -= dropped.size

    def _let_go(self, who: Who) -> None:
        with self._lock:
            self._cache.pop(who, None)

    def forget(self, who: Who, session_id: str | None = None, position: int | None = None) -> int:
        """Drop an owner's vectors, or those of one session, or of one message; return how many.

        Those of every embedder go. When this returns, nothing of them is left in any file.
        """
        self._let_go(who)
        for _ in range(_TRIES):
            dropped = self._dropped(who, session_id, position)
            if dropped is not None:
                # Also if there was nothing: another may have been stopped between dropping and this.
                self._shelf.scrub()
                return dropped
        raise errors.Unavailable("vectors are added too fast to forget some; try again.")

    def _dropped(self, who: Who, session_id: str | None, position: int | None) -> int | None:
        """Drop in one step; return how many, or None if somebody else wrote meanwhile."""
        row = key(who.tenant)
        seen = self._shelf.get(MARKS, [row]).get(row)
        forgotten, owner = _number(seen) + 1, key(who.tenant, who.user_id)
        heads = self._shelf.scan(HEADS, owner, after(owner), limit=_PAGE)
        changes: list[Put | Drop] = [Put(MARKS, row, _bytes(forgotten))]
        expected: dict[tuple[str, bytes], bytes | None] = {(MARKS, row): seen}
        dropped = 0
        if session_id is None and position is None:
            dropped = sum(_heads.decode(data).count for _, data in heads)
            changes += (Drop(book, owner, after(owner)) for book in (BLOCKS, HEADS))
        else:
            for place, data in heads:
                expected[HEADS, place] = data
                found, count = self._without(place, forgotten, session_id, position)
                changes += found
                dropped += count
        return dropped if self._shelf.write(changes, expected=expected) else None

    def _without(
        self, place: bytes, forgotten: int, session_id: str | None, position: int | None
    ) -> tuple[list[Put | Drop], int]:
        """Return what leaves an embedder's vectors of an owner without some of them, and how many those are."""
        changes, dropped, head = list[Put | Drop](), 0, _Head(forgotten)
        for number, block in self._blocks(place, 0):
            chosen = np.ones(len(block), np.bool_)
            if session_id is not None:
                chosen &= block.sessions == session_id
            if position is not None:
                chosen &= block.positions == position
            rest = block.part(~chosen)
            row = place + key(number)
            if len(rest) < len(block):
                dropped += len(block) - len(rest)
                changes.append(Put(BLOCKS, row, rest.encode()) if len(rest) else _drop(row))
            if len(rest):
                head = _Head(forgotten, number, len(rest), head.count + len(rest))
        changes.append(_put(place, head) if head.count else Drop(HEADS, place, place + b"\0"))
        return changes, dropped

    def _place(self, who: Who) -> bytes:
        return key(who.tenant, who.user_id, self._name)

    def _head(self, place: bytes) -> _Head | None:
        data = self._shelf.get(HEADS, [place]).get(place)
        return None if data is None else _heads.decode(data)

    def _blocks(self, place: bytes, first: int) -> Iterator[tuple[int, Block]]:
        """Yield an owner's blocks from a number on, in order."""
        begin = place + key(first)
        while rows := self._shelf.scan(BLOCKS, begin, after(place), limit=_PAGE):
            for row, data in rows:
                yield int.from_bytes(row[-8:], "big"), blocks.decoded(data)
            begin = rows[-1][0] + b"\0"


def _put(place: bytes, head: _Head) -> Put:
    return Put(HEADS, place, _encoder.encode(head))


def _drop(row: bytes) -> Drop:
    return Drop(BLOCKS, row, row + b"\0")


def _number(row: bytes | None) -> int:
    return int.from_bytes(row, "big") if row else 0


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")
