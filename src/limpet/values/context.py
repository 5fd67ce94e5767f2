"""What goes into a model's context and what becomes of it: priorities, levels, and the account of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from limpet.values.frozen import Json
from limpet.values.message import MessageCategory


class ContextPriority(IntEnum):
    """How much an item is needed. Critical items are never altered and never left out."""

    CRITICAL = 100
    HIGH = 75
    MEDIUM = 50
    LOW = 25
    BACKGROUND = 10

    def score(self) -> int:
        """Return its number: the higher, the more it is needed."""
        return int(self)

    @property
    def label(self) -> str:
        """Its name as it is written out: critical, high, medium, low, background."""
        return self.name.lower()


PRIORITY_OF_CATEGORY: Final = {
    MessageCategory.SYSTEM: ContextPriority.CRITICAL,
    MessageCategory.CONTEXT: ContextPriority.HIGH,
    MessageCategory.DIALOG: ContextPriority.MEDIUM,
    MessageCategory.SYSTEM_OUTPUT: ContextPriority.LOW,
}


def standing(metadata: Mapping[str, Json]) -> tuple[ContextPriority, str] | None:
    """Return the priority that a message carries itself, and why: `pinned`, or `priority` by its name.

    Metadata is the caller's own: whatever else it says there is left alone.
    """
    if metadata.get("pinned") is True:
        return ContextPriority.CRITICAL, "pinned"
    name = metadata.get("priority")
    if isinstance(name, str) and name.upper() in ContextPriority.__members__:
        return ContextPriority[name.upper()], f"priority {name.lower()}"
    return None


def stands_out(metadata: Mapping[str, Json]) -> bool:
    """Whether a message has to be looked at however old it is."""
    chosen = standing(metadata)
    return chosen is not None and chosen[0] >= ContextPriority.HIGH


class CompactionLevel(IntEnum):
    """How far a context is compacted; each level does what those before it do, and more.

    Light shortens long texts, moderate puts a summary in the place of what is older than the newest
    messages, aggressive leaves out low priorities, critical keeps critical items alone.
    """

    NONE = 0
    LIGHT = 1
    MODERATE = 2
    AGGRESSIVE = 3
    CRITICAL = 4

    @property
    def label(self) -> str:
        """Its name as it is written out: none, light, moderate, aggressive, critical."""
        return self.name.lower()


class Fate(StrEnum):
    """What became of a message."""

    KEPT = "kept"
    SHORTENED = "shortened"
    SUMMARISED = "summarised"
    LEFT_OUT = "left out"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One line of a ledger: messages of the conversation by their numbers, from 1, and what became of them.

    `tokens` is their size in the conversation, `used` what they take in the context, `rule` why.
    """

    first: int
    last: int
    fate: Fate
    tokens: int
    used: int
    rule: str
    category: MessageCategory | None = None

    @property
    def count(self) -> int:
        """How many messages it stands for."""
        return self.last - self.first + 1


class Selection(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a window was made of, so that it can be made again without deciding anything anew.

    `parts` are, in order, [first, last] for messages as they are, by their numbers, or a message's dict
    where it was altered or made (a summary). Numbers count from `began`, the ordinal before the first
    message of the session's generation. `digest` is that of the whole window.
    """

    session_id: str
    version: int
    began: int
    budget: int
    tokens: int
    overhead: int
    counter: str
    exact: bool
    level: CompactionLevel
    parts: tuple[tuple[int, int] | Mapping[str, Json], ...]
    sizes: tuple[int, ...]
    digest: str


class Ledger(msgspec.Struct, frozen=True):
    """The account of a context: every message of the conversation is in exactly one entry, in order."""

    entries: tuple[Entry, ...]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def used(self) -> int:
        """Tokens that the conversation's messages take."""
        return sum(entry.used for entry in self.entries)

    def messages(self, fate: Fate | None = None) -> int:
        """How many messages there are, or how many had this fate."""
        return sum(e.count for e in self.entries if fate is None or e.fate is fate)

    def tokens(self, fate: Fate | None = None) -> int:
        """How large they are in the conversation, or those with this fate."""
        return sum(e.tokens for e in self.entries if fate is None or e.fate is fate)

    def left_out(self) -> dict[str, tuple[int, int]]:
        """Return how many messages were left out by each rule, and their tokens."""
        reasons: dict[str, tuple[int, int]] = {}
        for entry in self.entries:
            if entry.fate is Fate.LEFT_OUT:
                messages, size = reasons.get(entry.rule, (0, 0))
                reasons[entry.rule] = (messages + entry.count, size + entry.tokens)
        return reasons

    def of(self, number: int) -> Entry | None:
        """Return the entry of one message by its number; None if the conversation has no such."""
        found = (entry for entry in self.entries if entry.first <= number <= entry.last)
        return next(found, None)
