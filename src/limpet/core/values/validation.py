"""Validation of JSON values and of the arguments of public calls.

`freeze` returns an immutable copy of a value, `thaw` a plain copy. A frozen container equals the plain list or dict with
the same content, and has the same encoding.

Each `checked_…` returns its argument and raises InvalidRequest for any other value, or the error that it names. `what`
names the argument in the error text. Error texts show numbers, True, False and None; of any other value they show the
type only, because it may be a secret or a whole conversation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec

from limpet import errors, limits

Json = Any
"""Any JSON value, typed as Any: the only place where the type checker is switched off."""


def _refuse_mutation(*_: object, **__: object) -> NoReturn:
    raise TypeError("this value is immutable; make a changed copy with dict(…) or list(…)")


class FrozenDict(dict[str, Json]):
    """An immutable dict."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse_mutation
    clear = pop = popitem = setdefault = update = _refuse_mutation

    def __reduce__(self) -> tuple[object, ...]:
        return freeze, (dict(self),)


class FrozenList(list[Json]):
    """An immutable list."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_mutation
    append = clear = extend = insert = pop = _refuse_mutation
    remove = reverse = sort = _refuse_mutation

    def __reduce__(self) -> tuple[object, ...]:
        return freeze, (list(self),)


EMPTY: Mapping[str, Json] = FrozenDict()


def freeze(value: Json, depth: int = 0) -> Json:
    """Return an immutable copy of a JSON value; tuples become lists. The input is not changed.

    Raises NotJson for a value that JSON can't express (NaN, Infinity, bytes, sets, keys that are not text),
    BadEncoding for text with lone surrogates, TooDeep beyond limits.DEPTH_MAX.
    """
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is str:
        return value if value.isascii() else checked_text(value)
    if kind is dict and depth < limits.DEPTH_MAX:
        return _freeze_mapping(value, depth + 1)
    if kind is list and depth < limits.DEPTH_MAX:
        return FrozenList([freeze(item, depth + 1) for item in value])
    if value is None or kind is bool:
        return value
    if isinstance(value, int):
        return _checked_int(value)
    if depth == 0 and (type(value) is FrozenDict or type(value) is FrozenList):
        return value
    if isinstance(value, str):
        return checked_text(value)
    if isinstance(value, float):
        return _checked_float(value)
    return _freeze_container(value, depth)


def _freeze_container(value: Json, depth: int) -> Json:
    if depth >= limits.DEPTH_MAX:
        raise errors.TooDeep(
            f"the value is nested deeper than {limits.DEPTH_MAX} levels.",
            hint="Flatten it, or store it as text.",
            facts={"depth_max": limits.DEPTH_MAX},
        )
    if isinstance(value, (dict, Mapping)):
        return _freeze_mapping(cast("Mapping[str, Json]", value), depth + 1)
    if isinstance(value, (list, tuple)):
        return FrozenList(freeze(item, depth + 1) for item in cast("list[Json]", value))
    raise errors.NotJson(
        f"a value of type {type(value).__name__} is not JSON.",
        hint="Use dict, list, str, int, finite float, bool or None.",
        facts={"type": type(value).__name__},
    )


def _freeze_mapping(value: Mapping[str, Json], depth: int) -> FrozenDict:
    made = FrozenDict(value)
    changed: dict[str, Json] = {}
    for key, item in made.items():
        if type(key) is not str or not key.isascii():
            return FrozenDict({_checked_key(key): freeze(item, depth) for key, item in made.items()})
        kind = type(item)  # pyright: ignore[reportUnknownVariableType]
        if (kind is str and item.isascii()) or item is None or kind is bool:
            continue
        frozen = freeze(item, depth)
        if frozen is not item:
            changed[key] = frozen
    if changed:
        # The new dict is not shared yet.
        dict[str, Json].update(made, changed)
    return made


def _checked_float(value: float) -> float:
    if not math.isfinite(value):
        raise errors.NotJson(f"{value} is not JSON.", hint="Use None or text for it.")
    return value if type(value) is float else float.__float__(value)


def _checked_int(value: int) -> int:
    if value.bit_length() > limits.NUMBER_BITS_MAX:
        raise errors.NotJson(
            f"a number of {value.bit_length():,} bits is not kept; at most {limits.NUMBER_BITS_MAX:,} are.",
            hint="Store it as text.",
            facts={"bits": value.bit_length(), "bits_max": limits.NUMBER_BITS_MAX},
        )
    return value if type(value) is int else int.__int__(value)


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise errors.NotJson(
            f"an object's keys must be text, not {type(key).__name__}.", facts={"type": type(key).__name__}
        )
    return checked_text(key)


def checked_text(text: str) -> str:
    """Return the text as a plain str; raise BadEncoding if UTF-8 can't encode it."""
    plain = text if type(text) is str else str.__str__(text)
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError as error:
            raise errors.BadEncoding(facts={"index": error.start}) from error
    return plain


def json_text(value: Json) -> str:
    """Return a JSON value as compact text."""
    return msgspec.json.encode(value).decode()


def text_or_json(value: Json) -> str:
    """Return a str unchanged, and any other JSON value as compact text."""
    return value if isinstance(value, str) else json_text(value)


def freeze_object(what: str, value: Json) -> Mapping[str, Json]:
    """Return an immutable copy of an object; raise NotJson for any other value."""
    if type(value) is FrozenDict:
        return value
    if type(value) is not dict and not isinstance(value, Mapping):
        raise errors.NotJson(
            f"{what} must be an object, not {type(value).__name__}.",
            hint="Pass a dict with text keys.",
            facts={"type": type(value).__name__},
        )
    return freeze(value)


def thaw(value: Json) -> Json:
    """Return a plain, mutable copy."""
    if isinstance(value, dict):
        items = cast("dict[str, Json]", value).items()
        return {key: thaw(item) for key, item in items}
    if isinstance(value, list):
        return [thaw(item) for item in cast("list[Json]", value)]
    return value


_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")

_INVISIBLE_CHARACTERS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
"""Control, separator and invisible characters: a fixed list, independent of the Unicode version of Python."""

_ID_MAX: Final = limits.ID_BYTES_MAX


def shown(value: object) -> str:
    """Return a refused argument in a form that is safe in an error text."""
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


def checked_token_count(what: str, value: int) -> int:
    """Return a number of tokens; raise InvalidRequest if it is not one."""
    return checked_int(what, value, 0, limits.TOKENS_MAX, unit="a number of tokens")


def checked_limit(value: Any, most: int = limits.PAGE_SIZE_MAX, *, what: str = "limit") -> int:
    """Return a number of rows from 1 to `most`."""
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
    """Return a text as a plain str; raise TooLarge past `bytes_max`, BadEncoding for lone surrogates."""
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
    """Return the member of an enumeration for a member or a value."""
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(str(member.value) for member in kind)
        raise errors.InvalidRequest(f"{what} is one of {names}, not {_shown_word(value)}.") from None


def _shown_word(value: object) -> str:
    # A misspelled choice is short; a longer text may be a secret.
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
