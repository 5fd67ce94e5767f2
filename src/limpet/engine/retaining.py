"""How long ended sessions are kept, and what keeps one longer: whoever still needs it, and what memory has not taken.

A session goes when it has ended, nobody was active in it for long enough, long-term memory has everything of it that
it is to have, no frame about it is open, and all that goes on from it, forks and continuations, goes too. It goes as
an erased one does, out of every file; what memory has learnt stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.engine import engines
from limpet.engine.erasing import Done, Erasing
from limpet.engine.tasks import Beat
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.projections import SESSION_KIND, iter_rows
from limpet.runtime.state_cache import session_stream
from limpet.stores import port
from limpet.stores.erasure import is_erased_stream

Place = tuple[int, str]
"""Where a look at ended sessions has come to: the time and the id of the last one."""


class Stays(StrEnum):
    """Why a session is kept."""

    ACTIVE = "active"
    YOUNG = "young"
    NOT_TAKEN = "not taken"
    FRAMES = "open frames"
    FORKED = "forked"
    CONTINUED = "continued"


REASONS: Mapping[Stays, str] = {
    Stays.ACTIVE: "has not ended",
    Stays.YOUNG: "somebody was active in it too lately",
    Stays.NOT_TAKEN: "long-term memory has not taken it yet",
    Stays.FRAMES: "frames about it are open",
    Stays.FORKED: "a fork of it stays",
    Stays.CONTINUED: "it is continued in one that stays",
}


class Kept(msgspec.Struct, frozen=True):
    """A session that ended and stays, why, and because of which other one."""

    session_id: str
    why: str
    other: str | None = None


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """What went, or would go, and what stays: how many for each reason, and the first that ended.

    `events` and `keys` are what went with them.
    """

    dry_run: bool
    keep_days: float
    gone: tuple[str, ...]
    stays: Mapping[str, int]
    kept: tuple[Kept, ...]
    events: int = 0
    keys: int = 0


class Retaining:
    """Decides for one tenant, and has what goes erased. `taken`: only what long-term memory has; None: if there is any."""

    def __init__(
        self, engine: Engine, tenant: str, erasing: Erasing, *, taken: bool | None = None
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._erasing = erasing
        self._taken = taken

    def run(self, keep_days: float, *, dry_run: bool) -> Retained:
        """Let everything go that may; return what went, and why the rest stays."""
        self._engine.check()
        look, staying = self._look(keep_days), _Staying()
        for _, state in self._ended(look.cutoff_us):
            if state.id not in look.going:
                staying.note(look.verdict(state))
        active = port.Query(kind=SESSION_KIND, status=SessionStatus.ACTIVE)
        young = port.Query(
            kind=SESSION_KIND, status=SessionStatus.ENDED, since_us=look.cutoff_us + 1
        )
        for query, why in ((active, Stays.ACTIVE), (young, Stays.YOUNG)):
            found = (row.id for row in iter_rows(self._store, self._tenant, query))
            if count := sum(each not in look.going for each in found):
                staying.count[why.value] = count
        gone, events, keys = look.going, 0, 0
        if not dry_run:
            gone, events, keys = self._let_go(keep_days, sorted(look.going))
            # Somebody may have come to need one meanwhile.
            after = self._look(keep_days)
            for state in filter(None, map(after.state, sorted(look.going - gone))):
                staying.note(after.verdict(state))
        return Retained(
            dry_run=dry_run, keep_days=keep_days, gone=tuple(sorted(gone)),
            stays=dict(staying.count), kept=tuple(staying.kept), events=events, keys=keys,
        )  # fmt: skip

    def _let_go(self, keep_days: float, sessions: list[str]) -> tuple[set[str], int, int]:
        """Have sessions erased in batches; return which went, and how many events and keys with them."""
        gone, events, keys = set[str](), 0, 0
        for begin in range(0, len(sessions), limits.PURGE_BATCH_SESSIONS):
            end = begin + limits.PURGE_BATCH_SESSIONS
            full = end >= len(sessions) or end % limits.SCRUB_INTERVAL_SESSIONS == 0
            receipt, went = self._erased(keep_days, sessions[begin:end], finish=full)
            gone |= went
            events, keys = events + receipt.events, keys + receipt.keys
        return gone, events, keys

    def step(self, keep_days: float, beat: Beat, after: Place | None = None) -> Place | None:
        """Let sessions go, those after a place; return the place to go on from, None if that were all.

        They go in batches, and what is left of all of them is done after the last one.
        """
        look, went = self._look(keep_days), 0
        for place, state in self._ended(look.cutoff_us, after):
            look.verdict(state)
            if len(look.going) < limits.PURGE_BATCH_SESSIONS:
                continue
            beat()
            went += len(look.going)
            full = went >= limits.SCRUB_INTERVAL_SESSIONS
            self._erased(keep_days, sorted(look.going), finish=full)
            if full:
                return place
            look = self._look(keep_days)
        if went or look.going:
            beat()
            self._erased(keep_days, sorted(look.going), finish=True)
        return None

    def _look(self, keep_days: float) -> _Look:
        taken = self._taken
        if taken is None:
            taken = bool(engines.known(self._store, self._tenant))
        cutoff_us = self._engine.now_us() - int(checked_days(keep_days) * 86_400_000_000)
        return _Look(self._engine, self._tenant, cutoff_us, taken=taken)

    def _erased(self, keep_days: float, sessions: list[str], *, finish: bool) -> Done:
        """Erase what may still go by the time that nothing can change it any more."""

        def may_go() -> list[SessionState]:
            look = self._look(keep_days)
            for session_id in sessions:
                state = look.state(session_id)
                if state is not None:
                    look.verdict(state)
            return [state for each in sorted(look.going) if (state := look.state(each)) is not None]

        return self._erasing.outlived(may_go, finish=finish)

    def _ended(
        self, cutoff_us: int, after: Place | None = None
    ) -> Iterator[tuple[Place, SessionState]]:
        query = port.Query(
            kind=SESSION_KIND, status=SessionStatus.ENDED, until_us=cutoff_us, after=after
        )
        for row in iter_rows(self._store, self._tenant, query):
            state = self._engine.states.current(self._tenant, row.id)
            if state is not None:
                yield (row.time_us, row.id), state


class _Staying:
    """Why sessions stay: how many for each reason, and the first of them."""

    def __init__(self) -> None:
        self.count = Counter[str]()
        self.kept: list[Kept] = []

    def note(self, reason: Kept | None) -> None:
        """Count one, if it stays."""
        if reason is not None:
            self.count[reason.why] += 1
            if len(self.kept) < limits.PAGE_SIZE_MAX:
                self.kept.append(reason)


class _Look:
    """One look at a tenant's sessions: which may go, each with all that goes on from it."""

    def __init__(self, engine: Engine, tenant: str, cutoff_us: int, *, taken: bool) -> None:
        self._engine = engine
        self._tenant = tenant
        self._taken = taken
        self.cutoff_us = cutoff_us
        self.going: set[str] = set()

    def state(self, session_id: str) -> SessionState | None:
        """Return a session that is there, hidden or not."""
        return self._engine.states.current(self._tenant, session_id)

    def verdict(self, state: SessionState) -> Kept | None:
        """Return why a session stays. None: it goes, with all that goes on from it, and what it goes on from if that may."""
        kept, group = self._group(state)
        if kept is not None:
            return kept
        source: SessionState | None = state
        while source is not None and group:
            self.going |= group
            source = self.state(source.continued_from) if source.continued_from else None
            if source is not None:
                group = set[str]() if source.gone else self._group(source)[1]
        return None

    def _group(self, state: SessionState) -> tuple[Kept | None, set[str]]:
        """Return what keeps a session, or it and all that goes on from it, however far."""
        found, fresh = {state.id}, [(state, Stays.FORKED)]
        while fresh:
            each, how = fresh.pop()
            why = self._why(each)
            if why is not None and each.id == state.id:
                return Kept(state.id, why.value), set()
            if why is not None:
                return Kept(state.id, how.value, each.id), set()
            for after, link in self._after(each):
                if after.id not in found:
                    found.add(after.id)
                    fresh.append((after, link))
        return None, found

    def _why(self, state: SessionState) -> Stays | None:
        if state.status is SessionStatus.DELETED:
            return None
        if state.status is not SessionStatus.ENDED and not state.continuations:
            return Stays.ACTIVE
        if state.active_us > self.cutoff_us:
            return Stays.YOUNG
        if self._taken and not _handed_over(state):
            return Stays.NOT_TAKEN
        term = f"session:{state.id}"
        query = port.Query(
            kind=state_cache.TREE_KIND, status=state_cache.ROW_OPEN, terms=(term,), limit=1
        )
        return Stays.FRAMES if self._engine.store.query(self._tenant, query) else None

    def _after(self, state: SessionState) -> Iterator[tuple[SessionState, Stays]]:
        """Yield the sessions that go on from one."""
        stream = session_stream(state.id)
        for name, _ in self._engine.store.forks(self._tenant, stream):
            fork = (
                None
                if is_erased_stream(name)
                else self.state(name.removeprefix(session_stream("")))
            )
            if fork is not None:
                yield fork, Stays.FORKED
        for session_id in state.continuations:
            after = self.state(session_id)
            if after is not None and not after.gone and after.continued_from == state.id:
                yield after, Stays.CONTINUED


def _handed_over(state: SessionState) -> bool:
    if not session_rules.is_fully_offloaded(state):
        return False
    # One that is continued has not ended, and is handed over with the one that it goes on in.
    return state.user_id is None or session_rules.is_offloaded(state, state.generation)


def checked_days(keep_days: object) -> float:
    """Return for how many days ended sessions are kept; raise InvalidRequest if it is no such number.

    At least as long as idempotency keys are: a session takes those along that led to it.
    """
    least = limits.IDEMPOTENCY_KEEP_S / 86_400
    days = keep_days if isinstance(keep_days, (int, float)) else -1.0
    most = limits.RETENTION_DAYS_MAX
    if isinstance(keep_days, bool) or not least <= days <= most:
        raise errors.InvalidRequest(
            f"ended sessions are kept for {least:g} days or more, and at most {most:,}.",
            hint="For so long a repeated call with the same idempotency key has one effect. Use delete_session for less.",
            facts={"days_min": least, "days_max": most},
        )
    return float(days)
