"""One owner's vectors in memory: which lie nearest to a question, and which are about the same thing.

What resembles a great many other messages says little, as a word does that is in all of them. So a vector's
likeness to its ten nearest among the others (its crowd) is taken off, by half from a question's likeness to it
and by the whole from the likeness of two: what search by words knows as rarity. Without it, thanks and
greetings are near to every question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet import limits

Floats = NDArray[np.float32]

ROLES: Final = ("user", "assistant", "system", "tool")
_CROWD: Final = 10


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What must hold of a message that is looked for. Both times are inclusive."""

    roles: frozenset[str] = frozenset()
    session_id: str | None = None
    since_us: int | None = None
    until_us: int | None = None


ANY: Final = Wanted()


class Near(msgspec.Struct, frozen=True):
    """A message that lies near a question, and how near: 1 is the same, 0 has nothing to do with it."""

    position: int
    score: float


class Vectors(msgspec.Struct, frozen=True):
    """Vectors of length 1 and whose they are, all in one order. A long message has several."""

    positions: NDArray[np.int64]
    times: NDArray[np.int64]
    roles: NDArray[np.uint8]
    sessions: NDArray[np.str_]
    rows: Floats

    def __len__(self) -> int:
        return len(self.positions)

    def then(self, more: Vectors) -> Vectors:
        """Return these with others behind them."""
        return Vectors(*(
            np.concatenate((getattr(self, field), getattr(more, field)))
            for field in self.__struct_fields__
        ))  # fmt: skip


def empty(dimensions: int) -> Vectors:
    """Return no vectors."""
    none = np.empty(0, np.int64)
    rows = np.empty((0, dimensions), np.float32)
    return Vectors(none, none, np.empty(0, np.uint8), np.empty(0, np.str_), rows)


class Gallery:
    """Vectors with their crowds. It is never changed: `grown` gives a larger one."""

    def __init__(self, vectors: Vectors, crowds: Floats | None = None, known: int = 0) -> None:
        self.vectors = vectors
        self._step = _step(len(vectors))
        same_step = known and _step(known) == self._step
        self._nearest = _crowds(vectors.rows, self._step, crowds if same_step else None, known)
        finite = np.isfinite(self._nearest)
        total = np.where(finite, self._nearest, 0).sum(1, dtype=np.float32)
        self.crowds: Floats = total / np.maximum(finite.sum(1), 1).astype(np.float32)

    def grown(self, more: Vectors) -> Gallery:
        """Return the gallery with more vectors behind those it has."""
        return Gallery(self.vectors.then(more), self._nearest, len(self.vectors))

    @property
    def size(self) -> int:
        """How many bytes its vectors take."""
        return self.vectors.rows.nbytes

    def nearest(self, vector: Floats, k: int, wanted: Wanted = ANY) -> list[Near]:
        """Return up to k messages, the nearest first; of equals the latest. Each is there once."""
        scores = self.vectors.rows @ vector - self.crowds / 2
        chosen = self._chosen(wanted)
        if chosen is not None:
            scores = np.where(chosen, scores, -np.inf)
        wide = min(len(scores), k * limits.EMBED_PASSAGES_MAX)
        if not wide:
            return []
        best = np.argpartition(scores, len(scores) - wide)[len(scores) - wide :]
        order = best[np.lexsort((-self.vectors.positions[best], -scores[best]))]
        found: dict[int, float] = {}
        for index in order.tolist():
            if np.isfinite(scores[index]) and len(found) < k:
                found.setdefault(int(self.vectors.positions[index]), float(scores[index]))
        return [Near(position, score) for position, score in found.items()]

    def _chosen(self, wanted: Wanted) -> NDArray[np.bool_] | None:
        if wanted == ANY:
            return None
        held = self.vectors
        chosen = np.ones(len(held), np.bool_)
        if wanted.roles:
            codes = [number for number, role in enumerate(ROLES) if role in wanted.roles]
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
        rows, crowds = self.vectors.rows[at], self.crowds[at]
        scores = 2 * (rows @ rows.T) - crowds[:, None] - crowds[None, :]
        names = self.vectors.positions[at].tolist()
        found: dict[tuple[int, int], float] = {}
        for one, row in zip(names, scores.tolist(), strict=True):
            for other, score in zip(names, row, strict=True):
                if one < other:
                    pair = one, other
                    found[pair] = max(score, found.get(pair, score))
        return found


def _step(count: int) -> int:
    """Return how many vectors there are for each in the background: it doubles whenever that is full."""
    step = 1
    while count > step * limits.VECTOR_BACKGROUND:
        step *= 2
    return step


def _crowds(rows: Floats, step: int, before: Floats | None, known: int) -> Floats:
    """Return the likenesses of each vector to its nearest in the background, which is every step-th vector.

    `before` has those of the first `known` vectors by the background that these had.
    """
    total = len(rows)
    if before is None:
        before, known = np.empty((0, _CROWD), np.float32), 0
    old = -(-known // step)
    background = np.arange(0, total, step)
    added = rows[background[old:]]
    head = _highest(np.concatenate((before, rows[:known] @ added.T), axis=1))
    tail = rows[known:] @ rows[background].T
    own = background[background >= known]
    tail[own - known, np.searchsorted(background, own)] = -np.inf
    return np.concatenate((head, _highest(tail)))


def _highest(scores: Floats) -> Floats:
    """Return the ten highest of each row; where there are fewer, minus infinity."""
    lack = _CROWD - scores.shape[1]
    if lack > 0:
        scores = np.pad(scores, ((0, 0), (0, lack)), constant_values=-np.inf)
    return np.partition(scores, scores.shape[1] - _CROWD, axis=1)[:, -_CROWD:]
