"""The rules of sessions: `decide` turns a command into events, `evolve` folds events into state.

Pure: no clock, no randomness, no I/O. `decide` may refuse; `evolve` never does, because the log is
a record of what happened.

Pairing: while calls are open only their results may be added, in any order, in one message or several, so that no
provider rejects a history. Call ids are unique only among open calls: providers reuse them. Continuation: the next
session begins at a user message if one comes in time. Otherwise the current turn is carried over, so that no call
loses its result and the model keeps its instruction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeGuard, assert_never

import msgspec

from limpet import errors, limits
from limpet.core.values import commands, messages
from limpet.core.values import events as e
from limpet.core.values.context import WindowSelection, has_high_priority
from limpet.core.values.memory_records import with_profile_prompt
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import (
    DERIVED_METADATA,
    Cut,
    EndReason,
    OpenCall,
    ReportedUsage,
    SessionState,
    SessionStatus,
    Summary,
    corrections_with_usage,
)
from limpet.core.values.validation import Json, check_size, checked_str, freeze

CALLER_COUNTER: Final = "given"
"""The counter name of a token count that the caller gave."""
PREVIEW_CHARS: Final = 80
TRANSITION_TYPE: Final = "session_transition"
ALWAYS_VISIBLE_CATEGORIES: Final = (MessageCategory.SYSTEM, MessageCategory.CONTEXT)

OpenToolCalls = tuple[OpenCall, ...]
ForkOrRewindEvent = e.SessionForkedEvent | e.SessionRewoundEvent
"""Events that contain the whole state after them."""

encode, replace = msgspec.json.encode, msgspec.structs.replace


def check_message(open_calls: OpenToolCalls, answered: tuple[str, ...], message: Message) -> None:
    """Raise a PairingError if the message may not follow."""
    if message.role == "tool":
        _check_results(open_calls, answered, message)
        return
    if open_calls:
        waiting = ", ".join(f"{call.name} ({call.call_id})" for call in open_calls[:5])
        raise errors.OpenCalls(
            f"{len(open_calls)} tool call(s) wait for results: {waiting}.",
            hint="Add their results first, or close them with close_pending_calls().",
            facts={"calls": [call.call_id for call in open_calls]},
        )
    if len(message.tool_calls) > 1:
        ids = [call.id for call in message.tool_calls]
        if len(set(ids)) < len(ids):
            raise errors.InvalidMessage("two tool calls of one message have the same id.", facts={"calls": ids})


def _check_results(open_calls: OpenToolCalls, answered: tuple[str, ...], message: Message) -> None:
    waiting = {call.call_id for call in open_calls}
    done = set(answered)
    for result in message.tool_results:
        if result.tool_call_id in waiting:
            waiting.remove(result.tool_call_id)
            done.add(result.tool_call_id)
        elif result.tool_call_id in done:
            raise errors.SecondResult(
                f"the call {result.tool_call_id} already has its result.", facts={"call": result.tool_call_id}
            )
        else:
            raise errors.ResultWithoutCall(
                f"no open call has the id {result.tool_call_id}.",
                hint="pending_calls() lists the open ones.",
                facts={"call": result.tool_call_id, "open": sorted(waiting)},
            )


def calls_after(
    open_calls: OpenToolCalls, answered: tuple[str, ...], message: Message
) -> tuple[OpenToolCalls, tuple[str, ...]]:
    """Return the open and the answered calls after a message."""
    if message.tool_calls:
        return tuple(OpenCall(message.id, call.id, call.name) for call in message.tool_calls), ()
    if message.tool_results:
        now = tuple(result.tool_call_id for result in message.tool_results)
        return tuple(call for call in open_calls if call.call_id not in now), (*answered, *now)
    return open_calls, ()


def checked_title(title: str | None) -> str | None:
    """Return the title; raise TooLarge past its limit."""
    return None if title is None else checked_str("a title", title, limits.TITLE_BYTES_MAX)


def checked_metadata(metadata: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return frozen metadata; raise TooLarge past its limit, InvalidRequest for derived keys."""
    frozen = freeze(metadata)
    size = len(msgspec.json.encode(frozen))
    hint = "Keep large values in a message, or outside."
    check_size("the metadata", size, limits.METADATA_BYTES_MAX, hint=hint)
    for name in DERIVED_METADATA:
        if name in frozen:
            raise errors.InvalidRequest(f"metadata {name!r} is derived by Limpet and can't be set.")
    return frozen


