"""An embedder for tests: a text is where its words are. It says what it was asked."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from limpet.memory.vectors.vector_store import MessageVector


class Words:
    """Each word is a direction of its own; texts that share words lie near each other."""

    def __init__(self, name: str = "words", dimensions: int = 64) -> None:
        self.name = name
        self.dimensions = dimensions
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked += texts
        return [self.vector(text).tolist() for text in texts]

    def vector(self, text: str) -> np.ndarray:
        found = np.full(self.dimensions, 1e-3, np.float32)
        for word in text.lower().split():
            found[zlib.crc32(word.encode()) % self.dimensions] += 1
        return (found / np.linalg.norm(found)).astype(np.float32)


def vector(position: int, row: Sequence[float], session: str = "s", role: str = "user") -> MessageVector:
    return MessageVector(
        position=position, session_id=session, role=role, time_us=position * 1000, row=np.array(row, np.float32)
    )


def rows(count: int, dimensions: int, seed: int = 1) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)
