"""Content parts in one provider-neutral form, messages with the results of their calls, and envelopes.

Reading a part never fails: a part of an unknown type is `unknown` and is rendered as a placeholder text. Tool call ids
and tool names are converted to valid ones of each provider here. An envelope holds the fields stored beside a provider's
dict.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, cast
from urllib.parse import unquote_to_bytes

import msgspec

from limpet import errors, limits
from limpet.core.values.messages import CATEGORY_OF_ROLE, Message, ToolCallRequest, ToolCallResult, category_named
from limpet.core.values.validation import EMPTY, Json, freeze, json_text, text_or_json

PartKind = Literal["text", "refusal", "image", "audio", "video", "file", "private", "unknown"]


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message's content.

    Media have `data` (base64) and `media_type`, or a `url`, or neither if only their provider stores them. A file of
    plain text has `text`. A `private` part is for its own provider only: reasoning, signatures, calls of built-in tools.
    `raw` is the provider's dict.
    """

    kind: PartKind
    text: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""
    name: str = ""
    raw: Mapping[str, Json] = EMPTY

    @property
    def type(self) -> str:
        """The `type` in the provider's dict; Gemini's parts have none."""
        return _text_at(self.raw, "type")


PDF: Final = "application/pdf"
_MEDIA_TYPES: Final = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif",
    "webp": "image/webp", "pdf": PDF, "wav": "audio/wav", "mp3": "audio/mpeg", "mp4": "video/mp4",
    "txt": "text/plain", "md": "text/markdown", "csv": "text/csv",
}  # fmt: skip
_AUDIO_TYPES: Final = {"mp3": "audio/mpeg", "wav": "audio/wav"}
_PRIVATE_TYPES: Final = frozenset(
    {"thinking", "redacted_thinking", "reasoning", "server_tool_use", "container_upload"}
    | {"mcp_tool_use", "mcp_tool_result"}
)


_URL_FIELDS: Final = (("image_url", dict), ("image_url", str), ("file_id", str))
_FILE_FIELDS: Final = (("file_data", str), ("file_url", str), ("file_id", str))
_CONTENT_FIELDS: Final[Mapping[str, tuple[tuple[str, type], ...]]] = {
    "text": (("text", str),), "input_text": (("text", str),), "output_text": (("text", str),),
    "refusal": (("refusal", str),), "image_url": _URL_FIELDS, "input_image": _URL_FIELDS,
    "input_audio": (("input_audio", dict),), "audio": (("audio", dict),), "file": (("file", dict),),
    "input_file": _FILE_FIELDS, "image": (("source", dict),), "document": (("source", dict),),
    "search_result": (("content", list),),
}  # fmt: skip
"""The fields of which a part of each type has at least one, with their types."""


def read_parts(content: Json) -> tuple[ContentPart, ...]:
    """Return the parts of a message's content."""
    if content is None:
        return ()
    if isinstance(content, list):
        return tuple(read_part(part) for part in cast("list[Json]", content))
    return (read_part(content),)


def read_result_parts(result: Json) -> tuple[ContentPart, ...]:
    """Return the parts of a tool result; a result that is not a list of parts is one text part."""
    if isinstance(result, list) and result:
        items = cast("list[Json]", result)
        parts = read_parts(items)
        if all(_is_provider_part(part) for part in parts):
            return parts
    if result is None:
        return ()
    return (ContentPart(kind="text", text=text_or_json(result)),)


def _is_provider_part(part: ContentPart) -> bool:
    """Whether a part is in a provider's format, unlike a tool's own row such as {"type": "file", "size": 7}."""
    if part.kind == "private":
        return bool(part.type)
    holders = _CONTENT_FIELDS.get(part.type, ())
    return any(isinstance(part.raw.get(name), kind) for name, kind in holders)