def fork_event(source: SessionState, command: commands.ForkSession) -> e.SessionForkedEvent:
    """Return the event that creates a fork; raise InvalidRequest if the user differs."""
    there = _target_state(command.there)
    if command.user_id is not None and command.user_id != source.user_id:
        raise errors.InvalidRequest(
            "a fork belongs to the same user as its source.",
            hint="For another user, create a session and add the messages to it.",
            facts={"session": source.id},
        )
    title = source.title if command.title is None else checked_title(command.title)
    metadata = source.metadata if command.metadata is None else checked_metadata(command.metadata)
    state = forked_state(there, there.version + 1, source.id, title=title, metadata=metadata)
    state = replace(state, id=command.fork_id, user_id=source.user_id, until=0)
    return e.SessionForkedEvent(command.fork_id, source.id, there.version, state)


def forked_state(
    there: SessionState, version: int, source_id: str, *, title: str | None, metadata: Mapping[str, Json]
) -> SessionState:
    """Return the first state of a fork, at `version`, that was forked from the state `there`."""
    return replace(
        there,
        version=version,
        rebased=version,
        status=SessionStatus.ACTIVE,
        end_reason=None,
        title=title,
        metadata=metadata,
        carried=0,
        carried_tokens=0,
        root_id=None,
        continued_from=None,
        continuations=(),
        continuation_index=0,
        forked_from=(source_id, version - 1),
        handed=there.generation,
        handed_more=(),
    )


def rewind_event(state: SessionState, command: commands.RewindSession) -> e.SessionRewoundEvent | None:
    """Return the event that rewinds a session; None if nothing would change."""
    there = _target_state(command.there)
    if there.ordinal == state.ordinal and there.continuations == state.continuations:
        return None
    return e.SessionRewoundEvent(there.version, rewound_state(there, state, state.version + 1, until=0))


def rewound_state(there: SessionState, state: SessionState, version: int, *, until: int) -> SessionState:
    """Return the state of a session that is rewound to `there`. Title and metadata do not change."""
    return replace(
        there, version=version, rebased=version, title=state.title, metadata=state.metadata,
        handed=state.handed, handed_more=state.handed_more, until=until,
    )  # fmt: skip


def _target_state(state: SessionState | None) -> SessionState:
    assert state is not None, "the engine fills in the target state"
    return state


def evolve_rebased(event: ForkOrRewindEvent, time_us: int) -> SessionState:
    """Return the state of a session that was forked or rewound."""
    there = event.state
    created = time_us if isinstance(event, e.SessionForkedEvent) else there.created_us
    return replace(there, metadata=freeze(there.metadata), created_us=created, active_us=time_us)


def update_events(state: SessionState, command: commands.UpdateSession) -> list[e.SessionEvent]:
    """Return the event of a command that changes something; an empty list otherwise."""
    title = command.title
    if title is not msgspec.UNSET:
        title = checked_title(title)
        title = msgspec.UNSET if title == state.title else title
    for name in command.drop_metadata:
        if name in command.set_metadata:
            raise errors.InvalidRequest(f"metadata {name!r} can't be both set and dropped.")
    setting = {
        k: v
        for k, v in command.set_metadata.items()
        if k not in state.metadata or encode(state.metadata[k]) != encode(v)
    }
    dropping = tuple(key for key in command.drop_metadata if key in state.metadata)
    policy = msgspec.UNSET if command.policy == state.policy else command.policy
    if title is msgspec.UNSET and policy is msgspec.UNSET and not setting and not dropping:
        return []
    event = e.SessionUpdatedEvent(title=title, set_metadata=freeze(setting), drop_metadata=dropping, policy=policy)
    checked_metadata(_updated_metadata(state, event))
    return [event]


