"""Erasure of users, sessions, messages and deleted sessions, from the log and from everything derived from it.

Every erasure has a plan: the streams to erase or redact, and the calls of the erasure hooks. The
plan is made before the transaction, and made anew if a related event was written meanwhile.
Readers lose the content in one transaction. Then the hooks run and the files are scrubbed. Work
that a crash interrupts stays pending, and the next process completes it.

Hooks erase copies of the log's content that are kept elsewhere. `LocalCopies` has the hooks of this
store: queued work, the search index, vectors and facts. They run first, then `ExternalMemory`. A
failed call does not stop the others; it stays in the queue and is repeated later.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from limpet import errors, limits
from limpet.admin.erasure import references
from limpet.admin.erasure.references import (
    ErasurePredicate,
    ForkGraph,
    MessageTrace,
    PromptReferences,
    Reference,
    session_id_of,
)
from limpet.core.formats import codec
from limpet.core.rules import session_rules as rules
from limpet.core.values import commands as c
from limpet.core.values import ids
from limpet.core.values.events import FramePushedEvent, Receipt
from limpet.core.values.memory_records import TenantUser
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.core.values.validation import checked_id
from limpet.jobs.tasks import AttemptFailure, attempt, drop_notes_of_missing_sessions
from limpet.memory.vectors import embedder
from limpet.runtime import event_reader, state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import DELETED_KIND, SESSION_KIND, iter_rows, session_stream
from limpet.stores import port, store_copy
from limpet.stores.port import BlobLoader, Erasure, ErasureCounts, RedactedPayload, StoredEvent, StreamErasure

if TYPE_CHECKING:
    from limpet.memory.archive import Archive
    from limpet.memory.builtin import BuiltInMemory
    from limpet.memory.index_store import PairedIndexStore
    from limpet.memory.port import MemoryEngine


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

        def exists(name: str) -> bool:
            return name != session_id and states.current(user.tenant, name) is not None

        return drop_notes_of_missing_sessions(self._engine.store, user.tenant, prefixes, exists)

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
            f"a memory engine did not forget: {self.failure.code}.",
            hint="In this store it is erased. The call stays pending, and the next worker repeats it.",
        ) from error


class SessionHandles(Protocol):
    """The sessions that this process has loaded; `wait_for_writes` ends when each deferred write is stored or failed."""

    def wait_for_writes(self) -> None: ...
    def drop_handles(self, session_ids: Sequence[str]) -> None: ...


class ErasureScope(msgspec.Struct, frozen=True, kw_only=True):
    """What to erase: whole sessions, deleted content of others, and the hook calls that follow.

    `owners` are users whose other sessions may quote the erased content in prompts. With `hide_waiting`
    a session that forks still read is hidden until it can be erased; without, it stays as it is.
    """

    what: str
    whole: frozenset[str] = frozenset()
    earlier_content_of: frozenset[str] = frozenset()
    hook_calls: tuple[HookCall, ...] = ()
    owners: frozenset[str] = frozenset()
    hide_waiting: bool = True


class ErasurePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one erasure changes. Without `streams` nothing is erased, and `hook_calls` are run at once.

    `sessions` are erased whole: the `requested` ones without living forks, and their deleted relatives.
    """

    what: str
    streams: tuple[StreamErasure, ...]
    hook_calls: tuple[HookCall, ...]
    requested: frozenset[str] = frozenset()
    sessions: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    frames: int = 0


_NOTHING_ERASED = ErasureCounts(events=0, blobs=0, keys=0, claims=0, rows=0, link=b"")


class ErasureOutcome(NamedTuple):
    """The receipt of an erasure, and the requested sessions that were erased whole."""

    receipt: Receipt
    gone: frozenset[str]


