"""Extracts facts from what users say about themselves, by rules, without a model; sanitizes text of unknown origin.

Pure and deterministic. Only messages of role `user` are read. Questions, quotations, code and
hypotheses are left out. A fact is the user's own sentence. Rules prefer to miss a fact over keeping
a wrong one. Work per message is bounded by limits.FACT_SCAN_CHARS_MAX. A fact is shown to models in
later sessions, so it is one line of visible characters and never reads as an instruction.
"""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from limpet import limits
from limpet.core.values.memory_records import ArchivedMessage, Fact, FactKind, Source
from limpet.core.values.messages import Message

_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)
"""Control characters, direction marks and other invisible characters. Attackers hide instructions in them."""

_INSTRUCTIONS: Final = re.compile(
    r"""
      \b(?:ignor|disregard|overrid|forget)\w*\b.{0,40}\b(?:instruct|prompt|rule|polic|guideline|above|previous|prior|direction)
    | \b(?:system|developer|assistant|tool)\s*(?:prompt|message|override|mode|role)\b
    | (?:^|[\s\[(<|*\#"'])(?:system|assistant|developer|instructions?)\s*[\])>*]*\s*[:：]
    | \byou\s+(?:are|must)\s+(?:now|no\s+longer|obey|comply)\b | \b(?:from\s+now\s+on|henceforth),?\s+you\s*(?:'re|are)\b | \byour\s+new\s+(?:role|task|instruct)
    | \byou\s+are\s+an?\b.{0,40}\b(?:assistant|model|bot|ai|agent|dan)\b
    | \b(?:act|behave|respond|pretend)\s+as\s+(?:if|though|an?\b|the\b|my\b)
    | \bnew\s+(?:instruction|rule|polic|directive)s?\b
    | \b(?:reveal|exfiltrat|disclos|bypass|jailbreak)\w*
    | \b(?:without|never|no\s+need\s+to|don'?t|stop|skip)\b.{0,20}\b(?:ask(?:ing)?\s+(?:for\s+)?(?:me|first|permission|confirm|approv)|confirm\w*|approv\w*|verify\w*|check(?:ing)?\s+with)
    | \b(?:always|automatically)\s+(?:approve|confirm|allow|grant|accept|agree|comply|obey|execute|run)\b
    | \b(?:execute|run|call|invoke|use)\s+(?:the\s+|this\s+|following\s+)*(?:tool|command|function|script|code|shell)\b
    | \b(?:sudo|superuser|(?:root|admin)\s+(?:access|rights|mode|privilege))
    | <\|?/?[a-z_]+\|?> | \[/?inst\] | \#\#\# | ``` | \{\{ | \}\}
    | (?:以前|これまで|今まで|上記|前|すべて|全て)の?.{0,8}(?:指示|命令|ルール|プロンプト).{0,8}(?:無視|忘れ|従わ)
    | (?:システム|開発者|アシスタント)\s*(?:プロンプト|メッセージ|モード|[:：]) | あなたは(?:今|今後|これから|もう)
    | (?:確認|承認|許可)(?:なし|せず|を?取らず|は?不要) | 新しい指示
    | (?:忽略|无视|忘记|忘掉|不要理会|無視|忽視).{0,12}(?:指令|指示|提示|规则|規則|要求|内容)
    | (?:系统|系統|开发者|开发人员|助手)\s*(?:提示|消息|指令|模式|[:：]) | 你(?:现在|從現在起|从现在起|不再)是 | 新的?(?:指令|指示)
    | (?:不用|无需|无须|不必|跳过|不要)(?:再)?(?:询问|征求|确认|审批|批准|问我)
    """,
    re.VERBOSE | re.IGNORECASE,
)


