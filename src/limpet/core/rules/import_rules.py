"""The rules of imports: checks of foreign files before their events become part of a log.

A file may be forged: states of forks and rewinds are folded again instead of read, and ids, limits and pairing are
checked as for live input. Conversations of other programs are repaired so that calls and results pair; each repair is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import assert_never, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import export_format, foreign_chats, intake
from limpet.core.rules import session_rules
from limpet.core.rules.frame_rules import UNKNOWN_OUTCOME_TEXT
from limpet.core.rules.session_rules import checked_metadata, checked_title, evolve
from limpet.core.values import events, ids
from limpet.core.values.context import WindowSelection
from limpet.core.values.memory_records import with_renamed_sources
from limpet.core.values.messages import Message, MessageCategory, ToolCallResult
from limpet.core.values.session_state import (
    CounterCorrection,
    Cut,
    EndReason,
    ReportedUsage,
    SessionState,
    SessionStatus,
    Summary,
    WindowPolicy,
    bounded_factor,
)
from limpet.core.values.validation import checked_id, text_or_json

replace = msgspec.structs.replace


class ImportTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How sessions of a file are imported: their new ids, their user, and the latest accepted time.

    `version_offsets` are the versions after which the events of each session are numbered in this store.
    """

    latest_us: int
    check_policy: Callable[[WindowPolicy | None], object]
    names: Mapping[str, str]
    version_offsets: Mapping[str, int]
    user_id: str | None = None

    def new_id(self, session_id: str) -> str:
        """Return the id in this store of a session of the file."""
        return checked_id("a session's id", self.names.get(session_id, session_id))


class ImportedEvent(msgspec.Struct, frozen=True):
    """An event to append. `base` is the version that it follows, if that is not the previous one."""

    event: events.SessionEvent
    time_us: int
    base: int | None = None


