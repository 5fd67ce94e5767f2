"""What works beside the callers of an open store: long-term memory, background tasks, and a thread for them."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast import errors, limits
from holdfast.engine.engine import Engine
from holdfast.engine.shrinking import Summarizer
from holdfast.memory.port import MemoryEngine
from holdfast.memory.shelf import Shelf
from holdfast.values import estimate
from holdfast.wiring.stores import open_shelf

if TYPE_CHECKING:
    from holdfast.engine.bootstrapping import Bootstrap
    from holdfast.engine.tasks import Task
    from holdfast.engine.worker import Worker

STOP_S = 5.0
"""How long closing waits for a step that is under way; it is taken up again by whoever comes next."""


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What a store is opened with beside its sessions. `memory`: an engine, or True for the built-in one."""

    memory: MemoryEngine | bool | None = None
    bootstrap_tokens: int = limits.BOOTSTRAP_TOKENS
    bootstrap_timeout_s: float = limits.BOOTSTRAP_TIMEOUT_S
    bootstrap_language: str = "en"
    summarizer: Summarizer | None = None
    idle_timeout_s: float | None = limits.IDLE_TIMEOUT_S
    worker: bool = False


class Background:
    """The extras of one open store."""

    def __init__(self, engine: Engine, url: str | Path, extras: Extras) -> None:
        self._engine = engine
        self._url = url
        self._extras = extras
        self._mutex = threading.Lock()
        self._own: tuple[MemoryEngine, Shelf] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.bootstrap = self._bootstrap()

    def _bootstrap(self) -> Bootstrap | None:
        extras = self._extras
        if not extras.memory:
            return None
        from holdfast.engine.bootstrapping import Bootstrap  # noqa: PLC0415 - only whoever asks pays for it

        return Bootstrap(
            self.memory(),
            tokens=extras.bootstrap_tokens,
            timeout_s=extras.bootstrap_timeout_s,
            language=extras.bootstrap_language,
        )

    def memory(self) -> MemoryEngine:
        """Return the engine that was given, or the built-in one, opened when it is first asked for."""
        given = self._extras.memory
        if given is not None and not isinstance(given, bool):
            return given
        with self._mutex:
            if self._own is None:
                shelf = open_shelf(self._url)
                self._own = built_in(shelf), shelf
            return self._own[0]

    def tasks(self) -> list[Task]:
        """Return the background work that there is for this store."""
        from holdfast.engine.expiring import Expiring  # noqa: PLC0415 - as above
        from holdfast.engine.offloading import Offloading  # noqa: PLC0415 - as above
        from holdfast.engine.summarizing import Summarizing  # noqa: PLC0415 - as above

        made: list[Task] = [Expiring(self._engine, idle_s=self._extras.idle_timeout_s)]
        if self._extras.memory:
            made.append(Offloading(self._engine, self.memory()))
        if self._extras.summarizer is not None:
            made.append(Summarizing(self._engine, self._extras.summarizer))
        return made

    def worker(self, tenants: Sequence[str] | None) -> Worker:
        """Return a worker for all of it, which runs when it is told to."""
        from holdfast.engine.worker import Worker  # noqa: PLC0415 - as above

        name = f"{os.uname().nodename}.{os.getpid()}"
        return Worker(self._engine, self.tasks(), tenants=tenants, name=name)

    def start(self, tenant: str) -> None:
        """Work for a tenant in a thread, if that was asked for."""
        if self._extras.worker:
            worker = self.worker((tenant,))
            self._thread = threading.Thread(
                target=worker.run, args=(self._stop,), name="holdfast-worker", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop the thread, and close what was opened here."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
        with self._mutex:
            if self._own is not None:
                for one in self._own:
                    one.close()


def built_in(shelf: Shelf) -> MemoryEngine:
    """Return the built-in engine over a shelf."""
    try:
        module = importlib.import_module("holdfast.memory.builtin")
    except ModuleNotFoundError as error:
        raise errors.Refused(
            "this Holdfast has no memory engine built in.", hint="Give one: connect(memory=engine)."
        ) from error
    return cast("MemoryEngine", module.BuiltIn(shelf, count=estimate.text_tokens))
