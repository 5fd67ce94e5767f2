"""Token counters, and which of them counts for which model.

Counters differ in their vocabulary and their provider's chat format (`ChatFormat`), not in how a
message is traversed. `Calibration` corrects a counter by the usage that a provider reported.
Everything is pure and thread-safe, except that a vocabulary loads on first use, once per process. It must encode a known
text to its known tokens before it is used: a changed or damaged tokenizer would miscount silently.
"""

from __future__ import annotations

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
            arguments = call.arguments or json_text(call.args)
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
            return self.text(json_text(value))
        # Parts are put together in lines, and media that a result can't hold follow in a message of their own.
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
        """Count a part; what is no provider's part, such as a row that a tool gave, as JSON."""
        if isinstance(item, Mapping):
            part = cast("Mapping[str, Json]", item)
            if found := media.media_in_part(part):
                return self.format.media.tokens(found, self.text)
            field = "text" if [*part] == ["text"] else _TEXT_FIELDS.get(str(part.get("type")))
            if field and isinstance(part.get(field), (str, list)):
                return self._count_content(part[field])
        return self.text(json_text(item)) + 1


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
    return [text_or_json(one) for one in said if one is not None]


def _is_worth_caching(text: str) -> bool:
    return limits.COUNT_CACHED_CHARS_MIN <= len(text) <= limits.COUNT_CACHED_CHARS_MAX


@lru_cache(maxsize=limits.COUNT_CACHE_ENTRIES)
def _cached_count(counter: VocabularyCounter, text: str) -> int:
    return counter.count(text)


def total(counter: Counter, messages: Sequence[Message]) -> int:
    """Count a whole request: its messages and the priming of the reply."""
    return sum(map(counter.message, messages)) + counter.reply


_CALIBRATED_NAME: Final = re.compile(r"(.+)\*(\d\.\d{3})")


class Calibration(CounterCorrection, frozen=True):
    """How a counter's numbers compare with what its provider charges.

    `factor` is the running mean of reported / estimated over `observations`; new ones keep a weight,
    since models change under their names. It stays within limits.CALIBRATION_FACTOR_MAX.
    """

    def observe(self, estimated: int, reported: int) -> Calibration:
        """Return the calibration after one more request: what the plain counter said, what was charged."""
        return self.with_usage(ReportedUsage(self.counter, estimated, reported))

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


