"""The task that ends what nobody has touched for too long: sessions, frames, suspensions; and lets go what ended long ago."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from limpet import limits
from limpet.engine.tasks import Beat, Task
from limpet.frames.state_index import StateIndex
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions
from limpet.sessions.requests import Settings

if TYPE_CHECKING:
    from limpet.engine.retaining import Place, Retaining


class Expiring:
    """Ends sessions that were idle for `idle_s` seconds (None: none), and frames whose time is up.

    Sessions that ended are let go after `keep_days` days (None: never), by what `retaining` gives for a tenant.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        idle_s: float | None = limits.IDLE_TIMEOUT_S,
        keep_days: float | None = None,
        retaining: Callable[[str], Retaining] | None = None,
    ) -> None:
        self._engine = engine
        self._idle_s = idle_s
        self._keep_days = keep_days
        self._retaining = retaining
        self._looked_us: dict[str, int] = {}
        self._retained_us: dict[str, int] = {}
        self._came_to: dict[str, Place] = {}

    @property
    def name(self) -> str:
        """What it is called."""
        return "expire"

    def due(self, tenant: str) -> bool:
        """Whether the last look is a while ago."""
        return self._ago(self._looked_us.get(tenant), limits.EXPIRE_EVERY_S)

    def _ago(self, looked_us: int | None, every_s: float) -> bool:
        every_us = int(every_s * 1_000_000)
        return looked_us is None or abs(self._engine.now_us() - looked_us) >= every_us

    def step(self, tenant: str, beat: Beat) -> bool:
        """End what is over."""
        beat()
        settings = Settings(tenant=tenant)
        if self._idle_s is not None:
            Sessions(self._engine, settings, self._engine.factory).expire(idle_s=self._idle_s)
        StateIndex(self._engine, settings).expire()
        more = self._let_go(tenant, beat)
        if not more:
            self._looked_us[tenant] = self._engine.now_us()
        return more

    def _let_go(self, tenant: str, beat: Beat) -> bool:
        """Let some of what ended long ago go; return whether there may be more."""
        due = self._ago(self._retained_us.get(tenant), limits.RETAIN_EVERY_S)
        if self._keep_days is None or self._retaining is None or not due:
            return False
        beat()
        came = self._came_to.pop(tenant, None)
        place = self._retaining(tenant).step(self._keep_days, beat, came)
        if place is not None:
            self._came_to[tenant] = place
            return True
        self._retained_us[tenant] = self._engine.now_us()
        return False


_: type[Task] = Expiring
