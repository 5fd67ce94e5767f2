"""Reads the content that context handles point to.

Content comes from the log, from blobs, or from a resolver that the caller registered for a handle
type. An exception of a resolver means that the handle has no content now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import NamedTuple, cast

import msgspec

from limpet import errors, limits
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.context import TARGET_VERSION_KEY, ContextHandle, HandleType
from limpet.core.values.events import MessageAddedEvent
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState
from limpet.core.values.validation import Json, checked_text, text_or_json
from limpet.core.windows.pack_assembly import HandleContent
from limpet.core.windows.summary import message_text
from limpet.runtime import event_reader, state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.message_cache import LoggedMessage
from limpet.runtime.state_cache import decode_session_events, messages_of, session_stream
from limpet.sessions.session import MessageReader
from limpet.stores import port
from limpet.stores.chain import is_notice

Resolver = Callable[[ContextHandle], str]
"""Returns the text of a handle. Any exception means that the handle has no content now."""

Resolvers = MutableMapping[HandleType, Resolver]


def find_session(engine: Engine, tenant: str, session_id: str, version: int | None = None) -> SessionState | None:
    """Return a session unless it was deleted; with a version, unless the session that had it was deleted."""
    state = engine.states.current(tenant, session_id)
    if state is None or state.hidden:
        return None
    gone = version is not None and version <= SessionEventSearch(engine.store, tenant, state).version_before_creation()
    return None if gone else state


def bind_to_version(engine: Engine, tenant: str, command: c.AddHandle) -> c.AddHandle:
    """Return the command with a handle bound to the session's present version, if the session exists already."""
    handle = command.handle
    if handle.handle_type is not HandleType.MESSAGE_RANGE or handle.content is not None:
        return command
    if TARGET_VERSION_KEY in handle.target:
        if handle.session_version is None or handle.session_version < 1:
            raise errors.InvalidRequest(
                f"{TARGET_VERSION_KEY!r} in a handle's target is a version of the session: a whole number from 1 on."
            )
        return command
    state = find_session(engine, tenant, handle.target["session_id"])
    return command if state is None else msgspec.structs.replace(command, at=state.version)


