"""Values of long-term memory and search: histories, facts, profiles, hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from limpet.values.message import Message


class Who(msgspec.Struct, frozen=True):
    """A user of a tenant. Memory and search are always asked for one user."""

    tenant: str
    user_id: str


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A message and its place.

    `position` is its place in the tenant's log and identifies it for ever; `number` counts the messages of its
    session's generation from 1.
    """

    position: int
    session_id: str
    generation: int
    number: int
    time_us: int
    message: Message


class History(msgspec.Struct, frozen=True, kw_only=True):
    """An ended generation of a session, as it is handed to long-term memory.

    `key` is the same each time it is handed over.
    """

    key: str
    who: Who
    session_id: str
    generation: int
    messages: int
    ended_us: int
    title: str | None = None


class Source(msgspec.Struct, frozen=True):
    """The message that a fact comes from, and its place in the tenant's log."""

    session_id: str
    message_id: str
    position: int


class FactKind(StrEnum):
    """The kind of a fact."""

    ENTITY = "entity"
    PREFERENCE = "preference"
    FACT = "fact"


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact about a user, as one sentence, with its source and since when it holds.

    Of two facts with the same subject (`about`; empty if it can't be contradicted) the later one holds; the earlier
    one held until `until_us`.
    """

    id: str
    kind: FactKind
    text: str
    source: Source
    since_us: int
    about: str = ""
    until_us: int | None = None


Extract = Callable[[Sequence[Said]], Sequence[Fact]]
"""Finds what some messages tell of a user. The same messages give facts of the same ids.

Raises Unavailable or Refused if it can't.
"""


class Profile(msgspec.Struct, frozen=True):
    """What is known of a user now, as text within the requested tokens, and the facts in it."""

    text: str
    tokens: int
    facts: tuple[Fact, ...] = ()


class Recalled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result of a memory search: a fact (`kind`), or a message. Results come best first.

    A fact that no longer holds was true until `until_us`.
    """

    text: str
    score: float
    time_us: int
    kind: FactKind | None = None
    source: Source | None = None
    until_us: int | None = None


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A message that an archive search found: its place, and the passage that fits the query.

    `marks` are begin and end of the matches in the excerpt; `time_us` is the message's own time.
    """

    session_id: str
    generation: int
    number: int
    message_id: str
    position: int
    role: str
    time_us: int
    excerpt: str
    score: float
    marks: tuple[tuple[int, int], ...] = ()


class Found(list[Hit]):
    """The results of an archive search, best first.

    `behind` is how many events of the log are not indexed yet.
    """

    behind: int = 0
