"""A memory engine that does as it is told, for tests: what it took is a list, what it knows is set by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast.memory.port import MemoryEngine
from holdfast.values.memory import Fact, FactKind, History, Profile, Recalled, Said, Source, Who


class Scribe:
    """Remembers every conversation that it was handed, once by key; fails as often as it is told to."""

    def __init__(self, name: str = "scribe") -> None:
        self._name = name
        self.offered: list[str] = []
        self.taken: dict[tuple[str, str], tuple[History, list[Said]]] = {}
        self.chunks: list[int] = []
        self.failures: list[Exception] = []
        self.fails_for: dict[str, Exception] = {}
        self.known: dict[Who, str] = {}
        self.forgotten: list[Who] = []
        self.on_profile: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return self._name

    def ingest(self, history: History, said: Iterable[Sequence[Said]]) -> None:
        self.offered.append(history.key)
        whole: list[Said] = []
        for chunk in said:
            self.chunks.append(len(chunk))
            whole += chunk
        if self.failures:
            raise self.failures.pop(0)
        if history.key in self.fails_for:
            raise self.fails_for[history.key]
        self.taken.setdefault((history.who.tenant, history.key), (history, whole))

    def profile(self, who: Who, budget: int) -> Profile:
        self.on_profile()
        text = self.known.get(who, "")
        if not text:
            return Profile("", 0)
        source = Source("earlier", f"m-{who.user_id}", 7)
        fact = Fact(id="f1", kind=FactKind.FACT, text=text, source=source, since_us=1)
        return Profile(text, len(text) // 4, (fact,))

    def search(self, who: Who, query: str, k: int) -> Sequence[Recalled]:
        text = self.known.get(who, "")
        if query.lower() not in text.lower():
            return []
        return [Recalled(text=text, score=1.0, time_us=1, kind=FactKind.FACT)][:k]

    def facts(self, who: Who) -> Sequence[Fact]:
        return self.profile(who, 1_000).facts

    def forget(self, who: Who, session_id: str | None = None, position: int | None = None) -> int:
        self.forgotten.append(who)
        return int(self.known.pop(who, None) is not None)

    def close(self) -> None:
        pass

    def texts(self, tenant: str, key: str) -> list[object]:
        """What a conversation said."""
        return [one.message.content for one in self.taken[tenant, key][1]]


class Ledger(Scribe):
    """The same in a file that outlives its process: each conversation is a line, whole or not at all."""

    def __init__(self, path: Path) -> None:
        super().__init__("ledger")
        self._path = path

    def ingest(self, history: History, said: Iterable[Sequence[Said]]) -> None:
        texts = [str(one.message.content) for chunk in said for one in chunk]
        if any(line["key"] == history.key for line in self.lines()):
            return
        with self._path.open("ab") as file:
            line = {"key": history.key, "user": history.who.user_id, "texts": texts}
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, object]]:
        """Everything it has."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_bytes().splitlines()]


_: type[MemoryEngine] = Scribe
