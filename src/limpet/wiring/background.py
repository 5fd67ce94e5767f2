"""The services of an open store beside sessions: archive, memory, erasure, retention, worker.

Each is imported and opened at its first use.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec

from limpet import errors, limits
from limpet.admin.erasure import ErasureHooks, ErasureService, ExternalMemory, LocalCopies, SessionHandles
from limpet.core.values import messages
from limpet.jobs.cleanup import PurgeTask
from limpet.jobs.tasks import Task, known_engines
from limpet.llm.port import Model
from limpet.memory.index_store import IndexStore, IngestTracker, PairedIndexStore, RecoveringIndexStore
from limpet.memory.port import MemoryEngine
from limpet.memory.vectors import embedder as vectors_embedder
from limpet.memory.vectors.embedder import Embedder
from limpet.runtime.engine import Engine
from limpet.sessions.windows import Summarizer

if TYPE_CHECKING:
    from limpet.admin.retention import Retention
    from limpet.jobs.worker import Worker
    from limpet.memory.archive import Archive
    from limpet.memory.builtin import BuiltInMemory
    from limpet.memory.profile import Bootstrap
    from limpet.memory.vectors.vector_store import SemanticSearch


class BackgroundOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the services; `connect` documents them. `memory` and `embedder` may be True: the built-in ones."""

    memory: MemoryEngine | bool | None = None
    bootstrap_tokens: int = limits.BOOTSTRAP_TOKENS
    bootstrap_timeout_s: float = limits.BOOTSTRAP_TIMEOUT_S
    bootstrap_language: str = "en"
    model: Model | None = None
    summarizer: Summarizer | None = None
    embedder: Embedder | bool | None = None
    idle_timeout_s: float | None = limits.IDLE_TIMEOUT_S
    keep_ended_days: float | None = None
    worker: bool = False

    @classmethod
    def from_arguments(cls, options: Mapping[str, Any]) -> Self:
        """Return the options among the arguments of `connect`, which has a parameter of the same name for each."""
        return cls(**{name: options[name] for name in cls.__struct_fields__})

    def __post_init__(self) -> None:
        for name, verbs, hint in _PORT_OPTIONS:
            given = getattr(self, name)
            flag = type(given) is bool and name != "model"
            is_port = all(callable(getattr(given, verb, None)) for verb in verbs)
            if given is not None and not flag and not is_port:
                raise errors.InvalidRequest(
                    f"{name} is {hint}, not {type(given).__name__}.",
                    hint="See docs/reference/api.md: engines, models and embedders are objects.",
                )
        if self.summarizer is not None and not callable(self.summarizer):
            raise errors.InvalidRequest("summarizer is a function of messages and the summary before.")
        idle = cast("object", self.idle_timeout_s)
        if idle is not None and (type(idle) not in (int, float) or not cast("float", idle) >= 0):
            raise errors.InvalidRequest("idle_timeout_s is a number of seconds, 0 or more, or None.")
        if self.keep_ended_days is not None:
            from limpet.admin.retention import checked_days  # noqa: PLC0415 - only whoever asks pays for it

            checked_days(self.keep_ended_days)
        if type(cast("object", self.worker)) is not bool:
            raise errors.InvalidRequest("worker is True or False.")
        if self.embedder:
            vectors_embedder.check_installed(self.embedder)


_PORT_OPTIONS: Final = (
    ("memory", ("ingest", "profile", "search", "facts", "forget", "close"), "a memory engine or True"),
    ("model", ("complete",), "a model such as OpenAIModel(…)"),
    ("embedder", ("embed",), "an embedder or True"),
)


_CLOSING_TASKS: Final = ("archive", "offload")
"""The tasks that are finished at closing, so that the next program finds the last messages and facts."""


