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
from limpet.core.values.session_state import WindowPolicy
from limpet.memory.port import MemoryEngine
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings, Write
from limpet.stores import urls
from limpet.wiring.background import Background, BackgroundOptions
from limpet.wiring.store_opener import close_engine, open_engine, open_index_store, start_session_files

if TYPE_CHECKING:
    from limpet.sessions.session_files import SessionFiles

_log = logging.getLogger("limpet.files")


class SessionManager(Sessions):
    """Sessions of many users. `connect(…).sessions` is one; made by itself it opens a store in a folder.

    `base_path` is created if it is missing. `format` is "json", for compatibility. With
    write="deferred", messages are on their way when add_message returns and on disk when save_session
    does; otherwise they are on disk at once and `auto_save_interval` has nothing left to do.
    """

    base_path = ""
    _finish: weakref.finalize[..., SessionService] | None = None
    _background: Background | None = None

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
        options = locals()
        settings = Settings(**{name: options[name] for name in Settings.__struct_fields__})
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
        files = start_session_files(engine, auto_save_interval)
        super().__init__(SessionService(engine, settings, bootstrap=self._background.bootstrap, files=files))
        # Whoever follows the document never closes a manager; leaving it open must lose nothing. Handles need no
        # manager, so it is closed when the last handle is gone, too.
        self._finish = weakref.finalize(self._service, _close_in_thread, engine, files)

    def close(self) -> None:
        """Wait for deferred writes, and close what this manager opened."""
        try:
            self.flush()
        finally:
            if self._background is not None:
                self._background.close()
            if self._finish is not None and self._finish.detach() is not None:
                close_engine(self._service.engine, self._service.files)

    def __enter__(self) -> SessionManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ClientSessions(SessionManager):
    """The manager of an open client, which closes its store."""

    def __init__(self, service: SessionService) -> None:
        Sessions.__init__(self, service)


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
