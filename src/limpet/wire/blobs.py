"""Large texts of a payload, taken out before it is stored and put back after it was read.

A payload with some taken out is `{"message": …, "blobs": [[path, size], …]}`: at the end of each path
(keys and indices from `message` on) stands the SHA-256 of a text in place of the text. What stands
there is told by the list alone, so nothing that a caller writes can be taken for a reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, cast

import msgspec

from limpet import errors, limits
from limpet.core.values.json_values import Json

Step = str | int
Path = tuple[Step, ...]

_LETTER_BYTES = 4
"""What one character takes at most."""


class Parted(msgspec.Struct, frozen=True):
    """A payload without its large texts; where they were, and how large."""

    message: dict[str, Json]
    blobs: tuple[tuple[Path, int], ...]


NONE: Final[Mapping[bytes, str]] = MappingProxyType({})
"""The texts for payloads that need none."""

_json = msgspec.json.Decoder()
_parted = msgspec.json.Decoder(Parted)
_encoder = msgspec.json.Encoder()


def taken_out(payload: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Return a payload without its large texts, and those as blobs; as it is if it has none."""
    message: dict[str, Json] = _json.decode(payload)
    found = [(path, text.encode()) for path, text in _long(message, ())]
    places: list[tuple[Path, int]] = []
    blobs: dict[str, bytes] = {}
    for path, content in found:
        if len(content) > limits.BLOB_BYTES_MIN:
            name = hashlib.sha256(content).hexdigest()
            blobs[name] = content
            _put(message, path, name)
            places.append((path, len(content)))
    if not places:
        return payload, ()
    return _encoder.encode(Parted(message, tuple(places))), tuple(blobs.values())


def whole(payload: bytes) -> bytes:
    """Return a payload in the form of one whose large texts were taken out, though it has none."""
    return _encoder.encode(Parted(_json.decode(payload), ()))


def _long(value: Json, path: Path) -> Iterator[tuple[Path, str]]:
    """Give the texts that may be large, and where they are."""
    if isinstance(value, str):
        if len(value) * _LETTER_BYTES > limits.BLOB_BYTES_MIN:
            yield path, value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Json]", value).items():
            yield from _long(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from _long(item, (*path, index))


def hashes(payload: bytes) -> list[bytes]:
    """Return the hashes of the blobs that a payload refers to; raise Corrupt if it can't be read."""
    return [hash_ for _, hash_ in _references(_read(payload))]


def decoded(contents: Mapping[bytes, bytes]) -> dict[bytes, str]:
    """Return the texts of blobs; raise Corrupt for one that is no text."""
    try:
        return {hash_: content.decode() for hash_, content in contents.items()}
    except UnicodeDecodeError as error:
        raise errors.Corrupt("a blob of a stored message is no text.") from error


def put_back(payload: bytes, texts: Mapping[bytes, str]) -> dict[str, Json]:
    """Return the message of a payload, whole again; raise Corrupt if a text is not among those given."""
    parted = _read(payload)
    for path, hash_ in _references(parted):
        if hash_ not in texts:
            raise errors.Corrupt(f"the blob {hash_.hex()} is missing.", facts={"blob": hash_.hex()})
        _put(parted.message, path, texts[hash_])
    return parted.message


def _read(payload: bytes) -> Parted:
    try:
        return _parted.decode(payload)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a stored message does not say which blobs it needs.") from error


def _references(parted: Parted) -> list[tuple[Path, bytes]]:
    try:
        return [(path, bytes.fromhex(_at(parted.message, path))) for path, _ in parted.blobs]
    except (LookupError, TypeError, ValueError) as error:
        raise errors.Corrupt("a stored message does not say which blobs it needs.") from error


def _at(value: Json, path: Path) -> Json:
    for step in path:
        value = value[step]
    return value


def _put(value: Json, path: Path, text: str) -> None:
    _at(value, path[:-1])[path[-1]] = text
