"""Sanitizes text of unknown origin, and detects secrets and instructions to a model.

A fact is shown to models in later sessions. So it is one line of visible characters, of bounded
length, and never reads as an instruction.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from limpet import limits

_INVISIBLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)
"""Controls, marks of direction and whatever else an eye can't see: orders have been hidden in them."""

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
"""What opens something, or pays for it: whoever says it once does not want it in every prompt."""


def is_secret(text: str) -> bool:
    """Return whether text tells a password, a PIN, a card or an account."""
    return _SECRETS.search(unicodedata.normalize("NFKC", text)) is not None


def clean(text: str, chars_max: int = limits.FACT_CHARS_MAX) -> str:
    """Return text as one line of visible characters, cut to a length."""
    seen = _INVISIBLE.sub(" ", text[: chars_max * 4])
    whole = "".join(c for c in seen if not 0xD800 <= ord(c) <= 0xDFFF)
    return " ".join(whole.split())[:chars_max].strip()


def reads_as_instruction(text: str) -> bool:
    """Return whether text, as a model would read it, tells the model what to do or who it is."""
    plain = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).replace("’", "'")
    return _INSTRUCTIONS.search(" ".join(plain.split())) is not None
