"""Parts of content, read from any provider's shape into one, so that each provider can write its own.

Reading never fails: a part that nobody knows is `unknown`, and is mentioned instead of shown.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, cast
from urllib.parse import unquote_to_bytes

import msgspec

from limpet.core.values.json_values import EMPTY, Json

Kind = Literal["text", "refusal", "image", "audio", "video", "file", "private", "unknown"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of content.

    Media have `data` (base64) and `media_type`, or a `url`, or neither if only their provider has them.
    A file of plain text has `text`. `private` is what only its own provider understands: reasoning,
    signatures, the provider's own tools. `raw` is the part as it came.
    """

    kind: Kind
    text: str = ""
    media_type: str = ""
    data: str = ""
    url: str = ""
    name: str = ""
    raw: Mapping[str, Json] = EMPTY

    @property
    def type(self) -> str:
        """The part's own word for what it is; Gemini's parts have none."""
        return _text(self.raw, "type")


PDF: Final = "application/pdf"
_MEDIA_TYPES: Final = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif",
    "webp": "image/webp", "pdf": PDF, "wav": "audio/wav", "mp3": "audio/mpeg", "mp4": "video/mp4",
    "txt": "text/plain", "md": "text/markdown", "csv": "text/csv",
}  # fmt: skip
_AUDIO_TYPES: Final = {"mp3": "audio/mpeg", "wav": "audio/wav"}
_PRIVATE: Final = frozenset(
    {"thinking", "redacted_thinking", "reasoning", "server_tool_use", "container_upload"}
    | {"mcp_tool_use", "mcp_tool_result"}
)


_URL: Final = (("image_url", dict), ("image_url", str), ("file_id", str))
_FILE: Final = (("file_data", str), ("file_url", str), ("file_id", str))
_HOLDERS: Final[Mapping[str, tuple[tuple[str, type], ...]]] = {
    "text": (("text", str),), "input_text": (("text", str),), "output_text": (("text", str),),
    "refusal": (("refusal", str),), "image_url": _URL, "input_image": _URL,
    "input_audio": (("input_audio", dict),), "audio": (("audio", dict),), "file": (("file", dict),),
    "input_file": _FILE, "image": (("source", dict),), "document": (("source", dict),),
    "search_result": (("content", list),),
}  # fmt: skip
"""Kinds of parts, and the fields of which one has what such a part is about."""


def read(content: Json) -> tuple[Part, ...]:
    """Return the parts of a message's content, whatever its shape."""
    if content is None:
        return ()
    if isinstance(content, list):
        return tuple(read_one(part) for part in cast("list[Json]", content))
    return (read_one(content),)


def read_result(result: Json) -> tuple[Part, ...]:
    """Return the parts of a tool's result; one that is not a list of parts is text, or JSON as text."""
    if isinstance(result, list) and result:
        items = cast("list[Json]", result)
        parts = read(items)
        if all(_holds(part) for part in parts):
            return parts
    if result is None:
        return ()
    return (Part(kind="text", text=result if isinstance(result, str) else json_text(result)),)


def _holds(part: Part) -> bool:
    """Whether a part is one of a provider's, and not a row that a tool gave, such as {"type": "file", "size": 7}."""
    if part.kind == "private":
        return bool(part.type)
    holders = _HOLDERS.get(part.type, ())
    return any(isinstance(part.raw.get(name), kind) for name, kind in holders)


def read_one(part: Json) -> Part:
    """Return one part."""
    if isinstance(part, str):
        return Part(kind="text", text=part)
    if not isinstance(part, dict):
        return Part(kind="text", text=json_text(part))
    raw = cast("Mapping[str, Json]", part)
    kind = _text(raw, "type")
    if kind in _PRIVATE or kind.endswith("_tool_result"):
        return Part(kind="private", raw=raw)
    if reader := _READERS.get(kind):
        return reader(raw)
    return Part(kind="unknown", name=kind, raw=raw) if kind else _gemini(raw)


def json_text(value: Json) -> str:
    """Return a JSON value as text, compact."""
    return msgspec.json.encode(value).decode()


def note(part: Part) -> str:
    """Return the words that stand for a part that can't be shown."""
    kind = part.name if part.kind == "unknown" else part.kind
    what = part.name if part.kind != "unknown" and part.name else part.url
    return f"[{kind} {what}: not shown]" if what else f"[{kind}: not shown]"


def shown(part: Part) -> str:
    """Return the text of a part where there can only be text: its own, or the words that stand for it."""
    return part.text or ("" if part.kind in ("text", "refusal") else note(part))


def is_blank(part: Part) -> bool:
    """Whether a part says nothing, which some providers refuse to hear."""
    return part.kind in ("text", "refusal") and not part.text.strip()


def data_url(part: Part) -> str:
    """Return the part's data in a URL."""
    return f"data:{part.media_type};base64,{part.data}"


def _text(raw: Mapping[str, Json], *path: str) -> str:
    value: Json = raw
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - JSON
    return value if isinstance(value, str) else ""


def _guess(url: str, otherwise: str) -> str:
    path = url.partition("?")[0].partition("#")[0]
    return _MEDIA_TYPES.get(path.rpartition(".")[2].lower(), otherwise)


