"""Checks of the arguments of public calls.

Each check returns its argument and raises InvalidRequest for any other value, or the error that it
names. `what` names the argument in the error text. Error texts show numbers, True, False and None; of any
other value they show the type only, because it may be a secret or a whole conversation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, TypeVar, cast

from limpet import errors, limits
from limpet.core.values.json_values import checked_text

_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")

_INVISIBLE_CHARACTERS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
"""Control, separator and invisible characters: a fixed list, independent of the Unicode version of Python."""

_ID_MAX: Final = limits.ID_BYTES_MAX


def shown(value: object) -> str:
    """Return a short form of a refused argument that is safe in an error text."""
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int) and value.bit_length() <= limits.NUMBER_BITS_MAX:
        return f"{value:,}"
    return f"a value of type {type(value).__name__}"


def checked_int(
    what: str, value: Any, least: int = 0, most: int | None = None, *, unit: str = "a whole number", hint: str = ""
) -> int:
    """Return a whole number from `least` to `most`; True and False are not numbers."""
    if type(value) is int and value >= least and (most is None or value <= most):
        return value
    bounds = f", {least:,} or more" if most is None else f" from {least:,} to {most:,}"
    raise errors.InvalidRequest(f"{what} is {unit}{bounds}, not {shown(value)}.", hint=hint)


def checked_limit(value: Any, most: int = limits.PAGE_SIZE_MAX, *, what: str = "limit") -> int:
    """Return the largest number of rows of a page."""
    return checked_int(what, value, 1, most, unit="a number of rows")


def checked_number(
    what: str,
    value: Any,
    *,
    above: float | None = None,
    least: float = 0,
    most: float | None = None,
    unit: str = "a number",
    hint: str = "",
) -> float:
    """Return a finite number in a range; `above` excludes the lower bound itself."""
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (value >= least if above is None else value > above)
        and (value < math.inf if most is None else value <= most)
    ):
        return value
    lower = f"{least:,g} or more" if above is None else f"above {above:,g}"
    upper = "" if most is None else f", at most {most:,g}"
    raise errors.InvalidRequest(f"{what} is {unit}, {lower}{upper}, not {shown(value)}.", hint=hint)


def checked_bool(what: str, value: Any) -> bool:
    """Return True or False; no other value counts as either."""
    if type(value) is bool:
        return value
    raise errors.InvalidRequest(f"{what} is True or False, not {shown(value)}.")


def checked_str(what: str, value: Any, bytes_max: int | None = None, *, not_blank: bool = False, hint: str = "") -> str:
    """Return a text as a plain str; raise TooLarge past `bytes_max`, BadEncoding for lone surrogates.

    With `not_blank`, a text of white space only is refused.
    """
    if not isinstance(value, str):
        raise errors.InvalidRequest(f"{what} is text, not {shown(value)}.", hint=hint)
    text = checked_text(value)
    if not_blank and not text.strip():
        raise errors.InvalidRequest(f"{what} is text that is not empty.", hint=hint)
    if bytes_max is not None:
        check_size(what, len(text) if text.isascii() else len(text.encode()), bytes_max, hint=hint)
    return text


def check_size(what: str, size: int, bytes_max: int, *, hint: str = "") -> None:
    """Raise TooLarge for more than `bytes_max` bytes."""
    if size > bytes_max:
        raise errors.TooLarge(
            f"{what} has {size:,} bytes; at most {bytes_max:,} are stored.",
            hint=hint,
            facts={"bytes": size, "bytes_max": bytes_max},
        )


def checked_instance(what: str, value: Any, kind: type[_T], *, hint: str = "") -> _T:
    """Return a value of that type."""
    if isinstance(value, kind):
        return value
    raise errors.InvalidRequest(f"{what} is a {kind.__name__}, not {type(value).__name__}.", hint=hint)


def checked_choice(what: str, value: Any, choices: Iterable[_T], *, hint: str = "") -> _T:
    """Return one of the choices."""
    known = tuple(choices)
    for choice in known:
        if type(value) is type(choice) and value == choice:
            return choice
    names = ", ".join(map(repr, known))
    raise errors.InvalidRequest(f"{what} is one of {names}, not {_shown_word(value)}.", hint=hint)


def enum_member(what: str, kind: type[_E], value: Any) -> _E:
    """Return a member of an enumeration, given itself or its value."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(str(member.value) for member in kind)
        raise errors.InvalidRequest(f"{what} is one of {names}, not {_shown_word(value)}.") from None


def _shown_word(value: object) -> str:
    # A misspelled choice is short and no secret.
    return repr(value) if isinstance(value, str) and len(value) <= 40 else shown(value)


def checked_id(what: str, value: str) -> str:
    """Return the id; raise InvalidRequest unless it is text of 1 to limits.ID_BYTES_MAX bytes without control characters."""
    if type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= _ID_MAX:
        return value
    if not isinstance(cast("object", value), str):
        raise errors.InvalidRequest(f"{what} must be text, not {type(value).__name__}.")
    text = checked_text(value)
    if text.isascii():
        size, visible = len(text), text.isprintable()
    else:
        size, visible = len(text.encode()), not _INVISIBLE_CHARACTERS.search(text)
    if not 0 < size <= limits.ID_BYTES_MAX:
        raise errors.InvalidRequest(
            f"{what} has {size:,} bytes; it must have 1 to {limits.ID_BYTES_MAX}.",
            facts={"bytes": size, "bytes_max": limits.ID_BYTES_MAX},
        )
    if not visible:
        raise errors.InvalidRequest(f"{what} must not have control or invisible characters.")
    return text
