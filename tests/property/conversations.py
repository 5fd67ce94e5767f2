"""Random valid conversations, each message in the words of some provider or of none.

Calls and results are numbered: call n has the argument n, and its result says <n> somewhere unless it
is empty. So whoever renders a conversation can be asked whether every result is still its call's.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from limpet import Message, ToolCallRequest, ToolCallResult
from limpet.core.formats import intake

Draw = st.DrawFn

DATA = "aGVsbG8="
WORDS = st.sampled_from(["", " \n", "hi", "好的，明白了。", "line \n", "<b>", "e\u0301\u200d"])
TEXT = WORDS | st.text(max_size=12)
SAID = TEXT.filter(lambda text: bool(text.strip()))
CALL_IDS = st.sampled_from(["call_1", "c1", "toolu_1", "a b", "工具:1", "x.y", "x" * 41, "x" * 70, "x" * 40 + "é", "-"])
NAMES = st.sampled_from(["f", "search_web", "a.b c", "工具", "1st", "-x", "n" * 80])
OWN_NAMES = st.sampled_from(["f", "search_web", "get-1"])

PNG = {"type": "base64", "media_type": "image/png", "data": DATA}
SVG = {"type": "base64", "media_type": "image/svg+xml", "data": DATA}
CHAT_MEDIA: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
    {"type": "image_url", "image_url": {"url": f"data:image/webp;base64,{DATA}"}},
    {"type": "image_url", "image_url": {"url": f"data:image/tiff;base64,{DATA}"}},
    {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{DATA}"}},
    {"type": "file", "file": {"file_data": f"data:text/plain;base64,{DATA}", "filename": "a.txt"}},
]
ANTHROPIC_MEDIA: list[dict[str, Any]] = [
    {"type": "image", "source": PNG},
    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.gif?x=1"}},
    {"type": "document", "title": "Plan", "source": {**PNG, "media_type": "application/pdf"}},
    {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plan"}},
    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
    {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
]  # fmt: skip
OTHER_MEDIA: list[dict[str, Any]] = [
    {"type": "input_image", "image_url": "https://example.com/b.jpg", "detail": "auto"},
    {"type": "input_file", "file_url": "https://example.com/b.pdf"},
    {"inline_data": {"mime_type": "audio/ogg", "data": DATA}},
    {"inlineData": {"mimeType": "image/jpeg", "data": DATA}},
    {"file_data": {"mime_type": "video/mp4", "file_uri": "gs://bucket/film.mp4"}},
    {"type": "hologram", "depth": 3},
    {"type": "image_url", "image_url": "data:text/plain,hello%20you"},
]
MEDIA = CHAT_MEDIA + ANTHROPIC_MEDIA + OTHER_MEDIA
THINKING: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "b3BhcXVl"},
]
PRIVATE: list[dict[str, Any]] = [
    *THINKING,
    {"type": "thinking", "thinking": "without signature"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"},
    {"text": "a thought", "thought": True, "thought_signature": DATA},
]


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def listed(draw: Draw, texts: st.SearchStrategy[str], media: list[dict[str, Any]]) -> list[Any]:
    part = texts.map(text_block) | st.sampled_from(media) if media else texts.map(text_block)
    return draw(st.lists(part, min_size=1, max_size=3))


def user(draw: Draw, style: str) -> Message:
    if draw(st.booleans()):
        content: Any = draw(TEXT)
    elif style == "openai":
        content = listed(draw, TEXT, CHAT_MEDIA)
    else:
        content = listed(draw, TEXT, ANTHROPIC_MEDIA if style == "anthropic" else MEDIA)
    return said(style, "user", content)


def said(style: str, role: str, content: Any) -> Message:
    if style == "own":
        return Message(role, content)
    given = {"role": role, "content": content}
    if style == "anthropic":
        return Message.from_dict(intake.anthropic.parse_message(given).to_dict())
    return intake.openai.parse_message(given)


def assistant(draw: Draw, style: str, numbers: list[int]) -> Message:
    ids = draw(st.lists(CALL_IDS, min_size=len(numbers), max_size=len(numbers), unique=True))
    calls = list(zip(ids, numbers, strict=True))
    if style == "openai":
        content: Any = draw(TEXT | st.none() if numbers else TEXT)
        raw: dict[str, Any] = {"role": "assistant", "content": content, "vendor": 1}
        if calls:
            raw["tool_calls"] = [
                {"id": id_, "type": "function",
                 "function": {"name": draw(OWN_NAMES), "arguments": f'{{ "n" : {n} }}'}}
                for id_, n in calls
            ]  # fmt: skip
        return intake.accept(raw)
    if style == "anthropic":
        blocks = draw(st.lists(st.sampled_from(THINKING), max_size=1)) + listed(draw, TEXT, [])
        blocks += [{"type": "tool_use", "id": id_, "name": draw(OWN_NAMES), "input": {"n": n}} for id_, n in calls]
        return intake.accept({"type": "message", "role": "assistant", "model": "m", "content": blocks})
    private = draw(st.lists(st.sampled_from(PRIVATE), max_size=2))
    refusal = [{"type": "refusal", "refusal": "No."}] if draw(st.booleans()) else []
    content = private + listed(draw, TEXT, MEDIA) + refusal if draw(st.booleans()) else draw(TEXT)
    made = [ToolCallRequest(id_, draw(NAMES), {"n": n}) for id_, n in calls]
    return Message("assistant", content, tool_calls=made)


def outcome(draw: Draw, number: int) -> Any:
    mark = f"<{number}>"
    picture = [text_block(mark), draw(st.sampled_from(ANTHROPIC_MEDIA[:3]))]
    values: list[Any] = [
        mark, {"v": mark}, {"error": mark}, [1, mark], picture, [text_block(mark)], None, "", 5,
    ]  # fmt: skip
    return draw(st.sampled_from(values))


def answers(draw: Draw, style: str, pairs: list[tuple[str, int]]) -> list[Message]:
    """The results of some calls, in one message or several."""
    if style == "openai":
        return [intake.accept({"role": "tool", "tool_call_id": id_, "content": f"<{n}>"}) for id_, n in pairs]
    if style == "anthropic":
        blocks: list[dict[str, Any]] = []
        for id_, n in pairs:
            block = {"type": "tool_result", "tool_use_id": id_, "is_error": draw(st.booleans())}
            content = draw(st.sampled_from([f"<{n}>", [text_block(f"<{n}>")], ""]))
            blocks.append(block | {"content": content})
        if draw(st.booleans()):
            blocks += listed(draw, TEXT, ANTHROPIC_MEDIA)
        return [intake.accept({"role": "user", "content": blocks})]
    return [
        Message("tool", tool_results=[ToolCallResult(id_, outcome(draw, n), draw(st.booleans())) for id_, n in pairs])
    ]


KEYS = st.sampled_from([
    "type", "text", "source", "image_url", "url", "file", "file_data", "data", "content", "title",
    "inline_data", "mime_type", "media_type", "input_audio", "format", "audio", "thought",
])  # fmt: skip
KINDS = st.sampled_from(
    [part["type"] for part in [*MEDIA, *PRIVATE] if "type" in part]
    + ["text", "refusal", "audio", "base64", "file", "url", "content", "data:;base64,x", "data:,"]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | KINDS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
"""JSON that looks like parts and is not."""

STYLES = ("own", "openai", "anthropic")


@st.composite
def conversations(draw: Draw, styles: tuple[str, ...] = STYLES) -> list[Message]:
    """A valid window in which every message may come from another provider."""
    style = st.sampled_from(styles)
    messages: list[Message] = []
    for _ in range(draw(st.integers(0, 2))):
        messages.append(said(draw(st.sampled_from(["own", "openai"])), "system", draw(TEXT)))
    number = 0
    for kind in draw(st.lists(st.sampled_from(["user", "say", "call", "call", "system"]), max_size=7)):
        if kind == "user":
            messages.append(user(draw, draw(style)))
        elif kind == "system":
            messages.append(Message("system", draw(TEXT)))
        else:
            numbers = list(range(number, number + draw(st.integers(1, 3)) * (kind == "call")))
            number += len(numbers)
            made = assistant(draw, draw(style), numbers)
            messages.append(made)
            waiting = draw(st.permutations([(c.id, c.args["n"]) for c in made.tool_calls]))
            while waiting:
                count = draw(st.integers(1, len(waiting)))
                messages += answers(draw, draw(style), waiting[:count])
                waiting = waiting[count:]
    return messages


def short(call_id: str) -> str:
    return f"{len(call_id)}{call_id[-20:]}"


@st.composite
def openai_chats(draw: Draw) -> list[dict[str, Any]]:
    """A conversation as OpenAI's own dicts, with ids that it accepts, some of them more than once."""
    messages = draw(conversations(("openai",)))
    chats = [message.raw() for message in messages if message.openai is not None]
    for chat in chats:
        for call in chat.get("tool_calls", ()):
            call["id"] = short(call["id"])
        if "tool_call_id" in chat:
            chat["tool_call_id"] = short(chat["tool_call_id"])
    return chats


@st.composite
def anthropic_messages(draw: Draw) -> list[dict[str, Any]]:
    """A conversation as Anthropic takes it: the user begins, roles alternate, nothing is blank."""
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    for number in range(draw(st.integers(1, 5))):
        results = [{"type": "tool_result", "tool_use_id": id_, "content": draw(SAID)} for id_ in waiting]
        extra = listed(draw, SAID, ANTHROPIC_MEDIA) if not results or draw(st.booleans()) else []
        plain = not results and draw(st.booleans())
        messages.append({"role": "user", "content": draw(SAID) if plain else [*results, *extra]})
        waiting = [f"toolu_{number}_{n}" for n in range(draw(st.integers(0, 3)))]
        blocks = draw(st.lists(st.sampled_from(THINKING), max_size=2)) + listed(draw, SAID, [])
        blocks += [{"type": "tool_use", "id": i, "name": "f", "input": {"q": [1]}} for i in waiting]
        messages.append({"role": "assistant", "content": blocks})
    last = [{"type": "tool_result", "tool_use_id": id_} for id_ in waiting] or [text_block("Go on.")]
    return [*messages, {"role": "user", "content": last}]
