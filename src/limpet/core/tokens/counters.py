"""Token counters, and which of them counts for which model.

Counters differ in their vocabulary and in their provider's chat format (`ChatFormat`); all traverse a message in the same
way. `Calibration` corrects a counter by the usage that a provider reported. A vocabulary loads on first use, once per
process, and is used only if it encodes KNOWN_TEXT correctly: a changed or damaged tokenizer would miscount silently.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Final, Protocol, cast

import msgspec

from limpet import errors, limits
from limpet.core.tokens import estimates, media
from limpet.core.values.messages import Message
from limpet.core.values.session_state import CounterCorrection, ReportedUsage, bounded_factor
from limpet.core.values.validation import Json, json_text, text_or_json

_TEXT_FIELDS: Final = {
    "text": "text", "input_text": "text", "output_text": "text", "summary_text": "text",
    "refusal": "refusal", "thinking": "thinking", "redacted_thinking": "data",
    "tool_result": "content", "reasoning": "summary",
}  # fmt: skip
"""The field that holds the text of a content part, by the type of the part."""

_NOTE_TOKENS: Final = 10
"""Tokens of the note that a renderer adds to a failed call or puts in place of content it can't show."""

_ENUM_VALUE_TOKENS: Final = 2
"""Additional tokens of an enumeration value: OpenAI shows its models a longer form than the JSON."""

_EXTRA_TEXT_FIELDS: Final = ("reasoning_content", "reasoning", "function_call")
"""Fields of an OpenAI chat dict, beside its content, that are sent back to the provider."""


class Counter(Protocol):
    """Counts tokens for one family of models.

    `name` is stored beside every count and changes whenever the counting changes. `exact` says whether `text` returns
    the provider's own number. A count may be too low by the fraction `margin` (0.0 if exact). `reply` is the number of
    tokens that the provider adds once per request to start its answer.
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
        """Count a message as its provider sees it: content, calls, results and the chat format."""
        ...

    def tools(self, definitions: Iterable[Mapping[str, Json]]) -> int:
        """Count tool definitions, as JSON, with the tokens that the provider adds to them."""
        ...


class ChatFormat(msgspec.Struct, frozen=True):
    """The tokens that a provider's chat format adds to the text, and the provider's rules for media.

    `call` and `result` are added for each call and each result, `tool` for each tool definition, and `tools` once if
    there are definitions. `system` is added to a system message that is sent in another role.
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
    """A `Counter` that consists of a function for text and a chat format."""

    name: str
    count: Callable[[str], int]
    format: ChatFormat
    exact: bool = True
    margin: float = 0.0

    @property
    def reply(self) -> int:
        """The tokens that the provider adds once per request to start its answer."""
        return self.format.reply

    def text(self, text: str) -> int:
        """Count a text."""
        cached = limits.COUNT_CACHED_CHARS_MIN <= len(text) <= limits.COUNT_CACHED_CHARS_MAX
        return _cached_count(self, text) if cached else self.count(text)

    def message(self, message: Message) -> int:
        """Count a message with all its parts and the tokens of the format."""
        tokens = self.format.message + self._count_content(message.content)
        if name := _participant_name(message):
            tokens += self.format.name + self.text(name)
        if message.role == "system":
            tokens += self.format.system
        for call in message.tool_calls:
            arguments = call.arguments or json_text(call.args)
            tokens += self.format.call + self.text(call.name) + self.text(arguments)
        if message.tool_results:
            tokens += self._count_results(message)
        return tokens + sum(map(self.text, _extra_texts(message)))

    def _count_results(self, message: Message) -> int:
        """Count tool results: each is counted as a message of its own, and so is content beside them."""
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
            return self.text(json_text(value))
        # Renderers join the parts by line ends, and send media that a result can't hold in another message.
        shown = sum(media.media_in_part(item) is not None for item in items)
        tokens = sum(map(self._count_part, items)) + len(items) + shown * _NOTE_TOKENS
        return tokens + (self.format.message if shown else 0)

    def tools(self, definitions: Iterable[Mapping[str, Json]]) -> int:
        """Count the definitions of tools."""
        each = [
            self.format.tool + self.text(json_text(definition)) + _ENUM_VALUE_TOKENS * _count_enum_values(definition)
            for definition in definitions
        ]
        return self.format.tools + sum(each) if each else 0

    def _count_content(self, content: Json) -> int:
        if content is None:
            return 0
        if isinstance(content, list):
            return sum(map(self._count_part, cast("list[Json]", content)))
        return self.text(text_or_json(content))

    def _count_part(self, item: Json) -> int:
        """Count a content part; a dict that is not a provider's part is counted as JSON."""
        if isinstance(item, Mapping):
            part = cast("Mapping[str, Json]", item)
            if found := media.media_in_part(part):
                return self.format.media.tokens(found, self.text)
            field = "text" if [*part] == ["text"] else _TEXT_FIELDS.get(str(part.get("type")))
            if field and isinstance(part.get(field), (str, list)):
                return self._count_content(part[field])
        return self.text(json_text(item)) + 1


