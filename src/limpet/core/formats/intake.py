"""Conversion of message-like values to a Message.

Providers' dicts are recognised by their shape, SDK objects by their methods. No SDK is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from limpet import errors
from limpet.core.formats import anthropic, openai
from limpet.core.values.messages import Message
from limpet.core.values.validation import Json

_LIST_TYPES: Final = (list, tuple)
_COMPARED_FIELDS: Final = ("role", "content", "tool_calls", "tool_results")
_DUMP_METHODS: Final[tuple[tuple[str, Mapping[str, Json]], ...]] = (
    ("to_dict", {"mode": "json", "warnings": False}),
    ("model_dump", {"mode": "json", "by_alias": True, "exclude_unset": True, "warnings": False}),
)
_FOREIGN_ERRORS: Final = (
    ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""Errors that a foreign object may raise while it is read. RecursionError is a RuntimeError."""


class SdkMessage(Protocol):
    """A message of a provider's SDK: a pydantic model."""

    def to_dict(self) -> dict[str, Any]: ...


MessageLike = Message | Mapping[str, Any] | SdkMessage


def accept(value: MessageLike) -> Message:
    """Return the Message of a message-like value; raise a kind of InvalidMessage for any other value.

    Message-like are a Message, its to_dict(), an OpenAI chat dict, an Anthropic message dict with blocks as dicts or SDK
    objects, and a message or a completion with one choice of either SDK.
    """
    if type(value) is not dict and isinstance(value, Message):
        return value if value.openai is None and value.anthropic is None else _checked_against_provider(value)
    given = _message_fields(cast("object", value))
    if "tool_results" in given or "openai" in given or "anthropic" in given or ("id" in given and "category" in given):
        # Only a dict made by Message.to_dict has these.
        return _checked_against_provider(Message.from_dict(given))
    content: Json = given.get("content")
    if isinstance(content, _LIST_TYPES):
        return _message_of_parts(given, cast("Sequence[Json]", content))
    return openai.parse_message(given)


def _message_fields(value: object) -> Mapping[str, Json]:
    """Return the dict of a message, of a choice's message, or of the message in a completion's only choice."""
    inner: Json = value
    if type(inner) is dict and "role" in inner:
        return cast("dict[str, Json]", inner)
    if (choices := _choices(cast("object", inner))) is not None:
        inner = _only_choice(choices)
        if isinstance(inner, dict):
            inner = cast("dict[str, Json]", inner).get("message")
    if isinstance(inner, Mapping):
        given = cast("Mapping[str, Json]", inner)
        return _call_foreign(lambda: dict(given))
    plain = _dump_to_json(_attribute(inner, "message", inner))
    if isinstance(plain, dict):
        return cast("dict[str, Json]", plain)
    raise errors.InvalidMessage(
        f"a message is a Message, a dict or an SDK's message, not {type(inner).__name__}.",
        hint='For example {"role": "user", "content": "Hello"}.',
    )


def _choices(value: object) -> list[Json] | None:
    """Return the choices of a completion (dict or SDK object); None for any other value."""
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Json]", value)
        # A message has a role; a completion has none.
        if "choices" not in given or "role" in given or given.get("content") is not None:
            return None
        choices: Json = given["choices"]
    else:
        choices = _attribute(value, "choices", None)
    return cast("list[Json]", choices) if isinstance(choices, list) else None


def _message_of_parts(given: Mapping[str, Json], parts: Sequence[Json]) -> Message:
    if not all(isinstance(part, dict) for part in parts):
        given = {**given, "content": [_dump_to_json(part) for part in parts]}
    return anthropic.parse_message(given) if anthropic.is_anthropic(given) else openai.parse_message(given)


def _checked_against_provider(value: Message) -> Message:
    # Only the provider's dict of such a message is stored, so the other fields must agree with it.
    if value.openai is not None:
        provider, read = "openai", openai.parse_message(value.openai)
    elif value.anthropic is not None:
        provider, read = "anthropic", anthropic.parse_message(value.anthropic)
    else:
        return value
    for field in _COMPARED_FIELDS:
        if getattr(read, field) != getattr(value, field):
            raise errors.InvalidMessage(
                f"{field} of the message is not what its {provider} dict says.",
                hint=f"Leave {provider} out, or hand in the dict itself.",
            )
    return value


def _only_choice(choices: list[Json]) -> Json:
    if len(choices) != 1:
        raise errors.InvalidMessage(
            f"a completion with {len(choices)} choices is not one message.",
            hint="Hand in the one you go on with: completion.choices[i].message.",
        )
    return choices[0]


def _call_foreign(read: Callable[[], Json]) -> Json:
    """Return the result of reading a foreign object; raise InvalidMessage if reading fails."""
    try:
        return read()
    except _FOREIGN_ERRORS as error:
        raise errors.InvalidMessage(
            f"an object that should be a message gave {type(error).__name__} when it was read.",
            hint="Hand in its dict: what the provider's API takes or gave.",
        ) from error


def _attribute(value: object, name: str, otherwise: Json) -> Json:
    return _call_foreign(lambda: getattr(value, name, otherwise))


def _dump_to_json(value: Json) -> Json:
    """Return an SDK object as JSON without fields that the SDK computed; any other value unchanged."""
    for name, options in _DUMP_METHODS:
        dump = _attribute(value, name, None)
        if callable(dump):
            return _without_computed(_call_foreign(lambda: _call_dump(dump, options)))  # noqa: B023 - called here
    return value


def _call_dump(dump: Callable[..., Json], options: Mapping[str, Json]) -> Json:
    try:
        return dump(**options)
    except TypeError:
        # Another class with a method of the same name that takes no options.
        return dump()


def _without_computed(dumped: Json) -> Json:
    """Return a dump without the fields that an SDK adds to an answer: the provider refuses them."""
    if not isinstance(dumped, dict):
        return dumped
    kept = _without_keys(cast("dict[str, Json]", dumped), "parsed", "parsed_output")
    if isinstance(content := kept.get("content"), list):
        blocks = cast("list[Json]", content)
        kept["content"] = [_without_keys(block, "parsed_output") for block in blocks]
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call_without_computed(call) for call in cast("list[Json]", calls)]
    return kept


def _call_without_computed(call: Json) -> Json:
    if not isinstance(call, dict):
        return call
    kept = cast("dict[str, Json]", call)
    return {key: _without_keys(item, "parsed_arguments") if key == "function" else item for key, item in kept.items()}


def _without_keys(value: Json, *names: str) -> Json:
    """Return a copy of a dict without some fields; the original may belong to the SDK object."""
    if not isinstance(value, dict):
        return value
    return {key: item for key, item in cast("dict[str, Json]", value).items() if key not in names}
