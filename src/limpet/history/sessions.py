"""The rules of sessions: `decide` turns a command into events or refuses it; `evolve` folds events into state.

Both are pure: no clock, no randomness, no I/O. `evolve` never refuses, because the log is a record of
what happened. `decide` is the only place that refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from limpet import errors
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values import messages
from limpet.core.values.context import WindowSelection, has_high_priority
from limpet.core.values.json_values import freeze
from limpet.core.values.memory_records import with_profile_prompt
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import (
    Cut,
    EndReason,
    ReportedUsage,
    SessionState,
    SessionStatus,
    Summary,
)
from limpet.history import forking, offloading, pairing, updating
from limpet.history.checking import checked_metadata, checked_title

GIVEN = "given"
"""The counter's name of a count that the caller gave."""

PREVIEW_CHARS = 80

KEPT = (MessageCategory.SYSTEM, MessageCategory.CONTEXT)

replace = msgspec.structs.replace
encode = msgspec.json.encode


class Writing(msgspec.Struct, frozen=True):
    """The events that a command makes in one session; `base` is the session and version that they follow."""

    session_id: str
    events: tuple[e.SessionEvent, ...]
    base: tuple[str, int] | None = None


def decide(state: SessionState | None, command: c.SessionCommand) -> tuple[Writing, ...]:
    """Return the events that a command makes, per session; none if nothing would change.

    `state` is the state of the command's session. Raises a kind of Refused, Conflict or NotFound.
    """
    match command:
        case c.AddMessages():
            return _write(command.session_id, messages_added(state, command))
        case c.CreateSession():
            return _write(command.session_id, _create(state, command))
        case c.UpdateSession():
            return _write(
                command.session_id, updating.updates(known(state, command.session_id), command)
            )
        case c.ContinueSession():
            return _continue(open_state(state, command.session_id), command)
        case c.EndSession():
            return _write(command.session_id, _end(known(state, command.session_id), command))
        case c.ResetSession():
            fresh = evolve_one(known(state, command.session_id), e.SessionResetEvent(), time_us=0)
            said = with_profile_prompt(command.messages, command.opening)
            return _write(command.session_id, [e.SessionResetEvent(), *_added(fresh, said)])
        case c.ForkSession():
            begun = forking.forked(known(state, command.session_id), command)
            return (Writing(begun.id, (begun,), (begun.source, begun.version)),)
        case c.RewindSession():
            back = forking.rewound(open_state(state, command.session_id), command)
            return (Writing(back.state.id, (back,), (back.state.id, back.to)),) if back else ()
        case c.TrimSession():
            open_state(state, command.session_id)
            return _write(command.session_id, cut_events(command.cut, command.summary))
        case c.SummarizeSession():
            return _write(
                command.session_id, _summarize(open_state(state, command.session_id), command)
            )
        case c.OffloadSession():
            found = known(state, command.session_id)
            return _write(command.session_id, offloading.offloaded(found, command))
    assert_never(command)


def _write(session_id: str, events: Iterable[e.SessionEvent]) -> tuple[Writing, ...]:
    made = tuple(events)
    return (Writing(session_id, made),) if made else ()


def known(state: SessionState | None, session_id: str) -> SessionState:
    """Return the state of an existing session; raise SessionNotFound if it does not exist."""
    if state is None or state.gone:
        raise unknown(session_id)
    return state


def unknown(session_id: str) -> errors.SessionNotFound:
    """Return the error for a session that does not exist."""
    return errors.SessionNotFound(
        f"there is no session {session_id!r}.",
        hint="List them, or create it with get_or_create_session.",
        facts={"session": session_id},
    )


def open_state(state: SessionState | None, session_id: str) -> SessionState:
    """Return the state of an active session; raise SessionEnded if it has ended."""
    if state is not None and state.status is SessionStatus.ACTIVE and not state.gone:
        return state
    ended = known(state, session_id)
    raise errors.SessionEnded(
        f"the session {session_id!r} has ended ({ended.end_reason}).",
        hint="reset_session starts its next generation.",
        facts={"session": session_id, "reason": str(ended.end_reason)},
    )