class ScaledCounter(msgspec.Struct, frozen=True):
    """A `Counter` that multiplies every count of another one and rounds up."""

    counter: Counter
    thousandths: int
    exact: bool = False

    @property
    def name(self) -> str:
        """The plain counter's name and the factor."""
        return f"{self.counter.name}*{self.thousandths / 1000:.3f}"

    @property
    def margin(self) -> float:
        """The plain counter's margin: a mean factor does not reduce the spread."""
        return self.counter.margin

    @property
    def reply(self) -> int:
        """The tokens that the provider adds once per request to start its answer."""
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
    name = (message.openai or message.extra).get("name")
    return name if isinstance(name, str) else ""


def _count_enum_values(schema: Json) -> int:
    if isinstance(schema, Mapping):
        fields = cast("Mapping[str, Json]", schema)
        values = fields.get("enum")
        own = len(cast("list[Json]", values)) if isinstance(values, list) else 0
        return own + sum(map(_count_enum_values, fields.values()))
    return sum(map(_count_enum_values, cast("list[Json]", schema))) if isinstance(schema, list) else 0


def _extra_texts(message: Message) -> list[str]:
    if message.openai is None:
        return []
    said = [message.openai.get(key) for key in _EXTRA_TEXT_FIELDS]
    if message.openai.get("content") is not None:
        said.append(message.openai.get("refusal"))
    return [text_or_json(one) for one in said if one is not None]


@lru_cache(maxsize=limits.COUNT_CACHE_ENTRIES)
def _cached_count(counter: VocabularyCounter, text: str) -> int:
    return counter.count(text)


def total(counter: Counter, messages: Sequence[Message]) -> int:
    """Count a whole request: its messages and the tokens that start the reply."""
    return sum(map(counter.message, messages)) + counter.reply


_CALIBRATED_NAME: Final = re.compile(r"(.+)\*(\d\.\d{3})")


class Calibration(CounterCorrection, frozen=True):
    """The ratio of the tokens that a provider charges to the tokens that a counter returns.

    `factor` is the running mean of reported / estimated over `observations`, within limits.CALIBRATION_FACTOR_MAX. New
    observations keep a minimum weight, because providers change models without renaming them.
    """

    def observe(self, estimated: int, reported: int) -> Calibration:
        """Return the calibration after one more request, from its estimated and its charged tokens."""
        return self.with_usage(ReportedUsage(self.counter, estimated, reported))

    def apply(self, counter: Counter) -> Counter:
        """Return the corrected counter. Its name contains the factor, so that `named` finds it again."""
        if counter.name != self.counter:
            raise errors.InvalidRequest(
                f"this calibration is of {self.counter}, not of {counter.name}.",
                hint="Keep one calibration for each counter.",
            )
        thousandths = round(self.factor * 1000)
        return counter if thousandths == 1000 else ScaledCounter(counter, thousandths)


def split_calibrated_name(name: str) -> tuple[str, Calibration | None]:
    """Split a counter's name into the plain name and the calibration in it, if there is one."""
    match = _CALIBRATED_NAME.fullmatch(name)
    if match is None:
        return name, None
    return match[1], Calibration(match[1], bounded_factor(float(match[2])))


