"""Semantic search: vectors of messages in blocks, one index per owner in memory, and ranking by meaning.

A message that resembles many others is a weak match. So half the mean similarity of a vector to its ten
nearest neighbours is subtracted from its scores, like inverse document frequency for terms. Each write
expects two rows unchanged: the progress of embedding the log, and the count of deletions. So only one of
two concurrent workers succeeds, and a batch read before a deletion cannot restore deleted messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet import errors, limits
from limpet.core.values.memory_records import TenantUser
from limpet.memory.index import search
from limpet.memory.index.search import NO_FILTER, MessageFilter, Ranking
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
from limpet.memory.vectors.embedder import PROGRESS_TABLE, Embedder

if TYPE_CHECKING:
    from limpet.memory.vectors.embedder import EmbeddingRows


Floats = NDArray[np.float32]

ROLE_CODES: Final = ("user", "assistant", "system", "tool")
_NEIGHBOURS: Final = 10


class VectorSet(msgspec.Struct, frozen=True):
    """Unit vectors with their messages, as parallel arrays. A long message has several vectors."""

    positions: NDArray[np.int64]
    times: NDArray[np.int64]
    roles: NDArray[np.uint8]
    sessions: NDArray[np.str_]
    rows: Floats

    def __len__(self) -> int:
        return len(self.positions)

    def extended(self, more: VectorSet) -> VectorSet:
        """Return these vectors followed by others."""
        return VectorSet(*(
            np.concatenate((getattr(self, field), getattr(more, field)))
            for field in self.__struct_fields__
        ))  # fmt: skip


def empty_vectors(dimensions: int) -> VectorSet:
    none = np.empty(0, np.int64)
    rows = np.empty((0, dimensions), np.float32)
    return VectorSet(none, none, np.empty(0, np.uint8), np.empty(0, np.str_), rows)


class VectorIndex:
    """Vectors with their densities: the mean similarity to their nearest neighbours. Immutable."""

    def __init__(self, vectors: VectorSet, nearest: Floats | None = None, known: int = 0) -> None:
        self.vectors = vectors
        self._step = _background_step(len(vectors))
        same_step = known and _background_step(known) == self._step
        self._nearest = _neighbour_likenesses(vectors.rows, self._step, nearest if same_step else None, known)
        finite = np.isfinite(self._nearest)
        total = np.where(finite, self._nearest, 0).sum(1, dtype=np.float32)
        self.densities: Floats = total / np.maximum(finite.sum(1), 1).astype(np.float32)

    def extended(self, more: VectorSet) -> VectorIndex:
        """Return an index of these vectors followed by others."""
        return VectorIndex(self.vectors.extended(more), self._nearest, len(self.vectors))

    @property
    def byte_size(self) -> int:
        """The size of the vectors in memory."""
        return self.vectors.rows.nbytes

    def nearest(self, vector: Floats, limit: int, wanted: MessageFilter = NO_FILTER) -> list[int]:
        """Return the positions of up to `limit` distinct messages, the nearest first; of equal scores the latest first."""
        scores = self.vectors.rows @ vector - self.densities / 2
        chosen = self._mask(wanted)
        if chosen is not None:
            scores = np.where(chosen, scores, -np.inf)
        wide = min(len(scores), limit * limits.EMBED_PASSAGES_MAX)
        if not wide:
            return []
        best = np.argpartition(scores, len(scores) - wide)[len(scores) - wide :]
        order = best[np.lexsort((-self.vectors.positions[best], -scores[best]))]
        found = order[np.isfinite(scores[order])]
        return list(dict.fromkeys(self.vectors.positions[found].tolist()))[:limit]

    def _mask(self, wanted: MessageFilter) -> NDArray[np.bool_] | None:
        if wanted == NO_FILTER:
            return None
        vectors = self.vectors
        chosen = np.ones(len(vectors), np.bool_)
        if wanted.roles:
            codes = [number for number, role in enumerate(ROLE_CODES) if role in wanted.roles]
            chosen &= np.isin(vectors.roles, codes)
        if wanted.session_id is not None:
            chosen &= vectors.sessions == wanted.session_id
        if wanted.since_us is not None:
            chosen &= vectors.times >= wanted.since_us
        if wanted.until_us is not None:
            chosen &= vectors.times <= wanted.until_us
        return chosen

    def likeness(self, positions: Sequence[int]) -> Mapping[tuple[int, int], float]:
        """Return the likeness of each pair of messages, the earlier position first; messages without vectors have none.

        0 and less means no common subject; 0.3 and more means a common subject.
        """
        at = np.flatnonzero(np.isin(self.vectors.positions, list(positions)))
        rows, densities = self.vectors.rows[at], self.densities[at]
        scores = 2 * (rows @ rows.T) - densities[:, None] - densities[None, :]
        messages = self.vectors.positions[at].tolist()
        found: dict[tuple[int, int], float] = {}
        for old, row in zip(messages, scores.tolist(), strict=True):
            for new, score in zip(messages, row, strict=True):
                if old < new:
                    found[old, new] = max(score, found.get((old, new), score))
        return found


def _background_step(count: int) -> int:
    """Return n, where every n-th of `count` vectors is in the background. It is a power of two."""
    step = 1
    while count > step * limits.VECTOR_BACKGROUND:
        step *= 2
    return step


def _neighbour_likenesses(rows: Floats, step: int, before: Floats | None, known: int) -> Floats:
    """Return the likenesses of each vector to its nearest neighbours in the background, every step-th vector.

    `before` has the likenesses of the first `known` vectors to the background among them.
    """
    total = len(rows)
    if before is None:
        before, known = np.empty((0, _NEIGHBOURS), np.float32), 0
    old = -(-known // step)
    background = np.arange(0, total, step)
    added = rows[background[old:]]
    head = _highest_scores(np.concatenate((before, rows[:known] @ added.T), axis=1))
    tail = rows[known:] @ rows[background].T
    own = background[background >= known]
    tail[own - known, np.searchsorted(background, own)] = -np.inf
    return np.concatenate((head, _highest_scores(tail)))


def _highest_scores(scores: Floats) -> Floats:
    """Return the ten highest scores of each row, filled up with minus infinity."""
    lack = _NEIGHBOURS - scores.shape[1]
    if lack > 0:
        scores = np.pad(scores, ((0, 0), (0, lack)), constant_values=-np.inf)
    return np.partition(scores, scores.shape[1] - _NEIGHBOURS, axis=1)[:, -_NEIGHBOURS:]


class MessageVector(msgspec.Struct, frozen=True, kw_only=True):
    """A unit vector of a message, or of a passage of it."""

    position: int
    session_id: str
    role: str
    time_us: int
    row: Floats


class _BlockRow(msgspec.Struct, frozen=True, array_like=True):
    positions: bytes
    times: bytes
    roles: bytes
    sessions: list[str]
    scales: bytes
    rows: bytes


_block_encoder: Final = msgspec.msgpack.Encoder()
_block_decoder: Final = msgspec.msgpack.Decoder(_BlockRow)


class VectorBlock(msgspec.Struct, frozen=True):
    """Vectors quantized to bytes, each with its scale, and their messages, as parallel arrays."""

    positions: NDArray[np.int64]
    times: NDArray[np.int64]
    roles: NDArray[np.uint8]
    sessions: NDArray[np.str_]
    scales: Floats
    rows: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.positions)

    def section(self, chosen: slice | NDArray[np.bool_]) -> VectorBlock:
        """Return the chosen vectors as a block."""
        return VectorBlock(*(getattr(self, field)[chosen] for field in self.__struct_fields__))

    def split(self, size: int) -> Iterator[VectorBlock]:
        """Yield blocks of a size; the last may be smaller."""
        for first in range(0, len(self), size):
            yield self.section(slice(first, first + size))

    def vectors(self) -> VectorSet:
        """Return the vectors as floats, each of length 1."""
        rows = self.rows * self.scales[:, None]
        return VectorSet(self.positions, self.times, self.roles, self.sessions, rows)

    def encode(self) -> bytes:
        """Encode the block as the value of a row."""
        return _block_encoder.encode(
            _BlockRow(
                self.positions.astype("<i8").tobytes(),
                self.times.astype("<i8").tobytes(),
                self.roles.tobytes(),
                [str(session) for session in self.sessions],
                self.scales.astype("<f4").tobytes(),
                self.rows.tobytes(),
            )
        )


def concatenate_blocks(blocks: Sequence[VectorBlock]) -> VectorBlock:
    """Return one block of at least one block."""
    fields = VectorBlock.__struct_fields__
    return VectorBlock(*(np.concatenate([getattr(block, field) for block in blocks]) for field in fields))


def unit_vectors(rows: EmbeddingRows, count: int, dimensions: int) -> Floats:
    """Return an embedder's answer as unit vectors; raise WrongEmbedder if its shape or a vector is invalid."""
    try:
        numbers = np.asarray(rows, np.float32)
    except (TypeError, ValueError) as error:
        raise errors.WrongEmbedder("an embedder gave something else than vectors.") from error
    if numbers.shape != (count, dimensions):
        raise errors.WrongEmbedder(
            f"an embedder gave vectors of shape {numbers.shape} instead of {(count, dimensions)}."
        )
    lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
    if not np.all(np.isfinite(lengths) & (lengths > 0)):
        raise errors.WrongEmbedder("an embedder gave a vector that has no direction.")
    return numbers / lengths


