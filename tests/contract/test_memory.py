"""The contract of long-term memory on the engine that is built in: in RAM, on SQLite, and behind HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from limpet.memory.builtin import BuiltInMemory
from limpet.memory.http import HTTPMemory
from limpet.memory.index_store import VolatileIndexStore
from limpet.memory.port import MemoryEngine
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from limpet.testing import memory_contract
from limpet.testing.memory_fakes import MemoryServer


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.mark.req("A-14", "A-16")
class TestInRam(memory_contract.MemoryContract):
    reopens: ClassVar[bool] = False

    def open_engine(self, folder: Path) -> MemoryEngine:
        return BuiltInMemory(VolatileIndexStore(), count=count)


@pytest.mark.req("A-14", "A-16")
class TestOnSQLite(memory_contract.MemoryContract):
    def open_engine(self, folder: Path) -> MemoryEngine:
        return BuiltInMemory(SQLiteIndexStore(folder / "state.db-memory"), count=count)


@pytest.mark.req("A-14", "A-16")
class TestOverHTTP(memory_contract.MemoryContract):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[Path]:
        shelf = SQLiteIndexStore(tmp_path / "state.db-memory")
        with MemoryServer(BuiltInMemory(shelf, count=count), api_key="k3y") as server:
            (tmp_path / "url").write_text(server.url)
            yield tmp_path
        shelf.close()

    def open_engine(self, folder: Path) -> MemoryEngine:
        return HTTPMemory((folder / "url").read_text(), api_key="k3y", timeout_s=120)