KNOWN_TEXT: Final = "Hello, wörld! 12345 <|endoftext|> привет 你好 नमस्ते\n\n    return x_1 🙂"
KNOWN_TOKENS_SHA256: Final[Mapping[str, str]] = {
    "o200k_base": "e8129599791b8cbde1fd6ebc66e3419599330739f3a2bf9392165805fb4d213a",
    "cl100k_base": "226e3186dad5d6c48357facc829eabaad13d6b130bf48ee38fec3729c615e5ff",
    "llama2": "9579515c229c4dc904aa906d8805e327f6783426f31361f9493fd254b5ab3865",
    "llama3": "6b2baac72b8c3bd8687ab0e7cdd3ed9233570191ba4ad95e08c372d6c9d024c0",
    "qwen3": "bbd6fd2fbfd41994e12a207d6a71dc7e6cc9474085e44eecfce3457501cc4d89",
    "deepseek_v3": "f4cec8c3e358ebac902b25f96f5abe024341c95c45bc548605da523d0c7544b5",
    "mistral_v2": "8cc3336d46d90485e0d3e789aa4913f7bf02e6826b4360c3339b29fb725337fe",
    "mistral_v3": "c97d1ac5acf83e29f0079da96bd3dcc6d29cd3249a2c65aa87ab186e3bdcfe85",
    "gemma2": "a4a97bccf27e4ba15789b4685f0cae398f248a56a99c9810e461c26a9a1a4aae",
    "gemma3": "5c82c53bc9a8720a5d62f3512244ef396d3fd56dbcf4dd70449681b2fc981444",
    "glm4": "157280f9d8855938ad310576127400fe622f3d029671eead0d6461d8bae3e7ed",
    "kimi_k2": "913f06ca78a12ac4c906a0bac6cfb24bc06c49af31f1e5de40719eac717f277a",
    "phi4": "226e3186dad5d6c48357facc829eabaad13d6b130bf48ee38fec3729c615e5ff",
    "olmo2": "226e3186dad5d6c48357facc829eabaad13d6b130bf48ee38fec3729c615e5ff",
}
"""The SHA-256 of the token list of KNOWN_TEXT, by vocabulary. A vocabulary that is missing here is not used."""


class Tokenizer(Protocol):
    """A tokenizer's ordinary encoding, in which text can't forge control tokens."""

    def encode_ordinary(self, text: str) -> list[int]: ...


_encoders: dict[str, Callable[[str], list[int]]] = {}
_encoders_lock = Lock()


def vocabulary_count(name: str) -> Callable[[str], int]:
    """Return the function that counts a text in that vocabulary; it loads at the first call."""

    def count(text: str) -> int:
        encode = _encoders.get(name) or _load_encoder(name)
        return len(encode(text))

    return count


def _load_encoder(name: str) -> Callable[[str], list[int]]:
    with _encoders_lock:
        if name not in _encoders:
            tokenizer = load_tokenizer(name)
            check_tokenizer(name, tokenizer)
            _encoders[name] = tokenizer.encode_ordinary
        return _encoders[name]


def load_tokenizer(name: str) -> Tokenizer:
    """Load a vocabulary from splintr. The import is here because the library is large."""
    from splintr import Tokenizer as Splintr  # noqa: PLC0415

    try:
        return Splintr.from_pretrained(name)
    except ValueError as error:
        raise errors.WrongTokenizer(
            f"the installed splintr-rs has no vocabulary {name}.",
            hint="Install the version that Limpet asks for: pip install .",
            facts={"vocabulary": name},
        ) from error


def check_tokenizer(name: str, tokenizer: Tokenizer) -> None:
    """Raise WrongTokenizer unless the tokenizer encodes KNOWN_TEXT to the known tokens."""
    tokens = repr(list(tokenizer.encode_ordinary(KNOWN_TEXT)))
    if hashlib.sha256(tokens.encode()).hexdigest() != KNOWN_TOKENS_SHA256[name]:
        raise errors.WrongTokenizer(
            f"the installed {name} does not give the tokens that {name} is known for.",
            hint="Nothing was counted with it. Reinstall it: pip install --force-reinstall splintr-rs",
            facts={"vocabulary": name},
        )


ESTIMATE: Final = "estimate"
"""An alias of the newest estimate that needs no vocabulary."""

_OPENAI_FORMAT: Final = ChatFormat(message=4, reply=3)
_CHATML_FORMAT: Final = ChatFormat(message=5, reply=3)
_LLAMA3_FORMAT: Final = ChatFormat(message=5, reply=5)
_DEFAULT_FORMAT: Final = ChatFormat(message=6, reply=6)
# The reply of these includes OPENING_USER_TEXT, which renderers may insert.
_CLAUDE_FORMAT: Final = ChatFormat(message=6, reply=14, tools=530, system=8, media=media.ANTHROPIC_RULES)
_CLAUDE_LARGE_FORMAT: Final = ChatFormat(message=6, reply=14, tools=810, system=8, media=media.ANTHROPIC_LARGE_RULES)
_GEMINI_FORMAT: Final = ChatFormat(message=5, reply=11, system=8, media=media.GEMINI_RULES)
_GEMINI_3_FORMAT: Final = ChatFormat(message=5, reply=11, system=8, media=media.GEMINI_3_RULES)


