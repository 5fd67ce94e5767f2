"""Messages with their tool calls and results, their groups, and a token estimate for them.

A message checks itself when it is made, so that no other code meets an invalid one. A group is a
message with tool calls and all their results; a list from elsewhere may hold broken groups,
which name their fault. The estimate depends on the script and needs no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, Literal, cast

import msgspec
from msgspec.structs import force_setattr

from limpet import errors
from limpet.core.values import ids
from limpet.core.values.validation import (
    EMPTY,
    FrozenDict,
    FrozenList,
    Json,
    checked_id,
    checked_text,
    freeze,
    freeze_object,
    thaw,
)

ESTIMATE_COUNTER = "estimate-1"
"""The counter name stored with every such count, so that an exact counter knows which ones to replace."""

IMAGE_TOKENS, AUDIO_TOKENS, FILE_TOKENS = 1000, 500, 250
_TOKENS_OF_PART_TYPE = {
    "image": IMAGE_TOKENS, "image_url": IMAGE_TOKENS, "input_image": IMAGE_TOKENS,
    "audio": AUDIO_TOKENS, "input_audio": AUDIO_TOKENS,
    "file": FILE_TOKENS, "input_file": FILE_TOKENS,
}  # fmt: skip
_IDEOGRAPHS = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U0001f000-\U0003ffff]")


def estimate_text_tokens(text: str) -> int:
    """Estimate one text; at least 1."""
    if text.isascii():
        return len(text) // 4 + 1
    dense = len(_IDEOGRAPHS.findall(text))
    ascii_ = len(text.encode("ascii", "ignore"))
    return dense + (len(text) - dense - ascii_) // 2 + ascii_ // 4 + 1


def estimate_content_tokens(content: Json) -> int:
    """Estimate a message's content: text, a list of parts, or any other JSON value."""
    if content is None:
        return 0
    if isinstance(content, str):
        return estimate_text_tokens(content)
    if isinstance(content, list):
        return sum(_estimate_part_tokens(part) for part in cast("list[Json]", content))
    return estimate_text_tokens(str(content))


def _estimate_part_tokens(part: Json) -> int:
    if not isinstance(part, Mapping):
        return estimate_text_tokens(str(part))
    fields = cast("Mapping[str, Json]", part)
    known = _TOKENS_OF_PART_TYPE.get(str(fields.get("type")))
    if known is not None:
        return known
    text = fields.get("text")
    return estimate_text_tokens(text if isinstance(text, str) else str(dict(fields)))


Role = Literal["system", "user", "assistant", "tool"]
ROLES: Final = ("system", "user", "assistant", "tool")


class MessageCategory(Enum):
    """What a message is for; the more important for a window, the lower the number."""

    SYSTEM = 1
    CONTEXT = 2
    DIALOG = 3
    SYSTEM_OUTPUT = 4


CATEGORY_OF_ROLE: Final[Mapping[str, MessageCategory]] = {
    "system": MessageCategory.SYSTEM,
    "user": MessageCategory.DIALOG,
    "assistant": MessageCategory.DIALOG,
    "tool": MessageCategory.SYSTEM_OUTPUT,
}
_CATEGORY_OF_FOREIGN_NAME: Final = {"ERROR": MessageCategory.SYSTEM_OUTPUT, "INTERNAL": MessageCategory.SYSTEM_OUTPUT}


def category_named(name: str) -> MessageCategory:
    """Return the category of that name; for a foreign name the nearest one, DIALOG by default."""
    if name in MessageCategory.__members__:
        return MessageCategory[name]
    return _CATEGORY_OF_FOREIGN_NAME.get(name, MessageCategory.DIALOG)


class ToolCallRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A tool call of an assistant message. Without an id it gets one.

    `arguments` is the argument text of the provider, kept verbatim.
    """

    id: str = ""
    name: str = ""
    args: Mapping[str, Json] = EMPTY
    arguments: str | None = None

    def __post_init__(self) -> None:
        if not self.id:
            force_setattr(self, "id", ids.new_id("call"))
        force_setattr(self, "id", checked_id("a tool call's id", self.id))
        force_setattr(self, "name", checked_id("a tool's name", self.name))
        if type(self.args) is not FrozenDict:
            force_setattr(self, "args", freeze_object("args of a call", self.args))
        if self.arguments is not None:
            force_setattr(self, "arguments", _checked_message_text("the argument text of a call", self.arguments))

    def __hash__(self) -> int:
        return hash((self.id, self.name))


class ToolCallResult(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The result of a tool call: any JSON value, and whether it is an error."""

    tool_call_id: str
    result: Json = None
    is_error: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "tool_call_id", checked_id("tool_call_id", self.tool_call_id))
        if type(self.is_error) is not bool:
            raise errors.InvalidMessage("is_error of a tool result is True or False.")
        force_setattr(self, "result", freeze(self.result))

    def __hash__(self) -> int:
        return hash((self.tool_call_id, self.is_error))


PREVALIDATED: Final[Mapping[str, Json]] = FrozenDict()
"""Given as `extra`, it says that the maker of the message has validated every field: for intake of plain dicts only."""


