"""The `Counter` protocol and the counters that implement it.

Counters differ in their vocabulary and their provider's chat format (`ChatFormat`), not in how a
message is traversed. `Calibration` corrects a counter by the usage that a provider reported.
Everything is pure and thread-safe, except that a vocabulary loads on first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol, cast

import msgspec

from limpet import errors, limits
from limpet.core.tokens import media
from limpet.core.values.json_values import Json
from limpet.core.values.messages import Message
from limpet.core.values.session_state import CounterCorrection, ReportedUsage, bounded_factor

_TEXT_FIELDS: Final = {
    "text": "text", "input_text": "text", "output_text": "text", "summary_text": "text",
    "refusal": "refusal", "thinking": "thinking", "redacted_thinking": "data",
    "tool_result": "content", "reasoning": "summary",
}  # fmt: skip
"""Kinds of parts that are text, and the field it is in."""

_NOTE_TOKENS: Final = 10
"""Tokens of the words that a rendering may put in: for a failed call, or in place of what can't be shown."""

_ENUM_VALUE_TOKENS: Final = 2
"""Tokens that a value of an enumeration takes more in the form that OpenAI's models see than in JSON."""

_EXTRA_TEXT_FIELDS: Final = ("reasoning_content", "reasoning", "function_call")
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


class ChatFormat(msgspec.Struct, frozen=True):
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
    media: media.MediaRules = media.OPENAI_RULES


class VocabularyCounter(msgspec.Struct, frozen=True):
    """A counter made of a function for text and a format. See Counter."""

    name: str
    count: Callable[[str], int]
    format: ChatFormat
    exact: bool = True
    margin: float = 0.0

    @property
    def reply(self) -> int:
        """What the provider adds once to prime its answer."""
        return self.format.reply

    def text(self, text: str) -> int:
        """Count a text."""
        return _cached_count(self, text) if _is_worth_caching(text) else self.count(text)

    def message(self, message: Message) -> int:
        """Count a message with all its parts and what the format puts around it."""
        tokens = self.format.message + self._count_content(message.content)
        if name := _participant_name(message):
            tokens += self.format.name + self.text(name)
        if message.role == "system":
            tokens += self.format.system
        for call in message.tool_calls:
            arguments = call.arguments or _json_text(call.args)
            tokens += self.format.call + self.text(call.name) + self.text(arguments)
        if message.tool_results:
            tokens += self._count_results(message)
        return tokens + sum(map(self.text, _extra_texts(message)))

    def _count_results(self, message: Message) -> int:
        """Count results. Where they can't share a message, each has its own, and what is said beside them too."""
        further = len(message.tool_results) - 1 + (message.content is not None)
        tokens = self.format.message * further
        for result in message.tool_results:
            tokens += self.format.result + self._count_result(result.result)
            tokens += _NOTE_TOKENS if result.is_error else 0
        return tokens

    def _count_result(self, value: Json) -> int:
        if not isinstance(value, list):
            return self._count_content(value)
        items = cast("list[Json]", value)
        if not items or not all(isinstance(item, Mapping) and "type" in item for item in items):
            return self.text(_json_text(value))
        # Parts are put together in lines, and media that a result can't hold follow in a message of their own.
        shown = sum(media.media_in_part(item) is not None for item in items)
        tokens = sum(map(self._count_part, items)) + len(items) + shown * _NOTE_TOKENS
        return tokens + (self.format.message if shown else 0)

    def tools(self, definitions: Iterable[Mapping[str, Json]]) -> int:
        """Count the definitions of tools."""
        each = [
            self.format.tool + self.text(_json_text(definition)) + _ENUM_VALUE_TOKENS * _count_enum_values(definition)
            for definition in definitions
        ]
        return self.format.tools + sum(each) if each else 0

    def _count_content(self, content: Json) -> int:
        if content is None:
            return 0
        if isinstance(content, str):
            return self.text(content)
        if isinstance(content, list):
            return sum(map(self._count_part, cast("list[Json]", content)))
        return self.text(_json_text(content))

    def _count_part(self, item: Json) -> int:
        """Count a part; what is no provider's part, such as a row that a tool gave, as JSON."""
        if isinstance(item, Mapping):
            part = cast("Mapping[str, Json]", item)
            if found := media.media_in_part(part):
                return self.format.media.tokens(found, self.text)
            field = "text" if [*part] == ["text"] else _TEXT_FIELDS.get(str(part.get("type")))
            if field and isinstance(part.get(field), (str, list)):
                return self._count_content(part[field])
        return self.text(_json_text(item)) + 1


