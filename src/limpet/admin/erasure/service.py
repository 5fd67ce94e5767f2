"""ErasureService: erases a user, a session, a message, or all deleted sessions.

Every erasure has a plan: the streams to erase or redact, and the calls of the erasure hooks. The
plan is made before the transaction, and made anew if a related event was written meanwhile.
Readers lose the content in one transaction. Then the hooks run and the files are scrubbed. Work
that a crash interrupts stays pending, and the next process completes it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from limpet import errors, limits
from limpet.admin.erasure import references
from limpet.admin.erasure.hooks import (
    NO_HOOKS,
    ErasureHooks,
    HookCall,
    HookResults,
    HookRunner,
    decode_hook_calls,
    encode_hook_calls,
    has_local_work,
)
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
from limpet.core.values.events import FramePushedEvent, Receipt
from limpet.core.values.messages import checked_id
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.runtime import event_reader, state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import DELETED_KIND, SESSION_KIND, iter_rows, session_stream
from limpet.stores import port, store_copy
from limpet.stores.port import Erasure, ErasureCounts, StreamErasure


class SessionHandles(Protocol):
    """The sessions that this process has loaded."""

    def wait_for_writes(self) -> None:
        """Wait until every deferred write is in the store, or has failed."""
        ...

    def drop_handles(self, session_ids: Sequence[str]) -> None:
        """Drop loaded sessions that no longer exist."""
        ...


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

    def hook_calls_for(self, gone: Collection[str]) -> tuple[HookCall, ...]:
        """Return the hook calls once the sessions in `gone` are erased; a session that stays causes none."""
        if self.hide_waiting:
            return self.hook_calls
        return tuple(each for each in self.hook_calls if each.session_id in gone)


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
        self._hook_runner = HookRunner(tenant, hooks)
        self._handles = handles
        self._looked_at: set[str] = set()

    def erase_user(self, user_id: str) -> Receipt:
        """Erase a user's sessions, living and deleted, their frames, and what the hooks have of the user."""
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
        trace = references.trace_message(
            self._engine,
            self._tenant,
            checked_id("a session's id", session_id),
            checked_id("a message's id", message_id),
        )
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
        return ErasurePlan(what="message", streams=tuple(self._redacted_streams(found)), hook_calls=tuple(calls))

    def _redacted_streams(self, found: Iterable[Reference]) -> Iterator[StreamErasure]:
        blobs = partial(self._store.blobs, self._tenant)
        for stream, payloads in references.redact_references(found, blobs).items():
            version = self._store.version(self._tenant, stream)
            kind = references.notice_kind(stream)
            yield StreamErasure(stream=stream, expected=version, kind=kind, redactions=tuple(payloads))

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
            outcome = self._erase(head, plan) if plan.streams else _nothing_erased()
            # Calls of a real erasure are stored with it, and run by finish(); these have nowhere to wait.
            dropped = 0 if plan.streams else self._run_hooks(plan.hook_calls)
            if isinstance(outcome, ErasureCounts):
                receipt = msgspec.structs.replace(
                    self._receipt(plan.what, outcome),
                    sessions=len(plan.sessions),
                    frames=plan.frames,
                    waiting=len(plan.waiting),
                    rows=dropped,
                    pending=not finish,
                )
                if self._handles is not None:
                    self._handles.drop_handles([*plan.sessions, *plan.waiting])
                receipt = self._finish_receipt(receipt) if finish else receipt
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
        streams = [*map(self._session_erasure, gone)]
        streams += map(self._whole_stream_erasure, map(state_cache.tree_stream, roots))
        found, calls = self._references_in_other_sessions(scope, forks)
        streams += self._redacted_streams(found)
        streams += self._redacted_streams(self._frame_references({*gone, *waiting}, roots))
        return ErasurePlan(
            what=scope.what,
            streams=tuple(streams),
            hook_calls=(*scope.hook_calls_for(gone), *(calls if streams else ())),
            requested=scope.whole,
            sessions=tuple(gone),
            waiting=tuple(waiting),
            frames=sum(map(self._count_frames, roots)),
        )

    def _references_in_other_sessions(
        self, scope: ErasureScope, forks: ForkGraph
    ) -> tuple[list[Reference], list[HookCall]]:
        """Return what is redacted in sessions that stay, and the hook calls for it."""
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

    def _whole_stream_erasure(self, stream: str) -> StreamErasure:
        version = self._store.version(self._tenant, stream)
        kind = references.notice_kind(stream)
        return StreamErasure(stream=stream, expected=version, kind=kind, whole=True)

    def _session_erasure(self, session_id: str) -> StreamErasure:
        """Return the erasure of a session. The rows are named because damaged events can't name them."""
        hidden = self._rows(port.Query(kind=DELETED_KIND, lookup=session_id))
        rows = ((SESSION_KIND, session_id), *((row.kind, row.id) for row in hidden))
        return msgspec.structs.replace(self._whole_stream_erasure(session_stream(session_id)), derived_rows=rows)

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

    def _count_frames(self, root_id: str) -> int:
        found, after = 0, 0
        stream = state_cache.tree_stream(root_id)
        while page := self._store.read(self._tenant, stream, after=after, limit=limits.READ_CHUNK):
            found += sum(event.kind == FramePushedEvent.kind for event in page)
            after = page[-1].version
        return found

    def _frame_references(self, sessions: set[str], roots: Sequence[str]) -> Iterator[Reference]:
        """Yield what trees other than `roots` hold of the sessions: packs and handles."""
        any_tree = port.Query(kind=state_cache.TREE_KIND, limit=1)
        if sessions and self._store.query_projections(self._tenant, any_tree):
            erased = frozenset(map(state_cache.tree_stream, roots))
            yield from references.frame_references(self._store, self._tenant, sessions, erased)

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

    def _receipt(self, what: str, counts: ErasureCounts) -> Receipt:
        name = hashlib.sha256(counts.link).hexdigest()[:24] if counts.link else "none"
        return Receipt(
            id=f"erasure_{name}", what=what, erased_us=self._engine.now_us(), events=counts.events,
            blobs=counts.blobs, keys=counts.keys,
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
        results = self._hook_runner.run(calls, ask=ask)
        if has_local_work(pending) or results.left != calls:
            self._store.scrub(pending, encode_hook_calls(results.left))
        return results

    def _run_hooks(self, every: Iterable[HookCall]) -> int:
        return self._hook_runner.run(every, ask=True).result()


def _is_among(found: Iterable[Reference]) -> ErasurePredicate:
    positions = {reference.event.position for reference in found}
    return lambda event: event.position in positions


def _nothing_erased() -> ErasureCounts:
    return ErasureCounts(events=0, blobs=0, keys=0, claims=0, rows=0, link=b"")
