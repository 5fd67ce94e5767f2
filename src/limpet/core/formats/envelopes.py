"""Envelopes: the fields stored beside a provider's dict, and the message built from both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from limpet.core.values.json_values import EMPTY, Json, freeze
from limpet.core.values.messages import CATEGORY_OF_ROLE, Message, ToolCallRequest, ToolCallResult, category_named

_COPIED_FIELDS: Final = frozenset({"timestamp", "metadata", "tokens", "origin"})
_ENVELOPE_FIELDS: Final = _COPIED_FIELDS | {"id", "category", "openai", "anthropic"}


class ParsedMessage(NamedTuple):
    """What was read from a provider's dict."""

    role: str
    content: Json
    calls: tuple[ToolCallRequest, ...]
    results: tuple[ToolCallResult, ...]


def build_message(
    read: ParsedMessage,
    envelope: Mapping[str, Json],
    *,
    openai: Mapping[str, Json] | None = None,
    anthropic: Mapping[str, Json] | None = None,
) -> Message:
    """Return the message of a provider's dict and its envelope; the envelope's id goes before the dict's."""
    kept = openai or anthropic or EMPTY
    given = envelope.get("id") or kept.get("id")
    named = envelope.get("category")
    return Message(
        read.role,
        read.content,
        category_named(named) if named else CATEGORY_OF_ROLE[read.role],
        given if isinstance(given, str) else "",
        tool_calls=read.calls,
        tool_results=read.results,
        openai=openai,
        anthropic=anthropic,
        **(_message_fields(envelope) if envelope else EMPTY),
    )


def _message_fields(envelope: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the fields that an envelope holds beside the dict; those it does not know are extra."""
    known = {key: envelope[key] for key in _COPIED_FIELDS if key in envelope}
    known["extra"] = freeze({key: envelope[key] for key in envelope if key not in _ENVELOPE_FIELDS})
    return known