def follows(state: SessionState | None, before: SessionState) -> bool:
    """Return whether a session continues another: it exists, and each names the other."""
    return (
        state is not None
        and not state.gone
        and state.continued_from == before.id
        and state.id in before.continuations
    )


def _create(state: SessionState | None, command: c.CreateSession) -> list[e.SessionEvent]:
    said = with_profile_prompt(command.messages, command.opening)
    if state is not None and not state.gone:
        if command.or_get and state.status is SessionStatus.ACTIVE:
            return []
        if command.or_get:
            fresh = evolve_one(state, e.SessionResetEvent(), time_us=0)
            return [e.SessionResetEvent(), *_added(fresh, said)]
        raise taken(command.session_id)
    created = e.SessionCreatedEvent(
        id=command.session_id,
        user_id=command.user_id,
        title=checked_title(command.title),
        metadata=checked_metadata(command.metadata),
        policy=command.policy,
    )
    return [created, *_added(evolve_one(state, created, time_us=0), said)]


def taken(session_id: str) -> errors.DuplicateSession:
    """Return the error for a session id that is taken."""
    return errors.DuplicateSession(
        f"a session {session_id!r} exists already.",
        hint="Use get_or_create_session to open it, or choose another id.",
        facts={"session": session_id},
    )


def messages_added(
    state: SessionState | None, command: c.AddMessages
) -> tuple[e.SessionEvent, ...]:
    """Return the events of messages that are added to a session."""
    made = _added(open_state(state, command.session_id), command.messages)
    if command.window is not None or command.usage is not None:
        made[:0] = _call_events(command.window, command.usage, len(made))
    return tuple(made)


def _call_events(
    window: WindowSelection | None, usage: ReportedUsage | None, messages: int
) -> list[e.SessionEvent]:
    """Return the events that record a model call: its usage, and its window right before the answer."""
    made: list[e.SessionEvent] = []
    if usage is not None:
        made.append(e.SessionUpdatedEvent(usage=usage))
    if window is not None:
        made.append(e.WindowRecordedEvent(window, messages))
    return made


def cut_events(cut: Cut | None, summary: Summary | None) -> list[e.SessionEvent]:
    """Return the event of a cut, followed by that of the summary of what it takes out."""
    made: list[e.SessionEvent] = [] if cut is None else [e.WindowCutEvent(cut)]
    return made if summary is None else [*made, e.SessionSummarizedEvent(summary)]


def _summarised_up_to(state: SessionState, summary: Summary) -> int:
    """Return the last message under the summary that this one continues: a written one continues a written one."""
    before = state.written if summary.author else state.summary
    return before.last if before else 0


def _summarize(state: SessionState, command: c.SummarizeSession) -> list[e.SessionEvent]:
    stands = _summarised_up_to(state, command.summary)
    out = state.cut.first - 1 if state.cut else 0
    if command.generation != state.generation or stands != command.after:
        raise errors.Conflict(
            "another caller summarised the session first.",
            hint="Nothing was changed. Summarise again if messages are still without a summary.",
            facts={"session": state.id, "summarised": stands, "expected": command.after},
        )
    if state.erased > command.seen:
        raise errors.Conflict(
            "messages were erased while they were summarised.",
            hint="Nothing was changed. Summarise again: erased messages are left out then.",
            facts={"session": state.id},
        )
    live = state.summary.last if state.summary and command.summary.author else 0
    if not max(command.after, live - 1) < command.summary.last <= out:
        # The messages were outside the window when they were read; a later cut brought them back.
        raise errors.Conflict(
            f"messages up to #{command.summary.last:,} can't be summarised now; #{out:,} is the last one outside the window.",
            hint="Nothing was changed. Summarise again if messages are still without a summary.",
            facts={"session": state.id},
        )
    return [e.SessionSummarizedEvent(command.summary)]


def _added(state: SessionState, messages: Sequence[Message]) -> list[e.SessionEvent]:
    made: list[e.SessionEvent] = []
    open_calls, answered = state.open_calls, state.answered
    before: Message | None = None
    for message in messages:
        if before is not None:
            open_calls, answered = pairing.after(open_calls, answered, before)
        pairing.check(open_calls, answered, message)
        made.append(counted(message))
        before = message
    return made


