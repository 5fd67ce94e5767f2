"""Shorter texts: abbreviations, stubs of tool outputs, and summaries without a model.

A shortened message keeps its id, role and calls, and a note with the number of missing characters replaces them.
Arguments of calls and reasoning are not shortened: providers validate or sign them. A summary consists of the sentences
of messages with the highest weights, verbatim, and is deterministic. `recall_score` measures how many of the names,
numbers and identifiers of messages a summary contains.
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
    """Return the text without trailing and repeated white space; of a long text only head and tail are kept."""
    return abbreviate(_EXTRA_WHITESPACE.sub("", text), limits.LIGHT_CHARS)


def abbreviate(text: str, chars: int) -> str:
    """Return a text of about `chars` characters: its head, a note of what is missing, and its tail."""
    if len(text) <= chars + limits.ABBREVIATION_CHARS:
        return text
    head, tail = chars * 2 // 3, chars - chars * 2 // 3
    missing = len(text) - head - tail
    return f"{text[:head]}\n[… {missing:,} characters left out …]\n{text[len(text) - tail :]}"


def lighten_message(message: Message) -> Message:
    """Return the message with long texts shortened; the same object if nothing changes."""
    return _map_message_texts(message, lighten_text)


def stub_tool_output(message: Message) -> Message:
    """Return a tool message with stubs in place of its results, and any other message with long texts shortened."""
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
        # Anthropic signs blocks of an answer and refuses altered ones.
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
    """Patterns that split and weigh sentences. They are compiled with the first summary, because that is slow."""

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
    """Return a message as text: its content, calls and results."""
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
    """Return the sentences of messages with the highest weights, in order, within `chars` characters.

    `before` is an earlier summary whose lines compete with the sentences. `prefix` is its prefix, if that is not the
    prefix of a language.
    """
    sentences = _summary_sentences(before, prefix)
    sentences += [(m.role, sentence) for m in messages for sentence in _split_sentences(message_text(m))]
    return _heaviest_lines(
        [(_sentence_weight(role, sentence), f"{role}: {sentence}") for role, sentence in sentences], chars
    )


def extract_named_sentences(texts: Sequence[tuple[str, str]], chars: int) -> str:
    """Return the weightiest sentences of named texts within `chars` characters, each after the name of its text."""
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
        # A repeated line is kept once, at its last position.
        if len(line) + 1 <= room and line not in taken:
            taken[line] = number
            room -= len(line) + 1
    return "\n".join(sorted(taken, key=taken.__getitem__))


def _summary_sentences(before: str, prefix: str) -> list[tuple[str, str]]:
    prefix = next((each for each in (prefix, *SUMMARY_PREFIXES.values()) if each and before.startswith(each)), "")
    found: list[tuple[str, str]] = []
    first, *lines = before.removeprefix(prefix).split("\n")
    # The first line of an extracted summary only names message numbers.
    for line in lines if _sentence_patterns().range.search(first) else [first, *lines]:
        role, colon, sentence = line.partition(": ")
        if colon and role in _SENTENCE_ROLE_WEIGHTS:
            found.append((role, sentence))
        elif line.strip():
            # A line of a written summary has no role and counts as the assistant's.
            found.append(("assistant", abbreviate(line, _SENTENCE_CHARS)))
    return found


def _split_sentences(text: str) -> list[str]:
    # Only both ends of a huge output are read, so that the cost is bounded.
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
    """Return a summary of messages with these number ranges, and of the messages of the summary `before`.

    The text begins with `prefix`, by default the prefix of the language, and the numbers. The timestamp is that of the
    last message, so that the same messages give the same summary.
    """
    prefix = prefix or SUMMARY_PREFIXES[language]
    ranges = [(before.first, before.last)] if before and before.last else list[tuple[int, int]]()
    for first, last in numbers:
        if ranges and ranges[-1][0] <= first <= ranges[-1][1] + 1:
            # The ranges may overlap: a larger window reads messages that the earlier summary covers.
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
        else:
            ranges.append((first, last))
    named = ", ".join(f"{first}–{last}" if last > first else f"{first}" for first, last in ranges)
    if before and not before.last:
        named = f"{named} and earlier ones"
    text = extract_sentences(messages, chars, before.text if before else "", prefix)
    return Summary(ranges[0][0], ranges[-1][1], f"{prefix}(messages {named})\n{text}".rstrip(), messages[-1].timestamp)


def with_prefix(text: str, language: str, prefix: str | None = None) -> str:
    """Return a written summary with its prefix."""
    prefix = prefix or SUMMARY_PREFIXES[language]
    return text if text.startswith(prefix) else f"{prefix}{text}"


def shorten_summary(message: Message, chars: int) -> Message:
    """Return a summary shortened to about `chars` characters."""
    return replace(message, content=abbreviate(str(message.content), max(0, chars)))


def is_summary(message: Message, prefix: str | None = None) -> bool:
    """Whether a message is a summary: a system message that begins with `prefix` or the prefix of a language."""
    text, known = message.content, (*SUMMARY_PREFIXES.values(), *([prefix] if prefix else []))
    return message.role == "system" and isinstance(text, str) and text.startswith(known)


def checked_language(language: str) -> str:
    """Return the language of a summary; raise InvalidRequest if it has no summary prefix."""
    if language not in SUMMARY_PREFIXES:
        raise errors.InvalidRequest(f"a summary's language is one of {', '.join(SUMMARY_PREFIXES)}, not {language!r}.")
    return language


_RECALL_ROLE_WEIGHTS: Final = {"user": 4, "assistant": 2, "system": 2, "tool": 1}


class _KeyTermPatterns:
    """Patterns of names, numbers and identifiers. They are compiled with the first score, because that is slow."""

    def __init__(self) -> None:
        self.identifier = re.compile(
            r"(?<![\w,.])(?=[\w.:]*[A-Za-z/@#-])[A-Za-z0-9]+(?:[_/.@:#-][A-Za-z0-9]+)+"
            r"|\b[a-z]+[A-Z]\w*|\b[A-Z]{2,}\d*\b|\b[A-Za-z]+\d+\w*\b"
        )
        self.number = re.compile(r"(?<![\w.,:/#@-])\d+(?:[.,:]\d+)*(?![\w/#@-])")
        # A capital letter that does not begin a sentence.
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
    """Return the part, from 0 to 1, of the messages' key terms that a summary contains, and the missing terms.

    Terms are weighted by the role of their messages, users highest, and each message adds its weight. `before` is an
    earlier summary, whose terms count as an assistant's. Without terms the score is 1.
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
        # A term inside a longer number or word does not count.
        edges = r"(?<![\w]){}(?![\w])" if mark.isascii() else "{}"
        if not re.search(edges.format(re.escape(mark)), spelt):
            yield mark
