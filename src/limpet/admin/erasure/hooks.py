"""Erasure hooks: they erase copies of the log's content that are kept elsewhere.

`LocalCopies` has the hooks of this store: queued work, the search index, vectors and facts. They
run first, then `ExternalMemory`. A failed call does not stop the others; it stays in the queue and
is repeated later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from limpet import errors
from limpet.core.values.memory_records import TenantUser
from limpet.jobs.tasks import AttemptFailure, attempt, drop_notes_of_missing_sessions
from limpet.memory.vectors import embedder

if TYPE_CHECKING:
    from limpet.memory.archive import Archive
    from limpet.memory.builtin import BuiltInMemory
    from limpet.memory.index_store import PairedIndexStore
    from limpet.memory.port import MemoryEngine
    from limpet.runtime.engine import Engine


class HookCall(msgspec.Struct, frozen=True):
    """What one erasure asks of the hooks. It is stored until each hook has succeeded.

    Without a user and a session it is about all content of the tenant: a copied log does not say whose
    content was erased.
    """

    tenant: str
    user_id: str
    session_id: str | None = None
    position: int | None = None
    here: bool = False
    """The local hooks have succeeded; only external memory is still to be called."""
    learnt: bool = False
    """Only messages are erased: long-term memory keeps what it has learnt from them."""


def encode_hook_calls(calls: Iterable[HookCall]) -> bytes:
    """Return one line of JSON for each call."""
    return b"".join(msgspec.json.encode(call) + b"\n" for call in calls)


def decode_hook_calls(lines: bytes) -> Iterator[HookCall]:
    """Yield the calls that were encoded; raise Corrupt for a line that can't be decoded."""
    try:
        yield from (msgspec.json.decode(line, type=HookCall) for line in lines.splitlines() if line)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a pending call of an erasure hook can't be decoded.") from error


def has_local_work(lines: bytes | None) -> bool:
    """Whether pending calls need a local hook, or files are still to be scrubbed."""
    if not lines:
        return lines is not None
    return b"" in lines.splitlines() or not all(call.here for call in decode_hook_calls(lines))


ErasureHook = Callable[[TenantUser, str | None, int | None], int]
"""Erases copies about a user, a session of theirs, or the message at a position; returns how much it dropped.

Without a user and a session it erases all copies of a tenant, or those of sessions that no longer exist.
"""


class LocalCopies:
    """The hooks that erase what this store keeps beside its log. Each service is opened at its first use."""

    def __init__(
        self,
        engine: Engine,
        index_store: Callable[[], PairedIndexStore],
        archive: Callable[[str], Archive],
        built_in: Callable[[], BuiltInMemory],
    ) -> None:
        self._engine = engine
        self._index_store = index_store
        self._archive = archive
        self._built_in = built_in

    def drop_queued_work(self, user: TenantUser, session_id: str | None, position: int | None) -> int:
        """Drop queued work for sessions that no longer exist; a hook."""
        from limpet.jobs import offload, summaries  # noqa: PLC0415 - few programs need it

        if position is not None:
            return 0
        states = self._engine.states
        prefixes = (*offload.QUEUE_PREFIXES, summaries.SUMMARY_PREFIX)
        return drop_notes_of_missing_sessions(
            self._engine.store,
            user.tenant,
            prefixes,
            lambda name: name != session_id and states.current(user.tenant, name) is not None,
        )

    def drop_texts(self, user: TenantUser, session_id: str | None, position: int | None) -> int:
        """Drop indexed texts and vectors, and keep facts; a hook."""
        dropped = self._drop_indexed(user, session_id, position)
        self._index_store().note_erasure()
        return dropped

    def drop_all(self, user: TenantUser, session_id: str | None, position: int | None) -> int:
        """Drop indexed texts, vectors and facts; a hook."""
        index_store = self._index_store()
        if not user.user_id and session_id is None:
            dropped = index_store.size()
            index_store.clear()
            return dropped
        dropped = self._drop_indexed(user, session_id, position)
        if user.user_id:
            dropped += self._built_in().forget(user, session_id, position)
        index_store.note_erasure()
        return dropped

    def _drop_indexed(self, user: TenantUser, session_id: str | None, position: int | None) -> int:
        from limpet.memory.index_store import RecoveringIndexStore  # noqa: PLC0415 - as above

        dropped = self._archive(user.tenant).forget(user.user_id or None, session_id, position)
        vectors = RecoveringIndexStore(self._index_store())
        return dropped + embedder.forget_vectors(vectors, user, session_id, position)


