"""Driver errors as Limpet errors: the entries of the error tables of the server backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from limpet import errors

RETRY_HINT: Final = errors.RETRY_HINT


class ErrorCase:
    """An error class, the message's text about the server, and the hint."""

    __slots__ = ("hint", "kind", "what")

    def __init__(self, kind: type[errors.Error], what: str, hint: str) -> None:
        self.kind = kind
        self.what = what
        self.hint = hint


def error_text(error: Exception) -> str:
    """Return the text of a client library's error in one line."""
    return " ".join(str(error).split())


def to_error(
    case: ErrorCase | None, shown: str, text: str, facts: Mapping[str, object], hint: str = ""
) -> errors.Error:
    """Return the error for a server's error text. Without a case it is Unavailable. `hint` replaces the case's."""
    text = text.rstrip(".")
    detail = text if text.endswith(("?", "!")) else f"{text}."
    if case is None:
        return errors.Unavailable(f"{shown} could not do it: {detail}", hint=RETRY_HINT, facts=facts)
    return case.kind(f"{shown} {case.what}: {detail}", hint=hint or case.hint, facts=facts)
