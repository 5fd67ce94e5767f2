"""A fake memory engine: records what it is given, and fails when it is told to. Needs no pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from limpet.core.values.memory_records import (
    Fact,
    FactKind,
    History,
    Profile,
    Recalled,
    Said,
    Source,
    Who,
)
from limpet.memory.port import MemoryEngine


class Scribe:
    """Keeps every conversation that it was handed, once by key. What is `known` of a user is set by hand.

    Its books name a conversation by session and generation ("trip#0"), which a key begins with. It raises what
    is in `failures`, one after another, then what `fails_for` has for a conversation.
    """

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
        """What it is called."""
        return self._name

    def ingest(self, history: History, said: Iterable[Sequence[Said]]) -> None:
        """Take a conversation, or fail as it was told to."""
        named = f"{history.session_id}#{history.generation}"
        self.offered.append(named)
        whole: list[Said] = []
        for chunk in said:
            self.chunks.append(len(chunk))
            whole += chunk
        if self.failures:
            raise self.failures.pop(0)
        if named in self.fails_for:
            raise self.fails_for[named]
        before = self.taken.get((history.who.tenant, named))
        if before is None or before[0].key != history.key:
            self.taken[history.who.tenant, named] = (history, whole)

    def profile(self, who: Who, budget: int) -> Profile:  # noqa: ARG002 - the port's parameter
        """Return what it was told of a user."""
        self.on_profile()
        text = self.known.get(who, "")
        if not text:
            return Profile("", 0)
        source = Source("earlier", f"m-{who.user_id}", 7)
        fact = Fact(id="f1", kind=FactKind.FACT, text=text, source=source, since_us=1)
        return Profile(text, len(text) // 4, (fact,))

    def search(self, who: Who, query: str, k: int) -> Sequence[Recalled]:
        """Return what it was told of a user, if that has the words of the query."""
        text = self.known.get(who, "")
        if query.lower() not in text.lower():
            return []
        return [Recalled(text=text, score=1.0, time_us=1, kind=FactKind.FACT)][:k]

    def facts(self, who: Who) -> Sequence[Fact]:
        """Return the one fact that it knows."""
        return self.profile(who, 1_000).facts

    def forget(self, who: Who, session_id: str | None = None, position: int | None = None) -> int:  # noqa: ARG002 - the port's parameters
        """Forget what it was told of a user."""
        self.forgotten.append(who)
        return int(self.known.pop(who, None) is not None)

    def close(self) -> None:
        """There is nothing to give back."""

    def texts(self, tenant: str, named: str) -> list[object]:
        """What a conversation said."""
        return [one.message.content for one in self.taken[tenant, named][1]]


_: type[MemoryEngine] = Scribe
