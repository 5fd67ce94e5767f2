"""`connect` and `connect_async`: the only package that names adapters.

It supplies the real clock and randomness.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec

from limpet import errors, limits
from limpet.admin.log import Admin, Events
from limpet.core.values.session_state import WindowPolicy
from limpet.frames.state_index import StateIndex
from limpet.llm.port import Model
from limpet.memory.port import MemoryEngine
from limpet.memory.vectors.embedder import Embedder
from limpet.sessions.manager import SessionService
from limpet.sessions.requests import Settings, Write
from limpet.sessions.windows import Summarizer
from limpet.wiring.background import Background, BackgroundOptions
from limpet.wiring.session_manager import ClientSessions, SessionManager
from limpet.wiring.store_opener import StoreHandle, open_store

if TYPE_CHECKING:
    from limpet.jobs.worker import Worker
    from limpet.memory.api import Memory
    from limpet.memory.archive import Archive
    from limpet.wiring.async_client import PendingConnection

P = ParamSpec("P")


class Limpet:
    """An open store, for blocking callers. Made by `connect`; close it, or use it in a with statement."""

    def __init__(self, opened: StoreHandle, settings: Settings, background: Background) -> None:
        engine = opened.engine
        self._opened = opened
        self._background = background
        self._tenant = settings.tenant
        files = opened.start_files(settings.auto_save_interval)
        self._service = SessionService(engine, settings, bootstrap=background.bootstrap, files=files)
        self.sessions: SessionManager = ClientSessions(self._service)
        self.index = StateIndex(engine, settings)
        self.events = Events(self._service)
        self._erasing = background.erasure_service(settings.tenant, self._service)
        retaining = functools.partial(background.retention, settings.tenant, self._service)
        self.admin = Admin(engine, settings.tenant, self._erasing, open_store, retaining)
        with contextlib.suppress(errors.Unavailable, errors.Corrupt):
            self._erasing.finish_local()
        background.check()
        background.start(settings.tenant)

    @functools.cached_property
    def archive(self) -> Archive:
        """Everything that was said, to be searched. Loaded and opened when it is first used."""
        return self._background.archive(self._tenant, self._service.wait_for_writes)

    @functools.cached_property
    def memory(self) -> Memory:
        """What is known of users. Loaded and opened when it is first used."""
        from limpet.memory.api import Memory  # noqa: PLC0415 - as said

        return Memory(
            self._opened.engine, self._tenant, self._background.memory, archive=self.archive,
            erasing=self._erasing,
        )  # fmt: skip

    def worker(self, *, every_tenant: bool = False) -> Worker:
        """Return a worker for the background work of this store: `run_once()`, `run(stop)`, `status()`."""
        return self._background.worker(None if every_tenant else (self._tenant,))

    def close(self) -> None:
        """Wait for deferred writes, give the worker of `worker=True` its last seconds, then close; twice is fine."""
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
    """Open a store, creating it if nothing is there: a path (SQLite), sqlite:///path, files:///folder, or volatile:.

    Or one on a server: postgresql://user@host/database (limpet[postgres]), redis://host (limpet[redis]).
    `policy` is what new sessions get that are not given their own; it is kept with each of them.
    `cached_trees` is how many frame trees are kept in memory; None: LIMPET_CACHED_TREES, or 1,000.
    `memory` is an engine of long-term memory (True: the built-in one): new sessions of a user begin with what it
    knows, and the worker hands ended ones to it. `model` writes summaries and finds facts; `summarizer` writes
    summaries in its place; `embedder` (True: the one of limpet[embeddings]) searches by meaning, too;
    `idle_timeout_s` ends sessions that nobody touched (None: never); `keep_ended_days` lets those go that ended so long
    ago, once memory has them and nothing needs them (None: never). All of that happens in the background: with
    `worker`, by a thread of this process; otherwise by `lp.worker()` or `limpet worker`.
    Raises a typed error that names the fix; the store is left as it was.
    """
    return _checked_opening(locals())()


def connect_for_reading(url: str | Path, *, tenant: str = "default") -> Limpet:
    """Open a store as `connect` does, for who only looks: no files of sessions are written."""
    opened = StoreHandle(url, tenant, cached_sessions=limits.CACHED_SESSIONS, looking=True)
    return _client_of(opened, Settings(tenant=tenant), BackgroundOptions())


def _checked_opening(options: Mapping[str, Any]) -> Callable[[], Limpet]:
    """Return a function that opens what the arguments of `connect` name; raise InvalidRequest for a wrong one."""
    extras = BackgroundOptions.from_arguments(options)
    settings = Settings(**{name: options[name] for name in Settings.__struct_fields__})

    def open_() -> Limpet:
        sessions, trees = options["cached_sessions"], options["cached_trees"]
        opened = StoreHandle(options["url"], settings.tenant, cached_sessions=sessions, cached_trees=trees)
        return _client_of(opened, settings, extras)

    return open_


def _client_of(opened: StoreHandle, settings: Settings, extras: BackgroundOptions) -> Limpet:
    """Return what callers hold of an open store, which is closed if that can't be made."""
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
