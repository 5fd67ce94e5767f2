"""Events and states of frames to bytes and back. Texts that they refer to by hash are kept beside the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from limpet import errors
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.budget import TokenBudget
from limpet.core.values.frame_state import Frame, Suspension, TreeState

SCHEMA: Final = 1
"""The newest schema of every kind of event that this version knows, and writes."""

FOLD: Final = 2
"""Version of the folded tree. A snapshot of another fold is not read but folded anew."""

TAGS: Final[Mapping[type, str]] = {
    c.PushFrame: "push",
    c.UpdateFrame: "update_frame",
    c.SpendTokens: "spend",
    c.PopFrame: "pop",
    c.AddHandle: "add_handle",
    c.AddResult: "add_result",
    c.CompactFrame: "compact",
    c.RecordPack: "record_pack",
    c.SuspendFrame: "suspend",
    c.EndSuspension: "end_suspension",
    c.RevokeSuspension: "revoke",
    c.BeginTool: "begin_tool",
    c.EndTool: "end_tool",
    c.RetryTool: "retry_tool",
    c.ResumeActor: "resume_actor",
    c.ExpireTree: "expire",
}
"""The stored names of commands."""

_MADE: Final[Mapping[type, frozenset[str]]] = {
    c.SuspendFrame: frozenset({"suspension_id", "token_hash", "again"}),
    c.EndTool: frozenset({"max_messages"}),
    c.AddHandle: frozenset({"at"}),
    c.RecordPack: frozenset({"texts"}),
}
"""Fields that Limpet fills in, or that are settings: not what the caller said."""

_KINDS: Final = {
    kind.kind: msgspec.json.Decoder(kind) for kind in (*e.FRAME_EVENT_TYPES, e.TreeErasedEvent)
}
_encoder = msgspec.json.Encoder()
_sorting = msgspec.json.Encoder(order="sorted")
_tree = msgspec.json.Decoder(TreeState)
_frame = msgspec.json.Decoder(Frame)
_suspension = msgspec.json.Decoder(Suspension)


def command_bytes(command: c.FrameCommand) -> bytes:
    """Return what makes two commands the same: what the caller said, nothing made on the way."""
    made = _MADE.get(type(command), frozenset())
    if isinstance(command, c.PushFrame) and not command.named:
        made = frozenset({"frame_id"})
    elif isinstance(command, c.BeginTool):
        made = frozenset({"key"} if command.named else {"key", "tool_id"})
    fields = {
        field.name: value
        for field in msgspec.structs.fields(command)
        if field.name not in made
        and field.name != "named"
        and (value := getattr(command, field.name)) != field.default
    }
    return _sorting.encode([TAGS[type(command)], fields])


def encode_event(event: e.FrameEvent) -> bytes:
    """Return the payload of an event."""
    return _encoder.encode(event)


def decode_event(kind: str, schema: int, payload: bytes) -> e.FrameEvent:
    """Return the event of a payload that has passed its digest.

    Raises NewerStore for a kind or schema this version does not know, Corrupt for bytes it can't be.
    """
    decoder = _KINDS.get(kind)
    if decoder is None or schema > SCHEMA:
        raise errors.NewerStore(
            f"an event of kind {kind} with schema {schema} was written by a newer Limpet.",
            hint="In an up-to-date clone of Limpet: pip install .",
            facts={"kind": kind, "schema": schema},
        )
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, errors.Refused) as error:
        raise errors.Corrupt(f"a stored {kind} can't be read.", facts={"kind": kind}) from error


def hashes(event: e.FrameEvent) -> list[bytes]:
    """Return the hashes of the texts that an event refers to."""
    found: list[str | None] = []
    match event:
        case e.HandleAddedEvent():
            found = [event.handle.content_hash]
        case e.FrameCompactedEvent():
            found = [handle.content_hash for handle in event.replaced]
        case e.FrameUpdatedEvent():
            found = [event.output_hash, *(event.pack.hashes if event.pack else ())]
        case _:
            pass
    return [bytes.fromhex(one) for one in dict.fromkeys(found) if one is not None]


def encode_tree(tree: TreeState) -> bytes:
    """Return a tree's bytes, for a snapshot."""
    return _encoder.encode(tree)


def decode_tree(data: bytes) -> TreeState | None:
    """Return the tree of a snapshot, or None if it is not one (it is folded anew then)."""
    try:
        return _tree.decode(data)
    except (msgspec.MsgspecError, errors.Refused):
        return None


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame's row: all of a closed one; of an open one only what seldom changes."""
    if frame.open:
        given = frame.budget
        budget = TokenBudget(
            given.total, 0, 0, 0, given.max_context_tokens, given.max_tool_calls,
            given.max_subframe_depth, given.timeout_ms,
        )  # fmt: skip
        frame = Frame(
            frame_id=frame.frame_id, root_id=frame.root_id, scope=frame.scope, goal=frame.goal,
            budget=budget, parent_frame_id=frame.parent_frame_id, depth=frame.depth,
            created_us=frame.created_us,
        )  # fmt: skip
    return _encoder.encode(frame)


def decode_frame(data: bytes) -> Frame:
    """Return the frame of a row."""
    try:
        return _frame.decode(data)
    except (msgspec.MsgspecError, errors.Refused) as error:
        raise errors.Corrupt("a stored frame can't be read.") from error


def encode_suspension(suspension: Suspension) -> bytes:
    """Return the bytes of a suspension's row. The hash of its token stays in the log."""
    return _encoder.encode(msgspec.structs.replace(suspension, token_hash=""))


def decode_suspension(data: bytes) -> Suspension:
    """Return the suspension of a row."""
    try:
        return _suspension.decode(data)
    except (msgspec.MsgspecError, errors.Refused) as error:
        raise errors.Corrupt("a stored suspension can't be read.") from error
