"""JSON that other programs wrote: read if it can be kept, else told why not, in words about the file."""

from __future__ import annotations

import codecs
import json
import re
from typing import Final

import msgspec

from limpet.core.values.json_values import Json

_ESCAPES: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class Unreadable(ValueError):
    """It is no JSON that can be kept; the text says why, as the end of a sentence."""


def decoded(data: bytes) -> Json:
    """Return the value of some JSON, with or without a byte order mark; raise Unreadable if there is none."""
    text = data.removeprefix(codecs.BOM_UTF8)
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(_why(text, error)) from error


def shape(data: bytes) -> Json:
    """Return about what some JSON says, even if its text can't be kept; None if it is no JSON."""
    try:
        return json.loads(data.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None


def _why(text: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is not JSON: nested too deep"
    try:
        text.decode()
    except UnicodeDecodeError as wrong:
        return f"is not UTF-8 text: byte {wrong.start:,} is 0x{text[wrong.start]:02x}"
    half = _half_a_pair(text)
    if half is not None:
        return f"has half of a character, \\u{half}, which no encoding can carry"
    return f"is not JSON: {error}"


def _half_a_pair(text: bytes) -> str | None:
    """Return the first escaped surrogate that has no other beside it."""
    high, end = "", -1
    for found in _ESCAPES.finditer(text):
        code = (found[1] or b"").decode().lower()
        low = code[:2] in ("dc", "dd", "de", "df")
        if high and not (low and found.start() == end):
            return high
        if low and not high:
            return code
        high, end = (code, found.end()) if code[:2] in ("d8", "d9", "da", "db") else ("", -1)
    return high or None