def read_part(part: Json) -> ContentPart:
    """Return the part of one JSON value."""
    if not isinstance(part, dict):
        return ContentPart(kind="text", text=text_or_json(part))
    raw = cast("Mapping[str, Json]", part)
    kind = _text_at(raw, "type")
    if kind in _PRIVATE_TYPES or kind.endswith("_tool_result"):
        return ContentPart(kind="private", raw=raw)
    if reader := _PART_READERS.get(kind):
        return reader(raw)
    return ContentPart(kind="unknown", name=kind, raw=raw) if kind else _gemini_part(raw)


def placeholder(part: ContentPart) -> str:
    """Return the placeholder text of a part that can't be rendered."""
    kind = part.name if part.kind == "unknown" else part.kind
    what = part.name if part.kind != "unknown" and part.name else part.url
    return f"[{kind} {what}: not shown]" if what else f"[{kind}: not shown]"


def text_or_placeholder(part: ContentPart) -> str:
    """Return the text of a part, or its placeholder if it has none."""
    return part.text or ("" if part.kind in ("text", "refusal") else placeholder(part))


def is_blank(part: ContentPart) -> bool:
    """Whether a part is blank text, which some providers refuse."""
    return part.kind in ("text", "refusal") and not part.text.strip()


def data_url(part: ContentPart) -> str:
    """Return the part's data in a URL."""
    return f"data:{part.media_type};base64,{part.data}"


def _text_at(raw: Mapping[str, Json], *path: str) -> str:
    value: Json = raw
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - JSON
    return value if isinstance(value, str) else ""


def _guess_media_type(url: str, otherwise: str) -> str:
    path = url.partition("?")[0].partition("#")[0]
    return _MEDIA_TYPES.get(path.rpartition(".")[2].lower(), otherwise)


def _media_part(kind: PartKind, raw: Mapping[str, Json], url: str, name: str, media_type: str = "") -> ContentPart:
    """Return media at a URL, which may be a data URL."""
    if not url.startswith("data:"):
        fitting = media_type or _guess_media_type(url or name, "image/jpeg" if kind == "image" else PDF)
        return ContentPart(kind=kind, url=url, name=name, media_type=fitting, raw=raw)
    head, _, data = url[5:].partition(",")
    stated, *options = head.split(";")
    if "base64" not in options:
        data = base64.b64encode(unquote_to_bytes(data)).decode()
    # Callers put any file into an image URL; the media type in the data URL decides.
    kind = media_kind(stated) if stated else kind
    return _data_part(kind, raw, data, stated or media_type or "text/plain", name)


def _data_part(kind: PartKind, raw: Mapping[str, Json], data: str, media_type: str, name: str) -> ContentPart:
    text = _decode_text(data) if kind == "file" and media_type.startswith("text/") else ""
    return ContentPart(kind=kind, data=data, media_type=media_type, name=name, text=text, raw=raw)


def _decode_text(data: str) -> str:
    try:
        return base64.b64decode(data).decode("utf-8", "replace")
    except binascii.Error:
        return ""


def _text_part(raw: Mapping[str, Json]) -> ContentPart:
    return ContentPart(kind="text", text=_text_at(raw, "text"), raw=raw)


def _chat_image_part(raw: Mapping[str, Json]) -> ContentPart:
    url = _text_at(raw, "image_url", "url") or _text_at(raw, "image_url")
    return _media_part("image", raw, url, _text_at(raw, "file_id"))


def _chat_audio_part(raw: Mapping[str, Json]) -> ContentPart:
    spoken = _text_at(raw, "input_audio", "format")
    media_type = _AUDIO_TYPES.get(spoken, f"audio/{spoken}")
    return _data_part("audio", raw, _text_at(raw, "input_audio", "data"), media_type, "")


def _chat_file_part(raw: Mapping[str, Json]) -> ContentPart:
    file = raw.get("file")
    return _openai_file_part(raw, cast("Mapping[str, Json]", file) if isinstance(file, dict) else EMPTY)


