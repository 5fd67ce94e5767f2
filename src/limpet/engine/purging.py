"""Erasing in the background what was deleted: sessions that `delete_session` has hidden."""

from __future__ import annotations

from collections.abc import Sequence

from limpet import limits
from limpet.engine.erasing import Erasing
from limpet.engine.pending import todos, unfinished
from limpet.engine.tasks import Beat
from limpet.engine.telling import Elsewhere, Hook
from limpet.runtime.engine import Engine


class PurgeTask:
    """Erases in the background what delete_session has hidden."""

    def __init__(
        self,
        engine: Engine,
        hooks: Sequence[Hook] = (),
        elsewhere: Elsewhere | None = None,
        words: Sequence[Hook] = (),
    ) -> None:
        self._engine = engine
        self._hooks = hooks
        self._elsewhere = elsewhere
        self._words = words
        self._seen: dict[str, int] = {}
        self._waiting: dict[str, set[str]] = {}

    @property
    def name(self) -> str:
        """What it is called."""
        return "purge"

    def due(self, tenant: str) -> bool:
        """Whether the log has gone on, or something is left of an erasure."""
        pending = self._engine.store.pending()
        if pending is not None and (
            unfinished(pending) or any(each.tenant == tenant for each in todos(pending))
        ):
            return True
        seen = self._seen.get(tenant, -1)
        return seen < 0 or self._engine.store.wait(tenant, seen, 0)

    def step(self, tenant: str, beat: Beat) -> bool:
        """Erase some deleted sessions; return whether there may be more. What only waits is told of once."""
        beat()
        head = self._engine.store.head(tenant)
        erasing = Erasing(
            self._engine, tenant, self._hooks, elsewhere=self._elsewhere, words=self._words
        )
        before = self._waiting.get(tenant, set[str]())
        receipt = erasing.deleted(limits.PURGE_BATCH_SESSIONS, before)
        self._waiting[tenant] = erasing.waiting(before)
        if receipt.sessions or self._waiting[tenant] - before:
            return True
        self._seen[tenant] = head
        return False
