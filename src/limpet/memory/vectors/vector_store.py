"""Stores vectors of messages in blocks, caches one index per owner, and searches by meaning.

Each write expects two rows unchanged: how far the log is embedded, and how often something was
deleted. So only one of two concurrent workers succeeds, and a batch read before a deletion cannot
restore what was deleted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet import errors, limits
from limpet.core.values.memory_records import Who
from limpet.memory.index_store import DropRows, IndexStore, PutRow, encode_key, prefix_end
from limpet.memory.vectors import fusion, vector_index
from limpet.memory.vectors.embedder import PROGRESS_TABLE, Embedder
from limpet.memory.vectors.fusion import Ranking
from limpet.memory.vectors.vector_index import (
    NO_FILTER,
    MessageVector,
    NearMessage,
    VectorBlock,
    VectorFilter,
    VectorIndex,
    empty_vectors,
    unit_vectors,
)

BLOCKS: Final = "vectors"
HEADS: Final = "vectors-heads"
_SCAN_LIMIT: Final = 64
_TRIES: Final = 100


class EmbeddingProgress(msgspec.Struct, frozen=True):
    """What a step goes by: up to which position of the log everything is embedded, and the rows that say so."""

    position: int
    cursor: bytes | None
    forget_count: bytes | None


class _OwnerVectors(msgspec.Struct, frozen=True, array_like=True):
    """Of one owner's vectors: when one was last forgotten, the last block and how many it has, and all there are."""

    forget_count: int = 0
    last: int = 0
    in_last: int = 0
    count: int = 0


_head_decoder: Final = msgspec.msgpack.Decoder(_OwnerVectors)
_head_encoder: Final = msgspec.msgpack.Encoder()


