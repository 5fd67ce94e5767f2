"""Where a walk takes place: a store that can be left in an orderly way or not, and come back to."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

import limpet
from limpet.admin.log import Admin, Events
from limpet.core.values import ids
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings
from limpet.stores.volatile import VolatileStore


class Home(Protocol):
    """A store and the managers over it."""

    @property
    def sessions(self) -> Sessions: ...

    @property
    def events(self) -> Events: ...

    @property
    def admin(self) -> Admin: ...

    def reopen(self) -> None:
        """Leave and come back."""
        ...

    def crash(self) -> None:
        """Come back without having left."""
        ...

    def close(self) -> None: ...


class VolatileHome:
    """A store in RAM. What dies in a crash is the engine: its caches and handles."""

    def __init__(self, settings: Settings, cached: int) -> None:
        self._store = VolatileStore()
        self._settings = settings
        self._cached = cached
        self._open()

    def _open(self) -> None:
        engine = Engine(self._store, factory=ids.SYSTEM_FACTORY, cached_sessions=self._cached)
        service = SessionService(engine, self._settings)
        self.sessions = Sessions(service)
        self.events = Events(service)
        self.admin = Admin(engine, self._settings.tenant)

    def reopen(self) -> None:
        self._open()

    def crash(self) -> None:
        self._open()

    def close(self) -> None:
        self._store.close()


class SQLiteHome:
    """A store on a file. After a crash, life goes on with the files as they were at that moment."""

    def __init__(self, folder: Path, settings: Settings, cached: int) -> None:
        self._folder = folder
        self._settings = settings
        self._cached = cached
        self._crashes = 0
        self._open()

    def _path(self) -> Path:
        return self._folder / f"life-{self._crashes}" / "state.db"

    def _open(self) -> None:
        self._path().parent.mkdir(exist_ok=True)
        self._lp = limpet.connect(
            self._path(),
            max_messages_per_session=self._settings.max_messages_per_session,
            max_sessions_in_memory=self._settings.max_sessions_in_memory,
            cached_sessions=self._cached,
        )
        self.sessions, self.events, self.admin = self._lp.sessions, self._lp.events, self._lp.admin

    def reopen(self) -> None:
        self._lp.close()
        self._open()

    def crash(self) -> None:
        before, old = self._path(), self._lp
        self._crashes += 1
        self._path().parent.mkdir()
        for part in ("", "-wal", "-anchor"):
            shutil.copy(f"{before}{part}", f"{self._path()}{part}")
        old.close()
        shutil.rmtree(before.parent)
        self._open()

    def close(self) -> None:
        self._lp.close()
