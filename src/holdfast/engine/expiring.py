"""The tasks that end what nobody has touched for too long: sessions, frames, suspensions."""

from __future__ import annotations

from holdfast import limits
from holdfast.engine.engine import Engine
from holdfast.engine.index import StateIndex
from holdfast.engine.requests import Settings
from holdfast.engine.sessions import Sessions
from holdfast.engine.tasks import Beat, Task


class Expiring:
    """Ends sessions that were idle for `idle_s` seconds (None: none), and frames whose time is up."""

    def __init__(self, engine: Engine, *, idle_s: float | None = limits.IDLE_TIMEOUT_S) -> None:
        self._engine = engine
        self._idle_s = idle_s
        self._looked_us: dict[str, int] = {}

    @property
    def name(self) -> str:
        """What it is called."""
        return "expire"

    def due(self, tenant: str) -> bool:
        """Whether the last look is a while ago."""
        looked = self._looked_us.get(tenant)
        every_us = int(limits.EXPIRE_EVERY_S * 1_000_000)
        return looked is None or abs(self._engine.now_us() - looked) >= every_us

    def step(self, tenant: str, beat: Beat) -> bool:
        """End what is over."""
        beat()
        settings = Settings(tenant=tenant)
        if self._idle_s is not None:
            Sessions(self._engine, settings, self._engine.factory).expire(idle_s=self._idle_s)
        StateIndex(self._engine, settings).expire()
        self._looked_us[tenant] = self._engine.now_us()
        return False


_: type[Task] = Expiring