KNOWN_TEXT: Final = "Hello, wörld! 12345 <|endoftext|> привет 你好 नमस्ते\n\n    return x_1 🙂"
KNOWN_TOKENS: Final[Mapping[str, tuple[int, ...]]] = {
    "o200k_base": (
        13225, 11, 286, 2877, 582, 0, 220, 7633, 2548, 464, 91, 419, 1440, 919, 91, 29, 145259, 220, 177519, 100793,
        14681, 628, 279, 271, 622, 1215, 62, 16, 26192,
    ),
    "cl100k_base": (
        9906, 11, 289, 9603, 509, 0, 220, 4513, 1774, 83739, 8862, 728, 428, 91, 29, 12561, 28089, 8341, 220, 57668,
        53901, 15272, 101, 88344, 79468, 31584, 97, 35470, 271, 262, 471, 865, 62, 16, 28584,
    ),
    "llama2": (
        15043, 29892, 281, 1340, 430, 29991, 29871, 29896, 29906, 29941, 29946, 29945, 529, 29989, 355, 974, 726,
        29989, 29958, 1695, 7616, 29871, 30919, 31076, 29871, 30424, 30485, 30489, 30296, 30475, 30569, 13, 13, 1678,
        736, 921, 29918, 29896, 29871, 243, 162, 156, 133,
    ),
    "llama3": (
        9906, 11, 289, 9603, 509, 0, 220, 4513, 1774, 83739, 8862, 728, 428, 91, 29, 108349, 8341, 118195, 53901,
        100282, 88344, 79468, 100365, 35470, 271, 262, 471, 865, 62, 16, 28584,
    ),
    "qwen3": (
        9707, 11, 289, 9416, 507, 0, 220, 16, 17, 18, 19, 20, 82639, 8691, 723, 427, 91, 29, 12281, 26991, 8178, 220,
        108386, 14925, 101, 87244, 78368, 30484, 97, 34370, 271, 262, 470, 856, 62, 16, 27484,
    ),
    "deepseek_v3": (
        19923, 14, 281, 6136, 514, 3, 223, 6895, 1883, 818, 94, 523, 2154, 2067, 94, 32, 3686, 8919, 223, 30594,
        23597, 12524, 70223, 6011, 271, 361, 1354, 1527, 65, 19, 68139,
    ),
    "mistral_v2": (
        23325, 29493, 1043, 2792, 1185, 29576, 29473, 29508, 29518, 29538, 29549, 29550, 1291, 29534, 1184, 1777,
        1540, 29534, 29535, 3451, 9264, 29473, 30151, 30298, 29473, 30308, 30440, 30439, 30068, 30476, 30354, 781,
        781, 3055, 1372, 2086, 29498, 29508, 29473, 30108,
    ),
    "mistral_v3": (
        22177, 1044, 1285, 3238, 1543, 1033, 1032, 1049, 1050, 1051, 1052, 1053, 1534, 1124, 1474, 2935, 2149, 1124,
        1062, 3576, 13745, 1032, 124108, 4148, 3525, 22475, 1803, 1267, 1293, 1850, 2460, 1095, 1049, 119685, 1153,
        1130,
    ),
    "gemma2": (
        4521, 235269, 513, 2864, 706, 235341, 235248, 235274, 235284, 235304, 235310, 235308, 968, 235371, 615, 559,
        1082, 73786, 82258, 30485, 235607, 7578, 235579, 45884, 235483, 109, 141, 773, 1141, 235298, 235274, 33359,
    ),
    "gemma3": (
        9259, 236764, 515, 4010, 671, 236888, 236743, 236770, 236778, 236800, 236812, 236810, 655, 236909, 643, 1340,
        1005, 111038, 36097, 43758, 237389, 173040, 108, 140, 2060, 1123, 236779, 236770, 57235,
    ),
    "glm4": (
        9703, 11, 289, 9412, 507, 0, 220, 108714, 100461, 81959, 8690, 723, 427, 91, 29, 141186, 101726, 98384, 14913,
        101, 86522, 77740, 30366, 97, 34200, 271, 262, 470, 856, 62, 16, 27392,
    ),
    "kimi_k2": (
        19180, 11, 284, 25958, 621, 0, 220, 6694, 2899, 22652, 517, 20013, 672, 91, 29, 22321, 63694, 220, 33845,
        27842, 14915, 72819, 7614, 382, 274, 745, 1288, 62, 16, 56774,
    ),
    "phi4": (
        9906, 11, 289, 9603, 509, 0, 220, 4513, 1774, 83739, 8862, 728, 428, 91, 29, 12561, 28089, 8341, 220, 57668,
        53901, 15272, 101, 88344, 79468, 31584, 97, 35470, 271, 262, 471, 865, 62, 16, 28584,
    ),
    "olmo2": (
        9906, 11, 289, 9603, 509, 0, 220, 4513, 1774, 83739, 8862, 728, 428, 91, 29, 12561, 28089, 8341, 220, 57668,
        53901, 15272, 101, 88344, 79468, 31584, 97, 35470, 271, 262, 471, 865, 62, 16, 28584,
    ),
}  # fmt: skip
"""The tokens of KNOWN_TEXT in each vocabulary. One that is not here is not used."""


class Tokenizer(Protocol):
    """What is needed of one. Only ordinary encoding: text must not be able to forge control tokens."""

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
    """Load a vocabulary from the wheel. Imported here: it is large, and not everyone counts."""
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
    """Raise WrongTokenizer unless the known text gives its known tokens."""
    if tuple(tokenizer.encode_ordinary(KNOWN_TEXT)) != KNOWN_TOKENS[name]:
        raise errors.WrongTokenizer(
            f"the installed {name} does not give the tokens that {name} is known for.",
            hint="Nothing was counted with it. Reinstall it: pip install --force-reinstall splintr-rs",
            facts={"vocabulary": name},
        )


ESTIMATE: Final = "estimate"
"""Names the newest estimate that needs no vocabulary, whatever its number is."""

_OPENAI_FORMAT: Final = ChatFormat(message=4, reply=3)
_CHATML_FORMAT: Final = ChatFormat(message=5, reply=3)
_LLAMA3_FORMAT: Final = ChatFormat(message=5, reply=5)
_DEFAULT_FORMAT: Final = ChatFormat(message=6, reply=6)
# Their replies have room for the user's words before an assistant's first ones.
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
"""How a model's name begins, the special before the general, and the counter of such models."""

_KNOWN_FAMILIES: Final = (
    "gpt-5, gpt-4.1, gpt-4o, gpt-4, gpt-3.5, o1, o3, o4, claude, gemini, llama-2, llama-3, qwen2, qwen3, deepseek-v3,"
    " mistral-7b, mistral-nemo, gemma, glm-4, kimi-k2, phi-4, olmo-2"
)
_MODEL_PATTERN: Final = re.compile(
    "(?:^|[.:@])(?:" + "|".join(f"(?P<r{i}>{rule})" for i, (rule, _) in enumerate(_MODEL_RULES)) + ")"
)
_NAME_CHARS_MAX: Final = 256


def for_model(model: str) -> Counter:
    """Return the counter for a model: by its provider's name, dated, fine-tuned (ft:…) or provider/model.

    Raises UnknownModel, and never guesses: a wrong count would go over budget unseen.
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
    """Return the counter by the name that is stored beside its counts; calibrated ones too.

    Raises UnknownCounter.
    """
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
