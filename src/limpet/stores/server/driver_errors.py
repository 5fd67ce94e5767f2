"""Driver errors as Limpet errors: the entries of the error tables of the server backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from limpet import errors

RETRY_HINT: Final = errors.RETRY_HINT


class ErrorCase:
    """An error of ours, what is said of the server, and the fix."""

    __slots__ = ("hint", "kind", "what")

    def __init__(self, kind: type[errors.Error], what: str, hint: str) -> None:
        self.kind = kind
        self.what = what
        self.hint = hint


def error_text(error: Exception) -> str:
    """Return what a driver's error says, in one line."""
    return " ".join(str(error).split())


def to_error(
    case: ErrorCase | None, shown: str, text: str, facts: Mapping[str, object], hint: str = ""
) -> errors.Error:
    """Return our error for what a server said; without a case it is Unavailable. `hint` is in the place of the case's."""
    text = text.rstrip(".")
    told = text if text.endswith(("?", "!")) else f"{text}."
    if case is None:
        return errors.Unavailable(f"{shown} could not do it: {told}", hint=RETRY_HINT, facts=facts)
    return case.kind(f"{shown} {case.what}: {told}", hint=hint or case.hint, facts=facts)