def pack_block(vectors: Sequence[MessageVector], dimensions: int) -> VectorBlock:
    """Quantize at least one vector into a block."""
    units = unit_vectors([vector.row for vector in vectors], len(vectors), dimensions)
    scales = np.abs(units).max(axis=1) / np.float32(127)
    rows = np.rint(units / scales[:, None]).astype(np.int8)
    # The scale makes the quantized vector, not the original one, of length 1.
    scales = (1 / np.linalg.norm(rows.astype(np.float32), axis=1)).astype(np.float32)
    return VectorBlock(
        np.array([vector.position for vector in vectors], np.int64),
        np.array([vector.time_us for vector in vectors], np.int64),
        np.array([ROLE_CODES.index(vector.role) for vector in vectors], np.uint8),
        np.array([vector.session_id for vector in vectors], np.str_),
        scales,
        rows,
    )


def decode_block(data: bytes) -> VectorBlock:
    """Decode the value of a row; raise Corrupt if it is damaged."""
    try:
        kept = _block_decoder.decode(data)
        count = len(kept.roles)
        return VectorBlock(
            np.frombuffer(kept.positions, "<i8"),
            np.frombuffer(kept.times, "<i8"),
            np.frombuffer(kept.roles, np.uint8),
            np.array(kept.sessions, np.str_),
            np.frombuffer(kept.scales, "<f4"),
            np.frombuffer(kept.rows, np.int8).reshape(count, -1),
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.Corrupt("a block of vectors is not what was written.") from error


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
                block = pack_block(vectors, self._dimensions)
                changes += self._append(TenantUser(tenant, user_id), block, decode_number(mark.forget_count))
        expected = {(PROGRESS_TABLE, cursor): mark.cursor, (PROGRESS_TABLE, forgotten): mark.forget_count}
        return self._index.write(changes, expected=expected)

    def _append(self, user: TenantUser, block: VectorBlock, forgotten: int) -> Iterator[PutRow]:
        place = self._owner_key(user)
        head = self._head(place) or _OwnerVectors(forgotten)
        count = head.count + len(block)
        if kept := self._index.get(BLOCKS, [place + encode_key(head.last)]):
            block = concatenate_blocks([*map(decode_block, kept.values()), block])
        last, part = head.last, block
        for last, part in enumerate(block.split(limits.VECTOR_BLOCK), head.last):
            yield PutRow(BLOCKS, place + encode_key(last), part.encode())
        yield _put_head(place, _OwnerVectors(head.forget_count, last, len(part), count))

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
        found = [block for _, block in _blocks(self._index, place, known.last)]
        if not found:
            return found_index
        # The last cached block may have grown.
        return found_index.extended(concatenate_blocks(found).section(slice(known.in_last, None)).vectors())

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
        """Delete the vectors of an owner, a session or a message, by all embedders; return how many. See `forget`."""
        self._evict(user)
        return forget(self._index, user, session_id, position)

    def _owner_key(self, user: TenantUser) -> bytes:
        return encode_key(user.tenant, user.user_id, self._name)

    def _head(self, place: bytes) -> _OwnerVectors | None:
        data = self._index.get(HEADS, [place]).get(place)
        return None if data is None else decode_row(data, _OwnerVectors)


def forget(index: IndexStore, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
    """Delete the vectors of an owner, a session or a message, by all embedders; return how many.

    When this returns, no file has anything of them. Raises Unavailable after too many concurrent changes.
    """
    dropped = retry_write(lambda: _drop(index, user, session_id, position), _TRIES)
    # Also if nothing was dropped: an earlier call may have been stopped before its scrub.
    index.scrub()
    return dropped


def _drop(index: IndexStore, user: TenantUser, session_id: str | None, position: int | None) -> int | None:
    """Delete in one write; return how many, or None if another writer was faster."""
    row = encode_key(user.tenant)
    seen = index.get(PROGRESS_TABLE, [row]).get(row)
    forgotten, owner = decode_number(seen) + 1, encode_key(user.tenant, user.user_id)
    heads = index.scan(HEADS, owner, prefix_end(owner), limit=_SCAN_LIMIT)
    changes: list[PutRow | DropRows] = [PutRow(PROGRESS_TABLE, row, encode_number(forgotten))]
    expected: dict[tuple[str, bytes], bytes | None] = {(PROGRESS_TABLE, row): seen}
    dropped = 0
    if session_id is None and position is None:
        dropped = sum(decode_row(data, _OwnerVectors).count for _, data in heads)
        changes += (DropRows(table, owner, prefix_end(owner)) for table in (BLOCKS, HEADS))
    else:
        for place, data in heads:
            expected[HEADS, place] = data
            found, count = _remove(index, place, forgotten, session_id, position)
            changes += found
            dropped += count
    return dropped if index.write(changes, expected=expected) else None


def _remove(
    index: IndexStore, place: bytes, forgotten: int, session_id: str | None, position: int | None
) -> tuple[list[PutRow | DropRows], int]:
    """Return the changes that delete some vectors of an owner and embedder, and how many they delete."""
    changes, dropped, head = list[PutRow | DropRows](), 0, _OwnerVectors(forgotten)
    for number, block in _blocks(index, place, 0):
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


def _blocks(index: IndexStore, place: bytes, first: int) -> Iterator[tuple[int, VectorBlock]]:
    begin = place + encode_key(first)
    for row, data in scan_all(index, BLOCKS, begin, prefix_end(place), page=_SCAN_LIMIT):
        yield decode_number(row[-8:]), decode_block(data)


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
        texts: search.LoadTexts,
        wanted: MessageFilter = NO_FILTER,
        others: Sequence[Ranking] = (),
    ) -> list[int]:
        """Return positions of messages that match a query, the best first, at least `limit` if enough match.

        `by_words` has the hits of a search by words, the best first. `others` has more rankings, such as
        the sources of facts. All of them satisfy `wanted` already. A message without a text in `texts` is
        left out. Raises Unavailable if the embedder fails; the caller still has its hits by words.
        """
        found_index = self.vectors.owner_index(user)
        wide = max(search.CANDIDATES, limit)
        near: list[int] = []
        if len(found_index.vectors):
            vector = unit_vectors(self._embedder.embed([query]), 1, self._embedder.dimensions)[0]
            near = found_index.nearest(vector, wide, wanted)
        words = list(by_words[:wide])
        every = [*words, *near, *(one for other in others for one in other.positions)]
        said = texts(list(dict.fromkeys(every)))
        words = [position for position in words if position in said]
        trust = search.word_hit_trust(query, [said[position] for position in words])
        order = search.fuse([Ranking(words, trust), Ranking(near), *others])
        found = [position for position in order if position in said]
        first = found[:wide]
        shown = {position: said[position] for position in first}
        return search.newest_first(first, limit, shown, found_index.likeness(first)) + found[wide:]
