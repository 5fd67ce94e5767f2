"""Redaction: replaces an event by an event of the same kind without the erased content, so that all folds still work.

A message keeps its role, category and the ids of its calls and results. Its text, arguments, results and metadata are
removed, and so is everything that was derived from its text.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from limpet.core.rules import session_rules
from limpet.core.rules.frame_fold import text_hash
from limpet.core.rules.session_rules import message_preview
from limpet.core.values import events as e
from limpet.core.values.context import ContextHandle, priority_of_metadata
from limpet.core.values.memory_records import MEMORY_METADATA_KEY
from limpet.core.values.messages import Message, ToolCallRequest, ToolCallResult
from limpet.core.values.session_state import SUMMARY_PREFIXES, OpenCall, SessionState, Summary
from limpet.core.values.validation import EMPTY, Json

ERASED_TEXT: Final = "[erased]"

_PROFILE_END: Final = re.compile(r"\[/memory-([0-9]{1,18})\]\Z")

replace = msgspec.structs.replace


def redacted_message(said: Message, name: str) -> Message:
    """Return the redacted message, with the new id `name`."""
    return Message(
        role=said.role,
        content=None if said.content is None else ERASED_TEXT,
        category=said.category,
        id=name,
        timestamp=said.timestamp,
        metadata=_kept_metadata(said),
        tokens=said.tokens,
        tool_calls=tuple(ToolCallRequest(call.id, call.name) for call in said.tool_calls),
        tool_results=tuple(ToolCallResult(r.tool_call_id, ERASED_TEXT, is_error=r.is_error) for r in said.tool_results),
        origin=said.origin,
    )


def without_profile(said: Message) -> Message:
    """Return a system prompt without the profile that memory added at its end."""
    rest = {key: value for key, value in said.metadata.items() if key != MEMORY_METADATA_KEY}
    text = said.content if isinstance(said.content, str) else ""
    end = _PROFILE_END.search(text)
    begin = text.rfind(f"[memory-{end[1]}]\n") if end else 0
    left = text[: max(begin, 0)].removesuffix("\n\n")
    return replace(said, content=left or ERASED_TEXT, metadata=rest)


def _kept_metadata(said: Message) -> dict[str, Json]:
    """Return the metadata that windows depend on: Limpet's own keys with fixed values."""
    kept: dict[str, Json] = {}
    chosen = priority_of_metadata(said.metadata)
    if chosen is not None:
        pinned = said.metadata.get("pinned") is True
        kept = {"pinned": True} if pinned else {"priority": chosen[0].label}
    if said.metadata.get("type") == session_rules.TRANSITION_TYPE:
        kept["type"] = session_rules.TRANSITION_TYPE
    return kept


def redacted_session_event(event: e.SessionEvent, name: str, cause: Message | None) -> e.SessionEvent:
    """Return the redacted event. `cause` is the erased message, whose new id is `name`; None erases the whole session."""
    match event:
        case e.MessageAddedEvent():
            said = event.message
            if cause is not None and said.id != cause.id and MEMORY_METADATA_KEY in said.metadata:
                return replace(event, message=without_profile(said))
            return replace(event, message=redacted_message(said, name))
        case e.WindowRecordedEvent():
            return replace(event, selection=replace(event.selection, parts=(), sizes=(), digest=""))
        case e.SessionSummarizedEvent():
            return e.SessionSummarizedEvent(redacted_summary(event.summary))
        case e.SessionCreatedEvent():
            summary = redacted_summary(event.summary) if event.summary else None
            if cause is not None:
                return replace(event, summary=summary)
            return e.SessionCreatedEvent(
                id=event.id, policy=event.policy, summary=summary, corrections=event.corrections
            )
        case e.SessionForkedEvent() | e.SessionRewoundEvent():
            state = _redacted_state(event.state, name, cause)
            if isinstance(event, e.SessionForkedEvent) and cause is None:
                return replace(event, source=ERASED_TEXT, state=replace(state, forked_from=None))
            return replace(event, state=state)
        case e.SessionUpdatedEvent():
            return e.SessionUpdatedEvent(policy=event.policy, usage=event.usage)
        case e.SessionContinuedEvent():
            return e.SessionContinuedEvent(ERASED_TEXT)
        case _:
            return event


def redacted_summary(summary: Summary) -> Summary:
    """Return the redacted summary, which still names the numbers of its messages."""
    begins = next((p for p in SUMMARY_PREFIXES.values() if summary.text.startswith(p)), SUMMARY_PREFIXES["en"])
    named = f"(messages {summary.first}–{summary.last}) " if summary.last else ""
    return replace(summary, text=f"{begins}{named}{ERASED_TEXT}", recall=None)


def _redacted_state(state: SessionState, name: str, cause: Message | None) -> SessionState:
    def called(call: OpenCall) -> OpenCall:
        renamed = cause is None or call.message_id == cause.id
        return replace(call, message_id=name) if renamed else call

    shown = state.preview
    if shown is not None and (cause is None or shown == message_preview(cause)):
        shown = ERASED_TEXT
    made = replace(
        state,
        preview=shown,
        open_calls=tuple(map(called, state.open_calls)),
        summary=redacted_summary(state.summary) if state.summary else None,
        written=redacted_summary(state.written) if state.written else None,
    )
    if cause is not None:
        return made
    return replace(
        made, user_id=None, title=None, metadata=EMPTY, root_id=None, continued_from=None,
        continuations=(),
    )  # fmt: skip


def redacted_frame_event(event: e.FrameEvent) -> tuple[e.FrameEvent, tuple[str, ...]]:
    """Return the redacted event of a frame, and the texts that the redacted event refers to."""
    match event:
        case e.FrameUpdatedEvent() if event.pack is not None:
            pack = replace(event.pack, digest="", parts=(), about=EMPTY, role="")
            return replace(event, pack=pack), ()
        case e.HandleAddedEvent():
            return replace(event, handle=_redacted_handle(event.handle)), (ERASED_TEXT,)
        case e.FrameCompactedEvent():
            return replace(event, replaced=tuple(map(_redacted_handle, event.replaced))), (ERASED_TEXT,)
        case _:
            return event, ()


def _redacted_handle(handle: ContextHandle) -> ContextHandle:
    return replace(handle, description="", target=EMPTY, content=None, content_hash=text_hash(ERASED_TEXT))
