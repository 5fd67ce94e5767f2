"""Retention: which ended sessions are erased after a number of days, and why the others are kept.

A session is erased if it has ended, has been idle long enough, long-term memory has received it,
no frame about it is open, and all its forks and continuations can be erased, too. What memory has
learnt from it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from limpet import errors, limits
from limpet.admin.erasure import ErasureOutcome, ErasureService
from limpet.core.rules import session_rules
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.jobs import tasks
from limpet.jobs.tasks import Heartbeat
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import SESSION_KIND, iter_rows, session_stream
from limpet.stores import port
from limpet.stores.chain import is_erased_stream

RetentionPosition = tuple[int, str]
"""The time and the id of the last ended session that was examined."""


class KeepReason(StrEnum):
    """Why a session is kept."""

    ACTIVE = "active"
    YOUNG = "young"
    NOT_TAKEN = "not taken"
    FRAMES = "open frames"
    FORKED = "forked"
    CONTINUED = "continued"


KEEP_REASON_TEXTS: Mapping[KeepReason, str] = {
    KeepReason.ACTIVE: "has not ended",
    KeepReason.YOUNG: "it was active too recently",
    KeepReason.NOT_TAKEN: "long-term memory has not received it yet",
    KeepReason.FRAMES: "frames about it are open",
    KeepReason.FORKED: "a fork of it stays",
    KeepReason.CONTINUED: "it is continued in one that stays",
}


class KeptSession(msgspec.Struct, frozen=True):
    """An ended session that stays, the reason, and the other session that causes it."""

    session_id: str
    why: str
    other: str | None = None


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that were erased, or would be, and those that stay: a count for each reason, and the first ones.

    `events` and `keys` count what was erased with the sessions.
    """

    dry_run: bool
    keep_days: float
    gone: tuple[str, ...]
    stays: Mapping[str, int]
    kept: tuple[KeptSession, ...]
    events: int = 0
    keys: int = 0


