"""Search by meaning: what words have found and what lies near in meaning, in one order, the latest word first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from limpet.core.values.memory_records import Who
from limpet.memory.meaning import fusion
from limpet.memory.meaning.blocks import unit
from limpet.memory.meaning.embedding import Embedder
from limpet.memory.meaning.fusion import Ranking
from limpet.memory.meaning.gallery import ANY, Wanted
from limpet.memory.meaning.vectors import VectorStore

CANDIDATES: Final = 50
"""Hits of each way of searching that are put in order. Whoever searches by words asks for as many."""

Texts = Callable[[Sequence[int]], Mapping[int, str]]
"""From positions of messages to what they say; those that are erased or gone are left out."""


class Recall:
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
        texts: Texts,
        wanted: Wanted = ANY,
        others: Sequence[Ranking] = (),
    ) -> list[int]:
        """Return positions of an owner's messages that fit a question, the best first, at least k if there are as many.

        `by_words` are the hits of a search by words, the best first; `others` are rankings of more kinds, such as
        the sources of facts. All of them obey `wanted` already. What `texts` does not have is not found.

        Raises Unavailable if the embedder can't answer; the caller then has its words.
        """
        gallery = self.vectors.gallery(who)
        wide = max(CANDIDATES, k)
        near: list[int] = []
        if len(gallery.vectors):
            vector = unit(self._embedder.embed([query]), 1, self._embedder.dimensions)[0]
            near = [hit.position for hit in gallery.nearest(vector, wide, wanted)]
        words = list(by_words[:wide])
        every = [*words, *near, *(one for other in others for one in other.positions)]
        said = texts(list(dict.fromkeys(every)))
        words = [position for position in words if position in said]
        trust = fusion.trusted(query, [said[position] for position in words])
        order = fusion.fused([Ranking(words, trust), Ranking(near), *others])
        found = [position for position in order if position in said]
        first = found[:wide]
        shown = {position: said[position] for position in first}
        return fusion.newest_first(first, k, shown, gallery.likeness(first)) + found[wide:]
