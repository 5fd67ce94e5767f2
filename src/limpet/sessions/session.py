"""Handles on sessions as they are and as they were, and the messages that they show.

Messages are a lazy sequence over the log: nothing is read before it is asked for.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, Self, TypeVar, cast, overload

import msgspec

from limpet import errors, limits
from limpet.core.values.commands import CommandRequest, SessionCommand, TrimSession, UpdateSession
from limpet.core.values.context import CompactionLevel
from limpet.core.values.events import MessageAddedEvent
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import SessionState, SessionStatus, Summary, WindowPolicy
from limpet.core.values.validation import EMPTY, Json, checked_instance, thaw
from limpet.core.windows.window import Window
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import messages_of, session_stream, truncated_stream_error
from limpet.sessions import windows
from limpet.sessions.requests import UNKNOWN_OUTCOME, MessageLike, checked_policy
from limpet.sessions.windows import RecordedWindow, Summarizer, UnsummarizedMessages

if TYPE_CHECKING:
    from limpet import tokens
    from limpet.sessions.manager import SessionService

P = ParamSpec("P")
T = TypeVar("T")


class MessageReader:
    """Reads the messages of one session as it was at one state."""

    def __init__(self, engine: Engine, tenant: str, state: SessionState) -> None:
        self._engine = engine
        self._tenant = tenant
        self._stream = session_stream(state.id)
        self.state = state

    def at(self, index: int) -> Message:
        """Return the message at an index, counted from 0 or back from the end; raise IndexError if there is none."""
        count = self.state.message_count
        place = index + count if index < 0 else index
        if not 0 <= place < count:
            raise IndexError("the session has no message at that index")
        found, _ = self.chunk(self._version_before(place), 1)
        return found[0]

    def _version_before(self, index: int) -> int:
        self._engine.check()
        if index <= 0:
            return self.state.began
        ordinal = self.state.ordinal_began + index + 1
        version = self._engine.store.find_ordinal(self._tenant, self._stream, ordinal, at=self.state.version)
        return (version or self.state.version + 1) - 1

    def chunk(self, after: int, limit: int) -> tuple[list[Message], int]:
        """Return up to `limit` messages after a version, and the version to go on from."""
        self._engine.check()
        until, found = self.state.version, list[Message]()
        while after < until and len(found) < limit:
            stored = self._engine.store.read(
                self._tenant, self._stream, after=after, until=until, limit=limit, at=until
            )
            if not stored:
                raise self.truncated_error()
            added = [event for event in stored if event.kind == MessageAddedEvent.kind]
            wanted = added[: limit - len(found)]
            found += messages_of(self._engine.store, self._tenant, wanted)
            after = (wanted if len(found) == limit else stored)[-1].version
        return found, after

    def slice(self, index: slice) -> list[Message]:
        """Return a slice, reading only what lies between its ends."""
        indices = range(self.state.message_count)[index]
        if not indices:
            return []
        low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
        found, _ = self.chunk(self._version_before(low), high - low + 1)
        return [found[i - low] for i in indices]

    def truncated_error(self) -> errors.Error:
        """Return the error for a session whose log has fewer messages than its state."""
        return truncated_stream_error(self._engine.store, self._tenant, self._stream, self.state.version)

    def pending_calls(self) -> list[PendingCall]:
        """Return the open calls with their arguments, read from the message that made them."""
        state = self.state
        if not state.open_calls:
            return []
        waiting = {call.call_id for call in state.open_calls}
        (message, *_), _ = self.chunk(state.group - 1, 1)
        return [
            PendingCall(state.id, message.id, call.id, call.name, thaw(call.args))
            for call in message.tool_calls
            if call.id in waiting
        ]


ReaderRecovery = Callable[[str, errors.Corrupt], MessageReader]
"""Recovers a session that a reader found damaged and returns a reader of the result; raises if nothing can be done."""


class Messages(Sequence[Message]):
    """The messages of a session as it was when this was asked for: len, index, slice, iterate.

    With `recover`, a read that finds damage before it has returned anything is repeated on the recovered session. An
    iteration that has begun may not go on in another session: it raises Corrupt, and the next read is done there.
    """

    def __init__(self, reader: MessageReader, recover: ReaderRecovery | None = None) -> None:
        self._reader = reader
        self._recover = recover

    def _read_or_recover(self, look: Callable[[MessageReader], T]) -> T:
        try:
            return look(self._reader)
        except errors.Corrupt as error:
            if self._recover is None:
                raise
            self._reader = self._recover(self._reader.state.id, error)
        return look(self._reader)

    def __len__(self) -> int:
        return self._reader.state.message_count

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return self._read_or_recover(lambda reader: reader.slice(index))
        return self._read_or_recover(lambda reader: reader.at(index))

    def __iter__(self) -> Iterator[Message]:
        if not len(self):
            return
        found, after = self._read_or_recover(lambda reader: reader.chunk(reader.state.began, limits.READ_CHUNK))
        reader, remaining = self._reader, len(self)
        while True:
            if not found:
                raise reader.truncated_error()
            yield from found
            remaining -= len(found)
            if not remaining:
                return
            found, after = self._next_chunk(reader, after, min(remaining, limits.READ_CHUNK))

    def _next_chunk(self, reader: MessageReader, after: int, limit: int) -> tuple[list[Message], int]:
        try:
            return reader.chunk(after, limit)
        except errors.Corrupt as error:
            if self._recover is None:
                raise
            self._reader = self._recover(reader.state.id, error)
            if self._reader.state.id != reader.state.id:
                error.hint = f"What can be read of it is in {self._reader.state.id}: read again, or load it again."
                error.facts["recovery"] = self._reader.state.id
                raise
        return self._reader.chunk(after, limit)

    def __repr__(self) -> str:
        return f"<Messages {len(self):,}>"


class PendingCall(msgspec.Struct, frozen=True):
    """A tool call without a result: who asked for it and how, so that it can be answered or retried."""

    session_id: str
    message_id: str
    call_id: str
    name: str
    args: dict[str, Json] = dict(EMPTY)


class HandleState:
    """Where a handle on a session stands. A blocking handle and its async face share one."""

    __slots__ = ("awaited", "last", "recovers", "service", "submitted")

    def __init__(self, service: SessionService, state: SessionState, *, recovers: bool = False) -> None:
        self.service = service
        self.last = state
        """The state as last seen, without a wait for deferred writes."""
        self.recovers = recovers
        """Whether a read that finds damage has the session recovered, and the handle moves to the result."""
        self.submitted = self.awaited = 0
        """How many deferred writes were submitted, and how many of them the state includes."""

    def current(self) -> SessionState:
        """Return the state, the deferred writes of the handle included; raise what refused one of them, once."""
        if self.has_unseen_writes():
            submitted = self.submitted  # a write that is submitted during the wait is waited for by the next read
            self.last, self.awaited = self.service.state_after_writes(self.last), submitted
        return self.last

    def has_unseen_writes(self) -> bool:
        """Return whether the handle has deferred writes that its state does not include."""
        return self.awaited != self.submitted

    def recover(self, session_id: str, error: errors.Corrupt) -> SessionState:
        """Move to what is recovered of a damaged session; raise the error if the handle does not recover."""
        if not self.recovers:
            raise error
        self.last = self.service.recover(session_id, error)
        return self.last

    def read(self, look: Callable[[SessionState], T]) -> T:
        """Return what a look at the log finds, after a recovery if need be."""
        try:
            return look(self.current())
        except errors.Corrupt as error:
            state = self.recover(self.last.id, error)
        return look(state)

    def reader(self, state: SessionState) -> MessageReader:
        return MessageReader(self.service.engine, self.service.tenant, state)

    def messages(self) -> Messages:
        """Return the session's messages."""
        return Messages(self.reader(self.current()), self._recovered_reader if self.recovers else None)

    def _recovered_reader(self, session_id: str, error: errors.Corrupt) -> MessageReader:
        return self.reader(self.recover(session_id, error))

    def unsummarized(self, summarizer: object, language: str | None) -> UnsummarizedMessages | None:
        """Return the messages that a summary is needed for; None if there are none."""
        return self.read(lambda state: windows.unsummarized_messages(self.reader(state), state, summarizer, language))

    def summarize(self, out: UnsummarizedMessages, text: object) -> None:
        """Put a summary in the place of messages: the text that a summariser wrote, or None."""
        self.execute(out.summary_command(text))

    def append(self, request: CommandRequest) -> None:
        """Append, and move to the state after it; a deferred write is only submitted."""
        service = self.service
        if service.defers:
            service.deferred.add(request)
            self.submitted += 1
        else:
            self.last = service.engine.run(request).state

    def execute(self, command: SessionCommand) -> None:
        """Execute a command on the session, and move to the state after it."""
        self.last = self.service.execute(CommandRequest(tenant=self.service.tenant, command=command))


