"""A plain full-text search (BM25), for the benchmark of recall only: words with their endings off, pairs of ideographs."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping

_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]+|[^\\W_]+")
_ENDINGS = ("ing", "edly", "ed", "es", "s", "ly")
_K1, _B = 1.2, 0.75


def terms(text: str) -> list[str]:
    found: list[str] = []
    for word in _WORD.findall(text.casefold()):
        if "\u3040" <= word[0] <= "\u9fff":
            found += [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        else:
            cut = next((e for e in _ENDINGS if word.endswith(e) and len(word) - len(e) >= 3), "")
            found.append(word.removesuffix(cut))
    return found


class Words:
    """Messages of one owner by their words."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        counted = {position: Counter(terms(text)) for position, text in texts.items()}
        self._lengths = {position: sum(counts.values()) for position, counts in counted.items()}
        self._mean = sum(self._lengths.values()) / len(texts)
        self._having: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for position, counts in counted.items():
            for term, often in counts.items():
                self._having[term].append((position, often))

    def search(self, query: str, k: int) -> list[int]:
        """The best k positions; of equals the latest first."""
        scores: Counter[int] = Counter()
        for term in set(terms(query)):
            having = self._having.get(term, ())
            rarity = math.log1p((len(self._lengths) - len(having) + 0.5) / (len(having) + 0.5))
            for position, often in having:
                long = 1 - _B + _B * self._lengths[position] / self._mean
                scores[position] += rarity * often * (_K1 + 1) / (often + _K1 * long)  # type: ignore[assignment]
        return sorted(scores, key=lambda p: (-scores[p], -p))[:k]