class Retention:
    """Decides which sessions of a tenant are erased, and erases them.

    With `only_offloaded` a session stays until long-term memory has received it; None: if a memory engine
    has ever received a history of the tenant.
    """

    def __init__(
        self, engine: Engine, tenant: str, erasing: ErasureService, *, only_offloaded: bool | None = None
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._erasure = erasing
        self._only_offloaded = only_offloaded

    def run(self, keep_days: float, *, dry_run: bool) -> Retained:
        """Erase every session that may be erased; return these, and why the others stay."""
        self._engine.check()
        look, staying = self._scan(keep_days), _KeptTally()
        for _, state in self._ended_sessions(look.cutoff_us):
            if state.id not in look.erasable:
                staying.add(look.keep_reason(state))
        active = port.Query(kind=SESSION_KIND, status=SessionStatus.ACTIVE)
        young = port.Query(kind=SESSION_KIND, status=SessionStatus.ENDED, since_us=look.cutoff_us + 1)
        for query, why in ((active, KeepReason.ACTIVE), (young, KeepReason.YOUNG)):
            found = (row.id for row in iter_rows(self._store, self._tenant, query))
            if count := sum(each not in look.erasable for each in found):
                staying.count[why.value] = count
        gone, events, keys = look.erasable, 0, 0
        if not dry_run:
            gone, events, keys = self._erase_in_batches(keep_days, sorted(look.erasable))
            # A fork, a continuation or a frame may have been made since the first scan.
            after = self._scan(keep_days)
            for state in filter(None, map(after.state, sorted(look.erasable - gone))):
                staying.add(after.keep_reason(state))
        return Retained(
            dry_run=dry_run, keep_days=keep_days, gone=tuple(sorted(gone)),
            stays=dict(staying.count), kept=tuple(staying.kept), events=events, keys=keys,
        )  # fmt: skip

    def _erase_in_batches(self, keep_days: float, sessions: list[str]) -> tuple[set[str], int, int]:
        """Erase sessions in batches; return the erased ones, and the numbers of events and keys."""
        gone, events, keys = set[str](), 0, 0
        for begin in range(0, len(sessions), limits.PURGE_BATCH_SESSIONS):
            end = begin + limits.PURGE_BATCH_SESSIONS
            full = end >= len(sessions) or end % limits.SCRUB_INTERVAL_SESSIONS == 0
            receipt, went = self._erase_batch(keep_days, sessions[begin:end], finish=full)
            gone |= went
            events, keys = events + receipt.events, keys + receipt.keys
        return gone, events, keys

    def step(
        self, keep_days: float, beat: Heartbeat, after: RetentionPosition | None = None
    ) -> RetentionPosition | None:
        """Erase sessions after a position; return the position to continue from, None at the end.

        They are erased in batches. Files are scrubbed once, after the last batch: that costs more than a batch.
        """
        look, went = self._scan(keep_days), 0
        for place, state in self._ended_sessions(look.cutoff_us, after):
            look.keep_reason(state)
            if len(look.erasable) < limits.PURGE_BATCH_SESSIONS:
                continue
            beat()
            went += len(look.erasable)
            full = went >= limits.SCRUB_INTERVAL_SESSIONS
            self._erase_batch(keep_days, sorted(look.erasable), finish=full)
            if full:
                return place
            look = self._scan(keep_days)
        if went or look.erasable:
            beat()
            self._erase_batch(keep_days, sorted(look.erasable), finish=True)
        return None

    def _scan(self, keep_days: float) -> _RetentionScan:
        only_offloaded = self._only_offloaded
        if only_offloaded is None:
            only_offloaded = bool(tasks.known_engines(self._store, self._tenant))
        cutoff_us = self._engine.now_us() - int(checked_days(keep_days) * 86_400_000_000)
        return _RetentionScan(self._engine, self._tenant, cutoff_us, only_offloaded=only_offloaded)

    def _erase_batch(self, keep_days: float, sessions: list[str], *, finish: bool) -> ErasureOutcome:
        """Erase sessions of a batch that may still be erased when the erasure is planned."""

        def may_go() -> list[SessionState]:
            look = self._scan(keep_days)
            for session_id in sessions:
                state = look.state(session_id)
                if state is not None:
                    look.keep_reason(state)
            return [state for each in sorted(look.erasable) if (state := look.state(each)) is not None]

        return self._erasure.erase_retired(may_go, finish=finish)

    def _ended_sessions(
        self, cutoff_us: int, after: RetentionPosition | None = None
    ) -> Iterator[tuple[RetentionPosition, SessionState]]:
        query = port.Query(kind=SESSION_KIND, status=SessionStatus.ENDED, until_us=cutoff_us, after=after)
        for row in iter_rows(self._store, self._tenant, query):
            state = self._engine.states.current(self._tenant, row.id)
            if state is not None:
                yield (row.time_us, row.id), state


class _KeptTally:
    """Counts why sessions stay, and lists the first of them."""

    def __init__(self) -> None:
        self.count = Counter[str]()
        self.kept: list[KeptSession] = []

    def add(self, reason: KeptSession | None) -> None:
        if reason is not None:
            self.count[reason.why] += 1
            if len(self.kept) < limits.PAGE_SIZE_MAX:
                self.kept.append(reason)


class _RetentionScan:
    """Examines sessions: which may be erased, each with all its forks and continuations."""

    def __init__(self, engine: Engine, tenant: str, cutoff_us: int, *, only_offloaded: bool) -> None:
        self._engine = engine
        self._tenant = tenant
        self._only_offloaded = only_offloaded
        self.cutoff_us = cutoff_us
        self.erasable: set[str] = set()

    def state(self, session_id: str) -> SessionState | None:
        return self._engine.states.current(self._tenant, session_id)

    def keep_reason(self, state: SessionState) -> KeptSession | None:
        """Return why a session stays; None if it may be erased. Then its group, and sources that may go, are `erasable`."""
        kept, group = self._check_group(state)
        if kept is not None:
            return kept
        source: SessionState | None = state
        while source is not None and group:
            self.erasable |= group
            source = self.state(source.continued_from) if source.continued_from else None
            if source is not None:
                group = set[str]() if source.hidden else self._check_group(source)[1]
        return None

    def _check_group(self, state: SessionState) -> tuple[KeptSession | None, set[str]]:
        """Return the reason to keep a session; or None, and the session with its forks and continuations, transitively."""
        found, fresh = {state.id}, [(state, KeepReason.FORKED)]
        while fresh:
            each, how = fresh.pop()
            why = self._own_reason(each)
            if why is not None and each.id == state.id:
                return KeptSession(state.id, why.value), set()
            if why is not None:
                return KeptSession(state.id, how.value, each.id), set()
            for after, link in self._successors(each):
                if after.id not in found:
                    found.add(after.id)
                    fresh.append((after, link))
        return None, found

    def _own_reason(self, state: SessionState) -> KeepReason | None:
        if state.status is SessionStatus.DELETED:
            return None
        if state.status is not SessionStatus.ENDED and not state.continuations:
            return KeepReason.ACTIVE
        if state.active_us > self.cutoff_us:
            return KeepReason.YOUNG
        if self._only_offloaded and not _is_offloaded(state):
            return KeepReason.NOT_TAKEN
        term = f"session:{state.id}"
        query = port.Query(kind=state_cache.TREE_KIND, status=state_cache.ROW_OPEN, terms=(term,), limit=1)
        return KeepReason.FRAMES if self._engine.store.query_projections(self._tenant, query) else None

    def _successors(self, state: SessionState) -> Iterator[tuple[SessionState, KeepReason]]:
        stream = session_stream(state.id)
        for name, _ in self._engine.store.forks(self._tenant, stream):
            fork = None if is_erased_stream(name) else self.state(name.removeprefix(session_stream("")))
            if fork is not None:
                yield fork, KeepReason.FORKED
        for session_id in state.continuations:
            after = self.state(session_id)
            if after is not None and not after.hidden and after.continued_from == state.id:
                yield after, KeepReason.CONTINUED


def _is_offloaded(state: SessionState) -> bool:
    if not session_rules.is_fully_offloaded(state):
        return False
    # A continued session has not ended itself: it is offloaded with the session that continues it.
    return state.user_id is None or session_rules.is_offloaded(state, state.generation)


def checked_days(keep_days: object) -> float:
    """Return a number of days; raise InvalidRequest unless it is one for which sessions may be kept.

    Idempotency keys are erased with their sessions, so sessions stay at least as long as keys must.
    """
    least = limits.IDEMPOTENCY_KEEP_S / 86_400
    days = keep_days if isinstance(keep_days, (int, float)) else -1.0
    most = limits.RETENTION_DAYS_MAX
    if isinstance(keep_days, bool) or not least <= days <= most:
        raise errors.InvalidRequest(
            f"ended sessions are kept for {least:g} days or more, and at most {most:,}.",
            hint="That long, a repeated call with the same idempotency key must have one effect. Use delete_session for less.",
            facts={"days_min": least, "days_max": most},
        )
    return float(days)
