"""A memory engine in a file, for tests that kill its process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from limpet.core.values.memory_records import ArchivedMessage, History
from limpet.testing.memory_fakes import Scribe


class Ledger(Scribe):
    """The same in a file that outlives its process: each conversation is a line, whole or not at all."""

    def __init__(self, path: Path) -> None:
        super().__init__("ledger")
        self._path = path

    def ingest(self, history: History, messages: Iterable[Sequence[ArchivedMessage]]) -> None:
        texts = [str(one.message.content) for chunk in messages for one in chunk]
        if any(line["key"] == history.key for line in self.lines()):
            return
        with self._path.open("ab") as file:
            line = {"key": history.key, "user": history.user.user_id, "texts": texts}
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, object]]:
        """Everything it has."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]
