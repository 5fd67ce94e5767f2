"""What goes over HTTP between Limpet and a memory engine: JSON, described in docs/reference/memory-http.md.

Answers come from somebody else's program. Types, lengths and signs are checked when they are read, fields
that nobody knows are passed over, and text is made clean before it is used.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from limpet import errors, limits
from limpet.core.values.json_values import Json
from limpet.core.values.memory_records import (
    Fact,
    FactKind,
    History,
    Profile,
    Recalled,
    Said,
    Source,
    Who,
)
from limpet.core.values.messages import Message
from limpet.memory.facts import guard

Name = Annotated[str, Meta(min_length=1, max_length=limits.ID_BYTES_MAX)]
Text = Annotated[str, Meta(max_length=limits.MEMORY_ANSWER_BYTES_MAX)]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
T = TypeVar("T")


class SaidJson(msgspec.Struct, frozen=True):
    """A message and where it was said."""

    position: Whole
    session_id: Name
    generation: Whole
    number: Whole
    time_us: Whole
    message: dict[str, Json]


class IngestJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a conversation; the last one commits it."""

    history: History
    attempt: Name
    chunk: Annotated[int, Meta(ge=1)]
    said: tuple[SaidJson, ...] = ()
    commit: bool = False


class ProfileJson(msgspec.Struct, frozen=True):
    """A question for a profile."""

    who: Who
    budget: Whole


class SearchJson(msgspec.Struct, frozen=True):
    """A question for what fits a query."""

    who: Who
    query: Text
    k: Annotated[int, Meta(ge=1, le=limits.MEMORY_RESULTS_MAX)]


class FactsJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question for a page of facts."""

    who: Who
    after: str | None = None


class ForgetJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to be forgotten."""

    who: Who
    session_id: Name | None = None
    position: Whole | None = None


class Taken(msgspec.Struct, frozen=True):
    """How far a conversation is: `taking`, or `kept`."""

    state: str


class SourceJson(msgspec.Struct, frozen=True):
    """Who said so."""

    session_id: Name
    message_id: Name
    position: Whole


class FactJson(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A fact."""

    id: Name
    kind: FactKind
    text: Text
    source: SourceJson
    since_us: Whole
    about: Text = ""
    until_us: Whole | None = None


class ProfileAnswer(msgspec.Struct, frozen=True):
    """What is known of a user now."""

    text: Text
    tokens: Whole
    facts: tuple[FactJson, ...] = ()


class RecalledJson(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something found."""

    text: Text
    score: float
    time_us: Whole
    kind: FactKind | None = None
    source: SourceJson | None = None
    until_us: Whole | None = None


class SearchAnswer(msgspec.Struct, frozen=True):
    """What was found, the best first."""

    results: tuple[RecalledJson, ...]


class FactsAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of facts, the newest first; `next` asks for the one after it."""

    facts: tuple[FactJson, ...]
    next: str | None = None


class ForgetAnswer(msgspec.Struct, frozen=True):
    """How much was forgotten."""

    forgotten: Whole


class Problem(msgspec.Struct, frozen=True):
    """Why a request was not served."""

    code: str
    message: str


def sent(said: Said) -> SaidJson:
    """Return a message as it is sent: without what only its provider understands."""
    whole = said.message.to_dict()
    dropped = ("openai", "anthropic", "tokens", "category")
    message = {name: value for name, value in whole.items() if name not in dropped and value}
    return SaidJson(
        said.position, said.session_id, said.generation, said.number, said.time_us, message
    )


def received(said: SaidJson) -> Said:
    """Return a message as it was sent. Raises a kind of InvalidMessage."""
    return Said(
        position=said.position,
        session_id=said.session_id,
        generation=said.generation,
        number=said.number,
        time_us=said.time_us,
        message=Message.from_dict(said.message),
    )


def decoded(body: bytes, kind: type[T]) -> T:
    """Return what a body says; raise InvalidRequest if it is not of that kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.InvalidRequest("the body is not what the schema asks for.") from error


def fact(given: FactJson) -> Fact:
    """Return a fact, its texts clean."""
    return Fact(
        id=guard.clean(given.id),
        kind=given.kind,
        text=guard.clean(given.text, limits.MEMORY_TEXT_CHARS_MAX),
        source=_source(given.source),
        since_us=given.since_us,
        about=guard.clean(given.about, limits.FACT_ABOUT_CHARS_MAX),
        until_us=given.until_us,
    )


def recalled(given: RecalledJson) -> Recalled:
    """Return something found, its text clean."""
    return Recalled(
        text=guard.clean(given.text, limits.MEMORY_TEXT_CHARS_MAX),
        score=given.score,
        time_us=given.time_us,
        kind=given.kind,
        source=_source(given.source) if given.source else None,
        until_us=given.until_us,
    )


def profile(given: ProfileAnswer) -> Profile:
    """Return a profile, line by line clean, without lines that tell a model what to do."""
    lines = (guard.clean(line, limits.MEMORY_TEXT_CHARS_MAX) for line in given.text.splitlines())
    text = "\n".join(line for line in lines if line and not guard.reads_as_order(line))
    facts = (fact(each) for each in given.facts[: limits.PROFILE_FACTS_MAX])
    return Profile(text, given.tokens, tuple(each for each in facts if each.until_us is None))


def _source(given: SourceJson) -> Source:
    return Source(guard.clean(given.session_id), guard.clean(given.message_id), given.position)
