"""`connect`, `connect_async` and `SessionManager`: the only package that names adapters.

It supplies the real clock and randomness.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec
from urllib.parse import quote

from limpet import errors, limits
from limpet.admin.erasure import ErasureService
from limpet.admin.log import Admin, Events
from limpet.core.values.context import HandleType
from limpet.core.values.session_state import WindowPolicy
from limpet.frames.handle_content import Resolver
from limpet.frames.state_index import StateIndex
from limpet.llm.port import Model
from limpet.memory.port import MemoryEngine
from limpet.memory.vectors.embedder import Embedder
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings, Write
from limpet.sessions.windows import Summarizer
from limpet.stores import urls
from limpet.wiring.background import Background, BackgroundOptions
from limpet.wiring.store_opener import StoreHandle, open_store

if TYPE_CHECKING:
    from limpet.jobs.worker import Worker
    from limpet.memory.api import Memory
    from limpet.memory.archive import Archive
    from limpet.wiring.async_client import PendingConnection

P = ParamSpec("P")

_log = logging.getLogger("limpet.files")


class Limpet:
    """An open store, for blocking callers. Made by `connect`; close it, or use it in a with statement."""

    def __init__(self, opened: StoreHandle, settings: Settings, background: Background) -> None:
        self._opened = opened
        self._settings = settings
        self._background = background
        self._tenant = settings.tenant
        # Of two threads that use `index` first, each may make one: their resolvers are the same.
        self._resolvers: dict[HandleType, Resolver] = {}
        files = opened.start_files(settings.auto_save_interval)
        self._service = SessionService(opened.engine, settings, bootstrap=background.bootstrap, files=files)
        self.sessions: SessionManager = ClientSessions(self._service)
        background.start(settings.tenant, check_index=not opened.reading_only)

    @functools.cached_property
    def index(self) -> StateIndex:
        """The frames of the tenant."""
        return StateIndex(self._opened.engine, self._settings, resolvers=self._resolvers)

    @functools.cached_property
    def events(self) -> Events:
        """The log of the tenant."""
        return Events(self._service)

    @functools.cached_property
    def admin(self) -> Admin:
        """Erasure, retention, import, export, backup, migration and checks."""
        retaining = functools.partial(self._background.retention, self._tenant, self._service)
        return Admin(self._opened.engine, self._tenant, self._erasure, open_store, retaining)

    @functools.cached_property
    def _erasure(self) -> ErasureService:
        return self._background.erasure_service(self._tenant, self._service)

    @functools.cached_property
    def archive(self) -> Archive:
        """Full-text search over all messages. Loaded and opened at its first use."""
        return self._background.archive(self._tenant, self._service.wait_for_writes)

    @functools.cached_property
    def memory(self) -> Memory:
        """Long-term memory: the facts about users. Loaded and opened at its first use."""
        from limpet.memory.api import Memory  # noqa: PLC0415 - see the docstring

        engine, memory = self._opened.engine, self._background.memory
        return Memory(engine, self._tenant, memory, archive=self.archive, erasing=self._erasure)

    def worker(self, *, every_tenant: bool = False) -> Worker:
        """Return a worker that does the background work of this store, for its tenant or for all."""
        return self._background.worker(None if every_tenant else (self._tenant,))

    def close(self) -> None:
        """Wait for deferred writes, let the worker thread finish within its time limit, and close. Idempotent."""
        with contextlib.ExitStack() as closing:
            closing.callback(self._opened.close)
            closing.callback(self._background.close)
            self.sessions.flush()

    def __enter__(self) -> Limpet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Limpet {self._opened.engine.store.durability}>"


def connect(
    url: str | Path = "state.db",
    *,
    tenant: str = "default",
    max_messages_per_session: int = 5000,
    max_sessions_in_memory: int = 20,
    auto_save_interval: float = 60,
    write: Write = "durable",
    cached_sessions: int = limits.CACHED_SESSIONS,
    cached_trees: int | None = None,
    policy: WindowPolicy | None = None,
    memory: MemoryEngine | bool | None = None,
    bootstrap_tokens: int = limits.BOOTSTRAP_TOKENS,
    bootstrap_timeout_s: float = limits.BOOTSTRAP_TIMEOUT_S,
    bootstrap_language: str = "en",
    model: Model | None = None,
    summarizer: Summarizer | None = None,
    embedder: Embedder | bool | None = None,
    idle_timeout_s: float | None = limits.IDLE_TIMEOUT_S,
    keep_ended_days: float | None = None,
    worker: bool = False,
) -> Limpet:
    """Open a store, which is created if it does not exist.

    The store is a path (SQLite), sqlite:///path, files:///folder or volatile:, or on a server
    postgresql://user@host/database (limpet[postgres]) or redis://host (limpet[redis]).
    `policy` is the window policy of new sessions that are not given their own; it is stored with each of them.
    `cached_trees` is how many frame trees are kept in memory; None: LIMPET_CACHED_TREES, or 1,000.
    `memory` is an engine of long-term memory (True: the built-in one). New sessions of a user begin with what the
    engine knows of the user, and the worker sends ended sessions to it. `model` writes summaries and extracts facts;
    a `summarizer` writes the summaries instead. `embedder` (True: that of limpet[embeddings]) adds search by meaning.
    Sessions without activity for `idle_timeout_s` seconds are ended (None: never). Sessions that ended
    `keep_ended_days` days ago are erased, once memory has received them and nothing refers to them (None: never).
    All of that runs in the background: with `worker` in a thread of this process, else in `lp.worker()` or
    `limpet worker`. If opening fails, a typed error names the fix, and the store is unchanged.
    """
    return _checked_opening(locals())()


def connect_for_reading(url: str | Path, *, tenant: str = "default") -> Limpet:
    """Open a store for a caller that only reads: no files of sessions are written."""
    opened = StoreHandle(url, tenant, looking=True)
    return _client_of(opened, Settings(tenant=tenant), BackgroundOptions())


def _checked_opening(options: Mapping[str, Any]) -> Callable[[], Limpet]:
    """Return a function that opens a store by the arguments of `connect`; raise InvalidRequest for a wrong argument."""
    extras = BackgroundOptions.from_arguments(options)
    settings = Settings(**{name: options[name] for name in Settings.__struct_fields__})

    def open_() -> Limpet:
        sessions, trees = options["cached_sessions"], options["cached_trees"]
        opened = StoreHandle(options["url"], settings.tenant, cached_sessions=sessions, cached_trees=trees)
        return _client_of(opened, settings, extras)

    return open_


def _client_of(opened: StoreHandle, settings: Settings, extras: BackgroundOptions) -> Limpet:
    """Return the client of an open store; if that fails, close the store."""
    try:
        return Limpet(opened, settings, Background(opened.engine, opened.index_store, extras))
    except BaseException:
        opened.close()
        raise


def _async_opening(connect: Callable[P, Limpet]) -> Callable[P, PendingConnection]:
    @functools.wraps(connect, assigned=("__annotations__", "__module__"))
    def _run(*args: P.args, **kwargs: P.kwargs) -> PendingConnection:
        """Open a store for async callers: `async with connect_async(…) as lp`, or await it and close it."""
        # Imported here: asyncio takes longer to import than all of Limpet.
        import inspect  # noqa: PLC0415

        from limpet.wiring.async_client import PendingConnection  # noqa: PLC0415

        given = inspect.signature(connect).bind(*args, **kwargs)
        given.apply_defaults()
        return PendingConnection(_checked_opening(given.arguments))

    _run.__name__ = _run.__qualname__ = "connect_async"
    return _run


connect_async = _async_opening(connect)


class SessionManager(Sessions):
    """Manages sessions of many users. `connect(…).sessions` is a SessionManager; the constructor opens a store in a folder.

    `base_path` is created if it is missing. `format` is "json", for compatibility. With write="deferred" a message is
    submitted when add_message returns, and on disk when save_session returns. Otherwise it is on disk when add_message
    returns, and `auto_save_interval` has no effect.
    """

    base_path = ""
    _opened: StoreHandle
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
            memory=memory, bootstrap_tokens=bootstrap_tokens, bootstrap_timeout_s=bootstrap_timeout_s,
            bootstrap_language=bootstrap_language,
        )  # fmt: skip
        self.base_path = str(base_path)
        self._opened = opened = StoreHandle(_store_of(folder), tenant, warns=False)
        try:
            self._background = Background(opened.engine, opened.index_store, extras)
            self._background.start(tenant, check_index=False)
            bootstrap, files = self._background.bootstrap, opened.start_files(auto_save_interval)
            super().__init__(SessionService(opened.engine, settings, bootstrap=bootstrap, files=files))
        except BaseException:
            opened.close()
            raise
        # Programs written for Penguin never close a manager, and must lose nothing. Handles keep the service alive, so
        # the store is closed after the last handle is collected.
        self._finish = weakref.finalize(self._service, _close_in_thread, opened)

    def close(self) -> None:
        """Wait for deferred writes, and close what this manager opened."""
        with contextlib.ExitStack() as closing:
            if self._finish is not None and self._finish.detach() is not None:
                closing.callback(self._opened.close)
            if self._background is not None:
                closing.callback(self._background.close)
            self.flush()

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
    """Return the path or URL of a folder's store: a file store, unless the folder has a SQLite store already."""
    database = folder / "state.db"
    return database if database.exists() else f"files:{quote(str(folder))}"


def _close_in_thread(opened: StoreHandle) -> None:
    # The garbage collector may run in a thread that holds the write lock of the same file, so another thread closes
    # the store, unless the interpreter is ending.
    if threading.main_thread().is_alive():
        threading.Thread(target=_close_quietly, args=(opened,), name="limpet-close").start()
    else:
        _close_quietly(opened)


def _close_quietly(opened: StoreHandle) -> None:
    # There is no caller to raise an error to.
    try:
        opened.close()
    except (errors.Error, OSError) as error:
        _log.warning("a manager that was left open could not be closed: %s", error)