class Background:
    """The services of one open store, and its worker thread."""

    def __init__(self, engine: Engine, index_store: Callable[[], IndexStore], extras: BackgroundOptions) -> None:
        self._engine = engine
        self._open_index_store = index_store
        self._paired_store: PairedIndexStore | None = None
        self._extras = extras
        self._mutex = threading.RLock()
        self._memory: BuiltInMemory | None = None
        self._semantic: tuple[Embedder, SemanticSearch] | None = None
        # Shared by all workers, because it remembers which deleted sessions it has tried to erase.
        self._purge: PurgeTask | None = None
        self._stop = threading.Event()
        self._abandon = threading.Event()
        self._thread: threading.Thread | None = None
        self.bootstrap = self._bootstrap()

    def _bootstrap(self) -> Bootstrap | None:
        extras = self._extras
        if not extras.memory:
            return None
        from limpet.memory.profile import Bootstrap  # noqa: PLC0415 - only whoever asks pays for it

        return Bootstrap(
            self.memory(),
            tokens=extras.bootstrap_tokens,
            timeout_s=extras.bootstrap_timeout_s,
            language=extras.bootstrap_language,
        )

    def _index_store(self) -> PairedIndexStore:
        with self._mutex:
            if (paired := self._paired_store) is None:
                engine = self._engine
                paired = PairedIndexStore(engine.store, self._open_index_store(), engine.factory.random)
                # Checked before its first use: rows of another store, or of another state of this one, are cleared.
                with contextlib.suppress(errors.Unavailable, errors.NotAStore):
                    paired.check()
                    self._paired_store = paired  # only now: a check that failed is repeated by the next use
            return paired

    def memory(self) -> MemoryEngine:
        """Return the given engine of long-term memory, or the built-in one."""
        given = self._extras.memory
        if given is not None and not isinstance(given, bool):
            return given
        return self._built_in()

    def _built_in(self) -> BuiltInMemory:
        from limpet.memory.builtin import BuiltInMemory  # noqa: PLC0415 - its patterns take a while to compile

        with self._mutex:
            if self._memory is None:
                extract, count = None, messages.estimate_text_tokens
                if self._extras.model is not None:
                    from limpet.llm.extraction import ModelExtractor  # noqa: PLC0415 - as above

                    extract = ModelExtractor(self._extras.model, count=count)
                index_store = RecoveringIndexStore(self._index_store())
                self._memory = BuiltInMemory(index_store, count=count, extract=extract)
            return self._memory

    def archive(self, tenant: str, settle: Callable[[], None] = lambda: None) -> Archive:
        """Return the archive of a tenant; `settle` waits for deferred writes."""
        from limpet.memory.archive import Archive  # noqa: PLC0415 - as above

        return Archive(self._engine, tenant, self._index_store, settle, self.semantic_search)

    def semantic_search(self) -> SemanticSearch | None:
        found = self._embedder_and_search()
        return found[1] if found else None

    def _embedder_and_search(self) -> tuple[Embedder, SemanticSearch] | None:
        given = self._extras.embedder
        if not given:
            return None
        with self._mutex:
            if self._semantic is None:
                # Only a program that searches by meaning needs numpy.
                from limpet.memory.vectors.vector_store import SemanticSearch, VectorStore  # noqa: PLC0415 - see above

                embedder = vectors_embedder.installed_embedder() if isinstance(given, bool) else given
                vectors = VectorStore(RecoveringIndexStore(self._index_store()), embedder)
                self._semantic = (embedder, SemanticSearch(vectors, embedder))
            return self._semantic

    def erasure_service(self, tenant: str, handles: SessionHandles | None = None) -> ErasureService:
        """Return the erasure service of a tenant, with the hooks that erase copies outside the log."""
        return ErasureService(self._engine, tenant, self._erasure_hooks(), handles)

    def retention(self, tenant: str, handles: SessionHandles | None = None) -> Retention:
        """Return the retention of a tenant. With long-term memory, sessions stay until memory has received them."""
        from limpet.admin.retention import Retention  # noqa: PLC0415 - as above

        only_offloaded = True if self._extras.memory else None
        erasure = self.erasure_service(tenant, handles)
        return Retention(self._engine, tenant, erasure, only_offloaded=only_offloaded)

    def _erasure_hooks(self) -> ErasureHooks:
        # Not an attribute: the hooks refer to this object, and a cycle would delay the finalizer of a store.
        given = self._extras.memory
        external = None if isinstance(given, bool) else given
        copies = LocalCopies(self._engine, self._index_store, self.archive, self._built_in)
        return ErasureHooks(
            all=(copies.drop_queued_work, copies.drop_all),
            texts=(copies.drop_queued_work, copies.drop_texts),
            external=ExternalMemory(external, self._external_engines),
        )

    def _external_engines(self, tenant: str) -> frozenset[str]:
        """Return the names of the engines that have received histories of a tenant, except the built-in one."""
        return known_engines(self._engine.store, tenant) - {self._built_in().name}

    def _purge_task(self) -> PurgeTask:
        # Made for the first worker, not before: its hooks refer to this object, and a cycle would delay the finalizer
        # of a store that was not closed.
        with self._mutex:
            if self._purge is None:
                self._purge = PurgeTask(self._engine, self._erasure_hooks())
            return self._purge

    def tasks(self) -> list[Task]:
        from limpet.jobs.cleanup import ExpireTask  # noqa: PLC0415 - as above
        from limpet.jobs.index_task import IndexTask  # noqa: PLC0415 - as above
        from limpet.jobs.offload import OffloadTask, ReextractionTask  # noqa: PLC0415 - as above
        from limpet.jobs.summaries import SummaryTask  # noqa: PLC0415 - as above

        engine, extras = self._engine, self._extras
        made: list[Task] = [
            IndexTask(engine, self._index_store()),
            ExpireTask(
                engine, idle_s=extras.idle_timeout_s, keep_days=extras.keep_ended_days, retaining=self.retention
            ),
            self._purge_task(),
        ]
        if extras.memory:
            made.append(OffloadTask(engine, self.memory(), self._ingest_tracker()))
            if extras.model is not None and self.memory() is self._memory:
                made.append(ReextractionTask(engine, self._built_in()))
        if summarizer := self._summarizer():
            made.append(SummaryTask(engine, summarizer))
        if by_meaning := self._embedder_and_search():
            # Its import needs numpy, which only a store with an embedder has.
            from limpet.jobs.embed_task import EmbedTask  # noqa: PLC0415 - as said

            embedder, search = by_meaning
            made.append(EmbedTask(engine.store, search.vectors, embedder))
        return made

    def _ingest_tracker(self) -> IngestTracker | None:
        if self.memory() is not self._memory:
            return None
        return IngestTracker(self._engine.store, self._index_store(), self._built_in())

    def _summarizer(self) -> Summarizer | None:
        model = self._extras.model
        if self._extras.summarizer is not None or model is None:
            return self._extras.summarizer
        from limpet.llm.summarizer import ModelSummarizer  # noqa: PLC0415 - as above

        return ModelSummarizer(model, count=messages.estimate_text_tokens)

    def worker(self, tenants: Sequence[str] | None) -> Worker:
        from limpet.jobs.worker import Worker  # noqa: PLC0415 - as above

        name = f"{os.uname().nodename}.{os.getpid()}"
        return Worker(self._engine, self.tasks(), tenants=tenants, name=name)

    def start(self, tenant: str, *, check_index: bool) -> None:
        """Complete erasures that a crash has interrupted; start the worker's thread if the options ask for it.

        With `check_index` an index store that may have erased content is cleared now instead of at its first use.
        """
        with contextlib.suppress(errors.Unavailable, errors.Corrupt):
            if self._engine.store.pending_erasures() is not None:
                self.erasure_service(tenant).finish_local()
        if check_index:
            with contextlib.suppress(errors.Unavailable, errors.NotAStore):
                self._index_store()
        if self._extras.worker:
            worker = self.worker((tenant,))
            work = functools.partial(worker.run, self._stop, last=_CLOSING_TASKS, abandon=self._abandon)
            self._thread = threading.Thread(target=work, name="limpet-worker", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread and close the built-in memory, but not the index store.

        The thread has limits.WORKER_FINAL_WORK_S to finish the closing tasks. It is abandoned after
        limits.WORKER_STOP_S in all.
        """
        thread, self._thread = self._thread, None
        self._stop.set()
        try:
            if thread is not None:
                thread.join(limits.WORKER_FINAL_WORK_S)
        finally:
            self._abandon.set()
        if thread is not None:
            thread.join(limits.WORKER_STOP_S - limits.WORKER_FINAL_WORK_S)
        with self._mutex:
            if self._memory is not None:
                self._memory.close()