class SessionView:
    """The fields of a session, from the state that its handle shows."""

    __slots__ = ("_handle",)

    def __init__(self, handle: HandleState) -> None:
        self._handle = handle

    @property
    def state(self) -> SessionState:
        """The session's state as this handle last saw it: a frozen value."""
        return self._handle.last

    @property
    def id(self) -> str:
        """The session's id; after a continuation, that of the session where the conversation is now."""
        return self.state.id

    @property
    def user_id(self) -> str | None:
        """Whose session it is."""
        return self.state.user_id

    @property
    def title(self) -> str | None:
        """Its title, if it was given one."""
        return self.state.title

    @property
    def metadata(self) -> dict[str, Json]:
        """A copy of its metadata, with message_count and the links to other sessions."""
        return thaw(self.state.full_metadata())

    @property
    def status(self) -> SessionStatus:
        """Active or ended."""
        return self.state.status

    @property
    def version(self) -> int:
        """How many events it has; give it as expected_version to write only if nothing has changed."""
        return self.state.version

    @property
    def generation(self) -> int:
        """How often it was reset."""
        return self.state.generation

    @property
    def created_at(self) -> str:
        """When this generation of it began, ISO 8601 UTC."""
        return self.state.created_at

    @property
    def last_active(self) -> str:
        """When it last changed, ISO 8601 UTC."""
        return self.state.last_active

    @property
    def message_count(self) -> int:
        """How many messages it has."""
        return self.state.message_count

    @property
    def total_tokens(self) -> int:
        """Tokens of its messages: counts that were given, estimates where none was."""
        return self.state.tokens

    @property
    def policy(self) -> WindowPolicy | None:
        """How its windows are made and how they shrink, if that was settled."""
        return self.state.policy

    def __len__(self) -> int:
        return self.message_count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = self._handle.last
        return (
            f"<{type(self).__name__} {state.id} {state.message_count:,} messages,"
            f" {state.tokens:,} tokens, v{state.version}>"
        )


