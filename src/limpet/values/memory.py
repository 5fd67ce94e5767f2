"""What is remembered beyond a session: who said what where, what is known of a user, and what a search finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from limpet.values.message import Message


class Who(msgspec.Struct, frozen=True):
    """A user of a tenant: whose words, whose memory. Nothing is ever looked up without one."""

    tenant: str
    user_id: str


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A message and where it was said.

    `position` is its place in the tenant's log, and names it for ever; `number` counts the messages of
    its session's generation from 1.
    """

    position: int
    session_id: str
    generation: int
    number: int
    time_us: int
    message: Message


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that ended: a session's generation, as it is handed to long-term memory.

    `key` is the same whenever it is handed over again.
    """

    key: str
    who: Who
    session_id: str
    generation: int
    messages: int
    ended_us: int
    title: str | None = None


class Source(msgspec.Struct, frozen=True):
    """Who said so: the message, and its place in the tenant's log."""

    session_id: str
    message_id: str
    position: int


class FactKind(StrEnum):
    """What kind of thing is known."""

    ENTITY = "entity"
    PREFERENCE = "preference"
    FACT = "fact"


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something known of a user, as one sentence, with who said so and since when.

    Of two facts about the same thing (`about`, empty if it can't be contradicted) the later one holds;
    the earlier one was true until then (`until_us`).
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
    """What is known of a user now, as text of at most as many tokens as were asked for, and from which facts."""

    text: str
    tokens: int
    facts: tuple[Fact, ...] = ()


class Recalled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that memory has found, the best first: a fact (`kind`), or what was said in a message.

    A fact that no longer holds was true until `until_us`.
    """

    text: str
    score: float
    time_us: int
    kind: FactKind | None = None
    source: Source | None = None
    until_us: int | None = None


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a search of the archive found: where it stands, and the part that fits the query.

    `marks` are begin and end, in the excerpt, of what was asked for; `time_us` is the message's own time.
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
    """What a search of the archive found, the best first.

    `behind` is how many events of the log were not searched, since a worker has still to take them in.
    """

    behind: int = 0