class SessionReplay:
    """Checks and folds one session of a file, event by event. `targets` are event numbers that rewinds go back to."""

    def __init__(self, session_id: str, terms: ImportTerms, *, events: int, targets: Collection[int] = ()) -> None:
        self.session_id = terms.new_id(session_id)
        self.state: SessionState | None = None
        self.number = 0
        self._terms = terms
        self._version_offset = terms.version_offsets.get(session_id, 0)
        self._until = self._version_offset + events
        self._targets = targets
        self._rewind_states: dict[int, SessionState] = {}
        self._message_keys: list[tuple[int, int]] = []
        self._used_keys: set[int] = set()

    def apply(self, fact: export_format.ExportedEvent, time_us: int, *, hidden: bool) -> ImportedEvent:
        """Check and fold the next event; raise a kind of Refused if it may not follow.

        With `hidden`, the session stays hidden until its last event.
        """
        self.number += 1
        self._check_time(time_us)
        event, base = self._event(fact, hidden=hidden)
        version = self._version_offset + self.number
        self.state = evolve(self.state, events.RecordedEvent(event, self.session_id, 0, version, time_us))
        if self.number in self._targets:
            self._rewind_states[self.number] = self.state
        return ImportedEvent(event, time_us, base)

    def finish(self) -> SessionState:
        """Return the session after its last event; raise DamagedFile if it had none."""
        if self.state is None:
            raise errors.DamagedFile("it has no events.")
        return self.state

    def _check_time(self, time_us: int) -> None:
        if not 0 <= time_us <= self._terms.latest_us:
            raise errors.InvalidRequest("its time is before 1970, or ahead of the clock here.")
        if self.state is not None and time_us < self.state.active_us:
            raise errors.InvalidRequest("its time is before that of an earlier event.")

    def _event(self, fact: export_format.ExportedEvent, *, hidden: bool) -> tuple[events.SessionEvent, int | None]:
        if isinstance(fact, events.SessionCreatedEvent):
            return self._created_event(fact, hidden=hidden), 0 if self._version_offset else None
        state = self.state
        if state is None:
            raise errors.DamagedFile("a session begins with its creation.")
        if isinstance(fact, export_format.ExportedRewind):
            return self._rewound_event(state, fact)
        return self._following_event(state, fact), None

    def _following_event(
        self, state: SessionState, fact: export_format.UnchangedEvent | export_format.ExportedFork
    ) -> events.SessionEvent:
        match fact:
            case export_format.ExportedFork():
                return self._forked_event(state, fact)
            case events.MessageAddedEvent():
                return self._message_event(state, fact)
            case events.WindowRecordedEvent():
                return self._window_event(fact)
            case events.SessionUpdatedEvent():
                return self._updated_event(state, fact)
            case events.SessionContinuedEvent():
                return events.SessionContinuedEvent(self._terms.new_id(fact.to))
            case events.WindowCutEvent():
                check_cut(state, fact.cut)
            case events.SessionSummarizedEvent():
                check_summary(fact.summary, _message_count_max(state))
            case events.SessionEndedEvent():
                _check_active(state)
                if fact.reason is EndReason.DELETED:
                    raise errors.InvalidRequest("a deleted session can't be imported.")
            case events.SessionResetEvent():
                pass
            case _:
                assert_never(fact)
        return fact

    def _created_event(self, fact: events.SessionCreatedEvent, *, hidden: bool) -> events.SessionCreatedEvent:
        if self.state is not None:
            raise errors.DamagedFile("a session is created once.")
        if self._terms.new_id(fact.id) != self.session_id:
            raise errors.DamagedFile("it belongs to another session than the one named.")
        terms, user = self._terms, fact.user_id
        if user is not None:
            checked_id("a user's id", user)
        if not 0 <= fact.continuation_index <= limits.TOKENS_MAX:
            raise errors.InvalidRequest("its place in the chain is not a valid number.")
        self._terms.check_policy(fact.policy)
        for one in fact.corrections:
            _check_correction(one)
        if fact.summary is not None:
            check_summary(fact.summary, 0)
        return replace(
            fact,
            id=self.session_id,
            user_id=user if terms.user_id is None else terms.user_id,
            title=checked_title(fact.title),
            metadata=checked_metadata(fact.metadata),
            root_id=fact.root_id and terms.new_id(fact.root_id),
            continued_from=fact.continued_from and terms.new_id(fact.continued_from),
            until=self._until if hidden or self._version_offset else 0,
        )

    def _message_event(self, state: SessionState, fact: events.MessageAddedEvent) -> events.MessageAddedEvent:
        message = fact.message
        _check_active(state)
        session_rules.check_message(state.open_calls, state.answered, message)
        checked_id("the name of a counter", fact.counter)
        _check_count("tokens", fact.tokens)
        key = hash(message.id)
        if key in self._used_keys:
            raise errors.DuplicateMessage(f"another message of the session has the id {message.id!r}.")
        self._used_keys.add(key)
        self._message_keys.append((self.number, key))
        message = with_renamed_sources(message, self._terms.names)
        if message.origin is not None and message.origin in self._terms.names:
            message = replace(message, origin=self._terms.new_id(message.origin))
        return fact if message is fact.message else replace(fact, message=message)

    def _window_event(self, fact: events.WindowRecordedEvent) -> events.WindowRecordedEvent:
        chosen, terms = fact.selection, self._terms
        check_selection(chosen)
        if fact.messages < 1:
            raise errors.InvalidRequest("a window is recorded with at least one message.")
        version = chosen.version + terms.version_offsets.get(chosen.session_id, 0)
        here = replace(chosen, session_id=terms.new_id(chosen.session_id), version=version)
        return events.WindowRecordedEvent(here, fact.messages)

    def _updated_event(self, state: SessionState, fact: events.SessionUpdatedEvent) -> events.SessionUpdatedEvent:
        if fact.title is not msgspec.UNSET:
            checked_title(fact.title)
        if fact.policy is not msgspec.UNSET:
            self._terms.check_policy(fact.policy)
        if isinstance(fact.usage, ReportedUsage):
            checked_id("the name of a counter", fact.usage.counter)
        for name in fact.drop_metadata:
            checked_id("a metadata key", name)
        setting = checked_metadata(fact.set_metadata)
        merged = {**state.metadata, **setting}
        checked_metadata({k: v for k, v in merged.items() if k not in fact.drop_metadata})
        return replace(fact, set_metadata=setting)

    def _forked_event(self, state: SessionState, fact: export_format.ExportedFork) -> events.SessionForkedEvent:
        if fact.version != self.number - 1:
            raise errors.DamagedFile("a fork must follow the event before it.")
        version = self._version_offset + self.number
        source = checked_id("a session's id", self._terms.new_id(fact.source))
        title, metadata = checked_title(fact.title), checked_metadata(fact.metadata)
        there = session_rules.forked_state(state, version, source, title=title, metadata=metadata)
        return events.SessionForkedEvent(there.id, source, version - 1, there)

    def _rewound_event(
        self, state: SessionState, fact: export_format.ExportedRewind
    ) -> tuple[events.SessionRewoundEvent, int | None]:
        there = state if fact.to == self.number - 1 else self._rewind_states.get(fact.to)
        if there is None:
            raise errors.DamagedFile("it goes back to an event that the session does not have.")
        while self._message_keys and self._message_keys[-1][0] > fact.to:
            self._used_keys.discard(self._message_keys.pop()[1])
        self._rewind_states = {number: was for number, was in self._rewind_states.items() if number <= fact.to}
        version, to = self._version_offset + self.number, self._version_offset + fact.to
        back = session_rules.rewound_state(there, state, version, until=state.until)
        return events.SessionRewoundEvent(to, back), None if fact.to == self.number - 1 else to