def counted(message: Message) -> e.MessageAddedEvent:
    """Return the event of a message with its token count and the counter's name."""
    if message.tokens > 0:
        return e.MessageAddedEvent(message, message.tokens, GIVEN)
    return e.MessageAddedEvent(
        message, message.fallback_estimate_tokens(), messages.ESTIMATE_COUNTER
    )


def _end(state: SessionState, command: c.EndSession) -> list[e.SessionEvent]:
    if command.idle_since_us is not None and state.active_us > command.idle_since_us:
        return []
    if state.status is SessionStatus.ENDED and command.reason is not EndReason.DELETED:
        return []
    return [e.SessionEndedEvent(command.reason)]


def _continue(state: SessionState, command: c.ContinueSession) -> tuple[Writing, ...]:
    created = e.SessionCreatedEvent(
        id=command.next_id,
        user_id=state.user_id,
        title=state.title,
        metadata=state.metadata,
        root_id=state.root_id or state.id,
        continued_from=state.id,
        continuation_index=state.continuation_index + 1,
        policy=state.policy,
        summary=command.summary,
        corrections=state.corrections,
    )
    fresh = evolve_one(None, created, time_us=0)
    events = _added(fresh, (*command.carried, *command.messages))
    at = len(command.carried)
    events[at:at] = _call_events(command.window, command.usage, len(command.messages))
    return (
        Writing(state.id, (e.SessionContinuedEvent(command.next_id),)),
        Writing(command.next_id, (created, *events)),
    )


def evolve(state: SessionState | None, recorded: e.RecordedEvent) -> SessionState:
    """Return the state after a recorded event."""
    after = evolve_one(state, recorded.event, time_us=recorded.time_us)
    version, until = recorded.version, after.until
    # A session created again under a used id begins above the versions of the earlier one.
    began = version if isinstance(recorded.event, e.SessionCreatedEvent) else after.began
    return replace(after, version=version, began=began, until=0 if version >= until else until)


def evolve_one(state: SessionState | None, event: e.SessionEvent, *, time_us: int) -> SessionState:
    """Return the state after an event, one version later."""
    if state is None:
        return _first(event, time_us)
    # Tested first because nearly every event is a message.
    if isinstance(event, e.MessageAddedEvent):
        return _with_message(state, event, time_us)
    if isinstance(event, forking.Went):
        return forking.evolved(event, time_us)
    version = state.version + 1
    match event:
        case e.SessionCreatedEvent():
            return _begun(state, event, time_us)
        case e.WindowRecordedEvent():
            return replace(state, version=version, active_us=time_us)
        case e.WindowCutEvent():
            return replace(
                state, version=version, active_us=time_us, cut=event.cut, live=event.cut.tokens
            )
        case e.SessionSummarizedEvent():
            return _summarized(state, event, time_us)
        case e.SessionUpdatedEvent():
            return updating.evolved(state, event, time_us)
        case e.SessionContinuedEvent():
            links = (*state.continuations, event.to)
            return replace(
                state,
                version=version,
                active_us=time_us,
                continuations=links,
                open_calls=(),
                answered=(),
            )
        case e.SessionResetEvent():
            return _next_generation(state, time_us)
        case e.SessionEndedEvent() | e.SessionOffloadedEvent() | e.SessionErasedEvent():
            return _ended(state, event, time_us)
    assert_never(event)


def _first(event: e.SessionEvent, time_us: int) -> SessionState:
    if isinstance(event, e.SessionCreatedEvent):
        return _begun(None, event, time_us)
    if isinstance(event, forking.Went):
        return forking.evolved(event, time_us)
    raise errors.Corrupt("a session's log does not begin with its creation.")


def _summarized(state: SessionState, event: e.SessionSummarizedEvent, time_us: int) -> SessionState:
    more = event.summary.tokens - (state.summary.tokens if state.summary else 0)
    version, live = state.version + 1, state.live + more
    written = event.summary if event.summary.author else state.written
    return replace(
        state, version=version, active_us=time_us, summary=event.summary, written=written, live=live
    )


