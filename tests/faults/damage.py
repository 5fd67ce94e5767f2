"""Damage to the files of a store: one flipped bit, a zeroed sector, a file cut short."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SECTOR = 512
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to which file, and where."""

    file: str
    kind: str
    at: int
    bit: int = 0

    def to(self, files: Files) -> Files:
        """The files after it."""
        return {**files, self.file: self._done(files[self.file])}

    def _done(self, content: bytes) -> bytes:
        changed = bytearray(content)
        match self.kind:
            case "flip":
                changed[self.at] ^= 1 << self.bit
            case "zero":
                changed[self.at : self.at + SECTOR] = bytes(len(content[self.at : self.at + SECTOR]))
            case _:
                del changed[self.at :]
        return bytes(changed)


def flips(files: Files, seed: int, every: int = 1) -> Iterator[Damage]:
    """One bit of every byte (or of every so-manieth), a different one from byte to byte."""
    for name, content in sorted(files.items()):
        bits = hashlib.shake_256(f"{seed}/{name}".encode()).digest(len(content))
        for at in range(seed % every, len(content), every):
            yield Damage(name, "flip", at, bits[at] % 8)


def zeroed(files: Files) -> Iterator[Damage]:
    """Every sector that is not zero already."""
    for name, content in sorted(files.items()):
        for at in range(0, len(content), SECTOR):
            if any(content[at : at + SECTOR]):
                yield Damage(name, "zero", at)


def shortened(files: Files, every: int) -> Iterator[Damage]:
    """Every file cut at many lengths, nothing left among them."""
    for name, content in sorted(files.items()):
        for at in sorted({*range(0, len(content), every), *range(SECTOR, len(content), SECTOR)}):
            yield Damage(name, "cut", at)
