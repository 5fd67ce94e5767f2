"""The one door for messages: whatever a caller may hand in becomes a Message.

Providers' dicts are told apart by their shape, SDK objects by what they can do; no SDK is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from holdfast import errors
from holdfast.values.frozen import Json
from holdfast.values.message import Message
from holdfast.wire import anthropic, openai

_LISTS: Final = (list, tuple)
_READ: Final = ("role", "content", "tool_calls", "tool_results")


class SdkMessage(Protocol):
    """A message as an SDK gives it: a pydantic model."""

    def to_dict(self) -> dict[str, Any]: ...


MessageLike = Message | Mapping[str, Any] | SdkMessage


def accept(value: MessageLike) -> Message:
    """Return a message from whatever a caller may hand in.

    That is: a Message; its to_dict(); an OpenAI chat dict; an Anthropic message dict, its blocks as
    dicts or SDK objects; a message or a completion with one choice, as the SDKs of both give it.
    Raises a kind of InvalidMessage.
    """
    if type(value) is not dict:
        if isinstance(value, Message):
            return value if value.openai is None and value.anthropic is None else _agreeing(value)
        if not isinstance(value, Mapping):
            value = _from_sdk(value)
    given = cast("Mapping[str, Json]", value)
    if (
        "tool_results" in given
        or "openai" in given
        or "anthropic" in given
        or ("id" in given and "category" in given)
    ):
        # Only a dict made by Message.to_dict has these.
        return _agreeing(Message.from_dict(given))
    content: Json = given.get("content")
    if isinstance(content, _LISTS):
        return _of_parts(given, cast("Sequence[Json]", content))
    if content is None and "role" not in given and isinstance(given.get("choices"), list):
        return accept(_only_choice(given["choices"]))
    return openai.message(given)


def _of_parts(given: Mapping[str, Json], parts: Sequence[Json]) -> Message:
    if not all(isinstance(part, dict) for part in parts):
        given = {**given, "content": [_plain(part) for part in parts]}
    return anthropic.message(given) if anthropic.is_anthropic(given) else openai.message(given)


def _agreeing(value: Message) -> Message:
    # Only the provider's dict is stored of such a message, so nothing beside it may say otherwise.
    if value.openai is not None:
        provider, read = "openai", openai.message(value.openai)
    elif value.anthropic is not None:
        provider, read = "anthropic", anthropic.message(value.anthropic)
    else:
        return value
    for field in _READ:
        if getattr(read, field) != getattr(value, field):
            raise errors.InvalidMessage(
                f"{field} of the message is not what its {provider} dict says.",
                hint=f"Leave {provider} out, or hand in the dict itself.",
            )
    return value


def _from_sdk(value: object) -> Mapping[str, Json]:
    """Return the dict of an SDK's message, of its choice, or of the only choice of its completion."""
    choices: Json = getattr(value, "choices", None)
    if isinstance(choices, list):
        return _from_sdk(_only_choice(cast("list[Json]", choices)))
    plain = _plain(getattr(value, "message", value))
    if isinstance(plain, dict):
        return cast("dict[str, Json]", plain)
    raise errors.InvalidMessage(
        f"a message is a Message, a dict or an SDK's message, not {type(value).__name__}.",
        hint='For example {"role": "user", "content": "Hello"}.',
    )


def _only_choice(choices: list[Json]) -> Json:
    if len(choices) != 1:
        raise errors.InvalidMessage(
            f"a completion with {len(choices)} choices is not one message.",
            hint="Hand in the one you go on with: completion.choices[i].message.",
        )
    choice = choices[0]
    return choice.get("message") if isinstance(choice, dict) else choice  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - JSON


def _plain(value: Json) -> Json:
    """Return the JSON of an SDK object without what the SDK has computed; anything else as it is."""
    if callable(getattr(value, "to_dict", None)):
        return _without_computed(value.to_dict(mode="json", warnings=False))
    if callable(getattr(value, "model_dump", None)):
        dumped = value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
        return _without_computed(dumped)
    return value


def _without_computed(dumped: Json) -> Json:
    """Drop what an SDK adds to an answer or a block of one: the provider does not take it back."""
    if not isinstance(dumped, dict):
        return dumped
    dumped = cast("dict[str, Json]", dumped)
    for key in ("parsed", "parsed_output"):
        dumped.pop(key, None)
    for block in _dicts(dumped.get("content")):
        block.pop("parsed_output", None)
    for call in _dicts(dumped.get("tool_calls")):
        for function in _dicts([call.get("function")]):
            function.pop("parsed_arguments", None)
    return dumped


def _dicts(values: Json) -> list[dict[str, Json]]:
    listed = cast("list[Json]", values) if isinstance(values, list) else []
    return [cast("dict[str, Json]", value) for value in listed if isinstance(value, dict)]