def _openai_file_part(raw: Mapping[str, Json], inner: Mapping[str, Json]) -> ContentPart:
    name, data = _text_at(inner, "filename"), _text_at(inner, "file_data")
    if data and not data.startswith("data:"):
        return _data_part("file", raw, data, _guess_media_type(name, PDF), name)
    url = data or _text_at(inner, "file_url")
    return _media_part("file", raw, url, name or _text_at(inner, "file_id"))


def _anthropic_media_part(raw: Mapping[str, Json]) -> ContentPart:
    kind: PartKind = "image" if raw.get("type") == "image" else "file"
    name = _text_at(raw, "title")
    match _text_at(raw, "source", "type"):
        case "base64":
            media_type = _text_at(raw, "source", "media_type")
            return _data_part(kind, raw, _text_at(raw, "source", "data"), media_type, name)
        case "text" | "content" as where:
            source = raw["source"]
            text = _text_at(source, "data") if where == "text" else _joined_text(source.get("content"))
            return ContentPart(kind=kind, text=text, media_type="text/plain", name=name, raw=raw)
        case "file":
            return _media_part(kind, raw, "", name or _text_at(raw, "source", "file_id"))
        case _:
            return _media_part(kind, raw, _text_at(raw, "source", "url"), name)


def _search_result_part(raw: Mapping[str, Json]) -> ContentPart:
    head = [text for key in ("title", "source") if (text := _text_at(raw, key))]
    return ContentPart(kind="file", text="\n".join([*head, _joined_text(raw.get("content"))]), raw=raw)


def _joined_text(content: Json) -> str:
    return "\n".join(part.text for part in read_parts(content) if part.kind == "text")


def _gemini_part(raw: Mapping[str, Json]) -> ContentPart:
    if raw.get("thought") is True:
        return ContentPart(kind="private", raw=raw)
    if isinstance(raw.get("text"), str):
        return _text_part(raw)
    for snake, camel in (("inline_data", "inlineData"), ("file_data", "fileData")):
        inner = raw.get(snake) or raw.get(camel)
        if isinstance(inner, dict):
            held = cast("Mapping[str, Json]", inner)
            media_type = _text_at(held, "mime_type") or _text_at(held, "mimeType")
            kind = media_kind(media_type)
            if snake == "inline_data":
                return _data_part(kind, raw, _text_at(held, "data"), media_type, "")
            url = _text_at(held, "file_uri") or _text_at(held, "fileUri")
            return _media_part(kind, raw, url if url.startswith("http") else "", url, media_type)
    return ContentPart(kind="text", text=json_text(raw))


def media_kind(media_type: str) -> PartKind:
    """Return the kind of part of a media type."""
    kind = media_type.partition("/")[0]
    return cast("PartKind", kind) if kind in ("image", "audio", "video") else "file"


_PART_READERS: Final[Mapping[str, Callable[[Mapping[str, Json]], ContentPart]]] = {
    "text": _text_part,
    "input_text": _text_part,
    "output_text": _text_part,
    "refusal": lambda raw: ContentPart(kind="refusal", text=_text_at(raw, "refusal"), raw=raw),
    "image_url": _chat_image_part,
    "input_image": _chat_image_part,
    "input_audio": _chat_audio_part,
    "audio": lambda raw: ContentPart(kind="audio", text=_text_at(raw, "audio", "transcript"), raw=raw),
    "file": _chat_file_part,
    "input_file": lambda raw: _openai_file_part(raw, raw),
    "image": _anthropic_media_part,
    "document": _anthropic_media_part,
    "search_result": _search_result_part,
}


def without_private(parts: Sequence[ContentPart]) -> list[ContentPart]:
    """Return the parts that are not private to a provider."""
    return [part for part in parts if part.kind != "private"]


OPENING_USER_TEXT: Final = "(conversation begins)"
"""The first user message for providers that refuse a request that begins with an assistant message."""

