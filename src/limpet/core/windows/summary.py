"""Shorter texts: abbreviations, stubs of tool outputs, and summaries without a model.

A shortened message keeps its id, role, calls and pairing, and the missing characters are counted in their place.
Arguments of calls and reasoning stay unaltered: providers check or reject them otherwise. A summary holds the
weightiest sentences of messages, word for word, and is deterministic. `recall_score` measures how many of the names,
numbers and identifiers of messages a summary still contains.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from limpet import errors, limits
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SUMMARY_PREFIXES, Summary
from limpet.core.values.validation import Json, freeze

_EXTRA_WHITESPACE = re.compile(r"[ \t]+$|(?<=\n)\n{2,}", re.MULTILINE)
_TEXT_PART_TYPES = frozenset(("text", "input_text", "output_text"))

ShortenText = Callable[[str], str]


def lighten_text(text: str) -> str:
    """Return the text without trailing and repeated blank space, its middle counted if it is long."""
    return abbreviate(_EXTRA_WHITESPACE.sub("", text), limits.LIGHT_CHARS)


def abbreviate(text: str, chars: int) -> str:
    """Return a text of at most about so many characters: its head and tail, and how much is missing."""
    if len(text) <= chars + limits.ABBREVIATION_CHARS:
        return text
    head, tail = chars * 2 // 3, chars - chars * 2 // 3
    missing = len(text) - head - tail
    return f"{text[:head]}\n[… {missing:,} characters left out …]\n{text[len(text) - tail :]}"


def lighten_message(message: Message) -> Message:
    """Return the message with long texts shortened; the message itself if nothing is."""
    return _map_message_texts(message, lighten_text)


def stub_tool_output(message: Message) -> Message:
    """Return a tool message whose results are only named by their size; any other is shortened."""
    return _map_message_texts(message, _output_stub if message.role == "tool" else lighten_text)


def _output_stub(text: str) -> str:
    stub = f"[{len(text):,} characters of output left out]"
    return stub if len(stub) < len(text) else text


def _map_message_texts(message: Message, shorter: ShortenText) -> Message:
    content = _map_content_texts(message.content, shorter)
    results = tuple(
        msgspec.structs.replace(result, result=_map_content_texts(result.result, shorter))
        for result in message.tool_results
    )
    if content == message.content and results == tuple(message.tool_results):
        return message
    if message.anthropic is not None and message.role == "assistant":
        # Its blocks may be signed as a whole, and a provider refuses them altered.
        return message
    raw = message.openai
    if raw is not None:
        # For a tool message the provider's content is its one result.
        said = results[0].result if results else content
        raw = freeze({**raw, "content": said}) if raw.get("content") is not None else raw
    return msgspec.structs.replace(message, content=content, tool_results=results, openai=raw, anthropic=None)


def _map_content_texts(content: Json, shorter: ShortenText) -> Json:
    if isinstance(content, str):
        return shorter(content)
    if not isinstance(content, list):
        return content
    before = cast("list[Json]", content)
    after = [_map_part_text(part, shorter) for part in before]
    return before if after == before else freeze(after)


def _map_part_text(part: Json, shorter: ShortenText) -> Json:
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, Json]", part)
    text, kind = fields.get("text"), fields.get("type")
    if isinstance(kind, str) and kind in _TEXT_PART_TYPES and isinstance(text, str):
        return {**fields, "text": shorter(text)}
    return fields


class _SentencePatterns:
    """What sentences are found and weighed by. Made with the first summary: compiling takes a while."""

    def __init__(self) -> None:
        self.sentence = re.compile(r"[^\n.!?。！？]*[\n.!?。！？]+|[^\n.!?。！？]+$")
        self.decision = re.compile(
            r"\b(?:decid\w*|agreed?|chos\w*|choose|must|will|won't|never|always|because|instead|confirm\w*"
            r"|cancel\w*|fail\w*|error|cannot|can't|done|prefer\w*|need\w*|want\w*|please|todo|deadline)\b"
            r"|決定|決め|必要|失敗|完了|決定|需要|必须|失败|完成",
            re.IGNORECASE,
        )
        self.number = re.compile(r"\d")
        self.identifier = re.compile(
            r"\b\w+[_/.@:#-]\w[\w_/.@:#-]*|\b[a-z]+[A-Z]\w*|\b[A-Z]{2,}\b|`[^`]+`|\"[^\"]{2,40}\""
        )
        self.range = re.compile(r"\(messages [0-9–, ]+(?: and earlier ones)?\)$")
        self.name = re.compile(r"(?<=[\w,;] )[A-Z][a-z]+")


_sentence_patterns = functools.cache(_SentencePatterns)

_SENTENCE_ROLE_WEIGHTS: Final = {"user": 3.0, "assistant": 2.0, "system": 2.0, "tool": 1.0}
_SENTENCE_CHARS: Final = 400


def message_text(message: Message) -> str:
    """Return what a message says, as text: content, calls by name, results."""
    pieces = [_content_text(message.content)]
    pieces += [f"calls {c.name}({c.arguments or dict(c.args)})." for c in message.tool_calls]
    pieces += [_content_text(result.result) for result in message.tool_results]
    return "\n".join(piece for piece in pieces if piece)


def _content_text(content: Json) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_part_text, cast("list[Json]", content))))
    return str(content)


def _part_text(part: Json) -> str:
    text = cast("dict[str, Json]", part).get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def extract_sentences(messages: Sequence[Message], chars: int, before: str = "", prefix: str = "") -> str:
    """Return at most so many characters of what the messages say, the weightiest, in order.

    `before` is an earlier summary; its lines are weighed along with the rest, and may go. `prefix` is what
    it may begin with, beside the words of a language.
    """
    sentences = [*_summary_sentences(before, prefix), *_message_sentences(messages)]
    return _heaviest_lines(
        [(_sentence_weight(role, sentence), f"{role}: {sentence}") for role, sentence in sentences], chars
    )


def extract_named_sentences(texts: Sequence[tuple[str, str]], chars: int) -> str:
    """Return at most so many characters of what some texts say, each line after the name of its text."""
    found = [
        (_sentence_weight("tool", sentence), f"{name}: {sentence}")
        for name, text in texts
        for sentence in _split_sentences(text)
    ]
    return _heaviest_lines(found, chars)


def _heaviest_lines(lines: Sequence[tuple[float, str]], chars: int) -> str:
    found = [(weight, number, line) for number, (weight, line) in enumerate(lines)]
    taken: dict[str, int] = {}
    room = min(chars, limits.SUMMARY_CHARS_MAX)
    for _, number, line in sorted(found, key=lambda one: (-one[0], -one[1])):
        # What was said twice is kept once, where it was said last.
        if len(line) + 1 <= room and line not in taken:
            taken[line] = number
            room -= len(line) + 1
    return "\n".join(sorted(taken, key=taken.__getitem__))


def _summary_sentences(before: str, prefix: str) -> list[tuple[str, str]]:
    prefix = next((each for each in (prefix, *SUMMARY_PREFIXES.values()) if each and before.startswith(each)), "")
    found: list[tuple[str, str]] = []
    first, *lines = before.removeprefix(prefix).split("\n")
    # Whatever words it begins with, the line that only names its messages says nothing.
    for line in lines if _sentence_patterns().range.search(first) else [first, *lines]:
        role, colon, sentence = line.partition(": ")
        if colon and role in _SENTENCE_ROLE_WEIGHTS:
            found.append((role, sentence))
        elif line.strip():
            # Whatever a model wrote is the assistant's.
            found.append(("assistant", abbreviate(line, _SENTENCE_CHARS)))
    return found


def _message_sentences(messages: Sequence[Message]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for message in messages:
        found += [(message.role, sentence) for sentence in _split_sentences(message_text(message))]
    return found


def _split_sentences(text: str) -> list[str]:
    # A huge output is looked at from both ends only: the cost follows what is kept.
    near = abbreviate(text, limits.SUMMARY_CHARS_MAX)
    plain = (" ".join(sentence.split()) for sentence in _sentence_patterns().sentence.findall(near))
    return [abbreviate(sentence, _SENTENCE_CHARS) for sentence in plain if sentence]


def _sentence_weight(role: str, sentence: str) -> float:
    found, weight = _sentence_patterns(), _SENTENCE_ROLE_WEIGHTS.get(role, 1.0)
    weight += 3.0 * bool(found.decision.search(sentence))
    weight += 2.0 * bool(found.number.search(sentence))
    weight += 2.0 * bool(found.identifier.search(sentence))
    weight += 1.0 * bool(found.name.search(sentence))
    weight += 2.0 * (role == "user" and sentence.endswith(("?", "？")))
    return weight


def summarise_messages(
    messages: Sequence[Message],
    numbers: Sequence[tuple[int, int]],
    *,
    chars: int,
    language: str = "en",
    prefix: str | None = None,
    before: Summary | None = None,
) -> Summary:
    """Return what stands for some messages, and for those of the summary before; it names them by their numbers.

    It begins with `prefix`, or with the words of the language. Its timestamp is that of the last of them, so
    that it is the same every time.
    """
    prefix = prefix or SUMMARY_PREFIXES[language]
    ranges = [(before.first, before.last)] if before and before.last else list[tuple[int, int]]()
    for first, last in numbers:
        if ranges and ranges[-1][0] <= first <= ranges[-1][1] + 1:
            # The summary before may stand for some of them: a larger window looks behind its cut.
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
        else:
            ranges.append((first, last))
    named = ", ".join(f"{first}–{last}" if last > first else f"{first}" for first, last in ranges)
    if before and not before.last:
        named = f"{named} and earlier ones"
    text = extract_sentences(messages, chars, before.text if before else "", prefix)
    return Summary(ranges[0][0], ranges[-1][1], f"{prefix}(messages {named})\n{text}".rstrip(), messages[-1].timestamp)


def with_prefix(text: str, language: str, prefix: str | None = None) -> str:
    """Return a summary that somebody else wrote, with the words that say what it is."""
    prefix = prefix or SUMMARY_PREFIXES[language]
    return text if text.startswith(prefix) else f"{prefix}{text}"


def shorten_summary(message: Message, chars: int) -> Message:
    """Return a summary with about so many characters: its head and tail."""
    return replace(message, content=abbreviate(str(message.content), max(0, chars)))


def is_summary(message: Message, prefix: str | None = None) -> bool:
    """Whether a message is a summary of others, by how it begins: with the words of a language, or a prefix."""
    text, known = message.content, (*SUMMARY_PREFIXES.values(), *([prefix] if prefix else []))
    return message.role == "system" and isinstance(text, str) and text.startswith(known)


def checked_language(language: str) -> str:
    """Return the language of a summary; raise InvalidRequest if there are no words for it."""
    if language not in SUMMARY_PREFIXES:
        raise errors.InvalidRequest(f"a summary's language is one of {', '.join(SUMMARY_PREFIXES)}, not {language!r}.")
    return language


_RECALL_ROLE_WEIGHTS: Final = {"user": 4, "assistant": 2, "system": 2, "tool": 1}


class _KeyTermPatterns:
    """Made with the first score: compiling takes a while."""

    def __init__(self) -> None:
        self.identifier = re.compile(
            r"(?<![\w,.])(?=[\w.:]*[A-Za-z/@#-])[A-Za-z0-9]+(?:[_/.@:#-][A-Za-z0-9]+)+"
            r"|\b[a-z]+[A-Z]\w*|\b[A-Z]{2,}\d*\b|\b[A-Za-z]+\d+\w*\b"
        )
        self.number = re.compile(r"(?<![\w.,:/#@-])\d+(?:[.,:]\d+)*(?![\w/#@-])")
        # A capital after something else than the end of a sentence.
        self.name = re.compile(r"(?<=[\w,;:(] )[A-Z][^\W\d_]+(?:[ '-][A-Z][^\W\d_]+)*(?![\w-])")
        self.foreign = re.compile(r"[ァ-ヴー]{3,}|[「『《“]([^」』》”\n]{2,24})[」』》”]")
        self.space = re.compile(r"\s+")


_key_term_patterns = functools.cache(_KeyTermPatterns)


def key_terms(text: str) -> set[str]:
    """Return the names, numbers and identifiers of a text, in one spelling each."""
    found, near = _key_term_patterns(), text[: limits.SUMMARY_SCAN_CHARS_MAX]
    kinds = (found.identifier, found.number, found.name, found.foreign)
    raw = (match[match.lastindex or 0] for kind in kinds for match in kind.finditer(near))
    return {mark for mark in map(_normalise_term, raw) if mark}


def _normalise_term(text: str) -> str:
    return _key_term_patterns().space.sub(" ", text).strip(" .,:;-").casefold()


def recall_score(messages: Sequence[Message], text: str, before: str = "") -> tuple[float, list[str]]:
    """Return how much of their marks a summary of messages has, from 0 to 1, and the weightiest that it has not.

    What users said weighs most, and what was said more than once more than once. `before` is the summary
    that went into this one; what it has counts as if an assistant had said it. With no marks it is 1.
    """
    weights: dict[str, int] = {}
    said = [(message.role, message_text(message)) for message in messages]
    for role, words in (("assistant", before), *said):
        for mark in key_terms(words):
            weights[mark] = weights.get(mark, 0) + _RECALL_ROLE_WEIGHTS.get(role, 1)
    asked = sorted(weights, key=lambda mark: (-weights[mark], mark))[: limits.SUMMARY_RECALL_TERMS_MAX]
    missing = list(_missing_terms(asked, text))
    total = sum(weights[mark] for mark in asked)
    lost = sum(weights[mark] for mark in missing)
    return (1.0 if not total else round(1 - lost / total, 3)), missing


def _missing_terms(asked: Iterable[str], text: str) -> Iterable[str]:
    spelt = _key_term_patterns().space.sub(" ", text).casefold()
    for mark in asked:
        # A number within a longer one is another number; a word within a word is no word.
        edges = r"(?<![\w]){}(?![\w])" if mark.isascii() else "{}"
        if not re.search(edges.format(re.escape(mark)), spelt):
            yield mark
