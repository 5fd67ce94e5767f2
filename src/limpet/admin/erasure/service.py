"""ErasureService: erases a user, a session, a message, or everything that was deleted.

The search for what to erase runs before the transaction; the erasure fails if a related event was
written since. Readers lose the content in one transaction. Then the hooks run and the files are
scrubbed. What a crash leaves unfinished stays pending and is done by the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from limpet import errors, limits
from limpet.admin.erasure import references
from limpet.admin.erasure.hooks import (
    ErasureHook,
    ExternalEngines,
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
    PromptReferences,
    session_id_of,
)
from limpet.core.formats import codec
from limpet.core.rules import session_rules as rules
from limpet.core.values import commands as c
from limpet.core.values.erasure_receipt import Receipt
from limpet.core.values.events import FramePushedEvent
from limpet.core.values.messages import checked_id
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.runtime import event_reader, projections, state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.projections import DELETED_KIND, SESSION_KIND, iter_rows
from limpet.runtime.state_cache import session_stream
from limpet.stores import port, store_copy
from limpet.stores.erasure import Erasure, ErasureCounts, RedactedPayload, StreamErasure


class SessionHandles(Protocol):
    """Whoever holds on to sessions in memory."""

    def wait_for_writes(self) -> None:
        """See to it that what was written to them is in the store, or refused."""
        ...

    def drop_handles(self, session_ids: Sequence[str]) -> None:
        """Let go of sessions that are not there any more."""
        ...


class ErasureScope(msgspec.Struct, frozen=True, kw_only=True):
    """What is to go: sessions whole, of others what was deleted earlier, and what the hooks are told.

    `owners` are users who have other sessions that may have been told of it. `hide`: what forks still need is hidden
    until it can go; otherwise it just stays.
    """

    what: str
    whole: frozenset[str] = frozenset()
    earlier_content_of: frozenset[str] = frozenset()
    hook_calls: tuple[HookCall, ...] = ()
    owners: frozenset[str] = frozenset()
    hide_waiting: bool = True

    def hook_calls_for(self, gone: Collection[str]) -> tuple[HookCall, ...]:
        """Return what the hooks are told once some sessions have gone: nothing of one that just stays."""
        if self.hide_waiting:
            return self.hook_calls
        return tuple(each for each in self.hook_calls if each.session_id in gone)


class ErasureOutcome(NamedTuple):
    """An erasure that took place: its receipt, and which of the sessions went that were to go whole."""

    receipt: Receipt
    gone: frozenset[str]


class ErasureService:
    """Erases of one tenant. `hooks` may be called again for what they have dropped already.

    `words` are those of the hooks that drop what was said, and leave what long-term memory has learnt from it.
    """

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        hooks: Sequence[ErasureHook] = (),
        handles: SessionHandles | None = None,
        elsewhere: ExternalEngines | None = None,
        *,
        words: Sequence[ErasureHook] = (),
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._hook_runner = HookRunner(tenant, hooks, elsewhere, words)
        self._handles = handles
        self._looked_at: set[str] = set()

    def erase_user(self, user_id: str) -> Receipt:
        """Erase everything of a user: sessions, living and deleted, their frames, and what the hooks keep."""
        named = checked_id("a user's id", user_id)
        return self._run(lambda: self._user_scope(named)).receipt

    def erase_session(self, session_id: str) -> Receipt:
        """Erase a session and the frames that were about it; raise SessionNotFound if there is none, nor was."""
        named = checked_id("a session's id", session_id)
        return self._run(lambda: self._session_scope(named)).receipt

    def erase_deleted(self, limit: int | None = None, waiting: Collection[str] = ()) -> Receipt:
        """Erase what delete_session has hidden, of so many sessions at most; leave out rows that still wait."""
        return self._run(lambda: self._deleted_scope(limit, waiting)).receipt

    def erase_retired(
        self, may_go: Callable[[], Iterable[SessionState]], *, finish: bool = True
    ) -> ErasureOutcome:
        """Erase sessions that are kept no longer, those that may go by now; memory keeps what it has learnt.

        What somebody needs by the time that it would go just stays, and nobody is told of it. Unless it is to `finish`,
        what is left to do of it stays pending: for one who goes on, and finishes at the end.
        """
        return self._run(lambda: self._retired_scope(list(may_go())), finish=finish)

    def erase_message(self, session_id: str, message_id: str) -> Receipt:
        """Erase one message and what was made from its words; raise SessionNotFound, MessageNotFound."""
        self._begin()
        found = references.trace_message(
            self._engine,
            self._tenant,
            checked_id("a session's id", session_id),
            checked_id("a message's id", message_id),
        )
        for _ in range(limits.RETRIES_MAX):
            head = self._store.head(self._tenant)
            found.read_on()
            gone, said = found.redactions(), found.copies()
            who = found.state.user_id or ""
            if who:
                said |= self._redact_prompts(gone, who, _position_filter(gone))
            todo = [HookCall(self._tenant, who, name, at) for at, name in said.items()]
            outcome = self._erase(head, tuple(self._redacted_streams(gone)), todo)
            if isinstance(outcome, ErasureCounts):
                return self._finish_receipt(self._receipt("message", outcome))
        raise _conflict_error()

    def _redacted_streams(self, gone: dict[str, list[RedactedPayload]]) -> Iterator[StreamErasure]:
        for stream, found in gone.items():
            version = self._store.version(self._tenant, stream)
            kind = references.notice_kind(stream)
            yield StreamErasure(stream=stream, expected=version, kind=kind, redactions=tuple(found))

    def _redact_prompts(
        self,
        found: dict[str, list[RedactedPayload]],
        user_id: str,
        goes: ErasurePredicate,
        without: Collection[str] = (),
    ) -> dict[int, str]:
        """Add what a user's new sessions were told of what goes; return where, by position and session."""
        openings = PromptReferences(self._engine, self._tenant, goes)
        for stream, made in openings.redactions(user_id, without).items():
            known = {each.position for each in found.get(stream, ())}
            fresh = [each for each in made if each.position not in known]
            found.setdefault(stream, []).extend(fresh)
        return openings.prompts

    def _user_scope(self, user_id: str) -> ErasureScope:
        living = {row.id for row in self._rows(port.Query(kind=SESSION_KIND, owner=user_id))}
        hidden = {row.lookup for row in self._rows(port.Query(kind=DELETED_KIND, owner=user_id))}
        todo = (HookCall(self._tenant, user_id),)
        return ErasureScope(
            what="user",
            whole=frozenset(living),
            earlier_content_of=frozenset(hidden - living),
            hook_calls=todo,
        )

    def _session_scope(self, session_id: str) -> ErasureScope:
        user_id = self._owner(session_id)
        owners = frozenset({user_id} if user_id is not None else ())
        todo = HookCall(self._tenant, user_id or "", session_id)
        return ErasureScope(
            what="session", whole=frozenset({session_id}), hook_calls=(todo,), owners=owners
        )

    def _owner(self, session_id: str) -> str | None:
        try:
            state = self._engine.states.current(self._tenant, session_id)
        except errors.Corrupt:
            return event_reader.salvage_owner(self._store, self._tenant, session_id)
        if state is None:
            raise rules.unknown_session_error(session_id)
        return state.user_id

    def _retired_scope(self, states: Sequence[SessionState]) -> ErasureScope:
        todo = (msgspec.structs.replace(self._hook_call(state), learnt=True) for state in states)
        whole = frozenset(state.id for state in states)
        return ErasureScope(
            what="retention", whole=whole, hook_calls=tuple(todo), hide_waiting=False
        )

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
        todo = tuple(self._deleted_hook_calls(found))
        return ErasureScope(
            what="deleted", earlier_content_of=frozenset(found), hook_calls=todo, owners=owners
        )

    def remaining_rows(self, known: Collection[str]) -> set[str]:
        """Return the rows of deleted sessions that are still there, of those `known` and of those looked at last."""
        asked = {*known, *self._looked_at}
        return {row.id for row in self._rows(port.Query(kind=DELETED_KIND)) if row.id in asked}

    def _is_erasable(self, session_id: str) -> bool:
        lineage = ForkGraph(self._engine, self._tenant, (), (session_id,))
        return bool(lineage.erasable or lineage.earlier_redactions())

    def _deleted_hook_calls(self, sessions: Mapping[str, set[str]]) -> Iterator[HookCall]:
        """Yield what is to be told of deleted sessions, given with whose they were."""
        earlier = ForkGraph(self._engine, self._tenant, (), sessions).earlier_redactions()
        for session_id, owners in sorted(sessions.items()):
            state = self._state(session_id)
            lives = state is not None and state.status is not SessionStatus.DELETED
            for owner in sorted(owners):
                if lives and state is not None and owner == (state.user_id or ""):
                    # By its names alone it can't be told apart from the one that has them now.
                    gone = earlier.get(session_stream(session_id), ())
                    yield from (
                        HookCall(self._tenant, owner, session_id, each.position) for each in gone
                    )
                else:
                    yield HookCall(self._tenant, owner, session_id)

    def _hook_call(self, state: SessionState) -> HookCall:
        return HookCall(self._tenant, state.user_id or "", state.id)

    def _state(self, session_id: str) -> SessionState | None:
        """Return the state of a session; None if there is none, or one that can't be read any more."""
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

    def _run(self, wished: Callable[[], ErasureScope], *, finish: bool = True) -> ErasureOutcome:
        self._begin()
        for _ in range(limits.RETRIES_MAX):
            head = self._store.head(self._tenant)
            wish = wished()
            lineage = ForkGraph(self._engine, self._tenant, wish.whole, wish.earlier_content_of)
            waiting = lineage.waiting if wish.hide_waiting else []
            self._hide(waiting)
            gone = tuple(lineage.erasable)
            roots = self._tree_roots({*gone, *(wish.whole if wish.hide_waiting else ())})
            shares = [*map(self._session_erasure, gone)]
            shares += map(self._whole_stream_erasure, map(state_cache.tree_stream, roots))
            left, told_of = self._partial_redactions(wish, lineage)
            shares += self._redacted_streams(left)
            shares += self._mention_redactions({*gone, *waiting}, roots)
            count = sum(map(self._count_frames, roots))
            wanted = wish.hook_calls_for(gone)
            todo = (*wanted, *told_of)
            outcome = self._erase(head, tuple(shares), todo) if shares else _nothing_erased()
            told = 0 if shares else self._run_hooks(wanted)
            if isinstance(outcome, ErasureCounts):
                receipt = msgspec.structs.replace(
                    self._receipt(wish.what, outcome),
                    sessions=len(gone),
                    frames=count,
                    waiting=len(waiting),
                    rows=told,
                    pending=not finish,
                )
                if self._handles is not None:
                    self._handles.drop_handles([*gone, *waiting])
                done = self._finish_receipt(receipt) if finish else receipt
                return ErasureOutcome(done, wish.whole.intersection(gone))
        raise _conflict_error()

    def _partial_redactions(
        self, wish: ErasureScope, lineage: ForkGraph
    ) -> tuple[dict[str, list[RedactedPayload]], list[HookCall]]:
        """Return what stands in for what goes of sessions that stay, and what is to be told of it."""
        found, away = lineage.earlier_redactions(), {*lineage.erasable, *lineage.waiting}
        earlier, todo = _position_filter(found), list[HookCall]()

        def goes(event: port.StoredEvent) -> bool:
            return earlier(event) or session_id_of(event) in away

        for owner in sorted(wish.owners):
            said = self._redact_prompts(found, owner, goes, lineage.erasable)
            todo += (HookCall(self._tenant, owner, name, at) for at, name in said.items())
        return found, todo

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
        """Return a session as what goes whole, with its rows: its events may be damaged."""
        hidden = self._rows(port.Query(kind=DELETED_KIND, lookup=session_id))
        rows = ((SESSION_KIND, session_id), *((row.kind, row.id) for row in hidden))
        return msgspec.structs.replace(
            self._whole_stream_erasure(session_stream(session_id)), derived_rows=rows
        )

    def _tree_roots(self, sessions: set[str]) -> list[str]:
        """Return the trees in which any frame is about one of the sessions."""
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

    def _mention_redactions(
        self, sessions: set[str], roots: Sequence[str]
    ) -> Iterator[StreamErasure]:
        """Give what other trees hold of the sessions: packs and handles."""
        if sessions and self._store.query_projections(
            self._tenant, port.Query(kind=state_cache.TREE_KIND, limit=1)
        ):
            known = frozenset(map(state_cache.tree_stream, roots))
            yield from self._redacted_streams(
                references.redact_frame_mentions(self._store, self._tenant, sessions, known)
            )

    def _erase(
        self, head: int, shares: tuple[StreamErasure, ...], todo: Sequence[HookCall]
    ) -> ErasureCounts | port.Stale:
        """Erase what was found when the feed was at `head`, if nothing came since that has a part in it."""
        erasure = Erasure(
            tenant=self._tenant, streams=shares, time_us=self._engine.now_us(), head=head,
            pending_work=encode_hook_calls(todo),
        )  # fmt: skip
        streams = {share.stream for share in shares}
        outcome = self._store.erase(erasure, projections.derive_stream)
        for _ in range(limits.RETRIES_MAX):
            if isinstance(outcome, ErasureCounts) or outcome.stream:
                break
            passed = references.advance_past_unrelated(
                self._store, self._tenant, erasure.head or 0, streams
            )
            if passed is None:
                break
            erasure = msgspec.structs.replace(erasure, head=passed)
            outcome = self._store.erase(erasure, projections.derive_stream)
        return outcome

    def _receipt(self, what: str, gone: ErasureCounts) -> Receipt:
        name = hashlib.sha256(gone.link).hexdigest()[:24] if gone.link else "none"
        return Receipt(
            id=f"erasure_{name}", what=what, erased_us=self._engine.now_us(), events=gone.events,
            blobs=gone.blobs, keys=gone.keys,
        )  # fmt: skip

    def _finish_receipt(self, receipt: Receipt) -> Receipt:
        try:
            return msgspec.structs.replace(receipt, rows=receipt.rows + self.finish())
        except errors.Error as error:
            left = msgspec.structs.replace(receipt, pending=True)
            error.facts |= {"pending": True, "receipt": left.to_dict()}
            raise

    def finish(self) -> int:
        """Do what is left of erasures, of whichever tenant and process; return how much the hooks dropped.

        What fails stays pending and hinders nothing else. It is raised at the end, if it was this tenant's.
        """
        return self._run_pending(ask=True).result()

    def finish_local(self) -> None:
        """Do the same as far as it can be done here: no engine elsewhere is asked, and what fails is left."""
        self._run_pending(ask=False)

    def _run_pending(self, *, ask: bool) -> HookResults:
        pending = self._store.pending_erasures()
        if pending is None:
            return HookResults()
        todo = list(decode_hook_calls(pending))
        told = self._hook_runner.run(todo, ask=ask)
        if has_local_work(pending) or told.left != todo:
            self._store.scrub(pending, encode_hook_calls(told.left))
        return told

    def _run_hooks(self, every: Iterable[HookCall]) -> int:
        return self._hook_runner.run(every, ask=True).result()


def _position_filter(found: Mapping[str, Sequence[RedactedPayload]]) -> ErasurePredicate:
    places = {each.position for every in found.values() for each in every}
    return lambda event: event.position in places


def _nothing_erased() -> ErasureCounts:
    return ErasureCounts(events=0, blobs=0, keys=0, claims=0, rows=0, link=b"")


def _conflict_error() -> errors.Conflict:
    return errors.Conflict(
        "others wrote to what is to be erased every time.", hint="Nothing was erased. Retry."
    )
