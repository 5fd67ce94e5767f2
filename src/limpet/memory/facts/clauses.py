"""What somebody states, taken from what they say: sentences that are whole and their own words.

Questions, quotations, code, lists of data and what is merely supposed are left out. The work is bounded by
limits.FACT_SCAN_CHARS_MAX, whatever is in the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, cast

from limpet import limits
from limpet.core.values.messages import Message
from limpet.memory.facts import guard

_MARK: Final = "\x1a"
_BLANKS: Final = re.compile(r"[^\S\n]+")
_BREAKS: Final = re.compile(r" ?\n[ \n]*")
_QUOTED: Final = re.compile(
    r"""
      ```.*?(?:```|\Z) | ^\s*[>|].*$ | `[^`\n]{1,400}`
    | (?<!\w)"[^"\n]{16,800}"? | “[^”\n]{16,800}”? | «[^»\n]{16,800}»? | (?<!\w)'[^'\n]{24,400}'(?!\w)
    | (?<!\w)["“«](?=[^"”»\n]{0,200}\b(?:I|I['’]m|my|we)\b)[^"”»\n]{1,800}["”»]?
    | (?<!\w)['‘](?:I|My|We)\b[^\n]{0,400}?['’](?!\w)
    | 「[^」\n]{12,800}」? | 『[^』\n]{12,800}』? | ‘[^’\n]{24,400}’
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
"""Code, quoted lines, and quotations that are longer than a name or a word."""

_RELAYED: Final = re.compile(
    r"""
      \b(?:translat|proofread|summari[sz]|rewrit|rephras|paraphras|repl(?:y|ies)|respond|correct|edit|explain|classif|analy[sz]|read
        |email|e-mail|letter|transcript|quot|sa(?:id|ys)|told|tells|wrote|writes|asked|asks|user|bot|human|customer|he|she|they)
      \w*\b[^.!?:\n]{0,80}:\s*(?=\S)
    | (?:翻译|翻譯|校对|校對|总结|總結|改写|改寫|回复|回覆|说|說|訳|翻訳|要約|校正|添削|返信|言って|言った)[^。！？:：\n]{0,24}[:：]
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Where somebody else's words begin, or a text to work on: what follows is not stated."""

_ENDS: Final = re.compile(
    r"(?<![.\s]\b[A-Za-z])(?<!\b[DMS]r)(?<!\bMrs)(?<!\bMs)(?<!\bSt)(?<!\bNo)(?<!\b[a-z]\.[a-z])"
    r"[.!?…]+[\"'”’)]*(?=\s|$)|[。！？!?…]+[」』”]?|\n+"
)
_APART: Final = re.compile(
    r";\s+|\s+[–—]\s+|；"
    r"|,?\s+(?:and|but)\s+(?=(?:i|i'm|i’m|i've|i’ve|we|we're|my)\b(?!\s+(?:wife|husband|partner)\b\s+(?:and|are)))"
    r"|,\s+(?=(?:i|we)(?:'m|’m|'re|’re|'ve|’ve)?\s+(?:live|prefer|moved|hate|love|like|always|never|am|are|have)\b)",
    re.IGNORECASE,
)
"""Where a sentence falls into parts that can stand alone."""

_ASKED: Final = re.compile(
    r"""
      [?？]\s*$
    | ^(?:(?:so|and|but|ok|okay|hey|hi|hello|also|well|oh|then)[,\s]+)*
      (?:who|what|which|where|when|why|how|whose|is|are|am|was|were|do|does|did|can|could|will|would|shall|should|may|has|have)
      (?:'s|n't)?\s+(?:i|you|we|he|she|it|they|there|this|that|the|a|my|your|our|any|some|many|much|is|are|do|does|did|can|should)\b
    | (?:でしょう|です|ます|ました|ません|だろう|の)か[。\s]*$ | (?:かな|っけ|かしら)[ぁあー。…\s]*$
    | (?:吗|嗎|呢|吧|么)[。！!…\s]*$ | ^(?:请问|請問|什么|怎么|为什么|哪|谁|多少|几点)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SUPPOSED: Final = re.compile(
    r"""
      \b(?:if|suppose|imagine|pretend|assume|assuming|let'?s\s+say|say\s+that|hypothetically|for\s+example|for\s+instance|e\.g\.
        |what\s+if|as\s+though|wish|would\s+have|could\s+have|used\s+to|dreamt|dreamed|in\s+the\s+story|fictional|character)\b
      (?!\s+(?:possible|you\s+(?:can|could|need|want|must|ring|order|book)|they|anyone|there|the\s+power))
    | もし|たとえば|例えば|仮に|だったら|としたら|ふりをして|の役 | 如果|假如|假设|假设|比如|例如|要是|假装|扮演
    """,
    re.VERBOSE | re.IGNORECASE,
)
_FILLER: Final = re.compile(
    r"^(?:(?:sure(?: thing)?|yes|yeah|no|well|ok(?:ay)?|oh|ah|hi|hello|hey|so|and|but|also|of course|certainly|absolutely|right|great|thanks|by the way|fyi)"
    r"\b(?:,|!|\.)?\s+)+(?=\S)|^(?:えっと|あの|はい|うん|そういえば|ちなみに|嗯|好的|对了|對了|那个|顺便说一下)[、，,]?\s*",
    re.IGNORECASE,
)
_DATA: Final = re.compile(
    r"https?://|www\.|[{}<>\\|=_#]{2}|\w\(\)|^\s*[\[{<#|]|^\s*\w+\s*=|[;{]\s*$"
)


def stated(message: Message) -> list[str]:
    """Return what a message states, in order, each as one clean line; nothing if it gives orders to the model."""
    # Runs of blanks tell nothing, and patterns would look at each of them many times.
    said = "\n".join(_texts(message))[: limits.FACT_SCAN_CHARS_MAX]
    text = _BREAKS.sub("\n", _BLANKS.sub(" ", said))
    if not text or guard.reads_as_order(text):
        return []
    own = _QUOTED.sub(_MARK, text)
    relayed = _RELAYED.search(own)
    if relayed:
        own = own[: relayed.start()] + _MARK
    return [line for sentence in _sentences(own) for line in _parts(sentence)]


def _sentences(text: str) -> Iterator[str]:
    begin = 0
    for end in _ENDS.finditer(text):
        yield text[begin : end.end()]
        begin = end.end()
    yield text[begin:]


def _texts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    elif isinstance(message.content, list):
        for part in cast("list[object]", message.content):
            if isinstance(part, Mapping) and cast("Mapping[str, object]", part).get("type") in (
                "text",
                "input_text",
            ):
                said = cast("Mapping[str, object]", part).get("text")
                if isinstance(said, str):
                    yield said


def _parts(sentence: str) -> Iterator[str]:
    if _MARK in sentence or not _is_stated(sentence):
        return
    for part in _APART.split(sentence):
        line = guard.clean(part, limits.FACT_CHARS_MAX + 1).strip(" ,;:-–—*•·、，")
        line = _FILLER.sub("", line)
        short = 3 <= len(line) <= limits.FACT_CHARS_MAX
        if short and _is_stated(line) and not guard.is_secret(line):
            yield line


def _is_stated(sentence: str) -> bool:
    line = sentence.strip()
    return not (_ASKED.search(line) or _SUPPOSED.search(line) or _DATA.search(line))