class Message(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """One message of a conversation; immutable, content and metadata included.

    Content is text or parts (a list of dicts). Only an assistant has tool calls, only role `tool` has tool
    results; a message must have content, calls or results. `id` and `timestamp` are made when not given;
    `category` follows the role. `tokens` is a count given by the caller, 0 = not counted. `origin` names the
    session that a copy was carried over from. `extra` keeps fields that a later version wrote. `openai` or
    `anthropic` is the provider's dict as it came in, verbatim; at most one of them. Raises a kind of InvalidMessage.
    """

    role: str
    content: Json = None
    category: MessageCategory = cast("MessageCategory", None)
    id: str = ""
    timestamp: str = ""
    metadata: Mapping[str, Json] = EMPTY
    tokens: int = 0
    tool_calls: Sequence[ToolCallRequest] = ()
    tool_results: Sequence[ToolCallResult] = ()
    origin: str | None = None
    extra: Mapping[str, Json] = EMPTY
    openai: Mapping[str, Json] | None = None
    anthropic: Mapping[str, Json] | None = None

    def __post_init__(self) -> None:
        if self.extra is PREVALIDATED:
            force_setattr(self, "extra", EMPTY)
            return
        if self.role not in ROLES:
            raise errors.WrongRole(
                f"{self.role!r} is not a role.",
                hint="Use system, user, assistant or tool.",
                facts={"role": str(self.role)},
            )
        force_setattr(self, "role", str.__str__(self.role))
        made, now = ("", "") if self.id and self.timestamp else ids.new_id_and_time("msg")
        force_setattr(self, "id", checked_id("a message's id", self.id) if self.id else made)
        force_setattr(self, "timestamp", _utc_timestamp(self.timestamp) if self.timestamp else now)
        if type(self.content) is not str or not self.content.isascii():
            force_setattr(self, "content", _checked_content(self.content))
        _freeze_object_fields(self)
        if self.origin is not None:
            force_setattr(self, "origin", checked_id("the origin of a message", self.origin))
        for field in ("tool_calls", "tool_results"):
            if type(parts := getattr(self, field)) is not tuple:
                force_setattr(self, field, _checked_tuple(field, parts))
        if type(self.category) is not MessageCategory:
            if self.category is not cast("object", None):
                raise errors.InvalidMessage("category must be a MessageCategory.")
            force_setattr(self, "category", CATEGORY_OF_ROLE[self.role])
        if type(self.tokens) is not int or self.tokens < 0:
            raise errors.InvalidMessage("tokens is a count: an int, 0 or more.")
        _check_tool_fields(self)

    def __hash__(self) -> int:
        return hash((self.role, self.id))

    def __repr__(self) -> str:
        calls = f" {len(self.tool_calls)} calls" if self.tool_calls else ""
        results = f" {len(self.tool_results)} results" if self.tool_results else ""
        return f"<Message {self.id} {self.role} {self.category.name}{calls}{results}>"

    def raw(self) -> dict[str, Json]:
        """Return what came in: the provider's dict, else to_dict()."""
        kept = self.openai if self.openai is not None else self.anthropic
        return thaw(kept) if kept is not None else self.to_dict()

    def to_dict(self) -> dict[str, Json]:
        """Return every field as plain JSON; from_dict reads it back, unknown fields included."""
        return {
            **thaw(self.extra),
            "role": self.role,
            "content": thaw(self.content),
            "category": self.category.name,
            "id": self.id,
            "timestamp": self.timestamp,
            "metadata": thaw(self.metadata),
            "tokens": self.tokens,
            "tool_calls": [thaw(msgspec.to_builtins(call)) for call in self.tool_calls],
            "tool_results": [
                {"tool_call_id": r.tool_call_id, "result": thaw(r.result), "is_error": r.is_error}
                for r in self.tool_results
            ],
            **({"origin": self.origin} if self.origin else {}),
            **({"openai": thaw(self.openai)} if self.openai is not None else {}),
            **({"anthropic": thaw(self.anthropic)} if self.anthropic is not None else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Message:
        """Make the message that to_dict described. Unknown fields are kept; the input is not changed."""
        known, extra = dict[str, Json](), dict[str, Json]()
        for key, value in data.items():
            (known if key in _FIELDS else extra)[key] = value
        name = known.pop("category", None)
        if name is not None:
            known["category"] = category_named(_checked_message_text("category", name))
            if name not in MessageCategory.__members__:
                extra.setdefault("original_category", name)
        for field, kind in (("tool_calls", ToolCallRequest), ("tool_results", ToolCallResult)):
            known[field] = _parse_tool_items(kind, known.get(field))
        known.setdefault("role", "")
        return cls(**known, extra=extra or EMPTY)

    def to_api_format(self) -> dict[str, Json]:
        """Return the bare {"role", "content"} that every chat API takes."""
        return {"role": self.role, "content": thaw(self.content)}

    def fallback_estimate_tokens(self) -> int:
        """Return `tokens` if a count was given, else an estimate by script."""
        if self.tokens > 0:
            return self.tokens
        tokens = estimate_content_tokens(self.content)
        for call in self.tool_calls:
            tokens += estimate_text_tokens(f"{call.name}{call.arguments or dict(call.args)}")
        for result in self.tool_results:
            tokens += estimate_content_tokens(result.result)
        return max(1, tokens)


_FIELDS: Final = frozenset(Message.__struct_fields__) - {"extra"}


def _utc_timestamp(timestamp: str) -> str:
    try:
        return ids.iso(ids.microseconds(_checked_message_text("a timestamp", timestamp)))
    except (ValueError, OverflowError) as error:
        raise errors.InvalidMessage(
            "a message's timestamp must be ISO 8601, for example 2026-01-31T12:00:00+00:00."
        ) from error


def _checked_content(content: Json) -> Json:
    frozen = freeze(content)
    if frozen is None or isinstance(frozen, (str, FrozenList, FrozenDict)):
        return frozen
    raise errors.InvalidMessage(
        "content is text, a list of parts, a dict, or None.", facts={"type": type(content).__name__}
    )


def _checked_message_text(what: str, value: Json) -> str:
    if not isinstance(value, str):
        raise errors.InvalidMessage(f"{what} must be text, not {type(value).__name__}.")
    return checked_text(value)


def _checked_tuple(field: str, parts: Json) -> tuple[Json, ...]:
    if not isinstance(parts, (list, tuple)):
        raise errors.InvalidMessage(f"{field} comes in a list, not {type(parts).__name__}.")
    return tuple(cast("list[Json]", parts))


def _parse_tool_items(kind: type[ToolCallRequest] | type[ToolCallResult], parts: Json) -> tuple[Json, ...]:
    if parts is None:
        return ()
    if not isinstance(parts, (list, tuple)):
        raise errors.InvalidMessage(f"a list of {kind.__name__} is needed, not {type(parts).__name__}.")
    return tuple(_parse_tool_item(kind, part) for part in cast("list[Json]", parts))


def _parse_tool_item(kind: type[ToolCallRequest] | type[ToolCallResult], part: Json) -> Json:
    if isinstance(part, kind):
        return part
    try:
        fields = {str(key): value for key, value in part.items()}
        return kind(**fields)
    except (AttributeError, TypeError) as error:
        wanted = ", ".join(kind.__struct_fields__)
        raise errors.InvalidMessage(f"a {kind.__name__} has the fields {wanted}.") from error


def _freeze_object_fields(message: Message) -> None:
    if message.metadata is not EMPTY:
        force_setattr(message, "metadata", freeze_object("metadata", message.metadata))
    if message.openai is not None:
        force_setattr(message, "openai", freeze_object("openai", message.openai))
    if message.anthropic is not None:
        force_setattr(message, "anthropic", freeze_object("anthropic", message.anthropic))
        if message.openai is not None:
            raise errors.InvalidMessage("a message comes from one provider: openai or anthropic.")
    if message.extra is not EMPTY:
        force_setattr(message, "extra", freeze_object("extra", message.extra))
        if taken := sorted(_FIELDS & message.extra.keys()):
            raise errors.InvalidMessage(f"extra can't hold {taken[0]!r}: a message has that field.")


def _check_tool_fields(message: Message) -> None:
    for call in message.tool_calls:
        if not isinstance(cast("object", call), ToolCallRequest):
            raise errors.InvalidMessage("tool_calls must hold ToolCallRequest values.")
    for result in message.tool_results:
        if not isinstance(cast("object", result), ToolCallResult):
            raise errors.InvalidMessage("tool_results must hold ToolCallResult values.")
    if message.tool_calls and message.role != "assistant":
        raise errors.WrongRole(f"only an assistant makes tool calls, not {message.role}.")
    if message.tool_results and message.role != "tool":
        raise errors.WrongRole(f"only role tool carries tool results, not {message.role}.")
    if message.role == "tool" and not message.tool_results:
        raise errors.InvalidMessage(
            "a tool message needs tool_results.",
            hint="Name the call each one answers: ToolCallResult(tool_call_id=…, result=…).",
        )
    if message.content is None and not message.tool_calls and not message.tool_results:
        raise errors.InvalidMessage("a message needs content, tool calls or tool results.")


ORPHAN_RESULT: Final = "a result whose call is not before it"
UNANSWERED_CALL: Final = "a call without all of its results"
REPEATED_CALL_ID: Final = "two calls of one message have the same id"


class MessageGroup(msgspec.Struct, frozen=True):
    """The indices of its first and last message. `open`: it waits for results at the end of the list."""

    first: int
    last: int
    fault: str = ""
    open: bool = False


def group_messages(messages: Sequence[Message]) -> list[MessageGroup]:
    """Return the groups of a list of messages, in order; each message is in exactly one."""
    found: list[MessageGroup] = []
    at, size = 0, len(messages)
    while at < size:
        group = group_at(messages, at)
        found.append(group)
        at = group.last + 1
    return found


def group_at(messages: Sequence[Message | None], at: int) -> MessageGroup:
    """Return the group that begins at an index. None stands for messages that are not loaded."""
    message = messages[at]
    assert message is not None, "a group begins with a message"
    if not message.tool_calls:
        return MessageGroup(at, at, ORPHAN_RESULT if message.role == "tool" else "")
    calls = message.tool_calls
    waiting = {call.id for call in calls}
    if len(waiting) < len(calls):
        return MessageGroup(at, at, REPEATED_CALL_ID)
    last, end = at, len(messages)
    while waiting and last + 1 < end and _remove_answered(messages[last + 1], waiting):
        last += 1
    if not waiting:
        return MessageGroup(at, last)
    return MessageGroup(at, last, open=True) if last + 1 == end else MessageGroup(at, last, UNANSWERED_CALL)


def _remove_answered(message: Message | None, waiting: set[str]) -> bool:
    """Remove the answered calls from `waiting`; return False if a result answers none of them."""
    if message is None:
        return False
    named = [result.tool_call_id for result in message.tool_results]
    if not named or len(set(named)) < len(named) or not waiting.issuperset(named):
        return False
    waiting.difference_update(named)
    return True
