"""One owner's vectors in memory: nearest neighbours, similarity, and the encoding of stored blocks.

A message that resembles many others says little. So the mean similarity of a vector to its ten
nearest neighbours is subtracted from its scores, as inverse document frequency does for terms.
Vectors are stored with one byte a component.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet import errors, limits

if TYPE_CHECKING:
    from limpet.memory.vectors.embedder import EmbeddingRows


Floats = NDArray[np.float32]

ROLE_CODES: Final = ("user", "assistant", "system", "tool")
_NEIGHBOURS: Final = 10


class VectorFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What must hold of a message that is looked for. Both times are inclusive."""

    roles: frozenset[str] = frozenset()
    session_id: str | None = None
    since_us: int | None = None
    until_us: int | None = None


NO_FILTER: Final = VectorFilter()


class NearMessage(msgspec.Struct, frozen=True):
    """A message that lies near a question, and how near: 1 is the same, 0 has nothing to do with it."""

    position: int
    score: float


class VectorSet(msgspec.Struct, frozen=True):
    """Vectors of length 1 and whose they are, all in one order. A long message has several."""

    positions: NDArray[np.int64]
    times: NDArray[np.int64]
    roles: NDArray[np.uint8]
    sessions: NDArray[np.str_]
    rows: Floats

    def __len__(self) -> int:
        return len(self.positions)

    def extended(self, more: VectorSet) -> VectorSet:
        """Return these with others behind them."""
        return VectorSet(*(
            np.concatenate((getattr(self, field), getattr(more, field)))
            for field in self.__struct_fields__
        ))  # fmt: skip


def empty_vectors(dimensions: int) -> VectorSet:
    """Return no vectors."""
    none = np.empty(0, np.int64)
    rows = np.empty((0, dimensions), np.float32)
    return VectorSet(none, none, np.empty(0, np.uint8), np.empty(0, np.str_), rows)


class VectorIndex:
    """Vectors with their crowds. It is never changed: `grown` gives a larger one."""

    def __init__(self, vectors: VectorSet, crowds: Floats | None = None, known: int = 0) -> None:
        self.vectors = vectors
        self._step = _background_step(len(vectors))
        same_step = known and _background_step(known) == self._step
        self._nearest = _neighbour_likenesses(vectors.rows, self._step, crowds if same_step else None, known)
        finite = np.isfinite(self._nearest)
        total = np.where(finite, self._nearest, 0).sum(1, dtype=np.float32)
        self.densities: Floats = total / np.maximum(finite.sum(1), 1).astype(np.float32)

    def extended(self, more: VectorSet) -> VectorIndex:
        """Return the gallery with more vectors behind those it has."""
        return VectorIndex(self.vectors.extended(more), self._nearest, len(self.vectors))

    @property
    def byte_size(self) -> int:
        """How many bytes its vectors take."""
        return self.vectors.rows.nbytes

    def nearest(self, vector: Floats, limit: int, wanted: VectorFilter = NO_FILTER) -> list[NearMessage]:
        """Return up to `limit` messages, the nearest first; of equals the latest. Each is there once."""
        scores = self.vectors.rows @ vector - self.densities / 2
        chosen = self._mask(wanted)
        if chosen is not None:
            scores = np.where(chosen, scores, -np.inf)
        wide = min(len(scores), limit * limits.EMBED_PASSAGES_MAX)
        if not wide:
            return []
        best = np.argpartition(scores, len(scores) - wide)[len(scores) - wide :]
        order = best[np.lexsort((-self.vectors.positions[best], -scores[best]))]
        found: dict[int, float] = {}
        for index in order.tolist():
            if np.isfinite(scores[index]) and len(found) < limit:
                found.setdefault(int(self.vectors.positions[index]), float(scores[index]))
        return [NearMessage(position, score) for position, score in found.items()]

    def _mask(self, wanted: VectorFilter) -> NDArray[np.bool_] | None:
        if wanted == NO_FILTER:
            return None
        held = self.vectors
        chosen = np.ones(len(held), np.bool_)
        if wanted.roles:
            codes = [number for number, role in enumerate(ROLE_CODES) if role in wanted.roles]
            chosen &= np.isin(held.roles, codes)
        if wanted.session_id is not None:
            chosen &= held.sessions == wanted.session_id
        if wanted.since_us is not None:
            chosen &= held.times >= wanted.since_us
        if wanted.until_us is not None:
            chosen &= held.times <= wanted.until_us
        return chosen

    def likeness(self, positions: Sequence[int]) -> Mapping[tuple[int, int], float]:
        """Return how much each two of some messages, the earlier first, are about the same thing.

        0 and less is nothing in common, from 0.3 on there is something. Messages without vectors are left out.
        """
        at = np.flatnonzero(np.isin(self.vectors.positions, list(positions)))
        rows, crowds = self.vectors.rows[at], self.densities[at]
        scores = 2 * (rows @ rows.T) - crowds[:, None] - crowds[None, :]
        names = self.vectors.positions[at].tolist()
        found: dict[tuple[int, int], float] = {}
        for one, row in zip(names, scores.tolist(), strict=True):
            for other, score in zip(names, row, strict=True):
                if one < other:
                    pair = one, other
                    found[pair] = max(score, found.get(pair, score))
        return found