def _check_active(state: SessionState) -> None:
    if state.status is not SessionStatus.ACTIVE:
        raise errors.SessionEnded("it comes after the end of its session.")


def _check_count(what: str, number: int) -> None:
    if not 0 <= number <= limits.TOKENS_MAX:
        raise errors.InvalidRequest(f"{what} is a count, 0 or more.")


def _check_correction(one: CounterCorrection) -> None:
    checked_id("the name of a counter", one.counter)
    _check_count("observations", one.observations)
    if bounded_factor(one.factor) != one.factor:
        raise errors.InvalidRequest("a correction is beyond its limit.")


def _message_count_max(state: SessionState) -> int:
    """Return an upper bound of the message count after this step: a cut precedes the messages of its step."""
    return state.message_count + limits.BATCH_MESSAGES_MAX


def check_cut(state: SessionState, cut: Cut) -> None:
    """Raise InvalidRequest unless a cut is possible in a session."""
    count = _message_count_max(state)
    # The tokens can be negative: those of the messages that follow are not added yet.
    for number in (cut.budget, abs(cut.tokens)):
        _check_count("tokens of a cut", number)
    for number in (cut.first - 1, cut.stubs - 1, cut.asked):
        if not -1 <= number <= count:
            raise errors.InvalidRequest("a cut names a message that does not exist.")


def check_summary(summary: Summary, count: int) -> None:
    """Raise a kind of Refused unless a summary is possible in a session with `count` messages."""
    if not 0 <= summary.first <= summary.last <= count:
        raise errors.InvalidRequest("a summary stands for messages that do not exist.")
    if len(summary.text.encode()) > limits.SUMMARY_BYTES_MAX:
        raise errors.TooLarge("a summary is larger than its limit.")
    _check_count("tokens of a summary", summary.tokens)
    if len(summary.author) > limits.ID_BYTES_MAX or not 0 <= (summary.recall or 0) <= 1:
        raise errors.InvalidRequest("a summary's author or recall is not valid.")
    try:
        summary.message()
        ids.microseconds(summary.timestamp)
    except ValueError as error:
        raise errors.InvalidRequest("a summary's timestamp must be ISO 8601.") from error


