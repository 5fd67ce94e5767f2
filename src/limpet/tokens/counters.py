"""Which counter is for which model: two tables, and the two ways to ask them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, cast

from limpet import errors
from limpet.tokens import estimates, media, vocabularies, words
from limpet.tokens.calibration import split_name
from limpet.tokens.port import Counter, Format, Vocabulary

ESTIMATE: Final = "estimate"
"""Names the newest estimate that needs no vocabulary, whatever its number is."""

_OPENAI: Final = Format(message=4, reply=3)
_CHATML: Final = Format(message=5, reply=3)
_HEADERS: Final = Format(message=5, reply=5)
_OTHER: Final = Format(message=6, reply=6)
# Their replies have room for the user's words before an assistant's first ones.
_CLAUDE: Final = Format(message=6, reply=14, tools=530, system=8, media=media.ANTHROPIC)
_CLAUDE_LARGE: Final = Format(message=6, reply=14, tools=810, system=8, media=media.ANTHROPIC_LARGE)
_GEMINI: Final = Format(message=5, reply=11, system=8, media=media.GEMINI)
_GEMINI_3: Final = Format(message=5, reply=11, system=8, media=media.GEMINI_3)


def _openai(rule: str, rules: media.Rules) -> Vocabulary:
    form = Format(message=4, reply=3, media=rules)
    return Vocabulary(f"o200k_base:{rule}", _O200K, form)


_O200K: Final = vocabularies.counting("o200k_base")
_COUNTERS: Final[Mapping[str, Vocabulary]] = {
    counter.name: counter
    for counter in (
        Vocabulary("o200k_base", _O200K, _OPENAI),
        _openai("tile-140", media.openai(media.tiles(70, 140))),
        _openai("tile-150", media.openai(media.tiles(75, 150))),
        _openai("tile-5667", media.openai(media.tiles(2833, 5667))),
        _openai("patch-1.2", media.openai(media.patches(1.2, 2_500, original=10_000))),
        _openai("patch-1.62", media.openai(media.patches(1.62))),
        _openai("patch-1.62-2500", media.openai(media.patches(1.62, 2_500))),
        _openai("patch-1.72", media.openai(media.patches(1.72))),
        _openai("patch-2.46", media.openai(media.patches(2.46))),
        Vocabulary("cl100k_base", vocabularies.counting("cl100k_base"), _OPENAI),
        Vocabulary("llama2", vocabularies.counting("llama2"), _OTHER),
        Vocabulary("llama3", vocabularies.counting("llama3"), _HEADERS),
        Vocabulary("qwen3", vocabularies.counting("qwen3"), _CHATML),
        Vocabulary("deepseek_v3", vocabularies.counting("deepseek_v3"), _OTHER),
        Vocabulary("mistral_v2", vocabularies.counting("mistral_v2"), _OTHER),
        Vocabulary("mistral_v3", vocabularies.counting("mistral_v3"), _OTHER),
        Vocabulary("gemma2", vocabularies.counting("gemma2"), _OTHER),
        Vocabulary("gemma3", vocabularies.counting("gemma3"), _OTHER),
        Vocabulary("glm4", vocabularies.counting("glm4"), _OTHER),
        Vocabulary("kimi_k2", vocabularies.counting("kimi_k2"), _OTHER),
        Vocabulary("phi4", vocabularies.counting("phi4"), _OTHER),
        Vocabulary("olmo2", vocabularies.counting("olmo2"), _OTHER),
        Vocabulary("claude-estimate-1", estimates.claude(_O200K), _CLAUDE, False, 0.25),
        Vocabulary("claude-4.7-estimate-1", estimates.claude(_O200K, 135), _CLAUDE_LARGE, False, 0.25),
        Vocabulary("gemini-estimate-1", vocabularies.counting("gemma3"), _GEMINI, False, 0.05),
        Vocabulary("gemini-3-estimate-1", vocabularies.counting("gemma3"), _GEMINI_3, False, 0.05),
        Vocabulary(words.NAME, estimates.by_script, _OTHER, False, 0.2),
    )
}  # fmt: skip

_MODELS: Final = (
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

_FAMILIES: Final = (
    "gpt-5, gpt-4.1, gpt-4o, gpt-4, gpt-3.5, o1, o3, o4, claude, gemini, llama-2, llama-3, qwen2, qwen3, deepseek-v3,"
    " mistral-7b, mistral-nemo, gemma, glm-4, kimi-k2, phi-4, olmo-2"
)
_MODEL: Final = re.compile(
    "(?:^|[.:@])(?:" + "|".join(f"(?P<r{i}>{rule})" for i, (rule, _) in enumerate(_MODELS)) + ")"
)
_NAME_CHARS_MAX: Final = 256


def for_model(model: str) -> Counter:
    """Return the counter for a model: by its provider's name, dated, fine-tuned (ft:…) or provider/model.

    Raises UnknownModel, and never guesses: a wrong count would go over budget unseen.
    """
    if not isinstance(cast("object", model), str):
        raise errors.InvalidRequest(f"a model is named by a text, not {type(model).__name__}.")
    match = _MODEL.search(model.lower().rpartition("/")[2][:_NAME_CHARS_MAX])
    if match is None or match.lastgroup is None:
        raise errors.UnknownModel(
            f"no token counter is known for the model {model[:_NAME_CHARS_MAX]!r}.",
            hint=f"Known are {_FAMILIES}. For others name a counter, such as {ESTIMATE!r}.",
            facts={"model": model[:_NAME_CHARS_MAX]},
        )
    return _COUNTERS[_MODELS[int(match.lastgroup[1:])][1]]


def named(name: str) -> Counter:
    """Return the counter by the name that is stored beside its counts; calibrated ones too.

    Raises UnknownCounter.
    """
    if not isinstance(cast("object", name), str):
        raise errors.InvalidRequest(f"a counter is named by a text, not {type(name).__name__}.")
    plain, factor = split_name(name)
    counter = _COUNTERS.get(words.NAME if plain == ESTIMATE else plain)
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