def _background_step(count: int) -> int:
    """Return how many vectors there are for each in the background: it doubles whenever that is full."""
    step = 1
    while count > step * limits.VECTOR_BACKGROUND:
        step *= 2
    return step


def _neighbour_likenesses(rows: Floats, step: int, before: Floats | None, known: int) -> Floats:
    """Return the likenesses of each vector to its nearest in the background, which is every step-th vector.

    `before` has those of the first `known` vectors by the background that these had.
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
    """Return the ten highest of each row; where there are fewer, minus infinity."""
    lack = _NEIGHBOURS - scores.shape[1]
    if lack > 0:
        scores = np.pad(scores, ((0, 0), (0, lack)), constant_values=-np.inf)
    return np.partition(scores, scores.shape[1] - _NEIGHBOURS, axis=1)[:, -_NEIGHBOURS:]


class MessageVector(msgspec.Struct, frozen=True, kw_only=True):
    """A vector of a message, or of a passage of it, of length 1."""

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
    """Vectors as bytes, each with the scale that makes numbers of them, and whose they are."""

    positions: NDArray[np.int64]
    times: NDArray[np.int64]
    roles: NDArray[np.uint8]
    sessions: NDArray[np.str_]
    scales: Floats
    rows: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.positions)

    def section(self, chosen: slice | NDArray[np.bool_]) -> VectorBlock:
        """Return some of it."""
        return VectorBlock(*(getattr(self, field)[chosen] for field in self.__struct_fields__))

    def split(self, size: int) -> Iterator[VectorBlock]:
        """Yield it in blocks of a size; the last may be smaller."""
        for first in range(0, len(self), size):
            yield self.section(slice(first, first + size))

    def vectors(self) -> VectorSet:
        """Return the vectors as numbers, each of length 1."""
        rows = self.rows * self.scales[:, None]
        return VectorSet(self.positions, self.times, self.roles, self.sessions, rows)

    def encode(self) -> bytes:
        """Return it as it is kept."""
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
    """Return blocks, of which there is one at least, as one."""
    fields = VectorBlock.__struct_fields__
    return VectorBlock(*(np.concatenate([getattr(block, field) for block in blocks]) for field in fields))


def unit_vectors(rows: EmbeddingRows, count: int, dimensions: int) -> Floats:
    """Return an embedder's answer as vectors of length 1; raise WrongEmbedder if it is not what was asked for."""
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
    """Return vectors, of which there is one at least, as a block."""
    units = unit_vectors([vector.row for vector in vectors], len(vectors), dimensions)
    scales = np.abs(units).max(axis=1) / np.float32(127)
    rows = np.rint(units / scales[:, None]).astype(np.int8)
    # What is read back has length 1 again.
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
    """Return a block from how it is kept; raise Corrupt if it is not one."""
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
