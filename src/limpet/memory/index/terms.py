"""Turns messages into text, and text into terms, for every script. Pure.

Words are folded (width, case, accents), and English words are stemmed. Identifiers are indexed whole and
in parts. Runs of scripts without spaces become overlapping pairs of characters and their last character.
Texts and queries use the same rules.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final, cast

import msgspec

from limpet import limits
from limpet.core.values.memory_records import MEMORY_METADATA_KEY
from limpet.core.values.messages import Message
from limpet.core.values.validation import Json

Term = bytes
"""A folded word, part of an identifier or pair of characters, as UTF-8 without white space."""

_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts without spaces: Thai, Lao, Burmese, Khmer, Han, kana; and Hangul, whose words take endings."""

_FOLD_STABLE: Final = (
    "\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U0002f7ff\U00030000-\U0003ffff"
)
"""Kana, Han and whole Hangul syllables. A run of these characters is not changed by folding."""

_JOINERS: Final = b"-_.@:/"
_BYTES: Final = bytes(range(256))
_SPACES: Final = bytes(byte for byte in range(128) if not chr(byte).isalnum())
_LOWER: Final = _BYTES.lower().translate(bytes.maketrans(_SPACES, b" " * len(_SPACES)))
"""Translates ASCII letters to lower case, and ASCII characters that are not part of a word to spaces."""
_JOINED: Final = bytes(
    byte if byte in _JOINERS else lower if byte < 128 else 32 for byte, lower in zip(_BYTES, _LOWER, strict=True)
)
_CASE_CLASSES: Final = bytes(65 if 65 <= byte <= 90 else 97 if 97 <= byte <= 122 else 32 for byte in _BYTES)
_DOUBLED_CONSONANTS: Final = frozenset(b"bdfglmnprstz")
_STEMS_MAX: Final = 100_000
_LONG_CHARS: Final = 2_000
"""The terms of a few longer texts are cached, because many sessions begin with the same system prompt."""
_ENCODED_CHARS: Final = 200
"""A run of letters and digits of this length is not a word but encoded data: media, a key, a digest."""


class _TermPatterns:
    """Compiled with the first text, because compiling is slow."""

    def __init__(self) -> None:
        self.compound = re.compile(rb"[0-9a-z]+(?:[-_.@:/][0-9a-z]+)+")
        self.identifier_mark = re.compile(rb"[0-9_.@]")
        self.camel_case = re.compile(rb"[A-Za-z0-9]*[a-z][A-Z][A-Za-z0-9]*")
        self.parts = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
        self.plain = re.compile(r"[A-Za-z0-9]+")
        self.encoded = re.compile(f"[A-Za-z0-9+/=_-]{{{_ENCODED_CHARS},}}")
        combining = "".join(chr(c) for c in range(0x300, 0x10000) if unicodedata.combining(chr(c)))
        self.mark_runs = re.compile(f"([{re.escape(combining)}]{{8}})[{re.escape(combining)}]+")
        self.accents = re.compile("[\u0300-\u036f]+")
        self.katakana = re.compile("[\u30a1-\u30fa\u30fc]{3,20}")
        marks = "".join(chr(code) for code in range(0x483, 0x2100) if _is_mark(code))
        self.between = re.compile(f"[^\\w\\x00-\\x7f{re.escape(marks)}]+")
        self.pieces = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
        self.unspaced = re.compile(f"[{_UNSPACED}]")
        self.fold_stable = re.compile(f"[{_FOLD_STABLE}]+")
        self.foreign = re.compile(f"[^\\W\\x00-\\x7f]|[\u0300-\u036f{re.escape(marks)}]")
        self.span = re.compile(f"(?:[^\\W_]|[\u0300-\u036f{re.escape(marks)}])+")


def _is_mark(code: int) -> bool:
    return unicodedata.category(chr(code)).startswith("M")


_patterns = functools.cache(_TermPatterns)


def count_terms(text: str) -> Mapping[Term, int]:
    """Return the terms of a text, each with how often it occurs; at most limits.ARCHIVE_TERMS_MAX of them."""
    return _count_terms_cached(text) if len(text) > _LONG_CHARS else _count_terms(text)


def _count_terms(text: str) -> Mapping[Term, int]:
    found = Counter(_terms(text))
    if len(found) <= limits.ARCHIVE_TERMS_MAX:
        return found
    return dict(list(found.items())[: limits.ARCHIVE_TERMS_MAX])


_count_terms_cached = functools.lru_cache(maxsize=16)(_count_terms)