ERROR_PREFIX: Final = "Error: "
"""The prefix of a failed call's text for providers without an error flag."""

_ID_DIGEST_CHARS: Final = 12


class CallAnswer(NamedTuple):
    """The result of a call, and the tool message that contains it."""

    message: Message
    result: ToolCallResult

    def parts(self) -> tuple[ContentPart, ...]:
        """Return the parts of the result. A message with a single empty result has the result in its content."""
        given: Json = self.result.result
        if given is None and self.message.anthropic is None and len(self.message.tool_results) == 1:
            given = self.message.content
        return read_result_parts(given)


class AnsweredMessage(NamedTuple):
    """A message of another role than tool, with one answer for each of its calls, in the order of the results."""

    message: Message
    answers: tuple[CallAnswer, ...] = ()

    def answers_in_call_order(self) -> list[tuple[ToolCallRequest, CallAnswer]]:
        """Return calls and answers in the order of the calls."""
        found = {answer.result.tool_call_id: answer for answer in self.answers}
        return [(call, found[call.id]) for call in self.message.tool_calls]

    def result_messages(self) -> list[Message]:
        """Return the tool messages of the answers, each once."""
        seen: list[Message] = []
        for answer in self.answers:
            if not seen or seen[-1] is not answer.message:
                seen.append(answer.message)
        return seen

    def user_parts_beside_results(self) -> list[ContentPart]:
        """Return the user's parts in the messages of the results, which only Anthropic's format allows."""
        return [
            part
            for carrier in self.result_messages()
            if carrier.anthropic is not None
            for part in read_parts(carrier.content)
        ]


def split_system_messages(messages: Sequence[Message]) -> tuple[list[str], Sequence[Message]]:
    """Return the non-blank texts of the system messages at the beginning of a window, and the other messages."""
    count = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    return [text for message in messages[:count] if (text := system_text(message))], messages[count:]


def answered_messages(messages: Sequence[Message]) -> Iterator[AnsweredMessage]:
    """Yield the messages of a window with their answers; raise OpenCalls or ResultWithoutCall if unpaired."""
    number = 0
    while number < len(messages):
        message = messages[number]
        number += 1
        if message.role == "tool":
            raise errors.ResultWithoutCall(
                "a result stands before its call, or without it.",
                hint="Render a window, which keeps calls and results together.",
                facts={"message": message.id},
            )
        waiting = {call.id for call in message.tool_calls}
        answers: list[CallAnswer] = []
        while waiting and number < len(messages) and messages[number].role == "tool":
            for result in messages[number].tool_results:
                if result.tool_call_id not in waiting:
                    raise errors.ResultWithoutCall(facts={"call": result.tool_call_id})
                waiting.remove(result.tool_call_id)
                answers.append(CallAnswer(messages[number], result))
            number += 1
        if waiting:
            raise errors.OpenCalls(
                f"{len(waiting)} tool call(s) have no result; no provider takes that.",
                hint="Add their results first, or close them with close_pending_calls().",
                facts={"calls": sorted(waiting)},
            )
        yield AnsweredMessage(message, tuple(answers))


class ProviderCallIds:
    """Assigns calls ids that a provider accepts: the call's own id if possible, else an id derived from it.

    A derived id depends on the message and the call only, so it does not change when the conversation grows. With
    `once`, ids are unique in a request, otherwise in a message.
    """

    def __init__(self, accepted: str, longest: int, *, once: bool) -> None:
        self._accepted = re.compile(accepted)
        self._longest = longest
        self._once = once
        self._taken: set[str] = set()

    def ids_of_message(self, message: Message) -> dict[str, str]:
        """Return the provider's ids of the calls of the next message in the request."""
        if not self._once:
            self._taken.clear()
        return {call.id: self._provider_id(message.id, call.id) for call in message.tool_calls}

    def _provider_id(self, message_id: str, call_id: str) -> str:
        name, attempt = call_id, 0
        while name in self._taken or len(name) > self._longest or not self._accepted.fullmatch(name):
            whole = f"{message_id}\n{call_id}\n{attempt}".encode()
            tail = hashlib.sha256(whole).hexdigest()[:_ID_DIGEST_CHARS]
            head = re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)[: self._longest - _ID_DIGEST_CHARS - 1]
            name, attempt = f"{head}_{tail}", attempt + 1
        self._taken.add(name)
        return name


