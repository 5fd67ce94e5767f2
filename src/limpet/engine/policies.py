"""Keeps a session's window policy: counts what is appended by the policy's counter, and cuts when it is time.

The append that takes the window past its high-water mark records the cut, so every process sees the
same window from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from limpet.core.rules import session_rules
from limpet.core.rules.session_rules import SessionWrite
from limpet.core.values import events as e
from limpet.core.values.session_state import (
    CounterCorrection,
    Cut,
    SessionState,
    Summary,
    WindowPolicy,
)
from limpet.core.windows import cuts
from limpet.core.windows.cuts import CutInput
from limpet.core.windows.window import WindowMessage
from limpet.engine.parts import Measure, Parts, counter_of
from limpet.engine.tails import Tails

replace = msgspec.structs.replace


class NotYet(Exception):
    """A cut is due of messages that are decided but not in the log yet."""


def measure_of(policy: WindowPolicy, corrections: tuple[CounterCorrection, ...]) -> Measure:
    """Return the counter of a policy at work; raise UnknownModel or UnknownCounter if there is none."""
    return _measure(policy.model, policy.counter, policy.reserve, corrections)


@lru_cache(maxsize=256)
def _measure(
    model: str | None, counter: str | None, reserve: int, corrections: tuple[CounterCorrection, ...]
) -> Measure:
    return Measure(
        counter_of(model, counter), reserve=reserve, within=True, corrections=corrections
    )


class Policies:
    """The policies of one engine's sessions at work."""

    def __init__(self, tails: Tails) -> None:
        self._tails = tails

    def applied(
        self, tenant: str, state: SessionState | None, writing: SessionWrite, *, drafted: bool
    ) -> SessionWrite:
        """Return what is written, counted by the session's policy, and with the cut that is due.

        Raises NotYet if that takes messages of which there are only drafts.
        """
        policy, fresh = _policy(state, writing.events)
        adds = any(isinstance(fact, e.MessageAddedEvent) for fact in writing.events)
        anew = _sets_policy(writing.events)
        if policy is None or not (adds or anew):
            return writing
        measure = measure_of(policy, _corrections(state, writing.events))
        events = tuple(_counted(fact, measure) for fact in writing.events)
        made = _Made(state, events, measure)
        room = policy.budget - measure.counted.overhead
        left = measure.sized(max(0, made.after.cut.tokens)) if made.after.cut else 0
        due = anew or cuts.is_cut_due(_most(made.after, measure), room, policy, left)
        if not due or policy.shares:
            return SessionWrite(writing.session_id, events)
        if drafted:
            raise NotYet
        cut, summary = self._cut(tenant, None if fresh else state, made, policy)
        was = made.after.cut or Cut(1)
        if not anew and (cut.first, cut.stubs) == (was.first, was.stubs):
            return SessionWrite(writing.session_id, events)
        # The messages of this append count after the cut, as any others do.
        cut = replace(cut, tokens=cut.tokens - made.tokens)
        at = _place(events)
        cutting_events = session_rules.cut_events(cut, summary)
        return SessionWrite(writing.session_id, (*events[:at], *cutting_events, *events[at:]))

    def trimmed(
        self, tenant: str, state: SessionState, policy: WindowPolicy
    ) -> tuple[Cut, Summary | None]:
        """Return the cut of a session down to the budget of a policy, whether or not one is due."""
        whole = replace(policy, low=1 - 1e-9, high=1.0)
        made = _Made(state, (), measure_of(policy, state.corrections))
        cut, summary = self._cut(tenant, state, made, whole)
        # What is trimmed is so for the session's own windows too.
        most = max(policy.budget, state.policy.budget if state.policy else 0)
        return replace(cut, budget=most), summary

    def _cut(
        self, tenant: str, before: SessionState | None, made: _Made, policy: WindowPolicy
    ) -> tuple[Cut, Summary | None]:
        after, measure = made.after, made.measure
        room = policy.budget - measure.counted.overhead
        pieces, fixed, cut = list[WindowMessage](), 0, None
        if before is not None:
            parts = Parts(self._tails.of(tenant, before), before, measure, policy.budget)
            pieces, fixed = parts.live(2 * room + measure.sized(made.tokens))
            cut = parts.cut
        live = CutInput([*pieces, *made.pieces], fixed + made.fixed, room, cut, after.summary)
        found = cuts.plan_cut(live, policy, measure.count)
        if found is None:
            size = live.fixed + sum(piece.tokens for piece in live.pieces)
            size += after.summary.tokens if after.summary else 0
            found = replace(cut or Cut(1), budget=policy.budget, tokens=size), None
        cut, summary = found
        if summary is not None:
            summary = replace(summary, tokens=measure.unsized(summary.tokens))
        return replace(cut, tokens=measure.unsized(cut.tokens)), summary


class _Made:
    """What some events lead to: the state after them, and their messages, with those that stay apart."""

    def __init__(
        self, state: SessionState | None, events: Iterable[e.SessionEvent], measure: Measure
    ) -> None:
        self.measure = measure
        self.pieces: list[WindowMessage] = []
        self.fixed = self.tokens = 0
        for fact in events:
            before = state
            state = session_rules.evolve_one(before, fact, time_us=0)
            if isinstance(fact, e.MessageAddedEvent) and before is not None:
                self.tokens += fact.tokens
                size = measure.sized(fact.tokens)
                if (state.kept, state.pins) == (before.kept, before.pins):
                    self.pieces.append(WindowMessage(state.message_count, fact.message, size))
                else:
                    self.fixed += size
        assert state is not None, "what has no session has no policy"
        self.after = state


def _policy(
    state: SessionState | None, events: Iterable[e.SessionEvent]
) -> tuple[WindowPolicy | None, bool]:
    """Return the policy that is in force after some events, and whether they begin a generation."""
    policy, fresh = (state.policy if state else None), False
    for fact in events:
        if isinstance(fact, e.SessionCreatedEvent):
            policy, fresh = fact.policy, True
        elif isinstance(fact, e.SessionResetEvent):
            fresh = True
        elif isinstance(fact, e.SessionUpdatedEvent) and fact.policy is not msgspec.UNSET:
            policy = fact.policy
    return policy, fresh


def _corrections(
    state: SessionState | None, events: Iterable[e.SessionEvent]
) -> tuple[CounterCorrection, ...]:
    """Return the corrections that a session has, or begins with."""
    begun = (fact.corrections for fact in events if isinstance(fact, e.SessionCreatedEvent))
    return next(begun, state.corrections if state else ())


def _sets_policy(events: Iterable[e.SessionEvent]) -> bool:
    return any(
        isinstance(fact, e.SessionUpdatedEvent) and fact.policy is not msgspec.UNSET
        for fact in events
    )


def _counted(fact: e.SessionEvent, measure: Measure) -> e.SessionEvent:
    if not isinstance(fact, e.MessageAddedEvent):
        return fact
    return e.MessageAddedEvent(fact.message, measure.plain(fact.message), measure.key)


def _most(state: SessionState, measure: Measure) -> int:
    """Return what the live window has at most: each message's size was rounded up."""
    if measure.ratio == 1.0:
        return state.live
    count = state.message_count - (state.cut.first - 1 if state.cut else 0) + len(state.kept)
    return measure.sized(state.live) + count


def _place(events: Sequence[e.SessionEvent]) -> int:
    """Return where a cut goes: before what a model saw and said, which belong together."""
    for at, fact in enumerate(events):
        if isinstance(fact, (e.MessageAddedEvent, e.WindowRecordedEvent)):
            return at
    return len(events)