def query_terms(query: str) -> list[Term]:
    """Return the distinct terms of a query, in order; only the longest limits.ARCHIVE_QUERY_TERMS of them.

    A single character of a script without spaces matches all terms that begin with it, see `is_prefix`.
    """
    found = list(dict.fromkeys(_terms(query)))
    pairs = b"".join(term for term in found if not is_prefix(term))
    # The last character of a run is already part of a pair.
    found = [term for term in found if not (is_prefix(term) and term in pairs)]
    if len(found) > limits.ARCHIVE_QUERY_TERMS:
        longest = set(sorted(found, key=len, reverse=True)[: limits.ARCHIVE_QUERY_TERMS])
        found = [term for term in found if term in longest]
    return found


def is_prefix(term: Term) -> bool:
    """Whether a query term matches all terms that begin with it: a single character of a script without spaces."""
    if term[0] < 0xE0 or len(term) > 4:
        return False
    text = term.decode()
    return len(text) == 1 and _patterns().unspaced.match(text) is not None


def occurrences(text: str, wanted: Collection[Term]) -> list[tuple[int, int, Term]]:
    """Return the occurrences of some terms in a text as begin, end and term, in order."""
    # Dashes and quotation marks beyond ASCII separate words like those of ASCII.
    plain = text.isascii() or not _patterns().foreign.search(text)
    found = list(_ascii_occurrences(text, wanted) if plain else _foreign_occurrences(text, wanted))
    lower = text.lower()
    for term in wanted:
        if not term.isalnum() and term.isascii():
            whole = term.decode()
            at = lower.find(whole)
            while at >= 0:
                found.append((at, at + len(whole), term))
                at = lower.find(whole, at + len(whole))
    return sorted(found)


def _ascii_occurrences(text: str, wanted: Collection[Term]) -> Iterator[tuple[int, int, Term]]:
    lower, find = text.lower(), _patterns().plain
    # Distinct words first: most words of a long text are repeated, and most are not wanted.
    stems = {word: stem for word in {*find.findall(lower)} if (stem := _word_stem(word)) in wanted}
    if stems:
        for match in find.finditer(lower):
            if stem := stems.get(match[0]):
                yield match.start(), match.end(), stem


def _word_stem(word: str) -> Term:
    data = word.encode()
    return _stems.get(data) or _cached_stem(data)


def _foreign_occurrences(text: str, wanted: Collection[Term]) -> Iterator[tuple[int, int, Term]]:
    find, sought, texts = _patterns(), {*wanted}, {term.decode() for term in wanted}

    # A few thousand pairs make up most of a text.
    @functools.lru_cache(maxsize=8_192)
    def terms_of(part: str) -> frozenset[Term]:
        return frozenset(_terms(part))

    for match in find.span.finditer(text):
        word, start = match[0], match.start()
        if word.isascii():
            if (stem := _word_stem(word.lower())) in wanted:
                yield start, match.end(), stem
            continue
        if not find.unspaced.search(word):
            for term in terms_of(word) & sought:
                yield start, match.end(), term
            continue
        for at, pair in _candidate_pairs(word, texts):
            for term in terms_of(pair) & sought:
                if not is_prefix(term) or len(pair) == 1:
                    yield start + at, start + at + len(pair), term