class ErasureService:
    """Erases content of one tenant. A hook may be called again for content that it has dropped already."""

    def __init__(
        self, engine: Engine, tenant: str, hooks: ErasureHooks = NO_HOOKS, handles: SessionHandles | None = None
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._hooks = hooks
        self._handles = handles
        self._looked_at: set[str] = set()

    def erase_user(self, user_id: str) -> Receipt:
        """Erase a user's sessions, living and deleted, their frames, search index, queued work and long-term memory."""
        checked = checked_id("a user's id", user_id)
        return self._run(lambda: self._plan(self._user_scope(checked))).receipt

    def erase_session(self, session_id: str) -> Receipt:
        """Erase a session, living or deleted, and the frames about it; raise SessionNotFound."""
        checked = checked_id("a session's id", session_id)
        return self._run(lambda: self._plan(self._session_scope(checked))).receipt

    def erase_deleted(self, limit: int | None = None, waiting: Collection[str] = ()) -> Receipt:
        """Erase deleted sessions, at most `limit`; rows in `waiting` are skipped while forks read them."""
        return self._run(lambda: self._plan(self._deleted_scope(limit, waiting))).receipt

    def erase_retired(self, may_go: Callable[[], Iterable[SessionState]], *, finish: bool = True) -> ErasureOutcome:
        """Erase the sessions that `may_go` returns; memory keeps what it has learnt from them.

        Sessions that are referenced again when the erasure runs are skipped silently. Without `finish`
        the hook calls stay pending, for a caller that erases more sessions and finishes at the end.
        """
        return self._run(lambda: self._plan(self._retired_scope(list(may_go()))), finish=finish)

    def erase_message(self, session_id: str, message_id: str) -> Receipt:
        """Erase a message and text made from it; raise SessionNotFound, MessageNotFound."""
        self._begin()
        checked_id("a session's id", session_id)
        checked_id("a message's id", message_id)
        trace = references.trace_message(self._engine, self._tenant, session_id, message_id)
        return self._run(lambda: self._message_plan(trace)).receipt

    def _message_plan(self, trace: MessageTrace) -> ErasurePlan:
        trace.read_on()
        found, sessions = list(trace.references()), trace.copies()
        user_id = trace.state.user_id or ""
        if user_id:
            quoted, prompts = self._prompt_references(user_id, _is_among(found))
            found += quoted
            sessions |= prompts
        calls = (HookCall(self._tenant, user_id, name, at) for at, name in sessions.items())
        streams = references.redacted_streams(self._store, self._tenant, found)
        return ErasurePlan(what="message", streams=tuple(streams), hook_calls=tuple(calls))

    def _prompt_references(
        self, user_id: str, is_erased: ErasurePredicate, without: Collection[str] = ()
    ) -> tuple[list[Reference], dict[int, str]]:
        """Return what a user's sessions quote of erased messages, and the sessions by the prompts' positions."""
        search = PromptReferences(self._engine, self._tenant, is_erased)
        return search.references(user_id, without), search.prompts

    def _user_scope(self, user_id: str) -> ErasureScope:
        living = {row.id for row in self._rows(port.Query(kind=SESSION_KIND, owner=user_id))}
        hidden = {row.lookup for row in self._rows(port.Query(kind=DELETED_KIND, owner=user_id))}
        return ErasureScope(
            what="user",
            whole=frozenset(living),
            earlier_content_of=frozenset(hidden - living),
            hook_calls=(HookCall(self._tenant, user_id),),
        )

    def _session_scope(self, session_id: str) -> ErasureScope:
        user_id = self._owner(session_id)
        owners = frozenset({user_id} if user_id is not None else ())
        call = HookCall(self._tenant, user_id or "", session_id)
        return ErasureScope(what="session", whole=frozenset({session_id}), hook_calls=(call,), owners=owners)

    def _owner(self, session_id: str) -> str | None:
        try:
            state = self._engine.states.current(self._tenant, session_id)
        except errors.Corrupt:
            return event_reader.salvage_owner(self._store, self._tenant, session_id)
        if state is None:
            raise rules.unknown_session_error(session_id)
        return state.user_id

    def _retired_scope(self, states: Sequence[SessionState]) -> ErasureScope:
        calls = (HookCall(self._tenant, state.user_id or "", state.id, learnt=True) for state in states)
        whole = frozenset(state.id for state in states)
        return ErasureScope(what="retention", whole=whole, hook_calls=tuple(calls), hide_waiting=False)

    def _deleted_scope(self, limit: int | None, waiting: Collection[str]) -> ErasureScope:
        found: dict[str, set[str]] = {}
        self._looked_at.clear()
        for row in self._rows(port.Query(kind=DELETED_KIND)):
            if limit is not None and len(found) >= limit and row.lookup not in found:
                break
            if row.id not in waiting or self._is_erasable(row.lookup):
                found.setdefault(row.lookup, set()).add(row.owner)
                self._looked_at.add(row.id)
        owners = frozenset(owner for every in found.values() for owner in every if owner)
        calls = tuple(self._deleted_hook_calls(found))
        return ErasureScope(what="deleted", earlier_content_of=frozenset(found), hook_calls=calls, owners=owners)

    def remaining_rows(self, known: Collection[str]) -> set[str]:
        """Return the rows of deleted sessions that still exist, of those in `known` and those that were tried last."""
        asked = {*known, *self._looked_at}
        return {row.id for row in self._rows(port.Query(kind=DELETED_KIND)) if row.id in asked}

    def _is_erasable(self, session_id: str) -> bool:
        forks = ForkGraph(self._engine, self._tenant, (), (session_id,))
        return bool(forks.erasable) or any(True for _ in forks.earlier_content())

    def _deleted_hook_calls(self, sessions: Mapping[str, set[str]]) -> Iterator[HookCall]:
        """Yield the hook calls for deleted sessions, given with the users that owned them."""
        forks = ForkGraph(self._engine, self._tenant, (), sessions)
        earlier = [reference.event for reference in forks.earlier_content()]
        for session_id, owners in sorted(sessions.items()):
            state = self._state(session_id)
            lives = state is not None and state.status is not SessionStatus.DELETED
            for owner in sorted(owners):
                if lives and state is not None and owner == (state.user_id or ""):
                    # The same user has a new session with this id: only positions tell the two apart.
                    yield from (
                        HookCall(self._tenant, owner, session_id, event.position)
                        for event in earlier
                        if session_id_of(event) == session_id
                    )
                else:
                    yield HookCall(self._tenant, owner, session_id)

    def _state(self, session_id: str) -> SessionState | None:
        """Return the state of a session; None if there is none, or if it is damaged."""
        with contextlib.suppress(errors.Corrupt):
            return self._engine.states.current(self._tenant, session_id)
        return None

    def _rows(self, query: port.Query) -> Iterator[port.Projection]:
        return iter_rows(self._store, self._tenant, query)

    def _begin(self) -> None:
        self._engine.check()
        store_copy.refuse_incomplete_copy(self._store, self._tenant)
        if self._handles is not None:
            self._handles.wait_for_writes()

    def _run(self, make_plan: Callable[[], ErasurePlan], *, finish: bool = True) -> ErasureOutcome:
        self._begin()
        for _ in range(limits.RETRIES_MAX):
            # The head is read before the search, so that an event written meanwhile is noticed.
            head = self._store.head(self._tenant)
            plan = make_plan()
            outcome = self._erase(head, plan) if plan.streams else _NOTHING_ERASED
            # Calls of a real erasure are stored with it, and run by finish(); these have nowhere to wait.
            dropped = 0 if plan.streams else self._run_hooks(plan.hook_calls, ask=True).result()
            if isinstance(outcome, ErasureCounts):
                if self._handles is not None:
                    self._handles.drop_handles([*plan.sessions, *plan.waiting])
                receipt = self._receipt(plan, outcome, dropped)
                receipt = self._finish_receipt(receipt) if finish else msgspec.structs.replace(receipt, pending=True)
                return ErasureOutcome(receipt, plan.requested.intersection(plan.sessions))
        raise errors.Conflict(
            "related events were written during each attempt to erase.", hint="Nothing was erased. Retry."
        )

    def _plan(self, scope: ErasureScope) -> ErasurePlan:
        forks = ForkGraph(self._engine, self._tenant, scope.whole, scope.earlier_content_of)
        waiting = forks.waiting if scope.hide_waiting else []
        # Hidden before the search: a hidden session gets no more messages.
        self._hide(waiting)
        gone = forks.erasable
        roots = self._tree_roots({*gone, *(scope.whole if scope.hide_waiting else ())})
        trees = [state_cache.tree_stream(root) for root in roots]
        streams = [*map(self._session_erasure, gone), *map(self._whole_stream_erasure, trees)]
        # A session that stays causes no hook call.
        own_calls = [each for each in scope.hook_calls if scope.hide_waiting or each.session_id in gone]
        found, calls = self._references_in_other_sessions(scope, forks)
        if gone or waiting:
            found += references.frame_references(self._store, self._tenant, {*gone, *waiting}, trees)
        streams += references.redacted_streams(self._store, self._tenant, found)
        return ErasurePlan(
            what=scope.what, streams=tuple(streams), hook_calls=(*own_calls, *(calls if streams else ())),
            requested=scope.whole, sessions=tuple(gone), waiting=tuple(waiting),
            frames=sum(map(self._count_frames, trees)),
        )  # fmt: skip

    def _references_in_other_sessions(
        self, scope: ErasureScope, forks: ForkGraph
    ) -> tuple[list[Reference], list[HookCall]]:
        found, away = list(forks.earlier_content()), {*forks.erasable, *forks.waiting}
        is_earlier, calls = _is_among(found), list[HookCall]()

        def is_erased(event: port.StoredEvent) -> bool:
            return is_earlier(event) or session_id_of(event) in away

        for owner in sorted(scope.owners):
            quoted, prompts = self._prompt_references(owner, is_erased, forks.erasable)
            found += quoted
            calls += (HookCall(self._tenant, owner, name, at) for at, name in prompts.items())
        return found, calls

    def _hide(self, sessions: Sequence[str]) -> None:
        for session_id in sessions:
            command = c.EndSession(session_id=session_id, reason=EndReason.DELETED)
            with contextlib.suppress(errors.SessionNotFound):
                self._engine.run(c.CommandRequest(tenant=self._tenant, command=command))

    def _whole_stream_erasure(self, stream: str, rows: tuple[tuple[str, str], ...] | None = None) -> StreamErasure:
        expected, kind = self._store.version(self._tenant, stream), references.notice_kind(stream)
        return StreamErasure(stream=stream, expected=expected, kind=kind, whole=True, derived_rows=rows)

    def _session_erasure(self, session_id: str) -> StreamErasure:
        """Return the erasure of a session. Its rows are named, so a damaged session can be erased, too."""
        hidden = self._rows(port.Query(kind=DELETED_KIND, lookup=session_id))
        rows = ((SESSION_KIND, session_id), *((row.kind, row.id) for row in hidden))
        return self._whole_stream_erasure(session_stream(session_id), rows)

    def _tree_roots(self, sessions: set[str]) -> list[str]:
        """Return the roots of the trees in which a frame's scope names one of the sessions."""
        found: dict[str, None] = {}
        for session_id in sorted(sessions):
            term = f"session:{session_id}"
            for row in self._rows(port.Query(kind=state_cache.TREE_KIND, terms=(term,))):
                found[row.id] = None
            for row in self._rows(port.Query(kind=state_cache.FRAME_KIND, lookup=term)):
                found[codec.decode_frame(row.document).root_id] = None
        return list(found)

    def _count_frames(self, stream: str) -> int:
        found = event_reader.iter_stream(self._store, self._tenant, stream)
        return sum(event.kind == FramePushedEvent.kind for event in found)

    def _erase(self, head: int, plan: ErasurePlan) -> ErasureCounts | port.Stale:
        """Erase what was found when the feed was at `head`, unless a related event was written since."""
        erasure = Erasure(
            tenant=self._tenant, streams=plan.streams, time_us=self._engine.now_us(), head=head,
            pending_work=encode_hook_calls(plan.hook_calls),
        )  # fmt: skip
        streams = {share.stream for share in plan.streams}
        outcome = self._store.erase(erasure, state_cache.derive_stream)
        for _ in range(limits.RETRIES_MAX):
            if isinstance(outcome, ErasureCounts) or outcome.stream:
                break
            passed = references.advance_past_unrelated(self._store, self._tenant, erasure.head or 0, streams)
            if passed is None:
                break
            erasure = msgspec.structs.replace(erasure, head=passed)
            outcome = self._store.erase(erasure, state_cache.derive_stream)
        return outcome

    def _receipt(self, plan: ErasurePlan, counts: ErasureCounts, dropped: int) -> Receipt:
        name = hashlib.sha256(counts.link).hexdigest()[:24] if counts.link else "none"
        return Receipt(
            id=f"erasure_{name}", what=plan.what, erased_us=self._engine.now_us(), events=counts.events,
            sessions=len(plan.sessions), frames=plan.frames, blobs=counts.blobs, keys=counts.keys,
            rows=dropped, waiting=len(plan.waiting),
        )  # fmt: skip

    def _finish_receipt(self, receipt: Receipt) -> Receipt:
        try:
            return msgspec.structs.replace(receipt, rows=receipt.rows + self.finish())
        except errors.Error as error:
            left = msgspec.structs.replace(receipt, pending=True)
            error.facts |= {"pending": True, "receipt": left.to_dict()}
            raise

    def finish(self) -> int:
        """Run the pending hook calls of every tenant; return how much the hooks dropped.

        A call that fails stays pending and does not stop the others. If it was for this tenant, its
        error is raised at the end.
        """
        return self._run_pending(ask=True).result()

    def finish_local(self) -> None:
        """Run the pending calls of local hooks only. No error is raised: a failed call stays pending."""
        self._run_pending(ask=False)

    def _run_pending(self, *, ask: bool) -> HookResults:
        pending = self._store.pending_erasures()
        if pending is None:
            return HookResults()
        calls = list(decode_hook_calls(pending))
        results = self._run_hooks(calls, ask=ask)
        if has_local_work(pending) or results.left != calls:
            self._store.scrub(pending, encode_hook_calls(results.left))
        return results

    def _run_hooks(self, calls: Iterable[HookCall], *, ask: bool) -> HookResults:
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


def _is_among(found: Iterable[Reference]) -> ErasurePredicate:
    positions = {reference.event.position for reference in found}
    return lambda event: event.position in positions


class LogErasureReplay:
    """Repeats in a copy of the log the erasures that happened after the copy was made."""

    now_us = staticmethod(ids.SYSTEM_FACTORY.now_us)
    derive = staticmethod(state_cache.derive_stream)
    notice_kind = staticmethod(references.notice_kind)

    def pending_work(self, tenant: str) -> bytes:
        """Return the hook calls that follow. The notices name no user, so the call is about the whole tenant."""
        return encode_hook_calls((HookCall(tenant, ""),))

    def redactions(self, gone: Sequence[tuple[StoredEvent, StoredEvent]], blobs: BlobLoader) -> list[RedactedPayload]:
        """Return the redacted payloads of events, each given with the event that caused its erasure."""
        return [references.redact_event(stored, cause, blobs) for stored, cause in gone]
