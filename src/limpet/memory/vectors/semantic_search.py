"""Searches one owner's messages by meaning, and merges the result with other rankings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from limpet.core.values.memory_records import Who
from limpet.memory.vectors import fusion
from limpet.memory.vectors.embedder import Embedder
from limpet.memory.vectors.fusion import Ranking
from limpet.memory.vectors.vector_index import NO_FILTER, VectorFilter, unit_vectors
from limpet.memory.vectors.vector_store import VectorStore

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