def _candidate_pairs(word: str, wanted: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the pairs and single characters of a word that may have a wanted term, with their indexes.

    Characters that folding does not change are compared directly, which excludes most of a long text.
    """
    stable = bytearray(len(word) + 1)
    for match in _patterns().fold_stable.finditer(word):
        stable[match.start() : match.end()] = b"\1" * len(match[0])
    for at in range(len(word)):
        pair, single = word[at : at + 2], word[at]
        if not (stable[at] and (stable[at + 1] or len(pair) == 1)) or pair in wanted:
            yield at, pair
        if not stable[at] or single in wanted:
            yield at, single


def fold(text: str) -> str:
    """Return a text without differences of width, case and accents."""
    if text.isascii():
        return text.lower()
    # Long runs of combining marks are cut, because normalizing them takes quadratic time.
    parted = unicodedata.normalize("NFKD", _patterns().mark_runs.sub(r"\1", text))
    bare = _patterns().accents.sub("", parted)
    return unicodedata.normalize("NFKC", bare).casefold()


def _terms(text: str) -> list[Term]:
    if len(text) > _ENCODED_CHARS:
        text = _patterns().encoded.sub(" ", text)
    folded = fold(text)
    if not folded.isascii():
        folded = _patterns().between.sub(" ", folded)
    data, found = folded.encode(), list[Term]()
    for word in data.translate(_LOWER).split():
        if stem := _stems.get(word):
            found.append(stem)
        elif word.isascii():
            found.append(_cached_stem(word))
        else:
            _add_foreign(found, word.decode())
    _add_identifiers(found, data, text)
    return found


def _add_foreign(found: list[Term], word: str) -> None:
    find = _patterns()
    for piece in find.pieces.findall(word):
        if find.unspaced.match(piece):
            _add_pairs(found, piece)
        elif piece.isascii():
            found.append(_cached_stem(piece.encode()))
        else:
            found.append(piece[: limits.ARCHIVE_WORD_CHARS].encode())


def _add_pairs(found: list[Term], run: str) -> None:
    found += [run[at : at + 2].encode() for at in range(len(run) - 1)]
    found.append(run[-1].encode())
    found += [name.encode() for name in _patterns().katakana.findall(run)]


def _add_identifiers(found: list[Term], folded: bytes, text: str) -> None:
    """Add whole identifiers, and the parts of identifiers in camel case."""
    find = _patterns()
    for joined in folded.translate(_JOINED).split():
        if not joined.isalnum():
            for whole in find.compound.findall(joined):
                if len(whole) <= limits.ARCHIVE_WORD_CHARS and find.identifier_mark.search(whole):
                    found.append(whole)
    encoded = text.encode()
    if b"aA" in encoded.translate(_CASE_CLASSES):
        for name in find.camel_case.findall(encoded):
            found += [_cached_stem(part.lower()) for part in find.parts.findall(name)]


_stems: dict[bytes, bytes] = {}


def _cached_stem(word: bytes) -> bytes:
    """Compute and cache the stem of a word, cut to limits.ARCHIVE_WORD_CHARS."""
    if len(word) > limits.ARCHIVE_WORD_CHARS:
        return word[: limits.ARCHIVE_WORD_CHARS]
    stem = _stem(word) if len(word) > 3 and word.isalpha() else word
    if len(_stems) >= _STEMS_MAX:
        _stems.clear()
    _stems[word] = stem
    return stem


def _stem(word: bytes) -> bytes:
    if word.endswith((b"ies", b"ied")) and len(word) > 4:
        word = word[:-3] + b"y"
    elif word.endswith((b"sses", b"xes", b"ches", b"shes")):
        word = word[:-2]
    elif word.endswith(b"s") and not word.endswith((b"ss", b"us", b"is")):
        word = word[:-1]
    for ending in (b"ing", b"ed"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) > 2 and any(vowel in b"aeiouy" for vowel in rest):
            word = rest
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] in _DOUBLED_CONSONANTS:
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith(b"e") else word


_MACHINE_FIELDS: Final = frozenset({
    "type", "id", "tool_use_id", "tool_call_id", "call_id", "signature", "encrypted_content", "data",
    "media_type", "mime_type", "url", "file_id", "detail", "cache_control", "image_url", "input_audio",
    "audio", "inline_data", "source", "format",
})  # fmt: skip
"""Fields of a message part that are not text for a reader: identifiers, settings and media."""

_PROFILE_FENCE: Final = re.compile(r"\s*\[memory-([0-9]{1,18})\]\n.*\n\[/memory-\1\]$", re.DOTALL)
"""The user profile that the memory has appended to a system prompt."""

_encoder: Final = msgspec.json.Encoder()


def archive_text(message: Message) -> str:
    """Return the text of a message to index: content, tool calls and results; of long ones begin and end.

    A profile in a system prompt is left out, because its facts are found where the user stated them.
    """
    content = message.content
    if MEMORY_METADATA_KEY in message.metadata and isinstance(content, str):
        return _abridge(_PROFILE_FENCE.sub("", content), limits.ARCHIVE_CHARS_MAX)
    if type(content) is str and not message.tool_calls and not message.tool_results:
        return _abridge(content, limits.ARCHIVE_CHARS_MAX)
    return "\n".join(_message_texts(message))


def _message_texts(message: Message) -> Iterator[str]:
    if message.content is not None:
        yield _abridge("\n".join(_content_texts(message.content)), limits.ARCHIVE_CHARS_MAX)
    for call in message.tool_calls:
        given = call.arguments
        if given is None:
            given = _encoder.encode(call.args).decode() if call.args else ""
        yield _abridge(f"{call.name} {given}", limits.ARCHIVE_TOOL_CHARS_MAX)
    for result in message.tool_results:
        yield _abridge("\n".join(_result_texts(result.result)), limits.ARCHIVE_TOOL_CHARS_MAX)


def has_words(message: Message) -> bool:
    """Whether a message has text beside tool calls and results."""
    return message.content is not None and any(map(str.strip, _content_texts(message.content)))


def _content_texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[Json]", value):
            yield from _content_texts(item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Json]", value).items():
            if name not in _MACHINE_FIELDS:
                yield from _content_texts(item)


def _result_texts(result: Json) -> Iterator[str]:
    if isinstance(result, str):
        yield result
    elif _is_parts(result):
        yield from _content_texts(result)
    elif result is not None:
        yield _encoder.encode(result).decode()


def _is_parts(result: Json) -> bool:
    """Whether a tool result is a list of message parts, and not data of the tool's own."""
    if not isinstance(result, list):
        return False
    items = cast("list[Json]", result)
    return bool(items) and all(isinstance(item, dict) and "type" in item for item in items)


def _abridge(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    return f"{text[: chars * 3 // 4]}\n{text[-(chars // 4) :]}"