def _o200k_counter(rule: str, rules: media.MediaRules) -> VocabularyCounter:
    form = ChatFormat(message=4, reply=3, media=rules)
    return VocabularyCounter(f"o200k_base:{rule}", _COUNT_O200K, form)


_COUNT_O200K: Final = vocabulary_count("o200k_base")
_COUNTERS: Final[Mapping[str, VocabularyCounter]] = {
    counter.name: counter
    for counter in (
        VocabularyCounter("o200k_base", _COUNT_O200K, _OPENAI_FORMAT),
        _o200k_counter("tile-140", media.rules_for_openai(media.tile_rule(70, 140))),
        _o200k_counter("tile-150", media.rules_for_openai(media.tile_rule(75, 150))),
        _o200k_counter("tile-5667", media.rules_for_openai(media.tile_rule(2833, 5667))),
        _o200k_counter("patch-1.2", media.rules_for_openai(media.patch_rule(1.2, 2_500, original=10_000))),
        _o200k_counter("patch-1.62", media.rules_for_openai(media.patch_rule(1.62))),
        _o200k_counter("patch-1.62-2500", media.rules_for_openai(media.patch_rule(1.62, 2_500))),
        _o200k_counter("patch-1.72", media.rules_for_openai(media.patch_rule(1.72))),
        _o200k_counter("patch-2.46", media.rules_for_openai(media.patch_rule(2.46))),
        VocabularyCounter("cl100k_base", vocabulary_count("cl100k_base"), _OPENAI_FORMAT),
        VocabularyCounter("llama2", vocabulary_count("llama2"), _DEFAULT_FORMAT),
        VocabularyCounter("llama3", vocabulary_count("llama3"), _LLAMA3_FORMAT),
        VocabularyCounter("qwen3", vocabulary_count("qwen3"), _CHATML_FORMAT),
        VocabularyCounter("deepseek_v3", vocabulary_count("deepseek_v3"), _DEFAULT_FORMAT),
        VocabularyCounter("mistral_v2", vocabulary_count("mistral_v2"), _DEFAULT_FORMAT),
        VocabularyCounter("mistral_v3", vocabulary_count("mistral_v3"), _DEFAULT_FORMAT),
        VocabularyCounter("gemma2", vocabulary_count("gemma2"), _DEFAULT_FORMAT),
        VocabularyCounter("gemma3", vocabulary_count("gemma3"), _DEFAULT_FORMAT),
        VocabularyCounter("glm4", vocabulary_count("glm4"), _DEFAULT_FORMAT),
        VocabularyCounter("kimi_k2", vocabulary_count("kimi_k2"), _DEFAULT_FORMAT),
        VocabularyCounter("phi4", vocabulary_count("phi4"), _DEFAULT_FORMAT),
        VocabularyCounter("olmo2", vocabulary_count("olmo2"), _DEFAULT_FORMAT),
        VocabularyCounter("claude-estimate-1", estimates.claude_count(_COUNT_O200K), _CLAUDE_FORMAT, False, 0.25),
        VocabularyCounter("claude-4.7-estimate-1", estimates.claude_count(_COUNT_O200K, 135), _CLAUDE_LARGE_FORMAT, False, 0.25),
        VocabularyCounter("gemini-estimate-1", vocabulary_count("gemma3"), _GEMINI_FORMAT, False, 0.05),
        VocabularyCounter("gemini-3-estimate-1", vocabulary_count("gemma3"), _GEMINI_3_FORMAT, False, 0.05),
        VocabularyCounter(estimates.ESTIMATE_NAME, estimates.count_by_script, _DEFAULT_FORMAT, False, 0.2),
    )
}  # fmt: skip