class ExternalMemory:
    """The memory engines that keep their data outside this store: `engine`, and those used before."""

    def __init__(self, engine: MemoryEngine | None, others: Callable[[str], frozenset[str]]) -> None:
        self._engine = engine
        self._known_engines = others

    def may_have_content(self, tenant: str) -> bool:
        """Whether an external engine may have received content of a tenant."""
        return self._engine is not None or bool(self._known_engines(tenant))

    def forget(self, user: TenantUser, session_id: str | None, position: int | None) -> int:
        """Have the engine forget; a hook. Raises Unavailable if another engine has received content, too."""
        dropped = 0
        if not user.user_id:
            return 0
        if self._engine is not None:
            try:
                dropped = self._engine.forget(user, session_id, position)
            except (errors.EngineClosed, errors.ForkedEngine) as error:
                raise errors.Unavailable("the memory engine is closed.") from error
        present = {self._engine.name} if self._engine is not None else set[str]()
        if others := self._known_engines(user.tenant) - present:
            raise errors.Unavailable(
                f"{', '.join(sorted(others))} has received histories, and does not know of the erasure.",
                hint="Here it is gone. Open the store once with that engine: connect(memory=…).",
                facts={"engines": len(others)},
            )
        return dropped


class ErasureHooks(msgspec.Struct, frozen=True):
    """The hooks of a store: those for an erasure, those that spare long-term memory, and external memory."""

    all: tuple[ErasureHook, ...] = ()
    texts: tuple[ErasureHook, ...] = ()
    external: ExternalMemory | None = None


NO_HOOKS = ErasureHooks()


class HookResults(msgspec.Struct):
    """The results of hook calls: how much was dropped, the calls to repeat, and the first failure."""

    dropped: int = 0
    left: list[HookCall] = msgspec.field(default_factory=list[HookCall])
    failure: AttemptFailure | None = None

    def result(self) -> int:
        """Return how much was dropped; raise the first failure."""
        if self.failure is None:
            return self.dropped
        error = self.failure.error
        if isinstance(error, errors.Error):
            raise error
        raise errors.Unavailable(
            f"an engine was not able to forget: {self.failure.code}.", hint="Here it is gone."
        ) from error


class HookRunner:
    """Runs hook calls. External memory is called only for the runner's own tenant."""

    def __init__(self, tenant: str, hooks: ErasureHooks) -> None:
        self._tenant = tenant
        self._hooks = hooks

    def run(self, calls: Iterable[HookCall], *, ask: bool) -> HookResults:
        """Run calls of local hooks, then, with `ask`, those of external memory."""
        results = HookResults()
        for call in calls:
            hooks = self._hooks.texts if call.learnt else self._hooks.all
            here = call.here or self._call_hooks(call, hooks, results)
            results.left.append(msgspec.structs.replace(call, here=here))
        results.left = [call for call in results.left if not self._is_done_externally(call, results, ask=ask)]
        return results

    def _is_done_externally(self, call: HookCall, results: HookResults, *, ask: bool) -> bool:
        external = self._hooks.external
        if not call.here or external is None or call.learnt:
            return call.here
        # An engine that fails to answer may have content: only a clear no ends the call.
        if attempt(lambda: external.may_have_content(call.tenant)) is False:
            return True
        return ask and call.tenant == self._tenant and self._call_hooks(call, (external.forget,), results)

    def _call_hooks(self, call: HookCall, hooks: tuple[ErasureHook, ...], results: HookResults) -> bool:
        """Call each hook, also after a failure; return whether all succeeded."""
        user, succeeded = TenantUser(call.tenant, call.user_id), True
        for hook in hooks:
            outcome = attempt(lambda hook=hook: hook(user, call.session_id, call.position))
            if not isinstance(outcome, AttemptFailure):
                results.dropped += outcome
                continue
            succeeded = False
            if call.tenant == self._tenant and results.failure is None:
                results.failure = outcome
        return succeeded
