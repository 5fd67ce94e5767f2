"""The contract of long-term memory on the engine that is built in: in RAM, on SQLite, and behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from holdfast.memory.builtin import BuiltIn
from holdfast.memory.port import MemoryEngine
from holdfast.memory.shelf import VolatileShelf
from holdfast.store.sqlite.shelf import SQLiteShelf
from holdfast.testing import memory_contract


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.mark.req("A-14", "A-16")
class TestInRam(memory_contract.MemoryContract):
    reopens: ClassVar[bool] = False

    def open_engine(self, folder: Path) -> MemoryEngine:
        return BuiltIn(VolatileShelf(), count=count)


@pytest.mark.req("A-14", "A-16")
class TestOnSQLite(memory_contract.MemoryContract):
    def open_engine(self, folder: Path) -> MemoryEngine:
        return BuiltIn(SQLiteShelf(folder / "state.db-memory"), count=count)