_MODEL_RULES: Final = (
    ("gpt-4o-mini", "o200k_base:tile-5667"),
    (r"gpt-4\.1-mini|gpt-5(?:\.1)?-mini", "o200k_base:patch-1.62"),
    (r"gpt-5\.\d+-mini", "o200k_base:patch-1.62-2500"),
    (r"gpt-4\.1-nano|gpt-5(?:\.\d+)?-nano", "o200k_base:patch-2.46"),
    ("o4-mini", "o200k_base:patch-1.72"),
    (r"gpt-5(?:\.1)?(?![0-9.])", "o200k_base:tile-140"),
    (r"gpt-5\.\d", "o200k_base:patch-1.2"),
    (r"o[134](?![a-z0-9])", "o200k_base:tile-150"),
    (r"gpt-4o|chatgpt-4o|gpt-4\.1|gpt-4\.5|gpt-oss", "o200k_base"),
    (r"gpt-4(?![a-z0-9.])|gpt-3\.5|gpt-35|text-embedding-(?:3|ada)", "cl100k_base"),
    (r"claude-(?:[123]|instant)", "claude-estimate-1"),
    (r"claude-(?:opus|sonnet|haiku)-4(?:[-.][0-6])?(?:[-@]\d{8}|[-@:][a-z]|$)", "claude-estimate-1"),
    ("claude", "claude-4.7-estimate-1"),
    (r"gemini-(?:[12]|pro)(?![0-9])", "gemini-estimate-1"),
    ("gemini", "gemini-3-estimate-1"),
    (r"deepseek-r1-distill-llama", "llama3"),
    (r"deepseek-r1-distill-qwen", "qwen3"),
    (r"deepseek-(?:v3|r1|chat|reasoner)", "deepseek_v3"),
    (r"(?:meta-)?llama-?v?3", "llama3"),
    (r"(?:meta-)?llama-?v?2|code-?llama|tinyllama|vicuna", "llama2"),
    (r"qwen-?(?:2\.5|[23])(?!\.\d)|qwq", "qwen3"),
    (r"(?:open-)?mistral-nemo|ministral|pixtral|magistral|devstral|mistral-small-(?:3|24|25)", "mistral_v3"),
    (r"(?:open-)?mi[sx]tral-(?:7b|8x)", "mistral_v2"),
    (r"gemma-?2", "gemma2"),
    (r"gemma-?[34]", "gemma3"),
    (r"(?:chat)?glm-?4", "glm4"),
    (r"kimi-k[23]", "kimi_k2"),
    (r"phi-?4", "phi4"),
    (r"olmo-?2", "olmo2"),
)  # fmt: skip
"""The beginnings of model names, special before general, and the counter of each."""

_KNOWN_FAMILIES: Final = (
    "gpt-5, gpt-4.1, gpt-4o, gpt-4, gpt-3.5, o1, o3, o4, claude, gemini, llama-2, llama-3, qwen2, qwen3, deepseek-v3,"
    " mistral-7b, mistral-nemo, gemma, glm-4, kimi-k2, phi-4, olmo-2"
)
_MODEL_PATTERN: Final = re.compile(
    "(?:^|[.:@])(?:" + "|".join(f"(?P<r{i}>{rule})" for i, (rule, _) in enumerate(_MODEL_RULES)) + ")"
)
_NAME_CHARS_MAX: Final = 256


def for_model(model: str) -> Counter:
    """Return the counter for a model name, which may be dated, fine-tuned (ft:…) or prefixed (provider/model).

    Raises UnknownModel instead of guessing: a wrong count would exceed a budget unnoticed.
    """
    if not isinstance(cast("object", model), str):
        raise errors.InvalidRequest(f"a model is named by a text, not {type(model).__name__}.")
    match = _MODEL_PATTERN.search(model.lower().rpartition("/")[2][:_NAME_CHARS_MAX])
    if match is None or match.lastgroup is None:
        raise errors.UnknownModel(
            f"no token counter is known for the model {model[:_NAME_CHARS_MAX]!r}.",
            hint=f"Known are {_KNOWN_FAMILIES}. For others name a counter, such as {ESTIMATE!r}.",
            facts={"model": model[:_NAME_CHARS_MAX]},
        )
    return _COUNTERS[_MODEL_RULES[int(match.lastgroup[1:])][1]]


def named(name: str) -> Counter:
    """Return the counter of that name, plain or calibrated; raise UnknownCounter if there is none."""
    if not isinstance(cast("object", name), str):
        raise errors.InvalidRequest(f"a counter is named by a text, not {type(name).__name__}.")
    plain, factor = split_calibrated_name(name)
    counter = _COUNTERS.get(estimates.ESTIMATE_NAME if plain == ESTIMATE else plain)
    if counter is None:
        raise errors.UnknownCounter(
            f"there is no token counter by the name {name[:_NAME_CHARS_MAX]!r}.",
            hint=f"Use {ESTIMATE!r} or one of {', '.join(_COUNTERS)}.",
            facts={"counter": name[:_NAME_CHARS_MAX]},
        )
    return counter if factor is None else factor.apply(counter)


def names() -> tuple[str, ...]:
    """Return the names of all counters."""
    return tuple(_COUNTERS)