def _updated_metadata(state: SessionState, event: e.SessionUpdatedEvent) -> Mapping[str, Json]:
    merged = {**state.metadata, **event.set_metadata}
    return freeze({key: value for key, value in merged.items() if key not in event.drop_metadata})


def evolve_updated(state: SessionState, event: e.SessionUpdatedEvent, time_us: int) -> SessionState:
    """Return the state after a change."""
    known, usage = state.corrections, event.usage
    return replace(
        state,
        version=state.version + 1,
        active_us=time_us,
        title=state.title if event.title is msgspec.UNSET else event.title,
        metadata=_updated_metadata(state, event),
        policy=state.policy if event.policy is msgspec.UNSET else event.policy,
        corrections=known if usage is msgspec.UNSET else corrections_with_usage(known, usage),
    )


def offload_events(state: SessionState, command: commands.OffloadSession) -> list[e.SessionEvent]:
    """Return the event that a generation was offloaded; an empty list if that is recorded already."""
    if is_offloaded(state, command.generation):
        return []
    # A continued session takes no more messages.
    over = state.status is SessionStatus.ENDED or bool(state.continuations)
    if command.generation > state.generation or (command.generation == state.generation and not over):
        raise errors.InvalidRequest(
            f"generation {command.generation} of the session {state.id!r} has not ended.",
            facts={"session": state.id, "generation": state.generation},
        )
    return [e.SessionOffloadedEvent(command.generation, command.engine)]


def is_offloaded(state: SessionState, generation: int) -> bool:
    """Whether long-term memory has a generation, or no longer needs it because it was deleted."""
    return generation < state.handed or generation in state.handed_more


def evolve_offloaded(state: SessionState, event: e.SessionOffloadedEvent) -> SessionState:
    """Return the state after a generation was offloaded, which does not count as activity."""
    more = {*state.handed_more, event.generation}
    handed = state.handed
    while handed in more:
        handed += 1
    left = tuple(sorted(generation for generation in more if generation > handed))
    return replace(state, version=state.version + 1, handed=handed, handed_more=left)


def is_fully_offloaded(state: SessionState) -> bool:
    """Whether long-term memory has all ended generations of a session, so that its history may be destroyed.

    A generation that has not ended is ignored.
    """
    if state.user_id is None or state.status is SessionStatus.DELETED:
        return True
    ended = state.generation + (state.status is SessionStatus.ENDED)
    return all(is_offloaded(state, generation) for generation in range(state.handed, ended))


class SessionWrite(msgspec.Struct, frozen=True):
    """The events that a command makes in one session; `base` is the session and version that they follow."""

    session_id: str
    events: tuple[e.SessionEvent, ...]
    base: tuple[str, int] | None = None


def decide(state: SessionState | None, command: commands.SessionCommand) -> tuple[SessionWrite, ...]:
    """Return the events that a command makes, per session; none if nothing would change.

    `state` is the state of the command's session. Raises a kind of Refused, Conflict or NotFound.
    """
    name = command.session_id
    events: Iterable[e.SessionEvent]
    match command:
        case commands.AddMessages():
            events = add_messages_events(state, command)
        case commands.CreateSession():
            events = _create_events(state, command)
        case commands.UpdateSession():
            events = update_events(existing_state(state, name), command)
        case commands.ContinueSession():
            return _continuation_writes(active_state(state, name), command)
        case commands.EndSession():
            events = _end_events(existing_state(state, name), command)
        case commands.ResetSession():
            said = with_profile_prompt(command.messages, command.opening)
            events = _reset_events(existing_state(state, name), said)
        case commands.ForkSession():
            begun = fork_event(existing_state(state, name), command)
            return (SessionWrite(begun.id, (begun,), (begun.source, begun.version)),)
        case commands.RewindSession():
            back = rewind_event(active_state(state, name), command)
            return (SessionWrite(name, (back,), (name, back.to)),) if back else ()
        case commands.TrimSession():
            active_state(state, name)
            events = cut_events(command.cut, command.summary)
        case commands.SummarizeSession():
            events = _summarize_events(active_state(state, name), command)
        case commands.OffloadSession():
            events = offload_events(existing_state(state, name), command)
        case _:
            assert_never(command)
    made = tuple(events)
    return (SessionWrite(name, made),) if made else ()


