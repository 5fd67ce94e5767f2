"""What counts tokens: the port, and the one way in which every counter adds up a message.

A counter differs from another in its vocabulary and in its provider's format (`Format`), not in how
a message is walked through. All is pure, apart from loading a vocabulary, and safe in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol, cast

import msgspec

from limpet import limits
from limpet.core.values.json_values import Json
from limpet.core.values.messages import Message
from limpet.tokens import media

_TEXT_OF: Final = {
    "text": "text", "input_text": "text", "output_text": "text", "summary_text": "text",
    "refusal": "refusal", "thinking": "thinking", "redacted_thinking": "data",
    "tool_result": "content", "reasoning": "summary",
}  # fmt: skip
"""Kinds of parts that are text, and the field it is in."""

_NOTE: Final = 10
"""Tokens of the words that a rendering may put in: for a failed call, or in place of what can't be shown."""

_ENUM: Final = 2
"""Tokens that a value of an enumeration takes more in the form that OpenAI's models see than in JSON."""

_BESIDE: Final = ("reasoning_content", "reasoning", "function_call")
"""What a dict of a chat API may say beside its content, and sends back."""


class Counter(Protocol):
    """Counts tokens for one family of models.

    `name` is stored beside every count and changes whenever the counting does. `exact` says whether
    `text` gives the provider's own number; `margin` is by how much of itself a count may be too low
    (0.0 where exact). `reply` is what the provider adds once to prime its answer.
    """

    @property
    def name(self) -> str: ...
    @property
    def exact(self) -> bool: ...
    @property
    def margin(self) -> float: ...
    @property
    def reply(self) -> int: ...

    def text(self, text: str) -> int:
        """Count a text; special tokens spelled out in it are ordinary text. 0 only if it is empty."""
        ...

    def message(self, message: Message) -> int:
        """Count a message as its provider sees it: content, calls, results and what is put around."""
        ...

    def tools(self, definitions: Iterable[Mapping[str, Json]]) -> int:
        """Count the definitions of tools, as JSON, with what the provider puts around them."""
        ...


class Format(msgspec.Struct, frozen=True):
    """What a provider's chat format adds to the text, in tokens, and its rules for media.

    `call` and `result` stand for the wrapping and the id of one; `tools` is added once if there
    are any, `tool` for each; `system` is for a system message that has to be said in another role.
    """

    message: int
    reply: int
    name: int = 1
    call: int = 12
    result: int = 12
    tool: int = 8
    tools: int = 0
    system: int = 0
    media: media.Rules = media.OPENAI


class Vocabulary(msgspec.Struct, frozen=True):
    """A counter made of a function for text and a format. See Counter."""

    name: str
    count: Callable[[str], int]
    format: Format
    exact: bool = True
    margin: float = 0.0

    @property
    def reply(self) -> int:
        """What the provider adds once to prime its answer."""
        return self.format.reply

    def text(self, text: str) -> int:
        """Count a text."""
        return _remembered(self, text) if _pays(text) else self.count(text)

    def message(self, message: Message) -> int:
        """Count a message with all its parts and what the format puts around it."""
        tokens = self.format.message + self._content(message.content)
        if name := _speaker(message):
            tokens += self.format.name + self.text(name)
        if message.role == "system":
            tokens += self.format.system
        for call in message.tool_calls:
            arguments = call.arguments or _json(call.args)
            tokens += self.format.call + self.text(call.name) + self.text(arguments)
        if message.tool_results:
            tokens += self._results(message)
        return tokens + sum(map(self.text, _beside(message)))

    def _results(self, message: Message) -> int:
        """Count results. Where they can't share a message, each has its own, and what is said beside them too."""
        further = len(message.tool_results) - 1 + (message.content is not None)
        tokens = self.format.message * further
        for result in message.tool_results:
            tokens += self.format.result + self._result(result.result)
            tokens += _NOTE if result.is_error else 0
        return tokens

    def _result(self, value: Json) -> int:
        if not isinstance(value, list):
            return self._content(value)
        items = cast("list[Json]", value)
        if not items or not all(isinstance(item, Mapping) and "type" in item for item in items):
            return self.text(_json(value))
        # Parts are put together in lines, and media that a result can't hold follow in a message of their own.
        shown = sum(media.found_in(item) is not None for item in items)
        tokens = sum(map(self._item, items)) + len(items) + shown * _NOTE
        return tokens + (self.format.message if shown else 0)

    def tools(self, definitions: Iterable[Mapping[str, Json]]) -> int:
        """Count the definitions of tools."""
        each = [
            self.format.tool + self.text(_json(definition)) + _ENUM * _enumerated(definition)
            for definition in definitions
        ]
        return self.format.tools + sum(each) if each else 0

    def _content(self, content: Json) -> int:
        if content is None:
            return 0
        if isinstance(content, str):
            return self.text(content)
        if isinstance(content, list):
            return sum(map(self._item, cast("list[Json]", content)))
        return self.text(_json(content))

    def _item(self, item: Json) -> int:
        """Count a part; what is no provider's part, such as a row that a tool gave, as JSON."""
        if isinstance(item, Mapping):
            part = cast("Mapping[str, Json]", item)
            if found := media.found_in(part):
                return self.format.media.tokens(found, self.text)
            field = "text" if [*part] == ["text"] else _TEXT_OF.get(str(part.get("type")))
            if field and isinstance(part.get(field), (str, list)):
                return self._content(part[field])
        return self.text(_json(item)) + 1


