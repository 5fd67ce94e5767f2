"""Tasks that expire idle sessions and frames, apply retention, and erase deleted sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from limpet import limits
from limpet.admin.erasure import NO_HOOKS, ErasureHooks, ErasureService, decode_hook_calls, has_local_work
from limpet.frames.queries import expire_frames
from limpet.jobs.tasks import Heartbeat, Task
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings

if TYPE_CHECKING:
    from limpet.admin.retention import Retention, RetentionPosition


class ExpireTask(Task):
    """Ends sessions that were idle for `idle_s` seconds (None: none), and fails overdue frames.

    Ended sessions are erased after `keep_days` days (None: never) by the Retention that `retaining` makes.
    """

    name = "expire"

    def __init__(
        self,
        engine: Engine,
        *,
        idle_s: float | None = limits.IDLE_TIMEOUT_S,
        keep_days: float | None = None,
        retaining: Callable[[str], Retention] | None = None,
    ) -> None:
        self._engine = engine
        self._idle_s = idle_s
        self._keep_days = keep_days
        self._make_retention = retaining
        self._looked_us: dict[str, int] = {}
        self._retained_us: dict[str, int] = {}
        self._retention_positions: dict[str, RetentionPosition] = {}

    def due(self, tenant: str) -> bool:
        return self._interval_is_over(self._looked_us.get(tenant), limits.EXPIRE_EVERY_S)

    def _interval_is_over(self, looked_us: int | None, every_s: float) -> bool:
        every_us = int(every_s * 1_000_000)
        return looked_us is None or abs(self._engine.now_us() - looked_us) >= every_us

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        """End sessions and frames, then erase a batch of old sessions."""
        beat()
        settings = Settings(tenant=tenant)
        if self._idle_s is not None:
            Sessions(SessionService(self._engine, settings, factory=self._engine.factory)).expire(idle_s=self._idle_s)
        expire_frames(self._engine, tenant, self._engine.now_us())
        more = self._apply_retention(tenant, beat)
        if not more:
            self._looked_us[tenant] = self._engine.now_us()
        return more

    def _apply_retention(self, tenant: str, beat: Heartbeat) -> bool:
        """Erase a batch of sessions that ended long ago; return whether there may be more."""
        due = self._interval_is_over(self._retained_us.get(tenant), limits.RETAIN_EVERY_S)
        if self._keep_days is None or self._make_retention is None or not due:
            return False
        beat()
        after = self._retention_positions.pop(tenant, None)
        position = self._make_retention(tenant).step(self._keep_days, beat, after)
        if position is None:
            self._retained_us[tenant] = self._engine.now_us()
        else:
            self._retention_positions[tenant] = position
        return position is not None


class PurgeTask(Task):
    """Erases deleted sessions in the background, and repeats pending hook calls."""

    name = "purge"

    def __init__(self, engine: Engine, hooks: ErasureHooks = NO_HOOKS) -> None:
        self._engine = engine
        self._hooks = hooks
        self._seen: dict[str, int] = {}
        self._waiting: dict[str, set[str]] = {}

    def due(self, tenant: str) -> bool:
        """Whether the feed has new events, or work of an erasure is pending."""
        pending = self._engine.store.pending_erasures()
        calls = () if pending is None else decode_hook_calls(pending)
        if has_local_work(pending) or any(each.tenant == tenant for each in calls):
            return True
        seen = self._seen.get(tenant, -1)
        return seen < 0 or self._engine.store.wait(tenant, seen, 0)

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        """Erase a batch of deleted sessions; return whether there may be more. Sessions that wait for forks are tried once."""
        beat()
        head = self._engine.store.head(tenant)
        erasing = ErasureService(self._engine, tenant, self._hooks)
        before = self._waiting.get(tenant, set[str]())
        receipt = erasing.erase_deleted(limits.PURGE_BATCH_SESSIONS, before)
        self._waiting[tenant] = erasing.remaining_rows(before)
        if receipt.sessions or self._waiting[tenant] - before:
            return True
        self._seen[tenant] = head
        return False