def tool_name(name: str, *, dots: bool = False) -> str:
    """Return a valid tool name: invalid characters become `_`, and a long name is cut."""
    return re.sub(r"[^a-zA-Z0-9_.-]" if dots else r"[^a-zA-Z0-9_-]", "_", name)[: limits.TOOL_NAME_MAX]


def original_or_tool_name(name: str, longest: int = limits.TOOL_NAME_MAX) -> str:
    """Return a provider's own tool name unchanged if it is valid, else tool_name of it."""
    return name if re.fullmatch(rf"[a-zA-Z0-9_-]{{1,{longest}}}", name) else tool_name(name)


def system_text(message: Message) -> str:
    """Return a system message as text, with placeholders for other parts."""
    found = without_private(read_parts(message.content))
    return "\n\n".join(text for part in found if (text := text_or_placeholder(part)).strip())


def system_as_user_parts(message: Message) -> list[ContentPart]:
    """Return a later system message as tagged user text, for providers that accept system messages only first."""
    text = system_text(message)
    return [ContentPart(kind="text", text=f"<system>\n{text}\n</system>")] if text else []


def text_with_media_below(parts: Sequence[ContentPart], kinds: Collection[str], below: list[ContentPart]) -> str:
    """Return a result as text. Media of `kinds` are mentioned in the text and added to `below`."""
    texts: list[str] = []
    for part in without_private(parts):
        if part.kind in kinds and not part.text:
            below.append(part)
            texts.append(f"[{part.kind}: shown below]")
        else:
            texts.append(text_or_placeholder(part))
    return "\n".join(texts)


def result_text(answer: CallAnswer, text: str) -> str:
    """Return the text of a result, with ERROR_PREFIX if the call failed and the text does not begin with "error"."""
    if not answer.result.is_error or text.lower().startswith("error"):
        return text
    return f"{ERROR_PREFIX}{text}" if text else f"{ERROR_PREFIX}the tool gave no reason."


_COPIED_FIELDS: Final = frozenset({"timestamp", "metadata", "tokens", "origin"})
_ENVELOPE_FIELDS: Final = _COPIED_FIELDS | {"id", "category", "openai", "anthropic"}


class ParsedMessage(NamedTuple):
    """The fields that were parsed from a provider's dict."""

    role: str
    content: Json
    calls: tuple[ToolCallRequest, ...]
    results: tuple[ToolCallResult, ...]


def build_message(
    read: ParsedMessage,
    envelope: Mapping[str, Json],
    *,
    openai: Mapping[str, Json] | None = None,
    anthropic: Mapping[str, Json] | None = None,
) -> Message:
    """Return the message of a provider's dict and its envelope; the envelope's id takes precedence."""
    kept = openai or anthropic or EMPTY
    given = envelope.get("id") or kept.get("id")
    named = envelope.get("category")
    return Message(
        read.role,
        read.content,
        category_named(named) if named else CATEGORY_OF_ROLE[read.role],
        given if isinstance(given, str) else "",
        tool_calls=read.calls,
        tool_results=read.results,
        openai=openai,
        anthropic=anthropic,
        **(_message_fields(envelope) if envelope else EMPTY),
    )


def _message_fields(envelope: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the message fields in an envelope; unknown fields become `extra`."""
    known = {key: envelope[key] for key in _COPIED_FIELDS if key in envelope}
    known["extra"] = freeze({key: envelope[key] for key in envelope if key not in _ENVELOPE_FIELDS})
    return known
