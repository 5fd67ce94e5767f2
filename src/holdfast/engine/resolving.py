"""From handles to their content: in the log, beside it, or wherever a caller's resolver finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import cast

import msgspec

from holdfast import errors, limits
from holdfast.context.pack import Found
from holdfast.context.summary import text_of
from holdfast.engine import trees
from holdfast.engine.engine import Engine
from holdfast.engine.finding import Log
from holdfast.engine.messages import Reader
from holdfast.engine.states import facts, messages_of, stream_of
from holdfast.engine.tails import Said
from holdfast.history.tooling import result_text
from holdfast.store import port
from holdfast.values import frame_event as e
from holdfast.values.event import MessageAdded
from holdfast.values.frozen import Json, checked_text
from holdfast.values.handle import ContextHandle, HandleType
from holdfast.values.message import Message
from holdfast.values.session import SessionState, SessionStatus

Resolver = Callable[[ContextHandle], str]
"""Finds the content of a handle. Whatever it raises means that there is none now."""

Resolvers = MutableMapping[HandleType, Resolver]


def living(
    engine: Engine, tenant: str, session_id: str, version: int | None = None
) -> SessionState | None:
    """Return a session that was not deleted, and in which the event at a version was not; else None."""
    state = engine.states.current(tenant, session_id)
    if state is None or state.status is SessionStatus.DELETED:
        return None
    gone = version is not None and version <= Log(engine.store, tenant, state).floor()
    return None if gone else state


class _Known:
    """What is looked up once for all handles that are asked for together."""

    def __init__(self, blobs: Mapping[bytes, bytes]) -> None:
        self.blobs = blobs
        self.states: dict[str, SessionState] = {}
        self.tails: dict[str, list[Said]] = {}


class Resolving:
    """Finds the content of handles of one tenant."""

    def __init__(self, engine: Engine, tenant: str, resolvers: Resolvers) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._resolvers = resolvers

    def fetch(self, handles: Sequence[ContextHandle], must: bool) -> dict[str, Found]:
        """Return the content of handles by their ids; `must`: raise HandleUnresolved if there is none."""
        kept = [bytes.fromhex(h.content_hash) for h in handles if h.content_hash is not None]
        known = _Known(self._store.blobs(self._tenant, set(kept)) if kept else {})
        found: dict[str, Found] = {}
        for handle in handles:
            try:
                text = _bounded(handle, self._text(handle, known))
            except errors.HandleUnresolved as error:
                if must:
                    raise
                found[handle.handle_id] = Found(None, str(error.facts["why"]))
            else:
                found[handle.handle_id] = Found(text)
        return found

    def _text(self, handle: ContextHandle, known: _Known) -> str:
        if handle.content is not None:
            return handle.content
        if handle.content_hash is not None:
            return self._blob(handle, handle.content_hash, known)
        match handle.handle_type:
            case HandleType.EVENT_REF:
                return self._event(handle)
            case HandleType.MESSAGE_RANGE:
                return self._messages(handle, known)
            case HandleType.TOOL_OUTPUT:
                return self._output(handle)
            case HandleType.WORKER_FINDING | HandleType.WORKER_LEARNING:
                return self._finding(handle)
            case _:
                return self._asked(handle)

    def _blob(self, handle: ContextHandle, name: str, known: _Known | None = None) -> str:
        key = bytes.fromhex(name)
        found = known.blobs.get(key) if known else None
        if found is None:
            found = self._store.blobs(self._tenant, (key,)).get(key)
        if found is None:
            raise errors.Corrupt(
                f"the content of the handle {handle.handle_id!r} is missing.", facts={"blob": name}
            )
        return found.decode()

    def _asked(self, handle: ContextHandle) -> str:
        resolver = self._resolvers.get(handle.handle_type)
        if resolver is None:
            raise unresolved(handle, f"no resolver is registered for the type {handle.handle_type}")
        with _Asked(handle):
            text = cast("object", resolver(handle))
        if not isinstance(text, str):
            raise unresolved(handle, f"its resolver gave {type(text).__name__}, not text")
        try:
            return checked_text(text)
        except errors.BadEncoding as error:
            raise unresolved(handle, "its resolver gave text that no encoding can carry") from error

    def _event(self, handle: ContextHandle) -> str:
        position = cast("int", handle.target["position"])
        found = self._store.feed(self._tenant, after=max(0, position - 1), limit=1)
        if not found or found[0].position != position or found[0].payload is None:
            raise unresolved(handle, f"the log has no event at position {position:,}")
        if found[0].stream.startswith(trees.PREFIX):
            return self._of_frame(handle, trees.recorded(found[0]).event)
        event = facts(self._store, self._tenant, found)[0].event
        if not isinstance(event, MessageAdded):
            raise unresolved(handle, f"an event of kind {event.kind} has no text")
        session_id = found[0].stream.removeprefix(stream_of(""))
        if living(self._engine, self._tenant, session_id, found[0].version) is None:
            raise unresolved(handle, f"the session of event {position:,} was deleted")
        return spoken([event.message])

    def _of_frame(self, handle: ContextHandle, event: e.FrameEvent) -> str:
        match event:
            case e.HandleAddedEvent() if event.handle.handle_id != handle.handle_id:
                return self._text(event.handle, _Known({}))
            case e.ResultAddedEvent():
                return f"{event.result.result_type} {event.result.ref_id}: {event.result.summary}"
            case e.FramePoppedEvent():
                return f"{event.status}: {event.result_summary or event.reason}"
            case e.FrameUpdatedEvent() if event.tool is not None:
                return self._ended(handle, event)
            case _:
                raise unresolved(handle, f"an event of kind {event.kind} has no text")

    def _messages(self, handle: ContextHandle, known: _Known) -> str:
        target = handle.target
        session_id, first, last = target["session_id"], target["first"], target["last"]
        state = known.states.get(session_id)
        if state is None:
            state = living(self._engine, self._tenant, session_id)
        if state is None:
            raise unresolved(handle, f"there is no session {session_id!r}")
        known.states[session_id] = state
        if not 1 <= first <= last <= state.message_count:
            raise unresolved(
                handle, f"the session has messages 1 to {state.message_count:,}, not {first:,} to {last:,}"
            )  # fmt: skip
        if last - first >= limits.BATCH_MESSAGES_MAX:
            raise unresolved(
                handle, f"at most {limits.BATCH_MESSAGES_MAX:,} messages are one handle"
            )
        if session_id not in known.tails:
            tail = self._engine.tails.of(self._tenant, state)
            known.tails[session_id] = tail.upto(state, limits.TAIL_MESSAGES_MAX)
        tail = known.tails[session_id]
        if tail and tail[0].number <= first:
            at = first - tail[0].number
            return spoken([said.message for said in tail[at : at + last - first + 1]])
        return spoken(Reader(self._engine, self._tenant, state).slice(slice(first - 1, last)))

    def _output(self, handle: ContextHandle) -> str:
        frame_id, tool_id = handle.target["frame_id"], handle.target["tool_id"]
        root = self._engine.trees.root(self._tenant, frame_id)
        if root is None:
            raise unresolved(handle, f"there is no frame {frame_id!r}")
        stream = trees.stream_of(root)
        version = self._store.find_claim(self._tenant, stream, f"end:{tool_id}")
        found = self._read(stream, version)
        event = trees.recorded(found).event if found is not None else None
        if not isinstance(event, e.FrameUpdatedEvent) or event.frame_id != frame_id:
            raise unresolved(handle, f"the frame has no finished tool {tool_id!r}")
        return self._ended(handle, event)

    def _read(self, stream: str, version: int) -> port.StoredEvent | None:
        if not version:
            return None
        found = self._store.read(self._tenant, stream, after=version - 1, until=version, limit=1)
        return found[0] if found else None

    def _ended(self, handle: ContextHandle, event: e.FrameUpdatedEvent) -> str:
        """Return a tool's output, wherever it was put."""
        if event.output_hash is not None:
            return _plain(msgspec.json.decode(self._blob(handle, event.output_hash)))
        if event.recorded_in is None:
            return _plain(event.output)
        session_id, message_id = event.recorded_in
        stream = stream_of(session_id)
        version = self._store.find_claim(self._tenant, stream, message_id)
        alive = living(self._engine, self._tenant, session_id, version) is not None
        found = self._read(stream, version) if alive else None
        for message in messages_of(self._store, self._tenant, [found] if found else []):
            for result in message.tool_results:
                if event.tool is None or result.tool_call_id == event.tool.call_id:
                    return _plain(result.result)
        raise unresolved(handle, "the message with the tool's result is not there")

    def _finding(self, handle: ContextHandle) -> str:
        frame_id = handle.target.get("frame_id")
        if not isinstance(frame_id, str):
            return self._asked(handle)
        frame = self._engine.trees.find(self._tenant, frame_id)
        if frame is None:
            raise unresolved(handle, f"there is no frame {frame_id!r}")
        lines = [frame.result_summary] if frame.result_summary else []
        lines += [f"{ref.result_type} {ref.ref_id}: {ref.summary}" for ref in frame.result_refs]
        if not lines:
            raise unresolved(handle, f"the frame {frame_id!r} has no result yet")
        return "\n".join(lines)


def spoken(messages: Sequence[Message]) -> str:
    """Return what messages say, each after the role that said it."""
    return "\n".join(f"{message.role}: {text_of(message)}" for message in messages)


def _plain(output: Json) -> str:
    """Return a tool's output as text: that of its parts, or its JSON."""
    return text_of(Message("user", output)) if isinstance(output, list) else result_text(output)


def _bounded(handle: ContextHandle, text: str) -> str:
    if len(text) > limits.MESSAGE_BYTES_MAX:
        raise unresolved(handle, f"it has {len(text):,} characters")
    return text


def unresolved(handle: ContextHandle, why: str) -> errors.HandleUnresolved:
    """Return the error for content that can't be found."""
    return errors.HandleUnresolved(
        f"the content of the handle {handle.handle_id!r} can't be found: {why}.",
        hint="Exclude the handle, remove it, or register a resolver for its type.",
        facts={"handle": handle.handle_id, "type": str(handle.handle_type), "why": why},
    )


class _Asked:
    """Whatever a caller's resolver raises means that a handle has no content now; the cause is kept."""

    def __init__(self, handle: ContextHandle) -> None:
        self._handle = handle

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            raise unresolved(self._handle, f"its resolver raised {type(error).__name__}") from error