class VectorStore:
    """The vectors of all owners by one embedder. Several threads and processes may use one shelf."""

    def __init__(self, shelf: IndexStore, embedder: Embedder) -> None:
        self._shelf = shelf
        self._name = embedder.name
        self._dimensions = embedder.dimensions
        self._lock = Lock()
        self._cache: OrderedDict[Who, tuple[_OwnerVectors, VectorIndex]] = OrderedDict()

    def progress(self, tenant: str) -> EmbeddingProgress:
        """Return how far a tenant's log is embedded. To be asked before the log is read."""
        cursor, forgotten = encode_key(tenant, self._name), encode_key(tenant)
        rows = self._shelf.get(PROGRESS_TABLE, [cursor, forgotten])
        return EmbeddingProgress(
            _decode_number(rows.get(cursor)), rows.get(cursor), rows.get(forgotten)
        )

    def add(
        self,
        tenant: str,
        mark: EmbeddingProgress,
        found: Mapping[str, Sequence[MessageVector]],
        position: int,
    ) -> bool:
        """Keep vectors of users, and that the log is embedded up to a position, in one step.

        Returns False, and changes nothing, if somebody else was first or something was forgotten since `mark`.
        """
        cursor, forgotten = encode_key(tenant, self._name), encode_key(tenant)
        changes = [PutRow(PROGRESS_TABLE, cursor, _encode_number(position))]
        for user_id, vectors in found.items():
            if vectors:
                block = vector_index.pack_block(vectors, self._dimensions)
                changes += self._append(
                    Who(tenant, user_id), block, _decode_number(mark.forget_count)
                )
        expected = {
            (PROGRESS_TABLE, cursor): mark.cursor,
            (PROGRESS_TABLE, forgotten): mark.forget_count,
        }
        return self._shelf.write(changes, expected=expected)

    def _append(self, who: Who, block: VectorBlock, forgotten: int) -> Iterator[PutRow]:
        place = self._owner_key(who)
        head = self._head(place) or _OwnerVectors(forgotten)
        count = head.count + len(block)
        if kept := self._shelf.get(BLOCKS, [place + encode_key(head.last)]):
            block = vector_index.concatenate_blocks(
                [*map(vector_index.decode_block, kept.values()), block]
            )
        last, part = head.last, block
        for last, part in enumerate(block.split(limits.VECTOR_BLOCK), head.last):
            yield PutRow(BLOCKS, place + encode_key(last), part.encode())
        yield _put_head(place, _OwnerVectors(head.forget_count, last, len(part), count))

    def nearest(
        self, who: Who, vector: NDArray[np.float32], k: int, wanted: VectorFilter = NO_FILTER
    ) -> list[NearMessage]:
        """Return up to k messages of an owner that lie nearest to a vector of length 1, the nearest first."""
        return self.owner_index(who).nearest(vector, k, wanted)

    def owner_index(self, who: Who) -> VectorIndex:
        """Return an owner's vectors as they are now: from memory, but for what has come since."""
        place, nothing = self._owner_key(who), VectorIndex(empty_vectors(self._dimensions))
        for _ in range(_TRIES):
            head = self._head(place)
            if head is None:
                self._evict(who)
                return nothing
            with self._lock:
                known, gallery = self._cache.get(who, (head, None))
            if gallery is None or known.forget_count != head.forget_count:
                known, gallery = _OwnerVectors(), nothing
            if known != head:
                gallery = self._extend(place, known, gallery)
            # If not so, somebody writes just now, and what was read is of two moments.
            if len(gallery.vectors) == head.count and self._head(place) == head:
                self._cache_index(who, head, gallery)
                return gallery
        raise errors.Unavailable("the vectors change too fast to be searched; try again.")

    def _extend(self, place: bytes, known: _OwnerVectors, gallery: VectorIndex) -> VectorIndex:
        found = [block for _, block in self._blocks(place, known.last)]
        if not found:
            return gallery
        # The last block that was known may have grown.
        return gallery.extended(
            vector_index.concatenate_blocks(found).section(slice(known.in_last, None)).vectors()
        )

    def _cache_index(self, who: Who, head: _OwnerVectors, gallery: VectorIndex) -> None:
        with self._lock:
            self._cache[who] = head, gallery
            self._cache.move_to_end(who)
            total = sum(kept.byte_size for _, kept in self._cache.values())
            while total > limits.VECTOR_CACHE_BYTES and len(self._cache) > 1:
                _, (_, dropped) = self._cache.popitem(last=False)
                total -= dropped.byte_size

    def _evict(self, who: Who) -> None:
        with self._lock:
            self._cache.pop(who, None)

    def forget(self, who: Who, session_id: str | None = None, position: int | None = None) -> int:
        """Drop an owner's vectors, or those of one session, or of one message; return how many.

        Those of every embedder go. When this returns, nothing of them is left in any file.
        """
        self._evict(who)
        for _ in range(_TRIES):
            dropped = self._drop(who, session_id, position)
            if dropped is not None:
                # Also if there was nothing: another may have been stopped between dropping and this.
                self._shelf.scrub()
                return dropped
        raise errors.Unavailable("vectors are added too fast to forget some; try again.")

    def _drop(self, who: Who, session_id: str | None, position: int | None) -> int | None:
        """Drop in one step; return how many, or None if somebody else wrote meanwhile."""
        row = encode_key(who.tenant)
        seen = self._shelf.get(PROGRESS_TABLE, [row]).get(row)
        forgotten, owner = _decode_number(seen) + 1, encode_key(who.tenant, who.user_id)
        heads = self._shelf.scan(HEADS, owner, prefix_end(owner), limit=_SCAN_LIMIT)
        changes: list[PutRow | DropRows] = [PutRow(PROGRESS_TABLE, row, _encode_number(forgotten))]
        expected: dict[tuple[str, bytes], bytes | None] = {(PROGRESS_TABLE, row): seen}
        dropped = 0
        if session_id is None and position is None:
            dropped = sum(_head_decoder.decode(data).count for _, data in heads)
            changes += (DropRows(book, owner, prefix_end(owner)) for book in (BLOCKS, HEADS))
        else:
            for place, data in heads:
                expected[HEADS, place] = data
                found, count = self._remove(place, forgotten, session_id, position)
                changes += found
                dropped += count
        return dropped if self._shelf.write(changes, expected=expected) else None

    def _remove(
        self, place: bytes, forgotten: int, session_id: str | None, position: int | None
    ) -> tuple[list[PutRow | DropRows], int]:
        """Return what leaves an embedder's vectors of an owner without some of them, and how many those are."""
        changes, dropped, head = list[PutRow | DropRows](), 0, _OwnerVectors(forgotten)
        for number, block in self._blocks(place, 0):
            chosen = np.ones(len(block), np.bool_)
            if session_id is not None:
                chosen &= block.sessions == session_id
            if position is not None:
                chosen &= block.positions == position
            rest = block.section(~chosen)
            row = place + encode_key(number)
            if len(rest) < len(block):
                dropped += len(block) - len(rest)
                changes.append(
                    PutRow(BLOCKS, row, rest.encode()) if len(rest) else _drop_block(row)
                )
            if len(rest):
                head = _OwnerVectors(forgotten, number, len(rest), head.count + len(rest))
        changes.append(
            _put_head(place, head) if head.count else DropRows(HEADS, place, place + b"\0")
        )
        return changes, dropped

    def _owner_key(self, who: Who) -> bytes:
        return encode_key(who.tenant, who.user_id, self._name)

    def _head(self, place: bytes) -> _OwnerVectors | None:
        data = self._shelf.get(HEADS, [place]).get(place)
        return None if data is None else _head_decoder.decode(data)

    def _blocks(self, place: bytes, first: int) -> Iterator[tuple[int, VectorBlock]]:
        """Yield an owner's blocks from a number on, in order."""
        begin = place + encode_key(first)
        while rows := self._shelf.scan(BLOCKS, begin, prefix_end(place), limit=_SCAN_LIMIT):
            for row, data in rows:
                yield int.from_bytes(row[-8:], "big"), vector_index.decode_block(data)
            begin = rows[-1][0] + b"\0"