class ScaledCounter(msgspec.Struct, frozen=True):
    """A counter whose every number is multiplied, rounded up. See Counter."""

    counter: Counter
    thousandths: int
    exact: bool = False

    @property
    def name(self) -> str:
        """The plain counter's name and the factor."""
        return f"{self.counter.name}*{self.thousandths / 1000:.3f}"

    @property
    def margin(self) -> float:
        """The plain counter's margin: a mean says nothing about the spread around it."""
        return self.counter.margin

    @property
    def reply(self) -> int:
        """What the provider adds once to prime its answer."""
        return self._scale(self.counter.reply)

    def text(self, text: str) -> int:
        """Count a text."""
        return self._scale(self.counter.text(text))

    def message(self, message: Message) -> int:
        """Count a message."""
        return self._scale(self.counter.message(message))

    def tools(self, definitions: Iterable[Mapping[str, Json]]) -> int:
        """Count the definitions of tools."""
        return self._scale(self.counter.tools(definitions))

    def _scale(self, tokens: int) -> int:
        return -(-tokens * self.thousandths // 1000)


def _participant_name(message: Message) -> str:
    """The participant's name, which the chat format carries beside the role."""
    name = (message.openai or message.extra).get("name")
    return name if isinstance(name, str) else ""


def _count_enum_values(schema: Json) -> int:
    """How many values a tool's definition enumerates."""
    if isinstance(schema, Mapping):
        fields = cast("Mapping[str, Json]", schema)
        values = fields.get("enum")
        own = len(cast("list[Json]", values)) if isinstance(values, list) else 0
        return own + sum(map(_count_enum_values, fields.values()))
    return sum(map(_count_enum_values, cast("list[Json]", schema))) if isinstance(schema, list) else 0


def _extra_texts(message: Message) -> list[str]:
    """What the chat dict of a message says beside its content."""
    if message.openai is None:
        return []
    said = [message.openai.get(key) for key in _EXTRA_TEXT_FIELDS]
    if message.openai.get("content") is not None:
        said.append(message.openai.get("refusal"))
    return [one if isinstance(one, str) else _json_text(one) for one in said if one is not None]


def _json_text(value: Json) -> str:
    return msgspec.json.encode(value).decode()


def _is_worth_caching(text: str) -> bool:
    return limits.COUNT_CACHED_CHARS_MIN <= len(text) <= limits.COUNT_CACHED_CHARS_MAX


@lru_cache(maxsize=limits.COUNT_CACHE_ENTRIES)
def _cached_count(counter: VocabularyCounter, text: str) -> int:
    return counter.count(text)


def total(counter: Counter, messages: Sequence[Message]) -> int:
    """Count a whole request: its messages and the priming of the reply."""
    return sum(map(counter.message, messages)) + counter.reply


_CALIBRATED_NAME: Final = re.compile(r"(.+)\*(\d\.\d{3})")


class Calibration(msgspec.Struct, frozen=True):
    """How a counter's numbers compare with what its provider charges.

    `factor` is the running mean of reported / estimated over `observations`; new ones keep a weight,
    since models change under their names. It stays within limits.CALIBRATION_FACTOR_MAX.
    """

    counter: str
    factor: float = 1.0
    observations: int = 0

    def observe(self, estimated: int, reported: int) -> Calibration:
        """Return the calibration after one more request: what the plain counter said, what was charged."""
        known = CounterCorrection(self.counter, self.factor, self.observations)
        after = known.with_usage(ReportedUsage(self.counter, estimated, reported))
        return Calibration(self.counter, after.factor, after.observations)

    def apply(self, counter: Counter) -> Counter:
        """Return the counter, corrected. Its name says by how much, so that `named` finds it again."""
        if counter.name != self.counter:
            raise errors.InvalidRequest(
                f"this calibration is of {self.counter}, not of {counter.name}.",
                hint="Keep one calibration for each counter.",
            )
        thousandths = round(self.factor * 1000)
        return counter if thousandths == 1000 else ScaledCounter(counter, thousandths)


def split_calibrated_name(name: str) -> tuple[str, Calibration | None]:
    """Return a counter's plain name, and the calibration that its name tells of."""
    match = _CALIBRATED_NAME.fullmatch(name)
    if match is None:
        return name, None
    return match[1], Calibration(match[1], bounded_factor(float(match[2])))
