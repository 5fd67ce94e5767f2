"""What stands in for what was erased: an event of the same kind that says nothing, so that all folds go on as before.

A message keeps its role, category, calls and results by their ids and tools, and what keeps it in sight; its
words, arguments, results and metadata go. Whatever was made from its words goes too.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from limpet.core.values import events as e
from limpet.core.values.context import ContextHandle, WindowSelection, priority_of_metadata
from limpet.core.values.json_values import EMPTY, Json
from limpet.core.values.memory_records import MEMORY_METADATA_KEY
from limpet.core.values.messages import Message, ToolCallRequest, ToolCallResult
from limpet.core.values.pack_parts import PackSelection
from limpet.core.values.session_state import SUMMARY_PREFIXES, OpenCall, SessionState, Summary
from limpet.history import continuation
from limpet.history.frames import text_hash
from limpet.history.sessions import preview

ERASED: Final = "[erased]"

_END: Final = re.compile(r"\[/memory-([0-9]{1,18})\]\Z")

replace = msgspec.structs.replace


def message(said: Message, name: str) -> Message:
    """Return what stands in for a message; `name` is its id from now on."""
    return Message(
        role=said.role,
        content=None if said.content is None else ERASED,
        category=said.category,
        id=name,
        timestamp=said.timestamp,
        metadata=_kept(said),
        tokens=said.tokens,
        tool_calls=tuple(ToolCallRequest(call.id, call.name) for call in said.tool_calls),
        tool_results=tuple(
            ToolCallResult(r.tool_call_id, ERASED, is_error=r.is_error) for r in said.tool_results
        ),
        origin=said.origin,
    )


def unopened(said: Message) -> Message:
    """Return a prompt without what memory had put at its end."""
    rest = {key: value for key, value in said.metadata.items() if key != MEMORY_METADATA_KEY}
    text = said.content if isinstance(said.content, str) else ""
    end = _END.search(text)
    begin = text.rfind(f"[memory-{end[1]}]\n") if end else 0
    left = text[: max(begin, 0)].removesuffix("\n\n")
    return replace(said, content=left or ERASED, metadata=rest)


def _kept(said: Message) -> dict[str, Json]:
    """Return what of a message's metadata decides over its place: it is one of a few words that are ours."""
    kept: dict[str, Json] = {}
    chosen = priority_of_metadata(said.metadata)
    if chosen is not None:
        pinned = said.metadata.get("pinned") is True
        kept = {"pinned": True} if pinned else {"priority": chosen[0].label}
    if said.metadata.get("type") == continuation.TRANSITION:
        kept["type"] = continuation.TRANSITION
    return kept


def session_event(event: e.SessionEvent, name: str, cause: Message | None) -> e.SessionEvent:
    """Return what stands in for an event of which `cause` is part, which is called `name` now; None: all of it goes."""
    match event:
        case e.MessageAddedEvent():
            said = event.message
            if cause is not None and said.id != cause.id and MEMORY_METADATA_KEY in said.metadata:
                return replace(event, message=unopened(said))
            return replace(event, message=message(said, name))
        case e.WindowRecordedEvent():
            return replace(event, selection=_window(event.selection))
        case e.SessionSummarizedEvent():
            return e.SessionSummarizedEvent(note(event.summary))
        case e.SessionCreatedEvent():
            summary = note(event.summary) if event.summary else None
            if cause is not None:
                return replace(event, summary=summary)
            return e.SessionCreatedEvent(
                id=event.id, policy=event.policy, summary=summary, corrections=event.corrections
            )
        case e.SessionForkedEvent() | e.SessionRewoundEvent():
            state = _state(event.state, name, cause)
            if isinstance(event, e.SessionForkedEvent) and cause is None:
                return replace(event, source=ERASED, state=replace(state, forked_from=None))
            return replace(event, state=state)
        case e.SessionUpdatedEvent():
            return e.SessionUpdatedEvent(policy=event.policy, usage=event.usage)
        case e.SessionContinuedEvent():
            return e.SessionContinuedEvent(ERASED)
        case _:
            return event


def note(summary: Summary) -> Summary:
    """Return what stands in for a summary: it says for which messages it stood, and nothing of theirs."""
    begins = next(
        (p for p in SUMMARY_PREFIXES.values() if summary.text.startswith(p)), SUMMARY_PREFIXES["en"]
    )
    named = f"(messages {summary.first}–{summary.last}) " if summary.last else ""
    return replace(summary, text=f"{begins}{named}{ERASED}", recall=None)


def _window(chosen: WindowSelection) -> WindowSelection:
    return replace(chosen, parts=(), sizes=(), digest="")


def _state(state: SessionState, name: str, cause: Message | None) -> SessionState:
    def called(call: OpenCall) -> OpenCall:
        renamed = cause is None or call.message_id == cause.id
        return replace(call, message_id=name) if renamed else call

    shown = state.preview
    if shown is not None and (cause is None or shown == preview(cause)):
        shown = ERASED
    made = replace(
        state,
        preview=shown,
        open_calls=tuple(map(called, state.open_calls)),
        summary=note(state.summary) if state.summary else None,
        written=note(state.written) if state.written else None,
    )
    if cause is not None:
        return made
    return replace(
        made, user_id=None, title=None, metadata=EMPTY, root_id=None, continued_from=None,
        continuations=(),
    )  # fmt: skip


def frame_event(event: e.FrameEvent) -> tuple[e.FrameEvent, tuple[str, ...]]:
    """Return what stands in for an event of a frame that holds content of others, and the texts that it refers to."""
    match event:
        case e.FrameUpdatedEvent() if event.pack is not None:
            return replace(event, pack=_pack(event.pack)), ()
        case e.HandleAddedEvent():
            return replace(event, handle=_handle(event.handle)), (ERASED,)
        case e.FrameCompactedEvent():
            return replace(event, replaced=tuple(map(_handle, event.replaced))), (ERASED,)
        case _:
            return event, ()


def _pack(chosen: PackSelection) -> PackSelection:
    return replace(chosen, digest="", parts=(), about=EMPTY, role="")


def _handle(handle: ContextHandle) -> ContextHandle:
    return replace(
        handle, description="", target=EMPTY, content=None, content_hash=text_hash(ERASED)
    )