_SECRETS: Final = re.compile(
    r"\b(?:pass(?:word|code|phrase)s?|pins?|pin\s+(?:code|number)|cv[cv]2?|security\s+code|social\s+security|ssn"
    r"|(?:credit|debit|bank)\s+card|card\s+number|iban|account\s+number|(?:secret|private|api|access)\s+key|otp)\b"
    r"|(?:\d[ -]?){13,19}|パスワード|暗証番号|カード番号|口座番号|密码|密碼|口令|验证码|驗證碼|卡号|卡號|账号密码",
    re.IGNORECASE,
)
"""Passwords, PINs, card and account numbers. They must not appear in later prompts."""


def is_secret(text: str) -> bool:
    """Return whether a text may contain a password, a PIN, or a card or account number."""
    return _SECRETS.search(unicodedata.normalize("NFKC", text)) is not None


def clean(text: str, chars_max: int = limits.FACT_CHARS_MAX) -> str:
    """Return a text as one line of visible characters, cut to a length."""
    visible = _INVISIBLE.sub(" ", text[: chars_max * 4])
    without_surrogates = "".join(c for c in visible if not 0xD800 <= ord(c) <= 0xDFFF)
    return " ".join(without_surrogates.split())[:chars_max].strip()


def reads_as_instruction(text: str) -> bool:
    """Return whether text, as a model would read it, tells the model what to do or who it is."""
    plain = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).replace("’", "'")
    return _INSTRUCTIONS.search(" ".join(plain.split())) is not None


TOPIC: Final = "*"
"""The first character of `about` of a rule whose subject is the topic named in the sentence, if there is one."""


class Rule(NamedTuple):
    """A pattern of sentences, with the kind and the subject of the facts that they state.

    `about` may name groups of the pattern. `{items}` is replaced by each item of a list. A weak rule does not
    apply to requests, plans and doubts.
    """

    kind: FactKind
    about: str
    pattern: re.Pattern[str]
    weak: bool = False


class Evidence(NamedTuple):
    """Patterns of sentences that are facts because they contain a date, an amount or an identifier."""

    kind: FactKind
    speaker: re.Pattern[str]
    thing: re.Pattern[str]


class Language(NamedTuple):
    """The patterns of one language: `english.toml`, `japanese.toml`, `chinese.toml`.

    `hint` matches every sentence that a rule may match. `unsure` matches requests, plans and doubts: such a
    sentence is no evidence.
    """

    hint: re.Pattern[str]
    rules: Sequence[Rule]
    topics: Sequence[tuple[str, re.Pattern[str]]]
    evidence: Sequence[Evidence]
    unsure: re.Pattern[str]


@functools.cache
def _language(name: str) -> Language:
    """Return the patterns of a language. They are compiled at its first sentence, because compiling is slow."""
    table: dict[str, Any] = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))

    def pattern(text: str) -> re.Pattern[str]:
        while "(?&" in text:
            text = re.sub(r"\(\?&(\w+)\)", lambda part: table["parts"][part[1]], text)
        return re.compile(text, re.IGNORECASE)

    return Language(
        hint=pattern(table["hint"]),
        rules=[Rule(FactKind(kind), about, pattern(text), bool(weak)) for kind, about, text, *weak in table["rules"]],
        topics=[(topic, pattern(words)) for topic, words in table["topics"]],
        evidence=[
            Evidence(FactKind(kind), pattern(speaker), pattern(thing)) for kind, speaker, thing in table["evidence"]
        ],
        unsure=pattern(table["unsure"]),
    )


