"""Stored text is hostile: what a terminal would obey is shown as a symbol instead of being sent."""

from __future__ import annotations

import re
from typing import Final

# Controls (C0, DEL, C1), line and paragraph separators, everything that turns the direction of
# writing, invisible tags and fillers, lone surrogates. Joiners stay: scripts and emoji need them.
_UNSAFE: Final = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
_LINE: Final = re.compile(f"[{_UNSAFE}]")
_TEXT: Final = re.compile(rf"(?!\n)[{_UNSAFE}]")


def line(text: str) -> str:
    """Return the text as one line: every control character a symbol, newline and tab included."""
    return _LINE.sub(_symbol, text)


def lines(text: str) -> str:
    """Return the text with its newlines kept and tabs as spaces, every other control a symbol."""
    return _TEXT.sub(_symbol, text.replace("\r\n", "\n").expandtabs(4))


def json_text(document: str) -> str:
    """Return a JSON document with unsafe characters inside its strings written as escapes."""
    return _TEXT.sub(_escape, document)


def _symbol(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{{{code:x}}}"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