def _media(kind: Kind, raw: Mapping[str, Json], url: str, name: str, media_type: str = "") -> Part:
    """Return media at a URL, whose data may be in the URL itself."""
    if not url.startswith("data:"):
        fitting = media_type or _guess(url or name, "image/jpeg" if kind == "image" else PDF)
        return Part(kind=kind, url=url, name=name, media_type=fitting, raw=raw)
    head, _, data = url[5:].partition(",")
    stated, *options = head.split(";")
    if "base64" not in options:
        data = base64.b64encode(unquote_to_bytes(data)).decode()
    # Some put any file where a picture's URL goes; what it is stands in the URL.
    kind = media_kind(stated) if stated else kind
    return _file(kind, raw, data, stated or media_type or "text/plain", name)


def _file(kind: Kind, raw: Mapping[str, Json], data: str, media_type: str, name: str) -> Part:
    text = _decoded(data) if kind == "file" and media_type.startswith("text/") else ""
    return Part(kind=kind, data=data, media_type=media_type, name=name, text=text, raw=raw)


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data).decode("utf-8", "replace")
    except binascii.Error:
        return ""


def _said(raw: Mapping[str, Json]) -> Part:
    return Part(kind="text", text=_text(raw, "text"), raw=raw)


def _refusal(raw: Mapping[str, Json]) -> Part:
    return Part(kind="refusal", text=_text(raw, "refusal"), raw=raw)


def _chat_image(raw: Mapping[str, Json]) -> Part:
    url = _text(raw, "image_url", "url") or _text(raw, "image_url")
    return _media("image", raw, url, _text(raw, "file_id"))


def _chat_audio(raw: Mapping[str, Json]) -> Part:
    spoken = _text(raw, "input_audio", "format")
    media_type = _AUDIO_TYPES.get(spoken, f"audio/{spoken}")
    return _file("audio", raw, _text(raw, "input_audio", "data"), media_type, "")


def _spoken(raw: Mapping[str, Json]) -> Part:
    """An answer in audio: others get what was said, which comes with it."""
    return Part(kind="audio", text=_text(raw, "audio", "transcript"), raw=raw)


def _chat_file(raw: Mapping[str, Json]) -> Part:
    file = raw.get("file")
    return _openai_file(raw, cast("Mapping[str, Json]", file) if isinstance(file, dict) else EMPTY)


def _openai_file(raw: Mapping[str, Json], inner: Mapping[str, Json]) -> Part:
    name, data = _text(inner, "filename"), _text(inner, "file_data")
    if data and not data.startswith("data:"):
        return _file("file", raw, data, _guess(name, PDF), name)
    url = data or _text(inner, "file_url")
    return _media("file", raw, url, name or _text(inner, "file_id"))


def _anthropic_media(raw: Mapping[str, Json]) -> Part:
    kind: Kind = "image" if raw.get("type") == "image" else "file"
    name = _text(raw, "title")
    match _text(raw, "source", "type"):
        case "base64":
            media_type = _text(raw, "source", "media_type")
            return _file(kind, raw, _text(raw, "source", "data"), media_type, name)
        case "text":
            text = _text(raw, "source", "data")
            return Part(kind=kind, text=text, media_type="text/plain", name=name, raw=raw)
        case "content":
            text = _texts(raw["source"].get("content"))
            return Part(kind=kind, text=text, media_type="text/plain", name=name, raw=raw)
        case "file":
            return _media(kind, raw, "", name or _text(raw, "source", "file_id"))
        case _:
            return _media(kind, raw, _text(raw, "source", "url"), name)


def _search_result(raw: Mapping[str, Json]) -> Part:
    head = [text for key in ("title", "source") if (text := _text(raw, key))]
    return Part(kind="file", text="\n".join([*head, _texts(raw.get("content"))]), raw=raw)


def _texts(content: Json) -> str:
    return "\n".join(part.text for part in read(content) if part.kind == "text")


def _gemini(raw: Mapping[str, Json]) -> Part:
    if raw.get("thought") is True:
        return Part(kind="private", raw=raw)
    if isinstance(raw.get("text"), str):
        return _said(raw)
    for snake, camel in (("inline_data", "inlineData"), ("file_data", "fileData")):
        inner = raw.get(snake) or raw.get(camel)
        if isinstance(inner, dict):
            held = cast("Mapping[str, Json]", inner)
            media_type = _text(held, "mime_type") or _text(held, "mimeType")
            kind = media_kind(media_type)
            if snake == "inline_data":
                return _file(kind, raw, _text(held, "data"), media_type, "")
            url = _text(held, "file_uri") or _text(held, "fileUri")
            return _media(kind, raw, url if url.startswith("http") else "", url, media_type)
    return Part(kind="text", text=json_text(raw))


def media_kind(media_type: str) -> Kind:
    """Return what kind of part a media type is for."""
    kind = media_type.partition("/")[0]
    return cast("Kind", kind) if kind in ("image", "audio", "video") else "file"


_READERS: Final[Mapping[str, Callable[[Mapping[str, Json]], Part]]] = {
    "text": _said,
    "input_text": _said,
    "output_text": _said,
    "refusal": _refusal,
    "image_url": _chat_image,
    "input_image": _chat_image,
    "input_audio": _chat_audio,
    "audio": _spoken,
    "file": _chat_file,
    "input_file": lambda raw: _openai_file(raw, raw),
    "image": _anthropic_media,
    "document": _anthropic_media,
    "search_result": _search_result,
}


def without_private(parts: Sequence[Part]) -> list[Part]:
    """Return the parts that are not some provider's own business."""
    return [part for part in parts if part.kind != "private"]
