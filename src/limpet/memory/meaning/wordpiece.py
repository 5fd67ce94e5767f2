"""Text to word pieces as BERT's uncased models were trained on them, from their vocabulary file.

Exact against the reference, but for one thing that is meant: the names of control tokens in a text
(`[SEP]`) are ordinary characters here. Whoever writes a message must not be able to forge them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Final

UNKNOWN: Final = "[UNK]"
BEGIN: Final = "[CLS]"
END: Final = "[SEP]"
_WORD_CHARS_MAX: Final = 100
_CACHED_WORDS: Final = 50_000
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
"""Characters that are words of their own. The last block but two begins where the reference has it begin."""


_DROPPED: Final = frozenset({"Cc", "Cf", "Co", "Cs"})


class WordPieces:
    """The pieces of a vocabulary: the longest one first, word by word."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._ids = vocabulary
        self._longest = max(map(len, vocabulary))
        self._unknown = vocabulary[UNKNOWN]
        self._ends = vocabulary[BEGIN], vocabulary[END]
        self._words: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, limit: int) -> list[int]:
        """Return at most `limit` ids, the marks of begin and end included; what is beyond is left out."""
        begin, end = self._ends
        found = [begin]
        for word in _words(text):
            found += self._pieces(word)
            if len(found) >= limit:
                break
        del found[limit - 1 :]
        found.append(end)
        return found

    def _pieces(self, word: str) -> tuple[int, ...]:
        known = self._words.get(word)
        if known is None:
            known = self._split(word)
            if len(self._words) < _CACHED_WORDS:
                self._words[word] = known
        return known

    def _split(self, word: str) -> tuple[int, ...]:
        if len(word) > _WORD_CHARS_MAX:
            return (self._unknown,)
        found: list[int] = []
        start, mark = 0, ""
        while start < len(word):
            for stop in range(min(len(word), start + self._longest), start, -1):
                piece = self._ids.get(mark + word[start:stop])
                if piece is not None:
                    break
            else:
                return (self._unknown,)
            found.append(piece)
            start, mark = stop, "##"
        return tuple(found)


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case without accents, each punctuation mark a word."""
    if not text.isascii():
        text = _plain(text)
    word: list[str] = []
    for char in text.lower() if text.isascii() else text:
        if char.isalnum() and char.isascii():
            word.append(char)
            continue
        kind = _kind(char)
        if kind == "w":
            word.append(char)
        elif kind != "":
            if word:
                yield "".join(word)
                word.clear()
            if kind == "p":
                yield char
    if word:
        yield "".join(word)


def _plain(text: str) -> str:
    spaced = "".join(
        f" {char} " if _ideograph(char) else char for char in text if _kind(char) != ""
    )
    bare = "".join(
        char for char in unicodedata.normalize("NFD", spaced) if unicodedata.category(char) != "Mn"
    )
    # One character at a time: the reference knows no final sigma.
    return "".join(map(str.lower, bare))


def _ideograph(char: str) -> bool:
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in _IDEOGRAPHS)


def _kind(char: str) -> str:
    """Return w for a character of a word, p for punctuation, s for space, nothing for what is dropped."""
    if char in "\t\n\r":
        return "s"
    if char == "\ufffd":
        return ""
    category = unicodedata.category(char)
    if category in _DROPPED:
        return ""
    if char.isspace() or category[0] == "Z":
        return "s"
    if category[0] == "P" or (char.isascii() and not char.isalnum()):
        return "p"
    return "w"