class SessionVersions:
    """A cache of the session versions that handles are bound to, for one call."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant
        self._states: dict[tuple[str, int | None], SessionState | None] = {}

    def get(self, session_id: str, at: int | None) -> SessionState | None:
        """Return a state in which messages have the numbers that they had at a version; None if it is gone.

        That is the present state if messages were only added since; else it is folded from the log.
        """
        key = (session_id, at)
        if key not in self._states:
            self._states[key] = self._load(session_id, at)
        return self._states[key]

    def _load(self, session_id: str, at: int | None) -> SessionState | None:
        state = find_session(self._engine, self._tenant, session_id)
        if state is None or at is None or max(state.began, state.rebased) <= at <= state.version:
            return state
        try:
            return event_reader.fold_at_version(self._engine.store, self._engine.states, self._tenant, state, at)
        except errors.NotFound:
            return None


class _FetchCache(NamedTuple):
    """A cache of blobs, states and messages for the handles of one call."""

    blobs: Mapping[bytes, bytes]
    versions: SessionVersions
    tails: dict[tuple[str, int], list[LoggedMessage]]


class HandleReader:
    """Reads the content of handles of one tenant."""

    def __init__(self, engine: Engine, tenant: str, resolvers: Resolvers) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._resolvers = resolvers

    def fetch(self, handles: Sequence[ContextHandle], must: bool) -> dict[str, HandleContent]:
        """Return the content of handles by their ids. With `must` a handle without content raises HandleUnresolved."""
        kept = [bytes.fromhex(h.content_hash) for h in handles if h.content_hash is not None]
        blobs = self._store.blobs(self._tenant, set(kept)) if kept else {}
        cache = _FetchCache(blobs, SessionVersions(self._engine, self._tenant), {})
        found: dict[str, HandleContent] = {}
        for handle in handles:
            try:
                content = _check_size(handle, self._read_content(handle, cache, limits.HANDLE_CHAIN_MAX))
            except errors.HandleUnresolved as error:
                why = str(error.facts["why"])
                if must and error.facts["handle"] == handle.handle_id:
                    raise
                if must:
                    raise unresolved(handle, why) from error
                found[handle.handle_id] = HandleContent(None, why)
            else:
                found[handle.handle_id] = content
        return found

    def _read_content(self, handle: ContextHandle, cache: _FetchCache, steps: int) -> HandleContent:
        if handle.content is not None:
            return HandleContent(handle.content)
        if handle.content_hash is not None:
            return HandleContent(self._read_blob(handle, handle.content_hash, cache))
        match handle.handle_type:
            case HandleType.EVENT_REF:
                return self._event_content(handle, cache, steps)
            case HandleType.MESSAGE_RANGE:
                return self._message_range_content(handle, cache)
            case HandleType.TOOL_OUTPUT:
                return self._tool_output_content(handle)
            case HandleType.WORKER_FINDING | HandleType.WORKER_LEARNING:
                return HandleContent(self._worker_result(handle))
            case _:
                return HandleContent(self._call_resolver(handle))

    def _read_blob(self, handle: ContextHandle, name: str, cache: _FetchCache | None = None) -> str:
        key = bytes.fromhex(name)
        found = cache.blobs.get(key) if cache else None
        if found is None:
            found = self._store.blobs(self._tenant, (key,)).get(key)
        if found is None:
            raise errors.Corrupt(f"the content of the handle {handle.handle_id!r} is missing.", facts={"blob": name})
        return found.decode()

    def _call_resolver(self, handle: ContextHandle) -> str:
        resolver = self._resolvers.get(handle.handle_type)
        if resolver is None:
            raise unresolved(handle, f"no resolver is registered for the type {handle.handle_type}")
        try:
            text = cast("object", resolver(handle))
        except Exception as error:
            # A resolver is the caller's code, and may raise anything. The cause is kept.
            raise unresolved(handle, f"its resolver raised {type(error).__name__}") from error
        if not isinstance(text, str):
            raise unresolved(handle, f"its resolver gave {type(text).__name__}, not text")
        try:
            return checked_text(text)
        except errors.BadEncoding as error:
            raise unresolved(handle, "its resolver gave text that no encoding can carry") from error

    def _event_content(self, handle: ContextHandle, cache: _FetchCache, steps: int) -> HandleContent:
        position = cast("int", handle.target["position"])
        found = self._store.feed(self._tenant, after=max(0, position - 1), limit=1)
        if not found or found[0].position != position or found[0].payload is None:
            raise unresolved(handle, f"the log has no event at position {position:,}")
        if is_notice(found[0].kind):
            raise unresolved(handle, f"an event of kind {found[0].kind} has no text")
        if found[0].stream.startswith(state_cache.TREE_STREAM_PREFIX):
            event = state_cache.decode_tree_event(found[0]).event
            if not isinstance(event, e.HandleAddedEvent):
                return self._frame_event_content(handle, event)
            if not steps:
                raise unresolved(handle, f"more than {limits.HANDLE_CHAIN_MAX} handles point at one another")
            return self._read_content(event.handle, cache, steps - 1)
        event = decode_session_events(self._store, self._tenant, found)[0].event
        if not isinstance(event, MessageAddedEvent):
            raise unresolved(handle, f"an event of kind {event.kind} has no text")
        session_id = found[0].stream.removeprefix(session_stream(""))
        if find_session(self._engine, self._tenant, session_id, found[0].version) is None:
            raise unresolved(handle, f"the session of event {position:,} was deleted")
        return HandleContent(messages_text([event.message]), session=(session_id, found[0].version))

    def _frame_event_content(self, handle: ContextHandle, event: e.FrameEvent) -> HandleContent:
        match event:
            case e.ResultAddedEvent(result=result):
                return HandleContent(f"{result.result_type} {result.ref_id}: {result.summary}")
            case e.FramePoppedEvent():
                return HandleContent(f"{event.status}: {event.result_summary or event.reason}")
            case e.FrameUpdatedEvent() if event.tool is not None:
                return self._finished_tool_content(handle, event)
            case _:
                raise unresolved(handle, f"an event of kind {event.kind} has no text")

    def _message_range_content(self, handle: ContextHandle, cache: _FetchCache) -> HandleContent:
        target, at = handle.target, handle.session_version
        session_id, first, last = target["session_id"], target["first"], target["last"]
        state = cache.versions.get(session_id, at)
        if state is None:
            when = "" if at is None else f" that had version {at:,}"
            raise unresolved(handle, f"there is no session {session_id!r}{when}")
        if not 1 <= first <= last <= state.message_count:
            there = f"messages 1 to {state.message_count:,}"
            raise unresolved(handle, f"the session has {there}, not {first:,} to {last:,}")
        if last - first >= limits.BATCH_MESSAGES_MAX:
            raise unresolved(handle, f"at most {limits.BATCH_MESSAGES_MAX:,} messages are one handle")
        messages = self._read_messages(state, first, last, cache)
        return HandleContent(messages_text(messages), session=(session_id, state.version))

    def _read_messages(self, state: SessionState, first: int, last: int, cache: _FetchCache) -> Sequence[Message]:
        key = (state.id, state.version)
        if key not in cache.tails:
            tail = self._engine.message_cache.get(self._tenant, state)
            cache.tails[key] = tail.up_to(state, limits.MESSAGE_CACHE_MESSAGES_MAX)
        tail = cache.tails[key]
        if tail and tail[0].number <= first:
            at = first - tail[0].number
            return [said.message for said in tail[at : at + last - first + 1]]
        return MessageReader(self._engine, self._tenant, state).slice(slice(first - 1, last))

    def _tool_output_content(self, handle: ContextHandle) -> HandleContent:
        frame_id, tool_id = handle.target["frame_id"], handle.target["tool_id"]
        root = self._engine.trees.root_of(self._tenant, frame_id)
        if root is None:
            raise unresolved(handle, f"there is no frame {frame_id!r}")
        stream = state_cache.tree_stream(root)
        version = self._store.find_claim(self._tenant, stream, f"end:{tool_id}")
        found = self._read_event(stream, version)
        event = state_cache.decode_tree_event(found).event if found is not None else None
        if not isinstance(event, e.FrameUpdatedEvent) or event.frame_id != frame_id:
            raise unresolved(handle, f"the frame has no finished tool {tool_id!r}")
        return self._finished_tool_content(handle, event)

    def _read_event(self, stream: str, version: int) -> port.StoredEvent | None:
        if not version:
            return None
        found = self._store.read(self._tenant, stream, after=version - 1, until=version, limit=1)
        return found[0] if found else None

    def _finished_tool_content(self, handle: ContextHandle, event: e.FrameUpdatedEvent) -> HandleContent:
        """Return a tool's output from the event, a blob, or the message that has it."""
        if event.output_hash is not None:
            return HandleContent(_output_text(msgspec.json.decode(self._read_blob(handle, event.output_hash))))
        if event.recorded_in is None:
            return HandleContent(_output_text(event.output))
        session_id, message_id = event.recorded_in
        stream = session_stream(session_id)
        version = self._store.find_claim(self._tenant, stream, message_id)
        alive = find_session(self._engine, self._tenant, session_id, version) is not None
        found = self._read_event(stream, version) if alive else None
        for message in messages_of(self._store, self._tenant, [found] if found else []):
            for result in message.tool_results:
                if event.tool is None or result.tool_call_id == event.tool.call_id:
                    return HandleContent(_output_text(result.result), session=(session_id, version))
        raise unresolved(handle, "the message with the tool's result is not there")

    def _worker_result(self, handle: ContextHandle) -> str:
        frame_id = handle.target.get("frame_id")
        if not isinstance(frame_id, str):
            return self._call_resolver(handle)
        frame = self._engine.trees.find_frame(self._tenant, frame_id)
        if frame is None:
            raise unresolved(handle, f"there is no frame {frame_id!r}")
        lines = [frame.result_summary] if frame.result_summary else []
        lines += [f"{ref.result_type} {ref.ref_id}: {ref.summary}" for ref in frame.result_refs]
        if not lines:
            raise unresolved(handle, f"the frame {frame_id!r} has no result yet")
        return "\n".join(lines)


def messages_text(messages: Sequence[Message]) -> str:
    return "\n".join(f"{message.role}: {message_text(message)}" for message in messages)


def _output_text(output: Json) -> str:
    """Return a tool's output as text: the text of its parts, or its JSON."""
    return message_text(Message("user", output)) if isinstance(output, list) else text_or_json(output)


def _check_size(handle: ContextHandle, content: HandleContent) -> HandleContent:
    size = len(content.text or "")
    if size > limits.MESSAGE_BYTES_MAX:
        raise unresolved(handle, f"it has {size:,} characters")
    return content


def unresolved(handle: ContextHandle, why: str) -> errors.HandleUnresolved:
    return errors.HandleUnresolved(
        f"the content of the handle {handle.handle_id!r} can't be found: {why}.",
        hint="Exclude the handle, remove it, or register a resolver for its type.",
        facts={"handle": handle.handle_id, "type": str(handle.handle_type), "why": why},
    )