def _ended(
    state: SessionState,
    event: e.SessionEndedEvent | e.SessionOffloadedEvent | e.SessionErasedEvent,
    time_us: int,
) -> SessionState:
    if isinstance(event, e.SessionOffloadedEvent):
        return offloading.evolved(state, event)
    if isinstance(event, e.SessionErasedEvent):
        # An erasure does not count as activity.
        return replace(state, version=state.version + 1, erased=state.version + 1)
    deleted = event.reason is EndReason.DELETED
    status = SessionStatus.DELETED if deleted else SessionStatus.ENDED
    # A timeout does not count as activity.
    active = state.active_us if event.reason is EndReason.TIMEOUT else time_us
    return replace(
        state, version=state.version + 1, active_us=active, status=status, end_reason=event.reason
    )


def _begun(state: SessionState | None, event: e.SessionCreatedEvent, time_us: int) -> SessionState:
    before = SessionState(id=event.id, generation=-1) if state is None or event.until else state
    return SessionState(
        id=event.id,
        version=before.version + 1,
        user_id=event.user_id,
        title=event.title,
        metadata=freeze(event.metadata),
        created_us=time_us,
        active_us=time_us,
        generation=before.generation + 1,
        began=before.version + 1,
        ordinal=before.ordinal,
        ordinal_began=before.ordinal,
        root_id=event.root_id,
        continued_from=event.continued_from,
        continuation_index=event.continuation_index,
        policy=event.policy,
        summary=event.summary,
        written=event.summary if event.summary and event.summary.author else None,
        corrections=event.corrections,
        live=event.summary.tokens if event.summary else 0,
        rebased=before.rebased,
        handed=before.generation + 1,
        until=event.until,
    )


def _next_generation(state: SessionState, time_us: int) -> SessionState:
    return SessionState(
        id=state.id,
        version=state.version + 1,
        user_id=state.user_id,
        title=state.title,
        metadata=state.metadata,
        created_us=time_us,
        active_us=time_us,
        generation=state.generation + 1,
        began=state.version + 1,
        ordinal=state.ordinal,
        ordinal_began=state.ordinal,
        policy=state.policy,
        corrections=state.corrections,
        forked_from=state.forked_from,
        rebased=state.rebased,
        handed=state.handed,
        handed_more=state.handed_more,
        until=state.until,
    )


def _with_message(state: SessionState, event: e.MessageAddedEvent, time_us: int) -> SessionState:
    message, version, ordinal = event.message, state.version + 1, state.ordinal + 1
    open_calls, answered = pairing.after(state.open_calls, state.answered, message)
    asked = message.role == "user"
    after = replace(
        state,
        version=version,
        ordinal=ordinal,
        active_us=time_us,
        tokens=state.tokens + event.tokens,
        live=state.live + event.tokens,
        open_calls=open_calls,
        answered=answered,
        turn=version if asked else state.turn,
        turn_ordinal=ordinal if asked else state.turn_ordinal,
        group=version if message.tool_calls else state.group,
    )
    # The rest applies to few messages, and every replaced field costs time.
    if message.origin is not None:
        carried, tokens = state.carried + 1, state.carried_tokens + event.tokens
        after = replace(after, carried=carried, carried_tokens=tokens)
    if message.category in KEPT:
        after = replace(after, kept=(*state.kept, version))
    elif _pinned(state, message):
        after = replace(after, pins=(*state.pins, version))
    return after if state.preview or not asked else replace(after, preview=preview(message))


def _pinned(state: SessionState, message: Message) -> bool:
    """Return whether a window always looks at a message: the first system prompt, or one whose metadata asks for it."""
    prompt = message.role == "system" and not state.message_count
    return prompt or (bool(message.metadata) and has_high_priority(message.metadata))


def preview(message: Message) -> str | None:
    """Return the beginning of a message, for listings of sessions without a title."""
    text = message.content if isinstance(message.content, str) else ""
    return " ".join(text[:PREVIEW_CHARS].split()) or None