def existing_state(state: SessionState | None, session_id: str) -> SessionState:
    """Return the state of an existing session; raise SessionNotFound if it does not exist."""
    if state is None or state.hidden:
        raise unknown_session_error(session_id)
    return state


def unknown_session_error(session_id: str) -> errors.SessionNotFound:
    """Return the error for a session that does not exist."""
    return errors.SessionNotFound(
        f"there is no session {session_id!r}.",
        hint="List them, or create it with get_or_create_session.",
        facts={"session": session_id},
    )


def active_state(state: SessionState | None, session_id: str) -> SessionState:
    """Return the state of an active session; raise SessionEnded if it has ended."""
    if state is not None and state.status is SessionStatus.ACTIVE and not state.hidden:
        return state
    ended = existing_state(state, session_id)
    raise errors.SessionEnded(
        f"the session {session_id!r} has ended ({ended.end_reason}).",
        hint="reset_session starts its next generation.",
        facts={"session": session_id, "reason": str(ended.end_reason)},
    )


def is_continuation_of(state: SessionState | None, before: SessionState) -> bool:
    """Return whether a session continues another: it exists, and each names the other."""
    return (
        state is not None
        and not state.hidden
        and state.continued_from == before.id
        and state.id in before.continuations
    )


def find_continuation(state: SessionState, find: Callable[[str], SessionState | None]) -> SessionState | None:
    """Return the session that continues another, the newest first; None if none does."""
    found = map(find, reversed(state.continuations))
    return next((after for after in found if is_continuation_of(after, state)), None)


def conversation(state: SessionState, find: Callable[[str], SessionState | None]) -> list[SessionState]:
    """Return the sessions of the conversation that a session is part of, first to last."""
    parts = {state.id: state}
    before = state
    while source := find(before.continued_from) if before.continued_from else None:
        # Imported or damaged links may form a circle.
        if source.id in parts or not is_continuation_of(before, source):
            break
        parts = {source.id: source, **parts}
        before = source
    while (after := find_continuation(state, find)) and after.id not in parts:
        parts[after.id] = state = after
    return list(parts.values())


def _create_events(state: SessionState | None, command: commands.CreateSession) -> list[e.SessionEvent]:
    said = with_profile_prompt(command.messages, command.opening)
    if state is not None and not state.hidden:
        if command.or_get and state.status is SessionStatus.ACTIVE:
            return []
        if command.or_get:
            return _reset_events(state, said)
        raise duplicate_session_error(command.session_id)
    created = e.SessionCreatedEvent(
        id=command.session_id,
        user_id=command.user_id,
        title=checked_title(command.title),
        metadata=checked_metadata(command.metadata),
        policy=command.policy,
    )
    return [created, *_message_events(evolve_one(state, created, time_us=0), said)]


def _reset_events(state: SessionState, said: Sequence[Message]) -> list[e.SessionEvent]:
    reset = e.SessionResetEvent()
    return [reset, *_message_events(evolve_one(state, reset, time_us=0), said)]


def duplicate_session_error(session_id: str) -> errors.DuplicateSession:
    """Return the error for a session id that is taken."""
    return errors.DuplicateSession(
        f"a session {session_id!r} exists already.",
        hint="Use get_or_create_session to open it, or choose another id.",
        facts={"session": session_id},
    )


def add_messages_events(state: SessionState | None, command: commands.AddMessages) -> tuple[e.SessionEvent, ...]:
    """Return the events of messages that are added to a session."""
    made = _message_events(active_state(state, command.session_id), command.messages)
    if command.window is not None or command.usage is not None:
        made[:0] = _model_call_events(command.window, command.usage, len(made))
    return tuple(made)