_QUOTATION_MARK: Final = "\x1a"
_BLANKS: Final = re.compile(r"[^\S\n]+")
_LINE_BREAKS: Final = re.compile(r" ?\n[ \n]*")
_QUOTATION: Final = re.compile(
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

_RELAYED_TEXT: Final = re.compile(
    r"""
      \b(?:translat|proofread|summari[sz]|rewrit|rephras|paraphras|repl(?:y|ies)|respond|correct|edit|explain|classif|analy[sz]|read
        |email|e-mail|letter|transcript|quot|sa(?:id|ys)|told|tells|wrote|writes|asked|asks|user|bot|human|customer|he|she|they)
      \w*\b[^.!?:\n]{0,80}:\s*(?=\S)
    | (?:翻译|翻譯|校对|校對|总结|總結|改写|改寫|回复|回覆|说|說|訳|翻訳|要約|校正|添削|返信|言って|言った)[^。！？:：\n]{0,24}[:：]
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""The beginning of another person's words or of a text to work on. What follows is no statement of the user."""

_SENTENCE_END: Final = re.compile(
    r"(?<![.\s]\b[A-Za-z])(?<!\b[DMS]r)(?<!\bMrs)(?<!\bMs)(?<!\bSt)(?<!\bNo)(?<!\b[a-z]\.[a-z])"
    r"[.!?…]+[\"'”’)]*(?=\s|$)|[。！？!?…]+[」』”]?|\n+"
)
_CLAUSE_BREAK: Final = re.compile(
    r";\s+|\s+[–—]\s+|；"
    r"|,?\s+(?:and|but)\s+(?=(?:i|i'm|i’m|i've|i’ve|we|we're|my)\b(?!\s+(?:wife|husband|partner)\b\s+(?:and|are)))"
    r"|,\s+(?=(?:i|we)(?:'m|’m|'re|’re|'ve|’ve)?\s+(?:live|prefer|moved|hate|love|like|always|never|am|are|have)\b)",
    re.IGNORECASE,
)
"""The boundaries of clauses that can stand alone."""

_QUESTION: Final = re.compile(
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
_HYPOTHESIS: Final = re.compile(
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
_DATA_LINE: Final = re.compile(r"https?://|www\.|[{}<>\\|=_#]{2}|\w\(\)|^\s*[\[{<#|]|^\s*\w+\s*=|[;{]\s*$")


def stated_clauses(message: Message) -> list[str]:
    """Return the clauses that a message states, as clean lines in order; none if it reads as an instruction."""
    # Runs of blanks are shortened first, because they slow the patterns down.
    text = "\n".join(_text_parts(message))[: limits.FACT_SCAN_CHARS_MAX]
    text = _LINE_BREAKS.sub("\n", _BLANKS.sub(" ", text))
    if not text or reads_as_instruction(text):
        return []
    own = _QUOTATION.sub(_QUOTATION_MARK, text)
    relayed = _RELAYED_TEXT.search(own)
    if relayed:
        own = own[: relayed.start()] + _QUOTATION_MARK
    return [line for sentence in _sentences(own) for line in _clauses(sentence)]


def _sentences(text: str) -> Iterator[str]:
    begin = 0
    for end in _SENTENCE_END.finditer(text):
        yield text[begin : end.end()]
        begin = end.end()
    yield text[begin:]


def _text_parts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    elif isinstance(message.content, list):
        for part in cast("list[object]", message.content):
            if isinstance(part, Mapping) and cast("Mapping[str, object]", part).get("type") in ("text", "input_text"):
                text = cast("Mapping[str, object]", part).get("text")
                if isinstance(text, str):
                    yield text


def _clauses(sentence: str) -> Iterator[str]:
    if _QUOTATION_MARK in sentence or not _is_statement(sentence):
        return
    for part in _CLAUSE_BREAK.split(sentence):
        line = clean(part, limits.FACT_CHARS_MAX + 1).strip(" ,;:-–—*•·、，")
        line = _FILLER.sub("", line)
        short = 3 <= len(line) <= limits.FACT_CHARS_MAX
        if short and _is_statement(line) and not is_secret(line):
            yield line


def _is_statement(sentence: str) -> bool:
    line = sentence.strip()
    return not (_QUESTION.search(line) or _HYPOTHESIS.search(line) or _DATA_LINE.search(line))


_KANA: Final = re.compile("[\u3040-\u30ff]")
_HAN: Final = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_LIST_SEPARATOR: Final = re.compile(r"\s*(?:,|\band\b|\bor\b|/|&|、|と|和|及|跟|以及)\s*", re.IGNORECASE)
_EMPTY_WORDS: Final = re.compile(
    r"^(?:the|a|an|any|all|some|both|my|our|to|of|only|very|really)\s+"
    r"|\s+(?:any ?more|anymore|now|at all|a lot|very much|too|as well|again|so much|these days|though|best|most|either|either)$",
    re.IGNORECASE,
)
_CJK_AFFIXES: Final = re.compile(r"^(?:私は|僕は|実は|我)|(?:の方|のほう|类|類|都|也|了|的)$")


def extract(messages: Sequence[ArchivedMessage]) -> list[Fact]:
    """Return the facts that a user states about themself in these messages, in order."""
    return [fact for archived in messages if archived.message.role == "user" for fact in _message_facts(archived)]


def _message_facts(archived: ArchivedMessage) -> list[Fact]:
    source = Source(archived.session_id, archived.message.id, archived.position)
    found = dict[tuple[str, str], Fact]()
    for clause in stated_clauses(archived.message):
        if len(found) >= limits.FACTS_PER_MESSAGE_MAX:
            break
        if reads_as_instruction(clause):
            continue
        for kind, about in _clause_facts(clause):
            found.setdefault(
                (clause, about),
                Fact(id="", kind=kind, text=clause, source=source, since_us=archived.time_us, about=about),
            )
    return list(found.values())[: limits.FACTS_PER_MESSAGE_MAX]


def _clause_facts(clause: str) -> Iterator[tuple[FactKind, str]]:
    """Yield kind and subject of each fact in a clause, by the first matching rule or else by evidence."""
    # Cut after normalizing, because one character may become eighteen.
    plain = unicodedata.normalize("NFKC", clause)[: 2 * limits.FACT_CHARS_MAX].replace("’", "'").replace("‘", "'")
    language = _language_of(plain)
    if not language.hint.search(plain):
        return
    unsure = language.unsure.search(plain) is not None
    for rule in language.rules:
        if not (rule.weak and unsure) and (match := rule.pattern.search(plain)):
            yield from ((rule.kind, about) for about in _subjects(rule, match, language))
            return
    if unsure:
        return
    for evidence in language.evidence:
        if evidence.speaker.search(plain) and evidence.thing.search(plain):
            yield evidence.kind, ""
            return


def _language_of(text: str) -> Language:
    return _language("japanese" if _KANA.search(text) else "chinese" if _HAN.search(text) else "english")


def _subjects(rule: Rule, match: re.Match[str], language: Language) -> list[str]:
    about = rule.about
    if about.startswith(TOPIC):
        for topic, words in language.topics:
            if words.search(match.string):
                return [topic]
        about = about.removeprefix(TOPIC)
    groups = {name: value for name, value in match.groupdict().items() if value}
    if "{" not in about:
        return [about]
    name = about[about.index("{") + 1 : about.index("}")]
    values = [groups[name]] if name in groups else list(groups.values())
    if name == "items":
        values = _LIST_SEPARATOR.split(values[0])[: limits.FACTS_PER_MESSAGE_MAX]
    heads = {key: _head_words(value) for key, value in groups.items()}
    return [_fill_subject(about, name, heads, head) for value in values if (head := _head_words(value))]


def _fill_subject(about: str, name: str, heads: dict[str, str], head: str) -> str:
    filled = about.replace(f"{{{name}}}", head)
    for other, value in heads.items():
        filled = filled.replace(f"{{{other}}}", value)
    return clean(filled, limits.FACT_ABOUT_CHARS_MAX)


def _head_words(words: str) -> str:
    """Return the first words of a phrase without articles and adverbs, in the singular."""
    text = " ".join(words.casefold().split()).strip(" .,'\"!?。、")
    before = ""
    while before != text:
        before, text = text, _CJK_AFFIXES.sub("", _EMPTY_WORDS.sub("", text)).strip()
    first = " ".join(
        re.split(r"\b(?:because|since|when|if|that|which|so|for|with|in|on|at|from|but)\b", text)[0].split()[:4]
    )
    plural = len(first) > 3 and first.isascii() and first.endswith("s") and not first.endswith(("ss", "us"))
    return first[:-1] if plural else first