def check_selection(chosen: WindowSelection) -> None:
    """Raise a kind of Refused unless a recorded window can be rebuilt from its selection."""
    shown = 0
    for part in chosen.parts:
        if isinstance(part, Mapping):
            fields = cast("Mapping[str, object]", part)
            number, message = fields.get("number", 1), fields.get("message")
            if not isinstance(message, Mapping) or type(number) is not int or number < 1:
                raise errors.InvalidRequest("a recorded window holds a value that is no message.")
            Message.from_dict(cast("Mapping[str, object]", message))
            shown += 1
        else:
            if not 1 <= part[0] <= part[1]:
                raise errors.InvalidRequest("a recorded window names messages that can't exist.")
            shown += part[1] - part[0] + 1
    if shown != len(chosen.sizes):
        raise errors.InvalidRequest("a recorded window has more or fewer sizes than messages.")
    counts = (chosen.version, chosen.began, chosen.budget, chosen.tokens, chosen.overhead)
    for number in (*counts, *chosen.sizes):
        _check_count("a number of a recorded window", number)
    checked_id("the name of a counter", chosen.counter)
    checked_id("the digest of a recorded window", chosen.digest)


ReportRepair = Callable[[str], None]


def repair_messages(messages: Iterable[Message], note: ReportRepair) -> Iterator[Message]:
    """Yield the messages, changed so that calls and results pair; call `note` for each change."""
    open_calls: session_rules.OpenToolCalls = ()
    answered: tuple[str, ...] = ()
    seen: set[str] = set()
    for given in messages:
        for message in _repair_message(given, open_calls, answered, seen, note):
            open_calls, answered = session_rules.calls_after(open_calls, answered, message)
            seen.add(message.id)
            yield message
    if open_calls:
        note(f"{len(open_calls)} tool call(s) of the last message wait for their results.")


def _repair_message(
    message: Message,
    open_calls: session_rules.OpenToolCalls,
    answered: tuple[str, ...],
    seen: set[str],
    note: ReportRepair,
) -> Iterator[Message]:
    if message.role != "tool" and open_calls:
        closing = closing_message(message, open_calls)
        note(f"{len(open_calls)} tool call(s) had no result before {message.id}: closed.")
        yield _with_unique_id(closing, seen, note)
        open_calls, answered = (), ()
    message = _with_unique_id(message, seen, note)
    try:
        session_rules.check_message(open_calls, answered, message)
    except errors.PairingError as error:
        note(f"{message.id}: {error.message} It is kept as output.")
        if open_calls:
            yield _with_unique_id(closing_message(message, open_calls), seen, note)
        yield _with_unique_id(result_as_output(message), seen, note)
    except errors.InvalidMessage as error:
        note(f"{message.id} was left out: {error.message}")
    else:
        yield message


def _with_unique_id(message: Message, seen: set[str], note: ReportRepair) -> Message:
    given, number = message.id, 1
    while message.id in seen:
        number += 1
        message = replace(message, id=f"{given[:200]}-{number}")
    if message.id != given:
        note(f"the id {given} is used twice; the later message is {message.id}.")
    return message


def closing_message(before: Message, open_calls: session_rules.OpenToolCalls) -> Message:
    """Return the tool message that closes open calls right before another message."""
    results = [ToolCallResult(call.call_id, UNKNOWN_OUTCOME_TEXT, is_error=True) for call in open_calls]
    return Message(
        "tool",
        id=f"{before.id[:200]}-closing",
        timestamp=before.timestamp,
        tool_results=results,
        metadata={"type": "outcome_unknown"},
    )


def result_as_output(message: Message) -> Message:
    """Return a tool result without a call as a system message with its output."""
    said = [result.result for result in message.tool_results]
    return Message(
        "system",
        content=text_or_json(said[0] if len(said) == 1 else said),
        category=MessageCategory.SYSTEM_OUTPUT,
        id=message.id,
        timestamp=message.timestamp,
        metadata={**message.metadata, "original_role": "tool"},
        extra={"original": message.raw()},
    )


def accept_message(value: object, note: ReportRepair, *, name: str) -> Message | None:
    """Return a foreign value as a message; None, with a note, if it is not a message."""
    try:
        return intake.accept(value)  # pyright: ignore[reportArgumentType]
    except errors.Refused:
        return foreign_chats.parse_message(value, note, name=name)