def _model_call_events(
    window: WindowSelection | None, usage: ReportedUsage | None, messages: int
) -> list[e.SessionEvent]:
    """Return the events that record a model call: its usage, and its window right before the answer."""
    made: list[e.SessionEvent] = [] if usage is None else [e.SessionUpdatedEvent(usage=usage)]
    return made if window is None else [*made, e.WindowRecordedEvent(window, messages)]


def cut_events(cut: Cut | None, summary: Summary | None) -> list[e.SessionEvent]:
    """Return the event of a cut, followed by that of the summary of what it takes out."""
    made: list[e.SessionEvent] = [] if cut is None else [e.WindowCutEvent(cut)]
    return made if summary is None else [*made, e.SessionSummarizedEvent(summary)]


def _summarised_up_to(state: SessionState, summary: Summary) -> int:
    """Return the last message of the summary that `summary` continues; a written one continues a written one."""
    before = state.written if summary.author else state.summary
    return before.last if before else 0


def _summarize_events(state: SessionState, command: commands.SummarizeSession) -> list[e.SessionEvent]:
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


def _message_events(state: SessionState, messages: Sequence[Message]) -> list[e.SessionEvent]:
    made: list[e.SessionEvent] = []
    open_calls, answered = state.open_calls, state.answered
    for message in messages:
        check_message(open_calls, answered, message)
        made.append(counted_message_event(message))
        open_calls, answered = calls_after(open_calls, answered, message)
    return made


def counted_message_event(message: Message) -> e.MessageAddedEvent:
    """Return the event of a message with its token count and the counter's name."""
    if message.tokens > 0:
        return e.MessageAddedEvent(message, message.tokens, CALLER_COUNTER)
    return e.MessageAddedEvent(message, message.fallback_estimate_tokens(), messages.ESTIMATE_COUNTER)


def _end_events(state: SessionState, command: commands.EndSession) -> list[e.SessionEvent]:
    if command.idle_since_us is not None and state.active_us > command.idle_since_us:
        return []
    if state.status is SessionStatus.ENDED and command.reason is not EndReason.DELETED:
        return []
    return [e.SessionEndedEvent(command.reason)]