class ReadableSession(SessionView):
    """What can be read of a session, as it is or as it was."""

    __slots__ = ()

    def _read(
        self, look: Callable[Concatenate[Engine, str, SessionState, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        service = self._handle.service
        return self._handle.read(lambda state: look(service.engine, service.tenant, state, *args, **kwargs))

    @property
    def messages(self) -> Messages:
        """Its messages, read from the store as they are asked for."""
        return self._handle.messages()

    def window(
        self,
        budget: int | None = None,
        *,
        model: str | None = None,
        counter: str | tokens.Counter | None = None,
        tools: Sequence[Mapping[str, Json]] = (),
        reserve: int | None = None,
        min_compaction: CompactionLevel = CompactionLevel.NONE,
        stable: bool = True,
    ) -> Window:
        """Return what a model should see of the conversation now: at most `budget` tokens, calls whole.

        What is not given is as the session's policy has it; without one, a budget has to be. Counted as
        `model` does, or by a `counter`, which may be a name; the definitions of `tools` and a `reserve`
        for the answer come out of the budget, one after the other; the policy's reserve is for both.
        A `stable` window keeps its beginning for many appends, so that providers can cache it; otherwise
        it is as full as can be. Raises ContextOverflow if what must be there does not fit.
        """
        return self._read(
            windows.make_session_window, budget=budget, model=model, counter=counter, tools=tools, reserve=reserve,
            min_compaction=min_compaction, stable=stable,
        )  # fmt: skip

    def window_of(self, message_id: str) -> Window:
        """Return what the model had seen that said a message, byte for byte, if it was recorded with it.

        Raises MessageNotFound, or NotFound if no window was.
        """
        return self._read(windows.rebuild_message_window, message_id)

    def expand(self, first: Summary | int | None = None, last: int | None = None) -> list[Message]:
        """Return the messages that a summary stands for (None: the live one), or those from number to number.

        Raises NotFound if there is no summary of messages here, InvalidRequest for numbers that there are not.
        """
        handle = self._handle
        return handle.read(lambda state: windows.expand_summary(handle.reader(state), state, first, last))

    def recorded_windows(self, limit: int = limits.RECORDED_PAGE, *, before: int | None = None) -> list[RecordedWindow]:
        """Return what was recorded of windows, newest first; those before an event, if one is given."""
        return self._read(windows.list_recorded_windows, limit, before)

    def recorded_window(self, version: int) -> RecordedWindow:
        """Return what was recorded with an event: the window's own, or that of the answer right after it.

        Raises WindowNotFound, which names the nearest events that have one.
        """
        return self._read(windows.find_recorded_window, version)


class Session(ReadableSession):
    """A handle on one session. `add_message` appends and moves the handle to the new state."""

    __slots__ = ()

    @property
    def state(self) -> SessionState:
        """The session's state as this handle last saw it, its own deferred writes included."""
        return self._handle.current()

    def add_message(
        self,
        message: MessageLike,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> Session:
        """Append a message: a Message or a provider's dict. It is on disk when this returns.

        `window` is what the model had seen that said it; `window_of` makes it again, at any time. `usage`
        is how many input tokens the provider reported for it: an estimate is corrected by that.
        Raises a kind of InvalidMessage or PairingError, SessionEnded, DuplicateMessage, StaleVersion.
        """
        return self.add_messages((message,), key=key, expected_version=expected_version, window=window, usage=usage)

    def add_messages(
        self,
        messages: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> Session:
        """Append messages in order, all or none, in one commit."""
        handle = self._handle
        request = handle.service.requests.add(
            handle.last.id, messages, key=key, expected_version=expected_version, window=window, usage=usage
        )
        handle.append(request)
        return self

    def set_policy(self, policy: WindowPolicy | None) -> Self:
        """Have windows made, and shrink, by a policy from here on; None: by what each call says."""
        self._handle.execute(UpdateSession(session_id=self.id, policy=checked_policy(policy)))
        return self

    def trimmed(
        self,
        budget: int | None = None,
        *,
        model: str | None = None,
        counter: str | None = None,
        summary: str | None = None,
    ) -> Session:
        """Return a new handle on the session, whose windows of up to `budget` tokens begin later.

        The oldest turns go, until the rest fits; with `summary`, a language, a summary stands for them.
        Nothing is deleted: this handle stays as it is, and every message can still be read. What is not
        given is as the session's policy has it.
        """
        policy = windows.trim_policy(self.policy, budget, model, counter, summary)
        handle = copy.copy(self._handle)
        handle.execute(TrimSession(session_id=self.id, policy=policy))
        return Session(handle)

    def summarize(self, summarizer: Summarizer | None = None, *, language: str | None = None) -> Self:
        """Put a summary in the place of messages that cuts have taken out and none stands for yet.

        `summarizer` gets them, and the text of the summary before (or None), and returns the new text,
        which stands for all of it; without one, sentences are taken out of what was said. For a
        summariser, messages have no summary yet that only has such sentences. Messages may be
        added meanwhile. Raises Conflict if somebody else summarised first, SummaryRefused if the text has
        less of the names and numbers than the policy's `recall`; nothing is changed then, nor if the
        summariser fails. It begins with the words of `language` (else the summariser's own, else the
        policy's, else English), or with the policy's `summary_prefix`.
        """
        out = self._handle.unsummarized(summarizer, language)
        if out is not None:
            text = None if summarizer is None else summarizer(out.messages, out.previous_text)
            self._handle.summarize(out, text)
        return self

    def fork(
        self,
        at: str | int | None = None,
        *,
        new_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
    ) -> Session:
        """Begin a session that is what this one was at a message (its id or number; None: the last)."""
        return self._handle.service.fork(self.id, at, new_id=new_id, title=title, metadata=metadata, key=key)

    def rewind(self, at: str | int, *, key: str | None = None, expected_version: int | None = None) -> Session:
        """Go back to a message (its id or number): later ones leave the conversation."""
        service = self._handle.service
        self._handle.last = service.rewind(self.id, at, key=key, expected_version=expected_version)
        return self

    def at(self, version: int) -> PastSession:
        """Return the session as it was at one of its versions, rewound since or not; read-only."""
        return self._handle.service.past_session(self.state, version)

    def reload(self) -> Session:
        """Move the handle to the session's present state; raise SessionNotFound if it was deleted."""
        self._handle.last = self._handle.service.existing(self.id)
        return self

    def get_messages_by_category(self, category: MessageCategory) -> list[Message]:
        """Return its messages of one category, in order."""
        wanted = checked_instance("a category", category, MessageCategory)
        return [message for message in self.messages if message.category is wanted]

    def get_formatted_history(self) -> list[dict[str, Json]]:
        """Return its messages as {"role", "content"} dicts, in order."""
        return [message.to_api_format() for message in self.messages]

    def pending_calls(self) -> list[PendingCall]:
        """Return the tool calls that have no result yet, wherever the conversation is now."""
        handle = self._handle
        return handle.read(lambda state: handle.reader(handle.service.conversation_end(state)).pending_calls())

    def close_pending_calls(self, *, call_ids: Sequence[str] | None = None, outcome: str = UNKNOWN_OUTCOME) -> Session:
        """Close open calls (None: all) with an error result that says the outcome is unknown."""
        self._handle.last = self._handle.service.close_pending_calls(self.id, call_ids, outcome)
        return self


def checked_session(value: T | None, kind: type[T]) -> T | None:
    """Return a handle that was handed in, or None; raise InvalidRequest for anything else."""
    if value is not None and not isinstance(cast("object", value), kind):
        raise errors.InvalidRequest(
            f"a session is handed in, not {type(value).__name__}.", hint="Get it with get_session."
        )
    return value


def _refused(verb: Callable[Concatenate[Session, P], object]) -> Callable[Concatenate[PastSession, P], NoReturn]:
    """Return a verb that takes what a verb of Session takes, and raises PastIsReadOnly."""

    @functools.wraps(verb)
    def _run(self: PastSession, /, *args: P.args, **kwargs: P.kwargs) -> NoReturn:  # noqa: ARG001
        raise errors.PastIsReadOnly(
            "a session as it was can't be changed.", hint="Go on from there in a fork: past.fork()."
        )

    _run.__doc__ = "Refuse: what was can't be changed."
    return _run


class PastSession(ReadableSession):
    """A session as it was at one of its versions. It is read as any other, and changed never."""

    __slots__ = ()

    def pending_calls(self) -> list[PendingCall]:
        """Return the tool calls that had no result yet."""
        return self._handle.reader(self.state).pending_calls()

    def fork(
        self,
        *,
        new_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
    ) -> Session:
        """Begin a session that goes on from here; nothing is copied."""
        return self._handle.service.fork(
            self.id, None, version=self.version, new_id=new_id, title=title, metadata=metadata, key=key
        )

    set_policy = _refused(Session.set_policy)
    trimmed = _refused(Session.trimmed)
    summarize = _refused(Session.summarize)
    add_message = _refused(Session.add_message)
    add_messages = _refused(Session.add_messages)
    close_pending_calls = _refused(Session.close_pending_calls)
    rewind = _refused(Session.rewind)
