"""What goes into a model's context: priorities, compaction levels, and the ledger of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from limpet.values.frozen import Json
from limpet.values.message import MessageCategory


class ContextPriority(IntEnum):
    """How important an item is. Critical items are never changed and never left out."""

    CRITICAL = 100
    HIGH = 75
    MEDIUM = 50
    LOW = 25
    BACKGROUND = 10

    def score(self) -> int:
        """Return the score: the higher, the more important."""
        return int(self)

    @property
    def label(self) -> str:
        """The name for output: critical, high, medium, low, background."""
        return self.name.lower()


PRIORITY_OF_CATEGORY: Final = {
    MessageCategory.SYSTEM: ContextPriority.CRITICAL,
    MessageCategory.CONTEXT: ContextPriority.HIGH,
    MessageCategory.DIALOG: ContextPriority.MEDIUM,
    MessageCategory.SYSTEM_OUTPUT: ContextPriority.LOW,
}


def standing(metadata: Mapping[str, Json]) -> tuple[ContextPriority, str] | None:
    """Return the priority that a message's metadata gives it, and the rule: `pinned`, or `priority` with a name.

    Other metadata is the caller's and is ignored.
    """
    if metadata.get("pinned") is True:
        return ContextPriority.CRITICAL, "pinned"
    name = metadata.get("priority")
    if isinstance(name, str) and name.upper() in ContextPriority.__members__:
        return ContextPriority[name.upper()], f"priority {name.lower()}"
    return None


def stands_out(metadata: Mapping[str, Json]) -> bool:
    """Return whether windows must look at a message however old it is."""
    chosen = standing(metadata)
    return chosen is not None and chosen[0] >= ContextPriority.HIGH


class CompactionLevel(IntEnum):
    """How strongly a context is compacted. Each level includes the ones before.

    Light shortens long texts. Moderate replaces older messages by a summary. Aggressive drops low and background
    priorities. Critical keeps critical items only.
    """

    NONE = 0
    LIGHT = 1
    MODERATE = 2
    AGGRESSIVE = 3
    CRITICAL = 4

    @property
    def label(self) -> str:
        """The name for output: none, light, moderate, aggressive, critical."""
        return self.name.lower()


class Fate(StrEnum):
    """What happened to a message or handle: kept, shortened, summarised, left out."""

    KEPT = "kept"
    SHORTENED = "shortened"
    SUMMARISED = "summarised"
    LEFT_OUT = "left out"


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One line of a ledger: a range of message numbers (from 1) and what happened to them.

    `tokens` is their size in the conversation, `used` their size in the context, `rule` the reason.
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
        """How many messages the line covers."""
        return self.last - self.first + 1


class Selection(msgspec.Struct, frozen=True, omit_defaults=True):
    """The recorded selection of a window, from which it is rebuilt without deciding again.

    `parts` are, in order, [first, last] for unchanged messages, by number, or the dict of a message that was
    changed or made (a summary). Numbers count from `began`, the ordinal before the first message of the
    generation. `digest` is the hash of the whole window.
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
    """The account of a window: every message of the conversation is in exactly one entry, in order."""

    entries: tuple[Entry, ...]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def used(self) -> int:
        """The tokens that the conversation's messages take in the window."""
        return sum(entry.used for entry in self.entries)

    def messages(self, fate: Fate | None = None) -> int:
        """How many messages there are, or how many had this fate."""
        return sum(e.count for e in self.entries if fate is None or e.fate is fate)

    def tokens(self, fate: Fate | None = None) -> int:
        """The size of the messages in the conversation, or of those with this fate."""
        return sum(e.tokens for e in self.entries if fate is None or e.fate is fate)

    def left_out(self) -> dict[str, tuple[int, int]]:
        """Return, for each rule, how many messages it left out and their tokens."""
        reasons: dict[str, tuple[int, int]] = {}
        for entry in self.entries:
            if entry.fate is Fate.LEFT_OUT:
                messages, size = reasons.get(entry.rule, (0, 0))
                reasons[entry.rule] = (messages + entry.count, size + entry.tokens)
        return reasons

    def of(self, number: int) -> Entry | None:
        """Return the entry of a message by its number; None if there is no such message."""
        found = (entry for entry in self.entries if entry.first <= number <= entry.last)
        return next(found, None)