def _continuation_writes(state: SessionState, command: commands.ContinueSession) -> tuple[SessionWrite, ...]:
    created = e.SessionCreatedEvent(
        id=command.next_id, user_id=state.user_id, title=state.title, metadata=state.metadata,
        root_id=state.root_id or state.id, continued_from=state.id,
        continuation_index=state.continuation_index + 1, policy=state.policy, summary=command.summary,
        corrections=state.corrections,
    )  # fmt: skip
    fresh = evolve_one(None, created, time_us=0)
    events = _message_events(fresh, (*command.carried, *command.messages))
    at = len(command.carried)
    events[at:at] = _model_call_events(command.window, command.usage, len(command.messages))
    return (
        SessionWrite(state.id, (e.SessionContinuedEvent(command.next_id),)),
        SessionWrite(command.next_id, (created, *events)),
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
    # Tested first because nearly every event is a message.
    if state is not None and isinstance(event, e.MessageAddedEvent):
        return _evolve_message(state, event, time_us)
    if isinstance(event, ForkOrRewindEvent):
        return evolve_rebased(event, time_us)
    if isinstance(event, e.SessionCreatedEvent):
        return _created_state(state, event, time_us)
    if state is None or isinstance(event, e.MessageAddedEvent):
        raise errors.Corrupt("a session's log does not begin with its creation.")
    version = state.version + 1
    match event:
        case e.WindowRecordedEvent():
            return replace(state, version=version, active_us=time_us)
        case e.WindowCutEvent():
            return replace(state, version=version, active_us=time_us, cut=event.cut, live=event.cut.tokens)
        case e.SessionSummarizedEvent():
            return _evolve_summarized(state, event, time_us)
        case e.SessionUpdatedEvent():
            return evolve_updated(state, event, time_us)
        case e.SessionContinuedEvent():
            links = (*state.continuations, event.to)
            return replace(state, version=version, active_us=time_us, continuations=links, open_calls=(), answered=())
        case e.SessionResetEvent():
            return _next_generation_state(state, time_us)
        case e.SessionEndedEvent() | e.SessionOffloadedEvent() | e.SessionErasedEvent():
            return _evolve_ended(state, event, time_us)
    assert_never(event)


def _evolve_summarized(state: SessionState, event: e.SessionSummarizedEvent, time_us: int) -> SessionState:
    more = event.summary.tokens - (state.summary.tokens if state.summary else 0)
    version, live = state.version + 1, state.live + more
    written = event.summary if event.summary.author else state.written
    return replace(state, version=version, active_us=time_us, summary=event.summary, written=written, live=live)


def _evolve_ended(
    state: SessionState, event: e.SessionEndedEvent | e.SessionOffloadedEvent | e.SessionErasedEvent, time_us: int
) -> SessionState:
    if isinstance(event, e.SessionOffloadedEvent):
        return evolve_offloaded(state, event)
    if isinstance(event, e.SessionErasedEvent):
        # An erasure does not count as activity.
        return replace(state, version=state.version + 1, erased=state.version + 1)
    deleted = event.reason is EndReason.DELETED
    status = SessionStatus.DELETED if deleted else SessionStatus.ENDED
    # A timeout does not count as activity.
    active = state.active_us if event.reason is EndReason.TIMEOUT else time_us
    return replace(state, version=state.version + 1, active_us=active, status=status, end_reason=event.reason)


def _created_state(state: SessionState | None, event: e.SessionCreatedEvent, time_us: int) -> SessionState:
    before = SessionState(id=event.id, generation=-1) if state is None or event.until else state
    return SessionState(
        id=event.id, user_id=event.user_id, title=event.title, metadata=freeze(event.metadata), policy=event.policy,
        version=before.version + 1, began=before.version + 1, generation=before.generation + 1,
        ordinal=before.ordinal, ordinal_began=before.ordinal, created_us=time_us, active_us=time_us,
        root_id=event.root_id, continued_from=event.continued_from, continuation_index=event.continuation_index,
        summary=event.summary, written=event.summary if event.summary and event.summary.author else None,
        live=event.summary.tokens if event.summary else 0, corrections=event.corrections,
        rebased=before.rebased, handed=before.generation + 1, until=event.until,
    )  # fmt: skip


def _next_generation_state(state: SessionState, time_us: int) -> SessionState:
    return SessionState(
        id=state.id, user_id=state.user_id, title=state.title, metadata=state.metadata, policy=state.policy,
        version=state.version + 1, began=state.version + 1, generation=state.generation + 1,
        ordinal=state.ordinal, ordinal_began=state.ordinal, created_us=time_us, active_us=time_us,
        corrections=state.corrections, forked_from=state.forked_from, rebased=state.rebased,
        handed=state.handed, handed_more=state.handed_more, until=state.until,
    )  # fmt: skip


def _evolve_message(state: SessionState, event: e.MessageAddedEvent, time_us: int) -> SessionState:
    message, version, ordinal = event.message, state.version + 1, state.ordinal + 1
    open_calls, answered = calls_after(state.open_calls, state.answered, message)
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
    if message.category in ALWAYS_VISIBLE_CATEGORIES:
        after = replace(after, kept=(*state.kept, version))
    elif _is_always_visible(state, message):
        after = replace(after, pins=(*state.pins, version))
    return after if state.preview or not asked else replace(after, preview=message_preview(message))


def _is_always_visible(state: SessionState, message: Message) -> bool:
    """Return whether every window considers a message: the first system prompt, or one whose metadata asks for it."""
    prompt = message.role == "system" and not state.message_count
    return prompt or (bool(message.metadata) and has_high_priority(message.metadata))


def message_preview(message: Message) -> str | None:
    """Return the beginning of a message, for listings of sessions without a title."""
    text = message.content if isinstance(message.content, str) else ""
    return " ".join(text[:PREVIEW_CHARS].split()) or None


class CarriedVersions(msgspec.Struct, frozen=True):
    """Versions of the messages to carry over: single ones, then all from `since` on (0: none)."""

    singles: tuple[int, ...]
    since: int = 0


def is_full(state: SessionState, max_messages: int) -> bool:
    """Return whether a session has its maximum of messages; those carried over into it do not count."""
    return state.uncarried_count >= max_messages


def is_simple_append(state: SessionState | None, max_messages: int | None) -> TypeGuard[SessionState]:
    """Return whether messages can be appended without further rules: the session has room, no links and no policy."""
    return (
        state is not None
        and state.policy is None
        and not state.continuations
        and state.continued_from is None
        and (max_messages is None or not is_full(state, max_messages))
    )


def carry_if_due(state: SessionState, messages: Sequence[Message], max_messages: int) -> CarriedVersions | None:
    """Return what to carry over if these messages begin a new session, else None."""
    if not is_full(state, max_messages):
        return None
    if messages[0].role == "user" and not state.open_calls:
        return CarriedVersions(_always_visible_versions(state))
    if state.uncarried_count < math.ceil(max_messages * (1 + limits.CONTINUATION_GRACE_SHARE)):
        return None
    return carry_with_turn(state, max_messages)


def carry_on_request(state: SessionState, max_messages: int) -> CarriedVersions:
    """Return what to carry over when the caller continues a session now: an open group is included."""
    if state.open_calls:
        return carry_with_turn(state, max_messages)
    return CarriedVersions(_always_visible_versions(state))


def carry_with_turn(state: SessionState, max_messages: int) -> CarriedVersions:
    """Return what to carry over in the middle of a turn.

    Of a turn longer than a whole session only its user message is carried over, and its newest group if that is short
    or open: copying the whole turn into every next session would have quadratic cost.
    """
    if state.turn and state.ordinal - state.turn_ordinal < max_messages:
        return CarriedVersions(_always_visible_versions(state, state.turn), since=state.turn)
    near = state.turn <= state.group and state.version - state.group < max_messages
    since = state.group if state.open_calls or (state.group and near) else 0
    singles = {*_always_visible_versions(state, since or state.version + 1)}
    if state.turn > 0 and (not since or state.turn < since):
        singles.add(state.turn)
    return CarriedVersions(tuple(sorted(singles)), since=since)


def _always_visible_versions(state: SessionState, before: int | None = None) -> tuple[int, ...]:
    return tuple(version for version in sorted((*state.kept, *state.pins)) if before is None or version < before)


def is_carried(message: Message) -> bool:
    """Return whether an always visible message is carried over: no call, no result, no transition marker."""
    paired = message.role == "tool" or message.tool_calls
    return not paired and message.metadata.get("type") != TRANSITION_TYPE


def first_messages(
    source: SessionState, kept: Sequence[Message], turn: Sequence[Message], marker: Message
) -> tuple[Message, ...]:
    """Return the first messages of a continuation: carried copies, the marker, copies of the turn."""
    copies = [replace(message, origin=message.origin or source.id) for message in (*kept, *turn)]
    return (*copies[: len(kept)], marker, *copies[len(kept) :])


def carried_summary(source: SessionState) -> Summary | None:
    """Return the session's summary for the next session, without message numbers: it covers none there."""
    stands = source.summary
    return None if stands is None else replace(stands, first=0, last=0)


def transition_marker(source: SessionState) -> Message:
    """Return the message that names the previous session. It is never carried over."""
    return Message(
        role="system",
        content=f"Continuing from session {source.id}",
        category=MessageCategory.SYSTEM_OUTPUT,
        metadata={"type": TRANSITION_TYPE, "previous_session": source.id, "previous_session_tokens": source.tokens},
        origin=source.id,
    )
