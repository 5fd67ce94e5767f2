"""Blocks of vectors: arrays in one order, and the bytes they are kept as. A number of a vector is one byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet import errors
from limpet.memory.meaning.gallery import ROLES, Vectors

if TYPE_CHECKING:
    from limpet.memory.meaning.embedding import Rows

Floats = NDArray[np.float32]


class Vector(msgspec.Struct, frozen=True, kw_only=True):
    """A vector of a message, or of a passage of it, of length 1."""

    position: int
    session_id: str
    role: str
    time_us: int
    row: Floats


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    positions: bytes
    times: bytes
    roles: bytes
    sessions: list[str]
    scales: bytes
    rows: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Kept)


class Block(msgspec.Struct, frozen=True):
    """Vectors as bytes, each with the scale that makes numbers of them, and whose they are."""

    positions: NDArray[np.int64]
    times: NDArray[np.int64]
    roles: NDArray[np.uint8]
    sessions: NDArray[np.str_]
    scales: Floats
    rows: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.positions)

    def part(self, chosen: slice | NDArray[np.bool_]) -> Block:
        """Return some of it."""
        return Block(*(getattr(self, field)[chosen] for field in self.__struct_fields__))

    def parts(self, size: int) -> Iterator[Block]:
        """Yield it in blocks of a size; the last may be smaller."""
        for first in range(0, len(self), size):
            yield self.part(slice(first, first + size))

    def vectors(self) -> Vectors:
        """Return the vectors as numbers, each of length 1."""
        rows = self.rows * self.scales[:, None]
        return Vectors(self.positions, self.times, self.roles, self.sessions, rows)

    def encode(self) -> bytes:
        """Return it as it is kept."""
        return _encoder.encode(
            _Kept(
                self.positions.astype("<i8").tobytes(),
                self.times.astype("<i8").tobytes(),
                self.roles.tobytes(),
                [str(session) for session in self.sessions],
                self.scales.astype("<f4").tobytes(),
                self.rows.tobytes(),
            )
        )


def joined(blocks: Sequence[Block]) -> Block:
    """Return blocks, of which there is one at least, as one."""
    fields = Block.__struct_fields__
    return Block(*(np.concatenate([getattr(block, field) for block in blocks]) for field in fields))


def unit(rows: Rows, count: int, dimensions: int) -> Floats:
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


def packed(vectors: Sequence[Vector], dimensions: int) -> Block:
    """Return vectors, of which there is one at least, as a block."""
    units = unit([vector.row for vector in vectors], len(vectors), dimensions)
    scales = np.abs(units).max(axis=1) / np.float32(127)
    rows = np.rint(units / scales[:, None]).astype(np.int8)
    # What is read back has length 1 again.
    scales = (1 / np.linalg.norm(rows.astype(np.float32), axis=1)).astype(np.float32)
    return Block(
        np.array([vector.position for vector in vectors], np.int64),
        np.array([vector.time_us for vector in vectors], np.int64),
        np.array([ROLES.index(vector.role) for vector in vectors], np.uint8),
        np.array([vector.session_id for vector in vectors], np.str_),
        scales,
        rows,
    )


def decoded(data: bytes) -> Block:
    """Return a block from how it is kept; raise Corrupt if it is not one."""
    try:
        kept = _decoder.decode(data)
        count = len(kept.roles)
        return Block(
            np.frombuffer(kept.positions, "<i8"),
            np.frombuffer(kept.times, "<i8"),
            np.frombuffer(kept.roles, np.uint8),
            np.array(kept.sessions, np.str_),
            np.frombuffer(kept.scales, "<f4"),
            np.frombuffer(kept.rows, np.int8).reshape(count, -1),
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise errors.Corrupt("a block of vectors is not what was written.") from error
