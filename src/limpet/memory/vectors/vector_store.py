"""Stores vectors of messages in blocks, caches one index per owner, and searches by meaning.

Each write expects two rows unchanged: how far the log is embedded, and how often something was
deleted. So only one of two concurrent workers succeeds, and a batch read before a deletion cannot
restore what was deleted.
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
from limpet.core.values.memory_records import TenantUser
from limpet.memory.index_store import (
    DropRows,
    IndexStore,
    PutRow,
    decode_number,
    decode_row,
    drop_row,
    encode_key,
    encode_number,
    prefix_end,
    retry_write,
    scan_all,
)
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
    """How far a tenant's log is embedded, and the two rows that a write expects unchanged."""

    position: int
    cursor: bytes | None
    forget_count: bytes | None


class _OwnerVectors(msgspec.Struct, frozen=True, array_like=True):
    """The head of one owner's vectors: the count of deletions, the last block and its length, and the total."""

    forget_count: int = 0
    last: int = 0
    in_last: int = 0
    count: int = 0


class VectorStore:
    """The vectors of all owners by one embedder. Threads and processes may share the index store."""

    def __init__(self, index: IndexStore, embedder: Embedder) -> None:
        self._index = index
        self._name = embedder.name
        self._dimensions = embedder.dimensions
        self._lock = Lock()
        self._cache: OrderedDict[TenantUser, tuple[_OwnerVectors, VectorIndex]] = OrderedDict()

    def progress(self, tenant: str) -> EmbeddingProgress:
        """Return how far a tenant's log is embedded. Call it before reading the log, so that `add` notices a deletion."""
        cursor, forgotten = encode_key(tenant, self._name), encode_key(tenant)
        rows = self._index.get(PROGRESS_TABLE, [cursor, forgotten])
        return EmbeddingProgress(decode_number(rows.get(cursor)), rows.get(cursor), rows.get(forgotten))

    def add(
        self, tenant: str, mark: EmbeddingProgress, found: Mapping[str, Sequence[MessageVector]], position: int
    ) -> bool:
        """Store vectors by user and the new progress, in one write.

        Returns False, and changes nothing, if another worker has written or vectors were deleted since `mark`.
        """
        cursor, forgotten = encode_key(tenant, self._name), encode_key(tenant)
        changes = [PutRow(PROGRESS_TABLE, cursor, encode_number(position))]
        for user_id, vectors in found.items():
            if vectors:
                block = vector_index.pack_block(vectors, self._dimensions)
                changes += self._append(TenantUser(tenant, user_id), block, decode_number(mark.forget_count))
        expected = {(PROGRESS_TABLE, cursor): mark.cursor, (PROGRESS_TABLE, forgotten): mark.forget_count}
        return self._index.write(changes, expected=expected)

    def _append(self, user: TenantUser, block: VectorBlock, forgotten: int) -> Iterator[PutRow]:
        place = self._owner_key(user)
        head = self._head(place) or _OwnerVectors(forgotten)
        count = head.count + len(block)
        if kept := self._index.get(BLOCKS, [place + encode_key(head.last)]):
            block = vector_index.concatenate_blocks([*map(vector_index.decode_block, kept.values()), block])
        last, part = head.last, block
        for last, part in enumerate(block.split(limits.VECTOR_BLOCK), head.last):
            yield PutRow(BLOCKS, place + encode_key(last), part.encode())
        yield _put_head(place, _OwnerVectors(head.forget_count, last, len(part), count))

    def nearest(
        self, user: TenantUser, vector: NDArray[np.float32], limit: int, wanted: VectorFilter = NO_FILTER
    ) -> list[NearMessage]:
        """Return up to `limit` messages of an owner nearest to a vector of length 1, the nearest first."""
        return self.owner_index(user).nearest(vector, limit, wanted)

    def owner_index(self, user: TenantUser) -> VectorIndex:
        """Return an owner's vectors as they are now. Only blocks that the cache lacks are read."""
        place, nothing = self._owner_key(user), VectorIndex(empty_vectors(self._dimensions))
        for _ in range(_TRIES):
            head = self._head(place)
            if head is None:
                self._evict(user)
                return nothing
            with self._lock:
                known, found_index = self._cache.get(user, (head, None))
            if found_index is None or known.forget_count != head.forget_count:
                known, found_index = _OwnerVectors(), nothing
            if known != head:
                found_index = self._extend(place, known, found_index)
            # The head is read before and after the blocks. If it differs, a writer was at work in
            # between, and the blocks may be of two moments: read again.
            if len(found_index.vectors) == head.count and self._head(place) == head:
                self._cache_index(user, head, found_index)
                return found_index
        raise errors.Unavailable("too many concurrent changes of the vectors; retry.")

    def _extend(self, place: bytes, known: _OwnerVectors, found_index: VectorIndex) -> VectorIndex:
        found = [block for _, block in self._blocks(place, known.last)]
        if not found:
            return found_index
        # The last cached block may have grown.
        return found_index.extended(
            vector_index.concatenate_blocks(found).section(slice(known.in_last, None)).vectors()
        )

    def _cache_index(self, user: TenantUser, head: _OwnerVectors, found_index: VectorIndex) -> None:
        with self._lock:
            self._cache[user] = head, found_index
            self._cache.move_to_end(user)
            total = sum(kept.byte_size for _, kept in self._cache.values())
            while total > limits.VECTOR_CACHE_BYTES and len(self._cache) > 1:
                _, (_, dropped) = self._cache.popitem(last=False)
                total -= dropped.byte_size

    def _evict(self, user: TenantUser) -> None:
        with self._lock:
            self._cache.pop(user, None)

    def forget(self, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
        """Delete the vectors of an owner, a session or a message, by all embedders; return how many.

        When this returns, no file has anything of them. Raises Unavailable after too many concurrent changes.
        """
        self._evict(user)
        dropped = retry_write(lambda: self._drop(user, session_id, position), _TRIES)
        # Also if nothing was dropped: an earlier call may have been stopped before its scrub.
        self._index.scrub()
        return dropped

    def _drop(self, user: TenantUser, session_id: str | None, position: int | None) -> int | None:
        """Delete in one write; return how many, or None if another writer was faster."""
        row = encode_key(user.tenant)
        seen = self._index.get(PROGRESS_TABLE, [row]).get(row)
        forgotten, owner = decode_number(seen) + 1, encode_key(user.tenant, user.user_id)
        heads = self._index.scan(HEADS, owner, prefix_end(owner), limit=_SCAN_LIMIT)
        changes: list[PutRow | DropRows] = [PutRow(PROGRESS_TABLE, row, encode_number(forgotten))]
        expected: dict[tuple[str, bytes], bytes | None] = {(PROGRESS_TABLE, row): seen}
        dropped = 0
        if session_id is None and position is None:
            dropped = sum(decode_row(data, _OwnerVectors).count for _, data in heads)
            changes += (DropRows(table, owner, prefix_end(owner)) for table in (BLOCKS, HEADS))
        else:
            for place, data in heads:
                expected[HEADS, place] = data
                found, count = self._remove(place, forgotten, session_id, position)
                changes += found
                dropped += count
        return dropped if self._index.write(changes, expected=expected) else None

    def _remove(
        self, place: bytes, forgotten: int, session_id: str | None, position: int | None
    ) -> tuple[list[PutRow | DropRows], int]:
        """Return the changes that delete some vectors of an owner and embedder, and how many they delete."""
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
                changes.append(PutRow(BLOCKS, row, rest.encode()) if len(rest) else drop_row(BLOCKS, row))
            if len(rest):
                head = _OwnerVectors(forgotten, number, len(rest), head.count + len(rest))
        changes.append(_put_head(place, head) if head.count else drop_row(HEADS, place))
        return changes, dropped

    def _owner_key(self, user: TenantUser) -> bytes:
        return encode_key(user.tenant, user.user_id, self._name)

    def _head(self, place: bytes) -> _OwnerVectors | None:
        data = self._index.get(HEADS, [place]).get(place)
        return None if data is None else decode_row(data, _OwnerVectors)

    def _blocks(self, place: bytes, first: int) -> Iterator[tuple[int, VectorBlock]]:
        """Yield an owner's blocks from a number on, in order."""
        begin = place + encode_key(first)
        for row, data in scan_all(self._index, BLOCKS, begin, prefix_end(place), page=_SCAN_LIMIT):
            yield decode_number(row[-8:]), vector_index.decode_block(data)


def _put_head(place: bytes, head: _OwnerVectors) -> PutRow:
    return PutRow(HEADS, place, msgspec.msgpack.encode(head))


class SemanticSearch:
    """Ranks the messages of one owner by meaning, together with the hits of a search by words."""

    def __init__(self, vectors: VectorStore, embedder: Embedder) -> None:
        self.vectors = vectors
        self._embedder = embedder

    def search(
        self,
        user: TenantUser,
        query: str,
        limit: int,
        *,
        by_words: Sequence[int],
        texts: fusion.LoadTexts,
        wanted: VectorFilter = NO_FILTER,
        others: Sequence[Ranking] = (),
    ) -> list[int]:
        """Return positions of messages that match a query, the best first, at least `limit` if enough match.

        `by_words` has the hits of a search by words, the best first. `others` has more rankings, such as
        the sources of facts. All of them satisfy `wanted` already. A message without a text in `texts` is
        left out. Raises Unavailable if the embedder fails; the caller still has its hits by words.
        """
        found_index = self.vectors.owner_index(user)
        wide = max(fusion.CANDIDATES, limit)
        near: list[int] = []
        if len(found_index.vectors):
            vector = unit_vectors(self._embedder.embed([query]), 1, self._embedder.dimensions)[0]
            near = [hit.position for hit in found_index.nearest(vector, wide, wanted)]
        words = list(by_words[:wide])
        every = [*words, *near, *(one for other in others for one in other.positions)]
        said = texts(list(dict.fromkeys(every)))
        words = [position for position in words if position in said]
        trust = fusion.word_hit_trust(query, [said[position] for position in words])
        order = fusion.fuse([Ranking(words, trust), Ranking(near), *others])
        found = [position for position in order if position in said]
        first = found[:wide]
        shown = {position: said[position] for position in first}
        return fusion.newest_first(first, limit, shown, found_index.likeness(first)) + found[wide:]
