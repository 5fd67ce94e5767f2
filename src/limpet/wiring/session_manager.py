"""The session manager that opens its own store in a folder, or uses the store of a client."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from limpet import errors, limits
from limpet.core.values.session_state import SessionState, WindowPolicy
from limpet.memory.port import MemoryEngine
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions
from limpet.sessions.requests import Settings, Write
from limpet.sessions.session import Session
from limpet.sessions.session_files import RECOVERED_TO_KEY, SessionRecovery
from limpet.stores import urls
from limpet.wiring.background import Background, BackgroundOptions
from limpet.wiring.store_opener import close_engine, open_engine, open_index_store, start_session_files

if TYPE_CHECKING:
    from limpet.memory.profile import Bootstrap
    from limpet.sessions.session_files import SessionFiles

_log = logging.getLogger("limpet.files")


class SessionManager(Sessions):
    """Sessions of many users. `connect(…).sessions` is one; made by itself it opens a store in a folder.

    `base_path` is created if it is missing. `format` is "json", for compatibility. With
    write="deferred", messages are on their way when add_message returns and on disk when save_session
    does; otherwise they are on disk at once and `auto_save_interval` has nothing left to do.
    """

    _finish: weakref.finalize[..., SessionManager] | None
    _background: Background | None
    _files: SessionFiles | None

    def __init__(
        self,
        base_path: str | Path = "conversations",
        max_messages_per_session: int = 5000,
        max_sessions_in_memory: int = 20,
        format: str = "json",  # noqa: A002 - the document's name
        auto_save_interval: float = 60,
        *,
        write: Write = "durable",
        tenant: str = "default",
        policy: WindowPolicy | None = None,
        memory: MemoryEngine | bool | None = None,
        bootstrap_tokens: int = limits.BOOTSTRAP_TOKENS,
        bootstrap_timeout_s: float = limits.BOOTSTRAP_TIMEOUT_S,
        bootstrap_language: str = "en",
    ) -> None:
        if format != "json":
            raise errors.InvalidRequest(f"format {format!r} is not known.", hint='Use "json".')
        settings = Settings(
            tenant=tenant,
            max_messages_per_session=max_messages_per_session,
            max_sessions_in_memory=max_sessions_in_memory,
            auto_save_interval=auto_save_interval,
            write=write,
            policy=policy,
        )
        if isinstance(base_path, str):
            _check_folder(base_path)
        folder = urls.resolve_path(base_path)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise errors.InvalidRequest(f"{folder} can't be a folder of conversations: {error}.") from error
        extras = BackgroundOptions(
            memory=memory,
            bootstrap_tokens=bootstrap_tokens,
            bootstrap_timeout_s=bootstrap_timeout_s,
            bootstrap_language=bootstrap_language,
        )
        url = _store_of(folder)
        engine = open_engine(url, tenant)
        try:
            shelf = functools.cache(lambda: open_index_store(url))
            self._background = Background(engine, shelf, extras)
            with contextlib.suppress(errors.Unavailable, errors.Corrupt):
                self._background.erasure_service(tenant).finish_local()
        except BaseException:
            engine.close()
            raise
        self.base_path = str(base_path)
        super().__init__(engine, settings, bootstrap=self._background.bootstrap)
        self._files = start_session_files(engine, auto_save_interval)
        # Whoever follows the document never closes a manager; leaving it open must lose nothing.
        self._finish = weakref.finalize(self, _close_in_thread, engine, self._files)

    @classmethod
    def from_engine(
        cls, engine: Engine, settings: Settings, bootstrap: Bootstrap | None = None, files: SessionFiles | None = None
    ) -> SessionManager:
        """Return a manager over an engine that somebody else opened and will close."""
        manager = cls.__new__(cls)
        manager.base_path = ""
        Sessions.__init__(manager, engine, settings, bootstrap=bootstrap)
        manager._finish = manager._background = None
        manager._files = files
        return manager

    def load_session(self, session_id: str) -> Session | None:
        """Return the session by that id, which becomes the current one; None if there is none.

        If its data is damaged, it is restored from another copy that verifies; else this returns its recovery
        session, which names it and holds every message that could be read, and from then on that one. Loading does not
        read the whole history: damage further back is met by the first read that comes to it, and the handle goes on
        in the recovery session then. Raises EventsLost: nothing of what is there is damaged then.
        """
        try:
            state = self._find(session_id)
        except errors.Corrupt as error:
            state = self._recover(session_id, error)
        if state is None:
            return None
        if RECOVERED_TO_KEY in state.metadata:
            state = self._recovery().replacement(state) or state
        tenant = self._settings.tenant
        return self._remember(Session(self, self._engine, tenant, state, self._recover))

    def _recovery(self) -> SessionRecovery:
        return SessionRecovery(self, self._engine, self._settings.tenant, self._files)

    def _recover(self, session_id: str, damage: errors.Corrupt) -> SessionState:
        if isinstance(damage, errors.EventsLost):
            raise damage
        recovering = self._recovery()
        if not recovering.has_complete_recovery(session_id):
            if recovering.is_sound(session_id):
                # What was met lies elsewhere.
                raise damage
            if recovering.rebuild_from_copy() and recovering.is_sound(session_id):
                return self.get_session(session_id).state
        return recovering.recover(session_id, damage).state

    def save_session(self, session: Session | None = None) -> bool:
        """Wait until all that was written to the session is on disk, or raise why not. False if there is no session.

        In a folder of files the session's own file is written, too, unless it is long and little is new.
        """
        if not super().save_session(session):
            return False
        chosen = session or self.current_session
        if self._files is not None and chosen is not None:
            self._files.write_after_save(self._settings.tenant, chosen.id)
        return True

    def delete_session(self, session_id: str, *, key: str | None = None) -> bool:
        """Delete the session: no verb finds it any more. False if there was none."""
        gone = super().delete_session(session_id, key=key)
        if gone and self._files is not None:
            self._files.write_after_save(self._settings.tenant, session_id)
        return gone

    def close(self) -> None:
        """Wait for deferred writes, and close what this manager opened."""
        try:
            self.flush()
        finally:
            if self._background is not None:
                self._background.close()
            if self._finish is not None and self._finish.detach() is not None:
                close_engine(self._engine, self._files)

    def __enter__(self) -> SessionManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_folder(name: str) -> None:
    urls.check_path(name)
    if urls.scheme_of(name):
        raise errors.InvalidRequest(
            f"{urls.without_password(name)} is a URL, and base_path is a folder.",
            hint="Open it with limpet.connect(url); its .sessions is a SessionManager.",
        )


def _store_of(folder: Path) -> str | Path:
    """Return the store of a folder of conversations: files, unless it holds a SQLite store already."""
    database = folder / "state.db"
    return database if database.exists() else f"files:{quote(str(folder))}"


def _close_in_thread(engine: Engine, files: SessionFiles | None) -> None:
    # A collected manager is closed from whichever thread the collector runs in, which may hold the
    # turn of the same file; so another one does it, unless the interpreter is ending.
    if threading.main_thread().is_alive():
        threading.Thread(target=_close_quietly, args=(engine, files), name="limpet-close").start()
    else:
        _close_quietly(engine, files)


def _close_quietly(engine: Engine, files: SessionFiles | None) -> None:
    # There is nobody to raise it to.
    try:
        close_engine(engine, files)
    except (errors.Error, OSError) as error:
        _log.warning("a manager that was left open could not be closed: %s", error)