class Scaled(msgspec.Struct, frozen=True):
    """A counter whose every number is multiplied, rounded up. See Counter."""

    plain: Counter
    thousandths: int
    exact: bool = False

    @property
    def name(self) -> str:
        """The plain counter's name and the factor."""
        return f"{self.plain.name}*{self.thousandths / 1000:.3f}"

    @property
    def margin(self) -> float:
        """The plain counter's margin: a mean says nothing about the spread around it."""
        return self.plain.margin

    @property
    def reply(self) -> int:
        """What the provider adds once to prime its answer."""
        return self._scaled(self.plain.reply)

    def text(self, text: str) -> int:
        """Count a text."""
        return self._scaled(self.plain.text(text))

    def message(self, message: Message) -> int:
        """Count a message."""
        return self._scaled(self.plain.message(message))

    def tools(self, definitions: Iterable[Mapping[str, Json]]) -> int:
        """Count the definitions of tools."""
        return self._scaled(self.plain.tools(definitions))

    def _scaled(self, tokens: int) -> int:
        return -(-tokens * self.thousandths // 1000)


def _speaker(message: Message) -> str:
    """The participant's name, which the chat format carries beside the role."""
    name = (message.openai or message.extra).get("name")
    return name if isinstance(name, str) else ""


def _enumerated(schema: Json) -> int:
    """How many values a tool's definition enumerates."""
    if isinstance(schema, Mapping):
        fields = cast("Mapping[str, Json]", schema)
        values = fields.get("enum")
        own = len(cast("list[Json]", values)) if isinstance(values, list) else 0
        return own + sum(map(_enumerated, fields.values()))
    return sum(map(_enumerated, cast("list[Json]", schema))) if isinstance(schema, list) else 0


def _beside(message: Message) -> list[str]:
    """What the chat dict of a message says beside its content."""
    if message.openai is None:
        return []
    said = [message.openai.get(key) for key in _BESIDE]
    if message.openai.get("content") is not None:
        said.append(message.openai.get("refusal"))
    return [one if isinstance(one, str) else _json(one) for one in said if one is not None]


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def _pays(text: str) -> bool:
    return limits.COUNT_CACHED_CHARS_MIN <= len(text) <= limits.COUNT_CACHED_CHARS_MAX


@lru_cache(maxsize=limits.COUNT_CACHE_ENTRIES)
def _remembered(counter: Vocabulary, text: str) -> int:
    return counter.count(text)


def total(counter: Counter, messages: Sequence[Message]) -> int:
    """Count a whole request: its messages and the priming of the reply."""
    return sum(map(counter.message, messages)) + counter.reply