def _put_head(place: bytes, head: _OwnerVectors) -> PutRow:
    return PutRow(HEADS, place, _head_encoder.encode(head))


def _drop_block(row: bytes) -> DropRows:
    return DropRows(BLOCKS, row, row + b"\0")


def _decode_number(row: bytes | None) -> int:
    return int.from_bytes(row, "big") if row else 0


def _encode_number(number: int) -> bytes:
    return number.to_bytes(8, "big")


CANDIDATES: Final = 50
"""Hits of each way of searching that are put in order. Whoever searches by words asks for as many."""

LoadTexts = Callable[[Sequence[int]], Mapping[int, str]]
"""From positions of messages to what they say; those that are erased or gone are left out."""


class SemanticSearch:
    """Finds messages of one owner by words that others have looked up, and by meaning."""

    def __init__(self, vectors: VectorStore, embedder: Embedder) -> None:
        self.vectors = vectors
        self._embedder = embedder

    def search(
        self,
        who: Who,
        query: str,
        k: int,
        *,
        by_words: Sequence[int],
        texts: LoadTexts,
        wanted: VectorFilter = NO_FILTER,
        others: Sequence[Ranking] = (),
    ) -> list[int]:
        """Return positions of an owner's messages that fit a question, the best first, at least k if there are as many.

        `by_words` are the hits of a search by words, the best first; `others` are rankings of more kinds, such as
        the sources of facts. All of them obey `wanted` already. What `texts` does not have is not found.

        Raises Unavailable if the embedder can't answer; the caller then has its words.
        """
        gallery = self.vectors.owner_index(who)
        wide = max(CANDIDATES, k)
        near: list[int] = []
        if len(gallery.vectors):
            vector = unit_vectors(self._embedder.embed([query]), 1, self._embedder.dimensions)[0]
            near = [hit.position for hit in gallery.nearest(vector, wide, wanted)]
        words = list(by_words[:wide])
        every = [*words, *near, *(one for other in others for one in other.positions)]
        said = texts(list(dict.fromkeys(every)))
        words = [position for position in words if position in said]
        trust = fusion.word_hit_trust(query, [said[position] for position in words])
        order = fusion.fuse([Ranking(words, trust), Ranking(near), *others])
        found = [position for position in order if position in said]
        first = found[:wide]
        shown = {position: said[position] for position in first}
        return fusion.newest_first(first, k, shown, gallery.likeness(first)) + found[wide:]
