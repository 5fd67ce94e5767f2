"""JSON values: validated on entry and immutable afterwards.

`freeze` returns an immutable copy, `thaw` a plain one. Frozen containers are equal to the plain
list or dict of the same content, and are encoded like it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn, cast

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
        # Nobody has seen it yet.
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
